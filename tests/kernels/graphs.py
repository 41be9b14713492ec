"""Single operations of ggml on the CPU, with our kernels or llama.cpp's, through ctypes."""

import contextlib
import ctypes as c
import os
import sys
import tempfile
import time
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest

from gguf_spec.llama import own_kernels
from gguf_spec.llama.bindings import call
from tests.support import children

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "build"))
import _llama_wheel
import build_kernels

F32, F16, Q8_0, I32, BF16 = 0, 1, 8, 26, 30
TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
    "IQ4_NL": 20, "BF16": 30, "MXFP4": 39,
}  # fmt: skip
REPACKED = ("Q4_0", "IQ4_NL", "MXFP4", "Q4_K", "Q2_K")
# Sets with tiles: those of the processor, and those of tiles_in_software.h for any one with AVX-512 VNNI.
AMX, IN_SOFTWARE = "amx", "amx-in-software"
_HEADER = Path(__file__).with_name("tiles_in_software.h")
# Libraries with tiles in software, in the cache of the user, not in that of the tests; seconds for which an unused one stays.
_CACHE, _KEPT_S = Path("~/.cache/gguf-spec/tests").expanduser(), 7 * 86400
# offsets of the sizes of a tensor, and of its fields `data` and `extra`
SIZES, DATA, _EXTRA = 16, 248, 320


class _Init(c.Structure):
    _fields_ = (("size", c.c_size_t), ("memory", c.c_void_p), ("no_alloc", c.c_bool))


class Plan(c.Structure):
    _fields_ = (
        ("n_bytes", c.c_size_t), ("memory", c.c_void_p), ("threads", c.c_int), ("pool", c.c_void_p),
        ("abort", c.c_void_p), ("abort_data", c.c_void_p), ("use_ref", c.c_bool),
    )  # fmt: skip


def _function(name, result, *arguments):
    """A function of ggml, whichever library of this build of llama.cpp has it."""

    def function(*given):
        words = (kind(one) for kind, one in zip(arguments, given, strict=True))
        return call(name, *words, result=result)

    return function


class Ggml:
    """The functions that the tests need."""

    def __init__(self):
        p, n = c.c_void_p, c.c_size_t
        self.init = partial(call, "ggml_init")
        self.free = _function("ggml_free", None, p)
        self.tensor = _function("ggml_new_tensor_4d", p, p, c.c_int, *[c.c_int64] * 4)
        self.mul_mat = _function("ggml_mul_mat", p, p, p, p)
        self.mul_mat_id = _function("ggml_mul_mat_id", p, p, p, p, p)
        self.attention = _function("ggml_flash_attn_ext", p, *[p] * 5, *[c.c_float] * 3)
        self.add_sinks = _function("ggml_flash_attn_ext_add_sinks", None, p, p)
        self.graph = _function("ggml_new_graph", p, p)
        self.expand = _function("ggml_build_forward_expand", None, p, p)
        self.data = _function("ggml_get_data", p, p)
        self.row_size = _function("ggml_row_size", n, c.c_int, c.c_int64)
        self.quantize = _function("ggml_quantize_chunk", n, c.c_int, p, p, *[c.c_int64] * 3, p)
        self.plan = _function("ggml_graph_plan", Plan, p, c.c_int, p)
        self.compute = _function("ggml_graph_compute", c.c_int, p, c.POINTER(Plan))
        self.repacked = _function("_Z35ggml_backend_cpu_repack_buffer_typev", p)
        self.buffer = _function("ggml_backend_buft_alloc_buffer", p, p, n)
        self.buffer_base = _function("ggml_backend_buffer_get_base", p, p)
        self.free_buffer = _function("ggml_backend_buffer_free", None, p)
        self.place = _function("ggml_backend_tensor_alloc", c.c_int, p, p, p)
        self.set = _function("ggml_backend_tensor_set", None, p, p, n, n)


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
    needed = "avx512vnni" if instruction_set == IN_SOFTWARE else instruction_set
    if needed and not library.gguf_spec_kernels_use(needed.encode()):
        pytest.skip(f"the processor, or the library, lacks {needed}")
    try:
        if instruction_set == IN_SOFTWARE:
            use_tiles(software_tiles())
        if instruction_set in (AMX, IN_SOFTWARE):  # from two rows on, not where it is faster
            if own_kernels.tiles() != 1:
                pytest.skip("the system refuses tiles")
            library.gguf_spec_kernels_tiles_from(2)
        library.gguf_spec_kernels_switch(which)
        yield
    finally:
        library.gguf_spec_kernels_switch(3)
        library.gguf_spec_kernels_tiles_from(0)
        library.gguf_spec_kernels_use(usual.encode())


