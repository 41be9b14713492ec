"""Says where `gguf_spec.trim` has gone: `plugins/gguf-spec-trim`."""

from .errors import MovedError

raise MovedError("gguf_spec.trim")
