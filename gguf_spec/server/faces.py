"""Faces of the server: the API formats of completions, by their paths."""

from __future__ import annotations

from .face import Face, face_of
from .messages_api import MESSAGES_FACE
from .ollama import ollama_faces
from .requests import read_chat, read_text
from .responses import ResponseBuilder
from .responses_api import ResponseStore, responses_face
from .stream_formats import DATA_EVENTS


def all_faces(store: ResponseStore) -> dict[str, Face]:
    """Return the faces of a server by their paths.

    Args:
        store: The stored responses of the Responses API.
    """
    return {
        "/v1/chat/completions": face_of(read_chat, ResponseBuilder, DATA_EVENTS),
        "/v1/completions": face_of(read_text, ResponseBuilder, DATA_EVENTS),
        "/v1/responses": responses_face(store),
        **ollama_faces(),
        "/v1/messages": MESSAGES_FACE,
    }
