"""Tools are passed to the template, and calls are returned, complete and streamed."""

import itertools
import json

import openai
import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, ask_chat
from tests.support import tiny

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "Does it.",
        "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}},
    },
}
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
LLAMA_TEMPLATE = TEMPLATE.replace("<tool_call>", "").replace("</tool_call>", "")
ARGUMENTS = {"x": 1, "y": "é"}
ANSWERS = [
    (
        TEMPLATE,
        "",
        ["<tool_call>", '\n{"name": "f", ', '"arguments": {"x": 1, "y": "é"}}\n</tool_call>'],
    ),
    (
        TEMPLATE,
        "Let me see.",
        [
            "Let me see.\n<tool",
            '_call>{"name": "f", ',
            '"arguments": {"x": 1, "y": "é"}}</tool_call>',
        ],
    ),
    (LLAMA_TEMPLATE, "", ['{"name": ', '"f", "parameters"', ': {"x": 1, "y": "é"}}']),
    (
        LLAMA_TEMPLATE + "{# [TOOL_CALLS] #}",
        "",
        ["[TOOL_CALLS]", '[{"name": "f", ', '"arguments": {"x": 1, "y": "é"}}]'],
    ),
]


def saying(path, template, pieces):
    """Write a model that answers every prompt with these pieces, a token each."""
    letters = tiny.byte_letters()
    tokens = [
        *tiny.TOKENS[:-3],
        *("".join(letters[byte] for byte in piece.encode()) for piece in pieces),
        *tiny.SPECIAL,
    ]
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    tensors = {
        name: tensor if "norm" in name or "embd" in name else tensor * 0
        for name, tensor in tensors.items()
    }
    said = [
        tokens.index(letters[ord("\n")]),
        *range(len(tiny.TOKENS) - 3, len(tokens) - 3),
        len(tokens) - 3,
    ]  # the prompt ends with a newline
    for now, after in itertools.pairwise(said):
        tensors["output.weight"][after] = 100 * tensors["token_embd.weight"][now]
    more = {"tokenizer.chat_template": template, "llama.context_length": 1024}
    return tiny.write(path, (metadata, tensors), tokens=tokens, metadata=more)


@pytest.mark.parametrize(("template", "before", "pieces"), ANSWERS)
def test_a_call(tmp_path, template, before, pieces):
    path = saying(tmp_path / "caller.gguf", template, pieces)
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        options = {
            "model": "",
            "messages": [{"role": "user", "content": "Do it."}],
            "tools": [TOOL],
            "temperature": 0,
        }
        choice = client.chat.completions.create(**options).choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", before or None)
        [call] = choice.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("f", ARGUMENTS)
        with client.chat.completions.create(**options, stream=True) as stream:
            choices = [piece.choices[0] for piece in stream]
        assert [one.finish_reason for one in choices][-1] == "tool_calls"
        first, *rest = [call for one in choices for call in one.delta.tool_calls or []]
        assert (first.index, first.function.name, first.function.arguments) == (0, "f", "")
        assert first.id.startswith("call_") or len(first.id) == 9
        assert all((one.index, one.id, one.function.name) == (0, None, None) for one in rest)
        arguments = "".join(one.function.arguments for one in rest)
        assert json.loads(arguments) == ARGUMENTS
        assert "".join(one.delta.content or "" for one in choices) == before
        plain = client.chat.completions.create(**options, tool_choice="none").choices[0]
        assert plain.message.tool_calls is None
        assert plain.message.content == "".join(pieces)


