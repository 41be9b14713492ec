"""The spin count is set for libgomp, and for nothing else. Each case needs a new process: libgomp is loaded once."""

import os
import sys

import pytest

from tests.support import children

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="libgomp's spin count is set on Linux only"
)

LOAD = """
import os, sys
{before}
from gguf_spec.llama import openmp as _openmp
{first}
print(_openmp.state(), os.environ.get("GOMP_SPINCOUNT"))
"""
HAS_LIBGOMP = """
import sys
from gguf_spec.llama import openmp as _openmp
import llama_cpp
sys.exit(not _openmp._loaded_libgomp())
"""


def run(code, **variables):
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    }
    return children.run(
        [sys.executable, "-c", code],
        env=clean | variables,
        capture_output=True,
        text=True,
        check=False,
    )


def said(before="", first="import gguf_spec.llama.backend", **variables):
    child = run(LOAD.format(before=before, first=first), **variables)
    assert child.returncode == 0, child.stderr
    return child.stdout.split()


@pytest.fixture(scope="module", autouse=True)
def _libgomp():
    if run(HAS_LIBGOMP).returncode:
        pytest.skip("this build of llama.cpp does not use libgomp")


SHOWN = """
with _openmp.spin_count_set():
    assert os.environ["GOMP_SPINCOUNT"] == str(_openmp.SPIN_COUNT)
    import llama_cpp
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "first",
    [
        "import gguf_spec.llama.backend", "import gguf_spec.llama.context", "from gguf_spec import LLM", "import gguf_spec.quantize.worker",
        "import gguf_spec.llama.samplers", "from gguf_spec_compat import Llama", "from gguf_spec_compat import LlamaGrammar",
        "from gguf_spec.doctor import installation; installation.library(); import gguf_spec.llama.context",
    ],
)  # fmt: skip
def test_it_is_set_for_any_order_of_imports_and_then_removed(first):
    assert said(first=first) == ["set", "None"]


@pytest.mark.full
def test_it_is_in_the_environment_while_llama_is_loaded():
    assert said(first=SHOWN) == ["set", "None"]


@pytest.mark.full
def test_the_variable_of_the_user_is_kept():
    assert said(GOMP_SPINCOUNT="77") == ["user", "77"]
    assert said(OMP_WAIT_POLICY="passive") == ["user", "None"]


@pytest.mark.full
def test_libgomp_was_there_before():
    assert said(before="import llama_cpp") == ["loaded", "None"]


def test_nothing_is_loaded_yet():
    assert said(first="") == ["unknown", "None"]


@pytest.mark.full
def test_a_build_without_libgomp(monkeypatch):
    assert said(
        first="""
from pathlib import Path
_openmp._MAPS = Path(os.devnull)
import gguf_spec.llama.backend
"""
    ) == ["absent", "None"]


@pytest.mark.full
def test_a_system_without_maps():
    assert said(
        first="""
from pathlib import Path
_openmp._MAPS = Path("/nowhere/maps")
import gguf_spec.llama.backend
"""
    ) == ["absent", "None"]
