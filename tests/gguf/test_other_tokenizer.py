"""Drafts with another tokenizer: the text does not change, and unsuitable ones are refused.

The draft is the bundled one with its rows in another order, under an SPM vocabulary; so it is right as often as the text can be translated.
"""

from pathlib import Path

import gguf
import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import VocabularyMismatchError
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.models import find, find_drafts
from tests.support import tiny

MODEL = Speculation(4, drafter="model", adaptive=False)
PLAIN = Speculation(0)


def spm(path: Path, adds_space: bool, n_junk: int = 0) -> Path:
    """Write the bundled draft with an SPM vocabulary of the same texts; the first `n_junk` words have other texts."""
    source = find("tales-draft")
    reader, vocabulary = gguf.GGUFReader(source), FileVocabulary(ModelFile(source).header)
    names, kinds, order = ["<unk>", "<s>", "</s>"], [2, 3, 3], [0, 0, 2]
    texts = sorted(vocabulary.by_bytes.items(), key=lambda one: -one[1])
    for text, token in texts:
        if len(text) == 1:
            names.append(f"<0x{text[0]:02X}>")
            kinds.append(6)
        else:
            try:
                name = text.decode().replace(" ", "▁")
            except UnicodeDecodeError:
                name = f"<part{token}>"
            special = vocabulary.token_text(token).startswith("<|")
            is_junk = n_junk > 0 and not special
            n_junk -= is_junk
            names.append(f"<junk{token}>" if is_junk else name)
            kinds.append(3 if special else 1)
        order.append(token)
    letters = [chr(byte) for byte in range(33, 127)]
    of_letters = [vocabulary.by_bytes[letter.encode()] for letter in letters]
    letters, of_letters = [*letters, "▁"], [*of_letters, vocabulary.by_bytes[b" "]]
    new = [one for one in zip(letters, of_letters, strict=True) if one[0] not in names]
    names += [name for name, _ in new]
    order += [token for _, token in new]
    kinds += [1] * len(new)
    tensors = {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        for t in reader.tensors
    }
    tensors["token_embd.weight"] = tensors["token_embd.weight"][order]
    metadata = {
        name: field.contents()
        for name, field in reader.fields.items()
        if name.startswith("llama.") or name == "general.architecture"
    }
    changes = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.pre": "default", "tokenizer.ggml.merges": None, "tokenizer.chat_template": None,
        "tokenizer.ggml.scores": [-float(token) for token in order], "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_space_prefix": adds_space, "llama.vocab_size": len(order),
    }  # fmt: skip
    return tiny.write(path, (metadata, tensors), tokens=names, metadata=changes)


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "space"])
def pair(request, tmp_path_factory):
    path = spm(tmp_path_factory.mktemp("spm") / "spm.gguf", request.param)
    with gguf_spec.load("tales", path, threads=1) as llm:
        yield llm


@pytest.mark.full
def test_the_error_message(pair):
    (note,) = pair.notes
    assert note == "the draft spm.gguf has another tokenizer; 100% of its tokens can be used."


@pytest.mark.full
def test_fifty_prompts(pair, prompts):
    """T 0 and 0.8: the text, and that most of what can be right is right."""
    n_drafted = n_accepted = 0
    for i, prompt in enumerate(prompts):
        sampling = Sampling(temperature=0.8 * (i % 2), seed=i, max_tokens=16)
        plain = pair.generate(prompt, sampling, speculation=PLAIN)
        drafted = pair.generate(prompt, sampling, speculation=MODEL)
        assert drafted.tokens == plain.tokens
        n_drafted += drafted.stats.n_drafted
        n_accepted += drafted.stats.n_accepted
    assert n_accepted > 0.4 * n_drafted > 100  # with the target's tokenizer it is 0.6


