"""Edits of a text: what an instruction asks for and nothing else.

The instruction is read first (`instruction.py`): a rename, a replacement or the value of a setting
is made by code and needs no model. Else the model writes the part that the instruction names
(`parts.py`), or the whole text where it names none, and the changes are compared with what was
asked (`hunks.py`). What is outside of the named part stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..errors import ContextTooShortError, InvalidOptionError, NoEditError, PromptTooLongError, Text
from ..options import Sampling
from ..results import Completion, Stats
from ..vocabulary import Tokens
from .across import imported_names
from .by_code import CodeEdit, edit_by_code
from .doubts import doubts
from .evidence import likely_block, without_look_alikes
from .hunks import (
    Hunk,
    apply,
    counted,
    counted_noun,
    hunks_between,
    no_longer_valid,
    patch,
    split_lines,
    with_old_spelling,
)
from .instruction import Reading, read
from .parts import Part, parts_of

__all__ = [
    "Asked", "Edit", "EditPlan", "EditPrompt", "Hunk", "apply", "hunks_between", "imported_names",
    "no_longer_valid", "patch", "run",
]  # fmt: skip

_SPARE = 64  # tokens of the context beyond the expected length of the new text
_SCOPE_HINT = (
    "name a part as it stands in the text, such as Store.total, or its lines, such as 10-40."
)
_MOST_OF_TEXT = 0.8  # a part of more than this share of the text is written as the whole text
_N_AROUND = 60  # lines of the text around a part that the model sees
_MOST_NAMED = 12  # parts in an error


class Model(Protocol):
    """What an edit needs to know of a model."""

    @property
    def n_ctx(self) -> int:
        """Number of tokens of the context."""

    @property
    def has_chat_template(self) -> bool:
        """Whether it takes messages."""

    @property
    def vocabulary(self) -> Tokens:
        """Its vocabulary."""

    def tokenize(
        self, prompt: Any, /, *, prefill: str = "", special: bool = True, most: int | None = None
    ) -> list[int]:
        """Return the token ids of a text or of messages, at most that many."""


@dataclass(frozen=True)
class Edit:
    """The result of an edit.

    Attributes:
        text: The new text, with all changes in the parts that may change.
        hunks: The changes, in order; those outside of these parts are not in `text`.
        way: `code` where no model was needed, `part` where the model wrote a part, else `text`.
        scope: The parts that might change, such as `Store.total`; empty for the whole text.
        refused: Why it should not be written without a question; empty if it can be.
        summary: One line with the counts, such as `3 lines changed, 0 removed, 1 place`.
        stats: Statistics of the generation; None for the way `code`.
        seed: Seed of the generation; None for the way `code`.
    """

    text: str
    hunks: tuple[Hunk, ...]
    way: str
    scope: tuple[str, ...]
    refused: tuple[str, ...]
    summary: str
    stats: Stats | None = None
    seed: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain data, without the statistics."""
        return {
            "text": self.text,
            "hunks": [one.to_dict() for one in self.hunks],
            "way": self.way,
            "scope": list(self.scope),
            "refused": list(self.refused),
            "summary": self.summary,
            "seed": self.seed,
        }


