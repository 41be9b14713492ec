"""Tiny GGUF files with random weights, one for each of many architectures.

Names and shapes of the tensors are those of llama.cpp's loaders (`src/models/*.cpp`). A shape is written as NumPy sees it, so that of
llama.cpp is its reverse. Every model has a layer of each kind that its architecture has.

The output of a model prefers, after token t, a token that a permutation names, and its layers add noise to that. So greedy texts run
through cycles that the layers break off now and then, and drafts from the text and from a cousin are sometimes right and sometimes wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.support import tiny
from tests.support.tiny import N_CTX, N_EMBD, N_FF

# tokens of a vocabulary, experts of a layer, and length of each expert's hidden row
_N_VOCAB, _N_EXPERTS, _N_FF_EXPERT = len(tiny.TOKENS), 4, 32
# heads of 32: two for queries, one for keys and values
_HEAD, _Q, _KV = 32, 64, 32
# state-space layers: inner size, size of a state, heads, and kernel of the convolution
_INNER, _STATE, _SSM_HEADS, _KERNEL = 2 * N_EMBD, 16, 4, 4
# RWKV: llama.cpp's kernels read past the end of heads that are shorter
_RWKV_HEAD = 64
# how strongly the output prefers the token of the permutation, and the size of a layer's weights
_LEAD, _WEIGHTS = 2.0, 0.16

Shapes = dict[str, tuple[int, ...]]
Metadata = dict[str, Any]


def _attention(i: int, q: int = _Q, norms: bool = False, bias: bool = False) -> Shapes:
    at = f"blk.{i}.attn_"
    shapes: Shapes = {
        f"{at}norm.weight": (N_EMBD,), f"{at}q.weight": (q, N_EMBD), f"{at}k.weight": (_KV, N_EMBD), f"{at}v.weight": (_KV, N_EMBD),
        f"{at}output.weight": (N_EMBD, _Q),
    }  # fmt: skip
    if norms:
        shapes |= {f"{at}q_norm.weight": (_HEAD,), f"{at}k_norm.weight": (_HEAD,)}
    if bias:
        shapes |= {f"{at}q.bias": (q,), f"{at}k.bias": (_KV,), f"{at}v.bias": (_KV,)}
    return shapes


def _dense(i: int) -> Shapes:
    at = f"blk.{i}.ffn_"
    return {
        f"{at}norm.weight": (N_EMBD,),
        f"{at}gate.weight": (N_FF, N_EMBD),
        f"{at}up.weight": (N_FF, N_EMBD),
        f"{at}down.weight": (N_EMBD, N_FF),
    }


def _experts(i: int, n_ff: int = _N_FF_EXPERT, norm: bool = True, gate: bool = True) -> Shapes:
    at = f"blk.{i}.ffn_"
    shapes: Shapes = {
        f"{at}gate_inp.weight": (_N_EXPERTS, N_EMBD),
        f"{at}up_exps.weight": (_N_EXPERTS, n_ff, N_EMBD),
        f"{at}down_exps.weight": (_N_EXPERTS, N_EMBD, n_ff),
    }
    if norm:
        shapes[f"{at}norm.weight"] = (N_EMBD,)
    if gate:
        shapes[f"{at}gate_exps.weight"] = (_N_EXPERTS, n_ff, N_EMBD)
    return shapes


def _shared_expert(i: int, gate: bool = True) -> Shapes:
    at = f"blk.{i}.ffn_"
    shapes: Shapes = {
        f"{at}up_shexp.weight": (_N_FF_EXPERT, N_EMBD),
        f"{at}down_shexp.weight": (N_EMBD, _N_FF_EXPERT),
    }
    if gate:
        shapes |= {
            f"{at}gate_shexp.weight": (_N_FF_EXPERT, N_EMBD),
            f"{at}gate_inp_shexp.weight": (N_EMBD,),
        }
    return shapes


def _mamba(i: int, norms: bool = False) -> Shapes:
    at, rank = f"blk.{i}.ssm_", _SSM_HEADS
    shapes: Shapes = {
        f"blk.{i}.attn_norm.weight": (N_EMBD,), f"{at}in.weight": (2 * _INNER, N_EMBD), f"{at}conv1d.weight": (_INNER, _KERNEL),
        f"{at}conv1d.bias": (_INNER,), f"{at}x.weight": (rank + 2 * _STATE, _INNER), f"{at}dt.weight": (_INNER, rank),
        f"{at}dt.bias": (_INNER,), f"{at}a": (_INNER, _STATE), f"{at}d": (_INNER,), f"{at}out.weight": (N_EMBD, _INNER),
    }  # fmt: skip
    if norms:
        shapes |= {
            f"{at}dt_norm.weight": (rank,),
            f"{at}b_norm.weight": (_STATE,),
            f"{at}c_norm.weight": (_STATE,),
        }
    return shapes


def _mamba2(i: int) -> Shapes:
    at, channels = f"blk.{i}.ssm_", _INNER + 2 * _STATE
    return {
        f"blk.{i}.attn_norm.weight": (N_EMBD,), f"{at}in.weight": (_INNER + channels + _SSM_HEADS, N_EMBD),
        f"{at}conv1d.weight": (channels, _KERNEL), f"{at}conv1d.bias": (channels,), f"{at}dt.bias": (_SSM_HEADS,),
        f"{at}a": (_SSM_HEADS, 1), f"{at}d": (_SSM_HEADS, 1), f"{at}norm.weight": (1, _INNER), f"{at}out.weight": (N_EMBD, _INNER),
    }  # fmt: skip


def _delta(i: int, names: tuple[str, ...] = ("beta", "alpha")) -> Shapes:
    """Gated delta net with one head of 32 for keys and two for values."""
    at, key, value = f"blk.{i}.", _HEAD, 2 * _HEAD
    shapes: Shapes = {
        f"{at}attn_norm.weight": (N_EMBD,), f"{at}attn_qkv.weight": (2 * key + value, N_EMBD), f"{at}attn_gate.weight": (value, N_EMBD),
        f"{at}ssm_conv1d.weight": (2 * key + value, _KERNEL), f"{at}ssm_dt.bias": (2,), f"{at}ssm_a": (2,),
        f"{at}ssm_norm.weight": (_HEAD,), f"{at}ssm_out.weight": (N_EMBD, value),
    }  # fmt: skip
    return shapes | {f"{at}ssm_{name}.weight": (4 // len(names), N_EMBD) for name in names}


def _short_convolution(i: int) -> Shapes:
    at = f"blk.{i}.shortconv."
    return {
        f"blk.{i}.attn_norm.weight": (N_EMBD,), f"{at}conv.weight": (N_EMBD, 3), f"{at}in_proj.weight": (3 * N_EMBD, N_EMBD),
        f"{at}out_proj.weight": (N_EMBD, N_EMBD),
    }  # fmt: skip


_OF_ATTENTION: Metadata = {
    "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": _HEAD, "attention.value_length": _HEAD,
    "rope.dimension_count": _HEAD,
}  # fmt: skip
_OF_EXPERTS: Metadata = {
    "expert_count": _N_EXPERTS,
    "expert_used_count": 2,
    "expert_feed_forward_length": _N_FF_EXPERT,
}
_OF_SSM: Metadata = {
    "ssm.conv_kernel": _KERNEL, "ssm.inner_size": _INNER, "ssm.state_size": _STATE, "ssm.time_step_rank": _SSM_HEADS,
}  # fmt: skip
_OF_SSM_GROUPS = _OF_SSM | {"ssm.group_count": 1}
_OF_DELTA: Metadata = {
    "ssm.conv_kernel": _KERNEL, "ssm.inner_size": 2 * _HEAD, "ssm.state_size": _HEAD, "ssm.time_step_rank": 2, "ssm.group_count": 1,
    "full_attention_interval": 2,
}  # fmt: skip
_NO_ATTENTION: Metadata = {"attention.head_count": 0, "feed_forward_length": 0}


def _rwkv(i: int) -> Shapes:
    """Return the tensors common to rwkv6 and rwkv7."""
    at = f"blk.{i}."
    square = ("time_mix_key", "time_mix_value", "time_mix_receptance", "time_mix_output")
    rows = ("attn_norm", "attn_norm_2", "time_mix_ln")
    return {
        **{f"{at}{name}.weight": (N_EMBD, N_EMBD) for name in square},
        **{f"{at}{name}.{kind}": (N_EMBD,) for name in rows for kind in ("weight", "bias")},
        f"{at}channel_mix_lerp_k.weight": (1, 1, N_EMBD), f"{at}channel_mix_key.weight": (N_FF, N_EMBD),
        f"{at}channel_mix_value.weight": (N_EMBD, N_FF),
    }  # fmt: skip


def _rwkv6(i: int) -> Shapes:
    at = f"blk.{i}."
    return _rwkv(i) | {
        f"{at}time_mix_w1.weight": (5 * 8, N_EMBD), f"{at}time_mix_w2.weight": (5, N_EMBD, 8), f"{at}time_mix_lerp_x.weight": (1, 1, N_EMBD),
        f"{at}time_mix_lerp_fused.weight": (5, 1, 1, N_EMBD), f"{at}time_mix_first.weight": (1, _RWKV_HEAD), f"{at}time_mix_decay.weight": (N_EMBD,),
        f"{at}time_mix_decay_w1.weight": (8, N_EMBD), f"{at}time_mix_decay_w2.weight": (N_EMBD, 8), f"{at}time_mix_gate.weight": (N_EMBD, N_EMBD),
        f"{at}channel_mix_lerp_r.weight": (1, 1, N_EMBD), f"{at}channel_mix_receptance.weight": (N_EMBD, N_EMBD),
    }  # fmt: skip


def _rwkv7(i: int) -> Shapes:
    at = f"blk.{i}.time_mix_"
    pairs = {
        f"{at}{one}{n}.weight": (8, N_EMBD) if n == 1 else (N_EMBD, 8)
        for one in "wavg"
        for n in (1, 2)
    }
    rows = {f"{at}{name}.weight": (N_EMBD,) for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k")}
    return _rwkv(i) | pairs | rows | {f"{at}lerp_fused.weight": (6, 1, 1, N_EMBD)}


_OF_RWKV: Metadata = {
    "attention.head_count": 0, "attention.layer_norm_epsilon": 1e-5, "wkv.head_size": _RWKV_HEAD, "feed_forward_length": N_FF,
}  # fmt: skip
_OF_RWKV6 = _OF_RWKV | {"time_mix_extra_dim": 8, "time_decay_extra_dim": 8}
_OF_RWKV7 = _OF_RWKV | {
    f"attention.{name}_lora_rank": 8 for name in ("decay", "iclr", "value_residual_mix", "gate")
}
_RWKV_ENDS: Shapes = {
    "token_embd_norm.weight": (N_EMBD,),
    "token_embd_norm.bias": (N_EMBD,),
    "output_norm.bias": (N_EMBD,),
}


def _post_norms(i: int, ffw: bool = True) -> Shapes:
    shapes: Shapes = {f"blk.{i}.post_attention_norm.weight": (N_EMBD,)}
    return shapes | ({f"blk.{i}.post_ffw_norm.weight": (N_EMBD,)} if ffw else {})


def _gpt_oss(i: int) -> Shapes:
    biases: Shapes = {
        f"blk.{i}.attn_output.bias": (N_EMBD,), f"blk.{i}.attn_sinks.weight": (2,), f"blk.{i}.ffn_gate_inp.bias": (_N_EXPERTS,),
        f"blk.{i}.ffn_gate_exps.bias": (_N_EXPERTS, _N_FF_EXPERT), f"blk.{i}.ffn_up_exps.bias": (_N_EXPERTS, _N_FF_EXPERT),
        f"blk.{i}.ffn_down_exps.bias": (_N_EXPERTS, N_EMBD),
    }  # fmt: skip
    return _attention(i, bias=True) | _post_norms(i, ffw=False) | _experts(i, norm=False) | biases


def _qwen35(i: int, moe: bool) -> Shapes:
    layer = _attention(i, q=2 * _Q, norms=True) if i % 2 else _delta(i)
    rest = _experts(i, norm=False) | _shared_expert(i) if moe else _dense(i)
    rest.pop(f"blk.{i}.ffn_norm.weight", None)
    return layer | _post_norms(i, ffw=False) | rest


def _qwen3next(i: int) -> Shapes:
    layer = _attention(i, q=2 * _Q, norms=True) if i % 2 else _delta(i, ("ba",))
    return layer | _post_norms(i, ffw=False) | _experts(i, norm=False) | _shared_expert(i)


def _nemotron(i: int, moe: bool) -> Shapes:
    """A state-space layer, one of attention, and one that is only a feed-forward part."""
    if i < 2:
        return _mamba2(i) if i == 0 else _attention(i)
    shapes: Shapes = {f"blk.{i}.attn_norm.weight": (N_EMBD,)}
    if moe:
        bias: Shapes = {f"blk.{i}.exp_probs_b.bias": (_N_EXPERTS,)}
        return shapes | bias | _experts(i, norm=False, gate=False) | _shared_expert(i, gate=False)
    return shapes | {
        f"blk.{i}.ffn_{way}.weight": (N_FF, N_EMBD) if way == "up" else (N_EMBD, N_FF)
        for way in ("up", "down")
    }


def _falcon_h1(i: int) -> Shapes:
    shapes = _mamba2(i) | _attention(i) | _dense(i)
    shapes[f"blk.{i}.ffn_norm"] = shapes.pop(f"blk.{i}.ffn_norm.weight")
    return shapes


_LFM2_END: Shapes = {"token_embd_norm.weight": (N_EMBD,)}
_OF_LFM2: Metadata = {"attention.head_count_kv": [0, 1], "shortconv.l_cache": 3}
_WINDOW: Metadata = {"attention.sliding_window": 8}

_Layer = Callable[[int], Shapes]
# name in the file -> metadata without the name of the architecture, shapes of a layer, shapes beside the layers
_FAMILIES: dict[str, tuple[Metadata, _Layer, Shapes]] = {
    "llama": (_OF_ATTENTION, lambda i: _attention(i) | _dense(i), {}),
    "qwen2": (_OF_ATTENTION, lambda i: _attention(i, bias=True) | _dense(i), {}),
    "qwen3": (_OF_ATTENTION, lambda i: _attention(i, norms=True) | _dense(i), {}),
    "qwen3moe": (_OF_ATTENTION | _OF_EXPERTS, lambda i: _attention(i, norms=True) | _experts(i), {}),
    "gemma3": (
        _OF_ATTENTION | _WINDOW,
        lambda i: _attention(i, norms=True) | _dense(i) | _post_norms(i),
        {},
    ),
    "gemma4": (
        _OF_ATTENTION | _WINDOW | {
            "attention.sliding_window_pattern": [True, False], "attention.key_length_swa": _HEAD, "attention.value_length_swa": _HEAD,
            "embedding_length_per_layer_input": 0, "rope.dimension_count_swa": _HEAD,
        },
        lambda i: _attention(i, norms=True) | _dense(i) | _post_norms(i),
        {"rope_freqs.weight": (_HEAD // 2,)},
    ),
    "gpt-oss": (_OF_ATTENTION | _OF_EXPERTS | _WINDOW, _gpt_oss, {}),
    "lfm2": (
        _OF_ATTENTION | _OF_LFM2,
        lambda i: (_attention(i, norms=True) if i else _short_convolution(i)) | _dense(i),
        _LFM2_END,
    ),
    "lfm2moe": (
        _OF_ATTENTION | _OF_LFM2 | _OF_EXPERTS | {"leading_dense_block_count": 1, "expert_gating_func": 2},
        lambda i: _attention(i, norms=True) | _experts(i) | {f"blk.{i}.exp_probs_b.bias": (_N_EXPERTS,)}
        if i
        else _short_convolution(i) | _dense(i),
        _LFM2_END,
    ),
    "nemotron_h": (
        _OF_ATTENTION | _OF_SSM_GROUPS | {
            "attention.head_count_kv": [0, 1, 0], "feed_forward_length": [0, 0, N_FF], "attention.layer_norm_epsilon": 1e-5,
        },
        lambda i: _nemotron(i, moe=False),
        {},
    ),
    "nemotron_h_moe": (
        _OF_ATTENTION | _OF_SSM_GROUPS | _OF_EXPERTS | {
            "attention.head_count_kv": [0, 1, 0], "feed_forward_length": [0, 0, N_FF], "attention.layer_norm_epsilon": 1e-5,
            "expert_shared_feed_forward_length": _N_FF_EXPERT, "expert_shared_count": 1,
        },
        lambda i: _nemotron(i, moe=True),
        {},
    ),
    "qwen35": (
        _OF_ATTENTION | _OF_DELTA | {"rope.dimension_sections": [8, 4, 4, 0]},
        lambda i: _qwen35(i, moe=False),
        {},
    ),
    "qwen35moe": (
        _OF_ATTENTION | _OF_DELTA | _OF_EXPERTS | {"rope.dimension_sections": [8, 4, 4, 0], "expert_shared_feed_forward_length": _N_FF_EXPERT},
        lambda i: _qwen35(i, moe=True),
        {},
    ),
    "qwen3next": (
        _OF_ATTENTION | _OF_DELTA | _OF_EXPERTS | {"expert_shared_feed_forward_length": _N_FF_EXPERT},
        _qwen3next,
        {},
    ),
    "step35": (
        _OF_ATTENTION | _OF_EXPERTS | _WINDOW | {"attention.sliding_window_pattern": [True, False]},
        lambda i: _attention(i, norms=True) | _dense(i),
        {},
    ),
    "granitehybrid": (
        _OF_ATTENTION | _OF_SSM_GROUPS | _OF_EXPERTS | {"attention.head_count_kv": [0, 1]},
        lambda i: (_attention(i) if i else _mamba2(i)) | _experts(i, n_ff=N_FF),
        {},
    ),
    "falcon-h1": (_OF_ATTENTION | _OF_SSM_GROUPS, _falcon_h1, {}),
    "jamba": (
        _OF_ATTENTION | _OF_SSM | _OF_EXPERTS | {"attention.head_count_kv": [0, 1]},
        lambda i: (_attention(i) if i else _mamba(i, norms=True)) | _experts(i, n_ff=N_FF),
        {},
    ),
    "mamba": (_OF_SSM | _NO_ATTENTION, _mamba, {}),
    "mamba2": (_OF_SSM_GROUPS | _NO_ATTENTION, _mamba2, {}),
    "rwkv6": (_OF_RWKV6, _rwkv6, _RWKV_ENDS),
    "rwkv7": (_OF_RWKV7, _rwkv7, _RWKV_ENDS),
}  # fmt: skip

NAMES = tuple(_FAMILIES)


def family(name: str, seed: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a model; models of all names and seeds prefer the same tokens."""
    special, layer, ends = _FAMILIES[name]
    n_layer = 3 if name.startswith("nemotron") else 2
    metadata = {
        "context_length": N_CTX,
        "embedding_length": N_EMBD,
        "block_count": n_layer,
        "feed_forward_length": N_FF,
    }
    metadata |= {"attention.layer_norm_rms_epsilon": 1e-5} | special
    shapes = {"output_norm.weight": (N_EMBD,)} | ends
    for i in range(n_layer):
        shapes |= layer(i)
    if name.startswith("lfm2"):
        del shapes["output_norm.weight"]
    rng = np.random.default_rng(seed)
    tensors = {one: _tensor(rng, one, shape) for one, shape in shapes.items()}
    return (
        {"general.architecture": name}
        | {f"{name}.{key}": value for key, value in metadata.items()},
        tensors | _ends(),
    )