def use_tiles(library):
    """Use the tiles of a library of `compiled_tiles` with the instruction set in use."""
    table = c.c_void_p(c.addressof(c.c_char.in_dll(library, "tile_products")))
    own_kernels.library().gguf_spec_kernels_use_tiles(table)


@cache
def software_tiles():
    """Return a library with tiles in software, compiled once for each content of the sources."""
    parts = [
        path.read_text("utf-8") for path in sorted([*build_kernels.SOURCES.glob("*.h"), _HEADER])
    ]
    parts += [
        Path(build_kernels.SOURCES, "tiles.cpp").read_text("utf-8"),
        _llama_wheel.compiler("CXX"),
    ]
    path = _CACHE / f"{_llama_wheel.digest(parts, _tiles_command())}.so"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        for one in path.parent.glob("*.so"):
            if time.time() - one.stat().st_mtime > _KEPT_S:
                one.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            compiled_tiles(Path(work, "tiles.so")).replace(path)
    os.utime(path)
    return c.CDLL(str(path))


def _tiles_command():
    options = [*build_kernels.FLAGS, *build_kernels.SETS[AMX][0], "-fvisibility=default", "-O1"]
    options += ["-DISA=amx", f'-DTILES_IN_SOFTWARE="{_HEADER.name}"', "-shared"]
    return [*build_kernels.compiler_command("CXX"), *options]


def compiled_tiles(path, sources=build_kernels.SOURCES):
    """Compile tiles.cpp of `sources` with tiles in software, and return the library's path."""
    try:
        children.run(
            [*_tiles_command(), "-I", _HEADER.parent, sources / "tiles.cpp", "-o", path], check=True
        )
    except FileNotFoundError as error:
        pytest.skip(f"no C++ compiler: {error}")
    return path


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
            try:
                kind = g.repacked()
            except AttributeError:
                pytest.skip("this build of llama.cpp repacks no weights")
            self._buffer = g.buffer(kind, self._data.size + 4096)
            assert g.place(self._buffer, self.tensor, g.buffer_base(self._buffer)) == 0
            if not c.c_void_p.from_address(self.tensor + _EXTRA).value:  # to set it would crash
                pytest.skip("llama.cpp has no repacked form of this type here")
            g.set(self.tensor, self._data.ctypes.data, 0, self._data.size)
        else:
            c.c_void_p.from_address(self.tensor + DATA).value = self._data.ctypes.data

    def __del__(self):
        if not _ggml:  # the test was skipped
            return
        g = ggml()
        if self._buffer:
            g.free_buffer(self._buffer)
        g.free(self._context)

    def product(self, x, threads=1, ids=None, **options):
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
            shape = (len(x), used, self.columns)
            return computed(context, result, shape, threads, **options).reshape(len(x), -1)


@cache
def is_repacked(name):
    """Return whether llama.cpp has a repacked form of a type here: it depends on the processor and on the build."""
    if name not in REPACKED:
        return False
    try:
        Weights(quantized(np.zeros((8, 256)), TYPES[name]), TYPES[name], 256, 8, repacked=True)
    except pytest.skip.Exception:
        return False
    return True


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


_GUARD = np.full(1 << 20, 0xA5, np.uint8)


def computed(context, result, shape, threads, planned=0, which=None, use_ref=False):
    """Compute a tensor and return it as an array. Nothing may be written behind the work memory, and what lies in it does not count.

    planned: threads for which this was planned, unless as many; which: kernels that compute, unless those that plan, as in `kernels`; use_ref: with ggml's reference.
    """
    g = ggml()
    graph = g.graph(context)
    g.expand(graph, result)
    plan = g.plan(graph, planned or threads, None)
    memory = np.full(plan.n_bytes + _GUARD.size, 0xFF, np.uint8)  # NaN, of all types of floats
    memory[plan.n_bytes :] = _GUARD
    plan.memory, plan.threads, plan.use_ref = memory.ctypes.data, threads, use_ref
    with contextlib.nullcontext() if which is None else kernels(which):
        assert g.compute(graph, plan) == 0
    assert np.array_equal(memory[plan.n_bytes :], _GUARD), "written behind the work memory"
    out = np.empty(shape, np.float32)
    c.memmove(out.ctypes.data, g.data(result), out.nbytes)
    return out


def attention(
    q,
    k,
    v,
    mask=None,
    kinds=(F16, F16),
    scale=0.125,
    bias=0.0,
    cap=0.0,
    sinks=None,
    threads=2,
    **options,
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
        return computed(context, result, (streams, rows, heads, v.shape[3]), threads, **options)
