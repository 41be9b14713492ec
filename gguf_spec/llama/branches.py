"""Branches of a pass: alternative tokens that llama.cpp decodes beside those that stay cached.

A branch has a sequence of its own in the cache. It shares the cached tokens and the first tokens of
the batch with the first sequence. After the pass its sequence is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..errors import InvalidOptionError
from ..options import BRANCHES_MAX, K_MAX
from .bindings import C
from .native import Native

Branches = Sequence[tuple[int, int]]
"""Pairs of an index into the tokens of the pass, above 0, and the id of the alternative token."""


def n_sequences(can_roll_back: bool) -> int:
    """Return the number of sequences of a context; they cost nothing while they are empty.

    A model that cannot roll back has no branches.
    """
    return 1 + BRANCHES_MAX if can_roll_back else 1


def check_branches(branches: Branches, n_tokens: int) -> None:
    """Check the branches of a pass over `n_tokens` tokens.

    Raises:
        InvalidOptionError: There are too many branches or tokens, or an index is out of range.
    """
    if (
        len(branches) > BRANCHES_MAX
        or n_tokens > K_MAX + 1
        or not all(0 < i < n_tokens for i, _ in branches)
    ):
        raise InvalidOptionError(
            "branches", branches, f"at most {BRANCHES_MAX}, none at the first token"
        )


@contextmanager
def added_branches(
    native: Native, branches: Branches, n_tokens: int, n_past: int
) -> Iterator[None]:
    """Add branches to the batch and the cache for one pass.

    After an exception the caller must empty the cache.

    Args:
        native: The model; its batch holds `n_tokens` tokens.
        branches: The branches.
        n_tokens: Number of tokens in the batch.
        n_past: Number of cached tokens.
    """
    native.batch.add_branches(branches, n_tokens, n_past)
    sequences = range(1, len(branches) + 1)
    for sequence in sequences:
        native.cache(C.llama_memory_seq_cp, 0, sequence, 0, n_past)
    yield
    for sequence in sequences:
        native.cache(C.llama_memory_seq_rm, sequence, -1, -1)
