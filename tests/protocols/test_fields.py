"""Fields of other APIs: those without effect, those with another name here, and message fields."""

import json
import math
import random

import pytest

from gguf_spec.options import Sampling, Speculation
from gguf_spec.protocols.bodies import parse, read_arguments
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.fields import BUDGETS, IGNORED_FIELDS, NOTED, OTHER_FIELDS, OTHER_NAMES
from gguf_spec.protocols.messages import read_request
from gguf_spec.protocols.ollama import read_ollama_chat
from gguf_spec.protocols.openai import MESSAGES, read_chat, read_text
from gguf_spec.protocols.responses import read_response
from tests.protocols import field_bodies
from tests.protocols.field_bodies import NoStore

CHAT = {"messages": [{"role": "user", "content": "x"}]}

SMALLEST = {"chat": CHAT, "text": {"prompt": "x"}, "responses": {"input": "x"}, "messages": CHAT}

READ = {
    "chat": read_chat,
    "text": read_text,
    "responses": lambda *given: read_response(*given, NoStore()),
    "messages": read_request,
}

# Fields that change something on these routes.
KNOWN = {"metadata": {"responses"}, "prompt": {"text"}, "cache_control": set(), "echo": {"text"}}

KNOWN |= {key: {"chat", "text"} for key in ("n_probs", "timings_per_token")}

ANY = [True, 0, -1.5, "x", [], ["x"], {}, {"a": 1}]


def read(route, /, **fields):
    return READ[route](SMALLEST[route] | fields, Speculation(), None)


@pytest.fixture
def noted():
    """Names of the fields that the test sent and that are not applied."""
    names = []
    token = NOTED.set(names)
    yield names
    NOTED.reset(token)


def same_request(one, other):
    return (
        one.sampling == other.sampling
        and one.prompts == other.prompts
        and one.reasoning == other.reasoning
    )


@pytest.mark.parametrize("name", OTHER_FIELDS)
def test_each_field_of_the_table(name, noted):
    """Neutral values ask for nothing; others are named, or refused where the table says so."""
    field = OTHER_FIELDS[name]
    routes = set(READ).intersection(field.routes) - KNOWN.get(name, set())
    assert routes
    for route in routes:
        for value in ANY if field.neutral is None else field.neutral:
            assert same_request(read(route, **{name: value}), read(route))
        assert noted == []
        for value in [] if field.neutral is None else ANY:
            if field.is_neutral(value):
                continue
            if field.is_refused:
                with pytest.raises(ApiError) as caught:
                    read(route, **{name: value})
                assert (caught.value.status, caught.value.error["param"]) == (400, name)
                assert caught.value.error["code"] == "unsupported_parameter"
            else:
                assert same_request(read(route, **{name: value}), read(route))
                assert noted == [name]
        noted.clear()


def test_unknown_fields_are_named_once(noted, caplog):
    for _ in range(2):
        for route in READ:
            assert same_request(read(route, temparature=1), read(route))
    assert noted == ["temparature"]
    assert caplog.text.count("temparature") == 1
    read_messages([{"role": "user", "content": "x", "other": {"a": 1}}] * 3)
    assert noted == ["temparature", "messages[].other"]
    noted.clear()
    read("chat", **{"my secret is 5": 1, "empty": [], "off": False})
    assert noted == ["a field with an odd name"] and "secret" not in caplog.text


def history(route, name, n):
    """Return the fields of a conversation in which the last `n` calls are the same."""
    items = [{"role": "user", "content": "x"}]
    for i in range(n + 1):
        given = {"path": "secret" if i else "b"}
        function = {"name": name, "arguments": json.dumps(given)}
        of = {
            "chat": [
                {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{i}", "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": f"c{i}", "content": str(i)},
            ],
            "responses": [
                {"type": "function_call", "call_id": f"c{i}", **function},
                {"type": "function_call_output", "call_id": f"c{i}", "output": str(i)},
            ],
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": f"c{i}", "name": name, "input": given}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{i}", "content": str(i)}]},
            ],
        }  # fmt: skip
        items += of[route]
    return {"input" if route == "responses" else "messages": items}


