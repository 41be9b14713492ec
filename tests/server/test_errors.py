"""Errors: class, status, code, and the name of the field."""

from dataclasses import replace

import openai
import pytest

import gguf_spec
from gguf_spec.errors import DecodeError
from gguf_spec.protocols.errors import ApiError, refusal_of
from gguf_spec.protocols.openai import read_chat, read_text
from gguf_spec.server import ollama as about
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, ask_chat, ask_text, until
from tests.support import tiny
from tests.support.talkers import answering

FOX = [{"role": "user", "content": "Tell me of a fox."}]


def test_classes_of_the_official_client(client):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tales", messages=FOX, temperature=-1000)
    assert (caught.value.param, caught.value.code, caught.value.type) == (
        "temperature",
        "invalid_value",
        "invalid_request_error",
    )
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="tales", messages=[{"role": "user", "content": "a fox " * 5000}]
        )
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
    assert "maximum context length is" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        client.images.generate(model="tales", prompt="x")


CHAT = [
    ({"n": 0}, "n"), ({"n": True}, "n"), ({"n": 129}, "n"), ({"functions": [{}]}, "functions"), ({"moderation": {}}, "moderation"),
    ({"reasoning_effort": 3}, "reasoning_effort"), ({"parallel_tool_calls": 0}, "parallel_tool_calls"),
    ({"echo": True}, "echo"),
    ({"temperature": "hot"}, "temperature"), ({"temperature": 10**400}, None), ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**64}, "seed"), ({"max_tokens": -2}, "max_tokens"),
    ({"max_completion_tokens": -2, "max_tokens": None}, "max_completion_tokens"), ({"repetition_penalty": 0, "repeat_penalty": 1}, "repeat_penalty"), ({"stop": ["a"] * 17}, "stop"),
    ({"stop": {"a": 1}}, "stop"), ({"stop": "a" * 257}, "stop"), ({"logit_bias": {"a": "x"}}, "logit_bias"), ({"logit_bias": {"1": "x"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"), ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"), ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"), ({"stream": "yes"}, "stream"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"), ({"model": 5}, "model"),
    ({"speculation": "on"}, "speculation"), ({"speculation": {"k": 65}}, "speculation.k"), ({"speculation": {"depth": 1}}, "speculation.depth"),
    ({"speculation": {"accept": []}}, "speculation.accept"), ({"speculation": {"strict": True, "accept": "block"}}, "speculation.strict"),
    ({"response_format": {"type": "xml"}}, "response_format"), ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_object"}, "grammar": "root ::= [a-z]"}, "grammar"),
    ({"tool_choice": "required"}, "tool_choice"), ({"tools": {}}, "tools"), ({"tools": [{"type": "web"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]}, "tools[0].function.strict"),
    ({"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": {"type": "function", "function": {"name": "b"}}}, "tool_choice"),
    ({"tools": [{"type": "function", "function": {"name": "a"}}], "tool_choice": "required", "grammar": "root ::= [a]"}, "grammar"),
    ({"messages": []}, "messages"), ({"messages": None}, "messages"), ({"messages": "hi"}, "messages"), ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": [{"role": "fox", "content": "x"}]}, "messages[0].role"), ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"), ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0].image_url.url"),
    ({"messages": [{"role": "user", "content": "x", "name": 5}]}, "messages[0].name"),
    ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, "messages[0].tool_calls"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
]  # fmt: skip
TEXT = [
    ({"prompt": None}, "prompt"), ({"prompt": ["a", 1.5]}, "prompt[1]"), ({"prompt": ["a"] * 129}, "prompt"), ({"prompt": ["a", "b"], "n": 65}, "n"),
    ({"prompt": [1, "a", []]}, "prompt[1]"), ({"prompt": {"a": 1}}, "prompt.prompt_string"),
    ({"suffix": "x", "prompt": [1]}, "suffix"), ({"suffix": 5}, "suffix"), ({"suffix": "x", "echo": True}, "suffix"), ({"logprobs": 21}, "logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"), ({"prompt_logprobs": 1, "suffix": "x"}, "suffix"),
    ({"max_tokens": -2}, "max_tokens"),
]  # fmt: skip


# Fields that only the model can refuse.
CHAT_FOR_THE_MODEL = [
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "what"}},
            }
        },
        "response_format",
    ),
    ({"grammar": "root ::= ("}, "grammar"),
]
TEXT_FOR_THE_MODEL = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [10**9]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"suffix": "x"}, "suffix"),
    ({"prompt": "fox " * 5000}, "prompt"),
]


def refused(read, fields):
    """Return the error of a reader of bodies."""
    with pytest.raises(ApiError) as caught:
        read(fields, gguf_spec.Speculation(), None)
    assert caught.value.error["code"]
    return caught.value.status, caught.value.error["param"]


@pytest.mark.parametrize(("fields", "param"), CHAT)
def test_fields_of_a_chat(fields, param):
    body = {"messages": [{"role": "user", "content": "Hello."}], "max_tokens": 4}
    assert refused(read_chat, body | fields) == (400, param)


