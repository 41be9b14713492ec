import sys
from types import ModuleType

import llama_cpp
import pytest

import gguf_spec_compat as compat
from tests.support import children


@pytest.fixture
def installed():
    early = sys.modules["early_bird"] = ModuleType("early_bird")
    early.Llama, early.Ours = llama_cpp.llama.Llama, compat.Llama
    compat.install()
    yield early
    compat.uninstall()
    del sys.modules["early_bird"]


def test_modules_that_import_llama_before_or_after_get_our_class(installed):
    compat.install()
    from llama_cpp import Llama

    assert Llama is llama_cpp.Llama is installed.Llama is compat.Llama
    assert llama_cpp.llama.Llama is not Llama
    compat.uninstall()
    assert llama_cpp.Llama is installed.Llama is llama_cpp.llama.Llama
    assert installed.Ours is Llama  # whoever had ours keeps it


def test_llama_cpp_itself_still_works(installed, pair):
    theirs = llama_cpp.llama.Llama(pair[0], n_ctx=64, verbose=False, n_threads=1)
    assert theirs("Once", max_tokens=3)["usage"]["completion_tokens"] == 3
    theirs.close()


def test_importing_loads_nothing():

    code = "import sys, gguf_spec_compat; print('llama_cpp' in sys.modules, 'numpy' in sys.modules); dir(gguf_spec_compat)"
    done = children.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"
