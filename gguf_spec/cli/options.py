"""Options shared by several commands: model, sampling and speculation options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

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
from .completion import model_names
from .error_text import in_command
from .missing_models import default_model, offer_download
from .output import LoadBar, MeasuringNote, ctrl_c_ends_process
from .parameters import AdapterFile, Bias, Layers, ModelName, NumberOrAuto

if TYPE_CHECKING:
    from .. import LLM
    from ..results import OnProgress, Progress

F = TypeVar("F", bound=Callable[..., Any])


_CHAT_MODEL = "the largest chat model on this disk, else smollm2-135m-instruct"
_FILE: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"}
# Arguments of `click.option` for options whose text is not read as the type in the table.
_CLICK: dict[str, dict[str, Any]] = {
    "reference": _FILE,
    "kv_type": {"default": "f16"},
    "gpu_layers": {"type": Layers(), "default": -1},
    "draft_gpu_layers": {"type": Layers()},
    "device": {"metavar": "DEVICE"},
    "draft_device": {"metavar": "DEVICE"},
    "n_cpu_moe": {"metavar": "N", "default": 0},
    "override_tensor": {"metavar": "PATTERN=DEVICE"},
    "mmproj": _FILE,
    "lora": {"type": AdapterFile()},
    "draft_lora": {"type": AdapterFile()},
    "rpc": {"metavar": "HOST:PORT"},
    "parallel": {"type": NumberOrAuto(), "default": "auto"},
    "prefix_memory": {"metavar": "SIZE", "default": "auto"},
    "k": {"show_envvar": True},
    "logit_bias": {"type": Bias()},
    "grammar": _FILE,
    "json_schema": {"metavar": "JSON"},
    "logprobs": {"metavar": "N"},
}
_TYPES = {"number": float, "integer": int, "string": str, "any": str}


def table_option(name: str, **more: Any) -> Callable[[F], F]:
    """Return the decorator that adds the command-line option of a row of the tables.

    Args:
        name: The name in Python.
        more: Arguments of `click.option` that differ in a command.
    """
    rule = OPTIONS[name]
    how: dict[str, Any] = {"type": _TYPES.get(rule.type), "help": rule.help}
    if rule.type == "boolean":
        how["is_flag"] = True
    elif rule.shape != "one":
        how["multiple"] = True
    elif name in SAMPLING or name in SPECULATION:
        how["default"] = getattr(Sampling if name in SAMPLING else Speculation, name)
    elif rule.choices:
        default = None if rule.optional else rule.choices[0]
        how |= {"type": click.Choice(rule.choices), "default": default}
    return click.option(*FLAGS[name], **(how | _CLICK.get(name, {}) | more))


def table_options(names: Iterable[str]) -> Callable[[F], F]:
    """Return the decorator that adds the options of several rows of the tables."""

    def add(command: F) -> F:
        for name in reversed([*names]):
            command = table_option(name)(command)
        return command

    return add


# Field of `Sampling` -> parameter, without `overflow`: the values of `generate` and `chat` differ.
SAMPLING_PARAMETERS = {name: PARAMETERS[name] for name in SAMPLING if name != "overflow"}
sampling_options = table_options(SAMPLING_PARAMETERS)
speculation_options = table_options(SPECULATION)


models_file_option = click.option(
    "--models-file",
    **_FILE,
    help="File with more model names, in the format of models.yaml.",
)
yes_option = click.option(
    "-y", "--yes", is_flag=True, help="Download a missing model without a question."
)
offline_option = click.option("--offline", is_flag=True, help="Do not offer to download a model.")
verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    help="Show llama.cpp's log; -vv also shows tracebacks of errors.",
)


def json_option(what: str = "") -> Callable[[F], F]:
    """Return the option `--json`.

    Args:
        what: End of its help, such as "instead of the table"; empty where JSON replaces nothing.
    """
    return click.option(
        "--json",
        "as_json",
        is_flag=True,
        envvar="GGUF_SPEC_JSON",
        help=f"Print one JSON object {what}".rstrip() + ".",
    )


def output_options(command: F) -> F:
    """Add the options of commands that write a GGUF file."""
    command = click.option("-q", "--quiet", is_flag=True, help="Write only errors.")(command)
    return click.option("--force", is_flag=True, help="Replace OUT.gguf if it exists.")(command)


def model_options(
    command: F, *, several: bool = False, chat: bool = False, download: bool = True
) -> F:
    """Add the options of `load`.

    Args:
        command: The command.
        several: Whether `--model` may be repeated; its value is then a tuple.
        chat: Whether a chat model is the default, in place of the bundled model.
        download: Whether a missing model is offered for download.
    """
    more = " Repeatable." if several else ""
    default: dict[str, Any] = {"default": ("tales",) if several else "tales"}
    if chat:
        default = {"default": () if several else None, "show_default": _CHAT_MODEL}
    for option in reversed((
        click.option(
            "-m", "--model", **default, shell_complete=model_names, type=ModelName(),
            multiple=several,
            help="Target: a name (gguf-spec models list), a GGUF file, OWNER/REPO[:QUANT], "
            "hf:OWNER/REPO/FILE, or a model of Ollama or LM Studio." + more,
        ),
        click.option(
            "-d", "--draft", default="auto", shell_complete=model_names,
            help="Draft: as --model, or auto, mtp (the target's prediction head), "
            "ngram (from the text only) or none (plain decoding).",
        ),
        models_file_option,
        *((yes_option, offline_option) if download else ()),
        table_options(LOADING),
        verbose_option,
    )):  # fmt: skip
        command = option(command)
    return command


def load_models(
    options: dict[str, Any],
    draft: str,
    speculation: Speculation,
    cancelled: Callable[[], bool] | None = None,
) -> LLM:
    """Load the models of the options, and write notes to stderr.

    Args:
        options: The options of the command.
        draft: The draft model, as `--draft` takes it.
        speculation: Speculation options.
        cancelled: Returns whether the loading is to end; None lets Ctrl-C end the process.

    Raises:
        LoadCancelledError: `cancelled` returned True.
    """
    from ..errors import InvalidOptionError

    if options["ctx"] is not None and options["ctx"] < 2:
        raise InvalidOptionError("n_ctx", options["ctx"], "a whole number above 1")
    offer_download(options["model"], draft, options)
    measuring, loading = MeasuringNote(), LoadBar()

    def measure() -> None:
        loading.remove()
        measuring()

    def tell(now: Progress) -> bool:
        loading(now)
        return not (cancelled and cancelled())

    with contextlib.nullcontext() if cancelled else ctrl_c_ends_process():
        try:
            llm = _load(options, draft, speculation, measure, tell)
        finally:
            loading.remove()
            measuring.remove()
    # That there is no draft is told only with --stats, --verbose or another --draft than auto.
    all_notes = llm.draft_name or draft != "auto" or options.get("stats") or options["verbose"]
    for note in llm.notes:
        if all_notes or note not in llm.draft_notes:
            click.echo(f"Note: {in_command(note)}", err=True)
    return llm


def _load(
    options: dict[str, Any],
    draft: str,
    speculation: Speculation,
    on_measure: Callable[[], object],
    progress: OnProgress,
) -> LLM:
    from .. import load  # importing llama.cpp is slow: only after the options are checked

    model, models_file = options["model"], options["models_file"]
    return load(
        default_model(models_file) if model is None else model,
        models_file=models_file,
        progress=progress,
        on_measure=on_measure,
        **load_arguments(options, draft, speculation),
    )


def load_arguments(options: dict[str, Any], draft: str, speculation: Speculation) -> dict[str, Any]:
    """Return the arguments of `load`, except the model, the models file and callbacks."""
    given = {
        name: options[PARAMETERS[name]]
        for name in (*LOADING, *REQUESTS)
        if PARAMETERS[name] in options  # only some commands have the options of requests
    }
    if draft != options["draft"]:  # the adapter belongs to the draft of the options only
        given["draft_lora"] = ()
    verbose = options["verbose"] > 0
    return given | {"draft": draft, "speculation": speculation, "verbose": verbose}


think_option = click.option(
    "--think/--no-think", default=None,
    help="Let the model reason before its answer, or not.  [default: by model]",
)  # fmt: skip


def think_options(command: F) -> F:
    """Add the options of reasoning, except `--think-budget`."""
    hide = click.option(
        "--hide-thinking", is_flag=True,
        help="Do not show the reasoning at the terminal; in a pipe it is never shown.",
    )  # fmt: skip
    return think_option(hide(command))


def to_sampling(options: dict[str, Any]) -> Sampling:
    """Return the sampling options.

    Options that are not given take the values of the model in models.yaml, if it has any.
    """
    from .. import Sampling
    from ..models import resolve

    given = {name: options[parameter] for name, parameter in SAMPLING_PARAMETERS.items()}
    given["logit_bias"] = dict(given["logit_bias"])
    if given["grammar"] is not None:
        given["grammar"] = read_text(given["grammar"])
    if given["json_schema"] and given["json_schema"].startswith("@"):
        given["json_schema"] = read_text(Path(given["json_schema"][1:]))
    if given["max_tokens"] == -1:
        given["max_tokens"] = None
    given["dry_sequence_breakers"] = (
        given["dry_sequence_breakers"] or Sampling.dry_sequence_breakers
    )
    asked = Sampling(**given)
    source = click.get_current_context().get_parameter_source
    model, models_file = options["model"], options["models_file"]
    entry = default_model(models_file).entry if model is None else resolve(model, models_file)
    return replace(
        asked,
        **{
            name: value
            for name, value in entry.sampling.items()
            if source(SAMPLING_PARAMETERS.get(name, name)) in (None, ParameterSource.DEFAULT)
        },
    )


def to_speculation(options: dict[str, Any]) -> Speculation:
    """Return the speculation options; `--draft none` disables speculation."""
    given = {name: options[PARAMETERS[name]] for name in SPECULATION}
    given |= {name: not given[name] for name, rule in SPECULATION.items() if rule.inverted}
    asked = Speculation(**given)
    return replace(asked, k=0) if options["draft"] == "none" else asked


def read_text(file: Path) -> str:
    """Return the text of a file; invalid UTF-8 is replaced.

    Raises:
        click.FileError: The file cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError) as error:
        raise click.FileError(
            os.fspath(file), getattr(error, "strerror", None) or str(error)
        ) from error


def at_once(llm: LLM) -> str:
    """Return how many requests share the passes of a model, and why."""
    n = llm.parallel
    number = "one request at a time" if n == 1 else f"{n} requests at once"
    return f"{number} ({llm.parallel_reason})" if llm.parallel_reason else number
