"""Each check of the doctor passes here or gives a reason, and can be made to fail.

The checks of the machine and of llama.cpp are given records of facts, those of models the files and
a record of the build, those of folders the folders of this test.
"""

import contextlib
import hashlib
import http.server
import importlib.metadata
import json
import os
import platform
import re
import shutil
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest

from gguf_spec import __version__
from gguf_spec.doctor import Check, Diagnosis, doctor, installation, models
from gguf_spec.doctor.build import Build, Repacking
from gguf_spec.doctor.facts import Machine, cpu_of
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama import backend, own_kernels
from gguf_spec.llama.library import gpu_backends
from gguf_spec.llama.memory import needs
from gguf_spec.llama.options import ContextOptions, Placement
from gguf_spec.llama.own_kernels import Kernels
from gguf_spec.passes import Exactness
from gguf_spec.registry.resolve import resolve
from gguf_spec.runtime.profile_files import write_profile
from gguf_spec.system.files import write_json
from gguf_spec.system.limits import ProcessorLimit
from gguf_spec.system.machine import format_bytes
from tests.support import children, tiny
from tests.unit.test_tune import profile

OPTIONS = ContextOptions(n_ctx=64, threads=1)
GB = 10**9
FLAGS = frozenset({"avx", "avx2", "fma"})
# a machine and a build without faults
MACHINE = Machine(
    python=(3, 11, 7), runs_on="(CPython) on Linux x86_64", installed=__version__, cpu="A processor", flags=FLAGS,
    physical_cores=1, processors=1, allowed=1, processor_limit=None, free=4 * GB, total=8 * GB, memory_limit="", free_disk=GB, has_nvidia=False,
)  # fmt: skip
BUILD = Build(
    version="0.3.36", ggml="0.25.3", features={"AVX": "1", "AVX2": "1", "FMA": "1", "NEON": "0", "REPACK": "1", "GPU": "0"},
    variant="", gpu_problem="", devices=(), repacking=Repacking(Path("kept.json")), kernels=Kernels("avx2"), refused=None, tiles=0,
    spin_state="set", spin_variables={}, spins=None,
)  # fmt: skip
STOCK = replace(BUILD, kernels=Kernels("", "switched off"))


def with_features(build=BUILD, **features):
    return replace(build, features={**build.features, **features})


