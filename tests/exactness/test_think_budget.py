"""A budget of reasoning tokens changes the rows, so the text is the plain one with any draft."""

from dataclasses import replace

import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.text.reasoning import reasoning_format
from tests.exactness.test_same_text import CHAINS

# opens the reasoning itself, as Qwen3.5; the tags are ordinary tokens of this vocabulary
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"
BUDGET, MOST = 9, 40
DRAFTS = {
    "k 1": {"k": 1},
    "k 3": {"k": 3},
    "k 7": {"k": 7},
    "ngram": {"k": 5, "drafter": "ngram"},
    "hybrid": {"k": 4, "drafter": "hybrid"},
}
SOME = ("greedy", "no filter", "defaults", "penalties", "dry", "bias", "grammar", "schema")


@pytest.fixture
def thinker(tales, monkeypatch):
    monkeypatch.setattr(tales.engine.target.weights, "chat_template", TEMPLATE)
    return tales


def ask(llm, prompt, sampling, **speculation):
    messages = [{"role": "user", "content": prompt}]
    return llm.generate(messages, sampling, speculation=Speculation(adaptive=False, **speculation))


@pytest.mark.full
@pytest.mark.parametrize("chain", SOME)
def test_the_text_is_the_plain_one(thinker, prompts, chain):
    n_forced = 0
    for i, prompt in enumerate(prompts[:2]):
        sampling = Sampling(**CHAINS[chain], think_budget=BUDGET, max_tokens=MOST, seed=70 + i)
        plain = ask(thinker, prompt, sampling, k=0)
        n_forced += plain.stats.n_reasoning >= BUDGET
        assert plain.stats.n_reasoning <= BUDGET + len(
            reasoning_format(thinker.vocabulary).end(thinker.vocabulary)
        )
        for name, options in DRAFTS.items():
            drafted = ask(thinker, prompt, sampling, **options)
            if drafted.stats.n_near_ties:
                continue
            assert (drafted.tokens, drafted.text, drafted.reasoning) == (
                plain.tokens,
                plain.text,
                plain.reasoning,
            ), (prompt, name)
            assert drafted.stats.n_drafted > 0
    assert n_forced


@pytest.mark.full
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_rules_that_resample_keep_the_budget(thinker, prompts, accept):
    end = reasoning_format(thinker.vocabulary).end(thinker.vocabulary)
    for prompt in prompts[:4]:
        sampling = Sampling(think_budget=BUDGET, max_tokens=MOST, seed=3, temperature=1.0)
        result = ask(thinker, prompt, sampling, k=4, accept=accept)
        assert list(result.tokens[BUDGET : BUDGET + len(end)]) == end
        assert result.text


@pytest.mark.full
def test_budgets_that_end_inside_of_a_draft(thinker, prompts):
    """Each budget from 0 to the longest draft and beyond, so that the end falls on every row."""
    sampling = Sampling(temperature=0.7, max_tokens=24, seed=5)
    for budget in range(11):
        limited = replace(sampling, think_budget=budget)
        plain = ask(thinker, prompts[0], limited, k=0)
        drafted = ask(thinker, prompts[0], limited, k=7)
        assert drafted.tokens == plain.tokens or drafted.stats.n_near_ties
        assert plain.stats.n_reasoning >= budget
