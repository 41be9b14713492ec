"""The commands and programs of the pages about the server, and the last program of README, against a real server; the settings of docs/clients.md."""

import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from tests.server.conftest import ask
from tests.support import children

ROOT = Path(__file__).parents[2]
PAGE = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("server*.md"))
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8080"
CLIENTS = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
SETTINGS = re.findall(r"```(?:yaml|json)\n(.*?)```", CLIENTS, re.DOTALL)
COMMANDS = re.findall(r"(?m)^curl (?:.*\\\n)*.*$", PAGE)
PROGRAMS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PROGRAMS += re.findall(r"```python\n(.*?)```", README, re.DOTALL)[-1:]


def test_each_api_has_both():
    apis = [section for section in re.split(r"(?m)^## ", PAGE) if "```python" in section]
    assert len(apis) >= 2
    for section in apis:
        assert section.count("\ncurl ") == section.count("```python\n") == 1, section[:40]


def leaves(value):
    """Yield key and value of all mappings in a value."""
    for key, one in value.items() if isinstance(value, dict) else enumerate(value):
        yield from leaves(one) if isinstance(one, dict | list) else [(key, one)]


@pytest.mark.parametrize("text", SETTINGS, ids=range(len(SETTINGS)))
def test_settings_of_clients_name_this_server_and_a_model_that_answers(server, text):
    found = [*leaves(yaml.safe_load(text))]
    urls = {one for _, one in found if str(one).startswith("http")}
    assert urls == {f"{ADDRESS}/v1"}
    models = {one for key, one in found if key in ("model", "model_name", "name")}
    for model in models:
        body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        assert ask(server, "POST", "/v1/chat/completions", body).status == 200


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
    names = {}
    exec(compile(program.replace(ADDRESS, server.url), "docs/server-apis.md", "exec"), names)
    # a short program leaves its client to the end of the process; the garbage collector may find the socket of a
    # client before the client, and a socket that it closes is a warning
    names["client"].close()
    # how long an answer is differs by processor: a model may end after a word
    assert capsys.readouterr().out.strip()
