"""The parts of a text file that have a name: definitions, sections, keys, headings, items.

Python is read by its own parser. Other files are read by their brackets, indentation and headings: enough to find what
somebody names, and a part that is not found costs only a question.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath


@dataclass(frozen=True)
class Part:
    """A part of a text.

    Attributes:
        name: Its name, such as `total`.
        kind: `class`, `function`, `variable`, `block`, `section`, `key`, `item`, `heading` or `lines`.
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


BRACES = {
    ".c", ".cc", ".cpp", ".cs", ".css", ".cxx", ".dart", ".go", ".h", ".hpp", ".java", ".js", ".jsx", ".kt", ".less",
    ".m", ".mjs", ".php", ".proto", ".rs", ".scala", ".scss", ".swift", ".ts", ".tsx", ".vue", ".zig", ".nginx",
}  # fmt: skip
_SHELL = {".sh", ".bash", ".zsh"}
_KEYED = {".json", ".jsonc", ".json5", ".yaml", ".yml"}
_SECTIONS = {
    ".toml",
    ".ini",
    ".cfg",
    ".conf",
    ".editorconfig",
    ".properties",
    ".service",
    ".desktop",
    ".env",
}
_HEADINGS = {".md", ".markdown", ".rst", ".txt", ".adoc"}


def parts_of(lines: list[str], name: str) -> list[Part]:
    """Return the named parts of a text, in the order of their first lines, outer ones first.

    Args:
        lines: Its lines, without their ends.
        name: Name of the file, which says how to read it.
    """
    path = PurePath(name)
    suffix, stem = path.suffix.lower(), path.name.lower()
    if suffix in {".py", ".pyi"}:
        found = _python(lines)
    elif suffix in BRACES:
        found = _braces(lines)
    elif suffix in _SHELL or (lines and re.match(r"#!.*\b(ba|z|da)?sh\b", lines[0])):
        found = _braces(lines, comment="#")
    elif suffix in _KEYED:
        found = _keys(lines)
    elif suffix in _SECTIONS or stem.startswith(".env"):
        found = _sections(lines)
    elif suffix in _HEADINGS:
        found = _headings(lines)
    elif suffix == ".sql":
        found = _sql(lines)
    elif stem in {"makefile", "gnumakefile"} or suffix == ".mk":
        found = _targets(lines)
    elif stem.startswith("dockerfile"):
        found = _blocks(lines, r"FROM\b.*\bAS\s+(\S+)", "section")
    elif suffix in {".html", ".htm", ".xml", ".svg"}:
        found = _elements(lines)
    else:
        found = [*_keys(lines)]
    return _with_paths(sorted(set(found), key=lambda one: (one.start, -one.end)))


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


