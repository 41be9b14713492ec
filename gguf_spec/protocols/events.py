"""Events of an answer, of which each dialect makes its own objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ..options import Sampling
from ..results import Chunk, Completion, Stats, TokenLogprob
from ..tools.families import Family
from .model import Tokens

Why = Literal["client_closed", "timeout", "shutting_down"]


@dataclass(frozen=True)
class Started:
    """Event: the model is loaded, the prompt is valid and the generation has started.

    Attributes:
        family: Syntax of its tool calls.
        sampling: Sampling options, those that hold where the request has none included.
    """

    model: str
    family: Family
    n_prompt: int = 0
    sampling: Sampling = field(default_factory=Sampling)


Named = tuple[str, bytes, float, int]  # text, bytes, log-probability and id of a token


@dataclass(frozen=True)
class TokenInfo:
    """Token with its log-probability, at least -9999, and the most likely ones at its position.

    The latter are plain tuples: the garbage collector reads objects of a class again and again,
    and no other thread runs meanwhile. An answer may have 500,000 of them.
    """

    text: str
    piece: bytes
    logprob: float
    id: int
    top: tuple[Named, ...] = ()

    def to_dict(self, with_id: bool = False) -> dict[str, Any]:
        """Return the token and its alternatives as an object of answers, perhaps with the ids."""
        found = _object((self.text, self.piece, self.logprob, self.id), with_id)
        return found | {"top_logprobs": [_object(one, with_id) for one in self.top]}


def _object(named: Named, with_id: bool) -> dict[str, Any]:
    text, piece, logprob, id_ = named
    found = {"token": text, "logprob": logprob, "bytes": list(piece)}
    return {"id": id_} | found if with_id else found


@dataclass(frozen=True)
class ChunkEvent:
    """Event: one chunk of a choice.

    Attributes:
        logprobs: Its tokens with log-probabilities; empty unless requested.
        stats: Statistics of the choice up to here.
    """

    chunk: Chunk
    logprobs: tuple[TokenInfo, ...]
    index: int = 0
    stats: Stats = field(default_factory=Stats)


@dataclass(frozen=True)
class PromptRead:
    """Event: a part of a prompt is read; sent only where the request asks for it.

    Attributes:
        n_read: Number of its tokens that are in the cache.
        stats: Statistics of the choice up to here.
    """

    n_read: int
    stats: Stats
    index: int = 0


@dataclass(frozen=True)
class ChoiceEnded:
    """Event: one choice is complete, or was cancelled for a reason (`why`)."""

    index: int
    result: Completion
    why: Why | None


def named(model: Tokens, chunk: Chunk) -> tuple[TokenInfo, ...]:
    """Return the tokens of a chunk with their texts, if log-probabilities were requested."""
    return tuple(info_of(model, one) for one in chunk.logprobs)


def info_of(model: Tokens, one: TokenLogprob) -> TokenInfo:
    """Return a token with its texts."""
    top = tuple(_name(model, *other) for other in one.top)
    return TokenInfo(*_name(model, one.token, one.logprob), top)


def _name(model: Tokens, token: int, logprob: float) -> Named:
    text = model.token_text(token)
    # JSON has no infinity: log-probabilities are at least -9999.
    piece = model.token_bytes(token) or text.encode()
    return text, piece, max(logprob, -9999.0), token
