#!/usr/bin/env python3
"""Mutation testing: small changes to the modules that exactness rests on, and whether the tests notice each of them.

The changes are cosmic-ray's, which is no dependency of ours: list them with a Python that has it, then run them with the project's.

    python3 -m venv /tmp/cosmic && /tmp/cosmic/bin/pip install cosmic-ray
    /tmp/cosmic/bin/python scripts/checks/mutants.py list > mutants.jsonl
    .venv/bin/python scripts/checks/mutants.py control
    .venv/bin/python scripts/checks/mutants.py run mutants.jsonl results.jsonl --seconds 240
    .venv/bin/python scripts/checks/mutants.py run mutants.jsonl results.jsonl --seconds 240 --survivors --slow

`control` runs the tests on a copy without any change: all must pass, or nothing is worth counting. `run` goes on where the results end, so it may
be called again and again. `--survivors` asks again about those that survived, `--slow` by tests that take longer, `--verify` by
`gguf-spec verify`.
"""

from __future__ import annotations

import argparse
import ast
import json
import multiprocessing
import random
import sys
import tempfile
import time
from pathlib import Path

from _planted import ROOT, Copy, preload

SEED = 15
_LAWS = "exactness/test_enumeration.py::test_every_path_together_gives_the_targets_law"
TESTS = {  # of each module: those that are asked first, and those that are asked about what survived them
    "speculative/acceptance": (
        [
            "unit/test_accept.py",
            "unit/test_engine.py",
            "unit/test_llm.py",
            "properties/test_engine.py",
        ],
        ["exactness/test_tree.py", _LAWS, "properties/test_near_ties.py"],
    ),
    "speculative/engine": (
        [
            "unit/test_engine.py",
            "unit/test_llm.py",
            "unit/test_progress.py",
            "properties/test_engine.py",
        ],
        [
            "exactness/test_tree.py",
            "exactness/test_shift.py",
            "properties/test_near_ties.py",
            "gguf/test_near_ties.py",
            _LAWS,
        ],
    ),
    "speculative/tree": (
        ["unit/test_tree.py", "unit/test_engine.py"],
        ["exactness/test_tree.py", "properties/test_engine.py"],
    ),
    "system/files": (
        ["unit/test_cache.py"],
        ["gguf/test_chat.py", "gguf/test_profile.py", "unit/test_measured_profiles.py"],
    ),
    "sampling/chain": (
        [
            "unit/test_sampling.py",
            "properties/test_sampling.py",
            "unit/test_llm.py",
            "properties/test_engine.py",
        ],
        [
            "gguf/test_llama_samplers.py",
            "properties/test_near_ties.py",
            "gguf/test_grammar.py",
            _LAWS,
        ],
    ),
    "runtime/generation": (
        [
            "unit/test_llm.py",
            "unit/test_stream.py",
            "unit/test_progress.py",
            "properties/test_engine.py",
        ],
        [
            "exactness/test_shift.py",
            "exactness/test_tree.py",
            "compat/test_llama.py",
            "gguf/test_chat.py",
            "exactness/test_think_budget.py",
            "closing/test_parallel.py",
        ],
    ),
    "runtime/stream": (
        ["unit/test_llm.py", "unit/test_stream.py", "unit/test_progress.py"],
        ["compat/test_llama.py", "gguf/test_chat.py"],
    ),
    "text/detokenizer": (["unit/test_text.py", "properties/test_text.py"], ["unit/test_llm.py"]),
}

# ---- the list


class _NoAnnotations(ast.NodeTransformer):
    """Leaves out what is never evaluated, or only by type checkers."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _meaning(code: str) -> str:
    return ast.dump(_NoAnnotations().visit(ast.parse(code)))


def mutants(name: str) -> list[dict[str, object]]:
    """Return one change for each place of a module that cosmic-ray would change, and for each kind of operator there."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.mutating import MutationVisitor
    from cosmic_ray.plugins import get_operator, operator_names

    code = (ROOT / f"gguf_spec/{name}.py").read_text(encoding="utf-8")
    meaning, found = _meaning(code), {}
    for operator_name in operator_names():
        if get_operator(operator_name).arguments():
            continue
        operator, kind = get_operator(operator_name)(), operator_name.split("/")[1].split("_")[0]
        places = [
            place
            for node in ast_nodes(get_ast(code))
            for place in operator.mutation_positions(node)
        ]
        for i, (begin, _) in enumerate(places):
            changed = MutationVisitor(i, operator).walk(get_ast(code)).get_code()
            try:
                if _meaning(changed) == meaning:
                    continue
            except SyntaxError:
                continue
            which = i % 2 if kind == "NumberReplacer" else 0  # one more and one less
            found.setdefault((begin, kind, which), []).append((operator_name, changed))
    rng, lines = random.Random(SEED), code.splitlines()
    out = []
    for (begin, kind, _), ways in sorted(found.items()):
        operator_name, changed = rng.choice(ways)
        new = [b for a, b in zip(lines, changed.splitlines(), strict=False) if a != b][:1]
        old = lines[begin[0] - 1]
        out.append(
            {
                "module": name,
                "line": begin[0],
                "kind": kind,
                "operator": operator_name,
                "old": old,
                "new": new,
                "code": changed,
            }
        )
    return out


