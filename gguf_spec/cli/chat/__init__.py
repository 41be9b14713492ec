"""`gguf-spec chat`: hold a conversation at a terminal or through a pipe."""

from __future__ import annotations

import contextlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from ..command import Command
from ..images import check_images, image_option
from ..options import (
    model_options,
    sampling_options,
    speculation_options,
    think_options,
    to_speculation,
)
from ..progress import PromptBar
from ..render import CONTROL, answer_json, logprob_lines, show_chunk

if TYPE_CHECKING:
    from ... import LLM, Chat, Turn
    from .loop import ChatUI

__all__ = ["chat"]


_USUAL = (
    "model", "draft", "system", "max_tokens", "temperature", "seed", "ctx", "load", "save",
    "show_draft",
)  # fmt: skip


# The default length limit is larger than that of `generate`.
@click.command(
    cls=Command,
    usual=_USUAL,
    context_settings={"default_map": {"max_tokens": 1024}},
)
@click.option("-s", "--system", help="System message.")
@image_option
@partial(model_options, chat=True)
@speculation_options
@sampling_options
@click.option(
    "--overflow",
    type=click.Choice(["error", "shift"]),
    default="error",
    help="If the context is full: error, or shift (drop the oldest turns).",
)
@click.option(
    "--load",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Continue a saved conversation.",
)
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Save the conversation at the end.",
)
@click.option("--history/--no-history", default=True, help="Save the typed lines for later chats.")
@think_options
@click.option("--show-draft", is_flag=True, help="Show accepted draft tokens in green.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    envvar="GGUF_SPEC_JSON",
    help="Read one turn per line, and print one JSON object for each.",
)
def chat(**options: Any) -> int:
    """Chat with a model. In a pipe each line is a turn.

    \b
    Examples:
      gguf-spec chat
      gguf-spec chat -m smollm2 --system "Answer briefly."
      gguf-spec chat --save talk.session
      gguf-spec chat --load talk.session --overflow shift
      printf '%s\\n' "Tell me a story about a fox." "And of a crow." | gguf-spec chat --json
    In the chat, /help lists the commands. A message of several lines begins and ends with \"\"\".
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    from .loop import ChatLoop
    from .models import ChatModels
    from .saved import load, save
    from .signals import Signals

    _check_place(options["save"])
    check_images(options["image"], options)
    with ChatModels(options, to_speculation(options)) as models:
        conversation = models.llm.chat(
            sampling=models.sampling, overflow=options["overflow"], think=options["think"]
        )
        loaded = load(conversation, options["load"]) if options["load"] else ""
        if options["system"]:  # replaces the system message of the loaded conversation
            conversation.system = options["system"]
        if conversation.note:
            click.echo(f"Note: {conversation.note}", err=True)
        in_pipe = options["as_json"] or not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout))
        face = (_pipe if in_pipe else _screen)(models.llm, conversation, options)
        signals = Signals(keep_on=not in_pipe)
        talk = ChatLoop(models, conversation, face, signals, options["save"] or options["load"])
        talk.images = [*options["image"]]
        with signals:
            try:
                face.begin(loaded)
                talk.follow()
            finally:
                if options["save"] and talk.chat.messages:
                    said = save(talk.chat, options["save"])
                    with contextlib.suppress(OSError):  # the terminal may be closed
                        click.echo(said.translate(CONTROL), err=True)
        return signals.code or face.code


class PipeUI:
    """Chat interface without a terminal: one turn per line, answers on stdout, rest on stderr."""

    def __init__(self, llm: LLM, show_draft: bool, as_json: bool) -> None:
        from rich.console import Console

        self.show_draft, self.show_thinking, self.code = show_draft, False, 0
        self._llm, self._as_json, self._out = llm, as_json, Console(highlight=False, soft_wrap=True)

    def use(self, llm: LLM, _chat: Chat) -> None:
        """Continue with another model."""
        self._llm = llm

    def begin(self, loaded: str) -> None:
        """Show the description of the loaded conversation, if any."""
        if loaded:
            self.say(loaded)

    def read(self) -> str | None:
        """Return the next line of stdin, or None after the last one."""
        line = sys.stdin.buffer.readline() if sys.stdin else b""
        return line.decode("utf-8", errors="replace").rstrip("\r\n") if line else None

    def interrupt(self, error: BaseException) -> None:
        """Raise an error."""
        raise error

    def say(self, text: str) -> None:
        """Show the result of a command."""
        click.echo(text.translate(CONTROL), err=True)

    def fail(self, message: str, hint: str) -> None:
        """Show an error, and set the exit code to 1."""
        self.code = 1
        message, hint = (" ".join(text.split()) for text in (message, hint))
        self.say(f"Error: {message}\nHint: {hint}")
        if self._as_json:  # the output has one object per input line
            self._print({"error": message, "hint": hint})

    def answer(self, turn: Turn, bar: PromptBar) -> None:
        """Write an answer while it is generated."""
        try:
            for chunk in turn:
                bar.remove()
                if not self._as_json:
                    show_chunk(self._out, chunk, self.show_draft)
        finally:
            bar.remove()
            result = turn.result
            if not self._as_json and not result.text.endswith("\n"):
                click.echo()
        if self._as_json:
            with_logprobs = bool(result.logprobs)
            self._print(
                {
                    **answer_json(self._llm, result, self._llm.speculation.k, with_logprobs),
                    "dropped": turn.dropped,
                }
            )
        elif result.logprobs:
            click.echo(logprob_lines(self._llm, result), err=True)

    def _print(self, data: dict[str, Any]) -> None:
        click.echo(json.dumps(data, ensure_ascii=False, allow_nan=False))
        sys.stdout.flush()


def _pipe(llm: LLM, _conversation: Chat, options: dict[str, Any]) -> ChatUI:
    return PipeUI(llm, options["show_draft"], options["as_json"])


def _screen(llm: LLM, conversation: Chat, options: dict[str, Any]) -> ChatUI:
    from .terminal import TerminalUI  # imported late: prompt_toolkit is slow to import

    face = TerminalUI(llm, conversation, options["show_draft"], options["history"])
    face.show_thinking = not options["hide_thinking"]
    return face


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _check_place(path: Path | None) -> None:
    """Check before the conversation that it can be saved at `path`.

    Raises:
        SessionError: `path` is a folder, or its folder does not exist.
    """
    if path is None:
        return
    from ...errors import SessionError

    if path.is_dir() or not path.absolute().parent.is_dir():
        raise SessionError(
            f"{path} cannot be written: "
            f"{'it is a folder' if path.is_dir() else 'its folder does not exist'}.",
            "name a file in an existing folder.",
        )
