"""Passes that give a row the bits of a single-row pass, with the real llama.cpp: the exact width holds, and texts are those of plain decoding.

The same for another library, such as one for plain AVX2: `scripts/build/library.py avx2` builds it and says how these tests use it.
"""

import os
import sys

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama.backend import build_features
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.quantize import quantize
from gguf_spec.runtime import profile_files
from gguf_spec.sampling.near_ties import SingleTokenReference
from gguf_spec.speculative import profiler
from tests.gguf.test_near_ties import TALES
from tests.support import children, tiny

TYPES = ("Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL", "Q4_0", "Q8_0", "F16")
# rows of the widest exact pass with llama.cpp's kernels, where not all are exact
STOCK = {"Q4_K_M": 3, "Q5_K_M": 7, "Q6_K": 7, "IQ4_NL": 7, "Q4_0": 7}
WIDTHS = (1, 2, 3, 4, 8, 32, 65)
DEPTHS = (0, 100, 300, 1024, 4096)
FEW = 8  # rows that show whether what lies before them differs
THREADS = 2  # several, for what threads share is where bits depended on the width


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The bundled target with weights of each type."""
    folder, source = tmp_path_factory.mktemp("types"), TALES / "tales-target-Q8_0.gguf"
    made = {"Q8_0": source, "F16": tiny.as_float16(source, folder / "F16.gguf")}
    for name in TYPES:
        if name not in made:
            made[name] = folder / f"{name}.gguf"
            quantize(source, made[name], name)
    return made


def rows_behind(model, tokens, depth, at_once, n):
    """The rows of the `n` tokens after the first `depth`, one by one; of those before, what is not in the cache is read `at_once`."""
    for i in range(model.n_past, depth, at_once):
        model.read(tokens[i : min(i + at_once, depth)])
    return np.concatenate([model.logits([token], 1).copy() for token in tokens[depth : depth + n]])


def worst(model, n_deepest):
    """(the largest difference of a logit for each width, and for each chunking of the past) over all depths."""
    tokens = [100 + i * 7919 % 3900 for i in range(n_deepest + max(WIDTHS))]
    of_width, of_chunk = dict.fromkeys(WIDTHS, 0.0), dict.fromkeys((32, 64, 512), 0.0)
    alone, depths = {}, [depth for depth in DEPTHS if depth <= n_deepest]
    model.rollback(0)
    for depth in depths:  # what lies before is read one by one, and once
        alone[depth] = rows_behind(model, tokens, depth, 1, max(WIDTHS))
        for width in WIDTHS:
            model.rollback(depth)
            rows = model.logits(tokens[depth : depth + width], width)
            of_width[width] = max(of_width[width], float(np.abs(rows - alone[depth][:width]).max()))
        model.rollback(depth)
    for chunk in of_chunk:
        for depth in depths:
            model.rollback(0)
            rows = rows_behind(model, tokens, depth, chunk, FEW)
            of_chunk[chunk] = max(of_chunk[chunk], float(np.abs(rows - alone[depth][:FEW]).max()))
    return of_width, of_chunk


def most_moved(model, width):
    """Return the largest change of the gaps of the best logits of a row in passes over `width` tokens, behind up to 1,024 tokens."""
    tokens, most = [100 + i * 7919 % 3900 for i in range(1024 + width)], 0.0
    for depth in DEPTHS[:4]:
        model.rollback(0)
        model.read(tokens[:depth])
        alone = SingleTokenReference()
        for token in tokens[depth : depth + width]:
            alone.add(model.logits([token], 1)[0])
        model.rollback(depth)
        most = max(most, alone.max_shift(model.logits(tokens[depth : depth + width], width)))
    return most


@pytest.mark.full
@pytest.mark.parametrize(
    "options",
    [{}, {"kv_type": "q8_0"}, {"kv_type": "bf16"}, {"flash_attention": "on", "kv_type": "bf16"}],
    ids=str,
)
@pytest.mark.parametrize("n_deepest", [300, pytest.param(4096, marks=pytest.mark.slow)])
def test_rows_have_the_same_bits_for_any_width_depth_and_chunking(
    options, n_deepest, kernels, capsys
):
    """The bundled target: with llama.cpp's kernels it fails where these are built with llamafile's products."""
    model = Context(
        TALES / "tales-target-Q8_0.gguf", ContextOptions(n_ctx=4352, threads=THREADS, **options)
    ).sequences[0]
    try:
        of_width, of_chunk = worst(model, n_deepest)
    finally:
        model.close()
    with capsys.disabled():
        print(
            f"\n{options}, up to {n_deepest} tokens: largest difference {max(of_width.values()):.3g} over widths, {max(of_chunk.values()):.3g} over chunkings"
        )
    assert kernels == "own" or build_features().get("LLAMAFILE", "0") == "0", (
        "build llama.cpp with -DGGML_LLAMAFILE=OFF, as scripts/run does"
    )
    assert set(of_width.values()) == set(of_chunk.values()) == {0.0}
    assert model.exactness.attention
    assert model.exactness.grid == 0


@pytest.mark.full
def test_flash_attention_on_f16_is_not_taken_for_exact(stock_kernels):
    """With several threads it splits a long cache for a single token."""
    with gguf_spec.load("tales", threads=THREADS, n_ctx=2048, flash_attention="on") as llm:
        with llm.models() as (target, _):
            moved = most_moved(target, 8)
            assert target.exactness.grid
        assert 0 < moved <= llm.logit_noise(8), "a few rows were measured, and doubled"
        assert llm.profile.exact_width == 1


@pytest.mark.full
@pytest.mark.parametrize("name", TYPES)
def test_the_passes_that_verify_are_exact(files, name, kernels, capsys, monkeypatch):
    # On a busy machine the time ends before all widths are compared, and fewer are known as exact.
    measure = profiler.measure
    monkeypatch.setattr(
        profile_files, "measure", lambda target, draft, **_: measure(target, draft, budget_s=np.inf)
    )
    with gguf_spec.load(
        files[name], TALES / "tales-draft-Q4_0.gguf", threads=THREADS, n_ctx=512
    ) as llm:
        widest = llm.profile.exact_width
        with llm.models() as (target, _):
            of_width, of_chunk = worst(target, 300)
            grid = target.exactness.grid
    with capsys.disabled():
        print(
            f"\n{name}: passes of up to {widest} tokens are exact; prompts are read on a grid of {grid}; {of_width}"
        )
    assert widest == (65 if kernels == "own" else STOCK.get(name, 65))
    assert kernels == "stock" or not grid
    assert all(difference == 0 for width, difference in of_width.items() if width <= widest)
    assert grid or not any(of_chunk.values())


# prints the tokens of the last model that it loads, and their log-probabilities
LOADS = """
import sys
import gguf_spec
from gguf_spec.verify import bundled_prompts
for file in sys.argv[1:]:
    with gguf_spec.load(file, "none", threads=1, n_ctx=256) as llm:
        texts = [
            llm.generate(prompt, gguf_spec.Sampling(seed=i, max_tokens=8, logprobs=0))
            for i, prompt in enumerate(bundled_prompts()[:6])
        ]
