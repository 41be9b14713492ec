"""Sizes as text: in binary units everywhere."""

import re
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec.system.machine import format_bytes

MIB, GIB = 1 << 20, 1 << 30
PACKAGE = Path(gguf_spec.__file__).parent


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0.0 MiB"), (4096, "0.0 MiB"), (MIB // 10, "0.1 MiB"), (2.6 * MIB, "2.6 MiB"), (10 * MIB - 1, "10.0 MiB"), (10 * MIB, "10 MiB"),
        (512 * MIB, "512 MiB"), (GIB - 1, "1,024 MiB"), (GIB, "1.0 GiB"), (1234.5 * GIB, "1,234.5 GiB"),
    ],
)  # fmt: skip
def test_sizes(n_bytes, text):
    assert format_bytes(n_bytes) == text


def test_no_message_has_another_unit_or_a_rule_of_its_own():
    decimal = re.compile(r"\}? ?\b[GMk]B\b|/ 1e[69]:|/ 2 ?\*\* ?[23]0:|>> [23]0\}")
    found = {
        f"{path.relative_to(PACKAGE)}:{i}"
        for path in PACKAGE.rglob("*.py")
        for i, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if decimal.search(line)
    }
    assert {place.partition(":")[0] for place in found} == {"text/jinja_child.py"}, found
