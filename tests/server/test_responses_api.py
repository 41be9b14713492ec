"""The Responses API, by the official client: texts as in a chat, events, stored responses, tools, reasoning and files."""

import base64
import itertools
import json

import openai
import pytest

import gguf_spec
from gguf_spec.protocols.errors import ApiError
from gguf_spec.server import serve_in_thread
from gguf_spec.server.responses import ResponseStore
from tests.server.conftest import ask, metrics
from tests.server.test_reasoning import CHAIN
from tests.server.test_tools import ARGUMENTS, TEMPLATE, TOOL, saying
from tests.support import reasoners

PATH = "/v1/responses"
ASKED = {"model": "tales", "max_output_tokens": 24, "extra_body": {"seed": 5}}
FUNCTION = {"type": "function", **TOOL["function"]}
PLAIN = {"input": "Hello.", "max_output_tokens": 4, "seed": 1}


def chat_text(client, messages, **fields):
    options = {"model": "tales", "max_tokens": 24, "seed": 5} | fields
    return client.chat.completions.create(messages=messages, **options).choices[0].message.content


def post(server, headers=(), **fields):
    return ask(server, "POST", PATH, PLAIN | fields, headers)


def events_of(stream):
    """Return the events, whose numbers must count from 0."""
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def kinds(events):
    """Return the types of events, each once where several follow each other."""
    return [kind for kind, _ in itertools.groupby(e.type.removeprefix("response.") for e in events)]


# ---- text


@pytest.mark.full
@pytest.mark.parametrize("speculation", ["off", {"k": 4, "adaptive": False}])
def test_the_text_is_that_of_the_chat(client, speculation):
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Tell me of a fox."},
        {"role": "assistant", "content": "Once"},
        {"role": "user", "content": [{"type": "text", "text": "Go "}, {"type": "text", "text": "on."}]},
    ]  # fmt: skip
    wanted = chat_text(client, messages)
    assert len(wanted) > 20
    items = [
        {"role": "user", "content": "Tell me of a fox."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Once"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Go "}, {"type": "input_text", "text": "on."}]},
    ]  # fmt: skip
    options = ASKED | {"extra_body": {"seed": 5, "speculation": speculation}}
    whole = client.responses.create(input=items, instructions="Be kind.", **options)
    assert (whole.output_text, whole.status, whole.seed) == (wanted, "incomplete", 5)
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.usage.speculation["drafted"] > 0 or speculation == "off"
    assert whole.usage.total_tokens == whole.usage.input_tokens + 24
    items.insert(0, {"role": "developer", "content": "Be kind."})
    with client.responses.create(input=items, stream=True, **options) as stream:
        events = events_of(stream)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == wanted
    last = events[-1].response
    assert (last.output_text, last.usage.output_tokens) == (wanted, 24)


def test_events_of_a_text(client):
    with client.responses.create(input="Hello.", stream=True, **ASKED) as stream:
        events = events_of(stream)
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "incomplete",
    ]  # fmt: skip
    assert {e.response.id for e in events if hasattr(e, "response")} == {events[-1].response.id}
    assert events[0].response.output == [] and events[0].response.status == "in_progress"
    [item] = events[-1].response.output
    assert {e.item_id for e in events if hasattr(e, "item_id")} == {item.id}
    assert events[-2].item == item and events[2].item.content == []
    assert item.status == "incomplete"
    assert (events[-4].text, events[-3].part.text) == (item.content[0].text,) * 2


def test_the_official_helper_for_streams(client):
    with client.responses.stream(
        model="tales", input="Hi.", extra_body={"seed": 1, "stop": ["e"]}
    ) as stream:
        texts = [event.snapshot for event in stream if event.type == "response.output_text.delta"]
    final = stream.get_final_response()
    assert final.status == "completed" and final.completed_at >= final.created_at
    assert texts[-1] == final.output_text != ""


