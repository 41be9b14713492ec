"""What the dialects ask of a model: its facts, its tokens, and the start of an answer.

A loaded `LLM` has all of it, and so has a model in a running server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar

from ..options import Sampling, Speculation
from ..results import OnProgress, TokenLogprob
from ..vocabulary import Tokens as Texts

# A message as chat templates read it: a role, a content, perhaps calls.
Message: TypeAlias = dict[str, Any]
# A running answer, of which the dialects know nothing.
Answer_co = TypeVar("Answer_co", covariant=True)


class TemplateOptions(TypedDict):
    """Options of a prompt that is made from messages; those of a text are None."""

    think: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    tools: Sequence[Mapping[str, Any]] | None


class ModelFacts(Protocol):
    """Facts that do not change while a model is loaded, but for a context that grows."""

    @property
    def n_ctx(self) -> int:
        """Length of the context, in tokens."""

    @property
    def n_ctx_limit(self) -> int | None:
        """Longest context that it can have here, in tokens; None if unknown."""

    @property
    def can_see(self) -> bool:
        """Whether it takes images."""

    @property
    def can_think(self) -> bool:
        """Whether it may reason before an answer."""

    @property
    def has_chat_template(self) -> bool:
        """Whether it takes messages."""

    @property
    def chat_template(self) -> str | None:
        """The Jinja template of its chats, or None."""

    @property
    def template_variables(self) -> frozenset[str]:
        """The variables that the template reads."""

    @property
    def sampling(self) -> Sampling:
        """Sampling options of a request without any."""

    @property
    def sampling_sources(self) -> Mapping[str, str]:
        """Name of an option whose default is the model's own -> where it comes from."""


class Tokens(Protocol):
    """Texts of tokens, and tokens of texts."""

    @property
    def vocabulary(self) -> Texts:
        """Its vocabulary."""

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of a token; empty for one without a text."""

    def token_text(self, token: int) -> str:
        """Return the text of a token, or the name of one without."""


class Model(ModelFacts, Tokens, Protocol[Answer_co]):
    """A loaded model; its methods raise the errors of the engine."""

    def tokenize(
        self,
        prompt: str | Sequence[Message],
        *,
        prefill: str = "",
        special: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return the ids of a text or of messages; `PromptTooLongError` above `most`."""

    def tokenize_infill(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        *,
        most: int | None = None,
    ) -> list[int]:
        """Return the ids of the prompt for a text between two others."""

    def score(
        self, text: str | Sequence[int], logprobs: int = 0, *, on_pass: OnProgress | None = None
    ) -> list[TokenLogprob]:
        """Return the log-probability of each token after the first."""

    def stream(
        self,
        prompt: str | Sequence[int] | Sequence[Message],
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        prefill: str = "",
        echo: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        on_prompt: OnProgress | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Answer_co:
        """Start an answer; `on_prompt` is called after each pass that reads the prompt."""
