"""The draft controller in simulated time: recorded texts and proposals of the bundled pair, costs by a table, and no clock.

.venv/bin/python scripts/bench/simulate_controller.py [--costs kernels] [-n 96]

Prints for each cost table the speed of the adaptive controller over plain decoding and over the best fixed setting in hindsight (plain decoding
included), for requests whose prompt it has not seen: `fresh` knows a quick measurement of the pair alone, `used` has decoded other prompts.
With `--bad`, after measurements that other programs disturbed. With `--chat`, answers of a larger model to questions of a chat
(`record_traces.py --questions`), one after the other, with drafts from their own text alone and from a store of texts as well.
"""

import argparse
import gzip
import json
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gguf_spec import Sampling
from gguf_spec.options import K_MAX
from gguf_spec.passes import Exactness
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative import controller
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.cost_model import interpolate
from gguf_spec.speculative.drafters import (
    N_CONFIDENCE_BUCKETS,
    ModelDrafter,
    NgramDrafter,
    RetryDrafter,
)
from gguf_spec.speculative.drafters.model import DraftToken
from gguf_spec.speculative.drafters.store import DraftStore, StoreDrafter
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.profile import Profile

TRACES = Path(__file__).resolve().parents[2] / "tests" / "data" / "traces.json.gz"
ANSWERS = TRACES.with_name("chat_traces.json.gz")
QUICK = (1, 2, 4, 8, 16)  # widths that a quick measurement takes
V = 4096

# Milliseconds of a pass over n tokens: target and draft model, 1.7B and 135M Q4_0. Own kernels with AVX-512; llama.cpp's with AVX2 and AVX-512.
# `zen5`: Qwen2.5-Coder-1.5B Q4_K_M and SmolLM2-135M Q4_1 with one thread, the lowest of ten passes beside other programs, and llama.cpp's kernels.
COSTS = {
    "kernels": (
        {
            1: 51,
            2: 59,
            3: 53,
            4: 56,
            5: 57.5,
            6: 60,
            7: 64,
            8: 66,
            9: 97,
            12: 105,
            16: 116,
            33: 224,
            65: 422,
        },
        {1: 5.8, 2: 6.8, 3: 7.3, 4: 7.7, 8: 9.3, 16: 12.8, 33: 21},
    ),
    "avx2": (
        {1: 47, 2: 79, 3: 122, 4: 119, 5: 146, 6: 181, 7: 220, 8: 213, 12: 322, 16: 362, 33: 757},
        {1: 5.3, 4: 9.9, 16: 26},
    ),
    "avx512": (
        {
            1: 40,
            2: 57.6,
            3: 71.2,
            4: 55.6,
            5: 71.6,
            6: 89.6,
            7: 102,
            8: 86.4,
            12: 116.4,
            16: 120.8,
            32: 215.6,
            64: 384.8,
        },
        {1: 5, 2: 8, 3: 10, 4: 9.5, 8: 13.5, 16: 22, 32: 40},
    ),
    "zen5": (
        {1: 33, 2: 34, 3: 47, 4: 53, 5: 58, 6: 65, 7: 72, 8: 77, 9: 106, 12: 128, 16: 144, 33: 291},
        {1: 4.8, 2: 6.1, 3: 7.6, 4: 8.3, 5: 9, 6: 10.1, 8: 11.5, 9: 16.5, 12: 19.3, 16: 22, 33: 46},
    ),
    "zen5-stock": (
        {1: 36, 2: 75, 3: 108, 4: 150, 5: 190, 6: 210, 8: 225, 9: 250, 12: 306, 16: 341, 33: 900},
        {1: 5.9, 2: 12.7, 3: 18.1, 4: 22.9, 6: 32.4, 8: 42, 9: 46.5, 12: 59, 16: 78, 33: 176},
    ),
}
# Milliseconds of a pass of Qwen2.5-Coder-1.5B Q4_K_M: with AMX, and on the same Xeon with AVX2 alone.
CHAT_COSTS = {
    "xeon": {1: 43.7, 2: 48.9, 4: 55.4, 8: 74.2, 16: 140.2, 33: 270, 65: 530},
    "xeon-avx2": {1: 43.9, 2: 52, 4: 70.5, 8: 128.6, 16: 237.9, 33: 490, 65: 900},
    "zen5": COSTS["zen5"][0],
    "kernels": COSTS["kernels"][0],
}
SEARCH_S = 0.0002  # of a round that looks for drafts, in the simulated chats
FIXED = [("model", k) for k in (1, 2, 3, 4, 5, 7, 11, 15)] + [
    ("ngram", k) for k in (1, 2, 3, 4, 7, 11, 15, 31)
]


