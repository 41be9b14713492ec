"""Regular expressions of ECMA 262: as GBNF, and as automata that can be combined.

A pattern is not trusted: it may be part of a request. It is never matched by Python's own engine,
which may take exponential time.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

from .automaton import NEVER, Ranges, others_than, quoted, repeated, spend

# Tokens of a pattern. `python`: unknown in ECMA 262 or with another meaning. `brace`: a literal.
# `name`: the start of a named group.
_WORDS = re.compile(
    r"""(?P<python>\\(?:[AZaNU]|0\d)|\(\?[P#]|\[\^?\])
    | (?P<brace>\{,)
    | (?P<name>\(\?<[A-Za-z_$][\w$]*>)
    | \\.
    | \[(?:[^\]\\]|\\.)*\]?
    | .""",
    re.VERBOSE | re.DOTALL,
)
# code points that "." does not match
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
# code points of the character classes; white space is that of ECMA 262, which differs from Python's
_CLASSES: dict[str, Ranges] = {
    "CATEGORY_DIGIT": ((48, 57),),
    "CATEGORY_WORD": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "CATEGORY_SPACE": (
        (9, 13), (32, 32), (160, 160), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
        (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
    ),
}  # fmt: skip
# operation of a parsed pattern -> its name
_NAMES = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a condition on a group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repetition",
    "ASSERT": "a lookahead inside of a repetition",
    "ASSERT_NOT": "a lookahead inside of a repetition",
    "AT_BEGINNING": "^ inside of a repetition",
    "AT_END": "$ inside of a repetition",
    "AT_BOUNDARY": r"a word boundary (\b)",
    "AT_NON_BOUNDARY": r"a word boundary (\B)",
    "SUBPATTERN": "flags",
}
_ZERO_WIDTH = {"AT", "ASSERT", "ASSERT_NOT"}
# most states of an automaton
_MAX_STATES = 2000
_ALL: Ranges = others_than(NEVER)

# (operation, argument) of a parsed pattern
Part = tuple[str, Any]


class PatternError(ValueError):
    """A pattern cannot be used; the message says what is not supported."""


def _parsed(pattern: str) -> list[Part]:
    """Return the parts of a pattern.

    Raises:
        PatternError: It is invalid, or Python would interpret it in another way.
    """
    spend(2 * len(pattern) + len(pattern) ** 2 // 20_000)  # equal branches take quadratic time

    shorter: list[tuple[int, int]] = []  # places, and by how many characters Python's text is

    def word(match: re.Match[str]) -> str:
        escapes = re.findall(r"\\0\d|\\.", match[0]) if match[0][0] == "[" else []
        if match["python"] or any(re.fullmatch(r"\\([AZaNU]|0\d)", escape) for escape in escapes):
            fact = f"{match[0]:.20} at position {match.start()} has no or another meaning"
            raise PatternError(f"{fact} in ECMA 262")
        found = r"\{," if match["brace"] else "(" if match["name"] else match[0]
        if found != match[0]:
            shorter.append((match.start(), len(match[0]) - len(found)))
        return found

    parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # warnings about future changes of Python's syntax are not for the user
        try:
            parsed = parser.parse(_WORDS.sub(word, pattern))
        except (re.error, OverflowError) as error:
            at, what = getattr(error, "pos", None), str(getattr(error, "msg", error))[:80]
            where = "" if at is None else _place(pattern, at, shorter)
            raise PatternError(f"it is invalid{where}: {what}") from None
    if parsed.state.flags & ~re.UNICODE:
        raise PatternError("flags are not supported")
    return _plain(parsed)


def _place(pattern: str, at: int, shorter: Iterable[tuple[int, int]]) -> str:
    """Return in words where a pattern is wrong; `at` is the place in Python's text of it."""
    for place, n in shorter:
        at += n if at > place else 0
    # The pattern itself is shown up to about this place.
    text = f", {json.dumps(pattern[at : at + 20], ensure_ascii=False)}" if at > 60 else ""
    return f" at position {at}{text}"


def _plain(parsed: Iterable[tuple[Any, Any]]) -> list[Part]:
    """Return parts with the names of their operations, without groups that change nothing."""
    parts: list[Part] = []
    for op, arg in parsed:
        if str(op) == "SUBPATTERN" and not (arg[1] or arg[2]):
            parts.append(("GROUP", _plain(arg[3])))
        elif str(op) == "BRANCH":
            parts.append(("BRANCH", [_plain(way) for way in arg[1]]))
        elif str(op) in ("MAX_REPEAT", "MIN_REPEAT"):
            most = arg[1] if isinstance(arg[1], int) and arg[1] < 10**9 else None
            parts.append(("REPEAT", (arg[0], most, _plain(arg[2]))))
        elif str(op) in ("ASSERT", "ASSERT_NOT"):
            if arg[0] < 0:
                raise PatternError("a lookbehind is not supported")
            parts.append((str(op), _plain(arg[1])))
        else:
            parts.append((str(op), str(arg) if str(op) == "AT" else arg))
    return parts


def _unsupported(op: str, arg: Any) -> PatternError:
    name = arg if op == "AT" else op
    return PatternError(f"{_NAMES.get(name, 'a part of it')} is not supported")


def _ranges(op: str, arg: Any) -> Ranges | None:
    """Return the code points of a part that is one character; None for other parts."""
    if op in ("LITERAL", "NOT_LITERAL"):
        one = ((arg, arg),)
        return one if op == "LITERAL" else others_than(one)
    if op == "ANY":
        return others_than(_LINE_ENDS)
    if op != "IN":
        return None
    ranges: list[tuple[int, int]] = []
    for kind, member in arg:
        if str(kind) == "CATEGORY":
            known = _CLASSES[str(member).replace("_NOT", "")]
            ranges += others_than(known) if "_NOT" in str(member) else known
        elif str(kind) != "NEGATE":
            ranges.append(member if str(kind) == "RANGE" else (member, member))
    return others_than(ranges) if any(str(kind) == "NEGATE" for kind, _ in arg) else (*ranges,)


# ---- as GBNF


def pattern_gbnf(pattern: str) -> str:
    """Return GBNF for a pattern, for the inside of a JSON string.

    Raises:
        PatternError: The pattern is invalid, or needs an automaton.
    """
    parts = _parsed(pattern)
    begins = parts[:1] == [("AT", "AT_BEGINNING")]
    ends = len(parts) > begins and parts[-1] == ("AT", "AT_END")
    inner = _expressions(parts[begins : len(parts) - ends])
    return f"{'' if begins else 'char*'} {inner} {'' if ends else 'char*'}".strip()


def _expressions(parts: Iterable[Part]) -> str:
    return " ".join(_expression(op, arg) for op, arg in parts) or '""'


def _expression(op: str, arg: Any) -> str:
    ranges = _ranges(op, arg)
    if ranges is not None:
        return _characters(ranges)
    if op == "BRANCH":
        return f"({' | '.join(map(_expressions, arg))})"
    if op == "GROUP":
        return f"({_expressions(arg)})"
    if op == "REPEAT":
        return f"({_expressions(arg[2])}){repeated(*arg[:2])}"
    raise _unsupported(op, arg)


def _characters(ranges: Ranges) -> str:
    """Return GBNF for the ways to write one of these characters in a JSON string."""
    spend(20 + 8 * len(ranges))
    chosen = others_than(ranges)
    plain = others_than((*chosen, *NEVER, (0, 31), (34, 34), (92, 92)))
    pieces = "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in plain)
    ways = [f"[{pieces}]"] if plain else []
    others = others_than(chosen)
    codes = {code for code in (*range(32), 34, 92) for a, b in others if a <= code <= b}
    for letter, code in zip('"\\bfnrt', (34, 92, 8, 12, 10, 13, 9), strict=True):
        if code in codes:
            ways.append(quoted("\\" + letter))
    # control characters without a letter escape
    codes -= {8, 9, 10, 12, 13, 34, 92}
    for high in (0, 16):
        if low := sorted(code - high for code in codes if code & ~15 == high):
            digits = "".join(dict.fromkeys(f"{code:x}{code:X}" for code in low))
            ways.append(f"{quoted(chr(92) + f'u00{high >> 4}')} [{digits}]")
    if not ways:
        raise PatternError("it contains an invalid character")
    return ways[0] if len(ways) == 1 else f"({' | '.join(ways)})"


# ---- as automata

# (first and last code point, next state)
_Row = list[tuple[int, int, int]]


def _append(row: _Row, low: int, high: int, after: int) -> None:
    """Add a transition to a sorted row; it is joined with the last one if it continues it."""
    if row and row[-1][2] == after and row[-1][1] + 1 == low:
        low = row.pop()[0]
    row.append((low, high, after))


class Texts:
    """A set of texts: a deterministic automaton over code points. The state 0 is the start.

    Attributes:
        rows: The transitions of each state; other code points are not allowed.
        finals: The states at which a text may end.
    """

    finals: set[int]
    rows: list[_Row]

    def __init__(self, rows: list[_Row], finals: set[int]) -> None:
        self.rows, self.finals = rows, finals

    def __and__(self, other: Texts) -> Texts:
        def row(state: tuple[int, int]) -> list[tuple[int, int, tuple[int, int]]]:
            return [
                (max(low, first), min(high, last), (a, b))
                for low, high, a in self.rows[state[0]]
                for first, last, b in other.rows[state[1]]
                if low <= last and first <= high
            ]

        return _explored((0, 0), row, lambda s: s[0] in self.finals and s[1] in other.finals)

    def __invert__(self) -> Texts:
        dead = len(self.rows)
        rows = [
            [*row, *((*gap, dead) for gap in others_than((*((a, b) for a, b, _ in row), *NEVER)))]
            for row in [*self.rows, []]
        ]
        return Texts(rows, {state for state in range(len(rows)) if state not in self.finals})

    def __or__(self, other: Texts) -> Texts:
        return ~(~self & ~other)

    def __contains__(self, text: str) -> bool:
        state: int | None = 0
        for letter in map(ord, text):
            row = self.rows[state or 0]
            state = next((after for low, high, after in row if low <= letter <= high), None)
            if state is None:
                return False
        return state in self.finals

    def negated(self) -> Texts:
        """Return the same numbers with the other sign; a number without a sign is positive."""
        n = len(self.rows)
        minus = next((to for low, high, to in self.rows[0] if low <= 45 <= high), None)
        plus = [move for move in self.rows[0] if not move[0] <= 45 <= move[1]]
        start = [(45, 45, n), *(self.rows[minus] if minus is not None else [])]
        return Texts([start, *self.rows[1:], plus], self.finals - {0})

    @property
    def live(self) -> set[int]:
        """The states from which a text can be completed."""
        into: dict[int, list[int]] = defaultdict(list)
        for state, row in enumerate(self.rows):
            for _, _, after in row:
                into[after].append(state)
        return _reached(self.finals, into.__getitem__)

    def smaller(self) -> Texts:
        """Return the same texts, with states that are followed by the same texts as one state."""
        classes, n = [int(state in self.finals) for state in range(len(self.rows))], 0
        while len(numbers := self._classes(classes)) > n:
            n = len(numbers)
            classes = [numbers[self._seen(state, classes)] for state in range(len(self.rows))]
        order = [classes[0], *(one for one in range(n) if one != classes[0])]
        first = {one: classes.index(one) for one in order}
        rows = [
            [(low, high, order.index(classes[to])) for low, high, to in self.rows[first[one]]]
            for one in order
        ]
        return Texts(rows, {i for i, one in enumerate(order) if first[one] in self.finals})

    def _classes(self, classes: Sequence[int]) -> dict[Any, int]:
        keys = dict.fromkeys(self._seen(state, classes) for state in range(len(self.rows)))
        return {key: i for i, key in enumerate(keys)}

    def _seen(self, state: int, classes: Sequence[int]) -> Any:
        """Return what tells a state apart: its class, and the classes of the next states."""
        seen: _Row = []
        for low, high, after in sorted(self.rows[state]):
            to = classes[after]
            _append(seen, low, high, to)
        spend(1 + len(seen) // 4)
        return classes[state], (*seen,)

    def gbnf(self, prefix: str) -> list[str]:
        """Return rules for the texts inside of a JSON string; the first one is `<prefix>0`."""
        live, rules = self.live, []
        for state in sorted(live):
            groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for low, high, after in self.rows[state]:
                if after in live:
                    groups[after].append((low, high))
            ways = ['""'] if state in self.finals else []
            if ways and {*groups} == {state} and others_than((*groups[state], *NEVER)) == ():
                rules.append(f"{prefix}{state} ::= char*")
                continue
            ways += [f"{_characters((*some,))} {prefix}{after}" for after, some in groups.items()]
            rules.append(f"{prefix}{state} ::= {' | '.join(ways)}")
        return rules


def _reached(states: Iterable[int], after: Callable[[int], Iterable[int]]) -> set[int]:
    """Return these states and all that moves lead to; `after` gives those of one move."""
    found = set(states)
    todo = [*found]
    while todo:
        new = set(after(todo.pop())) - found
        found |= new
        todo += new
    return found


def _explored(
    start: Any, row: Callable[[Any], list[tuple[int, int, Any]]], ends: Callable[[Any], bool]
) -> Texts:
    """Return the automaton of all reachable states; raise PatternError for too many."""
    numbers, states, rows = {start: 0}, [start], list[_Row]()
    while len(rows) < len(states):
        found: _Row = []
        for low, high, after in row(states[len(rows)]):
            at = numbers.setdefault(after, len(states))
            if at == len(states):
                states.append(after)
            _append(found, low, high, at)
        rows.append(found)
        spend(3 + 2 * len(found))
        if len(states) > _MAX_STATES:
            raise PatternError(f"it needs more than {_MAX_STATES:,} states")
    return Texts(rows, {number for state, number in numbers.items() if ends(state)})


class _Graph:
    """An automaton that is not deterministic yet, with moves that read nothing (None)."""

    def __init__(self) -> None:
        self.moves: list[list[tuple[Ranges | None, int]]] = []

    def new(self) -> int:
        spend(1)
        if len(self.moves) > 2 * _MAX_STATES:
            raise PatternError(f"it needs more than {_MAX_STATES:,} states")
        self.moves.append([])
        return len(self.moves) - 1

    def after(self, at: int, read: Ranges | None) -> int:
        """Add a move to a new state, and return this state."""
        self.moves[at].append((read, self.new()))
        return self.moves[at][-1][1]

    def add(self, parts: Iterable[Part], at: int) -> int:
        """Add parts behind a state; return the state behind them."""
        for op, arg in parts:
            ranges = _ranges(op, arg)
            if ranges is not None:
                at = self.after(at, ranges)
            elif op == "GROUP":
                at = self.add(arg, at)
            elif op == "BRANCH":
                ends = [self.add(way, self.after(at, None)) for way in arg]
                at = self.new()
                for end in ends:
                    self.moves[end].append((None, at))
            elif op == "REPEAT":
                least, most, inner = arg
                at = self._repeat(least, most, inner, at)
            else:
                raise _unsupported(op, arg)
        return at

    def _repeat(self, least: int, most: int | None, parts: list[Part], at: int) -> int:
        if max(least, most or 0) > _MAX_STATES:
            raise PatternError(f"it needs more than {_MAX_STATES:,} states")
        for _ in range(least):
            at = self.add(parts, at)
        if most is None:
            at = self.after(at, None)
            self.moves[self.add(parts, at)].append((None, at))
            return self.after(at, None)
        befores = [at]
        for _ in range(most - least):
            at = self.add(parts, at)
            befores.append(at)
        end = self.after(at, None)
        for before in befores:
            self.moves[before].append((None, end))
        return end

    def texts(self, end: Texts | None, at: int) -> Texts:
        """Return the texts from the state 0 to `at`, followed by those of `end`."""
        first = len(self.moves)
        finals = {at}
        if end is not None:
            self.moves += [
                [(((low, high),), first + after) for low, high, after in row] for row in end.rows
            ]
            self.moves[at].append((None, first))
            finals = {first + state for state in end.finals}

        def closed(states: Iterable[int]) -> frozenset[int]:
            return frozenset(
                _reached(states, lambda at: [to for read, to in self.moves[at] if read is None])
            )

        def row(states: frozenset[int]) -> list[tuple[int, int, frozenset[int]]]:
            moves = [
                (low, high, to)
                for state in states
                for read, to in self.moves[state]
                for low, high in read or ()
            ]
            spend(len(states) + len(moves))
            cuts = sorted({cut for low, high, _ in moves for cut in (low, high + 1)})
            opening: dict[int, list[int]] = defaultdict(list)
            closing: dict[int, list[int]] = defaultdict(list)
            for low, high, to in moves:
                opening[low].append(to)
                closing[high + 1].append(to)
            here: dict[int, int] = defaultdict(int)
            found = []
            for low, after in pairwise(cuts):
                for to in closing[low]:
                    here[to] -= 1
                for to in opening[low]:
                    here[to] += 1
                to_states = [to for to, n in here.items() if n]
                if to_states:
                    found.append((low, after - 1, closed(to_states)))
            return found

        return _explored(closed([0]), row, lambda states: not finals.isdisjoint(states))


ANY_TEXT = Texts([[(low, high, 0) for low, high in _ALL]], {0})
_NO_TEXT, _EMPTY = Texts([[]], set()), Texts([[]], {0})


def _is_zero_width(part: Part) -> bool:
    """Return whether a part speaks about the text around it."""
    op, arg = part
    if op == "BRANCH":
        return any(_is_zero_width(one) for way in arg for one in way)
    return op in _ZERO_WIDTH or (op == "GROUP" and any(map(_is_zero_width, arg)))


def _rest(parts: Sequence[Part], at_start: bool) -> Texts:
    """Return the texts from a position to the end in which the parts match at the position."""
    spend(5)
    n = next((i for i, part in enumerate(parts) if _is_zero_width(part)), len(parts))
    before, (op, arg), after = parts[:n], [*parts, ("", None)][n], parts[n + 1 :]
    here = at_start and not n
    if not op:
        end = ANY_TEXT
    elif op == "GROUP":
        end = _rest([*arg, *after], here)
    elif op == "BRANCH":
        end = _NO_TEXT
        for way in arg:
            end |= _rest([*way, *after], here)
    elif op == "ASSERT":
        end = _rest(arg, here) & _rest(after, here)
    elif op == "ASSERT_NOT":
        end = ~_rest(arg, here) & _rest(after, here)
    elif arg == "AT_END":
        end = _EMPTY & _rest(after, here)
    elif arg == "AT_BEGINNING":
        end = _rest(after, here) if here else _NO_TEXT
    else:
        raise _unsupported(op, arg)
    if not before:
        return end
    graph = _Graph()
    return graph.texts(end, graph.add(before, graph.new()))


def matching(pattern: str) -> Texts:
    """Return the texts in which a pattern matches; raise PatternError if it is not supported."""
    parts = _parsed(pattern)
    if parts[:1] == [("AT", "AT_BEGINNING")]:
        return _rest(parts[1:], True)
    later = _rest([("IN", [("RANGE", one) for one in _ALL]), *parts], False)
    graph = _Graph()
    start = graph.after(graph.new(), None)
    graph.moves[start].append((_ALL, start))
    found = _rest(parts, True) | graph.texts(later, start)
    return found.smaller() if len(found.rows) < 200 else found


def widths(pattern: str) -> tuple[int, int | None]:
    """Return the least and the largest number of characters that an anchored pattern allows.

    Raises:
        PatternError: The pattern is invalid.
    """
    parts = _parsed(pattern)
    if parts[:1] != [("AT", "AT_BEGINNING")] or parts[-1] != ("AT", "AT_END"):
        return 0, None
    return _width(parts)


def _width(parts: Iterable[Part]) -> tuple[int, int | None]:
    least, most = 0, 0
    is_open = False
    low: int
    high: int | None
    for op, arg in parts:
        low, high = (0, 0) if op in _ZERO_WIDTH else (1, 1)
        if op == "GROUP":
            low, high = _width(arg)
        elif op == "BRANCH":
            ends = [*map(_width, arg)]
            low, highs = min(end[0] for end in ends), [end[1] for end in ends if end[1] is not None]
            high = max(highs) if len(highs) == len(ends) else None
        elif op == "REPEAT":
            low, high = _width(arg[2])
            low *= arg[0]
            high = None if high is None or arg[1] is None else high * arg[1]
        is_open |= high is None
        least, most = least + low, most + (high or 0)
    return least, None if is_open else most


def bounded_class(pattern: str, least: int, most: int | None) -> str | None:
    """Return GBNF for a text of so many characters, if a pattern only says which ones; else None.

    Raises:
        ValueError: The pattern is invalid, or allows no such number.
    """
    match _parsed(pattern):
        case [("AT", "AT_BEGINNING"), ("REPEAT", (low, high, [(op, arg)])), ("AT", "AT_END")]:
            ranges = _ranges(op, arg)
            if ranges is not None:
                ends = [end for end in (high, most) if end is not None]
                return f"{_characters(ranges)}{repeated(max(low, least), min(ends, default=None))}"
    return None


def of_length(least: int, most: int | None) -> Texts:
    """Return the texts with a number of characters; raise PatternError if it is too large."""
    if max(least, most or 0) > _MAX_STATES:
        raise PatternError(f"it needs more than {_MAX_STATES:,} states")
    n = least if most is None else most
    rows = [[(low, high, state + 1) for low, high in _ALL] for state in range(n)]
    rows.append([(low, high, n) for low, high in _ALL] if most is None else [])
    return Texts(rows, {*range(least, n + 1)})


def words(texts: Iterable[str]) -> Texts:
    """Return a set of texts."""
    graph = _Graph()
    start, end = graph.new(), graph.new()
    for text in texts:
        at = start
        for letter in text:
            at = graph.after(at, ((ord(letter), ord(letter)),))
        graph.moves[at].append((None, end))
    return graph.texts(None, end)


def multiples(unit: int, n_decimals: int) -> Texts:
    """Return the numbers, in digits, that are multiples of `unit` / 10 ** `n_decimals`.

    Raises:
        PatternError: `unit` is too large.
    """

    def row(state: tuple[int, int]) -> list[tuple[int, int, tuple[int, int]]]:
        value, n = state  # the number of decimals; -1 before the point
        found = [(46, 46, (value, 0))] if n < 0 < n_decimals else []
        if n < n_decimals:
            after = n + (n >= 0)
            found += [(48 + d, 48 + d, ((10 * value + d) % unit, after)) for d in range(10)]
        return [*found, (45, 45, state)] if state == (0, -1) else found

    if unit > _MAX_STATES:
        raise PatternError(f"it needs more than {_MAX_STATES:,} states")

    def ends(state: tuple[int, int]) -> bool:
        missing: int = 10 ** (n_decimals - max(state[1], 0))
        return state[0] * missing % unit == 0

    return _explored((0, -1), row, ends)
