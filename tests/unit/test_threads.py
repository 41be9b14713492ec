"""The thread governor in simulated time: its loss against the best thread count beside other programs."""

import random
import sys

import pytest

from gguf_spec.llama.threads import PassKind, ThreadGovernor

KIND = PassKind(0, 1, 1, 8)


class Machine:
    """Cores, other programs on them, and passes whose seconds follow from both."""

    def __init__(self, cores, spin_s=0.010, seed=0):
        self.cores, self.busy, self.spin_s = cores, 0, spin_s
        self._random = random.Random(seed)

    def seconds(self, threads, work_s=0.010):
        """Seconds of a pass: each thread that shares its core may delay all others."""
        share = 1 + max(0, threads + self.busy - self.cores) / self.cores
        late = self.busy and threads + self.busy > self.cores
        wait = (
            self._random.choice((0.0, 0.5, 1.0, 3.0)) * self.spin_s if late and threads > 1 else 0.0
        )
        return (work_s / threads**0.8 * share + wait) * self._random.uniform(0.97, 1.08)

    def mean_s(self, threads, work_s=0.010):
        """The mean of that over many passes."""
        return sum(self.seconds(threads, work_s) for _ in range(400)) / 400

    def best_s(self, work_s=0.010):
        return min(self.mean_s(threads, work_s) for threads in range(1, self.cores + 1))


def run(governor, machine, n, kind=KIND, work_s=0.010):
    """Let passes follow each other; return their seconds and thread counts."""
    took, used = [], []
    for _ in range(n):
        threads = governor.choose(kind)
        seconds = machine.seconds(threads, work_s)
        governor.observe(kind, threads, seconds)
        took.append(seconds)
        used.append(threads)
    return took, used


def share_of_best(machine, took, work_s=0.010):
    return machine.best_s(work_s) * len(took) / sum(took)


SEEDS = range(5)


@pytest.mark.few(8)
@pytest.mark.parametrize("cores", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("seed", SEEDS)
def test_an_idle_machine_keeps_all_threads(cores, seed):
    machine, governor = Machine(cores, seed=seed), ThreadGovernor(cores)
    took, used = run(governor, machine, 3000)
    assert governor.threads == cores
    assert machine.mean_s(cores) * len(took) / sum(took) > 0.99
    assert sum(one != cores for one in used) < 0.05 * len(used)


@pytest.mark.few(4)
@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_two_cores_with_busy_programs(busy, seed):
    machine, governor = Machine(2, seed=seed), ThreadGovernor(2)
    run(governor, machine, 200)
    machine.busy = busy
    took, _ = run(governor, machine, 80)
    assert governor.threads == 1, "soon"
    took, _ = run(governor, machine, 3000)
    assert share_of_best(machine, took) > 0.93
    machine.busy = 0
    run(governor, machine, 400)
    assert governor.threads == 2, "and back"
    took, _ = run(governor, machine, 1000)
    assert share_of_best(machine, took) > 0.98


@pytest.mark.few(4)
@pytest.mark.parametrize("busy", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_busy_from_the_first_pass_on(busy, seed):
    machine, governor = Machine(2, seed=seed), ThreadGovernor(2)
    machine.busy = busy
    took, _ = run(governor, machine, 3000)
    assert share_of_best(machine, took) > 0.9


@pytest.mark.few(8)
@pytest.mark.parametrize("busy", range(1, 9))
@pytest.mark.parametrize("seed", SEEDS)
def test_eight_cores(busy, seed):
    machine, governor = Machine(8, spin_s=0.002, seed=seed), ThreadGovernor(8)
    run(governor, machine, 200)
    machine.busy = busy
    run(governor, machine, 600)
    took, _ = run(governor, machine, 3000)
    assert share_of_best(machine, took) > 0.85
    machine.busy = 0
    run(governor, machine, 600)
    assert governor.threads == 8


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_bursts(seed):
    """Other programs start and stop: never much worse than the better of one thread and all threads."""
    machine, governor = Machine(2, seed=seed), ThreadGovernor(2)
    took, fixed = 0.0, {1: 0.0, 2: 0.0}
    for i in range(60):
        machine.busy = i % 2
        n = 150 if i % 2 else 300
        took += sum(run(governor, machine, n)[0])
        for threads, sofar in fixed.items():
            fixed[threads] = sofar + n * machine.mean_s(threads)
    assert min(fixed.values()) / took > 0.95


def test_one_slow_pass_changes_nothing():
    machine, governor = Machine(2), ThreadGovernor(2)
    for at in (0, 1, 50, 100):
        run(governor, machine, at)
        governor.observe(KIND, governor.choose(KIND), 1.0)
        _, used = run(governor, machine, 30)
        assert governor.threads == 2
        assert used.count(1) <= 3


def test_a_machine_that_slows_down_uniformly_keeps_its_threads():
    """As a hot processor: fewer threads are not faster, and trials must cost little."""
    machine, governor = Machine(2), ThreadGovernor(2)
    run(governor, machine, 200)
    took, _ = run(governor, machine, 2000, work_s=0.020)
    assert governor.threads == 2
    assert machine.mean_s(2, 0.020) * len(took) / sum(took) > 0.98


def test_trials_cost_little_even_where_spinning_is_very_slow():
    """libgomp's own spin count: a pass beside two programs can take 70 times as long."""
    machine, governor = Machine(2, spin_s=0.3), ThreadGovernor(2)
    run(governor, machine, 200)
    machine.busy = 2
    run(governor, machine, 100)
    took, _ = run(governor, machine, 20_000)
    assert share_of_best(machine, took) > 0.93


def test_passes_of_several_kinds():
    """A draft, a target and its wider passes: each is compared with its own kind."""
    machine, governor = Machine(2), ThreadGovernor(2)
    kinds = [
        (PassKind(owner, n, n, 8), work)
        for owner, n, work in (
            (1, 1, 0.001),
            (1, 1, 0.001),
            (1, 1, 0.001),
            (0, 4, 0.02),
            (0, 2, 0.015),
        )
    ]
    for busy, best in ((0, 2), (1, 1), (0, 2), (2, 1)):
        machine.busy = busy
        for _ in range(400):
            for kind, work_s in kinds:
                run(governor, machine, 1, kind, work_s)
        assert governor.threads == best


def test_no_trial_in_a_long_pass():
    """A wide pass of a prompt can take seconds, too long for a trial."""
    machine, governor = Machine(2), ThreadGovernor(2)
    machine.busy = 1
    long = PassKind(0, 512, 0, 8)
    run(governor, machine, 400)
    assert governor.threads == 1
    for _ in range(300):
        governor.observe(long, governor.choose(long), 4.0)
        assert governor.choose(long) == governor.threads
        run(governor, machine, 20)


def test_a_model_that_is_closed_is_forgotten():
    governor = ThreadGovernor(2)
    run(governor, Machine(2), 300)
    assert governor._best
    governor.forget(0)
    assert not governor._best
    run(governor, Machine(2), 300)


def test_a_pass_needs_few_calls():
    """The governor is asked before and after every pass, and most change nothing."""
    governor, n_calls = ThreadGovernor(8), 0

    def passes(n):
        for _ in range(n):
            governor.observe(KIND, governor.choose(KIND), 1e-3)

    def count(_frame, event, _argument):
        nonlocal n_calls
        n_calls += event in ("call", "c_call")

    passes(40)
    sys.setprofile(count)
    try:
        passes(40)
    finally:
        sys.setprofile(None)
    assert n_calls <= 30 * 40
