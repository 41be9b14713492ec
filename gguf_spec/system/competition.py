"""Detection of other programs that use the processor.

Nothing is measured while they run, because the results would not describe this machine.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# kernel statistics, with the number of running tasks
_STAT = Path("/proc/stat")
# Number of samples and seconds between them. The smallest sample counts: a program that only wakes
# up for a moment is ignored.
_SAMPLES, _PAUSE_S = 4, 0.005


def others_running() -> int:
    """Return the number of tasks of other programs that run or wait for a core now.

    The result is 0 if it is unknown (not Linux).
    """
    fewest = None
    for i in range(_SAMPLES):
        if i:
            time.sleep(_PAUSE_S)
        n = _running()
        if n is None:
            return 0
        fewest = n if fewest is None else min(fewest, n)
    return max(0, (fewest or 0) - 1)  # except this thread


def cores_are_shared(threads: int) -> bool:
    """Return whether `threads` threads of this process would share cores with other programs."""
    return others_running() + threads > max(threads, os.cpu_count() or threads)


def _running() -> int | None:
    try:
        for line in _STAT.read_text(encoding="ascii").splitlines():
            if line.startswith("procs_running "):
                return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
