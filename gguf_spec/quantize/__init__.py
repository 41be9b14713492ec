"""Make a smaller file of a model with llama.cpp's own quantiser, so that anyone can make a draft. Returns data, prints nothing."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError, NotAModelError, QuantizeError
from ..gguf.file_types import TYPES
from ..gguf.validation import Header, check_generates_text, read_header
from ..gguf.vocabulary import read_tokens
from ..llama.options import physical_cores
from ..system.atomic_file import atomic_write

_ALIGNMENT = 32
_FLOATS = {0, 1, 30}  # ggml types that nothing was lost in


@dataclass(frozen=True)
class Quantized:
    """What was made.

    Attributes:
        source: The model.
        target: The file made of it.
        type: Its type, one of `TYPES`.
        source_bytes: Size of the model, of all its files.
        target_bytes: Size of what was made.
        source_bits: Bits a weight took.
        target_bits: Bits a weight takes.
        n_tensors: How many tensors both hold.
        n_fallback: Of them those whose rows blocks of the type do not divide, so that they took a larger one.
        requantized: The model was quantised already, which costs quality.
        seconds: What it took.
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
    progress: Callable[[int, int], object] | None = None,
) -> Quantized:
    """Write a model again with smaller numbers; its tokenizer stays as it is.

    The file appears under its name when it is whole and was checked. Until then it is called as `target` with some letters and `.part` behind it,
    which is gone after any failure.

    Args:
        source: A GGUF file; of a split model the first, all of which become one.
        target: The file to be made.
        type: One of `TYPES`, in small letters too.
        threads: None takes the physical cores.
        force: Replace a file that is there.
        progress: Called with the number of tensors that are done, and of all.

    Raises:
        ModelError: The source is missing, damaged, or generates no text.
        InvalidOptionError: There is no such type, or the target is there already, is the source, or has no folder.
        QuantizeError: llama.cpp cannot do it, or there is no room on the disk.
    """
    source, target, name = Path(source), Path(target), str(type).upper()
    if name not in TYPES:
        raise InvalidOptionError(
            "type",
            type,
            "one of " + ", ".join(TYPES),
            "Q4_0 makes a small and fast draft, Q8_0 loses next to nothing.",
        )
    if threads is not None and not (isinstance(threads, int) and 0 < threads <= 512):
        raise InvalidOptionError("threads", threads, "a whole number from 1 to 512")
    header = read_header(source)
    check_generates_text(header)
    alignment = header.metadata.get("general.alignment", _ALIGNMENT)
    if alignment != _ALIGNMENT:
        message = f"{source.name} is aligned to {alignment} bytes, but llama.cpp quantises to {_ALIGNMENT} and says {alignment}."
        raise QuantizeError(source, target, message, "convert it again with the default alignment.")
    started = time.monotonic()
    try:
        _check_place(header, target, force)
        with atomic_write(target, private=False) as part:
            n_fallback = _Child(header, target, part).run(
                TYPES[name], threads or physical_cores(), progress
            )
            made = _check_made(header, target, part)
    except OSError as error:
        raise QuantizeError(
            source,
            target,
            f"{target} cannot be written: {error.strerror or error}.",
            "name a file in a folder of yours.",
        ) from error
    return Quantized(
        source, target, name, header.file_bytes, made.file_bytes, _bits(header), _bits(made), made.n_tensors, n_fallback,
        is_quantized(header), time.monotonic() - started,
    )  # fmt: skip


def is_quantized(header: Header) -> bool:
    """Whether any of a model's numbers are of a quantised type."""
    return any(tensor.type not in _FLOATS for tensor in header.tensors)


def _bits(header: Header) -> float:
    """Return how many bits a weight takes."""
    return (
        8
        * sum(tensor.n_bytes for tensor in header.tensors)
        / sum(math.prod(tensor.shape) for tensor in header.tensors)
    )