def test_log_probabilities(client):
    options = ASKED | {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = client.responses.create(input="Hi.", **options)
    [part] = whole.output[0].content
    assert len(part.logprobs) == 24 and len(part.logprobs[0].top_logprobs) == 2
    with client.responses.create(input="Hi.", stream=True, **options) as stream:
        events = list(stream)
    sent = [one for e in events if e.type == "response.output_text.delta" for one in e.logprobs]
    assert [one.token for one in sent] == [one.token for one in part.logprobs]
    assert client.responses.create(input="Hi.", **ASKED).output[0].content[0].logprobs == []


def test_fields_that_the_answer_repeats(client):
    given = {
        "instructions": "Be kind.", "metadata": {"a": "b"}, "temperature": 0.5, "top_p": 0.9, "truncation": "auto",
        "parallel_tool_calls": False, "reasoning": {"effort": "none", "summary": "auto"}, "store": False,
    }  # fmt: skip
    said = client.responses.create(input="Hi.", **ASKED, **given).to_dict()
    assert {name: said[name] for name in given} == given
    assert (said["object"], said["max_output_tokens"], said["tools"]) == ("response", 24, [])


def test_structured_outputs(client):
    pydantic = pytest.importorskip("pydantic")

    class Fox(pydantic.BaseModel):
        name: str
        age: int

    options = {"model": "tales", "input": "A fox, as JSON.", "max_output_tokens": 300}
    options |= {"temperature": 0.5, "extra_body": {"seed": 3}}
    parsed = client.responses.parse(**options, text_format=Fox)
    schema = {"name": "fox", "schema": Fox.model_json_schema(), "strict": True}
    chat = chat_text(
        client,
        [{"role": "user", "content": "A fox, as JSON."}],
        response_format={"type": "json_schema", "json_schema": schema},
        max_tokens=300,
        temperature=0.5,
        seed=3,
    )
    assert json.loads(chat) == parsed.output_parsed.model_dump()
    anything = client.responses.create(**options, text={"format": {"type": "json_object"}})
    assert anything.output_text.lstrip().startswith("{")


# ---- stored responses


def test_a_conversation(client):
    first = client.responses.create(input="Tell me of a fox.", instructions="Be kind.", **ASKED)
    second = client.responses.create(input="Go on.", previous_response_id=first.id, **ASKED)
    third = client.responses.create(input="The end?", previous_response_id=second.id, **ASKED)
    messages = [
        {"role": "user", "content": "Tell me of a fox."},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "The end?"},
    ]
    assert second.output_text == chat_text(client, messages[:3])  # without the instructions
    assert third.output_text == chat_text(client, messages)
    assert third.previous_response_id == second.id
    fetched = client.responses.retrieve(third.id)
    assert fetched == third
    items = list(client.responses.input_items.list(third.id, order="asc", limit=2))  # three pages
    assert [item.role for item in items] == [message["role"] for message in messages]
    assert [item.content[0].text for item in items] == [m["content"] for m in messages]
    page = client.responses.input_items.list(third.id, after=items[1].id, limit=1)
    assert page.data == [items[0]] and not page.has_more
    assert client.responses.input_items.list(third.id, limit=1).data == [items[-1]]
    client.responses.delete(first.id)
    for id_ in (first.id, "resp_none"):
        with pytest.raises(openai.NotFoundError, match="Send the whole conversation") as caught:
            client.responses.create(input="Go on.", previous_response_id=id_, **ASKED)
        assert caught.value.param == "previous_response_id"
        for use in (
            client.responses.retrieve,
            client.responses.delete,
            client.responses.input_items.list,
        ):
            with pytest.raises(openai.NotFoundError):
                use(id_)
    assert client.responses.retrieve(second.id) == second  # it has the whole conversation


def test_a_reference_to_an_item(client):
    first = client.responses.create(input="Tell me of a fox.", **ASKED)
    [item] = first.output
    items = [{"type": "item_reference", "id": item.id}, {"role": "user", "content": "Go on."}]
    second = client.responses.create(input=items, **ASKED)
    said = {"role": "assistant", "content": first.output_text}
    assert second.output_text == chat_text(client, [said, {"role": "user", "content": "Go on."}])
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(input=[{"type": "item_reference", "id": "msg_none"}], **ASKED)
    assert caught.value.param == "input[0].id"
    with pytest.raises(openai.BadRequestError, match="before it"):
        client.responses.create(input=[items[0], items[0]], **ASKED)


