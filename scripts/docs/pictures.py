"""Make the pictures of the documentation: docs/images/bench.svg from bench.json, which `gguf-spec bench --json` wrote, and edit.svg and
page.png from real runs. Without the name of a picture all are made.

edit.svg needs qwen2.5-coder-1.5b (`gguf-spec models pull`), page.png chromium and chromedriver. MODEL is the one that answers on the page.

PYTHONPATH=. .venv/bin/python scripts/docs/pictures.py [--model MODEL] [bench | edit | page ...]
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


def edit():
    """What the command shows at a terminal, as SVG."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 60, WIDTH, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "gguf_spec", *shlex.split(EDIT)]
    with subprocess.Popen(line, stdin=there, stdout=there, stderr=there, env=environment, cwd=ROOT):
        os.close(there)
        shown = settled(read_all(here).decode().replace("\r\n", "\n"))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    typed = EDIT.replace("'", '"')
    console.print(Text.from_ansi(f"$ gguf-spec {typed}\n{shown.rstrip()}"))
    svg = console.export_svg(title="green: drafted from the old text, and kept by the model")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing
    svg = svg.replace("Fira Code, monospace", "monospace").replace(
        "<!-- Generated with Rich https://www.textualize.io -->", ""
    )
    (IMAGES / "edit.svg").write_text(svg, encoding="utf-8")


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
    make = {"bench": bench, "edit": edit, "page": partial(page, args.model)}
    for name in args.pictures or make:
        make[name]()


if __name__ == "__main__":
    main()
