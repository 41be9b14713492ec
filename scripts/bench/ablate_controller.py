"""What each mechanism of the cost control is worth: simulated generations with and without it.

    .venv/bin/python scripts/bench/ablate_controller.py --list
    .venv/bin/python scripts/bench/ablate_controller.py [--without NAME ... [--together]] [--costs kernels] [--cells bad]
    .venv/bin/python scripts/bench/ablate_controller.py --seconds FILE          # write the times of this tree
    .venv/bin/python scripts/bench/ablate_controller.py --against FILE --all    # compare this tree with those

Without --without each mechanism is taken out in turn: its functions are replaced in this process, the package stays as it is. The figures are
seconds with the mechanism over seconds without it, for each situation (costs, texts, state of the machine) over its texts at T = 0 and 0.8:
0.97 means that without it 3 % more time is needed. Passes cost what a table says (`simulate_controller.py`), nothing depends on the clock.
About two minutes a mechanism with all tables.
"""

import argparse
import gzip
import inspect
import json
import textwrap
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import simulate_controller as sim

from gguf_spec import Sampling
from gguf_spec.options import K_MAX
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative import (
    controller,
    cost_model,
    draft_length,
    pair_statistics,
    profile,
    profiler,
)
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.drafters import MODELS, ModelDrafter, NgramDrafter, RetryDrafter
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds

TEXTS = sim.TRACES.with_name("text_traces.json.gz")
COSTS = ("kernels", "avx2", "zen5", "zen5-stock")
N_LONG = 700  # tokens of a long answer
FILLED = 1500  # tokens of a long prompt
SMALL = ({1: 0.67, 2: 0.7, 4: 0.75, 8: 0.85, 16: 1.73, 33: 2.13}, {1: 0.07, 2: 0.11, 4: 0.12, 8: 0.14, 16: 0.19, 33: 0.32})  # fmt: skip


# ---- the world of a run


@dataclass(frozen=True)
class World:
    """What a machine, a prompt and a pair do to a run.

    Attributes:
        tables: Milliseconds by width, of the target and of the draft model.
        slope: Extra seconds of a pass for each row and cached token, of the target; a tenth of it for the draft model.
        noise: Standard deviation of the logarithm of the time of a pass; one pass in 20 takes three times as long. It is not in the result.
        slower: Factor on the time of the passes of one request.
        linear: From there on a pass over n tokens takes as long as n passes, of the target.
        wide_only: It is that of passes over several tokens.
        from_token: Token of the answer from which it holds.
        draft_slower: Factor on the time of the draft model's passes of one request.
        filled: Tokens before the prompt.
        of_part: Share of the draft model's right tokens that stay right if it has not read the whole text.
        free_rollback: Most tokens that a rollback drops at no cost.
        search_s, token_s: Python's seconds of a search, and of a round.
        has_draft: There is a draft model.
        useless: It is always wrong.
    """

    tables: tuple
    slope: float = 0.0
    noise: float = 0.0
    slower: float = 1.0
    wide_only: bool = False
    linear: bool = False
    from_token: int = 0
    draft_slower: float = 1.0
    filled: int = 0
    of_part: float = 0.87
    free_rollback: int = 10**6
    search_s: float = 0.0
    token_s: float = 0.0
    has_draft: bool = True
    useless: bool = False


class Model(sim.RecordedModel):
    """A recorded model whose rollback may drop too many tokens, and whose passes follow a world."""

    def __init__(self, trace, cost, clock, world, seed):
        super().__init__(trace, cost, clock)
        self.world, self.rng, self.n_prompt, self.mark = (
            world,
            np.random.default_rng(seed),
            len(trace.prompt),
            0,
        )
        self.free_rollback, self.python_s, self.true_s = world.free_rollback, 0.0, 0.0

    def logits(self, tokens, n_rows):
        self.mark = self.n_past
        self.clock.now += self.python_s
        return super().logits(tokens, n_rows)

    def _pass(self, tokens, n):
        world, seconds = self.world, self.cost(n, self.n_past)
        if self.n_past >= self.n_prompt + world.from_token - 1 and (n > 1 or not world.wide_only):
            seconds = n * self.cost(1, self.n_past) if world.linear else seconds * world.slower
        self.true_s += seconds
        if world.noise:
            seconds *= np.exp(world.noise * self.rng.standard_normal())
            seconds *= 3.0 if self.rng.random() < 0.05 else 1.0
        self.busy_s += seconds
        self.clock.now += seconds
        self.cached.extend(tokens)

    def hold(self, lasting=False):
        del lasting
        self.mark = self.n_past

    def rollback(self, to):
        if self.n_past - to > self.free_rollback:
            to = min(to, self.mark)
        super().rollback(to)


