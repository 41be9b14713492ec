"""Compare gguf-spec with llama.cpp's own programs and with llama-cpp-python's prompt lookup, each at the best of its settings, on the same files.

    .venv/bin/python scripts/bench/bench_peers.py -m TARGET.gguf -d DRAFT.gguf [--useless OTHER.gguf] [--only plain,ngram] [--json FILE]
    .venv/bin/python scripts/bench/bench_peers.py -m TARGET.gguf -d DRAFT.gguf --ctx 8192 --long document-1k,code-4k [--lengths 1,3] [--json FILE]

The programs are compiled once, from the sources inside llama-cpp-python and with the flags of our wheel: about 8 minutes on 2 cores, then they lie
in the user's cache (needs cmake, a C++ compiler and, the first time, a network). Ours runs as it comes, `Speculation()`, never tuned. The settings of
a peer are tried on each workload: all of them in one short run, the best three on all prompts, and the winner runs in turn with ours. A ratio above 1
means that ours is faster. Reading the model and the prompt is not counted. Leave the machine alone while it runs.

With --long there is another table instead: prompts of 1,000 and 3,900 tokens of real text (the long workloads of `gguf-spec bench`), llama.cpp with
its default attention and with the faster of `-fa on` and `-fa off` (both if they are about as fast), and the time to the first token beside the speed of decoding. llama-bench reads
and writes random tokens and samples none.
"""

import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from _long_peers import compare_long
from _peers import (
    Peers,
    Setting,
    _setup,
    build,
    draft_settings,
    flags,
    load_ours,
    ngram_settings,
    our_sampling,
    parser_of,
)

from gguf_spec import Speculation
from gguf_spec.bench.workloads import LONG_WORKLOADS, WORKLOADS

# Ratios that we want to reach at least against a peer at its best, on each workload and in the geometric mean; `useless` is a draft that is never
# right, against plain decoding. Memory may be 80 MiB more.
GOALS = {
    "memory": 1.0,
    "plain": 0.99,
    "plain-sampled": 0.99,
    "draft": 1.0,
    "draft-sampled": 0.0,
    "useless": 0.98,
    "ngram": 1.2,
}
MEAN_GOALS = GOALS | {"draft": 1.2, "draft-sampled": 1.3}
MORE_MIB = 80
WARM_UP = "The ship had sailed for seven days when"


def workloads():
    """Return name -> prompts: those of `gguf-spec bench` that are texts of one turn."""
    return {
        one.name: [turns[0] for turns in one.texts]
        for one in WORKLOADS
        if one.name in ("story", "repetitive", "copy")
    }


def section(name, args):
    """Return draft, keywords of our `Speculation`, names of workloads, and the settings of each peer."""
    plain = {"llama-lookup, no draft": [Setting("N=0", "llama-lookup", flags("draft", n_max=0))]}
    if name in ("plain", "plain-sampled"):
        # llama-bench decodes random tokens after nothing and samples none: as fast as the library can be
        return None, {"k": 0}, ["story"], plain | {"llama-bench": [Setting("tg", "llama-bench")]}
    if name == "useless":
        return args.useless, {}, ["story"], plain
    if name == "ngram":
        lookup = [
            Setting(f"N={n}", "llama-lookup", flags("draft", n_max=n))
            for n in (1, 2, 3, 4, 6, 8, 12, 16)
        ]
        python = [Setting(f"num_pred_tokens={n}", "python", (str(n),)) for n in (2, 4, 8, 10)]
        peers = {
            "llama-lookup": lookup,
            "--spec-type ngram-*": ngram_settings(args.coarse),
            "llama-cpp-python": python,
        }
        return None, {"drafter": "ngram"}, ["repetitive", "copy"], peers
    return (
        args.draft,
        {},
        list(workloads()),
        {"llama-speculative-simple": draft_settings(args.draft, args.threads, args.coarse)},
    )


