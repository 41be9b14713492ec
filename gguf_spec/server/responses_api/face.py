"""The face of the Responses API."""

from __future__ import annotations

from typing import Any

from ...options import Speculation
from ..face import Face, MakeReply
from ..requests import CompletionRequest
from ..stream_formats import NAMED_EVENTS
from .output import ResponseReply
from .request import read_response
from .store import ResponseStore


def responses_face(store: ResponseStore) -> Face:
    """Return the face of the Responses API.

    Args:
        store: The stored responses.
    """

    def read(
        data: dict[str, Any], default: Speculation, most: int | None
    ) -> tuple[CompletionRequest, MakeReply]:
        asked, request = read_response(data, default, most, store)
        return asked, lambda started: ResponseReply(asked, request, store, started)

    return Face(read, NAMED_EVENTS)
