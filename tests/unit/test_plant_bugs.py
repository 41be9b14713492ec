"""Each mistake of scripts/checks/plant_bugs.py still has its place in the source, and its tests are there."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import children

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


# in a process that has not imported the package
ASK = """
import sys
from pathlib import Path
import plant_bugs

copy = plant_bugs.Copy(Path(sys.argv[1]))
for body in sys.argv[2:]:
    text = f"import pytest\\n\\ndef test():\\n    {body}\\n"
    (copy.folder / "tests" / "test_one.py").write_text(text)
    print(copy.test(["test_one.py"], "quick", 120))
"""


@pytest.mark.full
def test_a_mistake_whose_tests_are_all_skipped_was_not_asked(tmp_path):
    bodies = ("pytest.skip()", "assert 0", "pass")
    command = [sys.executable, "-c", ASK, tmp_path / "copy", *bodies]
    env = os.environ | {"PYTHONPATH": str(ROOT / "scripts" / "checks")}
    done = children.run(command, stdout=subprocess.PIPE, text=True, env=env, check=True)
    asked = ["NOT ASKED: each of its tests is skipped here", "tests/test_one.py::test", ""]
    assert done.stdout.splitlines() == asked
