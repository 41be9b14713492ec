"""Lines are read as bodies over HTTP, with the defaults of the options; errors of invalid lines."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.batch import LineDefaults
from gguf_spec.batch import requests as answers
from gguf_spec.batch.requests import LINE_BYTES, read_head, read_lines, read_request, seed_of_line
from gguf_spec.errors import BatchFileError, InvalidGrammarError, InvalidOptionError
from gguf_spec.grammar import automaton as gbnf
from gguf_spec.options import Speculation
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.fields import BUDGETS
from gguf_spec.protocols.fit import sampling_of
from gguf_spec.server import serve_in_thread
from tests.batch.conftest import DEFAULTS, TABLES, answer, of_openai
from tests.server.conftest import ask
from tests.server.test_tool_choice import CHATML
from tests.support import tiny
from tests.support.fakes import Asked, FakeModel, fake_llm

HI = [{"role": "user", "content": "Hi"}]
CHAT = "/v1/chat/completions"


def lines_of(data):
    return list(read_lines(io.BytesIO(data)))


def request_of(data, defaults=DEFAULTS, number=1):
    import json

    line = replace(lines_of(json.dumps(data).encode())[0], number=number)
    head, read = read_head(line)
    return read_request(head, read, number, defaults, Speculation())


# ---- lines


def test_blank_lines_have_no_result_but_a_number():
    lines = lines_of(b'\xef\xbb\xbf{"a":1}\r\n\n  \n {"b":2} ')
    assert [(one.number, one.data) for one in lines] == [(1, b'{"a":1}'), (4, b'{"b":2}')]
    assert lines_of(b"") == lines_of(b"\n\n") == []


def test_the_digest_is_of_the_number_and_the_bytes():
    same = {lines_of(data)[0].digest for data in (b"a", b"a\n", b" a \r\nb")}
    assert len(same) == 1
    other = {lines_of(data)[-1].digest for data in (b"a", b"b", b"\na")}
    assert len(other) == 3


def test_a_line_that_is_too_long_is_not_kept():
    long = b"x" * (LINE_BYTES + 1)
    lines = lines_of(b"a\n" + long + b"y\nb\n" + long)
    assert [(one.number, one.data) for one in lines] == [
        (1, b"a"), (2, None), (3, b"b"), (4, None),
    ]  # fmt: skip
    other = lines_of(b"a\n" + long + b"z\n")[1]
    assert other.digest != lines[1].digest
    assert len(lines_of(b"x" * LINE_BYTES)[0].data) == LINE_BYTES


def test_an_endless_line_is_an_error(monkeypatch):
    monkeypatch.setattr(answers, "_ENDLESS", 2 * LINE_BYTES)
    with Path("/dev/zero").open("rb") as file, pytest.raises(BatchFileError, match="line 1") as e:
        [*read_lines(file)]
    assert str(e.value.path) == "/dev/zero"


# ---- defaults


def test_a_plain_line_has_all_defaults():
    asked = request_of({"prompt": "ab", "temperature": 0})
    assert asked.sampling == replace(DEFAULTS.sampling, temperature=0, seed=seed_of_line(1, 1))
    assert asked.prompts == ("ab",)


def test_a_line_of_openai_has_those_that_were_given():
    """For all others a body means the same as over HTTP."""
    defaults = LineDefaults(
        Sampling(temperature=0.3, top_k=7, max_tokens=99, stop="x"), frozenset({"top_k", "stop"})
    )
    http = replace(Sampling(), max_tokens=16)
    asked = request_of(of_openai("a", prompt="ab"), defaults)
    assert asked.sampling == replace(http, top_k=7, stop="x")
    asked = request_of(of_openai("a", prompt="ab", top_k=3, stop=None), defaults)
    assert asked.sampling == replace(http, top_k=3, stop="x")
    asked = request_of(of_openai("a", CHAT, messages=HI, max_completion_tokens=5), defaults)
    assert asked.sampling.max_tokens == 5
    everything = replace(defaults, given=frozenset({"max_tokens"}))
    asked = request_of(of_openai("a", CHAT, messages=HI, max_completion_tokens=5), everything)
    assert asked.sampling.max_tokens == 5


def test_a_grammar_of_the_line_replaces_that_of_the_options():
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    defaults = LineDefaults(Sampling(grammar='root ::= "a"'), frozenset({"grammar"}))
    plain = request_of({"prompt": "a", "grammar": 'root ::= "b"'}, defaults)
    chat = request_of(of_openai("a", CHAT, messages=HI, response_format=schema), defaults)
    assert plain.sampling.grammar == 'root ::= "b"'
    assert (chat.sampling.grammar, chat.sampling.json_schema) == (None, {"type": "integer"})
    shifting = LineDefaults(Sampling(overflow="shift"))
    assert request_of({"prompt": "a"}, shifting).sampling.overflow == "shift"
    grammar = request_of({"prompt": "a", "grammar": 'root ::= "b"'}, shifting)
    assert grammar.sampling.overflow == "stop"


def test_repetition_penalty_counts_all_tokens():
    asked = request_of({"prompt": "a", "repetition_penalty": 1.1})
    assert (asked.sampling.repeat_penalty, asked.sampling.penalty_last_n) == (1.1, -1)


def test_each_line_has_its_own_seed():
    seeds = [request_of({"prompt": "a"}, number=n).sampling.seed for n in range(1, 200)]
    assert len({*seeds}) == len(seeds)
    assert max(seeds) < 2**53
    assert request_of({"prompt": "a", "seed": 5}).sampling.seed == 5
    assert request_of(of_openai("a", prompt="a")).sampling.seed == seeds[0]
    other = LineDefaults(replace(DEFAULTS.sampling, seed=2))
    assert request_of({"prompt": "a"}, other).sampling.seed not in seeds
    assert request_of({"prompt": "a"}, LineDefaults()).sampling.seed is None


def test_prompts_of_chat_models_are_messages():
    chat = replace(DEFAULTS, chat=True, system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    assert request_of({"prompt": "Hi"}, chat).prompts == ([system, *HI],)
    assert request_of({"messages": HI}, chat).prompts == ([system, *HI],)
    own = [{"role": "developer", "content": "x"}, *HI]
    assert request_of({"messages": own}, chat).prompts[0][0]["content"] == "x"
    assert request_of({"prompt": [1, 2]}, chat).prompts == ([1, 2],)
    assert request_of({"prompt": "a", "suffix": "b"}, chat).suffix == "b"
    assert request_of(of_openai("a", CHAT, messages=HI), chat).prompts == (HI,)


class Thinker:
    can_think, template_variables = True, frozenset()


def test_whether_to_think():
    for think in (True, False):
        defaults = replace(DEFAULTS, think=think)
        asked = request_of({"messages": HI}, defaults)
        assert asked.reasoning.options(Thinker)["think"] is think
        own = request_of({"messages": HI, "reasoning_effort": "none"}, defaults)
        assert own.reasoning.options(Thinker)["think"] is False
        for field in ({"enable_thinking": not think}, {"enable_reasoning": not think}):
            own = request_of(of_openai("a", CHAT, messages=HI, **field), defaults)
            assert own.reasoning.options(Thinker)["think"] is not think, field
        own = request_of(of_openai("a", CHAT, messages=HI, thinking_budget=7), defaults)
        assert (own.reasoning.think, own.reasoning.budget) == (think, 7)
    assert request_of({"messages": HI}).reasoning.options(Thinker)["think"] is None


@pytest.mark.parametrize("name", [*BUDGETS, "thinking", "reasoning"])
def test_a_body_without_a_limit_of_thinking_has_none(name):
    """Neither that of the batch nor that of the model."""

    class Limited(Thinker):
        sampling, sampling_sources = Sampling(think_budget=50), {"think_budget": "option"}

    class Unlimited(Thinker):
        sampling, sampling_sources = Sampling(), {}

    limited = LineDefaults(Sampling(think_budget=100), frozenset({"think_budget"}))
    nested = {"thinking": {"type": "enabled", "budget_tokens": -1}, "reasoning": {"max_tokens": -1}}
    own = {name: nested.get(name, -1)}
    for body, expected in (({}, (50, 100)), (own, (None, None))):
        line = of_openai("a", CHAT, messages=HI, **body)
        found = (
            sampling_of(request_of(line), Limited),
            sampling_of(request_of(line, limited), Unlimited),
        )
        assert tuple(one.think_budget for one in found) == expected, body


# ---- faults

FAULTS = [
    ({"prompt": "a", "messages": HI}, "prompt"),
    ({"text": "a"}, "prompt"),
    ({"prompt": "a", "top_p": 5}, "top_p"),
    ({"prompt": "a", "stream": True}, "stream"),
    ({"prompt": ["a", "b"]}, "prompt"),
    ({"prompt": "a", "n": 2}, "n"),
    ({"prompt": "a", "id": []}, "id"),
    ({"prompt": "a", "id": True}, "id"),
    ({"messages": HI, "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"messages": "Hi"}, "messages"),
    ({"prompt": "a", "top_p": 7}, "top_p"),
    (of_openai("", prompt="a"), "custom_id"),
    (of_openai(7, prompt="a"), "custom_id"),
    (of_openai("a", prompt="a") | {"method": "GET"}, "method"),
    (of_openai("a", "/v1/embeddings", input="a"), "url"),
    (of_openai("a", prompt="a") | {"body": []}, "body"),
    (of_openai("a", prompt="a") | {"id": "b"}, "id"),
    (of_openai("a", prompt="a", stream=True), "stream"),
    (of_openai("a", CHAT, messages=HI, stream=True), "stream"),
    (of_openai("a", CHAT, messages=[]), "messages"),
    ({"custom_id": "a"}, "method"),
]


@pytest.mark.parametrize(("data", "field"), FAULTS)
def test_faults_name_the_field(data, field):
    with pytest.raises(ApiError) as caught:
        request_of(data)
    assert caught.value.error["param"] == field
    assert caught.value.status == 400


def test_faults_are_results(llm, tmp_path):
    lines = [
        b"nonsense",
        b'{"custom_id": "c',
        b"[1]",
        *(data for data, _ in FAULTS),
        {"prompt": "ab"},
    ]
    noted = []
    results = answer(llm, tmp_path, lines, on_failed=lambda number, fault: noted.append(number))
    assert noted == list(range(1, len(lines)))
    assert results[-1]["text"]
    for number, result in enumerate(results[:-1], 1):
        assert result["error"]["message"]
        assert result["error"]["code"]
        if "custom_id" in result:
            assert result["response"]["body"]["error"]["message"] == result["error"]["message"]
            assert result["response"]["status_code"] == 400
        else:
            assert result["id"] in (number, True)
    assert ["custom_id" in one for one in results[:3]] == [False, True, False]


def test_errors_of_the_model_are_those_of_their_line(llm, tmp_path):
    lines = [{"prompt": "ab"}, {"prompt": ""}, {"prompt": "a" * 200}, {"prompt": [77]},
             of_openai("x", prompt="a" * 200), {"prompt": "ba"}]  # fmt: skip
    results = answer(llm, tmp_path, lines, max_parallel=3)
    assert [bool(one["error"]) for one in results] == [False, *[True] * 4, False]
    assert results[2]["error"]["code"] == "context_length_exceeded"
    assert results[4]["error"]["code"] == "context_length_exceeded"
    assert results[4]["response"]["status_code"] == 400


def test_an_id_that_cannot_be_written_ends_no_batch(llm, tmp_path):
    """A number without end; and a list whose depth the parser takes, and the writer, called elsewhere, does not."""
    depths = range(sys.getrecursionlimit() - 120, sys.getrecursionlimit())
    ids = [b"1e999", b"[-1e999]", *(b"[" * n + b"]" * n for n in depths)]
    lines = [b'{"prompt": "a", "id": %s}' % one for one in ids]
    lines.append(b'{"custom_id": 1e999, "method": "POST", "url": "/v1/completions", "body": {}}')
    results = answer(llm, tmp_path, [*lines, {"prompt": "ab"}])
    assert all(one["error"] for one in results[:-1])
    assert results[-1]["text"]


def test_an_answer_that_cannot_be_written_is_an_error_of_its_line(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "_plain", lambda *_: {"text": float("nan")})
    results = answer(llm, tmp_path, [{"prompt": "ab"}, {"prompt": "ab"}])
    assert [one["error"]["code"] for one in results] == ["internal_error"] * 2


@pytest.mark.parametrize(
    ("error", "said"),
    [(ZeroDivisionError("a secret"), "ZeroDivisionError"), (InvalidOptionError("n_ctx", 1, "2"), "n_ctx is 1")],
)  # fmt: skip
def test_a_failure_of_the_model_is_that_of_its_line(llm, tmp_path, error, said):
    def fail(prompt):
        if prompt == "cab":
            raise error

    results = answer(
        Asked(llm, fail), tmp_path, [{"prompt": "ab"}, {"prompt": "cab"}, {"prompt": "ab"}]
    )
    assert results[1]["error"]["code"] == "internal_error"
    assert said in results[1]["error"]["message"]
    assert "secret" not in results[1]["error"]["message"]
    assert [bool(one["error"]) for one in results] == [False, True, False]


@pytest.mark.full
def test_wrong_options_are_refused_before_the_first_line(llm, tales, tmp_path):
    with pytest.raises(InvalidGrammarError):
        answer(tales, tmp_path, [{"prompt": "a"}], LineDefaults(Sampling(grammar="root =")))
    with pytest.raises(InvalidOptionError, match="stop_tokens"):
        answer(llm, tmp_path, [{"prompt": "a"}], LineDefaults(Sampling(stop_tokens=[99])))
    with pytest.raises(InvalidOptionError, match="max_parallel"):
        answer(llm, tmp_path, [{"prompt": "a"}], max_parallel=0)
    assert not (tmp_path / "out.jsonl").exists()


# ---- answers


def without_what_differs(body):
    """A response without ids, times and counts of drafts."""
    kept = {
        name: value
        for name, value in body.items()
        if name not in ("id", "created", "usage", "timings")
    }
    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return kept | {name: body["usage"][name] for name in names}


@pytest.mark.full
def test_bodies_mean_the_same_as_over_http(tales, tmp_path):
    bodies = [
        (CHAT, {"messages": HI, "max_tokens": 6, "seed": 3, "n": 2, "logprobs": True, "top_logprobs": 2}),
        ("/v1/completions", {"prompt": ["The fox", "A king"], "seed": 3, "logprobs": 1}),
        ("/v1/completions", {"prompt": "The fox", "seed": 3, "echo": True, "temperature": 0}),
        ("/v1/completions", {"prompt": "The fox", "seed": 3, "top_p": 2}),
    ]  # fmt: skip
    lines = [of_openai(str(i), url, **body) for i, (url, body) in enumerate(bodies)]
    results = answer(tales, tmp_path, lines, LineDefaults())
    with serve_in_thread(tales) as server:
        over_http = [ask(server, "POST", url, {"model": "m"} | body) for url, body in bodies]
    for result, there in zip(results, over_http, strict=True):
        response = result["response"]
        assert response["status_code"] == there.status
        if there.status == 200:
            assert without_what_differs(response["body"]) == without_what_differs(there.json())
        else:
            assert response["body"] == there.json()
    assert {one["response"]["body"].get("created") for one in results} == {1_700_000_000, None}
    assert [one["custom_id"] for one in results] == list("0123")
    assert (
        len({one["id"] for one in results} | {one["response"]["request_id"] for one in results})
        == 8
    )


def test_calls_of_tools_have_no_random_ids(tmp_path):
    template = CHATML.replace("MARK", "<tool_call>")
    metadata = {"tokenizer.chat_template": template, "llama.context_length": 1024}
    tiny.write(tmp_path / "noisy.gguf", tiny.llama(scale=0.5), metadata=metadata)
    parameters = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    body = {"messages": HI, "tools": tools, "tool_choice": "required", "max_tokens": 200, "seed": 1, "n": 2,
            "parallel_tool_calls": False}  # fmt: skip
    results = []
    for name in "ab":
        (tmp_path / name).mkdir()
        with gguf_spec.load(tmp_path / "noisy.gguf", None, threads=1, extra_bufts=False) as llm:
            results += answer(llm, tmp_path / name, [of_openai("x", CHAT, **body)], LineDefaults())
    assert results[0] == results[1]
    assert results[0]["error"] is None, results[0]
    choices = results[0]["response"]["body"]["choices"]
    calls = [call for one in choices for call in one["message"]["tool_calls"]]
    assert [call["function"]["name"] for call in calls] == ["f"] * 2
    assert [json.loads(call["function"]["arguments"]) for call in calls] == [{"a": "x"}] * 2
    assert len({call["id"] for call in calls}) == 2


def test_a_plain_result(llm, tmp_path):
    (one,) = answer(llm, tmp_path, [{"prompt": "ab", "id": "x", "logprobs": 1, "seed": 9}])
    whole = llm.generate("ab", replace(DEFAULTS.sampling, seed=9, logprobs=1))
    assert (one["id"], one["text"], one["seed"], one["error"]) == ("x", whole.text, 9, None)
    assert (one["prompt_tokens"], one["completion_tokens"]) == (2, len(whole.tokens))
    assert [token["logprob"] for token in one["logprobs"]] == [t.logprob for t in whole.logprobs]
    assert one["finish_reason"] == "length"


def test_what_a_schema_demands_and_no_grammar_enforces(tmp_path):
    template = CHATML.replace("MARK", "none")
    metadata = {"tokenizer.chat_template": template, "llama.context_length": 1024}
    tiny.write(tmp_path / "noisy.gguf", tiny.llama(scale=0.5), metadata=metadata)
    schema = {"const": {"a": 1}, "dependentRequired": {"a": ["b"]}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = of_openai("a", CHAT, messages=HI, response_format=form, max_tokens=60)
    with gguf_spec.load(tmp_path / "noisy.gguf", None, threads=1, extra_bufts=False) as llm:
        one, other = answer(llm, tmp_path, [asked, {"prompt": "ab"}], LineDefaults())
    assert one["unenforced"] == ['#: dependentRequired {"a": ["b"]} (no grammar follows it)']
    assert one["unfulfilled"] == ["#/dependentRequired is not fulfilled"]
    assert not {"unenforced", "unfulfilled"} & other.keys()


def test_the_defaults_of_a_model(tmp_path):
    with fake_llm(FakeModel(TABLES[0]), None, Speculation(0)) as llm:
        (one,) = answer(llm, tmp_path, [{"prompt": "ab", "max_tokens": 3}], None)
    assert one["completion_tokens"] == 3


def test_a_schema_that_takes_too_long_is_an_error_of_its_line(llm, tmp_path, monkeypatch):
    monkeypatch.setattr(gbnf, "MOST_WORK", 2_000)
    large = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [*range(900)]}}}
    first, second = answer(llm, tmp_path, [of_openai("a", CHAT, messages=HI, response_format=large), of_openai("b", prompt=[1, 2])])  # fmt: skip
    assert first["response"]["status_code"] == 400
    assert "too large" in first["error"]["message"]
    assert second["error"] is None
