"""Events of a request, from the worker to the event loop of its client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..options import Sampling, well_formed
from ..results import Chunk, Completion, OnProgress, Stats, TokenLogprob
from ..tools.families import Family
from .errors import ApiError

if TYPE_CHECKING:
    from ..runtime.llm import LLM

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


@dataclass(frozen=True)
class Ping:
    """Event: nothing was sent for some time. It does not come from the worker."""


@dataclass(frozen=True)
class Done:
    """Event: all choices are complete, or a task has run."""

    value: Any = None


@dataclass(frozen=True)
class Sent:
    """Event: a part of the result of a task."""

    kind: str
    value: Any


@dataclass(frozen=True)
class ErrorEvent:
    """Event: an error ended the request, before or during the answer."""

    refusal: ApiError


Event = Started | PromptRead | ChunkEvent | ChoiceEnded | Ping | Done | Sent | ErrorEvent


def named(llm: LLM, chunk: Chunk) -> tuple[TokenInfo, ...]:
    """Return the tokens of a chunk with their texts, if log-probabilities were requested."""
    return tuple(_info(llm, one) for one in chunk.logprobs)


def scored(
    llm: LLM, prompt: str | Sequence[int], n_top: int, on_pass: OnProgress
) -> tuple[TokenInfo, ...]:
    """Return the tokens of a prompt with log-probabilities; that of the first one is 0.

    The bytes of a token are those that the text of the prompt has: none for a start token.
    """
    ids = llm.tokenize(prompt, most=llm.n_ctx - 1) if isinstance(prompt, str) else prompt
    rows = [TokenLogprob(ids[0], 0.0), *llm.score(ids, n_top, on_pass=on_pass)] if ids else []
    rest = well_formed(prompt).encode() if isinstance(prompt, str) else None
    found = []
    for row in rows:
        info = _info(llm, row)
        piece = llm.token_bytes(row.token)
        if rest is not None:  # the tokenizer may add a space in front
            piece = next((x for x in (info.piece, piece.lstrip(b" ")) if rest.startswith(x)), piece)
            rest = rest[len(piece) :]
        found.append(replace(info, piece=piece))
    return tuple(found)


def _info(llm: LLM, one: TokenLogprob) -> TokenInfo:
    top = tuple(_name(llm, *other) for other in one.top)
    return TokenInfo(*_name(llm, one.token, one.logprob), top)


def _name(llm: LLM, token: int, logprob: float) -> Named:
    text = llm.token_text(token)
    # JSON has no infinity: log-probabilities are at least -9999.
    piece = llm.token_bytes(token) or text.encode()
    return text, piece, max(logprob, -9999.0), token
