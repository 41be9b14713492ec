"""Conversations that are too long for the context: the oldest turns are left out."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runtime.llm import LLM

Message = dict[str, Any]


def newest_that_fit(
    llm: LLM, messages: Sequence[Message], max_tokens: int | None, **options: Any
) -> list[Message]:
    """Return the messages without the oldest turns, so that prompt and answer fit.

    A turn begins with a message of the user. The messages of the system before the first turn and
    the last turn are always kept. The answer gets at most half of the context.

    Args:
        llm: The model.
        messages: The messages.
        max_tokens: Maximum length of the answer in tokens; None counts as a quarter of the context.
        options: Options of `LLM.tokenize`.
    """
    room = llm.n_ctx - min(max_tokens or llm.n_ctx // 4, llm.n_ctx // 2)
    n_system = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > n_system]
    starts = [n_system, *turns]

    def kept(i: int) -> list[Message]:
        return [*messages[:n_system], *messages[starts[i] :]]

    def fits(i: int) -> bool:
        return len(llm.tokenize(kept(i), **options)) <= room

    last = len(starts) - 1
    return kept(bisect.bisect_left(range(last), True, key=fits))
