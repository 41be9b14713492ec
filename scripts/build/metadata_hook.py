"""Hooks of hatchling for what build_backend.py decides: the dependency llama-cpp-python, and the kernels."""

import os
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LIBRARY = "gguf_spec/kernels/libgguf_spec_kernels.so"


class Dependencies(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        llama = os.environ.get("GGUF_SPEC_LLAMA_REQUIREMENT", "llama-cpp-python")
        metadata["dependencies"] = [llama, *self.config["dependencies"]]


class Kernels(BuildHookInterface):
    def initialize(self, _version: str, build_data: dict) -> None:
        library = Path(self.root, LIBRARY)
        if os.environ.get("GGUF_SPEC_WHEEL_WITH_KERNELS") and library.exists():
            build_data["force_include"][str(library)] = LIBRARY
            platform = (
                os.environ.get("GGUF_SPEC_WHEEL_PLATFORM") or sysconfig.get_platform()
            )  # the first one: wheels.py
            build_data.update(
                pure_python=False, tag=f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
            )
