"""Responses in the background: they go on without their client, and can be read again from any event on."""

import asyncio
import contextlib
import http.client
import json
import time
from types import SimpleNamespace
from urllib.parse import quote, urlsplit

import pytest

from gguf_spec.server import Settings, background, serve_in_thread
from gguf_spec.server.settings import Limits
from tests.server.conftest import ask, serve_limited, until
from tests.server.test_load import busy

PATH = "/v1/responses"
ASKED = {
    "model": "tales",
    "input": "Tell me of a fox.",
    "max_output_tokens": 60,
    "seed": 5,
    "background": True,
}
EVER = {"input": "a", "temperature": 0, "background": True}


@contextlib.contextmanager
def reading(server, method="POST", path=PATH, **fields):
    """Yield a function that returns the next event of a stream, None at its end."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
    body = json.dumps({"stream": True, **fields}) if method == "POST" else None
    connection.request(method, path, body)
    response = connection.getresponse()
    assert response.status == 200, response.read()

    def following():
        while line := response.readline():
            if line.startswith(b"data: ") and b'"ping"' not in line[:30]:
                return json.loads(line[6:])
        return None

    try:
        yield following
    finally:
        response.close()
        connection.close()


def rest_of(following):
    return [*iter(following, None)]


def text_of(events):
    return "".join(one["delta"] for one in events if one["type"] == "response.output_text.delta")


def get(server, id_, query=""):
    return ask(server, path=f"{PATH}/{id_}{query}")


def post(server, **fields):
    return ask(server, "POST", PATH, fields)


def cancel(server, id_):
    return ask(server, "POST", f"{PATH}/{id_}/cancel")


@pytest.fixture
def ever(endless):
    with serve_in_thread(endless) as server:
        yield server


@pytest.fixture
def limited(endless):
    """Makes a server with limits of its own."""
    with contextlib.ExitStack() as servers:
        yield lambda limits: servers.enter_context(serve_limited(endless, limits))


def test_a_client_that_comes_back_has_the_same_text(server):
    wanted = post(server, **ASKED | {"background": False}).json()["output"][0]["content"][0]["text"]
    with reading(server, **ASKED) as following:
        before = [following() for _ in range(8)]
    kinds = [one["type"].removeprefix("response.") for one in before[:3]]
    assert kinds == ["created", "queued", "in_progress"]
    response = before[0]["response"]
    assert (response["status"], response["background"]) == ("queued", True)
    id_, last = response["id"], before[-1]["sequence_number"]
    with reading(server, "GET", f"{PATH}/{id_}?stream=true&starting_after={last}") as following:
        events = [*before, *rest_of(following)]
    assert [one["sequence_number"] for one in events] == [*range(len(events))]
    assert text_of(events) == wanted
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == wanted
    with reading(server, "GET", f"{PATH}/{id_}?stream=true") as following:
        assert rest_of(following) == events, "from the beginning, after its end"
    assert get(server, id_).json() == events[-1]["response"]


def test_two_clients_at_once(ever):
    with reading(ever, **EVER) as one:
        id_ = one()["response"]["id"]
        with reading(ever, "GET", f"{PATH}/{id_}?stream=true") as other:
            first = [one() for _ in range(30)]
            assert [other() for _ in range(31)][1:] == first
        assert one()["sequence_number"] == 31, "the first goes on when the second has gone"
        cancel(ever, id_)


def test_the_official_client(client):
    asked = {name: one for name, one in ASKED.items() if name != "seed"}
    first = client.responses.create(**asked, extra_body={"seed": 5})
    assert (first.status, first.output_text) == ("queued", "")
    with client.responses.retrieve(first.id, stream=True) as stream:
        events = list(stream)
    last = client.responses.retrieve(first.id)
    assert last.status == "incomplete"
    assert len(last.output_text) > 20
    assert (
        "".join(e.delta for e in events if e.type == "response.output_text.delta")
        == last.output_text
    )
    assert client.responses.cancel(first.id) == last, "it has ended"
    follow = client.responses.create(
        input="Go on.", previous_response_id=first.id, max_output_tokens=2
    )
    assert follow.status == "incomplete"


class TestCancel:
    def test_a_running_one(self, ever):
        with reading(ever, **EVER) as following:
            id_ = following()["response"]["id"]
            events = [following() for _ in range(40)]
            answer = cancel(ever, id_).json()
            events += rest_of(following)
        assert answer["status"] == events[-1]["response"]["status"] == "cancelled"
        assert events[-1]["type"] == "response.cancelled"
        assert answer["output"][0]["content"][0]["text"] == text_of(events)
        assert answer["usage"]["output_tokens"] > 30
        assert not busy(ever)
        assert get(ever, id_).json() == answer == cancel(ever, id_).json()

    def test_a_waiting_one(self, ever):
        with reading(ever, **EVER) as following:
            first = following()["response"]["id"]
            until(lambda: following()["type"].endswith("delta"))
            second = post(ever, **EVER).json()["id"]
            assert get(ever, second).json()["status"] == "queued"
            answer = cancel(ever, second).json()
            assert (answer["status"], answer["output"], answer["error"]) == ("cancelled", [], None)
            assert get(ever, second).json() == answer
            cancel(ever, first)

    def test_one_that_is_not_in_the_background(self, server):
        id_ = post(server, input="Hi.", max_output_tokens=2).json()["id"]
        reply = cancel(server, id_)
        assert (reply.status, reply.code) == (400, "no_cancel")
        assert cancel(server, "resp_0").status == 404

    def test_a_removed_one_ends_and_is_not_kept(self, ever):
        id_ = post(ever, **EVER).json()["id"]
        until(lambda: get(ever, id_).json()["status"] == "in_progress")
        assert ask(ever, "DELETE", f"{PATH}/{id_}").json()["deleted"]
        assert not busy(ever)
        assert get(ever, id_).status == ask(ever, "DELETE", f"{PATH}/{id_}").status == 404


class TestLimits:
    def test_nobody_comes_back(self, limited):
        ever = limited(Limits(kept_s=0.5))
        with reading(ever, **EVER) as following:
            id_ = following()["response"]["id"]
            events = [following() for _ in range(30)]
            assert busy(ever)
        until(lambda: not busy(ever))  # a look at the response would give it more time
        # The engine is free a moment before the last event is written.
        until(lambda: get(ever, id_).json()["status"] != "in_progress")
        found = get(ever, id_).json()
        assert found["status"] == "cancelled"
        assert found["output"][0]["content"][0]["text"].startswith(text_of(events))
        # Each look keeps the events for a further time.
        until(lambda: time.sleep(1) or get(ever, id_, "?stream=true").status == 400)
        assert get(ever, id_).json() == found, "the response itself stays"

    def test_each_look_gives_more_time(self):
        async def look():
            one = SimpleNamespace(
                n_readers=0, timer=None, reply=SimpleNamespace(response={"output": []})
            )
            answers = background.Background(None, None, Settings(), None)
            ends = []
            for _ in range(2):
                answers._now(one)
                ends.append(one.timer)
            one.n_readers = 1
            answers._now(one)
            return [ends[0].cancelled(), ends[0].when() < ends[1].when(), one.timer]

        assert asyncio.run(look()) == [True, True, None]

    def test_their_number(self, limited):
        ever = limited(Limits(kept=2))
        ids = [post(ever, **EVER).json()["id"] for _ in range(2)]
        reply = post(ever, **EVER)
        assert (reply.status, reply.code) == (429, "too_many_responses")
        cancel(ever, ids[0])
        assert post(ever, **EVER).status == 200

    def test_their_size(self, limited):
        ever = limited(Limits(kept_bytes=30_000))
        first = post(ever, **EVER | {"max_output_tokens": 4}).json()["id"]
        until(lambda: get(ever, first).json()["status"] == "incomplete")
        with reading(ever, **EVER) as following:
            events = rest_of(following)
        failed = events[-1]["response"]
        assert (failed["status"], failed["error"]["code"]) == ("failed", "response_too_large")
        assert len(json.dumps(events)) < 60_000
        assert get(ever, failed["id"]).json() == failed
        assert get(ever, first, "?stream=true").param == "stream", (
            "the events that are left out first"
        )
        assert get(ever, first).json()["status"] == "incomplete"

    def test_the_server_ends(self, endless):
        with serve_in_thread(endless) as server, reading(server, **EVER) as following:
            until(lambda: following()["type"].endswith("delta"))
            server.close(grace=0)
            last = rest_of(following)[-1]
        assert last["response"]["error"]["code"] == "shutting_down"


class TestErrors:
    def test_before_it_begins(self, server):
        id_ = post(server, **ASKED | {"input": "word " * 90_000}).json()["id"]
        until(lambda: get(server, id_).json()["status"] == "failed")
        error = get(server, id_).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", "input")

    @pytest.mark.usefixtures("failing_streams")
    def test_in_the_middle(self, server):
        with reading(server, **ASKED) as following:
            events = rest_of(following)
        failed = events[-1]["response"]
        assert failed["error"]["code"] == "internal_error"
        assert "secret" not in json.dumps(failed)
        assert get(server, failed["id"]).json() == failed

    def test_ids_and_numbers_of_events(self, server):
        assert get(server, "resp_0", "?stream=true").status == 404
        id_ = post(server, **ASKED | {"max_output_tokens": 2}).json()["id"]
        for number in ("-2", "x", "1.5", "٣", "9" * 20):
            reply = get(server, id_, f"?stream=true&starting_after={quote(number)}")
            assert (reply.status, reply.param) == (400, "starting_after")

    def test_one_that_is_not_there_is_no_error_if_that_is_asked_for(self, server, tales):
        query = "?stream=true&starting_after=-1&optional=true"
        reply = get(server, "resp_0", query)
        assert (reply.status, reply.json()["status"]) == (200, "gone")
        assert get(server, "resp_0", "?optional=false").status == 404
        with serve_limited(tales, Limits(kept_s=0.0)) as one:
            id_ = post(one, **ASKED | {"max_output_tokens": 2}).json()["id"]
            until(lambda: get(one, id_, query).headers["content-type"] == "application/json")
            assert get(one, id_, query).json() == get(one, id_).json()

    def test_one_that_has_not_ended_is_no_beginning(self, ever):
        id_ = post(ever, **EVER).json()["id"]
        reply = post(ever, input="Go on.", previous_response_id=id_)
        assert (reply.status, reply.code) == (409, "response_in_progress")
        assert ask(ever, path=f"{PATH}/{id_}/input_items").status == 409
        cancel(ever, id_)
        assert ask(ever, path=f"{PATH}/{id_}/input_items").json()["data"][0]["role"] == "user"

    def test_the_key(self, tales):
        with serve_in_thread(tales, api_key="secret") as server:
            key = {"Authorization": "Bearer secret"}
            id_ = ask(server, "POST", PATH, ASKED, key).json()["id"]
            for method, path in (
                ("GET", f"{id_}?stream=true"),
                ("POST", f"{id_}/cancel"),
                ("DELETE", id_),
            ):
                assert ask(server, method, f"{PATH}/{path}").status == 401
                assert ask(server, method, f"{PATH}/{path}", headers=key).status == 200


def test_drafts_are_marked_in_the_events(server):
    asked = ASKED | {"speculation": {"k": 4, "adaptive": False}}
    with reading(server, **asked, stream_options={"include_speculation": True}) as following:
        events = rest_of(following)
    marked = [one for one in events if "speculation" in one]
    usage = events[-1]["response"]["usage"]
    for name in ("drafted", "accepted", "rounds"):
        assert sum(one["speculation"][name] for one in marked) == usage["speculation"][name]
    assert sum(one["speculation"]["tokens"] for one in marked) == usage["output_tokens"] == 60
    assert "".join(text for one in marked for text, _ in one["speculation"]["text"]) == text_of(
        events
    )
    assert any(accepted for one in marked for _, accepted in one["speculation"]["text"])
