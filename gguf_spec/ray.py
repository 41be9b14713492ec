"""Says where `gguf_spec.ray` has gone: `plugins/gguf-spec-ray`."""

from .errors import MovedError

raise MovedError("gguf_spec.ray")
