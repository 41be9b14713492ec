"""What a name of code may mean besides: another variable, a method, a property of an object.

Languages with braces are read by patterns. A use that is not recognised says nothing; one that is
recognised wrongly costs a question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from .instruction import Reading
from .parts import BRACES, Part

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


def doubt_of(
    name: str,
    places: Iterable[tuple[int, int]],
    bare: Sequence[str],
    parts: Sequence[Part],
    reading: Reading,
    suffix: str,
) -> str:
    """Return why it is not certain that uses of a name mean the same; empty if nothing says so.

    Args:
        places: Line and column of each use that would be renamed.
        bare: The lines, without texts and comments.
        reading: What the instruction says.
    """
    found, scope = sorted(places), reading.scope
    if reading.is_everywhere or suffix not in BRACES - _STYLES:
        return "" if reading.is_everywhere else _doubt_of_lines(name, found, bare, suffix)
    if any(is_imported(bare, *use) for use in found):
        return f"{name} is imported, and has its name elsewhere"
    own = {at for at in (_binding(name, *use, bare, parts, suffix) for use in found) if at}
    if len(own) > 1:
        kinds = sorted({kind for kind, *_ in own})
        what = (
            f"is more than one {kinds[0]}" if len(kinds) == 1 else "are a function and a variable"
        )
        return f"there {what} {name}: name the place of the one that is meant"
    if not own and scope and all(one.kind == "function" for one in scope):
        uses = re.compile(rf"(?<![\w$.]){re.escape(name)}(?![\w$])")
        others = [(i, one.start()) for i, line in enumerate(bare) for one in uses.finditer(line)]
        defined = (_binding(name, *use, bare, parts, suffix) for use in others if use not in found)
        return f"{name} is defined outside of {scope[0].label}" if any(defined) else ""
    for i, start in found if own else ():
        before, after = _around(name, i, start, bare)
        owner = min(own)[3]
        if not (
            _is_of(owner, before, bare)
            if owner
            else not _is_property(i, before, after, bare, suffix)
        ):
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


def is_imported(lines: Sequence[str], i: int, start: int) -> bool:
    """Return whether a use stands in an import, where it is no new name (`as NAME`)."""
    return bool(_IMPORTED.search(_before(i, lines[i][:start], lines)))


def _before(i: int, before: str, lines: Sequence[str]) -> str:
    """Return the text before a place, some lines of it."""
    return "\n".join([*lines[max(0, i - 20) : i], before])[-4 * _MOST_READ :]


def _around(name: str, i: int, start: int, bare: Sequence[str]) -> tuple[str, str]:
    """Return what stands before and behind a use in its line."""
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
    """Return whether a name is that of a parameter, right behind a bracket or a comma."""
    head = "\n".join([*bare[part.start : i], before])
    head = head[head.find(part.name) :]
    return (
        head.count("(") == head.count(")") + 1
        and "{" not in head
        and bool(
            re.search(r"[(,]\s*(?:\.\.\.|mut\s+|readonly\s+|private\s+|public\s+|[*&])*$", head)
        )
    )


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
