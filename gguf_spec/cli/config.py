"""The user's config file, defaults of options, and `gguf-spec config`, which shows and edits it.

    [default]               # every command that has the option
    model = "smollm2"
    threads = 4

    [generate]
    temperature = 0.2

    [models.pull]
    draft = false

    [mcp.files]             # a server of tools, for chat --mcp and serve --mcp
    command = "npx"
    args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]

An option on the command line comes first, then the environment, then this file.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import GgufSpecError
from .command import Command, CommandGroup, UnknownNameError, as_called, flag
from .habits import HIDDEN_NAMES, RENAMED, nearest_option

if TYPE_CHECKING:
    from ..tool_servers import ToolServer

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

# Programs whose tools a model may call, each call after a question (chat --mcp, serve --mcp):
# [mcp.files]
# command = "npx"
# args = ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/notes"]
# [mcp.search]
# url = "http://127.0.0.1:8000/mcp"
"""


@click.group(cls=CommandGroup, invoke_without_command=True)
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
@flag("--json as_json", "Print one JSON object.")
def show(as_json: bool = False) -> None:
    """Show the file, which is checked, its values and those of the environment."""
    import json

    file, values, last = config_path(), _values(), ""
    if as_json:
        names = ("source", "section", "key", "value")
        rows = [dict(zip(names, row, strict=True)) for row in values]
        data = {"path": str(file), "exists": file.exists(), "values": rows}
        click.echo(json.dumps(data, ensure_ascii=False, default=str))
        return
    absent = "" if file.exists() else " (does not exist; gguf-spec config edit makes it)"
    click.echo(f"{file}{as_called(absent)}")
    for source, section, key, value in values:
        title = f"[{section}]" if source == "file" else "environment"
        if title != last:
            click.echo(f"\n{title}")
            last = title
        click.echo(f"  {key} = {json.dumps(value, ensure_ascii=False, default=str)}")
    for name, near in _misspelt(_variables()):
        click.echo(f"Note: {name} sets no option. Did you mean {near}?", err=True)
    if not values:
        click.echo("No option is set here: neither in the file nor in the environment.")


def _values() -> list[tuple[str, str, str, Any]]:
    """Return source, section, key and value of all that is set, after a check of the file."""
    found: list[tuple[str, str, str, Any]] = []
    document = read()
    for section, values in _tables(document).items():
        for name, command in _commands():
            if section in (DEFAULT, name):
                defaults(command)  # checks the values
        found += [("file", section, key, value) for key, value in values.items()]
    for one in _tool_servers(document):
        for key, value in document[MCP][one.name].items():
            hidden = dict.fromkeys(value, "(set)") if key in ("env", "headers") else value
            found.append(("file", f"{MCP}.{one.name}", key, hidden))
    set_here = sorted(one for one in _variables() if os.environ.get(one))
    found += [("environment", "", one, os.environ[one]) for one in set_here]
    secret = ("api_key", "api-key", "GGUF_SPEC_API_KEY")
    return [(*one[:3], "(set)" if one[2] in secret else one[3]) for one in found]


def _variables() -> set[str]:
    options = (option for _, command in _commands(all_=True) for option in command.params)
    names = {(one.name or "").upper() for one in options if isinstance(one, click.Option)}
    earlier = {name.upper() for name in RENAMED}
    return {f"GGUF_SPEC_{name}" for name in names | {"JSON"} | earlier}


def _misspelt(known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that set no option, each with the one that is probably meant."""
    short = {name.removeprefix("GGUF_SPEC_"): name for name in known}
    for name in sorted(os.environ):
        if name.startswith("GGUF_SPEC_") and name not in known:
            for near in get_close_matches(name.removeprefix("GGUF_SPEC_"), short, 1, 0.8):
                yield name, short[near]


@config.command(reads_config=False, short_help="Print the path of the file.")
def path() -> None:
    """Print the path of the config file, which need not exist."""
    click.echo(config_path())


@config.command(reads_config=False, short_help="Open the file in the editor, and check it.")
def edit() -> None:
    """Open the file in $VISUAL or $EDITOR, and check it afterwards. A new file has examples."""
    from ..system.files import atomic_write, remedy

    file = config_path()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with atomic_write(file) as part:
                part.write_text(_TEMPLATE, encoding="utf-8")
    except OSError as error:
        fact = f"it cannot be written: {error.strerror}."
        raise ConfigFileError(fact, f"{remedy(error)}.") from None
    try:
        click.edit(filename=str(file))
    except click.ClickException as error:
        fact = f"it was not edited: {error.format_message().rstrip('.')}."
        raise ConfigFileError(fact, "set VISUAL or EDITOR to an editor on this machine.") from None
    _values()
    click.echo(f"{file} has no errors.")


DEFAULT = "default"
MCP = "mcp"
# Options that must be typed for each command, or in the section of one command.
_NOT_FOR_ALL = ("yes", "force")


class ConfigFileError(UnknownNameError):
    """The config file cannot be read, or has a wrong key or value."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{config_path()}: {message}", hint, None)


