"""Changes that need no model: renames, replacements of a text, and new values of settings.

A name of Python is found by its tokens and by the scopes of its compiler; in other languages by
whole words outside of texts and comments. Where it is not clear which uses are meant, the change
says so and is not written without a question.
"""

from __future__ import annotations

import io
import itertools
import re
import symtable
import tokenize
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from .instruction import Reading, Rename, bounded
from .parts import BRACES, UNREADABLE, Part, symbol_tables, without_texts


@dataclass(frozen=True)
class CodeEdit:
    """A change that was made by code.

    Attributes:
        doubt: Why it is not certain that exactly these places were meant; empty if it is.
    """

    lines: list[str]
    n_places: int
    doubt: str = ""


_Places = list[tuple[int, int]]  # line and column
KEYED = {".json", ".jsonc", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties"}
_PROSE = {".md", ".txt", ".rst", ".html", ".htm", ".xml", ".csv"}


def edit_by_code(reading: Reading) -> CodeEdit | None:
    """Make the change that an instruction asks for, if it is one that needs no model."""
    rename = reading.rename
    if rename is None:
        return _remove(reading) or _set_value(reading)
    if not rename.is_name:
        found = _replace(rename, reading)
    elif reading.suffix in {".py", ".pyi"}:
        found = _rename_python(rename, reading)
    elif reading.suffix in KEYED:
        found = _rename_key(rename, reading)
    elif reading.suffix in _PROSE:
        found = _replace(Rename(rename.old, rename.new, False), reading)
    else:
        found = _rename_words(rename, reading)
    if not found or reading.scope or reading.is_everywhere:
        return found
    is_lost = found.n_places > 1 and _IN_PLACE.search(reading.instruction)
    return replace(found, doubt="the named place was not found") if is_lost else found


# A place that is said, but for "in this file".
_IN_PLACE = re.compile(
    r"(?i)(?:\b(?:in|inside|within|under)|(?<!s )\bof)\s+(?:the\s+)?"
    r"(?!(?:the\b|this|that|file|text|code|script|module|document|program|page|project)\b)"
)


def _places(n: int, what: str) -> str:
    return f"{what} stands at {n} places: name one of them, or say that all are meant"


def _renamed(
    lines: list[str], places: Collection[tuple[int, int]], old: str, new: str, doubt: str
) -> CodeEdit:
    changed = lines.copy()
    for i, start in sorted(places, reverse=True):
        changed[i] = changed[i][:start] + new + changed[i][start + len(old) :]
    return CodeEdit(changed, len(places), doubt)


def _taken(name: str) -> str:
    return f"{name} is the name of something already"


# ---- values and texts


_SETTING = re.compile(
    r"""(?P<before>.*?[=:]\s*)(?P<quote>["']?)(?P<old>[^"'#;,{}\[\]]*?)(?P=quote)
        (?P<after>\s*[,;]?\s*(?:(?:\#|//|;).*)?)$""",
    re.VERBOSE,
)
_TO = re.compile(
    r"(?i)\s*(?:please\s+)?"
    r"(?:set|change|increase|raise|lower|reduce|decrease|bump|update|switch|make)\b.*"
    r"\b(?:to|be)\s+[`\"']?(?P<new>[\w./:%+@^~<>=*-]+)[`\"']?\s*\.?\s*$"
)
_MOST_READ = 500  # a longer line is no setting


def _set_value(reading: Reading) -> CodeEdit | None:
    """Write the new value of one setting in one line."""
    asked = re.split(r"[,;]\s*(?=but|leave|keep|do not|don't|not)", reading.instruction)[0]
    found = _TO.match(asked)
    if not found or len(reading.scope) != 1:
        return None
    (part,) = reading.scope
    is_setting = part.kind in {"key", "variable"} and part.end - part.start == 1
    if not is_setting or part.start not in reading.allowed:
        return None
    line = reading.lines[part.start]
    setting = _SETTING.match(line) if len(line) <= _MOST_READ else None
    new = found["new"].rstrip(".")
    old = setting["old"].strip() if setting else ""
    # a word for a number is not the value as it is written
    if not setting or not old or re.search(r"\s", old) or _kind_of(old) != _kind_of(new):
        return None
    if setting["quote"] and not re.fullmatch(r"[\w./:%+@^~<>=*-]+", new):
        return None
    changed = reading.lines.copy()
    changed[part.start] = "".join(
        (setting["before"], setting["quote"], new, setting["quote"], setting["after"])
    )
    return CodeEdit(changed, 1)


def _kind_of(value: str) -> str:
    if re.fullmatch(r"[+-]?[\d._]+(?:e-?\d+)?", value):
        return "number"
    return "switch" if value.lower() in {"true", "false", "yes", "no", "on", "off"} else "word"


def _replace(rename: Rename, reading: Reading) -> CodeEdit | None:
    """Replace a text or a value where it stands alone."""
    lines, pattern = reading.lines, bounded(rename.old)
    found = [i for i in sorted(reading.allowed) if pattern.search(lines[i])]
    if rename.around:
        around = re.compile(rf"(?i)(?<![a-z]){re.escape(rename.around)}")
        near = [i for i in found if around.search(lines[i])]
        if not near and len(found) != 1:
            return None
        found = near or found
    if not found:
        return None
    new = lines.copy()
    n_places = 0
    for i in found:
        new[i], n = pattern.subn(lambda _: rename.new, lines[i])
        n_places += n
    is_value = bool(rename.around) or rename.kind not in {"word", "text", "string", "name", "term"}
    # a word of prose is replaced wherever it stands
    is_word = not rename.around and reading.suffix in {".md", ".txt", ".rst"}
    is_doubtful = n_places > 1 and is_value and not reading.is_everywhere and not is_word
    return CodeEdit(new, n_places, _places(n_places, rename.old) if is_doubtful else "")


# ---- removals


_REMOVE = re.compile(r"(?i)\s*(?:please\s+)?(?:remove|delete|drop)\s+(?P<what>.*?)\s*\.?\s*$")
_FILLING = re.compile(
    r"(?i)\b(?:the|whole|entire|function|method|class|section|key|setting|option|entry|table|target|"
    r"rule|heading|chapter|block|service|server|job|step|item|lines?|in|from|of|and|to|variable|"
    r"constant|field|struct)\b|[`\"'“”‘’\[\]().,:#*\s]|\d+(?:\s*-\s*\d+)?"
)


def _used_at(name: str, lines: Sequence[str], suffix: str) -> str:
    """Return which line has a name as a value, or in code, for a message; empty if none has it."""
    word = re.escape(name)
    if suffix in KEYED:
        value = rf"""(?:^\s*-|[:=\[,])\s*["']?{word}["']?\s*(?:[,\]}}#;]|$)|[$%][{{(]{word}\W"""
    elif suffix in _PROSE | {".py", ".pyi", ".css", ".scss", ".less", ".svg"}:
        return ""
    else:
        value = rf"^(?!\.PHONY).*(?<![\w$.-]){word}(?![\w$-])"
    used = (i for i, line in enumerate(_bare([*lines], suffix)) if re.search(value, line))
    return f", but named here: {lines[i].strip()[:60]}" if (i := next(used, -1)) >= 0 else ""


def _remove(reading: Reading) -> CodeEdit | None:
    """Remove one part, if the instruction says nothing more than that."""
    lines, suffix = reading.lines, reading.suffix
    found = _REMOVE.match(reading.instruction)
    if not found or len(reading.scope) != 1 or reading.kept:
        return None
    (part,) = reading.scope
    rest = found["what"]
    for word in sorted({*part.path, part.label} - {""}, key=len, reverse=True):
        rest = bounded(word).sub(" ", rest)
    if _FILLING.sub("", rest):
        return None
    start, end = part.start, part.end
    if part.kind in {"function", "class", "block"}:
        while start and re.match(r"\s*(#|//|--)(?!\s*[-=]{3})", lines[start - 1]):
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
    if suffix == ".json":
        last = next((i for i in range(start - 1, -1, -1) if new[i].strip()), -1)
        behind = next((one.strip() for one in new[start:] if one.strip()), "")
        if last >= 0 and behind[:1] in {"}", "]"}:
            new[last] = new[last].removesuffix(",")
    inner = _sections_in(part.name, reading)
    doubt = f"{inner[0].name} belongs to {part.name}, and stays" if inner else ""
    if part.kind != "heading" and (used := _used_at(part.name, new, suffix)):
        doubt = f"{part.label} is removed{used}"
    return CodeEdit(new, 1, doubt) if new else None


# ---- keys and words


def _sections_in(name: str, reading: Reading) -> list[Part]:
    """Return the sections below a section, such as `server.limits`."""
    sections = (part for part in reading.parts if part.kind == "section")
    return [part for part in sections if part.name.startswith(f"{name}.")]


def _rename_key(rename: Rename, reading: Reading) -> CodeEdit | None:
    old, new, parts = rename.old, rename.new, reading.parts
    container, _, leaf = old.rpartition(".")
    allowed = reading.allowed
    possible = [part for part in parts if part.start in allowed]
    exact = [part for part in possible if part.name == old and part.kind in {"key", "section"}]
    if not exact and container:
        exact = [part for part in possible if part.name == leaf]
        exact = [part for part in exact if ".".join(part.path).endswith(old)]
        old, new = leaf, new.rpartition(".")[2]
    if not exact:
        return None
    below = _sections_in(old, reading) if exact[0].kind == "section" else []
    changed = reading.lines.copy()
    for part in exact + below:
        pattern = rf"""(^|[\s{{,"'-])({re.escape(old)})(?=["']?\s*[:=])"""
        if part.kind == "section":
            pattern = rf"(\[+\s*[\"']?){re.escape(old)}(?=[\"'\s\].])"
        line = reading.lines[part.start]
        changed[part.start] = re.sub(pattern, lambda found: found[1] + new, line, count=1)
    doubt = ""
    if len(exact) > 1 and not reading.is_everywhere:
        doubt = _places(len(exact), f"the key {old}")
    elif {one.path[:-1] for one in parts if one.name == new} & {one.path[:-1] for one in exact}:
        doubt = _taken(new)
    elif used := _used_at(old, changed, ".yaml"):
        doubt = f"the key {old} is renamed{used}"
    return CodeEdit(changed, len(exact), doubt)


def _rename_words(rename: Rename, reading: Reading) -> CodeEdit | None:
    """Rename a word of code outside of texts and comments."""
    old, new, suffix, allowed = rename.old, rename.new, reading.suffix, reading.allowed
    owner, _, leaf = old.rpartition(".") if not old.startswith(".") else ("", "", old)
    if owner:
        old, new = leaf, new.rpartition(".")[2]
    bare = _bare(reading.lines, suffix)
    if suffix in {".css", ".scss", ".less"}:
        marks = r"(?<=\.)|(?<=#)|(?<=--)|(?<=@)|(?<![\w-])" if re.match(r"\w", old) else ""
        pattern = re.compile(rf"(?:{marks}){re.escape(old)}(?![\w-])")
    elif suffix in BRACES or suffix == ".sql":
        pattern = re.compile(rf"(?<![\w$]){re.escape(old)}(?![\w$])")
    else:
        pattern = re.compile(rf"(?<![\w-]){re.escape(old)}(?![\w-])")
    field = _field_places(reading, bare, pattern) if suffix in BRACES else None
    places = field
    if places is None:
        places = [(i, one.start()) for i in allowed for one in pattern.finditer(bare[i])]
    if not places:
        return None
    doubt = _doubt_of(old, places, bare, reading)
    if field is not None:
        is_unsure = _has_other_uses(field, bare, pattern, reading.parts)
    elif suffix == ".sql":  # columns
        is_unsure = bool(reading.scope and re.search(rf"\w\.{pattern.pattern}", "\n".join(bare)))
    else:
        owners = [part for part in reading.scope if part.kind == "class"]
        foreign = _lines_of_others(owners, reading.parts, bare)
        is_unsure = bool(owners) and any(
            i not in foreign or _OF_ANOTHER.search(line[: use.start()])
            for i, line in enumerate(bare)
            if i not in allowed
            for use in pattern.finditer(line)
        )
    is_unsure |= suffix == ".php" and any(f"${old}" in line for line in bare)
    if is_unsure:
        doubt = f"which of the uses of {old} belong to it is not certain"
    elif _is_taken(new, places, bare, reading):
        doubt = _taken(new)
    return _renamed(reading.lines, places, old, new, doubt)


# before the name of a member, and of one of another object
_MEMBER = re.compile(r"(?:\.|->|::)\s*$")
_OF_ANOTHER = re.compile(r"(?<!\bthis)(?<!\bself)(?:\.|->|::)\s*$")


def _lines_of_others(owners: Sequence[Part], parts: Sequence[Part], bare: list[str]) -> set[int]:
    """Return the lines of classes without a relation to some: a plain name there is their own.

    A class is related to those that it names, and so to those that they name.
    """
    words = {
        one.name: {word for line in bare[one.start : one.end] for word in re.findall(r"\w+", line)}
        for one in parts
        if one.kind == "class"
    }
    related = {one.name for one in owners}
    while more := {name for name, used in words.items() if used & related} - related:
        related |= more
    others = [one for one in parts if one.kind == "class" and one.name not in related]
    return {i for one in others for i in range(one.start, one.end)}


def _is_taken(new: str, places: _Places, bare: Sequence[str], reading: Reading) -> bool:
    """Return whether a name is used already; a variable may have that of a member of an object."""
    used = re.compile(rf"(?<![\w$-]){re.escape(new)}(?![\w$-])")
    lines = [bare[i] for i in reading.allowed]
    befores = [line[: one.start()] for line in lines for one in used.finditer(line)]
    is_member = any(_MEMBER.search(bare[i][:at]) for i, at in places)
    if reading.suffix in BRACES and not is_member:
        return not all(map(_MEMBER.search, befores))
    return bool(befores)


def _bare(lines: list[str], suffix: str) -> list[str]:
    """Return lines with blanks in place of comments and texts, each as long as before."""
    if suffix in BRACES:
        text = "\n".join(without_texts(lines, "//"))
        return re.sub(
            r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", lambda found: " " * len(found[0]), text
        ).split("\n")
    mark = "--" if suffix == ".sql" else "#"
    return [
        re.sub(rf"(^|\s){re.escape(mark)}.*", lambda found: " " * len(found[0]), line)
        for line in lines
    ]


_OWNER = re.compile(r"(\w+)(?:\[[^\]]*\])?\s*(?:->|\.)\s*$")


def _field_places(reading: Reading, bare: list[str], pattern: re.Pattern[str]) -> _Places | None:
    """Return where a field of a structure is used; None if the rename is not one of a field."""
    owners = [part for part in reading.scope if part.kind == "class"]
    member = re.compile(rf"(->|\.)\s*{pattern.pattern}")
    if len(owners) != 1 or not any(map(member.search, bare)):
        return None
    (owner,) = owners
    text = "\n".join(bare)
    name = rf"\b{re.escape(owner.name)}\b"
    variables = {"this", "self", *re.findall(rf"{name}\s*(?:const\s*)?[*&]*\s*(\w+)", text)}
    variables.update(re.findall(rf"\b(\w{{1,99}})\??\s?:?\s?[&*]?(?:mut\s)?{name}(?!\[)", text))
    places: _Places = []
    for i, line in enumerate(bare):
        inside = owner.start <= i < owner.end
        known = variables if inside else variables - {"this", "self"}
        for found in pattern.finditer(line):
            before = _OWNER.search(line, max(0, found.start() - _MOST_READ), found.start())
            is_own = before[1] in known if before else inside
            if is_own:
                places.append((i, found.start()))
    return places


def _has_other_uses(
    places: _Places, bare: list[str], pattern: re.Pattern[str], parts: Sequence[Part]
) -> bool:
    """Return whether something else may have the field.

    That is an expression, a new object, or a variable whose type is not written.
    """
    text = "\n".join(bare)
    declared = {i for one in parts if one.kind == "class" for i in range(one.start, one.end)}
    for i, line in enumerate(bare):
        for found in pattern.finditer(line):
            before = line[max(0, found.start() - _MOST_READ) : found.start()]
            is_known = (i, found.start()) in places
            is_key = i not in declared and re.match(r"\s*[:=](?!=)", line[found.end() :])
            use = r"(?:[)\]]\s*(->|\.)" + r"|(^|[{,(])\s*\.?" * bool(is_key) + r")\s*$"
            variable = _OWNER.search(before)
            if not is_known and (
                re.search(use, before) or (variable and not _is_typed(variable[1], text))
            ):
                return True
    return False


def _is_typed(variable: str, text: str) -> bool:
    """Return whether the type of a variable is written where it is declared, or it is a name."""
    no_type = rf"(?:var|auto|let|const|val|mut|{_NO_TYPES})\b"
    typed = (
        rf"(?<![\w.])(?!{no_type})[A-Za-z_][\w.]*(?:<[^;(){{}}]{{,99}}>)?[?\]\[]*\s?[*&]*\s{{1,9}}[*&]*{variable}\b"
        rf"|\b{variable}\s*\??\s*:(?!:)|[(,]\s*{variable}\s+[*&]?[A-Z]"
    )
    return variable in {"this", "self", "super", "base"} or bool(re.search(typed, text))


# ---- what a name of code may mean besides: another variable, a method, a property of an object
#
# Languages with braces are read by patterns. A use that is not recognised says nothing; one that is
# recognised wrongly costs a question.

_STYLES = {".css", ".scss", ".less", ".nginx", ".proto"}
_MOST_READ = 500  # of a line
_WITH_LOCALS = {".rb", ".lua", ".jl", ".ex", ".exs", ".r"}  # what a function sets is its own
_NO_TYPES = (
    r"(?:return|new|else|case|in|of|throw|delete|typeof|await|yield|void|goto|import|package|from|"
    r"as|is|not|and|or|do|default|async|export|function|class|struct|enum|interface|get|set|go|"
    r"defer|range|ref|out|move|match|where|use|echo|print|extends|implements|instanceof|using)"
)
_KEYWORD = re.compile(
    r"(?:\b(?:let|const|var|val|mut)\s+(?:mut\s+)?[*&]*|\bfor\s*\(?\s*|\bcatch\s*\(\s*|"
    r"\b(?:let|const|var|val)\s*[\[({][\w\s,:]*)$"
)
_TYPED = re.compile(rf"(?<!\w)(?!{_NO_TYPES}\b)\w[\w.]*(?:<[^()]*>)?[\]?[]*[*&]*\s+[*&]*$")
_ENDED = re.compile(r"\s*(?:[;,)\]:]|=(?![=>])|\[|$|in\b)")
_LAMBDA = re.compile(r"\s*(?:=>|\s->\s)|[\w\s,:]*\)\s*=>")
_IMPORTED = re.compile(r"(?:^|\n)\s*(?:import|from|use|using)\b[^;\n]*(?:[{(][^;})]*)?(?<!\bas )$")
# of a function in a language without braces
_HEAD = re.compile(r"\s*(?:(?:local\s+)?(?:def|function|sub)\b|[\w-]+\s*\(\)\s*\{?)")
_MODIFIERS = re.compile(r"\s*(?:(?:public|private|protected|readonly|static|pub)\s+)*$")
_FIELD = re.compile(r"\s*[?!]?\s*:(?!:)|\s+[\w*\[]")  # of TypeScript or Rust; of Go


def _doubt_of(
    name: str, places: Iterable[tuple[int, int]], bare: Sequence[str], reading: Reading
) -> str:
    """Return why it is not certain that uses of a name mean the same; empty if nothing says so.

    Args:
        places: Line and column of each use that would be renamed.
    """
    found, scope, suffix, parts = sorted(places), reading.scope, reading.suffix, reading.parts
    if reading.is_everywhere or suffix not in BRACES - _STYLES:
        return "" if reading.is_everywhere else _doubt_of_lines(name, found, bare, suffix)
    if any(_is_imported(bare, *use) for use in found):
        return f"{name} is imported, and has its name elsewhere"
    own = {at for at in (_binding(name, *use, bare, parts, suffix) for use in found) if at}
    if len(own) > 1:
        kinds = {kind for kind, *_ in own}
        one = f"is more than one {min(kinds)}"
        what = one if len(kinds) == 1 else "are a function and a variable"
        return f"there {what} {name}: name the place of the one that is meant"
    if not own and scope and all(one.kind == "function" for one in scope):
        uses = re.compile(rf"(?<![\w$.]){re.escape(name)}(?![\w$])")
        others = [(i, one.start()) for i, line in enumerate(bare) for one in uses.finditer(line)]
        defined = (_binding(name, *use, bare, parts, suffix) for use in others if use not in found)
        return f"{name} is defined outside of {scope[0].label}" if any(defined) else ""
    for i, start in found if own else ():
        before, after = _around(name, i, start, bare)
        if owner := min(own)[3]:
            is_other = not _is_of(owner, before, bare)
        else:
            is_other = _is_property(i, before, after, bare, suffix)
        if is_other:
            return f"the {name} in line {i + 1} may be that of something else"
    return ""


def _is_of(owner: str, before: str, bare: Sequence[str]) -> bool:
    """Return whether a member is used without an object, or with one of its class."""
    found = re.search(r"(?:(\w+)|[^.\w])\s*[?!]?(?<!\.)(?:\.|->)\s*$", before)
    if not found or found[1] in {"this", "self", "super", "cls", "base", owner}:
        return True
    if not found[1]:  # what a call returns
        return bool(re.search(rf"\b{owner}\b", before))
    word = found[1]
    typed = rf"\b{owner}\b(?:<[^>]*>)?[?*&\]\[]*\s+[*&]*{word}\b|"
    typed += rf"\b{word}\b\s*\??(?:\s*:=|\s*[:=]|\s)\s*(?:new\s|mut\s|[&*]|\[\])*\s*{owner}\b"
    return any(re.search(typed, line[: 4 * _MOST_READ]) for line in bare)


def _is_imported(lines: Sequence[str], i: int, start: int) -> bool:
    """Return whether a use stands in an import, where it is no new name (`as NAME`)."""
    return bool(_IMPORTED.search(_before(i, lines[i][:start], lines)))


def _before(i: int, before: str, lines: Sequence[str]) -> str:
    """Return the text before a place, some lines of it."""
    return "\n".join([*lines[max(0, i - 20) : i], before])[-4 * _MOST_READ :]


def _around(name: str, i: int, start: int, bare: Sequence[str]) -> tuple[str, str]:
    end = start + len(name)
    return bare[i][max(0, start - _MOST_READ) : start], bare[i][end : end + _MOST_READ]


def _doubt_of_lines(
    name: str, places: Sequence[tuple[int, int]], bare: Sequence[str], suffix: str
) -> str:
    """Return why the uses of a name in Ruby, Lua or a shell may be those of several variables."""
    heads = [i for i, line in enumerate(bare) if _HEAD.match(line)]
    own = set()
    for i, start in places:
        before, after = _around(name, i, start, bare)
        found = re.fullmatch(r"\s*((?:local|my|declare|typeset)\s+(?:-\w+\s+)*)?", before)
        if (found and re.match(r"\s*=(?!=)", after)) or (
            _HEAD.match(before) and re.search(r"[(,]\s*$", before)
        ):
            is_local = suffix in _WITH_LOCALS or bool(found and found[1])
            own.add(max((head for head in heads if head <= i), default=-1) if is_local else -1)
    return f"there is more than one variable {name}: name its place" if len(own) > 1 else ""


def _binding(
    name: str, i: int, start: int, bare: Sequence[str], parts: Sequence[Part], suffix: str
) -> tuple[str, ...]:
    """Return what a use defines: its kind, where, of which type, and the class that it is in."""
    before, after = _around(name, i, start, bare)
    if re.search(r"(?:\.|->)\s*$", before):
        return ()
    around = [
        one for one in parts if one.start <= i < one.end and one.kind in {"class", "function"}
    ]
    for one in around:
        is_head = "{" not in "\n".join([*bare[one.start : i], before])
        if (one.name, one.kind) == (name, "function") and is_head and re.match(r"\s*[(<]", after):
            owner = re.search(r"\(\s*\w+\s+\*?(\w+)[^)]*\)\s*$|(\w+)(?:<[^>]*>)?(?:::|\.)$", before)
            outer = [other for other in around if other.holds(one)]
            type_of = (owner[1] or owner[2]) if owner else ""
            of_class = outer[-1].name if outer and outer[-1].kind == "class" else type_of
            return "function", str(outer[-1].start if outer else -1), type_of, of_class
    inner = around[-1] if around else None
    is_class = bool(inner and inner.kind == "class")
    if not (
        (_KEYWORD.search(before) and not after.lstrip().startswith("("))
        or (_TYPED.search(before) and _ENDED.match(after))
        or (_LAMBDA.match(after) and re.search(r"[^\w.]\s*$|^$", before))
        or re.match(r"\s*(?:,\s*\w+\s*)*:=", after)
        or (suffix == ".php" and re.match(r"\s*=(?![=>])", after))
        or (is_class and _MODIFIERS.match(before) and _FIELD.match(after))
        or (inner and inner.kind == "function" and _is_in_head(inner, i, before, bare))
    ):
        return ()
    where = i if _LAMBDA.match(after) else inner.start if inner else -1
    return "variable", str(where), "", inner.name if inner and is_class else ""


def _is_in_head(part: Part, i: int, before: str, bare: Sequence[str]) -> bool:
    head = "\n".join([*bare[part.start : i], before])
    head = head[head.find(part.name) :]
    is_open = head.count("(") == head.count(")") + 1 and "{" not in head
    begins = r"[(,]\s*(?:\.\.\.|mut\s+|readonly\s+|private\s+|public\s+|[*&])*$"
    return is_open and bool(re.search(begins, head))


def _is_property(i: int, before: str, after: str, bare: Sequence[str], suffix: str) -> bool:
    """Return whether a name is one of an object: `a.name`, `{ name: 1 }`, or `{ name }`."""
    if re.search(r"(?:(?<!\.)\.|->)\s*$", before):
        return True
    if suffix not in {".js", ".jsx", ".mjs", ".ts", ".tsx", ".vue", ".rs", ".go"}:
        return False
    is_short = suffix not in {".rs", ".go"}
    if not re.match(r"\s*(?::(?!:)|[,}]|$)" if is_short else r"\s*:(?![:=])", after):
        return False
    text = _before(i, before, bare)
    deep = 0
    for at in range(len(text) - 1, -1, -1):
        deep += (text[at] in ")]}") - (text[at] in "([{")
        if deep < 0:
            inside = text[at + 1 :]
            is_list = text[at] == "{" and re.search(r"(?:^|,)\s*$", inside) and ";" not in inside
            return bool(is_list and not re.search(r"\bexports?\s*=?\s*$|\)\s*$", text[:at]))
    return False


# ---- names of Python


class _Module:
    def __init__(self, lines: Sequence[str], parts: Sequence[Part]) -> None:
        text = "\n".join(lines) + "\n"
        if "\r" in text:
            raise ValueError("a carriage return ends a line for the compiler")
        self.lines, self.parts = lines, parts
        try:
            self.tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        except tokenize.TokenError as error:
            raise SyntaxError(str(error)) from None
        self.tables = symbol_tables(text)
        self.classes = {part.name: part for part in parts if part.kind == "class"}

    def has_member(self, part: Part, name: str) -> bool:
        inner = (one for one in self.parts if len(one.path) == len(part.path) + 1)
        if any(one.name == name and part.holds(one) for one in inner):
            return True
        pattern = re.compile(rf"\b(self|cls)\.{name}\b\s*(=[^=]|:)")
        return any(pattern.search(line) for line in self.lines[part.start : part.end])

    def functions_with(self, name: str) -> list[symtable.SymbolTable]:
        functions = (one for one in self.tables if one.get_type() == "function")
        named = (one for one in functions if name in one.get_identifiers())
        return [one for one in named if one.lookup(name).is_local()]

    def is_local(self, name: str, part: Part) -> bool:
        """Return whether a function itself has a variable of this name."""
        return any(
            one.get_name() == part.name and part.start < one.get_lineno() <= part.end
            for one in self.functions_with(name)
        )

    def is_global(self, name: str) -> bool:
        if name not in self.tables[0].get_identifiers():
            return False
        symbol = self.tables[0].lookup(name)
        return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()

    def head_of(self, part: Part) -> int:
        """Return the line of a function or a variable that has its name, behind decorators."""
        head = re.compile(rf"\s*(?:async\s+)?(?:def\s+)?{part.name}\b")
        return next((i for i in range(part.start, part.end) if head.match(self.lines[i])), 0)

    def lines_of(self, function: symtable.SymbolTable) -> range:
        """Return the lines of a function; of a lambda or a comprehension the first one."""
        start, key = function.get_lineno() - 1, (function.get_name(), "function")
        functions = (one for one in self.parts if (one.name, one.kind) == key)
        ends = [one.end for one in functions if one.start <= start < one.end]
        return range(start, min(ends, default=start + 1))


def _rename_python(rename: Rename, reading: Reading) -> CodeEdit | None:
    owner, _, old = rename.old.rpartition(".")
    new = rename.new.rpartition(".")[2]
    if not new.isidentifier() or not old.isidentifier():
        return _replace(Rename(rename.old, rename.new, False, rename.kind), reading)
    lines = reading.lines
    try:
        module = _Module(lines, reading.parts)
    except UNREADABLE:
        return None
    is_member = _is_member(module, rename, reading, old, owner)
    if is_member:
        found = _member_places(module, reading, old, owner)
    else:
        found = _variable_places(module, rename, reading, old)
    if found is None:
        return None
    doubt = found[1]
    if any(dotted == is_member for _, _, dotted in _uses(module.tokens, new)) or (
        is_member and any(module.has_member(one, new) for one in module.classes.values())
    ):
        doubt = doubt or _taken(new)
    kept = {i for part in reading.kept for i in range(part.start, part.end)}
    places = {(i, start) for i, start in found[0] if i not in kept}
    if not places:
        return None
    if not is_member and any(_is_imported(lines, *place) for place in places):
        doubt = doubt or f"{old} is imported, and has its name elsewhere"
    return _renamed(lines, places, old, new, doubt)


def _is_member(module: _Module, rename: Rename, reading: Reading, old: str, owner: str) -> bool:
    if owner or rename.kind in {"method", "attribute", "property", "field"}:
        return True
    functions = [part for part in reading.scope if part.kind == "function"]
    if rename.kind in {"variable", "parameter", "argument", "constant"} or any(
        module.is_local(old, part) for part in functions
    ):
        return False
    is_bound = any(part.name == old and len(part.path) == 1 for part in module.parts)
    has_uses = bool(_members(module, old)) or any(dot for _, _, dot in _uses(module.tokens, old))
    return has_uses and not is_bound and not module.functions_with(old)


def _members(module: _Module, name: str) -> list[Part]:
    inner = (one for one in module.parts if one.name == name and len(one.path) > 1)
    members = (one for one in inner if one.kind in {"function", "variable"})
    return [one for one in members if one.path[-2] in module.classes]


def _member_places(
    module: _Module, reading: Reading, old: str, owner: str
) -> tuple[_Places, str] | None:
    """Return where a member is used, and what is doubtful about it; None if no class has it."""
    classes = module.classes
    owners = [part for part in reading.scope if part.kind == "class"]
    owners += [classes[owner]] if owner in classes else []
    having = [part for part in classes.values() if module.has_member(part, old)]
    owners = owners or having
    if not owners:
        return None
    others = [part for part in having if part not in owners]
    doubt = ""
    if len(owners) > 1 and not reading.is_everywhere:
        doubt = _places(len(owners), f"the method {old}")
    elif others and any(
        dotted and not any(part.start <= i < part.end for part in (*owners, *others))
        for i, _, dotted in _uses(module.tokens, old)
    ):
        doubt = f"whose {old} is used outside of its class is not certain"
    return _member_uses(module.tokens, old, owners, lone=not others), doubt


def _variable_places(
    module: _Module, rename: Rename, reading: Reading, old: str
) -> tuple[_Places, str]:
    """Return where a variable, a function or a class is used, and what is doubtful about it."""
    own = module.functions_with(old)
    is_global = module.is_global(old)
    is_named = any(part.kind in {"function", "class", "lines"} for part in reading.scope)
    doubt = ""
    if not is_named and not is_global and len(own) > 1 and not reading.is_everywhere:
        doubt = _places(len(own), f"a variable {old}")
    elif not reading.scope and not rename.kind and _members(module, old):
        doubt = f"there are a method and a variable {old}: say which one is meant"
    if reading.scope:
        arguments, allowed = _arguments(module.tokens), reading.allowed
        places = _name_uses(module.tokens, old, allowed)
        takers = [one for one in own if one.lookup(old).is_parameter()]
        takers = [one for one in takers if one.get_lineno() - 1 in allowed]
        names = {one.get_name() for one in takers}
        callers = [at for at, callee in arguments.items() if callee in names]
        callers = [(i, at) for i, at in callers if module.lines[i].startswith(old, at)]
        n_same = sum(one.get_name() in names for one in module.tables)
        if callers and n_same > len(takers):
            doubt = doubt or f"which calls with {old}= belong to it is not certain"
        return [*places, *callers], doubt
    # Without a place it is the global one: functions with a variable of that name are left out.
    lines = set(range(len(module.lines)))
    for one in own if is_global else ():
        lines -= set(module.lines_of(one))
    for part in _members(module, old):
        lines -= set(range(part.start, module.head_of(part) + 1))
    return _name_uses(module.tokens, old, lines), doubt


def _uses(tokens: Iterable[tokenize.TokenInfo], name: str) -> list[tuple[int, int, bool]]:
    """Return line, column and whether a dot stands before it, for each use of a name.

    Those in f-strings are found, too.
    """
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
    """Return the uses of a name in the braces of an f-string, one token before Python 3.12."""
    text = token.string.replace("{{", "\0\0").replace("}}", "\0\0")
    found, deep, at = [], 0, 0
    for use in re.finditer(rf"(?<!\w){name}(?!\w)", text):
        i = use.start()
        deep += text.count("{", at, i) - text.count("}", at, i)
        at = i
        if deep > 0:
            n_lines = text.count("\n", 0, i)
            column = i - (text.rfind("\n", 0, i) + 1) + (0 if n_lines else token.start[1])
            found.append((token.start[0] - 1 + n_lines, column, text[i - 1] == "."))
    return found


def _member_uses(
    tokens: list[tokenize.TokenInfo], name: str, owners: Sequence[Part], *, lone: bool
) -> _Places:
    """Return the uses of a member: its definition, and `self.NAME` in its classes.

    If no other class has one of that name (`lone`), the uses elsewhere, too.
    """
    places, before, last_name = [], "", ""
    named = {(i, column): dotted for i, column, dotted in _uses(tokens, name)}
    classes = {part.name for part in owners}
    for token in tokens:
        key = (token.start[0] - 1, token.start[1])
        if key in named:
            is_inside = any(part.start <= key[0] < part.end for part in owners)
            is_own = last_name in classes or (is_inside and last_name in {"self", "cls", "super"})
            is_field = is_inside and before in {"", "\n"} and not named[key]
            if (before == "def" and is_inside) or (named[key] and (is_own or lone)) or is_field:
                places.append(key)
        if token.type == tokenize.NAME and token.string != name:
            last_name = token.string
        if token.type not in {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}:
            before = token.string
    plain = {(one.start[0] - 1, one.start[1]) for one in tokens if one.type == tokenize.NAME}
    in_texts = (key for key, dotted in named.items() if dotted and key not in plain)  # f-strings
    inside = {i for part in owners for i in range(part.start, part.end)}
    return [*places, *(key for key in in_texts if lone or key[0] in inside)]


def _name_uses(tokens: list[tokenize.TokenInfo], name: str, allowed: set[int]) -> _Places:
    """Return the uses of a variable, a function or a class in some lines.

    Attributes, and arguments of calls, of that name are others.
    """
    named = {(i, column) for i, column, dotted in _uses(tokens, name) if not dotted}
    named -= _arguments(tokens).keys()
    texts = (one for one in tokens if one.type == tokenize.STRING and one.string[1:-1] == name)
    exports = (one.start for one in texts if _is_export(tokens, one))
    named |= {(line - 1, column + 1) for line, column in exports}
    return [(i, column) for i, column in named if i in allowed]


def _arguments(tokens: list[tokenize.TokenInfo]) -> dict[tuple[int, int], str]:
    """Return where names of arguments in calls are, such as `n` in `f(n=1)`, and what is called."""
    found: dict[tuple[int, int], str] = {}
    before, called, in_def = "", list[str](), False
    significant = [token for token in tokens if token.type not in {tokenize.NL, tokenize.COMMENT}]
    for token, after in itertools.pairwise(significant):
        if token.string == "def":
            in_def, called = True, []
        elif token.string in {"(", "[", "{"}:
            called.append(before if token.string == "(" else "")
        elif token.string in {")", "]", "}"}:
            del called[-1:]
        elif token.string == ":" and not called:
            in_def = False
        if after.string == "=" and called and before in {"(", ","} and not in_def:
            found[(token.start[0] - 1, token.start[1])] = called[-1]
        before = token.string
    return found


def _is_export(tokens: list[tokenize.TokenInfo], token: tokenize.TokenInfo) -> bool:
    start = next((one.start[0] for one in tokens if one.string == "__all__"), 0)
    ends = (one.start[0] for one in tokens if one.type == tokenize.NEWLINE)
    return bool(start) and start <= token.start[0] <= next((i for i in ends if i >= start), 0)
