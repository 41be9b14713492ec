"""A target whose layers are on workers: llama.cpp runs in a child process of its own.

llama.cpp aborts the process when a worker is lost. Here that is the child; this process gets a
`WorkerError`. The vocabulary is loaded in this process too, so only calls about the weights and the
context go to the child (`llama.remote_child`).
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
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import WorkerError
from .backend import apart
from .bindings import C
from .log import add_lines
from .native import N_BATCH, Batch, Names, Native, _keep
from .placement import Placement
from .rpc import unreachable

# seconds that the workers have to answer the child
_ANSWER_S = 20.0
# seconds for the child to end by itself
_END_S = 5.0


class RemoteNative(Native):
    """The native objects of a model whose weights and contexts are in a child process."""

    def __init__(self, child: _Child, weights: RemoteNative | None = None) -> None:
        """Create the object of a context in the child.

        Args:
            child: The child.
            weights: Another object whose weights are used; None for the first one, with which the
                child ends.
        """
        super().__init__(weights)
        self._child, self._place = child, 0
        if weights is None:
            weakref.finalize(self, child.end)
        else:
            self._place = int(child.call(0, "share"))
            # The child is told with the next call: this may run inside of one.
            weakref.finalize(self, child.unused.append, self._place)

    @classmethod
    def start(cls, workers: Sequence[str], verbose: bool) -> RemoteNative:
        """Start the child.

        Args:
            workers: Addresses of the workers, `HOST:PORT` each.
            verbose: Whether llama.cpp's log goes to stderr.

        Raises:
            WorkerError: The workers do not answer.
        """
        return cls(_Child(workers, verbose))

    def share(self) -> RemoteNative:
        """Return an object for a further context on the same weights."""
        return RemoteNative(self._child, self)

    def _call(self, name: str, *arguments: Any) -> Any:
        return self._child.call(self._place, name, *arguments)

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

    def adapt(self, path: bytes) -> bool:
        """Load an adapter in the child."""
        return bool(self._call("adapt", path))

    def open(self, params: Any, n_sequences: int, n_batch: int = N_BATCH) -> bool:
        """Create the context in the child, and the batch here."""
        if not self._call("open", bytes(params), n_sequences, n_batch):
            return False
        _keep(self._batches, C.llama_batch_init, n_batch, 0, n_sequences)
        self.batch = Batch(self._batches[0], n_batch)
        return True

    def use_adapters(self, scales: Sequence[float]) -> None:
        """Apply all adapters in the child."""
        self._call("use_adapters", list(scales))

    def model(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the model in the child."""
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
        """Call a function of the cache in the child."""
        return self._call("cache", function.__name__, *arguments)

    def decode(self) -> int:
        """Decode the batch in the child and return llama.cpp's code."""
        self.has_copies = False
        return int(self._call("decode", self.batch.packed()))

    def rows(self, first: int, n_rows: int, n_vocab: int) -> NDArray[np.float32]:
        """Return a copy of rows of logits."""
        values = bytearray(self._call("rows", first, n_rows, n_vocab))
        return np.frombuffer(values, np.float32).reshape(n_rows, n_vocab)

    def embedding(self, sequence: int, n_values: int) -> NDArray[np.float32]:
        """Return a copy of the pooled embedding of a sequence."""
        return np.frombuffer(bytearray(self._call("embedding", sequence, n_values)), np.float32)

    def token_embeddings(self, n_tokens: int, n_values: int) -> NDArray[np.float32]:
        """Return a copy of the embeddings of the batch's tokens, in their order."""
        values = bytearray(self._call("token_embeddings", n_tokens, n_values))
        return np.frombuffer(values, np.float32).reshape(n_tokens, -1)


class _Child:
    """The child process and the pipe to it.

    Attributes:
        unused: Contexts that nothing uses any more; the child frees them with the next call.
    """

    def __init__(self, workers: Sequence[str], verbose: bool) -> None:
        self._workers, self._lock = tuple(workers), threading.Lock()
        self.unused: list[int] = []
        self._on_progress: Callable[[float], bool] = lambda _: True
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- `end` closes it
        self._last_words = ""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "gguf_spec.llama.remote_child", str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(int(verbose)), *workers],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if verbose else self._errors,
                start_new_session=True,  # Ctrl-C reaches only this process
                env=os.environ | {"GGML_NO_BACKTRACE": "1"},  # no debugger when it aborts
            )
        self._pipe = Connection(ours.detach())
        self._wait_for_workers()

    def _wait_for_workers(self) -> None:
        try:
            answered = self._pipe.poll(_ANSWER_S)
            if answered:
                self._pipe.recv()
                return
        except (EOFError, OSError):
            raise self._unusable() from None
        self.end(0)
        names = " and ".join(self._workers)
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
            name: Name of the method.
            arguments: Its arguments.

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
        on_main = threading.current_thread() is threading.main_thread()
        apart(exchange) if on_main else exchange()
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

    def _unusable(self) -> WorkerError:
        """Return the error for a child that ended before anything was loaded."""
        self.end()
        names = " and ".join(self._workers)
        return WorkerError(
            self._workers, f"the workers at {names} cannot be used ({self._last_words})."
        )

    def _lost(self) -> WorkerError:
        """Return the error for a child that has ended."""
        self.end()
        lost = unreachable(self._workers)
        names = " and ".join(lost or self._workers)
        fact = f"no worker answers at {names} any more" if lost else f"a worker at {names} failed"
        reason = f" ({self._last_words})" if self._last_words else ""
        return WorkerError(
            lost or self._workers, f"the model is lost: {fact}{reason}; load it again."
        )

    def end(self, patience: float = _END_S) -> None:
        """End the child; it ends by itself when its pipe is closed. Further calls do nothing."""
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
        said = [line.rpartition(": ")[2].strip() for line in lines if line.strip()]
        self._last_words = said[-1][:200].rstrip(".") if said else ""
