"""A generation: the request, its state, its statistics, and the rounds as chunks of text."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import EmptyPromptError, InvalidOptionError, PromptTooLongError
from ..images import check_ids
from ..options import Sampling, Speculation, WholeGrammarSampling
from ..passes import LanguageModel
from ..results import Chunk, FinishReason, OnProgress, Part, Progress, Stats, TokenLogprob
from ..sampling.chain import CompatSampling, Filters, Penalties, Sampler
from ..sampling.filters import make_filters
from ..sampling.rng import SeededRng
from ..speculative import engine
from ..speculative.acceptance import RULES, coupled
from ..speculative.controller import DraftController
from ..speculative.drafters import NoDrafter
from ..speculative.engine import Round
from ..speculative.prefix import retain_prefix
from ..text.detokenizer import PartStream, joined
from ..text.reasoning import ReasoningFormat, State, Thinking

if TYPE_CHECKING:
    from ..llama.sequence import CachedSequence
    from ..llama.weights import Weights
    from ..speculative.pair import ModelPair
    from ..speculative.scheduler import SlotPair
    from .prefix_cache import PrefixStore

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

# Seed increment per context shift. It is odd, so that all parts of a text have different seeds.
_PART = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Request:
    """Input of a stream.

    Attributes:
        prompt: Token ids.
        sampling: Sampling options.
        speculation: Draft options.
        on_token: Called with each emitted id; a true result ends the generation there.
        prefill: Text at the end of the prompt that belongs to the answer; a grammar starts there.
        echo: Text at the start of the first chunk.
        on_prompt: Called after each prefill pass. The last prompt token is not counted, because it
            is decoded with the answer.
        reasoning: Reasoning parts that are separated from the text; None for none.
        shown: Special tokens of tool calls that are written by their names in the text.
    """

    prompt: Sequence[int]
    sampling: Sampling
    speculation: Speculation
    on_token: Callable[[int], object] | None = None
    prefill: str = ""
    echo: str = ""
    on_prompt: OnProgress | None = None
    reasoning: ReasoningFormat | None = None
    shown: Mapping[int, str] = field(default_factory=dict)


def check_request(request: Request, target: CachedSequence) -> None:
    """Reject a request that cannot run, before any pass runs.

    Raises:
        EmptyPromptError, PromptTooLongError, InvalidOptionError: With the actual values.
    """
    if not request.prompt:
        raise EmptyPromptError
    if len(request.prompt) >= target.n_ctx:
        raise PromptTooLongError(len(request.prompt), target.n_ctx, n_ctx_limit=target.n_ctx_limit)
    sampling = request.sampling
    for option, tokens in (
        ("prompt", check_ids(request.prompt)),
        ("stop_tokens", sampling.stop_tokens),
        ("logit_bias", sampling.logit_bias),
    ):
        for token in tokens:
            if not (isinstance(token, int) and 0 <= token < target.n_vocab):
                allowed = f"an id from 0 to {target.n_vocab - 1}"
                hint = "take the ids from this model." if option == "prompt" else None
                raise InvalidOptionError(option, token, allowed, hint)


_COUNTS = (
    "n_prompt", "n_cached", "n_generated", "n_drafted", "n_accepted", "n_near_ties",
    "n_decided_again", "rounds",
)  # fmt: skip


class StatsRecorder:
    """Token counts and times of a stream: time inside the models, and total running time.

    Attributes:
        n_reasoning: Number of tokens of the reasoning; the caller sets it.
        since: Time from which on time counts, by the performance counter; the caller sets it when
            it has processed a chunk.
    """

    since: float
    n_reasoning: int

    def __init__(self, n_prompt: int, clock: Callable[[], float] = time.perf_counter) -> None:
        """Begin without times; `clock` returns the time in seconds."""
        self._clock = clock
        self._counts = dict.fromkeys(_COUNTS, 0) | {"n_prompt": n_prompt}
        self._drafter: DraftController | NoDrafter | None = None
        self.since, self.n_reasoning = 0.0, 0
        self._target: LanguageModel | None = None
        self._draft: LanguageModel | None = None
        self._busy = self._busy_at_end = (0.0, 0.0)
        self._total_s = self._prompt_s = self._ttft_s = 0.0
        self._is_read = False
        self._logged = Stats()
        self._logs = _LOG.isEnabledFor(logging.DEBUG)  # asked once per request

    def start(self, target: LanguageModel, draft: LanguageModel | None) -> None:
        self._draft, self._target = draft, target
        self._busy = self._busy_at_end = self._busy_now()
        self.since = self._clock()

    def prompt_is_read(self, n_cached: int, whole: bool = True) -> None:
        """Count all time so far as prefill time; a later prefill counts as generation time.

        Args:
            n_cached: Number of tokens that the cache had before.
            whole: Whether the whole prompt is read, not a part of it.
        """
        if self._is_read:
            return
        self._is_read = whole
        self._counts["n_cached"] = n_cached
        now = self._clock()
        self._prompt_s = self._total_s = now - self.since
        self._busy = self._busy_at_end = self._busy_now()
        self.since = now if whole else self.since

    def round_is_done(
        self, one: Round, n_emitted: int, drafter: DraftController | NoDrafter
    ) -> None:
        """Add a round to the stats, and pause timing until `since` is set.

        Args:
            one: The round.
            n_emitted: Number of its tokens that were emitted.
            drafter: The drafter of the round.
        """
        self._total_s += self._clock() - self.since
        self._busy_at_end, self._drafter = self._busy_now(), drafter
        counts = self._counts
        counts["n_generated"] += n_emitted
        counts["rounds"] += 1
        if one.n_drafted:
            counts["n_drafted"] += one.n_drafted
            counts["n_accepted"] += one.n_accepted
        if one.near_ties:
            counts["n_near_ties"] += sum(i < n_emitted for i in one.near_ties)
        if one.decided_again:
            counts["n_decided_again"] += 1
        self._ttft_s = self._ttft_s or self._total_s
        if self._logs:
            before, self._logged = self._logged, self.stats
            _log_round(before, self._logged)

    @property
    def stats(self) -> Stats:
        (draft_at_end, at_end), (draft_before, before) = self._busy_at_end, self._busy
        draft_s, verify_s = draft_at_end - draft_before, at_end - before
        drafter = self._drafter
        controller = drafter if isinstance(drafter, DraftController) else None
        return Stats(
            **self._counts,
            n_reasoning=self.n_reasoning,
            prompt_s=self._prompt_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=self._total_s - self._prompt_s - draft_s - verify_s,
            ttft_s=self._ttft_s,
            total_s=self._total_s,
            forecast_s=controller.forecast.rounds_s if controller else 0.0,
            plain_s=controller.forecast.plain_s if controller else 0.0,
            drafters=dict(controller.counts) if controller else {},
            why_none=drafter.why_none if drafter else "",
        )

    def _busy_now(self) -> tuple[float, float]:
        draft, target = self._draft, self._target
        return draft.busy_s if draft else 0.0, target.busy_s if target else 0.0


def _log_round(before: Stats, after: Stats) -> None:
    """Log a round: the draft and its drafters, what was accepted, and the time.

    Measured is the time of the round without reading the prompt. There is no prediction (0) where
    nothing may be drafted.
    """
    by = ", ".join(
        f"{name} {n - before.drafters.get(name, (0, 0))[0]}"
        for name, (n, _) in after.drafters.items()
        if n > before.drafters.get(name, (0, 0))[0]
    )
    _LOG.debug(
        "round %d: drafted %d (%s), accepted %d, predicted %.2f ms, measured %.2f ms",
        after.rounds,
        after.n_drafted - before.n_drafted,
        by or "no drafter",
        after.n_accepted - before.n_accepted,
        1000 * (after.forecast_s - before.forecast_s),
        1000 * (after.total_s - after.prompt_s - before.total_s + before.prompt_s),
    )


class Generation:
    """State of a generation, and the generator of its chunks.

    It is separate from `Stream`, so that the running generator does not keep an unreferenced stream
    alive.
    """

    def __init__(
        self,
        request: Request,
        pair: ModelPair[CachedSequence],
        kept: PrefixStore,
        dry: Callable[[Weights, Sampling], Penalties],
        sampler: Callable[[Any, Sampler, float], engine.Choose | None],
    ) -> None:
        """Prepare the generation.

        Args:
            request: The request.
            pair: The models.
            kept: Caches of earlier texts.
            dry: Makes the penalties of DRY.
            sampler: Makes the sampler of the kernels' library, or None where it lacks a filter.

        Raises:
            InvalidOptionError: The grammar is invalid or rejects the prefill.
        """
        self.seed: int = (
            secrets.randbits(32) if request.sampling.seed is None else request.sampling.seed
        )
        self._recorder = StatsRecorder(len(request.prompt), pair.clock)
        self.cancelled = False  # a plain attribute, because a signal handler may set it
        # Called with each chunk where the request runs in another thread than its reader.
        self.on_chunk: Callable[[Chunk], object] | None = None
        self.text: list[str] = []
        self.accepted_text: list[tuple[str, bool]] = []
        self.reasoning: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: FinishReason = "cancelled"
        self._request, self._pair, self._target = request, pair, pair.target
        self._kept, self._sampler = kept, sampler
        self._called_back: float | None = None
        reasoning, weights = request.reasoning, pair.target.weights
        state = reasoning.begin(weights, request.prompt, request.prefill) if reasoning else None
        is_compat = isinstance(request.sampling, CompatSampling)
        self._visible = PartStream(
            weights,
            request.sampling.stop,
            "ignore" if is_compat else "replace",
            reasoning,
            state,
            request.shown,
        )
        self._to_echo = request.echo
        self._stop_tokens = frozenset(request.sampling.stop_tokens)
        speculation = request.speculation
        noise = pair.logit_noise(speculation) if speculation.accept == "coupled" else 0.0
        self._rule = engine.RoundRule(RULES[speculation.accept], noise, speculation.strict)
        self._filters = make_filters(
            weights,
            request.sampling,
            len(request.prompt),
            request.prefill,
            partial(dry, weights),
        )
        self._thinking = _thinking(request, weights, self._filters, state)
        self._n_kept = (
            (pair.target.n_ctx - len(request.prompt)) // 2
            if request.sampling.overflow == "shift"
            else 0
        )

    @property
    def prompt(self) -> Sequence[int]:
        return self._request.prompt

    @property
    def stop_string(self) -> str | None:
        return self._visible.answer.stop_string

    @property
    def stats(self) -> Stats:
        self._recorder.n_reasoning = self._visible.n_reasoning
        return self._recorder.stats

    def rest_by(self, rest: Callable[[], object]) -> bool:
        """Call `rest` again and again in long work between passes; return whether it has such."""
        grammar = self._filters.grammar
        if grammar:
            grammar.rest_by(rest)
        return grammar is not None

    def run(self, slots: SlotPair[CachedSequence]) -> Generator[Chunk, None, None]:
        """Yield one chunk per round; behind the last one the text is kept.

        Args:
            slots: The caches that the request uses.
        """
        yield from self._run(slots)
        self._kept.answered(slots)

    def _run(self, slots: SlotPair[CachedSequence]) -> Generator[Chunk, None, None]:
        request, target = self._request, slots.target
        ends = _Ends(self._stop_tokens, self._target.weights.is_end)
        # Other requests make passes of any width.
        rule = self._rule._replace(wide_past=self._pair.shares_passes)
        k, recorder = self._pair.most_drafted(request.speculation), self._recorder
        recorder.start(target, slots.draft)
        drafter: DraftController | NoDrafter | None = None
        for begin, chain in self._contexts():
            n_left = request.sampling.max_tokens and request.sampling.max_tokens - len(self.tokens)
            drafter = self._pair.drafter(
                request.speculation, chain, n_left or target.n_ctx, slots, drafter
            )
            n_cached = self._read_prompt(slots, drafter, begin, k)
            recorder.prompt_is_read(n_cached)
            if n_left == 0:
                yield self._deliver(engine.Round([], 0, 0), cut="length")
                return
            choose = None
            if self._target.kernels is not None:
                choose = self._sampler(self._target.kernels, chain, self._rule.noise)
            for one in engine.rounds(
                target=target,
                drafter=drafter,
                prompt=begin,
                sampler=chain,
                k=k,
                rule=rule._replace(choose=choose if self._rule.accept is coupled else None),
                n_max=n_left,
                is_end=ends.__getitem__,
                cancelled=self._is_cancelled,
            ):
                chunk = self._deliver(one)
                recorder.round_is_done(one, len(chunk.tokens), drafter)
                yield chunk
                recorder.since = self._pair.clock()
                if chunk.finish_reason:
                    if self._pair.store:
                        self._pair.store.add([*request.prompt[n_cached:], *self.tokens])
                    if isinstance(drafter, DraftController):
                        is_whole = chunk.finish_reason == "stop"
                        drafter.known.answered(len(self.tokens), is_whole)
                    return
        yield self.cancelled_chunk()

    def cancelled_chunk(self) -> Chunk:
        """Return the last chunk of a generation that is cancelled between two rounds."""
        return self._deliver(engine.Round([], 0, 0), cut="cancelled")

    def _read_prompt(
        self,
        slots: SlotPair[CachedSequence],
        drafter: DraftController | NoDrafter,
        begin: Sequence[int],
        k: int,
    ) -> int:
        """Read the prompt, or the text that follows a context shift; return how much was cached."""
        target, tokens = slots.target, begin[:-1]
        slots.n_prompt = len(tokens)
        if not self._pair.shares_passes:  # else they were prepared with the choice of the slots
            self._kept.save_and_restore(slots, tokens)
        retain_prefix(target, tokens)
        n_cached, busy_s = target.n_past, target.busy_s
        report = self._request.on_prompt if begin is self._request.prompt else None

        def on_pass(n_done: int, n_total: int) -> None:
            self._recorder.prompt_is_read(n_cached, whole=False)
            progress = Progress("prompt", n_done, n_total, "tokens")
            if report and self.call_back(report, progress) is False:
                self.cancelled = True

        engine.read_prompt(
            target, drafter, begin, k, self._is_cancelled, on_pass if report else None
        )
        self._kept.reading.learn(target.n_past - n_cached, target.busy_s - busy_s)
        return n_cached

    @property
    def called_back_s(self) -> float:
        """Seconds since a callback was called that has not returned; 0 without one."""
        since = self._called_back
        return time.monotonic() - since if since is not None else 0.0

    def call_back(self, function: Callable[[T], object], argument: T) -> object:
        """Call a function of the user; the end of the program waits for it only shortly."""
        self._called_back = time.monotonic()
        try:
            return function(argument)
        finally:
            self._called_back = None

    def _contexts(self) -> Iterator[tuple[Sequence[int], Sampler]]:
        """Yield pairs of initial tokens and sampler chain.

        The first item is the prompt. After each context overflow, the next one is the prompt
        followed by the most recent generated tokens.
        """
        prompt, begin, n_dropped = self._request.prompt, self._request.prompt, 0
        for part in itertools.count():
            filters = self._filters
            if self._thinking:
                filters = filters._replace(reasoning=self._thinking.after(self.tokens[:n_dropped]))
            # Positions repeat after a shift, but their random numbers must not. Each part
            # therefore has its own seed.
            rng = SeededRng((self.seed + part * _PART) % 2**64)
            yield begin, Sampler(self._request.sampling, rng, filters)
            if not self._n_kept or self.cancelled:
                return
            begin = [*prompt, *self.tokens[-self._n_kept :]]
            n_dropped = len(self.tokens) - self._n_kept

    def _is_cancelled(self) -> bool:
        return self.cancelled

    def _deliver(self, one: engine.Round, cut: FinishReason | None = None) -> Chunk:
        """Return a round as a chunk, truncated at the end of the text or where the caller stops."""
        parts = [(Part("text", self._to_echo), False)] if self._to_echo else []
        self._to_echo = ""
        request, visible, n_accepted = self._request, self._visible, one.n_accepted
        tokens = one.tokens[:-1] if one.ended else one.tokens
        for i, token in enumerate(tokens):
            for part in visible.push(token):
                parts.append((part, i < n_accepted))
            if request.on_token and self.call_back(request.on_token, token):
                cut = "cancelled"
            if visible.answer.stop_string is not None:
                cut = "stop"
            if cut:
                tokens = tokens[: i + 1]
                break
        self.tokens += tokens
        logprobs = one.logprobs[: len(tokens)]
        self.logprobs += logprobs
        n = len(self.tokens)
        is_full = not self._n_kept and len(request.prompt) + n >= self._target.n_ctx
        if cut is None and (one.ended or is_full or n == request.sampling.max_tokens):
            cut = "stop" if one.ended else "length"
        if cut:
            parts += [(part, False) for part in visible.finish()]
            self.finish = cut
        text, reasoning, shown, whole = joined(parts)
        if text:
            self.text.append(text)
            self.accepted_text += shown
        if reasoning:
            self.reasoning.append(reasoning)
        n_accepted = min(n_accepted, len(tokens))
        return Chunk(
            text, tuple(tokens), one.n_drafted, n_accepted, cut, shown, logprobs, reasoning, whole
        )


class _Ends(dict[int, bool]):
    """Whether each token ends a generation; asked once for each."""

    def __init__(self, stop_tokens: Collection[int], is_end: Callable[[int], bool]) -> None:
        super().__init__(dict.fromkeys(stop_tokens, True))
        self._is_end = is_end

    def __missing__(self, token: int) -> bool:
        self[token] = self._is_end(token)
        return self[token]


def _thinking(
    request: Request, weights: Weights, filters: Filters, state: State | None
) -> Thinking | None:
    """Return the reasoning that the rows of a request depend on; None if they do not."""
    budget = request.sampling.think_budget
    if request.reasoning is None or state is None or (budget is None and filters.grammar is None):
        return None
    if isinstance(request.sampling, WholeGrammarSampling):
        return None
    return Thinking(weights, request.reasoning, len(request.prompt), state, budget)
