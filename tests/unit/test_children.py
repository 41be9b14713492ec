"""Programs that tests start get default signals and have limits, however the tests themselves were started."""

import os
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import children

TESTS = Path(__file__).parents[1]
SAYS_AND_STAYS = "import time; print('one', flush=True); time.sleep(600)"


def test_all_tests_start_programs_by_way_of_children():
    other_ways = re.compile(
        r"subprocess\.(run|Popen|call|check_call|check_output)\(|os\.(system|popen|spawn\w+|fork|posix_spawn)\(|openpty\("
    )
    for path in TESTS.rglob("*.py"):
        if path.name not in (
            "children.py",
            "confined.py",
            "forked.py",
            "interrupted.py",
            "test_no_echo.py",  # opens a terminal for a child, whose own child is in the background
            Path(__file__).name,
        ):  # those between the first and the last but one are themselves run by way of children
            assert not other_ways.search(path.read_text(encoding="utf-8")), path


@pytest.fixture
def over_when_said(monkeypatch, tmp_path):
    """Let the time of a child be over when it has printed a line; return the code of such a child."""
    said = tmp_path / "said"

    class Timer(threading.Thread):
        def __init__(self, seconds, end):
            super().__init__(daemon=True)
            self.end, self.cancel = end, lambda: None

        def run(self):
            while not said.exists():
                threading.Event().wait(0.01)
            self.end()

    monkeypatch.setattr(children, "threading", SimpleNamespace(Timer=Timer))
    return f"import time; print('one', flush=True); open({str(said)!r}, 'w'); time.sleep(600)"


def test_a_child_over_its_time_limit_is_killed_and_its_output_shown(over_when_said, tmp_path):
    command = [sys.executable, "-c", over_when_said]
    for run in (lambda: children.run(command, capture_output=True, limit_s=1), lambda: children.at_terminal(command, limit_s=1)):  # fmt: skip
        with pytest.raises(AssertionError, match=r"took more than 1 s and was killed; it had printed: .*one"):  # fmt: skip
            run()
        (tmp_path / "said").unlink()


def test_a_wait_for_a_child_has_a_limit(tmp_path):
    child = children.Child([sys.executable, "-c", SAYS_AND_STAYS], stdout=subprocess.PIPE)
    with child, pytest.raises(AssertionError, match=r"took more than 0 s; it had printed: b'one"):
        while not select.select([child.stdout], [], [], 1)[0]:
            pass
        child.communicate(timeout=0.2)


def test_a_read_ends_when_the_time_is_over(over_when_said):
    with (
        pytest.raises(AssertionError, match="was killed"),
        children.Child(
            [sys.executable, "-c", over_when_said], limit_s=1, stdout=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout.read() == b"one\n"


def test_an_unexpected_failure_shows_the_output():
    with pytest.raises(AssertionError, match=r"ended with 3: .*two"):
        children.run(
            [sys.executable, "-c", "import sys; print('two'); sys.exit(3)"],
            capture_output=True,
            check=True,
        )


@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT"])
def test_a_child_has_default_signals_if_the_tests_ignore_them(name):
    """As they are after nohup, or in the background of a script."""
    code = (
        "import signal, sys; from tests.support import children\n"
        f"signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{name}]); children.handle_ignored_signals()\n"
        "child = children.Child([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'], limit_s=30, stdout=-1, stderr=-1)\n"
        f"child.stdout.readline(); child.send_signal(signal.{name}); child.communicate(); print(child.returncode)\n"
    )
    shell = f"trap '' {name.removeprefix('SIG')}; exec \"$@\""
    done = children.run(
        ["sh", "-c", shell, "sh", sys.executable, "-c", code],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == (f"{-getattr(signal, name)}\n", "")


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
def test_ctrl_c_tests_pass_in_a_run_that_ignores_sigint():
    files = [
        "tests/cli/test_generate.py",
        "tests/cli/test_chat.py",
        "-k",
        "ctrl_c_ends_cleanly or even_one_that_has_not_begun",
    ]
    command = [
        "sh",
        "-c",
        'trap "" INT; exec "$@"',
        "sh",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        *files,
    ]
    done = children.run(command, cwd=TESTS.parent, capture_output=True, text=True, limit_s=150)
    assert done.returncode == 0, done.stdout
    assert "10 passed" in done.stdout
