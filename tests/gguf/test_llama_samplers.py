"""llama.cpp's samplers against direct implementations of their rules, and our chain against llama.cpp's."""

import ctypes
import random

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

from gguf_spec.errors import ClosedError
from gguf_spec.llama import samplers
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.samplers import Dry
from gguf_spec.options import K_MAX
from gguf_spec.sampling import chain
from gguf_spec.sampling.rng import SeededRng
from tests.support import tiny
from tests.support.fakes import sampler


def typical(ids, logits, p):
    return np.sort(ids[chain.typical(logits, p)])


def xtc(ids, logits, threshold):
    return np.sort(ids[chain.xtc(logits, threshold)])


def softmax(z):
    p = np.exp(z - z.max())
    return p / p.sum()


def row(n, seed, scale=3.0):
    """Ids that are not their places, in any order, and logits."""
    rng = np.random.default_rng([n, seed])
    return rng.permutation(n).astype(np.int64) * 3 + 7, rng.normal(size=n) * scale + 11


def test_the_memory_is_laid_out_as_llama_cpp_expects():
    fields = {name: getattr(C.llama_token_data, name) for name, _ in C.llama_token_data._fields_}
    ours = {
        name: (offset, kind.itemsize) for name, (kind, offset) in samplers.CANDIDATE.fields.items()
    }
    assert ours == {name: (field.offset, field.size) for name, field in fields.items()}
    assert samplers.CANDIDATE.itemsize == ctypes.sizeof(C.llama_token_data)


# ---- typical-p


def plain_typical(ids, logits, mass):
    """The ids whose surprise is nearest to the entropy, the fewest with more than `mass`."""
    p = softmax(logits)
    surprise = -np.log(p)
    order = np.argsort(np.abs(surprise - (p * surprise).sum()), kind="stable")
    n = int((np.cumsum(p[order]) <= mass).sum()) + 1
    return set(ids[order[:n]].tolist())


@pytest.mark.parametrize("mass", [0.05, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 40, 129, 2000])
def test_typical_follows_the_paper(n, mass):
    for seed in range(5):
        ids, logits = row(n, seed)
        kept = typical(ids, logits, mass)
        assert (np.diff(kept) > 0).all()
        assert (
            plain_typical(ids, logits, mass - 1e-5)
            <= set(kept.tolist())
            <= plain_typical(ids, logits, mass + 1e-5)
        )
        assert (row(n, seed)[1] == logits).all()


def test_typical_may_leave_out_the_likeliest_and_an_unlikely_token_changes_nothing():
    ids, logits = np.arange(66), np.log(np.array([0.35, *[0.01] * 65]))
    kept = typical(ids, logits, 0.505)
    assert len(kept) == 51
    assert 0 not in kept
    for hopeless in (-80.0, -104.0, -1000.0, -1e30, -1e300):
        assert (typical(np.append(ids, 99), np.append(logits, hopeless), 0.505) == kept).all()


@pytest.mark.parametrize("mass", [1.0, 0.999999999])
def test_typical_of_all_keeps_all(mass):
    ids, logits = row(40, 0)
    assert typical(ids, logits, mass).tolist() == sorted(ids.tolist())


def test_typical_keeps_one_at_least():
    ids, logits = row(40, 0)
    assert len(typical(ids, logits, 1e-50)) == 1
    assert len(typical(ids, np.zeros(40), 0.51)) == 21  # ties


@pytest.mark.parametrize("far", [-1e9, 1e9])
def test_only_differences_of_logits_matter(far):
    ids, logits = row(40, 2)
    assert (typical(ids, logits + far, 0.5) == typical(ids, logits, 0.5)).all()
    assert (xtc(ids, logits + far, 0.02) == xtc(ids, logits, 0.02)).all()


# ---- XTC


def plain_xtc(ids, logits, threshold):
    """All ids but the likeliest ones above the threshold, the least likely of which stays."""
    p = softmax(logits)
    above = sorted(
        (prob, token) for prob, token in zip(p, ids.tolist(), strict=True) if prob >= threshold
    )
    return set(ids.tolist()) - {token for _, token in above[1:]}


