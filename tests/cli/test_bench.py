"""`gguf-spec bench` from end to end."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from gguf_spec.cli import cli as group
from tests.support import children

QUICK = ["bench", "--threads", "1", "--quick", "-n", "8", "--runs", "1", "--workload", "story"]


def invoke(*args):
    return CliRunner().invoke(group, [*QUICK, *map(str, args)], standalone_mode=False)


@pytest.mark.full
def test_json(here):
    result = here(*QUICK, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    report = json.loads(result.stdout)
    assert (report["target"], report["useless"], report["texts_equal"], report["is_complete"]) == (
        "tales",
        None,
        True,
        True,
    )
    assert [case["name"] for case in report["cases"]] == ["story"]
    results = report["cases"][0]["results"]
    assert [one["name"] for one in results] == [
        "plain", "adaptive", "adaptive model", "adaptive ngram", "adaptive hybrid", *(f"{who} {k}" for who in ("model", "ngram") for k in (2, 4, 8)),
    ]  # fmt: skip
    assert all(
        one["runs"][0]["n_tokens"] == 24 and one["runs"][0]["n_same"] == 3 for one in results
    )


@pytest.mark.full
def test_the_table_and_the_useless_draft():

    run = invoke("-v", "--useless", "tales-draft")  # not useless, but another file is not at hand
    assert run.exception is None
    summary, _, bar, _, *lines = run.stdout.splitlines()
    busy = r"( \(drafts give at most \d+\.\d\d: other programs ran\))?"
    assert re.fullmatch(rf"story {{12}}{'#' * 40} \d+\.\d\d x{busy}", bar)
    assert re.match(r"tales with tales-draft-Q4_0.gguf, \d+ s", lines[0])
    assert re.match(r".*\d cores?, 1 thread, rounds: 1", lines[1])
    for at in (3, 6):
        assert len(lines[at]) == len(lines[at + 1]) <= 80
        assert lines[at + 1].startswith("story ")
    assert lines[3].count(" x plain") == 2 and " fixed x plain " in lines[3]
    names = [line[:24].strip() for line in lines[12:]]
    assert names[0] == "plain" and names[-1] == "adaptive, useless draft" and len(names) == 12
    assert re.fullmatch(
        r"Adaptive is \d+\.\d\d times plain on the workload story, and \d+\.\d\d of the best fixed setting; "
        r"reading the prompts included, \d+\.\d\d times plain\. With a useless draft it is \d+\.\d\d times plain \(worst \d+\.\d\d\)\."
        r"( Other programs disturbed the measured costs: .*)?",
        summary,
    )


def test_runs_that_were_left_out_are_reported():
    run = invoke("--minutes", "0.000001")
    assert run.exception is None
    assert " fixed x plain " not in run.stdout
    assert "The time limit ended the benchmark early (--minutes)." in run.stdout
    assert "The worst case was not measured; --useless FILE measures it." in run.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [(["--workload", "gone"], 2, "--workload is 'gone' but must be one of story, repetitive, copy, chat, long, short, document-1k, "),
     (["--long"], 2, "the workload document-4k needs 3,908 tokens but the context holds 2,048."),
     (["--runs", "0"], 2, "--runs is 0"), (["-n", "-1"], 2, "--max-tokens is -1"), (["--minutes", "nan"], 2, "--minutes is nan"),
     (["--seed", "-1"], 2, "--seed is -1"), (["--useless", "gone.gguf"], 1, "there is no file gone.gguf"),
     (["--useless", "none"], 1, "no file none")],
)  # fmt: skip
def test_errors(here, args, code, said):
    result = here(*QUICK, *args)
    error = result.stderr.decode()
    assert (result.returncode, result.stdout) == (code, b"")
    assert re.fullmatch(r"Error: [^\n]+\nHint: [^\n]+\n", error)
    assert said in error


@pytest.mark.full
def test_ctrl_c_leaves_nothing(environment):
    code = (
        "import os, gguf_spec\nfrom gguf_spec.cli import main\nreal = gguf_spec.LLM.generate\n"
        "gguf_spec.LLM.generate = lambda *a, **k: (os.write(2, b'measures\\n'), real(*a, **k))[1]\n"
        "main()"
    )
    words = "bench --threads 1 --runs 1000 -n 4 -w story"
    command = [sys.executable, "-c", code, *words.split()]
    child = children.Child(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    for line in child.stderr:
        if line == b"measures\n":
            break
    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate()
    assert (child.returncode, stdout) == (130, b"")
    assert b"Traceback" not in stderr


def test_the_default_is_the_model_of_a_chat(monkeypatch):
    """Without a chat model on this disk it is a bundled one."""
    from gguf_spec.cli import options

    chosen = SimpleNamespace(entry=SimpleNamespace(name="a-chat-model", path=None), path=Path("a"))
    monkeypatch.setattr(options, "default_model", lambda file: chosen)
    given = {"model": None, "models_file": None}
    assert options.with_measured_model(given)["model"] == "a-chat-model"
    assert options.with_measured_model(given | {"model": "b"})["model"] == "b"
    chosen.entry.path = Path("hub", "b.gguf")
    assert options.with_measured_model(given)["model"] == str(Path("hub", "b.gguf"))
    chosen.path = None
    assert options.with_measured_model(given)["model"] == "tales"
