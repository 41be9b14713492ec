"""ASGI application: access, completions, and routes for health, metrics, OpenAPI and the page.

Data sent by clients is never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .. import __version__
from ..errors import ClosedError, GgufSpecError, PromptTooLongError
from ..protocols.bodies import parse
from ..protocols.edit import read_edit
from ..protocols.errors import LOG, ApiError, as_refusal, client_closed, failure, log
from ..protocols.events import ChoiceEnded, ChunkEvent, Started
from ..protocols.fields import NOT_APPLIED, NOTED
from ..protocols.fit import with_biases, with_grammar
from ..protocols.llama_server import INFILL_EVENTS, InfillReply, read_completion, read_infill
from ..protocols.messages import MessageReply, read_request
from ..protocols.ollama import (
    OllamaReply,
    kept_seconds,
    load_answer,
    read_ollama_chat,
    read_ollama_generate,
)
from ..protocols.openai import ResponseBuilder, read_chat, read_text
from ..protocols.replies import DATA_EVENTS, JSON_LINES, NAMED_EVENTS, Reply, StreamFormat
from ..protocols.request import CompletionRequest, ReadBody
from ..protocols.responses import ResponseReply, read_response
from ..results import Work
from ..system.helper import Helper
from .background import Background
from .connections import REFUSAL
from .documents import Documents
from .edit import EditRun
from .jobs import JOB, Done, ErrorEvent, Event, Job, Sent
from .metrics import Metrics
from .model_pool import ModelPool, ServedModel
from .model_routes import ModelRoutes
from .ollama import ollama_routes
from .openapi import describe
from .responses import ResponseStore, items_route
from .running import CALL, call, pack
from .settings import Settings, host_name
from .streams import (
    UNENFORCED,
    UNFULFILLED,
    AnswerStream,
    JsonAnswer,
    refused,
    schema_headers,
    weight,
)
from .tasks import EMBEDDING_ROUTES, TaskRoute, TaskRun
from .tool_routes import ToolRoutes
from .turns import LARGE, in_time, in_turn
from .uploads import N_BYTES, BodyReader
from .worker import Worker

if TYPE_CHECKING:
    from ..runtime.llm import LLM


# A task gets the model, and a function that it calls often: it raises if the task is cancelled.
Task = Callable[["LLM", Callable[..., None]], Any]
_CODE = "gguf_spec.code"  # key of a request's scope: why it was refused, for the log
_CODES = {404: "not_found", 405: "method_not_allowed"}  # HTTP status -> error code
# Beginnings of paths, which clients also send twice or before another one.
_BEGINNINGS, _MOST_BEGINNINGS = ("v1", "api"), 3
_MOST_OF_ROUTE = 4  # parts of a route that a client's address has before the path
_HEALTH_PATHS = ("/health", "/v1/health")
# Path that the token in the file of a listed server opens, too.
_STATUS = "/api/ps"
# One INFO line for each request, without any data of the client.
_REQUESTS = logging.getLogger("gguf_spec.server.jobs")
_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
# Only the page's own files are loaded, and requests go to its own server. Scripts cannot turn text
# into markup (Trusted Types), so a mistake in the page could not become an injection either.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",  # links in answers do not tell a name server of themselves
    "Cache-Control": "no-cache",  # ask each time; the answer is 304 while the file is the same
}
# Headers of answers that a page of another origin may read.
_EXPOSED = (NOT_APPLIED, UNENFORCED, UNFULFILLED, "Retry-After", "Process-Start-Time-Unix")
# Path in the server -> file. The page itself needs no API key: it contains no data.
PATHS = {
    "/" if path.name == "page.html" else f"/page/{path.name}": path
    for path in sorted(Path(__file__).with_name("page").glob("*"))
    if path.suffix in _TYPES
}
# Paths that require no API key; their responses contain no data of any client.
_OPEN = frozenset({*PATHS, *_HEALTH_PATHS})


class ApiFormat(NamedTuple):
    """API format of a route that completes text. The format of errors is that of its path.

    Attributes:
        read: Reads a body.
        reply: Makes the reply of a request and the first event of its job; None for an edit.
        load: Returns the answer, but for the name of the model, to a body that only loads or
            unloads it; None for all others.
        refers: Whether a body may refer to what is stored, which may be long.
    """

    path: str
    read: ReadBody
    reply: Callable[[CompletionRequest, Started], Reply] | None
    stream: StreamFormat
    load: Callable[[dict[str, Any]], dict[str, Any] | None] | None = None
    refers: bool = False


def _formats(store: ResponseStore) -> tuple[ApiFormat, ...]:
    chat, generate = partial(OllamaReply, is_chat=True), partial(OllamaReply, is_chat=False)
    of_chat, of_generate = partial(load_answer, is_chat=True), partial(load_answer, is_chat=False)
    read_stored = partial(read_response, store=store)
    return (
        ApiFormat("/v1/chat/completions", read_chat, ResponseBuilder, DATA_EVENTS),
        ApiFormat("/v1/completions", read_text, ResponseBuilder, DATA_EVENTS),
        ApiFormat("/completion", read_completion, InfillReply, INFILL_EVENTS),
        ApiFormat("/infill", read_infill, InfillReply, INFILL_EVENTS),
        ApiFormat("/v1/edit", read_edit, None, DATA_EVENTS),
        ApiFormat("/v1/responses", read_stored, ResponseReply, NAMED_EVENTS, refers=True),
        ApiFormat("/api/chat", read_ollama_chat, chat, JSON_LINES, of_chat),
        ApiFormat("/api/generate", read_ollama_generate, generate, JSON_LINES, of_generate),
        ApiFormat("/v1/messages", read_request, MessageReply, NAMED_EVENTS),
    )


def make_app(llm: LLM | ModelPool, settings: Settings | None = None) -> App:
    """Return an ASGI application that serves an LLM or the models of a pool.

    `App.close()` ends the threads of the application, and unloads what the pool loaded. An LLM
    stays open.
    """
    return App(llm, settings or Settings())


class App:
    """ASGI application of the server; it owns the worker, but no socket.

    Attributes:
        status_token: Token that opens the route `/api/ps` beside the API key, and alone the route
            for commands of this user.
        pool: The models.
        helper: The process in which edits are planned; `helping` is its turn.
    """

    def __init__(self, llm: LLM | ModelPool, settings: Settings) -> None:
        self.pool: ModelPool = llm if isinstance(llm, ModelPool) else ModelPool.of(llm)
        self.models: tuple[ServedModel, ...] = self.pool.models
        self._settings, self._origins = settings, settings.origins
        self._totals, self._since = Metrics(), int(time.time())
        self.status_token: str = secrets.token_urlsafe(24)
        self.worker: Worker = Worker(self.pool, settings, self._totals)
        self._ends = False
        self.bodies: BodyReader = BodyReader(settings, lambda: self._ends)
        self._models = ModelRoutes(self.pool, self.worker, settings, self.bodies, self._since)
        self._converting = asyncio.Lock()
        self.helper: Helper = Helper()
        self.helping: asyncio.Lock = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._documents = Documents(settings, lambda: self._ends)
        self.tools: ToolRoutes = ToolRoutes(settings, self.bodies)
        self._misjoined: set[str] = set()  # paths of routes that clients have addressed wrongly
        self._asgi = self._make()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self._asgi(scope, receive, send)

    def _make(self) -> ASGIApp:
        store, settings = ResponseStore(), self._settings
        self._background = Background(store, self.worker, settings, lambda: self._ends)
        self._routes = [
            *(
                Route(one.path, partial(self._complete, one), methods=["POST"])
                for one in _formats(store)
            ),
            *self._background.routes,
            items_route(store),
            *(
                Route(path, partial(self._run_task, route), methods=["POST"])
                for path, route in EMBEDDING_ROUTES.items()
            ),
            *ollama_routes(self.pool, self._models, self.bodies),
            *self._models.routes,
            self._documents.route,
            *self.tools.routes,
            Route(CALL, self._share, methods=["POST"]),
            *(Route(path, self._health, methods=["GET"]) for path in _HEALTH_PATHS),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", self._description, methods=["GET"]),
            *(Route(path, _serve(file), methods=["GET"]) for path, file in PATHS.items()),
        ]
        handlers: dict[Any, Any] = dict.fromkeys(
            (ApiError, HTTPException, Exception), _answer_error
        )
        self._routing = Starlette(routes=self._routes, exception_handlers=handlers)
        if not self._origins:
            return self._guarded
        shared = CORSMiddleware(
            self._guarded,
            allow_origins=["*"] if "*" in self._settings.cors_origins else [],
            allow_origin_regex=self._origins.pattern,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            allow_private_network=True,
            expose_headers=_EXPOSED,
        )

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            # The middleware refuses the OPTIONS of a foreign origin in plain text.
            asks = scope["type"] == "http" and scope["method"] == "OPTIONS"
            is_foreign = asks and self._is_foreign(Headers(scope=scope))
            await (self._guarded if is_foreign else shared)(scope, receive, send)

        return app

    # ---- access

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check host, origin and API key, count the request, and hide the details of errors."""
        if scope["type"] != "http":
            return
        scope["path"] = path = self._path(scope["path"])
        status = 499  # recorded if no response was sent
        noted: list[str] = []
        NOTED.set(noted)

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if noted:
                    header = NOT_APPLIED.encode(), ", ".join(noted).encode()
                    message = {**message, "headers": [*message["headers"], header]}
            await send(message)

        try:
            refusal = None if path in _HEALTH_PATHS else scope.get(REFUSAL)
            refusal = refusal or self._check(path, Headers(scope=scope))
            app = refused(refusal, path) if refusal else self._routing
            await app(scope, receive, counting)
        except asyncio.CancelledError:
            if not self._ends:
                raise
        except Exception as error:  # uvicorn would log the message, which may quote a prompt
            log(error)
            if status == 499:
                await refused(failure(error), path)(scope, receive, counting)
        finally:
            label = self._label(path) or "other"
            if label in PATHS and label != "/":  # of the page, only its path is counted by name
                label = "other"
            self._totals.count(label, status)
            _log_request(scope, label, status)

    def _path(self, given: str) -> str:
        """Return the path of the route that a path means.

        It may lack the version. Clients that join addresses wrongly send two slashes, the beginning
        twice, or a whole route before another one: `//v1/models`, `/v1/v1/models`, `/v1/api/chat`,
        `/v1/chat/completions/chat/completions`.
        """
        given = given.rstrip("/") or "/"
        given = "/" if given == "*" else given  # OPTIONS *
        parts = [part for part in given.split("/") if part]
        n_begin = next((i for i, part in enumerate(parts) if part not in _BEGINNINGS), 0)
        starts = chain(
            range(min(n_begin, _MOST_BEGINNINGS) + 1),
            (i for i in range(1, min(len(parts), _MOST_OF_ROUTE + 1)) if self._is_whole(parts[:i])),
        )
        for path in chain([given], (f"/{'/'.join(parts[i:])}" for i in starts)):
            for meant in (path, f"/v1{path}"):
                label = self._label(meant)
                if not label or (path != given and label in PATHS):
                    continue
                if path != given and label not in self._misjoined:
                    self._misjoined.add(label)
                    fact = "Requests for %s come to another path, with //, or joined from two."
                    LOG.warning(f"{fact} They are answered; correct the client's address.", label)
                return meant
        return given

    def _is_whole(self, parts: list[str]) -> bool:
        """Return whether parts of a path are a route without a name in it, such as a client's."""
        path = "/" + "/".join(parts)
        labels = (self._label(path), self._label(f"/v1{path}"))
        return any(one and "{" not in one and one not in _OPEN for one in labels)

    def _label(self, path: str) -> str:
        """Return the path of the route for a path; empty if there is none."""
        found = (one.path for one in self._routes if one.path_regex.match(path))
        return next(found, "")

    def _check(self, path: str, headers: Headers) -> ApiError | None:
        host, key = headers.get("host"), self._settings.api_key
        if not self._settings.takes_host(host):
            name = host_name(host or "")
            fact = f"The host name {name or (host or '')[:100]!r} may not be used for this server: "
            fact += f"gguf-spec serve --allow-host {name or 'NAME'} allows it."
            return ApiError(fact, None, "unknown_host", 403)
        # CORS stops a page only from reading the response; it could still send any request.
        if self._is_foreign(headers):
            origin = headers["origin"][:100]
            fact = f"The origin {origin!r} may not use this server: "
            fact += f"gguf-spec serve --cors-origin {origin or 'ORIGIN'} allows it."
            return ApiError(fact, None, "origin_not_allowed", 403)
        if path == CALL:
            key = self.status_token
        if key is not None and path not in _OPEN:
            keys = [key, self.status_token] if path == _STATUS else [key]
            # As OpenAI and as Anthropic name it.
            kind, _, bearer = headers.get("authorization", "").partition(" ")
            given = [bearer.strip()] if kind.lower() == "bearer" else []
            given.append(headers.get("x-api-key", "").strip())
            if not any(
                hmac.compare_digest(one.encode(), known.encode()) for one in given for known in keys
            ):
                message = (
                    "Incorrect API key."
                    if any(given)
                    else "This server requires an API key: Authorization: Bearer KEY, or x-api-key."
                )
                return ApiError(
                    message, None, "invalid_api_key", 401, {"WWW-Authenticate": "Bearer"}
                )
        return self.tools.refusal(path, headers)

    def _is_foreign(self, headers: Headers) -> bool:
        """Return whether a request is of a page that may not use the server."""
        host, origin = headers.get("host", ""), headers.get("origin")
        if origin is None or (self._origins and self._origins.fullmatch(origin)):
            return False
        return not host or origin.split("://")[1:] != [host]

    # ---- shutdown

    def begin_end(self) -> None:
        """Refuse new requests, cancel others after the grace period; call it in the event loop."""
        self._ends = True
        asyncio.get_running_loop().call_later(self._settings.grace, self.cancel_all)

    def cancel_all(self) -> None:
        """Cancel all answers within one round. May be called from any thread."""
        self._ends = True
        self.worker.cancel_all()
        self.tools.cancel()

    def close(self) -> None:
        self._ends = True
        self.helper.close()
        self._documents.close()
        self.tools.close()
        self.worker.close()

    # ---- completions

    async def _complete(self, api: ApiFormat, request: Request) -> Response:
        body = await self.bodies.receive(request)
        data = await self.bodies.convert(body, parse, body)
        model = self._models.find(data.get("model"), self._settings.takes_any_model)
        loads = await self.bodies.convert(body, api.load, data) if api.load else None
        self.pool.keep(model, kept_seconds(data) if api.load else None)
        if loads:
            name = model.id
            if loads["done_reason"] != "unload" or self.pool.loaded(model):
                name = await self._run(request, model, lambda llm, _: llm.name, {})
            return JSONResponse({"model": name, **loads})
        limits = self.pool.speculation, self._settings.max_tokens
        n_more = LARGE if api.refers else 0
        parsed = await self.bodies.convert(body, api.read, data, *limits, n_more=n_more)
        if api.reply is None:
            return await self._edit(request, model, parsed)
        parsed = await self._with_grammar(request, model, parsed)
        job, seconds = Job(model, parsed), self._settings.patience_s
        if parsed.show.goes_on:
            self._background.check()
            begun = self._begun(job, parsed, end := self._begin(request, job))
            return self._background.begin(request, job, parsed, begun, end)
        with self._begin(request, job) as end:
            reply = api.reply(parsed, await self._started(job, end))
            if not parsed.stream:
                chunks, ended = await _collect(job)
                headers, n_tokens = (
                    schema_headers(job),
                    sum(len(one.result.tokens) for one in ended),
                )
                n_bytes = weight(parsed, job.n_bytes + reply.n_bytes, n_tokens)

                def written() -> Response:
                    return JsonAnswer(reply.complete(chunks, ended), headers=headers)

                return await in_turn(self._writing, n_bytes, written)
            close, ping = end.pop_all().close, self._settings.ping
            return AnswerStream(job, parsed, reply, api.stream, seconds, ping, close, self._writing)

    async def _begun(
        self, job: Job, parsed: CompletionRequest, end: ExitStack
    ) -> tuple[ResponseReply, AsyncIterator[bytes]]:
        """Return what writes an answer in the background, and its events, once it begins."""
        reply = ResponseReply(parsed, await self._started(job, end))
        turn, seconds = self._writing, self._settings.patience_s
        stream = AnswerStream(job, parsed, reply, NAMED_EVENTS, seconds, 0.0, end.close, turn)
        return reply, cast("AsyncIterator[bytes]", stream.body_iterator)

    async def _edit(
        self, request: Request, model: ServedModel, parsed: CompletionRequest
    ) -> Response:
        run = EditRun(parsed, partial(self._apart, request, self._settings.limits.plan_s))
        if (found := await run.answer_at_once()) is not None:
            return Response(found, media_type="application/json")
        job = Job(model, run.request)
        with self._begin(request, job) as end:
            started = await self._started(job, end)
            _, (ended,) = await _collect(job)
            body = await run.answer(ended, started.model)
            return Response(body, media_type="application/json")

    def _begin(self, request: Request, job: Job) -> ExitStack:
        """Submit the job of a request, whose body must have been read.

        The client cancels the job when it disconnects, unless it goes on in the background. The end
        of the returned stack does, too; it has no effect if the job is done.
        """

        async def cancel_on_disconnect() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            if not self._ends:  # some versions of uvicorn then send a disconnect to every request
                self.worker.cancel(job, "client_closed")

        request.scope[JOB] = job
        job.n_bytes = request.scope.get(N_BYTES, 0)
        job.limit_s = self._settings.limit_s or 0.0
        self.worker.submit(job)
        end = ExitStack()
        end.callback(self.worker.cancel, job, "client_closed")
        asked = job.request
        if not (isinstance(asked, CompletionRequest) and asked.show.goes_on):
            end.callback(asyncio.create_task(cancel_on_disconnect()).cancel)
        return end

    async def _started(self, job: Job, end: ExitStack) -> Started:
        """Return the first event of a job, from which its time is limited until the `end`."""
        first = await self._first_event(job)
        if isinstance(first, ErrorEvent):
            raise first.refusal
        assert isinstance(first, Started)
        self._limit(job, end)
        return first

    async def _first_event(self, job: Job) -> Event:
        """Return the first event of a job; give up where the worker stands still.

        No step within a time limit means that a file or a device does not answer.
        """
        limit_s = self._settings.limit_s
        seconds = limit_s and max(limit_s, self._settings.limits.still_s)
        while True:
            n_steps = self.worker.n_steps
            try:
                return await asyncio.wait_for(job.events.get(), seconds)
            except asyncio.TimeoutError:
                if n_steps == self.worker.n_steps:
                    fact = f"The model has not moved for {seconds:g} s: its disk may not answer."
                    raise ApiError(fact, "model", "model_stuck", 503) from None

    def _limit(self, job: Job, end: ExitStack) -> None:
        if seconds := self._settings.limit_s:
            loop = asyncio.get_running_loop()
            end.callback(loop.call_later(seconds, self.worker.cancel, job, "timeout").cancel)

    async def _run(
        self, request: Request, model: ServedModel, task: Task, names: dict[str, str]
    ) -> Any:
        """Return the result of a task of a request, whose body must have been read."""

        def check(*_: object) -> None:
            if job.why:
                raise client_closed()  # the error of another reason replaces it

        job = Job(model, lambda llm: task(llm, check), names)
        with self._begin(request, job):
            # Wherever the time ends: in the queue, while the model is loaded, or in the task.
            event = await in_time(job.events.get(), self._settings.limit_s)
        if isinstance(event, ErrorEvent):
            raise event.refusal
        assert isinstance(event, Done)
        return event.value

    async def _run_task(self, route: TaskRoute, request: Request) -> Response:
        def read(data: dict[str, Any]) -> tuple[dict[str, Any], float | None]:
            return route.body.read(data, ""), kept_seconds(data) if route.keeps else None

        data, kept_s = await self.bodies.read(request, read)
        began_s = time.perf_counter()
        model = self._models.find(data.get("model"), self._settings.takes_any_model)
        self.pool.keep(model, kept_s)

        def work(llm: LLM, check: Callable[..., None]) -> Response:
            # The answer is written here, in the thread of the task, because it may be long.
            return JsonAnswer(route.work(data, llm, TaskRun(check, self._totals, began_s)))

        answer: Response = await self._run(request, model, work, route.names)
        return answer

    async def _share(self, request: Request) -> Response:
        """Answer a command of this user; its texts are not limited by the settings."""
        data = await self.bodies.read(request, dict)
        model = self._models.find(data.get("model"), any_model=False)

        def work(llm: LLM) -> Work[None]:
            def send(kind: str, value: Any) -> None:
                job.post(Sent(kind, pack(value)))

            try:
                yield from call(llm.engine, data, send, job.reading)
            except PromptTooLongError as error:
                if not job.tried and self.pool.ctx_max(llm) > error.n_prompt:
                    raise  # the context grows
                about = "about" in error.message
                job.post(Sent("too long", [error.n_prompt, error.n_ctx, about, error.n_ctx_limit]))
            except GgufSpecError as error:
                job.post(Sent("refused", [error.message, error.hint]))
            except (ValueError, TypeError, KeyError, AttributeError):
                job.post(Sent("refused", []))

        job = Job(model, work)
        end = self._begin(request, job)

        async def lines() -> AsyncIterator[str]:
            with end:
                while not isinstance(event := await job.events.get(), Done):
                    sent = event if isinstance(event, Sent) else Sent("refused", [])
                    yield json.dumps([sent.kind, sent.value]) + "\n"
                    if isinstance(event, ErrorEvent):
                        return
            yield '["end", null]\n'

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def _with_grammar(
        self, request: Request, model: ServedModel, parsed: CompletionRequest
    ) -> CompletionRequest:
        """Return a request with the grammar that its schemas demand, and with biases of tokens.

        The conversion takes up to a second. It runs in a thread, one at a time, and takes no slot.
        For a model that is not loaded the worker does it.
        """

        def prepared(llm: LLM) -> CompletionRequest:
            return with_biases(with_grammar(parsed, llm), llm)

        async def convert(llm: LLM) -> CompletionRequest:
            async with self._converting:
                if await request.is_disconnected():
                    raise client_closed()
                return await asyncio.to_thread(prepared, llm)

        loaded = self.pool.loaded(model)
        if not (loaded and (parsed.needs_grammar or parsed.biases)):
            return parsed
        try:
            return await in_time(convert(loaded.llm), self._settings.limit_s)
        except ClosedError:  # it was unloaded in between
            return parsed
        except Exception as error:
            raise as_refusal(error, parsed.names) from None

    async def _apart(
        self, request: Request, seconds: float, function: Callable[..., Any], *given: Any
    ) -> Any:
        """Call a function in a child process, which is ended after some seconds; calls take turns.

        What expressions take to read a text keeps no other request waiting, and no conversion.
        """

        async def call() -> Any:
            async with self.helping:
                if await request.is_disconnected():
                    raise client_closed()
                return await asyncio.to_thread(self.helper.call, seconds, function, *given)

        return await in_time(call(), self._settings.limit_s)

    # ---- other routes

    async def _health(self, _: Request) -> Response:
        state: dict[str, Any] = {
            "status": "ending" if self._ends else "ok",
            "model": self.pool.default.id,
            "version": __version__,
        }
        n_running = self.worker.n_running
        state |= {"queue": self.worker.n_waiting, "busy": n_running > 0, "running": n_running}
        return JSONResponse(state, 503 if self._ends else 200)

    async def _metrics(self, _: Request) -> Response:
        worker, llms = self.worker, self.pool.loaded_llms()
        text = self._totals.text(worker.n_waiting, worker.n_running, llms)
        headers = {"Process-Start-Time-Unix": str(self._since)}
        return PlainTextResponse(text, headers=headers, media_type="text/plain; version=0.0.4")

    async def _description(self, _: Request) -> Response:
        return JSONResponse(
            describe(
                tuple(model.id for model in self.pool.models),
                self._settings.api_key is not None,
                self._settings.takes_any_model,
            )
        )


