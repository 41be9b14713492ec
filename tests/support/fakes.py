"""Fakes for the real engine: models with tables of logits and costs, and a random source that replays every path."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import Sampling
from gguf_spec.passes import Exactness
from gguf_spec.results import PassCounts
from gguf_spec.runtime.llm import LLM
from gguf_spec.sampling.chain import NO_FILTERS, Sampler
from gguf_spec.speculative.acceptance import Draft
from gguf_spec.speculative.controller import DraftController
from gguf_spec.speculative.cost_model import interpolate
from gguf_spec.speculative.drafters import ModelDrafter
from gguf_spec.speculative.pair import ModelPair
from gguf_spec.speculative.profile import DEFAULT_PROFILE


def proposed(drafter, tokens, n=8):
    """The tokens that a drafter proposes one after the other, each followed."""
    drafter.begin(tokens)
    found = []
    while len(found) < n and (proposal := drafter.propose()):
        found.append(proposal.token)
        drafter.follow(proposal.token)
    return found


def with_few_calls(work, most=1_000_000):
    """Return what a function returns, which may call few functions: a count of its work without a clock."""
    n_calls = 0

    def count(*_):
        nonlocal n_calls
        n_calls += 1
        assert n_calls <= most, "too much work"

    sys.setprofile(count)
    try:
        return work()
    finally:
        sys.setprofile(None)


def costing(table):
    """Costs of passes of a fake model, from the seconds of some widths."""
    return lambda n, n_past: interpolate(table, n)


AS_TARGET, AS_DRAFT = (
    costing(DEFAULT_PROFILE.target),
    costing(DEFAULT_PROFILE.draft),
)  # a pair for which drafting pays


class Clock:
    """Simulated time of fake models; `perf_counter` is the clock of a pair."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def time(self):
        return 1e9 + self.now


class FakeModel:
    """A model whose logits depend on the last two tokens: `table` has shape `(V, V, V)`, and the token before the first is 0.

    `cached` is the cache; asking for a row whose past is not in the cache is impossible, as in llama.cpp. A pass takes almost no real time;
    `cost` returns its simulated seconds from the numbers of given and of cached tokens.
    """

    start, weight_bytes, cached_bytes, reads_at_once = 1, 10**9, 1.0, 32
    index, threads = 0, 1
    free_rollback, why_plain = 10**6, ""
    exactness, depth_costs = Exactness(attention=True), {}
    slow_first_pass = False
    options, counts, n_cached = ContextOptions(), PassCounts(), 0

    n_ctx_limit = kernels = None

    def __init__(self, table, n_ctx=64, end=(), cost=lambda n, n_past: 1e-6 * (9 + n), clock=None):
        self.table = np.asarray(table, dtype=np.float32)
        self.n_vocab = self.table.shape[-1]
        self.n_ctx, self.end, self.cached, self.n_read, self.busy_s = (
            n_ctx,
            frozenset(end),
            [],
            0,
            0.0,
        )
        self.cost, self.clock = cost, clock or Clock()
        self.passes = []  # (tokens given, rows asked for) of every pass that gave rows
        self.read_tokens = []  # of every pass that gave none

    @property
    def n_past(self):
        return len(self.cached)

    @property
    def context(self):
        return self

    @property
    def weights(self):
        return self

    @property
    def sequences(self):
        return [self]

    @property
    def label(self):
        return self.path.name

    @property
    def memory_bytes(self):
        return round(self.weight_bytes + self.cached_bytes * self.n_ctx)

    def read(self, tokens):
        if tokens:
            on_grid = self.n_read == self.n_past
            self.read_tokens.append(list(tokens))
            self._pass(tokens, len(tokens))
            self.n_read = self.n_past if on_grid else self.n_read

    def logits(self, tokens, n_rows):
        assert 0 < n_rows <= len(tokens)
        self.passes.append((len(tokens), n_rows))
        self._pass(tokens, len(tokens))
        past = [0, *self.cached]
        rows = [(past[i - 1], past[i]) for i in range(len(past) - n_rows, len(past))]
        before, last = zip(*rows, strict=True)
        return self.table[list(before), list(last)]

    def _pass(self, tokens, n):
        assert self.n_past + n <= self.n_ctx
        seconds = self.cost(n, self.n_past)
        self.busy_s += seconds
        self.clock.now += seconds
        self.cached.extend(tokens)

    def rollback(self, to):
        del self.cached[to:]
        self.n_read = min(self.n_read, to)

    def hold(self, lasting=False):
        pass

    def is_end(self, token):
        return token in self.end

    # what a stream and an LLM need on top: token i is the letter with that number
    path, can_roll_back, recurrent, chat_template = Path("fake.gguf"), True, None, None
    file = SimpleNamespace(embeds_only=False)

    @property
    def ends(self):
        return sorted(self.end)

    def piece(self, token):
        return chr(ord("a") + token).encode()

    def tokenize(self, text, *, special, start=True, most=None):
        return [(ord(letter) - ord("a")) % self.n_vocab for letter in text]

    def close(self):
        self.cached = None


