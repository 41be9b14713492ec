"""Servers: `gguf-spec serve`, `gguf-spec ps` and `gguf-spec worker`."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import itertools
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidOptionError, NotInstalledError, Option, OptionConflictError
from ..options import DRAFT_WORDS, LONG_CTX, PARAMETERS, duration
from . import signals
from .command import CONTROL, Command, UnknownNameError, as_called, flag, option
from .config import tool_servers
from .download import default_model, offer_download
from .habits import NO_EFFECT, NOT_HERE, ONLY_GPU
from .options import (
    Parsed,
    at_once,
    load_arguments,
    load_models,
    model_options,
    own,
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
    "presence_penalty", "seed",
)  # fmt: skip
# Key of the context: options of llama-server that were given and have no effect.
_LEFT_OUT = "gguf_spec.left_out"
_OF_GPU = "gguf_spec.of_gpu"  # and those that need a GPU


class _Serve(Command):
    """Command that knows the options of llama-server, so that none is read as another one."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *_foreign_options()]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, _as_meant(args))
        of_gpu = [*ctx.meta.get(_OF_GPU, ()), *_left_out_for_gpu(ctx.params)]
        why = f": {_why_no_gpu()}" if of_gpu else ""
        for names, end in ((ctx.meta.get(_LEFT_OUT), ""), (of_gpu, why)):
            if names:
                are = "have" if len(names) > 1 else "has"
                click.echo(f"Note: {', '.join(names)} {are} no effect here{end}.", err=True)
        return rest


def _left_out_for_gpu(given: dict[str, Any]) -> list[str]:
    """Leave out values of options that need a GPU, if llama.cpp is built without; return them.

    The command lines of llama-server have them on every machine, and it takes them, too.
    """

    def is_gpu(name: str) -> bool:
        return name.strip().lower() not in ("none", "cpu", "")

    left = dict[str, Any]()
    for name, usual in (("gpu_layers", -1), ("draft_gpu_layers", None)):
        n = given.get(name)
        left |= {name: usual} if isinstance(n, int) and n > 0 else {}
    for name in ("device", "draft_device"):
        kept = tuple(one for one in given.get(name) or () if not is_gpu(one))
        left |= {name: kept} if kept != (given.get(name) or ()) else {}
    pairs = given.get("override_tensor") or ()
    on_cpu = tuple(one for one in pairs if not is_gpu(one.rpartition("=")[2]))
    left |= {"override_tensor": on_cpu} if on_cpu != tuple(pairs) else {}
    if not left or given.get("rpc") or _has_gpu():
        return []
    flags = [f"--{name.replace('_', '-')}" for name in left]
    given |= left
    return flags


def _has_gpu() -> bool:
    from ..doctor import can_offload

    return can_offload()


def _why_no_gpu() -> str:
    from ..doctor import why_no_gpu

    return why_no_gpu()


def _as_meant(args: list[str]) -> list[str]:
    """Return words in which `-t 8` is `--threads 8`, as in llama-server: no temperature is so high.

    Raises:
        UnknownNameError: Two number types of the cache differ.
    """
    args, kinds = [*args], dict[str, str]()
    for i, (name, value) in enumerate(itertools.pairwise([*args, ""])):
        n = value if name == "-t" else name[2:] if name.startswith("-t") else ""
        if n.isdecimal() and int(n) > 1:
            args[i] = "--threads" if name == "-t" else f"--threads={n}"
            fact = f"Note: -t {n} is read as --threads {n}; --temperature {n} sets the other."
            click.echo(fact, err=True)
        if name in ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"):
            kinds[name[-1]] = value
    if len({*kinds.values()}) > 1:
        hint = "give one: --kv-type TYPE."
        raise UnknownNameError("keys and values of the cache have one number type.", hint, None)
    return args


@functools.cache
def _foreign_options() -> list[click.Option]:
    found: list[click.Option] = []
    for row, hint in (*dict.fromkeys(NO_EFFECT, "").items(), *NOT_HERE.items()):
        words, _, values = row.partition(" [")
        taken = values.rstrip("]").split()
        has_value = bool(taken) or not words.split()[-1].startswith("-")
        kind: dict[str, Any] = {} if has_value else {"is_flag": True, "flag_value": ""}
        for name in (word for word in words.split() if word.startswith("-")):
            found.append(
                click.Option(
                    [name, f"foreign_{len(found)}"],
                    type=str,
                    **kind,
                    default=None,
                    hidden=True,
                    expose_value=False,
                    allow_from_autoenv=False,
                    callback=functools.partial(_foreign, name=name, hint=hint, taken=taken),
                )
            )
    return found


