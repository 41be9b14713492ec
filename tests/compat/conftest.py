"""The bundled pair with 32-bit weights: logits then differ by 1e-6 between batch sizes, so greedy texts can be compared."""

import ctypes
import os
from pathlib import Path

import llama_cpp
import pytest
from llama_cpp import llama_cpp as C

from gguf_spec.registry import download
from gguf_spec.registry.resolve import resolve
from gguf_spec_compat import Llama

ALL_F32 = 0  # LLAMA_FTYPE_ALL_F32


def bundled():
    """Return the paths of the bundled pair."""
    return [str(download.path(resolve(name))) for name in ("tales", "tales-draft")]


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Paths of target and draft."""
    folder, paths = tmp_path_factory.mktemp("f32"), []
    params = C.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = ALL_F32, True, 1
    for path in bundled():
        paths.append(str(folder / Path(path).name))
        assert (
            C.llama_model_quantize(os.fsencode(path), os.fsencode(paths[-1]), ctypes.byref(params))
            == 0
        )
    return paths


@pytest.fixture(scope="session")
def ours(pair):
    llama = Llama(
        pair[0], draft_model_path=pair[1], n_ctx=1024, n_threads=1, verbose=False, flash_attn=False
    )
    yield llama
    llama.close()


@pytest.fixture(scope="session")
def theirs(pair):
    llama = llama_cpp.llama.Llama(
        pair[0], n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
    )
    yield llama
    llama.close()
