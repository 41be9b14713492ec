"""Options shared by several commands: model, sampling and speculation options."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

import click
from click.core import ParameterSource

from ..errors import GgufSpecError, InvalidOptionError
from ..options import (
    FLAGS,
    LOADING,
    OPTIONS,
    PARAMETERS,
    REQUESTS,
    SAMPLING,
    SPECULATION,
    Sampling,
    Speculation,
)
from . import signals
from .command import file_option, flag, option, together
from .completion import model_names
from .download import default_model, offer_download
from .error_text import in_command
from .output import LateBar, StatusLine, no_echo

if TYPE_CHECKING:
    from .. import LLM
    from ..results import Progress
    from ..server import ServedLLM
    from .command import Decorator

    # A model in this process, or in a running server: commands do the same with both.
    AnyLLM: TypeAlias = LLM | ServedLLM

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Parsed(click.ParamType[T]):
    """Parameter type whose texts a function parses; other values are taken as they are.

    Attributes:
        parse: Parses a text; raises a ValueError with a message for the user.
    """

    name: str
    parse: Callable[[str], T]

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self.parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ModelName(click.ParamType[str]):
    """Parameter type for a model; the environment variable has one per line."""

    name = "TEXT"
    envvar_list_splitter: ClassVar[str | None] = "\n"


def token_bias(text: str) -> tuple[int, float]:
    """Parse a token id and the bias that is added to its logit, such as `13=-inf`."""
    found = re.fullmatch(r"\s*(\d+)\s*(?:=|(?=[+-]))(.*)", text)  # 13+1 as in llama.cpp
    with contextlib.suppress(ValueError):
        if found:
            return int(found[1]), float(found[2])
    raise ValueError(f"{text!r} is not a token id and a bias, such as 13=-1.5 or 13=-inf.")


def adapter_file(text: str) -> tuple[str, float]:
    """Parse a LoRA adapter and its scale, such as `lora.gguf:0.5`.

    The scale is the text after the last colon, if that text is a number and the whole text is no
    file; otherwise it is 1.
    """
    if not text:
        raise ValueError("the name is empty; write a file such as lora.gguf or lora.gguf:0.5.")
    file, _, scale = text.rpartition(":")
    with contextlib.suppress(OSError, ValueError):
        if file and not Path(text).exists():
            return file, float(scale)
    return text, 1.0


def number_or_auto(text: str, wrong: str, meant: dict[str, str]) -> int | str:
    """Parse a number or auto; `meant` has words of llama-server for one of these."""
    text, given = text.strip().lower(), text
    text = meant.get(text, text)
    with contextlib.suppress(ValueError):
        return text if text == "auto" else int(text)
    raise ValueError(f"{given!r} is {wrong}.")


_ALL, _AUTO = {"all": "-1"}, {"-1": "auto"}
_NO_LAYERS = "neither a whole number nor auto"
LAYERS = Parsed("INTEGER|auto", partial(number_or_auto, wrong=_NO_LAYERS, meant=_ALL))
_NO_NUMBER = "not a number of requests such as 4, or auto"
REQUESTS_AT_ONCE = Parsed("N|auto", partial(number_or_auto, wrong=_NO_NUMBER, meant=_AUTO))
ADAPTER = Parsed("FILE[:SCALE]", adapter_file)
_MEASURED_MODEL = "the largest chat model on this disk, else tales"
_CHAT_MODEL = "the largest chat model on this disk, else smollm2-135m-instruct"
_FILE: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"}
# Arguments of `click.option` for options whose text is not read as the type in the table.
_CLICK: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("reference", "mmproj", "grammar"), _FILE),
    "flash_attention": {"is_flag": False, "flag_value": "on"},  # a flag in older llama.cpp
    "gpu_layers": {"type": LAYERS},
    "draft_gpu_layers": {"type": LAYERS},
    "lora": {"type": ADAPTER},
    "draft_lora": {"type": ADAPTER},
    "parallel": {"type": REQUESTS_AT_ONCE, "default": "auto"},
    "prefix_memory": {"default": "auto"},
    "k": {"show_envvar": True},
    "logit_bias": {"type": Parsed("ID=BIAS", token_bias)},
}
_TYPES = {"number": float, "integer": int, "string": str, "any": str}


# Words of llama-server for two values.
_SWITCH = {"1": "on", "true": "on", "enabled": "on", "0": "off", "false": "off", "disabled": "off"}


class _Choice(click.Choice):  # type: ignore[type-arg]  # it has no type before click 8.2
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        meant = _SWITCH.get(str(value).lower(), value)
        return super().convert(meant if meant in self.choices else value, param, ctx)


def table_option(name: str, **more: Any) -> Callable[[F], F]:
    """Return the decorator that adds the command-line option of a row of the tables."""
    rule = OPTIONS[name]
    how: dict[str, Any] = {
        "type": _TYPES.get(rule.type), "help": rule.help, "metavar": rule.metavar
    }  # fmt: skip
    if rule.type == "boolean":
        # without a default, click gives False for a flag that is not set
        how |= {"default": None, "is_flag": True} if rule.optional else {"is_flag": True}
    elif rule.shape != "one":
        how["multiple"] = True
    elif name in SAMPLING or name in SPECULATION:
        how["default"] = getattr(Sampling if name in SAMPLING else Speculation, name)
    elif rule.choices:
        default = None if rule.optional else rule.choices[0]
        how |= {"type": _Choice(rule.choices), "default": default}
    elif rule.default is not None:
        how["default"] = rule.default
    return click.option(*FLAGS[name], **(how | _CLICK.get(name, {}) | more))


def table_options(names: Iterable[str], **more: Any) -> Callable[[F], F]:
    return together(*(table_option(name, **more) for name in names))


# Field of `Sampling` -> parameter, without `overflow`: the values of `generate` and `chat` differ.
SAMPLING_PARAMETERS = {name: PARAMETERS[name] for name in SAMPLING if name != "overflow"}
sampling_options: Decorator = table_options(SAMPLING_PARAMETERS)
speculation_options: Decorator = table_options(SPECULATION)


models_file_option: Decorator = file_option(
    "--models-file", "File with more model names, in the format of models.yaml."
)
yes_option: Decorator = flag("-y --yes", "Download a missing model without a question.")
offline_option: Decorator = flag("--offline", "Do not offer to download a model.")
server_option: Decorator = flag(
    "--no-server", "Load the model, even where a server of yours (gguf-spec serve) holds it."
)
verbose_option: Decorator = option(
    "-v --verbose",
    "Show llama.cpp's log, and all tables of a report; -vv also shows tracebacks of errors.",
    count=True,
)


# Options of commands that write a GGUF file.
output_options: Decorator = together(
    flag("--force", "Replace OUT.gguf if it exists."), flag("-q --quiet", "Write only errors.")
)


def model_options(
    command: F,
    *,
    several: bool = False,
    chat: bool = False,
    measured: bool = False,
    download: bool = True,
) -> F:
    """Add the options of `load`.

    Args:
        several: Whether `--model` may be repeated; its value is then a tuple.
        chat: Whether a chat model is the default, in place of the bundled model.
        measured: Whether the bundled model is the default only where there is no chat model.
        download: Whether a missing model is offered for download.
    """
    default: dict[str, Any] = {"default": ("tales",) if several else "tales"}
    if chat:
        default = {"default": () if several else None, "show_default": _CHAT_MODEL}
    if measured:
        default = {"default": None, "show_default": _MEASURED_MODEL}
    model = option(
        "-m --model",
        "Target: a name (gguf-spec models list), a GGUF file, OWNER/REPO[:QUANT], "
        f"hf:OWNER/REPO/FILE, or a model of Ollama or LM Studio.{' Repeatable.' * several}",
        **default, shell_complete=model_names, type=ModelName(), multiple=several,
    )  # fmt: skip
    draft = option(
        "-d --draft",
        "Draft: as --model, or auto, mtp (the target's prediction head), "
        "ngram (from the text only) or none (plain decoding).",
        default="auto", shell_complete=model_names,
    )  # fmt: skip
    of_downloads = (yes_option, offline_option) if download else ()
    template = file_option("--chat-template-file", "File with the text of --chat-template.")
    of_load = (model, draft, models_file_option, *of_downloads, table_options(LOADING), template)
    add: Callable[[F], F] = together(*of_load, verbose_option)
    return add(command)


def with_measured_model(options: dict[str, Any]) -> dict[str, Any]:
    if options["model"] is not None:
        return options
    chosen = default_model(options["models_file"])
    name = chosen.entry.path or chosen.entry.name  # a path where another program downloaded it
    return options | {"model": str(name) if chosen.path else "tales"}


def load_models(
    options: dict[str, Any],
    speculation: Speculation,
    draft: str | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> AnyLLM:
    """Load the models of the options, and write notes to stderr.

    Args:
        draft: The draft model, as `--draft` takes it; None takes that of the options, and none for
            plain decoding.
        cancelled: Returns whether the loading is to end; None lets Ctrl-C end the process.

    Raises:
        LoadCancelledError: `cancelled` returned True.
    """
    if options["ctx"] is not None and options["ctx"] < 2:
        raise InvalidOptionError("n_ctx", options["ctx"], "a whole number above 1")
    if draft is None:
        draft = options["draft"] if speculation.k else "none"
    may_share = options.get("no_server") is False and not cancelled
    if may_share and (found := _served(options, draft, speculation)):
        return found
    offer_download(options["model"], draft, options)
    measuring, loading = StatusLine(), LateBar()

    def measure() -> None:
        loading.remove()
        measuring.show("Measuring this model (once; twice, and longer, beside other programs)")

    def tell(now: Progress) -> bool:
        loading(now)
        return not (cancelled and cancelled())

    from .. import load  # importing llama.cpp is slow: only after the options are checked

    model, models_file = options["model"], options["models_file"]
    at_a_signal = contextlib.nullcontext() if cancelled else signals.ending_at_once()
    with at_a_signal, measuring, loading, no_echo(reads_lines=True):
        llm = load(
            default_model(models_file) if model is None else model,
            models_file=models_file,
            progress=tell,
            on_measure=measure,
            **load_arguments(options, draft, speculation),
        )
    # A missing draft is noted only with --stats, --verbose or another --draft than auto.
    all_notes = llm.draft_name or draft != "auto" or options.get("stats") or options["verbose"]
    for note in llm.notes:
        if all_notes or note not in llm.draft_notes:
            click.echo(f"Note: {in_command(note)}", err=True)
    return llm


def own(llm: AnyLLM) -> LLM:
    """Return a model of this process, of options with which `load_models` asks no server."""
    return cast("LLM", llm)


def _served(options: dict[str, Any], draft: str, speculation: Speculation) -> ServedLLM | None:
    """Return the model of the options in a server of this user; None to load it."""
    needs_own = map(options.get, ("image", "save", "load", "draft_text", "verbose"))
    source = click.get_current_context().get_parameter_source
    sources = map(source, ("keep", "draft_texts"))  # else the server keeps what it is told to
    if (
        ParameterSource.COMMANDLINE in sources
        or any(needs_own)
        or draft not in ("auto", "none", "ngram")
    ):
        return None
    from ..models import path
    from ..server import served

    model, models_file = options["model"], options["models_file"]
    try:
        file = path(default_model(models_file).entry if model is None else model, models_file)
    except GgufSpecError:  # nothing to share: it is not on this disk
        return None

    def load() -> LLM:
        note = f"Note: the server at {url} does not answer this: the model is loaded."
        click.echo(note, err=True)
        return own(load_models(options | {"no_server": True}, speculation, draft))

    given = load_arguments(options, draft, speculation)
    least = 0 if is_given("ctx") else options["ctx"] or 0  # that an edit needs
    given |= {"n_ctx": None} if least else {}
    n = options.get("parallel")
    found = served(file, given, load, least, n if isinstance(n, int) else 1)
    url = found.url if found else ""
    if found:
        click.echo(f"Note: the server at {url} answers, which holds {found.name}.", err=True)
    return found


def load_arguments(
    options: dict[str, Any], draft: str, speculation: Speculation | None = None
) -> dict[str, Any]:
    """Return the arguments of `load`, except the model, the models file and callbacks."""
    given = {"draft_texts": "off"} | {
        name: options[PARAMETERS[name]]
        for name in (*LOADING, *REQUESTS)
        if PARAMETERS[name] in options  # only some commands have the options of requests
    }
    if draft != options["draft"]:  # the adapter belongs to the draft of the options only
        given["draft_lora"] = ()
    if file := options.get("chat_template_file"):
        given["chat_template"] = read_text(file)
    if (template := given.get("chat_template")) and "{" not in template:
        allowed = "the text of a template in Jinja; names such as chatml are not known"
        raise InvalidOptionError("chat_template", template, allowed)
    verbose = options["verbose"] > 0
    given |= {"sampling": options.get("default_sampling"), "speculation": speculation}
    return given | {"draft": draft, "verbose": verbose}


think_option: Decorator = option(
    "--think/--no-think",
    "Let the model reason before its answer, or not.  [default: by model]",
    default=None,
)


# Options of reasoning, except `--think-budget`.
think_options: Decorator = together(
    think_option,
    flag(
        "--hide-thinking",
        "Do not show the reasoning at the terminal; in a pipe it is never shown.",
    ),
)


def to_sampling(options: dict[str, Any], *, overflow: bool = False) -> Sampling:
    """Return the sampling options.

    Options that are not given take the values of the model in models.yaml, if it has any.

    Args:
        overflow: Whether `--overflow` of the command is that of an answer.
    """
    from ..models import resolve

    given = {name: options[parameter] for name, parameter in SAMPLING_PARAMETERS.items()}
    if overflow:
        given["overflow"] = options["overflow"]
    given["logit_bias"] = dict(given["logit_bias"])
    if given["grammar"] is not None:
        given["grammar"] = read_text(given["grammar"])
    if given["json_schema"] and given["json_schema"].startswith("@"):
        given["json_schema"] = read_text(Path(given["json_schema"][1:]))
    if given["max_tokens"] == -1:
        given["max_tokens"] = None
    elif (given["max_tokens"] or 0) < 0:
        allowed = "a whole number, 0 or more, or -1 for as many as the context holds"
        raise InvalidOptionError("max_tokens", given["max_tokens"], allowed)
    if not given["dry_sequence_breakers"]:
        del given["dry_sequence_breakers"]
    asked = Sampling(**given)
    model, models_file = options["model"], options["models_file"]
    entry = default_model(models_file).entry if model is None else resolve(model, models_file)
    parameters = {name: SAMPLING_PARAMETERS.get(name, name) for name in entry.sampling}
    of_model = {name: entry.sampling[name] for name, one in parameters.items() if not is_given(one)}
    return replace(asked, **of_model)


def check_above_0(options: dict[str, Any], *names: str) -> None:
    """Raise an InvalidOptionError for the first option that is set and not above 0."""
    for name in names:
        if options[name] is not None and not options[name] > 0:
            raise InvalidOptionError(name, options[name], "above 0")


def is_given(parameter: str) -> bool:
    """Return whether the user set an option: as a word, in the environment or in a file."""
    source = click.get_current_context().get_parameter_source(parameter)
    return source not in (None, ParameterSource.DEFAULT)


def with_file_values(sampling: Sampling, llm: AnyLLM) -> Sampling:
    """Return sampling options with those of the model's file that were not given."""
    of_file = {
        name: getattr(llm.sampling, name)
        for name, origin in llm.sampling_sources.items()
        if origin == "file" and not is_given(PARAMETERS[name])
    }
    return replace(sampling, **of_file)


def to_speculation(options: dict[str, Any]) -> Speculation:
    """Return the speculation options; `--draft none` disables speculation."""
    given = {name: options[PARAMETERS[name]] for name in SPECULATION}
    given |= {name: not given[name] for name, rule in SPECULATION.items() if rule.inverted}
    asked = Speculation(**given)
    return replace(asked, k=0) if options["draft"] == "none" else asked


STDIN = Path("-")


def read_text(file: Path) -> str:
    """Return the text of a file, or of the standard input for `-`; invalid UTF-8 is replaced.

    Raises:
        click.FileError: The file cannot be read, or is longer than any context.
    """
    from . import text_file

    is_pipe = os.fspath(file) == "-"
    try:
        return text_file.read_text(sys.stdin.buffer if is_pipe else file)
    except (OSError, ValueError) as error:
        name = "the standard input" if is_pipe else os.fspath(file)
        raise click.FileError(name, getattr(error, "strerror", None) or str(error)) from error


def at_once(llm: AnyLLM) -> str:
    """Return how many requests share the passes of a model, and why."""
    n = llm.parallel
    number = "one request at a time" if n == 1 else f"{n} requests at once"
    return f"{number} ({llm.parallel_reason})" if llm.parallel_reason else number
