"""Build backend of this package (PEP 517): hatchling's, with the llama-cpp-python that fits this machine, and our kernels.

`pip install .` and `uv tool install .` cannot be told by the package that needs it where a dependency comes from. So the metadata that is built here
names a file instead of an index: the wheel that scripts/run installs too, which `_llama_wheel` makes once and keeps in the user's cache.
The plain name `llama-cpp-python` stays

- where the environment already has one, such as a build for a GPU,
- with GGUF_SPEC_BUILD_LLAMA=0, where the installer is to find one,
- for wheels that are built to be published (`python -m hatchling build`, scripts/build/wheels.py).

The kernels (gguf_spec/kernels/) are compiled in place, and the wheel is for this kind of machine then.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

from hatchling import build as hatchling
from hatchling.build import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
)

# Hooks of PEP 517; those of an editable wheel and a wheel are below.
__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]
NAME = "llama-cpp-python"
SWITCH = "GGUF_SPEC_BUILD_LLAMA"  # `native`, `ready-made`, `images`, `gpu`: _llama_wheel.py
# read by metadata_hook.py
REQUIREMENT = "GGUF_SPEC_LLAMA_REQUIREMENT"
WITH_KERNELS = "GGUF_SPEC_WHEEL_WITH_KERNELS"


def build_wheel(directory, config_settings=None, metadata_directory=None):
    _compile_kernels()
    os.environ[WITH_KERNELS] = "1"
    with _compiled_llama():
        return hatchling.build_wheel(directory, config_settings, metadata_directory)


def build_editable(directory, config_settings=None, metadata_directory=None):
    _compile_kernels()
    with _compiled_llama():
        return hatchling.build_editable(directory, config_settings, metadata_directory)


# hatchling leaves these out where pip asks: pip then reads the metadata from the wheel
if hasattr(hatchling, "prepare_metadata_for_build_wheel"):

    def prepare_metadata_for_build_wheel(directory, config_settings=None):
        with _compiled_llama():
            return hatchling.prepare_metadata_for_build_wheel(directory, config_settings)

    def prepare_metadata_for_build_editable(directory, config_settings=None):
        with _compiled_llama():
            return hatchling.prepare_metadata_for_build_editable(directory, config_settings)


def _compile_kernels() -> None:
    import _llama_wheel as llama_wheel

    which = os.environ.get(llama_wheel.KERNELS_SWITCH, "")
    if which == "0":
        return
    try:
        with llama_wheel.new_log("kernels.log").open("wb") as log:
            llama_wheel.get_kernels("all" if which == "all" else "best", _pip(), log)
    except OSError as error:
        print(f"Warning: the kernels were not compiled: {error}.", file=sys.stderr)


@contextlib.contextmanager
def _compiled_llama():
    """Make metadata_hook.py name the compiled wheel, in this block."""
    if os.environ.get(SWITCH) == "0" or _is_installed():
        yield
        return
    os.environ[REQUIREMENT] = f"{NAME} @ {_wheel().as_uri()}"
    try:
        with _without_sdist_metadata():
            yield
    finally:
        del os.environ[REQUIREMENT]


@contextlib.contextmanager
def _without_sdist_metadata():
    """Hide PKG-INFO, in this block: hatchling takes the dependencies of an unpacked sdist from it and does not call metadata_hook.py."""
    path = Path("PKG-INFO")
    if not path.exists():
        yield
        return
    hidden = path.rename("PKG-INFO.hidden")
    try:
        yield
    finally:
        hidden.rename(path)


def _is_installed() -> bool:
    """Return whether the environment of this Python has llama-cpp-python; pip's isolated build hides it from imports."""
    folders = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return any(importlib.metadata.distributions(name=NAME, path=sorted(folders)))


def _wheel() -> Path:
    """Return the wheel for this machine; end with a message where it cannot be made."""
    import _llama_wheel as llama_wheel

    try:
        settings = llama_wheel.build_settings(llama_wheel.way(), {})
        with llama_wheel.new_log("install.log").open("wb") as log:
            return llama_wheel.get_wheel_or_compile(settings, _pip(), log)[0]
    except llama_wheel.Problem as problem:
        sys.exit(f"Error: {problem}\nHint: {problem.hint}")
    except OSError as error:
        sys.exit(
            f"Error: {error}.\nHint: is the disk full, or the folder not yours? XDG_CACHE_HOME can name another cache folder."
        )


def _pip() -> list:
    """Return the command that starts the build environment's pip, without that environment's paths."""
    found = importlib.util.find_spec("pip")
    if found is None:
        sys.exit(
            "Error: pip is not installed.\nHint: install it, or leave out --no-build-isolation."
        )
    folder = Path(found.origin).parent
    return [sys.executable, "-I", folder, "--disable-pip-version-check"]
