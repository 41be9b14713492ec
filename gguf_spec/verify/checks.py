"""Checks of `verify`: rows of passes, texts and caches, features of requests, distributions."""

from __future__ import annotations

import ctypes
import json
import math
import re
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Logits
from ..bench.workloads import long_text
from ..drafters import DRAFTERS, DrafterKind, kind_of
from ..errors import DecodeError, NoTokenLeftError, OffGrammarError, SessionError
from ..llama import own_kernels
from ..llama.backend import uses_gpu
from ..llama.bindings import C
from ..llama.log import context_error, log
from ..llama.memory import padded
from ..llama.native import N_BATCH, SequenceTokens
from ..llama.options import FLASH_ATTENTION, KV_TYPES
from ..llama.samplers import distribution, dry_penalties
from ..llama.sequence import CachedSequence
from ..options import K_MAX, Sampling, Speculation
from ..passes import LanguageModel
from ..results import Completion, Stats
from ..runtime.llm import LLM
from ..sampling.chain import Sampler, largest
from ..sampling.filters import make_filters
from ..sampling.near_ties import is_near_tie
from ..sampling.rng import SeededRng
from ..speculative.pair import Snapshot
from ..speculative.prefix import decode_last, read_on, return_to
from ..speculative.profile import Profile
from ..speculative.translation import TranslatedModel
from ..vocabulary import common

# Upper limit of rounding noise in the best logits of a row, as a share of the logits' spread.
MOST_NOISE = 0.15
# The same for two sets of kernels, which quantise activations in other ways: in the median of the
# rows, and in the worst one. Qwen2.5-Coder-1.5B Q4_K_M: 0.14 and 0.32 between llama.cpp's kernels
# with AMX and without, 0.12 and 0.34 from activations that are not quantised.
_MOST_OF_KERNELS = (0.25, 0.6)
# The same for the choices of experts that are others.
_MOST_OTHER_EXPERTS = 0.1
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

    def __str__(self) -> str:
        return (
            f"Rows of a pass over {self.width} tokens behind {self.depth} are up to "
            f"{self.logits:.2g} logits from those of"
        )


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
    in_use = max(min(way.k + 1, llm.profile.widest(way.exact)) for way in ways)
    with llm.models() as (target, _):
        in_any_width = target.exactness.in_any_width and not uses_gpu(target.options)
        exact = K_MAX + 1 if in_any_width else llm.profile.exact_width
        widths = sorted({*_WIDTHS, min(in_use, max(_WIDTHS))})
        passes = [one for depth in _DEPTHS for one in _passes(target, text, depth, widths)]
    faults = tuple(_faults(passes, exact, in_use, noise_in_use(llm, ways)))
    changes = "rows of passes over several tokens are not those of single tokens"
    return Check("rows", len(passes), _found(passes, exact, in_use), faults, changes)


def check_kernels(llm: LLM) -> list[Check]:
    """Compare rows of the own kernels with rows of llama.cpp's, which may differ by rounding.

    In a mixture of experts rounding chooses another expert where two are equally good, and the row
    is another one. So both use the experts that llama.cpp's kernels choose, and the choices are
    compared for themselves. The list is empty if the own kernels do not compute this model.
    """
    name = own_kernels.in_use().name
    text = llm.tokenize(long_text(llm, max(_DEPTHS) + max(_WIDTHS)))
    with llm.models() as (target, _):
        if not name or target.options.rpc:
            return []
        experts = _Experts(target) if target.file.header.whole("expert_count") else None
        rows = experts.rows if experts else partial(_rows, target)
        with own_kernels.switched_off():
            stock = rows(text)
        own = rows(text)
    shares = [how_far(*two)[1] for two in zip(own, stock, strict=True)]
    found = (
        f"{name}: {np.median(shares):.1%} of the logits' spread from llama.cpp's, in the worst row "
        f"{max(shares):.1%}"
    )
    usual, most = _MOST_OF_KERNELS
    faults = []
    if np.median(shares) > usual or max(shares) > most:
        faults.append(f"{found}; rounding moves them by less than {usual:.0%} and {most:.0%}.")
    share = experts.n_others / max(1, experts.n_choices) if experts else 0.0
    if share > _MOST_OTHER_EXPERTS:
        faults.append(
            f"{name}: other experts than llama.cpp's in {share:.0%} of the choices; rounding "
            f"changes less than {_MOST_OTHER_EXPERTS:.0%}."
        )
    changes = "the kernels of gguf-spec compute other logits than llama.cpp's"
    return [Check("kernels", len(own), found, tuple(faults), changes)]


