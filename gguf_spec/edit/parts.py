"""The parts of a text file that have a name: definitions, sections, keys, headings, items.

Python is read by its own parser. Other files are read by their brackets, indentation and headings:
enough to find what somebody names, and a part that is not found costs only a question.
"""

from __future__ import annotations

import ast
import re
import symtable
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from .languages import language_of


@dataclass(frozen=True)
class Part:
    """A part of a text.

    Attributes:
        name: Its name, such as `total`.
        kind: `class`, `function`, `variable`, `block`, `section`, `key`, `item`, `heading` or
            `lines`.
        start: Its first line, from 0, with the decorators above it.
        end: The line behind its last one.
        path: The names of the parts around it, and its own.
    """

    name: str
    kind: str
    start: int
    end: int
    path: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How it is named in a message: `Store.total`, or `lines 10 to 40`."""
        if self.kind == "lines":
            one = self.end - self.start == 1
            return f"line {self.end}" if one else f"lines {self.start + 1} to {self.end}"
        dotted = self.kind in {"class", "function", "variable"}
        return ".".join(self.path) if dotted else self.name

    def holds(self, other: Part) -> bool:
        """Return whether another part is in this one."""
        return self.start <= other.start and other.end <= self.end and self != other


# Only so much of a line is read, so that a pattern takes no time on a line of megabytes.
_MOST_READ = 500


def parts_of(lines: list[str], name: str) -> list[Part]:
    """Return the named parts of a text, in the order of their first lines, outer ones first.

    Args:
        lines: Its lines, without their ends.
        name: Name of the file, which says how to read it.
    """
    read = _READERS[language_of(name, lines[0] if lines else "").parts]
    if read is not _python:
        lines = [line[:_MOST_READ] for line in lines]
    return _with_paths(sorted(dict.fromkeys(read(lines)), key=lambda one: (one.start, -one.end)))


def _with_paths(found: list[Part]) -> list[Part]:
    open_parts: list[Part] = []
    result = []
    for one in found:
        while open_parts and open_parts[-1].end <= one.start:
            open_parts.pop()
        open_parts.append(one)
        result.append(replace(one, path=tuple(part.name for part in open_parts)))
    return result


# ---- one kind of file each


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# What the parser of Python raises for a text that it cannot read.
UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)


def _python(lines: list[str]) -> Iterable[Part]:
    text = "\n".join(lines)
    if "\r" in text:  # it ends a line for the parser
        return _indented(lines)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except UNREADABLE:
        return _indented(lines)
    found: list[Part] = []
    for around in ast.walk(tree):
        for node in ast.iter_child_nodes(around):
            if isinstance(node, _DEFINITIONS):
                start = min(one.lineno for one in (node, *node.decorator_list)) - 1
                kind = "class" if isinstance(node, ast.ClassDef) else "function"
                found.append(Part(node.name, kind, start, node.end_lineno or node.lineno))
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(
                around, (ast.Module, ast.ClassDef)
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = [one.id for one in targets if isinstance(one, ast.Name)]
                end = node.end_lineno or node.lineno
                found += [Part(name, "variable", node.lineno - 1, end) for name in names]
    return found


def symbol_tables(text: str) -> list[symtable.SymbolTable]:
    """Return the symbol tables of a module of Python, its own first.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: It cannot be read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = [symtable.symtable(text, "file", "exec")]
    found = list[symtable.SymbolTable]()
    while waiting:
        table = waiting.pop()
        found.append(table)
        waiting += table.get_children()
    return found


def _indentation(line: str) -> int:
    return len(line.expandtabs(8)) - len(line.expandtabs(8).lstrip())


