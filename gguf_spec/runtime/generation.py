"""A generation: the request, its state, its statistics, and the rounds as chunks of text."""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeGuard, TypeVar, cast

from ..errors import EmptyPromptError, InvalidOptionError, PromptTooLongError
from ..llama.model import Model
from ..options import Sampling, Speculation
from ..results import Chunk, FinishReason, OnProgress, Part, Progress, Stats, TokenLogprob
from ..sampling.chain import CompatSampling, Filters, Sampler, WholeGrammarSampling
from ..sampling.filters import make_filters
from ..sampling.rng import SeededRng
from ..speculative import engine
from ..speculative.acceptance import RULES
from ..speculative.controller import DraftController
from ..speculative.drafters import NoDrafter
from ..speculative.engine import Round
from ..speculative.interfaces import LanguageModel, retain_prefix
from ..speculative.pair import ModelPair
from ..speculative.scheduler import SlotPair
from ..text.chat_template import Message, PromptOptions, check_text, encode_chat, no_reasoning
from ..text.detokenizer import PartStream, joined, text_of
from ..text.reasoning import ReasoningFormat, State, Thinking, reasoning_format
from ..text.tool_history import call_tokens
from .images import GivenImage, check_ids, encode_with_images, with_images
from .prefix_cache import PrefixStore

Prompt = str | Sequence[int] | Sequence[Message]
T = TypeVar("T")

# The name is documented.
_LOG = logging.getLogger("gguf_spec.runtime.stats_recorder")

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


def build_request(
    target: Model,
    prompt: Prompt,
    sampling: Sampling,
    speculation: Speculation,
    options: PromptOptions,
    *,
    images: Sequence[GivenImage],
    echo: bool,
    stop_tokens: Iterable[int],
    on_token: Callable[[int], object] | None,
    on_prompt: OnProgress | None,
    reasoning: bool | None,
) -> Request:
    """Return the request of the arguments of `LLM.generate`, which describes them.

    Raises:
        InvalidOptionError: The options contradict each other, the prompt, or the model.
        TemplateError: The prompt is messages, and the model's chat template rejects them.
    """
    if _is_text(prompt):
        tokens = encode(target, prompt, options, images=images)
    elif images:
        check_text(options)
        raise InvalidOptionError("images", len(images), "given with a text or with messages")
    else:
        check_text(options)
        tokens = with_images(cast("Sequence[int]", prompt), target)
    is_chat = _is_text(prompt) and not isinstance(prompt, str)
    if more := tuple(stop_tokens):
        sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *more))
    separated = reasoning_format(target) if is_chat or reasoning else None
    if sampling.think_budget is not None and separated is None:
        raise no_reasoning(
            target, "think_budget", sampling.think_budget, is_chat or bool(reasoning)
        )
    shown = (prompt if isinstance(prompt, str) else "") + options.prefill
    return Request(
        tokens,
        sampling,
        speculation,
        on_token,
        options.prefill,
        shown if echo else "",
        on_prompt,
        separated if reasoning is not False else None,
        call_tokens(target) if options.tools else {},
    )


def encode(
    target: Model,
    prompt: str | Sequence[Message],
    options: PromptOptions,
    *,
    special: bool = True,
    images: Sequence[GivenImage] = (),
) -> list[int]:
    """Return the token ids of a text or messages; none for an empty prompt.

    Args:
        target: The model.
        prompt: A text, or messages for its chat template.
        options: Prefill, and for messages tools and variables of the template.
        special: Parse strings such as `<|im_end|>` in a text as special tokens.
        images: Images besides those of the messages.
    """

    def encode_texts(target: Model, prompt: str | Sequence[Message]) -> list[int]:
        if not isinstance(prompt, str):
            return encode_chat(target, prompt, options) if prompt else []
        check_text(options)
        text = prompt + options.prefill
        return target.tokenize(text, special=special) if text else []

    return encode_with_images(target, prompt, images, encode_texts)


def _is_text(prompt: Prompt) -> TypeGuard[str | Sequence[Message]]:
    """Return whether a prompt is a text or messages; an empty sequence is token ids."""
    return isinstance(prompt, str) or any(isinstance(one, (Mapping, str)) for one in prompt[:1])


def check_request(request: Request, target: Model) -> None:
    """Reject a request that cannot run, before any pass runs.

    Raises:
        EmptyPromptError, PromptTooLongError, InvalidOptionError: With the actual values.
    """
    if not request.prompt:
        raise EmptyPromptError
    if len(request.prompt) >= target.n_ctx:
        raise PromptTooLongError(len(request.prompt), target.n_ctx)
    sampling = request.sampling
    for option, tokens in (
        ("prompt", check_ids(request.prompt)),
        ("stop_tokens", sampling.stop_tokens),
        ("logit_bias", sampling.logit_bias),
    ):
        for token in tokens:
            if not (isinstance(token, int) and 0 <= token < target.n_vocab):
                raise InvalidOptionError(option, token, f"an id from 0 to {target.n_vocab - 1}")


