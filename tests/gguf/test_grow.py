"""scripts/models/grow_gguf.py: a small model in a larger shape gives the same text; a random one does not."""

import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from tests.support import tiny

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "models"))
from grow_gguf import SHAPES, SOURCES, Shape, grow, main

SMALL = SOURCES["draft"]  # 4 layers x 128, 2 heads of 64
WIDE = Shape(n_layer=6, n_embd=320, n_head=5, n_kv=5, n_ff=512)
GROUPED = Shape(
    n_layer=6, n_embd=512, n_head=4, n_kv=2, n_ff=512
)  # heads twice as wide, two of them to each key-value head, as in the 7B
N_SMALL, N_VOCAB = 4096, 5000
TEXT = (
    "Once upon a time there was a king <pad17> who had three sons; and the eldest said: 'I will go into the wood,\n\nand see what it is "
    "that frightens my brothers.'<|im_end|> So he took his sword, <pad3>and went on until he came to a house, in which there lived a witch."
)


def rows(path: Path) -> tuple[list[int], np.ndarray]:
    """Return the ids of TEXT and the logits after each of them."""
    model = Context(path, ContextOptions(n_ctx=256, threads=1, extra_bufts=False)).sequences[0]
    try:
        ids = model.weights.tokenize(TEXT, special=True)
        return ids, np.concatenate(
            [
                model.logits(ids[i : i + 16], len(ids[i : i + 16])).copy()
                for i in range(0, len(ids), 16)
            ]
        )
    finally:
        model.close()


