"""What speaks against writing a change that a model made: one list of reasons.

The lines are looked at in `hunks.py`, the place of a change in `evidence.py`. Here it is what the
change says: a value that was asked for must be there, what was named together must have changed,
and the entries of data, the cells of tables and the names in prose that were not named must stay.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from .evidence import (
    COMMON,
    doubtful_places,
    shared,
    without,
    words_asked,
    words_kept,
    words_of,
)
from .hunks import (
    ADDS,
    MOVES,
    REMOVES,
    WORDING,
    Hunk,
    apply,
    extends,
    has_entries,
    is_move,
    is_of_several,
    objections,
)  # fmt: skip
from .instruction import QUOTED, Reading
from .parts import without_texts
from .structure import (
    PROSE,
    Atom,
    Change,
    Item,
    Number,
    Order,
    Pairs,
    Row,
    alike_items,
    atoms_of,
    bare_line,
    cells_of,
    changed_runs,
    comments_of,
    data_changes,
    n_of_front_matter,
    tables_of,
    tree_of,
    values_of,
)

_MOST = 2  # reasons of one kind
_LIKE = 0.5


def doubts(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return why a change that a model made is not written without a question."""
    if not hunks:
        return []
    bare = _as_structure(hunks, reading)
    is_selected = _is_selection(hunks, reading) or _are_named(bare, reading)
    found = objections(hunks, bare, reading, is_selected=is_selected)
    found += doubtful_places(bare, reading, is_selected=is_selected)
    found += _of_entries(hunks, reading) if has_entries(reading) else _of_prose(bare, reading)
    found += _not_written(hunks, reading) + _left_out(hunks, reading)
    found += _nothing_gave_way(hunks, reading)
    found += _more_than_removed(bare, reading) + _only_added(hunks, reading)
    found += _misspelt_still(hunks, reading) + _marks_are_gone(hunks, reading)
    return [*dict.fromkeys(found + _more_than_added(bare, reading))]


def _as_structure(hunks: Sequence[Hunk], reading: Reading) -> Sequence[Hunk]:
    """Return the changes without those that others beside them decide, such as a comma.

    All, if there are no others.
    """
    old, new = reading.lines, apply(reading.lines, hunks)
    bare = ([bare_line(line, reading.suffix) for line in lines] for lines in (old, new))
    found = [Hunk(i, tuple(old[i:j]), tuple(new[k:m])) for i, j, k, m in changed_runs(*bare)]
    return found or hunks


# ---- changes at several places that are named together


def _is_selection(hunks: Sequence[Hunk], reading: Reading) -> bool:
    """Return whether one entry changed alike in all records with a value that is named.

    Such as the fee of all rows whose group is `junior`: the new value is named, too, and no other
    number is the same in these records, unless the key of the entry is named.
    """
    asked = words_of(reading.instruction) - COMMON
    for old, new in _record_lists(hunks, reading):
        pairs = [(one, dict(one), dict(other)) for one, other in zip(old, new, strict=True)]
        changed = [before for one, before, after in pairs if before != after]
        edits = {
            tuple(
                (key, str(before.get(key)), str(value))
                for key, value in after.items()
                if before.get(key) != value
            )
            for _, before, after in pairs
            if before != after and before.keys() == after.keys()
        }
        if len(changed) < 2 or len(edits) != 1 or len(edit := next(iter(edits))) != 1:
            continue
        ((key, before, after),) = edit
        values = [(name, value) for name, value in changed[0].items() if name != key]
        same = [
            (name, value)
            for name, value in values
            if all(one.get(name) == value for one in changed)
        ]
        holders = [
            [before for _, before, _ in pairs if before.get(name) == value] for name, value in same
        ]
        is_named = any(
            holding == changed and shared(asked, words_of(f"{value}"))
            for holding, (_, value) in zip(holders, same, strict=True)
        )
        is_figure = bool(_NUMBER.fullmatch(before))
        others = [name for name, value in same if _NUMBER.fullmatch(str(value)) and is_figure]
        is_clear = not others or shared(asked, words_of(f"{key} {before}"))
        if is_named and is_clear and words_of(after) <= words_of(reading.instruction):
            return True
    return False


def _record_lists(
    hunks: Sequence[Hunk], reading: Reading
) -> Iterator[tuple[Sequence[Pairs], Sequence[Pairs]]]:
    """Yield the old and the new records of each list or table, if no other line changed."""
    lines, new = reading.lines, apply(reading.lines, hunks)
    trees = _trees(hunks, reading) if has_entries(reading) else None
    if trees:
        before, after = trees
        found = list(alike_items(before, after))
        n = sum(one != other for old, new in found for one, other in zip(old, new, strict=True))
        yield from found if n == len(data_changes(before, after)) else ()
    for table in tables_of(lines, reading.suffix) if reading.suffix in PROSE else ():
        if all(table.start + 1 < one.start and one.end <= table.end for one in hunks):
            rows = (
                [
                    Row(zip(table.columns, cells_of(line, reading.suffix), strict=False))
                    for line in some
                ]
                for some in (lines[table.start + 2 : table.end], new[table.start + 2 : table.end])
            )
            if len(new) == len(lines):
                yield next(rows), next(rows)


