"""Self-tests that probes run in child processes, as llama.cpp may end the process (`llama.probe`).

`python -m gguf_spec.llama.selftest TEST ARGUMENT...` writes the result as JSON. Without arguments
the kernels are tested and the results kept.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..arrays import Logits
from ..errors import GgufSpecError
from ..gguf.adapters import read_projector
from ..gguf.heads import target_layers
from ..gguf.validation import ModelFile
from ..images import check_image
from ..registry.download import path as local
from ..registry.resolve import resolve
from . import own_kernels
from .backend import offloads, start_backend
from .bindings import C, Tensors, attention, call
from .context import Context
from .head import open_head
from .native import Native
from .options import NONE, ContextOptions, Placement
from .vision import ImageChunk, Projector

# rows of an operation, and threads that compute it
_WIDTHS = ((2, 2), (3, 1), (5, 1), (8, 2), (9, 1), (16, 1), (17, 2), (17, 1), (33, 1))
_MOST = 33
# Columns and length of the tested matrices: whole and partial groups of columns and blocks.
_SIZES = ((72, 512), (24, 256), (16, 2304))
# Pixels of a side of the test image of projectors.
_SIDE = 64
# Largest accepted difference from llama.cpp's kernels, relative to the root mean square of a row.
# Sums in another order move it by 5e-6; some builds round activations to 16 bits.
_MOST_OFF = 0.005
# number of matrices, and of those that a row uses, in a mixture of experts
_EXPERTS, _USED = 4, 2
# ggml types of caches with an own kernel, F16, Q8_0 and BF16, and the tested lengths of their heads
_CACHES, _LENGTHS = (1, 8, 30), (64, 128)
# query heads, key-value heads, and cached positions of the tested attention
_HEADS, _KV_HEADS, _CELLS = 4, 2, 576
# largest slope of ALiBi and soft cap of the tested attention; 0 for none
_VARIANTS = ((0.0, 0.0), (8.0, 0.0), (0.0, 30.0))
# ggml types
_F32, _F16, _I32 = 0, 1, 26
# offset of the field `extra` of ggml's tensor; it is null if a type has no repacked form here
_EXTRA = 320


class Operation(NamedTuple):
    """An operation to test.

    Attributes:
        name: What it is, for the message of a failure.
        is_attention: Whether it is attention, or a product.
        rows: Computes rows: from a first one on, their number, with a number of threads.
        reference: The same with more exact inputs.
    """

    name: str
    is_attention: bool
    rows: Callable[[int, int, int], Logits]
    reference: Callable[[int, int, int], Logits]


def problem_of(operation: Operation) -> str:
    """Return the fault of an operation; empty if there is none."""
    computed = own_kernels.n_computed
    with own_kernels.switched_off():
        stock = np.concatenate([operation.reference(i, 1, 1) for i in range(_MOST)])
    before = computed(operation.is_attention)
    alone = np.concatenate([operation.rows(i, 1, 1) for i in range(_MOST)])
    if computed(operation.is_attention) < before + _MOST:
        return f"{operation.name} is not computed"
    scale = np.sqrt(np.mean(stock**2, axis=1, keepdims=True))
    moved = float(np.max(np.abs(alone - stock) / scale))
    if not moved <= _MOST_OFF:
        return f"{operation.name} is off by {moved:.2g}"
    for width, threads in _WIDTHS:
        if not np.array_equal(operation.rows(0, width, threads), alone[:width]):
            return f"{operation.name} has other bits in passes of {width} rows"
    return ""


def operations() -> Iterator[Operation]:
    """Yield all operations to test. Each may be computed until the next one is taken."""
    random = np.random.default_rng(1)
    for kind in sorted(own_kernels.TYPES):
        for n_columns, length in _SIZES:
            yield from _products(random, kind, n_columns, length)
    for kind in _CACHES:
        for length in _LENGTHS:
            yield from _attentions(random, kind, length)


def with_tiles() -> Iterator[Operation]:
    """Yield the products again, with tiles of AMX from two rows on, where there are tiles."""
    if own_kernels.tiles() != 1:
        return
    own_kernels.library().gguf_spec_kernels_tiles_from(2)
    try:
        for one in operations():
            if not one.is_attention:
                yield one._replace(name=f"{one.name}, with tiles")
    finally:
        own_kernels.library().gguf_spec_kernels_tiles_from(0)


def _products(
    random: np.random.Generator, kind: int, n_columns: int, length: int
) -> Iterator[Operation]:
    """Yield products with plain weights, with experts, and with repacked weights if they exist."""
    tensors, name = Tensors(1 << 22), type_name(kind)
    # rows of very different sizes
    scales = np.float32(10.0) ** random.integers(-3, 3, (_MOST, 1)).astype(np.float32)
    inputs = scales * random.standard_normal((_MOST, length), dtype=np.float32)
    shape, data = (length, n_columns), _weights(random, kind, _EXPERTS * n_columns, length)
    first = data[: len(data) // _EXPERTS]
    for what, sizes, some, n_used in (
        ("a product with", shape, first, 0),
        ("a product with experts of", (*shape, _EXPERTS), data, _USED),
    ):
        weights = exact = tensors.new(kind, sizes, some)
        if kind == _F16:  # llama.cpp adds its products in 16 bits where the processor can
            numbers = np.frombuffer(some, np.float16).astype(np.float32)
            exact = tensors.new(_F32, sizes, numbers.tobytes())
        yield _product(f"{what} {name}", weights, n_columns, inputs, n_used, exact)
    without_memory = Tensors(1 << 12, no_alloc=True)
    packed = without_memory.new(kind, shape)
    if _repack(without_memory, packed, first):
        yield _product(f"a product with repacked {name}", packed, n_columns, inputs)


def _product(
    name: str, weights: int, n_columns: int, inputs: Logits, n_used: int = 0, exact: int = 0
) -> Operation:
    """Return a product; the reference is that with the weights `exact`, if they are given."""

    def multiplied(weights: int, start: int, n: int, threads: int) -> Logits:
        tensors, some = Tensors(1 << 21), inputs[start : start + n]
        length = some.shape[1]
        if not n_used:
            given = tensors.new(_F32, (length, n), some.tobytes())
            result = call("ggml_mul_mat", tensors.context, weights, given)
        else:
            ids = [[i % _EXPERTS, (i // 2 + 1 + i) % _EXPERTS] for i in range(start, start + n)]
            given = tensors.new(_F32, (length, 1, n), some.tobytes())
            used = tensors.new(_I32, (n_used, n), np.array(ids, dtype=np.int32).tobytes())
            result = call("ggml_mul_mat_id", tensors.context, weights, given, used)
        return tensors.compute(result, n * max(1, n_used) * n_columns, threads).reshape(n, -1)

    return Operation(
        name, False, partial(multiplied, weights), partial(multiplied, exact or weights)
    )


def _attentions(random: np.random.Generator, kind: int, length: int) -> Iterator[Operation]:
    """Yield attention with one cache; the reference reads its numbers in 32 bits."""
    tensors, shape = Tensors(1 << 23), (length, _CELLS, _KV_HEADS)
    data = [_weights(random, kind, _CELLS * _KV_HEADS, length) for _ in range(2)]
    cache = [tensors.new(kind, shape, one) for one in data]
    copies = []
    for one in cache:
        numbers = tensors.compute(call("ggml_cast", tensors.context, one, _F32), math.prod(shape))
        copies.append(tensors.new(_F32, shape, numbers.tobytes()))
    queries = random.standard_normal((_HEADS, _MOST, length), dtype=np.float32)
    for variant in _VARIANTS:
        name = f"attention with a cache of {type_name(kind)}"
        rows, reference = (partial(_attended, queries, two, variant) for two in (cache, copies))
        yield Operation(name, True, rows, reference)


def _attended(
    queries: Logits,
    cache: Sequence[int],
    variant: Sequence[float],
    start: int,
    n: int,
    threads: int,
) -> Logits:
    """Return rows of attention; each sees all cached positions but those of later rows."""
    tensors, length = Tensors(1 << 23), queries.shape[2]
    last = _CELLS - _MOST + np.arange(start, start + n)
    mask = np.where(np.arange(_CELLS) > last[:, None], -np.inf, 0.0).astype(np.float16)
    query = tensors.new(_F32, (length, n, _HEADS), queries[:, start : start + n].tobytes())
    inputs = (query, *cache, tensors.new(_F16, (_CELLS, n), mask.tobytes()))
    result = attention(tensors, inputs, 1 / math.sqrt(length), *variant)
    if variant[1]:  # with attention sinks, too
        sinks = tensors.new(_F32, (_HEADS,), np.linspace(-1, 1, _HEADS, dtype="<f4").tobytes())
        call("ggml_flash_attn_ext_add_sinks", result, sinks, result=None)
    return tensors.compute(result, n * _HEADS * length, threads).reshape(n, -1)


def _weights(random: np.random.Generator, kind: int, n_rows: int, length: int) -> bytes:
    """Return random rows of a ggml type."""
    numbers = random.standard_normal((n_rows, length), dtype=np.float32)
    row_bytes = call("ggml_row_size", kind, ctypes.c_int64(length), result=ctypes.c_size_t)
    data = ctypes.create_string_buffer(n_rows * row_bytes)
    sizes = map(ctypes.c_int64, (0, n_rows, length))
    source, target = numbers.ctypes.data, ctypes.addressof(data)
    call("ggml_quantize_chunk", kind, source, target, *sizes, None, result=ctypes.c_size_t)
    return data.raw[: n_rows * row_bytes]


def _repack(tensors: Tensors, tensor: int, data: bytes) -> bool:
    """Give a tensor repacked contents; return False if its type has no such form here."""
    try:
        kind = call("_Z35ggml_backend_cpu_repack_buffer_typev")
    except AttributeError:  # this build repacks no weights
        return False
    call("ggml_backend_alloc_ctx_tensors_from_buft", tensors.context, kind)
    if not ctypes.c_void_p.from_address(tensor + _EXTRA).value:
        return False
    sizes = map(ctypes.c_size_t, (0, len(data)))
    call("ggml_backend_tensor_set", tensor, ctypes.c_char_p(data), *sizes, result=None)
    return True


def type_name(kind: int) -> str:
    return str(call("ggml_type_name", kind, result=ctypes.c_char_p).decode())


# ---- the tests


def kernels(wanted: str) -> str:
    """Return why the own kernels cannot be used; empty if they can.

    Each kernel is compared with llama.cpp's for one row, up to rounding, and rows of wider
    operations with single rows, to the last bit. Operations that the library does not take are
    failures, too. All operations are single ones with random numbers.
    """
    own_kernels.keep_threads()
    if refused := own_kernels.enter(wanted).reason:
        return refused
    tested = chain(operations(), with_tiles())
    problem = next(filter(None, map(problem_of, tested)), "")
    return problem and f"the self-test failed: {problem}"


def repacking() -> float:
    """Return the largest change of a logit through repacked weights.

    Compares batches of 1 and of 8 tokens with both bundled models.
    """
    worst = 0.0
    for name in ("tales", "tales-draft"):
        path = local(resolve(name))
        rows = []
        for extra_bufts in (False, True):
            # one thread: more would wait for each other on a busy machine
            # layers on a GPU would not use the kernels
            placement = Placement((NONE,), kernels="stock")
            options = ContextOptions(64, 1, extra_bufts=extra_bufts, placement=placement)
            model = Context(path, options).sequences[0]
            tokens = list(range(100, 109))
            one = [model.logits([token], 1).copy() for token in tokens[:8]]
            model.rollback(0)
            rows.append(np.concatenate([*one, model.logits(tokens[:8], 8).copy()]))
            model.close()
        difference = float(np.max(np.abs(rows[0] - rows[1])))
        worst = max(worst, difference if np.isfinite(difference) else float("inf"))
    return worst


def head(target: str, path: str = "") -> bool:
    """Return whether a prediction head proposes tokens.

    Args:
        path: The head's own file; empty if it is in that of the target.
    """
    options = ContextOptions(n_ctx=64, threads=1, gpu_layers=0, extra_bufts=False)
    file = ModelFile(Path(path)) if path else None
    layers = target_layers(file.header) if file else ()
    with_head = replace(options, head="file" if path else "own", head_layers=layers)
    model = Context(Path(target), with_head).sequences[0]
    one = open_head(model, options.for_draft(), file)
    tokens = [model.start % model.n_vocab] * 4
    model.read(tokens)
    rows = [one.logits(tokens, 1).copy()]
    rows += [one.logits(tokens[:1], 1).copy() for _ in range(2) if one.n_heads == 1]
    # an EAGLE-3 head may have some tokens only
    return bool(np.isfinite([row.max() for row in rows]).all())


def projector(path: str, model: str) -> str:
    """Encode a grey image; return the reason if that is not possible, otherwise nothing."""
    params = C.llama_model_default_params()
    params.vocab_only = True
    native = Native()
    start_backend()
    if not native.load(model.encode(), params):
        return "its model cannot be loaded"
    try:
        loaded = Projector(read_projector(Path(path)), native, threads=1, gpu=False)
        # a grey BMP image
        pixels = bytes([128]) * (3 * _SIDE * _SIDE)
        about = (40, _SIDE, _SIDE, 1, 24, 0, len(pixels), 2835, 2835, 0, 0)
        head = struct.pack("<IHHIIiiHHIIiiII", 54 + len(pixels), 0, 0, 54, *about)
        for chunk in loaded.tokenize(check_image(b"BM" + head + pixels)):
            if isinstance(chunk, ImageChunk):
                loaded.compute(chunk)
    except GgufSpecError as error:
        return error.message.partition(": ")[2] or error.message
    return ""


def gpu(layers: str, *devices: str) -> str:
    """Compute with layers on the GPUs; return the error that this raises, otherwise nothing."""
    placement = Placement(devices, kernels="stock")
    options = ContextOptions(64, 1, gpu_layers=int(layers), placement=placement, extra_bufts=False)
    try:
        if offloads():
            Context(local(resolve("tales-draft")), options).sequences[0].logits([100, 101], 2)
    except GgufSpecError as error:
        return error.message
    return ""


def main(test: str = "", *arguments: str) -> int:
    """Run a test and print its result; without a test, test all kernels. Return the exit code."""
    if not test:
        own_kernels.start()
        return 0 if own_kernels.extra_bufts_work() else 1
    tests: dict[str, Callable[..., object]] = {
        one.__name__: one for one in (kernels, repacking, head, projector, gpu)
    }
    sys.stdout.write(f"{json.dumps(tests[test](*arguments))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
