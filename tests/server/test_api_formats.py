"""API formats of the server: errors and streams have the format of the API of their path."""

import json

import pytest

from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.replies import DATA_EVENTS, JSON_LINES, NAMED_EVENTS
from gguf_spec.server import serve_in_thread
from gguf_spec.server.streams import refused
from tests.server.conftest import ask

KEY = "secret"


@pytest.fixture(scope="module")
def locked(tales):
    with serve_in_thread(tales, api_key=KEY, body_bytes=1000) as server:
        yield server


def error_of(reply, path):
    """Return the message of an error, whose form must be that of the path."""
    body = reply.json()
    if path.startswith("/v1/messages"):
        assert body["type"] == "error"
        assert set(body["error"]) == {"type", "message"}
        return body["error"]["type"]
    if path.startswith("/api/"):
        assert isinstance(body["error"], str) and body["error"]
        return None
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]["type"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/messages/nothing", "authentication_error"),
        ("/api/nothing", None),
        ("/v1/nothing", "invalid_request_error"),
        ("/apis", "invalid_request_error"),
    ],
)
def test_errors_of_the_middleware(locked, path, kind):
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        reply = ask(locked, "POST", path, {}, headers)
        assert (reply.status, error_of(reply, path)) == (401, kind)
    reply = ask(locked, "POST", path, {}, {"Authorization": f"Bearer {KEY}"})
    assert reply.status == 404
    assert error_of(reply, path) == (kind and kind.replace("authentication", "not_found"))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (403, "permission_error"),
        (405, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_types_of_anthropic(status, kind):
    refusal = ApiError("No.", "field", "code", status, {"Retry-After": "5"})
    reply = refused(refusal, "/v1/messages")
    assert (reply.status_code, reply.headers["retry-after"]) == (status, "5")
    assert json.loads(reply.body) == {"type": "error", "error": {"type": kind, "message": "No."}}
    assert json.loads(refused(refusal, "/v1/messages2").body) == {"error": refusal.error}


def test_formats_of_streams():
    data = {"type": "ping", "text": "é\n"}
    said = '{"type":"ping","text":"é\\n"}'
    assert DATA_EVENTS.write(data).decode() == f"data: {said}\n\n"
    assert NAMED_EVENTS.write(data).decode() == f"event: ping\ndata: {said}\n\n"
    assert JSON_LINES.write(data).decode() == f"{said}\n"
    assert [one.end for one in (DATA_EVENTS, NAMED_EVENTS, JSON_LINES)] == [
        b"data: [DONE]\n\n",
        b"",
        b"",
    ]
