"""Running servers of this user: each writes a small file, from which commands find and use it.

A command whose model such a server holds, from the same file with the same options, lets it answer:
nothing is loaded twice. The text is the same, as it does not depend on the requests beside it. The
file can be read by this user alone, and has a token that the server asks for. A server is asked
only if the process of the file belongs to this user and listens at that port.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import itertools
import json
import operator
import os
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from .. import __version__
from ..engine import Answer, Engine, Facts, Infill, Measured, Request
from ..errors import ClosedError, GgufSpecError, PromptTooLongError
from ..images import GivenImage, has_images
from ..options import LOADING, Message, PromptOptions, Sampling, Speculation
from ..results import (
    POLL_S,
    Chunk,
    Completion,
    Ended,
    Listener,
    OnProgress,
    Part,
    Progress,
    Stats,
    TokenLogprob,
    Work,
)
from ..runtime.client import Client
from ..system.files import atomic_write, state_folder
from ..vocabulary import Tokens

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.local_engine import LocalEngine
    from .model_pool import ServedModel

_TIMEOUT_S = 2.0  # for the answer of a server
_MOST_BYTES = 1 << 20  # of that answer
# Addresses that mean all addresses of a machine -> the one to connect to.
_CONNECT = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}


@dataclass(frozen=True)
class RunningServer:
    """A running server.

    Attributes:
        pid: Number of its process.
        models: The models in memory, as the route `/api/ps` lists them.
        token: Token that opens the routes for commands of this user.
        keys: Name of each model -> `load_key` of it.
    """

    url: str
    pid: int
    models: tuple[dict[str, Any], ...]
    token: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)


def _folder() -> Path:
    return state_folder() / "servers"


@contextmanager
def listed(url: str, token: str, models: Sequence[ServedModel]) -> Iterator[None]:
    """List a server of this process for `running_servers`, if the folder can be written."""
    file = None
    with contextlib.suppress(OSError, RuntimeError):
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / f"{os.getpid()}-{url.rpartition(':')[2]}.json"
        entry = {"url": url, "pid": os.getpid(), "token": token}
        entry["keys"] = {model.id: model.key for model in models if model.key}
        with atomic_write(file, lasting=False, is_ours=True) as part:
            part.write_text(json.dumps(entry), encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if file:
                file.unlink()


def running_servers() -> list[RunningServer]:
    """Return the running servers of this user that are listed, with their loaded models.

    Files of servers that do not answer are ignored, and deleted if their process has ended.
    """
    found = []
    with contextlib.suppress(OSError, RuntimeError):
        for file in sorted(_folder().glob("*.json")):
            server = _read(file)
            if server:
                found.append(server)
    return found


def _read(file: Path) -> RunningServer | None:
    try:
        entry = json.loads(file.read_text(encoding="utf-8"))
        url, pid, token = str(entry["url"]), int(entry["pid"]), str(entry["token"])
        keys = dict(entry.get("keys", {}))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    try:
        if not _is_own(url, pid):
            return None
        return RunningServer(url, pid, _ask(url, token), token, keys)
    except (OSError, ValueError, KeyError, TypeError):
        import psutil

        if not psutil.pid_exists(pid):
            with contextlib.suppress(OSError):
                file.unlink()
        return None


def _is_own(url: str, pid: int) -> bool:
    """Return whether a process of this user listens at the port; `OSError` if there is none."""
    import psutil

    try:
        process = psutil.Process(pid)
        me = psutil.Process()
        if process.username() != me.username():
            return False
        port = urlsplit(url).port
        listening = psutil.CONN_LISTEN
        connections = process.net_connections("tcp")
        return any(one.status == listening and one.laddr.port == port for one in connections)
    except psutil.NoSuchProcess:
        raise ProcessLookupError(pid) from None
    except psutil.Error:
        return False


def _reachable(url: str) -> str:
    for anywhere, here in _CONNECT.items():
        url = url.replace(f"//{anywhere}:", f"//{here}:")
    if not url.startswith("http://"):
        raise ValueError(url)
    return url


def _ask(url: str, token: str) -> tuple[dict[str, Any], ...]:
    url = _reachable(url)
    headers = {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url}/api/ps", headers=headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_TIMEOUT_S) as response:
        models = json.loads(response.read(_MOST_BYTES))["models"]
    return tuple(dict(model) for model in models)


# ---- models of servers, for commands

CALL = "/gguf-spec/call"
_PACKED: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        Sampling,
        Speculation,
        Chunk,
        Completion,
        Stats,
        TokenLogprob,
        Part,
        Progress,
        Facts,
        Measured,
        Request,
        PromptOptions,
        Infill,
    )
}
_COLLECTIONS: dict[str, Callable[..., Any]] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "path": lambda parts: Path(*parts),
}


def load_key(file: Path, options: Mapping[str, Any]) -> str:
    """Return a digest of what texts depend on: a model's file, its options, and this package."""
    status = file.stat()
    # A context ends a text, and is compared by its length.
    of_text = {name for name, rule in LOADING.items() if not rule.of_speed}
    given = {n: options.get(n) for n in sorted(of_text) if not n.startswith("draft_")}
    package = __version__, os.fspath(Path(__file__).parents[1])
    facts = package, os.fspath(file.resolve()), status.st_size, status.st_mtime_ns, given
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def pack(value: Any) -> Any:
    """Return a value as JSON; `unpack` returns it again, with the types of this package."""
    if is_dataclass(value) and not isinstance(value, type):
        of = {one.name: pack(getattr(value, one.name)) for one in fields(value)}
        return {"type": type(value).__name__, "fields": of}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        of = {name: pack(getattr(value, name)) for name in value._fields}
        return {"type": type(value).__name__, "fields": of}
    if isinstance(value, Mapping):
        return {"type": "dict", "items": [[pack(k), pack(v)] for k, v in value.items()]}
    if isinstance(value, (tuple, frozenset)):
        return {"type": type(value).__name__, "items": [pack(one) for one in value]}
    if isinstance(value, Path):
        return {"type": "path", "items": [os.fspath(value)]}
    return [pack(one) for one in value] if isinstance(value, list) else value


