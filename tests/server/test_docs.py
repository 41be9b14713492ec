"""The commands and programs of docs/server.md, and the first program of README, against a real server."""

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
COMMANDS = re.findall(r"(?m)^curl (?:.*\\\n)*.*$", PAGE)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS += re.findall(r"```python\n(.*?)```", README, re.DOTALL)[:1]


def test_each_api_has_both():
    apis = [section for section in re.split(r"(?m)^## ", PAGE) if "```python" in section]
    assert len(apis) >= 2
    for section in apis:
        assert section.count("\ncurl ") == section.count("```python\n") == 1, section[:40]


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not installed")
@pytest.mark.parametrize("command", COMMANDS, ids=[one.split()[1] for one in COMMANDS])
def test_commands(server, coder_server, command):
    assert ADDRESS in command
    server = coder_server if "/infill" in command else server
    words = shlex.split(command.replace(ADDRESS, server.url).replace("\\\n", " "))
    done = children.run([*words, "-sS", "--fail-with-body"], capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in json.loads(done.stdout) or json.loads(done.stdout)["error"] is None


@pytest.mark.full
@pytest.mark.parametrize(
    "program", PROGRAMS, ids=[f"{one.split()[1]}-{i}" for i, one in enumerate(PROGRAMS)]
)
def test_programs(server, program, capsys):
    client = program.split()[1]
    if not importlib.util.find_spec(client):
        pytest.skip(f"{client} is not installed")
    assert ADDRESS in program
    exec(compile(program.replace(ADDRESS, server.url), "docs/server.md", "exec"), {})
    assert len(capsys.readouterr().out) > 40
