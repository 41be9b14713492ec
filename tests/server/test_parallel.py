"""Several requests at once: each text is that of a separate request, whatever other requests do."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

import gguf_spec
from gguf_spec import LLM, Sampling
from gguf_spec.server import ModelPool, serve_in_thread, served_model
from tests.server.conftest import ask, ask_chat, ask_text, metrics, threads_since, until
from tests.server.test_api import FOX, START, alone
from tests.server.test_load import LONG, busy, connect, n_waiting
from tests.support import tiny

PROMPTS = [
    START,
    "The king said to the fox:",
    FOX,
    [{"role": "user", "content": "What did the wolf say?"}],
]
PLAIN = {"threads": 1, "extra_bufts": False, "n_ctx": 20_000}
SLOT = {
    "id",
    "id_task",
    "is_processing",
    "n_ctx",
    "n_past",
    "speculative",
    "model",
    "kept_prefixes",
}


@pytest.fixture(scope="module")
def four():
    """A server of the bundled pair, which runs four requests at once."""
    with (
        gguf_spec.load("tales", threads=1, parallel=4) as llm,
        serve_in_thread(llm, queue=100) as one,
    ):
        yield one


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """Two models that never end."""
    folder = tmp_path_factory.mktemp("letters")
    return [
        tiny.write(folder / name, tiny.one_text(says, for_ever=True), metadata={"llama.context_length": 100_000})
        for name, says in (("one.gguf", "abcdefghijkl"), ("two.gguf", "abmnopqrstuv"))
    ]  # fmt: skip


@pytest.fixture
def two(letters):
    """A server of an endless model, which runs two requests at once and lets one wait."""
    with (
        gguf_spec.load(letters[0], None, parallel=2, **PLAIN) as llm,
        serve_in_thread(llm, queue=1, timeout=600) as one,
    ):
        yield one


def slots(server, query=""):
    reply = ask(server, path=f"/slots{query}")
    assert reply.status == 200
    return reply.json()


def n_running(server):
    return ask(server).json()["running"]


def answer(server, prompt, **fields):
    """Return the text of an answer, complete or streamed."""
    chat = isinstance(prompt, list)
    ask_it = ask_chat if chat else ask_text
    reply = ask_it(server, **{"messages" if chat else "prompt": prompt}, **fields)
    assert reply.status == 200, reply.body
    if not fields.get("stream"):
        choice = reply.json()["choices"][0]
        return choice["message"]["content"] if chat else choice["text"]
    *pieces, done = [line[6:] for line in reply.body.decode().split("\n\n") if line]
    assert done == "[DONE]"
    choices = [json.loads(piece)["choices"][0] for piece in pieces]
    return "".join(one["delta"].get("content", "") if chat else one["text"] for one in choices)


def shared(server, before):
    """Return the rows of a pass since an earlier state of the metrics."""
    after, label = metrics(server), '{model="tales"}'
    rows, passes = (
        after[f"target_{name}_total{label}"] - before[f"target_{name}_total{label}"]
        for name in ("rows", "passes")
    )
    return rows / passes


@pytest.mark.full
def test_eight_clients_get_the_texts_of_one_after_the_other(four, tales):
    plans = [(PROMPTS[i % 4], 20 + i % 3, i, i % 2 == 0) for i in range(24)]
    wanted = [alone(tales, p, max_tokens=n, seed=seed).text for p, n, seed, _ in plans]
    with ThreadPoolExecutor(8) as clients:
        texts = clients.map(
            lambda plan: answer(four, plan[0], max_tokens=plan[1], seed=plan[2], stream=plan[3]),
            plans,
        )
        assert list(texts) == wanted


@pytest.mark.full
def test_they_share_passes(four):
    before = metrics(four)
    fields = {"max_tokens": 100, "ignore_eos": True, "speculation": "off"}
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda seed: answer(four, START, seed=seed, **fields), range(8)))
    assert shared(four, before) > 1.5  # rows of one request alone would be 1
    assert metrics(four)["queue_length"] == metrics(four)["requests_running"] == 0


@pytest.mark.full
def test_disconnects_and_failed_requests_do_not_affect_other_requests(four, tales):
    wrong = [
        ({"temperature": 1e9}, 400), ({"prompt": "fox " * 5000}, 400), ({"grammar": "root ::= ("}, 400),
        ({"n": 3, "prompt": ["a", "fox " * 5000]}, 400), ({"speculation": {"strict": True, "accept": "block"}}, 400),
    ]  # fmt: skip

    def disturb(i):
        if i % 2:
            fields, status = wrong[i // 2 % len(wrong)]
            assert ask_text(four, **fields).status == status
        else:
            held = connect(
                four, prompt=START, max_tokens=1000, ignore_eos=True, stream=True, n=1 + i % 3
            )
            held.recv(300)
            held.close()

    wanted = {seed: alone(tales, START, seed=seed).text for seed in range(12)}
    with ThreadPoolExecutor(8) as clients:
        disturbed = [clients.submit(disturb, i) for i in range(20)]
        texts = {
            seed: clients.submit(answer, four, START, max_tokens=40, seed=seed) for seed in wanted
        }
        assert {seed: text.result() for seed, text in texts.items()} == wanted
        for one in disturbed:
            one.result()
    until(lambda: not busy(four))
    until(lambda: not any(slot["is_processing"] for slot in slots(four)))


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
def test_choices_share_passes(four, tales, stream):
    prompts, fields = [START, "A mouse"], {"max_tokens": 60, "seed": 7, "n": 3, "ignore_eos": True}
    wanted = [
        alone(tales, p, max_tokens=60, seed=seed, ignore_eos=True)
        for p in prompts
        for seed in (7, 8, 9)
    ]
    before = metrics(four)
    reply = ask_text(
        four, prompt=prompts, stream=stream, speculation="off", stream_options={"include_usage": True} if stream else None,
        **fields,
    )  # fmt: skip
    assert reply.status == 200
    assert shared(four, before) > 1.5
    if stream:
        lines = [
            line[6:] for line in reply.body.decode().split("\n\n") if line.startswith("data: {")
        ]
        pieces, texts = [json.loads(line) for line in lines], {}
        for choice in (choice for piece in pieces for choice in piece["choices"]):
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
        usage = pieces[-1]["usage"]
    else:
        told = reply.json()
        usage, texts = told["usage"], {one["index"]: one["text"] for one in told["choices"]}
        assert list(texts) == list(range(6))
    assert [texts[i] for i in range(6)] == [one.text for one in wanted]
    assert usage["prompt_tokens"] == sum(one.stats.n_prompt for one in wanted[::3])
    assert usage["completion_tokens"] == 6 * 60


@pytest.fixture
def opened(monkeypatch):
    """The prompts of the choices that were begun, in their order."""
    prompts, real = [], LLM.stream

    def stream(self, prompt, *given, **options):
        prompts.append(prompt)
        return real(self, prompt, *given, **options)

    monkeypatch.setattr(LLM, "stream", stream)
    return prompts


@pytest.mark.full
@pytest.mark.parametrize("parallel", [1, 2])
def test_requests_alternate_not_choices(letters, opened, parallel):
    """Each request gets the next free slot, also after a request with many choices."""
    with (
        gguf_spec.load(letters[0], None, parallel=parallel, **PLAIN) as llm,
        serve_in_thread(llm) as server,
        ThreadPoolExecutor(3) as clients,
    ):
        many = [
            clients.submit(ask_text, server, prompt=prompt, n=12, max_tokens=200, temperature=0)
            for prompt in ("ab", "abc")
        ]
        until(lambda: len({*opened}) == 2)
        for _ in range(5):
            n = len(opened)
            short = ask_text(server, prompt="a", temperature=0, max_tokens=5)
            assert short.json()["choices"][0]["text"] == "bcdef"
            assert opened.index("a") - n <= parallel + 2
            opened[:] = [one for one in opened if one != "a"]
        replies = [one.result().json()["choices"] for one in many]
    assert [one["index"] for one in replies[0]] == [*range(12)]
    assert {one["finish_reason"] for choices in replies for one in choices} == {"length"}
    last = len(opened) - opened[::-1].index("ab")
    both = opened[opened.index("abc") : last]
    assert max((len([*run]) for _, run in itertools.groupby(both)), default=0) <= 4, "in turn"


def test_a_request_out_of_time_between_two_turns_ends_at_once(letters):
    with (
        gguf_spec.load(letters[0], None, **PLAIN) as llm,
        serve_in_thread(llm) as server,
        ThreadPoolExecutor(1) as clients,
    ):
        many = clients.submit(ask_text, server, prompt="ab", n=60, max_tokens=50, temperature=0)
        until(lambda: busy(server))
        held, worker = connect(server, **LONG | {"max_tokens": 15_000}), server.app.worker
        until(lambda: worker.waiting and worker.waiting[0].has_more)
        worker.cancel(worker.waiting[0], "timeout")
        choices = many.result().json()["choices"]
        assert busy(server), "the other one goes on"
        held.close()
    assert [one["index"] for one in choices] == [*range(60)]
    assert {one["finish_reason"] for one in choices} == {"length"}
    assert choices[0]["text"].startswith("cdef")
    assert choices[-1]["text"] == ""


def test_slots_and_metrics_of_running_requests(two):
    assert [(slot["id"], slot["id_task"], slot["is_processing"]) for slot in slots(two)] == [
        (0, -1, False),
        (1, -1, False),
    ]
    assert ask(two, path="/props").json()["total_slots"] == 2
    held = [connect(two, **LONG | {"max_tokens": 15_000}) for _ in range(3)]
    until(lambda: all(slot["is_processing"] for slot in slots(two)) and n_waiting(two) == 1)
    first = slots(two)
    assert all(slot.keys() == SLOT and slot["n_ctx"] == 20_000 for slot in first)
    assert len({slot["id_task"] for slot in first}) == 2
    until(lambda: all(a["n_past"] < b["n_past"] for a, b in zip(first, slots(two), strict=True)))
    told, label = metrics(two), '{model="one.gguf"}'
    assert (told["requests_running"], told["queue_length"], told["busy"]) == (2, 1, 1)
    assert (told[f"slots{label}"], told[f"slots_busy{label}"]) == (2, 2)
    reply = ask(two, path="/slots?fail_on_no_slot=1")
    assert (reply.status, reply.code) == (503, "no_slot_available")
    full = ask_text(two)
    assert (full.status, full.code) == (429, "queue_full")
    held[0].close()
    until(lambda: n_waiting(two) == 0)  # the third has its place
    for one in held:
        one.close()
    until(lambda: not busy(two))
    until(lambda: [slot["id_task"] for slot in slots(two)] == [-1, -1])
    assert len(slots(two, "?fail_on_no_slot=1&model=one.gguf")) == 2


def test_the_only_slot(letters):
    with gguf_spec.load(letters[0], None, **PLAIN) as llm, serve_in_thread(llm) as server:
        assert [(slot["id_task"], slot["n_past"]) for slot in slots(server)] == [(-1, 0)]
        held = connect(server, **LONG | {"max_tokens": 15_000})
        until(lambda: slots(server)[0]["n_past"] > 10)
        assert slots(server)[0]["is_processing"]
        held.close()
        until(lambda: not busy(server))
        until(lambda: not slots(server)[0]["is_processing"])
        [slot] = slots(server)
        assert slot["id_task"] == -1
        assert slot["n_past"] > 10
    with pytest.raises(gguf_spec.errors.ClosedError):
        llm.slots()


def test_a_timeout_ends_only_its_own_request(letters):
    with (
        gguf_spec.load(letters[0], None, parallel=2, **PLAIN) as llm,
        serve_in_thread(llm) as server,
        ThreadPoolExecutor(2) as clients,
    ):
        cut, worker = (
            clients.submit(ask_text, server, **LONG | {"max_tokens": 15_000}),
            server.app.worker,
        )
        until(lambda: worker.running)
        [job] = worker.running
        short = [ask_text(server, prompt="a", temperature=0, max_tokens=5).json() for _ in range(5)]
        assert {one["choices"][0]["text"] for one in short} == {"bcdef"}
        worker.cancel(job, "timeout")
        short = [ask_text(server, prompt="a", temperature=0, max_tokens=5).json() for _ in range(5)]
        assert {one["choices"][0]["text"] for one in short} == {"bcdef"}
        assert cut.result().json()["choices"][0]["finish_reason"] == "length"


def test_a_request_for_another_model_waits_for_those_that_run(letters):
    """It does not compete with them for the cores, and later requests do not overtake it."""
    models = [served_model(file, draft=None, parallel=2, **PLAIN) for file in letters]
    with (
        serve_in_thread(ModelPool(models, keep_alive=0)) as server,
        ThreadPoolExecutor(4) as clients,
    ):
        held = [connect(server, **LONG | {"max_tokens": 15_000, "model": "one.gguf"})]
        until(lambda: slots(server, "?model=one.gguf"))
        held.append(connect(server, **LONG | {"max_tokens": 15_000, "model": "one.gguf"}))
        until(lambda: n_running(server) == 2)
        short = {"prompt": "a", "temperature": 0, "max_tokens": 5}
        other = clients.submit(ask_text, server, model="two.gguf", **short)
        until(lambda: n_waiting(server) == 1)
        later = clients.submit(ask_text, server, model="one.gguf", **short)
        until(lambda: n_waiting(server) == 2)
        held[0].close()
        until(lambda: n_running(server) == 1)
        assert n_waiting(server) == 2
        assert slots(server, "?model=two.gguf") == []
        held[1].close()
        assert other.result().json()["choices"][0]["text"] == "bmnop"
        assert later.result().json()["choices"][0]["text"] == "bcdef"
        until(lambda: slots(server) == [])  # none is kept


def test_closing_ends_all_that_run_and_wait(letters):
    with gguf_spec.load(letters[0], None, parallel=2, **PLAIN) as llm:
        before = set(threading.enumerate())
        server = serve_in_thread(llm)
        with ThreadPoolExecutor(4) as clients:
            answers = [
                clients.submit(ask_text, server, **LONG | {"max_tokens": 15_000}) for _ in range(4)
            ]
            until(lambda: n_running(server) == 2 and n_waiting(server) == 2)
            server.close(grace=0)
        replies = {(one.result().status, one.result().code) for one in answers}
        assert replies == {(503, "shutting_down")}
        assert llm.generate("a", Sampling(max_tokens=3, temperature=0)).text == "bcd"
        until(lambda: not threads_since(before))


def test_kept_prefixes_are_shown(four):
    """More texts than slots, then the first one again."""
    texts = [f"Once there were {i} foxes. " * 20 for i in range(6)]
    first = ask_text(four, prompt=texts[0], max_tokens=3, seed=1).json()
    for text in [*texts[1:], texts[0]]:
        again = ask_text(four, prompt=text, max_tokens=3, seed=1).json()
    assert again["choices"] == first["choices"]
    told, label = metrics(four), '{model="tales"}'
    assert told[f"kept_prefixes{label}"] >= 2
    assert told[f"kept_prefix_bytes{label}"] > 0
    assert told[f"kept_prefix_tokens_total{label}"] >= 100
    kept = slots(four)[0]["kept_prefixes"]
    assert kept["entries"] == told[f"kept_prefixes{label}"]
    assert kept["bytes"] == told[f"kept_prefix_bytes{label}"] < kept["limit_bytes"]
    assert kept["tokens_reused"] == told[f"kept_prefix_tokens_total{label}"]


@pytest.mark.full
def test_the_official_client_with_eight_threads(four, tales):
    """One client, which the threads share; each answer is that of a separate request."""
    with openai.OpenAI(base_url=f"{four.url}/v1", api_key="none", max_retries=0) as client:

        def ask_it(seed):
            made = client.completions.create(
                model="tales", prompt=PROMPTS[seed % 2], max_tokens=24, seed=seed
            )
            return made.choices[0].text

        with ThreadPoolExecutor(8) as threads:
            texts = list(threads.map(ask_it, range(24)))
    assert texts == [
        alone(tales, PROMPTS[seed % 2], max_tokens=24, seed=seed).text for seed in range(24)
    ]
