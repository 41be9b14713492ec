"""Servers: `gguf-spec serve`, `gguf-spec ps` and `gguf-spec worker`."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import math
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import (
    GgufSpecError,
    InvalidOptionError,
    NotInstalledError,
    Option,
    OptionConflictError,
)
from ..options import DRAFT_WORDS, LONG_CTX, PARAMETERS, duration
from . import signals
from .command import CONTROL, Command, as_called, file_option, flag, option
from .config import tool_servers
from .download import default_model, offer_download
from .foreign import LlamaCommand
from .options import (
    Parsed,
    at_once,
    load_arguments,
    load_models,
    model_options,
    own,
    read_text,
    speculation_options,
    table_option,
    table_options,
    to_speculation,
)
from .output import aligned, fitted, print_json

if TYPE_CHECKING:
    from ..options import Speculation
    from ..server import ModelPool, Server, Settings

_KEEP_ALIVE_S = 300.0  # default with several models
_PATIENCE_S = 4.0  # after the grace period; then the process ends in any state
# Collections of younger objects before one of all; Python's own number is 10.
_YOUNG_COLLECTIONS = 100
# Sampling options of the start, for requests without them.
_DEFAULTS = (
    "max_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma",
    "xtc_probability", "xtc_threshold", "repeat_penalty", "penalty_last_n", "frequency_penalty",
    "presence_penalty", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
    "dry_sequence_breakers", "seed",
)  # fmt: skip


_NO_LIMIT = ("none", "never", "off", "inf", "unlimited")  # as numbers: 0, and below


def _limit(text: str) -> float:
    """Parse a time or a number of something; 0.0 for no limit."""
    found = 0.0 if text.strip().lower() in _NO_LIMIT else duration(text)
    return 0.0 if found == math.inf else found


def _count(text: str) -> int | None:
    """Parse a number of tokens; None for no limit."""
    if text.strip().lower() in _NO_LIMIT:
        return None
    try:
        return int(text) if int(text) > 0 else None
    except ValueError:
        raise ValueError(f"{text!r} is neither a whole number nor none.") from None


def _queue(text: str) -> int:
    """Parse a number of requests; as many as the memory holds for no limit."""
    return (_count(text) or sys.maxsize) if text.strip() != "0" else 0


def _keep_alive(text: str) -> float:
    """Parse how long a model stays; 0 does not keep it."""
    return math.inf if text.strip().lower() in _NO_LIMIT else duration(text)


@click.command(
    cls=LlamaCommand, usual="model draft host port api_key cors_origin ctx parallel threads quiet"
)
@partial(model_options, several=True, chat=True)
@flag("--store", "Serve all downloaded models, too; each is loaded on demand.")
@option(
    "--keep-alive",
    "Time after which an idle model is unloaded; -1 or never for never.  "
    "[default: 5m with several models, otherwise -1]",
    type=Parsed("DURATION", _keep_alive),
)
@option(
    "--any-model/--no-any-model",
    "Use the first model for unknown model names.  [default: on a local address]",
    default=None,
)
@option(
    "--host", "Address to listen on; --api-key is required unless it is local.", default="127.0.0.1"
)
@option("--port", "Port to listen on; 0 selects a free one.", default=8080)
@option(
    "--api-key",
    "Key that clients must send; the environment variable "
    "does not show it in the list of processes.",
    show_default=False,
)
@file_option(
    "--api-key-file",
    "File with the API key, in a line of its own; empty lines and those with # are left out.",
)
@option(
    "--cors-origin",
    "Origin whose pages may use the server, such as http://localhost:3000 or "
    "chrome-extension://*; * for all. Repeatable.",
    multiple=True,
    metavar="ORIGIN",
)
@option(
    "--allow-host",
    "Host name that requests may have beside those of this machine, such as that of a proxy or "
    "tunnel: ai.example.org or *.example.org; * for all, with --api-key. Repeatable.",
    multiple=True,
    metavar="NAME",
)
@option(
    "--ctx-max",
    "Length to which the context grows when a request needs more, in tokens.  [default: without "
    "--ctx, what the model was trained for and the free memory holds]",
    type=Parsed("INTEGER", _count),
)
@table_option("parallel")
@table_option("max_gap")
@table_option("prefix_memory")
@table_option("keep")
@table_option("draft_texts", default="off")
@table_option("pooling")
@table_options(_DEFAULTS, default=None)
@option("--alias", "Name of the model in answers and lists; several with commas between.")
@option(
    "--queue",
    "Maximum number of waiting requests; others get status 429. none: as many as memory holds.",
    type=Parsed("INTEGER", _queue),
    default=1000,
)
@option(
    "--max-tokens-limit",
    "Maximum length of an answer in tokens; 0 or none for no limit.  [default: the context]",
    type=Parsed("INTEGER", _count),
)
@option(
    "--timeout",
    "Time limit of an answer in seconds, from its start; 0 or none for no limit.",
    type=Parsed("DURATION", _limit),
    default=600.0,
)
@option(
    "--body-limit",
    "Maximum size of a request in megabytes; 0 or none: 256, what all may have that arrive at "
    "once.  [default: 4; 32 with --mmproj]",
    type=Parsed("FLOAT", _limit),
)
@option(
    "--grace", "Seconds that running answers have to finish when the server stops.", default=5.0
)
@option(
    "--ping",
    "Seconds without text after which a stream sends data without meaning, so that proxies "
    "keep the connection; 0 or none for never.",
    type=Parsed("DURATION", _limit),
    default=15.0,
)
@option(
    "--mcp/--no-mcp",
    "Offer the tool servers of the config file, [mcp.NAME], to models in the chat page, which asks "
    "before each call.",
    default=False,
)
@flag("-q --quiet", "Show only the address and errors.")
@speculation_options
def serve(quiet: bool, **options: Any) -> int:
    """Serve the APIs of OpenAI, Anthropic and Ollama, and a chat page.

    \b
    Examples:
      gguf-spec serve
      gguf-spec serve -m qwen2.5-1.5b -m llama3.2-1b --keep-alive 10m
      gguf-spec serve -m target.gguf -d draft.gguf --port 8000 --ctx 8192
      GGUF_SPEC_API_KEY=secret gguf-spec serve --host 0.0.0.0
      curl http://127.0.0.1:8080/v1/chat/completions \\
        -d '{"messages": [{"role": "user", "content": "Hi"}]}'
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    options["ctx"] = options["ctx"] or None  # 0 is the length of the training, to which it grows
    limit, ctx_max = options["max_tokens_limit"], options["ctx_max"]
    if file := options["api_key_file"]:
        options["api_key"] = key_of(file, options["api_key"])
    if ctx_max is not None and ctx_max < (options["ctx"] or LONG_CTX):
        why = ", the value of --ctx" if options["ctx"] else " without --ctx"
        least = f"at least {options['ctx'] or LONG_CTX}{why}"
        raise InvalidOptionError("ctx_max", ctx_max, least)
    given = {name: options[PARAMETERS[name]] for name in _DEFAULTS}
    options["default_sampling"] = {k: v for k, v in given.items() if v not in (None, ())}
    if given["max_tokens"] == -1:
        options["default_sampling"]["max_tokens"] = None
    elif limit and (given["max_tokens"] or 0) > limit:
        raise InvalidOptionError("max_tokens", given["max_tokens"], f"at most {limit}, the limit")
    server_type, settings = _settings(options)  # before the models, which take long to load
    needs_key = settings.api_key is not None
    speculation = to_speculation(options)
    from ..server import listen

    with (
        end_in(settings.grace + _PATIENCE_S) as end,
        listen(settings) as listener,  # a port that is in use is told before the models are loaded
        _pool(options, speculation) as pool,
        server_type(pool, settings, listener) as server,
    ):
        if not quiet:
            _show_requests()
        elif settings.tool_servers:
            click.echo(f"Chat page     {server.page_url}", err=True)
        begin = None if quiet else lambda: _say_how(server, pool, needs_key)
        return _wait(server, begin, end)


