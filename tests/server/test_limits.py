"""Access control and limits of the server."""

import asyncio
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from types import SimpleNamespace
from urllib.parse import urlsplit

import openai
import pytest

from gguf_spec.errors import (
    GgufSpecError,
    InvalidOptionError,
    PromptTooLongError,
    TextTooLongError,
)
from gguf_spec.grammar import automaton as gbnf
from gguf_spec.llama.weights import Weights
from gguf_spec.protocols import bodies as protocol
from gguf_spec.protocols import fit
from gguf_spec.server import Settings, serve_in_thread
from gguf_spec.server.settings import Limits
from gguf_spec.server.uploads import BodyReader
from tests.server.conftest import (
    Limited,
    ask,
    ask_chat,
    ask_text,
    serve_limited,
    threads_since,
    until,
)

KEY = "sk-correct-horse"


@pytest.fixture(scope="module")
def locked(tales):
    with serve_in_thread(tales, api_key=KEY) as one:
        yield one


def test_the_key(locked):
    with openai.OpenAI(base_url=f"{locked.url}/v1", api_key=KEY, max_retries=0) as client:
        assert client.completions.create(model="tales", prompt="A fox", max_tokens=2).choices
    with (
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.completions.create(model="tales", prompt="A fox")
    assert caught.value.code == "invalid_api_key"


def test_the_token_of_the_status_opens_nothing_else(locked):
    headers = {"Authorization": f"Bearer {locked.app.status_token}"}
    assert ask(locked, path="/api/ps", headers=headers).status == 200
    assert ask(locked, path="/v1/models", headers=headers).status == 401
    assert ask(locked, path="/api/tags", headers=headers).status == 401


@pytest.mark.parametrize(
    "given",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        KEY,
        f"Basic {KEY}",
        f"Bearer {KEY}x",
        f"Bearer {KEY[:-1]}",
        "Bearer \xff",
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/models", "/metrics", "/openapi.json", "/v1/chat/completions", "/nowhere"]
)
def test_no_key(locked, path, given):
    reply = ask(locked, path=path, headers={} if given is None else {"Authorization": given})
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert {name.lower(): value for name, value in reply.headers.items()}[
        "www-authenticate"
    ] == "Bearer"


def test_paths_without_a_key(locked):
    assert ask(locked).status == 200
    assert ask(locked, path="/v1/models", headers={"Authorization": f"bearer  {KEY}"}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "",
        "[",
        "localhost.evil.example:8080",
        "10.0.0.1",
    ],
)
def test_a_host_name_that_was_rebound_to_loopback(server, host):
    reply = ask(server, headers={"Host": host})
    assert (reply.status, reply.code) == (403, "unknown_host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080"])
def test_names_of_this_machine(server, host):
    assert ask(server, headers={"Host": host}).status == 200


def test_pages_of_others(server):
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:1",
        "https://127.0.0.1",
        "http://[",
        "http://",
        "",
    ):
        for reply in (
            ask(server, headers={"Origin": origin}),
            ask_text(server, headers={"Origin": origin, "Content-Type": "text/plain"}),
        ):
            assert (reply.status, reply.code) == (403, "origin_not_allowed")
            assert "access-control-allow-origin" not in {name.lower() for name in reply.headers}
    assert ask_text(server, headers={"Origin": server.url}).status == 200  # the page at /


