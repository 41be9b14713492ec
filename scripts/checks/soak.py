"""Twenty minutes of a server at full queue: clients that wait, leave and cancel, sessions saved and restored. Says whether memory stays flat.

.venv/bin/python scripts/checks/soak.py [--minutes 20] [--clients 24] [--slots 1] [-m MODEL] [-d DRAFT]
.venv/bin/python scripts/checks/soak.py --parallel 4 [--minutes 20] [--clients 24] [-m MODEL] [-d DRAFT]
.venv/bin/python scripts/checks/soak.py --loads 1000 [-m tales-draft]

The clients speak the APIs of OpenAI (three routes), Anthropic and Ollama (two). Every answer is compared with the one given alone. Ends with 1 where one differs, where memory grows by more than 1 MB a minute after the first
quarter, or where a file or a thread is left. With --parallel no server: threads make requests that share passes, of which some are cancelled,
dropped, fail or fill their context. With --loads no server: a model is loaded, generates a few tokens and is closed, so many times.
"""

import argparse
import http.client
import json
import random
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import NoTokenLeftError
from gguf_spec.llama import own_kernels
from gguf_spec.server import serve_in_thread
from gguf_spec.speculative.drafters import DraftStore

PROMPTS = [
    "Once upon a time",
    "There was once a king who",
    "A fox met a crow, and",
    "In a deep forest there lived",
    "The miller had three sons",
]
MOST_MB_A_MINUTE = 1.0
WARM_REQUESTS = 2000  # after which memory may be asked for
MOST_MB_OF_LOADS = 20.0
N_CTX = 256  # of requests that share passes
WAYS = (Speculation(0), Speculation(), Speculation(4, adaptive=False), Speculation(drafter="ngram"))
_TALK = {"max_tokens": 4, "messages": [{"role": "user", "content": "<s> and \ud83e"}]}
_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "f", "arguments": '{"a": "<|im_end|>"}'},
}
_CALLED = [
    {"role": "assistant", "content": None, "tool_calls": [_CALL], "reasoning": "I call it."},
    {"role": "tool", "tool_call_id": "c1", "content": "</s>"},
]
_SET = {"type": "array", "uniqueItems": True, "items": {"type": "integer", "multipleOf": 0.5}}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "n", "strict": False, "schema": _SET}}
# Route -> the field of the prompt, that of the number of tokens, and what has the text: of an answer, of an event of a stream.
APIS = {
    "/v1/completions": (
        "prompt",
        "max_tokens",
        lambda a: a["choices"][0]["text"],
        lambda e: e["choices"][0]["text"],
    ),
    "/v1/chat/completions": (
        "messages",
        "max_tokens",
        lambda a: a["choices"][0]["message"]["content"],
        lambda e: e["choices"][0]["delta"].get("content") or "",
    ),
    "/v1/responses": (
        "input",
        "max_output_tokens",
        lambda a: "".join(p["text"] for one in a["output"] for p in one["content"]),
        lambda e: e["delta"] if e["type"] == "response.output_text.delta" else "",
    ),
    "/v1/messages": (
        "messages",
        "max_tokens",
        lambda a: "".join(p["text"] for p in a["content"]),
        lambda e: e["delta"]["text"] if e["type"] == "content_block_delta" else "",
    ),
    "/api/chat": (
        "messages",
        "num_predict",
        lambda a: a["message"]["content"],
        lambda e: e["message"]["content"],
    ),
    "/api/generate": ("prompt", "num_predict", lambda a: a["response"], lambda e: e["response"]),
}
# What clients send beside plain prompts: path, body, and the statuses that it may have.
ODD = (
    ("/v1/completions", {"prompt": "A", "max_tokens": 0}, [200]),
    ("/v1/completions", {"prompt": "A", "max_tokens": 3, "seed": -1, "top_p": 0}, [200]),
    ("/v1/completions", {"prompt": "A word. " * 50_000}, [400]),
    ("/v1/completions", {"prompt": "A", "max_tokens": 9, "n": 3, "logprobs": 2}, [200]),
    ("/v1/chat/completions", _TALK, [200]),
    ("/v1/chat/completions", _TALK | {"response_format": _FORMAT}, [200]),
    ("/v1/chat/completions", _TALK | {"messages": [*_TALK["messages"], *_CALLED]}, [200]),
    ("/v1/messages", _TALK, [200]),
    ("/api/chat", _TALK | {"options": {"num_predict": 3}}, [200]),
    ("/v1/embeddings", {"input": ["A fox", "a crow"]}, [200]),
    ("/v1/responses", {"input": "A fox", "max_output_tokens": 3}, [200]),
    ("/health", None, [200]),
)
NO_CACHES = "it was saved without caches"
# Full within seconds: a memory that is being filled looks like a leak. The 1,000 last answers of `/v1/responses` are within the first quarter.
PREFIX_MEMORY, STORE_BYTES = "4MB", 50_000


