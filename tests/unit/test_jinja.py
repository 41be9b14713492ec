"""Chat templates: the same text as llama-cpp-python's, and limits of time and memory for hostile ones."""

import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from gguf_spec.text import jinja_sandbox
from gguf_spec.text.jinja_sandbox import TemplateFailure, render
from tests.support import children
from tests.support.pace import limit_s

USER = {"role": "user", "content": "What is 2 + 2? "}
ANSWER = {"role": "assistant", "content": "<think>\nadd\n</think>\n\nIt is 4."}
CHATS = [
    [USER],
    [{"role": "system", "content": " Be brief.\n"}, USER],
    [
        {"role": "system", "content": "S"},
        USER,
        ANSWER,
        {"role": "user", "content": "Größe? {{ 1 }} \ud800 <b>&"},
    ],
    [USER, ANSWER, USER, {"role": "assistant", "content": ""}, USER],
    [
        USER,
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, None, "é"]}}}],
        },
        USER,
    ],
]
SIMPLE = {
    "ChatML": """{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system
You help.<|im_end|>
{% endif %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "Llama 3": """{{- bos_token }}
{%- if not date is defined %}{%- set date = strftime_now("%Y") %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
<|start_header_id|>system<|end_header_id|>{{ "\n\n" }}{{ "Today: " + date + "\n\n" + system }}<|eot_id|>
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls | length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson(indent=4) }}{{- "}<|eot_id|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}""",
    "Gemma": """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- set rest = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set rest = messages -%}
{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim if item['type'] == 'text' else '<start_of_image>' }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}""",
    "Mistral": """{%- set ns = namespace(system='', turn=0) %}
{%- set asked = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{%- set ns.system = message.content %}{%- continue %}{%- endif %}
    {%- if message.role == 'user' %}
        {%- if (ns.turn % 2) != 0 %}{{- raise_exception('After the optional system message, roles must alternate') }}{%- endif %}
        {{- '[INST] ' ~ (ns.system + '\n\n' if ns.system and message == asked[-1] else '') ~ message.content ~ '[/INST]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' ~ message.content | trim ~ eos_token }}
    {%- else %}{{- raise_exception('Only user, system and assistant roles are supported') }}{%- endif %}
    {%- set ns.turn = ns.turn + 1 %}
{%- endfor %}""",
    "Qwen": """{%- if tools %}{{- tools | tojson }}{%- endif %}
{%- set ns = namespace(many=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.many and message.role == "user" and message.content is string and not message.content.startswith('<tool_response>') %}
        {%- set ns.many = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role in ["user", "system"] %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {%- if '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- generation %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if loop.index0 > ns.last or (loop.last and thought) %}{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' }}{%- endif %}
        {{- content }}
        {%- endgeneration %}
        {%- for call in message.tool_calls or [] %}
            {{- '\n<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson ~ '}' }}
            {%- for key, value in call.function.arguments.items() if key != "return" %}{{- loop.length ~ key ~ value[0] }}{%- endfor %}
            {%- if not loop.last %}{%- break %}{%- endif %}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}""",
}
OTHER = {
    "macros": """{%- macro turn(message, depth=0) -%}
<{{ message.role }}>{{ message.content | replace('\n', ' ') }}{% if depth < 2 %}{{ turn(message, depth + 1) }}{% endif %}
{%- endmacro -%}
{% for message in messages %}{{ turn(message) }}{% endfor %}""",
    "ranges": "{% for i in range(messages | length) %}{{ i * 2 }}{{ messages[i]['role'] | center(12) }}{{ '-' * 3 }}{% endfor %}",
    "literals": "{% for m in messages + [{'role': 'user', 'content': 'x'}] %}{{ m.content | join('|') }}{{ [m.role, m.role] }}{% endfor %}",
    "methods": "{{ messages[0].content.center(40) }}{% set f = messages[0].content.zfill %}{{ f(50) }}",
    "blocks": "{% set all %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ all | upper | wordwrap(9) }}",
    "filters": "{{ messages | map(attribute='content') | join(', ') }}{{ '%s: %d' | format('n', 3) }}{{ messages | dictsort if 0 else '' }}",
}


def values(messages, **more):
    names = {"tools": None, "tool_choice": None, "functions": None, "function_call": None}
    return (
        {
            "messages": messages,
            "add_generation_prompt": True,
            "bos_token": "<s>",
            "eos_token": "</s>",
        }
        | names
        | more
    )


def of_llama_cpp_python(template, messages):
    try:
        return Jinja2ChatFormatter(template, eos_token="</s>", bos_token="<s>")(
            messages=messages
        ).prompt
    except ValueError as error:
        return f"refused: {error}"


def of_ours(template, messages):
    try:
        return render(template, values(messages))
    except TemplateFailure as error:
        return f"refused: {error}"


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("messages", CHATS, ids=range(len(CHATS)))
def test_well_known_templates_are_rendered_in_process_with_the_same_text(
    name, messages, monkeypatch
):
    monkeypatch.setattr(
        jinja_sandbox,
        "render_in_child",
        lambda *_: pytest.fail("no template that is so common should need a process of its own"),
    )
    assert of_ours(SIMPLE[name], messages) == of_llama_cpp_python(SIMPLE[name], messages)


@pytest.mark.full
@pytest.mark.parametrize("template", [*SIMPLE.values(), *OTHER.values()], ids=[*SIMPLE, *OTHER])
def test_a_process_of_its_own_writes_the_same(template, monkeypatch):
    monkeypatch.setattr(jinja_sandbox, "simple_template", lambda _: None)
    for messages in CHATS[:3]:
        assert of_ours(template, messages) == of_llama_cpp_python(template, messages)


@pytest.mark.parametrize("template", OTHER.values(), ids=OTHER)
def test_other_templates_are_rendered_in_a_child(template, monkeypatch):
    asked = []
    monkeypatch.setattr(
        jinja_sandbox, "render_in_child", lambda *given: asked.append(given) or "there"
    )
    assert render(template, values(CHATS[0])) == "there"
    assert len(asked) == 1


def test_some_shapes_refuse_some_chats():
    assert (
        of_ours(SIMPLE["Mistral"], [USER, USER])
        == "refused: After the optional system message, roles must alternate"
    )
    assert of_ours(SIMPLE["Gemma"], CHATS[0] * 2) == "refused: Roles must alternate user/assistant"


def test_a_template_is_compiled_once(monkeypatch):
    jinja_sandbox.simple_template.cache_clear()
    for messages in CHATS:
        of_ours(SIMPLE["ChatML"], messages)
    assert (
        jinja_sandbox.simple_template.cache_info().misses,
        jinja_sandbox.simple_template.cache_info().hits,
    ) == (
        1,
        len(CHATS) - 1,
    )


GROW = "{% set ns = namespace(x='xxxxxxxxxx') %}{% for i in messages[0].content %}"
HOSTILE = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops over letters": "{% set c = messages[0].content %}"
    + "{% for i in c %}" * 5
    + "{% endfor %}" * 5,
    "loops that filter": "{% set c = messages[0].content %}"
    + "{% for i in c if i == 'z' or c in c %}"
    + "{% for i in c if i == '' %}{% endfor %}" * 90
    + "{% endfor %}",
    "a power": "{{ 9**(9**9) }}",
    "a power in a constant": "{{ 9 if false else 9**(9**9) }}",
    "a long string": "{{ 'x' * 10**10 }}",
    "a long string by formatting": "{{ '%10000000000d' % 1 }}",
    "another": "{{ '{:10000000000}'.format(1) }}",
    "a wide one": "{{ 'x'.center(10**10) }}",
    "a wide filter": "{{ 'x' | center(10**10) }}",
    "indents": "{{ ('x\n' * 100000) | indent(100000) }}",
    "JSON with indents": "{{ messages | tojson(indent=10**10) }}",
    "JSON with separators": "{% set s = messages[0].content %}{{ messages | tojson(separators=(s*99999, s)) }}",
    "doubling": GROW + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "doubling joined": GROW + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    "doubling by escapes": GROW + "{% set ns.x = ns.x | tojson %}{% endfor %}{{ ns.x }}",
    "doubling a list": GROW.replace("'xxxxxxxxxx'", "messages")
    + "{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "lists in lists": GROW + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "lists in lists compared": GROW
    + "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "namespaces in namespaces": GROW
    + "{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns.a | tojson }}",
    "joins": "{{ range(99999) | join('x' * 99999) }}",
    "replaces": "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "much text": "{% for i in range(99999) %}" + "much " * 100 + "{% endfor %}",
    "much text in a block": "{% set x %}{% for i in range(99999) %}{% for i in range(999) %}"
    + "much " * 100
    + "{% endfor %}{% endfor %}{% endset %}{{ x }}",
    "much text of messages": "{% for i in messages[0].content %}{% for i in messages[0].content %}{{ messages[0].content }}{% endfor %}{% endfor %}",
    "a macro that calls itself": "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "a loop that calls itself": "{% for i in messages recursive %}{{ loop(messages) }}{{ loop(messages) }}{% endfor %}",
    "lorem": "{{ lipsum(10**9) }}",
    "a renamed function": "{% set namespace = messages[0].content.center %}{{ namespace(10**10) }}",
    "a method kept for later": "{% set ns = namespace() %}{% set ns.strip = messages[0].content.center %}{{ ns.strip(10**10) }}",
    "a translation": "{% set t = {120: 'y' * 99999} %}{{ ('x' * 99999).translate(t) }}",
    "bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "batches": "{{ [1] | batch(10**10, 'x') | list }}",
    "a date": "{{ strftime_now('%c' * 10**9) }}",
    "deep parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "a deep sum": "{{ " + "1+" * 30000 + "1 }}",
    "deep blocks": "{% if true %}" * 3000 + "{% endif %}" * 3000,
    "reaching out": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "reaching out by name": "{{ '{0.__class__}'.format('') }}{{ messages.__class__.__init__.__globals__ }}",
    "files": "{% include '/etc/passwd' %}",
    "imports": "{% import '/etc/passwd' as x %}",
}
CHILD = """
import json, resource, sys, time
from gguf_spec.text import jinja_sandbox
jinja_sandbox.CPU_SECONDS = 1
template, values = json.loads(sys.stdin.read())
started = time.process_time()
try:
    text = jinja_sandbox.render(template, values)
    said = None
except jinja_sandbox.TemplateFailure as error:
    text, said = "", str(error)
own = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))  # ru_maxrss begins with that of who started us
kib = max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
print(json.dumps([len(text), said, time.process_time() - started, kib / 1024]))
"""


