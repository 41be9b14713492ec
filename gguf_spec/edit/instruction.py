"""What an instruction says about the place of a change: what may change, and what must stay.

A part counts where its name is marked (in quotes, before "()", beside a word such as "function",
behind "in") or looks like a name of code. What is not found leaves the whole text open, and the
changes are checked. Renames and exact replacements are found, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import PurePath

from .languages import Language, language_of
from .parts import Part

# words for parts, by the kinds that they mean
_WORDS = {
    "function method def func routine": "function",
    "class struct structure enum interface type": "class",
    "section": "block heading item key section",
    "table": "block heading key section",
    "heading chapter title": "heading",
    "key": "key",
    "setting option variable field parameter": "key variable",
    "entry job profile environment host user database": "item key section",
    "constant macro": "variable",
    "target rule selector element view": "block",
    "block service server": "block item key section",
    "stage": "section",
    "step item": "item key",
    "property": "function key variable",
}
_KINDS = {one: set(kinds.split()) for words, kinds in _WORDS.items() for one in words.split()}
_KIND = "|".join(_KINDS)
_ANY_KIND = set().union(*_KINDS.values())
_ORDINALS = {
    "first": 0, "1st": 0, "second": 1, "2nd": 1, "third": 2, "3rd": 2, "fourth": 3, "4th": 3,
    "fifth": 4, "last": -1,
}  # fmt: skip
# A longer instruction is a description: it names no parts, and is no rename.
_MOST_READ = 2000
_MOST_PARTS = 200  # with the same name; more of them say nothing about a place
_BEHIND = (
    r"\s+(?:alone|unchanged|untouched|intact|as\s+(?:it|they)\s+(?:is|are)|the\s+same|as\s+before|"
    r"stay\w*|remain\w*)"
)
_END = r"(?=[,;]|\.\s|\.?$)"
_NOT = re.compile(
    rf"""(?ix)
    [\s,;.(]*(?:\b(?:and|but)\s+)?\b(?:
        (?:leave|keep)\s+(?P<a>[^,;.]*?){_BEHIND}
      | (?:do\s+not|don't|dont|never)\s+(?:touch|change|rename|edit|modify|alter)
        \s+(?P<b>[^,;]*?{_END})
      | (?:but\s+)?not\s+(?:in|the|of|for|at|under|inside)\b\s*(?P<c>[^,;]*?(?:{_END}|(?=\bbut\b)))
      | except(?:\s+for|\s+in)?\s+(?P<d>[^,;]*?{_END})
      | without\s+(?:touching|changing)\s+(?P<e>[^,;]*?{_END})
      | ,\s*(?:but\s+)?not\s+(?P<g>[`"'\[\w.$-]+[`"'\]]?)\s*(?=\.?$|,)
      | (?P<f>[^,;.]*?)\s+(?:must|should|shall)
        \s+(?:stay|remain|not\s+change|not\s+be\s+(?:changed|touched))[^,;.]*
    )"""
)
_TIMES = r"\d|second|minute|hour|day|week|month|time|night|few|other\s+second"
_EVERYWHERE = re.compile(
    r"(?i)\b(?:all|everywhere|throughout|both|wherever|whole|"
    rf"(?:every|each)(?!\s+(?:{_TIMES})))\b"
)
_PLACE = r"(?:in|inside|within|of|under|below|from|for|on|at)"
QUOTED = re.compile(r"`([^`]+)`|\"([^\"]+)\"|“([^”]+)”|(?<!\w)'([^']+)'(?!\w)")


@dataclass(frozen=True)
class Rename:
    """A change of one name or text into another, which is made by code.

    Attributes:
        old: The name or text now.
        new: The one to write.
        is_name: Whether it is the name of something; else it is a text or a value.
        kind: The word for it in the instruction, such as `class`; empty without one.
        around: A word that must stand in the same line; empty without one.
    """

    old: str
    new: str
    is_name: bool
    kind: str = ""
    around: str = ""


@dataclass(frozen=True)
class Reading:
    """What an instruction says about a text.

    Attributes:
        instruction: The instruction.
        lines: The lines of the text.
        parts: Its parts.
        name: Name of its file; empty without one.
        rename: The rename that it asks for, or None.
        scope: The parts that may change; empty if it names none.
        kept: The parts that must stay.
        is_everywhere: Whether it speaks of all places.
        given: Names that the text imports from another file of the same edit, which renames them.
    """

    instruction: str
    lines: list[str]
    parts: Sequence[Part]
    name: str
    rename: Rename | None = None
    scope: tuple[Part, ...] = ()
    kept: tuple[Part, ...] = ()
    is_everywhere: bool = False
    given: frozenset[str] = frozenset()

    @property
    def suffix(self) -> str:
        """The ending of the name, in lower case."""
        return PurePath(self.name).suffix.lower()

    @property
    def language(self) -> Language:
        """How the file is read."""
        return language_of(self.name, self.lines[0] if self.lines else "")

    @cached_property
    def allowed(self) -> set[int]:
        """The lines that may change."""
        lines = {*range(len(self.lines))}
        if self.scope:
            lines = {i for part in self.scope for i in range(part.start, part.end)}
        return lines - {i for part in self.kept for i in range(part.start, part.end)}


def read(instruction: str, lines: list[str], parts: Sequence[Part], name: str) -> Reading:
    found = Reading(instruction, lines, parts, name)
    if len(instruction) > _MOST_READ:
        return replace(found, is_everywhere=bool(_EVERYWHERE.search(instruction)))
    spared: list[Part] = []
    wanted = instruction
    for mention in _NOT.finditer(instruction):
        spared += _mentioned(next(filter(None, mention.groups()), ""), lines, parts, strict=False)
        wanted = wanted.replace(mention[0], " ; ", 1)
    rename = read_rename(wanted, lines, parts)
    named = rename
    if not rename and (found_rename := _renamed_in(wanted)):  # with more to do: no place
        named = Rename(found_rename["old"], found_rename["new"], True)
    wanted = _behind(wanted, named) if named else wanted
    scope = _mentioned(wanted, lines, parts, named)
    spared = [one for one in spared if not any(one == part or one.holds(part) for part in scope)]
    return replace(
        found,
        rename=rename,
        scope=tuple(scope),
        kept=tuple(spared),
        is_everywhere=bool(_EVERYWHERE.search(wanted)),
    )


# ---- the place


@dataclass(frozen=True)
class _Mention:
    name: str
    start: int
    kinds: frozenset[str]
    is_place: bool  # "in NAME", or NAME is what the sentence is about


_REFERENCE = re.compile(
    r"(?i),?\s*\b(?:as|like|unlike|similar\s+to|same\s+as|instead\s+of)\b[^,;.]*"
)
_DOTTED = re.compile(r"[\w$]+(?:\.[\w$]+)+(?:\(\))?")
_VERBS = (
    r"should|must|shall|needs?|has\s+to|have\s+to|may|can|could|is|are|does|returns?|writes?|takes?|"
    r"gives?|raises?|reads?|crashes|fails|no\s+longer"
)
_MAKE = (
    r"make|let|have|write|rewrite|turn|convert|split|speed\s+up|simplify|document|fix|shorten|"
    r"refactor|extend|improve|remove|delete|drop|call|give"
)
_SET = (
    r"the|its|set|give|change|update|increase|reduce|raise|lower|bump|remove|delete|drop|decrease"
)
_BESIDE = r"\b(?:after|before|above|below|behind|next\s+to|under)\s+(?:the\s+)?(?:\w+\s+)?"
_SMALL = {"key", "variable", "block", "heading", "section", "item"}


def _mentioned(
    text: str,
    lines: Sequence[str],
    parts: Sequence[Part],
    rename: Rename | None = None,
    *,
    strict: bool = True,
) -> list[Part]:
    """Return the parts that a text names, the innermost ones."""
    if numbers := _line_numbers(text, len(lines)):
        return numbers
    whole = text
    text = _REFERENCE.sub(" ; ", text) if strict and not rename else text
    text, chosen = _dotted(text, parts)
    ordinal = _ordinals(text, lines, parts)
    mentions = list(_mentions(text, parts, rename, strict))
    by_name = {one: _named(one, parts) for one in mentions}
    places = chosen + [part for one in mentions if one.is_place for part in by_name[one]] + ordinal
    for one in mentions:
        chosen += _meant(one, by_name[one], places, strict)
    chosen += ordinal
    if not chosen and strict:
        chosen = _quoted_places(whole, lines, parts) or _new_member(whole, parts)
    unique = list(dict.fromkeys(_without_places(chosen, places)))
    is_move = re.search(r"(?i)\b(move|swap|reorder)\b", whole)
    if strict and not rename and is_move and len(unique) < 2:
        return []  # the other place is not named
    innermost = [one for one in unique if not any(one.holds(other) for other in unique)]
    return sorted(innermost, key=lambda one: one.start)


def _named(mention: _Mention, parts: Sequence[Part]) -> list[Part]:
    """Return the parts with the name of a mention; none if that says nothing."""
    forms = _forms(mention.name)
    found = [part for part in parts if part.name in forms and part.kind in mention.kinds]
    found = [one for one in found if one.path[-2:-1] != (one.name,)] or found  # no constructor
    found = [part for part in found if part.name == mention.name] or found
    return found if len(found) <= _MOST_PARTS else []


def _dotted(text: str, parts: Sequence[Part]) -> tuple[str, list[Part]]:
    """Return a text without names such as `Store.total`, and the parts that they name."""
    named: list[Part] = []
    for found in reversed(list(_DOTTED.finditer(text))):
        path = found[0].removesuffix("()")
        paths = ((one, f".{'.'.join(one.path)}") for one in parts)
        exact = [one for one, whole in paths if one.name == path or whole.endswith(f".{path}")]
        is_call = found[0].endswith("()")
        if exact and not (is_call and _is_reference(text[: found.start()])):
            named.append(exact[0])
        if exact or is_call:
            text = text[: found.start()] + " " * len(found[0]) + text[found.end() :]
    return text, named


def _meant(
    mention: _Mention, parts: list[Part], places: Sequence[Part], strict: bool
) -> list[Part]:
    """Return which of the parts of a name are meant; none if that is not clear."""
    is_place = mention.is_place
    if len(parts) > 1 or (places and not is_place):
        inside = [part for part in parts if any(place.holds(part) for place in places)]
        parts = inside or ([] if places and not is_place else parts)
    if len(parts) > 1 and not is_place:
        parts = [part for part in parts if part not in places] or parts
    if len({part.path for part in parts}) > 1:
        # the outermost, where one holds all others
        outer = [
            part for part in parts if all(part == other or part.holds(other) for other in parts)
        ]
        parts = outer or ([] if strict else parts)
    return parts


def _without_places(chosen: list[Part], places: Sequence[Part]) -> list[Part]:
    """Return the parts that are meant, without the places around them."""
    if not any(place.holds(one) for one in chosen for place in places):
        return chosen
    inner = [one for one in chosen if any(place.holds(one) for place in places)]
    outer = [one for one in chosen if any(one.holds(other) for other in chosen)]
    return [one for one in chosen if one not in places or one in inner or one in outer]


def _is_reference(before: str) -> bool:
    """Return whether a call such as `store.total()` is to be used rather than changed."""
    return not re.search(
        rf"(?i)(^|[.;,:]\s*|\b(?:{_PLACE}|{_MAKE}|the)\s+(?:(?:{_KIND})\s+)?)[`\"']?$", before
    )


def _forms(name: str) -> set[str]:
    return {name, f"{name}s", f"{name}es"}


def _new_member(text: str, parts: Sequence[Part]) -> list[Part]:
    classes = [one for one in parts if one.kind == "class" and len(one.path) == 1]
    added = r"(?i)\s*add\s+an?\s+(\w+\s+)?(method|property|field|attribute)\b"
    return classes if len(classes) == 1 and re.match(added, text) else []


def _mentions(
    text: str, parts: Sequence[Part], rename: Rename | None, strict: bool
) -> Iterator[_Mention]:
    quoted = {next(filter(None, found.groups())) for found in QUOTED.finditer(text)}
    is_addition = bool(
        re.match(r"(?i)\s*(?:please\s+)?(add|append|insert|give|apply|put|move|write)\b", text)
    )
    names = {part.name for part in parts}
    singular = {name[:-1] for name in names if re.fullmatch(r"[a-z]{3,}s", name)} - names
    shown = text.lower()
    for name in sorted(one for one in names | singular if one.lower() in shown):
        if not name or (rename and name == rename.old):
            continue
        kinds_of_name = {part.kind for part in parts if part.name in _forms(name)}
        pattern = re.compile(
            rf"(?<![\w.$-]){re.escape(name)}(?![\w$])(?!-\w)", re.IGNORECASE if " " in name else 0
        )
        for found in pattern.finditer(text):
            before, after = text[: found.start()], text[found.end() :]
            bare = _without_list(re.sub(r"[`\"'“‘(\[.#*]+$", "", before), names)
            behind = re.sub(r"^(?:\(\))?[`\"'”’)\]]*", "", after)
            begins = not bare.strip() or bool(re.search(r"[.;,:]\s*$", bare))
            kind_before = _ending(bare, rf"\b({_KIND})(?:e?s)?\s+(?:named\s+|called\s+)?")
            kind_after = None if begins else re.match(rf"(?i)\s+({_KIND})\b(?!\s+hint)", behind)
            kind = (kind_before or kind_after or ("", ""))[1].lower()
            a_kind = rf"(?:(?:\w+\s+)?(?:{_KIND})s?\s+)?"
            article = r"(?:only\s+|just\s+)?(?:(?:the|a|an|our|my)\s+)?"
            place = _ending(bare, rf"\b({_PLACE}|to)\s+{article}{a_kind}")
            is_new = place and place[1].lower() == "to" and not is_addition
            if is_new and not kind:
                continue  # the new value
            is_word = strict and name.isupper() and not kind and name not in quoted
            if is_word and kinds_of_name == {"variable"} and _ending(before, r"\bthe\s+"):
                continue  # a word such as "the PDF", and a variable of that name
            added = rf"\ban?\s+(?:\w+\s+)?{kind}\s+(?:named\s+|called\s+)?"
            if kind_before and is_addition and _ending(bare, added):
                continue
            if is_addition and _ending(bare, _BESIDE):
                yield _Mention(name, found.start(), frozenset(_ANY_KIND), True)
                continue
            is_code = bool(re.search(r"[_.\d/-]|[a-z][A-Z]", name)) or (
                name[:1].isupper() and not begins and " " not in name
            )
            is_marked = name in quoted or after.startswith(("()", "`")) or kind or " " in name
            is_verb_next = re.match(rf"(?i)(\s+(?:{_VERBS})\b|\s*:)", behind)
            of_sentence = rf"(^|[.;,:]|\b(?:and|that|so)\b)\s*(?:the\s+)?{a_kind}"
            is_subject = is_verb_next and (begins or _ending(bare, of_sentence))
            is_object = kinds_of_name & {"function", "class"} and _ending(
                bare, rf"\b(?:{_MAKE})\s+(?:the\s+)?{a_kind}"
            )
            is_set = kinds_of_name & _SMALL and _ending(bare, rf"\b(?:{_SET})\s+")
            is_place = bool((place and not is_new) or is_subject or is_object)
            if is_marked or is_code or is_place or is_set or not strict:
                kinds = _KINDS.get(kind, _ANY_KIND)
                if not kinds & kinds_of_name:
                    kinds = _ANY_KIND
                yield _Mention(name, found.start(), frozenset(kinds), is_place)


def _ending(text: str, pattern: str) -> re.Match[str] | None:
    return re.search(rf"(?i){pattern}$", text)


_LIST = re.compile(
    rf"(?i)(?P<head>\b(?:(?:{_KIND})e?s|{_PLACE}|to)\s+)(?P<names>(?:\S+?(?:,\s*(?:(?:and|or)\s+)?|\s+(?:and|or)\s+))+)$"
)


def _without_list(before: str, names: set[str]) -> str:
    """Return the text before a name without other names of its list."""
    if not (found := _LIST.search(before)):
        return before
    listed = re.findall(r"[^\s,`\"'()]+", re.sub(r"(?i)\b(?:and|or)\b", " ", found["names"]))
    return before[: found.end("head")] if {*listed} <= names else before


def _line_numbers(text: str, n_lines: int) -> list[Part]:
    found = re.search(r"(?i)\blines?\s+(\d+)(?:\s*(?:-|–|to|through|until|and)\s*(\d+))?", text)
    if not found:
        return []
    first, last = int(found[1]), int(found[2] or found[1])
    return [Part("", "lines", first - 1, last)] if 1 <= first <= last <= n_lines else []


def _ordinals(text: str, lines: Sequence[str], parts: Sequence[Part]) -> list[Part]:
    found = re.search(rf"(?i)\b({'|'.join(_ORDINALS)})\s+[`\"'\[]*(\w[\w-]*)", text)
    if not found:
        return []
    n, noun = _ORDINALS[found[1].lower()], found[2].lower()
    if noun == "line":
        at = n % len(lines)
        return [Part("", "lines", at, at + 1)]
    if noun == "paragraph":
        candidates = _paragraphs(lines)
    else:
        named = (one for one in parts if one.name.lower() in {noun, f"{noun}s"})
        candidates = [one for one in named if one.kind != "item"]
        if len(candidates) == 1:  # the items of a list
            candidates = _items(lines, candidates[0])
        if not candidates:
            candidates = [one for one in parts if one.kind in _KINDS.get(noun, ())]
    return [candidates[n]] if -len(candidates) <= n < len(candidates) else []


def _items(lines: Sequence[str], part: Part) -> list[Part]:
    """Return the items of a list in YAML or JSON.

    They begin with a dash or a bracket, at the least indentation.
    """
    inner = [i for i in range(part.start + 1, part.end) if lines[i].strip()]
    if not inner:
        return []
    begun = [lines[i] for i in inner if lines[i].strip() not in {"]", "],", "}", "},"}]
    deep = min(len(line) - len(line.lstrip()) for line in begun)
    heads = [i for i in inner if re.match(rf"\s{{{deep}}}(?:-\s|[\[{{])", lines[i])]
    ends = [*heads[1:], max(inner) + (lines[max(inner)].strip() not in {"]", "],"})]
    return [Part("", "lines", i, end) for i, end in zip(heads, ends, strict=True)] if heads else []


def _paragraphs(lines: Sequence[str]) -> list[Part]:
    found: list[Part] = []
    start = None
    for i, line in enumerate([*lines, ""]):
        if line.strip() and start is None:
            start = i
        elif not line.strip() and start is not None:
            if not lines[start].startswith("#"):
                found.append(Part("", "lines", start, i))
            start = None
    return found


def _quoted_places(text: str, lines: Sequence[str], parts: Sequence[Part]) -> list[Part]:
    """Return the lines of quoted texts, and of numbers, that stand at one place only."""
    words = [next(filter(None, found.groups())) for found in QUOTED.finditer(text)]
    if re.search(r"(?i)\bimports?\b", text) and re.search(
        r"(?i)\b(sort|order|group|clean|unused|merge)", text
    ):
        head = re.compile(r"(import|from|#include|use|using|require)\b")
        imports = [i for i, line in enumerate(lines) if head.match(line)]
        if imports:
            return [Part("", "lines", imports[0], imports[-1] + 1)]
    before = re.split(r"(?i)\b(?:to|by|with|into)\b", text)[0]
    found = []
    for word in words or re.findall(r"(?<![\w.])\d[\d.]+(?![\w.])", before):
        pattern = bounded(word)
        places = [i for i, line in enumerate(lines) if pattern.search(line)]
        if len(places) == 1:
            (i,) = places
            holders = [part for part in parts if part.start <= i < part.end]
            block = min(holders, key=lambda part: part.end - part.start, default=None)
            is_small = block and block.end - block.start < 40
            found.append(block if block and is_small else Part("", "lines", i, i + 1))
    return found


# ---- renames


def _name(group: str) -> str:
    return rf"[`\"'“‘]?(?P<{group}>[.#$@]?[\w$][\w.$-]*[\w$]|[.#$@]?[\w$])(?:\(\))?[`\"'”’]?"


def _a_value(group: str) -> str:
    return (
        rf"(?:`(?P<{group}a>[^`]+)`|\"(?P<{group}b>[^\"]+)\"|'(?P<{group}c>[^']+)'|"
        rf"(?P<{group}d>[^\s,;]*[\w%\]}})]))"
    )


_KIND_OF_NAME = (
    rf"(?:{_KIND}|attribute|argument|column|label|anchor|identifier|component|hook|prop|ref|local|"
    r"sub|subroutine|procedure|macro|module|namespace|package|trait|protocol|record|alias|const)"
)
# a name that no word of a sentence or value is: with an underscore, a mark, or capitals inside
_CODE_NAME = r"(?=[\w$]*(?:_|\$|[a-z0-9][A-Z]))[\w$]+"
_ANY_NAME = r"(?!(?:true|false|null|none|nil|yes|no|on|off)\b)[^\W\d][\w$]*"
_RENAMES = (
    re.compile(
        r"(?i)\brename\s+(?:all\s+|every\s+|each\s+)?(?:(?:the|local|its|instance|global)\s+)*"
        rf"(?:(?P<kind>{_KIND_OF_NAME})\s+)?"
        rf"{_name('old')}(?:\s+{_KIND_OF_NAME})?"
        rf"(?P<place>\s+(?:in|of|inside)\s+[^,;]*?)?\s+(?:to|as|into|->|=>|→)\s+{_name('new')}"
    ),
    re.compile(
        rf"(?i)(?:\bthe\s+)?(?:local\s+)?(?:\b(?P<kind>{_KIND_OF_NAME})\s+)?{_name('old')}\s+"
        rf"(?:should|must|shall|is\s+to)\s+be\s+(?:called|named|renamed\s+to)\s+"
        rf"(?!(?:once|twice|first|last|again|only|always|never|when|with|before|after|on|by|from|at|"
        rf"in|for|if|every|each|as|until|without|while|here|there|a|an|the)\b){_name('new')}"
    ),
    re.compile(
        rf"(?i)\b(?:call|name)\s+(?:the\s+)?(?:(?P<kind>{_KIND_OF_NAME})\s+)?(?!{_KIND_OF_NAME}\b)"
        rf"{_name('old')}\s+(?!with\b|from\b|in\b|on\b|at\b|once\b){_name('new')}\s+instead\b"
        r"(?!\s+of\b)"
    ),
    re.compile(
        rf"(?i)\bgive\s+(?:the\s+)?(?P<kind>{_KIND_OF_NAME})\s+{_name('old')}\s+"
        rf"(?:the\s+(?:new\s+)?name|a\s+new\s+name\s*[:,])\s+{_name('new')}"
    ),
    re.compile(
        rf"(?i)\b(?:change|update)\s+the\s+name\s+of\s+(?:the\s+)?(?:(?P<kind>{_KIND_OF_NAME})\s+)?"
        rf"{_name('old')}\s+(?:from\s+\S+\s+)?to\s+{_name('new')}"
    ),
    re.compile(  # German
        rf"(?i)(?:\b(?P<kind>{_KIND_OF_NAME}|funktion|methode|klasse|variable|spalte|feld)\s+)?"
        rf"{_name('old')}\s+(?:in|zu|nach)\s+{_name('new')}\s+um(?:be)?nennen\b"
    ),
    re.compile(  # German
        rf"(?i)\bbenenne?\b[^,;]*?(?:\b(?P<kind>funktion|methode|klasse|variable|spalte|feld)\s+)"
        rf"{_name('old')}\s+(?:in|zu|nach)\s+{_name('new')}\s+um\b"
    ),
    re.compile(  # German
        rf"(?i)(?:\b(?P<kind>funktion|methode|klasse|variable|spalte|feld)\s+)?{_name('old')}\s+"
        rf"soll(?:te)?\s+(?:jetzt\s+)?{_name('new')}\s+hei(?:ß|ss)en\b"
    ),
    re.compile(  # Chinese
        r"(?:[把将]\s*)?(?:自定义)?(?:(?P<kind>函数|方法|类|变量|参数|字段|列|属性|常量)\s*)?"
        r"[`\"“]?(?P<old>(?:--|[.#$@])?[A-Za-z_][\w$-]*)[`\"”]?\s*"
        r"(?:改名为|重命名为|重命名成|更名为|改名成)\s*"
        r"[`\"“]?(?P<new>(?:--|[.#$@])?[A-Za-z_][\w$-]*)[`\"”]?",
        re.ASCII,
    ),
    re.compile(
        rf"(?i)\A\s*(?:the\s+)?(?:local\s+)?(?:(?P<kind>{_KIND_OF_NAME})\s+)?`?(?P<old>{_ANY_NAME})`?"
        rf"(?P<place>\s+(?:in|of)\s+[\w.()]+)?\s*(?:->|=>|→)\s*`?(?P<new>{_ANY_NAME})`?\s*\.?\s*$"
    ),
    re.compile(
        rf"\A\s*(?P<kind>)(?P<old>{_CODE_NAME})\s+should\s+be\s+(?P<new>{_CODE_NAME})\s*\.?\s*$"
    ),
)
_KINDS_ELSEWHERE = {
    "funktion": "function", "methode": "method", "klasse": "class", "spalte": "column",
    "feld": "field", "函数": "function", "方法": "method", "类": "class", "变量": "variable",
    "参数": "parameter", "字段": "field", "列": "column", "属性": "",
    "常量": "variable", "component": "", "hook": "function",
    "prop": "", "ref": "", "local": "variable", "sub": "function", "subroutine": "function",
    "procedure": "function", "module": "", "namespace": "", "package": "", "trait": "",
    "protocol": "", "record": "", "alias": "", "const": "variable",
}  # fmt: skip


def _renamed_in(text: str) -> re.Match[str] | None:
    """Return where an instruction asks for a rename."""
    return next(filter(None, (one.search(text) for one in _RENAMES)), None)


_KIND_OF_TEXT = (
    r"words?|text|name|string|term|sentences?|phrase|line|message|label|question|title|caption"
)
_REPLACE = re.compile(
    r"(?i)\b(?P<verb>replace|substitute|change|swap)\s+(?:the\s+)?(?:(?:all|every|each)\s+)?"
    r"(?:the\s+)?(?:(?:occurrences?|uses?|mentions?|instances?)\s+of\s+)?(?:the\s+)?"
    rf"(?:(?P<kind>{_KIND_OF_TEXT}|colou?r|value|{_KIND})\s+)?"
    rf"{_a_value('o')}\s+(?P<link>with|by|to|into|for)\s+(?:the\s+)?"
    rf"(?:(?:{_KIND_OF_TEXT}|colou?r|value)\s+)?{_a_value('n')}"
)
_FROM_TO = re.compile(
    rf"(?i)\b(?P<what>[\w-]+)\s+(?P<place>(?:{_PLACE}|of)\s+[^,;]*?\s+)?"
    rf"from\s+{_a_value('o')}\s+to\s+{_a_value('n')}"
)
_INSTEAD = re.compile(
    rf"(?i)\b(?:write|use|say|put|take)\s+(?:the\s+)?(?P<what>[\w-]+\s+)??{_a_value('n')}\s+"
    rf"(?:everywhere\s+)?instead\s+of\s+(?:the\s+)?{_a_value('o')}"
    r"(?=\s+(?:in|everywhere)\b|[,;.]|\s*$)"
)


def beside_rename(text: str) -> str:
    """Return what an instruction says beside a rename: its place, its limits, other wishes."""
    found = _renamed_in(text)
    if not found:
        return text
    place = found.groupdict().get("place") or ""
    return f"{text[: found.start()]} {place} {text[found.end() :]}"


def _value(found: re.Match[str], which: str) -> str:
    groups = (found[f"{which}{one}"] for one in "abcd")
    return next((group for group in groups if group is not None), "")


def read_rename(text: str, lines: Sequence[str], parts: Sequence[Part]) -> Rename | None:
    """Return the rename or the exact replacement that is asked for; None for another change."""
    if found := _renamed_in(text):
        old, new = found["old"].rstrip("."), found["new"].rstrip(".")
        if _occurs(old.rpartition(".")[2], lines) and not re.search(
            r"(?i)\b(and|also|then)\b.*\b(add|remove|change|update|make)\b", text[found.end() :]
        ):
            kind = (found["kind"] or "").lower()
            return Rename(old, new, True, _KINDS_ELSEWHERE.get(kind, kind))
    if found := _FROM_TO.search(text):
        old, new = _value(found, "o"), _value(found, "n").rstrip(".")
        what = found["what"].lower()
        if _occurs(old, lines) and _is_plain(old) and _is_plain(new):
            return Rename(old, new, False, "", what)
    if found := _INSTEAD.search(text):
        old, new = _value(found, "o").rstrip("."), _value(found, "n")
        if _occurs(old, lines) and _is_plain(old) and _is_plain(new):
            return Rename(old, new, False, "", (found["what"] or "").strip().lower())
    if found := _REPLACE.search(text):
        is_quoted = found["nd"] is None
        old, new = _value(found, "o"), _value(found, "n")
        new = new if is_quoted else new.rstrip(".")
        links = {"to", "into", "for"}
        is_change = found["verb"].lower() == "change" or found["link"].lower() in links
        kind = (found["kind"] or "").lower()
        is_text = re.fullmatch(_KIND_OF_TEXT, kind) is not None
        is_marked = is_text or found["od"] is None or bool(re.search(r"[\d#%@$/]", old))
        keys = (part.name for part in parts if part.kind in {"key", "variable", "section"})
        is_certain = not is_change or (is_marked and old not in keys)
        is_value = is_quoted or is_change or _is_plain(old)
        behind = text[found.end() :]
        is_whole = not re.match(r"\s+\w", behind) or is_quoted
        is_whole |= bool(re.match(rf"(?i)\s+(?:{_PLACE}|only|everywhere|throughout|to)\b", behind))
        is_new = is_quoted or _is_plain(new)
        if is_certain and is_value and is_whole and is_new and _occurs(old, lines):
            return Rename(old, new, False, kind)
    return None


_FILLERS = {"a", "an", "the", "it", "its", "this", "that", "be", "use", "something", "one"}


def _is_plain(text: str) -> bool:
    """Return whether a word of an instruction is a value rather than a description."""
    if re.search(r"[\d_./:#@%=$\"'<>()\[\]{}-]|[a-z][A-Z]", text):
        return True
    is_word = re.fullmatch(r"\w+", text) is not None
    return is_word and text.lower() not in _FILLERS


def _occurs(word: str, lines: Sequence[str]) -> bool:
    pattern = bounded(word)
    return bool(word) and any(pattern.search(line) for line in lines)


def bounded(word: str) -> re.Pattern[str]:
    """Return a pattern for a word or a text that no longer word contains."""
    left = r"(?<![\w])" if re.match(r"\w", word) else ""
    right = r"(?![\w])" if re.search(r"\w$", word) else ""
    if re.fullmatch(r"[\d.]+", word):
        left, right = r"(?<![\w.])", r"(?![\w]|\.\d)"
    return re.compile(left + re.escape(word) + right)


def _behind(text: str, rename: Rename) -> str:
    """Return an instruction without the names of its rename."""
    for word in (rename.old, rename.new):
        pattern = re.compile(rf"[`\"'“‘]?{re.escape(word)}(?:\(\))?[`\"'”’]?(?!\w)")
        text = pattern.sub(" ", text, count=1)
    return text
