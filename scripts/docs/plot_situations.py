"""Draw the speed by situation against llama.cpp's programs, from the results of the benchmarks.

.venv/bin/python scripts/docs/plot_situations.py collect SITUATIONS.json --machine TEXT --pair TEXT [--long FILE ...] [--busy FILE] [--users FILE]
.venv/bin/python scripts/docs/plot_situations.py draw SITUATIONS.json OUT.svg

FILE is the --json of bench_peers.py --long, of bench_busy.py, and of bench_users.py. `collect` takes the tokens per second after the first token:
llama.cpp's without drafts and with its default attention, the best of its programs and settings, and ours with default settings.
"""

import argparse
import json
import statistics
from datetime import date
from pathlib import Path

from plot_bench import Bar, Group, grouped_bars

import gguf_spec

NAMES = {
    "document-1k": ("document", "1,000 tokens"),
    "turn20-1k": ("chat", "turn 20"),
    "json-1k": ("JSON records", "1,000 tokens"),
    "code-1k": ("code edit", "1,000 tokens"),
    "rewrite-1k": ("rewriting", "1,000 tokens"),
}
LEGEND = ["llama.cpp, defaults", "llama.cpp, best program and settings", "gguf-spec"]


def of_long(path):
    """Yield the situation of a workload with a long prompt."""
    speeds = {}
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        speeds.setdefault(row["workload"], {})[row["contender"]] = row["speed"]
    for workload, of in speeds.items():
        theirs = {name: speed for name, speed in of.items() if not name.startswith("ours")}
        theirs.pop("llama-bench", None)
        best = max(theirs, key=theirs.get)
        name, kind = NAMES[workload]
        yield situation(
            name, kind, theirs["llama-lookup, no draft"], best, theirs[best], of["ours, adaptive"]
        )


def of_busy(path):
    """Yield the situation of a short prompt on an idle machine; beside a busy process llama.cpp's bars are too low to see."""
    table = json.loads(path.read_text(encoding="utf-8"))["0"]
    speeds = {name: statistics.median(runs) for name, runs in table.items()}
    theirs = {name: speed for name, speed in speeds.items() if not name.startswith("ours")}
    best = max(theirs, key=theirs.get)
    plain = next(speed for name, speed in theirs.items() if name.startswith("llama-bench"))
    yield situation(
        "short prompt", "32 tokens", plain, best, theirs[best], speeds["ours, adaptive"]
    )


def of_users(path):
    """Yield the situation of the most users."""
    rows = json.loads(path.read_text(encoding="utf-8"))
    most = max(row["users"] for row in rows)
    speeds = {row["name"]: row["decoding_per_s"] for row in rows if row["users"] == most}
    theirs = {name: speed for name, speed in speeds.items() if name.startswith("llama")}
    best = max(theirs, key=theirs.get)
    plain = theirs["llama-server defaults"]
    yield situation(
        f"{most} users", "500 tokens each", plain, best, theirs[best], speeds["together"]
    )


def situation(name, kind, plain, best_name, best, ours):
    return {
        "name": name,
        "kind": kind,
        "plain": round(plain, 2),
        "best": round(best, 2),
        "best_name": best_name,
        "ours": round(ours, 2),
    }


def collect(args):
    """Write the situations into a file."""
    found = [*(of_busy(args.busy) if args.busy else ())]
    for path in args.long:
        found += of_long(path)
    found += of_users(args.users) if args.users else ()
    data = {
        "machine": args.machine,
        "pair": args.pair,
        "version": gguf_spec.__version__,
        "date": date.today().isoformat(),
        "situations": found,
    }
    args.situations.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def chart(data):
    """Return the picture, with llama.cpp's defaults as 1."""
    groups = []
    for one in data["situations"]:
        bars = tuple(Bar(*[one[key] / one["plain"]] * 3) for key in ("plain", "best", "ours"))
        groups.append(Group(one["name"], one["kind"], f"{one['ours']:.1f} tok/s", bars))
    lines = [
        f"{data['machine']}, {data['date']}",
        "tokens per second after the first token, over those of llama.cpp with its defaults and no draft",
    ]
    return grouped_bars(data["pair"], lines, LEGEND, groups)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("collect")
    one.add_argument("situations", type=Path)
    one.add_argument("--machine", required=True)
    one.add_argument("--pair", required=True)
    one.add_argument("--long", type=Path, nargs="*", default=[])
    one.add_argument("--busy", type=Path)
    one.add_argument("--users", type=Path)
    one = commands.add_parser("draw")
    one.add_argument("situations", type=Path)
    one.add_argument("picture", type=Path)
    args = parser.parse_args()
    if args.command == "collect":
        collect(args)
    else:
        data = json.loads(args.situations.read_text(encoding="utf-8"))
        args.picture.write_text(chart(data), encoding="utf-8")


if __name__ == "__main__":
    main()
