"""Self-test of the compiled llama.cpp, run once per library and machine in a child process.

Some builds of llama.cpp crash, or could compute wrong results, in the kernels that repack weights
for a CPU (AMX above all). The probe decodes with the bundled models, with and without repacking. If
it fails, models are loaded with `use_extra_bufts=False`, which is slower but correct.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np

from ..registry.download import local
from ..registry.resolve import resolve
from ..system.cache import cache_file, read_json, this_machine, write_json
from .backend import library_parts
from .child_process import run_child
from .model import Model
from .options import ContextOptions
from .placement import NONE, Placement

_LOG = logging.getLogger("gguf_spec.llama.selftest")  # `__name__` is __main__ in the child
# Largest accepted change of a logit. Repacked kernels add the same products in another order:
# logits moved by 0.0 with AVX2, and rounding cannot move them by more than a few hundredths
# elsewhere. A broken kernel is off by whole units (the logits of a row spread by 2 to 3).
_TOLERANCE = 0.5
# Time limit of the child process in seconds.
_PATIENCE_S = 300


def extra_bufts_work() -> bool:
    """Return whether repacked weights can be used, from the cache or from a probe.

    A failure is logged as a warning when it is found.
    """
    cache = result_file()
    known = read_json(cache)
    if isinstance(known, dict) and "ok" in known:
        return bool(known["ok"])
    problem = probe()
    if problem:
        _LOG.warning(
            "llama.cpp's repacked kernels fail on this machine (%s). "
            "Models are loaded without them, which is slower but correct.",
            problem,
        )
    # if the file cannot be written, the next load probes again
    write_json(cache, {"ok": not problem, "problem": problem})
    return not problem


def result_file() -> Path:
    """Return the file of the result for this library on this machine."""
    return cache_file("probe", [*this_machine(), *library_parts()])


def probe() -> str | None:
    """Run the self-test in a child process; return a description of the failure, or None."""
    # A packed program cannot start itself as Python: skip repacking only on machines with AMX.
    if getattr(sys, "frozen", False):
        return (
            "a packed program cannot run the self-test"
            if "amx" in "".join(this_machine())
            else None
        )
    try:
        child = run_child(_command(), _PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the self-test did not run: {error}"
    if child.returncode < 0:
        return f"the self-test was ended by signal {-child.returncode}"
    try:
        difference = float(json.loads(child.stdout.splitlines()[-1])["difference"])
    except (ValueError, KeyError, IndexError, TypeError):
        return f"the self-test ended with code {child.returncode}"
    return None if difference <= _TOLERANCE else f"logits differ by {difference:.2g}"


def _command() -> list[str]:
    return [sys.executable, "-m", "gguf_spec.llama.selftest", "--child"]


def largest_difference() -> float:
    """Return the largest change of a logit through repacked weights.

    Compares batches of 1 and of 8 tokens with both bundled models.
    """
    worst = 0.0
    for name in ("tales", "tales-draft"):
        path = local(resolve(name))
        rows = []
        for extra_bufts in (False, True):
            # one thread: more would wait for each other on a busy machine
            # layers on a GPU would not use the kernels
            options = ContextOptions(64, 1, extra_bufts=extra_bufts, placement=Placement((NONE,)))
            model = Model(path, options)
            tokens = list(range(100, 109))
            one = [model.logits([token], 1).copy() for token in tokens[:8]]
            model.rollback(0)
            rows.append(np.concatenate([*one, model.logits(tokens[:8], 8).copy()]))
            model.close()
        difference = float(np.max(np.abs(rows[0] - rows[1])))
        worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst


if __name__ == "__main__":
    if "--child" in sys.argv:
        sys.stdout.write(json.dumps({"difference": largest_difference()}) + "\n")
    else:
        sys.exit(0 if extra_bufts_work() else 1)
