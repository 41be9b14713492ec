"""The store of kept prefixes, on caches that only list tokens."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.errors import RollbackError
from gguf_spec.llama.recurrent_state import Checkpoint
from gguf_spec.passes import Exactness
from gguf_spec.runtime import prefix_cache
from gguf_spec.runtime.prefix_cache import LEAST_COPIED, PrefixStore
from gguf_spec.speculative.drafters import FirstRead
from gguf_spec.speculative.scheduler import SlotPair
from gguf_spec.system.machine import parse_bytes
from gguf_spec.vocabulary import common

A, B, C = ([*range(start, start + 300)] for start in (1000, 2000, 3000))


class Cache:
    """A cache with 10 bytes for each token; its state is its tokens."""

    index, least_cut, recurrent = 0, 0, None

    def __init__(self, tokens=(), grid=0, can_roll_back=True, clock=None):
        self.cached, self.can_roll_back = [*tokens], can_roll_back
        self.exactness = Exactness(grid=grid)
        self.n_read, self.fails, self.clock, self.window = len(self.cached), False, clock, 0

    def least_cut_of_state(self, n_tokens):
        return n_tokens if self.window else 0

    def rollback(self, to):
        if to < len(self.cached):
            if to and not self.can_roll_back:
                raise RollbackError("x", 1, 0)
            del self.cached[to:]
            self.n_read = min(self.n_read, to)

    def state_bytes(self):
        return 10 * len(self.cached)

    def state(self):
        if self.fails:
            raise MemoryError
        if self.clock:
            self.clock.now += 1e-3
        return np.zeros(self.state_bytes(), np.uint8)

    def restore(self, tokens, n_read, state):
        self.cached, self.n_read = ([], 0) if self.fails else ([*tokens], n_read)
        return not self.fails

    def copy_from(self, other):
        self.cached = [*other.cached]

    def read(self, tokens):
        """Read a text as a request does, without its answer."""
        self.rollback(common(self.cached, tokens))
        self.cached[:] = tokens
        self.n_read = len(tokens)


def caches(target, draft=None):
    return SlotPair(target, draft)


def store_of(limit=10**6, **options):
    return PrefixStore(limit, **{"free": lambda: None, **options})


def visit(store, one, text):
    """Run a request for a text; return how many of its tokens need not be read."""
    store.save_and_restore(one, text)
    n = common(one.target.cached, text)
    one.target.read(text)
    return n


def test_a_prefix_is_used_again_after_another_text():
    store, one = store_of(), caches(Cache())
    assert [visit(store, one, text) for text in (A, B, A, [*B, 5, 6], [*A[:200], 7])] == [
        0,
        0,
        300,
        300,
        200,
    ]
    memory = store.memory()
    assert (memory.n_entries, memory.n_bytes) == (2, 6020)
    assert (memory.n_restored, memory.n_tokens_restored) == (3, 800)
    store.forget()
    assert visit(store, one, B) == 0
    assert store.memory().n_entries == 1, "what the cache had itself"


def test_short_texts_and_short_gains_are_not_copied():
    store, one = store_of(), caches(Cache())
    short = A[: LEAST_COPIED - 1]
    assert [visit(store, one, text) for text in (short, B, short)] == [0, 0, 0]
    assert visit(store, one, B[: 300 - LEAST_COPIED + 1]) == 300 - LEAST_COPIED + 1
    assert store.memory().n_saved == 1, "B once, and nothing for the end of B"


def test_a_prefix_of_a_kept_text_is_not_kept_twice():
    store, one = store_of(), caches(Cache())
    for text in (A[:100], B, A[:200], C, A, B):
        visit(store, one, text)
    assert store.memory().n_entries == 3
    assert store.memory().n_bytes == 9000
    n_saved = store.memory().n_saved
    one.target.read(A[:150])
    visit(store, one, C)
    assert store.memory().n_saved == n_saved, "a part of a kept text is not saved"


def test_the_least_recently_used_text_makes_room():
    store, one = store_of(6500), caches(Cache())
    visit(store, one, A)
    visit(store, one, B)
    visit(store, one, C)  # A and B are kept
    assert visit(store, one, A) == 300  # C is kept in place of B
    assert store.find(B).n == 0
    assert store.find(C).n == store.find(A).n == 300
    assert store.memory().n_bytes == 6000
    one.target.read([*A, *B, *C])
    visit(store, one, B)
    assert store.find(A).n == 300
    assert store.memory().n_bytes == 6000, "what is too large is not kept, and drops nothing"


def test_the_memory_of_others_is_left_to_them():
    free, store = 10**9, None
    store, one = store_of(free=lambda: free), caches(Cache())
    visit(store, one, A)
    visit(store, one, B)
    free = 0
    visit(store, one, C)
    assert store.memory().n_entries == 1, "B takes the place of A"
    assert store.find(B).n == 300
    free = 10**9
    visit(store, one, A)
    assert store.memory().n_entries == 2


@pytest.mark.parametrize(("token_s", "n_saved"), [(1.0, 3), (1e-6, 1)])
def test_what_is_read_faster_is_not_copied(token_s, n_saved):
    """The first copy measures: a millisecond for 300 tokens."""
    clock = SimpleNamespace(now=0.0)
    store, one = store_of(now=lambda: clock.now), caches(Cache(clock=clock))
    store.reading.learn(1, token_s)
    for text in (A, B, C, A[:10]):
        visit(store, one, text)
    assert store.memory().n_saved == n_saved
    assert visit(store, one, A) == (300 if n_saved == 3 else 10)


@pytest.mark.parametrize("place", ["save", "restore"])
def test_a_failure_only_loses_the_saving(place):
    store, one = store_of(), caches(Cache())
    visit(store, one, A)
    one.target.fails = place == "save"
    visit(store, one, B)
    one.target.fails = place == "restore"
    assert visit(store, one, A) == 0
    assert store.find(A).n == 0
    one.target.fails = False
    assert visit(store, one, B) == (300 if place == "save" else 0)


def test_a_draft_is_kept_with_the_text_that_it_read():
    store, one = store_of(), caches(Cache(), Cache())
    one.target.read(A)
    one.draft.read([*A[100:], 9])
    one.first.offset = 100
    visit(store, one, B)
    one.draft.read(C)  # of another text
    one.first.offset = 0
    visit(store, one, A)
    assert (one.draft.cached, one.first) == (A[100:], FirstRead(100))
    assert store.memory().n_bytes == 10 * (300 + 200 + 300)
    one.first.failed = True
    visit(store, one, B)
    visit(store, one, A)
    assert one.draft.cached == A[100:]
    assert not one.first.failed


def test_tokens_off_the_grid_are_neither_kept_nor_used():
    store, one = store_of(), caches(Cache(grid=64))
    one.target.read(A)
    one.target.n_read = 200
    visit(store, one, B)
    assert store.memory().n_bytes == 2000
    assert [store.find(text).n for text in (A, A[:200], A[:199], A[:63])] == [192, 200, 192, 0]
    one.target.n_read = 0
    visit(store, one, A)
    assert store.memory().n_entries == 1


@pytest.mark.parametrize("kind", ["recurrent", "window"])
def test_a_state_that_cannot_be_cut_serves_only_what_begins_with_all_of_it(kind):
    store, one = store_of(), caches(Cache(can_roll_back=kind == "window"))
    one.target.window = kind == "window"
    for text in (A[:100], C, A[:200], C, B):
        store.save_and_restore(one, text)
        one.target.cached, one.target.n_read = [*text], len(text)
    assert [store.find(text).n for text in (A, A[:199], A[:150], A[:99])] == [200, 100, 100, 0]
    assert store.memory().n_entries == 3, "a prefix is of use beside the longer one"


@pytest.mark.parametrize("kind", ["recurrent", "window"])
def test_a_state_that_cannot_be_cut_does_not_stand_for_its_prefixes(kind):
    """A text is kept although a longer one is kept, whose state cannot be cut."""
    store, one = store_of(), caches(Cache(can_roll_back=kind == "window"))
    one.target.window = kind == "window"
    for text in (A, B, A[:200], B):
        visit(store, one, text)
    assert visit(store, one, [*A[:200], 7]) == 200


@given(st.lists(st.lists(st.integers(0, 2), max_size=5), max_size=20), st.data())
def test_the_longest_prefix_of_all_is_found(texts, data):
    """Among texts that differ after a long common part, against a search through all."""
    store, one = store_of(10**9), caches(Cache())
    texts = [[*A[:80], *(2**31 + digit for digit in text)] for text in texts]
    for text in texts:
        one.target.cached = [*text]
        store.save_and_restore(one, [])
        one.target.cached = []
    wanted = [*A[:80], *(2**31 + digit for digit in data.draw(st.lists(st.integers(0, 2))))]
    assert store.find(wanted).n == max((common(text, wanted) for text in texts), default=0)
    kept = [text for text in texts if not any(text == o[: len(text)] != o for o in texts)]
    assert store.memory().n_entries <= len({*map(tuple, kept)})


def test_thousands_of_texts_are_searched_quickly():
    """By the number of comparisons, which do not depend on the clock."""
    store, one, rng = store_of(10**9), caches(Cache()), random.Random(1)
    for _ in range(2000):
        one.target.cached = [*A[:64], *(rng.randrange(50) for _ in range(40))]
        store.save_and_restore(one, [])
        one.target.cached = []
    seen = []
    kept = store._kept
    store._kept = SimpleNamespace(__getitem__=None)
    store._kept = type(
        "Counted", (), {"__getitem__": lambda _, key: seen.append(key) or kept[key]}
    )()
    assert store.find([*A[:64], *(rng.randrange(50) for _ in range(40))]).n >= 64
    assert len(seen) <= 3


# ---- with slots


def pairs_of(*texts):
    made = [SlotPair(Cache(text), None) for text in texts]
    for i, pair in enumerate(made):
        pair.target.index = i
    return made


def test_slots_give_their_text_to_the_store_and_get_it_back():
    store, pairs = store_of(), pairs_of(A, B)
    assert prefix_cache.prepare_slot(pairs, [*C, 1], store) is pairs[0]
    pairs[0].target.read(C)
    pairs[0].used_at = 1
    assert prefix_cache.prepare_slot(pairs, [*A, 1], store) is pairs[1]
    assert pairs[1].target.cached == A
    assert store.find(B).n == 300
    pairs[1].task = object()  # a copy of a busy slot is better than nothing, and saves the rest
    assert prefix_cache.prepare_slot(pairs, [*A[:280], 1], store) is pairs[0]
    assert pairs[0].target.cached == A[:280]
    assert store.find(C).n == 300


def test_the_longest_of_slots_and_store_wins():
    store, pairs = store_of(), pairs_of(A)
    prefix_cache.prepare_slot(pairs, [*B, 1], store)
    pairs = pairs_of(A[:200], C, B)
    pairs[2].used_at = pairs[0].used_at = 5
    assert prefix_cache.prepare_slot(pairs, [*A, 1], store) is pairs[1], "100 tokens more"
    assert pairs[1].target.cached == A
    pairs = pairs_of(A[:250], C)
    assert prefix_cache.prepare_slot(pairs, [*A, 1], store) is pairs[0], "50 are not worth a copy"


def test_a_kept_text_causes_no_wait():
    store, pairs = store_of(), pairs_of(A)
    assert prefix_cache.reads_prefix(pairs_of([]), [[*A, 1]], [*A, 2], store)
    prefix_cache.prepare_slot(pairs, [*B, 1], store)
    assert not prefix_cache.reads_prefix(pairs_of([]), [[*A, 1]], [*A, 2], store)


@pytest.mark.parametrize(
    ("text", "n"),
    [
        ("0", 0), ("500MB", 500_000_000), ("2GiB", 2 << 30), ("1.5 g", 3 << 29), (" 64 kib ", 65536),
        ("3B", 3), ("1TB", 10**12), ("0.0", 0),
    ],
)  # fmt: skip
def test_sizes(text, n):
    assert parse_bytes(text) == n


@pytest.mark.parametrize("text", ["", "512", "-1GB", "GB", "1 XB", "1e9", "1GBs", "nan", "9" * 40])
def test_wrong_sizes(text):
    with pytest.raises(ValueError):
        parse_bytes(text)


def test_a_checkpoint_is_used_up_to_what_two_texts_share():
    points = [Checkpoint(n, np.zeros(1, np.uint8)) for n in (100, 200)]
    state = prefix_cache.SavedState(A, len(A), np.zeros(1, np.uint8), 0, points)
    kept = prefix_cache.Kept(state, None, Exactness(), is_whole=True)
    for same, n in ((99, 0), (100, 100), (199, 100), (200, 200), (299, 200), (300, 300)):
        assert kept.reusable([*A[:same], 9, 9]) == n