def _foreign(
    ctx: click.Context,
    _: click.Parameter,
    value: str | None,
    name: str,
    hint: str,
    taken: list[str],
) -> None:
    if value is None:
        return
    typed = f"{name} {value}".rstrip()
    if name in ONLY_GPU and not _has_gpu():
        ctx.meta.setdefault(_OF_GPU, []).append(typed)
        return
    if hint:  # without the value, which may be a secret
        raise UnknownNameError(f"{ctx.command_path} has no option {name}.", hint, ctx)
    if taken and value not in taken:
        only = f"{name} takes {' or '.join(taken)} here."
        raise UnknownNameError(f"{ctx.command_path} does not know {typed}.", only, ctx)
    ctx.meta.setdefault(_LEFT_OUT, []).append(typed)


def _limit(text: str) -> float:
    """Parse a time limit; 0 for none."""
    return 0.0 if text.strip().lower() in ("none", "never") else duration(text)


@click.command(
    cls=_Serve, usual="model draft host port api_key cors_origin ctx parallel threads quiet"
)
@partial(model_options, several=True, chat=True)
@flag("--store", "Serve all downloaded models, too; each is loaded on demand.")
@option(
    "--keep-alive",
    "Time after which an idle model is unloaded; -1 for never.  "
    "[default: 5m with several models, otherwise -1]",
    type=Parsed("DURATION", duration),
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
    type=int,
)
@table_option("parallel")
@table_option("max_gap")
@table_option("prefix_memory")
@table_option("keep")
@table_option("draft_texts", default="off")
@table_option("pooling")
@table_options(_DEFAULTS, default=None)
@option("--alias", "Name of the model in answers and lists; several with commas between.")
@option("--queue", "Maximum number of waiting requests; others get status 429.", default=1000)
@option(
    "--max-tokens-limit", "Maximum length of an answer in tokens.  [default: the context]", type=int
)
@option(
    "--timeout",
    "Time limit of an answer in seconds, from its start; 0 or none for no limit.",
    type=Parsed("DURATION", _limit),
    default=600.0,
)
@option(
    "--body-limit",
    "Maximum size of a request in megabytes.  [default: 4; 32 with --mmproj]",
    type=float,
)
@option(
    "--grace", "Seconds that running answers have to finish when the server stops.", default=5.0
)
@option(
    "--ping",
    "Seconds without text after which a stream sends data without meaning, so that proxies "
    "keep the connection; 0 for never.",
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
    if ctx_max is not None and ctx_max < (options["ctx"] or LONG_CTX):
        why = ", the value of --ctx" if options["ctx"] else " without --ctx"
        least = f"at least {options['ctx'] or LONG_CTX}{why}"
        raise InvalidOptionError("ctx_max", ctx_max, least)
    given = {name: options[PARAMETERS[name]] for name in _DEFAULTS}
    options["default_sampling"] = {k: v for k, v in given.items() if v is not None}
    if given["max_tokens"] == -1:
        options["default_sampling"]["max_tokens"] = None
    elif limit and (given["max_tokens"] or 0) > limit:
        raise InvalidOptionError("max_tokens", given["max_tokens"], f"at most {limit}, the limit")
    server_type, settings = _settings(options)  # before the models, which take long to load
    needs_key = settings.api_key is not None
    speculation = to_speculation(options)
    from ..server import listen

    with (
        _end_in(settings.grace + _PATIENCE_S) as end,
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
def _end_in(seconds: float) -> Iterator[Callable[[], None]]:
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
    stopped, caught = threading.Event(), list[int]()

    def stop(number: int, _frame: object) -> None:
        signals.handled(number)
        if not caught:
            end()
        caught.append(number)
        stopped.set()

    from ..server import systemd_service

    with signals.handlers(stop), rare_collections():
        click.echo(f"Listening at {server.url}")
        if begin:
            begin()
        with systemd_service(server):
            # The wait has a timeout because Windows delivers Ctrl-C only between waits.
            while server.is_running and not stopped.wait(0.5):
                pass
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
