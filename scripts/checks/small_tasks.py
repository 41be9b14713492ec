#!/usr/bin/env python3
"""Let agents do ten small tasks with a real model, unscripted, and say which are done and what each took.

    .venv/bin/python scripts/checks/small_tasks.py aider pi -m qwen2.5-coder-1.5b

Each task has a small git repository and a check in Python; agents are those of `agents.py`, by `gguf-spec launch`. A row
is of one task: done or not, requests, tokens of the longest prompt, seconds from the arrival of the first and second
request to its first token and to its end, tokens of all answers, and the drafted tokens that were accepted. An agent may
do the task in another way than the check knows, or leave it undone: it is published as it is.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import agents

import gguf_spec
from gguf_spec.server import serve_in_thread

LIMIT_S = 300


class Task(NamedTuple):
    """What is asked, the files of the repository, and an expression or statements that fail where it is not done."""

    text: str
    files: dict[str, str]
    check: str


# In a check `text(NAME)` is a file, `names(NAME)` are its functions, `here` the repository, and `runs(WORDS)` the output of Python.
TASKS = {
    "mend a failing test": Task(
        "The test in test_stats.py fails. Fix stats.py, not the test.",
        {
            "stats.py": "def mean(values):\n    return sum(values) / (len(values) - 1)\n",
            "test_stats.py": "from stats import mean\n\nassert mean([2, 4]) == 3\nassert mean([5]) == 5\n",
        },
        "runs('test_stats.py'); assert text('test_stats.py').count('assert') == 2",
    ),
    "rename a function": Task(
        "Rename the function area to rectangle_area in shapes.py and main.py.",
        {
            "shapes.py": "def area(width, height):\n    return width * height\n",
            "main.py": "from shapes import area\n\nprint(area(3, 4))\n",
        },
        "assert names('shapes.py') == ['rectangle_area'] and runs('main.py') == '12'",
    ),
    "add an argument": Task(
        "Give the function greet in greet.py an optional argument punctuation, '!' by default, in place of the fixed '!'.",
        {"greet.py": 'def greet(name):\n    return "Hello, " + name + "!"\n'},
        "assert runs('-c', 'from greet import greet as g; print(g(\"A\"), g(\"B\", punctuation=\"?\"))') == 'Hello, A! Hello, B?'",
    ),
    "add a line to README": Task(
        "Add the line 'Licence: MIT' at the end of README.md.",
        {"README.md": "# Clock\n\nA small clock.\n\n## Use\n\nRun clock.py.\n"},
        "lines = text('README.md').split('\\n'); assert 'Licence: MIT' in lines and '# Clock' in lines and 'Run clock.py.' in lines",
    ),
    "change a value": Task(
        "Change the timeout in config.json from 30 to 60.",
        {"config.json": '{\n  "host": "localhost",\n  "timeout": 30,\n  "retries": 3\n}\n'},
        "assert json.loads(text('config.json')) == {'host': 'localhost', 'timeout': 60, 'retries': 3}",
    ),
    "add a test": Task(
        "Write test_parity.py with a test of is_even in parity.py: plain asserts, run by python test_parity.py.",
        {"parity.py": "def is_even(n):\n    return n % 2 == 0\n"},
        "runs('test_parity.py'); (here / 'parity.py').write_text('def is_even(n):\\n    return False\\n'); fails('test_parity.py')",
    ),
    "add a docstring": Task(
        "Add a docstring to the function slug in slug.py. Change nothing else.",
        {
            "slug.py": "def slug(title):\n    words = title.lower().split()\n    return '-'.join(words)\n"
        },
        "assert ast.get_docstring(ast.parse(text('slug.py')).body[0]); assert runs('-c', 'from slug import slug; print(slug(\"A B\"))') == 'a-b'",
    ),
    "write a function": Task(
        "Write fizz.py with a function fizzbuzz(n): it returns 'Fizz' for multiples of 3, 'Buzz' for those of 5, "
        "'FizzBuzz' for those of both, and else the number as a string.",
        {"README.md": "# Fizz\n"},
        "assert runs('-c', 'from fizz import fizzbuzz as f; print(f(9), f(10), f(30), f(7))') == 'Fizz Buzz FizzBuzz 7'",
    ),
    "catch an error": Task(
        "In settings.py let load return an empty dict where the file does not exist.",
        {
            "settings.py": "import json\n\n\ndef load(path):\n    with open(path) as file:\n        return json.load(file)\n",
            "a.json": '{"a": 1}\n',
        },
        "assert runs('-c', 'from settings import load; print(load(\"none\"), load(\"a.json\"))') == \"{} {'a': 1}\"",
    ),
    "remove a function": Task(
        "Remove the function old_total from total.py; nothing calls it.",
        {
            "total.py": "def total(prices):\n    return sum(prices)\n\n\ndef old_total(prices):\n    result = 0\n    for price in prices:\n"
            "        result += price\n    return result\n\n\ndef average(prices):\n    return total(prices) / len(prices)\n"
        },
        "assert names('total.py') == ['total', 'average'] and runs('-c', 'from total import average as a; print(a([2, 4]))') == '3.0'",
    ),
}
WORDS: dict[str, Callable[[Task], list[str]]] = {
    "aider": lambda task: [
        *("--message", task.text, "--yes-always", "--no-check-update", "--no-analytics"),
        *("--no-auto-commits", "--no-suggest-shell-commands", *task.files),
    ],
    "pi": lambda task: ["-p", task.text],
    "opencode": lambda task: ["run", task.text],
}


def is_done(task: Task, here: Path) -> bool:
    """Return whether the check of a task passes in its repository."""

    def run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-B", *words]
        return subprocess.run(
            command, cwd=here, capture_output=True, text=True, timeout=30, check=False
        )

    def runs(*words: str) -> str:
        done = run(words)
        assert done.returncode == 0
        return done.stdout.strip()

    def fails(*words: str) -> None:
        assert run(words).returncode

    def text(name: str) -> str:
        return (here / name).read_text()

    def names(name: str) -> list[str]:
        return [one.name for one in ast.parse(text(name)).body if isinstance(one, ast.FunctionDef)]

    known = {"json": json, "ast": ast, "here": here}
    known |= {"runs": runs, "fails": fails, "text": text, "names": names}
    try:
        exec(task.check, known)
    except Exception:  # whatever the agent wrote
        return False
    return True


def run(name: str, task: Task, work: Path, folder: Path) -> dict[str, Any]:
    """Let an agent do a task; return what became of it."""
    repo = work / "repo"
    environment = agents.environment_of(work, folder)
    for file, text in task.files.items():
        (repo / file).write_text(text)
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    command = [sys.executable, "-m", "gguf_spec", "launch", name, "--", *WORDS[name](task)]
    began = time.monotonic()
    with (
        agents.recorded() as (answers, _, _),
        subprocess.Popen(
            command, cwd=repo, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            said = process.communicate(timeout=LIMIT_S)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate()[0]
    seconds, asked = time.monotonic() - began, answers[1:]  # the first one is launch's check
    counts = [result.stats for result, _ in asked]
    drafted = sum(stats.n_drafted for stats in counts)
    return {
        "done": is_done(task, repo),
        "code": process.returncode,
        "seconds": round(seconds, 1),
        "requests": len(asked),
        "longest": max((stats.n_prompt for stats in counts), default=0),
        "times": [[round(one, 1) for one in times] for _, times in asked[:2]],
        "generated": sum(stats.n_generated for stats in counts),
        "drafted": drafted,
        "accepted": sum(stats.n_accepted for stats in counts),
        "files": {
            one.name: one.read_text(errors="replace") for one in repo.glob("*") if one.is_file()
        },
        "answers": [result.text for result, _ in asked],
        "said": said[-4000:],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=[*WORDS], help="the agents")
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--ctx", type=int, default=16384)
    parser.add_argument("--only", help="a word of the tasks to be done")
    parser.add_argument("--folder", type=Path, default=agents.FOLDER)
    parser.add_argument("--out", type=Path, help="JSON lines with files and output")
    args = parser.parse_args()
    agents.install(args.names, args.folder)
    with tempfile.TemporaryDirectory(prefix="gguf-spec-tasks-") as top:
        os.environ["XDG_STATE_HOME"] = f"{top}/state"
        with (
            gguf_spec.load(args.model, "ngram", n_ctx=args.ctx) as llm,
            serve_in_thread(llm, listed=True),
        ):
            for name in args.names:
                for i, (title, task) in enumerate(TASKS.items()):
                    if args.only and args.only not in title:
                        continue
                    one = run(name, task, Path(top, f"{name}{i}"), args.folder)
                    times = " | ".join(" to ".join(map(str, some)) for some in one["times"])
                    print(
                        f"| {name} | {title} | {'done' if one['done'] else 'not done'} | {one['requests']} | {one['longest']:,} "
                        f"| {times} | {one['generated']:,} | {one['accepted']} of {one['drafted']} | {one['seconds']} |",
                        flush=True,
                    )
                    if args.out:
                        with args.out.open("a") as file:
                            file.write(json.dumps({"agent": name, "task": title, **one}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
