"""Clients that send or read nothing: real sockets at a server with few places and short times."""

import asyncio
import contextlib
import http.client
import socket
import time
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.datastructures import Headers
from uvicorn.server import ServerState

from gguf_spec.protocols.errors import ApiError
from gguf_spec.server import Settings, connections, serve_in_thread
from gguf_spec.server.connections import Connection, most_connections
from gguf_spec.server.settings import LIMITS, Limits
from gguf_spec.server.uploads import BodyReader
from tests.server.conftest import ask, ask_text, connections_of, serve_limited, until

HEAD_S = LIMITS.head_s
FEW = Limits(connections=8)  # four of one address

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


def connect(server):
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname, url.port), 180)


def test_connections_that_send_nothing(tales):
    with serve_limited(tales, FEW) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(40)]
        assert ask(server).status == 200
        assert ask_text(server).status == 200
        assert silent[0].recv(1) == b""  # it gave its place to a later one
        assert len(connections_of(server)) <= 6


def test_connections_that_all_wait_for_answers(endless):
    with serve_limited(endless, FEW, grace=0) as server, contextlib.ExitStack() as stack:
        body = b'{"prompt": "a", "stream": true, "max_tokens": 40000}'
        for _ in range(4):
            one = stack.enter_context(connect(server))
            one.sendall(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        first = connections_of(server)
        while sum(not one.is_idle for one in [*first]) < 4:
            time.sleep(0.01)
        reply = ask_text(server)
        assert (reply.status, reply.code) == (429, "too_many_connections")
        assert "5 connections of this address are open" in reply.json()["error"]["message"]
        assert ask(server).status == 200
        assert ask(server, path="/v1/models").status == 429


# What a client sends first, and then byte by byte.
SLOW = {
    "nothing": (b"", b""),
    "a head": (b"", HEAD),
    "a header": (HEAD, b"X: " + b"x" * 4000),
    "a body": (HEAD + b"Content-Length: 9000\r\n\r\n", b" " * 9000),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n" * 2000),
    "a chunk's size": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 4000),
    "a second head": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", HEAD),
    "a body after the answer": (
        b"POST /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\n",
        b" " * 9000,
    ),
    "an upgrade": (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n\r\n",
        b"\x81\x00" * 4000,
    ),
}


@pytest.mark.parametrize("form", SLOW)
def test_a_slow_client_loses_its_connection(tales, form):
    first, rest = SLOW[form]
    limits = Limits(look_s=0.0, head_s=0.3, body_s=0.3)

    def is_answered():  # on a slow machine the time may be too short
        with contextlib.suppress(ConnectionError, http.client.HTTPException):
            return ask_text(server).status == 200

    with serve_limited(tales, limits) as server, connect(server) as slow:
        slow.sendall(first)
        slow.settimeout(0.02)
        end = time.monotonic() + 180
        try:
            for i in range(10**6):
                assert time.monotonic() < end
                slow.sendall(rest[i : i + 1])
                with contextlib.suppress(TimeoutError):
                    if slow.recv(1000) == b"":
                        break
        except ConnectionError:
            pass
        until(is_answered)


def test_a_slow_body_names_the_reason(tales):
    with serve_limited(tales, Limits(body_s=0.2)) as server, connect(server) as slow:
        slow.sendall(HEAD + b"Content-Length: 10\r\n\r\n{")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize(("rate", "is_taken"), [(5000, True), (3000, False)])
def test_a_phone_may_take_its_time(rate, is_taken):
    """A body that keeps the least rate, 4,000 bytes a second, takes longer than the first seconds; a slower one is refused."""
    now_s, left = [0.0], [rate] * 100

    async def receive():
        now_s[0] += 1
        return {"type": "http.request", "body": b"x" * left.pop(), "more_body": bool(left)}

    reading = BodyReader(Settings(), lambda: False, clock=lambda: now_s[0]).receive(
        SimpleNamespace(receive=receive, headers=Headers(), scope={})
    )
    if is_taken:
        assert len(asyncio.run(reading)) == 100 * rate
        assert now_s[0] == 100
    else:
        with pytest.raises(ApiError) as refused:
            asyncio.run(reading)
        assert refused.value.status == 408
        assert 70 < now_s[0] < 90


def watched(now_s, n_unsent=lambda: 0, is_closing=lambda: False):
    """A connection whose clock the test sets, and when it was closed."""
    closed = []
    one = Connection(
        8,
        Settings(timeout=100.0),
        config=uvicorn.Config(None),
        server_state=ServerState(),
        app_state={},
        _loop=SimpleNamespace(time=lambda: now_s[0]),
    )
    one.transport = SimpleNamespace(
        get_write_buffer_size=n_unsent,
        is_closing=lambda: bool(closed) or is_closing(),
        abort=lambda: closed.append(now_s[0]),
    )
    return one, closed


