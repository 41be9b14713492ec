from pathlib import Path

import pytest

from gguf_spec import _memory
from gguf_spec._context import check_memory
from gguf_spec._gguf import Header
from gguf_spec.errors import NotEnoughMemoryError

GIB = 1 << 30


@pytest.fixture
def machine(monkeypatch):
    def make(physical, files):
        monkeypatch.setattr(_memory, "_physical", lambda: physical)
        monkeypatch.setattr(_memory.Path, "read_text", lambda self, encoding: files[self.name] if self.name in files else _missing())

    return make


def _missing():
    raise FileNotFoundError


def test_this_machine_has_memory():
    assert 0 < _memory.available_bytes() <= _memory.total_bytes()


def test_a_machine_without_limits(machine):
    machine(16 * GIB, {"meminfo": "MemTotal: 1 kB\nMemAvailable:    4194304 kB\n", "memory.max": "max\n", "memory.current": "5\n"})
    assert (_memory.total_bytes(), _memory.available_bytes()) == (16 * GIB, 4 * GIB)


def test_a_container_with_a_limit(machine):
    machine(16 * GIB, {"meminfo": "MemAvailable: 8388608 kB\n", "memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"})
    assert (_memory.total_bytes(), _memory.available_bytes()) == (2 * GIB, GIB)


def test_a_container_over_its_limit(machine):
    machine(16 * GIB, {"meminfo": "MemAvailable: 8388608 kB\n", "memory.max": f"{GIB}\n", "memory.current": f"{2 * GIB}\n"})
    assert _memory.available_bytes() == 0


def test_another_system(machine):
    machine(16 * GIB, {})
    assert (_memory.total_bytes(), _memory.available_bytes()) == (16 * GIB, 16 * GIB)
    machine(None, {})
    assert (_memory.total_bytes(), _memory.available_bytes()) == (None, None)


@pytest.fixture
def free(monkeypatch):
    def make(total, available):
        monkeypatch.setattr("gguf_spec._context.total_bytes", lambda: total)
        monkeypatch.setattr("gguf_spec._context.available_bytes", lambda: available)

    return make


@pytest.mark.parametrize(
    ("file_bytes", "kv_bytes", "fits"),
    [(GIB, 0, True), (5 * GIB, 0, True), (9 * GIB, 0, False), (GIB, 3 * GIB, True), (GIB, 5 * GIB, False), (7 * GIB, 2 * GIB, False)],
)
def test_what_fits(free, file_bytes, kv_bytes, fits):
    free(8 * GIB, 4 * GIB)  # weights are mapped: they may push others out, the cache may not
    header = Header(Path("m.gguf"), {}, 1, file_bytes)
    if fits:
        check_memory(header, kv_bytes)
        return
    with pytest.raises(NotEnoughMemoryError, match=rf"m\.gguf needs {(file_bytes + kv_bytes) / GIB:.1f} GiB") as caught:
        check_memory(header, kv_bytes)
    assert (caught.value.needed_bytes, caught.value.available_bytes) == (file_bytes + kv_bytes, 4 * GIB)
    assert isinstance(caught.value, MemoryError)


def test_where_nothing_is_known_nothing_is_refused(free):
    free(None, None)
    check_memory(Header(Path("m.gguf"), {}, 1, 1 << 60), 1 << 60)