print([(one.tokens, [token.logprob for token in one.logprobs]) for one in texts])
"""


@pytest.mark.full
@pytest.mark.parametrize("kernels", ["auto", "stock"])
def test_a_model_loaded_before_changes_no_text(files, monkeypatch, kernels):
    """In processes of their own: the first load must decide nothing for the models after it."""
    monkeypatch.setenv("GGUF_SPEC_KERNELS", kernels)
    loads = ([files["Q4_K_M"]], [files["Q8_0"], files["Q4_K_M"]])
    commands = [[sys.executable, "-c", LOADS, *some] for some in loads]
    texts = {children.run(one, check=True, capture_output=True).stdout for one in commands}
    assert len(texts) == 1
    assert len(texts.pop()) > 100


def kept_apart(llm, prompts, n_tokens):
    """Return the number of texts equal to plain decoding, of all, and of counted near ties, with default options and fixed lengths."""
    same = n = n_ties = 0
    for i, prompt in enumerate(prompts):
        for sampling in (
            Sampling(temperature=0, max_tokens=n_tokens),
            Sampling(seed=i, max_tokens=n_tokens),
        ):
            llm.forget()
            plain = llm.generate(prompt, sampling, speculation=Speculation(0))
            for speculation in (
                Speculation(),
                Speculation(16, adaptive=False),
                Speculation(4, adaptive=False, drafter="model"),
            ):
                llm.forget()
                burst = llm.generate(prompt, sampling, speculation=speculation)
                same += burst.tokens == plain.tokens
                n_ties += burst.stats.n_near_ties
                n += 1
    return same, n, n_ties


@pytest.mark.full
@pytest.mark.parametrize("n_prompts", [2, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", TYPES)
def test_texts_are_those_of_plain_decoding(files, name, n_prompts, kernels, prompts, capsys):
    if n_prompts == 50 and os.environ.get("CI") and len(os.sched_getaffinity(0)) < 2:
        pytest.skip("too slow on one core")
    with gguf_spec.load(files[name], TALES / "tales-draft-Q4_0.gguf", threads=1, n_ctx=256) as llm:
        same, n, n_ties = kept_apart(llm, prompts[:n_prompts], 48)
    with capsys.disabled():
        print(f"\n{name}: {same} of {n} texts are the plain ones, {n_ties} near ties")
    assert (same, n_ties) == (n, 0)


@pytest.mark.full
@pytest.mark.parametrize("name", ["Q4_K_M", "Q6_K", "Q8_0"])
def test_a_cache_that_is_used_again_gives_the_text_of_a_fresh_one(files, name, kernels):
    """The text is the same after any earlier request: prompts with a common prefix, other answers, a chat's last turn."""
    start = (
        "Once upon a time there was a fox who met a king, and the king said to the fox that the winter was long. "
        * 4
    )
    ways = [start + "The fox", start + "The king and the", start[:-37], start + "The fox", start]
    with gguf_spec.load(files[name], TALES / "tales-draft-Q4_0.gguf", threads=1, n_ctx=1024) as llm:
        sampling = Sampling(seed=5, max_tokens=40)

        def text(prompt, speculation):
            return llm.generate(prompt, sampling, speculation=speculation).text

        fresh = {}
        for way in ways:
            llm.forget()
            fresh[way] = text(way, Speculation(0))
        for speculation in (
            Speculation(0),
            Speculation(3, adaptive=False),
            Speculation(20, adaptive=False),
        ):
            llm.forget()
            for way in ways:
                assert text(way, speculation) == fresh[way]
            turn = (
                ways[0] + fresh[ways[0]] + " And then"
            )  # goes on after an answer that was decoded
            again = text(turn, speculation)
            llm.forget()
            assert again == text(turn, Speculation(0))


@pytest.mark.full
def test_long_texts_are_the_plain_ones_with_two_threads():
    """A prompt of 1,500 tokens and 300 more: any drafter, any length."""
    start = "Once upon a time there was a fox who met a king. " * 130
    with gguf_spec.load("tales", threads=2, n_ctx=2048) as llm:
        prompt = llm.tokenize(start)[:1500]
        for sampling in (Sampling(temperature=0, max_tokens=300), Sampling(seed=3, max_tokens=300)):
            texts = []
            for speculation in (
                Speculation(0),
                Speculation(4, adaptive=False),
                Speculation(3, drafter="model", adaptive=False),
                Speculation(),
            ):
                llm.forget()
                texts.append(llm.generate_tokens(prompt, sampling, speculation=speculation))
            assert len({one.text for one in texts}) == 1
            assert not any(one.stats.n_near_ties for one in texts)