class Guess(sim.RecordedGuess):
    """Recorded proposals, fewer of them right if the draft model has read the last part of the text only."""

    def __init__(self, trace, world):
        super().__init__(trace, world.useless)
        self.of_part, self.drafter = world.of_part, None

    def _proposed(self, history):
        token, confidence = super()._proposed(history)
        is_part = self.drafter.n_past > self.drafter.n_cached
        if is_part and zlib.crc32(str(history[-3:]).encode()) % 1000 > 1000 * self.of_part:
            token = (token + 1) % sim.V
        return token, confidence


class Searching(NgramDrafter):
    """Drafts from the text that take Python's time."""

    def begin(self, tokens):
        self.clock.now += self.search_s
        return super().begin(tokens)


@cache
def seconds_of(items, slope):
    return sim.costing(dict(items), slope)


def costs_of(world):
    target, draft = (tuple(table.items()) for table in world.tables)
    return seconds_of(target, world.slope), seconds_of(draft, world.slope / 10)


def run(trace, known, world, n=96, seed=0):
    """Return the seconds of one adaptive request, without those in which the target reads."""
    clock = sim.Clock()
    if world.filled:
        rng = np.random.default_rng(world.filled)
        trace = SimpleNamespace(**vars(trace))
        trace.prompt = [*rng.integers(2000, sim.V, world.filled).tolist(), *trace.prompt]
    target_s, draft_s = costs_of(world)
    target, text = Model(trace, target_s, clock, world, seed), NgramDrafter()
    target.python_s = world.token_s
    model = draft = None
    if world.has_draft:
        for_draft = replace(world, slower=world.slower * world.draft_slower, linear=False)
        draft, guess = Model(trace, draft_s, clock, for_draft, seed + 1), Guess(trace, world)
        guess.drafter = model = ModelDrafter(draft, guess, sim.V)
    if world.search_s:
        text = Searching()
        text.clock, text.search_s = clock, world.search_s
    drafter = controller.DraftController(
        target, [text, RetryDrafter()], model, known, n, clock=clock.perf_counter
    )
    read_prompt(target, drafter, trace.prompt, K_MAX, lambda: False)
    read_s = target.true_s
    chain = Sampler(Sampling(temperature=0.0), SeededRng(0))
    for _ in rounds(
        target,
        drafter,
        trace.prompt,
        chain,
        K_MAX,
        RoundRule(coupled),
        n,
        lambda _: False,
        lambda: False,
    ):
        pass
    known.answered(n, False)
    noise_s = sum(one.busy_s - one.true_s for one in (target, draft) if one)
    return clock.now - noise_s - read_s


# ---- what is known at first


def profile_for(world, seed=None, guess=1.0, factor=3.0):
    """Return what a quick measurement would find; `seed`: other programs made each cost up to `factor` times as high or low; `guess`: error of the slope."""
    targets, drafts = costs_of(replace(world, slope=0.0))
    base = sim.profile_of("kernels", world.useless)
    tables = [{n: cost(n, 0) for n in sim.QUICK} for cost in (targets, drafts)]
    if seed is not None:
        rng = np.random.default_rng(seed)
        tables = [
            profiler.plausible({n: s * factor ** rng.uniform(-1, 1) for n, s in one.items()})
            for one in tables
        ]
    depths = [{n: guess * n * slope for n in (1, 8)} if slope else {} for slope in (world.slope, world.slope / 10)]  # fmt: skip
    return replace(
        base,
        target=tables[0],
        draft=tables[1] if world.has_draft else {},
        target_depth=depths[0],
        draft_depth=depths[1] if world.has_draft else {},
        guesses_depth=(guess != 1.0, guess != 1.0),
        token_s=world.token_s,
        checked=seed is None,
    )


