"""Input loop of the chat: messages to the model, and commands, which begin with a slash."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...errors import GgufSpecError
from ..error_text import in_command, message_and_hint
from ..habits import nearest
from ..images import check_image, plain
from ..progress import PromptBar
from ..render import stats_lines
from ..text_file import TextFile
from .clipboard import copy
from .saved import load, path_of, save, short
from .settings import Settings
from .thinking import think

if TYPE_CHECKING:
    from ... import LLM, Chat, Speculation, Turn
    from .models import ChatModels
    from .signals import Signals

# Command -> (argument, help text). `ChatLoop` has a method for each command.
COMMANDS = {
    "/help": ("", "show this help"),
    "/system": ("[TEXT]", "show or set the system message; - for none"),
    "/set": ("[NAME [VALUE]]", "show or set an option, such as /set temperature 0"),
    "/model": ("[NAME]", "show the model, or continue with another one"),
    "/file": ("[FILE]", "add the text of a file to the next message; - for none"),
    "/image": ("[FILE]", "show the next message an image; - for none"),
    "/copy": ("", "copy the last answer to the clipboard"),
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
# Command of another program -> the command for that.
_MEANT = {
    **dict.fromkeys(("/?", "/h", "/commands"), "/help"),
    **dict.fromkeys(("/bye", "/exit", "/q", "/leave"), "/quit"),
    **dict.fromkeys(("/temperature", "/temp", "/seed", "/parameter", "/option"), "/set"),
    **dict.fromkeys(("/read", "/open", "/attach", "/paste"), "/file"),
    **dict.fromkeys(("/picture", "/photo", "/img"), "/image"),
    **dict.fromkeys(("/regen", "/regenerate", "/again"), "/retry"),
    **dict.fromkeys(("/models", "/switch"), "/model"),
    **dict.fromkeys(("/show", "/info", "/usage"), "/stats"),
    **dict.fromkeys(("/clip", "/clipboard", "/yank"), "/copy"),
}
# Arguments of /draft.
DRAFT = ("on", "off", "show", "hide")
# Mark before and after a message of several lines.
BLOCK = '"""'
_KEYS = """
Enter sends the message. For a new line press Alt-Enter, or Enter after a backslash; \
or begin and end the message with \"\"\". Pasted text stays one message.
Ctrl-C stops an answer and keeps its text. The arrow keys show earlier lines.
A line that begins with a space is sent unchanged, even with a slash."""
_COMMAND = re.compile(r"(/[A-Za-z?]*)(?:\s+(.*))?", re.DOTALL)  # does not match /etc/hosts


def is_open_block(text: str) -> bool:
    """Return whether a message begins with three quotes and has no closing ones yet."""
    text = text.rstrip()
    return text.startswith(BLOCK) and not (len(text) >= 2 * len(BLOCK) and text.endswith(BLOCK))


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

    def interrupt(self, error: BaseException) -> None:
        """Let `read` raise an error; called by a signal handler in the same thread."""

    def say(self, text: str) -> None:
        """Show the result of a command."""

    def fail(self, message: str, hint: str) -> None:
        """Show an error and a hint."""

    def answer(self, turn: Turn, bar: PromptBar) -> None:
        """Show an answer while it is generated; remove `bar` before its first text."""

    def use(self, llm: LLM, chat: Chat) -> None:
        """Continue with another model, and with the same conversation."""


