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
from .error_text import in_command
from .progress import MeasuringNote

if TYPE_CHECKING:
    from ..options import Sampling, Speculation
    from ..runtime.llm import LLM

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
            self.fail(
                f"{value!r} is not a token id and a bias, such as 13=-1.5 or 13=-inf.", param, ctx
            )


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
            self.fail(
                "the name is empty; write a file such as lora.gguf or lora.gguf:0.5.", param, ctx
            )
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
            help="Draft: as --model, or auto, ngram (from the text only) or none (plain decoding).",
        ),
        click.option(
            "--models-file", type=click.Path(path_type=Path), metavar="FILE",
            help="File with more model names, in the format of models.yaml.",
        ),
        click.option(
            "--draft-text", type=click.Path(path_type=Path), metavar="FILE",
            help="Text file as an additional source of drafts.",
        ),
        click.option(
            "--ctx", type=int,
            help="Context length in tokens.  [default: as trained, at most 4096]",
        ),
        click.option("--threads", type=int, help="Number of threads.  [default: physical cores]"),
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
        click.option(
            "--gpu-layers", type=int, default=-1,
            help="Layers to offload to the GPU; -1 for all, if llama.cpp has a GPU backend.",
        ),
        click.option(
            "--draft-gpu-layers", type=int,
            help="The same for the draft model.  [default: as the target]",
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
            "-v", "--verbose", count=True,
            help="Show llama.cpp's log; -vv also shows tracebacks of errors.",
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
        raise InvalidOptionError("n_ctx", options["ctx"], "a whole number above 1")
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
        click.echo(f"Note: {in_command(note)}", err=True)
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
            help="Maximum number of draft tokens in a round; 0 for plain decoding.",
        ),
        click.option(
            "--drafter", default="auto",
            help="Source of drafts: model, ngram (earlier text), hybrid, or auto for the fastest.",
        ),
        click.option(
            "--fixed", is_flag=True,
            help="Draft -k tokens in every round, even if this is slower.",
        ),
        click.option(
            "--tree", is_flag=True,
            help="Also verify second choices of the draft model where this is faster.",
        ),
        click.option(
            "--accept", default="coupled",
            help="Acceptance rule: coupled (same text with any draft), rejection or block.",
        ),
        click.option(
            "--allow-near-ties", is_flag=True,
            help="Also use wider passes; the text may differ at near ties, which are counted.",
        ),
        click.option(
            "--strict", is_flag=True,
            help="Decide each near tie as plain decoding does, at the cost of one pass.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def sampling_options(command: F) -> F:
    """Add the options of `Sampling`."""
    for option in reversed((
        click.option(
            "-n", "--max-tokens", type=int, default=256,
            help="Maximum number of tokens; -1 for as many as the context holds.",
        ),
        click.option(
            "-t", "--temperature", type=float, default=0.8,
            help="Sampling temperature; 0 always takes the most likely token.",
        ),
        click.option(
            "--top-k", type=int, default=40,
            help="Keep this number of the most likely tokens; 0 keeps all.",
        ),
        click.option(
            "--top-p", type=float, default=0.95,
            help="Keep the most likely tokens up to this total probability.",
        ),
        click.option(
            "--min-p", type=float, default=0.0,
            help="Keep tokens with at least this fraction of the highest probability.",
        ),
        click.option(
            "--typical-p", type=float, default=1.0,
            help="Keep the tokens of most typical surprisal up to this total probability.",
        ),
        click.option(
            "--top-n-sigma", type=float, default=0.0,
            help="Keep logits within this number of standard deviations of the best; 0 keeps all.",
        ),
        click.option(
            "--xtc-probability", type=float, default=0.0,
            help="Probability that XTC removes the most likely tokens.",
        ),
        click.option(
            "--xtc-threshold", type=float, default=0.1,
            help="Minimum probability of the tokens that XTC removes.",
        ),
        click.option(
            "--repeat-penalty", type=float, default=1.0,
            help="Penalty factor for tokens that occurred before; 1 has no effect.",
        ),
        click.option(
            "--frequency-penalty", type=float, default=0.0,
            help="Subtracted from a logit for each time that its token occurred.",
        ),
        click.option(
            "--presence-penalty", type=float, default=0.0,
            help="Subtracted from a logit once if its token occurred.",
        ),
        click.option(
            "--penalty-last-n", type=int, default=64,
            help="Number of recent tokens that the penalties consider; -1 for all.",
        ),
        click.option(
            "--dry-multiplier", type=float, default=0.0,
            help="Strength of the DRY penalty for repeated sequences; 0 disables DRY.",
        ),
        click.option(
            "--dry-base", type=float, default=1.75,
            help="Growth factor of the DRY penalty with each repeated token.",
        ),
        click.option(
            "--dry-allowed-length", type=int, default=2,
            help="Length from which DRY penalises a repeated sequence.",
        ),
        click.option(
            "--dry-penalty-last-n", type=int, default=-1,
            help="Number of recent tokens that DRY considers; -1 for all.",
        ),
        click.option(
            "--dry-breaker", multiple=True,
            help="String that ends a repeated sequence for DRY. Repeatable.  [default: \\n : \" *]",
        ),
        click.option(
            "--logit-bias", type=Bias(), multiple=True,
            help="Value added to the logit of a token id; -inf forbids it. Repeatable.",
        ),
        click.option(
            "--grammar", type=click.Path(path_type=Path), metavar="FILE",
            help="File with a GBNF grammar that the answer follows.",
        ),
        click.option(
            "--json-schema", metavar="JSON",
            help="JSON schema that the answer follows, or @FILE; {} allows any JSON.",
        ),
        click.option(
            "--seed", type=int,
            help="Seed; the same seed gives the same text.  [default: random, see --stats]",
        ),
        click.option(
            "--stop", multiple=True,
            help="End the text before this string. Repeatable.",
        ),
        click.option(
            "--stop-token", type=int, multiple=True,
            help="End the text before this token id. Repeatable.",
        ),
        click.option("--ignore-eos", is_flag=True, help="Do not end at an end token."),
        click.option(
            "--logprobs", type=int, metavar="N",
            help="Show the probability of each token and N alternatives, on stderr or in --json.",
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def to_sampling(options: dict[str, Any]) -> Sampling:
    """Return the sampling options.

    Options that are not given take the values of the model in models.yaml, if it has any.
    """
    from .. import Sampling
    from ..registry.resolve import resolve

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
