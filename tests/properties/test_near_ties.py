"""A model whose logits depend on the batch size, as llama.cpp's do: texts change only at counted near ties."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from gguf_spec import Sampling, Speculation
from gguf_spec.llama import backend
from gguf_spec.options import K_MAX
from gguf_spec.runtime.profile_files import of_this_build
from gguf_spec.sampling import near_ties
from gguf_spec.sampling.near_ties import NOISE_MARGIN, SingleTokenReference, is_near_tie
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.acceptance import Draft, coupled
from gguf_spec.speculative.drafters import CoupledDraftSampler, DraftCorrection, NoDrafter
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from gguf_spec.speculative.profiler import measure
from tests.exactness.near_ties import first_difference
from tests.support.fakes import FakeModel, Wobbly, drafting, fake_llm, random_table, sampler

V, WOBBLE, PROMPT = 6, 0.08, [1, 2]


def close_table(seed):
    """Logits on a coarse grid, with many that are nearly or just equal."""
    rng = np.random.default_rng(seed)
    return np.round(random_table(rng, V) * 2) / 2 + rng.uniform(-0.02, 0.02, size=(V, V, V))


def text(seed, options, k, rule, n=24, remembers=True):
    """(tokens, indices of near ties, passes decided again) of a generation."""
    chain = sampler(SeededRng(seed), **options)
    target = Wobbly(close_table(seed % 7), WOBBLE, remembers)
    drafter = (
        drafting(
            target,
            FakeModel(close_table(seed % 7 + 1)),
            CoupledDraftSampler(chain, DraftCorrection(V)),
            V,
        )
        if k
        else NoDrafter()
    )
    read_prompt(target, drafter, PROMPT, k, lambda: False)
    tokens, ties, again, logprobs = [], [], 0, []
    for one in rounds(
        target, drafter, PROMPT, chain, k, rule, n, lambda token: False, lambda: False
    ):
        ties += [len(tokens) + i for i in one.near_ties]
        tokens += one.tokens
        again += one.decided_again
        logprobs += one.logprobs
        assert target.cached == [*PROMPT, *tokens][:-1]
    assert [one.token for one in logprobs] == (tokens if "logprobs" in options else [])
    return tokens, ties, again


NEAR_SIGMA = {
    "temperature": 1.0, "top_p": 0.5, "frequency_penalty": 0.5, "top_n_sigma": 1.0, "repeat_penalty": 0.7,
}  # fmt: skip
chains = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.4, 1.0, 1.5]),
        "top_k": st.sampled_from([1, 2, 3]),
        "top_p": st.sampled_from([0.5, 0.9]),
        "min_p": st.sampled_from([0.1, 0.4]),
        "top_n_sigma": st.sampled_from([1.0, 1.5]),
        "repeat_penalty": st.sampled_from([1.5, 0.7]),
        "frequency_penalty": st.just(0.5),
        "logprobs": st.just(0),
    },
)


@pytest.mark.full
@settings(deadline=None, max_examples=300)
@given(st.integers(0, 10**6), chains, st.integers(1, 5))
@example(203, NEAR_SIGMA, 5)  # another token is right above the limit of top-n-sigma
def test_texts_differ_only_at_a_near_tie(seed, options, k):
    plain = text(seed, options, 0, RoundRule(coupled, WOBBLE))
    burst = text(seed, options, k, RoundRule(coupled, WOBBLE))
    assert plain[1] == []  # at width 1 there is nothing to tell
    at = first_difference(plain[0], burst[0])
    assert at is None or at in burst[1]


@pytest.mark.full
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), chains, st.integers(1, 5))
def test_strict_gives_the_plain_text_where_a_cache_does_not_depend_on_its_passes(seed, options, k):
    strict = text(seed, options, k, RoundRule(coupled, WOBBLE, strict=True), remembers=False)
    assert strict[0] == text(seed, options, 0, RoundRule())[0]
    assert strict[2] <= len(strict[1])


@pytest.mark.full
@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**6), chains, st.integers(1, 5))
def test_strict_texts_differ_only_at_a_near_tie(seed, options, k):
    plain, strict = (
        text(seed, options, 0, RoundRule()),
        text(seed, options, k, RoundRule(coupled, WOBBLE, strict=True)),
    )
    at = first_difference(plain[0], strict[0])
    assert at is None or at in strict[1]


class Now(NoDrafter):
    """Drafts wrong tokens, in the first rounds only."""

    def __init__(self, n_rounds, k):
        self.n_rounds, self.k = n_rounds, k

    def draft(self, tokens, k):
        self.n_rounds -= 1
        return Draft([(tokens[-1] + 1) % V] * min(k, self.k) if self.n_rounds >= 0 else [], [])


def parted_alone(seed, options, rule, remembers=True):
    """Return where a text with drafts in two rounds differs from the plain one, and its near ties."""
    texts = []
    for drafter in (NoDrafter(), Now(2, 3)):
        target = Wobbly(close_table(seed % 7), WOBBLE, remembers)
        read_prompt(target, drafter, PROMPT, 3, lambda: False)
        tokens, ties, alone = [], [], set()
        for one in rounds(
            target,
            drafter,
            PROMPT,
            sampler(SeededRng(seed), **options),
            3,
            rule,
            40,
            lambda token: False,
            lambda: False,
        ):
            ties += [len(tokens) + i for i in one.near_ties]
            alone |= set() if one.wide else {len(tokens)}
            tokens += one.tokens
        texts.append(tokens)
    at = first_difference(*texts)
    return (at if at in alone else None), ties


@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, *(pytest.param(one, marks=pytest.mark.full) for one in ({}, {"top_k": 2}))],
    ids=str,
)  # fmt: skip
def test_a_single_token_pass_after_wide_ones_may_differ_and_is_counted(options):
    """For a model whose rows depend on how its cache was computed."""
    parted = [
        one
        for one in (parted_alone(seed, options, RoundRule(coupled, WOBBLE)) for seed in range(240))
        if one[0] is not None
    ]
    assert len(parted) >= 32
    assert [at for at, ties in parted if at not in ties] == []
    assert all(
        parted_alone(seed, options, RoundRule(coupled, WOBBLE), remembers=False)[0] is None
        for seed in range(40)
    ), "only what is remembered"


@pytest.mark.full
def test_where_passes_are_exact_nothing_is_counted():
    assert all(text(seed, {}, 3, RoundRule(coupled, 0.0))[1] == [] for seed in range(40))


def test_a_cache_that_was_not_read_as_a_prompt_counts_as_wide():
    """A request that goes on from an earlier one's cache: fresh decoding would have read it in another way."""
    target = Wobbly(np.zeros((V, V, V)), WOBBLE)
    for warm, counted in ((False, []), (True, [0])):
        target.rollback(0)
        if warm:
            target.logits([1, 2, 3], 1)
        read_prompt(target, NoDrafter(), [1, 2, 3, 4], 0, lambda: False)
        one = next(
            rounds(
                target,
                NoDrafter(),
                [1, 2, 3, 4],
                sampler(SeededRng(1), temperature=0.0),
                0,
                RoundRule(coupled, WOBBLE),
                4,
                bool,
                lambda: False,
            )
        )
        assert [*one.near_ties] == counted


