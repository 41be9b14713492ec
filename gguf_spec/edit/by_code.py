"""Changes that need no model: renames, replacements of a text, and new values of settings.

A name of Python is found by its tokens and by the scopes of its parser. In other languages it is a
whole word of code: Pygments tells code, texts and comments apart. Code inside of a text, such as
`${total}`, is renamed. A word in a text or in a comment is left. The change says so, and is not
written without a question, where a text has the name and the instruction does not say that texts
stay, where the language is not known, and where it is not clear which uses are meant. A name in a
comment is no reason to ask.
"""

from __future__ import annotations

import ast
import bisect
import io
import itertools
import re
import tokenize
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .instruction import QUOTED, Reading, Rename, beside_rename, bounded
from .languages import Code, Language, keywords, language_of, read_code
from .parts import UNREADABLE, Part


@dataclass(frozen=True)
class CodeEdit:
    """A change that was made by code.

    Attributes:
        doubt: Why it is not certain that exactly these places were meant; empty if it is.
    """

    lines: list[str]
    n_places: int
    doubt: str = ""


KEYED = {".json", ".jsonc", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf", ".properties"}


def edit_by_code(reading: Reading) -> CodeEdit | None:
    """Make the change that an instruction asks for, if it is one that needs no model."""
    rename = reading.rename
    if rename is None:
        return _remove(reading) or _set_value(reading)
    traits = reading.language.traits
    if not rename.is_name:
        found = _replace(rename, reading)
    elif reading.language.parts == "python":
        found = _rename_python(rename, reading)
    elif "settings" in traits:
        found = _rename_key(rename, reading)
    elif "prose" in traits or reading.language.parts == "elements":
        found = _replace(Rename(rename.old, rename.new, False), reading)
        if found and reading.language.parts == "elements" and found.n_places > 1:
            found = replace(found, doubt=_places(found.n_places, rename.old))
    else:
        found = _rename_words(rename, reading)
    if found and _is_limited(rename, reading):
        return replace(found, doubt=found.doubt or "what limits the rename was not read")
    if not found or reading.scope or reading.is_everywhere:
        return found
    beside = _COMMENTS_TOO.sub(" ", beside_rename(reading.instruction))
    is_lost = found.n_places > 1 and _IN_PLACE.search(beside)
    return replace(found, doubt="the named place was not found") if is_lost else found


# A place that is said, but for "in this file".
_IN_PLACE = re.compile(
    r"(?i)(?:\b(?:in|inside|within|under)|(?<!s )\bof)\s+(?:the\s+)?"
    r"(?!(?:the\b|this|that|file|text|code|script|module|document|program|page|project)\b)"
)


# What may keep a rename from some places; words of other languages are not read.
_LIMITS = re.compile(
    r"(?i)\b(?:only|just|unless|except|but|not|without|where|if|when|before|after|nur|nicht|ohne|"
    r"au\u00dfer|aber|pas|sauf|mais|sin|pero|solo|excepto)\b|[^\W\d_a-zA-Z]"
)


_OF_TEXTS = (
    r"(?P<{}>texts?|strings?|messages?|literals?|labels?|titles?|captions?|output|ids?|wording|"
    r"quotes)"
)
_LEFT = r"as\s+(?:it|they)\s+(?:is|are|was|were)|alone|unchanged|untouched|the\s+same|too"
# "only the variable, not the element id": a text is left without a question.
_TEXTS_STAY = re.compile(
    rf"""(?ix)[\s,;(]*\b(?:(?:and|but)\s+)?(?:
      (?:only|just)\s+(?:the\s+)?(?:code|variable|constant|const|function|method|identifier|parameter)s?
      (?!\s+(?:in|of|inside|at|where|when|that|which)\b)
    | (?:not|never|leave|keep|(?:do\s+not|don't)\s+(?:touch|change|rename))\s+(?:in\s+)?
      (?:(?:the|any|all)\s+)*(?:\w+\s+)?{_OF_TEXTS.format("a")}\b(?:\s+(?:{_LEFT}))*
    | (?:the|all)\s+(?:\w+\s+)?{_OF_TEXTS.format("b")}\s+(?:stays?|remains?|keeps?)
      (?:\s+(?:{_LEFT}))*
    )(?=[\s,;.)]|$)[\s)]*"""
)
# "also in the comments": they are renamed, too.
_COMMENTS_TOO = re.compile(
    r"(?i)[\s,;(]*\b(?:and|also|too|even|including|plus)\b[\s,]*(?:also\s+)?(?:in\s+|inside\s+)?"
    r"(?:(?:the|its|all|any)\s+)?(?:\w+\s+)?comments?\b(?:\s+(?:too|as\s+well))?[\s)]*"
    r"(?=[,;.]|$)"
)


def _without_stays(text: str, code: Sequence[str]) -> str:
    """Return an instruction without what it says of texts that stay; a name of code is no text."""

    def replaced(found: re.Match[str]) -> str:
        word = found["a"] or found["b"]
        pattern = re.compile(rf"(?i)(?<![\w$]){re.escape(word)}(?![\w$])") if word else None
        return found[0] if pattern and any(map(pattern.search, code)) else " "

    return _TEXTS_STAY.sub(replaced, text)


def _code_of(reading: Reading) -> Code:
    return read_code("\n".join([*reading.lines, ""]), reading.language)


def _is_limited(rename: Rename, reading: Reading) -> bool:
    """Return whether an instruction has a limit that no place in the text was found for."""
    names = re.compile(rf"(?<![\w$]){re.escape(rename.old)}(?![\w$])")
    beside = _without_stays(beside_rename(reading.instruction), _code_of(reading).code)
    found = _LIMITS.search(QUOTED.sub(" ", names.sub(" ", beside)))
    is_read = bool(reading.scope or reading.kept) and bool(found and found[0].isascii())
    return bool(found) and not is_read


def _places(n: int, what: str) -> str:
    return f"{what} stands at {n} places: name one of them, or say that all are meant"


def _renamed(
    lines: list[str], places: Collection[tuple[int, int]], old: str, new: str, doubt: str
) -> CodeEdit:
    changed, by_line = lines.copy(), dict[int, list[int]]()
    for i, start in sorted(places):
        by_line.setdefault(i, []).append(start)
    for i, starts in by_line.items():
        edges = zip([0, *(start + len(old) for start in starts)], [*starts, None], strict=True)
        changed[i] = new.join(lines[i][start:end] for start, end in edges)
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


_HEADINGS = {"heading", "title", "headline", "chapter", "section"}
_RULE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}\s*")  # above or below a heading


def _fit_rules(lines: list[str], at: int, old: str) -> None:
    """Make the line below a heading, and the same one above it, as long as before or as its words.

    Args:
        at: The line with the words.
        old: What it was.
    """
    below = _RULE.fullmatch(lines[at + 1]) if at + 1 < len(lines) else None
    if not below or lines[at].startswith("#"):  # a heading of Markdown, which has none
        return
    marks, n = below[0].rstrip(), len(lines[at].rstrip())
    rule = below[1] * (n if len(marks) == len(old.rstrip()) else max(len(marks), n))
    if at and lines[at - 1].rstrip() == marks:
        lines[at - 1] = rule
    lines[at + 1] = rule


def _title_of(part: Part, lines: Sequence[str]) -> Iterator[int]:
    """Yield the lines of a heading that have its words: it may begin with a line above it."""
    yield part.start
    if _RULE.fullmatch(lines[part.start]):
        yield part.start + 1


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
    heads = {i for part in reading.parts if part.kind == "heading" for i in _title_of(part, lines)}
    if rename.kind in _HEADINGS and "prose" in reading.language.traits:
        found = [i for i in found if i in heads] or found
    if not found:
        return None
    new = lines.copy()
    n_places = 0
    for i in found:
        new[i], n = pattern.subn(lambda _: rename.new, lines[i])
        n_places += n
        if i in heads:
            _fit_rules(new, i, lines[i])
    is_value = bool(rename.around) or rename.kind not in {"word", "text", "string", "name", "term"}
    # a word of prose is replaced wherever it stands
    is_word = not rename.around and "prose" in reading.language.traits
    is_doubtful = n_places > 1 and is_value and not reading.is_everywhere and not is_word
    return CodeEdit(new, n_places, _places(n_places, rename.old) if is_doubtful else "")


