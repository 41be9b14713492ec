"""EAGLE-3 heads: fields of their headers, and their outputs from the inputs of layers."""

import numpy as np
import pytest

from gguf_spec.errors import GgufSpecError, UnsupportedModelError
from gguf_spec.gguf import heads as files
from gguf_spec.gguf.architectures import LAST_ROWS, LAYER_INPUTS
from gguf_spec.gguf.heads import head_bytes, head_kind, is_head_alone, why_misfit, why_no_head
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import head as llama_head
from gguf_spec.llama import native_head
from gguf_spec.llama.context import Context
from gguf_spec.llama.head import EagleHead, open_head
from gguf_spec.llama.memory import needs
from gguf_spec.llama.options import ContextOptions
from tests.gguf.head_checks import TEXT, check_pieces, check_restored_state
from tests.support import eagle, families, tiny

N_VOCAB = len(tiny.TOKENS)
KNOWN = [*range(30, 80)]


def options(layers=(0, 1, 1)):
    return ContextOptions(256, 1, extra_bufts=False, head="file", head_layers=layers)


def opened(tmp_path, head, target="llama"):
    model = Context(
        families.write_family(tmp_path, target), options(tuple(head[0]["eagle3.target_layers"]))
    ).sequences[0]
    file = ModelFile(tiny.write(tmp_path / "head.gguf", head))
    return model, open_head(model, options().for_draft(), file)


def header(tmp_path, head, name="head", **changes):
    return ModelFile(tiny.write(tmp_path / f"{name}.gguf", head, **changes)).header


# ---- files


def test_fields_of_the_header(tmp_path):
    one = header(tmp_path, eagle.head(known=KNOWN))
    assert is_head_alone(one)
    assert head_kind(one) == "eagle3"
    assert why_no_head(one) == ""
    assert files.target_layers(one) == (0, 1, 1)
    sizes = {tensor.name: tensor.n_bytes for tensor in one.tensors}
    assert sizes["d2t"] == 8 * len(KNOWN)
    assert head_bytes(one) == one.file_bytes - sizes["token_embd.weight"]
    incomplete = header(tmp_path, eagle.head(), tensors={"fc.weight": None})
    assert why_no_head(incomplete) == "head.gguf has no prediction head"
    with pytest.raises(UnsupportedModelError, match="without the layers of its model"):
        Context(tmp_path / "head.gguf", ContextOptions(256, 1)).sequences[0]


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"eagle3.target_layers": None}, "does not name the three layers"),
        ({"eagle3.target_layers": [0, 1]}, "does not name the three layers"),
        ({"eagle3.target_layers": 1}, "does not name the three layers"),
        ({"eagle3.target_layers": ["0", "1", "1"]}, "does not name the three layers"),
        ({"eagle3.target_layers": [0.0, 1.0, 1.0]}, "does not name the three layers"),
        ({"eagle3.block_count": 2}, "has 2 layers; llama.cpp uses EAGLE-3 heads of one layer"),
        ({"eagle3.attention.value_length": 16}, "has keys of 32 and values of 16 values"),
        ({"eagle3.target_hidden_size": None}, "does not give the length of its target's rows"),
    ],
)
def test_numbers_on_which_llama_cpp_fails(tmp_path, metadata, why):
    assert why in why_no_head(header(tmp_path, eagle.head(), metadata=metadata))


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (KNOWN, ""),
        ([*KNOWN[:-1], N_VOCAB - 1], ""),
        ([*KNOWN[:-1], N_VOCAB], "names tokens that are not in its vocabulary"),
        ([*KNOWN[:-1], 1 << 60], "names tokens that are not in its vocabulary"),
        ([*KNOWN[:-1], -1], "names tokens that are not in its vocabulary"),
        ([*KNOWN[:-1], 30], "repeats tokens"),
    ],
)
def test_the_table_of_known_tokens_is_checked(tmp_path, known, why):
    found = why_no_head(header(tmp_path, eagle.head(known=known)))
    assert found == "" if not why else why in found


def test_a_table_that_does_not_belong_to_the_output(tmp_path):
    head = eagle.head(known=KNOWN)
    for tensors, why in (
        ({"d2t": np.arange(49)}, "does not belong to its output"),
        ({"d2t": np.arange(50).reshape(2, 25)}, "does not belong to its output"),
        ({"output.weight": None}, "does not belong to its output"),
        ({"d2t": None}, "has an output of 50 tokens and no table of them"),
    ):
        assert why in why_no_head(header(tmp_path, head, tensors=tensors))
    for tensors in ({"d2t": np.arange(50, dtype=np.int32)}, {"d3t": np.arange(5)}):
        with pytest.raises(GgufSpecError, match=r"integers|not a type of weights"):
            header(tmp_path, head, tensors=tensors)


