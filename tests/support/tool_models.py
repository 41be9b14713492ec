"""Tiny models that call tools, with chat templates that have the markers of a family."""

import itertools
import re

from gguf_spec.tools.families import FAMILIES, HARMONY
from tests.support import tiny
from tests.support.tool_examples import TEMPLATE_MARKS

FAMILY = {family.name: family for family in FAMILIES}
CHANNELS = [
    f"<|{name}|>" for name in ("start", "end", "channel", "message", "return", "call", "constrain")
]
_TURNS = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m['role'] }}: "
    "{{ m['content'] }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}\n"
    "{% endfor %}"
)


def template_of(name):
    """A chat template with the markers of a family, and its end."""
    family = FAMILY[name]
    end = "<|start|>assistant" if name == HARMONY else f"\n{family.prompted}"
    return f"{{# {TEMPLATE_MARKS[name]} #}}{_TURNS}{{{{ {end!r} }}}}", end


def special_of(name):
    return CHANNELS if name == HARMONY else list(FAMILY[name].tokens)


def _vocabulary(name, pieces=()):
    """Return tokens and their metadata: the family's markers are special tokens without text."""
    letters = tiny.byte_letters()
    words = ["".join(letters[byte] for byte in piece.encode()) for piece in pieces]
    normal = [*tiny.TOKENS[:-3], *(word for word in words if word not in tiny.TOKENS)]
    special = [*special_of(name), *tiny.SPECIAL]
    template, end = template_of(name)
    kinds = [1] * len(normal) + [3] * len(special)
    added = {"tokenizer.chat_template": template, "tokenizer.ggml.token_type": kinds,
             "llama.context_length": 1024}  # fmt: skip
    return [*normal, *special], words, added, end


def noise(path, name):
    """Write a model of a family with random texts."""
    tokens, _, added, _ = _vocabulary(name)
    return tiny.write(
        path, tiny.llama(n_vocab=len(tokens), scale=0.5), tokens=tokens, metadata=added
    )


def saying(path, name, text):
    """Write a model of a family that answers every prompt with a text.

    Each marker of the text is one token, and so is the text between two markers.
    """
    names = special_of(name)
    pattern = "|".join(map(re.escape, names))
    parts = [part for part in re.split(f"({pattern})", text) if part] if names else [text]
    tokens, words, added, end = _vocabulary(name, [part for part in parts if part not in names])
    letters = tiny.byte_letters()
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    for tensor_name, tensor in tensors.items():
        if not ("norm" in tensor_name or "embd" in tensor_name):
            tensor[:] = 0
    chain = [tokens.index(letters[ord(end[-1])])]
    rest = iter(words)
    chain += [tokens.index(part if part in names else next(rest)) for part in parts]
    chain.append(len(tokens) - 3)
    assert len(set(chain)) == len(chain), "a token may only follow once"
    for now, after in itertools.pairwise(chain):
        tensors["output.weight"][after] = 100 * tensors["token_embd.weight"][now]
    return tiny.write(path, (metadata, tensors), tokens=tokens, metadata=added)