def test_responses_that_are_not_stored(client):
    first = client.responses.create(input="Hi.", store=False, **ASKED)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


@pytest.mark.parametrize("limits", [{"most": 3}, {"most_bytes": 400}])
def test_the_store_is_bounded(limits):
    store = ResponseStore(**limits)
    for name in "abc":
        store.add({"id": name, "output": []}, [{"id": name * 60}])
    store.get("a", "id")
    store.add({"id": "d", "output": []}, [{"id": "d" * 60}])
    kept = []
    for name in "abcd":
        try:
            kept.append(store.get(name, "id").response["id"])
        except ApiError as error:
            assert error.status == 404
    assert kept == ["a", "c", "d"]
    assert store.finder()("a" * 60) and not store.finder()("b" * 60)


def test_a_removed_response_leaves_its_room():
    """As many as wanted come and go while others stay."""
    store = ResponseStore(most=3, most_bytes=400)
    for name in "ab":
        store.add({"id": name, "output": []}, [{"id": name * 60}])
    for i in range(20):
        store.add({"id": f"{i}", "output": []}, [{"id": "x" * 60}])
        store.remove(f"{i}", "id")
        with pytest.raises(ApiError, match="There is no response"):
            store.get(f"{i}", "id")
    assert [store.get(name, "id").response["id"] for name in "ab"] == ["a", "b"]
    assert store._n_bytes == sum(store.get(name, "id").n_bytes for name in "ab")


def test_a_response_larger_than_the_store_is_not_kept():
    store = ResponseStore(most_bytes=400)
    store.add({"id": "a", "output": []}, [{"id": "a" * 60}])
    store.add({"id": "b", "output": []}, [{"id": "b" * 500}])
    assert store.get("a", "id").response["id"] == "a"
    with pytest.raises(ApiError, match="There is no response 'b'"):
        store.get("b", "id")


# ---- tools


def test_tools(tmp_path):
    pieces = ["Let me see.\n<tool", '_call>{"name": "f", ', '"arguments": {"x": 1, "y": "é"}}</tool_call>']  # fmt: skip
    path = saying(tmp_path / "caller.gguf", TEMPLATE, pieces)
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {"model": "", "tools": [FUNCTION], "temperature": 0}
        first = client.responses.create(input="Do it.", **options)
        message, call = first.output
        assert (first.status, first.output_text) == ("completed", "Let me see.")
        assert (call.type, call.name, json.loads(call.arguments)) == (
            "function_call",
            "f",
            ARGUMENTS,
        )
        with client.responses.create(input="Do it.", stream=True, **options) as stream:
            events = events_of(stream)
        assert kinds(events)[-6:] == [
            "output_item.done", "output_item.added", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done", "completed",
        ]  # fmt: skip
        assert (
            json.loads(events[-3].arguments) == json.loads(events[-2].item.arguments) == ARGUMENTS
        )
        assert events[-2].output_index == 1
        with client.responses.stream(input="Do it.", **options) as stream:
            assert stream.get_final_response().output[1].parsed_arguments is None

        # what the model reads is what it reads in a chat
        output = {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        after = client.responses.create(input=[output], previous_response_id=first.id, **options)
        sent = [{"role": "user", "content": "Do it."}, message.to_dict(), call.to_dict(), output]
        again = client.responses.create(input=sent, **options)
        function = {"name": "f", "arguments": call.arguments}
        chat = client.chat.completions.create(
            model="",
            tools=[TOOL],
            messages=[
                {"role": "user", "content": "Do it."},
                {"role": "assistant", "content": "Let me see.",
                 "tool_calls": [{"id": call.call_id, "type": "function", "function": function}]},
                {"role": "tool", "tool_call_id": call.call_id, "content": "done"},
            ],
        )  # fmt: skip
        n = chat.usage.prompt_tokens
        assert n == after.usage.input_tokens == again.usage.input_tokens > first.usage.input_tokens
        plain = client.responses.create(input="Do it.", tool_choice="none", **options)
        assert [item.type for item in plain.output] == ["message"]
        for choice in (
            "required",
            {"type": "function", "name": "f"},
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
        ):
            forced = client.responses.create(
                input="Do it.", tool_choice=choice, max_output_tokens=60, **options
            )
            assert forced.tool_choice
            text = "".join(part.text for item in forced.output if item.type == "message" for part in item.content)  # fmt: skip
            assert not text or text.startswith("<tool_call>")  # a call that was cut off


def test_a_choice_among_tools(tmp_path):
    """Only the allowed tools are in the prompt."""
    path = saying(tmp_path / "caller.gguf", TEMPLATE, ["Hello."])
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm, serve_in_thread(llm) as server:  # fmt: skip
        tools = [FUNCTION, FUNCTION | {"name": "g"}]

        def n_prompt(**fields):
            return post(server, tools=tools, **fields).json()["usage"]["input_tokens"]

        allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]}  # fmt: skip
        both, one = n_prompt(), n_prompt(tool_choice=allowed)
        assert both - one > 50
        assert n_prompt(tool_choice={"type": "function", "name": "g"}) == both
        strict = FUNCTION | {"strict": True, "parameters": {"$ref": "#/nowhere"}}
        reply = post(server, tools=[FUNCTION | {"name": "a"}, strict])
        assert (reply.status, reply.param) == (400, "tools[1].parameters")
        assert reply.json()["error"]["message"].startswith("tools[1].parameters cannot be used")


