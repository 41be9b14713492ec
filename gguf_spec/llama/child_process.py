"""Child processes for tests in which llama.cpp may end the process."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def run_child(command: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a program without input and return its exit code and its output.

    Args:
        command: Path of the program, and its arguments.
        timeout_s: Time limit in seconds; the program is killed after it.

    Raises:
        OSError: The program cannot be started.
        subprocess.TimeoutExpired: It ran longer than the time limit.
    """
    return subprocess.run(
        command,
        capture_output=True,
        encoding="utf-8",
        errors="replace",  # logs of llama.cpp may have parts of characters
        timeout=timeout_s,
        check=False,
        stdin=subprocess.DEVNULL,
    )
