"""Memory of a model by its header, with figures by hand for one model of each kind, and what fits."""

from dataclasses import replace
from pathlib import Path

import pytest

from gguf_spec.errors import NotEnoughMemoryError
from gguf_spec.gguf.validation import ArrayLength, Header, Tensor
from gguf_spec.llama import memory
from gguf_spec.llama.backend import features_of
from gguf_spec.llama.memory import (
    cache_bytes,
    check_room,
    ctx_in_room,
    largest_ctx,
    longest_ctx,
    needs,
    parallel_in_room,
    prefix_memory_in_room,
)
from gguf_spec.llama.options import ContextOptions

MIB, GIB = 1 << 20, 1 << 30
F16 = ContextOptions(n_ctx=1000)
AVX2 = {"AVX2": "1", "REPACK": "1"}
SMOLLM2 = {
    "block_count": 24,
    "embedding_length": 2048,
    "attention.head_count": 32,
    "attention.head_count_kv": 32,
    "feed_forward_length": 8192,
}


@pytest.fixture(autouse=True)
def build(monkeypatch):
    """Return a function that gives the build of llama.cpp features; it has none before."""

    def give(features):
        monkeypatch.setattr(memory, "build_features", lambda: features)

    give({})
    return give


def header(architecture="llama", file_bytes=GIB, tensors=(), n_tokens=0, **said):
    metadata = {f"{architecture}.{key.replace('__', '.')}": value for key, value in said.items()}
    tokens = {"tokenizer.ggml.tokens": ArrayLength(n_tokens)}
    return Header(
        Path(f"{architecture}.gguf"),
        {"general.architecture": architecture, **metadata, **tokens},
        1,
        file_bytes,
        tensors=tuple(tensors),
    )


# ---- caches


@pytest.mark.parametrize(
    ("kv_type", "n_ctx", "wanted"),
    [
        ("f16", 4096, 768 * MIB),
        ("q8_0", 4096, 408 * MIB),
        ("f32", 4096, 1536 * MIB),
        ("f16", 4097, 816 * MIB),
        ("f16", 2, 48 * MIB),
    ],
)
def test_a_cache_of_keys_and_values(kv_type, n_ctx, wanted):
    assert cache_bytes(header(**SMOLLM2), ContextOptions(kv_type=kv_type), n_ctx) == wanted


GEMMA3 = {
    "embedding_length": 1152,
    "attention.head_count": 4,
    "attention.head_count_kv": 1,
    "attention.key_length": 256,
    "attention.value_length": 256,
}
JAMBA = {
    "embedding_length": 64,
    "attention.head_count": 4,
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
}
KIMI = {
    "block_count": 2,
    "embedding_length": 64,
    "attention.head_count": 2,
    "attention.head_count_kv": (0, 1),
    "attention.key_length": 40,
    "attention.key_length_mla": 48,
    "attention.value_length_mla": 32,
    "ssm.conv_kernel": 4,
    "kda.head_dim": 16,
}


