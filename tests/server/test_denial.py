"""Nobody waits for ever: time limits, the queue, models that do not load, and events that a slow client left."""

import asyncio
import http.client
import itertools
import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from urllib.parse import urlsplit

import openai
import pytest

import gguf_spec
from gguf_spec import Chunk, Speculation
from gguf_spec.cli.serve import serve
from gguf_spec.errors import InvalidOptionError
from gguf_spec.protocols import fit, llama_server, replies, responses
from gguf_spec.protocols.events import ChunkEvent, Started
from gguf_spec.protocols.openai import ResponseBuilder, read_text
from gguf_spec.protocols.replies import DATA_EVENTS
from gguf_spec.protocols.responses import TOKEN_LOGPROBS
from gguf_spec.runtime.llm import LLM
from gguf_spec.server import (
    ModelPool,
    Settings,
    app,
    serve_in_thread,
    served_model,
    streams,
)
from gguf_spec.server import jobs as jobs_module
from gguf_spec.server import worker as worker_module
from gguf_spec.server.jobs import Done, Job
from gguf_spec.server.model_pool import ServedModel
from gguf_spec.server.settings import Limits
from gguf_spec.server.streams import AnswerStream
from gguf_spec.server.worker import Pace
from tests.server.conftest import (
    ask,
    ask_chat,
    ask_text,
    connections_of,
    infill_model,
    serve_limited,
    until,
)
from tests.server.test_load import LONG, busy, connect, n_waiting
from tests.server.test_model_pool import WORDS, n_ctx
from tests.server.test_parallel import PLAIN, letters, opened  # noqa: F401
from tests.support import tiny

# ---- the time limit of an answer

TEXT = "abcdefghijkl" * 200
USER = [{"role": "user", "content": TEXT}]
# Path -> a body with a prompt of several passes.
ROUTES = {
    "/v1/chat/completions": {"messages": USER},
    "/v1/completions": {"prompt": TEXT},
    "/v1/responses": {"input": TEXT},
    "/v1/messages": {"messages": USER, "max_tokens": 9},
    "/api/chat": {"messages": USER},
    "/api/generate": {"prompt": TEXT},
    "/completion": {"prompt": TEXT},
    "/infill": {"input_prefix": TEXT, "input_suffix": "z"},
    "/v1/edit": {"text": "a b c\n" * 400, "instruction": "make it shorter"},
}


NUMBERS = itertools.count()


def unread(body):
    """Return a body whose prompt begins as none before: nothing of it is in a cache."""
    text = json.dumps(body)
    for one in (TEXT, json.dumps(ROUTES["/v1/edit"]["text"])[1:-1]):
        text = text.replace(one, f"{next(NUMBERS)} {one}")
    return json.loads(text)


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    """A server of a model without an end, which takes messages and fills in the middle."""
    path = tmp_path_factory.mktemp("chats") / "chats.gguf"
    infill_model(path, ("pre", "suf", "mid"))
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with (
        gguf_spec.load(
            path, None, threads=1, extra_bufts=False, n_ctx=9000, chat_template=template
        ) as llm,
        serve_in_thread(llm) as one,
    ):
        yield one


def out_of_time(monkeypatch, server, at):
    """The time of each request is over `at` an event of its answer: after a pass over the prompt, or a chunk."""

    def over(report, real, *given):
        server.app.worker.cancel(report._job, "timeout")
        real(report, *given)

    real = getattr(worker_module.Report, at)
    monkeypatch.setattr(worker_module.Report, at, lambda self, *given: over(self, real, *given))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_no_answer_within_the_time_limit_is_an_error(chats, monkeypatch, path, stream):
    """It names the limit, in the form of each API; an empty answer would look like one of the model."""
    out_of_time(monkeypatch, chats, "prompt_is_read")
    reply = ask(chats, "POST", path, unread(ROUTES[path]) | {"stream": stream})
    text = reply.body.decode()
    assert "The request took longer than 600 s" in text and "--timeout" in text
    if stream and path != "/v1/edit":
        assert reply.status == 200 and '"finish_reason":"length"' not in text
        last = [line for line in text.split("\n") if "{" in line][-1]
        error = json.loads(last.removeprefix("data: "))
        kinds = {"/v1/messages": "timeout_error", "/v1/responses": None}
        if path.startswith("/api"):
            assert list(error) == ["error"]
        elif path == "/v1/responses":
            assert error["type"] in ("response.failed", "error")
        else:
            assert error["error"].get("code", error["error"]["type"]) in (
                "timeout",
                kinds.get(path),
            )
    else:
        assert reply.status == 408


