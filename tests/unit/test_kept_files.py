"""A user's file that is written again stays what it is: owner, rights, attributes, links, line ends."""

import errno
import os
import stat
import struct
import sys
from pathlib import Path

import pytest

from gguf_spec.cli import edit as edit_module
from gguf_spec.cli.text_file import TextFile, Undo
from gguf_spec.errors import GgufSpecError
from gguf_spec.system import files
from gguf_spec.system.files import atomic_write, is_device, with_end

pytestmark = pytest.mark.skipif(os.name == "nt", reason="owners and links of POSIX")
USER, GROUP = 1234, 2345


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "files"
    made.mkdir()
    return made


def edited(path, _tales):
    TextFile(path).write("new\n")


def undone(path, _tales):
    """The edit itself is not what is tried: it is as if another text had been there."""
    Undo().keep(path.resolve(), b"new\n", path.read_bytes())
    Undo().restore(path)


def output(path, _tales):
    other = path.resolve().with_name("other.txt")
    other.write_text("old\n")
    TextFile(other).write("new\n", path)
    other.unlink()


def saved(path, tales):
    tales.chat().save(path)


@pytest.fixture(params=[edited, undone, output, saved], ids=lambda one: one.__name__)
def write(request, tales):
    """Return what prepares a file, and what writes it again."""

    def prepare(path):
        if request.param is saved:
            tales.chat().save(path)
        else:
            path.write_text("old\n")
        return path

    def run(path):
        before = path.stat().st_mtime_ns, path.read_bytes()
        request.param(path, tales)
        assert (path.stat().st_mtime_ns, path.read_bytes()) != before
        assert request.param is saved or path.read_text() == "new\n"

    run.prepare = prepare
    return run


def what(path):
    found = path.stat()
    attributes = {}
    if sys.platform == "linux":
        attributes = {one: os.getxattr(path, one) for one in os.listxattr(path)}
    return found.st_mode, found.st_uid, found.st_gid, found.st_nlink, attributes


def set_attribute(path, name, value):
    if sys.platform != "linux":
        pytest.skip("no extended attributes in Python here")
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no attributes {name} here: {error.strerror}")


def access_list(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *one) for one in entries)


