"""Worker of llama.cpp's RPC backend: lends this machine to a model that another one runs."""

from __future__ import annotations

import ipaddress
import os
import signal
import socket
from collections.abc import Callable

from gguf_spec.errors import GgufSpecError, InvalidOptionError, Text
from gguf_spec.llama.backend import start_backend
from gguf_spec.llama.options import ContextOptions, physical_cores

from . import remote


def run_worker(
    listen: str = "127.0.0.1:50052",
    *,
    threads: int | None = None,
    insecure_listen_anywhere: bool = False,
    on_ready: Callable[[str], object] | None = None,
) -> None:
    """Serve one program at a time until a signal ends this process.

    It lends the first GPU that llama.cpp finds, otherwise the CPU. Call it in the main thread of a
    process of its own: the signals SIGINT and SIGTERM end the process at once.

    Args:
        listen: Address, `HOST:PORT`.
        threads: Number of threads; None selects the number of physical cores.
        insecure_listen_anywhere: Allow an address that other machines can reach.
        on_ready: Called with the address before the worker listens.

    Raises:
        InvalidOptionError: The address is not valid, other machines can reach it, or this build of
            llama.cpp has no RPC backend.
        GgufSpecError: The address is in use or does not belong to this machine.
    """
    ContextOptions(threads=threads)  # checks the number
    host, port = remote.split_address(listen, "listen")
    try:  # llama.cpp takes no other address
        host = str(socket.getaddrinfo(host, port, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError):
        raise InvalidOptionError("listen", listen, "an IPv4 address of this machine") from None
    if not (insecure_listen_anywhere or ipaddress.ip_address(host).is_loopback):
        raise InvalidOptionError(
            "listen",
            listen,
            "an address that only this machine can reach, as anyone who reaches it controls the "
            "process",
            Text(
                "listen at 127.0.0.1 and forward the port: ssh -L 50052:127.0.0.1:50052 HOST. In a "
                "network of trusted machines only: {insecure_listen_anywhere=True}."
            ),
        )
    remote.check_rpc("listen", listen)
    _check_free(host, port)
    start_backend()
    for number in (signal.SIGINT, signal.SIGTERM):  # no Python code runs while it serves
        if os.getpid() != 1:  # which has no default action
            signal.signal(number, signal.SIG_DFL)
    endpoint = f"{host}:{port}"
    if on_ready:
        on_ready(endpoint)
    remote.serve(endpoint, threads or physical_cores())


def _check_free(host: str, port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except OSError as error:
            raise GgufSpecError(
                f"the worker cannot listen at {host}:{port}: {error.strerror or error}.",
                Text("use another port in {listen}."),
            ) from None
