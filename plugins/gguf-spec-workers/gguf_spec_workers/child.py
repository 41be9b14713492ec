"""The child process of `remote.py`: it holds the weights and contexts of a model on workers.

It runs `python -m gguf_spec_workers.child FD VERBOSE WORKER...`, answers the calls that come
through the pipe FD one by one, and ends when the pipe is closed.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from gguf_spec.llama.bindings import C, call
from gguf_spec.llama.log import keep_lines, log, verbose
from gguf_spec.llama.native import Native
from gguf_spec.llama.options import Placement

from .remote import PackedBatch, rpc_function

# seconds between two looks at the parent, whose end a pass would not notice
_LOOK_S = 1.0


class _Served:
    """Contexts of the child, and methods that the parent calls by name, each about one of them."""

    def __init__(self, pipe: Connection, workers: Iterable[str]) -> None:
        """Connect to the workers; this aborts the process if one cannot be reached."""
        add, found = rpc_function("add_server", ctypes.c_void_p, [ctypes.c_char_p]), []
        for worker in workers:
            server = add(worker.encode())
            call("ggml_backend_register", server, result=None)
            count = call("ggml_backend_reg_dev_count", server, result=ctypes.c_size_t)
            found += [call("ggml_backend_reg_dev_get", server, i) for i in range(count)]
        # an array for `llama_model_params.devices`
        self._pipe, self._devices = pipe, (ctypes.c_void_p * (len(found) + 1))(*found, None)
        self._natives, self._n_made, self._place = {0: Native()}, 1, 0

    @property
    def _native(self) -> Native:
        return self._natives[self._place]

    def answer(self, place: int, name: str, arguments: Sequence[Any], unused: Iterable[int]) -> Any:
        """Return the result of a method of this class, or else of `Native`.

        Args:
            place: Number of the context.
            name: Name of the method. For `model`, `context` and `cache` the first argument is the
                name of a function of llama.cpp.
            arguments: Its arguments.
            unused: Further contexts to free first.
        """
        for one in unused:
            del self._natives[one]
        self._place = place
        if name in ("model", "context", "cache"):
            arguments = (getattr(C, arguments[0]), *arguments[1:])
        return getattr(self if hasattr(type(self), name) else self._native, name)(*arguments)

    def share(self) -> int:
        """Return the number of a further context on the same weights."""
        self._natives[self._n_made] = self._native.share()
        self._n_made += 1
        return self._n_made - 1

    def load(
        self, path: bytes, n_layers: int, placement: Placement | None, names: list[str]
    ) -> bool:
        params = C.llama_model_default_params()
        params.n_gpu_layers, params.use_extra_bufts = n_layers, False
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)

        def tell(share: float, _data: object) -> bool:
            self._pipe.send(("progress", share, []))
            return bool(self._pipe.recv())

        params.progress_callback = callback = C.llama_progress_callback(tell)
        loaded = self._native.load(path, params, placement, names)
        del callback
        return loaded

    def open(self, params: bytes, n_batch: int) -> bool:
        kind = type(C.llama_context_default_params())
        if not self._native.open(kind.from_buffer_copy(params), n_batch):
            return False
        self._native.batch = PackedBatch(self._native._batches[0], n_batch)
        return True

    def state(self, size: int, sequence: int) -> bytes:
        buffer = (ctypes.c_uint8 * size)()
        n = self._native.context(C.llama_state_seq_get_data, buffer, size, sequence)
        return bytes(buffer[:n])

    def restore(self, state: bytes, sequence: int) -> int:
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return int(self._native.context(C.llama_state_seq_set_data, buffer, len(state), sequence))

    def decode(self, packed: Any) -> int:
        batch = self._native.batch
        assert isinstance(batch, PackedBatch)
        batch.unpack(packed)
        return self._native.decode()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main(fd: str, is_verbose: str, *workers: str) -> None:
    """Answer calls until the pipe is closed."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(int(fd))
    if int(is_verbose):
        verbose.set()
    keep_lines()
    C.llama_backend_init()
    model = _Served(pipe, workers)
    pipe.send("ready")
    while True:
        try:
            call = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        log.clear()
        value = model.answer(*call)
        pipe.send(("result", value, list(log)))


if __name__ == "__main__":
    main(*sys.argv[1:])
