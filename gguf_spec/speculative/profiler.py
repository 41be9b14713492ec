"""Measure what passes of a pair cost on this machine, which of them give a row the same bits, and how often the draft is right."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..llama.exact_kernels import kernels_in_use
from ..llama.model import Model
from ..options import K_MAX, Sampling
from ..sampling.chain import Filters, Sampler
from ..sampling.near_ties import SingleTokenReference
from ..sampling.rng import SeededRng
from ..system.competition import cores_are_shared
from .drafters import N_CONFIDENCE_BUCKETS, CoupledDraftSampler, DraftCorrection, ModelDrafter
from .interfaces import LanguageModel
from .profile import Profile, read_profile, write_profile

_WIDTHS = (
    2,
    4,
    8,
    16,
    65,
    33,
    3,
    5,
    6,
    12,
    7,
    9,
    10,
    14,
    17,
    24,
    32,
    11,
    13,
    15,
    20,
    28,
    48,
    64,
)  # the most telling first
_NEEDED = 4  # of them, however long they take: what is beyond the widest is a guess, and no wider pass verifies
_DRAFT_WIDTHS = (2, 4, 8, 16, 33)
_MORE_THAN_MEMORY = (
    4.0  # attention takes so much more than reading the cached bytes: two to six times was measured
)
_N_SINGLES = 64  # passes over one token: as many as the budget allows,
_WANTED, _PATIENCE_S, _FEWEST = (
    16,
    1.5,
    4,
)  # so many unless they take longer than that, and so many in any case
_DEEP = 1024  # cached tokens behind which passes are timed where it is thorough
_SPLIT = 520  # cached tokens from which flash attention is split over threads: 512 cells
_DEEP_ROWS = 32  # rows behind these that are compared
_DEEP_ENOUGH = 128  # at least, for that
_DEEP_PARTS = 8
_DEEP_WIDTHS = (1, 8)
_BLOCK = 32  # tokens that the draft model is asked about in one pass
_AT_LENGTH = (
    4 * _BLOCK + 2
)  # tokens generated where it is measured thoroughly: so often the draft is asked
_SAID = Sampling(temperature=0.8, ignore_eos=True)  # how the target says what is measured with
_MANY = 7  # widths between an exact and an inexact one that are tried one by one
_CHEAPER, _DEARER = (
    0.5,
    3.0,
)  # a pass is not cheaper than half of a narrower one, nor dearer than three times as many single passes
_STEADY = (
    1.5  # the median of single passes over their shortest: beyond that another program was running
)
_BUSY_BUDGET_S = 0.3  # for a profile that will be measured again, as other programs run now
_OLD_S = 30 * 24 * 3600.0  # age from which a profile is measured again


def profile_of(
    target: Model, draft: Model | None, on_measure: Callable[[], object] | None = None
) -> Profile:
    """Return the profile kept for these models, or measure it in about two seconds and keep it.

    One that was measured beside another program, or is a month old, is measured again; beside another program only the fewest passes are made.
    Before that `on_measure` is called.
    """
    kept, now = read_profile(target, draft), time.time()
    if kept and kept.kernels != kernels_in_use():
        kept = None
    if kept and kept.steady and 0 <= now - kept.measured_at < _OLD_S:
        return kept
    if on_measure:
        on_measure()
    if cores_are_shared(target.threads):
        profile = replace(
            measure(target, draft, budget_s=_BUSY_BUDGET_S), steady=False, measured_at=now
        )
    else:
        profile = replace(measure(target, draft), measured_at=now)
    if kept and kept.steady and not profile.steady:
        profile = replace(
            kept, measured_at=now
        )  # the machine is busy now: what an idle one took is closer
    write_profile(target, draft, profile)
    return profile


def measure(
    target: LanguageModel,
    draft: LanguageModel | None,
    *,
    budget_s: float = 1.6,
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
    n_times, n_said, n_draft = (5, _AT_LENGTH, _AT_LENGTH // 4) if thorough else (3, _N_SINGLES, 16)
    half_s = np.inf if thorough else budget_s / 2
    n_said, n_draft = (max(1, min(n, target.n_ctx - 1)) for n in (n_said, n_draft))
    passes, draft_passes = (
        _order(of, n_times, target.n_ctx)
        for of in (_WIDTHS, _WIDTHS if thorough else _DRAFT_WIDTHS)
    )
    n_deep = _DEEP_PARTS * (1 + len(_DEEP_WIDTHS))
    steps = _Steps(
        on_step,
        n_said + len(passes) + n_deep + (n_draft + len(draft_passes) + n_deep if draft else 0),
    )
    said = _generate(target, n_said, half_s / 3, steps)
    rows = _PassRows(target, said)
    target_s = {1: said.single_s} | _time(
        target, said.tokens, passes, 1.5 * half_s, steps, judge=rows.compare
    )
    exact_width = min(rows.exact_width(), target.most_exact_rows) if target.exact_attention else 1
    noise = rows.noise if target.exact_attention else rows.with_deep_noise()
    target_depth = _depth(target, said.tokens, said.single_s, thorough, steps)
    right, draft_s, draft_depth, proposal_s = (
        [(0.0, 0.0)] * N_CONFIDENCE_BUCKETS,
        dict[int, float](),
        dict[int, float](),
        0.0,
    )
    if draft:
        right, proposal_s = _ask(draft, said.tokens)
        text = [min(token, draft.n_vocab - 1) for token in said.tokens]
        draft_s[1] = _generate(draft, n_draft, half_s / 4, steps).single_s
        draft_s |= _time(draft, text, draft_passes, half_s / 4, steps, n_rows=1)
        draft_depth = _depth(draft, text, draft_s[1], thorough, steps)
        draft.rollback(0)
    target.rollback(0)
    return Profile(
        plausible(target_s), target_depth, plausible(draft_s), draft_depth, noise, tuple(right),
        time.perf_counter() - began, said.token_s, proposal_s, exact_width, kernels_in_use(), said.steady,
    )  # fmt: skip


def plausible(table: Mapping[int, float]) -> dict[int, float]:
    """Return a table of costs without the entries that only another program can explain.

    Args:
        table: Tokens in a pass -> seconds, 1 among them; or empty.
    """
    kept: dict[int, float] = {}
    for width in sorted(table):
        if (
            all(table[width] >= _CHEAPER * other for other in kept.values())
            and table[width] <= _DEARER * width * table[1]
        ):
            kept[width] = table[width]
    if len(kept) * 2 < len(
        table
    ):  # most contradict the narrowest passes, so it is those that are wrong
        return {width: min(table[w] for w in table if w >= width) for width in table}
    return kept


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


class _Generated(NamedTuple):
    """What a model generated in passes over one token.

    Attributes:
        tokens: The ids it was given, one after the other.
        rows: A hash of the bits of each row.
        gaps: The best logits of each row, to compare other rows with.
        single_s: What a pass took: the lower quartile.
        steady: No other program seems to have run beside it.
        token_s: What taking a token from a row took Python.
    """

    tokens: list[int]
    rows: list[bytes]
    gaps: SingleTokenReference
    single_s: float
    steady: bool
    token_s: float


def _bits(row: Logits) -> bytes:
    return hashlib.blake2b(row.tobytes(), digest_size=16).digest()


def _generate(model: LanguageModel, n: int, budget_s: float, steps: _Steps) -> _Generated:
    """Let a model generate from nothing, `n` tokens or fewer."""
    sampler = Sampler(
        _SAID,
        SeededRng(1),
        Filters(
            ends=np.array([i for i in range(model.n_vocab) if model.is_end(i)], dtype=np.int64)
        ),
    )
    tokens, rows, gaps = [model.start % model.n_vocab], list[bytes](), SingleTokenReference()
    took: list[float] = []
    python_s: list[float] = []
    model.rollback(0)
    while len(tokens) <= n and (
        sum(took) < (budget_s if len(took) >= _WANTED else max(budget_s, _PATIENCE_S))
        or len(took) < _FEWEST
    ):
        started = time.perf_counter()
        row = model.logits(tokens[-1:], 1)[0]
        passed = time.perf_counter()
        tokens.append(sampler.token(row, tokens))
        python_s.append(time.perf_counter() - passed)
        took.append(passed - started)
        if len(rows) <= K_MAX:
            rows.append(_bits(row))
            gaps.add(row)
        steps.advance()
    warm = took[2:] or took
    steady = statistics.median(warm) <= _STEADY * min(warm)
    return _Generated(tokens[:-1], rows, gaps, _low(warm), steady, statistics.median(python_s))


def _low(seconds: Sequence[float]) -> float:
    """Return the lower quartile: another program only makes a pass longer."""
    return sorted(seconds)[len(seconds) // 4]


class _PassRows:
    """Compares rows of wide passes with those of single-token passes over the same tokens.

    Attributes:
        noise: Tokens in a pass -> how far its logits moved against each other; 0 where all rows have the same bits.
    """

    def __init__(self, model: LanguageModel, said: _Generated) -> None:
        self._model, self._said = model, said
        self.noise: dict[int, float] = {}

    def compare(self, width: int, logits: Logits) -> None:
        """Compare the rows of a pass over the first tokens, shape `(width, V)`, once for each width."""
        if width in self.noise:
            return
        same = all(_bits(row) == alone for row, alone in zip(logits, self._said.rows, strict=False))
        moved = (
            0.0
            if same
            else max(self._said.gaps.max_shift(logits), float(np.finfo(np.float32).tiny))
        )
        if same and width > len(
            self._said.rows
        ):  # the last rows may go through other kernels: read the last token again, alone
            last, token = _bits(logits[-1]), self._text(width)[-1]
            self._model.rollback(width - 1)
            moved = (
                0.0
                if _bits(self._model.logits([token], 1)[0]) == last
                else float(np.finfo(np.float32).tiny)
            )
        self.noise[width] = moved

    def exact_width(self) -> int:
        """Return the widest pass up to which all passes have the bits of single rows; narrow passes beside an inexact one are tried too."""
        exact = 1
        for width in sorted(self.noise):
            if self.noise[width]:
                if width - exact <= _MANY + 1:
                    exact += self._n_exact(exact + 1, width)
                break
            exact = width
        return exact

    def _n_exact(self, first: int, end: int) -> int:
        """Return how many widths from `first` on, before `end`, are exact."""
        for width in range(first, end):
            self._model.rollback(0)
            self.compare(width, self._model.logits(self._text(width), width))
            if self.noise[width]:
                return width - first
        return end - first

    def with_deep_noise(self) -> dict[int, float]:
        """Return the noise with that behind many tokens, where attention may round otherwise; there where the context is long enough."""
        n_deep = max(0, min(_SPLIT, self._model.n_ctx - _DEEP_ROWS - 1))
        text, alone = self._text(n_deep + _DEEP_ROWS), SingleTokenReference()
        self._model.rollback(0)
        self._model.read(text[:n_deep])
        for token in text[n_deep:]:
            alone.add(self._model.logits([token], 1)[0])
        deep = 0.0
        for width in (2, _DEEP_ROWS):
            self._model.rollback(n_deep)
            deep = max(
                deep, alone.max_shift(self._model.logits(text[n_deep : n_deep + width], width))
            )
        return {width: max(noise, deep) for width, noise in self.noise.items()}

    def _text(self, width: int) -> list[int]:
        return _repeated(self._said.tokens, width)


def _repeated(tokens: Sequence[int], n: int) -> list[int]:
    return (list(tokens) * (n // len(tokens) + 1))[:n]


def _time(
    model: LanguageModel, said: Sequence[int], widths: Sequence[int], budget_s: float, steps: _Steps,
    n_rows: int | None = None, judge: Callable[[int, Logits], object] | None = None,
) -> dict[int, float]:  # fmt: skip
    """Time passes over the first tokens, the first few widths at least once; return the lower quartile for each. `judge` sees their rows."""
    took: dict[int, list[float]] = {}
    began = time.perf_counter()
    for i, width in enumerate(widths):
        if i < _NEEDED or time.perf_counter() - began < budget_s:
            text = _repeated(said, width)
            model.rollback(0)
            started = time.perf_counter()
            logits = model.logits(text, n_rows or width)
            took.setdefault(width, []).append(time.perf_counter() - started)
            if judge:
                judge(width, logits)
        steps.advance()
    return {width: _low(seconds) for width, seconds in took.items()}


def _depth(
    model: LanguageModel, said: Sequence[int], single_s: float, thorough: bool, steps: _Steps
) -> dict[int, float]:
    """Return for passes of some widths the seconds that each cached token adds: measured where it is thorough, else known or estimated.

    The estimate: a pass over one token reads all weights and the cache of all tokens before it, and attention takes more than reading.
    """
    deep = min(_DEEP, model.n_ctx - max(_DEEP_WIDTHS) - 1)
    if not thorough or deep < _DEEP_ENOUGH:
        steps.advance(_DEEP_PARTS * (1 + len(_DEEP_WIDTHS)))
        slope = _MORE_THAN_MEMORY * single_s * model.cached_bytes / max(1, model.weight_bytes)
        return dict(model.depth_costs) or {1: slope, 8: 8 * slope}
    text = _repeated(said, deep + max(_DEEP_WIDTHS))
    near = _time(model, said, _DEEP_WIDTHS * _DEEP_PARTS, np.inf, _Steps(None, 0), n_rows=1)
    model.rollback(0)
    for i in range(_DEEP_PARTS):
        model.read(text[deep * i // _DEEP_PARTS : deep * (i + 1) // _DEEP_PARTS])
        steps.advance()
    far: dict[int, list[float]] = {}
    for _ in range(_DEEP_PARTS):
        for width in _DEEP_WIDTHS:
            started = time.perf_counter()
            model.logits(text[deep : deep + width], 1)
            far.setdefault(width, []).append(time.perf_counter() - started)
            model.rollback(deep)
            steps.advance()
    return {width: max(0.0, _low(far[width]) - near[width]) / deep for width in _DEEP_WIDTHS}


def _ask(draft: LanguageModel, said: Sequence[int]) -> tuple[list[tuple[float, float]], float]:
    """Return for each sureness how often the draft would have said what the target did, and in how many places; and Python's seconds for each."""
    sampler = Sampler(_SAID, SeededRng(1))
    model = ModelDrafter(
        draft, CoupledDraftSampler(sampler, DraftCorrection(draft.n_vocab)), draft.n_vocab
    )
    right = np.zeros((N_CONFIDENCE_BUCKETS, 2))
    started, busy_s = time.perf_counter(), draft.busy_s
    for first in range(1, len(said), _BLOCK):
        text = said[: first + _BLOCK]
        for (_, confidence), hit in model.review(text, len(text) - first, _BLOCK):
            right[confidence] += hit, 1
    python_s = time.perf_counter() - started - (draft.busy_s - busy_s)
    return [(float(hits), float(places)) for hits, places in right], max(
        0.0, python_s / max(1, len(said) - 1)
    )
