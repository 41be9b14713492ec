"""The Messages API of Anthropic: `/v1/messages`."""

from .face import MESSAGES_FACE
from .routes import CountRoute

__all__ = ["MESSAGES_FACE", "CountRoute"]
