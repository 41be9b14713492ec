"""Drafts with other token ids: the draft ids of a text, the cache behind them, and rows over the target's tokens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.speculative.acceptance import RULES
from gguf_spec.speculative.drafters import FirstRead, ModelDrafter, StochasticDraftSampler
from gguf_spec.speculative.engine import RoundRule, read_prompt, run_round
from gguf_spec.speculative.translation import (
    TranslatedModel,
    TranslatedText,
    Translation,
    longest_pieces,
)
from tests.exactness.test_enumeration import exact_distribution
from tests.support.fakes import FakeModel, drafting, every_path, random_table, sampler

# Target: ids of these pieces; b"" is a control token.
PIECES = [b"a", b"b", b" a", b" b", b"ab", b" ", b"", b""]
# Draft: another vocabulary, with a token for its start and one for a control token.
DRAFT = {b"a": 2, b"b": 3, b" ": 4, b" ab": 5, b"ba": 6, b"aa": 7}
START, CONTROL = 0, 1
PAIRS = {0: 2, 1: 3, 5: 4, 6: CONTROL}


def translation(prefix=(START,)):
    def fixed(token):
        return {6: (CONTROL,), 7: ()}.get(token)

    return Translation(PAIRS, fixed, PIECES.__getitem__, longest_pieces(DRAFT), prefix)


def read(tokens, prefix=(START,)):
    reading = TranslatedText(
        translation(prefix),
    )
    reading.extend(tokens)
    return reading


def model(n_ctx=64, seed=0):
    return FakeModel(np.random.default_rng(seed).normal(size=(8, 8, 8)), n_ctx=n_ctx)


def view(draft, prefix=(START,)):
    return TranslatedModel(draft, FakeModel(np.zeros((8, 8, 8)), end={7}), translation(prefix))


def test_words_are_spelled_by_themselves():
    assert read([0, 1]).ids == [START, 2, 3]
    assert read([1, 0]).ids == [START, 6]  # "ba" is one token
    assert read([2, 1]).ids == [START, 5]  # " ab"
    assert read([2, 1, 3]).ids == [START, 5, 4, 3]
    assert read([0, 6, 0]).ids == [START, 2, CONTROL, 2]  # a control token parts words
    assert read([7, 0, 7, 0], prefix=()).ids == [
        2,
        2,
    ]  # one that the draft lacks is left out, and parts them too
    assert read([4, 0]).ids == [START, 2, 6]


def test_a_word_without_an_end_is_cut():
    ids = read([0] * 400).ids
    assert set(ids) <= {START, 2, 7}
    assert len(ids) > 200  # pairs of letters, with a seam each 48 bytes


tokens = st.lists(st.integers(0, 7), max_size=30)


@given(tokens, st.lists(st.tuples(st.integers(0, 30), tokens), max_size=5))
def test_a_changed_text_reads_as_a_new_one(first, changes):
    reading, text = read(first), [*first]
    before = [*reading.ids]
    reading.n_stable = len(before)
    for keep, more in changes:
        reading.cut(keep)
        text = text[:keep]
        assert (reading.tokens, reading.ids) == (text, read(text).ids)
        reading.extend(more)
        text += more
        assert (reading.tokens, reading.ids) == (text, read(text).ids)
        assert reading.ids[: reading.n_stable] == before[: reading.n_stable]
        assert len(reading.ids) >= reading.n_stable


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from([20, 64]), st.sampled_from([(START,), ()]))
def test_the_row_is_that_of_the_draft_after_its_own_ids(data, n_ctx, prefix):
    """After any reads and rollbacks; if the context is too short, after the last part of the text."""
    draft = model(n_ctx)
    one = view(draft, prefix)
    text = []
    for _ in range(6):
        keep = data.draw(st.integers(0, len(text)))
        one.rollback(keep)
        text = text[:keep]
        more = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=8))
        text += more
        if data.draw(st.booleans()):
            one.read(more)
            assert one.cached == text
            continue
        row = one.logits(more, 1)[0]
        ids = read(text, prefix).ids
        cached = draft.cached
        assert one.cached == text
        if not ids:
            cached = ids = [draft.start]
        assert ids[len(ids) - len(cached) :] == cached
        assert len(cached) >= min(len(ids), n_ctx // 4)  # no part is left out without need
        right = FakeModel(draft.table).logits(ids, 1)[0]
        if len(cached) != 1 or len(ids) == 1:  # a model of two tokens needs both
            expected = np.full(8, -np.inf, np.float32)
            expected[list(PAIRS)] = right[list(PAIRS.values())]
            np.testing.assert_array_equal(row, expected)


def test_rows_of_several_places():
    draft = model()
    one = view(draft)
    rows = np.array(one.logits([0, 1, 3, 1, 0], 3))
    for i, n in enumerate((3, 4, 5)):
        if (
            read([0, 1, 3, 1, 0][:n]).ids
            == read([0, 1, 3, 1, 0]).ids[: len(read([0, 1, 3, 1, 0][:n]).ids)]
        ):
            alone = view(model()).logits([0, 1, 3, 1, 0][:n], 1)[0]
            np.testing.assert_array_equal(rows[i], alone)
    assert rows.shape == (3, 8)


def test_more_rows_than_a_pass_may_have():
    draft = model(n_ctx=400)
    one = view(draft)
    rows = np.array(one.logits([0, 5] * 75, 150))
    assert all(n_rows <= 65 for _, n_rows in draft.passes)
    np.testing.assert_array_equal(rows[-1], view(model(400)).logits([0, 5] * 75, 1)[0])
    assert np.isfinite(rows.max(axis=1)).all()


def test_what_the_draft_has_cached_is_recognised():
    draft = model()
    text = [0, 1, 3, 0, 2, 1]
    view(draft).read(text)
    n_read = len(draft.read_tokens)
    again = view(draft)
    again.recognise(text[:4])
    assert again.cached == text[:4]
    again.read([2])
    again.recognise([1, 1, 1])
    assert again.cached == []
    other = view(draft)
    drafter = ModelDrafter(other, StochasticDraftSampler(sampler(None)), 8, FirstRead())
    drafter.keep(text)
    assert drafter.n_past == 4  # the last word was shorter, and is spelled in another way now
    drafter.read(text, lambda: False)
    assert sum(map(len, draft.read_tokens[n_read:])) < len(text)


def test_a_failed_pass_loses_nothing():
    draft = model()
    one = view(draft)
    one.logits([0, 1, 2], 1)
    draft.cached = []  # as after an error of llama.cpp
    row = np.array(one.logits([1], 1)[0])
    np.testing.assert_array_equal(row, view(model()).logits([0, 1, 2, 1], 1)[0])


@pytest.mark.few(2)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("k", [1, 2])
def test_the_text_has_the_distribution_of_the_target(rule, k):
    """Every random path, with a draft that has two of the target's three tokens under other ids."""
    rng = np.random.default_rng(3)
    table, draft_table = random_table(rng, 3), random_table(rng, 4)
    pieces = [b"a", b"b", b"c"]
    spell = longest_pieces({b"a": 3, b"b": 1})
    part = Translation(
        {0: 3, 1: 1}, lambda token: (3, 1)[token : token + 1] or (0, 2), pieces.__getitem__, spell
    )

    def run(rng):
        target, chain = FakeModel(table), sampler(rng)
        draft = TranslatedModel(FakeModel(draft_table), target, part)
        drafter = drafting(target, draft, StochasticDraftSampler(chain), 3)
        tokens = [1, 2]
        read_prompt(target, drafter, tokens, k, lambda: False)
        while len(tokens) < 4:
            tokens += run_round(target, drafter, tokens, chain, k, RoundRule(RULES[rule])).tokens
        return tuple(tokens[2:4])

    distribution = {}
    for drawn, weight in every_path(run):
        distribution[drawn] = distribution.get(drawn, 0.0) + weight
    exact = exact_distribution(table, {}, 2)
    assert (
        max(
            abs(distribution.get(one, 0.0) - exact.get(one, 0.0)) for one in {*distribution, *exact}
        )
        < 1e-12
    )
