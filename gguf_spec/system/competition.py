"""Whether other programs use the processor at this moment. Nothing is measured then: figures would be theirs, not the machine's."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_SAMPLES, _PAUSE_S = (
    4,
    0.005,
)  # the fewest of some samples count: a program that only wakes up for a moment is no competition


def others_running() -> int:
    """Return how many tasks of other programs run or wait for a core now; 0 where it is not known (not Linux)."""
    fewest = None
    for i in range(_SAMPLES):
        if i:
            time.sleep(_PAUSE_S)
        n = _running()
        if n is None:
            return 0
        fewest = n if fewest is None else min(fewest, n)
    return max(0, (fewest or 0) - 1)  # without this thread


def cores_are_shared(threads: int) -> bool:
    """Return whether `threads` threads of ours would have to share cores with other programs."""
    return others_running() + threads > max(threads, os.cpu_count() or threads)


def _running() -> int | None:
    try:
        for line in _STAT.read_text(encoding="ascii").splitlines():
            if line.startswith("procs_running "):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
