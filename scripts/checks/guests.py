#!/usr/bin/env python3
"""Be a guest in the programs of others: Qt, Jupyter, gunicorn, PyTorch; say where something hangs, fails or ends with a wrong code.

    .venv/bin/python scripts/checks/guests.py                  # all, installed by pip below --folder
    .venv/bin/python scripts/checks/guests.py qt jupyter

Tests have what needs no other program: Tk, PyInstaller, pools, forks, signals. This needs a package index and Linux; nothing of
it runs in CI but at night.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "qt": ["PySide6-Essentials==6.12.0"],
    "jupyter": ["nbclient==0.11.0", "ipykernel==7.4.0"],
    "gunicorn": ["gunicorn==27.0.1"],
    "torch": ["torch==2.13.0+cpu"],
}
LIMIT_S = 180
LONG = "Sampling(max_tokens=None, ignore_eos=True, overflow='shift', seed=1)"

QT = f"""
import os, sys, threading
from PySide6.QtCore import QObject, QTimer, Signal
from PySide6.QtWidgets import QApplication, QPlainTextEdit, QPushButton, QVBoxLayout, QWidget
import gguf_spec
from gguf_spec import Sampling

class Worker(QObject):
    said, over = Signal(str), Signal()

    def run(self):
        try:
            self.llm = gguf_spec.load("tales", threads=1)
            for _ in range(2):
                with self.llm.stream("Once", {LONG}) as self.stream:
                    for chunk in self.stream:
                        self.said.emit(chunk.text)
        except gguf_spec.errors.ClosedError:
            pass
        self.over.emit()

def said(text):
    seen.append(text)
    if len(seen) % 20 == 0:
        {{"cancel": button.click, "quit": app.quit, "exit": lambda: sys.exit(3),
          "unload": lambda: threading.Thread(target=worker.llm.close).start()}}[step]()

step, seen, app = sys.argv[1], [], QApplication([])
window, text, button = QWidget(), QPlainTextEdit(), QPushButton("stop")
box = QVBoxLayout(window)
box.addWidget(text)
box.addWidget(button)
worker = Worker()
button.clicked.connect(lambda: worker.stream.cancel())
worker.said.connect(text.insertPlainText)
worker.said.connect(said)
worker.over.connect(app.quit)
if step == "quit while it loads":
    QTimer.singleShot(1, app.quit)
window.show()
threading.Thread(target=worker.run, daemon=True).start()
code = app.exec()
assert step == "quit while it loads" or text.toPlainText()
print("ends", flush=True)
sys.exit(code)
"""

JUPYTER = f"""
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

cells = [
    "import gguf_spec, os, threading\\nfrom gguf_spec import AsyncLLM, Sampling\\nllm = gguf_spec.load('tales', threads=1)",
    "for chunk in llm.stream('Once', Sampling(max_tokens=20, seed=1)): print(chunk.text, end='')",
    "one = AsyncLLM(llm)\\nprint((await one.generate('Once', Sampling(max_tokens=20, seed=1))).text, end='')",
    "import _thread\\nthreading.Timer(0.5, os.kill, (os.getpid(), 2)).start()\\nllm.generate('Once', {LONG})",
    "print(llm.generate('Once', Sampling(max_tokens=20, seed=1)).text, end='')",
    "llm",
    "threading.Thread(target=llm.generate, args=('Once', {LONG})).start()",  # it runs when the kernel ends
]
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
client = NotebookClient(notebook, timeout=120, kernel_name="python3")
errors = []
with client.setup_kernel():
    for i, cell in enumerate(notebook.cells):
        try:
            client.execute_cell(cell, i)
        except CellExecutionError as error:
            errors.append((i, error.ename))
texts = ["".join(out.get("text", "") for out in cell.outputs) for cell in notebook.cells]
assert errors == [(3, "KeyboardInterrupt")], errors
assert texts[1] and texts[1] == texts[2] == texts[4], texts
assert "tales" in notebook.cells[5].outputs[0]["data"]["text/plain"]
print("ends")
"""

GUNICORN = """
import gguf_spec, os
from gguf_spec import Sampling
from gguf_spec.errors import ForkedError

early, own = gguf_spec.load("tales", threads=1), []

def app(environ, start_response):
    try:
        if environ["PATH_INFO"] == "/early":
            llm = early
        else:
            own.extend([] if own else [gguf_spec.load("tales", threads=1)])
            llm = own[0]
        said = llm.generate("Once", Sampling(max_tokens=20, seed=1)).text
    except ForkedError as error:
        said = f"refused: {error} {error.hint}"
    start_response("200 OK", [("Content-Type", "text/plain; charset=utf-8")])
    return [said.encode()]