NOBODY = 0xFFFFFFFF
ACL = access_list((1, 6, NOBODY), (2, 4, 777), (4, 4, NOBODY), (16, 4, NOBODY), (32, 0, NOBODY))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o4711])
def test_the_mode(write, folder, mode):
    path = write.prepare(folder / "notes.txt")
    path.chmod(mode | 0o200)
    before = what(path)
    write(path)
    assert what(path) == before
    assert [one.name for one in folder.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("may", [True, False])
def test_the_owner(write, folder, monkeypatch, may):
    """Also where the owner cannot be given, as for a user whose group may write the file."""
    path = write.prepare(folder / "notes.txt")
    os.chown(path, USER, GROUP)
    path.chmod(0o664)
    if not may:
        monkeypatch.setattr(os, "chown", refuse)
    before = what(path)
    write(path)
    assert what(path) == before
    assert before[1:3] == (USER, GROUP)


def refuse(*_, **__):
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("may", [True, False])
@pytest.mark.parametrize(
    ("name", "value"), [("user.author", b"me"), ("system.posix_acl_access", ACL)]
)
def test_attributes_and_access_lists(write, folder, monkeypatch, name, value, may):
    path = write.prepare(folder / "notes.txt")
    set_attribute(path, name, value)
    if not may:
        monkeypatch.setattr(os, "setxattr", refuse)
    before = what(path)
    write(path)
    assert what(path) == before
    assert before[-1][name] == value


def test_a_rule_of_the_folder_gives_no_access_list_to_a_file_without_one(write, folder):
    path = write.prepare(folder / "notes.txt")
    set_attribute(folder, "system.posix_acl_default", ACL)
    before = what(path)
    write(path)
    assert what(path) == before


def test_hard_links(write, folder):
    path = write.prepare(folder / "notes.txt")
    os.link(path, folder / "other name")
    write(path)
    assert path.samefile(folder / "other name")


def test_symbolic_links(write, folder):
    (folder / "there").mkdir()
    path = write.prepare(folder / "there" / "notes.txt")
    (folder / "link").symlink_to("there/notes.txt")
    (folder / "link to it").symlink_to(folder / "link")
    write(folder / "link to it")
    assert (folder / "link to it").is_symlink() and (folder / "link").is_symlink()
    assert not path.is_symlink()


def test_a_file_that_must_not_be_written(write, folder, monkeypatch):
    """A rename would replace it: the folder can be written."""
    path, opening = write.prepare(folder / "notes.txt"), os.open
    before = path.read_bytes()

    def refusing(one, flags, *more, **options):
        if Path(one) == path and flags & (os.O_WRONLY | os.O_RDWR):
            refuse()
        return opening(one, flags, *more, **options)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(GgufSpecError, match="cannot be written: Operation not permitted"):
        write(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["长" * 82, "é" * 127, "a" * 255])
def test_long_names(write, folder, name):
    write(write.prepare(folder / name))
    assert [one.name for one in folder.iterdir()] == [name]


def test_a_link_to_a_file_that_is_not_there_yet(folder):
    """Such as a config file in a folder of settings under version control."""
    (folder / "config.toml").symlink_to("settings.toml")
    with atomic_write(folder / "config.toml") as part:
        part.write_text("a = 1\n")
    assert (folder / "config.toml").is_symlink()
    assert (folder / "settings.toml").read_text() == "a = 1\n"
    (folder / "circle").symlink_to("circle")
    with pytest.raises(OSError, match="symbolic links"), atomic_write(folder / "circle"):
        pass


def test_a_file_that_may_be_mapped_is_never_written_in_place(folder):
    path = folder / "m.gguf"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.link(path, folder / "other")
    with path.open("rb") as reader:
        with atomic_write(path, private=False, in_place=False) as part:
            part.write_bytes(b"new")
        assert reader.read() == b"old"
    assert (path.read_bytes(), (folder / "other").read_bytes()) == (b"new", b"old")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_that_is_removed_meanwhile_is_made(folder):
    path = folder / "notes.txt"
    path.write_text("old")
    with atomic_write(path) as part:
        path.unlink()
        part.write_text("new")
    assert path.read_text() == "new"


# ---- data that are copied into a file


@pytest.fixture
def linked(folder):
    path = folder / "notes.txt"
    path.write_text("old text, which is longer\n")
    os.link(path, folder / "other")
    return path


def test_ctrl_c_while_data_are_copied_leaves_no_half(linked, monkeypatch):
    copy, calls = files._copy, []

    def interrupted(made, out):
        calls.append(1)
        if len(calls) == 1:
            out.write(made.read(3))
            raise KeyboardInterrupt
        copy(made, out)

    monkeypatch.setattr(files, "_copy", interrupted)
    with pytest.raises(KeyboardInterrupt):
        TextFile(linked).write("new\n")
    assert linked.read_text() == "new\n"


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no room can be taken beforehand")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_is_noticed_before_data_are_copied(linked, monkeypatch, code):
    def full(handle, _start, n):
        os.truncate(handle, n - 1)
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(GgufSpecError, match=os.strerror(code)) as caught:
        TextFile(linked).write("new" * 100)
    assert caught.value.hint.startswith("free disk space")
    assert linked.read_text() == "old text, which is longer\n"


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no room can be taken beforehand")
def test_a_disk_that_cannot_take_room_beforehand_is_written(linked, monkeypatch):
    def unknown(*_):
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unknown)
    TextFile(linked).write("new" * 100)
    assert linked.read_text() == "new" * 100


def test_a_file_that_is_mounted_is_written_in_place(folder, monkeypatch):
    path = folder / "notes.txt"
    path.write_text("old")

    def busy(*_, **__):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(files, "move", busy)
    TextFile(path).write("new")
    assert (path.read_text(), [one.name for one in folder.iterdir()]) == ("new", ["notes.txt"])


# ---- what is not of this program


