"""Options shared by several commands: model, sampling and speculation options."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from .completion import model_names
from .progress import MeasuringNote

if TYPE_CHECKING:
    from .. import LLM, Sampling, Speculation

F = TypeVar("F", bound=Callable[..., Any])

# Options with the name of a field of `Sampling`.
_SAMPLING = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "penalty_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "ignore_eos",
    "logprobs",
    "seed",
    "stop",
]
# Field of `Sampling` -> option, where the option has another name.
_OPTION = {
    "stop_tokens": "stop_token",
    "dry_sequence_breakers": "dry_breaker",
}


class Bias(click.ParamType[tuple[int, float]]):
    """Parameter type for a token id and the bias that is added to its logit."""

    name = "ID=BIAS"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, float]:
        """Parse a text such as `13=-inf`."""
        if isinstance(value, tuple):
            return value
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is not like 13=-1.5 or 13=-inf.", param, ctx)


class AdapterFile(click.ParamType[tuple[str, float]]):
    """Parameter type for a LoRA adapter and its scale.

    The scale is the text after the last colon, if that text is a number; otherwise it is 1.
    """

    name = "FILE[:SCALE]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, float]:
        """Parse a text such as `lora.gguf:0.5`; the whole text is a path if that file exists."""
        if isinstance(value, tuple):
            return value
        if not value:
            self.fail("give a file, such as lora.gguf or lora.gguf:0.5.", param, ctx)
        file, _, scale = str(value).rpartition(":")
        try:
            return (str(value), 1.0) if not file or Path(value).exists() else (file, float(scale))
        except (OSError, ValueError):
            return str(value), 1.0


_ATTENTION = click.Choice(["auto", "on", "off"])


def model_options(command: F) -> F:
    """Add the options of `load`."""
    for option in reversed((
        click.option(
            "-m", "--model", default="tales", shell_complete=model_names,
            help="Target: a name (gguf-spec models list), hf:OWNER/REPO/FILE or a GGUF file.",
        ),
        click.option(
            "-d", "--draft", default="auto", shell_complete=model_names,
            help="Draft model: the same, or auto; ngram has the text alone, none decodes plainly.",
        ),
        click.option(
            "--models-file", type=click.Path(path_type=Path), metavar="FILE",
            help="More names, in a file like models.yaml.",
        ),
        click.option(
            "--draft-text", type=click.Path(path_type=Path), metavar="FILE",
            help="A text that drafts may be taken from too.",
        ),
        click.option(
            "--ctx", type=int,
            help="Tokens the context holds.  [default: as trained, at most 4096]",
        ),
        click.option("--threads", type=int, help="Threads.  [default: physical cores]"),
        click.option(
            "--flash-attention", type=_ATTENTION, default="auto",
            help="auto leaves it to llama.cpp; a --kv-type below 16 bits needs it.",
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
        click.option(
            "--gpu-layers", type=int, default=-1,
            help="Layers to offload; -1 for all where the build of llama.cpp has a GPU backend.",
        ),
        click.option(
            "--draft-gpu-layers", type=int,
            help="The same for the draft model.  [default: as the target]",
        ),
        click.option(
            "--lora", type=AdapterFile(), multiple=True,
            help="LoRA adapter of the target; SCALE is 1 if left out. May be given again.",
        ),
        click.option(
            "--draft-lora", type=AdapterFile(), multiple=True,
            help="The same for the draft model.",
        ),
        click.option(
            "--extra-bufts/--no-extra-bufts", default=None,
            help="Repack the weights for this CPU or not.  [default: where it works]",
        ),
        click.option(
            "-v", "--verbose", count=True,
            help="Show llama.cpp's log; -vv traces of errors too.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def load_models(options: dict[str, Any], draft: str, speculation: Speculation) -> LLM:
    """Load the models of the options, and write notes to stderr.

    Args:
        options: The options of the command.
        draft: The draft model, as `--draft` takes it.
        speculation: Speculation options.
    """
    from ..errors import InvalidOptionError

    if options["ctx"] is not None and options["ctx"] < 2:
        raise InvalidOptionError("ctx", options["ctx"], "a whole number above 1")
    measuring = MeasuringNote()
    # Ctrl-C ends the process at once. A KeyboardInterrupt could arrive in llama.cpp's log callback,
    # where Python discards it; nothing needs to be cleaned up yet.
    before = signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    try:
        llm = _load(options, draft, speculation, measuring)
    finally:
        measuring.remove()
        signal.signal(signal.SIGINT, before)
    for note in llm.notes:
        click.echo(f"Note: {note}", err=True)
    return llm


def _load(
    options: dict[str, Any], draft: str, speculation: Speculation, on_measure: Callable[[], object]
) -> LLM:
    from .. import load  # importing llama.cpp is slow: only after the options are checked

    return load(
        options["model"],
        draft,
        speculation=speculation,
        n_ctx=options["ctx"],
        threads=options["threads"],
        flash_attention=options["flash_attention"],
        kv_type=options["kv_type"],
        gpu_layers=options["gpu_layers"],
        draft_flash_attention=options["draft_flash_attention"],
        draft_kv_type=options["draft_kv_type"],
        draft_gpu_layers=options["draft_gpu_layers"],
        lora=options["lora"],
        # The adapter belongs to the draft of the options only.
        draft_lora=options["draft_lora"] if draft == options["draft"] else (),
        extra_bufts=options["extra_bufts"],
        reference=options["draft_text"],
        models_file=options["models_file"],
        verbose=options["verbose"] > 0,
        on_measure=on_measure,
    )


def speculation_options(command: F) -> F:
    """Add the options of `Speculation`."""
    for option in reversed((
        click.option(
            "-k", "k", type=int, default=64, show_envvar=True,
            help="Most tokens drafted in a round; 0 decodes plainly.",
        ),
        click.option(
            "--drafter", default="auto",
            help="Who drafts: model, ngram (the text itself), hybrid, or auto: what pays.",
        ),
        click.option(
            "--fixed", is_flag=True,
            help="Draft -k tokens in every round, whether it pays or not.",
        ),
        click.option(
            "--tree/--no-tree", default=None,
            help="Check the draft model's second guesses too, in addition to -k, or never.  "
            "[default: where that pays, within -k]",
        ),
        click.option(
            "--accept", default="coupled",
            help="Which drafted tokens stay: coupled (same text with any draft), rejection "
            "or block.",
        ),
        click.option(
            "--allow-near-ties", is_flag=True,
            help="Verify in wider passes too: the text may differ at near ties, which are counted.",
        ),
        click.option(
            "--strict", is_flag=True,
            help="Decide near ties again as plain decoding does; costs a pass each.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def sampling_options(command: F) -> F:
    """Add the options of `Sampling`."""
    for option in reversed((
        click.option(
            "-n", "--max-tokens", type=int, default=256,
            help="Stop after so many tokens; -1 goes on until the context is full.",
        ),
        click.option(
            "-t", "--temperature", type=float, default=0.8,
            help="0 takes the most likely token, always.",
        ),
        click.option(
            "--top-k", type=int, default=40,
            help="Keep the most likely tokens; 0 keeps all.",
        ),
        click.option(
            "--top-p", type=float, default=0.95,
            help="Keep the likeliest tokens up to this probability.",
        ),
        click.option(
            "--min-p", type=float, default=0.0,
            help="Keep tokens this likely beside the likeliest.",
        ),
        click.option(
            "--typical-p", type=float, default=1.0,
            help="Keep the tokens of most typical surprise up to this probability.",
        ),
        click.option(
            "--top-n-sigma", type=float, default=0.0,
            help="Keep logits within so many deviations of the best; 0 keeps all.",
        ),
        click.option(
            "--xtc-probability", type=float, default=0.0,
            help="How often XTC takes out the likeliest tokens.",
        ),
        click.option(
            "--xtc-threshold", type=float, default=0.1,
            help="How likely a token must be for that.",
        ),
        click.option(
            "--repeat-penalty", type=float, default=1.0,
            help="Above 1: make tokens seen less likely.",
        ),
        click.option(
            "--frequency-penalty", type=float, default=0.0,
            help="Taken off for every time a token was seen.",
        ),
        click.option(
            "--presence-penalty", type=float, default=0.0,
            help="Taken off when a token was seen.",
        ),
        click.option(
            "--penalty-last-n", type=int, default=64,
            help="How far back penalties look; -1 for all.",
        ),
        click.option(
            "--dry-multiplier", type=float, default=0.0,
            help="Strength of DRY against repeated sequences; 0 switches it off.",
        ),
        click.option(
            "--dry-base", type=float, default=1.75,
            help="Growth of that penalty with each repeated token.",
        ),
        click.option(
            "--dry-allowed-length", type=int, default=2,
            help="Shorter repetitions are not penalised.",
        ),
        click.option(
            "--dry-penalty-last-n", type=int, default=-1,
            help="How far back DRY looks; -1 for all.",
        ),
        click.option(
            "--dry-breaker", multiple=True,
            help="No repetition reaches across it. May be given again.  [default: \\n : \" *]",
        ),
        click.option(
            "--logit-bias", type=Bias(), multiple=True,
            help="Add to a token's logit; -inf forbids it. May be given again.",
        ),
        click.option(
            "--grammar", type=click.Path(path_type=Path), metavar="FILE",
            help="GBNF grammar that the answer follows.",
        ),
        click.option(
            "--json-schema", metavar="JSON",
            help="JSON schema that the answer follows, or @FILE that holds one; {} is any JSON.",
        ),
        click.option(
            "--seed", type=int,
            help="The same seed gives the same text.  [default: drawn, see --stats]",
        ),
        click.option(
            "--stop", multiple=True,
            help="End the text before this string. May be given again.",
        ),
        click.option(
            "--stop-token", type=int, multiple=True,
            help="End the text before this token id. May be given again.",
        ),
        click.option("--ignore-eos", is_flag=True, help="Never end by an end token."),
        click.option(
            "--logprobs", type=int, metavar="N",
            help="Show how likely each token was, and N alternatives; in --json, else on stderr.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def to_sampling(options: dict[str, Any]) -> Sampling:
    """Return the sampling options.

    Options that are not given take the values of the model in models.yaml, if it has any.
    """
    from .. import Sampling
    from ..models import resolve

    schema = options["json_schema"]
    asked = Sampling(
        **{name: options[name] for name in _SAMPLING},
        **({"dry_sequence_breakers": options["dry_breaker"]} if options["dry_breaker"] else {}),
        logit_bias=dict(options["logit_bias"]),
        grammar=None if options["grammar"] is None else read_text(options["grammar"]),
        json_schema=read_text(Path(schema[1:])) if schema and schema.startswith("@") else schema,
        stop_tokens=options["stop_token"],
        max_tokens=None if options["max_tokens"] == -1 else options["max_tokens"],
    )
    source = click.get_current_context().get_parameter_source
    preset = resolve(options["model"], options["models_file"]).sampling
    return replace(
        asked,
        **{
            name: value
            for name, value in preset.items()
            if source(_OPTION.get(name, name)) in (None, ParameterSource.DEFAULT)
        },
    )


def to_speculation(options: dict[str, Any]) -> Speculation:
    """Return the speculation options; `--draft none` disables speculation."""
    from .. import Speculation

    asked = Speculation(
        options["k"],
        options["accept"],
        options["strict"],
        options["drafter"],
        adaptive=not options["fixed"],
        tree=options["tree"],
        exact=not options["allow_near_ties"],
    )
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
