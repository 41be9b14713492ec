"""Commands let a running server of this user answer, if it holds the same model with the same options."""

import io
import json
import os
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import gguf_spec
from gguf_spec import Chunk, Sampling, Speculation
from gguf_spec.batch import Batch, LineDefaults
from gguf_spec.errors import GgufSpecError, NoTokenLeftError
from gguf_spec.options import IMAGE_IDS
from gguf_spec.runtime.generation import StatsRecorder
from gguf_spec.server import (
    ModelPool,
    Settings,
    app,
    running,
    running_servers,
    served,
    served_model,
)
from gguf_spec.server.thread import Server
from tests.server.conftest import ask, until
from tests.server.test_command import Child
from tests.support import children

LOADS = {"draft": "none", "threads": 1, "parallel": 1}
NOTE = "answers, which holds tales."


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with (
        ModelPool([served_model("tales", **LOADS)]) as pool,
        Server(pool, Settings(port=0, listed=True, api_key="secret")) as one,
    ):
        pool.add(pool.default, pool.default.load(None))
        yield one


@pytest.fixture(scope="module")
def run(here, tmp_path_factory):
    """Run a command beside a server that the program has started."""
    env = {"XDG_STATE_HOME": str(tmp_path_factory.mktemp("state"))}
    with Child("-m", "tales", "--port", 0, **env):
        yield lambda *args, stdin="": here(*args, stdin=stdin.encode(), env=env, text=True)


@pytest.fixture
def llm(server):
    model = gguf_spec.models.path("tales")
    found = served(model, LOADS, lambda: gguf_spec.load("tales", **LOADS))
    assert found and found.url == server.url
    with found:
        yield found


GENERATE = ("generate", "-m", "tales", "--threads", 1, "Once upon a time", "--seed", 3, "-n", 30)


@pytest.mark.parametrize(
    "more", [(), ("--draft", "none"), ("--json",), ("--echo", "--logprobs", "2")]
)
def test_generate_gives_the_same(run, more):
    shared, own = run(*GENERATE, *more), run(*GENERATE, *more, "--no-server")
    assert NOTE in shared.stderr and NOTE not in own.stderr
    if "--json" in more:
        answers = [json.loads(one.stdout) for one in (shared, own)]
        assert len({(one["text"], one["seed"], *one["tokens"]) for one in answers}) == 1
    else:
        assert shared.stdout == own.stdout != ""
        if "--logprobs" in more:
            assert shared.stderr.endswith(own.stderr)


def test_a_chat_gives_the_same(run):
    lines = "hello\n/set temperature 0\nand then?\n/retry\n"
    words = ("chat", "-m", "tales", "--threads", 1, "--no-history", "--seed", 1, "-n", 12)
    shared, own = run(*words, stdin=lines), run(*words, "--no-server", stdin=lines)
    assert NOTE in shared.stderr
    assert (shared.stdout, shared.returncode) == (own.stdout, own.returncode)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "options",
    [
        ("--kv-type", "q8_0"),
        ("--ctx", 512),
        ("--kernels", "stock"),
        ("-v",),
        ("--draft", "tales-draft"),
    ],
    ids=str,
)
def test_other_options_load_the_model(run, options):
    if options[-1] == os.environ.get("GGUF_SPEC_KERNELS"):
        pytest.skip("with this variant they are no other options")
    answer = run(*GENERATE, *options)
    assert NOTE not in answer.stderr


LINES = [
    {"prompt": "Once upon a time", "max_tokens": 12},
    {"prompt": "The fox", "max_tokens": 12, "temperature": 0, "logprobs": 2},
    {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8},
    {"prompt": "a " * 5000},
    {"prompt": "The", "max_tokens": 4, "logit_bias": {"the": 2}},
    {"prompt": "yes or no?", "max_tokens": 8, "grammar": 'root ::= "yes" | "no"'},
    {"prompt": "no such temperature", "temperature": "x"},
    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 6, "n": 2, "echo": True}},
    {
        "custom_id": "b", "method": "POST", "url": "/v1/chat/completions",
        "body": {
            "messages": [{"role": "user", "content": "call it"}], "max_tokens": 40, "temperature": 0, "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"enum": [1, 2]}}, "required": ["x"]}}}],
        },
    },
]  # fmt: skip


