"""Tiny models that reason, with templates of their own that have the structure of well-known ones."""

import itertools

from gguf_spec import load
from tests.support import tiny

_CHATML = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
    "{%- if m.role == 'assistant' and m.reasoning_content is defined and loop.index0 > ns.asked %}"
    "{{ '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{- m.content + '<|im_end|>\\n' }}{% endfor %}"
)
_ASKED = (
    "{%- set ns = namespace(asked=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
)
_BEGIN = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
_OFF = "{% if enable_thinking is defined and enable_thinking is false %}"
_EMPTY = "{{ '<think>\\n\\n</think>\\n\\n' }}"
# opens nothing; a switch writes an empty part (Qwen3)
QWEN3 = _ASKED + _CHATML + _BEGIN + _OFF + _EMPTY + "{% endif %}{% endif %}"
# opens the part itself (Qwen3.5)
QWEN35 = (
    _ASKED + _CHATML + _BEGIN + _OFF + _EMPTY + "{% else %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
# opens the part, drops the reasoning of earlier answers, has no switch (DeepSeek R1)
R1 = (
    "{% for m in messages %}{% set content = m['content'] %}{% if m['role'] == 'user' %}"
    "{{ '<|im_start|>' + content }}{% else %}"
    "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}"
    "{{ '<|im_end|>' + content + '<|endoftext|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_end|><think>\\n' }}{% endif %}"
)
# a switch with another name (DeepSeek V3.1)
V31 = (
    "{% if not thinking is defined %}{% set thinking = false %}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_end|>' }}"
    "{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}{% endif %}"
)
# channels (gpt-oss)
GPT_OSS = (
    "{%- macro system() %}{% if reasoning_effort is not defined %}"
    "{% set reasoning_effort = 'medium' %}{% endif %}{{ 'Reasoning: ' + reasoning_effort }}"
    "{% endmacro %}<|start|>system<|message|>{{ system() }}<|end|>"
    "{% for m in messages %}{% if m.tool_calls is defined and 'thinking' in m %}"
    "{% if m.content %}{{ raise_exception('Cannot pass both') }}{% endif %}"
    "{{ '<|start|>assistant<|channel|>analysis<|message|>' + m.thinking + '<|end|>' }}{% endif %}"
    "{{ '<|start|>' + m.role + ('<|channel|>final' if m.role == 'assistant' else '') }}"
    "{{ '<|message|>' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
_OSS = ("start", "end", "channel", "message", "return", "call", "constrain")
CHANNEL_TOKENS = [f"<|{name}|>" for name in _OSS]
WORDS = ["<think>", "</think>", "assistant", "analysis", "final"]
TOKENS = [*tiny.TOKENS[: tiny.END], *WORDS, *CHANNEL_TOKENS, *tiny.SPECIAL]
_CONTROL, _USER_DEFINED, _NORMAL = 3, 4, 1


def write(path, template, chain, hidden=()):
    """Write a model that emits `chain`: each token depends only on the previous one.

    Args:
        path: The file.
        template: Its chat template.
        chain: Tokens, the first of which is the last one of the prompt.
        hidden: Words that are special tokens without text.
    """
    metadata, tensors = tiny.llama(len(TOKENS))
    for name, tensor in tensors.items():
        if not ("norm" in name or "embd" in name):
            tensor[:] = 0
    for now, after in itertools.pairwise(chain):
        row = tensors["token_embd.weight"][TOKENS.index(now)]
        tensors["output.weight"][TOKENS.index(after)] = 100 * row
    kinds = [_NORMAL] * tiny.END + [_USER_DEFINED] * len(WORDS)
    kinds += [_CONTROL] * len([*CHANNEL_TOKENS, *tiny.SPECIAL])
    for word in hidden:
        kinds[TOKENS.index(word)] = _CONTROL
    added = {"tokenizer.chat_template": template, "tokenizer.ggml.token_type": kinds}
    return tiny.write(path, (metadata, tensors), tokens=TOKENS, metadata=added)


def thinker(path, template, chain, hidden=()):
    """Load a model that `write` wrote."""
    return load(write(path, template, chain, hidden), None, threads=1, extra_bufts=False)
