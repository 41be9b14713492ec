"""The version, and the help of every command; test_habits.py has the options in it."""

import sys

import pytest
from click import Option

import gguf_spec
from gguf_spec.cli import cli as root
from gguf_spec.quantize import TYPES


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(cli, flag):
    result = cli(flag)
    said = f"gguf-spec {gguf_spec.__version__}\n"
    assert (result.returncode, result.stdout.decode(), result.stderr) == (0, said, b"")


def test_no_arguments_show_the_help(here):
    result = here()
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"Examples:" in result.stderr


def test_help_begins_with_examples(here):
    for path in ["", *(path for path, _ in root.paths())]:
        result = here(*path.split(), "--help", env={"GGUF_SPEC_JSON": "1"}, text=True)
        text = result.stdout
        assert (result.returncode, result.stderr) == (0, ""), path
        assert text.startswith(f"Usage: gguf-spec {path}".rstrip())
        if not path.startswith("config "):
            assert text.index("Examples:") < text.index("ptions:\n"), path
        assert path != "models quantize" or all(name in text for name in TYPES)
    text = here("-h", text=True).stdout
    assert text == here("--help", text=True).stdout
    assert text.index("Options:") < text.index("Commands:")


def test_every_option_has_a_help_text():
    for path, command in root.paths():
        assert command.help, path
        for option in command.params:
            assert not isinstance(option, Option) or option.help, f"{path} {option.name}"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("c", ["chat"]),
        ("H", ["--help"]),
        ("e", ["edit", "a b.py", "set a to 2"]),
        ("a", ["launch", "a b.py"]),
        ("x", None),
        ("\r", None),
    ],
)
def test_without_a_command_there_is_a_menu_at_a_terminal(monkeypatch, capsys, key, words):
    from gguf_spec.cli import run

    monkeypatch.setattr(run.click, "getchar", lambda: key)
    typed = iter(["a b.py", "set a to 2"])
    monkeypatch.setattr(run.click, "prompt", lambda _: next(typed))
    assert run.menu() == words
    out = capsys.readouterr().out
    assert "  c  chat with a model" in out
    assert ("$ gguf-spec edit 'a b.py' 'set a to 2'" in out) == (key == "e")


def test_the_menu_is_for_terminals_only(monkeypatch):
    from types import SimpleNamespace

    from gguf_spec import cli
    from gguf_spec.cli import run

    monkeypatch.setattr(run, "menu", lambda: ["chat"])
    for is_terminal, typed, words in (
        (True, [], ["chat"]),
        (False, [], []),
        (True, ["ps"], ["ps"]),
    ):
        one = SimpleNamespace(isatty=lambda is_terminal=is_terminal: is_terminal)
        found = SimpleNamespace(argv=["gguf-spec", *typed], stdin=one, stdout=one, exit=sys.exit)
        monkeypatch.setattr(cli, "sys", found)
        assert cli.words() == words
    monkeypatch.setattr(run, "menu", lambda: None)
    one = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(
        cli, "sys", SimpleNamespace(argv=["x"], stdin=one, stdout=one, exit=sys.exit)
    )
    with pytest.raises(SystemExit) as caught:
        cli.words()
    assert caught.value.code == 0
