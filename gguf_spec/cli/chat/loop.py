"""Input loop of the chat: messages to the model, and commands, which begin with a slash."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console

from ...errors import (
    GgufSpecError,
    InvalidOptionError,
    NotEnoughMemoryError,
    NoVisionError,
    Option,
    PromptTooLongError,
    Pull,
    SessionError,
    longer_ctx,
)
from ...images import read_image
from ...models import format_bytes
from ...models import path as model_path
from ...options import DRAFT_WORDS, FLAGS, PARAMETERS, SAMPLING, SPECULATION, Rule, checked
from .. import signals
from ..command import CONTROL, as_called
from ..error_text import in_command, message_and_hint
from ..error_text import name as written_name
from ..habits import HIDDEN_NAMES, nearest
from ..options import load_models, to_sampling, to_speculation, with_file_values
from ..output import LateBar, answer_json, logprob_lines, print_json, stats_lines, styled, write
from ..text_file import MOST_BYTES, TextFile, encoding_of
from .kept import KeptChats, plain

if TYPE_CHECKING:
    from ... import Chat, Sampling, Speculation, Turn
    from ...tool_servers import ToolServer
    from ...tool_servers.toolbox import Toolbox
    from ..options import AnyLLM

T = TypeVar("T")
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
    "/load": ("FILE|N", "continue a saved conversation, or one of /chats"),
    "/chats": ("", "list the chats that are kept"),
    "/quit": ("", "leave the chat, as Ctrl-D does"),
}
# Command of another program -> the command for that.
_MEANT = {
    **dict.fromkeys(("/?", "/h", "/commands"), "/help"),
    **dict.fromkeys(("/q", "/leave"), "/quit"),
    **dict.fromkeys(("/temperature", "/temp", "/seed", "/parameter", "/option"), "/set"),
    **dict.fromkeys(("/read", "/open", "/attach", "/paste"), "/file"),
    **dict.fromkeys(("/picture", "/photo", "/img"), "/image"),
    **dict.fromkeys(("/regen", "/regenerate", "/again"), "/retry"),
    **dict.fromkeys(("/models", "/switch"), "/model"),
    **dict.fromkeys(("/history", "/list", "/sessions", "/resume", "/continue"), "/chats"),
    **dict.fromkeys(("/show", "/info", "/usage"), "/stats"),
    **dict.fromkeys(("/clip", "/clipboard", "/yank"), "/copy"),
}
# Words of other programs that are the same command here.
_ALIASES = {"/bye": "/quit", "/exit": "/quit", "/clear": "/reset", "/new": "/reset"}
_KEEP_S = 2.0  # between two copies of an answer that goes on
# Options that load the models again -> their field; and other names of the first.
OF_LOADING = {one: one for one in ("kv_type", "threads", "gpu_layers", "mmproj")} | {"ctx": "n_ctx"}
_NAMES_OF_CTX = dict.fromkeys(("n_ctx", "ctx_size", "num_ctx", "context", "context_length"), "ctx")
# Option of the command line -> the command for it.
_COMMANDS_FOR = {"draft": "/draft", "show_draft": "/draft", "hide_thinking": "/think"} | {
    one: f"/{one}" for one in ("system", "model", "image", "think", "load", "save")
}
_NO_DRAFTS = "start the chat again without -k 0 and --draft none."
# Arguments of /draft and /think.
SWITCHES = ("on", "off", "show", "hide")
# Mark before and after a message of several lines.
BLOCK = '"""'
_KEYS = """
Enter sends the message. For a new line press Alt-Enter, or Enter after a backslash; \
or begin and end the message with \"\"\". Pasted text stays one message.
Ctrl-C stops an answer and keeps its text. The arrow keys show earlier lines.
A line that begins with a space is sent unchanged, even with a slash."""
_TOO_LONG = f"a message has more than {MOST_BYTES:,} letters, which no context holds."
_COMMAND = re.compile(r"(/[A-Za-z?]*)(?:\s+(.*))?", re.DOTALL)  # does not match /etc/hosts


def is_open_block(text: str) -> bool:
    text = text.rstrip()
    return text.startswith(BLOCK) and not (len(text) >= 2 * len(BLOCK) and text.endswith(BLOCK))


