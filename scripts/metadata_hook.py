"""The dependencies of this package in its metadata; build_backend.py can replace llama-cpp-python by a file."""

import os

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Dependencies(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        llama = os.environ.get("GGUF_SPEC_LLAMA_REQUIREMENT", "llama-cpp-python")
        metadata["dependencies"] = [llama, *self.config["dependencies"]]
