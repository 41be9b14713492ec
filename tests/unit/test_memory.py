import mmap
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from gguf_spec.llama import options
from gguf_spec.llama.options import physical_cores
from gguf_spec.system import machine as hardware
from gguf_spec.system.limits import Places, ProcessorLimit, memory_limits

GIB = 1 << 30
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="compared with what Linux tells")


@pytest.fixture
def memory_of(monkeypatch, tmp_path):
    """Total and available bytes of a machine with this memory, and these files of a control group."""

    def memory_of(total, available, files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        memory = SimpleNamespace(total=total, available=available)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory if total else _missing())
        found = memory_limits(Places(tmp_path, tmp_path))
        return hardware.total_bytes(found), hardware.available_bytes(found)

    return memory_of


def _missing():
    raise FileNotFoundError


# ---- psutil against what it replaced


@ON_LINUX
def test_the_total_is_that_of_earlier_versions():
    assert psutil.virtual_memory().total == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@ON_LINUX
@pytest.mark.parametrize("available_kb", [1, 4194304, 16 << 20])
def test_what_is_available_is_that_of_earlier_versions(monkeypatch, tmp_path, available_kb):
    names = "MemFree Buffers Cached Shmem Active Inactive Slab SReclaimable"
    lines = [f"MemTotal: {16 << 20} kB", f"MemAvailable:    {available_kb} kB"]
    lines += [f"{name}: 1024 kB" for name in names.split()]
    (tmp_path / "meminfo").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert hardware.available_bytes([]) == available_kb * 1024
    assert hardware.total_bytes([]) == 16 * GIB


@ON_LINUX
def test_what_is_resident_is_that_of_earlier_versions(monkeypatch, tmp_path):
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    for name in ("stat", "status"):
        (folder / name).write_text(Path("/proc/self", name).read_text())
    (folder / "statm").write_text("1000 777 300 10 0 500 0\n")
    (tmp_path / "stat").write_text(Path("/proc/stat").read_text())
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert hardware.resident_bytes() == 777 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("limit", "n"), [(None, 6), (ProcessorLimit(2.5, "cpu.max"), 2)])
def test_cores_on_another_system(monkeypatch, limit, n):
    monkeypatch.setattr(options, "processor_limit", lambda: limit)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(psutil, "cpu_count", lambda logical: None if logical else 6)
    assert physical_cores() == n


# ---- the machine and its container


def test_this_machine_has_memory():
    assert 0 < hardware.available_bytes() <= hardware.total_bytes()


def test_a_machine_without_limits(memory_of):
    files = {"memory.max": "max\n", "memory.current": "5\n"}
    assert memory_of(16 * GIB, 4 * GIB, files) == (16 * GIB, 4 * GIB)


def test_a_container_with_a_limit(memory_of):
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert memory_of(16 * GIB, 8 * GIB, files) == (2 * GIB, GIB)


def test_a_container_that_holds_pages_of_files(memory_of):
    stat = f"anon {GIB // 2}\nfile {GIB}\ninactive_file {GIB // 4}\nactive_file {GIB // 4}\nfile_dirty 0\n"
    files = {
        "memory.max": f"{2 * GIB}\n",
        "memory.current": f"{3 * GIB // 2}\n",
        "memory.stat": stat,
    }
    _, available = memory_of(16 * GIB, 8 * GIB, files)
    assert available == GIB, "the kernel drops them for who needs the room"


def test_a_container_over_its_limit(memory_of):
    files = {"memory.max": f"{GIB}\n", "memory.current": f"{2 * GIB}\n"}
    assert memory_of(16 * GIB, 8 * GIB, files) == (GIB, 0)


def test_another_system(memory_of):
    assert memory_of(16 * GIB, 3 * GIB, {}) == (16 * GIB, 3 * GIB)


def test_a_system_without_figures(memory_of, monkeypatch):
    assert memory_of(None, None, {}) == (None, None)
    monkeypatch.setattr(psutil, "Process", _missing)
    assert hardware.resident_bytes() == 0


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
        after = hardware.resident_bytes()
        assert abs(after - said()) < 16 << 20
        # some systems take idle pages back at any time: in a process of many tests a part of the growth
        assert after - before < 150 << 20
