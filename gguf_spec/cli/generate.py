"""`gguf-spec generate`: one prompt, one answer."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from .._llm import LLM, Prompt
    from .._types import Chunk, Completion, Stats

# A model is not to steer the terminal: control characters but tab and newline are shown as a replacement sign.
CONTROL = {c: "\N{REPLACEMENT CHARACTER}" for c in (*range(0x20), *range(0x7F, 0xA0)) if c not in (0x09, 0x0A)}

# Options that are fields of `Sampling` under the same name.
_SAMPLING = [
    "temperature", "top_k", "top_p", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty", "penalty_last_n", "seed", "stop",
]  # fmt: skip


@click.command(context_settings={"auto_envvar_prefix": "GGUF_SPEC", "show_default": True})
@click.argument("prompt", required=False)
@click.option("-f", "--file", type=click.Path(path_type=Path), help="Read the prompt from a file.")
@click.option("-m", "--model", default="tales", help="Target: a name in models.yaml or a GGUF file.")
@click.option("-d", "--draft", default="auto", help="Draft: auto, none, a name or a GGUF file.")
@click.option("-k", "k", type=int, default=4, show_envvar=True, help="Most tokens drafted in a round; 0 decodes plainly.")
@click.option("-n", "--max-tokens", type=int, default=256, help="Stop after so many tokens; -1 goes on until the context is full.")
@click.option("-t", "--temperature", type=float, default=0.8, help="0 takes the most likely token, always.")
@click.option("--top-k", type=int, default=40, help="Keep the most likely tokens; 0 keeps all.")
@click.option("--top-p", type=float, default=0.95, help="Keep the likeliest tokens up to this probability.")
@click.option("--min-p", type=float, default=0.0, help="Keep tokens this likely beside the likeliest.")
@click.option("--repeat-penalty", type=float, default=1.0, help="Above 1: make tokens seen less likely.")
@click.option("--frequency-penalty", type=float, default=0.0, help="Taken off for every time a token was seen.")
@click.option("--presence-penalty", type=float, default=0.0, help="Taken off when a token was seen.")
@click.option("--penalty-last-n", type=int, default=64, help="How far back penalties look; -1 for all.")
@click.option("--seed", type=int, help="The same seed gives the same text.  [default: drawn, see --stats]")
@click.option("--stop", multiple=True, help="End the text before this string. May be given again.")
@click.option("--ctx", type=int, help="Tokens the context holds.  [default: as trained, at most 4096]")
@click.option("--threads", type=int, help="Threads.  [default: physical cores]")
@click.option("--flash-attention", type=click.Choice(["auto", "on", "off"]), default="auto", help="auto leaves it to llama.cpp.")
@click.option("--kv-type", default="f16", help="Number type of the cache: f16, q8_0, q4_0, ...")
@click.option("--gpu-layers", type=int, default=-1, help="Layers to offload in a GPU build; -1 for all.")
@click.option("--raw/--chat", "raw", default=None, help="Go on from the prompt as it is / answer it by the chat template.  [default: by model]")
@click.option("-s", "--system", help="System message; implies --chat.")
@click.option("--stats", is_flag=True, help="Show speed and acceptance, on stderr.")
@click.option("--show-draft", is_flag=True, help="Show what the draft proposed in green.")
@click.option("--json", "as_json", is_flag=True, envvar="GGUF_SPEC_JSON", help="Print one JSON object instead of the text.")
@click.option("-v", "--verbose", count=True, help="Show llama.cpp's log; -vv traces of errors too.")
def generate(prompt: str | None, file: Path | None, system: str | None, raw: bool | None, **options: Any) -> int:
    """Go on from a prompt, or answer it. PROMPT may be - or missing to read a pipe.

    \b
    Examples:
      gguf-spec generate "Once upon a time"
      gguf-spec generate "Once upon a time" --seed 1 -n 120 --stats --show-draft
      gguf-spec generate --chat "Tell me a story about a fox and a king."
      gguf-spec generate -m target.gguf -d draft.gguf -t 0 --json < prompt.txt
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    from .. import Sampling, Speculation
    from ..errors import InvalidOptionError

    if system is not None and raw:
        raise click.UsageError("--system needs the chat template, which --raw leaves out.")
    text = _read_prompt(prompt, file)
    sampling = Sampling(
        **{name: options[name] for name in _SAMPLING},
        max_tokens=None if options["max_tokens"] == -1 else options["max_tokens"],
    )
    speculation = Speculation(options["k"])
    if options["ctx"] is not None and options["ctx"] < 2:
        raise InvalidOptionError("ctx", options["ctx"], "a whole number above 1")
    from .. import load  # llama.cpp takes a while: after the options are known to be right

    with load(
        options["model"], options["draft"] if options["k"] else "none", speculation=speculation, n_ctx=options["ctx"], threads=options["threads"],
        flash_attention=options["flash_attention"], kv_type=options["kv_type"], gpu_layers=options["gpu_layers"], verbose=options["verbose"] > 0,
    ) as llm:  # fmt: skip
        for note in llm.notes:
            click.echo(f"Note: {note}", err=True)
        chat = system is not None or raw is False or (raw is None and llm.prompt == "chat")
        messages = [{"role": "system", "content": system}] if system else []
        request: Prompt = [*messages, {"role": "user", "content": text}] if chat and text else text
        return _answer(llm, request, sampling, speculation.k, options)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    """Return the prompt from the argument, the file or the pipe; of the latter two, without the newline at their end."""
    if prompt is not None and file is not None:
        raise click.UsageError("give the prompt or --file, not both.")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
        except OSError as error:
            raise click.FileError(str(file), error.strerror) from error
    if prompt not in (None, "-"):
        return str(prompt)
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        raise click.UsageError("there is no prompt: give one, or --file FILE, or pipe it in.")
    return sys.stdin.buffer.read().decode("utf-8", errors="replace").removesuffix("\n")


