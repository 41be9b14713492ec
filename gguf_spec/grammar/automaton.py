"""GBNF, llama.cpp's notation for grammars: its parser, and the byte-level automaton of a grammar.

A grammar is not trusted: it may be part of a request.

A state is the set of stacks that a text can lead to, and it is immutable: lookahead and rollback
are free. The work for a position is counted, that of cached rows too: whether a grammar is refused
must not depend on what was computed before, such as masks of drafts. llama.cpp's own grammars are
not used. Small grammars like `root ::= "a" root "b" | "a" root "c" | "x"` take all memory there,
others abort the process, and a caller cannot count the work.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import GgufSpecError, GrammarTooLargeError, InvalidGrammarError, InvalidOptionError

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
# stack entries between two calls of `Automaton.rest`; about 1 ms
_UNTIL_REST = 1000

# Entries: node + number of repetitions so far * number of nodes. The top is last.
Stack = tuple[int, ...]
# stacks, and the bytes of an incomplete character
State = tuple[frozenset[Stack], bytes]


# smallest code point by number of UTF-8 bytes
_LEAST = (0, 0, 0x80, 0x800, 0x10000)
# sets of bytes as bit masks: the first byte of a character, and the later ones
_FIRST, _LATER = (1 << 0x80) - 1 | (1 << 0xF5) - (1 << 0xC2), (1 << 0xC0) - (1 << 0x80)


# In place of the bytes of an incomplete character, one for each byte that is missing: all of its
# ends are allowed.
_ANY = b"\xff"


# ---- the notation


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
    """Count units of work; raise GrammarTooLargeError where `limited_work` allows no more."""
    left = _left.get(None)
    if left is not None:
        _left.set(left - n)
        if left < n:
            raise GrammarTooLargeError


def refused(gbnf: str, why: str) -> InvalidGrammarError:
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
    others, at = [], 0
    for low, high in sorted(r for r in ranges if r[0] <= r[1] and r[0] <= sys.maxunicode):
        if low > at:
            others.append((at, low - 1))
        at = max(at, high + 1)
    return (*others, (at, sys.maxunicode)) if at <= sys.maxunicode else tuple(others)


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def repeated(least: int | None, most: int | None) -> str:
    """Return GBNF's repetition suffix; None means no limit.

    Raises:
        ValueError: `most` is less than `least`.
    """
    if most is not None and most < (least or 0):
        raise ValueError(f"at least {least} and at most {most} is impossible")
    return f"{{{least or 0},{'' if most is None else most}}}"


def _characters(body: str) -> Ranges:
    negated = body.startswith("^")
    letters, ranges, i = list(_letters(body[negated:])), [], 0
    while i < len(letters):
        last = i + 2 if i + 2 < len(letters) and letters[i + 1] == (ord("-"), True) else i
        ranges.append((letters[i][0], letters[last][0]))
        i = last + 1
    return others_than((*(ranges if negated else others_than(ranges)), *NEVER))


class Rules:
    """A parsed grammar.

    Attributes:
        nodes: Symbols, each with the index of the next node (0 for none).
        rules: The first nodes of the alternatives of each rule.
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
        """Replace names by rules; reject left recursion, which would loop without a character."""
        for i, (symbol, after) in enumerate(self.nodes):
            if symbol[0] == NAME:
                if symbol[1] not in self._named:
                    raise ValueError(f"the rule {symbol[1]} is not defined")
                self.nodes[i] = (RULE, self._named[symbol[1]]), after
        if "root" not in self._named:
            raise ValueError("it has no rule root")
        self.root: int = self._named["root"]
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
        # rule -> alternatives that contain it: number of unresolved rules, and their own rule
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


# ---- the automaton


