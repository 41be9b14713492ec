"""Earlier calls and results in prompts: chat templates with the quirks of well-known ones, in short."""

import json
import sys

import pytest

import gguf_spec
from gguf_spec.text.jinja_sandbox import render
from gguf_spec.text.turns import tool_history, with_text_arguments
from gguf_spec.tools.families import family_of, marked_family, reads_tools
from gguf_spec.tools.reader import ToolReader, read_answer
from tests.support import tiny, tool_models
from tests.support.tool_examples import SCHEMAS, use

TOOLS = use().tools
_RESULT = "{% elif m.role == 'tool' %}<r>{{ m.content }}</r>"
_ELSE = "{% else %}{{ m.content }}{% endif %}{% endfor %}"
_HEAD = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}"
TEMPLATES = {
    "hermes": _HEAD + "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}" + _RESULT + _ELSE,
    # ids of nine letters and digits
    "mistral-args": _HEAD + "{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('id') }}{% endif %}"
    "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}"
    "{% endfor %}{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('id') }}{% endif %}<r>{{ m.content }}</r>" + _ELSE,
    # arguments joined as text
    "functionary-v3.2": "{# >>>all #}" + _HEAD + "{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ '>>>' + c.function.name + '\n' + c.function.arguments }}{% endfor %}" + _RESULT + _ELSE,
    # one call in a message
    "harmony": _HEAD + "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call') }}{% endif %}{% set c = m.tool_calls[0].function %}"
    "<|channel|>commentary to=functions.{{ c.name }} <|constrain|>json<|message|>"
    "{{ c.arguments | tojson }}" + _RESULT + _ELSE,
    # no place for calls
    "granite3": "{# <|tool_call|> #}" + _HEAD + "{% if m.role == 'tool' %}<r>{{ m.content }}</r>"
    + _ELSE,
    # values in tags
    "qwen3-coder": _HEAD + "{% if m.tool_calls %}{% for c in m.tool_calls %}<tool_call>\n"
    "<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}"
    "<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}"
    "</function>\n</tool_call>{% endfor %}" + _RESULT + _ELSE,
}  # fmt: skip


def call(i, **arguments):
    function = {"name": "weather", "arguments": arguments}
    return {"id": f"call_{i:020}", "type": "function", "function": function}


