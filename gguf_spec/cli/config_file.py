"""The user's config file: defaults of options, for all commands or for one.

    [default]               # every command that has the option
    model = "smollm2"
    threads = 4

    [generate]
    temperature = 0.2

    [models.pull]
    draft = false

An option on the command line comes first, then the environment, then this file.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from .command import Command, CommandGroup, UnknownNameError
from .habits import HIDDEN_NAMES, nearest_option
from .parameters import NumberOrAuto

DEFAULT = "default"
# Options that must be typed for each command, or in the section of one command.
_NOT_FOR_ALL = ("yes", "force")


class ConfigFileError(UnknownNameError):
    """The config file cannot be read, or has a wrong key or value."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{path()}: {message}", hint, None)


def path() -> Path:
    """Return the path of the config file, which need not exist."""
    from ..system.files import config_folder

    return config_folder() / "config.toml"


def read() -> dict[str, Any]:
    """Return the tables of the config file; empty if the file does not exist.

    Raises:
        ConfigFileError: It cannot be read, or is not TOML.
    """
    try:
        data = path().read_bytes()
    except FileNotFoundError:
        return {}
    except RuntimeError:  # this user has no home folder
        return {}
    except OSError as error:
        raise ConfigFileError(
            f"it cannot be read: {error.strerror}.", "check its permissions."
        ) from None
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ConfigFileError("it is not UTF-8.", "save it as UTF-8.") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigFileError(
            f"{str(error).rstrip('.')}.",
            'write keys as in: temperature = 0.2 or model = "smollm2".',
        ) from None


def defaults(command: Command) -> dict[str, Any]:
    """Return the values of the file for a command, by parameter.

    Raises:
        ConfigFileError: The file has a wrong key, or a wrong value for this command.
    """
    tables = _tables(read())
    section = next((name for name, one in _commands() if one is command), None)
    found: dict[str, Any] = {}
    for name in (DEFAULT, section):
        for key, value in tables.get(name or "", {}).items():
            option = _option(command, key)
            if option and not (name == DEFAULT and option.name in command.own_defaults):
                found[str(option.name)] = _value(command, option, value, f"[{name}] {key}")
    return found


def origin(command: Command, parameter: str) -> str | None:
    """Return the section and the key that set a parameter of a command, or None."""
    tables = _tables(read())
    section = next((name for name, one in _commands() if one is command), None)
    for name in (section, DEFAULT):
        for key in tables.get(name or "", {}):
            option = _option(command, key)
            if option and option.name == parameter:
                return f"{key} in [{name}]"
    return None


def keys(command: Command) -> dict[str, click.Option]:
    """Return the options of a command by their keys in the file."""
    found: dict[str, click.Option] = {}
    for one in command.params:
        if isinstance(one, click.Option) and not one.hidden and one.expose_value:
            for flag in one.opts:
                if flag.startswith("--") or len(one.opts) == 1:
                    found[flag.lstrip("-").replace("-", "_")] = one
    return found


def sections() -> Iterator[tuple[str, dict[str, Any], list[tuple[str, Command]]]]:
    """Yield the sections of the file: name, values, and the commands that they are for.

    Raises:
        ConfigFileError: The file has a wrong key.
    """
    for name, values in _tables(read()).items():
        yield name, values, [one for one in _commands() if name in (DEFAULT, one[0])]


def _commands() -> Iterator[tuple[str, Command]]:
    """Yield the sections for commands, such as `models.pull`, with the commands."""
    from . import cli

    assert isinstance(cli, CommandGroup)
    for name, command in cli.paths():
        if isinstance(command, Command) and command.reads_config:
            yield name.replace(" ", "."), command


def _tables(document: Mapping[str, Any], above: str = "") -> dict[str, dict[str, Any]]:
    """Return the tables of a document by their sections, with checked names and keys."""
    commands = dict(_commands())
    groups = {name.rpartition(".")[0] for name in commands} - {""}
    found: dict[str, dict[str, Any]] = {}
    for key, value in document.items():
        name = f"{above}.{key}" if above else key
        if isinstance(value, dict) and name in groups:
            found |= _tables(value, name)
        elif isinstance(value, dict) and (name == DEFAULT or name in commands):
            for option in value:
                _check_key(name, option, commands)
            found[name] = value
        elif isinstance(value, dict):
            raise ConfigFileError(
                f"[{name}] is not the name of a command.",
                f"name a section [{DEFAULT}] or as a command: "
                f"{', '.join(f'[{one}]' for one in commands)}.",
            )
        else:
            raise ConfigFileError(
                f"{name} is in no section.", f"put it below [{DEFAULT}] or below a command."
            )
    return found


def _check_key(section: str, key: str, commands: Mapping[str, Command]) -> None:
    asked = commands.values() if section == DEFAULT else [commands[section]]
    options = [option for command in asked if (option := _option(command, key))]
    if section == DEFAULT and any(option.name in _NOT_FOR_ALL for option in options):
        raise ConfigFileError(
            f"{key} cannot be set in [{DEFAULT}].", "set it in the section of one command."
        )
    if not options:
        known = {f"--{name.replace('_', '-')}": name for one in asked for name in keys(one)}
        near = nearest_option(f"--{key}", known)
        what = "no command has" if section == DEFAULT else f"{section.replace('.', ' ')} has no"
        raise ConfigFileError(
            f"[{section}] {key}: {what} option --{key.replace('_', '-')}.",
            f"did you mean {known[near]}?"
            if near
            else "write the long name of an option, with or without hyphens.",
        )


def _option(command: Command, key: str) -> click.Option | None:
    """Return the option of a command for a key; hidden names count too."""
    name, known = key.replace("-", "_"), keys(command)
    if name in known:
        return known[name]
    flag = f"--{name.replace('_', '-')}"
    return next(
        (one for one in known.values() if flag in HIDDEN_NAMES.get(one.name or "", ())), None
    )


def _value(command: Command, option: click.Option, value: Any, where: str) -> Any:
    """Return a value of the file as click takes it.

    Raises:
        ConfigFileError: The option does not take it.
    """
    kind = _kind(option)
    items = value if option.multiple and isinstance(value, list) else [value]
    fits: Callable[[Any], bool] = {
        "true or false": lambda one: isinstance(one, bool),
        "a whole number": lambda one: isinstance(one, int) and not isinstance(one, bool),
        "a number": lambda one: isinstance(one, (int, float)) and not isinstance(one, bool),
        "text": lambda one: isinstance(one, str),
        "a whole number or text": lambda one: (
            isinstance(one, (int, str)) and not isinstance(one, bool)
        ),
    }[kind]
    if not all(fits(one) for one in items):
        several = " or a list of that" if option.multiple else ""
        raise ConfigFileError(
            f"{where} is {value!r} but must be {kind}{several}.", f"correct {where}."
        )
    if isinstance(option.type, click.Path):
        items = [_expanded(one) for one in items]
    found = list(items) if option.multiple else items[0]
    try:
        option.type_cast_value(click.Context(command), found)
    except click.BadParameter as error:
        raise ConfigFileError(f"{where}: {error.message}", f"correct {where}.") from None
    return found


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return "true or false"
    if option.count or isinstance(option.type, click.types.IntParamType):
        return "a whole number"
    if isinstance(option.type, NumberOrAuto):
        return "a whole number or text"
    return "a number" if isinstance(option.type, click.types.FloatParamType) else "text"


def _expanded(text: str) -> str:
    try:
        return str(Path(text).expanduser())
    except RuntimeError:  # there is no such home folder
        return text
