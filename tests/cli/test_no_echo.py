"""Keys that are typed while models are loaded and measured are not echoed, and are kept."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_spec.cli.output import no_echo
from tests.support import children

# Without an argument it is in the foreground of its terminal.
SHOW = """
import fcntl, os, sys, termios
from gguf_spec.cli.output import no_echo
from tests.support import children

def echoes():
    return bool(termios.tcgetattr(0)[3] & termios.ECHO)

fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if sys.argv[1:]:
    if child := os.fork():
        os.waitpid(child, 0)
        os._exit(0)
    os.setpgid(0, 0)
before = echoes()
with no_echo(reads_lines=True):
    during = echoes()
print(before, during, echoes(), "" if sys.argv[1:] else sys.stdin.readline(), flush=True)
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such terminals")
@pytest.mark.parametrize("more", [[], ["background"]])
def test_echo_is_off_during_the_block_and_keys_are_kept(more):
    """A program in the background leaves the terminal as it is: a change would stop it."""
    main, other = pty.openpty()
    os.write(main, b"kept\n")
    command = [sys.executable, "-c", SHOW, *more]
    with children.Child(
        command, stdin=other, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as child:
        out = child.communicate()[0].split()
    os.close(main)
    os.close(other)
    assert out == (["True"] * 3 if more else ["True", "False", "True", "kept"])


def test_without_a_terminal_nothing_is_changed(monkeypatch):
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with no_echo(reads_lines=True):
            pass
    monkeypatch.setattr(sys, "stdin", None)
    with no_echo(reads_lines=True):
        pass
