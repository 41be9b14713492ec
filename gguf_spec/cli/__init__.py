"""Command line interface, built on the public API. Answers go to stdout, all else to stderr."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

import click

import gguf_spec

from . import signals
from .command import CONTROL, CommandGroup, LazyCommands, Place, UnknownNameError, as_called

__all__ = ["cli", "main"]


COMMANDS = {
    "generate": Place("generate", "generate", "Continue a prompt, or answer it."),
    "batch": Place("batch", "batch", "Answer a file of requests."),
    "embed": Place("embed", "embed", "Compute the embeddings of texts."),
    "edit": Place("edit", "edit", "Change a text file as an instruction says."),
    "run": Place("run", "run", "Chat with MODEL, or answer PROMPT, as ollama does."),
    "help": Place("run", "help_", "Show the help of a command."),
    "verify": Place("verify", "verify", "Check that drafts do not change the text."),
    "tune": Place("doctor", "tune", "Measure the cost of the models on this machine."),
    "doctor": Place("doctor", "doctor", "Check the machine and the models."),
    "bench": Place("bench", "bench", "Compare the speed with plain decoding."),
    "chat": Place("chat", "chat", "Chat with a model."),
    "models": Place("models", "models", "List, download and remove models."),
    "serve": Place(
        "serve", "serve", "Serve the APIs of OpenAI, Anthropic and Ollama, and a chat page."
    ),
    "launch": Place("launch", "launch", "Run an agent with a model of this machine."),
    "kept": Place("kept", "kept", "List and remove prompts that are kept on disk."),
    "config": Place("config", "config", "Show or edit the defaults of options."),
    "worker": Place("serve", "worker", "Lend this machine to a model on another one."),
    "ps": Place("serve", "ps", "Show the models that running servers hold."),
    "uninstall": Place("doctor", "uninstall", "Remove what this program has written."),
    "completion": Place("completion", "completion", "Print a script for shell completion."),
}


@click.group(
    cls=CommandGroup,
    commands=LazyCommands(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="gguf-spec COMMAND --help shows the options of a command. Short names: pull, list (ls), "
    "show and rm are those of models.",
)
@click.version_option(
    gguf_spec.__version__, "-V", "--version", prog_name="gguf-spec", message="%(prog)s %(version)s"
)
def cli() -> None:
    """Run quantised GGUF models faster, without changing their text.

    \b
    Examples:
      gguf-spec generate "Why is the sky blue?"
      cat notes.txt | gguf-spec generate "Summarise:"
      gguf-spec generate -m target.gguf -d draft.gguf "Why is the sky blue?" --stats
      gguf-spec chat
      gguf-spec edit app.py "return 0 for no items in the function total"
      gguf-spec models recommend
      gguf-spec serve
      gguf-spec verify
      gguf-spec tune
      gguf-spec bench --quick
      gguf-spec doctor
    """


CommandGroup.root = cli


def words() -> list[str]:
    """Return the arguments; without any, a menu at a terminal gives them."""
    if sys.argv[1:] or not all(one and one.isatty() for one in (sys.stdin, sys.stdout)):
        return sys.argv[1:]
    from .run import menu

    chosen = menu()
    return sys.exit(0) if chosen is None else chosen


def main() -> None:
    """Run the command line and exit.

    Exit codes: 0 for success, 1 for errors of gguf-spec, 2 for wrong usage, 130 after Ctrl-C, 129
    and 143 after the signals HUP and TERM.
    """
    _set_up()
    try:
        code = cli.main(words(), prog_name="gguf-spec", standalone_mode=False)
        if sys.stdout:
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except UnknownNameError as error:
        _fail(error.message, error.hint, 2)
    except click.UsageError as error:
        from .error_text import usage_message_and_hint

        _fail(*usage_message_and_hint(error), 2)
    except click.ClickException as error:
        _fail(error.format_message(), "check the file and its permissions.", 1)
    except gguf_spec.errors.GgufSpecError as error:
        flags = [a for a in sys.argv if a == "--verbose" or (a[:2] == "-v" and not a.strip("-v"))]
        if sum(1 if a == "--verbose" else len(a) - 1 for a in flags) > 1:
            raise
        from .error_text import message_and_hint

        is_usage = isinstance(error, gguf_spec.errors.InvalidOptionError)
        _fail(*message_and_hint(error), 2 if is_usage else 1)
    except (OSError, SystemExit) as error:
        _end_of_output(error)
    except MemoryError:
        _fail("there is not enough memory.", "set a smaller --ctx or use a smaller model.", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _set_up() -> None:
    signals.start()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # no encoding errors on terminals without UTF-8
    if {"-h", "--help", "-V", "--version"} & set(sys.argv):  # `logging` is slow to import
        return
    import logging

    class Handler(logging.Handler):
        """Writes warnings as notes, and errors as they are."""

        def emit(self, record: logging.LogRecord) -> None:
            text = as_called(self.format(record).translate(CONTROL))
            click.echo(f"Note: {text}" if record.levelno == logging.WARNING else text, err=True)

    logging.getLogger("gguf_spec").addHandler(Handler(logging.WARNING))


def _end_of_output(error: OSError | SystemExit) -> NoReturn:
    """End because the output cannot be written.

    Without a message where its reader is gone, as `head`: as the signal PIPE does. That has no
    effect before, because a connection that the other side has closed must not end a server.
    """
    cause = error.__context__ if isinstance(error, SystemExit) else error
    is_unread = isinstance(cause, BrokenPipeError)
    if isinstance(error, SystemExit) and not is_unread:  # click and rich raise it for that only
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit must not fail again
    if is_unread and hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGPIPE)
    fact = f"the answer cannot be written: {getattr(cause, 'strerror', None)}."
    _fail(fact, "free disk space, or write it to another disk.", 1)


def _fail(message: str, hint: str, code: int) -> NoReturn:
    for title, text in (("Error", message), ("Hint", as_called(hint))):
        lines = (line.strip() for line in text.translate(CONTROL).splitlines())
        click.echo(f"{title}: {' '.join(lines)}", err=True)
    sys.exit(code)
