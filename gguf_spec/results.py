"""Results of a request: frozen dataclasses that convert to plain data; and how answers are read.

An answer is read by a thread that iterates over it, or by a function that gets its events in the
thread that computes it. A `Work` goes on at the end of an answer, so that no thread waits for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from html import escape
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

R = TypeVar("R")


# Seconds after which it is asked again whether a reader that was behind has read.
POLL_S = 0.01

FinishReason = Literal["stop", "length", "cancelled"]
_RATES = ("acceptance", "tokens_per_round", "tokens_per_s", "predicted_speedup", "speedup")


class Progress(NamedTuple):
    """State of a long operation, for its callback.

    Attributes:
        stage: The operation: `load`, `prompt`, `download`, `wait` (for a busy hub or another
            download), `unpack`, `checksum`, `quantize`, `tune`, `bench`, `verify`, `embed` or
            `choose`.
        done: Finished units.
        total: All units; None if unknown.
        unit: `bytes`, `tokens`, `tensors`, `passes`, `runs`, `generations` or `texts`.
    """

    stage: str
    done: int
    total: int | None
    unit: str

    @property
    def share(self) -> float:
        """Finished share, 0 to 1; 0 if the total is unknown."""
        return self.done / self.total if self.total else 0.0


class PassCounts(NamedTuple):
    """Passes of a model that returned rows of logits.

    Attributes:
        n_passes: Number of these passes.
        n_rows: Number of their rows, of all requests together.
    """

    n_passes: int = 0
    n_rows: int = 0


@dataclass(frozen=True)
class SlotState:
    """State of a slot: the place of one request among those that run at once.

    Attributes:
        index: Number of the slot, from 0.
        n_ctx: Number of tokens that its cache holds.
        n_cached: Number of tokens in its cache.
        request: Number of the request that runs in it; None for a free slot.
    """

    index: int
    n_ctx: int
    n_cached: int
    request: int | None


@dataclass(frozen=True)
class PrefixMemory:
    """Memory for texts whose caches were given to other texts, and its use.

    Attributes:
        limit_bytes: Largest memory that it may take; 0 keeps nothing.
        n_bytes: Memory in use, with that of the checkpoints of recurrent layers.
        n_entries: Number of kept texts.
        n_saved: Number of texts that were saved.
        n_restored: Number of requests that began with a kept text.
        n_tokens_restored: Number of their tokens that needed no reading.
    """

    limit_bytes: int = 0
    n_bytes: int = 0
    n_entries: int = 0
    n_saved: int = 0
    n_restored: int = 0
    n_tokens_restored: int = 0


OnProgress: TypeAlias = Callable[[Progress], object]
"""Called with the state of an operation; returning False cancels loading and reading a prompt."""


@dataclass(frozen=True)
class Stats:
    """Token counts and times of a generation. Times are in seconds of the wall clock.

    `prompt_s + draft_s + verify_s + other_s == total_s`. `other_s` is the time in Python: sampling,
    acceptance and detokenisation. Time that the caller spends between two chunks is not counted.

    Attributes:
        n_prompt: Number of prompt tokens.
        n_cached: Number of prompt tokens that were in a cache of earlier requests, so that the
            target did not read them again.
        n_generated: Number of emitted tokens.
        n_reasoning: Number of emitted tokens of reasoning parts, with their tags.
        n_drafted: Number of draft tokens.
        n_accepted: Number of draft tokens that the target accepted.
        n_near_ties: Number of emitted tokens whose decision margin was below the rounding noise
            between batch sizes. Plain decoding may decide them differently. They are counted under
            the rule `coupled`, and also in single-token passes that follow wider passes.
        n_decided_again: Number of near ties decided again from a single-token pass (`strict`).
        rounds: Number of target passes after the prefill, without the passes that decided near ties
            again.
        prompt_s: Prefill time of target and draft.
        draft_s: Time inside the draft model.
        verify_s: Time inside the target model.
        other_s: Remaining time.
        ttft_s: Time to the first token.
        total_s: Total time.
        forecast_s: Predicted time of the rounds, by the costs known at the start of each round.
        plain_s: Predicted time of plain decoding for the same tokens.
        drafters: Drafted and accepted tokens of each drafter: `model`, `mtp`, `eagle3`, `ngram`,
            and `retry`, which drafts the rest of a draft after its first rejected token.
        why_none: Reason that nothing was drafted, or the drafter that failed and was disabled for
            the request; otherwise empty.
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
    n_reasoning: int = 0
    n_cached: int = 0

    @property
    def predicted_speedup(self) -> float:
        """Predicted speed-up of the rounds over plain decoding; 1 without a prediction.

        It uses measured costs and the accepted tokens. It is at most the number of tokens per
        round, because a pass is never faster than a single-token pass, even if the cost table
        claims so.
        """
        return min(self.plain_s / self.forecast_s, self._most_speedup) if self.forecast_s else 1.0

    @property
    def speedup(self) -> float:
        """Measured speed-up over plain decoding, at most the number of tokens per round."""
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
        """Acceptance rate: accepted over drafted tokens; 0 if nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per target pass."""
        return self.n_generated / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Emitted tokens per second after the prefill."""
        decode_s = self.total_s - self.prompt_s
        return self.n_generated / decode_s if decode_s > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and rates as plain numbers."""
        rates = {name: getattr(self, name) for name in _RATES}
        return asdict(self) | rates