def unpack(value: Any) -> Any:
    """Return the value that was given to `pack`.

    Raises:
        ValueError, TypeError, KeyError, GgufSpecError: It is no such value.
    """
    if isinstance(value, list):
        return [unpack(one) for one in value]
    if not isinstance(value, dict):
        return value
    if value["type"] == "dict":
        return {unpack(k): unpack(v) for k, v in value["items"]}
    if value["type"] in _COLLECTIONS:
        return _COLLECTIONS[value["type"]](unpack(one) for one in value["items"])
    fields_of = {name: unpack(v) for name, v in value["fields"].items()}
    if value["type"] == "WholeGrammarSampling":  # of a batch
        from ..options import WholeGrammarSampling

        return WholeGrammarSampling(**fields_of)
    return _PACKED[value["type"]](**fields_of)


# What a `RemoteEngine` looks up -> how a vocabulary is asked for it.
_LOOKS: dict[str, Callable[..., Any]] = {
    "tokenize": lambda tokens, **options: tokens.tokenize(**options),
    "piece": lambda tokens, token: [*tokens.piece(token)],
    "token_text": lambda tokens, token: tokens.token_text(token),
    "is_end": lambda tokens, token: tokens.is_end(token),
}


def call(
    engine: Engine[Answer],
    data: Any,
    send: Callable[[str, Any], None],
    reading: Callable[..., Any],
) -> Work[None]:
    """Do what a `RemoteEngine` asks for.

    Args:
        data: The body of the request: `method` and `options`.
        send: Called with the kind and the value of each part of the answer.
        reading: Context manager that cancels an answer when the client leaves.
    """
    method, options = data["method"], dict(unpack(data["options"]))
    if method == "facts":
        send("value", [engine.facts, engine.measured])
    elif method == "encode":
        send("value", [*engine.encode(**options)])
    elif method in _LOOKS:
        send("value", _LOOKS[method](engine.vocabulary, **options))
    elif method == "submit":
        request: Request = options["request"]
        if options["reports"]:
            request = replace(request, on_prompt=lambda progress: send("progress", progress))
        with engine.submit(request) as answer, reading(answer):
            send("begun", [answer.stats, answer.seed])

            def send_chunk(chunk: Chunk) -> None:
                send("stats", answer.stats)  # before it, for a client that ends the answer there
                send("chunk", chunk)

            yield answer, send_chunk
            send("value", answer.result)
    else:
        raise ValueError(method)


