"""Models whose text may have images: the target, which sees them, and a draft, which does not.

Both have the ids of `llama.pictures` in their list of cached tokens. An image is always cached as a
whole: a rollback into one drops all of it. An image may take fewer positions than it has ids, as
with M-RoPE, so positions are counted here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Logits
from ..errors import ClosedError, DecodeError, Option, OptionConflictError, UnsupportedModelError
from ..gguf.header import Header
from ..gguf.validation import ModelFile
from ..options import IMAGE_IDS
from .backend import uses_gpu
from .branches import Branches
from .log import log
from .model import Model
from .options import ContextOptions
from .pictures import Pictures, Span
from .projector import Projector


class _Placed(NamedTuple):
    """An image in the cache.

    Attributes:
        start: Number of cached ids before it.
        span: Its ids.
        n_positions: Number of positions that it takes in this model.
    """

    start: int
    span: Span
    n_positions: int

    @property
    def end(self) -> int:
        """Number of cached ids up to its end."""
        return self.start + self.span.n_tokens


class ModelWithImages(Model, ABC):
    """A model whose cached tokens may be ids of images."""

    _pictures: Pictures | None = None
    _placed: tuple[_Placed, ...] = ()

    @property
    def pictures(self) -> Pictures:
        """The images.

        Raises:
            ClosedError: The model is closed.
        """
        if self._pictures is None:
            raise ClosedError
        return self._pictures

    def close(self) -> None:
        """Release the native memory, that of the projector included."""
        super().close()
        self._pictures = None

    def _images(self) -> list[_Placed]:
        """Return the images in the cache, in their order."""
        cached = self._cached
        return [
            one
            for one in self._placed
            if cached is None or (one.start < len(cached) and cached[one.start] == one.span.first)
        ]

    def position(self, n: int) -> int:
        """Return llama.cpp's position of the token after the first `n` cached ones."""
        before = [one for one in self._images() if one.start < n]
        return n - sum(one.span.n_tokens - one.n_positions for one in before)

    @abstractmethod
    def _n_positions(self, span: Span) -> int:
        """Return the number of positions that an image takes in this model."""

    @abstractmethod
    def _take(self, span: Span) -> None:
        """Append an image to the cache."""

    def _place(self, span: Span) -> list[int]:
        """Return the cached tokens, and mark the cache as unknown until the image is in it.

        Raises:
            DecodeError: The context is full.
        """
        n_past = self.n_past
        if n_past + span.n_tokens > self.n_ctx:
            reason = f"the context holds {self.n_ctx}"
            raise DecodeError(1, n_past, span.n_tokens, reason)
        self._placed = (*self._images(), _Placed(n_past, span, self._n_positions(span)))
        return self._in_doubt()

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens and images. An image that begins in `tokens` is read to its end."""
        at = 0
        while at < len(tokens):
            span = self.pictures.span(tokens[at])
            if span:
                on_grid = self.n_past == self.n_read
                self._take(span)
                if on_grid:
                    self.n_read = self.n_past
                at += span.n_tokens
            elif tokens[at] >= IMAGE_IDS:  # the rest of an image that was read to its end
                at += 1
            else:
                end = next((i for i in range(at, len(tokens)) if tokens[i] >= IMAGE_IDS), None)
                self._read_text(tokens[at:end])
                at = len(tokens) if end is None else end

    def _read_text(self, tokens: Sequence[int]) -> None:
        """Prefill tokens; behind an image up to the grid first, as a later prompt would."""
        head = -self.n_past % self.grid if self.grid and self._images() else 0
        if head:
            super().read(tokens[:head])
        if tokens[head:]:
            super().read(tokens[head:])

    def logits(self, tokens: Sequence[int], n_rows: int, branches: Branches = ()) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Images are read first. There are no rows for them, and none for the tokens before them.
        """
        last = max((i for i, token in enumerate(tokens) if token >= IMAGE_IDS), default=-1)
        if last < 0:
            return super().logits(tokens, n_rows, branches)
        self.read(tokens[: last + 1])
        if not tokens[last + 1 :]:
            return np.empty((0, self.n_vocab), np.float32)
        return super().logits(tokens[last + 1 :], min(n_rows, len(tokens) - last - 1))

    def rollback(self, to: int) -> None:
        """Drop all cached tokens after the first `to`, and an image that `to` is inside of."""
        if to < self.n_past:
            inside = [one.start for one in self._images() if one.start < to < one.end]
            super().rollback(min([to, *inside]))

    def adopt(self, cached: Sequence[int], n_read: int, least_cut: int) -> None:
        """Take over the first sequence, which other code has changed."""
        self._placed = self._placed_in(cached)
        super().adopt(cached, n_read, least_cut)

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        """Restore the cache from a serialised state."""
        self.rollback(0)
        self._placed = self._placed_in(tokens)
        return super().restore(tokens, n_read, state)

    def _placed_in(self, tokens: Sequence[int]) -> tuple[_Placed, ...]:
        found = []
        for at, token in enumerate(tokens):
            span = self.pictures.span(token) if token >= IMAGE_IDS else None
            if span:
                found.append(_Placed(at, span, self._n_positions(span)))
        return tuple(found)

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens and images."""
        return b"" if token >= IMAGE_IDS else super().piece(token)

    def token_text(self, token: int) -> str:
        """Return the text of a token in the vocabulary; empty for images."""
        return "" if token >= IMAGE_IDS else super().token_text(token)

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""
        return token < IMAGE_IDS and super().is_end(token)


class VisionModel(ModelWithImages):
    """A target that sees images.

    Attributes:
        sees: Whether prompts may have images.
    """

    sees = True

    def __init__(
        self,
        file: ModelFile,
        options: ContextOptions,
        projector: Header,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Load a model and its projector.

        Args:
            file: The model.
            options: Load and context options.
            projector: Checked header of the projector.
            progress: As for `Model`.

        Raises:
            UnsupportedModelError: The projector does not fit, or the model is recurrent.
            ModelError, InvalidOptionError, NotEnoughMemoryError: As for `Model`.
        """
        super().__init__(file, options, progress)
        try:
            if self.recurrent:
                raise UnsupportedModelError(
                    file.path,
                    f"{file.path.name} is recurrent or hybrid: images are not supported for such "
                    "models yet.",
                    "load it without a projector, for text only.",
                )
            gpu = uses_gpu(options) and options.gpu_layers != 0
            self._pictures = Pictures(
                Projector(projector, self.native, self.threads, gpu), self.reads_at_once
            )
            self.weight_bytes += projector.file_bytes
        except BaseException:
            self.close()
            raise

    def _n_positions(self, span: Span) -> int:
        return span.n_positions

    def _take(self, span: Span) -> None:
        chunk = self.pictures.chunk(span)
        at = self.position(self.n_past)
        n_past, cached = self.n_past, self._place(span)
        started = time.perf_counter()
        log.clear()
        code = self.pictures.projector.decode(chunk, at, self.reads_at_once)
        self.busy_s += time.perf_counter() - started
        if code != 0:
            self._start_over(data=True)
            raise DecodeError(code, n_past, span.n_tokens, log.last)
        cached.extend(span.ids)
        self._cached = cached


