"""OpenAI-compatible server; requires the extra `[server]` (starlette and uvicorn)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import make_app
    from .model_pool import ModelPool, ServedModel, served_model
    from .running import RunningServer, ServedLLM, running_servers, served
    from .settings import Settings
    from .systemd import systemd_service
    from .thread import Server, listen, serve_in_thread

__all__ = [
    "ModelPool",
    "RunningServer",
    "ServedLLM",
    "ServedModel",
    "Server",
    "Settings",
    "listen",
    "make_app",
    "running_servers",
    "serve_in_thread",
    "served",
    "served_model",
    "systemd_service",
]
# Name -> its module. Only `app` and `thread` need the extra.
_HOME = (
    dict.fromkeys(("ModelPool", "ServedModel", "served_model"), "model_pool")
    | dict.fromkeys(("RunningServer", "ServedLLM", "running_servers", "served"), "running")
    | dict.fromkeys(("Server", "listen", "serve_in_thread"), "thread")
    | {"make_app": "app", "Settings": "settings", "systemd_service": "systemd"}
)


if not TYPE_CHECKING:  # for a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(import_module(f".{_HOME[name]}", __name__), name)
        raise AttributeError(f"module 'gguf_spec.server' has no attribute {name!r}")
