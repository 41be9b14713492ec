"""Names of stored measurements: the same in each version, and different for different contents."""

import hashlib
import json
import platform
import stat
from pathlib import Path

import pytest

from gguf_spec.system import files as cache_module
from gguf_spec.system.files import (
    cache_file,
    cache_folder,
    content_id,
    read_json,
    this_machine,
    write_json,
)

MB = 1 << 20


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gguf-spec"


def test_the_folder_is_the_users(cache, tmp_path, monkeypatch):
    assert cache_folder() == cache
    monkeypatch.setenv("HOME", str(tmp_path))
    for value in ("", None):
        monkeypatch.delenv("XDG_CACHE_HOME") if value is None else monkeypatch.setenv(
            "XDG_CACHE_HOME", value
        )
        assert cache_folder() == tmp_path / ".cache" / "gguf-spec"


def test_entries_of_an_earlier_version_are_found(cache):
    """The names are on users' disks: other names would lose all measurements."""
    name = hashlib.sha256(b"3\none\n/tmp/two").hexdigest()[:24]
    assert (
        cache_file("profiles", [3, "one", Path("/tmp/two")]) == cache / "profiles" / f"{name}.json"
    )


def test_parts_are_distinguished(cache):
    parts = [[1, 2], [12], ["1 2"], [2, 1], [1, 2, ""], []]
    assert (
        len({cache_file("profiles", one) for one in parts} | {cache_file("pairs", [1, 2])})
        == len(parts) + 1
    )


def test_stored_data_is_read_again(cache):
    path = cache / "some" / "folder" / "one.json"
    assert read_json(path) is None
    assert write_json(path, {"a": [1, 2.5, "ä"]}) is True
    assert read_json(path) == {"a": [1, 2.5, "ä"]}
    assert write_json(path, None) is True
    assert json.loads(path.read_text(encoding="utf-8")) is None
    assert [one.name for one in path.parent.iterdir()] == ["one.json"]


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b'{"a": 1}}'])
def test_damaged_entries_are_ignored(cache, data):
    cache.mkdir(parents=True)
    (cache / "one.json").write_bytes(data)
    assert read_json(cache / "one.json") is None


def test_a_folder_that_cannot_be_written(cache):
    cache.parent.mkdir()
    cache.write_text("a file where the folder should be")
    assert write_json(cache / "profiles" / "one.json", 1) is False
    assert read_json(cache / "profiles" / "one.json") is None


def test_an_error_not_of_the_disk_is_raised(cache):
    with pytest.raises(TypeError):
        write_json(cache / "one.json", {1j})
    assert [path for path in cache.rglob("*") if stat.S_ISREG(path.stat().st_mode)] == []


def write(path, size, *changes):
    """A file of zeros, but for a byte at each of some places."""
    with path.open("wb") as file:
        file.truncate(size)
        for at in changes:
            file.seek(at)
            file.write(b"x")
    return content_id(path)


SIZE = 40 * MB
STRETCHES = [(0, MB), *((SIZE * i // 16 - 4096, SIZE * i // 16) for i in range(1, 17))]


def test_a_change_at_the_start_the_end_or_a_sample_between_is_another_file(tmp_path):
    path = tmp_path / "file"
    ends = sorted({at for begin, end in STRETCHES for at in (begin, end - 1)})
    ids = [write(path, SIZE), *(write(path, SIZE, at) for at in ends)]
    assert len(set(ids)) == len(ids) == 1 + len(ends)
    assert write(path, SIZE, MB, 17 * MB) == ids[0], "a file of 40 GB is not read from end to end"


def test_files_of_other_sizes_are_other_files(tmp_path):
    sizes = [0, 1, 15, 4095, 4096, 5000, MB - 1, MB, 20 * MB]
    assert len({write(tmp_path / "file", size) for size in sizes}) == len(sizes)


def test_the_id_of_a_file_stays_what_it_was(tmp_path):
    """Sessions and profiles on disk name files by it."""
    digest = hashlib.sha256(str(SIZE).encode())
    for begin, end in STRETCHES:
        digest.update(bytes(end - begin))
    assert write(tmp_path / "file", SIZE) == digest.hexdigest()
    (tmp_path / "small").write_bytes(b"abc")
    assert content_id(tmp_path / "small") == hashlib.sha256(b"3" + b"abc" * 17).hexdigest()


CPUINFO = """processor\t: 0
vendor_id\t: Some
model name\t: A processor
flags\t\t: fpu avx2
CPU architecture: 8
Features\t: asimd
cpu MHz\t\t: 1234.5

processor\t: 1
model name\t: Another
"""


def test_machines_are_distinguished_by_processor_not_by_speed(tmp_path, monkeypatch):
    (tmp_path / "cpuinfo").write_text(CPUINFO, encoding="utf-8")
    monkeypatch.setattr(cache_module, "Path", lambda _: tmp_path / "cpuinfo")
    cpu = "model name\t: A processor\nflags\t\t: fpu avx2\nCPU architecture: 8\nFeatures\t: asimd"
    assert this_machine() == [platform.machine(), cpu]
    (tmp_path / "cpuinfo").unlink()
    monkeypatch.setattr(platform, "processor", lambda: "unknown")
    assert this_machine()[1] == "unknown"
