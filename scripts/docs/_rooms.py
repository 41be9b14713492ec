"""The table of rooms in docs/architecture.md: for each package its floor, lines and reach.

The reach of a file are the files of this package that importing it loads, found from import statements outside of functions and of
`if TYPE_CHECKING`. A package that is on the way counts, too, because Python runs its `__init__.py`.
"""

import ast
import sys
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = "gguf_spec"


def modules():
    """Return each module's file, by its name."""
    found = {}
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def _is_for_types(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _statements(body):
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            blocks = [] if _is_for_types(node) else [node.body]
            blocks += [node.orelse, *(one.body for one in getattr(node, "handlers", ()))]
            for block in blocks:
                yield from _statements(block)


def imported(name, files):
    """Return the modules of this package that importing one module asks for."""
    path = files[name]
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    return _asked(path.read_text(encoding="utf-8"), package) & files.keys() - {name}


@cache
def _asked(text, package):
    found = set()
    for node in _statements(ast.parse(text).body):
        if isinstance(node, ast.Import):
            found.update(one.name for one in node.names)
            continue
        parts = package.split(".")
        base = parts[: len(parts) - node.level + 1] if node.level else []
        base = ".".join([*base, *([node.module] if node.module else [])])
        found.update([base, *(f"{base}.{one.name}" for one in node.names)])
    return found


def reach(name, files=None):
    """Return the modules that importing `name` loads, itself included, without the root."""
    files, seen, todo = files or modules(), set(), [name]
    while todo:
        one = todo.pop()
        if one in seen or one == PACKAGE:
            continue
        seen.add(one)
        todo += [*imported(one, files), one.rpartition(".")[0]]
    return seen & files.keys()


def floors():
    """Return the packages of each floor, the highest first, from the import contract."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    layers = tool["importlinter"]["contracts"][0]["layers"]
    words = ([one.strip() for one in layer.replace(":", "|").split("|")] for layer in layers)
    return [[one for one in names if one.startswith(f"{PACKAGE}.")] for names in words]


def _sentence(path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ").removesuffix(".")


def table():
    """The rooms, from the highest floor down; lines in hundreds, so that the table changes seldom."""
    files = modules()
    lines = [
        "| floor | room | lines | files | reach | what it is |",
        "|---:|---|---:|---:|---:|---|",
    ]
    rows = list(filter(None, floors()))
    for floor, names in zip(range(len(rows) - 1, -1, -1), rows, strict=True):
        for room in names:
            own = [name for name in files if name == room or name.startswith(f"{room}.")]
            n = sum(len(files[name].read_text(encoding="utf-8").splitlines()) for name in own)
            others = set().union(*(reach(name, files) for name in own)) - {*own}
            size = f"{max(1, round(n / 100)) * 100:,}"
            lines.append(
                f"| {floor} | `{room.partition('.')[2]}` | {size} | {len(own)} | {len(others)} | {_sentence(files[room])} |"
            )
    return "\n".join(lines)
