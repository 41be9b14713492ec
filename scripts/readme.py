"""Write what is made from the code: parts of the README, .github/REFERENCE.md and .github/COMMANDS.md. With --check only say what is stale.

.venv/bin/python scripts/readme.py [--check]
"""

import ast
import re
import sys
from pathlib import Path

from _reference import commands, helps, reference

from gguf_spec._memory import size
from gguf_spec._registry import entries
from gguf_spec.cli import cli

ROOT = Path(__file__).parents[1]


def models():
    """The table of models.yaml."""
    lines = ["| name | size | licence | context | draft |", "|---|---|---|---|---|"]
    for entry in entries().values():
        names = ", ".join(f"`{name}`" for name in (entry.name, *entry.aliases))
        draft = f"`{entry.draft}`" if entry.draft else ""
        lines.append(f"| {names} | {size(entry.size_bytes)} | {entry.license} | {entry.context:,} | {draft} |")
    return "\n".join(lines)


def command_line():
    """The first help, and what each command is for."""
    (_, text), *_ = helps(cli, "gguf-spec")
    return f"```text\n{text}\n```"


def files():
    """What each file of the package is for, by the first sentence of its docstring."""
    lines = ["| file | what it is |", "|---|---|"]
    package = ROOT / "gguf_spec"
    for path in sorted(package.rglob("*.py"), key=lambda path: (len(path.relative_to(package).parts), path)):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        phrase = re.split(r"(?<=[.?])\s", doc, maxsplit=1)[0].rstrip(".").replace("\n", " ")
        lines.append(f"| [`{path.relative_to(package)}`]({path.relative_to(ROOT)}) | {phrase} |")
    return "\n".join(lines)


PARTS = {"models": models, "commands": command_line, "files": files}


def readme():
    """The README with its generated parts made anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for name, make in PARTS.items():
        begin, end = f"<!-- {name}: made by scripts/readme.py -->\n", f"\n<!-- end of {name} -->"
        before, found, rest = text.partition(begin)
        _old, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise SystemExit(f"the README must hold {begin.strip()} and {end.strip()}")
        text = before + begin + make() + end + after
    return text


MADE = {"README.md": readme, ".github/REFERENCE.md": reference, ".github/COMMANDS.md": commands}


def main():
    stale = []
    for name, make in MADE.items():
        file, made = ROOT / name, make()
        if not file.exists() or file.read_text(encoding="utf-8") != made:
            stale.append(name)
            if "--check" not in sys.argv:
                file.write_text(made, encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"stale: {', '.join(stale)}; run scripts/readme.py")


if __name__ == "__main__":
    main()