@pytest.mark.parametrize("threshold", [0.0, 0.001, 0.02, 0.1, 0.3, 0.5])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 40, 129, 2000])
def test_xtc_removes_the_likeliest_tokens(n, threshold):
    for seed in range(5):
        ids, logits = row(n, seed)
        kept = xtc(ids, logits, threshold)
        assert set(kept.tolist()) == plain_xtc(ids, logits, threshold)
        assert (np.diff(kept) > 0).all()
        assert (row(n, seed)[1] == logits).all()


def test_xtc_keeps_unlikely_tokens_and_the_last_of_equal_ones():
    logits = np.array([0.0, -0.1, -200.0, -1e300])
    assert xtc(np.arange(4), logits, 0.1).tolist() == [1, 2, 3]
    assert xtc(np.arange(5), np.array([1.0, 2.0, 1.0, 1.0, -9.0]), 0.1).tolist() == [3, 4]


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_the_coin_of_xtc_is_what_llama_cpp_draws(probability):
    """With 32 bits of a position as the seed; the last number is no seed there, so it is taken for 0."""
    source, row = SeededRng(4), np.array([0.0, 0.1])
    ours = [source.coin(i) <= probability if probability else False for i in range(1000)]
    seeds = [int(source.keys_at(i)[4]) for i in range(1000)]
    theirs = [
        len(applied(C.llama_sampler_init_xtc(probability, 0.1, 1, seed), row)) == 1
        for seed in seeds
    ]
    assert ours == theirs
    assert np.mean(ours) == pytest.approx(probability, abs=0.05)


def test_xtc_does_nothing_above_half_or_by_its_coin():
    class Tossed(SeededRng):
        def coin(self, position):
            return 0.25 if position else 0.75

    logits = np.array([0.6, 0.7, -9.0, 0.5], dtype=np.float32)
    for probability, threshold, position, n in (
        (0.5, 0.1, 1, 2), (0.5, 0.1, 0, 4), (0.25, 0.1, 1, 2), (0.2, 0.1, 1, 4), (1.0, 0.51, 1, 4), (0.0, 0.1, 1, 4),
    ):  # fmt: skip
        chain_ = sampler(Tossed(1), xtc_probability=probability, xtc_threshold=threshold)
        assert len(chain_.survivors(logits, position).ids) == n


# ---- DRY

NEWLINE, COLON, X, Y = (tiny.TOKENS.index(letter) for letter in ("Ċ", ":", "x", "y"))
BREAKERS = ("\n", ":", '"', "*")


@pytest.fixture(scope="module")
def model(gguf_dir):
    model = Context(
        gguf_dir / "llama.gguf", ContextOptions(n_ctx=512, threads=1, extra_bufts=False)
    ).weights
    yield model
    model.close()


def plain_dry(history, multiplier, base, allowed, last_n, breaks=()):
    """For every token that followed the history's end before: the longest such end, in tokens, gives the penalty."""
    tokens = list(history[-last_n:] if last_n > 0 else history if last_n else [])
    n = len(tokens)
    ends = [i + len(b) for b in breaks for i in range(n) if tuple(tokens[i : i + len(b)]) == b]
    limit, longest = n - max(ends, default=0), {}
    for end in range(1, n):
        length = 0
        while length < end and tokens[end - 1 - length] == tokens[n - 1 - length]:
            length += 1
        if min(length, limit) >= allowed and (tokens[end],) not in breaks:
            longest[tokens[end]] = max(longest.get(tokens[end], 0), min(length, limit))
    return {token: multiplier * base ** (length - allowed) for token, length in longest.items()}


def penalties(dry, history):
    ids, values = dry.penalties(history)
    assert (np.diff(ids) > 0).all()
    return dict(zip(ids.tolist(), values.tolist(), strict=True))


