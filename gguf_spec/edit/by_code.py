"""Changes that need no model: renames, replacements of a text, and new values of settings.

A name of Python is found by its tokens and by the scopes of its compiler; in other languages by whole words outside of texts and
comments. Where it is not clear which uses are meant, the change says so and is not written without a question.
"""

from __future__ import annotations

import io
import re
import symtable
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from .instruction import Reading, Rename, bounded
from .parts import BRACES, Part, _without_texts


@dataclass(frozen=True)
class CodeEdit:
    """A change that was made by code.

    Attributes:
        lines: The new lines.
        n_places: Number of places that were changed.
        doubt: Why it is not certain that exactly these places were meant; empty if it is.
    """

    lines: list[str]
    n_places: int
    doubt: str = ""


def edit_by_code(
    instruction: str, reading: Reading, lines: list[str], parts: Sequence[Part], name: str
) -> CodeEdit | None:
    """Make the change that an instruction asks for, if it is one that needs no model.

    Args:
        instruction: What the user wrote.
        reading: What it says about the place.
        lines: Lines of the text.
        parts: Its named parts.
        name: Name of the file.
    """
    if reading.rename is None:
        return _remove(instruction, reading, lines, name) or _set_value(instruction, reading, lines)
    allowed = _allowed(reading, lines)
    rename = reading.rename
    if not rename.is_name:
        return _replace(rename, reading, lines, allowed, name)
    suffix = PurePath(name).suffix.lower()
    if suffix in {".py", ".pyi"}:
        return _rename_python(rename, reading, lines, parts, allowed)
    if suffix in {
        ".json",
        ".jsonc",
        ".yaml",
        ".yml",
        ".toml",
        ".ini",
        ".cfg",
        ".conf",
        ".properties",
    }:
        return _rename_key(rename, reading, lines, parts, allowed)
    if suffix in {".md", ".txt", ".rst", ".html", ".htm", ".xml", ".csv"}:
        return _replace(Rename(rename.old, rename.new, False), reading, lines, allowed, name)
    return _rename_words(rename, reading, lines, allowed, suffix)


def _allowed(reading: Reading, lines: Sequence[str]) -> set[int]:
    """Return the lines that may change."""
    scope = set(range(len(lines)))
    if reading.scope:
        scope = {i for part in reading.scope for i in range(part.start, part.end)}
    return scope - {i for part in reading.kept for i in range(part.start, part.end)}


def _places(n: int, what: str) -> str:
    return f"{what} stands at {n} places: name one of them, or say that all are meant"


# ---- values and texts


_SETTING = re.compile(
    r"""(?P<before>.*?[=:]\s*)(?P<quote>["']?)(?P<old>[^"'#;,{}\[\]]*?)(?P=quote)(?P<after>\s*[,;]?\s*(?:(?:#|//|;).*)?)$"""
)
_TO = re.compile(
    r"(?i)\s*(?:please\s+)?(?:set|change|increase|raise|lower|reduce|decrease|bump|update|switch|make)\b.*\b(?:to|be)\s+[`\"']?(?P<new>[\w./:%+@^~<>=*-]+)[`\"']?\s*\.?\s*$"
)


def _set_value(instruction: str, reading: Reading, lines: list[str]) -> CodeEdit | None:
    """Write the new value of one setting in one line."""
    found = _TO.match(re.split(r"[,;]\s*(?=but|leave|keep|do not|don't|not)", instruction)[0])
    if not found or len(reading.scope) != 1:
        return None
    (part,) = reading.scope
    if (
        part.kind not in {"key", "variable"}
        or part.end - part.start != 1
        or part.start not in _allowed(reading, lines)
    ):
        return None
    setting = _SETTING.match(lines[part.start])
    new = found["new"].rstrip(".")
    if not setting or not setting["old"].strip() or re.search(r"\s", setting["old"].strip()):
        return None
    if setting["quote"] and not re.fullmatch(r"[\w./:%+@^~<>=*-]+", new):
        return None
    kinds = [_kind_of(one) for one in (setting["old"].strip(), new)]
    if not setting["quote"] and kinds[0] != kinds[1]:
        return None  # a word for a number: not the value as it is written
    changed = lines.copy()
    changed[part.start] = (
        f"{setting['before']}{setting['quote']}{new}{setting['quote']}{setting['after']}"
    )
    return CodeEdit(changed, 1)


