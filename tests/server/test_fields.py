"""Fields of other APIs: those without effect, those with another name here, and message fields."""

import pytest

from gguf_spec.options import Sampling, Speculation
from gguf_spec.server.errors import ApiError
from gguf_spec.server.messages_api import read_request
from gguf_spec.server.requests import (
    IGNORED_FIELDS,
    MESSAGES,
    OTHER_FIELDS,
    OTHER_NAMES,
    parse,
    read_chat,
    read_text,
)
from gguf_spec.server.responses_api import ResponseStore, read_response
from tests.server.conftest import ask, ask_chat

CHAT = {"messages": [{"role": "user", "content": "x"}]}
SMALLEST = {"chat": CHAT, "text": {"prompt": "x"}, "responses": {"input": "x"}, "messages": CHAT}
READ = {
    "chat": read_chat,
    "text": read_text,
    "responses": lambda *given: read_response(*given, ResponseStore()),
    "messages": read_request,
}
# Fields that change something on these routes.
KNOWN = {"metadata": {"responses"}, "store": {"responses"}, "prompt": {"text"}}
ANY = [True, 0, -1.5, "x", [], ["x"], {}, {"a": 1}]


def read(route, **fields):
    return READ[route](SMALLEST[route] | fields, Speculation(), None)


@pytest.mark.parametrize("name", OTHER_FIELDS)
def test_fields_without_effect(name):
    field = OTHER_FIELDS[name]
    for route in set(READ).intersection(field.routes):
        for value in ANY if field.accepted is None else field.accepted:
            assert read(route, **{name: value}) == read(route)
        for value in [] if field.accepted is None else ANY:
            if field.accepts(value):
                continue
            with pytest.raises(ApiError) as caught:
                read(route, **{name: value})
            assert (caught.value.status, caught.value.error["param"]) == (400, name)
            assert caught.value.error["code"] == "unsupported_parameter"
    for route in set(READ) - set(field.routes) - KNOWN.get(name, set()):
        with pytest.raises(ApiError, match="Unknown field"):
            read(route, **{name: "x"})


def test_half_a_character_is_the_replacement_character():
    """As JavaScript writes it, in each text and each name; the halves of one character are joined."""
    for text in (r'{"a\ud83e": ["\ud83e\udd14 \udd14\ud83e", "\ud800Infinity"]}',):
        assert parse(text.encode()) == {"a\ufffd": ["\U0001f914 \ufffd\ufffd", "\ufffdInfinity"]}
    options = Sampling(stop=("\ud83e",), dry_sequence_breakers=("a\udfff",))
    assert (options.stop, options.dry_sequence_breakers) == (("\ufffd",), ("a\ufffd",))


def test_half_a_character_in_python(tales):
    """In texts, messages, tools, prefill, and the prompt that is repeated."""
    half, whole = "a\ud83e", "a\ufffd"

    def given(text):
        call = {"id": text, "function": {"name": text, "arguments": {text: text}}}
        chat = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [call]},
        ]
        sampling = Sampling(max_tokens=3, temperature=0)
        return [
            tales.tokenize(text),
            tales.tokenize([*chat, {"role": "tool", "content": text, "name": text}]),
            tales.generate(text, sampling, prefill=text, echo=True).text,
            [one.logprobs for one in tales.choose(text, [text, "x"])],
            tales.embed(text).tolist(),
        ]

    assert given(half) == given(whole)


def read_messages(value):
    return MESSAGES.read(value, "messages")


def test_true_is_not_1():
    with pytest.raises(ApiError):
        read("text", mirostat=False)
    with pytest.raises(ApiError):
        read("text", use_beam_search=0)


@pytest.mark.parametrize(("name", "here"), OTHER_NAMES.items())
def test_other_names(name, here):
    value = 3 if here == "max_tokens" else 1
    request = read("chat", **{name: value})
    assert getattr(request.sampling, here) == value
    assert read("chat", **{name: value, here: value}).sampling == request.sampling
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


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/api/chat", "num_predict"),
        ("/api/generate", "num_predict"),
    ],
)
def test_no_token_where_none_is_wanted(server, path, field):
    body = {"messages": CHAT["messages"], field: 0}
    if path.endswith(("responses", "/completions", "generate")) and "chat" not in path:
        body = {"input" if "responses" in path else "prompt": "x", field: 0}
    if path.startswith("/api"):
        body = {"options": {field: body.pop(field)}, "stream": False, **body}
    answer = ask(server, "POST", path, body).json()
    usage = answer.get("usage", answer)
    names = ("completion_tokens", "output_tokens", "eval_count")
    assert [usage[name] for name in names if name in usage] == [0]
    first = answer.get("choices", [answer])[0]
    why = [first.get(name) for name in ("finish_reason", "stop_reason", "done_reason")]
    assert [one for one in why if one] in (["length"], ["max_tokens"], [])
    assert (
        answer.get("incomplete_details", {"reason": "max_output_tokens"})["reason"]
        == "max_output_tokens"
    )
    if "stream" not in body:
        assert ask(server, "POST", path, body | {"stream": True}).status == 200


def test_no_token_in_python(tales):
    for sampling in (Sampling(max_tokens=0), Sampling(max_tokens=0, overflow="shift", logprobs=2)):
        result = tales.generate("Once", sampling, echo=True)
        assert (result.text, result.tokens, result.finish_reason) == ("Once", (), "length")
        assert result.stats.n_prompt == len(tales.tokenize("Once"))


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


def test_the_text_is_the_same(server):
    """All fields without effect at once: the text of a real answer is the same."""
    ignored = {
        name: (one.accepted or ("x",))[0]
        for name, one in OTHER_FIELDS.items()
        if one.accepted != () and "chat" in one.routes
    }
    wanted = ask_chat(server, seed=5, max_tokens=12).json()["choices"]
    assert ask_chat(server, seed=5, max_tokens=12, **ignored).json()["choices"] == wanted