# ---- reasoning


def test_reasoning(tmp_path):
    path = tmp_path / "thinker.gguf"
    with (
        reasoners.thinker(path, reasoners.QWEN35, CHAIN) as llm,
        serve_in_thread(llm) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {"model": "", "input": "hi", "temperature": 0, "max_output_tokens": 30}
        whole = client.responses.create(**options)
        thought, message = whole.output
        assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "ab", [])
        assert (message.content[0].text, whole.output_text) == ("cd", "cd")
        assert whole.usage.output_tokens_details.reasoning_tokens == 3
        with client.responses.create(stream=True, **options) as stream:
            events = events_of(stream)
        assert kinds(events) == [
            "created", "in_progress",
            "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
            "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
            "completed",
        ]  # fmt: skip
        assert [item.to_dict() | {"id": ""} for item in events[-1].response.output] == [
            item.to_dict() | {"id": ""} for item in whole.output
        ]
        cut = client.responses.create(**options | {"max_output_tokens": 2})
        assert [(item.type, item.status) for item in cut.output] == [("reasoning", "incomplete")]
        off = client.responses.create(**options, reasoning={"effort": "none"})
        assert off.usage.input_tokens > whole.usage.input_tokens  # the template's empty part

        # sent back, the template reads it as in a chat
        user = {"role": "user", "content": "hi"}
        long = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "ab " * 30}]}  # fmt: skip
        summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "ab " * 30}]}
        chat = client.chat.completions.create(
            model="",
            messages=[user, {"role": "assistant", "content": "cd", "reasoning_content": "ab " * 30}],
        ).usage.prompt_tokens  # fmt: skip
        for item in (long, summary):
            sent = client.responses.create(**options | {"input": [user, item, message.to_dict()]})
            assert sent.usage.input_tokens == chat > 80
        again = client.responses.create(
            **options | {"input": "more"}, previous_response_id=whole.id
        )
        assert again.output_text == "cd"


# ---- files and long conversations


