"""The faces of Ollama's routes for text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...options import Speculation
from ..errors import bad
from ..face import Face, MakeReply, ReadRequest
from ..requests import CompletionRequest
from ..stream_formats import JSON_LINES
from .reply import OllamaReply, now
from .request import read_ollama_chat, read_ollama_generate

if TYPE_CHECKING:
    from ...runtime.llm import LLM

# Fields of a request that only loads a model; all others are empty.
_OF_LOADING = {"model", "keep_alive", "stream", "options"}


def ollama_faces() -> dict[str, Face]:
    """Return the faces by their paths."""
    return {
        "/api/chat": _face(read_ollama_chat, is_chat=True),
        "/api/generate": _face(read_ollama_generate, is_chat=False),
    }


def _face(read: ReadRequest, is_chat: bool) -> Face:
    def read_body(
        data: dict[str, Any], default: Speculation, most: int | None
    ) -> tuple[CompletionRequest, MakeReply]:
        began_s, asked = time.perf_counter(), read(data, default, most)
        return asked, lambda started: OllamaReply(asked, is_chat, began_s, started)

    def load(data: dict[str, Any]) -> Callable[[LLM], dict[str, Any]] | None:
        """Return the task of a body without a prompt, which only loads the model."""
        given = {name for name, value in data.items() if value not in (None, "", [], {})}
        if not given <= _OF_LOADING:
            return None
        if _is_zero(data.get("keep_alive")):
            raise bad(
                "keep_alive",
                "must not be 0: the server unloads idle models by a setting of its own.",
            )
        said = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
        end = {"done": True, "done_reason": "load"}
        return lambda llm: {"model": llm.name, "created_at": now(), **said, **end}

    return Face(read_body, JSON_LINES, load)


def _is_zero(value: Any) -> bool:
    """Return whether a duration is nothing: 0, "0" or "0s"."""
    return value in (0, "0", "0s", "0m", "0h") and not isinstance(value, bool)
