"""An OpenAI-compatible server around one LLM; needs the extra `[server]` (starlette and uvicorn)."""

from ._app import make_app
from ._server import Server, serve_in_thread
from ._settings import Settings

__all__ = ["Server", "Settings", "make_app", "serve_in_thread"]
