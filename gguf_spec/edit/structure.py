"""The structure of a text: the entries of a data file, the cells of a table, the atoms of prose.

Two versions of a text are compared by it, so that a comma behind a line, the padding of a table or
the number of an item is no change, and an entry that was lost is one.
"""

from __future__ import annotations

import csv
import difflib
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import Any

_MANY = 500  # lines
_MOST_ENTRIES, _LONGEST_ENTRY = 50, 300  # lines beside an entry, characters of one that are read
_MOST_OPEN = 4  # mappings around an entry in which its item is looked for
_DEEPEST = 100  # mappings and lists in each other
_ITEM_NAMES = ("name", "id", "key", "title", "host", "label", "path", "url")
_SETTINGS = {
    ".ini",
    ".cfg",
    ".conf",
    ".properties",
    ".env",
    ".editorconfig",
    ".service",
    ".desktop",
}
_KINDS = {
    ".json": "JSON", ".yaml": "YAML", ".yml": "YAML", ".toml": "TOML", ".csv": "CSV", ".tsv": "CSV",
    ".xml": "XML", ".svg": "XML",
}  # fmt: skip
PROSE = {".md", ".markdown", ".txt", ".rst", ".adoc", ""}
_LISTED = {*PROSE, *_KINDS, *_SETTINGS, ".js", ".ts", ".py", ".rs", ".go", ".css"}


def changed_runs(old: Sequence[Any], new: Sequence[Any]) -> list[tuple[int, int, int, int]]:
    """Return start and end in old and new lines, or other items, of each change."""
    n, most = 0, min(len(old), len(new))
    while n < most and old[n] == new[n]:
        n += 1
    n_end = 0
    while n_end < most - n and old[-1 - n_end] == new[-1 - n_end]:
        n_end += 1
    old, new = old[n : len(old) - n_end], new[n : len(new) - n_end]
    # With hundreds of lines, those that stand at many places are not compared with each other.
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=len(new) > _MANY)
    found = []
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "replace" and j - i == m - k:
            differs = [one != other for one, other in zip(old[i:j], new[k:m], strict=True)]
            for is_change, run in itertools.groupby(range(j - i), differs.__getitem__):
                at = list(run)
                if is_change:
                    found.append((i + at[0], i + at[-1] + 1, k + at[0], k + at[-1] + 1))
        elif tag != "equal":
            found.append((i, j, k, m))
    return [(n + i, n + j, n + k, n + m) for i, j, k, m in found]


# ---- data files


class Number(str):
    """A value of a data file that is no text: a number, a truth value or a date."""


class Item(str):
    """What an item of a list is called in a path: a word for it, or its number.

    Attributes:
        entries: Its keys and values, if it has some.
    """

    entries: Pairs | None = None


class Pairs(list[tuple[str, Any]]):
    """The keys and values of a mapping, in their order, as often as they stand there."""

    def words(self) -> str:
        """Return the texts that say which item of a list it is."""
        return " ".join(str(value) for key, value in self if key.lower() in _ITEM_NAMES)


class Row(Pairs):
    """A row of a table: its cells by their columns."""

    def words(self) -> str:
        return " ".join(str(value) for _, value in self)


@dataclass(frozen=True)
class Change:
    """An entry of a data file that differs.

    Attributes:
        path: The keys that lead to it; an item of a list is an `Item`.
        old: Its value, None if it was added.
        new: Its new value, None if it is gone.
    """

    path: tuple[str, ...]
    old: Any
    new: Any

    @property
    def key(self) -> str:
        """Its own key, or that of the list that it is in."""
        return next((one for one in reversed(self.path) if not isinstance(one, Item)), "")

    @property
    def label(self) -> str:
        """How it is named in a message: `client.timeout`."""
        return ".".join(one for one in self.path if one)[:60] or "the text"


class Order(Change):
    """A mapping whose keys have another order."""


def data_kind(name: str) -> str:
    """Return what a data file holds, by its name: `JSON`, `settings`; empty for other files."""
    path = PurePath(name)
    suffix = path.suffix.lower()
    found = _KINDS.get(suffix, "")
    if suffix in _SETTINGS or path.name.lower().startswith(".env"):
        found = "settings"
    return "" if found == "TOML" and sys.version_info < (3, 11) else found


