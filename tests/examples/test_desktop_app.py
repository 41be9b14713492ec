"""The Tk example under Xvfb, driven by keys and clicks."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
missing = [name for name in ("Xvfb", "xdotool") if not shutil.which(name)]
if not importlib.util.find_spec("_tkinter"):
    missing.append("tkinter in this Python")
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(bool(missing), reason=f"there is no {', no '.join(missing)}"),
]


@pytest.fixture(scope="module")
def display():
    """Return the name of a screen of its own."""
    read, write = os.pipe()
    screen = "1024x768x24"
    server = children.Child(
        ["Xvfb", "-displayfd", str(write), "-screen", "0", screen, "-nolisten", "tcp"],
        pass_fds=[write],
        stderr=subprocess.DEVNULL,
    )
    os.close(write)
    with os.fdopen(read) as number:
        name = ":" + number.readline().strip()
    yield name
    server.terminate()
    server.wait(180)


class App:
    """The app on a screen."""

    def __init__(self, display, model, delay_s, program=None, around=None):
        self.environment = os.environ | {
            "DISPLAY": display,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        driver = Path(__file__).parent / "drive_desktop_app.py"
        self.process = children.Child(
            [*(program or [sys.executable, driver]), model, delay_s],
            env=self.environment | (around or {}), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.shown = {}

    def until(self, wanted, seconds=180):
        """Read its states until `wanted` is true of one; return it."""
        end = time.monotonic() + seconds
        for line in self.process.stdout:
            self.shown = json.loads(line)
            if wanted(self.shown):
                return self.shown
            if time.monotonic() > end:
                break
        self.process.kill()
        raise AssertionError(f"it shows {self.shown}; {self.process.communicate()[1]}")

    def do(self, *arguments):
        return children.run(
            ["xdotool", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
            limit_s=180,
        ).stdout.strip()

    @property
    def window(self):
        return self.do("search", "--onlyvisible", "--class", "gguf-spec").splitlines()[-1]

    def type(self, text, *keys):
        self.do("windowfocus", "--sync", self.window)
        self.do("type", "--delay", "5", text)
        for key in keys:
            self.do("key", key)

    def click_button(self):
        """Click the one button, in the lower right corner."""
        size = dict(
            line.split("=")
            for line in self.do("getwindowgeometry", "--shell", self.window).splitlines()
        )
        x, y = int(size["WIDTH"]) - 50, int(size["HEIGHT"]) - 65
        self.do("mousemove", "--window", self.window, str(x), str(y), "click", "1")

    def close(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def left(self):
        """Wait for its end; return the remaining threads and its error output."""
        threads = self.until(lambda shown: shown["state"] == "left")["threads"]
        assert self.process.wait(180) == 0
        return threads, self.process.stderr.read()


@pytest.fixture
def app(display):
    apps = []

    def start(model="tales", delay_s=0.0):
        apps.append(App(display, model, delay_s))
        return apps[-1]

    yield start
    for one in apps:
        one.process.kill()
        one.process.communicate()


def test_ask_stop_ask_again_and_close_while_it_answers(app, tmp_path):
    one = app()
    ready = one.until(lambda shown: shown["state"] == "ready")
    assert ready["button"] == "Send"
    assert ready["status"].startswith("tales, ")
    one.type("Tell me a story about a fox.", "Return")
    answered = one.until(lambda shown: shown["state"] == "ready" and "fox.\n" in shown["text"])
    assert len(answered["text"].splitlines()) >= 2
    assert "tok/s" in answered["status"]
    if shutil.which("import"):  # to look at
        children.run(
            [
                "import",
                "-window",
                "root",
                os.environ.get("GGUF_SPEC_SCREENSHOT", str(tmp_path / "app.png")),
            ],
            env=one.environment,
            check=True,
        )
    one.type("One line", "shift+Return")
    one.type("and another.", "Return")
    one.until(
        lambda shown: (
            shown["state"] in ("answering", "ready") and "One line\nand another.\n" in shown["text"]
        )
    )
    one.until(lambda shown: shown["state"] == "ready")
    one.close()
    assert one.left() == (["MainThread"], "")


def test_stop_and_close_while_it_answers(app):
    one = app(delay_s=0.1)
    one.until(lambda shown: shown["state"] == "ready")
    one.type("Tell me a story about a king.", "Return")
    one.until(lambda shown: shown["button"] == "Stop" and len(shown["text"]) > 40)
    one.click_button()
    stopped = one.until(lambda shown: shown["state"] == "ready")
    assert stopped["text"].endswith("[stopped]\n")
    one.type("Tell me a story about a fox.", "Return")
    one.until(
        lambda shown: (
            shown["state"] == "answering" and len(shown["text"]) > len(stopped["text"]) + 35
        )
    )
    one.close()
    assert one.left() == (["MainThread"], "")


def test_a_model_that_is_not_there(app):
    one = app("no-such-model.gguf")
    failed = one.until(lambda shown: shown["state"] == "failed")
    assert "there is no file no-such-model.gguf" in failed["text"]
    assert failed["button"] == "Close"
    one.click_button()
    assert one.left() == (["MainThread"], "")


def test_close_while_it_loads(app):
    one = app()
    one.until(lambda shown: shown["state"] == "loading")
    one.close()
    assert one.left() == (["MainThread"], "")