class Wobbly(FakeModel):
    """A model whose logits depend on the width of the pass, and on the widths of the earlier passes.

    Each logit moves by up to `wobble / 2`. Rows of single-token passes behind single-token passes, or behind a prompt, do not move.
    """

    def __init__(self, table, wobble, remembers=True, **options):
        super().__init__(table, **options)
        self.wobble, self.remembers, self.widths = wobble, remembers, []

    def logits(self, tokens, n_rows):
        n_past, width = self.n_past, len(tokens)
        rows = np.array(super().logits(tokens, n_rows))
        self.widths[n_past:] = [width] * width
        for i, end in enumerate(range(n_past + width - n_rows, n_past + width)):
            past = (
                [one if one > 1 else 0 for one in self.widths[:end]]
                if self.remembers
                else [width * (width > 1)]
            )
            if width > 1 or any(past):
                rng = np.random.default_rng([end, width, *past])
                rows[i] += rng.uniform(-self.wobble / 2, self.wobble / 2, rows.shape[1]).astype(
                    np.float32
                )
        return rows

    def read(self, tokens):
        n_past = self.n_past
        super().read(tokens)
        self.widths[n_past:] = [0] * len(tokens)

    def rollback(self, to):
        super().rollback(to)
        del self.widths[to:]


def random_table(rng, n_vocab, holes=0.0):
    """Logits of a context-dependent model; `holes` is the share of tokens that can never come."""
    table = rng.normal(size=(n_vocab, n_vocab, n_vocab)) * 1.5
    table[rng.random(table.shape) < holes] = -np.inf
    table[..., 0] = np.where(np.isinf(table).all(-1), 0.0, table[..., 0])
    return table


class Replay:
    """A random source that walks a given path of outcomes and, past its end, takes the first possible outcome of each choice.

    After a run `path` lists the choices as (outcome, outcomes still to try) and `weight` is the path's probability. `pick` may be asked
    once for each position: under the rule `coupled` the target's token is drawn there and nowhere else.
    """

    def __init__(self, prefix=()):
        self._prefix, self.path, self.weight, self._picked = list(prefix), [], 1.0, set()

    def _take(self, probabilities):
        possible = [i for i, p in enumerate(probabilities) if p > 0]
        at = len(self.path)
        outcome = self._prefix[at] if at < len(self._prefix) else possible[0]
        self.path.append((outcome, [i for i in possible if i > outcome]))
        self.weight *= probabilities[outcome]
        return outcome

    def chance(self, probability):
        return self._take([1 - probability, probability]) == 1

    def choose(self, probabilities):
        return self._take(list(probabilities))

    def pick(self, ids, logits, temperature, position):
        assert position not in self._picked
        self._picked.add(position)
        weights = np.exp((np.asarray(logits, dtype=np.float64) - np.max(logits)) / temperature)
        return self._take(list(weights / weights.sum()))

    def coin(self, position):
        return position * 0x9E3779B9 % 2**32 / 2**32


class Anything:
    """A drafter that proposes every sequence of `n_vocab` tokens, each on a path of its own."""

    busy_s = 0.0

    def __init__(self, rng, n_vocab):
        self._rng, self._n_vocab = rng, n_vocab

    def draft(self, tokens, k):
        return Draft([self._rng.choose([1 / self._n_vocab] * self._n_vocab) for _ in range(k)], [])

    def keep(self, prompt):
        pass

    def read(self, tokens, cancelled):
        pass

    def learn(self, tokens, rows):
        pass

    def rollback(self, to):
        pass


class NoTwice:
    """A grammar in which no token follows itself; its state is the token before."""

    def __init__(self, n_vocab):
        self._all = np.arange(n_vocab)

    def mask(self, history):
        return None

    def possible(self, history):
        return self._all != -1

    def allowed(self, history, ids):
        return ids != history[-1]


def every_path(run):
    """Call `run(rng)` once for each path of random outcomes; yield `(result, probability of the path)`."""
    prefix = []
    while True:
        rng = Replay(prefix)
        yield run(rng), rng.weight
        path = rng.path
        while path and not path[-1][1]:
            path.pop()
        if not path:
            return
        prefix = [outcome for outcome, _ in path[:-1]] + [path[-1][1][0]]


def drafting(target, draft, guess, n_vocab):
    """A drafter of exactly the requested number of tokens, from a draft model only."""
    known = DEFAULT_PROFILE.experiences()["drawn"]
    return DraftController(
        target, [], ModelDrafter(draft, guess, n_vocab), known, n_left=64, fixed=True
    )


def fake_llm(target, draft, speculation, measure=None, clock=time):
    """An LLM over fake models; times are those of the module `clock`, or of their simulated one."""
    pair = ModelPair(target, draft, measure, clock=clock.perf_counter)
    return LLM("fake", pair, prompt="text", speculation=speculation)


def sampler(rng, filters=NO_FILTERS, **options):
    """A sampler with no filter but those named."""
    return Sampler(
        Sampling(**{"temperature": 1.0, "top_k": 0, "top_p": 1.0, **options}), rng, filters
    )


class Asked:
    """A model that calls a function with each prompt before it answers."""

    def __init__(self, llm, before):
        self._llm, self._before = llm, before

    def __getattr__(self, name):
        return getattr(self._llm, name)

    def stream(self, prompt, *given, **options):
        self._before(prompt)
        return self._llm.stream(prompt, *given, **options)