@pytest.mark.full
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_the_other_rules(pair, prompts, accept):
    sampling = Sampling(seed=3, max_tokens=30)
    way = Speculation(4, accept, drafter="model", adaptive=False)
    one = pair.generate(prompts[0], sampling, speculation=way)
    assert one.stats.n_accepted > 3
    assert one.tokens == pair.generate(prompts[0], sampling, speculation=way).tokens


@pytest.mark.full
def test_texts_that_are_hard_to_translate(pair):
    """Control tokens, bytes that are no text, and characters that no vocabulary has."""
    for prompt in (
        "<|im_start|>user\nHi<|im_end|>\n",
        "é日本語 🦊🦊",
        "  \n\n\t a\t\t b",
        "x" * 300,
    ):
        sampling = Sampling(max_tokens=12, temperature=1.5, top_k=0, seed=1)
        plain = pair.generate(prompt, sampling, speculation=PLAIN)
        assert pair.generate(prompt, sampling, speculation=MODEL).tokens == plain.tokens
    ids = [*range(200, 216)]  # single bytes, many of them no characters
    plain = pair.generate_tokens(ids, Sampling(max_tokens=12, seed=1), speculation=PLAIN)
    drafted = pair.generate_tokens(ids, Sampling(max_tokens=12, seed=1), speculation=MODEL)
    assert drafted.tokens == plain.tokens


@pytest.mark.full
def test_a_full_context_is_no_failure(tmp_path, prompts):
    """The draft needs more tokens than the target for the same text."""
    path = spm(tmp_path / "junk.gguf", False, n_junk=2500)
    with gguf_spec.load("tales", path, threads=1, n_ctx=128) as llm:
        for overflow in ("stop", "shift"):
            sampling = Sampling(max_tokens=200, overflow=overflow, ignore_eos=True, seed=7)
            plain = llm.generate(prompts[0], sampling, speculation=PLAIN)
            drafted = llm.generate(prompts[0], sampling, speculation=MODEL)
            assert drafted.tokens == plain.tokens
            assert drafted.stats.why_none == ""


@pytest.mark.few(1)
def test_words_are_spelled_as_in_a_text(pair):
    """Also by tokenizers that begin each text with a space."""
    spell = pair.translation.spell
    with pair.models() as (_, draft):
        pieces = {
            word: [draft.weights.piece(token) for token in spell(word)]
            for word in (b"upon", b" upon", b"\n\nThe", b"  two")
        }
    assert all(b"".join(found) == word for word, found in pieces.items())
    assert len(pieces[b" upon"]) == 1


@pytest.mark.full
def test_the_controller_uses_it_only_where_it_pays(pair, prompts):
    for i in range(4):
        sampling = Sampling(seed=i, max_tokens=40)
        plain = pair.generate(prompts[i], sampling, speculation=PLAIN)
        assert pair.generate(prompts[i], sampling).tokens == plain.tokens


@pytest.mark.full
@pytest.mark.usefixtures("unmeasured")
def test_it_is_listed_and_not_chosen_unmeasured(tmp_path):
    target = find("tales")
    (tmp_path / "target.gguf").symlink_to(target)
    path = spm(tmp_path / "spm.gguf", False)
    one = {one.name: one for one in find_drafts(tmp_path / "target.gguf")}["spm.gguf"]
    assert one.translated
    assert "it has another tokenizer, with 9" in one.why
    with gguf_spec.load(tmp_path / "target.gguf", threads=1) as llm:
        assert llm.draft_name != "spm.gguf"
    with gguf_spec.load(tmp_path / "target.gguf", path, threads=1) as llm:
        assert llm.draft_name == "spm.gguf"


@pytest.mark.full
def test_too_few_common_tokens_are_refused(tmp_path):
    path = spm(tmp_path / "junk.gguf", False, n_junk=3700)
    with pytest.raises(VocabularyMismatchError, match="tokens in common") as caught:
        gguf_spec.load("tales", path, threads=1)
    assert caught.value.what == "common"
    assert "draft='none'" in caught.value.hint
