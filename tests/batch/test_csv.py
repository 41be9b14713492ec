"""Batches of CSV files."""

import csv
import json

import pytest

from gguf_spec.batch import Batch
from gguf_spec.errors import BatchFileError
from tests.batch.conftest import DEFAULTS, read, write


def save(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding, newline="")
    return path


def table(path, delimiter=",", encoding="utf-8"):
    with path.open(encoding=encoding, newline="") as file:
        return [*csv.reader(file, delimiter=delimiter)]


def run(source, target, llm):
    with Batch(source, target) as batch:
        return batch.run(llm, DEFAULTS)


def test_rows_are_plain_lines(llm, tmp_path):
    """The texts are those of the same lines in JSON, whose number is that of the row's first line."""
    source = save(
        tmp_path / "in.csv",
        'name,prompt,id,max_tokens,seed\n"A, ""b""",ab,x,5,\n\nB,"a\nb",,,7\n"=C",ba,z,no,\n',
    )
    end = run(source, tmp_path / "out.csv", llm)
    lines = [
        b"",
        {"prompt": "ab", "id": "x", "max_tokens": 5},
        b"",
        {"prompt": "a\nb", "seed": 7},
        b"",
        {"prompt": "ba", "id": "z", "max_tokens": "no"},
    ]
    run(write(tmp_path / "in.jsonl", lines), tmp_path / "same.jsonl", llm)
    same = read(tmp_path / "same.jsonl")
    rows = table(tmp_path / "out.csv")
    assert (end.n_done, end.n_failed, len(rows)) == (3, 1, 4)
    assert rows[0] == [
        "name",
        "prompt",
        "id",
        "max_tokens",
        "seed",
        "text",
        "finish_reason",
        "error",
    ]
    assert [row[:5] for row in rows[1:]] == [
        ['A, "b"', "ab", "x", "5", ""],
        ["B", "a\nb", "", "", "7"],
        ["=C", "ba", "z", "no", ""],
    ]
    assert [row[5] for row in rows[1:]] == [one.get("text", "") for one in same]
    assert len(rows[1][5]) and rows[1][6:] == ["length", ""]
    assert rows[3][6] == "" and "max_tokens" in rows[3][7]
    beside = read(tmp_path / "out.csv.jsonl")
    assert [{**one, "request_id": 0} for one in beside] == [
        {**one, "request_id": 0} for one in same
    ]


@pytest.mark.parametrize(("delimiter", "encoding"), [(";", "utf-8-sig"), ("\t", "utf-8")])
def test_delimiters_and_marks_stay(llm, tmp_path, delimiter, encoding):
    source = save(
        tmp_path / "in.CSV",
        delimiter.join(["prompt", "ü, x"]) + "\r\n" + delimiter.join(["ab", "é"]),
        encoding,
    )
    run(source, tmp_path / "out.csv", llm)
    assert (tmp_path / "out.csv").read_bytes().startswith(b"\xef\xbb\xbf") == (
        encoding == "utf-8-sig"
    )
    assert table(tmp_path / "out.csv", delimiter, encoding)[1][:2] == ["ab", "é"]


def test_rows_can_have_results_in_json(llm, tmp_path):
    run(save(tmp_path / "in.csv", "prompt\nab\n"), tmp_path / "out.jsonl", llm)
    assert [*tmp_path.iterdir()] == [*tmp_path.iterdir()]
    assert read(tmp_path / "out.jsonl")[0]["id"] == 2, "the number of the line"
    assert not (tmp_path / "out.csv").exists()


def test_it_continues(llm, tmp_path):
    source = save(tmp_path / "in.csv", "prompt\nab\nba\naa\n")
    run(source, tmp_path / "out.csv", llm)
    wanted = (tmp_path / "out.csv").read_bytes()
    kept = tmp_path / "out.csv.jsonl"
    first = kept.read_bytes().splitlines(keepends=True)[0]
    kept.write_bytes(first)
    (tmp_path / "out.csv").unlink()
    with Batch(source, tmp_path / "out.csv") as batch:
        assert batch.progress.n_before == 1
        batch.run(llm, DEFAULTS)
    assert (tmp_path / "out.csv").read_bytes() == wanted


@pytest.mark.parametrize(("text", "fact", "number"), [
    ("prompt,b\na,b\n\na\n", "has 1 columns in line 4, and 2 in its first line", 4),
    ('prompt,b\n"x\ny",b\na,b,c\n', "has 3 columns in line 4, and 2 in its first line", 4),
    ("text\na\n", 'has no column "prompt" in its first line', 1),
    ("", 'has no column "prompt" in its first line', 1),
    ("prompt,a,a\n", 'has two columns "a"', 1),
    ("prompt,error\n", 'has a column "error", which the results add: rename it', 1),
    ('prompt\na\n"b\n', "is not CSV in line 3", 3),
    ('prompt\n"a"b\n', "is not CSV in line 2", 2),
])  # fmt: skip
def test_what_is_no_table(tmp_path, text, fact, number):
    source = save(tmp_path / "in.csv", text)
    with pytest.raises(BatchFileError) as caught:
        Batch(source, tmp_path / "out.csv")
    assert fact in caught.value.message
    assert caught.value.line == number
    assert [*tmp_path.iterdir()] == [source], "nothing was written"


def test_no_utf_8(tmp_path):
    source = save(tmp_path / "in.csv", "prompt\nü\n", "latin-1")
    with pytest.raises(BatchFileError, match="no UTF-8"):
        Batch(source, tmp_path / "out.csv")


def test_no_file_is_lost(llm, tmp_path):
    source, other = save(tmp_path / "in.csv", "prompt\nab\n"), save(tmp_path / "other.csv", "a,b\n")
    with pytest.raises(BatchFileError, match="is there, and not of gguf-spec batch"):
        Batch(source, other)
    with pytest.raises(BatchFileError, match="both the file with the requests"):
        (tmp_path / "in.csv.jsonl").touch()
        Batch(source, source)
    with pytest.raises(BatchFileError, match="the requests are no such"):
        Batch(write(tmp_path / "in.jsonl", [{"prompt": "ab"}]), tmp_path / "new.csv")
    assert other.read_text() == "a,b\n"
    assert source.read_text() == "prompt\nab\n"
    assert json.loads((tmp_path / "in.jsonl").read_text()) == {"prompt": "ab"}
