"""The reasoning parts of a model: their syntax and tokens, by its chat template and vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..llama.model import Model
from .reasoning import MARK, ChannelSyntax, State, Syntax, TagSyntax

# opening tag, closing tag, and text that ends a part and begins the answer
_TAGS = (
    ("<think>", "</think>", "\n</think>\n\n"),
    ("<seed:think>", "</seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>", "\n<channel|>"),
)
_SPECIAL = re.compile(r"<\|?[^<>\s]+?\|?>|\[/?[A-Z]+\]")
_CHANNEL_TOKENS = (
    "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>", "<|constrain|>",
)  # fmt: skip
# Fields in which templates expect the reasoning of earlier messages.
REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
# Characters of a prompt's end in which its last tag lies.
_TAIL = 200


@dataclass(frozen=True)
class ReasoningFormat:
    """Reasoning parts of one model.

    Attributes:
        syntax: Parser of its texts.
        shown: Special tokens of the syntax that have no text -> their marked names.
        field: Field of a message in which the template reads its reasoning; None if it has none.
    """

    syntax: Syntax
    shown: Mapping[int, str]
    field: str | None

    def piece(self, model: Model, token: int) -> bytes:
        """Return the bytes of a token; those of a special token of the syntax are its name."""
        name = self.shown.get(token)
        return model.piece(token) if name is None else name.encode()

    def begin(self, model: Model, prompt: Sequence[int], prefill: str = "") -> State:
        """Return the state of the parser after a prompt that ends with `prefill`."""
        tail, n_most = b"", len(prefill.encode("utf-8", "replace")) + _TAIL
        for token in reversed(prompt):
            tail = self.piece(model, token) + tail
            if len(tail) >= n_most:
                break
        return self.syntax.begin(tail.decode("utf-8", "replace"), prefill)

    def end(self, model: Model) -> list[int]:
        """Return the tokens that end an open reasoning part."""
        text = self.syntax.end.replace(MARK, "")
        return model.tokenize(text, special=True, start=False)


def reasoning_format(model: Model) -> ReasoningFormat | None:
    """Return the reasoning parts of a model; None if its template has none.

    The template must contain a tag of a known syntax. For the channels of gpt-oss the vocabulary
    must have their special tokens, too.
    """
    template = model.chat_template or ""
    if "<|channel|>" in template and "<|message|>" in template:
        shown = _special(model, _CHANNEL_TOKENS)
        if len(shown) < len(_CHANNEL_TOKENS) - 1:  # <|constrain|> is not needed
            return None
        return ReasoningFormat(ChannelSyntax(), shown, _field(template))
    for opened, closed, end in _TAGS:
        if closed in template or opened in template:
            names = _SPECIAL.findall(opened + closed)
            shown = {
                token: name
                for token, name in _special(model, names).items()
                if not model.piece(token)
            }
            tags = [_marked(text, shown.values()) for text in (opened, closed, end)]
            return ReasoningFormat(TagSyntax(*tags), shown, _field(template))
    return None


def spells_special(model: Model, reasoning: ReasoningFormat | None, text: str) -> bool:
    """Return whether a text contains the name of a special token.

    llama.cpp reads the names of the channel tokens of gpt-oss in every text.
    """
    ids = model.tokenize(text, special=True, start=False)
    shown = reasoning.shown if reasoning else {}
    return any(token in shown for token in ids) or ids != model.tokenize(
        text, special=False, start=False
    )


def plain_tokens(
    model: Model, reasoning: ReasoningFormat | None, text: str, start: bool
) -> list[int]:
    """Return the tokens of a text in which no name is a special token."""
    names = [name.removeprefix(MARK) for name in reasoning.shown.values()] if reasoning else []
    # Cut inside of each name, where llama.cpp would read it as a token.
    cut = "|".join(f"(?<={re.escape(name[0])})(?={re.escape(name[1:])})" for name in names)
    pieces = re.split(cut, text) if cut else [text]
    return [
        token
        for i, piece in enumerate(pieces)
        for token in model.tokenize(piece, special=False, start=start and i == 0)
    ]


def _special(model: Model, names: Iterable[str]) -> dict[int, str]:
    """Return the names that are one token of the vocabulary, marked, by their token."""
    ids = {name: model.tokenize(name, special=True, start=False) for name in names}
    return {found[0]: MARK + name for name, found in ids.items() if len(found) == 1}


def _marked(text: str, names: Iterable[str]) -> str:
    for name in names:
        text = text.replace(name.removeprefix(MARK), name)
    return text


def _field(template: str) -> str | None:
    """Return the field of a message in which a template reads reasoning."""
    for name in REASONING_FIELDS:
        if re.search(rf"\.{name}\b|['\"]{name}['\"]", template):
            return name
    return None
