"""A loaded target with an optional draft: its facts, its vocabulary and its native memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ClosedError, NoGenerationError
from ..llama.embedder import Embedder
from ..llama.model import Model
from ..results import PassCounts
from ..speculative.pair import ModelPair
from ..speculative.translation import Translation
from ..text.chat_template import Message, Tools
from ..text.infill import encode_infill
from ..text.reasoning import reasoning_format
from ..text.template_values import names_read, read_options
from .images import GivenImage
from .request import encode


class LoadedModel:
    """A loaded target with an optional draft.

    Attributes:
        name: The target's registry name or file name.
        draft_name: The draft's file name, with `(prediction head)` for one; or None.
    """

    def __init__(self, name: str, pair: ModelPair) -> None:
        self.name = name
        self.draft_name = pair.draft.label if pair.draft else None
        self._pair, self._target, self._draft = pair, pair.target, pair.draft
        self._embedder: Embedder | None = None  # created with the first texts
        self._closed = False

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the context holds, prompt and answer together."""
        return self._target.n_ctx

    @property
    def parallel(self) -> int:
        """Number of requests that can share passes; more wait."""
        return self._target.parallel

    @property
    def pass_counts(self) -> PassCounts:
        """Passes and rows of the target since it was loaded, those of measurements included."""
        return self._target.counts

    @property
    def translation(self) -> Translation | None:
        """Translation for a draft model with other token ids; None if they are the same."""
        return self._pair.translation

    @property
    def path(self) -> Path:
        """File of the target."""
        return self._target.path

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the weights and caches, in bytes."""
        parts = (self._target, self._draft, self._embedder)
        return sum(one.memory_bytes for one in parts if one)

    @property
    def generates(self) -> bool:
        """Whether the model generates text; without that it only computes embeddings."""
        return not self._target.file.embeds_only

    @property
    def chat_template(self) -> str | None:
        """The file's Jinja template, which formats messages as a prompt, or None."""
        return self._target.chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether the target has a chat template."""
        return self._target.chat_template is not None

    @property
    def can_see(self) -> bool:
        """Whether prompts may have images: the model was loaded with a projector."""
        return getattr(self._target, "sees", False)

    @property
    def can_think(self) -> bool:
        """Whether the chat template has reasoning parts, which are separated from the answers."""
        return reasoning_format(self.vocabulary) is not None

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the chat template reads and a request may set."""
        return names_read(self.vocabulary.chat_template or "")

    def tokenize(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[GivenImage] = (),
        prefill: str = "",
        special: bool = True,
        tools: Tools | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a text, or of messages in the model's chat template.

        Args:
            prompt: A text, or messages.
            images: As for `generate`. The ids of an image are above those of all tokens. They are
                valid while the returned list, or another one with the image, is in memory.
            prefill: Beginning of the answer.
            special: Parse `<|im_end|>` and similar strings in a text as special tokens. In messages
                they are never parsed.
            tools: Functions that the model may call, for the template, in OpenAI's format.
            think: As for `generate`.
            chat_template_kwargs: As for `generate`.
        """
        options = read_options(prefill, tools, think, chat_template_kwargs)
        return encode(self.vocabulary, prompt, options, special=special, images=images)

    def tokenize_infill(self, prefix: str, suffix: str) -> list[int]:
        """Return the prompt for the text between `prefix` and `suffix`.

        The order is prefix, suffix, middle. Special tokens in the texts are not parsed.

        Raises:
            NoInfillError: The vocabulary has no tokens for it.
        """
        return encode_infill(self.vocabulary, prefix, suffix)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token; empty for a token without text."""
        return self.vocabulary.piece(token)

    def token_text(self, token: int) -> str:
        """Return the text of one token, with replacement characters for incomplete characters."""
        target = self.vocabulary
        return target.piece(token).decode("utf-8", errors="replace") or target.token_text(token)

    @property
    def vocabulary(self) -> Model:
        """The target, for vocabulary lookups only: they are possible while a request runs."""
        if self._closed:
            raise ClosedError
        return self._target

    def _check_generates(self) -> None:
        """Reject requests for text from a model that only computes embeddings."""
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)

    def _free(self) -> None:
        """Free the native memory; repeated calls have no effect."""
        if self._embedder:
            self._embedder.close()
        self._pair.close()
