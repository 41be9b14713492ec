"""OpenAI-compatible server for one LLM; requires the extra `[server]` (starlette and uvicorn)."""

from .app import make_app
from .settings import Settings
from .thread import Server, serve_in_thread

__all__ = ["Server", "Settings", "make_app", "serve_in_thread"]
