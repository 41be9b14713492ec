"""Facts about the architectures of llama.cpp that cannot be read from a file's metadata.

They are those of the pinned llama.cpp (`src/llama-arch.cpp`, `src/llama-model.cpp`,
`src/models/*.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """Facts about an architecture; the defaults hold for architectures that are not in the table.

    Attributes:
        output: What its models compute. Only models with the output `text` generate text.
        cache: What the layers cache: keys and values (`attention`), a state (`recurrent`), some
            layers the one and some the other (`hybrid`), or keys of a window and compressed older
            keys (`compressed`). Only `attention` can drop its last tokens.
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
    """

    output: Literal["text", "embeddings", "encoding"] = "text"
    cache: Literal["attention", "recurrent", "hybrid", "compressed"] = "attention"
    attention_every: int = 0
    caches_both: bool = False
    feed_forward_alone: bool = False
    linear_attention: bool = False
    own_kv_layers: int = 0
    has_rope: bool = True
    rope_is_checked: bool = False
    even_heads: bool = False
    one_expert_is_none: bool = False

    @property
    def can_go_back(self) -> bool:
        """Whether the cache can drop its last tokens."""
        return self.cache == "attention"


_USUAL = Architecture()
_EMBEDDINGS = Architecture(output="embeddings")
_ENCODING = Architecture(output="encoding")
_WITHOUT_ROPE = Architecture(has_rope=False)
_EVEN = Architecture(even_heads=True)
_RECURRENT = Architecture(cache="recurrent", has_rope=False)
_HYBRID = Architecture(cache="hybrid")
_HYBRID_WITHOUT_ROPE = Architecture(cache="hybrid", has_rope=False)
_NEMOTRON_H = Architecture(cache="hybrid", has_rope=False, feed_forward_alone=True)
_EVERY_FOURTH = Architecture(cache="hybrid", attention_every=4)
_HUNYUAN = Architecture(one_expert_is_none=True)

_TABLE = {
    # models that generate no text
    "bert": _EMBEDDINGS,
    "modern-bert": _EMBEDDINGS,
    "nomic-bert": _EMBEDDINGS,
    "nomic-bert-moe": _EMBEDDINGS,
    "neo-bert": _EMBEDDINGS,
    "jina-bert-v2": _EMBEDDINGS,
    "jina-bert-v3": _EMBEDDINGS,
    "eurobert": _EMBEDDINGS,
    "gemma-embedding": _EMBEDDINGS,
    "llama-embed": _EMBEDDINGS,
    "t5": _ENCODING,
    "t5encoder": _ENCODING,
    "clip": _ENCODING,
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
    "kimi-k3": _HYBRID_WITHOUT_ROPE,
    "glm5-next": _HYBRID_WITHOUT_ROPE,
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "bailingmoe3": _HYBRID,
    "granitehybrid": _HYBRID,
    "lfm2": _HYBRID,
    "lfm2moe": _HYBRID,
    "plamo2": _HYBRID,
    "falcon-h1": Architecture(cache="hybrid", caches_both=True),
    "deepseek4": Architecture(cache="compressed"),
    "qwen3next": _EVERY_FOURTH,
    "qwen35": _EVERY_FOURTH,
    "qwen35moe": _EVERY_FOURTH,
    "qwen4exp": _EVERY_FOURTH,
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
    "gemma3n": Architecture(own_kv_layers=20),
    "hunyuan-dense": _HUNYUAN,
    "hunyuan_vl": _HUNYUAN,
}


def architecture(name: str) -> Architecture:
    """Return the facts about an architecture by its name in a file."""
    return _TABLE.get(name, _USUAL)
