"""What goes in and what comes out: frozen dataclasses, checked when they are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .errors import InvalidOptionError

FinishReason = Literal["stop", "length", "cancelled"]
K_MAX = 32  # rows of logits are reserved when a context is made, so the longest draft is fixed


def _check(option: str, value: Any, allowed: str, ok: bool) -> None:
    if not ok:
        raise InvalidOptionError(option, value, allowed)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Sampling:
    """How one token is drawn from the target's logits, and when to stop.

    The chain is llama.cpp's, in its order: bias, penalties, top-k, top-p, min-p, temperature. It is the same for target and draft.

    Attributes:
        temperature: 0 takes the most likely token, always.
        top_k: Keep the `top_k` most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches `top_p`, in (0, 1]; 1 keeps all.
        min_p: Keep tokens at least `min_p` times as likely as the likeliest, in [0, 1].
        repeat_penalty: Divide positive and multiply negative logits of tokens seen by this; 1 does nothing.
        frequency_penalty: Take this off a logit for every time the token was seen.
        presence_penalty: Take this off a logit when the token was seen.
        penalty_last_n: How many of the last tokens, prompt included, the penalties look at; -1 for all.
        logit_bias: Token id -> what is added to its logit; `-inf` forbids the token.
        seed: Any whole number from 0 to 2**64 - 1; None draws one, which the result names.
        max_tokens: Stop after so many tokens; None goes on until the context is full.
        stop: Strings that end the text; they are not part of it.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = 256
    stop: Sequence[str] = ()

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, "0 or more", _is_number(self.temperature) and self.temperature >= 0)
        _check("top_k", self.top_k, "a whole number, 0 or more", _is_count(self.top_k) and self.top_k >= 0)
        _check("top_p", self.top_p, "above 0 and at most 1", _is_number(self.top_p) and 0 < self.top_p <= 1)
        _check("min_p", self.min_p, "between 0 and 1", _is_number(self.min_p) and 0 <= self.min_p <= 1)
        _check("repeat_penalty", self.repeat_penalty, "above 0", _is_number(self.repeat_penalty) and self.repeat_penalty > 0)
        for name in ("frequency_penalty", "presence_penalty"):
            _check(name, getattr(self, name), "a finite number", _is_number(getattr(self, name)))
        _check("penalty_last_n", self.penalty_last_n, "a whole number, -1 or more", _is_count(self.penalty_last_n) and self.penalty_last_n >= -1)
        _check("seed", self.seed, "a whole number from 0 to 2**64 - 1", self.seed is None or (_is_count(self.seed) and 0 <= self.seed < 2**64))
        _check(
            "max_tokens", self.max_tokens, "a whole number above 0", self.max_tokens is None or (_is_count(self.max_tokens) and self.max_tokens > 0)
        )
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        _check("stop", self.stop, "one or more strings that are not empty", all(isinstance(s, str) and s for s in self.stop))
        object.__setattr__(self, "stop", tuple(self.stop))
        for token, bias in self.logit_bias.items():
            _check(
                "logit_bias",
                {token: bias},
                "token ids with numbers, or -inf",
                _is_count(token) and token >= 0 and (_is_number(bias) or bias == -math.inf),
            )

    @property
    def greedy(self) -> bool:
        """Whether only the most likely token can be drawn."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Speculation:
    """How many tokens are drafted in a round.

    Attributes:
        k: Most tokens drafted in a round, 0 to 32. 0 is plain decoding, on the same path.
    """

    k: int = 4

    def __post_init__(self) -> None:
        _check("k", self.k, f"a whole number from 0 to {K_MAX}", _is_count(self.k) and 0 <= self.k <= K_MAX)


@dataclass(frozen=True)
class Stats:
    """What a generation cost. Times are in seconds of the wall clock.

    `prompt_s + draft_s + verify_s + other_s == total_s`; `other_s` is Python's own: sampling, acceptance, text, and whatever the caller does
    between two chunks is not in it.

    Attributes:
        n_prompt: Tokens of the prompt.
        n_generated: Tokens that were emitted.
        n_drafted: Tokens the draft proposed.
        n_accepted: Tokens of those that the target accepted.
        rounds: Passes of the target after the prompt was read.
        prompt_s: Time in which target and draft read the prompt.
        draft_s: Time inside the draft model.
        verify_s: Time inside the target model.
        other_s: The rest.
        ttft_s: Time until the first token was there.
        total_s: All of it.
    """

    n_prompt: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    rounds: int = 0
    prompt_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens; 0 where nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per pass of the target."""
        return self.n_generated / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second after the prompt was read."""
        decode_s = self.total_s - self.prompt_s
        return self.n_generated / decode_s if decode_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and rates as plain numbers."""
        rates = {name: getattr(self, name) for name in ("acceptance", "tokens_per_round", "tokens_per_s")}
        return asdict(self) | rates


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream: what one round emitted.

    Attributes:
        text: Text, never half a character, never part of a stop string; may be empty.
        tokens: Token ids of the round.
        n_drafted: Tokens drafted in the round.
        n_accepted: How many of the first `tokens` came from the draft.
        finish_reason: None but in the last chunk.
        accepted_text: For each stretch of `text`, whether it came from accepted tokens: `((text, accepted), ...)`.
    """

    text: str
    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: FinishReason | None = None
    accepted_text: tuple[tuple[str, bool], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes:
        text: The text, stop strings left out.
        tokens: The token ids, the end-of-generation token left out.
        finish_reason: `stop` (end token, stop string, stop token), `length` (max_tokens or a full context) or `cancelled`.
        seed: The seed that gives this text again.
        stats: What it cost.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"tokens": list(self.tokens), "stats": self.stats.to_dict()}
