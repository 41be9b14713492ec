"""Slots on a small real file: rows and caches of a slot do not depend on the other slots."""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from gguf_spec.errors import DecodeError, InvalidOptionError
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.recurrent_state import SPACING
from gguf_spec.options import K_MAX
from gguf_spec.passes import Exactness, PassPart
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from tests.support import tiny

N_CTX, N_SLOTS = 256, 6


def opened(file, parallel):
    return Context(file, ContextOptions(n_ctx=N_CTX, threads=1, parallel=parallel)).sequences[0]


@pytest.fixture(scope="module")
def pair(gguf_dir):
    """A context of several sequences, and one of a single sequence, of the same file."""
    several, single = opened(gguf_dir / "llama.gguf", N_SLOTS), opened(gguf_dir / "llama.gguf", 1)
    yield several, single
    several.close()
    single.close()


@pytest.fixture
def slots(pair):
    made = pair[0].context
    made.widest = K_MAX + 1
    for slot in made.sequences:
        slot.forget()
        slot.most_read = 0
    return made


def alone(pair, past, tokens, n_rows):
    """Rows of the model without other slots, behind tokens that were read."""
    model = pair[1]
    model.rollback(0)
    model.read(past)
    return model.logits(tokens, n_rows).copy()


def n_cells(slot):
    """Return the number of tokens in llama.cpp's cache of a slot; -1 for a gap or a different list."""
    native = slot.native
    first = native.cache(C.llama_memory_seq_pos_min, slot.index)
    last = native.cache(C.llama_memory_seq_pos_max, slot.index)
    return last + 1 if first == (0 if last >= 0 else -1) else -1


def check_books(slots):
    assert [n_cells(slot) for slot in slots.sequences] == [slot.n_past for slot in slots.sequences]


def some_tokens(rng, n):
    return [rng.randrange(len(tiny.TOKENS) - 3) for _ in range(n)]


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_ragged_parts_with_gaps_are_those_of_a_single_sequence(pair, slots, seed):
    """Random parts of random slots, cut back at random, for many passes."""
    rng = random.Random(seed)
    for slot in slots.sequences:
        slot.read(some_tokens(rng, rng.randrange(1, 40)))
    for _ in range(25):
        chosen = rng.sample(slots.sequences, rng.randrange(1, N_SLOTS + 1))
        parts = []
        for slot in chosen:
            tokens = some_tokens(rng, rng.randrange(1, 7))
            parts.append(PassPart(slot, tokens, rng.randrange(1, len(tokens) + 1)))
        pasts = [list(part.sequence.cached) for part in parts]
        rows = [np.array(one) for one in slots.decode(parts)]
        for part, past, found in zip(parts, pasts, rows, strict=True):
            assert part.sequence.cached == [*past, *part.tokens]
            assert np.array_equal(found, alone(pair, past, part.tokens, part.n_rows))
        check_books(slots)
        for slot in slots.sequences:
            if slot.n_past > 40 or rng.random() < 0.3:
                slot.rollback(rng.randrange(slot.n_past + 1))
        check_books(slots)


def test_equal_parts_of_all_slots_are_one_pass(slots, monkeypatch):
    """Shorter parts and gaps are filled, so that llama.cpp gets equal numbers of rows."""
    seen = []
    decode = Context.decode_sequences
    monkeypatch.setattr(
        Context,
        "decode_sequences",
        lambda self, parts: (
            seen.append([(p.sequence, len(p.tokens)) for p in parts]) or decode(self, parts)
        ),
    )
    a, b, c, d, *_ = slots.sequences
    slots.decode([PassPart(d, [1], 1), PassPart(a, [1, 2, 3], 1), PassPart(b, [1, 2], 2)])
    assert seen == [[(0, 3), (1, 3), (2, 3), (3, 3)]]
    assert [slot.n_past for slot in slots.sequences] == [3, 2, 0, 1, 0, 0]
    check_books(slots)
    slots.decode([PassPart(slots.sequences[5], [1], 1), PassPart(c, [1], 1)])
    assert seen[1] == [(2, 1), (5, 1)], "too many gaps to fill"
    slots.decode([PassPart(a, [1], 1)])
    assert seen[2] == [(0, 1)]