@pytest.fixture(scope="module")
def harmed():
    """Run all renderings, two at a time, and return their outcomes; most end at their time limit."""

    def render(template):
        task = json.dumps([template, values([{"role": "user", "content": "x" * 5000}])])
        return children.run(
            [sys.executable, "-c", CHILD],
            input=task,
            capture_output=True,
            text=True,
            check=False,
            limit_s=60,
        )

    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(render, template) for name, template in HOSTILE.items()}


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="measures memory in KiB")
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_within_limits(harmed, name):
    child = harmed[name].result()
    assert (child.returncode, child.stderr) == (0, "")
    n, said, seconds, mib = json.loads(child.stdout)
    print(f"{seconds:.2f} s, {mib:.0f} MiB: {said or n}")
    assert n <= jinja_sandbox.MAX_OUTPUT + 6000
    assert said is None or "\n" not in said
    assert seconds < limit_s(10)  # of this process; its child has a limit of 1 s from the system
    assert mib < 700


@pytest.mark.full
def test_most_hostile_templates_are_refused():
    for name in (
        "a long string",
        "doubling",
        "much text",
        "deep parentheses",
        "reaching out",
        "files",
    ):
        with pytest.raises(TemplateFailure):
            render(
                HOSTILE[name],
                values(
                    CHATS[0] if name != "doubling" else [{"role": "user", "content": "x" * 5000}]
                ),
            )


