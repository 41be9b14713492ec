"""uvicorn in a separate thread, without signal handlers, printed output or global state."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

import uvicorn

from ..errors import GgufSpecError, InvalidOptionError, Text
from ..system.process import OfOneProcess
from .app import App, make_app
from .connections import AT_ONCE, Connection, LimitedUvicorn, most_connections
from .model_pool import ModelPool
from .running import listed, running_servers
from .settings import Settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import ServerOptions
    from ..runtime.llm import LLM


class _Uvicorn(LimitedUvicorn):
    """uvicorn server that notifies the application when the shutdown begins."""

    def __init__(self, config: uvicorn.Config, look_s: float, app: App) -> None:
        super().__init__(config, look_s)
        self._application = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._application.begin_end()
        await super().shutdown(sockets)


class Server(OfOneProcess):
    """Running server. Use it in a `with` statement, or close it.

    Attributes:
        url: Base URL, such as `http://127.0.0.1:8080`.
        page_url: Address of the chat page; with a token if the page offers tools and there is no
            API key.
        app: The application that answers the requests.
    """

    _is_closed = False  # by a fork

    def __init__(
        self, llm: LLM | ModelPool, settings: Settings, listener: socket.socket | None = None
    ) -> None:
        """Start the server.

        Args:
            llm: The LLM, which stays open, or a pool of models.
            listener: A socket of `listen`, which the server closes; None opens one.

        Raises:
            InvalidOptionError: The host is not a valid address.
            GgufSpecError: The address is in use or does not belong to this machine.
        """
        self._socket = listener or listen(settings)
        host, port = self._socket.getsockname()[:2]
        self.url: str = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        self.app: App = make_app(llm, settings)
        self.page_url: str = self.app.tools.page_url(self.url)
        limits = settings.limits
        most = most_connections(limits.connections)
        config = uvicorn.Config(
            self.app,
            loop="asyncio",
            http=partial(Connection, most, settings),  # type: ignore[arg-type]
            backlog=AT_ONCE,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=math.ceil(settings.grace) + 1,
        )
        self._uvicorn = _Uvicorn(config, limits.look_s, self.app)
        self._listing = contextlib.ExitStack()
        if settings.listed:
            self._listing.enter_context(listed(self.url, self.app.status_token, self.app.models))
        self._thread = threading.Thread(target=self._run, name="gguf-spec-server", daemon=True)
        self._thread.start()

    def _give_up(self) -> object:
        self._socket.close()  # here; the parent goes on listening
        self._is_closed = True
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.url}: running={self.is_running}>"

    def _run(self) -> None:
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._listing.close()
            self._socket.close()

    @property
    def is_running(self) -> bool:
        """Whether the server still answers requests."""
        return self._thread.is_alive()

    def progress(self) -> int | None:
        """Return the number of steps of computation so far; None while there is nothing to do.

        A number that stays the same for long means that a request hangs.
        """
        return self.app.worker.progress()

    def stop(self) -> None:
        """Begin the shutdown without waiting for its end.

        New requests are refused. Running ones have the grace period of the settings to finish.
        """
        self._uvicorn.should_exit = True

    def close(self, grace: float | None = None) -> None:
        """Shut down the server and wait for its end; further calls have no effect.

        The LLM stays open.

        Args:
            grace: Seconds that running answers have to finish; 0 cancels them at once, None
                takes the grace period of the settings.
        """
        if self._is_closed or sys.is_finalizing():  # its threads never go on then
            return
        self.stop()
        if grace is not None:
            self._thread.join(grace)
            self.app.cancel_all()
        self._thread.join()
        self.app.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def listen(settings: Settings) -> socket.socket:
    """Return a socket that already accepts connections.

    Raises:
        InvalidOptionError: The host is not a valid address.
        GgufSpecError: The address is in use or does not belong to this machine.
    """
    hint = Text("use another port; {port=0} selects a free one.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidOptionError(
            "host", settings.host, f"an address of this machine ({error.strerror or error})"
        ) from None
    try:
        if os.name == "posix":  # on Windows this option lets other processes share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        own = (one for one in running_servers() if one.url.endswith(f":{settings.port}"))
        found = next((f"a server of yours runs there: {one.url}" for one in own), None)
        raise GgufSpecError(
            f"the server cannot listen at {settings.host}, port {settings.port}: "
            f"{found or error.strerror or error}.",
            hint,
        ) from None
    return listener


def serve_in_thread(
    llm: LLM | ModelPool, port: int = 0, **settings: Unpack[ServerOptions]
) -> Server:
    """Serve an LLM from a separate thread of this process.

    The program may continue to use the LLM; its requests and those of the server wait for each
    other.

    Args:
        llm: The LLM to serve, which stays open: close the server first, then the LLM. Or a pool of
            models.
        port: Port to listen on; 0 selects a free one, see `Server.url`.
        settings: Fields of `Settings`: `host`, `api_key`, `cors_origins`, `allowed_hosts`, `queue`,
            `max_tokens`, `timeout`, `body_bytes`, `grace`, `ping`, `any_model`, `listed`.

    Raises:
        InvalidOptionError: A setting has a value outside its range.
        GgufSpecError: The port is in use.
    """
    return Server(llm, Settings(port=port, **settings))
