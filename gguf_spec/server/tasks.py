"""Tasks of a model: embeddings, ranks of documents, and the probabilities of options."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..protocols.embeddings import (
    CHOOSE,
    EMBEDDING,
    NATIVE_EMBEDDING,
    RERANK,
    RERANK_PATHS,
    check_dimensions,
    check_pooling,
    documents_of,
    embeddings_of,
    native_embeddings_of,
    native_texts,
    options_of,
    ranks_of,
)
from ..protocols.fit import joined
from ..protocols.ollama import EMBED, EMBEDDINGS, vectors_of
from ..protocols.replies import Whole
from ..protocols.schema import Shape
from ..text.encoding import encode_texts
from .metrics import Metrics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..runtime.llm import LLM


TextT = TypeVar("TextT")


class TaskRun(NamedTuple):
    """Run of the task of a request.

    Attributes:
        check: Raises if the request is cancelled.
        began_s: Time when the request was read, by `time.perf_counter`.
    """

    check: Callable[..., None]
    totals: Metrics
    began_s: float

    def passed(self, *progress: object) -> None:
        """Count a pass of the model; raise if the request is cancelled."""
        self.totals.embedded(0, 1)
        self.check(*progress)


class TaskRoute(NamedTuple):
    """Route whose answer is the result of a function of the loaded model.

    Attributes:
        work: Returns the answer, from the read body, the model and the run.
        names: Option or argument of the engine -> field of the request, for errors.
        keeps: Whether `keep_alive` of a body says for how long the model is kept.
    """

    body: Shape
    work: Callable[[dict[str, Any], LLM, TaskRun], Whole]
    names: dict[str, str]
    keeps: bool = False


def rows_of(
    request: dict[str, Any], ids: list[list[int]], llm: LLM, run: TaskRun, normalize: bool = True
) -> tuple[NDArray[np.float32], int]:
    """Return the embeddings of texts, one a row, and the number of tokens."""
    rows = np.asarray(llm.embed(ids, on_pass=run.passed, normalize=normalize))
    n_tokens = sum(map(len, ids))
    run.totals.embedded(n_tokens)
    check_dimensions(request, rows.shape[1])
    return rows, n_tokens


def ids_of(
    texts: Iterable[TextT], llm: LLM, run: TaskRun, read: Callable[[TextT, LLM], str | list[int]]
) -> list[list[int]]:
    """Return texts as token ids; a request that is cancelled ends before the next text."""

    def next_of(text: TextT) -> str | list[int]:
        run.check()
        return read(text, llm)

    return encode_texts(llm.vocabulary, map(next_of, texts), special=True)


def _embeddings(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    check_pooling(llm.pooling)
    rows, n_tokens = rows_of(request, ids_of(request["input"], llm, run, joined), llm, run)
    return embeddings_of(request, rows, n_tokens, llm.name)


def _native_embeddings(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    texts, norm = native_texts(request), request.get("embd_normalize", 2)
    if llm.pooling == "rank":
        check_pooling(llm.pooling)
    ids, of_tokens = ids_of(texts, llm, run, joined), llm.pooling == "none"
    rows = llm.embed(ids, on_pass=run.passed, normalize=norm == 2 and not of_tokens)
    run.totals.embedded(sum(map(len, ids)))
    return native_embeddings_of(rows, of_tokens)


def _ranks(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    tokens = llm.rank_tokens(request["query"], documents_of(request), on_pass=run.check)
    scores = [float(row[0]) for row in llm.embed(tokens, on_pass=run.passed)]
    n_tokens = sum(map(len, tokens))
    run.totals.embedded(n_tokens)
    return ranks_of(request, scores, n_tokens, llm.name)


def _choose(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    prompt, kwargs = request["prompt"], request.get("chat_template_kwargs")
    found = llm.choose(prompt, request["options"], on_pass=run.passed, chat_template_kwargs=kwargs)
    n_prompt = len(llm.tokenize(prompt, chat_template_kwargs=kwargs))
    answer = options_of(found, n_prompt, llm.name)
    run.totals.embedded(answer["usage"]["total_tokens"])
    return answer


def _first_tokens(text: str, llm: LLM) -> list[int]:
    return llm.vocabulary.first_tokens(text, llm.n_ctx, special=True)


def _vectors(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    check_pooling(llm.pooling)
    load_s = time.perf_counter() - run.began_s
    read = _first_tokens if request.get("truncate", True) else joined
    rows, n_tokens = list[list[float]](), 0
    if texts := request.get("input"):
        found, n_tokens = rows_of(request, ids_of(texts, llm, run, read), llm, run)
        rows = [row.tolist() for row in found]
    return vectors_of(rows, n_tokens, llm.name, time.perf_counter() - run.began_s, load_s)


def _vector(request: dict[str, Any], llm: LLM, run: TaskRun) -> Whole:
    """Return one embedding; in this older route they are not normalised."""
    check_pooling(llm.pooling)
    if "prompt" not in request:
        return {"embedding": []}
    ids = [_first_tokens(request["prompt"], llm)]
    rows, _ = rows_of(request, ids, llm, run, normalize=False)
    return {"embedding": rows[0].tolist()}


# Path -> route.
EMBEDDING_ROUTES = {
    "/v1/embeddings": TaskRoute(EMBEDDING, _embeddings, {"texts": "input", "prompt": "input"}),
    **dict.fromkeys(
        ("/embedding", "/embeddings"),
        TaskRoute(NATIVE_EMBEDDING, _native_embeddings, {"texts": "content", "prompt": "content"}),
    ),
    "/v1/choose": TaskRoute(CHOOSE, _choose, {"options": "options"}),
    **dict.fromkeys(
        RERANK_PATHS, TaskRoute(RERANK, _ranks, {"texts": "documents", "prompt": "documents"})
    ),
    "/api/embed": TaskRoute(EMBED, _vectors, {"texts": "input", "prompt": "input"}, keeps=True),
    "/api/embeddings": TaskRoute(EMBEDDINGS, _vector, {"texts": "prompt"}, keeps=True),
}
