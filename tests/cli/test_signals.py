"""Signals end each command within a second, in any stage, as process 1 of a container, too."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gguf_spec.cli import signals
from gguf_spec.system.files import files_below
from tests.support import children

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="signals and glibc's mutex")
ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    "generate": ["generate", "-m", "tales", "-n", "1900", "--ignore-eos", "Once"],
    "serve": ["serve", "-m", "tales", "--port", "0"],
    "chat": ["chat", "-m", "tales"],
    "verify": ["verify", "-m", "tales"],
    "bench": ["bench", "-m", "tales"],
    "tune": ["tune", "-m", "tales"],
    "doctor": ["doctor"],
    "worker": ["worker", "--listen", "127.0.0.1:0"],
}
# Code that goes before a command -> it stops there as if something took long, and says so.
STAGES = {
    "imports": "import builtins; before = builtins.__import__\n"
    "def slow(name, *a, **k):\n"
    "    name == 'click' and stop()\n"
    "    return before(name, *a, **k)\n"
    "builtins.__import__ = slow",
    "start": "import gguf_spec.cli as cli\nbefore = cli._set_up\ncli._set_up = lambda: (before(), stop())",
    "download": "from gguf_spec.cli import download\ndownload.offer_download = lambda *_: stop()",
    "set-up": "from gguf_spec.llama import own_kernels\nown_kernels.start = lambda *_: stop_natively()",
    "native call": "from gguf_spec.llama.native import Native\nNative.load = lambda *_: stop_natively()",
    "measure": "from gguf_spec.speculative.pair import ModelPair\nModelPair.measure = lambda _: stop_natively()\n"
    "import importlib\nimportlib.import_module('gguf_spec.tune').measure = lambda *_, **__: stop_natively()",
    "answer": "from gguf_spec.runtime.stream import Stream\nStream.__next__ = lambda _: stop_natively()",
    # the folder of the cache is empty, so that there is something to save
    "save": "os.environ['XDG_CACHE_HOME'] = os.getcwd()\n"
    "from gguf_spec.system import files\nfiles.move = lambda *_, **__: stop_natively()",
}
START = """
import ctypes, os, sys, threading, time, signal
def stop():
    print("ready", flush=True); time.sleep(600)