@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
def test_the_same_call_again_and_again_is_named_in_the_log(route, caplog):
    """Every five turns, without what the client sent; nothing is refused."""
    for n in range(1, 12):
        read(route, **history(route, "look_at_it", n))
    found = [one.getMessage() for one in caplog.records]
    fact = "A conversation ends with the same tool call {} times: an agent may be in a loop."
    assert found == [fact.format(5), fact.format(10)]


def test_names_of_fields_are_bounded(noted, caplog):
    for i in range(2000):
        read("chat", **{f"f{i}": 1})
    assert len(noted) == 20 and len(caplog.records) <= 1000


@pytest.mark.parametrize("route", ["chat", "responses", "messages"])
@pytest.mark.parametrize(
    ("fields", "think", "budget"),
    [
        *(({name: 100}, None, 100) for name in BUDGETS),
        *(({name: -1}, None, -1) for name in BUDGETS),  # no limit, in place of a default
        ({"thinking_budget": 100.0}, None, 100),
        ({"enable_thinking": False}, False, None),
        ({"enable_thinking": True, "thinking_budget": 5}, True, 5),
    ],
)
def test_reasoning_of_other_servers(route, fields, think, budget):
    reasoning = read(route, **fields).reasoning
    assert (reasoning.think, reasoning.budget) == (think, budget)


EFFORT_FIELDS = {
    "chat": lambda effort: {"reasoning_effort": effort},
    "chat, nested": lambda effort: {"reasoning": {"effort": effort}},
    "responses": lambda effort: {"reasoning": {"effort": effort}},
    "messages": lambda effort: {"output_config": {"effort": effort}},
    "chat of Ollama": lambda effort: {"think": effort},
}

MEANT = {
    "max": "xhigh", "MAX": "xhigh", " High ": "high", "ultra": "xhigh", "lowest": "minimal", "off": "none",
    "none": "none", "auto": None, "": None, "turbo": None,
}  # fmt: skip


@pytest.mark.parametrize("route", EFFORT_FIELDS)
@pytest.mark.parametrize("given", MEANT)
def test_efforts_of_other_apis(route, given, noted, caplog, monkeypatch):
    """A known name is taken as the nearest one, with a word in the log; an unknown one is named, without its text."""
    monkeypatch.setattr("gguf_spec.protocols.fields._taken", set())
    monkeypatch.setattr("gguf_spec.protocols.fields._named", set())
    fields, at = EFFORT_FIELDS[route](given), route.partition(",")[0]
    of = {"chat of Ollama": lambda: read_ollama_chat(CHAT | fields, Speculation(), None)}
    for _ in range(2):
        asked = of.get(route, lambda: read(at, **fields))()
    assert asked.reasoning.effort == MEANT[given]
    assert len(noted) == (given == "turbo")
    taken = given in ("max", "MAX", "ultra", "lowest", "off")
    assert len(caplog.records) == (taken or given == "turbo") and "turbo" not in caplog.text
    if taken:
        assert f"is taken as {MEANT[given]}." in caplog.text


@pytest.mark.parametrize(
    ("fields", "param", "ours"),
    [
        ({"thinking_budget": "many"}, "thinking_budget", "think_budget"),
        ({"thinking": "yes"}, "thinking", "think_budget"),
        ({"reasoning": "low"}, "reasoning", "reasoning_effort"),
        ({"reasoning": {"effort": 5}}, "reasoning", "minimal"),
        ({"enable_thinking": "x"}, "enable_thinking", "reasoning_effort"),
    ],
)
def test_what_is_unclear_about_reasoning_is_refused_with_the_name_here(fields, param, ours):
    with pytest.raises(ApiError, match=ours) as caught:
        read("chat", **fields)
    assert caught.value.error["param"] == param


