"""The question whether to download a model, and the message in place of the question."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import children, wheels

ROOT = Path(__file__).parents[2]
TALES = (ROOT / "gguf_spec/data/tales/tales-draft-Q4_0.gguf").read_bytes()
ENTRY = wheels.entry(TALES)
FIELDS = f"file: {wheels.MEMBER}, size_bytes: {len(TALES)}, sha256: {ENTRY.parts[0].sha256}"
MODELS = f"""models:
  smollm2-135m-instruct: {{package: some-model==1.0, {FIELDS}, license: apache-2.0, draft: ngram}}
  paired: {{package: some-model==1.0, {FIELDS}, license: mit, draft: helper}}
  helper: {{package: some-model==1.0, {FIELDS}, license: gemma}}
  gone: {{package: some-model==2.0, {FIELDS}, license: mit, draft: ngram}}
"""


@pytest.fixture
def settings(environment, tmp_path):
    """A home without models, and a package index that is a folder with one wheel."""
    wheels.wheel(tmp_path / "wheels", [(wheels.MEMBER, TALES)])
    (tmp_path / "models.yaml").write_text(MODELS)
    own = {
        "HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "hf"), "GGUF_SPEC_MODELS_FILE": str(tmp_path / "models.yaml"),
        "COLUMNS": "200", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    kept = {name: value for name, value in environment.items() if name != "GGUF_SPEC_MODEL"}
    return kept | wheels.environment(tmp_path / "wheels", tmp_path) | own


@pytest.fixture
def run(here, settings, tmp_path):
    def start(*args, env=()):
        return here(
            *args, env={"GGUF_SPEC_MODEL": None} | settings | dict(env), cwd=tmp_path, text=True
        )

    return start


@pytest.fixture
def terminal(settings, tmp_path):
    def start(*args, typed=b"", env=()):
        line = [sys.executable, "-m", "gguf_spec", *args]
        code, seen = children.at_terminal(line, typed=typed, env=settings | dict(env), cwd=tmp_path)
        return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode()).replace("\r", "\n")

    return start


ASK = ("generate", "--raw", "Once", "-n", "3")
MISSING = (
    "Error: there is no chat model on this disk.\n"
    "Hint: to download smollm2-135m-instruct (1.1 MiB), use gguf-spec models pull smollm2-135m-instruct; "
    "--model tales takes a bundled test model.\n"
)


def stored(tmp_path):
    return list((tmp_path / "cache").rglob("*.gguf"))


@pytest.mark.parametrize("command", [("chat",), ASK, ("serve",)], ids=lambda args: args[0])
def test_in_a_pipe_nothing_is_asked(run, tmp_path, command):
    result = run(*command)
    assert (result.returncode, result.stdout, result.stderr) == (1, "", MISSING)
    assert not stored(tmp_path)


@pytest.mark.full
def test_at_a_terminal_it_is_asked_once(terminal, tmp_path):
    code, seen = terminal(*ASK, typed=b"\n")
    assert (code, seen.count("Download")) == (0, 1)
    assert "Download some-model, 1.1 MiB, apache-2.0? [Y/n]:" in seen
    assert len(stored(tmp_path)) == 1
    code, seen = terminal(*ASK)
    assert (code, "Download" in seen) == (0, False)


@pytest.mark.full
def test_refused(terminal, tmp_path):
    code, seen = terminal(*ASK, typed=b"n\n")
    assert code == 1
    assert "there is no chat model on this disk" in seen
    assert not stored(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("env", [{}, {"GGUF_SPEC_OFFLINE": "1"}])
def test_offline(terminal, tmp_path, env):
    code, seen = terminal(*ASK, *([] if env else ["--offline"]), env=env)
    assert (code, "Download" in seen) == (1, False)
    assert not stored(tmp_path)


@pytest.mark.full
def test_yes_in_a_pipe(run, tmp_path):
    result = run(*ASK, "--yes")
    assert result.returncode == 0, result.stderr
    assert "downloading smollm2-135m-instruct" in result.stderr
    assert len(stored(tmp_path)) == 1


@pytest.mark.full
def test_a_pair_by_its_name(terminal, run):
    result = run(*ASK, "-m", "paired")
    assert "paired (1.1 MiB) is not on this disk" in result.stderr
    code, seen = terminal(*ASK, "-m", "paired", typed=b"\n")  # the licence of gemma: no by default
    said = "Download some-model, 1.1 MiB, mit and the draft some-model, 1.1 MiB, gemma? [y/N]:"
    assert (code, said in seen) == (1, True)
    code, seen = terminal(*ASK, "-m", "paired", "-d", "none", typed=b"y\n")
    assert "Download some-model, 1.1 MiB, mit? [Y/n]:" in seen
    assert code == 0


@pytest.mark.full
def test_a_download_that_fails(terminal, tmp_path):
    code, seen = terminal(*ASK, "-m", "gone", typed=b"y\n")
    assert code == 1
    assert "Error: the package index of pip has no some-model==2.0" in seen
    assert "Traceback" not in seen
    assert not stored(tmp_path)


def test_the_default_is_not_asked_for_by_the_checks(run):
    """They have the bundled models."""
    result = run("verify", "--help")
    assert "[default: tales]" in " ".join(result.stdout.split())
    result = run("generate", "--help")
    assert "smollm2-135m-instruct" in result.stdout


@pytest.mark.full
def test_the_model_of_the_environment_goes_first(run):
    result = run(*ASK, env={"GGUF_SPEC_MODEL": "tales"})
    assert (result.returncode, os.linesep in result.stdout) == (0, True)