def _end_of_block(
    lines: list[str], start: int, *, deep: int | None = None, closing: bool = False
) -> int:
    """Return the line behind the lines that are indented more than the first one.

    Args:
        deep: Its indentation, if it counts as another one.
        closing: Whether a closing bracket below, not indented more, is a part of it.
    """
    deep, end = _indentation(lines[start]) if deep is None else deep, start + 1
    for i in range(start + 1, len(lines)):
        line = lines[i]
        if not line.strip():
            continue
        if _indentation(line) <= deep:
            if closing and _indentation(line) == deep and line.lstrip()[0] in "]})":
                end = i + 1
            break
        end = i + 1
    return end


_DEFINITION = re.compile(r"\s*(?:async\s+)?(def|class)\s+(\w+)")


def _indented(lines: list[str]) -> Iterator[Part]:
    """Read Python with a mistake by its indentation."""
    for i, line in enumerate(lines):
        if found := _DEFINITION.match(line):
            kind = "class" if found[1] == "class" else "function"
            yield Part(found[2], kind, i, _end_of_block(lines, i, closing=True))


_KEY = re.compile(
    r"""(?P<dash>\s*(?:-\s+)*)
        (?:"(?P<quoted>[^"\\]+)" | '(?P<single>[^']+)' | (?P<plain>[\w./@+$-][^:\#"'{}\[\]]*?))
        \s*:(?=\s|$)""",
    re.VERBOSE,
)
_ITEM_NAMES = {"name", "id", "key", "title", "host", "uses", "job", "job_name", "label"}


def _keys(lines: list[str]) -> Iterator[Part]:
    """Read keys of JSON and YAML, and the items of lists by their names."""
    literal = -1  # indentation of a key whose value is a text of several lines
    for i, line in enumerate(lines):
        if not line.strip() or (0 <= literal < _indentation(line)):
            continue
        literal = -1
        found = _KEY.match(line)
        if not found:
            continue
        name = found["quoted"] or found["single"] or found["plain"]
        if re.search(r":\s*[|>][+-]?\d?\s*$", line):
            literal = _indentation(line)
        inner = _indentation(found["dash"].replace("-", " ") + "x")
        yield Part(name, "key", i, _end_of_block(lines, i, deep=inner, closing=True))
        value = line[found.end() :].strip().strip(",").strip("\"'")
        is_named = name.lower() in _ITEM_NAMES and value
        if is_named and (start_end := _item_around(lines, i)):
            yield Part(value, "item", *start_end)


_MOST_LINES = 1000  # of an item, above its name


def _item_around(lines: list[str], line: int) -> tuple[int, int] | None:
    """Return the item of a list that a key is in: from its dash or its bracket to its end."""
    deep = _indentation(lines[line])
    if re.match(r"\s*-\s", lines[line]):
        return line, _end_of_block(lines, line)
    for i in range(line - 1, max(-1, line - _MOST_LINES) if deep else line, -1):
        if lines[i].strip() and _indentation(lines[i]) < deep:
            if re.match(r"\s*(-\s|[\[{]\s*$)", lines[i]):
                return i, _end_of_block(lines, i, closing=True)
            return None
    return None