def _kind_of(value: str) -> str:
    if re.fullmatch(r"[+-]?[\d._]+(?:e-?\d+)?", value):
        return "number"
    return "switch" if value.lower() in {"true", "false", "yes", "no", "on", "off"} else "word"


def _replace(
    rename: Rename, reading: Reading, lines: list[str], allowed: set[int], name: str
) -> CodeEdit | None:
    """Replace a text or a value where it stands alone."""
    pattern = bounded(rename.old)
    found = [i for i in sorted(allowed) if pattern.search(lines[i])]
    if rename.around and (
        near := [
            i for i in found if re.search(rf"(?i)(?<![a-z]){re.escape(rename.around)}", lines[i])
        ]
    ):
        found = near
    elif rename.around and len(found) != 1:
        return None
    if not found:
        return None
    new = lines.copy()
    n_places = 0
    for i in found:
        new[i], n = pattern.subn(lambda _: rename.new, lines[i])
        n_places += n
    is_value = bool(rename.around) or rename.kind not in {"word", "text", "string", "name", "term"}
    doubt = (
        _places(n_places, rename.old)
        if n_places > 1 and is_value and not reading.is_everywhere and not _is_word(rename, name)
        else ""
    )
    return CodeEdit(new, n_places, doubt)


def _is_word(rename: Rename, name: str) -> bool:
    """Return whether a text is a word of prose, which is replaced wherever it stands."""
    return not rename.around and PurePath(name).suffix.lower() in {".md", ".txt", ".rst"}


# ---- removals


_REMOVE = re.compile(r"(?i)\s*(?:please\s+)?(?:remove|delete|drop)\s+(?P<what>.*?)\s*\.?\s*$")
_FILLING = re.compile(
    r"(?i)\b(?:the|whole|entire|function|method|class|section|key|setting|option|entry|table|target|rule|heading|chapter|block|service|"
    r"server|job|step|item|lines?|in|from|of|and|to|variable|constant|field|struct)\b|[`\"'“”‘’\[\]().,:#*\s]|\d+(?:\s*-\s*\d+)?"
)


def _remove(instruction: str, reading: Reading, lines: list[str], name: str) -> CodeEdit | None:
    """Remove one part, if the instruction says nothing more than that."""
    found = _REMOVE.match(instruction)
    if not found or len(reading.scope) != 1 or reading.kept:
        return None
    (part,) = reading.scope
    rest = found["what"]
    for word in sorted({*part.path, part.label}, key=len, reverse=True):
        rest = rest.replace(word, " ") if word else rest
    if _FILLING.sub("", rest):
        return None
    start, end = part.start, part.end
    while (
        start
        and re.match(r"\s*(#|//|--)(?!\s*[-=]{3})", lines[start - 1])
        and part.kind in {"function", "class", "block"}
    ):
        start -= 1  # the comment right above it
    new = lines[:start] + lines[end:]
    above = next((n for n in range(start) if new[start - 1 - n].strip()), start)
    below = next((n for n in range(len(new) - start) if new[start + n].strip()), len(new) - start)
    n_blank = min(above, below) if start - above else below
    del new[start : start + n_blank]
    start = min(start, len(new))
    if start == len(new):
        while new and not new[-1].strip():
            new.pop()
    if PurePath(name).suffix.lower() == ".json":
        last = next((i for i in range(start - 1, -1, -1) if new[i].strip()), -1)
        behind = next((one.strip() for one in new[start:] if one.strip()), "")
        if last >= 0 and behind[:1] in {"}", "]"}:
            new[last] = new[last].removesuffix(",")
    return CodeEdit(new, 1) if new else None


