"""Facts about the architectures of llama.cpp that cannot be read from a file's metadata.

They are those of the pinned llama.cpp (`src/llama-arch.cpp`, `src/llama-model.cpp`,
`src/models/*.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """Facts about an architecture; the defaults hold for architectures that are not in the table.

    Attributes:
        output: What its models compute. Only models with the output `text` generate text.
        cache: What the layers cache: keys and values (`attention`), a state (`recurrent`), some
            layers the one and some the other (`hybrid`), or keys of a window and compressed older
            keys (`compressed`). Only `attention` can drop any number of its last tokens.
        has_snapshots: Whether llama.cpp can keep the states after the last tokens of a pass
            (`n_rs_seq`).
        attention_every: Interval of the attention layers of a hybrid architecture if the file does
            not give it; 0 if the numbers of key-value heads tell which layers they are.
        caches_both: Whether every layer caches keys, values and a state.
        feed_forward_alone: Whether layers with a feed-forward part cache nothing.
        linear_attention: Whether the state of a layer is that of linear attention: a square matrix
            of a head's size for each head.
        own_kv_layers: Number of first layers that cache keys and values, which the other layers use
            too; 0 if the file gives it.
        has_rope: Whether it uses rotary position embeddings (RoPE).
        rope_is_checked: Whether llama.cpp itself reports errors in the numbers for RoPE.
        even_heads: Whether keys and values have the same length, and RoPE turns all of it.
        one_expert_is_none: Whether one expert means a model without experts.
        heads: The prediction heads that llama.cpp runs (`LLM_GRAPH_TYPE_DECODER_MTP`): `one`, again
            and again; a `chain` of any number, each for one token further; or empty for none. For
            an architecture that is a head itself `shared`: it reads the cache of its target; or
            `layers`: it reads the inputs of three of its target's layers.
        head_of: The architecture whose head it is.
    """

    output: Literal["text", "embeddings", "encoding"] = "text"
    cache: Literal["attention", "recurrent", "hybrid", "compressed"] = "attention"
    has_snapshots: bool = False
    attention_every: int = 0
    caches_both: bool = False
    feed_forward_alone: bool = False
    linear_attention: bool = False
    own_kv_layers: int = 0
    has_rope: bool = True
    rope_is_checked: bool = False
    even_heads: bool = False
    one_expert_is_none: bool = False
    heads: Literal["", "one", "chain", "shared", "layers"] = ""
    head_of: str = ""


_USUAL = Architecture()
_EMBEDDINGS = Architecture(output="embeddings")
_EMBEDDINGS_WITHOUT_ROPE = Architecture(output="embeddings", has_rope=False)
_ENCODING = Architecture(output="encoding")
_WITHOUT_ROPE = Architecture(has_rope=False)
_EVEN = Architecture(even_heads=True)
_RECURRENT = Architecture(cache="recurrent", has_rope=False)
_HYBRID = Architecture(cache="hybrid")
_HYBRID_WITHOUT_ROPE = Architecture(cache="hybrid", has_rope=False)
_KIMI_K3 = Architecture(cache="hybrid", has_snapshots=True, has_rope=False)
_NEMOTRON_H = Architecture(
    cache="hybrid", has_snapshots=True, has_rope=False, feed_forward_alone=True
)
_LFM2 = Architecture(cache="hybrid", has_snapshots=True)
_QWEN4 = Architecture(cache="hybrid", has_snapshots=True, attention_every=4)
_QWEN35 = replace(_QWEN4, heads="one")
_ONE_HEAD = Architecture(heads="one")
_CHAIN = Architecture(heads="chain")
_HUNYUAN = Architecture(one_expert_is_none=True)
# architecture of the projectors of vision models
PROJECTOR = "clip"

_TABLE = {
    # models that generate no text
    "bert": _EMBEDDINGS_WITHOUT_ROPE,
    "modern-bert": _EMBEDDINGS,
    "nomic-bert": _EMBEDDINGS,
    "nomic-bert-moe": _EMBEDDINGS,
    "neo-bert": _EMBEDDINGS,
    "jina-bert-v2": _EMBEDDINGS_WITHOUT_ROPE,
    "jina-bert-v3": _EMBEDDINGS,
    "eurobert": _EMBEDDINGS,
    "gemma-embedding": _EMBEDDINGS,
    "llama-embed": _EMBEDDINGS,
    "t5": _ENCODING,
    "t5encoder": _ENCODING,
    PROJECTOR: _ENCODING,
    "wavtokenizer-dec": _ENCODING,
    # a state in all layers, or in some
    "mamba": _RECURRENT,
    "mamba2": _RECURRENT,
    "rwkv6": _RECURRENT,
    "rwkv6qwen2": _RECURRENT,
    "rwkv7": _RECURRENT,
    "arwkv7": _RECURRENT,
    "jamba": _HYBRID_WITHOUT_ROPE,
    "kimi-linear": _HYBRID_WITHOUT_ROPE,
    "kimi-k3": _KIMI_K3,
    "glm5-next": replace(_KIMI_K3, heads="one"),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": replace(_NEMOTRON_H, heads="one"),
    "bailingmoe3": replace(_LFM2, heads="one"),
    "granitehybrid": _HYBRID,
    "lfm2": _LFM2,
    "lfm2moe": _LFM2,
    "plamo2": _HYBRID,
    "falcon-h1": Architecture(cache="hybrid", caches_both=True),
    "deepseek4": Architecture(cache="compressed", has_snapshots=True, heads="one"),
    "qwen3next": Architecture(cache="hybrid", attention_every=4, heads="one"),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35,
    "qwen4exp": _QWEN4,
    "minimax-01": Architecture(cache="hybrid", attention_every=8, linear_attention=True),
    # keys and values in all layers
    "gpt2": _WITHOUT_ROPE,
    "gptj": _WITHOUT_ROPE,
    "mpt": _WITHOUT_ROPE,
    "refact": _WITHOUT_ROPE,
    "bloom": _WITHOUT_ROPE,
    "jais": _WITHOUT_ROPE,
    "llama": Architecture(rope_is_checked=True, even_heads=True),
    "deci": Architecture(rope_is_checked=True),
    "falcon": Architecture(rope_is_checked=True),
    "llama4": _EVEN,
    "mistral3": _EVEN,
    "qwen2": _EVEN,
    "qwen2moe": _EVEN,
    "qwen2vl": _EVEN,
    "qwen3": _EVEN,
    "qwen3moe": _EVEN,
    "smollm3": _EVEN,
    "granite": _EVEN,
    "granitemoe": _EVEN,
    "olmo": _EVEN,
    "olmo2": _EVEN,
    "olmoe": _EVEN,
    "internlm2": _EVEN,
    "exaone": _EVEN,
    "exaone4": _EVEN,
    "starcoder2": _EVEN,
    "seed_oss": _EVEN,
    "ernie4_5": _EVEN,
    "arcee": _EVEN,
    "apertus": _EVEN,
    "baichuan": _EVEN,
    "xverse": _EVEN,
    # with prediction heads
    "deepseek2": _ONE_HEAD,
    "deepseek32": _ONE_HEAD,
    "glm4moe": _ONE_HEAD,
    "glm-dsa": _ONE_HEAD,
    "cohere2moe": _ONE_HEAD,
    "gemma4-assistant": Architecture(heads="shared", head_of="gemma4"),
    "eagle3": Architecture(heads="layers"),
    "step35": _CHAIN,
    "mimo2": _CHAIN,
    "hy_v3": _CHAIN,
    "gemma3n": Architecture(own_kv_layers=20),
    "hunyuan-dense": _HUNYUAN,
    "hunyuan_vl": _HUNYUAN,
}

NAMES = tuple(_TABLE)
"""Architectures that differ from the usual one."""

LAYER_INPUTS = frozenset(
    (
        "bailingmoe3", "deepseek4", "gemma4", "gpt-oss", "hunyuan-dense", "hunyuan_vl", "lfm2",
        "lfm2moe", "llama", "mimo2", "minimax-01", "minimax-m2", "muse-glimmer", "nanbeige",
        "nemotron_h", "nemotron_h_moe", "qwen3", "qwen35", "qwen35moe", "qwen3moe", "qwen3next",
    )
)  # fmt: skip
"""Architectures whose graphs return the inputs of their layers (`t_layer_inp`).

llama.cpp ends the process if others are asked for them, and with `qwen4exp`, whose inputs are
several rows for each token.
"""

LAST_ROWS = frozenset(
    (
        "bailingmoe3", "gemma4", "gpt-oss", "mimo2", "nemotron_h", "nemotron_h_moe", "qwen35",
        "qwen35moe", "qwen3next",
    )
)  # fmt: skip
"""Those of them that also return the output of the last layer (`t_h_nextn`) as one row a token."""


def architecture(name: str) -> Architecture:
    """Return the facts about an architecture by its name in a file."""
    return _TABLE.get(name, _USUAL)
