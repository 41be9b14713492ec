"""Route `/infill` of llama-server: the text between a prefix and a suffix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..options import Speculation
from . import schema as s
from .events import ChoiceEnded, ChunkEvent, Started
from .replies import DATA_EVENTS, Reply, finish_reason
from .requests import SHARED, Body, CompletionRequest, request_of

_FILE = s.obj({"text": s.TEXT, "filename?": s.TEXT})
INFILL = Body(
    "text",
    SHARED
    | {
        "input_prefix": s.TEXT,
        "input_suffix": s.TEXT,
        "input_extra": s.array(_FILE, "must be an array of files."),
        "prompt": s.TEXT,
    },
    "input_prefix",
)
INFILL_EVENTS = DATA_EVENTS._replace(end=b"")


def read_infill(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a request.

    `prompt` is the end of the prefix, as in llama-server's code.

    Args:
        data: The body.
        default: Speculation options of the server.
        most: Maximum length of an answer in tokens; None for no limit.

    Raises:
        ApiError: A field is invalid or not supported. The error names the field.
    """
    data, names = INFILL.read(data)
    names |= {"prompt": "input_prefix", "suffix": "input_suffix"}
    prefix = data["input_prefix"] + data.get("prompt", "")
    files = [(one.get("filename", "tmp"), one["text"]) for one in data.get("input_extra", ())]
    asked = request_of(data, (prefix,), default, most, names)
    return replace(asked, suffix=data.get("input_suffix", ""), files=tuple(files))


class InfillReply(Reply):
    """Reply in the format of llama-server's own routes."""

    def __init__(self, asked: CompletionRequest, started: Started) -> None:
        """Start an answer.

        Args:
            asked: The request.
            started: The first event of its job.
        """
        self._model, self._stream, self._text = started.model, asked.stream, ""

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the object for a chunk."""
        self._text += event.chunk.text
        return [{"index": 0, "content": event.chunk.text, "stop": False}]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last object, with the counts."""
        result, stats = ended.result, ended.result.stats
        is_full = finish_reason(result.finish_reason, ended.why) == "length"
        stop_type = "limit" if is_full else "eos" if result.stop_string is None else "word"
        self.response = {
            "index": 0,
            "content": "" if self._stream else self._text,
            "stop": True,
            "stop_type": stop_type,
            "stopping_word": result.stop_string or "",
            "model": self._model,
            "seed": result.seed,
            "tokens_predicted": stats.n_generated,
            "tokens_evaluated": stats.n_prompt,
            "tokens_cached": stats.n_cached,
            "truncated": False,
            "timings": {
                "prompt_n": stats.n_prompt - stats.n_cached,
                "prompt_ms": 1000 * stats.prompt_s,
                "predicted_n": stats.n_generated,
                "predicted_ms": 1000 * (stats.total_s - stats.prompt_s),
                "predicted_per_second": stats.tokens_per_s,
                "draft_n": stats.n_drafted,
                "draft_n_accepted": stats.n_accepted,
            },
        }
        return [self.response]
