"""On the bundled pair the seed decides the text, for all drafts and sampling options."""

import json
import re
from dataclasses import replace

import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.speculative.controller import DraftController

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["king", "fox", "miller"]},
        "friends": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["name", "age", "kind", "friends"],
    "additionalProperties": False,
}
GBNF = r"""root ::= line line
line ::= [A-Z] [a-z ]{3,40} "." " "?"""
CHAINS = {
    "greedy": {"temperature": 0.0},
    "no filter": {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "defaults": {},
    "top-p": {"top_k": 0, "top_p": 0.8},
    "min-p": {"top_k": 0, "top_p": 1.0, "min_p": 0.1, "temperature": 1.2},
    "typical-p": {"top_k": 60, "top_p": 1.0, "typical_p": 0.6},
    "top-n-sigma": {"top_k": 0, "top_p": 1.0, "top_n_sigma": 1.0},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.08},
    "penalties": {
        "repeat_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.4,
        "penalty_last_n": 32,
    },
    "greedy with penalties": {"temperature": 0.0, "repeat_penalty": 1.3},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1, "temperature": 0.4},
    "bias": {"logit_bias": dict.fromkeys(range(300, 600), -4.0)},
    "grammar": {"grammar": GBNF},
    "grammar, no filter": {"grammar": GBNF, "top_k": 0, "top_p": 1.0, "temperature": 1.0},
    "greedy grammar": {"grammar": GBNF, "temperature": 0.0},
    "schema": {"json_schema": SCHEMA},
    "ignore_eos": {"ignore_eos": True},
}


def compare(llm, prompts, sampling, ks=(1, 3, 7)):
    """Count texts that are the plain one; fail on the first that is not and has no near tie. Returns (texts, near ties, rounds, plain rounds)."""
    n, ties, rounds, plain_rounds = 0, 0, 0, 0
    for i, prompt in enumerate(prompts):
        one = replace(sampling, seed=1000 + i)
        plain = llm.generate(prompt, one, speculation=Speculation(0))
        for k in ks:
            burst = llm.generate(prompt, one, speculation=Speculation(k, adaptive=False))
            ties += burst.stats.n_near_ties
            if not burst.stats.n_near_ties:
                assert (burst.text, burst.tokens, burst.finish_reason) == (
                    plain.text,
                    plain.tokens,
                    plain.finish_reason,
                ), (prompt, k)
            n, rounds, plain_rounds = (
                n + 1,
                rounds + burst.stats.rounds,
                plain_rounds + plain.stats.rounds,
            )
    return n, ties, rounds, plain_rounds


@pytest.mark.full
@pytest.mark.parametrize("options", CHAINS.values(), ids=CHAINS)
def test_the_text_is_the_plain_one(tales, prompts, options):
    _, _, rounds, plain_rounds = compare(tales, prompts[:3], Sampling(**options, max_tokens=40))
    assert rounds < 0.85 * plain_rounds  # or nothing was speculated


def test_a_drafter_that_differs_in_all_ways(tales, prompts, monkeypatch):
    """Negated rows of the draft: it is never right, and changes no text."""
    draft = type(tales.engine.pair.draft)
    right = draft.logits
    monkeypatch.setattr(
        draft,
        "logits",
        lambda self, *args: (
            -right(self, *args) if self is tales.engine.pair.draft else right(self, *args)
        ),
    )
    _, _, rounds, plain_rounds = compare(tales, prompts[:2], Sampling(max_tokens=30), ks=(4,))
    assert rounds > 0.95 * plain_rounds


@pytest.mark.slow
def test_a_hundred_prompts(tales, prompts, capsys):
    """T 0.8, top-k 40, top-p 0.95: none, and drafts of 1, 3, 7."""
    hundred = [*prompts, *(text[: len(text) // 2] for text in prompts)]
    assert len(set(hundred)) == 100
    n, ties, rounds, plain_rounds = compare(
        tales, hundred, Sampling(temperature=0.8, top_k=40, top_p=0.95, max_tokens=64)
    )
    with capsys.disabled():
        print(
            f"\n{n} of {n} sampled texts identical, {ties} near ties; {plain_rounds / rounds:.2f} tokens a round"
        )


def valid(text):
    """Whether a text is JSON of SCHEMA, read without a library that could be wrong in the same way."""
    value = json.loads(text)
    assert list(value) == ["name", "age", "kind", "friends"]
    assert isinstance(value["name"], str)
    assert len(value["name"]) <= 12
    assert isinstance(value["age"], int)
    assert 0 <= value["age"] <= 120
    assert value["kind"] in ("king", "fox", "miller")
    assert len(value["friends"]) <= 2
    assert all(isinstance(f, str) and len(f) <= 8 for f in value["friends"])
    return True


def schema_run(llm, prompts):
    """Return the number of answers that are valid and equal to the plain ones."""
    n_valid = 0
    for i, prompt in enumerate(prompts):
        sampling = Sampling(temperature=1.0, json_schema=SCHEMA, seed=i, max_tokens=400)
        burst = llm.generate(prompt, sampling, speculation=Speculation(4, adaptive=False))
        assert burst.finish_reason == "stop"
        n_valid += (
            valid(burst.text)
            and burst.text == llm.generate(prompt, sampling, speculation=Speculation(0)).text
        )
    return n_valid


@pytest.mark.full
def test_answers_follow_a_schema(tales, prompts):
    assert schema_run(tales, prompts[:8]) == 8


@pytest.mark.slow
def test_a_hundred_answers_follow_a_schema(tales, prompts, capsys):
    n = schema_run(tales, prompts * 2)
    with capsys.disabled():
        print(f"\n{n} of 100 answers valid and equal to plain ones")
    assert n == 100


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.0}, {"repeat_penalty": 1.5, "grammar": GBNF}]
)
def test_log_probabilities_are_those_of_a_plain_run(tales, options):
    sampling = Sampling(**options, seed=5, max_tokens=40, logprobs=3)
    plain = tales.generate("Once upon a time", sampling, speculation=Speculation(0))
    burst = tales.generate("Once upon a time", sampling, speculation=Speculation(5, adaptive=False))
    assert [one.token for one in burst.logprobs] == list(burst.tokens) == list(plain.tokens)
    for a, b in zip(burst.logprobs, plain.logprobs, strict=True):
        assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
        assert [token for token, _ in a.top] == [token for token, _ in b.top]
        assert [value for _, value in a.top] == pytest.approx(
            [value for _, value in b.top], abs=1e-3
        )
        assert len(a.top) == 3
        assert a.top[0][1] >= a.top[1][1] >= a.top[2][1]


