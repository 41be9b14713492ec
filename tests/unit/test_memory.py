import mmap
from pathlib import Path

import pytest

from gguf_spec.system import hardware

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    def make(physical, files):
        monkeypatch.setattr(hardware, "_physical", lambda: physical)
        monkeypatch.setattr(
            hardware.Path,
            "read_text",
            lambda self, encoding: files[self.name] if self.name in files else _missing(),
        )

    return make


def _missing():
    raise FileNotFoundError


def test_this_machine_has_memory():
    assert 0 < hardware.available_bytes() <= hardware.total_bytes()


def test_a_machine_without_limits(machine):
    machine(
        16 * GIB,
        {
            "meminfo": "MemTotal: 1 kB\nMemAvailable:    4194304 kB\n",
            "memory.max": "max\n",
            "memory.current": "5\n",
        },
    )
    assert (hardware.total_bytes(), hardware.available_bytes()) == (16 * GIB, 4 * GIB)


def test_a_container_with_a_limit(machine):
    machine(
        16 * GIB,
        {
            "meminfo": "MemAvailable: 8388608 kB\n",
            "memory.max": f"{2 * GIB}\n",
            "memory.current": f"{GIB}\n",
        },
    )
    assert (hardware.total_bytes(), hardware.available_bytes()) == (2 * GIB, GIB)


def test_a_container_that_holds_pages_of_files(machine):
    stat = f"anon {GIB // 2}\nfile {GIB}\ninactive_file {GIB // 4}\nactive_file {GIB // 4}\nfile_dirty 0\n"
    files = {
        "meminfo": "MemAvailable: 8388608 kB\n",
        "memory.max": f"{2 * GIB}\n",
        "memory.current": f"{3 * GIB // 2}\n",
        "memory.stat": stat,
    }
    machine(16 * GIB, files)
    assert hardware.available_bytes() == GIB, "the kernel drops them for who needs the room"


def test_a_container_over_its_limit(machine):
    machine(
        16 * GIB,
        {
            "meminfo": "MemAvailable: 8388608 kB\n",
            "memory.max": f"{GIB}\n",
            "memory.current": f"{2 * GIB}\n",
        },
    )
    assert hardware.available_bytes() == 0


def test_another_system(machine):
    machine(16 * GIB, {})
    assert (hardware.total_bytes(), hardware.available_bytes(), hardware.resident_bytes()) == (
        16 * GIB,
        16 * GIB,
        0,
    )
    machine(None, {})
    assert (hardware.total_bytes(), hardware.available_bytes()) == (None, None)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux tells it there")
def test_what_this_process_holds():
    def said():
        return (
            int(
                next(
                    line
                    for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("VmRSS:")
                ).split()[1]
            )
            * 1024
        )

    before = hardware.resident_bytes()
    assert abs(before - said()) < 16 << 20  # the kernel counts in batches
    with mmap.mmap(-1, 64 << 20) as block:  # the heap may have room left from before
        block[:] = b"\1" * len(block)
        assert 60 << 20 < hardware.resident_bytes() - before < 150 << 20
