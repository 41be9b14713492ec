"""Output that several commands share: text of a model, statistics, log-probabilities, JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from .. import LLM, Chunk, Completion, Stats

# Translation table that replaces control characters except tab and newline, so that the text of a
# model cannot control the terminal.
CONTROL = {
    c: "\N{REPLACEMENT CHARACTER}"
    for c in (*range(0x20), *range(0x7F, 0xA0))
    if c not in (0x09, 0x0A)
}


def show_chunk(out: Console, chunk: Chunk, show_draft: bool) -> None:
    """Write the text of a chunk; accepted draft tokens are green if `show_draft`."""
    for text, accepted in chunk.accepted_text if show_draft else ((chunk.text, False),):
        write(out, text, "green" if accepted else None)


class Thoughts:
    """The reasoning of an answer as styled text: dim, with an empty line after it.

    Hidden reasoning is one word.
    """

    def __init__(self, shown: bool) -> None:
        """Start an answer.

        Args:
            shown: Whether its reasoning is shown.
        """
        self._shown, self._open = shown, False

    def before(self, chunk: Chunk) -> list[tuple[str, str]]:
        """Return the pieces to write before the text of a chunk: text and style."""
        pieces = []
        if chunk.reasoning and (self._shown or not self._open):
            text = chunk.reasoning.translate(CONTROL) if self._shown else "Thinking..."
            pieces.append((text, "dim"))
        self._open = self._open or bool(chunk.reasoning)
        if self._open and chunk.text:
            self._open = False
            pieces.append(("\n\n", ""))
        return pieces


def write(out: Console, text: str, style: str | None) -> None:
    """Write a text at once; at a terminal, control characters are replaced."""
    if out.is_terminal:
        text = text.translate(CONTROL)
    out.out(text, style=style, highlight=False, end="")
    out.file.flush()


def answer_json(llm: LLM, result: Completion, k: int, with_logprobs: bool) -> dict[str, Any]:
    """Return an answer as the object that --json prints."""
    head = result.to_dict()
    return {
        "text": result.text,
        "reasoning": result.reasoning,
        "tokens": head["tokens"],
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.stats.n_prompt,
        "seed": result.seed,
        "target": llm.name,
        "draft": (llm.draft_name or "ngram") if k else None,
        "stats": head["stats"],
    } | ({"logprobs": [_named(llm, one) for one in head["logprobs"]]} if with_logprobs else {})


def _named(llm: LLM, one: dict[str, Any]) -> dict[str, Any]:
    """Return the log-probability of a token and its alternatives, with their texts."""
    named = {
        "token": one["token"],
        "text": llm.token_text(one["token"]),
        "logprob": round(one["logprob"], 6),
    }
    return named | (
        {"top": [_named(llm, other | {"top": []}) for other in one["top"]]} if one["top"] else {}
    )


def logprob_lines(llm: LLM, result: Completion) -> str:
    """Return one line per token: probability and text of the token and of its alternatives."""

    def shown(token: int, logprob: float) -> str:
        return f"{math.exp(logprob):7.2%} {llm.token_text(token)!r}"

    lines = [
        (shown(one.token, one.logprob), *(shown(*other) for other in one.top))
        for one in result.logprobs
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def speed(s: Stats) -> str:
    """Return the speed of an answer."""
    return f"{s.tokens_per_s:,.{0 if s.tokens_per_s >= 100 else 1}f} tok/s"


def stats_lines(s: Stats, seed: int) -> str:
    """Return the lines of --stats."""
    busy = s.draft_s + s.verify_s + s.other_s or 1.0
    cached = f", {s.n_cached} of them cached," if s.n_cached else ""
    prompt = f"prompt: {s.n_prompt} tokens{cached} in {s.prompt_s * 1000:,.0f} ms"
    by = ", ".join(
        f"{name} {accepted} of {drafted}" for name, (drafted, accepted) in s.drafters.items()
    )
    accepted = (
        f"{s.n_accepted} of {s.n_drafted} tokens accepted ({s.acceptance:.0%}; {by}), "
        f"{s.tokens_per_round:.2f} tokens a round"
    )
    ties = f"ties    {s.n_near_ties} of {s.n_generated} tokens were near ties: "
    ties += (
        "decided again, as plain decoding does\n"
        if s.n_decided_again
        else "plain decoding may choose other tokens there (--strict decides them again)\n"
    )
    gain = (
        f"gain    {s.speedup:.2f} times plain decoding by the clock, "
        f"{s.predicted_speedup:.2f} by measured costs\n"
    )
    return (
        f"speed   {s.n_generated} tokens at {s.tokens_per_s:,.1f} tok/s, "
        f"the first after {s.ttft_s * 1000:,.0f} ms ({prompt})\n"
        "draft   "
        f"{accepted + (s.why_none and f'; {s.why_none}') if s.n_drafted else f'none: {s.why_none}'}"
        "\n"
        f"{gain if s.plain_s and s.n_drafted else ''}"
        f"{ties if s.n_near_ties else ''}"
        f"time    draft {s.draft_s / busy:.0%}, verify {s.verify_s / busy:.0%}, "
        f"Python {s.other_s / busy:.0%}\n"
        f"seed    {seed}"
    )
