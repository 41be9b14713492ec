"""The folder of pieces: names, checks, budget, and what others do to its files."""

import errno
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from gguf_spec.system import piece_folder
from gguf_spec.system.piece_folder import Piece, PieceFolder, all_files, folder_and_limit, user_key
from tests.support.children import Child


def folder_at(path, limit=10**6, **options):
    folder = PieceFolder(path, limit, **options)
    folder.reserve = 0
    assert folder.open()
    return folder


def put(folder, parent, contents=b"abc", data=b"data" * 10):
    piece = Piece(parent, folder.name(parent, contents), len(contents))
    assert folder.write(piece, {"tokens": [*contents]}, [data[:7], data[7:]])
    return piece


def file_of(folder, piece):
    return folder._file(piece)


def test_a_piece_comes_back(tmp_path):
    folder = folder_at(tmp_path)
    root = folder.name("", b"root")
    piece = put(folder, root)
    assert folder.has(piece)
    about, data = folder.read(piece)
    assert (about["tokens"], bytes(data)) == ([97, 98, 99], b"data" * 10)
    assert folder.behind(root) == [piece]
    assert folder.about(piece)["tokens"] == [97, 98, 99]
    assert stat.S_IMODE(file_of(folder, piece).stat().st_mode) == 0o600
    assert folder_at(tmp_path).read(piece), "for another process"
    assert {one.piece for one in all_files(tmp_path)} == {piece}


def test_names_follow_from_all_before_and_from_the_user(tmp_path, monkeypatch):
    folder = folder_at(tmp_path / "a")
    names = {folder.name(parent, text) for parent in ("", "x", "y") for text in (b"", b"1", b"12")}
    assert len(names) == 9
    assert folder_at(tmp_path / "b").name("x", b"1") == folder.name("x", b"1")
    other = folder_at(tmp_path / "b", key=lambda: bytes(32))
    assert other.name("x", b"1") != folder.name("x", b"1")


@pytest.mark.parametrize(
    "what",
    [
        "bits",
        "cut",
        "longer",
        "empty",
        "zeros",
        "of another place",
        "of another user",
        "text",
        "folder",
        "link",
    ],
)
def test_a_file_that_is_not_whole_is_not_used(tmp_path, what, monkeypatch, caplog):
    """Each bit counts; the file is removed, so that it is written again."""
    folder = folder_at(tmp_path / "kept")
    root = folder.name("", b"root")
    piece, other = put(folder, root), put(folder, root, b"abd")
    path = file_of(folder, piece)
    whole = path.read_bytes()
    wrong = {
        "cut": [whole[:n] for n in range(0, len(whole), 7)],
        "longer": [whole + b"\0", whole + whole],
        "empty": [b""],
        "zeros": [bytes(len(whole))],
        "of another place": [file_of(folder, other).read_bytes()],
        "text": [
            b"{}",
            b"gguf-spec piece 1\n" + b"\xff" * 12,
            b"gguf-spec piece 1\n" + b"\xff" * 200,
        ],
        "bits": [
            whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]
            for at in range(len(whole))
        ],
    }.get(what, [])
    for data in wrong:
        path.write_bytes(data)
        assert folder.read(piece) is None
        assert not path.exists()
    assert not wrong or "is read again" in caplog.text
    if what == "of another user":
        assert folder_at(tmp_path / "kept", key=lambda: bytes(32)).read(piece) is None
    path.unlink(missing_ok=True)
    if what == "folder":
        path.mkdir()
        assert not folder.has(piece)
    if what == "link":
        (tmp_path / "elsewhere").write_bytes(whole)
        path.symlink_to(tmp_path / "elsewhere")
        assert not folder.has(piece)
    assert folder.read(piece) is None
    assert folder.read(other)


def test_a_missing_file_is_no_line_in_the_log(tmp_path, caplog):
    folder = folder_at(tmp_path)
    piece = put(folder, folder.name("", b"root"))
    file_of(folder, piece).unlink()
    assert folder.read(piece) is None
    folder.touch([piece])
    folder.remove(piece)
    assert not caplog.text