def test_a_template_may_not_be_longer_than_a_megabyte():
    with pytest.raises(TemplateFailure, match="1,048,577 characters"):
        render("x" * (jinja_sandbox.MAX_SOURCE + 1), values([]))
    assert render("x" * (jinja_sandbox.MAX_SOURCE - 1), values([])) == "x" * (
        jinja_sandbox.MAX_SOURCE - 1
    )


def test_output_may_be_a_megabyte_longer_than_the_messages():
    messages = [{"role": "user", "content": "x" * 200_000}]
    assert len(render("{{ messages[0].content }}" * 6, values(messages))) == 1_200_000
    with pytest.raises(TemplateFailure, match="writes more than"):
        render("{{ messages[0].content }}" * 7, values(messages))


def test_long_chats_are_rendered():
    messages = [USER, ANSWER] * 5000
    assert render(SIMPLE["ChatML"], values(messages)).count("<|im_start|>") == 10_002


def test_messages_that_json_cannot_hold():
    circle = {"role": "user"}
    circle["content"] = circle
    for messages in ([circle], [{"role": "user", "content": b"x"}]):
        with pytest.raises(TemplateFailure, match="JSON"):
            render(SIMPLE["ChatML"], values(messages))


def test_from_many_threads_at_once():
    wanted = [of_llama_cpp_python(SIMPLE["Qwen"], messages) for messages in CHATS]
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append([of_ours(SIMPLE["Qwen"], messages) for messages in CHATS])
        )
        for _ in range(8)
    ]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == [wanted] * 8


@pytest.mark.full
def test_the_time_is_limited_from_any_thread(monkeypatch):
    monkeypatch.setattr(jinja_sandbox, "CPU_SECONDS", 1)
    said = []
    thread = threading.Thread(target=lambda: said.append(of_ours(HOSTILE["a power"], CHATS[0])))
    thread.start()
    thread.join(180)
    assert said == ["refused: it takes more than 1 seconds"]


def test_without_a_python_to_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    assert render(SIMPLE["ChatML"], values(CHATS[0])).startswith("<|im_start|>system")
    with pytest.raises(TemplateFailure, match="there is no Python interpreter"):
        render(OTHER["macros"], values(CHATS[0]))
