"""Request for completions, as the dialects make it of their bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..options import Sampling, Speculation
from ..tools.families import NO_TOOLS, ToolUse
from .fields import note
from .model import Message, Model, ModelFacts, TemplateOptions

if TYPE_CHECKING:
    from ..tools.grammar import Unenforced
    from .events import TokenInfo

# Field of messages and deltas with the reasoning.
REASONING = "reasoning_content"
# Efforts that switch reasoning on or off; `minimal` leaves it to the chat template.
_THINK = {"none": False, "low": True, "medium": True, "high": True, "xhigh": True}
# A text, or token ids, with texts among them where the dialect allows that.
Text: TypeAlias = str | list[int | str]
Conversation: TypeAlias = Sequence[Message]


@dataclass(frozen=True)
class ReasoningFields:
    """Fields of a chat request about reasoning.

    Attributes:
        effort: `reasoning_effort`.
        values: `chat_template_kwargs`: variables of the chat template.
        think: Whether the model reasons; None leaves it to the effort.
        budget: Maximum number of reasoning tokens of a model that reasons; -1 for no limit.
    """

    effort: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    think: bool | None = None
    budget: int | None = None

    def options(self, facts: ModelFacts, tools: ToolUse = NO_TOOLS) -> TemplateOptions:
        """Return the options of a prompt, without what the model or its template ignores."""
        known, effort = facts.template_variables, self.effort
        values = dict[str, Any]()
        for name, value in self.values.items():
            if name in known or name == "enable_thinking":
                values[name] = value
            else:
                note(f"chat_template_kwargs.{name[:60]}", "The chat template does not read it.")
        if effort not in (None, "none") and "reasoning_effort" in known:
            values.setdefault("reasoning_effort", effort)
        think = _THINK.get(effort or "") if self.think is None else self.think
        return {
            "think": think if facts.can_think else None,
            "chat_template_kwargs": values or None,
            "tools": tools.tools or None,
        }


# Fields of a request without any.
NO_REASONING_FIELDS = ReasoningFields()


@dataclass(frozen=True)
class LineLimits:
    """Limits of an answer after its first line, for editors.

    Attributes:
        indent: A line with fewer spaces and tabs at its beginning ends the answer.
        seconds: Time after which the next line break ends the answer; None for no limit.
    """

    indent: int = 0
    seconds: float | None = None


class LineReader:
    """Finds where an answer ends by its `LineLimits`, while it comes."""

    def __init__(self, limits: LineLimits) -> None:
        self._limits = limits
        self.is_over: bool = False
        self._missing = 0  # spaces and tabs that the current line needs further

    def read(self, text: str, seconds: float) -> str:
        """Return what of a text belongs to the answer, `seconds` after the prompt was read."""
        if self.is_over:
            return ""
        most = self._limits.seconds
        self.is_over = most is not None and "\n" in text and seconds > most
        for i, character in enumerate(text if self._limits.indent else ""):
            if self._missing and character in " \t":
                self._missing -= 1
            elif self._missing:
                self.is_over = True
                return text[:i]
            elif character == "\n":
                self._missing = self._limits.indent
        return text


class Show:
    """What only the answers of a dialect need of a request: each dialect has a class of its own."""

    @property
    def goes_on(self) -> bool:
        """Whether the answer goes on when its client has closed the connection."""
        return False


ShowT = TypeVar("ShowT", bound=Show)
_NOTHING = Show()


@dataclass(frozen=True)
class CompletionRequest:
    """Validated request for one or several completions.

    Attributes:
        texts: Prompts of a request for text; each gets `n` choices.
        messages: The conversation of a chat, which has no texts; else None.
        speculation: Speculation options; None for the defaults of the server.
        names: Names of options whose field has another name: option -> field.
        suffix: Text after the answer, for filling in the middle; None to continue the prompt.
        files: Names and texts of other files, for filling in the middle; the first ones are left
            out if they do not fit into the context.
        drops_oldest: Whether the oldest turns of a conversation that is too long are left out.
        prefill: Beginning of the answer, as part of the prompt.
        given: Names of the sampling options that the body has.
        biases: Texts whose tokens get a bias.
        each: What each chunk of a stream has: `timings`, `usage`; and `progress` where the parts of
            the prompt are reported, too.
        fit: Makes the prompt for a model, where that depends on the model.
        show: What its dialect shows.
        unenforced: What the grammar does not enforce of the schemas; None if it enforces all.
        n_scored: Number of alternatives at each token of a prompt whose tokens are scored; None
            for no scores.
        scores: Index of a prompt -> its tokens with log-probabilities. They are filled in.
    """

    texts: tuple[Text, ...]
    messages: Conversation | None
    n: int
    sampling: Sampling
    speculation: Speculation | None
    stream: bool
    tools: ToolUse
    names: dict[str, str]
    echo: bool = False
    suffix: str | None = None
    files: tuple[tuple[str, str], ...] = ()
    lines: LineLimits | None = None
    reasoning: ReasoningFields = NO_REASONING_FIELDS
    drops_oldest: bool = False
    prefill: str = ""
    given: frozenset[str] = frozenset()
    biases: tuple[tuple[str, float], ...] = ()
    each: frozenset[str] = frozenset()
    fit: Fit | None = None
    show: Show = field(default=_NOTHING, compare=False)
    unenforced: Unenforced | None = field(default=None, compare=False)
    n_scored: int | None = None
    scores: dict[int, Sequence[TokenInfo]] = field(default_factory=dict, compare=False)

    @property
    def prompts(self) -> tuple[Text | Conversation, ...]:
        """The texts, or the conversation."""
        return self.texts if self.messages is None else (self.messages,)

    @property
    def n_choices(self) -> int:
        return self.n * len(self.prompts)

    @property
    def is_chat(self) -> bool:
        """Whether its answer is a message."""
        return self.messages is not None

    @property
    def operation(self) -> str:
        """OpenTelemetry's name of the operation."""
        return "chat" if self.is_chat else "text_completion"

    @property
    def needs_grammar(self) -> bool:
        has_schema = self.sampling.json_schema is not None or self.tools.has_grammar
        return has_schema and self.sampling.grammar is None

    def shown(self, kind: type[ShowT]) -> ShowT:
        """Return what a dialect shows, for the answers of this dialect."""
        assert isinstance(self.show, kind)
        return self.show


# Reads a body, with the speculation options and the token limit of the server.
ReadBody: TypeAlias = Callable[[dict[str, Any], Speculation, int | None], CompletionRequest]
# Returns a request with the prompt for a model.
Fit: TypeAlias = Callable[[CompletionRequest, Model[object]], CompletionRequest]
