"""Quantisation of a model with llama.cpp's quantiser, for example to make a draft model.

It runs in a child process; see `quantize.worker`. Returns data and prints nothing.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOptionError, NotAModelError, QuantizeError
from ..results import OnProgress, Progress
from ..system import subprogram

if TYPE_CHECKING:
    from ..gguf.header import Header

__all__ = ["TYPES", "Quantized", "is_quantized", "quantize"]

# name -> llama.cpp's number; only types that need no importance matrix
TYPES = {
    "F16": 1, "BF16": 32, "Q8_0": 7, "Q6_K": 18, "Q5_K_M": 17, "Q5_K_S": 16, "Q5_1": 9, "Q5_0": 8,
    "Q4_K_M": 15, "Q4_K_S": 14, "Q4_1": 3, "Q4_0": 2, "IQ4_NL": 25, "IQ4_XS": 30, "Q3_K_L": 13,
    "Q3_K_M": 12, "Q3_K_S": 11, "Q2_K": 10,
}  # fmt: skip
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

    The file appears under its name when it is complete and checked. Until then it has a name beside
    `target` that begins with `.gguf-spec-`; this file is removed after any failure.

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
        FrozenAppError: This process cannot start a child.
    """
    from ..gguf.validation import check_model, read_header
    from ..gguf.writing import check_place
    from ..llama.options import physical_cores
    from ..system.files import atomic_write

    source, target, name = Path(source), Path(target), str(type).upper()
    if name not in TYPES:
        hint = "use Q4_0 for a small and fast draft, or Q8_0 for almost no loss of quality."
        raise InvalidOptionError("type", type, "one of " + ", ".join(TYPES), hint)
    if threads is not None and not (isinstance(threads, int) and 0 < threads <= 512):
        raise InvalidOptionError("threads", threads, "a whole number from 1 to 512")
    header = read_header(source)
    check_model(header)
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
        with atomic_write(target, private=False, in_place=False) as part:
            given = (source, part, TYPES[name], threads or physical_cores())
            command = subprogram.command("gguf_spec.quantize.worker", *map(str, given))
            n_fallback = _run(header, target, part, command, progress)
            made = _check_made(header, target, part)
    except OSError as error:
        message = f"{target} cannot be written: {error.strerror or error}."
        hint = "choose a file in a folder with write permission."
        raise QuantizeError(source, target, message, hint) from error
    bits = [
        8
        * sum(tensor.n_bytes for tensor in one.tensors)
        / sum(math.prod(tensor.shape) for tensor in one.tensors)
        for one in (header, made)
    ]
    return Quantized(
        source, target, name, source_bytes=header.file_bytes, target_bytes=made.file_bytes,
        source_bits=bits[0], target_bits=bits[1], n_tensors=made.n_tensors, n_fallback=n_fallback,
        requantized=is_quantized(header), seconds=time.monotonic() - started,
    )  # fmt: skip


def is_quantized(header: Header) -> bool:
    """Return whether any weights of a model are quantised."""
    return any(tensor.type not in _FLOATS for tensor in header.tensors)


def _check_made(header: Header, target: Path, part: Path) -> Header:
    """Check the written file. llama.cpp does not report a full disk."""
    from ..gguf.validation import read_header
    from ..gguf.vocabulary import read_tokens

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

    def tokenizer(header: Header) -> object:
        keys = [key for key in header.metadata if key.startswith("tokenizer.")]
        values = {key: (header.kinds[key], repr(header.metadata[key])) for key in keys}
        return values, read_tokens(header)

    if tokenizer(made) != tokenizer(header):
        raise wrong("has another tokenizer than the model")
    return made


def _run(
    header: Header, target: Path, part: Path, command: list[str], progress: OnProgress | None
) -> int:
    """Run the quantiser in a child process, which ends with this one.

    Returns:
        The number of tensors with another type.
    """
    failed, n_fallback, n = "", 0, header.n_tensors
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
                match line.decode("utf-8", errors="replace").split():
                    case ["size", n_bytes]:
                        _check_room(header, target, part, int(n_bytes) + header.data_at)
                    case ["at", i, total] if progress:
                        progress(Progress("quantize", int(i) - 1, int(total), "tensors"))
                    case ["fallback", count]:
                        n_fallback = int(count)
                    case ["failed", *why]:
                        failed = " ".join(why)
            code = child.wait()
        finally:
            child.kill()
        if code:
            errors.seek(0)
            lines = errors.read().decode("utf-8", errors="replace").splitlines()
            last = [line for line in lines if line.strip()][-1:]
            reason = failed or " ".join(last) or "llama.cpp gave no reason"
            died = f" (ended by signal {-code})" if code < 0 else ""
            hint = "download or convert the model again; it may be damaged."
            if code == -9:
                hint = "close other programs if there was too little memory."
            message = f"llama.cpp cannot quantise {header.path.name}: {reason.rstrip('.')}{died}."
            raise QuantizeError(header.path, target, message, hint)
    if progress:
        progress(Progress("quantize", n, n, "tensors"))
    return n_fallback


def _check_room(header: Header, target: Path, part: Path, needed: int) -> None:
    free, folder = shutil.disk_usage(part.parent).free, part.parent
    if needed > free:
        has = f"{free:,} are free in {folder.absolute()}"
        message = f"{target.name} needs {needed:,} bytes but {has}."
        hint = "free disk space, or choose a file on another disk."
        raise QuantizeError(header.path, target, message, hint)
