"""Route `/v1/edit`: a text changed as an instruction says."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.responses import JSONResponse

from ..errors import InvalidOptionError, NoEditError
from ..options import Speculation
from ..results import Completion
from ..system.helper import HelperError
from . import schema as s
from .bodies import SHARED, Body, CompletionRequest, request_of
from .errors import ApiError, as_refusal, invalid_value, option_refusal
from .events import ChoiceEnded, Started
from .replies import Reply, finish_reason, usage

if TYPE_CHECKING:
    from ..edit import Edit, EditPrompt
    from ..runtime.llm import LLM


# Characters of a text. Few contexts hold more.
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


# Seconds of one look at a text. Those of the largest size take a part of it.
PLAN_S = 10.0
# Calls a function in a child process, which is ended after `PLAN_S`; it waits for other calls.
Apart = Callable[..., Awaitable[Any]]


class EditForm:
    """What an edit needs besides the fields of a completion.

    Expressions look for the parts of the text and for the places of a change. What they see comes
    from the client, so they run in a child process, and this one has only their results.
    """

    def __init__(self, *given: Any, max_tokens: int | None) -> None:
        """Take the arguments of `_planned`."""
        self._given, self._max_tokens = given, max_tokens
        self._plan, self._asked = b"", tuple[Any, ...]()
        self._prompt: EditPrompt | None = None

    async def answer_at_once(self, apart: Apart, names: dict[str, str]) -> bytes | None:
        """Return the answer to an edit that needs no model; None for all others."""
        try:
            found: _Planned = await _cut_off(apart, _planned, *self._given)
        except InvalidOptionError as error:
            raise option_refusal(error, names) from None
        answer, self._plan, self._asked = found
        return answer

    def fitted(self, request: CompletionRequest, llm: LLM) -> CompletionRequest:
        """Return the request with its prompt for a model."""
        from ..edit import EditPrompt

        text, instruction, name, part, beside = self._asked
        self._prompt = prompt = EditPrompt(llm, text, instruction, name, part, beside=beside)
        sampling, most = prompt.limited(request.sampling, self._max_tokens), request.sampling
        if most.max_tokens is not None and sampling.max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, most.max_tokens))
        return replace(
            request, prompts=(prompt.request,), prefill=prompt.prefill, sampling=sampling
        )

    async def answer(self, apart: Apart, ended: ChoiceEnded, more: dict[str, Any]) -> bytes:
        """Return the answer with what a model wrote; `NoEditError` if it is not complete."""
        assert self._prompt
        reason = finish_reason(ended.result.finish_reason, ended.why)
        if reason == "length":
            ended = replace(ended, result=replace(ended.result, finish_reason="length"))
        result = ended.result
        written = self._prompt.text_of(result)
        found: bytes = await _cut_off(apart, _finished, self._plan, written, result, more)
        return found


async def _cut_off(apart: Apart, function: Callable[..., Any], *given: Any) -> Any:
    try:
        return await apart(PLAN_S, function, *given)
    except HelperError as error:
        fact = f"cannot be edited as a whole: to read it {error}. Send the part of it that changes."
        raise ApiError(f"text {fact}", "text", "too_complex") from None


# An answer, or None; a plan; what a prompt needs of it.
_Planned: TypeAlias = "tuple[bytes | None, bytes, tuple[Any, ...]]"


def _planned(text: str, instruction: str, name: str, scope: Sequence[str]) -> _Planned:
    """Return the answer of an edit by code, or None with its plan and what a prompt needs."""
    from ..edit import EditPlan

    plan = EditPlan(text, instruction, name=name, scope=scope)
    if not plan.needs_model:
        return _answer(plan.result_by_code(), {"usage": None}), b"", ()
    return None, pickle.dumps(plan), plan.asked


def _finished(plan: bytes, written: str, result: Completion, more: dict[str, Any]) -> bytes:
    return _answer(pickle.loads(plan).result(written, result), more)


def _answer(edit: Edit, more: dict[str, Any]) -> bytes:
    stats = None if edit.stats is None else edit.stats.to_dict()
    answer = {"object": "edit", **edit.to_dict(), "stats": stats, **more}
    return bytes(JSONResponse(answer).body)


def read_edit(data: dict[str, Any], default: Speculation, most: int | None) -> CompletionRequest:
    """Convert the body of a request."""
    data, names = EDIT.read(data)
    if len(data["text"]) > TEXT_MAX:
        message = f"has {len(data['text']):,} characters, but may have at most {TEXT_MAX:,}."
        raise invalid_value("text", message)
    scope = data.get("scope", ())
    scope = [scope] if isinstance(scope, str) else scope
    request = request_of({"temperature": 0} | data, (data["text"],), default, most, names)
    text, instruction = data["text"].replace("\r\n", "\n"), data.get("instruction", "")
    limit = request.sampling.max_tokens if data.get("max_tokens") is not None else None
    form = EditForm(text, instruction, data.get("name", ""), scope, max_tokens=limit)
    return replace(request, fit=form.fitted, more=form)


class EditReply(Reply):
    """Reply of `/v1/edit`, which is never streamed."""

    def __init__(self, request: CompletionRequest, started: Started) -> None:
        self._form, self._names, self._model = request.more, request.names, started.model

    async def answer(self, apart: Apart, ended: Iterable[ChoiceEnded]) -> bytes:
        (last,) = ended
        more = {"model": self._model, "usage": usage([last.result])}
        try:
            answer: bytes = await self._form.answer(apart, last, more)
        except NoEditError as error:
            raise as_refusal(error, self._names) from None
        return answer
