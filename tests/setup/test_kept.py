"""What the set-up keeps for other clones: it is whole, or it is made again."""

import os
import sys
from pathlib import Path

import pytest

from tests.setup import test_setup
from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "build"))

import _llama_wheel  # noqa: E402 -- found by the path set above
import _setup  # noqa: E402 -- found by the path set above
import kept  # noqa: E402 -- found by the path set above

CACHE = "home/.cache/gguf-spec"
machine = test_setup.machine
kernels = test_setup.kernels


def renew(path, change):
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(change(data))


def in_its_place(make):
    def damage(path):
        path.unlink()
        make(path)

    return damage


# Damages to a file; each but the last two leaves a file of this name.
DAMAGES = {
    "zeros": lambda path: renew(path, lambda data: bytes(len(data))),
    "cut short": lambda path: renew(path, lambda data: data[: len(data) // 2]),
    "empty": lambda path: renew(path, lambda data: b""),
    "one bit": lambda path: renew(path, lambda data: bytes([data[0] ^ 8]) + data[1:]),
    "longer": lambda path: renew(path, lambda data: data + b"x"),
    "a folder": in_its_place(lambda path: (path / "x").mkdir(parents=True)),
    "a pipe": in_its_place(os.mkfifo),
    "a link that leads nowhere": in_its_place(lambda path: path.symlink_to("no/where")),
    "missing": in_its_place(lambda path: None),
}


@pytest.fixture
def folder(tmp_path):
    """A kept folder with two files."""
    (tmp_path / "part").mkdir()
    for name in ("one", "two"):
        (tmp_path / "part" / name).write_text(f"the file {name}")
    kept.keep(tmp_path / "part", tmp_path / "kept")
    return tmp_path / "kept"


def test_what_is_kept_is_found(folder, tmp_path):
    said = []
    assert [one.name for one in kept.find(folder, said.append)] == ["one", "two"]
    assert kept.find(tmp_path / "nothing", said.append) == []
    assert said == []
    assert sorted(one.name for one in folder.parent.iterdir()) == ["kept"]


def test_a_link_that_leads_nowhere_is_damage_too(tmp_path):
    said = []
    (tmp_path / "kept").symlink_to("no/where")
    assert kept.find(tmp_path / "kept", said.append) == []
    assert said and not os.path.lexists(tmp_path / "kept")


@pytest.mark.parametrize("file", ["one", "two", kept.SUMS])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_removed_and_said(folder, damage, file):
    said = []
    DAMAGES[damage](folder / file)
    assert kept.find(folder, said.append) == []
    assert said == [f"Damaged, so it is made again: {folder}"]
    assert not os.path.lexists(folder)
    assert kept.find(folder, said.append) == []
    assert len(said) == 1


@pytest.mark.parametrize("sums", ["[]", "{}", "5", "null", '"one"', '{"one": 5}', '{"../x": ""}'])
def test_sums_of_another_form_are_damage(folder, sums):
    (folder / kept.SUMS).write_text(sums)
    assert kept.whole(folder) == []


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("no/where")])
def test_what_is_in_the_place_of_a_kept_folder_is_replaced(folder, make):
    place = folder.with_name("another")
    make(place)
    kept.keep(folder, place)
    assert len(kept.whole(place)) == 2


