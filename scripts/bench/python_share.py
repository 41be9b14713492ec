"""Measure Python's share of a round on models of real size with random weights: the time depends on the shape, not on the values of the weights.

    .venv/bin/python scripts/bench/python_share.py [--folder DIR] [--tokens 64] [--vocab 49152]

Writes about 1.1 GB of GGUF files into DIR (the user cache by default), once. Prints one table: the share of draft, verify and Python, and the
tokens per second, for greedy and sampled decoding at k = 4.
"""

import argparse
from pathlib import Path

import gguf
import numpy as np

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.system.files import cache_folder

SHAPES = {  # SmolLM2's: layers, width, heads, key-value heads, feed-forward width
    "135M": (30, 576, 9, 3, 1536),
    "1.7B": (24, 2048, 32, 32, 8192),
}


def random_q4(rng, rows, columns):
    """Random Q4_0 blocks: a scale that keeps activations near 1, and 16 bytes of noise."""
    blocks = np.empty((rows, columns // 32, 18), dtype=np.uint8)
    blocks[..., :2] = np.array([columns**-0.5 / 4.6], dtype=np.float16).view(np.uint8)
    blocks[..., 2:] = rng.integers(0, 256, size=(rows, columns // 32, 16), dtype=np.uint8)
    return blocks.reshape(rows, -1)


def write(path, shape, seed, n_vocab):
    """Write a llama-architecture GGUF with random Q4_0 weights and a vocabulary of numbered words."""
    n_layer, n_embd, n_head, n_kv, n_ff = shape
    rng = np.random.default_rng(seed)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_head_count(n_head)
    writer.add_head_count_kv(n_kv)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["<end>", *(f"w{i}" for i in range(1, n_vocab))])
    writer.add_token_types([gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (n_vocab - 1))
    writer.add_token_merges(["w 1"])
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)
    kv = n_kv * (n_embd // n_head)
    matrices = {
        "attn_q": (n_embd, n_embd),
        "attn_k": (kv, n_embd),
        "attn_v": (kv, n_embd),
        "attn_output": (n_embd, n_embd),
    }
    matrices |= {"ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}

    def matrix(name, rows, columns):
        writer.add_tensor(
            name, random_q4(rng, rows, columns), raw_dtype=gguf.GGMLQuantizationType.Q4_0
        )

    matrix("token_embd.weight", n_vocab, n_embd)
    for i in range(n_layer):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(n_embd, dtype=np.float32))
        for name, (rows, columns) in matrices.items():
            matrix(f"blk.{i}.{name}.weight", rows, columns)
    writer.add_tensor("output_norm.weight", np.ones(n_embd, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.replace(path)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=cache_folder() / "random")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=49152)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    files = {name: args.folder / f"random-{name}-{args.vocab}-Q4_0.gguf" for name in SHAPES}
    for seed, (name, path) in enumerate(files.items()):
        if not path.exists():
            write(path, SHAPES[name], seed, args.vocab)
    chains = {
        "greedy": Sampling(temperature=0.0, max_tokens=args.tokens),
        "T 0.8, top-k 40": Sampling(seed=1, max_tokens=args.tokens),
    }
    chains["T 0.8, no filter"] = Sampling(seed=1, top_k=0, top_p=1.0, max_tokens=args.tokens)
    print("chain             k  draft verify Python  tok/s  Python ms a round")
    with gguf_spec.load(files["1.7B"], files["135M"], n_ctx=1024) as llm:
        llm.generate_tokens([5, 6, 7], Sampling(temperature=0.0, max_tokens=4))  # warm
        for name, chain in chains.items():
            for k in (0, 4):
                s = llm.generate_tokens(
                    list(range(100, 132)), chain, speculation=Speculation(k, adaptive=False)
                ).stats
                busy = s.draft_s + s.verify_s + s.other_s
                shares = " ".join(
                    f"{part / busy:6.1%}" for part in (s.draft_s, s.verify_s, s.other_s)
                )
                print(
                    f"{name:16} {k:2} {shares} {s.tokens_per_s:6.1f} {1000 * s.other_s / s.rounds:8.2f}"
                )


if __name__ == "__main__":
    main()
