"""`gguf-spec worker`: lend this machine to a model that another one runs."""

from __future__ import annotations

import os

import click

from .command import Command
from .options import table_option


@click.command(cls=Command)
@click.option(
    "--listen",
    default="127.0.0.1:50052",
    metavar="HOST:PORT",
    help="Address to listen on.",
)
@table_option("threads")
@click.option(
    "--insecure-listen-anywhere",
    is_flag=True,
    help="Allow an address that other machines can reach: anyone there controls the worker.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show only the address and errors.")
def worker(listen: str, threads: int | None, insecure_listen_anywhere: bool, quiet: bool) -> None:
    """Hold a part of a model that is too large for another machine.

    The other machine gives the address to --rpc. It needs the same build of llama.cpp. The protocol
    of llama.cpp has no authentication and no encryption, so forward the port:

    \b
    Examples:
      gguf-spec worker
      ssh -N -L 50052:127.0.0.1:50052 OTHER-MACHINE
      gguf-spec generate -m large.gguf --rpc 127.0.0.1:50052 "Why is the sky blue?"
    """
    from ..worker import run_worker

    def ready(address: str) -> None:
        click.echo(f"Listening at {address}")
        # llama.cpp writes to stdout
        os.dup2(os.open(os.devnull, os.O_WRONLY) if quiet else 2, 1)

    run_worker(
        listen,
        threads=threads,
        insecure_listen_anywhere=insecure_listen_anywhere,
        on_ready=ready,
    )
