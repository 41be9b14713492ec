"""Messages to systemd: a datagram socket in place of systemd."""

import os
import signal
import socket
import sys
import time
from subprocess import DEVNULL

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread, systemd, systemd_service
from tests.server.conftest import ask_chat, until
from tests.support import tiny
from tests.support.children import Child

pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets")


@pytest.fixture
def inbox(tmp_path, monkeypatch):
    """The socket of systemd, and a function that returns the next message."""
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(180)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.delenv("WATCHDOG_USEC", raising=False)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        yield lambda: receiver.recv(100).decode()


class Steps:
    """A server whose progress the test decides."""

    def __init__(self, *counts):
        self._counts = [*counts]

    def progress(self):
        return self._counts.pop(0)


def test_a_watchdog_message_requires_progress(inbox):
    watchdog = systemd.Watchdog(Steps(None, None, 3, 4, 4, 4, 5, None))
    alive = [watchdog.tick() for _ in range(8)]
    assert alive == [True, True, True, True, False, False, True, True]
    assert [inbox() for _ in range(alive.count(True))] == ["WATCHDOG=1"] * 6


def test_a_service(inbox, monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

    class Idle:
        def progress(self):
            return None

    with systemd_service(Idle()):
        assert [inbox() for _ in range(4)] == ["READY=1", *["WATCHDOG=1"] * 3]
    while (message := inbox()) == "WATCHDOG=1":
        pass
    assert message == "STOPPING=1"


def test_an_abstract_socket(monkeypatch):
    if sys.platform != "linux":
        pytest.skip("abstract sockets are Linux's")
    name = f"gguf-spec-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        assert systemd.notify("READY=1")
        assert receiver.recv(100) == b"READY=1"


@pytest.mark.parametrize("address", ["", "relative", "/no/such/socket", "vsock:2:1"])
def test_without_systemd(address, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not systemd.notify("READY=1")
    with systemd_service(Steps()):
        pass


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("2000000", None, 2.0), ("2000000", "1", None), ("x", None, None), ("0", None, None)],
)
def test_the_interval(monkeypatch, usec, pid, seconds):
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", pid)
    assert systemd.watchdog_seconds() == seconds


def test_the_progress_of_a_server(tmp_path, monkeypatch):
    """An idle server has nothing to do; one that answers counts; one that hangs does not."""
    from gguf_spec.runtime.generation import StatsRecorder

    path = tiny.write(tmp_path / "m.gguf")
    seen, advance = [], StatsRecorder.round_is_done
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        assert server.progress() is None

        def watched(*given):
            seen.append(server.progress())
            return advance(*given)

        monkeypatch.setattr(StatsRecorder, "round_is_done", watched)
        assert ask_chat(server, max_tokens=5).status == 200
        assert None not in seen
        assert seen == sorted(set(seen))
        until(lambda: server.progress() is None)


@pytest.mark.full
def test_the_command(inbox, monkeypatch):
    """`gguf-spec serve` reports ready when it answers, keeps running while it is idle, and stops by SIGTERM."""
    monkeypatch.setenv("WATCHDOG_USEC", "300000")
    command = [
        sys.executable,
        "-m",
        "gguf_spec",
        "serve",
        "-m",
        "tales",
        "-d",
        "none",
        "--port",
        "0",
        "-q",
    ]
    with Child(command, stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            assert [inbox(), inbox()] == ["READY=1", "WATCHDOG=1"]
            process.send_signal(signal.SIGTERM)
            end = time.monotonic() + 180
            while (message := inbox()) == "WATCHDOG=1" and time.monotonic() < end:
                pass
            assert message == "STOPPING=1"
            assert process.wait(180) == 0
        finally:
            process.kill()