def test_the_official_client_gets_an_error_of_its_own(chats, monkeypatch):
    out_of_time(monkeypatch, chats, "prompt_is_read")
    with openai.OpenAI(base_url=f"{chats.url}/v1", api_key="none", max_retries=0) as client:
        with pytest.raises(openai.APIStatusError, match="longer than 600 s") as caught:
            client.chat.completions.create(model="", messages=unread(USER))
        assert (caught.value.status_code, caught.value.code) == (408, "timeout")
        with pytest.raises(openai.APIError, match="longer than 600 s"):
            list(client.chat.completions.create(model="", messages=unread(USER), stream=True))


@pytest.mark.parametrize("stream", [False, True])
def test_what_was_written_within_the_time_limit_is_the_answer(endless, monkeypatch, caplog, stream):
    """And the choices that had not begun are empty; the log names the limit."""
    with serve_in_thread(endless) as server:
        out_of_time(monkeypatch, server, "chunk_came")
        reply = ask_text(server, prompt="a", max_tokens=500, n=3, stream=stream)
    assert reply.status == 200
    if stream:
        lines = [
            line[6:] for line in reply.body.decode().split("\n\n") if line.startswith("data: {")
        ]
        pieces = [one for line in lines for one in json.loads(line)["choices"]]
        ends = {one["index"]: one["finish_reason"] for one in pieces if one["finish_reason"]}
        texts = {i: "".join(one["text"] for one in pieces if one["index"] == i) for i in ends}
    else:
        choices = reply.json()["choices"]
        ends = {one["index"]: one["finish_reason"] for one in choices}
        texts = {one["index"]: one["text"] for one in choices}
    assert ends == dict.fromkeys(range(3), "length")
    assert texts[0] != "" and texts[1] == texts[2] == ""
    assert "the time limit of 600 s" in caplog.text


def test_a_choice_without_a_token_beside_one_that_has_some_is_empty():
    """The order of their ends does not matter."""

    async def main():
        job = Job(None, read_text({"prompt": "a", "n": 2}, Speculation(), None))
        job.has_started, job._choices, job.limit_s = True, iter(()), 600.0
        job.cancel("timeout")
        for index, n in ((1, 0), (0, 3)):
            stats = gguf_spec.Stats(n_generated=n)
            result = gguf_spec.Completion("abc"[:n], (1,) * n, "cancelled", 1, stats)
            job.choice_ended(jobs_module.ChoiceEnded(index, result, job.why))
        job.finish()
        await asyncio.sleep(0)
        return [job.events.get_nowait() for _ in range(3)]

    first, second, last = asyncio.run(main())
    assert (first.index, second.index, second.result.text) == (0, 1, "") and isinstance(last, Done)


@pytest.mark.parametrize("timeout", [0, None, float("inf")])
def test_no_time_limit(chats, timeout):
    settings = Settings(timeout=timeout)
    assert settings.limit_s is None and 0 < settings.patience_s < float("inf")
    llm = chats.app.pool.loaded(chats.app.pool.default).llm
    with serve_in_thread(llm, timeout=timeout) as server:
        assert ask_text(server).status == 200
        assert ask_text(server, stream=True).status == 200
        assert ask_chat(server, response_format={"type": "json_object"}).status == 200
        assert ask(server, "POST", "/tokenize", {"content": "a"}).status == 200
        assert ask(server, "POST", "/v1/embeddings", {"input": "a"}).status == 200


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("none", 0), ("-1", 0), ("10m", 600), ("2.5", 2.5)]
)
def test_the_option_takes_no_limit(text, seconds):
    context = serve.make_context("serve", ["--timeout", text])
    assert context.params["timeout"] == seconds
    Settings(timeout=context.params["timeout"])


def test_a_time_limit_below_zero():
    for wrong in (-1, float("nan")):
        with pytest.raises(InvalidOptionError):
            Settings(timeout=wrong)


# ---- models that do not load