def _are_named(hunks: Sequence[Hunk], reading: Reading) -> bool:
    """Return whether at each of several places a named address gave way to the one that is new."""
    values = [one for one in new_values(reading.instruction) if _is_address(one)]
    rest = without(reading.instruction, values)
    asked = {one for one in words_of(rest) - COMMON if not one[0].isdigit()}
    for hunk in hunks:
        old, new = ("\n".join(lines).split() for lines in (hunk.old, hunk.new))
        runs = changed_runs(old, new)
        gone = " ".join(word for i, j, _, _ in runs for word in old[i:j])
        came = " ".join(word for _, _, k, m in runs for word in new[k:m])
        if not shared(asked, words_of(gone)) or not any(value in came for value in values):
            return False
    return len(hunks) > 1


# ---- entries of data


_TYPES = re.compile(r"(?i)\b(?:numbers?|strings?|texts?|quot\w+|integers?|booleans?|types?)\b")
_NOT_NEEDED = re.compile(
    r"(?i)\b(?:no longer|not|no|without|any ?more|needless|omit|exclude|off)\b"
)
_ANY_ORDER = re.compile(r"(?i)\b(?:alphabetic\w*|first|last|top|bottom|before|after|above|below)\b")
_ADDS_ONE = re.compile(r"(?i)\s*(?:please\s+)?(?:add|append|insert|include)\b")
_MORE = re.compile(
    r"(?i)\b(?:too|also|as well|additionally|in addition|auch|zusätzlich|también|además|aussi)\b"
    r"|也|还"
)
_COMMENTS = re.compile(r"(?i)\bcomment\w*|\buncomment\w*|\bnotes?\b|注释|コメント")
_NUMBER = re.compile(r"[+-]?\d[\d_.,:eE+-]*")
_TRUTH = {"true", "false", "yes", "no", "on", "off"}


def _trees(hunks: Sequence[Hunk], reading: Reading) -> tuple[Any, Any] | None:
    """Return the old and the new entries; None if it is not valid."""
    texts = ("\n".join(lines) + "\n" for lines in (reading.lines, apply(reading.lines, hunks)))
    try:
        before, after = (tree_of(text, reading.name) for text in texts)
    except Exception:  # those of several parsers
        return None
    return before, after


def _of_entries(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return objections to entries that differ, and that the instruction does not name."""
    trees = _trees(hunks, reading)
    if trees is None:
        return []
    changes = data_changes(*trees)
    asked = _Asked(reading)
    is_removal = bool(REMOVES.search(reading.instruction)) or (
        _NOT_NEEDED.search(reading.instruction) is not None
        and not _ADDS_ONE.match(reading.instruction)
    )
    is_sorted = bool(MOVES.search(reading.instruction))
    found = [
        f"the order of the keys of {one.label} changed"
        for one in changes
        if isinstance(one, Order) and not is_sorted
    ]
    plain = [one for one in changes if not isinstance(one, Order)]
    added = [one for one in plain if one.old is None]
    for one in plain:
        moved = (other for other in added if other.new == one.old or other.key == one.key)
        if one.new is None and not is_removal and not any(map(asked.names, moved)):
            found.append(f"{one.label} is gone")
        elif _has_other_type(one) and not _TYPES.search(reading.instruction):
            what = "a text" if isinstance(one.old, Number) else "no text any more"
            found.append(f"{one.label} is {what}")
        elif _MORE.search(reading.instruction) and _is_text(one.old) and _is_text(one.new):
            found.append(f"{one.label} was replaced, and something more was asked for")
    found += asked.unnamed(plain, is_free=is_sorted and is_move(hunks, reading.instruction))
    if not ADDS.match(reading.instruction):
        found += _below_another(added, reading)
    if not _COMMENTS.search(reading.instruction):
        n_gone = sum(one.new is None for one in plain) if is_removal else 0
        before, after = map("\n".join, (reading.lines, apply(reading.lines, hunks)))
        gone = _lost_comments(before, after, reading.name)
        found += [f"a comment is gone: {one[:60]}" for one in gone[n_gone:]]
    return found[:_MOST]


def _below_another(added: Sequence[Change], reading: Reading) -> list[str]:
    """Return an objection to a new entry below one with its key, which then keeps its value."""
    for one in added:
        if not one.path or isinstance(one.path[-1], Item):
            continue  # of a list
        around = tuple(key for key in one.path[:-1] if not isinstance(key, Item))
        for part in reading.parts:
            outer = part.path[:-1]
            is_above = len(outer) < len(around) and around[: len(outer)] == outer
            if part.kind == "key" and part.name == one.key and is_above:
                return [f"{one.label} is new, and {'.'.join(part.path)} stays as it was"]
    return []


def _is_text(value: Any) -> bool:
    is_value = isinstance(value, Number) or str(value).lower() in _TRUTH
    return isinstance(value, str) and not is_value and not _NUMBER.fullmatch(value)


def _has_other_type(change: Change) -> bool:
    """Return whether a text gave way to a number that looks like one, or the other way round."""
    values = (change.old, change.new)
    if not all(isinstance(one, str) for one in values):
        return False
    is_same = isinstance(change.old, Number) == isinstance(change.new, Number)
    is_number = all(_NUMBER.fullmatch(one) for one in values)
    return not is_same and (is_number or all(one.lower() in _TRUTH for one in values))


def _lost_comments(before: str, after: str, name: str) -> list[str]:
    old, new = comments_of(before, name), comments_of(after, name)
    more = [*(new - old)]
    return [
        one
        for one in old - new
        if one not in after and not any(_ratio(one, other) >= _LIKE for other in more)
    ]


def _ratio(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one[:300], other[:300], autojunk=False).ratio()


class _Asked:
    """The words of an instruction, and what they name."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._words = words_of(reading.instruction) - COMMON
        self._is_of_several = is_of_several(reading.instruction)
        self._kept = words_kept(reading.instruction)
        self._numbers = {float(one) for one in re.findall(r"\d+(?:\.\d+)?", reading.instruction)}

    def names(self, change: Change) -> bool:
        """Return whether the key or the value of an entry was named."""
        texts = [*values_of(change.old), *values_of(change.new), change.key]
        if shared(self._words, words_of(" ".join(texts))):
            return True
        value = str(change.new)
        return bool(re.fullmatch(r"\d+(?:\.\d+)?", value)) and float(value) in self._numbers

    def unnamed(self, changes: list[Change], *, is_free: bool) -> list[str]:
        """Return an objection to entries that were to stay, or not named, where others were."""
        for one in changes:
            kept = shared(self._kept, words_of(one.key))
            if kept:
                return [f"{one.label} changed, and {min(kept)} was to stay"]
        if is_free or len(changes) < 2:
            return []
        named = [one for one in changes if self.names(one)]
        rest = [one for one in changes if one not in named]
        if named:
            around = {id(one): self._around(one) for one in named}
            rest += [
                one
                for one in named
                if any(
                    one.key == other.key and around[id(one)] < around[id(other)] for other in named
                )
            ]
        if named:
            return [f"{one.label} changed, too, and was not named" for one in rest[:1]]
        if self._is_of_several or self._reading.is_everywhere:
            return []
        return [f"{len(rest)} entries changed, and none of them was named"]

    def _around(self, change: Change) -> set[str]:
        """Return the words in the path of an entry, and in the records that it is in."""
        records = [one.entries or () for one in change.path if isinstance(one, Item)]
        texts = [
            value
            for record in records
            for key, value in record
            if key != change.key and isinstance(value, str) and not isinstance(value, Number)
        ]
        return shared(self._words, words_of(" ".join([*change.path, *texts])))


# ---- prose


_REWRITES = re.compile(
    r"(?i)\b(?:rewrite|simplif\w+|shorten|summar\w+|merge|convert|clean\w*|re-?number|bullet\w*|"
    r"uppercase|lowercase|capital\w*)\b|^\s*(?:please\s+)?(?:number|sort|order|format|turn|wrap)\b"
)
# Words of an instruction that name a kind of atoms.
_KIND_WORDS = {
    "code": r"code|examples?|commands?|snippets?|backquotes?|backticks?|blocks?",
    "link": r"links?|urls?|addresse?s?|hyperlinks?|sites?|website|homepage",
    "address": r"e-?mails?|addresse?s?|contact",
    "path": r"paths?|files?|folders?|director\w+",
    "front matter": r"front ?matter|meta\w*|title|tags?|date|author|header|draft",
    "tag": r"tags?|html|attributes?|placeholders?|variables?",
    "name": r"names?|rename\w*|identifiers?|flags?|options?|functions?",
    "number": r"numbers?|dates?|years?|prices?|times?|versions?|amounts?|figures?|phone|telephone",
    "key": r"keys?|names?",
}
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)]|\||<(?:tr|li|option|d[td])\b)")
_HTML = {".html", ".htm"}


