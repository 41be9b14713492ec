#!/usr/bin/env python3
"""A week of a box in minutes: short requests, a clock that jumps, logs that are cut, a network that goes and comes back.

    sudo .venv/bin/python scripts/checks/week.py [--requests 20000]

`gguf-spec serve` runs with a tiny model. Ends with 1 where an answer has a wrong status, where memory grows by more than 5 MB after the first
quarter, where a file or a thread is left, or where SIGTERM does not end it. As root it has a network of its own, which is taken away; else that
part is left out.
"""

from __future__ import annotations

import argparse
import ctypes
import http.client
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import tiny  # noqa: E402 -- found by the path set above

PORT, STEPS = 18765, 20
CLONE_NEWNET = 0x40000000
MOST_MB = 5.0
JUMPS = ("0", "-1.79e9", "3e8", "86400", "-3600")  # seconds; the second one is 1970
SERVER = """
import sys, time
real, file = time.time, sys.argv.pop(1)
def shift():
    with open(file) as one:
        return float(one.read() or 0)
time.time = lambda: real() + shift()
time.time_ns = lambda: int(time.time() * 1e9)
from gguf_spec.__main__ import main
sys.argv[0] = "gguf-spec"
main()
"""
BODY = {"Content-Type": "application/json"}


def ask(i: int, limit_s: float = 60) -> int | str:
    """Make one of five kinds of requests; return the status."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=limit_s)
    try:
        if i % 5 == 0:
            connection.request("GET", "/health")
        elif i % 5 == 4:
            connection.request("POST", "/v1/chat/completions", b"{bad", BODY)
        else:
            body = {"prompt": f"a{i}", "max_tokens": 4, "stream": i % 5 == 1}
            connection.request("POST", "/v1/completions", json.dumps(body), BODY)
        answer = connection.getresponse()
        answer.read(5 if i % 25 == 1 else None)  # some leave in the middle
        return answer.status
    finally:
        connection.close()


def state(pid: int) -> tuple[float, int, int]:
    """Return the memory in MB, the open files and the threads of a process."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return pages * 4096 / 1e6, len([*(folder / "fd").iterdir()]), len([*(folder / "task").iterdir()])  # fmt: skip


def network(is_up: bool) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up" if is_up else "down"], check=True)


def week(n: int, work: Path) -> list[str]:
    """Make the requests; return what is wrong."""
    wrong, has_network = list[str](), os.geteuid() == 0
    if has_network:
        has_network = ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        network(True)
    tiny.write(work / "m.gguf", tiny.one_text("abcdefghijkl"))
    clock, log = work / "clock", work / "log"
    clock.write_text("0")
    command = [sys.executable, "-c", SERVER, str(clock), "serve", "-m", str(work / "m.gguf"), "--port", str(PORT), "--parallel", "2"]  # fmt: skip
    environment = os.environ | {"HOME": str(work), "PYTHONPATH": str(ROOT)}
    with log.open("ab") as out:
        child = subprocess.Popen(command, env=environment, cwd=work, stdout=out, stderr=out)
    try:
        until = time.monotonic() + 120
        while True:
            try:
                ask(0)
                break
            except OSError:
                if time.monotonic() > until or child.poll() is not None:
                    return [f"it does not start: {log.read_text()}"]
                time.sleep(0.1)
        seen, states = Counter[tuple[int, int | str]](), []
        for i in range(n):
            seen[i % 5, ask(i)] += 1
            if i % (n // STEPS) == 0:
                states.append(state(child.pid))
                print(f"{i:>7,}: {states[-1][0]:.1f} MB, {states[-1][1]} files, {states[-1][2]} threads", flush=True)  # fmt: skip
                clock.write_text(random.choice(JUMPS))
                if b"Traceback" in log.read_bytes():
                    wrong.append(log.read_text())
                os.truncate(log, 0)  # as copytruncate of logrotate
                if has_network:
                    network(False)
                    try:
                        ask(0, 0.2)
                        wrong.append("an answer without a network")
                    except OSError:
                        pass
                    network(True)
        if {kind for kind in seen if kind[1] != (400 if kind[0] == 4 else 200)}:
            wrong.append(f"{seen}")
        first, last = states[STEPS // 4], states[-1]
        if last[0] - first[0] > MOST_MB or last[1] > first[1] + 3 or last[2] > first[2] + 1:
            wrong.append(f"it grows: {first}, {last}")
        child.send_signal(signal.SIGTERM)
        if code := child.wait(60):
            wrong.append(f"exit {code}: {log.read_text()}")
    finally:
        child.kill()
        child.wait()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="gguf-spec-week-"))
    try:
        wrong = week(max(args.requests, STEPS), work)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("\n".join(wrong) or "nothing is wrong")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
