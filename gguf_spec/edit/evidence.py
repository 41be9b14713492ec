"""Whether the instruction says in some way that a change belongs where it was made.

A small model makes an unwanted change with as much certainty as a wanted one, most often at a place
that looks like the one that was meant. So the words of the instruction are looked for at the place
of each change: in its lines, in those beside it, and in the names of the parts around it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import PurePath

from .hunks import PLURAL, Hunk, change_of, is_table
from .instruction import Reading
from .parts import parts_of

_NEAR = 2  # lines beside a change, blank ones not counted
_NEAR_WORD, _SMALL = 3, 60  # lines beside a word, of a part with it
_FEW = 4  # letters that two forms of a word share
_MANY = 1000  # lines of a text whose lines are compared with each other
_PROSE = {".md", ".txt", ".rst", ""}
_COMMON = frozenset({
    "a", "about", "above", "add", "added", "adding", "after", "again", "all", "also", "an", "and",
    "any", "anything", "are", "as", "at", "back", "be", "because", "been", "before", "behind",
    "below", "both", "but", "by", "call", "called", "can", "cannot", "change", "changed", "could",
    "do", "does", "done", "each", "every", "everything", "file", "fix", "for", "from", "get",
    "give", "given", "has", "have", "if", "in", "instead", "into", "is", "it", "its", "just",
    "keep", "leave", "let", "like", "line", "lines", "make", "may", "more", "must", "name", "named",
    "new", "no", "not", "now", "of", "off", "on", "one", "only", "or", "other", "out", "part",
    "please", "put", "remove", "same", "say", "set", "should", "so", "some", "still", "than",
    "that", "the", "their", "them", "then", "there", "these", "they", "this", "those", "to", "too",
    "under", "until", "up", "use", "used", "value", "way", "we", "well", "when", "where", "which",
    "while", "who", "will", "with", "without", "would", "write", "you", "your",
})  # fmt: skip
_VALUE = re.compile(
    r"\"[^\"]*\"(?!\s*:)|'[^']*'(?!\s*:)|#[0-9a-fA-F]{3,8}\b|(?<![\w.])\.?\d[\w.%:/]*"
)
_ONLY = re.compile(
    r"(?i)\b(?:only|just)\s+(?P<behind>(?:in|for|at|of|on|under|the)\b[^,;.]*)"
    r"|\b(?P<before>(?:in|for|at|of|on|under)\s[^,;.]*?)\s+only\b"
)


def without_look_alikes(
    lines: Sequence[str], hunks: Sequence[Hunk], reading: Reading, name: str, instruction: str
) -> list[Hunk]:
    """Return changes, and of those that are the same the one whose place alone is named.

    The arguments are those of `doubtful_places`.
    """
    kept = [*hunks]
    if reading.scope or reading.is_everywhere or PLURAL.search(instruction) or len(lines) > _MANY:
        return kept
    places = _Places(lines, name, instruction)
    words = {hunk: places.named_at(hunk.start, hunk.end) for hunk in hunks}
    for hunk in hunks:
        others = [one for one in hunks if one != hunk and change_of(one) == change_of(hunk)]
        if others and set[str]().union(*(words[one] for one in others)) < words[hunk]:
            kept = [one for one in kept if one not in others]
    return kept


def doubtful_places(
    lines: Sequence[str], hunks: Sequence[Hunk], reading: Reading, name: str, instruction: str
) -> list[str]:
    """Return an objection to changes at places that the instruction does not name.

    Args:
        lines: The old lines.
        hunks: The changes in the parts that may change.
        reading: What the instruction says.
        name: Name of the file.
        instruction: The instruction.
    """
    if len(lines) > _MANY or reading.is_everywhere:
        return []
    if far := _far_away(lines, hunks, reading, name, instruction):
        return far
    places = _Places(lines, name, instruction)
    pairs = [
        (i, *pair)
        for hunk in hunks
        if len(hunk.old) == len(hunk.new)
        for i, pair in enumerate(zip(hunk.old, hunk.new, strict=True), hunk.start + 1)
    ]
    for i, old, new in pairs:
        if value := places.one_of_values(old, new):
            return [f"{value} in line {i} is one of several values, and was not named"]
    if reading.scope:
        return places.unasked(hunks, reading) if not PLURAL.search(instruction) else []
    changed = {i for hunk in hunks for i in range(hunk.start, hunk.end)}
    is_named = bool(PLURAL.search(instruction))  # it speaks of all places of a kind
    found = (places.doubt_about(hunk, changed, is_named=is_named) for hunk in hunks)
    return [*filter(None, found)][:1]


def _far_away(
    lines: Sequence[str], hunks: Sequence[Hunk], reading: Reading, name: str, instruction: str
) -> list[str]:
    """Return an objection if words of the instruction stand in one line, and no change is near."""
    is_prose = PurePath(name).suffix.lower() in _PROSE
    if not hunks or reading.scope or reading.is_everywhere or is_prose or len(lines) > _MANY:
        return []
    words = set(re.findall(r"[^\W\d_]{4,}|\w*[\d_]\w*", instruction.lower())) - _COMMON
    places: dict[str, set[int]] = {}
    for i, line in enumerate(lines):
        for word in words & set(re.findall(r"\w+", line.lower())):
            places.setdefault(word, set()).add(i)
    rare = {word: min(at) for word, at in places.items() if len(at) == 1}
    parts = parts_of(list(lines), name)
    n_near = 0 if is_table(name) else _NEAR_WORD
    for i in rare.values():
        around = [one for one in parts if one.start <= i < one.end and one.end - one.start < _SMALL]
        start = min([i - n_near, *(one.start for one in around if n_near)])
        end = max([i + n_near + 1, *(one.end for one in around if n_near)])
        if any(hunk.start < end and start < max(hunk.end, hunk.start + 1) for hunk in hunks):
            return []
    return [f"nothing is changed where {min(rare, key=rare.__getitem__)} stands"] if rare else []


class _Places:
    """The places of a text, and the words of an instruction that stand there."""

    def __init__(self, lines: Sequence[str], name: str, instruction: str) -> None:
        self._lines, self._instruction = lines, instruction
        self._parts = parts_of(list(lines), name)
        self._is_prose = PurePath(name).suffix.lower() in _PROSE
        self._asked = _words(instruction) - _COMMON
        only = _ONLY.search(instruction)
        self._only = (only["behind"] or only["before"]).strip() if only else ""

    def named_at(self, start: int, end: int) -> set[str]:
        """Return the words in some lines, beside them, and in the names of the parts around."""
        first, last = self._beside(start, -1), self._beside(max(start, end - 1), 1) + 1
        around = [one for one in self._parts if one.start <= start < max(one.end, one.start + 1)]
        heads = [self._lines[one.start] for one in around]
        names = [".".join(one.path) for one in around]
        return _shared(self._asked, _words("\n".join([*self._lines[first:last], *heads, *names])))

    def _beside(self, at: int, step: int) -> int:
        n = 0
        while 0 <= at + step < len(self._lines) and n < _NEAR:
            if self._is_prose and not self._lines[at + step].strip():
                break
            at += step
            n += bool(self._lines[at].strip())
        return min(max(at, 0), len(self._lines) - 1)

    def doubt_about(self, hunk: Hunk, changed: Collection[int], *, is_named: bool) -> str:
        """Return what speaks against the place of a change, where the text has no named part."""
        here = self.named_at(hunk.start, hunk.end)
        if not here and not is_named:
            return f"nothing in line {hunk.start + 1} or beside it was named"
        only = _words(self._only) - _COMMON
        if only and not only & here:
            return f"line {hunk.start + 1} is not {self._only}"
        forms = {i: _form(self._lines[i]) for i in range(hunk.start, hunk.end)}
        for i, form in forms.items():
            for j, line in enumerate(self._lines):
                is_alike = j not in changed and len(form) >= _FEW and _form(line) == form
                if is_alike and not here - self.named_at(j, j + 1):
                    return f"line {j + 1} is like line {i + 1}, and which one is meant is not clear"
        return ""

    def unasked(self, hunks: Sequence[Hunk], reading: Reading) -> list[str]:
        """Return an objection to several changes in a named part, of which one was not asked."""
        own = {word for part in reading.scope for word in _words(".".join(part.path))}
        for hunk in hunks if len(hunks) > 1 else ():
            if not _shared(self._asked - own, _words("\n".join([*hunk.old, *hunk.new]))):
                where = f"that in line {hunk.start + 1}"
                return [f"{len(hunks)} places are changed, and {where} was not named"]
        return []

    def one_of_values(self, old: str, new: str) -> str:
        """Return the value in a line that gave way to another, while one of its kind stays.

        Nothing, if the instruction has the value, or the word before it.
        """
        before, after = _VALUE.findall(old), _VALUE.findall(new)
        is_same = _VALUE.sub("", old) == _VALUE.sub("", new) and len(before) == len(after)
        gone = [i for i, (one, to) in enumerate(zip(before, after, strict=False)) if one != to]
        if not is_same or len(before) < 2 or len(gone) != 1:
            return ""
        value = before[gone[0]]
        label = re.search(r"([\w-]+)\s*[=:]\s*$", old[: [*_VALUE.finditer(old)][gone[0]].start()])
        if value.strip("\"'") in self._instruction or (
            label and _shared(self._asked, _words(label[1]))
        ):
            return ""
        kinds = [one[0] if one[0] in "\"'#" else "number" for one in before]
        return value if kinds.count(kinds[gone[0]]) > 1 else ""


def _words(text: str) -> set[str]:
    """Return the words of a text, and those inside of names such as `maxSize`, in lower case."""
    text = f"{re.sub(r'(?<=[a-z])-(?=[a-z])', '', text)} {text}"
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    found = re.findall(r"[^\W\d_]+|\d[\d.]*", f"{text} {apart}".lower())
    return {one.rstrip(".") for one in found}


def _stem(word: str) -> str:
    return re.sub(r"(?:ings?|ers?|ed|es|s|e|ies|y)$", "", word) if len(word) > _FEW else word


def _shared(asked: Collection[str], words: Collection[str]) -> set[str]:
    """Return which of some words are among others, in any form."""
    stems = {_stem(one) for one in words}
    return {
        one
        for one in asked
        if _stem(one) in stems or any(_is_form(_stem(one), other) for other in stems)
    }


def _is_form(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= _FEW and (one.startswith(other) or other.startswith(one))


def _form(line: str) -> str:
    """Return what two lines share that differ in numbers and texts only."""
    line = re.sub(r"\"[^\"]*\"|'[^']*'", '""', line.strip())
    return re.sub(r"\d+", "0", " ".join(line.split())).rstrip(",;")
