"""Child process that holds the weights and the context of a model whose layers are on workers.

Run it as `python -m gguf_spec.llama.remote_child FD VERBOSE WORKER...`; `llama.remote` does. It
answers the calls that come through the pipe FD one by one, and ends when the pipe is closed. A lost
worker aborts it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

from .bindings import C
from .log import keep_lines, log, verbose
from .native import Native
from .placement import Placement
from .rpc import devices

# seconds between two looks at the parent, whose end a pass would not notice
_LOOK_S = 1.0


class _Model:
    """Methods that the parent calls by name, each about one context.

    Attributes:
        place: Number of the context; 0 is the first one.
    """

    def __init__(self, pipe: Connection, workers: list[str]) -> None:
        self._pipe, self._devices = pipe, devices(workers)
        self._natives, self._n_made, self.place = {0: Native()}, 1, 0

    @property
    def _native(self) -> Native:
        return self._natives[self.place]

    def share(self) -> int:
        """Return the number of a further context on the same weights."""
        self._natives[self._n_made] = self._native.share()
        self._n_made += 1
        return self._n_made - 1

    def free(self, place: int) -> None:
        """Free a further context."""
        del self._natives[place]

    def load(
        self, path: bytes, n_layers: int, placement: Placement | None, names: list[str]
    ) -> bool:
        """Load the weights into the workers."""
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

    def adapt(self, path: bytes) -> bool:
        """Load an adapter."""
        return self._native.adapt(path)

    def open(self, params: bytes, n_sequences: int, n_batch: int) -> bool:
        """Create the context."""
        kind = type(C.llama_context_default_params())
        return self._native.open(kind.from_buffer_copy(params), n_sequences, n_batch)

    def use_adapters(self, scales: list[float]) -> None:
        """Apply all adapters."""
        self._native.use_adapters(scales)

    def model(self, name: str, *arguments: Any) -> Any:
        """Call a function of the model."""
        return self._native.model(getattr(C, name), *arguments)

    def context(self, name: str, *arguments: Any) -> Any:
        """Call a function of the context."""
        return self._native.context(getattr(C, name), *arguments)

    def cache(self, name: str, *arguments: Any) -> Any:
        """Call a function of the cache."""
        return self._native.cache(getattr(C, name), *arguments)

    def state(self, size: int, sequence: int) -> bytes:
        """Return the serialised cache of a sequence."""
        buffer = (ctypes.c_uint8 * size)()
        n = self._native.context(C.llama_state_seq_get_data, buffer, size, sequence)
        return bytes(buffer[:n])

    def restore(self, state: bytes, sequence: int) -> int:
        """Restore the cache of a sequence."""
        buffer = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        return int(self._native.context(C.llama_state_seq_set_data, buffer, len(state), sequence))

    def decode(self, packed: Any) -> int:
        """Decode a batch."""
        self._native.batch.unpack(packed)
        return self._native.decode()

    def rows(self, first: int, n_rows: int, n_vocab: int) -> bytes:
        """Return rows of logits."""
        return self._native.rows(first, n_rows, n_vocab).tobytes()

    def embedding(self, sequence: int, n_values: int) -> bytes:
        """Return the pooled embedding of a sequence."""
        return self._native.embedding(sequence, n_values).tobytes()

    def token_embeddings(self, n_tokens: int, n_values: int) -> bytes:
        """Return the embeddings of the batch's tokens."""
        return self._native.token_embeddings(n_tokens, n_values).tobytes()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    os._exit(1)


def main(fd: str, shows_log: str, *workers: str) -> None:
    """Answer calls until the pipe is closed."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    pipe = Connection(int(fd))
    if int(shows_log):
        verbose.set()
    keep_lines()
    C.llama_backend_init()
    model = _Model(pipe, list(workers))
    pipe.send("ready")
    while True:
        try:
            model.place, name, arguments, unused = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        log.clear()
        for place in unused:
            model.free(place)
        value = getattr(model, name)(*arguments)
        pipe.send(("result", value, list(log)))


if __name__ == "__main__":
    main(*sys.argv[1:])
