"""Our products against llama.cpp's single rows to the last bit, and against float64."""

import ctypes as c
import os
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from gguf_spec.llama import own_kernels
from tests.support import children, tiny

from . import graphs
from .graphs import (
    AMX,
    F16,
    F32,
    IN_SOFTWARE,
    REPACKED,
    TYPES,
    Weights,
    ggml,
    is_repacked,
    kernels,
    quantized,
)

SETS = ("avx2", "avxvnni", "avx512", "avx512vnni", AMX, IN_SOFTWARE)
# the last two have tiles: those of the processor, and of tests/kernels/tiles_in_software.h
WITH_TILES = pytest.mark.parametrize("instruction_set", SETS[-2:])
# types whose products add in llama.cpp's order: with these instruction sets, or with all
AS_STOCK = set(TYPES) - {"F32", "F16", "BF16", "Q3_K"}
KINDS = [(name, False) for name in TYPES] + [(name, True) for name in REPACKED]
# types with tiles
AS_BLOCKS = ("Q4_0", "IQ4_NL", "MXFP4")
TILED = [*((name, True) for name in AS_BLOCKS), ("Q4_K", True)]
TILED += [(name, False) for name in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")]
# what is not in tiles is the same with both sets that have them
ALL = [(*kind, one) for one in SETS for kind in (TILED if one == IN_SOFTWARE else KINDS)]
# (elements, columns): one group of eight columns and incomplete ones of 16, one block and many
SIZES = ((256, 8), (512, 40), (1280, 24))
WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 16, 17, 32, 40)


def bits(x):
    return x.view(np.int32)


def numbers(shape, seed, extreme=False):
    random = np.random.default_rng(seed)
    x = random.standard_normal(shape).astype(np.float32)
    return x * (10.0 ** random.integers(-3, 4, (shape[0], 1))).astype(np.float32) if extreme else x


@pytest.mark.few(27)
@pytest.mark.parametrize(("name", "repacked", "instruction_set"), ALL)
def test_bits_of_a_row(name, repacked, instruction_set):
    for seed, (k, columns) in enumerate(SIZES):
        w, x = numbers((columns, k), seed), numbers((40, k), seed + 9, extreme=True)
        data = quantized(w, TYPES[name])
        weights = Weights(data, TYPES[name], k, columns, repacked)
        with kernels(0):
            stock = np.concatenate([weights.product(x[i : i + 1]) for i in range(40)])
        with kernels(1, instruction_set):
            alone = np.concatenate([weights.product(x[i : i + 1]) for i in range(40)])
            for width in WIDTHS:
                assert np.array_equal(
                    bits(weights.product(x[:width], 1 + width % 3)), bits(alone[:width])
                ), width
            for threads in (2, 3, 7, 16):
                assert np.array_equal(bits(weights.product(x, threads)), bits(alone)), threads
        if name in AS_STOCK:
            assert np.array_equal(bits(alone), bits(stock))
        raw = np.frombuffer(data, np.uint8).reshape(columns, -1)
        exact = (
            x.astype(np.float64)
            @ gguf.dequantize(raw, gguf.GGMLQuantizationType[name])
            .reshape(columns, k)
            .astype(np.float64)
            .T
        )
        size = np.abs(exact).max(axis=1, keepdims=True)
        assert (np.abs(alone - exact) / size).max() < 0.04  # activations have 8 bits
        assert (np.abs(alone - stock) / size).max() < 1e-5


@pytest.mark.parametrize(("name", "repacked", "instruction_set"), ALL)
def test_random_blocks(name, repacked, instruction_set):
    """Bytes of a file may be anything: any scale, infinities and NaN among them, any code."""
    k, columns = 512, 40
    random = np.random.default_rng(5)
    n_bytes = len(quantized(np.zeros((columns, k), np.float32), TYPES[name]))
    data = random.integers(0, 256, n_bytes, np.uint8).tobytes()
    x = numbers((9, k), 3) * (10.0 ** np.arange(-12, 15, 3, dtype=np.float32))[:, None]
    x[4, 7], x[5, 8] = np.inf, np.nan
    weights = Weights(data, TYPES[name], k, columns, repacked)
    with kernels(0), np.errstate(all="ignore"):
        stock = np.concatenate([weights.product(x[i : i + 1]) for i in range(9)])
    with kernels(1, instruction_set):
        alone = np.concatenate([weights.product(x[i : i + 1]) for i in range(9)])
        together = weights.product(x, 2)
    assert np.array_equal(together, alone, equal_nan=True)
    if name in AS_STOCK:  # activations that are not finite have no defined 8-bit form
        finite = np.isfinite(x).all(1)
        assert np.array_equal(alone[finite], stock[finite], equal_nan=True)


