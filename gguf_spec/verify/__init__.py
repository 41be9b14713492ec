"""Verification that speculation preserves a model's output, on the user's own machine.

Runs the user's models, returns data and prints nothing. There are four groups of checks, each of
which a faulty sampler, acceptance rule, pass or cache fails:

1. Rows: passes over several tokens must give the rows of single-token passes: bit-identical where
   that is guaranteed, otherwise equal up to rounding.
2. Texts: each prompt is continued plainly and with each drafter, with the same seed. All texts must
   be equal, also with warm caches, after a restored session, with a grammar, with a stop string and
   after a long prompt.
3. Caches: after each text, both caches must hold exactly the tokens of the text. A row computed
   from the cache must match one computed after a new prefill.
4. Distributions: under each rule, the first tokens of many generations must have the frequencies
   that llama.cpp's own samplers give (chi-square test).
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from typing import Any

import numpy as np

from ..arrays import Logits
from ..bench.workloads import long_text
from ..errors import (
    ContextTooShortError,
    EmptyPromptError,
    InvalidOptionError,
    NoSpeculationError,
)
from ..errors.texts import Option, Text, advice
from ..options import Sampling, Speculation
from ..results import OnProgress, Progress
from ..runtime.llm import LLM
from ..sampling.chain import Sampler
from ..sampling.filters import make_filters
from ..sampling.near_ties import is_near_tie
from ..sampling.rng import SeededRng
from ..speculative.interfaces import LanguageModel, decode_last
from .chi_square import LAW_TOKENS, ChiSquareTest, Reference, drawn, n_draws_of
from .chi_square import WAYS as LAWS
from .request_checks import RequestChecks
from .row_checks import Check, check_rows, noise_in_use

__all__ = [
    "PROMPTS",
    "Check",
    "ChiSquareTest",
    "Comparison",
    "Difference",
    "Report",
    "bundled_prompts",
    "verify",
]

SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "sampled": Sampling(temperature=0.8, top_k=40, top_p=0.95),
    "penalised": Sampling(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_p=0.05,
        repeat_penalty=1.3,
        frequency_penalty=0.3,
        presence_penalty=0.2,
    ),
}
WAYS = {
    **{f"model, k = {k}": Speculation(k, drafter="model", adaptive=False) for k in (1, 3, 7)},
    "hybrid tree": Speculation(7, drafter="hybrid", adaptive=False, tree=True),
    "auto": Speculation(),
}
PROMPTS = 10  # default number of bundled prompts
MOST_NEAR_TIES = 0.4  # maximum plausible share of near ties among the generated tokens
# Factor on the row distance between two correct prefills of a text, which gives the tolerance.
_MARGIN = 5.0
# Tokens of text before each prompt of a long run, their minimum, and tokens left free.
_LONG, _LEAST_LONG, _SPARE = (1500, 300, 16)
_SAME_ROW = 1e-3  # constant part of that tolerance, as a share of the spread of a row


@dataclass(frozen=True)
class Difference:
    """First position at which a text differs from the plain one.

    Attributes:
        sampling: Name of the options, a key of `SAMPLINGS`.
        drafter: Name of the draft setting, a key of `WAYS`.
        prompt: Index of the prompt.
        position: Number of equal tokens before it.
        gap: Smallest relative logit shift that reverses the decision, in logits; None if a new pass
            of the target selects neither token.
        near_tie: Whether the gap is below the noise of this machine and the generation counted a
            near tie.
    """

    sampling: str
    drafter: str
    prompt: int
    position: int
    gap: float | None
    near_tie: bool


@dataclass(frozen=True)
class Comparison:
    """Comparison of the texts of one sampling and one drafter with the plain texts.

    Attributes:
        sampling: Name of the options.
        drafter: Name of the draft setting.
        n_texts: Number of compared texts.
        n_identical: Number of identical texts.
        n_near_ties: Number of texts that differ from a near tie on.
        n_different: Number of texts that differ for another reason.
        acceptance: Acceptance rate: accepted over drafted tokens.
    """

    sampling: str
    drafter: str
    n_texts: int
    n_identical: int
    n_near_ties: int
    n_different: int
    acceptance: float


@dataclass(frozen=True)
class Report:
    """Result of `verify`.

    Attributes:
        target: Name of the model.
        draft: File name of the draft.
        n_prompts: Number of continued prompts.
        n_tokens: Maximum number of tokens of a text.
        noise: Largest logit shift caused by the pass width on this machine, in logits.
        comparisons: One per sampling and drafter.
        differences: One per text that differs from the plain text.
        cache_faults: Cache errors, one sentence each.
        laws: Chi-square tests, one per entry of `chi_square.WAYS`.
        total_s: Duration in seconds.
        checks: One per feature: rows, near ties, warm caches and so on.
    """

    target: str
    draft: str
    n_prompts: int
    n_tokens: int
    noise: float
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    cache_faults: tuple[str, ...]
    laws: tuple[ChiSquareTest, ...]
    total_s: float
    checks: tuple[Check, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all differences are within the noise."""
        return (
            not self.cache_faults and all(d.near_tie for d in self.differences) and self._parts_ok
        )

    @property
    def _parts_ok(self) -> bool:
        return all(distribution.ok for distribution in self.laws) and all(
            check.ok for check in self.checks
        )

    @property
    def sentence(self) -> str:
        """The result in one plain sentence."""
        n, same = (
            sum(getattr(c, name) for c in self.comparisons) for name in ("n_texts", "n_identical")
        )
        n_different = sum(not d.near_tie for d in self.differences)
        if self.ok:
            ties = (
                f", {n - same} differ at a near tie, which this machine's rounding decides"
                if n > same
                else ""
            )
            return (
                f"Speculation does not change this model's output ({same} of {n} texts "
                f"identical{ties})."
            )
        wrong = [f"{n_different} of {n} texts differ"] if n_different else []
        wrong += ["a cache does not contain the generated tokens"] if self.cache_faults else []
        wrong += [
            f"first tokens under {distribution.accept} do not follow the model's probabilities"
            for distribution in self.laws
            if not distribution.ok
        ]
        wrong += [check.changes for check in self.checks if not check.ok]
        return f"Speculation changes this model's output: {'; '.join(wrong)}."

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        parts = {
            name: [asdict(one) | {"ok": one.ok} for one in getattr(self, name)]
            for name in ("laws", "checks")
        }
        return {"ok": self.ok, "sentence": self.sentence} | asdict(self) | parts


