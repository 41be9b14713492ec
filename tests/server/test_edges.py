"""What clients and proxies send at the edges of HTTP: hosts, old versions, paths, compressed bodies."""

import gzip
import json
import socket
import zlib
from urllib.parse import urlsplit

import pytest

from gguf_spec.errors import InvalidOptionError
from gguf_spec.protocols.errors import ApiError
from gguf_spec.server import Settings, serve_in_thread
from gguf_spec.server.app import PATHS
from gguf_spec.server.running import CALL
from gguf_spec.server.uploads import unpacked
from tests.server.conftest import ask, ask_text

KEY = "sk-correct-horse"
ASK = {"prompt": "abc", "max_tokens": 4, "seed": 1}


@pytest.fixture(scope="module")
def locked(tales):
    with serve_in_thread(tales, api_key=KEY) as one:
        yield one


def raw(server, text):
    """Send a request as it is; return the head and the body of the answer, with the connection closed by the server."""
    with socket.create_connection(
        urlsplit(server.url).netloc.split(":"), timeout=180
    ) as connection:
        connection.sendall(text.replace("\n", "\r\n").encode())
        found = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = found.decode().partition("\r\n\r\n")
    return head, body


# ---- hosts


@pytest.mark.parametrize("host", ["localhost.", "LocalHost.:8080", "gguf.localhost", "a.b.localhost.:80", "127.0.0.2", "127.255.0.9:1", "[::1]"])  # fmt: skip
def test_all_names_of_this_machine(server, host):
    assert ask(server, path="/v1/models", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", [
    "localhost.evil.example", "evillocalhost", "127.0.0.1.evil.example", "128.0.0.1", "0.0.0.0", "[::2]", "[::ffff:10.0.0.1]",
    "localhost@evil.example", "evil.example@localhost", "localhost/evil.example", "localhost evil.example", ".", "localhost:80:90", "*",
])  # fmt: skip
def test_names_that_may_be_rebound_are_refused(server, host):
    for path in ("/v1/models", "//v1/models", "/health", "/"):
        reply = ask(server, path=path, headers={"Host": host})
        assert (reply.status, reply.code) == (403, "unknown_host")


def test_an_unknown_host_is_named_with_the_way_out(server):
    message = ask(server, headers={"Host": "ai.example.org:443"}).json()["error"]["message"]
    assert (
        "'ai.example.org'" in message and "gguf-spec serve --allow-host ai.example.org" in message
    )
    message = ask(server, headers={"Host": "$(reboot)"}).json()["error"]["message"]
    assert "--allow-host NAME" in message


def test_hosts_that_are_allowed(tales):
    with serve_in_thread(tales, allowed_hosts=["AI.example.org", "*.tunnel.example"]) as one:
        for host in (
            "ai.example.org",
            "AI.example.org.:443",
            "x.tunnel.example",
            "a.b.tunnel.example:80",
            "localhost",
        ):
            page = {"Origin": f"https://{host}"}  # the page that a proxy with TLS shows
            assert ask(one, path="/v1/models", headers={"Host": host} | page).status == 200
        for host in (
            "example.org",
            "xai.example.org",
            "tunnel.example",
            "xtunnel.example",
            "ai.example.org.evil.example",
            "",
        ):
            assert ask(one, path="/v1/models", headers={"Host": host}).code == "unknown_host"
        foreign = {"Host": "ai.example.org", "Origin": "https://evil.example"}
        assert ask(one, path="/v1/models", headers=foreign).code == "origin_not_allowed"
    with serve_in_thread(tales, allowed_hosts=["*"], api_key=KEY) as one:
        assert ask(one, path="/v1/models", headers={"Host": "any.example"}).status == 401
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert ask(one, path="/v1/models", headers={"Host": "any.example"} | bearer).status == 200


@pytest.mark.parametrize("name", ["", "http://a", "a:80", "a b", "*a", "a.*", "**", 5])
def test_wrong_hosts(name):
    with pytest.raises(InvalidOptionError, match="allowed_hosts"):
        Settings(allowed_hosts=[name])


def test_all_hosts_need_a_key():
    with pytest.raises(InvalidOptionError, match="rebinding"):
        Settings(allowed_hosts=["*"])
    assert Settings(allowed_hosts=["*"], api_key=KEY).takes_host("evil.example")


# ---- HTTP/1.0 and probes


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
def test_http_1_0_without_a_host(server, method, path):
    """As the probes of proxies send it."""
    head, body = raw(server, f"{method} {path} HTTP/1.0\n\n")
    status = head.split()[1]
    if method != "OPTIONS":
        assert status == "200" and bool(body) == (method == "GET")
    else:
        assert status == "204" and "\r\nallow: " in head and not body


def test_http_1_0_with_a_host_is_checked(server):
    head, _ = raw(server, "GET /v1/models HTTP/1.0\nHost: evil.example\n\n")
    assert head.split()[1] == "403"
    head, _ = raw(server, "GET /v1/models HTTP/1.0\nOrigin: http://evil.example\n\n")
    assert head.split()[1] == "403"
    body = json.dumps(ASK)
    head, body = raw(
        server, f"POST /v1/completions HTTP/1.0\nContent-Length: {len(body)}\n\n{body}"
    )
    assert head.split()[1] == "200" and json.loads(body)["choices"][0]["text"]


