"""States of sequences on small real files: a sequence that is put back has the rows of one that stayed, bit by bit."""

import random

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import RollbackError
from gguf_spec.llama.context import Context
from gguf_spec.llama.head import SharedHead
from gguf_spec.llama.options import ContextOptions
from gguf_spec.passes import PassPart
from tests.support import tiny

N_CTX, WINDOW = 256, 32
PAST = [random.Random(7).randrange(len(tiny.TOKENS) - 3) for _ in range(150)]
OTHER = [1, 2, 3, 4] * 37 + [1, 2]


def gemma():
    """A model with sliding-window attention in every other layer."""
    rng, metadata = np.random.default_rng(3), tiny.llama()[0]
    metadata = {
        key.replace("llama", "gemma2"): "gemma2" if value == "llama" else value
        for key, value in metadata.items()
    }
    metadata |= {
        "gemma2.block_count": 2,
        "gemma2.attention.sliding_window": WINDOW,
        "gemma2.attention.key_length": 32,
        "gemma2.attention.value_length": 32,
    }
    tensors = {k: v for k, v in tiny.llama(n_layer=2, seed=5)[1].items() if k != "output.weight"}
    for i in range(2):
        for name in ("post_attention_norm", "post_ffw_norm"):
            tensors[f"blk.{i}.{name}.weight"] = rng.normal(1, 0.1, tiny.N_EMBD).astype(np.float32)
    return metadata, tensors


@pytest.fixture(scope="module")
def files(gguf_dir, tmp_path_factory):
    path = tmp_path_factory.mktemp("window") / "gemma2.gguf"
    return {"llama": gguf_dir / "llama.gguf", "gemma2": tiny.write(path, gemma())} | {
        kind: gguf_dir / f"{kind}.gguf" for kind in ("mamba", "lfm2")
    }


def opened(file, parallel, **options):
    given = ContextOptions(n_ctx=N_CTX, threads=1, parallel=parallel, **options)
    return Context(file, given).sequences[0]


@pytest.fixture(scope="module")
def several(files):
    made = {kind: opened(path, 4) for kind, path in files.items()}
    yield made
    for model in made.values():
        model.close()


@pytest.fixture
def slots(several, request):
    made = several[getattr(request, "param", "llama")].context
    for slot in made.sequences:
        slot.forget()
    return made


def row(slot, token=5):
    return np.array(slot.logits([token], 1)[0])


@pytest.mark.parametrize("slots", ["llama", "gemma2", "mamba", "lfm2"], indirect=True)
def test_a_state_in_another_slot_gives_the_bits_of_the_first(slots):
    a, b, c, _ = slots.sequences
    b.read(PAST[:20])
    a.read(PAST)
    a.logits([9], 1)
    if a.least_cut_of_state(len(PAST)) and not slots.restores_windows:
        assert a.state_bytes() == len(a.state()) == 0
        return
    state, n_read = a.state(), a.n_read
    b.rollback(0)
    assert b.restore(a.cached, n_read, state)
    assert (b.cached, b.n_read) == ([*PAST, 9], len(PAST))
    assert b.restore(a.cached, n_read, state.tobytes()), "over itself"
    wanted = row(a)
    assert np.array_equal(row(b), wanted)
    assert c.restore(a.cached[:-1], n_read, state)  # a neighbour in a common pass
    rows = slots.decode([PassPart(c, [7], 1), PassPart(a, [7], 1), PassPart(b, [7], 1)])
    assert np.array_equal(rows[1], rows[2])


@pytest.mark.parametrize("parallel", [1, 2])
def test_kernels_that_add_by_cells_give_no_state_of_a_window(files, parallel):
    """A restored window begins in the first cells: the sums would be in another order."""
    model = opened(files["gemma2"], parallel, flash_attention="off")
    assert not model.context.restores_windows
    model.read(PAST[:WINDOW])
    assert model.state_bytes() and len(model.state())
    model.read(PAST[WINDOW:])
    assert model.state_bytes() == len(model.state()) == 0
    model.close()
    draft = opened(files["gemma2"], parallel, flash_attention="off", drafts=True)
    draft.read(PAST)
    assert draft.state_bytes(), "the bits of a draft do not matter"
    draft.close()


def test_a_state_that_was_cut_gives_the_bits_of_a_shorter_text(slots):
    a, b, *_ = slots.sequences
    a.read(PAST)
    b.restore(PAST, len(PAST), a.state())
    b.rollback(70)
    a.rollback(70)
    assert (b.n_past, b.n_read) == (70, 70)
    assert np.array_equal(row(b), row(a))