def test_files_of_the_user_with_names_like_temporary_ones_stay(folder):
    """They were removed, and a pipe of such a name was opened, for ever."""
    path = folder / "x.txt"
    path.write_text("old\n")
    (folder / "x.txt.0123abcd.part").write_text("mine")
    os.mkfifo(folder / "x.txt.0123abce.part")
    with atomic_write(path) as part:
        part.write_text("old\n")
        ours = part.name
    of_ours = ours[: -len("01234567.part")]
    os.mkfifo(folder / f"{of_ours}01234567.part")
    (folder / f"{of_ours}01234568.part").symlink_to("x.txt.0123abcd.part")
    before = sorted(folder.iterdir())
    TextFile(path).write("new\n")
    assert sorted(folder.iterdir()) == before
    assert (folder / "x.txt.0123abcd.part").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_leftover_is_removed_only_of_this_user_or_the_owner_of_the_file(folder):
    path = folder / "x.txt"
    path.write_text("old\n")
    os.chown(path, USER, GROUP)
    with atomic_write(path) as part:
        name = part.name[: -len("01234567.part")]
    for i, owner in enumerate((0, USER, USER + 1)):
        (folder / f"{name}0123456{i}.part").write_text("left")
        os.chown(folder / f"{name}0123456{i}.part", owner, owner)
    with atomic_write(path):
        pass
    assert sorted(one.name for one in folder.iterdir()) == [f"{name}01234562.part", "x.txt"]


def test_a_disk_without_locks(folder, monkeypatch):
    """Each file got a temporary one, and the next, without an end."""
    fcntl = pytest.importorskip("fcntl")

    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    path = folder / "x.txt"
    with atomic_write(path) as part:
        left = folder / f"{part.name[:-13]}01234567.part"
    left.write_text("of another process, perhaps")
    monkeypatch.setattr(fcntl, "flock", none)
    with atomic_write(path) as part:
        part.write_text("new")
    assert path.read_text() == "new"
    assert left.exists()


def test_what_is_a_device(folder):
    for name in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/null"):
        assert is_device(Path(name)), name
    (folder / "out").symlink_to("/dev/stdout")
    (folder / "text").write_text("a")
    (folder / "link").symlink_to("text")
    (folder / "gone").symlink_to("nothing")
    os.mkfifo(folder / "pipe")
    assert is_device(folder / "out") and is_device(folder / "pipe")
    for name in ("text", "link", "gone", "none", "a" * 300, ""):
        assert not is_device(folder / name), name
    assert not is_device(Path("/dev/shm/new.txt"))


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no such folder")
def test_a_file_in_a_folder_of_devices_is_replaced_at_once():
    path = Path(f"/dev/shm/gguf-spec-{os.getpid()}.txt")
    try:
        path.write_text("old\n")
        with path.open() as reader:
            TextFile(path).write("new\n")
            assert reader.read() == "old\n"
        assert path.read_text() == "new\n"
    finally:
        path.unlink()


def test_a_name_with_an_end():
    assert with_end(Path("a/b"), ".ahead") == Path("a/b.ahead")
    for name in ("长" * 85, "a" * 255, "a" * 250):
        made = with_end(Path("a", name), ".ahead")
        assert len(os.fsencode(made.name)) <= 255
        assert made.name.endswith(".ahead") and made.parent == Path("a")
        assert made != with_end(Path("a", f"b{name[1:]}"), ".ahead")
        assert made != with_end(Path("a", f"{name[:-1]}b"), ".ahead")


# ---- texts


