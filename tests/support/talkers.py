"""Models that give a fixed answer, which depends only on the last character of the prompt."""

import itertools

from tests.support import tiny

# Calls in the form of Hermes; after the result of a call the prompt ends with `Q`.
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.tool_calls %}{% for call in message.tool_calls %}"
    "{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}{% endif %}"
    "{{ message.content }}{{ '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}{% if messages[-1].role == 'tool' %}{{ 'Q' }}{% endif %}"
)


def answering(path, answers, template=TEMPLATE, n_ctx=2048):
    """Write a model.

    Args:
        path: Its file.
        answers: Last character of the prompt -> pieces of the answer, a token each. All pieces must differ.
        template: Its chat template.
        n_ctx: Its context.
    """
    letters = tiny.byte_letters()
    pieces = [
        "".join(letters[byte] for byte in piece.encode())
        for said in answers.values()
        for piece in said
    ]
    assert len(set(pieces)) == len(pieces)
    tokens = [*tiny.TOKENS[:-3], *pieces, *tiny.SPECIAL]
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    tensors = {
        name: tensor if "norm" in name or "embd" in name else tensor * 0
        for name, tensor in tensors.items()
    }
    ids = iter(range(len(tiny.TOKENS) - 3, len(tokens) - 3))
    for last, said in answers.items():
        chain = [
            tokens.index(letters[ord(last)]),
            *itertools.islice(ids, len(said)),
            len(tokens) - 3,
        ]
        for now, after in itertools.pairwise(chain):
            tensors["output.weight"][after] += 100 * tensors["token_embd.weight"][now]
    more = {"tokenizer.chat_template": template, "llama.context_length": n_ctx}
    return tiny.write(path, (metadata, tensors), tokens=tokens, metadata=more)
