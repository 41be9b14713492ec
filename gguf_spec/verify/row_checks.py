"""Comparison of rows of multi-token passes with rows of single-token passes.

The rows must be bit-identical or equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..bench.workloads import long_text
from ..llama import own_kernels
from ..llama.backend import uses_gpu
from ..llama.model import Model
from ..options import K_MAX, Speculation
from ..runtime.llm import LLM
from ..sampling.chain import largest
from ..speculative.interfaces import read_on, return_to

# Upper limit of rounding noise in the best logits of a row, as a share of the logits' spread.
MOST_NOISE = 0.15
# Upper limit of the shift, as a multiple of the noise in the profile. Above it, the profile is
# out of date.
_MOST_ALLOWED = 2.0
_WIDTHS = (2, 3, 4, 8, 16, 33)  # compared pass widths, in tokens
# Tokens before the rows: a few, and more than 512. From 512 tokens on, flash attention is split
# over threads.
_DEPTHS = (8, 600)
_RIVALS = 64  # number of best tokens of a row that are compared


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the checked feature.
        n_cases: Number of comparisons; 0 if the check was left out.
        found: Summary of the result in a few words.
        faults: Faults, one sentence each.
        changes: Effect of a fault on the output, as the end of "Speculation changes this model's
            output: ...".
        n_near_ties: Number of comparisons that differ at a near tie.
    """

    name: str
    n_cases: int
    found: str
    faults: tuple[str, ...] = ()
    changes: str = ""
    n_near_ties: int = 0

    @property
    def ok(self) -> bool:
        """Whether the check found no fault."""
        return not self.faults


class _Moved(NamedTuple):
    """Comparison of one multi-token pass with single-token passes.

    Attributes:
        width: Tokens in the pass.
        depth: Tokens before it.
        same: Whether its rows, and the row of the next single-token pass, are bit-identical to
            those of single-token passes.
        logits: Largest relative shift of the best logits of a row, in logits.
        share: The same as a share of the spread of the row's logits.
    """

    width: int
    depth: int
    same: bool
    logits: float
    share: float


def widest_in_use(llm: LLM, ways: Collection[Speculation]) -> int:
    """Return the maximum number of tokens of a verification pass."""
    return max(min(way.k + 1, llm.profile.widest(way.exact)) for way in ways)


def noise_in_use(llm: LLM, ways: Collection[Speculation]) -> float:
    """Return the largest noise allowance of all draft settings, in logits."""
    return max(llm.logit_noise(way.k, way.exact) for way in ways)


def check_rows(llm: LLM, ways: Collection[Speculation]) -> Check:
    """Compare rows of verification passes with rows of single-token passes.

    Up to the widest exact pass, the rows must be bit-identical. If the model is used as exact at
    all widths, they must be so at all widths, because prompts are then prefilled in passes of any
    width. Other rows may differ, but only by rounding.
    """
    text = llm.tokenize(long_text(llm, max(_DEPTHS) + max(_WIDTHS) + 2))
    in_use = widest_in_use(llm, ways)
    with llm.models() as (target, _):
        exact = llm.profile.exact_width if target.grid or uses_gpu(target.options) else K_MAX + 1
        passes = [
            one
            for depth in _DEPTHS
            for one in _passes(target, text, depth, sorted({*_WIDTHS, min(in_use, max(_WIDTHS))}))
        ]
    faults = [*_faults(passes, exact, in_use, noise_in_use(llm, ways))]
    return Check(
        "rows",
        len(passes),
        _found(passes, exact, in_use),
        tuple(faults),
        "rows of passes over several tokens are not those of single tokens",
    )


def check_kernels(llm: LLM) -> list[Check]:
    """Compare rows of the own kernels with rows of llama.cpp's, which may differ by rounding.

    The list is empty if the own kernels do not compute this model.
    """
    name = own_kernels.in_use().name
    text = llm.tokenize(long_text(llm, max(_DEPTHS) + max(_WIDTHS)))
    with llm.models() as (target, _):
        if not name or target.options.rpc:
            return []
        own = _rows(target, text)
        with own_kernels.switched_off():
            stock = _rows(target, text)
    logits, share = max((how_far(*two) for two in zip(own, stock, strict=True)), key=itemgetter(1))
    fault = (
        f"Logits of gguf-spec's kernels for {name} are up to {logits:.2g} from those of "
        f"llama.cpp's kernels, {share:.0%} of the logits' spread; rounding moves them by less "
        f"than {MOST_NOISE:.0%}."
    )
    return [
        Check(
            "kernels",
            len(own),
            f"{name}: up to {share:.1%} of the logits' spread from llama.cpp's",
            (fault,) if share > MOST_NOISE else (),
            "the kernels of gguf-spec compute other logits than llama.cpp's",
        )
    ]


