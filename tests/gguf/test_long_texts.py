"""Long texts are tokenised in parts, with the tokens of the whole."""

import random
from itertools import pairwise

import pytest

from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama.weights import Tokenizer, safe_cuts
from gguf_spec.models import find
from tests.gguf.test_other_tokenizer import spm
from tests.support import tiny

USERS = ["\n\n", "\n\n\n", "<a>", "a><b", "><b>", " <x>", "<|im_end|>x", "ababa"]
PIECES = [
    *USERS,
    "\n",
    " ",
    "a",
    "<",
    ">",
    "<|im_",
    "end|>",
    "<|im_end|>",
    "<|im_start|>",
    "wolf",
    "é",
]


def partition(text, names, stripping, rng):
    """Return the parts of a text by llama.cpp's rules; names of one length are in random order."""
    order = sorted(names, key=lambda name: (-len(name), rng.random()))
    parts = [(text, False)]
    for name in order:
        found = []
        for part, is_token in parts:
            *before, last = [part] if is_token else part.split(name)
            for text_before in before:
                left = text_before.rstrip() if name in stripping else text_before
                found += [(left, False)] * bool(left) + [(name, True)]
            found += [(last, is_token)] * bool(last)
        parts = found
    return parts


@pytest.mark.full
def test_the_parts_have_the_tokens_of_the_complete_text():
    rng, n_cuts = random.Random(3), 0
    for _ in range(4000):
        names = {"".join(rng.choices("ab<\n ", k=rng.randrange(1, 6))).encode() for _ in range(5)}
        stripping = {name for name in names if rng.random() < 0.2}
        text = b"".join(rng.choices([*names, b"a", b"b", b"<", b" ", b"\n"], k=30))
        cuts = [0, *safe_cuts(text, names, stripping, rng.randrange(1, 9)), len(text)]
        seed = rng.random()
        whole = partition(text, names, stripping, random.Random(seed))
        apart = [
            part
            for begin, end in pairwise(cuts)
            for part in partition(text[begin:end], names, stripping, random.Random(seed))
        ]
        assert apart == whole, (text, names, stripping, cuts)
        n_cuts += len(cuts) - 2
    assert n_cuts > 3000


@pytest.mark.full
@pytest.mark.parametrize("kind", ["BPE", "BPE, EOS added", "SPM", "SPM with a space before"])
def test_llama_cpp_finds_the_same_tokens(kind, tmp_path):
    if "BPE" in kind:
        tokens = [*tiny.TOKENS[:-3], *USERS, *tiny.TOKENS[-3:]]
        kinds = [1] * (len(tiny.TOKENS) - 3) + [4] * len(USERS) + [3] * 3
        path = tiny.write(
            tmp_path / "a.gguf",
            tiny.llama(n_vocab=len(tokens)),
            tokens=tokens,
            metadata={
                "tokenizer.ggml.token_type": kinds,
                "tokenizer.ggml.add_eos_token": "EOS" in kind,
            },
        )
    else:
        path = spm(tmp_path / "a.gguf", kind != "SPM")
    rng, n_cuts = random.Random(5), 0
    with Tokenizer(ModelFile(path)) as tokenizer:
        tokenizer.long_bytes, tokenizer.part_bytes = 0, 8
        for i in range(2000):
            special, start = i % 2 == 0, i % 3 < 2
            text = "".join(rng.choices(PIECES, k=25)).encode()
            whole = tokenizer._tokenize_part(text, special, start)
            assert tokenizer.tokenize(text, special=special, start=start) == whole
            n_cuts += len([*tokenizer._cuts(text, special)])
    assert (n_cuts > 2000) == ("EOS" not in kind)


def test_many_special_tokens_do_not_reach_llama_cpp_at_once(monkeypatch):
    lengths = []
    with Tokenizer(ModelFile(find("tales"))) as tokenizer:
        real = tokenizer._tokenize_part
        monkeypatch.setattr(
            tokenizer,
            "_tokenize_part",
            lambda text, *args: lengths.append(len(text)) or real(text, *args),
        )
        text = "<|im_end|>|%}" * 30_000
        ids = tokenizer.tokenize(text, special=True)
        assert (
            tokenizer.tokenize(text[:52_000], special=True) == ids[: len(ids) * 52_000 // len(text)]
        )
    assert sum(lengths[:-1]) == len(text)
    assert max(lengths[:-1]) < 2 * Tokenizer.part_bytes
