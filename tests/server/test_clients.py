"""Request bodies in the form that real clients send them, by their sources."""

import json
from pathlib import Path

import pytest

from gguf_spec.options import Speculation
from gguf_spec.protocols.openai import read_chat, read_text
from tests.server.conftest import ask

REQUESTS = json.loads((Path(__file__).parents[1] / "data" / "client_requests.json").read_text())
PATHS = {"chat": "/v1/chat/completions", "text": "/v1/completions"}


@pytest.mark.parametrize("one", REQUESTS, ids=[one["client"] for one in REQUESTS])
def test_clients(server, one):
    body = one["body"]
    request = (read_chat if one["route"] == "chat" else read_text)(body, Speculation(), None)
    assert request.stream is body["stream"]
    most = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    short = body | {most: min(body.get(most) or 20, 20)}
    reply = ask(server, "POST", PATHS[one["route"]], short)
    if "suffix" in body:  # the field is taken; this model lacks the function
        assert reply.json()["error"]["param"] == "suffix"
        return
    assert reply.status == 200, reply.body
    if body["stream"]:
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in reply.body
    else:
        assert len(reply.json()["choices"]) == body.get("n", 1)
