"""A target whose layers are on devices of other processes or machines (llama.cpp's RPC).

llama.cpp aborts the process when a worker is lost. So it runs in a child process (`child.py`), and
this process gets a `WorkerError`. The vocabulary is loaded in this process too, so only calls about
the weights and the context go to the child, through a pipe.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partialmethod
from multiprocessing.connection import Connection
from typing import IO, Any

import numpy as np

from gguf_spec.errors import InvalidOptionError, WorkerError
from gguf_spec.llama.backend import without_signals
from gguf_spec.llama.bindings import C, call
from gguf_spec.llama.devices import CPU_KIND, GPU_KIND, first_device, has_rpc
from gguf_spec.llama.log import add_lines
from gguf_spec.llama.native import N_BATCH, Names, Native, TokenBatch, keep
from gguf_spec.llama.options import Placement
from gguf_spec.system import subprogram

BUILD = "GGUF_SPEC_BUILD_RPC=1 scripts/run --version"
# seconds to wait for a connection
_CONNECT_S = 5.0
# seconds that the workers have to answer the child
_ANSWER_S = 20.0
# seconds for the child to end by itself
_END_S = 5.0


def parse_workers(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of workers from an argument of `load`.

    Raises:
        InvalidOptionError: An address has another form than `HOST:PORT`, or this build of llama.cpp
            lacks the RPC backend.
    """
    workers = (given,) if isinstance(given, str) else tuple(given)
    for one in workers:
        split_address(one, "rpc")
    if workers:
        check_rpc("rpc", ", ".join(workers))
    return workers


def check_rpc(option: str, value: object) -> None:
    """Reject an option if this build of llama.cpp has no RPC backend.

    Raises:
        InvalidOptionError: It has none.
    """
    if sys.platform == "win32":
        fact = "workers cannot be used on Windows."
        raise InvalidOptionError(option, value, hint="use Linux or macOS.", message=fact)
    if not has_rpc():
        fact, hint = (
            "this build of llama.cpp has no RPC backend.",
            f"build one in a clone: {BUILD}.",
        )
        raise InvalidOptionError(option, value, hint=hint, message=fact)


