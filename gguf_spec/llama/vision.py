"""Models whose text may have images: the target, which sees them, and a draft, which does not.

Images are token ids: each embedding of an image has an id that no token and no other image has. So
the lists of ids that every part of the engine compares stay lists of ids: two texts with the same
image have a common prefix, and two images have none, of whatever size they are. An image is known
by the SHA-256 of its file. Ids are only valid in this process.

Both models have these ids in their list of cached tokens. An image is always cached as a whole: a
rollback into one drops all of it. An image may take fewer positions than it has ids, as with
M-RoPE, so positions are counted here.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ..arrays import Logits
from ..errors import (
    ClosedError,
    DecodeError,
    ImageError,
    Option,
    OptionConflictError,
    UnsupportedModelError,
)
from ..gguf.header import Header
from ..gguf.validation import ModelFile
from ..options import IMAGE_IDS
from .backend import uses_gpu
from .image_file import Image
from .log import log
from .model import Model
from .options import ContextOptions
from .projector import Chunk, Projector

# llama.cpp's ids have 31 bits.
_IDS_END = (1 << 31) - 1
# Most images whose ids are remembered, and bytes of the embeddings that are kept for later prompts.
_KNOWN_MAX, _KEPT_BYTES = 4096, 256 << 20


class Span(NamedTuple):
    """Ids of the embeddings of one chunk, which follow one another.

    Attributes:
        first: The first id.
        n_tokens: Number of embeddings.
        n_positions: Number of positions that they take.
    """

    first: int
    n_tokens: int
    n_positions: int

    @property
    def ids(self) -> range:
        """All ids."""
        return range(self.first, self.first + self.n_tokens)


class PromptTokens(list[int]):
    """Token ids of a prompt, and the images in it, which stay in memory as long as this list.

    Attributes:
        chunks: The embeddings of its images.
    """

    def __init__(self, ids: Iterable[int], chunks: Sequence[Chunk]) -> None:
        super().__init__(ids)
        self.chunks = tuple(chunks)


class Pictures:
    """The images of one LLM. Any thread may ask for ids; one at a time computes embeddings."""

    def __init__(self, projector: Projector, n_batch: int) -> None:
        """Begin without images.

        Args:
            projector: The projector that encodes them.
            n_batch: Largest number of embeddings of a pass.
        """
        self.projector, self._n_batch = projector, n_batch
        self._lock = threading.Lock()
        self._next = IMAGE_IDS
        self._spans: dict[int, Span] = {}
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._chunks: WeakValueDictionary[int, Chunk] = WeakValueDictionary()
        self._kept: OrderedDict[int, Chunk] = OrderedDict()

    def ids(self, image: Image) -> PromptTokens:
        """Return the ids of an image, with those of the texts that the model needs around it.

        Raises:
            ImageError: The image cannot be decoded, or is too large for a pass.
        """
        with self._lock:
            return self._ids(image)

    def _ids(self, image: Image) -> PromptTokens:
        known = self._known.get(image.digest)
        if known is not None:
            self._known.move_to_end(image.digest)
            spans = [self._spans[one] for one in known if one in self._spans]
            chunks = [self._chunks.get(span.first) for span in spans]
            if None not in chunks:
                return PromptTokens(known, [chunk for chunk in chunks if chunk])
        return self._read(image, known)

    def _read(self, image: Image, known: tuple[int, ...] | None) -> PromptTokens:
        parts = self.projector.tokenize(image)
        chunks = [part for part in parts if isinstance(part, Chunk)]
        for chunk in chunks:
            if chunk.n_tokens > self._n_batch and not self.projector.is_causal(chunk):
                raise ImageError(
                    f"the image has {chunk.n_tokens:,} tokens, but a pass of this model may have "
                    f"{self._n_batch:,}, and it reads an image in one.",
                    "use a smaller image.",
                )
        if known is None:
            known = self._name(parts)
            self._known[image.digest] = known
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        firsts = [one for one in known if one in self._spans]
        self._chunks.update(zip(firsts, chunks, strict=True))
        return PromptTokens(known, chunks)

    def _name(self, parts: Sequence[list[int] | Chunk]) -> tuple[int, ...]:
        """Give new ids to the embeddings of an image, and return all its ids."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, Chunk):
                span = Span(self._next, part.n_tokens, part.n_positions)
                if span.ids.stop > _IDS_END:
                    raise ImageError("there are no ids left for images.", "load the model again.")
                self._next = span.ids.stop
                self._spans[span.first] = span
                ids += span.ids
            else:
                ids += part
        return tuple(ids)

    def span(self, first: int) -> Span | None:
        """Return the span that begins with an id, or None."""
        return self._spans.get(first)

    def chunk(self, span: Span) -> Chunk:
        """Return the embeddings of a span, computed now if they are not kept.

        Raises:
            ImageError: The image is no longer in memory.
        """
        chunk = self._chunks.get(span.first)
        if chunk is None:
            raise ImageError(
                "the image of these token ids is no longer in memory.",
                "give the prompt with its image again.",
            )
        self.projector.encode(chunk)
        self._keep(span.first, chunk)
        return chunk

    def _keep(self, first: int, chunk: Chunk) -> None:
        """Keep the newest embeddings for later prompts."""
        self._kept[first] = chunk
        self._kept.move_to_end(first)
        while len(self._kept) > 1 and _n_bytes(self._kept.values()) > _KEPT_BYTES:
            self._kept.popitem(last=False)

    def chunks_of(self, tokens: Sequence[int]) -> tuple[Chunk, ...]:
        """Return the images of a prompt, whose ids must be whole and known.

        Raises:
            ImageError: They are not.
        """
        found = []
        for span in self.spans_of(tokens):
            chunk = self._chunks.get(span.first) if span else None
            if chunk is None:
                raise ImageError(
                    "the prompt has token ids of an image that is not in memory, or only a part "
                    "of its ids.",
                    "give the prompt with its image again.",
                )
            found.append(chunk)
        return tuple(found)

    def spans_of(self, tokens: Sequence[int]) -> Iterator[Span | None]:
        """Yield the span of each image in a prompt; None for ids that are not a whole image."""
        at = 0
        while at < len(tokens):
            if tokens[at] < IMAGE_IDS:
                at += 1
                continue
            span = self._spans.get(tokens[at])
            whole = span and [*tokens[at : at + span.n_tokens]] == [*span.ids]
            yield span if whole else None
            at += span.n_tokens if span else 1


def _n_bytes(chunks: Iterable[Chunk]) -> int:
    return sum(chunk.values.nbytes for chunk in chunks if chunk.values is not None)


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

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode tokens and return the logits after each of the last `n_rows` tokens.

        Images are read first. There are no rows for them, and none for the tokens before them.
        """
        last = max((i for i, token in enumerate(tokens) if token >= IMAGE_IDS), default=-1)
        if last < 0:
            return super().logits(tokens, n_rows)
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
            self.forget(data=True)
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
