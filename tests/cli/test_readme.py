"""The Python of README and of the pages about embedding runs, and the two commands exist."""

import os
import re
import sys
from pathlib import Path

import pytest
import yaml

from tests.support import children

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def programs(path):
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(encoding="utf-8"), re.DOTALL)


def run(program, path):
    names = {}
    exec(compile(program, path, "exec"), names)
    return names


@pytest.mark.full
def test_the_python_runs_as_it_stands(monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, _ = programs("README.md")  # tests/server/test_docs.py runs the second one
    assert len([line for line in code.splitlines() if line.strip()]) == 4
    assert code.count('"qwen2.5-coder-1.5b"') == 1
    names = run(code.replace("qwen2.5-coder-1.5b", "tales"), "README.md")
    assert len(capsys.readouterr().out) > 20
    assert names["answer"].stats.tokens_per_s > 0


def test_its_length():
    lines = README.splitlines()
    assert 140 <= len(lines) <= 150
    assert max(map(len, lines)) <= 100
    first_screen = "\n".join(lines[:40])
    for part in ("| best wheel |", "(docs/images/", "\nscripts/run ", "gguf_spec.load("):
        assert part in first_screen


@pytest.mark.full
def test_the_python_about_embedding_runs_too(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)
    chat, stream, with_asyncio, choose, edits, llama, install = programs("docs/embedding.md")
    run(chat, "docs/embedding.md")
    assert "http://127.0.0.1:" in capsys.readouterr().out
    assert (tmp_path / "fox.session").stat().st_size > 1000
    assert run(stream, "docs/embedding.md")["stream"].result.finish_reason == "cancelled"
    capsys.readouterr()
    run(with_asyncio, "docs/embedding.md")
    assert len(capsys.readouterr().out) > 100
    run(choose, "docs/embedding.md")
    assert capsys.readouterr().out.startswith(" happy -")
    assert run(edits, "docs/embedding.md")["edit"].refused == ()
    assert "[client]\ntimeout = 60" in capsys.readouterr().out
    (many,) = programs("docs/batch.md")
    assert [len(one.tokens) for one in run(many, "docs/batch.md")["results"]] == [20, 20]
    capsys.readouterr()
    (service,) = programs("docs/edge-devices.md")
    run(service, "docs/edge-devices.md")
    assert capsys.readouterr().out == "None\n"
    window, frozen = programs("docs/desktop-apps.md")
    run(window, "docs/desktop-apps.md")
    assert len(capsys.readouterr().out.split()) > 5
    run(frozen, "docs/desktop-apps.md")
    ours = run(llama, "docs/embedding.md")["Llama"]
    compat = run(install, "docs/embedding.md")["gguf_spec_compat"]
    try:
        import llama_cpp

        assert llama_cpp.Llama is ours
    finally:
        compat.uninstall()


def test_the_two_commands_are_there_and_ci_runs_them():
    for command in ("scripts/run", "scripts/test"):
        assert f"\n{command}" in README
        assert os.access(ROOT / command, os.X_OK)
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    workflow = yaml.safe_load(
        (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    )
    assert workflow["permissions"] == {"contents": "read"}
    steps = workflow["jobs"]["linux"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == ["scripts/test $VARIANT $TIER"]
    assert all(
        re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", step["uses"])
        for step in steps
        if "uses" in step
    )


def test_what_is_made_from_the_code_is_not_stale():
    command = [sys.executable, str(ROOT / "scripts" / "docs" / "readme.py"), "--check"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": "/nowhere"}
    assert children.run(command, env=environment, check=False, capture_output=True).stderr == b""