def split_address(address: str, option: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`.

    Raises:
        InvalidOptionError: It has another form.
    """
    host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    is_port = port.isascii() and port.isdecimal() and 0 < int(port) < 65536
    if not (host and ":" not in host and is_port):
        raise InvalidOptionError(option, address, "HOST:PORT, such as 127.0.0.1:50052")
    return host, int(port)


def unreachable(workers: Iterable[str]) -> list[str]:
    """Return the workers that accept no connection."""
    lost = []
    for one in workers:
        try:
            socket.create_connection(split_address(one, "rpc"), _CONNECT_S).close()
        except OSError:
            lost.append(one)
    return lost


def connect(workers: Sequence[str], shows_log: bool) -> RemoteNative:
    """Return the object for the weights and the first context of a model on workers.

    Args:
        workers: Their addresses.
        shows_log: Whether llama.cpp's log goes to stderr.

    Raises:
        WorkerError: A worker does not answer.
        FrozenAppError: This process cannot start a child.
    """
    if lost := unreachable(workers):  # llama.cpp would abort the child
        raise WorkerError(lost, f"no worker answers at {' and '.join(lost)}.")
    return RemoteNative(Child(workers, shows_log))


def serve(endpoint: str, threads: int) -> None:
    """Lend the GPU of this machine, or its CPU, until the process ends."""
    device = first_device(GPU_KIND) or first_device(CPU_KIND)
    text, size, pointer = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_void_p
    start = rpc_function("start_server", None, (text, text, size, size, pointer))
    start(endpoint.encode(), None, threads, 1, (pointer * 1)(device))


def rpc_function(name: str, result: Any, arguments: Sequence[Any]) -> Any:
    registry = call("ggml_backend_reg_by_name", b"RPC")
    symbol = f"ggml_backend_rpc_{name}".encode()
    address = call("ggml_backend_reg_get_proc_address", registry, symbol)
    return ctypes.CFUNCTYPE(result, *arguments)(address)


class PackedBatch(TokenBatch):
    """The tokens of one pass, which another process can get."""

    def packed(self) -> Any:
        """Return the tokens of the pass as plain data, for `unpack` in another process."""
        n = self._batch.n_tokens
        arrays = (self._tokens, self._positions, self._outputs)
        return [array[:n].tobytes() for array in arrays], [ids[0] for ids in self._sequences[:n]]

    def unpack(self, packed: Any) -> None:
        """Write the tokens of a pass from the result of `packed`."""
        texts, sequences = packed
        self._batch.n_tokens = n = len(sequences)
        arrays = (self._tokens, self._positions, self._outputs)
        for array, text in zip(arrays, texts, strict=True):
            array[:n] = np.frombuffer(text, array.dtype)
        for ids, sequence in zip(self._sequences, sequences, strict=False):
            ids[0] = sequence


class RemoteNative(Native):
    """The native objects of a model whose weights and contexts are in a child process."""

    def __init__(self, child: Child, weights: RemoteNative | None = None) -> None:
        """Create the object of a context in the child.

        Args:
            weights: Another object whose weights are used; None for the first one, with which the
                child ends.
        """
        super().__init__(weights)
        self._child, self._place = child, 0
        self._end: weakref.finalize[..., RemoteNative]
        if weights is None:
            self._end = weakref.finalize(self, child.end)
        else:
            self._place = int(child.call(0, "share"))
            # The next call informs the child: this may run inside of a call.
            self._end = weakref.finalize(self, child.unused.append, self._place)

    def _give_up(self) -> object:
        self._end.detach()  # the child process belongs to the parent
        return super()._give_up()

    def share(self) -> RemoteNative:
        return RemoteNative(self._child, self)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._child.call(self._place, name, *arguments)

    # Methods whose arguments and results are copied.
    adapt: Any = partialmethod(_call, "adapt")
    use_adapters: Any = partialmethod(_call, "use_adapters")
    rows: Any = partialmethod(_call, "rows")
    embedding: Any = partialmethod(_call, "embedding")
    token_embeddings: Any = partialmethod(_call, "token_embeddings")

    def load(
        self, path: bytes, params: Any, placement: Placement | None = None, names: Names = ()
    ) -> bool:
        """Load the vocabulary here and the weights in the child."""
        of_vocabulary = C.llama_model_default_params()
        of_vocabulary.vocab_only = True
        if not super().load(path, of_vocabulary):
            return False
        tell = params.progress_callback
        layers = (params.n_gpu_layers, placement, names)
        return bool(self._child.load(path, layers, lambda now: bool(tell(now, None))))

    def open(self, params: Any, n_batch: int = N_BATCH) -> bool:
        """Create the context in the child, and the batch here."""
        if not self._call("open", bytes(params), n_batch):
            return False
        keep(self._batches, C.llama_batch_init, n_batch, 0, 1)
        self.batch: PackedBatch = PackedBatch(self._batches[0], n_batch)
        return True

    def model(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._call("model", function.__name__, *arguments)

    def context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the context in the child; states are copied."""
        if function is C.llama_state_seq_get_data:
            buffer, size, sequence = arguments
            state = self._call("state", size, sequence)
            ctypes.memmove(buffer, state, len(state))
            return len(state)
        if function is C.llama_state_seq_set_data:
            buffer, size, sequence = arguments
            return self._call("restore", ctypes.string_at(buffer, size), sequence)
        return self._call("context", function.__name__, *arguments)

    def cache(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._call("cache", function.__name__, *arguments)

    def decode(self) -> int:
        self.has_copies = False
        return int(self._call("decode", self.batch.packed()))


class Child:
    """The child process and the pipe to it.

    Attributes:
        unused: Contexts that are no longer in use; the child frees them with the next call.
    """

    def __init__(self, workers: Sequence[str], shows_log: bool) -> None:
        """Start the child.

        Args:
            workers: Addresses of the workers, `HOST:PORT` each.
            shows_log: Whether llama.cpp's log goes to stderr.

        Raises:
            WorkerError: The workers do not answer.
            FrozenAppError: This process cannot start a child.
        """
        self._workers, self._lock = tuple(workers), threading.Lock()
        self.unused: list[int] = []
        self._on_progress: Callable[[float], bool] = lambda _: True
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- `end` closes it
        self._last_line = ""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                subprogram.command(
                    "gguf_spec_workers.child", str(theirs.fileno()), str(int(shows_log)), *workers
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if shows_log else self._errors,
                start_new_session=True,  # Ctrl-C reaches only this process
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # no debugger when it aborts
            )
        self._pipe = Connection(ours.detach())
        names = " and ".join(self._workers)
        try:
            answered = self._pipe.poll(_ANSWER_S)
            if answered:
                self._pipe.recv()
        except (EOFError, OSError):
            self.end()
            fact = f"the workers at {names} cannot be used ({self._last_line})."
            raise WorkerError(self._workers, fact) from None
        if not answered:
            self.end(0)
            raise WorkerError(
                self._workers,
                f"the workers at {names} do not answer; a worker serves one program at a time.",
            )

    def load(self, path: bytes, layers: Any, on_progress: Callable[[float], bool]) -> Any:
        """Load the weights; `on_progress` gets the loaded share and returns whether to go on."""
        before, self._on_progress = self._on_progress, on_progress
        try:
            return self.call(0, "load", path, *layers)
        finally:
            self._on_progress = before

    def call(self, place: int, name: str, *arguments: Any) -> Any:
        """Call a method of the child and return its result.

        Args:
            place: The context that it is about; 0 is the first one.

        Raises:
            WorkerError: The child has ended.
        """
        results: list[Any] = []

        def exchange() -> None:
            try:
                with self._lock:
                    results.append(self._exchange(place, name, arguments))
            except BaseException as error:
                results.append(error)

        # An interrupt in the middle would leave half of a message in the pipe.
        without_signals(exchange)
        if isinstance(results[0], BaseException):
            raise results[0]
        return results[0]

    def _exchange(self, place: int, name: str, arguments: tuple[Any, ...]) -> Any:
        try:
            unused = [self.unused.pop() for _ in [*self.unused]]
            self._pipe.send((place, name, arguments, unused))
            while True:
                kind, value, lines = self._pipe.recv()
                add_lines(lines)
                if kind == "result":
                    return value
                self._pipe.send(self._on_progress(value))
        except (EOFError, OSError):
            raise self._lost() from None

    def _lost(self) -> WorkerError:
        self.end()
        lost = unreachable(self._workers)
        names = " and ".join(lost or self._workers)
        fact = f"no worker answers at {names} any more" if lost else f"a worker at {names} failed"
        reason = f" ({self._last_line})" if self._last_line else ""
        return WorkerError(
            lost or self._workers, f"the model is lost: {fact}{reason}; load it again."
        )

    def end(self, patience: float = _END_S) -> None:
        """End the child, which also ends when its pipe is closed. Further calls have no effect."""
        if self._errors.closed:
            return
        self._pipe.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with self._errors as file:
            file.seek(0)
            lines = file.read().decode("utf-8", errors="replace").split("\n")
        # without the source file at the start of the line
        texts = [line.rpartition(": ")[2].strip() for line in lines if line.strip()]
        self._last_line = texts[-1][:200].rstrip(".") if texts else ""
