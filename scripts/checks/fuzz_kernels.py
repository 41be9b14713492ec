"""Random operations with the own kernels, against float64 and llama.cpp's kernels, within their work memory.

    .venv/bin/python scripts/checks/fuzz_kernels.py [--minutes 5] [--seed 0]

Attention: random shapes, strides, types, masks, windows, sinks, biases and caps. Products: types, sizes, widths and experts. Threads that are
planned and that run differ. Each row of a wide operation has the bits of the row alone. Half of the products are in tiles: of the processor, or in
software (tests/kernels/tiles_in_software.h) where it has AVX-512 VNNI alone. GGUF_SPEC_KERNELS_LIBRARY names another library, such as one
with sanitisers.
"""

import argparse
import ctypes
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from gguf_spec.llama import own_kernels
from tests.kernels import graphs
from tests.kernels.graphs import (
    AMX,
    BF16,
    F16,
    F32,
    IN_SOFTWARE,
    Q8_0,
    TYPES,
    Weights,
    kernels,
    quantized,
)
from tests.kernels.test_attention import HIDDEN, exact

# offsets of the sizes and strides of a tensor
_SIZES, _STRIDES = 16, 48


def strided(random, context, kind, x):
    """Put keys or values as a cache has them: heads side by side in each cell, or cells of a larger cache."""
    put, (_, heads, cells, length) = graphs.put, x.shape
    if len(x) > 1 or random.random() < 0.3:
        return put(context, kind, x.shape[::-1], as_type(x, kind))
    more = int(random.integers(0, 3))
    wide = random.standard_normal((1, heads, cells + more, length)).astype(np.float32)
    wide[:, :, :cells] = x
    side_by_side = random.random() < 0.5
    wide = wide.transpose(0, 2, 1, 3) if side_by_side else wide
    tensor = put(context, kind, wide.shape[::-1], as_type(np.ascontiguousarray(wide), kind))
    sizes = (ctypes.c_int64 * 4).from_address(tensor + _SIZES)
    strides = (ctypes.c_size_t * 4).from_address(tensor + _STRIDES)
    if side_by_side:
        strides[1], strides[2] = strides[2], strides[1]
    sizes[1], sizes[2] = cells, heads
    return tensor


def as_type(x, kind):
    return x.astype(np.float16) if kind == F16 else quantized(x.reshape(-1, x.shape[3]), kind)


def fuzz_attention(random):
    def one_of(*values):
        return values[int(random.integers(len(values)))]

    kv_heads, rows, streams = (
        one_of(1, 2, 3, 4, 8, 16),
        one_of(1, 1, 2, 3, 5, 8, 17, 33, 70),
        one_of(1, 1, 1, 2),
    )
    heads, cells = kv_heads * one_of(1, 1, 2, 3, 6), int(2 ** random.uniform(0, 11.5)) + rows
    key, value = (32 * int(random.integers(1, 10)) for _ in range(2))
    if heads * rows * cells * (key + value) * streams > 1 << 27:
        return None
    kinds = one_of((F16, F16), (F16, F16), (F32, F32), (BF16, BF16), (Q8_0, Q8_0), (Q8_0, F16))
    scale = float(one_of(0.125, 0.05, 1.0))
    options = {"bias": one_of(0.0, 0.0, 8.0), "cap": one_of(0.0, 0.0, 30.0)}
    sinks = random.standard_normal(heads) * 4 if random.random() < 0.3 else None
    q, k, v = (
        random.standard_normal(shape).astype(np.float32)
        for shape in (
            (streams, heads, rows, key),
            (streams, kv_heads, cells, key),
            (streams, kv_heads, cells, value),
        )
    )
    mask = np.zeros((streams, 1, rows, cells), np.float16)
    how = one_of("causal", "window", "random", "rows", "none")
    at, past = np.arange(cells), cells - rows + np.arange(rows)[:, None]
    if how in ("causal", "window"):
        mask[:, :, at > past] = HIDDEN
    if how == "window":
        mask[:, :, at + int(random.integers(1, 600)) < past] = HIDDEN
    if how in ("random", "rows"):
        mask[random.random(mask.shape) < one_of(0.1, 0.9, 0.999)] = HIDDEN
    if how == "rows":
        mask[:, :, :: int(random.integers(1, 4))] = HIDDEN
    if random.random() < 0.3:
        seen = mask == 0
        mask[seen] = -random.integers(0, 9, int(seen.sum())).astype(np.float16)
    mask = None if how == "none" and not options["bias"] else mask
    about = (kinds, q.shape, k.shape, value, how, scale, options, sinks is not None)

    def attended(first, n, threads, planned=0):
        g = graphs.ggml()
        n_bytes = 8 * sum(x.nbytes for x in (q, k, v, mask) if x is not None) + (64 << 20)
        with graphs._context(n_bytes) as context:
            few = np.ascontiguousarray(q[:, :, first : first + n])
            inputs = [graphs.put(context, F32, few.shape[::-1], few)]
            inputs += [
                strided(np.random.default_rng(1), context, kind, x)
                for kind, x in zip(kinds, (k, v), strict=True)
            ]
            some = None if mask is None else np.ascontiguousarray(mask[:, :, first : first + n])
            inputs.append(
                None if some is None else graphs.put(context, F16, some.shape[::-1], some)
            )
            result = g.attention(context, *inputs, scale, *options.values())
            if sinks is not None:
                g.add_sinks(
                    result, graphs.put(context, F32, (heads, 1, 1, 1), sinks.astype(np.float32))
                )
            return graphs.computed(context, result, (streams, n, heads, value), threads, planned)

    with kernels(2):
        planned, running = random.integers(1, 20, 2).tolist()
        found = attended(0, rows, running, planned)
        row = int(random.integers(rows))
        alone = attended(row, 1, 1)
    assert np.array_equal(alone, found[:, row : row + 1]), ("bits", about)
    right = exact(q, k, v, mask, kinds, scale, sinks=sinks, **options)
    off = np.abs(found - right).max()
    assert off < 2e-4 * max(1.0, np.abs(right).max()), (off, about)
    return about