class PipeUI:
    """Chat interface without a terminal: one turn per line, answers on stdout, rest on stderr.

    Attributes:
        code: Exit code: 1 after an error.
        terminal: Its end undoes what was set at the terminal.
    """

    code: int
    chat: Chat
    llm: AnyLLM
    show_draft: bool
    show_thinking: bool
    terminal: contextlib.ExitStack

    def __init__(self, llm: AnyLLM, chat: Chat, show_draft: bool, *, as_json: bool = False) -> None:
        self.llm, self.chat = llm, chat
        self.show_draft, self.show_thinking, self.code = show_draft, False, 0
        self._is_read, self.terminal = False, contextlib.ExitStack()
        self._as_json, self._out = as_json, Console(highlight=False, soft_wrap=True)

    def begin(self, loaded: str) -> None:
        if loaded:
            self.say(loaded)

    def read(self) -> str | None:
        """Return the next line of stdin, or None after the last one, or after an endless one."""
        if not self._is_read and isinstance(sys.stdin, TextIOWrapper):
            self._is_read, peek = True, getattr(sys.stdin.buffer, "peek", bytes)
            sys.stdin.reconfigure(encoding=encoding_of(peek())[0], errors="replace", newline="\n")
        line = sys.stdin.readline(MOST_BYTES) if sys.stdin else ""
        if len(line) == MOST_BYTES and not line.endswith("\n"):
            self.fail(_TOO_LONG, "send less.")
            return None
        return line.removeprefix("\ufeff").rstrip("\r\n") if line else None

    def interrupt(self, error: BaseException) -> None:
        raise error

    def allows(self) -> bool:
        """Return whether the call of a tool that was shown is allowed; nobody can be asked here."""
        return False

    def say(self, text: str) -> None:
        """Show the result of a command."""
        click.echo(as_called(text.translate(CONTROL)), err=True)

    def fail(self, message: str, hint: str) -> None:
        """Show an error, and set the exit code to 1."""
        self.code = 1
        self.say(f"Error: {message}\nHint: {hint}")
        if self._as_json:  # the output has one object per input line
            self._print({"error": message, "hint": hint})

    def answer(self, turn: Turn, bar: LateBar, seen: Callable[[], object]) -> None:
        """Show an answer; `seen` is called after each of its chunks."""
        try:
            for chunk in turn:
                bar.remove()
                if not self._as_json:
                    write(self._out, styled(chunk, self.show_draft))
                seen()
        finally:
            bar.remove()
            result = turn.result
            if not self._as_json and not result.text.endswith("\n"):
                click.echo()
        if self._as_json:
            data = answer_json(self.llm, result, bool(result.logprobs))
            self._print(data | {"dropped": turn.dropped})
        elif result.logprobs:
            click.echo(logprob_lines(self.llm, result), err=True)

    def _print(self, data: dict[str, Any]) -> None:
        print_json(data)
        sys.stdout.flush()