# ---- removals


_REMOVE = re.compile(r"(?i)\s*(?:please\s+)?(?:remove|delete|drop)\s+(?P<what>.*?)\s*\.?\s*$")
_FILLING = re.compile(
    r"(?i)\b(?:the|whole|entire|function|method|class|section|key|setting|option|entry|table|target|"
    r"rule|heading|chapter|block|service|server|job|step|item|lines?|in|from|of|and|to|variable|"
    r"constant|field|struct)\b|[`\"'“”‘’\[\]().,:#*\s]|\d+(?:\s*-\s*\d+)?"
)


def _used_at(name: str, lines: Sequence[str], language: Language) -> str:
    """Return which line has a name as a value, or in code, for a message; empty if none has it."""
    word = re.escape(name)
    traits = language.traits
    if "settings" in traits:
        value = rf"""(?:^\s*-|[:=\[,])\s*["']?{word}["']?\s*(?:[,\]}}#;]|$)|[$%][{{(]{word}\W"""
    elif traits & {"prose", "styles"} or language.parts in {"python", "elements"}:
        return ""
    else:
        value = rf"^(?!\.PHONY).*(?<![\w$.-]){word}(?![\w$-])"
    used = (
        i
        for i, line in enumerate(read_code("\n".join(lines), language).code)
        if re.search(value, line)
    )
    return f", but named here: {lines[i].strip()[:60]}" if (i := next(used, -1)) >= 0 else ""


def _remove(reading: Reading) -> CodeEdit | None:
    """Remove one part, if the instruction says nothing more than that."""
    lines = reading.lines
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
    if reading.suffix == ".json":
        last = next((i for i in range(start - 1, -1, -1) if new[i].strip()), -1)
        behind = next((one.strip() for one in new[start:] if one.strip()), "")
        if last >= 0 and behind[:1] in {"}", "]"}:
            new[last] = new[last].removesuffix(",")
    inner = _sections_in(part.name, reading)
    doubt = f"{inner[0].name} belongs to {part.name}, and stays" if inner else ""
    is_named = bool(part.name) and part.kind != "heading"  # lines have no name
    if is_named and (used := _used_at(part.name, new, reading.language)):
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
    a_key = rf"""(^|[\s{{,"'-])({re.escape(old)})(?=["']?\s*[:=])"""
    for part in exact + below:
        pattern = a_key
        if part.kind == "section":
            pattern = rf"(\[+\s*[\"']?){re.escape(old)}(?=[\"'\s\].])"
        line = reading.lines[part.start]
        changed[part.start] = re.sub(pattern, lambda found: found[1] + new, line, count=1)
    doubt = ""
    left = sum(len(re.findall(a_key, changed[i])) for i in allowed)
    if len(exact) > 1 and not reading.is_everywhere:
        doubt = _places(len(exact), f"the key {old}")
    elif {one.path[:-1] for one in parts if one.name == new} & {one.path[:-1] for one in exact}:
        doubt = _taken(new)
    elif used := _used_at(old, changed, language_of("a.yaml")):
        doubt = f"the key {old} is renamed{used}"
    elif left and not container:
        doubt = f"{old} stands at other places, too, and is left there"
    return CodeEdit(changed, len(exact), doubt)


_MOST_USES = 500  # of a name; what more of them mean is not compared
_AROUND = 500  # characters before and behind a use that are read
_VARIABLE_WORDS = {"variable", "parameter", "argument", "constant"}


@dataclass(frozen=True)
class _Use:
    """A place where a name stands in code.

    Attributes:
        before: The text of its line before it.
        above: The text before it, of several lines.
        bracket: The last bracket before it that is open; empty without one.
        head: The text before that bracket.
    """

    line: int
    start: int
    before: str
    after: str
    above: str
    bracket: str
    head: str


def _uses_in(code: Sequence[str], pattern: re.Pattern[str]) -> list[_Use]:
    """Return where a name stands."""
    text = "\n".join(code)
    found, stack = list[_Use](), list[int]()
    starts = list(itertools.accumulate((len(line) + 1 for line in code), initial=0))
    brackets, at = iter([*re.finditer(r"[()\[\]{}]", text), None]), 0
    bracket = next(brackets)
    for use in pattern.finditer(text):
        while bracket and bracket.start() < use.start():
            if bracket[0] in "([{":
                stack.append(bracket.start())
            else:
                del stack[-1:]
            bracket = next(brackets)
        while starts[at + 1] <= use.start():
            at += 1
        start, end, opened = use.start(), use.end(), stack[-1] if stack else 0
        behind = text[end : min(end + _AROUND, starts[at + 1] - 1)]
        if len(found) > _MOST_USES:  # too many to tell them apart
            found.append(_Use(at, start - starts[at], "", "", "", "", ""))
            continue
        above = text[max(0, start - 4 * _AROUND) : start]
        found.append(
            _Use(
                at, start - starts[at], text[max(starts[at], start - _AROUND) : start], behind,
                above, text[opened] if stack else "", text[max(0, opened - _AROUND) : opened],
            )
        )  # fmt: skip
    return found


def _name_pattern(name: str, language: Language) -> re.Pattern[str]:
    """Return a pattern for a name where no longer name holds it."""
    traits = language.traits
    has_marks = traits & {"sigils", "shell", "styles"}
    letters = r"\w-" if "hyphens" in traits else r"\w" if has_marks else r"\w$"
    marks = r"(?<=--)|" if "styles" in traits and name[:1] != "-" else ""
    start = rf"(?:{marks}(?<![{letters}]))" if re.match(r"[\w$]", name) else ""
    if name[:1] in "$@" and has_marks:
        start = ""
    flags = re.IGNORECASE if "folds" in traits else 0
    return re.compile(rf"{start}{re.escape(name)}(?![{letters}])", flags)


def _rename_words(rename: Rename, reading: Reading) -> CodeEdit | None:
    """Rename a word of code.

    A word in a text is left and asked about; one in a comment is left.
    """
    language = reading.language
    owner, _, old = rename.old.rpartition(".") if rename.old[:1] != "." else ("", "", rename.old)
    new = rename.new.rpartition(".")[2] if owner else rename.new
    if owner:
        holders = [part for part in reading.parts if part.name == owner.rpartition(".")[2]]
        reading = replace(reading, scope=reading.scope or tuple(holders))
    mark = old[:1] if old[:1] in _MARKS else ""
    if "styles" in language.traits:
        new = mark + new.lstrip(_MARKS)
        mark = ""
    elif language.traits & {"sigils", "shell"}:  # the mark is no part of the name
        old = old.lstrip("$@")
        new = new.lstrip("$@")
    source = _code_of(reading)
    uses = _uses_in(source.code, _name_pattern(old, language))
    if "jsx" in language.traits and old[:1].islower():  # else it is a component
        uses = [one for one in uses if not _is_of_element(one)]
    allowed = [one for one in uses if one.line in reading.allowed]
    if not allowed:
        return None
    if len(uses) > _MOST_USES:
        why = f"{len(uses):,} places have the name {old}, and they are not told apart"
        return _written(allowed, old, new, reading, why)
    if not (language.lexer and (source.is_sure or _is_sure_in(source, reading))):
        why = f"texts and code of {reading.name or 'this text'} are not told apart"
        return _written(allowed, old, new, reading, why)
    chosen, doubt = _chosen(uses, old, mark or rename.kind, reading, source.code)
    if not chosen:
        return None
    doubt = doubt or _doubt_of_places(old, mark, allowed, source, reading)
    doubt = doubt or _doubt_of_name(old, new, chosen, source, reading)
    if _COMMENTS_TOO.search(beside_rename(reading.instruction)):
        chosen = [*chosen, *_in_comments(old, source, reading)]
    found = _written(chosen, old, new, reading, doubt)
    known = set[str]() if doubt else keywords("\n".join(reading.lines), language)
    word = new.lstrip(_MARKS)
    is_free = bool(doubt) or old in known or word in known
    if not is_free and word in keywords("\n".join(found.lines), language):
        return replace(found, doubt=f"{new} is a word of the language")
    return found