class _Experts:
    """A further context of a mixture of experts, which repeats the choices of its first rows."""

    # offsets in a tensor of ggml: sizes, strides, memory, and its name
    _SHAPE, _DATA, _NAME = 16, 248, 256

    def __init__(self, target: CachedSequence) -> None:
        self._native = native = target.native.share()
        self._n_vocab, self._n_ctx = target.n_vocab, target.n_ctx
        self._first: list[NDArray[np.int32]] = []
        self._is_first, self.n_others, self.n_choices = True, 0, 0
        params = C.llama_context_default_params()
        params.n_ctx = min(padded(max(_DEPTHS) + max(_WIDTHS)), self._n_ctx)
        params.n_batch = params.n_ubatch = N_BATCH
        params.n_threads = params.n_threads_batch = target.context.threads
        params.flash_attn_type = FLASH_ATTENTION[target.flash_attention]
        params.type_k = params.type_v = KV_TYPES[target.options.kv_type][0]
        # kept, as llama.cpp calls it
        self._callback = C.ggml_backend_sched_eval_callback(self._computed)
        params.cb_eval = self._callback
        if not native.open(params):
            raise context_error(target.options, params.n_ctx, log)
        if target.options.lora:
            native.use_adapters([adapter.scale for adapter in target.options.lora])

    def rows(self, text: Sequence[int]) -> list[Logits]:
        """Return rows as `_rows` does; from the second time on with the experts of the first."""
        found: list[Logits] = []
        self._at = 0
        for depth in _DEPTHS:
            tokens = text[: min(depth + max(_WIDTHS), self._n_ctx)]
            if len(tokens) > depth:
                self._native.cache(C.llama_memory_clear, True)
                for start in range(0, depth, N_BATCH):
                    self._decode(tokens[start : min(start + N_BATCH, depth)], start, 0)
                found.extend(self._decode(tokens[depth:], depth, len(tokens) - depth).copy())
        self._is_first = False
        return found

    def _decode(self, tokens: Sequence[int], n_past: int, n_rows: int) -> Logits:
        self._native.batch.fill([SequenceTokens(0, n_past, tokens, n_rows)])
        if code := self._native.decode():
            raise DecodeError(code, n_past, len(tokens), log.last)
        return self._native.rows(0, n_rows, self._n_vocab)

    def _computed(self, tensor: int, asks: bool, _: object) -> bool:
        """Keep or replace chosen experts when they are computed; return False for other tensors."""
        if not ctypes.string_at(tensor + self._NAME).startswith(b"ffn_moe_topk-"):
            return False
        if not asks:
            shape = (ctypes.c_int64 * 8).from_address(tensor + self._SHAPE)
            n, n_rows, stride = shape[0], shape[1], shape[5]
            data = ctypes.c_void_p.from_address(tensor + self._DATA).value or 0
            size = max(0, n_rows - 1) * stride + 4 * n
            memory: Any = (ctypes.c_char * size).from_address(data)  # no rows without logits
            chosen = np.ndarray((n_rows, n), np.int32, memory, 0, (stride, 4))
            if self._is_first:
                self._first.append(chosen.copy())
            else:
                first = self._first[self._at]
                self._at += 1
                others = np.sort(chosen, axis=1) != np.sort(first, axis=1)
                self.n_others += int(others.any(axis=1).sum())
                self.n_choices += n_rows
                chosen[:] = first
        return True


def _rows(target: CachedSequence, text: Sequence[int]) -> list[Logits]:
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
    target: CachedSequence, text: Sequence[int], depth: int, widths: Sequence[int]
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
    pairs = [*zip(rows, alone, strict=True)]
    same = all(np.array_equal(row, right, equal_nan=True) for row, right in pairs)
    worst = max((how_far(row, right) for row, right in pairs), key=itemgetter(1))
    return _Moved(width, depth, same, *worst)


