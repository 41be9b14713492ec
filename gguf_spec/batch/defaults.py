"""Options of a batch that apply to the lines which do not set them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from ..options import Sampling
from ..server.fields import OTHER_NAMES
from ..server.requests import SEEDS, CompletionRequest, ReasoningFields, made

if TYPE_CHECKING:
    from ..runtime.llm import LLM

_ALL = frozenset(one.name for one in fields(Sampling))
# Field of a body -> option that it sets, if they have different names.
_SETS = OTHER_NAMES | {"response_format": "json_schema", "top_logprobs": "logprobs"}
_SEED_BYTES = 6  # every JSON reader keeps such a number exactly


@dataclass(frozen=True)
class LineDefaults:
    """Options of a batch that apply to the lines which do not set them.

    Attributes:
        sampling: Sampling options. Its seed is not that of the lines: each line without a seed gets
            its own, made from this one and the number of the line.
        given: Fields of `sampling` that also apply to lines in OpenAI's format. Without them, a
            body means the same as over HTTP. A seed always applies.
        chat: Whether the text of `prompt` in a plain line is a message for the chat template.
        system: System message of plain lines without one, or None.
        think: Whether the model reasons before its answers; None leaves it to the model.
        others: Other settings that the texts depend on. Results of other settings are refused.
    """

    sampling: Sampling = field(default_factory=Sampling)
    given: frozenset[str] = frozenset()
    chat: bool = False
    system: str | None = None
    think: bool | None = None
    others: Mapping[str, Any] = field(default_factory=dict)

    def digest(self, llm: LLM) -> str:
        """Return the SHA-256 of all that decides the texts of a line, in hexadecimal digits."""
        try:
            size = llm.path.stat().st_size
        except OSError:
            size = 0
        known = asdict(self) | {"given": sorted(self.given), "model": llm.name, "size": size}
        known["accept"] = llm.speculation.accept
        if llm.speculation.accept != "coupled":  # then the texts depend on the drafts
            known |= {"speculation": asdict(llm.speculation), "draft": llm.draft_name}
        return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()

    def check(self, llm: LLM) -> None:
        """Check the options with a model, before a line is answered.

        Raises:
            GgufSpecError: An option is invalid for the model.
        """
        if self.think:
            llm.chat(think=True)
        reasons = self.sampling.think_budget is not None or None
        llm.stream([0], self.sampling, reasoning=reasons).close()

    def apply(
        self, asked: CompletionRequest, body: Mapping[str, Any], number: int, is_plain: bool
    ) -> CompletionRequest:
        """Return a request with the defaults of the options that its body does not set.

        Args:
            asked: The request.
            body: The body that it was read from.
            number: Number of the line.
            is_plain: Whether the line is a plain one.

        Raises:
            ApiError: The body and a default cannot be combined.
        """
        sets = {_SETS.get(name, name) for name, value in body.items() if value is not None}
        if {"grammar", "json_schema"} & sets or asked.tools.tools:
            sets |= {"grammar", "json_schema", "overflow"}
        missing = (_ALL if is_plain else self.given) - sets - {"seed"}
        values = {name: getattr(self.sampling, name) for name in missing}
        if "repetition_penalty" in body:  # it counts all tokens there
            values.pop("penalty_last_n", None)
        seed = self.sampling.seed
        if seed is not None and "seed" not in sets:
            values["seed"] = seed_of_line(seed, number)
        sampling = made(lambda: replace(asked.sampling, **values), asked.names)
        asked = replace(asked, sampling=sampling)
        if self.think is None or {"reasoning_effort", "chat_template_kwargs"} & sets:
            return asked
        reasoning = _Thinking(asked.reasoning.effort, asked.reasoning.values, self.think)
        return replace(asked, reasoning=reasoning) if asked.is_chat else asked


@dataclass(frozen=True)
class _Thinking(ReasoningFields):
    """Fields about reasoning of a request without any, and the default of the batch."""

    think: bool = False

    def options(self, llm: LLM) -> dict[str, Any]:
        return super().options(llm) | {"think": self.think if llm.can_think else None}


def seed_of_line(seed: int, number: int) -> int:
    """Return the seed of a line, from the seed of the batch and the number of the line."""
    digest = hashlib.sha256(b"%d:%d" % (seed, number)).digest()
    return int.from_bytes(digest[:_SEED_BYTES], "big") % SEEDS
