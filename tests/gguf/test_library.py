"""What is changed in llama.cpp's library when it is loaded: llamafile's products, and its threads."""

import ctypes
import os
import sys
import textwrap
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gguf_spec.errors import NotEnoughMemoryError
from gguf_spec.llama import backend, library, own_kernels
from gguf_spec.llama.bindings import CPU_LIBRARY, LIBRARY_FOLDER, C, Tensors, call
from tests.support import children

F16, F32 = 1, 0


def product(width, threads=1):
    """Return a product of a matrix of F16, which llamafile has kernels for, with rows of F32."""
    random = np.random.default_rng(1)
    weights, rows = random.standard_normal((64, 256)), random.standard_normal((16, 256))
    tensors = Tensors(1 << 20)
    w = tensors.new(F16, (256, 64), weights.astype(np.float16).tobytes())
    x = tensors.new(F32, (256, width), rows[:width].astype(np.float32).tobytes())
    result = call("ggml_mul_mat", tensors.context, w, x)
    return tensors.compute(result, 64 * width, threads).reshape(width, 64)


def test_the_library_of_the_kernels_is_found():
    if sys.platform != "linux":
        pytest.skip("the place of a function is asked on Linux")
    assert CPU_LIBRARY.path.parent.resolve() == LIBRARY_FOLDER.resolve()  # a variant is a link
    assert CPU_LIBRARY.path.name.startswith("libggml-cpu")
    with pytest.raises(AttributeError, match=r"llama.cpp has no ggml_of_tomorrow"):
        call("ggml_of_tomorrow")


def test_a_name_says_the_generation(tmp_path, monkeypatch):
    monkeypatch.setattr(library.ctypes, "CDLL", lambda _: None)
    names = (
        "libggml-cpu-haswell.so",
        "libggml-cpu-armv8.2_1.so",
        "libggml-cpu.so.0",
        "ggml-cpu-x64.dll",
    )
    found = [library.CpuLibrary(tmp_path / name, 0).variant for name in names]
    assert found == ["haswell", "armv8.2_1", "", "x64"]


@pytest.fixture
def with_llamafile():
    """llama.cpp's library as it was built, with llamafile's products."""
    name = "llamafile_sgemm"
    real = getattr(CPU_LIBRARY and CPU_LIBRARY.functions, name, None)
    if not real or not CPU_LIBRARY.calls([name]):
        pytest.skip("this build has no llamafile, or its calls cannot be replaced")

    def switch(on):
        if on:
            CPU_LIBRARY.rebind(name, real)
        else:
            CPU_LIBRARY.leave_out_llamafile()

    yield switch
    switch(False)


def test_llamafile_is_left_out(stock_kernels, with_llamafile):
    alone = product(1)
    assert all(np.array_equal(product(n)[:1], alone) for n in range(2, 17))
    with_llamafile(True)
    if all(np.array_equal(product(n)[:1], alone) for n in range(2, 17)):
        pytest.skip("this library's llamafile gives the same bits")
    with_llamafile(False)
    assert np.array_equal(product(16)[:1], alone)


@pytest.fixture
def kept_threads():
    own_kernels.start()
    if not own_kernels.keeps_threads():
        pytest.skip("OpenMP keeps the threads of this build, or there is no library of kernels")


def tasks():
    return {int(path.name) for path in Path("/proc/self/task").iterdir()}


def test_threads_stay_from_pass_to_pass_and_end_with_their_caller(kept_threads):
    right, before, seen = product(8), tasks(), []

    def run():
        for n in (3, 3, 2, 3):
            assert np.array_equal(product(8, n), right)
            seen.append(tasks() - before)

    caller = threading.Thread(target=run)
    caller.start()
    caller.join()
    assert len(seen[0]) == 3, "the caller and two more"
    assert seen[1:] == seen[:1] * 3
    for _ in range(3000):  # a thread of the system is gone some time after it was waited for
        if not seen[0] & tasks():
            break
        time.sleep(0.01)
    assert not seen[0] & tasks()


@pytest.mark.full
def test_a_child_by_fork_has_threads_of_its_own(kept_threads):
    code = """
    import multiprocessing
    import numpy as np
    from gguf_spec.llama import own_kernels
    from tests.gguf.test_library import product
    own_kernels.start()
    right = product(8, 3)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert np.array_equal(pool.apply(product, (8, 3)), right)
    assert np.array_equal(product(8, 3), right)
    """
    children.run([sys.executable, "-c", textwrap.dedent(code)], check=True, limit_s=60)


