"""llama.cpp's library for images, libmtmd, which some builds of llama-cpp-python lack."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError
from .log import callback_of  # imports `bindings`


def mtmd(path: Path) -> Any:
    """Return the binding of libmtmd.

    Args:
        path: The projector that needs it.

    Raises:
        InvalidOptionError: This build of llama-cpp-python has no libmtmd.
    """
    found = _binding()
    if found is None:
        raise InvalidOptionError(
            "mmproj",
            str(path),
            "",
            "install llama-cpp-python again, without -DLLAVA_BUILD=OFF (in a clone: scripts/run).",
            message="this build of llama-cpp-python has no libmtmd, so it cannot read images.",
        )
    return found


def has_mtmd() -> bool:
    """Return whether this build can read images."""
    return _binding() is not None


@cache
def _binding() -> Any:
    try:  # after `bindings`, which loads llama.cpp with our spin count
        from llama_cpp import mtmd_cpp
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None
    return mtmd_cpp


def keep_log(loading: bool) -> None:
    """Write the log of libmtmd where that of llama.cpp goes."""
    found = _binding()
    if found is not None:
        found.mtmd_helper_log_set(callback_of(loading), None)
