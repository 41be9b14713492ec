"""The run of an edit: its plan and its result in a child process, its prompt with the model."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..errors import InvalidOptionError, NoEditError
from ..protocols.edit import EditShow, answer_of
from ..protocols.errors import ApiError, as_refusal, option_refusal
from ..protocols.events import ChoiceEnded
from ..protocols.model import Message, Model
from ..protocols.replies import finish_reason, json_text, usage
from ..protocols.request import CompletionRequest
from ..results import Completion
from ..system.helper import HelperError

if TYPE_CHECKING:
    from ..edit import Edit, EditPrompt
    from ..edit.parts import Part

T = TypeVar("T")
# Calls a function in a child process, which is ended after some time; it waits for other calls.
Apart = Callable[..., Awaitable[Any]]
# What a prompt needs of a plan: text, instruction, name, part, and the side of new lines.
_Asked: TypeAlias = "tuple[str, str, str, Part | None, str]"


class EditRun:
    """The run of one edit.

    Expressions look for the parts of the text and for the places of a change. What they see comes
    from the client, so they run in a child process, and this one has only their results.
    """

    def __init__(self, request: CompletionRequest, apart: Apart) -> None:
        self._request, self._apart = request, apart
        self._show = request.shown(EditShow)
        self._plan = b""
        self._asked: _Asked | None = None
        self._prompt: EditPrompt | None = None

    async def answer_at_once(self) -> bytes | None:
        """Return the answer to an edit that needs no model; None for all others."""
        try:
            found = await self._cut_off(_planned, self._show)
        except InvalidOptionError as error:
            raise option_refusal(error, self._request.names) from None
        if isinstance(found, bytes):
            return found
        self._plan, self._asked = found
        return None

    @property
    def request(self) -> CompletionRequest:
        """The request to the model, after the plan."""
        return replace(self._request, fit=self._fitted)

    def _fitted(self, request: CompletionRequest, model: Model[object]) -> CompletionRequest:
        """Return the request with its prompt for a model."""
        from ..edit import EditPrompt

        assert self._asked
        text, instruction, name, part, beside = self._asked
        self._prompt = prompt = EditPrompt(model, text, instruction, name, part, beside=beside)
        sampling, most = prompt.limited(request.sampling, self._show.max_tokens), request.sampling
        if most.max_tokens is not None and sampling.max_tokens is not None:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, most.max_tokens))
        request = replace(request, prefill=prompt.prefill, sampling=sampling)
        if isinstance(prompt.request, str):
            return replace(request, texts=(prompt.request,))
        messages: list[Message] = [{**one} for one in prompt.request]
        return replace(request, texts=(), messages=messages)

    async def answer(self, ended: ChoiceEnded, model: str) -> bytes:
        """Return the answer with what a model wrote.

        Raises:
            ApiError: It is not complete.
        """
        assert self._prompt
        more = {"model": model, "usage": usage([ended.result])}
        result = ended.result
        if finish_reason(result.finish_reason, ended.why) == "length":
            result = replace(result, finish_reason="length")
        try:
            written = self._prompt.text_of(result)
            return await self._cut_off(_finished, self._plan, written, result, more)
        except NoEditError as error:
            raise as_refusal(error, self._request.names) from None

    async def _cut_off(self, function: Callable[..., T], *given: object) -> T:
        try:
            found: T = await self._apart(function, *given)
        except HelperError as error:
            fact = f"to read it {error}. Send the part of it that changes."
            fact = f"text cannot be edited as a whole: {fact}"
            raise ApiError(fact, "text", "too_complex") from None
        return found


def _planned(show: EditShow) -> bytes | tuple[bytes, _Asked]:
    """Return the answer of an edit by code, or a plan and what a prompt needs of it."""
    from ..edit import EditPlan

    plan = EditPlan(show.text, show.instruction, name=show.name, scope=show.scope)
    if not plan.needs_model:
        return _answer(plan.result_by_code(), {"usage": None})
    return pickle.dumps(plan), plan.asked


def _finished(plan: bytes, written: str, result: Completion, more: dict[str, Any]) -> bytes:
    return _answer(pickle.loads(plan).result(written, result), more)


def _answer(edit: Edit, more: dict[str, Any]) -> bytes:
    stats = None if edit.stats is None else edit.stats.to_dict()
    return json_text(answer_of(edit.to_dict(), stats, more)).encode()