def test_a_batch_gives_the_same(run, tmp_path):
    """What was answered by a server is continued without one."""
    lines = "".join(json.dumps(one) + "\n" for one in LINES)
    given, shared, own = (tmp_path / name for name in ("in.jsonl", "shared.jsonl", "own.jsonl"))
    given.write_text(lines)
    words = ("-m", "tales", "--threads", 1, "--seed", 5)
    answers = [
        run("batch", given, shared, *words),
        run("batch", given, own, *words, "--no-server"),
    ]
    assert NOTE in answers[0].stderr and NOTE not in answers[1].stderr
    assert "the model is loaded" not in answers[0].stderr
    assert shared.read_text() == own.read_text()
    faults = [json.loads(one)["error"] for one in own.read_text().splitlines()]
    assert [bool(one) for one in faults] == [False] * 3 + [True, False, False, True, False, False]
    shared.write_text("".join(own.read_text().splitlines(keepends=True)[:4]))
    assert "(4 of them before)" in run("batch", given, shared, *words).stderr
    assert shared.read_text() == own.read_text()


@pytest.mark.full
def test_more_requests_at_once_than_the_server_runs(run, tmp_path):
    """They are not fewer than the command asks for: the model is loaded."""
    words = ("batch", "-", "-", "-m", "tales", "--threads", 1, "--parallel")
    line = json.dumps({"prompt": "Once", "max_tokens": 2})
    assert NOTE not in run(*words, 64, stdin=line).stderr
    assert NOTE in run(*words, 1, stdin=line).stderr


def test_a_server_whose_queue_is_full_is_not_taken(server, monkeypatch):
    """A command would wait without a word; the model is loaded, as without a server."""
    monkeypatch.setattr(server.app.worker, "most", -1)
    assert served(gguf_spec.models.path("tales"), LOADS, lambda: None) is None


@pytest.mark.parametrize("most", [8, -1], ids=["in the queue", "before the queue"])
def test_an_interrupted_batch_waits_for_nobody(llm, server, monkeypatch, most):
    """Its requests wait behind another one of the server, and end at once, with nothing loaded."""
    given = io.BytesIO(b'{"prompt": "Once", "max_tokens": 2}\n' * 3)
    endless = Sampling(seed=1, max_tokens=1900, ignore_eos=True)
    monkeypatch.setattr(server.app.worker, "_step", lambda _=None: time.sleep(0.05))
    monkeypatch.setattr(LineDefaults, "check", lambda *_: None)  # one more request, of this thread
    with llm.stream("Once", endless) as other:
        assert next(other).tokens
        monkeypatch.setattr(server.app.worker, "most", most)

        def interrupt(_):
            if most < 0 or server.app.worker.n_waiting:
                raise KeyboardInterrupt

        with Batch(given, io.BytesIO()) as run, pytest.raises(KeyboardInterrupt):
            run.run(llm, on_progress=interrupt)
        assert server.app.worker.n_running == 1 and llm.engine.loaded is None


def test_texts_that_depend_on_drafts_are_of_this_process(run):
    assert NOTE not in run(*GENERATE, "--accept", "rejection").stderr