@pytest.fixture
def stuck():
    """A model whose file does not answer, as on a network disk that is gone."""
    goes_on = threading.Event()

    def load(progress):
        goes_on.wait(180)
        raise RuntimeError("gone")

    yield ModelPool([ServedModel("stuck", frozenset(["stuck"]), load)])
    goes_on.set()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"content": "a"}),
        ("/props", None),
        ("/v1/messages/count_tokens", {"messages": USER}),
        ("/v1/embeddings", {"input": "a"}),
    ],
)
def test_a_model_that_is_looked_at_has_the_time_limit(stuck, monkeypatch, path, body):
    with serve_in_thread(stuck, timeout=0.2, grace=0) as server:
        reply = ask(server, "GET" if body is None else "POST", path, body)
        assert reply.status == 503 and b"longer than 0.2 s" in reply.body
        stuck.models[0].load.__closure__[0].cell_contents.set()


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/messages"])
def test_a_model_that_stands_still_is_not_awaited(stuck, path):
    """Both the request that loads it, and the one that waits behind it."""
    with (
        serve_limited(stuck, Limits(still_s=0.3), timeout=0.2, grace=0) as server,
        ThreadPoolExecutor(2) as clients,
    ):
        sent = [clients.submit(ask, server, "POST", path, ROUTES[path]) for _ in range(2)]
        for one in sent:
            assert one.result().status == 503 and b"has not moved for 0.3 s" in one.result().body
        assert ask(server).status == 200
        stuck.models[0].load.__closure__[0].cell_contents.set()


def test_a_model_that_moves_is_awaited(tales, monkeypatch):
    """A step of loading is a sign that the disk answers."""
    looked, waits = threading.Event(), []

    async def wait_for(work, timeout, real=asyncio.wait_for):
        try:
            return await real(work, timeout)
        except asyncio.TimeoutError:
            waits.append(timeout)
            if len(waits) > 3:
                looked.set()
            raise

    def load(progress):
        while not looked.wait(0.001):
            progress(None)
        return tales

    monkeypatch.setattr(app.asyncio, "wait_for", wait_for)
    pool = ModelPool([ServedModel("slow", frozenset(["slow"]), load)])
    monkeypatch.setattr(tales, "close", lambda: None)
    with serve_limited(pool, Limits(still_s=0.05), timeout=0.05) as server:
        assert ask_text(server, max_tokens=1).status in (200, 408)
    assert len(waits) > 3


# ---- the queue


def test_sixty_four_official_clients_at_once(endless):
    """All wait while one request runs; none fails."""
    with serve_in_thread(endless) as server, ThreadPoolExecutor(64) as threads:
        held = connect(server, **LONG)
        until(lambda: busy(server))

        def one(i):
            with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
                answer = client.completions.create(
                    model="", prompt="a", max_tokens=3, temperature=0
                )
                return answer.choices[0].text

        texts = [threads.submit(one, i) for i in range(64)]
        until(lambda: n_waiting(server) == 64)
        held.close()
        assert {text.result() for text in texts} == {"bcd"}


def test_memory_bounds_the_queue(endless):
    """Requests that wait may need so much together; one of any size may wait alone."""
    with serve_limited(endless, Limits(waiting_bytes=50_000), grace=0) as server:
        held = [connect(server, **LONG)]
        until(lambda: busy(server))
        held.append(connect(server, **LONG, user="u" * 60_000))
        until(lambda: n_waiting(server) == 1)
        reply = ask_text(server)
        assert (reply.status, reply.code) == (429, "queue_full")
        held.pop().close()
        until(lambda: n_waiting(server) == 0)
        held += [connect(server, **LONG, user="u" * 20_000) for _ in range(2)]
        until(lambda: n_waiting(server) == 2)
        values = ask_text(server, stop_tokens=[1] * 1000)  # each needs more than its bytes
        assert values.code == "queue_full"
        for one in held:
            one.close()
        until(lambda: not busy(server))
        assert ask_text(server).status == 200


def test_retry_after_is_the_time_that_all_who_wait_need(endless):
    with serve_in_thread(endless, queue=3, grace=0) as server:
        held = [connect(server, **LONG) for _ in range(4)]
        until(lambda: n_waiting(server) == 3)
        for pace_s, seconds in ((7.0, "21"), (0.001, None), (100.0, "60")):
            server.app.worker.pace.mean_s = pace_s
            reply = ask_text(server)
            assert reply.status == 429
            found = {name.lower(): value for name, value in reply.headers.items()}["retry-after"]
            assert found == seconds or (seconds is None and 1 <= int(found) < 60)
            assert f"Try again in {found} s" in reply.json()["error"]["message"]
        for one in held:
            one.close()


