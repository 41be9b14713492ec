"""Twenty minutes of a server at full queue: clients that wait, leave and cancel, sessions saved and restored. Says whether memory stays flat.

.venv/bin/python scripts/checks/soak.py [--minutes 20] [--clients 24] [-m MODEL] [-d DRAFT]
.venv/bin/python scripts/checks/soak.py --parallel 4 [--minutes 20] [--clients 24] [-m MODEL] [-d DRAFT]
.venv/bin/python scripts/checks/soak.py --loads 1000 [-m tales-draft]

Every answer is compared with the one given alone. Ends with 1 where one differs, where memory grows by more than 1 MB a minute after the first
quarter, or where a file or a thread is left. With --parallel no server: threads make requests that share passes, of which some are cancelled,
dropped, fail or fill their context. With --loads no server: a model is loaded, says a few tokens and is closed so often.
"""

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import _soak_together as together
import numpy as np

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.server import serve_in_thread

PROMPTS = [
    "Once upon a time",
    "There was once a king who",
    "A fox met a crow, and",
    "In a deep forest there lived",
    "The miller had three sons",
]
MOST_MB_A_MINUTE = 1.0
MOST_MB_OF_LOADS = 20.0
PREFIX_MEMORY = "4MB"  # full within seconds; a memory that is being filled looks like a leak


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def left():
    """Files and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


class Client:
    """One client: asks, reads some of the answer or all of it, and goes on."""

    def __init__(self, address, right, counts, until, seed):
        self._address, self._right, self._counts, self._until, self._random = (
            address,
            right,
            counts,
            until,
            random.Random(seed),
        )

    def run(self):
        while time.monotonic() < self._until:
            (prompt, seed), text = self._random.choice(list(self._right.items()))
            what = self._random.choices(["read", "stream", "leave", "refused"], [5, 5, 3, 1])[0]
            try:
                self._counts[self._ask(prompt, seed, text, what)] += 1
            except OSError as error:
                self._counts[f"failed: {error}"] += 1

    def _ask(self, prompt, seed, right, what):
        body = {
            "prompt": prompt,
            "seed": seed,
            "max_tokens": 40,
            "temperature": 0.8,
            "stream": what in ("stream", "leave"),
        }
        if what == "refused":
            body["n"] = 2
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        try:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"}
            )
            answer = connection.getresponse()
            if answer.status == 429:
                time.sleep(0.05)
                return "queue full"
            if what == "refused":
                return "refused" if answer.status == 400 else f"wrong status {answer.status}"
            if answer.status != 200:
                return f"wrong status {answer.status}"
            if what == "leave":
                answer.read(self._random.randrange(1, 2000))
                return "left"
            text = (
                whole(answer.read())
                if body["stream"]
                else json.loads(answer.read())["choices"][0]["text"]
            )
            return "right" if text == right else "WRONG TEXT"
        finally:
            connection.close()


def whole(events):
    """The text of a stream."""
    lines = [
        line[6:]
        for line in events.decode().splitlines()
        if line.startswith("data: ") and line != "data: [DONE]"
    ]
    return "".join(choice["text"] for line in lines for choice in json.loads(line)["choices"])


def sessions(llm, folder, until, counts):
    """Save and restore a conversation beside the requests, every second."""
    chat = llm.chat(sampling=Sampling(max_tokens=20, seed=1))
    while time.monotonic() < until:
        if len(chat.messages) > 8:
            chat = llm.chat(sampling=Sampling(max_tokens=20, seed=1))
        chat.send("Tell me more of the fox.")
        chat.save(folder / "soak.session")
        data, why = llm.restore_session(folder / "soak.session")
        counts[
            "session restored"
            if not why and data["messages"] == chat.messages
            else f"WRONG SESSION {why}"
        ] += 1
        time.sleep(1)


def loads(model, n):
    """Load and close a model `n` times; return whether memory, files and threads are as after the first few times."""
    sizes, before = [], None
    for i in range(n):
        with gguf_spec.load(model, "none", threads=1) as llm:
            llm.generate("Once upon a time", Sampling(seed=1, max_tokens=5))
        sizes.append(resident_mb())
        if i == 9:
            before = left()
        if (i + 1) % (n // 10 or 1) == 0:
            print(f"{i + 1:5} loads  {sizes[-1]:7.1f} MB  {left()} files, threads", flush=True)
    first, last = np.median(sizes[10:60]), np.median(sizes[-50:])
    print(
        f"memory {first:.1f} MB after the first ten, {last:.1f} MB at the end; files and threads {before}, then {left()}"
    )
    return last - first < MOST_MB_OF_LOADS and left() == before


def watched(threads, minutes, counts):
    """Wait for the threads; return (minutes, MB) of the memory meanwhile."""
    samples, began = [], time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(5, 2 * minutes))
        samples.append(((time.monotonic() - began) / 60, resident_mb()))
        if len(samples) % 12 == 0:
            print(
                f"{samples[-1][0]:5.1f} min  {samples[-1][1]:7.1f} MB  {left()} files, threads  {dict(counts)}",
                flush=True,
            )
    return samples


def is_good(samples, minutes, counts, before, after):
    """Print the result; return whether all texts were right, memory was flat, and nothing was left."""
    # llama.cpp's and Python's memory pools grow in steps during the first minute.
    warm = [(minute, mb) for minute, mb in samples if minutes / 2 < minute < minutes]
    slope = np.polyfit(*zip(*warm, strict=True), 1)[0] if len(warm) > 2 else 0.0
    wrong = {
        name: n
        for name, n in counts.items()
        if name.isupper() or name.startswith(("WRONG", "wrong", "failed:"))
    }
    print(f"{sum(counts.values())} requests: {dict(counts)}")
    print(
        f"memory {samples[0][1]:.1f} to {samples[-1][1]:.1f} MB, {slope:+.3f} MB a minute; files and threads before {before}, after {after}"
    )
    return not (wrong or slope > MOST_MB_A_MINUTE or after[0] > before[0] or after[1] > before[1])


def alone(llm):
    """The text of each request, alone."""
    sampling = [Sampling(seed=seed, max_tokens=40, temperature=0.8) for seed in range(10)]
    return {
        (prompt, one.seed): llm.generate(prompt, one).text for prompt in PROMPTS for one in sampling
    }


def served(args):
    """Soak a server; return whether it went well."""
    counts = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        gguf_spec.load(args.model, args.draft, threads=1, prefix_memory=PREFIX_MEMORY) as llm,
    ):
        right, before = alone(llm), left()
        with serve_in_thread(llm, port=0) as server:
            address = server.url.removeprefix("http://").split(":")
            until = time.monotonic() + 60 * args.minutes
            threads = [
                threading.Thread(target=Client(address, right, counts, until, i).run)
                for i in range(args.clients)
            ]
            threads.append(
                threading.Thread(target=sessions, args=(llm, Path(folder), until, counts))
            )
            for thread in threads:
                thread.start()
            samples = watched(threads, args.minutes, counts)
        after = left()
    return is_good(samples, args.minutes, counts, before, after)


def in_company(args):
    """Soak requests that share passes; return whether it went well."""
    counts = Counter()
    options = {"threads": 1, "n_ctx": together.N_CTX, "prefix_memory": PREFIX_MEMORY}
    with gguf_spec.load(args.model, args.draft, **options) as llm:
        right = [
            (prompt, Sampling(seed=seed, max_tokens=40, temperature=0.8), text)
            for (prompt, seed), text in alone(llm).items()
        ]
    with gguf_spec.load(args.model, args.draft, parallel=args.parallel, **options) as llm:
        llm.generate("Once", Sampling(max_tokens=2))
        before, until = left(), time.monotonic() + 60 * args.minutes
        threads = together.begin(llm, right, counts, until, args.clients)
        samples = watched(threads, args.minutes, counts)
        counts["idle" if together.is_idle(llm) else "WRONG: a slot is left"] += 1
        after = left()
    return is_good(samples, args.minutes, counts, before, after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-m", "--model", default="tales")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--parallel", type=int, help="requests that share passes, and no server")
    parser.add_argument("--loads", type=int, help="load and close it so often, and run no server")
    args = parser.parse_args()
    if args.loads:
        sys.exit(0 if loads(args.model, args.loads) else 1)
    sys.exit(0 if (in_company if args.parallel else served)(args) else 1)


if __name__ == "__main__":
    main()