_MARKS = "$@.#"


def _is_sure_in(source: Code, reading: Reading) -> bool:
    """Return whether a named function ends before what the lexer of a text did not know."""
    end = max((one.end for one in reading.scope), default=0)
    code = "\n".join(source.code[:end])
    is_whole = all(code.count(a) == code.count(b) for a, b in ("()", "[]"))
    return (
        is_whole
        and 0 < end <= source.n_sure
        and all(one.kind == "function" for one in reading.scope)
    )


def _is_of_element(use: _Use) -> bool:
    """Return whether a use is the name of an element of HTML, or the end of `aria-label=`."""
    is_tag = re.search(r"(?<![\w)\]])</?$", use.before) and not use.after.startswith((".", ":"))
    is_attribute = re.search(r"\s[a-z]+-(?:[a-z]+-)*$", use.before) and re.match(
        r"=(?!=)", use.after
    )
    return bool(is_attribute or (is_tag and re.match(r"[\s/>]|$", use.after)))


def _in_comments(name: str, source: Code, reading: Reading) -> list[_Use]:
    """Return where a name stands in comments of the lines that may change, and right above them."""
    allowed = reading.allowed | {i - 1 for i in reading.allowed}
    comments = [
        "".join(
            one if code == text == " " and i in allowed else " "
            for one, code, text in zip(line, source.code[i], source.texts[i], strict=True)
        )
        for i, line in enumerate(reading.lines)
    ]
    return _uses_in(comments, _name_pattern(name, reading.language))


def _doubt_of_places(
    name: str, mark: str, uses: Sequence[_Use], source: Code, reading: Reading
) -> str:
    """Return which place of a name, outside of code or written otherwise, is left.

    Args:
        mark: The mark of variables that the instruction has, such as `$`; empty without one.
    """
    language, pattern = reading.language, _name_pattern(name, reading.language)
    if mark and language.traits & {"sigils", "shell"}:  # a plain word is no variable
        pattern = re.compile(rf"{re.escape(mark)}\{{?{re.escape(name)}(?!\w)")
    beside = beside_rename(reading.instruction)
    stay = _without_stays(beside, source.code) != beside
    kept = {i for part in reading.kept for i in range(part.start, part.end)}
    is_local = bool(reading.scope) and not any(one.kind == "class" for one in reading.scope)
    for i, line in enumerate([] if stay else source.texts):
        if i not in kept and not (is_local and i not in reading.allowed) and pattern.search(line):
            return f"{name} stands in a text in line {i + 1}, too, and is left there"
    for use in uses:
        if reading.lines[use.line][use.start : use.start + len(name)] != name:
            return f"{name} is written in other letters in line {use.line + 1}"
    if language.unsure:
        near = re.compile(language.unsure.replace("NAME", re.escape(name)))
        seen = (
            line for i, line in enumerate(reading.lines) if not is_local or i in reading.allowed
        )
        if any(name in line and near.search(line) for line in seen):
            return f"whether {name} stands in a text is not certain"
    return ""


def _doubt_of_name(old: str, new: str, uses: Sequence[_Use], source: Code, reading: Reading) -> str:
    if not _is_name(new, reading.language, has_hyphen="-" in old):
        return f"{new} cannot be a name here"
    return _taken(new) if _is_taken(new, uses, source.code, reading) else ""


def _written(uses: Sequence[_Use], old: str, new: str, reading: Reading, doubt: str) -> CodeEdit:
    return _renamed(reading.lines, [(one.line, one.start) for one in uses], old, new, doubt)


# Reserved in all dialects; the lexer counts many more as keywords.
_SQL_WORDS = re.compile(
    r"(?i)add|all|alter|and|any|as|asc|between|by|case|check|column|constraint|create|cross|default|"
    r"delete|desc|distinct|drop|else|end|except|exists|foreign|from|full|grant|group|having|in|index|"
    r"inner|insert|intersect|into|is|join|key|left|like|limit|not|null|on|or|order|outer|primary|"
    r"references|right|select|set|some|table|then|to|union|unique|update|user|using|values|view|when|"
    r"where|with"
)


def _is_name(name: str, language: Language, has_hyphen: bool = False) -> bool:
    if language.lexer == "sql":
        return bool(re.fullmatch(r"[^\W\d]\w*", name)) and not _SQL_WORDS.fullmatch(name)
    takes_hyphens = has_hyphen or language.traits & {"hyphens", "styles"}
    inner = r"[\w-]*" if takes_hyphens else r"[\w$]*"
    return bool(re.fullmatch(rf"(?:--|[$@.#])?(?:[^\W\d]|\$){inner}", name))


# before the name of a member
_MEMBER = re.compile(r"(?:(?<!\.)\.|->|::)\s*$")
_MEMBER_BY_ARROW = re.compile(r"(?:->|::)\s*$")  # where a dot joins texts
_DEFINES = re.compile(
    r"\b(?:fun|func|fn|def|function|sub|init|constructor|class|struct|record|interface|enum|object|"
    r"trait|type|union|if|for|foreach|while|switch|catch|when|match)\b[^;{}=]*$"
)
_TYPES = re.compile(r"\b(?:enum|interface|class|struct|union|trait)\b[^;{}]*$")
_EXPORTS = re.compile(r"\bexports?\s*=?\s*$|\)\s*$")
_RUST_VALUE = re.compile(r"(?<!->)(?<!impl)(?<!for)(?<!struct)(?<!enum)\s(?:\w+::)*[A-Z]\w*\s*$")
_ELEMENT = re.compile(r"(?:(?<![=-])>|\}|<[A-Za-z][^<>]*\w=)\s*$")  # before `{total}`
_OF_THIS = re.compile(r"\b(?:this|self)(?:\.|->)$")
_A_KEY = re.compile(r"\s*(?::(?![:=])|=(?![=>~]))")


def _role(use: _Use, language: Language) -> str:
    """Return what a name is by what stands around it: `plain`, `member`, `key`, or its mark."""
    traits, before = language.traits, use.before
    if "shell" in traits:
        return _shell_role(use, language)
    if "styles" in traits:
        mark = re.search(r"(?:--|[.#@$])$", before)
        return mark[0] if mark else "plain"
    if "sigils" in traits and (sign := re.search(r"(@@|[$@%&])\{?$", before)):
        is_other = language.lexer == "perl" and re.match(r"\s?[\[{]", use.after)
        return sign[1] + use.after.lstrip()[:1] * bool(is_other)
    member = _MEMBER_BY_ARROW if language.lexer in {"php", "perl"} else _MEMBER
    if member.search(before) or (language.lexer == "lua" and re.search(r"\w:$", before)):
        return "member"
    return _role_in_brackets(use, language)