def test_pages_that_are_allowed(tales):
    origin = "http://app.example:3000"
    preflight = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with serve_in_thread(tales, api_key=KEY, cors_origins=[origin]) as one:
        reply = ask(one, "OPTIONS", "/v1/chat/completions", headers=preflight)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, origin)
        assert "authorization" in reply.headers["access-control-allow-headers"]
        assert ask_chat(one, headers={"Origin": origin}).status == 401
        reply = ask_chat(one, headers={"Origin": origin, "Authorization": f"Bearer {KEY}"})
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (200, origin)
        foreign = preflight | {"Origin": "http://evil.example"}
        reply = ask(one, "OPTIONS", "/v1/models", headers=foreign)
        assert (reply.status, reply.code) == (403, "origin_not_allowed")
        error = ask(one, "OPTIONS", "/v1/messages", headers=foreign).json()
        assert (error["type"], error["error"]["type"]) == ("error", "permission_error")
        assert (
            ask_chat(
                one, headers={"Origin": "http://evil.example", "Authorization": f"Bearer {KEY}"}
            ).status
            == 403
        )
    with serve_in_thread(tales, cors_origins=["*"]) as one:
        assert (
            ask_chat(one, headers={"Origin": "http://evil.example"}).headers[
                "access-control-allow-origin"
            ]
            == "*"
        )


@pytest.mark.parametrize(
    ("given", "allowed", "foreign"),
    [
        ("http://app.example:3000", ["http://app.example:3000"], ["http://app.example"]),
        ("HTTP://App.example:80/", ["http://app.example"], ["http://app.example:8080"]),
        ("https://app.example:443", ["https://app.example"], ["http://app.example"]),
        ("http://app.example", ["http://app.example"], ["http://app-example", "null", ""]),
        ("chrome-extension://*", ["chrome-extension://abcdef"], ["moz-extension://abcdef"]),
        ("http://localhost:*", ["http://localhost", "http://localhost:5"], ["http://localhost:x"]),
        ("https://*.a.org", ["https://b.a.org"], ["https://a.org", "https://b.a.org.evil.org"]),
        ("http://[::1]:3", ["http://[::1]:3"], ["http://[::1]"]),
        ("null", ["null"], ["http://null"]),
        ("*", ["http://any.example", "null"], []),
    ],
)
def test_origins_and_patterns(given, allowed, foreign):
    pattern = Settings(cors_origins=[given]).origins
    assert [one for one in (*allowed, *foreign) if pattern.fullmatch(one)] == allowed


@pytest.mark.parametrize(
    "given", ["localhost:3000", "app.example", "*.app.example/", "", "http://", "http://a/b", "a b"]
)
def test_origins_that_are_none(given):
    with pytest.raises(InvalidOptionError) as caught:
        Settings(cors_origins=["http://a", given])
    assert (caught.value.option, caught.value.value) == ("cors_origins", given)
    if given == "localhost:3000":
        assert caught.value.hint == "write http://localhost:3000 or https://localhost:3000."


def test_the_origin_and_the_option_are_named(server):
    reply = ask(server, headers={"Origin": "chrome-extension://abc"})
    message = reply.json()["error"]["message"]
    assert message == (
        "The origin 'chrome-extension://abc' may not use this server: gguf-spec serve "
        "--cors-origin chrome-extension://abc allows it."
    )


def test_a_preflight_from_another_network(tales):
    headers = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Private-Network": "true",
    }
    name = "access-control-allow-private-network"
    with serve_in_thread(tales, cors_origins=["https://*.app.example/"]) as one:
        allowed = headers | {"Origin": "https://a.app.example"}
        reply = ask(one, "OPTIONS", "/v1/models", headers=allowed)
        assert (reply.status, reply.headers[name]) == (200, "true")
        assert reply.headers["access-control-allow-origin"] == allowed["Origin"]
        reply = ask(one, headers={"Origin": allowed["Origin"]})
        assert reply.headers["access-control-allow-origin"] == allowed["Origin"]
        reply = ask(one, "OPTIONS", "/v1/models", headers=headers | {"Origin": "https://b.example"})
        assert (reply.status, name in reply.headers) == (403, False)


@pytest.mark.parametrize("times", [1.01, 4, 20])
def test_a_body_that_is_too_large(tales, times):
    with serve_in_thread(tales, body_bytes=100_000) as one:
        assert ask_text(one, prompt="x", stop="y" * 200).status == 200
        try:
            reply = ask_text(one, prompt="x" * int(100_000 * times))
            assert (reply.status, reply.code) == (413, "request_too_large")
        except (ConnectionError, BrokenPipeError):
            assert times > 8  # a body of this size is not read to its end
        assert ask_text(one).status == 200