@dataclass(frozen=True)
class TokenLogprob:
    """Log-probability of a token under the target, before bias, penalties, filters and temperature.

    Attributes:
        token: The token id.
        logprob: Natural logarithm of its probability.
        top: The most likely tokens at this position, most likely first: `((id, logprob), ...)`.
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


class ScoredOption(NamedTuple):
    """A text with its probability as the continuation of a prompt.

    Attributes:
        text: The text.
        tokens: Its token ids.
        logprobs: Natural logarithm of the probability of each token.
        logprob: Their sum.
        probability: `exp(logprob)`, divided by its sum over all options.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    logprob: float
    probability: float


class Part(NamedTuple):
    """A piece of generated text with its kind.

    Attributes:
        kind: `reasoning`, or `text` for the answer.
        text: The piece.
    """

    kind: Literal["reasoning", "text"]
    text: str


@dataclass(frozen=True)
class Chunk:
    """One part of a stream: the output of one round.

    Attributes:
        text: New text of the answer. It contains no incomplete character and no part of a stop
            string; it may be empty.
        tokens: Token ids of the round.
        n_drafted: Number of tokens drafted in the round.
        n_accepted: Number of leading `tokens` that came from the draft.
        finish_reason: Set only in the last chunk, otherwise None.
        accepted_text: Segments of `text` with their origin: `((text, accepted), ...)`, where
            `accepted` is true for accepted draft tokens.
        logprobs: One entry per item of `tokens` if `Sampling.logprobs` is set, otherwise empty.
        reasoning: New text of the reasoning; always empty for a model without reasoning parts.
        parts: Reasoning and answer in their order.
    """

    text: str
    tokens: tuple[int, ...]
    n_drafted: int
    n_accepted: int
    finish_reason: FinishReason | None = None
    accepted_text: tuple[tuple[str, bool], ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    parts: tuple[Part, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {
            "logprobs": [one.to_dict() for one in self.logprobs],
            "parts": [part._asdict() for part in self.parts],
        }


_SHOWN = 60  # characters of a text in its `repr`


@dataclass(frozen=True, repr=False)
class Completion:
    """A finished generation.

    Attributes:
        text: The text of the answer, without stop strings.
        tokens: The token ids without the end-of-generation token.
        finish_reason: `stop` (end token, stop string or stop token), `length` (`max_tokens` or a
            full context) or `cancelled`.
        seed: The seed that reproduces this text.
        stats: Token counts and times.
        logprobs: One entry per item of `tokens` if `Sampling.logprobs` is set, otherwise empty.
        reasoning: The text of the reasoning, without its tags; empty for a model without reasoning
            parts.
        stop_string: The stop string that ended the text; None if another reason did.
        accepted_text: Segments of `text` with their origin, as in `Chunk`; not in `to_dict`.
    """

    text: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    seed: int
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    stop_string: str | None = None
    accepted_text: tuple[tuple[str, bool], ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    def __repr__(self) -> str:
        text = self.text if len(self.text) <= _SHOWN else f"{self.text[:_SHOWN]}..."
        n = self.stats.n_generated
        return f"<{type(self).__name__} {text!r}: {n:,} tokens, {self.finish_reason}>"

    def _repr_html_(self) -> str:
        """Return the text for a notebook; accepted draft tokens are green."""
        pieces = [
            f'<span style="color: green">{escape(text)}</span>' if accepted else escape(text)
            for text, accepted in self.accepted_text or ((self.text, False),)
        ]
        return f'<pre style="white-space: pre-wrap">{"".join(pieces)}</pre>'

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        fields = asdict(self) | {
            "tokens": list(self.tokens),
            "stats": self.stats.to_dict(),
            "logprobs": [one.to_dict() for one in self.logprobs],
        }
        del fields["accepted_text"]
        return fields


class Ended(NamedTuple):
    """Last event of a generation; `error` is what ended it early, or None."""

    error: BaseException | None = None


class Answer(Protocol):
    """A running generation: an iterator over its chunks, and a context manager that closes it."""

    @property
    def seed(self) -> int:
        """The seed in use."""

    @property
    def stats(self) -> Stats:
        """Token counts and times so far; complete after the last chunk."""

    @property
    def result(self) -> Completion:
        """The result so far; its finish reason is `cancelled` until the generation has ended."""

    def __iter__(self) -> Iterator[Chunk]:
        """Return itself."""

    def __next__(self) -> Chunk:
        """Compute the next chunk in this thread, or wait for it; errors of the engine come here."""

    def run_to_end(self, on_chunk: Callable[[Chunk], object] = lambda _: None) -> Completion:
        """Read it to its end, and return the result.

        Args:
            on_chunk: Called with each chunk, in the thread that computes it; it must not wait.
        """

    def listen(
        self, call: Callable[[Chunk | Ended], object], is_full: Callable[[], bool] = bool
    ) -> None:
        """Let a thread of the engine compute it, and return at once; nobody may read it then.

        Args:
            call: Called there with each chunk, and at the end once with `Ended`. It must not wait.
                An exception of it ends this generation only, and is the error of `Ended`.
            is_full: Called there between two rounds: the generation waits while it returns True.

        Raises:
            BusyError: It is read already, or listened to.
            ClosedError: The LLM is closed.
        """

    def cancel(self) -> None:
        """End it after the current round; safe from any thread and from a signal handler."""

    def close(self) -> None:
        """Cancel it, and give its place back; repeated calls have no effect."""

    def __enter__(self) -> Answer:
        """Return itself."""

    def __exit__(self, *_: object) -> None:
        """Close it."""


class Listener(NamedTuple):
    """The arguments of `Answer.listen`."""

    call: Callable[[Chunk | Ended], object]
    is_full: Callable[[], bool] = bool

    def read(
        self,
        chunks: Iterable[Chunk],
        is_cancelled: Callable[[], bool],
        close: Callable[[], object],
    ) -> None:
        """Read a generation to its end, in this thread.

        Args:
            chunks: The chunks; reading them computes or receives them.
            is_cancelled: Whether the generation is cancelled: then nobody waits for its reader.
            close: Closes the generation after an error.
        """
        error: BaseException | None = None
        try:
            for chunk in chunks:
                self.call(chunk)
                while self.is_full() and not is_cancelled():
                    time.sleep(POLL_S)
        except BaseException as raised:  # a function of the user may raise anything
            error = raised
            close()
        self.end(error)

    def end(self, error: BaseException | None) -> None:
        """Tell it the end. What it raises is only logged: others may use this thread."""
        try:
            self.call(Ended(error))
        except BaseException:
            import logging  # not for `--help`

            logging.getLogger(__name__).exception(
                "A function that listens to a generation failed at its end."
            )


Work: TypeAlias = Generator[tuple[Answer, Callable[[Chunk], object]], None, R]
"""Yields each generation that it needs, with a function for its chunks, and goes on at its end.

An error of the generation is raised at the `yield`. The function is called by a thread of the
engine, and must not wait.
"""


def go_on(
    work: Work[Any],
    error: BaseException | None,
    on_ended: Callable[[BaseException | None], object],
) -> None:
    """Run a work until it needs a generation, and let the engine compute that.

    Args:
        work: The work.
        error: What its last generation ended with.
        on_ended: Called by a thread of the engine when the generation has ended, with its error.

    Raises:
        StopIteration: The work has ended, with this value; other errors are its own.
    """
    while True:
        answer, call = work.throw(error) if error else next(work)

        def came(event: Chunk | Ended, call: Callable[[Chunk], object] = call) -> None:
            if isinstance(event, Ended):
                on_ended(event.error)
            else:
                call(event)

        try:
            answer.listen(came)
            return
        except BaseException as raised:
            error = raised
