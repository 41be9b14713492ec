"""Make a GGUF with the cost of a real model and the text of a bundled one, without a download.

    .venv/bin/python scripts/models/grow_gguf.py 1.7B                      # the bundled target in SmolLM2-1.7B's shape
    .venv/bin/python scripts/models/grow_gguf.py 135M --from draft         # its draft in SmolLM2-135M's
    .venv/bin/python scripts/models/grow_gguf.py 135M --random             # a draft that is never right
    .venv/bin/python scripts/models/grow_gguf.py 0.5B --from draft --vocab 151936
    .venv/bin/python scripts/models/grow_gguf.py 1.7B --layers 30 --from SmolLM2-135M-Instruct.Q4_1.gguf --precise --type F16

Time depends on the shape of a model and its text on the weights, so a small model embedded in a large one has both. What it computes stays
the same (Chen et al. 2015, Net2Net): new channels, heads and feed-forward units are zero, and so is what new layers write. Key-value heads that
several queries share are copied where the shape has fewer queries to a key-value head. Prints the path of the file.

A vocabulary smaller than `--vocab` is filled up with tokens that no text contains and that are never chosen; this takes a channel with a constant
and an output matrix of its own. A vocabulary of the right size stays as it is, tied embeddings stay tied, and all other metadata stays.
"""

import argparse
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind

from gguf_spec.system.files import cache_folder

BUNDLED = Path(__file__).resolve().parents[2] / "gguf_spec" / "data" / "tales"
SOURCES = {"target": BUNDLED / "tales-target-Q8_0.gguf", "draft": BUNDLED / "tales-draft-Q4_0.gguf"}
TYPES = ("Q4_0", "Q8_0", "F16", "F32")
BLOCK = 32  # weights that share a scale; the last block of a width is kept for the constant channel
PAD_LOGIT = 4096.0  # a padding token's logit is minus this over the root mean square of the last layer: -600 and less in the bundled pair


@dataclass(frozen=True)
class Shape:
    """Sizes of a llama-architecture model."""

    n_layer: int
    n_embd: int
    n_head: int
    n_kv: int
    n_ff: int

    @property
    def head(self) -> int:
        return self.n_embd // self.n_head


SHAPES = {
    "135M": Shape(30, 576, 9, 3, 1536),  # SmolLM2
    "360M": Shape(32, 960, 15, 5, 2560),
    "1.7B": Shape(24, 2048, 32, 32, 8192),
    "0.5B": Shape(24, 896, 14, 2, 4864),  # Qwen2.5
    "7B": Shape(28, 3584, 28, 4, 18944),
}


# ---- the small model -------------------------------------------------------------------------------------------------------------