_SECTION = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:[#;].*)?$")
_SETTING = re.compile(r"""\s*(?:export\s+)?["']?([\w.$-]+(?: [\w.-]+)*)["']?\s*[=:]""")


def _sections(lines: list[str]) -> Iterator[Part]:
    heads = {i: found[1] for i, line in enumerate(lines) if (found := _SECTION.match(line))}
    for (i, title), after in zip(heads.items(), [*[*heads][1:], len(lines)], strict=False):
        end = after
        while end > i + 1 and (
            not lines[end - 1].strip()
            or (after < len(lines) and lines[end - 1].lstrip()[:1] in "#;")
        ):
            end -= 1
        yield Part(title.strip().strip("\"'"), "section", i, end)
    for i, line in enumerate(lines):
        is_setting = i not in heads and line.lstrip()[:1] not in {"#", ";"}
        if is_setting and (found := _SETTING.match(line)):
            yield Part(found[1], "key", i, _end_of_block(lines, i, closing=True))


def _headings(lines: list[str]) -> Iterator[Part]:
    heads: list[tuple[int, int, str]] = []
    fence = ""
    for i, line in enumerate(lines):
        mark = re.match(r"\s*(`{3,}|~{3,})", line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        elif not fence and (found := re.match(r"(#{1,6})\s+(.*?)\s*#*$", line)):
            heads.append((i, len(found[1]), found[2]))
        elif not fence and i and _is_underlined(lines[i - 1], line):
            heads.append((i - 1, "=-~^".index(line[0]) + 1, lines[i - 1].strip()))
    behind: list[tuple[int, int]] = []  # headings below, each of a higher rank than those before it
    for i, level, title in reversed(heads):
        while behind and behind[-1][1] > level:
            behind.pop()
        end = behind[-1][0] if behind else len(lines)
        behind.append((i, level))
        while end > i + 1 and not lines[end - 1].strip():
            end -= 1
        yield Part(re.sub(r"[*_`]", "", title), "heading", i, end)


def _is_underlined(title: str, line: str) -> bool:
    """Return whether a line of dashes or the like makes the line above it a heading."""
    n = len(line.strip())
    return bool(
        n > 2
        and title.strip()
        and re.match(r"(=+|-+|~+|\^+)\s*$", line)
        and n >= len(title.strip()) - 1
        and not re.match(r"\s*([-*+|#>]|\d+\.)", title)
    )


_SQL_NAME = re.compile(
    r"(?i)\b(?:TABLE|VIEW|INDEX|FUNCTION|PROCEDURE|TRIGGER|TYPE|INTO|UPDATE|FROM)\s+"
    r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?[\"'`\[]?([\w.]+)"
)


def _sql(lines: list[str]) -> Iterator[Part]:
    start = None
    for i, line in enumerate(lines):
        if start is None and line.strip() and not line.lstrip().startswith("--"):
            start = i
        if start is not None and line.rstrip().endswith(";"):
            head = " ".join(lines[start : start + 3])
            for j in range(start, i if re.search(r"(?i)\bTABLE\b", head) else start):
                if column := re.match(r"\s+[\"`\[]?(\w+)[\"`\]]?\s+[A-Z]{3,}", lines[j]):
                    yield Part(column[1], "key", j, j + 1)
            if found := _SQL_NAME.search(head):
                yield Part(found[1], "block", start, i + 1)
            start = None


def _targets(lines: list[str]) -> Iterator[Part]:
    for i, line in enumerate(lines):
        if found := re.match(r"([\w./%$(){}-]+(?:\s+[\w./%$(){}-]+)*)\s*:(?![=])", line):
            end = i + 1
            while end < len(lines) and (
                lines[end].startswith("\t") or lines[end - 1].endswith("\\")
            ):
                end += 1
            for name in found[1].split():
                yield Part(name, "block", i, end)
        elif found := re.match(r"(?:export\s+)?([\w.-]+)\s*[:?+]?=", line):
            end = i + 1
            while end < len(lines) and lines[end - 1].endswith("\\"):
                end += 1
            yield Part(found[1], "variable", i, end)


def _stages(lines: list[str]) -> Iterator[Part]:
    heads = [i for i, line in enumerate(lines) if re.match(r"(?i)FROM\s", line)]
    for i, end in zip(heads, [*heads[1:], len(lines)], strict=False):
        found = re.search(r"(?i)\sAS\s+(\S+)", lines[i])
        if found or end == len(lines):  # the last one needs no name
            yield Part(found[1] if found else "final", "section", i, end)


def _elements(lines: list[str]) -> Iterator[Part]:
    for i, line in enumerate(lines):
        for found in re.finditer(r"<([\w:-]+)([^<>]*)>", line):
            tag = found[1]
            names = re.findall(r"""\b(?:id|class|name)\s*=\s*["']([^"']+)["']""", found[2])
            if found[2].endswith("/") or f"</{tag}>" in line[found.end() :]:
                end = i + 1
            else:
                end = _end_of_block(lines, i)
                if end < len(lines) and lines[end].lstrip().startswith(f"</{tag}"):
                    end += 1
            for name in (tag, *names):
                yield Part(name, "block", i, end)


_NO_FUNCTIONS = {
    "if", "for", "while", "switch", "catch", "return", "else", "do", "match", "with", "sizeof",
}  # fmt: skip
_CLASS = "class|struct|enum|union|interface|trait|namespace|module|record|message|protocol|mixin"
_HEAD_NAMES = tuple((kind, re.compile(pattern)) for kind, pattern in (
    ("class", r"\btype\s+(\w+)\s+(?:struct|interface)\s*$"),
    ("class", rf"\b(?:(?:{_CLASS})\s+)?(?:{_CLASS})\s+([\w:]+)(?:<[^()]*>)?[^()=]*$"),
    ("class", r"\b(?:class|record|object)\s+(\w+)(?:<[^()]*>)?\s*(?:\(|:|extends\b).*$"),
    ("class", r"\bimpl\b(?:<[^>]*>)?\s+(?:\w+\s+for\s+)?(\w+)"),
    ("function", r"\b(?:function\*?|fn|func|def|fun)\s+(?:\([^)]*\)\s*)?(\w+)"),
    ("function", r"([\w$]+)\s*[:=]\s*(?:async\s*)?"
                 r"(?:function\b.*|\([^()]*\)\s*(?::[^=]*)?=>|\w+\s*=>)\s*$"),
    ("function", r"([\w$~]+)\s*\((?:[^()]|\([^()]*\))*\)\s*"
                 r"(?:(?:const|noexcept|override|async)\s*)*"
                 r"(?:throws [\w, ]+|->[^{]*|:[^{]*)?\s*$"),
    ("variable", r"\b(?:const|let|var|static)\s+(?:[\w<>*& ]+\s)?([\w$]+)\s*(?::[^=]*)?=\s*$"),
    ("key", r"[\"']?([\w$-]+)[\"']?\s*:\s*$"),
))  # fmt: skip


# before the braces of an argument that is taken apart: `function Field({ label, value }) {`
_TAKES_APART = re.compile(r"(?:\bfunction\*?\s*[\w$]*\s*|=\s*(?:async\s*)?)\((?:[^()]*,)?\s*$")


def _shell(lines: list[str]) -> Iterator[Part]:
    return _braces(lines, comment="#")


def _braces(lines: list[str], comment: str = "//") -> Iterator[Part]:
    """Read blocks in braces; texts and comments are skipped."""
    # line and words before each open brace; -1 for one of an argument
    stack: list[tuple[int, str]] = []
    head, head_line = "", 0
    for i, line in enumerate(without_texts(lines, comment)):
        if head.count("(") <= head.count(")") and _ended(line, head, comment):
            head = ""
        for piece in re.split(r"([{};])", line + "\n"):
            if piece == "{":
                start = head_line if head.strip() else i
                stack.append((-1 if _TAKES_APART.search(head) else start, head))
                head = ""
            elif piece == "}":
                start, head = stack.pop() if stack else (i, "")
                yield from _block(start, head, i + 1, line) if start >= 0 else ()
                head = head + "{}" if start < 0 else ""
            elif piece != ";":
                if not head.strip() and piece.strip():
                    head_line = i
                head += piece
            elif head.count("(") <= head.count(")"):
                if not stack and (name := _assigned(head)):
                    yield Part(name, "variable", head_line, i + 1)
                head = ""
        if found := re.match(r"\s*#(?:\s*define\s+(\w+))?", head):  # of the preprocessor
            yield from [Part(found[1], "variable", head_line, i + 1)] if found[1] else []
            head = ""
        head = head[-_MOST_READ:]


def _ended(line: str, head: str, comment: str) -> bool:
    """Return whether words before a line are a statement that has no semicolon."""
    if comment == "#":
        return not head.rstrip().endswith(")")
    if not line.strip() or "=" not in head:
        return not line.strip()
    bare = re.sub(r"\([^()]*\)", "()", head)  # without default values
    return bool(re.search(r"[^=!<>]=(?:[^=>]|\b>)*[\w)\]\"'`]\s*$", bare))


def _assigned(statement: str) -> str:
    """Return the name that a statement such as `static int n = 1` defines; empty if none."""
    before, mark, _ = statement.lstrip().partition("=")
    if not mark or "\n" in before or not re.search(r"\b(?:const|let|var|static|export)\b", before):
        return ""
    found = re.search(r"([\w$]+)\s*$", before.partition(":")[0])
    return found[1] if found else ""


def _block(start: int, words: str, end: int, last: str) -> Iterator[Part]:
    """Return the parts that a block is, by the words before it.

    Args:
        last: Its last line, which may name a type.
    """
    words = " ".join(words.split())
    if words.startswith("typedef"):
        after = re.match(r"\s*(\w+)\s*;", last[last.rindex("}") + 1 :])
        if after:
            yield Part(after[1], "class", start, end)
    for kind, pattern in _HEAD_NAMES:
        if (found := pattern.search(words)) and found[1] not in _NO_FUNCTIONS:
            yield Part(found[1], kind, start, end)
            return
    if (
        words
        and not re.match(r"(if|else|for|while|switch|do|try|catch|finally|typedef|return)\b", words)
        and len(words) < 200
    ):
        for one in words.split(","):  # selectors, and blocks of settings
            yield Part(one.strip(), "block", start, end)


_MARKS = re.compile(r"/\*|//[^\n]*|[\"'`]|/(?:[^/\\\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
# what a pattern such as `/'s?/` of JavaScript stands behind; elsewhere a slash divides
_BEFORE_PATTERN = re.compile(r"(?:^|[(,=:\[!&|?{};+]|\b(?:return|typeof|case|throw|of))\s*$")
_SHELL_MARKS = re.compile(r"(?m)(?:(?<=\s)|^)#[^\n]*|\$\{[^}\n]*\}|[\"'`]")
_ENDS = {one: re.compile(rf"[^{one}\\]*(?:\\.[^{one}\\]*)*{one}", re.DOTALL) for one in "\"'`"} | {
    "/*": re.compile(r".*?(?:\*/|\Z)", re.DOTALL)
}


def without_texts(lines: list[str], comment: str) -> list[str]:
    """Return lines with blanks in place of comments, and without braces in texts in quotes.

    A quotation mark that nothing closes is no text.
    """
    text = "\n".join(lines)
    marks = _MARKS if comment == "//" else _SHELL_MARKS
    pieces, at, unclosed = list[str](), 0, set[str]()
    while found := marks.search(text, at):
        start, end, mark = found.start(), found.end(), found[0]
        is_pattern = mark[0] == "/" and mark[:2] not in {"/*", "//"}
        if is_pattern and not _BEFORE_PATTERN.search(text, max(0, start - 40), start):
            pieces.append(text[at : start + 1])
            at = start + 1
            continue
        pieces.append(text[at:start])
        if mark in _ENDS and mark not in unclosed:
            closing = _ENDS[mark].match(text, end)
            if closing is None:
                unclosed.add(mark)
            else:
                end = closing.end()
        is_text = is_pattern or (comment == "//" and mark in "\"'`")
        blank = r"[{};]" if is_text or end - start == 1 else r"[^\n]"
        pieces.append(re.sub(blank, " ", text[start:end]))
        at = end
    return "".join([*pieces, text[at:]]).split("\n")


_READERS: dict[str, Callable[[list[str]], Iterable[Part]]] = {
    "python": _python, "braces": _braces, "shell": _shell, "keys": _keys, "sections": _sections,
    "headings": _headings, "sql": _sql, "targets": _targets, "stages": _stages,
    "elements": _elements,
}  # fmt: skip