def test_a_body_of_the_largest_size(tales):
    body = {"prompt": "x", "max_tokens": 1, "seed": 1, "user": ""}
    body["user"] = "y" * (1000 - len(json.dumps(body)))
    with serve_in_thread(tales, body_bytes=1000) as one:
        assert ask_text(one, **body).status == 200
        assert ask_text(one, **body | {"user": body["user"] + "y"}).status == 413


def test_bodies_that_were_received_are_no_longer_counted(tales):
    with serve_limited(tales, Limits(bodies_bytes=1_000)) as one:
        fields = {"content": "a" * 900}
        statuses = [ask(one, "POST", "/tokenize", fields).status for _ in range(3)]
    assert statuses == [200] * 3


def test_a_body_that_is_not_sent(tales):
    with (
        serve_in_thread(tales, timeout=0.5) as one,
        socket.create_connection((urlsplit(one.url).hostname, urlsplit(one.url).port), 180) as slow,
    ):
        slow.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{"
        )
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")


def test_the_limit_on_tokens(tales):
    with serve_in_thread(tales, max_tokens=8) as one:
        assert (
            ask_chat(one, max_tokens=None, ignore_eos=True).json()["usage"]["completion_tokens"]
            == 8
        )
        assert (
            ask_text(one, max_tokens=None, ignore_eos=True).json()["usage"]["completion_tokens"]
            == 8
        )
        for fields, param in (
            ({"max_tokens": 9}, "max_tokens"),
            ({"max_tokens": None, "max_completion_tokens": 9}, "max_completion_tokens"),
        ):
            reply = ask_chat(one, **fields)
            assert (reply.status, reply.param) == (400, param)


BAD = [
    {"host": "0.0.0.0"}, {"host": "192.168.0.1"}, {"host": ""}, {"host": "::"}, {"api_key": ""}, {"api_key": "a b"}, {"api_key": "é"},
    {"port": -1}, {"port": 70_000},
    {"queue": -1}, {"max_tokens": 0}, {"timeout": -1}, {"timeout": float("nan")}, {"body_bytes": 0}, {"grace": -1},
]  # fmt: skip


@pytest.mark.parametrize("settings", BAD)
def test_invalid_settings(settings):
    with pytest.raises(InvalidOptionError) as caught:
        Settings(**settings)
    assert caught.value.option == ("api_key" if settings.get("host") else next(iter(settings)))
    assert "a b" not in str(caught.value)


def test_other_addresses_require_a_key():
    assert not Settings(host="0.0.0.0", api_key="k").is_local
    assert Settings(host="127.0.0.2").is_local
    assert Settings(host="::1").is_local


def test_another_address_with_a_key(tales):
    """There any name may be in Host."""
    with serve_in_thread(tales, host="0.0.0.0", api_key=KEY) as one:
        port = urlsplit(one.url).port
        one.url = f"http://127.0.0.1:{port}"
        assert ask_text(one).status == 401
        assert (
            ask_text(one, headers={"Authorization": f"Bearer {KEY}", "Host": "my.machine"}).status
            == 200
        )


def test_a_port_in_use(server, tales):
    with pytest.raises(GgufSpecError, match="cannot listen at") as caught:
        serve_in_thread(tales, port=urlsplit(server.url).port)
    assert caught.value.hint == "use another port; port=0 selects a free one."
    with pytest.raises(InvalidOptionError):
        serve_in_thread(tales, host="no.such.host.example", api_key="k")


@pytest.mark.full
def test_closing(tales, capfd):
    """No thread is left, nothing was printed, and the LLM still works."""
    before = set(threading.enumerate())
    one = serve_in_thread(tales)
    assert ask_text(one).status == 200
    one.close()
    one.close()
    until(lambda: not threads_since(before))
    with pytest.raises(ConnectionError):
        ask(one)
    assert tales.generate("A fox").text
    assert capfd.readouterr() == ("", "")