@lru_cache(maxsize=1)
def traces():
    return [SimpleNamespace(**one) for one in json.loads(gzip.decompress(TRACES.read_bytes()))]


class Clock:
    """A clock that stands still but for passes and, if `step_s` says so, while it is read."""

    step_s = 0.0

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += self.step_s
        return self.now


class RecordedModel:
    """A model whose rows have one possible token in each place, that of the recording; `cost` returns the time of a pass."""

    n_vocab, n_ctx, start, weight_bytes, cached_bytes, reads_at_once = (
        V,
        1 << 20,
        1,
        10**9,
        1.0,
        512,
    )
    n_read, exactness, depth_costs, free_rollback = 0, Exactness(attention=True), {}, 10**6

    def __init__(self, trace, cost, clock):
        self.said = [*trace.prompt, *trace.tokens]
        self.cost, self.clock, self.cached, self.busy_s, self.widths = cost, clock, [], 0.0, []

    @property
    def n_past(self):
        return len(self.cached)

    def read(self, tokens):
        self._pass(tokens, len(tokens))

    def logits(self, tokens, n_rows):
        self.widths.append((len(tokens), self.n_past))
        self._pass(tokens, len(tokens))
        rows = np.zeros((n_rows, V), dtype=np.float32)
        for row, at in enumerate(range(self.n_past - n_rows + 1, self.n_past + 1)):
            rows[row, self.said[min(at, len(self.said) - 1)]] = 50.0
        return rows

    def _pass(self, tokens, n):
        seconds = self.cost(n, self.n_past)
        self.busy_s += seconds
        self.clock.now += seconds
        self.cached.extend(tokens)

    def hold(self, lasting=False):
        pass

    def rollback(self, to):
        del self.cached[to:]

    def is_end(self, _token):
        return False


class RecordedGuess:
    """The draft model's proposals, from the recording; `useless` keeps how sure it looks and gets all of them wrong."""

    def __init__(self, trace, useless=False):
        self.n_prompt, self.said, self.proposals, self.useless = (
            len(trace.prompt),
            trace.tokens,
            trace.proposals,
            useless,
        )

    def _proposed(self, history):
        """The proposal behind `history`; behind a wrong token the recorded ones, as long as there are any."""
        said = history[self.n_prompt :]
        at = min(
            next(
                (i for i, (a, b) in enumerate(zip(said, self.said, strict=False)) if a != b),
                len(said),
            ),
            len(self.proposals) - 1,
        )
        token, confidence = self.proposals[at][
            min(len(said) - at, len(self.proposals[at]) - 1) if len(said) > at else 0
        ][:2]  # files of earlier versions have more values
        return ((token + 1) % V if self.useless else token), confidence

    def token(self, _row, history):
        return DraftToken(*self._proposed(history))

    def review(self, _row, history, token):
        proposed, confidence = self._proposed(history)
        return confidence, proposed == token

    def learn(self, *_):
        pass


def costing(table, slope=0.0):
    seconds = {n: ms / 1000 for n, ms in table.items()}
    return lru_cache(maxsize=None)(lambda n, n_past: interpolate(seconds, n) + n * slope * n_past)


def profile_of(costs, useless=False):
    """What a quick measurement of the pair would have found: few widths, and a draft model asked in 64 places."""
    target, draft = (costing(table) for table in COSTS[costs])
    measured = next(one for one in traces() if one.kind == "measure" and one.temperature == 0.8)
    right = np.zeros((N_CONFIDENCE_BUCKETS, 2))
    for proposals, token in zip(measured.proposals[:64], measured.tokens, strict=False):
        right[proposals[0][1]] += proposals[0][0] == token and not useless, 1
    return Profile(
        {n: target(n, 0) for n in QUICK},
        {},
        {n: draft(n, 0) for n in QUICK},
        {},
        {},
        tuple((float(a), float(b)) for a, b in right),
        2.0,
    )