@pytest.mark.few(11)
@pytest.mark.parametrize("instruction_set", SETS[:-2])
@pytest.mark.parametrize(("name", "repacked"), [kind for kind in KINDS if kind[0].endswith("_K")])
def test_bits_of_many_rows(name, repacked, instruction_set):
    """More rows, columns and elements than are unpacked at once; the largest sums among them."""
    k, columns = 2560, 40 if repacked else 21
    w, x = numbers((columns, k), 1), numbers((131, k), 2, extreme=True)
    x[1::3] = np.sign(x[1::3])
    x[2], x[5] = 1, -1
    data = np.frombuffer(quantized(w, TYPES[name]), np.uint8).reshape(columns, k // 256, -1).copy()
    if name == "Q4_K":  # the largest scales, with the largest and the smallest codes
        data[:2, :, 4:16] = 255
        data[0, :, 16:], data[1, :, 16:] = 255, 0
    weights = Weights(data.tobytes(), TYPES[name], k, columns, repacked)
    with kernels(1, instruction_set):
        alone = np.concatenate([weights.product(x[i : i + 1]) for i in range(len(x))])
        for width, threads in ((131, 1), (131, 2), (65, 2), (64, 1), (33, 2), (24, 1), (18, 1)):
            found = weights.product(x[-width:], threads)
            assert np.array_equal(bits(found), bits(alone[-width:])), width
            found = weights.product(x[:width], threads)
            assert np.array_equal(bits(found), bits(alone[:width])), width


@pytest.mark.few(5)
@WITH_TILES
@pytest.mark.parametrize(("name", "repacked"), TILED)
def test_bits_with_tiles(name, repacked, instruction_set):
    """More than all blocks of rows, columns and elements for which a kernel unpacks weights at once."""
    # an odd number of blocks of 32
    k, columns, n = 2592 if name in AS_BLOCKS else 2560, 136 if repacked else 133, 525
    w, x = numbers((columns, k), 1), numbers((n, k), 2, extreme=True)
    x[1::3] = np.sign(x[1::3])  # the largest sums
    weights = Weights(quantized(w, TYPES[name]), TYPES[name], k, columns, repacked)
    with kernels(1, "avx512vnni"):
        alone = weights.product(x)
    with kernels(1, instruction_set):
        for width, threads in ((525, 1), (525, 3), (256, 2), (129, 2), (64, 1), (49, 1), (33, 2)):
            found = weights.product(x[-width:], threads)
            assert np.array_equal(bits(found), bits(alone[-width:])), width


@pytest.mark.slow
@WITH_TILES
@pytest.mark.parametrize(("name", "repacked"), TILED)
def test_bits_with_tiles_at_every_width(name, repacked, instruction_set):
    k, columns = 512, 24
    w, x = numbers((columns, k), 1), numbers((257, k), 2, extreme=True)
    weights = Weights(quantized(w, TYPES[name]), TYPES[name], k, columns, repacked)
    with kernels(1, "avx512vnni"):
        alone = weights.product(x)
    with kernels(1, instruction_set):
        for width in range(1, 258):
            assert np.array_equal(bits(weights.product(x[:width])), bits(alone[:width])), width


@WITH_TILES
def test_largest_sums_with_tiles(instruction_set):
    """Codes, scales and activations that make the integer sums as large as they can be."""
    for name, repacked in TILED:
        k, columns = 512, 16
        n_bytes = len(quantized(np.zeros((columns, k), np.float32), TYPES[name]))
        for fill in (0xFF, 0x7F, 0x80):
            data = np.full(n_bytes, fill, np.uint8)
            weights = Weights(data.tobytes(), TYPES[name], k, columns, repacked)
            x = np.ones((20, k), np.float32) * np.where(np.arange(20) % 2, 1, -1)[:, None]
            with kernels(1, "avx512vnni"), np.errstate(all="ignore"):
                alone = weights.product(x)
            with kernels(1, instruction_set), np.errstate(all="ignore"):
                assert np.array_equal(weights.product(x), alone, equal_nan=True), name


def test_tiles_in_software_are_released_and_refused():
    """As the real ones must be, or the system saves their state at each change of threads; and as it may refuse them."""
    w, x = numbers((40, 512), 1), numbers((40, 512), 2)
    weights = Weights(quantized(w, TYPES["Q6_K"]), TYPES["Q6_K"], 512, 40)
    with kernels(1, IN_SOFTWARE):
        found = weights.product(x)
        assert not graphs.software_tiles().tiles_in_use()
        weights.product(-x)  # the memory of the next result has other numbers
        refused = c.c_int.in_dll(graphs.software_tiles(), "tiles_are_refused")
        refused.value = 1
        try:
            assert np.array_equal(weights.product(x), found)
        finally:
            refused.value = 0


def test_the_library_has_no_tiles_in_software():
    """Only that of the tests has the function that tells of them."""
    with kernels(1, IN_SOFTWARE):  # skips
        assert graphs.software_tiles().tiles_in_use
    assert b"tiles_in_use" not in own_kernels.path_of_library().read_bytes()


# Prints whether tiles are in use, and the sum of the bits of a product of 40 rows.
OF_TILES = """
import ctypes, hashlib, mmap, os, signal, sys
from os import fork
import numpy as np
from gguf_spec.llama import own_kernels
from tests.kernels.graphs import TYPES, Weights, quantized
import tests.kernels.graphs as graphs
if "refused" in sys.argv:  # Linux refuses tiles where a signal stack has no room for them
    class Stack(ctypes.Structure):
        _fields_ = (("at", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))
    memory = ctypes.create_string_buffer(8192)
    stack = Stack(ctypes.addressof(memory), 0, 8192)
    if ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None):
        print("no small stack")
        sys.exit()
own_kernels.decided[:] = [own_kernels.enter("amx")]
own_kernels.library().gguf_spec_kernels_tiles_from(2)
random = np.random.default_rng(1)
w, x = (random.standard_normal((n, 512), np.float32) for n in (40, 40))
weights = Weights(quantized(w, TYPES["Q6_K"]), TYPES["Q6_K"], 512, 40)
def found():
    return hashlib.sha256(weights.product(x).tobytes()).hexdigest()
first = found()
if "signals" in sys.argv:
    n = []
    signal.signal(signal.SIGALRM, lambda *_: n.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    while len(n) < 200:
        assert found() == first
    signal.setitimer(signal.ITIMER_REAL, 0)
if "fork" in sys.argv:
    child = fork()
    if not child:
        os._exit(found() != first)
    assert os.waitpid(child, 0)[1] == 0 and found() == first
if "released" in sys.argv:
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("b9 01 00 00 00  0f 01 d0  c3"))  # mov ecx, 1; xgetbv; ret
    states = ctypes.CFUNCTYPE(ctypes.c_uint32)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
    assert found() == first and not states() >> 17 & 3, "tiles are in use"
print(own_kernels.tiles(), first)
"""


@pytest.mark.parametrize("what", ["refused", "signals", "fork", "released"])
def test_tiles_of_a_process(what):
    """A refusal is no error: the bits are the same. Signals and children by fork are as ever.

    All of it needs the processor's tiles: the system does not know those in software.

    After a product no tile is in use: the system would save their state at each change of threads.
    """
    with kernels(1, "amx"):  # skips
        pass
    command = [sys.executable, "-c", OF_TILES]
    root = Path(__file__).parents[2]

    def ask(*words):
        done = children.run([*command, *words], cwd=root, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    usual, found = ask(), ask(what)
    if found == "no small stack":
        pytest.skip("this kernel takes no small signal stack")
    assert found.split()[1] == usual.split()[1]
    assert (usual.split()[0], found.split()[0]) == ("1", "-1" if what == "refused" else "1")


@pytest.mark.parametrize("instruction_set", SETS)
def test_a_nan_behind_the_largest_number(instruction_set):
    """It is no maximum, as in llama.cpp's quantising: the numbers before it count."""
    k, columns = 256, 16
    x = numbers((3, k), 1)
    x[:, 8], x[0, 8 + 16 :: 16], x[1, 8 + 32] = 1e6, np.nan, np.nan
    for name, repacked in (("Q4_K", False), ("Q6_K", False), ("Q4_K", True)):
        w = numbers((columns, k), 2)
        weights = Weights(quantized(w, TYPES[name]), TYPES[name], k, columns, repacked)
        with kernels(0):
            stock = np.concatenate([weights.product(x[i : i + 1]) for i in range(3)])
        with kernels(1, instruction_set):
            assert np.array_equal(weights.product(x), stock, equal_nan=True), name


@pytest.mark.parametrize("instruction_set", SETS[:-1])
def test_smallest_scales_of_mxfp4(instruction_set):
    """Those that are no normal floats; among larger ones they would not be seen."""
    k, columns = 256, 8
    blocks = np.random.default_rng(1).integers(0, 256, (columns * k // 32, 17), np.uint8)
    x = numbers((3, k), 2) * np.float32(1e6)  # a scale of rows is a float of 16 bits
    for scale in range(4):
        blocks[:, 0] = scale
        weights = Weights(blocks.tobytes(), TYPES["MXFP4"], k, columns)
        with kernels(0):
            stock = np.concatenate([weights.product(x[i : i + 1]) for i in range(3)])
        with kernels(1, instruction_set):
            assert np.array_equal(weights.product(x), stock)


# Multiplies with weights behind which no page of memory is.
AT_THE_END = """
import ctypes, mmap, sys
import numpy as np
from gguf_spec.llama import own_kernels
from tests.kernels import graphs
from tests.kernels.graphs import TYPES, Weights, kernels, quantized
own_kernels.decided[:] = [own_kernels.enter("auto")]
random, k = np.random.default_rng(1), 768
for columns in (1, 21):
    for name, kind in TYPES.items():
        w = random.standard_normal((columns, k)).astype(np.float32)
        data = quantized(w, kind)
        size = -(-len(data) // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = mmap.mmap(-1, size + mmap.PAGESIZE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert not ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0)
        weights = Weights(data, kind, k, columns)
        ctypes.memmove(start + size - len(data), data, len(data))
        field = ctypes.c_void_p.from_address(weights.tensor + graphs.DATA)
        usual, field.value = field.value, start + size - len(data)
        x = random.standard_normal((9, k)).astype(np.float32)
        with kernels(1, sys.argv[1]):
            for n in (1, 2, 9):
                found, field.value = weights.product(x[:n]), usual
                right, field.value = weights.product(x[:n]), start + size - len(data)
                assert np.array_equal(found, right), name
"""


@pytest.mark.parametrize("instruction_set", SETS)
def test_nothing_behind_the_weights_is_read(instruction_set):
    """The last matrix of a file may end with a page."""
    with kernels(1, instruction_set):  # skips
        pass
    command = [sys.executable, "-c", AT_THE_END, instruction_set]
    done = children.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("instruction_set", SETS[:-1])
def test_odd_lengths_of_float_rows(instruction_set):
    for name in ("F32", "F16", "BF16"):
        for k in (1, 3, 15, 63, 65, 100):
            w, x = numbers((5, k), k), numbers((6, k), k + 1)
            weights = Weights(quantized(w, TYPES[name]), TYPES[name], k, 5)
            with kernels(1, instruction_set):
                alone = np.concatenate([weights.product(x[i : i + 1]) for i in range(6)])
                assert np.array_equal(bits(weights.product(x, 3)), bits(alone))
            assert np.allclose(alone, x @ w.T, atol=0.3)


@pytest.mark.parametrize("instruction_set", [None, *SETS[-2:]])
@pytest.mark.parametrize("name", ["Q4_0", "Q4_K", "Q8_0", "Q6_K", "F16"])
def test_experts(name, instruction_set):
    k, columns, n_experts, used = 256, 24, 6, 3
    kind, random = TYPES[name], np.random.default_rng(2)
    w, x = numbers((n_experts * columns, k), 1), numbers((17, 1, k), 2)
    ids = np.array([random.choice(n_experts, used, replace=False) for _ in range(17)])
    for repacked in (False, True)[: 1 + is_repacked(name)]:
        weights = Weights(quantized(w, kind), kind, k, columns, repacked, n_experts)
        with kernels(0):
            stock = np.concatenate(
                [weights.product(x[i : i + 1], ids=ids[i : i + 1]) for i in range(17)]
            )
        with kernels(1, instruction_set):
            alone = np.concatenate(
                [weights.product(x[i : i + 1], ids=ids[i : i + 1]) for i in range(17)]
            )
            for width, threads in ((2, 1), (5, 4), (17, 2), (17, 16)):
                assert np.array_equal(
                    bits(weights.product(x[:width], threads, ids[:width])), bits(alone[:width])
                )
        assert np.array_equal(alone, stock) or name == "F16"
        assert np.allclose(alone, stock, rtol=1e-4, atol=1e-3)


@WITH_TILES
def test_more_threads_than_there_is_memory_for_tiles(instruction_set):
    """They compute without tiles, not with llama.cpp's kernels."""
    w, x = numbers((40, 512), 1), numbers((40, 512), 2)
    weights = Weights(quantized(w, TYPES["Q6_K"]), TYPES["Q6_K"], 512, 40)
    with kernels(1, instruction_set):
        right, before = weights.product(x), own_kernels.n_computed(attentions=False)
        assert np.array_equal(weights.product(x, 16, planned=1), right)
        assert own_kernels.n_computed(attentions=False) == before + 1


@WITH_TILES
@pytest.mark.parametrize("name", ["Q4_K", "Q6_K"])
def test_experts_that_a_token_names_twice(name, instruction_set):
    """More rows than tokens meet a matrix; they stay in the work memory."""
    k, columns, n = 256, 24, 31
    w, x = numbers((2 * columns, k), 1), numbers((n, 1, k), 2)
    for repacked in (False, True)[: 1 + is_repacked(name)]:
        data = quantized(w, TYPES[name])
        weights = Weights(data, TYPES[name], k, columns, repacked, n_matrices=2)
        with kernels(1, "avx512vnni"):
            right = weights.product(x, ids=np.ones((n, 3), int))
        with kernels(1, instruction_set):
            assert np.array_equal(weights.product(x, ids=np.ones((n, 3), int)), right)


def test_rows_are_computed_by_us():
    """Without the own kernels the other tests could not fail."""
    w, x = numbers((8, 256), 1), numbers((2, 256), 2)
    weights = Weights(quantized(w, TYPES["Q6_K"]), TYPES["Q6_K"], 256, 8)
    for which, more in ((0, 0), (1, 1), (2, 0), (3, 1)):
        with kernels(which):
            before = own_kernels.n_computed(attentions=False)
            weights.product(x)
            assert own_kernels.n_computed(attentions=False) == before + more


def products_of(w, x, wide=0, kind=F32, **options):
    """Multiply float matrices w (b, columns, k) with rows x (b, n, k) of a type, of which `wide` more numbers lie behind each row."""
    g, (b, n, k) = ggml(), x.shape
    stored = np.concatenate([x, np.full((b, n, wide), np.nan)], 2)
    stored = stored.astype(np.float16 if kind == F16 else np.float32)
    with graphs._context(8 * (w.nbytes + stored.nbytes) + (1 << 22)) as context:
        given = graphs.put(context, kind, (k + wide, n, b, 1), stored)
        c.c_int64.from_address(given + graphs.SIZES).value = k
        weights = graphs.put(context, kind, (k, *w.shape[1::-1], 1), w.astype(stored.dtype))
        result = g.mul_mat(context, weights, given)
        return graphs.computed(context, result, (b, n, w.shape[1]), 2, **options)


@pytest.mark.parametrize(
    ("n_matrices", "batches", "wide", "kind", "is_ours"),
    [(1, 3, 0, F32, True), (1, 2, 5, F32, True), (3, 3, 0, F32, False), (1, 1, 0, F16, False)],
)
def test_forms_of_activations(n_matrices, batches, wide, kind, is_ours):
    """Several batches, rows apart from each other; what no kernel here takes is left to llama.cpp's."""
    k, n, columns = 128, 5, 24
    w = numbers((n_matrices, columns, k), 1).astype(np.float16).astype(np.float32)
    x = numbers((batches, n, k), 2).astype(np.float16).astype(np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64).transpose(0, 2, 1)
    with kernels(1):
        before = own_kernels.n_computed(attentions=False)
        found = products_of(w, x, wide, kind)
        assert own_kernels.n_computed(attentions=False) == before + is_ours
    assert np.abs(found - exact).max() < 1e-3 * np.abs(exact).max()


def test_the_reference_is_llama_cpps():
    w, x = numbers((1, 24, 128), 1), numbers((1, 5, 128), 2)
    with kernels(1):
        before = own_kernels.n_computed(attentions=False)
        products_of(w, x, use_ref=True)
        assert own_kernels.n_computed(attentions=False) == before


LONG = 4_456_448  # weights of a row, of which 8 MiB of stack would have no room for two bytes each
LONG_ROWS = f"""
import numpy as np
from tests.kernels.graphs import TYPES, Weights, kernels, ggml
x = np.random.default_rng(1).standard_normal((3, {LONG})).astype(np.float32)
for name in ("Q4_1", "Q8_0", "IQ4_NL"):
    data = np.resize(np.arange(251, dtype=np.uint8), 8 * ggml().row_size(TYPES[name], {LONG}))
    weights = Weights(data, TYPES[name], {LONG}, 8)
    rows = []
    for which in (0, 1):
        with kernels(which), np.errstate(all="ignore"):
            rows.append(weights.product(x))
    assert np.array_equal(*rows, equal_nan=True), name
"""


@pytest.mark.full
def test_long_rows_take_no_stack():
    ggml()  # skips
    done = children.run([sys.executable, "-c", LONG_ROWS], cwd=Path(__file__).parents[2])
    assert done.returncode == 0


def with_long_rows(path, kind, n_ff):
    """Write a model with feed-forward rows of n_ff weights, all of which are zero, as holes in the file."""
    metadata, tensors = tiny.llama()
    writer = gguf.GGUFWriter(path, "")
    writer.kv_data[0].clear()
    for key, value in (metadata | tiny.vocabulary() | {"llama.feed_forward_length": n_ff}).items():
        writer.kv_data[0][key] = gguf.GGUFValue(value, tiny.KINDS[type(value)])
    block, size = gguf.GGML_QUANT_SIZES[kind]
    parts = []
    for name, numbers in tensors.items():
        tensor = numbers
        shape, dtype, n_bytes, of_kind = tensor.shape, tensor.dtype, tensor.nbytes, None
        if "ffn" in name and "norm" not in name:
            shape = (tiny.N_EMBD, n_ff) if "down" in name else (n_ff, tiny.N_EMBD)
            n_bytes, of_kind = tiny.N_EMBD * n_ff // block * size, kind
            shape, dtype, tensor = gguf.quant_shape_to_byte_shape(shape, kind), np.uint8, None
        writer.add_tensor_info(name, shape, np.dtype(dtype), n_bytes, of_kind)
        parts.append((tensor, n_bytes))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file = writer.fout[0]
    file.seek(-file.tell() % 32, os.SEEK_CUR)
    for tensor, n_bytes in parts:
        if tensor is not None:
            file.write(tensor.tobytes())
        file.seek((n_bytes if tensor is None else 0) + -n_bytes % 32, os.SEEK_CUR)
    file.truncate()
    writer.close()
    return path


@pytest.mark.full
def test_a_file_with_long_rows(tmp_path):
    path = with_long_rows(tmp_path / "long.gguf", gguf.GGMLQuantizationType.Q4_1, LONG)
    assert path.stat().st_blocks < 1000
    command = [sys.executable, "-m", "gguf_spec", "generate", "-m", path, "-k", "0"]
    done = children.run([*command, "--ctx", "64", "-n", "2", "one two"], capture_output=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["Q4_0", "Q8_0", "Q4_K", "F16"])
def test_a_plan_of_other_kernels(name):
    """Where its memory is too small for ours, llama.cpp's kernel computes; its own always has room for both."""
    kind, k, columns, random = TYPES[name], 512, 24, np.random.default_rng(1)
    for n, n_matrices in ((1, 1), (40, 1), (40, 8)):
        x = numbers((n, k), 2)
        data = quantized(numbers((n_matrices * columns, k), 1), kind)
        weights = Weights(data, kind, k, columns, n_matrices=n_matrices)
        ids = None
        if n_matrices > 1:
            ids, x = np.array([random.permutation(n_matrices)[:3] for _ in range(n)]), x[:, None]
        with kernels(0):
            stock = weights.product(x, 1, ids)
        for planning, computing in ((0, 1), (1, 0)):
            with kernels(planning):
                found = weights.product(x, 2, ids, which=computing)
            assert np.abs(found - stock).max() < 1e-4 * np.abs(stock).max()