def _role_in_brackets(use: _Use, language: Language) -> str:
    traits, last = language.traits, use.above.rstrip()[-1:]
    is_key = bool(_A_KEY.match(use.after))
    if use.bracket == "(":
        is_label = is_key and last in {",", "("} and "labels" in traits
        return "key" if is_label and not _DEFINES.search(use.head) else "plain"
    is_short = bool("short" in traits and re.match(r"\s*(?:[,}]|$)", use.after))
    if language.lexer == "rust" and not _RUST_VALUE.search(use.head):
        is_short = False
    if use.bracket != "{" or last not in {"{", ","} or not (is_short or is_key):
        return "plain"
    if _TYPES.search(use.head):
        return "member"
    inside = use.above[use.above.rfind("{") + 1 :]
    is_element = "jsx" in traits and _ELEMENT.search(use.head)
    is_plain = is_element or _EXPORTS.search(use.head) or ";" in inside
    return "plain" if is_plain else "key"


_SETS = re.compile(
    r"(?:^|[;&|(]|\bthen|\bdo|\belse)\s*(?:\w+=\S*\s+)*(?:(?:export|local|readonly|declare|typeset|"
    r"override|unset|read|define|undefine|ifdef|ifndef|ifeq|ARG|ENV|for|let)\s[^;|&#]*)?$"
)
_TAKES = re.compile(
    r"(?:^|[;&|(]|\bthen|\bdo|\belse)\s*(?:export|local|readonly|declare|typeset|unset|read|define|"
    r"undefine|ifdef|ifndef|ARG|ENV|for|let)\s[^;|&#=]*$"
)


def _shell_role(use: _Use, language: Language) -> str:
    """Return whether a word of a shell, a Makefile or the like is a variable or a command."""
    before, after = use.before, use.after
    is_make, is_power = language.lexer == "make", language.lexer == "powershell"
    marks = r"\$[({]" if is_make else r"\$\{[#!]?"
    sets = _SETS.search(before) and re.match(r"\s*[:?+!]{0,2}=" if is_make else r"\+?=|\[", after)
    takes = _TAKES.search(before) or re.search(r"\(\([^()]*$", before)
    starts = r"(?:^|[;&|({]|\b(?:then|do|else|if|while|until|function)\s|!\s)\s*$"
    is_marked = re.search(rf"(?:{marks}|\$(?:script:|global:|env:)?)$", before, re.IGNORECASE)
    if re.search(r"\$\$[({]?$", before):
        role = "word"
    elif is_marked or (not is_power and (sets or takes)):
        role = "variable"
    elif re.search(r"[-./]$", before) or re.match(r"[-./]", after):
        role = "word"
    elif is_make or language.lexer == "docker":
        role = "word" if before.startswith("\t") else "target"
    else:
        role = "command" if re.search(starts, before) else "word"
    return role


def _chosen(
    uses: list[_Use], name: str, kind: str, reading: Reading, code: Sequence[str]
) -> tuple[list[_Use], str]:
    """Return which uses are renamed, and why it is not certain that these are meant."""
    language = reading.language
    chosen = [one for one in uses if one.line in reading.allowed]
    if "blocks" in language.traits:
        return _chosen_blocks(chosen, kind)
    if language.lexer == "sql":
        doubt = _doubt_of_columns(name, chosen, kind, reading, code)
        if not doubt and len(chosen) < len(uses):
            doubt = f"{name} stands outside of the named place, too, and is left there"
        return chosen, doubt
    roles = {one: _role(one, language) for one in uses}
    doubt = ""
    if "styles" not in language.traits and language.traits & {"shell", "sigils"}:
        chosen, doubt = _chosen_by_mark(name, kind, chosen, roles, language)
        roles = {one: "plain" if roles[one] in _MARKED else roles[one] for one in uses}
    if language.parts == "braces" and "styles" not in language.traits:
        field = _fields(uses, reading, code)
        outside = [one for one in uses if one.line not in reading.allowed]
        if field is not None:
            chosen = field
        elif not doubt:
            doubt = _doubt_of(name, kind, chosen, outside, reading, roles, code)
        is_class = any(part.kind == "class" for part in reading.scope)
        if is_class and not reading.is_everywhere and len(chosen) < len(uses):
            doubt = f"which of the uses of {name} belong to it is not certain"
        return chosen, doubt
    if not reading.is_everywhere and len({roles[one] for one in chosen}) > 1:
        doubt = doubt or f"the uses of {name} are not of one kind"
    return chosen, doubt or _doubt_of_lines(name, chosen, code, language, reading)


_MARKED = {"$", "@", "variable"}


def _chosen_by_mark(
    name: str, kind: str, uses: list[_Use], roles: Mapping[_Use, str], language: Language
) -> tuple[list[_Use], str]:
    """Return the uses with the mark of variables, or those without, and what is doubtful.

    Args:
        kind: The word for it, or the mark that the instruction has.
    """
    kinds = {roles[one] for one in uses}
    if kind in {"$", "@"} and "sigils" in language.traits:
        others = kinds - {kind}
        is_mixed = "member" in others or (language.lexer == "perl" and others - {"plain"})
        why = f"{kind}{name} may be used in other ways, too" if is_mixed else ""
        return [one for one in uses if roles[one] == kind], why
    has_plain = language.lexer in {"ruby", "elixir", "r"}
    wanted = {"variable", "$"} | ({"plain"} if has_plain else set())
    if kind in {"function", "target", "method"}:
        wanted = {"command", "target", "plain", "member"}
    is_kind = kind in _VARIABLE_WORDS | {"function", "target", "method"}
    chosen = [one for one in uses if roles[one] in wanted] or uses
    if len(kinds) > 1 or (is_kind and not kinds & wanted):
        return chosen, f"{name} has other uses than as a {kind or 'variable'}"
    return chosen, ""


def _chosen_blocks(uses: list[_Use], kind: str) -> tuple[list[_Use], str]:
    """Return the uses of a variable of Terraform: its block, and `var.NAME`."""
    block = re.compile(r"^\s*variable\s+\"$|\bvar\.$")
    chosen = [one for one in uses if block.search(one.before)]
    if kind == "variable" and chosen:
        return chosen, ""
    return uses, "which of the blocks and keys of that name are meant is not certain"


_TABLES = re.compile(
    r"(?i)\b(?:from|join|into|update|table(?:\s+if(?:\s+not)?\s+exists)?)\s+[\"`\[]?(\w[\w.]*)"
)
_BEFORE_TABLE = re.compile(
    r"(?i)(?:\b(?:from|join|into|update|references|on|(?:table|view)(?:\s+if(?:\s+not)?\s+exists)?)"
    r"\s+[\"`\[]?|\bfrom\s[^;()]*,\s*)$"
)


def _doubt_of_columns(
    name: str, uses: Sequence[_Use], kind: str, reading: Reading, code: Sequence[str]
) -> str:
    """Return why the uses of a name in SQL may be those of several tables or things."""
    tables = {one.lower() for line in code for one in _TABLES.findall(line[: 4 * _AROUND])}
    is_table = [bool(_BEFORE_TABLE.search(one.before) or one.after[:1] == ".") for one in uses]
    if any(is_table) and not all(is_table):
        return f"there are a table and a column {name}"
    if kind == "column" and any(is_table):
        return f"{name} is a table"
    owners = {found[1].lower() for one in uses if (found := re.search(r"(\w+)\.$", one.before))}
    if len(owners) > 1:
        return f"{name} is a column of {' and of '.join(sorted(owners)[:2])}"
    others = any(re.search(r"(?i)\bas\s+$", one.before) or one.after[:1] == "(" for one in uses)
    is_of_several = not any(is_table) and len(tables) > 1
    if (others or is_of_several) and not reading.is_everywhere:
        return f"which of the uses of {name} belong to it is not certain"
    return ""


