"""Requests fitted to a model."""

from types import SimpleNamespace

from gguf_spec.errors import PromptTooLongError
from gguf_spec.protocols.fit import newest_that_fit, seed_of


def test_an_answer_gets_at_most_half_of_the_context_of_a_long_conversation():
    """However long it may be by `max_tokens`, turns that fit into the other half stay."""

    def tokenize(messages, most):
        if (n := sum(len(m["content"]) for m in messages)) > most:
            raise PromptTooLongError(n, 100)

    llm = SimpleNamespace(n_ctx=100, tokenize=tokenize)
    turns = [{"role": "user", "content": str(i) * 20} for i in range(9)]
    for most, n in ((1000, 2), (50, 2), (20, 4), (None, 3)):
        assert newest_that_fit(llm, turns, most, {}) == turns[9 - n :]


def test_seeds():
    assert [seed_of(7, i) for i in range(3)] == [7, 8, 9]
    assert seed_of(2**64 - 1, 1) == 0
