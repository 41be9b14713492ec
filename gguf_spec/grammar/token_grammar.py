"""Grammar over the tokens of a model, as a constraint on answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidOptionError, OffGrammarError
from ..options import K_MAX
from ..vocabulary import Vocabulary, common
from .automaton import Automaton, State

# recent positions whose states are cached
_KEPT = 2 * K_MAX + 2


class _Pieces(NamedTuple):
    """The bytes of all tokens of a vocabulary, concatenated."""

    flat: NDArray[np.uint8]
    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    first: NDArray[np.int64]  # first byte of a token; 256 for none
    is_end: NDArray[np.bool_]


# pieces of the loaded models
_pieces: WeakKeyDictionary[Vocabulary, _Pieces] = WeakKeyDictionary()


def _pieces_of(model: Vocabulary) -> _Pieces:
    """Return the pieces of a model; the first call takes some time."""
    model.is_end(0)  # raises ClosedError
    pieces = _pieces.get(model)
    if pieces is None:
        texts = [model.piece(token) for token in range(model.n_vocab)]
        ends = np.cumsum([len(text) for text in texts], dtype=np.int64)
        first = np.array([text[0] if text else 256 for text in texts], dtype=np.int64)
        is_end = np.array([model.is_end(token) for token in range(model.n_vocab)])
        begins = np.concatenate(([0], ends[:-1]))
        pieces = _pieces[model] = _Pieces(
            np.frombuffer(b"".join(texts), np.uint8), begins, ends, first, is_end
        )
    return pieces


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
    """

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
        self._model, self._n_prompt, self._pieces = model, n_prompt, _pieces_of(model)
        self._automaton = automaton = Automaton(gbnf, partial(_read_token, model))
        at = automaton.read(
            automaton.number(automaton.start), prefill.encode("utf-8", errors="surrogatepass")
        )
        if at < 0:
            raise InvalidOptionError("prefill", prefill, "a start that the grammar allows")
        # answer of the last call
        self._path: list[int] = []
        # number of tokens of the answer -> state
        self._states: dict[int, State] = {0: automaton.states[at]}

    def allowed(self, history: Sequence[int], ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of `ids`, shape `(n,)`, may follow `history`: prompt and answer so far.

        Raises:
            InvalidOptionError: The answer so far does not follow the grammar, or it has too many
                derivations.
        """
        state, pieces = self._state(history), self._pieces
        at, first = self._automaton.number(state), pieces.first[ids]
        row = np.array([*self._automaton.row(at), -1])
        found = row[first] >= 0
        rest = ids[found]
        if len(rest) > 200:
            found[found] = self._automaton.read_many(
                at, pieces.flat, pieces.begins[rest], pieces.ends[rest]
            )
        else:
            found[found] = [
                self._automaton.read(at, self._model.piece(token)) >= 0 for token in rest.tolist()
            ]
        return self._whole(state, found, ids)

    def possible(self, history: Sequence[int]) -> NDArray[np.bool_]:
        """Return for each token of the vocabulary whether its first byte may follow, shape `(V,)`.

        This is fast to compute and contains all allowed tokens and some others.
        """
        state = self._state(history)
        row = np.array([*self._automaton.row(self._automaton.number(state)), -1])
        return self._whole(
            state, (row >= 0)[self._pieces.first], np.arange(len(self._pieces.first))
        )

    def rest_by(self, rest: Callable[[], object]) -> None:
        """Call `rest` again and again during long work from now on."""
        self._automaton.rest = rest

    def _whole(
        self, state: State, found: NDArray[np.bool_], ids: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Add the tokens that a grammar names, and the tokens that end a generation."""
        for _, token, wanted in self._automaton.tokens(state):
            found |= (ids == token) == wanted
        # no stack is empty in the middle of a character
        found[self._pieces.is_end[ids]] = () in state[0]
        return found

    def _state(self, history: Sequence[int]) -> State:
        states, answer = self._states, list(history[self._n_prompt :])
        shared = common(answer, self._path)
        if shared < len(answer):
            for depth in [d for d in states if d > shared]:
                del states[depth]
            self._path = answer
        depth = max(d for d in states if d <= len(answer))
        state = states[depth]
        for token in answer[depth:]:
            state, depth = self._accept(state, token), depth + 1
            states[depth] = state
            states.pop(max(depth - _KEPT, 0) or -1, None)
        self._automaton.reset_budget()
        return state

    def _accept(self, state: State, token: int) -> State:
        self._automaton.reset_budget()
        if self._pieces.is_end[token]:
            after = state if () in state[0] else None
        else:
            after = self._automaton.after_token(state, token, self._model.piece(token))
        if after is None:
            raise OffGrammarError(token)
        return after
