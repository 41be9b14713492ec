"""Many clients, slow ones and closed connections: the engine is not blocked, and every answer is that of a separate request."""

import asyncio
import gc
import http.client
import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import openai
import pytest

from gguf_spec import Chunk, Sampling, Speculation
from gguf_spec.protocols.events import ChunkEvent, Started
from gguf_spec.protocols.openai import ResponseBuilder, read_text
from gguf_spec.protocols.replies import DATA_EVENTS
from gguf_spec.server import make_app, serve_in_thread
from gguf_spec.server.jobs import Job
from gguf_spec.server.streams import AnswerStream
from tests.server.conftest import ask, ask_text, metrics, threads_since, until

START = "Once upon a time there was"
LONG = {"prompt": "a", "temperature": 0, "max_tokens": 45_000}  # 10 s and more


def busy(server):
    return ask(server).json()["busy"]


def n_waiting(server):
    return ask(server).json()["queue"]


def connect(server, path="/v1/completions", buffer=None, **fields):
    """Send a request and return its socket, nothing read."""
    place = urlsplit(server.url)
    one = socket.socket()
    if buffer:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    one.connect((place.hostname, place.port))
    body = json.dumps(fields).encode()
    one.sendall(
        f"POST {path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    return one


@pytest.fixture
def idle(endless):
    """A server of the endless model with a short queue."""
    with serve_in_thread(endless, queue=2, timeout=600) as one:
        yield one


@pytest.mark.parametrize("stream", [False, True])
def test_a_closed_connection_frees_the_engine(idle, stream):
    one = connect(idle, **LONG, stream=stream)
    until(lambda: metrics(idle)["generated_tokens_total"] > 10)
    one.close()
    until(lambda: not busy(idle))
    assert 10 < metrics(idle)["generated_tokens_total"] < 40_000
    assert metrics(idle)["rounds_total"] >= metrics(idle)["generated_tokens_total"]
    assert ask_text(idle).status == 200


def test_a_connection_closed_while_a_long_prompt_is_read(idle):
    one = connect(idle, prompt="abcdefghijkl" * 4000, max_tokens=10)
    until(lambda: busy(idle))
    one.close()
    until(lambda: not busy(idle))
    assert metrics(idle)["generated_tokens_total"] == 0


def test_a_closed_connection_removes_its_request_from_the_queue(idle):
    first = connect(idle, **LONG)
    until(lambda: busy(idle))
    second, third = connect(idle, **LONG), connect(idle, **LONG)
    until(lambda: n_waiting(idle) == 2)
    second.close()
    until(lambda: n_waiting(idle) == 1)
    third.close()
    until(lambda: n_waiting(idle) == 0)
    assert busy(idle)
    first.close()
    until(lambda: not busy(idle))
    until(lambda: metrics(idle).get('requests_total{path="/v1/completions",status="499"}') == 3)


def test_the_official_client_can_stop_a_stream(idle):
    with openai.OpenAI(base_url=f"{idle.url}/v1", api_key="none") as client:
        with client.completions.create(model="", **LONG, stream=True) as stream:
            assert next(iter(stream)).choices[0].text == "b"
        until(lambda: not busy(idle))
        assert metrics(idle)["generated_tokens_total"] < 40_000


def test_a_full_queue(idle):
    """One request runs, two wait, the fourth gets 429."""
    held = [connect(idle, **LONG) for _ in range(3)]
    until(lambda: n_waiting(idle) == 2)
    reply = ask_text(idle)
    assert (reply.status, reply.code, reply.json()["error"]["type"]) == (
        429,
        "queue_full",
        "rate_limit_error",
    )
    assert (
        1
        <= int({name.lower(): value for name, value in reply.headers.items()}["retry-after"])
        <= 60
    )
    with (
        openai.OpenAI(base_url=f"{idle.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.RateLimitError),
    ):
        client.completions.create(model="", prompt="a")
    for one in held:
        one.close()
    until(lambda: not busy(idle))
    assert ask_text(idle).status == 200


@pytest.mark.full
def test_a_slow_client_does_not_delay_other_clients(endless):
    """It reads nothing of a stream larger than any socket buffer while others are answered; then it reads all."""
    with serve_in_thread(endless, timeout=600) as server:
        server._socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )  # connections have it from here
        slow = connect(
            server, buffer=4096, prompt="a", temperature=0, max_tokens=1500, stream=True, logprobs=5
        )
        until(lambda: time.sleep(0.1) or metrics(server)["generated_tokens_total"] == 1500)
        until(lambda: not busy(server))
        assert 'requests_total{path="/v1/completions",status="200"}' not in metrics(
            server
        )  # it is not through
        assert ask_text(server, prompt="a", temperature=0).json()["choices"][0]["text"] == "bcde"
        received = bytearray()
        while b"[DONE]" not in received[-100:]:
            part = slow.recv(1 << 20)
            assert part
            received += part
        slow.close()
        text = "".join(
            json.loads(line[6:])["choices"][0]["text"]
            for line in received.split(b"\n")
            if line.startswith(b"data: {")
        )
        assert text == ("abcdefghijkl" * 200)[1:1501]


def test_a_client_that_reads_nothing_is_disconnected():
    sent, closed = [], []

    async def send(message):
        if sent:
            await asyncio.sleep(1000)
        sent.append(message)

    async def main():
        job = Job(None, read_text({"prompt": "a"}, Speculation(), None))
        for text in "bcd":
            job.events.put_nowait(ChunkEvent(Chunk(text, (1,), 0, 0), ()))
            await asyncio.sleep(0)
        reply = ResponseBuilder(job.request, Started("m", "llama"))
        stream = AnswerStream(
            job,
            job.request,
            reply,
            DATA_EVENTS,
            0.1,
            0,
            lambda: closed.append(True),
            asyncio.Lock(),
        )
        await asyncio.wait_for(stream({}, None, send), 180)

    asyncio.run(main())
    assert closed == [True]
    assert all(message.get("more_body", True) for message in sent)


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_ends_at_the_timeout(endless, stream):
    with serve_in_thread(endless, timeout=0.5) as server:
        reply = ask_text(server, **LONG, stream=stream)
        assert reply.status == 200
        assert b'"finish_reason":"length"' in reply.body
        assert metrics(server)["generated_tokens_total"] < 45_000


@pytest.mark.full
def test_two_clients_at_once(server, client, tales):
    wanted = [tales.generate(START, Sampling(max_tokens=60, seed=seed)).text for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(
            lambda seed: (
                client.completions.create(model="tales", prompt=START, max_tokens=60, seed=seed)
                .choices[0]
                .text
            ),
            range(2),
        )
        assert list(answers) == wanted


def test_the_program_may_use_the_llm_itself(server, tales):
    wanted = tales.generate(START, Sampling(max_tokens=30, seed=1)).text
    with (
        tales.stream(START, Sampling(max_tokens=30, seed=1)) as stream,
        ThreadPoolExecutor(1) as pool,
    ):
        waits = pool.submit(ask_text, server, prompt=START, max_tokens=30, seed=1)
        assert "".join(chunk.text for chunk in stream) == wanted
        assert waits.result().json()["choices"][0]["text"] == wanted


@pytest.mark.full
def test_200_requests_of_8_clients_three_in_ten_cancelled(tales):
    """Every finished answer is that of a separate request with the same seed; no answer, memory or thread is lost."""
    prompts = [
        START,
        "The king said to the fox:",
        [{"role": "user", "content": "Tell me a story."}],
        [{"role": "user", "content": "What did the wolf say?"}],
    ]
    plans = [
        (i, prompts[i % 4], i % 25, i % 2 == 0, i % 10 < 3) for i in range(200)
    ]  # number, prompt, seed, in pieces, cancelled
    wanted = {
        (str(prompt), seed): tales.generate(prompt, Sampling(max_tokens=16, seed=seed)).text
        for _, prompt, seed, _, cancelled in plans
        if not cancelled
    }
    before = set(threading.enumerate())
    with serve_in_thread(tales, queue=300) as server:
        results = run(server, plans)
        first = memory()
        more = run(server, plans[:100])
        grown = memory() - first
        told = metrics(server)
    assert (len(results), len(more)) == (200, 100)
    for i, prompt, seed, _, cancelled in plans:
        if not cancelled:
            assert results[i] == more.get(i, results[i]) == wanted[str(prompt), seed], (
                i,
                prompt,
                seed,
            )
    assert told["queue_length"] == told["busy"] == 0
    answered = {
        status: sum(n for name, n in told.items() if f'completions",status="{status}"' in name)
        for status in (200, 499)
    }
    assert (
        answered[200] + answered[499]
        == sum(n for name, n in told.items() if 'completions"' in name)
        == 300
    )
    assert answered[200] >= 210
    assert grown < 8 << 20
    until(lambda: not threads_since(before))


def run(server, plans):
    """Send requests from 8 threads; return the text of each by its number, None where it was cancelled."""
    with ThreadPoolExecutor(8) as pool:
        return dict(pool.map(lambda plan: (plan[0], one(server, *plan[1:])), plans))


def one(server, prompt, seed, in_pieces, cancelled):
    chat = isinstance(prompt, list)
    path = "/v1/chat/completions" if chat else "/v1/completions"
    fields = {
        "messages" if chat else "prompt": prompt,
        "seed": seed,
        "max_tokens": 3000 if cancelled else 16,
        "stream": in_pieces,
    }
    if cancelled:
        held = connect(server, path, **fields)
        if in_pieces:
            held.recv(300)
        else:
            time.sleep(0.01 * (seed % 5))
        held.close()
        return None
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=120)
    connection.request("POST", path, json.dumps(fields))
    body = connection.getresponse().read()
    connection.close()
    if not in_pieces:
        choice = json.loads(body)["choices"][0]
        return choice["message"]["content"] if chat else choice["text"]
    *pieces, done = [line[6:] for line in body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    choices = [json.loads(piece)["choices"][0] for piece in pieces]
    return "".join(
        choice["delta"].get("content", "") if chat else choice["text"] for choice in choices
    )


def memory():
    gc.collect()
    pages = (
        int(Path("/proc/self/statm").read_text().split()[1])
        if Path("/proc/self/statm").exists()
        else 0
    )
    return pages * (os.sysconf("SC_PAGE_SIZE") if pages else 0)


def test_a_server_without_any_thread_does_not_start(tales, monkeypatch):
    def fail(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(RuntimeError, match="start new thread"):
        make_app(tales)