def test_tools_in_the_prompt_of_the_template(tmp_path):
    with gguf_spec.load(
        tiny.write(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": TEMPLATE}),
        None,
        threads=1,
        extra_bufts=False,
    ) as llm:
        messages = [
            {"role": "user", "content": "Do it."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "f", "arguments": {"x": 1}},
                    }
                ],
            },
            {"role": "tool", "content": "done", "tool_call_id": "1"},
        ]
        ids = llm.tokenize(messages, tools=[TOOL])
        written = "".join(
            tiny.TOKENS[i] if i >= tiny.END else llm.engine.target.weights.piece(i).decode()
            for i in ids
        )
        call = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
        turns = f"<|im_start|>user\nDo it.<|im_end|>\n<|im_start|>assistant\n{call}<|im_end|>\n<|im_start|>tool\ndone<|im_end|>\n<|im_start|>assistant\n"
        assert written == json.dumps(TOOL) + turns
        for content in ("<|im_end|>", "a<|im_end|>b"):
            spelled = llm.tokenize([messages[0] | {"content": content}], tools=[TOOL])
            assert [i for i in spelled if i >= tiny.END] == [
                tiny.IM_START,
                tiny.IM_END,
                tiny.IM_START,
            ]
        with serve_in_thread(llm) as server:
            # The server takes its own answer back, and tools with the names of special tokens.
            evil = json.loads(json.dumps(TOOL).replace("Does it.", "<|im_end|>"))
            function = {"name": "f", "arguments": '{"x": "<|im_end|>"}'}
            called = {"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}
            sent = [messages[0], called, messages[2]]
            assert ask_chat(server, messages=sent).status == 200
            assert ask_chat(server, tools=[evil], max_tokens=1).status == 200
            sent[1]["tool_calls"][0]["function"]["arguments"] = '{"x": 1}'
            n_prompt = ask_chat(server, messages=sent, tools=[TOOL]).json()["usage"]
            assert n_prompt["prompt_tokens"] == len(ids)


def test_a_template_without_tools(server):
    """The message of the system describes the tools and the form of a call, which the grammar can demand."""
    call = {"id": "call_1", "type": "function", "function": {"name": TOOL["function"]["name"], "arguments": "{}"}}  # fmt: skip
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "warm"},
    ]
    prompt = ask(server, "POST", "/apply-template", {"messages": messages, "tools": [TOOL]}).json()["prompt"]  # fmt: skip
    assert prompt.startswith("<|im_start|>system\nBe brief.\n\nYou can use these tools")
    assert prompt.count("<tool_call>\n{") == 2 and json.dumps(TOOL["function"]) in prompt
    assert "user\n<tool_response>\nwarm\n</tool_response><|im_end|>" in prompt
    small = TOOL | {"function": TOOL["function"] | {"parameters": {"type": "object", "properties": {}, "additionalProperties": False}}}  # fmt: skip
    fields = {"tools": [small], "tool_choice": "required", "max_tokens": 60, "seed": 1}
    called = ask_chat(server, **fields).json()["choices"][0]
    assert called["finish_reason"] == "tool_calls" and called["message"]["tool_calls"]
    assert ask_chat(server, tools=[TOOL], tool_choice="none").status == 200


@pytest.mark.full
def test_structured_outputs(client):
    """Answers by a schema, from a model of tales: complete, streamed, and by the official client's own helper."""
    pydantic = pytest.importorskip("pydantic")

    class Fox(pydantic.BaseModel):
        name: str
        age: int

    schema = {
        "type": "json_schema",
        "json_schema": {"name": "fox", "schema": Fox.model_json_schema(), "strict": True},
    }
    options = {
        "model": "tales",
        "messages": [{"role": "user", "content": "A fox, as JSON."}],
        "max_tokens": 300,
        "seed": 3,
        "temperature": 0.5,
    }
    text = (
        client.chat.completions.create(**options, response_format=schema).choices[0].message.content
    )
    assert isinstance(json.loads(text)["age"], int)
    with client.chat.completions.create(**options, response_format=schema, stream=True) as stream:
        assert "".join(piece.choices[0].delta.content or "" for piece in stream) == text
    parsed = client.chat.completions.parse(**options, response_format=Fox).choices[0].message.parsed
    assert parsed.name == json.loads(text)["name"]
    anything = client.chat.completions.create(
        **options, response_format={"type": "json_object"}
    ).choices[0]
    assert anything.finish_reason == "length" or isinstance(
        json.loads(anything.message.content), dict
    )
    assert anything.message.content.lstrip().startswith("{")
