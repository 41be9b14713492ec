"""Prediction heads: fields of their headers, and their outputs from the rows of the target."""

import numpy as np
import pytest

from gguf_spec.errors import DecodeError, InvalidOptionError
from gguf_spec.gguf.heads import head_bytes, is_head_alone, n_heads, why_no_head
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import head as llama_head
from gguf_spec.llama.context import Context
from gguf_spec.llama.head import Head, open_head
from gguf_spec.llama.memory import needs
from gguf_spec.llama.native_head import HiddenRows
from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import Sampling
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.drafters import (
    CoupledDraftSampler,
    DraftCorrection,
    FirstRead,
    HeadDrafter,
    drafter_of,
)
from tests.gguf.head_checks import TEXT, check_pieces, check_restored_state
from tests.support import families, tiny

OPTIONS = ContextOptions(n_ctx=256, threads=1, extra_bufts=False, head="own")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    one = families.with_head(families.family("qwen35"))
    tiny.write(folder / "one.gguf", one)
    tiny.write(folder / "alone.gguf", families.without_layers(one))
    tiny.write(folder / "none.gguf", families.family("qwen35"))
    tiny.write(folder / "two.gguf", families.with_head(families.family("qwen35"), 2))
    tiny.write(folder / "chain.gguf", families.with_head(families.family("step35"), 3))
    tiny.write(folder / "other.gguf", families.with_head(families.family("qwen3")))
    return folder


def header(folder, name):
    return ModelFile(folder / f"{name}.gguf").header


@pytest.fixture
def pair(folder):
    model = Context(folder / "one.gguf", OPTIONS).sequences[0]
    head = Head(model, OPTIONS.for_draft(), None)
    yield model, head
    head.close()
    model.close()


def test_fields_of_the_header(folder):
    names = ("one", "alone", "none", "two", "chain", "other")
    assert [n_heads(header(folder, name)) for name in names] == [1, 1, 0, 2, 3, 1]
    assert [name for name in names if is_head_alone(header(folder, name))] == ["alone"]
    why = {name: why_no_head(header(folder, name)) for name in names}
    assert [name for name in names if not why[name]] == ["one", "alone", "chain"]
    assert why["none"] == "none.gguf has no prediction head"
    assert why["two"] == (
        "llama.cpp uses one prediction head of the architecture qwen35, and two.gguf has 2"
    )
    assert why["other"] == ("llama.cpp does not use prediction heads of the architecture qwen3")


def test_a_pass_of_a_head_reads_its_layer_and_the_output(folder):
    sizes = {one.name: one.n_bytes for one in header(folder, "one").tensors}
    layer = sum(size for name, size in sizes.items() if name.startswith("blk.2."))
    assert head_bytes(header(folder, "one")) == layer + sizes["output.weight"]


def test_a_head_that_lacks_tensors_is_not_a_head(folder):
    model = families.with_head(families.family("qwen35"))
    path = tiny.write(folder / "damaged.gguf", model, tensors={"blk.2.nextn.hnorm.weight": None})
    assert n_heads(ModelFile(path).header) == 0


@pytest.mark.full
def test_the_test_notices_that_llama_cpp_ends_the_process(folder):
    """It asserts that a qwen35 has one head; in use the header is checked first."""
    assert llama_head.why_head_fails(ModelFile(folder / "one.gguf"), None) == ""
    why = llama_head.why_head_fails(ModelFile(folder / "two.gguf"), None)
    assert "llama.cpp fails on the prediction head of two.gguf" in why
    alone = ModelFile(folder / "alone.gguf")
    assert llama_head.why_head_fails(ModelFile(folder / "none.gguf"), alone) == ""


def test_memory_of_a_head_is_estimated(folder):
    def estimate(head, *others):
        options = ContextOptions(n_ctx=256, head=head)
        draft = ContextOptions(n_ctx=256, head="self")
        models = [
            (header(folder, "one"), options),
            *((header(folder, one), draft) for one in others),
        ]
        return needs(models)

    none, own, apart = estimate(""), estimate("own"), estimate("file", "alone")
    rows, cache = 256 * tiny.N_EMBD * 4, 256 * 64 * 2
    assert own.caches - none.caches == rows + cache
    assert apart.caches - none.caches == rows + cache
    assert own.compute > none.compute
    assert apart.weights - none.weights == header(folder, "alone").file_bytes


# ---- rows of the target


def rows_of(*numbers):
    return np.array([[n] * 3 for n in numbers], np.float32)


