"""All 64 bits of a seed and all of a position count: no two seeds share a text, and noise does not come again further on."""

from dataclasses import replace

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.sampling.chain import Candidates
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative.prefix import retain_prefix
from tests.support.fakes import FakeModel, fake_llm, random_table, sampler

IDS = np.arange(50)
EVEN = Candidates(IDS, np.zeros(len(IDS)))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "way",
    [Speculation(0), Speculation(3, adaptive=False), Speculation(3, "rejection", adaptive=False)],
    ids=lambda way: way.accept,
)
def test_every_bit_of_a_seed_changes_the_text(way):
    table = random_table(np.random.default_rng(1), 8)
    llm = fake_llm(FakeModel(table), FakeModel(random_table(np.random.default_rng(2), 8)), way)
    seeds = [7, *(7 ^ 1 << bit for bit in range(64))]
    said = [
        llm.generate_tokens(
            [1, 2], Sampling(temperature=2.0, top_k=0, top_p=1.0, seed=seed, max_tokens=24)
        )
        for seed in seeds
    ]
    assert len({one.tokens for one in said}) == len(seeds)
    assert [one.seed for one in said] == seeds


def test_every_bit_of_a_seed_reaches_every_kind_of_choice():
    sources = [SeededRng(seed) for seed in (7, *(7 ^ 1 << bit for bit in range(64)))]
    assert len({rng.gumbel(IDS, 5).tobytes() for rng in sources}) == 65
    assert len({rng.coin(5) for rng in sources}) == 65
    assert len({tuple(rng.choose(np.full(50, 0.02)) for _ in range(16)) for rng in sources}) == 65


@pytest.mark.parametrize("period", [2**i for i in range(5, 41)])
def test_noise_is_not_repeated_after(period):
    chain = sampler(SeededRng(1))
    first, later = ([chain.pick(EVEN, start + i) for i in range(32)] for start in (3, 3 + period))
    assert sum(a == b for a, b in zip(first, later, strict=True)) < 8
    assert chain.rng.coin(3) != chain.rng.coin(3 + period)


@pytest.mark.parametrize("period", [1024, 16_384, 32_768])
def test_tokens_behind_long_histories_have_noise_of_their_own(period):
    chain, row, history = sampler(SeededRng(1)), np.zeros(50, dtype=np.float32), [0] * (period + 40)
    first, later = (
        [chain.token(row, history[: start + i]) for i in range(32)] for start in (3, 3 + period)
    )
    assert sum(a == b for a, b in zip(first, later, strict=True)) < 8


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 100, 255, 256, 511, 512, 1000])
@pytest.mark.parametrize("grid", [0, 64])
def test_a_cache_is_kept_up_to_the_first_token_that_differs(at, grid):
    model = FakeModel(random_table(np.random.default_rng(1), 4), n_ctx=2000)
    model.exactness = replace(model.exactness, grid=grid)
    before = [i % 3 for i in range(1001)]
    model.read(before)
    retain_prefix(model, [*before[:at], 3, *before[at + 1 :]])
    assert model.cached == before[: at - at % grid if grid else at]
