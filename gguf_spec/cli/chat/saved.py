"""Saved conversations of the chat: write and read them, and describe them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import SessionError
from ...models import format_bytes
from ..images import plain

if TYPE_CHECKING:
    from ... import Chat


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
            *(
                f"{names[one['role']]}: {short(plain(one['content']), 200)}"
                for one in chat.messages[-2:]
            ),
        ]
    )


def path_of(text: str) -> Path:
    """Return the path that a text names.

    Raises:
        SessionError: It names a home folder that does not exist.
    """
    try:
        return Path(text.replace("\0", "")).expanduser()
    except RuntimeError:
        raise SessionError(
            f"{text} names a home folder that does not exist.", "write the complete path."
        ) from None


def _count(chat: Chat) -> str:
    n = len(chat.messages)
    return f"{n} message{'' if n == 1 else 's'}"


def short(text: str, n_most: int = 60) -> str:
    """Return a text in one line of limited length."""
    text = " ".join(text.split())
    return text if len(text) <= n_most else text[: n_most - 3].rstrip() + "..."
