"""The Responses API of OpenAI: `/v1/responses`."""

from .face import responses_face
from .routes import ResponseRoutes
from .store import ResponseStore

__all__ = ["ResponseRoutes", "ResponseStore", "responses_face"]