class ChatLoop:
    """Loop that processes input lines until the input ends or a line is /quit.

    Each command is a method, which returns the text to show.

    Attributes:
        llm: The models, which `close` closes; /model replaces them.
        chat: The conversation; /model replaces it.
        kept: The chats that are kept as text; None if this one is not.
    """

    llm: AnyLLM
    chat: Chat

    def __init__(self, options: dict[str, Any]) -> None:
        self._options, self._loaded_with = options, to_speculation(options)
        self._at_start = options
        self._drafts, self._n_retries, self._leave = True, 0, False
        self._attached: list[tuple[str, str]] = []
        for path in options["file"]:
            self._attach(path)
        self.images: list[Path] = [*options["image"]]
        self.kept: KeptChats | None = None
        self._place: Path | None = options["save"] or options["load"]
        self._tools: Toolbox | None = None
        sampling = to_sampling(options)
        self.llm = load_models(options, self._loaded_with)
        self._settings = Settings(with_file_values(sampling, self.llm), self.llm.speculation)
        try:
            self.chat = self.llm.chat(
                sampling=sampling, overflow=options["overflow"], think=options["think"]
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if self._tools:
            self._tools.close()
        self.llm.close()

    def use_tools(self, servers: Sequence[ToolServer], ui: PipeUI) -> None:
        """Start tool servers, and let the model call their tools."""
        if not servers:
            return
        from ...tool_servers.toolbox import Toolbox

        if not self.llm.has_chat_template:
            ui.say(f"Note: {self.llm.name} has no chat template, so it calls no tools.")
            return
        self._tools = Toolbox(servers)
        found = self._tools.find()
        self.chat.tools = [one.function for one in found.tools]
        names = ", ".join(one.name for one in found.tools)
        ui.say("\n".join([f"Tools, each call asked for: {names or 'none'}.", *found.notes]))

    @property
    def _speculation(self) -> Speculation:
        chosen = self._settings.speculation
        return chosen if self._drafts else replace(chosen, k=0)

    def follow(self, ui: PipeUI, signals: Signals) -> None:
        """Process lines until the input ends; an error aborts only the current line.

        Raises:
            SystemExit: A signal requested the end of the program.
        """
        self._ui, self._signals = ui, signals
        while not self._leave:
            try:
                line = self._signals.wait(self._read, self._ui.interrupt)
                if line is None:
                    return
                self._do(line)
            except GgufSpecError as error:
                message, hint = (" ".join(text.split()) for text in message_and_hint(error))
                hint = in_chat(error) or hint
                if isinstance(error, PromptTooLongError):
                    ways = ways_on(self.chat, error.n_prompt, error.n_ctx_limit)
                    hint = f"{', '.join([*ways, 'or send less' if ways else 'send less'])}."
                self._ui.fail(message, hint)
            except KeyboardInterrupt:
                self._ui.say("Ctrl-D leaves the chat, /help lists the commands.")

    def _read(self) -> str | None:
        """Return a line, or the lines from one that begins with three quotes to their end."""
        text = self._ui.read()
        if text is None or not text.startswith(BLOCK):
            return text
        lines, n, is_open = [text], len(text), is_open_block(text)
        while is_open:
            line = self._ui.read()
            if line is None:
                fact = f"the input ended before the closing {BLOCK}."
                raise GgufSpecError(fact, f"end the message with {BLOCK}.")
            lines.append(line)
            n, is_open = n + len(line) + 1, not line.rstrip().endswith(BLOCK)
            if n > MOST_BYTES:
                self._ui.fail(_TOO_LONG, "send less.")
                return None
        # A space in front: what is inside of the quotes is never a command.
        return " " + "\n".join(lines).rstrip()[len(BLOCK) : -len(BLOCK)].strip("\n")

    def _do(self, line: str) -> None:
        """Send a message, or carry out a command.

        Raises:
            GgufSpecError: The command failed, or there is no such command.
        """
        command, text = _COMMAND.fullmatch(line.rstrip()), line.strip()
        if not command:
            if text:
                self._send(text)
            return
        name, rest = command[1].lower(), (command[2] or "").strip()
        name = _ALIASES.get(name, name)
        if name not in COMMANDS:
            near = nearest(name, COMMANDS, _MEANT)
            hint = f"did you mean {near}?" if near else "/help lists them."
            hint += " Begin the line with a space to send it to the model."
            raise GgufSpecError(f"there is no command {name}.", hint)
        if rest and not COMMANDS[name][0]:
            hint = "begin the line with a space to send it to the model."
            raise GgufSpecError(f"{name} has no argument.", hint)
        if message := getattr(self, f"_{name[1:]}")(rest):
            self._ui.say(message)

    def _send(self, text: str) -> None:
        self._n_retries = 0
        message = "\n\n".join([text, *(content for _, content in self._attached)])
        sampling = self._settings.sampling
        self._answer(partial(self.chat.stream, message, sampling, images=self.images))
        self._attached.clear()
        self.images.clear()

    def _answer(self, start: Callable[..., Turn]) -> None:
        turn = self._stream(start)
        for _ in range(self._tools.rounds if self._tools else 0):
            if not turn.calls or turn.result.finish_reason == "cancelled":
                break
            results = [self._call(**call["function"]) for call in turn.calls]
            go_on = partial(self.chat.answer_calls, results, self._settings.sampling)
            turn = self._stream(go_on)
        self._keep()

    def _call(self, name: str, arguments: str) -> str:
        """Ask whether a tool may be called; return its result, or that it may not."""
        from ...tool_servers.toolbox import visible

        assert self._tools
        self._ui.say(f"The model asks to call {visible(name)} with {visible(arguments)}")
        if not self._signals.wait(self._ui.allows, _at_once):
            return "The user did not allow this call."
        most = max(500, self.llm.n_ctx * 3 // 2)  # characters: about half of the context
        result = self._tools.call(name, arguments, most)
        self._ui.say(visible(result.text if len(result.text) < 500 else f"{result.text[:500]} ..."))
        return result.text

    def _stream(self, start: Callable[..., Turn]) -> Turn:
        bar = LateBar()
        start = partial(start, speculation=self._speculation, on_prompt=bar)
        with self._signals.open(start) as turn:
            if turn.dropped:
                n = turn.dropped
                oldest = "message was" if n == 1 else f"{n} messages were"
                self._ui.say(f"Note: the context was full, so the oldest {oldest} dropped.")
            bar.begin(turn.stats.n_prompt, self.llm.prompt_token_s)
            next_s = 0.0

            def seen() -> None:  # a process that is killed keeps the question and the answer so far
                nonlocal next_s
                if self.kept and time.monotonic() >= next_s:
                    next_s = time.monotonic() + _KEEP_S
                    self.kept.write(turn.messages, self.llm.name, self._settings.to_dict())

            self._ui.answer(turn, bar, seen)
        return turn

    def _keep(self) -> None:
        if self.kept:
            self.kept.write(self.chat.messages, self.llm.name, self._settings.to_dict())
            if self.kept.problem:
                self._ui.say(self.kept.problem)
                self.kept.problem = ""

    def resume(self, n: int = 1) -> str:
        """Continue a chat that is kept, by its number; return its description.

        Raises:
            SessionError: There is no such chat.
        """
        one = (self.kept or KeptChats()).number(n)
        self.chat.messages[:] = one.messages
        self.chat.last = None
        self._settings.restore(one.settings)
        self._place, self._n_retries = None, 0
        lines = [f"Chat of {_count(self.chat)}: {one.title}"]
        if one.model != self.llm.name:
            lines.append(f"Note: it was with {one.model}; {self.llm.name} answers now.")
        return "\n".join([*lines, *_last_messages(self.chat)])

    def _chats(self, _rest: str) -> str:
        return (self.kept or KeptChats()).listed()

    def _help(self, _rest: str) -> str:
        rows = [(f"{name} {argument}", text) for name, (argument, text) in COMMANDS.items()]
        width = max(len(left) for left, _ in rows)
        return "\n".join([*(f"{left:<{width}}  {text}" for left, text in rows), _KEYS])

    def _system(self, rest: str) -> str:
        if not rest:
            return self.chat.system or "There is no system message."
        self.chat.system = None if rest == "-" else rest
        return "The system message applies from the next answer on."

    def _model(self, rest: str) -> str:
        if not rest:
            return f"{self.llm.name}, with drafts from {self.llm.draft_name or 'the text only'}."
        model_path(rest, self._options["models_file"])  # raises before anything is loaded
        own = {"model": rest, "mmproj": None, "lora": (), "draft_lora": (), "chat_template": None}
        options = self._options | own | {"chat_template_file": None}
        if options["draft"] not in DRAFT_WORDS:
            options["draft"] = "auto"
        self._switch(options)
        message = f"{self.llm.name} answers from now on."
        if self.chat.messages:
            message += " It reads the conversation before its first answer."
        return f"{message} Note: {self.chat.note}" if self.chat.note else message

    def _set(self, rest: str) -> str:
        typed, _, value = rest.partition(" ")
        name, value = typed.lstrip("-").replace("-", "_").lower(), value.strip()
        name = _NAMES_OF_CTX.get(name, name)
        if not rest:
            of_chat = [f"{'ctx':<22}{self.llm.n_ctx}", f"{'overflow':<22}{self.chat.overflow}"]
            others = (
                f"{one:<22}{_shown(self._options[one])}" for one in OF_LOADING if one != "ctx"
            )
            return "\n".join([self._settings.set(rest), *others, *of_chat])
        if name == "overflow":
            return self._overflow(value.lower())
        if name in OF_LOADING:
            return self._load_with(name, value)
        if name in NAMES or name not in self._options:
            return self._settings.set(rest)
        hint = "start the chat again with it" + ("; -c continues this one." if self.kept else ".")
        if command := _COMMANDS_FOR.get(name):
            hint = f"use {command}; /help lists the commands."
        raise GgufSpecError(f"/set does not change {typed}.", hint)

    def _load_with(self, name: str, text: str) -> str:
        """Show an option of loading, or load the models again with another value of it."""
        if text:
            value: object = int(text) if re.fullmatch(r"-?\d+", text) else text
            if text.lower() == "default":
                value = self._at_start[name]
            elif name == "mmproj":
                value = None if text.lower() == "none" else _path(text)
            else:
                try:
                    checked(OF_LOADING[name], value)
                except InvalidOptionError as error:
                    hint = f"use such a value, or /set {name} default."
                    raise GgufSpecError(in_command(error.message), hint) from None
            self._switch(self._options | {name: value})
        read = " The conversation is read again." if text and self.chat.messages else ""
        if name == "ctx":
            return f"The context holds {self.llm.n_ctx:,} tokens.{read}"
        return f"{name:<22}{_shown(self._options[name])}.{read}"

    def _overflow(self, value: str) -> str:
        if value in ("shift", "error", "default"):
            self.chat.overflow = "shift" if value == "shift" else "error"
        elif value:
            hint = "write /set overflow shift, or /set overflow error."
            raise InvalidOptionError("overflow", value, "shift or error", hint)
        what = {"shift": "the oldest messages are left out", "error": "a full context is an error"}
        return f"{'overflow':<22}{self.chat.overflow}: {what[self.chat.overflow]}."

    def _switch(self, options: dict[str, Any]) -> None:
        """Load models with other options, and close the old ones; a signal ends the loading.

        If both do not fit into memory, the old ones are closed first.

        Raises:
            GgufSpecError: The models cannot be loaded. The old ones are still there.
        """
        old, sampling = self.llm, to_sampling(options)
        load = partial(
            load_models, options, self._loaded_with, cancelled=lambda: self._signals.came
        )
        try:
            self.llm = load()
        except NotEnoughMemoryError:
            old.close()
            try:
                self.llm = load()
            except BaseException:
                self.llm = load_models(self._options, self._loaded_with)
                raise
        old.close()
        self._options = options
        self._settings.use(with_file_values(sampling, self.llm), self.llm.speculation)
        self.chat = self.chat.with_model(self.llm)
        self._ui.llm, self._ui.chat = self.llm, self.chat

    def _file(self, rest: str) -> str:
        if rest == "-":
            self._attached.clear()
        elif rest:
            self._attach(_path(rest))
        return self.attached

    def _attach(self, path: Path) -> None:
        self._attached.append((path.name, TextFile(path).text.removesuffix("\n")))

    @property
    def attached(self) -> str:
        """The files that go with the next message, as a sentence."""
        sizes = ((name, len(text.encode("utf-8", "replace"))) for name, text in self._attached)
        names = ", ".join(f"{name} ({n_bytes:,} bytes)" for name, n_bytes in sizes)
        return f"With the next message: {names or 'no file'}."

    def _image(self, rest: str) -> str:
        if rest == "-":
            self.images.clear()
        elif rest:
            if not self.llm.can_see:
                raise NoVisionError(self.llm.name)
            read_image(_path(rest))
            self.images.append(_path(rest))
        names = ", ".join(path.name for path in self.images)
        return f"With the next message: {names or 'no image'}."

    def _copy(self, _rest: str) -> str:
        answers = [one["content"] for one in self.chat.messages if one["role"] == "assistant"]
        if not answers:
            raise GgufSpecError("there is no answer yet.", "send a message first.")
        how = copy(answers[-1])
        if not how:
            hint = "install wl-copy, xclip or pbcopy, or use a terminal."
            raise GgufSpecError("the answer was not copied.", hint)
        return f"The last answer was copied {how}."

    def _reset(self, _rest: str) -> str:
        self.chat.reset()
        if self.kept:
            self.kept.begin()  # what was said stays in its file
        kept = " The system message is kept." if self.chat.system else ""
        return f"All messages were removed.{kept}"

    def _undo(self, _rest: str) -> str | None:
        question = self._question("remove")
        if not self.chat.undo():
            return None
        self._n_retries = 0
        self._keep()
        return f"Removed: {_short(question)}"

    def _retry(self, _rest: str) -> None:
        self._question("answer again")
        sampling = self._settings.sampling
        if sampling.greedy:
            self._ui.say("Note: at temperature 0 the answer is always the same.")
        self._n_retries += 1
        # With a fixed seed the whole conversation can be reproduced, including retries.
        if sampling.seed is not None:
            sampling = replace(sampling, seed=(sampling.seed + self._n_retries) % 2**64)
        self._answer(partial(self.chat.retry, sampling))

    def _question(self, purpose: str) -> str:
        """Return the last question.

        Raises:
            GgufSpecError: The conversation has no question yet.
        """
        for one in reversed(self.chat.messages):
            if one["role"] == "user":
                return plain(one)
        raise GgufSpecError(f"there is no question to {purpose}.", "send a message first.")

    def _stats(self, _rest: str) -> str:
        last, llm = self.chat.last, self.llm
        if last is None:
            raise GgufSpecError("there is no answer yet.", "send a message first.")
        used = last.stats.n_prompt + last.stats.n_generated
        lines = [stats_lines(last.stats, last.seed)]
        lines.append(f"context {used:,} of {llm.n_ctx:,} tokens after it")
        return "\n".join([*lines, *(f"note    {in_command(note)}" for note in llm.notes)])

    def _draft(self, rest: str) -> str:
        if rest in ("show", "hide"):
            self._ui.show_draft = rest == "show"
            if rest == "hide":
                return "Markdown is formatted."
            return "Accepted draft tokens are green, and Markdown is shown as plain text."
        llm = self.llm
        if rest == "on" and not llm.speculation.k:
            raise GgufSpecError("the models were loaded without speculation.", _NO_DRAFTS)
        if rest in ("on", "off"):
            self._drafts = rest == "on"
        elif rest:
            raise _no_switch("/draft", rest)
        if not self._speculation.k:
            return "Speculation is off."
        draft = f"the draft is {llm.draft_name}"
        how = draft if llm.draft_name else "drafts come from the text only"
        return f"Speculation is on: {how}."

    def _think(self, rest: str) -> str:
        llm, states = self.llm, {None: "left to the model", True: "on", False: "off"}
        if not llm.can_think:
            fact = f"{llm.name} has no reasoning parts."
            raise GgufSpecError(fact, "chat with a model that reasons.")
        if rest in ("show", "hide"):
            self._ui.show_thinking = rest == "show"
        elif rest in ("on", "off"):
            self.chat.think = rest == "on"
        elif rest:
            raise _no_switch("/think", rest)
        shown = "shown" if self._ui.show_thinking else "hidden"
        return f"Reasoning is {states[self.chat.think]}, and {shown}."

    def _save(self, rest: str) -> str:
        path = _path(rest) if rest else self._place
        if path is None:
            raise GgufSpecError("/save needs a file.", "name a file: /save talk.session.")
        message = self.save(path)
        self._place = path
        return message

    def _load(self, rest: str) -> str:
        if not rest:
            hint = "name a file of /save, or a number of /chats."
            raise GgufSpecError("/load needs a file or a number.", hint)
        path = _path(rest)
        if rest.isdecimal() and not path.exists():
            return self.resume(int(rest))
        message = self.load(path)
        self._place, self._n_retries = path, 0
        return message

    def save(self, path: Path) -> str:
        """Save the conversation and the changed options; return a message with the size."""
        self.chat.extra["set"] = self._settings.to_dict()
        self.chat.save(path)
        size = format_bytes(path.stat().st_size)
        return f"Saved {_count(self.chat)} in {path.resolve()} ({size})."

    def load(self, path: Path) -> str:
        """Load a conversation and its options; return a description with its last messages."""
        why = self.chat.restore(path)
        self._settings.restore(self.chat.extra.get("set", {}))
        if self.kept:
            self.kept.begin()
        lines = [f"Loaded {_count(self.chat)} from {path}."]
        if why:
            lines.append(f"Note: the next answer reads the conversation again: {why.rstrip('.')}.")
        return "\n".join([*lines, *_last_messages(self.chat)])

    def _quit(self, _rest: str) -> None:
        self._leave = True


def ways_on(chat: Chat, needed: int, limit: int | None) -> list[str]:
    """Return the commands with which a chat goes on that has `needed` tokens in a full context."""
    longer = longer_ctx(needed, limit)
    ways = [f"/set ctx {longer} goes on with a larger one"] if longer else []
    if chat.overflow != "shift" and any(one["role"] == "user" for one in chat.messages):
        ways.append("/set overflow shift leaves out the oldest messages")
    return ways


def in_chat(error: GgufSpecError) -> str:
    """Return the hint of an error with the commands of the chat; empty if none of them helps."""

    def typed(part: Option | Pull) -> str | None:
        if isinstance(part, Pull):
            return written_name(part)
        found = PARAMETERS.get(part.name, part.name)
        if found in OF_LOADING or part.name in {*RULES, "overflow"}:
            field = found if found in OF_LOADING else part.name
            return f"/set {field}" + ("" if part.value is ... else f" {_shown(part.value)}")
        return None

    hint = " ".join(error.written(typed)[1].split()).replace("set /set", "/set")
    return re.sub(r"omit (/set \w+) to", r"\1 default to", hint)


# `overflow` of a chat is not that of one answer.
RULES: dict[str, Rule] = {
    name: rule for name, rule in (SAMPLING | SPECULATION).items() if name != "overflow"
}
_TRUTH = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("off", "false", "no", "0"), False),
}