# ---- schemas that take long to convert

LARGE = {"anyOf": [{"const": i} for i in range(900)]}
NAMED = {"name": "n", "schema": LARGE}
TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"x": LARGE}}, "strict": True}
HI = [{"role": "user", "content": "Hi."}]
CHAT = "/v1/chat/completions"
# Route -> fields with the schema, and the field that the error names.
ROUTES = [
    (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema", "json_schema": NAMED}},
        "response_format",
    ),
    (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_object", "schema": LARGE}},
        "response_format",
    ),
    (
        CHAT,
        {"messages": HI, "tools": [{"type": "function", "function": TOOL}]},
        "tools[0].function.parameters",
    ),
    (
        "/v1/messages",
        {
            "messages": HI,
            "max_tokens": 4,
            "output_config": {"format": {"type": "json_schema", "schema": LARGE}},
        },
        "output_config.format",
    ),
    (
        "/v1/messages",
        {
            "messages": HI,
            "max_tokens": 4,
            "tools": [{"name": "f", "input_schema": TOOL["parameters"], "strict": True}],
        },
        "tools[0].input_schema",
    ),
    (
        "/v1/responses",
        {"input": "Hi.", "text": {"format": {"type": "json_schema", **NAMED}}},
        "text.format",
    ),
    (
        "/v1/responses",
        {"input": "Hi.", "tools": [{"type": "function", **TOOL}]},
        "tools[0].parameters",
    ),
    ("/api/chat", {"model": "tales", "messages": HI, "format": LARGE}, "format"),
    ("/api/generate", {"model": "tales", "prompt": "Hi.", "format": LARGE}, "format"),
]


@pytest.mark.parametrize(("path", "fields", "field"), ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_takes_too_long(server, monkeypatch, path, fields, field, stream):
    monkeypatch.setattr(gbnf, "MOST_WORK", 5_000)
    reply = ask(server, "POST", path, fields | {"stream": stream})
    assert reply.status == 400
    assert field in reply.body.decode() and "too large" in reply.body.decode()


def test_a_conversion_takes_no_slot_and_can_be_cancelled(tales, monkeypatch):
    """Other requests are answered during a conversion; the request of a closed connection is not converted."""
    begun, goes_on, converted = threading.Event(), threading.Event(), []
    real = fit.with_grammar

    def slow(asked, llm):
        if asked.needs_grammar:
            begun.set()
            converted.append(asked)
            assert goes_on.wait(180)
        return real(asked, llm)

    monkeypatch.setattr("gguf_spec.server.app.with_grammar", slow)
    fields = {"response_format": {"type": "json_object"}}
    answers = []
    with serve_in_thread(tales, queue=1) as server:
        thread = threading.Thread(target=lambda: answers.append(ask_chat(server, **fields)))
        thread.start()
        try:
            assert begun.wait(180)
            assert (ask(server).status, ask_text(server).status) == (200, 200)
            connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
            connection.request("POST", CHAT, json.dumps({"messages": HI} | fields))
            connection.close()
        finally:
            goes_on.set()
            thread.join()
    assert answers[0].status == 200
    assert len(converted) == 1


def test_a_conversion_has_the_time_limit_of_an_answer(tales, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr("gguf_spec.server.app.with_grammar", lambda asked, _: goes_on.wait(180) and asked)  # fmt: skip
    with serve_in_thread(tales, timeout=0.2) as server:
        reply = ask_chat(server, response_format={"type": "json_object"})
        goes_on.set()
    assert (reply.status, reply.code) == (503, "timeout")
    assert "0.2 s" in reply.json()["error"]["message"]


def test_choices_of_a_request_share_the_conversion(server, monkeypatch):
    schemas, real = [], fit.to_gbnf
    monkeypatch.setattr(fit, "to_gbnf", lambda schema: schemas.append(schema) or real(schema))
    assert ask_chat(server, n=3, response_format={"type": "json_object"}).status == 200
    assert len(schemas) == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 70_000}]}),
        ("/v1/completions", {"prompt": "a" * 70_000}),
        ("/v1/responses", {"input": "a" * 70_000}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a" * 70_000}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "a" * 70_000}]}),
        ("/api/chat", {"messages": [{"role": "user", "content": "a" * 70_000}]}),
        ("/api/embed", {"input": "a" * 70_000}),
        ("/v1/embeddings", {"input": "a" * 70_000}),
        ("/v1/rerank", {"query": "a" * 70_000, "documents": ["b"]}),
        ("/v1/choose", {"prompt": "a" * 70_000, "options": ["b"]}),
        ("/api/embeddings", {"prompt": "a" * 70_000}),
        ("/api/show", {"system": "a" * 70_000}),
        ("/tokenize", {"content": "a" * 70_000}),
        ("/detokenize", {"tokens": [1] * 70_000}),
    ],
)
def test_large_bodies_are_read_outside_of_the_event_loop(tales, monkeypatch, path, body):
    in_loop = []

    def loads(text, real=json.loads, **options):
        if len(text) > 70_000:
            try:
                in_loop.append(bool(asyncio.get_running_loop()))
            except RuntimeError:
                in_loop.append(False)
        return real(text, **options)

    monkeypatch.setattr(protocol, "json", SimpleNamespace(loads=loads, dumps=json.dumps))
    with serve_in_thread(tales, api_key=KEY) as one:
        ask(
            one, "POST", path, body | {"model": "tales"}, headers={"Authorization": f"Bearer {KEY}"}
        )
    assert in_loop == [False]


