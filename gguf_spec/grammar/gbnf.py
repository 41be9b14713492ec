"""Parser of GBNF, llama.cpp's notation for grammars.

A grammar is not trusted: it may be part of a request.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from graphlib import CycleError, TopologicalSorter
from typing import Any

from ..errors import GrammarTooLargeError, InvalidGrammarError, InvalidOptionError

# units of work for one conversion, each of at most about a microsecond
MOST_WORK = 600_000

_left: ContextVar[int] = ContextVar("gguf_spec_work_left")
# bytes of a grammar or schema, and nesting depth of its parentheses
MAX_BYTES, MAX_DEPTH = 1 << 18, 100
# ranges of code points, sorted and disjoint
Ranges = tuple[tuple[int, int], ...]
# (CHARS, ranges) (TOKEN, its text, wanted) (RULE, rule) (REPEAT, rule, least, most)
# (TEXT, code points) (NAME, name)
Symbol = tuple[Any, ...]
# kinds of symbols
END, CHARS, TOKEN, RULE, REPEAT, TEXT, NAME = range(7)
# tokens of the notation
_WORDS = re.compile(
    r"""(?P<define>[a-zA-Z0-9-]+[ \t]*::=)
    | (?P<name>[a-zA-Z0-9-]+)
    | (?P<text>"(?:[^"\\]|\\.)*")
    | (?P<chars>\[(?:[^\]\\]|\\.)*\])
    | (?P<token>!?<[^>\r\n]*>)
    | (?P<repeat>[*+?]|\{\s*\d{1,9}\s*(?:,\s*(?:\d{1,9}\s*)?)?\})
    | (?P<open>\()
    | (?P<close>\))
    | (?P<or>\|)
    | (?P<any>\.)
    | (?P<newline>[\r\n])
    | (?P<space>[ \t]+|\#[^\r\n]*)""",
    re.VERBOSE | re.DOTALL,
)
# a character of a literal: plain, by code point, or by escape letter
_LETTER = re.compile(
    r'([^\\])|\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([tnr"\\\[\]-]))',
    re.DOTALL,
)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r"}
# code points that no text contains
NEVER = ((0, 0), (0xD800, 0xDFFF))


@contextmanager
def limited_work() -> Iterator[None]:
    """Limit the work in the block; a block inside of another one is a part of its work."""
    if _left.get(None) is not None:
        yield
        return
    token = _left.set(MOST_WORK)
    try:
        yield
    finally:
        _left.reset(token)


def spend(n: int) -> None:
    """Count units of work; outside of `limited_work` they are not limited.

    Args:
        n: Number of units.

    Raises:
        GrammarTooLargeError: The limit is exceeded.
    """
    left = _left.get(None)
    if left is not None:
        _left.set(left - n)
        if left < n:
            raise GrammarTooLargeError


def refused(gbnf: str, why: str) -> InvalidGrammarError:
    """Return the error for a grammar that cannot be used."""
    return InvalidGrammarError("grammar", gbnf if len(gbnf) < 80 else gbnf[:77] + "...", why)


def line(gbnf: str, at: int) -> str:
    """Return the line of a position in words."""
    return f"line {gbnf.count(chr(10), 0, at) + 1}"


def _letters(text: str) -> Iterator[tuple[int, bool]]:
    """Yield the code points of a literal, and whether each is written without an escape."""
    at = 0
    while at < len(text):
        letter = _LETTER.match(text, at)
        if not letter:
            raise ValueError(f"{text[at : at + 2]} is not an escape sequence")
        plain, *codes, named = letter.groups()
        code = next((c for c in codes if c), None)
        yield int(code, 16) if code else ord(plain or _ESCAPES.get(named, named)), plain is not None
        at = letter.end()


