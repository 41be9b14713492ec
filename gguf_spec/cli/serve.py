"""`gguf-spec serve`: run the OpenAI-compatible server."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .command import Command
from .options import load_models, model_options, speculation_options, to_speculation
from .render import CONTROL

if TYPE_CHECKING:
    from .. import LLM
    from ..server import Server, Settings


@click.command(
    cls=Command,
    usual=("model", "draft", "host", "port", "api_key", "cors_origin", "ctx", "threads", "quiet"),
    short_help="Serve an OpenAI-compatible API and a chat page.",
)
@model_options
@click.option(
    "--host",
    default="127.0.0.1",
    help="Address to listen on; --api-key is required unless it is local.",
)
@click.option("--port", type=int, default=8080, help="Port to listen on; 0 selects a free one.")
@click.option(
    "--api-key",
    show_default=False,
    help="Key that clients must send; the environment variable "
    "does not show it in the list of processes.",
)
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Origin whose pages may use the server; * for all. Repeatable.",
)
@click.option(
    "--queue",
    type=int,
    default=16,
    help="Maximum number of waiting requests; others get status 429.",
)
@click.option(
    "--max-tokens-limit",
    type=int,
    help="Maximum length of an answer in tokens.  [default: the context]",
)
@click.option(
    "--timeout",
    type=float,
    default=600.0,
    help="Time limit of an answer in seconds, from its start.",
)
@click.option(
    "--body-limit", type=float, default=4.0, help="Maximum size of a request in megabytes."
)
@click.option(
    "--grace",
    type=float,
    default=5.0,
    help="Seconds that running answers have to finish when the server stops.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show only the address and errors.")
@speculation_options
def serve(quiet: bool, **options: Any) -> int:
    """Serve an OpenAI-compatible API and a chat page.

    \b
    Examples:
      gguf-spec serve
      gguf-spec serve -m target.gguf -d draft.gguf --port 8000 --ctx 8192
      GGUF_SPEC_API_KEY=secret gguf-spec serve --host 0.0.0.0
      curl http://127.0.0.1:8080/v1/chat/completions \\
        -d '{"messages": [{"role": "user", "content": "Hi"}]}'
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    settings = _settings(options)  # before the models, which take long to load
    needs_key = settings.api_key is not None
    speculation = to_speculation(options)
    with load_models(options, options["draft"] if speculation.k else "none", speculation) as llm:
        from ..server import Server

        with Server(llm, settings) as server:
            if not quiet:
                _show_requests()
            return _wait(server, None if quiet else lambda: _say_how(server.url, llm, needs_key))


def _settings(options: dict[str, Any]) -> Settings:
    from ..errors import GgufSpecError

    try:
        from ..server import Settings
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise GgufSpecError(
            f"the server needs {error.name}, which is not installed.",
            "install it with: pip install 'gguf-spec[server]'.",
        ) from None
    return Settings(
        host=options["host"],
        port=options["port"],
        api_key=options["api_key"],
        cors_origins=options["cors_origin"],
        queue=options["queue"],
        max_tokens=options["max_tokens_limit"],
        timeout=options["timeout"],
        body_bytes=int(options["body_limit"] * 1_000_000),
        grace=options["grace"],
    )


def _wait(server: Server, begin: Callable[[], None] | None) -> int:
    """Serve until a signal arrives; a second signal cancels running answers.

    Args:
        server: The server.
        begin: Called when the server listens.

    Returns:
        The exit code.
    """
    told, caught = threading.Event(), []

    def stop(number: int, _frame: object) -> None:
        caught.append(number)
        told.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        click.echo(f"Listening at {server.url}")
        if begin:
            begin()
        # The wait has a timeout because Windows delivers Ctrl-C only between waits.
        while server.is_running and not told.wait(0.5):
            pass
        server.stop()
        while server.is_running:
            time.sleep(0.05)
            if len(caught) > 1:
                server.close(grace=0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 130 if signal.SIGINT in caught else 0


def _say_how(url: str, llm: LLM, needs_key: bool) -> None:
    """Show the addresses and an example on stderr."""
    base = url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
    key = ' -H "Authorization: Bearer $GGUF_SPEC_API_KEY"' if needs_key else ""
    example = '{"messages": [{"role": "user", "content": "Hi"}]}'
    lines = [
        f"Model         {llm.name}, context of {llm.n_ctx:,} tokens",
        f"Chat page     {base}/",
        f"Base URL      {base}/v1 (for clients of OpenAI's API)",
        f"Try           curl {base}/v1/chat/completions{key} -d '{example}'",
        "End           Ctrl-C",
    ]
    click.echo("\n".join(lines), err=True)


def _show_requests() -> None:
    """Write one line for each request to stderr."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            now = time.strftime("%H:%M:%S", time.localtime(record.created))
            click.echo(f"{now} {record.getMessage().translate(CONTROL)}", err=True)

    log = logging.getLogger("gguf_spec.server.requests")
    log.setLevel(logging.INFO)
    log.addHandler(Handler())
