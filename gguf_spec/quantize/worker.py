"""llama.cpp's quantiser as a program, in a separate process.

The quantiser is one long call that cannot be interrupted, and it aborts the process on some files.
Run it as `python -m gguf_spec.quantize.worker SOURCE PART NUMBER THREADS`. It writes lines to
stdout: `size BYTES` before it starts, `at N TOTAL` at the start of each tensor, `fallback N` for
the number of tensors with another type, `failed WHY` on an error. When its stdin is closed it
removes the unfinished file and ends, so it does not outlive its parent process.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
import threading
from pathlib import Path

from ..llama.bindings import C

# lines of llama.cpp's log
_TENSOR = re.compile(r"\[ *(\d+)/ *(\d+)\]")
_SIZE = re.compile(r"quant size += +([\d.]+) MiB")
_FALLBACK = re.compile(r"(\d+) of \d+ tensor\(s\) required fallback")
# llama.cpp's log level of an error
_ERROR = 4
# bytes; size of llama.cpp's buffer
_BUFFER_BYTES = 1 << 30


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class _Log:
    """Converts llama.cpp's log to lines for the parent process."""

    def __init__(self) -> None:
        self.trying, self.size_mib = True, 0.0

    def write(self, level: int, text: bytes, _data: object) -> None:
        line = text.decode("utf-8", errors="replace").strip()
        if level == _ERROR and line.strip("="):
            _say("failed", line.rpartition("failed to quantize: ")[2].replace("\n", " "))
        elif found := _SIZE.search(line):
            self.size_mib = float(found[1])
        elif self.trying:
            pass
        elif found := _TENSOR.match(line):
            _say("at", found[1], found[2])
        elif found := _FALLBACK.search(line):
            _say("fallback", found[1])


def _end_with_parent(part: Path) -> None:
    # not through sys.stdin, whose lock must be free at the end of Python
    while os.read(0, 1):
        pass
    with contextlib.suppress(OSError):
        part.unlink()
    os._exit(1)


def main(source: str, part: str, number: str, threads: str) -> int:
    """Quantise `source` into `part` and return the exit code: 0 on success."""
    threading.Thread(target=_end_with_parent, args=(Path(part),), daemon=True).start()
    log = _Log()
    callback = C.llama_log_callback(log.write)
    C.llama_log_set(callback, ctypes.c_void_p(0))
    C.llama_backend_init()
    params = C.llama_model_quantize_default_params()
    params.ftype, params.nthread = int(number), int(threads)
    params.allow_requantize, params.max_buf_size = True, _BUFFER_BYTES
    # a dry run first, for the size
    for trying in (True, False):
        params.dry_run = log.trying = trying
        files = os.fsencode(source), os.fsencode(part)
        if C.llama_model_quantize(*files, ctypes.byref(params)) != 0:
            return 1
        if trying:
            _say("size", int(log.size_mib * 2**20))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