class Run:
    """One request over recorded models. `setting` is None for the adaptive controller, else drafter and length."""

    def __init__(
        self, trace, costs, known, n=96, setting=None, useless=False, who="auto", **options
    ):
        clock = Clock()
        target_s, draft_s = (costing(table) for table in COSTS[costs])
        self.target, self.draft = (
            RecordedModel(trace, target_s, clock),
            RecordedModel(trace, draft_s, clock),
        )
        who, k = setting or (who, K_MAX)
        model = (
            ModelDrafter(self.draft, RecordedGuess(trace, useless), V) if who != "ngram" else None
        )
        texts = [] if who == "model" else [NgramDrafter(), RetryDrafter()]
        self.drafter = controller.DraftController(
            self.target,
            texts,
            model,
            known,
            n,
            setting is not None,
            clock=clock.perf_counter,
            **options,
        )
        read_prompt(self.target, self.drafter, trace.prompt, k, lambda: False)
        self.prompt_s, self.rounds = self.draft.busy_s, []
        self.token_s = []  # when each token was emitted
        began = (
            clock.now - self.prompt_s
        )  # the draft's reading of the prompt is the controller's own choice
        chain = Sampler(Sampling(temperature=0.0), SeededRng(0))
        for one in rounds(
            self.target,
            self.drafter,
            trace.prompt,
            chain,
            k,
            RoundRule(coupled),
            n,
            lambda _: False,
            lambda: False,
        ):
            self.rounds.append((one.n_drafted, one.n_accepted))
            self.token_s += [clock.now - began] * len(one.tokens)
        self.seconds = clock.now - began
        known.answered(n, False)


@cache
def fixed_passes(at, n, setting):
    """Return the passes of a fixed setting, which do not depend on costs: those of the target and of the draft model."""
    run = Run(traces()[at], "kernels", profile_of("kernels").experiences()["greedy"], n, setting)
    return run.target.widths, run.draft.widths, run.draft.n_past and len(traces()[at].prompt) - 1


def fixed_s(at, costs, n, setting):
    target_s, draft_s = (costing(table) for table in COSTS[costs])
    target, draft, n_read = fixed_passes(at, n, setting)
    return (
        sum(target_s(*one) for one in target)
        + sum(draft_s(*one) for one in draft)
        + (draft_s(n_read, 0) if n_read else 0.0)
    )


def best_fixed(at, costs, n):
    """Return seconds and name of the best fixed setting in hindsight, plain decoding included."""
    plain = n * costing(COSTS[costs][0])(1, 0)
    return min(
        [(plain, ("plain", 0)), *((fixed_s(at, costs, n, setting), setting) for setting in FIXED)]
    )


def experience(costs, way, others=(), n=96, useless=False):
    """Return what is known at first, or after `others` were decoded."""
    known = profile_of(costs, useless).experiences()[way]
    for at in others:
        Run(traces()[at], costs, known, n, useless=useless)
    return known


def bad_profile(costs, seed):
    """What a measurement would have found that other programs disturbed: each cost 0.3 to 3 times as high."""
    rng, good = np.random.default_rng(seed), profile_of(costs)
    target, draft = (
        {n: seconds * np.exp(rng.uniform(np.log(0.3), np.log(3))) for n, seconds in table.items()}
        for table in (good.target, good.draft)
    )
    return replace(good, target=target, draft=draft, checked=False)


def after_bad_measurement(costs, temperature, seed):
    """Return the speed over plain decoding within the first 64 tokens and after them, and over the best fixed setting after 256, of three stories."""
    known = bad_profile(costs, seed).experiences()["sampled" if temperature else "greedy"]
    ats = np.random.default_rng(seed).choice(case("story", temperature), 3, replace=False)
    plain_s, times = costing(COSTS[costs][0])(1, 0), [0.0]
    for at in ats:
        times += [times[-1] + one for one in Run(traces()[at], costs, known, 128).token_s[:128]]
    best_s = best_fixed(ats[2], costs, 128)[0]
    last_s = times[-1] - times[256]
    return 64 * plain_s / times[64], 320 * plain_s / (times[-1] - times[64]), best_s / last_s


