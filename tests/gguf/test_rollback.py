"""Rollbacks of recurrent and hybrid models: the rows after any rollback are those of plain decoding."""

import importlib.util
import random
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.errors import DecodeError, RollbackError
from gguf_spec.gguf.architectures import architecture
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.recurrent_state import RecurrentState
from gguf_spec.passes import PassPart
from gguf_spec.speculative.cost_model import CostModel, Pace
from gguf_spec.speculative.scheduler import Scheduler, Side, SlotPair
from tests.support import families

RECURRENT = [name for name in families.NAMES if architecture(name).cache != "attention"]
WITH_SNAPSHOTS = [name for name in RECURRENT if architecture(name).has_snapshots]
TEXT = [int(token) for token in np.random.default_rng(3).integers(20, 250, 120)]
JUNK = 60
SCRIPTS = Path(__file__).parents[2] / "scripts" / "docs"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: families.write_family(folder, name) for name in families.NAMES}


def opened(path, n_snapshots=0, n_ctx=256):
    return Context(
        path, ContextOptions(n_ctx=n_ctx, threads=1, extra_bufts=False, n_snapshots=n_snapshots)
    ).sequences[0]


def single_rows(model):
    """Return the rows of the text in passes over one token each."""
    model.rollback(0)
    return [np.array(model.logits([token], 1)[0]) for token in TEXT]


@pytest.mark.parametrize("name", families.NAMES)
def test_the_table_agrees_with_llama_cpp(files, name):
    model = opened(files[name], n_snapshots=3)
    facts = architecture(name)
    assert model.can_roll_back == (facts.cache == "attention")
    expected = 3 if facts.has_snapshots else 0
    assert model.free_rollback == (model.n_ctx if model.can_roll_back else expected)
    assert model.why_plain == ""
    model.close()


@pytest.mark.few(9)
@pytest.mark.parametrize(
    ("name", "n_snapshots"),
    [(name, 0) for name in RECURRENT] + [(name, n) for name in WITH_SNAPSHOTS for n in (1, 4)],
)
def test_passes_with_wrong_tokens_leave_nothing_behind(files, name, n_snapshots):
    """Passes of any width decode right tokens and then wrong ones; the wrong ones are dropped, in one rollback or in two."""
    model, chance = opened(files[name], n_snapshots), random.Random(1)
    rows = single_rows(model)
    model.rollback(0)
    n_wrong = 0
    while model.n_past < len(TEXT) - 20:
        n, right, wrong = model.n_past, chance.randrange(1, 9), chance.randrange(0, 9)
        tokens = [*TEXT[n : n + right], *[JUNK] * wrong]
        got = model.logits(tokens, min(len(tokens), wrong + chance.randrange(1, right + 1)))
        first = len(tokens) - len(got)
        for i, row in enumerate(got[: right - first] if right > first else []):
            assert np.array_equal(row, rows[n + first + i])
        n_wrong += bool(wrong)
        if chance.random() < 0.3 and wrong > 1:
            model.rollback(n + right + 1)
        model.rollback(n + right)
        assert model.n_past <= n + right
        assert model.cached == TEXT[: model.n_past]
        assert model.n_past in (n, n + right)
        assert n_snapshots < wrong or model.n_past == n + right
    counts = model.recurrent.counts
    assert counts.snapshots + counts.checkpoints >= n_wrong * 0.8 > 5
    assert bool(counts.snapshots) == bool(n_snapshots)
    assert counts.checkpoints > 0
    model.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_a_lasting_checkpoint_is_kept_longer_than_others(files, name):
    model = opened(files[name])
    rows = single_rows(model)
    model.rollback(0)
    model.read(TEXT[:50])
    model.hold(lasting=True)
    for start in range(50, 90, 8):
        model.logits(TEXT[start : start + 8], 4)
    model.rollback(70)
    assert model.n_past == 50
    assert np.array_equal(model.logits(TEXT[50:53], 1)[0], rows[52])
    model.rollback(50)
    assert model.n_past == 50
    with pytest.raises(RollbackError):
        model.rollback(49)
    assert model.cached == TEXT[:50]
    model.rollback(0)
    model.read(TEXT[:60])
    with pytest.raises(RollbackError):
        model.rollback(55)  # the checkpoint is of a text that is gone
    model.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_a_checkpoint_of_a_removed_text_is_not_used(files, name):
    model = opened(files[name])
    rows = single_rows(model)
    model.rollback(0)
    model.read(TEXT[:40])
    model.hold()
    model.read(TEXT[40:50])
    model.hold(lasting=True)
    model.read(TEXT[50:60])
    model.rollback(45)
    assert model.n_past == 40
    model.read([JUNK] * 15)
    model.rollback(52)
    assert model.n_past == 40
    assert np.array_equal(model.logits(TEXT[40:53], 1)[0], rows[52])
    model.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_states_are_saved_after_a_postponed_rollback(files, name):
    model = opened(files[name], n_snapshots=4)
    rows = single_rows(model)
    model.rollback(0)
    model.logits([*TEXT[:20], JUNK, JUNK], 4)
    model.rollback(20)
    cached, n_read, state = [*model.cached], model.n_read, model.state().tobytes()
    model.rollback(0)
    assert model.restore(cached, n_read, state)
    n = model.n_past
    assert n == (20 if model.free_rollback else 0)
    assert np.array_equal(model.logits(TEXT[n:21], 1)[0], rows[20])
    with pytest.raises(RollbackError):
        model.rollback(max(1, n - 1) if n else 1)
    model.close()


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_snapshots_reach_into_the_last_pass_only(files, name):
    """llama.cpp itself would restore a state of an older pass here, and give no error."""
    model = opened(files[name], n_snapshots=4)
    model.logits(TEXT[:10], 1)
    model.logits(TEXT[10:12], 1)
    with pytest.raises(RollbackError):
        model.rollback(10)
    model.rollback(11)
    assert model.n_past == 11
    model.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_several_sequences_have_checkpoints_of_their_own(files, name):
    """One sequence rolls back while the other continues, in common passes."""
    model = opened(files[name])
    rows = single_rows(model)
    model.close()
    options = ContextOptions(n_ctx=256, threads=1, extra_bufts=False, parallel=2)
    slots = Context(files[name], options)
    one, other = slots.sequences
    for slot, n in ((one, 50), (other, 30)):
        slot.read(TEXT[:n])
        slot.hold(lasting=True)
    one.logits([*TEXT[50:52], JUNK, JUNK], 1)
    other.logits(TEXT[30:34], 1)
    one.rollback(52)
    assert one.n_past == 50
    parts = [PassPart(one, TEXT[50:54], 1), PassPart(other, TEXT[34:38], 1)]
    found = [np.array(rows_of) for rows_of in slots.decode(parts)]
    assert np.array_equal(found[0][0], rows[53])
    assert np.array_equal(found[1][0], rows[37])
    other.rollback(30)
    assert np.array_equal(other.logits(TEXT[30:33], 1)[0], rows[32])
    one.close()


