"""Jobs of the worker: a request with its choices, and the queue of events for its client."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..errors import Option, OptionConflictError, PromptTooLongError
from ..grammar.json_schema import Dropped, dropping, to_gbnf
from ..results import Completion, Stats
from ..sampling.chain import WholeGrammarSampling
from ..tools.families import HARMONY, family_of
from ..tools.grammar import DroppedBy, ToolSchemaError, Unenforced, tool_grammar
from .errors import LOG, as_refusal, client_closed, invalid_value, shutting_down, too_slow
from .events import ChoiceEnded, Done, ErrorEvent, Event, Why, scored
from .fields import NOTED
from .model_pool import ServedModel
from .requests import CompletionRequest, StrictSchema, joined, seed_of, seen

if TYPE_CHECKING:
    from ..options import Sampling
    from ..results import OnProgress
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream

Message = dict[str, Any]
JOB = "gguf_spec.job"  # key of the job of a request in its ASGI scope


def newest_that_fit(
    llm: LLM, messages: Sequence[Message], max_tokens: int | None, **options: Any
) -> list[Message]:
    """Return the messages without the oldest turns, so that prompt and answer fit.

    A turn begins with a message of the user. The messages of the system before the first turn and
    the last turn are always kept. `options` are those of `LLM.tokenize`.
    """
    room = _prompt_room(llm, max_tokens)
    n_system = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > n_system]
    starts = [n_system, *turns]

    def kept(i: int) -> list[Message]:
        return [*messages[:n_system], *messages[starts[i] :]]

    def fits(i: int) -> bool:
        return _fits(lambda: llm.tokenize(kept(i), most=room, **options))

    last = len(starts) - 1
    return kept(bisect.bisect_left(range(last), True, key=fits))


def _fits(tokenize: Callable[[], object]) -> bool:
    try:
        tokenize()
    except PromptTooLongError:
        return False
    return True


def _prompt_room(llm: LLM, max_tokens: int | None) -> int:
    """Return the most tokens of a prompt; the answer gets at most half of the context."""
    return llm.n_ctx - min(max_tokens or llm.n_ctx // 4, llm.n_ctx // 2)


def infill_prompt(
    llm: LLM, prefix: str, request: CompletionRequest, grows: bool = False
) -> list[int]:
    """Return the prompt for filling in behind `prefix`, with as many of the last files as fit.

    Where a longer context can be had (`grows`) no file is left out: a prompt that is too long
    raises `PromptTooLongError`.
    """
    files, room = request.files, _prompt_room(llm, request.sampling.max_tokens)

    def prompt(i: int, most: int) -> list[int]:
        return llm.tokenize_infill(prefix, request.suffix or "", files[i:], most=most)

    def fits(i: int) -> bool:
        return _fits(lambda: prompt(i, room))

    if files and grows:
        prompt(0, room)
    return prompt(bisect.bisect_left(range(len(files)), True, key=fits), llm.n_ctx - 1)


@dataclass(frozen=True)
class Choice:
    """One generation of a request.

    Attributes:
        seed: Its seed; 0 if the generation draws one.
        open: Starts the generation. Its argument is called after each pass that reads the prompt.
        unenforced: As in `CompletionRequest`.
    """

    index: int
    seed: int
    sampling: Sampling
    open: Callable[..., Stream]
    unenforced: Unenforced | None = None

    def faults(self, result: Completion, llm: LLM) -> list[str]:
        """Return what an answer does not fulfil of the schemas that are not enforced whole."""
        if self.unenforced is None:
            return []
        found = self.unenforced.faults(result.text, family_of(llm.chat_template or ""))
        return [f"{name}{':' if name else ''}{fault}" for name, fault in found]


def _thinks(options: Mapping[str, Any]) -> bool:
    values = options["chat_template_kwargs"] or {}
    return options["think"] is not False and values.get("enable_thinking") is not False


def requests_of(
    request: CompletionRequest,
    llm: LLM,
    why: Callable[[], Why | None] = lambda: None,
    grows: bool = False,
) -> Iterator[Choice]:
    """Yield the generations of a request: all choices of the first prompt, then of the next.

    Args:
        why: Returns the reason if the request is cancelled.
        grows: Whether a longer context can be had, so that nothing is left out.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        PromptTooLongError: `grows`, and the messages or one of several prompts are too long.
    """
    request = with_biases(with_grammar(request, llm), llm)
    request = request.fit(request, llm) if request.fit else request
    sampling, tools = _sampling_of(request, llm), request.tools.tools or None
    options = request.reasoning.options(llm) | {"tools": tools}
    if request.operation == "chat":
        request = replace(request, prompts=tuple(seen(one, llm) for one in request.prompts))
    if request.drops_oldest:
        if grows:
            llm.tokenize(request.prompts[0], most=_prompt_room(llm, sampling.max_tokens), **options)
        fitting = newest_that_fit(llm, request.prompts[0], sampling.max_tokens, **options)
        request = replace(request, prompts=(fitting,))
    if isinstance(sampling, WholeGrammarSampling) and not _thinks(options):
        # The grammar allows no reasoning, and an answer that has begun could not call.
        options["think"] = None
        (options["chat_template_kwargs"] or {}).pop("enable_thinking", None)
    if request.prefill and options["think"]:
        options["think"] = None  # the answer has begun
    if sampling.seed is None and request.n_choices > 1:
        sampling = replace(sampling, seed=secrets.randbits(32))
    first = sampling.seed or 0

    def begin(
        i: int, prompt: Any, sampling: Sampling, on_prompt: OnProgress | None = None
    ) -> Stream:
        _score(request, i, prompt, llm, why)
        if request.suffix is not None:
            prompt = infill_prompt(llm, prompt, request, grows)
        return llm.stream(
            prompt,
            sampling,
            speculation=request.speculation,
            echo=request.echo,
            prefill=request.prefill,
            on_prompt=on_prompt,
            **options,
        )

    _check_room(request.prompts[1:] if grows else (), llm)  # before the first one is answered
    for index in range(request.n_choices):
        if sampling.seed is not None:
            sampling = replace(sampling, seed=seed_of(first, index % request.n))
        i = index // request.n
        begun = partial(begin, i, joined(request.prompts[i], llm), sampling)
        yield Choice(index, sampling.seed or 0, sampling, begun, request.unenforced)


def _check_room(prompts: Sequence[Any], llm: LLM) -> None:
    for one in prompts:
        ids = joined(one, llm)
        ids = llm.tokenize(ids, most=llm.n_ctx - 1) if isinstance(ids, str) else ids
        if len(ids) >= llm.n_ctx:
            raise PromptTooLongError(len(ids), llm.n_ctx, n_ctx_limit=llm.n_ctx_limit)


def _score(
    request: CompletionRequest, i: int, prompt: Any, llm: LLM, why: Callable[[], Why | None]
) -> None:
    """Keep the scores of a prompt, if a request asks for them; raise where it is cancelled."""

    def check(_: object) -> None:
        if why():
            raise client_closed()

    if request.n_scored is not None and i not in request.scores:
        request.scores[i] = scored(llm, prompt, request.n_scored, check)


def _sampling_of(request: CompletionRequest, llm: LLM) -> Sampling:
    """Return the sampling options of a request, with those of the model that it does not have."""
    sampling, names = request.sampling, llm.sampling_sources.keys() - request.given
    held = {name: getattr(llm.sampling, name) for name in names}
    budget = request.reasoning.budget
    if budget is not None and llm.can_think:
        held["think_budget"] = None if budget < 0 else budget
    return replace(sampling, **held) if held else sampling


def with_biases(request: CompletionRequest, llm: LLM) -> CompletionRequest:
    """Return a request with the biases of texts as those of their tokens."""
    if not request.biases:
        return request
    biases = dict(request.sampling.logit_bias)
    for text, bias in request.biases:
        biases |= dict.fromkeys(llm.vocabulary.tokenize(text, special=True, start=False), bias)
    return replace(request, sampling=replace(request.sampling, logit_bias=biases), biases=())


def with_grammar(request: CompletionRequest, llm: LLM) -> CompletionRequest:
    """Return a request with the grammar that its schemas demand.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        InvalidOptionError: The schema of the answer cannot be converted.
    """
    if not request.needs_grammar:
        return request
    sampling, use, schema = request.sampling, request.tools, request.sampling.json_schema
    is_strict, dropped = isinstance(schema, StrictSchema), DroppedBy()
    if not use.tools:
        assert schema is not None
        found: list[Dropped] = []
        with dropping(None if is_strict else found):
            gbnf = to_gbnf(schema)
        unenforced = Unenforced({None: found}, use, schema) if found else None
        sampling = replace(sampling, grammar=gbnf, json_schema=None)
        return replace(request, sampling=sampling, unenforced=unenforced)
    family = family_of(llm.chat_template or "")

    def control_token(text: str) -> int | None:
        """Return the id of a control token, whose text does not appear in answers, or None."""
        ids = llm.vocabulary.tokenize(text, special=True, start=False)
        return ids[0] if len(ids) == 1 and not llm.token_bytes(ids[0]) else None

    try:
        thinks = _thinks(request.reasoning.options(llm))
        gbnf = tool_grammar(
            use, family, control_token, schema, thinks=thinks, dropped=dropped, strict=is_strict
        )
    except ToolSchemaError as error:
        if error.tool is None:
            param, reason = "response_format", f"cannot be used: {error.reason}"
        else:
            names = [tool["function"]["name"] for tool in use.tools]
            param = f"tools[{names.index(error.tool)}].function.parameters"
            strict = " with strict" if error.tool in use.strict else ""
            reason = f"cannot be used{strict}: {error.reason}"
        raise invalid_value(param, reason) from None
    sampling = replace(sampling, grammar=gbnf, json_schema=None)
    unenforced = Unenforced(dropped, use, schema) if dropped else None
    request = replace(request, unenforced=unenforced)
    if family.name != HARMONY or not llm.can_think:
        return replace(request, sampling=sampling)
    if sampling.think_budget is not None:
        raise OptionConflictError(Option("think_budget"), Option("tools"))
    return replace(request, sampling=WholeGrammarSampling(**vars(sampling)))


class Job:
    """Request for the worker, with the queue of events for its client.

    Several threads may answer its choices. `post` never waits for the client. Create a job in the
    event loop of the client.

    Attributes:
        request: The request, or a task: a function of the loaded model.
        stats: Statistics of the complete choices.
        n_threads: Number of threads that answer it. The worker changes it.
        last: The last event, to be sent when no thread answers it any more.
        began_s: Time when it was created, by `time.perf_counter`.
        faults: What the answers do not fulfil of the schemas.
        has_started: Whether the first event was sent. From then on other threads may answer further
            choices.
        n_ctx: Length of the context that it waits for, in tokens.
        tried: The longest for which it has waited.
        noted: The list of `fields.NOTED` of its request, for the threads that answer it.
        begins_again: Whether it waits for that context.
        n_bytes: Bytes that its request takes in memory, about.
        limit_s: Its time limit, for the error where nothing was generated within it.
    """

    began_s: float
    begins_again: bool
    failed: bool
    limit_s: float
    model: ServedModel
    n_bytes: int
    n_ctx: int
    noted: list[str] | None
    tried: int

    def __init__(
        self,
        model: ServedModel,
        request: CompletionRequest | Callable[[LLM], Any],
        names: dict[str, str] | None = None,
    ) -> None:
        """Create a job; the `names` of a task are its fields by option, for errors."""
        self.model, self.request = model, request
        self._names = request.names if isinstance(request, CompletionRequest) else names or {}
        # No explicit size limit: the length of the answer bounds the queue.
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.began_s, self.noted = time.perf_counter(), NOTED.get()
        self.why: Why | None = None
        self.stats: list[Stats] = []
        self.unenforced: Unenforced | None = None
        self.faults: list[str] = []
        self.n_threads = 0
        self.last: Event = Done()
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._streams: list[Stream] = []
        # Not the same lock: a choice of a long prompt takes long, and the event loop cancels.
        self._choosing = threading.Lock()
        self._choices: Iterator[Choice] | None = None
        self._llm: LLM | None = None  # for which the choices were made
        self._n_chosen = 0
        self.failed = self.has_started = self.begins_again = False
        self.n_ctx = self.tried = 0
        self.limit_s, self.n_bytes = 0.0, 0
        self._n_ended, self._empty = 0, list[ChoiceEnded]()

    def post(self, event: Event) -> None:
        """Send an event to the event loop. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is no reader
            self._loop.call_soon_threadsafe(self.events.put_nowait, event)

    @property
    def has_more(self) -> bool:
        """Whether a thread can answer a further choice, beside others or after them."""
        if self.why or self.failed or self.begins_again:
            return self.begins_again
        n_choices = self.request.n_choices if isinstance(self.request, CompletionRequest) else 0
        return self.has_started and self._n_chosen < n_choices

    def begin_again(self, n_ctx: int) -> None:
        """Begin again when the context has this length; nothing was sent yet."""
        self.n_ctx, self.tried, self.begins_again = n_ctx, n_ctx, True
        self._choices, self._n_chosen = None, 0

    def next_choice(self, llm: LLM, n_ctx_max: int = 0) -> Choice | None:
        """Return the next choice, or None after the last one or an error."""
        assert isinstance(self.request, CompletionRequest)
        with self._choosing:
            if self.failed or (self.why and self.has_started):
                return None
            if self._choices is None or llm is not self._llm:  # it may have been loaded again
                grows = max(llm.n_ctx, self.tried) < n_ctx_max
                choices = requests_of(self.request, llm, lambda: self.why, grows)
                self._choices, self._llm = islice(choices, self._n_chosen, None), llm
            chosen = next(self._choices, None)
            if chosen and not self._n_chosen:  # a seed that was drawn holds for all
                sampling = replace(self.request.sampling, seed=chosen.sampling.seed)
                given = self.request.given | {"seed"}
                self.request = replace(self.request, sampling=sampling, given=given)
            self._n_chosen += chosen is not None
            return chosen

    def choice_ended(self, ended: ChoiceEnded) -> None:
        """Send the end of a choice; one without a token at the time limit waits for the others."""
        result = ended.result
        is_cut = self.why == "timeout" and result.finish_reason == "cancelled"
        with self._lock:
            if is_cut and not result.stats.n_generated:
                self._empty.append(ended)
                return
            self._n_ended += 1
        self.post(ended)

    def finish(self) -> None:
        """Send the last event; choices of a cancelled job that have not begun are empty.

        At the time limit it is an error if no choice has a token.
        """
        if self.has_started and self._choices and not self.failed:
            left = self._empty
            for choice in self._choices:
                nothing = Completion("", (), "cancelled", choice.seed, Stats())
                left.append(ChoiceEnded(choice.index, nothing, self.why))
            if self.why == "timeout" and left and not self._n_ended:
                self.last, self.failed = ErrorEvent(too_slow(self.limit_s, 408)), True
            else:
                for ended in left:
                    self.post(ended)
        if self.why == "timeout" and not self.failed:
            LOG.warning("An answer ended at the time limit of %g s (--timeout).", self.limit_s)
        self.post(self.last)

    @contextmanager
    def reading(self, stream: Stream) -> Iterator[None]:
        """Let `cancel` and `fail` cancel a stream inside of the block."""
        with self._lock:
            self._streams.append(stream)
            if self.why or self.failed:
                stream.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._streams.remove(stream)

    def cancel(self, why: Why) -> None:
        """Cancel the answer within one round; the first reason is kept."""
        with self._lock:
            self.why = self.why or why
            for stream in self._streams:
                stream.cancel()

    def fail(self, error: Exception) -> None:
        """End the answer with an error; the first one is kept."""
        refusal = shutting_down() if self.why == "shutting_down" else as_refusal(error, self._names)
        with self._lock:
            if not self.failed:
                self.last, self.failed = ErrorEvent(refusal), True
            for stream in self._streams:
                stream.cancel()