@dataclass
class Row:
    """One line of the table; `peer_value` and `our_value` are tokens per second, or MiB."""

    section: str
    workload: str
    peer: str
    setting: str
    peer_value: float
    our_value: float
    ratios: list[float]
    text: str = ""
    sweep: dict[str, float] | None = None

    @property
    def ratio(self):
        return statistics.median(self.ratios)

    def __str__(self):
        goal = GOALS[self.section]
        spread = f"{self.ratio:.3f} [{min(self.ratios):.3f}..{max(self.ratios):.3f}]"
        words = f"{self.section:<14}{self.workload:<12}{self.peer:<26}{self.setting:<44}{self.peer_value:>9.2f}{self.our_value:>9.2f}  {spread:<24}"
        verdict = (
            f"{goal:>5.2f} {'ok' if self.ratio >= goal else 'missed':<7}" if goal else " " * 13
        )
        return f"{words}{verdict}{self.text}".rstrip()


def same_text(ours, theirs, n_near_ties):
    """Say whether two greedy texts are the same, as far as both go."""
    ours, theirs = ours.rstrip("\n\ufffd"), theirs.rstrip("\n\ufffd")
    shorter = min(len(ours), len(theirs))
    n = next((i for i in range(shorter) if ours[i] != theirs[i]), shorter)
    return (
        "equal"
        if n == shorter > 0
        else f"differs at {n} of {shorter} characters, {n_near_ties} near ties"
    )


def compare(name, workload, peer, settings, prompts, peers, ours):
    """Return the row of a peer: its best setting and ours in turn on every prompt, the first place changing from run to run."""
    sampled = name.endswith("-sampled")
    _setup.say(f"{name}, {workload}: {peer}, {len(settings)} setting{'s'[: len(settings) != 1]}")
    best, sweep = peers.best(settings, prompts, sampled)
    pairs, texts, lengths = [], [], {}
    for i, (number, prompt) in product(range(peers.args.runs), enumerate(prompts, 1)):
        seed = 42 + i
        if i % 2:
            mine = ours(prompt, lengths[prompt], sampled, seed)
        theirs = peers.run(best, prompt, peers.args.tokens, sampled, seed)
        if not theirs.speed:
            raise SystemExit(f"{peer} fails on {workload}.")
        lengths[prompt] = (
            theirs.n_tokens
        )  # their last draft may take them beyond; ours then goes as far
        if not i % 2:
            mine = ours(prompt, lengths[prompt], sampled, seed)
        pairs.append((theirs.speed, mine.stats.tokens_per_s))
        if theirs.text and not i and not sampled:
            texts.append(f"{number}: {same_text(mine.text, theirs.text, mine.stats.n_near_ties)}")
    texts = ["text equal"] if texts and all(text.endswith("equal") for text in texts) else texts
    speeds = [statistics.median(side) for side in zip(*pairs, strict=True)]
    return Row(
        name,
        workload,
        peer,
        best.name,
        *speeds,
        [mine / theirs for theirs, mine in pairs],
        "; ".join(texts),
        sweep,
    )


def rows_of(name, args, peers, prompts):
    """Yield the rows of a section."""
    if name == "memory":
        setting = draft_settings(args.draft, args.threads)[8]  # llama.cpp's default, N=3
        theirs, mine = (
            peers.peak_mib(s, prompts["story"][0]) for s in (setting, Setting("", "ours"))
        )
        yield Row(
            name,
            "peak MiB",
            "llama-speculative-simple",
            setting.name,
            theirs,
            mine,
            [(theirs + MORE_MIB) / mine],
        )
        return
    draft, keywords, names, settings = section(name, args)
    speculation = Speculation(**keywords)
    with load_ours(args.model, draft, vars(args)) as llm:

        def ours(prompt, n_tokens, sampled, seed):
            text = prompt.read_text(encoding="utf-8") if prompt else WARM_UP
            llm.forget()
            done = llm.generate(
                text, our_sampling(n_tokens, sampled, seed), speculation=speculation
            )
            if len(done.tokens) != n_tokens:
                raise SystemExit(
                    f"ours wrote {len(done.tokens)} tokens in place of {n_tokens}: is the context too small?"
                )
            return done

        ours(None, args.tokens, name.endswith("-sampled"), 1)
        for workload, (peer, sweep) in product(names, settings.items()):
            yield compare(name, workload, peer, sweep, prompts[workload], peers, ours)


