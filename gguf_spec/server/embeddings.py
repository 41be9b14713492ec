"""Routes for embeddings and for ranks of documents."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .errors import ApiError, bad
from .metrics import Metrics
from .model_routes import ModelRoutes
from .requests import parse
from .schema import (
    COUNT,
    FLAG,
    TEXT,
    Shape,
    array,
    array_of,
    closed,
    given,
    is_count,
    object_of,
    one_of,
    unread,
    whole,
)
from .settings import Settings
from .tasks import Task, TaskRunner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..runtime.llm import LLM

# Most texts of a request, as at OpenAI.
TEXTS_MAX = 2048
EMBEDDING_PATHS = ("/v1/embeddings",)
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")
Text = str | list[int]


def texts_of(value: Any, at: str, ids: bool = True) -> list[Text]:
    """Return the texts of a field: a string, token ids, or an array of these.

    Args:
        value: The value.
        at: Name of the field.
        ids: Whether token ids are allowed.

    Raises:
        ApiError: The value has another form.
    """
    several = isinstance(value, list) and not (ids and value and all(map(is_count, value)))
    given = value if several else [value]
    forms = "a string or an array of strings"
    if ids:
        forms = "a string, an array of token ids, or an array of these"
    for one in given:
        is_ids = ids and isinstance(one, list) and all(map(is_count, one))
        if not (is_ids or isinstance(one, str)):
            raise bad(at, f"must be {forms}.")
    if not 0 < len(given) <= TEXTS_MAX:
        raise bad(at, f"must contain 1 to {TEXTS_MAX:,} texts.")
    return list(given)


def _document(value: Any, at: str) -> str:
    text = value.get("text") if isinstance(value, dict) and set(value) == {"text"} else value
    if not isinstance(text, str):
        raise bad(at, "must be a string, or an object with a text.")
    return text


_IDS = array_of(COUNT, least=1)
_SOME = [array_of(one, TEXTS_MAX, 1) for one in (TEXT, _IDS)]
_NUMBER = Shape({"type": "integer", "minimum": 1}, whole(1, 1 << 20).read)
DIMENSIONS = _NUMBER
EMBEDDING = closed(
    {
        "model": given(TEXT.schema),
        "input": Shape({"anyOf": [TEXT.schema, _IDS, *_SOME]}, texts_of),
        "encoding_format": Shape(
            {"enum": ["float", "base64"], "default": "float"},
            one_of(("float", "base64"), "must be float or base64.").read,
        ),
        "dimensions": DIMENSIONS,
        "user": unread({"description": "No effect. Identifies the user of the client."}),
    },
    "input",
)
_DOCUMENT = Shape({"anyOf": [TEXT.schema, object_of({"text": TEXT}, "text")]}, _document)
RERANK = closed(
    {
        "model": given(TEXT.schema),
        "query": TEXT,
        "documents": array(
            _DOCUMENT, f"must be an array of 1 to {TEXTS_MAX:,} documents.", 1, TEXTS_MAX
        ),
        "top_n": _NUMBER,
        "return_documents": FLAG,
    },
    "query",
    "documents",
)
# Option or argument of the engine -> field of the request.
_EMBEDDING_NAMES = {"texts": "input", "prompt": "input"}
_RERANK_NAMES = {"texts": "documents", "prompt": "documents"}


class EmbeddingRoutes:
    """Routes that compute embeddings, through the queue of all requests."""

    def __init__(
        self,
        models: ModelRoutes,
        tasks: TaskRunner,
        settings: Settings,
        totals: Metrics,
        body: Callable[[Request], Awaitable[bytes]],
    ) -> None:
        """Create the routes.

        Args:
            models: Finds the model of a request.
            tasks: Runs the computations.
            settings: Settings of the server.
            totals: Counts the tokens.
            body: Reads the body of a request.
        """
        self._models, self._tasks, self._settings = models, tasks, settings
        self._totals, self._body = totals, body
        self.routes = [
            *(Route(path, self._embed, methods=["POST"]) for path in EMBEDDING_PATHS),
            *(Route(path, self._rerank, methods=["POST"]) for path in RERANK_PATHS),
        ]

    async def _embed(self, request: Request) -> Response:
        data = EMBEDDING.read(parse(await self._body(request)), "")
        return await self._answer(request, data, partial(self._embeddings, data), _EMBEDDING_NAMES)

    async def _rerank(self, request: Request) -> Response:
        data = RERANK.read(parse(await self._body(request)), "")
        return await self._answer(request, data, partial(self._ranks, data), _RERANK_NAMES)

    async def _answer(
        self, request: Request, data: dict[str, Any], task: Task, names: dict[str, str]
    ) -> Response:
        model = self._models.find(data.get("model"), self._settings.takes_any_model)
        body = await self._tasks.run(request, model, task, names)
        return Response(body, media_type="application/json")

    def _embeddings(self, asked: dict[str, Any], llm: LLM, check: Callable[..., None]) -> bytes:
        rows, n_tokens = vectors(llm, asked["input"], check, self._totals)
        as_base64 = asked.get("encoding_format") == "base64"
        check_dimensions(asked.get("dimensions"), rows.shape[1])
        data = [
            {"object": "embedding", "index": i, "embedding": _written(row, as_base64)}
            for i, row in enumerate(rows)
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return _json({"object": "list", "data": data, "model": llm.name, "usage": usage})

    def _ranks(self, asked: dict[str, Any], llm: LLM, check: Callable[..., None]) -> bytes:
        documents = asked["documents"]
        tokens = llm.rank_tokens(asked["query"], documents)
        scores = [float(row[0]) for row in llm.embed(tokens, on_pass=check)]
        n_tokens = sum(map(len, tokens))
        self._totals.embedded(n_tokens)
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: asked.get("top_n")]
        results = [
            {"index": i, "relevance_score": scores[i]}
            | ({"document": {"text": documents[i]}} if asked.get("return_documents") else {})
            for i in best
        ]
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return _json({"object": "list", "results": results, "model": llm.name, "usage": usage})


def vectors(
    llm: LLM, texts: list[Text], check: Callable[..., None], totals: Metrics
) -> tuple[NDArray[np.float32], int]:
    """Return the normalised embeddings of texts and the number of their tokens.

    Args:
        llm: The model.
        texts: Texts or token ids.
        check: Raises if the request is cancelled.
        totals: Counts the tokens.

    Raises:
        ApiError: The model gives no vector for a text.
        GgufSpecError: As for `LLM.embed`.
    """
    import numpy as np

    check_pooling(llm)
    tokens = [
        llm.vocabulary.tokenize(text, special=True) if isinstance(text, str) else text
        for text in texts
    ]
    rows = np.asarray(llm.embed(tokens, on_pass=check))
    n_tokens = sum(map(len, tokens))
    totals.embedded(n_tokens)
    return rows, n_tokens


def check_pooling(llm: LLM) -> None:
    """Refuse a model that gives no vector for a text.

    Raises:
        ApiError: Its pooling is `none` or `rank`.
    """
    if llm.pooling in ("none", "rank"):
        gives = "scores: use /v1/rerank" if llm.pooling == "rank" else "one vector for each token"
        fact = f"The pooling of this model is {llm.pooling}, which gives {gives}."
        raise ApiError(fact, "model", "no_embeddings")


def check_dimensions(wanted: int | None, has: int) -> None:
    """Refuse another length of the embeddings: no file says that they may be shortened.

    Raises:
        ApiError: The demanded length is another one.
    """
    if wanted not in (None, has):
        raise bad(
            "dimensions",
            f"must be {has}: the file of this model does not say that its embeddings may be "
            "shortened.",
        )


def _written(row: NDArray[np.float32], as_base64: bool) -> Any:
    """Return an embedding for JSON; base64 has its numbers in 32 bits, the lowest byte first."""
    if as_base64:
        return base64.b64encode(row.astype("<f4").tobytes()).decode("ascii")
    return row.tolist()


def _json(data: dict[str, Any]) -> bytes:
    """Return JSON. It is written here, in the thread of the task, because it may be long."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