@contextmanager
def end_in(seconds: float) -> Iterator[Callable[[], None]]:
    """Yield a function after which the process ends in some seconds, unless the block ends before.

    The process ends even if a thread never releases the lock of Python.
    """
    with Path(os.devnull).open("w") as sink:
        try:
            yield partial(faulthandler.dump_traceback_later, seconds, file=sink, exit=True)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _pool(options: dict[str, Any], speculation: Speculation) -> ModelPool:
    """Return the models, the first of them loaded.

    Raises:
        OptionConflictError: An option belongs to one model, and there are several.
    """
    draft = options["draft"] if speculation.k else "none"
    names, file = _names(options), options["models_file"]
    is_file = {"draft": draft not in DRAFT_WORDS}
    for name in ("mmproj", "lora", "draft_lora", "draft") if len(names) > 1 else ():
        if is_file.get(name, options[name]):
            hint = "start one server for each model, or give one model."
            raise OptionConflictError(Option(name), "several models", hint)
    # importing the models is slow: only after the options are checked
    from ..server import ModelPool, served_model

    given = load_arguments(options, draft, speculation)
    alias = options["alias"]
    if alias and len(names) > 1:
        raise OptionConflictError(Option("alias"), "several models", "name them in a models file.")
    models = [
        served_model(
            default_model(file) if name is None else name,
            file,
            alias=alias,
            ctx_max=options["ctx_max"],
            **given,
        )
        for name in names
    ]
    keep_alive = options["keep_alive"]
    if keep_alive is None:
        keep_alive = _KEEP_ALIVE_S if len(models) > 1 else math.inf
    pool = ModelPool(
        models, speculation=speculation, keep_alive=None if keep_alive == math.inf else keep_alive
    )
    pool.add(models[0], own(load_models(options | {"model": names[0]}, speculation)))
    return pool


