"""Embeddings and ranks over HTTP: the official client, limits, cancellation, and other requests beside."""

import base64
import http.client
import json
import threading
from urllib.parse import urlsplit

import numpy as np
import openai
import pytest

import gguf_spec
from gguf_spec.llama.embedder import Embedder
from gguf_spec.llama.weights import Weights
from gguf_spec.server import ModelPool, serve_in_thread, served_model
from gguf_spec.server.worker import Worker
from tests.server.conftest import ask, ask_chat, metrics, until
from tests.support import encoders

TEXTS = ["hello world", "the cat sat on the mat", "zebra quux moon"]
PATHS = ("/v1/embeddings", "/v1/rerank", "/rerank")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    encoders.write(folder / "bert.gguf")
    encoders.write(folder / "rank.gguf", pooling=4, ranks=True)
    return folder


@pytest.fixture(scope="module")
def several(files):
    """A server with an embedding model, a reranker and a chat model."""
    names = [files / "bert.gguf", files / "rank.gguf", "tales"]
    pool = ModelPool([served_model(name, threads=1) for name in names])
    with pool, serve_in_thread(pool, queue=300, any_model=False) as server:
        yield server


@pytest.fixture(scope="module")
def vectors(files):
    with gguf_spec.load(files / "bert.gguf", threads=1) as llm:
        yield llm.embed(TEXTS)


def embed(server, **fields):
    return ask(server, "POST", "/v1/embeddings", {"model": "bert", "input": "sun"} | fields)


def rerank(server, **fields):
    body = {"model": "rank", "query": "moon", "documents": TEXTS}
    return ask(server, "POST", "/v1/rerank", body | fields)


def test_the_official_client(several, vectors):
    with openai.OpenAI(base_url=f"{several.url}/v1", api_key="none", max_retries=0) as client:
        # by default it asks for base64 and decodes it
        for how in ({}, {"encoding_format": "float"}):
            made = client.embeddings.create(model="bert", input=TEXTS, **how)
            np.testing.assert_allclose([one.embedding for one in made.data], vectors, atol=1e-6)
            assert [one.index for one in made.data] == [0, 1, 2]
            assert (made.model, made.usage.prompt_tokens) == ("bert.gguf", 4 + 8 + 12)
        one = client.embeddings.create(model="bert", input=TEXTS[0])
        np.testing.assert_allclose(one.data[0].embedding, vectors[0], atol=2e-4)


def test_forms_of_the_input(several, vectors):
    ids = ask(several, "POST", "/tokenize", {"model": "bert", "content": TEXTS[0], "add_special": True}).json()["tokens"]  # fmt: skip
    for given, n in ((TEXTS[0], 1), (ids, 1), ([ids], 1), ([TEXTS[0], ids], 2), (TEXTS, 3)):
        data = embed(several, input=given).json()["data"]
        assert len(data) == n
        np.testing.assert_allclose(data[0]["embedding"], vectors[0], atol=2e-4)
    coded = embed(several, input=TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    np.testing.assert_allclose(np.frombuffer(base64.b64decode(coded), "<f4"), vectors[0], atol=2e-4)
    assert embed(several, dimensions=64, user="me").status == 200


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "invalid_value"),
        ({"input": 5}, "input", "invalid_value"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [[1], "a", 2]}, "input[2]", "invalid_value"),
        ({"input": ["apple", 5, "pear"]}, "input[1]", "invalid_value"),
        ({"input": [5, "apple"]}, "input[1]", "invalid_value"),
        ({"input": ["a", None]}, "input[1]", "invalid_value"),
        ({"input": ["a", ["b"]]}, "input[1][0]", "invalid_value"),
        ({"input": [[1], [2, "a"]]}, "input[1][1]", "invalid_value"),
        ({"input": [True]}, "input[0]", "invalid_value"),
        ({"input": [1, 2.5]}, "input[1]", "invalid_value"),
        ({"input": ["a"] * 2049}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": [1, 10**12]}, "input", "invalid_value"),
        ({"input": [-1]}, "input", "invalid_value"),
        ({"input": "sun " * 63}, "input", "context_length_exceeded"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
        ({"dimensions": 32}, "dimensions", "invalid_value"),
        ({"dimensions": 0}, "dimensions", "invalid_value"),
        ({"model": "rank"}, "model", "no_embeddings"),
    ],
)
def test_wrong_embedding_requests(several, fields, param, code):
    reply = embed(several, **fields)
    assert (reply.status, reply.param, reply.code) == (400, param, code), reply.body


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"query": 5}, "query", "invalid_value"),
        ({"documents": []}, "documents", "invalid_value"),
        ({"documents": "moon"}, "documents", "invalid_value"),
        ({"documents": ["a", {"title": "b"}]}, "documents[1]", "invalid_value"),
        ({"documents": ["sun " * 63]}, "documents", "context_length_exceeded"),
        ({"top_n": 0}, "top_n", "invalid_value"),
        ({"model": "bert"}, "model", "no_ranking"),
        ({"model": "tales"}, "model", "no_ranking"),
    ],
)
def test_wrong_rerank_requests(several, fields, param, code):
    reply = rerank(several, **fields)
    assert (reply.status, reply.param, reply.code) == (400, param, code), reply.body