class _NotServedError(Exception):
    """The server does not do it, and says why as message and hint, or cannot be reached."""


class ServedStream:
    """A generation in a server, as a `Stream` of this process.

    Attributes:
        stats: Token counts and times of what arrived; complete after the last chunk.
    """

    def __init__(
        self,
        parts: Iterator[tuple[str, Any]],
        url: str,
        end: Callable[[], None],
        on_prompt: OnProgress | None,
    ) -> None:
        """Take over an answer.

        Args:
            parts: Its parts; the first one has the counts before the first pass, and the seed.
            end: Ends the connection, which cancels the generation; called from any thread.
        """
        self._parts, self._url, self._end, self._on_prompt = parts, url, end, on_prompt
        self.stats: Stats
        self.seed: int
        _, (self.stats, self.seed) = next(parts)
        self._chunks: list[Chunk] = []
        self._result: Completion | None = None
        self._is_cancelled = False

    def run_to_end(self, on_chunk: Callable[[Chunk], object] = lambda _: None) -> Completion:
        for chunk in self:
            on_chunk(chunk)
        return self.result

    def listen(
        self, call: Callable[[Chunk | Ended], object], is_full: Callable[[], bool] = bool
    ) -> None:
        """Read it in a thread of its own, as it has a connection of its own."""
        given = self, lambda: self._is_cancelled, self.cancel
        read = Listener(call, is_full).read
        threading.Thread(target=read, args=given, name="gguf-spec-served", daemon=True).start()

    @property
    def result(self) -> Completion:
        if self._result:
            return self._result
        chunks = self._chunks
        tokens = tuple(token for chunk in chunks for token in chunk.tokens)
        return Completion(
            "".join(chunk.text for chunk in chunks),
            tokens,
            "cancelled",
            self.seed,
            replace(self.stats, n_generated=len(tokens)),
            reasoning="".join(chunk.reasoning for chunk in chunks),
            accepted_text=tuple(one for chunk in chunks for one in chunk.accepted_text),
        )

    def cancel(self) -> None:
        """End the generation; safe from any thread and from a signal handler."""
        self._is_cancelled = True
        self._end()

    close = cancel

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            for kind, value in self._parts:
                if kind == "chunk":
                    self._chunks.append(value)
                    return self._chunks[-1]
                if kind == "value":
                    self._result, self.stats = value, value.stats
                elif kind == "stats":
                    self.stats = value
                elif self._on_prompt and self._on_prompt(value) is False:
                    self.cancel()
        except _NotServedError as error:
            if not self._is_cancelled:
                fact = f"the server at {self._url} ended in the middle of the answer."
                told = error.args or (fact, "repeat it: the model is loaded here then.")
                raise GgufSpecError(*told) from None
        raise StopIteration

    def __enter__(self) -> ServedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _RemoteTokens:
    """Look-ups in the vocabulary of an engine in another process; the answers are kept."""

    def __init__(self, look: Callable[..., Any]) -> None:
        self._look = look
        self._known: dict[tuple[str, int], Any] = {}

    def tokenize(
        self, text: str | bytes, *, special: bool, start: bool = True, most: int | None = None
    ) -> list[int]:
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        found: list[int] = self._look(
            "tokenize", text=text, special=special, start=start, most=most
        )
        return found

    def piece(self, token: int) -> bytes:
        return bytes(self._of("piece", token))

    def token_text(self, token: int) -> str:
        return str(self._of("token_text", token))

    def is_end(self, token: int) -> bool:
        return bool(self._of("is_end", token))

    def _of(self, method: str, token: int) -> Any:
        token = operator.index(token)
        if (method, token) not in self._known:
            self._known[method, token] = self._look(method, token=token)
        return self._known[method, token]


