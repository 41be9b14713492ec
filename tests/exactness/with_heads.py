"""Checks of a loaded model with a prediction head: the same for all kinds of heads."""

import gc
from dataclasses import replace

import psutil

from gguf_spec import Sampling, Speculation
from gguf_spec.speculative.cost_model import CostModel, Overhead

PROMPTS = ("of the of the of the of", "SM T) SM T) SM", "Once upon a time", "a")
GREEDY = Sampling(temperature=0, max_tokens=32)
SAMPLED = Sampling(temperature=0.8, max_tokens=32, seed=5)


def texts(llm, **speculation):
    return [
        llm.generate(
            prompt,
            Sampling(temperature=temperature, max_tokens=32, seed=i),
            speculation=Speculation(**speculation),
        )
        for temperature in (0, 0.8)
        for i, prompt in enumerate(PROMPTS)
    ]


def tokens(results):
    return [one.tokens for one in results]


def share_accepted(results):
    drafted = sum(one.stats.n_drafted for one in results)
    return sum(one.stats.n_accepted for one in results) / drafted


def check_the_same_texts(llm, kind, lengths):
    """Also where the head's drafts are bad: it drafts often, and the texts are those without it."""
    plain = tokens(texts(llm, k=0))
    for k in lengths:
        for drafter in (kind, "hybrid"):
            results = texts(llm, k=k, drafter=drafter, adaptive=False)
            assert tokens(results) == plain, (k, drafter)
            assert sum(one.stats.drafters.get(kind, (0, 0))[0] for one in results) > 20
            assert not any(one.stats.why_none for one in results)
    assert tokens(texts(llm)) == plain


def saved_chat(llm, path):
    """Save a conversation; return its next answer."""
    chat = llm.chat(sampling=GREEDY)
    chat.send("of the of the")
    chat.save(path)
    return chat.send("and the?").text


def check_restored_chat(llm, path, expected, n_past=-1):
    """The restored conversation continues unchanged, with more than `n_past` tokens in both caches."""
    chat = llm.chat(sampling=GREEDY)
    assert chat.restore(path) == ""
    with llm.models() as (target, head):
        assert min(target.n_past, head.n_past) > n_past
    assert chat.send("and the?").text == expected


def check_cancelled_requests(llm, fixed):
    expected = llm.generate("a", GREEDY, speculation=fixed).tokens
    for n in (1, 2, 5):
        with llm.stream("Once upon a time", SAMPLED, speculation=fixed) as stream:
            for i, _ in enumerate(stream):
                if i == n:
                    stream.cancel()
        assert llm.generate("a", GREEDY, speculation=fixed).tokens == expected


def check_costs_decide(llm, kind, least, monkeypatch):
    """By a profile in place of the clock: a pass of the head costs nothing, or more than the target's."""
    monkeypatch.setattr(CostModel, "learn", lambda *_: None)
    monkeypatch.setattr(CostModel, "learn_reading", lambda *_: None)
    monkeypatch.setattr(Overhead, "learn", lambda *_: None)
    passes = {1: 0.01, 2: 0.0101, 9: 0.0105, 65: 0.02}
    drafted = []
    for share in (0.001, 1.5):
        draft = {width: share * seconds for width, seconds in passes.items()}
        # beside other programs the measured profile is not steady
        known = replace(
            llm.profile, target=passes, draft=draft, token_s=0.0, proposal_s=0.0, steady=True,
            checked=True, right=((9.0, 10.0),) * len(llm.profile.right), exact_width=65,
        )  # fmt: skip
        llm.engine.pair.use_profile(known)
        results = texts(llm, drafter=kind)
        drafted.append(sum(one.stats.n_drafted for one in results))
    assert drafted[0] > least
    assert drafted[1] == 0
    assert "too few for a gain" in results[0].stats.why_none


def memory_bytes():
    gc.collect()
    return psutil.Process().memory_info().rss


def check_memory_stays_flat(llm, fixed, before, after, most_bytes):
    """The memory grows by less than `most_bytes` in `after` requests that follow `before` ones."""

    def ask(n):
        for i in range(n):
            short = replace(SAMPLED, max_tokens=8, seed=i)
            llm.generate(PROMPTS[i % len(PROMPTS)], short, speculation=fixed)
        return memory_bytes()

    first = ask(before)
    assert ask(after) - first < most_bytes