# ---- keys and words


def _rename_key(
    rename: Rename, reading: Reading, lines: list[str], parts: Sequence[Part], allowed: set[int]
) -> CodeEdit | None:
    old, new = rename.old, rename.new
    container, _, leaf = old.rpartition(".")
    exact = [
        part
        for part in parts
        if part.name == old and part.start in allowed and part.kind in {"key", "section"}
    ]
    if not exact and container:
        exact = [
            part
            for part in parts
            if part.name == leaf and ".".join(part.path).endswith(old) and part.start in allowed
        ]
        old, new = leaf, new.rpartition(".")[2]
    if not exact:
        return None
    changed = lines.copy()
    for part in exact:
        line = lines[part.start]
        if part.kind == "section":
            changed[part.start] = re.sub(
                rf"(\[+\s*[\"']?){re.escape(old)}(?=[\"'\s\]])",
                lambda found: found[1] + new,
                line,
                count=1,
            )
        else:
            pattern = rf"""(^|[\s{{,"'-])({re.escape(old)})(?=["']?\s*[:=])"""
            changed[part.start] = re.sub(pattern, lambda found: found[1] + new, line, count=1)
    doubt = (
        _places(len(exact), f"the key {old}")
        if len(exact) > 1 and not reading.is_everywhere
        else ""
    )
    return CodeEdit(changed, len(exact), doubt)


def _rename_words(
    rename: Rename, reading: Reading, lines: list[str], allowed: set[int], suffix: str
) -> CodeEdit | None:
    """Rename a word of code outside of texts and comments."""
    old, new = rename.old, rename.new
    owner, _, leaf = old.rpartition(".") if not old.startswith(".") else ("", "", old)
    if owner:
        old, new = leaf, new.rpartition(".")[2]
    bare = _bare(lines, suffix)
    if suffix in {".css", ".scss", ".less"}:
        marks = r"(?<=\.)|(?<=#)|(?<=--)|(?<=@)|(?<![\w-])" if re.match(r"\w", old) else ""
        pattern = re.compile(rf"(?:{marks}){re.escape(old)}(?![\w-])")
    elif suffix in BRACES or suffix == ".sql":
        pattern = re.compile(rf"(?<![\w$]){re.escape(old)}(?![\w$])")
    else:
        pattern = re.compile(rf"(?<![\w-]){re.escape(old)}(?![\w-])")
    field = _field_places(rename, reading, bare, pattern) if suffix in BRACES else None
    changed = lines.copy()
    n_places = 0
    for i in sorted(allowed if field is None else field):
        spans = [found.span() for found in pattern.finditer(bare[i])] if field is None else field[i]
        for start, end in reversed(spans):
            changed[i] = changed[i][:start] + new + changed[i][end:]
            n_places += 1
    if not n_places:
        return None
    doubt = (
        f"which of the uses of {old} belong to it is not certain"
        if field is not None and _has_other_uses(field, bare, pattern)
        else ""
    )
    return CodeEdit(changed, n_places, doubt)


def _bare(lines: list[str], suffix: str) -> list[str]:
    """Return lines with blanks in place of comments and texts, each as long as before."""
    if suffix in BRACES:
        text = "\n".join(_without_texts(lines, "//"))
        return re.sub(
            r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", lambda found: " " * len(found[0]), text
        ).split("\n")
    mark = "--" if suffix == ".sql" else "#"
    return [
        re.sub(rf"(^|\s){re.escape(mark)}.*", lambda found: " " * len(found[0]), line)
        for line in lines
    ]


