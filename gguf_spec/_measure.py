"""Measures what passes of a pair cost on this machine, and how often the draft is right."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ._costs import slope_depth
from ._drafters import SURENESSES, Calibration, CoupledGuess, ModelDrafter
from ._language_model import LanguageModel
from ._model import Model
from ._near_ties import FAR, Alone
from ._profile import Profile, keep_profile, kept_profile
from ._rng import SeededRng
from ._sampling import Filters, Logits, Sampler
from ._types import K_MAX, Sampling

_WIDTHS = (2, 4, 8, 16, 3, 5, 6, 33, 12, 7, 9, 10, 14, 17, 24, 32, 11, 13, 15, 20, 28, 48, 64)  # the most telling first
_NEEDED = 4  # of them, however long they take: what is beyond the widest is a guess, and long drafts stand or fall with it
_DRAFT_WIDTHS = (2, 4, 8, 16, 33)
_MORE_THAN_MEMORY = 4.0  # twice to six times was measured
_FEWEST = 16  # passes over one token
_QUICK_S = 2.0  # at the pace of single passes, for reading so far; batches are several times faster
_FAR = 1024  # cached tokens at which the cost of a context is measured
_FAR_ENOUGH = 128  # at least, for that
_FAR_TIMES = 8
_SPLIT, _PATIENT_S = FAR + 4, 15.0  # tokens behind which noise is looked for; at the pace of single passes
_BLOCK = 32  # tokens that the draft model is asked about in one pass
_AT_LENGTH = 4 * _BLOCK + 2  # tokens said where it is measured thoroughly: so often the draft is asked
_SAID = Sampling(temperature=0.8, ignore_eos=True)  # how the target says what is measured with


def profile_of(target: Model, draft: Model | None) -> Profile:
    """Return the profile kept for these models, or measure it, in about two seconds and at least 20 passes of the target, and keep it."""
    profile = kept_profile(target, draft)
    if profile is None:
        profile = measure(target, draft)
        keep_profile(target, draft, profile)
    return profile


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
    n_times, n_said, n_draft = (5, _AT_LENGTH, _AT_LENGTH // 4) if thorough else (3, 2 * _BLOCK, _FEWEST)
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
    target_depth, draft_depth = slope_depth(target_far.slope), slope_depth(draft_slope) if draft else {}
    return Profile(target_s, target_depth, draft_s, draft_depth, noise, tuple(right), seconds, token_s, proposal_s, target_far.noise)


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
    for first in range(1, len(said), _BLOCK):
        text = said[: first + _BLOCK]
        for (_, sureness), hit in model.review(text, len(text) - first, _BLOCK):
            right[sureness] += hit, 1
    python_s = time.perf_counter() - started - (draft.busy_s - busy_s)
    return [(float(hits), float(places)) for hits, places in right], max(0.0, python_s / max(1, len(said) - 1))
