"""Results of `verify`: differences between texts, their totals and the report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .chi_square import ChiSquareTest
from .row_checks import Check


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
        draft: File name of the draft, or None.
        n_prompts: Number of continued prompts.
        n_tokens: Maximum number of tokens of a text.
        noise: Largest logit shift caused by the pass width on this machine, in logits.
        comparisons: One per sampling and drafter.
        differences: One per text that differs from the plain text.
        cache_faults: Cache errors, one sentence each.
        laws: Chi-square tests, one per entry of `chi_square.WAYS`.
        total_s: Duration in seconds.
        checks: One per feature: rows, near ties, warm caches and so on.
        n_parallel: Number of requests that ran at once; 1 without `under_load`.
    """

    target: str
    draft: str | None
    n_prompts: int
    n_tokens: int
    noise: float
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    cache_faults: tuple[str, ...]
    laws: tuple[ChiSquareTest, ...]
    total_s: float
    checks: tuple[Check, ...] = ()
    n_parallel: int = 1

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
    def _subject(self) -> str:
        return "Running requests together" if self.n_parallel > 1 else "Speculation"

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
                f"{self._subject} does not change this model's output ({same} of {n} texts "
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
        return f"{self._subject} changes this model's output: {'; '.join(wrong)}."

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        parts = {
            name: [asdict(one) | {"ok": one.ok} for one in getattr(self, name)]
            for name in ("laws", "checks")
        }
        return {"ok": self.ok, "sentence": self.sentence} | asdict(self) | parts
