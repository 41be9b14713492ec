"""Other programs on this machine's cores: nothing is measured beside them."""

import pytest

from gguf_spec.system import machine
from gguf_spec.system.machine import cores_are_shared, others_running

STAT = "cpu  1 2 3\nprocesses 77\nprocs_running {}\nprocs_blocked 0\n"


@pytest.fixture
def running(tmp_path):
    """Other tasks where the kernel counts these: one number for each reading, then the last one."""
    file, numbers = tmp_path / "stat", []

    def write():
        file.write_text(STAT.format(numbers.pop(0) if len(numbers) > 1 else numbers[0]))

    def others(*values):
        numbers[:] = values
        write()
        return others_running(file, lambda _: write())

    return others


def test_the_fewest_of_some_samples_count(running):
    assert running(4, 1, 3) == 0
    assert running(3) == 2


def test_cores_are_shared_when_there_are_too_few(monkeypatch):
    assert not cores_are_shared(2, 2, 4)
    assert cores_are_shared(3, 2, 4)
    assert not cores_are_shared(4, 0, 4)
    assert not cores_are_shared(16, 0, 4), "more threads than cores are the user's own doing"
    assert cores_are_shared(1, n_others=10_000)
    monkeypatch.setattr(machine, "others_running", lambda: 2)
    assert cores_are_shared(1, n_cores=2)
    assert not cores_are_shared(1, n_cores=3)


@pytest.mark.parametrize("text", ["", "procs_running many\n", "procs_running\n", None])
def test_without_figures_no_other_process_is_counted(tmp_path, text):
    file = tmp_path / "stat"
    if text is not None:
        file.write_text(text)
    assert others_running(file) == 0
