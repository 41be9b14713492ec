"""The table of architectures: it is the only one, and its names are llama.cpp's."""

import ast
from pathlib import Path

import llama_cpp
import pytest

import gguf_spec
from gguf_spec.gguf.architectures import _TABLE, architecture
from gguf_spec.llama.bindings import CPU_LIBRARY
from gguf_spec.options import HEADS

PACKAGE = Path(gguf_spec.__file__).parent
TABLE = PACKAGE / "gguf" / "architectures.py"
# also names of tokenizers, of their word lists, and of forms of tool calls
TOKENIZERS = {"bert", "falcon-h1", "gpt2", "lfm2", "llama", "plamo2", "t5"}


def texts(path):
    """Yield the texts in a module, without docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.few(14)
@pytest.mark.parametrize(
    "path",
    [path for path in PACKAGE.rglob("*.py") if path != TABLE],
    ids=lambda path: path.relative_to(PACKAGE).as_posix(),
)
def test_only_the_table_names_architectures(path):
    # "eagle3" is a drafter, too
    assert not set(texts(path)) & (set(_TABLE) - TOKENIZERS - {*HEADS})


@pytest.mark.full
def test_only_the_table_names_architectures_that_share_a_name_with_a_tokenizer():
    users = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if path != TABLE and set(texts(path)) & TOKENIZERS
    }
    assert users == {
        "gguf/header.py",
        "gguf/validation.py",
        "gguf/vocabulary.py",
        "llama/attention.py",
        "llama/library.py",  # a library of this name
        "tools/families.py",
    }


def test_llama_cpp_has_every_name():
    folder = Path(llama_cpp.__file__).parent / "lib"
    library = b"".join(path.read_bytes() for path in folder.glob("*llama*") if path.is_file())
    # the linker lets a name share the end of a longer one
    unknown = {name for name in _TABLE if name.encode() + b"\0" not in library}
    # the ready-made library is a little older than the version of llama-cpp-python
    is_ready_made = CPU_LIBRARY is not None and CPU_LIBRARY.variant
    assert unknown == ({"glm5-next"} if is_ready_made else set())


def test_only_keys_and_values_drop_any_number_of_tokens():
    others = {name for name in _TABLE if architecture(name).cache != "attention"}
    assert {"mamba", "rwkv7", "jamba", "falcon-h1", "deepseek4", "kimi-k3", "qwen4exp"} < others
    assert len(others) == 24
    assert architecture("an architecture of tomorrow").cache == "attention"


def test_snapshots_are_of_states():
    """The list of `llm_arch_supports_rs_rollback`."""
    with_snapshots = {name for name in _TABLE if architecture(name).has_snapshots}
    assert with_snapshots == {
        "kimi-k3", "qwen35", "qwen35moe", "qwen4exp", "deepseek4", "glm5-next", "nemotron_h", "nemotron_h_moe", "lfm2", "lfm2moe",
        "bailingmoe3",
    }  # fmt: skip
    assert all(architecture(name).cache in ("hybrid", "compressed") for name in with_snapshots)
