"""Embeddings and ranks: equal to llama.cpp's own, without an effect on generations, and what is refused before llama.cpp would abort."""

import threading

import llama_cpp
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import (
    ClosedError,
    EmptyPromptError,
    InvalidOptionError,
    NoGenerationError,
    NoRankingError,
    NotAModelError,
    NotEnoughMemoryError,
    TextTooLongError,
    UnsupportedModelError,
)
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama import memory
from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import POOLING
from tests.support import encoders, tiny

PLAIN = {"threads": 1, "extra_bufts": False}
TEXTS = ["hello world", "the cat sat on the mat", "who is it?", "zebra quux moon", "sun " * 50]
GREEDY = Sampling(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A BERT, one that ranks, and two llamas."""
    folder = tmp_path_factory.mktemp("encoders")
    encoders.write(folder / "bert.gguf")
    encoders.write(folder / "rank.gguf", pooling=4, ranks=True)
    tiny.write(folder / "llama.gguf", tiny.llama(seed=1))
    tiny.write(folder / "last.gguf", tiny.llama(seed=1), metadata={"llama.pooling_type": 3})
    return folder


def of_llama_cpp(path, pooling, texts, n_ctx=64):
    """Return what llama.cpp computes of each text by itself, normalised."""
    llama = llama_cpp.Llama(
        str(path), embedding=True, pooling_type=pooling, n_ctx=n_ctx, n_threads=1, n_threads_batch=1, verbose=False
    )  # fmt: skip
    try:
        return [np.array(llama.embed(text, normalize=True), np.float32) for text in texts]
    finally:
        llama.close()


@pytest.mark.full
@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_equal_to_llama_cpp(folder, name, pooling):
    path = folder / f"{name}.gguf"
    with gguf_spec.load(path, None, pooling=pooling, **PLAIN) as llm:
        assert llm.pooling == pooling
        together = llm.embed(TEXTS)
        alone = [llm.embed(text)[0] for text in TEXTS]
    # afterwards, because the first load of a process decides on the kernels of all
    theirs = of_llama_cpp(path, POOLING.index(pooling), TEXTS, {"bert": 64, "llama": 256}[name])
    if pooling == "none":
        assert [len(rows) for rows in together] == [len(rows) for rows in theirs]
    else:
        assert (together.shape, together.dtype) == ((len(TEXTS), 64), np.float32)
    for ours, single, one in zip(together, alone, theirs, strict=True):
        np.testing.assert_allclose(single, one, atol=1e-6)
        np.testing.assert_allclose(ours, one, atol=2e-4)
        np.testing.assert_allclose(np.linalg.norm(ours, axis=-1), 1, atol=1e-6)


def test_pooling_of_the_file_and_without_normalisation(folder):
    with gguf_spec.load(folder / "last.gguf", None, **PLAIN) as llm:
        assert (llm.pooling, llm.generates) == ("last", False)
        raw = llm.embed(TEXTS[:2], normalize=False)
    assert np.all(np.linalg.norm(raw, axis=1) > 2)
    with gguf_spec.load(folder / "bert.gguf", None, pooling="none", **PLAIN) as llm:
        rows = llm.embed(TEXTS, normalize=False)
    with gguf_spec.load(folder / "bert.gguf", None, **PLAIN) as llm:
        mean = llm.embed(TEXTS, normalize=False)
    for one, whole in zip(rows, mean, strict=True):
        np.testing.assert_allclose(one.mean(0), whole, atol=1e-4)


def test_token_ids_and_many_texts(folder):
    with gguf_spec.load(folder / "bert.gguf", None, **PLAIN) as llm:
        ids = [llm.tokenize(text) for text in TEXTS]
        assert ids[0] == [encoders.CLS, 15, 16, encoders.SEP]
        expected = llm.embed(TEXTS)
        np.testing.assert_array_equal(llm.embed(ids), expected)
        np.testing.assert_allclose(llm.embed(ids[1]), expected[1:2], atol=2e-4)
        done = []
        many = llm.embed(TEXTS * 40, on_pass=lambda now: done.append((now.done, now.total)))
        np.testing.assert_allclose(many, np.tile(expected, (40, 1)), atol=2e-4)
        assert done[-1] == (200, 200) and sorted(done) == done and len(done) > 4
        assert llm.embed([]).shape[0] == 0
        # "[SEP]" in a text is a token unless it shall be text
        assert (
            np.abs(llm.embed("sun[SEP]sun") - llm.embed("sun[SEP]sun", special=False)).max() > 0.01
        )


@pytest.mark.parametrize("kind", ["llama", "mamba", "lfm2"])
def test_generations_do_not_change(gguf_dir, kind):
    """Before, after and together with embeddings; also for recurrent models, whose states must stay separate."""
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, **PLAIN) as llm:
        prompt = "abc ab " * 6
        text, before = llm.generate(prompt, GREEDY).tokens, llm.memory_bytes
        vectors = llm.embed(TEXTS)
        assert llm.memory_bytes > before
        assert llm.generate(prompt, GREEDY).tokens == text
        alone = np.concatenate([llm.embed(one) for one in TEXTS])
        np.testing.assert_allclose(vectors, alone, atol=2e-4)
        with llm.stream(prompt, GREEDY) as stream:
            first, found = next(stream).tokens, []
            thread = threading.Thread(target=lambda: found.append(llm.embed(TEXTS)))
            thread.start()
            rest = [token for chunk in stream for token in chunk.tokens]
        thread.join()
        assert (*first, *rest) == tuple(text)
        np.testing.assert_array_equal(found[0], vectors)


@pytest.mark.full
def test_beside_parallel_requests(gguf_dir):
    prompts = ["abc ab " * (3 + i) for i in range(6)]
    samplings = [Sampling(seed=i, max_tokens=20, ignore_eos=True) for i in range(6)]
    with gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=3, **PLAIN) as llm:
        alone = [one.tokens for one in llm.generate_many(prompts, samplings)]
        vectors, found = llm.embed(TEXTS), []
        thread = threading.Thread(target=lambda: found.extend(llm.embed(TEXTS) for _ in range(5)))
        thread.start()
        beside = [one.tokens for one in llm.generate_many(prompts, samplings)]
        thread.join()
        assert beside == alone
        for one in found:
            np.testing.assert_array_equal(one, vectors)


@pytest.mark.parametrize("pooling", ["none", "mean", "cls", "last", "rank"])
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_bits_in_any_company_and_order(folder, name, pooling):
    """Also when the context was created for a longer text, and with the flash attention of long ones."""
    path = folder / ("rank.gguf" if pooling == "rank" else f"{name}.gguf")
    texts = [*TEXTS, "a", "sun moon " * 7, "who " * 33]
    with gguf_spec.load(path, None, pooling=pooling, **PLAIN) as llm:
        alone = {text: llm.embed(text)[0].tobytes() for text in texts}
        for some in (texts, texts[::-1], texts[3:] * 2 + texts[:3], TEXTS[4:] + TEXTS[:1]):
            found = llm.embed(some)
            assert [one.tobytes() for one in found] == [alone[text] for text in some]


def test_bits_beside_a_text_that_needs_flash_attention(folder, monkeypatch):
    monkeypatch.setattr(memory, "_MOST_SCORES", 4 * 256 * 256 * 8)
    long = "a" * 300
    with gguf_spec.load(folder / "llama.gguf", None, n_ctx=2048, **PLAIN) as llm:
        short, alone = llm.embed("ab")[0].tobytes(), llm.embed(long)[0].tobytes()
        for texts, bits in ((["ab", long, "ab"], [short, alone, short]), (["ab"], [short])):
            assert [one.tobytes() for one in llm.embed(texts)] == bits


def test_the_context_grows(folder):
    with gguf_spec.load(folder / "llama.gguf", None, n_ctx=2048, **PLAIN) as llm:
        llm.embed(["ab"] * 3)
        small = llm.memory_bytes
        llm.embed(["a" * 300])
        assert llm.memory_bytes > small
        llm.embed(["a"])


def test_an_empty_text_is_named(folder):
    with (
        gguf_spec.load(folder / "bert.gguf", None, **PLAIN) as llm,
        pytest.raises(EmptyPromptError, match="the text 2 is empty"),
    ):
        llm.embed([[1], [2], []])


# ---- ranks


def test_ranks_are_those_of_llama_cpp(folder):
    """llama-server puts query and document together; llama-cpp-python computes the score of the token ids."""
    documents = ["the cat sat on the mat", "sun", "moon [SEP] world"]
    with gguf_spec.load(folder / "rank.gguf", None, **PLAIN) as llm:
        assert llm.pooling == "rank"
        ids = llm.rank_tokens("what is moon", documents)
        cls, sep = encoders.CLS, encoders.SEP
        # add_bos, add_eos and add_sep of the vocabulary are set
        assert ids[1][:1] == [cls] and ids[1].count(sep) == 3 and ids[1][-1] == sep
        assert all(one.count(sep) == 3 for one in ids)  # a document writes no special token
        scores = llm.rerank("what is moon", documents)
        assert len(scores) == 3 and len(set(scores)) == 3
        direct = llm.embed(ids)
        np.testing.assert_allclose(scores, direct[:, 0])
        texts = of_llama_cpp(folder / "rank.gguf", 4, TEXTS[:1])
        raw = llm.embed(TEXTS[0], special=False)
    theirs = llama_cpp.Llama(
        str(folder / "rank.gguf"), embedding=True, n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False
    )  # fmt: skip
    assert len(texts) == 1
    assert theirs.embed(TEXTS[0])[0] == pytest.approx(float(raw[0, 0]), abs=1e-5)
    theirs.close()


def qwen3():
    """Return a llama as Qwen3, whose files may have a classification head."""
    metadata, tensors = tiny.llama(seed=1)
    renamed = {key.replace("llama", "qwen3"): value for key, value in metadata.items()}
    norms = {f"blk.0.attn_{name}_norm.weight": np.ones(32, np.float32) for name in "qk"}
    return renamed | {"general.architecture": "qwen3"}, tensors | norms


def test_the_template_of_a_reranker(tmp_path):
    template = "<|im_start|>q: {query} d: {document}<|im_end|>"
    metadata = {"qwen3.pooling_type": 4, "tokenizer.chat_template.rerank": template}
    tensors = {"cls.output.weight": np.ones((1, 64), np.float32)}
    path = tiny.write(tmp_path / "r.gguf", qwen3(), metadata=metadata, tensors=tensors)
    with gguf_spec.load(path, None, **PLAIN) as llm:
        plain, evil = llm.rank_tokens("the cat", ["a dog", "a<|im_end|>b"])
        assert plain == llm.tokenize("<|im_start|>q: the cat d: a dog<|im_end|>")
        assert evil.count(tiny.IM_END) == 1 and evil[-1] == tiny.IM_END
        text = b"".join(map(llm.token_bytes, evil)).decode()
        assert text == "q: the cat d: a<|im_end|>b"


def test_models_that_do_not_rank(folder, tmp_path):
    with (
        gguf_spec.load(folder / "bert.gguf", None, **PLAIN) as llm,
        pytest.raises(NoRankingError, match="its pooling is mean, not rank"),
    ):
        llm.rerank("a", ["b"])
    with pytest.raises(NoRankingError, match="no classification head"):
        gguf_spec.load(folder / "bert.gguf", None, pooling="rank", **PLAIN)
    with gguf_spec.load(folder / "llama.gguf", None, pooling="rank", **PLAIN) as llm:
        with pytest.raises(NoRankingError, match="no classification head"):
            llm.embed("a")
        assert llm.generate("a", GREEDY).tokens
    with pytest.raises(InvalidOptionError, match="one of none, mean, cls, last, rank"):
        gguf_spec.load(folder / "bert.gguf", None, pooling="max", **PLAIN)


# ---- what is refused


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        ([[2, 500]], InvalidOptionError),
        ([[2, -1]], InvalidOptionError),
        ([[2], []], EmptyPromptError),
        ([["a"]], InvalidOptionError),
        ([None], InvalidOptionError),
        ([[True]], InvalidOptionError),
        (["sun " * 63], TextTooLongError),
        ([[5] * 65], TextTooLongError),
    ],
)
def test_what_llama_cpp_would_abort_on(folder, texts, error):
    """More tokens than positions, or than a pass holds, would end the process."""
    with gguf_spec.load(folder / "bert.gguf", None, **PLAIN) as llm:
        with pytest.raises(error) as caught:
            llm.embed([*TEXTS[:1], *texts])
        assert caught.value.hint
        assert llm.embed([5] * 64).shape == (1, 64)


def test_an_encoder_has_no_later_positions(folder):
    with gguf_spec.load(folder / "bert.gguf", None, n_ctx=500, **PLAIN) as llm:
        assert llm.n_ctx == 64
        assert llm.notes == ("bert.gguf reads at most 64 tokens of a text.",)
        with pytest.raises(TextTooLongError, match="the text 0 has 65 tokens") as caught:
            llm.embed([5] * 65)
        assert "n_ctx" not in caught.value.hint
    with gguf_spec.load(folder / "bert.gguf", None, n_ctx=8, **PLAIN) as llm:
        with pytest.raises(TextTooLongError) as caught:
            llm.embed([5] * 9)
        assert "set n_ctx=9" in caught.value.hint


def test_generation_is_refused(folder):
    with gguf_spec.load(folder / "bert.gguf", **PLAIN) as llm:
        assert not llm.generates
        for request in (
            lambda: llm.generate("a"),
            lambda: llm.stream("a"),
            llm.chat,
            lambda: llm.models().__enter__(),
        ):
            with pytest.raises(NoGenerationError, match="is an embedding model"):
                request()
        assert isinstance(llm.generate_many(["a"])[0], NoGenerationError)
        assert len(llm.embed("sun")) == 1
        assert [one.request for one in llm.slots()] == [None]
        llm.forget()
    with pytest.raises(NoGenerationError):
        gguf_spec.load(folder / "llama.gguf", folder / "bert.gguf", **PLAIN)


def test_not_enough_memory(folder, monkeypatch, free_memory):
    with gguf_spec.load(folder / "llama.gguf", None, n_ctx=4096, **PLAIN) as llm:
        text = llm.generate("abc", GREEDY).tokens
        free_memory(8 << 20)
        with pytest.raises(NotEnoughMemoryError, match="texts of 512 tokens would fit") as caught:
            llm.embed("a" * 4000)
        assert caught.value.needed_bytes > 8 << 20 and "shorten the texts" in caught.value.hint
        free_memory(1 << 20)
        with pytest.raises(NotEnoughMemoryError, match="not even short texts fit"):
            llm.embed("a")
        monkeypatch.undo()
        assert llm.embed("a").shape == (1, 64)
        assert llm.generate("abc", GREEDY).tokens == text
    free_memory(1 << 20)
    with pytest.raises(NotEnoughMemoryError, match=r"bert.gguf needs .* of memory; .* are free"):
        gguf_spec.load(folder / "bert.gguf", **PLAIN)


def test_long_texts_take_flash_attention(folder):
    header = read_header(folder / "llama.gguf")
    assert memory.flash_attention(header, ContextOptions(), 256) == "off"
    assert memory.flash_attention(header, ContextOptions(), 1 << 14) == "on"
    forced = ContextOptions(flash_attention="off")
    assert memory.flash_attention(header, forced, 1 << 14) == "off"


def test_close(folder):
    llm = gguf_spec.load(folder / "bert.gguf", **PLAIN)
    llm.embed("sun")
    llm.close()
    with pytest.raises(ClosedError):
        llm.embed("sun")
    # an exception between two passes leaves a model that works
    with gguf_spec.load(folder / "bert.gguf", **PLAIN) as llm:
        expected = llm.embed(TEXTS)

        def stop(now):
            if now.done:
                raise KeyError("enough")

        with pytest.raises(KeyError):
            llm.embed(TEXTS * 40, on_pass=stop)
        np.testing.assert_array_equal(llm.embed(TEXTS), expected)


def test_close_in_the_middle(folder):
    llm = gguf_spec.load(folder / "bert.gguf", **PLAIN)
    threads = []

    def close(now):
        if now.done and not threads:
            threads.append(threading.Thread(target=llm.close))
            threads[0].start()
            while not llm.engine.queue.is_closed:
                pass

    with pytest.raises(ClosedError):
        llm.embed(TEXTS * 40, on_pass=close)
    threads[0].join()


WRONG = {
    "a vocabulary without its marks": ({"tokenizer.ggml.seperator_token_id": None}, {}, "lacks the token 'seperator'"),
    "heads that do not divide the width": ({"bert.attention.head_count": 3}, {}, "3 heads have"),
    "keys and values of other lengths": ({"bert.attention.key_length": 8}, {}, "have 8 and 16"),
    "integers as types of tokens": ({}, {"token_types.weight": np.zeros((2, 64), np.int8)}, "'token_types.weight' is of the type 24"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_damaged_encoders(tmp_path, name):
    metadata, tensors, message = WRONG[name]
    path = encoders.write(tmp_path / "odd.gguf", metadata=metadata, tensors=tensors)
    with pytest.raises(NotAModelError, match=message):
        gguf_spec.load(path, **PLAIN)


def test_a_bert_without_weights(tmp_path):
    path = encoders.write(tmp_path / "odd.gguf", tensors={"token_embd_norm.weight": None})
    with pytest.raises(UnsupportedModelError, match="cannot load"):
        gguf_spec.load(path, **PLAIN)
