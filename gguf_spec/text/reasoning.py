"""Incremental parser that separates the reasoning of a model from its answer.

A parser is pure: `read(state, text)` returns the next state and the parts of the text. Tags may be
cut anywhere. A state depends only on the text so far, so it can be kept and used again, as for
draft tokens that are rolled back.

Special tokens without text, such as `<|channel|>`, are written as `MARK` and their name. The same
name in plain text is therefore not a tag.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..results import Part

MARK = "\ufdd0"  # a noncharacter, before the name of a special token
_CHANNEL, _MESSAGE = f"{MARK}<|channel|>", f"{MARK}<|message|>"
_ENDS = tuple(f"{MARK}{name}" for name in ("<|end|>", "<|return|>", "<|call|>", "<|start|>"))
_IGNORED = (_MESSAGE, f"{MARK}<|constrain|>")
_TOKENS = (_CHANNEL, *_ENDS, *_IGNORED)

Phase = Literal["start", "reasoning", "after", "text", "header", "call"]


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

    def after(self, phase: Phase, held: str, said: Part, begun: bool = False) -> State:
        """Return the next state, with the kind of the emitted part."""
        spoke = self.spoke | {said.kind} if said.text else self.spoke
        return State(phase, held, begun, spoke)


@dataclass(frozen=True)
class TagSyntax:
    """Reasoning between two tags at the beginning of an answer, such as `<think>` and `</think>`.

    White space around the reasoning is dropped. An answer that does not begin with the opening tag
    is not changed, nor are later tags.

    Attributes:
        open: The opening tag.
        close: The closing tag.
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

        Args:
            prompt: The end of the prompt.
            force: Whether to prevent reasoning that the prompt has not opened.
        """
        opened, closed = (tag.replace(MARK, "") for tag in (self.open, self.close))
        ending, prompt = self.end.replace(MARK, ""), prompt.rstrip()
        if prompt.endswith(opened):
            return ending
        return f"{opened}\n{ending}" if force and not prompt.endswith(closed) else ""

    def read(self, state: State, text: str) -> tuple[State, list[Part]]:
        """Return the next state, and the parts that `text` completes."""
        return _read(self._step, state, text, self._marked)

    def finish(self, state: State) -> list[Part]:
        """Return the text that was held back."""
        if state.is_reasoning:
            held = state.held.rstrip() if state.begun else state.held.strip()
            return _emitted(Part("reasoning", held), self._marked)
        held = "" if state.phase == "after" else state.held
        held = held.lstrip() if state.phase == "start" and state.begun else held
        return _emitted(Part("text", held), self._marked)

    @property
    def _marked(self) -> bool:
        """Whether marks are part of the text; otherwise the character is the model's own."""
        return MARK in self.open + self.close

    def _step(self, state: State) -> tuple[State, Part]:
        if state.is_reasoning:
            return self._reasoning(state)
        if state.phase == "text":
            said = Part("text", state.held)
            return state.after("text", "", said), said
        core, nothing = state.held.lstrip(), Part("text", "")
        if state.phase == "after":
            said = Part("text", core)
            return (state.after("text", "", said) if core else state), said
        if core.startswith(self.open):
            return state.after("reasoning", core[len(self.open) :], nothing), nothing
        if self.open.startswith(core):
            return state, nothing
        said = Part("text", core if state.begun else state.held)
        return state.after("text", "", said), said

    def _reasoning(self, state: State) -> tuple[State, Part]:
        held = state.held if state.begun else state.held.lstrip()
        at = held.find(self.close)
        whole = held[: at if at >= 0 else len(held) - _overlap(held, self.close)].rstrip()
        said = Part("reasoning", whole)
        if at >= 0:
            return state.after("after", held[at + len(self.close) :], said), said
        begun = state.begun or bool(whole)
        return state.after("reasoning", held[len(whole) :], said, begun), said


