"""An edited prompt of a recurrent or hybrid model is read from a checkpoint before the edit, and its text is that of a cold run."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.gguf.architectures import architecture
from gguf_spec.llama.context import Context
from gguf_spec.llama.memory import needs, state_bytes
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.recurrent_state import SPACING, least_needed
from gguf_spec.speculative.prefix import read_on, retain_prefix, reusable
from tests.support import families
from tests.support.batch_requests import outcome, together

RECURRENT = [name for name in families.NAMES if architecture(name).cache != "attention"]
# one with snapshots and attention, one with neither, one with attention and without snapshots
FEW = ("qwen35", "mamba2", "granitehybrid")
TOKENS = np.random.default_rng(7).integers(20, 250, (4, 1600)).tolist()
SAMPLINGS = [Sampling(max_tokens=8, temperature=0.8 * (i % 2), seed=i) for i in range(4)]
PLENTY = "64MB"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for name in RECURRENT:
        families.write_family(folder, name)
    families.write_family(folder, "qwen35", seed=1, suffix="-cousin")
    return folder


def loaded(folder, name, draft=None, **options):
    options = {"threads": 1, "extra_bufts": False, "n_ctx": 1792, "prefix_memory": PLENTY} | options
    return gguf_spec.load(folder / f"{name}.gguf", draft, **options)


def edited(at, n=1300, other=1, text=0):
    """Return a prompt of `n` tokens that differs from a text from a position on."""
    return [*TOKENS[text][:at], *TOKENS[other][at:n]]


def row_after(model, tokens):
    """Read a prompt as a request does; return how much was cached, and the row after it."""
    retain_prefix(model, tokens[:-1])
    n_cached = model.n_past
    read_on(model, tokens[:-1], lambda: False)
    model.hold(lasting=True)
    return n_cached, np.array(model.logits(tokens[-1:], 1)[0])


def check_every_edit(path, grid, n, n_most):
    """Check edits at all positions of a text, with memory for `n_most` checkpoints."""
    options = ContextOptions(n_ctx=256, threads=1, extra_bufts=False)
    warm, cold = (Context(path, options).sequences[0] for _ in range(2))
    for model in (warm, cold):
        model.recurrent.spacing = 16
        model.context.reads_at_once, model.context.exactness = (
            16,
            replace(model.exactness, grid=grid),
        )
    text = TOKENS[0][:n]
    _, first = row_after(warm, text)
    size = warm.recurrent.n_bytes
    warm.recurrent.limit = n_most * size
    n_again = 0
    for at in range(n):
        warm.rollback(0)
        assert np.array_equal(row_after(warm, text)[1], first)
        assert warm.recurrent.n_bytes == min(n_most + 1, -(-n // 16)) * size, "one is at the end"
        prompt = edited(at, n=at + 30)
        n_cached, row = row_after(warm, prompt)
        assert n_cached <= at
        n_again += at - n_cached
        cold.rollback(0)
        assert np.array_equal(row, row_after(cold, prompt)[1])
    assert n_again < n * n / n_most, "even gaps would give half of it"
    warm.close()
    cold.close()


@pytest.mark.full
@pytest.mark.parametrize("grid", [0, 16])
@pytest.mark.parametrize("name", ["qwen35", "lfm2"])
def test_every_position_of_an_edit(folder, name, grid):
    """With checkpoints every 16 tokens."""
    check_every_edit(folder / f"{name}.gguf", grid, 64, 2)


def test_checkpoints_lie_on_the_grid(folder):
    """A prompt that rolls back to another position would be read from its start."""
    model = Context(
        folder / "lfm2.gguf", ContextOptions(n_ctx=256, threads=1, extra_bufts=False)
    ).sequences[0]
    model.context.reads_at_once, model.recurrent.limit = 16, 1 << 20
    model.recurrent.spacing = 4
    model.context.exactness = replace(model.exactness, grid=16)
    model.read(TOKENS[0][:36])
    model.read(TOKENS[0][36:60])
    retain_prefix(model, edited(50))
    assert model.n_past == 32
    model.close()


@pytest.mark.full
@pytest.mark.parametrize("name", RECURRENT)
def test_every_position_of_an_edit_for_all_architectures(folder, name):
    check_every_edit(folder / f"{name}.gguf", 0, 100, 4)


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
@pytest.mark.parametrize("parallel", [1, 3])
def test_texts_and_what_is_read(folder, name, parallel, copies_pay):
    """Repeated edits of two texts in turn, and a text that was replaced in the cache."""
    edits = [1300, 1100, 700, 257, 100]
    prompts = [TOKENS[0][:1300]]
    for at in edits:
        prompts += [edited(at), TOKENS[0][:1300], edited(at, other=3, text=2), TOKENS[2][:1300]]
    requests = [
        {"prompt": prompt, "sampling": SAMPLINGS[i % 4]} for i, prompt in enumerate(prompts)
    ]
    with loaded(folder, name, parallel=parallel) as llm:
        expected = []
        for request in requests:
            llm.forget()
            expected.append(outcome(llm, request))
        llm.forget()
        assert llm.prefix_memory.n_bytes == 0
        for i, (request, wanted) in enumerate(zip(requests, expected, strict=True)):
            one = llm.generate(**request)
            assert (one.text, one.tokens) == wanted[:2]
            if i == 1 or (i > 4 and i % 2):  # an edit; the text was seen before
                at = edits[(i - 1) // 4]
                assert one.stats.n_cached > min(at, 1299) - SPACING
            assert llm.prefix_memory.n_bytes < llm.prefix_memory.limit_bytes == 64_000_000
        if parallel > 1:
            assert together(llm, requests, n=5) == expected


@pytest.mark.full
def test_a_recurrent_draft(folder):
    """Its checkpoints only save time; the text is the target's."""
    with loaded(folder, "qwen35", folder / "qwen35-cousin.gguf") as llm:
        speculation = Speculation(4, adaptive=False, drafter="model")
        for i, at in enumerate((1300, 1100, 700)):
            plain = Sampling(max_tokens=24, temperature=0.8, seed=i)
            llm.generate(TOKENS[0][:1300], plain, speculation=speculation)
            with llm.models() as (_, draft):
                prompt = edited(at)[:-1]
                assert reusable(draft, prompt) > min(at, 1299) - SPACING
                assert {one.n for one in draft.recurrent.kept} >= {256, 512, 768, 1024, 1280}
            found = outcome(
                llm, {"prompt": edited(at), "sampling": plain, "speculation": speculation}
            )
            llm.forget()
            wanted = {"prompt": edited(at), "sampling": plain, "speculation": Speculation(0)}
            assert found == outcome(llm, wanted)


