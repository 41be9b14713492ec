"""Chat templates by how they treat roles: each takes each conversation, and nothing is left out."""

import itertools

import pytest

import gguf_spec
from gguf_spec.text.jinja_sandbox import render
from gguf_spec.text.templates import encode_chat, template_needs
from gguf_spec.text.turns import Needs, tool_history
from gguf_spec.tools.families import marked_family
from tests.support import tiny

# What the loop does with a message of the system, with the order of turns, and with tools.
SYSTEM = {
    "any place": "",
    "first only": "{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first') }}{% endif %}",
    "not first": "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
    "left out": "{% if m.role == 'system' %}{% continue %}{% endif %}",
    "later left out": "{% if m.role == 'system' and not loop.first %}{% continue %}{% endif %}",
}
TURNS = {
    "any order": "",
    "alternate": "{% if m.role in ('user', 'assistant') and not m.tool_calls %}{% if (m.role == 'user') != (ns.n % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}",
    "alternate by index": "{% if m.role != 'system' %}{% if (m.role == 'user') != (ns.n % 2 == 0) %}{{ raise_exception('turns') }}"
    "{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}",
}
BODY = "<|im_start|>{{ m.role }}\n{{ m.content }}"
CALLS = (
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
)
TOOLS = {
    "as roles": BODY + CALLS + "<|im_end|>\n",
    "results of the user": "<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n{{ m.content }}"
    + CALLS
    + "<|im_end|>\n",
    "no results": "{% if m.role == 'tool' %}{{ raise_exception('Unknown role') }}{% endif %}"
    + BODY
    + "<|im_end|>\n",
}
START = "{% set ns = namespace(n=0) %}{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
SHAPES = {
    ", ".join(names): START + SYSTEM[names[0]] + TURNS[names[1]] + TOOLS[names[2]] + END
    for names in itertools.product(SYSTEM, TURNS, TOOLS)
}
_LLAMA2 = (
    "{% if messages[0].role == 'system' %}{% set sys = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' %}{% set rest = messages[1:] %}"
    "{% else %}{% set sys = '' %}{% set rest = messages %}{% endif %}{% for m in rest %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "{% if m.role == 'user' %}[INST] {{ sys if loop.first else '' }}{{ m.content.strip() }} [/INST]{% else %}{{ m.content.strip() }}</s>{% endif %}{% endfor %}"
)
SHAPES |= {
    "llama 2": _LLAMA2,
    "gemma": "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}<start_of_turn>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n{% endfor %}",
    "deepseek": "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}{% endif %}{% endfor %}"
    "{{ ns.s }}{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% elif m.role == 'assistant' %}<assistant>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + c.function.arguments }}{% endfor %}{% elif m.role == 'tool' %}<out>{{ m.content }}{% endif %}{% endfor %}",
    "typed": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}\n{% endfor %}",
    "phi": "{% for m in messages %}{% if m.role == 'system' %}<|system|>{{ m.content }}{% elif m.role == 'user' %}<|user|>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}{% endif %}{% endfor %}",
    "vicuna": "{% for m in messages %}{% if loop.index0 == 0 and m.role == 'system' %}{{ m.content }}\n{% elif m.role == 'user' %}USER: {{ m.content }}\n"
    "{% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }}\n{% else %}{{ raise_exception('Only user and assistant roles') }}{% endif %}{% endfor %}",
    "upper": "{% for m in messages %}{{ m.role | upper }}: {{ m.content | upper }}{{ m.tool_calls | tojson | upper if m.tool_calls }}\n{% endfor %}",
    "asks for a question": "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}{{ raise_exception('No user query found') }}{% endif %}"
    + START + TOOLS["as roles"] + END,
}  # fmt: skip
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "look", "arguments": {"at": "w7w"}},
}
ROLES = {"s": "system", "u": "user", "a": "assistant", "c": "assistant", "t": "tool"}
# Claude Code and Codex, a history, a call without an answer, a greeting, and a request without a question.
CHATS = ["su", "us", "u", "ssuusasau", "uctau", "suctctu", "auau", "ssuuaactus", "s"]


def chat(letters):
    messages = []
    for i, letter in enumerate(letters):
        message = {"role": ROLES[letter], "content": f"w{i}w"}
        if letter == "c":
            function = {"name": "look", "arguments": {"at": f"w{i}w"}}
            message |= {"content": "", "tool_calls": [_CALL | {"function": function}]}
        elif letter == "t":
            message |= {"tool_call_id": "call00001", "name": "look"}
        messages.append(message)
    return messages


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tiny.write(
        tmp_path_factory.mktemp("turns") / "m.gguf", metadata={"llama.context_length": 4096}
    )
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        llm.models() as (target, _),
    ):
        yield target


class Templated:
    """A model with another template."""

    def __init__(self, model, template):
        self._model, self.chat_template = model, template

    def __getattr__(self, name):
        return getattr(self._model, name)


def own_result(template, messages):
    """What the template makes of the messages, if it takes them and leaves out nothing."""
    history = tool_history(messages, template, marked_family(template), None)
    values = {"add_generation_prompt": True, "tools": None, "bos_token": "", "eos_token": ""}
    try:
        text = history.render(
            lambda some: render(template, values | {"messages": some}), history.messages
        )
    except Exception:
        return None
    return text if all(f"w{i}w" in text for i in range(len(messages))) else None


@pytest.mark.few(18)
@pytest.mark.parametrize("name", SHAPES)
def test_each_conversation_is_taken_whole(model, name):
    template = SHAPES[name]
    weights = Templated(model.weights, template)
    for letters in CHATS:
        messages = chat(letters)
        ids = encode_chat(weights, messages)
        text = b"".join(
            model.weights.piece(t) or model.weights.token_text(t).encode() for t in ids
        ).decode()
        assert [text.lower().count(f"w{i}w") for i in range(len(letters))] == [1] * len(letters), (
            letters,
            text,
        )
        own = own_result(template, messages)
        # These take a single later message of the system, in front or as another role.
        if own is not None and (name not in ("gemma", "deepseek", "llama 2") or letters != "us"):
            assert text == own


def test_a_template_that_takes_all_needs_nothing():
    assert template_needs(SHAPES["any place, any order, as roles"]) == Needs()
    assert template_needs("{{ 1 // 0 }}") == Needs()
    assert template_needs(SHAPES["typed"]).typed