def how_far(row: Logits, right: Logits) -> tuple[float, float]:
    """Return the largest relative shift of the best logits of a row, shape `(V,)`.

    It is in logits, and as a share of the spread of the reference row `right`.
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
        yield f"{one} single-token passes; here their bits must be equal."
    used = [one for one in passes if exact < one.width <= in_use]
    if not used:
        return
    one = max(used, key=lambda one: one.share)
    if one.share > MOST_NOISE:
        yield (
            f"{one} single-token passes, {one.share:.0%} of the logits' spread; rounding moves "
            f"them by less than {MOST_NOISE:.0%}."
        )
    elif one.logits > _MOST_ALLOWED * noise:
        yield (
            f"Logits move by {one.logits:.2g} with the width of the pass, but the profile allows "
            f"for {noise:.2g}: `gguf-spec tune` measures again."
        )
    spread = min((one.logits / one.share for one in used if one.share), default=0.0)
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
    found = {
        f"the same bits in passes of up to {widest} tokens": widest > 1 and not moved,
        "no pass over several tokens is in use": in_use < 2,
        f"up to {moved:.1%} of the logits' spread apart": moved > 0,
        f"wider ones, not in use, are {unused:.0%} of the logits' spread apart": (
            unused > MOST_NOISE
        ),
    }
    return "; ".join(text for text, is_so in found.items() if is_so)


# ---- texts


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


def _ways(kinds: Mapping[str, DrafterKind], needs: str) -> dict[str, Speculation]:
    return {
        name if len(kind.lengths) == 1 else f"{name}, k = {k}": Speculation(
            k, drafter=name, adaptive=False
        )
        for name, kind in kinds.items()
        if kind.needs == needs
        for k in kind.lengths
    }


WAYS = {**_ways(DRAFTERS, "model"), "auto": Speculation()}
# Those without a draft model.
TEXT_WAYS = {**_ways(DRAFTERS, ""), "auto": Speculation()}


def ways_of(llm: LLM) -> dict[str, Speculation]:
    """Return the draft settings that are compared with plain decoding."""
    asked = llm.speculation.drafter  # of another distribution
    kind = None if asked in DRAFTERS else kind_of(asked)
    more = _ways({asked: kind}, kind.needs) if kind else {}
    return (WAYS if llm.draft_name else TEXT_WAYS) | more


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
        drafter: Name of the draft setting.
        n_texts: Number of compared texts.
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


class TextCheck(NamedTuple):
    """A text to be generated, and the plain text of the same request alone."""

    prompt: int
    ids: Sequence[int]
    name: str
    sampling: Sampling
    drafter: str
    plain: Completion


class TextChecks:
    """Compares texts, and checks the caches after each of them."""

    llm: LLM
    noise: float

    def __init__(self, llm: LLM, n_tokens: int, noise: float) -> None:
        """Prepare the checks; `noise` is the allowed logit shift, 0 for no difference at all."""
        self.llm, self._n_tokens, self.noise = llm, n_tokens, noise
        self._tolerance = {"target": 0.0, "draft": 0.0}
        self._stats: defaultdict[tuple[str, str], list[Stats]] = defaultdict(list)
        self.differences: list[Difference] = []
        self.cache_faults: list[str] = []

    def plain_texts(
        self,
        prompt: str,
        index: int,
        seed: int,
        ways: Iterable[str],
        one_more: Callable[[], object],
    ) -> Iterator[TextCheck]:
        """Continue a prompt without drafts with every sampling; yield the texts to compare.

        The index of the prompt is added to the seed. `one_more` is called after each text.
        """
        ids = self.llm.tokenize(prompt)
        for name, options in SAMPLINGS.items():
            seeded = replace(options, seed=(seed + index) % 2**64, max_tokens=self._n_tokens)
            self.llm.forget()
            plain = self.llm.generate_tokens(ids, seeded, speculation=Speculation(0))
            one_more()
            for drafter in ways:
                yield TextCheck(index, ids, name, seeded, drafter, plain)

    def compare(self, prompt: str, index: int, seed: int, one_more: Callable[[], object]) -> None:
        """Continue a prompt with every sampling and every draft setting; see `plain_texts`."""
        ways = ways_of(self.llm)
        for job in self.plain_texts(prompt, index, seed, ways, one_more):
            self.llm.forget()
            way = ways[job.drafter]
            burst = self.llm.generate_tokens(job.ids, job.sampling, speculation=way)
            self.count(job, burst)
            where = f"({job.name}, {job.drafter}, prompt {index + 1})"
            faults = self._faults([*job.ids, *burst.tokens])
            self.cache_faults += [f"{fault} {where}." for fault in faults]
            one_more()

    def count(self, job: TextCheck, burst: Completion) -> None:
        key, stats, plain = (job.name, job.drafter), burst.stats, job.plain.tokens
        self._stats[key].append(stats)
        if plain != burst.tokens:
            at = common(plain, burst.tokens)
            gap, near_tie = self.gap(job.ids, plain, burst.tokens, at, job.sampling)
            is_tie = near_tie and stats.n_near_ties > 0
            self.differences.append(Difference(*key, job.prompt, at, gap, is_tie))

    def comparisons(self) -> Iterator[Comparison]:
        for key, every in self._stats.items():
            parted = [d.near_tie for d in self.differences if (d.sampling, d.drafter) == key]
            n, n_ties, n_drafted = len(every), sum(parted), sum(one.n_drafted for one in every)
            acceptance = sum(one.n_accepted for one in every) / max(1, n_drafted)
            yield Comparison(*key, n, n - len(parted), n_ties, len(parted) - n_ties, acceptance)

    def near_ties(self) -> Check:
        """Return the check of the near-tie count: none if passes are exact, and few otherwise."""
        every = [stats for some in self._stats.values() for stats in some]
        n, n_generated = (
            sum(one.n_near_ties for one in every),
            sum(one.n_generated for one in every),
        )
        share = n / max(1, n_generated)
        faults = []
        if n and not self.noise:
            faults.append(f"{n} near ties were counted, where passes are exact.")
        if share > MOST_NEAR_TIES:
            faults.append(
                f"{share:.0%} of the tokens were decided by less than the rounding noise; at "
                f"most {MOST_NEAR_TIES:.0%} are plausible."
            )
        found = f"{n} of {n_generated} tokens"
        changes = "there are too many near ties to tell rounding from errors"
        return Check("near ties", n_generated, found, tuple(faults), changes)

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
        with self.llm.models() as (target, _):
            sampler = Sampler(
                sampling,
                SeededRng(sampling.seed or 0),
                make_filters(
                    target.weights, sampling, len(ids), "", partial(dry_penalties, target.weights)
                ),
            )
            row = decode_last(target, history, len(ids) - 1)
            # The cache of the texts had other passes, so a near tie may be decided either way.
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
        with self.llm.models() as (target, draft):
            view: LanguageModel | None = draft
            if draft and self.llm.translation:
                view = translated = TranslatedModel(draft, target, self.llm.translation)
                translated.recognise(text)
            for name, model in (("target", target), ("draft", view)):
                if model is None:
                    continue
                n = min(model.n_past, len(text) - 1)
                if model.cached[:n] != [*text[:n]]:
                    yield f"The {name}'s cache contains tokens that are not in the text"
                    continue
                tokens = text[: n + 1]
                return_to(model, tokens, n)  # reads the tokens that are not in the cache
                cached = np.array(model.logits(tokens[-1:], 1)[0])
                fresh = decode_last(model, tokens)
                distance = _distance(cached, fresh)
                if distance > self._tolerance[name] + _SAME_ROW:
                    # Two correct ways to prefill differ, by another distance for each text.
                    correct = _distance(decode_last(model, tokens, 0), fresh)
                    self._tolerance[name] = max(self._tolerance[name], _MARGIN * correct)
                if distance > self._tolerance[name] + _SAME_ROW:
                    yield f"The {name}'s cache gives another row than a new prefill of the text"


def _distance(row: Logits, right: Logits) -> float:
    """Return the distance between the best logits of two rows, as a share of the row's spread."""
    best = np.argsort(-right)[:64]
    return float(np.std((row - right)[best]) / np.std(right[np.isfinite(right)]))


