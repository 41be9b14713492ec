"""The slots of new requests, on slots that only list tokens."""

from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.passes import Exactness
from gguf_spec.runtime import prefix_cache
from gguf_spec.runtime.prefix_cache import PrefixStore
from gguf_spec.speculative.scheduler import SlotPair
from gguf_spec.vocabulary import common

TEXT = list(range(100, 400))


class Books:
    """A slot without a model."""

    exactness, least_cut = Exactness(), 0
    recurrent = None

    def __init__(self, index, cached, can_roll_back):
        self.index, self.cached, self.can_roll_back = index, list(cached), can_roll_back
        self.n_read = len(self.cached)

    def copy_from(self, other):
        self.cached = list(other.cached)

    def rollback(self, to):
        del self.cached[to:]


def prepare_slot(pairs, prompt):
    return prefix_cache.prepare_slot(pairs, prompt, PrefixStore(0))


def reads_prefix(pairs, others, prompt):
    return prefix_cache.reads_prefix(pairs, others, prompt, PrefixStore(0))


def made(*caches, drafts=False, can_roll_back=True):
    return [
        SlotPair(
            Books(i, cached, can_roll_back), Books(i, [*cached, 7, 7], True) if drafts else None
        )
        for i, cached in enumerate(caches)
    ]


def busy(*pairs):
    for pair in pairs:
        pair.task = object()


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix(a, b):
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))
    assert common(a, b) == len(list(pairs))


def test_the_longest_prefix_wins_and_the_last_token_does_not_count():
    pairs = made(TEXT[:10], TEXT[:30], TEXT[:29])
    assert prepare_slot(pairs, TEXT[:30]) is pairs[1]
    assert prepare_slot(pairs, TEXT[:60]) is pairs[1]
    pairs[1].used_at = 5  # with 29 of 30 tokens in both, the older is taken
    assert prepare_slot(pairs, TEXT[:30]) is pairs[2]


def test_a_prefix_that_another_request_reads_is_waited_for():
    pairs = made([], TEXT[:40])
    assert reads_prefix(pairs, [TEXT], [*TEXT[:104], 1])
    assert not reads_prefix(pairs, [TEXT], [*TEXT[:103], 1])  # less than 64 more than a slot has
    assert not reads_prefix(pairs, [], TEXT)
    assert not reads_prefix(made(TEXT[:104]), [TEXT], [*TEXT[:104], 1])  # it is read now
    assert not reads_prefix(made([], can_roll_back=False), [TEXT], TEXT)


def test_without_a_prefix_the_oldest_and_then_the_lowest():
    pairs = made([1], [2], [3], [4])
    for pair, used_at in zip(pairs, (4, 2, 2, 9), strict=True):
        pair.used_at = used_at
    assert prepare_slot(pairs, TEXT[:9]) is pairs[1]
    busy(pairs[1])
    assert prepare_slot(pairs, TEXT[:9]) is pairs[2]


def test_a_busy_slot_is_never_chosen():
    pairs = made(TEXT, [])
    busy(pairs[0])
    assert prepare_slot(pairs, TEXT[:40]) is pairs[1]
    assert pairs[1].target.cached == []  # too few to copy


@pytest.mark.parametrize("drafts", [False, True])
def test_a_long_prefix_of_a_busy_slot_is_copied(drafts):
    pairs = made(TEXT[:200], [], TEXT[:20], drafts=drafts)
    busy(pairs[0])
    pairs[1].used_at, pairs[2].used_at = 1, 2
    pairs[0].first.offset = 3
    chosen = prepare_slot(pairs, TEXT[:150])
    assert chosen is pairs[1], "the one that was not used for longest, not the one with 20 tokens"
    assert chosen.target.cached == TEXT[:149]
    assert pairs[0].target.cached == TEXT[:200]
    assert pairs[2].target.cached == TEXT[:20]
    if drafts:
        assert chosen.draft.cached == [*TEXT[:200], 7, 7]
        assert chosen.first.offset == 3


@pytest.mark.parametrize(("n_free", "copied"), [(86, False), (85, True)])
def test_a_copy_must_save_64_tokens(n_free, copied):
    pairs = made(TEXT, TEXT[:n_free], [5])
    busy(pairs[0])
    pairs[2].used_at = -1
    chosen = prepare_slot(pairs, TEXT[:150])
    assert (chosen is pairs[2]) == copied
    assert (chosen is pairs[1]) != copied


def test_a_model_that_cannot_roll_back_copies_nothing():
    pairs = made(TEXT, [], can_roll_back=False)
    busy(pairs[0])
    chosen = prepare_slot(pairs, TEXT[:150])
    assert (chosen, chosen.target.cached) == (pairs[1], [])


def test_a_model_that_cannot_roll_back_uses_complete_caches_only():
    pairs = made(TEXT[:90], TEXT[:20], [], can_roll_back=False)
    assert prepare_slot(pairs, TEXT[:80]) is pairs[1]
    assert prepare_slot(pairs, TEXT[:91]) is pairs[0]