# ---- the run


def _tests_of(module: str, slow: bool) -> list[str]:
    return [f"tests/{test}" for test in TESTS[module][slow]]


def control() -> int:
    """Run all tests on a copy that is as it should be."""
    preload()
    with tempfile.TemporaryDirectory() as folder:
        copy, bad = Copy(Path(folder)), 0
        for module in TESTS:
            for slow in (False, True):
                failed = copy.test(_tests_of(module, slow), 300)
                bad += bool(failed)
                print(f"{module:<10} {failed or 'passes'}", flush=True)
    return int(bad > 0)


def _work(
    jobs: multiprocessing.Queue, done: multiprocessing.Queue, until: float, args: argparse.Namespace
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy(Path(folder))
        while time.monotonic() < until and (job := jobs.get()):
            file = f"gguf_spec/{job['module']}.py"
            with copy.planted(file, job["code"]):
                started = time.monotonic()
                caught = (
                    copy.verify(args.limit)
                    if args.verify
                    else copy.test(_tests_of(job["module"], args.slow), args.limit)
                )
            done.put({**job, "caught": caught, "seconds": round(time.monotonic() - started, 1)})
        done.put(None)


def run(args: argparse.Namespace) -> None:
    """Run what has no result yet, in an order that the seed decides, and print the share that is caught."""
    jobs = [json.loads(line) for line in args.mutants.read_text().splitlines()]
    random.Random(SEED).shuffle(jobs)
    results = (
        [json.loads(line) for line in args.results.read_text().splitlines()]
        if args.results.exists()
        else []
    )
    if args.survivors:
        again = [one for one in results if not one["caught"]]
        results = [one for one in results if one["caught"]]
        args.results.write_text("".join(json.dumps(one) + "\n" for one in results))
        jobs = again
    have = {one["code"] for one in results}
    jobs = [job for job in jobs if job["code"] not in have][: args.most]
    preload()
    todo, done = multiprocessing.Queue(), multiprocessing.Queue()
    for job in [*jobs, *[None] * args.workers]:
        todo.put(job)
    until = time.monotonic() + args.seconds
    workers = [
        multiprocessing.Process(target=_work, args=(todo, done, until, args))
        for _ in range(args.workers)
    ]
    for worker in workers:
        worker.start()
    n_ended, finished = 0, set()
    with args.results.open("a") as file:
        while n_ended < args.workers:
            one = done.get()
            if one is None:
                n_ended += 1
                continue
            results.append(one)
            finished.add(one["code"])
            file.write(json.dumps(one) + "\n")
            file.flush()
        if args.survivors:  # what the time did not suffice for stays a survivor
            file.writelines(json.dumps(job) + "\n" for job in jobs if job["code"] not in finished)
    todo.cancel_join_thread()
    for name in TESTS:
        of_it = [one for one in results if one["module"] == name]
        print(
            f"{name:<10} {sum(bool(one['caught']) for one in of_it):>4} of {len(of_it):>4} caught"
        )
    for one in results:
        if not one["caught"]:
            print(
                f"{one['module']}.py:{one['line']} {one['operator']}\n    {one['old'].strip()}\n    {(one['new'] or [''])[0].strip()}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list")
    commands.add_parser("control")
    runs = commands.add_parser("run")
    runs.add_argument("mutants", type=Path)
    runs.add_argument("results", type=Path)
    runs.add_argument("--seconds", type=float, default=240, help="begin none after so long")
    runs.add_argument("--limit", type=float, default=90, help="seconds for each")
    runs.add_argument("--workers", type=int, default=2)
    runs.add_argument("--most", type=int)
    runs.add_argument("--survivors", action="store_true")
    runs.add_argument(
        "--slow", action="store_true", help="the tests that are asked about survivors"
    )
    runs.add_argument("--verify", action="store_true")
    args = parser.parse_args()
    if args.command == "control":
        return control()
    if args.command == "run":
        run(args)
        return 0
    for name in TESTS:
        for one in mutants(name):
            sys.stdout.write(json.dumps(one) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