def _names(options: dict[str, Any]) -> list[str | None]:
    """Return the models of the options, each once; None is the default model."""
    names: list[str | None] = [*dict.fromkeys(options["model"])] or [None]
    for name in names:
        offer_download(name, options["draft"], options)
    if options["store"]:
        from ..models import find, list_models, resolve

        file = options["models_file"]
        given = {
            (resolve(name, file) if name else default_model(file).entry).name for name in names
        }
        stored = [entry for entry in list_models(file) if not entry.path and find(entry, file)]
        names += [entry.name for entry in stored if entry.name not in given]
    return names


def key_of(file: Path, given: str | None) -> str:
    """Return the key in a file.

    Raises:
        OptionConflictError: There is another one.
        GgufSpecError: The file has none, or several.
    """
    if given is not None:
        hint = "give one of them; the environment may have GGUF_SPEC_API_KEY."
        raise OptionConflictError(Option("api_key"), Option("api_key_file"), hint)
    lines = (line.strip() for line in read_text(file).splitlines())
    keys = [line for line in lines if line and not line.startswith("#")]
    if len(keys) != 1:
        fact = f"{file} has {len(keys)} keys in place of one."
        raise GgufSpecError(fact, "write one key into it, in a line of its own.")
    return keys[0]


def _settings(options: dict[str, Any]) -> tuple[type[Server], Settings]:
    """Return the class of the server, which needs the extra, and the settings."""
    try:
        from ..server import Server, Settings
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn"):
            raise
        raise NotInstalledError("the server", str(error.name), "server") from None
    megabytes = options["body_limit"]
    if megabytes is None:  # images need more room
        megabytes = 4.0 if options["mmproj"] is None else 32.0
    megabytes = megabytes or 256.0
    names = ("host", "port", "api_key", "queue", "timeout", "grace", "ping", "any_model")
    return Server, Settings(
        **{name: options[name] for name in names},
        cors_origins=options["cors_origin"],
        allowed_hosts=options["allow_host"],
        tool_servers=tool_servers() if options["mcp"] else (),
        max_tokens=options["max_tokens_limit"],
        body_bytes=int(megabytes * 1_000_000),
        listed=True,
    )