def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def left():
    """Files and threads of this process."""
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


class Client:
    """One client: sends requests, and reads a part of each answer or all of it."""

    def __init__(self, address, right, counts, until, seed):
        self._address, self._right, self._counts = address, right, counts
        self._until, self._random = until, random.Random(seed)

    def run(self):
        while time.monotonic() < self._until:
            (path, prompt, seed), text = self._random.choice(list(self._right.items()))
            what = self._random.choices(
                [self._odd, self._silent, "read", "stream", "leave", "refused"], [3, 1, 5, 5, 3, 1]
            )[0]
            try:
                found = what() if callable(what) else self._ask(path, prompt, seed, text, what)
                self._counts[found] += 1
            except OSError as error:
                self._counts[f"failed: {error}"] += 1

    def _odd(self):
        """Send what other programs send."""
        path, body, right = self._random.choice(ODD)
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        try:
            headers, method = {"content-type": "application/json"}, "POST" if body else "GET"
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            answer.read()
            is_right = answer.status in (*right, 429)
            return (
                "odd"
                if is_right
                else f"wrong status {answer.status} of {path}, {ODD.index((path, body, right))}"
            )
        finally:
            connection.close()

    def _silent(self):
        """Open a connection, send a part of a request, and leave."""
        with socket.create_connection(self._address, timeout=300) as connection:
            head = b"POST /v1/completions HTTP/1.1\r\ncontent-length: 99\r\n\r\n{"
            connection.sendall(head[: self._random.randrange(len(head))])
            time.sleep(self._random.random())
        return "silent"

    def _ask(self, path, prompt, seed, right, what):
        streams = what in ("stream", "leave")
        body = asked(path, prompt, seed, streams, "warm" if what == "refused" else 0.8)
        connection = http.client.HTTPConnection(*self._address, timeout=300)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", path, json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status == 429:
                time.sleep(0.05)
                return "queue full"
            if what == "refused":
                return "refused" if answer.status == 400 else f"wrong status {answer.status}"
            if answer.status != 200:
                return f"wrong status {answer.status} of {path}"
            if what == "leave":
                answer.read(self._random.randrange(1, 2000))
                return "left"
            is_right = text_of(path, answer.read(), streams) == right
            return f"right, {path}" if is_right else f"WRONG TEXT of {path}"
        finally:
            connection.close()


def asked(path, prompt, seed, streams, temperature=0.8):
    """The body of a request."""
    field, most, _, _ = APIS[path]
    said = [{"role": "user", "content": prompt}] if field == "messages" else prompt
    options = {"seed": seed, most: 40, "temperature": temperature}
    if path.startswith("/api/"):
        options = {"options": options, "raw": True} if field == "prompt" else {"options": options}
    return {"model": "", field: said, "stream": streams} | options


def text_of(path, data, streams):
    """The text of an answer or a stream."""
    _, _, of_answer, of_event = APIS[path]
    if not streams:
        return of_answer(json.loads(data))
    lines = data.decode().splitlines()
    if not path.startswith("/api/"):
        lines = [line[6:] for line in lines if line.startswith("data: ")]
    return "".join(of_event(json.loads(line)) for line in lines if line not in ("", "[DONE]"))


class PlantedError(Exception):
    """What a callback raises."""


