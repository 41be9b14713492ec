"""Profiler of a pair: pass costs, exact pass widths, and the acceptance of the draft model.

Rows of wide passes are compared with those of single-token passes over the same tokens: that gives
the exact widths and the logit noise. The stored profile is used as it is, unless it is old or was
measured on a busy machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Logits, row_bits
from ..options import K_MAX, Sampling
from ..passes import LanguageModel
from ..sampling.chain import Filters, Sampler
from ..sampling.near_ties import NOISE_MARGIN, SingleTokenReference
from ..sampling.rng import SeededRng
from .drafters import (
    N_CONFIDENCE_BUCKETS,
    CoupledDraftSampler,
    DraftCorrection,
    drafter_of,
    needs_rows,
)
from .prefix import read_on, return_to
from .profile import Profile

# Widths of timed target passes, in tokens. The most informative come first, because the budget may
# end the measurement.
WIDTHS = (2, 4, 8, 16, 65, 33, 3, 5, 6, 12, 7, 9, 10, 14, 17, 24, 32, 11, 13, 15, 20, 28, 48, 64)
# Number of first widths that are timed with any budget. Beyond the widest timed width costs are
# extrapolated, and no exact pass is known.
_NEEDED = 4
# Number of first widths that run once before they are timed, on devices whose first pass of a width
# is slow; and seconds after which no further width does. Such a pass may compile kernels: with
# Vulkan on a CPU that takes 20 to 90 s. Widths that did not run are not timed.
WARMED, _WARM_UP_S = (6, 10.0)
# Widths of timed draft-model passes, in tokens.
_DRAFT_WIDTHS = (2, 4, 8, 16, 33)
# Time of attention relative to reading the cached bytes as fast as the weights, by pass width:
# factors of 0.7 to 2 were measured for one token, and 3 to 5 times as many for 8. Rather too small
# than too large: a width that seems too expensive is not used, and an error of it is not noticed.
_MORE_THAN_MEMORY = {1: 1.2, 8: 4.8}
# Costs of a pass by its width, in passes over one token, where nothing was measured: about those of
# the own kernels with AVX2. With AVX-512 they are lower.
USUAL = {1: 1.0, 2: 1.3, 4: 1.6, 8: 2.5, 16: 4.8, 33: 9.3, 65: 17.5}
# Seconds of a pass besides the reading of the weights.
_LEAST_PASS_S = 3e-4
# Number of passes over one token, budget permitting.
_N_SINGLES = 64
# Passes over one token that ignore the budget; seconds after which even those end; passes that are
# made in any case.
_WANTED, _PATIENCE_S, _FEWEST = (16, 1.5, 4)
# Cached tokens behind which passes are timed in a thorough measurement.
_DEEP = 1024
# Fewest cached tokens for a measurement of the depth cost.
_DEEP_ENOUGH = 128
# Passes that fill the cache for the depth cost, and repetitions of each timing.
_DEEP_PARTS = 8
# Widths of the passes that measure the depth cost, in tokens.
_DEEP_WIDTHS = (1, 8)
# Tokens that the draft model evaluates in one pass.
_BLOCK = 32
# Tokens generated in a thorough measurement; the draft model is evaluated on each of them.
_AT_LENGTH = 4 * _BLOCK + 2
# Sampling of the text that the measurement uses.
_SAID = Sampling(temperature=0.8, ignore_eos=True)
# Copies of a state that are timed.
_N_COPIES = 5
# Bounds of a plausible cost: at least this multiple of any narrower pass, and at most this multiple
# of as many single-token passes.
_LOWEST, _HIGHEST = (0.5, 3.0)
# Largest ratio of the median to the shortest single-token pass without another program running.
STEADY = 1.5


def measure(
    target: LanguageModel,
    draft: LanguageModel | None,
    *,
    budget_s: float = 1.6,
    thorough: bool = False,
    on_step: Callable[[int, int], object] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Profile:
    """Measure a pair. Both caches are empty afterwards.

    Args:
        budget_s: Seconds for the passes of the target; the first few widths are measured
            in any case.
        thorough: Measure all widths five times each, also behind many cached tokens, and the
            acceptance rate at many positions.
        on_step: Called with the number of passes done and the total. The total is reached only in a
            thorough measurement; otherwise the budget may end it earlier.
        clock: Returns the time in seconds.
    """
    began = clock()
    n_emitted, n_draft = (_AT_LENGTH, _AT_LENGTH // 4) if thorough else (_N_SINGLES, 16)
    half_s = np.inf if thorough else budget_s / 2
    n_emitted, n_draft = (max(1, min(n, target.n_ctx - 1)) for n in (n_emitted, n_draft))
    passes, draft_passes = (
        # Passes of one width are far apart, because other programs start and stop.
        [width for width in of if width < target.n_ctx] * (5 if thorough else 3)
        for of in (WIDTHS, WIDTHS if thorough else _DRAFT_WIDTHS)
    )
    n_deep = _DEEP_PARTS * (1 + len(_DEEP_WIDTHS))
    total = n_emitted + len(passes) + n_deep
    total += n_draft + len(draft_passes) + n_deep if draft else 0
    step = _counter(on_step, total)
    generated = _generate(target, n_emitted, half_s / 3, step, clock)
    rows = PassRows(target, generated)
    target_s, checked = _time(
        target, generated.tokens, passes, 1.5 * half_s, step, clock, judge=rows.compare
    )
    exactness = target.exactness
    exact_width = min(rows.exact_width(), exactness.most_rows) if exactness.attention else 1
    # On a GPU the wide passes that near ties allow are not exact, even if narrow ones are.
    deep = target.slow_first_pass and exactness.most_rows <= K_MAX
    is_exact = exactness.attention and not deep
    noise = rows.noise if is_exact else rows.with_deep_noise()
    target_s = _with_copies(target, target_s | {1: generated.single_s}, generated.tokens)
    restores = restores_states(target, generated.tokens, rows.noise)
    target_depth, guess = _depth(
        target, generated.tokens, generated.single_s, thorough, step, clock
    )
    right, proposal_s = [(0.0, 0.0)] * N_CONFIDENCE_BUCKETS, 0.0
    draft_s, draft_depth, draft_guess = dict[int, float](), dict[int, float](), False
    if draft:
        right, proposal_s = _ask(target, draft, generated.tokens, clock)
        text = [min(token, draft.n_vocab - 1) for token in generated.tokens]
        draft_single_s = _generate(draft, n_draft, half_s / 4, step, clock).single_s
        draft_s, is_sure = _time(draft, text, draft_passes, half_s / 4, step, clock, n_rows=1)
        draft_s[1], checked = draft_single_s, checked and is_sure
        draft_depth, draft_guess = _depth(draft, text, draft_s[1], thorough, step, clock)
        draft.rollback(0)
    target.rollback(0)
    return Profile(
        target=plausible(target_s),
        target_depth=target_depth,
        draft=plausible(draft_s),
        draft_depth=draft_depth,
        noise=noise,
        right=tuple(right),
        seconds=clock() - began,
        token_s=generated.token_s,
        proposal_s=proposal_s,
        exact_width=exact_width,
        steady=generated.steady,
        restores=restores,
        guesses_depth=(guess, draft_guess),
        checked=checked and generated.steady,
    )


def can_learn(target: LanguageModel) -> bool:
    """Return whether answers may begin with `guess`, and their passes correct it.

    Which passes are exact, and that a rollback restores the state, must be known without passes.
    """
    exactness = target.exactness
    is_exact = exactness.promised and exactness.most_rows > K_MAX
    return is_exact and target.free_rollback >= K_MAX


def guess(target: LanguageModel, draft: LanguageModel | None, single_s: float) -> Profile:
    """Return costs to begin with, without a pass.

    Args:
        single_s: Seconds of a pass of the target over one token. The first pass corrects it.
    """

    def table(of_single_s: float) -> dict[int, float]:
        return {width: times * of_single_s for width, times in USUAL.items()}

    def no_step(*_: object) -> None:
        pass

    of_draft, draft_depth, is_draft_guess = dict[int, float](), dict[int, float](), False
    if draft:
        draft_s = single_s * draft.weight_bytes / max(1, target.weight_bytes) + _LEAST_PASS_S
        of_draft = table(draft_s)
        draft_depth, is_draft_guess = _depth(draft, (), draft_s, False, no_step)
    depth, is_guess = _depth(target, (), single_s, False, no_step)
    return Profile(
        target=table(single_s),
        target_depth=depth,
        draft=of_draft,
        draft_depth=draft_depth,
        noise={},
        right=((0.0, 0.0),) * N_CONFIDENCE_BUCKETS,
        seconds=0.0,
        exact_width=K_MAX + 1,
        guesses_depth=(is_guess, is_draft_guess),
        checked=False,
        guessed=tuple(USUAL),
        guessed_draft=tuple(of_draft),
    )


def _counter(on_step: Callable[[int, int], object] | None, total: int) -> Callable[..., object]:
    done = 0

    def step(n: int = 1) -> None:
        nonlocal done
        done += n
        if on_step:
            on_step(done, total)

    return step


def _with_copies(
    model: LanguageModel, target_s: dict[int, float], tokens: Sequence[int]
) -> dict[int, float]:
    """Return the costs with the time to copy the state, in the passes before which it is copied.

    The timed passes began with an empty cache, so that there was nothing to copy.
    """
    if model.free_rollback >= K_MAX:
        return target_s
    took = []
    for _ in range(_N_COPIES):
        model.rollback(0)
        model.logits(tokens[:1], 1)
        before = model.busy_s
        model.hold()
        took.append(model.busy_s - before)
    copy_s = _low(took)
    return {w: s + copy_s if w - 1 > model.free_rollback else s for w, s in target_s.items()}


def plausible(table: Mapping[int, float]) -> dict[int, float]:
    """Return a table of costs without entries that only another program can explain.

    Args:
        table: Pass width in tokens -> seconds, with width 1; or empty.
    """
    kept: dict[int, float] = {}
    for width in sorted(table):
        if (
            all(table[width] >= _LOWEST * other for other in kept.values())
            and table[width] <= _HIGHEST * width * table[1]
        ):
            kept[width] = table[width]
    # Most entries contradict the narrowest passes, so the narrowest ones are wrong.
    if len(kept) * 2 < len(table):
        return {width: min(table[w] for w in table if w >= width) for width in table}
    return kept


def _generate(
    model: LanguageModel,
    n: int,
    budget_s: float,
    step: Callable[..., object],
    clock: Callable[[], float],
) -> Generated:
    """Let a model generate at most `n` tokens from an empty context."""
    ends = np.array([i for i in range(model.n_vocab) if model.is_end(i)], dtype=np.int64)
    sampler = Sampler(_SAID, SeededRng(1), Filters(ends=ends))
    tokens, rows, gaps = [model.start % model.n_vocab], list[bytes](), SingleTokenReference()
    took: list[float] = []
    python_s: list[float] = []
    model.rollback(0)
    while len(tokens) <= n and (
        sum(took) < (budget_s if len(took) >= _WANTED else max(budget_s, _PATIENCE_S))
        or len(took) < _FEWEST
    ):
        started = clock()
        row = model.logits(tokens[-1:], 1)[0]
        passed = clock()
        tokens.append(sampler.token(row, tokens))
        python_s.append(clock() - passed)
        took.append(passed - started)
        if len(rows) <= K_MAX:
            rows.append(row_bits(row))
            gaps.add(row)
        step()
    warm = took[2:] or took
    steady = statistics.median(warm) <= STEADY * min(warm)
    return Generated(tokens[:-1], rows, gaps, _low(warm), steady, statistics.median(python_s))


def _low(seconds: Sequence[float]) -> float:
    """Return the lower quartile, because another program only makes a pass longer."""
    return sorted(seconds)[len(seconds) // 4]


def _time(
    model: LanguageModel,
    generated: Sequence[int],
    widths: Sequence[int],
    budget_s: float,
    step: Callable[..., object],
    clock: Callable[[], float],
    n_rows: int | None = None,
    judge: Callable[[int, Logits], object] | None = None,
) -> tuple[dict[int, float], bool]:
    """Time passes over the first tokens; `judge` is called with each width and its rows.

    The first few passes are made with any budget.

    Returns:
        The lower quartile for each width, and whether the first widths are sure: each was timed
        twice or more, with about the same result.
    """
    took: dict[int, list[float]] = {}
    if model.slow_first_pass:
        patience_s = max(budget_s, _WARM_UP_S)
        ready = set(_warm_up(model, generated, [*dict.fromkeys(widths)], patience_s, clock, n_rows))
        step(sum(width not in ready for width in widths))
        widths = [width for width in widths if width in ready]
    began = clock()
    for i, width in enumerate(widths):
        if i < _NEEDED or clock() - began < budget_s:
            text = repeated(generated, width)
            model.rollback(0)
            started = clock()
            logits = model.logits(text, n_rows or width)
            took.setdefault(width, []).append(clock() - started)
            if judge:
                judge(width, logits)
        step()
    first = [sorted(took.get(width, [0.0])) for width in widths[:_NEEDED]]
    is_sure = all(len(one) > 1 and one[1] <= STEADY * one[0] for one in first)
    return {width: _low(seconds) for width, seconds in took.items()}, is_sure


def _warm_up(
    model: LanguageModel,
    generated: Sequence[int],
    widths: Sequence[int],
    patience_s: float,
    clock: Callable[[], float],
    n_rows: int | None,
) -> Iterator[int]:
    """Run a pass of each width, and yield those for which there was time."""
    began = clock()
    for i, width in enumerate(widths):
        if i >= WARMED and clock() - began >= patience_s:
            return
        model.rollback(0)
        model.logits(repeated(generated, width), n_rows or width)
        yield width


def _depth(
    model: LanguageModel,
    generated: Sequence[int],
    single_s: float,
    thorough: bool,
    step: Callable[..., object],
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[int, float], bool]:
    """Return the depth cost of some widths, and whether it is an estimate.

    The depth cost is the extra seconds of a pass for each cached token. A thorough measurement
    times it. Otherwise it is a known value of the model or an estimate. The estimate: a pass over
    one token reads all weights and the cache of all tokens before it.
    """
    deep = min(_DEEP, model.n_ctx - max(_DEEP_WIDTHS) - 1)
    if not thorough or deep < _DEEP_ENOUGH:
        step(_DEEP_PARTS * (1 + len(_DEEP_WIDTHS)))
        if model.depth_costs:
            return dict(model.depth_costs), False
        reading_s = single_s * model.cached_bytes / max(1, model.weight_bytes)
        return {width: more * reading_s for width, more in _MORE_THAN_MEMORY.items()}, True
    text = repeated(generated, deep + max(_DEEP_WIDTHS))
    widths = _DEEP_WIDTHS * _DEEP_PARTS
    near, _ = _time(model, generated, widths, np.inf, lambda *_: None, clock, n_rows=1)
    model.rollback(0)
    for i in range(_DEEP_PARTS):
        model.read(text[deep * i // _DEEP_PARTS : deep * (i + 1) // _DEEP_PARTS])
        step()
    far: dict[int, list[float]] = {}
    for _ in range(_DEEP_PARTS):
        for width in _DEEP_WIDTHS:
            started = clock()
            model.logits(text[deep : deep + width], 1)
            far.setdefault(width, []).append(clock() - started)
            return_to(model, text, deep)
            step()
    return {width: max(0.0, _low(far[width]) - near[width]) / deep for width in _DEEP_WIDTHS}, False


def _ask(
    target: LanguageModel,
    draft: LanguageModel,
    generated: Sequence[int],
    clock: Callable[[], float],
) -> tuple[list[tuple[float, float]], float]:
    """Measure how often the draft model predicts the target's tokens.

    Returns:
        For each confidence bucket the number of right tokens and the number of positions; and
        Python's seconds for each position.
    """
    if needs_rows(draft):  # of the text on which it is judged and timed
        n = min(max(*_DRAFT_WIDTHS, len(generated)), target.n_ctx - 1)
        target.rollback(0)
        read_on(target, repeated(generated, n), lambda: False)
    sampler = Sampler(_SAID, SeededRng(1))
    guess = CoupledDraftSampler(sampler, DraftCorrection(draft.n_vocab))
    model = drafter_of(draft, guess, draft.n_vocab)
    right = np.zeros((N_CONFIDENCE_BUCKETS, 2))
    if not model.can_review:
        return [(0.0, 0.0)] * N_CONFIDENCE_BUCKETS, 0.0
    started, busy_s = clock(), draft.busy_s
    for first in range(1, len(generated), _BLOCK):
        text = generated[: first + _BLOCK]
        for (_, confidence), hit in model.review(text, len(text) - first, _BLOCK):
            right[confidence] += hit, 1
    python_s = clock() - started - (draft.busy_s - busy_s)
    return [(float(hits), float(places)) for hits, places in right], max(
        0.0, python_s / max(1, len(generated) - 1)
    )


# Cached tokens from which flash attention is split over threads: 512 cells.
_SPLIT = 520
# Number of rows behind `_SPLIT` cached tokens that are compared.
_DEEP_ROWS = 32
# Number of tokens before the one that tests a rollback.
_TESTED = 12
# Largest number of widths between an exact and an inexact one that are tested one by one.
_MANY = 7


class Generated(NamedTuple):
    """Text that a model generated in passes over one token, with its measurements.

    Attributes:
        tokens: The ids that the model read, in order.
        rows: A hash of the bits of each row.
        gaps: The best logits of each row, for the comparison with other rows.
        single_s: Lower quartile of the time of a pass, in seconds.
        steady: No other program appeared to run at the same time.
        token_s: Python's time to choose a token from a row, in seconds.
    """

    tokens: list[int]
    rows: list[bytes]
    gaps: SingleTokenReference
    single_s: float
    steady: bool
    token_s: float


class PassRows:
    """Comparison of rows of wide passes with those of single-token passes over the same tokens.

    Attributes:
        noise: Pass width in tokens -> shift of its logits against each other, in logits; 0 if all
            rows have the same bits.
    """

    def __init__(self, model: LanguageModel, generated: Generated) -> None:
        self._model, self._generated = model, generated
        self.noise: dict[int, float] = {}

    def compare(self, width: int, logits: Logits) -> None:
        """Compare the rows of a pass over the first tokens, shape `(width, V)`, once per width."""
        if width in self.noise:
            return
        alone, tiny, moved = self._generated.rows, float(np.finfo(np.float32).tiny), 0.0
        if any(row_bits(row) != bits for row, bits in zip(logits, alone, strict=False)):
            moved = max(self._generated.gaps.max_shift(logits), tiny)
        elif width > len(alone):
            # The last rows may use other kernels: decode the last token again in its own pass.
            text, last = self._text(width), row_bits(logits[-1])
            return_to(self._model, text, width - 1)
            if row_bits(self._model.logits(text[-1:], 1)[0]) != last:
                moved = tiny
        self.noise[width] = moved

    def exact_width(self) -> int:
        """Return the widest pass up to which all passes have the bits of single rows.

        Untested widths before an inexact one are tested too.
        """
        inexact = next((width for width in sorted(self.noise) if self.noise[width]), None)
        exact = max([1, *(width for width in self.noise if inexact is None or width < inexact)])
        if inexact is None or inexact - exact > _MANY + 1:
            return exact
        for width in range(exact + 1, inexact):
            self._model.rollback(0)
            self.compare(width, self._model.logits(self._text(width), width))
            if self.noise[width]:
                return width - 1
        return inexact - 1

    def with_deep_noise(self) -> dict[int, float]:
        """Return the noise, at least that behind many cached tokens, as far as the context allows.

        Attention may round differently there.
        """
        n_deep = max(0, min(_SPLIT, self._model.n_ctx - _DEEP_ROWS - 1))
        text, alone = self._text(n_deep + _DEEP_ROWS), SingleTokenReference()
        self._model.rollback(0)
        self._model.read(text[:n_deep])
        for token in text[n_deep:]:
            alone.add(self._model.logits([token], 1)[0])
        deep = 0.0
        for width in (2, _DEEP_ROWS):
            return_to(self._model, text, n_deep)
            rows = self._model.logits(text[n_deep : n_deep + width], width)
            deep = max(deep, alone.max_shift(rows))
        return {width: max(noise, deep) for width, noise in self.noise.items()}

    def _text(self, width: int) -> list[int]:
        return repeated(self._generated.tokens, width)


def restores_states(
    model: LanguageModel, generated: Sequence[int], noise: Mapping[int, float]
) -> bool:
    """Return whether rows after a rollback are those of the text without the dropped tokens.

    Models whose cache drops any number of tokens are not tested. Others depend on code of llama.cpp
    that exists once for each architecture. `noise` is that of passes by width, in logits.
    """
    free = model.free_rollback
    if free >= K_MAX or model.n_ctx < _TESTED + free + 2:
        return True
    text, alone = repeated(generated, _TESTED + 1), SingleTokenReference()
    model.rollback(0)
    for token in text[:-1]:
        model.logits([token], 1)
    alone.add(model.logits(text[-1:], 1)[0])
    # A snapshot drops a few tokens; more than that need a checkpoint.
    for n in {min(2, free), free + 1} - {0}:
        model.rollback(0)
        model.read(text[:1])
        # One wrong token and more follow the right ones.
        model.logits([*text[1:_TESTED], *[text[0]] * n], n + 1)
        return_to(model, text, _TESTED)
        moved = alone.max_shift(model.logits(text[_TESTED:], 1))
        if moved > NOISE_MARGIN * max(noise.values(), default=0.0):
            return False
    return True


def repeated(tokens: Sequence[int], n: int) -> list[int]:
    """Return the first `n` tokens of an endless repetition of `tokens`."""
    return (list(tokens) * (n // len(tokens) + 1))[:n]