def test_rows_before_positions():
    rows = HiddenRows(16, 3)
    rows.put(0, rows_of(1, 2, 3))
    assert rows.before(0, 5)[:, 0].tolist() == [0, 1, 2, 3, 0]
    assert rows.before(2, 2)[:, 0].tolist() == [2, 3]
    assert rows.before(9, 2)[:, 0].tolist() == [0, 0]
    rows.cut(1)
    assert rows.before(0, 4)[:, 0].tolist() == [0, 1, 0, 0]
    rows.put(1, rows_of(7))
    assert rows.before(0, 4)[:, 0].tolist() == [0, 1, 7, 0]


def test_rows_that_begin_inside_a_text():
    rows = HiddenRows(16, 3)
    rows.put(0, rows_of(1, 2))
    rows.put(5, rows_of(6, 7))
    assert (rows.first, rows.end) == (5, 7)
    assert rows.before(4, 5)[:, 0].tolist() == [0, 0, 6, 7, 0]
    rows.cut(3)
    assert (rows.first, rows.end) == (3, 3)


def test_a_target_sends_a_row_for_each_token_of_its_cache(pair):
    model, _ = pair
    model.read(TEXT[:-1])
    model.hold()
    model.read(TEXT[-1:])
    assert (model.hidden.first, model.hidden.end) == (0, len(TEXT))
    whole = model.hidden.before(1, len(TEXT))
    model.rollback(0)
    assert model.hidden.end == 0
    for token in TEXT[:-1]:
        model.logits([token], 1)
    model.hold()
    model.logits(TEXT[-1:], 1)
    assert np.abs(model.hidden.before(1, len(TEXT)) - whole).max() < 1e-5
    model.rollback(len(TEXT) - 1)
    assert model.hidden.end == len(TEXT) - 1


# ---- passes


def test_a_head_predicts_from_a_token_and_the_row_before_it(folder):
    """Against NumPy, with a head whose attention and feed-forward part add nothing."""
    metadata, tensors = families.with_head(families.family("qwen35"))
    for part in ("attn_output", "ffn_down"):
        tensors[f"blk.2.{part}.weight"] *= 0
    model = Context(tiny.write(folder / "linear.gguf", (metadata, tensors)), OPTIONS).sequences[0]
    head = Head(model, OPTIONS.for_draft(), None)

    def normalised(rows):
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-5)

    def expected(token, row):
        x = np.concatenate([normalised(tensors["token_embd.weight"][token]), normalised(row)])
        y = normalised(tensors["blk.2.nextn.eh_proj.weight"] @ x)
        return y, tensors["output.weight"] @ y

    model.read(TEXT)
    rows = model.hidden.before(0, len(TEXT))
    got = head.logits(TEXT, len(TEXT))
    for i, token in enumerate(TEXT):
        assert np.allclose(got[i], expected(token, rows[i])[1], atol=2e-3)
    # the next token has a row of the target, those after it have the head's own
    row = model.hidden.before(len(TEXT), 1)[0]
    for token in (70, 71, 72):
        row, logits = expected(token, row)
        assert np.allclose(head.logits([token], 1)[0], logits, atol=2e-3)
    model.close()


@pytest.mark.parametrize("offset", [0, 30])
def test_a_head_takes_the_rows_of_the_place_in_the_text(folder, offset):
    """The output does not depend on the part of the text that the head has read; without attention only the position decides."""
    metadata, tensors = families.with_head(families.family("qwen35"))
    for part in ("attn_output", "ffn_down"):
        tensors[f"blk.2.{part}.weight"] *= 0
    model = Context(tiny.write(folder / "linear.gguf", (metadata, tensors)), OPTIONS).sequences[0]
    head = Head(model, OPTIONS.for_draft(), None)
    text = [40 + i * i % 50 for i in range(100)]
    model.read(text[:-1])

    def drafter():
        sampler = Sampler(Sampling(temperature=0), SeededRng(1))
        guess = CoupledDraftSampler(sampler, DraftCorrection(head.n_vocab))
        head.rollback(0)
        return drafter_of(head, guess, head.n_vocab, FirstRead())

    whole = drafter()
    assert isinstance(whole, HeadDrafter)
    whole.read(text[:-1], lambda: False)
    whole.begin(text)
    expected = whole.propose().token, whole.review(text, 40, 16)
    part = drafter()
    part.begin_at(offset)
    part.read(text[: offset + 9], lambda: False)
    # as if the text between had been read
    assert part.review(text, 40, 16) == expected[1]
    assert part.n_past == offset + 9
    part.begin(text)
    assert part.propose().token == expected[0]
    model.close()