class EditPlan:
    """How an edit is made: by code, or by a model that writes a part or the whole text.

    Attributes:
        reading: What the instruction says.
        by_code: The change, where it needs no model.
        part: The lines that the model writes, or None for the whole text.
    """

    def __init__(
        self,
        text: str,
        instruction: str,
        *,
        name: str = "",
        scope: Sequence[str] = (),
        given: frozenset[str] = frozenset(),
    ) -> None:
        """Plan an edit.

        Args:
            text: The old text, with line feeds.
            name: Name of the file, whose ending says how it is read.
            scope: The parts that may change: names such as `Store.total`, or lines such as `10-40`.
                Empty: what the instruction names, or else the whole text.
            given: Names that the text imports from another file of the same edit, which renames
                them, as `across.imported_names` finds them.

        Raises:
            InvalidOptionError: A part of `scope` is not in the text, or several have its name.
        """
        if not isinstance(text, str) or not text.strip():
            raise InvalidOptionError("text", text, "a text that is not empty")
        if not isinstance(instruction, str) or not instruction.strip():
            raise InvalidOptionError("instruction", instruction, "a text that says what to change")
        self._text, self._instruction, self._name = text, instruction.strip(), name
        self.lines: list[str] = split_lines(text)
        self._parts = parts_of(self.lines, name)
        self.reading: Reading = read(self._instruction, self.lines, self._parts, name)
        if scope:
            self.reading = replace(self.reading, scope=tuple(self._part_of(one) for one in scope))
        self.reading = replace(self.reading, given=given)
        self.by_code: CodeEdit | None = edit_by_code(self.reading)
        self.part: Part | None = self._written_part()
        self._beside = self._new_lines_beside()

    def _part_of(self, name: str) -> Part:
        if found := re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", name):
            first, last = int(found[1]), int(found[2] or found[1])
            if not 1 <= first <= last <= len(self.lines):
                n_lines = counted_noun(len(self.lines), "line")
                raise _no_part(name, f"lines {name}: it has {n_lines}")
            return Part("", "lines", first - 1, last)
        parts = [one for one in self._parts if name in {one.name, ".".join(one.path), one.label}]
        parts = [one for one in parts if ".".join(one.path) == name] or parts
        if len({(one.start, one.end) for one in parts}) == 1:
            return parts[0]
        if parts:
            raise _no_part(name, f"one part {name}, but several: write its path, or its lines")
        shown = [
            one for one in self._parts if one.kind not in {"variable", "key"} or not one.path[1:]
        ]
        some = ", ".join([*dict.fromkeys(one.label for one in shown)][:_MOST_NAMED])
        raise _no_part(name, f"part {name}" + (f"; it has {some}" if some else ""))

    def _written_part(self) -> Part | None:
        scope = self.reading.scope
        if self.by_code is not None:
            return None
        if not scope and (block := likely_block(self.reading)):
            scope = (block,)
        if not scope:
            return None
        start, end = min(one.start for one in scope), max(one.end for one in scope)
        if end - start > _MOST_OF_TEXT * len(self.lines):
            return None
        return Part("", "lines", start, end)

    def _new_lines_beside(self) -> str:
        """Return `before` or `after` if only new lines are asked for, beside the named part."""
        if not self.part or len(self.reading.scope) != 1:
            return ""
        name = re.escape(self.reading.scope[0].name)
        pattern = rf"(?i){_SIDE}(?:the\s+)?(?:\w+\s+)?[`\"'\[]?{name}(?!\w)"
        found = re.search(pattern, self._instruction)
        is_addition = bool(name and _ADD.match(self._instruction))
        return _SIDES[found["side"].lower()] if found and is_addition else ""

    @property
    def needs_model(self) -> bool:
        return self.by_code is None

    @property
    def renamed(self) -> str:
        """The old name where code renames what other files may use, too; else empty.

        That is a function, a class, a method or a variable that stands in no function.
        """
        rename = self.reading.rename
        if (
            self.by_code is None
            or self.by_code.lines == self.lines
            or not (rename and rename.is_name)
        ):
            return ""
        name = rename.old.rpartition(".")[2].lstrip("$@")
        functions = [part for part in self._parts if part.kind == "function"]
        for part in self._parts:
            if part.name == name and part.kind in {"class", "function", "variable"}:
                around = (one for one in functions if one is not part)
                if not any(one.start <= part.start and part.end <= one.end for one in around):
                    return name
        return ""

    @cached_property
    def label(self) -> str:
        """The parts that may change, for a message; empty for the whole text."""
        return ", ".join(one.label for one in self.reading.scope)

    def result_by_code(self) -> Edit:
        assert self.by_code is not None
        hunks = hunks_between(self.lines, self.by_code.lines)
        doubt = self.by_code.doubt
        refused = [doubt] if doubt else no_longer_valid(self.lines, self.by_code.lines, self._name)
        return self._edit(hunks, [], refused, "code")

    def result(self, answer: str, completion: Completion) -> Edit:
        """Return the change that a model wrote.

        Args:
            answer: The new part or text, as `EditPrompt.text_of` returns it.
        """
        new = split_lines(answer)
        written = "text"
        if self.part:
            start, end = self.part.start, self.part.end
            old = self.lines[start:end]
            if self._beside:
                new = self._with_old(old, new)
            if not self._is_whole(new):
                new = [*self.lines[:start], *_indented_as(old, new), *self.lines[end:]]
                written = "part"
        new = with_old_spelling(self.lines, new, self._instruction, self._name)
        inside, outside = list[Hunk](), list[Hunk]()
        for hunk in hunks_between(self.lines, new):
            is_new = written == "part" and self._beside and not hunk.old  # beside its blank lines
            (inside if is_new or self._may_change(hunk) else outside).append(hunk)
        named = without_look_alikes(inside, self.reading)
        outside += [one for one in inside if one not in named]
        return self._edit(named, outside, doubts(named, self.reading), written, completion)

    def _with_old(self, old: list[str], new: list[str]) -> list[str]:
        """Return a part with new lines before or after it; the part in an answer is left out."""
        assert self.part
        n, new = len(old), _stripped(new)
        bare, alike = ([one.strip().rstrip(",") for one in lines] for lines in (old, new))
        new = _stripped(new[n:] if alike[:n] == bare else new[:-n] if alike[-n:] == bare else new)
        if not new:
            return old
        new = _indented_as(old, new)
        if self._name.lower().endswith(".json"):  # a comma stands between two entries
            is_last = self._beside == "after" and not old[-1].rstrip().endswith(",")
            new[-1] = new[-1].rstrip().removesuffix(",") + "," * (not is_last)
            old = [*old[:-1], old[-1] + "," * is_last]
        above, below = self.lines[: self.part.start][::-1], self.lines[self.part.end :]
        n_above = next((i for i, line in enumerate(above) if line.strip()), len(above))
        n_below = next((i for i, line in enumerate(below) if line.strip()), len(below))
        gap = [""] * min(n_above if above else n_below, n_below if below else n_above)
        return [*new, *gap, *old] if self._beside == "before" else [*old, *gap, *new]

    def _is_whole(self, new: list[str]) -> bool:
        """Return whether an answer is the whole text, although a part was asked for."""
        assert self.part
        around = [*self.lines[: self.part.start], *self.lines[self.part.end :]]
        known = {one for one in around if len(one.strip()) > 3}
        known -= {*self.lines[self.part.start : self.part.end]}
        n_known = len(known & set(new))
        return n_known > max(2, 0.6 * len(known))

    def _may_change(self, hunk: Hunk) -> bool:
        start, end = hunk.start, hunk.end
        while start < end and not self.lines[start].strip():  # empty lines belong to no part
            start += 1
        while start < end and not self.lines[end - 1].strip():
            end -= 1
        if any(one.start < max(end, start + 1) and start < one.end for one in self.reading.kept):
            return False
        scope = self.reading.scope
        return not scope or any(one.start <= start and end <= one.end for one in scope)

    def _edit(
        self,
        inside: list[Hunk],
        outside: list[Hunk],
        refused: list[str],
        way: str,
        completion: Completion | None = None,
    ) -> Edit:
        text = "\n".join(apply(self.lines, inside)) + ("\n" if self._text.endswith("\n") else "")
        hunks = [*inside, *(replace(one, is_outside=True) for one in outside)]
        return Edit(
            text=text,
            hunks=tuple(sorted(hunks, key=lambda one: one.start)),
            way=way,
            scope=tuple(one.label for one in self.reading.scope),
            refused=tuple(refused) if inside else (),
            summary=counted(inside, text, self._name),
            stats=completion.stats if completion else None,
            seed=completion.seed if completion else None,
        )

    @property
    def is_named(self) -> bool:
        """Whether the instruction names a part of this text, or is done by code."""
        return bool(self.reading.scope) or self.by_code is not None

    @property
    def asked(self) -> tuple[str, str, str, Part | None, str]:
        """What an `EditPrompt` is made of: text, instruction, name, part, and `beside`."""
        return self._text, self._instruction, self._name, self.part, self._beside

    def prompt(self, llm: Model, others: Mapping[str, str] | None = None) -> EditPrompt:
        """Return the request to a model.

        Args:
            others: Name -> text of files that it also sees, as far as the context holds them.

        Raises:
            ContextTooShortError: The text and the new part do not fit into the context.
        """
        text, instruction, name, part, beside = self.asked
        return EditPrompt(llm, text, instruction, name, part, others or {}, beside=beside)

    def begin(
        self,
        llm: Model,
        sampling: Sampling,
        max_tokens: int | None = None,
        others: Mapping[str, str] | None = None,
    ) -> Asked | None:
        """Return what a model is asked; None where none is needed.

        Args:
            max_tokens: Maximum length of what it writes; None allows twice the old length.
            others: As for `prompt`, which raises the same errors.
        """
        if not self.needs_model:
            return None
        prompt = self.prompt(llm, others)
        return Asked(prompt, prompt.limited(sampling, max_tokens))

    def end(self, asked: Asked | None, completion: Completion | None) -> Edit:
        """Return the edit, with what the model wrote where it was asked.

        Raises:
            NoEditError: The model wrote nothing, or was cut at the limit.
        """
        if asked is None or completion is None:
            return self.result_by_code()
        return self.result(asked.prompt.text_of(completion), completion)


