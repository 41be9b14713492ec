"""The face of the Messages API."""

from __future__ import annotations

from ..face import face_of
from ..stream_formats import MESSAGE_EVENTS
from .output import MessageReply
from .request import read_request

MESSAGES_FACE = face_of(read_request, MessageReply, MESSAGE_EVENTS)