def _is_taken(new: str, uses: Sequence[_Use], code: Sequence[str], reading: Reading) -> bool:
    """Return whether a name is used already; a variable may have that of a member of an object."""
    lines = [line if i in reading.allowed else "" for i, line in enumerate(code)]
    others = _uses_in(lines, _name_pattern(new, reading.language))
    is_member = any(_MEMBER.search(one.before) for one in uses)
    if reading.language.parts == "braces" and not is_member:
        return not all(_MEMBER.search(one.before) for one in others)
    return bool(others)


def _fields(uses: list[_Use], reading: Reading, code: Sequence[str]) -> list[_Use] | None:
    """Return the uses of a field of a named type; None if the rename is not one of a field."""
    owners = [part for part in reading.scope if part.kind == "class"]
    # a type and what implements it have the same name
    is_one = len({one.name for one in owners}) == 1
    if not is_one or not any(_MEMBER.search(one.before) for one in uses):
        return None
    owner = owners[0]
    name = rf"\b{re.escape(owner.name)}\b"
    variables = {"this", "self"}
    for line in code:
        if owner.name in line[: 4 * _AROUND]:
            short = line[: 4 * _AROUND]
            variables.update(re.findall(rf"{name}\s?(?:const\s)?\s?[*&]*\s?(\w+)", short))
            variables.update(re.findall(rf"(\w+)\??\s?:?\s?[&*]?(?:mut\s)?{name}(?!\[)", short))
            made = rf"(\w+)\s?:?=\s?(?:new\s|&)?{name}(?:\s?[({{]|::new\b)"
            variables.update(re.findall(made, short))
    own = list[_Use]()
    for one in uses:
        inside = any(part.start <= one.line < part.end for part in owners)
        known = variables if inside else variables - {"this", "self"}
        before = _OWNER.search(one.before)
        if before[1] in known if before else inside:
            own.append(one)
    return own


_OWNER = re.compile(r"(\w+)(?:\[[^\[\]]*\])?\s?(?:->|\.)\s*$")


# ---- what a name of code may mean besides: another variable, a method, a property of an object
#
# Languages with braces are read by patterns. A use that is not recognised says nothing; one that is
# recognised wrongly costs a question.

_NO_TYPES = (
    r"(?:return|new|else|case|in|of|throw|delete|typeof|await|yield|void|goto|import|package|from|"
    r"as|is|not|and|or|do|default|async|export|function|class|struct|enum|interface|get|set|go|"
    r"defer|range|ref|out|move|match|where|use|echo|print|extends|implements|instanceof|using)"
)
_KEYWORD = re.compile(
    r"(?:\b(?:let|const|var|val|mut)\s+(?:mut\s+)?[*&]*|\bfor\s*\(?\s*|\bcatch\s*\(\s*|"
    r"\b(?:let|const|var|val)\s*[\[({][\w\s,:]*)$"
)
_TYPED = re.compile(
    rf"(?<![\w.])(?!{_NO_TYPES}\b)\w[\w.]*(?:<[^()<>]*(?:<[^()<>]*>[^()<>]*)*>)?[\]?[]*[*&]*\s+[*&]*$"
)
_ENDED = re.compile(r"\s*(?:[;,)\]:]|=(?![=>])|\[|$|in\b)")
_LAMBDA = re.compile(r"\s*(?:=>|\s->\s)|[\w\s,:]*\)\s*=>")
_IMPORTED = re.compile(r"(?:^|\n)\s*(?:import|from|use|using)\b[^;\n]*(?:[{(][^;})]*)?(?<!\bas )$")
# of a function in a language without braces
_HEAD = re.compile(r"\s*(?:(?:local\s+)?(?:def|function|sub)\b|[\w-]+\s*\(\)\s*\{?)")
_MODIFIERS = re.compile(r"\s*(?:(?:public|private|protected|readonly|static|pub)\s+)*$")
_FIELD = re.compile(r"\s*[?!]?\s*:(?!:)|\s+[\w*\[]")  # of TypeScript or Rust; of Go
_AGAIN = {"rust", "go", "php", "groovy"}  # languages where a variable is declared again


def _doubt_of(
    name: str, kind: str, uses: Sequence[_Use], outside: Sequence[_Use], reading: Reading,
    roles: Mapping[_Use, str], code: Sequence[str],
) -> str:  # fmt: skip
    """Return why it is not certain that uses of a name mean the same; empty if nothing says so."""
    if reading.is_everywhere:
        return ""
    if any(roles[one] == "key" for one in outside) and "labels" in reading.language.traits:
        return f"{name} is the name of an argument outside of the named place"
    imported = [use for use in uses if _IMPORTED.search(use.above)]
    if imported and name not in reading.given:
        return f"{name} is imported, and has its name elsewhere"
    uses = [use for use in uses if use not in imported]
    parts = _Enclosing(reading.parts, (*uses, *outside))
    lexer = reading.language.lexer
    bindings = [at for at in (_binding(name, use, parts, code, reading) for use in uses) if at]
    own = {*bindings}
    doubt = ""
    if len(own) > 1 or (len(bindings) > 1 and min(own)[0] == "variable" and lexer not in _AGAIN):
        kinds = {what for what, *_ in own}
        one = f"is more than one {min(kinds)}"
        what = one if len(kinds) == 1 else "are a function and a variable"
        doubt = f"there {what} {name}: name the place of the one that is meant"
    elif own:
        doubt = _doubt_of_one(name, kind, min(own), uses, roles, code)
    elif reading.scope and all(one.kind == "function" for one in reading.scope):
        if any(_binding(name, use, parts, code, reading) for use in outside):
            doubt = f"{name} is defined outside of {reading.scope[0].label}"
    elif len({roles[use] for use in uses if not _OF_THIS.search(use.before)}) > 1:
        doubt = f"the uses of {name} are not of one kind"
    return doubt


def _doubt_of_one(
    name: str, kind: str, own: tuple[str, ...], uses: Sequence[_Use], roles: Mapping[_Use, str],
    code: Sequence[str],
) -> str:  # fmt: skip
    """Return why uses of a name may not be those of the one thing that has it here."""
    if _is_other_kind(kind, own):
        return f"{name} is not a {kind} here"
    if line := _overridden(uses, own, code):
        return f"{name} in line {line} overrides one that may stand elsewhere"
    typed, owner = dict[str, bool](), own[3]
    for use in uses:
        is_other = roles[use] != "plain"
        if owner:
            is_value = roles[use] == "key" and not re.search(rf"\b{owner}\b[^;{{}}]*$", use.head)
            is_other = is_value or not _is_of(owner, use, code, typed)
        if is_other:
            return f"the {name} in line {use.line + 1} may be that of something else"
    return ""


def _is_other_kind(kind: str, binding: tuple[str, ...]) -> bool:
    what, *_, owner = binding
    if what == "function":
        return kind in _VARIABLE_WORDS | {"field", "class", "struct"} or (
            kind == "method" and not owner
        )
    return kind in {"function", "method", "class", "struct"} or (kind in {"field"} and not owner)


def _overridden(uses: Sequence[_Use], binding: tuple[str, ...], code: Sequence[str]) -> int:
    """Return the line of a function that overrides one of another class; 0 without one."""
    for use in uses if binding[0] == "function" else ():
        above = code[use.line - 1] if use.line else ""
        if re.search(r"\boverride\b", use.before) or re.search(r"@[Oo]verride\s*$", above):
            return use.line + 1
    return 0


