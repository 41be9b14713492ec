"""Faces of the server: the API formats of completions, by their paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..options import Speculation
from .face import Face, MakeReply
from .messages_api import messages_face
from .ollama import ollama_faces
from .requests import CompletionRequest, read_chat, read_text
from .responses import ResponseBuilder
from .responses_api import ResponseStore, responses_face
from .stream_formats import DATA_EVENTS


def _openai(read: Callable[[dict[str, Any], Speculation, int | None], CompletionRequest]) -> Face:
    def read_body(
        data: dict[str, Any], default: Speculation, most: int | None
    ) -> tuple[CompletionRequest, MakeReply]:
        asked = read(data, default, most)
        return asked, lambda started: ResponseBuilder(asked, started)

    return Face(read_body, DATA_EVENTS)


def all_faces(store: ResponseStore) -> dict[str, Face]:
    """Return the faces of a server by their paths.

    Args:
        store: The stored responses of the Responses API.
    """
    return {
        "/v1/chat/completions": _openai(read_chat),
        "/v1/completions": _openai(read_text),
        "/v1/responses": responses_face(store),
        **ollama_faces(),
        "/v1/messages": messages_face(),
    }
