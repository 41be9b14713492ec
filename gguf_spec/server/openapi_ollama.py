"""OpenAPI description of Ollama's routes."""

from __future__ import annotations

from typing import Any

from ..options import SAMPLING
from .embeddings import TEXTS_MAX
from .ollama import EFFORTS, OPTIONS, OTHER_OPTIONS
from .openapi_parts import (
    COUNT,
    FLAG,
    LOGPROBS,
    NUMBER,
    STOPS,
    TEXT,
    array_of,
    get_of,
    json_of,
    model_of,
    object_of,
    post_of,
    without_effect,
)

OLLAMA_ERROR = object_of({"error": TEXT}, "error")
_ERROR = "OllamaError"
_LINES = "application/x-ndjson"


def _options() -> dict[str, Any]:
    schemas = {name: SAMPLING[here].schema for name, here in OPTIONS.items()}
    schemas |= {
        "stop": STOPS,
        "num_predict": schemas["num_predict"] | {"minimum": -2},
        "top_k": schemas["top_k"] | {"minimum": -1},
    }
    return object_of(schemas | without_effect(OTHER_OPTIONS))


def _body(names: tuple[str, ...] | None, own: dict[str, Any], *required: str) -> dict[str, Any]:
    shared = {"model": model_of(names), "options": _options()}
    keep = {"description": "No effect. A setting of the server unloads idle models."}
    return object_of(shared | {"keep_alive": keep} | own, *required)


def _answer(own: dict[str, Any]) -> dict[str, Any]:
    counts = ("prompt_eval_count", "eval_count")
    times = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
    head = {"model": TEXT, "created_at": TEXT, "done": {"const": True}, **own}
    rest = {"done_reason": {"enum": ["stop", "length", "load"]}, "logprobs": array_of({})}
    return object_of(head | rest | dict.fromkeys((*counts, *times), COUNT), *head, more=True)


def _text(told: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    route = post_of(told, body, answer, streams=False, error=_ERROR)
    route["post"]["responses"]["200"]["content"][_LINES] = {"schema": TEXT}
    return route


def _of_text() -> dict[str, Any]:
    """Return the fields of both routes for text."""
    return {
        "stream": FLAG | {"default": True},
        "format": {"anyOf": [{"enum": ["", "json"]}, {"type": "object"}]},
        "think": {"enum": [True, False, *EFFORTS]},
        "logprobs": FLAG,
        "top_logprobs": LOGPROBS,
    }


def ollama_routes(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes.

    Args:
        names: Names of the models; None for any name.
    """
    call = object_of(
        {"function": object_of({"name": TEXT, "arguments": {"type": "object"}}, "name")}, "function"
    )
    message = object_of(
        {
            "role": {"enum": ["system", "user", "assistant", "tool"]},
            "content": TEXT,
            "thinking": TEXT,
            "images": array_of(TEXT),
            "tool_calls": array_of(call),
            "tool_name": TEXT,
        },
        "role",
        "content",
    )
    function = {"name": TEXT, "description": TEXT, "parameters": {"type": "object"}}
    tool = object_of({"type": {"const": "function"}, "function": object_of(function, "name")})
    chat = {"messages": array_of(message), "tools": array_of(tool)}
    generate = dict.fromkeys(("prompt", "system", "suffix"), TEXT) | {"raw": FLAG}
    generate |= {"images": array_of(TEXT)}
    said = object_of({"role": TEXT, "content": TEXT}, "role", "content", more=True)
    dimensions = {"type": "integer", "minimum": 1}
    inputs = {"anyOf": [TEXT, array_of(TEXT, TEXTS_MAX, 1)]}
    embed = {"input": inputs, "truncate": FLAG, "dimensions": dimensions}
    vectors = {"model": TEXT, "embeddings": array_of(array_of(NUMBER)), "prompt_eval_count": COUNT}
    one = object_of({"embedding": array_of(NUMBER)}, "embedding")
    models = object_of({"models": array_of({})}, "models")
    facts = object_of({"details": {}, "model_info": {}}, "details", "model_info", more=True)
    return {
        "/api/chat": _text(
            "Answer messages.",
            _body(names, _of_text() | chat, "messages"),
            _answer({"message": said}),
        ),
        "/api/generate": _text(
            "Answer a prompt.", _body(names, _of_text() | generate), _answer({"response": TEXT})
        ),
        "/api/embed": post_of(
            "The embeddings of texts.",
            _body(names, embed, "input"),
            object_of(vectors, *vectors, more=True),
            streams=False,
            error=_ERROR,
        ),
        "/api/embeddings": post_of(
            "The embedding of a text, not normalised.",
            _body(names, {"prompt": TEXT}, "prompt"),
            one,
            streams=False,
            error=_ERROR,
        ),
        "/api/show": post_of(
            "Facts about a model.",
            object_of({"model": TEXT if names is None else {"enum": [*names]}, "verbose": FLAG}),
            facts,
            streams=False,
            error=_ERROR,
        ),
        "/api/tags": get_of("The models that are served.", json_of(models), error=_ERROR),
        "/api/ps": get_of("The models in memory.", json_of(models), error=_ERROR),
        "/api/version": get_of(
            "The version of gguf-spec.", json_of(object_of({"version": TEXT})), error=_ERROR
        ),
    }
