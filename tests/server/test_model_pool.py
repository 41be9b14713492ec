"""Several models in one server: loaded on demand, unloaded when idle or for the memory, never in use."""

import json
import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec.errors import (
    ClosedError,
    InvalidOptionError,
    NotEnoughMemoryError,
    WorkerError,
)
from gguf_spec.options import duration
from gguf_spec.protocols.errors import ApiError
from gguf_spec.server import ModelPool, ServedModel, serve_in_thread, served_model
from gguf_spec.server.model_pool import loaded_model
from tests.server.conftest import ask, ask_text, infill_model, until
from tests.server.test_command import ROOT, Child, begun
from tests.support import children, tiny

PLAIN = {"draft": None, "threads": 1, "extra_bufts": False, "n_ctx": 512}
LETTERS = {"one": "abcdefghijkl", "two": "abmnopqrstuv", "three": "abxyz"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: tiny.write(
            folder / f"{name}.Q8_0.gguf", tiny.one_text(says, for_ever=True),
            metadata={"llama.context_length": 100_000},
        )
        for name, says in LETTERS.items()
    }  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def pool_of(files, *names, **options):
    return ModelPool([served_model(files[name], **PLAIN) for name in names], **options)


def said(server, name):
    reply = ask_text(server, prompt="a", model=name, temperature=0, max_tokens=5)
    assert reply.status == 200, reply.body
    return reply.json()["model"], reply.json()["choices"][0]["text"]


def loaded(server):
    return [one["name"] for one in ask(server, path="/api/ps").json()["models"]]


def test_models_on_demand(files):
    clock = Clock()
    pool = pool_of(files, "one", "two", keep_alive=60, clock=clock)
    with serve_in_thread(pool) as server:
        assert loaded(server) == []
        assert said(server, "two.q8_0") == ("two.Q8_0.gguf", "bmnop")
        assert loaded(server) == ["two.Q8_0.gguf"]
        assert said(server, "nothing") == ("one.Q8_0.gguf", "bcdef")
        assert said(server, str(files["two"])) == ("two.Q8_0.gguf", "bmnop")
        listed = {one["id"]: one["loaded"] for one in ask(server, path="/v1/models").json()["data"]}
        assert listed == {"one.Q8_0.gguf": True, "two.Q8_0.gguf": True}
        clock.now = 50
        said(server, "two.Q8_0")
        clock.now = 70  # the last use of one was at 0, of two at 50
        [one] = [
            m for m in ask(server, path="/api/ps").json()["models"] if m["name"] == "two.Q8_0.gguf"
        ]
        assert one["seconds_left"] == 40
        said(server, "two.Q8_0")
        assert loaded(server) == ["two.Q8_0.gguf"]
        assert ask(
            server, "POST", "/tokenize", {"content": "ab", "model": "one.Q8_0.gguf"}
        ).json() == {"tokens": [97, 98]}
        assert loaded(server) == ["one.Q8_0.gguf", "two.Q8_0.gguf"]
    assert not any(pool.loaded(model) for model in pool.models)


# ---- a context that grows

WORDS = {"draft": None, "threads": 1, "extra_bufts": False, "prefix_memory": "64MiB"}


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    """A model whose next token depends on all that it has read."""
    path = tmp_path_factory.mktemp("random") / "random.gguf"
    return tiny.write(path, tiny.llama(n_layer=2, seed=3), metadata={"llama.context_length": 4096})


def answer(server, prompt, max_tokens=24, **fields):
    reply = ask_text(server, prompt=prompt, temperature=0, max_tokens=max_tokens, **fields)
    assert reply.status == 200, reply.body
    data = reply.json()
    return data["choices"][0]["text"], data["usage"]["prompt_tokens_details"]["cached_tokens"]


