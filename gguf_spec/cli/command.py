"""Commands and command groups: imported when used, help in groups, hidden names, hints."""

from __future__ import annotations

import os
import re
import shlex
from collections import UserDict
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import click

from ..errors import reduced
from .habits import HIDDEN_NAMES, RENAMED, SHORT_COMMANDS, nearest_command, nearest_option

# Options of an answer that the table of sampling options has, too, and of its prompt.
_ANSWER = (
    "file", "system", "max_tokens", "seed", "stop", "stop_token", "ignore_eos", "grammar",
    "json_schema", "raw", "prefill", "overflow", "logprobs",
)  # fmt: skip
_COMMON, _REST = "Usual", "Output and other"
_IN_REST = ("think_budget", "mmproj", "rpc")
_SETTINGS = {"auto_envvar_prefix": "GGUF_SPEC", "show_default": True}
# Translation table that replaces control characters except tab and newline, so that the text of a
# model cannot control the terminal.
CONTROL = {
    c: "\N{REPLACEMENT CHARACTER}"
    for c in (*range(0x20), *range(0x7F, 0xA0))
    if c not in (0x09, 0x0A)
}
F = TypeVar("F", bound=Callable[..., Any])


def as_called(text: str) -> str:
    """Return a text with the commands of this program as the user calls it.

    `scripts/run` of a clone sets the variable; `gguf-spec` is not found there.
    """
    program, names = os.environ.get("GGUF_SPEC_CALLED"), "|".join(CommandGroup.root.commands)
    if not program:
        return text
    names += r"|COMMAND|\[OPTIONS"
    return re.sub(rf"\bgguf-spec(?= --| (?:{names})\b)", lambda _: shlex.quote(program), text)


class Decorator(Protocol):
    """Adds options to a command."""

    def __call__(self, command: F, /) -> F:
        """Return the command with the options."""


def option(flags: str, help_: str, **more: Any) -> Callable[[F], F]:
    """Return the decorator that adds an option.

    Args:
        flags: Its names, and that of its parameter if it differs, separated by spaces.
    """
    return click.option(*flags.split(), help=help_, **more)


def flag(flags: str, help_: str, **more: Any) -> Callable[[F], F]:
    return option(flags, help_, is_flag=True, **more)


