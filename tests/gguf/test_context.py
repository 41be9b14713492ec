"""Options for memory: types of the cache, flash attention and layers on a GPU, separately for target and draft."""

import numpy as np
import pytest
from llama_cpp import llama_cpp

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ContextFailedError, InvalidOptionError
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import KV_TYPES, ContextOptions
from tests.support import tiny

TOKENS = [40, 100, 7, 260, 33, 90, 12, 80]


def logits(path, **options):
    model = Context(
        path, ContextOptions(n_ctx=64, threads=1, extra_bufts=False, **options)
    ).sequences[0]
    try:
        model.read(TOKENS[:-1])
        return model.logits(TOKENS[-1:], 1).copy()
    finally:
        model.close()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """A model with heads of 16."""
    metadata, tensors = tiny.llama(seed=1)
    heads = {
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.rope.dimension_count": 16,
    }
    return tiny.write(
        tmp_path_factory.mktemp("narrow") / "narrow.gguf", (metadata | heads, tensors)
    )


def test_types_of_the_cache_round_as_specified(gguf_dir):
    exact = logits(gguf_dir / "llama.gguf")
    off = {
        kind: float(np.abs(logits(gguf_dir / "llama.gguf", kv_type=kind) - exact).max())
        for kind in KV_TYPES
    }
    assert off["f16"] == 0
    assert off["f32"] < 0.01 < off["bf16"] < off["q8_0"] < min(off["q5_1"], off["q5_0"])
    assert off["q5_1"] < off["q4_1"]
    assert off["q5_0"] < off["q4_0"] < 0.5 * np.ptp(exact)


@pytest.mark.parametrize("flash", ["on", "off"])
def test_flash_attention_gives_the_same_text(gguf_dir, flash):
    assert (
        np.abs(
            logits(gguf_dir / "llama.gguf", flash_attention=flash) - logits(gguf_dir / "llama.gguf")
        ).max()
        < 0.05
    )


@pytest.mark.parametrize("kind", [kind for kind, (_, n_bytes) in KV_TYPES.items() if n_bytes < 2])
def test_a_cache_in_blocks_needs_flash_attention(kind):
    with pytest.raises(
        InvalidOptionError,
        match=f"kv_type is '{kind}' but must be f16, bf16 or f32 when flash attention is off",
    ) as caught:
        ContextOptions(kv_type=kind, flash_attention="off")
    assert caught.value.hint == "set flash_attention='auto' or set kv_type='f16'."


@pytest.mark.parametrize("kind", KV_TYPES)
def test_blocks_must_divide_heads(narrow, kind):
    """The refused values are those that llama.cpp refuses."""
    options = ContextOptions(n_ctx=64, threads=1, extra_bufts=False, kv_type=kind)
    if KV_TYPES[kind][1] >= 2:
        options.check_heads(read_header(narrow))
        assert logits(narrow, kv_type=kind).shape == (1, len(tiny.TOKENS))
        return
    with pytest.raises(
        InvalidOptionError,
        match=r"heads of narrow\.gguf have 16 values, which is not a multiple of 32",
    ):
        Context(narrow, options).sequences[0]
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(
            ContextFailedError,
            match=r"llama\.cpp cannot create a context of .* tokens with kv_type=",
        ),
    ):
        patch.setattr(ContextOptions, "check_heads", lambda *_: None)
        Context(narrow, options).sequences[0]


@pytest.mark.parametrize(
    ("metadata", "sizes"),
    [
        ({}, [32, 32]),
        ({"llama.attention.key_length": 24}, [24, 32]),
        ({"llama.attention.value_length": 80}, [32, 80]),
        ({"llama.attention.head_count": [4, 2]}, [16, 16]),
        ({"llama.attention.head_count": 0}, []),
        ({"llama.attention.head_count": "two"}, []),
        ({"llama.attention.head_count": []}, []),
        ({"llama.attention.head_count": None}, []),
        ({"llama.embedding_length": None, "llama.attention.key_length": 48}, [48]),
    ],
)
def test_sizes_of_heads_from_any_header(tmp_path, metadata, sizes):
    header = read_header(tiny.write(tmp_path / "odd.gguf", metadata=metadata))
    options = ContextOptions(kv_type="q8_0")
    if all(n % 32 == 0 for n in sizes):
        options.check_heads(header)
    else:
        with pytest.raises(
            InvalidOptionError, match=f"have {next(n for n in sizes if n % 32)} values"
        ):
            options.check_heads(header)


