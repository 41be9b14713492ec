"""Says where `gguf_spec.worker` has gone: `plugins/gguf-spec-workers`."""

from .errors import MovedError

raise MovedError("gguf_spec.worker", "gguf_spec_workers")
