"""The Messages API of Anthropic: `/v1/messages`."""

from .output import MessageReply
from .request import read_request
from .routes import CountRoute

__all__ = ["CountRoute", "MessageReply", "read_request"]