def n_ctx(server):
    [one] = ask(server, path="/v1/models").json()["data"]
    return one["n_ctx"], one["max_model_len"]


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_context_grows_with_what_was_read(random_model, parallel):
    """The text is that of a long context, and the earlier text is not read again."""
    begin = "".join(chr(97 + i * 7 % 26) for i in range(200))
    long = begin + "".join(chr(97 + i * 11 % 26) for i in range(300))
    options = WORDS | {"parallel": parallel}
    with serve_in_thread(ModelPool([served_model(random_model, n_ctx=2048, **options)])) as server:
        wanted = [answer(server, one)[0] for one in (begin, long, long + "xyz")]
        assert n_ctx(server) == (2048, 2048)
    model = served_model(random_model, n_ctx=256, ctx_max=2048, **options)
    with serve_in_thread(ModelPool([model])) as server:
        assert answer(server, begin) == (wanted[0], 0)
        assert n_ctx(server) == (256, 2048)
        text, n_cached = answer(server, long)
        assert text == wanted[1] and n_cached >= 190
        assert n_ctx(server)[0] == 625  # the prompt and a quarter
        text, n_cached = answer(server, long + "xyz")
        assert text == wanted[2] and n_cached >= 490
        # the prompt fits, and the answer does not
        answer(server, long + begin[:120], max_tokens=100)
        assert n_ctx(server)[0] == 1250
        reply = ask_text(server, prompt="a" * 3000)
        assert (reply.status, reply.code) == (400, "context_length_exceeded")
        assert b"2048 tokens. However, your prompt has 3000" in reply.body.replace(b"about ", b"")
        assert n_ctx(server)[0] == 1250  # for nothing


def test_only_when_no_other_request_runs(random_model):
    """A long prompt waits for the answers that run; those that come later have the new context."""
    options = WORDS | {"parallel": 2, "n_ctx": 256, "ctx_max": 1024}
    with (
        serve_in_thread(ModelPool([served_model(random_model, **options)])) as server,
        ThreadPoolExecutor(6) as threads,
    ):
        prompts = ["a" * 60, "b" * 400, "c" * 70, "d" * 500, "e" * 80, "f" * 90]
        answers = list(threads.map(lambda one: answer(server, one, max_tokens=100), prompts))
        assert n_ctx(server)[0] >= 625
    with serve_in_thread(ModelPool([served_model(random_model, **WORDS, n_ctx=1024)])) as server:
        alone = [answer(server, one, max_tokens=100)[0] for one in prompts]
    assert [text for text, _ in answers] == alone


def test_where_it_cannot_grow_the_old_length_is_kept(random_model):
    """The memory does not suffice: the request is refused, and the next one is answered."""
    model = served_model(random_model, n_ctx=256, ctx_max=2048, **WORDS)
    asked = []

    def load(progress, n_ctx=None):
        asked.append(n_ctx)
        if n_ctx and n_ctx > 256:
            raise NotEnoughMemoryError("full", 2, 1)
        return model.load(progress, n_ctx)

    with serve_in_thread(ModelPool([replace(model, load=load)])) as server:
        before = answer(server, "a" * 100)
        reply = ask_text(server, prompt="a" * 300, max_tokens=4)
        assert (reply.status, reply.code) == (400, "context_length_exceeded")
        assert answer(server, "a" * 100) == (before[0], 99)
        assert asked == [None, 512, 256]
        # the prompts fit, and what is left is little: one try for all choices, which then run
        reply = ask_text(server, prompt="a" * 230, max_tokens=60, n=3, seed=1, temperature=1)
        assert [one["finish_reason"] for one in reply.json()["choices"]] == ["length"] * 3
        assert asked == [None, 512, 256, 512, 256]


def test_a_client_that_leaves_does_not_take_the_model_from_the_others(random_model):
    """It leaves while the context grows: the model is there for the next request."""
    model = served_model(random_model, n_ctx=256, ctx_max=2048, **WORDS)
    asked, given = [], threading.Event()

    def load(progress, n_ctx=None):
        asked.append(n_ctx)
        if n_ctx:
            [job] = server.app.worker.running
            server.app.worker.cancel(job, "client_closed")
            given.set()
        return model.load(progress, n_ctx)

    with serve_in_thread(ModelPool([replace(model, load=load)])) as server:
        before = answer(server, "a" * 100)[0]
        ask_text(server, prompt="a" * 300, max_tokens=4)
        assert given.wait(30)
        assert answer(server, "a" * 100) == (before, 99)
        assert asked == [None, 512] and n_ctx(server)[0] == 512


