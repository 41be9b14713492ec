"""`gguf-spec chat`: hold a conversation at a terminal or through a pipe."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ..command import CONTROL, file_option, flag, option
from ..foreign import LlamaCommand
from ..generate import check_images, image_option
from ..options import (
    model_options,
    sampling_options,
    server_option,
    speculation_options,
    table_option,
    think_options,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ...tool_servers import ToolServer

__all__ = ["chat"]
# The default length limit is larger than that of `generate`.
_SETTINGS = {"default_map": {"max_tokens": 1024}}


@click.command(
    cls=LlamaCommand,
    usual="model draft file system max_tokens temperature seed ctx load save show_draft",
    context_settings=_SETTINGS,
)
@file_option(
    "-f --file", "Add the text of a file to the first message. Repeatable.",
    multiple=True, metavar=None,
)  # fmt: skip
@option("-s --system", "System message.")
@image_option
@partial(model_options, chat=True)
@table_option("keep")
@table_option("draft_texts", show_default="disk; memory with --no-history")
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
@flag("-c --continue continued", "Continue the last chat.")
@option(
    "--history/--no-history", "Keep the chat, and the typed lines for later chats.", default=True
)
@flag("--forget", "Remove all chats, typed lines and texts for drafts that are kept.")
@option(
    "--mcp/--no-mcp",
    "Let the model call tools of the tool servers in the config file, [mcp.NAME]. Each call is "
    "asked for, so it takes a terminal.",
    default=False,
)
@think_options
@server_option
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
      gguf-spec chat -c
      gguf-spec chat --save talk.session
      gguf-spec chat --load talk.session --overflow shift
      printf '%s\\n' "Tell me a story about a fox." "And of a crow." | gguf-spec chat --json
    In the chat, /help lists the commands. A message of several lines begins and ends with \"\"\".
    Every option can also be set as GGUF_SPEC_OPTION in the environment.
    """
    from .kept import KeptChats, forget
    from .loop import ChatLoop, PipeUI, Signals

    if options["forget"]:
        from ...kept import remove_draft_texts
        from ...models import format_bytes

        n_chats, n_bytes = forget()
        n_bytes += remove_draft_texts()
        chats = "1 chat" if n_chats == 1 else f"{n_chats:,} chats"
        click.echo(
            f"{chats}, typed lines and texts for drafts were removed ({format_bytes(n_bytes)}).",
            err=True,
        )
        return 0
    if options["continued"] and options["load"]:
        raise click.UsageError("--continue and --load cannot be combined.")
    path = _place(options["save"])
    options["draft_texts"] = options["draft_texts"] or ("disk" if options["history"] else "memory")
    streams = (sys.stdin, sys.stdout)
    at_terminal = all(stream is not None and stream.isatty() for stream in streams)
    in_pipe = options["as_json"] or not at_terminal
    servers = _tool_servers(in_pipe) if options["mcp"] else []
    check_images(options["image"], options)
    with contextlib.closing(ChatLoop(options)) as loop:
        loaded = loop.load(options["load"]) if options["load"] else ""
        if options["system"]:  # replaces the system message of the loaded conversation
            loop.chat.system = options["system"]
        if loop.chat.note:
            click.echo(f"Note: {loop.chat.note}", err=True)
        if options["history"] and not in_pipe:
            loop.kept = KeptChats()
        if options["continued"]:
            loaded = loop.resume()
        ui = PipeUI(loop.llm, loop.chat, options["show_draft"], as_json=options["as_json"])
        if not in_pipe:
            from .terminal import TerminalUI  # imported late: prompt_toolkit is slow to import

            ui = TerminalUI(loop.llm, loop.chat, options["show_draft"], options["history"])
            ui.show_thinking = not options["hide_thinking"]
        with Signals(keep_on=not in_pipe) as signals, ui.terminal:
            try:
                ui.begin(loaded)
                if options["file"]:
                    ui.say(loop.attached)
                loop.use_tools(servers, ui)
                loop.follow(ui, signals)
            finally:
                if path and loop.chat.messages:
                    message = loop.save(path)
                    with contextlib.suppress(OSError):  # the terminal may be closed
                        click.echo(message.translate(CONTROL), err=True)
        return signals.code or ui.code


def _tool_servers(in_pipe: bool) -> list[ToolServer]:
    """Return the tool servers of the config file.

    Raises:
        GgufSpecError: Nobody could be asked before a call.
    """
    from ...errors import GgufSpecError
    from ..config import tool_servers

    if in_pipe:
        fact = "--mcp takes a terminal: each call of a tool is asked for there."
        raise GgufSpecError(
            fact, "leave out --mcp, or give --no-mcp where the config file sets it."
        )
    return tool_servers()


def _place(path: Path | None) -> Path | None:
    """Return the file for the conversation.

    Raises:
        SessionError: It cannot be written.
    """
    from ...errors import SessionError

    if path and (path.is_dir() or not path.absolute().parent.is_dir()):
        why = "it is a folder" if path.is_dir() else "its folder does not exist"
        fact = f"{path} cannot be written: {why}."
        raise SessionError(fact, "name a file in an existing folder.")
    return path
