"""Moves of sequences, against brute force."""

from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from gguf_spec.speculative.scheduler import moves, pays, runs

N = 10
ids = st.sets(st.integers(0, N - 1), max_size=N)


@given(ids, ids)
def test_the_moves_are_the_fewest_that_make_active_ids_consecutive(active, free):
    free -= active
    found = moves(sorted(active), free)
    windows = [
        set(window)
        for low in range(N)
        if (window := range(low, low + len(active))) and active | free >= set(window)
    ]
    if not windows:
        assert found == []
        return
    moved = {to for _, to in found}
    left = {at for at, _ in found}
    assert len(moved) == len(left) == len(found)
    assert left <= active
    assert moved <= free
    assert (active - left) | moved in windows
    assert len(found) == min(len(active - window) for window in windows)


@given(ids)
def test_runs_are_those_of_consecutive_ids(active):
    by_run = groupby(enumerate(sorted(active)), key=lambda one: one[1] - one[0])
    assert runs(list(active)) == [len(list(some)) for _, some in by_run]


def test_sixteen_passes_must_save_the_time_of_the_moves():
    assert pays(0.10, 0.09, 1, 0.15)
    assert not pays(0.10, 0.09, 2, 0.15)
    assert not pays(0.09, 0.10, 1, 0.0)