def _is_of(owner: str, use: _Use, code: Sequence[str], known: dict[str, bool]) -> bool:
    """Return whether a member is used without an object, or with one of its class."""
    found = re.search(r"(?:(\w+)|[^.\w])\s?[?!]?(?<!\.)(?:\.|->)\s*$", use.before)
    if not found or found[1] in {"this", "self", "super", "cls", "base", owner}:
        return True
    if not found[1]:  # what a call returns
        return bool(re.search(rf"\b{owner}\b", use.before))
    word = found[1]
    if word not in known:
        typed = rf"\b{owner}\b(?:<[^<>]*>)?[?*&\]\[]*\s+[*&]*{word}\b|"
        typed += rf"\b{word}\b\s?\??\s?(?::=|[:=])?\s?(?:new\s|mut\s|[&*]|\[\]){{0,3}}\s?{owner}\b"
        lines = (line[: 4 * _AROUND] for line in code if word in line and owner in line)
        known[word] = any(re.search(typed, line) for line in itertools.islice(lines, _MOST_USES))
    return known[word]


def _doubt_of_lines(
    name: str, uses: Sequence[_Use], code: Sequence[str], language: Language, reading: Reading
) -> str:
    """Return why the uses of a name in Ruby, Lua or a shell may be those of several variables."""
    if reading.is_everywhere:
        return ""
    heads = [i for i, line in enumerate(code) if _HEAD.match(line)]
    own = set()
    for use in uses:
        found = re.fullmatch(r"\s*((?:local|my|declare|typeset)\s+(?:-\w+\s+)*)?[$@%]?", use.before)
        if (found and re.match(r"\s*=(?!=)", use.after)) or (
            _HEAD.match(use.before) and re.search(r"[(,]\s*$", use.before)
        ):
            is_local = "locals" in language.traits or bool(found and found[1])
            head = bisect.bisect_right(heads, use.line) - 1
            own.add(heads[head] if is_local and head >= 0 else -1)
    return f"there is more than one variable {name}: name its place" if len(own) > 1 else ""


class _Enclosing:
    """The classes and functions around the lines of some uses, the outer ones first."""

    def __init__(self, parts: Sequence[Part], uses: Sequence[_Use]) -> None:
        waiting = [one for one in parts if one.kind in {"class", "function"}][::-1]
        self._around, around = dict[int, list[Part]](), list[Part]()
        for line in sorted({one.line for one in uses}):
            while waiting and waiting[-1].start <= line:
                around.append(waiting.pop())
            around = [one for one in around if one.end > line]
            self._around[line] = around[-_MOST_AROUND:]

    def at(self, line: int) -> list[Part]:
        return self._around[line]


_MOST_AROUND = 20  # parts around a use, and lines of the head of a function


def _binding(
    name: str, use: _Use, parts: _Enclosing, code: Sequence[str], reading: Reading
) -> tuple[str, ...]:
    """Return what a use defines: its kind, where, of which type, and the class that it is in."""
    before, after, lexer = use.before, use.after, reading.language.lexer
    if re.search(r"(?:\.|->)\s*$", before):
        return ()
    # In `{kind}: {total}` of a text nothing stands between the names but blanks.
    whole = reading.lines[use.line][max(0, use.start - len(before)) : use.start]
    is_typed = _TYPED.search(before) and _TYPED.search(whole)
    around = parts.at(use.line)
    for at, one in enumerate(around):
        is_head = "{" not in _head_of(one, use, code, "{")
        if (one.name, one.kind) == (name, "function") and is_head and re.match(r"\s*[(<]", after):
            owner = re.search(
                r"\(\s*\w+\s+\*?(\w+)[^()]*\)\s*$|(\w+)(?:<[^<>]*>)?(?:::|\.)$", before
            )
            outer = around[at - 1] if at else None
            type_of = (owner[1] or owner[2]) if owner else ""
            of_class = outer.name if outer and outer.kind == "class" else type_of
            return "function", str(outer.start if outer else -1), type_of, of_class
    inner = around[-1] if around else None
    is_class = bool(inner and inner.kind == "class")
    if not (
        (_KEYWORD.search(before) and not after.lstrip().startswith("("))
        or (is_typed and _ENDED.match(after))
        or (_LAMBDA.match(after) and re.search(r"[^\w.]\s*$|^$", before))
        or re.match(r"\s*(?:,\s*\w+\s*)*:=", after)
        or (lexer == "php" and re.match(r"\s*=(?![=>])", after))
        or (is_class and _MODIFIERS.match(before) and _FIELD.match(after))
        or (inner and inner.kind == "function" and _is_in_head(inner, use, code))
    ):
        return ()
    where = use.line if _LAMBDA.match(after) else inner.start if inner else -1
    return "variable", str(where), "", inner.name if inner and is_class else ""


def _head_of(part: Part, use: _Use, code: Sequence[str], far: str) -> str:
    """Return the text from the beginning of a part to a use; another one if it is far away."""
    if use.line - part.start > _MOST_AROUND:
        return far
    return "\n".join([*(line[: 4 * _AROUND] for line in code[part.start : use.line]), use.before])


def _is_in_head(part: Part, use: _Use, code: Sequence[str]) -> bool:
    head = _head_of(part, use, code, "{")
    head = head[head.find(part.name) :]
    is_open = head.count("(") == head.count(")") + 1 and "{" not in head
    begins = r"[(,]\s*(?:\.\.\.|mut\s+|readonly\s+|private\s+|public\s+|[*&])*\$?$"
    return is_open and bool(re.search(begins, head))


# ---- names of Python


_Place = tuple[int, int]


class _Scope:
    """A module, a class, a function, a lambda or a comprehension, and the names that it sets."""

    def __init__(self, node: ast.AST, parent: _Scope | None, start: _Place, end: _Place) -> None:
        self.node, self.parent, self.start, self.end = node, parent, start, end
        self.kinds: dict[str, set[str]] = {}
        self.outer: dict[str, str] = {}  # names of `global` and `nonlocal`
        self.holes: list[tuple[_Place, _Place]] = []  # places of the scope around it
        self.inner: list[_Scope] = []
        self.is_class = isinstance(node, ast.ClassDef)
        self.name = str(getattr(node, "name", ""))  # empty for a lambda and the like

    def holds(self, place: _Place) -> bool:
        return self.start <= place < self.end and not any(a <= place < b for a, b in self.holes)