def _of_prose(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return objections to what is no prose, and to lines without a word of the instruction."""
    if reading.suffix in _HTML:
        return _other_lines(hunks, reading)
    if reading.suffix not in PROSE:
        return _of_code(hunks, reading)
    found = _lost_atoms(hunks, reading) + _of_front_matter(hunks, reading)
    if reading.suffix == ".rst":
        found += _short_underlines(reading.lines, apply(reading.lines, hunks))
    return (found + _other_lines(hunks, reading))[:_MOST]


_UNDERLINE = re.compile(r"([=\-~^\"'`#*+:.<>_])\1{2,}\s*")


def _short_underlines(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """Return an objection to a heading of reStructuredText that is longer than its new line."""

    def short(lines: Sequence[str]) -> dict[str, int]:
        pairs = enumerate(itertools.pairwise(lines), 2)
        return {
            title: i
            for i, (title, line) in pairs
            if _UNDERLINE.fullmatch(line)
            and title.strip()
            and not _UNDERLINE.fullmatch(title)
            and len(line.rstrip()) < len(title.rstrip())
        }

    found = [i for title, i in short(new).items() if title not in short(old)]
    return [f"the underline in line {found[0]} is shorter than its heading"] if found else []


def _of_front_matter(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to an entry above a text that was not named, where another one was."""
    texts = (reading.lines, apply(reading.lines, hunks))
    heads = ["\n".join(lines[1 : n_of_front_matter(lines)][:-1]) for lines in texts]
    try:
        changes = data_changes(*(tree_of(one, "a.yaml") for one in heads))
    except Exception:  # it is in another language, or no longer valid
        return []
    if reading.suffix == ".txt" or not all(heads):
        return []
    return _Asked(reading).unnamed(changes, is_free=reading.is_everywhere)


def _lost_atoms(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    instruction = reading.instruction
    old, new = (
        atoms_of(lines, reading.suffix) for lines in (reading.lines, apply(reading.lines, hunks))
    )
    asked, more = words_of(instruction) - COMMON, [*(new - old)]
    kept = words_kept(instruction)
    is_wording = bool(WORDING.search(instruction)) and not REMOVES.search(instruction)
    for atom in old - new:
        words = words_of(atom.text)
        is_named = atom.text.lower() in instruction.lower() or (words and words <= asked)
        kinds = _KIND_WORDS[atom.kind]
        is_kept = re.search(
            rf"(?i)\b(?:not|except|without|never)\b[^.;]*\b(?:{kinds})\b", instruction
        ) or re.search(rf"(?i)\b(?:{kinds})\b", " ".join(kept))
        if is_kept:
            return [f"{atom.text[:60]} was changed, which was to stay"]
        if is_named or re.search(rf"(?i)\b(?:{kinds})\b", instruction):
            continue
        others = [one for one in more if one.kind == atom.kind]
        is_replaced = any(shared(asked, words_of(one.text)) for one in others)
        is_free = not is_wording and (atom.kind == "number" or is_replaced or words & asked)
        if is_free or (not is_wording and not _is_changed(atom, others)):
            continue
        return [f"{atom.text[:60]} was changed, and was not named"]
    return []


def _is_changed(atom: Atom, others: Sequence[Atom]) -> bool:
    """Return whether an atom has another form now, rather than gone with its sentence."""
    return any(_ratio(atom.text, one.text) >= _LIKE for one in others)


def _other_lines(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to a line without a word of the instruction, where others have one."""
    instruction = reading.instruction
    is_free = reading.is_everywhere or WORDING.search(instruction) or _REWRITES.search(instruction)
    if is_free or is_move(hunks, instruction):
        return []
    asked = words_asked(reading)
    units = [
        (start, shared(asked, words_of("\n".join(old))), words_of("\n".join([*old, *new])))
        for start, old, new in _units(hunks)
        if "".join("".join(old).split()) != "".join("".join(new).split())
    ]
    is_at_old = any(at_old for _, at_old, _ in units)  # else the words of the new lines count, too
    named = [at_old if is_at_old else shared(asked, words) for _, at_old, words in units]
    alike = [] if is_of_several(instruction) else _alike(hunks)
    for (start, _, words), own in zip(units, named, strict=True):
        others = [other for other in named if own < other]
        beside = [at for some in alike if start in some for at in some]
        is_less = any(
            own < other for (at, *_), other in zip(units, named, strict=True) if at in beside
        )
        if words and ((others and not own) or is_less):
            return [f"line {start + 1} changed, too, and what it says was not named"]
    return []


def _alike(hunks: Sequence[Hunk]) -> list[list[int]]:
    """Return the lines with the same change, where there are several."""
    found: dict[tuple[str, ...], list[int]] = {}
    for start, old, new in _units(hunks):
        if len(old) == len(new) == 1:
            one, other = (re.findall(r"\w+|[^\w\s]", line) for line in (*old, *new))
            runs = changed_runs(one, other)
            pieces = (" ".join(some) for i, j, k, m in runs for some in (one[i:j], other[k:m]))
            found.setdefault(tuple(pieces), []).append(start)
    return [some for some in found.values() if len(some) > 1]


def _units(hunks: Sequence[Hunk]) -> Iterator[tuple[int, Sequence[str], Sequence[str]]]:
    """Yield the changes of old lines; those of items and rows line by line."""
    for hunk in hunks:
        is_listed = len(hunk.old) == len(hunk.new) and (
            all(map(_ITEM.match, hunk.old))
            or all(_ratio(*pair) >= _LIKE for pair in zip(hunk.old, hunk.new, strict=True))
        )
        if not is_listed and any(map(str.strip, hunk.old)):
            yield hunk.start, hunk.old, hunk.new
        for i, pair in enumerate(zip(hunk.old, hunk.new, strict=True) if is_listed else ()):
            yield hunk.start + i, pair[:1], pair[1:]


_COMMENTED = re.compile(r"(?i)\b(?:comments?|docstrings?|documentation)\b")


def _of_code(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if code changed, and only the wording was to be corrected."""
    is_wording = re.search(
        r"(?i)\b(?:spell\w*|misspell\w*|typos?|grammar|proof-?read\w*)\b", reading.instruction
    )
    mark = {"braces": "//", "python": "#", "shell": "#"}.get(reading.language.parts, "")
    if not is_wording or not mark:
        found = _more_than_renamed(hunks, reading) + _half_renamed(hunks, reading, mark or "//")
        found = found or _name_is_left(hunks, reading, mark or "//")
        return found + _not_declared(hunks, reading, mark or "//")
    old, new = (_code(lines, mark) for lines in (reading.lines, apply(reading.lines, hunks)))
    for i, _, k, _ in changed_runs(old, new):
        before, after = (text[at] if at < len(text) else "" for text, at in ((old, i), (new, k)))
        if before.lower() not in reading.instruction.lower() or not before:
            return [f"{(before or after)[:60]}, which is code, was changed"]
    return []


# A name behind a word that declares it, such as in `def total(`, `int *total =`, `#define TOTAL 3`.
_DECLARES = (
    "def|defn?p?|defmodule|func|function|fn|fun|sub|class|struct|union|interface|trait|protocol|enum|type|"
    "record|module|namespace|macro|let|var|val|const|static|mut|local|my|our|table|view|procedure|"
    "property|alias|object"
)
_NO_TYPE = (
    "return|yield|await|throw|new|case|else|in|not|and|or|is|as|goto|extends|implements|delete"
)
_NAME = r"[*&]*[ \t]+[*&$]{0,3}(?P<name>[^\W\d]\w*)[ \t]*(?P<behind>[=(;:,)\[{<]|$)"
_DEFINED = r"\#[ \t]*define[ \t]+(?P<macro>\w+)"
_DECLARED = re.compile(rf"(?im){_DEFINED}|(?<![\w.])(?:{_DECLARES}){_NAME}")
_TYPED = re.compile(rf"(?m){_DEFINED}|(?<![\w.])(?!(?:{_NO_TYPE})\b)[^\W\d][\w\]<>]*{_NAME}")
_TYPES_FIRST = {".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".cs", ".dart", ".groovy", ".m"}


_RENAMES = re.compile(
    r"(?i)\brename\b[^.;]*?(?<!of )(?<![\w$@%-])(?P<old>[\w$@%-]+)[`\"']?\s+(?:in)?to\s+[`\"']?"
    r"(?P<new>[\w$@%-]+)"
)
_AND_MORE = re.compile(r"(?i)\band\b|\bthen\b|[,;]\s*\w+ (?:the|a)\b|\.\s+\w")


def _more_than_renamed(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if other words changed where a name was to be renamed."""
    found = _RENAMES.search(reading.instruction)
    if not found or _AND_MORE.search(reading.instruction[found.start("new") :]):
        return []
    plain = found["old"].strip("$@%-").lower()
    for hunk in hunks:
        old, new = (re.findall(r"\w+", "\n".join(lines)) for lines in (hunk.old, hunk.new))
        for i, j, _, _ in changed_runs(old, new):
            others = [one for one in old[i:j] if plain not in one.lower()]
            if others:
                return [f"{others[0][:60]} changed, too, and only {found['old']} was to be renamed"]
    return []


def _half_renamed(hunks: Sequence[Hunk], reading: Reading, mark: str) -> list[str]:
    """Return an objection if a declaration has a new name, and the old one is still used."""
    before, after = (
        without_texts([*one], mark) for one in (reading.lines, apply(reading.lines, hunks))
    )
    pattern = _TYPED if reading.suffix in _TYPES_FIRST else _DECLARED
    old, new = (
        {one["macro"] or one["name"]: one["behind"] for one in pattern.finditer("\n".join(lines))}
        for lines in (before, after)
    )
    words = {one for line in before for one in re.findall(r"\w+", line)}
    if not new.keys() - old.keys() - words:
        return []
    for name in old.keys() - new.keys():
        others = "" if old[name] == "(" else r"(?<![.>:])"  # a member of the name is another thing
        used = re.compile(rf"(?<![\w\"'`-]){others}{re.escape(name)}(?![\w-])")
        at = next((i for i, line in enumerate(after) if used.search(line)), -1)
        if at >= 0:
            return [f"{name} has another name now, and line {at + 1} still uses it"]
    return []


_IN_PART = re.compile(
    r"(?i)\b(?:only|just|nur|seulement|uniquement|solo|solamente|apenas|instead|rather)\b|只|だけ"
)


def _name_is_left(hunks: Sequence[Hunk], reading: Reading, mark: str) -> list[str]:
    """Return an objection if a name gave way to a new one at one place, and stands at others.

    Both are named in the instruction, and nothing else changed, so it is a rename, and a name has
    more than one place.
    """
    if _IN_PART.search(reading.instruction):
        return []
    before, after = (
        without_texts([*one], mark) for one in (reading.lines, apply(reading.lines, hunks))
    )
    known = {one for line in before for one in re.findall(r"\w+", line)}
    asked = {*re.findall(r"\w+", reading.instruction)}
    found = [
        (old[i:j], new[k:m])
        for hunk in hunks
        for old, new in [[re.findall(r"\w+", "\n".join(one)) for one in (hunk.old, hunk.new)]]
        for i, j, k, m in changed_runs(old, new)
    ]
    for (old, *more), (new, *others) in found if len(found) == 1 and all(found[0]) else ():
        is_rename = not more and not others and {old, new} <= asked and new not in known
        if not is_rename or old[0].isdecimal():
            continue
        used = re.compile(rf"(?<![\w\"'`-]){re.escape(old)}(?![\w-])")
        at = next((n for n, line in enumerate(after) if used.search(line)), -1)
        if at >= 0:
            return [f"{old} is {new} now, and line {at + 1} still has {old}"]
    return []


def _not_declared(hunks: Sequence[Hunk], reading: Reading, mark: str) -> list[str]:
    """Return an objection to a new name that a class of the file is asked for and does not have."""
    owners = {one.name for one in reading.parts if one.kind == "class"}
    before, after = (
        "\n".join(without_texts([*one], mark))
        for one in (reading.lines, apply(reading.lines, hunks))
    )
    words = set(re.findall(r"\w+", before))
    for used in re.finditer(r"(?<![\w.])(\w+)(?:\.|::)(\w+)(?!\w|\s*\()", after):
        owner, name = used.groups()
        is_new = owner in owners and name not in words and name in reading.instruction
        if is_new and not re.search(rf"(?<![\w.:]){re.escape(name)}(?!\w)", after):
            return [f"{owner}.{name} is used, and {owner} has no {name}"]
    return []


def _code(lines: Sequence[str], mark: str) -> list[str]:
    """Return the words of code, without comments and texts."""
    text = "\n".join(without_texts([*lines], mark))
    text = re.sub(r'"""[^"]*"""|\'\'\'[^\']*\'\'\'|"[^"\n]*"|\'[^\'\n]*\'', '""', text)
    return re.findall(r"\w+|[^\w\s]", text)


_ADDS_TEXT = re.compile(r"(?i)\s*(?:please\s+)?(?:add|append|insert)\s+[`\"'“「]")


def _more_than_added(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to lines that were replaced elsewhere, where only something was added."""
    new = [one for one in hunks if not any(line.strip() for line in one.old)]
    is_plural = is_of_several(reading.instruction) and reading.suffix not in PROSE
    is_addition = ADDS.match(reading.instruction) or _ADDS_TEXT.match(reading.instruction)
    if is_plural or not is_addition or not (new or reading.suffix in PROSE):
        return []
    for one in hunks:
        if one not in new and not extends(one):
            return [f"line {one.start + 1} was replaced, and only an addition was asked for"]
    return _said_again(new, reading)


_REMOVES_ONLY = re.compile(r"(?i)\s*(?:please\s+)?(?:remove|delete|drop|get rid of)\s")
_ALSO = re.compile(
    r"(?i)\b(?:instead|replace|so that|and\s+(?:add|call|let|make|move|return|say|use))\b"
)


def _more_than_removed(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to new lines that are like no old ones, where something was to go."""
    asked = reading.instruction
    if not _REMOVES_ONLY.match(asked) or _ALSO.search(asked) or is_move(hunks, asked):
        return []
    for hunk in hunks:
        for i, line in enumerate(hunk.new):
            is_short = len(line.strip()) <= _SHORT_LINE  # such as `pass`
            if not is_short and not any(
                _ratio(line.strip(), one.strip()) >= _LIKE for one in hunk.old
            ):
                return [f"line {hunk.start + i + 1} is new, and only a removal was asked for"]
    return []


_MOVES_IT = re.compile(
    r"(?i)(?:^|[,.;:!]\s*|\b(?:please|and|then|so)\s+)move\b(?=.*\b(?:to|into|in|under|below|above|behind|"
    r"after|before)\b)|\bverschieb\w*|\bdéplace\w*|\bmuev[ae]\b|\bmova\b|移动|移到|移動"
)


def _only_added(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if something was to be moved, and nothing is gone where it stood."""
    if ADDS.match(reading.instruction) or not _MOVES_IT.search(reading.instruction):
        return []
    if all(extends(one) or not any(line.strip() for line in one.old) for one in hunks):
        return ["nothing is gone from the place where it stood"]
    return []


_SPELLING = re.compile(
    r"(?i)\b(?:mis)?spel(?:l\w*|t)\b|\btypos?\b|\brechtschreib\w*|\btippfehler\b|\borthograph\w*|"
    r"\bortograf\w*|错别字|拼写|错字|誤字"
)


_KEEPS = re.compile(
    r"(?i)\b(?:not|leave|keeps?|stays?|except|but|only|just)\b|n['’]t\b|\b(?:nicht|nur|pas|no|solo)\b"
)


def _misspelt_still(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if a named word was corrected at one place, and stands at another."""
    asked = reading.instruction
    if not _SPELLING.search(asked) or _KEEPS.search(asked) or _COMMENTED.search(asked):
        return []
    gone = {
        word.lower()
        for hunk in hunks
        for word in re.findall(r"\w{4,}", "\n".join(hunk.old))
        if word not in "\n".join(hunk.new)
    }
    named = gone & {one.lower() for one in re.findall(r"\w{4,}", reading.instruction)}
    kept = {i for part in reading.kept for i in range(part.start, part.end)}
    for i, line in enumerate(apply(reading.lines, hunks)):
        left = named & {one.lower() for one in re.findall(r"\w{4,}", line)}
        if left and i not in kept:
            return [f"{min(left)} still stands in line {i + 1}"]
    return []


_TAG = re.compile(r"</?[a-zA-Z][\w-]*(?:\s[^<>]*)?/?>")
_OF_MARKS = re.compile(
    r"(?i)<|\b(?:tags?|mark\w*|html|format\w*|italics?|bold|plain|clean\w*|elements?|links?|kursiv|fett)\b"
)


def _marks_are_gone(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to a line that lost nothing but its tags, which nobody asked for."""
    if _OF_MARKS.search(reading.instruction):
        return []
    for hunk in hunks:
        new = {" ".join(line.split()) for line in hunk.new}
        for i, line in enumerate(hunk.old):
            bare = _TAG.sub("", line)
            if bare != line and bare.strip() and " ".join(bare.split()) in new:
                return [f"the marks of line {hunk.start + i + 1} are gone"]
    return []


def _said_again(new: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to new prose that says nothing but what other lines of the text say."""
    if reading.suffix not in PROSE or is_move(new, reading.instruction):
        return []
    if _REPEATS.search(reading.instruction):
        return []
    known = {line.strip(): i for i, line in enumerate(reading.lines)}
    lines = [line.strip() for hunk in new for line in hunk.new if len(line.strip()) > _SHORT_LINE]
    again = [known[line] for line in lines if line in known]
    if len(again) > 1 and 2 * len(again) > len(lines):
        return [f"the new lines stand in the text already, from line {min(again) + 1} on"]
    return []


_REPEATS = re.compile(r"(?i)\b(?:again|cop(?:y|ies)|duplicates?|repeat|same|twice)\b")
_SHORT_LINE = 12  # characters of a line that may stand at several places, such as a heading


# ---- what was asked for


_ADDRESS = (
    r"[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+|(?:https?|ftp|file|ssh)://[^\s\"'`<>,;]*[^\s\"'`<>,;.:!?)]"
    r"|(?:~|\.{1,2})?/[\w./-]*[\w-]|\b[\w-]{1,60}(?:/[\w-]{1,60}){0,9}/[\w-]{1,60}(?:/[\w-]+|\.\w+)\b"
    r"|\b[a-z][\w-]{0,60}(?:\.[\w-]{1,60}){1,9}\b|\#[0-9a-f]{3,8}\b"
)
_FIGURE = r"[\^~v+-]?\d(?:[\d.,:/+-]*\d)?(?:\s\d+)*(?:px|r?em|ms|[kmg]i?b|[smhk])?%?"
_TEXT = r"`[^`]+`|\"[^\"]+\"|“[^”]+”|(?<!\w)'[^']+'(?!\w)|「[^」]+」"
_NOUNS = (
    r"(?:(?:the|an?|its|their|our|new|port|words?|texts?|value|number|version|date|address|e-?mail|url|"
    r"link|path|file|colou?r|title|heading|name|phone|telephone|string|type|host|size|price|about|"
    r"exactly|around|only|now|just|at)\s+){0,3}"
)
_LINKS = (
    "to|into|with|through|via|becomes?|be|says?|saying|called|named|cost|costs|is|are|now|use|uses|write|put|add|"
    "insert|append|auf"
)
_PREPOSITION = (
    "in|on|to|at|of|for|about|after|before|above|below|from|under|that|which|like|behind|beside"
)
_NEW_VALUE = re.compile(
    rf"(?i)(?:(?<![\w-])(?P<link>{_LINKS})\s+{_NOUNS}|(?:改成|改为|改為|设为|設為|换成|=|->|→)\s*)"
    rf"(?P<value>{_TEXT}|{_ADDRESS}|{_FIGURE})"
    rf"|(?<![\w.])(?P<instead>{_ADDRESS}|{_FIGURE})(?=\s+(?:instead\s+of|rather\s+than)\b)"
    r"|(?<![\w-])(?:add|insert|append|put)\s+"
    rf"(?:(?!(?:{_PREPOSITION})\b)\w+\s+){{1,4}}(?P<text>{_TEXT})"
)
_NO_VALUE = re.compile(
    r"(?i)(?:\b(?:lines?|sections?|steps?|chapters?|pages?|rows?|columns?|items?|parts?|figures?|"
    r"points?|below|above|over|under|than|least|most|up|down|between|if|when|after|before|like|same|"
    r"similar|compared|according|due|related|belongs?|links?|refers?|next|close|equal|identical|not|"
    r"never|longer|without|would|could|may|might)|n't)\s*(?:\d+\s*)?$"
)
_GOES_THERE = re.compile(
    r"(?i)\s*(?:please\s+)?(?:add|insert|append|move|put|copy|attach|assign|apply|give|prepend|link)\b"
)
_HAS_WITH = re.compile(
    r"(?i)\s*(?:please\s+)?(?:add|insert|append|replace|create|fill|start|begin|end)\b"
)
_IS_COUNT = re.compile(
    r"(?i)\s+(?!(?:and|in|for|on|of|at|instead|as|so|everywhere|not|but|only|now|when|if|euros?|"
    r"dollars?|percent)\b)[a-z]"
)
_NOW = re.compile(r"(?i)\s*(?:\w+\s+)?now\b|\s*(?:from|as of)\s+now")
_FACTORS = {1, 60, 3600, 24, 7, 86400, 100, 1000, 1024, 1_000_000, 1024**2, 1024**3}
_AS_WORDS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve",
]  # fmt: skip


def _not_written(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if a value that the instruction names as the new one is nowhere."""
    old, new = (
        "\n".join(line for hunk in hunks for line in getattr(hunk, which))
        for which in ("old", "new")
    )
    whole = "\n".join(reading.lines)
    values = [*new_values(reading.instruction)]
    if not old.strip():  # a quoted text is new, or it says where
        found = (next(filter(None, one.groups())) for one in QUOTED.finditer(reading.instruction))
        values += [one for one in found if _folded(one) not in _folded(whole)]
    for value in values:
        if not _is_written(value, old, new, whole):
            return [f"{value[:60]} is not in what was written"]
    return []


def new_values(instruction: str) -> Iterator[str]:
    """Yield the texts, addresses and numbers that an instruction names as new ones."""
    text = instruction[:2000]
    for found in _NEW_VALUE.finditer(text):
        before, behind = text[: found.start()], text[found.end() :]
        value, link = (
            found["value"] or found["text"] or found["instead"],
            (found["link"] or "").lower(),
        )
        is_quoted = value[0] in "`\"“'「"
        is_figure = not is_quoted and not re.search(r"[@/]|[a-z]\.", value) and value[0] != "#"
        is_no_value = (
            _NO_VALUE.search(before)
            or re.match(r"[\w-]|\s*[-–]\s*\d|\s*[ap]\.?m\b|\(", behind)
            or (link in {"to", "into"} and _GOES_THERE.match(text))
            or (link == "with" and not _HAS_WITH.match(text))
            or (
                found["instead"] and re.search(r"(?i)(?<!u)s\s+$|\bis\s", before)
            )  # what it does now
            or (is_figure and link == "to" and _is_range(before))
            or (link in {"is", "are"} and not _NOW.search(found[0]) and not _NOW.match(behind))
            or (is_figure and link in {"add", "insert", "append", "put", "write"})
            or (is_figure and link not in {"to", "be"} and _IS_COUNT.match(behind))
        )
        if not is_no_value:
            yield value[1:-1] if is_quoted else value


_NEW_FOR_OLD = re.compile(
    r"(?i)\b(?:new|neue[rs]?|nuev[oa]|nouve(?:au|lle))\s+[\w-]+\s+(?:is|are|ist|sind|lautet|es|est)\b|"
    r"\bis\s+now\b|\bist\s+jetzt\b|\bes\s+ahora\b"
)


def _nothing_gave_way(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if a new value was added to a line, and the old one is still there."""
    if not _NEW_FOR_OLD.search(reading.instruction) or not any(any(one.old) for one in hunks):
        return []
    for hunk in hunks:
        old, new = (re.findall(r"\w+", "\n".join(lines)) for lines in (hunk.old, hunk.new))
        if any(i < j for i, j, _, _ in changed_runs(old, new)):
            return []
    return ["nothing gave way to what is new"]


def _is_range(before: str) -> bool:
    """Return whether a number is the end of a range such as `0 to 9`."""
    verbs = (
        r"(?i)\b(?:change|increase|raise|lower|reduce|set|bump|update|from|replace|correct|make)\b"
    )
    return bool(re.search(r"\d\s*$", before)) and not re.search(verbs, before)


def _is_written(value: str, old: str, new: str, whole: str) -> bool:
    """Return whether a value stands in new lines.

    Args:
        whole: The old text: what it has already may be a description.
    """
    text, shown = _folded(value), _folded(new)
    if re.search(r"[^\W\d_]{3}|@|[^\W\d_].*\.|[^\d\s.,:/+%-]{2}|^#|^/", text):
        text = text.strip(".!?,:; ")
        pattern = rf"(?<![\w@]){re.escape(text)}(?![\w@]|[./-]\w|/$|/[\s)])"
        return any(
            re.search(pattern, one)
            for one in (shown, *([] if _is_address(value) else [_folded(whole)]))
        )
    alone = re.compile(rf"(?<![\w.,]){re.escape(text)}(?!\w|[.,:/-]\w)")
    if len(alone.findall(shown)) > len(alone.findall(_folded(old))):
        return True  # such as a version, or a date of which one number stays
    wanted = _numbers(text)
    there, were = _numbers(shown), _numbers(_folded(old))
    for one in wanted:
        forms = {one * n for n in _FACTORS} | {one / n for n in _FACTORS}
        n_new, n_old = (sum(number in forms for number in some) for some in (there, were))
        if n_new <= n_old and not (one < len(_AS_WORDS) and _AS_WORDS[int(one)] in shown):
            return False
    return True


def _is_address(value: str) -> bool:
    return re.search(r"\s", value) is None and re.search(r"[@/]|\.\w|^#", value) is not None


def _numbers(text: str) -> list[float]:
    """Return the numbers in a text; a comma is read in each way that it may be meant."""
    text = text.replace("_", "")
    forms = [text] + [re.sub(r"(?<=\d),(?=\d)", mark, text) for mark in (".", "") if "," in text]
    found = [re.findall(r"\d+(?:\.\d+)?", one) for one in forms]
    return [float(one) for one in {*found[0]} for _ in range(found[0].count(one))] + [
        float(one) for some in found[1:] for one in some if one not in found[0]
    ]


def _folded(text: str) -> str:
    """Return a text without what stands for the same character in another form."""
    text = text.replace("\\", "").replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    text = text.translate({0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " "})
    return " ".join(text.split()).lower()


_GLUE = re.compile(
    r"(?i)[\s,;`\"'“”()]*(?:(?:and|or|then|und|y|et|及|和|与|と|、|，)[\s`\"'“”(]*|,\s*)"
    r"(?:(?:the|of|in|also|to|for|function|method|class|key|section|box|item|row|task)s?[\s`\"'“”(]+)*"
)
_NO_LIST = re.compile(
    r"(?i)\b(?:between|like|as|from|than|unlike|after|before|above|below|except|not|leave|keep|either)\s+"
    r"(?:\w+\s+){0,2}[`\"'“]?$"
)


def _left_out(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection if of the things that are named together one did not change."""
    if is_move(hunks, reading.instruction) or MOVES.search(reading.instruction):
        return []
    text = reading.instruction[:2000]
    things = sorted(_things(text, reading))
    lists: list[list[tuple[int, int, str]]] = []
    for one in things:
        if lists and one[0] < lists[-1][-1][1]:
            continue  # in the one before it
        if lists and _GLUE.fullmatch(text[lists[-1][-1][1] : one[0]]):
            lists[-1].append(one)
        else:
            lists.append([one])
    for listed in lists:
        if len(listed) < 2 or _NO_LIST.search(text[: listed[0][0]]):
            continue
        is_changed = {name: _is_changed_in(name, hunks, reading) for _, _, name in listed}
        if any(is_changed.values()) and not all(is_changed.values()):
            left = next(name for name, is_one in is_changed.items() if not is_one)
            return [f"{left}, which was named, did not change"]
    return []


def _things(text: str, reading: Reading) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and name of the parts and quoted texts that an instruction names."""
    whole = "\n".join(reading.lines)
    for found in QUOTED.finditer(text):
        name = next(filter(None, found.groups()))
        if name in whole:
            yield found.start(), found.end(), name
    for name in {one.name for one in reading.parts if one.name in text and len(one.name) > 1}:
        for found in re.finditer(rf"(?<![\w.$-]){re.escape(name)}(?![\w$-])", text):
            yield found.start(), found.end(), name


def _is_changed_in(name: str, hunks: Sequence[Hunk], reading: Reading) -> bool:
    places = [(one.start, one.end) for one in reading.parts if one.name == name]
    if not places:
        places = [(i, i + 1) for i, line in enumerate(reading.lines) if name in line]
    for hunk in hunks:
        n_new = len(hunk.new) > len(hunk.old)  # lines beside a part may belong to it
        if any(start < hunk.end + n_new and hunk.start < end + n_new for start, end in places):
            return True
        if any(name in line for line in (*hunk.old, *hunk.new)):
            return True
    return False
