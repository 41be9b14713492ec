"""Reasoning of a model: the parser that separates it from the answer, its tags, and its budget.

A parser is pure: `read(state, text)` returns the next state and the parts of the text. Tags may be
cut anywhere. A state depends only on the text so far, so it can be kept and used again, as for
draft tokens that are rolled back.

Special tokens without text, such as `<|channel|>`, are written as `MARK` and their name. The same
name in plain text is therefore not a tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from ..results import Part
from ..vocabulary import Vocabulary, common, n_open

MARK = "\ufdd0"  # a noncharacter, before the name of a special token
_CHANNEL, _MESSAGE = f"{MARK}<|channel|>", f"{MARK}<|message|>"
_ENDS = tuple(f"{MARK}{name}" for name in ("<|end|>", "<|return|>", "<|call|>", "<|start|>"))
_IGNORED = (_MESSAGE, f"{MARK}<|constrain|>")
_TOKENS = (_CHANNEL, *_ENDS, *_IGNORED)

Phase = Literal["start", "reasoning", "after", "text", "header", "call"]
# opening tag, closing tag, and text that ends a part and begins the answer
_TAGS = (
    ("<think>", "</think>", "\n</think>\n\n"),
    ("<seed:think>", "</seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>", "\n<channel|>"),
)
_SPECIAL = re.compile(r"<\|?[^<>\s]+?\|?>|\[/?[A-Z]+\]")
# Fields in which templates expect the reasoning of earlier messages.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Characters of a prompt's end in which its last tag lies.
_TAIL = 200


class State(NamedTuple):
    """State of a parser.

    Attributes:
        phase: `start` (nothing but white space yet), `reasoning`, `after` (a reasoning part has
            ended, and only white space follows), `text` (the answer), and for channels `header`
            and `call` (the arguments of a tool call).
        held: Text whose kind is not known yet.
        begun: Whether the current reasoning part has text; in the phase `start`, whether the prompt
            has closed a part, so that white space before the answer is dropped.
        spoke: Kinds of parts so far.
    """

    phase: Phase
    held: str = ""
    begun: bool = False
    spoke: frozenset[str] = frozenset()

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning, unless it is a tag."""
        return self.phase == "reasoning"

    @property
    def is_answer(self) -> bool:
        """Whether the next text belongs to the answer, unless it is a tag."""
        return self.phase in ("start", "after", "text")


@dataclass(frozen=True)
class TagSyntax:
    """Reasoning between two tags at the beginning of an answer, such as `<think>` and `</think>`.

    White space around the reasoning is dropped. An answer that does not begin with the opening tag
    is not changed, nor are later tags.

    Attributes:
        end: Text that ends an open reasoning part and begins the answer.
    """

    open: str
    close: str
    end: str

    def begin(self, tail: str, prefill: str = "") -> State:
        """Return the state after a prompt with this end; the prompt may have opened a part."""
        before = tail.removesuffix(prefill).rstrip()
        inside, closed = before.endswith(self.open), before.endswith(self.close)
        state = State("reasoning") if inside else State("start", begun=closed)
        return self.read(state, prefill)[0]

    def skip(self, prompt: str, force: bool) -> str:
        """Return the text after `prompt` with which an answer without reasoning begins.

        `force` prevents reasoning that the prompt has not opened.
        """
        opened, closed = (tag.replace(MARK, "") for tag in (self.open, self.close))
        ending, prompt = self.end.replace(MARK, ""), prompt.rstrip()
        if prompt.endswith(opened):
            return ending
        return f"{opened}\n{ending}" if force and not prompt.endswith(closed) else ""

    def read(self, state: State, text: str) -> tuple[State, list[Part]]:
        """Return the next state, and the parts that `text` completes."""
        phase, held, begun = state.phase, state.held + text, state.begun
        parts: list[Part] = []
        if phase == "start":
            core = held.lstrip()
            if core.startswith(self.open):
                phase, held, begun = "reasoning", core[len(self.open) :], False
            elif self.open.startswith(core):
                return State("start", held, begun), []
            else:
                phase, held = "text", core if begun else held
        if phase == "reasoning":
            held = held if begun else held.lstrip()
            at = held.find(self.close)
            n = at if at >= 0 else len(held) - n_open(held, [self.close])
            whole = held[:n].rstrip()
            parts = self._emitted("reasoning", whole)
            if at < 0:
                return State("reasoning", held[len(whole) :], begun or bool(whole)), parts
            phase, held = "after", held[at + len(self.close) :]
        if phase == "after":
            held = held.lstrip()
            phase = "text" if held else "after"
        return State(phase), [*parts, *self._emitted("text", held)]

    def finish(self, state: State) -> list[Part]:
        """Return the text that was held back."""
        if state.is_reasoning:
            held = state.held.rstrip()
            return self._emitted("reasoning", held if state.begun else held.lstrip())
        return self._emitted("text", state.held.lstrip() if state.begun else state.held)

    def _emitted(self, kind: Literal["reasoning", "text"], text: str) -> list[Part]:
        """Return a text as parts; a mark that no tag has is the model's own character."""
        return _parts(kind, text.replace(MARK, "") if MARK in self.open + self.close else text)


