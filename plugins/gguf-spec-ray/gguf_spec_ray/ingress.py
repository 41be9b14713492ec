"""Ingress: sends each request to a replica, and again to another one if that replica is lost.

A request is sent to a replica as data. The seed decides the text, so a repeated request begins with
the text that the client already has, and the events of an attempt are cut by that text. Where they
do not begin with it, the nodes differ in machine or build, and the answer cannot be continued.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp

from gguf_spec.protocols.bodies import parse
from gguf_spec.protocols.errors import SHUTTING_DOWN, ApiError
from gguf_spec.protocols.replies import DATA_EVENTS, JSON_LINES, NAMED_EVENTS
from gguf_spec.server import Settings
from gguf_spec.server.streams import refused
from gguf_spec.server.uploads import BodyReader

# Routes whose requests have a seed.
SEEDED = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/infill",
    "/completion",
    "/v1/edit",
)
# Headers about a body that the ingress has read, and may have changed.
_OF_THE_BODY = (b"content-length", b"transfer-encoding", b"expect")


def path_of(request: Request) -> str:
    """Return the path of a request below the prefix of the application."""
    scope = request.scope
    return scope["path"].removeprefix(scope.get("root_path", "").rstrip("/")) or "/"


@dataclass(frozen=True)
class Head:
    """Status and headers of a response.

    Attributes:
        status: HTTP status code.
        headers: Names and values.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes:
        """Return the value of a header; empty if no header has it."""
        return next((value for one, value in self.headers if one.lower() == name), b"")


@dataclass(frozen=True)
class Call:
    """A request with its whole body, as data.

    Attributes:
        scope: Its ASGI scope, with the path below the prefix of the application.
        body: The body.
    """

    scope: dict[str, Any]
    body: bytes

    @classmethod
    def of(cls, request: Request, body: bytes) -> Call:
        """Return a request with its body as data."""
        path, given = path_of(request), request.scope
        headers = [
            (bytes(name), bytes(value))
            for name, value in given["headers"]
            if name.lower() not in _OF_THE_BODY
        ]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": given["method"],
            "scheme": given["scheme"],
            "path": path,
            "raw_path": path.encode(),
            "query_string": given["query_string"],
            "root_path": "",
            "headers": headers,
            "client": None,
            "server": None,
        }
        return cls(scope, body)

    def with_seed(self) -> Call:
        """Return the request with a seed if it generates text, so that a repetition is the same.

        A body that is not valid stays as it is; the replica refuses it.
        """
        if self.scope["method"] != "POST" or self.scope["path"] not in SEEDED:
            return self
        with suppress(ApiError):
            fields = parse(self.body)
            if fields.get("seed") is None:
                fields["seed"] = secrets.randbits(32)
                return replace(self, body=json.dumps(fields, ensure_ascii=False).encode())
        return self

    async def run(self, app: ASGIApp) -> AsyncIterator[Head | bytes]:
        """Call an ASGI application; yield the head of its response, then the parts of the body.

        The application is told of a disconnect when the iterator is closed.
        """
        messages: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        requests = [{"type": "http.request", "body": self.body, "more_body": False}]
        is_closed = asyncio.Event()

        async def receive() -> Any:
            if requests:
                return requests.pop()
            await is_closed.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            messages.put_nowait(message)

        task = asyncio.ensure_future(app({**self.scope}, receive, send))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while message := await messages.get():
                if message["type"] == "http.response.start":
                    yield Head(message["status"], tuple(map(tuple, message["headers"])))
                elif message.get("body"):
                    yield message["body"]
            await task
        finally:
            is_closed.set()


# Routes whose streams are continued: those whose events are known here.
CONTINUED = ("/v1/chat/completions", "/v1/completions")
S = TypeVar("S", str, list[str])


class AttemptLostError(Exception):
    """The replica of an attempt is lost or shuts down."""


class DifferentTextError(Exception):
    """A repeated answer does not begin with the text that was sent."""


