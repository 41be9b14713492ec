#!/usr/bin/env python3
"""Compare the adaptive drafts of two checkouts on real models, in turn.

    .venv/bin/python scripts/bench/bench_trees.py BEFORE AFTER -m qwen2.5-coder-1.5b -d ngram [--kernels stock] [--rounds 4] [--minutes 7]

The packages of both checkouts run in a process each, with the Python and the libraries of this one; each loads the models once. BEFORE measures
the pair, and both use that profile. Each request runs in both, one directly after the other, in alternating order; only decoding is timed. The
text must be the same. A ratio above 1 means that AFTER is faster: for each task and temperature the median of the rounds, then the geometric mean
of all. The first round is not counted: in it both learn what the profile does not say. It ends after --minutes with what it has.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASKS = "copy,chat,rewrite-1k,code-1k,document-1k"


def work(args):
    """Answer requests, one line of JSON each."""
    import gguf_spec
    from gguf_spec import Sampling
    from gguf_spec.bench.workloads import LONG_WORKLOADS, WORKLOADS

    options = {"n_ctx": 2048, "threads": args.threads, "kernels": args.kernels}
    with gguf_spec.load(args.model, args.draft, **options) as llm:
        file = Path(args.work)
        if not file.exists():
            file.write_text(json.dumps(llm.profile.to_dict()))
        llm.use_profile(type(llm.profile).from_dict(json.loads(file.read_text())))
        prompts = {
            one.name: one.conversations(llm)[0].turns[0]
            for one in (*WORKLOADS, *LONG_WORKLOADS)
            if one.name in args.tasks.split(",")
        }
        run = llm.ask if llm.has_chat_template else llm.generate
        print(json.dumps([*prompts]), flush=True)
        for line in sys.stdin:
            task, temperature, seed = json.loads(line)
            sampling = Sampling(temperature, seed=seed, max_tokens=args.tokens, ignore_eos=True)
            done = run(prompts[task], sampling)
            stats = done.stats
            answer = done.text, stats.tokens_per_s, stats.n_drafted, stats.tokens_per_round
            print(json.dumps(answer), flush=True)


class Tree:
    """The worker of a checkout."""

    def __init__(self, path, profile, options):
        self.process = subprocess.Popen(
            [sys.executable, __file__, ".", ".", *options, "--work", str(profile)],
            env={**os.environ, "PYTHONPATH": str(path.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tasks = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("Error: a worker ended.")
        return json.loads(line)

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self.answer()


def compare(args, trees):
    """Print a row for each task and temperature, and the mean."""
    until, found, same = time.monotonic() + 60 * args.minutes, {}, True
    cases = [(task, t) for task in trees[0].tasks for t in (0.0, 0.8)]
    for i in range(args.rounds + 1):
        for j, (task, t) in enumerate(cases):
            if time.monotonic() > until:
                break
            order = (0, 1) if (i + j) % 2 else (1, 0)
            answers = {at: trees[at].ask(task, t, i) for at in order}
            same = same and answers[0][0] == answers[1][0]
            if i:
                found.setdefault((task, t), []).append((answers[0], answers[1]))
    print("| task | T | ratio | least and most | tokens/s before, after | tokens a pass | drafted |\n|---|---|---|---|---|---|---|")  # fmt: skip
    middles = []
    for (task, t), rounds in found.items():
        ratios = [after[1] / before[1] for before, after in rounds]
        middles.append(statistics.median(ratios))
        means = [[statistics.mean(one[at][i] for one in rounds) for at in (0, 1)] for i in (1, 3, 2)]  # fmt: skip
        (a, b), (c, d), (e, f) = means
        print(f"| {task} | {t} | {middles[-1]:.3f} | {min(ratios):.3f} {max(ratios):.3f} | {a:.1f}, {b:.1f} | {c:.2f}, {d:.2f} | {e:.0f}, {f:.0f} |")  # fmt: skip
    mean = math.exp(statistics.mean(map(math.log, middles))) if middles else math.nan
    print(f"mean {mean:.3f} of {len(middles)} cases; texts are {'the same' if same else 'DIFFERENT'}")  # fmt: skip
    return 0 if same else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("-d", "--draft", default="ngram", help="ngram: the text alone")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--tasks", default=TASKS)
    parser.add_argument("--rounds", type=int, default=4, help="that are counted")
    parser.add_argument("--minutes", type=float, default=7.0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    options = [text for name in ("model", "draft", "kernels", "threads", "tokens", "tasks") for text in (f"--{name}", str(getattr(args, name)))]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        trees = [Tree(path, Path(folder) / "profile.json", options) for path in (args.before, args.after)]  # fmt: skip
        status = compare(args, trees)
        for tree in trees:
            tree.process.stdin.close()
            tree.process.wait()
    sys.exit(status)


if __name__ == "__main__":
    main()
