"""`gguf-spec serve`: start, stop and signals."""

import contextlib
import faulthandler
import gc
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gguf_spec.cli import serve
from gguf_spec.errors import GgufSpecError
from gguf_spec.server import thread
from gguf_spec.server.running import RunningServer
from tests.server.conftest import ask, ask_text, until
from tests.support import children, tiny

SECRET = "zyxwv-the-fox-knows"
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ever(tmp_path_factory):
    path = tmp_path_factory.mktemp("ever") / "ever.gguf"
    return tiny.write(
        path,
        tiny.one_text("abcdefghijkl", for_ever=True),
        metadata={"llama.context_length": 100_000},
    )


class Child:
    """A server in a process of its own."""

    def __init__(self, *args, **env):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GGUF_SPEC_") or name == "GGUF_SPEC_KERNELS"  # of a variant
        }
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "gguf_spec",
            "serve",
            "--threads",
            "1",
            *map(str, args),
        ]
        self._err = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 -- a pipe that nobody reads would hold a long log up
        environment |= {"PYTHONPATH": str(ROOT), "GGUF_SPEC_MODEL": "tales"} | env
        self.process = children.Child(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self._err, text=True
        )
        self.line = self.process.stdout.readline()
        self.url = self.line.rpartition(" ")[2].strip()

    def end(self, number=signal.SIGTERM):
        """Send a signal; return exit code, stdout and stderr."""
        self.process.send_signal(number)
        out = self.process.communicate(timeout=180)[0]
        return self.process.returncode, out, self.err

    @property
    def err(self):
        """Return the output on stderr so far."""
        self._err.seek(0)
        return self._err.read()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()
        self._err.close()


@pytest.mark.few(1)
@pytest.mark.parametrize("how", [b"\0" * 8, struct.pack("ii", 1, 0)], ids=["closed", "reset"])
def test_clients_that_leave_do_not_end_the_process(ever, how):
    """A write to their connections raises the signal PIPE, which ends a program that lets it."""
    body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 5000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with Child("-m", ever, "--draft", "none", "--port", 0) as child:
        for _ in range(12):
            address = urlsplit(child.url)
            with socket.create_connection((address.hostname, address.port)) as connection:
                connection.sendall(head.encode() + body)
                connection.recv(100)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, how)
        assert ask_text(child, prompt="a", max_tokens=4).status == 200
        assert child.end() == (0, "", child.err)


@pytest.mark.full
def test_the_end_by_ctrl_c_is_said_at_a_terminal(ever):
    command = [sys.executable, "-m", "gguf_spec", "serve", "-m", str(ever), "--threads", "1"]
    code, seen = children.at_terminal([*command, "--port", "0"], ctrl_c_at=b"End           Ctrl-C")
    assert code == 130
    assert b"\r\nEnding. Ctrl-C again ends running answers at once.\r\n" in seen


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_start_serve_stop_and_no_prompt_in_the_logs(number, code):
    with Child("--port", 0, "-v") as child:
        assert child.line.startswith("Listening at http://127.0.0.1:")
        assert ask_text(child, prompt=SECRET).status == 200
        assert ask_text(child, prompt=SECRET, stream=True).status == 200
        assert ask_text(child, prompt=SECRET, temperature="hot").status == 400
        assert ask_text(child, prompt=SECRET * 2000).status == 400
        assert ask(child, "POST", "/v1/completions", SECRET.encode()).status == 400
        assert ask(child, path=f"/nowhere?{SECRET}").status == 404
        returned, out, err = child.end(number)
    assert (returned, out) == (code, "")
    assert SECRET not in err
    assert "llama" in err  # -v: the log is there
    assert f"Chat page     {child.url}/\n" in err
    assert f"Base URL      {child.url}/v1 " in err
    assert f"curl {child.url}/v1/chat/completions -d '{{" in err
    lines = re.findall(r"(?m)^\d\d:\d\d:\d\d (.*)$", err)
    answered = r"POST /v1/completions 200, \d+ \+ \d+ tokens, [\d,.]+ tok/s"
    assert all(re.fullmatch(answered, line) for line in lines[:2])
    why = ("invalid_value", "context_length_exceeded", "invalid_json")
    refused = [f"POST /v1/completions 400 {one}" for one in why]
    assert lines[2:] == [*refused, "GET other 404 not_found"]