@cache
def plain_tokens(seed, options):
    return text(seed, dict(options), 0, RoundRule())[0]


def differences(rule, n=60, **options):
    """Return how many of `n` texts differ from plain ones, and how many of those without a counted near tie."""
    pairs = [
        (plain_tokens(seed, tuple(options.items())), text(seed, options, 3, rule))
        for seed in range(n)
    ]
    parted = [(first_difference(a, b[0]), b[1]) for a, b in pairs if a != b[0]]
    return len(parted), sum(at not in ties for at, ties in parted)


@pytest.mark.full
@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.3}]
)
def test_texts_differ_here_and_would_not_be_reported_without_the_check(options):
    n_parted, n_untold = differences(RoundRule(coupled, WOBBLE), **options)
    assert n_parted >= 5
    assert n_untold == 0
    assert differences(RoundRule(coupled, 0.0), **options)[1] == n_parted
    assert differences(RoundRule(coupled, WOBBLE / 50), **options)[1] > 0


FILTERS = {
    "none": {},
    "top-k": {"top_k": 2},
    "top-p": {"top_p": 0.6},
    "min-p": {"min_p": 0.3},
    "top-n-sigma": {"top_n_sigma": 1.2},
    "penalty": {"repeat_penalty": 2.0},
    "several": {"top_k": 4, "top_p": 0.8, "min_p": 0.1, "temperature": 0.7},
}


