"""Quantisation of a model, in a child process; see `quantize.worker`."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError, NotAModelError, QuantizeError
from ..gguf.rewriting import check_place
from ..gguf.validation import Header, check_generates_text, read_header
from ..gguf.vocabulary import read_tokens
from ..llama.options import physical_cores
from ..results import OnProgress, Progress
from ..system.files import atomic_write
from .types import TYPES

# bytes; the only alignment that llama.cpp's quantiser writes
_ALIGNMENT = 32
# ggml types of unquantised weights: F32, F16, BF16
_FLOATS = {0, 1, 30}


@dataclass(frozen=True)
class Quantized:
    """Result of a quantisation.

    Attributes:
        source: The model.
        target: The quantised file.
        type: Type of the target, one of `TYPES`.
        source_bytes: Size of the model, all its files included.
        target_bytes: Size of the target.
        source_bits: Bits per weight of the model.
        target_bits: Bits per weight of the target.
        n_tensors: Number of tensors in each.
        n_fallback: Number of tensors with a larger type, because the blocks of the type do not
            divide their rows.
        requantized: Whether the model was already quantised, which costs quality.
        seconds: Duration of the quantisation.
    """

    source: Path
    target: Path
    type: str
    source_bytes: int
    target_bytes: int
    source_bits: float
    target_bits: float
    n_tensors: int
    n_fallback: int
    requantized: bool
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self) | {"source": str(self.source), "target": str(self.target)}


def quantize(
    source: str | Path,
    target: str | Path,
    type: str,
    *,
    threads: int | None = None,
    force: bool = False,
    progress: OnProgress | None = None,
) -> Quantized:
    """Write a model again with smaller weights.

    The tokenizer does not change.

    The file appears under its name when it is complete and checked. Until then its name is that of
    `target` with some letters and `.part` appended; this file is removed after any failure.

    Args:
        source: A GGUF file. For a split model, the first file; all files become one.
        target: The file to write.
        type: One of `TYPES`, in upper or lower case.
        threads: Number of threads; None selects the number of physical cores.
        force: Whether to replace an existing file.
        progress: Called with the finished tensors.

    Returns:
        Sizes and types of both files.

    Raises:
        ModelError: The source is missing or damaged, or generates no text.
        InvalidOptionError: The type is unknown.
        OutputFileError: The target exists, is the source, or its folder is missing.
        QuantizeError: llama.cpp cannot quantise the model, or the disk is full.
    """
    source, target, name = Path(source), Path(target), str(type).upper()
    if name not in TYPES:
        hint = "use Q4_0 for a small and fast draft, or Q8_0 for almost no loss of quality."
        raise InvalidOptionError("type", type, "one of " + ", ".join(TYPES), hint)
    if threads is not None and not (isinstance(threads, int) and 0 < threads <= 512):
        raise InvalidOptionError("threads", threads, "a whole number from 1 to 512")
    header = read_header(source)
    check_generates_text(header)
    alignment = header.metadata.get("general.alignment", _ALIGNMENT)
    if alignment != _ALIGNMENT:
        message = (
            f"{source.name} is aligned to {alignment} bytes, "
            f"but llama.cpp writes quantised files that are aligned to {_ALIGNMENT}."
        )
        raise QuantizeError(source, target, message, "convert it again with the default alignment.")
    started = time.monotonic()
    try:
        check_place(header, target, force)
        with atomic_write(target, private=False) as part:
            child = _Child(header, target, part)
            n_fallback = child.run(TYPES[name], threads or physical_cores(), progress)
            made = _check_made(header, target, part)
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}."
        hint = "choose a file in a folder with write permission."
        raise QuantizeError(source, target, message, hint) from error
    return Quantized(
        source, target, name, header.file_bytes, made.file_bytes, _bits(header), _bits(made),
        made.n_tensors, n_fallback, is_quantized(header), time.monotonic() - started,
    )  # fmt: skip


def is_quantized(header: Header) -> bool:
    """Return whether any weights of a model are quantised."""
    return any(tensor.type not in _FLOATS for tensor in header.tensors)


def _bits(header: Header) -> float:
    """Return the mean number of bits per weight."""
    n_bytes = sum(tensor.n_bytes for tensor in header.tensors)
    return 8 * n_bytes / sum(math.prod(tensor.shape) for tensor in header.tensors)


def _check_made(header: Header, target: Path, part: Path) -> Header:
    """Check the written file. llama.cpp does not report a full disk."""

    def wrong(what: str) -> QuantizeError:
        free = shutil.disk_usage(part.parent).free
        message = f"the quantised file {target.name} {what}."
        hint = f"check the disk, of which {free:,} bytes are free."
        return QuantizeError(header.path, target, message, hint)

    try:
        made = read_header(part)
    except NotAModelError as error:
        raise wrong("is incomplete") from error
    if made.n_tensors != header.n_tensors:
        raise wrong(f"has {made.n_tensors:,} tensors, not {header.n_tensors:,}")
    if _tokenizer(made) != _tokenizer(header):
        raise wrong("has another tokenizer than the model")
    return made


def _tokenizer(header: Header) -> object:
    entries = {
        key: (header.kinds[key], repr(value))
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.")
    }
    return entries, read_tokens(header)


def _command(source: Path, part: Path, number: int, threads: int) -> list[str]:
    given = (os.fspath(source), os.fspath(part), str(number), str(threads))
    return [sys.executable, "-m", "gguf_spec.quantize.worker", *given]


class _Child:
    """Runs the quantiser in a child process, which ends with this one."""

    def __init__(self, header: Header, target: Path, part: Path) -> None:
        self._header, self._target, self._part = header, target, part
        self._failed, self._n_fallback = "", 0

    def run(self, number: int, threads: int, progress: OnProgress | None) -> int:
        """Quantise and return the number of tensors with another type."""
        command = _command(self._header.path, self._part, number, threads)
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # Ctrl-C reaches only this process
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # no debugger when it aborts
            ) as child,
        ):
            try:
                for line in child.stdout or ():
                    self._hear(line.decode("utf-8", errors="replace").split(), progress)
                code = child.wait()
            finally:
                child.kill()
            if code:
                errors.seek(0)
                raise self._failure(code, errors.read().decode("utf-8", errors="replace"))
        if progress:
            n = self._header.n_tensors
            progress(Progress("quantize", n, n, "tensors"))
        return self._n_fallback

    def _hear(self, words: list[str], progress: OnProgress | None) -> None:
        match words:
            case ["size", n_bytes]:
                self._check_room(int(n_bytes) + self._header.data_at)
            case ["at", n, total] if progress:
                progress(Progress("quantize", int(n) - 1, int(total), "tensors"))
            case ["fallback", n]:
                self._n_fallback = int(n)
            case ["failed", *why]:
                self._failed = " ".join(why)

    def _check_room(self, needed: int) -> None:
        free, folder = shutil.disk_usage(self._part.parent).free, self._part.parent
        if needed > free:
            has = f"{free:,} are free in {folder.absolute()}"
            message = f"{self._target.name} needs {needed:,} bytes but {has}."
            hint = "free disk space, or choose a file on another disk."
            raise QuantizeError(self._header.path, self._target, message, hint)

    def _failure(self, code: int, errors: str) -> QuantizeError:
        """Return the error for a failed quantiser, from its own message or its exit code."""
        last = [line for line in errors.splitlines() if line.strip()][-1:]
        why = self._failed or " ".join(last) or "llama.cpp gave no reason"
        died = f" (ended by signal {-code})" if code < 0 else ""
        hint = "download or convert the model again; it may be damaged."
        if code == -9:
            hint = "close other programs if there was too little memory."
        message = f"llama.cpp cannot quantise {self._header.path.name}: {why.rstrip('.')}{died}."
        return QuantizeError(self._header.path, self._target, message, hint)
