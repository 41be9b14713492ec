"""Several choices, several prompts, and filling in the middle."""

import asyncio
from types import SimpleNamespace

import openai
import pytest

import gguf_spec
from gguf_spec.options import Speculation
from gguf_spec.protocols.events import ChoiceEnded
from gguf_spec.protocols.fit import Choice
from gguf_spec.protocols.openai import read_text
from gguf_spec.results import Completion, Stats
from gguf_spec.server import jobs, serve_in_thread
from gguf_spec.server.jobs import Job
from tests.server.conftest import ask_chat, ask_text, infill_model
from tests.server.test_api import FOX, START, alone


@pytest.mark.full
def test_choices_are_those_of_single_requests(client, tales):
    whole = client.chat.completions.create(model="", messages=FOX, max_tokens=20, seed=7, n=3)
    wanted = [alone(tales, FOX, max_tokens=20, seed=seed) for seed in (7, 8, 9)]
    assert [one.index for one in whole.choices] == [0, 1, 2]
    assert [one.message.content for one in whole.choices] == [one.text for one in wanted]
    assert [one.seed for one in whole.choices] == [7, 8, 9]
    assert len({one.text for one in wanted}) == 3
    usage = whole.usage
    assert usage.prompt_tokens == wanted[0].stats.n_prompt  # once
    assert usage.completion_tokens == sum(len(one.tokens) for one in wanted)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    stream = client.chat.completions.create(
        model="", messages=FOX, max_tokens=20, seed=7, n=3, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    texts, roles, ends, last = {}, {}, {}, None
    with stream:
        for piece in stream:
            last = piece.usage or last
            for choice in piece.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                roles.setdefault(choice.index, choice.delta.role)
                ends[choice.index] = choice.finish_reason
    assert [texts[i] for i in range(3)] == [one.text for one in wanted]
    assert set(roles.values()) == {"assistant"}
    assert [ends[i] for i in range(3)] == [one.finish_reason for one in wanted]
    assert last.completion_tokens == usage.completion_tokens


def test_without_a_seed_all_choices_name_theirs(client, tales):
    whole = client.completions.create(model="", prompt=START, max_tokens=10, n=2)
    first, second = (one.seed for one in whole.choices)
    assert second == first + 1
    for one in whole.choices:
        assert one.text == alone(tales, START, max_tokens=10, seed=one.seed).text


def test_several_prompts(client, tales):
    prompts = [START, tales.tokenize("The king"), "A mouse"]
    whole = client.completions.create(
        model="", prompt=prompts, max_tokens=10, seed=7, n=2, logprobs=0
    )
    wanted = [alone(tales, p, max_tokens=10, seed=seed) for p in prompts for seed in (7, 8)]
    assert [one.index for one in whole.choices] == list(range(6))
    assert [one.text for one in whole.choices] == [one.text for one in wanted]
    for one in whole.choices:
        assert "".join(one.logprobs.tokens).startswith(one.text)
        assert one.logprobs.text_offset[0] == 0
    assert whole.usage.prompt_tokens == sum(one.stats.n_prompt for one in wanted[::2])
    echoed = client.completions.create(model="", prompt=["A b", "C"], max_tokens=1, echo=True)
    assert [one.text[:1] for one in echoed.choices] == ["A", "C"]


def test_an_error_of_a_later_prompt(server):
    reply = ask_text(server, prompt=["abc", "fox " * 5000])
    assert (reply.status, reply.code) == (400, "context_length_exceeded")
    reply = ask_text(server, prompt=["abc", "fox " * 5000], stream=True)
    assert b'"code":"context_length_exceeded"' in reply.body
    assert b"[DONE]" not in reply.body


def test_best_of_has_no_effect(server):
    assert "x-not-applied" not in ask_text(server, n=2, best_of=2).headers
    assert ask_text(server, n=2, best_of=3).headers["x-not-applied"] == "best_of"


def test_no_suffix(server):
    assert ask_text(server, suffix="").status == 200
    reply = ask_text(server, suffix="the end")
    assert (reply.status, reply.code, reply.param) == (400, "no_infill", "suffix")
    assert "lacks the tokens" in reply.json()["error"]["message"]


def test_infill(tmp_path):
    """The prompt is prefix, suffix and middle, each after its token; texts cannot spell these tokens."""
    path = infill_model(tmp_path / "code.gguf", ("pre", "suf", "mid"))
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        pre, suf, mid = llm.vocabulary.infill_marks
        a, z = (
            llm.vocabulary.tokenize(x, special=False, start=False) for x in ("a<|fim_middle|>", "z")
        )
        assert mid not in a
        ids = llm.tokenize_infill("a<|fim_middle|>", "z")
        assert ids == [pre, *a, suf, *z, mid]
        fields = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
        filled = ask_text(server, prompt="a<|fim_middle|>", suffix="z", **fields).json()
        same = ask_text(server, prompt=ids, **fields).json()
        assert filled["choices"] == same["choices"]
        assert filled["usage"]["prompt_tokens"] == len(ids)
        assert (
            filled["choices"]
            != ask_text(server, prompt="a<|fim_middle|>", **fields).json()["choices"]
        )


def test_the_vocabulary_without_infill(tales):
    with pytest.raises(gguf_spec.errors.NoInfillError, match="lacks the tokens"):
        tales.tokenize_infill("a", "b")


@pytest.mark.parametrize("any_model", [True, False])
def test_any_model(tales, any_model):
    with serve_in_thread(tales, any_model=any_model) as server:
        for name in ("tales", "TALES", "", tales.path.name, tales.path.stem):
            reply = ask_chat(server, model=name)
            assert (reply.status, reply.json()["model"]) == (200, "tales")
        reply = ask_chat(server, model="gpt-4o")
        if any_model:
            assert reply.json()["model"] == "tales"
        else:
            assert (reply.status, reply.code, reply.param) == (404, "model_not_found", "model")
            with (
                openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
                pytest.raises(openai.NotFoundError),
            ):
                client.chat.completions.create(model="gpt-4o", messages=FOX)


def run_job(use):
    """Return what a function returns for a job, inside an event loop, and the events that it sent."""

    async def run():
        job = Job(None, read_text({"prompt": "a", "n": 3, "seed": 1}, Speculation(), None))
        found = use(job)
        await asyncio.sleep(0)
        return found, [job.events.get_nowait() for _ in range(job.events.qsize())]

    return asyncio.run(run())


def test_choices_go_on_with_the_model_that_is_loaded(monkeypatch):
    def choices(request, llm, *_):
        return (Choice(i, 1, request.sampling, llm) for i in range(3))

    monkeypatch.setattr(jobs, "requests_of", choices)
    first, again = SimpleNamespace(n_ctx=64), SimpleNamespace(n_ctx=65)
    llms = [first, again, again, again]
    found, _ = run_job(lambda job: [job.next_choice(one) for one in llms])
    assert [one and (one.index, one.open) for one in found] == [(0, first), (1, again), (2, again), None]  # fmt: skip


def test_a_choice_that_is_cut_at_the_time_limit_keeps_its_tokens():
    def use(job):
        job.cancel("timeout")
        for i in range(2):
            result = Completion("a" * i, (1,) * i, "cancelled", 1, Stats(n_generated=i))
            job.choice_ended(ChoiceEnded(i, result, job.why))

    _, events = run_job(use)
    assert [(one.index, one.result.text) for one in events] == [(1, "a")]


def test_the_first_reason_of_a_cancelled_request_counts():
    def use(job):
        job.cancel("timeout")
        job.cancel("client_closed")
        return job.why

    assert run_job(use)[0] == "timeout"


@pytest.mark.parametrize(
    "end", [lambda job: job.fail(ValueError()), lambda job: job.cancel("timeout")]
)
def test_a_choice_that_begins_after_the_end_is_cancelled(end):
    cancelled = []

    def use(job):
        with job.reading(SimpleNamespace(cancel=lambda: cancelled.append("before"))):
            end(job)
        with job.reading(SimpleNamespace(cancel=lambda: cancelled.append("behind"))):
            pass

    run_job(use)
    assert cancelled == ["before", "behind"]
