"""Routes for embeddings, for ranks of documents, and for the probabilities of options."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..runtime.embedding import encode_texts
from ..server.metrics import Metrics
from . import schema as s
from .bodies import MESSAGES, TEMPLATE_KWARGS, joined
from .errors import ApiError, invalid_value
from .schema import Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..runtime.llm import LLM

# Most texts of a request, as at OpenAI.
TEXTS_MAX = 2048
_TEXTS_FACT = f"must contain 1 to {TEXTS_MAX:,} texts."
RERANK_PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")


def _document(value: Any, at: str) -> str:
    text = value.get("text") if isinstance(value, dict) and set(value) == {"text"} else value
    if not isinstance(text, str):
        raise invalid_value(at, "must be a string, or an object with a text.")
    return text


DIMENSIONS = s.whole_number(1, 1 << 20)._replace(schema={"type": "integer", "minimum": 1})
ONLY_TEXTS = s.texts(TEXTS_MAX, _TEXTS_FACT, ids=False)
_FORMAT = s.one_of(("float", "base64"), "must be float or base64.")
EMBEDDING = s.obj(
    {
        "model?": s.TEXT.schema,
        "input": s.texts(TEXTS_MAX, _TEXTS_FACT),
        "encoding_format?": _FORMAT._replace(schema=_FORMAT.schema | {"default": "float"}),
        "dimensions?": DIMENSIONS,
        "user?": s.unread({"description": "No effect. Identifies the user of the client."}),
    }
)
_NORMS = "must be 2 for vectors of the length 1, or -1 for vectors as they are."
NATIVE_EMBEDDING = s.obj(
    {
        "model?": s.TEXT.schema,
        **dict.fromkeys(("content?", "input?"), s.texts(TEXTS_MAX, _TEXTS_FACT, mixed=True)),
        "embd_normalize?": s.one_of((-1, 2), _NORMS),
    }
)
_DOCUMENT = Shape({"anyOf": [s.TEXT.schema, s.object_of({"text": s.TEXT})]}, _document)
_WHOLE = s.unread({"description": "No effect. A document that is too long is an error."})
_CUTS = ("truncate", "truncation_direction", "max_chunks_per_doc", "max_tokens_per_doc")
_RAW = s.unread({"description": "No effect. Scores are those of the model."})
RERANK = s.obj(
    {
        "model?": s.TEXT.schema,
        "query": s.TEXT,
        **dict.fromkeys(
            ("documents?", "texts?"),
            s.array(_DOCUMENT, f"must be an array of 1 to {TEXTS_MAX:,} documents.", 1, TEXTS_MAX),
        ),
        **dict.fromkeys(("top_n?", "top_k?"), DIMENSIONS),
        **dict.fromkeys(("return_documents?", "return_text?"), s.FLAG),
        **dict.fromkeys((f"{name}?" for name in _CUTS), _WHOLE),
        "raw_scores?": _RAW,
    }
)
CHOOSE = s.obj(
    {
        "model?": s.TEXT.schema,
        "prompt": s.text_or(MESSAGES),
        "options": s.array(s.TEXT, f"must be an array of 1 to {TEXTS_MAX:,} texts.", 1, TEXTS_MAX),
        "chat_template_kwargs?": TEMPLATE_KWARGS,
    }
)


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
    work: Callable[[dict[str, Any], LLM, TaskRun], Any]
    names: dict[str, str]
    keeps: bool = False


def rows_of(
    request: dict[str, Any], ids: list[list[int]], llm: LLM, run: TaskRun, **options: Any
) -> tuple[NDArray[np.float32], int]:
    """Return the embeddings of texts, one a row, and the number of tokens.

    They are not shortened: other dimensions than those of the model are refused. `options` are
    those of `LLM.embed`.
    """
    import numpy as np

    rows = np.asarray(llm.embed(ids, on_pass=run.passed, **options))
    n_tokens, has = sum(map(len, ids)), rows.shape[1]
    run.totals.embedded(n_tokens)
    if request.get("dimensions") not in (None, has):
        fact = "the file of this model does not say that its embeddings may be shortened."
        raise invalid_value("dimensions", f"must be {has}: {fact}")
    return rows, n_tokens


def ids_of(
    texts: Sequence[Any], llm: LLM, run: TaskRun, read: Callable[[Any, LLM], Any] = joined
) -> list[list[int]]:
    """Return texts as token ids; a request that is cancelled ends before the next text."""

    def next_of(text: Any) -> Any:
        run.check()
        return read(text, llm)

    return encode_texts(llm.vocabulary, map(next_of, texts), special=True)


def _embeddings(request: dict[str, Any], llm: LLM, run: TaskRun) -> dict[str, Any]:
    check_pooling(llm)
    ids = ids_of(request["input"], llm, run)
    rows, n_tokens = rows_of(request, ids, llm, run)
    if request.get("encoding_format") == "base64":  # 32 bits a number, the lowest byte first
        written = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in rows]
    else:  # a row at a time: no other thread runs in a call
        written = [row.tolist() for row in rows]
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(written)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": llm.name, "usage": usage}


def _native_embeddings(request: dict[str, Any], llm: LLM, run: TaskRun) -> Any:
    """Return the embeddings in llama-server's own form: rows for each text."""
    texts, norm = request.get("content", request.get("input")), request.get("embd_normalize", 2)
    if texts is None:
        raise invalid_value("content", "is missing.")
    if llm.pooling == "rank":
        check_pooling(llm)
    ids, has_rows = ids_of(texts, llm, run), llm.pooling == "none"
    rows = llm.embed(ids, on_pass=run.passed, normalize=norm == 2 and not has_rows)
    run.totals.embedded(sum(map(len, ids)))
    found = [one.tolist() if has_rows else [one.tolist()] for one in rows]
    return [{"index": i, "embedding": one} for i, one in enumerate(found)]


