"""What was measured of a pair on this machine, and what was learned of it since: kept on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ._cache import cache_file, content_id, keep, recall, this_machine
from ._chances import Chances, fitted, shifted
from ._context import ContextOptions, physical_cores
from ._costs import Costs, Overhead, Pace, interpolate
from ._drafters import SURENESSES, CoupledGuess, DrawnGuess, NgramDrafter, RetryDrafter
from ._experience import Experience, expectations
from ._library import library_parts
from ._model import Model
from ._near_ties import MARGIN
from ._types import K_MAX

VERSION = 6
WORTH_SAYING = 1.05  # a speed-up below that is none
_SAMPLED_SHIFT = -1.0  # log odds of proposals from the text where the target is sampled: the same words follow each other less often
_ENOUGH_ROWS = 12  # of a pass, for its rounding noise to show
_MOST_NOISE = 1e3  # logits


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        target: Tokens in a pass of the target -> seconds, with nothing before.
        target_depth: Tokens in a pass of the target -> seconds more of the pass for each cached token.
        draft: The same of the draft model; empty without one.
        draft_depth: The same of the draft model.
        noise: Tokens in a pass -> how far its logits moved against those of single-row passes; 0 where all rows have the same bits.
        right: For each sureness of the draft how often it was right, and in how many places.
        seconds: What measuring took.
        token_s: About what Python takes for each token said.
        proposal_s: And for each token that the draft model proposes.
        exact_width: The widest pass up to which all passes give a row the bits of a single-row pass; 1 where none does.
        kernels: Which kernels were in use (`_exact_kernels.kernels_in_use`).
        steady: No other program seems to have run beside the measurement.
        measured_at: When, in seconds since 1970.
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
    kernels: str = ""
    steady: bool = True
    measured_at: float = 0.0

    def widest(self, exact: bool) -> int:
        """Return the most rows of a pass that verifies.

        Args:
            exact: Only passes whose rows have the bits of single-row passes, on a machine that has any.
        """
        return self.exact_width if exact and self.exact_width > 1 else K_MAX + 1

    @property
    def exact_passes(self) -> str:
        """Which passes give a row the bits of a single-row pass, in words."""
        if self.exact_width > K_MAX:
            return "all, up to the longest draft"
        if self.exact_width > 1:
            return f"up to {self.exact_width} tokens; wider ones verify only with --allow-near-ties"
        return "none over several tokens: near ties are counted"

    def logit_noise(self, k: int) -> float:
        """Return how far logits move in passes over up to `k` + 1 tokens against those of single-row passes, doubled; 0 where these are exact.

        Narrow passes that are not exact are taken to move them as far as passes over 12 tokens: sums that differ in the last bit rarely differ after
        they are quantised for the next product, so a few rows may show nothing.
        """
        if k < self.exact_width:
            return 0.0
        n_tokens = max(k + 1, _ENOUGH_ROWS)
        within = [width for width in sorted(self.noise) if width <= n_tokens]
        wider = [width for width in sorted(self.noise) if width > n_tokens][:1]
        return MARGIN * max([0.0, *(self.noise[width] for width in [*within, *wider])])

    @property
    def agreement(self) -> float:
        """How often the draft was right; 0 where it was not asked."""
        return sum(hits for hits, _ in self.right) / max(1.0, sum(places for _, places in self.right))

    def speedup(self, k: int, chance: float) -> float:
        """Return how many times as fast as plain decoding `k` drafted tokens a round are, Python's time included; at most the tokens per round.

        Args:
            k: Tokens drafted in each round.
            chance: How often each of them is right, where those before it are.
        """
        tokens, all_right = sum(chance**i for i in range(k + 1)), chance**k
        python_s = tokens * self.token_s + (k * self.proposal_s if self.draft else 0.0)
        drafting_s = (k - all_right) * self._drafting_s(1) + all_right * self._drafting_s(2)  # where all were right it has two to read
        plain_s = tokens * (interpolate(self.target, 1) + self.token_s)
        return min(tokens, plain_s / (interpolate(self.target, k + 1) + drafting_s + python_s))

    def best(self, chance: float) -> tuple[float, int]:
        """Return the best speed-up of drafts whose tokens are right with this chance, and their length."""
        return max(((self.speedup(k, chance), k) for k in range(1, K_MAX + 1)), key=lambda one: (round(one[0], 3), -one[1]))

    @property
    def needed(self) -> float | None:
        """The chance to be right from which drafts pay; None where not even drafts that are always right do."""
        low, high = 0.0, 1.0
        if self.best(high)[0] < WORTH_SAYING:
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (low, middle) if self.best(middle)[0] >= WORTH_SAYING else (middle, high)
        return high

    def _drafting_s(self, n: int) -> float:
        return interpolate(self.draft, n) if self.draft else 0.0  # drafts taken from the text cost nothing

    def experiences(self) -> dict[str, Experience]:
        """Return what to go by at first, for texts that are `greedy`, `sampled`, and `drawn` by a rule that needs the draft's law."""
        pace = Pace()
        target = Costs(self.target, self.target_depth, K_MAX + 1, pace)
        draft = Costs(self.draft, self.draft_depth, K_MAX + 1, pace) if self.draft else None
        texts = {one.name: list(one.beliefs) for one in (NgramDrafter, RetryDrafter)}
        sampled = texts | {NgramDrafter.name: [shifted(belief, _SAMPLED_SHIFT) for belief in NgramDrafter.beliefs]}
        coupled = fitted(CoupledGuess.beliefs, self.right)
        guesses = {"greedy": coupled, "sampled": coupled, "drawn": list(DrawnGuess.beliefs)}
        counts = [1 + places for _, places in self.right]
        return {
            way: Experience(
                target,
                draft,
                Chances({**(texts if way == "greedy" else sampled), **expectations(beliefs)}),
                per_token=Overhead(self.token_s),
                per_proposal=Overhead(self.proposal_s),
                confidences=[1.0] * SURENESSES if way == "drawn" else [*counts],
            )
            for way, beliefs in guesses.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Read what `to_dict` gave, from JSON too.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        tables = {name: _table(data[name], 0.0) for name in ("target_depth", "draft_depth", "noise")}
        tables |= {name: _table(data[name], 1e-9) for name in ("target", "draft")}
        right = tuple((float(hits), float(places)) for hits, places in data["right"])
        if len(right) != SURENESSES or not all(0 <= hits <= places < 1e9 for hits, places in right):
            raise ValueError(data)
        numbers = {name: float(data[name]) for name in ("seconds", "token_s", "proposal_s", "measured_at")}
        if 1 not in tables["target"]:
            raise ValueError(data)
        if not (1 <= (exact_width := data["exact_width"]) <= K_MAX + 1 and isinstance(exact_width, int) and isinstance(data["steady"], bool)):
            raise ValueError(data)
        if not all(0 <= number < 1e12 for number in numbers.values()) or any(noise > _MOST_NOISE for noise in tables["noise"].values()):
            raise ValueError(data)
        return cls(
            tables["target"], tables["target_depth"], tables["draft"], tables["draft_depth"], tables["noise"], right,
            numbers["seconds"], numbers["token_s"], numbers["proposal_s"], exact_width, str(data["kernels"]), data["steady"], numbers["measured_at"],
        )  # fmt: skip


def _table(data: Any, least: float) -> dict[int, float]:
    """Return a table by widths, read back.

    Raises:
        TypeError, ValueError: It is something else, or a value is out of range.
    """
    if not isinstance(data, dict):
        raise TypeError(data)
    table = {int(width): float(value) for width, value in data.items()}
    if not all(0 < width <= 1 << 16 and least <= value < 1e6 for width, value in table.items()):
        raise ValueError(data)
    return table


NOTHING_KNOWN = Profile({1: 0.02, 33: 0.1}, {}, {1: 0.002, 33: 0.02}, {}, {}, ((0.0, 0.0),) * SURENESSES, 0.0, exact_width=K_MAX + 1)
"""What to go by where nothing was measured."""


class Loadable(NamedTuple):
    """A file and how it would be loaded: what a profile is kept under."""

    path: Path
    options: ContextOptions


def kept_profile(target: Model | Loadable, draft: Model | Loadable | None) -> Profile | None:
    """Return the profile kept for these models, or None."""
    data = recall(_file(target, draft))
    try:
        return Profile.from_dict(data) if data["version"] == VERSION else None
    except (KeyError, TypeError, ValueError):
        return None


def keep_profile(target: Model | Loadable, draft: Model | Loadable | None, profile: Profile) -> bool:
    """Keep a profile in place of what was kept; return whether there was a place for it."""
    return keep(_file(target, draft), {"version": VERSION, **profile.to_dict()})


def recall_experience(target: Model, draft: Model | None, experiences: Mapping[str, Experience]) -> None:
    """Read back what was learned of acceptance rates in earlier runs; a damaged file is ignored, and replaced when the models are closed."""
    data = recall(_file(target, draft, "experience"))
    try:
        if data["version"] == VERSION:
            for way, one in experiences.items():
                answer = float(data[way]["answer"])
                if not 1 <= answer < 1e9:  # a number that is not finite fails too
                    raise ValueError(answer)
                one.chances.recall(data[way]["seen"])
                one.answer = min(answer, 1e6)
    except (KeyError, TypeError, ValueError):
        pass


def keep_experience(target: Model, draft: Model | None, experiences: Mapping[str, Experience]) -> None:
    """Keep what was learned of chances, if anything was."""
    if any(one.n_said for one in experiences.values()):
        learned = {way: {"answer": one.answer, "seen": one.chances.to_list()} for way, one in experiences.items()}
        keep(_file(target, draft, "experience"), {"version": VERSION, **learned})


def _file(target: Model | Loadable, draft: Model | Loadable | None, kind: str = "profiles") -> Path:
    parts: list[object] = [VERSION, *this_machine(), *library_parts()]
    for model in (target, draft):
        if model:
            o = model.options
            parts += [content_id(model.path), o.threads or physical_cores(), o.flash_attention, o.kv_type, o.gpu_layers, o.extra_bufts]
            parts += [(content_id(adapter.path), adapter.scale) for adapter in o.lora]
    return cache_file(kind, parts)