def file_option(flags: str, help_: str, **more: Any) -> Callable[[F], F]:
    from pathlib import Path  # slow to import: not for the list of commands

    given: dict[str, Any] = {"type": click.Path(path_type=Path), "metavar": "FILE"} | more
    return option(flags, help_, **given)


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return the decorator that adds several options in this order."""

    def add(command: F) -> F:
        for one in reversed(options):
            command = one(command)
        return command

    return add


def json_option(what: str = "") -> Callable[[F], F]:
    """Return the option `--json`.

    Args:
        what: End of its help, such as "instead of the table"; empty where JSON replaces nothing.
    """
    text = f"Print one JSON object {what}".rstrip() + "."
    return flag("--json as_json", text, envvar="GGUF_SPEC_JSON")


def _groups() -> dict[str, list[str]]:
    """Return group of the help -> its parameters; all others are in the last group.

    A parameter is in the first group that names it.
    """
    from ..options import LOADING, PARAMETERS, REQUESTS, SAMPLING, SPECULATION

    groups = {
        "Prompt and answer": _ANSWER,
        "Drafting": ("draft", "draft_text", "draft_texts", *SPECULATION),
        "Sampling": (*SAMPLING,),
        "Model and machine": ("model", "models_file", *LOADING, *REQUESTS, "verbose"),
    }
    return {
        title: [PARAMETERS.get(name, name) for name in names if name not in _IN_REST]
        for title, names in groups.items()
    }


class Place(NamedTuple):
    """Where a command is, and its line in the list of commands.

    Attributes:
        module: Module of this package that defines the command.
    """

    module: str
    name: str
    help: str


class LazyCommands(UserDict[str, Any]):
    """Commands of a group by their names; a module is imported when its command is looked up.

    Attributes:
        data: Name of a command -> its place, or the command itself.
    """

    def __getitem__(self, name: str) -> click.Command:
        found: Place | click.Command = self.data[name]
        if isinstance(found, click.Command):
            return found
        command: click.Command = getattr(import_module(f".{found.module}", __package__), found.name)
        command.short_help = found.help
        return command


class UnknownNameError(click.UsageError):
    """There is no such command or option, or a value is missing or too much."""

    def __init__(self, message: str, hint: str, ctx: click.Context | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:  # for copies
        return reduced(self, ctx=None, cmd=None)


class _OptionHints(click.Command):
    """Command with hints for unknown options, and a help that can be typed as it is shown."""

    def get_help(self, ctx: click.Context) -> str:
        """Return the help, with the program as the user calls it; completion is for its name."""
        text = super().get_help(ctx)
        return text if self.name == "completion" else as_called(text)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            ctx = error.ctx or ctx
            near = nearest_option(error.option_name, _option_names(ctx.command, ctx))
            fact = f"{ctx.command_path} has no option {error.option_name}."
            hint = f"{ctx.command_path} --help lists the options."
            hint = f"did you mean {near}? {hint}" if near else hint
            raise UnknownNameError(fact, hint, ctx) from None
        except click.BadOptionUsage as error:  # a switch with a value
            hint = f"{ctx.command_path} --help lists the options."
            raise UnknownNameError(error.message, hint, ctx) from None


def _options(command: click.Command, ctx: click.Context) -> list[click.Option]:
    return [one for one in command.get_params(ctx) if isinstance(one, click.Option)]


def _option_names(command: click.Command, ctx: click.Context) -> list[str]:
    options = _options(command, ctx)
    return [name for one in options for name in (*one.opts, *one.secondary_opts)]


def hidden_names(option: click.Option) -> tuple[str, ...]:
    return HIDDEN_NAMES.get(option.name or "", ())


_NUMBERS = (click.types.IntParamType, click.types.FloatParamType)


def _no_such_word(word: str, ctx: click.Context) -> UnknownNameError:
    """Return the error for a name with one dash; its end, which may be a value, is left out."""
    name = next(iter(re.findall(r"-[A-Za-z-]+=?", word)), word[:2])
    fact = f"{ctx.command_path} has no option {name}."
    options = _options(ctx.command, ctx)
    names = {n for one in options for n in (*one.opts, *hidden_names(one))}
    begun = max((n for n in names if word.startswith(n)), key=len, default="")
    near = nearest_option(name.rstrip("="), names - {begun})
    hint = f"did you mean {near}? " if near else ""
    if begun:
        hint += f"a value of {begun} follows a space: {begun} VALUE. "
    return UnknownNameError(fact, f"{hint}{ctx.command_path} --help lists the options.", ctx)


def _whole_words(parser: Any, ctx: click.Context) -> Any:
    """Let a parser read no name as something else.

    No name with one dash is a short option: `-ctx 512` is not `-c tx`. A value may follow its
    letter at once if it does not look like the rest of a name: `-c512`, `-mtiny.gguf`. No name of
    an option is the value of another one, `--keep -m tiny`, except after `=` or its letter.
    """
    match_short, process, take = (
        parser._match_short_opt, parser._process_opts, parser._get_value_from_state
    )  # fmt: skip
    n_words = 0  # after the one that is read

    def process_word(word: str, state: Any) -> None:
        nonlocal n_words
        n_words = len(state.rargs)
        process(word, state)

    def take_value(name: str, option: Any, state: Any) -> Any:
        word, is_attached = next(iter(state.rargs), None), len(state.rargs) > n_words
        is_option = word in parser._long_opt or word in parser._short_opt
        if option.obj._flag_needs_value or is_attached or not (word is None or is_option):
            return take(name, option, state)
        value = option.obj.make_metavar(ctx)
        fact = f"{name} of {ctx.command_path} needs a value"
        hint = f"write {name} {value}"
        if word and value == "TEXT" and name.startswith("--"):
            hint += f", or {name}={word} if this is the value"
        hint += f". {ctx.command_path} --help lists the options."
        raise UnknownNameError(f"{fact}, but {word} follows." if word else f"{fact}.", hint, ctx)

    def match_letters(word: str, state: Any) -> None:
        for i, letter in enumerate(word[1:], 2):
            option, value = parser._short_opt.get(f"-{letter}"), word[i:]
            if option and not option.takes_value:
                continue
            # `-hft...` is not `-h -f t...`
            wrong = r"[A-Za-z-]*(=.*)?" if i == 2 else ".*"
            if option and isinstance(option.obj.type, _NUMBERS):
                wrong = r"(?![-+.]?\d).*"
            is_wrong = value and re.fullmatch(wrong, value, re.DOTALL)
            if len(word) > 2 and (is_wrong or not option):
                raise _no_such_word(word, ctx)
            break
        match_short(word, state)

    parser._match_short_opt = match_letters
    parser._process_opts, parser._get_value_from_state = process_word, take_value
    return parser


def _of_earlier_variables() -> dict[str, str]:
    """Return what the environment sets by switches of earlier releases, by parameter."""
    given = {old: os.environ.get(f"GGUF_SPEC_{old.upper()}", "").lower() for old in RENAMED}
    words = {"1": 1, "true": 1, "yes": 1, "on": 1, "0": 2, "false": 2, "no": 2, "off": 2}
    return {row[0]: row[words[given[old]]] for old, row in RENAMED.items() if given[old] in words}


class Command(_OptionHints):
    """Command with its usual options first in the help, and with the hidden names of options.

    Attributes:
        usual: Parameters to show first; empty shows all options in one list.
        own_defaults: Parameters to which the section `default` of the config file does not apply.
        reads_config: Whether the config file has defaults for the command.
    """

    own_defaults: tuple[str, ...]
    usual: list[str]

    def __init__(
        self,
        name: str | None = None,
        *,
        usual: str = "",
        own_defaults: tuple[str, ...] = (),
        reads_config: bool = True,
        context_settings: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(name, context_settings=_SETTINGS | (context_settings or {}), **settings)
        self.usual, self.own_defaults = usual.split(), own_defaults
        self.reads_config = reads_config

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Return the context of a call; options that are not given take the user's defaults.

        Raises:
            ConfigFileError: The config file has a wrong key or value.
        """
        options = args[: args.index("--")] if "--" in args else args
        is_for_help = {"-h", "--help"} & set(options)  # which works with any config file
        if self.reads_config and not (extra.get("resilient_parsing") or is_for_help):
            from .config import defaults

            built_in = self.context_settings.get("default_map", {})
            extra["default_map"] = built_in | defaults(self) | _of_earlier_variables()
        args = [*self._as_named_now(options), *args[len(options) :]]
        context = super().make_context(info_name, args, parent, **extra)
        CommandGroup.context = context
        return context

    def _as_named_now(self, words: list[str]) -> list[str]:
        """Return options with the names of this release."""
        known = {one.name for one in self.params}
        flags = {
            f"--{old.replace('_', '-')}": [f"--{new.replace('_', '-')}", on]
            for old, (new, on, _) in RENAMED.items()
            if new in known and old not in known
        }
        return [now for word in words for now in flags.get(word, [word])]

    def make_parser(self, ctx: click.Context) -> Any:
        parser = super().make_parser(ctx)
        taken = {*_option_names(self, ctx)}
        for option in _options(self, ctx):
            names = [name for name in hidden_names(option) if name not in taken]
            if names:
                shown, option.opts = option.opts, names
                try:
                    option.add_to_parser(parser, ctx)
                finally:
                    option.opts = shown
        return _whole_words(parser, ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.usual:
            super().format_options(ctx, formatter)
            return
        found = ((one.name or "", one.get_help_record(ctx)) for one in _options(self, ctx))
        records = {name: record for name, record in found if record}
        for title, names in {_COMMON: self.usual, **_groups()}.items():
            rows = [records.pop(name) for name in names if name in records]
            if rows:
                with formatter.section(f"{title} options"):
                    formatter.write_dl(rows)
        with formatter.section(f"{_REST} options"):
            formatter.write_dl(list(records.values()))


class CommandGroup(_OptionHints, click.Group):
    """Group that records the command to run, and has hints for unknown commands.

    Attributes:
        running: The command of this process; None before it is known.
        context: Context of the command; None before its arguments are read.
    """

    command_class: type[click.Command] | None = Command
    root: ClassVar[CommandGroup]
    running: click.Command | None = None
    context: click.Context | None = None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        found = super().get_command(ctx, cmd_name)
        if found or ctx.parent or cmd_name not in SHORT_COMMANDS:
            return found
        command: click.Command = self
        for word in SHORT_COMMANDS[cmd_name]:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not isinstance(self.commands, LazyCommands):
            super().format_commands(ctx, formatter)
            return
        found = sorted(self.commands.data.items())
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help) for name, one in found if isinstance(one, Place)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        typed = args[0]
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            if self.get_command(ctx, typed):
                raise
            near = nearest_command(typed, [path for path, _ in self.paths()])
            short = SHORT_COMMANDS.get(typed)
            if short and short[0] == ctx.info_name:
                near = short[1]  # such as remove for rm
            hint = f"{ctx.command_path} --help lists the commands."
            hint = f"did you mean {ctx.command_path} {near}?" if near else hint
            raise UnknownNameError(f"there is no command {typed!r}.", hint, ctx) from error
        CommandGroup.running = found[1]
        return found

    def paths(self) -> Iterator[tuple[str, click.Command]]:
        """Yield all commands below this group, with the names that lead there."""
        for name, command in self.commands.items():
            yield name, command
            if isinstance(command, CommandGroup):
                yield from ((f"{name} {rest}", below) for rest, below in command.paths())
