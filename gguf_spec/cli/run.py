"""`gguf-spec run` and `gguf-spec help`: commands for users of Ollama."""

from __future__ import annotations

import re
import shlex
import sys
from typing import Any

import click

from .chat import chat
from .command import Command, CommandGroup, as_called
from .generate import generate


class _Run(Command):
    """Command that becomes `generate` or `chat`, with the options of that command."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        is_for_help = {"-h", "--help"} & set(args)
        before, rest = ([], []) if is_for_help else _split(args)
        if not rest or re.match(r"-.", rest[0]):  # no model has a name like an option
            words = ["--help"] if is_for_help else rest[:1]
            return super().make_context(info_name, words, parent, **extra)
        words = ["--model", rest[0], *before, *rest[1:]]
        params = generate.make_context(info_name, list(words), resilient_parsing=True).params
        has_prompt = params["prompt"] or params["prompt_option"] or params["file"]
        alone = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        command = chat if alone and not has_prompt else generate
        CommandGroup.running = command
        return command.make_context(info_name, words, parent, **extra)


def _split(args: list[str]) -> tuple[list[str], list[str]]:
    options = {one.name: one for one in (*chat.params, *generate.params) if one.name != "model"}
    both = Command("run", params=[one for one in options.values() if isinstance(one, click.Option)])
    parser = both.make_parser(click.Context(both, resilient_parsing=True))
    parser.allow_interspersed_args, parser.ignore_unknown_options = False, True
    _, rest, _ = parser.parse_args(args=list(args))
    before = args[: len(args) - len(rest)]
    return [word for word in before if word != "--"], rest


@click.command(
    cls=_Run,
    reads_config=False,
    options_metavar="MODEL [PROMPT] [OPTIONS]",
)
def run() -> None:
    """Chat with MODEL at a terminal; with a PROMPT or in a pipe, answer it.

    The options are those of chat, or of generate if there is a prompt.

    \b
    Examples:
      gguf-spec run smollm2
      gguf-spec run smollm2 "Why is the sky blue?" --temp 0
      cat notes.txt | gguf-spec run smollm2 "Summarise:"
    """
    raise click.UsageError(as_called("MODEL is missing; gguf-spec models list shows the names."))


@click.command("help", cls=Command, reads_config=False)
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of a command, as COMMAND --help does.

    \b
    Examples:
      gguf-spec help generate
      gguf-spec help models pull
    """
    root = ctx.find_root()
    root.command.main([*words, "--help"], prog_name=root.info_name, standalone_mode=False)


# Key -> what it does, and the words of the command.
_MENU = {
    "c": ("chat with a model", ["chat"]),
    "e": ("change a file", ["edit", "FILE", "INSTRUCTION"]),
    "s": ("serve a page and the usual APIs", ["serve"]),
    "a": ("let an agent use a model", ["launch", "NAME"]),
    "m": ("models: list, download", ["models", "list"]),
    "h": ("all commands", ["--help"]),
}


def menu() -> list[str] | None:
    """Ask at a terminal what to do; return the words of a command, or None to do nothing."""
    for key, (what, words) in _MENU.items():
        shown = as_called(" ".join(["gguf-spec", *words]))
        click.echo(f"  {click.style(key, bold=True)}  {what:<34}{click.style(shown, dim=True)}")
    click.echo("Press a key, or another one to leave. ", nl=False)
    key = click.getchar().lower()
    click.echo()
    if key not in _MENU:
        return None
    words = _MENU[key][1]
    if key == "e":
        words = ["edit", click.prompt("File"), click.prompt("What to change")]
    elif key == "a":
        words = ["launch", click.prompt("Which one (claude, codex, opencode, pi, aider)")]
    click.secho(as_called(f"$ gguf-spec {shlex.join(words)}"), dim=True)
    return words
