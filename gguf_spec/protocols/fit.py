"""Requests fitted to a model: grammar, token ids, newest messages; and its generations in turn."""

from __future__ import annotations

import bisect
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, Protocol

from ..errors import Option, OptionConflictError, PromptTooLongError
from ..grammar.json_schema import Dropped, dropping, to_gbnf
from ..options import Sampling, WholeGrammarSampling, well_formed
from ..results import Completion, OnProgress, TokenLogprob
from ..tools.families import HARMONY, family_of
from ..tools.grammar import DroppedBy, ToolSchemaError, Unenforced, tool_grammar
from .bodies import SEEDS, StrictSchema
from .errors import client_closed, invalid_value
from .events import TokenInfo, Why, info_of
from .model import Answer_co, Message, Model, ModelFacts, TemplateOptions, Tokens
from .request import CompletionRequest, Conversation, Text


def seed_of(seed: int, i: int) -> int:
    """Return the seed of choice `i`; a request for one choice with it gives the same text."""
    return (seed + i) % SEEDS


NOT_SEEN = "[an image that this model cannot see]"


def seen(messages: Conversation, facts: ModelFacts) -> Conversation:
    """Return messages with a text for each image that a model cannot see.

    Images of the question itself stay: without them the answer would be about something else.
    """
    if facts.can_see or all(isinstance(one["content"], str) for one in messages):
        return messages
    last = max((i for i, one in enumerate(messages) if one["role"] == "assistant"), default=-1)
    return [
        one
        if isinstance(one["content"], str) or (one["role"] == "user" and i > last)
        else {**one, "content": "".join(part.get("text", NOT_SEEN) for part in one["content"])}
        for i, one in enumerate(messages)
    ]


def joined(text: Text, model: Model[object]) -> str | list[int]:
    """Return an array of token ids and texts as token ids; a text as it is."""
    if isinstance(text, str):
        return text
    ids = [one for one in text if not isinstance(one, str)]
    if len(ids) == len(text):
        return ids
    tokens: list[int] = []
    for i, one in enumerate(text):
        if isinstance(one, str):
            most = max(0, model.n_ctx - len(tokens))
            tokens += model.vocabulary.tokenize(one, special=True, start=i == 0, most=most)
        else:
            tokens.append(one)
    return tokens


def newest_that_fit(
    model: Model[object],
    messages: Conversation,
    max_tokens: int | None,
    options: TemplateOptions,
) -> list[Message]:
    """Return the messages without the oldest turns, so that prompt and answer fit.

    A turn begins with a message of the user. The messages of the system before the first turn and
    the last turn are always kept.
    """
    room = _prompt_room(model, max_tokens)
    n_system = next((i for i, m in enumerate(messages) if m["role"] != "system"), len(messages))
    turns = [i for i, m in enumerate(messages) if m["role"] == "user" and i > n_system]
    starts = [n_system, *turns]

    def kept(i: int) -> list[Message]:
        return [*messages[:n_system], *messages[starts[i] :]]

    def fits(i: int) -> bool:
        return _fits(lambda: model.tokenize(kept(i), most=room, **options))

    last = len(starts) - 1
    return kept(bisect.bisect_left(range(last), True, key=fits))


def _fits(tokenize: Callable[[], object]) -> bool:
    try:
        tokenize()
    except PromptTooLongError:
        return False
    return True


