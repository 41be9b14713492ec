"""Bodies of requests for embeddings, ranks and probabilities of options, and their answers."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..results import ScoredOption
from . import schema as s
from .bodies import DIMENSIONS, TEMPLATE_KWARGS, TEXTS_FACT, TEXTS_MAX
from .errors import ApiError, invalid_value
from .openai import MESSAGES
from .replies import Whole
from .request import Text
from .schema import Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RERANK_PATHS = ("/v1/rerank", "/rerank", "/v1/reranking", "/reranking")


def _document(value: Any, at: str) -> str:
    text = value.get("text") if isinstance(value, dict) and set(value) == {"text"} else value
    if not isinstance(text, str):
        raise invalid_value(at, "must be a string, or an object with a text.")
    return text


_FORMAT = s.one_of(("float", "base64"), "must be float or base64.")
EMBEDDING = s.obj(
    {
        "model?": s.TEXT.schema,
        "input": s.texts(TEXTS_MAX, TEXTS_FACT),
        "encoding_format?": _FORMAT._replace(schema=_FORMAT.schema | {"default": "float"}),
        "dimensions?": DIMENSIONS,
        "user?": s.unread({"description": "No effect. Identifies the user of the client."}),
    }
)
_NORMS = "must be 2 for vectors of the length 1, or -1 for vectors as they are."
NATIVE_EMBEDDING = s.obj(
    {
        "model?": s.TEXT.schema,
        **dict.fromkeys(("content?", "input?"), s.texts(TEXTS_MAX, TEXTS_FACT, mixed=True)),
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


# ---- answers


def check_pooling(pooling: str) -> None:
    """Refuse a model that gives no vector for a text: its pooling is `none` or `rank`."""
    if pooling in ("none", "rank"):
        gives = "scores: use /v1/rerank" if pooling == "rank" else "one vector for each token"
        fact = f"The pooling of this model is {pooling}, which gives {gives}."
        raise ApiError(fact, "model", "no_embeddings")


def check_dimensions(asked: dict[str, Any], n: int) -> None:
    """Refuse other dimensions than the `n` of the model: embeddings are not shortened."""
    if asked.get("dimensions") not in (None, n):
        fact = "the file of this model does not say that its embeddings may be shortened."
        raise invalid_value("dimensions", f"must be {n}: {fact}")


def embeddings_of(
    asked: dict[str, Any], rows: NDArray[np.float32], n_tokens: int, model: str
) -> dict[str, Any]:
    if asked.get("encoding_format") == "base64":  # 32 bits a number, the lowest byte first
        written = [base64.b64encode(row.astype("<f4").tobytes()).decode("ascii") for row in rows]
    else:  # a row at a time: no other thread runs in a call
        written = [row.tolist() for row in rows]
    data = [{"object": "embedding", "index": i, "embedding": one} for i, one in enumerate(written)]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}


def native_texts(asked: dict[str, Any]) -> list[Text]:
    """Return the texts of a body in llama-server's own form."""
    texts: list[Text] | None = asked.get("content", asked.get("input"))
    if texts is None:
        raise invalid_value("content", "is missing.")
    return texts


def native_embeddings_of(
    rows: Iterable[NDArray[np.float32]], of_tokens: bool
) -> list[dict[str, Any]]:
    """Return embeddings in llama-server's own form: rows for each text.

    `of_tokens` says whether a text has one row for each token; else it has a single one.
    """
    found = [one.tolist() if of_tokens else [one.tolist()] for one in rows]
    return [{"index": i, "embedding": one} for i, one in enumerate(found)]


def documents_of(asked: dict[str, Any]) -> list[str]:
    documents: list[str] | None = asked.get("documents", asked.get("texts"))
    if documents is None:
        raise invalid_value("documents", "is missing.")
    return documents


def ranks_of(asked: dict[str, Any], scores: Sequence[float], n_tokens: int, model: str) -> Whole:
    """Return documents by their scores; `texts`, as of TEI, get an answer in its form."""
    documents, most = documents_of(asked), asked.get("top_n", asked.get("top_k"))
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[:most]
    if "documents" not in asked:
        shows = asked.get("return_text")
        texts = [{"text": documents[i]} if shows else {} for i in best]
        return [{"index": i, "score": scores[i]} | one for i, one in zip(best, texts, strict=True)]
    results = [
        {"index": i, "relevance_score": scores[i]}
        | ({"document": {"text": documents[i]}} if asked.get("return_documents") else {})
        for i in best
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "results": results, "model": model, "usage": usage}


def options_of(found: Sequence[ScoredOption], n_prompt: int, model: str) -> dict[str, Any]:
    """Return the options of `/v1/choose` with their probabilities."""
    n_tokens = n_prompt + sum(len(one.tokens) for one in found)
    options = [{"index": i, **one._asdict()} for i, one in enumerate(found)]
    best = max(range(len(found)), key=lambda i: found[i].logprob)
    usage = {"prompt_tokens": n_prompt, "total_tokens": n_tokens}
    return {"object": "list", "options": options, "best": best, "model": model, "usage": usage}
