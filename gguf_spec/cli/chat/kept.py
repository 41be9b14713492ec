"""Chats that are kept as text, one file each, in the folder of this user's state.

A file has the format that the page of the server exports and imports. The names are in the order of
the last answers, whatever the clock and the file system say.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import SessionError
from ...system.files import atomic_write, remedy, state_folder

_FORMAT = "gguf-spec-conversations"
_SHOWN = 20  # chats in the list


def history_file() -> Path:
    return state_folder() / "chat-history"


class KeptChat(NamedTuple):
    """A chat on the disk.

    Attributes:
        updated: Time of its last answer, in seconds since 1970.
        settings: Options that were changed with /set.
    """

    path: Path
    title: str
    updated: float
    model: str
    messages: list[dict[str, Any]]
    settings: dict[str, Any]


class KeptChats:
    """The kept chats, and the file of the one that goes on.

    Attributes:
        problem: Why the last one could not be written, once; empty if it could.
    """

    problem: str
    folder: Path

    def __init__(self, most: int = 200, clock_ns: Callable[[], int] = time.time_ns) -> None:
        """Find the folder, in which the last `most` chats stay.

        Args:
            clock_ns: Returns the time in nanoseconds.
        """
        self._most, self._clock_ns = most, clock_ns
        self.folder, self.problem = state_folder() / "chats", ""
        self._path: Path | None = None
        self._has_failed = False

    def newest(self) -> list[KeptChat]:
        """Return the chats, the newest first; files that are not whole are left out."""
        found = []
        for path in self.folder.glob("*.json"):
            try:
                found.append(_read(path))
            except (OSError, ValueError, LookupError, TypeError):
                continue
        return sorted(found, key=lambda one: one.path.stem.zfill(20), reverse=True)

    def number(self, n: int) -> KeptChat:
        """Return a chat by its number in `listed`, and go on in its file.

        Raises:
            SessionError: There is no such chat.
        """
        chats = self.newest()
        if not 1 <= n <= len(chats):
            fact, hint = f"there is no chat {n}", "/chats lists those that are kept."
            if not chats:
                fact, hint = "no chat is kept", "one at a terminal is, from its first answer on."
            raise SessionError(f"{fact}.", hint)
        self._path = chats[n - 1].path
        return chats[n - 1]

    def listed(self) -> str:
        chats = self.newest()
        lines = [
            f"{n:>3}  {_ago(one.updated):<12}  {one.title}"
            for n, one in enumerate(chats[:_SHOWN], 1)
        ]
        if not lines:
            return "No chat is kept yet."
        more = [f"and {len(chats) - _SHOWN} older ones"] * (len(chats) > _SHOWN)
        return "\n".join([*lines, *more, "/load N continues one of them."])

    def begin(self) -> None:
        """Let the next answer begin another file."""
        self._path = None

    def write(
        self, messages: Sequence[Mapping[str, Any]], model: str, settings: Mapping[str, Any]
    ) -> None:
        """Write the chat that goes on; where that is not possible, `problem` says so once.

        One without an answer has no file. Calls of tools and their results are not kept.
        """
        messages = [one for one in messages if one["role"] != "tool" and "tool_calls" not in one]
        title = next((plain(one) for one in messages if one["role"] == "user"), "")
        now_ns = self._clock_ns()
        last = max(self.folder.glob(f"{'[0-9]' * 20}.json"), default=None)
        if not (path := self._path) or path != last:
            after = int(last.stem) + 1 if last else 0
            path = self.folder / f"{max(now_ns, after):020}.json"
        chat = {
            "id": path.stem,
            "title": textwrap.shorten(title, 60, placeholder="..."),
            "updated": round(now_ns / 1e6),
            "model": model,
            "messages": [{**one, "content": plain(one)} for one in messages],
            "settings": dict(settings),
        }
        data = {"format": _FORMAT, "version": 1, "conversations": [chat]}
        try:
            if all(one["role"] != "assistant" for one in messages):
                (self._path or path).unlink(missing_ok=True)
                return
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with atomic_write(path, is_ours=True) as part:
                part.write_text(json.dumps(data, ensure_ascii=False), "utf-8", "replace")
            if self._path and self._path != path:
                self._path.unlink(missing_ok=True)
            self._path = path
            for old in sorted(self.folder.glob("*.json"))[: -self._most]:
                old.unlink(missing_ok=True)
        except OSError as error:
            if not self._has_failed:
                self.problem = f"Note: the chat is not kept: {self.folder}: {error.strerror}."
            self._has_failed = True


def _read(path: Path) -> KeptChat:
    (chat,) = json.loads(path.read_text(encoding="utf-8"))["conversations"]
    messages = [dict(one) for one in chat["messages"]]
    if not all(one["role"] in {"system", "user", "assistant"} for one in messages):
        raise ValueError(path)
    title, updated = str(chat["title"]), float(chat["updated"]) / 1000
    return KeptChat(path, title, updated, str(chat["model"]), messages, dict(chat["settings"]))


def plain(message: Mapping[str, Any]) -> str:
    """Return the content of a message as text, with `[image]` for each image."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return " ".join(part.get("text", "[image]") for part in content)


def _ago(then: float) -> str:
    passed = max(0.0, time.time() - then)
    for name, length in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if n := int(passed / length):
            return f"{n} {name}{'' if n == 1 else 's'} ago"
    return "just now"


def forget() -> tuple[int, int]:
    """Remove the kept chats and the typed lines; return the number of chats and of bytes.

    Raises:
        SessionError: One of them cannot be removed.
    """
    n_chats = n_bytes = 0
    for path in [*(state_folder() / "chats").glob("*"), history_file()]:
        if path.is_file():
            n_chats += path.suffix == ".json"
            n_bytes += path.stat().st_size
            try:
                path.unlink()
            except OSError as error:
                fact = f"{path} cannot be removed: {error.strerror}."
                raise SessionError(fact, f"{remedy(error)}.") from None
    return n_chats, n_bytes
