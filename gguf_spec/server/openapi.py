"""OpenAPI description of the server."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import __version__
from ..options import SAMPLING, SPECULATION, Sampling
from .reasoning import EFFORTS, REASONING
from .requests import STOP_LENGTH_MAX, STOPS_MAX, TOP_LOGPROBS_MAX

_COUNT, _NUMBER, _FLAG, _TEXT = (
    {"type": "integer", "minimum": 0},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "string"},
)
_TOKENS = SAMPLING["max_tokens"].schema
_LOGPROBS = SAMPLING["logprobs"].schema | {"maximum": TOP_LOGPROBS_MAX}


def _object(properties: dict[str, Any], *required: str, more: bool = False) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": more,
    }


def _array(items: dict[str, Any], most: int | None = None, least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least} | (
        {} if most is None else {"maxItems": most}
    )


def _sampling() -> dict[str, Any]:
    """Return the schemas of the fields that are those of `Sampling`.

    `max_tokens` has no default: it is the server's.
    """
    schemas = {name: rule.schema for name, rule in SAMPLING.items() if rule.in_requests}
    for name in schemas.keys() - {"max_tokens"}:
        if (default := getattr(Sampling, name)) is not None:
            schemas[name] |= {"default": default}
    return schemas


def _body(name: str, own: dict[str, Any], *required: str) -> dict[str, Any]:
    stop = {"type": "string", "minLength": 1, "maxLength": STOP_LENGTH_MAX}
    speculation = {name: rule.schema for name, rule in SPECULATION.items()}
    shared = {
        "model": {"enum": [name, ""]},
        "stream": _FLAG,
        "stream_options": _object({"include_usage": _FLAG, "include_speculation": _FLAG}),
        "stop": {"anyOf": [stop, _array(stop, STOPS_MAX)]},
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": SAMPLING["logit_bias"].schema,
        },
        "n": {"const": 1},
        "speculation": {"anyOf": [{"const": "off"}, _object(speculation)]},
    }
    return _object(shared | _sampling() | own, *required)


def _chat_body(name: str) -> dict[str, Any]:
    function_name = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
    called = _object({"name": function_name, "arguments": _TEXT}, "name", "arguments")
    call = _object(
        {"id": _TEXT, "type": {"const": "function"}, "function": called}, "id", "function"
    )
    content = {
        "anyOf": [
            _TEXT,
            _array(_object({"type": {"const": "text"}, "text": _TEXT}, "type", "text"), least=1),
        ]
    }
    message = {
        "oneOf": [
            _object(
                {"role": {"enum": ["system", "developer", "user"]}, "content": content},
                "role",
                "content",
            ),
            _object(
                {
                    "role": {"const": "assistant"},
                    "content": content,
                    REASONING: _TEXT,
                    "tool_calls": _array(call, least=1),
                },
                "role",
                "content",
            ),
            _object(
                {"role": {"const": "tool"}, "content": content, "tool_call_id": _TEXT},
                "role",
                "content",
                "tool_call_id",
            ),
        ]
    }
    described = _object(
        {"name": function_name, "description": _TEXT, "parameters": {"type": "object"}}, "name"
    )
    tool = _object({"type": {"const": "function"}, "function": described}, "type", "function")
    schema = _object(
        {"name": _TEXT, "schema": {"type": "object"}, "strict": _FLAG}, "name", "schema"
    )
    own = {
        "messages": _array(message, least=1),
        "max_completion_tokens": _TOKENS,
        "logprobs": _FLAG,
        "top_logprobs": _LOGPROBS,
        "tools": _array(tool, least=1),
        "tool_choice": {"enum": ["none", "auto"]},
        "reasoning_effort": {"enum": [*EFFORTS]},
        "chat_template_kwargs": {
            "type": "object",
            "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
        },
        "response_format": {
            "oneOf": [
                _object({"type": {"enum": ["text", "json_object"]}}, "type"),
                _object(
                    {"type": {"const": "json_schema"}, "json_schema": schema}, "type", "json_schema"
                ),
            ]
        },
    }
    return _body(name, own, "messages")


def _text_body(name: str) -> dict[str, Any]:
    ids = _array(_COUNT, least=1)
    own = {
        "prompt": {"anyOf": [_TEXT, ids, _array({"anyOf": [_TEXT, ids]}, 1, 1)]},
        "echo": _FLAG,
        "logprobs": _LOGPROBS,
    }
    return _body(name, own, "prompt")


_USAGE = _object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "speculation": _object({}, more=True),
    },
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "speculation",
    more=True,
)


def _answer(kind: str, said: str) -> dict[str, Any]:
    choice = _object(
        {
            "index": {"const": 0},
            said: {},
            "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
        },
        "index",
        said,
        "finish_reason",
        more=True,
    )
    return _object(
        {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _array(choice),
            "usage": _USAGE,
        },
        "id",
        "object",
        "created",
        "model",
        "choices",
        "usage",
        more=True,
    )


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


_PROBLEMS = {
    "400": "A field is wrong, unknown or not supported.",
    "401": "The API key is missing or wrong.",
    "403": "This host or origin may not ask.",
    "404": "There is no such model, or no such path.",
    "408": "The body did not arrive in time.",
    "413": "The body is too large.",
    "429": "The queue is full.",
    "503": "The server is shutting down.",
}


def _responses(told: str, content: dict[str, Any], *problems: str) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    return {"200": {"description": told, "content": content}} | {
        status: {"description": _PROBLEMS[status], "content": _json(error)}
        for status in ("401", "403", *problems)
    }


def _post(told: str, body: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    content = _json(answer) | {"text/event-stream": {"schema": _TEXT}}
    responses = _responses(
        "The answer, whole or in pieces.", content, "400", "404", "408", "413", "429", "503"
    )
    return {
        "post": {
            "summary": told,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": responses,
        }
    }


def _get(
    told: str, content: dict[str, Any], *problems: str, name: str | None = None
) -> dict[str, Any]:
    path = (
        [{"name": "name", "in": "path", "required": True, "schema": {"enum": [name]}}]
        if name
        else []
    )
    return {
        "get": {
            "summary": told,
            "parameters": path,
            "responses": _responses(told, content, *problems),
        }
    }


@cache
def describe(name: str, needs_key: bool) -> dict[str, Any]:
    """Return the OpenAPI description of a server for the model `name`.

    Args:
        name: Name of the model.
        needs_key: Whether requests require an API key.
    """
    model = _object(
        {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT},
        "id",
        "object",
        "created",
        "owned_by",
        more=True,
    )
    error = _object(
        {
            "message": _TEXT,
            "type": _TEXT,
            "param": {"type": ["string", "null"]},
            "code": {"type": ["string", "null"]},
        },
        "message",
        "type",
        "param",
        "code",
    )
    about: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "gguf-spec",
            "version": __version__,
            "description": "An OpenAI-compatible server with speculative decoding.",
        },
        "paths": {
            "/v1/chat/completions": _post(
                "Answer messages.", _chat_body(name), _answer("chat.completion", "message")
            ),
            "/v1/completions": _post(
                "Go on from a text.", _text_body(name), _answer("text_completion", "text")
            ),
            "/v1/models": _get(
                "The model that is served.",
                _json(
                    _object({"object": {"const": "list"}, "data": _array(model)}, "object", "data")
                ),
            ),
            "/v1/models/{name}": _get("The model that is served.", _json(model), "404", name=name),
            "/health": _get(
                "Whether requests are answered.",
                _json(_object({"status": _TEXT}, "status", more=True)),
                "503",
            ),
            "/metrics": _get(
                "Counts in the text format of Prometheus.", {"text/plain": {"schema": _TEXT}}
            ),
        },
        "components": {"schemas": {"Error": _object({"error": error}, "error")}},
    }
    if needs_key:
        about["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        about["security"] = [{"key": []}]
    return about