def in_company(path, n, order, n_snapshots=4, widest=65):
    """Return slots that have read the text in an order, which is that of their states in llama.cpp."""
    options = ContextOptions(
        n_ctx=256, threads=1, extra_bufts=False, parallel=n, n_snapshots=n_snapshots
    )
    slots = Context(path, options)
    slots.widest = widest
    for i in order:
        slots.sequences[i].read(TEXT[: 20 + 10 * i])
        slots.sequences[i].hold(lasting=True)
    return slots


def pass_with_junk(slots, ids, n_right, n_wrong, **options):
    """Decode right tokens of the text and then wrong ones in a common pass, and drop the wrong ones."""
    parts = [
        PassPart(slots.sequences[i], [*TEXT[(n := slots.sequences[i].n_past) : n + n_right[i]], *[JUNK] * n_wrong[i]], 1 + n_wrong[i])
        for i in ids
    ]  # fmt: skip
    ends = [part.sequence.n_past + n_right[i] for i, part in zip(ids, parts, strict=True)]
    rows = [np.array(one) for one in slots.decode(parts, **options)]
    return parts, ends, rows


@pytest.mark.few(10)
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
@pytest.mark.parametrize(
    ("n", "order", "ids"),
    [
        (4, (2, 0, 1, 3), (0, 2, 3)),
        (4, (0, 1, 2, 3), (0, 1, 2, 3)),
        (6, (3, 0, 1, 2, 4, 5), (0, 1, 3, 4)),
        (6, (4, 1, 3, 0, 2, 5), (0, 1, 3, 4, 5)),
        (6, (5, 1, 3, 0, 2, 4), (0, 2, 4, 5)),
    ],
)
def test_llama_cpp_moves_no_state_without_its_snapshots(files, name, n, order, ids):
    """It decodes ids with gaps in several passes, and each makes its states neighbours: those of others make room."""
    model = opened(files[name])
    rows, chance = single_rows(model), random.Random(2)
    model.close()
    slots = in_company(files[name], n, order)
    for first in (True, *[False] * 7):
        n_right = {i: chance.randrange(1, 3) for i in ids}
        n_wrong = {i: chance.randrange(2 * first, 3) for i in ids}
        parts, ends, found = pass_with_junk(slots, ids, n_right, n_wrong)
        for part, end, row, i in zip(parts, ends, found, ids, strict=True):
            assert np.array_equal(row[0], rows[end - 1])
            part.sequence.rollback(end)
            if n_wrong[i] == 0:
                assert part.sequence.n_past == end
            part.sequence.rollback(end)
            n_past = part.sequence.n_past
            if n_past < end:  # read again with the next tokens
                part.sequence.read(TEXT[n_past:end])
    slots.close()


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_others_have_passes_before_a_rollback(files, name):
    """A checkpoint is there instead of the snapshots, which the pass of the others may overwrite."""
    model = opened(files[name])
    rows = single_rows(model)
    model.close()
    slots = in_company(files[name], 4, (2, 0, 1, 3))
    one, *_, last = slots.sequences
    slots.decode([PassPart(one, [*TEXT[20:22], JUNK, JUNK], 3)], holds=True)
    slots.decode([PassPart(last, TEXT[50:52], 2)])
    one.rollback(22)
    assert one.n_past == 20
    assert np.array_equal(one.logits(TEXT[20:23], 1)[0], rows[22])
    slots.close()


