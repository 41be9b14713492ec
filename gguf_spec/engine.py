"""What clients may ask of an engine: commands, batch, server, edits and Python programs.

An engine is one loaded model with what drafts for it, in this process or in another one.

Who owns what: the engine owns the weights, caches, slots and threads. An answer owns its place in
the engine until it ends or is closed. Clients own their texts and options; they hold no part of a
model, and need not know where it runs. Requests and facts can be sent to another process.

`runtime.local_engine.LocalEngine` runs the model here; `server.running.RemoteEngine` asks a server
of this user that holds it. `runtime.client.Client` is the Python API over both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from .options import Message, PromptOptions, Sampling, Speculation
from .results import Answer, Ended, OnProgress, TokenLogprob
from .vocabulary import Tokens

if TYPE_CHECKING:
    from .images import GivenImage

__all__ = ["Answer", "Ended", "Engine", "Facts", "Infill", "Measured", "Prompt", "Request"]

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""A text or token ids, used unchanged, or messages for the chat template."""


@dataclass(frozen=True)
class Facts:
    """What does not change while an engine is loaded; it can be sent to another process.

    Attributes:
        name: The target's registry name or file name.
        path: File of the target.
        draft_name: The draft's file name, with `(prediction head)` for one; or None.
        prompt: `text` or `chat`: the form of a bare prompt.
        n_ctx: Number of tokens that the context holds, prompt and answer together.
        n_ctx_limit: Longest context that the model can have here, in tokens; None if unknown.
        n_ctx_max: Longest context with which the model could have been loaded, in tokens.
        parallel: Number of requests that can share passes; more wait.
        parallel_reason: Why `parallel` has its value; empty if the caller gave the number.
        generates: Whether it generates text; without that it only computes embeddings.
        can_see: Whether prompts may have images.
        can_think: Whether the chat template has reasoning parts.
        chat_template: The Jinja template that formats messages as a prompt, or None.
        template_variables: Variables that the chat template reads and a request may set.
        sampling: Default sampling options of a request.
        sampling_sources: Name of a default that is not the package's -> where it comes from.
        speculation: Default draft options of a request.
        notes: Explanations of unexpected behaviour, such as an unused draft. One sentence each.
        draft_notes: Those of `notes` that are about the choice of the draft.
    """

    name: str
    path: Path
    draft_name: str | None
    prompt: str
    n_ctx: int
    n_ctx_limit: int | None
    n_ctx_max: int
    parallel: int
    parallel_reason: str
    generates: bool
    can_see: bool
    can_think: bool
    chat_template: str | None
    template_variables: frozenset[str]
    sampling: Sampling
    sampling_sources: Mapping[str, str]
    speculation: Speculation
    notes: tuple[str, ...]
    draft_notes: tuple[str, ...]


class Measured(NamedTuple):
    """What was measured of an engine so far.

    Attributes:
        is_exact: Whether texts do not depend on the requests beside them.
        prompt_token_s: Approximate seconds to read a token of a prompt; 0 if unknown.
    """

    is_exact: bool
    prompt_token_s: float


class Infill(NamedTuple):
    """A prompt for the text between two others.

    Attributes:
        files: Names and texts of other files, in the form of llama-server's `/infill`.
    """

    prefix: str
    suffix: str
    files: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Request:
    """One generation.

    Attributes:
        prompt: A text, messages or token ids.
        form: Prefill, and for messages tools and variables of the template.
        images: Images besides those of the messages.
        echo: Whether the text starts with the prompt, unless it is messages, and the prefill.
        reasoning: Whether reasoning is separated from the text; None does so for messages only.
        on_token: Called with each emitted id; a true result ends the generation there.
        on_prompt: Called after each prefill pass. The last prompt token is not counted, because it
            is decoded with the answer.
    """

    prompt: Prompt
    sampling: Sampling
    speculation: Speculation
    form: PromptOptions = field(default_factory=PromptOptions)
    images: Sequence[GivenImage] = ()
    echo: bool = False
    reasoning: bool | None = None
    on_token: Callable[[int], object] | None = None
    on_prompt: OnProgress | None = None


AnswerT_co = TypeVar("AnswerT_co", bound=Answer, covariant=True)


class Engine(Protocol[AnswerT_co]):
    """A loaded model; its methods may be called from any thread.

    Each raises ClosedError after `close`, and what it cannot do as a GgufSpecError.
    """

    @property
    def facts(self) -> Facts:
        """What is known of it; known after `close`, too."""

    @property
    def measured(self) -> Measured:
        """What was measured so far."""

    @property
    def vocabulary(self) -> Tokens:
        """Texts and token ids; look-ups are possible while a request runs."""

    def check_generates(self) -> None:
        """Raise NoGenerationError where it only computes embeddings."""

    def encode(
        self,
        prompt: str | Sequence[Message] | Infill,
        form: PromptOptions,
        *,
        special: bool = True,
        images: Sequence[GivenImage] = (),
        most: int | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt.

        Args:
            form: As in a request.
            special: Whether strings such as `<|im_end|>` in a text are special tokens.
            images: As in a request. Their ids are valid while the returned list is in memory.
            most: Most tokens; None for any number.

        Raises:
            PromptTooLongError: There are more than `most`.
        """

    def submit(self, request: Request) -> AnswerT_co:
        """Begin an answer; it may wait for its turn here, or when it is first read.

        Who iterates over it computes it, or waits for the thread of the engine that does. Who
        listens to it holds no thread.
        """

    def score(
        self, tokens: Sequence[int], logprobs: int, on_pass: Callable[[], object]
    ) -> list[TokenLogprob]:
        """Return the log-probability of each token after those before it, but for the first.

        Args:
            logprobs: Number of likeliest tokens at each place.
            on_pass: Called before each pass. An exception of it ends the call.
        """

    def save_session(self, path: Path, data: Mapping[str, Any]) -> None:
        """Write the caches and JSON data to a file, completely or not at all."""

    def restore_session(self, path: Path) -> tuple[dict[str, Any], str]:
        """Restore the caches from a file of `save_session`, and return its data.

        The second value says why the caches are not restored; it is empty if they are.
        """

    def end_requests(self) -> None:
        """End what waits for an answer that has not begun; an answer is ended by its `cancel`."""

    def close(self) -> None:
        """End all answers, and free what it owns; repeated calls have no effect."""