def _rows(target: Model, text: Sequence[int]) -> list[Logits]:
    """Return the rows of one pass after few tokens, and after many if the context has room."""
    found: list[Logits] = []
    for depth in _DEPTHS:
        tokens = text[: min(depth + max(_WIDTHS), target.n_ctx)]
        if len(tokens) > depth:
            target.rollback(0)
            read_on(target, tokens[:depth], lambda: False)
            found.extend(target.logits(tokens[depth:], len(tokens) - depth).copy())
    target.rollback(0)
    return found


def _passes(
    target: Model, text: Sequence[int], depth: int, widths: Sequence[int]
) -> Iterator[_Moved]:
    """Yield the comparisons of passes after `depth` tokens; none if the context has no room."""
    n_rows = min(max(widths) + 1, target.n_ctx - depth, len(text) - depth)
    if n_rows < 3:
        return
    target.rollback(0)
    read_on(target, text[:depth], lambda: False)
    alone = np.concatenate(
        [target.logits([token], 1).copy() for token in text[depth : depth + n_rows]]
    )
    for width in widths:
        if width < n_rows:
            return_to(target, text, depth)
            rows = target.logits(text[depth : depth + width], width).copy()
            # A single-token pass on a cache that a wide pass computed.
            behind = target.logits([text[depth + width]], 1)
            yield _moved(width, depth, [*rows, *behind], [*alone[: width + 1]])
    target.rollback(0)


def _moved(width: int, depth: int, rows: Sequence[Logits], alone: Sequence[Logits]) -> _Moved:
    same = all(
        np.array_equal(row, right, equal_nan=True) for row, right in zip(rows, alone, strict=True)
    )
    worst = max(
        (how_far(row, right) for row, right in zip(rows, alone, strict=True)),
        key=lambda one: one[1],
    )
    return _Moved(width, depth, same, *worst)


def how_far(row: Logits, right: Logits) -> tuple[float, float]:
    """Return the largest relative shift of a row's best logits.

    Args:
        row: Logits, shape `(V,)`.
        right: Reference logits, shape `(V,)`.

    Returns:
        The shift in logits, and as a share of the spread of the reference.
    """
    best = largest(right, min(_RIVALS, len(right)))
    best = best[np.isfinite(right[best])]
    moved = row[best].astype(np.float64) - right[best]
    if not np.isfinite(moved).all():
        return np.inf, np.inf
    logits = float(np.abs(moved - moved[right[best].argmax()]).max(initial=0.0))
    spread = float(np.std(right[np.isfinite(right)], dtype=np.float64))
    return logits, logits / spread if logits else 0.0


def _faults(passes: Sequence[_Moved], exact: int, in_use: int, noise: float) -> Iterator[str]:
    """Yield the faults, only the worst of each kind."""
    promised = [one for one in passes if one.width <= exact and not one.same]
    if promised:
        one = max(promised, key=lambda one: one.logits)
        yield (
            f"Rows of a pass over {one.width} tokens behind {one.depth} are up to "
            f"{one.logits:.2g} logits from those of single-token passes; "
            "here their bits must be equal."
        )
    used = [one for one in passes if exact < one.width <= in_use]
    if not used:
        return
    one = max(used, key=lambda one: one.share)
    if one.share > MOST_NOISE:
        yield (
            f"Rows of a pass over {one.width} tokens behind {one.depth} are up to "
            f"{one.logits:.2g} logits from those of single-token passes, "
            f"{one.share:.0%} of the logits' spread; rounding moves them by less than "
            f"{MOST_NOISE:.0%}."
        )
    elif one.logits > _MOST_ALLOWED * noise:
        yield (
            f"Logits move by {one.logits:.2g} with the width of the pass, but the profile allows "
            f"for {noise:.2g}: `gguf-spec tune` measures again."
        )
    spread = (
        min(one.logits / one.share for one in used if one.share)
        if any(one.share for one in used)
        else 0.0
    )
    if spread and noise > 2 * MOST_NOISE * spread:
        yield (
            f"The profile allows for {noise:.2g} logits of rounding noise, {noise / spread:.0%} "
            "of the logits' spread: more than rounding explains."
        )


def _found(passes: Sequence[_Moved], exact: int, in_use: int) -> str:
    """Return a summary in a few words.

    Passes that are too wide for verification are included if they differ by more than rounding.
    """
    widest = max((one.width for one in passes if one.width <= min(exact, in_use)), default=0)
    moved = max((one.share for one in passes if one.width <= in_use and not one.same), default=0.0)
    unused = max((one.share for one in passes if one.width > max(exact, in_use)), default=0.0)
    found = (
        [f"the same bits in passes of up to {widest} tokens"] if widest > 1 and not moved else []
    )
    found += ["no pass over several tokens is in use"] if in_use < 2 else []
    found += [f"up to {moved:.1%} of the logits' spread apart"] if moved else []
    found += (
        [f"wider ones, not in use, are {unused:.0%} of the logits' spread apart"]
        if unused > MOST_NOISE
        else []
    )
    return "; ".join(found)
