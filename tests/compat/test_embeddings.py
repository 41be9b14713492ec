"""Embeddings of `gguf_spec_compat.Llama` against those of `llama_cpp.Llama`, on the same files."""

import inspect

import numpy as np
import pytest
from llama_cpp import Llama as Original

from gguf_spec.errors import InvalidOptionError, NoGenerationError, TextTooLongError
from gguf_spec_compat import Llama
from tests.support import encoders, tiny

TEXTS = ["hello world", "the cat sat on the mat", "zebra quux moon"]
OPTIONS = {"embedding": True, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embed")
    encoders.write(folder / "bert.gguf")
    tiny.write(folder / "llama.gguf", tiny.llama(seed=1))
    return folder


def both(path, **options):
    ours = Llama(str(path), draft_model_path=None, **OPTIONS | options)
    return ours, Original(str(path), **OPTIONS | options)


@pytest.mark.parametrize(
    ("name", "pooling"), [("bert", -1), ("bert", 2), ("llama", 1), ("llama", 3)]
)
def test_the_same_numbers(files, name, pooling):
    ours, theirs = both(files / f"{name}.gguf", n_ctx=64, pooling_type=pooling)
    assert ours.pooling_type() == theirs.pooling_type()
    for text in TEXTS:
        one = ours.embed(text)
        assert isinstance(one[0], float)
        np.testing.assert_allclose(one, theirs.embed(text), atol=1e-5)
    np.testing.assert_allclose(
        ours.embed(TEXTS, normalize=True), theirs.embed(TEXTS, normalize=True), atol=2e-4
    )
    for given in (TEXTS[0], TEXTS):
        made, expected = ours.create_embedding(given), theirs.create_embedding(given)
        vectors, others = ([d.pop("embedding") for d in one["data"]] for one in (made, expected))
        assert made == expected
        np.testing.assert_allclose(vectors, others, atol=3e-3)
    ours.close()
    theirs.close()


def test_rows_without_pooling(files):
    """The default of llama.cpp if the file names no pooling."""
    ours, theirs = both(files / "llama.gguf", n_ctx=64)
    assert ours.pooling_type() == theirs.pooling_type() == 0
    np.testing.assert_allclose(ours.embed("abc"), theirs.embed("abc"), atol=1e-5)
    assert ours("abc", max_tokens=2, temperature=0)["choices"]  # it answers, too
    ours.close()
    theirs.close()


def test_long_texts_are_cut(files):
    ours, theirs = both(files / "bert.gguf", n_ctx=64, n_batch=20)
    np.testing.assert_allclose(ours.embed("sun " * 40), theirs.embed("sun " * 40), atol=1e-5)
    assert ours.embed("sun " * 40, return_count=True)[1] == 20
    for one in (ours, theirs):
        with pytest.raises(ValueError):
            one.embed("sun " * 40, truncate=False)
    with pytest.raises(TextTooLongError):
        ours.embed("sun " * 40, truncate=False)
    with pytest.raises(NoGenerationError):
        ours("hello")
    ours.close()
    theirs.close()


def test_the_signatures_are_the_same():
    for name in ("embed", "create_embedding", "pooling_type"):
        ours, theirs = (
            [(one.name, one.default) for one in inspect.signature(getattr(kind, name)).parameters.values()]
            for kind in (Llama, Original)
        )  # fmt: skip
        assert ours == theirs


@pytest.mark.parametrize("wrong", [5, -2, "mean"])
def test_wrong_poolings(files, wrong):
    with pytest.raises(InvalidOptionError, match="pooling_type"):
        Llama(str(files / "bert.gguf"), pooling_type=wrong, verbose=False)