@pytest.fixture(autouse=True)
def folders(monkeypatch, tmp_path, set_hub):
    """Folders of this test, where it is known that repacked weights work."""
    own_kernels.start()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    set_hub(HF_HUB_CACHE=str(tmp_path / "hub"))
    write_json(own_kernels.repacking_result(), {"ok": True})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, a draft for it, one with another vocabulary, a recurrent one, and invalid files."""
    folder = tmp_path_factory.mktemp("models")
    tiny.write(folder / "one.gguf", tiny.llama(seed=1))
    tiny.write(folder / "draft.gguf", tiny.llama(seed=2))
    tiny.write(folder / "mamba.gguf", tiny.mamba())
    others = [*tiny.TOKENS[:-3], "<|other|>", *tiny.TOKENS[-2:]]
    tiny.write(folder / "others.gguf", tiny.llama(), tokens=others)
    (folder / "text.gguf").write_text("hello, I am no model")
    whole = (folder / "one.gguf").read_bytes()
    (folder / "short.gguf").write_bytes(whole[: len(whole) // 2])
    return folder


def found(name, diagnosis):
    (check,) = (one for one in diagnosis.checks if one.name == name)
    return check


def examined(model="tales", draft="auto", options=OPTIONS, build=BUILD, **others):
    """The checks of a pair of models."""
    given = {"models_file": None, "loads": True, "reads_all": False} | others
    pair = models.PairChecks(options, options.for_draft(), build, **given)
    with contextlib.closing(pair):
        return Diagnosis(tuple(pair.examine(model, draft)), pair.tuning)


def test_all_checks_pass():
    checks = [
        installation.python(MACHINE), installation.package(MACHINE, __version__), *installation.of_build(MACHINE, BUILD, OPTIONS),
        installation.threads(MACHINE, OPTIONS), installation.memory(MACHINE), installation.disk(MACHINE), *examined().checks,
    ]  # fmt: skip
    assert [(one.name, one.todo) for one in checks if one.status != "ok"] == []
    assert all(one.found for one in checks)


def test_what_is_asked_of_this_machine_and_llama():
    """The checks of a whole run, in their order: with the facts of this machine."""
    diagnosis = doctor(options=OPTIONS)
    assert [one.name for one in diagnosis.checks if one.name != "devices"] == [
        "Python", "gguf-spec", "llama.cpp", "build", "processor", "fast kernels", "kernels", "AMX", "OpenMP", "threads", "memory", "disk", "cache", "history", "hub cache",
        "models file", "target", "draft", "room", "loading", "vocabulary", "rollback", "exact passes", "costs",
    ]  # fmt: skip
    assert diagnosis.ok
    assert diagnosis.tuning is None
    assert found("costs", diagnosis).found == "not measured yet; `gguf-spec tune` measures them"
    assert all(one.found for one in diagnosis.checks)


# ---- the installation


def test_an_old_python():
    one = installation.python(replace(MACHINE, python=(3, 9, 18)))
    todo = "use Python 3.10 or newer."
    assert one == Check("Python", "fail", "3.9.18 (CPython) on Linux x86_64", todo)


def test_which_version_is_installed():
    one = installation.package(replace(MACHINE, installed="99.0"), __version__)
    assert one.status == "warn"
    assert "99.0 is installed" in one.found
    one = installation.package(replace(MACHINE, installed=""), __version__)
    assert (one.status, one.todo) == ("ok", "")
    assert one.found.startswith(f"{__version__}, from ")


def test_no_llama(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    diagnosis = doctor(options=OPTIONS)
    assert found("llama.cpp", diagnosis).status == "fail"
    assert "pip install" in found("llama.cpp", diagnosis).todo
    names = [one.name for one in diagnosis.checks]
    assert "target" in names
    assert "loading" not in names
    assert not diagnosis.ok


def test_an_old_llama(monkeypatch):
    monkeypatch.delattr(llama_cpp, "llama_n_rs_seq")
    one = installation.library()
    assert one.status == "fail"
    assert one.found.endswith("it lacks llama_n_rs_seq.")


def test_layers_for_a_gpu_with_a_build_without_one():
    options = replace(OPTIONS, gpu_layers=4)
    build = installation.offload(MACHINE, BUILD, options)
    assert build.status == "fail"
    assert "it has no GPU backend, which gpu_layers=4 needs" in build.found
    broken = replace(BUILD, gpu_problem="libggml-cuda.so finds no GPU")
    for given, status in ((options, "fail"), (OPTIONS, "warn")):
        one = installation.offload(MACHINE, broken, given)
        assert (one.status, one.found) == (status, "libggml-cuda.so finds no GPU")


def test_a_gpu_that_is_not_used():
    one = installation.offload(replace(MACHINE, has_nvidia=True), BUILD, OPTIONS)
    assert one.status == "warn"
    assert "scripts/run --gpu" in one.todo


@pytest.mark.parametrize(
    ("ended", "fails"),
    [("was ended by signal 11", True), ("ended with code 1", False), ("", False)],
)
def test_a_driver_is_tried_in_another_process_first(monkeypatch, tmp_path, ended, fails):
    """With the layers and devices of the options; where it crashes nothing else is loaded."""
    tried = []

    def run(*given, **_):
        tried.append(given)
        if ended:
            raise installation.probe.ProbeError(ended)

    library = tmp_path / "libggml-vulkan.so"
    library.touch()
    monkeypatch.setattr(installation.probe, "gpu_backends", lambda _: [library])
    monkeypatch.setattr(installation.probe, "run", run)
    installation.probe.driver_problem.cache_clear()
    placement = Placement(("none",), kernels="stock")
    options = ContextOptions(n_ctx=64, threads=1, gpu_layers=0, placement=placement)
    try:
        checks = {one.name: one for one in doctor(options=options).checks}
    finally:
        installation.probe.driver_problem.cache_clear()
    assert tried == [("gpu", 0, "none")]
    assert ("GPU driver" in checks) is fails
    assert ("target" in checks) is not fails
    if fails:
        said = "llama.cpp with libggml-vulkan.so was ended by signal 11: "
        assert checks["GPU driver"].found.startswith(said)


def test_which_libraries_are_for_gpus(tmp_path):
    names = [
        "libggml.so",
        "libggml-base.so",
        "libggml-cpu.so",
        "libggml-cpu-haswell.so",
        "libggml-blas.so",
        "libggml-rpc.so",
        "libllama.v0.5.0.so",
        "ggml-cpu-zen4.dll",
        "libggml.0.dylib",
        "libggml-base.0.dylib",
        "ggml-cuda.txt",
    ]
    found = ["ggml-vulkan.dll", "libggml-cuda.so", "libggml-metal.0.dylib"]
    for name in (*names, *found):
        (tmp_path / name).touch()
    assert [one.name for one in gpu_backends(tmp_path)] == found
    assert gpu_backends(tmp_path / "none") == gpu_backends(None) == []


def test_a_backend_that_is_loaded_and_finds_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(backend, "LIBRARY_FOLDER", tmp_path)
    monkeypatch.setattr(backend, "gpu_backends", lambda folder: [folder / "libggml-cpu.so"])
    assert backend.gpu_problem() == "libggml-cpu.so finds no GPU"


def test_a_ready_made_library_without_variants():
    """That with libmtmd has one library for the CPU; it was said to be compiled."""
    build = replace(BUILD, version="0.3.36+llama.cpp.b11227")
    found = installation.offload(MACHINE, build, OPTIONS).found
    assert found.startswith("ready made, ggml 0.25.3; without GPU offload")


def test_a_gpu_build():
    features = backend.features_of(
        "CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | "
    )
    build = replace(BUILD, features=features | {"GPU": "1"}, devices=("CUDA0 (A GPU)", "CUDA1"))
    assert installation.offload(MACHINE, build, OPTIONS) == Check(
        "build", "ok", "compiled, ggml 0.25.3; with GPU offload; ARCHS, USE_GRAPHS, AVX, AVX2, FMA"
    )
    assert installation.devices(build) == [Check("devices", "ok", "CUDA0 (A GPU); CUDA1")]
    room = models.room_for(build, replace(bundled(), machine=1), "much")
    assert room.found.endswith("; the memory of the GPU is unknown")
    assert room.status == "ok"


# ---- flags that a build lacks


def test_a_build_with_llamafile_names_the_flag_and_what_to_do():
    build = with_features(LLAMAFILE="1")
    exact = models.exact_passes(build, Exactness(attention=True), None)
    assert exact.status == "ok", "own kernels are exact in any build"
    for profiled in (None, profile({1: 0.01}, exact_width=1)):
        exact = models.exact_passes(build, Exactness(), profiled)
        assert exact.status == "warn"
        assert "-DGGML_LLAMAFILE=OFF" in exact.found
        assert "pip install ." in exact.todo
        assert models.exact_passes(BUILD, Exactness(), profiled).status == "ok"
    measured = profile({1: 0.01}, exact_width=65)
    assert models.exact_passes(build, Exactness(), measured).status == "ok"


@pytest.mark.parametrize("amx", [True, False])
def test_kernels_that_crash_name_the_flags_of_amx(amx):
    crashed = Repacking(Path("kept.json"), problem="the self-test was ended by signal 11")
    build = replace(with_features(AMX_INT8=str(int(amx))), repacking=crashed)
    one = installation.fast_kernels(build)
    assert one.status == "warn"
    assert "the self-test was ended by signal 11" in one.found
    assert ("-fno-tree-dse -fno-dse" in one.todo) is amx
    assert "pip install ." in one.todo


@pytest.mark.parametrize(
    ("kernels", "status", "said"),
    [
        (("avx512vnni",), "ok", "those of gguf-spec, for avx512vnni"),
        (("", "switched off"), "ok", "those of llama.cpp: switched off"),
        (("", "it is too old", "build it."), "warn", "those of llama.cpp: it is too old"),
    ],
)
def test_the_kernels_in_use(kernels, status, said):
    found = installation.kernels(replace(BUILD, kernels=Kernels(*kernels)))
    assert (found.status, found.found, found.todo) == (status, said, "".join(kernels[2:]))


def test_kernels_that_cannot_be_had_any_more():
    used = own_kernels.start().name
    other = "stock" if used else "avx2"
    build = Build.of(replace(OPTIONS, placement=Placement(kernels=other)), OPTIONS)
    one = installation.kernels(build)
    assert one.status == "fail"
    assert f"kernels is '{other}' but must be {used or 'stock'} or auto here: " in one.found
    assert build.kernels.name == used, "what is said of them is about those in use"


# ---- the processor


def test_a_processor_without_what_the_build_needs():
    old = replace(MACHINE, cpu="Old", flags=frozenset({"avx"}))
    assert installation.processor(old, BUILD) == Check(
        "processor",
        "fail",
        "Old: AVX without AVX2 (Sandy Bridge, Ivy Bridge); it lacks AVX2, FMA, which this build of "
        "llama.cpp needs",
        installation.REBUILD,
    )


def test_a_processor_with_more_features():
    new = replace(MACHINE, cpu="New", flags=FLAGS | {"avx512f", "avx512_vnni"})
    about = "New: AVX-512 VNNI (Cascade Lake, Ice Lake, Zen 4 and later)"
    assert installation.processor(new, BUILD) == Check("processor", "ok", about), (
        "own kernels use them"
    )
    one = installation.processor(new, STOCK)
    assert one.status == "warn"
    assert f"{about}; it has AVX512, AVX512_VNNI, which" in one.found


def test_a_ready_made_build_needs_no_other():
    new = replace(MACHINE, cpu="New", flags=FLAGS | {"avx_vnni"})
    build = replace(STOCK, variant="haswell")
    found = "New: AVX-VNNI (Alder Lake and later); llama.cpp's kernels for haswell"
    assert installation.processor(new, build) == Check("processor", "ok", found)
    found = installation.offload(new, build, OPTIONS).found
    assert found.startswith("ready made, ggml 0.25.3; without GPU offload; AVX")


def test_the_generations():
    assert installation.generation({"avx2", "avx512f", "avx512_vnni", "amx_int8"}).startswith("AMX")
    assert installation.generation({"asimd", "asimddp"}).startswith("ARM with dot products")
    assert installation.generation({"sse4_2"}) == "without AVX"


def test_the_costs_of_the_other_build():
    """Those of the own kernels, of the model's file and of the width of passes are kept apart."""
    compiled, costs = profile({1: 0.02, 8: 0.04}), profile({1: 0.03, 8: 0.04})
    one = models.other_build(BUILD, "a.gguf", compiled)
    assert "not measured here; in a clone, scripts/run --ready-made doctor" in one.found
    ready_made = replace(BUILD, variant="haswell")
    one = models.other_build(replace(ready_made, kernels=STOCK.kernels), "a.gguf", costs)
    assert "not measured here; in a clone, scripts/run --native doctor" in one.found
    shown = "compiled, measured on this machine: 1.50 times as fast (1 token) and 1.00 times as fast (8 tokens)"
    assert models.other_build(ready_made, "a.gguf", costs).found == shown
    one = models.other_build(BUILD, "a.gguf", costs)
    assert one.found.startswith("ready made, measured on this machine: 1.00 times")
    assert "not measured here" in models.other_build(BUILD, "b.gguf", costs).found


