"""Checks of stored profiles and of the entries of a table."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.passes import Exactness
from gguf_spec.runtime.profile_files import Means, profile_of
from gguf_spec.speculative import profiler
from gguf_spec.speculative.prefix import read_on, retain_prefix
from gguf_spec.speculative.profile import DEFAULT_PROFILE
from gguf_spec.speculative.profiler import plausible
from tests.support.fakes import FakeModel, random_table

NOW = 1.8e9
TARGET = SimpleNamespace(
    context=SimpleNamespace(threads=2, sequences=[None]),
    depth_costs={},
    exactness=Exactness(),
    free_rollback=10**6,
)
GOOD = replace(DEFAULT_PROFILE, steady=True, measured_at=NOW - 100, seconds=1.0)
FRESH = replace(GOOD, seconds=2.0)


class Store:
    """The stored profile (`kept`), the result of a measurement (`found`), and the number of measurements (`n`)."""

    def __init__(self):
        self.kept, self.found, self.n, self.budgets = GOOD, FRESH, 0, []
        self.now, self.is_busy = NOW, lambda threads: False

    def measure(self, target, draft, budget_s=None):
        self.n += 1
        self.budgets.append(budget_s)
        return self.found

    def write(self, target, draft, profile):
        self.kept = profile

    def profile_of(self, *given):
        means = Means(
            lambda *_: self.kept, self.write, self.measure, self.is_busy, lambda: self.now
        )
        return profile_of(*given, means=means)


@pytest.fixture
def store():
    return Store()


def test_a_good_profile_is_not_measured_again(store):
    assert store.profile_of(TARGET, None) == GOOD
    assert store.n == 0


def test_known_depth_costs_replace_estimates(store):
    """Attention may be measured later than the pair: it is not beside another program."""
    draft = SimpleNamespace(depth_costs={1: 3e-6})
    target = SimpleNamespace(**vars(TARGET) | {"depth_costs": {1: 1e-5, 8: 5e-5}})
    estimate = replace(GOOD, target_depth={1: 1e-4}, draft_depth={1: 2e-4})
    store.kept = estimate
    assert store.profile_of(target, draft) == estimate, "a measurement stays"
    store.kept = replace(estimate, guesses_depth=(True, True))
    assert store.profile_of(TARGET, None) == store.kept, "nothing else is known"
    wanted = replace(GOOD, target_depth={1: 1e-5, 8: 5e-5}, draft_depth={1: 3e-6})
    assert store.profile_of(target, draft) == wanted == store.kept
    assert store.n == 0


@pytest.mark.parametrize(
    "change",
    [
        {"steady": False},
        {"measured_at": NOW - 31 * 24 * 3600},
    ],
)
def test_a_doubtful_and_an_old_one_is(store, change):
    store.kept, told = replace(GOOD, **change), []
    assert (
        store.profile_of(TARGET, None, lambda: told.append(1))
        == replace(FRESH, measured_at=NOW)
        == store.kept
    )
    assert (store.n, told) == (1, [1])


def test_the_clock_of_a_box_without_a_battery(store):
    """It starts in 1970 at each boot; a profile of the right time stays, and is no reason to measure."""
    store.kept = replace(GOOD, measured_at=NOW + 50 * 365 * 24 * 3600)
    assert store.profile_of(TARGET, None) == store.kept
    assert store.n == 0


def test_a_busy_moment_does_not_replace_what_an_idle_one_gave(store):
    store.kept, store.found = replace(GOOD, measured_at=0.0), replace(FRESH, steady=False)
    assert store.profile_of(TARGET, None) == replace(GOOD, measured_at=NOW)


@pytest.mark.parametrize("better", [0, 1])
def test_the_better_one_of_two_disturbed_measurements_is_used_for_a_day(store, better):
    """A busy machine would measure again at each start, for seconds."""
    hour = 3600
    slow, fast = ({n: s * GOOD.target[n] for n in GOOD.target} for s in (1.5, 1.2))
    first, second = (replace(FRESH, steady=False, target=one) for one in (slow, fast))
    first, second = (second, first) if better == 0 else (first, second)
    store.kept, store.found = None, first
    assert store.profile_of(TARGET, None) == replace(first, measured_at=NOW)
    store.now, store.found = NOW + hour, second
    best = replace((first, second)[better], measured_at=store.now, final=True)
    for later in (1, 2, 12, 24):  # hours; the last measurement was after one
        store.now = NOW + later * hour
        assert store.profile_of(TARGET, None) == best == store.kept
        assert store.n == 2
    store.now = NOW + 26 * hour
    assert store.profile_of(TARGET, None).measured_at == store.now
    assert store.n == 3, "once a day"
    store.profile_of(TARGET, None)
    assert store.n == 3
    store.now, store.found = NOW + 52 * hour, FRESH
    assert store.profile_of(TARGET, None) == replace(FRESH, measured_at=store.now)
    assert not store.kept.final, "an undisturbed measurement takes its place"


def test_what_the_user_measured_beside_other_programs_stays_for_a_day(store):
    store.kept = tuned = replace(GOOD, steady=False, final=True)
    assert store.profile_of(TARGET, None) == tuned
    assert store.n == 0


def test_beside_another_program_few_passes_are_made_and_measured_again_later(store):
    store.kept = None
    store.is_busy = lambda threads: threads == TARGET.context.threads
    assert not store.profile_of(TARGET, None).steady
    store.is_busy = lambda threads: False
    assert store.profile_of(TARGET, None).steady
    assert store.profile_of(TARGET, None).steady
    assert store.n == 2
    assert store.budgets[0] < 1
    assert store.budgets[1] is None


@pytest.mark.parametrize(
    ("kept", "is_used"),
    [
        (None, False),
        (replace(GOOD, steady=False), False),
        (GOOD, True),
        (replace(GOOD, steady=False, final=True), True),
    ],
)
def test_several_requests_begin_with_guessed_costs_beside_another_program(store, kept, is_used):
    """A service starts with its machine, which is busy then; its costs would stay as they are."""

    class Shared(FakeModel):
        exactness = Exactness(attention=True, promised=True)
        context = SimpleNamespace(threads=2, sequences=[None, None])

    target = Shared(random_table(np.random.default_rng(1), 4))
    store.is_busy = lambda threads: True
    store.kept = kept
    found = store.profile_of(target, None)
    assert store.n == 0
    assert (found == kept) is is_used
    assert bool(found.guessed) is not is_used
    store.is_busy = lambda threads: False
    store.kept = None
    assert store.profile_of(target, None) == replace(FRESH, measured_at=NOW)
    assert store.n == 1, "several requests at once follow measured costs"


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ({1: 40.0, 2: 78.0, 4: 87.0, 8: 110.0}, {1, 2, 4, 8}),  # AMX
        ({1: 98.0, 2: 122.0, 3: 148.0, 4: 95.0, 8: 181.0}, {1, 2, 3, 4, 8}),  # AVX-512
        ({1: 0.65, 2: 101.0, 5: 1.28, 16: 2.0}, {1, 5, 16}),
        ({1: 40.0, 2: 78.0, 4: 870.0, 8: 110.0}, {1, 2, 8}),
        ({}, set()),
    ],
)
def test_entries_that_only_another_program_explains_are_left_out(table, wanted):
    assert set(plausible(table)) == wanted


@pytest.mark.parametrize(
    ("table", "steady", "is_disturbed"),
    [
        ({1: 98.0, 2: 122.0, 3: 148.0, 4: 95.0, 8: 181.0}, True, False),  # AVX-512
        ({1: 40.0, 2: 78.0, 4: 87.0, 8: 110.0}, False, True),
        ({1: 40.0, 2: 31.0, 4: 87.0}, True, True),
        ({1: 40.0, 2: 78.0, 4: 150.0, 8: 80.0}, True, True),
    ],
)
@pytest.mark.parametrize("of", ["target", "draft"])
def test_costs_that_other_programs_disturbed(table, steady, is_disturbed, of):
    profile = replace(GOOD, steady=steady, **{of: table})
    assert bool(profile.disturbed) is is_disturbed


def test_wider_passes_bound_a_delayed_single_token_pass():
    assert plausible({1: 476.0, 2: 1.0, 4: 1.5, 8: 2.0}) == {1: 1.0, 2: 1.0, 4: 1.5, 8: 2.0}


@pytest.mark.parametrize("grid", [0, 64])
def test_a_prompt_is_read_on_the_grid_after_any_other_text(grid):
    """Each token is read in the pass of a new prefill."""
    model = FakeModel(random_table(np.random.default_rng(1), 4), n_ctx=4000)
    model.exactness, model.reads_at_once = Exactness(attention=True, grid=grid), 256
    first, second = [i % 3 for i in range(700)], [i % 3 for i in range(690)] + [3] * 100

    def read(tokens):
        model.read_tokens.clear()
        retain_prefix(model, tokens)
        read_on(model, tokens, lambda: False)
        return [len(one) for one in model.read_tokens]

    assert read(first) == ([256, 256, 128, 60] if grid else [256, 256, 188])
    model.logits([1, 1, 1], 3)  # decoded, not read
    assert read(first) == [], "nothing but what was decoded is forgotten"
    model.logits([1, 1, 1], 3)
    assert read(second) == ([128, 22] if grid else [100])
    model.rollback(0)
    assert read(second) == [256, 256, 256, 22]
    model.logits([2, 2], 2)
    longer = [*second, 2, 2, 0, 1]
    assert read(longer) == ([26] if grid else [2]), "the answer is read again"


def test_the_first_pass_of_a_width_is_not_timed_on_a_gpu():
    """The driver compiles kernels for it: 0.6 s a width were measured on lavapipe, against 0.1 s later."""
    now, compiled = [0.0], set()

    class Gpu(FakeModel):
        slow_first_pass = True

        def logits(self, tokens, n_rows):
            now[0] += 0.01 if len(tokens) in compiled else 0.6
            compiled.add(len(tokens))
            return super().logits(tokens, n_rows)

    profile = profiler.measure(
        Gpu(random_table(np.random.default_rng(0), 4)), None, clock=lambda: now[0]
    )
    assert profile.target[1] == pytest.approx(0.01)
    assert max(profile.target.values()) == pytest.approx(0.01)


def test_first_passes_of_many_widths_end_after_a_while():
    """On a device that compiles kernels for 30 s a width; a thorough measurement waits for all."""
    now, compiled = [0.0], set()

    class SlowGpu(FakeModel):
        slow_first_pass = True

        def logits(self, tokens, n_rows):
            now[0] += 0.01 if len(tokens) in compiled else 30.0
            compiled.add(len(tokens))
            return super().logits(tokens, n_rows)

    gpu = SlowGpu(random_table(np.random.default_rng(0), 4), n_ctx=128)
    profile = profiler.measure(gpu, None, clock=lambda: now[0])
    widths = {1, *profiler.WIDTHS[: profiler.WARMED]}
    assert {width for width in compiled if width > 1} == widths - {1}
    assert {*profile.target} == widths
    assert {*profile.noise} <= widths
    assert max(profile.target.values()) == pytest.approx(0.01)
    assert {*profiler.measure(gpu, None, thorough=True).target} == {1, *profiler.WIDTHS}