@cache
def set_with_tiles():
    """Return the set of instructions with tiles that products can use here; None if there is none."""
    for one in (AMX, IN_SOFTWARE):
        try:
            with kernels(1, one):
                return one
        except pytest.skip.Exception:
            continue
    return None


def fuzz_product(random):
    name = str(random.choice(list(TYPES)))
    # more than a kernel with tiles unpacks at once: 8 superblocks, 512 rows, 128 columns
    k, columns = 256 * int(random.integers(1, 12)), int(random.integers(1, 140))
    n, n_matrices = int(2 ** random.uniform(0, 9.2)), int(random.choice([1, 1, 3, 8]))
    repacked = graphs.is_repacked(name) and random.random() < 0.5
    if repacked:
        columns = 8 * -(-columns // 8)
    tiles_from = int(random.choice([0, 2]))
    w, x = (
        random.standard_normal(shape).astype(np.float32)
        for shape in ((n_matrices * columns, k), (n, k))
    )
    weights = Weights(quantized(w, TYPES[name]), TYPES[name], k, columns, repacked, n_matrices)
    ids = None
    if n_matrices > 1:
        used = int(random.integers(1, n_matrices + 1))
        ids, x = np.array([random.permutation(n_matrices)[:used] for _ in range(n)]), x[:, None]
        if random.random() < 0.1:
            ids[:] = ids[0, 0]  # a token may name an expert twice
    row, about = int(random.integers(n)), (name, repacked, k, columns, n, n_matrices, tiles_from)
    some = None if ids is None else ids[row : row + 1]
    planned, running = random.integers(1, 20, 2).tolist()
    with kernels(1, set_with_tiles() if tiles_from else None):
        own_kernels.library().gguf_spec_kernels_tiles_from(tiles_from)
        found, alone = (
            weights.product(x, running, ids, planned=planned),
            weights.product(x[row : row + 1], 1, some),
        )
    with kernels(0):
        stock = weights.product(x[row : row + 1], 1, some)
    assert np.array_equal(alone[0], found[row]), ("bits", about)
    assert np.abs(alone - stock).max() < 1e-4 * np.abs(stock).max(), about
    return about


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    end, seed, n = time.monotonic() + 60 * args.minutes, args.seed, 0
    while time.monotonic() < end:
        random = np.random.default_rng(seed)
        try:
            n += (fuzz_attention, fuzz_product)[seed % 2](random) is not None
        except AssertionError as error:
            print(f"seed {seed}: {error}")
            return 1
        seed += 1
    print(f"{n} operations, seeds {args.seed} to {seed - 1}: no fault.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
