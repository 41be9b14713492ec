"""Spin counts of threads at barriers: of GNU OpenMP (libgomp), and of llama.cpp's own threads.

libgomp runs the threads of most Linux CPU builds; ready-made builds do without. A thread that
reaches a barrier early spins before it sleeps. libgomp spins 300,000 times by default. If another
program takes the core of a late thread, the early threads spin for a whole time slice at every
barrier of a pass: beside two busy processes a pass takes 70 times as long. libgomp reads the count
from the environment only once, when it is loaded.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

# spins at a barrier before a thread sleeps; chosen in docs/decisions/threads.md
SPIN_COUNT = 10_000
# The same for llama.cpp's own threads: some time slices, so that a thread sleeps only where another
# program keeps the late one waiting for longer; chosen in docs/decisions/threads.md.
OWN_SPIN_COUNT = 1_000_000
# variables of the user or the host process; they have priority
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
# mapped files of this process
_MAPS = Path("/proc/self/maps")

State: TypeAlias = Literal["unknown", "set", "user", "loaded", "absent"]
"""What decided how long threads spin.

`unknown`: llama.cpp is not loaded yet, or the system is not Linux. `set`: this module. `user`: a
variable in the environment. `loaded`: libgomp was in the process before, and its default is in
force. `absent`: llama.cpp does not use libgomp.
"""
_state: State = "unknown"


def spins() -> int:
    """Return the spin count for llama.cpp's own threads; the user's variables have priority."""
    if os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive":
        return 0
    given = os.environ.get("GOMP_SPINCOUNT", "")
    return min(int(given), 1 << 30) if given.isdigit() else OWN_SPIN_COUNT


def state() -> State:
    """Return the source of the spin count in this process."""
    return _state


@contextlib.contextmanager
def spin_count_set() -> Iterator[None]:
    """Set the spin count while llama.cpp, and libgomp with it, is loaded.

    The variable is removed afterwards, so that child processes of the host do not inherit it.
    """
    global _state  # noqa: PLW0603 -- libgomp has one spin count for the process
    if sys.platform != "linux" or _state != "unknown":
        yield
        return
    before, by_user = _loaded_libgomp(), any(name in os.environ for name in VARIABLES)
    if not by_user:
        os.environ["GOMP_SPINCOUNT"] = str(SPIN_COUNT)
    try:
        yield
    finally:
        if not by_user:
            os.environ.pop("GOMP_SPINCOUNT", None)
    after = _loaded_libgomp()
    if not after:
        _state = "absent"
    elif by_user:
        _state = "user"
    else:
        _state = "set" if after - before else "loaded"


def _loaded_libgomp() -> set[str]:
    """Return the libgomp files of this process.

    Wheels such as torch's include their own copies.
    """
    try:
        maps = _MAPS.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    files = (line.split(maxsplit=5)[5:] for line in maps.splitlines() if "/libgomp" in line)
    return {file for [file] in files}
