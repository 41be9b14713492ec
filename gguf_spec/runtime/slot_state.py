"""State of the only slot of an LLM that runs one request at a time."""

from __future__ import annotations

from ..llama.model import Model
from ..results import SlotState
from .turns import Line


def only_slot(target: Model, line: Line) -> SlotState:
    """Return the state of the slot; the tokens of a running request are those it has so far."""
    first = line.first
    stream = first.stream() if first and first.stream else None
    if not (first and stream):
        return SlotState(0, target.n_ctx, target.n_cached, None)
    stats = stream.stats
    n_tokens = min(stats.n_prompt + stats.n_generated, target.n_ctx)
    return SlotState(0, target.n_ctx, n_tokens, first.number)
