"""OpenAPI description of the routes of the Responses API."""

from __future__ import annotations

from typing import Any

from .openapi_parts import (
    COUNT,
    FLAG,
    FUNCTION_NAME,
    ID,
    LOGPROBS,
    TEMPLATE_KWARGS,
    TEXT,
    TOKENS,
    array_of,
    body_of,
    json_of,
    object_of,
    post_of,
    responses_of,
)
from .reasoning import EFFORTS
from .responses_api.request import (
    INCLUDED,
    METADATA_KEY_MAX,
    METADATA_MAX,
    METADATA_VALUE_MAX,
    SUMMARIES,
)

_METADATA = {
    "type": "object",
    "maxProperties": METADATA_MAX,
    "propertyNames": {"maxLength": METADATA_KEY_MAX},
    "additionalProperties": {"type": "string", "maxLength": METADATA_VALUE_MAX},
}


def _items() -> dict[str, Any]:
    """Return the schema of an item of the input."""
    text = object_of({"type": {"const": "input_text"}, "text": TEXT}, "type", "text")
    file = object_of(
        {"type": {"const": "input_file"}, "filename": TEXT, "file_data": TEXT},
        "type",
        "file_data",
    )
    said = object_of({"type": {"const": "output_text"}, "text": TEXT}, "type", "text", more=True)
    thought = object_of({"type": {"const": "reasoning_text"}, "text": TEXT}, "type", "text")
    summary = object_of({"type": {"const": "summary_text"}, "text": TEXT}, "type", "text")
    image = object_of(
        {"type": {"const": "input_image"}, "image_url": TEXT, "detail": TEXT}, "type", "image_url"
    )
    content = {"anyOf": [TEXT, array_of({"anyOf": [text, image, file]}, least=1)]}
    asked = {"type": {"const": "message"}, "role": {"enum": ["user", "system", "developer"]}}
    answered = {"type": {"const": "message"}, "role": {"const": "assistant"}, "id": ID}
    call = {"type": {"const": "function_call"}, "id": ID, "call_id": ID}
    output = {"type": {"const": "function_call_output"}, "call_id": ID, "output": content}
    reasoning = {"type": {"const": "reasoning"}, "id": ID}
    reasoning |= {"summary": array_of(summary), "content": array_of(thought)}
    return {
        "anyOf": [
            object_of(asked | {"content": content}, "role", "content"),
            object_of(answered | {"content": {"anyOf": [TEXT, array_of(said)]}}, "role", "content"),
            object_of(
                call | {"name": FUNCTION_NAME, "arguments": TEXT},
                "type",
                "call_id",
                "name",
                "arguments",
            ),
            object_of(output, "type", "call_id", "output"),
            object_of(reasoning, "type", "summary"),
            object_of({"type": {"const": "item_reference"}, "id": ID}, "type", "id"),
        ]
    }


def _tools() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the schemas of a tool and of the tool choice."""
    named = object_of({"type": {"const": "function"}, "name": FUNCTION_NAME}, "type", "name")
    about = {"description": TEXT, "parameters": {"type": "object"}, "strict": FLAG}
    tool = object_of(named["properties"] | about, "type", "name")
    allowed = {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": array_of(named, least=1),
    }
    choice = [{"enum": ["none", "auto", "required"]}, named, object_of(allowed, *allowed)]
    return tool, {"anyOf": choice}


def _body(names: tuple[str, ...] | None) -> dict[str, Any]:
    tool, choice = _tools()
    schema = {"type": {"const": "json_schema"}, "name": TEXT, "schema": {"type": "object"}}
    schema |= {"strict": FLAG, "description": TEXT}
    forms = [
        object_of({"type": {"enum": ["text", "json_object"]}}, "type"),
        object_of(schema, "type", "name", "schema"),
    ]
    own = {
        "input": {"anyOf": [TEXT, array_of(_items(), least=1)]},
        "instructions": TEXT,
        "max_output_tokens": TOKENS,
        "metadata": _METADATA,
        "store": FLAG,
        "previous_response_id": TEXT,
        "truncation": {"enum": ["auto", "disabled"]},
        "include": array_of({"enum": list(INCLUDED)}),
        "top_logprobs": LOGPROBS,
        "stream_options": object_of({"include_obfuscation": FLAG}),
        "tools": array_of(tool),
        "tool_choice": choice,
        "parallel_tool_calls": FLAG,
        "reasoning": object_of({"effort": {"enum": [*EFFORTS]}, "summary": {"enum": [*SUMMARIES]}}),
        "text": object_of({"format": {"anyOf": forms}, "verbosity": {"const": "medium"}}),
        "chat_template_kwargs": TEMPLATE_KWARGS,
    }
    return body_of(names, "responses", own, "input")


def _response() -> dict[str, Any]:
    usage = dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), COUNT)
    usage["input_tokens_details"] = object_of({"cached_tokens": COUNT}, "cached_tokens", more=True)
    item = object_of({"type": TEXT, "id": TEXT, "status": TEXT}, "type", "id", more=True)
    fields = {
        "id": TEXT,
        "object": {"const": "response"},
        "created_at": COUNT,
        "status": {"enum": ["completed", "incomplete"]},
        "model": TEXT,
        "output": array_of(item, least=1),
        "usage": object_of(usage, *usage, more=True),
    }
    return object_of(fields, *fields, more=True)


def response_routes(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the routes of the Responses API.

    Args:
        names: Names of the models; None for any name.
    """
    path = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    query = {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
        "after": TEXT,
    }
    items = object_of(
        {"object": {"const": "list"}, "data": array_of({})}, "object", "data", more=True
    )
    deleted = object_of({"id": TEXT, "object": TEXT, "deleted": FLAG}, "id", "object", "deleted")

    def of(told: str, schema: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        asked = [{"name": name, "in": "query", "schema": one} for name, one in more.items()]
        return {
            "summary": told,
            "parameters": [*path, *asked],
            "responses": responses_of(told, json_of(schema), "400", "404"),
        }

    return {
        "/v1/responses": post_of(
            "Answer items, and store the response.", _body(names), _response()
        ),
        "/v1/responses/{id}": {
            "get": of("A stored response.", _response(), {"stream": {"const": False}}),
            "delete": of("Forget a stored response.", deleted, {}),
        },
        "/v1/responses/{id}/input_items": {"get": of("The items of its input.", items, query)},
    }
