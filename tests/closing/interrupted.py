"""Interrupt requests by real SIGINTs at random moments; after each the next request must give the right text.

Usage: interrupted.py FOLDER N. A process of its own sends the signals, as a terminal would.
"""

import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from tests.closing.children import default_signals
from tests.closing.requests import REQUESTS, load_pair

LIMIT_S = 60


class Sender:
    """Another process that sends SIGINT to this one after a number of seconds."""

    def __init__(self):
        us, (theirs, self._ask) = os.getpid(), os.pipe()
        if os.fork() == 0:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            os.close(self._ask)
            while asked := os.read(theirs, 16):
                time.sleep(float(asked))
                os.kill(us, signal.SIGINT)
            os._exit(0)
        os.close(theirs)

    def send_after(self, seconds):
        os.write(self._ask, f"{seconds:.12f}".encode()[:16])

    def close(self):
        os.close(self._ask)
        os.wait()


def interrupt(sender, request, after_s):
    """Run a request into an interrupt; return what was raised, whether the request had ended before, and why it failed of itself."""
    ended, failed = False, ""
    try:
        sender.send_after(after_s)
        try:
            request()
        except Exception as error:
            failed = repr(error)
        ended = True
        time.sleep(LIMIT_S)
    except KeyboardInterrupt as error:
        return error, ended, failed
    raise AssertionError("the interrupt never came")


def stacks():
    """Return where each thread is."""
    names = {one.ident: one.name for one in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"{names.get(ident)}:\n{''.join(traceback.format_stack(frame))}"


def in_another_thread(request):
    found, failed = [], []

    def run():
        try:
            found.append(request())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    assert not thread.is_alive(), "\n".join(["another thread waits for ever", *stacks()])
    if failed:
        raise failed[0]
    return found[0]


def main(folder, n):
    default_signals()
    sender, rng = Sender(), random.Random(2)
    folder, kept, wrong, n_in_time, n_signals = Path(folder), [], [], 0, int(n)
    with load_pair() as llm:
        names = sorted(REQUESTS)
        right = {name: REQUESTS[name](llm, folder) for name in names}
        assert right == {name: REQUESTS[name](llm, folder) for name in names}, (
            "not even without interrupts"
        )
        took = {}
        for name in names:
            began = time.perf_counter()
            REQUESTS[name](llm, folder)
            took[name] = time.perf_counter() - began
        for i in range(n_signals):
            name, following = names[i % len(names)], rng.choice(names)
            error, ended, failed = interrupt(
                sender, lambda name=name: REQUESTS[name](llm, folder), rng.random() * took[name]
            )
            n_in_time += not ended
            if i % 2 and name != "stream":
                kept = [error]  # as a notebook keeps the last one, and all its frames
            del error
            began = time.perf_counter()
            try:
                run = (
                    REQUESTS[following]
                    if i % 5
                    else lambda llm, folder, run=REQUESTS[following]: in_another_thread(
                        lambda: run(llm, folder)
                    )
                )
                found = run(llm, folder)
            except Exception as other:
                found = repr(other)
            took[following] = min(took[following], time.perf_counter() - began)
            if found != right[following] or failed:
                wrong.append((i, name, following))
                print(
                    f"WRONG after {name}: {following} gives {found!r}, not {right[following]!r}; {failed}",
                    flush=True,
                )
    sender.close()
    del kept
    print(f"{n_signals} SIGINTs, {n_in_time} during a request, {len(wrong)} wrong")
    return 1 if wrong or n_in_time < n_signals // 4 else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