@pytest.mark.parametrize("ids", [False, True], ids=["text", "ids"])
def test_a_later_prompt_of_a_request_lets_it_grow(random_model, ids):
    """Before the first one is answered: an answer that was sent cannot begin again."""
    options = WORDS | {"n_ctx": 256, "ctx_max": 1024}
    with serve_in_thread(ModelPool([served_model(random_model, **options)])) as server:
        long = [97] * 400 if ids else "a" * 400
        prompts = [[98] * 5 if ids else "b" * 5, long]
        reply = ask_text(server, prompt=prompts, temperature=0, max_tokens=4)
        assert reply.status == 200, reply.body
        assert len(reply.json()["choices"]) == 2 and n_ctx(server)[0] >= 401
        reply = ask_text(server, prompt=[prompts[0], long * 3], max_tokens=4)
        assert (reply.status, reply.code) == (400, "context_length_exceeded")


def test_files_are_left_out_only_at_its_end(tmp_path):
    """`input_extra` of a text to be filled in, as the messages of a conversation."""
    path = infill_model(tmp_path / "code.gguf", ("pre", "suf", "mid", "rep", "sep"))
    body = {"input_prefix": "a", "input_suffix": "z", "n_predict": 4, "temperature": 0}
    body["input_extra"] = [{"filename": f"{i}.py", "text": "x" * 100} for i in range(5)]
    counts = []
    for ctx_max in (None, 400, 2048):
        model = served_model(path, n_ctx=256, ctx_max=ctx_max, **WORDS)
        with serve_in_thread(ModelPool([model])) as server:
            reply = ask(server, "POST", "/infill", body)
            assert reply.status == 200, reply.body
            counts.append((reply.json()["tokens_evaluated"], n_ctx(server)[0]))
    assert counts[0][0] < counts[1][0] < counts[2][0]
    assert [n for _, n in counts[:2]] == [256, 400] and counts[2][1] > 500


@pytest.mark.parametrize(
    ("ctx_max", "code", "length"),
    [(None, "context_length_exceeded", 256), (500, "context_length_exceeded", 256), (1500, "no_edit", 860)],
)  # fmt: skip
def test_an_edit_lets_it_grow(random_model, ctx_max, code, length):
    """Where the longest does not suffice nothing is loaded; this model writes no edit in any case."""
    body = {"text": "line\n" * 60, "instruction": "make it shorter", "max_tokens": 8}
    model = served_model(random_model, n_ctx=256, ctx_max=ctx_max, **WORDS)
    with serve_in_thread(ModelPool([model])) as server:
        reply = ask(server, "POST", "/v1/edit", body)
        assert (reply.status, reply.code, n_ctx(server)[0]) == (400, code, length)


def test_all_routes_tell_the_same_length(random_model):
    with serve_in_thread(
        ModelPool([served_model(random_model, n_ctx=256, ctx_max=2048, **WORDS)])
    ) as server:
        answer(server, "abc")
        name = ask(server, path="/v1/models").json()["data"][0]["id"]
        about = ask(server, "POST", "/api/show", {"model": name}).json()["model_info"]
        assert about["llama.context_length"] == 2048
        assert ask(server, "POST", "/tokenize", {"prompt": "a"}).json()["max_model_len"] == 2048
        assert ask(server, path="/tokenizer_info").json()["model_max_length"] == 2048
        assert ask(server, path="/api/ps").json()["models"][0]["context_max"] == 2048
        assert n_ctx(server) == (256, 2048)


def test_messages_are_left_out_only_at_its_end(random_model):
    """`truncation: auto` leaves out the oldest ones; with room they are kept."""
    messages = [{"role": "user", "content": "abc " * 40}, {"role": "assistant", "content": "d"}] * 3
    body = {"input": [*messages, {"role": "user", "content": "efg"}], "truncation": "auto"}
    counts = []
    for ctx_max in (None, 400, 2048):
        model = served_model(random_model, n_ctx=256, ctx_max=ctx_max, **WORDS)
        with serve_in_thread(ModelPool([model])) as server:
            reply = ask(server, "POST", "/v1/responses", body | {"max_output_tokens": 16})
            assert reply.status == 200, reply.body
            counts.append((reply.json()["usage"]["input_tokens"], n_ctx(server)[0]))
    assert counts[0][0] < counts[1][0] < counts[2][0]
    assert [n for _, n in counts[:2]] == [256, 400] and counts[2][1] > 400