def test_a_processor_that_is_not_known():
    one = installation.processor(replace(MACHINE, cpu="arm", flags=frozenset()), BUILD)
    assert (one.status, one.found) == ("ok", "arm; its features are unknown")


X86 = "model name\t: A processor\nflags\t\t: fpu avx2"


@pytest.mark.parametrize(
    ("machine", "text", "name", "flags"),
    [
        ("x86_64", X86, "A processor", {"fpu", "avx2"}), ("aarch64", "CPU architecture: 8\nFeatures\t: fp asimd", "aarch64", {"fp", "asimd"}),
        ("aarch64", X86, "A processor", set()), ("arm64", "Apple M2", "Apple M2", set()), ("riscv64", "", "riscv64", set()),
    ],
)  # fmt: skip
def test_the_name_and_the_features_of_a_processor(machine, text, name, flags):
    """An emulator shows those of its host."""
    assert cpu_of(machine, text) == (name, flags)


def test_the_processor_of_this_machine():
    machine = Machine()
    assert machine.cpu
    if sys.platform == "linux":
        assert installation.generation(machine.flags) != "without AVX"


def test_kernels_are_probed_once(monkeypatch):
    """A kept failure is tested again, as the library may have been built again; a success is not."""
    problems, file = ["it died", "", ""], own_kernels.repacking_result()
    monkeypatch.setattr(own_kernels, "repacking_problem", lambda: problems.pop(0))

    def tested():
        return Build.of(OPTIONS, OPTIONS).repacking

    assert tested() == Repacking(file)
    assert len(problems) == 3
    write_json(file, {"ok": False, "problem": "it did not run"})
    assert tested() == Repacking(file, "it died", "it did not run")
    assert tested() == Repacking(file, "", "it did not run")
    assert not own_kernels.extra_bufts_work(), "the kept result decides"
    file.unlink()
    assert tested() == Repacking(file)
    assert not problems
    assert own_kernels.extra_bufts_work()
    assert Build.of(replace(OPTIONS, extra_bufts=False), OPTIONS).repacking is None