class Pool(ctypes.Structure):
    """The start of ggml's `ggml_threadpool`, aligned as there."""

    _fields_ = (
        ("lock", ctypes.c_char * 88), ("graph", ctypes.c_void_p), ("plan", ctypes.c_void_p), ("n_graph", ctypes.c_int),
        ("gap", ctypes.c_char * 20), ("n_barrier", ctypes.c_int), ("gap2", ctypes.c_char * 60), ("n_passed", ctypes.c_int),
    )  # fmt: skip


@pytest.mark.parametrize("n", [2, 5])
def test_nobody_passes_a_barrier_before_the_last_one(kept_threads, n):
    assert (Pool.n_graph.offset, Pool.n_barrier.offset, Pool.n_passed.offset) == (104, 128, 192)
    pool, rounds, counts, lock = Pool(n_graph=n), 200, [0] * n, threading.Lock()
    barrier = own_kernels.library().gguf_spec_kernels_barrier
    barrier.argtypes = [ctypes.c_void_p]
    early = []

    def run(i):
        for r in range(rounds):
            with lock:
                counts[i] += 1
            barrier(ctypes.addressof(pool))
            if min(counts) <= r:
                early.append(r)
            barrier(ctypes.addressof(pool))

    runners = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for one in runners:
        one.start()
    for one in runners:
        one.join(180)
    assert counts == [rounds] * n
    assert early == []
    assert pool.n_passed == 2 * rounds


def test_functions_that_the_library_lacks_say_so():
    """llama-cpp-python declares functions that a ready-made library is too old for."""
    if hasattr(C._lib, "llama_process"):
        pytest.skip("this build has all functions")
    with pytest.raises(
        NotImplementedError, match=r"llama_process: this build of llama\.cpp lacks it"
    ):
        C.llama_process()


@pytest.mark.parametrize("prefix", ["", "lib"])
def test_a_system_whose_libraries_pass_no_functions_on(tmp_path, monkeypatch, prefix):
    """Windows: `llama.dll` has no function of ggml, and no `dladdr` tells where one is. MinGW's names are those of Linux."""
    name_of = f"{prefix}ggml{{}}.dll".format
    for name in ("", "-base"):
        (tmp_path / name_of(name)).touch()
    opened = {str(tmp_path / name_of("-base")): SimpleNamespace(ggml_init=1)}
    monkeypatch.setattr(library.os, "name", "nt")
    monkeypatch.setattr(library.ctypes, "CDLL", lambda path: opened.get(path, SimpleNamespace()))
    llama = SimpleNamespace(llama_decode=2)
    assert library.cpu_library(llama, tmp_path) is None
    (tmp_path / name_of("-cpu")).touch()
    opened[str(tmp_path / name_of("-cpu"))] = SimpleNamespace(ggml_barrier=3)
    cpu = library.cpu_library(llama, tmp_path)
    assert cpu.path.name == name_of("-cpu")
    assert cpu.has("ggml_barrier")
    assert not cpu.has("ggml_init")
    found = [*library.libraries(llama, tmp_path, cpu)]
    assert found[0] is llama
    assert [one.ggml_init for one in found if hasattr(one, "ggml_init")] == [1]
    assert len(found) == 4


@pytest.mark.parametrize("system", ["macOS", "Windows"])
@pytest.mark.parametrize("n", [999, *range(1000, 1070), 20_001, 261_120, 1_000_003])
def test_stacks_as_other_systems_want_them(monkeypatch, system, n):
    """macOS takes multiples of its page of 16 KiB, Windows less than 256 MiB."""

    def stack_size(size=0):
        if size % (16 << 10 if system == "macOS" else 1) or (
            system == "Windows" and size >= 256 << 20
        ):
            raise ValueError("size not valid")
        return 0

    monkeypatch.setattr(backend.threading, "stack_size", stack_size)
    if system == "Windows" and n > 261_000:
        with pytest.raises(NotEnoughMemoryError, match=f"a text of {n:,} bytes"):
            backend.run_with_large_stack(n, lambda: 7)
    else:
        assert backend.run_with_large_stack(n, lambda: 7) == 7


@pytest.mark.skipif(sys.platform != "linux", reason="the variable is that of Linux")
def test_another_llama_cpp_in_the_path_of_libraries(tmp_path):
    for name in ("ggml-base", "ggml", "ggml-cpu", "llama"):
        for ending in (".so", ".so.0"):
            (tmp_path / f"lib{name}{ending}").write_text("another one")
    code = "from gguf_spec.llama.bindings import C\nprint(C.llama_max_devices())"
    done = children.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
    )
    assert (done.stderr, done.returncode) == ("", 0)
