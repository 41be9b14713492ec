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
        takes_rows: Whether a pass over rows of `token_embd.weight`, in place of token ids, gives
            the same bits, and how the rows are given: `as they are`, or `scaled` by the root of
            their length. Empty where that was not tried, or where other parts of the model need
            the ids.
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
    takes_rows: Literal["", "as they are", "scaled"] = ""


_USUAL = Architecture()
# architecture of the projectors of vision models
PROJECTOR = "clip"
_RECURRENT = Architecture(cache="recurrent", has_rope=False)
_HYBRID = Architecture(cache="hybrid")
_WITH_SNAPSHOTS = Architecture(cache="hybrid", has_snapshots=True)
_KIMI_K3 = replace(_WITH_SNAPSHOTS, has_rope=False)
_NEMOTRON_H = replace(_KIMI_K3, feed_forward_alone=True)
_QWEN4 = replace(_WITH_SNAPSHOTS, attention_every=4)

# names -> facts
_GROUPS = (
    # models that generate no text
    ("bert jina-bert-v2", Architecture(output="embeddings", has_rope=False)),
    (
        "modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v3 eurobert gemma-embedding "
        "llama-embed",
        Architecture(output="embeddings"),
    ),
    (f"t5 t5encoder {PROJECTOR} wavtokenizer-dec", Architecture(output="encoding")),
    # a state in all layers, or in some
    ("mamba mamba2 rwkv6 rwkv6qwen2 rwkv7 arwkv7", _RECURRENT),
    ("jamba kimi-linear", replace(_HYBRID, has_rope=False)),
    ("kimi-k3", _KIMI_K3),
    ("glm5-next", replace(_KIMI_K3, heads="one")),
    ("nemotron_h", _NEMOTRON_H),
    ("nemotron_h_moe", replace(_NEMOTRON_H, heads="one")),
    ("bailingmoe3", replace(_WITH_SNAPSHOTS, heads="one")),
    ("granitehybrid plamo2", _HYBRID),
    ("lfm2 lfm2moe", _WITH_SNAPSHOTS),
    ("falcon-h1", replace(_HYBRID, caches_both=True)),
    ("deepseek4", Architecture(cache="compressed", has_snapshots=True, heads="one")),
    ("qwen3next", replace(_HYBRID, attention_every=4, heads="one")),
    ("qwen35 qwen35moe", replace(_QWEN4, heads="one")),
    ("qwen4exp", _QWEN4),
    ("minimax-01", replace(_HYBRID, attention_every=8, linear_attention=True)),
    # keys and values in all layers
    ("gpt2 gptj mpt refact bloom jais", Architecture(has_rope=False)),
    ("llama", Architecture(rope_is_checked=True, even_heads=True, takes_rows="as they are")),
    ("qwen2 qwen3 qwen3moe", Architecture(even_heads=True, takes_rows="as they are")),
    ("gemma3", Architecture(takes_rows="scaled")),
    ("deci falcon", Architecture(rope_is_checked=True)),
    (
        "llama4 mistral3 qwen2moe qwen2vl smollm3 granite granitemoe olmo olmo2 olmoe internlm2 "
        "exaone exaone4 starcoder2 seed_oss ernie4_5 arcee apertus baichuan xverse",
        Architecture(even_heads=True),
    ),
    # with prediction heads
    ("deepseek2 deepseek32 glm4moe glm-dsa cohere2moe", Architecture(heads="one")),
    ("gemma4-assistant", Architecture(heads="shared", head_of="gemma4")),
    ("eagle3", Architecture(heads="layers")),
    ("step35 mimo2 hy_v3", Architecture(heads="chain")),
    ("gemma3n", Architecture(own_kv_layers=20)),
    ("hunyuan-dense hunyuan_vl", Architecture(one_expert_is_none=True)),
)
_TABLE = {name: facts for names, facts in _GROUPS for name in names.split()}

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
    return _TABLE.get(name, _USUAL)
