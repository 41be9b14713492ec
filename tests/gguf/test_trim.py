"""Trimmed drafts: the rows of the kept tokens as they were, what refuses a wrong table, and the same text with them."""

from dataclasses import replace

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import (
    InvalidOptionError,
    NotAModelError,
    OutputFileError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from gguf_spec.gguf.validation import ModelFile, read_header, trimmed
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.models import find, find_drafts
from gguf_spec.speculative.vocabularies import check_vocabulary
from gguf_spec_trim import trim
from tests.gguf.conftest import check_translated_draft
from tests.support import tiny

WORDS = [f"Ġword{i}" for i in range(300)]
TOKENS = [*tiny.TOKENS[:-3], *WORDS, *tiny.TOKENS[-3:]]
DRAFT = find("tales-draft")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Untied embeddings in F32."""
    folder = tmp_path_factory.mktemp("trim")
    return tiny.write(folder / "whole.gguf", tiny.llama(n_vocab=len(TOKENS)), tokens=TOKENS)


@pytest.fixture(scope="module")
def small(model):
    path = model.with_name("small.gguf")
    trim(model, path, keep=400)
    return path


@pytest.fixture(scope="module")
def half(tmp_path_factory):
    """Half of the bundled draft, whose embeddings are tied and Q8_0."""
    path = tmp_path_factory.mktemp("trim") / "half.gguf"
    trim(DRAFT, path, keep=2048)
    return path


@pytest.mark.full
@pytest.mark.parametrize(("source", "kept"), [("model", "small"), (None, "half")])
def test_kept_rows_are_those_of_the_model(source, kept, request):
    source = DRAFT if source is None else request.getfixturevalue(source)
    kept = request.getfixturevalue(kept)
    ids = list(trimmed(read_header(kept)).ids)
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(kept)
    assert [t.name for t in after.tensors] == [t.name for t in before.tensors]
    for a, b in zip(before.tensors, after.tensors, strict=True):
        assert a.tensor_type == b.tensor_type
        rows = a.data[ids] if a.name in ("token_embd.weight", "output.weight") else a.data
        np.testing.assert_array_equal(rows, b.data)
    assert after.get_field("tokenizer.ggml.model").contents() == "none"
    assert after.get_field("llama.vocab_size").contents() == len(ids)
    names = before.get_field("tokenizer.ggml.tokens").contents()
    assert after.get_field("tokenizer.ggml.tokens").contents() == [names[i] for i in ids]
    # Everything else is as it was.
    for name, field in before.fields.items():
        if not name.startswith(("GGUF.", "tokenizer.", "llama.vocab_size")):
            assert after.fields[name].contents() == field.contents(), name


def test_bytes_and_control_tokens_are_kept(small):
    ids = set(trimmed(read_header(small)).ids)
    assert len(ids) == 400
    assert {*range(256), *range(len(TOKENS) - 3, len(TOKENS))} <= ids


def test_texts_decide(model, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"the" * 50 + b"\xff\xfe then on" * 3)
    merged = range(256, len(tiny.TOKENS) - 3)
    used = tiny.TOKENS.index("the")
    made = trim(model, tmp_path / "a.gguf", keep=300, texts=[tmp_path / "a.txt"])
    ids = trimmed(read_header(tmp_path / "a.gguf")).ids
    assert used in ids
    assert made.n_text > 50
    assert made.coverage == 1
    last = len(TOKENS) - 4  # the last word is kept only if a text has it
    many = "".join(f" word{i}" for i in range(300))
    assert last not in ids
    assert set(merged) <= set(ids)  # free places are for the first tokens
    (tmp_path / "b.txt").write_text(many)
    assert trim(model, tmp_path / "b.gguf", keep=300, texts=[tmp_path / "b.txt"]).coverage <= 1


def test_a_split_model_becomes_one_file(tmp_path):
    """Tensors in two files."""
    metadata, tensors = tiny.llama(n_vocab=len(TOKENS))
    names = sorted(tensors)
    for i in range(2):
        split = {
            "split.no": gguf.GGUFValue(i, gguf.GGUFValueType.UINT16),
            "split.count": gguf.GGUFValue(2, gguf.GGUFValueType.UINT16),
            "split.tensors.count": gguf.GGUFValue(len(names), gguf.GGUFValueType.INT32),
        }
        part = {name: tensors[name] for name in names[i::2]}
        path = tmp_path / f"m-0000{i + 1}-of-00002.gguf"
        tiny.write(path, (metadata, part), tokens=TOKENS, metadata=split)
    first = tmp_path / "m-00001-of-00002.gguf"
    trim(first, tmp_path / "one.gguf", keep=400)
    header = ModelFile(tmp_path / "one.gguf", as_draft=True).header
    ids = list(trimmed(header).ids)
    assert not [key for key in header.metadata if key.startswith("split.")]
    for tensor in gguf.GGUFReader(tmp_path / "one.gguf").tensors:
        right = tensors[tensor.name]
        by_token = tensor.name in ("token_embd.weight", "output.weight")
        np.testing.assert_array_equal(tensor.data, right[ids] if by_token else right)


def test_it_is_a_draft_and_nothing_else(small, tmp_path):
    with pytest.raises(UnsupportedModelError, match="knows only 400 of 575 tokens"):
        gguf_spec.load(small)
    with pytest.raises(UnsupportedModelError, match="knows only"):
        trim(small, tmp_path / "again.gguf", keep=300)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ids", "size", "n"),
    [(None, 575, 400), ("twice", 575, 400), ("down", 575, 400), ("below", 575, 400), ("beyond", 575, 400),
     ("few", 575, 400), ("right", 10, 400), ("right", 1 << 30, 400), ("right", -1, 400), ("right", 575, 401), ("right", 575, None)],
)  # fmt: skip
def test_a_wrong_table_is_refused(tmp_path, small, ids, size, n):
    right = list(trimmed(read_header(small)).ids)
    table = {
        None: "none",
        "twice": [right[0], *right[:-1]],
        "down": right[::-1],
        "below": [-1, *right[1:]],
        "beyond": [*right[:-1], 575],
        "few": right[1:],
        "right": right,
    }[ids]
    tokens = [TOKENS[i] for i in right]
    changes = {
        "tokenizer.ggml.model": "none",
        "gguf_spec.trim.ids": table,
        "gguf_spec.trim.tokenizer": "gpt2",
        "gguf_spec.trim.size": gguf.GGUFValue(size, gguf.GGUFValueType.INT64),
        "llama.vocab_size": n,
    }
    path = tiny.write(
        tmp_path / "bad.gguf", tiny.llama(n_vocab=400), tokens=tokens, metadata=changes
    )
    with pytest.raises(NotAModelError, match=r"damaged"):
        _ = ModelFile(path, as_draft=True).header
    changes |= {"gguf_spec.trim.ids": right, "gguf_spec.trim.size": 575, "llama.vocab_size": 400}
    good = tiny.write(
        tmp_path / "good.gguf", tiny.llama(n_vocab=400), tokens=tokens, metadata=changes
    )
    assert FileVocabulary(ModelFile(good, as_draft=True).header).special_tokens["size"] == 575


def test_places_that_are_refused_keep_their_files(model, tmp_path, monkeypatch):
    with pytest.raises(OutputFileError, match="is the model itself"):
        trim(model, model, keep=400, force=True)
    with pytest.raises(OutputFileError, match="does not exist"):
        trim(model, tmp_path / "no" / "a.gguf", keep=400)
    (tmp_path / "a.gguf").write_text("mine")
    with pytest.raises(OutputFileError, match="exists"):
        trim(model, tmp_path / "a.gguf", keep=400)
    for keep in (0, 299, len(TOKENS)):
        with pytest.raises(InvalidOptionError, match="keep"):
            trim(model, tmp_path / "b.gguf", keep=keep)
    with pytest.raises(InvalidOptionError, match="texts"):
        trim(model, tmp_path / "b.gguf", keep=400, texts=[tmp_path / "none.txt"])

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguf_spec.gguf.trimming._write", full)
    with pytest.raises(OutputFileError, match="No space left"):
        trim(model, tmp_path / "a.gguf", keep=400, force=True)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.gguf"]
    assert (tmp_path / "a.gguf").read_text() == "mine"


def test_a_matrix_that_is_not_known_is_refused(tmp_path):
    metadata, tensors = tiny.llama(n_vocab=len(TOKENS))
    tensors["engram.weight"] = np.zeros((len(TOKENS), 32), np.float32)
    path = tiny.write(tmp_path / "odd.gguf", (metadata, tensors), tokens=TOKENS)
    with pytest.raises(UnsupportedModelError, match=r"engram\.weight"):
        trim(path, tmp_path / "out.gguf", keep=400)


# ---- as a draft


@pytest.fixture(scope="module")
def pair(half):
    with gguf_spec.load("tales", half, threads=1) as llm:
        yield llm


@pytest.mark.full
def test_the_error_message(pair, half):
    assert pair.notes == ("the draft half.gguf knows 2,048 of the 4,096 tokens.",)
    assert pair.draft_name == "half.gguf"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "options",
    [{"temperature": 0.0}, {}, {"top_k": 0, "top_p": 1.0, "temperature": 1.1}, {"repeat_penalty": 1.3, "dry_multiplier": 0.8},
     {"top_n_sigma": 1.0, "top_k": 0}, {"grammar": 'root ::= [A-Z] [a-z ]{3,40} "."'}, {"ignore_eos": True, "min_p": 0.1}],
)  # fmt: skip
def test_the_text_is_the_plain_one(pair, prompts, options):
    n_accepted = 0
    for i, prompt in enumerate(prompts[:3]):
        sampling = Sampling(**{"max_tokens": 32, "seed": i} | options)
        plain = pair.generate(prompt, sampling, speculation=Speculation(0))
        way = Speculation(5, drafter="model", adaptive=False)
        drafted = pair.generate(prompt, sampling, speculation=way)
        assert drafted.tokens == plain.tokens
        assert drafted.stats.n_drafted > 0
        n_accepted += drafted.stats.n_accepted
        hybrid = pair.generate(prompt, sampling, speculation=Speculation(8))
        assert hybrid.tokens == plain.tokens
    assert n_accepted > 5


@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_only_kept_tokens_are_proposed_by_the_other_rules(pair, half, prompts, accept):
    kept = set(trimmed(read_header(half)).ids)
    sampling = Sampling(seed=3, max_tokens=40, temperature=1.0, top_k=0, top_p=1.0)
    one = pair.generate(
        prompts[0], sampling, speculation=Speculation(4, accept, drafter="model", adaptive=False)
    )
    assert one.stats.n_accepted > 0
    assert not set(one.tokens) <= kept  # the target may emit any token
    again = pair.generate(
        prompts[0], sampling, speculation=Speculation(4, accept, drafter="model", adaptive=False)
    )
    assert one.tokens == again.tokens


@pytest.mark.full
def test_requests_at_once(half, prompts):
    sampling = Sampling(max_tokens=24)
    with gguf_spec.load("tales", half, threads=1, parallel=3) as llm:
        ways = [Speculation(4, drafter="model", adaptive=False), Speculation(0)]
        texts = [
            [c.tokens for c in llm.generate_many(
                prompts[:6], [replace(sampling, seed=i) for i in range(6)], speculation=way
            )]
            for way in ways
        ]  # fmt: skip
    assert texts[0] == texts[1]


def test_it_drafts_for_another_tokenizer_too(half, gguf_dir):
    """Without a tokenizer of its own it spells a text with the longest tokens."""
    sampling = Sampling(max_tokens=24, seed=4)
    check_translated_draft(gguf_dir / "llama.gguf", half, "Once upon a time", sampling)


def test_a_table_of_other_tokens_is_not_a_table_of_the_target(half, tmp_path):
    """The ids fit, the texts do not: the texts decide."""
    header = read_header(half)
    names = FileVocabulary(header)
    target = FileVocabulary(ModelFile(find("tales")).header)
    check_vocabulary(target, names)
    target._texts[names.kept[-1]] = b"other"
    with pytest.raises(VocabularyMismatchError, match="'other' in the target"):
        check_vocabulary(target, names)
    dropped = next(i for i in range(5, 4096) if i not in set(names.kept))
    target._texts[names.kept[-1]] = FileVocabulary(header).token_text(names.kept[-1]).encode()
    target._texts[dropped] = b"only the kept tokens count"
    check_vocabulary(target, names)


@pytest.mark.usefixtures("unmeasured")
def test_drafts_lists_it(half, tmp_path):
    target = find("tales")
    for path in (target, half):
        (tmp_path / path.name).symlink_to(path)
    found = {one.name: one for one in find_drafts(tmp_path / target.name)}
    assert found["half.gguf"].fits
    assert "2,048 of the target's tokens" in found["half.gguf"].why
    assert not found["half.gguf"].translated