def run(
    plan: EditPlan,
    llm: Model,
    generate: Callable[[Asked], Completion],
    sampling: Sampling,
    max_tokens: int | None = None,
    others: Mapping[str, str] | None = None,
) -> Edit:
    """Return the edit of a plan; arguments and errors as of `begin` and `end`.

    Args:
        generate: Lets the model write; it is not called for a change by code.
    """
    asked = plan.begin(llm, sampling, max_tokens, others)
    return plan.end(asked, generate(asked) if asked else None)


def _no_part(name: str, what: str) -> InvalidOptionError:
    return InvalidOptionError(
        "scope", name, hint=_SCOPE_HINT, message=f"the text does not have {what}."
    )


def _stripped(lines: list[str]) -> list[str]:
    return "\n".join(lines).strip("\n").split("\n") if any(map(str.strip, lines)) else []


def _indented_as(old: Sequence[str], new: list[str]) -> list[str]:
    """Return new lines, indented as far as the old ones: models leave the indentation out."""
    first_old, first_new = (next((one for one in lines if one.strip()), "") for lines in (old, new))
    lacking = first_old[: len(first_old) - len(first_old.lstrip())]
    has = first_new[: len(first_new) - len(first_new.lstrip())]
    if lacking == has or not lacking.startswith(has):
        return new
    return [lacking[len(has) :] + one if one.strip() else one for one in new]