def test_the_next_turn_and_the_last_one_again(folder):
    """A long answer lies between two prompts: its end is a checkpoint, too."""
    with loaded(folder, "granitehybrid") as llm:
        prompt = TOKENS[0][:300]
        long = Sampling(max_tokens=600, temperature=0.8, seed=1, ignore_eos=True)
        prompt = [*prompt, *llm.generate(prompt, long).tokens]
        questions = [[*prompt, *TOKENS[i][:40]] for i in (1, 2)]
        expected = []
        for question in questions:
            one = llm.generate(question, SAMPLINGS[1])
            assert one.stats.n_cached == len(prompt) - 1
            expected.append(one.tokens)
        llm.forget()
        assert [llm.generate(one, SAMPLINGS[1]).tokens for one in questions] == expected


def test_a_session_is_edited(folder, tmp_path):
    """The file has the last state only: the first edit is read from the start, the next one is not."""
    with loaded(folder, "lfm2") as llm:
        talk = llm.chat(sampling=Sampling(max_tokens=8, temperature=0))
        talk.send("and of the in re er on " * 60)
        talk.save(tmp_path / "one.session")
        llm.forget()
        assert llm.chat().restore(tmp_path / "one.session") == ""
        found = [llm.generate(edited(at), SAMPLINGS[1]) for at in (1300, 1250)]
        assert [one.stats.n_cached for one in found] == [0, 1024]
        llm.forget()
        assert llm.generate(edited(1250), SAMPLINGS[1]).tokens == found[1].tokens


def test_no_memory_no_checkpoints(folder):
    """Only the state after the last prompt is there."""
    with loaded(folder, "lfm2", prefix_memory=0) as llm:
        llm.generate(TOKENS[0][:1300], SAMPLINGS[0])
        with llm.models() as (target, _):
            assert [one.n for one in target.recurrent.kept] == [1299]
        assert llm.generate(edited(1290), SAMPLINGS[0]).stats.n_cached == 0


@given(st.integers(3, 12), st.integers(1, 200))
def test_little_is_read_again_relative_to_what_must_be(n_most, n_passes):
    """With memory for `n_most` checkpoints at any text length; two are not enough."""
    kept: list[int] = []
    for i in range(1, n_passes + 1):
        kept.append(SPACING * i)
        if len(kept) > n_most:
            del kept[least_needed(kept, range(len(kept)))]
    assert kept[-1] == SPACING * n_passes
    ends = [0, *kept, kept[-1] + SPACING]
    most = (n_passes + 1) ** (1 / n_most)  # even ratios would give this
    for before, after in pairwise(ends):
        assert after - before - SPACING <= 3 * most * (ends[-1] - after + SPACING)


def test_the_last_states_of_several_requests_are_counted(folder):
    """Each slot keeps the state after its last prompt."""
    model = Context(folder / "qwen35.gguf", ContextOptions(n_ctx=256, threads=1)).sequences[0]
    header, options = model.file.header, model.options
    model.close()
    one, four = (needs([(header, replace(options, parallel=n))]).caches for n in (1, 4))
    assert four - 4 * (one - 2 * state_bytes(header)) == 4 * state_bytes(header)
