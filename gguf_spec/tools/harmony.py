"""Grammar of the channels of gpt-oss: reasoning, text and calls are messages of one answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .text_rules import quoted, symbols

HARMONY_TOKENS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>")
_NEXT = "<|end|><|start|>assistant"
_CALL = "<|channel|>commentary to=functions."


def harmony_rules(
    required: bool, has_schema: bool, thinks: bool, token: Callable[[str], int | None]
) -> Iterator[str]:
    """Yield the rules around the rule `call`, which begins after the marker of a call.

    The grammar is for the whole answer, which begins after the role. Before a call there may be
    reasoning and, if no call is required, a message to the user.

    Args:
        required: Whether the answer must be a call.
        has_schema: Whether a final message follows the rule `answer-root`.
        thinks: Whether there may be reasoning.
        token: Returns the id of a control token.
    """
    sym = symbols(HARMONY_TOKENS, token)
    final = "answer-root" if has_schema else "any"
    ends = f"{sym(_CALL)} call"
    if not required:
        ends += f" | {sym('<|channel|>final<|message|>')} {final}"
    channels = [quoted("analysis")] if thinks else []
    channels += [] if required or has_schema else [quoted("commentary")]
    yield f"root ::= {'before* ' if channels else ''}({ends})"
    if channels:
        head = f"{sym('<|channel|>')} ({' | '.join(channels)}) {sym('<|message|>')}"
        yield f"before ::= {head} any {sym(_NEXT)}"
    yield "any ::= [^\\x00]*"
