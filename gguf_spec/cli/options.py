"""Options shared by several commands: model, sampling and speculation options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ..load_options import LOADING
from ..option_rule import Rule
from ..options import SAMPLING, SPECULATION, Sampling, Speculation
from .completion import model_names
from .default_model import default_model
from .error_text import in_command
from .missing_models import offer_download
from .output import LoadBar, MeasuringNote, ctrl_c_ends_process
from .parameters import AdapterFile, Bias, Layers, ModelName
from .shared_options import (
    gpu_layers_option,
    models_file_option,
    offline_option,
    threads_option,
    verbose_option,
    yes_option,
)

if TYPE_CHECKING:
    from .. import LLM
    from ..results import OnProgress, Progress

F = TypeVar("F", bound=Callable[..., Any])


_CHAT_MODEL = "the largest chat model on this disk, else smollm2-135m-instruct"
_ATTENTION = click.Choice(["auto", "on", "off"])


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
        click.option(
            "--draft-text", type=click.Path(path_type=Path), metavar="FILE",
            help="Text file as an additional source of drafts.",
        ),
        click.option(
            "--ctx", type=int,
            help="Context length in tokens.  [default: as trained, at most 4096]",
        ),
        threads_option,
        click.option(
            "--flash-attention", type=_ATTENTION, default="auto",
            help="Flash attention. auto selects the best; a --kv-type below 16 bits requires it.",
        ),
        click.option(
            "--draft-flash-attention", type=_ATTENTION,
            help="The same for the draft model.  [default: as the target]",
        ),
        click.option(
            "--kv-type", default="f16",
            help="Number type of the cache: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0.",
        ),
        click.option(
            "--draft-kv-type",
            help="The same for the draft model.  [default: as the target]",
        ),
        gpu_layers_option,
        click.option(
            "--draft-gpu-layers", type=Layers(),
            help="The same for the draft model.  [default: as the target]",
        ),
        *(loading_option(name) for name in LOADING),
        click.option(
            "--mmproj", type=click.Path(path_type=Path), metavar="FILE",
            help="Projector of a vision model, for prompts with images.",
        ),
        click.option(
            "--lora", type=AdapterFile(), multiple=True,
            help="LoRA adapter of the target; the default of SCALE is 1. Repeatable.",
        ),
        click.option(
            "--draft-lora", type=AdapterFile(), multiple=True,
            help="The same for the draft model.",
        ),
        click.option(
            "--extra-bufts/--no-extra-bufts", default=None,
            help="Repack the weights for this CPU.  [default: if the self-test succeeds]",
        ),
        click.option(
            "--rpc", multiple=True, metavar="HOST:PORT",
            help="Worker that holds a part of the target, see gguf-spec worker. Repeatable.",
        ),
        verbose_option,
    )):  # fmt: skip
        command = option(command)
    return command


def loading_option(name: str) -> Callable[[F], F]:
    """Return the decorator that adds an option of the table `LOADING`."""
    rule = LOADING[name]
    how: dict[str, Any] = {"type": _TYPES.get(rule.type)}
    if rule.type == "boolean":
        how = {"default": None} if rule.optional else {"is_flag": True}
    elif rule.shape == "sequence":
        how = {"type": str, "multiple": True}
    elif rule.choices:
        default = None if rule.optional else rule.choices[0]
        how = {"type": click.Choice(rule.choices), "default": default}
    elif not rule.optional:
        how["default"] = 0
    return click.option(*_flags(name, rule), help=rule.help, **(how | _CLICK.get(name, {})))


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
    for note in llm.notes:
        # That there is no draft is told only where somebody asks.
        if note in llm.draft_notes and draft == "auto" and not (llm.draft_name or _asks(options)):
            continue
        click.echo(f"Note: {in_command(note)}", err=True)
    return llm


def _asks(options: dict[str, Any]) -> bool:
    return bool(options.get("stats") or options["verbose"])


def _load(
    options: dict[str, Any],
    draft: str,
    speculation: Speculation,
    on_measure: Callable[[], object],
    progress: OnProgress,
) -> LLM:
    from .. import load  # importing llama.cpp is slow: only after the options are checked

    given = load_arguments(options, draft, speculation)
    model, models_file = options["model"], options["models_file"]
    return load(
        default_model(models_file) if model is None else model,
        models_file=models_file,
        progress=progress,
        on_measure=on_measure,
        **given,
    )


def load_arguments(options: dict[str, Any], draft: str, speculation: Speculation) -> dict[str, Any]:
    """Return the arguments of `load`, except the model, the models file and callbacks."""
    return {
        "draft": draft,
        "speculation": speculation,
        "n_ctx": options["ctx"],
        "threads": options["threads"],
        "flash_attention": options["flash_attention"],
        "kv_type": options["kv_type"],
        "gpu_layers": options["gpu_layers"],
        "draft_flash_attention": options["draft_flash_attention"],
        "draft_kv_type": options["draft_kv_type"],
        "draft_gpu_layers": options["draft_gpu_layers"],
        **{name: options[name] for name in LOADING},
        "mmproj": options["mmproj"],
        "lora": options["lora"],
        # The adapter belongs to the draft of the options only.
        "draft_lora": options["draft_lora"] if draft == options["draft"] else (),
        "extra_bufts": options["extra_bufts"],
        "rpc": options["rpc"],
        "reference": options["draft_text"],
        "verbose": options["verbose"] > 0,
        # only some commands have these
        "parallel": options.get("parallel", 1),
        "prefix_memory": options.get("prefix_memory", "auto"),
        "shared_drafts": options.get("shared_drafts", False),
        "pooling": options.get("pooling"),
    }


# Arguments of `click.option` for options whose text is not read as the type in the table.
_CLICK: dict[str, dict[str, Any]] = {
    "k": {"show_envvar": True},
    "logit_bias": {"type": Bias()},
    "grammar": {"type": click.Path(path_type=Path), "metavar": "FILE"},
    "json_schema": {"metavar": "JSON"},
    "logprobs": {"metavar": "N"},
    "device": {"metavar": "DEVICE"},
    "draft_device": {"metavar": "DEVICE"},
    "n_cpu_moe": {"metavar": "N"},
    "override_tensor": {"metavar": "PATTERN=DEVICE"},
}
_TYPES = {"number": float, "integer": int, "string": str, "any": str}


def _flags(name: str, rule: Rule) -> tuple[str, ...]:
    return rule.flags or (f"--{name.replace('_', '-')}",)


def _parameter(name: str, rule: Rule) -> str:
    """Return the name of click's parameter for a field."""
    return _flags(name, rule)[-1].split("/")[0].lstrip("-").replace("-", "_")


