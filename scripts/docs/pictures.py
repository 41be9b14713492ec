"""Make the pictures of the documentation: docs/images/bench.svg from bench.json, which `gguf-spec bench --json` wrote, and show-draft.svg and page.png
from real runs. Needs chromium and chromedriver. MODEL is the one that answers on the page.

PYTHONPATH=. .venv/bin/python scripts/docs/pictures.py [MODEL]
"""

import contextlib
import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from plot_bench import chart
from rich.console import Console
from rich.text import Text

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.support.browser import Page, start

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
WIDTH = 100
QUESTION = "Write a Python function that checks whether a number is prime."
COMMAND = [
    "generate",
    "-m",
    "tales",
    "Once upon a time",
    "--seed",
    "4",
    "-n",
    "110",
    "-k",
    "4",
    "--fixed",
    "--show-draft",
    "--threads",
    "1",
    "--stats",
]


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


def terminal():
    """What the command shows at a terminal, as SVG."""
    here, there = pty.openpty()
    environment = os.environ | {
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "gguf_spec", *COMMAND],
        stdin=there,
        stdout=there,
        stderr=there,
        env=environment,
    ):
        os.close(there)
        shown = read_all(here).decode().replace("\r\n", "\n")
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    typed = " ".join(f'"{word}"' if " " in word else word for word in COMMAND)
    console.print(Text.from_ansi(f"$ gguf-spec {typed}\n{shown.rstrip()}"))
    svg = console.export_svg(title="green: what the draft proposed and the target kept")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing
    svg = svg.replace("Fira Code, monospace", "monospace").replace(
        "<!-- Generated with Rich https://www.textualize.io -->", ""
    )
    (IMAGES / "show-draft.svg").write_text(svg, encoding="utf-8")


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
            one.answer(QUESTION)
            driver.save_screenshot(str(IMAGES / "page.png"))
        finally:
            driver.quit()


if __name__ == "__main__":
    bench()
    terminal()
    page(sys.argv[1] if len(sys.argv) > 1 else "tales")
