"""The kernels for ARM, in emulation beside the ready-made llama.cpp (scripts/checks/arm.py)."""

import re
import sys
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "checks"))
import arm  # noqa: E402 -- found by the path set above


def arm_py(*words, hours):
    command = [sys.executable, str(ROOT / "scripts" / "checks" / "arm.py"), *words]
    done = children.run(
        command, capture_output=True, text=True, check=False, limit_s=3600.0 * hours
    )
    if skipped := re.fullmatch(r"Skipped: (.*)\n", done.stdout):
        pytest.skip(skipped[1])
    if "npm error" in done.stderr and "network" in done.stderr:
        pytest.skip("the ready-made libraries cannot be fetched")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("All is right.\n")


@pytest.mark.slow
def test_rows_have_the_same_bits_in_passes_of_any_width_on_arm():
    """For each layout of llama.cpp's repacked weights; planted mistakes are found."""
    arm_py(hours=1)


@pytest.mark.slow
def test_the_whole_product_on_arm():
    """The wheels of a release, installed by pip: texts, a server, sessions and `verify` on three processors; planted mistakes are found."""
    arm_py("--whole", hours=3)


def test_planted_mistakes_have_their_place():
    source = (ROOT / "gguf_spec" / "kernels" / "neon.h").read_text(encoding="utf-8")
    assert all(source.count(text) == 1 for text, *_ in arm.PLANTED)


def test_kernels_for_arm_are_those_of_arm():
    sets = arm.build_kernels.sets
    assert sets("all", "aarch64") == ["neoni8mm", "neondot"]
    assert not set(sets("all", "x86_64")) & set(sets("all", "aarch64"))
