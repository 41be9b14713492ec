"""Limits of processor time that follow this machine: what is to be noticed is a search without an end, not a slow processor."""

import time

# seconds of processor time that `_work` takes on a fast machine of 2025
_FAST_S = 0.03


def _work():
    total = 0
    for i in range(400_000):
        total += i * i % 7
    return total


def limit_s(seconds):
    """Return `seconds` of a fast machine as seconds of processor time here; other programs are counted, as they slow both down."""
    started = time.process_time()
    _work()
    return seconds * max(1.0, (time.process_time() - started) / _FAST_S)