def test_options(server, locked):
    reply = ask(server, "OPTIONS", "/v1/chat/completions")
    assert (reply.status, reply.body) == (204, b"")
    assert ask(server, "OPTIONS", "/nowhere").status == 404
    assert ask(server, "OPTIONS", "/", headers={"Origin": "http://evil.example"}).status == 403
    assert raw(server, "OPTIONS * HTTP/1.0\n\n")[0].split()[1] == "204"
    assert ask(locked, "OPTIONS", "/").status == 204
    assert ask(locked, "OPTIONS", "/v1/models").status == 401


# ---- paths


JOINED = {
    "//v1/models": "/v1/models", "/v1//models": "/v1/models", "/v1/v1/models": "/v1/models", "/v1/models//": "/v1/models",
    "/v1/v1/models/tales": "/v1/models/{name:path}", "/v1/v1/chat/completions/": "/v1/chat/completions", "//chat//completions": "/v1/chat/completions",
    "/api//chat": "/api/chat", "/api/api/chat": "/api/chat", "/v1/api/chat": "/api/chat", "/api/v1/messages": "/v1/messages",
    "/v1/v1/messages/count_tokens": "/v1/messages/count_tokens", "//health": "/health", "/v1/completion": "/completion", "/v1//v1/v1/models": "/v1/models",
    "/v1/chat/completions/chat/completions": "/v1/chat/completions", "/v1/chat/completions/v1/chat/completions": "/v1/chat/completions",
    "/v1/chat/completions/models": "/v1/models", "/chat/completions/v1/models/tales": "/v1/models/{name:path}", "/v1/completions//completions": "/v1/completions",
    "/v1/messages/v1/messages": "/v1/messages", "/v1/messages/messages/count_tokens": "/v1/messages/count_tokens", "/api/chat/api/chat": "/api/chat",
    "/api/generate/api/tags": "/api/tags", "/v1/messages/count_tokens/v1/messages/count_tokens/": "/v1/messages/count_tokens",
}  # fmt: skip


def allowed(reply):
    headers = {name.lower(): value for name, value in reply.headers.items()}
    return {*headers["allow"].split(", ")}


@pytest.mark.parametrize("path", JOINED)
def test_wrongly_joined_paths_are_the_meant_ones(tales, path, caplog):
    """The log says it once for each route."""
    with serve_in_thread(tales) as server:
        for _ in range(2):
            reply = ask(server, "OPTIONS", path)
            assert reply.status == 204, reply.body
        right = ask(server, "OPTIONS", JOINED[path].replace("{name:path}", "tales"))
        assert allowed(reply) == allowed(right)
        text = ask(server, path="/metrics").body.decode()
        assert f'path="{JOINED[path]}"' in text
    said = [
        one.getMessage() for one in caplog.records if "come to another path" in one.getMessage()
    ]
    is_slash = path == JOINED[path] + "//"  # a slash at the end is common
    assert len(said) == (not is_slash) and all(f" {JOINED[path]} " in one for one in said)


def test_a_name_behind_two_slashes(server):
    right = ask(server, path="/v1/models/tales").json()
    for path in ("/v1/models//tales", "/v1//models//tales/", "/models//tales"):
        assert ask(server, path=path).json() == right
    assert ask(server, path="/v1/models//other").status == 404


def test_a_wrongly_joined_path_is_answered(server):
    right = ask_text(server).json()["choices"][0]["text"]
    for path in ("//v1/completions", "/v1/v1/completions", "/v1//completions/"):
        assert ask(server, "POST", path, ASK).json()["choices"][0]["text"] == right
    error = ask(server, "POST", "/v1/v1/messages", {}).json()
    assert error["type"] == "error"  # in the form of the API that is meant


@pytest.mark.parametrize(
    "path",
    [
        "/v1",
        "/v1/v1",
        "/api",
        "/v2/models",
        "/v1/nowhere",
        "//page/page.css",
        "/v1/page/main.js",
        "/v1/../v1/models",
        "/x//v1/models",
        "/v1" * 5 + "/models",
        "/v1/chat/completions/nowhere",
        "/v1/chat/completions/page/main.js",
        "/v1/nowhere/chat/completions",
        "/health/v1/models",
        "/page/main.js/v1/models",
        "/v1/chat/completions/../models",
        "/v1/chat/completions" * 3,
        "/a" * 8_000,
    ],
)
def test_other_paths_are_unknown(server, path):
    reply = ask(server, path=path)
    assert reply.status == 404, reply.body


@pytest.mark.parametrize(
    "path",
    [
        *(one for one in JOINED if "health" not in one),
        f"/v1{CALL}",
        f"/{CALL}",
        "/v1/metrics",
        "//metrics",
        "/v1//api/ps",
    ],
)
def test_no_path_avoids_the_key(locked, path):
    """The guards see the path that is answered; with the key of clients the route for commands stays closed."""
    for method in ("GET", "POST", "OPTIONS"):
        assert ask(locked, method, path).status == 401
        reply = ask(locked, method, path, headers={"Host": "evil.example"})
        assert reply.status == 403
    if CALL in path:
        assert ask(locked, "POST", path, {}, {"Authorization": f"Bearer {KEY}"}).status == 401