# The text comes first: small models follow an instruction better that stands next to their answer.
_ASK = "{old}\n\nTask: {instruction}. Write the whole text again with this change."
_OTHER = "The file {name}, which stays as it is:\n\n{text}\n\n"
_ASK_PART = (
    "{old}\n\nThe part of it to change:\n\n{part}\n\n"
    "Task: {instruction}. Write only this part again with this change."
)
_ASK_BESIDE = (
    "{old}\n\nTask: {instruction}. Write only the new lines. They come right {side} this part, "
    "which is not written again:\n\n{part}"
)
_ADD = re.compile(r"(?i)\s*(?:please\s+)?(?:add|insert|put|write|append)\b")
_SIDES = {
    **dict.fromkeys(("after", "behind", "below"), "after"),
    **dict.fromkeys(("before", "above"), "before"),
}
_SIDE = rf"\b(?P<side>{'|'.join(_SIDES)})\s+"
_FENCED = re.compile(r"(`{3,}|~{3,})[^\n`]*\n(.*?)\n?\1\s*", re.DOTALL)
_LAST_FENCE = re.compile(r"\n`{3,}\s*\Z")


class Asked(NamedTuple):
    """What a model is asked, and the sampling options that end its answer with the new text."""

    prompt: EditPrompt
    sampling: Sampling

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `LLM.generate` and `LLM.stream`."""
        return {
            "prompt": self.prompt.request,
            "sampling": self.sampling,
            "prefill": self.prompt.prefill,
        }


class EditPrompt:
    """The request to a model for the new version of a text, or of a part of it.

    The text is put between two lines of backquotes. The answer is made to begin with such a line,
    so that the text follows at once, and ends at the next one.

    Attributes:
        request: The messages, or the text for a model without a chat template.
        prefill: Beginning of the answer.
        n_text: Number of tokens of what the model writes again.
    """

    n_text: int
    prefill: str

    _is_users_limit = False  # whether `max_tokens` ends the new text

    def __init__(
        self,
        llm: Model,
        text: str,
        instruction: str,
        name: str,
        part: Part | None = None,
        others: Mapping[str, str] = MappingProxyType({}),
        *,
        beside: str = "",
    ) -> None:
        """Make the request.

        Args:
            part: The lines to write; None for the whole text.
            others: Name -> text of other files; the last ones are left out if they do not fit.
            beside: `before` or `after`: only new lines beside the part are written.

        Raises:
            ContextTooShortError: The old and the new text do not fit into the context.
        """
        runs = [run for one in (text, *others.values()) for run in re.findall(r"`{3,}", one)]
        self._fence, self._old = "`" * max([3, *(len(run) + 1 for run in runs)]), text
        lines = split_lines(text)
        asked = instruction.rstrip(".")
        if part is None:
            question = _ASK.format(instruction=asked, old=self._fenced(lines))
        else:
            self._old = "\n".join(lines[part.start : part.end]) + "\n"
            around = lines[max(0, part.start - _N_AROUND) : part.end + _N_AROUND]
            texts = {
                "old": self._fenced(around),
                "part": self._fenced(lines[part.start : part.end]),
            }
            ask = _ASK_BESIDE if beside else _ASK_PART
            question = ask.format(instruction=asked, side=beside, **texts)
        most, seen = llm.n_ctx, text if part is None else "\n".join(around)
        try:  # of a text that is far too long only the beginning is tokenised
            self.n_text = len(llm.tokenize(self._old, special=False, most=most))
            # A model that copies the name of an end token writes that token, and would end there.
            named = {*llm.tokenize(seen, special=True, most=most)}
            named -= {*llm.tokenize(seen, special=False, most=most)}
        except PromptTooLongError as error:
            self.n_text = error.n_prompt
            raise self._too_long(name, llm, error.n_prompt + self._n_new) from None
        self._ignore_eos = any(map(llm.vocabulary.is_end, named))
        shown = [
            _OTHER.format(name=other, text=self._fenced(split_lines(one)))
            for other, one in others.items()
        ]
        while (needed := self._ask(llm, "".join(shown) + question) + self._n_new) > llm.n_ctx:
            if not shown:
                raise self._too_long(name, llm, needed)
            shown.pop()
        self._n_room = llm.n_ctx - needed + self._n_new

    def _ask(self, llm: Model, question: str) -> int:
        """Make the request, and return its number of tokens."""
        self.prefill = f"{self._fence}\n"
        self.request: str | Sequence[dict[str, str]] = [{"role": "user", "content": question}]
        if not llm.has_chat_template:
            self.request, self.prefill = f"{question}\n\nThe new text:\n\n{self._fence}\n", ""
        try:
            return len(llm.tokenize(self.request, prefill=self.prefill, most=llm.n_ctx))
        except PromptTooLongError as error:
            return error.n_prompt

    def _too_long(self, name: str, llm: Model, needed: int) -> ContextTooShortError:
        what = f"editing {name or 'the text'}, which has {self.n_text:,} tokens,"
        hint = "split the file, or name the part that shall change"
        return ContextTooShortError(what, llm.n_ctx, needed, hint, about=True)

    @property
    def _n_new(self) -> int:
        return self.n_text + self.n_text // 4 + _SPARE

    def _fenced(self, lines: Sequence[str]) -> str:
        body = "\n".join(lines)
        return f"{self._fence}\n{body}\n{self._fence}"

    def limited(self, sampling: Sampling, max_tokens: int | None = None) -> Sampling:
        """Return sampling options that end with the new text."""
        most = max_tokens or 2 * self.n_text + 4 * _SPARE
        self._is_users_limit = most == max_tokens and most < self._n_room
        most = min(most, self._n_room)
        stop = [f"\n{self._fence}"]
        return replace(sampling, max_tokens=most, stop=stop, ignore_eos=self._ignore_eos)

    def text_of(self, result: Completion) -> str:
        """Return the new text of an answer.

        Raises:
            NoEditError: The answer was cut, or is empty.
        """
        if result.finish_reason == "length":
            hint = Text(
                "the model may repeat itself: use a larger model or a clearer instruction"
                "[, or raise {max_tokens}][ and {n_ctx}]."
            )
            if self._is_users_limit:
                hint = Text("raise {max_tokens}: the old text has {} tokens.", f"{self.n_text:,}")
            fact = f"the new text was not complete after {len(result.tokens):,} tokens"
            raise NoEditError(f"{fact}; nothing was written.", hint)
        text = result.text
        fenced = _FENCED.fullmatch(text.strip())
        if fenced and not _FENCED.fullmatch(self._old.strip()):
            text = fenced[2]
        elif _is_open(text) and not _is_open(self._old):
            # three backquotes as the end of a text in longer fences
            text = _LAST_FENCE.sub("", text)
        if not text.strip():
            fact = "the model wrote no text; nothing was written."
            raise NoEditError(fact, "use a larger model or a clearer instruction.")
        ending = "\n" if self._old.endswith("\n") else ""
        return text.removesuffix("\n") + ending


def _is_open(text: str) -> bool:
    """Return whether a text has an odd number of lines that begin or end a block of code."""
    return len(re.findall(r"^ *`{3,}", text, re.MULTILINE)) % 2 == 1
