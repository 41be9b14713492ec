"""`gguf-spec models quantize` from end to end."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.support import children, tiny


@pytest.fixture
def quantise(here, tmp_path):
    """Quantise the model whose text is abc, into an empty folder."""

    def run(*args, model="abc.gguf", out="small.gguf", **options):
        return here("models", "quantize", model, tmp_path / out, "--threads", "1", *args, **options)

    return run


@pytest.mark.full
def test_a_line_at_the_end(quantise, here, tmp_path):
    result = quantise("--type", "q8_0")
    assert (result.returncode, result.stderr) == (0, b"")
    line = rf"{re.escape(str(tmp_path))}/small\.gguf: Q8_0, 0\.1 MiB instead of [\d.]+ MiB, [89]\.\d\d bits per weight instead of 32\.00, in [\d.]+ s\n"
    assert re.fullmatch(line, result.stdout.decode())
    says = [
        here("generate", "a", "-m", path, "-d", "none", "--raw", "-t", "0", "--threads", "1").stdout
        for path in ("abc.gguf", tmp_path / "small.gguf")
    ]
    assert says[0] == says[1] == b"bcdefghijkl\n"


@pytest.mark.full
def test_the_written_file_drafts(quantise, here, tmp_path):
    quantise("--type", "Q4_0")
    args = ("-m", "abc.gguf", "-d", tmp_path / "small.gguf", "--raw", "-t", "0", "--threads", "1", "-k", "2", "--fixed", "--json")  # fmt: skip
    data = json.loads(here("generate", "a", *args).stdout)
    assert data["text"] == "bcdefghijkl"
    assert data["stats"]["n_accepted"] > 0


def test_quiet(quantise):
    result = quantise("--type", "Q8_0", "-q")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


@pytest.mark.full
def test_json_and_the_note(quantise, here, tmp_path):
    quantise("--type", "Q8_0", "-q")
    args = (tmp_path / "small.gguf", tmp_path / "smaller.gguf", "--type", "Q4_0", "--json")
    result = here("models", "quantize", *args, "--threads", "1")
    data = json.loads(result.stdout)
    assert (result.returncode, data["type"], data["requantized"]) == (0, "Q4_0", True)
    assert data["target_bytes"] == (tmp_path / "smaller.gguf").stat().st_size < data["source_bytes"]
    assert (
        result.stderr.decode()
        == "Note: small.gguf is already quantised, which lowers the quality; use a file in F32, F16 or BF16 if possible.\n"
    )


@pytest.mark.full
def test_rows_that_blocks_do_not_divide_are_reported(quantise):
    assert re.search(
        rb"s, \d+ of 12 tensors in a larger type, because blocks do not divide their rows\n",
        quantise("--type", "Q4_K_M").stdout,
    )


@pytest.mark.full
def test_a_bundled_model_by_its_name(quantise, tmp_path):
    result = quantise("--type", "Q4_0", "-q", model="tales")
    assert (result.returncode, result.stderr) == (0, b"")
    assert (tmp_path / "small.gguf").exists()


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--type", "Q9"), 2, "--type is 'Q9' but must be one of F16, BF16, Q8_0,"),
        ((), 2, "--type"),
        (("--type", "Q8_0", "--threads", "0"), 2, "threads is 0"),
    ],
)
def test_errors_name_the_cause(quantise, tmp_path, args, code, said):
    result = quantise(*args)
    assert (result.returncode, result.stdout) == (code, b"")
    assert said in result.stderr.decode()
    assert result.stderr.decode().count("\n") == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_files_are_kept(quantise, here, tmp_path):
    (tmp_path / "small.gguf").write_bytes(b"mine")
    result = quantise("--type", "Q8_0")
    assert (result.returncode, (tmp_path / "small.gguf").read_bytes()) == (2, b"mine")
    assert b"--force to replace the file." in result.stderr
    small = tmp_path / "small.gguf"
    small.chmod(0o640)
    (tmp_path / "other.gguf").hardlink_to(small)
    result = quantise("--type", "Q8_0", "--force")
    assert result.returncode == 0
    said = f"Note: {small} is replaced; its other names, which are hard links, keep the old file."
    assert said in result.stderr.decode()
    assert (tmp_path / "other.gguf").read_bytes() == b"mine"
    assert stat.S_IMODE(small.stat().st_mode) == 0o640
    same = here("models", "quantize", small, small, "--type", "Q4_0", "--force")
    assert (same.returncode, b"is the model itself" in same.stderr) == (2, True)
    gone = quantise("--type", "Q8_0", model="gone.gguf", out="x.gguf")
    assert (gone.returncode, b"gone.gguf" in gone.stderr) == (1, True)


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no such signals there")
def test_ctrl_c_leaves_nothing(tmp_path, environment):
    """The process group gets the signal, as from a terminal; the quantiser is in the middle of a tensor."""
    rows = np.random.default_rng(0).normal(size=(20_000, 1024)).astype(np.float32)
    big = tiny.write(tmp_path / "big.gguf", tensors={"blk.0.ffn_up.weight": rows})
    args = (big, tmp_path / "small.gguf", "--type", "Q2_K", "--threads", "1")
    command = [sys.executable, "-m", "gguf_spec", "models", "quantize", *args]
    child = children.Child(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 180
    while (
        not any(part.stat().st_size for part in tmp_path.glob(".gguf-spec-*.part"))
        and time.monotonic() < deadline
    ):
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=180)
    assert (child.returncode, out, err.strip()) == (130, b"", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["big.gguf"]


@pytest.mark.full
@pytest.mark.skipif(os.name == "nt", reason="no pseudo-terminals there")
def test_a_bar_at_a_terminal(tmp_path, work, environment):
    args = ("tales", tmp_path / "small.gguf", "--type", "Q4_0", "--threads", "1")
    command = [sys.executable, "-m", "gguf_spec", "models", "quantize", *args]
    code, seen = children.at_terminal(command, cwd=work, env=environment)
    assert code == 0, seen
    assert b"quantising" in seen
    assert re.search(rb"\d+ of \d+ tensors", seen)
    assert b"bits per weight instead of" in seen
