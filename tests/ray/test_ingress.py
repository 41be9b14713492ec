"""The ingress before the real server, whose replicas are lost at every place of an answer; Ray is not needed."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gguf_spec.protocols.errors import ApiError, shutting_down
from gguf_spec.protocols.replies import DATA_EVENTS
from gguf_spec.server import Settings, make_app
from gguf_spec_ray.ingress import (
    MOST_ATTEMPTS,
    AttemptLostError,
    Call,
    ContinuedAnswer,
    Head,
    Ingress,
)

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
# Drafts of a fixed length, or none: places are bytes of an answer, and how much the load of the machine lets a
# server draft decides how long that is.
PLAIN = {"speculation": "off"}
DRAFTING = {"speculation": {"k": 4, "adaptive": False}}
QUESTION = {
    "messages": [{"role": "user", "content": "Tell me of a fox."}],
    "max_tokens": 24,
} | PLAIN
FOX = {"prompt": "The fox", "max_tokens": 24} | PLAIN
LOGPROBS = {"logprobs": True, "top_logprobs": 2}
STREAMS = {
    "chat": (CHAT, QUESTION),
    "text": (TEXT, FOX),
    "choices": (CHAT, QUESTION | {"n": 3}),
    "log probabilities": (CHAT, QUESTION | LOGPROBS),
    "log probabilities of a text": (TEXT, FOX | {"logprobs": 2}),
    "drafts": (CHAT, QUESTION | DRAFTING | {"stream_options": {"include_speculation": True, "include_usage": True}}),
}  # fmt: skip


@pytest.fixture(scope="module")
def app(tales):
    app = make_app(tales, Settings())
    yield app
    app.close()


class Replicas:
    """Replicas that are lost after so many bytes of a body, -1 for before its head; afterwards they last."""

    def __init__(self, app, *lost_after, change=lambda part, attempt: part):
        self.app, self.lost_after, self.change = app, list(lost_after), change
        self.calls = []

    async def open(self, call):
        self.calls.append(call)
        attempt, n_sent = len(self.calls), 0
        most = self.lost_after.pop(0) if self.lost_after else None
        parts = call.run(self.app)
        try:
            async for part in parts:
                if most == -1:
                    raise AttemptLostError
                cut = most is not None and isinstance(part, bytes)
                sent = part[: most - n_sent] if cut else part
                n_sent += len(sent) if cut else 0
                yield self.change(sent, attempt)
                if n_sent == most:
                    raise AttemptLostError
        finally:
            await parts.aclose()


def ask(ingress, path, fields, method="POST"):
    """Return status, headers and body of an answer."""

    async def run():
        body = json.dumps(fields).encode() if isinstance(fields, dict) else fields
        scope = {
            "type": "http", "method": method, "path": path, "root_path": "", "query_string": b"", "scheme": "http",
            "headers": [(b"host", b"localhost:8000"), (b"content-length", str(len(body)).encode())],
        }  # fmt: skip

        sent = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive():
            if sent:
                return sent.pop()
            return await asyncio.Future()

        messages = []

        async def send(message):
            messages.append(message)

        response = await ingress(Request(scope, receive))
        await response(scope, receive, send)
        head, *parts = messages
        headers = {name.decode(): value.decode() for name, value in head["headers"]}
        return head["status"], headers, b"".join(part.get("body", b"") for part in parts)

    return asyncio.run(run())


def events_of(body):
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n\n") if line]
    assert lines[-1] == b"[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def joined(body):
    """Return what a client makes of a stream: by choice, without what depends on chunks and times."""
    choices, ids, usage = {}, set(), None
    for data in events_of(body):
        ids.add(data["id"])
        usage = data.get("usage") or usage
        for choice in data["choices"]:
            one = choices.setdefault(
                choice["index"],
                {"text": "", "roles": [], "calls": [], "finish": [], "tokens": [], "marked": "", "n": 0, "seeds": []},
            )  # fmt: skip
            delta = choice.get("delta", {"content": choice.get("text")})
            one["text"] += delta.get("content") or ""
            one["roles"] += [delta["role"]] if "role" in delta else []
            one["calls"] += [call["function"]["arguments"] for call in delta.get("tool_calls", ())]
            one["finish"] += [choice["finish_reason"]] if choice["finish_reason"] else []
            one["seeds"] += [data["seed"]] if "seed" in data else []
            logprobs = choice["logprobs"] or {}
            named = [token["token"] for token in logprobs.get("content", ())]
            one["tokens"] += named + logprobs.get("tokens", [])
            drafts = data.get("speculation", {"text": [], "tokens": 0})
            one["marked"] += "".join(text for text, _ in drafts["text"])
            one["n"] += drafts["tokens"]
    assert len(ids) == 1
    return choices, usage and usage["completion_tokens"]


@pytest.mark.full
@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_continues_wherever_a_replica_is_lost(app, name):
    path, fields = STREAMS[name]
    fields = fields | {"stream": True, "seed": 5, "temperature": 0.8}
    whole = Replicas(app)
    status, headers, body = ask(Ingress(whole.open, Settings()), path, fields)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    expected = joined(body)
    assert all(len(one["finish"]) == 1 for one in expected[0].values())
    first = body.index(b"\n\n")
    for n in (-1, 0, 1, first, first + 1, first + 2, first + 9, len(body) // 3, len(body) // 2):
        replicas = Replicas(app, n, n // 2)
        ingress = Ingress(replicas.open, Settings())
        assert joined(ask(ingress, path, fields)[2]) == expected, n
        assert ingress.n_repeated >= 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["chat", "drafts", "log probabilities"])
def test_the_replicas_may_cut_the_text_otherwise(app, name):
    """A replica that drafts sends several tokens in a chunk, where another one sends one."""
    path, fields = STREAMS[name]
    fields = fields | {"stream": True, "seed": 5, "max_tokens": 60}
    expected = joined(ask(Ingress(Replicas(app).open, Settings()), path, fields)[2])

    for first, second in ((PLAIN, DRAFTING), (DRAFTING, PLAIN)):
        for n in (800, 1500, 2200):
            replicas = Replicas(app, n)

            ways = [second, first]

            async def open_(call, replicas=replicas, ways=ways):
                given = json.loads(call.body) | ways.pop()
                async for part in replicas.open(replace(call, body=json.dumps(given).encode())):
                    yield part

            found = joined(ask(Ingress(open_, Settings()), path, fields)[2])
            assert found == expected
            assert len(replicas.calls) == 2
            assert name != "drafts" or found[0][0]["marked"] == found[0][0]["text"]


def test_reasoning_and_tool_calls_come_once():
    """The bundled model has neither."""

    def call(id_, *arguments):
        start = {"index": 0, "id": id_, "function": {"name": "look", "arguments": ""}}
        rest = [{"index": 0, "function": {"arguments": one}} for one in arguments]
        return [{"tool_calls": [one]} for one in [start, *rest]]

    def written(*deltas, finish=None):
        choice = {"index": 0, "logprobs": None, "finish_reason": finish}
        head = {"id": "a", "created": 1}
        return [
            DATA_EVENTS.write(head | {"choices": [choice | {"delta": delta}]}) for delta in deltas
        ]

    role = {"role": "assistant", "content": ""}
    first = written(role, {"reasoning_content": "I lo"}, {"reasoning_content": "ok. "})
    texts = ({"reasoning_content": "I look. Now"}, {"content": "Yes."})
    again = written(role, *texts, *call("call_1", "{", '"x": 1}'))
    last = written(role, *texts, *call("call_2", '{"x"', ": 1}"))
    end = [*written({}, finish="tool_calls"), DATA_EVENTS.end]
    for n in range(len(again) + 2):
        answer = ContinuedAnswer()
        sent = [answer.take(one) for one in first]
        answer.repeat()
        sent += [answer.take(one) for one in (again + end)[:n]]
        answer.repeat()
        sent += [answer.take(one) for one in last + end]
        data = [json.loads(one[6:]) for one in sent[:-1] if one]
        deltas = [choice["delta"] for one in data for choice in one["choices"]]
        assert sum("role" in delta for delta in deltas) == 1
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "I look. Now"
        assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
        calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
        assert ["id" in one for one in calls] == [True] + [False] * (len(calls) - 1)
        assert "".join(one["function"]["arguments"] for one in calls) == '{"x": 1}'
        assert [one["choices"][0]["finish_reason"] for one in data].count("tool_calls") == 1
        assert answer.is_complete


def test_pings_are_passed_on():
    answer = ContinuedAnswer()
    assert answer.take(DATA_EVENTS.ping) == DATA_EVENTS.ping
    answer.repeat()
    assert answer.take(DATA_EVENTS.ping) == DATA_EVENTS.ping
    assert not answer.is_complete


def test_a_replica_that_is_lost_at_the_end_is_not_missed(app):
    fields = QUESTION | {"stream": True, "seed": 5}

    async def open_(call):
        async for part in call.run(app):
            yield part
        raise AttemptLostError

    ingress = Ingress(open_, Settings())
    assert joined(ask(ingress, CHAT, fields)[2])[0][0]["finish"] == ["length"]
    assert ingress.n_repeated == 0


def test_parts_of_events_are_not_passed_on(app):
    fields = QUESTION | {"stream": True, "seed": 5}
    expected = joined(ask(Ingress(Replicas(app).open, Settings()), CHAT, fields)[2])

    def cut(part, attempt):
        return part[:-7] if attempt == 1 and isinstance(part, bytes) and b"[DONE]" in part else part

    replicas = Replicas(app, change=cut)
    assert joined(ask(Ingress(replicas.open, Settings()), CHAT, fields)[2]) == expected
    assert len(replicas.calls) == 2


def test_a_request_without_a_seed_gets_one_that_is_repeated(app):
    replicas = Replicas(app, 1, -1)
    ingress = Ingress(replicas.open, Settings())
    status, _, body = ask(ingress, CHAT, QUESTION | {"seed": None})
    seeds = {json.loads(call.body)["seed"] for call in replicas.calls}
    assert (status, len(replicas.calls), ingress.n_repeated) == (200, 3, 2)
    assert seeds == {json.loads(body)["seed"]}
    again = ask(Ingress(Replicas(app).open, Settings()), CHAT, QUESTION | {"seed": seeds.pop()})
    assert json.loads(again[2])["choices"] == json.loads(body)["choices"]
    other = Replicas(app)
    ask(Ingress(other.open, Settings()), CHAT, QUESTION)
    assert json.loads(other.calls[0].body)["seed"] != json.loads(replicas.calls[0].body)["seed"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_ends_every_replica_is_given_up(app, stream):
    replicas = Replicas(app, *[500 if stream else -1] * 9)
    status, _, body = ask(Ingress(replicas.open, Settings()), CHAT, QUESTION | {"stream": stream})
    assert len(replicas.calls) == MOST_ATTEMPTS
    error = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: ") if stream else body)["error"]
    assert (status, error["code"]) == (200 if stream else 503, "replica_lost")


def test_an_answer_is_not_continued_with_another_text(app):
    def change(part, attempt):
        return part.replace(b"he", b"hE") if attempt == 2 and isinstance(part, bytes) else part

    fields = FOX | {"stream": True, "seed": 5}
    replicas = Replicas(app, 2000, change=change)
    _, _, body = ask(Ingress(replicas.open, Settings()), TEXT, fields)
    error = json.loads(body.split(b"\n\n")[-2].removeprefix(b"data: "))["error"]
    assert error["code"] == "replica_lost"
    assert "different text" in error["message"]
    assert b"[DONE]" not in body


def test_a_replica_that_shuts_down_counts_as_lost(app):
    async def stopping(request):
        return JSONResponse({"error": shutting_down().error}, 503)

    other = Starlette(routes=[Route(CHAT, stopping, methods=["POST"])])
    replicas = Replicas(app)

    async def open_(call):
        async for part in call.run(app if replicas.calls else other):
            yield part
        replicas.calls.append(call)

    status, _, _ = ask(Ingress(open_, Settings()), CHAT, QUESTION)
    assert (status, len(replicas.calls)) == (200, 2)


def test_a_stream_that_a_shutdown_ends_is_continued(app):
    fields = FOX | {"stream": True, "seed": 5}
    expected = joined(ask(Ingress(Replicas(app).open, Settings()), TEXT, fields)[2])

    def end(part, attempt):
        if attempt == 1 and isinstance(part, bytes) and b'"finish_reason":"' in part:
            return b"data: " + json.dumps({"error": shutting_down().error}).encode() + b"\n\n"
        return part

    replicas = Replicas(app, change=end)
    assert joined(ask(Ingress(replicas.open, Settings()), TEXT, fields)[2]) == expected
    assert len(replicas.calls) == 2


def test_refusals_and_other_routes_pass(app):
    ingress = Ingress(Replicas(app).open, Settings(body_bytes=2000))
    status, headers, body = ask(ingress, CHAT, b"{")
    assert (status, json.loads(body)["error"]["code"]) == (400, "invalid_json")
    assert int(headers["content-length"]) == len(body)
    assert ask(ingress, CHAT, b" " * 2001)[0] == 413
    assert ask(ingress, CHAT, {"messages": 3})[0] == 400
    assert json.loads(ask(ingress, "/health", b"", "GET")[2])["status"] == "ok"
    assert ask(ingress, "/nothing", b"", "GET")[0] == 404
    assert ask(ingress, "/", b"", "GET")[1]["content-type"].startswith("text/html")


def test_no_replica_takes_the_request(app):
    async def open_(call):
        raise ApiError("Too many requests are waiting.", None, "queue_full", 429)
        yield

    assert ask(Ingress(open_, Settings()), CHAT, QUESTION)[0] == 429


def test_a_refusal_of_the_repetition_ends_the_stream(app):
    replicas = Replicas(app, 2000)

    async def open_(call):
        if replicas.calls:
            yield Head(429, ((b"content-type", b"application/json"),))
            yield b'{"error": {}}'
        else:
            async for part in replicas.open(call):
                yield part

    fields = FOX | {"stream": True, "seed": 5}
    _, _, body = ask(Ingress(open_, Settings()), TEXT, fields)
    assert b'"error"' in body.split(b"\n\n")[-2]


def test_a_path_is_below_the_prefix():
    scope = {
        "type": "http", "method": "POST", "path": "/llm/v1/completions", "root_path": "/llm", "query_string": b"a=1",
        "scheme": "http", "headers": [(b"Content-Length", b"9"), (b"x", b"y")],
    }  # fmt: skip
    call = Call.of(Request(scope), b'{"seed":4}')
    assert (call.scope["path"], call.scope["headers"], call.with_seed()) == (
        TEXT,
        [(b"x", b"y")],
        call,
    )


def test_a_stream_of_another_format_is_passed_on(app):
    """The ingress does not change data that it cannot read; a loss ends the connection."""
    lines = [b'{"response":"a"}\n', b'{"done":true}\n']

    class Lines(Replicas):
        async def open(self, call):
            self.calls.append(call)
            yield Head(200, ((b"content-type", b"application/x-ndjson"),))
            for line in lines[: None if self.lost_after == [] else 1]:
                yield line
            if self.lost_after:
                raise AttemptLostError

    replicas = Lines(app)
    status, headers, body = ask(Ingress(replicas.open, Settings()), "/api/chat", {})
    assert (status, headers["content-type"], body) == (200, "application/x-ndjson", b"".join(lines))
    assert "content-length" not in headers
    lost = Lines(app, 1)
    with pytest.raises(AttemptLostError):
        ask(Ingress(lost.open, Settings()), "/api/chat", {})
    assert len(lost.calls) == 1


def test_errors_are_in_the_format_of_the_path(app):
    async def none(call):
        raise AttemptLostError
        yield

    for path, key in (("/v1/messages", "type"), (CHAT, "error"), ("/api/chat", "error")):
        status, _, body = ask(Ingress(none, Settings()), path, {})
        assert status == 503
        said = json.loads(body)
        assert key in said and isinstance(said["error"], str) == path.startswith("/api")


def test_large_bodies_are_read_outside_of_the_event_loop(monkeypatch):
    threads = []

    def parse(body):
        threads.append(threading.current_thread())
        return {}

    async def none(_):
        raise ApiError("no replica", status=429)
        yield

    monkeypatch.setattr("gguf_spec_ray.ingress.parse", parse)
    for n in (1, 70_000):
        assert ask(Ingress(none, Settings()), CHAT, {"user": "u" * n})[0] == 429
    assert [one is threading.main_thread() for one in threads] == [True, False]
