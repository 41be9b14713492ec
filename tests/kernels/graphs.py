"""Single operations of ggml on the CPU, with our kernels or llama.cpp's, through ctypes."""

import contextlib
import ctypes as c
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.llama import own_kernels
from gguf_spec.llama.bindings import LIBRARY_FOLDER

F32, F16, Q8_0, I32, BF16 = 0, 1, 8, 26, 30
TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
REPACKED = ("Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q2_K")
# offset of the field `data` of a tensor
_DATA = 248


class _Init(c.Structure):
    _fields_ = (("size", c.c_size_t), ("memory", c.c_void_p), ("no_alloc", c.c_bool))


def _library(name):
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    paths = (Path(line.split()[-1]) for line in lines)
    return c.CDLL(
        str(next(p for p in paths if p.parent == LIBRARY_FOLDER and p.name.startswith(name)))
    )


def _function(library, name, result, *arguments):
    function = getattr(library, name)
    function.restype, function.argtypes = result, arguments
    return function


class Ggml:
    """The functions that the tests need."""

    def __init__(self):
        base, cpu, p = _library("libggml-base"), _library("libggml-cpu"), c.c_void_p
        self.init = _function(base, "ggml_init", p, _Init)
        self.free = _function(base, "ggml_free", None, p)
        self.tensor = _function(base, "ggml_new_tensor_4d", p, p, c.c_int, *[c.c_int64] * 4)
        self.mul_mat = _function(base, "ggml_mul_mat", p, p, p, p)
        self.mul_mat_id = _function(base, "ggml_mul_mat_id", p, p, p, p, p)
        self.attention = _function(base, "ggml_flash_attn_ext", p, *[p] * 5, *[c.c_float] * 3)
        self.add_sinks = _function(base, "ggml_flash_attn_ext_add_sinks", None, p, p)
        self.graph = _function(base, "ggml_new_graph", p, p)
        self.expand = _function(base, "ggml_build_forward_expand", None, p, p)
        self.data = _function(base, "ggml_get_data", p, p)
        self.row_size = _function(base, "ggml_row_size", c.c_size_t, c.c_int, c.c_int64)
        self.quantize = _function(
            base, "ggml_quantize_chunk", c.c_size_t, c.c_int, p, p, *[c.c_int64] * 3, p
        )
        self.compute = _function(cpu, "ggml_graph_compute_with_ctx", c.c_int, p, p, c.c_int)
        self.repacked = _function(cpu, "_Z35ggml_backend_cpu_repack_buffer_typev", p)
        self.buffer = _function(base, "ggml_backend_buft_alloc_buffer", p, p, c.c_size_t)
        self.buffer_base = _function(base, "ggml_backend_buffer_get_base", p, p)
        self.free_buffer = _function(base, "ggml_backend_buffer_free", None, p)
        self.place = _function(base, "ggml_backend_tensor_alloc", c.c_int, p, p, p)
        self.set = _function(base, "ggml_backend_tensor_set", None, p, p, c.c_size_t, c.c_size_t)
        _function(cpu, "ggml_cpu_init", None)()


_ggml = []


def ggml():
    """Return the functions of ggml; the test is skipped where our kernels are not in use, but for a bug in them."""
    if not _ggml:
        found = own_kernels.start()
        assert not found.reason.startswith("the self-test failed"), found.reason
        if not found.name:
            pytest.skip(f"own kernels are not in use: {found.reason}")
        _ggml.append(Ggml())
    return _ggml[0]


@contextlib.contextmanager
def kernels(which, instruction_set=None):
    """Compute in this block with our products (1), our attention (2), both (3) or neither (0)."""
    ggml()
    library, usual = own_kernels.library(), own_kernels.in_use().name
    if instruction_set and not library.gguf_spec_kernels_use(instruction_set.encode()):
        pytest.skip(f"this processor lacks {instruction_set}")
    library.gguf_spec_kernels_switch(which)
    try:
        yield
    finally:
        library.gguf_spec_kernels_switch(3)
        library.gguf_spec_kernels_use(usual.encode())


