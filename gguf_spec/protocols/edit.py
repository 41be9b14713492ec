"""The dialect of `/v1/edit`: a text changed as an instruction says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..options import Speculation
from . import schema as s
from .bodies import SHARED, Body, request_of
from .errors import invalid_value
from .request import CompletionRequest, Show

# Characters of a text. Few contexts hold more.
TEXT_MAX = 1 << 18
_SCOPE = s.checked(
    {"anyOf": [s.TEXT.schema, {"type": "array", "items": s.TEXT.schema}]},
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and all(isinstance(one, str) for one in value))
    ),
    "must be a text or an array of texts.",
)
EDIT = Body(
    "text",
    {name: SHARED[name] for name in ("model", "max_tokens", "seed", "temperature", "speculation")}
    | {
        "text": s.TEXT,
        "instruction": s.TEXT,
        "name": s.TEXT,
        "scope": _SCOPE,
    },
    "text",
)


@dataclass(frozen=True)
class EditShow(Show):
    """What is edited.

    Attributes:
        scope: What the change keeps to: names of parts.
        max_tokens: The limit of the body; None for that of the server.
    """

    text: str
    instruction: str
    name: str
    scope: tuple[str, ...]
    max_tokens: int | None


def read_edit(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a request."""
    data, names = EDIT.read(data)
    if len(data["text"]) > TEXT_MAX:
        message = f"has {len(data['text']):,} characters, but may have at most {TEXT_MAX:,}."
        raise invalid_value("text", message)
    scope = data.get("scope", ())
    scope = [scope] if isinstance(scope, str) else scope
    request = request_of({"temperature": 0} | data, default, most, names, texts=(data["text"],))
    text, instruction = data["text"].replace("\r\n", "\n"), data.get("instruction", "")
    limit = request.sampling.max_tokens if data.get("max_tokens") is not None else None
    show = EditShow(text, instruction, data.get("name", ""), tuple(scope), limit)
    return replace(request, show=show)


def answer_of(
    edit: dict[str, Any], stats: dict[str, Any] | None, more: dict[str, Any]
) -> dict[str, Any]:
    """Return the answer: the facts of an edit, those of its generation, and further fields."""
    return {"object": "edit", **edit, "stats": stats, **more}