def test_large_bodies_take_turns():
    running, most = [], []

    def slow():
        running.append(None)
        time.sleep(0.02)
        most.append(len(running))
        running.pop()

    async def convert():
        bodies = BodyReader(Settings(), lambda: False)
        await asyncio.gather(*(bodies.convert(b"a" * 70_000, slow) for _ in range(4)))

    asyncio.run(convert())
    assert most == [1] * 4


def test_a_body_that_is_read_when_all_is_cancelled(endless, monkeypatch):
    """Its request does not start: the shutdown would wait for the answer."""
    reading, goes_on = threading.Event(), threading.Event()

    def slow(body, real=protocol.parse):
        reading.set()
        assert goes_on.wait(180)
        return real(body)

    monkeypatch.setattr("gguf_spec.server.app.parse", slow)
    with ThreadPoolExecutor(2) as pool, serve_in_thread(endless, grace=20) as one:
        answer = pool.submit(ask_text, one, max_tokens=None, user="u" * 70_000)
        assert reading.wait(180)
        closing = pool.submit(one.close, grace=0)
        assert not wait([closing], 0.5).done  # all is cancelled, and the request is open
        goes_on.set()
        assert (answer.result().status, answer.result().code) == (503, "shutting_down")
        closing.result(180)


def test_a_body_of_too_many_values(server, monkeypatch):
    monkeypatch.setattr(protocol, "VALUES_MAX", 100)
    reply = ask_text(server, stop=["x"] * 101)
    assert (reply.status, reply.code) == (400, "invalid_json")
    assert "more than 100 values" in reply.json()["error"]["message"]
    assert ask_text(server).status == 200


def test_large_bodies_that_wait_for_their_turn_are_counted():
    bodies = [b"a" * 70_000] * 4

    async def convert():
        reader = BodyReader(Limited(limits=Limits(bodies_bytes=150_000)), lambda: False)
        waiting = (reader.convert(body, len, body) for body in bodies)
        done = await asyncio.gather(*waiting, return_exceptions=True)
        return [getattr(one, "status", one) for one in done], reader.n_held

    assert asyncio.run(convert()) == ([70_000, 70_000, 429, 429], 0)


# ---- texts that are much longer than the context

