"""Make the pictures of the documentation: docs/images/bench.svg from bench.json, which `gguf-spec bench --json` wrote, and edit.svg,
kept.svg and page.png from real runs. Without the name of a picture all are made.

edit.svg and kept.svg need qwen2.5-coder-1.5b (`gguf-spec models pull`), kept.svg tmux and a quiet machine, page.png chromium and
chromedriver. MODEL is the one that answers on the page.

PYTHONPATH=. .venv/bin/python scripts/docs/pictures.py [--model MODEL] [bench | edit | kept | page ...]
"""

import argparse
import contextlib
import fcntl
import io
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from functools import partial
from pathlib import Path

from plot_bench import chart
from rich.console import Console
from rich.text import Text

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.conftest import until
from tests.support.browser import Page, start

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 100
QUESTION = "Write a Python function that checks whether a number is prime."
EDIT = "edit -m qwen2.5-coder-1.5b scripts/examples/service.yaml 'add the station Bern in Switzerland as number 7' --show-draft --diff"


KEPT_FILE = Path("docs/how-it-works.md")
STATS = "/stats"
KEPT = (
    (
        "gguf-spec chat -m qwen2.5-coder-1.5b --keep kept",
        "/file how-it-works.md",
        "What is a round? One sentence.",
        STATS,
    ),
    (
        "gguf-spec chat -m qwen2.5-coder-1.5b --keep kept --continue",
        "And what does a draft model do? One sentence.",
        STATS,
    ),
)


def bench():
    """The benchmark of docs/benchmarks.md."""
    report = json.loads((IMAGES / "bench.json").read_text(encoding="utf-8"))
    (IMAGES / "bench.svg").write_text(chart(report), encoding="utf-8")


def read_all(here):
    """Return all bytes that come out of a pseudo-terminal before its other end is closed."""
    seen = b""
    with contextlib.suppress(OSError):  # Linux: the other end was closed
        while data := os.read(here, 65536):
            seen += data
    os.close(here)
    return seen


def settled(shown):
    """Return what stays on a screen: lines that rich shows for a while and erases are left out."""
    lines, row = [""], 0
    for part in re.split(r"(\n|\r|\x1b\[1A|\x1b\[2K|\x1b\[\?25[lh])", shown):
        if part == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif part == "\x1b[1A":
            row -= 1
        elif part in {"\r", "\x1b[2K"}:
            lines[row] = ""
        elif not part.startswith("\x1b[?25"):
            lines[row] += part
    return "\n".join(lines)


def svg_of(shown, title):
    """Return what a terminal shows, as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(Text.from_ansi(shown))
    svg = console.export_svg(title=title)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing
    return svg.replace("Fira Code, monospace", "monospace").replace(
        "<!-- Generated with Rich https://www.textualize.io -->", ""
    )


def edit():
    """What the command shows at a terminal, as SVG."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "gguf_spec", *shlex.split(EDIT)]
    with subprocess.Popen(line, stdin=there, stdout=there, stderr=there, env=environment, cwd=ROOT):
        os.close(there)
        shown = settled(read_all(here).decode().replace("\r\n", "\n"))
    typed = EDIT.replace("'", '"')
    svg = svg_of(
        f"$ gguf-spec {typed}\n{shown.rstrip()}",
        "green: drafted from the old text, and kept by the model",
    )
    (IMAGES / "edit.svg").write_text(svg, encoding="utf-8")


class Terminal:
    """A terminal of tmux, with a shell in it."""

    def __init__(self, folder, environment):
        self._tmux = ["tmux", "-L", f"pictures-{os.getpid()}", "-f", os.devnull]
        size = ["-x", str(WIDTH), "-y", "60"]
        given = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        self._run("new-session", "-d", *size, "-c", folder, *given, "bash --norc")
        until(lambda: self.last().endswith(("$", "#")), 60.0)
        self.type("PS1='$ '; clear", "$")

    def _run(self, *words):
        done = subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True)
        return done.stdout

    def shown(self):
        """Return the screen with its colours."""
        return self._run("capture-pane", "-p", "-e").rstrip()

    def last(self):
        """Return the line of the cursor; a chat has a status below it."""
        row = self._run("display-message", "-p", "#{cursor_y}").strip()
        return self._run("capture-pane", "-p", "-S", row, "-E", row).rstrip()

    def type(self, text, prompt):
        """Type a line, and wait until there is a prompt."""
        self._run("send-keys", "-l", text)
        until(lambda: self.last().endswith(text[-WIDTH // 2 :]), 60.0)
        self._run("send-keys", "Enter")
        until(lambda: self.last() == prompt, 900.0)

    def leave(self):
        """Leave a chat."""
        self._run("send-keys", "C-d")
        until(lambda: self.last() == "$", 60.0)

    def close(self):
        self._run("kill-server")


def kept():
    """A chat about a file that goes on after a restart, as SVG."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / KEPT_FILE.name).write_bytes((ROOT / KEPT_FILE).read_bytes())
        given = {
            "PYTHONPATH": str(ROOT),
            "XDG_STATE_HOME": f"{folder}/state",
        }
        terminal = Terminal(folder, given)
        try:
            terminal.type(f'gguf-spec() {{ {sys.executable} -m gguf_spec "$@"; }}; clear', "$")
            for command, *lines in KEPT:
                terminal.type(command, ">")
                for one in lines:
                    terminal.type(one, ">")
                terminal.leave()
            shown = terminal.shown().removesuffix("$").rstrip()
        finally:
            terminal.close()
    svg = svg_of(shown, "the second process reads what is new, and says what one alone would")
    (IMAGES / "kept.svg").write_text(svg, encoding="utf-8")


def page(model):
    """The page after a question and its answer, as PNG."""
    with (
        gguf_spec.load(model) as llm,
        serve_in_thread(llm, port=0) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        driver = start(shutil.which("chromium"), shutil.which("chromedriver"), profile)
        try:
            one = Page(driver, server.url)
            metrics = {"width": 1100, "height": 700, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            one.set(seed=1, temperature=0)
            one.say(QUESTION)
            until(lambda: one.count(".message") == 2 and one.idle(), 900.0)  # a large model is slow
            driver.save_screenshot(str(IMAGES / "page.png"))
        finally:
            driver.quit()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="tales")
    parser.add_argument("pictures", nargs="*", metavar="PICTURE")
    args = parser.parse_args()
    make = {"bench": bench, "edit": edit, "kept": kept, "page": partial(page, args.model)}
    for name in args.pictures or make:
        make[name]()


if __name__ == "__main__":
    main()