def test_the_least_recently_used_pieces_make_room(tmp_path):
    folder = folder_at(tmp_path, 10**5)
    root = folder.name("", b"root")
    pieces = [put(folder, root, bytes([i]), bytes(5000)) for i in range(16)]
    for i, one in enumerate(pieces):
        os.utime(file_of(folder, one), (1000 + i, 1000 + i))
    folder.touch([pieces[0]])
    (tmp_path / "prompts" / "notes.txt").write_text("not ours")
    later = [put(folder, root, bytes([50 + i]), bytes(5000)) for i in range(6)]
    there = [folder.has(one) for one in pieces]
    assert there[0], "it was used"
    assert there[1:] == sorted(there[1:]), "the oldest ones went"
    assert not all(there)
    assert all(map(folder.has, later))
    assert sum(one.n_bytes for one in all_files(tmp_path)) <= 10**5
    assert (tmp_path / "prompts" / "notes.txt").exists()


def test_two_processes_share_the_budget(tmp_path):
    folders = [folder_at(tmp_path, 10**5) for _ in range(2)]
    root = folders[0].name("", b"root")
    for i in range(40):
        put(folders[i % 2], root, bytes([i]), bytes(5000))
    assert sum(one.n_bytes for one in all_files(tmp_path)) <= 1.5 * 10**5
    for one in folders:
        one._n_bytes = None  # as a new process, which looks
        put(one, root, b"x", bytes(5000))
    assert sum(one.n_bytes for one in all_files(tmp_path)) <= 10**5


def test_a_clock_that_jumped(tmp_path):
    """What was written in the future does not stay for ever."""
    folder = folder_at(tmp_path, 10**5)
    root = folder.name("", b"root")
    pieces = [put(folder, root, bytes([i]), bytes(5000)) for i in range(18)]
    for one in pieces[:9]:
        future = time.time() + 10**9
        os.utime(file_of(folder, one), (future, future))
    put(folder, root, b"xyz", bytes(9000))
    assert not all(map(folder.has, pieces[:9]))
    assert all(map(folder.has, pieces[9:]))


def test_a_piece_that_is_larger_than_the_budget(tmp_path, caplog):
    folder = folder_at(tmp_path, 1000)
    piece = Piece("a" * 32, "b" * 32, 1)
    assert not folder.write(piece, {}, [bytes(5000)])
    assert not folder.write(piece, {}, [bytes(5000)])
    assert caplog.text.count("too much for the budget") == 1
    assert not [*all_files(tmp_path)]


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES]
)
@pytest.mark.parametrize("step", ["open", "write", "replace"])
def test_a_disk_that_fails(tmp_path, monkeypatch, caplog, number, step):
    """One line in the log, nothing half, and no further harm."""
    folder = folder_at(tmp_path)
    root = folder.name("", b"root")
    kept = put(folder, root)

    def fails(*_args, **_named):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        if step == "open":
            patch.setattr(piece_folder, "atomic_write", fails)
        elif step == "write":
            patch.setattr(piece_folder.Path, "open", fails)
        else:
            patch.setattr(piece_folder.Path, "replace", fails)
        for text in (b"x", b"y"):
            piece = Piece(root, folder.name(root, text), 1)
            assert not folder.write(piece, {}, [b"data"])
    assert caplog.text.count("cannot be written") == 1
    assert {one.piece for one in all_files(tmp_path)} == {kept}
    assert folder.read(kept)
    assert put(folder, root, b"x"), "when it works again"


def test_a_full_disk_is_left_alone(tmp_path, caplog):
    folder = folder_at(tmp_path)
    folder.reserve = 1 << 62
    assert not folder.write(Piece("a" * 32, "b" * 32, 1), {}, [b"data"])
    assert "left on its disk" in caplog.text


@pytest.mark.parametrize("what", ["file", "of another user", "no key", "below a file"])
def test_a_folder_that_cannot_be_used(tmp_path, monkeypatch, caplog, what):
    path = tmp_path / "kept"
    if what == "file":
        path.write_text("x")
    if what == "below a file":
        (tmp_path / "file").write_text("x")
        path = tmp_path / "file" / "kept"
    if what == "of another user":
        if not hasattr(os, "geteuid"):
            pytest.skip("no users here")
        path.mkdir()
        mine = path.stat().st_uid
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
        if mine == 0:
            os.chown(path, 12345, -1)
    key = (lambda: None) if what == "no key" else user_key
    assert not PieceFolder(path, 1000, key=key).open()
    assert caplog.text.count("prompts are not kept on disk") == 1