def test_kernels_that_failed_once():
    earlier = Repacking(Path("kept.json"), earlier="it did not run")
    one = installation.fast_kernels(replace(BUILD, repacking=earlier))
    assert one.status == "warn"
    assert "it did not run" in one.found
    assert "kept.json" in one.todo


def test_kernels_that_are_switched_off():
    fast = installation.fast_kernels(replace(BUILD, repacking=None))
    assert (fast.status, fast.found) == ("ok", "not used: extra_bufts=False")


@pytest.mark.parametrize(("problem", "earlier"), [("", ""), ("it died", ""), ("", "it died")])
def test_repacked_weights_are_used_where_they_work(problem, earlier):
    assert Repacking(Path("kept.json"), problem, earlier).works is not bool(problem or earlier)


@pytest.mark.parametrize(
    ("has", "built", "problem", "wanted", "status"),
    [
        (False, True, "", True, "ok"), (True, True, "", True, "ok"), (True, False, "", True, "warn"), (True, True, "it died", True, "warn"),
        (True, True, "", False, "warn"),
    ],
)  # fmt: skip
def test_amx(has, built, problem, wanted, status):
    machine = replace(MACHINE, flags=FLAGS | ({"amx_int8"} if has else set()))
    repacking = Repacking(Path("kept.json"), problem) if wanted else None
    build = replace(with_features(STOCK, AMX_INT8=str(int(built))), repacking=repacking)
    one = installation.amx(machine, build)
    assert (one.status, bool(one.todo)) == (status, status != "ok")


@pytest.mark.parametrize(
    ("tiles", "status", "said"),
    [(0, "ok", "not used by the kernels for amx"), (1, "ok", "in use, by the kernels of"), (-1, "warn", "refuses")],
)  # fmt: skip
def test_amx_with_the_own_kernels(tiles, status, said):
    machine = replace(MACHINE, flags=FLAGS | {"amx_int8"})
    one = installation.amx(machine, replace(BUILD, kernels=Kernels("amx"), tiles=tiles))
    assert (one.status, bool(one.todo)) == (status, status != "ok")
    assert said in one.found


@pytest.mark.parametrize(
    ("state", "status", "said"),
    [
        ("set", "ok", "spin 10,000 times"), ("user", "ok", "the environment sets how long threads spin at a barrier: GOMP_SPINCOUNT=7"), ("loaded", "warn", "loaded libgomp first"),
        ("absent", "ok", "as long as they wait"), ("unknown", "ok", "on Linux only"),
    ],
)  # fmt: skip
def test_the_spin_count(state, status, said):
    build = replace(BUILD, spin_state=state, spin_variables={"GOMP_SPINCOUNT": "7"})
    one = installation.openmp(build)
    assert one.status == status
    assert said in one.found
    assert ("GOMP_SPINCOUNT=10000 before" in one.todo) is (state == "loaded")
    one = installation.openmp(replace(build, spins=7))
    assert ("spin 7 times, then sleep" in one.found) is (state == "absent")


def test_the_spin_count_of_this_process(monkeypatch):
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    build = Build.of(OPTIONS, OPTIONS)
    assert build.spin_variables["GOMP_SPINCOUNT"] == "7"
    assert build.spins == (7 if own_kernels.keeps_threads() else None)


@pytest.mark.parametrize(
    ("threads", "cores", "quota", "status", "said"),
    [
        (1, 1, None, "ok", "1 on 1 physical core"), (None, 4, None, "ok", "4 on 4 physical cores"), (1, 2, None, "warn", "the others are idle"),
        (8, 4, None, "warn", "wait for each other"), (None, 2, 2.5, "ok", "2 on 2 physical cores (the limit is 2.5: /sys/fs/cgroup/cpu.max)"),
    ],
)  # fmt: skip
def test_threads(threads, cores, quota, status, said):
    limit = quota and ProcessorLimit(quota, "/sys/fs/cgroup/cpu.max")
    machine = replace(MACHINE, physical_cores=cores, processor_limit=limit)
    got = installation.threads(machine, ContextOptions(threads=threads))
    assert got.status == status
    assert said in got.found
    assert bool(got.todo) is (status == "warn")
    for allowed in (0, 2, 64):
        machine = replace(machine, allowed=allowed, processors=64)
        found = installation.threads(machine, ContextOptions()).found
        assert ("are allowed" in found) is (allowed == 2)
        assert (" (2 of 64 processors are allowed)" in found) is (allowed == 2)


# ---- memory and disk


def test_little_memory():
    assert installation.memory(
        replace(MACHINE, free=200_000_000, memory_limit=" (a limit)")
    ) == Check("memory", "warn", "191 MiB of 7.5 GiB are free (a limit)", "close other programs.")


def test_memory_that_is_not_known():
    unknown = replace(MACHINE, free=None, total=None)
    assert installation.memory(unknown).status == "ok"
    wanted = replace(bundled(), free=None, machine=None)
    assert models.room_for(BUILD, wanted, "much") == Check("room", "ok", "much")


def test_a_full_disk():
    one = installation.disk(replace(MACHINE, free_disk=4096))
    assert one.status == "warn"
    assert "XDG_CACHE_HOME" in one.todo


