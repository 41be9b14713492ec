"""Write the generated parts of the README from the code: the table of models. With --check only say whether they are as they should be.

.venv/bin/python scripts/readme.py [--check]
"""

import sys
from pathlib import Path

from gguf_spec._memory import size
from gguf_spec._registry import entries

README = Path(__file__).parents[1] / "README.md"


def models():
    """The table of models.yaml."""
    lines = ["| name | size | licence | context | draft |", "|---|---|---|---|---|"]
    for entry in entries().values():
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
        draft = f"`{entry.draft}`" if entry.draft else ""
        lines.append(f"| {names} | {size(entry.size_bytes)} | {entry.license} | {entry.context:,} | {draft} |")
    return "\n".join(lines)


PARTS = {"models": models}


def generated(text):
    """Return the README with its generated parts made anew."""
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: made by scripts/readme.py -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _old, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise SystemExit(f"the README must hold {begin.strip()} and {end.strip()}")
        text = before + begin + make() + end + after
    return text


def main():
    text = README.read_text(encoding="utf-8")
    made = generated(text)
    if "--check" in sys.argv:
        sys.exit(0 if made == text else "the README's generated parts are stale: run scripts/readme.py")
    README.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
