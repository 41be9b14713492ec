"""Input loop of the chat: messages to the model, and commands, which begin with a slash."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...errors import GgufSpecError, SessionError
from ...models import format_bytes
from ..error_text import in_command, message_and_hint
from ..progress import PromptBar
from ..render import stats_lines
from .thinking import think

if TYPE_CHECKING:
    from ... import LLM, Chat, Sampling, Speculation, Turn

# Command -> (argument, help text). `ChatLoop` has a method for each command.
COMMANDS = {
    "/help": ("", "show this help"),
    "/system": ("[TEXT]", "show or set the system message; - for none"),
    "/reset": ("", "remove all messages except the system message"),
    "/undo": ("", "remove the last question and its answer"),
    "/retry": ("", "answer the last question again, with another seed"),
    "/stats": ("", "show the statistics of the last answer"),
    "/draft": ("[on|off|show|hide]", "switch speculation, or the colour of accepted drafts"),
    "/think": ("[on|off|show|hide]", "switch reasoning, or its display"),
    "/save": ("[FILE]", "save the conversation and the caches of both models"),
    "/load": ("FILE", "continue a saved conversation"),
    "/quit": ("", "leave the chat, as Ctrl-D does"),
}
# Arguments of /draft.
DRAFT = ("on", "off", "show", "hide")
_KEYS = """
Enter sends the message. For a new line press Alt-Enter, or Enter after a backslash. \
Pasted text stays one message.
Ctrl-C stops an answer and keeps its text. The arrow keys show earlier lines.
A line that begins with a space is sent unchanged, even with a slash."""
_COMMAND = re.compile(r"(/[A-Za-z?]*)(?:\s+(.*))?", re.DOTALL)  # does not match /etc/hosts


class ChatUI(Protocol):
    """User interface of a chat.

    Attributes:
        show_draft: Whether accepted draft tokens are coloured.
        show_thinking: Whether reasoning is shown.
        code: Exit code of the program, unless a signal ends the chat.
    """

    show_draft: bool
    show_thinking: bool
    code: int

    def begin(self, loaded: str) -> None:
        """Show the start of the chat.

        Args:
            loaded: Description of the loaded conversation; empty for none.
        """

    def read(self) -> str | None:
        """Wait for a line and return it; return None at the end of the input."""

    def say(self, text: str) -> None:
        """Show the result of a command."""

    def fail(self, message: str, hint: str) -> None:
        """Show an error and a hint."""

    def answer(self, turn: Turn, bar: PromptBar) -> None:
        """Show an answer while it is generated; remove `bar` before its first text."""


class ChatLoop:
    """Loop that processes input lines until the input ends or a line is /quit."""

    def __init__(
        self,
        llm: LLM,
        chat: Chat,
        face: ChatUI,
        signals: Signals,
        sampling: Sampling,
        file: Path | None,
    ) -> None:
        """Create the loop; /save without an argument writes to `file`."""
        self._llm, self._chat, self._face, self._signals, self._sampling, self._file = (
            llm,
            chat,
            face,
            signals,
            sampling,
            file,
        )
        self._speculation: Speculation = llm.speculation
        self._n_retries, self._leave = 0, False

    def follow(self) -> None:
        """Process lines until the input ends; an error aborts only the current line.

        Raises:
            SystemExit: A signal requested the end of the program.
        """
        while not self._leave:
            try:
                line = self._signals.wait(self._face.read)
                if line is None:
                    return
                self._do(line)
            except GgufSpecError as error:
                self._face.fail(*message_and_hint(error))
            except KeyboardInterrupt:
                self._face.say("Ctrl-D leaves the chat, /help lists the commands.")

    def _do(self, line: str) -> None:
        command, text = _COMMAND.fullmatch(line.rstrip()), line.strip()
        if not command:
            if text:
                self._n_retries = 0
                self._answer(
                    lambda bar: self._chat.stream(
                        text, speculation=self._speculation, on_prompt=bar
                    )
                )
            return
        name, rest = command[1].lower(), (command[2] or "").strip()
        if name not in COMMANDS:
            close = difflib.get_close_matches(name, COMMANDS, 1) or [
                one for one in COMMANDS if len(name) > 1 and one.startswith(name)
            ]
            hint = f"did you mean {close[0]}?" if close else "/help lists them."
            self._face.fail(
                f"there is no command {name}.",
                f"{hint} Begin the line with a space to send it to the model.",
            )
        elif rest and not COMMANDS[name][0]:
            self._face.fail(
                f"{name} has no argument.", "begin the line with a space to send it to the model."
            )
        else:
            getattr(self, f"_{name[1:]}")(rest)

    def _answer(self, start: Callable[[PromptBar], Turn]) -> None:
        bar = PromptBar()
        with self._signals.open(lambda: start(bar)) as turn:
            if turn.dropped:
                self._face.say(
                    "Note: the context was full, "
                    f"so the oldest {turn.dropped} messages were dropped."
                )
            self._face.answer(turn, bar)

    def _help(self, _rest: str) -> None:
        rows = [(f"{name} {argument}", text) for name, (argument, text) in COMMANDS.items()]
        width = max(len(left) for left, _ in rows)
        self._face.say("\n".join([*(f"{left:<{width}}  {text}" for left, text in rows), _KEYS]))

    def _system(self, rest: str) -> None:
        if rest:
            self._chat.system = None if rest == "-" else rest
            self._face.say("The system message applies from the next answer on.")
        else:
            self._face.say(self._chat.system or "There is no system message.")

    def _reset(self, _rest: str) -> None:
        self._chat.reset()
        self._face.say(
            "All messages were removed."
            + (" The system message is kept." if self._chat.system else "")
        )

    def _undo(self, _rest: str) -> None:
        asked = self._question()
        if asked is None:
            self._face.fail("there is no question to remove.", "send a message first.")
        elif self._chat.undo():
            self._n_retries = 0
            self._face.say(f"Removed: {_short(asked)}")

    def _retry(self, _rest: str) -> None:
        if self._question() is None:
            self._face.fail("there is no question to answer again.", "send a message first.")
            return
        if self._sampling.greedy:
            self._face.say("Note: at temperature 0 the answer is always the same.")
        self._n_retries += 1
        # With a fixed seed the whole conversation can be reproduced, including retries.
        seed = self._sampling.seed
        sampling = (
            self._sampling
            if seed is None
            else replace(self._sampling, seed=(seed + self._n_retries) % 2**64)
        )
        self._answer(
            lambda bar: self._chat.retry(sampling, speculation=self._speculation, on_prompt=bar)
        )

    def _stats(self, _rest: str) -> None:
        last = self._chat.last
        if last is None:
            self._face.fail("there is no answer yet.", "send a message first.")
            return
        s = last.stats
        lines = [
            stats_lines(s, last.seed),
            f"context {s.n_prompt + s.n_generated:,} of {self._llm.n_ctx:,} tokens after it",
        ]
        self._face.say(
            "\n".join([*lines, *(f"note    {in_command(note)}" for note in self._llm.notes)])
        )

    def _draft(self, rest: str) -> None:
        loaded = self._llm.speculation
        if rest in ("show", "hide"):
            self._face.show_draft = rest == "show"
            self._face.say(
                "Accepted draft tokens are green, and Markdown is shown as plain text."
                if rest == "show"
                else "Markdown is formatted."
            )
        elif rest in ("on", "off"):
            if rest == "on" and not loaded.k:
                self._face.fail(
                    "the models were loaded without speculation.",
                    "start the chat again without -k 0 and --draft none.",
                )
                return
            self._speculation = loaded if rest == "on" else replace(loaded, k=0)
            self._face.say(self._drafting())
        elif rest:
            self._face.fail(
                f"{_short(rest)!r} is not an argument of /draft.",
                f"use {', '.join(DRAFT[:-1])} or {DRAFT[-1]}.",
            )
        else:
            self._face.say(self._drafting())

    def _drafting(self) -> str:
        if not self._speculation.k:
            return "Speculation is off."
        return f"""Speculation is on: {
            f"the draft is {self._llm.draft_name}"
            if self._llm.draft_name
            else "drafts come from the text only"
        }."""

    def _think(self, rest: str) -> None:
        think(self._llm, self._chat, self._face, rest)

    def _save(self, rest: str) -> None:
        path = _path(rest) if rest else self._file
        if path is None:
            self._face.fail("/save needs a file.", "name a file: /save talk.session.")
            return
        self._face.say(save(self._chat, path))
        self._file = path

    def _load(self, rest: str) -> None:
        if not rest:
            self._face.fail("/load needs a file.", "name a file that /save wrote.")
            return
        path = _path(rest)
        self._face.say(load(self._chat, path))
        self._file, self._n_retries = path, 0

    def _quit(self, _rest: str) -> None:
        self._leave = True

    def _question(self) -> str | None:
        return next(
            (one["content"] for one in reversed(self._chat.messages) if one["role"] == "user"), None
        )


def save(chat: Chat, path: Path) -> str:
    """Save a conversation; return a message with its size."""
    chat.save(path)
    return f"Saved {_count(chat)} in {path.resolve()} ({format_bytes(path.stat().st_size)})."


def load(chat: Chat, path: Path) -> str:
    """Load a conversation; return a description that includes its last two messages."""
    why = chat.restore(path)
    lines = [f"Loaded {_count(chat)} from {path}."]
    if why:
        lines.append(f"Note: the next answer reads the conversation again: {why.rstrip('.')}.")
    names = {"system": "System", "user": "You", "assistant": "Answer"}
    return "\n".join(
        [
            *lines,
            *(f"{names[one['role']]}: {_short(one['content'], 200)}" for one in chat.messages[-2:]),
        ]
    )


def _path(text: str) -> Path:
    try:
        return Path(text.replace("\0", "")).expanduser()
    except RuntimeError:
        raise SessionError(
            f"{text} names a home folder that does not exist.", "write the complete path."
        ) from None


def _count(chat: Chat) -> str:
    n = len(chat.messages)
    return f"{n} message{'' if n == 1 else 's'}"


def _short(text: str, n_most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= n_most else text[: n_most - 3].rstrip() + "..."


class Signals:
    """Signal handlers of the chat, for Ctrl-C and requests to end the program.

    A signal takes effect at once while the chat waits for a line. At other times the running
    operation ends first; an answer is cancelled after its round. After Ctrl-C the chat continues,
    unless it runs in a pipe.

    Attributes:
        code: Exit code if a signal ended the program, otherwise 0.
    """

    def __init__(self, keep_on: bool) -> None:
        self.code = 0
        self._ending = [
            name
            for name in ("SIGTERM", "SIGHUP", *(() if keep_on else ("SIGINT",)))
            if hasattr(signal, name)
        ]
        self._before: dict[int, Any] = {}
        self._turn: Turn | None = None
        self._is_waiting, self._came = False, False

    def wait(self, read: Callable[[], str | None]) -> str | None:
        """Call `read` and return its result; signals take effect at once.

        Raises:
            KeyboardInterrupt, SystemExit: A signal arrived.
        """
        self._is_waiting = True
        try:
            if self.code:
                raise SystemExit(self.code)
            return read()
        finally:
            self._is_waiting = False

    def open(self, start: Callable[[], Turn]) -> Turn:
        """Call `start` and return its turn, which signals cancel from now on.

        A signal that arrives during the call cancels the turn, too.
        """
        self._came, self._turn = False, None
        turn = self._turn = start()
        if self._came:
            turn.cancel()
        return turn

    def _arrived(self, number: int, _frame: object) -> None:
        if signal.Signals(number).name in self._ending:
            self.code = 128 + number
        if self._is_waiting:
            raise SystemExit(self.code) if self.code else KeyboardInterrupt
        self._came = True
        if self._turn:
            self._turn.cancel()

    def __enter__(self) -> Signals:
        for name in {*self._ending, "SIGINT"}:
            number = getattr(signal, name)
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
                self._before[number] = signal.signal(number, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