def test_a_disk_that_does_not_answer(monkeypatch, tmp_path):
    def broken(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("shutil.disk_usage", broken)
    one = installation.disk(Machine())
    assert one.status == "warn"
    assert one.found == f"{tmp_path / 'gguf-spec'} cannot be examined: Input/output error"


CACHED = ("attention", "experience", "pairs", "probe", "profiles", "verified")


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", CACHED)
def test_a_cache_that_cannot_be_written(tmp_path, kind):
    shutil.rmtree(tmp_path / "gguf-spec" / "probe")
    (tmp_path / "gguf-spec" / kind).write_text("a file, not a folder")
    assert installation.cache().status == "warn"
    assert str(tmp_path / "gguf-spec" / kind) in installation.cache().found


def test_the_size_of_the_cache_is_that_of_all_its_folders(tmp_path):
    for kind in CACHED:
        (tmp_path / "gguf-spec" / kind).mkdir(exist_ok=True)
        (tmp_path / "gguf-spec" / kind / "one.json").write_bytes(bytes(1 << 20))
    measured = f"it contains {format_bytes(len(CACHED) << 20)} of measurements"
    assert installation.cache().found.endswith(measured)
    (tmp_path / "gguf-spec/models/0123").mkdir(parents=True)
    (tmp_path / "gguf-spec/models/0123/one.gguf").write_bytes(bytes(3 << 20))
    assert installation.cache().found.endswith(f"{measured}, 3.0 MiB of models")


def test_a_cache_that_cannot_be_read(monkeypatch):
    monkeypatch.setattr(installation, "read_json", lambda path: None)
    assert installation.cache().status == "warn"


def test_nothing_but_what_was_probed_is_left_in_the_cache(tmp_path):
    doctor(options=OPTIONS)
    assert [
        path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "pairs"
    ] == [own_kernels.repacking_result()]


def test_nothing_downloaded_yet(tmp_path):
    assert models.hub_cache() == Check(
        "hub cache", "ok", f"no model from the hub yet; the folder is {tmp_path / 'hub'}"
    )


def test_models_that_were_downloaded(tmp_path):
    for name, n_bytes in (
        ("models--a--b", 2_000_000),
        ("models--a--c", 500_000),
        ("datasets--a--d", 9_000_000),
    ):
        (tmp_path / "hub" / name / "blobs").mkdir(parents=True)
        (tmp_path / "hub" / name / "blobs" / "0123").write_bytes(bytes(n_bytes))
    assert re.fullmatch(
        rf"{re.escape(str(tmp_path / 'hub'))} contains 2 repositories, 2\.4 MiB; .* are free there",
        models.hub_cache().found,
    )


def test_a_hub_cache_that_cannot_be_read(tmp_path):
    (tmp_path / "hub").write_text("a file, not a folder")
    assert models.hub_cache().status == "fail"
    assert (
        f"{tmp_path / 'hub'} cannot be read, so no downloaded model is found: Not a directory"
        in models.hub_cache().found
    )
    assert "HF_HOME" in models.hub_cache().todo


def test_a_hub_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "hub").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert models.hub_cache().status == "warn"
    assert "no model can be downloaded because the folder is read-only" in models.hub_cache().found


def test_no_library_for_the_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for one in (models.hub_cache(), models.hub()):
        assert one.status == "fail"
        assert "pip install" in one.todo


# ---- the user's models file


def test_a_models_file_with_a_mistake(tmp_path):
    own = tmp_path / "config" / "gguf-spec" / "models.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("models:\n  mine:\n    path: mine.gguf\n    draught: ngram\n")
    assert models.models_file(None).status == "fail"
    assert f"{own}, line 4" in models.models_file(None).found
    assert "draught" in models.models_file(None).found
    assert models.models_file(None).todo


def test_models_files_that_are_read(tmp_path):
    own, given = tmp_path / "config" / "gguf-spec" / "models.yaml", tmp_path / "given.yaml"
    assert f"there is no file of your own at {own}" in models.models_file(None).found
    n_models = int(models.models_file(None).found.split()[0])
    own.parent.mkdir(parents=True)
    for path, name in ((own, "mine"), (given, "yours")):
        path.write_text(f"models:\n  {name}: {{path: {name}.gguf}}\n")
    both = models.models_file(given)
    assert both.status == "ok"
    assert both.found == f"{n_models + 2} models have names; with {own} and {given}"


def test_a_models_file_that_is_not_there(tmp_path):
    assert models.models_file(tmp_path / "none.yaml").status == "fail"


# ---- the hub


