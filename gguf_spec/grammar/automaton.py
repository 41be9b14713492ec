"""Following a grammar byte by byte.

A state is the set of stacks that a text can leave behind, and a value: looking ahead and going back are free, and what a state costs is
counted while it is made. llama.cpp's own grammars are not used: a few words like `root ::= "a" root "b" | "a" root "c" | "x"` take all memory
there, others end the process, and nobody outside can count.
"""

from __future__ import annotations

import sys
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .gbnf import CHARS, END, REPEAT, RULE, TOKEN, Ranges, Rules, refused

_MAX_WORK = 1_000_000  # stack entries made for one position; about a second
_MAX_CACHE = 500_000  # stack entries kept for later

Stack = tuple[int, ...]  # node + repetitions so far * number of nodes; the top is last
State = tuple[frozenset[Stack], bytes]  # and the bytes of a character that is not complete


_LEAST = (0, 0, 0x80, 0x800, 0x10000)  # code points of so many bytes
_FIRST, _LATER = (
    (1 << 0x80) - 1 | (1 << 0xF5) - (1 << 0xC2),
    (1 << 0xC0) - (1 << 0x80),
)  # as sets of bytes


def _size(lead: int) -> int:
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


def _span(begun: bytes) -> tuple[int, int]:
    """Return the first and the last code point whose UTF-8 begins like this."""
    if not begun:
        return 0, sys.maxunicode
    size = _size(begun[0])
    value = begun[0] & (0x7F >> size)
    for byte in begun[1:]:
        value = value << 6 | byte & 0x3F
    rest = 6 * (size - len(begun))
    return max(value << rest, _LEAST[size]), min((value + 1 << rest) - 1, sys.maxunicode)


def _next_bytes(ranges: Ranges, begun: bytes) -> int:
    """Return which bytes may follow the `begun` bytes of a character of these ranges. UTF-8 keeps the order of code points."""
    first, last = _span(begun)
    found = 0
    for low, high in ranges:
        if low <= last and high >= first:
            a, b = (chr(c).encode()[len(begun)] for c in (max(low, first), min(high, last)))
            found |= (2 << b) - (1 << a)
    return found & (_LATER if begun else _FIRST)


class Automaton:
    """States by number, and for each where every byte leads, worked out when it is asked for."""

    def __init__(self, gbnf: str, read_token: Callable[[str], int]) -> None:
        self._gbnf, self._rules = gbnf, Rules(gbnf, read_token)
        self._next_bytes: dict[tuple[int, bytes], int] = {}
        self.work = 0
        self.forget()
        self.start: State = self._expand([()], self._rules.rules[self._rules.root]), b""

    def forget(self) -> None:
        """Drop all numbers of states."""
        self._numbers: dict[State, int] = {}
        self.states: list[State] = []
        self._rows: list[array[int] | None] = []
        self.cached = 0

    def reset_budget(self) -> None:
        """Begin with another position: numbers of states may be dropped here."""
        self.work = 0
        if self.cached > _MAX_CACHE:
            self.forget()

    def number(self, state: State) -> int:
        """Return the number of a state."""
        at = self._numbers.setdefault(state, len(self.states))
        if at == len(self.states):
            self.states.append(state)
            self._rows.append(None)
            self.work += 2
            self.cached += 4
        return at

    def _expand(self, bases: list[Stack], firsts: Sequence[int]) -> frozenset[Stack]:
        """Put each of `firsts` on each of `bases`, and follow rules until a character or token, or nothing, is on top."""
        nodes, rules, n = self._rules.nodes, self._rules.rules, len(self._rules.nodes)
        todo = [(*base, first) if first else base for base in bases for first in firsts]
        seen, found = set(todo), []
        while todo:
            stack = todo.pop()
            self.work += 1 + len(stack)
            if self.work > _MAX_WORK:
                raise refused(
                    self._gbnf, "too many ways to read the same text, or too many nested rules"
                )
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
                if most != 0 and times + 1 != most:  # after the last time there is nothing to count
                    base = (*stack[:-1], node + n * min(times + 1, least if most is None else most))
            if symbol[0] == RULE or symbol[3] != 0:
                ways += [(*base, first) if first else base for first in rules[symbol[1]]]
            for way in ways:
                if way not in seen:
                    seen.add(way)
                    todo.append(way)
        self.cached += sum(map(len, found)) + len(found)
        return frozenset(found)

    def _after(self, stacks: Iterable[Stack]) -> frozenset[Stack]:
        """Return the stacks after what is on top of these was read."""
        nodes, n = self._rules.nodes, len(self._rules.nodes)
        afters = ((stack[:-1], nodes[stack[-1] % n][1]) for stack in stacks)
        return self._expand([(*base, after) if after else base for base, after in afters], (0,))

    def row(self, at: int) -> array[int]:
        """Return the state that each byte leads to, -1 for none."""
        row = self._rows[at]
        if row is None:
            row = array("i", [-1]) * 256
            self.work += 50
            self.cached += 128
            stacks, begun = self.states[at]
            for bytes_, members in self._parts(stacks, begun):
                whole = half = None
                for byte in range(bytes_.bit_length()):
                    if not bytes_ >> byte & 1:
                        continue
                    if len(begun) + 1 == _size(begun[0] if begun else byte):
                        whole = self._after(members) if whole is None else whole
                        row[byte] = self.number((whole, b""))
                    else:
                        half = frozenset(members) if half is None else half
                        row[byte] = self.number((half, begun + bytes([byte])))
            self._rows[at] = row
        return row

    def _parts(self, stacks: Iterable[Stack], begun: bytes) -> list[tuple[int, list[Stack]]]:
        """Return sets of bytes that lead the same stacks on, and those stacks."""
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
            parts = [
                part
                for there, led in parts
                for part in ((there & bytes_, led + members), (there & ~bytes_, led))
                if part[0]
            ]
        return [part for part in parts if part[1]]

    def read(self, at: int, data: bytes) -> int:
        """Return the state after some bytes, -1 for none."""
        for byte in data:
            at = (self._rows[at] or self.row(at))[byte]
            if at < 0:
                break
        return at

    def read_many(
        self, at: int, flat: NDArray[np.uint8], begins: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tell which of many stretches of `flat` can be read."""
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
        """Yield the stacks that wait for a whole token, with its id and whether it is wanted or the one that is not."""
        nodes, n = self._rules.nodes, len(self._rules.nodes)
        for stack in state[0] if not state[1] else ():
            symbol = nodes[stack[-1] % n][0] if stack else (END,)
            if symbol[0] == TOKEN:
                yield stack, symbol[1], symbol[2]

    def after_token(self, state: State, token: int, data: bytes) -> State | None:
        """Return the state after a token, or None."""
        at = self.read(self.number(state), data) if data else -1
        led = [stack for stack, id_, wanted in self.tokens(state) if (id_ == token) == wanted]
        if not led:
            return self.states[at] if at >= 0 else None
        stacks, begun = self.states[at] if at >= 0 else (frozenset(), b"")
        return (self._after(led) | stacks, begun) if not begun else (stacks, begun)
