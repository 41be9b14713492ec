"""Which prompt is read next, and how much of it: the scheduler in simulated time, with costs by a table."""

import random
from itertools import pairwise

import numpy as np
import pytest

from gguf_spec.errors import DecodeError
from gguf_spec.passes import Exactness, PassPart
from gguf_spec.speculative.cost_model import BatchCosts
from gguf_spec.speculative.prefix import read_on, retain_prefix
from gguf_spec.speculative.scheduler import Scheduler, Side, SlotPair
from tests.support.fakes import Clock

WHOLE = 256  # tokens of the largest pass


class Costs:
    """A pass over n tokens takes `pass_s` and `token_s` for each of them."""

    def __init__(self, pass_s=0.05, token_s=0.01, depth_s=0.0):
        self.pass_s, self.token_s, self.depth_s = pass_s, token_s, depth_s

    def seconds(self, n, n_past):
        return self.pass_s + self.token_s * n + self.depth_s * n_past


class Slot:
    """A sequence that lists its tokens; its rows are empty."""

    most_read, n_read, least_cut, recurrent, can_roll_back = 0, 0, 0, None, True

    def __init__(self, context, index):
        self.context, self.index, self.cached, self.run = context, index, [], None

    @property
    def exactness(self):
        return self.context.exactness

    @property
    def n_past(self):
        return len(self.cached)

    @property
    def reads_at_once(self):
        return min(self.most_read or WHOLE, WHOLE) if not self.exactness.grid else WHOLE

    def check_room(self, tokens):
        pass

    def rollback(self, to):
        del self.cached[to:]

    def forget(self):
        self.cached.clear()

    def read(self, tokens):
        at = 0
        while at < len(tokens):
            end = at + self.reads_at_once
            self.run(PassPart(self, tokens[at:end], 0))
            at = end
        self.n_read = self.n_past

    def logits(self, tokens, n_rows):
        return self.run(PassPart(self, tokens, n_rows))


class Context:
    """Passes take the time that the costs say, times `slower`, which the costs do not know."""

    widest, reads_at_once, can_roll_back, n_ctx, weight_bytes, cached_bytes = (
        65,
        WHOLE,
        True,
        1 << 20,
        10**9,
        1.0,
    )

    def __init__(self, clock, costs, n_slots, exactness):
        self.clock, self.costs, self.exactness, self.slower = clock, costs, exactness, 1.0
        self.sequences = [Slot(self, i) for i in range(n_slots)]
        self.passes, self.failing = [], 0

    def decode(self, parts, n_sequences=0, holds=False):
        n, width = max(len(parts), n_sequences), max(len(part.tokens) for part in parts)
        depth = max(part.sequence.n_past for part in parts)
        self.n_decoded = n
        self.clock.now += self.slower * self.costs.seconds(n * width, depth)
        reads = not any(part.n_rows for part in parts)
        if reads and self.failing:
            self.failing -= 1
            parts[0].sequence.forget()
            raise DecodeError(-1, 0, width, "a test")
        for part in parts:
            part.sequence.cached.extend(part.tokens)
            end = part.sequence.n_past
            self.passes.append((self.clock.now, part.sequence.index, reads, width, end))
        return [np.zeros((part.n_rows, 4), np.float32) for part in parts]

    def move(self, one, free):
        raise AssertionError("the tests have no gaps that pay")

    @property
    def pieces(self):
        """Index of the sequence, tokens, and end of each pass that read."""
        return [(index, width, end) for _, index, reads, width, end in self.passes if reads]


class Request:
    """A prompt, an answer of so many tokens, and when it came and was answered."""

    def __init__(self, at, n_prompt, n_tokens=1, prompt=None, rests=False):
        self.at, self.n_tokens = at, n_tokens
        self.prompt = prompt or [random.Random(at).randrange(1000) for _ in range(n_prompt)]
        self.times, self.cancelled, self.error, self.rests = [], False, None, rests
        self.begun_at = self.ended_at = None

    @property
    def first_s(self):
        return self.times[0] - self.at

    @property
    def gaps(self):
        return [b - a for a, b in pairwise(self.times)]


class Fixed(Side):
    """Moves never pay."""

    def move_s(self):
        return 1e9


