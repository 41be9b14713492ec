"""The real model: caches, texts, and inputs that are too large."""

import sys

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.errors import (
    ClosedError,
    DecodeError,
    InvalidOptionError,
    PromptTooLongError,
    RollbackError,
)
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.options import K_MAX
from tests.support import children, tiny

TEXTS = [
    "",
    " ",
    "\n",
    "Once upon the time",
    "naïve café — 日本 🎉",
    "a\0b",
    "\0",
    "\t\r\n  x  ",
    "ﬁ\u0301\u200d",
    "%s{}\\",
    "z" * 2000,
    "the and " * 200,
]


@pytest.fixture(scope="module")
def model(gguf_dir):
    model = Context(
        gguf_dir / "llama.gguf", ContextOptions(n_ctx=2000, threads=1, extra_bufts=False)
    ).sequences[0]
    yield model
    model.close()


@pytest.fixture(autouse=True)
def empty_cache(model):
    model.rollback(0)


def rows(model, tokens, n_rows=1):
    return model.logits(tokens, n_rows).copy()


def close(a, b):
    return (
        np.abs(a - b).max() < 0.05
    )  # batches of other sizes round otherwise; a row spreads over 3


def test_rows_are_those_of_one_token_at_a_time(model):
    tokens = model.weights.tokenize("Once upon the time and on", special=False)[:8]
    alone = np.concatenate([rows(model, [t]) for t in tokens])
    model.rollback(0)
    together = rows(model, tokens, len(tokens))
    assert together.shape == (len(tokens), model.n_vocab)
    assert close(alone, together)
    assert not close(alone[0], alone[1])


def test_rollback_removes_the_end_only(model):
    first = rows(model, [40, 41, 42, 43], 2)
    rows(model, [50, 51, 52])
    model.rollback(4)
    assert model.cached == [40, 41, 42, 43]
    other = rows(model, [60])
    model.rollback(3)
    assert close(rows(model, [43]), first[1:])
    assert close(rows(model, [60]), other)
    model.rollback(99)
    assert (model.n_past, model.cached) == (5, [40, 41, 42, 43, 60])


def test_a_restored_cache_has_the_count_of_prompt_tokens(model):
    """A rollback into that part does it, too: decoded tokens may have other bits than prompt tokens."""
    model.read([40, 41, 42])
    model.logits([43, 44], 1)
    cached, n_read, state = [*model.cached], model.n_read, model.state().tobytes()
    assert (cached, n_read) == ([40, 41, 42, 43, 44], 3)
    assert model.restore(cached, n_read, state)
    assert (model.cached, model.n_read) == (cached, 3)
    for to, left in ((4, 3), (2, 2), (0, 0)):
        model.rollback(to)
        assert (model.n_past, model.n_read) == (to, left)


def test_a_cache_is_emptied(model):
    first = rows(model, [40, 41])
    model.rollback(0)
    assert model.n_past == 0
    assert close(rows(model, [40, 41]), first)


@pytest.mark.parametrize("n", [511, 512, 513, 1024, 1500])
def test_more_tokens_than_a_batch_holds(model, n):
    tokens = [i * 7 % 256 for i in range(n)]
    at_once = rows(model, tokens, 3)
    assert model.cached == tokens
    model.rollback(0)
    model.read(tokens[:-3])
    assert close(rows(model, tokens[-3:], 3), at_once)


def test_decoding_past_the_context_is_refused_and_nothing_is_lost(model):
    tokens = [i % 256 for i in range(model.n_ctx - 1)]
    model.read(tokens)
    with pytest.raises(DecodeError, match="the context holds 2000"):
        model.logits([1, 2], 1)
    assert model.cached == tokens
    assert np.isfinite(rows(model, [1])).all()
    with pytest.raises(DecodeError):
        model.read([1])
    model.rollback(2)
    assert np.isfinite(rows(model, [1])).all()


@pytest.mark.parametrize("token", [-1, len(tiny.TOKENS), 2**31 - 1])
def test_ids_outside_the_vocabulary_never_reach_llama_cpp(model, token):
    with pytest.raises(InvalidOptionError):
        model.logits([1, token], 1)
    assert model.n_past == 0


@pytest.mark.parametrize(("n_tokens", "n_rows"), [(1, 0), (1, 2), (0, 1), (40, K_MAX + 2), (3, -1)])
def test_rows_out_of_range(model, n_tokens, n_rows):
    with pytest.raises(InvalidOptionError):
        model.logits([1] * n_tokens, n_rows)


def test_the_maximum_number_of_rows(model):
    assert rows(model, list(range(K_MAX + 1)), K_MAX + 1).shape == (K_MAX + 1, model.n_vocab)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("special", [True, False])
def test_joined_pieces_are_the_text(model, text, special):
    ids = model.weights.tokenize(text, special=special)
    assert b"".join(model.weights.piece(t) for t in ids) == text.encode()


def test_merges_are_used(model):
    assert model.weights.tokenize("the", special=False) == [tiny.TOKENS.index("the")]


def test_half_a_character_becomes_the_replacement_character(model):
    """As in JavaScript: two halves are one character."""
    for text, whole in (("a\ud800b\udfff", "a\ufffdb\ufffd"), ("\ud83e\udd14", "\U0001f914")):
        assert model.weights.tokenize(text, special=True) == model.weights.tokenize(
            whole, special=True
        )


