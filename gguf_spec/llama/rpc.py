"""llama.cpp's RPC backend: devices of other processes or machines, and the worker that lends one.

llama.cpp's protocol has neither authentication nor encryption, and a lost worker aborts the process
that uses it (`llama.remote`).
"""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import InvalidOptionError, WorkerError
from .bindings import C
from .ggml import call

BUILD = "GGUF_SPEC_BUILD_RPC=1 scripts/run"
# ggml_backend_dev_type
_CPU, _GPU, _INTEGRATED_GPU = 0, 1, 2
# seconds to wait for a connection
_CONNECT_S = 5.0


def has_rpc() -> bool:
    """Return whether this build of llama.cpp has the RPC backend."""
    return bool(C.llama_supports_rpc())


def has_gpu() -> bool:
    """Return whether there is a GPU; a build with the RPC backend claims it in any case."""
    return bool(_device(_GPU) or _device(_INTEGRATED_GPU))


def parse_workers(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of workers from an argument of `load`.

    Raises:
        InvalidOptionError: An address has another form than `HOST:PORT`, or this build of llama.cpp
            lacks the RPC backend.
    """
    workers = (given,) if isinstance(given, str) else tuple(given)
    for one in workers:
        split_address(one, "rpc")
    if workers and not has_rpc():
        raise no_rpc("rpc", ", ".join(workers))
    return workers


def no_rpc(option: str, value: object) -> InvalidOptionError:
    """Return the error for a build of llama.cpp without the RPC backend."""
    return InvalidOptionError(
        option,
        value,
        "omitted: this build of llama.cpp has no RPC backend",
        f"build one in a clone: {BUILD}.",
    )


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
    return [one for one in workers if not _accepts(one)]


def check_workers(workers: Sequence[str]) -> None:
    """Check that all workers accept a connection; llama.cpp would abort the process.

    Raises:
        WorkerError: Some do not.
    """
    if lost := unreachable(workers):
        raise WorkerError(lost, f"no worker answers at {' and '.join(lost)}.")


def _accepts(worker: str) -> bool:
    try:
        socket.create_connection(split_address(worker, "rpc"), _CONNECT_S).close()
    except OSError:
        return False
    return True


def devices(workers: Iterable[str]) -> Any:
    """Connect to workers and return their devices as an array for `llama_model_params.devices`.

    It aborts the process if a worker cannot be reached.
    """
    registry = call("ggml_backend_reg_by_name", b"RPC")
    address = call("ggml_backend_reg_get_proc_address", registry, b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(address)
    found = []
    for worker in workers:
        server = add(worker.encode())
        call("ggml_backend_register", server, result=None)
        count = call("ggml_backend_reg_dev_count", server, result=ctypes.c_size_t)
        found += [call("ggml_backend_reg_dev_get", server, i) for i in range(count)]
    return (ctypes.c_void_p * (len(found) + 1))(*found, None)


def serve(endpoint: str, threads: int) -> None:
    """Lend the GPU of this machine, or its CPU, until the process ends."""
    device = _device(_GPU) or _device(_CPU)
    registry = call("ggml_backend_reg_by_name", b"RPC")
    address = call("ggml_backend_reg_get_proc_address", registry, b"ggml_backend_rpc_start_server")
    size, pointers = ctypes.c_size_t, ctypes.c_void_p * 1
    start = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, size, size, ctypes.c_void_p)
    start(address)(endpoint.encode(), None, threads, 1, pointers(device))


def _device(kind: int) -> Any:
    return call("ggml_backend_dev_by_type", kind)