def _check_place(header: Header, target: Path, force: bool) -> None:
    """Refuse a target that may not be written: llama.cpp would begin to, whatever is there."""

    def refuse(allowed: str, hint: str) -> InvalidOptionError:
        return InvalidOptionError("target", str(target), allowed, hint)

    if not target.parent.is_dir():
        raise refuse("in a folder that is there", f"make the folder {target.parent} first.")
    if any(target.exists() and target.samefile(file) for file in header.parts):
        raise refuse("another file than the model", "give it another name.")
    if target.exists() and not target.is_file():
        raise refuse("a file", "name the file to be made, such as small.gguf.")
    if target.exists() and not force:
        raise refuse("a file that is not there yet", "give another name, or --force to replace it.")


def _check_made(header: Header, target: Path, part: Path) -> Header:
    """Check what was written: where the disk ran full llama.cpp does not say so."""

    def wrong(what: str) -> QuantizeError:
        free = shutil.disk_usage(part.parent).free
        message = f"what llama.cpp wrote of {target.name} {what}."
        return QuantizeError(
            header.path, target, message, f"check the disk, of which {free:,} bytes are free."
        )

    try:
        made = read_header(part)
    except NotAModelError as error:
        raise wrong("is not whole") from error
    if made.n_tensors != header.n_tensors:
        raise wrong(f"holds {made.n_tensors:,} tensors, not {header.n_tensors:,}")
    if _tokenizer(made) != _tokenizer(header):
        raise wrong("has another tokenizer than the model")
    return made


def _tokenizer(header: Header) -> object:
    said = {
        key: (header.kinds[key], repr(value))
        for key, value in header.metadata.items()
        if key.startswith("tokenizer.")
    }
    return said, read_tokens(header)


def _command(source: Path, part: Path, number: int, threads: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "gguf_spec.quantize.worker",
        os.fspath(source),
        os.fspath(part),
        str(number),
        str(threads),
    ]


class _Child:
    """Runs the quantiser in a process of its own, which dies with this one."""

    def __init__(self, header: Header, target: Path, part: Path) -> None:
        self._header, self._target, self._part = header, target, part
        self._failed, self._n_fallback = "", 0

    def run(self, number: int, threads: int, progress: Callable[[int, int], object] | None) -> int:
        """Return how many tensors took another type."""
        command = _command(self._header.path, self._part, number, threads)
        with (
            tempfile.TemporaryFile() as errors,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True,  # Ctrl-C comes to us alone
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # no debugger where it dies
            ) as child,
        ):  # fmt: skip
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
            progress(self._header.n_tensors, self._header.n_tensors)
        return self._n_fallback

    def _hear(self, words: list[str], progress: Callable[[int, int], object] | None) -> None:
        match words:
            case ["size", n_bytes]:
                self._check_room(int(n_bytes) + self._header.data_at)
            case ["at", n, total] if progress:
                progress(int(n) - 1, int(total))
            case ["fallback", n]:
                self._n_fallback = int(n)
            case ["failed", *why]:
                self._failed = " ".join(why)

    def _check_room(self, needed: int) -> None:
        free, folder = shutil.disk_usage(self._part.parent).free, self._part.parent
        if needed > free:
            message = f"{self._target.name} takes {needed:,} bytes but {free:,} are free in {folder.absolute()}."
            raise QuantizeError(
                self._header.path,
                self._target,
                message,
                "make room, or name a file on another disk.",
            )

    def _failure(self, code: int, errors: str) -> QuantizeError:
        """Return the error for a quantiser that did not end well, by its own words or by what it died of."""
        last = [line for line in errors.splitlines() if line.strip()][-1:]
        why = self._failed or " ".join(last) or "it gives no reason"
        died = f" (it died of signal {-code})" if code < 0 else ""
        hint = (
            "close other programs, if memory was short."
            if code == -9
            else "the model may be damaged: download or convert it again."
        )
        message = f"llama.cpp cannot quantise {self._header.path.name}: {why.rstrip('.')}{died}."
        return QuantizeError(self._header.path, self._target, message, hint)
