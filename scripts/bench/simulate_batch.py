"""Several requests at once in simulated time: the scheduler over recorded texts and proposals of the bundled pair, costs by a table, and no clock.

.venv/bin/python scripts/bench/simulate_batch.py [--costs blocks] [--users 2,4,8] [-n 96]

Prints tokens per second of all requests together, relative to the same requests one after the other with the adaptive controller, and relative to the
best setting in hindsight: one after the other, or all at once with one fixed drafter and length, no drafts included.
All requests begin at the same moment. Reading by the target takes no time; reading by the draft model is the controller's own choice and counts.
"""

import argparse
from functools import cache

import numpy as np
import simulate_controller as alone
from simulate_controller import COSTS, Clock, V, costing

from gguf_spec import Sampling
from gguf_spec.options import K_MAX
from gguf_spec.sampling.chain import Sampler
from gguf_spec.sampling.rng import SeededRng
from gguf_spec.speculative import controller, scheduler
from gguf_spec.speculative.acceptance import coupled
from gguf_spec.speculative.drafters import ModelDrafter, NgramDrafter, RetryDrafter
from gguf_spec.speculative.engine import RoundRule, read_prompt, rounds
from gguf_spec.speculative.scheduler import Scheduler, Side, SlotPair

# Seconds of a pass over n tokens of a 1.7B model with kernels whose blocks of rows cost little more than one row; the draft model's are a guess.
COSTS["blocks"] = (
    {1: 39, 2: 41, 4: 51, 8: 62.4, 16: 121, 32: 242, 64: 484},
    {1: 3.5, 2: 4, 4: 5, 8: 7, 16: 12, 32: 22, 64: 42},
)
SETTINGS = [("model", k) for k in (1, 2, 3, 5, 7)] + [("ngram", k) for k in (0, 1, 2, 3, 5, 7, 15)]


class RecordedSlot(alone.RecordedModel):
    """A slot whose passes the scheduler runs."""

    can_roll_back, most_read, index = True, 0, 0

    def read(self, tokens):
        if tokens:
            self.run(scheduler.PassPart(self, tokens, 0))

    def logits(self, tokens, n_rows):
        return self.run(scheduler.PassPart(self, tokens, n_rows))

    def check_room(self, tokens):
        pass

    @property
    def n_cached(self):
        return len(self.cached)


class RecordedSlots:
    """The slots of one model. A pass costs the table's time for all rows, fillers included; reading is free if `reads_free`."""

    def __init__(self, slots, cost, clock, reads_free):
        self.sequences, self.weights, self.widest = slots, slots[0], K_MAX + 1
        self.reads_at_once = slots[0].reads_at_once
        self.n_ctx, self.weight_bytes, self.cached_bytes = (
            slots[0].n_ctx,
            slots[0].weight_bytes,
            slots[0].cached_bytes,
        )
        self.can_roll_back = slots[0].can_roll_back
        self.cost, self.clock, self.reads_free, self.rows = cost, clock, reads_free, []
        for i, slot in enumerate(slots):
            slot.index, slot.context = i, self

    def move(self, slot, free):
        slot.index, free.index = free.index, slot.index
        self.sequences[slot.index], self.sequences[free.index] = slot, free

    def decode(self, parts, n_sequences=0, holds=False):
        del holds
        n, width = max(len(parts), n_sequences), max(len(part.tokens) for part in parts)
        self.n_decoded = n
        answers, reads = [], not any(part.n_rows for part in parts)
        seconds = 0.0 if reads and self.reads_free else self.cost(n * width, 0)
        self.clock.now += seconds
        if not reads:
            self.rows.append((n, width))
        for part in parts:
            slot = part.sequence
            slot.cached.extend(part.tokens)
            slot.busy_s += seconds
            rows = np.zeros((part.n_rows, V), dtype=np.float32)
            for row, at in enumerate(range(slot.n_past - part.n_rows + 1, slot.n_past + 1)):
                rows[row, slot.said[min(at, len(slot.said) - 1)]] = 50.0
            answers.append(rows)
        return answers


