"""A test of a projector in a child process: llama.cpp may abort on one that is damaged.

The child loads the projector with the vocabulary of its model and encodes an image. The result is
cached for both files and this build of llama.cpp.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

from ..errors import GgufSpecError, UnsupportedModelError
from ..gguf.adapters import read_projector
from ..system.files import cache_file, content_id, read_json, this_machine, write_json
from .backend import library_parts, start_backend
from .bindings import C
from .child_process import ChildError, ask
from .image_file import check_image
from .mtmd import mtmd
from .native import Native
from .projector import Chunk, Projector

# Pixels of a side of the test image.
_SIDE = 64


def check_projector(projector: Path, model: Path) -> None:
    """Try a projector in a child process, unless that succeeded before.

    Raises:
        InvalidOptionError: This build of llama-cpp-python has no libmtmd.
        UnsupportedModelError: llama.cpp cannot use it, or crashes.
    """
    mtmd(projector)
    ids = [content_id(path) for path in (projector, model)]
    cache = cache_file("probe", ["projector", *ids, *this_machine(), *library_parts()])
    if read_json(cache) == {"ok": True} or getattr(sys, "frozen", False):
        return
    problem = probe(projector, model)
    if problem:
        raise UnsupportedModelError(
            projector,
            f"llama.cpp cannot use the projector {projector.name}: {problem}.",
            "use the mmproj file that belongs to the model.",
        )
    write_json(cache, {"ok": True})


def probe(projector: Path, model: Path) -> str:
    """Run the test in a child process; return a description of the failure, or nothing."""
    try:
        return str(ask("projector_probe", projector, model)).rstrip(".")
    except ChildError as error:
        return f"a test {error}"


def encode_one(projector: Path, model: Path) -> str:
    """Encode a grey image; return the reason if that is not possible, otherwise nothing."""
    params = C.llama_model_default_params()
    params.vocab_only = True
    native = Native()
    start_backend()
    if not native.load(str(model).encode(), params):
        return "its model cannot be loaded"
    try:
        loaded = Projector(read_projector(projector), native, threads=1, gpu=False)
        for chunk in loaded.tokenize(check_image(grey_image())):
            if isinstance(chunk, Chunk):
                loaded.compute(chunk)
    except GgufSpecError as error:
        return error.message.partition(": ")[2] or error.message
    return ""


def grey_image() -> bytes:
    """Return a BMP image."""
    pixels = bytes([128]) * (3 * _SIDE * _SIDE)
    head = struct.pack("<IiiHHIIiiII", 40, _SIDE, _SIDE, 1, 24, 0, len(pixels), 2835, 2835, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(pixels), 0, 0, 54) + head + pixels


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(encode_one(*map(Path, sys.argv[1:3])))}\n")
