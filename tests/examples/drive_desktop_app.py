"""Runs the desktop app and prints its state ten times a second, as one line of JSON.

Arguments: the model, and the seconds that each round takes longer. A line on stdin closes the window as its frame does.
"""

import json
import sys
import threading
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "examples"))

import desktop_app

import gguf_spec
from gguf_spec import Stream

gguf_spec.load, quick = (
    partial(gguf_spec.load, threads=1),
    Stream.__next__,
)  # on a busy machine a second thread is waited for
Stream.__next__ = lambda self: (time.sleep(float(sys.argv[2])), quick(self))[1]
window = desktop_app.Window(sys.argv[1])
closing = threading.Event()
threading.Thread(
    target=lambda: (sys.stdin.readline(), closing.set()), daemon=True, name="stdin"
).start()


def tell():
    shown = {
        "state": window.state_,
        "text": window.answers.get("1.0", "end-1c"),
        "status": window.status.cget("text"),
        "button": window.button.cget("text"),
    }
    print(json.dumps(shown), flush=True)
    if closing.is_set():
        closing.clear()
        window.tk.eval(window.protocol("WM_DELETE_WINDOW"))
    window.after(100, tell)


tell()
window.mainloop()
print(
    json.dumps(
        {
            "state": "left",
            "threads": [thread.name for thread in threading.enumerate() if thread.name != "stdin"],
        }
    ),
    flush=True,
)