def test_clients_that_are_refused_come_back_one_after_the_other():
    """With the pace of the answers; those that have come back take no more time."""
    pace = Pace()
    pace.mean_s = 2.0
    pace.count_end(False, 90.0, 100.0)
    assert [pace.seconds_to_wait(4, math.inf, 100.0) for _ in range(4)] == [8, 10, 12, 14]
    pace.count_end(False, 90.0, 106.0)
    assert pace.seconds_to_wait(4, math.inf, 106.0) == 10
    pace.count_end(False, 90.0, 200.0)
    assert [pace.seconds_to_wait(4, math.inf, 200.0) for _ in range(30)][-3:] == [60, 60, 60]


def test_an_answer_that_takes_long_is_not_waited_for_at_the_old_pace():
    assert Pace().seconds_to_wait(1, 100.0, 109.0) == 9
    assert Pace().seconds_to_wait(3, 100.0, 109.0) == 27
    assert Pace().seconds_to_wait(1, math.inf, 109.0) == 1, "none runs"


def test_the_pace_is_measured_while_others_wait():
    pace, now_s = Pace(), 100.0
    pace.count_end(True, 90.0, now_s)  # the first one took 10 s
    assert pace.mean_s == pytest.approx(0.8 + 0.2 * 10)
    for _ in range(100):
        now_s += 4.0
        pace.count_end(True, 90.0, now_s)
    assert pace.mean_s == pytest.approx(4.0)
    pace.count_end(False, 90.0, now_s + 1000.0)
    assert pace.mean_s == pytest.approx(4.0), "nobody waited"


# ---- a request of many choices, and others


@pytest.fixture(scope="module")
def growing(tmp_path_factory):
    """A model that never ends, and whose context grows; it runs two requests at once."""
    path = tmp_path_factory.mktemp("growing") / "growing.gguf"
    tiny.write(
        path, tiny.one_text("abcdefghijkl", for_ever=True), metadata={"llama.context_length": 4096}
    )
    return partial(served_model, path, n_ctx=256, ctx_max=2048, **WORDS)


@pytest.mark.parametrize("parallel", [1, 2])
def test_many_choices_give_way_to_a_request_that_needs_a_longer_context(
    growing,
    opened,  # noqa: F811
    parallel,
):
    """It waits only for those that have begun, not for all."""
    pool = ModelPool([growing(parallel=parallel)])
    with serve_in_thread(pool) as server, ThreadPoolExecutor(2) as clients:
        fields = {"max_tokens": 150, "temperature": 0}
        many = clients.submit(ask_text, server, prompt="ab", n=60, **fields)
        until(lambda: len(opened) > 3)
        long = ask_text(server, prompt="a" * 600, max_tokens=2, temperature=0)
        assert long.status == 200 and n_ctx(server)[0] > 600
        assert not many.done()
        n_before = next(i for i, prompt in enumerate(opened) if len(prompt) == 600)
        assert n_before < 55
        texts = [one["text"] for one in many.result().json()["choices"]]
    assert texts == [texts[0]] * 60 and len(texts[0]) == 150


def test_choices_come_before_a_request_for_another_model(letters, opened):  # noqa: F811
    """It would cost a load for each of them."""
    models = [served_model(file, draft=None, **PLAIN) for file in letters]
    with serve_in_thread(ModelPool(models)) as server, ThreadPoolExecutor(3) as clients:
        many = clients.submit(ask_text, server, prompt="ab", n=40, max_tokens=300, model="one.gguf")
        until(lambda: len(opened) > 1)
        other = clients.submit(ask_text, server, prompt="abm", max_tokens=1, model="two.gguf")
        until(lambda: n_waiting(server) >= 1)
        same = clients.submit(ask_text, server, prompt="abc", max_tokens=1, model="one.gguf")
        assert [one.result().status for one in (many, other, same)] == [200, 200, 200]
    last = len(opened) - opened[::-1].index("ab")
    assert opened.index("abm") > last - 1 and opened.index("abc") > opened.index("abm")


# ---- what is done off the slot, and off the event loop


