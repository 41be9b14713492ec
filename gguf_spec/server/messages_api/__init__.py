"""The Messages API of Anthropic: `/v1/messages`."""

from .face import messages_face
from .routes import CountRoute

__all__ = ["CountRoute", "messages_face"]
