"""`--parallel`, from the command line, the environment and the config file."""

import click
import pytest

from gguf_spec.cli import config
from gguf_spec.cli.batch import batch
from gguf_spec.cli.error_text import option_name
from gguf_spec.cli.options import REQUESTS_AT_ONCE
from gguf_spec.cli.serve import serve
from gguf_spec.errors import Option
from tests.batch.conftest import read, write
from tests.support import families, tiny


@pytest.mark.parametrize(("text", "value"), [("4", 4), (" auto", "auto"), ("AUTO", "auto"), (2, 2)])
def test_values(text, value):
    assert REQUESTS_AT_ONCE.convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", "four", "1.5", "auto4"])
def test_wrong_values(text):
    with pytest.raises(click.BadParameter, match="not a number of requests"):
        REQUESTS_AT_ONCE.convert(text, None, None)


@pytest.mark.parametrize("command", [serve, batch])
def test_errors_name_the_option(command):
    assert option_name(Option("parallel", 3), command) == "--parallel 3"


@pytest.mark.parametrize(
    "line", ["parallel = 3", 'parallel = "3"', 'num_parallel = "auto"', "n-parallel = 3"]
)
def test_the_config_file_has_a_number_or_a_text(tmp_path, monkeypatch, line):
    file = tmp_path / "gguf-spec" / "config.toml"
    file.parent.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file.write_text(f"[serve]\n{line}\n")
    found = config.defaults(serve)
    assert found.keys() == {"parallel"}
    file.write_text("[serve]\nparallel = true\n")
    with pytest.raises(config.ConfigFileError, match="a whole number or text"):
        config.defaults(serve)


@pytest.mark.parametrize("n", ["1", "3", "auto"])
def test_a_batch_loads_the_model_for_them(here, work, tmp_path, n):
    """All texts are the same."""
    lines = [{"prompt": "abc"[: 1 + i % 3], "max_tokens": 4 + i} for i in range(6)]
    write(tmp_path / "in.jsonl", lines)
    args = ("-m", work / "abc.gguf", "-t", "0", "--raw", "--threads", "1", "--ctx", "256")
    done = here(
        "batch", "in.jsonl", "out.jsonl", *args, env={"GGUF_SPEC_PARALLEL": n}, cwd=tmp_path
    )
    results = read(tmp_path / "out.jsonl")
    assert [one["text"] for one in results] == [
        "bcde",
        "cdefg",
        "defghi",
        "bcdefgh",
        "cdefghij",
        "defghijkl",
    ]
    assert done.returncode == 0


@pytest.mark.parametrize(("size", "code"), [("64MB", 0), ("0", 0), ("auto", 0), ("64", 2)])
def test_the_memory_for_earlier_texts(here, work, tmp_path, size, code):
    write(tmp_path / "in.jsonl", [{"prompt": "abc", "max_tokens": 3}])
    args = ("-m", work / "abc.gguf", "-t", "0", "--raw", "--threads", "1", "--ctx", "256")
    done = here("batch", "in.jsonl", "out.jsonl", *args, "--prefix-memory", size, cwd=tmp_path)
    assert done.returncode == code
    if code:
        assert b"--prefix-memory is '64' but must be a size such as 500MB" in done.stderr


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "note"),
    [
        (
            families.family("qwen3next"),
            "Note: m.gguf is recurrent or hybrid, and its state is not restored with parallel "
            "requests: plain decoding is used. To use drafts, set --parallel 1.",
        ),
        (
            families.with_head(families.family("step35"), 3),
            "Note: prediction heads are not used with parallel requests: drafts come from "
            "elsewhere.",
        ),
    ],
    ids=["hybrid", "head"],
)
def test_a_note_names_what_parallel_requests_exclude(here, tmp_path, model, note):
    """Also without options for drafts; one request at a time has no such note."""
    tiny.write(tmp_path / "m.gguf", model)
    write(tmp_path / "in.jsonl", [{"prompt": "a", "max_tokens": 4}])
    args = ("-m", "./m.gguf", "--raw", "--threads", "1")
    for n, expected in ((2, 1), (1, 0)):
        done = here("batch", "in.jsonl", f"{n}.jsonl", *args, "--parallel", str(n), cwd=tmp_path)
        assert done.returncode == 0
        assert done.stderr.decode().splitlines().count(note) == expected