def with_head(
    model: tuple[dict[str, Any], dict[str, Any]], n_heads: int = 1, seed: int = 3
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model of `family` with prediction heads: layers of attention behind its own, of random weights."""
    metadata, tensors = model
    name = metadata["general.architecture"]
    n_layer = metadata[f"{name}.block_count"]
    rng = np.random.default_rng(seed)
    shapes: Shapes = {}
    for i in range(n_layer, n_layer + n_heads):
        layer = _FAMILIES[name][1](i + (i + 1) % 2)  # one of attention has an odd number
        at = f"blk.{i}."
        shapes |= {at + one.split(".", 2)[2]: shape for one, shape in layer.items()}
        shapes |= {
            f"{at}nextn.eh_proj.weight": (N_EMBD, 2 * N_EMBD),
            f"{at}nextn.enorm.weight": (N_EMBD,),
            f"{at}nextn.hnorm.weight": (N_EMBD,),
        }
    head = {one: _tensor(rng, one, shape) for one, shape in shapes.items()}
    changed = {f"{name}.block_count": n_layer + n_heads, f"{name}.nextn_predict_layers": n_heads}
    pattern = f"{name}.attention.sliding_window_pattern"
    if pattern in metadata:
        changed[pattern] = [*metadata[pattern], *[False] * n_heads]
    return metadata | changed, tensors | head


def assistant(seed: int = 4) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a head for gemma4: layers that read the keys and values of the target's last two layers."""
    name, width = "gemma4-assistant", N_EMBD // 2
    special = _FAMILIES["gemma4"][0] | {
        "context_length": N_CTX, "embedding_length": width, "embedding_length_out": N_EMBD, "block_count": 2, "nextn_predict_layers": 2,
        "feed_forward_length": N_FF, "attention.layer_norm_rms_epsilon": 1e-5, "attention.shared_kv_layers": 2,
    }  # fmt: skip
    shapes: Shapes = {
        "token_embd.weight": (_N_VOCAB, width), "output_norm.weight": (width,), "nextn.pre_projection.weight": (width, 2 * N_EMBD),
        "nextn.post_projection.weight": (N_EMBD, width),
    }  # fmt: skip
    for i in range(2):
        at = f"blk.{i}."
        shapes |= {
            f"{at}attn_norm.weight": (width,), f"{at}attn_q.weight": (_Q, width), f"{at}attn_output.weight": (width, _Q),
            f"{at}attn_q_norm.weight": (_HEAD,), f"{at}post_attention_norm.weight": (width,), f"{at}layer_output_scale.weight": (1,),
            f"{at}ffn_norm.weight": (width,), f"{at}ffn_gate.weight": (N_FF, width), f"{at}ffn_up.weight": (N_FF, width),
            f"{at}ffn_down.weight": (width, N_FF), f"{at}post_ffw_norm.weight": (width,),
        }  # fmt: skip
    shapes["rope_freqs.weight"] = (_HEAD // 2,)
    rng = np.random.default_rng(seed)
    metadata = {"general.architecture": name} | {
        f"{name}.{key}": value for key, value in special.items()
    }
    return metadata, {one: _tensor(rng, one, shape) for one, shape in shapes.items()}


def without_layers(
    model: tuple[dict[str, Any], dict[str, Any]],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the prediction heads of a model without its other layers."""
    metadata, tensors = model
    name = metadata["general.architecture"]
    first = metadata[f"{name}.block_count"] - metadata[f"{name}.nextn_predict_layers"]
    kept = {
        one: tensor
        for one, tensor in tensors.items()
        if not one.startswith("blk.") or int(one.split(".")[1]) >= first
    }
    return metadata, kept


def _ends() -> dict[str, np.ndarray]:
    """Return the embedding and the output, which are the same for all models."""
    rng = np.random.default_rng(7)
    embedding = rng.normal(0, 1, (_N_VOCAB, N_EMBD)).astype(np.float32)
    output = rng.normal(0, 0.2, (_N_VOCAB, N_EMBD)).astype(np.float32)
    # eight cycles of eight printable characters
    for letters in rng.permutation(np.arange(26, 90)).reshape(8, 8):
        output[np.roll(letters, -1)] += _LEAD * embedding[letters] / np.sqrt(N_EMBD)
    return {"token_embd.weight": embedding, "output.weight": output}


def _tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.normal(0, 1, shape).astype(np.float32)
    if "norm" in name or "_ln." in name:
        return np.zeros_like(values) if name.endswith("bias") else np.ones_like(values)
    if name.endswith("ssm_a"):  # a state decays
        return -np.abs(values) - 0.1
    if name == "rope_freqs.weight":
        return np.ones_like(values)
    return values * (_WEIGHTS if len(shape) > 1 else 0.3)


def write_family(folder: Path, name: str, seed: int = 0, suffix: str = "") -> Path:
    """Write a model to `NAME.gguf` in a folder, and return the path."""
    return tiny.write(folder / f"{name}{suffix}.gguf", family(name, seed))