@pytest.mark.full
def test_quiet_and_a_key_that_is_not_shown():
    with Child("--port", 0, "--quiet") as child:
        assert ask_text(child, prompt="a").status == 200
        returned, out, err = child.end()
    assert (returned, out) == (0, "")
    assert "Chat page" not in err
    assert "POST" not in err
    with Child("--port", 0, GGUF_SPEC_API_KEY=SECRET) as child:
        assert ask(child, path="/health").status == 200
        assert ask(child, path="/v1/models").status == 401
        err = child.end()[2]
    assert '-H "Authorization: Bearer $GGUF_SPEC_API_KEY"' in err
    assert SECRET not in err
    assert "/health" not in err
    assert "GET /v1/models 401" in err


@contextlib.contextmanager
def begun(child, n):
    """Ask for a long stream and lend the response once it has begun."""
    connection = http.client.HTTPConnection(urlsplit(child.url).netloc, timeout=180)
    connection.request(
        "POST",
        "/v1/completions",
        json.dumps({"prompt": "a", "temperature": 0, "max_tokens": n, "stream": True}),
    )
    response = connection.getresponse()
    response.read(200)
    try:
        yield response
    finally:
        response.close()
        connection.close()


def listens(child):
    try:
        return ask(child, path="/health").status == 200
    except (OSError, http.client.HTTPException):
        return False


@pytest.mark.full
def test_running_answers_may_finish(ever):
    with (
        Child("-m", ever, "-d", "none", "--port", 0, "--grace", 1000, "--ctx", 8192) as child,
        begun(child, 800) as response,
    ):
        threading.Timer(0.3, lambda: child.process.send_signal(signal.SIGTERM)).start()
        rest = response.read()
        child.process.communicate(timeout=180)
    assert rest.endswith(b"data: [DONE]\n\n")
    assert child.process.returncode == 0


@pytest.mark.full
def test_a_request_over_the_time_limit_ends_with_a_note(ever):
    with (
        Child(
            "-m", ever, "-d", "none", "--port", 0, "--grace", 0.5, "--ctx", 50_000, "--parallel", 1
        ) as child,
        begun(child, 45_000) as response,
    ):
        waiting = []
        thread = threading.Thread(target=lambda: waiting.append(ask_text(child, prompt="a")))
        thread.start()
        until(lambda: ask(child).json()["queue"] == 1)
        code, _, err = child.end()
        rest = response.read()
        thread.join(180)
    assert code == 0
    assert b'"code":"shutting_down"' in rest
    assert b"[DONE]" not in rest
    assert (waiting[0].status, waiting[0].code) == (503, "shutting_down")
    assert "Traceback" not in err


@pytest.mark.full
def test_a_second_signal_does_not_wait(ever):
    with (
        Child("-m", ever, "-d", "none", "--port", 0, "--grace", 1000, "--ctx", 90_000) as child,
        begun(child, 85_000) as response,
    ):
        child.process.send_signal(signal.SIGINT)
        until(lambda: not listens(child))
        code, _, _ = child.end(signal.SIGINT)
        assert b"[DONE]" not in response.read()
    assert code == 130


def test_the_end_does_not_wait_for_a_thread_that_holds_the_lock_of_python():
    hangs = "import re; from gguf_spec.cli.serve import end_in\nwith end_in(0.2) as end:\n    end(); re.match('(a*)*b', 'a' * 40)"  # fmt: skip
    done = children.run(
        [sys.executable, "-c", hangs], cwd=ROOT, capture_output=True, text=True, limit_s=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_the_end_of_a_server_has_a_limit(monkeypatch):
    """The limit begins with the first signal, and ends with the server."""
    told = []
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda seconds, **_: told.append(seconds))  # fmt: skip
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: told.append(None))

    class Served:
        url, is_running, stop = "", True, lambda self: setattr(self, "is_running", False)

    with serve.end_in(9) as end:
        assert told == []
        code = serve._wait(Served(), lambda: signal.raise_signal(signal.SIGTERM), end)
        assert (code, told) == (0, [9])
    assert told == [9, None]


