"""What one row costs from logits to token under the rule `coupled`, by vocabulary and filter, in milliseconds. Medians; one thread.

.venv/bin/python scripts/bench/sampling_cost.py
"""

import time

import numpy as np

from gguf_spec import Sampling
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng

CHAINS = {
    "greedy": {"temperature": 0.0},
    "top-k 40": {"top_k": 40, "top_p": 1.0},
    "top-k 40, top-p 0.95": {},
    "top-p 0.95": {"top_k": 0},
    "min-p 0.05": {"top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "none": {"top_k": 0, "top_p": 1.0},
}


def row_like_a_models(n_vocab, rng):
    """Logits with a few tokens far above a bell of the others, as language models have them."""
    row = rng.normal(size=n_vocab) * 2.5
    row[rng.choice(n_vocab, 50, replace=False)] += rng.exponential(5.0, size=50) + 4
    return row.astype(np.float32)


def open_row(n_vocab, rng):
    """Logits of a place where many words may follow: beside the bell, a fiftieth of the tokens fall off as words in a language do."""
    row, many = rng.normal(size=n_vocab) * 2.5, n_vocab // 50
    row[rng.choice(n_vocab, many, replace=False)] = 18 - 1.1 * np.log(np.arange(1, many + 1))
    return row.astype(np.float32)


def median_ms(sampler, rows, history):
    times = []
    for row in rows:
        started = time.perf_counter()
        sampler.token(row, history)
        times.append(time.perf_counter() - started)
    return 1000 * float(np.median(times))


def main():
    rng, sizes = np.random.default_rng(0), (4096, 49_152, 128_256, 152_064)
    history = list(range(500))
    for make_row in (row_like_a_models, open_row):
        print(
            f"\n{make_row.__name__}\n\n| filter | "
            + " | ".join(f"V = {n:,}" for n in sizes)
            + " |\n|---|"
            + "---|" * len(sizes)
        )
        rows = {n: [make_row(n, rng) for _ in range(60)] for n in sizes}
        for name, options in CHAINS.items():
            sampler = Sampler(Sampling(**options), SeededRng(1))
            print(
                f"| {name} | "
                + " | ".join(f"{median_ms(sampler, rows[n], history):.3f}" for n in sizes)
                + " |"
            )


if __name__ == "__main__":
    main()
