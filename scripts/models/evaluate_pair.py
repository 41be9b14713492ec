"""Print the figures of a trained pair's model card as Markdown: held-out losses, acceptance, samples.

.venv/bin/python scripts/models/evaluate_pair.py OUT/work/held_out.json TARGET.gguf DRAFT.gguf
"""

import argparse
import json
from pathlib import Path

import numpy as np

import gguf_spec
from gguf_spec import Sampling, Speculation

SAMPLES = [
    ("Once upon a time", 1),
    ('"Come with me," cried the boy, "and', 2),
    ("Tell me a story about a fox and a king.", 3),
]


def loss(model, texts, n_tokens=1024, most=24):
    """Mean loss in nats a token, and bits a byte, over windows of the held-out texts; computed by llama.cpp from the quantised file."""
    nats, n, n_bytes = 0.0, 0, 0
    for text in texts[:most]:
        ids = model.weights.tokenize(text, special=False, start=False)[:n_tokens]
        model.rollback(0)
        for at in range(0, len(ids) - 1, 32):
            part = ids[at : at + 32]
            rows = model.logits(part, len(part)).astype(np.float64)
            labels = ids[at + 1 : at + 1 + len(part)]
            rows = rows[: len(labels)]
            top = rows.max(1)
            nats += float(
                (
                    top
                    + np.log(np.exp(rows - top[:, None]).sum(1))
                    - rows[np.arange(len(labels)), labels]
                ).sum()
            )
            n += len(labels)
            n_bytes += sum(len(model.weights.piece(t)) for t in labels)
    return nats / n, nats / np.log(2) / n_bytes


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("held_out", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    args = parser.parse_args()
    texts = json.loads(args.held_out.read_text(encoding="utf-8"))
    with gguf_spec.load(args.target, args.draft) as llm:
        print("| model | held-out loss, nats a token | bits a byte |\n|---|---|---|")
        for name, model in (("target", llm.engine.target), ("draft", llm.engine.pair.draft)):
            nats, bits = loss(model, texts)
            print(f"| {name} | {nats:.3f} | {bits:.3f} |")
        print(
            "\nAcceptance at k = 4 over 20 held-out prompts (the first 64 tokens of a passage), 64 tokens each:\n"
        )
        print("| sampling | acceptance | tokens a round |\n|---|---|---|")
        for name, options in (
            ("greedy", {"temperature": 0.0}),
            ("temperature 0.8, top-k 40, top-p 0.95", {"seed": 1}),
        ):
            stats = [
                llm.generate_tokens(
                    llm.tokenize(text)[:64],
                    Sampling(max_tokens=64, **options),
                    speculation=Speculation(4, drafter="model", adaptive=False),
                ).stats
                for text in texts[:20]
            ]
            accepted = sum(s.n_accepted for s in stats) / sum(s.n_drafted for s in stats)
            print(
                f"| {name} | {accepted:.2f} | {sum(s.n_generated for s in stats) / sum(s.rounds for s in stats):.2f} |"
            )
        for prompt, seed in SAMPLES:
            request = (
                [{"role": "user", "content": prompt}] if prompt.startswith("Tell me") else prompt
            )
            result = llm.generate(request, Sampling(seed=seed, max_tokens=160))
            print(f"\n`{'--chat ' if request != prompt else ''}{prompt}`, seed {seed}:\n")
            print("\n".join(f"> {line}".rstrip() for line in result.text.strip().splitlines()))


if __name__ == "__main__":
    main()
