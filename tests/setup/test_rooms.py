"""Importing a module loads no more files than pyproject.toml allows; rooms without llama.cpp load in a Python without it."""

import sys
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "docs"))
import _rooms  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["gguf-spec"][
    "reach"
]
BLOCKED = """
import sys, importlib
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Blocked())
for name in sys.argv[2:]:
    importlib.import_module(f"gguf_spec.{name}")
"""
WITHOUT_LLAMA = [
    "edit",
    "grammar",
    "images",
    "protocols",
    "sampling",
    "speculative",
    "text",
    "tools",
    "passes",
    "vocabulary",
    "engine",
    "images",
    "runtime.chat",
    "runtime.client",
    "server.running",
]
WITHOUT_NUMPY = [
    "edit",
    "engine",
    "images",
    "runtime.chat",
    "text.chat_template",
    "text.detokenizer",
    "text.infill",
    "text.reasoning",
    "options",
    "tools.reader",
    "vocabulary",
]


@pytest.mark.parametrize("name", MOST)
def test_importing_a_module_loads_few_files(name):
    assert len(_rooms.reach(f"gguf_spec.{name}")) <= MOST[name], sorted(
        _rooms.reach(f"gguf_spec.{name}")
    )


def load_without(blocked, names):
    return children.run(
        [sys.executable, "-c", BLOCKED, blocked, *names],
        capture_output=True,
        text=True,
        check=False,
    )


def test_words_and_rounds_load_without_llama_cpp():
    files = [name.partition(".")[2] for name in _rooms.modules()]
    names = [one for one in files if {one, one.partition(".")[0]} & {*WITHOUT_LLAMA}]
    assert len(names) > 30
    child = load_without("llama_cpp", names)
    assert child.returncode == 0, child.stderr


def test_dialects_load_without_a_server():
    names = [name.partition(".")[2] for name in _rooms.modules() if ".protocols" in name]
    assert len(names) > 10
    child = load_without("llama_cpp,starlette,uvicorn,asyncio", names)
    assert child.returncode == 0, child.stderr


def test_some_load_without_numpy():
    child = load_without("llama_cpp,numpy", WITHOUT_NUMPY)
    assert child.returncode == 0, child.stderr


def test_a_blocked_import_is_seen():
    assert "llama_cpp is blocked" in load_without("llama_cpp", ["llama.bindings"]).stderr


def test_the_reach_of_a_file(tmp_path, monkeypatch):
    for name, text in {
        "__init__.py": "",
        "a.py": "from .b import c\nif TYPE_CHECKING:\n    from . import d\n",
        "b/__init__.py": "",
        "b/c.py": "def f():\n    from .. import d\n",
        "d.py": "try:\n    import gguf_spec.a\nexcept ImportError:\n    from . import b\n",
    }.items():
        path = tmp_path / "gguf_spec" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.setattr(_rooms, "ROOT", tmp_path)
    assert _rooms.reach("gguf_spec.a") == {"gguf_spec.a", "gguf_spec.b", "gguf_spec.b.c"}
    assert _rooms.reach("gguf_spec.d") == {"gguf_spec.d", *_rooms.reach("gguf_spec.a")}