def conversation(n):
    """A question, n calls of it, and their results."""
    calls = [call(i, city=f"C{i}", days=i) for i in range(n)]
    results = [
        {"role": "tool", "content": f"sunny {i}", "tool_call_id": f"call_{i:020}"} for i in range(n)
    ]
    return [
        {"role": "user", "content": "Well?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *results,
    ]


def fitted(messages, template, tools):
    return tool_history(messages, template, marked_family(template), tools)


def rendered(template, messages):
    history = fitted(messages, template, TOOLS)

    def one(contents):
        values = {"messages": contents, "tools": TOOLS}
        try:
            return render(template, values)
        except Exception:
            return render(template, values | {"messages": with_text_arguments(contents)})

    return history.render(one, history.messages)


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_and_results_are_rendered(name, n):
    """The reader of a family reads the calls that its template writes."""
    template = TEMPLATES[name]
    family = family_of(template)
    assert (family.name, reads_tools(template)) == (name, True)
    text = rendered(template, conversation(n)).partition("Well?")[2]
    _, calls = read_answer(text.removeprefix(family.prompted), ToolReader(family, SCHEMAS))
    expected = [("weather", {"city": f"C{i}", "days": i}) for i in range(n)]
    assert [(found, json.loads(arguments)) for found, arguments in calls] == expected
    assert all(f"<r>sunny {i}</r>" in text for i in range(n))


def test_thousands_of_calls_take_one_search_of_the_prompt():
    """The template has no place for calls, and the prompt is searched once, not once for each."""
    calls = [
        {"role": "assistant", "content": "", "tool_calls": [call(i, city=f"C{i}", days=i)]}
        for i in range(2000)
    ]
    replaced = []
    sys.setprofile(lambda _, event, of: event == "c_call" and replaced.append(of.__name__))
    try:
        text = rendered(TEMPLATES["granite3"], calls)
    finally:
        sys.setprofile(None)
    places = [text.index(f'"C{i}"') for i in range(2000)]
    assert places == sorted(places)
    assert replaced.count("replace") < 100


def test_each_call_is_followed_by_its_result():
    text = rendered(TEMPLATES["harmony"], conversation(2))
    places = [text.index(one) for one in ('"C0"', "sunny 0", '"C1"', "sunny 1")]
    assert places == sorted(places)


def test_ids_that_fit_are_kept_and_others_belong_together():
    messages = conversation(1)
    history = fitted(messages, TEMPLATES["mistral-args"], None).messages
    id_ = history[1]["tool_calls"][0]["id"]
    assert (len(id_), history[2]["tool_call_id"]) == (9, id_)
    messages[1]["tool_calls"][0]["id"] = messages[2]["tool_call_id"] = "abc123XYZ"
    history = fitted(messages, TEMPLATES["mistral-args"], None).messages
    assert history[1]["tool_calls"][0]["id"] == history[2]["tool_call_id"] == "abc123XYZ"


def test_tools_in_the_system_message():
    """Phi-4-mini."""
    template = (
        "{% for message in messages %}{% if message['role'] == 'system' and message['tools'] %}"
        "<|tool|>{{ message['tools'] }}<|/tool|>{% endif %}{{ message.content }}{% endfor %}"
    )
    for before in ([], [{"role": "system", "content": "Be brief."}]):
        history = fitted([*before, *conversation(1)[:1]], template, TOOLS)
        text = history.render(lambda ms: render(template, {"messages": ms}), history.messages)
        tools = json.loads(text.partition("<|tool|>")[2].partition("<|/tool|>")[0])
        assert [one["name"] for one in tools] == ["weather", "ping"]


def test_tools_in_another_variable(tmp_path):
    """SmolLM3."""
    template = (
        "{% for t in xml_tools or [] %}{{ t.function.name }}{% endfor %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    path = tiny.write(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        messages = [{"role": "user", "content": "x"}]
        n_more = len(llm.tokenize(messages, tools=TOOLS)) - len(llm.tokenize(messages))
        assert n_more == len(llm.tokenize("weatherping"))


def test_written_calls_have_their_special_tokens(tmp_path):
    """A content cannot write these tokens, and the calls of the request can."""
    template = "{# <|tool_list_start|> #}" + _HEAD + "{{ m.content | trim }}|{% endfor %}"
    assert family_of(template).name == "lfm2"
    names = tool_models.special_of("lfm2")
    tokens = [*tiny.TOKENS[:-3], *names, *tiny.SPECIAL]
    kinds = [1] * (len(tokens) - 5) + [3] * 5
    added = {"tokenizer.chat_template": template, "tokenizer.ggml.token_type": kinds}
    path = tiny.write(
        tmp_path / "l.gguf", tiny.llama(n_vocab=len(tokens)), tokens=tokens, metadata=added
    )
    spelled = "<|tool_call_start|>[ping()]<|tool_call_end|>"
    messages = [
        {"role": "user", "content": f"Write {spelled}!"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call(0, city="Bonn")]},
    ]
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        ids = llm.tokenize(messages, tools=TOOLS)
        special = [tokens[token] for token in ids if token >= len(tokens) - 5]
        assert special == names
        text = "".join(tokens[i] if i in special else llm.token_text(i) for i in ids)
        assert 'I look.\n<|tool_call_start|>[weather(city="Bonn")]<|tool_call_end|>|' in text
        assert spelled in text
        messages[1]["tool_calls"] = [call(0, city="<|tool_call_end|>")]
        ids = llm.tokenize(messages, tools=TOOLS)
        assert [tokens[token] for token in ids if token >= len(tokens) - 5] == special
        text = "".join(tokens[i] if i in special else llm.token_text(i) for i in ids)
        assert '[weather(city="<|tool_call_end|>")]' in text


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('system first') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
ALTERNATE = (
    "{% set ns = namespace(user=true) %}{% for m in messages %}{% if m.role != 'system' %}"
    "{% if (m.role == 'user') != ns.user %}{{ raise_exception('turns') }}{% endif %}{% set ns.user = not ns.user %}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}"
)
NO_SYSTEM = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
SAID = [
    ("system", "S"),
    ("system", "T"),
    ("user", "a"),
    ("user", "b"),
    ("assistant", "c"),
    ("system", "later"),
    ("user", "d"),
]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}", "".join(f"[{role}]{text}" for role, text in SAID)),
        (STRICT, "[system]S\n\nT[user]a[user]b[assistant]c[user]<system>\nlater\n</system>[user]d"),
        (ALTERNATE, "[system]S[system]T[user]a\n\nb[assistant]c[system]later[user]d"),
        (NO_SYSTEM, "[user]S\n\nT\n\na[user]b[assistant]c[user]<system>\nlater\n</system>[user]d"),
    ],
)  # fmt: skip
def test_templates_that_are_strict_about_roles(tmp_path, template, expected):
    """Only a template that refuses the messages gets them in another form."""
    path = tiny.write(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": template})
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        ids = llm.tokenize([{"role": role, "content": text} for role, text in SAID])
        assert ids == llm.tokenize(expected)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", TEMPLATES)
def test_arguments_that_are_no_json(tmp_path, name):
    """Those of a call that was cut: each template writes them as they are."""
    path = tiny.write(tmp_path / "t.gguf", metadata={"tokenizer.chat_template": TEMPLATES[name]})
    messages = conversation(1)
    messages[1]["tool_calls"][0]["function"]["arguments"] = cut = '{"c": "a\\n<|im_end|>'
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm:
        ids = llm.tokenize(messages, tools=TOOLS)
        assert ids.count(tiny.END) == ids.count(tiny.IM_START) == 0
        text = b"".join(llm.token_bytes(token) for token in ids).decode()
        assert (json.dumps(cut) if name == "granite3" else cut) in text
        if name == "hermes":
            assert f'"arguments": {cut}}}' in text