class Small:
    """A llama-architecture GGUF: its metadata, its shape, and its weights as float32."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(path)
        self.path, self.fields = (
            path,
            {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")},
        )
        if self.value("general.architecture") != "llama":
            raise ValueError(
                f"{path.name} is of the architecture {self.value('general.architecture')}; only llama can grow"
            )
        self.tensors = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            for t in reader.tensors
        }
        n_head = self.value("llama.attention.head_count")
        self.shape = Shape(
            self.value("llama.block_count"),
            self.value("llama.embedding_length"),
            n_head,
            self.value("llama.attention.head_count_kv", n_head),
            self.value("llama.feed_forward_length"),
        )
        self.eps = self.value("llama.attention.layer_norm_rms_epsilon")
        self.n_vocab = len(self.tensors["token_embd.weight"])
        s, known = self.shape, {"token_embd.weight", "output_norm.weight", "output.weight"}
        known |= {
            f"blk.{i}.{part}.weight"
            for i in range(s.n_layer)
            for part in (*matrices(s), "attn_norm", "ffn_norm")
        }
        if unknown := sorted(self.tensors.keys() - known):
            raise ValueError(f"{path.name} has tensors that cannot grow: {', '.join(unknown[:4])}")

    def value(self, key: str, default=None):
        return self.fields[key].contents() if key in self.fields else default


def matrices(s: Shape) -> dict[str, tuple[int, int]]:
    """Return rows and columns of the matrices of a layer."""
    kv = s.n_kv * s.head
    sizes = {
        "attn_q": (s.n_embd, s.n_embd),
        "attn_k": (kv, s.n_embd),
        "attn_v": (kv, s.n_embd),
        "attn_output": (s.n_embd, s.n_embd),
    }
    return sizes | {
        "ffn_gate": (s.n_ff, s.n_embd),
        "ffn_up": (s.n_ff, s.n_embd),
        "ffn_down": (s.n_embd, s.n_ff),
    }


def kv_copies(a: Shape, s: Shape) -> int:
    """Return the number of copies of a small key-value head that its queries need in the large shape."""
    return -(-(a.n_head // a.n_kv) // (s.n_head // s.n_kv))


def check_fits(small: Small, s: Shape, n_vocab: int, random: bool, copies: int) -> None:
    if n_vocab < small.n_vocab:
        raise ValueError(f"{small.path.name} has {small.n_vocab:,} tokens, more than {n_vocab:,}.")
    if s.n_embd % BLOCK or s.n_ff % BLOCK:
        raise ValueError(
            f"{s.n_embd} channels and {s.n_ff} feed-forward units: both must be multiples of {BLOCK}."
        )
    if random:
        return
    a = small.shape
    n_embd = copies * a.n_embd + (BLOCK if n_vocab > small.n_vocab else 0)
    sizes = {
        "layers": (a.n_layer, s.n_layer),
        "channels": (n_embd, s.n_embd),
        "feed-forward units": (copies * a.n_ff, s.n_ff),
    }
    sizes["key-value heads"] = (copies * a.n_kv * kv_copies(a, s), s.n_kv)
    for what, (needed, room) in sizes.items():
        if needed > room:
            raise ValueError(
                f"{small.path.name} needs {needed:,} {what}, and the shape has {room:,}: take a smaller model, such as --from draft."
            )
    if s.head % a.head:
        raise ValueError(
            f"{small.path.name} has heads of {a.head}; they fit in a multiple of that, not in {s.head}."
        )
    if copies > 1 and any(n % BLOCK for n in (a.n_embd, a.head, a.n_ff)):
        raise ValueError(
            f"{small.path.name} cannot be split: its widths are no multiples of {BLOCK}."
        )


# ---- tensors, as bytes -----------------------------------------------------------------------------------------------------------


def quantized(array: np.ndarray, kind: Kind) -> np.ndarray:
    return np.ascontiguousarray(gguf.quants.quantize(array.astype(np.float32), kind)).view(np.uint8)


def n_bytes(columns: int, kind: Kind) -> int:
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    return columns // weights * size


def zeros(rows: int, columns: int, kind: Kind) -> np.ndarray:
    """Return zero bytes, which are zero weights in every type here."""
    return np.zeros((rows, n_bytes(columns, kind)), np.uint8)


def last_block(first: float, kind: Kind) -> np.ndarray:
    """Return the bytes of a block that holds one weight and zeros."""
    return quantized(np.array([[first] + [0.0] * (BLOCK - 1)]), kind)[0]


def noise(rng: np.random.Generator, rows: int, columns: int, kind: Kind, size: float) -> np.ndarray:
    """Return random weights of standard deviation `size`: bytes of noise under one scale where the type has scales.

    Blocks have either sign, for -8 to 7 are -0.5 on average: enough to make all rows alike, and one token the best everywhere.
    """
    if kind in (Kind.F16, Kind.F32):
        weights = rng.standard_normal((rows, columns), np.float32) * np.float32(size)
        return weights.astype(np.float16 if kind == Kind.F16 else np.float32).view(np.uint8)
    width = {Kind.Q4_0: 16, Kind.Q8_0: BLOCK}[kind]
    blocks = np.empty((rows, columns // BLOCK, 2 + width), np.uint8)
    spread = (
        ((16 if kind == Kind.Q4_0 else 256) ** 2 - 1) / 12
    ) ** 0.5  # of whole numbers, all as likely
    blocks[..., :2] = (
        np.float16(size / spread)
        * rng.choice(np.array([1, -1], np.float16), (*blocks.shape[:2], 1))
    ).view(np.uint8)
    blocks[..., 2:] = (
        rng.integers(0, 1 << 64, rows * columns // BLOCK * width // 8, np.uint64)
        .view(np.uint8)
        .reshape(blocks[..., 2:].shape)
    )
    return blocks.reshape(rows, -1)


def placed(
    small: np.ndarray, rows: np.ndarray, columns: np.ndarray, size: tuple[int, int], kind: Kind
) -> np.ndarray:
    """Return zeros of `size` with a small matrix in the given rows and columns."""
    wide = np.zeros((len(rows), size[1]), np.float32)
    wide[:, columns] = small
    out = zeros(*size, kind)
    out[rows] = quantized(wide, kind)
    return out


def head_places(a: Shape, s: Shape, queries: bool, rotated: bool) -> np.ndarray:
    """Return the rows of the small heads in the large matrix.

    Key-value head i becomes the heads i * copies to (i + 1) * copies - 1, and its queries fill their groups in order. Neighbouring channels of a
    head turn as a pair, pair i by base^(-2i / head): in a head m times as wide the same speeds are at every m-th pair.
    """
    copies, per_kv, wide_per_kv = kv_copies(a, s), a.n_head // a.n_kv, s.n_head // s.n_kv
    heads = (
        [i // per_kv * copies * wide_per_kv + i % per_kv for i in range(a.n_head)]
        if queries
        else list(range(a.n_kv * copies))
    )
    channel = np.arange(a.head)
    if rotated:
        channel = channel // 2 * 2 * (s.head // a.head) + channel % 2
    return (np.array(heads)[:, None] * s.head + channel).ravel()


def split(weights: np.ndarray) -> list[np.ndarray]:
    """Return two matrices that add up to `weights`: one that Q4_0 holds without loss, and the rest."""
    coarse = gguf.quants.dequantize(gguf.quants.quantize(weights, Kind.Q4_0), Kind.Q4_0).astype(
        np.float32
    )
    return [coarse, weights - coarse]


# ---- the large model -------------------------------------------------------------------------------------------------------------

Tensor = tuple[
    str, tuple[int, ...], Kind, Callable[[], np.ndarray]
]  # the last makes its bytes, when they are written


class Grown:
    """A small model in a larger shape; with `random` only its vocabulary, and weights of noise.

    With `precise` every channel, head and feed-forward unit is there twice. The two copies of an input are equal, so a matrix can be spread over
    them as a sum of two, and four bits a weight lose about as little as eight do elsewhere. A small model needs that to write sense in Q4_0.
    """

    def __init__(
        self,
        small: Small,
        shape: Shape,
        n_vocab: int,
        kind: Kind,
        random: bool,
        precise: bool = False,
    ):
        self.copies = 2 if precise else 1
        check_fits(small, shape, n_vocab, random, self.copies)
        self.small, self.shape, self.n_vocab, self.kind, self.random = (
            small,
            shape,
            n_vocab,
            kind,
            random,
        )
        # As llama-quantize does for widths like SmolLM2's and Qwen2.5-0.5B's, and for the embedding too: it costs nothing, and helps the text.
        self.outer = Kind.Q8_0 if kind == Kind.Q4_0 else kind
        self.rng = np.random.default_rng(0)
        self.padded = random or n_vocab > small.n_vocab
        n, d = self.copies * small.shape.n_embd, shape.n_embd
        self.spread = (
            1.0 if random else (n / d) ** 0.5
        )  # empty channels make the root mean square smaller
        # With padding tokens, each embedding has the same constant in a channel of its own, which no layer writes to. It adds to the mean square
        # as epsilon does, and half of epsilon is taken off for it. A power of two loses nothing in a block of its own.
        self.constant = 1.0 if random else 0.0
        if self.padded and not random:
            self.constant = 2.0 ** math.floor(math.log2((small.eps * n / 2) ** 0.5))
        self.eps = small.eps if random else (small.eps * n - self.constant**2) / d

    def tensors(self) -> Iterator[Tensor]:
        """Yield name, shape, type and maker of each tensor, in the order of the file."""
        s, outer = self.shape, self.outer
        yield "token_embd.weight", (self.n_vocab, s.n_embd), outer, self.embedding
        a = self.small.shape
        old = {} if self.random else {i * s.n_layer // a.n_layer: i for i in range(a.n_layer)}
        for i in range(s.n_layer):
            for part in ("attn_norm", "ffn_norm"):
                yield (
                    f"blk.{i}.{part}.weight",
                    (s.n_embd,),
                    Kind.F32,
                    partial(self.norm, part, old.get(i)),
                )
            for part, size in matrices(s).items():
                yield (
                    f"blk.{i}.{part}.weight",
                    size,
                    self.kind,
                    partial(self.matrix, part, size, old.get(i)),
                )
        yield "output_norm.weight", (s.n_embd,), Kind.F32, self.output_norm
        if self.padded or "output.weight" in self.small.tensors:
            yield "output.weight", (self.n_vocab, s.n_embd), outer, self.output

    def embedding(self) -> np.ndarray:
        size = (self.n_vocab, self.shape.n_embd)
        if self.random:
            out = noise(self.rng, *size, self.outer, 1.0)
        else:
            weights = np.tile(self.small.tensors["token_embd.weight"], self.copies)
            out = placed(
                weights, np.arange(len(weights)), np.arange(weights.shape[1]), size, self.outer
            )
        if self.padded:
            block = last_block(self.constant, self.outer)
            out[:, -len(block) :] = block
        return out

    def output(self) -> np.ndarray:
        size, n_text = (self.n_vocab, self.shape.n_embd), self.small.n_vocab
        if self.random:  # logits that spread over as much as a trained model's
            out = zeros(*size, self.outer)
            out[:n_text] = noise(self.rng, n_text, size[1], self.outer, 3 * size[1] ** -0.5)
        else:
            weights = np.tile(
                self.small.tensors.get("output.weight", self.small.tensors["token_embd.weight"]),
                self.copies,
            )
            out = placed(weights, np.arange(n_text), np.arange(weights.shape[1]), size, self.outer)
        if self.padded:
            block = last_block(-PAD_LOGIT, self.outer)
            out[:n_text, -len(block) :] = 0
            out[n_text:, -len(block) :] = block
        return out

    def norm(self, part: str, layer: int | None) -> np.ndarray:
        if layer is None:
            return np.full(self.shape.n_embd, self.spread, np.float32)
        return self.widened(self.small.tensors[f"blk.{layer}.{part}.weight"])

    def output_norm(self) -> np.ndarray:
        out = (
            np.ones(self.shape.n_embd, np.float32)
            if self.random
            else self.widened(self.small.tensors["output_norm.weight"] / self.copies)
        )
        if self.padded:
            out[-BLOCK:] = 0
            out[-BLOCK] = self.spread / self.constant
        return out

    def widened(self, norm: np.ndarray) -> np.ndarray:
        out = np.zeros(self.shape.n_embd, np.float32)
        out[: self.copies * len(norm)] = np.tile(norm * self.spread, self.copies)
        return out

    def matrix(self, part: str, size: tuple[int, int], layer: int | None) -> np.ndarray:
        writes = part in ("attn_output", "ffn_down")
        if layer is None:  # it is computed like any other layer
            out = (
                zeros(*size, self.kind)
                if writes and not self.random
                else noise(self.rng, *size, self.kind, size[1] ** -0.5)
            )
            if writes:
                out[-BLOCK:] = 0  # the constant channel stays what it is
            return out
        a, s, weights = (
            self.small.shape,
            self.shape,
            self.small.tensors[f"blk.{layer}.{part}.weight"],
        )
        rows, columns = (np.arange(n) for n in weights.shape)
        row_step, column_step = weights.shape  # from one copy to the next
        kv_step = a.n_kv * kv_copies(a, s) * s.head
        q_step = kv_step * (s.n_head // s.n_kv)
        if part == "attn_q":
            rows, row_step = head_places(a, s, queries=True, rotated=True), q_step
            weights = weights * (s.head / a.head) ** 0.5  # scores are divided by head^0.5
        elif part in ("attn_k", "attn_v"):
            rows, row_step = head_places(a, s, queries=False, rotated=part == "attn_k"), kv_step
            weights = (
                weights.reshape(a.n_kv, a.head, -1)
                .repeat(kv_copies(a, s), axis=0)
                .reshape(len(rows), -1)
            )
        elif part == "attn_output":
            columns, column_step = head_places(a, s, queries=True, rotated=False), q_step
        if self.copies > 1:
            weights = np.tile(np.concatenate(split(weights), axis=1), (2, 1))
            rows, columns = (
                np.concatenate([rows, rows + row_step]),
                np.concatenate([columns, columns + column_step]),
            )
        return placed(weights, rows, columns, size, self.kind)


def metadata(grown: Grown, name: str) -> dict[str, gguf.GGUFValue]:
    """Return the small model's metadata with the new sizes and the padding tokens."""
    small, s = grown.small, grown.shape
    out = {}
    for key, field in small.fields.items():
        if field.types[0] != gguf.GGUFValueType.ARRAY:
            out[key] = gguf.GGUFValue(field.contents(), field.types[0])
        elif values := field.contents():
            out[key] = gguf.GGUFValue(values, field.types[0], field.types[-1])
    n_more = grown.n_vocab - small.n_vocab
    pads = {
        "tokens": [f"<pad{i}>" for i in range(n_more)],
        "scores": [0.0] * n_more,
        "token_type": [int(gguf.TokenType.UNUSED)] * n_more,
    }
    for key, more in pads.items():
        if f"tokenizer.ggml.{key}" in out:
            out[f"tokenizer.ggml.{key}"].value += more
    kinds, file_type = (
        gguf.GGUFValueType,
        "ALL_F32" if grown.kind == Kind.F32 else f"MOSTLY_{grown.kind.name}",
    )
    sizes = {
        "block_count": s.n_layer,
        "embedding_length": s.n_embd,
        "feed_forward_length": s.n_ff,
        "vocab_size": grown.n_vocab,
    }
    sizes |= {
        "attention.head_count": s.n_head,
        "attention.head_count_kv": s.n_kv,
        "rope.dimension_count": s.head,
    }
    sizes |= {
        key: s.head
        for key in ("attention.key_length", "attention.value_length")
        if f"llama.{key}" in out
    }
    out |= {f"llama.{key}": gguf.GGUFValue(value, kinds.UINT32) for key, value in sizes.items()}
    out["llama.attention.layer_norm_rms_epsilon"] = gguf.GGUFValue(grown.eps, kinds.FLOAT32)
    out["general.file_type"] = gguf.GGUFValue(int(gguf.LlamaFileType[file_type]), kinds.UINT32)
    if grown.padded:
        out["general.name"] = gguf.GGUFValue(name, kinds.STRING)
    return out


