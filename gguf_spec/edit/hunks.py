"""The changes of an edit: where they are, what they remove, and what speaks against writing them."""

from __future__ import annotations

import ast
import builtins
import difflib
import json
import re
import symtable
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .instruction import Reading
from .parts import Part, parts_of

# a change that removes more than this share of the lines is asked about
_MOST_REMOVED = 0.2
_N_CONTEXT = 3


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


def split_lines(text: str) -> list[str]:
    """Return the lines of a text without their ends; only a line feed ends a line, as for git."""
    return text.removesuffix("\n").split("\n")


def hunks_between(old: Sequence[str], new: Sequence[str]) -> list[Hunk]:
    """Return the changes that lead from old lines to new ones."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return [
        Hunk(i, tuple(old[i:j]), tuple(new[k:m])) for tag, i, j, k, m in matcher.get_opcodes() if tag != "equal"
    ]  # fmt: skip


def apply(lines: Sequence[str], hunks: Iterable[Hunk]) -> list[str]:
    """Return lines with some changes made."""
    new = list(lines)
    for hunk in sorted(hunks, key=lambda one: one.start, reverse=True):
        new[hunk.start : hunk.end] = hunk.new
    return new


def with_old_spelling(old: Sequence[str], new: Sequence[str], instruction: str) -> list[str]:
    """Return new lines, with the old blanks and quotes in lines that are otherwise the same.

    Models drop blanks at the end of a line, write blanks for tabs and straight quotes for typographic ones.
    """
    if re.search(
        r"(?i)\b(whitespace|blanks?|spaces?|tabs?|indent\w*|quotes?|quotation|trailing)\b",
        instruction,
    ):
        return list(new)
    result: list[str] = []
    for tag, i, j, k, m in difflib.SequenceMatcher(
        None, [_plain(one) for one in old], [_plain(one) for one in new], autojunk=False
    ).get_opcodes():
        result += old[i:j] if tag == "equal" else new[k:m]
    tabs = [line for line in old if line.startswith("\t")]
    if tabs and not any(line.startswith("  ") for line in old):
        width = next((len(one) - len(one.lstrip(" ")) for one in result if one.startswith("  ")), 4)
        result = [_with_tabs(line, width) if line.startswith("  ") else line for line in result]
    return result


def _plain(line: str) -> str:
    line = line.rstrip().translate(
        {0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0xA0: " ", 0x2013: "-", 0x2014: "-"}
    )
    body = line.lstrip()
    indent = line[: len(line) - len(body)]
    return indent.replace("\t", "    ") + body


def _with_tabs(line: str, width: int) -> str:
    body = line.lstrip(" ")
    n_tabs, rest = divmod(len(line) - len(body), width)
    return "\t" * n_tabs + " " * rest + body


# ---- what speaks against writing them


def objections(
    old: Sequence[str], hunks: Sequence[Hunk], reading: Reading, name: str, instruction: str
) -> list[str]:
    """Return why a change is not written without a question, each in one sentence; none if it can be.

    Args:
        old: The old lines.
        hunks: The changes in the parts that may change.
        reading: What the instruction says.
        name: Name of the file.
        instruction: The instruction.
    """
    new = apply(old, hunks)
    found = []
    moved = {line.strip() for hunk in hunks for line in hunk.new}
    removed = [
        line
        for hunk in hunks
        for line in _lost(hunk, is_named=bool(reading.scope))
        if line.strip() not in moved
    ]
    is_removal = bool(re.search(r"(?i)\b(remove|delete|drop|strip|shorten|simplif\w+|merge|inline|dedup\w*|clean\w*|get rid|replace|rewrite|convert|unused)\b", instruction))  # fmt: skip
    n_old, n_gone = (
        len(old),
        sum(len(one.old) for one in hunks) - sum(len(one.new) for one in hunks),
    )
    if n_gone > max(3, _MOST_REMOVED * n_old):
        found.append(f"{n_gone:,} of {n_old:,} lines are gone")
    if hunks and n_old > 5 and hunks[-1].end == n_old and len(hunks[-1].old) > len(hunks[-1].new) and not (is_removal and n_gone < _MOST_REMOVED * n_old):  # fmt: skip
        found.append("the end of the text is gone")
    if not is_removal and removed:
        found.append(f"{_counted(len(removed), 'line')} removed: {removed[0].strip()[:60]}")
    if _ADDS.match(instruction) and hunks and n_gone >= 0:
        found.append("no line was added")
    found += _names_gone(old, new, name, reading)
    found += _too_many_places(old, hunks, reading, name, instruction)
    found += _no_longer_valid(old, new, name)
    return found


_ADDS = re.compile(
    r"(?i)\s*(?:please\s+)?add\s+(?:an?|another|the)\s+(?:new\s+|second\s+|third\s+)?(?:function|method|class|key|entry|section|rule|target|script|step|job|"
    r"service|server|model|source|index|table|column|row|line|item|test|import|comment|docstring|heading|paragraph|property|option|setting)\b"
)


_PLURAL = re.compile(
    r"(?i)\b(?:and|them|these|those|lines|names|keys|values|functions|methods|classes|comments|docstrings|hints|errors|mistakes|"
    r"typos|spelling|words|sentences|headings|entries|items|imports|rows|everything)\b"
)


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _lost(hunk: Hunk, *, is_named: bool) -> list[str]:
    """Return the old lines of a change that no new line takes the place of.

    Args:
        hunk: The change.
        is_named: Whether it is in a part that the instruction names; lines may be written anew there.
    """
    lines = [line for line in hunk.old if line.strip() and _most_like(line, hunk.new) < 0.5]
    if len(hunk.new) >= len(hunk.old) or (is_named and hunk.new):
        lines = [line for line in lines if re.match(r"\s*(#|//|/\*|--|;|<!--|\"\"\")", line)]
    return lines


def _most_like(line: str, others: Sequence[str]) -> float:
    words = difflib.SequenceMatcher(None, autojunk=False)
    words.set_seq2(line.strip())
    best = 0.0
    for other in others:
        words.set_seq1(other.strip())
        best = max(best, words.ratio())
    return best


def _names_gone(old: Sequence[str], new: Sequence[str], name: str, reading: Reading) -> list[str]:
    def names(lines: Sequence[str]) -> dict[str, str]:
        parts = parts_of(list(lines), name)
        return {
            one.label: one.name
            for one in parts
            if len(one.path) <= 2 and (one.kind != "variable" or len(one.path) == 1)
        }

    before, after = names(old), names(new)
    gone = [
        label for label in before if label not in after and not _is_named(before[label], reading)
    ]
    return [f"{label} is gone" for label in gone[:3]]


def _is_named(name: str, reading: Reading) -> bool:
    words = [one for one in re.findall(r"\w+", name.lower()) if one]
    return bool(words) and all(one in reading.words for one in words)


def _too_many_places(
    old: Sequence[str], hunks: Sequence[Hunk], reading: Reading, name: str, instruction: str
) -> list[str]:
    """Return an objection where an instruction names no place, and changes like each other are at several."""
    if reading.is_everywhere or reading.scope:
        return []
    changes = [_change_of(one) for one in hunks]
    n_rows = sum(max(len(one.old), len(one.new)) for one in hunks)
    if PurePath(name).suffix.lower() in {".csv", ".tsv"} and n_rows > 1 and not _PLURAL.search(instruction):
        return [f"{n_rows} rows are changed"]
    if len(set(changes)) < len(changes) and not _ADDS.match(instruction):
        n = max(changes.count(one) for one in changes)
        return [f"the same change is made at {n} places"]
    parts = parts_of(list(old), name)
    places = {_outer(one, parts) for one in hunks}
    if len(places) > 1 and not _PLURAL.search(instruction):
        return [f"{len(places)} places are changed"]
    return []


def _change_of(hunk: Hunk) -> tuple[str, ...]:
    """Return the words that a change removes and adds."""
    old, new = (re.findall(r"\w+|[^\w\s]", "\n".join(lines)) for lines in (hunk.old, hunk.new))
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    return tuple(
        f"{' '.join(old[i:j])}->{' '.join(new[k:m])}" for tag, i, j, k, m in matcher.get_opcodes() if tag != "equal"
    )  # fmt: skip


def _outer(hunk: Hunk, parts: Sequence[Part]) -> Part | int:
    around = [one for one in parts if one.start <= hunk.start < max(one.end, one.start + 1)]
    return min(around, key=lambda one: one.end - one.start) if around else hunk.start


def language(name: str) -> str:
    """Return the language whose parser can check a file, by its name; empty if there is none."""
    names = {
        ".py": "Python",
        ".pyi": "Python",
        ".json": "JSON",
        ".yaml": "YAML",
        ".yml": "YAML",
        ".toml": "TOML",
    }
    found = names.get(PurePath(name).suffix.lower(), "")
    return "" if found == "TOML" and sys.version_info < (3, 11) else found


def problem_of(text: str, name: str) -> str:
    """Return why a text is not valid in the language of its name; empty if it is, or if no parser is at hand."""
    kind = language(name)
    try:
        if kind == "Python":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(text)
        elif kind == "JSON":
            json.loads(text)
        elif kind == "YAML":
            import yaml

            list(yaml.parse(text, Loader=yaml.SafeLoader))
        elif kind == "TOML":
            import tomllib

            tomllib.loads(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        return str(error).splitlines()[0]
    except Exception as error:  # noqa: BLE001 -- yaml's errors, without importing it
        return str(error).splitlines()[0]
    return ""


def _no_longer_valid(old: Sequence[str], new: Sequence[str], name: str) -> list[str]:
    before, after = "\n".join(old) + "\n", "\n".join(new) + "\n"
    if problem_of(before, name):
        return []
    if problem := problem_of(after, name):
        return [f"it is no longer valid {language(name)}: {problem}"]
    if language(name) == "Python" and (lacking := _undefined(after) - _undefined(before)):
        return [
            f"{', '.join(sorted(lacking)[:3])} {'is' if len(lacking) == 1 else 'are'} not defined"
        ]
    if (
        language(name) == "JSON"
        and before.count('":')
        and _has_doubles(after)
        and not _has_doubles(before)
    ):
        return ["a key stands twice"]
    return []


def _has_doubles(text: str) -> bool:
    doubles = []

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        doubles.append(len(items) - len(dict(items)))
        return dict(items)

    json.loads(text, object_pairs_hook=pairs)
    return any(doubles)


def _undefined(text: str) -> set[str]:
    """Return the global names that a module of Python reads and nobody defines."""
    try:
        top = symtable.symtable(text, "file", "exec")
    except (SyntaxError, ValueError):
        return set()
    if re.search(r"(?m)^\s*from\s+\S+\s+import\s+\*", text):
        return set()
    known = {
        one.get_name()
        for one in top.get_symbols()
        if one.is_assigned() or one.is_imported() or one.is_namespace()
    }
    known |= set(dir(builtins)) | {
        "__file__",
        "__name__",
        "__doc__",
        "__path__",
        "__spec__",
        "__annotations__",
    }
    read: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for one in table.get_symbols():
            if one.is_global() and one.is_assigned():
                known.add(one.get_name())
            if one.is_referenced() and (one.is_global() or table is top):
                read.add(one.get_name())
    return read - known


# ---- as text


def counted(hunks: Sequence[Hunk], text: str, name: str) -> str:
    """Return a line such as `3 lines changed, 0 removed, 1 place, still valid Python`."""
    n_both = sum(min(len(one.old), len(one.new)) for one in hunks)
    n_new = sum(max(0, len(one.new) - len(one.old)) for one in hunks)
    n_gone = sum(max(0, len(one.old) - len(one.new)) for one in hunks)
    facts = [f"{_counted(n_both, 'line')} changed" if n_both or not n_new else ""]
    facts += [
        f"{_counted(n_new, 'line')} added"
        if n_new and not n_both
        else f"{n_new:,} added"
        if n_new
        else ""
    ]
    facts += [f"{n_gone:,} removed", _counted(len(hunks), "place")]
    if (kind := language(name)) and not problem_of(text, name):
        facts.append(f"still valid {kind}")
    return ", ".join(filter(None, facts))


def patch(old: bytes, new: bytes, name: str) -> bytes:
    """Return a patch that `git apply` takes, with the bytes of both versions.

    Args:
        old: The old file.
        new: The new file.
        name: Its name from the folder where the patch is applied, with slashes.
    """
    old_lines, new_lines = (data.split(b"\n") for data in (old, new))
    ends = [b"" if lines[-1] else b"\n" for lines in (old_lines, new_lines)]
    for lines in (old_lines, new_lines):
        if not lines[-1]:
            lines.pop()
    del ends
    decoded = [
        [f"{line.decode('latin-1')}\n" for line in lines] for lines in (old_lines, new_lines)
    ]
    if old and not old.endswith(b"\n"):
        decoded[0][-1] = decoded[0][-1][:-1]
    if new and not new.endswith(b"\n"):
        decoded[1][-1] = decoded[1][-1][:-1]
    quoted = _quoted_name(name)
    names = (
        [_quoted_name(f"{one}/{name}") for one in "ab"]
        if quoted != name
        else [f"a/{name}", f"b/{name}"]
    )
    result: list[bytes] = []
    for line in difflib.unified_diff(decoded[0], decoded[1], names[0], names[1], n=_N_CONTEXT):
        data = (
            line.encode("latin-1")
            if not line.startswith(("--- ", "+++ ")) or result[2:]
            else line.encode("utf-8", "surrogateescape")
        )
        result.append(data if data.endswith(b"\n") else data + b"\n\\ No newline at end of file\n")
    return b"".join(result)


def _quoted_name(name: str) -> str:
    """Return a name as git writes it: in quotes where it has a control character, a quote or a backslash."""
    if not re.search(r"[\x00-\x1f\x7f\"\\]", name):
        return name
    return (
        '"'
        + "".join(
            f"\\{ord(one):03o}"
            if one < " " or one == "\x7f"
            else f"\\{one}"
            if one in '"\\'
            else one
            for one in name
        )
        + '"'
    )