@dataclass(frozen=True)
class ChannelSyntax:
    """Channels of gpt-oss (harmony): `analysis` is reasoning, all others are the answer.

    A call of a function stays in the text with the names of its special tokens, in one form:
    `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`. The methods are
    those of `TagSyntax`.
    """

    end: str = f"{_ENDS[0]}{_ENDS[3]}assistant{_CHANNEL}final{_MESSAGE}"

    def begin(self, tail: str, prefill: str = "") -> State:
        header, found, rest = tail.removesuffix(prefill).rpartition(_ENDS[3])
        state, _ = self.read(State("header"), rest if found else header)
        if state.phase == "header":
            state = State("header")  # the template wrote the role
        return self.read(state, prefill)[0]

    def skip(self, prompt: str, _force: bool) -> str:
        begins = prompt.endswith("<|start|>assistant")
        return "<|channel|>final<|message|>" if begins else ""

    def read(self, state: State, text: str) -> tuple[State, list[Part]]:
        parts: list[Part] = []
        state = state._replace(held=state.held + text)
        while True:
            kind: Literal["reasoning", "text"] = "reasoning" if state.is_reasoning else "text"
            after, part = (self._header if state.phase == "header" else self._body)(state)
            if part:
                parts.append(Part(kind, part))
                after = after._replace(spoke=after.spoke | {kind})
            if after == state:
                return state, parts
            state = after

    def finish(self, state: State) -> list[Part]:
        """Return the text that was held back; an incomplete header is dropped.

        In other phases white space is held back, or the beginning of a token.
        """
        plain = state.phase == "header" and not state.spoke and MARK not in state.held
        return _parts("text", state.held if plain else "")

    def _header(self, state: State) -> tuple[State, str]:
        """Return the state after a header, and the text of a call; the same state for a part."""
        words = state.held.partition(MARK)[0].split()
        if not all("assistant".startswith(one) or "to=".startswith(one[:3]) for one in words):
            return state._replace(phase="text"), ""
        header, found, rest = state.held.partition(_MESSAGE)
        if not found:
            return state, ""
        channel = "".join(re.findall(r"<\|channel\|>\s*(\w+)", header)[:1])
        recipient = re.search(r"to=([\w.-]+)", header)
        if recipient and (recipient[1].startswith("functions.") or channel == "commentary"):
            call = f"<|channel|>commentary to={recipient[1]} <|constrain|>json<|message|>"
            text = _separated("text", state, call)
            return state._replace(phase="call", held=rest, begun=False), text
        phase: Phase = "reasoning" if channel == "analysis" else "text"
        return state._replace(phase=phase, held=rest, begun=False), ""

    def _body(self, state: State) -> tuple[State, str]:
        """Return the state after a text or a token, and the text."""
        begin, mark, rest = state.held.partition(MARK)
        if begin:
            whole = begin
            if state.is_reasoning:
                begin = begin if state.begun else begin.lstrip()
                whole = begin.rstrip()
            kind = "reasoning" if state.is_reasoning else "text"
            part = whole if state.phase == "call" else _separated(kind, state, whole)
            held = mark + rest if mark else begin[len(whole) :]
            return state._replace(held=held, begun=state.begun or bool(whole)), part
        token = next((one for one in _TOKENS if state.held.startswith(one)), None)
        if token is None:
            hold = not mark or any(one.startswith(state.held) for one in _TOKENS)
            return (state if hold else state._replace(held=rest)), ""
        rest = state.held[len(token) :]
        if token in _IGNORED:
            return state._replace(held=rest), ""
        held = token + rest if token == _CHANNEL else rest
        return state._replace(phase="header", held=held, begun=False), ""


