"""The changes of an edit: where they are, and what speaks against writing them."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from .instruction import Reading
from .parts import UNREADABLE, Part, parts_of, symbol_tables
from .structure import PROSE, changed_runs, data_kind, doubled_key, table_row, tree_of

# a change that removes more than this share of the lines is asked about
_MOST_REMOVED = 0.2
_N_CONTEXT = 3
_MANY = 500  # words
_N_NEAR = 100  # lines
_MOST_READ = 300  # characters of a line that is compared with others


@dataclass(frozen=True)
class Hunk:
    """One change: old lines that give way to new ones.

    Attributes:
        start: The first old line, from 0; where `old` is empty, the new lines come before it.
        old: Old lines.
        new: New lines.
        is_outside: Whether it is outside of the parts that the instruction lets change.
    """

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    is_outside: bool = False

    @property
    def end(self) -> int:
        """The old line behind it."""
        return self.start + len(self.old)

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain data, with the number of its first line from 1."""
        return {
            "line": self.start + 1,
            "old": list(self.old),
            "new": list(self.new),
            "outside": self.is_outside,
        }


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends; only a line feed ends a line, as for git."""
    return text.removesuffix("\n").split("\n")


def hunks_between(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """Return the changes that lead from old lines to new ones."""
    return [Hunk(i, tuple(old[i:j]), tuple(new[k:m])) for i, j, k, m in changed_runs(old, new)]


def apply(lines: Sequence[str], hunks: Iterable[Hunk]) -> list[str]:
    new, at = list[str](), 0
    for hunk in sorted(hunks, key=lambda one: (one.start, one.end)):
        new += [*lines[at : hunk.start], *hunk.new]
        at = hunk.end
    return [*new, *lines[at:]]


def with_old_spelling(
    old: Sequence[str], new: Sequence[str], instruction: str, name: str = ""
) -> list[str]:
    """Return new lines, with the old blanks and quotes in lines that are otherwise the same.

    Models drop blanks at the end of a line, and write blanks for tabs, straight quotes for
    typographic ones, and other blanks in the rows of a table.
    """
    spelling = (
        r"(?i)\b(whitespace|blanks?|spaces?|tabs?|indent\w*|quotes?|quotation|trailing|align\w*|"
        r"re-?format\w*|padd\w+)\b"
    )
    if re.search(spelling, instruction):
        return list(new)
    result, at, is_prose = list[str](), 0, PurePath(name).suffix.lower() in PROSE
    plain = ([_plain(one, is_prose=is_prose) for one in lines] for lines in (old, new))
    for i, j, k, m in changed_runs(*plain):
        result += [*old[at:i], *new[k:m]]
        at = j
    result += old[at:]
    tabs = [line for line in old if line.startswith("\t")]
    if tabs and not any(line.startswith("  ") for line in old):
        width = next((len(one) - len(one.lstrip(" ")) for one in result if one.startswith("  ")), 4)
        for i, line in enumerate(result):
            n_tabs, n_blanks = divmod(len(line) - len(line.lstrip(" ")), width)
            if line.startswith("  "):
                result[i] = "\t" * n_tabs + " " * n_blanks + line.lstrip(" ")
    return result


def _plain(line: str, *, is_prose: bool) -> str:
    line = line.rstrip().translate(
        {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ", 0x2013: "-", 0x2014: "-"}
    )
    body = line.lstrip()
    if is_prose and body[:1] == "|" == body[-1:]:
        return table_row(body)
    indent = line[: len(line) - len(body)]
    return indent.replace("\t", "    ") + body


# ---- what speaks against writing them


def objections(
    hunks: Sequence[Hunk], bare: Sequence[Hunk], reading: Reading, *, is_selected: bool = False
) -> list[str]:
    """Return why a change is not written without a question; nothing if it can be.

    Args:
        bare: The changes without those of commas and blanks that others beside them decide.
        is_selected: Whether the changes are at all places of a kind that the instruction names.
    """
    old, instruction, found = reading.lines, reading.instruction, list[str]()
    new = apply(old, hunks)
    is_data = has_entries(reading)  # whose lost entries and comments are found by its tree
    moved = {line.strip() for hunk in hunks for line in hunk.new}
    lost = (line for hunk in bare for line in _lost(hunk, is_named=bool(reading.scope)))
    removed = [line for line in lost if line.strip() not in moved]
    is_removal = bool(REMOVES.search(instruction))
    n_old, n_gone = len(old), sum(len(one.old) - len(one.new) for one in bare)
    if n_gone > max(3, _MOST_REMOVED * n_old):
        found.append(f"{n_gone:,} of {n_old:,} lines are gone")
    is_small_removal = is_removal and n_gone < _MOST_REMOVED * n_old
    loses_end = any(one.end == n_old and len(one.old) > len(one.new) for one in bare)
    if n_old > 5 and not is_small_removal and loses_end:
        found.append("the end of the text is gone")
    is_reworded = WORDING.search(instruction) and n_gone <= 0
    if not (is_removal or is_data or is_reworded) and removed:
        found.append(f"{counted_noun(len(removed), 'line')} removed: {removed[0].strip()[:60]}")
    if ADDS.match(instruction) and hunks and n_gone >= 0 and not any(map(extends, bare)):
        found.append("no line was added")
    if hunks and not any(line.strip() for hunk in hunks for line in (*hunk.old, *hunk.new)):
        found += [] if _BLANK.search(instruction) else ["only empty lines are changed"]
    text_before, text_after = "\n".join(old), "\n".join(new)
    beside = (place[1] for place in _BESIDE.finditer(instruction))
    gone = (text for text in beside if text in text_before and text not in text_after)
    found += [f"{text} is gone" for text in gone]
    found += _not_added(hunks, instruction)
    found += [] if is_data else _names_gone(reading, new) + _parameters_gone(reading, new)
    found += [] if is_selected else _too_many_places(bare, reading)
    return found + no_longer_valid(old, new, reading.name)


def extends(hunk: Hunk) -> bool:
    """Return whether every old line has all its words in a new one, in their order, and more."""
    return bool(hunk.old and hunk.new != hunk.old) and all(
        any(_is_longer(line, one) for one in hunk.new) for line in hunk.old if line.strip()
    )


def _is_longer(line: str, other: str) -> bool:
    words = iter(_words_and_marks(other))
    return all(one in words for one in _words_and_marks(line))


def _words_and_marks(line: str) -> list[str]:
    """Return the words and marks of a line; an empty box is a word, so that a tick replaces it."""
    return re.findall(r"\w+|[^\w\s,;]", line[:_MOST_READ].replace("[ ]", "[empty]"))


REMOVES = re.compile(
    r"(?i)\b(?:remove|delete|drop|strip|shorten|simplif\w+|merge|inline|dedup\w*|clean\w*|get rid|"
    r"replace|rewrite|convert|unused|take out|leave out|cut)\b|删|刪|移除|去掉|削除|取り除|ลบ"
)
ADDS = re.compile(
    r"(?i)\s*(?:please\s+)?add\s+(?:an?|another|the)\s+(?:(?:new|missing|second|third)\s+)?"
    r"(?:function|method|class|key|entry|section|rule|target|script|step|job|service|server|model|"
    r"source|index|table|column|row|line|item|test|import|comment|docstring|heading|paragraph|"
    r"property|option|setting)s?\b"
)
_BLANK = re.compile(r"(?i)\b(?:blank|empty|lines?|spac\w+|whitespace|format\w*)\b")
_PLURAL = re.compile(
    r"(?i)\b(?:and|them|these|those|lines|names|keys|values|functions|methods|classes|comments|"
    r"docstrings|hints|errors|mistakes|typos|spelling|words|sentences|headings|entries|items|"
    r"imports|rows|everything)\b"
)
_OWN_NAME = re.compile(
    r"(?i)`[^`]*`|\"[^\"]*\"|(?<!\w)'[^']*'|“[^”]*”|\b(?:method|function|class|key|column|field|"
    r"property|variable|parameter|argument|option|setting)\s+(?:called\s+|named\s+)?\w+"
)


WORDING = re.compile(
    r"(?i)\b(?:spell\w*|misspell\w*|grammar|grammatic\w*|typos?|wording|punctuation|proof-?read\w*|"
    r"mistakes?|style|tone|polite\w*|formal\w*|rephras\w*|reword\w*|translat\w*|language|orthograph\w*|"
    r"rechtschreib\w*|tippfehler)\b|错别字|拼写|错字|翻译|誤字|脱字"
)


def is_of_several(instruction: str) -> bool:
    """Return whether an instruction speaks of several things; a name such as `items` is one."""
    return bool(_PLURAL.search(_OWN_NAME.sub(" ", instruction)))


# What is added by name: "a script typecheck after lint", "a model called tiny".
_NEW_NAME = re.compile(
    r"(?i)\s*(?:please\s+)?add\s+(?:an?|another|the)\s+(?:\w+\s+){0,2}?"
    r"(?:function|method|class|key|entry|script|job|service|model|target|rule|column|setting)\s+"
    r"(?P<called>(?:called|named)\s+)?[`\"']?(?P<name>[\w.-]*\w)[`\"']?"
    r"(?=\s+(?:that|which|with|after|before|to|in|for|of)\b|[,.]|$)"
)
# A quoted text beside which something is put: it stays.
_BESIDE = re.compile(
    r"(?i)\b(?:above|below|before|after|behind|under|beside|next\s+to)\s+(?:the\s+)?(?:\w+\s+)?"
    r"[`\"'“]([^`\"'”]+)[`\"'”]"
)
_NO_NAME = re.compile(
    r"(?i)(?:that|which|with|after|before|to|in|for|of|and|on|from|by|at|attribute|argument|test|"
    r"parameter|variable|comment|docstring|call|binding|worker|timeout|heading|header|title|line|"
    r"definition|declaration|entry|key|item|check)$|.*ing$"
)


def _not_added(hunks: Sequence[Hunk], instruction: str) -> list[str]:
    """Return an objection if the name of what shall be added is in no new line."""
    found = _NEW_NAME.match(instruction)
    if not found or (not found["called"] and _NO_NAME.match(found["name"])):
        return []
    name = found["name"]
    added = "\n".join(line for hunk in hunks for line in hunk.new).lower()
    return [] if name.lower() in added else [f"{name} is not in what was written"]


def is_table(name: str) -> bool:
    """Return whether a file has one record a line."""
    return PurePath(name).suffix.lower() in {".csv", ".tsv"}


def counted_noun(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _lost(hunk: Hunk, *, is_named: bool) -> list[str]:
    """Return the old lines of a change that no new line takes the place of.

    Args:
        is_named: Whether the instruction names a part around it; its lines may be rewritten.
    """
    n_old, n_new = len(hunk.old), len(hunk.new)
    lines = []
    for i, line in enumerate(hunk.old):
        at = i * n_new // n_old  # only lines near its place, where there are many
        near = hunk.new[max(0, at - _N_NEAR) : at + _N_NEAR]
        if line.strip() and not _is_like_one(line, near):
            lines.append(line)
    if len(hunk.new) >= len(hunk.old) or (is_named and hunk.new):
        lines = [line for line in lines if re.match(r"\s*(#|//|/\*|--|;|<!--|\"\"\")", line)]
    return lines


def _is_like_one(line: str, others: Sequence[str]) -> bool:
    """Return whether half of a line is in another one."""
    letters = difflib.SequenceMatcher(None, autojunk=False)
    letters.set_seq2(line.strip()[:_MOST_READ])
    for other in others:
        letters.set_seq1(other.strip()[:_MOST_READ])
        if letters.quick_ratio() >= 0.5 and letters.ratio() >= 0.5:
            return True
    return False


def _names_gone(reading: Reading, new: list[str]) -> list[str]:
    def names(parts: Sequence[Part]) -> dict[str, str]:
        return {
            one.label: one.name
            for one in parts
            if len(one.path) <= 2 and (one.kind != "variable" or len(one.path) == 1)
        }

    after = names(parts_of(new, reading.name))
    asked = {*re.findall(r"\w+", reading.instruction.lower())}
    gone = []
    for label, name in names(reading.parts).items():
        words = {*re.findall(r"\w+", name.lower())}
        if label not in after and not (words and words <= asked):
            gone.append(f"{label} is gone")
    return gone[:3]


_FUNCTION_HEAD = 1000  # characters of the head of a function that are read
_MARKS = {"python": "#", "braces": "//"}


def _parameters_gone(reading: Reading, new: list[str]) -> list[str]:
    """Return an objection to a function that has fewer parameters, where nothing was to go."""
    if REMOVES.search(reading.instruction) or reading.language.parts not in _MARKS:
        return []
    before, after = (_parameters(lines, reading) for lines in (reading.lines, new))
    for label, names in before.items():
        left = after.get(label)
        if left is not None and len(left) < len(names):
            gone = next((one for one in names if one not in left), names[-1])
            return [f"{gone[:60]} of {label} is gone"]
    return []


def _parameters(lines: Sequence[str], reading: Reading) -> dict[str, list[str]]:
    """Return the parameters of the functions of a text; of those with one name none."""
    found, heads = dict[str, list[str]](), Counter[str]()
    for part in parts_of([*lines], reading.name):
        if part.kind != "function" or not part.name:
            continue
        heads[part.label] += 1
        text = "\n".join(lines[part.start : part.end])[:_FUNCTION_HEAD]
        text = re.sub(rf"{_MARKS[reading.language.parts]}[^\n]*|\"[^\"\n]*\"|'[^'\n]*'", "", text)
        at = re.search(rf"(?<!\w){re.escape(part.name)}\s*(?:<[^<>()]*>)?\(", text)
        pieces, deep = [""], 1
        for one in text[at.end() :] if at else "":
            deep += (one in "([{<") - (one in ")]}>")
            if deep <= 0:
                break
            if one == "," and deep == 1:
                pieces.append("")
            else:
                pieces[-1] += one
        found[part.label] = [
            " ".join(one.split()) for one in pieces if one.strip() not in {"", "*", "/"}
        ]
    return {label: names for label, names in found.items() if heads[label] == 1}


def _too_many_places(hunks: Sequence[Hunk], reading: Reading) -> list[str]:
    """Return an objection to changes at several places, where the instruction names none."""
    instruction = reading.instruction
    if reading.is_everywhere or reading.scope or is_move(hunks, instruction):
        return []
    changes = [change_of(one) for one in hunks]
    n_rows = sum(max(len(one.old), len(one.new)) for one in hunks)
    if is_table(reading.name) and n_rows > 1 and not is_of_several(instruction):
        return [f"{n_rows} rows are changed"]
    is_many = bool(ADDS.match(instruction) or WORDING.search(instruction))
    if len(set(changes)) < len(changes) and not is_many:
        n = max(changes.count(one) for one in changes)
        return [f"the same change is made at {n} places"]
    places = {_outer(one, reading.parts) for one in hunks}
    if len(places) > 1 and not is_of_several(instruction):
        return [f"{len(places)} places are changed"]
    return []


MOVES = re.compile(
    r"(?i)\b(?:move|swap|reorder|sort|order|exchange|put)\b|移动|移到|移動|交换|排序|並べ|入れ替"
)


def is_move(hunks: Sequence[Hunk], instruction: str) -> bool:
    """Return whether lines shall move, and those that are gone are those that came elsewhere."""
    old, new = (
        sorted(line.rstrip(" ,;") for one in hunks for line in getattr(one, which) if line.strip())
        for which in ("old", "new")
    )
    return old == new and bool(MOVES.search(instruction))


def change_of(hunk: Hunk) -> tuple[str, ...]:
    """Return the words that a change removes and adds."""
    old, new = (
        re.findall(r"\w+|[^\w\s]", "\n".join(lines))[:_MANY] for lines in (hunk.old, hunk.new)
    )
    return tuple(
        f"{' '.join(old[i:j])}->{' '.join(new[k:m])}" for i, j, k, m in changed_runs(old, new)
    )


def _outer(hunk: Hunk, parts: Sequence[Part]) -> Part | int:
    around = [one for one in parts if one.start <= hunk.start < max(one.end, one.start + 1)]
    return min(around, key=lambda one: one.end - one.start) if around else hunk.start


def language(name: str) -> str:
    """Return the language of a file that a parser here can check, by its name; else nothing."""
    if PurePath(name).suffix.lower() in {".py", ".pyi"}:
        return "Python"
    return data_kind(name).replace("settings", "")  # any text is valid as settings


def problem_of(text: str, name: str) -> str:
    """Return why a text is not valid in its language; empty if it is, or without a parser."""
    kind = language(name)
    try:
        if kind == "Python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text)
        elif kind:
            tree_of(text, name)
    except Exception as error:  # those of yaml, too
        return (str(error) or type(error).__name__).splitlines()[0]
    return ""


def has_entries(reading: Reading) -> bool:
    """Return whether a text is a data file that a parser here can read."""
    is_data = bool(data_kind(reading.name))
    return is_data and not problem_of("\n".join(reading.lines), reading.name)


def no_longer_valid(old: Sequence[str], new: Sequence[str], name: str) -> list[str]:
    """Return why a text is no longer valid: by its parser, its undefined names, doubled keys."""
    before, after = "\n".join(old) + "\n", "\n".join(new) + "\n"
    if problem_of(before, name):
        return []
    if problem := problem_of(after, name):
        return [f"it is no longer valid {language(name)}: {problem}"]
    if language(name) == "Python":
        if lacking := _undefined(after) - _undefined(before):
            are = "is" if len(lacking) == 1 else "are"
            return [f"{', '.join(sorted(lacking)[:3])} {are} not defined"]
        if twice := _doubled(new, name) - _doubled(old, name):
            return [f"{min(twice)} is defined twice"]
    if data_kind(name) and not doubled_key(tree_of(before, name)):
        key = doubled_key(tree_of(after, name))
        return [f"the key {key} stands twice"] if key else []
    return []


def _doubled(lines: Sequence[str], name: str) -> set[str]:
    """Return the functions and classes without decorators that stand twice at one place."""
    heads = [one for one in parts_of(list(lines), name) if one.kind in {"function", "class"}]
    paths = Counter(one.path for one in heads if not lines[one.start].lstrip().startswith("@"))
    return {".".join(path) for path, n in paths.items() if n > 1}


def _undefined(text: str) -> set[str]:
    """Return the global names that a module of Python reads and nobody defines."""
    try:
        top, *below = symbol_tables(text)
    except UNREADABLE:
        return set()
    if re.search(r"(?m)^\s*from\s+\S+\s+import\s+\*", text):
        return set()
    known = {*dir(builtins), "__file__", "__path__", "__annotations__"}
    for one in top.get_symbols():
        if one.is_assigned() or one.is_imported() or one.is_namespace():
            known.add(one.get_name())
    read: set[str] = set()
    for table in (top, *below):
        for one in table.get_symbols():
            if one.is_global() and one.is_assigned():
                known.add(one.get_name())
            if one.is_referenced() and (one.is_global() or table is top):
                read.add(one.get_name())
    return read - known


# ---- as text


def counted(hunks: Sequence[Hunk], text: str, name: str) -> str:
    """Return a line such as `3 lines changed, 0 removed, 1 place, still valid Python`."""
    if not hunks:
        return "nothing was changed"
    n_both = sum(min(len(one.old), len(one.new)) for one in hunks)
    n_new = sum(max(0, len(one.new) - len(one.old)) for one in hunks)
    n_gone = sum(max(0, len(one.old) - len(one.new)) for one in hunks)
    facts = [f"{counted_noun(n_both, 'line')} changed"] if n_both or not n_new else []
    if n_new:
        facts.append(f"{n_new:,} added" if n_both else f"{counted_noun(n_new, 'line')} added")
    facts += [f"{n_gone:,} removed", counted_noun(len(hunks), "place")]
    if (kind := language(name)) and not problem_of(text, name):
        facts.append(f"still valid {kind}")
    return ", ".join(facts)


def patch(old: bytes, new: bytes, name: str) -> bytes:
    """Return a patch that `git apply` takes, with the bytes of both versions.

    Args:
        name: Its name from the folder where the patch is applied, with slashes.
    """
    # one character a byte; only a line feed ends a line
    before, after = (re.findall(r"[^\n]*\n|[^\n]+", data.decode("latin-1")) for data in (old, new))
    names = [_quoted_name(f"{one}/{name}") for one in "ab"]
    lines = list(difflib.unified_diff(before, after, n=_N_CONTEXT))[2:]
    if not lines:
        return b""
    head = f"--- {names[0]}\n+++ {names[1]}\n".encode("utf-8", "surrogateescape")
    open_end = "\n\\ No newline at end of file\n"
    body = (line if line.endswith("\n") else line + open_end for line in lines)
    return head + "".join(body).encode("latin-1")


def _quoted_name(name: str) -> str:
    """Return a name as git and `patch` read it, in quotes where a part of it has a meaning."""
    if not re.search(r"[\x00-\x1f\x7f\"\\]| $", name):
        return name + "\t" * (" " in name)  # or `patch` ends the name at a blank
    escaped = re.sub(r"[\"\\]", lambda found: f"\\{found[0]}", name)
    escaped = re.sub(r"[\x00-\x1f\x7f]", lambda found: f"\\{ord(found[0]):03o}", escaped)
    return f'"{escaped}"'