def known_of(profile, temperature):
    return profile.experiences()["sampled" if temperature else "greedy"]


# ---- texts


@cache
def texts():
    """Return the recorded texts without a draft model, with ids below V."""
    found = []
    for one in json.loads(gzip.decompress(TEXTS.read_bytes())):
        ids = {token: i for i, token in enumerate(dict.fromkeys([*one["prompt"], *one["tokens"]]))}
        found.append(SimpleNamespace(**one))
        for name in ("prompt", "tokens"):
            setattr(found[-1], name, [ids[token] for token in one[name]])
    return found


def stories(temperature, kind="story"):
    return [sim.traces()[at] for at in sim.case(kind, temperature)]


def earlier(trace, n=3):
    same = [one for one in stories(trace.temperature) if one.prompt != trace.prompt]
    return same[:n]


@cache
def chained(temperature):
    """Return two long answers, of all stories one after the other."""
    found = []
    for order in (1, -1):
        some = stories(temperature)[::order]
        parts = {
            name: [x for one in some for x in getattr(one, name)]
            for name in ("tokens", "proposals")
        }
        found.append(SimpleNamespace(**{**vars(some[0]), **parts}))
    return found


def text_kinds(temperature):
    return [one for one in texts() if one.temperature == temperature]


# ---- cells


def fresh(traces, world, n=96, temperature=0.0, guess=1.0):
    return [
        run(one, known_of(profile_for(world, guess=guess), temperature), world, n) for one in traces
    ]


def misjudged(traces, world, temperature, factor, n=96):
    """Return the seconds of pairs of texts after a measurement in which all passes took `factor` times as long."""
    total = []
    for i, one in enumerate(traces):
        right = profile_for(world)
        tables = (
            {m: factor * s for m, s in table.items()} for table in (right.target, right.draft)
        )
        known = known_of(
            replace(right, **dict(zip(("target", "draft"), tables, strict=True))), temperature
        )
        total += [run(text, known, world, n) for text in (traces[i - 1], one)]
    return total


def used(traces, world, n=96, temperature=0.0):
    """Return the seconds of each text behind some others."""
    total = []
    for i, one in enumerate(traces):
        known = known_of(profile_for(world), temperature)
        others = earlier(one) if world.has_draft else [t for t in traces if t.prompt != one.prompt]
        for j, other in enumerate(others[: 3 if world.has_draft else 2]):
            run(other, known, world, n, 100 * i + 10 * j)
        total.append(run(one, known, world, n, 100 * i + 90))
    return total


def bad(traces, world, seeds, temperature, checked=False, n=96, factor=3.0):
    """Return the seconds of two texts after each bad measurement."""
    total = []
    for seed in range(seeds):
        known = known_of(
            replace(profile_for(world, seed, factor=factor), checked=checked), temperature
        )
        for at in np.random.default_rng(seed).choice(len(traces), 2, replace=False):
            total.append(run(traces[at], known, world, n, seed))
    return total


def changing(traces, world, temperature, n=96, seeds=5, **change):
    """Return the seconds of four texts with one `known`: as measured, changed within the second, all of the third, and back."""
    total = []
    for seed in range(seeds):
        known = known_of(profile_for(world), temperature)
        chosen = np.random.default_rng(seed).choice(len(traces), 4, replace=False)
        states = [world, replace(world, from_token=32, **change), replace(world, **change), world]
        for at, state in zip(chosen, states, strict=True):
            total.append(run(traces[at], known, state, n, seed))
    return total


def deeper(traces, world, temperature, guess, n=128):
    """Return the seconds of texts behind 4,000 tokens with one `known`, whose depth cost is a guess."""
    world = replace(world, slope=1.5e-6, filled=4000)
    known = known_of(profile_for(world, guess=guess), temperature)
    return [run(one, known, world, n) for one in traces]