@pytest.fixture
def served(set_hub):
    """Serve a status to the hub's library; return the requested paths."""
    asked, servers = [], []

    def serve(status):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self):
                asked.append(self.path)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        set_hub(ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        return asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(("answer", "status"), [(200, "ok"), (404, "fail"), (503, "fail")])
def test_a_hub_that_answers(served, answer, status):
    asked = served(answer)
    hub = models.hub()
    assert hub.status == status
    assert asked == ["/"]
    found = re.sub(r":\d+", "", hub.found)  # the port may contain any digits
    assert ("503" in found) is (answer == 503)
    assert bool(hub.todo) is (status != "ok")


def test_a_hub_that_cannot_be_reached(set_hub):
    set_hub(ENDPOINT="http://127.0.0.1:9")
    hub = models.hub()
    assert hub.status == "fail"
    assert hub.found.startswith("http://127.0.0.1:9 cannot be reached: ")
    assert "HF_ENDPOINT" in hub.todo


def test_no_request_without_the_option(served):
    asked = served(200)
    assert "hub" not in [one.name for one in doctor(options=OPTIONS).checks]
    assert asked == []


# ---- what is said of this very machine


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="told by Linux")
def test_every_check_of_this_machine_passes(monkeypatch, tmp_path, capfd):
    from gguf_spec.llama.context import Context

    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    diagnosis = doctor(options=ContextOptions(n_ctx=512))

    def said(name):
        return found(name, diagnosis).found

    def run(*command):
        return children.run(command, capture_output=True, text=True, check=True).stdout

    assert said("Python").startswith(run(sys.executable, "-V").split()[1] + " ")
    assert said("Python").endswith(f"on {run('uname', '-s').strip()} {run('uname', '-m').strip()}")
    assert said("llama.cpp") == f"llama-cpp-python {importlib.metadata.version('llama-cpp-python')}"
    cpuinfo = [
        dict(re.findall(r"^(.+?)\s*: (.*)$", one, re.MULTILINE))
        for one in Path("/proc/cpuinfo").read_text().strip().split("\n\n")
    ]
    here = [one for one in cpuinfo if int(one["processor"]) in os.sched_getaffinity(0)]
    cores = len({(one.get("physical id"), one.get("core id", one["processor"])) for one in here})
    assert found("threads", diagnosis).found.startswith(f"{cores} on {cores} physical core")
    flags = set((cpuinfo[0].get("flags") or cpuinfo[0].get("Features", "")).split())
    assert said("processor").startswith(cpuinfo[0].get("model name", platform.machine()))
    assert (said("AMX") == "this processor has no AMX") is ("amx_int8" not in flags)

    meminfo = dict(
        re.findall(r"^(\w+): +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    )
    free, total = (
        float(n)
        for n in re.fullmatch(r"([\d.]+) GiB of ([\d.]+) GiB are free", said("memory")).groups()
    )
    assert total <= int(meminfo["MemTotal"]) / 2**20 + 0.06
    assert free <= int(meminfo["MemAvailable"]) / 2**20 + 0.5
    disk = os.statvfs(tmp_path)
    assert said("disk").endswith(f" are free in {tmp_path / 'gguf-spec'}")
    assert float(re.match(r"[\d,.]+", said("disk"))[0].replace(",", "")) == pytest.approx(
        disk.f_bavail * disk.f_frsize / 2**30, abs=0.5
    )

    folder = Path(installation.__file__).parents[1] / "data" / "tales"
    for role, name in (("target", "tales-target-Q8_0.gguf"), ("draft", "tales-draft-Q4_0.gguf")):
        n_bytes = int(run("wc", "-c", str(folder / name)).split()[0])
        assert said(role).startswith(f"{name}: llama, {n_bytes / 2**20:.1f} MiB, ")
    capfd.readouterr()
    Context(folder / "tales-draft-Q4_0.gguf", ContextOptions(n_ctx=64, verbose=True)).sequences[
        0
    ].close()
    log = capfd.readouterr().err
    if "CPU_REPACK model buffer size" in log or "AMX model buffer size" in log:
        assert said("fast kernels").startswith("weights are repacked")
    says = llama_cpp.llama_print_system_info().decode()
    used = re.fullmatch(r"with(?:out)? GPU offload; (.*)", said("build"))
    assert used is None or used[1].split(", ") == re.findall(r"(\w+) = [1-9]", says)
    assert diagnosis.ok, diagnosis.sentence


# ---- the models


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("nothing.gguf", "there is no file"),
        ("text.gguf", "not a GGUF file"),
        ("short.gguf", "cut short"),
        ("tail", "no model with that"),
    ],
)
def test_a_file_that_is_not_a_model(files, role, file, said):
    pair = {"model": files / "one.gguf", "draft": files / "draft.gguf"} | {
        {"target": "model", "draft": "draft"}[role]: files / file
    }
    diagnosis = examined(**pair)
    assert found(role, diagnosis).status == "fail"
    assert said in found(role, diagnosis).found
    assert found(role, diagnosis).todo
    assert diagnosis.checks[-1].name == role, "the rest depends on it"
    assert diagnosis.sentence == f"Failed: {role}."


@pytest.mark.parametrize(
    ("of", "more", "status"),
    [
        ("added", 1000, "ok"),
        ("added", -1000, "warn"),
        ("own", 1000, "warn"),
        ("own", -1000, "fail"),
    ],
)
def test_models_that_are_too_large(of, more, status):
    wanted = bundled()
    room = models.room_for(BUILD, replace(wanted, free=getattr(wanted, of) + more), "much", 512)
    assert room.status == status
    assert room.found.startswith("much; ")
    assert bool(room.todo) is (status != "ok")
    if status == "fail":
        assert room.todo == "set n_ctx=512, which would fit."


def test_the_memory_of_a_pair():
    said = format_bytes(bundled().added)
    wanted = rf"{re.escape(said)}, 2\.5 MiB of it for a context of 64; .* are free"
    assert re.match(wanted, found("room", examined()).found)


def test_a_machine_that_is_too_small():
    room = models.room_for(BUILD, replace(bundled(), machine=1_000_000), "much")
    assert room.status == "fail"
    assert room.todo.startswith("the weights alone do not fit: ")


@pytest.mark.parametrize(("fitting", "proposed"), [(1024, 1024), (100_000, 2048)])
def test_a_context_that_is_too_long(free_memory, fitting, proposed):
    """The hint proposes the longest one that fits, and at most the 2,048 tokens of the training."""
    free_memory(bundled(ContextOptions(n_ctx=fitting, threads=1)).own)
    diagnosis = examined(options=ContextOptions(n_ctx=200_000, threads=1))
    room = found("room", diagnosis)
    assert (room.status, room.todo) == ("fail", f"set n_ctx={proposed}, which would fit.")
    assert diagnosis.checks[-1] == room, "nothing is loaded"


def test_how_long_the_context_of_a_server_may_grow(free_memory, tmp_path):
    """Where a tenth of the free memory does not hold a long one, it says what `serve` may take."""
    path = tiny.write(
        tmp_path / "m.gguf", tiny.llama(n_layer=8), metadata={"llama.context_length": 32768}
    )
    options = ContextOptions(threads=1)
    pair = [(read_header(path), ContextOptions(n_ctx=32768, threads=1))]
    free = needs(pair).own + 1000
    for given, said in ((free, "serve lets it grow to 32,768"), (None, "trained for 32,768")):
        free_memory(given)
        room = found("room", examined(path, "none", options))
        assert said in room.found
        assert ("grow" in room.found) is (given is not None)


def bundled(options=OPTIONS):
    folder = Path(installation.__file__).parents[1] / "data" / "tales"
    headers = [
        read_header(folder / name) for name in ("tales-target-Q8_0.gguf", "tales-draft-Q4_0.gguf")
    ]
    return needs([(header, options) for header in headers])


