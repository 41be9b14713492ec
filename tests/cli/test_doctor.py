"""`gguf-spec doctor` from end to end: what it shows, how it ends, and how it looks at a terminal."""

import json
import re
import sys

import pytest

from tests.support import children

WELL = ("-m", "abc.gguf", "-d", "abx.gguf", "--ctx", "64", "--threads", "1")


def test_what_it_shows(here):
    result = here("doctor", *WELL)
    assert (result.returncode, result.stderr) == (0, b"")
    lines = result.stdout.decode().splitlines()
    shown = [
        re.fullmatch(r"(ok|warn)  +(\S+(?: \S+)?)  *(.+)", line)
        for line in lines
        if line[:4] in ("ok  ", "warn")
    ]
    assert all(shown)
    names = [match[2] for match in shown]
    assert names[0].split()[0] == "Python"
    assert len(names) == 24
    assert "fast kernels" in names
    assert lines[1] == ""
    assert lines[0].startswith(("No problem was found.", "Could be better: "))


def test_json(here):
    result = here("doctor", *WELL, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    data = json.loads(result.stdout)
    assert data["ok"] is True
    assert {one["status"] for one in data["checks"]} <= {"ok", "warn"}
    assert [one["name"] for one in data["checks"]][-1] == "costs"
    assert data["costs"] is None


@pytest.mark.parametrize("as_json", [True, False])
def test_what_fails_ends_it_with_1(here, as_json):
    result = here("doctor", "-m", "abc.gguf", "-d", "no.gguf", *["--json"] * as_json)
    assert (result.returncode, result.stderr) == (1, b"")
    text = result.stdout.decode()
    if as_json:
        assert json.loads(text)["ok"] is False
        last = json.loads(text)["checks"][-1]
        assert last.pop("todo").startswith("name a GGUF file, ")
        assert last == {
            "name": "draft",
            "status": "fail",
            "found": "there is no file no.gguf and no model with that name.",
        }
    else:
        assert (
            "fail  draft        there is no file no.gguf and no model with that name.\n                   -> name a GGUF file"
            in text
        )
        assert text.splitlines()[0].startswith("Failed: draft")


def test_a_hub_that_cannot_be_reached(here):
    result = here(
        "doctor",
        *WELL,
        "--json",
        "--online",
        env={"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
    )
    assert (result.returncode, result.stderr) == (1, b"")
    data = json.loads(result.stdout)
    assert [one["name"] for one in data["checks"] if one["status"] == "fail"] == ["hub"]
    assert data["sentence"].startswith("Failed: hub")


def test_usage(here):
    result = here("doctor", "--threads", "0")
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"threads is 0" in result.stderr


@pytest.mark.full
def test_at_a_terminal_of_80_columns(work, environment):
    """No line is longer, continued lines are indented, and passed checks are green."""
    gone = "a file with a name that is quite long/and that is not there.gguf"
    command = [sys.executable, "-m", "gguf_spec", "doctor", "-m", "abc.gguf", "-d", gone]
    env = environment | {"GGUF_SPEC_CALLED": "/home/someone/a folder/scripts/run"}
    code, seen = children.at_terminal(command, size=(24, 80), cwd=work, env=env)
    assert code == 1, seen
    assert b"someone" in seen
    assert b"\n\x1b[32mok    \x1b[0mPython" in seen
    assert b"\x1b[31mfail  \x1b[0mdraft" in seen
    lines = re.sub(r"\x1b\[[0-9;]*m", "", seen.decode()).replace("\r\n", "\n").splitlines()
    # A path is not broken, however long it is.
    assert all(len(line) <= 80 or max(map(len, line.split())) > 80 - 19 for line in lines)
    assert all(
        re.match(r"(ok    |warn  |fail  |(Failed|Could be better): )\S|\s{19}\S|$", line)
        for line in lines
    ), lines