def after(traces, world, temperature, n=96, n_before=3, **change):
    """Return the seconds of two requests behind some of another kind, with those."""
    total = []
    for at in (0, 4):
        known = known_of(profile_for(world), temperature)
        for trace in (traces[at:] + traces[:at])[:n_before]:
            total.append(run(trace, known, replace(world, **change), n))
        for trace in (traces[at:] + traces[:at])[-3:]:
            total.append(run(trace, known, world, n))
    return total


def cells(name):
    """Return name -> function that returns the seconds of its requests, for one table of costs."""
    pair = World(sim.COSTS[name])
    alone, useless = replace(pair, has_draft=False), replace(pair, useless=True)
    deep = replace(pair, slope=1e-6, filled=FILLED)
    found = {}
    for t in (0.0, 0.8):
        some, written = stories(t), text_kinds(t)
        found |= {
            f"story T {t} fresh": lambda t=t, s=some: fresh(s, pair, temperature=t),
            f"story T {t} used": lambda t=t, s=some: used(s, pair, temperature=t),
            f"useless T {t} fresh": lambda t=t, s=some: fresh(s, useless, temperature=t),
            f"useless T {t} used": lambda t=t, s=some: used(s, useless, temperature=t),
            f"bad T {t}": lambda t=t, s=some: bad(s, pair, 16, t),
            f"bad, believed T {t}": lambda t=t, s=some: bad(s, pair, 16, t, checked=True),
            f"very bad T {t}": lambda t=t, s=some: bad(s, pair, 12, t, factor=10.0),
            f"very bad, believed T {t}": lambda t=t, s=some: bad(s, pair, 12, t, True, factor=10.0),
            f"text, very bad, believed T {t}": lambda t=t, w=written: bad(w, alone, 8, t, True, n=192, factor=10.0),
            f"noise T {t}": lambda t=t, s=some: used(s, replace(pair, noise=0.1), temperature=t),
            f"half as fast T {t}": lambda t=t, s=some: changing(s, pair, t, slower=2.0),
            f"wide passes in vain T {t}": lambda t=t, s=some: changing(s, pair, t, linear=True),
            f"text, wide passes in vain T {t}": lambda t=t, w=written: changing(w, alone, t, 192, linear=True),
            f"wide passes slow T {t}": lambda t=t, s=some: changing(s, pair, t, slower=2.0, wide_only=True),
            f"measured half as fast T {t}": lambda t=t, s=some: misjudged(s, pair, t, 2.0),
            f"measured twice as fast T {t}": lambda t=t, s=some: misjudged(s, pair, t, 0.5),
            f"text, measured half as fast T {t}": lambda t=t, w=written: misjudged(w, alone, t, 2.0, 192),
            f"text, measured twice as fast T {t}": lambda t=t, w=written: misjudged(w, alone, t, 0.5, 192),
            f"after useless drafts T {t}": lambda t=t, s=some: after(s, pair, t, useless=True),
            f"after a slow draft model T {t}": lambda t=t, s=some: after(s, pair, t, n_before=1, draft_slower=16.0),
            f"deep T {t}": lambda t=t, s=some: fresh(s[:4], deep, 128, t),
            f"deep, slope guessed low T {t}": lambda t=t, s=some: fresh(s[:4], deep, 128, t, 0.4),
            f"deep, slope guessed high T {t}": lambda t=t, s=some: fresh(s[:4], deep, 128, t, 2.5),
            f"deep, part is poor T {t}": lambda t=t, s=some: fresh(s[:4], replace(deep, of_part=0.4), 128, t),
            f"very deep, slope guessed 6 times T {t}": lambda t=t, s=some: deeper(s[:4], pair, t, 6.0),
            f"text, very deep, slope guessed 6 times T {t}": lambda t=t, w=written: deeper(w[1:9:2], alone, t, 6.0),
            f"deep, short answer T {t}": lambda t=t, s=some: fresh(s, deep, 48, t),
            f"recurrent T {t}": lambda t=t, s=some: used(s[:4], replace(pair, free_rollback=0), temperature=t),
            f"text T {t} fresh": lambda t=t, w=written: fresh(w, alone, 192, t),
            f"text T {t} used": lambda t=t, w=written: used(w, alone, 192, t),
            f"text, bad T {t}": lambda t=t, w=written: bad(w, alone, 12, t, n=192),
            f"text, bad, believed T {t}": lambda t=t, w=written: bad(w, alone, 12, t, True, n=192),
            f"text, wide passes slow T {t}": lambda t=t, w=written: changing(w, alone, t, 192, slower=2.0, wide_only=True),
        }  # fmt: skip
    found["repetitive fresh"] = lambda: fresh(stories(0.0, "repetitive"), pair)
    found["repetitive used"] = lambda: used(stories(0.0, "repetitive"), pair)
    return found