_SCOPES = (
    ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp,
    ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


_NAMED = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs,
    ast.MatchStar, ast.MatchMapping,
)  # fmt: skip
_KINDS_OF_NODES = {
    ast.FunctionDef: "function", ast.AsyncFunctionDef: "function", ast.ClassDef: "class",
}  # fmt: skip


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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
        self.classes = {part.name: part for part in parts if part.kind == "class"}
        self.imported = set[_Place]()  # where the name of something of another module stands
        self.bases = dict[str, set[str]]()  # the names of the bases of each class
        self.module = _Scope(tree, None, (0, 0), (len(lines) + 1, 0))
        self._read(tree, self.module)

    def _place(self, line: int, column: int) -> _Place:
        text = self.lines[line - 1]
        return line - 1, column if text.isascii() else len(text.encode()[:column].decode())

    def _span(self, node: Any) -> tuple[_Place, _Place]:
        end = self._place(node.end_lineno, node.end_col_offset)
        return self._place(node.lineno, node.col_offset), end

    def _read(self, tree: ast.AST, scope: _Scope) -> None:
        waiting = [(child, scope) for child in ast.iter_child_nodes(tree)]
        while waiting:
            node, scope = waiting.pop()
            self._names(node, scope)
            inner = self._inner(node, scope) if isinstance(node, _SCOPES) else scope
            waiting += [(child, inner) for child in ast.iter_child_nodes(node)]

    def _inner(self, node: Any, around: _Scope) -> _Scope:
        start, end = self._span(node)
        if name := getattr(node, "name", ""):
            head = re.compile(rf"(?:async\s+)?(?:def|class)\s+{re.escape(name)}")
            found = head.match(self.lines[start[0]], start[1])
            start = (start[0], found.end()) if found else start
        scope = _Scope(node, around, start, end)
        around.inner.append(scope)
        outside: list[Any] = [*getattr(node, "bases", ()), *getattr(node, "keywords", ())]
        if args := getattr(node, "args", None):
            every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
            for one in filter(None, every):
                scope.kinds.setdefault(one.arg, set()).add("parameter")
                outside.append(one.annotation)
            outside += [*args.defaults, *args.kw_defaults, getattr(node, "returns", None)]
        if generators := getattr(node, "generators", None):
            outside.append(generators[0].iter)
        scope.holes = [self._span(one) for one in outside if one is not None]
        return scope

    def _names(self, node: Any, scope: _Scope) -> None:
        names, kind = list[str | None](), _KINDS_OF_NODES.get(type(node), "variable")
        if isinstance(node, ast.Name):
            names = [node.id] if isinstance(node.ctx, (ast.Store, ast.Del)) else []
        elif isinstance(node, ast.NamedExpr):
            names = [node.target.id]
            while scope.parent and hasattr(scope.node, "generators"):
                scope = scope.parent
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.outer |= dict.fromkeys(node.names, type(node).__name__)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [one.asname or one.name.partition(".")[0] for one in node.names]
            self.imported |= {self._place(one.lineno, one.col_offset) for one in node.names}
        elif isinstance(node, _NAMED):
            names = [node.rest if isinstance(node, ast.MatchMapping) else node.name]
        if isinstance(node, ast.ClassDef):
            self.bases[node.name] = {ast.unparse(one).partition("[")[0] for one in node.bases}
        for name in filter(None, names):
            scope.kinds.setdefault(name, set()).add(kind)

    def scopes(self) -> Iterator[_Scope]:
        waiting = [self.module]
        while waiting:
            scope = waiting.pop()
            yield scope
            waiting += scope.inner[::-1]

    def scope_at(self, place: _Place) -> _Scope:
        scope = self.module
        while inner := next((one for one in scope.inner if one.holds(place)), None):
            scope = inner
        return scope

    def binder_of(self, name: str, place: _Place) -> _Scope | None:
        """Return the scope whose name a use has; None for one that nothing here sets."""
        scope: _Scope | None = self.scope_at(place)
        first = scope
        while scope:
            if scope.outer.get(name) == "Global":
                scope = self.module
            is_seen = not scope.is_class or scope is first
            if is_seen and name in scope.kinds and name not in scope.outer:
                return scope
            scope = scope.parent
        return None

    def binders_of(self, name: str) -> list[_Scope]:
        found = (one for one in self.scopes() if name in one.kinds and name not in one.outer)
        return list(found)

    def class_of(self, scope: _Scope) -> Part | None:
        return next(
            (
                one
                for one in self.parts
                if one.kind == "class" and scope.is_class
                if one.name == scope.name and one.start <= scope.start[0] < one.end
            ),
            None,
        )

    def derived(self, names: set[str]) -> set[str]:
        """Return the names of some classes, and of those that are derived from them."""
        found = {*names}
        while more := {one for one, bases in self.bases.items() if bases & found} - found:
            found |= more
        return found

    def unknown_base(self, owners: Sequence[Part], name: str) -> str:
        """Return a base of classes that may have a method of a name; empty without one."""
        waiting, seen = [part.name for part in owners], set[str]()
        is_method = any(
            one.is_class and "function" in one.kinds[name] for one in self.binders_of(name)
        )
        while waiting and is_method:
            one = waiting.pop()
            if one not in self.bases and one not in _BASES:
                return one
            waiting += self.bases.get(one, set()) - seen
            seen.add(one)
        return ""

    def has_member(self, part: Part, name: str) -> bool:
        inner = (one for one in self.parts if len(one.path) == len(part.path) + 1)
        if any(one.name == name and part.holds(one) for one in inner):
            return True
        pattern = re.compile(rf"\b(self|cls)\.{name}\b\s*(=[^=]|:)")
        return any(pattern.search(line) for line in self.lines[part.start : part.end])


_BASES = {"object", "ABC", "Protocol", "Generic", "Enum", "IntEnum", "NamedTuple", "TypedDict"}
_MEMBER_WORDS = {"method", "attribute", "property", "field"}


def _rename_python(rename: Rename, reading: Reading) -> CodeEdit | None:
    owner, _, old = rename.old.rpartition(".")
    new = rename.new.rpartition(".")[2]
    if not new.isidentifier() or not old.isidentifier():
        return _replace(Rename(rename.old, rename.new, False, rename.kind), reading)
    lines = reading.lines
    everywhere = _uses_in(lines, bounded(old))
    if len(everywhere) > _MOST_USES:
        why = f"{len(everywhere):,} places have the name {old}, and they are not told apart"
        return _written(everywhere, old, new, reading, why)
    try:
        module = _Module(lines, reading.parts)
    except UNREADABLE:
        return None
    is_member = _is_member(module, rename, old, owner)
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
    if not is_member and places & module.imported and old not in reading.given:
        doubt = doubt or f"{old} is imported, and has its name elsewhere"
    return _renamed(lines, places, old, new, doubt)


def _is_member(module: _Module, rename: Rename, old: str, owner: str) -> bool:
    if owner or rename.kind in _MEMBER_WORDS:
        return True
    binders = module.binders_of(old)
    plain = [one for one in binders if not one.is_class]
    if rename.kind == "function":
        is_plain = any("function" in one.kinds[old] for one in plain)
        return not is_plain and any("function" in one.kinds[old] for one in binders)
    if rename.kind == "class" or plain:
        return False
    return bool(binders) or any(dotted for _, _, dotted in _uses(module.tokens, old))


def _member_places(
    module: _Module, reading: Reading, old: str, owner: str
) -> tuple[list[_Place], str] | None:
    """Return where a member is used, and what is doubtful about it; None if no class has it."""
    classes = module.classes
    owners = [part for part in reading.scope if part.kind == "class"]
    owners += [classes[owner]] if owner in classes else []
    having = [part for part in classes.values() if module.has_member(part, old)]
    owners = owners or having
    if not owners:
        return None
    others = [part for part in having if part not in owners]
    names = {part.name for part in owners}
    family = module.derived(names)
    inside = [part for part in classes.values() if part.name in family and part not in others]
    doubt = ""
    if len(owners) > 1 and not reading.is_everywhere:
        doubt = _places(len(owners), f"the method {old}")
    elif any(part.name in family or names & module.derived({part.name}) for part in others):
        doubt = f"{old} is a method of classes that are derived from each other"
    elif base := module.unknown_base(owners, old):
        doubt = f"{old} may be one of {base}, too"
    places, arguments = list[_Place](), _arguments(module.tokens)
    for i, start, dotted in _uses(module.tokens, old):
        if not dotted:
            binder = module.binder_of(old, (i, start))
            part = module.class_of(binder) if binder else None
            if (i, start) not in arguments and part in owners:
                places.append((i, start))
            elif arguments.get((i, start)) in family:  # a field that is set when it is made
                doubt = doubt or f"{old} is the name of an argument in line {i + 1}"
            continue
        before = module.lines[i][:start]
        word = (re.search(r"(\w+|\))\s*\.\s*$", before) or ["", ""])[1]
        is_self = word in {"self", "cls"} or bool(re.search(r"super\(\)\.$", before))
        is_inside = any(part.start <= i < part.end for part in inside)
        is_other = any(part.start <= i < part.end for part in others)
        is_own = word in family or (is_self and is_inside)
        is_foreign = word in {one.name for one in others} or (is_self and is_other)
        if is_own or not (others or is_foreign):
            places.append((i, start))
        if (
            not is_own
            and not is_foreign
            and (others or not _is_made(word, family, module, i, start))
        ):
            doubt = (
                doubt or f"whose {old} is used outside of its class is not certain: line {i + 1}"
            )
    return places, doubt or _doubt_of_texts(module, old)