@pytest.mark.parametrize(
    ("architecture", "said", "values"),
    [
        ("gemma3", {**GEMMA3, "block_count": 26, "attention.sliding_window": 512}, 26 * 512 * 1024),  # whole: a window could not go back
        ("gemma4", {**GEMMA3, "block_count": 4, "attention.key_length_swa": 128, "attention.value_length_swa": 128, "attention.shared_kv_layers": 1,
                    "attention.sliding_window_pattern": (True, True, False, True)}, (2 * 256 + 512) * 1024),
        ("deci", {**SMOLLM2, "block_count": 3, "attention.head_count_kv": (4, 0, 2)}, 6 * 2 * 64 * 1024),
        ("deepseek2", {"block_count": 2, "embedding_length": 2048, "attention.head_count": 16, "attention.head_count_kv": 1,
                       "attention.key_length": 576, "attention.value_length": 512, "attention.key_length_mla": 192,
                       "attention.value_length_mla": 128}, 2 * 576 * 1024),
        ("glm4moe", {**SMOLLM2, "nextn_predict_layers": 4}, 20 * 4096 * 1024),
        ("mamba", {**JAMBA, "block_count": 3}, 2 * 3 * (3 * 128 + 16 * 128 + 0)),
        ("mamba2", {**JAMBA, "block_count": 3, "ssm.group_count": 2}, 2 * 3 * (3 * (128 + 64) + 16 * 128)),
        ("rwkv7", {"block_count": 3, "embedding_length": 64, "wkv.head_size": 32}, 2 * 3 * 64 * 34),
        ("jamba", {**JAMBA, "block_count": 2, "attention.head_count_kv": (0, 2)}, 2 * (3 * 128 + 16 * 128) + 2 * 2 * 16 * 1024),
        ("falcon-h1", {**JAMBA, "block_count": 2, "attention.head_count_kv": 2}, 2 * 2 * (3 * 128 + 16 * 128) + 2 * 2 * 2 * 16 * 1024),
        ("nemotron_h", {**JAMBA, "block_count": 3, "attention.head_count_kv": (0, 0, 2), "feed_forward_length": (0, 256, 0)},
         2 * (3 * 128 + 16 * 128) + 2 * 2 * 16 * 1024),
        ("qwen3next", {**JAMBA, "block_count": 4, "attention.head_count_kv": 2}, 2 * 3 * (3 * 128 + 16 * 128) + 2 * 2 * 16 * 1024),
        ("qwen4exp", {**JAMBA, "block_count": 4, "attention.head_count_kv": 2}, 2 * 3 * (3 * 128 + 16 * 128) + 2 * 2 * 16 * 1024),
        *((architecture, KIMI, 2 * (3 * 3 * 2 * 16 + 2 * 16 * 16) + 40 * 1024) for architecture in ("kimi-linear", "kimi-k3", "glm5-next", "bailingmoe3")),
        ("deepseek4", {"block_count": 2, "embedding_length": 64, "attention.head_count": 2, "attention.head_count_kv": 1}, 2 * 2 * 32 * 1024),
        ("gemma3n", {"block_count": 30, "embedding_length": 64, "attention.head_count": 2}, 20 * 2 * 64 * 1024),
        ("minimax-01", {"block_count": 8, "embedding_length": 64, "attention.head_count": 2}, 2 * 7 * 2 * 32 * 32 + 2 * 64 * 1024),
        ("lfm2", {"block_count": 2, "embedding_length": 64, "attention.head_count": 2, "attention.head_count_kv": (0, 1), "shortconv.l_cache": 3},
         2 * 2 * 64 + 2 * 32 * 1024),
    ],
)  # fmt: skip
def test_caches_of_other_kinds(architecture, said, values):
    """`values` counts numbers of 16 bits; a state has numbers of 32."""
    assert (
        cache_bytes(header(architecture, **said), replace(F16, flash_attention="on"), 1000)
        == 2 * values
    )


def test_without_flash_attention_all_layers_are_as_wide_as_the_widest():
    layers = header("deci", **{**SMOLLM2, "block_count": 3, "attention.head_count_kv": (4, 0, 2)})
    assert (
        cache_bytes(layers, ContextOptions(flash_attention="off"), 1000)
        == 2 * (6 + 3 * 4) * 64 * 1024
    )


@pytest.mark.few(27)
@pytest.mark.parametrize(
    "value", [-5, 1 << 60, "many", (), ("a",), (float("nan"),) * 3, True, None, ArrayLength(5)]
)
@pytest.mark.parametrize("key", ["block_count", "embedding_length", "attention.head_count", "attention.head_count_kv", "attention.key_length",
                                 "feed_forward_length", "expert_used_count", "nextn_predict_layers", "attention.shared_kv_layers"])  # fmt: skip
def test_a_nonsensical_header_causes_no_crash(key, value, build):
    build(AVX2)
    for architecture in ("llama", "mamba", "jamba", "nemotron_h", "deepseek2"):
        wanted = needs([(header(architecture, **{**SMOLLM2, key: value}), F16)])
        assert wanted.total >= 0


# ---- weights