def test_a_state_that_cannot_be_restored_affects_only_its_sequence(files, monkeypatch):
    """The pass of another sequence fails once for it; then the sequence is empty, and is read again."""
    model = opened(files["qwen35"])
    rows = single_rows(model)
    model.close()
    slots, settle = in_company(files["qwen35"], 2, (0, 1)), RecurrentState.settle
    one, other = slots.sequences
    one.logits([*TEXT[20:22], JUNK], 2)
    one.rollback(22)

    def fail(self, n):
        if n == 22:
            raise DecodeError(-1, n, 0, "it cannot restore a state")
        settle(self, n)

    monkeypatch.setattr(RecurrentState, "settle", fail)
    with pytest.raises(DecodeError):
        other.logits(TEXT[30:32], 1)
    for slot in (other, one):
        assert slot.n_past == 0
        assert np.array_equal(slot.logits(TEXT[:31], 1)[0], rows[30])
    slots.close()


class Drafting:
    """A task that decodes the text, with wrong tokens after each part."""

    def __init__(self, scheduler, place, n_wrong):
        self.slot, self.n_wrong, self.error, self.rows = (
            scheduler.pairs[place].target,
            n_wrong,
            None,
            {},
        )
        self.task = scheduler.start(scheduler.pairs[place], self.run)

    def run(self):
        try:
            self.slot.read(TEXT[:30])
            self.slot.hold(lasting=True)
            for end in range(31, 60):
                pending = TEXT[self.slot.n_past : end]
                n = max(0, min(self.n_wrong, self.slot.free_rollback + 1 - len(pending)))
                rows = self.slot.logits([*pending, *[JUNK] * n], 1 + n)
                self.rows[end - 1] = np.array(rows[0])
                self.slot.rollback(end)
        except Exception as error:
            self.error = error


@pytest.mark.few(8)
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
@pytest.mark.parametrize(("widest", "failing"), [(65, ()), (6, ()), (65, (3, 9, 10)), (6, (1, 2))])
def test_drafts_of_recurrent_models_in_a_batch(files, name, widest, failing, monkeypatch):
    """In one pass or in several, some of which fail: each is decoded again, others in between."""
    model = opened(files[name])
    rows = single_rows(model)
    model.close()
    n_passes, decode = [0], Context.decode_sequences

    def decode_sequences(self, parts, *more):
        code = decode(self, parts, *more)
        if len(parts) > 1:
            n_passes[0] += 1
            return 1 if n_passes[0] in failing else code
        return code

    monkeypatch.setattr(Context, "decode_sequences", decode_sequences)
    slots = in_company(files[name], 4, (), widest=widest)
    pairs = [SlotPair(slot, None) for slot in slots.sequences]
    profile = CostModel({1: 0.01, 8: 0.012, 65: 0.03}, {}, 65, Pace())
    scheduler = Scheduler(pairs, Side(slots, profile), None)
    tasks = [Drafting(scheduler, i, n_wrong) for i, n_wrong in enumerate((2, 1, 0, 2))]
    while scheduler.step():
        pass
    for one in tasks:
        assert one.error is None
        assert len(one.rows) == 29
        assert all(np.array_equal(row, rows[n]) for n, row in one.rows.items())
    assert n_passes[0] >= max(failing, default=2)
    slots.close()


@pytest.mark.parametrize("name", RECURRENT)
def test_several_sequences_cannot_roll_back_without_snapshots(files, name):
    model = Context(
        files[name], ContextOptions(n_ctx=64, threads=1, extra_bufts=False, parallel=2)
    ).sequences[0]
    assert "with parallel requests" in model.why_plain
    model.close()


def test_the_documentation_names_what_is_tried():
    """The table of docs/models.md is generated from the table of architectures; it marks those with files here."""
    spec = importlib.util.spec_from_file_location("readme", SCRIPTS / "readme.py")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SCRIPTS))
        readme = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(readme)
    assert sorted(readme.TRIED) == sorted(families.NAMES)
    rows = readme.speculation().splitlines()[2:]
    for row, wanted in zip(
        rows,
        (
            set(families.NAMES) - set(RECURRENT),
            WITH_SNAPSHOTS,
            set(RECURRENT) - set(WITH_SNAPSHOTS),
        ),
        strict=True,
    ):
        assert {
            name for name in families.NAMES if f"`{name}`," in row or f"`{name}` |" in row
        } == set(wanted)