class RemoteEngine:
    """A model in a running server; see `gguf_spec.engine`.

    What the server refuses, or what is asked when it is gone, is done by the model in this process,
    which is loaded for it. So are images, sessions and the scores of texts.
    """

    path: Path
    speculation: Speculation
    url: str

    def __init__(
        self,
        server: RunningServer,
        model: str,
        load: Callable[[], LLM],
        path: Path,
        speculation: Speculation,
    ) -> None:
        """Ask a server for a model, by its name there; `load` loads its file in this process."""
        self.url, self._server, self._model, self._load = server.url, server, model, load
        self.loaded: LLM | None = None  # here, since the server does not answer
        self._loading, self._has_ended = threading.Lock(), False
        self._waiting: list[Callable[[], None]] = []  # what ends each request without an answer yet
        self._is_taken = False
        facts: Facts
        self._measured: Measured
        facts, self._measured = self._call("facts")
        self._facts = replace(facts, path=path, speculation=speculation)
        self._tokens = _RemoteTokens(self._look)
        self._is_taken = True

    def _here(self) -> LocalEngine:
        with self._loading:
            if self.loaded is None:
                self.loaded = self._load()
        return self.loaded.engine

    @property
    def facts(self) -> Facts:
        return self.loaded.engine.facts if self.loaded else self._facts

    @property
    def measured(self) -> Measured:
        return self.loaded.engine.measured if self.loaded else self._measured

    @property
    def vocabulary(self) -> Tokens:
        return self.loaded.engine.vocabulary if self.loaded else self._tokens

    def check_generates(self) -> None:
        if not self._facts.generates:
            self._here().check_generates()

    def encode(
        self,
        prompt: str | Sequence[Message] | Infill,
        form: PromptOptions,
        *,
        special: bool = True,
        images: Sequence[GivenImage] = (),
        most: int | None = None,
    ) -> list[int]:
        if not (self.loaded or images or has_images(prompt)):
            asked = {"prompt": prompt, "form": form, "special": special, "most": most}
            with contextlib.suppress(_NotServedError):
                found: list[int] = self._call("encode", **asked)
                return found
        return self._here().encode(prompt, form, special=special, images=images, most=most)

    def submit(self, request: Request) -> Answer:
        """Begin an answer; one whose callback may end it at a token is of this process."""
        prompt = request.prompt
        is_own = request.on_token or request.images or has_images(prompt)
        if not (self.loaded or is_own):
            report = request.on_prompt
            asked = {"request": replace(request, on_prompt=None), "reports": report is not None}
            with contextlib.suppress(_NotServedError):
                parts, end = self._ask("submit", asked)
                return ServedStream(parts, self.url, end, report)
        return self._here().submit(request)

    def score(
        self, tokens: Sequence[int], logprobs: int, on_pass: Callable[[], object]
    ) -> list[TokenLogprob]:
        return self._here().score(tokens, logprobs, on_pass)

    def save_session(self, path: Path, data: Mapping[str, Any]) -> None:
        self._here().save_session(path, data)

    def restore_session(self, path: Path) -> tuple[dict[str, Any], str]:
        return self._here().restore_session(path)

    def _look(self, method: str, **options: Any) -> Any:
        if not self.loaded:
            with contextlib.suppress(_NotServedError):
                return self._call(method, **options)
        return _LOOKS[method](self._here().vocabulary, **options)

    def _call(self, method: str, **options: Any) -> Any:
        parts, _ = self._ask(method, options)
        return next(value for kind, value in parts if kind == "value")

    def _ask(
        self, method: str, options: dict[str, Any]
    ) -> tuple[Iterator[tuple[str, Any]], Callable[[], None]]:
        """Return the parts of an answer, and what ends the connection.

        Raises:
            _NotServedError: There is no answer.
            PromptTooLongError: As in this process.
        """
        at = urlsplit(_reachable(self.url))
        connection = http.client.HTTPConnection(at.hostname or "", at.port)
        data = {"model": self._model, "method": method, "options": pack(options)}
        headers = {"Authorization": f"Bearer {self._server.token}"}
        while True:
            try:
                connection.request("POST", CALL, json.dumps(data), headers)
                channel, response = connection.sock, connection.getresponse()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise _NotServedError from error
            if response.status == 200:
                break
            wait = response.getheader("Retry-After", "")
            connection.close()
            # A server whose queue is full is not taken; one that was taken is waited for.
            if response.status != 429 or not wait.isdigit() or not self._is_taken:
                raise _NotServedError
            self._pause(int(wait))

        def end() -> None:
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

        parts = _parts(response, connection)
        self._waiting.append(end)
        try:
            if self._has_ended:
                connection.close()  # `parts` closes it only once it has begun
                raise ClosedError
            first = next(parts, None)  # an error comes here
        except _NotServedError:
            if self._has_ended:
                raise ClosedError from None
            raise
        finally:
            self._waiting.remove(end)
        if first is None:
            raise _NotServedError
        return itertools.chain([first], parts), end

    def _pause(self, seconds: int) -> None:
        """Wait before the next try; without an Event: Ctrl-C could leave its lock taken."""
        end_s = time.monotonic() + seconds
        while not self._has_ended and time.monotonic() < end_s:
            time.sleep(POLL_S)
        if self._has_ended:
            raise ClosedError

    def end_requests(self) -> None:
        """End the requests that wait for their turn in the server; refuse further ones."""
        self._has_ended = True
        for end in [*self._waiting]:
            end()

    def close(self) -> None:
        """Close what was loaded in this process."""
        if self.loaded:
            self.loaded.close()