Syntax = TagSyntax | ChannelSyntax


def _parts(kind: Literal["reasoning", "text"], text: str) -> list[Part]:
    return [Part(kind, text)] if text else []


def _separated(kind: str, state: State, text: str) -> str:
    """Return a text with an empty line before it if it begins a further part of its kind."""
    return f"\n\n{text}" if text and not state.begun and kind in state.spoke else text


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning parts of one model.

    Attributes:
        shown: Special tokens of the syntax that have no text -> their marked names.
        field: Field of a message in which the template reads its reasoning; None if it has none.
    """

    syntax: Syntax
    shown: Mapping[int, str]
    field: str | None

    def begin(self, model: Vocabulary, prompt: Sequence[int], prefill: str = "") -> State:
        """Return the state of the parser after a prompt that ends with `prefill`."""
        tail, n_most = b"", len(prefill.encode("utf-8", "replace")) + _TAIL
        for token in reversed(prompt):
            name = self.shown.get(token)
            tail = (model.piece(token) if name is None else name.encode()) + tail
            if len(tail) >= n_most:
                break
        return self.syntax.begin(tail.decode("utf-8", "replace"), prefill)

    def end(self, model: Vocabulary) -> list[int]:
        """Return the tokens that end an open reasoning part."""
        text = self.syntax.end.replace(MARK, "")
        return model.tokenize(text, special=True, start=False)


def reasoning_format(model: Vocabulary) -> ReasoningFormat | None:
    """Return the reasoning parts of a model; None if its template has none.

    The template must contain a tag of a known syntax. For the channels of gpt-oss the vocabulary
    must have their special tokens, too.
    """
    template = model.chat_template or ""
    field = next(
        (one for one in REASONING_FIELDS if re.search(rf"\.{one}\b|['\"]{one}['\"]", template)),
        None,
    )
    if "<|channel|>" in template and "<|message|>" in template:
        shown = _special(model, [marked.removeprefix(MARK) for marked in _TOKENS])
        if len(shown) < len(_TOKENS) - 1:  # <|constrain|> is not needed
            return None
        return ReasoningFormat(ChannelSyntax(), shown, field)
    for opened, closed, end in _TAGS:
        if closed in template or opened in template:
            shown = _special(model, _SPECIAL.findall(opened + closed))
            shown = {token: name for token, name in shown.items() if not model.piece(token)}
            tags = [opened, closed, end]
            for name in shown.values():
                tags = [text.replace(name.removeprefix(MARK), name) for text in tags]
            return ReasoningFormat(TagSyntax(*tags), shown, field)
    return None


def spells_special(model: Vocabulary, reasoning: ReasoningFormat | None, text: str) -> bool:
    """Return whether a text contains the name of a special token.

    llama.cpp reads the names of the channel tokens of gpt-oss in every text.
    """
    ids = model.tokenize(text, special=True, start=False)
    if reasoning and any(token in reasoning.shown for token in ids):
        return True
    return ids != model.tokenize(text, special=False, start=False)


def plain_tokens(
    model: Vocabulary, reasoning: ReasoningFormat | None, text: str, start: bool
) -> list[int]:
    """Return the tokens of a text in which no name is a special token."""
    names = [name.removeprefix(MARK) for name in reasoning.shown.values()] if reasoning else []
    # Cut inside of each name, where llama.cpp would read it as a token.
    cut = "|".join(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in names)
    pieces = re.split(cut, text) if cut else [text]
    ids: list[int] = []
    for i, piece in enumerate(pieces):
        ids += model.tokenize(piece, special=False, start=start and i == 0)
    return ids


def _special(model: Vocabulary, names: Iterable[str]) -> dict[int, str]:
    """Return the names that are one token of the vocabulary, marked, by their token."""
    ids = {name: model.tokenize(name, special=True, start=False) for name in names}
    return {found[0]: MARK + name for name, found in ids.items() if len(found) == 1}


class _AfterToken(NamedTuple):
    """State after a token.

    Attributes:
        n: Number of tokens so far.
        n_inside: Those of reasoning.
        n_forced: Those of the forced end; 0 outside of it.
        begin: Those before the answer.
    """

    state: State
    n: int = 0
    n_inside: int = 0
    n_forced: int = 0
    begin: int = 0


class Thinking:
    """Reasoning in the rows of one request; implements `sampling.chain.Reasoning`."""

    def __init__(
        self,
        model: Vocabulary,
        reasoning: ReasoningFormat,
        n_prompt: int,
        state: State,
        budget: int | None,
    ) -> None:
        """Start after a prompt; None as the budget is no limit of reasoning tokens."""
        self._model, self._format, self._n_prompt = model, reasoning, n_prompt
        self._budget = budget
        self._end = reasoning.end(model) if budget is not None else []
        # Tokens of the last history, and the places before the first and after each of them.
        self._path: list[int] = []
        self._places = [_AfterToken(state)]

    def after(self, tokens: Sequence[int]) -> Thinking:
        """Return the reasoning of a context from which the first tokens of the text are dropped."""
        place = self._places[0]
        for token in tokens:
            place = self._step(place, token)
        moved = Thinking(self._model, self._format, self._n_prompt, place.state, self._budget)
        moved._places = [place]
        return moved

    def forced(self, history: Sequence[int]) -> int | None:
        return None if self._budget is None else self._forced(self._place(history))

    def is_answer(self, history: Sequence[int]) -> bool:
        return self._place(history).state.is_answer

    def answer(self, history: Sequence[int]) -> list[int]:
        begin = self._place(history).begin
        return [*history[: self._n_prompt], *history[self._n_prompt + begin :]]

    def forbidden(self, history: Sequence[int]) -> list[int]:
        """Return the tokens that end the reasoning and contain the beginning of the answer.

        A grammar could not check that beginning.
        """
        state, syntax = self._place(history).state, self._format.syntax
        return [
            token
            for token, text in self._ending
            if any(part.kind == "text" for part in syntax.read(state, text)[1])
        ]

    def _forced(self, place: _AfterToken) -> int | None:
        if place.n_forced:
            return self._end[place.n_forced]
        is_used = place.state.is_reasoning and place.n_inside >= (self._budget or 0)
        return self._end[0] if is_used else None

    def _step(self, place: _AfterToken, token: int) -> _AfterToken:
        state, _ = self._format.syntax.read(place.state, self._text(token))
        is_forced = self._budget is not None and token == self._forced(place)
        is_before = is_forced or not (place.state.is_answer and state.is_answer)
        return _AfterToken(
            state,
            place.n + 1,
            place.n_inside + (place.state.is_reasoning and state.is_reasoning),
            (place.n_forced + 1) % len(self._end) if is_forced else 0,
            place.n + 1 if is_before else place.begin,
        )

    def _place(self, history: Sequence[int]) -> _AfterToken:
        path = list(history[self._n_prompt :])
        n = common(path, self._path)
        del self._places[n + 1 :]
        for token in path[n:]:
            self._places.append(self._step(self._places[-1], token))
        self._path = path
        return self._places[-1]

    def _text(self, token: int) -> str:
        """Return the text of a token, one character for each byte: tags are ASCII."""
        name = self._format.shown.get(token)
        return self._model.piece(token).decode("latin-1") if name is None else name

    @cached_property
    def _ending(self) -> list[tuple[int, str]]:
        """Tokens with more text after the end of a closing tag, and their texts."""
        if isinstance(self._format.syntax, ChannelSyntax):
            return []  # its tags are tokens of their own
        last = self._format.syntax.close[-1]
        texts = ((token, self._text(token)) for token in range(self._model.n_vocab))
        return [(token, text) for token, text in texts if text.partition(last)[2].strip()]
