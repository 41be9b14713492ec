"""Grammar over the tokens of a model, as a constraint on answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidOptionError, OffGrammarError
from ..options import K_MAX
from ..vocabulary import Vocabulary, common
from .automaton import Automaton, Known, State

# recent positions whose states are cached
KEPT = 2 * K_MAX + 2
# States that differ by counts alone, whose masks others are made from: their number; bytes that
# two states accept alike where it is of use, and where one of them is enough.
_MOST_ALIKE, _LEAST_ALIKE, _MUCH_ALIKE = 16, 2, 12
# Work for all masks of a grammar that took too much.
_MOST_REFUSED = 100_000


class TokenTree(Protocol):
    """Protocol of the tokens of a vocabulary in a tree; `sampling.native.Tree` implements it."""

    def accepted(
        self, automaton: Automaton, start: int, most: int, longer_than: int = 0
    ) -> tuple[NDArray[np.uint8], list[int]] | None:
        """Return the tokens that an automaton accepts, and the states whose rows that needed.

        A byte has the bits of eight tokens, the lowest one first. None if new rows take more work
        than `most`. Tokens of at most `longer_than` bytes may be missing.
        """


MakeTree = Callable[[bytes, NDArray[np.int64], NDArray[np.int32]], TokenTree]
"""(sorted texts, the end of each one, their tokens) -> the tree"""


class Pieces:
    """The bytes of all tokens of a vocabulary, concatenated, and grammars that were used with it.

    Attributes:
        flat: The bytes.
        begins: Where each token begins.
        ends: Where each token ends.
        first: First byte of a token; 256 for none.
        is_end: Whether a token ends a generation.
        grammars: What is known of each grammar; the last one was used last.
        most_known: Stack entries that are kept of all grammars, about.
    """

    def __init__(self, model: Vocabulary) -> None:
        self._texts = [model.piece(token) for token in range(model.n_vocab)]
        self.flat: NDArray[np.uint8] = np.frombuffer(b"".join(self._texts), np.uint8)
        self.ends: NDArray[np.int64] = np.cumsum(
            [len(text) for text in self._texts], dtype=np.int64
        )
        self.begins: NDArray[np.int64] = np.concatenate(([0], self.ends[:-1]))
        self.first: NDArray[np.int64] = np.array(
            [text[0] if text else 256 for text in self._texts], dtype=np.int64
        )
        self.is_end: NDArray[np.bool_] = np.zeros(model.n_vocab, dtype=np.bool_)
        self.is_end[[*model.ends]] = True
        self.grammars: dict[str, Known] = {}
        self.most_known: int = 1_000_000
        self._tree: TokenTree | None = None
        self._sizes: NDArray[np.int64] = self.ends - self.begins
        self.longest: int = int(self._sizes.max(initial=0))
        self._up_to: dict[int, NDArray[np.uint8]] = {}

    def up_to(self, n_bytes: int) -> NDArray[np.uint8]:
        """Return the mask of the tokens that have so many bytes at most."""
        found = self._up_to.get(n_bytes)
        if found is None:
            found = np.packbits(self._sizes <= n_bytes, bitorder="little")
            found = self._up_to.setdefault(n_bytes, found)
        return found

    def tree(self, make: MakeTree) -> TokenTree:
        """Return the tree of the tokens; two threads that ask for it at once may both make it."""
        if self._tree is None:
            texts = self._texts
            order = sorted((i for i, text in enumerate(texts) if text), key=texts.__getitem__)
            ends = np.cumsum([len(texts[i]) for i in order], dtype=np.int64)
            flat = b"".join([texts[i] for i in order])
            self._tree = make(flat, ends, np.array(order, dtype=np.int32))
        return self._tree

    def known(self, gbnf: str) -> Known:
        """Return what is known of a grammar; the one that was not used for longest is forgotten.

        It takes no lock, so an exception at any point leaves none. Each step is one operation of a
        dictionary; of two threads that ask for a new grammar at once, each may get its own.
        """
        known = self.grammars.pop(gbnf, None) or Known(_lock)
        while known.is_full:
            known = known.next()
        self.grammars[gbnf] = known
        while len(kept := [*self.grammars.items()]) > 1 and _size(kept) > self.most_known:
            self.grammars.pop(kept[0][0], None)
        return known


def _size(known: Sequence[tuple[str, Known]]) -> int:
    return sum(4000 + one.cached + len(gbnf) // 8 for gbnf, one in known)


_lock: Any = Lock()  # of what is known of all grammars; held for microseconds
if hasattr(os, "register_at_fork"):  # free in the child, as by `system.process.renewed`
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)
# pieces of the loaded models
_pieces: WeakKeyDictionary[Vocabulary, Pieces] = WeakKeyDictionary()


def pieces_of(model: Vocabulary) -> Pieces:
    """Return the pieces of a model; the first call takes some time."""
    model.is_end(0)  # raises ClosedError
    pieces = _pieces.get(model)
    return pieces or _pieces.setdefault(model, Pieces(model))


def _read_token(model: Vocabulary, word: str) -> int:
    """Return the id of a token in GBNF notation, such as `<[17]>` or `<|im_end|>`."""
    number = re.fullmatch(r"<\[(\d{1,9})\]>", word, re.ASCII)
    ids = [int(number[1])] if number else model.tokenize(word, special=True, start=False)
    if len(ids) != 1 or ids[0] >= model.n_vocab:
        raise ValueError(f"{word[:40]} is not a token of this model")
    return ids[0]


class Grammar:
    """A GBNF grammar over a model's vocabulary, which gives the allowed next tokens.

    A state depends only on the history, so drafted tokens can be checked and rolled back.

    Attributes:
        automaton: The automaton of its bytes.
        states: States by the number of tokens of the answer; those of the last `KEPT` positions.
        mask_work: Most work for a mask.
    """

    mask_work: int = 20_000

    def __init__(self, model: Vocabulary, gbnf: str, n_prompt: int, prefill: str = "") -> None:
        """Parse a grammar.

        Args:
            gbnf: The grammar in llama.cpp's notation. The answer follows its rule `root`.
            n_prompt: Number of tokens before the answer.
            prefill: Text at the end of the prompt that belongs to the answer.

        Raises:
            InvalidOptionError: The grammar is invalid or rejects `prefill`.
            ClosedError: The model is closed.
        """
        self._model, self._n_prompt, self._pieces = model, n_prompt, pieces_of(model)
        known = self._pieces.known(gbnf)
        self.automaton: Automaton = Automaton(gbnf, partial(_read_token, model), known)
        automaton = self.automaton
        at = automaton.read(
            automaton.number(automaton.start), prefill.encode("utf-8", errors="surrogatepass")
        )
        if at < 0:
            raise InvalidOptionError("prefill", prefill, "a start that the grammar allows")
        self._tree: TokenTree | None = None
        # answer of the last call
        self._path: list[int] = []
        self.states: dict[int, State] = {0: automaton.states[at]}

    def allowed(self, history: Sequence[int], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of `ids`, shape `(n,)`, may follow `history`: prompt and answer so far.

        Raises:
            InvalidOptionError: The answer so far does not follow the grammar, or it has too many
                derivations.
        """
        state, pieces = self._state(history[self._n_prompt :]), self._pieces
        at, first = self.automaton.number(state), pieces.first[ids]
        row = np.array([*self.automaton.row(at), -1])
        found = row[first] >= 0
        rest = ids[found]
        if len(rest) > 200:
            found[found] = self.automaton.read_many(
                at, pieces.flat, pieces.begins[rest], pieces.ends[rest]
            )
        else:
            found[found] = [
                self.automaton.read(at, self._model.piece(token)) >= 0 for token in rest.tolist()
            ]
        return self._whole(state, found, ids)

    def possible(self, history: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each token of the vocabulary whether its first byte may follow, shape `(V,)`.

        This is fast to compute and contains all allowed tokens and some others.
        """
        state = self._state(history[self._n_prompt :])
        row = np.array([*self.automaton.row(self.automaton.number(state)), -1])
        return self._whole(
            state, (row >= 0)[self._pieces.first], np.arange(len(self._pieces.first))
        )

    def make_masks_by(self, make: MakeTree) -> None:
        """Make masks from now on, with a tree of the tokens."""
        self._tree = self._pieces.tree(make)

    def mask(self, history: Sequence[int]) -> bytes | None:
        """Return which tokens of the vocabulary may follow; None if this takes too much work.

        A byte has the bits of eight tokens, the lowest one first. Where `allowed` fails because the
        grammar has too many derivations, the result is always None.
        """
        return self._mask_of(self._state(history[self._n_prompt :]))

    def masks(self, history: Sequence[int], draft: Sequence[int]) -> list[bytes] | None:
        """Return the masks behind a text and behind each token of a draft.

        The last one is the mask that does not allow the next token of the draft, or that of the
        whole draft. None if one of them takes too much work.
        """
        answer, found = list(history[self._n_prompt :]), list[bytes]()
        for token in [*draft, None]:
            try:
                mask = self._mask_of(self._state(answer))
            except InvalidOptionError:
                if not found:
                    raise
                return None  # the text may go on without this token
            if mask is None:
                return None
            found.append(mask)
            if token is None or not mask[token >> 3] >> (token & 7) & 1:
                break
            answer.append(token)
        return found

    def _mask_of(self, state: State) -> bytes | None:
        automaton, tree = self.automaton, self._tree
        known, at = automaton.known, automaton.number(state)
        if tree and at not in known.masks and known.refused < _MOST_REFUSED:
            known.masks[at] = self._make_mask(tree, at)
        return known.masks.get(at)

    def _make_mask(self, tree: TokenTree, at: int) -> bytes | None:
        automaton, pieces = self.automaton, self._pieces
        known = automaton.known
        alike, n_alike = self._mask_alike(at)
        if alike and n_alike >= pieces.longest:
            return alike
        found = tree.accepted(automaton, at, self.mask_work, n_alike)
        if not found or sum([known.rows[one][1] for one in found[1]]) > self.mask_work:
            known.refused += self.mask_work
            return None
        bits = np.zeros(len(pieces.is_end) + 7 >> 3, np.uint8)
        bits[: len(found[0])] = found[0]
        if alike:
            bits |= np.frombuffer(alike, np.uint8) & pieces.up_to(n_alike)
        mask = self._with_named(known.states[at], bits).tobytes()
        known.cached += len(mask) // 8
        return mask

    def _mask_alike(self, at: int) -> tuple[bytes | None, int]:
        """Return the mask of a state that accepts the same tokens up to a length, and this length.

        That of a string of 60 characters at most, for example, behind two of them and behind ten:
        tokens of more bytes than characters are left can differ. None and 0 without one.
        """
        known, automaton = self.automaton.known, self.automaton
        counted = automaton.without_counts(at)
        if not counted:
            return None, 0
        state, nodes, counts = counted
        others, best, most = known.alike.get(state, ()), None, 0
        for _, other, more in others:
            n, mask = automaton.n_alike(nodes, counts, more), known.masks.get(other)
            if mask and n > max(most, _LEAST_ALIKE):
                best, most = mask, n
        if most < _MUCH_ALIKE:
            with_this = sorted([*others, (-automaton.n_left(nodes, counts), at, counts)])
            known.alike[state] = tuple(with_this[:_MOST_ALIKE])
        return best, most

    def _with_named(self, state: State, bits: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return what `_whole` does, of the bits of all tokens."""
        pieces = self._pieces
        if any(True for _ in self.automaton.tokens(state)):
            n_vocab = len(pieces.is_end)
            found = np.unpackbits(bits, count=n_vocab, bitorder="little").view(np.bool_)
            return np.packbits(self._whole(state, found, np.arange(n_vocab)), bitorder="little")
        for token in self._model.ends:
            bits[token >> 3] &= ~(1 << (token & 7)) & 255
            bits[token >> 3] |= (() in state[0]) << (token & 7)
        return bits

    def rest_by(self, rest: Callable[[], object]) -> None:
        """Call `rest` again and again during long work from now on."""
        self.automaton.rest = rest

    def _whole(
        self, state: State, found: NDArray[np.bool_], ids: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Add the tokens that a grammar names, and the tokens that end a generation."""
        for _, token, wanted in self.automaton.tokens(state):
            found |= (ids == token) == wanted
        # no stack is empty in the middle of a character
        found[self._pieces.is_end[ids]] = () in state[0]
        return found

    def _state(self, answer: Sequence[int]) -> State:
        states, answer = self.states, list(answer)
        shared = common(answer, self._path)
        if shared < len(answer):
            for depth in [d for d in states if d > shared]:
                del states[depth]
            self._path = answer
        depth = len(answer)
        while depth not in states:
            depth -= 1
        state = states[depth]
        for token in answer[depth:]:
            state, depth = self._accept(state, token), depth + 1
            states[depth] = state
            states.pop(max(depth - KEPT, 0) or -1, None)
        self.automaton.reset_budget()
        return state

    def _accept(self, state: State, token: int) -> State:
        self.automaton.reset_budget()
        if self._pieces.is_end[token]:
            after = state if () in state[0] else None
        else:
            after = self.automaton.after_token(state, token, self._model.piece(token))
        if after is None:
            raise OffGrammarError(token)
        return after
