"""Self-tests of kernels in child processes, run once per library and machine.

Some builds of llama.cpp crash, or could compute wrong results, in the kernels that repack weights
for a CPU (AMX above all). The probe decodes with the bundled models, with and without repacking. If
it fails, models are loaded with `use_extra_bufts=False`, which is slower but correct. The own
kernels have a test of their own (`llama.kernel_checks`).
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from ..system.files import cache_file, read_json, this_machine, write_json
from .bindings import identities, llama_parts
from .child_process import ChildError, ask

_LOG = logging.getLogger("gguf_spec.llama.selftest")  # `__name__` is __main__ in the child
# Largest accepted change of a logit. Repacked kernels add the same products in another order:
# logits moved by 0.0 with AVX2, and rounding cannot move them by more than a few hundredths
# elsewhere. A broken kernel is off by whole units (the logits of a row spread by 2 to 3).
_TOLERANCE = 0.5
# Time limit of a child process in seconds.
_PATIENCE_S = 300
_PACKED = "a packed program cannot run the self-test"


def extra_bufts_work() -> bool:
    """Return whether repacked weights can be used, from the cache or from a probe.

    A failure is logged as a warning when it is found.
    """
    return not _remembered(
        result_file(),
        probe,
        "llama.cpp's repacked kernels fail on this machine (%s). "
        "Models are loaded without them, which is slower but correct.",
    )


def kernels_problem(library: Path, wanted: str) -> str:
    """Return why the own kernels cannot be used, from the cache or from a test; empty if they can.

    Args:
        library: Their library.
        wanted: An instruction set, or `auto` for the best one.
    """
    if getattr(sys, "frozen", False):
        return _PACKED

    def test() -> str:
        try:
            return str(ask("kernel_checks", wanted, timeout_s=_PATIENCE_S))
        except ChildError as error:
            return f"the self-test failed: it {error}"

    return _remembered(kernels_file(library, wanted), test, "Own kernels are not used: %s.")


def kernels_file(library: Path, wanted: str) -> Path:
    """Return the file of the result of `kernels_problem`."""
    return cache_file("probe", [*this_machine(), *llama_parts(), *identities([library]), wanted])


def _remembered(file: Path, test: Callable[[], str], warning: str) -> str:
    """Return the problem in a file, or that which a test finds; empty if there is none."""
    known = read_json(file)
    if isinstance(known, dict) and "ok" in known:
        return "" if known["ok"] else str(known.get("problem"))
    problem = test()
    if problem:
        _LOG.warning(warning, problem)
    # if the file cannot be written, the next load tests again
    write_json(file, {"ok": not problem, "problem": problem})
    return problem


def result_file() -> Path:
    """Return the file of the result for repacked weights, for this library on this machine."""
    return cache_file("probe", [*this_machine(), *llama_parts()])


def probe() -> str:
    """Test repacked weights in a child process; return a description of the failure, or nothing."""
    # A packed program cannot start itself as Python: skip repacking only on machines with AMX.
    if getattr(sys, "frozen", False):
        has_amx = "amx" in "".join(this_machine())
        return _PACKED if has_amx else ""
    try:
        difference = float(ask("selftest", "--child", timeout_s=_PATIENCE_S))
    except ChildError as error:
        return f"the self-test {error}"
    except (TypeError, ValueError) as error:
        return f"the self-test gave no number: {error}"
    return "" if difference <= _TOLERANCE else f"logits differ by {difference:.2g}"


def largest_difference() -> float:
    """Return the largest change of a logit through repacked weights.

    Compares batches of 1 and of 8 tokens with both bundled models.
    """
    import numpy as np

    from ..registry.download import local
    from ..registry.resolve import resolve
    from .model import Model
    from .options import ContextOptions
    from .placement import NONE, Placement

    worst = 0.0
    for name in ("tales", "tales-draft"):
        path = local(resolve(name))
        rows = []
        for extra_bufts in (False, True):
            # one thread: more would wait for each other on a busy machine
            # layers on a GPU would not use the kernels
            placement = Placement((NONE,), kernels="stock")
            options = ContextOptions(64, 1, extra_bufts=extra_bufts, placement=placement)
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
        sys.stdout.write(f"{json.dumps(largest_difference())}\n")
    else:
        from . import own_kernels

        own_kernels.start()
        sys.exit(0 if extra_bufts_work() else 1)