def quantized(numbers, kind):
    """Return rows of numbers as bytes of a ggml type."""
    numbers = np.ascontiguousarray(numbers, np.float32)
    rows, k = numbers.shape
    if kind == F32:
        return numbers.tobytes()
    out, importance = np.empty(rows * ggml().row_size(kind, k), np.uint8), np.ones(k, np.float32)
    ggml().quantize(kind, numbers.ctypes.data, out.ctypes.data, 0, rows, k, importance.ctypes.data)
    return out.tobytes()


class Weights:
    """A matrix of `columns` columns with k elements, or several of them."""

    def __init__(self, data, kind, k, columns, repacked=False, n_matrices=1):
        g = ggml()
        self.k, self.columns, self._data = k, columns, np.frombuffer(data, np.uint8)
        self._context = g.init(_Init(1 << 16, None, True))
        self.tensor = g.tensor(self._context, kind, k, columns, n_matrices, 1)
        self._buffer = None
        if repacked:
            self._buffer = g.buffer(g.repacked(), self._data.size + 4096)
            assert g.place(self._buffer, self.tensor, g.buffer_base(self._buffer)) == 0
            g.set(self.tensor, self._data.ctypes.data, 0, self._data.size)
        else:
            c.c_void_p.from_address(self.tensor + _DATA).value = self._data.ctypes.data

    def __del__(self):
        g = ggml()
        if self._buffer:
            g.free_buffer(self._buffer)
        g.free(self._context)

    def product(self, x, threads=1, ids=None):
        """Return the product with rows x (n, k); with ids (n, used): x (n, 1 or used, k)."""
        g = ggml()
        used = 1 if ids is None else ids.shape[1]
        with _context(x.nbytes * 6 + len(x) * used * self.columns * 4 + (1 << 22)) as context:
            if ids is None:
                given = put(context, F32, (self.k, len(x), 1, 1), x.astype(np.float32))
                result = g.mul_mat(context, self.tensor, given)
            else:
                given = put(context, F32, (self.k, x.shape[1], len(x), 1), x.astype(np.float32))
                which = put(context, I32, (used, len(x), 1, 1), ids.astype(np.int32))
                result = g.mul_mat_id(context, self.tensor, given, which)
            return computed(context, result, (len(x), used, self.columns), threads).reshape(
                len(x), -1
            )


@contextlib.contextmanager
def _context(n_bytes):
    context = ggml().init(_Init(n_bytes, None, False))
    try:
        yield context
    finally:
        ggml().free(context)


def put(context, kind, shape, data):
    """Return a new tensor with these contents."""
    tensor = ggml().tensor(context, kind, *shape)
    raw = data if isinstance(data, bytes) else np.ascontiguousarray(data).tobytes()
    c.memmove(ggml().data(tensor), raw, len(raw))
    return tensor


def computed(context, result, shape, threads):
    """Compute a tensor and return it as an array."""
    g = ggml()
    graph = g.graph(context)
    g.expand(graph, result)
    assert g.compute(context, graph, threads) == 0
    out = np.empty(shape, np.float32)
    c.memmove(out.ctypes.data, g.data(result), out.nbytes)
    return out


def attention(
    q, k, v, mask=None, kinds=(F16, F16), scale=0.125, bias=0.0, cap=0.0, sinks=None, threads=2
):
    """Return attention, shape (streams, rows, heads, value length).

    q: (streams, heads, rows, key length); k, v: (streams, KV heads, positions, length); mask: (streams, 1, rows, positions), float16.
    """
    g = ggml()
    streams, heads, rows, _ = q.shape

    def new(context, kind, x):
        if x is None:
            return None
        data = x.astype(np.float16) if kind == F16 else quantized(x.reshape(-1, x.shape[3]), kind)
        return put(context, kind, x.shape[::-1], data)

    with _context(
        sum(4 * x.nbytes for x in (q, k, v)) + (0 if mask is None else mask.nbytes) + (8 << 20)
    ) as context:
        parts = [
            new(context, kind, x)
            for kind, x in zip((F32, *kinds, F16), (q, k, v, mask), strict=True)
        ]
        result = g.attention(context, *parts, scale, bias, cap)
        if sinks is not None:
            g.add_sinks(result, put(context, F32, (heads, 1, 1, 1), sinks.astype(np.float32)))
        return computed(context, result, (streams, rows, heads, v.shape[3]), threads)