@pytest.mark.parametrize(("fields", "param"), TEXT)
def test_fields_of_a_text(fields, param):
    assert refused(read_text, {"prompt": "abc", "max_tokens": 4} | fields) == (400, param)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema must contain a schema."),
        ({"tools": [{"type": "function"}]}, "tools[0].function is required."), ({"tools": [{}]}, "tools[0].function is required."),
        ({"max_tokens": -5}, "max_tokens is -5 but must be a whole number, 0 or more, or -1 for as many as the server allows. Omit max_tokens to use its default."),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a string, or an array of parts that is not empty."),
    ],
)  # fmt: skip
def test_messages_say_what_is_allowed(fields, message):
    with pytest.raises(ApiError) as caught:
        read_chat({"messages": FOX} | fields, gguf_spec.Speculation(), None)
    assert caught.value.error["message"] == message


def test_messages_about_texts_and_ids_have_no_hint_of_a_default(server):
    reply = ask_text(server, prompt=[99999999])
    assert reply.json()["error"]["message"].endswith("4095. Take the ids from this model.")
    for text, message in (
        ("", "the text 0 is empty. Leave it out."),
        ([9999], "Take the ids from"),
    ):
        reply = ask(server, "POST", "/v1/embeddings", {"input": [text]})
        assert reply.param == "input"
        assert message in reply.json()["error"]["message"]


@pytest.mark.parametrize(("fields", "param"), [CHAT[0], *CHAT_FOR_THE_MODEL])
def test_the_server_refuses_fields_of_a_chat(server, fields, param):
    reply = ask_chat(server, **fields)
    assert (reply.status, reply.param) == (400, param)
    error = reply.json()["error"]
    assert (error["type"], set(error)) == (
        "invalid_request_error",
        {"message", "type", "param", "code"},
    )
    assert error["code"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param"), [TEXT[0], *TEXT_FOR_THE_MODEL])
def test_the_server_refuses_fields_of_a_text(server, fields, param, stream):
    reply = ask_text(server, **fields, stream=stream)
    assert (reply.status, reply.param) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1},
        {"store": False},
        {"parallel_tool_calls": True},
        {"service_tier": "auto"},
        {"user": None},
        {"response_format": {"type": "text"}},
        {"tools": [], "tool_choice": "auto"},
        {"stop": ["", "zzz"]},
        {"stream_options": {"include_usage": True, "include_obfuscation": False}},
        {"logprobs": False, "top_logprobs": 0},
    ],
)
def test_fields_without_effect_are_accepted(server, fields):
    assert ask_chat(server, **fields).status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'{"prompt": "\xff"}',
        b'{"temperature": NaN}',
        b"[" * 100_000,
        b"9" * 5000,
    ],
)
def test_invalid_bodies(server, body):
    reply = ask(server, "POST", "/v1/completions", body)
    assert (reply.status, reply.code) == (400, "invalid_json")


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/show"]
)
def test_a_number_that_is_too_large(server, path):
    for number in (b"1e999", b"-1e999"):
        reply = ask(
            server,
            "POST",
            path,
            b'{"model": "Infinity", "stream": true, "tools": [{"x": %b}]}' % number,
        )
        assert reply.status == 400
        assert "tools contains a number that is too large." in reply.body.decode()


def test_paths_and_methods(server):
    reply = ask(server, path="/v2")
    assert (reply.status, reply.code) == (404, "not_found")
    assert reply.json()["error"]["message"].endswith("GET /openapi.json lists them.")
    reply = ask(server, "GET", "/v1/completions")
    assert (reply.status, reply.code) == (405, "method_not_allowed")
    assert reply.json()["error"]["message"] == "This path takes POST."
    reply = ask(server, "POST", "/v1/completions", b'{"prompt":\n ]}')
    assert reply.json()["error"]["message"] == "The body is not JSON in UTF-8 (line 2, column 2)."


def test_the_hint_for_a_wrong_schema_is_not_one_for_a_shell(server):
    schema = {"name": "a", "schema": {"type": "what"}}
    reply = ask_chat(server, response_format={"type": "json_schema", "json_schema": schema})
    message = reply.json()["error"]["message"]
    assert message.endswith("orrect response_format.") and "@" not in message


def test_a_model_without_a_template(tmp_path):
    path = tiny.write(
        tmp_path / "none.gguf", tiny.one_text("abc"), metadata={"tokenizer.chat_template": None}
    )
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        reply = ask_chat(server)
        assert (reply.status, reply.param) == (400, "messages")
        assert "no chat template" in reply.json()["error"]["message"]
        reply = ask_text(server, prompt="a", speculation={"drafter": "model", "k": 4})
        assert (reply.status, reply.param) == (400, "speculation.drafter")
        assert ask_text(server, prompt="a", temperature=0).json()["choices"][0] == {
            "index": 0,
            "logprobs": None,
            "text": "bc",
            "finish_reason": "stop",
        }


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails(tales, monkeypatch, caplog, stream):
    """The client gets an error, and the log has the traceback; neither has the prompt. The next request works."""
    with serve_in_thread(tales) as server:
        with monkeypatch.context() as patch:
            patch.setattr(tales.engine.target, "logits", _fail)
            reply = ask_text(server, prompt="SECRET", stream=stream)
        told = reply.body.decode()
        assert reply.status == (200 if stream else 500)  # a stream has begun by then
        assert '"server_error"' in told
        assert "[DONE]" not in told
        assert ask_text(server).status == 200
    assert "SECRET" not in caplog.text + told
    assert "DecodeError" in caplog.text