@pytest.mark.full
@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
def test_what_can_flip_is_a_near_tie(options):
    """Random rows, noise and changes of logits: where a change alters the token, a near tie must be counted."""
    rng, noise, n_told, n_flipped = np.random.default_rng(1), 0.2, 0, 0
    for seed in range(400):
        row, history = (rng.normal(size=7) * 1.2).astype(np.float32), [1, 3]
        chain = sampler(SeededRng(seed), **options)
        token = chain.token(row, history)
        told = is_near_tie(chain, row, history, token, noise)
        moves = rng.uniform(-noise / 2, noise / 2, size=(60, 7)) * rng.choice(
            [0.3, 1.0], size=(60, 1)
        )
        moves[::2] = np.sign(moves[::2]) * noise / 2  # as far as it goes, too
        flips = any(
            chain.token((row + move).astype(np.float32), history) != token for move in moves
        )
        assert told or not flips, seed
        n_told, n_flipped = n_told + told, n_flipped + flips
    assert 10 < n_flipped <= n_told < 300  # it does happen, and not everything is called a near tie


@pytest.mark.full
def test_each_half_of_the_check_is_needed(monkeypatch):
    """A token that becomes the best, and one that passes a filter: each half of the check is needed."""

    def half(part, sampler, logits, history, token, noise):
        shaped = sampler.shaped(logits, history)
        if part == "lower":  # only the limits of filters, with the token as it is
            kept = sampler.survivors(shaped, len(history)).logits
            wider = np.flatnonzero(shaped >= kept.min() - noise)
            return sampler.pick(near_ties.Candidates(wider, shaped[wider]), len(history)) != token
        lower = shaped.copy()
        lower[token] -= noise
        return sampler.pick(sampler.survivors(lower, len(history)), len(history)) != token

    assert differences(RoundRule(coupled, WOBBLE), n=150, top_k=2)[1] == 0
    for part in ("lower", "wider"):
        monkeypatch.setattr("gguf_spec.speculative.acceptance.is_near_tie", partial(half, part))
        assert differences(RoundRule(coupled, WOBBLE), n=150, top_k=2)[1] > 0


def test_the_noise_is_measured_with_the_profile():
    model = Wobbly(random_table(np.random.default_rng(1), V), WOBBLE)
    profile = measure(model, None)
    assert model.cached == []
    for k in (1, 4, 32):
        assert WOBBLE / 2 < profile.logit_noise(k) <= 2 * WOBBLE
    calm = measure(FakeModel(random_table(np.random.default_rng(1), V)), None)
    assert calm.noise
    assert not any(calm.noise.values())
    assert calm.logit_noise(4) == 0.0


def test_the_noise_of_a_width_is_at_least_that_of_12_rows_and_of_narrower_widths():
    """On Q4_K_M the few rows of passes over 4 to 9 tokens showed 0.00003 logits, yet texts parted at gaps of 0.03 with drafts of 3."""
    profile = replace(
        DEFAULT_PROFILE, noise={2: 0.1, 4: 0.05, 8: 0.3, 16: 0.4, 24: 0.35, 33: 0.5}, exact_width=1
    )
    assert [profile.logit_noise(k) / NOISE_MARGIN for k in (0, 1, 3, 7, 15, 16, 24, 32)] == [
        0.0,
        0.4,
        0.4,
        0.4,
        0.4,
        0.4,
        0.5,
        0.5,
    ]
    assert (
        replace(DEFAULT_PROFILE, noise={2: 0.1}, exact_width=1).logit_noise(32)
        == NOISE_MARGIN * 0.1
    )
    assert replace(profile, exact_width=4).logit_noise(3) == 0.0
    assert [replace(profile, exact_width=4).widest(exact) for exact in (True, False)] == [
        4,
        K_MAX + 1,
    ]
    assert profile.widest(True) == K_MAX + 1, (
        "where no pass is exact, all are used, and near ties are counted"
    )
    assert DEFAULT_PROFILE.logit_noise(4) == 0.0


def test_a_build_without_its_flags_drafts_nothing_without_exact_passes(monkeypatch):
    """On a CPU llamafile's products can be left out, so near ties are not what it gets by default; a GPU has no choice."""
    profile = replace(DEFAULT_PROFILE, noise={2: 0.1}, exact_width=1)
    features, gpu = {"LLAMAFILE": "1"}, []
    monkeypatch.setattr(backend, "build_features", lambda: features)
    monkeypatch.setattr(backend, "offloads", lambda: bool(gpu))
    profile = of_this_build(profile)
    assert [profile.widest(exact) for exact in (True, False)] == [1, K_MAX + 1]
    assert "-DGGML_LLAMAFILE=OFF" in profile.exact_passes
    assert replace(profile, exact_width=65).widest(True) == 65
    gpu.append(1)
    assert of_this_build(profile).widest(True) == K_MAX + 1
    gpu.clear()
    features.clear()
    assert of_this_build(profile).widest(True) == K_MAX + 1