def test_a_table_is_for_heads_only(tmp_path):
    with pytest.raises(GgufSpecError, match="d2t"):
        header(tmp_path, tiny.llama(), tensors={"d2t": np.arange(5)})


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (eagle.head(), ""),
        (eagle.head(width=48), ""),
        (eagle.head(own=False), ""),
        (eagle.head(n_target=96), "is for rows of 96 values, and llama.gguf has rows of 64"),
        (eagle.head(layers=(0, 1, 2)), "reads layer 2, and llama.gguf has layers 0 to 1 for it"),
        (eagle.head(width=48, own=False), "uses the embedding of its target with rows of 48"),
    ],
)
def test_sizes_that_do_not_fit(tmp_path, head, why):
    target = header(tmp_path, families.family("llama"), "llama")
    found = why_misfit(header(tmp_path, head), target)
    assert found == "" if not why else why in found


def test_layers_outside_of_the_target(tmp_path):
    """A negative number would be a very large one for llama.cpp."""
    import gguf

    layers = gguf.GGUFValue([-1, 0, 1], gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.INT32)
    one = header(tmp_path, eagle.head(), metadata={"eagle3.target_layers": layers})
    assert "reads layer -1" in why_misfit(one, header(tmp_path, families.family("llama"), "llama"))


def test_vocabularies_that_do_not_fit(tmp_path):
    target = header(tmp_path, families.family("llama"), "llama")
    few = header(
        tmp_path, eagle.head(), tensors={"token_embd.weight": np.ones((9, 64), np.float32)}
    )
    assert "has an embedding of 9 tokens only" in why_misfit(few, target)
    other = header(tmp_path, eagle.head(), tokens=tiny.TOKENS[1:])
    assert "has a vocabulary of 274 tokens" in why_misfit(other, target)


def test_files_cut_anywhere_are_refused(tmp_path):
    path = tiny.write(tmp_path / "head.gguf", eagle.head(known=KNOWN))
    whole, target = path.read_bytes(), header(tmp_path, families.family("llama"), "llama")
    rng = np.random.default_rng(1)
    for n in (*rng.integers(0, len(whole) - 64, 20), len(whole) - 64):  # the end is padding
        path.write_bytes(whole[: int(n)])
        with pytest.raises(GgufSpecError):
            _ = ModelFile(path).header
    for _ in range(150):  # damaged numbers are refused, or fit the target
        damaged = bytearray(whole)
        damaged[int(rng.integers(0, 1500))] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(bytes(damaged))
        try:
            one = ModelFile(path).header
            assert isinstance(why_no_head(one) or why_misfit(one, target), str)
        except GgufSpecError:
            pass


def test_architectures_with_layer_inputs():
    assert LAST_ROWS <= LAYER_INPUTS
    assert {"llama", "qwen3", "gpt-oss", "qwen35", "lfm2"} <= LAYER_INPUTS
    assert not LAYER_INPUTS & {"qwen2", "gemma3", "phi3", "smollm3", "qwen4exp", "mamba", "eagle3"}


# ---- passes


@pytest.mark.parametrize("known", [None, KNOWN])
@pytest.mark.parametrize("norm_first", [False, True])
def test_a_head_computes_the_formulas(tmp_path, known, norm_first):
    """Against NumPy, attention and own rows included; the first token of a text is not read."""
    metadata, tensors = eagle.head(width=48, known=known)
    metadata["eagle3.norm_before_residual"] = norm_first
    model, head = opened(tmp_path, (metadata, tensors))
    assert isinstance(head, EagleHead)
    model.read(TEXT)
    rows = model.hidden.before(1, len(TEXT))
    assert rows.shape == (len(TEXT), 3 * tiny.N_EMBD)
    embedding = families.family("llama")[1]["token_embd.weight"]
    assert np.allclose(rows[:, : tiny.N_EMBD], embedding[TEXT], atol=1e-5)
    expected, own = eagle.logits((metadata, tensors), TEXT[1:], rows[:-1])
    seen = np.isfinite(expected[0])
    assert np.abs(head.logits(TEXT, 1)[0][seen] - expected[-1][seen]).max() < 2e-2
    head.rollback(3)
    got = head.logits(TEXT[3:], len(TEXT) - 3)
    assert seen.sum() == (N_VOCAB if known is None else len(KNOWN))
    assert np.abs(got[:, seen] - expected[2:, seen]).max() < 2e-2  # keys and values are f16
    assert not np.isfinite(got[:, ~seen]).any()
    # the next token has a row of the target, those after it have the head's own
    g = np.concatenate([rows @ tensors["fc.weight"].T])
    text, rows_of_draft = [*TEXT[1:]], [*g]
    for token in (50, 51, 52):
        text.append(token)
        expected, own = eagle.logits((metadata, tensors), text, np.array(rows_of_draft))
        assert np.abs(head.logits([token], 1)[0][seen] - expected[-1][seen]).max() < 2e-2
        rows_of_draft.append(own[-1])
    model.close()


