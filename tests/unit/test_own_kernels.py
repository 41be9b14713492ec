"""The own kernels: which are used, the reason where they are not, and their self-test."""

import ctypes
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import numpy as np
import pytest

import gguf_spec
from gguf_spec.errors import InvalidOptionError
from gguf_spec.llama import exactness, own_kernels, probe, selftest
from gguf_spec.llama.bindings import CPU_LIBRARY
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.own_kernels import Kernels
from gguf_spec.llama.selftest import Operation, problem_of
from tests.support import children

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "build"))
import build_kernels

NOT_FOR = "they are for x86-64, and for ARM with Linux or macOS"
NOT_COMPILED = "the library was not compiled"
ASK = """
import json, sys
from gguf_spec.llama import own_kernels
print(json.dumps(own_kernels.start(*sys.argv[1:])))
"""
# A library that answers `gguf_spec_kernels_start` with TEXT, or does something worse.
FAKE = """
#include <stdlib.h>
const char * gguf_spec_kernels_start(const char * folder, const char * wanted) { %s; }
void gguf_spec_kernels_switch(int which) {}
long gguf_spec_kernels_count(int which) { return 0; }
"""
# functions of a false llama.cpp; what is not in it is asked from the real one
LIAR = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>
#define REAL(name) dlsym(RTLD_NEXT, name)
void * real_cpu(void) { return ((void * (*)(int)) REAL("ggml_backend_dev_by_type"))(0); }
%s
"""
# A buffer type with two more members before the device, as b11352 to b11413 have it under the same version.
LONGER = """
static void * type[10], * types[2] = {type}, * list[3] = {types, types + 1, types + 1};
static void ** of_device(void * device) { return types; }
void * ggml_backend_cpu_buffer_type(void) { type[8] = real_cpu(); return type; }
void * _Z35ggml_backend_cpu_repack_buffer_typev(void) { return ggml_backend_cpu_buffer_type(); }
void * _Z39ggml_backend_cpu_get_extra_buffer_typesv(void) { return ggml_backend_cpu_buffer_type(), list; }
void * ggml_backend_reg_get_proc_address(void * library, const char * name) { return of_device; }
void * ggml_backend_buft_get_device(void ** one) { return one[8]; }
"""
# One more member behind the device: the context is elsewhere.
BEHIND = """
void * _Z35ggml_backend_cpu_repack_buffer_typev(void) {
    static void * one[9];
    memcpy(one, ((void * (*)(void)) REAL("_Z35ggml_backend_cpu_repack_buffer_typev"))(), 64);
    one[8] = one[7];
    one[7] = %s;
    return one;
}
"""
LIES = {
    "nothing": ("", ""),
    "version": ('char * ggml_version(void) { return "0.26.0"; }', "its version is 0.26.0, not 0.25.1 or 0.25.3"),
    "operation": ('char * ggml_op_name(int i) { return ((char * (*)(int)) REAL("ggml_op_name"))(i - 1); }', "operation 29 is .*, not MUL_MAT"),
    "number of a type": ('char * ggml_type_name(int i) { return ((char * (*)(int)) REAL("ggml_type_name"))(i == 39 ? 40 : i); }', "type 39 is nvfp4, not mxfp4"),
    "block": ('size_t ggml_type_size(int i) { return i == 12 ? 148 : ((size_t (*)(int)) REAL("ggml_type_size"))(i); }', "a block of q4_K has 148 bytes, not 144"),
    "size of a tensor": ("size_t ggml_tensor_overhead(void) { return 376; }", "the number of bytes of a tensor is 344, not 336"),
    "data": ("void * ggml_get_data(void ** one) { return one[32]; }", "a tensor's memory is not where it is expected"),
    "name": ("char * ggml_get_name(char * one) { return one + 264; }", "a tensor's name is not where it is expected"),
    "input": ('void * ggml_mul_mat(void * c, void * a, void * b) { return ((void * (*)(void *, void *, void *)) REAL("ggml_mul_mat"))(c, a, a); }', "a tensor's second input is not where it is expected"),
    "graph": ("int ggml_graph_size(int * one) { return one[2]; }", "the number of places in a graph is 16, not 2"),
    "plan": ("void * ggml_graph_plan(void * result, void * graph, int n, void * pool) { return memset(result, 0, 64); }", "the number of bytes of a plan is 64, not 56"),
    "threads": ("void ggml_threadpool_params_init(int * one, int n) { one[0] = n; }", "the number of threads is 0, not 3"),
    "list": ('void * _Z39ggml_backend_cpu_get_extra_buffer_typesv(void) { static void * list[3]; return list; }', "the list of the CPU's buffer types is not where it is expected"),
    "device": (LONGER, "a buffer type's device is not where it is expected"),
    "no context": (BEHIND % "0", "a buffer type's context is not where it is expected"),
    "a number as context": (BEHIND % "(void *) 4096", "a buffer type's context is not where it is expected"),
    "a function as context": (BEHIND % "(void *) real_cpu", "a buffer type's context is not where it is expected"),
}  # fmt: skip


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """Asks a new process for its kernels; the answer is `Kernels`, or what an error prints."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("GGUF_SPEC_KERNELS", raising=False)  # of scripts/test --variant

    def ask(*asked, **env):
        for name, value in env.items():
            monkeypatch.setenv(name, str(value))
        command = [sys.executable, "-c", ASK, *asked]
        done = children.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr
        return Kernels(*json.loads(done.stdout))

    return ask