@pytest.mark.parametrize("widest", [3, 4])
def test_fillers_make_no_pass_wider_than_the_widest(slots, monkeypatch, widest):
    slots.widest, seen = widest, []
    decode = Context.decode_sequences
    monkeypatch.setattr(
        Context,
        "decode_sequences",
        lambda self, parts: seen.append(sum(len(p.tokens) for p in parts)) or decode(self, parts),
    )
    slots.decode([PassPart(slots.sequences[i], [1], 1) for i in (0, 2, 3)])
    assert seen == [widest]


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_slot_at_the_end_of_its_context(pair, slots, left):
    """There is no room for fillers: neither the rows of the others nor its own change."""
    rng = random.Random(left)
    full, other, gap, last = slots.sequences[:4]
    full_past, gap_past = some_tokens(rng, N_CTX - 1 - left), some_tokens(rng, N_CTX - 1)
    full.read(full_past)
    gap.read(gap_past)
    parts = [PassPart(full, [5], 1), PassPart(other, [1, 2, 3, 4], 4), PassPart(last, [9, 8], 1)]
    rows = [np.array(one) for one in slots.decode(parts)]
    assert np.array_equal(rows[0], alone(pair, full_past, [5], 1))
    assert np.array_equal(rows[1], alone(pair, [], [1, 2, 3, 4], 4))
    assert np.array_equal(rows[2], alone(pair, [], [9, 8], 1))
    check_books(slots)
    with pytest.raises(DecodeError):
        slots.decode([PassPart(full, [1] * (left + 1), 1), PassPart(other, [1], 1)])
    assert (full.n_past, other.n_past) == (N_CTX - left, 4), "checked before the pass"
    assert np.array_equal(
        slots.decode([PassPart(gap, [6], 1), PassPart(other, [5], 1)])[0],
        alone(pair, gap_past, [6], 1),
    )


def test_copies_and_rollbacks(pair, slots):
    a, b, c, *_ = slots.sequences
    rng = random.Random(1)
    past = some_tokens(rng, 90)
    a.read(past[:80])
    for token in past[80:]:
        a.logits([token], 1)
    b.read(some_tokens(rng, 30))
    b.copy_from(a)
    assert (b.cached, b.n_read) == (past, 80), "tokens of an answer were not read by prefill"
    c.copy_from(b)  # a copy of a copy that no pass has made yet
    b.rollback(50)
    a.forget()
    assert (a.n_past, b.n_past, b.n_read, c.n_past) == (0, 50, 50, 90)
    check_books(slots)
    rows = slots.decode([PassPart(a, [1], 1), PassPart(b, [2], 1), PassPart(c, [3], 1)])
    rows = [np.array(one) for one in rows]
    for found, behind, token in zip(rows, ([], past[:50], past), (1, 2, 3), strict=True):
        assert np.array_equal(found, alone(pair, behind, [token], 1))
    a.rollback(7)
    assert a.n_past == 1


def test_long_inputs_are_read_before_their_rows(pair, slots):
    tokens, exactness = some_tokens(random.Random(2), 150), slots.exactness
    rows = np.array(slots.sequences[3].logits(tokens, 3))
    assert np.array_equal(rows, alone(pair, tokens[:-3], tokens[-3:], 3))
    slots.sequences[2].most_read = 64
    assert slots.sequences[2].reads_at_once == 64
    slots.exactness = Exactness(grid=48)
    assert slots.sequences[2].reads_at_once == 48, "where ends matter, a multiple of the grid"
    slots.sequences[2].most_read = 20
    assert slots.sequences[2].reads_at_once == 48
    slots.exactness = exactness
    slots.sequences[2].read(tokens)
    assert slots.sequences[2].cached == tokens
    check_books(slots)


@pytest.mark.parametrize(("tokens", "n_rows"), [([1], 2), ([1], 0), ([10**6], 1), ([-1], 1)])
def test_what_llama_cpp_would_abort_on_is_refused(slots, tokens, n_rows):
    with pytest.raises(InvalidOptionError):
        slots.sequences[1].logits(tokens, n_rows)
    check_books(slots)