class _Choice:
    """The part of one choice that the client has received."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}  # texts and lists of tokens that the client has, by name
        self._places: dict[str, int] = {}  # the place in each that the running attempt has reached
        self._whole: set[str] = set()
        self._n_tokens = self._n_tokens_sent = 0  # of `speculation`: in this attempt, in all

    def rewind(self) -> None:
        self._places.clear()
        self._n_tokens = 0

    def _rest(self, name: str, piece: S) -> S:
        """Return the part of the next piece of a text or list that the client lacks; add it."""
        sent, place = self._sent.get(name, piece[:0]), self._places.get(name, 0)
        known = sent[place : place + len(piece)]
        if piece[: len(known)] != known:
            raise DifferentTextError
        rest = piece[len(known) :]
        self._sent[name], self._places[name] = sent + rest, place + len(piece)
        return rest

    def cut(self, choice: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Return the part of a choice object that the client lacks, and whether there is any."""
        if "delta" in choice:
            delta = {name: self._rest_of(name, value) for name, value in choice["delta"].items()}
            rest = {name: value for name, value in delta.items() if value is not None}
            choice, is_new = choice | {"delta": rest}, any(rest.values())
        else:
            choice = choice | {"text": self._rest("text", choice["text"])}
            is_new = bool(choice["text"])
        logprobs = self._rest_of_logprobs(choice["logprobs"])
        finish = choice["finish_reason"]
        is_last = finish is not None and self._is_first("finish_reason")
        return choice | {"logprobs": logprobs}, is_new or bool(logprobs) or is_last

    def _rest_of(self, name: str, value: Any) -> Any:
        if name == "role":  # comes once in an answer
            return value if self._is_first(name) else None
        if name == "tool_calls":
            return [rest for call in value if (rest := self._rest_of_call(call))] or None
        return self._rest(name, value)

    def _rest_of_call(self, call: dict[str, Any]) -> dict[str, Any] | None:
        """Cut the arguments of a call; its id and name come once, with those of the first attempt.

        Returns:
            The rest; None if nothing is left.
        """
        at, function = f"tool_calls[{call['index']}]", call["function"]
        if "id" in call:
            self._rest(f"{at}.name", function["name"])  # it must be that of the first attempt
            return call if self._is_first(at) else None
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
        n = len(tokens) - len(self._rest("logprobs", tokens))
        if n == len(tokens):
            return None
        cut = {name: value[n:] for name, value in logprobs.items() if isinstance(value, list)}
        return logprobs | cut

    def cut_speculation(self, drafts: dict[str, Any], n_known: int) -> dict[str, Any] | None:
        """Return the draft marks of the text that the client lacks; None if there are none.

        Args:
            drafts: The draft marks of the text of an event.
            n_known: Number of characters of this text that the client has.
        """
        n_before, self._n_tokens = self._n_tokens, self._n_tokens + drafts["tokens"]
        n = self._n_tokens - max(n_before, self._n_tokens_sent)
        self._n_tokens_sent = max(self._n_tokens, self._n_tokens_sent)
        if n <= 0:
            return None
        parts = []
        for text, is_accepted in drafts["text"]:
            if text[n_known:]:
                parts.append([text[n_known:], is_accepted])
            n_known = max(0, n_known - len(text))
        return drafts | {"tokens": n, "accepted": min(n, drafts["accepted"]), "text": parts}


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
        """Return the part of an event for the client; may be empty.

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
        rest, is_new = known.cut(choice)
        if "speculation" in data:
            n_known = len(_text_of(choice)) - len(_text_of(rest))
            if drafts := known.cut_speculation(data.pop("speculation"), n_known):
                data["speculation"], is_new = drafts, True
        return data | {"choices": [rest]} if is_new else None


def _text_of(choice: dict[str, Any]) -> str:
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


# A request that crashes a replica must not crash all of them.
MOST_ATTEMPTS = 3
_STREAMS = tuple(form.media_type.encode() for form in (DATA_EVENTS, NAMED_EVENTS, JSON_LINES))
_log = logging.getLogger("gguf_spec_ray")

Parts = AsyncIterator[Head | bytes]


class Ingress:
    """Repeats requests whose replica is lost. The client sees one answer.

    A request without a seed gets one before its first attempt, so that a repetition has the same
    text. A streamed answer goes on after the text that the client already has.

    Attributes:
        n_repeated: Number of repeated attempts.
    """

    def __init__(self, open_: Callable[[Call], Parts], settings: Settings) -> None:
        """Create an ingress.

        Args:
            open_: Sends a request to a replica and yields the head and the body of the response.
                It raises `AttemptLostError` if the replica is lost, and `ApiError` if no replica
                takes the request.
            settings: Settings of the server.
        """
        self._open, self._bodies = open_, BodyReader(settings, lambda: False)
        self.n_repeated = 0

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        try:
            body = await self._bodies.receive(request)
            call = await self._bodies.convert(body, Call.of(request, body).with_seed)
            return await self._answer(call)
        except ApiError as refusal:
            return refused(refusal, path_of(request))

    async def _answer(self, call: Call) -> Response:
        for n_left in reversed(range(MOST_ATTEMPTS)):
            try:
                parts = self._open(call)
                head = await _head(parts)
                if _is_stream(head):
                    continues = call.scope["path"] in CONTINUED
                    rest = self._continued(call, parts, n_left) if continues else _body(parts)
                    return _response(head, StreamingResponse(rest))
                body = b"".join([part async for part in parts if isinstance(part, bytes)])
                if not _is_ending(head, body):
                    return _response(head, Response(body))
            except AttemptLostError:
                pass
            self._count(n_left)
        raise _lost()

    async def _continued(self, call: Call, parts: Parts, n_left: int) -> AsyncIterator[bytes]:
        """Yield the events of an answer, which another replica continues if one is lost."""
        answer = ContinuedAnswer()
        try:
            while True:
                try:
                    async for written in _events(parts):
                        if rest := answer.take(written):
                            yield rest
                except AttemptLostError:
                    pass
                if answer.is_complete:
                    return
                self._count(n_left)
                if not n_left:
                    raise _lost()
                n_left -= 1
                answer.repeat()
                parts = self._open(call)
        except DifferentTextError:
            message = "The replica was lost, and another one has a different text."
            yield DATA_EVENTS.write({"error": ApiError(message, None, "replica_lost", 503).error})
        except ApiError as refusal:
            yield DATA_EVENTS.write({"error": refusal.error})

    def _count(self, n_left: int) -> None:
        self.n_repeated += n_left > 0
        _log.warning("a replica was lost; %d more attempts", n_left)


async def _head(parts: Parts) -> Head:
    async for part in parts:
        if isinstance(part, Head):
            return part
    raise AttemptLostError


async def _body(parts: Parts) -> AsyncIterator[bytes]:
    """Yield the body of a stream that no other replica can continue.

    Raises:
        AttemptLostError: The replica is lost. The connection ends, so the client sees the loss.
    """
    async for part in parts:
        if isinstance(part, bytes):
            yield part


async def _events(parts: Parts) -> AsyncIterator[bytes]:
    """Yield the whole events of a body; the rest of one that was cut is dropped.

    Raises:
        ApiError: A repeated request was refused.
    """
    rest, head = b"", None
    async for part in parts:
        if isinstance(part, Head):
            head = part
            continue
        rest += part
        if head and not _is_stream(head):
            continue
        *events, rest = rest.split(b"\n\n")
        for one in events:
            yield one + b"\n\n"
    if head and not _is_stream(head):
        if _is_ending(head, rest):
            raise AttemptLostError
        raise ApiError("The request was refused when it was repeated.", None, None, head.status)


def _is_stream(head: Head) -> bool:
    return head.get(b"content-type").startswith(_STREAMS)


def _is_ending(head: Head, body: bytes) -> bool:
    """Return whether a replica refused or ended a request because it shuts down."""
    return head.status == 503 and f'"{SHUTTING_DOWN}"'.encode() in body


def _response(head: Head, response: Response) -> Response:
    response.status_code = head.status
    response.raw_headers = [
        *((name, value) for name, value in head.headers if name.lower() != b"content-length"),
        *((name, value) for name, value in response.raw_headers if name == b"content-length"),
    ]
    return response


def _lost() -> ApiError:
    fact = f"The replica was lost in each of {MOST_ATTEMPTS} attempts."
    return ApiError(fact, None, "replica_lost", 503, {"Retry-After": "5"})
