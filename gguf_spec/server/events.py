"""Events of a job, from its threads to the event loop of its client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..protocols.errors import ApiError
from ..protocols.events import ChoiceEnded, ChunkEvent, PromptRead, Started


@dataclass(frozen=True)
class Ping:
    """Event: nothing was sent for some time. It does not come from the worker."""


@dataclass(frozen=True)
class Done:
    """Event: all choices are complete, or a task has run."""

    value: Any = None


@dataclass(frozen=True)
class Sent:
    """Event: a part of the result of a task."""

    kind: str
    value: Any


@dataclass(frozen=True)
class ErrorEvent:
    """Event: an error ended the request, before or during the answer."""

    refusal: ApiError


Event = Started | PromptRead | ChunkEvent | ChoiceEnded | Ping | Done | Sent | ErrorEvent
