"""Models whose text may have images: the target, which sees them, and a draft, which does not.

A projector, llama.cpp's libmtmd, turns an image into embeddings for the layers of a target. Some
builds of llama-cpp-python lack libmtmd.

Images are token ids: each embedding of an image has an id that no token and no other image has. So
the lists of ids that every part of the engine compares stay lists of ids: two texts with the same
image have a common prefix, and different images have none. The SHA-256 of its file identifies an
image. Ids are only valid in this process.

Both models have these ids in their list of cached tokens. An image is always cached as a whole: a
rollback into one drops all of it. An image may take fewer positions than it has ids, as with
M-RoPE, so positions are counted here.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import (
    ClosedError,
    DecodeError,
    ImageError,
    InvalidOptionError,
    NotEnoughMemoryError,
    UnsupportedModelError,
)
from ..gguf.adapters import OTHER_PROJECTOR
from ..gguf.header import Header
from ..images import Image, PromptTokens
from ..options import IMAGE_IDS
from ..system.files import content_id
from ..system.process import OfOneProcess
from . import probe
from .backend import library_parts, uses_gpu, without_signals
from .bindings import C
from .context import Context
from .log import callback_of, log, too_large
from .native import Native, long_call
from .sequence import CachedSequence

if TYPE_CHECKING:
    from .recurrent_state import RecurrentState

# A folder that cannot exist: libmtmd must not start ffmpeg with a file that is no image.
_NO_FFMPEG = os.fsencode(os.devnull) + b"/none"
_OK = 0
# llama.cpp's ids have 31 bits.
_IDS_END = (1 << 31) - 1
# Most images whose ids are remembered, and bytes of the embeddings that are kept for later prompts.
_KNOWN_MAX, _KEPT_BYTES = 4096, 256 << 20


# ---- the projector


class ImageChunk:
    """Embeddings of an image, or of one of its parts, that are decoded together.

    Attributes:
        n_tokens: Number of embeddings.
        n_positions: Number of positions that they take in the text.
        values: The embeddings, shape `(n_tokens, n_embd)`; None before they are computed.
    """

    pointer: int

    def __init__(self, binding: Any, pointer: int) -> None:
        """Take over a chunk of libmtmd."""
        self.n_tokens: int = binding.mtmd_input_chunk_get_n_tokens(pointer)
        self.n_positions: int = binding.mtmd_input_chunk_get_n_pos(pointer)
        self.values: NDArray[np.float32] | None = None
        self._binding = binding
        self._free: weakref.finalize[..., ImageChunk] | None = None
        self._hold(pointer)

    def _hold(self, pointer: int) -> None:
        """Own a native chunk, in place of the one before."""
        before, self.pointer = self._free, pointer
        self._free = weakref.finalize(self, self._binding.mtmd_input_chunk_free, pointer)
        self._free.atexit = False
        if before:
            before()

    def keep(self, values: NDArray[np.float32]) -> None:
        """Keep the computed embeddings, and free the pixels; the shape stays."""
        self.values = values
        self._hold(self._binding.mtmd_input_chunk_get_placeholder(self.pointer))


class Projector(OfOneProcess):
    """The projector of one model."""

    path: Path

    def __init__(self, header: Header, native: Native, threads: int, gpu: bool) -> None:
        """Load a projector file.

        Args:
            header: Its checked header.
            native: The model whose embeddings it computes.

        Raises:
            InvalidOptionError: This build of llama-cpp-python has no libmtmd.
            UnsupportedModelError: The projector belongs to another model, or llama.cpp cannot load
                it.
            NotEnoughMemoryError: It does not fit into memory.
        """
        self.path, self._native = header.path, native
        self._mtmd = binding = mtmd(header.path)
        params = binding.mtmd_context_params_default()
        params.use_gpu, params.n_threads, params.print_timings = gpu, threads, False
        kept: list[int | None] = []
        path, load = os.fsencode(header.path), binding.mtmd_init_from_file
        log.clear()
        binding.mtmd_helper_log_set(callback_of(loading=True), None)
        try:
            made = partial(native.model, lambda model: kept.append(load(path, model, params)))
            long_call(without_signals, made)
        finally:
            binding.mtmd_helper_log_set(callback_of(loading=False), None)
        if not kept[0]:
            raise _load_error(header)
        self._context = kept[0]
        free = weakref.finalize(self, binding.mtmd_free, self._context)
        free.atexit = False
        if not binding.mtmd_support_vision(self._context):
            what = f"{self.path.name} is a projector that reads no images."
            raise UnsupportedModelError(self.path, what, OTHER_PROJECTOR)

    def _give_up(self) -> object:
        return self  # never freed

    def tokenize(self, image: Image) -> list[list[int] | ImageChunk]:
        """Return the parts of an image in their order: token ids of texts, and embeddings.

        No embedding is computed yet.

        Raises:
            ImageError: The image cannot be decoded, or not be divided into patches.
        """
        binding = self._mtmd
        bitmap = self._bitmap(image)
        chunks = binding.mtmd_input_chunks_init()
        try:
            part = binding.mtmd_input_part(None, bitmap)
            parts = (ctypes.POINTER(binding.mtmd_input_part) * 1)(ctypes.pointer(part))
            code = binding.mtmd_tokenize_from_parts(self._context, chunks, parts, 1, False)
            if code != _OK:
                raise ImageError(
                    f"{self.path.name} cannot read an image of {image.width:,} x "
                    f"{image.height:,} pixels: {log.last or 'llama.cpp gave no reason'}.",
                    "use an image of another size.",
                )
            n = binding.mtmd_input_chunks_size(chunks)
            return [self._part(binding.mtmd_input_chunks_get(chunks, i)) for i in range(n)]
        finally:
            binding.mtmd_input_chunks_free(chunks)
            binding.mtmd_bitmap_free(bitmap)

    def _part(self, pointer: int) -> list[int] | ImageChunk:
        binding = self._mtmd
        if binding.mtmd_input_chunk_get_type(pointer) == binding.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            return ImageChunk(binding, binding.mtmd_input_chunk_copy(pointer))
        n = ctypes.c_size_t()
        ids = binding.mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(n))
        return list(ids[: n.value])

    def _bitmap(self, image: Image) -> int:
        binding, n = self._mtmd, len(image.data)
        options = binding.mtmd_helper_init_opt_default()
        options.video_params.ffmpeg_bin_dir = _NO_FFMPEG
        data = (ctypes.c_uint8 * n).from_buffer_copy(image.data)
        made = binding.mtmd_helper_bitmap_init_from_buf_wrapper(
            self._context, data, n, False, options
        )
        if made.video_ctx:
            binding.mtmd_helper_video_free(made.video_ctx)
        if not made.bitmap or made.video_ctx:
            raise ImageError("the image is damaged: its pixels cannot be read.", "save it again.")
        size = (
            binding.mtmd_bitmap_get_nx(made.bitmap),
            binding.mtmd_bitmap_get_ny(made.bitmap),
        )
        if size != (image.width, image.height):
            binding.mtmd_bitmap_free(made.bitmap)
            raise ImageError(
                f"the image is damaged: it has {size[0]:,} x {size[1]:,} pixels, but its header "
                f"says {image.width:,} x {image.height:,}.",
                "save it again.",
            )
        return int(made.bitmap)

    def is_causal(self, chunk: ImageChunk) -> bool:
        """Return whether an embedding of the chunk sees only those before it."""
        return not self._mtmd.mtmd_decode_use_non_causal(self._context, chunk.pointer)

    def encode(self, chunk: ImageChunk) -> None:
        """Compute the embeddings of a chunk, unless that was done before.

        Raises:
            ImageError: llama.cpp cannot compute them.
        """
        if chunk.values is None:
            self.compute(chunk)
            width = self._native.model(C.llama_model_n_embd_inp)
            values = self._mtmd.mtmd_get_output_embd(self._context)
            shape = (chunk.n_tokens, width)
            chunk.keep(np.ctypeslib.as_array(values, shape).copy())

    def compute(self, chunk: ImageChunk) -> None:
        """Compute the embeddings of a chunk, and leave them in libmtmd.

        Raises:
            ImageError: llama.cpp cannot compute them.
        """
        log.clear()
        if long_call(self._mtmd.mtmd_encode_chunk, self._context, chunk.pointer) != _OK:
            reason = log.last or "llama.cpp gave no reason"
            raise ImageError(
                f"{self.path.name} cannot encode the image: {reason}.", "use another image."
            )

    def decode(self, chunk: ImageChunk, position: int, n_batch: int) -> int:
        """Append the embeddings of a chunk to the first sequence, and return llama.cpp's code.

        Args:
            chunk: The chunk, encoded.
            position: Position of its first embedding.
            n_batch: Largest number of embeddings of a pass.
        """
        values = np.ascontiguousarray(chunk.values)
        pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        after = C.llama_pos()
        code = self._native.context(
            lambda context: self._mtmd.mtmd_helper_decode_image_chunk(
                self._context,
                context,
                chunk.pointer,
                pointer,
                position,
                0,
                n_batch,
                ctypes.byref(after),
                self._mtmd.mtmd_helper_post_decode_callback(),
                None,
            )
        )
        self._native.context(C.llama_synchronize)
        return int(code)


def _load_error(header: Header) -> UnsupportedModelError | NotEnoughMemoryError:
    """Return the error for a projector that was not loaded, based on llama.cpp's log."""
    lines = [line for line in log if "error: " in line or "failed to load" in line] or [*log]
    # the first line, without the names of functions
    reason = lines[0].split("error: ", 1)[-1].split("\n", 1)[0].rstrip(".") if lines else ""
    if "alloc" in reason:
        what = f"the projector {header.path.name} does not fit into memory ({reason})."
        return too_large(what, header.file_bytes)
    return _unusable(header.path, reason or "it gave no reason")


