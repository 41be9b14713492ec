"""Programs of this folder in separate processes: a crash or a hang is a failure with the output."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def run_child(name, *arguments, limit_s=240):
    """Run a program of this folder to its end, and return its last line."""
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        f"tests.closing.{name}",
        *map(str, arguments),
    ]
    with subprocess.Popen(
        command,
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as child:
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.send_signal(signal.SIGABRT)  # it prints where its threads are
            try:
                said, _ = child.communicate(timeout=180)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                said, _ = child.communicate()
            raise AssertionError(f"{name} hangs:\n{said}") from None
    assert child.returncode == 0, f"{name} ended with {child.returncode}:\n{said}"
    return said.rstrip().rsplit("\n", 1)[-1]


def default_signals():
    """In a child: let Ctrl-C raise KeyboardInterrupt, even if the tests were started with SIGINT ignored."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(all_threads=True)
