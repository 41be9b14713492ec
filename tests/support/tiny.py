"""Tiny GGUF files with random weights: valid ones of several kinds, and invalid ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

N_EMBD, N_FF, N_CTX = 64, 64, 256
MERGES = [
    "t h",
    "th e",
    "Ġ the",
    "Ġ a",
    "a n",
    "an d",
    "i n",
    "e r",
    "o n",
    "Ġ t",
    "Ġ w",
    "Ġ s",
    "r e",
    "o u",
    "Ġ o",
    "o f",
]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_letters() -> list[str]:
    """Return the letter that GPT-2's tokenizer writes for each byte."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b if b in shown else next(others)) for b in range(256)]


TOKENS = [*byte_letters(), *(m.replace(" ", "") for m in MERGES), *SPECIAL]
END, IM_START, IM_END = (TOKENS.index(s) for s in SPECIAL)


def vocabulary(tokens: list[str] = TOKENS) -> dict[str, Any]:
    """Return the metadata of a byte-level BPE tokenizer; the last three tokens are control tokens."""
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 3) + [3] * 3, "tokenizer.ggml.eos_token_id": len(tokens) - 3,
        "tokenizer.ggml.bos_token_id": len(tokens) - 3, "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": CHATML,
    }  # fmt: skip


def llama(
    n_vocab: int = len(TOKENS), seed: int = 0, n_layer: int = 1, scale: float = 0.3
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a llama model with two heads of 32."""
    rng = np.random.default_rng(seed)
    metadata = {
        "general.architecture": "llama", "llama.context_length": N_CTX, "llama.embedding_length": N_EMBD, "llama.block_count": n_layer,
        "llama.feed_forward_length": N_FF, "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 32,
    }  # fmt: skip
    shapes = {
        "token_embd.weight": (n_vocab, N_EMBD),
        "output_norm.weight": (N_EMBD,),
        "output.weight": (n_vocab, N_EMBD),
    }
    for i in range(n_layer):
        shapes |= {
            f"blk.{i}.attn_norm.weight": (N_EMBD,), f"blk.{i}.attn_q.weight": (64, N_EMBD), f"blk.{i}.attn_k.weight": (32, N_EMBD),
            f"blk.{i}.attn_v.weight": (32, N_EMBD), f"blk.{i}.attn_output.weight": (N_EMBD, 64),
        } | _feed_forward(i)  # fmt: skip
    return metadata, _random(rng, shapes, scale)


def mixture(
    n_expert: int = 8, n_used: int = 2, n_layer: int = 2, n_ff: int = N_FF, seed: int = 1
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a mixture of experts: a llama whose layers have several feed-forward parts."""
    metadata, tensors = llama(seed=seed, n_layer=n_layer)
    rng = np.random.default_rng(seed)
    metadata |= {
        "llama.expert_count": n_expert,
        "llama.expert_used_count": n_used,
        "llama.feed_forward_length": n_ff,
    }
    shapes: dict[str, tuple[int, ...]] = {}
    for i in range(n_layer):
        for name in ("gate", "up", "down"):
            del tensors[f"blk.{i}.ffn_{name}.weight"]
        shapes |= {
            f"blk.{i}.ffn_gate_inp.weight": (n_expert, N_EMBD),
            f"blk.{i}.ffn_gate_exps.weight": (n_expert, n_ff, N_EMBD),
            f"blk.{i}.ffn_up_exps.weight": (n_expert, n_ff, N_EMBD),
            f"blk.{i}.ffn_down_exps.weight": (n_expert, N_EMBD, n_ff),
        }
    return metadata, tensors | _random(rng, shapes, 0.3)


def one_text(text: str, for_ever: bool = False) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a llama that always writes `text`, whose bytes all differ; then the end, or `text` again."""
    metadata, tensors = llama()
    tensors = {
        name: tensor if "norm" in name or "embd" in name else np.zeros_like(tensor)
        for name, tensor in tensors.items()
    }
    letters = byte_letters()
    ids = [TOKENS.index(letters[byte]) for byte in text.encode()]
    for now, after in zip(ids, [*ids[1:], ids[0] if for_ever else END], strict=True):
        tensors["output.weight"][after] = 100 * tensors["token_embd.weight"][now]
    return metadata, tensors


def mamba() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a recurrent model."""
    inner, state, rank = 2 * N_EMBD, 16, 4
    metadata = {
        "general.architecture": "mamba", "mamba.context_length": N_CTX, "mamba.embedding_length": N_EMBD, "mamba.block_count": 1,
        "mamba.feed_forward_length": 0, "mamba.attention.head_count": 0, "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": 4, "mamba.ssm.inner_size": inner, "mamba.ssm.state_size": state, "mamba.ssm.time_step_rank": rank,
    }  # fmt: skip
    shapes = {
        "token_embd.weight": (len(TOKENS), N_EMBD), "output_norm.weight": (N_EMBD,), "blk.0.attn_norm.weight": (N_EMBD,),
        "blk.0.ssm_in.weight": (2 * inner, N_EMBD), "blk.0.ssm_conv1d.weight": (inner, 4), "blk.0.ssm_conv1d.bias": (inner,),
        "blk.0.ssm_x.weight": (rank + 2 * state, inner), "blk.0.ssm_dt.weight": (inner, rank), "blk.0.ssm_dt.bias": (inner,),
        "blk.0.ssm_a": (inner, state), "blk.0.ssm_d": (inner,), "blk.0.ssm_out.weight": (N_EMBD, inner),
    }  # fmt: skip
    tensors = _random(np.random.default_rng(0), shapes, 0.3)
    tensors["blk.0.ssm_a"] = -np.abs(tensors["blk.0.ssm_a"]) - 0.1
    return metadata, tensors


def lfm2() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return metadata and tensors of a hybrid model: a layer of convolution and one of attention."""
    metadata = {
        "general.architecture": "lfm2", "lfm2.context_length": N_CTX, "lfm2.embedding_length": N_EMBD, "lfm2.block_count": 2,
        "lfm2.feed_forward_length": N_FF, "lfm2.attention.head_count": 2, "lfm2.attention.head_count_kv": [0, 1],
        "lfm2.attention.layer_norm_rms_epsilon": 1e-5, "lfm2.shortconv.l_cache": 3,
    }  # fmt: skip
    shapes = {"token_embd.weight": (len(TOKENS), N_EMBD), "token_embd_norm.weight": (N_EMBD,)}
    for i in range(2):
        shapes |= {f"blk.{i}.attn_norm.weight": (N_EMBD,)} | _feed_forward(i)
    shapes |= {
        "blk.0.shortconv.conv.weight": (N_EMBD, 3), "blk.0.shortconv.in_proj.weight": (3 * N_EMBD, N_EMBD),
        "blk.0.shortconv.out_proj.weight": (N_EMBD, N_EMBD), "blk.1.attn_q_norm.weight": (32,), "blk.1.attn_k_norm.weight": (32,),
        "blk.1.attn_q.weight": (64, N_EMBD), "blk.1.attn_k.weight": (32, N_EMBD), "blk.1.attn_v.weight": (32, N_EMBD),
        "blk.1.attn_output.weight": (N_EMBD, 64),
    }  # fmt: skip
    return metadata, _random(np.random.default_rng(0), shapes, 0.3)


def _feed_forward(i: int) -> dict[str, tuple[int, ...]]:
    return {
        f"blk.{i}.ffn_norm.weight": (N_EMBD,), f"blk.{i}.ffn_gate.weight": (N_FF, N_EMBD),
        f"blk.{i}.ffn_up.weight": (N_FF, N_EMBD), f"blk.{i}.ffn_down.weight": (N_EMBD, N_FF),
    }  # fmt: skip


def _random(
    rng: np.random.Generator, shapes: dict[str, tuple[int, ...]], scale: float
) -> dict[str, np.ndarray]:
    return {
        name: np.ones(shape, np.float32)
        if "norm" in name
        else rng.normal(0, scale, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write(
    path: Path, model: tuple[dict[str, Any], dict[str, Any]] | None = None, **changes: Any
) -> Path:
    """Write a GGUF file.

    Args:
        path: The file.
        model: Metadata and tensors; a small llama where it is not given.
        changes: `metadata` and `tensors` (both: name -> new value, None leaves it out), and `tokens` for another vocabulary.
    """
    metadata, tensors = model or llama()
    metadata = metadata | vocabulary(changes.get("tokens", TOKENS)) | changes.get("metadata", {})
    tensors = tensors | changes.get("tensors", {})
    writer = _Writer(path, "")
    writer.kv_data[0].clear()  # it names the architecture by itself
    for key, value in metadata.items():
        if isinstance(value, gguf.GGUFValue):
            writer.kv_data[0][key] = value
        elif value is not None:
            writer.kv_data[0][key] = gguf.GGUFValue(value, KINDS[type(value)])
    for name, tensor in tensors.items():
        if tensor is not None:
            writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


KINDS = {
    kind: gguf.GGUFValueType[name]
    for kind, name in {
        bool: "BOOL",
        int: "UINT32",
        float: "FLOAT32",
        str: "STRING",
        list: "ARRAY",
    }.items()
}


class _Writer(gguf.GGUFWriter):
    def _pack_val(
        self,
        val: Any,
        vtype: gguf.GGUFValueType,
        add_vtype: bool,
        sub_type: gguf.GGUFValueType | None = None,
    ) -> bytes:
        if (
            vtype == gguf.GGUFValueType.ARRAY and not val
        ):  # the package refuses to write an empty array
            return (
                self._pack("I", vtype)
                + self._pack("I", gguf.GGUFValueType.STRING)
                + self._pack("Q", 0)
            )
        return super()._pack_val(val, vtype, add_vtype, sub_type)


def as_float16(source: Path, path: Path) -> Path:
    """Write a model again with float16 weights, whose kernels give other last digits for batches of other sizes on most machines."""
    reader, writer = gguf.GGUFReader(source), gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        kind = field.types[0] if field.types else None
        if field.name.startswith("GGUF.") or field.name in (
            "general.architecture",
            "general.file_type",
        ):
            continue
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), kind)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, weights if weights.ndim == 1 else weights.astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