def _answer(llm: LLM, request: Prompt, sampling: Any, k: int, options: dict[str, Any]) -> int:
    """Write the answer as it comes; return the exit code."""
    from rich.console import Console

    out = Console(highlight=False, soft_wrap=True)
    with llm.stream(request, sampling) as stream:
        before = signal.getsignal(signal.SIGINT)

        def stop(_number: int, _frame: object) -> None:
            stream.cancel()
            signal.signal(signal.SIGINT, before)  # a second Ctrl-C does not wait for the round to end

        signal.signal(signal.SIGINT, stop)
        try:
            if not options["as_json"] and out.is_terminal and isinstance(request, str):
                _write(out, request, "dim")
            for chunk in stream:
                if not options["as_json"]:
                    _show(out, chunk, options["show_draft"])
        finally:
            signal.signal(signal.SIGINT, before)
    result = stream.result
    if options["as_json"]:
        click.echo(json.dumps(_to_json(llm, result, k), ensure_ascii=False))
    elif not result.text.endswith("\n"):
        click.echo()
    if options["stats"]:
        click.echo(_stats_lines(result.stats, result.seed, k if llm.draft_name else 0), err=True)
    return 130 if result.finish_reason == "cancelled" else 0


def _show(out: Console, chunk: Chunk, show_draft: bool) -> None:
    for text, accepted in chunk.accepted_text if show_draft else ((chunk.text, False),):
        _write(out, text, "green" if accepted else None)


def _write(out: Console, text: str, style: str | None) -> None:
    if out.is_terminal:
        text = text.translate(CONTROL)
    out.out(text, style=style, highlight=False, end="")
    out.file.flush()


def _to_json(llm: LLM, result: Completion, k: int) -> dict[str, Any]:
    head = result.to_dict()
    return {
        "text": result.text, "tokens": head["tokens"], "finish_reason": result.finish_reason, "prompt_tokens": result.stats.n_prompt,
        "seed": result.seed, "target": llm.name, "draft": llm.draft_name if k else None, "stats": head["stats"],
    }  # fmt: skip


def _stats_lines(s: Stats, seed: int, k: int) -> str:
    busy = s.draft_s + s.verify_s + s.other_s or 1.0
    prompt = f"prompt: {s.n_prompt} tokens in {s.prompt_s * 1000:,.0f} ms"
    accepted = f"{s.n_accepted} of {s.n_drafted} tokens accepted ({s.acceptance:.0%}), {s.tokens_per_round:.2f} tokens a round, k = {k}"
    return (
        f"speed   {s.n_generated} tokens at {s.tokens_per_s:,.1f} tok/s, the first after {s.ttft_s * 1000:,.0f} ms ({prompt})\n"
        f"draft   {accepted if k else 'none: one token a round'}\n"
        f"time    draft {s.draft_s / busy:.0%}, verify {s.verify_s / busy:.0%}, Python {s.other_s / busy:.0%}\n"
        f"seed    {seed}"
    )