def test_log_probabilities_are_the_models_own(tales):
    """Summed over tokens they are the log-probability of the text, computed here from the rows in one pass."""
    import numpy as np

    ids = tales.tokenize("Once upon a time")
    result = tales.generate_tokens(
        ids,
        Sampling(seed=3, max_tokens=20, logprobs=0, repeat_penalty=1.4),
        speculation=Speculation(4, adaptive=False),
    )
    with tales.models() as (target, _):
        target.rollback(0)
        rows = target.logits([*ids, *result.tokens[:-1]], len(result.tokens)).astype(np.float64)
    expected = rows[np.arange(len(result.tokens)), list(result.tokens)] - np.log(
        np.exp(rows).sum(1)
    )
    assert [one.logprob for one in result.logprobs] == pytest.approx(expected.tolist(), abs=1e-3)
    assert all(one.top == () for one in result.logprobs)


@pytest.mark.full
def test_cancelled_and_taken_up_again(tales):
    ids, sampling = tales.tokenize("The old woman said"), Sampling(seed=8, max_tokens=60)
    whole = tales.generate_tokens(ids, sampling, speculation=Speculation(4, adaptive=False))
    for cut in (1, 7, 30):
        said = []
        part = tales.generate_tokens(
            ids,
            sampling,
            speculation=Speculation(3, adaptive=False),
            on_token=lambda t, said=said, cut=cut: said.append(t) or len(said) == cut,
        )
        assert part.finish_reason == "cancelled"
        rest = tales.generate_tokens(
            [*ids, *said],
            replace(sampling, max_tokens=60 - cut),
            speculation=Speculation(6, adaptive=False),
        )
        assert (*said, *rest.tokens) == whole.tokens


@pytest.mark.full
def test_earlier_requests_change_no_text(tales):
    """Each request changes the learned statistics; the text does not depend on them."""
    sampling = Sampling(seed=2, max_tokens=50)
    before = tales.generate("A fox and a hen", sampling)
    for seed in range(6):
        tales.generate(
            "Once upon a time there was a king", Sampling(seed=seed, temperature=1.5, max_tokens=60)
        )
    assert tales.generate("A fox and a hen", sampling).text == before.text


@pytest.mark.full
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_the_other_rules_are_reproducible(tales, accept):
    """Their text depends on the draft, so nothing may be learned with them."""
    sampling, speculation = Sampling(seed=2, max_tokens=50), Speculation(4, accept, adaptive=False)
    before = tales.generate("A fox and a hen", sampling, speculation=speculation)
    for seed in range(4):
        tales.generate(
            "Once upon a time there was a king",
            Sampling(seed=seed, max_tokens=60),
            speculation=Speculation(4, "coupled"),
        )
    assert tales.generate("A fox and a hen", sampling, speculation=speculation).text == before.text


@pytest.mark.few(1)
@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_a_draft_from_the_text_may_leave_the_grammar(tales, accept, monkeypatch):
    """The text continues with a word that the grammar forbids, and the draft model predicts what follows it."""
    best_text = DraftController.best_text
    monkeypatch.setattr(
        DraftController,
        "best_text",
        lambda self: (None, 0.0) if self._round.steps else (best_text(self)[0], 1.0),
    )
    grammar = 'root ::= (" cat" (" cow" | " hen"))+'
    sampling = Sampling(temperature=0.7, seed=2, grammar=grammar, max_tokens=40)
    ways = [
        Speculation(0),
        *(
            Speculation(6, accept, drafter="hybrid", adaptive=adaptive)
            for adaptive in (False, True)
        ),
    ]
    answers = [tales.generate(" cat dog" * 12, sampling, speculation=way) for way in ways]
    assert all(re.fullmatch(r"( cat( cow| hen)?)*( c.*| h.*)?", one.text) for one in answers)
    assert answers[1].stats.drafters["ngram"][0] > answers[1].stats.drafters["ngram"][1]
    assert accept != "coupled" or len({one.text for one in answers}) == 1
