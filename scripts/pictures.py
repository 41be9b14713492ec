"""Make the pictures of the documentation: docs/images/bench.svg from bench.json, which `gguf-spec bench --json` wrote, and show-draft.svg and page.png
from real runs. Needs chromium and chromedriver.

PYTHONPATH=. .venv/bin/python scripts/pictures.py
"""

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
from tests.terminals import screen_of

import gguf_spec
from gguf_spec import Speculation
from gguf_spec.server import serve_in_thread
from tests.server.browser import Page, start
from tests.server.conftest import until

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDTH = 100
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
        shown = screen_of(here).decode().replace("\r\n", "\n")
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    typed = " ".join(f'"{word}"' if " " in word else word for word in COMMAND)
    console.print(Text.from_ansi(f"$ gguf-spec {typed}\n{shown.rstrip()}"))
    svg = console.export_svg(title="green: what the draft proposed and the target kept")
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # a picture fetches nothing
    svg = svg.replace("Fira Code, monospace", "monospace").replace(
        "<!-- Generated with Rich https://www.textualize.io -->", ""
    )
    (IMAGES / "show-draft.svg").write_text(svg, encoding="utf-8")


def page():
    """The page after a question, as PNG."""
    with (
        gguf_spec.load(
            "tales", threads=1, speculation=Speculation(4, adaptive=False)
        ) as llm,  # drafts, whether it pays or not
        serve_in_thread(llm, port=0) as server,
        tempfile.TemporaryDirectory() as profile,
    ):
        driver = start(shutil.which("chromium"), shutil.which("chromedriver"), profile)
        try:
            one = Page(driver, server.url)
            driver.set_window_size(900, 700)
            one.set(seed=7, max_tokens=110)
            one.say("Tell me a story about a fox and a king.")
            until(one.idle)
            driver.save_screenshot(str(IMAGES / "page.png"))
        finally:
            driver.quit()


if __name__ == "__main__":
    bench()
    terminal()
    page()