class StatsRecorder:
    """Token counts and times of a stream: time inside the models, and total running time.

    Attributes:
        stats: Counts and times after the last round.
    """

    def __init__(self, n_prompt: int) -> None:
        """Create the stats of a stream over a prompt of `n_prompt` tokens."""
        self.stats = Stats(n_prompt=n_prompt)
        self._models: tuple[LanguageModel | None, ...] = ()
        self._busy: tuple[float, ...] = (0.0, 0.0)
        self._since = self._total_s = self._prompt_s = 0.0
        self._is_read = False
        self._logs = _LOG.isEnabledFor(logging.DEBUG)  # asked once per request

    def start(self, target: LanguageModel, draft: LanguageModel | None) -> None:
        """Begin timing.

        Args:
            target: The model that decides.
            draft: The draft model, or None.
        """
        self._models = (draft, target)
        self._busy = self._busy_now()
        self.resume()

    def resume(self) -> None:
        """Continue timing after the caller has processed a chunk."""
        self._since = time.perf_counter()

    def prompt_is_read(self, n_cached: int) -> None:
        """Count all time so far as prefill time; a later prefill counts as generation time.

        Args:
            n_cached: Number of tokens that the cache had before.
        """
        if self._is_read:
            return
        self._is_read = True
        self.stats = replace(self.stats, n_cached=n_cached)
        self._pause()
        self._prompt_s, self._busy = self._total_s, self._busy_now()
        self.resume()

    def round_is_done(
        self, one: Round, n_emitted: int, drafter: DraftController | NoDrafter
    ) -> None:
        """Add a round to the stats, and pause timing until `resume`.

        Args:
            one: The round.
            n_emitted: Number of its tokens that were emitted.
            drafter: The drafter of the round.
        """
        self._pause()
        old = self.stats
        controller = drafter if isinstance(drafter, DraftController) else None
        draft_s, verify_s = (
            now - before for now, before in zip(self._busy_now(), self._busy, strict=True)
        )
        self.stats = replace(
            old,
            n_generated=old.n_generated + n_emitted,
            n_drafted=old.n_drafted + one.n_drafted,
            n_accepted=old.n_accepted + one.n_accepted,
            n_near_ties=old.n_near_ties + sum(i < n_emitted for i in one.near_ties),
            n_decided_again=old.n_decided_again + one.decided_again,
            rounds=old.rounds + 1,
            prompt_s=self._prompt_s,
            draft_s=draft_s,
            verify_s=verify_s,
            other_s=self._total_s - self._prompt_s - draft_s - verify_s,
            ttft_s=old.ttft_s or self._total_s,
            total_s=self._total_s,
            forecast_s=controller.forecast.rounds_s if controller else 0.0,
            plain_s=controller.forecast.plain_s if controller else 0.0,
            drafters=dict(controller.counts) if controller else {},
            why_none=drafter.why_none,
        )
        if self._logs:
            _log_round(old, self.stats)

    def _pause(self) -> None:
        self._total_s += time.perf_counter() - self._since

    def _busy_now(self) -> tuple[float, ...]:
        return tuple(model.busy_s if model else 0.0 for model in self._models)


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

    def run(self, slots: SlotPair) -> Generator[Chunk, None, None]:
        """Yield one chunk per round.

        Args:
            slots: The caches that the request uses.
        """
        request, target = self._request, slots.target
        # Other requests make passes of any width.
        rule = self._rule._replace(wide_past=self._target.parallel > 1)
        k, recorder = self._pair.most_drafted(request.speculation), self._recorder
        recorder.start(target, slots.draft)
        drafter: DraftController | NoDrafter | None = None
        for begin, chain in self._contexts():
            n_left = request.sampling.max_tokens and request.sampling.max_tokens - len(self.tokens)
            drafter = self._pair.drafter(
                request.speculation, chain, n_left or target.n_ctx, slots, drafter
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
        slots: SlotPair,
        drafter: DraftController | NoDrafter,
        begin: Sequence[int],
        k: int,
    ) -> int:
        """Read the prompt, or the text that follows a context shift; return how much was cached."""
        target, tokens = slots.target, begin[:-1]
        if target.parallel == 1:  # several were prepared with the choice of the slots
            self._kept.use(slots, tokens)
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
