"""The README is true: its Python runs as it stands, and the commands it names are there and do what it says."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import children

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_runs_as_it_stands(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    code, program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(program, "README.md", "exec"), {})
    assert "http://127.0.0.1:" in capsys.readouterr().out
    assert (tmp_path / "fox.session").stat().st_size > 1000
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(capsys.readouterr().out) > 200
    assert names["stream"].stats.n_generated > 0 and isinstance(names["ids"], tuple)


def test_the_two_commands_are_there_and_ci_runs_them():
    for command in ("scripts/run", "scripts/test"):
        assert f"\n{command}" in README
        assert os.access(ROOT / command, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_what_is_made_from_the_code_is_not_stale():
    command = [sys.executable, str(ROOT / "scripts" / "readme.py"), "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": "/nowhere"}
    assert children.run(command, env=environment, check=False, capture_output=True).stderr == b""


@pytest.mark.parametrize("path", re.findall(r"\]\((?!http)([^)]+)\)", README))
def test_what_it_links_to_is_there(path):
    assert (ROOT / path).exists()