def _prompt_room(facts: ModelFacts, max_tokens: int | None) -> int:
    """Return the most tokens of a prompt; the answer gets at most half of the context."""
    return facts.n_ctx - min(max_tokens or facts.n_ctx // 4, facts.n_ctx // 2)


def infill_prompt(
    model: Model[object], prefix: str, request: CompletionRequest, grows: bool = False
) -> list[int]:
    """Return the prompt for filling in behind `prefix`, with as many of the last files as fit.

    Where a longer context can be had (`grows`) no file is left out: a prompt that is too long
    raises `PromptTooLongError`.
    """
    files, room = request.files, _prompt_room(model, request.sampling.max_tokens)

    def prompt(i: int, most: int) -> list[int]:
        return model.tokenize_infill(prefix, request.suffix or "", files[i:], most=most)

    def fits(i: int) -> bool:
        return _fits(lambda: prompt(i, room))

    if files and grows:
        prompt(0, room)
    return prompt(bisect.bisect_left(range(len(files)), True, key=fits), model.n_ctx - 1)


class Open(Protocol[Answer_co]):
    """Starts a generation; `on_prompt` is called after each pass that reads the prompt."""

    def __call__(self, on_prompt: OnProgress | None = None) -> Answer_co: ...


@dataclass(frozen=True)
class Choice(Generic[Answer_co]):
    """One generation of a request.

    Attributes:
        seed: Its seed; 0 if the generation draws one.
        open: Starts the generation.
        unenforced: As in `CompletionRequest`.
    """

    index: int
    seed: int
    sampling: Sampling
    open: Open[Answer_co]
    unenforced: Unenforced | None = None

    def faults(self, result: Completion, facts: ModelFacts) -> list[str]:
        """Return what an answer does not fulfil of the schemas that are not enforced whole."""
        if self.unenforced is None:
            return []
        found = self.unenforced.faults(result.text, family_of(facts.chat_template or ""))
        return [f"{name}{':' if name else ''}{fault}" for name, fault in found]


def _thinks(options: TemplateOptions) -> bool:
    values = options["chat_template_kwargs"] or {}
    return options["think"] is not False and values.get("enable_thinking") is not False


def requests_of(
    request: CompletionRequest,
    model: Model[Answer_co],
    why: Callable[[], Why | None] = lambda: None,
    grows: bool = False,
) -> Iterator[Choice[Answer_co]]:
    """Yield the generations of a request: all choices of the first prompt, then of the next.

    Args:
        why: Returns the reason if the request is cancelled.
        grows: Whether a longer context can be had, so that nothing is left out.

    Raises:
        ApiError: The grammar for tool calls cannot be made.
        PromptTooLongError: `grows`, and the messages or one of several prompts are too long.
    """
    request = with_biases(with_grammar(request, model), model)
    request = request.fit(request, model) if request.fit else request
    sampling = sampling_of(request, model)
    options = request.reasoning.options(model, request.tools)
    messages = _fitting(request, model, sampling.max_tokens, options, grows)
    options = _as_begun(request, sampling, options)
    if sampling.seed is None and request.n_choices > 1:
        sampling = replace(sampling, seed=secrets.randbits(32))
    first = sampling.seed or 0

    def begin(
        prompt: str | list[int] | Conversation,
        sampling: Sampling,
        on_prompt: OnProgress | None = None,
    ) -> Answer_co:
        return model.stream(
            prompt,
            sampling,
            speculation=request.speculation,
            echo=request.echo,
            prefill=request.prefill,
            on_prompt=on_prompt,
            **options,
        )

    def begin_text(
        i: int, text: str | list[int], sampling: Sampling, on_prompt: OnProgress | None = None
    ) -> Answer_co:
        _score(request, i, text, model, why)
        if request.suffix is not None and isinstance(text, str):
            text = infill_prompt(model, text, request, grows)
        return begin(text, sampling, on_prompt)

    _check_room(request.texts[1:] if grows else (), model)  # before the first one is answered
    for index in range(request.n_choices):
        if sampling.seed is not None:
            sampling = replace(sampling, seed=seed_of(first, index % request.n))
        begun: Open[Answer_co]
        if messages is None:
            i = index // request.n
            begun = partial(begin_text, i, joined(request.texts[i], model), sampling)
        else:
            begun = partial(begin, messages, sampling)
        yield Choice(index, sampling.seed or 0, sampling, begun, request.unenforced)


def _fitting(
    request: CompletionRequest,
    model: Model[object],
    max_tokens: int | None,
    options: TemplateOptions,
    grows: bool,
) -> Conversation | None:
    """Return the messages of a chat as a model can read them; None for a text."""
    if request.messages is None:
        return None
    messages = seen(request.messages, model)
    if not request.drops_oldest:
        return messages
    if grows:
        model.tokenize(messages, most=_prompt_room(model, max_tokens), **options)
    return newest_that_fit(model, messages, max_tokens, options)


def _as_begun(
    request: CompletionRequest, sampling: Sampling, options: TemplateOptions
) -> TemplateOptions:
    """Return the options without a reasoning that cannot come any more."""
    think, values = options["think"], options["chat_template_kwargs"]
    if isinstance(sampling, WholeGrammarSampling) and not _thinks(options):
        # The grammar allows no reasoning, and an answer that has begun could not call.
        think = None
        values = {name: one for name, one in (values or {}).items() if name != "enable_thinking"}
    if request.prefill and think:
        think = None  # the answer has begun
    return {**options, "think": think, "chat_template_kwargs": values}


def _check_room(texts: Sequence[Text], model: Model[object]) -> None:
    for one in texts:
        ids = joined(one, model)
        ids = model.tokenize(ids, most=model.n_ctx - 1) if isinstance(ids, str) else ids
        if len(ids) >= model.n_ctx:
            raise PromptTooLongError(len(ids), model.n_ctx, n_ctx_limit=model.n_ctx_limit)


def _score(
    request: CompletionRequest,
    i: int,
    text: str | list[int],
    model: Model[object],
    why: Callable[[], Why | None],
) -> None:
    """Keep the scores of a prompt, if a request asks for them; raise where it is cancelled."""

    def check(_: object) -> None:
        if why():
            raise client_closed()

    if request.n_scored is not None and i not in request.scores:
        request.scores[i] = scored(model, text, request.n_scored, check)


def sampling_of(request: CompletionRequest, facts: ModelFacts) -> Sampling:
    """Return the sampling options of a request, with those of the model that it does not have."""
    sampling, names = request.sampling, facts.sampling_sources.keys() - request.given
    held = {name: getattr(facts.sampling, name) for name in names}
    budget = request.reasoning.budget
    if budget is not None and facts.can_think:
        held["think_budget"] = None if budget < 0 else budget
    return replace(sampling, **held) if held else sampling


def with_biases(request: CompletionRequest, tokens: Tokens) -> CompletionRequest:
    """Return a request with the biases of texts as those of their tokens."""
    if not request.biases:
        return request
    biases = dict(request.sampling.logit_bias)
    for text, bias in request.biases:
        biases |= dict.fromkeys(tokens.vocabulary.tokenize(text, special=True, start=False), bias)
    return replace(request, sampling=replace(request.sampling, logit_bias=biases), biases=())


def with_grammar(request: CompletionRequest, model: Model[object]) -> CompletionRequest:
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
    family = family_of(model.chat_template or "")

    def control_token(text: str) -> int | None:
        """Return the id of a control token, whose text does not appear in answers, or None."""
        ids = model.vocabulary.tokenize(text, special=True, start=False)
        return ids[0] if len(ids) == 1 and not model.token_bytes(ids[0]) else None

    try:
        thinks = _thinks(request.reasoning.options(model, use))
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
    if family.name != HARMONY or not model.can_think:
        return replace(request, sampling=sampling)
    if sampling.think_budget is not None:
        raise OptionConflictError(Option("think_budget"), Option("tools"))
    return replace(request, sampling=WholeGrammarSampling(**vars(sampling)))


def scored(
    model: Model[object], prompt: str | Sequence[int], n_top: int, on_pass: OnProgress
) -> tuple[TokenInfo, ...]:
    """Return the tokens of a prompt with log-probabilities; that of the first one is 0.

    The bytes of a token are those that the text of the prompt has: none for a start token.
    """
    ids = model.tokenize(prompt, most=model.n_ctx - 1) if isinstance(prompt, str) else prompt
    rows = [TokenLogprob(ids[0], 0.0), *model.score(ids, n_top, on_pass=on_pass)] if ids else []
    rest = well_formed(prompt).encode() if isinstance(prompt, str) else None
    found = []
    for row in rows:
        info = info_of(model, row)
        piece = model.token_bytes(row.token)
        if rest is not None:  # the tokenizer may add a space in front
            piece = next((x for x in (info.piece, piece.lstrip(b" ")) if rest.startswith(x)), piece)
            rest = rest[len(piece) :]
        found.append(replace(info, piece=piece))
    return tuple(found)