KILLED = """
import os, sys
from pathlib import Path
from gguf_spec.system import piece_folder
from gguf_spec.system.piece_folder import Piece, PieceFolder
n = int(sys.argv[2])
def trace(frame, event, arg):
    global n
    if event == "line" and frame.f_code.co_filename.endswith(("piece_folder.py", "files.py")):
        n -= 1
        if n < 0:
            os.kill(os.getpid(), 9)
    return trace
PieceFolder.reserve = 0
folder = PieceFolder(Path(sys.argv[1]), 10**6)
assert folder.open()
sys.settrace(trace)
parent = folder.name("", b"root")
for i in range(3):
    piece = Piece(parent, folder.name(parent, bytes([i])), 1)
    folder.write(piece, {"i": i}, [bytes([i]) * 1000])
    parent = piece.name
"""


class Dead(BaseException):
    pass


def write_three(folder):
    parent = folder.name("", b"root")
    for i in range(3):
        piece = Piece(parent, folder.name(parent, bytes([i])), 1)
        folder.write(piece, {"i": i}, [bytes([i]) * 1000])
        parent = piece.name


def check_three(path, whole=False):
    """All that can be read is right."""
    folder, n = folder_at(path), 0
    parent = folder.name("", b"root")
    for i in range(3):
        piece = Piece(parent, folder.name(parent, bytes([i])), 1)
        if folder.has(piece):
            about, data = folder.read(piece)
            assert (about["i"], bytes(data)) == (i, bytes([i]) * 1000)
            n += 1
        parent = piece.name
    assert n == 3 or not whole
    return n


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_end_at_each_line(tmp_path):
    """The writer stops at each of its lines; the next one finds only what is whole, and goes on."""
    found, at = [], 0
    while not found or found[-1] != "done":
        path, left = tmp_path / str(at), at

        def trace(frame, event, _):
            nonlocal left
            if event == "line" and frame.f_code.co_filename.endswith("piece_folder.py"):
                left -= 1
                if left < 0:
                    raise Dead
            return trace

        folder, before = folder_at(path), sys.gettrace()
        sys.settrace(trace)
        try:
            write_three(folder)
            found.append("done")
        except Dead:
            pass
        finally:
            sys.settrace(before)
        found.insert(0, check_three(path))
        write_three(folder_at(path))
        check_three(path, whole=True)
        at += 1
    assert {0, 1, 2, 3} <= {*found}
    assert at > 50


@pytest.mark.slow
def test_a_hundred_kills(tmp_path):
    found = set()
    for i in range(100):
        path = tmp_path / str(i)
        command = [sys.executable, "-c", KILLED, str(path), str(i * 3)]
        assert Child(command).wait() in (0, -9)
        found.add(check_three(path))
        write_three(folder_at(path))
        check_three(path, whole=True)
        parts = [*(path / "new").glob("*")]
        assert len(parts) <= 1
        piece_folder.remove_unfinished(path / "new")
    assert found == {0, 1, 2, 3}


def test_many_pieces(tmp_path):
    """A search lists a part of a folder only, whatever lies there."""
    folder = folder_at(tmp_path)
    root = folder.name("", b"root")
    where = tmp_path / "prompts" / root[:3]
    where.mkdir()
    for i in range(6000):
        (where / f"{root[3:]}-{i:032x}-64").touch()
    assert len(folder.behind(root)) <= 4096
    piece = put(folder, root)
    assert folder.has(piece)
    assert folder.read(piece)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (None, None), (0, None), ("0", None), ("", None), (False, None),
        ("20GB", (None, 20 * 10**9)), (5000, (None, 5000)), (" 2 GiB ", (None, 2 << 30)),
        ("/a/b", ("/a/b", piece_folder.DEFAULT_LIMIT)), ("/a/b:1GB", ("/a/b", 10**9)),
        (Path("/a/b"), ("/a/b", piece_folder.DEFAULT_LIMIT)), ("/a:b", ("/a:b", piece_folder.DEFAULT_LIMIT)),
        ("./20GB", ("20GB", piece_folder.DEFAULT_LIMIT)), ("kept", ("kept", piece_folder.DEFAULT_LIMIT)),
    ],
)  # fmt: skip
def test_folder_and_budget(given, found, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = folder_and_limit(given)
    if found is None:
        assert result is None
    else:
        usual = piece_folder.cache_folder() / "kept"
        path = usual if found[0] is None else tmp_path / found[0]
        assert result == (path, found[1])


@pytest.mark.parametrize("given", ["256", "12XB", "-1", -5, True, 1.5, b"x", "1e9", "0GB"])
def test_neither_a_folder_nor_a_size(given):
    with pytest.raises(ValueError):
        folder_and_limit(given)