def _is_made(word: str, names: set[str], module: _Module, i: int, start: int) -> bool:
    """Return whether the object before a member is one of some classes."""
    of_class = "|".join(map(re.escape, names))
    if word == ")":
        return bool(re.search(rf"\b(?:{of_class})\([^()]*\)\s*\.\s*$", module.lines[i][:start]))
    if word.lower() in {name.lower() for name in names}:
        return True
    made = re.compile(
        rf"\b{re.escape(word)}\s?(?::\s?[\"']?(?:\w+\.)?(?:{of_class})\b|=\s?(?:{of_class})\()"
        rf"|\bfor {re.escape(word)} in \[?(?:{of_class})\("
    )
    return bool(word) and any(word in line and made.search(line) for line in module.lines)


def _variable_places(
    module: _Module, rename: Rename, reading: Reading, old: str
) -> tuple[list[_Place], str]:
    """Return where a variable, a function or a class is used, and what is doubtful about it."""
    tokens, kind, scope = module.tokens, rename.kind, reading.scope
    arguments = _arguments(tokens)
    by_binder: dict[_Scope | None, list[_Place]] = {}
    for i, start, dotted in _uses(tokens, old):
        if not dotted and (i, start) not in arguments:
            place = (i, start)
            by_binder.setdefault(module.binder_of(old, place), []).append(place)
    binders = [one for one in module.binders_of(old) if not one.is_class]
    meant, doubt = _of_kind(binders, old, kind), ""
    if binders and not meant:
        meant, doubt = binders, "" if old in reading.given else f"there is no {kind} {old}"
    if scope:
        inside = [one for one in meant if _is_in(one, scope)]
        allowed = reading.allowed
        around = [one for one in meant if any(i in allowed for i, _ in by_binder.get(one, ()))]
        outside = "" if inside or not around else f"{old} is defined outside of {scope[0].label}"
        meant, doubt = inside or around, doubt or outside
    elif not kind and any(one.is_class for one in module.binders_of(old)):
        doubt = doubt or f"there are a method and a variable {old}: say which one is meant"
    if len(meant) > 1 and not reading.is_everywhere:
        if module.module in meant and not scope:  # without a place it is the global one
            meant = [module.module]
        else:
            doubt = doubt or _places(len(meant), f"a {kind or 'variable'} {old}")
    places = [place for one in meant for place in by_binder.get(one, ())]
    if not binders and not scope:
        places = by_binder.get(None, [])
        doubt = doubt or ("" if old in reading.given else f"{old} is not defined here")
    callers, why = _other_places(module, meant, old, arguments)
    return [*places, *callers], doubt or why


def _other_places(
    module: _Module, meant: list[_Scope], old: str, arguments: Mapping[_Place, str]
) -> tuple[list[_Place], str]:
    """Return where a variable is named in calls and in `__all__`, and what is doubtful."""
    tokens = module.tokens
    takers = [one for one in meant if "parameter" in one.kinds[old]]
    callers, why = _callers(module, takers, old, arguments)
    if module.module in meant:
        texts = (one for one in tokens if one.type == tokenize.STRING and one.string[1:-1] == old)
        exports = [one.start for one in texts if _is_export(tokens, one)]
        callers += [(line - 1, column + 1) for line, column in exports]
        why = why or _doubt_of_texts(module, old)
    elif any(one.type == tokenize.NAME and one.string in _BY_TEXT for one in tokens):
        why = why or _doubt_of_texts(module, old, is_word=True)
    if any("function" in one.kinds[old] for one in meant) and _is_injected(module, old):
        why = why or f"{old} has decorators, and arguments have its name"
    return callers, why


def _is_injected(module: _Module, name: str) -> bool:
    """Return whether a function has decorators, and others have a parameter of its name.

    That is so for the fixtures of pytest.
    """
    nodes = [one.node for one in module.scopes()]
    is_decorated = any(
        getattr(one, "name", "") == name and getattr(one, "decorator_list", ()) for one in nodes
    )
    return is_decorated and any("parameter" in one.kinds[name] for one in module.binders_of(name))


_BY_TEXT = {"locals", "vars", "eval", "exec"}  # functions that find a local variable by its name


def _of_kind(binders: list[_Scope], name: str, kind: str) -> list[_Scope]:
    """Return the scopes where a name is what a word of the instruction says."""
    kind = {"argument": "parameter", "constant": "variable"}.get(kind, kind)
    if kind not in {"function", "class", "parameter", "variable"}:
        return binders
    found = [one for one in binders if kind in one.kinds[name]]
    if kind == "variable":
        return found or [one for one in binders if "parameter" in one.kinds[name]]
    return found


def _is_in(scope: _Scope, parts: Sequence[Part]) -> bool:
    first, last = scope.start[0], scope.end[0]
    return any(
        part.start <= first and last < part.end + (part.kind == "lines" and 0) for part in parts
    )


def _callers(
    module: _Module, takers: Sequence[_Scope], old: str, arguments: Mapping[_Place, str]
) -> tuple[list[_Place], str]:
    """Return where functions are called with a parameter by its name, and what is doubtful."""
    names, decorated = set[str](), False
    for one in takers:
        names |= {one.name} - {""}
        if one.name == "__init__" and one.parent and one.parent.is_class:
            names.add(one.parent.name)
        decorated = decorated or bool(getattr(one.node, "decorator_list", ()))
    if not names:
        return [], ""
    named = {
        at: callee for at, callee in arguments.items() if module.lines[at[0]].startswith(old, at[1])
    }
    named = {at: callee for at, callee in named.items() if _is_whole(module.lines, at, old)}
    callers = [at for at, callee in named.items() if callee in names]
    defined = sum(one.name in names for one in module.scopes() if not one.is_class)
    if callers and defined > len(takers):
        return callers, f"which calls with {old}= belong to it is not certain"
    if len(callers) < len(named) and _is_passed(module, names):
        return callers, f"which calls with {old}= belong to it is not certain"
    if decorated and (why := _doubt_of_texts(module, old, is_word=True)):
        return callers, why
    return callers, ""


def _is_whole(lines: Sequence[str], at: _Place, name: str) -> bool:
    return not re.match(r"\w", lines[at[0]][at[1] + len(name) :])


def _is_passed(module: _Module, names: set[str]) -> bool:
    """Return whether a function is used as a value, and so may be called by another name."""
    pairs = itertools.pairwise(module.tokens)
    return any(
        one.string in names and after.string in {",", ")", "]", "\n"} for one, after in pairs
    )


def _doubt_of_texts(module: _Module, name: str, *, is_word: bool = False) -> str:
    """Return which text may be a name, as for `getattr`; one that says more is prose.

    Args:
        is_word: Whether a text with the name as a word counts, too.
    """
    whole = re.compile(rf"[\w.\[\],|' -]*(?<!\w){name}(?!\w)[\w.\[\],|']*")
    before = "\n"
    for token in module.tokens:
        if token.type == tokenize.STRING and name in token.string:
            is_docstring = before in {"\n", ""} or token.string[-3:] in {'"""', "'''"}
            inner = token.string.strip("rbufRBUF").strip("\"'")
            is_prose = " " in inner.replace(" | ", "").replace(", ", "") or len(inner) > _AROUND
            is_name = (
                bool(
                    re.search(rf"(?<!\w){name}(?!\w)", inner)
                    if is_word
                    else (not is_prose and whole.fullmatch(inner))
                )
                and not is_docstring
            )
            is_example = re.search(rf">>> .*(?<!\w){name}(?!\w)", token.string)
            if (is_name and not _is_export(module.tokens, token)) or is_example:
                return f"{name} stands in a text in line {token.start[0]}, too, and is left there"
        if token.type not in {tokenize.NL, tokenize.COMMENT, tokenize.INDENT, tokenize.DEDENT}:
            before = token.string.strip(" ")
    return ""


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