def _fail(*_):
    raise DecodeError(1, 0, 1, "SEC" + "RET")  # the line itself is in the log


def test_an_error_in_a_stream_reaches_the_official_client(tales, client, monkeypatch):
    monkeypatch.setattr(tales.engine.target, "logits", _fail)
    with (
        pytest.raises(openai.APIError),
        client.completions.create(model="tales", prompt="x", stream=True) as stream,
    ):
        list(stream)


SHAPES = [
    ("/v1/chat/completions", lambda told: told["error"]["type"] == "server_error"),
    ("/v1/messages", lambda told: (told["type"], told["error"]["type"]) == ("error", "api_error")),
    ("/api/chat", lambda told: isinstance(told["error"], str)),
]


@pytest.mark.parametrize(("path", "is_of_its_api"), SHAPES)
def test_an_unexpected_error_has_the_shape_of_its_api(
    server, monkeypatch, caplog, path, is_of_its_api
):
    def fail(*_):
        raise ValueError("SEC" + "RET")

    monkeypatch.setattr("gguf_spec.server.app.parse", fail)
    reply = ask(server, "POST", path, {"messages": []})
    assert reply.status == 500
    assert is_of_its_api(reply.json())
    until(lambda: "ValueError" in caplog.text)  # the log comes after the answer
    assert "SECRET" not in caplog.text + reply.body.decode()


def test_an_unexpected_error_ends_a_stream(server, monkeypatch, caplog):
    def fail(*_):
        raise ValueError("SEC" + "RET")

    monkeypatch.setattr("gguf_spec.protocols.openai.ResponseBuilder.chunk", fail)
    reply = ask_text(server, stream=True)
    assert b'"error"' in reply.body and b"[DONE]" not in reply.body
    assert "SECRET" not in caplog.text + reply.body.decode()
    assert "ValueError" in caplog.text


@pytest.mark.parametrize("path", ["/v1/messages", "/api/chat"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_with_a_number_that_no_double_holds(hot, path, stream):
    schema = {"type": "object", "properties": {"x": {"type": "number"}}}
    function = {"name": "f", "description": "", "parameters": schema}
    tool = {"name": "f", "input_schema": schema} if "v1" in path else {"type": "function", "function": function}  # fmt: skip
    reply = ask(
        hot, "POST", path, {"model": "", "messages": FOX, "tools": [tool], "stream": stream}
    )
    assert reply.status == 200
    assert b"Infinity" not in reply.body
    assert b"1.7976931348623157e+308" in reply.body or (b"1e999" in reply.body and stream)


@pytest.fixture(scope="module")
def hot(tmp_path_factory):
    """A model that calls a tool with an infinite number, and whose file has others."""
    path = tmp_path_factory.mktemp("hot") / "m.gguf"
    answering(path, {"\n": ['<tool_call>{"name": "f", ', '"arguments": {"x": 1e999}}</tool_call>']})
    odd = {"odd.infinite": float("inf"), "odd.none": float("nan"), "odd.plain": 1.5}
    with gguf_spec.load(path, None, threads=1) as llm, serve_in_thread(llm) as server:
        header = about.header_of
        about.header_of = lambda model: replace(
            header(model), metadata=header(model).metadata | odd
        )
        yield server
        about.header_of = header


def test_metadata_that_json_has_no_numbers_for(hot):
    shown = ask(hot, "POST", "/api/show", {"model": ""})
    assert shown.status == 200
    assert shown.json()["model_info"]["odd.plain"] == 1.5
    assert not {"odd.infinite", "odd.none"} & shown.json()["model_info"].keys()


def test_a_closed_llm(tmp_path):
    path = tiny.write(tmp_path / "abc.gguf", tiny.one_text("abc"))
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        llm.close()
        assert (ask_text(server).status, ask_text(server).code) == (503, "shutting_down")
        assert ask(server).status == 200


@pytest.mark.parametrize("here", ["input_schema", "parameters", "function.parameters"])
def test_the_sentence_of_an_error_has_the_name_of_this_api(here):
    """Not that of the chat route, where another API has another one."""
    field, wanted = "tools[1].function.parameters", f"tools[1].{here}"
    names = {"tools[].function.parameters": f"tools[].{here}"}
    for start, end in (("", " allows no value."), ("This ", " is wrong.")):
        fact = f"{start}{field}{end}"
        refusal = refusal_of(ApiError(fact, field, "invalid_value"), names)
        told = fact if start else f"{wanted}{end}"
        assert (refusal.error["message"], refusal.error["param"]) == (told, wanted)