def tree_of(text: str, name: str) -> Any:
    """Return the entries of a data file: `Pairs`, lists, texts and `Number`.

    Raises:
        Exception: It is not valid, or a key stands twice; those of several parsers.
    """
    kind = data_kind(name)
    if kind == "JSON":
        options: Any = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), Number)
        return _plain(json.loads(text, object_pairs_hook=Pairs, **options))
    if kind == "YAML":
        return _of_yaml(text)
    if kind == "TOML":
        tomllib = import_module("tomllib")  # from Python 3.11 on

        return _plain(tomllib.loads(text, parse_float=Number))
    if kind == "CSV":
        return _rows(text)
    if kind == "XML":
        from xml.etree import ElementTree

        if "<!DOCTYPE" in text:
            raise ValueError("it has a document type")  # its entities might be of any size
        return _of_xml(ElementTree.fromstring(text))
    return _settings(text)


def _plain(value: Any) -> Any:
    """Return a value of a parser with the types of a tree."""
    if isinstance(value, dict):
        return Pairs((key, _plain(one)) for key, one in value.items())
    if isinstance(value, Pairs):
        return Pairs((key, _plain(one)) for key, one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value if isinstance(value, str) else Number(json.dumps(value, default=str).strip('"'))


def _of_yaml(text: str) -> Any:
    """Read YAML by its events; the function of the parser that makes nodes overflows its stack."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
    documents = list[Any]()
    open_ones: list[tuple[list[Any], list[str]]] = [(documents, [])]  # and the key of a value

    def add(value: Any) -> None:
        inner, keys = open_ones[-1]
        if not isinstance(inner, Pairs):
            inner.append(value)
        elif keys:
            inner.append((keys.pop(), value))
        else:
            keys.append(value if isinstance(value, str) else "?")

    while loader.check_event():
        event = loader.get_event()
        kind = type(event).__name__
        if kind == "ScalarEvent":
            tag = event.tag or loader.resolve(yaml.ScalarNode, event.value, event.implicit)
            add((str if tag.endswith(":str") else Number)(event.value))
        elif kind == "AliasEvent":
            add(Number(f"*{event.anchor}"))
        elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
            found = Pairs() if kind == "MappingStartEvent" else list[Any]()
            add(found)
            open_ones.append((found, []))
            if len(open_ones) > _DEEPEST:
                raise ValueError("it is too deep")
        elif kind in {"MappingEndEvent", "SequenceEndEvent"}:
            open_ones.pop()
    return documents[0] if len(documents) == 1 else documents


def _of_xml(element: Any) -> Pairs:
    children = [_of_xml(one) for one in element]
    text = " ".join((element.text or "").split())
    return Row([
        ("", element.tag), *element.items(), *([(element.tag, text)] if text else ()),
        *((element.tag, " ".join(one.tail.split())) for one in element if (one.tail or "").strip()),
        *([("", children)] if children else ()),
    ])  # fmt: skip


def _rows(text: str) -> list[Row]:
    first = text.partition("\n")[0]
    mark = max("\t,;|", key=first.count)
    rows = list(csv.reader(text.splitlines(keepends=True), delimiter=mark, strict=True))
    head = rows[0] if rows else []
    for n, row in enumerate(rows, 1):
        if row and len(row) != len(head):
            raise ValueError(f"row {n} has {len(row)} fields, the first one {len(head)}")
    columns = [one.strip() for one in head]
    return [Row(zip(columns, row, strict=True)) for row in rows if row]


_SECTION = re.compile(r"\s*\[([^\]]*)\]\s*(?:[#;].*)?$")
_SETTING = re.compile(r"(\s*)((?:export\s+)?[^\s=:#;\[][^=:]{0,200}?)\s*(?:[=:]\s*(.*)|)$")


def _settings(text: str) -> Pairs:
    found = top = Pairs()
    for raw in text.split("\n"):
        line = re.sub(r"(?:^|\s)[#;].*", "", raw).rstrip()
        if head := _SECTION.match(line):
            found = Pairs()
            top.append((head[1], found))
        elif (setting := _SETTING.match(line)) and not (setting[1] and found):
            found.append((setting[2], setting[3] or ""))
        elif line and found and isinstance(found[-1][1], str):  # a value of several lines
            found[-1] = (found[-1][0], f"{found[-1][1]}\n{line.strip()}")
    return top


def doubled_key(tree: Any) -> str:
    """Return a key that stands twice in a mapping; empty without one."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Pairs) and not isinstance(one, Row):
            twice = [
                key for key, n in Counter(key for key, _ in one).items() if n > 1 and key != "<<"
            ]
            if twice:
                return twice[0]
        if isinstance(one, list):
            waiting += [pair[1] for pair in one] if isinstance(one, Pairs) else one
    return ""


def data_changes(old: Any, new: Any) -> list[Change]:
    """Return the entries that differ between two trees, the outermost ones."""
    return list(_differences((), old, new))


def _differences(path: tuple[str, ...], old: Any, new: Any) -> Iterator[Change]:
    if isinstance(old, Pairs) and isinstance(new, Pairs):
        yield from _of_pairs(path, old, new)
    elif type(old) is list and type(new) is list:
        yield from _of_items(path, old, new)
    elif old != new or type(old) is not type(new):
        yield Change(path, old, new)


def _of_pairs(path: tuple[str, ...], old: Pairs, new: Pairs) -> Iterator[Change]:
    before, after = dict(old), dict(new)
    order = [[one for one, _ in pairs if one in before and one in after] for pairs in (old, new)]
    if order[0] != order[1] and len(before) == len(old) and len(after) == len(new):
        yield Order(path, old, new)
    for key in dict.fromkeys([*before, *after]):
        inner = (*path, key)
        if key in before and key in after:
            yield from _differences(inner, before[key], after[key])
        else:
            yield Change(inner, before.get(key), after.get(key))


def _of_items(path: tuple[str, ...], old: list[Any], new: list[Any]) -> Iterator[Change]:
    shown = [[json.dumps(one) for one in items] for items in (old, new)]
    for i, j, k, m in changed_runs(*shown):
        is_same_length = j - i == m - k
        for one, other in itertools.zip_longest(range(i, j), range(k, m)):
            at = other if one is None else one
            item = new[other] if one is None else old[one]
            words = item.words() if isinstance(item, Pairs) else ""
            called = Item(words or f"item {at + 1}")
            called.entries = item if isinstance(item, Pairs) else None
            inner = (*path, called)
            if is_same_length or (
                one is not None and other is not None and _is_like(old[one], new[other])
            ):
                yield from _differences(inner, old[one], new[other])
            else:
                yield from [Change(inner, old[one], None)] if one is not None else []
                yield from [Change(inner, None, new[other])] if other is not None else []


def _is_like(old: Any, new: Any) -> bool:
    """Return whether two items are one: by their names, or by half of their values."""
    if not (isinstance(old, Pairs) and isinstance(new, Pairs)):
        return False
    same = sum(one in new for one in old)
    return 2 * same >= len(old)


def alike_items(old: Any, new: Any) -> Iterator[tuple[list[Pairs], list[Pairs]]]:
    """Yield the lists of records in two trees that have the same length."""
    waiting = [(old, new)]
    while waiting:
        one, other = waiting.pop()
        if isinstance(one, Pairs) and isinstance(other, Pairs):
            after = dict(other)
            waiting += [(value, after[key]) for key, value in one if key in after]
        elif type(one) is list and type(other) is list and len(one) == len(other):
            if one and all(isinstance(item, Pairs) for item in (*one, *other)):
                yield one, other
            waiting += zip(one, other, strict=True)


def values_of(tree: Any) -> Iterator[str]:
    """Return the keys and the values in an entry."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Pairs):
            for key, value in one:
                yield key
                waiting.append(value)
        elif isinstance(one, list):
            waiting += one
        elif one is not None:
            yield str(one)


# A text that nothing closes ends with its line, so that each character is read once.
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"?|(?<!\w)'[^'\n]*'?")
_COMMENT = re.compile(r"(?:^|(?<=\s))[#;]\s*(\S.*?)\s*$", re.MULTILINE)
_XML_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->", re.DOTALL)


def comments_of(text: str, name: str) -> Counter[str]:
    """Return the comments of a data file."""
    kind = data_kind(name)
    if kind in {"JSON", "CSV", ""}:
        return Counter()
    found = _XML_COMMENT if kind == "XML" else _COMMENT
    bare = text if kind == "XML" else _QUOTED.sub('""', text)
    return Counter(one[1] for one in found.finditer(bare))


# ---- lines, as structure


_TABLE_ROW = re.compile(r"\s*\|.*\|\s*$")
_RULE = re.compile(r"[\s|:+-]*-[\s|:+-]*$")


def bare_line(line: str, suffix: str) -> str:
    """Return a line without what others beside it decide: a comma, padding, an item's number."""
    if suffix not in _LISTED:
        return line
    if suffix in PROSE:
        if _TABLE_ROW.match(line):
            return table_row(line)
        return re.sub(r"^(\s*)\d+([.)])(?=\s)", r"\g<1>0\2", line)
    return line if suffix in {".yaml", ".yml", ".csv", ".tsv"} else line.rstrip().removesuffix(",")


def table_row(line: str) -> str:
    """Return a row of a table in Markdown without its padding."""
    cells = [" ".join(one.split()) for one in line.strip().split("|")]
    return "|".join(re.sub(r"-+", "-", one) if _RULE.match(one) else one for one in cells)


@dataclass(frozen=True)
class Table:
    """A table of Markdown or CSV.

    Attributes:
        start: Its first line, from 0, which has the names of the columns.
        end: The line behind its last one.
        columns: The names of its columns.
    """

    start: int
    end: int
    columns: tuple[str, ...]


def tables_of(lines: Sequence[str], suffix: str) -> list[Table]:
    """Return the tables of a text, in their order."""
    if suffix in {".csv", ".tsv"} and lines:
        return [Table(0, len(lines), tuple(cells_of(lines[0], suffix)))]
    if suffix not in PROSE:
        return []
    found, start = list[Table](), -1
    for i, line in enumerate([*lines, ""]):
        is_row = line.count("|") > 1 or (start >= 0 and "|" in line)
        if is_row and start < 0:
            start = i
        elif not is_row and start >= 0:
            if i - start > 1 and _RULE.match(lines[start + 1]):
                found.append(Table(start, i, tuple(cells_of(lines[start], suffix))))
            start = -1
    return found


def cells_of(line: str, suffix: str) -> list[str]:
    """Return the cells of a row."""
    if suffix in {".csv", ".tsv"}:
        mark = max("\t,;|", key=line.count)
        return [one.strip() for one in next(csv.reader([line], delimiter=mark), [])]
    return [one.strip() for one in line.strip().removeprefix("|").removesuffix("|").split("|")]


_RECORDS = {".json", ".yaml", ".yml", ".xml", ".toml"}
_ENTRY_VALUE = re.compile(
    r"(?:[:=][ \t]*|>)[\"']?(?P<value>[^\"'<>{}\[\]\n]*[^\W\d_][^\"'<>{}\[\]\n]*)"
)


def record_values(lines: Sequence[str], at: int, suffix: str) -> list[str]:
    """Return the texts beside an entry that say which item of a list, or element, it is in.

    Args:
        at: The line of the entry.
    """
    for _ in range(_MOST_OPEN if suffix in _RECORDS and lines[at].strip() else 0):
        deep, is_toml = _depth(lines[at]), suffix == ".toml"
        first = next((i for i in range(at, -1, -1) if _bounds(lines[i], deep, is_toml)), -1)
        begins = _begins_item(lines[first]) and _depth(lines[first]) == deep
        end = range(max(at, first) + 1, len(lines))
        last = next((i for i in end if _bounds(lines[i], deep, is_toml)), len(lines))
        opener = lines[first].strip() if first >= 0 else ""
        is_element = opener[:1] == "<" and _depth(lines[first]) > 0
        if begins or opener in {"{", "- {"} or is_element or opener[:2] == "[[":
            inside = [one for one in lines[first:last] if _depth(one) == deep and one != lines[at]]
            some = "\n".join(one[:_LONGEST_ENTRY] for one in inside[:_MOST_ENTRIES])
            found = [one["value"].strip() for one in _ENTRY_VALUE.finditer(some)]
            return [opener, *found] if is_element else found
        if first < 0 or not deep:
            break
        at = first
    return []


def _bounds(line: str, deep: int, is_toml: bool) -> bool:
    """Return whether a line begins another item, or the mapping around an entry."""
    if is_toml:
        return line.startswith("[")
    depth = _depth(line)
    return bool(line.strip()) and (depth < deep or (depth == deep and _begins_item(line)))


def _begins_item(line: str) -> bool:
    return line.lstrip().startswith("- ")


def _depth(line: str) -> int:
    """Return where the entry of a line begins; the dash of an item counts as a blank."""
    return len(line) - len(line.lstrip(" \t-" if _begins_item(line) else " \t"))


# ---- prose


@dataclass(frozen=True)
class Atom:
    """What in prose is no prose, such as a name in backquotes or an address.

    Attributes:
        kind: `code`, `link`, `address`, `path`, `front matter`, `tag`, `name`, `number` or `key`.
        text: How it stands there.
    """

    kind: str
    text: str


_ENDINGS = (
    "py|js|ts|jsx|tsx|md|rst|txt|json|ya?ml|toml|ini|cfg|conf|sh|html?|css|csv|tsv|c|h|cpp|rs|go|java|"
    "rb|php|sql|xml|pdf|png|jpe?g|svg|gif|zip|gz|tar|log|exe|lock|env|docx?|xlsx?|gguf"
)
# The order counts: what is a part of an address is no path, and so on.
_WORD = r"(?<![\w.-])[\w-]{1,60}"
_ATOMS = re.compile(
    r"(?P<code>(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<link>(?<=\]\()[^)\s]+|(?<=\]:\s)\S+|\bhttps?://[^\s<>\"')\]]*[\w/]|\bwww\.[\w./-]*\w)"
    r"|(?P<address>(?<![\w.+-])[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)"
    r"|(?P<tag><[A-Za-z/!][^<>]*>|\{\{[^{}]*\}\}|\{%[^{}]*%\}|\$\{?\w+\}?|%\(?\w+\)?s\b|\{\w+\})"
    r"|(?P<path>(?<![\w/])(?:~|\.{1,2})?/(?:[\w.-]+/)*[\w.-]*\w"
    rf"|{_WORD}(?:/[\w.-]+){{2,}}|{_WORD}/[\w-]{{1,60}}\.\w+"
    rf"|{_WORD}(?:\.[\w-]{{1,60}}){{0,3}}\.(?:{_ENDINGS})\b)"
    r"|(?P<name>\b\w+\(\)|\b\w*[^\W_]_\w+|\b[a-z]+[A-Z]\w*|(?<![\w-])--?[a-z][\w-]+|\b\w+::\w+)"
    r"|(?P<number>\bv?\d[\w.,:/-]*\w|\d)"
)
_KEY_COLUMN = re.compile(
    r"(?i)(?:key|option|setting|name|field|variable|parameter|flag|argument|command|property|attribute|"
    r"file|path|id|code|type|default)s?$"
)
_MARKED = re.compile(r"\s*(`{3,}|~{3,})")


def atoms_of(lines: Sequence[str], suffix: str) -> Counter[Atom]:
    """Return what in prose is no prose, and how often."""
    found = Counter[Atom]()
    for kind, line in _kinds_of_lines(lines, suffix):
        if kind != "prose":
            found[Atom(kind, line.strip())] += 1
            continue
        bare = re.sub(r"^\s*(?:\d+[.)]|[-*+])\s", "", line[:4000])
        for one in _ATOMS.finditer(bare):
            found[Atom(str(one.lastgroup if one.lastgroup != "ticks" else "code"), one[0])] += 1
    for table in tables_of(lines, suffix) if suffix in PROSE else ():
        keyed = [i for i, title in enumerate(table.columns) if _KEY_COLUMN.match(title)]
        for line in lines[table.start + 2 : table.end]:
            cells = cells_of(line, suffix)
            for i in keyed:
                if i < len(cells) and re.fullmatch(r"[\w.-]+", cells[i]):
                    found[Atom("key", cells[i])] += 1
    return found


def n_of_front_matter(lines: Sequence[str]) -> int:
    """Return the number of lines of a page's front matter, with those that begin and end it."""
    if not lines or lines[0].rstrip() not in {"---", "+++"}:
        return 0
    ends = (i for i, line in enumerate(lines[1:200], 1) if line.rstrip() == lines[0].rstrip())
    return next(ends, -1) + 1


def _kinds_of_lines(lines: Sequence[str], suffix: str) -> Iterator[tuple[str, str]]:
    """Return each line with its kind: `front matter`, `code` or `prose`."""
    head = max(0, n_of_front_matter(lines) - 1) if suffix != ".txt" else 0
    yield from (("front matter", line) for line in lines[:head])
    fence, literal = "", False
    for before, line in zip(["", *lines[head:]], lines[head:], strict=False):
        mark = _MARKED.match(line) if suffix != ".txt" else None
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        is_deep = line.startswith(("    ", "\t"))
        if line.strip() and not is_deep:
            literal = suffix == ".rst" and (
                line.rstrip().endswith("::") or (literal and line.startswith(" "))
            )
        elif is_deep and suffix == ".md" and not literal:
            literal = not before.strip() and not re.match(r"\s+([-*+]|\d+[.)])\s", line)
        is_code = fence or mark or (literal and line.startswith(("  ", "\t")))
        yield ("code" if is_code else "prose"), line
