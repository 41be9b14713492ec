"""One streamed answer from several attempts: a repeated answer goes on where the last one ended.

The seed decides the text, so a repeated request begins with the text that the client already has.
The events of an attempt are cut by that text. Where they do not begin with it, the nodes differ in
machine or build, and the answer cannot be continued.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from ..server.errors import SHUTTING_DOWN
from ..server.wire import DATA_EVENTS

# Routes whose streams are continued: those whose events are known here.
CONTINUED = ("/v1/chat/completions", "/v1/completions")
S = TypeVar("S", str, list[str])
# Delta that comes once in an answer, whole.
_ROLE = "role"


class AttemptLostError(Exception):
    """The replica of an attempt is lost or shuts down."""


class DifferentTextError(Exception):
    """A repeated answer does not begin with the text that was sent."""


class _Sent(Generic[S]):
    """A sequence that the client has, and the place in it that the running attempt has reached."""

    def __init__(self, nothing: S) -> None:
        self._all: S = nothing
        self._place = 0

    def rewind(self) -> None:
        self._place = 0

    def n_known(self, piece: S) -> int:
        """Return how many items of the next piece the client has; add the others."""
        known = self._all[self._place : self._place + len(piece)]
        if piece[: len(known)] != known:
            raise DifferentTextError
        self._place += len(piece)
        self._all = self._all + piece[len(known) :]
        return len(known)


class _Choice:
    """What the client has of one choice."""

    def __init__(self) -> None:
        self._texts: dict[str, _Sent[str]] = {}
        self._tokens = _Sent[list[str]]([])
        self._whole: set[str] = set()
        self._n_tokens = self._n_tokens_sent = 0  # of `speculation`: in this attempt, in all

    def rewind(self) -> None:
        for text in self._texts.values():
            text.rewind()
        self._tokens.rewind()
        self._n_tokens = 0

    def cut(self, choice: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the part of a choice object that the client lacks, and whether there is any."""
        if "delta" in choice:
            delta = {name: self._rest(name, value) for name, value in choice["delta"].items()}
            rest = {name: value for name, value in delta.items() if value is not None}
            choice, is_new = choice | {"delta": rest}, any(rest.values())
        else:
            choice = choice | {"text": self._rest("text", choice["text"])}
            is_new = bool(choice["text"])
        logprobs = self._rest_of_logprobs(choice["logprobs"])
        finish = choice["finish_reason"]
        is_last = finish is not None and self._is_first("finish_reason")
        return choice | {"logprobs": logprobs}, is_new or bool(logprobs) or is_last

    def _rest(self, name: str, value: Any) -> Any:
        if name == _ROLE:
            return value if self._is_first(name) else None
        if name == "tool_calls":
            return [rest for call in value if (rest := self._rest_of_call(call))] or None
        return value[self._texts.setdefault(name, _Sent("")).n_known(value) :]

    def _rest_of_call(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Cut the arguments of a call; its id and name come once, with those of the first attempt.

        Returns:
            The rest; None if nothing is left.
        """
        at, function = f"tool_calls[{call['index']}]", call["function"]
        if "id" in call:
            is_first = self._is_first(at)
            names = self._texts.setdefault(f"{at}.name", _Sent(""))
            names.n_known(function["name"])
            return call if is_first else None
        arguments = self._rest(at, function["arguments"])
        return call | {"function": {"arguments": arguments}} if arguments else None

    def _is_first(self, name: str) -> bool:
        is_first = name not in self._whole
        self._whole.add(name)
        return is_first

    def _rest_of_logprobs(self, logprobs: dict[str, Any] | None) -> dict[str, Any] | None:
        """Cut the lists of the tokens; None if nothing is left."""
        if logprobs is None:
            return None
        named = logprobs.get("content")
        tokens = logprobs["tokens"] if named is None else [one["token"] for one in named]
        n = self._tokens.n_known(tokens)
        if n == len(tokens):
            return None
        return {
            name: value[n:] if isinstance(value, list) else value
            for name, value in logprobs.items()
        }

    def cut_speculation(self, drafts: dict[str, Any]) -> dict[str, Any] | None:
        """Return the draft marks of the text that the client lacks; None if there are none."""
        n_before, self._n_tokens = self._n_tokens, self._n_tokens + drafts["tokens"]
        n = self._n_tokens - max(n_before, self._n_tokens_sent)
        self._n_tokens_sent = max(self._n_tokens, self._n_tokens_sent)
        if n <= 0:
            return None
        return drafts | {"tokens": n, "accepted": min(n, drafts["accepted"])}


class ContinuedAnswer:
    """Joins the server-sent events of several attempts to one answer.

    Attributes:
        is_complete: Whether the answer has ended.
    """

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}
        self._has_usage = self._repeats = False
        self.is_complete = False

    def repeat(self) -> None:
        """Begin another attempt."""
        self._repeats = True
        for choice in self._choices.values():
            choice.rewind()

    def take(self, written: bytes) -> bytes:
        """Return what the client gets of an event; may be empty.

        Args:
            written: The event, with the empty line after it.

        Raises:
            AttemptLostError: The replica shuts down before the end of the answer.
            DifferentTextError: This attempt has another text than the one before.
        """
        if written == DATA_EVENTS.end:
            self.is_complete = True
            return written
        if written == DATA_EVENTS.ping:
            return written
        data = json.loads(written.removeprefix(b"data: "))
        if "error" in data:
            if data["error"]["code"] == SHUTTING_DOWN:
                raise AttemptLostError
            self.is_complete = True
            return written
        self._head = self._head or {name: data[name] for name in ("id", "created")}
        rest = self._cut(data | self._head)
        if not self._repeats:
            return written
        return DATA_EVENTS.write(rest) if rest else b""

    def _cut(self, data: dict[str, Any]) -> dict[str, Any] | None:
        if not data["choices"]:
            had, self._has_usage = self._has_usage, True
            return None if had else data
        (choice,) = data["choices"]
        known = self._choices.setdefault(choice["index"], _Choice())
        text = _text_of(choice)
        rest, is_new = known.cut(choice)
        if "speculation" in data:
            drafts = known.cut_speculation(data.pop("speculation"))
            if drafts:
                n_known = len(text) - len(_text_of(rest))
                data["speculation"] = drafts | {"text": _after(drafts["text"], n_known)}
                is_new = True
        return data | {"choices": [rest]} if is_new else None


def _text_of(choice: dict[str, Any]) -> str:
    text: str = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    return text


def _after(parts: Sequence[Sequence[Any]], n: int) -> list[list[Any]]:
    """Return the marked parts of a text after its first `n` characters."""
    rest = []
    for text, is_accepted in parts:
        if text[n:]:
            rest.append([text[n:], is_accepted])
        n = max(0, n - len(text))
    return rest


def error_event(error: dict[str, Any]) -> bytes:
    """Return the event that ends an answer with an error."""
    return DATA_EVENTS.write({"error": error})