class ServedLLM(Client[Answer]):
    """A model in a running server, with what commands use of an `LLM`.

    What the server refuses, or what is asked when it is gone, is done by the model in this process.
    """

    engine: RemoteEngine

    def __init__(
        self,
        server: RunningServer,
        model: str,
        load: Callable[[], LLM],
        path: Path,
        speculation: Speculation,
    ) -> None:
        """Ask a server for a model; arguments as of `RemoteEngine`."""
        super().__init__(RemoteEngine(server, model, load, path, speculation))

    @property
    def url(self) -> str:
        """Address of the server."""
        return self.engine.url

    @property
    def is_exact(self) -> bool:
        """Whether its texts do not depend on the requests beside them."""
        return self.engine.measured.is_exact

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""
        return self.vocabulary.is_end(token)

    def end_requests(self) -> None:
        """End the requests that wait for their turn in the server; refuse further ones."""
        self.engine.end_requests()

    def __enter__(self) -> ServedLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parts(
    response: http.client.HTTPResponse, connection: http.client.HTTPConnection
) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an answer: kinds and values; errors as of `RemoteEngine._ask`."""
    with contextlib.closing(connection):
        while True:
            try:
                kind, value = json.loads(response.readline())
            except (OSError, ValueError, TypeError, http.client.HTTPException) as error:
                raise _NotServedError from error
            if kind == "end":
                return
            if kind == "too long":
                raise PromptTooLongError(*value)
            if kind == "refused":
                raise _NotServedError(*value)
            yield kind, unpack(value)


def served(
    file: Path,
    options: Mapping[str, Any],
    load: Callable[[], LLM],
    least_ctx: int = 0,
    least_parallel: int = 1,
) -> ServedLLM | None:
    """Return a model in a running server of this user, if its texts are those of this process.

    Args:
        file: The file of the model.
        options: Arguments of `load`.
        load: Loads the model in this process, where the server cannot answer.
        least_ctx: Least number of tokens that its context must hold.
        least_parallel: Least number of requests that it must run at once.
    """
    key, n_ctx = load_key(file, options), options.get("n_ctx")
    speculation = options.get("speculation") or Speculation()
    if speculation.accept != "coupled":  # then texts depend on the drafts
        return None
    for server in running_servers():
        loaded = {one.get("name") for one in server.models}
        for model in (name for name, other in server.keys.items() if other == key):
            with contextlib.suppress(_NotServedError):
                if model not in loaded:
                    continue
                found = ServedLLM(server, model, load, file, speculation)
                fits = n_ctx in (None, found.n_ctx) and found.n_ctx >= least_ctx
                if fits and found.is_exact and found.parallel >= least_parallel:
                    return found
    return None
