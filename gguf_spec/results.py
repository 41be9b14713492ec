"""Results of a request: frozen dataclasses that turn into plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "cancelled"]
_RATES = ("acceptance", "tokens_per_round", "tokens_per_s", "predicted_speedup", "speedup")


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
        n_near_ties: Emitted tokens whose decision was closer than the rounding noise between batches of different size: plain decoding may decide
            them otherwise. Counted under the rule `coupled`, and also in passes over one token that follow wider ones.
        n_decided_again: Near ties that were decided again from a pass over one token (`strict`).
        rounds: Passes of the target after the prompt was read, but for those that decided near ties again.
        prompt_s: Time in which target and draft read the prompt.
        draft_s: Time inside the draft model.
        verify_s: Time inside the target model.
        other_s: The rest.
        ttft_s: Time until the first token was there.
        total_s: All of it.
        forecast_s: What the rounds should have taken, by the costs known when each began.
        plain_s: What the same tokens should have taken one at a time.
        drafters: Drafted and accepted tokens of each drafter: `model`, `ngram`, and `retry`, the rest of a draft behind its first wrong token.
        why_none: Why nothing was drafted, or which drafter failed and was switched off for the request; else empty.
    """

    n_prompt: int = 0
    n_generated: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_near_ties: int = 0
    n_decided_again: int = 0
    rounds: int = 0
    prompt_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    ttft_s: float = 0.0
    total_s: float = 0.0
    forecast_s: float = 0.0
    plain_s: float = 0.0
    drafters: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    why_none: str = ""

    @property
    def predicted_speedup(self) -> float:
        """How many times as fast as plain decoding the rounds should have been, by measured costs and what was accepted; 1 where nothing is known.

        At most the tokens per round: a pass is never faster than one over a single token, whatever the cost table says.
        """
        return min(self.plain_s / self.forecast_s, self._most_speedup) if self.forecast_s else 1.0

    @property
    def speedup(self) -> float:
        """How many times as fast they were, by the clock; at most the tokens per round."""
        decode_s = self.total_s - self.prompt_s
        return (
            min(self.plain_s / decode_s, self._most_speedup)
            if self.plain_s and decode_s > 0
            else 1.0
        )

    @property
    def _most_speedup(self) -> float:
        return max(1.0, self.tokens_per_round)

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
        rates = {name: getattr(self, name) for name in _RATES}
        return asdict(self) | rates


@dataclass(frozen=True)
class TokenLogprob:
    """How likely the target found a token, before bias, penalties, filters and temperature.

    Attributes:
        token: The id.
        logprob: Natural logarithm of its probability.
        top: The likeliest tokens in this place, likeliest first: `((id, logprob), ...)`.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return {
            "token": self.token,
            "logprob": self.logprob,
            "top": [{"token": token, "logprob": logprob} for token, logprob in self.top],
        }


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
        logprobs: One for each of `tokens` where `Sampling.logprobs` asks for them, else empty.
    """

    text: str
    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: FinishReason | None = None
    accepted_text: tuple[tuple[str, bool], ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"logprobs": [one.to_dict() for one in self.logprobs]}


@dataclass(frozen=True)
class Completion:
    """A finished generation.

    Attributes:
        text: The text, stop strings left out.
        tokens: The token ids, the end-of-generation token left out.
        finish_reason: `stop` (end token, stop string, stop token), `length` (max_tokens or a full context) or `cancelled`.
        seed: The seed that gives this text again.
        stats: What it cost.
        logprobs: One for each of `tokens` where `Sampling.logprobs` asks for them, else empty.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {
            "tokens": list(self.tokens),
            "stats": self.stats.to_dict(),
            "logprobs": [one.to_dict() for one in self.logprobs],
        }