def case(kind, temperature):
    return [
        i for i, one in enumerate(traces()) if one.kind == kind and one.temperature == temperature
    ]


def before(at):
    """Return other traces of the same way of sampling, for what is known from earlier requests: other prompts only."""
    own = traces()[at]
    return [i for i, one in enumerate(traces())
            if one.kind == "story" and (one.temperature == 0) == (own.temperature == 0) and one.prompt != own.prompt][:12]  # fmt: skip


def table(
    costs,
    n=96,
    useless=False,
    kinds=(("story", 0.0), ("story", 0.8), ("story", 1.0), ("repetitive", 0.0)),
):
    """Yield rows: kind, temperature, state, and over prompts mean and worst of plain / adaptive and of best fixed / adaptive."""
    for kind, temperature in kinds:
        way = "sampled" if temperature else "greedy"
        for state in ("fresh", "used"):
            over_plain, over_best = [], []
            for at in case(kind, temperature):
                known = experience(costs, way, before(at) if state == "used" else (), n, useless)
                seconds = Run(traces()[at], costs, known, n, useless=useless).seconds
                plain = n * costing(COSTS[costs][0])(1, 0)
                over_plain.append(plain / seconds)
                over_best.append((plain if useless else best_fixed(at, costs, n)[0]) / seconds)
            yield (
                kind,
                temperature,
                state,
                np.mean(over_plain),
                min(over_plain),
                np.mean(over_best),
                min(over_best),
            )


# ---- chats


@cache
def chats():
    """Return the answers to questions, whose tokens are numbered by their first place so that rows are short."""
    ids = {}

    def numbered(tokens):
        return [ids.setdefault(token, len(ids)) for token in tokens]

    found = [SimpleNamespace(**one) for one in json.loads(gzip.decompress(ANSWERS.read_bytes()))]
    for one in found:
        one.prompt, one.tokens = numbered(one.prompt), numbered(one.tokens)
        one.top = [
            [(ids.setdefault(token, len(ids)), share / 100) for token, share in top]
            for top in one.top
        ]
    return found, len(ids)  # fmt: skip


class RecordedAnswer(RecordedModel):
    """Its rows have the chances of the recording where there are such."""

    def __init__(self, trace, cost, clock):
        super().__init__(trace, cost, clock)
        self.top, self.n_prompt, self.n_vocab = trace.top, len(trace.prompt), chats()[1]

    def logits(self, tokens, n_rows):
        self._pass(tokens, len(tokens))
        rows = np.full((n_rows, self.n_vocab), -30.0, dtype=np.float32)
        for row, at in enumerate(range(self.n_past - n_rows + 1, self.n_past + 1)):
            for token, chance in self.top[min(at - self.n_prompt, len(self.top) - 1)]:
                rows[row, token] = np.log(chance)
        return rows


def answer(trace, costs, known, store=None):
    """Return how many times as fast as plain decoding an answer is, with its drafted and accepted tokens."""
    clock = Clock()
    clock.step_s = SEARCH_S / 3  # such a round reads the clock three times
    cost, n = costing(CHAT_COSTS[costs]), len(trace.tokens)
    target = RecordedAnswer(trace, cost, clock)
    texts = [NgramDrafter(), RetryDrafter(), *([StoreDrafter(store)] if store else [])]
    known.chances.add({one.name: one.priors for one in texts})
    drafter = controller.DraftController(target, texts, None, known, n, clock=clock.perf_counter)

    def recorded(draft, rows):
        new, at = [], len(rows.history(0)) - len(trace.prompt)
        for token in draft.tokens:
            new.append(trace.tokens[at + len(new)])
            if new[-1] != token:
                return new
        return [*new, trace.tokens[at + len(new)]]

    read_prompt(target, drafter, trace.prompt, K_MAX, lambda: False)
    began, done = clock.now, []
    chain, rule = Sampler(Sampling(temperature=0.0), SeededRng(0)), RoundRule(recorded)
    for one in rounds(
        target, drafter, trace.prompt, chain, K_MAX, rule, n, lambda _: False, lambda: False
    ):
        done.append(one)
    known.answered(n, True)
    if store:
        store.add([*trace.prompt, *trace.tokens])
    n_drafted = sum(one.n_drafted for one in done)
    return n * cost(1, 0) / (clock.now - began), n_drafted, sum(one.n_accepted for one in done)


