"""Each mistake of scripts/checks/plant_bugs.py still has its place in the source, and its tests are there."""

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_mistake_can_be_planted(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "checks")
    module = importlib.import_module("plant_bugs")
    assert len(module.BUGS) > 40
    for bug in module.BUGS:
        source = (ROOT / "gguf_spec" / bug.file).read_text(encoding="utf-8")
        assert module.planted(bug).text != source  # it ends with an error where the place is gone
        for test in bug.tests:
            assert (ROOT / "tests" / test).is_file(), bug.name
    for name, (quick, slow) in module.TESTS.items():
        assert (ROOT / "gguf_spec" / f"{name}.py").is_file()
        assert all((ROOT / "tests" / test.partition("::")[0]).is_file() for test in quick + slow)