def _python(lines: list[str]) -> Iterable[Part]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse("\n".join(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _indented(lines)
    found: list[Part] = []
    nodes: list[ast.AST] = [tree]
    while nodes:
        node = nodes.pop()
        for child in ast.iter_child_nodes(node):
            is_variable = isinstance(child, (ast.Assign, ast.AnnAssign)) and isinstance(
                node, (ast.Module, ast.ClassDef)
            )
            if is_variable or isinstance(
                child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                found += _python_part(child)
            nodes.append(child)
    return found


def _python_part(node: ast.stmt) -> Iterator[Part]:
    start, end = node.lineno - 1, node.end_lineno or node.lineno
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        for target in targets:
            if isinstance(target, ast.Name):
                yield Part(target.id, "variable", start, end)
        return
    assert isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    start = min([start, *(one.lineno - 1 for one in node.decorator_list)])
    yield Part(node.name, "class" if isinstance(node, ast.ClassDef) else "function", start, end)


def _indentation(line: str) -> int:
    return len(line.expandtabs(8)) - len(line.expandtabs(8).lstrip())


def _end_of_block(lines: list[str], start: int, *, closing: bool = False) -> int:
    """Return the line behind the lines that are indented more than the first one.

    Args:
        lines: The lines.
        start: The first line.
        closing: Whether a closing bracket below, not indented more, is a part of it.
    """
    deep, end = _indentation(lines[start]), start + 1
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
    r"""(?P<dash>\s*(?:-\s+)*)(?:"(?P<quoted>[^"\\]+)"|'(?P<single>[^']+)'|(?P<plain>[\w./@+$-][^:#"'{}\[\]]*?))\s*:(?=\s|$)"""
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
        inner = len(found["dash"])
        block = [" " * inner + line[inner:], *lines[i + 1 :]]
        yield Part(name, "key", i, i + _end_of_block(block, 0, closing=True))
        value = line[found.end() :].strip().strip(",").strip("\"'")
        if name.lower() in _ITEM_NAMES and value:
            if start_end := _item_around(lines, i):
                yield Part(value, "item", *start_end)


def _item_around(lines: list[str], line: int) -> tuple[int, int] | None:
    """Return the item of a list that a key is in: from its dash or its bracket to its end."""
    deep = _indentation(lines[line])
    if re.match(r"\s*-\s", lines[line]):
        return line, _end_of_block(lines, line)
    for i in range(line - 1, -1, -1):
        if lines[i].strip() and _indentation(lines[i]) < deep:
            if re.match(r"\s*(-\s|[\[{]\s*$)", lines[i]):
                return i, _end_of_block(lines, i, closing=True)
            return None
    return None


_SECTION = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:[#;].*)?$")
_SETTING = re.compile(r"""\s*(?:export\s+)?["']?([\w.$-]+(?: [\w.-]+)*)["']?\s*[=:]""")


def _sections(lines: list[str]) -> Iterator[Part]:
    heads = [i for i, line in enumerate(lines) if _SECTION.match(line)]
    for i, after in zip(heads, [*heads[1:], len(lines)], strict=False):
        found = _SECTION.match(lines[i])
        assert found
        end = after
        while end > i + 1 and (
            not lines[end - 1].strip()
            or (after < len(lines) and lines[end - 1].lstrip()[:1] in "#;")
        ):
            end -= 1
        name = found[1].strip().strip("\"'")
        yield Part(name, "section", i, end)
    for i, line in enumerate(lines):
        if (
            i not in heads
            and line.lstrip()[:1] not in {"#", ";"}
            and (found := _SETTING.match(line))
        ):
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
        elif (
            not fence
            and i
            and lines[i - 1].strip()
            and re.match(r"(=+|-+|~+|\^+)\s*$", line)
            and len(line.strip()) > 2
        ):
            if len(line.strip()) >= len(lines[i - 1].strip()) - 1 and not re.match(
                r"\s*([-*+|#>]|\d+\.)", lines[i - 1]
            ):
                heads.append((i - 1, "=-~^".index(line[0]) + 1, lines[i - 1].strip()))
    for n, (i, level, title) in enumerate(heads):
        end = next((j for j, other, _ in heads[n + 1 :] if other <= level), len(lines))
        while end > i + 1 and not lines[end - 1].strip():
            end -= 1
        yield Part(re.sub(r"[*_`]", "", title), "heading", i, end)


def _sql(lines: list[str]) -> Iterator[Part]:
    start = None
    for i, line in enumerate(lines):
        if start is None and line.strip() and not line.lstrip().startswith("--"):
            start = i
        if start is not None and line.rstrip().endswith(";"):
            head = " ".join(lines[start : start + 3])
            for j in range(start, i):
                if column := re.match(r"\s+[\"`\[]?(\w+)[\"`\]]?\s+[A-Z]{3,}", lines[j]):
                    if re.search(r"(?i)\bTABLE\b", head):
                        yield Part(column[1], "key", j, j + 1)
            found = re.search(
                r"\b(?:TABLE|VIEW|INDEX|FUNCTION|PROCEDURE|TRIGGER|TYPE|INTO|UPDATE|FROM)\s+"
                r"(?:IF\s+(?:NOT\s+)?EXISTS\s+)?[\"'`\[]?([\w.]+)", head, re.IGNORECASE,
            )  # fmt: skip
            if found:
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


def _blocks(lines: list[str], pattern: str, kind: str) -> Iterator[Part]:
    heads = [
        (i, found[1])
        for i, line in enumerate(lines)
        if (found := re.match(pattern, line, re.IGNORECASE))
    ]
    for (i, name), (end, _) in zip(heads, [*heads[1:], (len(lines), "")], strict=False):
        yield Part(name, kind, i, end)


def _elements(lines: list[str]) -> Iterator[Part]:
    for i, line in enumerate(lines):
        for found in re.finditer(r"<([\w:-]+)([^<>]*)>", line):
            tag, names = (
                found[1],
                re.findall(r"""\b(?:id|class|name)\s*=\s*["']([^"']+)["']""", found[2]),
            )
            if found[2].endswith("/") or f"</{tag}>" in line[found.end() :]:
                end = i + 1
            else:
                end = _end_of_block(lines, i)
                if end < len(lines) and lines[end].lstrip().startswith(f"</{tag}"):
                    end += 1
            for name in (tag, *names):
                yield Part(name, "block", i, end)


_NO_FUNCTIONS = {
    "if",
    "for",
    "while",
    "switch",
    "catch",
    "return",
    "else",
    "do",
    "match",
    "with",
    "sizeof",
}
_HEAD_NAMES = (
    ("class", re.compile(r"\b(?:class|struct|enum|union|interface|trait|namespace|module|record|message)\s+([\w:]+)[^()]*$")),
    ("class", re.compile(r"\bimpl\b(?:<[^>]*>)?\s+(?:\w+\s+for\s+)?(\w+)")),
    ("function", re.compile(r"\b(?:function\*?|fn|func|def|fun)\s+(?:\([^)]*\)\s*)?(\w+)")),
    ("function", re.compile(r"([\w$]+)\s*[:=]\s*(?:async\s*)?(?:function\b.*|\([^()]*\)\s*(?::[^=]*)?=>|\w+\s*=>)\s*$")),
    ("function", re.compile(r"([\w$~]+)\s*\((?:[^()]|\([^()]*\))*\)\s*(?:const|noexcept|override|async|throws [\w, ]+|->[^{]*|:[^{]*)*\s*$")),
    ("variable", re.compile(r"\b(?:const|let|var|static)\s+(?:[\w<>*& ]+\s)?([\w$]+)\s*(?::[^=]*)?=\s*$")),
    ("key", re.compile(r"[\"']?([\w$-]+)[\"']?\s*:\s*$")),
)  # fmt: skip


def _braces(lines: list[str], comment: str = "//") -> Iterator[Part]:
    """Read blocks in braces; texts and comments are skipped."""
    stack: list[tuple[int, str]] = []  # line and words before each open brace
    head, head_line = "", 0
    for i, line in enumerate(_without_texts(lines, comment)):
        for char in line + "\n":
            if char == "{":
                stack.append((head_line if head.strip() else i, head))
                head = ""
            elif char == "}":
                if stack:
                    start, words = stack.pop()
                    after = (
                        re.match(r"\s*(\w+)\s*;", line[line.rindex("}") + 1 :])
                        if words.strip().startswith("typedef")
                        else None
                    )
                    yield from _block(start, i + 1, words, after[1] if after else "")
                head = ""
            elif char == ";":
                if not head.count("(") > head.count(")"):
                    found = re.match(
                        r"\s*(?:#define\s+|.*?\b(?:const|let|var|static|export)\b.*?)([\w$]+)\s*(?::[^=]*)?=",
                        head,
                    )
                    if found and not stack:
                        yield Part(found[1], "variable", head_line, i + 1)
                    head = ""
            else:
                if not head.strip() and not char.isspace():
                    head_line = i
                head += char
        if head.lstrip().startswith("#"):  # the preprocessor's lines
            if found := re.match(r"\s*#\s*define\s+(\w+)", head):
                yield Part(found[1], "variable", head_line, i + 1)
            head = ""


def _block(start: int, end: int, words: str, after: str) -> Iterator[Part]:
    words = " ".join(words.split())
    if after:
        yield Part(after, "class", start, end)
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


_TEXT = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`")


def _without_texts(lines: list[str], comment: str) -> list[str]:
    """Return lines with blanks in place of texts in quotes and comments; braces in them count nothing."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    text = "\n".join(lines)
    if comment == "//":
        both = re.compile(rf"/\*.*?(?:\*/|\Z)|//[^\n]*|{_TEXT.pattern}", re.DOTALL)
        return both.sub(
            lambda found: blank(found) if found[0][0] == "/" else _quoted(found[0]), text
        ).split("\n")
    both = re.compile(rf"(?m)(?:(?<=\s)|^)#[^\n]*|\$\{{[^}}\n]*\}}|{_TEXT.pattern}", re.DOTALL)
    return both.sub(blank, text).split("\n")


def _quoted(text: str) -> str:
    return re.sub(r"[{};]", " ", text)