def config_path() -> Path:
    from ..system.files import config_folder

    return config_folder() / "config.toml"


def read() -> dict[str, Any]:
    """Return the tables of the config file; empty if the file does not exist.

    Raises:
        ConfigFileError: It cannot be read, or is not TOML.
    """
    try:
        config_path().stat()
    except OSError:  # no such file, or a home folder that this user cannot enter
        return {}
    try:
        data = config_path().read_bytes()
    except OSError as error:
        fact = f"it cannot be read: {error.strerror}."
        raise ConfigFileError(fact, "check its permissions.") from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        found: dict[str, Any] = tomllib.loads(data.decode("utf-8-sig"))
        return found
    except UnicodeDecodeError:
        raise ConfigFileError("it is not UTF-8.", "save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        hint = 'write keys as in: temperature = 0.2 or model = "smollm2".'
        raise ConfigFileError(f"{str(error).rstrip('.')}.", hint) from None


def tool_servers() -> list[ToolServer]:
    """Return the tool servers of the file.

    Raises:
        ConfigFileError: One of them has a wrong key or value, or none was found.
        GgufSpecError: They cannot be used here.
    """
    from ..tool_servers import check

    if found := _tool_servers(read()):
        check(found)
        return found
    hint = "name one: [mcp.files] with command = ... and args = [...], or with url = ..."
    raise ConfigFileError(f"it has no section [{MCP}.NAME] for a tool server.", hint)


def _tool_servers(document: Mapping[str, Any]) -> list[ToolServer]:
    if MCP not in document:
        return []  # and nothing is imported
    from ..tool_servers import ToolServer

    tables = document[MCP]
    if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
        hint = f"put its keys below [{MCP}.NAME], with a name of your choice."
        raise ConfigFileError(f"[{MCP}] holds tool servers, one section for each.", hint)
    try:
        return [ToolServer.read(name, table) for name, table in tables.items()]
    except GgufSpecError as error:
        raise ConfigFileError(error.message, error.hint) from None


def defaults(command: Command) -> dict[str, Any]:
    """Return the values of the file for a command, by parameter.

    Raises:
        ConfigFileError: The file has a wrong key, or a wrong value for this command.
    """
    return {
        str(option.name): _value(command, option, value, f"[{section}] {key}")
        for section, key, value, option in _settings(command)
    }


def origin(command: Command, parameter: str) -> str | None:
    """Return the section and the key that set a parameter of a command, or None."""
    found = None
    for section, key, _, option in _settings(command):
        if option.name == parameter:
            found = f"{key} in [{section}]"
    return found


def _settings(command: Command) -> Iterator[tuple[str, str, Any, click.Option]]:
    """Yield section, key, value and option of all that is set for a command; the last one holds."""
    tables = _tables(document) if (document := read()) else {}  # or all commands are imported
    own = next((name for name, one in _commands() if one is command), "") if tables else ""
    for section in (DEFAULT, own):
        for key, value in tables.get(section, {}).items():
            option = _option(command, key)
            if option and not (section == DEFAULT and option.name in command.own_defaults):
                yield section, key, value, option


def keys(command: Command) -> dict[str, click.Option]:
    """Return the options of a command by their keys in the file."""
    found: dict[str, click.Option] = {}
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden and one.expose_value:
            for flag in one.opts:
                if flag.startswith("--") or len(one.opts) == 1:
                    found[flag.lstrip("-").replace("-", "_")] = one
    return found


def _commands(all_: bool = False) -> Iterator[tuple[str, Command]]:
    """Yield the sections for commands, such as `models.pull`, with the commands.

    With `all_` also those that do not read the file.
    """
    for name, command in CommandGroup.root.paths():
        if isinstance(command, Command) and (all_ or command.reads_config):
            yield name.replace(" ", "."), command


def _tables(document: Mapping[str, Any], above: str = "") -> dict[str, dict[str, Any]]:
    """Return the tables of a document by their sections, with checked names and keys."""
    commands = dict(_commands())
    groups = {name.rpartition(".")[0] for name in commands} - {""}
    found: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        name = f"{above}.{key}" if above else key
        if name == MCP:  # `tool_servers` reads it
            continue
        if isinstance(value, dict) and name in groups:
            found |= _tables(value, name)
        elif isinstance(value, dict) and (name == DEFAULT or name in commands):
            found[name] = _with_new_names(value)
            for option in found[name]:
                _check_key(name, option, commands)
        elif isinstance(value, dict):
            near = get_close_matches(name, [DEFAULT, *commands], 1)
            names = ", ".join(f"[{one}]" for one in commands)
            hint = f"name a section [{DEFAULT}] or as a command: {names}."
            hint = f"did you mean [{near[0]}]?" if near else hint
            raise ConfigFileError(f"[{name}] is not the name of a command.", hint)
        else:
            hint = f"put it below [{DEFAULT}] or below a command."
            raise ConfigFileError(f"{name} is in no section.", hint)
    return found


def _with_new_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the names of this release; what has its present name comes first."""
    found = dict[str, Any]()
    for key, value in table.items():
        now = RENAMED.get(key.replace("-", "_"))
        if now and isinstance(value, bool):
            found.setdefault(now[0], now[1 if value else 2])
        else:
            found[key] = value
    return found


def _check_key(section: str, key: str, commands: Mapping[str, Command]) -> None:
    selected = commands.values() if section == DEFAULT else [commands[section]]
    options = [option for command in selected if (option := _option(command, key))]
    if section == DEFAULT and any(option.name in _NOT_FOR_ALL for option in options):
        fact = f"{key} cannot be set in [{DEFAULT}]."
        raise ConfigFileError(fact, "set it in the section of one command.")
    if not options:
        known = {f"--{name.replace('_', '-')}": name for one in selected for name in keys(one)}
        near = nearest_option(f"--{key}", known)
        what = "no command has" if section == DEFAULT else f"{section.replace('.', ' ')} has no"
        hint = "write the long name of an option, with or without hyphens."
        if near:
            hint = f"did you mean {known[near]}?"
        fact = f"[{section}] {key}: {what} option --{key.replace('_', '-')}."
        raise ConfigFileError(fact, hint)


def _option(command: Command, key: str) -> click.Option | None:
    """Return the option of a command for a key; hidden names count too."""
    known, flag = keys(command), f"--{key.replace('_', '-')}"
    hidden = (one for one in known.values() if flag in HIDDEN_NAMES.get(one.name or "", ()))
    return known.get(key.replace("-", "_")) or next(hidden, None)


def _value(command: Command, option: click.Option, value: Any, where: str) -> Any:
    """Return a value of the file as click takes it.

    Raises:
        ConfigFileError: The option does not take it.
    """
    kind, types = _kind(option)
    items = value if option.multiple and isinstance(value, list) else [value]
    is_right = all(isinstance(one, types) for one in items)
    # a truth value is an int for Python
    if not is_right or any(isinstance(one, bool) != (bool in types) for one in items):
        several = " or a list of that" if option.multiple else ""
        fact = f"{where} is {value!r} but must be {kind}{several}."
        raise ConfigFileError(fact, f"correct {where}.")
    if isinstance(option.type, click.Path):
        items = [_expanded(one) for one in items]
    found = list(items) if option.multiple else items[0]
    try:
        option.type_cast_value(click.Context(command), found)
    except click.BadParameter as error:
        raise ConfigFileError(f"{where}: {error.message}", f"correct {where}.") from None
    return found


def _kind(option: click.Option) -> tuple[str, tuple[type, ...]]:
    """Return a description of an option's values, and their Python types."""
    if option.is_flag:
        return "true or false", (bool,)
    if option.count or isinstance(option.type, click.types.IntParamType):
        return "a whole number", (int,)
    if option.type.name.endswith("|auto"):
        return "a whole number or text", (int, str)
    if isinstance(option.type, click.types.FloatParamType):
        return "a number", (int, float)
    return "text", (str,)


def _expanded(text: str) -> str:
    with contextlib.suppress(RuntimeError):  # there is no such home folder
        return str(Path(text).expanduser())
    return text