def _names() -> dict[str, str]:
    """Return the fields by all their names: fields, options, and hidden names of options."""
    found = {name: name for name in RULES}
    for name, rule in RULES.items():
        if not rule.inverted:
            for flag in (*FLAGS[name], *HIDDEN_NAMES.get(PARAMETERS[name], ())):
                if flag.startswith("--") or flag == "-k":
                    known = flag.split("/")[0].lstrip("-").replace("-", "_")
                    found.setdefault(known, name)
    return found


NAMES = _names()


class Settings:
    """Sampling and speculation options of a chat, for its next answer."""

    sampling: Sampling
    speculation: Speculation

    def __init__(self, sampling: Sampling, speculation: Speculation) -> None:
        self._loaded = (sampling, speculation)
        self._changed: dict[str, Any] = {}
        self.sampling, self.speculation = sampling, speculation

    def use(self, sampling: Sampling, speculation: Speculation) -> None:
        """Take the options of another model, but keep those that the user changed."""
        self._apply((sampling, speculation), self._changed)

    def _apply(self, loaded: tuple[Sampling, Speculation], changed: dict[str, Any]) -> None:
        of_sampling = {name: value for name, value in changed.items() if name in SAMPLING}
        of_speculation = {name: value for name, value in changed.items() if name in SPECULATION}
        new = replace(loaded[0], **of_sampling), replace(loaded[1], **of_speculation)
        self.sampling, self.speculation = new
        self._loaded, self._changed = loaded, changed

    def to_dict(self) -> dict[str, Any]:
        changed = self._changed.items()
        return {name: list(one) if isinstance(one, tuple) else one for name, one in changed}

    def restore(self, changed: Any) -> None:
        """Take changed options from `to_dict`; those that are not allowed here are left out."""
        self._apply(self._loaded, {})
        for name, one in changed.items() if isinstance(changed, dict) else ():
            with contextlib.suppress(GgufSpecError, TypeError, ValueError):
                value = tuple(one) if isinstance(one, list) else one
                if name == "logit_bias":
                    value = {int(token): bias for token, bias in one.items()}
                self._apply(self._loaded, self._changed | {name: value})

    def set(self, text: str) -> str:
        """Carry out /set: show all options, show one, or change one.

        Args:
            text: Nothing, `NAME` or `NAME VALUE`.

        Raises:
            GgufSpecError: There is no such option, or it does not take the value.
        """
        typed, _, value = text.partition(" ")
        if not typed:
            return "\n".join(self._line(name) for name in RULES)
        field = NAMES.get(name := typed.lstrip("-").replace("-", "_").lower())
        if field is None:
            near = nearest(name, NAMES, {})
            hint = f"did you mean {near}?" if near else "/set lists them."
            raise GgufSpecError(f"there is no option {typed}.", hint)
        if not value.strip():
            return f"{self._line(field)}\n{RULES[field].help}"
        changed = {name: one for name, one in self._changed.items() if name != field}
        try:
            if value.strip().lower() != "default":
                changed[field] = _parsed(field, value.strip())
                if field in SPECULATION and not self._loaded[1].k:
                    fact = "the models were loaded without speculation"
                    raise GgufSpecError(f"{fact}, so {field} has no effect.", _NO_DRAFTS)
            self._apply(self._loaded, changed)
        except InvalidOptionError as error:
            if not error.allowed:
                raise
            hint = f"use such a value, or /set {field} default."
            raise GgufSpecError(in_command(error.message), hint) from None
        return self._line(field)

    def _line(self, field: str) -> str:
        value = getattr(self.sampling if field in SAMPLING else self.speculation, field)
        return f"{field:<22}{_shown(value)}{' (changed)' if field in self._changed else ''}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "none"
    if isinstance(value, dict):
        value = [f"{token}={bias:g}" for token, bias in value.items()]
    if isinstance(value, (tuple, list)):
        return " ".join(map(repr, value)) or "none"
    text = str(value)
    return text if len(text) <= 50 else text[:47].rstrip() + "..."