def long_cells(name):
    """Return the cells of long answers."""
    pair = World(sim.COSTS[name])
    deep = replace(pair, slope=2e-7, filled=FILLED)

    def long(t, world, measured_s=None, usual=N_LONG, **change):
        total = []
        for one in chained(t):
            profile = profile_for(world)
            if measured_s:  # the cost of a single token is wrong
                profile = replace(
                    profile, target={**profile.target, 1: measured_s * profile.target[1]}
                )
            known = known_of(profile, t)
            known.answer = usual
            total.append(run(one, known, replace(world, **change), N_LONG))
        return total

    return {
        f"{name}: long answer T {t}, {what}": lambda t=t, w=world, c=change: long(t, w, **c)
        for t in (0.0, 0.8)
        for what, world, change in (
            ("as measured", pair, {}),
            ("useless", replace(pair, useless=True), {}),
            ("half as fast from 300 on", pair, {"slower": 2.0, "from_token": 300}),
            (
                "wide passes slow from 300 on",
                pair,
                {"slower": 2.0, "from_token": 300, "wide_only": True},
            ),
            ("noise", pair, {"noise": 0.1}),
            ("V(1) 1.4 times", pair, {"measured_s": 1.4}),
            ("V(1) 0.7 times", pair, {"measured_s": 0.7}),
            ("deep", deep, {}),
            ("deep, part 0.7", deep, {"of_part": 0.7}),
            ("deep, part 0.4", deep, {"of_part": 0.4}),
            ("deep, longer than usual", deep, {"usual": 100}),
            ("deep, longer than usual, part 0.6", deep, {"of_part": 0.6, "usual": 100}),
            ("deep, longer than usual, part 0.3", deep, {"of_part": 0.3, "usual": 100}),
        )
    }


def small_cells():
    """Return the cells of a model as small as the bundled one, where Python's time counts."""
    pair = World(SMALL, search_s=2e-4, token_s=1e-4)
    alone = replace(pair, has_draft=False)
    return {
        f"{what} T {t} {state.__name__}": lambda t=t, w=world, s=state, f=of: s(f(t), w, temperature=t)
        for t in (0.0, 0.8)
        for what, world, of in (("story", pair, stories), ("text", alone, text_kinds))
        for state in (fresh, used)
    }  # fmt: skip


# ---- mechanisms


class Patch:
    """Changes of the package that are taken back."""

    def __init__(self):
        self._before = []

    def set(self, owner, name, value):
        self._before.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def edit(self, owner, name, *changes):
        """Replace lines in a function of the package."""
        function = owner.__dict__[name]
        source = textwrap.dedent(inspect.getsource(function))
        for old, new in changes:
            if old not in source:
                raise LookupError(f"{name}: {old}")
            source = source.replace(old, new)
        scope = {}
        exec(compile(source, name, "exec"), function.__globals__, scope)
        self.set(owner, name, scope[name])

    def undo(self):
        for owner, name, value in reversed(self._before):
            setattr(owner, name, value)
        self._before.clear()


def nothing(*_args, **_options):
    return None


def _one_bucket(patch, names):
    """Give all buckets of some drafters one acceptance rate."""
    rates = pair_statistics.AcceptanceRates
    of, learn = rates.of, rates.learn

    def same(kind):
        return (kind[0], 6 if kind[0] in MODELS else 2) if kind[0] in names else kind

    patch.set(rates, "of", lambda self, kind: of(self, same(kind)))
    patch.set(rates, "learn", lambda self, kind, hit: learn(self, same(kind), hit))