def _field_places(
    rename: Rename, reading: Reading, bare: list[str], pattern: re.Pattern[str]
) -> dict[int, list[tuple[int, int]]] | None:
    """Return where a field of a structure is used; None if the rename is not one of a field."""
    owners = [part for part in reading.scope if part.kind == "class"]
    if len(owners) != 1 or not any(
        re.search(rf"(->|\.)\s*{pattern.pattern}", line) for line in bare
    ):
        return None
    (owner,) = owners
    text = "\n".join(bare)
    variables = set(
        re.findall(rf"\b{re.escape(owner.name)}\b\s*(?:const\s*)?[*&]*\s*(\w+)", text)
    ) | {"this", "self"}
    places: dict[int, list[tuple[int, int]]] = {}
    for i, line in enumerate(bare):
        for found in pattern.finditer(line):
            before = re.search(r"(\w+)(?:\[[^\]]*\])?\s*(?:->|\.)\s*$", line[: found.start()])
            inside = owner.start <= i < owner.end
            if (inside and not before) or (
                before and before[1] in variables and (before[1] not in {"this", "self"} or inside)
            ):
                places.setdefault(i, []).append(found.span())
    return places


def _has_other_uses(
    places: dict[int, list[tuple[int, int]]], bare: list[str], pattern: re.Pattern[str]
) -> bool:
    """Return whether an expression that is not a plain variable has the field, too."""
    for i, line in enumerate(bare):
        for found in pattern.finditer(line):
            if found.span() not in places.get(i, []) and re.search(
                r"[)\]]\s*(->|\.)\s*$", line[: found.start()]
            ):
                return True
    return False


# ---- names of Python


def _rename_python(
    rename: Rename, reading: Reading, lines: list[str], parts: Sequence[Part], allowed: set[int]
) -> CodeEdit | None:
    owner, _, old = rename.old.rpartition(".")
    new = rename.new.rpartition(".")[2]
    if not new.isidentifier() or not old.isidentifier():
        return _replace(
            Rename(rename.old, rename.new, False, rename.kind), reading, lines, allowed, "a.py"
        )
    text = "\n".join(lines) + "\n"
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        table = symtable.symtable(text, "file", "exec")
    except (tokenize.TokenError, SyntaxError, IndentationError, ValueError):
        return None
    classes = {part.name: part for part in parts if part.kind == "class"}
    inside = [part for part in reading.scope if part.kind == "class"] + (
        [classes[owner]] if owner in classes else []
    )
    members = [
        part
        for part in parts
        if part.name == old
        and part.kind == "function"
        and len(part.path) > 1
        and part.path[-2] in classes
    ]
    attributes = {i for i, _, dotted in _uses(tokens, old) if dotted}
    is_local = any(
        part.kind == "function" and old in _names_in(table, part) for part in reading.scope
    )
    is_bound = any(part.name == old and len(part.path) == 1 for part in parts) or bool(
        _functions_with(table, old)
    )
    is_member = rename.kind in {"method", "attribute", "property", "field"} or bool(owner)
    if (
        not is_member
        and rename.kind not in {"variable", "parameter", "argument", "constant"}
        and not is_local
    ):
        is_member = bool(members or attributes) and not is_bound
    doubt = ""
    if is_member:
        owners = inside or [
            part for part in classes.values() if _has_member(part, parts, old, lines)
        ]
        if not owners:
            return None
        if len(owners) > 1 and not reading.is_everywhere:
            doubt = _places(len(owners), f"the method {old}")
        others = [
            part
            for part in classes.values()
            if part not in owners and _has_member(part, parts, old, lines)
        ]
        places = _member_uses(tokens, old, owners, lone=not others)
        if others and any(
            d and not any(o.start <= i < o.end for o in (*owners, *others))
            for i, _, d in _uses(tokens, old)
        ):
            doubt = doubt or f"whose {old} is used outside of its class is not certain"
    else:
        names = [part for part in reading.scope if part.kind in {"function", "class", "lines"}]
        places = _name_uses(tokens, old, table, allowed if reading.scope else None)
        if (
            not names
            and not _is_global(table, old)
            and len(_functions_with(table, old)) > 1
            and not reading.is_everywhere
        ):
            doubt = _places(len(_functions_with(table, old)), f"a variable {old}")
        if members and not reading.scope and not rename.kind:
            doubt = doubt or f"there are a method and a variable {old}: say which one is meant"
    kept = {i for part in reading.kept for i in range(part.start, part.end)}
    places = [(i, start) for i, start in places if i not in kept]
    if not places:
        return None
    changed = lines.copy()
    for i, start in sorted(set(places), reverse=True):
        changed[i] = changed[i][:start] + new + changed[i][start + len(old) :]
    return CodeEdit(changed, len(set(places)), doubt)