@pytest.mark.parametrize("code", [1, -3])
def test_a_failed_pass_empties_the_caches_of_its_parts_only(pair, slots, monkeypatch, code):
    """Those of gaps, which only have fillers in the pass, are kept."""
    a, gap, b, other = slots.sequences[:4]
    for slot in (a, gap, b, other):
        slot.read([1, 2, 3])
    decode = Context.decode_sequences
    monkeypatch.setattr(Context, "decode_sequences", lambda *args: (decode(*args) and 0) or code)
    with pytest.raises(DecodeError) as caught:
        slots.decode([PassPart(a, [4, 5], 1), PassPart(b, [4], 1)])
    monkeypatch.undo()
    assert caught.value.code == code
    assert [slot.n_past for slot in (a, gap, b, other)] == [0, 3, 0, 3]
    check_books(slots)
    assert np.array_equal(slots.decode([PassPart(gap, [9], 1)])[0], alone(pair, [1, 2, 3], [9], 1))
    slots.refill(a, [1, 2, 3], 3)
    assert (a.cached, a.n_read) == ([1, 2, 3], 3)
    check_books(slots)


@pytest.mark.parametrize("kind", ["llama", "mamba"])
def test_an_interrupted_pass_leaves_no_tokens_that_are_not_counted(gguf_dir, monkeypatch, kind):
    """Ctrl-C after llama.cpp's pass; a recurrent state cannot drop its last tokens."""
    model = opened(gguf_dir / f"{kind}.gguf", 2)
    try:
        slots = model.context
        for slot in slots.sequences:
            slot.read([1, 2, 3])
        decode = Context.decode_sequences

        def interrupted(*args):
            decode(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(Context, "decode_sequences", interrupted)
        with pytest.raises(KeyboardInterrupt):
            slots.sequences[0].logits([4, 5], 1)
        monkeypatch.undo()
        ends = [slot.n_past - 1 for slot in slots.sequences]
        assert ends == [model.native.cache(C.llama_memory_seq_pos_max, i) for i in range(2)]
        assert slots.sequences[1].cached == [1, 2, 3]
    finally:
        model.close()


def test_a_pass_for_the_copies_of_a_slot_sets_the_threads_of_the_model(gguf_dir):
    """The context has one number of threads, which the model knows."""
    model = opened(gguf_dir / "llama.gguf", 2)
    try:
        first, other = model.context.sequences
        first.read([1, 2, 3])
        other.copy_from(first)
        model.context._governor = SimpleNamespace(
            choose=lambda _: 2, observe=lambda *_: None, forget=lambda *_: None
        )
        assert other.state_bytes() > 0
        assert model.context.threads == 2
    finally:
        model.close()


def test_a_moved_sequence_continues_with_the_same_bits(pair, slots):
    """The sequence has another slot, its old slot is empty, and no other slot changes."""
    rng = random.Random(8)
    texts = [some_tokens(rng, 30 + 5 * i) for i in range(3)]
    for slot, text in zip(slots.sequences, texts, strict=False):
        slot.read(text)
    moved, free = slots.sequences[0], slots.sequences[4]
    free.read([7, 8, 9])
    slots.move(moved, free)
    assert (moved.index, free.index, free.cached) == (4, 0, [])
    assert [slot.index for slot in slots.sequences] == list(range(N_SLOTS))
    for i, slot in enumerate((moved, slots.sequences[1], slots.sequences[2], free)):
        past = texts[i] if i < 3 else []
        rows = slots.decode([PassPart(slot, [5, 6], 2)])[0]
        assert np.array_equal(rows, alone(pair, past, [5, 6], 2))
    check_books(slots)


def test_no_slot_keeps_a_state_that_a_test_found_not_restorable(gguf_dir):
    """The pair says so to its target; all sequences of the target hear of it."""
    model = opened(gguf_dir / "mamba.gguf", 4)
    try:
        pair = ModelPair(model, None)
        slots = [one.target for one in pair.slots]
        text = some_tokens(random.Random(3), SPACING)

        def n_kept():
            for slot in slots:
                slot.forget()
                slot.recurrent.limit = 1 << 30
                slot.read(text)
                slot.keep_state()
            return [len(slot.recurrent.kept) for slot in slots]

        model.context.exactness = replace(
            model.exactness, grid=0
        )  # so that each length may be kept
        assert n_kept() == [1] * 4
        pair.use_profile(replace(DEFAULT_PROFILE, restores=False))
        assert n_kept() == [0] * 4
        said = "llama.cpp did not restore the state of mamba.gguf in a test"
        assert {slot.context.why_untrusted for slot in slots} == {said}
    finally:
        model.close()