# Field -> parameter. `overflow` is left out: the values of `generate` and `chat` differ.
SAMPLING_PARAMETERS = {
    name: _parameter(name, rule) for name, rule in SAMPLING.items() if name != "overflow"
}


def table_option(owner: type[Sampling | Speculation], name: str) -> Callable[[F], F]:
    """Return the decorator that adds the command-line option of a field of `owner`."""
    rule = (SAMPLING if owner is Sampling else SPECULATION)[name]
    how: dict[str, Any]
    if rule.type == "boolean":
        how = {"default": None} if rule.optional else {"is_flag": True}
    elif rule.shape == "one":
        how = {"type": _TYPES[rule.type], "default": getattr(owner, name)}
    else:
        how = {"type": _TYPES[rule.type], "multiple": True}
    return click.option(*_flags(name, rule), help=rule.help, **(how | _CLICK.get(name, {})))


def speculation_options(command: F) -> F:
    """Add the options of `Speculation`."""
    for name in reversed(SPECULATION):
        command = table_option(Speculation, name)(command)
    return command


def sampling_options(command: F) -> F:
    """Add the options of `Sampling`, except `overflow`."""
    for name in reversed(SAMPLING_PARAMETERS):
        command = table_option(Sampling, name)(command)
    return command


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
    given = {name: options[_parameter(name, rule)] for name, rule in SPECULATION.items()}
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
