from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import VocabularyMismatchError
from gguf_spec.gguf.validation import read_header
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.llama.model import Model
from gguf_spec.llama.options import ContextOptions
from gguf_spec.speculative.vocabularies import check_vocabulary
from tests.gguf.conftest import check_translated_draft
from tests.support import zoo

GREEDY = Sampling(temperature=0, max_tokens=12)


def draft(path: Path, n_more: int = 0, **metadata) -> Path:
    tokens = (
        [*zoo.TOKENS[:-3], *(f"<pad{i}>" for i in range(n_more)), *zoo.TOKENS[-3:]]
        if n_more
        else zoo.TOKENS
    )
    return zoo.write(path, zoo.llama(n_vocab=len(tokens)), tokens=tokens, metadata=metadata)


def mismatch(target: Path, draft: Path) -> VocabularyMismatchError:
    """Return the difference of two vocabularies that share most texts; the draft is translated."""
    a, b = (FileVocabulary(read_header(path)) for path in (target, draft))
    with pytest.raises(VocabularyMismatchError) as caught:
        check_vocabulary(a, b)
    assert caught.value.hint == "use a draft of the same model family or set draft='none'."
    check_translated_draft(target, draft, "Once upon", GREEDY)
    return caught.value


def test_the_same_vocabulary_passes(animals):
    with gguf_spec.load(
        animals / "llama.gguf", animals / "cousin.gguf", threads=1, extra_bufts=False
    ) as llm:
        assert llm.notes == ()
        assert llm.draft_name == "cousin.gguf"


def test_another_type(animals, tmp_path):
    other = draft(
        tmp_path / "t5.gguf",
        **{"tokenizer.ggml.model": "t5", "tokenizer.ggml.add_eos_token": False},
    )
    with pytest.raises(VocabularyMismatchError) as caught:
        gguf_spec.load(animals / "llama.gguf", other, threads=1, extra_bufts=False)
    error = caught.value
    assert (error.what, error.target_value, error.draft_value) == ("type", 2, 4)
    assert "2 in the target, 4 in the draft" in str(error)


@pytest.mark.parametrize("flag", ["add_bos", "add_eos"])
def test_another_start_or_end(animals, tmp_path, flag):
    error = mismatch(
        animals / "llama.gguf",
        draft(tmp_path / "draft.gguf", **{f"tokenizer.ggml.{flag}_token": True}),
    )
    assert (error.what, error.target_value, error.draft_value) == (flag, False, True)


@pytest.mark.parametrize("which", ["bos", "eos"])
def test_another_token_at_start_or_end_counts_only_where_it_is_added(animals, tmp_path, which):
    other = draft(tmp_path / "other.gguf", **{f"tokenizer.ggml.{which}_token_id": 7})
    gguf_spec.load(animals / "llama.gguf", other, threads=1, extra_bufts=False).close()
    adds = {f"tokenizer.ggml.add_{which}_token": True}
    target = draft(tmp_path / "target.gguf", **adds)
    error = mismatch(
        target, draft(tmp_path / "draft.gguf", **adds, **{f"tokenizer.ggml.{which}_token_id": 7})
    )
    assert (error.what, error.target_value, error.draft_value) == (which, zoo.END, 7)


@pytest.mark.parametrize("larger", ["target", "draft"])
def test_the_size_may_differ_by_128(tmp_path, larger):
    def padded(n: int) -> Path:
        tokens = [*zoo.TOKENS, *(f"<pad{i}>" for i in range(n))]
        changes = {"tokenizer.ggml.token_type": [1] * 272 + [3] * (n + 3)} | {
            f"tokenizer.ggml.{t}_token_id": zoo.END for t in ("bos", "eos")
        }
        return zoo.write(
            tmp_path / f"{n}.gguf",
            zoo.llama(n_vocab=len(tokens), scale=0.5),
            tokens=tokens,
            metadata=changes,
        )

    pair = [padded(0), padded(128)]
    target, other = pair if larger == "draft" else pair[::-1]
    with gguf_spec.load(target, other, threads=1, extra_bufts=False) as llm:
        drafted = llm.generate("Once upon", GREEDY, speculation=Speculation(4, adaptive=False))
    with gguf_spec.load(target, None, threads=1, extra_bufts=False) as llm:
        assert drafted.tokens == llm.generate("Once upon", GREEDY).tokens
    assert drafted.stats.n_drafted > 0
    pair = [padded(0), padded(129)]
    target, other = pair if larger == "draft" else pair[::-1]
    error = mismatch(target, other)
    assert error.what == "size"
    assert {error.target_value, error.draft_value} == {len(zoo.TOKENS), len(zoo.TOKENS) + 129}


@pytest.mark.parametrize("token", [5, 100, len(zoo.TOKENS) - 1])
def test_one_other_token(animals, tmp_path, token):
    tokens = [*zoo.TOKENS]
    tokens[token] = "<other>"
    error = mismatch(animals / "llama.gguf", zoo.write(tmp_path / "draft.gguf", tokens=tokens))
    assert (error.what, error.token, error.target_value, error.draft_value) == (
        "token",
        token,
        zoo.TOKENS[token],
        "<other>",
    )
    assert f"token {token}" in str(error)
    assert "'<other>' in the draft" in str(error)


@pytest.mark.parametrize("token", [0, 4])
def test_the_first_five_tokens_may_differ(animals, tmp_path, token):
    tokens = [*zoo.TOKENS]
    tokens[token] = "<other>"
    path = zoo.write(tmp_path / "draft.gguf", tokens=tokens)
    with gguf_spec.load(animals / "llama.gguf", path, threads=1, extra_bufts=False) as llm:
        assert llm.notes == ()  # a draft of another tokenizer would be translated
        assert llm.draft_name == "draft.gguf"


def test_the_check_is_the_same_both_ways(animals, tmp_path):
    options = ContextOptions(n_ctx=32, threads=1, extra_bufts=False)
    a, b = (
        Model(animals / "llama.gguf", options),
        Model(draft(tmp_path / "b.gguf", **{"tokenizer.ggml.add_bos_token": True}), options),
    )
    for pair in ((a, b), (b, a)):
        with pytest.raises(VocabularyMismatchError):
            check_vocabulary(*pair)
    a.close()
    b.close()
