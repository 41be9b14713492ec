"""Real servers on the loopback: one of the bundled pair, one of a model that never ends."""

import contextlib
import http.client
import json
import threading
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import ollama  # noqa: F401 -- imports httpx, which a stream of openai that is collected during the import finds half done
import openai
import pytest

import gguf_spec
from gguf_spec.runtime.generation import StatsRecorder
from gguf_spec.server import Server, Settings, serve_in_thread
from gguf_spec.server.settings import LIMITS, Limits
from tests.support import tiny


@dataclass(frozen=True)
class Limited(Settings):
    """Settings with limits that a test chooses."""

    limits: Limits = LIMITS


def connections_of(server):
    """The open connections of a server."""
    return server._uvicorn.server_state.connections


def serve_limited(llm, limits, **settings):
    """Return a running server with limits that a test chooses."""
    return Server(llm, Limited(limits=limits, **settings))


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
    """A model that repeats the alphabet without an end."""
    path = tmp_path_factory.mktemp("endless") / "ever.gguf"
    tiny.write(
        path,
        tiny.one_text("abcdefghijkl", for_ever=True),
        metadata={"llama.context_length": 100_000},
    )
    with gguf_spec.load(path, None, threads=1, n_ctx=50_000, extra_bufts=False) as llm:
        yield llm


def infill_model(path, kinds):
    """Write a model with some of the tokens for filling in the middle: pre, suf, mid, rep, sep."""
    n = len(tiny.TOKENS) - 3
    tokens = [*tiny.TOKENS[:-3], *(f"<|fim_{kind}|>" for kind in kinds), *tiny.TOKENS[-3:]]
    metadata = {f"tokenizer.ggml.fim_{kind}_token_id": n + i for i, kind in enumerate(kinds)}
    metadata["tokenizer.ggml.token_type"] = [1] * n + [3] * (len(kinds) + 3)
    return tiny.write(path, tiny.llama(n_vocab=len(tokens)), tokens=tokens, metadata=metadata)


@pytest.fixture(scope="module")
def coder(tmp_path_factory):
    """A model that fills in the middle, with the tokens for files."""
    path = tmp_path_factory.mktemp("coder") / "coder.gguf"
    infill_model(path, ("pre", "suf", "mid", "rep", "sep"))
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def coder_server(coder):
    with serve_in_thread(coder) as one:
        yield one


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
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
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
        {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4, "seed": 1} | fields,
        headers,
    )


def ask_text(server, headers=(), **fields):
    return ask(
        server,
        "POST",
        "/v1/completions",
        {"prompt": "abc", "max_tokens": 4, "seed": 1} | fields,
        headers,
    )


@pytest.fixture
def failing_streams(monkeypatch):
    """Every answer fails after a few tokens, by an error with a secret."""
    real = StatsRecorder.round_is_done

    def fail(self, *given):
        if self.stats.n_generated > 3:
            raise RuntimeError("a secret")
        return real(self, *given)

    monkeypatch.setattr(StatsRecorder, "round_is_done", fail)


@contextlib.contextmanager
def serving(path):
    """A server of a small model, which drafts from the text."""
    with (
        gguf_spec.load(path, "ngram", threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        yield server


def until(condition, seconds=180.0):
    """Wait until something is so; return how long that took."""
    started = time.perf_counter()
    while not condition():
        assert time.perf_counter() - started < seconds, "it never came"
        time.sleep(0.005)
    return time.perf_counter() - started


def threads_since(before):
    """Return the running threads that are not in `before`; threads of earlier tests may end."""
    return set(threading.enumerate()) - before


def metrics(server):
    """Return the metrics as a dictionary from name and labels to number."""
    lines = ask(server, path="/metrics").body.decode().splitlines()
    return {
        name.removeprefix("gguf_spec_"): float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


# ---- the page in a browser


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    """A browser; what it downloads is in the folder `downloads` of the driver."""
    from tests.support import browser

    one = browser.start(browser.CHROMIUM, browser.DRIVER, tmp_path_factory.mktemp("chromium"))
    one.downloads = tmp_path_factory.mktemp("downloads")
    behaviour = {"behavior": "allow", "downloadPath": str(one.downloads)}
    one.execute_cdp_cmd("Browser.setDownloadBehavior", behaviour)
    yield one
    one.quit()


@pytest.fixture(scope="session")
def drafting():
    """A server that always drafts, whatever the load of the machine."""
    speculation = gguf_spec.Speculation(k=4, adaptive=False)
    with (
        gguf_spec.load("tales", threads=1, speculation=speculation) as llm,
        serve_in_thread(llm) as server,
    ):
        yield server


@pytest.fixture(scope="module")
def for_ever(endless):
    with serve_in_thread(endless) as one:
        yield one


@pytest.fixture
def page(request, driver):
    """The page of the server that the test's mark names, without any chats.

    There may be no requests to other hosts and no console errors.
    """
    from tests.support.browser import Page

    server = request.getfixturevalue(getattr(request, "param", "drafting"))
    driver.get(f"{server.url}/health")
    driver.execute_script("localStorage.clear(); sessionStorage.clear()")
    driver.get("about:blank")
    driver.get_log("browser"), driver.get_log("performance")
    one = Page(driver, server.url)
    until(lambda: one.text("#model-name"))
    loaded = {url for url in one.requests() if not url.startswith(f"{server.url}/page/")}
    assert loaded - {"data:,", "about:blank"} == {f"{server.url}/", f"{server.url}/v1/models"}
    yield one
    mine = (f"{server.url}/", f"blob:{server.url}/", "data:")
    assert all(url.startswith(mine) for url in one.requests())
    assert not one.complaints()