def stop_natively():
    # A call in C without the lock of Python, which signals do not interrupt: a mutex that is locked twice.
    # Another thread says so, which sees in glibc's mutex that somebody waits: no handler runs before the call then.
    lock, mutex = ctypes.CDLL(None).pthread_mutex_lock, (ctypes.c_int * 16)()
    def tell():
        while mutex[0] != 2:
            time.sleep(0.01)
        print("ready", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    lock(mutex), lock(mutex)
"""


def can_unshare():
    command = ["unshare", "-pf", "--mount-proc", "--kill-child", "true"]
    return bool(shutil.which("unshare")) and not children.run(command, capture_output=True).returncode  # fmt: skip


def started(command, stage, is_first, folder):
    """Start a command that stops in a stage; return it with the id of its process."""
    arguments = COMMANDS[command]
    code = f"{START}\nsys.argv = {['gguf-spec', *arguments]!r}\n{STAGES[stage]}\nfrom gguf_spec.__main__ import main\nmain()"
    before = ["unshare", "-pf", "--mount-proc", "--kill-child"] if is_first else []
    typed = folder / "typed"
    typed.write_text("Tell me of a fox.\n")
    with typed.open() as stdin:
        child = children.Child(
            [*before, sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            limit_s=120,
        )
    line = child.stdout.readline()
    assert line == b"ready\n", line
    if not is_first:
        return child, child.pid
    return child, int(Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()[0])


def check(command, stage, number, is_first, folder):
    child, pid = started(command, stage, is_first, folder)
    with child:
        began = time.monotonic()
        os.kill(pid, number)
        told = child.communicate()
        assert child.returncode == 128 + number, (told, time.monotonic() - began)
        assert b"Traceback" not in told[1], told
    for file in files_below(folder):
        if file.suffix == ".json":
            json.loads(file.read_text())  # a file that has its name is whole


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ("imports", "SIGTERM"),
        ("start", "SIGINT"),
        ("set-up", "SIGTERM"),
        pytest.param("answer", "SIGHUP", marks=pytest.mark.full),
        pytest.param("answer", "SIGINT", marks=pytest.mark.full),  # a pass that is short may end
    ],
)
def test_generate_ends_by_a_signal(stage, name, tmp_path):
    check("generate", stage, getattr(signal, name), False, tmp_path)


@pytest.mark.skipif(not can_unshare(), reason="no process namespaces here (unshare)")
@pytest.mark.parametrize("stage", ["imports", pytest.param("set-up", marks=pytest.mark.full)])
def test_generate_ends_by_a_signal_as_process_1(stage, tmp_path):
    check("generate", stage, signal.SIGTERM, True, tmp_path)


# Command -> the stages that it has; all if it is missing here. An answer of `serve` has the time of --grace.
_STAGES = {
    "serve": [*STAGES.keys() - {"answer"}],
    "tune": [*STAGES.keys() - {"answer"}],
    "doctor": ["imports", "set-up", "native call", "save"],
    "worker": ["imports"],
}


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [False, pytest.param(True, marks=pytest.mark.skipif(not can_unshare(), reason="no process namespaces here (unshare)"))])  # fmt: skip
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
@pytest.mark.parametrize(
    ("command", "stage"),
    [(one, stage) for one in COMMANDS for stage in sorted(_STAGES.get(one, STAGES))],
)
def test_every_command_ends_in_every_stage(command, stage, name, is_first, tmp_path):
    check(command, stage, getattr(signal, name), is_first, tmp_path)


def test_signals_that_are_ignored_stay_so():
    """As after nohup, and of SIGINT in the background of a script."""
    code = (
        "import signal\nfor one in (signal.SIGHUP, signal.SIGINT): signal.signal(one, signal.SIG_IGN)\n"
        "from gguf_spec.cli import signals\nsignals.start()\n"
        "from gguf_spec.cli.output import ctrl_c_cancels\n"
        "def tell(): print(*[signal.getsignal(one) == signal.SIG_IGN for one in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)])\n"
        "tell()\n"
        "with signals.ending_at_once(): tell()\n"
        "with ctrl_c_cancels(None): tell()\n"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True False\n" * 3


def test_what_is_printed_is_kept_when_a_native_call_does_not_end():
    code = (
        "import ctypes, os, signal, sys\nfrom gguf_spec.cli import signals\nsignals._PATIENCE_S = 0.1\nsignals.start()\n"
        "print('half of an answer'); os.kill(os.getpid(), signal.SIGTERM)\n"
        "try:\n    ctypes.CDLL(None).sleep(60)\nexcept SystemExit:\n    ctypes.CDLL(None).sleep(60)"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (143, "half of an answer\n")


def test_clean_up_runs_and_further_signals_do_not_interrupt_it(tmp_path):
    code = (
        "import os, signal, sys\nfrom gguf_spec.cli import signals\nsignals.start()\n"
        "try:\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
        "finally:\n    os.kill(os.getpid(), signal.SIGHUP); print('clean', flush=True)"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "clean\n", "")


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize(
    "late", [False, pytest.param(True, marks=pytest.mark.full)], ids=["", "late"]
)
def test_a_signal_whose_exception_python_drops_is_sent_again(name, code, late):
    """It has its whole time, also where a busy machine sends it late. An exception that a handler raises is dropped in `__del__` and in callbacks, such as those of locks of imports."""
    program = (
        "import os, signal, time\nfrom gguf_spec.cli import signals\nfrom gguf_spec.__main__ import main\nimport gguf_spec.cli\n"
        + f"signals._PATIENCE_S = {2 if late else 20}\n"
        + (
            "timer = signals.threading.Timer\nsignals.threading.Timer = lambda _, *more: timer(3, *more)\n"
            if late
            else ""
        )
        + "class Dropped:\n"
        f"    def __del__(self): os.kill(os.getpid(), signal.{name}); time.sleep(0.01)\n"
        "def run():\n"
        "    signals.start()\n    Dropped()\n"
        "    try:\n        time.sleep(20)\n"
        "    finally:\n        print('clean', flush=True)\n"
        "gguf_spec.cli.main = run\nmain()"
    )
    done = children.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "clean\n", "")


def test_an_interrupt_that_a_compiled_module_drops_ends_the_program():
    """As those of numpy.random do, in `abc.register`, while they are imported."""
    code = (
        "import os, signal, time\nfrom importlib.machinery import ExtensionFileLoader\n"
        "from gguf_spec.cli import signals\nsignals._PATIENCE_S = 0.1\nsignals.start()\n"
        "class Drops(ExtensionFileLoader):\n"
        "    def exec_module(self, module):\n"
        "        try:\n            os.kill(os.getpid(), signal.SIGINT); time.sleep(20)\n"
        "        except KeyboardInterrupt:\n            print('dropped', flush=True)\n"
        "Drops('a', 'a.so').exec_module(None)\ntime.sleep(20)\nprint('goes on')"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "dropped\n", "")


def test_an_end_that_no_signal_asked_for_is_dropped_as_ever():
    """Python drops the exit of `__del__`; only that of a signal is sent again."""
    code = (
        "import time\nfrom gguf_spec.cli import signals\nsignals.start()\n"
        "class Ends:\n    def __del__(self): raise SystemExit(5)\n"
        "Ends(); time.sleep(0.3); print('goes on')"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "SystemExit: 5" in done.stderr


def test_a_handled_signal_does_not_end_the_process():
    code = (
        "import os, signal, time\nfrom gguf_spec.cli import signals\nsignals._PATIENCE_S = 0.1\nsignals.start()\n"
        "with signals.handlers(lambda n, _: signals.handled(n)):\n"
        "    os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.4); print('goes on')"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert signals._PATIENCE_S < 1


def test_a_signal_while_an_error_is_handled_keeps_its_code():
    """Only a reader of the output that is gone ends the program without a code of its own."""
    code = (
        "import sys\nfrom gguf_spec.cli import main, cli\n"
        "def stop(*_, **__):\n"
        "    try:\n        open('/no/such/file')\n    except OSError:\n        raise SystemExit(143)\n"
        "cli.main = stop\nsys.argv = ['gguf-spec', 'ps']\nmain()"
    )
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