@pytest.mark.parametrize(("old", "text", "new"), [
    (b"a\r\nb", "a\nb\nc", b"a\r\nb\r\nc"),
    (b"a\r\nb", "a\nb\n", b"a\r\nb\r\n"),
    (b"a\r\nb\r\n", "a\nb", b"a\r\nb"),
    (b"a\r\nb", "a", b"a"),
    (b"a\r\nb", "x\na\nb", b"x\r\na\r\nb"),
    (b"a\r\nb\nc\r\nd", "a\nB\nc\nd", b"a\r\nB\nc\r\nd"),
    (b"a\r\nb\nc\r\nd", "A\nb\nC\nd", b"A\r\nb\nC\r\nd"),
    (b"a\nb\nc\r\nd\r\n", "a\nb\nc\nx\ny\nd\n", b"a\nb\nc\r\nx\r\ny\r\nd\r\n"),
    (b"a\rb\r\nc\r\n", "a\rb\nc\nd\n", b"a\rb\r\nc\r\nd\r\n"),
    (b"a\r\r\nb\n", "a\r\nB\n", b"a\r\r\nB\n"),
    (b"\xef\xbb\xbfa\r\nb", "A\nb\nc", b"\xef\xbb\xbfA\r\nb\r\nc"),
    (b"ab", "a\nb", b"a\nb"),
])  # fmt: skip
def test_line_ends(folder, old, text, new):
    path = folder / "notes.txt"
    path.write_bytes(old)
    TextFile(path).write(text)
    assert path.read_bytes() == new
    Undo().restore(path)
    assert path.read_bytes() == old
    Undo().restore(path)
    assert path.read_bytes() == new


def test_a_text_that_another_program_writes_while_the_old_one_is_kept_stays(folder, monkeypatch):
    path, keep = folder / "notes.txt", Undo.keep
    path.write_text("old\n")

    def keeping(*given):
        path.write_text("of another program\n")
        return keep(*given)

    source = TextFile(path)
    monkeypatch.setattr(Undo, "keep", keeping)
    with pytest.raises(GgufSpecError, match="another program has changed"):
        source.write("new\n")
    assert path.read_text() == "of another program\n"
    path.write_text("old\n")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    TextFile(path).write("new\n")
    monkeypatch.setattr(Undo, "keep", keeping)
    with pytest.raises(GgufSpecError, match="was changed since"):
        Undo().restore(path)
    assert path.read_text() == "of another program\n"


@pytest.mark.parametrize("damage", [b"", b"ol", b"\0\0\0\0", b"old\nand more"])
def test_a_damaged_undo_text_is_not_written(folder, damage):
    path = folder / "notes.txt"
    path.write_text("old\n")
    TextFile(path).write("new\n")
    (kept,) = Undo().folder.glob("*.text")
    kept.write_bytes(damage)
    with pytest.raises(GgufSpecError, match="that was kept is damaged; nothing was written"):
        Undo().restore(path)
    assert path.read_text() == "new\n"


# ---- several files


@pytest.fixture
def changes(folder):
    made = []
    for name in "abc":
        (folder / name).write_text(f"old {name}\n")
        made.append(edit_module.Change(TextFile(folder / name), None, {}, b"", f"new {name}\n"))
    return made


@pytest.mark.parametrize("at", ["before", "after"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GgufSpecError("full.", "x.")])
def test_all_files_are_written_or_none(folder, changes, monkeypatch, capsys, error, at):
    """Ctrl-C comes before or after the second one has its new name."""
    write = TextFile.write

    def writing(source, *given):
        if source.path.name == "b" and at == "before":
            raise error
        write(source, *given)
        if source.path.name == "b":
            raise error

    monkeypatch.setattr(TextFile, "write", writing)
    with pytest.raises(error if isinstance(error, type) else type(error)):
        edit_module.write_changes(changes, None)
    assert [(folder / one).read_text() for one in "abc"] == [f"old {one}\n" for one in "abc"]
    said = "" if isinstance(error, GgufSpecError) else "Nothing was written.\n"
    assert capsys.readouterr().err == said


def test_taking_back_spares_what_another_program_wrote(folder, changes, monkeypatch, capsys):
    write = TextFile.write

    def writing(source, *given):
        if source.path.name == "c":
            (folder / "a").write_text("of another program\n")
            raise KeyboardInterrupt
        write(source, *given)

    monkeypatch.setattr(TextFile, "write", writing)
    with pytest.raises(KeyboardInterrupt):
        edit_module.write_changes(changes, None)
    texts = [(folder / one).read_text() for one in "abc"]
    assert texts == ["of another program\n", "old b\n", "old c\n"]
    assert capsys.readouterr().err.startswith(f"{folder / 'a'} stays changed: another program")
