"""Images as token ids: each embedding of an image has an id that no token and no other image has.

So the lists of ids that every part of the engine compares stay lists of ids: two texts with the
same image have a common prefix, and two images have none, of whatever size they are. An image is
known by the SHA-256 of its file. Ids are only valid in this process.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from weakref import WeakValueDictionary

from ..errors import ImageError
from ..options import IMAGE_IDS
from .image_file import Image
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
