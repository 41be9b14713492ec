"""Every example has a test; those that need a framework are run by scripts/ecosystem, and here only as far as goes without it."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "scripts" / "examples").glob("*.*"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_a_test_runs_it(path):
    tests = [
        *(ROOT / "tests" / "examples").glob("*.py"),
        ROOT / "tests" / "compat" / "test_ecosystem.py",
    ]
    text = "".join(one.read_text(encoding="utf-8") for one in tests if one != Path(__file__))
    assert path.stem.removesuffix("_example") in text


@pytest.mark.parametrize("name", ["langchain_example", "llama_index_example"])
def test_what_needs_no_framework(name):
    spec = importlib.util.spec_from_file_location(
        name, ROOT / "scripts" / "examples" / f"{name}.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Path(module.MODEL).exists()
    assert Path(module.DRAFT).exists()