def _ranks(request: dict[str, Any], llm: LLM, run: TaskRun) -> Any:
    """Return documents by their scores; `texts`, as of TEI, get an answer in its form."""
    documents = request.get("documents", request.get("texts"))
    if documents is None:
        raise invalid_value("documents", "is missing.")
    tokens = llm.rank_tokens(request["query"], documents, on_pass=run.check)
    scores = [float(row[0]) for row in llm.embed(tokens, on_pass=run.passed)]
    n_tokens = sum(map(len, tokens))
    run.totals.embedded(n_tokens)
    most = request.get("top_n", request.get("top_k"))
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[:most]
    if "documents" not in request:
        shows = request.get("return_text")
        texts = [{"text": documents[i]} if shows else {} for i in best]
        return [{"index": i, "score": scores[i]} | one for i, one in zip(best, texts, strict=True)]
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": documents[i]}} if request.get("return_documents") else {})
        for i in best
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "results": results, "model": llm.name, "usage": usage}


def _choose(request: dict[str, Any], llm: LLM, run: TaskRun) -> dict[str, Any]:
    prompt, kwargs = request["prompt"], request.get("chat_template_kwargs")
    found = llm.choose(prompt, request["options"], on_pass=run.passed, chat_template_kwargs=kwargs)
    n_prompt = len(llm.tokenize(prompt, chat_template_kwargs=kwargs))
    n_tokens = n_prompt + sum(len(one.tokens) for one in found)
    run.totals.embedded(n_tokens)
    options = [{"index": i, **one._asdict()} for i, one in enumerate(found)]
    best = max(range(len(found)), key=lambda i: found[i].logprob)
    usage = {"prompt_tokens": n_prompt, "total_tokens": n_tokens}
    return {"object": "list", "options": options, "best": best, "model": llm.name, "usage": usage}


def check_pooling(llm: LLM) -> None:
    """Refuse a model that gives no vector for a text: its pooling is `none` or `rank`."""
    if llm.pooling in ("none", "rank"):
        gives = "scores: use /v1/rerank" if llm.pooling == "rank" else "one vector for each token"
        fact = f"The pooling of this model is {llm.pooling}, which gives {gives}."
        raise ApiError(fact, "model", "no_embeddings")


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
}
