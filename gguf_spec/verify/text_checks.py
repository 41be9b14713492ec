"""Comparison of speculative texts with plain texts, and of the caches with new prefills."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..options import Sampling, Speculation
from ..results import Completion
from ..runtime.llm import LLM
from ..sampling.chain import Sampler
from ..sampling.filters import make_filters
from ..sampling.near_ties import is_near_tie
from ..sampling.rng import SeededRng
from ..speculative.interfaces import LanguageModel, decode_last, return_to
from ..speculative.translation import TranslatedModel
from .row_checks import Check

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
    "hybrid": Speculation(7, drafter="hybrid", adaptive=False),
    "auto": Speculation(),
}
MOST_NEAR_TIES = 0.4  # maximum plausible share of near ties among the generated tokens
# Factor on the row distance between two correct prefills of the first text, which gives the
# tolerance for later texts.
_MARGIN = 5.0
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


class Job(NamedTuple):
    """A text to be generated, and the plain text of the same request alone.

    Attributes:
        prompt: Index of the prompt.
        ids: The prompt.
        name: Name of the sampling options, a key of `SAMPLINGS`.
        sampling: The sampling options.
        drafter: Name of the draft setting.
        plain: The plain text.
    """

    prompt: int
    ids: Sequence[int]
    name: str
    sampling: Sampling
    drafter: str
    plain: Completion


class TextChecks:
    """Compares texts, and checks the caches after each of them."""

    def __init__(self, llm: LLM, n_tokens: int, noise: float) -> None:
        """Prepare the checks.

        Args:
            llm: The models.
            n_tokens: Maximum number of tokens of a text.
            noise: Allowed logit shift on this machine, in logits; 0 if no difference is allowed.
        """
        self._llm, self._n_tokens, self.noise = llm, n_tokens, noise
        self._n_generated = self._n_near_ties = 0
        self._tolerance: dict[str, float] = {}
        self._n_texts: Counter[tuple[str, str]] = Counter()
        self._drafted: Counter[tuple[str, str]] = Counter()
        self._accepted: Counter[tuple[str, str]] = Counter()
        self.differences: list[Difference] = []
        self.cache_faults: list[str] = []

    def plain_texts(
        self,
        prompt: str,
        index: int,
        seed: int,
        ways: Iterable[str],
        one_more: Callable[[], object],
    ) -> Iterator[Job]:
        """Continue a prompt without drafts with every sampling; yield the texts to compare.

        Args:
            prompt: The prompt.
            index: Its index; the seed of its texts is that much above `seed`.
            seed: Seed of the first prompt.
            ways: Names of the draft settings.
            one_more: Called after each text.
        """
        ids = self._llm.tokenize(prompt)
        for name, options in SAMPLINGS.items():
            seeded = replace(options, seed=(seed + index) % 2**64, max_tokens=self._n_tokens)
            self._llm.forget()
            plain = self._llm.generate_tokens(ids, seeded, speculation=Speculation(0))
            one_more()
            for drafter in ways:
                yield Job(index, ids, name, seeded, drafter, plain)

    def compare(self, prompt: str, index: int, seed: int, one_more: Callable[[], object]) -> None:
        """Continue a prompt with every sampling and every draft setting; see `plain_texts`."""
        for job in self.plain_texts(prompt, index, seed, WAYS, one_more):
            self._llm.forget()
            way = WAYS[job.drafter]
            burst = self._llm.generate_tokens(job.ids, job.sampling, speculation=way)
            self.count(job, burst)
            where = f"({job.name}, {job.drafter}, prompt {index + 1})"
            faults = self._faults([*job.ids, *burst.tokens])
            self.cache_faults += [f"{fault} {where}." for fault in faults]
            one_more()

    def count(self, job: Job, burst: Completion) -> None:
        """Compare a text with the plain one."""
        key, n_near_ties, plain = (job.name, job.drafter), burst.stats.n_near_ties, job.plain
        self._n_texts[key] += 1
        self._drafted[key] += burst.stats.n_drafted
        self._accepted[key] += burst.stats.n_accepted
        self._n_generated += burst.stats.n_generated
        self._n_near_ties += n_near_ties
        at = _first_difference(plain.tokens, burst.tokens)
        if at is not None:
            gap, near_tie = self.gap(job.ids, plain.tokens, burst.tokens, at, job.sampling)
            is_tie = near_tie and n_near_ties > 0
            self.differences.append(Difference(*key, job.prompt, at, gap, is_tie))

    def comparisons(self) -> Iterator[Comparison]:
        """Yield the totals per sampling and drafter."""
        for key, n in self._n_texts.items():
            parted = [d.near_tie for d in self.differences if (d.sampling, d.drafter) == key]
            n_ties, acceptance = sum(parted), self._accepted[key] / max(1, self._drafted[key])
            counts = n, n - len(parted), n_ties, len(parted) - n_ties
            yield Comparison(*key, *counts, acceptance)

    def near_ties(self) -> Check:
        """Return the check of the near-tie count.

        There must be none if passes are exact, and few otherwise.
        """
        n, share = self._n_near_ties, self._n_near_ties / max(1, self._n_generated)
        faults = []
        if n and not self.noise:
            faults.append(f"{n} near ties were counted, where passes are exact.")
        if share > MOST_NEAR_TIES:
            faults.append(
                f"{share:.0%} of the tokens were decided by less than the rounding noise; at "
                f"most {MOST_NEAR_TIES:.0%} are plausible."
            )
        found = f"{n} of {self._n_generated} tokens"
        changes = "there are too many near ties to tell rounding from errors"
        return Check("near ties", self._n_generated, found, tuple(faults), changes)

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
            if is_near_tie(sampler, row, history, now, middle):
                high = middle
            else:
                low = middle
        return high, is_near_tie(sampler, row, history, now, self.noise)

    def _faults(self, text: Sequence[int]) -> Iterator[str]:
        """Yield the cache errors after a text.

        The caches may be shorter than the text, because an end token or a rejected draft token may
        be missing.
        """
        with self._llm.models() as (target, draft):
            view: LanguageModel | None = draft
            if draft and self._llm.translation:
                view = translated = TranslatedModel(draft, target, self._llm.translation)
                translated.recognise(text)
            for name, model in (("target", target), ("draft", view)):
                if model is None:
                    continue
                n = min(model.n_past, len(text) - 1)
                if model.cached[:n] != [*text[:n]]:
                    yield f"The {name}'s cache contains tokens that are not in the text"
                    continue
                cached = _row_after(model, text[: n + 1])
                fresh = decode_last(model, text[: n + 1])
                distance = _distance(cached, fresh)
                if self._is_apart(name, model, text[: n + 1], distance, fresh):
                    yield f"The {name}'s cache gives another row than a new prefill of the text"

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
    return_to(model, tokens, len(tokens) - 1)
    return np.array(model.logits(tokens[-1:], 1)[0])


def _distance(row: Logits, right: Logits) -> float:
    """Return the distance between the best logits of two rows, as a share of the row's spread."""
    best = np.argsort(-right)[:64]
    return float(np.std((row - right)[best]) / np.std(right[np.isfinite(right)]))


def _first_difference(a: Iterable[int], b: Iterable[int]) -> int | None:
    return next((i for i, (x, y) in enumerate(itertools.zip_longest(a, b)) if x != y), None)
