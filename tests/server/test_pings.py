"""Pings keep the connection of a stream open while there is no text. No test depends on the clock: an interval is 0, very short, or for ever."""

import asyncio
import threading

import anthropic
import openai
import pytest

from gguf_spec.options import Speculation
from gguf_spec.protocols.events import ChoiceEnded, ChunkEvent, Started
from gguf_spec.protocols.openai import ResponseBuilder, read_text
from gguf_spec.protocols.replies import DATA_EVENTS, JSON_LINES, NAMED_EVENTS
from gguf_spec.results import Chunk, Completion, Stats
from gguf_spec.runtime.generation import Generation
from gguf_spec.server import serve_in_thread
from gguf_spec.server.jobs import Done, Job, Ping
from gguf_spec.server.settings import Settings
from gguf_spec.server.streams import AnswerStream
from gguf_spec.tools.families import family_of
from tests.server.conftest import ask

CHUNK = ChunkEvent(Chunk("b", (1,), 0, 0), ())
ENDED = ChoiceEnded(0, Completion("b", (1,), "stop", 1, Stats()), None)


def sent_by(ping, next_event, events=(), n=1):
    """Return the bodies that a stream sends.

    Args:
        ping: Its interval.
        next_event: Gets the last body, and returns an event that comes then, or None.
        events: Events that are there from the start.
        n: Number of choices.
    """
    bodies = []

    async def main():
        job = Job(None, read_text({"prompt": "a", "n": n}, Speculation(), None))

        async def send(message):
            if message["type"] == "http.response.body" and message["body"]:
                bodies.append(message["body"])
                if event := next_event(bodies[-1]):
                    job.events.put_nowait(event)

        for one in events:
            job.events.put_nowait(one)
        reply = ResponseBuilder(job.request, Started("m", family_of("")))
        stream = AnswerStream(
            job, job.request, reply, DATA_EVENTS, 60, ping, lambda: None, asyncio.Lock()
        )
        await asyncio.wait_for(stream({}, None, send), 180)

    asyncio.run(main())
    return bodies


def test_pings_are_sent_before_the_first_text_and_between_texts():
    plan = [None, None, CHUNK, None, ENDED, Done()]
    bodies = sent_by(1e-4, lambda _: plan.pop(0) if plan else None)
    assert bodies[:3] == [b": ping\n\n"] * 3
    assert b'"text":"b"' in bodies[3]
    assert bodies[4] == b": ping\n\n"
    assert bodies[-1].endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("interval", [0, 3600])
def test_no_ping_between_frequent_events(interval):
    bodies = sent_by(interval, lambda _: None, [CHUNK, ENDED, Done()])
    assert not any(b"ping" in body for body in bodies)


def test_a_ping_after_the_last_event_does_not_keep_the_stream():
    assert sent_by(3600, lambda _: None, [CHUNK, ENDED, Done(), Ping()])


def test_no_ping_after_the_last_choice():
    # A client of lines of JSON would read a space at the end as a line.
    assert b"ping" not in sent_by(3600, lambda _: None, [CHUNK, ENDED, Ping(), Done()])[-1]


def test_pings_while_other_choices_are_open():
    other = ChoiceEnded(1, Completion("b", (1,), "stop", 1, Stats()), None)
    events = [CHUNK, ENDED, Ping(), other, Ping(), Done()]
    assert sent_by(3600, lambda _: None, events, n=2)[-1].count(b"ping") == 1


def test_the_forms():
    assert DATA_EVENTS.ping == b": ping\n\n"
    assert NAMED_EVENTS.ping == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert JSON_LINES.ping.isspace() and b"\n" not in JSON_LINES.ping


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_the_setting(seconds):
    from gguf_spec.errors import InvalidOptionError

    with pytest.raises(InvalidOptionError, match="ping"):
        Settings(ping=seconds)


@pytest.fixture
def reading(tales, monkeypatch):
    """A server whose prompts are read only after many pings could have been sent."""
    read, may_read, pings = Generation._read_prompt, threading.Event(), []

    def slowly(self, *rest):
        assert may_read.wait(180)
        return read(self, *rest)

    def written(self, one, real=AnswerStream._written):
        if isinstance(one, Ping):
            pings.append(one)
            if len(pings) == 3:
                may_read.set()
        return real(self, one)

    monkeypatch.setattr(Generation, "_read_prompt", slowly)
    monkeypatch.setattr(AnswerStream, "_written", written)
    with serve_in_thread(tales, ping=1e-3) as server:
        yield server, pings
        may_read.set()


HELLO = [{"role": "user", "content": "Hello."}]
SEED = {"extra_body": {"seed": 4}}


def by_chat(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        pieces = client.chat.completions.create(
            model="", messages=HELLO, max_tokens=8, seed=4, stream=True
        )
        return "".join(piece.choices[0].delta.content or "" for piece in pieces)


def by_responses(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        events = client.responses.create(
            model="", input="Hello.", max_output_tokens=8, stream=True, **SEED
        )
        return "".join(one.delta for one in events if one.type == "response.output_text.delta")


def by_messages(url):
    with (
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(model="", max_tokens=8, messages=HELLO, **SEED) as stream,
    ):
        return "".join(stream.text_stream)


def by_ollama(url):
    ollama = pytest.importorskip("ollama")
    with ollama.Client(url) as client:
        parts = client.chat("tales", HELLO, options={"seed": 4, "num_predict": 8}, stream=True)
        return "".join(part.message.content for part in parts)


@pytest.mark.full
@pytest.mark.parametrize("read", [by_chat, by_responses, by_messages, by_ollama])
def test_official_clients_ignore_pings(reading, server, read):
    slow, pings = reading
    text = read(slow.url)
    assert len(pings) >= 3
    wanted = {"messages": HELLO, "max_tokens": 8, "seed": 4}
    reply = ask(server, "POST", "/v1/chat/completions", wanted)
    assert text == reply.json()["choices"][0]["message"]["content"] != ""


def test_events_that_come_together_wake_the_loop_once():
    async def main():
        loop, wakes = asyncio.get_running_loop(), []
        jobs = [Job(None, read_text({"prompt": "a"}, Speculation(), None)) for _ in range(8)]
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given: (wakes.append(given), real(*given))
        for n_rounds in (1, 2):
            round_ = threading.Thread(
                target=lambda: [one.post(event) for event in (CHUNK, ENDED) for one in jobs]
            )
            round_.start()
            round_.join()  # the loop does nothing meanwhile
            for one in jobs:
                assert [await one.events.get() for _ in range(2)] == [CHUNK, ENDED]
            assert len(wakes) == n_rounds

    asyncio.run(main())


def test_events_for_a_loop_that_is_closed_are_dropped():
    async def main():
        return Job(None, read_text({"prompt": "a"}, Speculation(), None))

    job = asyncio.run(main())
    for _ in range(3):
        job.post(CHUNK)
    assert job.events.empty()
    assert not job._inbox._events


def test_no_text_needs_a_timer_or_a_task_of_its_own(monkeypatch):
    made = []
    for name in ("call_later", "create_task"):
        real = getattr(asyncio.BaseEventLoop, name)
        monkeypatch.setattr(
            asyncio.BaseEventLoop,
            name,
            lambda *given, _real=real, _name=name, **more: (
                made.append(_name) or _real(*given, **more)
            ),
        )
    texts = iter([CHUNK] * 50 + [ENDED, Done()])
    bodies = sent_by(60, lambda _: next(texts, None), [CHUNK])
    assert len(bodies) > 50
    assert len(made) < 20, made
