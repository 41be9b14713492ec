"""The default number of parallel requests, by memory and by tables of costs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import Speculation
from gguf_spec.runtime import plan as plan_module
from gguf_spec.runtime.load_options import HeadChoice, LoadOptions
from gguf_spec.runtime.plan import _files, choose_parallel, parallel_by
from gguf_spec.speculative.profile import DEFAULT_PROFILE

FILES = dict.fromkeys(("entry", "file", "target", "of_draft"))


class File:
    header = None


def chosen(target=None, room=16, least=4, **profile):
    """The choice for a table of seconds by rows of a pass; None where nothing was measured."""
    found = target and replace(DEFAULT_PROFILE, target=target, **profile)
    return parallel_by(found, room, least)


# Pass times of a 1.7B Q4_0 model on AMX, in ms: several rows cost more than one, then nearly nothing.
AMX = {1: 40, 2: 78, 3: 82, 4: 87, 5: 91, 6: 97, 8: 110, 12: 168, 16: 192, 32: 324}
TABLES = {
    "amx": ({n: ms / 1000 for n, ms in AMX.items()}, 8),
    "blocks of eight": (
        {1: 0.039, 2: 0.041, 4: 0.051, 8: 0.0624, 16: 0.121, 32: 0.242, 65: 0.49},
        8,
    ),
    "free rows": ({1: 0.04, 65: 0.04}, 16),
    "each row as dear as a pass": ({1: 0.04, 65: 65 * 0.04}, 4),
    "up to a block of four": ({1: 0.04, 4: 0.08, 8: 0.16, 16: 0.32, 65: 1.3}, 4),
    "a dear second row": ({1: 0.04, 2: 0.10, 4: 0.10, 8: 0.2, 16: 0.4, 65: 1.6}, 4),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name):
    table, n = TABLES[name]
    n_slots, reason = chosen(table)
    assert n_slots == n
    assert reason.startswith("as measured, ")


@pytest.mark.parametrize("guessed", [(1, 2, 4, 8, 65), (4, 65), (8, 16, 65)])
def test_guessed_costs_decide_nothing(guessed):
    """Until answers have shown those of a few rows."""
    table = dict.fromkeys((1, 2, 4, 8, 16, 65), 0.04)
    n_slots, reason = chosen(table, guessed=guessed)
    if 4 in guessed:
        assert (n_slots, reason) == (4, "the usual number: no costs were measured yet")
    else:
        assert n_slots == 16


def test_the_depth_counts():
    """Where attention is most of the time, rows of several sequences gain little."""
    flat = {1: 0.04, 65: 0.04}
    deep = {n: n * 0.001 for n in (1, 8, 16, 65)}
    assert chosen(flat, target_depth=deep, least=1)[0] == 1


@pytest.mark.parametrize(("room", "least", "n"), [(16, 4, 4), (16, 2, 2), (3, 4, 3), (16, 1, 1)])
def test_a_few_run_at_once_where_they_gain_nothing(room, least, n):
    """A short request need not wait until a long one ends."""
    table = {1: 0.04, 65: 65 * 0.04}
    n_slots, reason = chosen(table, room=room, least=least)
    assert n_slots == n
    assert ("no request waits for another one" in reason) == (n > 1)
    assert reason.startswith("as measured, one is nearly as fast as several")


@pytest.mark.parametrize(
    ("kind", "head", "ctx", "n"),
    [
        ("plain", "", {2: 16384, 4: 16384}, 4),
        ("plain", "", {2: 16384, 4: 4096}, 2),
        ("plain", "own", {1: 16384}, 1),
        ("snapshots", "", {2: 16384}, 2),
        ("recurrent", "", {1: 16384}, 1),
    ],
)
def test_what_one_request_alone_has_is_kept(monkeypatch, kind, head, ctx, n):
    """A long context, a prediction head, long drafts of recurrent layers."""
    given = []

    def choose(load, files, least):
        given.append(least)
        return least, f"least {least}"

    monkeypatch.setattr(plan_module, "choose_parallel", choose)
    monkeypatch.setattr(plan_module, "state_bytes", lambda _: kind != "plain")
    monkeypatch.setattr(plan_module, "ctx_in_room", lambda models: ctx[models[0][1].parallel])
    monkeypatch.setattr(plan_module, "with_snapshots", lambda models, k: models)
    file = SimpleNamespace(header=SimpleNamespace(facts=SimpleNamespace(has_snapshots=kind == "snapshots")))  # fmt: skip
    load = LoadOptions(**FILES | {"file": file, "target": ContextOptions()}, parallel="auto")
    files, reason = _files(load, HeadChoice(head), None)
    assert files[0][1].parallel == n
    assert files[0][1].n_ctx == ctx[n]
    assert reason == f"least {n}"


def test_passes_are_not_wider_than_the_exact_ones():
    """Beyond that width further sequences need passes of their own."""
    assert chosen({1: 0.04, 65: 0.04}, exact_width=3, least=1)[0] == 3


@pytest.mark.parametrize(("room", "n"), [(3, 3), (1, 1), (16, 16)])
def test_memory_is_the_limit(room, n):
    n_slots, reason = chosen({1: 0.04, 65: 0.04}, room=room)
    assert n_slots == n
    assert ("a quarter of the free memory" in reason) == (room < 16)


@pytest.mark.parametrize(("room", "n"), [(3, 3), (16, 4)])
def test_nothing_measured(room, n):
    n_slots, reason = chosen(None, room=room)
    assert n_slots == n
    assert reason.startswith("the caches" if room == 3 else "the usual number: no costs")


@pytest.mark.parametrize("steady", [True, False])
def test_disturbed_costs_decide_nothing(steady):
    """Rows that seem to be free, as another program ran while single tokens were measured."""
    table = {1: 0.04, 8: 0.01 if steady else 0.04, 65: 0.04}
    choice = chosen(table, steady=steady)
    assert choice == (4, "the usual number: other programs disturbed the measurement")


def test_one_for_what_needs_passes_of_its_own():
    load = LoadOptions(**FILES, parallel="auto", speculation=Speculation(strict=True))
    assert choose_parallel(load, []) == (1, "strict needs passes without other requests")
    assert chosen(room=None) == (1, "the free memory is unknown")


def test_images_are_read_one_request_at_a_time():
    for parallel in ("auto", 2):
        load = LoadOptions(**FILES, parallel=parallel, projector=object())
        assert choose_parallel(load, []) == (1, "prompts with images are read one by one")