def test_unknown_models(several):
    assert (embed(several, model="gpt-4").status, rerank(several, model="x").status) == (404, 404)


def test_ranks(several, files):
    with gguf_spec.load(files / "rank.gguf", threads=1) as llm:
        scores = llm.rerank("moon", TEXTS)
    best = sorted(range(3), key=lambda i: -scores[i])
    made = rerank(several).json()
    assert [one["index"] for one in made["results"]] == best
    np.testing.assert_allclose([one["relevance_score"] for one in made["results"]], [scores[i] for i in best], atol=1e-3)  # fmt: skip
    assert made["usage"]["total_tokens"] > 20 and made["model"] == "rank.gguf"
    first = rerank(several, top_n=1, return_documents=True).json()["results"]
    assert [(one["index"], one["document"]["text"]) for one in first] == [(best[0], TEXTS[best[0]])]
    objects = rerank(several, documents=[{"text": text} for text in TEXTS]).json()
    assert objects["results"] == made["results"]
    again = {"model": "rank", "query": "moon", "documents": TEXTS}
    assert ask(several, "POST", "/rerank", again).json() == made


def test_no_text_from_an_embedding_model(several):
    reply = ask_chat(several, model="bert")
    assert (reply.status, reply.code, reply.param) == (400, "no_generation", "model")
    reply = ask(several, "POST", "/v1/completions", {"model": "rank", "prompt": "sun"})
    assert (reply.status, reply.code) == (400, "no_generation")
    for path in (
        "/props?model=bert",
        "/slots?model=bert",
        "/v1/models/bert",
        "/metrics",
        "/api/ps",
    ):
        assert ask(several, path=path).status == 200


def test_beside_chats(several, vectors):
    """Mixed requests at once: each answer is that of a separate request."""
    text = ask_chat(several, model="tales", seed=3, max_tokens=12).json()["choices"][0]["message"]
    scores, found, before = rerank(several).json(), [], metrics(several)["embedded_tokens_total"]

    def chat():
        reply = ask_chat(several, model="tales", seed=3, max_tokens=12).json()
        found.append(reply["choices"][0]["message"] == text)

    def ranks():
        found.append(rerank(several).json() == scores)

    def embeds(model, expected):
        data = embed(several, model=model, input=TEXTS).json()["data"]
        found.append(np.allclose([one["embedding"] for one in data], expected, atol=1e-6))

    tales = [one["embedding"] for one in embed(several, model="tales", input=TEXTS).json()["data"]]
    jobs = [chat, ranks, lambda: embeds("bert", vectors), lambda: embeds("tales", tales)] * 6
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 24
    assert metrics(several)["embedded_tokens_total"] > before
    assert metrics(several)['requests_total{path="/v1/embeddings",status="200"}'] >= 12


@pytest.fixture
def slow(files, monkeypatch):
    """A server whose passes wait for an event, and the events: a pass runs, it may end."""
    running, may_end, real = threading.Event(), threading.Event(), Embedder.rows_of

    def waiting(self, native, group):
        running.set()
        assert may_end.wait(180)
        return real(self, native, group)

    monkeypatch.setattr(Embedder, "rows_of", waiting)
    with (
        gguf_spec.load(files / "bert.gguf", threads=1) as llm,
        serve_in_thread(llm, queue=1, timeout=600) as server,
    ):
        yield server, running, may_end
        may_end.set()


def test_a_closed_connection_ends_its_request(slow, monkeypatch):
    server, running, may_end = slow
    cancelled, real = threading.Event(), Worker.cancel

    def cancel(self, job, why):
        real(self, job, why)
        cancelled.set()

    monkeypatch.setattr(Worker, "cancel", cancel)
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
    body = json.dumps({"input": ["sun"] * 2000})
    connection.request("POST", "/v1/embeddings", body)
    assert running.wait(180)
    assert ask(server, path="/health").json()["running"] == 1
    connection.close()  # with its socket, although no response was read
    assert cancelled.wait(180)
    may_end.set()
    until(lambda: metrics(server).get('requests_total{path="/v1/embeddings",status="499"}') == 1)
    until(lambda: ask(server, path="/health").json()["running"] == 0)
    assert metrics(server)["embedded_tokens_total"] == 0
    assert embed(server).status == 200