def walk(rnd, alphabet, steps):
    """Histories of a speculative generation: grown by up to 5, cut by up to 4, sometimes replaced."""
    history = []
    for _ in range(steps):
        jump = rnd.random()
        if jump < 0.03:
            history = rnd.choices(alphabet, k=rnd.randrange(60, 200))
        elif jump < 0.06:
            history = history[: rnd.randrange(len(history) + 1)]
        else:
            history = history[: max(0, len(history) - rnd.randrange(5))]
        for _ in range(rnd.randrange(6)):
            history = [*history, rnd.choice(alphabet)]
            yield history
        yield history[:-1]


@pytest.mark.few(2)
@pytest.mark.parametrize("last_n", [-1, 1, 7, 40, 600])
@pytest.mark.parametrize(
    ("options", "breakers", "breaks"),
    [
        ((0.8, 1.75, 2), (), ()),
        ((0.8, 1.75, 2), BREAKERS, ((NEWLINE,), (COLON,))),
        ((2.0, 1.1, 1), ("xy",), ((X, Y),)),
        ((0.5, 1.0, 0), ("xy", "\n"), ((X, Y), (NEWLINE,))),
        ((1.0, 1.3, 4), BREAKERS, ((NEWLINE,), (COLON,))),
    ],
)
def test_dry_follows_its_rule_however_the_history_changes(model, options, breakers, breaks, last_n):
    rnd, dry, n_penalised, longest = random.Random(5), Dry(model, *options, last_n, breakers), 0, 0
    for history in walk(rnd, [*[X, Y] * 8, 40, NEWLINE, COLON], 300):
        expected = plain_dry(history, *options, last_n, breaks)
        assert penalties(dry, history) == pytest.approx(expected, rel=1e-5)
        n_penalised += len(expected)
        longest = max(longest, len(history))
    assert 3 * K_MAX < longest < model.n_ctx
    assert n_penalised > 50 or last_n == 1


def test_dry_is_that_of_llama_cpp_for_a_complete_vocabulary(model):
    dry, rnd = Dry(model, 0.8, 1.75, 1, -1, BREAKERS), random.Random(1)
    breakers = (ctypes.c_char_p * 4)(*[text.encode() for text in BREAKERS])
    for n in (0, 1, 5, 60, 400):
        history = rnd.choices(range(40, 60), k=n)
        whole = model.native.vocab(C.llama_sampler_init_dry, 0.8, 1.75, 1, model.n_ctx, breakers, 4)
        distribution = dict.fromkeys(range(model.n_vocab), 0.0) | {
            int(c["id"]): float(c["logit"])
            for c in applied(whole, np.zeros(model.n_vocab), history)
        }
        assert {token: -logit for token, logit in distribution.items() if logit} == pytest.approx(
            penalties(dry, history), rel=1e-6
        )


def test_dry_does_nothing_where_it_is_off(model):
    history = [40, 41] * 20
    assert penalties(Dry(model, 0.8, 1.75, 2, -1, ()), history).keys() == {40}
    for off in ((0.0, 1.75, 2, -1), (0.8, 1.75, 2, 0), (0.8, 0.5, 2, -1), (0.8, 1.75, 2**40, -1)):
        assert penalties(Dry(model, *off, ()), history) == {}


@pytest.mark.parametrize(
    ("multiplier", "base"), [(5.0, 10.0), (0.1, 1e32), (2.0, 1e300), (1e30, 1.75), (1e300, 1.0)]
)
def test_dry_penalties_are_finite(model, multiplier, base):
    (value,) = penalties(Dry(model, multiplier, base, 0, -1, ()), [40] * 300).values()
    assert value == 1e30
    (value,) = penalties(Dry(model, -multiplier, base, 0, -1, ()), [40] * 300).values()
    assert value == -1e30


def test_dry_reserves_no_more_than_a_context(model):
    history = [40, 41] * 200
    assert (
        penalties(Dry(model, 0.8, 1.75, 2, 10**12, ()), history)
        == penalties(Dry(model, 0.8, 1.75, 2, -1, ()), history)
        != {}
    )


def test_dry_takes_any_sequence(model):
    dry = Dry(model, 0.8, 1.75, 2, -1, [])
    history = [40, 41, 42] * 30
    assert penalties(dry, tuple(history)) == penalties(dry, history) != {}