@pytest.mark.parametrize(
    ("layers", "asked"), [(1, {"gpu_layers": 1}), (99, {"gpu_layers": 0, "draft_gpu_layers": 99})]
)
def test_layers_on_a_gpu_with_a_build_without_one(gguf_dir, layers, asked, monkeypatch):
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
    option = next(name for name, n in asked.items() if n)
    with pytest.raises(
        InvalidOptionError,
        match=rf"^{option} is {layers} but must be 0 or -1: this build of llama\.cpp has no GPU backend",
    ) as caught:
        gguf_spec.load(
            gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1, extra_bufts=False, **asked
        )
    assert caught.value.hint.startswith(
        f"omit {option}, or take a build for your GPU: in a clone scripts/run --gpu"
    )
    assert "scripts/run --gpu" in caught.value.hint


@pytest.mark.parametrize("layers", [-1, 0])
def test_no_layers_asked_for_is_never_refused(gguf_dir, layers, monkeypatch):
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
    with gguf_spec.load(
        gguf_dir / "llama.gguf",
        gguf_dir / "twin.gguf",
        threads=1,
        extra_bufts=False,
        gpu_layers=layers,
        draft_gpu_layers=-1,
    ) as llm:
        assert llm.generate("The", Sampling(temperature=0, max_tokens=2)).tokens


def test_a_draft_inherits_the_options_of_the_target(gguf_dir):
    options = {
        "threads": 1,
        "extra_bufts": False,
        "kv_type": "q8_0",
        "flash_attention": "on",
        "gpu_layers": 0,
    }
    with (
        gguf_spec.load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", **options) as llm,
        llm.models() as (_, draft),
    ):
        assert (draft.options.kv_type, draft.options.flash_attention, draft.options.gpu_layers) == (
            "q8_0",
            "on",
            0,
        )


def test_a_draft_has_its_own(gguf_dir):
    options = {
        "draft_kv_type": "q4_0",
        "draft_flash_attention": "on",
        "draft_gpu_layers": 0,
        "flash_attention": "off",
    }
    speculation = Speculation(k=4, drafter="model", adaptive=False)
    texts = []
    for draft in (None, gguf_dir / "twin.gguf"):
        with gguf_spec.load(
            gguf_dir / "llama.gguf",
            draft,
            threads=1,
            extra_bufts=False,
            speculation=speculation if draft else None,
            **options,
        ) as llm:
            texts.append(
                llm.generate(
                    "Once upon the time", Sampling(seed=1, max_tokens=40, ignore_eos=True)
                ).tokens
            )
            with llm.models() as (target, other):
                assert (
                    target.options.kv_type,
                    target.options.flash_attention,
                    target.options.gpu_layers,
                ) == ("f16", "off", -1)
                if draft:
                    assert (
                        other.options.kv_type,
                        other.options.flash_attention,
                        other.options.gpu_layers,
                    ) == ("q4_0", "on", 0)
                    assert (
                        other.state_bytes()
                        < 0.5 * target.state_bytes() * other.n_past / target.n_past + 200
                    )  # it is what llama.cpp has
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"draft_kv_type": "q9"}, "draft_kv_type is 'q9' but must be one of f32, f16"),
        ({"draft_flash_attention": "maybe"}, "draft_flash_attention is 'maybe'"),
        ({"draft_gpu_layers": -2}, "draft_gpu_layers is -2"),
        (
            {"draft_flash_attention": "off", "kv_type": "q8_0"},
            "draft_kv_type is 'q8_0' but must be f16, bf16 or f32 when flash attention is off",
        ),
    ],
)
def test_options_of_a_draft_are_named(gguf_dir, options, said):
    with pytest.raises(InvalidOptionError) as caught:
        gguf_spec.load(
            gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", threads=1, extra_bufts=False, **options
        )
    assert str(caught.value).startswith(said)


def test_heads_of_a_draft_are_named(gguf_dir, narrow):
    with pytest.raises(
        InvalidOptionError, match=r"^draft_kv_type is 'q8_0' but must be f16"
    ) as caught:
        gguf_spec.load(
            gguf_dir / "llama.gguf", narrow, threads=1, extra_bufts=False, kv_type="q8_0"
        )
    assert caught.value.hint == "set draft_kv_type='f16'."