def test_other_spellings_of_values():
    """Whole numbers as 40.0, no seed, the most likely token, biases as pairs."""
    for route in READ:
        given = {"top_k": 40.0, "seed": -1, "top_p": 0, "temperature": -1.0, "max_tokens": 9.0}
        sampling = read(route, **given, logit_bias=[[5, 1.5], [6, False]]).sampling
        assert sampling.top_k == 40 and isinstance(sampling.top_k, int)
        assert (sampling.seed, sampling.max_tokens, sampling.temperature) == (None, 9, 0)
        assert 0 < sampling.top_p < 1e-6 and sampling.logit_bias == {5: 1.5, 6: -math.inf}
    assert read("chat", seed=-5).sampling.seed == 2**64 - 5
    assert read("chat", n=2.0, speculation={"k": 3.0}).speculation.k == 3
    assert read("chat", max_tokens=5, max_completion_tokens=3).sampling.max_tokens == 3
    assert read("chat", max_completion_tokens=3, max_tokens=5).sampling.max_tokens == 3
    more = read("chat", dry_sequence_breakers=["x"], stop_token_ids=[7]).sampling
    assert (more.dry_sequence_breakers, more.stop_tokens) == (("x",), (7,))
    schema = {"type": "object"}
    for form in (
        {"json_schema": schema},
        {"guided_json": schema},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
        {"response_format": {"type": "json_schema", "schema": schema}},
    ):
        assert read("chat", **form).sampling.json_schema == schema
    assert read("text", logprobs=False).sampling.logprobs is None
    assert read("text", logprobs=True).sampling.logprobs == 0


def test_reasoning_in_history():
    asked = [
        {
            "role": "assistant",
            "content": "x",
            "reasoning": "why",
            "reasoning_details": [{"text": "why"}],
        }
    ]
    assert read_messages(asked) == [
        {"role": "assistant", "content": "x", "reasoning_content": "why"}
    ]


def test_half_a_character_is_the_replacement_character():
    """As JavaScript writes it, in each text and each name; the halves of one character are joined."""
    for text in (r'{"a\ud83e": ["\ud83e\udd14 \udd14\ud83e", "\ud800Infinity"]}',):
        assert parse(text.encode()) == {"a\ufffd": ["\U0001f914 \ufffd\ufffd", "\ufffdInfinity"]}
    options = Sampling(stop=("\ud83e",), dry_sequence_breakers=("a\udfff",))
    assert (options.stop, options.dry_sequence_breakers) == (("\ufffd",), ("a\ufffd",))


def read_messages(value):
    return MESSAGES.read(value, "messages")


def test_true_is_not_1(noted):
    read("text", mirostat=False)
    assert noted == ["mirostat"]


@pytest.mark.parametrize(("name", "here"), OTHER_NAMES.items())
def test_other_names(name, here):
    value = {"max_tokens": 3, "ignore_eos": True, "stop_tokens": [3], "grammar": "a"}.get(here, 1)
    request = read("chat", **{name: value})
    assert getattr(request.sampling, here) == (tuple(value) if value == [3] else value)
    assert read("chat", **{name: value, here: value}).sampling == request.sampling
    if name != "max_completion_tokens":
        with pytest.raises(ApiError) as caught:
            read("chat", **{name: value, here: 2})
        assert caught.value.error["param"] == here
    with pytest.raises(ApiError) as caught:
        read("chat", **{name: -7})
    assert caught.value.error["param"] == name


def test_repetition_penalty_counts_all_tokens():
    assert read("chat", repetition_penalty=1.2).sampling.penalty_last_n == -1
    assert read("chat", repetition_penalty=1.2, repeat_last_n=5).sampling.penalty_last_n == 5
    assert read("chat", repeat_penalty=1.2).sampling.penalty_last_n == 64


def test_no_limit_is_that_of_the_server():
    for name in ("max_tokens", "n_predict"):
        for most in (8, None):
            given = {"prompt": "x", name: -1}
            assert read_text(given, Speculation(), most).sampling.max_tokens == most


def test_message_fields():
    message = {"role": "assistant", "content": "x"}
    plain = read_messages([message])
    for name in IGNORED_FIELDS:
        assert read_messages([message | {name: "x"}]) == plain
    for name in ("refusal", "audio", "function_call", "images", "tool_calls"):
        for empty in (None, []):
            assert read_messages([message | {name: empty}]) == plain
    parts = [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]
    assert read_messages([message | {"content": parts}]) == plain
    assert read_messages([message | {"name": "bob"}]) == [plain[0] | {"name": "bob"}]
    for content in (None, []):
        assert read_messages([message | {"content": content}])[0]["content"] == ""
    call = {"id": "1", "function": {"name": "f", "arguments": ""}}
    [read] = read_messages([{"role": "assistant", "tool_calls": [call]}])
    assert read["tool_calls"][0]["function"]["arguments"] == {}