def test_open_paths_stay_the_only_ones(locked):
    for path in (*PATHS, "/health", "//health", "/v1/v1/health"):
        assert ask(locked, path=path).status == 200, path


# ---- compressed bodies


def deflated(data, wbits):
    part = zlib.compressobj(wbits=wbits)
    return part.compress(data) + part.flush()


def zlib_of(data):
    return deflated(data, zlib.MAX_WBITS)


def packed(server, body, *codings, path="/v1/completions"):
    headers = {"Content-Type": "application/json", "Content-Encoding": ", ".join(codings)}
    return ask(server, "POST", path, body, headers)


BODY = json.dumps(ASK).encode()


def test_compressed_bodies(server):
    right = ask_text(server).json()["choices"][0]["text"]
    for body, *codings in (
        (gzip.compress(BODY), "gzip"), (gzip.compress(BODY), "x-GZIP"), (zlib_of(BODY), "deflate"), (deflated(BODY, -15), "deflate"),
        (gzip.compress(BODY[:9]) + gzip.compress(BODY[9:]), "gzip"), (gzip.compress(zlib_of(BODY)), "deflate", "gzip"),
        (BODY, "identity"), (BODY, ""), (gzip.compress(BODY), "identity", "gzip"),
    ):  # fmt: skip
        reply = packed(server, body, *codings)
        assert reply.status == 200, reply.body
        assert reply.json()["choices"][0]["text"] == right
    for path in ("/tokenize", "/v1/messages/count_tokens", "/v1/embeddings", "/api/show"):
        assert packed(server, gzip.compress(b"[]"), "gzip", path=path).status == 400


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "nonsense", "x" * 200])
def test_an_unknown_encoding_is_named(server, coding):
    reply = packed(server, BODY, "gzip", coding)
    assert (reply.status, reply.code) == (415, "unsupported_encoding")
    assert repr(coding[:60]) in reply.json()["error"]["message"] and len(reply.body) < 400
    assert {k.lower(): v for k, v in reply.headers.items()}["accept-encoding"] == "gzip, deflate"


DAMAGED = {
    "plain text as gzip": (BODY, "gzip"),
    "plain text as deflate": (BODY, "deflate"),
    "cut gzip": (gzip.compress(BODY)[:-1], "gzip"),
    "text after gzip": (gzip.compress(BODY) + b"x", "gzip"),
    "empty": (b"", "gzip"),
    "cut deflate": (zlib_of(BODY)[:-1], "deflate"),
    "wrong sum": (gzip.compress(BODY)[:-8] + b"\0" * 8, "gzip"),
    "very many parts": (gzip.compress(b"") * 65, "gzip"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_body_is_named(server, kind):
    body, coding = DAMAGED[kind]
    reply = packed(server, body, coding)
    assert (reply.status, reply.code) == (400, "invalid_encoding"), reply.body
    assert f"is not {coding}" in reply.json()["error"]["message"]


def test_too_many_encodings(server):
    body = BODY
    for _ in range(3):
        body = gzip.compress(body)
    assert packed(server, body, *["gzip"] * 3).status == 200
    assert packed(server, gzip.compress(body), *["gzip"] * 4).status == 415


def test_a_bomb_is_refused_without_its_memory(tales):
    import tracemalloc

    most = 100_000
    whole = b'{"prompt": "abc", "max_tokens": 4}'
    fits = whole[:-1] + b" " * (most - len(whole)) + b"}"
    bomb = gzip.compress(b" " * (1 << 27))  # of 130 kB
    twice = gzip.compress(bomb)
    with serve_in_thread(tales, body_bytes=most) as one:
        assert packed(one, gzip.compress(fits), "gzip").status == 200
        tracemalloc.start()
        try:
            for body, *codings in (
                (gzip.compress(fits + b" "), "gzip"), (gzip.compress(b" " * (1 << 26)), "gzip"), (zlib_of(b" " * (1 << 26)), "deflate"),
                (twice, "gzip", "gzip"), (gzip.compress(fits) + gzip.compress(b" "), "gzip"),
            ):  # fmt: skip
                tracemalloc.reset_peak()
                reply = packed(one, body, *codings)
                assert (reply.status, reply.code) == (413, "request_too_large"), reply.body
                assert "when it is unpacked" in reply.json()["error"]["message"]
                assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


def test_the_limit_of_a_body_is_for_all_its_parts_together():
    import tracemalloc

    most = 1 << 20
    body = gzip.compress(b" " * most) + gzip.compress(b" " * (1 << 26))
    tracemalloc.start()
    try:
        with pytest.raises(ApiError, match="when it is unpacked"):
            unpacked(body, ["gzip"], most)
        assert tracemalloc.get_traced_memory()[1] < 3 * most
    finally:
        tracemalloc.stop()
