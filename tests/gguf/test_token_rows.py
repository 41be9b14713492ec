"""Trimmed drafts that read all tokens: rows with the bits of the whole draft, and tables that are refused."""

import struct
from contextlib import closing
from dataclasses import replace

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import NotAModelError
from gguf_spec.gguf import architectures
from gguf_spec.gguf.architectures import NAMES, architecture
from gguf_spec.gguf.header import _BLOCKS, _NO_WEIGHTS, ROWS
from gguf_spec.gguf.trimming import write_trimmed
from gguf_spec.gguf.validation import ModelFile, read_header, trimmed
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.token_rows import TokenRows
from gguf_spec.speculative.vocabularies import translation_of
from tests.support import families, tiny

N = len(tiny.TOKENS)
IDS = [*range(0, N, 2)]
TAKING = [name for name in NAMES if architecture(name).takes_rows]
OPTIONS = ContextOptions(n_ctx=64, threads=1, extra_bufts=False, drafts=True)


def cut(source, path, ids=IDS):
    write_trimmed(read_header(source), path, ids, lambda _: None)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return tiny.write(tmp_path_factory.mktemp("rows") / "whole.gguf", tiny.llama(seed=1))


@pytest.fixture(scope="module")
def copy(whole):
    return cut(whole, whole.with_name("copy.gguf"))


@pytest.mark.parametrize("name", TAKING)
def test_rows_of_kept_tokens_are_those_of_the_whole_draft(name, tmp_path):
    """The text has tokens that are not kept, in passes of several widths and after a rollback."""
    source = families.write_family(tmp_path, name)
    found = []
    for path in (source, cut(source, tmp_path / "copy.gguf")):
        with closing(Context(ModelFile(path, as_draft=True), OPTIONS)) as model:
            one, rows = model.sequences[0], []
            one.read([1, 3, 200, 7, 9])
            rows.append(one.logits([11, 13, 15], 3).copy())
            one.rollback(6)
            rows += [one.logits([token], 1).copy() for token in (101, 40, N - 1)]
            found.append(np.concatenate(rows))
    right, ours = found
    assert ours.shape == right.shape == (6, N)
    np.testing.assert_array_equal(ours[:, IDS], right[:, IDS])
    others = np.setdiff1d(np.arange(N), IDS)
    assert np.isneginf(ours[:, others]).all()
    assert np.isfinite(right).all()


def test_rows_beside_other_requests(whole, copy):
    """Two sequences in one pass, with one and two rows."""
    from gguf_spec.passes import PassPart

    found = []
    for path in (whole, copy):
        options = replace(OPTIONS, parallel=2)
        with closing(Context(ModelFile(path, as_draft=True), options)) as model:
            first, second = model.sequences
            first.read([1, 3])
            parts = [PassPart(first, [5, 7], 2), PassPart(second, [9, 11], 1)]
            found.append([rows.copy() for rows in model.decode(parts)])
    for right, ours in zip(*found, strict=True):
        np.testing.assert_array_equal(ours[:, IDS], right[:, IDS])


@pytest.mark.parametrize(
    "kind", [one for one in gguf.GGMLQuantizationType if one in _BLOCKS.keys() - _NO_WEIGHTS]
)
def test_embeddings_of_each_type(kind, tmp_path):
    _, n_row = gguf.GGML_QUANT_SIZES[kind]
    data = np.random.default_rng(1).integers(0, 60, (8, n_row), dtype=np.uint8)
    try:
        right = gguf.quants.dequantize(data, kind)
    except NotImplementedError:
        pytest.skip("gguf-py does not know it")
    (tmp_path / "table").write_bytes(bytes(3) + data.tobytes())
    header = read_header(tiny.write(tmp_path / "any.gguf"))
    of = header.tensor("token_embd.weight")._replace(
        type=kind.value, shape=(right.shape[1], 8), n_bytes=data.nbytes
    )
    header = replace(header, path=tmp_path / "table", tensors=(of,))
    rows = TokenRows(header, 3, 8).of(np.array([7, 0, 7], np.int32))
    np.testing.assert_array_equal(rows, right[[7, 0, 7]].astype(np.float32))


