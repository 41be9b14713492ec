"""`gguf-spec embed`: one line of JSON for each text."""

import json

import numpy as np
import pytest

import gguf_spec
from tests.support import encoders


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return encoders.write(tmp_path_factory.mktemp("embed") / "bert.gguf")


def test_texts_of_arguments_files_and_the_pipe(here, bert, tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("the cat\n\n moon \n")
    with gguf_spec.load(bert, threads=1, extra_bufts=False) as llm:
        vectors = llm.embed(["sun", "the cat", " moon "])
    one = here("embed", "-m", bert, "--threads", "1", "--device", "none", "sun", "-f", lines)
    assert (one.returncode, one.stderr) == (0, b"")
    made = [json.loads(line) for line in one.stdout.splitlines()]
    np.testing.assert_allclose(made, vectors, atol=2e-4)
    env = {"GGUF_SPEC_GPU_LAYERS": "auto"}  # of all commands
    piped = here("embed", "-m", bert, "--no-normalize", stdin=b"the cat\n\nmoon\n", env=env)
    raw = [json.loads(line) for line in piped.stdout.splitlines()]
    assert len(raw) == 2 and np.linalg.norm(raw[0]) > 2


def test_errors(here, bert):
    for arguments, stdin, words in (
        (("-m", bert), b"\n \n", b"all lines are empty"),
        (("-m", bert, "sun " * 70), b"", b"the text 0 has"),
        (("-m", bert, "--pooling", "max", "a"), b"", b"max"),
        (("-m", bert, "--device", "CUDA7", "a"), b"", b"--device is 'CUDA7'"),
        (("-m", bert, "--pooling", "rank", "a"), b"", b"no classification head"),
        (("a",), b"", b"sunken"),
    ):
        env = {"GGUF_SPEC_MODEL": "sunken"} if words == b"sunken" else {}
        done = here("embed", *arguments, stdin=stdin, env=env)
        assert done.returncode in (1, 2) and words in done.stderr, done.stderr
        assert b"Hint:" in done.stderr and b"Traceback" not in done.stderr
    refused = here("generate", "-m", bert, "a", "-d", "none")
    assert refused.returncode == 1 and b"is an embedding model (bert)" in refused.stderr
    checked = here("doctor", "-m", bert)
    assert b"for embeddings with the pooling mean" in checked.stdout