C, U, E = controller.DraftController, controller.DraftModelUse, controller.Exploration
M, P = cost_model.CostModel, cost_model.Pace
A, R = pair_statistics.AcceptanceRates, pair_statistics.RequestAcceptance
MECHANISMS = {
    # controller
    "exploration": lambda p: p.set(E, "is_due", lambda _: False),
    "exploring again after an error": lambda p: p.edit(
        E, "charge", ("self._since_explored = _EXPLORE_EVERY", "pass")
    ),
    "search budget": lambda p: p.set(controller.SearchBudget, "rounds_without", lambda *_: 0),
    "probe": lambda p: p.set(U, "probe", nothing),
    "probe: passes of one token": lambda p: p.edit(U, "probe", ("for _ in range(2)", "for _ in ()")),
    "probe: only where it can help": lambda p: p.edit(U, "probe", (" or not can_help", "")),
    "reading only if it pays": lambda p: p.set(U, "_reading_offset", lambda self, _: self.model.n_past - self.model.n_cached),
    "last part": lambda p: p.edit(U, "_ways_to_read", ("if n_tokens >", "if False and n_tokens >")),
    "rereading": lambda p: p.set(U, "read_whole", nothing),
    "length of answers": lambda p: p.set(pair_statistics.PairStatistics, "answered", nothing),
    "far behind": lambda p: p.edit(U, "next_pays", ("is_far = pending > self.model.far_behind", "is_far = False")),
    "frequency of confidences": lambda p: p.set(pair_statistics.PairStatistics, "drafted", nothing),
    "distribution of confidences": lambda p: p.edit(U, "next_pays", ("*self._confidences()", "np.ones(1), np.array([mean])")),
    "confidence of the draft model": lambda p: _one_bucket(p, MODELS),
    "confidence of texts": lambda p: _one_bucket(p, ("ngram", "retry")),
    "text beside the model": lambda p: p.edit(U, "next_pays", ("first_s, each_s, by_text)", "first_s, each_s, 0.0)")),
    "learning the text's own token": lambda p: p.edit(C, "_learn_step", ("if step.by_text:", "if False:")),
    "throughput as price": lambda p: p.edit(C, "_begin_round", ("self._tokens / self._seconds if self._seconds and is_alone else 0.0", "0.0")),
    "replays": lambda p: p.set(C, "replay", lambda *_: ((), 0)),
    "time of Python, a token": lambda p: p.edit(C, "_learn_times", ("self.known.per_token.learn(python_s / n_tokens)", "pass")),
    "looking ahead": lambda p: p.set(draft_length, "_FORESIGHT", 1),
    "least reach": lambda p: (p.set(draft_length, "LEAST_REACH", 0.0), p.set(controller, "LEAST_REACH", 0.0)),
    # tables
    "checks of tables": lambda p: p.set(M, "check", nothing),
    "check: its end where nothing pays": lambda p: p.set(M, "_cannot_pay", lambda *_: False),
    "check: all widths follow": lambda p: p.edit(M, "_end_check", ("if self._n_corrected", "if False and self._n_corrected")),
    "check: after two corrections": lambda p: p.set(cost_model, "_REFUTED", -1),
    "contradicted widths": lambda p: p.set(cost_model, "_CONTRADICTED", -1),
    "jumps": lambda p: p.set(P, "jumped", nothing),
    "small steps of the machine speed": lambda p: p.set(P, "learn", nothing),
    "machine speed": lambda p: (p.set(P, "learn", nothing), p.set(P, "jumped", nothing)),
    "doubtful tables": lambda p: p.set(M, "_shows_machine", lambda *_: True),
    "caps": lambda p: p.set(M, "set_caps", nothing),
    "large errors": lambda p: p.set(M, "_twice", lambda *_: 0.0),
    "large errors only twice": lambda p: p.edit(M, "_twice", ("min(abs(last), abs(error))", "abs(error)"), ("if last * error > 0 else 0.0", "")),
    "half of a first error": lambda p: p.edit(M, "learn", ("size = error / 2", "pass")),
    "depth cost": lambda p: p.set(M, "_blame_of_depth", lambda *_: 0.0),
    "guessed depth": lambda p: p.edit(M, "__init__", ("set() if guesses_depth else None", "None")),
    "cost of reading": lambda p: p.set(M, "learn_reading", nothing),
    "wrong entries replaced": lambda p: p.set(cost_model, "repaired", dict),
    "implausible entries left out": lambda p: p.set(profiler, "plausible", dict),
    # statistics
    "shift of a request": lambda p: (p.set(R, "of", lambda self, kind: self._known.of(kind)), p.set(R, "learn", lambda self, kind, hit: self._known.learn(kind, hit))),
    "firm shift": lambda p: p.edit(R, "learn", ("_FIRM_SHIFT_PRECISION if kind[0] in self._firm else ", "")),
    "shift forgets": lambda p: p.set(pair_statistics, "_SHIFT_FORGET", 1.0),
    "only what the shift leaves": lambda p: p.edit(R, "learn", ("min(1.0, max(0.0, usual + hit - chance))", "hit")),
    "measured acceptance": lambda p: p.set(profile, "fitted", lambda priors, _seen: list(priors)),
    "sampled texts": lambda p: p.set(profile, "_SAMPLED_SHIFT", 0.0),
}  # fmt: skip


