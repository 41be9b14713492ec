"""Tools of a request, and how the model may call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolUse:
    """Tools of a request, and how the model may call them.

    Attributes:
        tools: The tools in OpenAI's format, for the chat template.
        required: Whether the answer must be a call.
        only: Name of the only tool that may be called; None for all of them.
        parallel: Whether the answer may have several calls.
        strict: Names of the tools whose arguments must follow their schema.
    """

    tools: Sequence[Mapping[str, Any]] = field(default_factory=list)
    required: bool = False
    only: str | None = None
    parallel: bool = True
    strict: frozenset[str] = frozenset()

    @property
    def names(self) -> list[str]:
        """Names of the tools that may be called."""
        return [self.only] if self.only else [tool["function"]["name"] for tool in self.tools]

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """Tools that may be called, with the JSON schemas of their arguments."""
        functions = (tool["function"] for tool in self.tools)
        found = {one["name"]: one.get("parameters") or {} for one in functions}
        return {name: found[name] for name in self.names}

    @property
    def has_grammar(self) -> bool:
        """Whether the answer must follow a grammar because of the tools."""
        return self.required or bool(self.strict)


NO_TOOLS = ToolUse()
