"""Errors on the command line: options have the names of the running command."""

from __future__ import annotations

import re
import shlex

import click
from click.core import ParameterSource

from .. import options
from ..errors import GgufSpecError, InvalidOptionError, Option, Pull, written
from .command import Command, CommandGroup

# Option in Python -> parameters of commands. The first one that the running
# command has is used; all other options have the name of their parameter.
PARAMETERS = {
    **{name: (parameter,) for name, parameter in options.PARAMETERS.items()},
    "max_tokens": ("max_tokens", "max_tokens_limit"),
    "cors_origins": ("cors_origin",),
    "allowed_hosts": ("allow_host",),
    "body_bytes": ("body_limit",),
    "type": ("kind",),
    "names": ("workload",),
    "n_rounds": ("runs",),
    "n_tokens": ("max_tokens",),
    "n_draws": ("draws",),
}
_CORRECT = "correct {} in the environment, or unset it."
# Parameters that are set where the option in Python is False.
_NEGATED = [options.PARAMETERS[name] for name, rule in options.SPECULATION.items() if rule.inverted]


def message_and_hint(error: GgufSpecError) -> tuple[str, str]:
    """Return the message and the hint of an error, with options of the running command.

    If the option comes from the config file or the environment, the hint names where.
    """
    message, hint = error.written(name)
    context = CommandGroup.context
    if context and isinstance(context.command, Command) and isinstance(error, InvalidOptionError):
        found = _parameter(error.option, context.command)
        source = context.get_parameter_source(found.name) if found and found.name else None
        if found and source is ParameterSource.DEFAULT_MAP:
            from .config import config_path, origin

            if key := origin(context.command, found.name):
                hint = f"correct {key} of {config_path()}."
        if found and (variable := variable_of(found, context)):
            hint = _CORRECT.format(variable)
    return message, hint


def usage_message_and_hint(error: click.UsageError) -> tuple[str, str]:
    hint = f"{error.ctx.command_path if error.ctx else 'gguf-spec'} --help lists the options."
    if (
        isinstance(error, click.BadParameter)
        and error.param
        and error.ctx
        and (variable := variable_of(error.param, error.ctx))
    ):
        error.param_hint = variable
        hint = _CORRECT.format(variable)
    if isinstance(error, click.MissingParameter) and error.param and error.param.name == "model":
        hint = "gguf-spec models recommend embed names one."
    more = re.fullmatch(r"Got unexpected extra arguments? \((.*)\)", error.message, re.DOTALL)
    if more and error.ctx:
        return _too_many_words(more[1], error.ctx)
    return error.format_message(), hint


def _too_many_words(more: str, context: click.Context) -> tuple[str, str]:
    command, path = context.command, context.command_path
    arguments = [one for one in command.params if isinstance(one, click.Argument)]
    if not arguments:
        hint = f"{path} --help lists the options."
        if any(one.name == "model" for one in command.params):
            hint = f"write a model as {path} --model {shlex.quote(more.split(maxsplit=1)[0])}."
        return f"{path} takes no text, but there is {more!r}.", hint
    last = arguments[-1]
    first = str(context.params.get(last.name or "", ""))
    name = (last.metavar or last.name or "").upper()
    message = f"{path} takes one {name}, but {more!r} follows {first!r}."
    if first.lower() in ("true", "false"):
        return message, f"a switch such as --verbose takes no value: leave {first} out."
    return message, f"write it in quotes: {path} {shlex.quote(f'{first} {more}')}."


def variable_of(parameter: click.Parameter, context: click.Context) -> str | None:
    """Return the environment variable that set a parameter; None if nothing or another did."""
    if context.get_parameter_source(parameter.name or "") is not ParameterSource.ENVIRONMENT:
        return None
    given = parameter.envvar or f"{context.auto_envvar_prefix}_{(parameter.name or '').upper()}"
    return given if isinstance(given, str) else " or ".join(given)


def in_command(text: str) -> str:
    """Return a text of the library with options of the running command; empty if it lacks them."""
    return written(text, name) or ""


def name(part: Option | Pull) -> str | None:
    """Return an option or a download as it is typed; None if the running command lacks it."""
    if isinstance(part, Pull):
        force = " --force" if part.force else ""
        return f"gguf-spec models pull {shlex.quote(part.model)}{force}"
    root, context = CommandGroup.root, click.get_current_context(silent=True)
    command = (context.command if context else CommandGroup.running) or root
    commands = (one for _, one in root.paths()) if command is root else [command]
    return next((text for one in commands if (text := option_name(part, one))), None)


def _parameter(option: str, command: click.Command) -> click.Parameter | None:
    parameters = {one.name: one for one in command.params}
    names = PARAMETERS.get(option, (option,))
    return next((parameters[one] for one in names if one in parameters), None)


def option_name(option: Option, command: click.Command) -> str | None:
    """Return an option as it is typed after a command; None if the command lacks it."""
    found = _parameter(option.name, command)
    if found is None:
        return None
    flag = max(found.opts, key=len)
    if isinstance(found, click.Argument):
        return found.metavar or flag.upper()
    if isinstance(found, click.Option) and (found.is_flag or found.count):
        is_off = option.value is (found.name in _NEGATED)
        return found.secondary_opts[0] if is_off and found.secondary_opts else flag
    if option.value is ...:
        return flag
    return f"{flag} {'none' if option.value is None else shlex.quote(str(option.value))}"
