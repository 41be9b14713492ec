"""Interface of an API format of completions: its request, answer and stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ..options import Speculation
from .errors import ApiError
from .events import ChoiceEnded, ChunkEvent, Started
from .requests import CompletionRequest
from .stream_formats import StreamFormat

if TYPE_CHECKING:
    from ..runtime.llm import LLM


class Reply(Protocol):
    """Converts the events of one job to objects of an API format.

    For a complete answer only `whole` is called. For a stream the other methods return the objects
    to send, in the order of the events; each list may be empty.
    """

    def whole(self, said: Iterable[ChunkEvent], ended: Iterable[ChoiceEnded]) -> dict[str, Any]:
        """Return the complete response.

        Args:
            said: All chunk events of the answer.
            ended: The final event of each choice, in any order.

        Raises:
            ApiError: The answer was cancelled.
        """

    def first(self) -> list[dict[str, Any]]:
        """Return the objects before the first text."""

    def said(self, said: ChunkEvent) -> list[dict[str, Any]]:
        """Return the objects for a chunk."""

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last objects of a choice.

        Raises:
            ApiError: The answer was cancelled.
        """

    def finished(self) -> list[dict[str, Any]]:
        """Return the objects after all choices."""

    def failed(self, refusal: ApiError) -> list[dict[str, Any]]:
        """Return the objects for an error that ends the stream."""


MakeReply = Callable[[Started], Reply]
ReadRequest = Callable[[dict[str, Any], Speculation, int | None], CompletionRequest]
Read = Callable[
    [dict[str, Any], Speculation, int | None],
    tuple[CompletionRequest, MakeReply],
]


@dataclass(frozen=True)
class Face:
    """API format of a route that completes text.

    The format of its errors is that of its path: `error_formats` has the table.

    Attributes:
        read: Converts a body, with the speculation options and the token limit of the server, to
            the request and what makes its reply. Raises `ApiError` for an invalid field.
        stream: Format of a streamed answer.
        task: Returns a function of the loaded model for a body that asks for no text, and None for
            all others. Its result is the response.
    """

    read: Read
    stream: StreamFormat
    task: Callable[[dict[str, Any]], Callable[[LLM], dict[str, Any]] | None] | None = None


def face_of(
    read: ReadRequest, reply: Callable[[CompletionRequest, Started], Reply], stream: StreamFormat
) -> Face:
    """Return a face whose replies need only the request and the first event of its job.

    Args:
        read: Converts a body, with the speculation options and the token limit of the server.
        reply: Makes the reply.
        stream: Format of a streamed answer.
    """

    def read_body(
        data: dict[str, Any], default: Speculation, most: int | None
    ) -> tuple[CompletionRequest, MakeReply]:
        asked = read(data, default, most)
        return asked, lambda started: reply(asked, started)

    return Face(read_body, stream)