def test_a_model_with_noise_has_no_exact_pass_and_one_without_has_all():
    table = random_table(np.random.default_rng(1), V)
    assert measure(Wobbly(table, WOBBLE, n_ctx=512), None).exact_width == 1
    assert measure(FakeModel(table, n_ctx=512), None).exact_width == K_MAX + 1


@pytest.mark.parametrize("exact", [2, 3, 4, 7, 8, 20])
def test_the_widest_exact_pass_is_found_between_the_widths_that_are_timed(exact):
    class Kernels(FakeModel):
        """Rows of passes of more than `exact` tokens are a little off, as those of other kernels are."""

        def logits(self, tokens, n_rows):
            rows = super().logits(tokens, n_rows)
            return rows + np.float32(1e-6) * (len(tokens) > exact)

    found = measure(Kernels(random_table(np.random.default_rng(1), V), n_ctx=512), None).exact_width
    assert found == exact


def test_a_pass_whose_last_rows_differ_is_not_exact():
    class Ragged(FakeModel):
        """The rows beyond a multiple of 64 go through other kernels."""

        def logits(self, tokens, n_rows):
            rows = np.array(super().logits(tokens, n_rows))
            if len(tokens) > 64:
                rows[64 - len(tokens) :] += 1e-6
            return rows

    found = measure(Ragged(random_table(np.random.default_rng(1), V), n_ctx=512), None)
    assert found.noise[65] > 0 == found.noise[33]
    assert found.exact_width < 65


def test_tokens_that_cannot_come_do_not_count_as_noise():
    table = random_table(np.random.default_rng(2), V, holes=0.3)
    assert 0 < measure(Wobbly(table, WOBBLE), None).logit_noise(4) <= 2 * WOBBLE


def test_single_rows_are_compared_with_rows_of_one_pass():
    """A shift of all logits of a row is no change; the gaps to the best one count."""
    alone = SingleTokenReference()
    for row in ([1.0, 3.0, 2.0], [0.0, -np.inf, 1.0]):
        alone.add(np.array(row, dtype=np.float32))
    same = np.array([[2.0, 4.0, 3.0], [0.5, -np.inf, 1.5]], dtype=np.float32)
    assert alone.max_shift(same) == 0.0
    assert alone.max_shift(same[:1]) == 0.0
    assert alone.max_shift(np.array([[1.0, 3.0, 2.25]], dtype=np.float32)) == 0.25
    assert alone.max_shift(np.array([[1.0, 3.5, 2.0]], dtype=np.float32)) == 0.5


@given(st.lists(st.floats(-3, 3, width=32), min_size=3, max_size=6), st.floats(0.01, 0.5))
def test_greedy_by_hand(row, noise):
    row = np.array(row, dtype=np.float32)
    best, second = np.sort(row)[::-1][:2]
    assume(abs(best - second - noise) > 1e-5)
    chain = sampler(SeededRng(0), temperature=0.0)
    assert is_near_tie(chain, row, [1], int(row.argmax()), noise) == (best - second < noise)


@pytest.mark.full
def test_the_allowance_of_a_measured_profile_is_enough():
    """From measurement to count: a text that differs from the plain one has near ties in its statistics."""
    n_parted = n_uncounted = 0
    for table in range(7):
        target = Wobbly(close_table(table), WOBBLE, n_ctx=512)
        draft = FakeModel(close_table(table + 1), n_ctx=512)
        llm = fake_llm(target, draft, Speculation(3, drafter="model", adaptive=False))
        llm.use_profile(measure(target, draft))
        for seed in range(12):
            sampling = Sampling(
                seed=seed, temperature=0.0 if seed % 2 else 1.0, top_k=0, top_p=1.0, max_tokens=48
            )
            texts = []
            for way in (Speculation(0), llm.speculation):
                llm.forget()
                texts.append(llm.generate_tokens([1, 2 + seed % 4], sampling, speculation=way))
            parted = texts[0].tokens != texts[1].tokens
            n_parted, n_uncounted = (
                n_parted + parted,
                n_uncounted + (parted and not texts[1].stats.n_near_ties),
            )
            assert texts[0].stats.n_near_ties == 0
    assert n_parted >= 10
    assert n_uncounted == 0
    assert NOISE_MARGIN >= 1, "what a few rows show is not the most there can be"
