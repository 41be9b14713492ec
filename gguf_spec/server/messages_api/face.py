"""The face of the Messages API."""

from __future__ import annotations

from typing import Any

from ...options import Speculation
from ..face import Face, MakeReply
from ..requests import CompletionRequest
from ..stream_formats import MESSAGE_EVENTS
from .output import MessageReply
from .request import read_request


def messages_face() -> Face:
    """Return the face of the Messages API."""

    def read(
        data: dict[str, Any], default: Speculation, most: int | None
    ) -> tuple[CompletionRequest, MakeReply]:
        asked = read_request(data, default, most)
        return asked, lambda started: MessageReply(asked, started)

    return Face(read, MESSAGE_EVENTS)
