"""Child processes: modules of this package as programs, also in a frozen app.

In a frozen app (PyInstaller, Nuitka, cx_Freeze) `sys.executable` is the app, so `-m MODULE` would
start the app again. There a child is the app with a first argument of its own, and
`freeze_support` runs the module before the app's own code.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from ..errors import FrozenAppError

# modules with a function `main`, which takes the arguments and returns the exit code
PROGRAMS = (
    "gguf_spec.llama.selftest",
    "gguf_spec.quantize.worker",
    "gguf_spec.system.helper",
    "gguf_spec.text.jinja_child",
    "gguf_spec_workers.child",
)
_ARGUMENT = "--gguf-spec-child"
_recognised: list[bool] = []


def freeze_support() -> None:
    """Run a child process of gguf-spec, if this process is one, and end it.

    Call it first in the main script of a frozen app, before anything opens a window or reads the
    arguments. An app built by PyInstaller does so by itself. In any other process it does nothing.
    """
    if not is_frozen():
        return
    _recognised.append(True)
    if sys.argv[1:2] == [_ARGUMENT] and sys.argv[2:3] and sys.argv[2] in PROGRAMS:
        sys.exit(import_module(sys.argv[2]).main(*sys.argv[3:]))


def is_frozen() -> bool:
    compiled = globals().get("__compiled__")  # by Nuitka, which may leave the interpreter beside it
    return bool(getattr(sys, "frozen", False) or getattr(compiled, "standalone", compiled))


def refusal() -> str:
    """Return why this process cannot start a child; empty if it can."""
    if not sys.executable:
        return "there is no Python interpreter for a separate process"
    if is_frozen() and not _recognised:
        return "a packed program without gguf_spec.freeze_support() cannot start a child process"
    return ""


def command(program: str, *arguments: str) -> list[str]:
    """Return the command of a child process.

    Args:
        program: One of `PROGRAMS`.

    Raises:
        FrozenAppError: This process cannot start a child.
    """
    if reason := refusal():
        raise FrozenAppError(f"{reason}.")
    how = [_ARGUMENT] if is_frozen() else ["-m"]
    return [sys.executable, *how, program, *arguments]


def environment_of_others() -> dict[str, str]:
    """Return the environment for programs that are not part of a frozen app.

    PyInstaller sets LD_LIBRARY_PATH to the app's libraries, which other programs must not load.
    Other tools leave the user's own in it.
    """
    others = dict(os.environ)
    if hasattr(sys, "_MEIPASS"):
        before = others.pop("LD_LIBRARY_PATH_ORIG", None)
        others.pop("LD_LIBRARY_PATH", None)
        others |= {"LD_LIBRARY_PATH": before} if before is not None else {}
    return others
