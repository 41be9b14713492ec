"""`gguf-spec chat`: hold a conversation at a terminal or through a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..command import CONTROL, Command, file_option, flag, option
from ..generate import check_images, image_option
from ..options import (
    load_models,
    model_options,
    sampling_options,
    speculation_options,
    think_options,
    to_sampling,
    to_speculation,
)
from ..output import PromptBar, answer_json, logprob_lines, print_json, styled, write

if TYPE_CHECKING:
    from ... import LLM, Chat, Sampling, Speculation, Turn
    from .terminal import TerminalUI

__all__ = ["chat"]


_USUAL = "model draft system max_tokens temperature seed ctx load save show_draft"
# The default length limit is larger than that of `generate`.
_SETTINGS = {"default_map": {"max_tokens": 1024}}


@click.command(cls=Command, usual=tuple(_USUAL.split()), context_settings=_SETTINGS)
@option("-s --system", "System message.")
@image_option
@partial(model_options, chat=True)
@speculation_options
@sampling_options
@option(
    "--overflow",
    "If the context is full: error, or shift (drop the oldest turns).",
    type=click.Choice(["error", "shift"]),
    default="error",
)
@file_option("--load", "Continue a saved conversation.")
@file_option("--save", "Save the conversation at the end.")
@option("--history/--no-history", "Save the typed lines for later chats.", default=True)
@think_options
@flag("--show-draft", "Show accepted draft tokens in green.")
@flag(
    "--json as_json",
    "Read one turn per line, and print one JSON object for each.",
    envvar="GGUF_SPEC_JSON",
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
    from .loop import ChatLoop, Signals, load, save

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
        streams = (sys.stdin, sys.stdout)
        at_terminal = all(stream is not None and stream.isatty() for stream in streams)
        in_pipe = options["as_json"] or not at_terminal
        ui: PipeUI | TerminalUI
        if in_pipe:
            ui = PipeUI(models.llm, options["show_draft"], options["as_json"])
        else:
            from .terminal import TerminalUI  # imported late: prompt_toolkit is slow to import

            ui = TerminalUI(models.llm, conversation, options["show_draft"], options["history"])
            ui.show_thinking = not options["hide_thinking"]
        signals = Signals(keep_on=not in_pipe)
        talk = ChatLoop(models, conversation, ui, signals, options["save"] or options["load"])
        talk.images = [*options["image"]]
        with signals:
            try:
                ui.begin(loaded)
                talk.follow()
            finally:
                if options["save"] and talk.chat.messages:
                    message = save(talk.chat, options["save"])
                    with contextlib.suppress(OSError):  # the terminal may be closed
                        click.echo(message.translate(CONTROL), err=True)
        return signals.code or ui.code


class ChatModels:
    """A target and its draft.

    Attributes:
        llm: The loaded models.
        sampling: Sampling options for the target: those of the command, and where it has none those
            of models.yaml.
    """

    def __init__(self, options: dict[str, Any], speculation: Speculation) -> None:
        """Load the models of the options."""
        self._options, self._speculation = options, speculation
        self.sampling: Sampling = to_sampling(options)
        self.llm: LLM = self._load(options)

    def _load(self, options: dict[str, Any], cancelled: Callable[[], bool] | None = None) -> LLM:
        draft = options["draft"] if self._speculation.k else "none"
        return load_models(options, draft, self._speculation, cancelled)

    def switch(self, name: str, cancelled: Callable[[], bool]) -> None:
        """Load another target, and close the old one.

        A draft model of the old target is not kept: its place takes the best one for the new
        target. If both targets do not fit into memory, the old one is closed first.

        Args:
            name: The target.
            cancelled: Returns whether the loading is to end, which keeps the old target.

        Raises:
            GgufSpecError: The model cannot be loaded. The old one is still there.
        """
        from ...errors import NotEnoughMemoryError
        from ...models import path

        path(name, self._options["models_file"])  # raises before anything is loaded
        own = {"model": name, "mmproj": None, "lora": (), "draft_lora": ()}
        old, options = self.llm, self._options | own
        if options["draft"] not in ("auto", "mtp", "ngram", "none"):
            options["draft"] = "auto"
        sampling = to_sampling(options)
        try:
            self.llm = self._load(options, cancelled)
        except NotEnoughMemoryError:
            old.close()
            try:
                self.llm = self._load(options, cancelled)
            except BaseException:
                self.llm = self._load(self._options)
                raise
        old.close()
        self._options, self.sampling = options, sampling

    def __enter__(self) -> ChatModels:
        return self

    def __exit__(self, *_: object) -> None:
        self.llm.close()


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
                    write(self._out, styled(chunk, self.show_draft))
        finally:
            bar.remove()
            result = turn.result
            if not self._as_json and not result.text.endswith("\n"):
                click.echo()
        if self._as_json:
            k, with_logprobs = self._llm.speculation.k, bool(result.logprobs)
            data = answer_json(self._llm, result, k, with_logprobs)
            self._print(data | {"dropped": turn.dropped})
        elif result.logprobs:
            click.echo(logprob_lines(self._llm, result), err=True)

    def _print(self, data: dict[str, Any]) -> None:
        print_json(data)
        sys.stdout.flush()


def _check_place(path: Path | None) -> None:
    """Check before the conversation that it can be saved at `path`.

    Raises:
        SessionError: `path` is a folder, or its folder does not exist.
    """
    if path is None:
        return
    from ...errors import SessionError

    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "it is a folder" if path.is_dir() else "its folder does not exist"
        fact = f"{path} cannot be written: {why}."
        raise SessionError(fact, "name a file in an existing folder.")