def _unusable(path: Path, reason: str) -> UnsupportedModelError:
    what = f"llama.cpp cannot use the projector {path.name}: {reason}."
    return UnsupportedModelError(path, what, OTHER_PROJECTOR)


def check_projector(projector: Path, model: Path) -> None:
    """Try a projector in a child process, unless that succeeded before.

    llama.cpp may abort on one that is damaged. The child loads the projector with the vocabulary of
    its model and encodes an image.

    Raises:
        InvalidOptionError: This build of llama-cpp-python has no libmtmd.
        UnsupportedModelError: llama.cpp cannot use it, or crashes.
    """
    mtmd(projector)

    def find() -> str:
        try:
            return str(probe.run("projector", projector, model)).rstrip(".")
        except probe.ProbeError as error:
            return f"a test {error}"

    ids = [content_id(path) for path in (projector, model)]
    file = probe.result_file("projector", *library_parts(), *ids)
    if problem := probe.remembered(file, find, keep=False, alone=""):
        raise _unusable(projector, problem)


def mtmd(path: Path) -> Any:
    """Return the binding of libmtmd.

    Args:
        path: The projector that needs it.

    Raises:
        InvalidOptionError: This build of llama-cpp-python has no libmtmd.
    """
    try:  # after `bindings`, which loads llama.cpp with our spin count
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, AttributeError):
        raise InvalidOptionError(
            "mmproj",
            str(path),
            "",
            "take one that can: in a clone scripts/run --images, elsewhere "
            "GGUF_SPEC_BUILD_LLAMA=images and pip install --force-reinstall there.",
            message="this build of llama-cpp-python has no libmtmd, so it cannot read images.",
        ) from None
    return mtmd_cpp


