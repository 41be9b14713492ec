"""Hooks of hatchling: the dependency llama-cpp-python and the kernels, as build_backend.py decides, and the manual page."""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LIBRARY = "gguf_spec/kernels/libgguf_spec_kernels.so"


class Dependencies(MetadataHookInterface):
    def update(self, metadata: dict) -> None:
        llama = os.environ.get("GGUF_SPEC_LLAMA_REQUIREMENT", "llama-cpp-python")
        metadata["dependencies"] = [llama, *self.config["dependencies"]]


sys.path.insert(0, str(Path(__file__).parent))
from manual import manual  # noqa: E402 -- found by the path set above


class Files(BuildHookInterface):
    def initialize(self, _version: str, build_data: dict) -> None:
        self._made = tempfile.TemporaryDirectory()
        page = Path(self._made.name, "gguf-spec.1")
        commands = Path(self.root, "docs", "cli.md").read_text(encoding="utf-8")
        page.write_text(manual(commands, self.metadata.version), encoding="utf-8")
        build_data["shared_data"][str(page)] = "share/man/man1/gguf-spec.1"
        library = Path(self.root, LIBRARY)
        if os.environ.get("GGUF_SPEC_WHEEL_WITH_KERNELS") and library.exists():
            build_data["force_include"][str(library)] = LIBRARY
            platform = (
                os.environ.get("GGUF_SPEC_WHEEL_PLATFORM") or sysconfig.get_platform()
            )  # the first one: wheels.py
            build_data.update(
                pure_python=False, tag=f"py3-none-{platform.replace('-', '_').replace('.', '_')}"
            )