ODD = [
    "",
    "\0",
    "\0a",
    "a\0b",
    "\ud800",
    "x" * 10_000,
    "e" * 40,
    " " * 10_000,
    "é",
    "日本",
    "🎉" * 30,
    "a" * 39 + "é",
    "<|im_start|>",
]


@pytest.mark.parametrize("breaker", ODD, ids=range(len(ODD)))
def test_unusual_sequence_breakers(model, breaker):
    assert penalties(Dry(model, 0.8, 1.75, 2, -1, (breaker, "\n")), [40, 41] * 9) == plain_dry(
        [40, 41] * 9, 0.8, 1.75, 2, -1
    ) | {40: pytest.approx(0.8 * 1.75**14, rel=1e-5)}
    assert penalties(Dry(model, 0.8, 1.75, 2, -1, (breaker, "\n")), [40, NEWLINE] * 9) == {}


def test_a_breaker_ends_at_its_nul(model):
    assert penalties(Dry(model, 0.8, 1.75, 2, -1, ("x\0y",)), [40, X] * 9) == {}
    assert penalties(Dry(model, 0.8, 1.75, 2, -1, ("x\0y",)), [40, Y] * 9).keys() == {40}


def test_breakers_are_looked_for_once(model, monkeypatch):
    Dry(model, 0.8, 1.75, 3, -1, BREAKERS).close()
    monkeypatch.setattr(C, "llama_sampler_init_dry", lambda *_: pytest.fail("made again"))
    assert penalties(Dry(model, 0.8, 1.75, 3, -1, [*BREAKERS]), [40] * 9).keys() == {40}
    with pytest.raises(pytest.fail.Exception):
        Dry(model, 0.8, 1.75, 3, -1, BREAKERS[1:])


def test_a_row_feeds_only_what_is_new(model, monkeypatch):
    fed, accept = [], C.llama_sampler_accept
    monkeypatch.setattr(
        C,
        "llama_sampler_accept",
        lambda sampler, token: fed.append(token) or accept(sampler, token),
    )
    dry, history = Dry(model, 0.8, 1.75, 2, -1, ()), [40] * 400
    dry.penalties(history)
    assert len(fed) == 400
    for i in range(5):
        dry.penalties([*history, *[41] * i])
    assert len(fed) == 400 + 2 * 4  # once ahead, once behind
    for length in (401, 402, 410, 405, 390):
        dry.penalties([*history, *[42] * 10][:length])
    assert len(fed) < 408 + 5 * (K_MAX + 11)


def test_an_interrupted_feed_leaves_no_trace(model, monkeypatch):
    dry, history, accept = (
        Dry(model, 0.8, 1.75, 2, -1, ()),
        [40, 41, 42, 43] * 30,
        C.llama_sampler_accept,
    )
    expected = penalties(dry, history)
    for at in (1, 50, 100):
        dry, left = Dry(model, 0.8, 1.75, 2, -1, ()), iter(range(at))

        def interrupted(sampler, token, left=left):
            accept(sampler, token)
            if next(left, None) is None:
                raise KeyboardInterrupt

        monkeypatch.setattr(C, "llama_sampler_accept", interrupted)
        with pytest.raises(KeyboardInterrupt):
            dry.penalties(history)
        monkeypatch.undo()
        assert penalties(dry, history) == expected != {}


def test_closing(gguf_dir):
    model = Context(
        gguf_dir / "llama.gguf", ContextOptions(n_ctx=64, threads=1, extra_bufts=False)
    ).weights
    dry, other = Dry(model, 0.8, 1.75, 2, -1, ("\n",)), Dry(model, 0.8, 1.75, 2, -1, ("\n",))
    dry.close()
    dry.close()
    with pytest.raises(ClosedError):
        dry.penalties([1, 2])
    model.close()
    assert penalties(other, [40] * 9).keys() == {40}  # it needs the vocabulary only to be made
    with pytest.raises(ClosedError):
        Dry(model, 0.9, 1.75, 2, -1, ())


# ---- our chain against llama.cpp's