def bundled_prompts() -> list[str]:
    """Return the fifty bundled prompts, which are openings of tales."""
    return (files("gguf_spec") / "data" / "prompts.txt").read_text(encoding="utf-8").splitlines()


def verify(
    llm: LLM,
    prompts: Sequence[str] | None = None,
    *,
    n_tokens: int | None = None,
    long: bool = False,
    n_draws: int = 1000,
    seed: int = 1,
    limit_s: float | None = None,
    progress: OnProgress = lambda _: None,
) -> Report:
    """Compare speculation with plain decoding.

    Args:
        llm: Models to verify; they must include a draft.
        prompts: Texts to continue, used unchanged; None selects the first ten bundled prompts.
        n_tokens: Maximum number of tokens of a text; None selects 64, or 300 if `long`.
        long: Put 1,500 tokens of text before each prompt, or as many as the context holds. This
            shows rounding effects that occur only after many tokens.
        n_draws: Number of generations per chi-square test; half of it for n-gram and for adaptive
            drafts.
        seed: Seed of the first text; each further prompt uses the next seed.
        limit_s: Time limit in seconds. No further prompt or check starts after it, and the
            chi-square tests use at most a third of it, unless 50 generations each take longer.
        progress: Called with the finished texts, draws and checks.

    Raises:
        InvalidOptionError: There is no prompt, or a number is out of range.
        NoSpeculationError: There is no draft model.
        ContextTooShortError: A prompt leaves no room in the context for a few tokens.
        EmptyPromptError: A prompt contains no token.
    """
    started = time.perf_counter()
    prompts = bundled_prompts()[:PROMPTS] if prompts is None else prompts
    n_tokens = (300 if long else 64) if n_tokens is None else n_tokens
    if not llm.draft_name:
        raise NoSpeculationError(
            "draft",
            None,
            "there is no draft model, so there is no speculation to verify.",
            advice(Text("set ", Option("draft"), " to a model")),
        )
    if not prompts or isinstance(prompts, str):
        raise InvalidOptionError(
            "prompts", prompts, "a list of one text or more", "write at least one text."
        )
    Sampling(seed=seed, max_tokens=n_tokens)  # raises if a value is invalid
    if n_draws < 1:
        raise InvalidOptionError("n_draws", n_draws, "1 or more")
    for prompt in prompts:
        _check_room(llm, prompt)
    before = _long_text(llm, prompts, n_tokens) if long else ""
    noise = noise_in_use(llm, WAYS.values())
    texts = _Texts(llm, n_tokens, noise)
    requests = RequestChecks(llm, prompts[0], seed, texts.gap, noise)
    steps = _Steps(
        len(prompts) * len(SAMPLINGS) * (1 + len(WAYS))
        + sum(n_draws_of(way, n_draws) for way in LAWS)
        + len(requests.parts),
        progress,
    )
    texts.steps = steps
    checks = [check_rows(llm, WAYS.values())]
    until = [
        math.inf if limit_s is None else started + limit_s * (i + 1) / (3 * len(LAWS))
        for i in range(len(LAWS))
    ]
    reference = Reference(llm, prompts[0], exact=not noise)
    laws = tuple(
        drawn(llm, reference, way, n_draws, seed, end, steps.one_more)
        for way, end in zip(LAWS, until, strict=True)
    )

    def is_late() -> bool:
        return limit_s is not None and time.perf_counter() - started > limit_s

    for part in requests.parts:
        checks += [] if is_late() else [part()]
        steps.one_more()
    n_prompts = 0
    for prompt in prompts:
        if n_prompts and is_late():
            break
        texts.compare(before + prompt, n_prompts, (seed + n_prompts) % 2**64)
        n_prompts += 1
    checks.insert(1, texts.near_ties())
    return Report(
        llm.name,
        llm.draft_name,
        n_prompts,
        n_tokens,
        noise,
        tuple(texts.comparisons()),
        tuple(texts.differences),
        tuple(texts.cache_faults),
        laws,
        time.perf_counter() - started,
        tuple(checks),
    )


