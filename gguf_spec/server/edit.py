"""Route `/v1/edit`: a text changed as an instruction says."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..edit import Edit, EditPlan, EditPrompt
from ..errors import NoEditError
from ..options import Speculation
from . import schema as s
from .errors import as_refusal, invalid_value
from .events import ChoiceEnded, ChunkEvent, Started
from .replies import Reply, finish_reason, usage
from .requests import SHARED, Body, CompletionRequest, made, request_of

if TYPE_CHECKING:
    from ..runtime.llm import LLM


# Characters of a text. Few contexts hold more, and reading its parts keeps other requests waiting.
TEXT_MAX = 1 << 18
_SCOPE = s.checked(
    {"anyOf": [s.TEXT.schema, {"type": "array", "items": s.TEXT.schema}]},
    lambda value: (
        isinstance(value, str)
        or (isinstance(value, list) and all(isinstance(one, str) for one in value))
    ),
    "must be a text or an array of texts.",
)
EDIT = Body(
    "text",
    {name: SHARED[name] for name in ("model", "max_tokens", "seed", "temperature", "speculation")}
    | {
        "text": s.TEXT,
        "instruction": s.TEXT,
        "name": s.TEXT,
        "scope": _SCOPE,
    },
    "text",
)


class EditForm:
    """What an edit needs besides the fields of a completion; `done`: one that needs no model."""

    def __init__(self, plan: EditPlan, max_tokens: int | None) -> None:
        self.plan, self._max_tokens = plan, max_tokens
        self.done: Edit | None = None if plan.needs_model else plan.result_by_code()
        self._prompt: EditPrompt | None = None

    def fitted(self, request: CompletionRequest, llm: LLM) -> CompletionRequest:
        """Return the request with its prompt for a model."""
        self._prompt = prompt = self.plan.prompt(llm)
        sampling, most = prompt.limited(request.sampling, self._max_tokens), request.sampling
        if most.max_tokens is not None and sampling.max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, most.max_tokens))
        return replace(
            request, prompts=(prompt.request,), prefill=prompt.prefill, sampling=sampling
        )

    def result(self, ended: ChoiceEnded) -> Edit:
        """Return the edit that a model wrote; `NoEditError` if it is not complete, or empty."""
        assert self._prompt
        reason = finish_reason(ended.result.finish_reason, ended.why)
        if reason == "length":
            ended = replace(ended, result=replace(ended.result, finish_reason="length"))
        return self.plan.result(self._prompt.text_of(ended.result), ended.result)


def read_edit(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a request; an edit that needs no model is made here."""
    data, names = EDIT.read(data)
    if len(data["text"]) > TEXT_MAX:
        message = f"has {len(data['text']):,} characters, but may have at most {TEXT_MAX:,}."
        raise invalid_value("text", message)
    scope = data.get("scope", ())
    scope = [scope] if isinstance(scope, str) else scope
    request = request_of({"temperature": 0} | data, (data["text"],), default, most, names)
    text = data["text"].replace("\r\n", "\n")
    plan = made(
        lambda: EditPlan(text, data.get("instruction", ""), name=data.get("name", ""), scope=scope),
        names,
    )
    limit = request.sampling.max_tokens if data.get("max_tokens") is not None else None
    form = EditForm(plan, limit)
    return replace(request, fit=form.fitted, more=form)


def answer_at_once(request: CompletionRequest) -> dict[str, Any] | None:
    """Return the answer to an edit that needs no model; None for all others."""
    done: Edit | None = request.more.done
    return None if done is None else _answer(done) | {"usage": None}


def _answer(edit: Edit) -> dict[str, Any]:
    stats = None if edit.stats is None else edit.stats.to_dict()
    return {"object": "edit", **edit.to_dict(), "stats": stats}


class EditReply(Reply):
    """Reply of `/v1/edit`, which is never streamed."""

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        self._form, self._names, self._model = request.more, request.names, started.model

    def complete(
        self, chunks: Sequence[ChunkEvent], ended: Iterable[ChoiceEnded]
    ) -> dict[str, Any]:
        del chunks
        (last,) = ended
        try:
            edit = self._form.result(last)
        except NoEditError as error:
            raise as_refusal(error, self._names) from None
        return _answer(edit) | {"model": self._model, "usage": usage([last.result])}