def applied(native, logits, history=()):
    """Return what a native sampler leaves of the vocabulary after a history; frees the sampler."""
    candidates = np.zeros(len(logits), samplers.CANDIDATE)
    candidates["id"], candidates["logit"] = np.arange(len(logits)), logits
    array = C.llama_token_data_array(
        ctypes.cast(candidates.ctypes.data, C.llama_token_data_p), len(logits), -1, False
    )
    for token in history:
        C.llama_sampler_accept(native, token)
    C.llama_sampler_apply(native, ctypes.byref(array))
    left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    C.llama_sampler_free(native)
    return np.array(left, dtype=[("id", np.int64), ("logit", np.float64)])


def llama_chain(logits, history, s):
    """The distribution by llama.cpp only, without DRY; XTC takes effect always or never."""
    chain = C.llama_sampler_chain_init(C.llama_sampler_chain_default_params())
    last_n = len(history) if s.penalty_last_n < 0 else s.penalty_last_n
    for native in (
        C.llama_sampler_init_penalties(
            len(logits), last_n, s.repeat_penalty, s.frequency_penalty, s.presence_penalty
        ),
        C.llama_sampler_init_top_n_sigma(s.top_n_sigma),
        C.llama_sampler_init_top_k(s.top_k),
        C.llama_sampler_init_typical(s.typical_p, 1),
        C.llama_sampler_init_top_p(s.top_p, 1),
        C.llama_sampler_init_min_p(s.min_p, 1),
        C.llama_sampler_init_xtc(s.xtc_probability, s.xtc_threshold, 1, 0),
        C.llama_sampler_init_temp(s.temperature),
    ):
        C.llama_sampler_chain_add(chain, native)
    left = applied(chain, logits, history)
    distribution = np.zeros(len(logits))
    distribution[left["id"]] = softmax(left["logit"])
    return distribution


PENALTIES = {
    "repeat_penalty": 1.3,
    "frequency_penalty": 0.4,
    "presence_penalty": 0.2,
    "penalty_last_n": 20,
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"temperature": 2.5},
        {"temperature": 0.0},
        {"top_k": 1},
        {"top_k": 40},
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"min_p": 0.1},
        {"min_p": 1.0},
        PENALTIES,
        {**PENALTIES, "penalty_last_n": -1},
        {"repeat_penalty": 0.6},
        {"frequency_penalty": -0.7, "penalty_last_n": 3},
        {"top_k": 40, "top_p": 0.95, "temperature": 0.8},
        {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8, **PENALTIES},
        {"top_k": 30, "min_p": 0.02, "temperature": 1.7},
        {"top_p": 0.9, "min_p": 0.05, "temperature": 0.5},
        {"typical_p": 0.2},
        {"typical_p": 0.9},
        {"top_n_sigma": 0.5},
        {"top_n_sigma": 1.5},
        {"top_n_sigma": 1.0, "top_k": 10, "top_p": 0.9, "temperature": 1.5},
        {"top_n_sigma": 2.0, "min_p": 0.05, **PENALTIES},
        {"top_k": 40, "typical_p": 0.8, "top_p": 0.8, "min_p": 0.05, "temperature": 0.8},
        {"typical_p": 0.7, "top_p": 0.9, "temperature": 0.6, **PENALTIES},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "min_p": 0.2},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 6, "top_p": 0.8},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02, "typical_p": 0.7, "temperature": 0.5},
    ],
    ids=lambda options: "-".join(f"{name}={value}" for name, value in options.items()),
)
@pytest.mark.parametrize("n", [50, 5000])
def test_our_chain_gives_the_probabilities_of_llama_cpp(n, options):
    ours = sampler(SeededRng(1), **options)
    for seed in range(4):
        rng = np.random.default_rng([n, seed])
        logits = (rng.normal(size=n) * 2 - seed).astype(np.float32)
        history = (
            rng.integers(0, n, size=30).tolist() * 2 + np.argsort(-logits)[:9].tolist()
        )  # likely ones too
        distribution = np.zeros(n)
        ids, probs = ours.distribution(logits, history)
        distribution[ids] = probs
        assert np.abs(distribution - llama_chain(logits, history, ours.sampling)).max() < 1e-5
