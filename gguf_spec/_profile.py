"""What a pair costs on this machine and how often the draft is right, measured once and kept."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ._cache import cache_file, content_id, keep, recall, this_machine
from ._chances import Chances
from ._context import ContextOptions, physical_cores
from ._costs import Costs, Overhead, Pace, interpolate
from ._drafters import SURENESSES, Calibration, CoupledGuess, DrawnGuess, ModelDrafter, NgramDrafter, RetryDrafter
from ._language_model import LanguageModel
from ._model import Model, library_parts
from ._near_ties import MARGIN, Alone
from ._rng import SeededRng
from ._sampling import Filters, Logits, Sampler
from ._types import K_MAX, Sampling
from ._window import FIRM, Experience, expectations

VERSION = 3
WORTH_SAYING = 1.05  # a speed-up below that is none
_WIDTHS = (2, 4, 8, 3, 5, 6, 16, 12, 7, 9, 10, 14, 17, 24, 33, 11, 13, 15, 20, 28)  # the most telling first
_NEEDED = 3  # of them, however long they take
_DRAFT_WIDTHS = (2, 4, 8, 16, 33)
_MORE_THAN_MEMORY = 4.0  # twice to six times was measured
_FAITH = 5.0  # places by which what a sureness usually means counts against what was seen
_HOPE = 3.0  # standard deviations
_FEWEST = 16  # passes over one token
_QUICK_S = 2.0  # at the pace of single passes, for reading so far; batches are several times faster
_FAR = 1024  # cached tokens at which the cost of a context is measured
_FAR_ENOUGH = 128  # at least, for that
_FAR_TIMES = 8
_SPLIT, _PATIENT_S = 260, 15.0  # tokens from which attention may be split; at the pace of single passes, for noise behind them
_AT_LENGTH = 4 * K_MAX + 2  # tokens said where it is measured thoroughly: so often the draft is asked
_SAID = Sampling(temperature=0.8, ignore_eos=True)  # how the target says what is measured with


@dataclass(frozen=True)
class Profile:
    """What was measured.

    Attributes:
        target: Tokens in a pass of the target -> seconds, with nothing before.
        target_slope: Seconds more for each row and each cached token.
        draft: The same of the draft model; empty without one.
        draft_slope: The same of the draft model.
        noise: Tokens in a pass -> how far its logits moved against those of passes over one token.
        right: For each sureness of the draft how often it was right, and in how many places.
        seconds: What measuring took.
        token_s: About what Python takes for each token said.
        proposal_s: And for each token that the draft model proposes.
    """

    target: dict[int, float]
    target_slope: float
    draft: dict[int, float]
    draft_slope: float
    noise: dict[int, float]
    right: tuple[tuple[float, float], ...]
    seconds: float
    token_s: float = 0.0
    proposal_s: float = 0.0

    def logit_noise(self, k: int) -> float:
        """Return the noise of passes over up to `k` + 1 tokens, and over the next width that was measured."""
        within = [width for width in sorted(self.noise) if width <= k + 1]
        wider = [width for width in sorted(self.noise) if width > k + 1][:1]
        return MARGIN * max((self.noise[width] for width in [*within, *wider]), default=0.0)

    @property
    def agreement(self) -> float:
        """How often the draft was right; 0 where it was not asked."""
        return sum(hits for hits, _ in self.right) / max(1.0, sum(places for _, places in self.right))

    def speedup(self, k: int, chance: float) -> float:
        """Return how many times as fast as plain decoding `k` drafted tokens a round are, Python's time included.

        Args:
            k: Tokens drafted in each round.
            chance: How often each of them is right, where those before it are.
        """
        tokens, all_right = sum(chance**i for i in range(k + 1)), chance**k
        python_s = tokens * self.token_s + (k * self.proposal_s if self.draft else 0.0)
        drafting_s = (k - all_right) * self._drafting_s(1) + all_right * self._drafting_s(2)  # where all were right it has two to read
        return tokens * (interpolate(self.target, 1) + self.token_s) / (interpolate(self.target, k + 1) + drafting_s + python_s)

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
        target = Costs(self.target, self.target_slope, K_MAX + 1, pace)
        draft = Costs(self.draft, self.draft_slope, K_MAX + 1, pace) if self.draft else None
        texts = {NgramDrafter.name: NgramDrafter.beliefs, RetryDrafter.name: RetryDrafter.beliefs}
        # A few places say little: hope for the better, within what they allow. What comes true then weighs more than this.
        n = self._n_places
        share = (n * self.agreement + 1) / (n + 2)
        likely = min(0.9, share + _HOPE * math.sqrt(share * (1 - share) / (n + 2)))
        coupled = [(_FAITH * belief + hits) / (_FAITH + places) for belief, (hits, places) in zip(CoupledGuess.beliefs, self.right, strict=True)]
        guesses = {"greedy": coupled, "sampled": coupled, "drawn": DrawnGuess.beliefs}
        return {
            way: Experience(
                target, draft, Chances({**texts, **expectations(beliefs, likely)}, FIRM),
                per_token=Overhead(self.token_s), per_proposal=Overhead(self.proposal_s),
            )
            for way, beliefs in guesses.items()
        }  # fmt: skip

    @property
    def _n_places(self) -> float:
        return sum(places for _, places in self.right)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Read what `to_dict` gave, from JSON too.

        Raises:
            KeyError, TypeError, ValueError: It is something else.
        """
        if not all(isinstance(data[name], dict) for name in ("target", "draft", "noise")):
            raise TypeError(data)
        tables = {name: {int(n): float(s) for n, s in data[name].items()} for name in ("target", "draft", "noise")}
        right = tuple((float(hits), float(places)) for hits, places in data["right"])
        if len(right) != SURENESSES or not tables["target"] or not all(0 < s < 1e6 for name in ("target", "draft") for s in tables[name].values()):
            raise ValueError(data)
        slopes, seconds = (
            (float(data["target_slope"]), float(data["draft_slope"])),
            (float(data[name]) for name in ("seconds", "token_s", "proposal_s")),
        )
        return cls(tables["target"], slopes[0], tables["draft"], slopes[1], tables["noise"], right, *seconds)