def test_texts_with_a_bias_are_tokenised_outside_of_the_slot(server, monkeypatch):
    seen, real = [], LLM.stream

    def stream(self, prompt, sampling, **options):
        seen.append(sampling.logit_bias)
        return real(self, prompt, sampling, **options)

    monkeypatch.setattr(LLM, "stream", stream)
    threads, kept = [], fit.with_biases

    def with_biases(request, llm):
        if request.biases:
            threads.append(threading.current_thread().name)
        return kept(request, llm)

    monkeypatch.setattr(fit, "with_biases", with_biases)
    monkeypatch.setattr(app, "with_biases", with_biases)
    assert ask_text(server, logit_bias={" fox": -5, "7": 2}, n=3).status == 200
    assert len(threads) == 1 and "worker" not in threads[0]
    assert len(seen) == 3 and all(len(one) >= 2 and one[7] == 2 for one in seen)


@pytest.mark.parametrize("path", ["/v1/completions", "/completion", "/v1/chat/completions"])
def test_too_many_texts_with_a_bias(server, path):
    body = (
        ROUTES[path] | {"prompt": "a"}
        if "chat" not in path
        else {"messages": [{"role": "user", "content": "a"}]}
    )
    for biases, fact in (({f"t{i}": 1 for i in range(5001)}, "5,001 texts"),):
        reply = ask(server, "POST", path, body | {"logit_bias": biases})
        assert (reply.status, reply.param) == (400, "logit_bias")
        assert fact in reply.json()["error"]["message"]
    reply = ask(
        server,
        "POST",
        path,
        body | {"logit_bias": {str(i): 1 for i in range(999)}, "max_tokens": 1},
    )
    assert reply.status == 200


@pytest.mark.parametrize("size", [1, 1_000_000])
def test_a_backlog_of_events_is_written_in_parts(size):
    """A client that did not read for long has many events; other requests have their turn in between.

    So has the loop, to note that the client has left: what is written after that is lost.
    """
    turns = []

    async def other():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(other())
        job = Job(None, read_text({"prompt": "a"}, Speculation(), None))
        for _ in range(1000 // size or 1):
            job.events.put_nowait(ChunkEvent(Chunk("b" * size, (1,), 0, 0), ()))
        job.events.put_nowait(Done())
        reply = ResponseBuilder(job.request, Started("m", "llama"))
        stream = AnswerStream(
            job, job.request, reply, DATA_EVENTS, 9, 0, lambda: None, asyncio.Lock()
        )
        parts = [(part, len(turns)) async for part in stream._batches()]
        task.cancel()
        return parts

    parts, n_turns = zip(*asyncio.run(main()), strict=True)
    counts = [part.count(b'"text":"b') for part in parts]
    assert sum(counts) == (1000 // size or 1) and max(counts) <= streams._MOST_AT_ONCE
    assert max(map(len, parts)) <= streams._SENT_BYTES < 1_000_000
    assert len(parts) > 3 and n_turns == tuple(sorted(set(n_turns))), "no turn of others between"


def test_a_closed_connection_ends_the_wait_for_an_edit(server, monkeypatch):
    """An edit that waits for others in the child process is not begun for a client that has left."""
    begun, goes_on, calls = threading.Event(), threading.Event(), []
    real = server.app.helper.call

    def call(*given):
        calls.append(given)
        begun.set()
        assert goes_on.wait(180)
        return real(*given)

    monkeypatch.setattr(server.app.helper, "call", call)
    body = {"text": "a = 1\n", "instruction": "rename a to b", "name": "a.py"}
    with ThreadPoolExecutor(1) as clients:
        first = clients.submit(ask, server, "POST", "/v1/edit", body)
        assert begun.wait(180)
        other = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
        other.request("POST", "/v1/edit", json.dumps(body))
        until(lambda: server.app.helping._waiters)
        other.close()
        until(lambda: len(connections_of(server)) <= 2)
        goes_on.set()
        assert first.result().json()["text"] == "b = 1\n"
    until(lambda: not server.app.helping.locked())
    assert len(calls) == 1


def is_on_loop():
    try:
        return bool(asyncio.get_running_loop())
    except RuntimeError:
        return False


@pytest.fixture
def written(monkeypatch):
    """Whether each answer was written on an event loop."""
    seen, real = [], replies.json_parts

    def json_parts(*given):
        seen.append(is_on_loop())
        return real(*given)

    monkeypatch.setattr(replies, "json_parts", json_parts)
    monkeypatch.setattr(streams, "json_parts", json_parts)
    return seen


TOPS = {"logprobs": True, "top_logprobs": 20}
# Path -> a body whose answer is large, by its choices, its log-probabilities or the request.
LARGE = {
    "/v1/chat/completions": TOPS | {"n": 128, "max_tokens": 1},
    "/v1/completions": {"logprobs": 20, "n": 128, "max_tokens": 1},
    "/v1/responses": {"top_logprobs": 20, "max_output_tokens": 200, "include": [TOKEN_LOGPROBS]},
    "/v1/messages": {"metadata": {"user_id": "u" * 70_000}},
    "/api/chat": TOPS | {"options": {"num_predict": 200, "temperature": 0}},
    "/api/generate": TOPS | {"options": {"num_predict": 200, "temperature": 0}},
    "/completion": {"n_probs": 20, "n_cmpl": 128, "n_predict": 1},
    "/infill": {"n_probs": 20, "n_cmpl": 128, "n_predict": 1},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", LARGE)
def test_a_large_answer_is_not_made_on_the_event_loop(chats, written, monkeypatch, path, stream):
    made = []
    for one in (ResponseBuilder, *replies.PartsReply.__subclasses__(), llama_server.InfillReply):
        for name in ("complete", "finished"):
            real = getattr(one, name)

            def note(self, *given, real=real):
                made.append(is_on_loop())
                return real(self, *given)

            monkeypatch.setattr(one, name, note)
    body = json.loads(json.dumps(ROUTES[path]).replace(TEXT, "abc"))
    reply = ask(chats, "POST", path, body | {"temperature": 0} | LARGE[path] | {"stream": stream})
    assert reply.status == 200
    assert made and not any(made)
    # Of a stream, small events are written at once.
    assert not written[-1] if stream else written and not any(written)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "a"}),
        ("/api/embed", {"input": "a"}),
        ("/tokenize", {"content": "a", "with_pieces": True}),
        ("/api/show", {"model": ""}),
    ],
)
def test_what_is_read_of_a_model_is_not_written_on_the_event_loop(chats, written, path, body):
    assert ask(chats, "POST", path, body).status == 200
    assert written and not any(written)