def others_than(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return the complement of the ranges."""
    others, at = [], 0
    for low, high in sorted(r for r in ranges if r[0] <= r[1] and r[0] <= sys.maxunicode):
        if low > at:
            others.append((at, low - 1))
        at = max(at, high + 1)
    return (*others, (at, sys.maxunicode)) if at <= sys.maxunicode else tuple(others)


def _characters(body: str) -> Ranges:
    """Return the code points of a character class, from the text between its brackets."""
    negated = body.startswith("^")
    letters, ranges, i = list(_letters(body[negated:])), [], 0
    while i < len(letters):
        last = i + 2 if i + 2 < len(letters) and letters[i + 1] == (ord("-"), True) else i
        ranges.append((letters[i][0], letters[last][0]))
        i = last + 1
    return (
        others_than((*ranges, *NEVER)) if negated else others_than((*others_than(ranges), *NEVER))
    )


class Rules:
    """A parsed grammar.

    Attributes:
        nodes: Symbols, each with the index of the next node (0 for none).
        rules: The first nodes of the alternatives of each rule.
        root: Index of the rule `root`.
        tokens: Texts of the tokens that it names, each with its first position.
    """

    def __init__(self, gbnf: str) -> None:
        self.nodes: list[tuple[Symbol, int]] = [((END,), 0)]
        self.rules: list[tuple[int, ...]] = []
        self.tokens: dict[str, int] = {}
        self._named: dict[str, int] = {}
        self._chars: dict[int, Symbol] = {}  # code point -> the symbol of this character
        self._name = ""  # of the current rule
        # alternatives of the current rule and of each open parenthesis
        self._frames: list[list[list[Symbol]]] = []
        # whether a line break does not end the rule
        self._free = False
        self._at = 0  # position in the text
        try:
            if len(gbnf.encode()) > MAX_BYTES:
                raise refused(gbnf, f"it has more than {MAX_BYTES >> 10} KiB")
            spend(len(gbnf))
            for kind, word in self._words(gbnf):
                self._take(kind, word)
            self._take("newline", "")
        except UnicodeEncodeError as error:
            raise refused(gbnf, "it contains an unpaired surrogate") from error
        except InvalidOptionError:
            raise
        except ValueError as error:
            raise refused(gbnf, f"{line(gbnf, self._at)}: {error}") from error
        if self._frames:
            raise refused(gbnf, "a parenthesis is not closed, or the last rule is empty")
        try:
            self._resolve()
        except ValueError as error:
            raise refused(gbnf, str(error)) from error

    def _words(self, gbnf: str) -> Iterator[tuple[str, str]]:
        while self._at < len(gbnf):
            word = _WORDS.match(gbnf, self._at)
            if not word or word.lastgroup is None or "\0" in word[0]:
                raise ValueError(f"cannot read {gbnf[self._at : self._at + 20]!r}")
            if word.lastgroup == "token":
                self.tokens.setdefault(word[0].lstrip("!"), self._at)
            if word.lastgroup != "space":
                yield word.lastgroup, word[0]
            self._at = word.end()

    def _take(self, kind: str, word: str) -> None:
        frames = self._frames
        if kind == "newline":
            if len(frames) == 1 and (not self._free or not word):
                self._named[self._name] = self._rule(frames.pop())
            return
        if (kind == "define") == bool(frames):
            raise ValueError(f"{word} is not allowed at this place")
        self._free = kind in ("define", "or")
        if kind == "define":
            self._name, self._frames = word[:-3].rstrip(" \t"), [[[]]]
        elif kind == "or":
            frames[-1].append([])
        elif kind == "open":
            if len(frames) > MAX_DEPTH:
                raise ValueError(f"more than {MAX_DEPTH} parentheses are open")
            frames.append([[]])
        elif kind == "close":
            if len(frames) == 1:
                raise ValueError("a closing parenthesis has no opening one")
            group = self._rule(frames.pop())
            frames[-1][-1].append((RULE, group))
        elif kind == "repeat":
            self._repeat(frames[-1][-1], word)
        else:
            frames[-1][-1].append(self._symbol(kind, word))

    def _symbol(self, kind: str, word: str) -> Symbol:
        if kind == "name":
            return NAME, word
        if kind == "text":
            text = word[1:-1]
            return TEXT, [code for code, _ in _letters(text)] if "\\" in text else [*map(ord, text)]
        if kind == "token":
            return TOKEN, word.lstrip("!"), word[0] == "<"
        return CHARS, others_than(NEVER) if kind == "any" else _characters(word[1:-1])

    def _repeat(self, sequence: list[Symbol], word: str) -> None:
        if not sequence:
            raise ValueError(f"{word} has nothing to repeat")
        bounds = {"*": ["0", ""], "+": ["1", ""], "?": ["0", "1"]}.get(word) or word[1:-1].split(
            ","
        )
        least = int(bounds[0])
        most = int(bounds[-1]) if bounds[-1].strip() else None
        if most is not None and most < least:
            raise ValueError(f"the bounds of {word} are in the wrong order")
        sequence[-1] = (REPEAT, self._rule([sequence[-1:]]), least, most)

    def _rule(self, alternatives: list[list[Symbol]]) -> int:
        self.rules.append(tuple(map(self._link, alternatives)))
        return len(self.rules) - 1

    def _link(self, sequence: list[Symbol]) -> int:
        after = 0
        for symbol in reversed(sequence):
            parts = [symbol]
            if symbol[0] == TEXT:
                for code in symbol[1]:
                    self._chars.setdefault(code, (CHARS, ((code, code),)))
                parts = [self._chars[code] for code in reversed(symbol[1])]
            for part in parts:
                self.nodes.append((part, after))
                after = len(self.nodes) - 1
        return after

    def _resolve(self) -> None:
        """Replace names by rules and reject left recursion.

        Left recursion would loop forever without consuming a character.
        """
        for i, (symbol, after) in enumerate(self.nodes):
            if symbol[0] == NAME:
                if symbol[1] not in self._named:
                    raise ValueError(f"the rule {symbol[1]} is not defined")
                self.nodes[i] = (RULE, self._named[symbol[1]]), after
        if "root" not in self._named:
            raise ValueError("it has no rule root")
        self.root = self._named["root"]
        empty = self._empty()
        leftmost = {rule: self._leftmost(rule, empty) for rule in range(len(self.rules))}
        try:
            TopologicalSorter(leftmost).prepare()
        except CycleError as error:
            cycle = set(error.args[1])
            name = next((n for n, rule in self._named.items() if rule in cycle), "a rule")
            raise ValueError(f"{name} can begin with itself (left recursion)") from None

    def _along(self, node: int) -> Iterator[Symbol]:
        while node:
            symbol, node = self.nodes[node]
            yield symbol

    def _leftmost(self, rule: int, empty: set[int]) -> Iterator[int]:
        """Yield the rules that can be the first symbol of a rule."""
        for first in self.rules[rule]:
            for symbol in self._along(first):
                if symbol[0] in (CHARS, TOKEN):
                    break
                yield symbol[1]
                if not (symbol[1] in empty or (symbol[0] == REPEAT and symbol[2] == 0)):
                    break

    def _empty(self) -> set[int]:
        """Return the rules that match the empty text."""
        # rule -> alternatives that contain it: number of unresolved rules, and the rule of the
        # alternative
        waiting: dict[int, list[list[int]]] = defaultdict(list)
        empty: set[int] = set()
        found: list[int] = []
        for rule, firsts in enumerate(self.rules):
            for first in firsts:
                symbols = list(self._along(first))
                if any(s[0] in (CHARS, TOKEN) for s in symbols):
                    continue
                needs = [s[1] for s in symbols if s[0] == RULE or s[2] > 0]
                entry = [len(needs), rule]
                for need in needs:
                    waiting[need].append(entry)
                if not needs:
                    found.append(rule)
        while found:
            rule = found.pop()
            for entry in waiting[rule] if rule not in empty else ():
                entry[0] -= 1
                if not entry[0]:
                    found.append(entry[1])
            empty.add(rule)
        return empty
