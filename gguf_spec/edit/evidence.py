"""Whether the instruction says in some way that a change belongs where it was made.

A small model makes an unwanted change with as much certainty as a wanted one, most often at a place
that looks like the one that was meant. So the words of the instruction are looked for at the place
of each change: in its lines, in those beside it, and in the names of the parts around it.
"""

from __future__ import annotations

import difflib
import itertools
import re
import unicodedata
from collections.abc import Collection, Sequence

from .by_code import KEYED
from .hunks import MOVES, WORDING, Hunk, change_of, is_move, is_of_several, is_table
from .instruction import QUOTED, Reading
from .languages import keywords
from .parts import Part
from .structure import PROSE, cells_of, record_values, tables_of

_NEAR = 2  # lines beside a change, blank ones not counted
_NEAR_WORD, _SMALL = 3, 60  # lines beside a word, of a part with it
_LIKE, _MOST_READ = 0.75, 300  # share of a line that is in another, characters that are compared
_FEW = 4  # letters that two forms of a word share
_MOST_ALIKE = 50  # places of the same change, of which one alone may be named
_MANY = 1000  # lines of a text whose lines are compared with each other
COMMON = frozenset({
    "a", "about", "above", "add", "added", "adding", "after", "again", "all", "also", "an", "and",
    "any", "anything", "are", "as", "at", "be", "because", "been", "before", "behind",
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
    r"\b\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}\b|(?<!\w)[rbf]{0,2}(?:\"[^\"]*\"|'[^']*')(?!\s*:)"
    r"|#[0-9a-fA-F]{3,8}\b|(?<![\w.])\.?\d[\w.%:/]*"
)
_LISTED = {*"-*+|0123456789 \t"}
_TOKEN = r"\w+|[^\w\s]"
_OTHERS = r"\b(?:except|besides|excluding|(?:other|rather)\s+than|apart\s+from|all\s+but)\b"
_ONLY = re.compile(
    r"(?i)\b(?:only|just)\s+(?P<behind>(?:in|for|at|of|on|under|the)\b[^,;.]*)"
    r"|\b(?P<before>(?:in|for|at|of|on|under)\s[^,;.]*?)\s+only\b"
)


# "add ... after the question where we are": the place that is said, and what says none
_BESIDE_WHAT = re.compile(
    r"(?i)\b(?:add|insert|append|put|write|place)\b(?:[^.]|\.(?=\w))*?"
    r"\b(?P<side>after|behind|below|under|beneath|before|above)\s+(?P<where>[^,;.:]+)"
    r"|^\s*(?:right\s+)?(?P<first>after|behind|below|under|beneath|before|above)\s+"
    r"(?P<place>[^,;:]+)[,;:]\s*(?:please\s+)?(?:add|insert|append|put|write|place)\b"
)
_NO_PLACE = re.compile(
    r"(?i)\d|\b(?:lines?|first|last|top|end|bottom|beginning|start|return\w*|imports?|every|each|all|"
    r"it|them|that|this|which|others?)\b"
)
_NO_WORDS = frozenset(
    {"the", "a", "an", "of", "to", "in", "and", "is", "new", "one", "for", "with"}
)
_COMMENTED_OUT = re.compile(r"\s*(?:[;#]|//)")
_KEY = re.compile(r"\s*(?:-\s+)?[\"']?([\w.-]+)[\"']?\s*[=:<>~!]")
_BOX = re.compile(r"\s*[-*+]\s+\[[ xX]\]\s")
_ITEM_LINE = re.compile(r"\s*(?:(?:[-*+]|\d+[.)])\s|\|)")
_ADDRESSES = re.compile(r"https?://[^\s\"'`<>,;]*[\w/]|[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+")
_OF_ADDRESSES = frozenset({
    "http", "https", "www", "com", "org", "net", "de", "io", "html", "example",
})  # fmt: skip
_IDENTIFIES = re.compile(
    r"(?i)\s*(?:-\s*)?[\"'<]?(?:name|id|key|title|host|label|path|url|artifactid)\b"
)
_MOST_BESIDE = 40  # lines of a paragraph
_CLAUSE_END = re.compile(r"[,;:.!?](?=\s|$)|[()|]|\s(?=(?:and|but|und|aber)\s)")
_LONG = 60  # lines of a text that is not written whole, if the words name one of its blocks
_BLOCKS = {"heading", "section", "key", "item"}
_OF_TABLE = re.compile(r"(?i)\b(?:tables?|rows?|columns?|cells?)\b")
_NEW_BLOCK = re.compile(
    r"(?i)\b(?:add|insert|append|write|put)\b[^.;]{0,40}\b(?:sections?|headings?|chapters?|paragraphs?|tables?|"
    r"title|introduction|summary|top|end|bottom|beginning|start)\b"
)
_WHERE = re.compile(
    r"(?i)\b(?:in|into|to|within|under|from|inside)\s+(?:the\s+)?(?P<where>[^,;.]+)"
)
_STRUCTURE = frozenset({
    "table", "tables", "row", "rows", "column", "columns", "cell", "cells", "list", "lists", "item",
    "items", "section", "entry", "key", "heading", "chapter", "box", "boxes",
})  # fmt: skip


def likely_block(reading: Reading) -> Part | None:
    """Return the table, section or entry of a long text that alone has the words of an instruction.

    None, where that is not certain: the place of the change must be in it.
    """
    instruction, lines, suffix = reading.instruction, reading.lines, reading.suffix
    is_new = _NEW_BLOCK.search(
        re.sub(r"(?i)\b(?:to|in|into|of)\s+the\s+(?:table|section)\b", " ", instruction)
    )
    is_free = reading.is_everywhere or MOVES.search(instruction) or WORDING.search(instruction)
    if len(lines) < _LONG or reading.scope or is_new or is_free:
        return None
    tables = [Part("", "lines", one.start, one.end) for one in tables_of(lines, suffix)]
    if suffix not in PROSE:
        tables = []
    blocks = tables if tables and _OF_TABLE.search(instruction) else [
        *tables, *(one for one in reading.parts if one.kind in _BLOCKS and one.end - one.start > 2)
    ]  # fmt: skip
    texts = [
        words_of("\n".join([*_titles(one, reading), *lines[one.start : one.end]])) for one in blocks
    ]
    whole = words_of("\n".join(lines))
    where = _WHERE.findall(instruction)
    for asked in (words_of(" ".join(where)), words_of(instruction)):
        words = {one for one in asked - COMMON - _STRUCTURE if not one[0].isdigit()}
        found = shared(words, whole)
        fitting = [
            one for one, text in zip(blocks, texts, strict=True) if shared(found, text) == found
        ]
        if found and fitting:
            best = min(fitting, key=lambda one: one.end - one.start)
            inner = all(one == best or one.holds(best) or _same(one, best) for one in fitting)
            is_certain = len(found) > 1 or shared(
                found, words_of(" ".join([*_titles(best, reading), lines[best.start]]))
            )
            return best if inner and is_certain else None
    return blocks[0] if len(blocks) == 1 and tables else None


def _same(one: Part, other: Part) -> bool:
    return (one.start, one.end) == (other.start, other.end)


def _titles(part: Part, reading: Reading) -> list[str]:
    around = [one for one in reading.parts if one.kind in _BLOCKS and one.holds(part)]
    inner = max(around, key=lambda one: one.start, default=None)
    return [inner.name] if inner else []


def without_look_alikes(hunks: Sequence[Hunk], reading: Reading) -> list[Hunk]:
    """Return changes, and of those that are the same the one whose place alone is named."""
    kept, is_plural = [*hunks], is_of_several(reading.instruction)
    if reading.scope or reading.is_everywhere or is_plural or len(reading.lines) > _MANY:
        return kept
    places = _Places(reading)
    same_as: dict[object, list[Hunk]] = {}
    for hunk in hunks:
        same_as.setdefault(change_of(hunk), []).append(hunk)
    for same in same_as.values():
        is_few = 1 < len(same) <= _MOST_ALIKE
        words = {one: places.named_at(one.start, one.end) for one in same if is_few}
        for hunk, own in words.items():
            others = [one for one in same if one != hunk]
            if set[str]().union(*(words[one] for one in others)) < own:
                kept = [one for one in kept if one not in others]
    return kept


def doubtful_places(
    hunks: Sequence[Hunk], reading: Reading, *, is_selected: bool = False
) -> list[str]:
    """Return an objection to changes at places that the instruction does not name.

    Args:
        is_selected: Whether the changes are at all places of a kind that it names.
    """
    if not hunks:
        return []
    for part in reading.scope:
        name = re.escape(part.name)
        behind_other = rf"(?i){_OTHERS}\W+(?:\w+\W+){{0,3}}?{name}(?!\w)"
        if name and re.search(behind_other, reading.instruction):
            return [f"whether {part.label} may change is not clear"]
    is_free = reading.is_everywhere or is_move(hunks, reading.instruction)
    if is_free or is_selected or len(reading.lines) > _MANY:
        return []
    places = _Places(reading)
    return (
        places.not_beside(hunks)
        or places.far_away(hunks)
        or places.one_of_values(hunks)
        or places.lost_for_new_ones(hunks)
        or (places.unasked if reading.scope else places.not_named)(hunks)
    )


class _Places:
    """The places of a text, and the words of an instruction that stand there."""

    def __init__(self, reading: Reading) -> None:
        self._reading, self._lines = reading, reading.lines
        self._is_of_several = is_of_several(reading.instruction)
        self._is_prose = reading.suffix in PROSE
        self._asked = words_asked(reading)
        only = _ONLY.search(reading.instruction)
        self._only = (only["behind"] or only["before"]).strip() if only else ""
        self._tables = tables_of(self._lines, reading.suffix)
        # Words that the text has: they may say where; the others are what is to be written.
        self._places = shared(self._asked, words_of("\n".join(self._lines)))

    def far_away(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection if words of the instruction stand in one line, and no change is near.

        Nothing, where a part is named, and in prose.
        """
        reading = self._reading
        if reading.scope or self._is_prose:
            return []
        is_added = not any(line.strip() for hunk in hunks for line in hunk.old)
        if is_added and is_table(reading.name):
            return []  # the words are those of the new cells
        said = re.sub(r"\d+(?:[.,]\d+)+", " ", reading.instruction.lower())  # a value
        words = set(re.findall(r"\w*[\d_]\w*|[^\W\d_]{4,}", said)) - COMMON
        words -= {*"0123456789"}  # most often a value
        # `default` of `export default` is no place that "the default of lowercase" means
        words -= keywords("\n".join(self._lines), reading.language)
        places: dict[str, set[int]] = {}
        for i, line in enumerate(self._lines):
            for word in words & set(re.findall(r"\w+", line.lower())):
                places.setdefault(word, set()).add(i)
        rare = {word: min(at) for word, at in places.items() if len(at) == 1}
        heads = {one.start for one in self._tables}  # the name of a column is not beside its cells
        rare = {word: i for word, i in rare.items() if i not in heads}
        n_near = 0 if is_table(reading.name) else _NEAR_WORD
        for i in rare.values():
            around = [one for one in reading.parts if one.start <= i < one.end]
            around = [one for one in around if n_near and one.end - one.start < _SMALL]
            start = min([i - n_near, *(one.start for one in around)])
            end = max([i + n_near + 1, *(one.end for one in around)])
            if any(hunk.start < end and start < max(hunk.end, hunk.start + 1) for hunk in hunks):
                return []
        return (
            [f"nothing is changed where {min(rare, key=rare.__getitem__)} stands"] if rare else []
        )

    def named_at(self, start: int, end: int, changed: Collection[int] = ()) -> set[str]:
        """Return the words in some lines, beside them, and in the names of the parts around.

        Args:
            changed: Lines beside them that do not count.
        """
        parts = self._reading.parts
        around = [one for one in parts if one.start <= start < max(one.end, one.start + 1)]
        blocks = [one for one in around if one.end - one.start > 1]
        block = min(blocks, key=lambda one: one.end - one.start, default=None)
        first, last = self._beside(start, -1), self._beside(max(start, end - 1), 1) + 1
        if block and not self._is_prose:
            first, last = max(first, block.start), min(last, max(block.end, end))
        heads = [self._lines[one.start] for one in around]
        heads += [self._lines[one.start] for one in self._tables if one.start < start <= one.end]
        heads += self._introduced(start) if self._is_prose else []
        names = [".".join(one.path) for one in around]
        near = [self._lines[i] for i in range(first, last) if i not in changed or start <= i < end]
        if start < len(self._lines) and not _IDENTIFIES.match(self._lines[start]):
            names += record_values(self._lines, start, self._reading.suffix)
        return shared(self._asked, words_of("\n".join([*near, *heads, *names])))

    def _introduced(self, at: int) -> list[str]:
        """Return the line above a list or a table that a line is in, or of the same sentence."""
        is_listed = at < len(self._lines) and self._lines[at][:1] in _LISTED
        if not is_listed and at and not self._lines[at - 1].strip():
            return []
        while at > 0 and (self._lines[at - 1][:1] in _LISTED or not self._lines[at - 1].strip()):
            at -= 1
        return self._lines[at - 1 : at] if at else []

    def _beside(self, at: int, step: int) -> int:
        n = 0
        while 0 <= at + step < len(self._lines) and n < _NEAR:
            if self._is_prose and not self._lines[at + step].strip():
                break
            at += step
            n += bool(self._lines[at].strip())
        return min(max(at, 0), len(self._lines) - 1)

    def not_named(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection to a change at a place that has no word of the instruction."""
        if sum(bool(one.strip()) for one in self._lines) == 1:
            return []  # there is no other place
        changed = {i for hunk in hunks for i in range(hunk.start, hunk.end)}
        doubts = (self._doubt_about(one, changed) for one in hunks)
        return [*itertools.islice(filter(None, doubts), 1)]

    def _doubt_about(self, hunk: Hunk, changed: Collection[int]) -> str:
        here = self.named_at(hunk.start, hunk.end)
        own = self.named_at(hunk.start, hunk.end, range(len(self._lines)))
        is_free = not any(map(str.strip, hunk.old)) and not self._places
        is_free = is_free or self._is_only_address(hunk)
        if not self._is_of_several and not is_free and not (own if hunk.old else here):
            return f"nothing in line {hunk.start + 1} or beside it was named"
        only = words_of(self._only) - COMMON
        if only and not only & here:
            return f"line {hunk.start + 1} is not {self._only}"
        for i in range(hunk.start, hunk.end):
            for j in {*_look_alikes(self._lines, i, hunk), *self._named_alike(i)}:
                if (
                    j not in changed
                    and not self._is_exactly(i, j)
                    and not here - self.named_at(j, j + 1, changed)
                ):
                    return f"line {j + 1} is like line {i + 1}, and which one is meant is not clear"
        return self._better_named(hunk, changed)

    def _better_named(self, hunk: Hunk, changed: Collection[int]) -> str:
        """Return a doubt if a line like a changed one has more words of the instruction."""
        own = range(len(self._lines))
        for i in range(hunk.start, hunk.end):
            here = self.named_at(i, i + 1, own)
            others = [j for j, one in enumerate(self._lines) if _BOX.match(one)]
            is_box = _BOX.match(self._lines[i])
            for j in others if is_box else _look_alikes(self._lines, i, hunk):
                is_other = j not in changed and not self._is_exactly(i, j)
                more = self.named_at(j, j + 1, own) - here if is_other else set()
                if more and here <= self.named_at(j, j + 1, own):
                    return f"line {j + 1} has more words of the instruction than line {i + 1}"
        return ""

    def _is_only_address(self, hunk: Hunk) -> bool:
        """Return whether the only address of its kind in the text gave way to one that is named."""
        old, new = (_ADDRESSES.findall("\n".join(lines)) for lines in (hunk.old, hunk.new))
        gone, came = ([one for one in a if one not in b] for a, b in ((old, new), (new, old)))
        if len(gone) != 1 or len(came) != 1 or came[0] not in self._reading.instruction:
            return False
        mark = "@" if "@" in came[0] else "://"
        return sum(mark in one for line in self._lines for one in _ADDRESSES.findall(line)) == 1

    def _is_exactly(self, at: int, other: int) -> bool:
        """Return whether a line is named as it is, or another one was to stay, or is a comment."""
        lines = (self._lines[at], self._lines[other])
        own, others = map(words_of, lines)
        if is_table(self._reading.name):
            return bool((self._asked & own) - others)
        if [bool(_COMMENTED_OUT.match(line)) for line in lines] == [False, True]:
            return "comment" not in self._reading.instruction
        kept = words_kept(self._reading.instruction)
        if kept and shared(kept, self._words_at(other)) - shared(kept, self._words_at(at)):
            return True
        is_named, is_other_named = (self._is_key_named(line) for line in lines)
        return is_named and not is_other_named

    def _words_at(self, at: int) -> set[str]:
        """Return the words of a line, and those in the names of the parts around it."""
        parts = (
            one for one in self._reading.parts if one.start <= at < max(one.end, one.start + 1)
        )
        return words_of("\n".join([self._lines[at], *(".".join(one.path) for one in parts)]))

    def _is_key_named(self, line: str) -> bool:
        """Return whether the key of a line stands whole in the instruction."""
        key = _KEY.match(line)
        name = re.escape(key[1]) if key else ""
        return bool(name) and bool(
            re.search(rf"(?<![\w.-]){name}(?![\w-]|\.\w)", self._reading.instruction)
        )

    def _named_alike(self, at: int) -> list[int]:
        """Return the lines with a value that have the words of the instruction that a line has."""
        own = shared(self._asked, words_of(self._lines[at]))
        if not own or not _VALUE.search(self._lines[at]):
            return []
        others = (i for i, line in enumerate(self._lines) if i != at and _VALUE.search(line))
        return [i for i in others if own <= shared(self._asked, words_of(self._lines[i]))]

    def lost_for_new_ones(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection to a line that was not named, and gave way where lines were added."""
        for hunk in hunks:
            for i, line in enumerate(hunk.old if len(hunk.new) > len(hunk.old) else (), hunk.start):
                is_named = not line.strip() or shared(self._asked, words_of(line))
                if not is_named and not _has_like(line, hunk.new):
                    return [f"line {i + 1}, which was not named, gave way to others"]
        return []

    def not_beside(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection to new lines that are not where a word such as "after" says.

        That is so, if words of what stands behind it are in the text, and none of them is at the
        new lines.
        """
        instruction = QUOTED.sub(
            lambda one: re.sub(r"[.,;:]", " ", one[0]), self._reading.instruction
        )
        found = _BESIDE_WHAT.search(instruction)
        new = [one for one in hunks if not any(map(str.strip, one.old))]
        where = (found["where"] or found["place"]) if found else ""
        if not found or len(new) != 1 or _NO_PLACE.search(where):
            return []
        (hunk,) = new
        wanted = words_of(where) - _NO_WORDS
        side = (found["side"] or found["first"]).lower()
        if not shared(wanted, words_of("\n".join(self._lines))):
            return []
        is_above = side in {"before", "above"}
        near = self._block_at(hunk.end, 1) if is_above else self._block_at(hunk.start - 1, -1)
        edges = ((one.start if is_above else one.end, one) for one in self._reading.parts)
        most = len(self._lines) / 2  # a part of more says nothing
        touching = (
            one
            for edge, one in edges
            if abs(edge - hunk.start) <= _NEAR and one.end - one.start <= most
        )
        near += [f"{'.'.join(one.path)} {self._lines[one.start]}" for one in touching]
        if shared(wanted, words_of("\n".join(near))):
            return []
        return [f"the new lines are not {side} {where.strip()[:60]}"]

    def _block_at(self, at: int, step: int) -> list[str]:
        """Return the lines of the paragraph, the item or the row before or behind a place."""
        lines = list[str]()
        while 0 <= at < len(self._lines) and len(lines) < _MOST_BESIDE:
            line, at = self._lines[at], at + step
            is_item = bool(_ITEM_LINE.match(line)) or is_table(self._reading.name)
            if lines and (not line.strip() or (is_item and step > 0)):
                break
            lines += [line] if line.strip() else []
            if is_item and step < 0:
                break
        return lines

    def unasked(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection to a change in a named part that has no other word in common with it.

        In a file of settings a lone change needs one, too: else another setting may be meant.
        """
        scope, is_settings = self._reading.scope, self._reading.suffix in KEYED
        own = {word for part in scope for word in words_of(".".join(part.path))}
        heads = {part.start for part in scope}
        is_checked = not self._is_of_several and (len(hunks) > 1 or is_settings)
        for hunk in hunks if is_checked else ():
            asked = self._asked if heads & {*range(hunk.start, hunk.end)} else self._asked - own
            if not shared(asked, words_of("\n".join([*hunk.old, *hunk.new]))):
                n = "" if len(hunks) == 1 else f"{len(hunks)} places are changed, and "
                return [f"{n}what line {hunk.start + 1} says was not named"]
        return []

    def one_of_values(self, hunks: Sequence[Hunk]) -> list[str]:
        """Return an objection to a value that was changed in a line with others of its kind."""
        for hunk in hunks:
            pairs = zip(hunk.old, hunk.new, strict=False) if len(hunk.old) == len(hunk.new) else ()
            for i, pair in enumerate(pairs, hunk.start + 1):
                if value := self._one_of_values(*pair, i - 1):
                    return [f"{value} in line {i} is one of several values, and was not named"]
        return []

    def _one_of_values(self, old: str, new: str, at: int) -> str:
        """Return the value in a line that gave way to another, while one of its kind stays.

        Nothing, if the instruction has the value, or the word before it.
        """
        old, new = (re.sub(r"\"{2,3}|'{2,3}", " ", line) for line in (old, new))  # no values
        before, after = _VALUE.findall(old), _VALUE.findall(new)
        is_same = _VALUE.sub("", old) == _VALUE.sub("", new) and len(before) == len(after)
        gone = [i for i, (one, to) in enumerate(zip(before, after, strict=False)) if one != to]
        if not is_same or len(before) < 2 or len(gone) != 1:
            return ""
        value = before[gone[0]]
        kinds = [_form(one.rstrip(".:/")) if one[0] != "#" else "#" for one in before]
        of_kind = [i for i, one in enumerate(kinds) if one == kinds[gone[0]]]
        if self._is_prose and self._is_in_named_clause(old, at, gone[0], of_kind):
            return ""
        label = re.search(
            r"([\w-]+)[\"']?\s*[=:]\s*$", old[: [*_VALUE.finditer(old)][gone[0]].start()]
        )
        column = self._changed_column(old, new, at)
        said = {value.strip("\"'"), *([after[gone[0]].strip("\"'")] if column else ())}
        is_named = any(one in self._reading.instruction for one in said)
        label_words = words_of(f"{label[1] if label else ''} {column}")
        if is_named or shared(self._asked, label_words):
            return ""
        return value if len(of_kind) > 1 else ""

    def _is_in_named_clause(self, line: str, at: int, value: int, others: Sequence[int]) -> bool:
        """Return whether the clause of a value has words of the instruction, and no other one."""
        before = self._lines[at - 1] if at else ""
        whole, n = (f"{before} {line}", len(before) + 1) if before.strip() else (line, 0)
        ends = [0, *(one.end() for one in _CLAUSE_END.finditer(whole)), len(whole)]
        spans = [(one.start() + n, one.end() + n) for one in _VALUE.finditer(line)]

        def words(i: int) -> set[str]:
            start = max(one for one in ends if one <= spans[i][0])
            end = min(one for one in ends if one >= spans[i][1])
            return shared(self._asked, words_of(whole[start:end]))

        own = words(value)
        return all(own > words(i) for i in others if i != value)

    def _changed_column(self, old: str, new: str, at: int) -> str:
        """Return the name of the column of a table in which one cell of a row changed."""
        suffix = self._reading.suffix
        for table in self._tables:
            if table.start < at < table.end:
                before, after = cells_of(old, suffix), cells_of(new, suffix)
                cells = zip(table.columns, before, after, strict=False)
                changed = [column for column, one, other in cells if one != other]
                return changed[0] if len(changed) == 1 else ""
        return ""


def words_asked(reading: Reading) -> set[str]:
    """Return the words of an instruction that may say where a change belongs.

    What most addresses have says nothing about the place of one that is to be written.
    """
    text, whole = reading.instruction, "\n".join(reading.lines)
    new = [one for one in _ADDRESSES.findall(text) if one not in whole]
    found = words_of(without(text, new)) | (words_of(" ".join(new)) - _OF_ADDRESSES)
    return found - COMMON


_SENTENCE = re.compile(r"[.,;!?](?=\s|$)|\s(?=(?:but|aber|pero|mais)\s)|[。，；]")
# What stays is said before the verb or behind it.
_STAYS = re.compile(
    r"(?i)\b(?:stays?|remains?|keeps?|(?:is|are|be|left|stay) (?:un\w+|alone)|bleib\w*|unverändert)"
    r"\b|\b(?P<behind>(?:don'?t|do not|never) (?:touch|change)|no (?:cambies|toques)|leave|"
    r"keep(?= the)|(?:is|are) not (?:one of|part of|in))\b|不变|保持|そのまま"
)
_PRONOUNS = frozenset({"it", "them", "that", "those", "they"})


def words_kept(instruction: str) -> set[str]:
    """Return the words that an instruction has only where it says what stays as it is."""
    kept, rest, before = set[str](), set[str](), set[str]()
    for clause in _SENTENCE.split(instruction[:_MOST_READ]):
        words = words_of(clause)
        if found := _STAYS.search(clause):
            is_behind = found["behind"]
            words = words_of(clause[found.end() :] if is_behind else clause[: found.start()])
            if is_behind and words & _PRONOUNS and not words - COMMON - _PRONOUNS:
                words, rest = before, rest - before
            kept |= words
        else:
            rest |= words
        before = words
    return kept - rest - COMMON


def without(text: str, parts: Sequence[str]) -> str:
    """Return a text with blanks in place of some parts."""
    for part in parts:
        text = text.replace(part, " ")
    return text


def _has_like(line: str, others: Sequence[str]) -> bool:
    """Return whether another line has all words of a line, or most of its letters."""
    words, letters = words_of(line), line.strip()[:_MOST_READ]
    return any(
        (words and words <= words_of(one))
        or difflib.SequenceMatcher(None, letters, one.strip()[:_MOST_READ]).ratio() >= _LIKE
        for one in others[:_MOST_READ]
    )


# Scripts without blanks between words; a word is every two letters, or three of those of sounds.
_UNSPACED = re.compile(
    r"[\u3400-\u9fff\uf900-\ufaff\u3040-\u30ff\u3005\U00020000-\U0003ffff]+"
    r"|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+"
)
_ACCENTED = re.compile("[\u00c0-\u024f\u1e00-\u1eff]")  # Latin letters
_SYLLABLES = re.compile(r"[\u3040-\u309f]+")  # most often endings
_COMMON_PAIRS = frozenset({
    "一个", "这个", "那个", "改成", "改为", "添加", "增加", "删除", "修改", "请把",
    "请将", "需要", "应该", "文件", "一行", "追加", "変更", "修正", "削除", "してく",
})  # fmt: skip


def words_of(text: str) -> set[str]:
    """Return the words of a text, and those inside of names such as `maxSize`, in lower case.

    Letters have no accents: keys are often written without those of a sentence.
    """
    text = _ACCENTED.sub(lambda one: unicodedata.normalize("NFD", one[0])[0], text)
    unspaced = _UNSPACED.findall(text)
    text = _UNSPACED.sub(" ", text) if unspaced else text
    text = f"{re.sub(r'(?<=[a-z])-(?=[a-z])', '', text)} {text}"
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    found = re.findall(r"[^\W\d_]+|\d[\d.]*", f"{text} {apart}".lower())
    return {one.rstrip(".") for one in found} | {
        word for run in unspaced for word in _pieces_of(run)
    }


def _pieces_of(run: str) -> set[str]:
    n = 2 if run[0] >= "\u3000" else 3
    pieces = {run[i : i + n] for i in range(max(1, len(run) - n + 1))}
    return {one for one in pieces if not _SYLLABLES.fullmatch(one)} - _COMMON_PAIRS


def _stem(word: str) -> str:
    if len(word) == _FEW:  # "tags" and "tag", "role" and "roles"
        return re.sub(r"(?<![sui])s$|e$", "", word)
    return re.sub(r"(?:ings?|ers?|ed|es|s|e|ies|y)$", "", word) if len(word) > _FEW else word


def shared(asked: Collection[str], words: Collection[str]) -> set[str]:
    stems = {_stem(one) for one in words}
    return {
        one
        for one in asked
        if _stem(one) in stems or any(_is_form(_stem(one), other) for other in stems)
    }


def _is_form(one: str, other: str) -> bool:
    return min(len(one), len(other)) >= _FEW and (one.startswith(other) or other.startswith(one))


def _look_alikes(lines: Sequence[str], at: int, hunk: Hunk) -> list[int]:
    """Return the lines that have the form of a changed line, or what was changed in it."""
    changed = hunk.new[at - hunk.start] if len(hunk.new) == len(hunk.old) else ""
    form, pieces = _form(lines[at]), _pieces(lines[at], changed)
    found = []
    for i, line in enumerate(lines):
        tokens = f" {' '.join(re.findall(_TOKEN, line))} "
        is_like = len(form) >= _FEW and _form(line) == form
        if i != at and (is_like or any(one in tokens for one in pieces)):
            found.append(i)
    return found


def _pieces(old: str, new: str) -> list[str]:
    """Return the old words of each change in a line, with two before them and one behind."""
    one, other = re.findall(_TOKEN, old), re.findall(_TOKEN, new)
    changes = difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes() if new else []
    pieces = [one[max(0, i - 2) : j + 1] for tag, i, j, _, _ in changes if tag == "replace"]
    return [f" {' '.join(piece)} " for piece in pieces if len(piece) > 2]


def _form(line: str) -> str:
    """Return what two lines share that differ in numbers and texts only."""
    line = re.sub(r"\"[^\"]*\"|'[^']*'", '""', line.strip())
    return re.sub(r"\d+", "0", " ".join(line.split())).rstrip(",;")