class ChatLoop:
    """Loop that processes input lines until the input ends or a line is /quit.

    Attributes:
        images: Files of images for the next message.
    """

    def __init__(
        self, models: ChatModels, chat: Chat, face: ChatUI, signals: Signals, file: Path | None
    ) -> None:
        """Create the loop; /save without an argument writes to `file`."""
        self._models, self._chat, self._face = models, chat, face
        self._signals, self._place = signals, file
        self._settings = Settings(models.sampling, models.llm.speculation)
        self._drafts, self._n_retries, self._leave = True, 0, False
        self._attached: list[tuple[str, str]] = []
        self.images: list[Path] = []

    @property
    def chat(self) -> Chat:
        """The conversation; /model replaces it."""
        return self._chat

    @property
    def _speculation(self) -> Speculation:
        chosen = self._settings.speculation
        return chosen if self._drafts else replace(chosen, k=0)

    def follow(self) -> None:
        """Process lines until the input ends; an error aborts only the current line.

        Raises:
            SystemExit: A signal requested the end of the program.
        """
        while not self._leave:
            try:
                line = self._signals.wait(self._read, self._face.interrupt)
                if line is None:
                    return
                self._do(line)
            except GgufSpecError as error:
                self._face.fail(*message_and_hint(error))
            except KeyboardInterrupt:
                self._face.say("Ctrl-D leaves the chat, /help lists the commands.")

    def _read(self) -> str | None:
        """Return a line, or the lines from one that begins with three quotes to their end."""
        text = self._face.read()
        if text is None or not text.startswith(BLOCK):
            return text
        while is_open_block(text):
            line = self._face.read()
            if line is None:
                raise GgufSpecError(
                    f"the input ended before the closing {BLOCK}.", f"end the message with {BLOCK}."
                )
            text += f"\n{line}"
        # A space in front: what is inside of the quotes is never a command.
        return " " + text.rstrip()[len(BLOCK) : -len(BLOCK)].strip("\n")

    def _do(self, line: str) -> None:
        command, text = _COMMAND.fullmatch(line.rstrip()), line.strip()
        if not command:
            if text:
                self._send(text)
            return
        name, rest = command[1].lower(), (command[2] or "").strip()
        if name not in COMMANDS:
            near = nearest(name, COMMANDS, _MEANT)
            hint = f"did you mean {near}?" if near else "/help lists them."
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

    def _send(self, text: str) -> None:
        self._n_retries = 0
        message = "\n\n".join([text, *(content for _, content in self._attached)])
        self._answer(
            lambda bar: self._chat.stream(
                message,
                self._settings.sampling,
                images=self.images,
                speculation=self._speculation,
                on_prompt=bar,
            )
        )
        self._attached.clear()
        self.images.clear()

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

    def _set(self, rest: str) -> None:
        self._face.say(self._settings.set(rest))

    def _model(self, rest: str) -> None:
        if not rest:
            draft = self._models.llm.draft_name or "the text only"
            self._face.say(f"{self._models.llm.name}, with drafts from {draft}.")
            return
        self._models.switch(rest, lambda: self._signals.came)
        llm, old = self._models.llm, self._chat
        self._chat = old.with_model(llm)
        self._settings.use(self._models.sampling, llm.speculation)
        self._face.use(llm, self._chat)
        what = f"{llm.name} answers from now on."
        if old.messages:
            what += " It reads the conversation before its first answer."
        self._face.say(
            " ".join(filter(None, [what, self._chat.note and f"Note: {self._chat.note}"]))
        )

    def _file(self, rest: str) -> None:
        if rest == "-":
            self._attached.clear()
        elif rest:
            path = path_of(rest)
            self._attached.append((path.name, TextFile(path).text.removesuffix("\n")))
        names = ", ".join(
            f"{name} ({len(text.encode('utf-8', 'replace')):,} bytes)"
            for name, text in self._attached
        )
        self._face.say(f"With the next message: {names or 'no file'}.")

    def _image(self, rest: str) -> None:
        if rest == "-":
            self.images.clear()
        elif rest:
            check_image(path_of(rest), self._models.llm)
            self.images.append(path_of(rest))
        names = ", ".join(path.name for path in self.images)
        self._face.say(f"With the next message: {names or 'no image'}.")

    def _copy(self, _rest: str) -> None:
        answers = [one["content"] for one in self._chat.messages if one["role"] == "assistant"]
        if not answers:
            self._face.fail("there is no answer yet.", "send a message first.")
        elif how := copy(answers[-1]):
            self._face.say(f"The last answer was copied {how}.")
        else:
            self._face.fail(
                "the answer was not copied.", "install wl-copy, xclip or pbcopy, or use a terminal."
            )

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
            self._face.say(f"Removed: {short(asked)}")

    def _retry(self, _rest: str) -> None:
        if self._question() is None:
            self._face.fail("there is no question to answer again.", "send a message first.")
            return
        if self._settings.sampling.greedy:
            self._face.say("Note: at temperature 0 the answer is always the same.")
        self._n_retries += 1
        # With a fixed seed the whole conversation can be reproduced, including retries.
        seed = self._settings.sampling.seed
        sampling = (
            self._settings.sampling
            if seed is None
            else replace(self._settings.sampling, seed=(seed + self._n_retries) % 2**64)
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
            f"context {s.n_prompt + s.n_generated:,} of {self._models.llm.n_ctx:,} tokens after it",
        ]
        self._face.say(
            "\n".join([*lines, *(f"note    {in_command(note)}" for note in self._models.llm.notes)])
        )

    def _draft(self, rest: str) -> None:
        if rest in ("show", "hide"):
            self._face.show_draft = rest == "show"
            self._face.say(
                "Accepted draft tokens are green, and Markdown is shown as plain text."
                if rest == "show"
                else "Markdown is formatted."
            )
        elif rest in ("on", "off"):
            if rest == "on" and not self._models.llm.speculation.k:
                self._face.fail(
                    "the models were loaded without speculation.",
                    "start the chat again without -k 0 and --draft none.",
                )
                return
            self._drafts = rest == "on"
            self._face.say(self._drafting())
        elif rest:
            self._face.fail(
                f"{short(rest)!r} is not an argument of /draft.",
                f"use {', '.join(DRAFT[:-1])} or {DRAFT[-1]}.",
            )
        else:
            self._face.say(self._drafting())

    def _drafting(self) -> str:
        if not self._speculation.k:
            return "Speculation is off."
        return f"""Speculation is on: {
            f"the draft is {self._models.llm.draft_name}"
            if self._models.llm.draft_name
            else "drafts come from the text only"
        }."""

    def _think(self, rest: str) -> None:
        think(self._models.llm, self._chat, self._face, rest)

    def _save(self, rest: str) -> None:
        path = path_of(rest) if rest else self._place
        if path is None:
            self._face.fail("/save needs a file.", "name a file: /save talk.session.")
            return
        self._face.say(save(self._chat, path))
        self._place = path

    def _load(self, rest: str) -> None:
        if not rest:
            self._face.fail("/load needs a file.", "name a file that /save wrote.")
            return
        path = path_of(rest)
        self._face.say(load(self._chat, path))
        self._place, self._n_retries = path, 0

    def _quit(self, _rest: str) -> None:
        self._leave = True

    def _question(self) -> str | None:
        return next(
            (
                plain(one["content"])
                for one in reversed(self._chat.messages)
                if one["role"] == "user"
            ),
            None,
        )
