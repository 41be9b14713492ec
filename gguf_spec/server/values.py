"""Readers of single field values of a request body."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import InvalidOptionError
from ..options import SPECULATION, Speculation
from .errors import ApiError, bad, option_refusal, unknown, unsupported

# Limits: number of stop strings, characters per stop string, alternatives per token (logprobs),
# choices of one request, characters of the id of a tool call or of an item.
STOPS_MAX, STOP_LENGTH_MAX, TOP_LOGPROBS_MAX, CHOICES_MAX = 16, 256, 20, 128
ID_LENGTH_MAX = 256
# Keys of a response format's `json_schema`.
_SCHEMA_KEYS = {"name", "schema", "strict", "description"}


def made(make: Callable[[], Any], names: dict[str, str]) -> Any:
    """Return the options that `make` creates.

    Raises:
        ApiError: An option is outside its range. The error names its field.
    """
    try:
        return make()
    except InvalidOptionError as error:
        raise option_refusal(error, names) from None
    except OverflowError:
        raise ApiError("A number is too large.", None, "invalid_value") from None


def check_known(names: Iterable[str], known: Collection[str], at: str = "") -> None:
    """Refuse unknown fields.

    Args:
        names: Names of the given fields.
        known: Names of the known fields.
        at: Place of the fields in the request, with a point at its end.

    Raises:
        ApiError: A field is unknown. The error names it.
    """
    for name in names:
        if name not in known:
            raise unknown(f"{at}{name[:100]}")


def check_supported(fields: Mapping[str, Any], known: Collection[str], at: str) -> None:
    """Refuse fields of an object in the request that are not supported, unless they are empty.

    Args:
        fields: The object.
        known: Names of the supported fields.
        at: Place of the object in the request.

    Raises:
        ApiError: A field is not supported. The error names it.
    """
    for name, value in fields.items():
        if value not in (None, "", [], {}) and name not in known:
            raise unsupported(f"{at}.{name[:100]}")


def string(value: Any, at: str) -> str:
    """Return a text.

    Raises:
        ApiError: It is not a string. The error names the field `at`.
    """
    if not isinstance(value, str):
        raise bad(at, "must be a string.")
    return value


def identifier(value: Any, at: str) -> str:
    """Return the id of a tool call or of an item.

    Raises:
        ApiError: It is not a string of 1 to 256 characters. The error names the field `at`.
    """
    if not isinstance(value, str) or not 0 < len(value) <= ID_LENGTH_MAX:
        raise bad(at, f"must be a string of at most {ID_LENGTH_MAX} characters.")
    return value


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def flag(data: dict[str, Any], name: str, at: str = "") -> bool:
    """Return the boolean field `name`; False without it."""
    value = data.get(name)
    if not (value is None or isinstance(value, bool)):
        raise bad(at + name, "must be true or false.")
    return bool(value)


def count(value: Any, name: str, least: int, most: int) -> int:
    """Return a whole number within its limits."""
    if not (is_count(value) and least <= value <= most):
        raise bad(name, f"must be a whole number from {least} to {most}.")
    return int(value)


def stops(value: Any, name: str = "stop") -> tuple[str, ...]:
    """Return the stop strings; empty strings, which stop nothing, are left out."""
    given = [] if value is None else [value] if isinstance(value, str) else value
    if (
        not isinstance(given, list)
        or len(given) > STOPS_MAX
        or not all(isinstance(stop, str) and len(stop) <= STOP_LENGTH_MAX for stop in given)
    ):
        raise bad(
            name,
            f"must be a string of at most {STOP_LENGTH_MAX} characters, "
            f"or an array of at most {STOPS_MAX} of them.",
        )
    return tuple(filter(None, given))


def biases(value: Any) -> dict[int, float]:
    """Return the logit biases by token id."""
    if not isinstance(value, dict) or not all(
        token.isdecimal() and len(token) < 10 for token in value
    ):
        raise bad("logit_bias", "must be an object from token ids to numbers.")
    return {int(token): bias for token, bias in value.items()}


def prompts(value: Any) -> tuple[str | list[int], ...]:
    """Return the prompts: a text or token ids, or an array of these."""
    several = isinstance(value, list) and value and isinstance(value[0], (str, list))
    given = value if several else [value]
    for one in given:
        if not (isinstance(one, str) or (isinstance(one, list) and all(map(is_count, one)))):
            raise bad("prompt", "must be a string, an array of token ids, or an array of these.")
    if len(given) > CHOICES_MAX:
        raise bad("prompt", f"may contain at most {CHOICES_MAX} prompts.")
    return tuple(given)


def schema(value: Any) -> Any:
    """Return the JSON schema of a response format, or None if it has none."""
    if value is None or value == {"type": "text"}:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "json_object" and set(value) <= {"type", "schema"}:
        # llama-server's form has the schema here.
        inner: Any = value.get("schema") or {"type": "object"}
        if not isinstance(inner, dict):
            raise bad("response_format.schema", "must be a JSON schema.")
        return inner
    if kind != "json_schema" or set(value) != {"type", "json_schema"}:
        raise bad("response_format", "must be of the type text, json_object or json_schema.")
    inner = value["json_schema"]
    if (
        not isinstance(inner, dict)
        or not isinstance(inner.get("name"), str)
        or not isinstance(inner.get("schema"), (dict, bool))
    ):
        raise bad("response_format.json_schema", "must contain a name and a schema.")
    if not (
        isinstance(inner.get("strict"), (bool, type(None)))
        and isinstance(inner.get("description"), (str, type(None)))
        and set(inner) <= _SCHEMA_KEYS
    ):
        raise bad(
            "response_format.json_schema",
            "may contain only name, schema, strict and description.",
        )
    return inner["schema"]  # always enforced, whatever the value of `strict`


def speculation(value: Any, default: Speculation, names: dict[str, str]) -> Speculation | None:
    """Return the speculation options of a request; None for those of the server."""
    if value is None:
        return None
    if value == "off":
        return replace(default, k=0)
    if not isinstance(value, dict):
        raise bad("speculation", 'must be an object, or "off".')
    check_known(value, SPECULATION, "speculation.")
    given = {name: one for name, one in value.items() if one is not None}
    options: Speculation = made(lambda: replace(default, **given), names)
    return options