@pytest.mark.parametrize("draft", [False, True])
def test_a_session_without_a_state_of_the_target(files, tmp_path, draft):
    model = files["gemma2"]
    options = {"threads": 1, "extra_bufts": False, "flash_attention": "off", "n_ctx": N_CTX}
    with gguf_spec.load(model, model if draft else None, **options) as llm:
        chat, whole = llm.chat(), Sampling(max_tokens=40, ignore_eos=True)
        chat.send("the cat sat on the mat", whole)
        chat.save(tmp_path / "chat")
        other = llm.chat()
        assert other.restore(tmp_path / "chat") == "it was saved without caches"
        assert other.messages == chat.messages
        other.send("on", whole)


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_state_with_a_window_is_not_cut_into(files, parallel):
    """It lacks the tokens before the window, which a shorter text would need in its own window."""
    with_window = opened(files["gemma2"], parallel)
    with_window.context.restores_windows = True
    for one in with_window.context.sequences:
        one.rollback(0)
        one.read(PAST[:80])
        wanted = row(one)
        one.rollback(0)
        one.read(PAST)
        state = one.state()
        assert one.restore(PAST, len(PAST), state)
        with pytest.raises(RollbackError):
            one.rollback(80)
        assert one.n_past == len(PAST)
        one.read(PAST[:10])
        one.rollback(len(PAST))  # behind the state there are all tokens
        one.rollback(0)
        one.read(PAST[:80])
        assert np.array_equal(row(one), wanted)
        one.rollback(0)
        one.read(PAST[:WINDOW])
        assert one.restore(PAST[:WINDOW], WINDOW, one.state())
        one.rollback(WINDOW // 2)  # nothing is missing
        assert one.n_past == WINDOW // 2
    with_window.close()


def test_what_a_window_lacks_matters(files):
    """Without the refusal the rows would differ: llama.cpp reports no error."""
    model = opened(files["gemma2"], 1)
    model.context.restores_windows = True
    model.read(PAST[:80])
    wanted = row(model)
    model.rollback(0)
    model.read(PAST)
    model.restore(PAST, len(PAST), model.state())
    model.least_cut = 0
    model.rollback(80)
    assert not np.array_equal(row(model), wanted)
    model.close()


def test_a_copy_that_waits_for_a_pass_is_in_the_state(slots):
    """llama.cpp copies with the next pass; before it the data of the slot are the old ones."""
    a, b, c, _ = slots.sequences
    a.read(PAST)
    b.read(OTHER)
    b.copy_from(a)
    b.rollback(100)
    state = b.state()
    c.restore(PAST[:100], 100, state)
    a.rollback(100)
    wanted = row(a)
    assert np.array_equal(row(c), wanted)
    assert (b.n_past, b.cached) == (100, PAST[:100])
    assert np.array_equal(row(b), wanted)
    c.forget()
    c.read(OTHER[:100])
    assert not np.array_equal(row(c), wanted), "what it had before would show"


@pytest.mark.parametrize("order", ["into the copy", "into its source"])
def test_a_state_is_not_overwritten_by_a_copy_that_waits(slots, order):
    a, b, c, _ = slots.sequences
    a.read(PAST)
    c.read(OTHER)
    other = c.state()
    b.copy_from(a)
    to, left = (b, a) if order == "into the copy" else (a, b)
    assert to.restore(OTHER, len(OTHER), other)
    assert np.array_equal(row(to), row(c))
    c.forget()
    c.read(PAST)
    assert np.array_equal(row(left), row(c))


def test_full_slots_leave_no_room_for_the_pass_of_a_copy(slots):
    """The state is refused, and nothing is damaged."""
    text = (PAST * 2)[:N_CTX]
    for slot in slots.sequences:
        slot.read(text)
    state = slots.sequences[0].state()
    slots.sequences[1].copy_from(slots.sequences[0])
    assert (slots.sequences[1].state_bytes(), len(slots.sequences[1].state())) == (0, 0)
    for slot in slots.sequences:
        slot.rollback(N_CTX - 1)
    assert len(slots.sequences[1].state()) == pytest.approx(len(state), rel=0.02)


def test_a_head_in_the_cache_of_its_target_has_an_empty_state():
    """As `state_bytes` says; else a session file would have another length than its header says."""
    head = object.__new__(SharedHead)  # no such file is small enough
    head._cached = [1, 2, 3]
    assert (head.state_bytes(), len(head.state())) == (0, 0)


def test_a_damaged_state_leaves_an_empty_slot(slots):
    a, b, *_ = slots.sequences
    a.read(PAST)
    state = a.state()
    b.read(PAST[:9])
    assert not b.restore(PAST, len(PAST), state[: len(state) // 2])
    assert (b.n_past, b.n_read) == (0, 0)
    assert not b.restore(PAST[:-1], len(PAST), state), "not that many tokens"
    assert not b.restore([1] * (N_CTX + 1), 1, state)
    assert b.restore([], 0, b"")
    assert (b.state_bytes(), len(b.state())) == (0, 0)
    a.rollback(70)
    b.read(PAST[:70])
    assert np.array_equal(row(b), row(a))
