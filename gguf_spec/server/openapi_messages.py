"""OpenAPI description of the routes of the Messages API."""

from __future__ import annotations

from typing import Any

from .messages_api.request import CHOICES, EFFORTS, PROMPT_FIELDS
from .openapi_parts import (
    COUNT,
    FLAG,
    FUNCTION_NAME,
    ID,
    STOP,
    TEMPLATE_KWARGS,
    TEXT,
    array_of,
    body_of,
    object_of,
    post_of,
)
from .values import STOPS_MAX

ANTHROPIC_ERROR = object_of(
    {
        "type": {"const": "error"},
        "error": object_of(
            {"type": TEXT, "message": TEXT, "details": {"type": "object"}}, "type", "message"
        ),
    },
    "type",
    "error",
)


def _block(kind: str, fields: dict[str, Any], *required: str) -> dict[str, Any]:
    more = {"type": {"const": kind}, "cache_control": {"type": "object"}}
    return object_of(more | fields, "type", *(required or fields))


def _messages() -> dict[str, Any]:
    """Return the schema of the messages."""
    text = _block("text", {"text": TEXT})
    texts = {"anyOf": [TEXT, array_of(text, least=1)]}
    result = {"tool_use_id": ID, "content": texts, "is_error": FLAG}
    called = {"id": ID, "name": FUNCTION_NAME, "input": {"type": "object"}}
    thought = _block("thinking", {"thinking": TEXT, "signature": TEXT}, "thinking")
    source = object_of(
        {"type": {"const": "base64"}, "media_type": TEXT, "data": TEXT}, "type", "data"
    )
    image = _block("image", {"source": source})
    asks = [text, image, _block("tool_result", result, "tool_use_id")]
    answers = [text, thought, _block("tool_use", called)]

    def of(role: str, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        content = {"anyOf": [TEXT, array_of({"anyOf": blocks}, least=1)]}
        return object_of({"role": {"const": role}, "content": content}, "role", "content")

    return array_of({"anyOf": [of("user", asks), of("assistant", answers)]}, least=1)


def _own() -> dict[str, Any]:
    """Return the schemas of the fields that only this API has."""
    tool = {"name": FUNCTION_NAME, "description": TEXT, "input_schema": {"type": "object"}}
    choice = {"type": {"enum": [*CHOICES]}, "name": TEXT, "disable_parallel_tool_use": FLAG}
    budget = {"type": "integer", "minimum": 1, "maximum": 10**9}
    schema = {"type": {"const": "json_schema"}, "schema": {"type": "object"}}
    return {
        "messages": _messages(),
        "system": {"anyOf": [TEXT, array_of(_block("text", {"text": TEXT}))]},
        "stop_sequences": array_of(STOP, STOPS_MAX),
        "tools": array_of(object_of(tool | {"strict": FLAG}, "name", "input_schema")),
        "tool_choice": object_of(choice, "type"),
        "thinking": {
            "anyOf": [
                object_of({"type": {"const": "enabled"}, "budget_tokens": budget}, "type"),
                object_of({"type": {"enum": ["disabled", "adaptive"]}}, "type"),
            ]
        },
        "output_config": object_of(
            {"effort": {"enum": [*EFFORTS]}, "format": object_of(schema, *schema)}
        ),
        "chat_template_kwargs": TEMPLATE_KWARGS,
    }


def message_routes(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes of the Messages API.

    Args:
        names: Names of the models; None for any name.
    """
    body = body_of(names, "messages", _own(), "messages")
    del body["properties"]["stop"]
    counted = {name: body["properties"][name] for name in sorted(PROMPT_FIELDS)}
    counts = dict.fromkeys(("input_tokens", "cache_read_input_tokens", "output_tokens"), COUNT)
    reasons = ["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    message = {
        "id": TEXT,
        "type": {"const": "message"},
        "role": {"const": "assistant"},
        "model": TEXT,
        "content": array_of(object_of({"type": TEXT}, "type", more=True)),
        "stop_reason": {"enum": reasons},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": object_of(counts, *counts, more=True),
    }
    total = object_of({"input_tokens": COUNT}, "input_tokens")
    return {
        "/v1/messages": post_of(
            "Answer messages, in the format of Anthropic.",
            body,
            object_of(message, *message, more=True),
            error="AnthropicError",
        ),
        "/v1/messages/count_tokens": post_of(
            "The number of tokens of such a prompt.",
            object_of(counted, "messages"),
            total,
            streams=False,
            error="AnthropicError",
        ),
    }
