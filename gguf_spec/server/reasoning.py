"""Reasoning in the chat API: the fields of a request, and the field of messages and deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .errors import bad
from .values import string

if TYPE_CHECKING:
    from ..runtime.llm import LLM

# Field of messages and deltas with the reasoning.
REASONING = "reasoning_content"
# Fields of a chat request about reasoning.
REASONING_FIELDS = frozenset({"reasoning_effort", "chat_template_kwargs"})
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Efforts that switch reasoning on or off; `minimal` leaves it to the chat template.
_THINK = {"none": False, "low": True, "medium": True, "high": True, "xhigh": True}


@dataclass(frozen=True)
class ReasoningFields:
    """Fields of a chat request about reasoning.

    Attributes:
        effort: `reasoning_effort`, or None.
        values: `chat_template_kwargs`: variables of the chat template.
        think: Whether the model reasons; None leaves it to the effort.
        budget: Maximum number of reasoning tokens of a model that reasons, or None.
    """

    effort: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    budget: int | None = None

    @property
    def names(self) -> dict[str, str]:
        """Option name -> field name, for errors."""
        return {"think": "reasoning_effort" if self.effort else "chat_template_kwargs"}

    def options(self, llm: LLM) -> dict[str, Any]:
        """Return the options of a generation with a model.

        A model without reasoning, or with a template that does not read the effort, ignores it.
        """
        values, effort = dict(self.values), self.effort
        if effort not in (None, "none") and "reasoning_effort" in llm.template_variables:
            values.setdefault("reasoning_effort", effort)
        think = _THINK.get(effort or "") if self.think is None else self.think
        think = think if llm.can_think else None
        return {"think": think, "chat_template_kwargs": values or None}


# Fields of a request without any.
NO_REASONING_FIELDS = ReasoningFields()


def read_reasoning(data: Mapping[str, Any]) -> ReasoningFields:
    """Return the fields of a request body about reasoning.

    Raises:
        ApiError: A field is invalid. The error names the field.
    """
    effort, values = data.get("reasoning_effort"), data.get("chat_template_kwargs", {})
    if effort is not None and effort not in EFFORTS:
        raise bad("reasoning_effort", f"must be one of {', '.join(EFFORTS)}.")
    if not isinstance(values, dict) or not all(map(_is_plain, values.values())):
        raise bad("chat_template_kwargs", "must be an object of plain values.")
    return ReasoningFields(effort, values)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, (str, bool, int, float))


def read_reasoning_content(message: Mapping[str, Any], at: str) -> dict[str, str]:
    """Return the reasoning of a message of the assistant, as a field for the chat template.

    Args:
        message: The message of the request.
        at: Its place in the request.

    Raises:
        ApiError: The reasoning is not a text, or the message is not of the assistant.
    """
    said = message.get(REASONING)
    if said is None:
        return {}
    if message.get("role") != "assistant":
        raise bad(f"{at}.{REASONING}", "is only allowed in a message of the assistant.")
    return {REASONING: string(said, f"{at}.{REASONING}")}
