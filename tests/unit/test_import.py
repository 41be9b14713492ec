import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import errors
from tests.support import children
from tests.unit.test_error_texts import example

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
from _reference import MODULES, public  # noqa: E402

CHECK = """
import sys
import gguf_spec
from gguf_spec import Sampling, Speculation, errors
Sampling(temperature=0)
loaded = [name for name in ("llama_cpp", "numpy", "click", "rich", "yaml", "jinja2", "huggingface_hub", "platformdirs", "psutil") if name in sys.modules]
assert not loaded, loaded
import threading
assert threading.active_count() == 1
"""
HELP = """
import sys
from gguf_spec.cli import main
for words in sys.argv[1:]:
    sys.argv = ["gguf-spec", *words.split(), "--help"]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
    heavy = ("logging", "llama_cpp", "numpy", "rich", "yaml", "jinja2", "huggingface_hub", "prompt_toolkit", "starlette", "uvicorn", "platformdirs", "psutil", "gguf_spec.gguf.validation")
    loaded = [name for name in heavy if name in sys.modules]
    assert not loaded, (words, loaded)
"""


def run(code, *args):
    return children.run(
        [sys.executable, "-W", "error", "-c", code, *args],
        capture_output=True,
        text=True,
        check=False,
    )


def test_importing_loads_and_prints_nothing():
    child = run(CHECK)
    assert (child.returncode, child.stdout, child.stderr) == (0, "", "")


def test_help_loads_nothing_heavy():
    child = run(HELP, "", "generate", "chat", "serve", "models", "models quantize", "bench")
    assert (child.returncode, child.stderr) == (0, "")


def test_all_is_what_there_is():
    assert gguf_spec.__all__ == sorted(
        gguf_spec.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name)
    )
    assert dir(gguf_spec) == sorted(gguf_spec.__all__)
    for name in gguf_spec.__all__:
        assert getattr(gguf_spec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gguf_spec.nonsense


def test_star_gives_all():
    names = {}
    exec("from gguf_spec import *", names)
    assert set(gguf_spec.__all__) <= set(names)


def test_errors_carry_their_values():
    error = example(errors.PromptTooLongError)
    assert (error.n_prompt, error.n_ctx) == (5120, 4096)
    assert "5,120" in str(error)
    assert "4,096" in str(error)
    assert error.hint == "set n_ctx=8192 or shorten the prompt."


def test_the_context_that_is_proposed_holds_the_prompt_and_an_answer():
    for n in (1, 31, 32, 4095, 4096, 4097, 100_000):
        assert errors.PromptTooLongError(n, 2).suggested["n_ctx"] > n


def packages():
    """Every package and every public module."""
    found = pkgutil.walk_packages(gguf_spec.__path__, "gguf_spec.")
    names = [one.name for one in found if one.ispkg]
    return [*names, *MODULES]


@pytest.mark.parametrize("name", packages())
def test_every_package_lists_its_public_names(name):
    module = importlib.import_module(name)
    if name != "gguf_spec.errors":  # all of its classes
        assert len(set(module.__all__)) == len(module.__all__)
    for one in getattr(module, "__all__", ()):
        assert getattr(module, one) is not None


# What plugins may import besides what is public: each belongs to one version, and replaces a part of the package.
CONTRACT = tomllib.loads((ROOT / "plugins" / "contract.toml").read_text(encoding="utf-8"))


def imported(tree):
    """Yield the module and the name of each import from the package, also by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, one.name) for one in node.names)
        elif isinstance(node, ast.Import):
            yield from ((one.name, "") for one in node.names)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"gguf_spec(\.\w+)+", str(node.value)):
            yield node.value, ""


def hidden(source):
    """Return what a source imports that is not public: module -> names; "" is the module itself."""
    found = {}
    for module, name in imported(ast.parse(source)):
        if module.split(".")[0] != "gguf_spec" or f"{module}.{name}" in MODULES:
            continue
        if module not in MODULES or (name and name not in public(importlib.import_module(module))):
            found.setdefault(module.removeprefix("gguf_spec."), set()).add(name)
    return found


@pytest.mark.parametrize("folder", sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml")), ids=lambda one: one.name)  # fmt: skip
def test_plugins_import_what_the_contract_names(folder):
    found = {}
    for path in folder.rglob("*.py"):
        for module, names in hidden(path.read_text("utf-8")).items():
            found.setdefault(module, set()).update(names)
    assert {name: sorted(names) for name, names in found.items()} == CONTRACT[folder.name]


def test_the_contract_of_plugins_names_what_there_is():
    """In order, and of other packages no name that begins with an underscore."""
    assert sorted(CONTRACT) == sorted(one.parent.name for one in ROOT.glob("plugins/*/pyproject.toml"))  # fmt: skip
    for modules in CONTRACT.values():
        assert [*modules] == sorted(modules)
        for module, names in modules.items():
            found = importlib.import_module(f"gguf_spec.{module}")
            assert names == sorted(names) and not any(name.startswith("_") for name in names)
            for name in filter(None, names):
                assert hasattr(found, name) or importlib.import_module(f"gguf_spec.{module}.{name}")


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from gguf_spec.tools.reader import ToolReader", {"tools.reader": {"ToolReader"}}),
        ("from gguf_spec.options import REQUESTS", {"options": {"REQUESTS"}}),
        ("import gguf_spec.llama.context", {"llama.context": {""}}),
        ("import_module('gguf_spec.runtime.plan')", {"runtime.plan": {""}}),
        ("from gguf_spec import runtime", {"gguf_spec": {"runtime"}}),
    ],
)
def test_a_hidden_import_is_found(source, found):
    assert hidden(source) == found
    assert (
        hidden("from gguf_spec.tools import ToolReader\nfrom gguf_spec import models, load") == {}
    )


def documented():
    """Return the names in each section of docs/python-api.md."""
    text = (ROOT / "docs" / "python-api.md").read_text(encoding="utf-8")
    found = {}
    for section in re.split(r"(?m)^## ", text)[1:]:
        name = section.split("\n", 1)[0]
        also = re.search(r"(?m)^Also in this module: (.*)\.$", section)
        found[name] = re.findall(r"(?m)^(?:### (?:class )?|\| )`(\w+)", section) + re.findall(
            r"`(\w+)`", also[1] if also else ""
        )
    return found


def test_public_is_what_the_documentation_lists():
    pages = documented()
    assert list(pages) == MODULES
    for name, names in pages.items():
        module = importlib.import_module(name)
        assert sorted(names) == sorted(public(module)), name


def test_all_that_is_public_has_a_docstring():
    """Ruff asks for none of functions and methods: a name that says all needs none."""
    bare = []
    for module in map(importlib.import_module, MODULES):
        for name in public(module):
            value = getattr(module, name)
            is_ours = getattr(value, "__module__", "").startswith("gguf_spec")
            if is_ours and inspect.isroutine(value) and not inspect.getdoc(value):
                bare.append(f"{module.__name__}.{name}")
            if not inspect.isclass(value) or not value.__module__.startswith("gguf_spec"):
                continue
            bare += [
                f"{module.__name__}.{name}.{one}"
                for one, member in vars(value).items()
                if one[0] != "_"
                and (
                    inspect.isfunction(member)
                    or isinstance(member, (property, classmethod, staticmethod))
                )
                and not inspect.getdoc(
                    getattr(value, one) if not isinstance(member, property) else member
                )
            ]
    assert not bare
