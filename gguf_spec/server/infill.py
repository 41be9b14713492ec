"""Route `/infill` of llama-server: the text between a prefix and a suffix."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from ..options import Sampling, Speculation
from ..sampling.chain import InfillSampling
from ..sampling.infill import MOST
from . import schema as s
from .errors import invalid_value
from .events import ChoiceEnded, ChunkEvent, Started
from .replies import DATA_EVENTS, Reply, finish_reason
from .requests import CHOICES_MAX, SHARED, Body, CompletionRequest, LineLimits, request_of

# Samplers in the order of the chain, with the values of options that switch them off.
SAMPLERS: dict[str, dict[str, float]] = {
    "penalties": {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "infill": {},
    "temperature": {"temperature": 1.0},
}


def _are_in_order(value: Any) -> bool:
    return isinstance(value, list) and value == [name for name in SAMPLERS if name in value]


_FILE = s.obj({"text": s.TEXT, "filename?": s.TEXT}, ignored=("time",))
_TIME = {"type": "integer", "description": "Milliseconds; below 1 for no limit."}
INFILL = Body(
    "text",
    SHARED
    | {
        "input_prefix": s.TEXT,
        "input_suffix": s.TEXT,
        "input_extra": s.array(_FILE, "must be an array of files."),
        "prompt": s.TEXT,
        "samplers": s.checked(
            s.array_of(s.one_of(SAMPLERS), len(SAMPLERS)),
            _are_in_order,
            f"must be an array of some of {', '.join(SAMPLERS)}, in this order.",
        ),
        "n_indent": s.whole_number(0, 1_000_000),
        "n_cmpl": s.whole_number(1, CHOICES_MAX),
        "t_max_prompt_ms": s.unread({"description": "No effect, as in llama-server."}),
        "t_max_predict_ms": s.checked(_TIME, s.is_count, "must be a whole number."),
        "response_fields": s.array(s.TEXT, "must be an array of names."),
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
    # `suffix` is what a model without the tokens for it refuses, and here that is every request.
    names |= {"prompt": "input_prefix", "suffix": "model"}
    samplers = data.get("samplers")
    data |= {"n": data["n_cmpl"]} if "n_cmpl" in data else {}
    if samplers is not None:
        for name in SAMPLERS.keys() - samplers:
            data |= SAMPLERS[name]
    prefix = data["input_prefix"] + data.get("prompt", "")
    files = [(one.get("filename", "tmp"), one["text"]) for one in data.get("input_extra", ())]
    request = request_of(data, (prefix,), default, most, names)
    if samplers and "infill" in samplers:
        request = replace(request, sampling=_infilling(request.sampling, samplers))
    indent, most_ms = data.get("n_indent", 0), data.get("t_max_predict_ms", 0)
    most_s = min(most_ms, 10**9) / 1000 if most_ms > 0 else None
    return replace(
        request,
        suffix=data.get("input_suffix", ""),
        files=tuple(files),
        lines=LineLimits(indent, most_s) if indent or most_s else None,
        more=tuple(data.get("response_fields", ())),
    )


def _infilling(sampling: Sampling, samplers: Collection[str]) -> InfillSampling:
    """Return sampling options with the sampler `infill`.

    Raises:
        ApiError: It cannot be combined with the others.
    """
    if "temperature" in samplers or not 1 <= sampling.top_k <= MOST:
        fact = f"with infill must be without temperature, and requires a top_k from 1 to {MOST}."
        raise invalid_value("samplers", fact)
    return InfillSampling(**{one.name: getattr(sampling, one.name) for one in fields(sampling)})


def _nested(answer: dict[str, Any], paths: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an answer at some paths such as `timings/prompt_n`, by their paths."""
    found = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found


class InfillReply(Reply):
    """Reply in the format of llama-server's own routes.

    `more` of the request has the paths of the fields of the last object that are sent; empty for
    all.
    """

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        """Start an answer.

        Args:
            request: The request.
            started: The first event of its job.
        """
        self._model, self._stream, self._paths = started.model, request.stream, request.more
        self._texts, self._last = [""] * request.n_choices, dict[int, dict[str, Any]]()

    def complete(self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]) -> Any:
        """Return the last object of each choice: one object, or an array of several."""
        for one in chunks:
            self.chunk(one)
        for last in ended:
            self.ended(last)
        all_ = [one for _, one in sorted(self._last.items())]
        return all_ if len(self._texts) > 1 else all_[0]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        """Return the object for a chunk."""
        if not (event.chunk.tokens or event.chunk.text):
            return []
        self._texts[event.index] += event.chunk.text
        return [{"index": event.index, "content": event.chunk.text, "stop": False}]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        """Return the last object of a choice, with the counts."""
        result, stats = ended.result, ended.result.stats
        is_full = finish_reason(result.finish_reason, ended.why) == "length"
        stop_type = "limit" if is_full else "eos" if result.stop_string is None else "word"
        n_read, n_made = stats.n_prompt - stats.n_cached, stats.n_generated
        read_ms, made_ms = 1000 * stats.prompt_s, 1000 * (stats.total_s - stats.prompt_s)
        answer = {
            "index": ended.index,
            "content": "" if self._stream else self._texts[ended.index],
            "stop": True,
            "stop_type": stop_type,
            "stopping_word": (result.stop_string if stop_type == "word" else None) or "",
            "model": self._model,
            "seed": result.seed,
            "tokens_predicted": n_made,
            "tokens_evaluated": stats.n_prompt,
            "tokens_cached": stats.n_cached,
            "truncated": False,
            "timings": {
                "prompt_n": n_read,
                "prompt_ms": read_ms,
                "prompt_per_token_ms": read_ms / max(1, n_read),
                "prompt_per_second": 1000 * n_read / read_ms if read_ms else 0.0,
                "predicted_n": n_made,
                "predicted_ms": made_ms,
                "predicted_per_token_ms": made_ms / max(1, n_made),
                "predicted_per_second": stats.tokens_per_s,
                "draft_n": stats.n_drafted,
                "draft_n_accepted": stats.n_accepted,
            },
        }
        self._last[ended.index] = _nested(answer, self._paths) if self._paths else answer
        return [self._last[ended.index]]
