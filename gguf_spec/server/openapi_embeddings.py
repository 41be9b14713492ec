"""OpenAPI description of the routes for embeddings and ranks."""

from __future__ import annotations

from typing import Any

from .embeddings import FORMATS, RERANK_PATHS, TEXTS_MAX
from .openapi_parts import COUNT, FLAG, NUMBER, TEXT, array_of, model_of, object_of, post_of

_USAGE = object_of({"prompt_tokens": COUNT, "total_tokens": COUNT}, "prompt_tokens", "total_tokens")


def _list(name: str, item: dict[str, Any]) -> dict[str, Any]:
    about = {"object": {"const": "list"}, "model": TEXT, "usage": _USAGE, name: array_of(item)}
    return object_of(about, *about)


def embedding_routes(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes.

    Args:
        names: Names of the models; None for any name.
    """
    model = model_of(names)
    ids = array_of(COUNT, least=1)
    some = array_of(TEXT, TEXTS_MAX, 1)
    embedding = object_of(
        {
            "object": {"const": "embedding"},
            "index": COUNT,
            "embedding": {"anyOf": [array_of(NUMBER), TEXT]},
        },
        "object",
        "index",
        "embedding",
    )
    body = object_of(
        {
            "model": model,
            "input": {"anyOf": [TEXT, ids, some, array_of(ids, TEXTS_MAX, 1)]},
            "encoding_format": {"enum": [*FORMATS], "default": FORMATS[0]},
            "dimensions": {"type": "integer", "minimum": 1},
            "user": {"description": "No effect. Identifies the user of the client."},
        },
        "input",
    )
    document = {"anyOf": [TEXT, object_of({"text": TEXT}, "text")]}
    rerank = object_of(
        {
            "model": model,
            "query": TEXT,
            "documents": array_of(document, TEXTS_MAX, 1),
            "top_n": {"type": "integer", "minimum": 1},
            "return_documents": FLAG,
        },
        "query",
        "documents",
    )
    result = object_of(
        {"index": COUNT, "relevance_score": NUMBER, "document": object_of({"text": TEXT}, "text")},
        "index",
        "relevance_score",
    )
    ranks = post_of(
        "The relevance of documents for a query.", rerank, _list("results", result), streams=False
    )
    return {
        "/v1/embeddings": post_of(
            "The embeddings of texts.", body, _list("data", embedding), streams=False
        ),
        **dict.fromkeys(RERANK_PATHS, ranks),
    }