class Requests:
    """One thread of requests of all kinds; each is counted under what became of it."""

    def __init__(self, llm, right, counts, until, seed):
        self._llm, self._right, self._counts, self._until = llm, right, counts, until
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._endless = Sampling(seed=seed, max_tokens=None, ignore_eos=True)

    def run(self):
        kinds = [self.read] * 6 + [self.stream] * 4
        kinds += [self.cancelled, self.dropped, self.failed, self.full, self.dead_end]
        while time.monotonic() < self._until:
            try:
                found = self._random.choice(kinds)()
            except Exception as error:
                found = f"failed: {error!r}"
            with self._lock:
                self._counts[found] += 1

    def _drawn(self):
        prompt, sampling, text = self._random.choice(self._right)
        way = self._random.choice(
            [way for way in WAYS if self._llm.draft_name or not way.k or way.adaptive]
        )
        return prompt, sampling, way, text

    def read(self):
        prompt, sampling, way, text = self._drawn()
        found = self._llm.generate(prompt, sampling, speculation=way)
        return "right" if found.text == text else "WRONG TEXT"

    def stream(self):
        prompt, sampling, way, text = self._drawn()
        with self._llm.stream(prompt, sampling, speculation=way) as stream:
            found = "".join(chunk.text for chunk in stream)
        return "right" if found == text else "WRONG TEXT"

    def cancelled(self):
        n = self._random.randrange(1, 30)
        tokens = []
        one = self._llm.generate(
            self._drawn()[0], self._endless, on_token=lambda t: tokens.append(t) or len(tokens) == n
        )
        return "cancelled" if len(one.tokens) == n else "WRONG CANCEL"

    def dropped(self):
        stream = self._llm.stream(self._drawn()[0], self._endless)
        for _ in range(self._random.randrange(3)):
            next(stream)
        return "dropped"

    def failed(self):
        def fail(_):
            raise PlantedError

        try:
            self._llm.generate(self._drawn()[0], self._endless, on_token=fail)
        except PlantedError:
            return "failed as it should"
        return "WRONG: its error is lost"

    def full(self):
        one = self._llm.generate(self._drawn()[0], self._endless)
        return "full context" if one.finish_reason == "length" else "WRONG END"

    def dead_end(self):
        forbidden = {
            i: float("-inf")
            for i in range(self._llm.vocabulary.n_vocab)
            if self._llm.token_bytes(i)[:1] == b"z"
        }
        try:
            sampling = Sampling(seed=1, grammar='root ::= "q" "z"', logit_bias=forbidden)
            self._llm.generate(self._drawn()[0], sampling)
        except NoTokenLeftError:
            return "dead end"
        return "WRONG: a dead end went on"


def is_idle(llm):
    """Whether no request is left in a slot or in the queue."""
    llm.snapshot()
    queue = llm.engine.queue
    is_empty = queue.n_running == queue.n_waiting == 0
    return is_empty and queue.scheduler.free == queue.scheduler.pairs