# ---- requests


PLAIN = Speculation(0)
_FEATURE_WAYS = (Speculation(4, drafter="hybrid", adaptive=False), Speculation())
_TEXT_FEATURE_WAYS = (Speculation(4, drafter="ngram", adaptive=False), Speculation())
_N_TOKENS = 24  # maximum number of generated tokens of a text
# Tokens of the first prompt, and the length of the prefix that the second prompt shares with it.
_PREFIX, _SHARED = (160, 100)
_MORE_THAN_A_BATCH = 40  # tokens of a long prompt beyond the first prefill pass
_LEAST = 32  # minimum number of prompt tokens for the check of warm caches
_GRAMMAR, _ITS_TEXTS = (
    'root ::= ("yes" | "no" | "maybe") (", " ("yes" | "no" | "maybe"))*',
    re.compile(r"(yes|no|maybe)(, (yes|no|maybe))*"),
)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog"]},
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "old"],
    "additionalProperties": False,
}
_N_TOP = 3  # reported alternatives per token
_SAME_LOGPROB = 1e-3  # tolerance in nats, because a row is summed in a different order here


class _NoRoomError(Exception):
    """The context has no room for a prompt."""


class RequestChecks:
    """Checks of single features, each with a few short texts.

    Each text is compared with the plain text that the same request gives on empty caches.
    """

    def __init__(self, texts: TextChecks, prompt: str, seed: int) -> None:
        self._llm, self._texts, self._ids = texts.llm, texts, texts.llm.tokenize(prompt)
        self._samplings = [
            replace(SAMPLINGS[name], seed=seed, max_tokens=_N_TOKENS)
            for name in ("greedy", "sampled")
        ]
        self._ways = _FEATURE_WAYS if self._llm.draft_name else _TEXT_FEATURE_WAYS
        self._n_cases = self._n_near_ties = 0
        self._faults: list[str] = []
        self._known: dict[str, Completion] = {}
        within = {
            name: partial(self._within, name, fault, options)
            for name, fault, options in (
                ("grammars", _grammar_fault, {"grammar": _GRAMMAR}),
                ("JSON schemas", _schema_fault, {"json_schema": _SCHEMA}),
            )
        }
        table: dict[str, tuple[Callable[[], None], str]] = {
            "warm caches": (self._warm_caches, "a cache that is used again changes the text"),
            "sessions": (self._sessions, "a restored session changes the text"),
            "long prompts": (self._long_prompts, "texts behind long prompts differ"),
            **{name: (part, f"texts within {name} differ") for name, part in within.items()},
            "log-probabilities": (self._logprobs, "log-probabilities differ"),
            "stop strings": (self._stop_strings, "stop strings end texts elsewhere"),
        }
        self.parts: dict[str, Callable[[], Check]] = {
            name: partial(self._checked, name, *row) for name, row in table.items()
        }

    def _checked(self, name: str, part: Callable[[], None], changes: str) -> Check:
        """Run one of the checks; `changes` is the effect of a fault."""
        self._n_cases = self._n_near_ties = 0
        self._faults = []
        try:
            part()
        except _NoRoomError:
            return Check(name, 0, f"omitted: a context of {self._llm.n_ctx} tokens is too short")
        n, n_ties, faults = self._n_cases, self._n_near_ties, dict.fromkeys(self._faults)
        found = f"{n} texts compared" + (f", {n_ties} differ at a near tie" if n_ties else "")
        return Check(name, n, found, tuple(faults), changes, n_ties)

    def _warm_caches(self) -> None:
        """Check that the reuse of cached prefixes does not change the text.

        Prompts with a common prefix run one after the other, and one of them continues an answer.
        """
        text = self._tokens(_PREFIX + 60, _LEAST)
        n = len(text) * _PREFIX // (_PREFIX + 60)
        shared = n * _SHARED // _PREFIX
        first, second = text[:n], [*text[:shared], *text[n:], *text[: n - shared]][:n]
        for sampling in self._samplings:
            turn = [*first, *self._fresh(first, sampling).tokens, *text[-8:]]
            prompts = (first, second, first[: n - 9], first, turn)
            for prompt in prompts:
                self._fresh(prompt, sampling)
            for way in (PLAIN, *self._ways):
                self._llm.forget()
                for prompt in prompts:
                    other = self._text(prompt, sampling, way)
                    self._compare(prompt, sampling, other, "after a prompt that begins alike")

    def _sessions(self) -> None:
        """Save both caches, clear them, restore them and continue."""
        prompt = self._tokens(_PREFIX)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "session"
            for sampling in self._samplings:
                for way in (PLAIN, *self._ways):
                    self._llm.forget()
                    longer = [*prompt, *self._text(prompt, sampling, way).tokens, *prompt[-4:]]
                    held = self._held()
                    try:
                        self._llm.save_session(path, {})
                        self._llm.forget()
                        why_not = self._llm.restore_session(path)[1]
                    except SessionError as error:
                        why_not = str(error)
                    if why_not or self._held() != held:
                        self._faults.append(
                            "A session that was just saved is not restored: "
                            f"{why_not or 'other tokens are in a cache'}."
                        )
                    other = self._text(longer, sampling, way)
                    self._compare(longer, sampling, other, "after a restored session")

    def _long_prompts(self) -> None:
        """Continue a prompt that needs more than one prefill pass."""
        with self._llm.models() as (target, _):
            at_once = target.reads_at_once
        prompt = self._tokens(at_once + _MORE_THAN_A_BATCH, at_once + 1)
        for sampling in self._samplings:
            for _ in self._drafted(prompt, sampling, f"behind {len(prompt)} tokens"):
                pass

    def _within(self, name: str, wrong: Callable[[str, bool], str], options: Any) -> None:
        """Generate text with a grammar or a schema; `wrong` returns a fault of a text."""
        for base in self._samplings:
            sampling = replace(base, max_tokens=2 * _N_TOKENS, **options)
            plain = self._fresh(self._ids, sampling)
            fault = wrong(plain.text, plain.finish_reason == "stop")
            self._faults += [f"{fault}."] if fault else []
            for way in self._ways:
                self._llm.forget()
                try:
                    burst = self._text(self._ids, sampling, way)
                except (OffGrammarError, NoTokenLeftError) as error:
                    self._faults.append(
                        f"A drafted text within {name} cannot be continued: {error}"
                    )
                    continue
                self._compare(self._ids, sampling, burst, name)

    def _logprobs(self) -> None:
        """Compare log-probabilities with those of plain decoding and of an empty cache."""
        noise = self._texts.noise
        for base in self._samplings:
            sampling = replace(base, logprobs=_N_TOP)
            plain = self._fresh(self._ids, sampling)
            for at in range(0, len(plain.tokens), 7):
                with self._llm.models() as (target, _):
                    history = [*self._ids, *plain.tokens[:at]]
                    row = decode_last(target, history, len(self._ids) - 1).astype(np.float64)
                right = float(
                    row[plain.tokens[at]] - row.max() - math.log(np.exp(row - row.max()).sum())
                )
                if abs(right - plain.logprobs[at].logprob) > noise + _SAME_LOGPROB:
                    self._faults.append(
                        f"Token {at + 1} has the log-probability {right:.4f}, not "
                        f"{plain.logprobs[at].logprob:.4f}."
                    )
            for burst, _ in self._drafted(self._ids, sampling, "with log-probabilities"):
                for at, (a, b) in enumerate(zip(plain.logprobs, burst.logprobs, strict=False)):
                    if a.token != b.token:
                        break
                    moved = [abs(x[1] - y[1]) for x, y in zip(a.top, b.top, strict=False)]
                    furthest = max([abs(a.logprob - b.logprob), *moved])
                    if len(a.top) != len(b.top) or furthest > noise or (not noise and a != b):
                        self._faults.append(
                            f"Token {at + 1} has another log-probability with speculation "
                            f"({a.logprob:.6f}, {b.logprob:.6f})."
                        )
                        break

    def _stop_strings(self) -> None:
        """Stop at a string in the middle of the text, where a draft may extend beyond it."""
        for sampling in self._samplings:
            text = self._fresh(self._ids, sampling).text
            stop = text[len(text) // 2 :][:5]
            if not stop:
                continue
            stopping = replace(sampling, stop=(stop,))
            plain = self._fresh(self._ids, stopping)
            if (plain.text, plain.finish_reason) != (text[: text.index(stop)], "stop"):
                self._faults.append(f"The stop string {stop!r} does not end the text where it is.")
            for burst, is_same in self._drafted(self._ids, stopping, "with a stop string"):
                if is_same and (burst.text, burst.finish_reason) != (plain.text, "stop"):
                    self._faults.append(
                        f"The stop string {stop!r} does not end a drafted text where it is."
                    )

    # ---- shared helpers

    def _tokens(self, n: int, least: int = 0) -> list[int]:
        """Return a text of about `n` tokens, or of as many as the context has room for."""
        n = min(n, self._llm.n_ctx - 3 * _N_TOKENS)
        tokens = self._llm.tokenize(long_text(self._llm, n + 30))[:n] if n > 0 else []
        if len(tokens) < least:
            raise _NoRoomError
        return tokens

    def _text(self, ids: Sequence[int], sampling: Sampling, way: Speculation) -> Completion:
        return self._llm.generate_tokens(ids, sampling, speculation=way)

    def _fresh(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Return the plain text from empty caches.

        The caches afterwards hold this text, or are unchanged if the text was already known.
        """
        key = repr((ids, sampling))
        if key not in self._known:
            self._llm.forget()
            self._known[key] = self._text(ids, sampling, PLAIN)
        return self._known[key]

    def _held(self) -> list[list[int]]:
        with self._llm.models() as models:
            return [list(model.cached) for model in models if model]

    def _drafted(
        self, ids: Sequence[int], sampling: Sampling, where: str
    ) -> Iterator[tuple[Completion, bool]]:
        """Yield a text from empty caches with each draft setting, and whether it is the plain one.

        A text that differs is a fault, unless it differs at a near tie.
        """
        for way in self._ways:
            self._llm.forget()
            burst = self._text(ids, sampling, way)
            yield burst, self._compare(ids, sampling, burst, where)

    def _compare(
        self, ids: Sequence[int], sampling: Sampling, other: Completion, where: str
    ) -> bool:
        """Compare a text with the plain one from empty caches; return whether they are equal."""
        plain = self._fresh(ids, sampling)
        self._n_cases += 1
        if (plain.tokens, plain.finish_reason) == (other.tokens, other.finish_reason):
            return True
        at = common(plain.tokens, other.tokens)
        if (
            other.stats.n_near_ties
            and self._texts.gap(ids, plain.tokens, other.tokens, at, sampling)[1]
        ):
            self._n_near_ties += 1
        else:
            self._faults.append(f"A text {where} differs after {at} tokens.")
        return False


def _grammar_fault(text: str, ended: bool) -> str:
    """Return why a text is not one of `_GRAMMAR`, or the beginning of one; empty if it is."""
    end = len(text) if ended else max(0, text.rfind(","))
    if _ITS_TEXTS.fullmatch(text, 0, end) or "," not in text:
        return ""
    return f"{text!r} is not what the grammar allows"


def _schema_fault(text: str, ended: bool) -> str:
    """Return why a text is not one of `_SCHEMA`, or the beginning of one; empty if it is."""
    if not ended:
        is_object = text.lstrip().startswith("{") or not text.strip()
        return "" if is_object else f"{text!r} is no object"
    try:
        value = json.loads(text)
    except ValueError as error:
        return f"{text!r} is not JSON ({error})"
    is_right = (
        isinstance(value, dict)
        and value.keys() == _SCHEMA["properties"].keys()
        and value["kind"] in ("cat", "dog")
        and isinstance(value["old"], bool)
        and len(value["name"]) <= 8
    )
    return "" if is_right else f"{text!r} does not fit the schema"


# ---- distributions

# Chi-square tests of first-token frequencies against the target's exact probabilities. These come
# from llama.cpp's sampler chain, applied to newly computed rows, and not from this package's chain.

_FILTERED = Sampling(
    temperature=0.9,
    top_k=5,
    top_p=0.98,
    min_p=0.01,
    repeat_penalty=1.2,
    frequency_penalty=0.1,
    presence_penalty=0.1,
    ignore_eos=True,
)
# Used if passes are not exact: a logit shift may change the tokens that a filter removes.
_UNFILTERED = replace(_FILTERED, top_k=0, top_p=1.0, min_p=0.0)
N_FIRST_TOKENS, _K = 3, 3  # number of compared first tokens, and draft length
# Values of max_tokens. Adaptive drafting needs more, because it does not start for few tokens.
_TOKENS, _ADAPTIVE_TOKENS = (N_FIRST_TOKENS + 1, 32)
_TOLD_APART = 5  # most likely tokens with an outcome of their own; all others share one
_REPEATED = 8  # generated tokens that occur twice in the prompt, for n-gram drafts
# Initial rank of a token that a bias raises to about rank 2, and the bias above rank 2, in logits.
_RAISED, _OVER_PENALTIES = (12, 1.0)
_FEWEST_DRAWS = 50  # minimum number of generations per test, regardless of the time limit
_ALARM = 1e-5  # significance level: probability that a correct sampler fails one test

TESTED_RULES = {
    "coupled": Speculation(_K, "coupled", drafter="model", adaptive=False),
    "rejection": Speculation(_K, "rejection", drafter="model", adaptive=False),
    "block": Speculation(_K, "block", drafter="model", adaptive=False),
    "rejection, n-gram": Speculation(_K, "rejection", drafter="ngram", adaptive=False),
    "block, n-gram": Speculation(_K, "block", drafter="ngram", adaptive=False),
    "rejection, adaptive": Speculation(_K, "rejection"),
    "block, adaptive": Speculation(_K, "block"),
}
"""Tested draft settings: a rule, and the drafter unless it is the draft model at a fixed
length. The settings with a named drafter run half as many generations.
"""


def rules_of(llm: LLM) -> list[str]:
    return [name for name, way in TESTED_RULES.items() if llm.draft_name or way.drafter != "model"]


def n_draws_of(way: str, n_draws: int) -> int:
    return n_draws if way == TESTED_RULES[way].accept else (n_draws + 1) // 2


@dataclass(frozen=True)
class ChiSquareTest:
    """Frequencies of first tokens compared with the target's exact probabilities.

    Attributes:
        accept: Rule and drafter: a key of `TESTED_RULES`.
        n_draws: Number of generations.
        n_cells: Number of distinct outcomes.
        chi_square: Sum of (observed - expected)^2 / expected; None if a token with probability 0
            occurred.
        p_value: Probability that a correct sampler gives this value or a larger one.
        n_drafted: Number of draft tokens.
    """

    accept: str
    n_draws: int
    n_cells: int
    chi_square: float | None
    p_value: float
    n_drafted: int = 0

    @property
    def ok(self) -> bool:
        """Whether the deviation is explained by chance."""
        return self.p_value >= _ALARM


class Reference:
    """A prompt, options, and the exact distribution of the next tokens, shared by all rules."""

    def __init__(self, llm: LLM, prompt: str, exact: bool) -> None:
        """Compute the distribution.

        A prompt is used twice. Between the two copies is a token that a bias makes likely, with a
        likely continuation, which n-gram drafts then propose. Filters are used where rows are
        bit-identical in verification passes (`exact`), so that they remove the same tokens.
        """
        ids = llm.tokenize(prompt)
        with llm.models() as (target, _):
            row, ends = decode_last(target, ids), target.weights.ends
            best = [
                token
                for token in np.argsort(-row)[: _RAISED + len(ends)].tolist()
                if token not in ends
            ]
            raised = best[:_RAISED][-1]
        more = [*ids, raised]
        more += llm.generate_tokens(
            more, Sampling(temperature=0.0, max_tokens=_REPEATED), speculation=Speculation(0)
        ).tokens
        self.ids: list[int] = (
            [*more, *ids] if len(more) + len(ids) + _ADAPTIVE_TOKENS < llm.n_ctx else ids
        )
        with llm.models() as (target, _):
            row = decode_last(target, self.ids)
            bias = {raised: float(np.partition(row, -2)[-2] - row[raised]) + _OVER_PENALTIES}
            self.sampling: Sampling = replace(
                _FILTERED if exact else _UNFILTERED, logit_bias=bias, max_tokens=_TOKENS
            )
            self.distribution: dict[tuple[int | None, ...], float] = {(): 1.0}
            for _ in range(N_FIRST_TOKENS):
                longer: dict[tuple[int | None, ...], float] = {}
                for tokens, weight in self.distribution.items():
                    if None in tokens:
                        longer[tokens] = weight
                        continue
                    history = [*self.ids, *(token for token in tokens if token is not None)]
                    row = decode_last(target, history, len(self.ids) - 1)
                    one = distribution(row, history, self.sampling, target.weights.ends)
                    longer |= {
                        (*tokens, token): weight * p for token, p in _told_apart(one).items()
                    }
                self.distribution = longer

    def outcome(self, tokens: Sequence[int]) -> tuple[int | None, ...]:
        known: tuple[int | None, ...] = ()
        for token in tokens[:N_FIRST_TOKENS]:
            if (*known, None) in self.distribution and not any(
                one[: len(known) + 1] == (*known, token) for one in self.distribution
            ):
                return (*known, None)
            known = (*known, token)
        return known


def _told_apart(one: Mapping[int, float]) -> dict[int | None, float]:
    """Return the most likely tokens with their probabilities, and all others combined as None."""
    best = sorted(one, key=lambda token: -one[token])
    apart: dict[int | None, float] = {token: one[token] for token in best[:_TOLD_APART]}
    return apart | (
        {None: sum(one[token] for token in best[_TOLD_APART:])} if len(best) > _TOLD_APART else {}
    )


def drawn(
    llm: LLM,
    reference: Reference,
    way: str,
    n_draws: int,
    seed: int,
    until: float,
    on_draw: Callable[[], object],
) -> ChiSquareTest:
    """Sample first tokens in one of `TESTED_RULES`, fewer after `until`, and test them."""
    seen: Counter[tuple[int | None, ...]] = Counter()
    sampling, n_drafted, known = reference.sampling, 0, llm.snapshot()
    cheap = Snapshot(_cheap_drafts(llm.profile).experiences())
    if TESTED_RULES[way].adaptive:
        sampling = replace(sampling, max_tokens=_ADAPTIVE_TOKENS)
    try:
        for i in range(n_draws_of(way, n_draws)):
            if i >= _FEWEST_DRAWS and time.perf_counter() > until:
                break
            emitted: list[int] = []
            if TESTED_RULES[way].adaptive:
                llm.restore(cheap)

            def is_enough(token: int, emitted: list[int] = emitted) -> bool:
                emitted.append(token)
                return len(emitted) >= N_FIRST_TOKENS

            one = llm.generate_tokens(
                reference.ids,
                replace(sampling, seed=(seed + i) % 2**64),
                on_token=is_enough,
                speculation=TESTED_RULES[way],
            )
            seen[reference.outcome(one.tokens)] += 1
            n_drafted += one.stats.n_drafted
            on_draw()
    finally:
        llm.restore(known)
    return replace(chi_square(way, seen, reference.distribution), n_drafted=n_drafted)


def _cheap_drafts(profile: Profile) -> Profile:
    """Return a profile in which drafting is fast, so that adaptive drafting drafts tokens.

    The actual costs on this machine must not affect the probabilities.
    """
    pass_s = profile.target[1]
    free = {1: pass_s / 1000, K_MAX + 1: pass_s / 1000}
    return replace(
        profile,
        target={1: pass_s, K_MAX + 1: pass_s},
        target_depth={},
        draft=free,
        draft_depth={},
        token_s=0.0,
        proposal_s=0.0,
        guessed=(),
        guessed_draft=(),
        checked=True,
    )


def chi_square(
    accept: str,
    seen: Counter[tuple[int | None, ...]],
    exact: Mapping[tuple[int | None, ...], float],
) -> ChiSquareTest:
    """Compare counts with an exact distribution.

    Outcomes expected less than five times are pooled. If an outcome outside the distribution
    occurred, the p-value is 0.
    """
    n = seen.total()
    cells = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n >= 5]
    rare = [(seen[outcome], p * n) for outcome, p in exact.items() if p * n < 5]
    if rare:
        cells.append((sum(c for c, _ in rare), sum(e for _, e in rare)))
    statistic = float(sum((count - expected) ** 2 / expected for count, expected in cells))
    if sum(count for count, _ in cells) < n:
        return ChiSquareTest(accept, n, len(cells), None, 0.0)
    return ChiSquareTest(
        accept, n, len(cells), statistic, chance_of_more(statistic, len(cells) - 1)
    )


def chance_of_more(statistic: float, n_free: int) -> float:
    """Return the upper tail of the chi-square distribution.

    It is the regularised gamma function Q(n / 2, x / 2), computed by its recurrence.
    """
    if n_free < 1 or statistic <= 0:
        return 1.0
    x, a = statistic / 2, 0.5 if n_free % 2 else 1.0
    tail = math.erfc(math.sqrt(x)) if n_free % 2 else math.exp(-x)
    while a < n_free / 2:
        tail += math.exp(a * math.log(x) - x - math.lgamma(a + 1))
        a += 1
    return min(1.0, tail)
