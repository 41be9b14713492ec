"""Profile of a pair: measured costs, noise and acceptance."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import Text
from ..options import K_MAX
from ..sampling.near_ties import NOISE_MARGIN
from .cost_model import CostModel, Overhead, Pace, interpolate
from .drafters import (
    MODELS,
    N_CONFIDENCE_BUCKETS,
    CoupledDraftSampler,
    NgramDrafter,
    RetryDrafter,
    StochasticDraftSampler,
)
from .pair_statistics import AcceptanceRates, PairStatistics, fitted, shifted

# Smallest speed-up that counts as one.
WORTH_SAYING = 1.05
# Shift of the acceptance rate of text proposals if the target is sampled, in log odds. Sampled
# texts repeat the same continuation less often.
_SAMPLED_SHIFT = -1.0
# Largest valid noise in a profile, in logits.
_MOST_NOISE = 1e3
# Positions of answers that are enough for an agreement.
_ENOUGH_PLACES = 32
# Rows of a pass that are enough to show its rounding noise.
_ENOUGH_ROWS = 12
# A wider pass that costs less than this multiple of a narrower one shows a disturbed measurement.
# The lower one is for passes over several tokens, whose costs have real steps.
_DISTURBED, _DISTURBED_ROWS = (0.8, 0.6)
# Tables of a profile with their smallest valid values, and its numbers.
_TABLES = {"target": 1e-9, "draft": 1e-9, "target_depth": 0.0, "draft_depth": 0.0, "noise": 0.0}
_NUMBERS = ("seconds", "token_s", "proposal_s", "measured_at")


@dataclass(frozen=True)
class Profile:
    """Measurement of a pair on this machine.

    Attributes:
        target: Pass width of the target in tokens -> seconds with an empty cache.
        target_depth: Pass width of the target in tokens -> extra seconds of the pass for each
            cached token.
        draft: As `target`, of the draft model; empty without one.
        draft_depth: As `target_depth`, of the draft model.
        noise: Pass width in tokens -> shift of its logits against those of single-row passes, in
            logits; 0 where all rows have the same bits.
        right: For each confidence bucket of the draft model, how often it was right, and at how
            many positions.
        seconds: Duration of the measurement.
        token_s: Approximate seconds of Python for each emitted token.
        proposal_s: Approximate seconds of Python for each token that the draft model proposes.
        exact_width: Largest width, in tokens, up to which all passes give a row the bits of a
            single-row pass; 1 if no wider pass does.
        steady: No other program appeared to run during the measurement.
        measured_at: Seconds since 1970.
        restores: A rollback restores the state of recurrent layers; True without such layers.
        guesses_depth: For target and draft model: the depth cost is an estimate.
        checked: The costs are sure: their timings agree, or rounds of requests confirmed them.
        final: It is not measured again for a while, although other programs disturbed it: it is the
            better one of two, or the user asked for it.
        llamafile: llama.cpp was built with the products of llamafile, whose bits depend on the
            width; it can be built without them.
        guessed: Widths of `target` that no pass has timed.
        guessed_draft: Widths of `draft` that no pass has timed.
    """

    target: dict[int, float]
    target_depth: dict[int, float]
    draft: dict[int, float]
    draft_depth: dict[int, float]
    noise: dict[int, float]
    right: tuple[tuple[float, float], ...]
    seconds: float
    token_s: float = 0.0
    proposal_s: float = 0.0
    exact_width: int = 1
    steady: bool = True
    measured_at: float = 0.0
    restores: bool = True
    guesses_depth: tuple[bool, bool] = (False, False)
    checked: bool = True
    final: bool = False
    llamafile: bool = False
    guessed: tuple[int, ...] = ()
    guessed_draft: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether passes of a measurement gave the costs, and not those of answers."""
        return self.seconds > 0

    def widest(self, exact: bool) -> int:
        """Return the largest number of rows of a verify pass.

        A machine without exact passes, such as a GPU, uses passes with near ties in their place.
        A build for a CPU with llamafile's products does not: its flags were forgotten, and it can
        be built again. `exact` allows only exact passes, if the machine has any.
        """
        if not exact:
            return K_MAX + 1
        return self.exact_width if self.exact_width > 1 or self.llamafile else K_MAX + 1

    @property
    def exact_passes(self) -> str:
        """Description of the passes that give a row the bits of a single-row pass."""
        if self.exact_width > K_MAX:
            return "all, up to the longest draft"
        if self.exact_width > 1:
            return Text(
                "up to {} tokens[; wider ones are used only with {exact=False}]",
                str(self.exact_width),
            )
        if self.llamafile:
            return "none over several tokens: build llama.cpp with -DGGML_LLAMAFILE=OFF"
        return "none over several tokens; near ties are counted"

    @property
    def disturbed(self) -> str:
        """Sentence on other programs that disturbed the measurement; empty if none did."""
        below = (
            wide > n and s < (_DISTURBED if n == 1 else _DISTURBED_ROWS) * narrow_s
            for table in (self.target, self.draft)
            for n, narrow_s in table.items()
            for wide, s in table.items()
        )
        if self.steady and not any(below):
            return ""
        return (
            "Other programs disturbed the measured costs: run `gguf-spec tune` when the machine is "
            "idle."
        )

    def logit_noise(self, k: int) -> float:
        """Return the noise allowance of passes over up to `k` + 1 tokens, in logits.

        It is 0 for exact passes. Narrow passes that are not exact get at least the allowance of
        passes over 12 tokens: sums that differ in the last bit rarely differ after they are
        quantised for the next product, so a few rows may show nothing.
        """
        if k < self.exact_width:
            return 0.0
        n_tokens = max(k + 1, _ENOUGH_ROWS)
        within = [width for width in sorted(self.noise) if width <= n_tokens]
        wider = [width for width in sorted(self.noise) if width > n_tokens][:1]
        return NOISE_MARGIN * max([0.0, *(self.noise[width] for width in [*within, *wider])])

    @property
    def agreement(self) -> float:
        """Share of positions at which the draft model was right; 0 without a measurement of it."""
        hits, places = map(sum, zip(*self.right, strict=True))
        return hits / max(1.0, places)

    @property
    def knows_agreement(self) -> bool:
        """Whether `agreement` was measured, or comes from enough positions of answers."""
        return self.is_whole or sum(places for _, places in self.right) >= _ENOUGH_PLACES

    def speedup(self, k: int, chance: float) -> float:
        """Return the speed-up over plain decoding at a fixed draft length, Python's time included.

        It is at most the number of tokens per round. `chance` is the acceptance rate of each of `k`
        draft tokens, if those before it are right.
        """
        tokens, all_right = sum(chance**i for i in range(k + 1)), chance**k
        python_s, drafting_s = tokens * self.token_s, 0.0
        if self.draft:  # drafts from the text cost nothing
            python_s += k * self.proposal_s
            # After a fully accepted draft, the draft model has two unread tokens.
            one_s, two_s = interpolate(self.draft, 1), interpolate(self.draft, 2)
            drafting_s = (k - all_right) * one_s + all_right * two_s
        plain_s = tokens * (interpolate(self.target, 1) + self.token_s)
        return min(tokens, plain_s / (interpolate(self.target, k + 1) + drafting_s + python_s))

    def best(self, chance: float) -> tuple[float, int]:
        """Return the best speed-up at an acceptance rate, and its draft length in tokens."""
        found = [(self.speedup(k, chance), k) for k in range(1, K_MAX + 1)]
        return max(found, key=lambda one: (round(one[0], 3), -one[1]))

    @property
    def needed(self) -> float | None:
        """Smallest acceptance rate at which drafts pay; None if even perfect drafts do not."""
        low, high = 0.0, 1.0
        if self.best(high)[0] < WORTH_SAYING:
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if self.best(middle)[0] >= WORTH_SAYING else (middle, high)
        return high

    def experiences(self) -> dict[str, PairStatistics]:
        """Return initial statistics for `greedy`, `sampled` and `drawn` texts.

        `drawn` is for acceptance rules that need the draft's distribution.
        """
        n, pace, (guess, draft_guess) = K_MAX + 1, Pace(), self.guesses_depth
        target = CostModel(
            self.target, self.target_depth, n, pace, guess, leads=True, guessed=self.guessed
        )
        if not self.checked:
            target.check()
        draft = None
        if self.draft:
            draft = CostModel(
                self.draft,
                self.draft_depth,
                n,
                pace,
                draft_guess,
                self.checked and not self.guessed_draft,
                guessed=self.guessed_draft,
            )
        texts = {one.name: list(one.priors) for one in (NgramDrafter, RetryDrafter)}
        sampled = texts | {
            NgramDrafter.name: [shifted(prior, _SAMPLED_SHIFT) for prior in NgramDrafter.priors]
        }
        coupled = fitted(CoupledDraftSampler.priors, self.right)
        drawn = list(StochasticDraftSampler.priors)
        guesses = {"greedy": coupled, "sampled": coupled, "drawn": drawn}
        counts = [1 + places for _, places in self.right]
        return {
            way: PairStatistics(
                target,
                draft,
                AcceptanceRates(
                    (texts if way == "greedy" else sampled) | dict.fromkeys(MODELS, priors),
                    is_new=bool(self.draft) and not self.knows_agreement,
                ),
                per_token=Overhead(self.token_s),
                per_proposal=Overhead(self.proposal_s),
                confidences=[1.0] * N_CONFIDENCE_BUCKETS if way == "drawn" else [*counts],
            )
            for way, priors in guesses.items()
        }

    def corrected_by(self, known: PairStatistics) -> Profile:
        """Return the profile with the costs that the passes of answers found.

        It is checked if these passes checked its tables to the end.
        """
        # The speed of the machine is a part of the costs that were guessed.
        pace = 1.0 if self.is_whole else known.target.pace

        def corrected(costs: CostModel | None, table: dict[int, float]) -> dict[int, float]:
            base = costs.base if costs else []
            return {n: pace * (base[n] if n < len(base) else s) for n, s in table.items()}

        one = replace(
            self,
            target=corrected(known.target, self.target),
            draft=corrected(known.draft, self.draft),
            guessed=known.target.untimed,
            guessed_draft=known.draft.untimed if known.draft else (),
        )
        if known.target.n_checks:
            one = replace(one, checked=True)
        if self.is_whole:
            return one
        depths = zip(
            (known.target, known.draft), (self.target_depth, self.draft_depth), strict=True
        )
        target_depth, draft_depth = (
            {n: pace * costs.depth[n] if costs else depth for n, depth in table.items()}
            for costs, table in depths
        )
        return replace(
            one,
            target_depth=target_depth,
            draft_depth=draft_depth,
            right=tuple(known.chances.seen_in(MODELS, i) for i in range(N_CONFIDENCE_BUCKETS)),
            token_s=known.per_token.seconds,
            proposal_s=known.per_proposal.seconds,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Make a profile from the values of `to_dict`, also after a round trip through JSON.

        Raises:
            KeyError, TypeError, ValueError: The data has another form.
        """
        fields: dict[str, Any] = {name: float(data[name]) for name in _NUMBERS}
        is_valid = all(0 <= fields[name] < 1e12 for name in _NUMBERS)
        fields |= {name: _table(data[name], least) for name, least in _TABLES.items()}
        is_valid &= 1 in fields["target"]
        is_valid &= all(noise <= _MOST_NOISE for noise in fields["noise"].values())
        fields["right"] = right = tuple((float(a), float(b)) for a, b in data["right"])
        is_valid &= len(right) == N_CONFIDENCE_BUCKETS
        is_valid &= all(0 <= hits <= places < 1e9 for hits, places in right)
        fields["exact_width"] = width = data["exact_width"]
        is_valid &= isinstance(width, int) and 1 <= width <= K_MAX + 1
        guess, draft_guess = fields["guesses_depth"] = tuple(data["guesses_depth"])
        flags = {name: data[name] for name in ("steady", "restores", "checked")}
        for name in ("final", "llamafile"):  # earlier versions did not write them
            flags[name] = data.get(name, False)
        for name, table in {"guessed": "target", "guessed_draft": "draft"}.items():
            fields[name] = tuple(data.get(name, ()))
            is_valid &= all(type(n) is int and n in fields[table] for n in fields[name])
        fields |= flags
        if not (
            is_valid and all(isinstance(one, bool) for one in (*flags.values(), guess, draft_guess))
        ):
            raise ValueError(data)
        return cls(**fields)


def _table(data: Any, least: float) -> dict[int, float]:
    """Return a table, pass width in tokens -> value, from plain values; widths may be texts.

    Raises:
        TypeError, ValueError: The data has another form, or a value is out of range.
    """
    if not isinstance(data, dict):
        raise TypeError(data)
    table = {int(width): float(value) for width, value in data.items()}
    if not all(0 < width <= 1 << 16 and least <= value < 1e6 for width, value in table.items()):
        raise ValueError(data)
    return table


DEFAULT_PROFILE = Profile(
    target={1: 0.02, 33: 0.1},
    target_depth={},
    draft={1: 0.002, 33: 0.02},
    draft_depth={},
    noise={},
    right=((0.0, 0.0),) * N_CONFIDENCE_BUCKETS,
    seconds=0.0,
    exact_width=K_MAX + 1,
)
"""What to go by where nothing was measured."""
