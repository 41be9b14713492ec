"""Bad input of the set-up: packages that are not what they were, indexes that hang, caches that cannot be used. Nothing is downloaded."""

import base64
import contextlib
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import time
import zipfile
from collections import namedtuple
from email.parser import Parser
from pathlib import Path

import pytest

from tests.setup import test_setup

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "build"))
import _llama_wheel
import ready_made

PIP = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check"]
ROW = ready_made.BUILDS["linux-x86_64"]


@pytest.fixture
def packages(tmp_path):
    test_setup.write_packages(tmp_path / "packages")
    return tmp_path / "packages" / "sdist.tar.gz", [tmp_path / "packages" / "libraries.tgz"]


def fetch(tmp_path, files, code=0, sha256=None):
    """Fetch an archive with a program that leaves `files`."""

    def call(command, log, limit_s):
        for name, body in files.items():
            (tmp_path / name).write_bytes(body)
        return code

    sha256 = sha256 or hashlib.sha256(b"right").hexdigest()
    return ready_made.fetch(["x"], tmp_path, sha256, "the package", call, None)


def test_only_the_declared_archive_is_taken(tmp_path):
    assert fetch(tmp_path, {"a.tgz": b"right", "log": b""}).name == "a.tgz"
    for body in (b"wrong", b"righ", b"right\0", b""):
        with pytest.raises(ready_made.Unavailable, match="the package is not the declared file"):
            fetch(tmp_path, {"a.tgz": body})
    for files, code in (({"b.tgz": b"right"}, 0), ({"a.tgz": b"right"}, 1)):
        with pytest.raises(ready_made.Unavailable, match="the package cannot be fetched"):
            fetch(tmp_path, files, code)


@pytest.mark.full
@pytest.mark.parametrize("spoiled", ["sdist.tar.gz", "libraries.tgz"])
def test_a_package_with_another_hash_is_said_in_one_line_and_llama_is_compiled(tmp_path, spoiled):
    machine = test_setup.Machine(tmp_path)
    patch = f"ready_made.SDIST_SHA256 = row['sha256'] = {'0' * 64!r}"
    if spoiled == "libraries.tgz":
        patch = f"row['sha256'] = {'0' * 64!r}"
    done = machine.run("x", PATCH=patch)
    assert done.stdout.endswith(" x\n"), done.stderr
    (why,) = (line for line in done.stderr.splitlines() if "cannot be used" in line)
    assert "is not the declared file: its sha256 is" in why
    assert len(machine.calls(" wheel ")) == 1
    assert not list(tmp_path.glob("home/.cache/gguf-spec/wheels/*.part*"))


LINUX = ready_made.System("linux-x86_64", True, "glibc 2.100", "", False)


def test_other_machines_compile():
    def why(**changed):
        with pytest.raises(ready_made.Unavailable) as caught:
            ready_made.build_for(LINUX._replace(**changed))
        return str(caught.value)

    for version, said in (
        (
            "glibc 2.31",
            "2.34 (Debian 12, Ubuntu 22.04, RHEL 9 and newer), and this system has 2.31",
        ),
        ("musl 1", "has 1"),
    ):
        assert said in why(libc=version)
    assert "Alpine has musl" in why(libc="")
    assert "needs glibc, which this system does not have" in why(libc="")
    assert ready_made.build_for(LINUX) is ROW
    old = LINUX._replace(lacks_avx2=True)
    assert ready_made.build_for(old) is ROW, "it has kernels for each processor"
    assert why(name="linux-riscv64") == "there is none for linux-riscv64"


@pytest.mark.parametrize("machine", ["armv7l", "aarch64", "i686"])
def test_a_system_of_32_bits(machine):
    """Its kernel may have 64: then the machine is that of the ready-made libraries, which no Python of 32 bits can load."""
    system = LINUX._replace(name=f"linux-{machine}", is_64_bit=False)
    with pytest.raises(ready_made.Unavailable, match=f"has 32 bits .linux-{machine}.*of 64 bits"):
        ready_made.build_for(system)


def test_musl_has_no_name_for_its_version(monkeypatch):
    def confstr(_):
        raise ValueError("unrecognized configuration name")

    assert ready_made.this_system().is_64_bit
    monkeypatch.setattr(os, "confstr", confstr, raising=False)
    assert ready_made.this_system().libc == ""