def test_the_rule_of_a_server_is_not_that_of_its_commands(monkeypatch, tmp_path):
    """Its own requests depend on drafts; a command's do not, and have the text without a server."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    rule = Speculation(3, adaptive=False, accept="rejection")
    model = served_model("tales", **LOADS | {"draft": "tales-draft", "speculation": rule})
    sampling = Sampling(seed=3, max_tokens=60, ignore_eos=True)
    with (
        ModelPool([model], speculation=rule) as pool,
        Server(pool, Settings(port=0, listed=True)),
        gguf_spec.load("tales", **LOADS) as own,
    ):
        pool.add(pool.default, pool.default.load(None))
        found = served(gguf_spec.models.path("tales"), LOADS, lambda: None)
        assert found.generate("Once", sampling).text == own.generate("Once", sampling).text


def test_a_full_queue_is_waited_for(llm, server, monkeypatch):
    """Other requests are before it: nothing is loaded, and the answer is that of the server."""
    wanted = llm.generate("Once", Sampling(seed=1, max_tokens=5)).text
    worker, waits = server.app.worker, []
    monkeypatch.setattr(worker, "most", -1)

    def wait(seconds):
        waits.append(seconds)
        monkeypatch.setattr(worker, "most", 8)

    monkeypatch.setattr(llm.engine, "_pause", wait)
    assert llm.generate("Once", Sampling(seed=1, max_tokens=5)).text == wanted
    assert waits and llm.engine.loaded is None


@pytest.mark.full
def test_an_edit_by_a_model_is_the_same(run, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("Once upon a time there was a king.\nHe had a fox.\n")
    words = ("edit", file, "make it shorter", "-m", "tales", "--threads", 1, "--diff", "--seed", 1)
    shared, own = run(*words), run(*words, "--no-server")
    assert NOTE in shared.stderr and NOTE not in own.stderr
    assert (shared.stdout, shared.returncode) == (own.stdout, own.returncode)


def test_the_same_context_is_shared(run):
    assert NOTE in run(*GENERATE, "--ctx", 2048).stderr


def test_only_the_token_of_the_file_opens_the_route(server):
    for key in (None, "secret"):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        assert ask(server, "POST", running.CALL, {}, headers).status == 401


BAD = [
    {}, {"model": "tales"}, {"model": "tales", "method": "close", "options": {}},
    {"model": "tales", "method": "stream", "options": {"type": "dict", "items": []}},
    {"model": "tales", "method": "submit", "options": {"type": "os.system", "fields": {}}},
    {"model": "tales", "method": "submit", "options": {"type": "Sampling", "fields": {"top_k": "x"}}},
    {"model": "tales", "method": "submit", "options": {"type": "dict", "items": [["reports", False]]}},
    {"model": "tales", "method": "submit", "options": {"type": "dict", "items": [["reports", False], ["request", "Once"]]}},
    {"model": "tales", "method": "encode", "options": {"type": "dict", "items": [["prompt", 5]]}},
    {"model": "tales", "method": "tokenize", "options": {"type": "dict", "items": [1]}},
    {"model": "tales", "method": "facts", "options": None}, {"model": 5},
]  # fmt: skip


@pytest.mark.parametrize("body", BAD, ids=str)
def test_a_wrong_call_is_refused(server, body):
    (one,) = running_servers()
    reply = ask(server, "POST", running.CALL, body, {"Authorization": f"Bearer {one.token}"})
    assert reply.status in (200, 400, 404)
    refusal, end = reply.body.splitlines() if reply.status == 200 else (b'["refused"', b"")
    assert refusal.startswith(b'["refused"') and end in (b'["end", null]', b"")


SEEN = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]


@pytest.mark.parametrize(
    "ask",
    [
        lambda llm: llm.tokenize(SEEN),
        lambda llm: llm.tokenize("what?", images=["cat.jpg"]),
        lambda llm: llm.stream(SEEN),
        lambda llm: llm.stream([1, IMAGE_IDS + 3, 5]),
        lambda llm: llm.stream("Once", on_token=print),
        lambda llm: llm.score("Once upon"),
    ],
    ids=["parts", "images", "messages", "ids", "callback", "scores"],
)
def test_what_belongs_to_this_process_is_not_sent(llm, monkeypatch, ask):
    """Ids of images are valid in one process; a callback may end an answer at a token."""

    class NotLoadedError(Exception):
        pass

    def load():
        raise NotLoadedError

    asked = []
    call = type(llm.engine)._ask
    monkeypatch.setattr(
        type(llm.engine), "_ask", lambda *given: asked.append(given[1]) or call(*given)
    )
    monkeypatch.setattr(llm.engine, "_load", load)
    with pytest.raises(NotLoadedError):
        ask(llm)
    assert {*asked} <= {"encode"}  # the ids of a text that is scored


def test_a_callback_sees_each_token(llm):
    tokens = []
    result = llm.generate(
        "Once", Sampling(seed=1, max_tokens=5), on_token=tokens.append, stop_tokens=[np.int64(4)]
    )
    assert tokens == [*result.tokens] and len(tokens) == 5


def test_a_prompt_that_is_too_long(llm):
    with pytest.raises(gguf_spec.errors.PromptTooLongError) as caught:
        llm.stream("a " * 5000)
    assert caught.value.n_ctx == 2048


def test_what_a_server_does_not_do_is_done_here(llm, server):
    wanted = llm.generate("Once", Sampling(seed=1, max_tokens=5)).text
    assert llm.token_text(llm.tokenize("Once")[-1]) and not llm.is_end(5)
    server.close()
    assert llm.generate("Once", Sampling(seed=1, max_tokens=5)).text == wanted
    assert llm.engine.loaded is not None and llm.n_ctx == 2048


def test_a_server_that_ends_in_the_middle_is_named():
    def parts():
        yield "begun", [gguf_spec.Stats(n_prompt=3), 77]
        yield "chunk", Chunk("a", (5,), 0, 0)
        raise running._NotServedError

    stream = running.ServedStream(parts(), "http://127.0.0.1:1", lambda: None, None)
    assert next(stream).text == "a"
    assert (stream.result.text, stream.result.seed) == ("a", 77)
    with pytest.raises(GgufSpecError, match=r"127\.0\.0\.1:1 ended in the middle"):
        next(stream)


def test_an_error_in_the_middle_of_an_answer_is_that_of_the_model(llm, monkeypatch):
    def fail(*_):
        raise NoTokenLeftError

    with llm.stream("Once", Sampling(seed=1, max_tokens=50)) as stream:
        assert next(stream).tokens
        monkeypatch.setattr(StatsRecorder, "round_is_done", fail)
        with pytest.raises(GgufSpecError, match=str(NoTokenLeftError())[:30]):
            list(stream)


def test_a_cancelled_answer_ends_in_the_server_too(llm, server, monkeypatch):
    sent = []
    monkeypatch.setattr(app, "pack", lambda value: sent.append(value) or running.pack(value))
    sampling = Sampling(seed=1, max_tokens=1500, ignore_eos=True)
    with llm.stream("Once", sampling) as stream:
        assert next(stream).tokens
        assert stream.stats.n_generated > 0 and stream.stats.tokens_per_s > 0
        stream.cancel()
        list(stream)  # what had arrived
        counts = stream.result.stats
        assert counts.n_generated == len(stream.result.tokens)
        assert counts.total_s > counts.prompt_s > 0 and counts.tokens_per_s > 0
        assert counts.rounds > 0 and counts.verify_s > 0
        assert (stream.result.finish_reason, stream.result.seed) == ("cancelled", 1)
    until(lambda: server.app.worker.n_running == 0)
    assert sum(len(one.tokens) for one in sent if isinstance(one, Chunk)) < 1500


@pytest.mark.parametrize("change", ["port", "pid", "user", "key"])
def test_a_stale_or_foreign_entry_is_ignored(server, monkeypatch, tmp_path, change):
    (file,) = (tmp_path / "gguf-spec" / "servers").glob("*.json")
    entry = json.loads(file.read_text())
    if change == "port":  # another program listens there
        entry["url"] = "http://127.0.0.1:1"
    elif change == "pid":
        with children.Child([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
            entry["pid"] = other.pid
            file.write_text(json.dumps(entry))
            assert running_servers() == []
        return
    elif change == "user":
        names = iter(["mallory", "alice"])
        monkeypatch.setattr(psutil.Process, "username", lambda _: next(names))
    else:
        entry["keys"] = {"tales": "0" * 64}
    file.write_text(json.dumps(entry))
    assert served(gguf_spec.models.path("tales"), LOADS, lambda: None) is None


def test_the_file_can_be_read_by_its_owner_only(server, tmp_path):
    (file,) = (tmp_path / "gguf-spec" / "servers").glob("*.json")
    assert os.name == "nt" or (file.stat().st_mode | file.parent.stat().st_mode) & 0o077 == 0


def test_the_facts_of_a_server_are_those_of_its_model(llm, server):
    """They cross the wall with their types, and nothing is loaded for them."""
    (own,) = server.app.pool.loaded_llms()
    here = own.engine.facts
    there = running.unpack(json.loads(json.dumps(running.pack(here))))
    assert there == here and [*map(type, vars(there).values())] == [*map(type, vars(here).values())]
    for name in vars(here):
        found = getattr(llm, name)
        assert found == getattr(here, name) or name == "speculation", name
    assert llm.is_exact and llm.prompt_token_s > 0
    assert llm.has_chat_template == own.has_chat_template
    with pytest.raises(AttributeError):
        _ = llm.no_such_member
    assert llm.engine.loaded is None


def test_the_facts_are_those_of_the_model_that_answers(llm, server):
    """After the server is gone, and the model is loaded here with another context."""
    llm.engine._load = lambda: gguf_spec.load("tales", **LOADS, n_ctx=256)
    assert llm.n_ctx == 2048
    server.close()
    assert llm.generate("Once", Sampling(seed=1, max_tokens=2)).tokens
    assert llm.n_ctx == 256