def test_a_model_that_was_not_downloaded(tmp_path):
    given = tmp_path / "given.yaml"
    given.write_text(f"models:\n  far: {{repo: a/b, file: far.gguf, revision: {'a' * 40}}}\n")
    for role, pair in (("target", ("far", "none")), ("draft", ("tales", "far"))):
        diagnosis = examined(*pair, models_file=given)
        assert found(role, diagnosis).status == "fail"
        assert found(role, diagnosis).todo == "to download it, use gguf_spec.pull('far')."
        assert diagnosis.checks[-1].name == role


def test_a_model_that_llama_does_not_load(files, tmp_path):
    metadata, tensors = tiny.llama()
    tiny.write(
        tmp_path / "unknown.gguf", ({**metadata, "general.architecture": "nonesuch"}, tensors)
    )
    loading = found("loading", examined(tmp_path / "unknown.gguf", None))
    assert loading.status == "fail"
    assert "nonesuch" in loading.found


def test_a_draft_with_another_vocabulary(files):
    diagnosis = examined(files / "one.gguf", files / "others.gguf")
    assert found("vocabulary", diagnosis).status == "ok"
    assert "has another tokenizer" in found("vocabulary", diagnosis).found


def test_a_draft_with_the_same_vocabulary(files):
    diagnosis = examined(files / "one.gguf", files / "draft.gguf")
    assert diagnosis.ok
    assert (
        found("vocabulary", diagnosis).found
        == f"the draft has that of the target, {len(tiny.TOKENS)} tokens"
    )


def test_models_whose_state_is_copied(files):
    for pair in ((files / "mamba.gguf", None), (files / "one.gguf", files / "mamba.gguf")):
        diagnosis = examined(*pair)
        check = found("rollback", diagnosis)
        assert check.status == "ok"
        assert "mamba.gguf (recurrent or hybrid) copies its state" in check.found
        assert diagnosis.ok


def test_a_model_with_snapshots(files, tmp_path):
    file = tiny.write(tmp_path / "lfm2.gguf", tiny.lfm2())
    check = found("rollback", examined(file, None))
    assert check.status == "ok"
    assert "snapshots of its state after the last 9 tokens" in check.found


@pytest.mark.parametrize("problem", ["", "it died"])
def test_models_are_examined_with_repacked_weights_where_these_work(monkeypatch, problem):
    given = []

    class Examined(models.PairChecks):
        def __init__(self, *options, **more):
            given.extend(options[:2])
            super().__init__(*options, **more)

    monkeypatch.setattr(models, "PairChecks", Examined)
    write_json(own_kernels.repacking_result(), {"ok": not problem, "problem": problem})
    doctor(options=OPTIONS)
    assert [one.extra_bufts for one in given] == [not problem] * 2


def test_nothing_is_loaded_on_a_device_that_does_not_exist(files):
    wrong = replace(OPTIONS, placement=Placement(("Nothing7",)))
    for given, of_draft in ((wrong, None), (OPTIONS, wrong)):
        diagnosis = doctor(files / "one.gguf", files / "draft.gguf", given, draft_options=of_draft)
        assert found("devices", diagnosis).status == "fail"
        assert "Nothing7" in found("devices", diagnosis).found
        assert "loading" not in {check.name for check in diagnosis.checks}


def test_models_that_decode_plainly(files):
    options = replace(OPTIONS, parallel=2)
    check = found("rollback", examined(files / "mamba.gguf", None, options))
    assert check.status == "warn"
    assert "its state is not restored with parallel requests" in check.found


@pytest.mark.parametrize(
    ("draft", "status", "said"),
    [
        ("auto", "warn", "no draft on this disk makes one.gguf faster"),
        (None, "ok", "none"),
        ("ngram", "ok", "text only"),
    ],
)
def test_without_a_draft(files, draft, status, said):
    diagnosis = examined(files / "one.gguf", draft)
    assert found("draft", diagnosis).status == status
    assert said in found("draft", diagnosis).found
    assert found("rollback", diagnosis).status == "ok"


def test_a_text_to_draft_from(tmp_path):
    text = tmp_path / "text"
    assert found("draft text", doctor(options=OPTIONS, reference=text)).status == "fail"
    text.write_text("Once")
    assert found("draft text", doctor(options=OPTIONS, reference=text)).status == "ok"


# ---- costs


@pytest.mark.full
def test_what_was_kept_is_shown():
    from gguf_spec import Speculation, load

    kept = profile({1: 0.06, 33: 0.2}, {1: 0.001}, 0.7)
    with (
        load("tales", threads=1, extra_bufts=True, speculation=Speculation(0)) as llm,
        llm.models() as (target, draft),
    ):
        assert write_profile(target, draft, kept)
    diagnosis = doctor(options=OPTIONS)
    assert diagnosis.tuning.profile == kept
    assert "70% agreement" in diagnosis.tuning.sentence
    assert (
        found("costs", diagnosis).found == "measured in 1.5 s; `gguf-spec tune` measures them again"
    )
    assert doctor(draft=None, options=OPTIONS).tuning is None
    assert write_profile(target, draft, replace(kept, steady=False))
    diagnosis = doctor(options=OPTIONS)
    check = found("costs", diagnosis)
    assert (check.status, check.found) == ("warn", "measured in 1.5 s beside other programs")
    assert check.todo == "run `gguf-spec tune` when the machine is idle."
    assert diagnosis.tuning.sentence.endswith(diagnosis.tuning.profile.disturbed)
    assert doctor(options=ContextOptions(threads=2)).tuning is None, "other threads, other costs"
    data = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert data["costs"]["sentence"] == diagnosis.tuning.sentence
    assert data["ok"] is True
    assert data["checks"][0].keys() == {"name", "status", "found", "todo"}


def test_the_sentence():
    def said(*statuses):
        return Diagnosis(
            tuple(Check(f"{i}", status, "") for i, status in enumerate(statuses)), None
        ).sentence

    assert said("ok", "ok") == "No problem was found."
    assert said("ok", "warn", "warn") == "Could be better: 1, 2."
    assert said("fail", "warn", "fail") == "Failed: 0, 2; could be better: 1."


