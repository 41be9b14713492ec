"""Acceptance of the rules side by side on the bundled pair, or another one: same prompts, same seeds, same k. As Markdown, for the README.

.venv/bin/python scripts/bench/acceptance.py [-k 4] [-n 64] [--model MODEL --draft DRAFT --count PROMPTS]

llama.cpp's rule (draft the likeliest token, keep it when the token sampled from the target is the same) is the rule `coupled` with a draft at
temperature 0.
"""

import argparse
from dataclasses import replace

import numpy as np

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.speculative.drafters.model import CANDIDATES, DraftCorrection
from gguf_spec.verify import bundled_prompts

TUNED = CANDIDATES
ROWS = {
    "llama.cpp's: likeliest token, kept when sampled": ("coupled", np.array([(1e-6, 0.0)])),
    "`coupled`, draft at the target's temperature": ("coupled", np.array([(1.0, 0.0)])),
    "`coupled`": ("coupled", TUNED),
    "`rejection`": ("rejection", TUNED),
    "`block`": ("block", TUNED),
}


def acceptance(llm, accept, ways, sampling, k, count):
    """(accepted over drafted tokens, tokens a round) over all prompts."""
    correction = DraftCorrection(llm.vocabulary.n_vocab)
    correction.candidates, correction.first = ways, min(5, len(ways) - 1)
    llm.restore(replace(llm.snapshot(), calibration=correction))
    n_drafted = n_accepted = n_tokens = n_rounds = 0
    speculation = Speculation(
        k, accept, drafter="model", adaptive=False
    )  # drafts, whether it pays or not
    for i, prompt in enumerate(bundled_prompts()[:count]):
        stats = llm.generate(prompt, Sampling(**sampling, seed=i), speculation=speculation).stats
        n_drafted, n_accepted = n_drafted + stats.n_drafted, n_accepted + stats.n_accepted
        n_tokens, n_rounds = n_tokens + stats.n_generated, n_rounds + stats.rounds
    return n_accepted / n_drafted, n_tokens / n_rounds


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-k", type=int, default=4)
    parser.add_argument("-n", type=int, default=64, help="tokens of a text")
    parser.add_argument("--model", default="tales")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, help="number of prompts")
    args = parser.parse_args()
    temperatures = (0.5, 0.8, 1.0)
    print(
        "| rule | "
        + " | ".join(f"T = {t}" for t in temperatures)
        + " |\n|---|"
        + "---|" * len(temperatures)
    )
    with gguf_spec.load(args.model, args.draft, n_ctx=1024, threads=args.threads) as llm:
        for name, (accept, grid) in ROWS.items():
            cells = [
                acceptance(
                    llm, accept, grid, {"temperature": t, "max_tokens": args.n}, args.k, args.count
                )
                for t in temperatures
            ]
            print(
                f"| {name} | " + " | ".join(f"{a:.3f} ({n:.2f})" for a, n in cells) + " |",
                flush=True,
            )


if __name__ == "__main__":
    main()
