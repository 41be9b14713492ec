"""llama-server's own dialect: `/completion`, and `/infill`, the text between two others."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..options import INFILL_MAX, SAMPLING, InfillSampling, Sampling, Speculation
from . import schema as s
from .bodies import CHOICES_MAX, FORMATS, SHARED, Body, prompts, request_of, schema_in
from .errors import invalid_value
from .events import ChoiceEnded, ChunkEvent, PromptRead, Started, TokenInfo
from .replies import DATA_EVENTS, Reply, Whole, finish_reason, prompt_progress, timings
from .request import CompletionRequest, Show, Text

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
_NATIVE = SHARED | FORMATS
_NATIVE |= {
    "samplers": s.checked(
        s.array_of(s.one_of(SAMPLERS), len(SAMPLERS)),
        _are_in_order,
        f"must be an array of some of {', '.join(SAMPLERS)}, in this order.",
    ),
    "n_indent": s.whole_number(0, 1_000_000),
    "n_cmpl": s.whole_number(1, CHOICES_MAX),
    "t_max_prompt_ms": s.unread({"description": "No effect, as in llama-server."}),
    "response_fields": s.array(s.TEXT, "must be an array of names."),
    "return_tokens": s.FLAG,
}
COMPLETION = Body("text", _NATIVE | {"prompt": prompts(mixed=True)}, "prompt")
INFILL = Body(
    "text",
    _NATIVE
    | {
        "input_prefix": s.TEXT,
        "input_suffix": s.TEXT,
        "input_extra": s.array(_FILE, "must be an array of files."),
        "prompt": s.TEXT,
    },
    "input_prefix",
)
INFILL_EVENTS = DATA_EVENTS._replace(end=b"")


@dataclass(frozen=True)
class NativeShow(Show):
    """What an answer shows.

    Attributes:
        paths: Paths of the fields of the last object that are sent; empty for all.
        tokens: Whether a whole answer has the ids of its tokens.
    """

    paths: tuple[str, ...]
    tokens: bool


def read_completion(
    data: dict[str, Any], default: Speculation, most: int | None
) -> CompletionRequest:
    data, names = COMPLETION.read(data)
    return _native(data, data["prompt"], default, most, names | {"prompt": "prompt"})


def read_infill(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a request; `prompt` is the end of the prefix, as in llama-server."""
    data, names = INFILL.read(data)
    # `suffix` is what a model without the tokens for it refuses, and here that is every request.
    names |= {"prompt": "input_prefix", "suffix": "model"}
    prefix = data["input_prefix"] + data.get("prompt", "")
    files = [(one.get("filename", "tmp"), one["text"]) for one in data.get("input_extra", ())]
    request = _native(data, (prefix,), default, most, names)
    return replace(request, suffix=data.get("input_suffix", ""), files=tuple(files))


def _native(
    data: dict[str, Any],
    texts: tuple[Text, ...],
    default: Speculation,
    most: int | None,
    names: dict[str, str],
) -> CompletionRequest:
    samplers = data.get("samplers")
    data |= {"n": data["n_cmpl"]} if "n_cmpl" in data else {}
    if samplers is not None:
        for name in SAMPLERS.keys() - samplers:
            data |= SAMPLERS[name]
    names = {"json_schema": "response_format"} | names
    data["json_schema"] = schema_in(data, names)
    request = request_of(data, default, most, names, texts=texts)
    if samplers and "infill" in samplers:
        request = replace(request, sampling=_infilling(request.sampling, samplers))
    paths = tuple(data.get("response_fields", ()))
    return replace(request, show=NativeShow(paths, data.get("return_tokens", False)))


def _infilling(sampling: Sampling, samplers: Collection[str]) -> InfillSampling:
    if "temperature" in samplers or not 1 <= sampling.top_k <= INFILL_MAX:
        needs = f"requires a top_k from 1 to {INFILL_MAX}."
        raise invalid_value("samplers", f"with infill must be without temperature, and {needs}")
    return InfillSampling(**vars(sampling))


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
    """Reply of llama-server's own routes."""

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        self._asked, self._started = request, started
        self._show = request.shown(NativeShow)
        self._texts, self._last = [""] * request.n_choices, dict[int, dict[str, Any]]()
        self._probabilities: dict[int, list[TokenInfo]] = {}

    def complete(self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]) -> Whole:
        """Return the last object of each choice: one object, or an array of several."""
        for one in chunks:
            self.chunk(one)
        for last in ended:
            self.ended(last)
        all_ = [one for _, one in sorted(self._last.items())]
        return all_ if len(self._texts) > 1 else all_[0]

    def prompt(self, event: PromptRead) -> list[dict[str, Any]]:
        made = {"index": event.index, "content": "", "tokens": [], "stop": False}
        return [made | prompt_progress(event, self._asked)]

    def chunk(self, event: ChunkEvent) -> list[dict[str, Any]]:
        if not (event.chunk.tokens or event.chunk.text):
            return []
        self._texts[event.index] += event.chunk.text
        made: dict[str, Any] = {"index": event.index, "content": event.chunk.text}
        made |= {"tokens": [*event.chunk.tokens], "stop": False}
        if event.logprobs:
            made["completion_probabilities"] = [one.to_dict(True) for one in event.logprobs]
            self._probabilities.setdefault(event.index, []).extend(event.logprobs)
        if "timings" in self._asked.each:
            made["timings"] = timings(event.stats)
        return [made]

    def ended(self, ended: ChoiceEnded) -> list[dict[str, Any]]:
        result, stats = ended.result, ended.result.stats
        is_full = finish_reason(result.finish_reason, ended.why) == "length"
        stop_type = "limit" if is_full else "eos" if result.stop_string is None else "word"
        is_stream, index = self._asked.stream, ended.index
        prompt = self._asked.texts[index // self._asked.n]
        answer = {
            "index": index,
            "content": "" if is_stream else self._texts[index],
            "tokens": [*result.tokens] if self._show.tokens and not is_stream else [],
            "stop": True,
            "stop_type": stop_type,
            "stopping_word": (result.stop_string if stop_type == "word" else None) or "",
            "model": self._started.model,
            "seed": result.seed,
            "tokens_predicted": stats.n_generated,
            "tokens_evaluated": stats.n_prompt,
            "tokens_cached": stats.n_cached,
            "generation_settings": native_params(self._started.sampling)
            | {"seed": result.seed, "stream": is_stream},
            "prompt": prompt if isinstance(prompt, str) else "",
            "has_new_line": "\n" in self._texts[index],
            "truncated": False,
            "timings": timings(stats),
        }
        if not is_stream and index in self._probabilities:
            # Made when they are written: all at once they would need much memory.
            some = self._probabilities[index]
            answer["completion_probabilities"] = (one.to_dict(True) for one in some)
        paths = self._show.paths
        self._last[index] = _nested(answer, paths) if paths else answer
        return [self._last[index]]


def native_params(sampling: Sampling) -> dict[str, Any]:
    """Return sampling options with llama-server's names beside those here."""
    found = {name: getattr(sampling, name) for name in SAMPLING}
    most, biases = -1 if sampling.max_tokens is None else sampling.max_tokens, sampling.logit_bias
    return found | {
        "logit_bias": [{"token": k, "bias": x} for k, x in biases.items() if math.isfinite(x)],
        "max_tokens": most,
        "n_predict": most,
        "repeat_last_n": sampling.penalty_last_n,
        "n_probs": sampling.logprobs or 0,
        "grammar": sampling.grammar or "",
        "samplers": [name for name in SAMPLERS if name != "infill"],
    }
