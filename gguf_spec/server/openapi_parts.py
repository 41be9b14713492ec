"""Parts of the OpenAPI description: schemas that several routes share, and forms of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..options import SAMPLING, SPECULATION, Sampling
from .fields import OTHER_NAMES, OtherField, Route, of_route
from .values import ID_LENGTH_MAX, STOP_LENGTH_MAX, STOPS_MAX, TOP_LOGPROBS_MAX

COUNT, NUMBER, FLAG, TEXT = (
    {"type": "integer", "minimum": 0},
    {"type": "number"},
    {"type": "boolean"},
    {"type": "string"},
)
# -1 and 0 mean as much as the server allows.
TOKENS = SAMPLING["max_tokens"].schema | {"minimum": -1}
LOGPROBS = SAMPLING["logprobs"].schema | {"maximum": TOP_LOGPROBS_MAX}
FUNCTION_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}
ID = {"type": "string", "minLength": 1, "maxLength": ID_LENGTH_MAX}
TEMPLATE_KWARGS = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
}


def object_of(properties: dict[str, Any], *required: str, more: bool = False) -> dict[str, Any]:
    """Return the schema of an object; `more` allows other properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": more,
    }


def array_of(items: dict[str, Any], most: int | None = None, least: int = 0) -> dict[str, Any]:
    """Return the schema of an array of `least` to `most` items."""
    return {"type": "array", "items": items, "minItems": least} | (
        {} if most is None else {"maxItems": most}
    )


STOP = {"type": "string", "maxLength": STOP_LENGTH_MAX}
STOPS = {"anyOf": [STOP, array_of(STOP, STOPS_MAX)]}


def model_of(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the schema of the field `model`; `names` is None for any name."""
    return TEXT if names is None else {"enum": [*names, ""]}


def without_effect(fields: Mapping[str, OtherField]) -> dict[str, Any]:
    """Return the schemas of the fields of other APIs that are accepted without effect."""
    return {
        name: {"description": f"No effect. {one.reason}"}
        | ({} if one.accepted is None else {"enum": list(one.accepted)})
        for name, one in fields.items()
        if one.accepted is None or one.accepted
    }


def _sampling() -> dict[str, Any]:
    """Return the schemas of the fields that are those of `Sampling`.

    `max_tokens` has no default: it is the server's.
    """
    schemas = {name: rule.schema for name, rule in SAMPLING.items() if rule.in_requests}
    for name in schemas.keys() - {"max_tokens"}:
        if (default := getattr(Sampling, name)) is not None:
            schemas[name] |= {"default": default}
    schemas |= {"max_tokens": TOKENS, "top_k": schemas["top_k"] | {"minimum": -1}}
    return schemas | {name: schemas[here] for name, here in OTHER_NAMES.items()}


def body_of(
    names: tuple[str, ...] | None, route: Route, own: dict[str, Any], *required: str
) -> dict[str, Any]:
    """Return the schema of a body that asks for an answer.

    Args:
        names: Names of the models; None for any name.
        route: The route.
        own: Schemas of the fields that not all routes have.
        required: Names of the fields that must be there.
    """
    speculation = {name: rule.schema for name, rule in SPECULATION.items()}
    shared = {
        "model": model_of(names),
        "stream": FLAG,
        "stop": STOPS,
        "logit_bias": {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,9}$"},
            "additionalProperties": SAMPLING["logit_bias"].schema,
        },
        "speculation": {"anyOf": [{"const": "off"}, object_of(speculation)]},
    }
    return object_of(without_effect(of_route(route)) | shared | _sampling() | own, *required)


def json_of(schema: dict[str, Any]) -> dict[str, Any]:
    """Return JSON as the content of a body."""
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


def responses_of(
    told: str, content: dict[str, Any], *problems: str, error: str = "Error"
) -> dict[str, Any]:
    """Return the responses of a route: the one with status 200, and errors.

    Args:
        told: Description of the response.
        content: Its content.
        problems: HTTP status codes of errors, beside those of all routes.
        error: Schema of the errors.
    """
    form = {"$ref": f"#/components/schemas/{error}"}
    return {"200": {"description": told, "content": content}} | {
        status: {"description": _PROBLEMS[status], "content": json_of(form)}
        for status in ("401", "403", *problems)
    }


def post_of(
    told: str,
    body: dict[str, Any],
    answer: dict[str, Any],
    streams: bool = True,
    error: str = "Error",
) -> dict[str, Any]:
    """Return a route with the method POST.

    Args:
        told: Its description.
        body: Schema of the body.
        answer: Schema of the response.
        streams: Whether the response may be a stream.
        error: Schema of the errors.
    """
    content = json_of(answer) | ({"text/event-stream": {"schema": TEXT}} if streams else {})
    what = "The answer, whole or in pieces." if streams else told
    problems = ("400", "404", "408", "413", "429", "503")
    responses = responses_of(what, content, *problems, error=error)
    return {
        "post": {
            "summary": told,
            "requestBody": {"required": True, "content": json_of(body)},
            "responses": responses,
        }
    }


def get_of(
    told: str,
    content: dict[str, Any],
    *problems: str,
    names: tuple[str, ...] | None = None,
    error: str = "Error",
) -> dict[str, Any]:
    """Return a route with the method GET.

    Args:
        told: Its description.
        content: Content of the response.
        problems: HTTP status codes of errors, beside those of all routes.
        names: Values of the part `name` of the path; None for a path without it.
        error: Schema of the errors.
    """
    path = (
        [{"name": "name", "in": "path", "required": True, "schema": {"enum": list(names)}}]
        if names
        else []
    )
    return {
        "get": {
            "summary": told,
            "parameters": path,
            "responses": responses_of(told, content, *problems, error=error),
        }
    }
