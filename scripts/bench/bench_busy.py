#!/usr/bin/env python3
"""Compare decoding beside 0, 1 and 2 busy processes with llama.cpp's programs.

A busy process is a Python loop on one core. All contenders take turns beside the same processes; a figure is the median of their runs. Ours is
loaded once, before the first busy process starts, as a program that is in use would be. llama.cpp's programs run with their default attention.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from _peers import OURS, Peers, Setting, _setup, build, flags, load_ours, our_sampling, parser_of

PROMPT = "Why is the sky blue? Explain it to a child, step by step.\n"


@contextmanager
def busy(n):
    """Run `n` endless loops while the block runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(n)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def contenders(draft, threads):
    """Return llama.cpp's programs with their settings."""
    settings = [Setting(f"llama-bench, {threads} threads", "llama-bench")]
    settings.append(
        Setting("llama-lookup N=8", "llama-lookup", tuple(map(str, flags("draft", n_max=8))))
    )
    if draft:
        model = ("-md", str(draft), "-td", str(threads), "-tbd", str(threads))
        options = (*model, "--spec-type", "draft-simple", *flags("draft", n_max=3))
        settings.append(
            Setting("llama-speculative-simple N=3", "llama-speculative-simple", options)
        )
    return settings


def measured(args, llm, peers, prompt):
    """Return contender -> tokens per second of each run, for the load that is there now."""
    speeds = {}
    for _ in range(args.runs):
        for name, speculation in OURS.items():
            llm.forget()
            sampling = our_sampling(args.tokens, False, 1)
            done = llm.generate(PROMPT, sampling, speculation=speculation)
            speeds.setdefault(name, []).append(done.stats.tokens_per_s)
        for setting in contenders(args.draft, args.threads):
            speed = peers.run(setting, prompt, args.tokens).speed
            speeds.setdefault(setting.name, []).append(speed)
    return speeds


def arguments():
    parser = parser_of(__doc__, n_tokens=24)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1, 2], help="busy processes")
    parser.add_argument("--runs", type=int, default=3, help="runs of each contender (3)")
    args = parser.parse_args()
    args.extra_bufts = True
    return args


def main():
    args = arguments()
    peers, tables = Peers(args, build(args)), {}
    options = {"ctx": args.ctx, "threads": None, "extra_bufts": True}
    with (
        tempfile.TemporaryDirectory() as folder,
        load_ours(args.model, args.draft, options) as llm,
    ):
        prompt = Path(folder) / "prompt.txt"
        prompt.write_text(PROMPT, encoding="utf-8")
        llm.generate(PROMPT, our_sampling(args.tokens, False, 1))
        for n in args.busy:
            _setup.say(f"beside {n} busy processes")
            with busy(n):
                tables[n] = measured(args, llm, peers, prompt)
    print(f"{'tok/s beside busy processes':<32}" + "".join(f"{n:>9}" for n in tables))
    for name in next(iter(tables.values())):
        cells = [statistics.median(table[name]) for table in tables.values()]
        print(f"{name:<32}" + "".join(f"{cell:>9.2f}" for cell in cells))
    if args.json:
        args.json.write_text(json.dumps(tables, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