def _uses(tokens: Iterable[tokenize.TokenInfo], name: str) -> list[tuple[int, int, bool]]:
    """Return line, column and whether a dot stands before it, for each use of a name; those in f-strings, too."""
    found, before = [], ""
    for token in tokens:
        if token.type == tokenize.NAME and token.string == name:
            found.append((token.start[0] - 1, token.start[1], before == "."))
        elif token.type == tokenize.STRING and re.match(r"(?i)[rb]*f", token.string):
            found += _in_text(token, name)
        if token.type not in {tokenize.NL, tokenize.COMMENT}:
            before = token.string
    return found


def _in_text(token: tokenize.TokenInfo, name: str) -> list[tuple[int, int, bool]]:
    """Return the uses of a name in the braces of an f-string, which is one token before Python 3.12."""
    found, deep = [], 0
    text = (
        token.string.replace("{{", "\0\0").replace("}}", "\0\0")
        if "{{" in token.string
        else token.string
    )
    pattern = re.compile(rf"(?<![\w]){name}(?!\w)")
    spans = [match.span() for match in pattern.finditer(text)]
    for i, char in enumerate(text):
        deep += {"{": 1, "}": -1}.get(char, 0)
        if any(i == start for start, _ in spans) and deep > 0:
            line = token.start[0] - 1 + text.count("\n", 0, i)
            column = (
                i
                - (text.rfind("\n", 0, i) + 1)
                + (token.start[1] if line == token.start[0] - 1 else 0)
            )
            found.append((line, column, text[i - 1] == "."))
    return found


def _has_member(part: Part, parts: Sequence[Part], name: str, lines: Sequence[str]) -> bool:
    if any(
        one.name == name and part.holds(one) and len(one.path) == len(part.path) + 1
        for one in parts
    ):
        return True
    return any(
        re.search(rf"\b(self|cls)\.{name}\b\s*(=[^=]|:)", line)
        for line in lines[part.start : part.end]
    )


def _member_uses(
    tokens: list[tokenize.TokenInfo], name: str, owners: Sequence[Part], *, lone: bool
) -> list[tuple[int, int]]:
    """Return the uses of a member: its definition, `self.NAME` in its classes, and elsewhere if no other class has one."""
    places, before, last_name = [], "", ""
    named = {(i, column): dotted for i, column, dotted in _uses(tokens, name)}
    for token in tokens:
        key = (token.start[0] - 1, token.start[1])
        if key in named:
            is_inside = any(part.start <= key[0] < part.end for part in owners)
            is_own = (
                is_inside
                and last_name in {"self", "cls", "super"}
                or last_name in {part.name for part in owners}
            )
            is_field = is_inside and before in {"", "\n"} and not named[key]
            if (before == "def" and is_inside) or (named[key] and (is_own or lone)) or is_field:
                places.append(key)
        if token.type == tokenize.NAME and token.string != name:
            last_name = token.string
        if token.type not in {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}:
            before = token.string
    inner = [
        (i, c)
        for (i, c), dotted in named.items()
        if dotted and (lone or any(part.start <= i < part.end for part in owners))
    ]
    plain = {
        (token.start[0] - 1, token.start[1]) for token in tokens if token.type == tokenize.NAME
    }
    return places + [one for one in inner if one not in plain]  # in f-strings


