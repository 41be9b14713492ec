"""A drafter that fails in any call is switched off for the request: the text does not change, and the next request tries it again."""

import logging
from itertools import combinations, product

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ClosedError, DecodeError
from gguf_spec.speculative import controller
from gguf_spec.speculative.controller import DraftModelUse
from gguf_spec.speculative.drafters import ModelDrafter, NgramDrafter, RetryDrafter, failure
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from tests.support.fakes import FakeModel, fake_llm, random_table

pytestmark = pytest.mark.failing_drafts
V, PROMPT = 6, "abcdabcdabcdabcd"
TARGET, OTHER = (random_table(np.random.default_rng(seed), V) for seed in (5, 6))
TARGET[np.arange(V), np.arange(V), :] += 0.5  # any text
CHAINS = {
    "greedy": Sampling(temperature=0.0, max_tokens=40),
    "sampled": Sampling(temperature=1.0, top_k=0, top_p=1.0, seed=3, max_tokens=40),
}
MODES = {
    "fixed": {"k": 4, "adaptive": False}, "adaptive": {"k": 8},
    "strict": {"k": 4, "adaptive": False, "strict": True}, "rejection": {"k": 4, "accept": "rejection", "adaptive": False},
    "adaptive rejection": {"accept": "rejection"}, "block": {"k": 4, "accept": "block", "adaptive": False}, "adaptive block": {"accept": "block"},
}  # fmt: skip


class Failing(FakeModel):
    """A draft model that fails from the n-th call of one method on, `times` times; a pass that fails leaves more in its memory than `cached` says."""

    def __init__(self, table, method=None, after=0, how="raise", times=10**9):
        super().__init__(table, n_ctx=400)
        self._fails, self._after, self._how, self._times = method, after, how, times
        self.n_failed, self._stale = 0, False

    def _now(self, method):
        if method == self._fails:
            self._after -= 1
            if self._after < 0 and self.n_failed < self._times:
                self.n_failed += 1
                return True
        return False

    def read(self, tokens):
        if self._now("read"):
            self._stale = True
            raise DecodeError(-3, self.n_past, len(tokens), "out of order")
        super().read(tokens)

    def logits(self, tokens, n_rows):
        fails = self._now("logits")
        if fails and self._how == "raise":
            self._stale = True
            raise DecodeError(1, self.n_past, len(tokens), f"the context holds {self.n_ctx}")
        rows = super().logits(tokens, n_rows).copy()
        if self._stale:  # as if the positions were wrong
            rows = -rows
        if fails:
            self._stale = True
            if self._how == "one nan":
                rows[..., 2] = np.nan
            else:
                rows[:] = float(self._how)
        return rows

    def rollback(self, to):
        if self._now("rollback"):
            raise RuntimeError
        super().rollback(to)
        if to == 0:
            self._stale = False

    def is_end(self, token):
        if self._now("is_end"):
            raise ZeroDivisionError("of its own")
        return super().is_end(token)


def answers(draft, chain, mode, monkeypatch=None, n=1):
    """Return `n` answers of fresh models and the plain one."""
    with fake_llm(FakeModel(TARGET, n_ctx=400), draft, Speculation(**mode)) as llm:
        return llm.generate(PROMPT, chain, speculation=Speculation(0)), [
            llm.generate(PROMPT, chain) for _ in range(n)
        ]


def chains_of(mode):
    """Texts drawn under the other rules depend on the draft; greedy ones do not."""
    return [CHAINS["greedy"]] if mode.get("accept") else list(CHAINS.values())


def pairwise(*factors):
    """Return combinations of one value of each factor that have all pairs of values.

    Most faults need one value or two together. The full product has them too, with many more cases.

    Source: Kuhn, Wallace and Gallo 2004, Software fault interactions and implications for software
    testing.
    """
    indices = list(product(*(range(len(one)) for one in factors)))
    missing = {pair for one in indices for pair in _pairs(one)}
    chosen = []
    while missing:
        best = max(indices, key=lambda one: sum(pair in missing for pair in _pairs(one)))
        missing.difference_update(_pairs(best))
        chosen.append(tuple(factor[i] for factor, i in zip(factors, best, strict=True)))
    return chosen


def _pairs(one):
    return list(combinations(enumerate(one), 2))


FAILURES = [("logits", how) for how in ("raise", "nan", "inf", "-inf", "one nan")] + [
    (method, "raise") for method in ("read", "rollback", "is_end")
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "drafter", "failure", "after"),
    pairwise(list(MODES), ["model", "hybrid"], FAILURES, [0, 1, 7]),
)
def test_a_failing_draft_model_changes_no_text(mode, drafter, failure, after):
    mode, (method, how) = MODES[mode], failure
    for chain in chains_of(mode):
        draft = Failing(TARGET, method, after, how)
        plain, (one, again) = answers(draft, chain, {**mode, "drafter": drafter}, n=2)
        assert one.text == again.text == plain.text
        assert one.finish_reason == plain.finish_reason
        assert bool(draft.n_failed) == (
            "model drafter failed" in one.stats.why_none + again.stats.why_none
        )
        assert draft.n_failed <= 2 + (
            method == "rollback"
        )  # once for each request, and once more where emptying the cache fails too
        assert draft.n_failed or after or method == "read"


