"""Child processes for tests in which llama.cpp may end the process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


class ChildError(Exception):
    """A test did not run to its end; the message has no subject."""


def ask(module: str, *arguments: object, timeout_s: float = 600) -> Any:
    """Run a module of this folder, and return the JSON value in its last line.

    Args:
        module: Name of the module.
        arguments: Arguments of its command line.
        timeout_s: Time limit in seconds; the process is killed after it.

    Raises:
        ChildError: The process cannot be started, exceeds the time limit or ends without a value.
    """
    try:
        child = subprocess.run(
            command(module, *map(str, arguments)),
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # logs of llama.cpp may have parts of characters
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChildError(f"did not run: {error}") from None
    if child.returncode < 0:
        raise ChildError(f"was ended by signal {-child.returncode}")
    try:
        return json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise ChildError(f"ended with code {child.returncode}") from None


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this folder."""
    return [sys.executable, "-m", f"gguf_spec.llama.{module}", *arguments]
