"""Exit codes of all commands: 0, 1 for a failure, 2 for wrong usage, 128 and the number after a signal."""

import subprocess
from types import SimpleNamespace

import click
import pytest

from gguf_spec import cli as program
from gguf_spec.cli import launch, models
from gguf_spec.cli.command import CommandGroup

PATHS = [path for path, _ in program.cli.paths()]
COMMANDS = [path for path, one in program.cli.paths() if not isinstance(one, CommandGroup)]
USAGE = [
    "", "nothing", "models nothing", "config nothing", "help nothing", "generate a -t hot", "generate a --top-p 2", "generate a -n x",
    "generate a b", "batch", "batch a.jsonl", "embed", "edit", "edit gone.py x", "edit --undo", "run", "verify --quick --under-load", "verify --count 0",
    "tune extra", "doctor extra", "bench --runs 0", "bench extra", "chat -t hot", "models pull", "models show", "models path", "models remove",
    "models drafts", "models quantize abc.gguf", "models quantize abc.gguf o.gguf", "models trim", "models recommend food", "serve --port x",
    "serve --rope-freq-base 1", "serve --ctx-max 1", "launch", "launch nothing", "config edit extra", "ps extra", "uninstall extra", "completion nosh",
    "worker extra", "list extra", "pull", "show", "rm", "kept list extra", "kept rm", "kept rm gone", "kept rm --all",
]  # fmt: skip
FAILURE = [
    "generate a -m gone.gguf", "generate a -f gone.txt", "chat -m gone.gguf", "batch gone.jsonl o.jsonl", "embed a -m gone.gguf", "run gone.gguf a",
    "edit note.txt better -m gone.gguf", "edit --undo note.txt", "verify -m gone.gguf", "tune -m gone.gguf", "doctor -m gone.gguf", "bench -m gone.gguf",
    "models show gone.gguf", "models path gone.gguf", "models pull gone.gguf", "models drafts gone.gguf", "models remove smollm2 --yes",
    "models quantize gone.gguf o.gguf --type Q4_0", "models trim gone.gguf", "serve -m gone.gguf --port 0", "launch aider", "show gone.gguf",
    "models path abc.gguf --models-file gone.yaml", "generate a --grammar gone.gbnf",
]  # fmt: skip


@pytest.fixture
def run(here, work, tmp_path):
    """Run a command with a home and settings of its own, and no other program to start."""
    (work / "note.txt").write_text("a\n")

    def run(words, **options):
        own = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        own |= {"XDG_CACHE_HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "PATH": ""}
        return here(*words.split(), env=own, text=True, **options)

    return run


def test_the_tables_name_all_commands():
    def told(table):
        return {path for path in COMMANDS if any(f"{one} ".startswith(f"{path} ") for one in table)}

    assert not {*COMMANDS} - told(USAGE) - {"config path", "config show", "config", "help", "models list"} - {path for path in COMMANDS if path.startswith("config ")}  # fmt: skip
    no_failure = {"help", "ps", "uninstall", "completion", "models list", "models recommend", "worker", "kept list", "kept rm"}  # fmt: skip
    assert (
        not {*COMMANDS}
        - told(FAILURE)
        - no_failure
        - {path for path in COMMANDS if path.startswith("config")}
    )


@pytest.mark.parametrize("path", PATHS)
def test_help_succeeds_and_an_unknown_option_is_wrong_usage(run, path):
    assert run(f"{path} --help").returncode == 0
    wrong = run(f"{path} --no-such-option")
    assert wrong.returncode == 2 and wrong.stderr.startswith("Error: "), wrong.stderr


@pytest.mark.parametrize("words", USAGE)
def test_wrong_usage(run, words):
    result = run(words)
    assert (result.returncode, "Traceback" in result.stderr) == (2, False), result.stderr


@pytest.mark.parametrize("words", FAILURE)
def test_a_failure(run, words):
    result = run(words)
    assert (result.returncode, "Traceback" in result.stderr) == (1, False), result.stderr
    assert "Error: " in result.stderr or words.startswith("doctor"), result.stderr


@pytest.mark.parametrize("raised", [KeyboardInterrupt, click.Abort, EOFError])
def test_an_interrupted_command(run, monkeypatch, raised):
    def interrupted(*_arguments, **_options):
        raise raised

    monkeypatch.setattr(click.Command, "invoke", interrupted)
    for path in COMMANDS:
        assert run(path).returncode in (130, 2), path  # 2: it lacks an argument
    assert run("ps").returncode == 130


@pytest.mark.parametrize(("code", "wanted"), [(0, 0), (3, 3), (-2, 130), (-15, 143), (-9, 137)])
def test_the_code_of_an_agent_is_that_of_launch(monkeypatch, code, wanted):
    monkeypatch.setattr(launch.shutil, "which", lambda _: "/bin/agent")
    monkeypatch.setattr(launch, "_running", lambda *_: launch.ServerFacts("http://127.0.0.1:1", "m", 9))  # fmt: skip
    monkeypatch.setattr(launch, "check", lambda *_: None)
    monkeypatch.setattr(
        subprocess, "run", lambda line, **_: subprocess.CompletedProcess(line, code)
    )
    given = {"api_key": None, "print_only": False, "ctx": None, "model": None, "arguments": ()}
    assert launch.launch.callback(name="aider", **given) == wanted


def test_a_model_that_stays_after_a_question(monkeypatch, capsys):
    entry = SimpleNamespace(name="one", path=None)
    monkeypatch.setattr("gguf_spec.models.resolve", lambda *_: entry)
    monkeypatch.setattr("gguf_spec.models.find", lambda _: "one.gguf")
    monkeypatch.setattr("gguf_spec.models.remove", lambda _: 5)
    monkeypatch.setattr(models, "at_terminal", lambda: True)
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr(click, "confirm", lambda *_, answer=answer, **__: answer)
        done = models.remove.callback(names=("one",), yes=False, models_file=None, as_json=False)
        assert (done or 0, "removed" in capsys.readouterr().out) == (code, answer)
