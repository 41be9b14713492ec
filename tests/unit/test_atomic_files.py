"""Files appear complete or not at all, and leftovers of a killed process are removed by the next one."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gguf_spec.cli.chat.kept import KeptChats
from gguf_spec.cli.text_file import Undo
from gguf_spec.system import files
from gguf_spec.system.files import atomic_write, is_device, read_json, write_json
from tests.support import children


def only(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_file_is_renamed_at_the_end(tmp_path):
    file = tmp_path / "kept.json"
    file.write_text("old")
    with atomic_write(file) as part:
        part.write_text("new")
        assert file.read_text() == "old"
        assert part.parent == tmp_path
    assert (only(tmp_path), file.read_text()) == (["kept.json"], "new")


def test_a_block_that_fails_leaves_all_as_it_was(tmp_path):
    file = tmp_path / "kept.json"
    file.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(file) as part:
        part.write_text("half")
        _ = 1 / 0
    assert (only(tmp_path), file.read_text()) == (["kept.json"], "old")


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o640)])
def test_who_may_read_it(tmp_path, private, mode):
    before = os.umask(0o027)
    try:
        with atomic_write(tmp_path / "file", private=private):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


WRITER = """
import sys, time
from pathlib import Path
from gguf_spec.system import files
from gguf_spec.system.files import atomic_write, read_json, write_json
with atomic_write(Path(sys.argv[1])) as part:
    part.write_text("half")
    print(part.name, flush=True)
    time.sleep(1000)
"""


def writer(file):
    child = children.Child([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE, text=True)
    return child, child.stdout.readline().strip()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path):
    child, left = writer(tmp_path / "kept.json")
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert only(tmp_path) == [left]
    with atomic_write(tmp_path / "other.json"):
        assert left in only(tmp_path), "another file's"
    with atomic_write(tmp_path / "kept.json"):
        assert left not in only(tmp_path)
    assert only(tmp_path) == ["kept.json", "other.json"]


def test_in_a_folder_of_ours_names_that_never_come_again_leave_nothing(tmp_path, monkeypatch):
    """A killed process leaves a part of a chat, or of a text before an edit, under its own name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    chats, undo = KeptChats(), Undo()
    said = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    writes = [
        (chats.folder, lambda: chats.write(said, "m", {})),
        (undo.folder, lambda: undo.keep(tmp_path / "a.py", b"a", b"b")),
        (undo.folder, lambda: undo.keep_patch("a.py", b"c")),
        (tmp_path / "cache", lambda: write_json(tmp_path / "cache" / "b.json", 1)),
    ]
    for folder, write in writes:
        folder.mkdir(parents=True, exist_ok=True)
        child, left = writer(folder / "01234567890123456789.json")
        write()
        assert left in only(folder), "another process writes it"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        write()
        assert left not in only(folder)


def test_what_another_process_writes_just_now_stays(tmp_path):
    child, part = writer(tmp_path / "kept.json")
    try:
        with atomic_write(tmp_path / "kept.json") as own:
            own.write_text("mine")
            assert part in only(tmp_path)
        assert only(tmp_path) == sorted(["kept.json", part])
    finally:
        child.kill()
        child.communicate()


def test_files_of_the_user_stay(tmp_path):
    for name in (
        "kept.json.part",
        "kept.json.mine.part",
        "kept.json.0123456x.part",
        "kept.json.01234567.part.txt",
    ):
        (tmp_path / name).write_text("mine")
    before = only(tmp_path)
    with atomic_write(tmp_path / "kept.json"):
        pass
    assert only(tmp_path) == sorted([*before, "kept.json"])


def test_no_place(tmp_path):
    with pytest.raises(OSError, match="No such file"), atomic_write(tmp_path / "no" / "file"):
        pass
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="director"), atomic_write(tmp_path / "folder"):
        pass
    assert only(tmp_path) == ["folder"]