def test_an_answer_may_take_longer_than_a_head():
    one, closed = watched([0.0])
    one.cycle = SimpleNamespace(response_complete=False)
    for now_s in (0.9 * HEAD_S, 1.8 * HEAD_S, 9 * HEAD_S):
        one.look(now_s)
    assert closed == []


def test_a_keep_alive_connection_lasts_longer_than_one_head(tales, monkeypatch):
    monkeypatch.setattr(connections.H11Protocol, "on_response_complete", lambda self: None)
    now_s = [0.0]
    one, closed = watched(now_s)
    for now_s[0] in (0.8 * HEAD_S, 1.6 * HEAD_S, 2.4 * HEAD_S):
        one.on_response_complete()
    for now_s[0] in (2.5 * HEAD_S, 3.4 * HEAD_S, 3.5 * HEAD_S):
        one.look(now_s[0])
    assert closed == [3.5 * HEAD_S]


def test_each_answer_begins_the_time_again(tales):
    with serve_in_thread(tales) as server:
        one = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
        one.connect()
        until(lambda: connections_of(server))
        (there,) = connections_of(server)
        began_s = there.since
        one.request("GET", "/health")
        assert one.getresponse().read()
        until(lambda: there.since > began_s)
        one.close()


def test_a_client_that_reads_nothing():
    """Unsent bytes that stay the same for the time limit end a connection, also a closing one."""
    sizes = iter([0, 0, 900, 900, 800, 800, 800, 800])
    now_s, size = [0], [0]
    one, closed = watched(now_s, lambda: size[0], lambda: size[0] > 0)
    for now_s[0] in (0, 4, 90, 180, 270, 360, 369, 371):
        size[0] = next(sizes)
        one.look(now_s[0])
    assert closed == [371]


def test_a_body_in_tiny_chunks(tales):
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    body = b'{"prompt": "abc", "max_tokens": 1, "user": "%s"}' % (b"x" * 4000)
    with serve_limited(tales, Limits(parts=100)) as server:
        for size, status in ((1, b"413"), (1000, b"200")):
            parts = (body[i : i + size] for i in range(0, len(body), size))
            with connect(server) as one:
                chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
                one.sendall(head + chunks + b"0\r\n\r\n")
                assert one.recv(1000).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize(
    ("sent", "status", "fact"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 70_000, 431, b"16 KiB"),
        (b"GET /" + b"x" * 70_000, 431, b"16 KiB"),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: x\r\n" * 10_000, 431, b"16 KiB"),
        (b"\x16\x03\x01 TLS\r\n\r\n", 400, b"not HTTP/1.1"),
    ],
)
def test_heads_that_are_refused(server, sent, status, fact):
    with connect(server) as one:
        with contextlib.suppress(ConnectionError):
            one.sendall(sent)
        answer = one.recv(4000)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert fact in answer and b'{"error":{' in answer


def test_bodies_that_are_too_many(tales):
    with serve_limited(tales, Limits(bodies_bytes=100_000)) as server, connect(server) as first:
        first.sendall(HEAD + b"Content-Length: 200000\r\n\r\n" + b" " * 90_000)
        while server.app.bodies.n_held < 90_000:
            time.sleep(0.01)
        reply = ask_text(server, user="x" * 20_000)
        assert (reply.status, reply.code) == (429, "too_many_uploads")
        assert ask_text(server).status == 200


def test_the_number_of_connections_follows_the_file_limit(monkeypatch):
    resource = pytest.importorskip("resource")
    found = []
    for limit in (64, 256, 1024, 1 << 20, resource.RLIM_INFINITY):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        found.append(most_connections(1000))
    assert 8 <= found[0] < 64 and 8 <= found[1] < 256 - 64
    assert found[2] < 1024 - connections.SPARE
    assert found[3:] == [1000] * 2


def test_the_network_of_an_address():
    same = [("2001:db8:0:1::1", 1), ("2001:db8:0:1:ffff::9", 2)]
    assert connections.network(same[0]) == connections.network(same[1])
    assert connections.network(("::ffff:10.0.0.1", 1)) == connections.network(("10.0.0.1", 5))
    assert connections.network(("10.0.0.1", 1)) != connections.network(("10.0.0.2", 1))
    assert connections.network(None) is None


def test_the_connection_that_has_waited_longest_gives_its_place(tales):
    """The others stay, also those that came later."""
    with serve_limited(tales, FEW) as server, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(connect(server)) for _ in range(4)]
        until(lambda: len(connections_of(server)) == 4)
        assert ask(server).status == 200  # it takes the place of the first one
        assert silent[0].recv(1) == b""
        for one in silent[2:]:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(1000).startswith(b"HTTP/1.1 200")
