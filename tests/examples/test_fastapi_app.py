"""fastapi_app.py: streamed and complete answers, errors, and a closed connection."""

import asyncio
import sys
from pathlib import Path

import pytest

fastapi = pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "examples"))


@pytest.fixture(scope="module")
def client():
    from fastapi.testclient import TestClient
    from fastapi_app import make_app

    with TestClient(make_app("tales", draft=None, threads=1)) as client:
        yield client


def test_a_stream(client):
    fields = {"prompt": "The fox said", "max_tokens": 20, "seed": 3}
    with client.stream("POST", "/tell", json=fields) as reply:
        assert reply.status_code == 200
        text = "".join(reply.iter_text())
    llm = client.app.state.llm.llm
    from gguf_spec import Sampling

    assert text == llm.generate("The fox said", Sampling(max_tokens=20, seed=3)).text


def test_json_of_a_schema(client):
    fields = {"prompt": "A fox, as JSON.", "max_tokens": 300, "seed": 3}
    animal = client.post("/name", json=fields).json()
    assert isinstance(animal["name"], str)
    assert 0 <= animal["age"] <= 99
    reply = client.post("/name", json=fields | {"max_tokens": 2})
    assert reply.status_code == 503


def test_errors(client):
    assert client.post("/tell", json={"prompt": ""}).status_code == 422
    reply = client.post("/tell", json={"prompt": "a b c d " * 900})
    assert reply.status_code == 422
    assert "context" in reply.text or "tokens" in reply.text


def test_several_clients_at_once(client):
    app = client.app

    async def ask(seed):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as one:
            fields = {"prompt": "The king said", "max_tokens": 15, "seed": seed}
            return (await one.post("/tell", json=fields)).text

    async def ask_all():
        return await asyncio.gather(*(ask(seed) for seed in range(6)))

    alone = [
        client.post("/tell", json={"prompt": "The king said", "max_tokens": 15, "seed": s}).text
        for s in range(6)
    ]
    assert client.portal.call(ask_all) == alone
