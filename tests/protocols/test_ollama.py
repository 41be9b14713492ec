"""Ollama's dialect: bodies become those of a chat."""

from dataclasses import replace

import pytest

from gguf_spec.options import Speculation
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.ollama import read_ollama_chat, read_ollama_generate
from gguf_spec.protocols.openai import read_chat

HELLO = [{"role": "user", "content": "Hello."}]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("chat", {"messages": "Hello"}, "messages must be an array"),
        ("chat", {"messages": [5]}, "messages[0] must be an object"),
        ("chat", {"messages": [{"role": "cat", "content": "x"}]}, "messages[0].role must be"),
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "messages[0].content[0].image_url.url is not a PNG"),
        ("chat", {"messages": [{"role": "user", "content": "x", "tool_name": "f"}]}, "only allowed in a message of the role tool"),
        ("chat", {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]}, "must have a function"),
        ("chat", {"think": 5}, "think must be"),
        ("chat", {"format": "xml"}, "format must be json or a JSON schema"),
        ("chat", {"options": []}, "options must be an object"),
        ("chat", {"options": {"num_predict": -7}}, "options.num_predict is -7"),
        ("chat", {"options": {"temperature": "hot"}}, "options.temperature is"),
        ("chat", {"options": {"stop": 5}}, "options.stop must be"),
        ("generate", {"prompt": 5}, "prompt must be a string"),
        ("generate", {"images": ["aGk="]}, "is not a PNG"),
        ("generate", {"images": "aGk="}, "images must be an array"),
        ("generate", {"images": ["aGk="], "raw": True}, "need a prompt without raw"),
        ("generate", {"template": "{{ .Prompt }}"}, "template is not supported."),
        ("generate", {"context": [1, 2]}, "context is not supported. Send the conversation"),
        ("generate", {"raw": True, "system": "x"}, "need a prompt without raw"),
        ("generate", {"raw": True, "format": "json"}, "need a prompt without raw"),
    ],
)  # fmt: skip
def test_refused_fields(path, fields, words):
    read, body = {
        "chat": (read_ollama_chat, {"messages": HELLO}),
        "generate": (read_ollama_generate, {"prompt": "x"}),
    }[path]
    with pytest.raises(ApiError) as caught:
        read(body | fields, Speculation(), None)
    assert caught.value.status == 400
    assert words in caught.value.error["message"]


# The smallest image whose header is right, in base64.
GIF = "R0lGODlhAQABAA=="

URL = {"type": "image_url", "image_url": {"url": f"data:image/gif;base64,{GIF}"}}


@pytest.mark.parametrize(
    ("fields", "others"),
    [
        ({"options": {"seed": -1, "num_predict": -2}}, {"max_tokens": -1}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"think": False}, {"reasoning_effort": "none"}),
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        (
            {"messages": [{"role": "user", "content": "What?", "images": [GIF]}]},
            {"messages": [{"role": "user", "content": [URL, {"type": "text", "text": "What?"}]}]},
        ),
    ],
)
def test_a_chat_is_read_as_the_chat_that_it_becomes(fields, others):
    body = {"messages": HELLO, "stream": False}
    asked = read_ollama_chat(body | fields, Speculation(), None)
    expected = read_chat(body | others, Speculation(), None)
    assert replace(asked, names={}) == replace(expected, names={})
    assert asked != read_ollama_chat(body, Speculation(), None) or fields.keys() == {"options"}


def test_a_raw_prompt_has_no_limit():
    asked = read_ollama_generate({"prompt": "x", "raw": True}, Speculation(), None)
    assert (
        asked.sampling.max_tokens
        == read_ollama_chat(
            {"messages": HELLO, "options": {"num_predict": -1}}, Speculation(), None
        ).sampling.max_tokens
    )


def test_ids_of_calls():
    """Ollama has none; OpenAI's messages need them. An answer belongs to the first open call of its name."""
    calls = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g", "f")]
    tools = [{"role": "tool", "content": "", "tool_name": name} for name in ("g", "f", "h")]
    body = {"messages": [*HELLO, {"role": "assistant", "content": "", "tool_calls": calls}, *tools]}
    _, _, made, *answers = [None, *read_ollama_chat(body, Speculation(), None).prompts[0]]
    ids = [one["id"] for one in made["tool_calls"]]
    assert len(set(ids)) == 3
    assert [one["tool_call_id"] for one in answers] == [ids[1], ids[0], ids[2]]


def test_a_message_with_calls_needs_no_content():
    from gguf_spec import Speculation
    from gguf_spec.protocols.ollama import read_ollama_chat

    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    messages = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "warm"},
    ]
    asked = read_ollama_chat({"model": "m", "messages": messages}, Speculation(), None)
    assert [one["role"] for one in asked.prompts[0]] == ["user", "assistant", "tool"]