def close(grown: np.ndarray, small: np.ndarray) -> bool:
    """Return whether logits are equal up to float16 rounding, which differs between machines; they spread over 30."""
    best = np.sort(small, axis=1)
    clear = best[:, -1] - best[:, -2] > 0.1
    assert clear.sum() >= 64
    return (
        np.abs(grown[:, : small.shape[1]] - small).max() < 0.05
        and (grown.argmax(1) == small.argmax(1))[clear].all()
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("grown")


@pytest.fixture(scope="module")
def small(folder):
    """The bundled draft with lossless weights, and its text."""
    path = tiny.as_float16(SMALL, folder / "small.gguf")
    return path, *rows(path)


@pytest.mark.full
@pytest.mark.parametrize(("shape", "type"), [(WIDE, "F32"), (GROUPED, "F32"), (GROUPED, "F16")])
def test_it_gives_the_text_of_the_small_model(small, folder, shape, type):
    source, ids, logits = small
    assert len(ids) > 64
    grown_ids, grown = rows(grow(source, shape, N_VOCAB, type, folder))
    assert grown_ids == ids  # also where the text has the name of a padding token
    assert close(grown, logits)
    assert (grown[:, N_SMALL:].max(1) < logits.min(1) - 100).all()


def test_an_epsilon_that_matters_and_queries_that_share_keys(tmp_path):
    source = tiny.write(
        tmp_path / "small.gguf",
        tiny.llama(n_layer=2),
        metadata={"llama.attention.layer_norm_rms_epsilon": 0.3},
    )
    ids, logits = rows(source)
    path = grow(
        source, Shape(n_layer=3, n_embd=192, n_head=3, n_kv=1, n_ff=128), 300, "F32", tmp_path
    )
    assert path.name == "grown-3x192-small-300-F32.gguf"
    grown_ids, grown = rows(path)
    assert grown_ids == ids
    assert close(grown, logits)


def grouped(path, tied=True):
    """Write a model whose three queries share a key-value head: 2 layers x 192, 6 heads of 32, 2 key-value heads."""
    rng, metadata = np.random.default_rng(0), tiny.llama(n_layer=2)[0]
    sizes = {
        "llama.embedding_length": 192,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 6,
        "llama.attention.head_count_kv": 2,
    }
    shapes = {
        "attn_q": (192, 192),
        "attn_k": (64, 192),
        "attn_v": (64, 192),
        "attn_output": (192, 192),
    }
    shapes |= {"ffn_gate": (96, 192), "ffn_up": (96, 192), "ffn_down": (192, 96)}
    n_vocab = len(tiny.TOKENS)
    tensors = {
        f"blk.{i}.{part}.weight": rng.normal(0, 0.15, size)
        for i in range(2)
        for part, size in shapes.items()
    }
    tensors |= {
        f"blk.{i}.{part}.weight": rng.uniform(0.5, 1.5, 192)
        for i in range(2)
        for part in ("attn_norm", "ffn_norm")
    }
    tensors |= {
        "output_norm.weight": rng.uniform(0.5, 1.5, 192),
        "token_embd.weight": rng.normal(0, 0.3, (n_vocab, 192)),
    }
    if not tied:
        tensors["output.weight"] = rng.normal(0, 0.3, (n_vocab, 192))
    sizes |= {"llama.attention.layer_norm_rms_epsilon": 0.1, "general.name": "A small one"}
    return tiny.write(
        path,
        (metadata | sizes, {name: tensor.astype(np.float32) for name, tensor in tensors.items()}),
    )


UNGROUPED = Shape(
    n_layer=3, n_embd=512, n_head=16, n_kv=16, n_ff=256
)  # a key-value head to each query, as in the 1.7B


@pytest.mark.few(3)
@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", [UNGROUPED, Shape(3, 512, 16, 8, 256)])
def test_a_vocabulary_of_the_right_size_stays_as_it_is(tmp_path, shape, tied, precise):
    source = grouped(tmp_path / "small.gguf", tied)
    ids, logits = rows(source)
    path = grow(source, shape, len(tiny.TOKENS), "F32", tmp_path, precise=precise)
    grown_ids, grown = rows(path)
    assert grown_ids == ids
    assert grown.shape == logits.shape
    assert np.abs(grown - logits).max() < 0.01 * logits.std()
    before, after = gguf.GGUFReader(source), gguf.GGUFReader(path)
    assert {t.name for t in after.tensors} >= {t.name for t in before.tensors}
    assert any(t.name == "output.weight" for t in after.tensors) is not tied
    changed = {
        key
        for key, field in before.fields.items()
        if field.contents() != after.fields[key].contents()
    }
    assert {key for key in changed if not key.startswith(("llama.", "GGUF."))} == set()


def test_a_precise_model_loses_less_with_four_bits(tmp_path):
    source = grouped(tmp_path / "small.gguf")
    _, logits = rows(source)
    lost = []
    for precise in (False, True):
        path = grow(source, UNGROUPED, len(tiny.TOKENS), "Q4_0", tmp_path, precise=precise)
        lost.append(np.abs(rows(path)[1] - logits).mean())
    assert lost[1] < lost[0] / 3


def test_more_layers_than_the_shape_has(tmp_path, monkeypatch, capsys):
    source = grouped(tmp_path / "small.gguf")
    monkeypatch.setitem(SHAPES, "135M", Shape(1, 512, 16, 16, 256))
    words = [
        "135M",
        "--from",
        str(source),
        "--vocab",
        str(len(tiny.TOKENS)),
        "--layers",
        "2",
        "--precise",
        "--type",
        "F32",
        "--folder",
        str(tmp_path),
    ]
    main(words)
    path = Path(capsys.readouterr().out.strip())
    assert path.name == f"precise-135M-2L-small-{len(tiny.TOKENS)}-F32.gguf"
    assert np.abs(rows(path)[1] - rows(source)[1]).max() < 0.05


@pytest.mark.full
@pytest.mark.parametrize("type", ["Q8_0", "Q4_0"])
def test_the_quantised_model_gives_nearly_that_text(folder, type):
    ids, logits = rows(SMALL)
    grown_ids, grown = rows(grow(SMALL, GROUPED, N_VOCAB, type, folder))
    assert grown_ids == ids
    assert (
        np.abs(grown[:, :N_SMALL] - logits).max() < 0.5
    )  # activations are rounded to 8 bits; logits spread over 30
    assert (grown.argmax(1) == logits.argmax(1)).mean() > 0.9
    assert grown[:, N_SMALL:].max() < logits.min() - 100


@pytest.mark.full
def test_added_layers_cost_and_write_nothing(small, folder):
    source, _, logits = small
    more = Shape(n_layer=9, n_embd=320, n_head=5, n_kv=5, n_ff=512)
    path = grow(source, more, N_VOCAB, "F16", folder)
    assert close(rows(path)[1], logits)
    tensors = {t.name: t.data for t in gguf.GGUFReader(path).tensors}
    added = [i for i in range(9) if not tensors[f"blk.{i}.ffn_down.weight"].any()]
    assert len(added) == 5
    for i in added:
        assert not tensors[f"blk.{i}.attn_output.weight"].any()
        assert all(
            tensors[f"blk.{i}.{part}.weight"].std() > 0.01
            for part in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up")
        )


@pytest.mark.full
@pytest.mark.parametrize("type", ["F16", "Q8_0", "Q4_0"])
def test_a_random_model_gives_another_text(small, folder, type):
    _, ids, logits = small
    random_ids, random = rows(grow(SMALL, WIDE, N_VOCAB, type, folder, random=True))
    assert random_ids == ids
    said = random.argmax(1)
    assert (said == logits.argmax(1)).mean() < 0.1
    assert len(set(said)) > 20  # not one token for ever
    assert said.max() < N_SMALL
    assert 1 < random[:, :N_SMALL].std() < 10


@pytest.mark.full
def test_metadata_stays(folder):
    before, after = (
        gguf.GGUFReader(p).fields for p in (SMALL, grow(SMALL, WIDE, N_VOCAB, "Q4_0", folder))
    )
    for key in before:
        if key.startswith("tokenizer.") and key not in (
            "tokenizer.ggml.tokens",
            "tokenizer.ggml.token_type",
        ):
            assert after[key].contents() == before[key].contents()
            assert after[key].types == before[key].types
    for key in ("tokens", "token_type"):
        values = after[f"tokenizer.ggml.{key}"].contents()
        assert values[:N_SMALL] == before[f"tokenizer.ggml.{key}"].contents()
        assert len(values) == N_VOCAB
    assert after["llama.context_length"].contents() == before["llama.context_length"].contents()


@pytest.mark.full
def test_what_exists_is_kept(tmp_path):
    path = grow(SMALL, WIDE, N_VOCAB, "Q4_0", tmp_path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.name == "grown-6x320-draft-5000-Q4_0.gguf"
    before = path.read_bytes()
    path.write_bytes(b"mine")
    assert grow(SMALL, WIDE, N_VOCAB, "Q4_0", tmp_path).read_bytes() == b"mine"
    assert grow(SMALL, WIDE, N_VOCAB, "Q4_0", tmp_path, force=True).read_bytes() == before


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gguf.GGUFWriter, "write_tensor_data", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        grow(SMALL, WIDE, N_VOCAB, "Q4_0", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize(
    ("shape", "n_vocab", "why"),
    [
        (SHAPES["135M"], 4000, "tokens"),
        (Shape(6, 128, 2, 2, 512), N_VOCAB, "160 channels"),
        (Shape(3, 320, 5, 5, 512), N_VOCAB, "4 layers"),
        (Shape(6, 320, 5, 1, 512), N_VOCAB, "2 key-value heads"),
        (Shape(6, 384, 4, 4, 512), N_VOCAB, "heads of 64"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, shape, n_vocab, why):
    with pytest.raises(ValueError, match=why):
        grow(SMALL, shape, n_vocab, "Q4_0", tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_the_command_prints_the_path_or_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setitem(SHAPES, "135M", WIDE)
    main(["135M", "--from", "draft", "--vocab", "5000"])
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "gguf-spec" / "grown" / "grown-135M-draft-5000-Q4_0.gguf"
    assert path.exists()
    with pytest.raises(SystemExit, match="has 4,096 tokens, more than 10"):
        main(["135M", "--vocab", "10"])