"""

TORCH = """
import sys
def ours():
    import gguf_spec
    from gguf_spec import Sampling
    with gguf_spec.load("tales", threads=2) as llm:
        return llm.generate("Once", Sampling(max_tokens=60, seed=1)).text
def theirs():
    import torch
    torch.manual_seed(1)
    return float((torch.rand(300, 300) @ torch.rand(300, 300)).sum())
calls = {"before": [theirs, ours, theirs, ours], "after": [ours, theirs, ours, theirs], "never": [ours]}[sys.argv[1]]
seen = [one() for one in calls]
assert len(set(seen)) == len({*calls}), seen
print([one for one in seen if isinstance(one, str)][0])
"""


class Failed(Exception):
    """A guest was treated badly, or was one."""


def python(folder: Path) -> str:
    return str(folder / "bin" / "python")


def install(names: list[str], folder: Path) -> None:
    """Install what the hosts need in an environment of its own, beside the packages of this one."""
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        places = [str(ROOT), *site.getsitepackages()]
        lines = [f"import site; site.addsitedir({place!r})" for place in places]
        inner = next(folder.glob("lib/python*/site-packages"))
        (inner / "guest.pth").write_text("\n".join(lines) + "\n")
    packages = [one for name in names for one in PACKAGES[name]]
    subprocess.run([python(folder), "-m", "pip", "install", "-q", *packages], check=True)


def run(folder: Path, work: Path, code: str, *words: str, expected: int = 0) -> str:
    """Run code in a host; return what it printed.

    Raises:
        Failed: It did not end, or with another code.
    """
    environment = os.environ | {"HOME": str(work), "QT_QPA_PLATFORM": "offscreen"}
    command = [python(folder), "-c", code, *words]
    try:
        done = subprocess.run(
            command, cwd=work, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{words}: it hangs: {error.stdout!r} {error.stderr!r}") from None
    if done.returncode != expected:
        raise Failed(f"{words}: exit {done.returncode}: {done.stdout} {done.stderr}")
    return done.stdout


def qt(folder: Path, work: Path) -> str:
    steps = {"cancel": 0, "quit": 0, "unload": 0, "exit": 3, "quit while it loads": 0}
    for step, code in steps.items():
        run(folder, work, QT, step, expected=code)
    return f"{len(steps)} ways to end a window"


def jupyter(folder: Path, work: Path) -> str:
    run(folder, work, JUPYTER)
    return "streams, awaits, Ctrl-C in an answer, the end of the kernel in another"


def gunicorn(folder: Path, work: Path) -> str:
    (work / "host.py").write_text(GUNICORN)
    command = [python(folder), "-m", "gunicorn", "--preload", "-w", "2", "-b", "127.0.0.1:0", "host:app"]  # fmt: skip
    with (work / "log").open("wb") as log:
        child = subprocess.Popen(
            command, cwd=work, env=os.environ | {"HOME": str(work)}, stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + LIMIT_S
        while not (
            found := re.search(r"Listening at: (http\S+)", (work / "log").read_text("utf-8"))
        ):
            if time.monotonic() > until or child.poll() is not None:
                raise Failed((work / "log").read_text("utf-8"))
            time.sleep(0.1)
        texts = {}
        for place in ("early", "own"):
            answers = {
                urllib.request.urlopen(f"{found[1]}/{place}", timeout=LIMIT_S).read().decode()
                for _ in range(6)
            }
            if len(answers) != 1:
                raise Failed(f"{place}: {answers}")
            texts[place] = answers.pop()
        if "each process" not in texts["early"] or "refused" in texts["own"]:
            raise Failed(f"{texts}")
        child.send_signal(signal.SIGTERM)
        if code := child.wait(60):
            raise Failed(f"exit {code}: {(work / 'log').read_text('utf-8')}")
    finally:
        child.kill()
        child.wait()
    return "a model of the master is refused with a hint, those of the workers answer alike"


def torch(folder: Path, work: Path) -> str:
    texts = {run(folder, work, TORCH, when) for when in ("never", "before", "after")}
    if len(texts) != 1:
        raise Failed(f"the texts differ: {texts}")
    return "the same texts and sums, imported before and after"


HOSTS = {"qt": qt, "jupyter": jupyter, "gunicorn": gunicorn, "torch": torch}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*HOSTS, []], help="the hosts; all without one")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()) / "gguf-spec-guests"
    )
    args = parser.parse_args()
    names, n_failed = args.names or [*HOSTS], 0
    install(names, args.folder)
    for name in names:
        work = Path(tempfile.mkdtemp(prefix=f"gguf-spec-{name}-"))
        try:
            print(f"{name:<10}ok: {HOSTS[name](args.folder, work)}", flush=True)
        except Failed as error:
            n_failed += 1
            print(f"{name:<10}FAILED: {error}", flush=True)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return min(n_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