# ---- images in a text


class Span(NamedTuple):
    """Ids of the embeddings of one chunk, which follow one another.

    Attributes:
        n_positions: Number of positions that they take.
    """

    first: int
    n_tokens: int
    n_positions: int

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.n_tokens)


class ImageTokens:
    """The images of one LLM. Any thread may ask for ids; one at a time computes embeddings.

    Attributes:
        spans: The embeddings of all images so far, by their first id.
    """

    projector: Projector

    def __init__(self, projector: Projector, n_batch: int) -> None:
        """Begin without images.

        Args:
            n_batch: Largest number of embeddings of a pass.
        """
        self.projector, self._n_batch = projector, n_batch
        self._lock = threading.Lock()
        self._next = IMAGE_IDS
        self.spans: dict[int, Span] = {}
        self._known: OrderedDict[bytes, tuple[int, ...]] = OrderedDict()
        self._chunks: weakref.WeakValueDictionary[int, ImageChunk] = weakref.WeakValueDictionary()
        self._kept: OrderedDict[int, ImageChunk] = OrderedDict()

    def ids(self, image: Image) -> PromptTokens:
        """Return the ids of an image, with those of the texts that the model needs around it.

        Raises:
            ImageError: The image cannot be decoded, or is too large for a pass.
        """
        with self._lock:
            known = self._known.get(image.digest)
            if known is not None:
                self._known.move_to_end(image.digest)
                kept = [self._chunks.get(one) for one in known if one in self.spans]
                if None not in kept:
                    return PromptTokens(known, [chunk for chunk in kept if chunk])
            parts = self.projector.tokenize(image)
            chunks = [part for part in parts if isinstance(part, ImageChunk)]
            for chunk in chunks:
                if chunk.n_tokens > self._n_batch and not self.projector.is_causal(chunk):
                    raise ImageError(
                        f"the image has {chunk.n_tokens:,} tokens, but a pass of this model may "
                        f"have {self._n_batch:,}, and it reads an image in one.",
                        "use a smaller image.",
                    )
            if known is None:
                known = self._known[image.digest] = self._name(parts)
                if len(self._known) > _KNOWN_MAX:
                    self._known.popitem(last=False)
            firsts = [one for one in known if one in self.spans]
            self._chunks.update(zip(firsts, chunks, strict=True))
            return PromptTokens(known, chunks)

    def _name(self, parts: Sequence[list[int] | ImageChunk]) -> tuple[int, ...]:
        """Give new ids to the embeddings of an image, and return all its ids."""
        ids: list[int] = []
        for part in parts:
            if isinstance(part, ImageChunk):
                span = Span(self._next, part.n_tokens, part.n_positions)
                if span.ids.stop > _IDS_END:
                    raise ImageError("there are no ids left for images.", "load the model again.")
                self._next = span.ids.stop
                self.spans[span.first] = span
                ids += span.ids
            else:
                ids += part
        return tuple(ids)

    def chunk(self, span: Span) -> ImageChunk:
        """Return the embeddings of a span, computed now if they are not kept.

        The newest ones are kept for later prompts.

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
        kept = self._kept
        kept[span.first] = chunk
        kept.move_to_end(span.first)
        sizes = [one.values.nbytes for one in kept.values() if one.values is not None]
        while len(kept) > 1 and sum(sizes) > _KEPT_BYTES:
            kept.popitem(last=False)
            sizes.pop(0)
        return chunk

    def chunks_of(self, tokens: Sequence[int]) -> tuple[ImageChunk, ...]:
        """Return the images of a prompt, whose ids must be whole and known.

        Raises:
            ImageError: They are not.
        """
        found, at = list[ImageChunk](), 0
        while at < len(tokens):
            if tokens[at] < IMAGE_IDS:
                at += 1
                continue
            span = self.spans.get(tokens[at])
            is_whole = span and [*tokens[at : at + span.n_tokens]] == [*span.ids]
            chunk = self._chunks.get(tokens[at]) if is_whole else None
            if chunk is None:
                raise ImageError(
                    "the prompt has token ids of an image that is not in memory, or only a part "
                    "of its ids.",
                    "give the prompt with its image again.",
                )
            found.append(chunk)
            at += chunk.n_tokens
        return tuple(found)


class VisionSequence(CachedSequence):
    """The sequence of a model whose cached tokens may be ids of images.

    A target sees them. Its draft model reads the texts as if no image were there.

    Attributes:
        sees: Whether it sees the images.
    """

    recurrent: RecurrentState | None
    weight_bytes: int
    busy_s: float

    def __init__(self, context: Context, images: Header | ImageTokens) -> None:
        """Take the place of a context's sequence, and load the projector of one that sees.

        If this fails, the context is closed.

        Args:
            images: Checked header of the projector; or for a draft model the images of the target.

        Raises:
            UnsupportedModelError: The projector does not fit, or the model is recurrent.
            InvalidOptionError, NotEnoughMemoryError: As for `Projector`.
        """
        super().__init__(context)
        self.recurrent, context.sequences[0] = context.sequences[0].recurrent, self
        self._image_tokens = images if isinstance(images, ImageTokens) else None
        self.sees: bool = self._image_tokens is None
        # number of cached ids before an image -> its ids
        self._placed: dict[int, Span] = {}
        if isinstance(images, ImageTokens):
            return
        try:
            if self.recurrent:
                raise UnsupportedModelError(
                    self.path,
                    f"{self.path.name} is recurrent or hybrid: images are not supported for such "
                    "models yet.",
                    "load it without a projector, for text only.",
                )
            gpu = uses_gpu(self.options) and self.options.gpu_layers != 0
            projector = Projector(images, self.native, context.threads, gpu)
            self._image_tokens = ImageTokens(projector, self.reads_at_once)
            self.weight_bytes += images.file_bytes
        except BaseException:
            self.close()
            raise

    @property
    def image_tokens(self) -> ImageTokens:
        """The images.

        Raises:
            ClosedError: The model is closed.
        """
        if self._image_tokens is None:
            raise ClosedError
        return self._image_tokens

    @property
    def why_plain(self) -> str:
        if self.recurrent and not self.sees:
            return f"{self.path.name} is recurrent or hybrid, and cannot leave images out"
        return super().why_plain

    def close(self) -> None:
        super().close()
        self._image_tokens = None

    def _images(self) -> dict[int, Span]:
        """Return the images in the cache, in their order."""
        cached = self._cached
        return {
            start: span
            for start, span in self._placed.items()
            if cached is None or (start < len(cached) and cached[start] == span.first)
        }

    def position(self, n: int) -> int:
        before = [span for start, span in self._images().items() if start < n]
        return n - sum(one.n_tokens - (one.n_positions if self.sees else 0) for one in before)

    def _take(self, span: Span) -> None:
        """Append an image to the cache.

        Raises:
            ImageError: The image is no longer in memory.
            DecodeError: The context is full, or llama.cpp rejected the image.
        """
        chunk = self.image_tokens.chunk(span) if self.sees else None
        n_past = self.n_past
        at = self.position(n_past)
        if n_past + span.n_tokens > self.n_ctx:
            reason = f"the context holds {self.n_ctx}"
            raise DecodeError(1, n_past, span.n_tokens, reason)
        self._placed = {**self._images(), n_past: span}
        cached = self.take_cached()
        if chunk is not None:
            started = time.perf_counter()
            log.clear()
            code = self.image_tokens.projector.decode(chunk, at, self.reads_at_once)
            self.busy_s += time.perf_counter() - started
            if code != 0:
                self.forget(data=True)
                raise DecodeError(code, n_past, span.n_tokens, log.last)
        cached.extend(span.ids)
        self._cached = cached

    def read(self, tokens: Sequence[int]) -> None:
        """Prefill tokens and images. An image that begins in `tokens` is read to its end."""
        at = 0
        while at < len(tokens):
            span = self.image_tokens.spans.get(tokens[at])
            if span:
                on_grid = self.n_past == self.n_read
                self._take(span)
                if on_grid:
                    self.n_read: int = self.n_past
                at += span.n_tokens
            elif tokens[at] >= IMAGE_IDS:  # the rest of an image that was read to its end
                at += 1
            else:
                end = next((i for i in range(at, len(tokens)) if tokens[i] >= IMAGE_IDS), None)
                self._read_text(tokens[at:end])
                at = len(tokens) if end is None else end

    def _read_text(self, tokens: Sequence[int]) -> None:
        """Prefill tokens; behind an image up to the grid first, as a later prompt would."""
        head = self.exactness.beyond(-self.n_past) if self._images() else 0
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
            images = self._images().items()
            inside = [start for start, span in images if start < to < start + span.n_tokens]
            super().rollback(min([to, *inside]))

    def adopt(self, cached: Sequence[int], n_read: int, least_cut: int) -> None:
        self._placed = self._placed_in(cached)
        super().adopt(cached, n_read, least_cut)

    def restore(self, tokens: Sequence[int], n_read: int, state: Any) -> bool:
        self.rollback(0)
        self._placed = self._placed_in(tokens)
        return super().restore(tokens, n_read, state)

    def _placed_in(self, tokens: Sequence[int]) -> dict[int, Span]:
        spans = self.image_tokens.spans
        return {at: spans[token] for at, token in enumerate(tokens) if token in spans}
