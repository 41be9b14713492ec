"""Copy a text to the clipboard: by a program of the desktop, or by the terminal itself."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

# Environment variable of a desktop -> commands that read a text for its clipboard. macOS has none.
_PROGRAMS = {
    "WAYLAND_DISPLAY": (("wl-copy",),),
    "DISPLAY": (("xclip", "-selection", "clipboard"), ("xsel", "--clipboard", "--input")),
    "": (("pbcopy",),),
}
_TIMEOUT_S = 3.0
_MOST_BYTES = 74_000  # terminals ignore longer texts


def copy(text: str) -> str | None:
    """Copy a text to the clipboard.

    Over SSH, and without a program for it, the terminal is asked by the sequence OSC 52. Whether it
    does so cannot be known.

    Returns:
        How it was copied; None if it was not.
    """
    data = text.encode("utf-8", errors="replace")
    if not os.environ.get("SSH_CONNECTION"):
        for variable, commands in _PROGRAMS.items():
            if variable and not os.environ.get(variable):
                continue
            for command in commands:
                if _ran(command, data):
                    return f"with {command[0]}"
    if len(data) > _MOST_BYTES or not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    sys.stdout.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    sys.stdout.flush()
    return "by the terminal, if it allows that (OSC 52)"


def _ran(command: tuple[str, ...], data: bytes) -> bool:
    program = shutil.which(command[0])
    if not program:
        return False
    try:
        done = subprocess.run(
            [program, *command[1:]],
            input=data,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