async def _collect(job: Job) -> tuple[list[ChunkEvent], list[ChoiceEnded]]:
    chunks, ended = list[ChunkEvent](), list[ChoiceEnded]()
    while True:
        one = await job.events.get()
        if isinstance(one, ChunkEvent):
            chunks.append(one)
        elif isinstance(one, ErrorEvent):
            raise one.refusal
        elif isinstance(one, ChoiceEnded):
            ended.append(one)
        elif isinstance(one, Done):
            return chunks, ended


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        code, headers = _CODES.get(error.status_code), dict(error.headers or {})
        message = f"{error.detail}."
        if code == "not_found":
            message = "There is no such path here; GET /openapi.json lists them."
        elif code:
            if (
                request.method == "OPTIONS"
            ):  # a probe of a proxy; a page has asked for access before
                return Response(status_code=204, headers=headers)
            message = f"This path takes {headers.get('Allow', headers.get('allow', 'others'))}."
        error = ApiError(message, None, code, error.status_code, headers)
    refusal = error if isinstance(error, ApiError) else failure(error)
    request.scope[_CODE] = refusal.error["code"]
    return refused(refusal, request.scope["path"])


def _serve(file: Path) -> Callable[[Request], Response]:
    body = file.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = _HEADERS | {"ETag": tag}

    def respond(request: Request) -> Response:
        known = [one.strip() for one in request.headers.get("if-none-match", "").split(",")]
        if tag in known or f"W/{tag}" in known:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=_TYPES[file.suffix])

    return respond


def _log_request(scope: Scope, path: str, status: int) -> None:
    """Log method, path, status, error code or tokens; not the checks of the health."""
    if not _REQUESTS.isEnabledFor(logging.INFO) or (
        path in (*_HEALTH_PATHS, "/metrics") and status < 400
    ):
        return
    method = scope["method"] if scope["method"] in _METHODS else "?"
    choices = getattr(scope.get(JOB), "stats", [])
    tokens = "".join(
        f", {stats.n_prompt:,} + {stats.n_generated:,} tokens, {stats.tokens_per_s:,.1f} tok/s"
        for stats in choices[:8]
    )
    code = f" {scope[_CODE]}" if scope.get(_CODE) else ""
    path = path.replace("{name:path}", "NAME")
    _REQUESTS.info("%s %s %d%s%s", method, path, status, code, tokens)
