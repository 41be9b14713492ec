"""Answers of the dialects, from a body and events: whole, as streams, and what only one of them shows."""

import json
from functools import partial

import pytest

from gguf_spec import Chunk, Speculation
from gguf_spec.protocols.edit import EditShow, read_edit
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.events import ChoiceEnded, ChunkEvent, Started
from gguf_spec.protocols.llama_server import InfillReply, read_completion, read_infill
from gguf_spec.protocols.messages import MessageReply, read_request
from gguf_spec.protocols.ollama import OllamaReply, read_ollama_chat, read_ollama_generate
from gguf_spec.protocols.openai import ResponseBuilder, read_chat, read_text
from gguf_spec.protocols.replies import json_parts
from gguf_spec.protocols.responses import ResponseReply, read_response
from gguf_spec.results import Completion, Part, Stats
from gguf_spec.tools.families import family_of
from tests.protocols.field_bodies import NoStore

HELLO = [{"role": "user", "content": "Hello."}]
PIECES = ["Hel", "lo ", "you."]
TEXT = "".join(PIECES)


def delta(piece):
    return piece["choices"][0]["delta"].get("content", "") if piece["choices"] else ""


# Name -> what reads a body, what makes its answers, a body, the text of a whole answer, and that of an object of a stream.
DIALECTS = {
    "chat": (read_chat, ResponseBuilder, {"messages": HELLO}, lambda x: x["choices"][0]["message"]["content"], delta),
    "text": (read_text, ResponseBuilder, {"prompt": "a"}, lambda x: x["choices"][0]["text"], lambda x: x["choices"][0]["text"]),
    "completion": (read_completion, InfillReply, {"prompt": "a"}, lambda x: x["content"], lambda x: x["content"]),
    "infill": (read_infill, InfillReply, {"input_prefix": "a"}, lambda x: x["content"], lambda x: x["content"]),
    "responses": (
        lambda *given: read_response(*given, NoStore()), ResponseReply, {"input": "a"}, lambda x: x["output"][0]["content"][0]["text"],
        lambda x: x["delta"] if x["type"] == "response.output_text.delta" else "",
    ),
    "messages": (read_request, MessageReply, {"messages": HELLO}, lambda x: x["content"][0]["text"], lambda x: x.get("delta", {}).get("text", "")),
    "ollama chat": (
        read_ollama_chat, partial(OllamaReply, is_chat=True), {"messages": HELLO}, lambda x: x["message"]["content"], lambda x: x["message"]["content"],
    ),
    "ollama generate": (read_ollama_generate, partial(OllamaReply, is_chat=False), {"prompt": "a"}, lambda x: x["response"], lambda x: x["response"]),
}  # fmt: skip


def asked(name, **fields):
    read, _, body, *_ = DIALECTS[name]
    return read(body | fields, Speculation(), None)


def reply_of(name, request):
    return DIALECTS[name][1](request, Started("m", family_of("")))


def events(why=None, reason="stop"):
    stats = Stats(n_prompt=5, n_generated=3)
    chunks = [
        ChunkEvent(Chunk(one, (i,), 0, 0, parts=(Part("text", one),)), (), 0, stats)
        for i, one in enumerate(PIECES)
    ]
    return chunks, ChoiceEnded(0, Completion(TEXT, (0, 1, 2), reason, 7, stats), why)


def whole(name, request):
    chunks, ended = events()
    answer = reply_of(name, request).complete(chunks, [ended])
    return json.loads("".join(json_parts(answer)))


def streamed(name, request):
    reply, (chunks, ended) = reply_of(name, request), events()
    pieces = [*reply.first(), *(one for chunk in chunks for one in reply.chunk(chunk))]
    return [*pieces, *reply.ended(ended), *reply.finished()]


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_has_the_text_of_the_whole_answer(name):
    *_, text_of, piece_of = DIALECTS[name]
    assert text_of(whole(name, asked(name, stream=False))) == TEXT
    pieces = json.dumps(streamed(name, asked(name, stream=True)), allow_nan=False)
    assert "".join(map(piece_of, json.loads(pieces))) == TEXT


@pytest.mark.parametrize("name", DIALECTS)
def test_the_end_by_a_client_is_an_error_and_that_by_the_time_is_none(name):
    request = asked(name)
    with pytest.raises(ApiError) as caught:
        reply_of(name, request).ended(events("client_closed", "cancelled")[1])
    assert caught.value.status == 499
    assert reply_of(name, request).ended(events("timeout", "cancelled")[1])


@pytest.mark.parametrize("name", DIALECTS)
def test_a_request_knows_whether_it_is_a_chat(name):
    request = asked(name)
    is_chat = name not in ("text", "completion", "infill")
    assert request.is_chat is is_chat
    assert request.operation == ("chat" if is_chat else "text_completion")
    assert (request.n_choices, len(request.texts)) == (1, int(not is_chat))


def test_tokens_are_a_text_and_no_chat():
    for prompt in ([], [1, 2], [[1], [2]]):
        request = read_text({"prompt": prompt}, Speculation(), None)
        assert not request.is_chat and request.n_choices == len(request.texts)


def test_what_a_stream_of_openai_shows():
    options = {"include_usage": True, "continuous_usage_stats": True, "include_speculation": True}
    pieces = streamed("chat", asked("chat", stream=True, stream_options=options))
    assert pieces[-1]["choices"] == [] and pieces[-1]["usage"]["prompt_tokens"] == 5
    assert all(one["usage"] for one in pieces)
    assert ["speculation" in one for one in pieces] == [False, True, True, True, False, False]
    plain = streamed("chat", asked("chat", stream=True))
    assert not any("usage" in one or "speculation" in one for one in plain)


def test_what_a_message_shows():
    edits = {"context_management": {"edits": []}}
    assert (
        whole("messages", asked("messages", **edits))["context_management"]["applied_edits"] == []
    )
    assert "context_management" not in whole("messages", asked("messages"))


def test_what_llama_servers_routes_show():
    fields = {"response_fields": ["timings/prompt_n", "nothing"], "return_tokens": True}
    assert whole("completion", asked("completion", **fields)) == {"timings/prompt_n": 5}
    assert whole("completion", asked("completion"))["tokens"] == []
    assert whole("infill", asked("infill", return_tokens=True))["tokens"] == [0, 1, 2]


@pytest.mark.parametrize("store", [True, False])
def test_what_a_response_shows(store):
    kept = []
    stored = NoStore()
    stored.add = lambda response, items: kept.append((response["id"], len(items)))
    body = {"input": "a", "store": store, "metadata": {"a": "b"}, "instructions": "Be kind."}
    request = read_response(body, Speculation(), None, stored)
    answer = whole("responses", request)
    shown = {name: answer[name] for name in ("store", "metadata", "instructions")}
    assert shown == {name: body[name] for name in shown}
    assert kept == ([(answer["id"], 1)] if store else [])


def test_the_times_of_ollama_begin_with_the_body():
    answer = whole("ollama chat", asked("ollama chat"))
    assert answer["total_duration"] >= answer["load_duration"] >= 0


def test_an_edit_is_read_without_a_plan():
    body = {"text": "a\r\nb", "instruction": "x", "scope": "1", "max_tokens": 9}
    request = read_edit(body, Speculation(), 100)
    assert request.shown(EditShow) == EditShow("a\nb", "x", "", ("1",), 9)
    assert request.sampling.temperature == 0 and request.texts == ("a\r\nb",)
    del body["max_tokens"]
    assert read_edit(body, Speculation(), 100).shown(EditShow).max_tokens is None