def test_files_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    """A rename may be there after a loss of power, and the data not."""
    events, fsync, replace = [], os.fsync, Path.replace

    def name(file):
        return Path(f"/proc/self/fd/{file}").readlink().name

    def synced(file):
        events.append(("sync", name(file)))
        fsync(file)

    def renamed(self, target):
        events.append(("name", Path(target).name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "one").write_text("x")
    kept.keep(tmp_path / "part", tmp_path / "kept")
    assert events == [
        ("sync", "one"),
        ("sync", "sums.part"),
        ("name", kept.SUMS),
        ("sync", "part"),
        ("sync", "part"),
        ("name", "kept"),
        ("sync", tmp_path.name),
    ]
    events.clear()
    kept.write(tmp_path / "mark.json", "{}")
    assert events == [("sync", "mark.part"), ("name", "mark.json"), ("sync", tmp_path.name)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_lock_is_taken_whatever_is_in_its_place(tmp_path, damage):
    path = tmp_path / "lock"
    path.write_text("x")
    DAMAGES[damage](path)
    for _ in range(2):
        with _llama_wheel.locked(path, "nobody"):
            pass


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_log_is_written_whatever_is_in_its_place(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = _llama_wheel.new_log("one.log")
    path.write_text("x")
    DAMAGES[damage](path)
    assert _llama_wheel.new_log("one.log") == path
    path.write_text("y")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_is_made_in_the_place_of_a_file(tmp_path, damage):
    path = tmp_path / "folder"
    path.write_text("x")
    DAMAGES[damage](path)
    kept.usable(path)
    (path / "y").touch()
    kept.usable(path)
    assert (path / "y").exists(), "a folder stays"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads all")
@pytest.mark.parametrize("mode", [0, 0o400, 0o500])
def test_a_folder_without_permissions_is_used_again(tmp_path, mode):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "y").touch()
    path.chmod(mode)
    kept.usable(path)
    assert (path / "y").exists()


def test_packages_are_copies_with_their_times_and_modes(tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    for one in (first, second):
        (one / "bin").mkdir(parents=True)
        (one / "lib").mkdir()
        (one / "bin" / "python").touch()
    (first / "lib" / "a").mkdir()
    (first / "lib" / "a" / "b.py").write_text("x")
    (first / "lib" / "a" / "empty").touch()
    (first / "lib" / "a" / "link.py").symlink_to("b.py")
    (first / "lib" / "gguf_spec-1.dist-info").mkdir()
    os.utime(first / "lib" / "a" / "b.py", (5, 5))
    test_setup.script(first / "bin" / "tool", f"#!{first}/bin/python\nprint(1)\n")
    test_setup.script(first / "bin" / "binary", "\x7fELF")
    monkeypatch.setattr(_setup, "VENV", first)
    monkeypatch.setattr(_setup, "BIN", first / "bin")
    _setup.pack(tmp_path / "packages.tar", _setup.to_keep())
    monkeypatch.setattr(_setup, "VENV", second)
    monkeypatch.setattr(_setup, "BIN", second / "bin")
    monkeypatch.setattr(_setup, "PYTHON", second / "bin" / "python")
    _setup.unpack(tmp_path / "packages.tar")
    copy = second / "lib" / "a" / "b.py"
    assert (copy.read_text(), copy.stat().st_mtime, copy.stat().st_nlink) == ("x", 5, 1)
    copy.write_text("changed in place")
    assert (first / "lib" / "a" / "b.py").read_text() == "x"
    assert (second / "lib" / "a" / "link.py").read_text() == "x"
    assert (second / "lib" / "a" / "empty").read_bytes() == b""
    assert not (second / "lib" / "gguf_spec-1.dist-info").exists()
    assert (second / "bin" / "tool").read_text() == f"#!{second}/bin/python\nprint(1)\n"
    assert os.access(second / "bin" / "tool", os.X_OK)
    assert os.access(second / "bin" / "binary", os.X_OK)


# The set-up, with fake tools

OF_SET_UP = ("zeros", "a folder", "missing")  # those above are quick


def second_clone(machine):
    done = machine.run("x", clone=machine.new_clone("second"))
    assert done.stdout.endswith(" x\n"), done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.full
@pytest.mark.parametrize("damage", OF_SET_UP)
def test_damaged_packages_are_installed_again(machine, damage):
    machine.run()
    (archive,) = machine.folder.glob(f"{CACHE}/packages/*/packages.tar")
    DAMAGES[damage](archive)
    assert second_clone(machine).count("so it is made again") == 1
    assert len(machine.calls("hatchling")) == 2
    assert kept.whole(archive.parent) == [archive]


@pytest.mark.full
@pytest.mark.parametrize("damage", OF_SET_UP)
def test_a_damaged_wheel_is_made_again(machine, damage):
    machine.run()
    (wheel,) = machine.folder.glob(f"{CACHE}/wheels/*/*.whl")
    DAMAGES[damage](wheel)
    kept.discard(machine.folder / CACHE / "packages")
    assert second_clone(machine).count("so it is made again") == 1
    assert len(machine.calls(" download ")) == 2
    assert kept.whole(wheel.parent) == [wheel]


@pytest.mark.full
def test_a_whole_wheel_without_sums_is_kept(machine):
    """One of an earlier version, which may have taken an hour."""
    machine.run()
    (sums,) = machine.folder.glob(f"{CACHE}/wheels/*/sums.json")
    sums.unlink()
    kept.discard(machine.folder / CACHE / "packages")
    assert "made again" not in second_clone(machine)
    assert len(machine.calls(" download ")) == 1


@pytest.mark.full
@pytest.mark.parametrize("damage", OF_SET_UP)
def test_damaged_kernels_are_compiled_again(machine, kernels, damage):
    machine.run()
    n = len(machine.calls("c++ "))
    (library,) = machine.folder.glob(f"{CACHE}/kernels/*/*.so")
    DAMAGES[damage](library)
    (machine.clone / "gguf_spec" / "kernels" / library.name).unlink()
    done = machine.run("x")
    assert done.stdout.endswith(" x\n")
    assert done.stderr.count("made again") == 2, "those of the clone, and those of the cache"
    assert len(machine.calls("c++ ")) == 2 * n
    assert (kernels / library.name).read_text(encoding="utf-8") == "made\n"
    assert len(machine.calls("-m venv")) == 1, "the rest stays"


@pytest.mark.full
@pytest.mark.parametrize("damage", OF_SET_UP)
def test_damaged_kernels_of_a_clone_come_from_the_cache(machine, kernels, damage):
    machine.run()
    n = len(machine.calls("c++ "))
    library = kernels / "libgguf_spec_kernels.so"
    DAMAGES[damage](library)
    done = machine.run("x")
    assert done.stderr == "The compiled kernels are missing or damaged, so they are made again.\n"
    assert library.read_text(encoding="utf-8") == "made\n"
    assert len(machine.calls("c++ ")) == n
    assert machine.run("x").stderr == ""


@pytest.mark.full
@pytest.mark.parametrize("damage", OF_SET_UP)
def test_a_damaged_mark_or_program_is_made_again(machine, damage):
    machine.run()
    for name in ("ready-run.json", "bin/gguf-spec"):
        path = machine.clone / ".venv" / name
        DAMAGES[damage](path)
        done = machine.run("x")
        assert done.stdout.endswith(" x\n"), done.stderr
    assert machine.run("x").stderr == ""


@pytest.mark.full
def test_a_clone_with_kernels_takes_the_packages_of_one_without(machine, kernels):
    machine.run()
    kept.discard(machine.clone / ".venv")
    done = machine.run("x")
    assert "(about ten seconds)" in done.stderr
    assert len(machine.calls("hatchling")) == 1


@pytest.mark.full
@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("no/where")])
def test_something_in_the_place_of_the_environment_is_replaced(machine, make):
    make(machine.clone / ".venv")
    assert machine.run("x").stdout.endswith(" x\n")
    assert (machine.clone / ".venv").is_dir()


@pytest.mark.full
def test_the_mark_is_written_when_the_environment_is_on_the_disk(machine):
    patch = "sync = os.sync; os.sync = lambda: (print('synced', module.made_for('run'), file=sys.stderr), sync())"
    assert "synced {}" in machine.run(PATCH=patch).stderr


@pytest.mark.full
@pytest.mark.parametrize(
    "text",
    [
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
        "ERROR: Wheel 'x' located at /x.whl is invalid.",
        "zipfile.BadZipFile: Bad CRC-32 for file 'x.py'",
    ],
)
def test_a_damaged_cache_of_pip_is_not_taken(machine, text):
    """pip stops at what its cache gives it, each time."""
    given = machine.env["PYTHON"]
    body = Path(given).read_text(encoding="utf-8")
    fails = 'case "$*" in *--no-cache-dir*) ;; *" install "*) echo "$BAD"; exit 1 ;; esac\n'
    Path(given).write_text(body.replace("last=", fails + "last="), encoding="utf-8")
    done = machine.run("x", BAD=text)
    assert done.stdout.endswith(" x\n"), done.stderr
    assert "pip was given a damaged package, so it fetches all of them again." in done.stderr


@pytest.mark.slow
def test_the_real_set_up_heals_its_cache(tmp_path):
    """Dozens of damages. It needs what a first set-up needs."""
    command = [sys.executable, ROOT / "scripts" / "checks" / "damage_cache.py"]
    done = children.run(command, capture_output=True, text=True, check=False, limit_s=3600)
    if "pip cannot reach the package index" in done.stderr:
        pytest.skip("no network")
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize("start", [b"#!/bin/sh\n", b"\x7fELF\2", b"", b"\0\0\0\0"])
def test_what_begins_as_a_program_is_one(tmp_path, start):
    (tmp_path / "python").write_bytes(start)
    (tmp_path / "python").chmod(0o755)
    assert _setup.is_program(tmp_path / "python") == (start[:1] in {b"#", b"\x7f"})


def test_packages_are_kept_for_their_list():
    want = dict.fromkeys([*_setup.COMMON, "llama.cpp"], "x")
    folder = _setup.kept_packages("run", want)
    for name, is_same in ((_setup.PLACE, True), (_setup.PACKAGES, False), ("llama.cpp", False)):
        other = _setup.kept_packages("run", want | {name: "y"})
        assert (other == folder) == is_same, name
