"""Other programs on this machine's cores: nothing is measured beside them."""

import pytest

from gguf_spec.system import machine
from gguf_spec.system.machine import cores_are_shared, others_running

STAT = "cpu  1 2 3\nprocesses 77\nprocs_running {}\nprocs_blocked 0\n"


@pytest.fixture
def stat(tmp_path, monkeypatch):
    """Stands for the kernel statistics: one number of tasks for each reading, then the last one."""
    file, numbers = tmp_path / "stat", []
    monkeypatch.setattr(machine, "_STAT", file)
    monkeypatch.setattr(
        machine, "others_running", others_running
    )  # which `own_cache` replaces for all tests
    monkeypatch.setattr(
        machine, "time", type("Clock", (), {"sleep": staticmethod(lambda _: write())})
    )
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 4)

    def write():
        file.write_text(STAT.format(numbers.pop(0) if len(numbers) > 1 else numbers[0]))

    def said(*values):
        numbers[:] = values
        write()

    return said


def test_the_fewest_of_some_samples_count(stat):
    stat(4, 1, 3)
    assert others_running() == 0
    stat(3)
    assert others_running() == 2


def test_cores_are_shared_when_there_are_too_few(stat):
    stat(3)
    assert not cores_are_shared(2)
    assert cores_are_shared(3)
    stat(1)
    assert not cores_are_shared(4)
    assert not cores_are_shared(16), "more threads than cores are the user's own doing"


@pytest.mark.parametrize("text", ["", "procs_running many\n", "procs_running\n", None])
def test_without_figures_no_other_process_is_counted(tmp_path, monkeypatch, text):
    file = tmp_path / "stat"
    monkeypatch.setattr(machine, "_STAT", file)
    if text is not None:
        file.write_text(text)
    assert others_running() == 0
