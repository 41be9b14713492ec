"""The chat command /think: switch reasoning, or its display."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ... import LLM, Chat
    from .loop import ChatUI

# Arguments of /think.
THINK = ("on", "off", "show", "hide")


def think(llm: LLM, chat: Chat, face: ChatUI, word: str) -> None:
    """Do /think with an argument; without one, show the current state."""
    if not llm.can_think:
        face.fail(f"{llm.name} has no reasoning parts.", "chat with a model that reasons.")
    elif word in ("show", "hide"):
        face.show_thinking = word == "show"
        face.say(_state(chat, face))
    elif word in ("on", "off"):
        chat.think = word == "on"
        face.say(_state(chat, face))
    elif word:
        face.fail(f"{word[:60]!r} is not an argument of /think.", "use on, off, show or hide.")
    else:
        face.say(_state(chat, face))


def _state(chat: Chat, face: ChatUI) -> str:
    states = {None: "left to the model", True: "on", False: "off"}
    shown = "shown" if face.show_thinking else "hidden"
    return f"Reasoning is {states[chat.think]}, and {shown}."
