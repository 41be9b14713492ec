"""Routes of Ollama about models and embeddings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ... import __version__
from ...options import Sampling
from ..embeddings import check_dimensions, check_pooling, read_dimensions, texts_of
from ..metrics import Metrics
from ..model_pool import ModelPool
from ..model_routes import ModelRoutes
from ..requests import parse
from ..settings import Settings
from ..tasks import Task, TaskRunner
from ..values import check_known, flag, string
from .about import description_of, entry_of
from .fields import OPTIONS, known_fields, read_options
from .reply import nanoseconds

if TYPE_CHECKING:
    from ...runtime.llm import LLM

_EMBED = frozenset({"model", "input", "truncate", "options", "dimensions"})
_SHOW = frozenset({"model", "name", "verbose", "system", "template", "options"})
_EMBEDDINGS = frozenset({"model", "prompt", "options"})


class OllamaRoutes:
    """Routes of Ollama beside those that complete text."""

    def __init__(
        self,
        pool: ModelPool,
        models: ModelRoutes,
        tasks: TaskRunner,
        settings: Settings,
        totals: Metrics,
        body: Callable[[Request], Awaitable[bytes]],
    ) -> None:
        """Create the routes.

        Args:
            pool: The models.
            models: Finds the model of a request.
            tasks: Runs the computations.
            settings: Settings of the server.
            totals: Counts the tokens.
            body: Reads the body of a request.
        """
        self._pool, self._models, self._tasks = pool, models, tasks
        self._settings, self._totals, self._body = settings, totals, body
        self.routes = [
            Route("/api/tags", self._tags, methods=["GET"]),
            Route("/api/show", self._show, methods=["POST"]),
            Route("/api/version", self._version, methods=["GET"]),
            Route("/api/embed", self._embed, methods=["POST"]),
            Route("/api/embeddings", self._embeddings, methods=["POST"]),
        ]

    async def _tags(self, _: Request) -> Response:
        models = await asyncio.to_thread(lambda: [*map(entry_of, self._pool.models)])
        return JSONResponse({"models": models})

    async def _version(self, _: Request) -> Response:
        return JSONResponse({"version": __version__})

    async def _show(self, request: Request) -> Response:
        data = parse(await self._body(request))
        names = [data[key] for key in ("model", "name") if data.get(key) is not None]
        check_known(data, _SHOW)
        model = self._models.find(names[0] if names else None, any_model=False)
        loaded = self._pool.loaded(model)
        sampling = loaded.llm.sampling if loaded else Sampling()
        here = {name: getattr(sampling, option) for name, option in OPTIONS.items()}
        shown = {name: value for name, value in here.items() if value not in (None, ())}
        return JSONResponse(await asyncio.to_thread(description_of, model, shown))

    async def _embed(self, request: Request) -> Response:
        data = known_fields(parse(await self._body(request)), _EMBED)
        read_options(data.get("options"))
        texts = texts_of(data.get("input"), "input", ids=False)
        dimensions = read_dimensions(data)
        cut = flag(data, "truncate") if "truncate" in data else True
        work = partial(self._vectors, texts, dimensions, cut, time.perf_counter())
        return await self._answer(request, data, work, {"texts": "input", "prompt": "input"})

    async def _embeddings(self, request: Request) -> Response:
        data = known_fields(parse(await self._body(request)), _EMBEDDINGS)
        read_options(data.get("options"))
        work = partial(self._vector, string(data.get("prompt"), "prompt"))
        return await self._answer(request, data, work, {"texts": "prompt"})

    async def _answer(
        self, request: Request, data: dict[str, Any], work: Task, names: dict[str, str]
    ) -> Response:
        model = self._models.find(data.get("model"), self._settings.takes_any_model)
        return JSONResponse(await self._tasks.run(request, model, work, names))

    def _vectors(
        self,
        texts: list[Any],
        dimensions: int | None,
        cut: bool,
        began_s: float,
        llm: LLM,
        check: Callable[..., None],
    ) -> dict[str, Any]:
        check_pooling(llm)
        load_s = time.perf_counter() - began_s
        ids = [llm.vocabulary.tokenize(text, special=True) for text in texts]
        ids = [one[: llm.n_ctx] for one in ids] if cut else ids
        rows = llm.embed(ids, on_pass=check)
        check_dimensions(dimensions, len(rows[0]))
        n_tokens = sum(map(len, ids))
        self._totals.embedded(n_tokens)
        return {
            "model": llm.name,
            "embeddings": [row.tolist() for row in rows],
            "total_duration": nanoseconds(time.perf_counter() - began_s),
            "load_duration": nanoseconds(load_s),
            "prompt_eval_count": n_tokens,
        }

    def _vector(self, prompt: str, llm: LLM, check: Callable[..., None]) -> dict[str, Any]:
        """Return one embedding; in this older route they are not normalised."""
        check_pooling(llm)
        if not prompt:
            return {"embedding": []}
        ids = llm.vocabulary.tokenize(prompt, special=True)[: llm.n_ctx]
        row = llm.embed([ids], normalize=False, on_pass=check)[0]
        self._totals.embedded(len(ids))
        return {"embedding": row.tolist()}