@pytest.fixture
def fake(tmp_path):
    """Compiles a library with a body of `gguf_spec_kernels_start`."""
    if not shutil.which("cc"):
        pytest.skip("no compiler")

    def fake(body):
        (tmp_path / "fake.c").write_text(FAKE % body)
        library = tmp_path / "fake.so"
        command = ["cc", "-shared", "-fPIC", "-o", library, tmp_path / "fake.c"]
        children.run(command, check=True)
        return library

    return fake


@pytest.mark.full
def test_the_option_and_the_variable(ask):
    best = ask()
    if not best.name:
        pytest.skip(best.reason)
    assert best.name in ("avx2", "avxvnni", "avx512", "avx512vnni", "amx")
    assert ask("stock") == Kernels("", "switched off")
    assert ask(GGUF_SPEC_KERNELS="stock") == ask("auto") == Kernels("", "switched off")
    assert ask("avx2") == Kernels("avx2"), "the option comes before the variable"
    assert ask(GGUF_SPEC_KERNELS="avx2") == Kernels("avx2")
    assert "kernels is 'sse' but must be one of auto, stock" in ask(GGUF_SPEC_KERNELS="sse")


@pytest.mark.full
def test_a_missing_or_invalid_library(ask, tmp_path):
    missing = ask(GGUF_SPEC_KERNELS_LIBRARY="/nowhere/x.so")
    assert (missing.name, missing.reason) == ("", "the library was not compiled")
    assert "pip install ." in missing.todo
    (tmp_path / "x.so").write_text("no library")
    assert "cannot be loaded" in ask(GGUF_SPEC_KERNELS_LIBRARY=tmp_path / "x.so").reason
    assert "kernels is 'avx2' but must be stock or auto here: " in ask("avx2")


@pytest.mark.full
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('return "!llama.cpp has another version of ggml than 0.25.3"', "another version of ggml"),
        ('return "avx2"', "the self-test failed: a product with f32 is not computed"),
        ("abort()", "the self-test failed: it was ended by signal 6"),
        ("exit(3)", "the self-test failed: it ended with code 3"),
    ],
)
def test_a_library_that_does_not_work_is_not_used(ask, fake, body, said):
    found = ask(GGUF_SPEC_KERNELS_LIBRARY=fake(body))
    assert (found.name, said in found.reason) == ("", True)
    assert "to repeat the self-test, remove " in found.todo.lower()
    assert ask() == found, "remembered"


MISFIT = """
import ctypes, sys
from gguf_spec.llama import own_kernels
handle = ctypes.c_void_p(ctypes.CDLL(sys.argv[1])._handle)
ask = own_kernels.library().gguf_spec_kernels_misfit
ask.restype = ctypes.c_char_p
print(ask(handle, handle).decode(), end="")
"""