# ---- the comparison


def measured(costs, wanted):
    """Return cell -> seconds of each request."""
    found = {f"{name}: {cell}": of for name in costs for cell, of in cells(name).items()}
    for name in costs:
        found |= long_cells(name)
    found |= {f"small: {cell}": of for cell, of in small_cells().items()}
    return {cell: of() for cell, of in found.items() if any(one in cell for one in wanted)}


def compared(before, after):
    """Return situation -> mean ratio of seconds before and after over its temperatures, and its standard error.

    Single cells say little: a changed length of one draft changes all that follow. The error is from the differences of the requests.
    """
    cells = {}
    for cell, one in before.items():
        if cell in after:
            total, n = sum(after[cell]), len(one)
            error = n**0.5 * float(np.std(np.subtract(after[cell], one))) / total
            situation = cell.replace(" T 0.0", "").replace(" T 0.8", "")
            cells.setdefault(situation, []).append((np.log(sum(one) / total), error))
    return {
        name: (
            float(np.exp(np.mean([value for value, _ in some]))),
            float(np.linalg.norm([error for _, error in some])) / len(some),
        )
        for name, some in cells.items()
    }


def row(name, found):
    """Return a row of the table; worst and best are the situations that are surest to be different."""

    def shown(sign):
        at = max(found, key=lambda one: sign * np.log(found[one][0]) - found[one][1])
        return f"{found[at][0]:.3f} ±{found[at][1]:.3f} {at}"

    mean = np.exp(np.mean([np.log(value) for value, _ in found.values()]))
    return f"| {name} | {mean:.3f} | {shown(-1)} | {shown(1)} |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="print the mechanisms")
    parser.add_argument("--without", nargs="*", help="mechanisms, each in turn [all]")
    parser.add_argument("--together", action="store_true", help="take all of these out at once")
    parser.add_argument("--costs", nargs="*", default=COSTS, choices=[*sim.COSTS])
    parser.add_argument("--cells", nargs="*", default=[""], help="parts of the names of cells")
    parser.add_argument("--seconds", type=Path, help="write the seconds of this tree to a file")
    parser.add_argument("--against", type=Path, help="compare this tree with such a file")
    parser.add_argument("--all", action="store_true", help="print each situation")
    args = parser.parse_args()
    if args.list:
        print("\n".join(MECHANISMS))
        return
    if args.against:
        base, names = json.loads(args.against.read_text()), [()]
    else:
        base, names = (
            measured(args.costs, args.cells),
            [(one,) for one in args.without or MECHANISMS],
        )
    if args.seconds:
        args.seconds.write_text(json.dumps(base))
        return
    print("| without | mean | worst | best |\n|---|---|---|---|")
    for some in [tuple(args.without)] if args.together else names:
        patch = Patch()
        try:
            for name in some:
                MECHANISMS[name](patch)
            found = compared(base, measured(args.costs, args.cells))
        finally:
            patch.undo()
        print(row(", ".join(some) or "now", found), flush=True)
        if args.all:
            for name, (value, error) in sorted(found.items(), key=lambda one: one[1]):
                print(f"    {value:.3f} ±{error:.3f} {name}")


if __name__ == "__main__":
    main()
