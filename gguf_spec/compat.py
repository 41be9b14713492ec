"""Says where `gguf_spec.compat` has gone: `plugins/gguf-spec-compat`."""

from .errors import MovedError

raise MovedError("gguf_spec.compat")