def _size(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _span(begun: bytes) -> tuple[int, int]:
    """Return the first and the last code point whose UTF-8 form starts with these bytes."""
    if not begun:
        return 0, sys.maxunicode
    size = _size(begun[0])
    value = begun[0] & (0x7F >> size)
    for byte in begun[1:]:
        value = value << 6 | byte & 0x3F
    rest = 6 * (size - len(begun))
    return max(value << rest, _LEAST[size]), min((value + 1 << rest) - 1, sys.maxunicode)


def _next_bytes(ranges: Ranges, begun: bytes) -> int:
    """Return the bytes that may follow `begun` in a character of these ranges, as a bit mask.

    UTF-8 keeps the order of code points.
    """
    if begun[:1] == _ANY:
        return _LATER
    first, last = _span(begun)
    found = 0
    for low, high in ranges:
        if low <= last and high >= first:
            a, b = (chr(c).encode()[len(begun)] for c in (max(low, first), min(high, last)))
            found |= (2 << b) - (1 << a)
    return found & (_LATER if begun else _FIRST)


# The same grammar is parsed for a check of a schema, and for each choice of a request.
_parsed = lru_cache(maxsize=2)(Rules)


class Known:
    """Numbered states of a grammar, and what was computed for them.

    Requests with the same grammar share it; for those in several threads it needs a lock. Nothing
    is ever removed from it: one that is full is replaced.

    Attributes:
        states: The states by number.
        rows: By number of a state, the next states by byte, and the work for them.
        addresses: Addresses of the rows; 0 for a row that is not known.
        masks: By number of a state, its mask (`token_grammar.Grammar.mask`).
        alike: By what `Automaton.without_counts` returns, states that others are compared with:
            (-repetitions left, number of the state, counts), those with most left first.
        refused: Work for masks that were too costly.
        cached: Stack entries in it.
    """

    def __init__(
        self, lock: AbstractContextManager[object] | None = None, most: int = 500_000
    ) -> None:
        """Create an empty one, which is full with more than `most` stack entries."""
        self.states: list[State] = []
        self.rows: dict[int, tuple[array[int], int]] = {}
        self.addresses: NDArray[np.int64] = np.zeros(256, dtype=np.int64)
        self.masks: dict[int, bytes | None] = {}
        self.alike: dict[Hashable, tuple[tuple[int, int, tuple[int, ...]], ...]] = {}
        self.refused: int = 0
        self.cached: int = 0
        self.most: int = most
        self._numbers: dict[State, int] = {}
        self._lock = lock or nullcontext()
        self._next: Known | None = None

    @property
    def is_full(self) -> bool:
        return self.cached > self.most

    def next(self) -> Known:
        """Return the one that replaces it."""
        with self._lock:
            self._next = self._next or Known(self._lock, self.most)
            return self._next

    def number(self, state: State) -> int:
        at = self._numbers.get(state)
        if at is not None:
            return at
        with self._lock:
            at = self._numbers.get(state)
            if at is None:
                at = len(self.states)
                if at == len(self.addresses):
                    self.addresses = np.concatenate((self.addresses, np.zeros_like(self.addresses)))
                self.cached += 4
                self.states.append(state)
                self._numbers[state] = at  # last: Ctrl-C before it leaves a number without a use
            return at

    def add_row(self, at: int, row: array[int], work: int) -> array[int]:
        """Keep the row of a state; return the one that is kept."""
        with self._lock:
            row, _ = self.rows.setdefault(at, (row, work))
            self.addresses[at] = row.buffer_info()[0]
        return row


class Automaton:
    """The automaton of a grammar for one request, with transitions by byte, computed on demand.

    Attributes:
        start: State at the start of a text.
        known: Numbered states and their rows.
        work: Stack entries for what was used since the last call of `reset_budget`.
        most_work: Most of them; about a second.
        rest: Called again and again during long work.
    """

    work: int
    most_work: int = 1_000_000

    def __init__(
        self, gbnf: str, read_token: Callable[[str], int], known: Known | None = None
    ) -> None:
        self._gbnf, self._rules = gbnf, _parsed(gbnf)
        self._ids = {word: self._id(word, read_token) for word in self._rules.tokens}
        self._next_bytes: dict[tuple[int, bytes], int] = {}
        self._known_groups: dict[tuple[int, frozenset[int], bytes], list[tuple[bytes, bytes]]] = {}
        self.work, self._rest_at = 0, _UNTIL_REST
        self.rest: Callable[[], object] = lambda: None
        self.known: Known = known or Known()
        # rows whose work is counted
        self._rows: dict[int, array[int]] = {}
        self.start: State = self._expand([()], self._rules.rules[self._rules.root]), b""
        spend(self.work)

    def _id(self, word: str, read_token: Callable[[str], int]) -> int:
        try:
            return read_token(word)
        except InvalidOptionError:
            raise
        except (ValueError, GgufSpecError) as error:
            place = line(self._gbnf, self._rules.tokens[word])
            raise refused(self._gbnf, f"{place}: {error}") from error

    @property
    def states(self) -> list[State]:
        return self.known.states

    def reset_budget(self) -> None:
        """Start a new position: reset the work counter; take empty memory if it is full."""
        self._rest_at -= self.work
        self.work = 0
        while self.known.is_full:
            self.known = self.known.next()
        self._rows.clear()

    def number(self, state: State) -> int:
        return self.known.number(state)

    def _expand(self, bases: list[Stack], firsts: Sequence[int]) -> frozenset[Stack]:
        """Push each of `firsts` on each of `bases` and expand rules.

        The expansion ends when a character or a token is on top, or the stack is empty.
        """
        nodes, rules, n = self._rules.nodes, self._rules.rules, len(self._rules.nodes)
        todo = [(*base, first) if first else base for base in bases for first in firsts]
        seen, found = set(todo), []
        while todo:
            stack = todo.pop()
            self.work += 1 + len(stack)
            if self.work > self._rest_at:
                self._check_work()
            times, node = divmod(stack[-1], n) if stack else (0, 0)
            symbol, after = nodes[node]
            if symbol[0] in (END, CHARS, TOKEN):
                found.append(stack)
                continue
            done = (*stack[:-1], after) if after else stack[:-1]
            ways, base = [], done
            if symbol[0] == REPEAT:
                least, most = symbol[2:]
                ways = [done] if times >= least else []
                if most != 0 and times + 1 != most:  # no count is needed after the last repetition
                    base = (*stack[:-1], node + n * min(times + 1, least if most is None else most))
            if symbol[0] == RULE or symbol[3] != 0:
                ways += [(*base, first) if first else base for first in rules[symbol[1]]]
            for way in ways:
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        self.known.cached += sum(map(len, found)) + len(found)
        self._check_work()
        return frozenset(found)

    def _check_work(self) -> None:
        """Rest from time to time; refuse the grammar if the work is too much."""
        if self.work > self.most_work:
            raise refused(
                self._gbnf, "too many ways to read the same text, or too many nested rules"
            )
        if self.work > self._rest_at:
            self._rest_at = self.work + _UNTIL_REST
            self.rest()

    def _after(self, stacks: Iterable[Stack]) -> frozenset[Stack]:
        """Return the stacks after the top symbol of each of these stacks is consumed."""
        nodes, n = self._rules.nodes, len(self._rules.nodes)
        afters = ((stack[:-1], nodes[stack[-1] % n][1]) for stack in stacks)
        return self._expand([(*base, after) if after else base for base, after in afters], (0,))

    def row(self, at: int) -> array[int]:
        """Return the next state by byte; -1 for a byte that is not allowed."""
        row = self._rows.get(at)
        if row is None:
            known, before = self.known.rows.get(at), self.work
            if known:
                row = self.known.add_row(at, *known)  # Ctrl-C may have left it without its address
                self.work += known[1]
                self._rest_at += known[1]  # it takes no time
                self._check_work()
            else:
                row = self._row(at)
                self._check_work()
                row = self.known.add_row(at, row, self.work - before)
            self._rows[at] = row
        return row

    def _row(self, at: int) -> array[int]:
        row = array("i", [-1]) * 256
        self.work += 50
        self.known.cached += 128
        stacks, begun = self.states[at]
        for bytes_, members in self._parts(stacks, begun):
            whole = half = None
            for some, after in self._groups(bytes_, members, begun):
                self.work += 2
                if not after:
                    whole = self.number((self._after(members), b"")) if whole is None else whole
                    next_ = whole
                else:
                    half = frozenset(members) if half is None else half
                    next_ = self.number((half, after))
                for byte in some:
                    row[byte] = next_
        return row

    def _groups(
        self, bytes_: int, members: Iterable[Stack], begun: bytes
    ) -> list[tuple[bytes, bytes]]:
        """Return the bytes of a bit mask in groups, each with the bytes of a character behind it.

        Where a stack allows each end of a character, only the number of its bytes counts.
        """
        n = len(self._rules.nodes)
        nodes = frozenset(stack[-1] % n for stack in members)
        found = self._known_groups.get((bytes_, nodes, begun))
        if found is None:
            groups: dict[bytes, list[int]] = defaultdict(list)
            for byte in range(bytes_.bit_length()):
                if bytes_ >> byte & 1:
                    groups[self._begun(nodes, begun, byte)].append(byte)
            found = [(bytes(some), after) for after, some in groups.items()]
            self._known_groups[bytes_, nodes, begun] = found
        return found

    def _begun(self, nodes: Iterable[int], begun: bytes, byte: int) -> bytes:
        """Return the state of a character after one more byte; empty if it is complete."""
        if begun[:1] == _ANY:
            return begun[1:]
        after = begun + bytes([byte])
        n_more = _size(after[0]) - len(after)
        first, last = _span(after)
        if last - first + 1 < 64**n_more:  # some ends are no characters
            return after
        for node in nodes if n_more else ():
            if not any(
                low <= first and last <= high for low, high in self._rules.nodes[node][0][1]
            ):
                return after
        return _ANY * n_more

    def _parts(self, stacks: Iterable[Stack], begun: bytes) -> list[tuple[int, list[Stack]]]:
        """Return disjoint sets of bytes (bit masks), each with the stacks that accept them."""
        groups: dict[int, list[Stack]] = defaultdict(list)
        nodes, n = self._rules.nodes, len(self._rules.nodes)
        for stack in stacks:
            if stack and nodes[stack[-1] % n][0][0] == CHARS:
                groups[stack[-1] % n].append(stack)
        by_bytes: dict[int, list[Stack]] = defaultdict(list)
        for node, members in groups.items():
            bytes_ = self._next_bytes.get((node, begun))
            if bytes_ is None:
                bytes_ = self._next_bytes[node, begun] = _next_bytes(nodes[node][0][1], begun)
            by_bytes[bytes_] += members
        parts: list[tuple[int, list[Stack]]] = [((1 << 256) - 1, [])]
        for bytes_, members in by_bytes.items():
            if len(parts) > 64:
                self.rest()
            parts = [
                part
                for there, led in parts
                for part in ((there & bytes_, led + members), (there & ~bytes_, led))
                if part[0]
            ]
        return [part for part in parts if part[1]]

    def without_counts(self, at: int) -> tuple[Hashable, tuple[int, ...], tuple[int, ...]] | None:
        """Return a state without numbers of repetitions, its nodes in an order, and the numbers.

        None if it has none, or if two of its stacks differ by them alone.
        """
        (stacks, begun), n = self.states[at], len(self._rules.nodes)
        if all(entry < n for stack in stacks for entry in stack):
            return None
        ordered = sorted([([entry % n for entry in stack], stack) for stack in stacks])
        names = tuple([tuple(name) for name, _ in ordered])
        if len(set(names)) < len(names):
            return None
        nodes = tuple([node for name in names for node in name])
        return (names, begun), nodes, tuple([entry // n for _, stack in ordered for entry in stack])

    def n_alike(self, nodes: Sequence[int], counts: Sequence[int], others: Sequence[int]) -> int:
        """Return up to how many bytes two states that differ by their counts accept the same.

        A repetition takes a byte at least, or is free: the states differ when one of them may not
        begin one more repetition, or not end yet.
        """
        found = sys.maxsize
        for node, one, other in zip(nodes, counts, others, strict=True):
            if one != other:
                least, most = self._rules.nodes[node][0][2:]
                later = max(one, other)
                if most is not None:
                    found = min(found, most - later)
                if min(one, other) < least:
                    found = min(found, max(0, least - later))
        return found

    def n_left(self, nodes: Sequence[int], counts: Sequence[int]) -> int:
        """Return how many limited repetitions a state may still begin."""
        symbols = [self._rules.nodes[node][0] for node in nodes]
        pairs = zip(symbols, counts, strict=True)
        return sum([(symbol[3] or 0) - n for symbol, n in pairs if symbol[0] == REPEAT])

    def read(self, at: int, data: bytes) -> int:
        """Return the state after some bytes; -1 if they are not allowed."""
        for byte in data:
            at = (self._rows.get(at) or self.row(at))[byte]
            if at < 0:
                break
        return at

    def read_many(
        self, at: int, flat: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which of many byte sequences are allowed, shape `(n,)`.

        Args:
            flat: All bytes, one sequence after the other.
            begins: Start of each sequence in `flat`, shape `(n,)`.
            ends: End of each sequence in `flat`, shape `(n,)`.
        """
        ats, begins = np.full(len(begins), at), begins.copy()
        live = np.flatnonzero(begins < ends)
        while live.size:
            here = np.flatnonzero(np.bincount(ats[live]))
            rows = np.stack([np.frombuffer(self.row(one), dtype=np.int32) for one in here.tolist()])
            ats[live] = rows[np.searchsorted(here, ats[live]), flat[begins[live]]]
            begins[live] += 1
            live = live[(ats[live] >= 0) & (begins[live] < ends[live])]
        return ats >= 0

    def tokens(self, state: State) -> Iterator[tuple[Stack, int, bool]]:
        """Yield the stacks with a token symbol on top, its token id, and whether it is wanted.

        A symbol that is not wanted accepts all other tokens.
        """
        nodes, n = self._rules.nodes, len(self._rules.nodes)
        for stack in state[0] if not state[1] else ():
            symbol = nodes[stack[-1] % n][0] if stack else (END,)
            if symbol[0] == TOKEN:
                yield stack, self._ids[symbol[1]], symbol[2]

    def after_token(self, state: State, token: int, data: bytes) -> State | None:
        """Return the state after a token; None if it is not allowed."""
        at = self.read(self.number(state), data) if data else -1
        led = [stack for stack, id_, wanted in self.tokens(state) if (id_ == token) == wanted]
        if not led:
            return self.states[at] if at >= 0 else None
        stacks, begun = self.states[at] if at >= 0 else (frozenset(), b"")
        return (self._after(led) | stacks, begun) if not begun else (stacks, begun)
