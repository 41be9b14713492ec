"""`gguf-spec tune` from end to end, with any measured values."""

import json
import re

import pytest

from gguf_spec.cli.doctor import cost_lines
from tests.unit.test_tune import tuning

PAIR = ("-m", "abc.gguf", "-d", "abc.gguf", "--threads", "1")


@pytest.fixture(scope="module")
def tuned(here):
    return here("tune", *PAIR)


def test_a_table_and_a_sentence(tuned):
    assert (tuned.returncode, tuned.stderr) == (0, b"")
    sentence, _, *lines = tuned.stdout.decode().splitlines()
    assert re.fullmatch(r"abc\.gguf with abc\.gguf, measured in [\d.]+ s", lines[0])
    assert lines[2].split("  ")[0] == "tokens in a pass"
    # On a busy machine some times are not plausible, and their widths are left out.
    rows = [line.split() for line in lines[3 : lines.index("", 3)]]
    widths = ["1", "2", "3", "4", "5", "6", "7", "8", "12", "16", "24", "33"]
    shown = [row[0] for row in rows]
    assert shown == [width for width in widths if width in shown]
    assert shown[0] == "1"
    rest = lines[len(rows) + 4 :]
    cells = [cell.replace(",", "") for row in rows for cell in row[1:]]
    assert {len(row) for row in rows} == {4}
    assert all(cell == "-" or float(cell) >= 0 for cell in cells)
    assert [line[:16].strip() for line in rest[:6]] == [
        "context",
        "draft context",
        "exact passes",
        "rounding noise",
        "draft",
        "Python",
    ]
    assert rest[2].split("   ")[-1].strip() == "all, up to the longest draft"
    assert re.search(r"right in \d+ of 129 places \(\d+%\)", rest[4])
    assert sentence.startswith("A token of the target takes ")
    assert len(rest) == 6


def test_it_is_kept(here, tuned):
    """The next load uses the result: the file is not written again."""
    doctor = json.loads(here("doctor", *PAIR, "--json").stdout)
    assert doctor["costs"]["sentence"] == tuned.stdout.decode().splitlines()[0]


def test_json(here):
    result = here("tune", *PAIR, "--json")
    assert (result.returncode, result.stderr) == (0, b"")
    data = json.loads(result.stdout)
    for table in (data["profile"]["target"], data["profile"]["draft"]):
        # beside other programs, widths that contradict the others are left out: less than half of 25
        assert 13 <= len(table) <= 25
    assert data["kept"] is True
    assert 0 <= data["agreement"] <= 1
    assert data["sentence"].startswith("A token of the target takes ")


def test_without_a_draft(here):
    words = ("tune", "-m", "abc.gguf", "-d", "none", "--threads", "1")
    sentence, _, *lines = here(*words, text=True).stdout.splitlines()
    assert lines[0].startswith("abc.gguf, measured in")
    table = lines[3 : lines.index("", 3)]  # a busy machine makes times that cannot be, left out
    assert len(table) > 3
    assert all(len(line.split()) == 3 for line in table)
    assert "Drafts from the text " in sentence


def test_where_it_cannot_be_kept(here, tmp_path):
    (tmp_path / "gguf-spec").write_text("")
    result = here("tune", *PAIR, "--extra-bufts", env={"XDG_CACHE_HOME": str(tmp_path)})
    assert (result.returncode, result.stderr) == (
        0,
        b"Note: the result cannot be saved; `gguf-spec doctor` shows the reason.\n",
    )
    assert b"A token of the target takes" in result.stdout


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [(("-m", "no.gguf"), 1, "there is no file"), (("--threads", "0"), 2, "--threads is 0")],
)
def test_errors_name_the_cause(here, args, code, said):
    result = here("tune", *args)
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in result.stderr.decode()
    assert result.stderr.decode().count("\n") == 2


@pytest.mark.parametrize("seconds", [0.00004, 0.0006, 0.059, 0.4, 12.0])
def test_no_line_of_the_table_is_too_long(seconds):
    one = tuning(
        {1: seconds, 2: seconds, 33: 9 * seconds},
        {1: seconds / 8, 33: seconds},
        0.5,
        token_s=0.0001,
        proposal_s=0.0002,
    )
    lines = cost_lines(one)[2:]  # behind the sentence
    assert max(map(len, lines)) <= 80
    first = lines[3].split()
    assert first[0] == "1"
    assert lines[4].split()[3] == "-"  # the draft model was not measured there
    assert float(first[1].replace(",", "")) == pytest.approx(1000 * seconds, rel=0.02)
    assert float(lines[4].split()[2].replace(",", "")) == pytest.approx(500 * seconds, rel=0.02)
