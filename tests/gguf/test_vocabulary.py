from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import VocabularyMismatchError
from gguf_spec.gguf.validation import read_header
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.speculative.vocabularies import check_vocabulary
from tests.gguf.conftest import check_translated_draft
from tests.support import tiny

GREEDY = Sampling(temperature=0, max_tokens=12)


def draft(path: Path, n_more: int = 0, **metadata) -> Path:
    tokens = (
        [*tiny.TOKENS[:-3], *(f"<pad{i}>" for i in range(n_more)), *tiny.TOKENS[-3:]]
        if n_more
        else tiny.TOKENS
    )
    return tiny.write(path, tiny.llama(n_vocab=len(tokens)), tokens=tokens, metadata=metadata)


def mismatch(target: Path, draft: Path) -> VocabularyMismatchError:
    """Return the difference of two vocabularies that share most texts; the draft is translated."""
    a, b = (FileVocabulary(read_header(path)) for path in (target, draft))
    with pytest.raises(VocabularyMismatchError) as caught:
        check_vocabulary(a, b)
    assert caught.value.hint == "use a draft of the same model family or set draft='none'."
    check_translated_draft(target, draft, "Once upon", GREEDY)
    return caught.value


def test_the_same_vocabulary_passes(gguf_dir):
    with gguf_spec.load(
        gguf_dir / "llama.gguf", gguf_dir / "cousin.gguf", threads=1, extra_bufts=False
    ) as llm:
        assert llm.notes == ()
        assert llm.draft_name == "cousin.gguf"


def test_another_type(gguf_dir, tmp_path):
    other = draft(
        tmp_path / "t5.gguf",
        **{"tokenizer.ggml.model": "t5", "tokenizer.ggml.add_eos_token": False},
    )
    with pytest.raises(VocabularyMismatchError) as caught:
        gguf_spec.load(gguf_dir / "llama.gguf", other, threads=1, extra_bufts=False)
    error = caught.value
    assert (error.what, error.target_value, error.draft_value) == ("type", 2, 4)
    assert "2 in the target, 4 in the draft" in str(error)


@pytest.mark.parametrize("flag", ["add_bos", "add_eos"])
def test_another_start_or_end(gguf_dir, tmp_path, flag):
    error = mismatch(
        gguf_dir / "llama.gguf",
        draft(tmp_path / "draft.gguf", **{f"tokenizer.ggml.{flag}_token": True}),
    )
    assert (error.what, error.target_value, error.draft_value) == (flag, False, True)


@pytest.mark.parametrize("which", ["bos", "eos"])
def test_another_token_at_start_or_end_counts_only_where_it_is_added(gguf_dir, tmp_path, which):
    other = draft(tmp_path / "other.gguf", **{f"tokenizer.ggml.{which}_token_id": 7})
    gguf_spec.load(gguf_dir / "llama.gguf", other, threads=1, extra_bufts=False).close()
    adds = {f"tokenizer.ggml.add_{which}_token": True}
    target = draft(tmp_path / "target.gguf", **adds)
    error = mismatch(
        target, draft(tmp_path / "draft.gguf", **adds, **{f"tokenizer.ggml.{which}_token_id": 7})
    )
    assert (error.what, error.target_value, error.draft_value) == (which, tiny.END, 7)


@pytest.mark.parametrize("larger", ["target", "draft"])
def test_the_size_may_differ_by_128(tmp_path, larger):
    def padded(n: int) -> Path:
        tokens = [*tiny.TOKENS, *(f"<pad{i}>" for i in range(n))]
        changes = {"tokenizer.ggml.token_type": [1] * 272 + [3] * (n + 3)} | {
            f"tokenizer.ggml.{t}_token_id": tiny.END for t in ("bos", "eos")
        }
        return tiny.write(
            tmp_path / f"{n}.gguf",
            tiny.llama(n_vocab=len(tokens), scale=0.5),
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
    assert {error.target_value, error.draft_value} == {len(tiny.TOKENS), len(tiny.TOKENS) + 129}


@pytest.mark.parametrize("token", [5, 100, len(tiny.TOKENS) - 1])
def test_one_other_token(gguf_dir, tmp_path, token):
    tokens = [*tiny.TOKENS]
    tokens[token] = "<other>"
    error = mismatch(gguf_dir / "llama.gguf", tiny.write(tmp_path / "draft.gguf", tokens=tokens))
    assert (error.what, error.token, error.target_value, error.draft_value) == (
        "token",
        token,
        tiny.TOKENS[token],
        "<other>",
    )
    assert f"token {token}" in str(error)
    assert "'<other>' in the draft" in str(error)


@pytest.mark.parametrize("token", [0, 4])
def test_the_first_five_tokens_may_differ(gguf_dir, tmp_path, token):
    tokens = [*tiny.TOKENS]
    tokens[token] = "<other>"
    path = tiny.write(tmp_path / "draft.gguf", tokens=tokens)
    with gguf_spec.load(gguf_dir / "llama.gguf", path, threads=1, extra_bufts=False) as llm:
        assert llm.notes == ()  # a draft of another tokenizer would be translated
        assert llm.draft_name == "draft.gguf"


def test_the_check_is_the_same_both_ways(gguf_dir, tmp_path):
    options = ContextOptions(n_ctx=32, threads=1, extra_bufts=False)
    a, b = (
        Context(gguf_dir / "llama.gguf", options).weights,
        Context(
            draft(tmp_path / "b.gguf", **{"tokenizer.ggml.add_bos_token": True}), options
        ).weights,
    )
    for pair in ((a, b), (b, a)):
        with pytest.raises(VocabularyMismatchError):
            check_vocabulary(*pair)
    a.close()
    b.close()