def chat_table(costs, kind="development"):
    """Yield rows: temperature, what drafts come from, mean and lowest speed over plain decoding, that of the last ten, drafted and accepted tokens."""
    for temperature in (0.0, 0.8):
        way = "sampled" if temperature else "greedy"
        of_kind = {
            name: [one for one in chats()[0] if (one.kind, one.temperature) == (name, temperature)]
            for name in ("earlier", "development", "held_out")
        }
        others = of_kind["development" if kind == "held_out" else "earlier"]
        for source in ("own text", "store", *(["store after 40 others"] if others else [])):
            table = {n: costing(CHAT_COSTS[costs])(n, 0) for n in QUICK}
            right = ((0.0, 0.0),) * N_CONFIDENCE_BUCKETS
            known = Profile(table, {}, {}, {}, {}, right, 2.0).experiences()[way]
            store = DraftStore() if "store" in source else None
            for one in others if "others" in source else ():
                answer(one, costs, known, store)
            found = np.array([answer(one, costs, known, store) for one in of_kind[kind]])
            speeds = found[:, 0]
            yield (
                temperature,
                source,
                speeds.mean(),
                speeds.min(),
                speeds[-10:].mean(),
                *found[:, 1:].sum(axis=0),
            )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--costs", nargs="*", default=[*COSTS], choices=[*{**COSTS, **CHAT_COSTS}])
    parser.add_argument("-n", type=int, default=96, help="tokens of an answer, at most 128")
    parser.add_argument("--bad", type=int, metavar="N", help="after N bad measurements instead")
    parser.add_argument(
        "--chat",
        nargs="?",
        const="development",
        metavar="QUESTIONS",
        help="answers to questions of a chat instead: development or held_out",
    )
    args = parser.parse_args()
    if args.chat:
        print(
            "| costs | T | drafts from | mean of plain | worst | last ten | drafted | accepted |\n|---|---|---|---|---|---|---|---|"
        )
        for costs in (
            [one for one in args.costs if one in CHAT_COSTS]
            if args.costs != [*COSTS]
            else CHAT_COSTS
        ):
            for temperature, source, mean, worst, last, drafted, accepted in chat_table(
                costs, args.chat
            ):
                print(
                    f"| {costs} | {temperature} | {source} | {mean:.3f} | {worst:.3f} | {last:.3f} | {drafted:.0f} | {accepted:.0f} |",
                    flush=True,
                )
        return
    for costs in args.costs if args.bad else ():
        for temperature in (0.0, 0.8, 1.0):
            found = np.array(
                [after_bad_measurement(costs, temperature, seed) for seed in range(args.bad)]
            )
            print(f"{costs} T {temperature}: median and worst, over plain in the first 64 tokens {np.median(found[:, 0]):.3f} {found[:, 0].min():.3f}, "
                  f"after them {np.median(found[:, 1]):.3f} {found[:, 1].min():.3f}, over the best fixed setting after 256 {np.median(found[:, 2]):.3f} {found[:, 2].min():.3f}", flush=True)  # fmt: skip
    if args.bad:
        return
    print(
        "| costs | text | T | state | of plain: mean | worst | of best fixed: mean | worst |\n|---|---|---|---|---|---|---|---|"
    )
    for costs in args.costs:
        for useless in (False, True):
            for kind, temperature, state, *figures in table(costs, args.n, useless):
                what = f"{kind}, useless draft" if useless else kind
                print(
                    f"| {costs} | {what} | {temperature} | {state} | "
                    + " | ".join(f"{value:.3f}" for value in figures)
                    + " |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
