"""The version, and the help of every command; test_habits.py has the options in it."""

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