def test_special_tokens_are_parsed_only_on_request(model):
    assert model.weights.tokenize("<|im_start|>x", special=True) == [
        tiny.IM_START,
        tiny.TOKENS.index("x"),
    ]
    plain = model.weights.tokenize("<|im_start|>x", special=False)
    assert tiny.IM_START not in plain
    assert b"".join(map(model.weights.piece, plain)) == b"<|im_start|>x"
    assert model.weights.piece(tiny.IM_START) == b""
    assert model.weights.token_text(tiny.IM_START) == "<|im_start|>"
    assert [t for t in range(model.n_vocab) if model.is_end(t)] == [tiny.END, tiny.IM_END]


def test_every_token_has_its_bytes(model):
    assert {model.weights.piece(t) for t in range(256)} == {bytes([b]) for b in range(256)}


def test_a_token_longer_than_the_buffer(tmp_path):
    tokens = [*tiny.TOKENS]
    tokens[20] = "x" * 5000
    model = Context(
        tiny.write(tmp_path / "long.gguf", tokens=tokens),
        ContextOptions(n_ctx=32, threads=1, extra_bufts=False),
    ).sequences[0]
    assert model.weights.piece(20) == b"x" * 5000
    assert model.weights.token_text(20) == "x" * 5000
    model.close()


def test_the_header_decides_on_the_start_token(tmp_path):
    model = Context(
        tiny.write(tmp_path / "bos.gguf", metadata={"tokenizer.ggml.add_bos_token": True}),
        ContextOptions(n_ctx=32, threads=1, extra_bufts=False),
    ).sequences[0]
    assert model.weights.tokenize("", special=True) == [tiny.END]
    assert model.weights.tokenize("x", special=True)[0] == tiny.END
    assert model.weights.tokenize("x", special=True, start=False) == [tiny.TOKENS.index("x")]
    model.close()


def test_closed(gguf_dir):
    model = Context(
        gguf_dir / "llama.gguf", ContextOptions(n_ctx=32, threads=1, extra_bufts=False)
    ).sequences[0]
    model.close()
    model.close()
    with pytest.raises(ClosedError):
        model.read([1])


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_a_model_that_cannot_roll_back_gives_the_reason(gguf_dir, kind):
    model = Context(
        gguf_dir / f"{kind}.gguf", ContextOptions(n_ctx=64, threads=1, extra_bufts=False)
    ).sequences[0]
    assert not model.can_roll_back
    model.read([1, 2, 3])
    with pytest.raises(
        RollbackError,
        match=f"{kind}.gguf cannot remove tokens from its cache: 3 are cached, 1 must remain",
    ):
        model.rollback(1)
    assert model.cached == [1, 2, 3]
    model.rollback(0)
    model.read([1])
    model.close()


@pytest.mark.parametrize("prompt_tokens", [1, 2, 511, 512, 513, 514, 1023, 1024, 1025, 1400])
def test_long_prompts_give_the_same_with_and_without_a_draft(gguf_dir, prompt_tokens):
    results = []
    for draft in (None, gguf_dir / "cousin.gguf"):
        with gguf_spec.load(
            gguf_dir / "llama.gguf", draft, threads=1, extra_bufts=False, n_ctx=1500
        ) as llm:
            results.append(
                llm.generate_tokens(
                    [i * 7 % 256 for i in range(prompt_tokens)],
                    Sampling(temperature=0, max_tokens=20),
                )
            )
    assert results[0].tokens == results[1].tokens
    assert results[1].stats.n_prompt == prompt_tokens


def test_an_answer_fills_the_context_to_the_last_place(gguf_dir):
    with gguf_spec.load(
        gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1, extra_bufts=False, n_ctx=48
    ) as llm:
        result = llm.generate_tokens(
            [40] * 10,
            Sampling(
                temperature=0, max_tokens=None, logit_bias={tiny.END: -np.inf, tiny.IM_END: -np.inf}
            ),
        )
        assert (len(result.tokens), result.finish_reason) == (38, "length")
        with pytest.raises(PromptTooLongError):
            llm.generate_tokens([40] * 48)
        assert len(llm.generate_tokens([40] * 47).tokens) <= 1


# llama.cpp splits words by std::regex for these, which recurses for every character: on a common stack 20,000 spaces end the process.
CHILD = """
import sys
from pathlib import Path
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.context import Context
for path in sys.argv[1:]:
    model = Context(Path(path), ContextOptions(n_ctx=32, threads=1, extra_bufts=False)).sequences[0]
    for text in ("a" * 60_000, " " * 60_000, "!" * 60_000, "7" * 60_000):
        assert b"".join(map(model.weights.piece, model.weights.tokenize(text, special=True))) == text.encode()
"""


@pytest.mark.full
def test_long_runs_of_one_letter(tmp_path):
    files = [
        tiny.write(tmp_path / f"{pre}.gguf", metadata={"tokenizer.ggml.pre": pre})
        for pre in ("default", "deepseek-v3", "tekken", "gpt-4o")
    ]
    child = children.run(
        [sys.executable, "-c", CHILD, *files], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")


WIDE = """
import numpy as np
import gguf_spec
from gguf_spec.llama import context as module
module.cpu_batch = lambda *_: 64
with gguf_spec.load("tales", None, threads=1, n_ctx=256) as llm, llm.models() as (target, _):
    rows, tokens = [], list(range(300, 365))
    for width in (65, 5):
        target.rollback(0)
        for i in range(0, 65, width):
            rows.append(target.logits(tokens[i : i + width], width).copy())
    assert target.reads_at_once == 64
    assert np.abs(rows[0] - np.concatenate(rows[1:])).max() < 0.02
"""


@pytest.mark.full
def test_a_pass_that_is_wider_than_those_of_a_prompt():
    """Of a long context prompts are read 64 tokens at a time; llama.cpp ends the process over a batch that is too long."""
    child = children.run([sys.executable, "-c", WIDE], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stderr) == (0, "")
