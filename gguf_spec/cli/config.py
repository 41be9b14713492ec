"""`gguf-spec config`: show, find and edit the config file."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from . import config_file
from .command import Command, CommandGroup
from .config_file import ConfigFileError

_TEMPLATE = """\
# Defaults of gguf-spec. An option on the command line comes first, then the environment
# (GGUF_SPEC_OPTION), then this file. Keys are the long names of options.

# For every command that has the option:
[default]
# model = "smollm2"
# ctx = 8192
# threads = 4

# For one command:
[generate]
# temperature = 0.2
# max_tokens = 512

[chat]
# system = "Answer briefly."

[serve]
# port = 8080
"""


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
)
@click.pass_context
def config(ctx: click.Context) -> None:
    """Show or edit the defaults of options. Without a command: show.

    The file is TOML. [default] is for every command, [generate], [chat], [serve], [models.pull]
    and so on are for one. Its keys are the long names of options. An option on the command line
    comes first, then GGUF_SPEC_OPTION in the environment, then the file.

    \b
    Examples:
      gguf-spec config
      gguf-spec config edit
      printf '[generate]\\ntemperature = 0.2\\n' >> "$(gguf-spec config path)"
    """
    if ctx.invoked_subcommand is None:
        ctx.invoke(show)


@config.command(reads_config=False, short_help="Show the file and the values in force.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(as_json: bool = False) -> int:
    """Show the file, its values and those of the environment; check them all."""
    file = config_file.path()
    values = _values()
    if as_json:
        rows = [
            dict(zip(("source", "section", "key", "value"), row, strict=True)) for row in values
        ]
        data = {"path": str(file), "exists": file.exists(), "values": rows}
        click.echo(json.dumps(data, ensure_ascii=False, default=str))
        return 0
    click.echo(
        f"{file}{'' if file.exists() else ' (does not exist; gguf-spec config edit makes it)'}"
    )
    last = ""
    for source, section, key, value in values:
        title = f"[{section}]" if source == "file" else "environment"
        if title != last:
            click.echo(f"\n{title}")
            last = title
        click.echo(f"  {key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    if not values:
        click.echo("No option has another default than its own.")
    return 0


def _values() -> list[tuple[str, str, str, Any]]:
    """Return source, section, key and value of all that is set, after a check of the file."""
    found: list[tuple[str, str, str, Any]] = []
    for section, values, commands in config_file.sections():
        for _, command in commands:
            config_file.defaults(command)  # checks the values
        found += [("file", section, key, value) for key, value in values.items()]
    names = {
        f"GGUF_SPEC_{name.upper()}"
        for _, command in _all_commands()
        for name in (one.name or "" for one in command.params if isinstance(one, click.Option))
    } | {"GGUF_SPEC_JSON"}
    secret = {"GGUF_SPEC_API_KEY"}
    found += [
        ("environment", "", name, "(set)" if name in secret else os.environ[name])
        for name in sorted(names)
        if os.environ.get(name)
    ]
    return [
        (source, section, key, "(set)" if key.replace("-", "_") == "api_key" else value)
        for source, section, key, value in found
    ]


def _all_commands() -> list[tuple[str, Command]]:
    from . import cli

    assert isinstance(cli, CommandGroup)
    return [(name, one) for name, one in cli.paths() if isinstance(one, Command)]


@config.command(reads_config=False, short_help="Print the path of the file.")
def path() -> int:
    """Print the path of the config file, which need not exist."""
    click.echo(config_file.path())
    return 0


@config.command(reads_config=False, short_help="Open the file in the editor, and check it.")
def edit() -> int:
    """Open the file in $VISUAL or $EDITOR, and check it afterwards. A new file has examples."""
    file = config_file.path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.write_text(_TEMPLATE, encoding="utf-8")
    except OSError as error:
        raise ConfigFileError(
            f"it cannot be written: {error.strerror}.", "check the permissions of its folder."
        ) from None
    click.edit(filename=str(file))
    _values()
    click.echo(f"{file} has no errors.")
    return 0
