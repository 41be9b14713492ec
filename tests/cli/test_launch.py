"""`gguf-spec launch`: settings of clients for one run, and a whole run with a program of our own."""

import json
import stat
import sys

import pytest

from gguf_spec.cli import launch as module
from gguf_spec.cli.launch import CLIENTS, ServerFacts, settings_of
from gguf_spec.errors import GgufSpecError
from gguf_spec.server import serve_in_thread
from tests.support import tool_models

SERVER = ServerFacts("http://127.0.0.1:1", 'a "model"', 5000)
TELLS = """\
import json, os, pathlib, sys
folder = os.environ.get("PI_CODING_AGENT_DIR")
files = {{one.name: json.loads(one.read_text()) for one in pathlib.Path(folder).iterdir()}} if folder else {{}}
print(json.dumps([sys.argv[1:], dict(os.environ), files]))
sys.exit(7)
"""


@pytest.mark.parametrize("name", CLIENTS)
def test_settings_name_address_and_model(name):
    client = CLIENTS[name]
    server = SERVER._replace(model="m")
    variables, words, files = settings_of(client, server, "secret", "/folder")
    text = " ".join([*variables.values(), *words, *files.values()])
    assert "http://127.0.0.1:1" in text and "secret" in text and "m" in text and "$" not in text
    for value in (*variables.values(), *files.values()):
        if value.startswith("{"):
            json.loads(value)


def test_room_is_a_quarter_of_the_context():
    """By themselves pi keeps 16,384 tokens free and codex takes 10,000 of an output, whatever the context."""
    _, words, _ = settings_of(CLIENTS["codex"], SERVER._replace(context=16384), "none", "/folder")
    assert "tool_output_token_limit=4096" in words
    _, _, files = settings_of(CLIENTS["pi"], SERVER._replace(context=16384), "none", "/folder")
    room = {"reserveTokens": 4096, "keepRecentTokens": 4096}
    assert json.loads(files["/folder/settings.json"]) == {"compaction": room}


@pytest.mark.parametrize("name", CLIENTS)
def test_print_starts_nothing(here, name, monkeypatch):
    monkeypatch.setattr(module.subprocess, "run", None)
    done = here(
        "launch", name, "--print", "-m", "qwen", "--", "-x", "a b", text=True, env={"PATH": ""}
    )
    assert done.returncode == 0
    serve, *_, last = done.stdout.splitlines()
    assert serve == f"gguf-spec serve -m qwen --ctx {CLIENTS[name].context}"
    assert last.startswith("env ") and last.endswith(" -x 'a b'") and f" {name} " in last


def test_no_longer_context_is_proposed_than_the_model_was_trained_for(here):
    done = here("launch", "claude", "--print", "-m", "tales", text=True, env={"PATH": ""})
    assert done.stdout.startswith("gguf-spec serve -m tales --ctx 2048\n")
    assert done.stderr == "tales was trained for 2,048 tokens; claude needs about 32,768.\n"
    done = here("launch", "claude", "--print", "-m", "tales", "--ctx", "4096", text=True)
    assert done.stdout.startswith("gguf-spec serve -m tales --ctx 4096\n")


def test_a_program_that_is_not_installed(here):
    done = here("launch", "pi", text=True, env={"PATH": ""})
    assert done.returncode == 1
    assert "pi is not installed" in done.stderr and "npm install" in done.stderr


@pytest.fixture
def programs(tmp_path):
    for name in CLIENTS:
        file, code = tmp_path / name, tmp_path / f"{name}.py"
        code.write_text(TELLS.format())
        # a path after #! may have no blank
        file.write_text(f"#!/bin/sh\nexec '{sys.executable}' '{code}' \"$@\"\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(tmp_path)


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_a_program_that_cannot_be_started(cli, work, tmp_path):
    tool_models.noise(work / "hermes.gguf", "hermes")
    program = tmp_path / "pi"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    done = cli("launch", "pi", "-m", "hermes.gguf", "--ctx", "1024", env={"PATH": str(tmp_path)})
    assert done.returncode == 1
    assert f"{program} cannot be started: No such file or directory." in done.stderr.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a script")
def test_a_server_of_its_own(cli, programs, work):
    """The server is started, a tool is called, and the program gets its settings; no more."""
    tool_models.noise(work / "hermes.gguf", "hermes")
    args = ("launch", "pi", "-m", "hermes.gguf", "--ctx", "1024", "--", "-p", "hello")
    done = cli(*args, env={"PATH": programs})
    assert done.returncode == 7, done.stderr.decode()
    words, variables, files = json.loads(done.stdout)
    assert words == ["--provider", "local", "--model", "hermes.gguf", "-p", "hello"]
    provider = files["models.json"]["providers"]["local"]
    assert provider["models"][0]["contextWindow"] == 1024
    assert provider["baseUrl"].startswith("http://127.0.0.1:")
    assert "OPENAI_API_BASE" not in variables


@pytest.mark.full
def test_a_model_that_calls_nothing(tales, monkeypatch):
    with serve_in_thread(tales) as server:
        facts = ServerFacts(server.url, "tales", 2048)
        module.check(facts, "none")
        monkeypatch.setattr(
            module, "_LOOK", module._LOOK | {"type": "function", "function": {"name": "a b"}}
        )
        with pytest.raises(GgufSpecError, match="the server answers 400"):
            module.check(facts, "none")