MANY = ["moon"] * 2000
LONG_REQUESTS = {
    "/v1/embeddings": ("bert", {"input": MANY}),
    "/embeddings?of=parts": ("bert", {"input": [[15, "moon"]] * 2000}),
    "/embeddings": ("bert", {"content": MANY}),
    "/api/embed": ("bert", {"input": MANY}),
    "/api/embed?whole": ("bert", {"input": MANY, "truncate": False}),
    "/v1/rerank": ("rank", {"query": "sun", "documents": MANY}),
}


@pytest.mark.parametrize("path", LONG_REQUESTS)
def test_a_closed_connection_ends_tokenising(several, monkeypatch, path):
    """It has no passes yet; the next request waited until the last text was tokenised."""
    model, body = LONG_REQUESTS[path]
    running, cancelled, n = threading.Event(), threading.Event(), []
    tokenize, cancel = Weights._tokenize, Worker.cancel

    def waiting(self, text, *given):
        if b"moon" in text:
            n.append(text)
            running.set()
            assert cancelled.wait(180)
        return tokenize(self, text, *given)

    def cancelling(self, job, why):
        cancel(self, job, why)
        cancelled.set()

    monkeypatch.setattr(Weights, "_tokenize", waiting)
    monkeypatch.setattr(Worker, "cancel", cancelling)
    connection = http.client.HTTPConnection(urlsplit(several.url).netloc, timeout=180)
    connection.request("POST", path, json.dumps({"model": model} | body))
    assert running.wait(180)
    connection.close()
    assert embed(several).status == 200
    assert len(n) == 1


def test_the_queue_has_a_limit(slow):
    server, running, may_end = slow
    replies = []
    threads = [threading.Thread(target=lambda: replies.append(embed(server))) for _ in range(2)]
    for i, thread in enumerate(threads):
        thread.start()
        assert running.wait(180)
        until(lambda n=i: ask(server, path="/health").json()["queue"] == n)
    reply = embed(server)
    assert (reply.status, reply.code) == (429, "queue_full")
    assert reply.json()["error"]["message"].startswith("1 request is already waiting.")
    may_end.set()
    for thread in threads:
        thread.join()
    assert [one.status for one in replies] == [200, 200]


def test_the_time_has_a_limit(files, monkeypatch):
    real = Embedder.rows_of
    with (
        gguf_spec.load(files / "bert.gguf", threads=1) as llm,
        serve_in_thread(llm, timeout=0.2) as server,
    ):
        may_end = threading.Event()
        monkeypatch.setattr(
            Embedder, "rows_of", lambda *given: (may_end.wait(0.3), real(*given))[1]
        )
        reply = embed(server, input=["sun"] * 600)
        assert (reply.status, reply.code) == (503, "timeout")


def test_the_time_in_the_queue_counts(files, monkeypatch):
    may_end, real = threading.Event(), Embedder.rows_of
    monkeypatch.setattr(Embedder, "rows_of", lambda *given: (may_end.wait(180), real(*given))[1])
    with (
        gguf_spec.load(files / "bert.gguf", threads=1) as llm,
        serve_in_thread(llm, timeout=0.5) as server,
    ):
        first = threading.Thread(target=embed, args=(server,))
        first.start()
        until(lambda: ask(server, path="/health").json()["running"] == 1)
        reply = embed(server)
        may_end.set()
        first.join()
    assert (reply.status, reply.code) == (503, "timeout")


def test_limits_of_access(files):
    with (
        gguf_spec.load(files / "bert.gguf", threads=1) as llm,
        serve_in_thread(llm, api_key="secret", body_bytes=2000) as server,
    ):
        for path in PATHS:
            assert ask(server, "POST", path, {}).status == 401
            key = {"Authorization": "Bearer secret"}
            assert ask(server, "POST", path, {"input": "a" * 3000}, key).status == 413
            assert ask(server, "GET", path, headers=key).status == 405
        assert ask(server, "POST", PATHS[0], {"input": "a"}, key).status == 200


def test_too_little_memory(files, monkeypatch, free_memory):
    with gguf_spec.load("tales", threads=1) as llm, serve_in_thread(llm) as server:
        free_memory(1 << 20)
        reply = embed(server, model="tales")
        assert (reply.status, reply.code) == (503, "not_enough_memory")
        monkeypatch.undo()
        assert embed(server, model="tales").status == 200