def sessions(llm, folder, until, counts):
    """Save and restore a conversation beside the requests, every second."""
    chat = llm.chat(sampling=Sampling(max_tokens=20, seed=1))
    while time.monotonic() < until:
        if len(chat.messages) > min(8, llm.n_ctx // 128):
            chat = llm.chat(sampling=Sampling(max_tokens=20, seed=1))
        chat.send("Tell me more of the fox.")
        chat.save(folder / "soak.session")
        data, why = llm.restore_session(folder / "soak.session")
        # the request before may have left an empty cache, as one for embeddings does
        good = why in ("", NO_CACHES) and data["messages"] == chat.messages
        counts["session restored" if good else f"WRONG SESSION {why}"] += 1
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
    print(f"memory {first:.1f} MB after the first ten, {last:.1f} MB at the end")
    print(f"files and threads {before}, then {left()}")
    return last - first < MOST_MB_OF_LOADS and left() == before


def watched(threads, minutes, counts):
    """Run the threads; return (minutes, MB, requests) of the time meanwhile."""
    for thread in threads:
        thread.start()
    samples, began = [], time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(min(5, 2 * minutes))
        samples.append(((time.monotonic() - began) / 60, resident_mb(), sum(counts.values())))
        if len(samples) % 12 == 0:
            minute, mb, _ = samples[-1]
            what = f"{left()} files, threads  {dict(counts)}"
            print(f"{minute:5.1f} min  {mb:7.1f} MB  {what}", flush=True)
    return samples


def is_good(samples, minutes, counts, before, after):
    """Print the result; return whether all texts were right, memory was flat, and nothing was left."""
    # llama.cpp's and Python's memory pools grow in steps during the first requests.
    warm = [
        (minute, mb)
        for minute, mb, n in samples
        if minutes / 2 < minute < minutes and n >= WARM_REQUESTS
    ]
    slope = np.polyfit(*zip(*warm, strict=True), 1)[0] if len(warm) > 2 else 0.0
    bad = ("WRONG", "wrong", "failed:")
    wrong = [name for name in counts if name.isupper() or name.startswith(bad)]
    print(f"{sum(counts.values())} requests: {dict(counts)}")
    memory = f"memory {samples[0][1]:.1f} to {samples[-1][1]:.1f} MB, {slope:+.3f} MB a minute"
    print(f"{memory}; files and threads before {before}, after {after}")
    return not (wrong or slope > MOST_MB_A_MINUTE or after[0] > before[0] or after[1] > before[1])


def alone(llm):
    """The text of each request, alone."""
    sampling = [Sampling(seed=seed, max_tokens=40, temperature=0.8) for seed in range(10)]
    return {
        (prompt, one.seed): llm.generate(prompt, one).text for prompt in PROMPTS for one in sampling
    }


def alone_at(server):
    """The text of each request to each API, when no other one runs."""
    right = {}
    for path in APIS:
        for prompt in PROMPTS:
            for seed in range(3):
                connection = http.client.HTTPConnection(*server, timeout=300)
                body = json.dumps(asked(path, prompt, seed, False))
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                data = answer.read()
                if answer.status != 200:
                    raise SystemExit(f"{path}: {answer.status} {data.decode()}")
                right[path, prompt, seed] = text_of(path, data, False)
                connection.close()
    return right


def served(args):
    """Soak a server; return whether it went well."""
    counts = Counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        gguf_spec.load(
            args.model,
            args.draft,
            threads=1,
            parallel=args.slots,
            prefix_memory=PREFIX_MEMORY,
            draft_texts="memory",
        ) as llm,
    ):
        llm.engine.pair.store = DraftStore(STORE_BYTES)
        texts, before = alone(llm), left()
        with serve_in_thread(llm, port=0) as server:
            address = server.url.removeprefix("http://").split(":")
            right = alone_at(address)
            for (prompt, seed), text in texts.items():
                counts["WRONG ALONE"] += right.get(("/v1/completions", prompt, seed), text) != text
            counts += Counter()  # without what was never seen
            print(f"{len(right)} texts, kernels: {own_kernels.in_use().name or 'of llama.cpp'}")
            until = time.monotonic() + 60 * args.minutes
            clients = [Client(address, right, counts, until, i) for i in range(args.clients)]
            threads = [threading.Thread(target=client.run) for client in clients]
            arguments = llm, Path(folder), until, counts
            threads.append(threading.Thread(target=sessions, args=arguments))
            samples = watched(threads, args.minutes, counts)
        after = left()
    return is_good(samples, args.minutes, counts, before, after)


def shared(args):
    """Soak requests that share passes; return whether it went well."""
    counts = Counter()
    options = {"threads": 1, "n_ctx": N_CTX, "prefix_memory": PREFIX_MEMORY}
    with gguf_spec.load(args.model, args.draft, **options) as llm:
        right = [
            (prompt, Sampling(seed=seed, max_tokens=40, temperature=0.8), text)
            for (prompt, seed), text in alone(llm).items()
        ]
    with gguf_spec.load(args.model, args.draft, parallel=args.parallel, **options) as llm:
        llm.generate("Once", Sampling(max_tokens=2))
        before, until = left(), time.monotonic() + 60 * args.minutes
        kinds = [Requests(llm, right, counts, until, i) for i in range(args.clients)]
        threads = [threading.Thread(target=one.run) for one in kinds]
        samples = watched(threads, args.minutes, counts)
        counts["idle" if is_idle(llm) else "WRONG: a slot is left"] += 1
        after = left()
    return is_good(samples, args.minutes, counts, before, after)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("-m", "--model", default="tales")
    parser.add_argument("-d", "--draft", default="auto")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--parallel", type=int, help="requests that share passes, and no server")
    parser.add_argument(
        "--slots", type=int, default=1, help="requests that the server runs at once"
    )
    parser.add_argument("--loads", type=int, help="load and close it so often, and run no server")
    args = parser.parse_args()
    if args.loads:
        sys.exit(0 if loads(args.model, args.loads) else 1)
    sys.exit(0 if (shared if args.parallel else served)(args) else 1)


if __name__ == "__main__":
    main()
