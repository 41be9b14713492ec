"""A running generation: turns the rounds of a request into chunks of text."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from ..llama.model import Model
from ..results import Chunk, FinishReason, Part, Progress, Stats, TokenLogprob
from ..sampling.chain import CompatSampling, Filters, Sampler, WholeGrammarSampling
from ..sampling.filters import make_filters
from ..sampling.rng import SeededRng
from ..speculative import engine
from ..speculative.acceptance import RULES
from ..speculative.controller import DraftController
from ..speculative.drafters import NoDrafter
from ..speculative.interfaces import LanguageModel, retain_prefix
from ..speculative.pair import ModelPair
from ..speculative.task import SlotPair
from ..text.detokenizer import PartStream, joined, text_of
from ..text.reasoning import State, Thinking
from .kept_prefixes import OnlyCaches, PrefixStore
from .request import Request
from .stats_recorder import StatsRecorder

T = TypeVar("T")

# Seed increment per context shift. It is odd, so that all parts of a text have different seeds.
_PART = 0x9E3779B97F4A7C15


class Generation:
    """State of a generation, and the generator of its chunks.

    It is separate from `Stream`, so that the running generator does not keep an unreferenced stream
    alive.
    """

    def __init__(self, request: Request, pair: ModelPair, kept: PrefixStore) -> None:
        """Prepare the generation.

        Args:
            request: The request.
            pair: The models.
            kept: Caches of earlier texts.

        Raises:
            InvalidOptionError: The grammar is invalid or rejects the prefill.
        """
        self.seed = secrets.randbits(32) if request.sampling.seed is None else request.sampling.seed
        self._recorder = StatsRecorder(len(request.prompt))
        self.cancelled = False  # a plain attribute, because a signal handler may set it
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.tokens: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: FinishReason = "cancelled"
        self._request, self._pair, self._target = request, pair, pair.target
        self._kept = kept
        self._called_back: float | None = None
        reasoning = request.reasoning
        state = reasoning.begin(pair.target, request.prompt, request.prefill) if reasoning else None
        is_compat = isinstance(request.sampling, CompatSampling)
        self._visible = PartStream(
            pair.target,
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
        self._rule = engine.Rule(RULES[speculation.accept], noise, speculation.strict)
        self._filters = make_filters(
            pair.target, request.sampling, len(request.prompt), request.prefill
        )
        self._thinking = _thinking(request, pair.target, self._filters, state)
        self._n_kept = (
            (pair.target.n_ctx - len(request.prompt)) // 2
            if request.sampling.overflow == "shift"
            else 0
        )

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer, or None."""
        return self._visible.stop_string

    @property
    def stats(self) -> Stats:
        """Token counts and times so far."""
        return replace(self._recorder.stats, n_reasoning=self._visible.n_reasoning)

    def rest_by(self, rest: Callable[[], object]) -> bool:
        """Call `rest` again and again in long work between passes; return whether it has such."""
        grammar = self._filters.grammar
        if grammar:
            grammar.rest_by(rest)
        return grammar is not None

    def run(self, slots: SlotPair | None = None) -> Generator[Chunk, None, None]:
        """Yield one chunk per round.

        Args:
            slots: Slots that share passes with other requests; None for the models' own caches.
        """
        request = self._request
        target: LanguageModel = slots.target if slots else self._pair.target
        draft: LanguageModel | None = slots.draft if slots else self._pair.draft
        rule = self._rule._replace(wide_past=slots is not None)
        k, recorder = self._pair.most_drafted(request.speculation), self._recorder
        recorder.start(target, draft)
        drafter: DraftController | NoDrafter | None = None
        for begin, chain in self._contexts():
            n_left = request.sampling.max_tokens and request.sampling.max_tokens - len(self.tokens)
            drafter = self._pair.drafter(
                request.speculation, chain, n_left or target.n_ctx, drafter, slots
            )
            recorder.prompt_is_read(self._read_prompt(slots, drafter, begin, k))
            for one in engine.rounds(
                target,
                drafter,
                begin,
                chain,
                k,
                rule,
                n_left,
                self._is_end,
                self._is_cancelled,
            ):
                chunk = self._deliver(one)
                recorder.round_is_done(one, len(chunk.tokens), drafter)
                yield chunk
                recorder.resume()
                if chunk.finish_reason:
                    if self._pair.shared:
                        self._pair.shared.add(self.tokens)
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
        slots: SlotPair | None,
        drafter: DraftController | NoDrafter,
        begin: Sequence[int],
        k: int,
    ) -> int:
        """Read the prompt, or the text that follows a context shift; return how much was cached."""
        pair, tokens = self._pair, begin[:-1]
        target: LanguageModel = slots.target if slots else pair.target
        if not slots:  # those of several requests were prepared with the choice of the slots
            self._kept.use(OnlyCaches(pair.target, pair.draft, pair.draft_first), tokens)
        retain_prefix(target, tokens)
        n_cached, busy_s = target.n_past, target.busy_s
        on_pass = self._prompt_pass if begin is self._request.prompt else None
        engine.read_prompt(target, drafter, begin, k, self._is_cancelled, on_pass)
        self._kept.learn_reading(target.n_past - n_cached, target.busy_s - busy_s)
        return n_cached

    def _prompt_pass(self, n_done: int, n_total: int) -> None:
        """Report a prefill pass to the caller."""
        report = self._request.on_prompt
        progress = Progress("prompt", n_done, n_total, "tokens")
        if report and self._call_back(report, progress) is False:
            self.cancelled = True

    @property
    def called_back_s(self) -> float:
        """Seconds since a callback was called that has not returned; 0 without one."""
        since = self._called_back
        return time.monotonic() - since if since is not None else 0.0

    def _call_back(self, function: Callable[[T], object], argument: T) -> object:
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
        prompt, sampling = self._request.prompt, self._request.sampling
        yield prompt, Sampler(sampling, SeededRng(self.seed), self._filters_after(0))
        for part in itertools.count(1):
            if not self._n_kept or self.cancelled:
                return
            # Positions repeat after a shift, but their random numbers must not. Each part
            # therefore has its own seed.
            yield (
                [*prompt, *self.tokens[-self._n_kept :]],
                Sampler(
                    sampling,
                    SeededRng((self.seed + part * _PART) % 2**64),
                    self._filters_after(len(self.tokens) - self._n_kept),
                ),
            )

    def _filters_after(self, n_dropped: int) -> Filters:
        """Return the filters of a context without the first tokens of the text."""
        thinking = self._thinking
        return self._filters._replace(
            reasoning=thinking.after(self.tokens[:n_dropped]) if thinking else None
        )

    def _is_cancelled(self) -> bool:
        return self.cancelled

    def _is_end(self, token: int) -> bool:
        return token in self._stop_tokens or self._target.is_end(token)

    def _deliver(self, one: engine.Round, cut: FinishReason | None = None) -> Chunk:
        """Return a round as a chunk, truncated at the end of the text or where the caller stops."""
        parts = [(Part("text", self._to_echo), False)] if self._to_echo else []
        self._to_echo = ""
        tokens: list[int] = []
        for token in one.tokens[:-1] if one.ended else one.tokens:
            is_accepted = len(tokens) < one.n_accepted
            parts += [(part, is_accepted) for part in self._visible.push(token)]
            tokens.append(token)
            on_token = self._request.on_token
            if on_token and self._call_back(on_token, token):
                cut = "cancelled"
            if self._visible.stopped:
                cut = "stop"
            if cut:
                break
        self.tokens += tokens
        logprobs = one.logprobs[: len(tokens)]
        self.logprobs += logprobs
        cut = cut or ("stop" if one.ended else "length" if self._is_full() else None)
        if cut:
            parts += [(part, False) for part in self._visible.finish()]
            self.finish = cut
        whole = joined([part for part, _ in parts])
        text, reasoning = text_of(whole, "text"), text_of(whole, "reasoning")
        self.text.append(text)
        self.reasoning.append(reasoning)
        return Chunk(
            text,
            tuple(tokens),
            one.n_drafted,
            min(one.n_accepted, len(tokens)),
            cut,
            tuple((part.text, accepted) for part, accepted in parts if part.kind == "text"),
            logprobs,
            reasoning,
            whole,
        )

    def _is_full(self) -> bool:
        if len(self.tokens) == self._request.sampling.max_tokens:
            return True
        return (
            not self._n_kept and len(self._request.prompt) + len(self.tokens) >= self._target.n_ctx
        )


def _thinking(
    request: Request, target: Model, filters: Filters, state: State | None
) -> Thinking | None:
    """Return the reasoning that the rows of a request depend on; None if they do not."""
    budget = request.sampling.think_budget
    if request.reasoning is None or state is None or (budget is None and filters.grammar is None):
        return None
    if isinstance(request.sampling, WholeGrammarSampling):
        return None
    return Thinking(target, request.reasoning, len(request.prompt), state, budget)