def read_all(path, draft="none"):
    names = ("target file", "draft file")
    checks = examined(path, draft, reads_all=True).checks
    return [(one.status, one.found) for one in checks if one.name in names]


def test_files_that_are_read_completely(files, tmp_path):
    path = tmp_path / "one.gguf"
    data = (files / "one.gguf").read_bytes()
    path.write_bytes(data)
    ((status, said),) = read_all(path)
    assert status == "ok" and said.endswith("were read; their sha256 is not known")
    assert [one[0] for one in read_all(path, files / "draft.gguf")] == ["ok", "ok"]
    names = {one.name for one in examined(path, "none").checks}
    assert "target file" not in names
    path.write_bytes(data + b"x" * (1 << 20))
    ((status, said),) = read_all(path)
    assert (status, said) == ("warn", "one.gguf has 1,048,576 bytes more than its header says")
    path.write_bytes(data + bytes(6 << 20))
    ((status, said),) = read_all(path)
    assert status == "warn" and "has only zeros from byte" in said


def test_holes_and_rows_that_are_not_used(tmp_path):
    """A hole ends within rows; rows of unused tokens end where rows do, as in TinyLlama's IQ2_XXS."""
    from gguf_spec.doctor.models import contents

    path = tmp_path / "tales.gguf"
    path.write_bytes(resolve("tales").path.read_bytes())
    header, data = read_header(path), path.read_bytes()
    (one,) = (one for one in header.tensors if one.name == "blk.1.ffn_up.weight")
    start, row = header.data_at + one.offset, one.n_bytes // one.shape[1]

    def said(begin, end):
        path.write_bytes(data[:begin] + bytes(end - begin) + data[end:])
        check = contents("target", header)
        return check.found if check.status == "warn" else check.status

    n = (1 << 16) // row + 1
    assert said(0, 0) == "ok"
    for n_rows in (n, n + 1, 2 * n):
        assert said(start + row, start + (1 + n_rows) * row) == "ok"
        assert said(start + row - 9, start + (1 + n_rows) * row + 9) == "ok", "zeros beside them"
        assert said(start + row, start + (1 + n_rows) * row + row // 2) == "ok", "padded to a width"
    half = row // 2
    hole = start + row + half, start + (1 + n) * row + half
    assert "has only zeros from byte" in said(*hole)
    assert said(hole[0], hole[0] + row - 9) == "ok", "it is short"
    # pages: those that begin or end where a row does, by chance, look like rows
    pages = range(header.data_at // 4096 * 4096 + 4096, len(data) - (1 << 16), 37 << 12)
    found = [said(at, at + (1 << 16)) != "ok" for at in pages]
    assert sum(found) > 0.75 * len(found)


def test_a_file_named_by_its_hash(files, tmp_path):
    data = (files / "one.gguf").read_bytes()
    path = tmp_path / f"sha256-{hashlib.sha256(data).hexdigest()}"
    path.write_bytes(data)
    ((status, said),) = read_all(path)
    assert status == "ok" and said.endswith("and their sha256 is the known one")
    at = len(data) - 40  # a weight
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    ((status, said),) = read_all(path)
    assert status == "fail" and "is its name" in said


def test_a_file_with_a_hash_in_models_yaml(files, tmp_path):
    from gguf_spec.doctor.models import contents
    from gguf_spec.registry.models_file import Part

    header = read_header(files / "one.gguf")
    digest = hashlib.sha256((files / "one.gguf").read_bytes()).hexdigest()
    for known, status in ((digest, "ok"), ("0" * 64, "fail")):
        entry = SimpleNamespace(parts=(Part("one.gguf", None, known),))
        assert contents("target file", header, entry).status == status


def test_what_is_kept_of_chats(tmp_path):
    assert installation.history().found == "nothing of a chat is kept"
    chats = tmp_path / "state" / "gguf-spec" / "chats"
    chats.mkdir(parents=True)
    (chats / "1.json").write_text("x" * 1000)
    (chats.parent / "chat-history").write_text("y" * 24)
    assert installation.history().found.startswith(
        f"1 chat and typed lines in {chats.parent}, 1,024 bytes; "
    )


def test_drivers_that_work_are_asked_again_after_a_change(monkeypatch, tmp_path):
    """A crash is found again each time: the user may have mended it."""
    tried, ended = [], []
    library = tmp_path / "libggml-cuda.so"
    library.touch()

    def run(*given, **_):
        tried.append(given)
        if ended:
            raise installation.probe.ProbeError(*ended)

    def ask():
        installation.probe.driver_problem.cache_clear()
        try:
            return installation.probe.driver_problem()
        finally:
            installation.probe.driver_problem.cache_clear()

    monkeypatch.setattr(installation.probe, "gpu_backends", lambda _: [library])
    monkeypatch.setattr(installation.probe, "run", run)
    assert [ask(), ask(), len(tried)] == ["", "", 1]
    for n, change in enumerate(
        (
            partial(library.write_text, "another one"),
            partial(monkeypatch.setenv, "CUDA_VISIBLE_DEVICES", "1"),
            partial(monkeypatch.setattr, installation.probe.platform, "release", lambda: "9.9"),
        ),
        2,
    ):
        change()
        assert [ask(), ask(), len(tried)] == ["", "", n]
    ended.append("did not run: it timed out after 60 seconds")
    library.write_text("a slow one")
    assert [ask(), ask(), len(tried)] == ["", "", 5]
    ended[:] = ["was ended by signal 6"]
    library.write_text("and another")
    assert [ask(), ask()] == ["with libggml-cuda.so was ended by signal 6"] * 2
    assert len(tried) == 7
    monkeypatch.setenv("GGUF_SPEC_ASKS_DRIVERS", "1")
    assert [ask(), len(tried)] == ["", 7]