@pytest.mark.full
def test_errors_of_the_command(ever):
    def fails(*args, **env):
        with Child(*args, **env) as child:
            out = child.process.communicate(timeout=180)[0]
            return child.process.returncode, child.line + out, child.err

    code, out, err = fails("--host", "0.0.0.0")
    assert (code, out) == (2, "")
    assert "so it needs an API key.\nHint: set --api-key, or use the host 127.0.0.1." in err
    assert "--api-key" in err
    assert fails("--port", "70000")[0] == 2
    with Child("-m", ever, "-d", "none", "--port", 0, "--ctx", 512, GGUF_SPEC_API_KEY="k") as child:
        assert ask_text(child).status == 401
        code, out, err = fails(
            "-m", ever, "-d", "none", "--ctx", 512, "--port", urlsplit(child.url).port
        )
        assert (code, out) == (1, "")
        assert "cannot listen at 127.0.0.1, port" in err


@pytest.mark.full
def test_the_number_of_requests_at_once(ever):
    model = ("-m", ever, "-d", "none", "--port", 0, "--ctx", 512)
    for args, env, said, n in (
        (("-np", 2), {}, "2 requests at once", 2),
        ((), {"GGUF_SPEC_PARALLEL": "1"}, "one request at a time", 1),
        ((), {}, "", 0),
        (("--parallel", "auto"), {"GGUF_SPEC_PARALLEL": "3"}, "", 0),
    ):
        with Child(*model, *args, **env) as child:
            n_slots = len(ask(child, path="/slots").json())
            line = f"Model         ever.gguf, context of 512 tokens, {said}"
            if n:
                assert (n_slots, f"{line}\n" in child.end()[2]) == (n, True)
            else:  # it depends on what was measured
                number = f"{n_slots} requests at once" if n_slots > 1 else "one request at a time"
                why = r"\((as measured, .*|the usual number: .*)\)"
                assert re.search(f"{re.escape(line + number)} {why}\n", child.end()[2])
    for wrong in ("0", "65", "many"):
        with Child(*model, "--parallel", wrong) as child:
            assert child.process.wait(180) == 2
            assert "--parallel" in child.err


@pytest.mark.full
def test_without_the_extra(tmp_path):
    (tmp_path / "starlette.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'starlette'\", name='starlette')"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "gguf_spec", "serve"]
    done = children.run(
        command,
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "Error: the server needs starlette, which is not installed.\nHint: run pip install '.[server]' in a clone of gguf-spec, "
        "or where it came as a wheel, install 'gguf-spec[server]' in the same way.\n"
    )


def test_a_port_in_use_is_told_before_a_model_is_loaded(monkeypatch):
    monkeypatch.setattr(serve, "load_models", lambda *_: pytest.fail("it was loaded"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(GgufSpecError, match=f"port {port}: Address already in use"):
            serve.serve.main(["-m", "tales", "--port", str(port)], standalone_mode=False)
        own = RunningServer(f"http://127.0.0.1:{port}", 1, ())
        monkeypatch.setattr(thread, "running_servers", lambda: [own])
        with pytest.raises(GgufSpecError, match=f"a server of yours runs there: {own.url}"):
            serve.serve.main(["-m", "tales", "--port", str(port)], standalone_mode=False)


def test_old_objects_are_read_rarely_while_it_serves():
    """A collection of 300,000 objects takes a quarter of a second, in which no request is answered."""
    thresholds, whole = gc.get_threshold(), []

    def note(phase, about):
        if phase == "start" and about["generation"] == 2:
            whole.append(len(kept))

    kept = []
    gc.collect()
    gc.callbacks.append(note)
    try:
        with serve.rare_collections():
            kept += ([i] for i in range(300_000))
            assert not whole
            assert gc.get_freeze_count()
    finally:
        gc.callbacks.remove(note)
    assert gc.get_threshold() == thresholds
    assert not gc.get_freeze_count()