@dataclass(frozen=True)
class ChannelSyntax:
    """Channels of gpt-oss (harmony): `analysis` is reasoning, all others are the answer.

    A call of a function stays in the text with the names of its special tokens, in one form:
    `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`.

    Attributes:
        end: Text that ends an open reasoning part and begins the answer.
    """

    end: str = "".join(
        (_ENDS[0], _ENDS[3], "assistant", _CHANNEL, "final", _MESSAGE)
    )  # <|end|><|start|>assistant<|channel|>final<|message|>

    def begin(self, tail: str, prefill: str = "") -> State:
        """Return the state after a prompt with this end."""
        header, found, rest = tail.removesuffix(prefill).rpartition(_ENDS[3])
        state, _ = self.read(State("header"), rest if found else header)
        if state.phase == "header":
            state = State("header")  # the template wrote the role
        return self.read(state, prefill)[0]

    def skip(self, prompt: str, _force: bool) -> str:
        """Return the text after `prompt` with which an answer without reasoning begins."""
        begins = prompt.endswith("<|start|>assistant")
        return "<|channel|>final<|message|>" if begins else ""

    def read(self, state: State, text: str) -> tuple[State, list[Part]]:
        """Return the next state, and the parts that `text` completes."""
        return _read(self._step, state, text, marked=True)

    def finish(self, state: State) -> list[Part]:
        """Return the text that was held back; an incomplete header is dropped."""
        if state.phase == "header":
            plain = not state.spoke and MARK not in state.held
            return _emitted(Part("text", state.held if plain else ""), marked=True)
        return []  # white space, or the beginning of a token

    def _step(self, state: State) -> tuple[State, Part]:
        return self._header(state) if state.phase == "header" else self._body(state)

    def _header(self, state: State) -> tuple[State, Part]:
        words = state.held.partition(MARK)[0].split()
        if not all("assistant".startswith(one) or "to=".startswith(one[:3]) for one in words):
            return state._replace(phase="text"), Part("text", "")
        header, found, rest = state.held.partition(_MESSAGE)
        if not found:
            return state, Part("text", "")
        channel = re.search(r"<\|channel\|>\s*(\w+)", header)
        recipient = re.search(r"to=([\w.-]+)", header)
        if recipient and (recipient[1].startswith("functions.") or _names(channel, "commentary")):
            call = f"<|channel|>commentary to={recipient[1]} <|constrain|>json<|message|>"
            said = Part("text", _apart("text", state, call))
            return state.after("call", rest, said), said
        is_reasoning = _names(channel, "analysis")
        nothing = Part("text", "")
        return state.after("reasoning" if is_reasoning else "text", rest, nothing), nothing

    def _body(self, state: State) -> tuple[State, Part]:
        kind: Literal["reasoning", "text"] = "reasoning" if state.is_reasoning else "text"
        begin, mark, rest = state.held.partition(MARK)
        if begin:
            begin = begin if state.begun or not state.is_reasoning else begin.lstrip()
            whole = begin.rstrip() if state.is_reasoning else begin
            spoken = whole if state.phase == "call" else _apart(kind, state, whole)
            said, held = Part(kind, spoken), begin[len(whole) :]
            if mark:
                held = mark + rest
            begun = state.begun or bool(whole)
            return state.after(state.phase, held, said, begun), said
        token = next((one for one in _TOKENS if state.held.startswith(one)), None)
        if token is None:
            hold = not mark or any(one.startswith(state.held) for one in _TOKENS)
            return (state if hold else state._replace(held=rest)), Part("text", "")
        rest = state.held[len(token) :]
        if token in _IGNORED:
            return state._replace(held=rest), Part("text", "")
        nothing = Part("text", "")
        return state.after("header", token + rest if token == _CHANNEL else rest, nothing), nothing


Syntax = TagSyntax | ChannelSyntax


def _read(
    step: Callable[[State], tuple[State, Part]], state: State, text: str, marked: bool
) -> tuple[State, list[Part]]:
    """Take steps until a step changes nothing."""
    parts: list[Part] = []
    state = state._replace(held=state.held + text)
    while True:
        after, said = step(state)
        parts += _emitted(said, marked)
        if after == state:
            return state, parts
        state = after


def _emitted(part: Part, marked: bool) -> list[Part]:
    text = part.text.replace(MARK, "") if marked else part.text
    return [Part(part.kind, text)] if text else []


def _apart(kind: str, state: State, text: str) -> str:
    """Return a text with an empty line before it if it begins a further part of its kind."""
    return f"\n\n{text}" if text and not state.begun and kind in state.spoke else text


def _names(channel: re.Match[str] | None, name: str) -> bool:
    return channel is not None and channel[1] == name


def _overlap(text: str, tag: str) -> int:
    """Return the length of the longest end of `text` that begins `tag`."""
    return next(
        (n for n in range(min(len(text), len(tag) - 1), 0, -1) if text.endswith(tag[:n])), 0
    )
