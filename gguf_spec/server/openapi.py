"""OpenAPI description of the server."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import __version__
from ..options import SAMPLING, SPECULATION, Sampling
from .fields import OTHER_NAMES, Route, of_route
from .reasoning import EFFORTS, REASONING
from .values import CHOICES_MAX, STOP_LENGTH_MAX, STOPS_MAX, TOP_LOGPROBS_MAX

_COUNT, _NUMBER, _FLAG, _TEXT = (
    {"type": "integer", "minimum": 0},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "string"},
)
# -1 and 0 mean as much as the server allows.
_TOKENS = SAMPLING["max_tokens"].schema | {"minimum": -1}
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
    schemas |= {"max_tokens": _TOKENS, "top_k": schemas["top_k"] | {"minimum": -1}}
    return schemas | {name: schemas[here] for name, here in OTHER_NAMES.items()}


def _others(route: Route) -> dict[str, Any]:
    """Return the schemas of the fields of other APIs that are accepted without effect."""
    return {
        name: {"description": f"No effect. {one.reason}"}
        | ({} if one.accepted is None else {"enum": list(one.accepted)})
        for name, one in of_route(route).items()
        if one.accepted is None or one.accepted
    }


def _body(
    names: tuple[str, ...] | None, route: Route, own: dict[str, Any], *required: str
) -> dict[str, Any]:
    stop = {"type": "string", "maxLength": STOP_LENGTH_MAX}
    speculation = {name: rule.schema for name, rule in SPECULATION.items()}
    shared = {
        "model": _TEXT if names is None else {"enum": [*names, ""]},
        "stream": _FLAG,
        "stream_options": _object(
            {"include_usage": _FLAG, "include_speculation": _FLAG, "include_obfuscation": _FLAG}
        ),
        "stop": {"anyOf": [stop, _array(stop, STOPS_MAX)]},
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": SAMPLING["logit_bias"].schema,
        },
        "n": {"type": "integer", "minimum": 1, "maximum": CHOICES_MAX, "default": 1},
        "speculation": {"anyOf": [{"const": "off"}, _object(speculation)]},
    }
    return _object(_others(route) | shared | _sampling() | own, *required)


def _chat_body(names: tuple[str, ...] | None) -> dict[str, Any]:
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
        {
            "name": function_name,
            "description": _TEXT,
            "parameters": {"type": "object"},
            "strict": _FLAG,
        },
        "name",
    )
    tool = _object({"type": {"const": "function"}, "function": described}, "type", "function")
    named = _object({"name": function_name}, "name")
    schema = _object(
        {"name": _TEXT, "schema": {"type": "object"}, "strict": _FLAG, "description": _TEXT},
        "name",
        "schema",
    )
    own = {
        "messages": _array(message, least=1),
        "logprobs": _FLAG,
        "top_logprobs": _LOGPROBS,
        "tools": _array(tool),
        "tool_choice": {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                _object({"type": {"const": "function"}, "function": named}, "type", "function"),
            ]
        },
        "parallel_tool_calls": _FLAG,
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
    return _body(names, "chat", own, "messages")


def _text_body(names: tuple[str, ...] | None) -> dict[str, Any]:
    ids = _array(_COUNT, least=1)
    own = {
        "prompt": {
            "anyOf": [_TEXT, ids, _array(_TEXT, CHOICES_MAX, 1), _array(ids, CHOICES_MAX, 1)]
        },
        "suffix": _TEXT,
        "best_of": {"type": "integer", "description": "No effect. It must be equal to n."},
        "echo": _FLAG,
        "logprobs": _LOGPROBS,
    }
    return _body(names, "text", own, "prompt")


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
            "index": _COUNT,
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
    "503": "The server is shutting down, or a model does not fit into the memory.",
}


def _responses(told: str, content: dict[str, Any], *problems: str) -> dict[str, Any]:
    error = {"$ref": "#/components/schemas/Error"}
    return {"200": {"description": told, "content": content}} | {
        status: {"description": _PROBLEMS[status], "content": _json(error)}
        for status in ("401", "403", *problems)
    }


def _post(
    told: str, body: dict[str, Any], answer: dict[str, Any], streams: bool = True
) -> dict[str, Any]:
    content = _json(answer) | ({"text/event-stream": {"schema": _TEXT}} if streams else {})
    what = "The answer, whole or in pieces." if streams else told
    responses = _responses(what, content, "400", "404", "408", "413", "429", "503")
    return {
        "post": {
            "summary": told,
            "requestBody": {"required": True, "content": _json(body)},
            "responses": responses,
        }
    }


def _get(
    told: str, content: dict[str, Any], *problems: str, names: tuple[str, ...] | None = None
) -> dict[str, Any]:
    path = (
        [{"name": "name", "in": "path", "required": True, "schema": {"enum": list(names)}}]
        if names
        else []
    )
    return {
        "get": {
            "summary": told,
            "parameters": path,
            "responses": _responses(told, content, *problems),
        }
    }


def _lookups() -> dict[str, Any]:
    """Return the routes that have the form of llama-server."""
    ids = _array(_COUNT)
    piece = _object({"id": _COUNT, "piece": {"anyOf": [_TEXT, ids]}}, "id", "piece")
    tokens = {"anyOf": [ids, _array(piece)]}
    content = {"content": _TEXT, "model": _TEXT}
    flags = dict.fromkeys(("add_special", "parse_special", "with_pieces"), _FLAG)
    slot = {"id": _COUNT, "id_task": {"type": "integer"}, "is_processing": _FLAG, "model": _TEXT}
    slot |= {"n_ctx": _COUNT, "n_past": _COUNT, "speculative": _FLAG}
    slot = _object(slot, *slot)
    return {
        "/tokenize": _post(
            "The tokens of a text.",
            _object(content | flags, "content"),
            _object({"tokens": tokens}, "tokens"),
            streams=False,
        ),
        "/detokenize": _post(
            "The text of tokens.",
            _object({"tokens": ids, "model": _TEXT}, "tokens"),
            _object({"content": _TEXT}, "content"),
            streams=False,
        ),
        "/slots": _get(
            "The slots of the models in memory: one for each request that can run at once.",
            _json(_array(slot)),
            "404",
            "503",
        ),
        "/props": _get(
            "Properties of a model.",
            _json(_object({"chat_template": _TEXT}, "chat_template", more=True)),
            "404",
            "503",
        ),
    }


@cache
def describe(ids: tuple[str, ...], needs_key: bool, any_model: bool = False) -> dict[str, Any]:
    """Return the OpenAPI description of a server.

    Args:
        ids: Names of its models.
        needs_key: Whether requests require an API key.
        any_model: Whether requests may name any model.
    """
    names = None if any_model else ids
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
                "Answer messages.", _chat_body(names), _answer("chat.completion", "message")
            ),
            "/v1/completions": _post(
                "Go on from a text.", _text_body(names), _answer("text_completion", "text")
            ),
            "/v1/models": _get(
                "The models that are served.",
                _json(
                    _object({"object": {"const": "list"}, "data": _array(model)}, "object", "data")
                ),
            ),
            "/v1/models/{name}": _get("One of the models.", _json(model), "404", names=ids),
            **_lookups(),
            "/api/ps": _get(
                "The models in memory.", _json(_object({"models": _array({})}, "models"))
            ),
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
