"""Clients that leave a stream at each event, in its middle, and before its first byte: the generation ends, nothing is lost."""

import re
import socket
import struct

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, metrics, until
from tests.server.test_load import busy, connect
from tests.support import tiny

LETTERS = "abcdefghijkl"
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}a"
N, ENDLESS = 6, 45_000  # tokens of an answer that is read, and of one that takes 10 s and more
CHAT, SAID = {"messages": [{"role": "user", "content": "Hi."}]}, {"stream": True, "temperature": 0}
APIS = {
    "/v1/chat/completions": lambda n: CHAT | {"max_tokens": n},
    "/v1/completions": lambda n: {"prompt": "a", "max_tokens": n},
    "/v1/responses": lambda n: {"input": "Hi.", "max_output_tokens": n},
    "/v1/messages": lambda n: CHAT | {"max_tokens": n},
    "/completion": lambda n: {"prompt": "a", "n_predict": n},
    "/api/chat": lambda n: CHAT | {"options": {"num_predict": n, "temperature": 0}},
    "/api/generate": lambda n: {"prompt": "a", "options": {"num_predict": n, "temperature": 0}},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("leaving") / "ever.gguf"
    more = {"llama.context_length": 50_000, "tokenizer.chat_template": TEMPLATE}
    tiny.write(path, tiny.one_text(LETTERS, for_ever=True), metadata=more)
    with (
        gguf_spec.load(path, None, threads=1, n_ctx=50_000, extra_bufts=False) as llm,
        serve_in_thread(llm) as one,
    ):
        yield one


def body(path, n):
    return {"model": "m", **APIS[path](n), **({} if path.startswith("/api") else SAID)}


def end_of_event(path):
    return b"}\n" if path.startswith("/api") else b"\n\n"


def whole(server, path):
    """Return the stream of a short answer, without its numbers, dates and identifiers."""
    reply = ask(server, "POST", path, body(path, N))
    assert reply.status == 200, reply.body
    text = re.sub(rb"(chatcmpl|cmpl|resp|msg)[-_]\w+", b"ID", reply.body)
    return re.sub(rb":[\d.e+-]+|\"created_at\":\"[^\"]*\"", b"", text)


def leave(server, path, n, n_events, is_cut, resets):
    """Ask, read some events, with the half of the next one if it is cut, and close the connection."""
    held, got, mark = connect(server, path, **body(path, n)), b"", end_of_event(path)
    held.settimeout(180)
    if n_events is not None:
        while b"\r\n\r\n" not in got or got.count(mark) < n_events:
            got += (part := held.recv(1))
            assert part
        held.recv(20 * is_cut)
    if resets:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    held.close()


@pytest.mark.full
@pytest.mark.parametrize("path", APIS)
def test_a_client_may_leave_at_each_event(server, caplog, path):
    told = whole(server, path)
    assert told.count(b'"') > 10
    n_events = told.count(end_of_event(path))
    assert n_events >= N
    before, counted = metrics(server), f'requests_total{{path="{path}",'
    n_left = 0
    for i in [None, *range(n_events + 1)]:
        for n in (N, ENDLESS):
            for is_cut, resets in ((False, False), (True, False), (True, True)):
                if i == n_events and (n == N and is_cut):
                    continue  # no further event comes
                leave(server, path, n, i, is_cut, resets)
                n_left += 1
        until(lambda: not busy(server))
        assert whole(server, path) == told
    n_left += n_events + 2

    def requests(now):
        return sum(value for name, value in now.items() if name.startswith(counted))

    until(lambda: requests(metrics(server)) - requests(before) == n_left)
    name = "generated_tokens_total"
    assert metrics(server)[name] - before[name] < ENDLESS, (
        "no endless answer was written to its end"
    )
    assert not [one for one in caplog.records if one.levelname not in ("DEBUG", "INFO")]
