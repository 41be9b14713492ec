"""The package has no more lines of Python than pyproject.toml allows, so that a feature pays for its lines."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def budget():
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["gguf-spec"]


def counted(folder):
    found = {}
    for path in folder.rglob("*.py"):
        part = path.relative_to(folder).parts[0]
        found[part] = found.get(part, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return found


def over(found, most):
    """Return what is said about too many lines; empty if there are none."""
    n = sum(found.values())
    if n <= most:
        return ""
    parts = ", ".join(
        f"{name} {k:,}" for name, k in sorted(found.items(), key=lambda one: -one[1])[:8]
    )
    return f"gguf_spec/ has {n:,} lines, {n - most:,} more than max-lines in pyproject.toml: take out as many, or raise it and say why ({parts}, ...)"


def test_the_package_is_within_its_budget():
    said = over(counted(ROOT / "gguf_spec"), budget()["max-lines"])
    assert not said, said


def test_a_line_too_many_is_told(tmp_path):
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "a.py").write_text("a = 1\n\nb = 2\n")
    (tmp_path / "b.py").write_text("a = 1")
    assert counted(tmp_path) == {"cli": 3, "b.py": 1}
    assert over({"cli": 3, "b.py": 1}, 4) == ""
    assert "has 4 lines, 1 more than" in over({"cli": 3, "b.py": 1}, 3)