def test_a_file_that_was_replaced_shares_no_states(random_model, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(random_model.read_bytes())
    with gguf_spec.load(path, n_ctx=256, **WORDS) as llm:
        llm.generate("abc " * 30, max_tokens=2)
        texts = llm.kept_texts()
    other = tiny.write(
        tmp_path / "other.gguf", tiny.llama(n_layer=2, seed=4),
        metadata={"llama.context_length": 4096},
    )  # fmt: skip
    other.replace(path)
    for model, n_kept in ((path, 0), (random_model, 1)):
        with gguf_spec.load(model, n_ctx=512, **WORDS) as llm:
            llm.add_texts(texts)
            assert llm.prefix_memory.n_entries == n_kept


def test_nothing_is_kept(files):
    with serve_in_thread(pool_of(files, "one", keep_alive=0)) as server:
        for _ in range(2):
            assert said(server, "one")[1] == "bcdef"
            until(lambda: loaded(server) == [])


def test_the_time_of_a_model_in_use_does_not_run_out(files):
    clock = Clock()
    pool = pool_of(files, "one", keep_alive=60, clock=clock)
    with pool.use(pool.default, lambda: False):
        clock.now = 100
        assert pool.seconds_left() is pool.seconds_left(pool.default) is None
    clock.now = 110
    assert pool.seconds_left() == pool.seconds_left(pool.default) == 50
    pool.close()


def test_the_time_that_a_request_asks_for(files):
    """It holds from the last request on; a server that unloads nothing takes 0 only."""
    clock = Clock()
    pool = pool_of(files, "one", keep_alive=60, clock=clock)
    with pool.use(pool.default, lambda: False):
        pool.keep(pool.default, 300)
    assert pool.seconds_left() == 300
    pool.keep(pool.default, math.inf)
    assert pool.seconds_left() is None
    pool.close()
    pool = pool_of(files, "one", clock=clock)
    with pool.use(pool.default, lambda: False):
        pool.keep(pool.default, 300)
    assert pool.seconds_left() is None
    pool.keep(pool.default, 0)
    assert pool.seconds_left() == 0
    pool.unload_idle()
    assert not pool.loaded(pool.default)


def test_a_request_unloads_a_model(files):
    with serve_in_thread(pool_of(files, "one")) as server:
        assert said(server, "one")[1] == "bcdef"
        assert loaded(server) == ["one.Q8_0.gguf"]
        answer = ask(server, "POST", "/api/generate", {"model": "one", "keep_alive": 0}).json()
        assert answer["done_reason"] == "unload"
        until(lambda: loaded(server) == [])
        assert said(server, "one")[1] == "bcdef"
        for more in ({}, {"keep_alive": "nonsense"}):
            body = {"model": "one", "prompt": "a", "stream": False} | more
            assert ask(server, "POST", "/api/generate", body).status == 200
        assert loaded(server) == ["one.Q8_0.gguf"]
        for given in ({"input": "a"}, {"input": []}, {}):
            body = {"model": "one", "keep_alive": 0} | given
            assert ask(server, "POST", "/api/embed", body).status == 200
            until(lambda: loaded(server) == [])


def test_a_model_that_is_not_loaded_is_not_loaded_to_unload_it(files):
    def load(*_):
        raise AssertionError

    model = pool_of(files, "one").models[0]
    with serve_in_thread(ModelPool([ServedModel(model.id, model.names, load)])) as server:
        for path in ("/api/generate", "/api/chat"):
            answer = ask(server, "POST", path, {"keep_alive": "0s"})
            assert (answer.status, answer.json()["done_reason"]) == (200, "unload")
            assert answer.json()["model"] == model.id


def test_memory_of_idle_models_is_used(files):
    """The model whose last use is longest ago goes first; a model in use stays."""
    fits, clock, order = [2], Clock(), []

    def limited(model):
        def load(progress):
            if len([one for one in pool.models if pool.loaded(one)]) >= fits[0]:
                raise NotEnoughMemoryError("too much", 9, 8, None)
            order.append(model.id)
            return model.load(progress)

        return ServedModel(model.id, model.names, load)

    models = [limited(served_model(files[name], **PLAIN)) for name in LETTERS]
    pool = ModelPool(models, clock=clock)
    with serve_in_thread(pool) as server:
        for i, name in enumerate(("one", "two", "one", "three")):
            clock.now = i
            said(server, f"{name}.q8_0")
        assert loaded(server) == ["one.Q8_0.gguf", "three.Q8_0.gguf"]
        fits[0] = 0
        reply = ask_text(server, model="two.q8_0")
        assert (reply.status, reply.code, reply.param) == (503, "not_enough_memory", "model")
        fits[0] = 2
        assert said(server, "two.q8_0")[1] == "bmnop"


def test_a_pool_keeps_given_models(tales):
    pool = ModelPool.of(tales)
    pool.close()
    assert pool.loaded(pool.default).llm is tales
    assert tales.generate("a", gguf_spec.Sampling(max_tokens=1)).tokens
    with pytest.raises(InvalidOptionError):
        ModelPool([])
    with pytest.raises(InvalidOptionError):
        ModelPool([loaded_model(tales)] * 2)
    with pytest.raises(InvalidOptionError):
        ModelPool([loaded_model(tales)], keep_alive=-1)


def test_a_model_that_lost_a_worker_is_loaded_again(files):
    """When the last request that used it is over; one that the caller opened is the caller's."""
    pool = pool_of(files, "one")
    model = pool.default

    def lose():
        with pool.use(model, lambda: False) as llm:
            seen.append(llm)
            raise WorkerError(("a:1",), "the model is lost.")

    seen = []
    with pytest.raises(WorkerError), pool.use(model, lambda: False) as first:
        with pytest.raises(WorkerError):
            lose()
        assert pool.loaded(model).llm is first is seen[0]
        raise WorkerError(("a:1",), "the model is lost.")
    assert pool.loaded(model) is None
    with pytest.raises(ClosedError):
        first.slots()
    with pool.use(model, lambda: False) as again:
        assert again is not first
    pool.close()
    with gguf_spec.load(files["one"], **PLAIN) as llm:
        pool = ModelPool.of(llm)
        with pytest.raises(WorkerError), pool.use(pool.default, lambda: False):
            raise WorkerError(("a:1",), "the model is lost.")
        assert pool.loaded(pool.default).llm is llm
        llm.slots()


def test_a_load_that_fails(files, caplog):
    def fail(_):
        raise OSError("/".join(["", "secret"]))

    models = [served_model(files["one"], **PLAIN), ServedModel("bad", frozenset(), fail)]
    with serve_in_thread(ModelPool(models)) as server:
        reply = ask_text(server, model="bad")
        assert (reply.status, reply.code) == (500, "model_not_loaded")
        assert b"secret" not in reply.body
        assert "/secret" not in caplog.text
        assert said(server, "one")[1] == "bcdef"


def test_requests_wait_for_a_load_and_closing_ends_it(files):
    begins, goes, cancelled = threading.Event(), threading.Event(), []
    real = served_model(files["one"], **PLAIN)

    def slow(progress):
        begins.set()
        while not goes.wait(0.01):
            if progress(None) is False:
                cancelled.append(True)
                raise gguf_spec.errors.LoadCancelledError(files["one"])
        return real.load(progress)

    with ThreadPoolExecutor(4) as threads:
        with serve_in_thread(ModelPool([ServedModel("slow", frozenset(), slow)])) as server:
            answers = [threads.submit(said, server, "slow") for _ in range(3)]
            begins.wait(180)
            until(lambda: ask(server).json()["queue"] == 2)
            goes.set()
            assert {one.result(180)[1] for one in answers} == {"bcdef"}
        goes.clear()
        begins.clear()
        server = serve_in_thread(ModelPool([ServedModel("slow", frozenset(), slow)]))
        answer = threads.submit(ask_text, server, model="slow")
        begins.wait(180)
        server.close(grace=0)
        reply = answer.result(180)
        assert (reply.status, reply.code) == (503, "shutting_down")
        assert cancelled == [True]


def test_a_closed_connection_ends_the_load(files):
    pool = pool_of(files, "one")

    def cancelled():
        return True

    with pytest.raises(ApiError), pool.use(pool.default, cancelled):
        pass
    assert pool.loaded(pool.default) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5s", 1.5),
        ("0", 0),
        ("-1", float("inf")),
        ("-1m", float("inf")),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5x", "m", "5m3", "1 h", "nan"])
def test_wrong_durations(text):
    with pytest.raises(ValueError, match="is not a duration"):
        duration(text)


def command(*args, env):
    return children.run(
        [sys.executable, "-m", "gguf_spec", *args], cwd=ROOT, env=env, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip


@pytest.mark.full
def test_the_command(files, tmp_path):
    import os

    state = {"XDG_STATE_HOME": str(tmp_path)}
    env = os.environ | {"PYTHONPATH": str(ROOT)} | state
    done = command("ps", env=env)
    assert (done.returncode, done.stdout) == (0, "")
    assert "No server is running" in done.stderr
    folder = tmp_path / "gguf-spec" / "servers"
    options = ["-m", files["one"], "-m", files["two"], "-d", "none", "--ctx", 512, "--port", 0]
    with Child(*options, GGUF_SPEC_API_KEY="k", **state) as child:
        [file] = folder.iterdir()
        assert file.stat().st_mode & 0o77 == 0
        (folder / "999999999-1.json").write_text(
            json.dumps({"url": "http://127.0.0.1:1", "pid": 999999999, "token": "x"})
        )
        (folder / "junk.json").write_text("{")
        done = command("ps", env=env)
        assert done.stderr == ""
        head, row = done.stdout.splitlines()
        assert head.split() == ["MODEL", "SIZE", "CONTEXT", "UNLOADED", "IN", "SERVER", "PID"]
        assert row.split()[0] == "one.Q8_0.gguf"
        assert "5 min" in row
        assert child.url in row
        key = {"Authorization": "Bearer k"}
        assert ask_text(child, key, model="two").json()["model"] == "one.Q8_0.gguf"
        assert ask_text(child, key, model="two.Q8_0").json()["model"] == "two.Q8_0.gguf"
        [server] = json.loads(command("ps", "--json", env=env).stdout)
        assert [one["name"] for one in server["models"]] == ["one.Q8_0.gguf", "two.Q8_0.gguf"]
        token = json.loads(file.read_text())["token"]
        wrong = {"Authorization": f"Bearer {token}"}
        assert ask(child, path="/api/ps", headers=wrong).status == 200
        assert ask(child, path="/v1/models", headers=wrong).status == 401
        assert {one.name for one in folder.iterdir()} == {file.name, "junk.json"}
        assert child.end()[0] == 0
    assert [one.name for one in folder.iterdir()] == ["junk.json"]


@pytest.mark.full
def test_options_of_one_model(files):
    with Child("-m", files["one"], "-m", files["two"], "-d", files["three"]) as child:
        assert child.process.wait(180) == 2
        assert "--draft cannot be combined with several models" in child.err
    with Child("-m", files["one"], "-m", "/nowhere/x.gguf") as child:
        assert child.process.wait(180) == 1


@pytest.mark.full
def test_a_model_in_use_stays(files):
    """An answer is being generated while other models are requested and the time limit passes."""
    clock = Clock()
    options = {**PLAIN, "n_ctx": 50_000}
    models = [served_model(files[name], **options) for name in ("one", "two")]
    pool = ModelPool(models, keep_alive=1, clock=clock)
    with serve_in_thread(pool) as server, begun(server, 3000) as response:
        clock.now = 100
        [one] = ask(server, path="/api/ps").json()["models"]
        assert (one["busy"], one["seconds_left"]) == (True, None)
        rest = response.read()
        assert rest.endswith(b"data: [DONE]\n\n")