def test_own_rows_are_dropped_with_the_draft(pair):
    model, head = pair
    model.read(TEXT)
    head.read(TEXT[:5])
    head.logits(TEXT[5:], 1)
    for token in (70, 71, 72):
        head.logits([token], 1)
    # one more token has a row of the target
    assert (head.n_past, head.cached[-3:]) == (len(TEXT) + 3, [70, 71, 72])
    head.rollback(len(TEXT) + 2)
    assert head.cached == [*TEXT, 70]
    head.rollback(4)
    assert head.cached == TEXT[:4]


def test_pieces_of_a_text_give_the_rows_of_the_complete_text(pair):
    model, head = pair
    model.read(TEXT)
    check_pieces(head)


def test_tokens_of_a_draft_that_others_proposed_are_decoded_one_by_one(pair):
    model, head = pair
    model.read(TEXT)
    singles = [head.logits(part, 1)[0].copy() for part in (TEXT, [70], [71], [72])]
    head.rollback(0)
    assert np.abs(head.logits([*TEXT, 70, 71, 72], 1)[0] - singles[-1]).max() < 1e-4
    head.rollback(len(TEXT) + 3)
    assert head.n_past == len(TEXT) + 1


def test_the_state_of_a_head_is_restored(pair):
    model, head = pair
    model.read(TEXT)
    check_restored_state(head, 1e-5)


def test_a_chain_runs_each_head_over_the_draft(folder):
    """Head i reads the tokens of the draft and the rows of the heads before it."""
    model = Context(folder / "chain.gguf", OPTIONS).sequences[0]
    head = Head(model, OPTIONS.for_draft(), None)
    assert head.n_heads == 3
    model.read(TEXT)
    drafts = []
    for prefix in (len(TEXT), 4):
        head.rollback(prefix)
        rows = [head.logits(TEXT[head.n_past :] or TEXT[-1:], 1)[0].copy()]
        rows += [head.logits([token], 1)[0].copy() for token in (70, 71, 72)]
        drafts.append(rows)
        with pytest.raises(DecodeError, match="longer than 3 tokens"):
            head.logits([73], 1)
        head.rollback(len(TEXT) + 4)
        # the first head has not seen the draft's first token
        assert head.cached == TEXT
    for rows in zip(*drafts, strict=True):
        assert np.abs(rows[0] - rows[1]).max() < 1e-4
    assert np.abs(drafts[0][2] - drafts[0][3]).max() > 0.1
    model.close()


def test_what_a_head_refuses(pair):
    model, head = pair
    model.read(TEXT)
    for tokens, n in (([1], 0), ([1], 2), ([1] * 80, 70)):
        with pytest.raises(InvalidOptionError):
            head.logits(tokens, n)
    with pytest.raises(InvalidOptionError):
        head.logits([head.n_vocab], 1)
    with pytest.raises(DecodeError, match="holds 256"):
        head.read([1] * 257)
    head.rollback(0)
    assert head.logits(TEXT, 1).shape == (1, head.n_vocab)


def test_a_head_without_a_cache_decodes_behind_the_target(folder):
    """All tokens of a draft have one position."""
    target = tiny.write(folder / "gemma4.gguf", families.family("gemma4"))
    file = ModelFile(tiny.write(folder / "assistant.gguf", families.assistant()))
    options = ContextOptions(n_ctx=256, threads=1, extra_bufts=False, head="file")
    model = Context(target, options).sequences[0]
    head = open_head(model, options.for_draft(), file)
    assert head.shares_cache
    results = []
    for text in (TEXT, TEXT[:-1]):
        model.rollback(0)
        model.read(TEXT[:-1])
        head.rollback(0)
        head.read(text[:3])
        rows = [head.logits([*text[3:], *TEXT[len(text) :]], 1)[0].copy()]
        rows += [head.logits([token], 1)[0].copy() for token in (70, 71)]
        results.append(rows)
        assert head.cached == [*TEXT, 70, 71]
        head.rollback(len(TEXT) + 1)
        assert head.cached == TEXT
        assert model.cached == TEXT[:-1]
    assert np.abs(np.array(results[0]) - results[1]).max() < 1e-5
    assert np.abs(results[0][1] - results[0][2]).max() > 0.1
    # the target goes on as if there were no head
    expected = model.logits(TEXT[-1:], 1).copy()
    model.rollback(0)
    model.read(TEXT[:-1])
    assert np.abs(model.logits(TEXT[-1:], 1) - expected).max() < 1e-5
    model.close()