def test_embedding_and_output_of_the_target(tmp_path):
    of_target = families.family("llama")[1]
    ends = {name: of_target[name] for name in ("token_embd.weight", "output.weight")}
    metadata, tensors = eagle.head(own=False)
    results = []
    for one in ((metadata, tensors), (metadata, tensors | ends)):
        model, head = opened(tmp_path, one)
        model.read(TEXT)
        head.read(TEXT[:1])
        results.append(head.logits(TEXT[1:], 5).copy())
        model.close()
    assert np.abs(results[0] - results[1]).max() < 1e-4


@pytest.fixture
def pair(tmp_path):
    model, head = opened(tmp_path, eagle.head())
    model.read(TEXT)
    yield model, head
    head.close()
    model.close()


def test_pieces_of_a_text_give_the_rows_of_the_complete_text(pair):
    _, head = pair
    whole = check_pieces(head)
    head.rollback(1)
    assert np.abs(head.logits(TEXT[1:], 1)[0] - whole[-1]).max() < 1e-4


def test_own_rows_are_dropped_with_the_draft(pair):
    _, head = pair
    head.logits(TEXT, 1)
    for token in (70, 71, 72):
        head.logits([token], 1)
    head.rollback(len(TEXT) + 2)
    assert head.cached == [*TEXT, 70]
    head.rollback(4)
    assert head.cached == TEXT[:4]


def test_the_state_of_a_head_is_restored(pair):
    _, head = pair
    check_restored_state(head, 1e-4)


def test_long_texts(tmp_path):
    """Longer than an encoder pass, and than a pass with rows."""
    model, head = opened(tmp_path, eagle.head())
    text = [30 + i * i % 60 for i in range(200)]
    model.read(text)
    expected = [head.logits([token], 1)[0].copy() for token in text][-3:]
    for n_first in (0, 1, 100):
        head.rollback(0)
        head.read(text[:n_first])
        assert np.abs(head.logits(text[n_first:], 3) - expected).max() < 1e-3
    model.close()


def test_there_is_nothing_to_read_before_the_target(tmp_path):
    model, head = opened(tmp_path, eagle.head())
    assert not head.is_ready
    model.read(TEXT[:1])
    assert head.is_ready
    model.close()


def test_memory_of_a_head_is_estimated(tmp_path):
    target, head = (
        header(tmp_path, families.family("llama"), "llama"),
        header(tmp_path, eagle.head()),
    )
    none = needs([(target, ContextOptions(256))])
    with_head = needs([(target, options()), (head, ContextOptions(256, head="self"))])
    rows, cache = 3 * 256 * tiny.N_EMBD * 4, 256 * 64 * 2
    assert with_head.caches - none.caches == rows + cache
    assert with_head.weights - none.weights == head.file_bytes


# ---- the library


def test_the_library_may_lack_the_functions(monkeypatch):
    found = native_head.layer_functions()
    assert found
    native_head.layer_functions.cache_clear()
    monkeypatch.setattr(native_head, "_GET", ("_Zmissing",))
    assert native_head.layer_functions() is None
    native_head.layer_functions.cache_clear()


@pytest.mark.full
def test_the_test_notices_that_llama_cpp_ends_the_process(tmp_path):
    """It does on a target without inputs of layers; in use the architecture is checked first."""
    head = ModelFile(tiny.write(tmp_path / "head.gguf", eagle.head()))
    for name in ("llama", "qwen3"):
        assert (
            llama_head.why_head_fails(ModelFile(families.write_family(tmp_path, name)), head) == ""
        )
    why = llama_head.why_head_fails(ModelFile(families.write_family(tmp_path, "qwen2")), head)
    assert "llama.cpp fails on the prediction head of head.gguf" in why


@pytest.mark.parametrize("name", sorted({*families.NAMES} & LAYER_INPUTS))
def test_the_inputs_of_layers_of_each_architecture(tmp_path, name):
    """The state after the last layer, too, where the architecture returns it."""
    last = 3 if name.startswith("nemotron") else 2
    layers = (0, 1, last) if name in LAST_ROWS else (0, 1, 1)
    model, head = opened(tmp_path, eagle.head(layers=layers), name)
    model.read(TEXT[:-1])
    model.logits(TEXT[-1:], 1)
    rows = model.hidden.before(1, len(TEXT))
    assert np.isfinite(rows).all()
    parts = np.split(rows, 3, axis=1)
    assert (np.abs(parts[0] - parts[1]).max(1) > 1e-3).all()
    assert name not in LAST_ROWS or (np.abs(parts[1] - parts[2]).max(1) > 1e-3).all()
    assert np.isfinite(head.logits(TEXT, 1)).all()
    model.close()
