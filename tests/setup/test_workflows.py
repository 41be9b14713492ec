"""The workflows for GitHub: what they call exists, and what they use is pinned. actionlint checks the rest, by hand."""

import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def faults(workflow):
    """Yield the scripts that the steps call and that are not there, and actions without an exact version."""
    for step in steps(workflow):
        if "uses" in step and not re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", step["uses"]):
            yield step["uses"]
        words = shlex.split(step.get("run", ""), comments=True)
        for i, word in enumerate(words):
            if re.match(r"(scripts|tests|\.ci)/", word) and not (ROOT / word).is_file():
                yield word
            if i == 0 and word.startswith("scripts/") and not os.access(ROOT / word, os.X_OK):
                yield f"{word} is not executable"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_all_that_they_call_exists(path):
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert any("scripts/" in step.get("run", "") for step in steps(workflow))
    assert list(faults(workflow)) == []
    assert workflow["permissions"] == {"contents": "read"}


def test_a_missing_script_and_an_open_version_are_found():
    found = [{"run": "scripts/no/such --x"}, {"uses": "actions/cache@v4"}, {"run": "scripts/run"}]
    workflow = {"jobs": {"a": {"steps": found}}}
    assert list(faults(workflow))[:2] == ["scripts/no/such", "scripts/no/such is not executable"]
    assert "actions/cache@v4" in list(faults(workflow))


def test_a_release_has_the_notes_of_its_version():
    import importlib.util

    spec = importlib.util.spec_from_file_location("notes", ROOT / "scripts/docs/release_notes.py")
    notes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notes)
    text = "# Changes\n\n## 1.10.0 (2026-01-01)\n\n- ten\n\n## 1.1.0 (2025-01-01)\n\n### Added\n\n- [one](docs/a.md#b), [two](https://x)\n"
    assert notes.section(text, "1.1.0") == "### Added\n\n- [one](docs/a.md#b), [two](https://x)"
    assert notes.section(text, "1.10.0") == "- ten"
    assert notes.section(text, "1.1") == ""
    linked = notes.absolute(notes.section(text, "1.1.0"), "https://host/a/b", "1.1.0")
    assert "[one](https://host/a/b/blob/v1.1.0/docs/a.md#b), [two](https://x)" in linked