@pytest.mark.full
def test_many_at_once(tmp_path):
    """Cleaning must not take what another writer has just begun."""
    code = "import sys\nfrom pathlib import Path\nfrom gguf_spec.system.files import atomic_write\n"
    code += "for i in range(300):\n    with atomic_write(Path(sys.argv[1])) as part:\n        part.write_text(sys.argv[2] * 1000)\n"
    writers = [
        children.Child(
            [sys.executable, "-c", code, tmp_path / "kept", name], stderr=subprocess.PIPE, text=True
        )
        for name in "abcd"
    ]
    assert [(child.communicate()[1], child.returncode) for child in writers] == [("", 0)] * 4
    assert only(tmp_path) == ["kept"]
    assert (tmp_path / "kept").read_text() in {name * 1000 for name in "abcd"}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_and_a_device_are_written_and_stay(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with atomic_write(pipe) as part:
            part.write_text("new")
        assert os.read(reader, 10) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with atomic_write(Path("/dev/null")) as part:
        part.write_text("new")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    assert only(tmp_path) == ["pipe"]
    assert is_device(Path("/dev/stdout"))
    assert not is_device(tmp_path / "pipe2")


class Disk:
    """What reaches the disk: data with `fsync` of the file, names with `fsync` of the folder."""

    def __init__(self, monkeypatch):
        self.happened, self._synced = [], set()
        fsync, replace = os.fsync, Path.replace

        def syncing(handle):
            fsync(handle)
            self._synced.add(os.fstat(handle).st_ino)
            self.happened.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

        def replacing(part, path):
            is_safe = part.stat().st_ino in self._synced
            replace(part, path)
            self.happened.append("name" if is_safe else "name of lost data")

        monkeypatch.setattr(os, "fsync", syncing)
        monkeypatch.setattr(Path, "replace", replacing)


def test_data_are_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    disk = Disk(monkeypatch)
    with atomic_write(tmp_path / "kept") as part:
        part.write_text("data")
    assert disk.happened == ["file", "name", "folder"]
    disk.happened.clear()
    assert write_json(tmp_path / "measured.json", [1])
    assert disk.happened == ["name of lost data"], "it can be measured again"


@pytest.mark.parametrize("lost", [b"", bytes(20), b'{"a": "' + bytes(20) + b'"}'])
def test_a_measurement_that_the_power_took_is_noticed(tmp_path, lost):
    (tmp_path / "measured.json").write_bytes(lost)
    assert read_json(tmp_path / "measured.json") is None


def test_no_other_code_renames_files():
    """So all files that must last are written in one way."""
    found = [
        (path.name, line.strip())
        for path in Path(files.__file__).parents[1].rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(
            r"os\.(replace|rename)\(|\.rename\(|shutil\.move|\.replace\([\w./ \"]+\)", line
        )
    ]
    # A piece that a power cut leaves damaged has the wrong sum, and is not used.
    once = [("piece_folder.py", "written.replace(path)")]
    assert sorted(found) == [("files.py", "part.replace(path)"), *once]


def test_a_system_that_renames_no_open_file(tmp_path, monkeypatch):
    """Windows, where there are no locks either."""
    opened, real_open, real_close, replace = {}, os.open, os.close, Path.replace

    def opening(path, *arguments, **options):
        handle = real_open(path, *arguments, **options)
        opened[handle] = str(path)
        return handle

    def closing(handle):
        opened.pop(handle, None)
        real_close(handle)

    def replacing(part, path):
        if {str(part), str(path)} & {*opened.values()}:
            raise PermissionError(13, "The process cannot access the file")
        replace(part, path)

    monkeypatch.setattr(files, "_HAS_LOCKS", False)
    monkeypatch.setattr(os, "name", "nt")
    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "close", closing)
    monkeypatch.setattr(type(tmp_path), "replace", replacing)
    for text in ("first", "second"):
        with atomic_write(tmp_path / "kept") as part:
            part.write_text(text)
    assert write_json(tmp_path / "measured.json", [1])
    assert (tmp_path / "kept").read_text() == "second"
    assert (opened, only(tmp_path)) == ({}, ["kept", "measured.json"])
