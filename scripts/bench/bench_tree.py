"""Compare drafts with and without branches on real models, in turn: adaptive and fixed lengths, greedy and sampled.

    .venv/bin/python scripts/bench/bench_tree.py -m TARGET.gguf -d DRAFT.gguf [--texts story,document-1k,code-1k] [-n 96] [--runs 2]

All settings decode the same text one after the other, and in the opposite order in the next run. Prints the measured cost of the passes, how often
second guesses were right, and for each text and temperature the tokens per second over those of plain decoding, without the time of the prompt. The
last column says whether all texts were those of plain decoding. Leave the machine alone while it runs.
"""

import argparse
import statistics

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.bench import LONG_WORKLOADS, WORKLOADS, _as_loaded
from gguf_spec.speculative.drafters import N_CONFIDENCE_BUCKETS
from gguf_spec.speculative.pair_statistics import SECOND

SETTINGS = {
    "plain": Speculation(0),
    "adaptive": Speculation(tree=False),
    "adaptive, auto": Speculation(),
    "adaptive, tree": Speculation(tree=True),
    **{
        f"fixed {k}{', tree' * tree}": Speculation(k, drafter="model", adaptive=False, tree=tree)
        for k in (2, 4)
        for tree in (False, True)
    },
}


def decode(llm, conversation, sampling, speculation):
    """Return tokens per second behind the prompt, the stats and the tokens of a conversation's first answer."""
    turn = conversation.turns[0]
    prompt = (
        turn if llm.prompt == "text" else [*conversation.history, {"role": "user", "content": turn}]
    )
    one = llm.generate(prompt, sampling, speculation=speculation, prefill=conversation.prefill)
    stats = one.stats
    return stats.n_generated / (stats.total_s - stats.prompt_s), stats, one.tokens


def compare(llm, forget, conversations, temperature, n_tokens, n_runs):
    """Yield for each setting: its name, all ratios to plain decoding, drafted tokens a round, tokens a round, whether all texts are the plain ones."""
    ratios, drafted, per_round, same = ({name: [] for name in SETTINGS} for _ in range(4))
    for run in range(n_runs):
        for i, conversation in enumerate(conversations):
            sampling = Sampling(
                temperature=temperature,
                seed=100 * run + i,
                max_tokens=n_tokens,
                ignore_eos=True,
            )
            found = {}
            for name in [*SETTINGS][:: -1 if (run + i) % 2 else 1]:
                forget()  # every setting starts with what was known after loading
                found[name] = decode(llm, conversation, sampling, SETTINGS[name])
            for name, (speed, stats, tokens) in found.items():
                ratios[name].append(speed / found["plain"][0])
                drafted[name].append(stats.n_drafted / stats.rounds)
                per_round[name].append(stats.n_generated / stats.rounds)
                same[name].append(tokens == found["plain"][2])
    for name in SETTINGS:
        yield (
            name,
            ratios[name],
            statistics.mean(drafted[name]),
            statistics.mean(per_round[name]),
            all(same[name]),
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--draft", required=True)
    parser.add_argument("--texts", default="story,document-1k,code-1k")
    parser.add_argument("-n", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=2048)
    args = parser.parse_args()
    works = {one.name: one for one in (*WORKLOADS, *LONG_WORKLOADS)}
    with gguf_spec.load(args.model, args.draft, n_ctx=args.ctx) as llm, _as_loaded(llm) as forget:
        print("| text | T | setting | over plain | least | most | drafted a round | tokens a round | same texts |\n" + "|---" * 9 + "|")  # fmt: skip
        for name in args.texts.split(","):
            conversations = works[name].conversations(llm, args.n)[:3]
            for temperature in (0.0, 0.8):
                for setting, ratios, drafted, per_round, same in compare(
                    llm, forget, conversations, temperature, args.n, args.runs
                ):
                    print(
                        f"| {name} | {temperature} | {setting} | {statistics.geometric_mean(ratios):.3f} | {min(ratios):.2f} | {max(ratios):.2f} | "
                        f"{drafted:.2f} | {per_round:.2f} | {'yes' if same else 'NO'} |",
                        flush=True,
                    )
        known = llm._pair.experiences["sampled"]
        widths = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16)
        print("\nms of a pass over n tokens: " + ", ".join(f"{n} {1000 * known.target.seconds(n, 64):.1f}" for n in widths))  # fmt: skip
        print("second guesses right, by the confidence of the first: " + ", ".join(f"{known.chances.of((SECOND, i)):.2f}" for i in range(N_CONFIDENCE_BUCKETS)))  # fmt: skip


if __name__ == "__main__":
    main()