def _wait(server: Server, begin: Callable[[], None] | None, end: Callable[[], None]) -> int:
    """Serve until a signal arrives; a second signal cancels running answers.

    Args:
        end: Called when the first signal arrives.
    """
    # `put` may be called by a signal handler inside of `get`; an Event could wait for itself.
    stopped, caught = queue.SimpleQueue[int](), list[int]()

    def stop(number: int, _frame: object) -> None:
        signals.handled(number)
        if not caught:
            end()
        caught.append(number)
        stopped.put(number)

    from ..server import systemd_service

    with signals.handlers(stop), rare_collections():
        click.echo(f"Listening at {server.url}")
        if begin:
            begin()
        with systemd_service(server):
            # The wait has a timeout because Windows delivers Ctrl-C only between waits.
            while server.is_running and not caught:
                with contextlib.suppress(queue.Empty):
                    stopped.get(timeout=0.5)
        if signal.SIGINT in caught and sys.stderr and sys.stderr.isatty():
            click.echo("\nEnding. Ctrl-C again ends running answers at once.", err=True)
        server.stop()
        while server.is_running:
            time.sleep(0.05)
            if len(caught) > 1:
                server.close(grace=0)
    return max((128 + one for one in caught if one != signal.SIGTERM), default=0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the garbage collector read old objects rarely, as no thread runs meanwhile.

    That takes a quarter of a second for 300,000 objects: a long answer with log-probabilities.
    What is there now is never read; later objects are when 700,000 more were made than freed.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*thresholds[:2], _YOUNG_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _say_how(server: Server, pool: ModelPool, needs_key: bool) -> None:
    """Show the addresses and an example on stderr."""
    base, page = (
        url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")
        for url in (server.url, server.page_url)
    )
    key = ' -H "Authorization: Bearer $GGUF_SPEC_API_KEY"' if needs_key else ""
    example = '{"messages": [{"role": "user", "content": "Hi"}]}'
    first, *others = pool.models
    loaded = pool.loaded(first)
    context = ""
    if loaded:
        most = pool.ctx_max(loaded.llm)
        grows = f" (up to {most:,} where a request needs it)" if most > loaded.llm.n_ctx else ""
        context = f", context of {loaded.llm.n_ctx:,} tokens{grows}, {at_once(loaded.llm)}"
    lines = [
        f"Model         {first.id}{context}",
        *(f"On demand     {model.id}" for model in others),
        f"Chat page     {page}",
        f"Base URL      {base}/v1 (for clients of OpenAI's API)",
        f"Try           curl {base}/v1/chat/completions{key} -d '{example}'",
        "End           Ctrl-C",
    ]
    click.echo("\n".join(lines), err=True)


def _show_requests() -> None:
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            now = time.strftime("%H:%M:%S", time.localtime(record.created))
            with contextlib.suppress(OSError):  # nobody reads it, or the disk is full
                click.echo(f"{now} {record.getMessage().translate(CONTROL)}", err=True)

    log = logging.getLogger("gguf_spec.server.jobs")
    log.setLevel(logging.INFO)
    log.addHandler(Handler())


_HEAD = ("MODEL", "SIZE", "CONTEXT", "UNLOADED IN", "SERVER", "PID")


@click.command(cls=Command)
@flag("--json as_json", "Print one JSON array instead of the table.")
def ps(as_json: bool) -> None:
    """Show the models that running servers of this user hold in memory.

    \b
    Examples:
      gguf-spec ps
      gguf-spec ps --json
    """
    from ..models import format_bytes
    from ..server import running_servers

    servers = running_servers()
    rows = [_HEAD]
    for server in servers:
        for model in server.models:
            seconds, left = model["seconds_left"], "never"
            if model["busy"]:
                left = "in use"
            elif seconds is not None:
                left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
            size, context = format_bytes(model["size"]), f"{model['context_length']:,}"
            rows.append((model["name"], size, context, left, server.url, str(server.pid)))
        if not server.models:
            rows.append(("(none)", "-", "-", "-", server.url, str(server.pid)))
    if as_json:
        print_json([asdict(server) for server in servers], allow_nan=True)
    elif servers:
        click.echo("\n".join(fitted(aligned(rows))).translate(CONTROL))
    else:
        click.echo(as_called("No server is running. `gguf-spec serve` starts one."), err=True)


@click.command(cls=Command)
@option("--listen", "Address to listen on.", default="127.0.0.1:50052", metavar="HOST:PORT")
@table_option("threads")
@flag(
    "--insecure-listen-anywhere",
    "Allow an address that other machines can reach: anyone there controls the worker.",
)
@flag("-q --quiet", "Show only the address and errors.")
def worker(listen: str, threads: int | None, insecure_listen_anywhere: bool, quiet: bool) -> None:
    """Hold a part of a model that is too large for another machine.

    The other machine gives the address to --rpc. It needs the same build of llama.cpp. The protocol
    of llama.cpp has no authentication and no encryption, so forward the port:

    \b
    Examples:
      gguf-spec worker
      ssh -N -L 50052:127.0.0.1:50052 OTHER-MACHINE
      gguf-spec generate -m large.gguf --rpc 127.0.0.1:50052 "Why is the sky blue?"
    """
    from ..plugins import plugin

    def ready(address: str) -> None:
        click.echo(f"Listening at {address}")
        # llama.cpp writes to stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY) if quiet else 2, 1)

    plugin("workers").run_worker(
        listen,
        threads=threads,
        insecure_listen_anywhere=insecure_listen_anywhere,
        on_ready=ready,
    )
