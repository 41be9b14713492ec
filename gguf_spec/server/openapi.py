"""OpenAPI description of the server."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import __version__
from .openapi_embeddings import embedding_routes
from .openapi_messages import ANTHROPIC_ERROR, message_routes
from .openapi_ollama import OLLAMA_ERROR, ollama_routes
from .openapi_parts import (
    COUNT,
    FLAG,
    FUNCTION_NAME,
    LOGPROBS,
    TEMPLATE_KWARGS,
    TEXT,
    array_of,
    body_of,
    get_of,
    json_of,
    object_of,
    post_of,
)
from .openapi_responses import response_routes
from .reasoning import EFFORTS, REASONING
from .values import CHOICES_MAX

# Fields of the routes that may have several choices.
_CHOICES = {
    "n": {"type": "integer", "minimum": 1, "maximum": CHOICES_MAX, "default": 1},
    "stream_options": object_of(
        {"include_usage": FLAG, "include_speculation": FLAG, "include_obfuscation": FLAG}
    ),
}


def _chat_body(names: tuple[str, ...] | None) -> dict[str, Any]:
    called = object_of({"name": FUNCTION_NAME, "arguments": TEXT}, "name", "arguments")
    call = object_of(
        {"id": TEXT, "type": {"const": "function"}, "function": called}, "id", "function"
    )
    text = object_of({"type": {"const": "text"}, "text": TEXT}, "type", "text")
    url = {"anyOf": [TEXT, object_of({"url": TEXT, "detail": TEXT}, "url")]}
    image = object_of({"type": {"const": "image_url"}, "image_url": url}, "type", "image_url")
    content = {"anyOf": [TEXT, array_of(text, least=1)]}
    asked = {"anyOf": [TEXT, array_of({"anyOf": [text, image]}, least=1)]}
    message = {
        "oneOf": [
            object_of(
                {"role": {"enum": ["system", "developer"]}, "content": content},
                "role",
                "content",
            ),
            object_of({"role": {"const": "user"}, "content": asked}, "role", "content"),
            object_of(
                {
                    "role": {"const": "assistant"},
                    "content": content,
                    REASONING: TEXT,
                    "tool_calls": array_of(call, least=1),
                },
                "role",
                "content",
            ),
            object_of(
                {"role": {"const": "tool"}, "content": content, "tool_call_id": TEXT},
                "role",
                "content",
                "tool_call_id",
            ),
        ]
    }
    described = object_of(
        {
            "name": FUNCTION_NAME,
            "description": TEXT,
            "parameters": {"type": "object"},
            "strict": FLAG,
        },
        "name",
    )
    tool = object_of({"type": {"const": "function"}, "function": described}, "type", "function")
    named = object_of({"name": FUNCTION_NAME}, "name")
    schema = object_of(
        {"name": TEXT, "schema": {"type": "object"}, "strict": FLAG, "description": TEXT},
        "name",
        "schema",
    )
    own = _CHOICES | {
        "messages": array_of(message, least=1),
        "logprobs": FLAG,
        "top_logprobs": LOGPROBS,
        "tools": array_of(tool),
        "tool_choice": {
            "anyOf": [
                {"enum": ["none", "auto", "required"]},
                object_of({"type": {"const": "function"}, "function": named}, "type", "function"),
            ]
        },
        "parallel_tool_calls": FLAG,
        "reasoning_effort": {"enum": [*EFFORTS]},
        "chat_template_kwargs": TEMPLATE_KWARGS,
        "response_format": {
            "oneOf": [
                object_of({"type": {"enum": ["text", "json_object"]}}, "type"),
                object_of(
                    {"type": {"const": "json_schema"}, "json_schema": schema}, "type", "json_schema"
                ),
            ]
        },
    }
    return body_of(names, "chat", own, "messages")


def _text_body(names: tuple[str, ...] | None) -> dict[str, Any]:
    ids = array_of(COUNT, least=1)
    own = _CHOICES | {
        "prompt": {
            "anyOf": [TEXT, ids, array_of(TEXT, CHOICES_MAX, 1), array_of(ids, CHOICES_MAX, 1)]
        },
        "suffix": TEXT,
        "best_of": {"type": "integer", "description": "No effect. It must be equal to n."},
        "echo": FLAG,
        "logprobs": LOGPROBS,
    }
    return body_of(names, "text", own, "prompt")


_USAGE = object_of(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": object_of({"cached_tokens": COUNT}, "cached_tokens"),
        "speculation": object_of({}, more=True),
    },
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "speculation",
    more=True,
)


def _answer(kind: str, said: str) -> dict[str, Any]:
    choice = object_of(
        {
            "index": COUNT,
            said: {},
            "finish_reason": {"enum": ["stop", "length", "tool_calls"]},
        },
        "index",
        said,
        "finish_reason",
        more=True,
    )
    return object_of(
        {
            "id": TEXT,
            "object": {"const": kind},
            "created": COUNT,
            "model": TEXT,
            "choices": array_of(choice),
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


def _lookups() -> dict[str, Any]:
    """Return the routes that have the form of llama-server."""
    ids = array_of(COUNT)
    piece = object_of({"id": COUNT, "piece": {"anyOf": [TEXT, ids]}}, "id", "piece")
    tokens = {"anyOf": [ids, array_of(piece)]}
    content = {"content": TEXT, "model": TEXT}
    flags = dict.fromkeys(("add_special", "parse_special", "with_pieces"), FLAG)
    slot = {"id": COUNT, "id_task": {"type": "integer"}, "is_processing": FLAG, "model": TEXT}
    kept = dict.fromkeys(("entries", "bytes", "limit_bytes", "tokens_reused"), COUNT)
    slot |= {"n_ctx": COUNT, "n_past": COUNT, "speculative": FLAG}
    slot["kept_prefixes"] = object_of(kept, *kept)
    slot = object_of(slot, *slot)
    return {
        "/tokenize": post_of(
            "The tokens of a text.",
            object_of(content | flags, "content"),
            object_of({"tokens": tokens}, "tokens"),
            streams=False,
        ),
        "/detokenize": post_of(
            "The text of tokens.",
            object_of({"tokens": ids, "model": TEXT}, "tokens"),
            object_of({"content": TEXT}, "content"),
            streams=False,
        ),
        "/slots": get_of(
            "The slots of the models in memory: one for each request that can run at once.",
            json_of(array_of(slot)),
            "404",
            "503",
        ),
        "/props": get_of(
            "Properties of a model.",
            json_of(object_of({"chat_template": TEXT}, "chat_template", more=True)),
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
    model = object_of(
        {"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT},
        "id",
        "object",
        "created",
        "owned_by",
        more=True,
    )
    error = object_of(
        {
            "message": TEXT,
            "type": TEXT,
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
            "description": "A server with speculative decoding and several API formats.",
        },
        "paths": {
            "/v1/chat/completions": post_of(
                "Answer messages.", _chat_body(names), _answer("chat.completion", "message")
            ),
            "/v1/completions": post_of(
                "Go on from a text.", _text_body(names), _answer("text_completion", "text")
            ),
            "/v1/models": get_of(
                "The models that are served.",
                json_of(
                    object_of(
                        {"object": {"const": "list"}, "data": array_of(model)}, "object", "data"
                    )
                ),
            ),
            "/v1/models/{name}": get_of("One of the models.", json_of(model), "404", names=ids),
            **response_routes(names),
            **embedding_routes(names),
            **ollama_routes(names),
            **message_routes(names),
            **_lookups(),
            "/health": get_of(
                "Whether requests are answered.",
                json_of(object_of({"status": TEXT}, "status", more=True)),
                "503",
            ),
            "/metrics": get_of(
                "Counts in the text format of Prometheus.", {"text/plain": {"schema": TEXT}}
            ),
        },
        "components": {
            "schemas": {
                "Error": object_of({"error": error}, "error"),
                "AnthropicError": ANTHROPIC_ERROR,
                "OllamaError": OLLAMA_ERROR,
            }
        },
    }
    if needs_key:
        about["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        about["security"] = [{"key": []}]
    return about
