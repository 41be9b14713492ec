"""Commands that are imported when they are used."""

import sys

import click
import pytest

from gguf_spec.cli import COMMANDS, cli
from gguf_spec.cli.command import LazyCommands, Place
from tests.support import children


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_names_commands(name):
    command = cli.commands[name]
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.short_help == COMMANDS[name].help


def test_the_help_imports_no_command():
    code = (
        "import sys; from gguf_spec.cli import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "print([m for m in sys.modules if m in ('gguf_spec.cli.serve', 'gguf_spec.cli.generate')])"
    )
    said = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.endswith("[]\n")
    assert all(place.help in said.stdout for place in COMMANDS.values())


def test_commands_can_be_added_and_removed():
    commands = LazyCommands({"a": Place("ps", "ps", "Show models.")})
    commands["b"] = click.Command("b", short_help="Of b.")
    assert (list(commands), len(commands)) == (["a", "b"], 2)
    assert commands["b"].short_help == "Of b."
    del commands["a"]
    assert "a" not in commands
    with pytest.raises(KeyError):
        commands["a"]