def tensor(name, kind=2, rows=64, columns=256, dims=2):
    shape = (columns, rows, *[4] * (dims - 2))
    return Tensor(name, shape, kind, 0, columns * rows * 4 ** (dims - 2) * 18 // 32)


def copied(*tensors, features=AVX2, extra_bufts=True, **changes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "build_features", lambda: features)
        wanted = needs([(header(tensors=tensors), ContextOptions(extra_bufts=extra_bufts))])
    assert wanted.weights == GIB + wanted.copies
    return wanted.copies, wanted.idle


ONE = 64 * 256 * 18 // 32


def test_weights_that_are_repacked_are_there_twice():
    assert copied(tensor("blk.0.ffn_up.weight"), tensor("output.weight")) == (2 * ONE, 2 * ONE)
    assert copied(tensor("blk.0.ffn_up_exps.weight", dims=3), tensor("output.weight")) == (
        5 * ONE,
        5 * ONE,
    )


def test_weights_that_are_not():
    both = tensor("output.weight", 0), tensor("blk.0.attn_q.weight")
    assert copied(*both, extra_bufts=False) == (0, 0)
    assert copied(*both, features={"AVX2": "1"}) == (0, 0)
    assert copied(*both, features={"AVX2": "0", "REPACK": "1"}) == (0, 0)
    assert copied(*both[:1]) == (0, 0)
    assert copied(
        both[0],
        tensor("token_embd.weight"),
        tensor("blk.0.attn_norm.weight"),
        tensor("blk.0.ssm_conv1d.weight"),
    ) == (0, 0)
    assert copied(both[0], tensor("blk.0.attn_q.weight", rows=12)) == (0, 0)


def test_an_embedding_that_is_the_output_too_is_copied_and_still_read():
    assert copied(tensor("token_embd.weight")) == (ONE, 0)


@pytest.mark.parametrize(
    ("kind", "has"),
    [
        (2, {"AVX2", "ARM", "AMX"}),
        (8, {"ARM", "AMX"}),
        (12, {"AVX2", "ARM", "AMX"}),
        (14, {"ARM", "AMX"}),
        (10, {"AVX512"}),
        (1, {"AMX"}),
        (0, set()),
    ],
)
def test_what_each_processor_repacks(kind, has):
    output = tensor("output.weight", 0)
    machines = {
        "AVX2": AVX2, "AVX512": AVX2 | {"AVX512": "1"}, "ARM": {"NEON": "1", "DOTPROD": "1", "REPACK": "1"},
        "AMX": {"AMX_INT8": "1", "AVX512_VNNI": "1"},
    }  # fmt: skip
    for name, features in machines.items():
        copies, _ = copied(output, tensor("blk.0.attn_q.weight", kind), features=features)
        assert bool(copies) is (name in has or (name == "AVX512" and "AVX2" in has)), name


def test_amx_makes_copies_that_are_larger():
    assert copied(tensor("output.weight", 8), features={"AMX_INT8": "1", "AVX512_VNNI": "1"}) == (
        ONE * 38 // 34,
        ONE,
    )


def test_features_of_a_build():
    said = features_of("CPU : SSE3 = 1 | AVX2 = 0 | REPACK = 1 | ")
    assert said == {"SSE3": "1", "AVX2": "0", "REPACK": "1"}
    assert features_of("") == {}


# ---- what fits


# attention has other needs with own kernels
pytestmark = pytest.mark.usefixtures("stock_kernels")


@pytest.fixture
def machine(monkeypatch):
    def make(free, total=64 * GIB):
        monkeypatch.setattr(memory, "available_bytes", lambda: free)
        monkeypatch.setattr(memory, "total_bytes", lambda: total)
        monkeypatch.setattr(memory, "resident_bytes", lambda: 0)

    return make


def models(n_ctx=32768, file_bytes=2 * GIB, **options):
    return [(header(file_bytes=file_bytes, **SMOLLM2), ContextOptions(n_ctx=n_ctx, **options))]


def test_both_models_have_the_context_of_the_target(machine):
    machine(None, None)
    target, draft = (
        header(**SMOLLM2, context_length=512),
        header(**{**SMOLLM2, "block_count": 12}, context_length=131072),
    )
    wanted = needs([(target, ContextOptions()), (draft, ContextOptions())])
    assert wanted.n_ctx == 512
    assert wanted.caches == 36 * 2 * 2 * 2048 * 512
    assert wanted.weights == 2 * GIB


def test_a_draft_with_a_cache_of_its_own_type():
    pair = [
        (header(**SMOLLM2), ContextOptions(n_ctx=4096)),
        (header(**SMOLLM2), ContextOptions(n_ctx=4096, kv_type="q8_0")),
    ]
    assert needs(pair).caches == (768 + 408) * MIB


def test_what_is_refused_names_the_context_that_fits(machine):
    machine(3 * GIB)
    with pytest.raises(NotEnoughMemoryError) as caught:
        check_room(models())
    said = str(caught.value)
    assert said.startswith("llama.gguf needs 8.")
    assert "6.0 GiB of it for a context of 32,768; 3.0 GiB are free: a context of " in said
    n_ctx = int(said.rpartition("context of ")[2].split()[0].replace(",", ""))
    assert said.endswith(" would fit.")
    check_room(models(n_ctx))
    with pytest.raises(NotEnoughMemoryError):
        check_room(models(n_ctx + 256))
    assert caught.value.available_bytes == 3 * GIB
    assert caught.value.needed_bytes > 8 * GIB


def test_weights_that_do_not_fit_even_without_a_cache(machine):
    machine(4 * GIB, total=4 * GIB)
    with pytest.raises(
        NotEnoughMemoryError,
        match=r"this machine has 4\.0 GiB: the weights alone do not fit\.(?m:$)",
    ) as caught:
        check_room(models(4096, file_bytes=5 * GIB))
    assert caught.value.hint == "use a smaller model or close other programs."


def test_weights_that_fit_without_their_copies(machine, build):
    build(AVX2)
    machine(GIB, total=64 * GIB)
    q4 = Tensor("blk.0.attn_q.weight", (256, 64), 2, 0, 2 * GIB)
    large = header(file_bytes=2 * GIB, tensors=[q4, tensor("output.weight", 0)], **SMOLLM2)
    with pytest.raises(
        NotEnoughMemoryError,
        match=r"weights alone do not fit; with extra_bufts=False, .* a context of 4,096 would fit\.",
    ):
        check_room([(large, ContextOptions(n_ctx=4096))])
    check_room([(large, ContextOptions(n_ctx=4096, extra_bufts=False))])


def test_weights_may_push_others_out_but_caches_may_not(machine):
    machine(2 * GIB, total=8 * GIB)
    check_room(models(4096, file_bytes=6 * GIB))
    with pytest.raises(NotEnoughMemoryError):
        check_room(models(16384, file_bytes=GIB))
    with pytest.raises(NotEnoughMemoryError):
        check_room(models(4096, file_bytes=8 * GIB))


def test_without_figures_nothing_is_refused(machine):
    machine(None, None)
    check_room(models(file_bytes=1 << 60))


def test_a_pair_is_refused_by_both_names(machine):
    machine(GIB)
    with pytest.raises(NotEnoughMemoryError, match=r"^llama\.gguf and llama\.gguf need "):
        check_room(models() * 2)


@pytest.mark.parametrize("free", [0, 200 * MIB, GIB, 3 * GIB, 100 * GIB])
def test_the_longest_context_fits_and_no_longer_one_does(machine, free):
    machine(free)
    longest = largest_ctx(models())
    assert 0 <= longest <= 32768
    if longest:
        assert needs(models(longest)).fits
    if longest < 32768:
        assert not needs(models(longest + 256)).fits


def test_no_longer_context_than_that_of_the_training_is_proposed(machine):
    machine(100 * GIB)
    trained = header(file_bytes=2 * GIB, context_length=32768, **SMOLLM2)
    assert largest_ctx([(trained, ContextOptions(n_ctx=99_999_999))]) == 32768


LONG = Tensor("rope_factors_long.weight", (32,), 0, 0, 128)


@pytest.mark.parametrize(
    ("free", "n_ctx", "said", "longest"),
    [
        (100 * GIB, 4096, {"context_length": 32768}, 32768),
        (100 * GIB, None, {"context_length": 32768}, 32768),
        (None, 4096, {"context_length": 32768}, 4096),  # nobody knows what is free
        (6 * GIB, 4096, {"context_length": 32768}, None),  # what fits
        (100 * GIB, 4096, {"context_length": 2048}, 4096),
        (100 * GIB, 4096, {}, 4096),
        (10**7 * GIB, 4096, {"context_length": 1 << 39}, (1 << 31) - 1),
        # positions are rotated in another way behind the original length
        (100 * GIB, 4096, {"context_length": 32768, "rope__scaling__original_context_length": 8192}, 8192),
        (100 * GIB, 4096, {"context_length": 32768, "rope__scaling__original_context_length": 1024}, 4096),
        (10**7 * GIB, 4096, {"context_length": 1 << 39, "rope__scaling__original_context_length": 1 << 39}, (1 << 31) - 1),
    ],
)  # fmt: skip
def test_how_long_a_context_may_grow(machine, monkeypatch, free, n_ctx, said, longest):
    machine(free, max(free or 0, 64 * GIB))
    tensors = (LONG,) if "rope__scaling__original_context_length" in said else ()
    one = header(file_bytes=2 * GIB, tensors=tensors, **SMOLLM2, **said)
    asked = [(one, ContextOptions(n_ctx=n_ctx))]
    if longest is None:
        longest = largest_ctx([(one, ContextOptions(n_ctx=32768))])
        assert 4096 < longest < 32768
    assert longest_ctx(asked) == longest
    monkeypatch.setattr(memory, "uses_gpu", lambda options: True)
    assert longest_ctx(asked) == 4096  # its memory is not known here


# ---- parallel requests


def test_what_is_refused_names_the_requests_that_fit(machine):
    machine(GIB)
    with pytest.raises(NotEnoughMemoryError) as caught:
        check_room(models(1024, parallel=8))
    said = str(caught.value)
    assert (
        "1.5 GiB of it for a context of 1,024 for each of 8 parallel requests; 1.0 GiB are" in said
    )
    assert said.endswith(" would fit, or 4 parallel requests with the whole context.")
    assert caught.value.suggested["parallel"] == 4
    check_room(models(1024, parallel=4))
    with pytest.raises(NotEnoughMemoryError):
        check_room(models(1024, parallel=5))
    machine(GIB // 2)
    with pytest.raises(NotEnoughMemoryError) as caught:
        check_room(models(4096, parallel=8))
    assert "with the whole context" not in str(caught.value)
    assert "parallel" not in caught.value.suggested


@pytest.mark.parametrize(
    ("free", "n"),
    [
        (16 * GIB, 16),
        (3 * GIB, 4),
        (3 * GIB - 1, 3),
        (3 * GIB // 2, 2),
        (GIB, 1),
        (MIB, 1),
        (None, None),
    ],
)
def test_ample_requests_take_a_quarter_of_the_free_memory(machine, free, n):
    """The cache of one of them has 192 MiB."""
    machine(free)
    assert parallel_in_room(models(1024, file_bytes=MIB), 16) == n


@pytest.mark.parametrize(
    ("free", "kept"), [(3 * GIB, 0.35), (100 * GIB, 8.0), (GIB // 2, 0.0), (None, 0.0)]
)
def test_kept_prefixes_take_an_eighth_of_what_stays_free(machine, free, kept):
    """The cache has 192 MiB."""
    machine(free)
    found = prefix_memory_in_room(models(1024, file_bytes=MIB)) / GIB
    assert found == pytest.approx(kept, abs=0.02)


@pytest.mark.parametrize(
    ("free", "trained", "n_ctx"),
    [
        (31 * GIB, 32_768, 16_384),  # 3 GiB of caches
        (31 * GIB, 12_000, 12_000),
        (29 * GIB, 32_768, 8_192),
        (14 * GIB, 32_768, None),
        (31 * GIB, 2_048, None),
        (None, 32_768, None),
        (31 * GIB, 0, None),  # the file does not say it
    ],
)
def test_a_long_context_where_it_takes_a_tenth_of_the_free_memory(machine, free, trained, n_ctx):
    """16,384 positions take 3 GiB."""
    machine(free, 64 * GIB)
    known = {"context_length": trained} if trained else {}
    target = header(file_bytes=MIB, **SMOLLM2, **known)
    assert ctx_in_room([(target, ContextOptions())]) == n_ctx
    assert ctx_in_room([(target, ContextOptions(n_ctx=300))]) == 300
