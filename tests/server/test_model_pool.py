"""Several models in one server: loaded on demand, unloaded when idle or for the memory, never in use."""

import json
import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import gguf_spec
from gguf_spec.errors import (
    ClosedError,
    InvalidOptionError,
    NotEnoughMemoryError,
    WorkerError,
)
from gguf_spec.options import duration
from gguf_spec.server import ModelPool, ServedModel, serve_in_thread, served_model
from gguf_spec.server.errors import ApiError
from gguf_spec.server.model_pool import loaded_model
from tests.server.conftest import ask, ask_text, until
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
            assert {one.result(30)[1] for one in answers} == {"bcdef"}
        goes.clear()
        begins.clear()
        server = serve_in_thread(ModelPool([ServedModel("slow", frozenset(), slow)]))
        answer = threads.submit(ask_text, server, model="slow")
        begins.wait(180)
        server.close(grace=0)
        reply = answer.result(30)
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