def _parsed(field: str, text: str) -> Any:
    """Return the value of an option as typed.

    Raises:
        InvalidOptionError: The text is not a value of the option's type.
    """
    rule, word = RULES[field], text.lower()
    convert = {"number": float, "integer": int}.get(rule.type, str)
    try:
        if rule.shape != "one":
            items = [] if word == "none" else shlex.split(text)
            if rule.shape == "mapping":
                pairs = (one.partition("=") for one in items)
                return {int(token): float(bias) for token, _, bias in pairs}
            return tuple(map(convert, items))
        if rule.optional and word == "none":
            return None
        if rule.type == "boolean":
            return _TRUTH[word]
        if field in ("grammar", "json_schema"):  # a schema may be in a file, a grammar always is
            file = text if field == "grammar" else text[1:] if text.startswith("@") else ""
            return TextFile(Path(file).expanduser()).text if file else text
        value = convert(text)
        return None if (field, value) == ("max_tokens", -1) else value
    except (KeyError, ValueError):
        allowed = "on or off" if rule.type == "boolean" else rule.allowed
        raise InvalidOptionError(field, text, allowed) from None


def _at_once(error: BaseException) -> None:
    raise error


def _last_messages(chat: Chat) -> list[str]:
    names = {"system": "System", "user": "You", "assistant": "Answer"}
    return [f"{names[one['role']]}: {_short(plain(one), 200)}" for one in chat.messages[-2:]]


