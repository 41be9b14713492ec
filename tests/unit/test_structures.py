"""A llama-cpp-python whose declarations do not fit its library is refused by name."""

import ctypes
import importlib
import sys
import types
from pathlib import Path

import llama_cpp
import pytest

from gguf_spec.errors import BindingError
from gguf_spec.llama import bindings, structures
from gguf_spec.llama.bindings import C

ROOT = Path(__file__).resolve().parents[2]
REAL = C.llama_context_default_params.restype
NAME = REAL.__name__
WIDE = ("further", ctypes.c_void_p)


def with_members(members):
    """Return a binding that declares other members of `llama_context_params`, with the real library."""
    kind = type(NAME, (ctypes.Structure,), {"_fields_": members})
    address = ctypes.cast(C.llama_context_default_params, ctypes.c_void_p).value
    function = ctypes.CFUNCTYPE(kind)(address)
    return types.SimpleNamespace(**vars(C) | {"llama_context_default_params": function})


def test_the_binding_of_this_environment_fits():
    assert structures.misfit(C) == ""


def test_it_fits_where_sizes_cannot_be_seen():
    assert structures.misfit(C, place_first=False) == ""
    longer = with_members([*REAL._fields_, WIDE])
    assert structures.misfit(longer, place_first=False) == "", "one that was appended"


@pytest.mark.skipif(not structures.PLACE_FIRST, reason="sizes are seen on x86-64 only")
def test_sizes():
    real, n = list(REAL._fields_), ctypes.sizeof(REAL)
    assert structures.misfit(with_members(real)) == ""
    shorter = structures.misfit(with_members(real[:-1]))
    assert shorter == f"{NAME} has {n} bytes in its library, but {n - 8} in its declaration"
    longer = structures.misfit(with_members([*real, WIDE]))
    assert longer == f"{NAME} has {n} bytes in its library, but {n + 8} in its declaration"


@pytest.mark.parametrize("place_first", {structures.PLACE_FIRST, False})
def test_a_member_that_moved(place_first):
    real = list(REAL._fields_)
    at = [name for name, _ in real].index("type_k")
    moved = [*real[:at], WIDE, *real[at:-1]]  # the same size
    found = structures.misfit(with_members(moved), place_first)
    assert found == f"{NAME}.type_k is 0 by default, not 1"


@pytest.mark.parametrize("name", [*structures.NEEDED, *structures.DEFAULTS])
def test_a_function_that_does_not_exist(name):
    old = types.SimpleNamespace(**{key: one for key, one in vars(C).items() if key != name})
    assert structures.misfit(old) == f"it lacks {name}"


def test_a_member_that_does_not_exist():
    renamed = [("other" if name == "kv_unified" else name, kind) for name, kind in REAL._fields_]
    found = structures.misfit(with_members(renamed))
    assert found == f"{NAME}.kv_unified is None by default, not False"


def test_it_is_refused_when_it_is_imported(monkeypatch):
    monkeypatch.setattr(llama_cpp, "__version__", "9.9.9")
    monkeypatch.setattr(structures, "misfit", lambda _: "it lacks llama_n_rs_seq")
    spec = importlib.util.find_spec(bindings.__name__)
    with pytest.raises(BindingError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert str(caught.value) == "llama-cpp-python 9.9.9 cannot be used: it lacks llama_n_rs_seq."
    assert f"install {structures.TESTED}," in caught.value.hint
    assert (caught.value.version, caught.value.reason) == ("9.9.9", "it lacks llama_n_rs_seq")


@pytest.mark.parametrize("has_metadata", [True, False])
def test_a_library_that_lacks_a_function_is_refused(monkeypatch, tmp_path, has_metadata):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    if not has_metadata:
        monkeypatch.setattr(importlib.metadata, "version", missing)
    (tmp_path / "llama_cpp.py").write_text("raise AttributeError('undefined symbol: llama_new')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llama_cpp")
    spec = importlib.util.find_spec(bindings.__name__)
    with pytest.raises(
        BindingError, match=r"fit its library \(undefined symbol: llama_new\)\.(?m:$)"
    ) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert (caught.value.version == "of unknown version") != has_metadata


@pytest.mark.parametrize(
    "error",
    ["OSError('libllama.so: file too short')", "RuntimeError('libllama.so: file too short')"],
)
def test_a_library_that_cannot_be_loaded_is_refused(monkeypatch, tmp_path, error):
    """With one line and a hint, as any error of the package, and no traceback."""
    (tmp_path / "llama_cpp.py").write_text(f"raise {error}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llama_cpp")
    spec = importlib.util.find_spec(bindings.__name__)
    with pytest.raises(
        BindingError, match=r"cannot be loaded \(libllama.so: file too short\)\.(?m:$)"
    ):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_the_tested_version_is_the_installed_one():
    pinned = (ROOT / "scripts" / "build" / "constraints.txt").read_text(encoding="utf-8")
    assert f"\nllama-cpp-python=={structures.TESTED}\n" in pinned