OF_MODEL = ("keep", "read", "begin", "propose", "follow", "learn", "rollback")
OF_TEXT = ("begin", "propose", "follow", "learn")
CALLS = [(ModelDrafter, name) for name in OF_MODEL] + [
    (kind, name) for kind in (NgramDrafter, RetryDrafter) for name in OF_TEXT
]


def fail(monkeypatch, kind, name, after, error=ArithmeticError):
    """Let a method of drafters raise in the calls after the first `after`; return a list that grows with each failure."""
    right, calls, failed = getattr(kind, name), [], []

    def method(self, *args):
        calls.append(name)
        if len(calls) > after:
            failed.append(name)
            raise error
        return right(self, *args)

    monkeypatch.setattr(kind, name, method)
    return failed


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "alone", "call", "after"), pairwise(list(MODES), [False, True], CALLS, [0, 2])
)
def test_any_call_of_any_drafter_may_fail(mode, alone, call, after, monkeypatch):
    mode, (kind, name) = MODES[mode], call
    drafter = "hybrid" if not alone else "model" if kind is ModelDrafter else "ngram"
    for chain in chains_of(mode):
        with monkeypatch.context() as patch:
            failed = fail(patch, kind, name, after)
            plain, (one, again) = answers(
                FakeModel(OTHER, n_ctx=400), chain, {**mode, "drafter": drafter}, n=2
            )
        assert one.text == again.text == plain.text
        assert len(failed) <= 2  # once for each request
        noted = f"the {kind.name} drafter failed and was switched off (ArithmeticError)"
        assert [noted in answer.stats.why_none for answer in (one, again)].count(True) == len(
            failed
        )
    if (
        not after
        and kind.name in ("model", "ngram")
        and drafter == "hybrid"
        and mode.get("adaptive") is False
    ):
        assert failed
        assert {"model": "ngram", "ngram": "model"}[
            kind.name
        ] in again.stats.drafters  # the other goes on


@pytest.mark.parametrize("how", ["raise", "nan"])
@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_a_probe_of_an_unused_draft_model_may_fail(accept, how, monkeypatch):
    monkeypatch.setattr(DraftModelUse, "next_pays", lambda *_: False)
    monkeypatch.setattr(DraftModelUse, "_probe_s", lambda *_: -1.0)
    monkeypatch.setattr(DraftModelUse, "_token_s", lambda *_, **__: 0.0)
    monkeypatch.setattr(controller.SearchBudget, "rounds_without", lambda *_: 0)  # by the clock
    draft = Failing(TARGET, "logits", 0, how)
    plain, (one,) = answers(draft, CHAINS["greedy"], {"accept": accept, "drafter": "hybrid"})
    assert draft.n_failed == 1
    assert "the model drafter failed" in one.stats.why_none
    assert one.text == plain.text


def test_a_jump_to_the_last_part_of_a_long_prompt_may_fail(monkeypatch):
    monkeypatch.setattr(controller, "_LAST_PART", 4)
    monkeypatch.setattr(DraftModelUse, "_reading_offset", lambda self, n_tokens: n_tokens - 4)
    failed = fail(monkeypatch, ModelDrafter, "begin_at", 0)
    plain, (one,) = answers(FakeModel(TARGET, n_ctx=400), CHAINS["greedy"], {"drafter": "model"})
    assert len(failed) == 1
    assert one.text == plain.text


def test_a_draft_whose_context_is_full(monkeypatch):
    class Small(FakeModel):
        def _pass(self, tokens, n):
            if self.n_past + n > 24:
                raise DecodeError(1, self.n_past, n, "the context holds 24")
            super()._pass(tokens, n)

    plain, (one,) = answers(Small(TARGET, n_ctx=400), CHAINS["greedy"], {"k": 4, "adaptive": False})
    assert one.text == plain.text
    assert one.stats.n_accepted > 0
    assert "the context holds 24" in one.stats.why_none


@pytest.mark.parametrize("after", [0, 1, 6])
@pytest.mark.parametrize(
    ("method", "how"), [("logits", "raise"), ("logits", "nan"), ("read", "raise")]
)
def test_the_next_request_drafts_again_from_a_clean_state(method, how, after):
    """The draft equals the target, so its drafts are right unless its cache is still damaged."""
    draft = Failing(TARGET, method, after * (method == "logits"), how, times=1)
    plain, (one, again) = answers(
        draft, CHAINS["greedy"], {"k": 4, "adaptive": False, "drafter": "model"}, n=2
    )
    assert draft.n_failed == 1
    assert one.stats.why_none
    assert again.stats.why_none == ""
    assert again.stats.n_drafted == again.stats.n_accepted > 20
    assert one.text == again.text == plain.text


