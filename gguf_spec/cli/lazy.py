"""Commands that are imported when they are first used, so that each one starts fast."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import NamedTuple

import click


class Place(NamedTuple):
    """Where a command is, and its line in the list of commands.

    Attributes:
        module: Module of this package that defines the command.
        name: Name of the command in the module.
        help: Short help.
    """

    module: str
    name: str
    help: str


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands of a group by their names; a module is imported when its command is looked up.

    Attributes:
        places: Name of a command -> where it is.
    """

    def __init__(self, places: Mapping[str, Place]) -> None:
        self.places = dict(places)
        self._found: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            place = self.places[name]
            command = getattr(import_module(f".{place.module}", __package__), place.name)
            command.short_help = place.help
            self._found[name] = command
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self.places[name] = Place("", "", command.get_short_help_str())
        self._found[name] = command

    def __delitem__(self, name: str) -> None:
        del self.places[name]
        self._found.pop(name, None)

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
