"""The chain against a direct implementation over the complete vocabulary."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.errors import NoTokenLeftError
from gguf_spec.sampling import chain as chain_module
from gguf_spec.sampling.chain import NO_FILTERS, CompatSampling, largest, logprob
from gguf_spec.sampling.rng import SeededRng
from tests.support.fakes import sampler


def dense(distribution, n):
    row = np.zeros(n)
    row[distribution.ids] = distribution.probs
    return row


def reference(
    logits,
    history,
    temperature=1.0,
    top_k=0,
    top_p=1.0,
    min_p=0.0,
    repeat=1.0,
    frequency=0.0,
    presence=0.0,
    last_n=64,
    bias=(),
):
    """Bias, penalties, top-k, top-p, min-p, temperature: sorted and in full."""
    z = np.array(logits, dtype=np.float64)
    for token, value in dict(bias).items():
        z[token] += value
    for token in set(history[-last_n:] if last_n > 0 else history if last_n < 0 else []):
        count = list(history[-last_n:] if last_n > 0 else history).count(token)
        z[token] = z[token] / repeat if z[token] > 0 else z[token] * repeat
        z[token] -= count * frequency + presence
    order = sorted(range(len(z)), key=lambda i: (-z[i], i))
    if top_k:
        order = order[:top_k]
    p = np.exp(z[order] - z.max())
    p /= p.sum()
    if top_p < 1:
        n = next((i + 1 for i, total in enumerate(np.cumsum(p)) if total >= top_p - 1e-12), len(p))
        order, p = order[:n], p[:n]
    keep = [i for i, prob in zip(order, p, strict=True) if prob >= min_p * p[0] * (1 - 1e-12)]
    out = np.zeros(len(z))
    out[keep] = np.exp((z[keep] - z[keep].max()) / temperature)
    return out / out.sum()


@pytest.mark.parametrize("n", [5, 700, 5000])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 3},
        {"top_p": 0.6},
        {"top_p": 0.9999},
        {"min_p": 0.3},
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
        {"top_k": 10**6, "top_p": 0.5},
        {"bias": {0: 9.0, 3: -np.inf}},
        {"repeat": 1.3, "frequency": 0.5, "presence": 0.2, "last_n": 4},
        {"repeat": 0.7, "last_n": -1},
        {"repeat": 5.0, "last_n": 0},
        {"repeat": 2.0, "last_n": 1},
        *({penalty: value} for penalty in ("frequency", "presence") for value in (1.0, -1.0, 0.25)),
        {"repeat": 1.0, "frequency": -0.5, "presence": 0.5, "last_n": -1},
    ],
)
def test_against_the_reference(n, options):
    rng = np.random.default_rng(n)
    logits = rng.normal(size=n).astype(np.float32) * 3
    history = [int(t) for t in rng.integers(0, 5, size=12)]
    names = {
        "repeat": "repeat_penalty",
        "frequency": "frequency_penalty",
        "presence": "presence_penalty",
        "last_n": "penalty_last_n",
        "bias": "logit_bias",
    }
    before = logits.copy()
    distribution = sampler(None, **{names.get(k, k): v for k, v in options.items()}).distribution(
        logits, history
    )
    assert np.abs(dense(distribution, n) - reference(logits, history, **options)).max() < 1e-6
    assert (logits == before).all()
    assert (np.diff(distribution.ids) > 0).all()


def test_a_token_that_was_filtered_out_has_probability_0():
    distribution = sampler(None, top_k=2).distribution(
        np.array([1.0, 3.0, 0.0, 2.0], dtype=np.float32), []
    )
    assert [distribution.prob(token) > 0 for token in range(6)] == [
        False,
        True,
        False,
        True,
        False,
        False,
    ]
    assert [distribution.prob(token) for token in (0, 2, 4, 5)] == [0.0] * 4


@pytest.mark.parametrize("n_top", [0, 1, 3, 7, 8, 20])
def test_log_probabilities_by_hand(n_top):
    """The lower id first where two are equal, nothing that cannot come, and no more than there are."""
    row = np.array([2.0, -1.0, 2.0, -np.inf, 0.5, 3.0, 2.0, -1.0], dtype=np.float32)
    expected = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    order = [5, 0, 2, 6, 4, 1, 7][:n_top]
    for token in range(8):
        one = logprob(row, token, n_top)
        assert one.token == token
        assert one.logprob == (
            np.finfo(np.float32).min if token == 3 else pytest.approx(expected[token], abs=1e-12)
        )
        assert [other for other, _ in one.top] == order or n_top in (3, 4)
        assert [value for _, value in one.top] == pytest.approx(
            sorted(expected, reverse=True)[: len(order)], abs=1e-12
        )
    assert row[3] == -np.inf, "the row is as it was"


def test_log_probabilities_of_a_row_that_is_shifted_are_the_same():
    """Far above what `exp` can take."""
    row = np.array([1.0, 2.5, -3.0], dtype=np.float32)
    assert logprob(row + 5000, 1, 3).logprob == pytest.approx(logprob(row, 1, 3).logprob, abs=1e-3)


class Few:
    """A grammar that allows some tokens."""

    def __init__(self, n_vocab, tokens):
        self._allowed = np.isin(np.arange(n_vocab), tokens)

    def mask(self, history):
        return None

    def possible(self, history):
        return np.ones(len(self._allowed), dtype=bool)

    def allowed(self, history, ids):
        return self._allowed[ids]


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0}, {"top_k": 2}, {}, {"top_k": 2, "top_n_sigma": 1.0}]
)
def test_what_a_grammar_allows_is_found_however_unlikely_it_is(options):
    """The best and the one after it, which a near tie is measured by, far below 50 others that are forbidden; all, where a filter asks for all."""
    n_vocab, allowed = 5000, [51, *range(600, 5000, 100)]
    row = np.linspace(9.0, -9.0, n_vocab).astype(np.float32)
    chain = sampler(SeededRng(1), NO_FILTERS._replace(grammar=Few(n_vocab, allowed)), **options)
    shaped = chain.shaped(row, [])
    found = np.flatnonzero(shaped > -np.inf).tolist()
    assert found == allowed[: len(found)] and len(found) >= 2
    assert (shaped[found] == row[found]).all()
    assert chain.token(row, []) in allowed
    if not options or "top_n_sigma" in options:
        assert found == allowed


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 2}, {}])
def test_only_tokens_that_the_grammar_may_allow_are_sorted(monkeypatch, options):
    n_vocab, reachable, allowed = 5000, [*range(40, 4900, 7)], [901, 2301, 4100]
    row = np.linspace(9.0, -9.0, n_vocab).astype(np.float32)
    grammar, sizes = Few(n_vocab, allowed), []
    grammar.possible = lambda history: np.isin(np.arange(n_vocab), reachable)
    monkeypatch.setattr(
        chain_module, "largest", lambda row, n: (sizes.append(len(row)), largest(row, n))[1]
    )
    chain = sampler(SeededRng(1), NO_FILTERS._replace(grammar=grammar), **options)
    found = np.flatnonzero(chain.shaped(row, []) > -np.inf).tolist()
    assert found == allowed[: len(found)]
    assert len(found) >= 2
    assert all(size <= len(reachable) for size in sizes)


@pytest.mark.parametrize("n_vocab", [1, 63, 64, 1000, 40_000])
def test_the_largest(n_vocab):
    rng = np.random.default_rng(n_vocab)
    row = np.round(rng.normal(size=n_vocab) * 50).astype(np.float32)  # many are equal
    for n in {
        1,
        min(2, n_vocab),
        min(40, n_vocab),
        min(311, n_vocab),
        max(1, n_vocab // 2),
        n_vocab,
    }:
        ids = largest(row, n)
        assert len(set(ids.tolist())) == n
        assert np.sort(row[ids]).tolist() == np.sort(row)[n_vocab - n :].tolist()


def test_greedy_chooses_the_best_token_after_bias_and_penalties():
    logits = np.array([1.0, 2.0, 3.0], dtype=np.float32)
    assert sampler(None, temperature=0.0).distribution(logits, []).ids == [2]
    assert sampler(None, temperature=0.0, logit_bias={2: -5.0}).distribution(logits, []).ids == [1]
    assert sampler(None, temperature=0.0, repeat_penalty=10.0).distribution(logits, [2, 1]).ids == [
        0
    ]
    assert sampler(None, top_k=1).distribution(logits, []).ids == [2]


@pytest.mark.parametrize("top_p", [0.1, 0.2])
def test_typical_p_is_before_top_p_and_uses_all_tokens(top_p):
    """So many unlikely tokens that they are typical; top-p alone would remove them."""
    row = np.concatenate([np.linspace(4.0, 2.0, 8), np.linspace(-4.0, -4.2, 30_000)]).astype(
        np.float32
    )
    assert sampler(None, top_p=top_p).distribution(row, []).ids.max() < 8
    typical = sampler(None, typical_p=0.8).distribution(row, [])
    order = np.argsort(-typical.probs, kind="stable")
    n = int(np.searchsorted(np.cumsum(typical.probs[order]), top_p)) + 1
    distribution = sampler(None, typical_p=0.8, top_p=top_p).distribution(row, [])
    assert distribution.ids.tolist() == sorted(typical.ids[order[:n]].tolist())


def test_a_greedy_choice_is_one_candidate():
    ids, logits = sampler(None, temperature=0.0).candidates(
        np.array([1.0, 3.0], dtype=np.float32), []
    )
    assert (ids.tolist(), logits.shape) == ([1], (1,))


def test_no_token_is_an_end_without_a_model():
    row = np.array([5.0, 1.0], dtype=np.float32)
    assert sampler(None, temperature=0.0, ignore_eos=True).token(row, []) == 0
    assert (NO_FILTERS.ends.shape, NO_FILTERS.penalise_from) == ((0,), 0)


@pytest.mark.parametrize("one", [sampler(None), CompatSampling()])
def test_a_sampler_cannot_be_changed_during_a_request(one):
    with pytest.raises(FrozenInstanceError):
        one.seed = 3


def test_a_tiny_temperature_is_greedy_without_overflow():
    distribution = sampler(None, temperature=1e-9).distribution(
        np.array([1.0, 30.0, 29.9], dtype=np.float32), []
    )
    assert list(distribution.ids) == [1]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"top_k": 2}, {"top_p": 0.5}])
def test_no_token_left(bad, options):
    with pytest.raises(NoTokenLeftError):
        sampler(None, **options).distribution(np.full(4, bad, dtype=np.float32), [])


def test_penalties_and_bias_of_tokens_the_draft_lacks_do_nothing():
    logits = np.zeros(3, dtype=np.float32)
    distribution = sampler(
        None, repeat_penalty=2.0, presence_penalty=1.0, logit_bias={7: 3.0}
    ).distribution(logits, [7, 9])
    assert distribution.probs == pytest.approx([1 / 3] * 3)


@given(
    st.lists(st.sampled_from([0.0, 0.1, 0.5, 1.0]), min_size=2, max_size=8).filter(
        lambda p: sum(p) > 0
    ),
    st.integers(0, 2**64 - 1),
)
def test_a_token_of_probability_zero_is_never_drawn(weights, seed):
    probs = np.array(weights) / sum(weights)
    rng = SeededRng(seed)
    assert all(probs[rng.choose(probs)] > 0 for _ in range(20))


def test_the_seed_decides():
    def draws(seed):
        rng = SeededRng(seed)
        return [rng.choose(np.full(50, 0.02)) for _ in range(20)] + [
            rng.chance(0.5) for _ in range(20)
        ]

    assert draws(3) == draws(3)
    assert draws(3) != draws(4)


def test_certain_choices_draw_nothing():
    a, b = SeededRng(1), SeededRng(1)
    assert a.chance(1.0)
    assert not a.chance(0.0)
    assert a.choose(np.ones(1)) == 0
    assert [a.chance(0.5) for _ in range(9)] == [b.chance(0.5) for _ in range(9)]
