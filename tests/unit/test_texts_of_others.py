"""Texts from files and pipes: reading ends, and what Windows wrote is read as it was meant."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from gguf_spec.cli.embed import _texts
from gguf_spec.cli.generate import read_prompt
from gguf_spec.cli.text_file import TextFile
from gguf_spec.errors import GgufSpecError
from gguf_spec.runtime.load import InvalidOptionError, read_reference
from gguf_spec.system import files
from gguf_spec.system.files import read_text

TEXT = "A café, naïvely: 価格 €5\nand a second line\n"
ASCII = "2026-11-27 ERROR a line of a log\r\n"


@pytest.mark.parametrize(
    "data",
    [
        TEXT.encode("utf-8"), TEXT.encode("utf-8-sig"), TEXT.encode("utf-16"), TEXT.encode("utf-32"),
        b"\xfe\xff" + TEXT.encode("utf-16-be"), TEXT.encode("utf-16-le"), TEXT.encode("utf-16-be"),
        TEXT.encode("utf-32-le"), TEXT.encode("utf-32-be"),
    ],
)  # fmt: skip
def test_marks_and_encodings(tmp_path, monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", None)
    (tmp_path / "text").write_bytes(data)
    assert read_text(tmp_path / "text") == read_text(io.BytesIO(data)) == TEXT
    assert read_reference(tmp_path / "text") == TEXT
    assert read_prompt(None, [tmp_path / "text"]).strip() == TEXT.strip()


@pytest.mark.parametrize(
    "data", [b"", b"a", b"\xff", b"a\0b", bytes(64), b"caf\xe9", b"\0" * 8 + ASCII.encode()]
)
def test_what_is_no_utf_16_is_read_as_before(data):
    assert read_text(io.BytesIO(data)) == data.decode("utf-8", errors="replace")


class Endless(io.RawIOBase):
    """`yes`, or `/dev/zero`."""

    n_read = 0

    def read(self, n=-1):
        assert 0 <= n <= files.MOST_TEXT + 1, "without an end"
        self.n_read += n
        return b"y\n" * (n // 2) + b"y" * (n % 2)


@pytest.fixture
def pipe(monkeypatch):
    monkeypatch.setattr(files, "MOST_TEXT", 1 << 12)
    stream = Endless()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream, isatty=lambda: False))
    return stream


def test_reading_an_endless_pipe_ends(pipe):
    for read in (lambda: read_prompt("-", []), lambda: _texts((), ())):
        with pytest.raises(click.FileError) as error:
            read()
        said = error.value.format_message()
        assert "standard input" in said
        assert "more than 4,096 bytes" in said
        assert "256 tokens" in said
    assert pipe.n_read == 2 * 4097


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no endless file here")
def test_reading_an_endless_file_ends(pipe):
    zeros = Path("/dev/zero")
    with pytest.raises(click.FileError) as error:
        read_prompt("a", [zeros])
    assert "/dev/zero" in error.value.format_message()
    with pytest.raises(InvalidOptionError, match=r"4,096 bytes"):
        read_reference(zeros)
    with pytest.raises(GgufSpecError, match="no context holds"):
        TextFile(zeros)


@pytest.mark.parametrize("data", [ASCII.encode("utf-16"), ASCII.encode("utf-16-le")])
def test_a_file_to_edit_in_utf_16_is_named(tmp_path, data):
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(GgufSpecError, match="in UTF-16-LE, not UTF-8"):
        TextFile(tmp_path / "log")