def test_biases_of_tokens_and_of_texts():
    """False forbids and 0 does not; only digits of ASCII and other decimal ones are ids."""
    given = [["5", 0], ["6", False], ["7", 0.0], ["\u00b2", 1], ["12345678901", 1]]
    for biases in (given, dict(given)):
        found = read_text({"prompt": "a", "logit_bias": biases}, Speculation(), None)
        assert dict(found.sampling.logit_bias) == {5: 0, 6: -math.inf, 7: 0}
        assert dict(found.biases) == {"\u00b2": 1, "12345678901": 1}


def test_limits_of_stop_strings():
    for stop, fits in (
        ("x" * 256, True),
        ("x" * 257, False),
        (["x"] * 16, True),
        (["x"] * 17, False),
    ):
        if fits:
            assert read("text", stop=stop).sampling.stop
            continue
        with pytest.raises(ApiError):
            read("text", stop=stop)


def test_arguments_of_earlier_calls_may_be_deep_and_reasoning_may_come_twice():
    deep = "[" * 200_000
    assert read_arguments(deep, "x") == deep
    answer = {"role": "assistant", "content": "a", "reasoning": "x", "reasoning_content": "y"}
    assert read_messages([answer])[0]["reasoning_content"] == "y"


def test_tools_have_different_names():
    one, other = ({"type": "function", "function": {"name": name}} for name in ("f", "g"))
    assert read("chat", tools=[one, other]).tools.names == ["f", "g"]
    with pytest.raises(ApiError, match="different names"):
        read("chat", tools=[one, other, one])


def test_tools_of_a_server_are_left_out_beside_others_only(noted):
    one, searched = {"type": "function", "function": {"name": "f"}}, {"type": "web_search"}
    assert read("chat", tools=[searched, one]).tools.names == ["f"]
    assert noted == ["tools[].web_search"]
    with pytest.raises(ApiError, match="other tools are not supported"):
        read("chat", tools=[searched])


def test_infinite_numbers_in_a_line_of_a_batch():
    """A bias may be infinite there, too, and the error names the field of the line."""
    assert parse(b'{"body": {"logit_bias": {"5": -1e999}}}')["body"]["logit_bias"]["5"] == -math.inf
    with pytest.raises(ApiError) as caught:
        parse(b'{"body": {"stop": [1e999]}}')
    assert caught.value.error["param"] == "stop"


def check_bodies(n):
    for seed in range(n):
        rng = random.Random(seed)
        for path in field_bodies.READ:
            body = field_bodies.body(rng, path)
            try:
                field_bodies.read(path, parse(json.dumps(body).encode()))
            except ApiError as error:
                raise AssertionError(f"{path} {body}: {error}") from error


def test_random_valid_bodies_are_taken():
    check_bodies(40)


@pytest.mark.full
def test_ten_thousand_random_valid_bodies_are_taken():
    check_bodies(1500)


def test_a_custom_call_and_unreadable_parts_of_earlier_messages():
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    parts = [{"type": "text", "text": "a"}, {"type": "file", "file": {"file_id": "x"}}]
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": parts},
    ]
    _, answer, result = field_bodies.read("/v1/chat/completions", {"messages": messages}).prompts[0]
    function = {"name": "patch", "arguments": {"input": "*** Begin"}}
    assert answer["tool_calls"][0]["function"] == function
    assert result["content"] == "a[a part of the type file, not read]"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, (None, True, 9)),
        ({"thinking": {"type": "disabled"}}, (None, False, None)),
        ({"thinking": {"type": "adaptive"}}, (None, None, None)),
        ({"thinking": True}, (None, True, None)),
        ({"reasoning": {"effort": "low", "exclude": False}}, ("low", None, None)),
        ({"reasoning": {"max_tokens": 7}}, (None, None, 7)),
        ({"reasoning": {"enabled": False}}, (None, False, None)),
        ({"reasoning": {}}, (None, None, None)),
    ],
)
def test_reasoning_objects_in_a_chat(fields, expected):
    reasoning = read("chat", **fields).reasoning
    assert (reasoning.effort, reasoning.think, reasoning.budget) == expected


@pytest.mark.parametrize("name", ["\r.", "\n.a", "a\r\nx: y.", ".", "\x00.b", "ä.", "a.\r"])
def test_odd_names_do_not_get_into_the_header(name, noted):
    read("chat", **{name: 1})
    assert all(one.isascii() and one.isprintable() for one in noted), noted