def changed(path, **values):
    """Change the table's place, or the number of tokens, in a file."""
    data = bytearray(path.read_bytes())
    for key, value in values.items():
        name = f"gguf_spec.trim.{key}".encode()
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name) + 4
        form = {"rows": "<Q", "size": "<I"}[key]
        struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    "values",
    [{"rows": 0}, {"rows": 1 << 40}, {"rows": (1 << 64) - 32}, {"size": N + 1}, {"size": 0}, {"size": 1 << 31}],
)  # fmt: skip
def test_a_wrong_place_is_refused(copy, tmp_path, values):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(changed(copy, **values))
    with pytest.raises(NotAModelError, match="damaged"):
        _ = ModelFile(bad, as_draft=True).header


@pytest.mark.parametrize("n", [1, 1000])
def test_a_table_that_is_cut_short_is_refused(copy, tmp_path, n):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(copy.read_bytes()[:-n])
    with pytest.raises(NotAModelError, match="embeddings of 275 tokens"):
        _ = ModelFile(bad, as_draft=True).header


def test_a_file_that_shrinks_after_its_header_was_read(copy, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(copy.read_bytes())
    file = ModelFile(bad, as_draft=True)
    _ = file.header
    bad.write_bytes(copy.read_bytes()[:-100])
    with pytest.raises(NotAModelError, match="changed"):
        Context(file, OPTIONS)


def test_the_size_is_that_of_what_is_loaded(whole, copy):
    before, after = read_header(whole), read_header(copy)
    n_table = before.tensor("token_embd.weight").n_bytes
    assert after.file_bytes == copy.stat().st_size - n_table
    assert after.file_bytes < before.file_bytes
    assert trimmed(after).rows_at == after.file_bytes
    with copy.open("rb") as file:
        file.seek(after.file_bytes)
        table = np.frombuffer(file.read(), np.float32).reshape(N, -1)
    np.testing.assert_array_equal(table, tiny.llama(seed=1)[1]["token_embd.weight"])


@pytest.fixture(scope="module")
def without(whole):
    """A trimmed draft without the embeddings of the other tokens, as of an architecture that does not take them."""
    path = whole.with_name("without.gguf")
    with pytest.MonkeyPatch.context() as patch:
        facts = replace(architecture("llama"), takes_rows="")
        patch.setitem(architectures._TABLE, "llama", facts)
        return cut(whole, path)


def test_without_the_table_a_text_is_spelled_with_kept_tokens(whole, copy, without):
    assert ROWS not in read_header(without).metadata
    with (
        closing(Context(ModelFile(whole), OPTIONS)) as target,
        closing(Context(ModelFile(without, as_draft=True), OPTIONS)) as old,
        closing(Context(ModelFile(copy, as_draft=True), OPTIONS)) as new,
    ):
        headers = read_header(whole), read_header(without)
        translation = translation_of(target.weights, old.weights, *headers)
        assert translation.pairs == {token: row for row, token in enumerate(IDS)}
        assert (old.weights.n_vocab, old.weights.kept) == (len(IDS), None)
        headers = read_header(whole), read_header(copy)
        assert translation_of(target.weights, new.weights, *headers) is None
        assert new.weights.n_vocab == N
    assert not FileVocabulary(read_header(without)).reads_all


@pytest.mark.parametrize("draft", ["copy", "without"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 2}])
def test_the_text_is_the_plain_one(whole, draft, options, request):
    """A draft with half of the tokens of its target, which is the same model."""
    path = request.getfixturevalue(draft)
    with gguf_spec.load(whole, path, threads=1, extra_bufts=False) as llm:
        sampling = Sampling(max_tokens=40, ignore_eos=True, **options)
        plain = llm.generate("a the of", sampling, speculation=Speculation(0))
        way = Speculation(4, drafter="model", adaptive=False)
        drafted = llm.generate("a the of", sampling, speculation=way)
    assert drafted.tokens == plain.tokens
    assert drafted.stats.n_drafted > 0
    if draft == "copy":  # it is right whenever the target's token is kept
        n_kept = sum(token in IDS for token in plain.tokens)
        assert 0 < n_kept < 40
        assert drafted.stats.n_accepted > 0