def test_a_program_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(ready_made, "MOST_S", 0.3)
    with (tmp_path / "log").open("wb") as log, pytest.raises(ready_made.Unavailable):
        ready_made.fetch(["sleep", "100000"], tmp_path, "", "it", _llama_wheel.call, log)
    assert not _llama_wheel._children


@pytest.mark.full
def test_an_index_that_hangs_is_given_up(tmp_path, monkeypatch):
    """The real pip, and a server that accepts and never answers."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.getsockname()[1]}/simple")
        options = [*ready_made.PIP_OPTIONS, "--timeout=1", "--retries=0"]
        monkeypatch.setattr(ready_made, "PIP_OPTIONS", options)
        monkeypatch.setattr(ready_made.shutil, "which", lambda _: None)
        with (tmp_path / "log").open("wb") as log:
            with pytest.raises(ready_made.Unavailable, match="cannot be fetched"):
                ready_made.fetch_sdist(tmp_path, PIP, _llama_wheel.call, log)
            with pytest.raises(ready_made.Unavailable, match="there is no npm, and pip cannot"):
                ready_made.npm_command(tmp_path, PIP, lambda _: None, _llama_wheel.call, log)


def test_the_wheel_is_complete_and_the_same_at_any_time(packages, tmp_path, monkeypatch):
    wheels = []
    for i, now in enumerate((0.0, 4e9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        (tmp_path / str(i)).mkdir()
        wheels.append(ready_made.make_wheel(tmp_path / str(i), ROW, *packages))
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    with zipfile.ZipFile(wheels[0]) as wheel:
        names = wheel.namelist()
        info = f"llama_cpp_python-{ready_made.local_version(ROW)}.dist-info"
        about = Parser().parsestr(wheel.read(f"{info}/METADATA").decode())
        record = wheel.read(f"{info}/RECORD").decode().splitlines()
        for line in record[:-1]:
            name, digest, size = line.rsplit(",", 2)
            body = wheel.read(name)
            assert int(size) == len(body)
            found = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
            assert digest == f"sha256={found}"
        assert b"Changed by gguf-spec" in wheel.read("llama_cpp/_ctypes_extensions.py")
    assert len(record) == len(names) == len(set(names))
    assert about["Version"] == ready_made.local_version(ROW)
    assert about.get_all("License-File") == ["LICENSE.md", "LICENSE-libraries"]


def test_other_sources_are_refused(packages, tmp_path, monkeypatch):
    monkeypatch.setattr(ready_made, "CHANGES", (*ready_made.CHANGES, ("never there", "")))
    with pytest.raises(ready_made.Unavailable, match="other sources than expected"):
        ready_made.make_wheel(tmp_path, ROW, *packages)
    assert not list(tmp_path.glob("*.whl"))


@pytest.mark.parametrize("fault", ["full", "a file"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_cache_that_cannot_be_used(tmp_path, monkeypatch, capsys, fault, fails):
    Usage = namedtuple("Usage", "total used free")
    cache = tmp_path / "cache"
    cache.touch() if fault == "a file" else cache.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(_llama_wheel.shutil, "disk_usage", lambda path: Usage(0, 0, 1e6 if cache in path.parents else 1e12))  # fmt: skip
    with contextlib.suppress(KeyError), _llama_wheel.usable_cache({"llama.cpp": "x"}):
        folder = _llama_wheel.cache_folder()
        assert folder.parent == tmp_path != cache
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "wheels").mkdir(exist_ok=True)
        if fails:
            raise KeyError
    assert _llama_wheel.cache_folder() == cache / "gguf-spec"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"Warning: the cache folder {cache}/gguf-spec cannot be used (")
    assert folder.exists() == fails, "the log stays"
    assert not (folder / "wheels").exists()


@pytest.mark.full
def test_what_a_killed_set_up_left_is_removed(tmp_path):
    machine = test_setup.Machine(tmp_path)
    cache = tmp_path / "home" / ".cache" / "gguf-spec"
    (cache / "packages" / "x.1.part" / "lib").mkdir(parents=True)
    machine.run()
    assert [one.name for one in (cache / "packages").iterdir() if "part" in one.name] == []
    shutil.rmtree(machine.clone / ".venv")
    assert machine.run("x").stdout.endswith(" x\n")
    assert "--no-index" in machine.calls("--editable")[1]