LONG = "Once upon a time. " * 8_000
USER = {"role": "user", "content": LONG}
TOO_LONG = [
    ("/v1/completions", {"prompt": LONG}),
    ("/v1/completions", {"prompt": ["a", LONG]}),
    ("/completion", {"prompt": [1, 2, LONG]}),
    ("/completion", {"prompt": [1, LONG, LONG]}),
    ("/embedding", {"content": ["a", [1, LONG]]}),
    ("/embedding", {"content": [1, LONG]}),
    (CHAT, {"messages": [USER]}),
    (CHAT, {"messages": [USER, *HI]}),
    (CHAT, {"messages": HI * 3_000}),
    ("/v1/responses", {"input": LONG}),
    ("/v1/responses", {"input": [USER], "truncation": "auto"}),
    ("/v1/messages", {"messages": [USER], "max_tokens": 4}),
    ("/v1/embeddings", {"input": ["a", LONG]}),
    ("/v1/choose", {"prompt": LONG, "options": ["a", "b"]}),
    ("/api/generate", {"model": "tales", "prompt": LONG}),
    ("/api/chat", {"model": "tales", "messages": [USER], "stream": False}),
    ("/api/embed", {"model": "tales", "input": LONG, "truncate": False}),
]


@pytest.fixture
def read(monkeypatch):
    """Bytes that llama.cpp tokenised."""
    sizes, real = [], Weights._tokenize_part

    def tokenize(self, text, special, start):
        sizes.append(len(text))
        return real(self, text, special, start)

    monkeypatch.setattr(Weights, "_tokenize_part", tokenize)
    return sizes


@pytest.mark.parametrize(("path", "fields"), TOO_LONG)
def test_only_the_beginning_of_a_long_text_is_tokenised(server, read, path, fields):
    reply = ask(server, "POST", path, fields)
    assert reply.status == 400
    assert "2048" in reply.body.decode().replace(",", "")
    assert max(read, default=0) <= 4 * (2048 + 1024)


@pytest.mark.full
@pytest.mark.parametrize("path", ["/api/embed", "/api/embeddings"])
def test_a_text_that_is_cut_is_not_tokenised_whole(server, read, path):
    field = {"/api/embed": "input", "/api/embeddings": "prompt"}[path]
    replies = [
        ask(server, "POST", path, {"model": "tales", field: LONG[:n]}) for n in (20_000, None)
    ]
    whole, cut = (reply.json() for reply in replies)
    for reply in (whole, cut):
        for name in ("total_duration", "load_duration"):
            reply.pop(name, None)
    assert replies[0].status == 200 and whole == cut
    assert max(read) <= 20_000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/tokenize", {"content": LONG}, "content"),
        ("/v1/messages/count_tokens", {"messages": [USER]}, None),
    ],
)
def test_counts_have_a_limit_above_the_context(server, tales, path, fields, param):
    n = len(tales.tokenize(LONG))
    reply = ask(server, "POST", path, fields).json()
    found = len(reply["tokens"]) if param else reply["input_tokens"]
    assert n <= found <= n + 30 and n > 2048
    with serve_limited(tales, Limits(counted=100)) as one:
        reply = ask(one, "POST", path, fields)
    message = reply.json()["error"]["message"]
    assert reply.status == 400 and ("about" in message or "too long" in message)


def test_a_long_prompt_in_python(tales, read):
    for ask_python in (tales.generate, tales.stream, tales.chat().send, tales.embed):
        with pytest.raises(ValueError, match="about") as caught:
            ask_python(LONG)
        assert isinstance(caught.value, (PromptTooLongError, TextTooLongError))
    (error,) = tales.generate_many([LONG])
    assert isinstance(error, PromptTooLongError)
    assert max(read) <= 4 * (2048 + 1024)
    n = len(tales.tokenize(LONG))
    assert n > 20_000 and abs(error.n_prompt - n) < n / 20
    with pytest.raises(PromptTooLongError, match="has 10 tokens"):
        tales.tokenize("A fox" * 5, most=9)
