"""`gguf-spec models trim` from end to end."""

import json

import pytest

from gguf_spec.cli.models import trim as command
from gguf_spec_trim import KEEP


@pytest.mark.full
def test_a_line_and_a_draft(here, tmp_path):
    (tmp_path / "notes.txt").write_text("Once upon a time there was a king. " * 20)
    out = tmp_path / "small.gguf"
    words = ("models", "trim", "tales-draft", "--keep", "1024")
    result = here(*words, "--from", tmp_path / "notes.txt", "-o", out)
    assert (result.returncode, result.stderr) == (0, b"")
    line = result.stdout.decode()
    assert line.startswith(f"{out}: 1,024 of 4,096 tokens, 100.00% of the ")
    args = ("Once upon", "-t", "0", "-n", "24", "--threads", "1", "--json")
    runs = [
        here("generate", *args, "-m", "tales", *how)
        for how in (["-d", out, "-k", "3", "--fixed"], ["-d", "none"])
    ]
    data = [json.loads(one.stdout) for one in runs]
    assert data[0]["text"] == data[1]["text"]
    assert data[0]["stats"]["n_accepted"] > 0
    assert b"the draft small.gguf knows 1,024 of the 4,096 tokens." in runs[0].stderr


def test_the_default_file_is_in_this_folder(here, tmp_path):
    args = ("models", "trim", "tales-draft", "--keep", "600", "--json")
    made = json.loads(here(*args, cwd=tmp_path).stdout)
    assert [one.name for one in tmp_path.iterdir()] == ["tales-draft-Q4_0-600.gguf"]
    assert (made["n_kept"], made["coverage"]) == (600, None)
    again = here(*args, cwd=tmp_path)
    assert again.returncode == 2
    assert b"exists" in again.stderr
    assert b"--force" in again.stderr
    assert here(*args, "--force", cwd=tmp_path).returncode == 0


def test_errors_name_the_options(here, tmp_path):
    out = ("-o", tmp_path / "a.gguf")
    few = here("models", "trim", "tales-draft", "--keep", "5", *out)
    assert (few.returncode, few.stdout) == (2, b"")
    assert few.stderr.startswith(b"Error: --keep is 5 but must be")
    missing = here(
        "models", "trim", "tales-draft", "--from", "no-such-words.txt", "--keep", "600", *out
    )
    assert missing.stderr.startswith(
        b"Error: --from is 'no-such-words.txt' but must be readable text files"
    )
    assert not list(tmp_path.iterdir())


def test_the_default_is_that_of_the_library():
    keep = next(one for one in command.params if one.name == "keep")
    assert keep.default == KEEP