def write(path: Path, grown: Grown) -> None:
    """Write the file tensor by tensor, so that one is in memory at a time."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    writer = gguf.GGUFWriter(part, "llama")
    writer.kv_data[0].update(metadata(grown, path.stem))
    try:
        try:
            for name, shape, kind, _ in grown.tensors():
                sized = (*shape[:-1], n_bytes(shape[-1], kind))
                writer.add_tensor_info(name, sized, np.dtype(np.uint8), math.prod(sized), kind)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for *_, make in grown.tensors():
                writer.write_tensor_data(make())
        finally:
            writer.close()
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def default_folder() -> Path:
    return cache_folder() / "grown"


def grow(
    source: Path,
    shape: str | Shape,
    n_vocab: int = 49152,
    type: str = "Q4_0",
    folder: Path | None = None,
    random: bool = False,
    force: bool = False,
    n_layer: int | None = None,
    precise: bool = False,
) -> Path:
    """Write a small model in a larger shape, unless the file is there.

    Args:
        source: A llama-architecture GGUF; the bundled ones are in `SOURCES`.
        shape: A name in `SHAPES`, or another shape.
        n_vocab: Tokens, padding included.
        type: One of `TYPES`.
        folder: Where to; the user's cache where it is not given.
        random: Only the vocabulary of `source`, and weights of noise.
        force: Write it again.
        n_layer: Layers, if not as many as the shape has.
        precise: Use the spare width to lose less to Q4_0, see `Grown`.

    Returns:
        The file.

    Raises:
        ValueError: `source` does not fit in the shape.
    """
    label = next((name for name, path in SOURCES.items() if path == source), source.stem)
    name, shape = (
        (shape, SHAPES[shape])
        if isinstance(shape, str)
        else (f"{shape.n_layer}x{shape.n_embd}", shape)
    )
    if n_layer:
        name, shape = f"{name}-{n_layer}L", replace(shape, n_layer=n_layer)
    folder = folder or default_folder()
    path = (
        folder
        / f"{'random' if random else 'precise' if precise else 'grown'}-{name}-{label}-{n_vocab}-{type}.gguf"
    )
    if force or not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(path, Grown(Small(source), shape, n_vocab, Kind[type], random, precise))
    return path


def main(words=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--from", dest="source", default="target", metavar="target|draft|FILE")
    parser.add_argument("--layers", type=int, help="layers, if not as many as the shape has")
    parser.add_argument(
        "--vocab", type=int, default=49152, help="49152 as SmolLM2 has, or 151936 as Qwen2.5"
    )
    parser.add_argument("--type", choices=TYPES, default="Q4_0")
    parser.add_argument(
        "--random", action="store_true", help="weights of noise: a draft that is never right"
    )
    parser.add_argument(
        "--precise",
        action="store_true",
        help="use the spare width so that 4 bits lose little; needs twice the small model's sizes",
    )
    parser.add_argument("--folder", type=Path, default=default_folder())
    parser.add_argument("--force", action="store_true", help="write it again")
    args = parser.parse_args(words)
    source = SOURCES.get(args.source, Path(args.source))
    try:
        print(
            grow(
                source,
                args.shape,
                args.vocab,
                args.type,
                args.folder,
                args.random,
                args.force,
                args.layers,
                args.precise,
            )
        )
    except (OSError, ValueError) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