def _count(chat: Chat) -> str:
    n = len(chat.messages)
    return f"{n} message{'' if n == 1 else 's'}"


def _no_switch(command: str, rest: str) -> GgufSpecError:
    fact = f"{_short(rest)!r} is not an argument of {command}."
    return GgufSpecError(fact, "use on, off, show or hide.")


def _path(text: str) -> Path:
    """Return the path that a text names.

    Raises:
        SessionError: It names a home folder that does not exist.
    """
    try:
        return Path(text.replace("\0", "")).expanduser()
    except RuntimeError:
        fact = f"{text} names a home folder that does not exist."
        raise SessionError(fact, "write the complete path.") from None


def _short(text: str, n_most: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= n_most else text[: n_most - 3].rstrip() + "..."


class Signals:
    """Signal handlers of the chat, for Ctrl-C and requests to end the program.

    A signal takes effect at once while the chat waits for a line. At other times the running
    operation ends first; an answer is cancelled after its round. After Ctrl-C the chat continues,
    unless it runs in a pipe. An editor must not be left by an exception at any of its instructions:
    some of them catch it, and then the chat would never end.

    Attributes:
        code: Exit code if a signal ended the program, otherwise 0.
        came: Whether a signal arrived since the last line.
    """

    code: int
    came: bool

    def __init__(self, keep_on: bool) -> None:
        self.code = 0
        self._ending = ("SIGTERM", "SIGHUP") if keep_on else ("SIGTERM", "SIGHUP", "SIGINT")
        self._handlers = signals.handlers(self._arrived)
        self._turn: Turn | None = None
        self._interrupt: Callable[[BaseException], object] | None = None
        self.came = False

    def wait(self, read: Callable[[], T], interrupt: Callable[[BaseException], object]) -> T | None:
        """Call `read` and return its result; signals take effect at once.

        Args:
            interrupt: Called by the signal handler; lets `read` raise an exception.

        Raises:
            KeyboardInterrupt, SystemExit: A signal arrived.
        """
        self.came, self._turn, self._interrupt = False, None, interrupt
        try:
            line = None if self.code else read()
        finally:
            self._interrupt = None
        if self.code:
            raise SystemExit(self.code)
        return line

    def open(self, start: Callable[[], Turn]) -> Turn:
        """Call `start` and return its turn, which signals cancel from now on.

        A signal that arrived since the last line, or arrives during the call, cancels it, too.
        """
        turn = self._turn = start()
        if self.came:
            turn.cancel()
        return turn

    def _arrived(self, number: int, _frame: object) -> None:
        signals.handled(number)
        if signal.Signals(number).name in self._ending:
            self.code = 128 + number
        if self._interrupt:
            self._interrupt(SystemExit(self.code) if self.code else KeyboardInterrupt())
            return
        self.came = True
        if self._turn:
            self._turn.cancel()

    def __enter__(self) -> Signals:
        self._handlers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.__exit__(None, None, None)


# Command that reads a text for the clipboard -> variable of its desktop; macOS has none.
_PROGRAMS = {
    "wl-copy": "WAYLAND_DISPLAY",
    "xclip -selection clipboard": "DISPLAY",
    "xsel --clipboard --input": "DISPLAY",
    "pbcopy": "",
}
_TIMEOUT_S = 3.0
_MOST_BYTES = 74_000  # terminals ignore longer texts


def copy(text: str) -> str | None:
    """Copy a text to the clipboard.

    Over SSH, and without a program for it, the terminal is asked by the sequence OSC 52. Whether it
    does so cannot be known.

    Returns:
        How it was copied; None if it was not.
    """
    data = text.encode("utf-8", errors="replace")
    if not os.environ.get("SSH_CONNECTION"):
        for command, variable in _PROGRAMS.items():
            name, *flags = command.split()
            program = shutil.which(name)
            if not program or (variable and not os.environ.get(variable)):
                continue
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    [program, *flags],
                    input=data,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
                if done.returncode == 0:
                    return f"with {name}"
    if len(data) > _MOST_BYTES or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    sys.stdout.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    sys.stdout.flush()
    return "by the terminal, if it allows that (OSC 52)"
