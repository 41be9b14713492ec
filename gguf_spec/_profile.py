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
from ._near_ties import FAR, MARGIN
from ._types import K_MAX

VERSION = 5
WORTH_SAYING = 1.05  # a speed-up below that is none
_SAMPLED_SHIFT = -1.0  # log odds of proposals from the text where the target is sampled: the same words follow each other less often
_TABLES = ("target", "target_depth", "draft", "draft_depth", "noise")


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        target: Tokens in a pass of the target -> seconds, with nothing before.
        target_depth: Tokens in a pass of the target -> seconds more for each cached token, for the whole pass.
        draft: The same of the draft model; empty without one.
        draft_depth: The same of the draft model.
        noise: Tokens in a pass -> how far its logits moved against those of passes over one token, with little before.
        right: For each sureness of the draft how often it was right, and in how many places.
        seconds: What measuring took.
        token_s: About what Python takes for each token said.
        proposal_s: And for each token that the draft model proposes.
        far_noise: How far logits moved behind more than `FAR` tokens.
        exact_width: The widest pass whose rows have exactly the bits of passes over one token.
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
    far_noise: float = 0.0
    exact_width: int = 65

    def logit_noise(self, k: int, n_tokens: int | None = None) -> float:
        """Return the noise of passes over up to `k` + 1 tokens, and over the next width that was measured.

        Args:
            k: Tokens drafted.
            n_tokens: Tokens in the cache after the pass; None stands for as many as there can be.
        """
        far = 0.0 if n_tokens is not None and n_tokens <= FAR else self.far_noise
        within = [width for width in sorted(self.noise) if width <= k + 1]
        wider = [width for width in sorted(self.noise) if width > k + 1][:1]
        return MARGIN * max([far, *(self.noise[width] for width in [*within, *wider])])

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
        if not all(isinstance(data[name], dict) for name in _TABLES):
            raise TypeError(data)
        tables = {name: {int(n): float(value) for n, value in data[name].items()} for name in _TABLES}
        right = tuple((float(hits), float(places)) for hits, places in data["right"])
        others = {name: float(data[name]) for name in ("seconds", "token_s", "proposal_s", "far_noise")}
        exact_width = int(data["exact_width"])
        is_sound = (
            len(right) == SURENESSES
            and bool(tables["target"])
            and all(1 <= n < 1e6 for table in tables.values() for n in table)
            and all(0 < s < 1e6 for name in ("target", "draft") for s in tables[name].values())
            and all(0 <= s < 1e3 for name in ("target_depth", "draft_depth") for s in tables[name].values())
            and all(0 <= moved < 1e6 for moved in tables["noise"].values())
            and all(0 <= hits <= places < 1e9 for hits, places in right)
            and all(0 <= value < 1e9 for value in others.values())
            and 1 <= exact_width < 1e6
        )
        if not is_sound:  # a number that is not finite fails all comparisons
            raise ValueError(data)
        return cls(
            target=tables["target"],
            target_depth=tables["target_depth"],
            draft=tables["draft"],
            draft_depth=tables["draft_depth"],
            noise=tables["noise"],
            right=right,
            seconds=others["seconds"],
            token_s=others["token_s"],
            proposal_s=others["proposal_s"],
            far_noise=others["far_noise"],
            exact_width=exact_width,
        )


NOTHING_KNOWN = Profile({1: 0.02, 33: 0.1}, {}, {1: 0.002, 33: 0.02}, {}, {}, ((0.0, 0.0),) * SURENESSES, 0.0)
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