@pytest.mark.parametrize("lie", LIES)
def test_the_structures_of_llama_cpp_are_looked_up(tmp_path, lie):
    """The version does not tell: others with the same one have other structures."""
    if not shutil.which("cc") or not own_kernels.path_of_library().is_file():
        pytest.skip("no compiler, or no kernels")
    source, library = tmp_path / "liar.c", tmp_path / "liar.so"
    body, said = LIES[lie]
    source.write_text(LIAR % body)
    real = [CPU_LIBRARY.path, llama_cpp.llama_cpp._lib._name]
    command = ["cc", "-shared", "-fPIC", "-o", library, source, "-Wl,--no-as-needed", *real]
    children.run(command, check=True)
    # in a process that has not entered the kernels: they change the list of buffer types
    asked = children.run(
        [sys.executable, "-c", MISFIT, library], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(said, asked.stdout), asked.stdout


KEEPS = """
from gguf_spec.llama import own_kernels
own_kernels.keep_threads()
print(own_kernels.keeps_threads())
"""


@pytest.mark.parametrize(
    ("member", "kept"), [("pthread_cond_t changed;", True), ("char changed[40];", False)]
)
def test_the_structure_of_a_pool_of_threads_is_looked_up(tmp_path, member, kept):
    """On ARM a lock has other bytes than on x86: barriers would wait for ever."""
    if not shutil.which("c++") or not CPU_LIBRARY or CPU_LIBRARY.uses_openmp:
        pytest.skip("no compiler, or a build whose threads are not ours to keep")
    sources, library = Path(own_kernels.__file__).parents[1] / "kernels", tmp_path / "entry.so"
    for one in sources.glob("*.*"):
        if one.suffix in (".h", ".cpp"):
            shutil.copy(one, tmp_path)
    text = (tmp_path / "ggml_abi.h").read_text(encoding="utf-8")
    assert text.count("pthread_cond_t changed;") == 1
    text = text.replace("pthread_cond_t changed;", member)
    (tmp_path / "ggml_abi.h").write_text(text, encoding="utf-8")
    command = ["c++", "-std=c++17", "-shared", "-fPIC", "-o", library, tmp_path / "entry.cpp"]
    children.run([*command, "-ldl"], check=True)
    done = children.run(
        [sys.executable, "-c", KEEPS],
        env=os.environ | {"GGUF_SPEC_KERNELS_LIBRARY": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{kept}\n"


def test_the_advice_where_the_structures_differ():
    """To compile the kernels once more would not help."""
    reason = "they do not fit this llama.cpp: a buffer type's device is not where it is expected"
    found = own_kernels.failed(reason, "auto")
    assert (found.name, found.reason) == ("", reason)
    assert found.todo.startswith("use the llama.cpp that gguf-spec sets up: ")
    again = f"To repeat the self-test, remove {own_kernels.library_result('auto')}."
    assert found.todo.endswith(again)
    other = own_kernels.failed("the self-test failed: it is off", "avx2").todo
    assert other.startswith(f"make {own_kernels.path_of_library()} again: in a clone")
    assert other.endswith(f"remove {own_kernels.library_result('avx2')}.")


def test_another_library_is_tested_again(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, problems = tmp_path / "a.so", ["it fails", ""]
    library.write_text("a")
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    monkeypatch.setattr(probe, "run", lambda *_, **__: problems.pop(0))
    assert [own_kernels.library_problem("auto") for _ in range(2)] == ["it fails"] * 2
    library.write_text("another")
    assert own_kernels.library_problem("auto") == ""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert "packed program without gguf_spec.freeze_support()" in own_kernels.library_problem(
        "auto"
    )


@pytest.mark.parametrize(
    ("machine", "system", "wanted", "there", "has_list", "reason"),
    [
        ("riscv64", "linux", "auto", True, True, NOT_FOR), ("ARM64", "win32", "auto", True, True, NOT_FOR), ("x86_64", "freebsd14", "auto", True, True, NOT_FOR),
        ("x86_64", "linux", "auto", False, True, NOT_COMPILED), ("aarch64", "linux", "auto", False, True, NOT_COMPILED),
        ("aarch64", "linux", "auto", True, True, ""), ("AMD64", "linux", "auto", True, True, ""), ("x86_64", "linux", "auto", True, False, ""),
        ("arm64", "darwin", "auto", True, True, "on macOS nobody ran the own ones; the option kernels tries neoni8mm or neondot"),
        ("x86_64", "darwin", "auto", True, True, "on macOS nobody ran the own ones; the option kernels tries avx2"),
        ("arm64", "darwin", "neondot", True, True, ""), ("arm64", "darwin", "neondot", False, True, NOT_COMPILED),
        ("AMD64", "win32", "auto", True, False, "MSVC compiled it, the own ones are for a llama.cpp by MinGW or clang"),
        ("AMD64", "win32", "auto", False, False, "MSVC compiled it, the own ones are for a llama.cpp by MinGW or clang"),
        ("AMD64", "win32", "auto", False, True, NOT_COMPILED), ("AMD64", "win32", "auto", True, True, ""),
    ],
)  # fmt: skip
def test_machines_without_own_kernels(machine, system, wanted, there, has_list, reason):
    found = own_kernels.why_missing(system, machine, wanted, there, has_list)
    assert (found.reason if found else "") == reason
    assert bool(found and found.todo) is (reason == NOT_COMPILED)
    if found and found.todo:
        assert ("scripts/run" if system == "linux" else "build_kernels.py") in found.todo


@pytest.mark.parametrize(
    ("system", "name"), [("linux", "so"), ("darwin", "dylib"), ("win32", "dll")]
)
def test_the_library_is_looked_for_by_the_name_that_the_build_gives(monkeypatch, system, name):
    monkeypatch.setattr(own_kernels.sys, "platform", system)
    monkeypatch.delenv("GGUF_SPEC_KERNELS_LIBRARY", raising=False)
    assert own_kernels.path_of_library().name == build_kernels.LIBRARIES[system]
    assert build_kernels.LIBRARIES[system].endswith(f".{name}")


@pytest.mark.parametrize(
    ("problem", "kept"),
    [
        ("", True),
        ("this processor lacks AVX2", True),
        ("they do not fit this llama.cpp: a is b", False),
        ("the self-test failed: it is off", False),
    ],
)
def test_threads_are_kept_without_the_instructions(problem, kept):
    """They need none of these, but a library that works and fits."""
    assert own_kernels.can_keep_threads(problem) is kept
    if problem and kept:
        assert own_kernels.failed(problem, "auto") == Kernels("", problem), "nothing is to be done"


def test_the_first_model_decides(monkeypatch):
    monkeypatch.delenv("GGUF_SPEC_KERNELS", raising=False)
    path, options = "tales-draft", {"threads": 1, "n_ctx": 64}
    for used, other in ((Kernels("avx2"), "stock"), (Kernels("", "switched off"), "avx2")):
        monkeypatch.setattr(own_kernels, "decided", [used])
        monkeypatch.setattr(own_kernels, "library_takes", lambda *_: False)
        gguf_spec.load(path, None, **options).close()
        gguf_spec.load(path, None, kernels=used.name or "stock", **options).close()
        with pytest.raises(InvalidOptionError, match=f"must be {used.name or 'stock'} or auto"):
            gguf_spec.load(path, None, kernels=other, **options)


def test_the_variable_is_for_the_first_model(monkeypatch):
    """An explicit choice of it holds for those that leave it open; a set that is not to be had decides nothing."""
    monkeypatch.setenv("GGUF_SPEC_KERNELS", "avx2")
    monkeypatch.setattr(own_kernels, "decided", [])
    monkeypatch.setattr(
        own_kernels, "_start", lambda name: Kernels("" if name in ("stock", "avx2") else name, "x")
    )
    with pytest.raises(InvalidOptionError, match="must be stock or auto"):
        own_kernels.start()
    with pytest.raises(InvalidOptionError, match="must be stock or auto"):
        own_kernels.start()
    assert own_kernels.start("stock") is own_kernels.start("auto")
    with pytest.raises(InvalidOptionError):
        own_kernels.start("avx2")


def test_measurements_have_other_names_with_other_kernels(monkeypatch):
    names = []
    for used in (Kernels("", "switched off"), Kernels("avx2"), Kernels("avx512")):
        monkeypatch.setattr(own_kernels, "decided", [used])
        monkeypatch.setattr(own_kernels, "identities", lambda files: [*map(str, files)])
        names.append(tuple(own_kernels.parts()))
    assert len(set(names)) == 3
    assert names[0] == ()


# What the self-test finds


def test_unsupported_head_sizes_are_not_requested(kernels):
    sizes = [(0, 64, 1), (1 << 20, 64, 1), (80, 80, 8)]
    assert not any(own_kernels.takes_attention(*size) for size in sizes)
    refused = [(608, 64, 1), (64, 608, 1), (72, 72, 1)]  # by the library
    assert not any(own_kernels.takes_attention(*size) for size in refused)
    assert own_kernels.takes_attention(64, 64, 1) is (kernels == "own")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda rows, n: rows, ""),
        (lambda rows, n: rows * 1.05, "is off by 0.05"),
        (lambda rows, n: rows * np.nan, "is off by nan"),
        (
            lambda rows, n: np.nextafter(rows, np.inf) if n == 5 else rows,
            "other bits in passes of 5",
        ),
        (
            lambda rows, n: (
                np.vstack([rows[:-1], np.nextafter(rows[-1:], np.inf)]) if n == 17 else rows
            ),
            "other bits in passes of 17",
        ),
    ],
    ids=["right", "off", "not a number", "other bits", "other bits of the last row"],
)
def test_the_name_of_a_planted_fault(monkeypatch, spoil, said):
    rows = np.random.default_rng(1).choice([-1.0, 1.0], (selftest._MOST, 8)).astype(np.float32)

    class Library:
        own = n = 0

        def gguf_spec_kernels_switch(self, which):
            self.own = which

    library = Library()
    monkeypatch.setattr(own_kernels, "library", lambda: library)
    monkeypatch.setattr(own_kernels, "n_computed", lambda _: library.n)

    def compute(start, n, threads):
        library.n += bool(library.own)
        found = rows[start : start + n]
        return spoil(found, n) if library.own else found

    problem = problem_of(Operation("it", False, compute, compute))
    assert said in problem
    assert bool(said) is bool(problem)


@pytest.mark.parametrize(("tiles", "named"), [(1, ["a, with tiles"]), (0, []), (-1, [])])
def test_products_are_tested_with_tiles_where_there_are_some(monkeypatch, tiles, named):
    given = []
    library = SimpleNamespace(gguf_spec_kernels_tiles_from=given.append)
    monkeypatch.setattr(own_kernels, "library", lambda: library)
    monkeypatch.setattr(own_kernels, "tiles", lambda: tiles)
    both = [Operation("a", False, len, len), Operation("b", True, len, len)]
    monkeypatch.setattr(selftest, "operations", lambda: iter(both))
    assert [one.name for one in selftest.with_tiles()] == named
    assert given == [2, 0][: 2 * len(named)]


def test_every_type_and_cache_is_tested():
    names = {operation.name for operation in selftest.operations()}
    for kind in own_kernels.TYPES:
        name = selftest.type_name(kind)
        assert {f"a product with {name}", f"a product with experts of {name}"} <= names
    assert {f"attention with a cache of {name}" for name in ("f16", "bf16", "q8_0")} <= names


def test_products_of_a_loaded_model(tales):
    """AMX, where llama.cpp has it, would keep the weights in a form that only llama.cpp reads."""
    if not own_kernels.start().name:
        pytest.skip(own_kernels.start().reason)
    before = own_kernels.n_computed(attentions=False)
    tales.generate("Once", gguf_spec.Sampling(max_tokens=2))
    assert own_kernels.n_computed(attentions=False) > before


def test_large_buffers_ask_for_large_pages():
    """A pass over one row of a large model takes up to a fifth longer in small ones."""
    if not own_kernels.start().name:
        pytest.skip(own_kernels.start().reason)
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this kernel has no large pages")
    base = llama_cpp.llama_cpp._lib  # with the symbols of the libraries that it needs
    for name in ("cpu_buffer_type", "buft_alloc_buffer", "buffer_get_base"):
        getattr(base, f"ggml_backend_{name}").restype = ctypes.c_void_p
    kind, buffers = ctypes.c_void_p(base.ggml_backend_cpu_buffer_type()), []

    def asks(size):
        buffers.append(base.ggml_backend_buft_alloc_buffer(kind, ctypes.c_size_t(size)))
        middle = base.ggml_backend_buffer_get_base(ctypes.c_void_p(buffers[-1])) + size // 2
        (flags,) = (
            re.search("^VmFlags: (.*)", one, re.MULTILINE)[1].split()
            for one in re.split(r"\n(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())
            if int(one.split("-")[0], 16) <= middle < int(one.split("-")[1].split()[0], 16)
        )
        return "hg" in flags

    try:
        assert asks(64 << 20)
        # the first ones may lie where a large one of another test was freed
        assert not all(asks(16 << 20) for _ in range(64))
    finally:
        for one in buffers:
            base.ggml_backend_buffer_free(ctypes.c_void_p(one))


def test_a_block_without_the_kernels_ends_with_all_of_them(monkeypatch):
    """Products and attention; also after an error in the block."""
    given = []
    library = SimpleNamespace(gguf_spec_kernels_switch=given.append)
    monkeypatch.setattr(own_kernels, "library", lambda: library)
    with pytest.raises(ZeroDivisionError), own_kernels.switched_off():
        assert given == [0]
        raise ZeroDivisionError
    assert given == [0, 3]


@pytest.mark.parametrize(("asked", "kind", "own", "chosen"), [
    ("auto", "f16", False, "off"), ("auto", "f16", True, "on"), ("auto", "q8_0", False, "on"), ("auto", "q8_0", True, "on"),
    ("off", "f16", True, "off"), ("on", "f16", False, "on"),
])  # fmt: skip
def test_flash_attention_on_a_cpu(monkeypatch, asked, kind, own, chosen):
    """On with the own kernel, and where the type of the cache needs it."""
    monkeypatch.setattr(own_kernels, "has_own_attention", lambda *_: own)
    options = ContextOptions(flash_attention=asked, kv_type=kind)
    assert own_kernels.flash_on_cpu(None, options) == chosen


@pytest.mark.parametrize(
    ("taken", "rpc", "own"),
    [({64, 128}, (), True), ({64}, (), False), ({128}, (), False), ({64, 128}, ("x:1",), False)],
)
def test_attention_is_our_own_where_all_layers_are(monkeypatch, taken, rpc, own):
    monkeypatch.setattr(own_kernels, "head_sizes", lambda _: [(64, 64), (128, 128)])
    monkeypatch.setattr(own_kernels, "takes_attention", lambda key, *_: key in taken)
    options = SimpleNamespace(kv_type="f16", rpc=rpc)
    assert own_kernels.has_own_attention(None, options) is own


def test_a_problem_of_kernels_that_nobody_wants_is_not_kept(tmp_path, monkeypatch):
    """It may be one of that moment; the first model that wants them tests them again."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library, problems = tmp_path / "a.so", ["it fails", ""]
    library.write_text("a")
    monkeypatch.setenv("GGUF_SPEC_KERNELS_LIBRARY", str(library))
    monkeypatch.setattr(probe, "run", lambda *_, **__: problems.pop(0))
    assert own_kernels.library_problem("auto", quietly=True) == "it fails"
    assert own_kernels.library_problem("auto") == ""


@pytest.mark.parametrize(("used", "exact"), [("neondot", True), ("", False)])
def test_products_on_arm_are_exact_with_the_own_kernels_alone(monkeypatch, used, exact):
    """llama.cpp's are not, and which ones depends on how it was compiled; of types without own kernels nothing is known."""
    monkeypatch.setattr(own_kernels.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(exactness, "in_use", lambda: Kernels(used))
    q4_1 = SimpleNamespace(name="blk.0.ffn_up.weight", type=3, shape=(64, 64))
    iq3_s = SimpleNamespace(name="blk.0.ffn_down.weight", type=21, shape=(64, 64))
    options = ContextOptions()
    assert exactness.has_exact_products(SimpleNamespace(tensors=[q4_1]), options) is exact
    assert not exactness.has_exact_products(SimpleNamespace(tensors=[q4_1, iq3_s]), options)
