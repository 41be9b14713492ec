"""Forks, pools of processes and ends of the program: nothing hangs, nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gguf_spec.errors import ForkedError
from gguf_spec.llama import native
from tests.closing import forked
from tests.support import children

FORKS = sorted(name for name in dir(forked) if name.startswith("fork_"))
QUICK_ENDS = {"del, busy"}
CODES = {
    "code 3": 3,
    "code of a text": 1,
    "execv": 7,
    "signal 2": -signal.SIGINT,
    "signal 2 in a loop": -signal.SIGINT,
    "signal 15": -signal.SIGTERM,
}
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")


def start(*arguments, **options):
    return children.Child(
        [sys.executable, "-W", "ignore", "-m", "tests.closing.forked", *map(str, arguments)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **options,
    )


@needs_fork
@pytest.mark.parametrize(
    ("case", "n"),
    [
        pytest.param(case, n, marks=() if (case, n) == ("fork_calls", 2) else pytest.mark.full)
        for case in FORKS
        for n in (1, 2)
    ],
)
def test_a_forked_child_gets_an_error_or_a_model_of_its_own(case, n):
    with start("fork", case, n, limit_s=120) as child:
        told = child.communicate()
        assert child.returncode == 0, told


@needs_fork
def test_openmp_after_a_fork_is_an_error(monkeypatch):
    """Its threads are lost; a pass would wait for them for ever."""
    monkeypatch.setattr(native, "users", {1})
    monkeypatch.setattr(native.C, "llama_print_system_info", lambda: b"CPU : OPENMP = 1 | ")
    with pytest.raises(ForkedError, match="OpenMP") as raised:
        native.Native()
    assert "spawn" in raised.value.hint
    monkeypatch.setattr(native.C, "llama_print_system_info", lambda: b"CPU : SSE3 = 1 | ")
    native.Native()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize(
    "n", [pytest.param(50, marks=pytest.mark.full), pytest.param(10_000, marks=pytest.mark.slow)]
)
def test_a_bad_request_breaks_no_pool(method, n):
    with start("pool", method, n, limit_s=110 if n < 100 else 1800) as child:
        told = child.communicate()
        assert child.returncode == 0, told


def test_only_calls_of_other_threads_are_waited_for():
    """Those of the main thread are over where it waits; Ctrl-C could leave one counted."""
    seen = []

    def count():
        seen.append(len(native.long_calls))

    native.long_call(count)
    thread = threading.Thread(target=native.long_call, args=(count,))
    thread.start()
    thread.join()
    assert (seen, native.long_calls) == ([0, 1], set())


ENDS_IN_A_PASS = """
import ctypes, os, sys, threading, time
import gguf_spec
from gguf_spec.llama import native
name, begun = sys.argv[2], threading.Event()
real = getattr(native.C, name)
def slow(*given):
    begun.set()
    ctypes.CDLL(None).usleep(300_000)
    code = real(*given)
    os.write(1, b"pass ")
    return code
def work():
    with gguf_spec.load("tales-draft", None, threads=1, n_ctx=64, parallel=int(sys.argv[1])) as llm:
        setattr(native.C, name, slow)
        list(llm.stream("Once upon a time", max_tokens=40, ignore_eos=True))
threading.Thread(target=work, daemon=True).start()
begun.wait()
sys.exit(7)
"""


@pytest.mark.parametrize(
    ("name", "n"), [("llama_decode", 1), ("llama_decode", 2), ("llama_tokenize", 1)]
)
def test_the_end_of_a_program_waits_for_a_pass_of_a_daemon_thread(name, n):
    """The end destroys what llama.cpp's kernels use: with a model of 1.5B it crashed six times of ten."""
    done = children.run(
        [sys.executable, "-c", ENDS_IN_A_PASS, str(n), name], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "pass ", "")


@pytest.mark.slow
def test_many_ends_in_a_pass():
    """At any place of it: with frees that the end did not wait for 5 of 160 were aborted."""

    def end(i):
        code = ENDS_IN_A_PASS.replace("300_000", str((1000, 20_000, 100_000, 300_000)[i % 4]))
        command = [sys.executable, "-c", code, str(1 + i // 4 % 2), "llama_decode"]
        done = children.run(command, capture_output=True, text=True)
        return done.returncode, done.stderr

    with ThreadPoolExecutor(3) as threads:
        assert set(threads.map(end, range(240))) == {(7, "")}


ENDS_IN_A_LOAD = """
import os, sys, threading, time
import gguf_spec
from gguf_spec.llama import native
load, begun = native.C.llama_model_load_from_file, threading.Event()
def slow(path, params):
    begun.set()
    time.sleep(0.3)
    os.write(1, b"goes on" if params.progress_callback(0.5, None) else b"ends")
    return load(path, params)
native.C.llama_model_load_from_file = slow
threading.Thread(target=gguf_spec.load, args=("tales",), daemon=True).start()
begun.wait()
sys.exit(7)
"""


def test_a_load_in_a_daemon_thread_ends_with_the_program():
    done = children.run([sys.executable, "-c", ENDS_IN_A_LOAD], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "ends", "")


@pytest.mark.parametrize(
    ("case", "n"),
    [
        pytest.param(case, n, marks=() if case in QUICK_ENDS and n == 2 else pytest.mark.full)
        for case in forked.ENDS
        for n in (1, 2)
    ],
)
def test_the_program_ends_in_every_way(case, n):
    """What would be waited for has no end, so a wait is a failure by its time."""
    code = CODES.get(case, 1 if case.startswith("raised") else 0)
    with start("end", case, n, limit_s=60) as child:
        line = child.stdout.readline() if case != "os._exit" else ""
        began = time.monotonic()
        told = child.communicate()
        seconds = time.monotonic() - began
        assert child.returncode == code, (line, told)
        assert "Fatal" not in told[1]
        assert ("ValueError" in told[1]) == (code == 1 or case == "thread fails"), told
    print(f"{case}: {seconds:.2f} s")