def test_a_cache_that_could_not_be_emptied_is_emptied_later():
    draft = Failing(TARGET, "logits", 3, "raise", times=1)
    with fake_llm(FakeModel(TARGET, n_ctx=400), draft, Speculation(4, adaptive=False)) as llm:
        llm.generate(PROMPT, CHAINS["greedy"])
        draft._fails, draft._times = "rollback", draft.n_failed + 1
        assert "failed" in llm.generate(PROMPT, CHAINS["greedy"]).stats.why_none
        last = llm.generate(PROMPT, CHAINS["greedy"])
    assert last.stats.why_none == ""
    assert last.stats.n_drafted == last.stats.n_accepted > 20


@pytest.mark.few(7)
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ClosedError])
@pytest.mark.parametrize("name", OF_MODEL)
def test_an_interrupt_and_a_close_end_the_request(name, error, monkeypatch):
    with fake_llm(
        FakeModel(TARGET, n_ctx=400), FakeModel(OTHER, n_ctx=400), Speculation(4, adaptive=False)
    ) as llm:
        plain = llm.generate(PROMPT, CHAINS["greedy"], speculation=Speculation(0))
        with monkeypatch.context() as patch:
            fail(patch, ModelDrafter, name, 1, error)
            with pytest.raises(error):
                for _ in range(3):
                    llm.generate(PROMPT, CHAINS["greedy"])
        assert llm.generate(PROMPT, CHAINS["greedy"]).text == plain.text


def test_a_failed_drafter_stays_off_when_the_context_is_shifted():
    chain = Sampling(temperature=0.0, max_tokens=150, overflow="shift")
    draft = Failing(TARGET, "logits", 3)
    with fake_llm(FakeModel(TARGET, n_ctx=64), draft, Speculation(4, adaptive=False)) as llm:
        one = llm.generate("abc", chain)
        plain = llm.generate("abc", chain, speculation=Speculation(0))
    assert one.text == plain.text
    assert len(one.tokens) == 150
    assert draft.n_failed == 1
    assert "failed" in one.stats.why_none


def test_a_failure_is_logged_once(caplog):
    with (
        caplog.at_level(logging.WARNING),
        fake_llm(
            FakeModel(TARGET, n_ctx=400), Failing(TARGET, "logits", 2, "nan"), Speculation(4)
        ) as llm,
    ):
        for _ in range(3):
            llm.generate(
                PROMPT,
                CHAINS["greedy"],
                speculation=Speculation(4, adaptive=False, drafter="model"),
            )
    messages = [
        record.getMessage()
        for record in caplog.records
        if record.name == "gguf_spec.speculative.drafters.model"
    ]
    assert messages == [
        "The model drafter failed and was switched off (FloatingPointError: its logits are not finite numbers)."
    ]


def test_the_message_of_an_error_is_one_short_line():
    reason = failure("model", ValueError("a\nb  c. " + "d" * 1000))
    assert reason.startswith(
        "the model drafter failed and was switched off (ValueError: a b c. ddd"
    )
    assert len(reason) < 300


def test_a_draft_that_fails_while_the_pair_is_measured():
    """Costs of the target are used; the draft is tried in each request, at a cost estimated from its size."""
    asked = []

    def measure(target, draft):
        asked.append(draft)
        if draft:
            raise FloatingPointError
        return DEFAULT_PROFILE.__class__(
            **{**DEFAULT_PROFILE.to_dict(), "target": {1: 0.01, 33: 0.05}, "draft": {}}
        )

    target, draft = FakeModel(TARGET, n_ctx=400), FakeModel(TARGET, n_ctx=400)
    target.weight_bytes, draft.weight_bytes = 1000, 100
    target.path = draft.path = target.path.with_name("none.gguf")
    pair = ModelPair(target, draft, measure)
    pair.use_profile(pair._measured(measure))
    assert asked == [draft, None]
    assert pair.profile.draft == {1: pytest.approx(0.001), 33: pytest.approx(0.005)}
    with pytest.raises(FloatingPointError):
        ModelPair(target, None, measure)._measured(lambda *_: measure(target, draft))


def test_a_draft_that_cannot_be_closed():
    class Stuck(FakeModel):
        def close(self):
            raise OSError("it is stuck")

    target = FakeModel(TARGET, n_ctx=400)
    llm = fake_llm(target, Stuck(OTHER, n_ctx=400), Speculation(4))
    llm.generate(PROMPT, CHAINS["greedy"])
    llm.close()
    assert target.cached is None
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate(PROMPT)
