"""Terminal interface of the chat: line editor with history, streamed answers, status line."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style
from prompt_toolkit.utils import is_dumb_terminal

from ...options import well_formed
from ..command import CONTROL, as_called
from ..completion import names_from
from ..output import LateBar, Thoughts, logprob_lines, no_echo, speed, styled
from .kept import history_file
from .loop import COMMANDS, OF_LOADING, RULES, SWITCHES, PipeUI, is_open_block, ways_on
from .markdown import Markdown, Piece, Wrap

if TYPE_CHECKING:
    from ... import Chat, Turn
    from ... import Completion as Answer
    from ..options import AnyLLM

_PROMPT = "> "
# Command -> function that returns its possible arguments with a given beginning.
_WORDS: dict[str, Callable[[str], Iterable[str]]] = {
    "/draft": lambda _: SWITCHES,
    "/set": lambda _: [*RULES, *OF_LOADING, "overflow"],
    "/model": names_from,
    "/think": lambda _: SWITCHES,
}


class TerminalUI(PipeUI):
    """Chat interface at a terminal."""

    def __init__(self, llm: AnyLLM, chat: Chat, show_draft: bool, keep_history: bool) -> None:
        super().__init__(llm, chat, show_draft)
        self._dumb = is_dumb_terminal()
        self._history: _KeptHistory | None = None
        self._session: PromptSession[str] | None = None
        if not self._dumb:
            if keep_history:
                self._history = _KeptHistory(history_file())
            self._session = _session(self._status, self._history or InMemoryHistory())
        self._has_told = False
        self._error: BaseException | None = None

    def begin(self, loaded: str) -> None:
        draft = f", with the draft {self.llm.draft_name}" if self.llm.draft_name else ""
        self.say(f"{self.llm.name}{draft}. /help lists the commands, Ctrl-D leaves.")
        super().begin(loaded)

    def read(self) -> str | None:
        """Return the typed text, or None for Ctrl-D.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed with an empty line.
        """
        while True:
            try:
                line = self._edit(self._session) if self._session else self._typed()
                if self._history and self._history.problem and not self._has_told:
                    self._has_told = True
                    self.say(self._history.problem)
                return well_formed(line)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if self._session is None:
                    click.echo()
                elif self._session.default_buffer.text:
                    continue
                raise

    def _edit(self, session: PromptSession[str]) -> str:
        try:
            return session.prompt(pre_run=self._leave)
        finally:
            self.terminal.close()
            error, self._error = self._error, None
            if error:  # replaces the error of a closed terminal
                raise error

    def allows(self) -> bool:
        """Ask; what was typed before the question is no answer to it."""
        self.terminal.close()
        if sys.platform != "win32":
            import termios

            with contextlib.suppress(termios.error, OSError, ValueError):  # no terminal any more
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        try:
            return input("Allow this call? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:
            return False

    def _typed(self) -> str:
        self.terminal.close()
        return input(_PROMPT)

    def interrupt(self, error: BaseException) -> None:
        """Let `read` raise an error: the editor leaves its event loop in an orderly way."""
        if self._session is None:
            raise error
        self._error, loop = error, self._session.app.loop
        if loop:  # without one it has not begun, or has ended
            loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        app = self._session.app if self._session else None
        if self._error and app and app.future and not app.future.done():
            app.exit(result="")

    def say(self, text: str) -> None:
        self._tell([(as_called(text), "dim")])

    def fail(self, message: str, hint: str) -> None:
        error = [("Error: ", "red"), (f"{message}\n", "")]
        self._tell([*error, ("Hint: ", "dim"), (as_called(hint), "")])

    def answer(self, turn: Turn, bar: LateBar, seen: Callable[[], object]) -> None:
        plain = self._dumb or self._out.no_color or self._out.color_system is None
        markdown = None if self.show_draft or plain else Markdown()
        wrap = None if self._dumb else Wrap(lambda: self._out.width)
        self.terminal.enter_context(no_echo(reads_lines=self._dumb))
        try:
            thoughts = Thoughts(self.show_thinking)
            for chunk in turn:
                bar.remove()
                self._flow(thoughts.before(chunk), None, wrap)
                pieces = styled(chunk, self.show_draft)
                shown = [(text.translate(CONTROL), style) for text, style in pieces]
                self._flow(shown, markdown, wrap)
                seen()
        finally:
            bar.remove()
            rest = markdown.finish() if markdown else []
            self._write([*wrap.feed(rest), *wrap.finish()] if wrap else rest)
            if not turn.result.text.endswith("\n"):
                self._write([("\n", "")])
        result = turn.result
        if result.logprobs:
            click.echo(logprob_lines(self.llm, result), err=True)
        if why := _ending(result, self.llm, self.chat):
            self.say(why)
        self._write([(f"{self._status()}\n" if self._dumb else "", "dim"), ("\n", "")])

    def _tell(self, pieces: Sequence[Piece]) -> None:
        pieces = [*pieces, ("\n", "")]
        self._write(pieces if self._dumb else Wrap(lambda: self._out.width).feed(pieces))

    def _flow(self, pieces: Iterable[Piece], markdown: Markdown | None, wrap: Wrap | None) -> None:
        if markdown:
            pieces = [styled for text, _ in pieces for styled in markdown.feed(text)]
        self._write(wrap.feed(pieces) if wrap else pieces)

    def _write(self, pieces: Iterable[Piece]) -> None:
        with self._out:  # one write for all pieces
            for text, style in pieces:
                if text:
                    shown = text.translate(CONTROL)
                    self._out.out(shown, style=style or None, highlight=False, end="")

    def _status(self) -> str:
        return "\n".join(textwrap.wrap(status(self.llm, self.chat), max(20, self._out.width - 1)))


def status(llm: AnyLLM, chat: Chat) -> str:
    """Return the status line: speed of the last answer, and context usage."""
    last = chat.last
    if last is None:
        return f"context of {llm.n_ctx:,} tokens"
    s = last.stats
    known = bool(chat.messages) and chat.messages[-1]["content"] == last.text  # not undone
    used = f"{s.n_prompt + s.n_generated:,} of {llm.n_ctx:,}" if known else f"of {llm.n_ctx:,}"
    return f"{speed(s)}, context {used}"


def _ending(result: Answer, llm: AnyLLM, chat: Chat) -> str:
    if result.finish_reason == "cancelled":
        return "(stopped)"
    n, n_prompt, n_ctx = result.stats.n_generated, result.stats.n_prompt, llm.n_ctx
    if result.finish_reason == "length" and n_prompt + n >= n_ctx:
        ways = ", ".join([*ways_on(chat, n_ctx, llm.n_ctx_limit), "or /undo, /reset"])
        return f"(the context is full: {ways})"
    if result.finish_reason == "length":
        return f"(cut after {n:,} tokens: /set max_tokens N changes the limit)"
    return "" if result.text.strip() else "(the answer is empty)"


class _KeptHistory(FileHistory):
    """Input history in a file that only its owner can read.

    If the file cannot be written, the chat continues without it.

    Attributes:
        problem: Message about a file error, to show while no line is being edited.
    """

    def __init__(self, path: Path) -> None:
        self.problem = ""
        self._path = path
        super().__init__(path)

    def load_history_strings(self) -> Iterable[str]:
        with self._never_fatal():
            return list(super().load_history_strings())
        return []

    def store_string(self, string: str) -> None:
        with self._never_fatal():
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._path.touch(mode=0o600)
            self._path.chmod(0o600)
            super().store_string(string)

    @contextlib.contextmanager
    def _never_fatal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            why = error.strerror or error
            self.problem = f"Note: typed lines are not saved: {self._path}: {why}."


def _session(status_line: AnyFormattedText, kept: History) -> PromptSession[str]:
    def is_command() -> bool:
        return session.default_buffer.text.startswith("/")

    session: PromptSession[str] = PromptSession(
        [("bold", _PROMPT)],
        multiline=True,
        prompt_continuation=" " * len(_PROMPT),
        history=kept,
        key_bindings=_keys(),
        completer=_Commands(),
        complete_while_typing=Condition(is_command),
        bottom_toolbar=status_line,
        enable_suspend=True,
        style=Style.from_dict({"bottom-toolbar": "noreverse dim"}),
    )
    return session


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        has_backslash = buffer.document.text_before_cursor.endswith("\\")
        if has_backslash:
            buffer.delete_before_cursor()
        if has_backslash or is_open_block(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


class _Commands(Completer):
    """Completer for chat commands and their arguments."""

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        name, space, rest = document.text_before_cursor.partition(" ")
        if not space:
            for command, (_, text) in COMMANDS.items():
                if name and command.startswith(name):
                    yield Completion(command, -len(name), display_meta=text)
        elif name in _WORDS:
            for word in _WORDS[name](rest):
                if word.startswith(rest):
                    yield Completion(word, -len(rest))
        elif name in ("/save", "/load", "/file"):
            files = PathCompleter(expanduser=True)
            yield from files.get_completions(Document(rest), complete_event)