NOTHING_KNOWN = Profile({1: 0.02, 33: 0.1}, 0.0, {1: 0.002, 33: 0.02}, 0.0, {}, ((0.0, 0.0),) * SURENESSES, 0.0)
"""What to go by where nothing was measured."""


def profile_of(target: Model, draft: Model | None) -> Profile:
    """Return the profile kept for these models, or measure it, in about two seconds and at least 20 passes of the target, and keep it."""
    profile = kept_profile(target, draft)
    if profile is None:
        profile = measure(target, draft)
        keep_profile(target, draft, profile)
    return profile


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
    """Give back what was learned of chances another day."""
    data = recall(_file(target, draft, "experience"))
    try:
        if data["version"] == VERSION:
            for way, one in experiences.items():
                one.answer = min(max(float(data[way]["answer"]), 1.0), 1e6)
                one.chances.recall(data[way]["seen"])
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


def measure(
    target: LanguageModel,
    draft: LanguageModel | None,
    *,
    budget_s: float = 2.0,
    thorough: bool = False,
    on_step: Callable[[int, int], object] | None = None,
) -> Profile:
    """Measure a pair. Both caches are empty afterwards.

    Args:
        target: The target.
        draft: The draft model, if there is one.
        budget_s: Seconds for the passes of the target; the first few widths are measured however long they take.
        thorough: Measure all widths, five times each, far into a context, and how often the draft is right in many places.
        on_step: Called with the number of passes done and to do; for what is thorough, as else the budget ends it.
    """
    began = time.perf_counter()
    n_times, n_said, n_draft = (5, _AT_LENGTH, _AT_LENGTH // 4) if thorough else (3, 2 * K_MAX, _FEWEST)
    half_s = np.inf if thorough else budget_s / 2
    n_said, n_draft = (max(1, min(n, target.n_ctx - 1)) for n in (n_said, n_draft))
    passes, draft_passes = (_order(of, n_times, target.n_ctx) for of in (_WIDTHS, _WIDTHS if thorough else _DRAFT_WIDTHS))
    n_of_draft = n_draft + len(draft_passes) + 2 * _FAR_TIMES
    steps = _Steps(on_step, n_said + len(passes) + 2 * _FAR_TIMES + (n_of_draft if draft else 0))
    said, rows, singles, token_s = _say(target, n_said, half_s / 2, steps)
    noise: dict[int, float] = {}
    target_s = {1: statistics.median(singles)} | _time(
        target, said, passes, 1.5 * half_s, steps, judge=lambda width, logits: noise.setdefault(width, rows.moved(logits))
    )
    target_far = _look_far(target, said, target_s[1], thorough, steps, with_noise=True)
    noise = {width: max(moved, target_far.noise) for width, moved in noise.items()}
    draft_s: dict[int, float] = {}
    right, draft_slope, proposal_s = [(0.0, 0.0)] * SURENESSES, 0.0, 0.0
    if draft:
        right, proposal_s = _ask(draft, said)
        said = [min(token, draft.n_vocab - 1) for token in said]
        draft_s[1] = statistics.median(_say(draft, n_draft, half_s / 4, steps).singles_s)
        draft_s |= _time(draft, said, draft_passes, half_s / 4, steps, n_rows=1)
        draft_slope = _look_far(draft, said, draft_s[1], thorough, steps).slope
        draft.rollback(0)
    target.rollback(0)
    seconds = time.perf_counter() - began
    return Profile(target_s, target_far.slope, draft_s, draft_slope, noise, tuple(right), seconds, token_s, proposal_s)


def _order(widths: Sequence[int], n_times: int, n_ctx: int) -> list[int]:
    """Return the widths of passes, all of them so many times: those of one width far apart, for other programs come and go."""
    return [width for width in widths if width < n_ctx] * n_times


class _Steps:
    """Counts passes, for whoever wants to know how far it is."""

    def __init__(self, on_step: Callable[[int, int], object] | None, total: int) -> None:
        self._on_step, self._total, self._done = on_step, total, 0

    def advance(self, n: int = 1) -> None:
        self._done += n
        if self._on_step:
            self._on_step(self._done, self._total)


class _Talk(NamedTuple):
    """What a model said.

    Attributes:
        said: The ids it was given, one after the other.
        rows: What its rows say.
        singles_s: What its passes took, but for the first two.
        token_s: What taking a token from a row took Python.
    """

    said: list[int]
    rows: Alone
    singles_s: list[float]
    token_s: float


def _say(model: LanguageModel, n: int, budget_s: float, steps: _Steps) -> _Talk:
    """Let a model talk from nothing, for `n` tokens or fewer."""
    sampler = Sampler(_SAID, SeededRng(1), Filters(ends=np.array([i for i in range(model.n_vocab) if model.is_end(i)], dtype=np.int64)))
    said, rows = [model.start % model.n_vocab], Alone()
    took: list[float] = []
    python_s: list[float] = []
    model.rollback(0)
    while len(said) <= n and (sum(took) < budget_s or len(took) < _FEWEST):
        started = time.perf_counter()
        row = model.logits(said[-1:], 1)[0]
        passed = time.perf_counter()
        said.append(sampler.token(row, said))
        python_s.append(time.perf_counter() - passed)
        took.append(passed - started)
        rows.add(row)
        steps.advance()
    return _Talk(said[:-1], rows, took[2:] or took, statistics.median(python_s))


def _time(
    model: LanguageModel, said: Sequence[int], widths: Sequence[int], budget_s: float, steps: _Steps,
    n_rows: int | None = None, judge: Callable[[int, Logits], object] | None = None,
) -> dict[int, float]:  # fmt: skip
    """Time passes over the first tokens said, of the first few widths at least once, and return the median for each; `judge` sees their rows."""
    text = [*said, *list(said) * K_MAX]
    took: dict[int, list[float]] = {}
    began = time.perf_counter()
    for i, width in enumerate(widths):
        if i < _NEEDED or time.perf_counter() - began < budget_s:
            model.rollback(0)
            started = time.perf_counter()
            logits = model.logits(text[:width], n_rows or width)
            took.setdefault(width, []).append(time.perf_counter() - started)
            if judge:
                judge(width, logits)
        steps.advance()
    return {width: statistics.median(seconds) for width, seconds in took.items()}


class _Far(NamedTuple):
    """What is different far into a context.

    Attributes:
        slope: What each row costs more for each cached token, in seconds.
        noise: How far the logits of a pass over two tokens moved against those of one; 0 where that was not looked at.
    """

    slope: float
    noise: float = 0.0


def _look_far(model: LanguageModel, said: Sequence[int], single_s: float, thorough: bool, steps: _Steps, with_noise: bool = False) -> _Far:
    """Look behind many cached tokens where that is quick or wished; else the costs are foretold as memory goes.

    A pass over one token reads all weights and the cache of all tokens before it; attention takes more than reading alone. With several threads
    llama.cpp's flash attention on a CPU splits a long cache among them for a single token, but not for several: hence noise that is not there before.
    """
    far = min(_FAR, model.n_ctx - _FAR_TIMES)
    text = (list(said) * (far + 2))[: far + 2]
    if not (far >= _FAR_ENOUGH if thorough else far == _FAR and single_s * far < _QUICK_S):
        noise = _noise_behind(model, text, _SPLIT) if with_noise and far > _SPLIT and single_s * _SPLIT < _PATIENT_S else 0.0
        steps.advance(2 * _FAR_TIMES)
        return _Far(_MORE_THAN_MEMORY * single_s * model.cached_bytes / max(1, model.weight_bytes), noise)
    model.rollback(0)
    for i in range(_FAR_TIMES):
        model.read(text[far * i // _FAR_TIMES : far * (i + 1) // _FAR_TIMES])
        steps.advance()
    noise = _noise_behind(model, text, far) if with_noise else 0.0
    took: list[float] = []
    for _ in range(_FAR_TIMES):
        started = time.perf_counter()
        model.logits(said[:1], 1)
        took.append(time.perf_counter() - started)
        steps.advance()
    return _Far(max(0.0, (statistics.median(took) - single_s) / far), noise)


def _noise_behind(model: LanguageModel, text: Sequence[int], depth: int) -> float:
    """Return how far the logits of a pass over two tokens move against those of one, behind the first `depth` of `text`, which stay cached."""
    model.rollback(depth)
    model.read(text[model.n_past : depth])
    alone = model.logits(text[depth : depth + 1], 1)[0].copy()
    model.rollback(depth)
    beside = model.logits(text[depth : depth + 2], 2)[0]
    alive = np.isfinite(alone) & np.isfinite(beside)
    noise = float(np.abs(alone - beside)[alive].max(initial=0.0))
    model.rollback(depth)
    return noise


def _ask(draft: LanguageModel, said: Sequence[int]) -> tuple[list[tuple[float, float]], float]:
    """Return for each sureness how often the draft would have said what the target did, and in how many places; and Python's seconds for each."""
    sampler = Sampler(_SAID, SeededRng(1))
    model = ModelDrafter(draft, CoupledGuess(sampler, Calibration(draft.n_vocab)), draft.n_vocab)
    right = np.zeros((SURENESSES, 2))
    started, busy_s = time.perf_counter(), draft.busy_s
    for first in range(1, len(said), K_MAX):
        text = said[: first + K_MAX]
        for (_, sureness), hit in model.review(text, len(text) - first, K_MAX):
            right[sureness] += hit, 1
    python_s = time.perf_counter() - started - (draft.busy_s - busy_s)
    return [(float(hits), float(places)) for hits, places in right], max(0.0, python_s / max(1, len(said) - 1))