class Machine:
    """A scheduler over fakes, and the requests that come to it."""

    def __init__(self, costs=None, n_slots=8, exactness=None, **options):
        self.clock = Clock()
        costs, exactness = costs or Costs(), exactness or Exactness(attention=True)
        self.context = Context(self.clock, costs, n_slots, exactness)
        self.pairs = [SlotPair(slot, None) for slot in self.context.sequences]
        side = Fixed(self.context, costs, self.clock.perf_counter)
        self.scheduler = Scheduler(self.pairs, side, None, **{"max_gap": 0.25} | options)
        self.waiting = []

    def body(self, request, pair):
        slot, tokens = pair.target, request.prompt[:-1]
        pair.n_prompt = len(tokens)
        try:
            retain_prefix(slot, tokens)
            read_on(slot, tokens, lambda: request.cancelled)
            for i in range(request.n_tokens):
                if request.cancelled:
                    break
                slot.logits([i], 1)
                request.times.append(self.clock.now)
                if request.rests:
                    self.clock.now += 0.004
                    self.scheduler.yield_to_others()
        except DecodeError as error:
            request.error = error
        request.ended_at = self.clock.now

    def run(self, *requests, until=None):
        """Run until all are answered, or `until()` is true."""
        self.waiting = sorted([*self.waiting, *requests], key=lambda one: one.at)
        while self.waiting or self.scheduler.tasks:
            while self.waiting and self.waiting[0].at <= self.clock.now and self.scheduler.free:
                request = self.waiting.pop(0)
                pair = self.scheduler.free[0]
                request.begun_at = self.clock.now
                task = self.scheduler.start(
                    pair, lambda request=request, pair=pair: self.body(request, pair)
                )
                task.rests = request.rests
            if until and until():
                return
            if not self.scheduler.step() and self.waiting:
                self.clock.now = max(self.clock.now, self.waiting[0].at)


@pytest.fixture
def machine():
    return Machine


def alone_s(machine, n_prompt, **options):
    request = Request(0.0, n_prompt)
    machine(**options).run(request)
    return request.first_s


def test_a_short_prompt_does_not_wait_for_a_long_one(machine):
    """4 tokens two seconds after 4,000: a piece that runs, and its own two passes."""
    whole_s = alone_s(machine, 4000)
    assert whole_s > 40
    long, short = Request(0.0, 4000), Request(2.0, 4)
    machine().run(long, short)
    assert short.first_s <= 1.0 + 0.08 + 0.25 + 1e-9
    assert long.first_s < 1.01 * whole_s


def test_prompts_are_read_by_their_rest(machine):
    """Not by their order, and not by their whole length: the long one is nearly read when the others come."""
    one = machine()
    long = Request(0.0, 1000)
    one.run(long, until=lambda: one.pairs[0].target.n_past >= 850)
    now = one.clock.now
    others = [Request(now, n) for n in (600, 50, 300)]
    one.run(*others)
    firsts = [request.times[0] for request in (others[1], long, others[2], others[0])]
    assert firsts == sorted(firsts)


def test_what_is_cached_is_not_part_of_the_rest(machine):
    """A prompt of 1,000 tokens of which 990 are cached comes before one of 100."""
    one = machine()
    known = Request(0.0, 1000)
    one.pairs[1].target.cached[:] = known.prompt[:990]
    unknown = Request(0.0, 100)
    one.run(unknown, known)
    assert known.times[0] < unknown.times[0]
    assert sum(width for index, width, _ in one.context.pieces if index == 1) == 9


def test_a_prompt_that_was_nearly_read_is_not_cut_into_small_pieces(machine):
    """Where nobody else is there, a piece is the largest pass, or one of four gaps."""
    cheap = machine(Costs(1e-3, 1e-5))
    cheap.run(Request(0.0, 1000))
    assert [width for _, width, _ in cheap.context.pieces] == [256, 256, 256, 231]
    dear = machine()
    dear.run(Request(0.0, 1000))
    widths = [width for _, width, _ in dear.context.pieces[1:-1]]
    assert set(widths) == {80}, "0.05 s and 0.01 s for each token: 1 s at most, in blocks of 16"


@pytest.mark.parametrize(("n_short", "begin"), [(100, 0.5), (400, 0.5), (400, 12.0)])
def test_the_longest_prompt_is_read_nevertheless(machine, n_short, begin):
    """Short prompts come faster than they can be read; a quarter of the time is that of the oldest.

    What it read before they came is not set against it.
    """
    whole_s = alone_s(machine, 2000)
    long = Request(0.0, 2000)
    short = [Request(begin + 0.2 * i, 40) for i in range(n_short)]
    one = machine(n_slots=12)
    one.run(long, *short, until=lambda: long.times)
    assert long.first_s <= 4.5 * whole_s
    reading = [index for _, index, reads, _, _ in one.context.passes if reads]
    longest_wait = max(map(len, "".join("x" if i else " " for i in reading).split()))
    assert longest_wait < 40
    answered = [request for request in short if request.times]
    assert answered, "and the short ones are read meanwhile"


def test_the_oldest_has_no_credit_of_one_that_has_ended(machine):
    one = machine()
    first, second = Request(0.0, 3000), Request(1.0, 3000)
    short = [Request(2.0 + i, 40) for i in range(20)]
    one.run(first, second, *short)
    assert max(request.first_s for request in short) < 4.0
    assert first.times[0] < second.times[0]


@pytest.mark.parametrize("max_gap", [0.1, 0.25, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_stream_waits_at_most_as_long_as_was_asked_for(machine, max_gap, seed):
    rng = random.Random(seed)
    requests = [
        Request(rng.uniform(0, 60), int(rng.choice((5, 60, 400, 1500))), rng.randrange(5, 60))
        for _ in range(20)
    ]
    costs = Costs(0.04, 0.004, 1e-6)
    one = machine(costs, max_gap=max_gap)
    one.run(*requests)
    gaps = [gap for request in requests for gap in request.gaps]
    least = costs.seconds(16, 1500)
    pass_s = costs.seconds(8, 1500) + 7 * 1500e-6
    # The scheduler takes the mean depth for all.
    assert max(gaps) <= max(max_gap, 1.5 * pass_s, pass_s + least) + 0.01
    assert max(gaps) > 0.5 * max_gap or max_gap > 0.5, "pieces are as long as they may"
    assert all(len(request.times) == request.n_tokens for request in requests)


def test_pieces_follow_the_measured_price_of_reading(machine):
    """All passes that read take three times as long as the table says: after a few the gaps are right."""
    one = machine(Costs(0.01, 0.002))
    stream = Request(0.0, 4, 400)
    one.run(stream, until=lambda: len(stream.times) > 3)
    one.context.slower = 3.0
    long = Request(one.clock.now, 5000)
    one.run(long, until=lambda: long.times)
    assert len(stream.gaps) > 30
    assert max(stream.gaps[15:]) < 0.3
    assert max(stream.gaps) > 0.4, "the first ones are too long: nothing was known"


def test_prompts_are_read_where_one_pass_takes_longer_than_the_gap(machine):
    """Half as long as the passes, and at least 16 tokens between two of them."""
    one = machine(Costs(0.5, 0.01), max_gap=0.1)
    streams = [Request(0.0, 4, 60) for _ in range(3)]
    one.run(*streams, until=lambda: all(len(request.times) > 2 for request in streams))
    n_before, now = len(streams[0].times), one.clock.now
    other = Request(now, 400)
    one.run(other, until=lambda: other.times)
    between = len(streams[0].times) - n_before
    assert between <= 400 / 16 + 2
    assert max(gap for request in streams for gap in request.gaps) < 0.53 + 0.66 + 1e-9


def test_reading_has_a_share_beside_long_texts(machine):
    """Passes behind 5,000 tokens take half a second: between two of them half of that is read, not 16 tokens."""
    one = machine(Costs(0.01, 0.001, 1e-4), max_gap=0.1)
    streams = [Request(0.0, 5001, 12) for _ in range(3)]
    for i, request in enumerate(streams):
        one.pairs[i].target.cached[:] = request.prompt[:-1]
    one.run(*streams, until=lambda: all(request.times for request in streams))
    other = Request(one.clock.now, 400)
    n_before = len(streams[0].times)
    one.run(other, until=lambda: other.times)
    assert len(streams[0].times) - n_before <= 8


def test_a_part_that_was_handed_over_is_cut_when_streams_have_come(machine):
    """While it waited for one that is shorter, another began to decode."""
    one = machine(Costs(0.001, 0.001))
    long, short = Request(0.0, 3000), Request(0.1, 8, 30)
    one.run(long, short)
    assert max(short.gaps) <= 0.25 + 1e-9
    assert [end for index, _, end in one.context.pieces if index == 0][-1] == 2999


@pytest.mark.parametrize("max_gap", [0.02, 0.3])
def test_where_ends_matter_pieces_end_on_the_grid(machine, max_gap):
    one = machine(exactness=Exactness(grid=64), max_gap=max_gap)
    requests = [Request(0.3 * i, 70 + 130 * i, 20) for i in range(5)]
    one.run(*requests)
    for index, _, end in one.context.pieces:
        assert end % 64 == 0 or end == len(requests[index].prompt) - 1


def test_a_request_that_is_cancelled_is_not_read_on(machine):
    one = machine()
    stream, long = Request(0.0, 4, 200), Request(1.0, 4000)
    one.run(stream, long, until=lambda: one.pairs[1].target.n_past > 500)
    long.cancelled = True
    n_before = one.pairs[1].target.n_past
    one.run(until=lambda: long.ended_at)
    assert one.pairs[1].target.n_past - n_before <= 256
    assert one.pairs[1].task is None
    assert not long.times
    one.run()
    assert len(stream.times) == 200


def test_a_piece_that_fails_ends_its_request_alone(machine):
    """Nothing is read behind a piece that fails, though more of the text was handed over."""
    one = machine(exactness=Exactness(grid=64))
    stream, long = Request(0.0, 4, 40), Request(0.1, 4000)
    one.run(stream, long, until=lambda: one.pairs[1].target.n_past == 256 + 64)
    one.context.failing = 1
    one.run()
    assert isinstance(long.error, DecodeError)
    assert one.context.failing == 0
    assert one.pairs[1].target.cached == []
    assert not long.times
    assert len(stream.times) == 40


def test_prompts_are_read_beside_requests_that_compute_long(machine):
    """A grammar rests again and again; then no pass is due, and reading goes on."""
    one = machine()
    strict, long = Request(0.0, 4, 300, rests=True), Request(0.5, 800)
    one.run(strict, long, until=lambda: long.times)
    assert long.first_s < 2.5 * alone_s(machine, 800)
    assert max(strict.gaps) < 0.35


def test_first_tokens_do_not_wait_for_the_next_prompt(machine):
    """A short prompt is decoded as soon as it is read, in the same pass as those that decode."""
    one = machine()
    stream = Request(0.0, 4, 100)
    one.run(stream, until=lambda: len(stream.times) > 3)
    at = one.clock.now
    short = [Request(at, 3) for _ in range(4)]
    one.run(*short)
    assert max(request.first_s for request in short) < 0.6


def test_the_draft_model_reads_in_turn():
    """Its prompts are ordered by the price of what it has to read, and cut by its own costs."""
    clock = Clock()
    exactness = Exactness(attention=True)
    target, draft = (Context(clock, costs, 3, exactness) for costs in (Costs(), Costs(0.01, 0.001)))
    pairs = [SlotPair(*one) for one in zip(target.sequences, draft.sequences, strict=True)]
    sides = [Fixed(one, one.costs, clock.perf_counter) for one in (target, draft)]
    scheduler = Scheduler(pairs, *sides, max_gap=0.25)
    ends = {}

    def body(pair, n):
        pair.n_prompt = n
        for slot in pair.slots:
            read_on(slot, [*range(n)], lambda: False)
        for _ in range(20):
            pair.target.logits([1], 1)
            ends.setdefault(n, []).append(clock.now)

    for pair, n in zip(pairs, (2000, 30, 300), strict=True):
        scheduler.start(pair, lambda pair=pair, n=n: body(pair, n))
    while scheduler.step():
        pass
    assert [*ends] == [30, 300, 2000]
    gaps = [b - a for times in ends.values() for a, b in pairwise(times)]
    assert max(gaps) < 0.07 + 0.21 + 1e-9, "a pass of two, and the least piece"


def test_the_price_of_reading_is_learned_by_width():
    costs, table = BatchCosts(65), Costs(0.0, 0.01)
    assert costs.reading_s(table, 100, 0) == pytest.approx(1.0)
    for _ in range(30):
        costs.learn_reading(table, 100, 0, 1.5)
        costs.learn_reading(table, 10, 0, 0.05)
    assert costs.reading_s(table, 100, 0) == pytest.approx(1.5, rel=0.01)
    assert costs.reading_s(table, 10, 0) == pytest.approx(0.05, rel=0.01)
    costs.learn_reading(table, 100, 0, 60.0)
    assert costs.reading_s(table, 100, 0) < 1.8, "another program"
    assert costs.seconds(table, 1, 10, 0) == pytest.approx(0.1), "rows have prices of their own"
