"""The kernels for Windows, under wine beside a llama.cpp by MinGW (scripts/checks/wine.py)."""

import re
import sys
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "checks"))
import wine  # noqa: E402 -- found by the path set above


@pytest.mark.slow
def test_rows_have_the_same_bits_in_passes_of_any_width_under_wine():
    """Each instruction set of this processor; planted mistakes are found."""
    command = [sys.executable, str(ROOT / "scripts" / "checks" / "wine.py")]
    done = children.run(command, capture_output=True, text=True, check=False, limit_s=5400.0)
    if skipped := re.fullmatch(r"Skipped: (.*)\n", done.stdout):
        pytest.skip(skipped[1])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("All is right.\n")


def test_planted_mistakes_have_their_place():
    for file, text, *_ in wine.PLANTED:
        source = (ROOT / "gguf_spec" / "kernels" / file).read_text(encoding="utf-8")
        assert source.count(text) == 1