def _long_text(llm: LLM, prompts: Sequence[str], n_tokens: int) -> str:
    """Return a text of 1,500 tokens, or of as many as fit before the prompts and their texts."""
    room = llm.n_ctx - max(len(llm.tokenize(prompt)) for prompt in prompts) - n_tokens - _SPARE
    if room < _LEAST_LONG:
        needed = llm.n_ctx - room + _LEAST_LONG
        raise ContextTooShortError(
            "a long prompt", llm.n_ctx, needed, Text("set a smaller ", Option("n_tokens"))
        )
    return long_text(llm, min(_LONG, room))


def _check_room(llm: LLM, prompt: str) -> None:
    """Reject a prompt that is empty or leaves no room for an answer."""
    n, most = len(llm.tokenize(prompt)), llm.n_ctx - LAW_TOKENS - 1
    if not n:
        raise EmptyPromptError
    if n > most:
        shown = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        raise ContextTooShortError(
            f"the prompt {shown!r}", llm.n_ctx, n + llm.n_ctx - most, "shorten the prompt"
        )


class _Steps:
    def __init__(self, total: int, progress: OnProgress) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def one_more(self) -> None:
        self._done += 1
        self._progress(Progress("verify", self._done, self._total, "generations"))


class _Texts:
    """Compares texts, and checks the caches after each of them."""

    def __init__(self, llm: LLM, n_tokens: int, noise: float) -> None:
        self._llm, self._n_tokens, self._noise = llm, n_tokens, noise
        self.steps = _Steps(0, lambda _: None)
        self._n_generated = self._n_near_ties = 0
        self._tolerance: dict[str, float] = {}
        self._n_texts: Counter[tuple[str, str]] = Counter()
        self._drafted: Counter[tuple[str, str]] = Counter()
        self._accepted: Counter[tuple[str, str]] = Counter()
        self.differences: list[Difference] = []
        self.cache_faults: list[str] = []

    def compare(self, prompt: str, index: int, seed: int) -> None:
        """Continue a prompt with every sampling and every draft setting."""
        ids = self._llm.tokenize(prompt)
        for name, options in SAMPLINGS.items():
            sampling = replace(options, seed=seed, max_tokens=self._n_tokens)
            self._llm.forget()
            plain = self._llm.generate_tokens(ids, sampling, speculation=Speculation(0))
            self.steps.one_more()
            for drafter, speculation in WAYS.items():
                self._llm.forget()
                burst = self._llm.generate_tokens(ids, sampling, speculation=speculation)
                key = (name, drafter)
                self._n_texts[key] += 1
                self._drafted[key] += burst.stats.n_drafted
                self._accepted[key] += burst.stats.n_accepted
                self._n_generated += burst.stats.n_generated
                self._n_near_ties += burst.stats.n_near_ties
                at = _first_difference(plain.tokens, burst.tokens)
                if at is not None:
                    gap, near_tie = self.gap(ids, plain.tokens, burst.tokens, at, sampling)
                    self.differences.append(
                        Difference(
                            name, drafter, index, at, gap, near_tie and burst.stats.n_near_ties > 0
                        )
                    )
                self.cache_faults += [
                    f"{fault} ({name}, {drafter}, prompt {index + 1})."
                    for fault in self._faults([*ids, *burst.tokens])
                ]
                self.steps.one_more()

    def comparisons(self) -> Iterator[Comparison]:
        """Yield the totals per sampling and drafter."""
        for (sampling, drafter), n in self._n_texts.items():
            parted = [
                d.near_tie
                for d in self.differences
                if (d.sampling, d.drafter) == (sampling, drafter)
            ]
            acceptance = self._accepted[sampling, drafter] / max(
                1, self._drafted[sampling, drafter]
            )
            yield Comparison(
                sampling,
                drafter,
                n,
                n - len(parted),
                sum(parted),
                len(parted) - sum(parted),
                acceptance,
            )

    def near_ties(self) -> Check:
        """Return the check of the near-tie count.

        There must be none if passes are exact, and few otherwise.
        """
        n, share = self._n_near_ties, self._n_near_ties / max(1, self._n_generated)
        faults = []
        if n and not self._noise:
            faults.append(f"{n} near ties were counted, where passes are exact.")
        if share > MOST_NEAR_TIES:
            faults.append(
                f"{share:.0%} of the tokens were decided by less than the rounding noise; at "
                f"most {MOST_NEAR_TIES:.0%} are plausible."
            )
        found = f"{n} of {self._n_generated} tokens"
        return Check(
            "near ties",
            self._n_generated,
            found,
            tuple(faults),
            "there are too many near ties to tell rounding from errors",
        )

    def gap(
        self,
        ids: Sequence[int],
        plain: Sequence[int],
        burst: Sequence[int],
        at: int,
        sampling: Sampling,
    ) -> tuple[float | None, bool]:
        """Return the decision gap where two texts diverge, and whether it is within the noise."""
        history = [*ids, *plain[:at]]
        with self._llm.models() as (target, _):
            sampler = Sampler(
                sampling, SeededRng(sampling.seed or 0), make_filters(target, sampling, len(ids))
            )
            row = decode_last(target, history)
            # The prefill is batched, so a near tie may be decided either way.
            now = sampler.token(row, history)
            ended = at >= min(len(plain), len(burst)) and target.is_end(now)
        if not ended and now not in (*plain[at : at + 1], *burst[at : at + 1]):
            return None, False
        # Find the gap by bisection over the near-tie check, which is valid for any filters.
        low, high = (0.0, 64.0)
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (
                (low, middle) if is_near_tie(sampler, row, history, now, middle) else (middle, high)
            )
        return high, is_near_tie(sampler, row, history, now, self._noise)

    def _faults(self, said: Sequence[int]) -> Iterator[str]:
        """Yield the cache errors after a text.

        The caches may be shorter than the text, because an end token or a rejected draft token may
        be missing.
        """
        with self._llm.models() as (target, draft):
            for name, model in (("target", target), ("draft", draft)):
                if model is None:
                    continue
                n = min(model.n_past, len(said) - 1)
                if model.cached[:n] != [*said[:n]]:
                    yield f"The {name}'s cache holds tokens that were not said"
                    continue
                cached = _row_after(model, said[: n + 1])
                fresh = decode_last(model, said[: n + 1])
                if self._is_apart(name, model, said[: n + 1], _distance(cached, fresh), fresh):
                    yield f"The {name}'s cache is not what reading the text afresh gives"

    def _is_apart(
        self, name: str, model: LanguageModel, text: Sequence[int], distance: float, fresh: Logits
    ) -> bool:
        """Return whether a row is farther from a fresh one than two correct ways to prefill are.

        That distance differs between texts, so it is measured again before an error is reported.
        """
        if distance <= self._tolerance.get(name, 0.0) + _SAME_ROW:
            return False
        correct = _MARGIN * _distance(decode_last(model, text, one_by_one=True), fresh)
        self._tolerance[name] = max(self._tolerance.get(name, 0.0), correct)
        return distance > self._tolerance[name] + _SAME_ROW


def _row_after(model: LanguageModel, tokens: Sequence[int]) -> Logits:
    """Return the row after `tokens`; the last token is decoded in a single-token pass.

    The other tokens are read where they are not in the cache.
    """
    model.rollback(len(tokens) - 1)
    if model.n_past < len(tokens) - 1:
        model.read(tokens[model.n_past : -1])
    return np.array(model.logits(tokens[-1:], 1)[0])


def _distance(row: Logits, right: Logits) -> float:
    """Return the distance between the best logits of two rows, as a share of the row's spread."""
    best = np.argsort(-right)[:64]
    return float(np.std((row - right)[best]) / np.std(right[np.isfinite(right)]))


def _first_difference(a: Iterable[int], b: Iterable[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y), None)
