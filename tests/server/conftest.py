"""Real servers on the loopback: one of the bundled pair, one of a model that never ends."""

import http.client
import json
import time
from urllib.parse import urlsplit

import openai
import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.gguf import zoo


@pytest.fixture(scope="module")
def server(tales):
    with serve_in_thread(tales, queue=300) as one:
        yield one


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one:
        yield one


@pytest.fixture(scope="session")
def endless(tmp_path_factory):
    """A model that says the alphabet for ever."""
    path = tmp_path_factory.mktemp("endless") / "ever.gguf"
    zoo.write(
        path, zoo.parrot("abcdefghijkl", for_ever=True), metadata={"llama.context_length": 100_000}
    )
    with gguf_spec.load(path, None, threads=1, n_ctx=50_000, extra_bufts=False) as llm:
        yield llm


class ResponseBuilder:
    def __init__(self, response):
        self.status, self.headers, self.body = (
            response.status,
            dict(response.getheaders()),
            response.read(),
        )

    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json()["error"]["code"]

    @property
    def param(self):
        return self.json()["error"]["param"]


def ask(server, method="GET", path="/health", body=None, headers=()):
    """Send a request as it is; a body that is not bytes goes as JSON."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
    try:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, dict(headers))
        return ResponseBuilder(connection.getresponse())
    finally:
        connection.close()


def ask_chat(server, headers=(), **fields):
    return ask(
        server,
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4} | fields,
        headers,
    )


def ask_text(server, headers=(), **fields):
    return ask(
        server, "POST", "/v1/completions", {"prompt": "abc", "max_tokens": 4} | fields, headers
    )


def until(condition, seconds=10.0):
    """Wait until something is so; return how long that took."""
    started = time.perf_counter()
    while not condition():
        assert time.perf_counter() - started < seconds, "it never came"
        time.sleep(0.005)
    return time.perf_counter() - started


def metrics(server):
    """Return the metrics as a dictionary from name and labels to number."""
    lines = ask(server, path="/metrics").body.decode().splitlines()
    return {
        name.removeprefix("gguf_spec_"): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }
