"""The scheduler on a small real file: order, common passes, and failed passes that change no other text."""

import random
import time
from collections import Counter

import numpy as np
import pytest

from gguf_spec.errors import DecodeError
from gguf_spec.llama.context import Context
from gguf_spec.llama.native import SequenceTokens
from gguf_spec.llama.options import ContextOptions
from gguf_spec.speculative.cost_model import ALONE, BatchCosts
from gguf_spec.speculative.scheduler import Scheduler, Side, SlotPair
from tests.support.fakes import Clock

N_SLOTS, N_CTX = 4, 256
PROMPT = [7 + i % 200 for i in range(150)]


@pytest.fixture(scope="module")
def models(gguf_dir):
    made = [
        Context(
            gguf_dir / "llama.gguf", ContextOptions(n_ctx=N_CTX, threads=1, parallel=n)
        ).sequences[0]
        for n in (N_SLOTS, 1)
    ]
    yield made
    for model in made:
        model.close()


class Costs:
    """Base costs that make wide passes cheap or expensive."""

    def __init__(self, a_token=1e-6):
        self.a_token = a_token

    def seconds(self, n, n_past):
        return 0.01 + self.a_token * n


class Known(BatchCosts):
    """Costs of common passes that stay as they are, whatever a pass takes on a busy machine."""

    def learn(self, *_):
        pass

    learn_reading = learn


class Fixed(Side):
    """Moves never pay."""

    def move_s(self):
        return 1.0


def scheduler_of(model, widest=65, costs=None, known=False, clock=time, moves=True):
    """A scheduler; with `known` costs it learns nothing from its passes."""
    context = model.context
    context.widest = widest
    pairs = [SlotPair(slot, None) for slot in context.sequences]
    side = (Side if moves else Fixed)(context, costs or Costs(), clock.perf_counter)
    if known:
        side.costs = Known(widest, len(pairs))
    scheduler = Scheduler(pairs, side, None, max_gap=0.25)
    scheduler.forget()
    return scheduler


class Task:
    """A task that reads a prompt and decodes so many tokens, greedily, some at a time."""

    def __init__(self, scheduler, place, prompt, n, at_once=1, events=None):
        self.slot, self.prompt, self.n, self.at_once = (
            scheduler.pairs[place].target,
            prompt,
            n,
            at_once,
        )
        self.events = [] if events is None else events
        self.rows, self.error, self.place = [], None, place
        self.task = scheduler.start(scheduler.pairs[place], self.run)

    def run(self):
        try:
            self.slot.read(self.prompt[:-1])
            self.events.append(("read", self.place))
            tokens = self.prompt[-1:]
            for _ in range(self.n):
                rows = self.slot.logits(tokens, len(tokens))
                self.rows.append(np.array(rows))
                self.events.append(("row", self.place))
                tokens = [int(np.argmax(rows[-1])) % 200, *range(5, 4 + self.at_once)]
        except DecodeError as error:
            self.error = error

    def rows_alone(self, model):
        """The rows of the same tokens from the model without slots."""
        model.rollback(0)
        model.read(self.prompt[:-1])
        tokens, found = self.prompt[-1:], []
        for _ in range(self.n):
            found.append(model.logits(tokens, len(tokens)).copy())
            tokens = [int(np.argmax(found[-1][-1])) % 200, *range(5, 4 + self.at_once)]
        return found

    def is_right(self, model):
        right = self.rows_alone(model)
        return len(right) == len(self.rows) and all(map(np.array_equal, right, self.rows))


def run(scheduler):
    while scheduler.step():
        pass
    assert not scheduler.tasks
    assert scheduler.free == scheduler.pairs


@pytest.fixture
def passes(monkeypatch):
    """Parts of each pass with rows that llama.cpp decodes, and those that fail: code by number of the pass."""
    seen, failing, decode = [], {}, Context.decode_sequences

    def decode_some(self, parts, *more):
        if len(self.sequences) > 1 and any(part.n_rows for part in parts):
            seen.append(Counter({part.sequence: len(part.tokens) for part in parts}))
            if len(seen) in failing:
                decode(self, parts, *more)
                return failing[len(seen)]
        return decode(self, parts, *more)

    monkeypatch.setattr(Context, "decode_sequences", decode_some)
    return seen, failing


def test_passes_are_joined(models, passes):
    scheduler, before = scheduler_of(models[0]), models[0].context.counts.n_rows
    tasks = [Task(scheduler, i, [1 + i, 2, 3], 10) for i in range(4)]
    run(scheduler)
    assert all(task.is_right(models[1]) for task in tasks)
    assert sum(len(one) == 4 for one in passes[0]) == 10, "the prompts are read before"
    assert len(passes[0]) == 10, "40 passes of one"
    assert models[0].context.counts.n_rows - before == 40


def test_a_prompt_is_read_in_pieces_between_the_passes_of_others(models, passes):
    """Of equal prompts the first is read to its end before the next begins; decoding tasks continue."""
    scheduler, events = scheduler_of(models[0], 65, Costs(4e-3), True, Clock()), []
    first = Task(scheduler, 3, [1, 2], 12, events=events)
    while not first.rows:
        scheduler.step()
    others = [Task(scheduler, i, PROMPT, 2, events=events) for i in (2, 0)]
    run(scheduler)
    assert all(task.is_right(models[1]) for task in (first, *others))
    read = [events.index(("read", i)) for i in (2, 0)]
    assert read == sorted(read)
    assert events[: read[0]].count(("row", 3)) >= 2, "three pieces, and a row between them"
    assert events[read[0] : read[1]].count(("row", 3)) >= 2


@pytest.mark.parametrize("a_token, piece", [(1.0, 16), (4e-3, 48), (1e-3, 149), (1e-6, 149)])
def test_pieces_have_the_tokens_that_can_be_read_in_a_gap(models, a_token, piece):
    """A quarter of a second without the pass of the others, in blocks of 16."""
    scheduler = scheduler_of(models[0], 65, Costs(a_token), True, Clock())
    first = Task(scheduler, 3, [1, 2], 12)
    while not first.rows:
        scheduler.step()
    other = Task(scheduler, 0, PROMPT, 2)
    while not other.slot.n_past:
        scheduler.step()
    assert other.slot.n_past == piece
    run(scheduler)


def test_prompts_of_a_single_request_are_read_in_large_passes(models):
    scheduler, slot = scheduler_of(models[0]), None
    task = Task(scheduler, 1, PROMPT, 3)
    scheduler.step()
    slot = task.slot
    assert (slot.most_read, slot.reads_at_once) == (0, models[0].reads_at_once)
    assert scheduler.pairs[0].batches.target is ALONE
    run(scheduler)


@pytest.mark.parametrize("a_token", [1e-6, 1e-1])
def test_groups_of_unequal_width_keep_their_rows(models, passes, a_token):
    """Common passes where rows are cheap, separate ones where they are expensive; each task gets its own rows."""
    scheduler = scheduler_of(models[0], costs=Costs(a_token), known=True)
    tasks = [Task(scheduler, i, [1 + i, 9], 6, at_once) for i, at_once in enumerate((1, 4, 1, 3))]
    run(scheduler)
    assert all(task.is_right(models[1]) for task in tasks)
    widths = {frozenset(one.values()) for one in passes[0]}
    assert all(len(one) == 1 for one in widths), "each pass is filled to one width"
    joined = any(len(one) == 4 and set(one.values()) == {4} for one in passes[0])
    assert joined == (a_token < 1e-3)


def test_no_pass_is_wider_than_the_widest(models, passes):
    scheduler = scheduler_of(models[0], widest=4)
    tasks = [Task(scheduler, i, [1 + i, 9], 6, at_once) for i, at_once in enumerate((1, 2, 1, 2))]
    run(scheduler)
    assert all(task.is_right(models[1]) for task in tasks)
    assert max(sum(one.values()) for one in passes[0]) == 4


@pytest.mark.parametrize("code", [1, -3])
@pytest.mark.parametrize("at", [2, 3, 5])
@pytest.mark.parametrize("places", [(0, 1, 2, 3), (0, 2, 3)])
def test_a_common_pass_that_fails_once_changes_no_text(models, passes, code, at, places):
    scheduler = scheduler_of(models[0])
    passes[1][at] = code
    tasks = [
        Task(scheduler, i, [1 + i, *PROMPT[:20]], 8, at_once)
        for i, at_once in zip(places, (1, 3, 1, 1), strict=False)
    ]
    run(scheduler)
    assert len(passes[0]) >= at
    assert not any(task.error for task in tasks)
    assert all(task.is_right(models[1]) for task in tasks)


def test_a_failed_pass_does_not_affect_a_task_between_passes(models, passes):
    """Slot 1 is in the middle of its prompt when the pass of the others, filled across it, fails."""
    # Pieces of 48 tokens.
    scheduler = scheduler_of(models[0], 65, Costs(4e-3), True, Clock(), moves=False)
    tasks = [Task(scheduler, i, [1 + i, 9], 9) for i in (0, 2, 3)]
    while not tasks[2].rows:
        scheduler.step()
    reading = Task(scheduler, 1, PROMPT, 3)
    while not reading.slot.n_past:
        scheduler.step()
    n_passes, n_read = len(passes[0]), reading.slot.n_past
    assert n_read < len(PROMPT) - 1
    passes[1][n_passes + 1] = -3
    while len(passes[0]) == n_passes:
        scheduler.step()
    assert reading.slot.n_past == n_read
    assert len(passes[0][-4]) == 4, "the gap was filled, and then each ran alone"
    run(scheduler)
    assert all(task.is_right(models[1]) for task in (*tasks, reading))


def test_an_error_of_one_task_ends_only_that_task(models, passes, monkeypatch):
    """Its passes fail in a batch and by themselves."""
    decode = Context.decode_sequences
    monkeypatch.setattr(
        Context,
        "decode_sequences",
        lambda self, parts, *more: (
            -1
            if any(p.sequence == 2 and p.tokens[0] == 77 for p in parts)
            else decode(self, parts, *more)
        ),
    )
    scheduler = scheduler_of(models[0])
    tasks = [Task(scheduler, i, [3, 2, 77 if i == 2 else 1], 6) for i in range(4)]
    run(scheduler)
    assert [type(task.error) for task in tasks] == [type(None)] * 2 + [DecodeError, type(None)]
    assert tasks[2].error.code == -1
    assert all(task.is_right(models[1]) for task in tasks if task is not tasks[2])
    assert tasks[2].slot.cached == []
    scheduler.pairs[2].target.rollback(0)
    again = Task(scheduler, 2, [3, 2, 1], 6)
    run(scheduler)
    assert again.is_right(models[1])


def test_a_full_context_is_an_error_of_one_task(models):
    scheduler = scheduler_of(models[0])
    long = [5 + i % 99 for i in range(N_CTX - 2)]
    tasks = [Task(scheduler, 0, long, 9), Task(scheduler, 1, [1, 2], 9)]
    run(scheduler)
    assert isinstance(tasks[0].error, DecodeError)
    assert len(tasks[0].rows) == 3
    assert tasks[1].is_right(models[1])


def test_a_parked_task_is_not_in_common_passes(models):
    """The draft controllers of the others would share costs with it, and read for it in small pieces."""
    scheduler = scheduler_of(models[0])
    parked = scheduler.start(scheduler.pairs[0], scheduler.park)
    one = Task(scheduler, 1, [1, 2], 1000)
    scheduler.step()
    mine = scheduler.pairs[1]
    assert (mine.batches.target.is_alone, mine.target.most_read) == (True, 0)
    learned = []
    mine.batches.target.learn(learned.append, 1.0)
    assert learned == [1.0]
    other = Task(scheduler, 2, [1, 2], 1000)
    scheduler.step()
    assert (mine.batches.target.is_alone, mine.batches.target.n) == (False, 2)
    mine.batches.target.learn(pytest.fail, "the time of a common pass is not that of one sequence")
    parked.is_parked = False
    scheduler.forget()
    assert not (one.error or other.error)


def test_a_parked_task_does_not_block_others(models):
    scheduler = scheduler_of(models[0])
    other = Task(scheduler, 1, [1, 2], 5)
    events = []

    def body():
        events.append("begun")
        scheduler.park()
        events.append("resumed")

    task = scheduler.start(scheduler.pairs[0], body)
    run_until_idle = [scheduler.step() for _ in range(12)]
    assert run_until_idle[-1] is False
    assert events == ["begun"]
    assert other.is_right(models[1])
    task.is_parked = False
    scheduler.step()
    assert events == ["begun", "resumed"]
    assert scheduler.free == scheduler.pairs


@pytest.fixture
def clock(monkeypatch):
    """The scheduler's clock: a pass takes 10 ms, and nothing else takes time."""
    clock, decode = Clock(), Context.decode_sequences

    def decode_sequences(context, parts, *more):
        clock.now += 0.01
        return decode(context, parts, *more)

    monkeypatch.setattr(Context, "decode_sequences", decode_sequences)
    return clock


class Work:
    """A task that computes between its passes, in pieces of 3 ms."""

    def __init__(self, clock, scheduler, place, n_pieces, n_rows):
        self.scheduler, self.slot, self.clock = scheduler, scheduler.pairs[place].target, clock
        self.n_pieces, self.n_rows, self.n_done, self.rows = n_pieces, n_rows, 0, []
        self.task = scheduler.start(scheduler.pairs[place], self.run)
        self.task.rests = True

    def run(self):
        for i in range(self.n_rows):
            row = self.slot.logits([50 + i], 1)
            for _ in range(self.n_pieces):
                self.clock.now += 0.003
                self.n_done += 1
                self.scheduler.yield_to_others()
            self.rows.append(np.array(row))


@pytest.mark.parametrize("n_working", [1, 3])
def test_tasks_that_compute_long_delay_the_others_by_a_share(models, clock, n_working):
    """Half of the time of the passes, and one piece; tasks read their own rows between passes of others."""
    scheduler = scheduler_of(models[0], clock=clock)
    neighbour = Task(scheduler, 0, [1, 9], 40)
    workers = [Work(clock, scheduler, i, 30, 2) for i in range(1, 1 + n_working)]
    while not neighbour.task.is_done:
        scheduler.step()
    n_done = [one.n_done for one in workers]
    assert 50 <= sum(n_done) <= 80, "3 ms each, of 400 ms of passes"
    assert max(n_done) - min(n_done) <= 1, "in turn"
    run(scheduler)
    assert neighbour.is_right(models[1])
    for one in workers:
        models[1].rollback(0)
        right = [models[1].logits([50 + i], 1).copy() for i in range(2)]
        assert all(map(np.array_equal, one.rows, right))
        assert one.n_done == 60


def test_a_single_task_that_computes_long_yields_regularly(models, clock):
    """New requests are admitted between two steps."""
    scheduler = scheduler_of(models[0], clock=clock)
    work, n_steps = Work(clock, scheduler, 0, 100, 1), 0
    while scheduler.step():
        n_steps += 1
    assert work.n_done == 100
    assert 300 / 23 - 2 <= n_steps <= 300 / 20 + 3


def test_first_slots_are_shared_with_the_model(models):
    """Tokens read without tasks are not read again, and the cache of a task stays with the model."""
    model = models[0]
    scheduler = scheduler_of(model)
    model.read([4, 5, 6])
    assert scheduler.pairs[0].target.cached == [4, 5, 6]
    rows = []
    slot = scheduler.pairs[0].target
    scheduler.start(scheduler.pairs[0], lambda: rows.append(np.array(slot.logits([7], 1))))
    run(scheduler)
    assert (model.cached, model.n_read) == ([4, 5, 6, 7], 3)
    models[1].rollback(0)
    models[1].read([4, 5, 6])
    assert np.array_equal(rows[0], models[1].logits([7], 1))


def test_rows_that_wait_are_held_before_another_pass(models):
    model = models[0]
    scheduler = scheduler_of(model)
    rows = []
    slot = scheduler.pairs[0].target
    task = scheduler.start(scheduler.pairs[0], lambda: rows.append(np.array(slot.logits([7], 1))))
    scheduler.step()
    assert not task.answer.flags.owndata
    wanted = np.array(task.answer)
    scheduler.hold_rows()
    scheduler.pairs[1].target.context.decode_sequences([SequenceTokens(1, 0, [9], 1)])
    run(scheduler)
    assert np.array_equal(rows[0], wanted)


@pytest.fixture
def rows_of_one_pass(monkeypatch):
    """Each pass overwrites the rows of the one before, as llama.cpp may do."""
    decode, last = Context.decode, []

    def decode_over(self, *args):
        for rows in last:
            rows.fill(np.nan)
        last[:] = decode(self, *args)
        return [*last]

    monkeypatch.setattr(Context, "decode", decode_over)


def test_a_piece_of_a_prompt_overwrites_no_rows(models, rows_of_one_pass):
    scheduler = scheduler_of(models[0], costs=Costs(a_token=1e-2))
    first = Task(scheduler, 1, [1, 2], 12)
    while not first.rows:
        scheduler.step()
    tasks = [first, Task(scheduler, 0, PROMPT, 2), Task(scheduler, 3, PROMPT[:99], 2, 3)]
    run(scheduler)
    assert all(task.is_right(models[1]) for task in tasks)


def test_a_draft_model_without_costs_is_left_to_other_code(models):
    """A profile without a draft model may be in use; checks then still use both models."""
    target, draft = models
    Scheduler([SlotPair(target, draft)], Side(target.context, Costs()), None)
    draft.rollback(0)
    assert draft.logits([1], 1).shape == (1, draft.n_vocab)


def test_random_tasks_start_and_end(models, rows_of_one_pass):
    rng, scheduler, done = random.Random(4), scheduler_of(models[0]), []
    for _ in range(40):
        free = [pair.target.index for pair in scheduler.free]
        if free and rng.random() < 0.7:
            place = rng.choice(free)
            scheduler.pairs[place].target.rollback(0)
            prompt = [rng.randrange(200) for _ in range(rng.randrange(2, 100))]
            done.append(Task(scheduler, place, prompt, rng.randrange(1, 8), rng.choice((1, 1, 3))))
        for _ in range(rng.randrange(1, 4)):
            scheduler.step()
    run(scheduler)
    assert len(done) > 12
    assert all(task.is_right(models[1]) for task in done)


@pytest.mark.parametrize("parked", [False, True])
def test_sequences_get_consecutive_ids_when_others_end(models, passes, parked):
    """Tasks in slots 0 and 3 go on when those between them end, with the same rows; a parked one stays."""
    scheduler = scheduler_of(models[0])
    lost, resumed = [], []
    scheduler.on_lost = lambda pair: lost.append([*pair.target.cached])
    between = [Task(scheduler, i, [1 + i, 9], 3) for i in (1, 2)]
    if parked:
        between[1] = None
        other = scheduler.start(
            scheduler.pairs[2], lambda: (scheduler.park(), resumed.append(True))
        )
    tasks = [Task(scheduler, i, [1 + i, 9, *PROMPT[:40]], 12) for i in (0, 3)]
    while not between[0].task.is_done:
        scheduler.step()
    for _ in range(4):
        scheduler.step()
    assert {task.slot.index for task in tasks} == {0, 1}
    assert [one[:2] for one in lost] == [[2, 9]], "told before the cache is overwritten"
    assert passes[0][-1].keys() >= {0, 1}
    if parked:
        other.is_parked = False
    run(scheduler)
    assert all(task.is_right(models[1]) for task in tasks)
    assert [pair.target.index for pair in scheduler.pairs] == [0, 1, 2, 3]
    assert [slot.index for slot in scheduler.target.context.sequences] == [0, 1, 2, 3]


def test_sequences_stay_where_moves_do_not_pay(models):
    scheduler = scheduler_of(models[0], moves=False)
    tasks = [Task(scheduler, i, [1 + i, 9], 9) for i in (0, 3)]
    run(scheduler)
    assert [task.slot.index for task in tasks] == [0, 3]
    assert all(task.is_right(models[1]) for task in tasks)