class BlindModel(ModelWithImages):
    """A draft model for a target with images: it reads the texts as if no image were there."""

    def __init__(
        self,
        file: ModelFile,
        options: ContextOptions,
        pictures: Pictures,
        progress: Callable[[float], object] | None = None,
    ) -> None:
        """Load a model.

        Args:
            file: The model.
            options: Load and context options.
            pictures: The images of the target.
            progress: As for `Model`.
        """
        self._pictures = pictures
        super().__init__(file, options, progress)

    @property
    def why_plain(self) -> str:
        """Reason why nothing can be drafted by it; empty if it can."""
        if self.recurrent:
            return f"{self.path.name} is recurrent or hybrid, and cannot leave images out"
        return super().why_plain

    def _n_positions(self, _span: Span) -> int:
        return 0

    def _take(self, span: Span) -> None:
        cached = self._place(span)
        cached.extend(span.ids)
        self._cached = cached


def check_images_possible(parallel: int | str, rpc: Sequence[str]) -> None:
    """Reject options that cannot be combined with a projector.

    Raises:
        OptionConflictError: There are several slots, or workers.
    """
    if parallel not in (1, "auto"):
        raise OptionConflictError(Option("mmproj"), Option("parallel", parallel))
    if rpc:
        raise OptionConflictError(Option("mmproj"), Option("rpc"))