def data_url(data, kind="text/plain"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def test_files(client):
    part = {"type": "input_file", "filename": "a.md", "file_data": data_url("é `x`\n".encode(), "text/markdown;charset=utf-8")}  # fmt: skip
    said = [{"role": "user", "content": [part, {"type": "input_text", "text": "What is it?"}]}]
    wanted = chat_text(
        client, [{"role": "user", "content": "File a.md:\n```\né `x`\n```\n\nWhat is it?"}]
    )
    first = client.responses.create(input=said, **ASKED)
    assert first.output_text == wanted
    [item] = client.responses.input_items.list(first.id).data
    assert item.content[0].file_data == part["file_data"]
    fence = data_url(b"a\n````\nb", "application/json")
    said[0]["content"] = [{"type": "input_text", "text": "See."}, part | {"file_data": fence}]
    wanted = chat_text(
        client, [{"role": "user", "content": "See.\n\nFile a.md:\n`````\na\n````\nb\n`````"}]
    )
    assert client.responses.create(input=said, **ASKED).output_text == wanted


# The smallest image whose header is right.


def test_a_conversation_that_is_too_long(tmp_path, tales):
    with gguf_spec.load("tales", None, threads=1, n_ctx=256) as llm, serve_in_thread(llm) as server:
        system = {"role": "system", "content": "Be kind."}
        turns = [
            {"role": role, "content": f"{i} " + "word " * 20}
            for i in range(10)
            for role in ("user", "assistant")
        ]
        last = {"role": "user", "content": "Go on."}
        asked = {"input": [system, *turns, last], "max_output_tokens": 16}
        reply = post(server, **asked)
        assert (reply.status, reply.param, reply.code) == (400, "input", "context_length_exceeded")
        cut = post(server, truncation="auto", **asked).json()
        n_ctx = [len(llm.tokenize([system, *turns[i:], last])) for i in range(0, 22, 2)]
        longest = max(n for n in n_ctx if n <= 256 - 16)
        assert cut["usage"]["input_tokens"] == longest < max(n_ctx)
        short = post(server, truncation="auto", input=[system, last], max_output_tokens=16).json()
        assert short["usage"]["input_tokens"] == n_ctx[-1]
        huge = {"role": "user", "content": "word " * 400}
        assert post(server, truncation="auto", input=[last, huge]).status == 400


# ---- errors and limits

# One of the fields of tests/protocols/test_responses.py, and those that only the model can refuse.
WRONG = [
    ({"input": None}, "input"),
    ({"input": [{"type": "reasoning", "id": "a"}]}, "input"),  # of which nothing is left
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": {"$ref": "#/none"}}}}, "text.format"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), WRONG)
def test_the_server_names_wrong_fields(server, fields, param):
    reply = post(server, **fields)
    assert (reply.status, reply.param) == (400, param)
    assert post(server, **{"stream": True} | fields).param == param


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=x", "limit"),
        ("?limit=101", "limit"),
        ("?limit=0000000001000", "limit"),
        ("?order=up", "order"),
        ("?after=x", "after"),
    ],
)
def test_wrong_queries(server, query, param):
    id_ = post(server).json()["id"]
    reply = ask(server, path=f"{PATH}/{id_}/input_items{query}")
    assert (reply.status, reply.param) == (400, param)
    assert ask(server, path=f"{PATH}/{id_}?stream=true").param == "stream"


@pytest.mark.usefixtures("failing_streams")
def test_an_error_in_a_stream(client):
    with client.responses.create(input="Hello.", stream=True, **ASKED) as stream:
        events = events_of(stream)
    assert kinds(events)[-4:] == ["output_text.done", "content_part.done", "output_item.done", "failed"]  # fmt: skip
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert "secret" not in failed.error.message
    with pytest.raises(openai.InternalServerError):
        client.responses.create(input="Hello.", **ASKED)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(failed.id)


def test_routes_are_counted_and_locked(tales):
    with serve_in_thread(tales, api_key="secret", max_tokens=8) as server:
        key = {"Authorization": "Bearer secret"}
        assert post(server).status == 401
        id_ = post(server, key).json()["id"]
        assert ask(server, path=f"{PATH}/{id_}").status == 401
        assert ask(server, path=f"{PATH}/{id_}", headers=key).status == 200
        assert ask(server, "DELETE", f"{PATH}/{id_}").status == 401
        assert post(server, key, max_output_tokens=9).param == "max_output_tokens"
        lines = ask(server, path="/metrics", headers=key).body.decode()
        assert 'requests_total{path="/v1/responses/{id}",status="200"} 1' in lines
        assert 'requests_total{path="/v1/responses",status="401"} 1' in lines
        assert id_ not in lines


def test_a_closed_connection(endless):
    """Its answer ends within a round, and is not stored."""
    from tests.server.conftest import until
    from tests.server.test_load import busy, connect

    with serve_in_thread(endless) as server:
        for stream in (False, True):
            fields = {"input": "a", "temperature": 0, "stream": stream}
            with connect(server, PATH, **fields):
                until(lambda: busy(server))
            assert until(lambda: not busy(server)) < 3
        assert metrics(server)["generated_tokens_total"] < 40_000


# ---- what agents send
