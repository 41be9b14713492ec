"""Errors on the command line: options have the names of the running command."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click

from ..errors import GgufSpecError
from ..errors.texts import Call, Option, written

# Option in Python -> parameters of commands with another name. The first one that the running
# command has is used; all other options have the name of their parameter.
PARAMETERS = {
    "n_ctx": ("ctx",),
    "reference": ("draft_text",),
    "adaptive": ("fixed",),
    "exact": ("allow_near_ties",),
    "stop_tokens": ("stop_token",),
    "dry_sequence_breakers": ("dry_breaker",),
    "max_tokens": ("max_tokens", "max_tokens_limit"),
    "cors_origins": ("cors_origin",),
    "body_bytes": ("body_limit",),
    "type": ("kind",),
    "names": ("workload",),
    "n_rounds": ("runs",),
    "n_tokens": ("max_tokens",),
    "n_draws": ("draws",),
}
# Parameters that are set where the option in Python is False.
_NEGATED = ("fixed", "allow_near_ties")
# Function of the package -> command.
COMMANDS = {"pull": ("models", "pull")}


class CommandGroup(click.Group):
    """Group that records the command to run.

    Attributes:
        running: The command of this process; None before it is known.
    """

    running: click.Command | None = None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments, and record it."""
        found = super().resolve_command(ctx, args)
        CommandGroup.running = found[1]
        return found


def message_and_hint(error: GgufSpecError) -> tuple[str, str]:
    """Return the message and the hint of an error, with options of the running command."""
    return error.written(name)


def in_command(text: str) -> str:
    """Return a text of the library with options of the running command; empty if it lacks them."""
    return written(text, name, "")


def name(part: Option | Call) -> str | None:
    """Return an option or a call as it is typed; None if the running command lacks it."""
    if isinstance(part, Call):
        return _call(part)
    context = click.get_current_context(silent=True)
    command = context.command if context else CommandGroup.running
    commands = list(_all(_root())) if command is None or command is _root() else [command]
    return next((text for one in commands if (text := option_name(part, one))), None)


def option_name(option: Option, command: click.Command) -> str | None:
    """Return an option as it is typed after a command; None if the command lacks it."""
    parameters = {one.name: one for one in command.params}
    names = PARAMETERS.get(option.name, (option.name,))
    found = next((parameters[one] for one in names if one in parameters), None)
    if found is None:
        return None
    flag = max(found.opts, key=len)
    if isinstance(found, click.Argument):
        return found.metavar or flag.upper()
    if isinstance(found, click.Option) and found.is_flag:
        is_off = option.value is (found.name in _NEGATED)
        return found.secondary_opts[0] if is_off and found.secondary_opts else flag
    if option.value is ...:
        return flag
    return f"{flag} {'none' if option.value is None else shlex.quote(str(option.value))}"


def _call(call: Call) -> str | None:
    """Return a call as a command line."""
    path = COMMANDS.get(call.function)
    if path is None:
        return None
    command = _root()
    for word in path:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    options = [str(option_name(option, command)) for option in call.options]
    return " ".join(["gguf-spec", *path, shlex.quote(call.argument), *options])


def _root() -> click.Command:
    from . import cli

    return cli


def _all(command: click.Command) -> Iterator[click.Command]:
    yield command
    for one in command.commands.values() if isinstance(command, click.Group) else ():
        yield from _all(one)