def test_a_stored_conversation_is_read_and_written_off_the_event_loop(chats, written, monkeypatch):
    """It may be longer than the body that names it."""
    fields = {"max_output_tokens": 2, "store": True}
    items = [{"role": "user", "content": "a"}] * 100
    first = ask(chats, "POST", "/v1/responses", {"input": items} | fields).json()["id"]
    read, real = [], responses.read_input

    def read_input(*given):
        read.append(is_on_loop())
        return real(*given)

    monkeypatch.setattr(responses, "read_input", read_input)
    written.clear()
    body = {"input": "b", "previous_response_id": first}
    assert ask(chats, "POST", "/v1/responses", body | fields).status == 200
    assert ask(chats, "GET", f"/v1/responses/{first}").status == 200
    assert ask(chats, "GET", f"/v1/responses/{first}/input_items?limit=100").status == 200
    assert read == [False] and len(written) >= 3 and not any(written)


def test_a_small_answer_needs_no_thread(server, written):
    """It does not wait for large ones of others."""
    assert ask_text(server, max_tokens=2).status == 200
    assert set(written) == {True}


def test_a_large_body_is_sent_in_parts():
    """Others have their turn between two of them, also where the client takes all at once."""
    sent, turns = [], []

    async def send(message):
        sent.append((message, len(turns)))

    async def other():
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def main():
        task = asyncio.create_task(other())
        answer = streams.JsonAnswer(["a" * 1_000_000])
        await answer({"type": "http"}, None, send)
        task.cancel()
        return answer

    answer = asyncio.run(main())
    (start, _), *parts = sent
    assert start["status"] == 200 and start["headers"] == answer.raw_headers
    assert b"".join(message["body"] for message, _ in parts) == answer.body
    assert max(len(message["body"]) for message, _ in parts) <= streams._SENT_BYTES < 1_000_000
    assert [message["more_body"] for message, _ in parts] == [True] * (len(parts) - 1) + [False]
    n_turns = [n for _, n in parts]
    assert n_turns == sorted(set(n_turns)), "no turn of others between two parts"