def arguments(given=None):
    parser, names = parser_of(__doc__, n_tokens=128), [one.name for one in LONG_WORKLOADS]

    def words(text):
        return text.split(",")

    def numbers(text):
        return [int(n) for n in text.split(",")]

    add = parser.add_argument
    add("--useless", type=Path, help="a draft of the same vocabulary that is never right")
    add("--runs", type=int, default=3, help="pairs of runs for each prompt (3)")
    add("--prompts", type=int, default=3, help="prompts of each workload, at most 3 (3)")
    add("--only", type=words, default=list(GOALS), help="of " + ",".join(GOALS))
    add("--coarse", action="store_true", help="try about a quarter of the peers' settings")
    no_repacking = "no repacked weights, no AMX, on either side"
    add("--no-extra-bufts", dest="extra_bufts", action="store_false", help=no_repacking)
    long_help = f"compare on these: {','.join(names)}, or all"
    add("--long", type=words, metavar="NAMES", help=long_help)
    add("--lengths", type=numbers, default=[3], metavar="N,N", help="with --long: of a draft (3)")
    only_help = "with --long: words of the programs to run, such as server,N=3"
    add("--contenders", type=words, default=[], help=only_help)
    args = parser.parse_args(given)
    args.long = names if args.long == ["all"] else args.long
    if unknown := set(args.long or ()) - set(names):
        parser.error(f"--long: {', '.join(unknown)} is not one of {', '.join(names)}")
    unknown = set(args.only) - set(GOALS)
    if unknown:
        parser.error(f"--only: {', '.join(unknown)} is not one of {', '.join(GOALS)}")
    needs = {
        "memory": args.draft,
        "draft": args.draft,
        "draft-sampled": args.draft,
        "useless": args.useless,
    }
    args.only = [name for name in GOALS if name in args.only and needs.get(name, True)]
    return args


def main():
    args = arguments()
    programs = build(args)
    if os.getloadavg()[0] > 0.3:
        _setup.say(
            "Warning: this machine is busy. llama.cpp collapses when another process takes one of its cores; the figures would mean nothing."
        )
    if args.long:
        compare_long(args, programs)
        return
    rows = []
    print(
        f"{'section':<14}{'workload':<12}{'peer':<26}{'its best setting':<44}{'peer':>9}{'ours':>9}  {'ratio':<24} goal",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        prompts = {}
        for name, texts in workloads().items():
            prompts[name] = [Path(folder) / f"{name}-{i}.txt" for i in range(len(texts))][
                : args.prompts
            ]
            for path, text in zip(prompts[name], texts, strict=False):
                path.write_text(text, encoding="utf-8")
        for name in args.only:
            for row in rows_of(name, args, Peers(args, programs), prompts):
                print(row, flush=True)
                rows.append(row)
    means = {
        name: statistics.geometric_mean([row.ratio for row in rows if row.section == name])
        for name in args.only
    }
    verdicts = [
        f"{name} {mean:.3f} (goal {MEAN_GOALS[name]}, {'ok' if mean >= MEAN_GOALS[name] else 'missed'})"
        for name, mean in means.items()
    ]
    print("\ngeometric mean of the ratios: " + ", ".join(verdicts))
    if args.json:
        goals = {"goals": GOALS, "goals of the means": MEAN_GOALS, "geometric means": means}
        what = {
            "arguments": vars(args),
        } | goals
        whole = what | {"rows": [asdict(row) | {"ratio": row.ratio} for row in rows]}
        args.json.write_text(json.dumps(whole, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    try:
        main()
    except _setup.Problem as problem:
        sys.exit(f"Error: {problem}\nHint: {problem.hint}")
