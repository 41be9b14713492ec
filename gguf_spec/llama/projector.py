"""A projector: llama.cpp's libmtmd turns an image into embeddings for the layers of a model.

Some builds of llama-cpp-python lack libmtmd.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ImageError, InvalidOptionError, NotEnoughMemoryError, UnsupportedModelError
from ..gguf.header import Header
from ..system.files import content_id
from ..system.machine import available_bytes
from . import probe
from .backend import apart, library_parts
from .bindings import C
from .image_file import Image
from .log import callback_of, log
from .native import Native

# A folder that cannot exist: libmtmd must not start ffmpeg with a file that is no image.
_NO_FFMPEG = os.fsencode(os.devnull) + b"/none"
_OK = 0


class Chunk:
    """Embeddings of an image, or of one of its parts, that are decoded together.

    Attributes:
        n_tokens: Number of embeddings.
        n_positions: Number of positions that they take in the text.
        values: The embeddings, shape `(n_tokens, n_embd)`; None before they are computed.
    """

    def __init__(self, binding: Any, pointer: int) -> None:
        """Take over a chunk of libmtmd."""
        self.n_tokens: int = binding.mtmd_input_chunk_get_n_tokens(pointer)
        self.n_positions: int = binding.mtmd_input_chunk_get_n_pos(pointer)
        self.values: NDArray[np.float32] | None = None
        self._binding = binding
        self._free: weakref.finalize[..., Chunk] | None = None
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


class Projector:
    """The projector of one model."""

    def __init__(self, header: Header, native: Native, threads: int, gpu: bool) -> None:
        """Load a projector file.

        Args:
            header: Its checked header.
            native: The model whose embeddings it computes.
            threads: Number of threads.
            gpu: Whether the GPU may be used.

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
            apart(lambda: native.model(lambda model: kept.append(load(path, model, params))))
        finally:
            binding.mtmd_helper_log_set(callback_of(loading=False), None)
        if not kept[0]:
            raise _load_error(header)
        self._context = kept[0]
        free = weakref.finalize(self, binding.mtmd_free, self._context)
        free.atexit = False
        if not binding.mtmd_support_vision(self._context):
            raise UnsupportedModelError(
                self.path,
                f"{self.path.name} is a projector that reads no images.",
                "use the mmproj file that belongs to the model.",
            )

    def tokenize(self, image: Image) -> list[list[int] | Chunk]:
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

    def _part(self, pointer: int) -> list[int] | Chunk:
        binding = self._mtmd
        if binding.mtmd_input_chunk_get_type(pointer) == binding.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            return Chunk(binding, binding.mtmd_input_chunk_copy(pointer))
        n = ctypes.c_size_t()
        ids = binding.mtmd_input_chunk_get_tokens_text(pointer, ctypes.byref(n))
        return list(ids[: n.value])

    def _bitmap(self, image: Image) -> int:
        """Return the decoded pixels of an image."""
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

    def is_causal(self, chunk: Chunk) -> bool:
        """Return whether an embedding of the chunk sees only those before it."""
        return not self._mtmd.mtmd_decode_use_non_causal(self._context, chunk.pointer)

    def encode(self, chunk: Chunk) -> None:
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

    def compute(self, chunk: Chunk) -> None:
        """Compute the embeddings of a chunk, and leave them in libmtmd.

        Raises:
            ImageError: llama.cpp cannot compute them.
        """
        log.clear()
        if self._mtmd.mtmd_encode_chunk(self._context, chunk.pointer) != _OK:
            reason = log.last or "llama.cpp gave no reason"
            raise ImageError(
                f"{self.path.name} cannot encode the image: {reason}.", "use another image."
            )

    def decode(self, chunk: Chunk, position: int, n_batch: int) -> int:
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
    name = header.path.name
    if "alloc" in reason:
        return NotEnoughMemoryError(
            f"the projector {name} does not fit into memory ({reason}).",
            header.file_bytes,
            available_bytes(),
        )
    return UnsupportedModelError(
        header.path,
        f"llama.cpp cannot use the projector {name}: {reason or 'it gave no reason'}.",
        "use the mmproj file that belongs to the model.",
    )


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
    if problem := probe.remembered(file, find, keep=False, packed=""):
        raise UnsupportedModelError(
            projector,
            f"llama.cpp cannot use the projector {projector.name}: {problem}.",
            "use the mmproj file that belongs to the model.",
        )


def mtmd(path: Path) -> Any:
    """Return the binding of libmtmd.

    Args:
        path: The projector that needs it.

    Raises:
        InvalidOptionError: This build of llama-cpp-python has no libmtmd.
    """
    found = _binding()
    if found is None:
        raise InvalidOptionError(
            "mmproj",
            str(path),
            "",
            "install llama-cpp-python again, without -DLLAVA_BUILD=OFF (in a clone: scripts/run).",
            message="this build of llama-cpp-python has no libmtmd, so it cannot read images.",
        )
    return found


def has_mtmd() -> bool:
    """Return whether this build can read images."""
    return _binding() is not None


@cache
def _binding() -> Any:
    try:  # after `bindings`, which loads llama.cpp with our spin count
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None
    return mtmd_cpp