def _tables(table: symtable.SymbolTable) -> Iterable[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _names_in(table: symtable.SymbolTable, part: Part) -> set[str]:
    """Return the names of variables of a function itself."""
    functions = (
        one
        for one in _tables(table)
        if one.get_type() == "function" and one.get_name() == part.name
    )
    return {
        name
        for one in functions
        if part.start < one.get_lineno() <= part.end
        for name in one.get_identifiers()
        if one.lookup(name).is_local()
    }


def _is_global(table: symtable.SymbolTable, name: str) -> bool:
    return name in table.get_identifiers() and (
        table.lookup(name).is_assigned()
        or table.lookup(name).is_imported()
        or table.lookup(name).is_namespace()
    )


def _functions_with(table: symtable.SymbolTable, name: str) -> list[symtable.SymbolTable]:
    """Return the functions that have a variable of this name of their own."""
    return [
        one
        for one in _tables(table)
        if one.get_type() == "function"
        and name in one.get_identifiers()
        and one.lookup(name).is_local()
    ]


def _name_uses(
    tokens: list[tokenize.TokenInfo],
    name: str,
    table: symtable.SymbolTable,
    allowed: set[int] | None,
) -> list[tuple[int, int]]:
    """Return the uses of a variable, a function or a class; not of attributes and of arguments of that name.

    Without a place it is the global one, and a function with a variable of its own of that name is left out.
    """
    own: set[int] = set()
    if allowed is None and _is_global(table, name):
        starts = {one.get_lineno() - 1 for one in _functions_with(table, name)}
        for start in starts:
            own |= set(range(start, _end_of_function(tokens, start)))
    places, before, deep, in_def = [], "", 0, False
    named = {(i, column): dotted for i, column, dotted in _uses(tokens, name)}
    significant = [token for token in tokens if token.type not in {tokenize.NL, tokenize.COMMENT}]
    plain = set()
    for token, after in zip(significant, [*significant[1:], significant[-1]], strict=True):
        key = (token.start[0] - 1, token.start[1])
        plain.add(key)
        if token.string == "def":
            in_def, deep = True, 0
        elif token.string in "([{" and token.string:
            deep += 1
        elif token.string in {")", "]", "}"}:
            deep -= 1
        elif token.string == ":" and not deep:
            in_def = False
        if key in named and not named[key]:
            is_argument = after.string == "=" and deep > 0 and before in {"(", ","} and not in_def
            if not is_argument and key[0] not in own and (allowed is None or key[0] in allowed):
                places.append(key)
        elif (
            token.type == tokenize.STRING
            and token.string[1:-1] == name
            and _is_export(tokens, token)
        ):
            if allowed is None or key[0] in allowed:
                places.append((key[0], key[1] + 1))
        before = token.string
    texts = [key for key, dotted in named.items() if key not in plain and not dotted]
    return places + [
        key for key in texts if key[0] not in own and (allowed is None or key[0] in allowed)
    ]


def _is_export(tokens: list[tokenize.TokenInfo], token: tokenize.TokenInfo) -> bool:
    """Return whether a text stands in `__all__`."""
    start = next((one.start[0] for one in tokens if one.string == "__all__"), 0)
    end = next(
        (one.start[0] for one in tokens if one.type == tokenize.NEWLINE and one.start[0] >= start),
        0,
    )
    return bool(start) and start <= token.start[0] <= end


def _end_of_function(tokens: list[tokenize.TokenInfo], start: int) -> int:
    """Return the line behind the function that begins in a line."""
    deep, begun = 0, False
    for token in tokens:
        if token.start[0] - 1 < start:
            continue
        if token.type == tokenize.INDENT:
            deep, begun = deep + 1, True
        elif token.type == tokenize.DEDENT and begun:
            deep -= 1
            if not deep:
                return token.start[0] - 1
    return tokens[-1].start[0]
