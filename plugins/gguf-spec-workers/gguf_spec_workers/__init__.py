"""Layers of a model on other machines; from the distribution `gguf-spec-workers`.

With llama.cpp's RPC a worker holds a part of the weights of a model that is loaded elsewhere with
`gguf_spec.load(..., rpc=["HOST:PORT"])`. llama.cpp's protocol has neither authentication nor
encryption: anyone who reaches the port controls the process.
"""

from .remote import connect as connect
from .remote import parse_workers as parse_workers
from .remote import unreachable as unreachable
from .worker import run_worker

__all__ = ["run_worker"]  # the others are for gguf-spec