class Batch:
    """Requests at once over recorded models. `setting` is None for the adaptive controller, else drafter and length."""

    def __init__(self, ats, costs, known, n=96, setting=None):
        self.clock = clock = Clock()
        traces = [alone.traces()[at] for at in ats]
        who, k = setting or ("auto", K_MAX)
        sides = []
        for table, base in zip(COSTS[costs], (known.target, known.draft), strict=True):
            slots = [RecordedSlot(trace, None, clock) for trace in traces]
            sides.append(Side(RecordedSlots(slots, costing(table), clock, base is known.target), base, clock.perf_counter))  # fmt: skip
        pairs = [
            SlotPair(*both)
            for both in zip(*(side.context.sequences for side in sides), strict=True)
        ]
        self.scheduler = Scheduler(pairs, *sides)
        self.target, self.drafted, self.accepted = sides[0].context, 0, 0
        for pair, trace in zip(self.scheduler.pairs, traces, strict=True):
            self.scheduler.start(pair, lambda p=pair, t=trace: self.body(p, t, known, n, who, k, setting))  # fmt: skip
        while self.scheduler.step():
            pass
        self.seconds = clock.now

    def body(self, pair, trace, known, n, who, k, setting):
        model = ModelDrafter(pair.draft, alone.RecordedGuess(trace), V) if who != "ngram" else None
        texts = [] if who == "model" else [NgramDrafter(), RetryDrafter()]
        drafter = controller.DraftController(
            pair.target,
            texts,
            model,
            known,
            n,
            setting is not None,
            batches=pair.batches,
            clock=self.clock.perf_counter,
        )
        read_prompt(pair.target, drafter, trace.prompt, k, lambda: False)
        chain = Sampler(Sampling(temperature=0.0), SeededRng(0))
        for one in rounds(pair.target, drafter, trace.prompt, chain, k, RoundRule(coupled), n, lambda _: False, lambda: False):  # fmt: skip
            self.drafted += one.n_drafted
            self.accepted += one.n_accepted
        known.answered(n, False)


@cache
def best_setting(ats, costs, n):
    """Return seconds and name of the best setting in hindsight."""
    runs = {
        setting: Batch(ats, costs, alone.profile_of(costs).experiences()["greedy"], n, setting)
        for setting in SETTINGS
    }
    own = {"one by one": sum(alone.best_fixed(at, costs, n)[0] for at in ats)}
    found = {str(setting): run.seconds for setting, run in runs.items()} | own
    name = min(found, key=found.get)
    return found[name], name


def one_by_one(ats, costs, known, n):
    return sum(alone.Run(alone.traces()[at], costs, known, n).seconds for at in ats)


def users(kind, n):
    """Return `n` recorded texts of a kind; where there are fewer, some twice."""
    some = alone.case(*kind)
    if kind[0] == "mixed":
        both = zip(alone.case("story", 0.0), alone.case("repetitive", 0.0) * 2, strict=True)
        some = [at for two in both for at in two]
    return tuple((some * n)[:n])


def known_before(costs, ats, state, kind, n):
    way = "sampled" if kind[1] else "greedy"
    return alone.experience(costs, way, alone.before(ats[0]) if state == "used" else (), n)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--costs", nargs="*", default=[*COSTS], choices=[*COSTS])
    parser.add_argument("--users", default="2,4,8")
    parser.add_argument("-n", type=int, default=96, help="tokens of an answer, at most 128")
    args = parser.parse_args()
    print("| costs | text | T | users | state | of one by one | of the best setting | it | drafted, accepted | rows |\n|---|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    for costs in args.costs:
        for kind in (("story", 0.0), ("story", 0.8), ("repetitive", 0.0), ("mixed", 0.0)):
            for n_users in map(int, args.users.split(",")):
                ats = users(kind, n_users)
                for state in ("fresh", "used"):
                    serial = one_by_one(ats, costs, known_before(costs, ats, state, kind, args.n), args.n)  # fmt: skip
                    run = Batch(ats, costs, known_before(costs, ats, state, kind, args.n), args.n)
                    best, name = best_setting(ats, costs, args.n)
                    rows = np.mean([n * width for n, width in run.target.rows])
                    print(f"| {costs} | {kind[0]} | {kind[1]} | {n_users} | {state} | {serial / run.seconds:.2f} | {best / run.seconds:.3f} | {name} | {run.drafted}, {run.accepted} | {rows:.1f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
