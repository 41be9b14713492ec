"""Each check of the doctor is well here, or says why not, and can be made to say so."""

import importlib.metadata
import json
import shutil
import sys
from collections import namedtuple

import llama_cpp
import pytest

from gguf_spec import _checks, _probe
from gguf_spec import doctor as module
from gguf_spec._cache import keep
from gguf_spec._checks import Check
from gguf_spec._context import ContextOptions
from gguf_spec._profile import keep_profile
from gguf_spec.doctor import Diagnosis, doctor
from tests.gguf import zoo
from tests.unit.test_tune import profile

OPTIONS = ContextOptions(n_ctx=64, threads=1)
GB = 10**9
AVX2 = {"AVX", "AVX2", "FMA"}
FLAGS = {_checks._FEATURES[name] for name in AVX2}


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine on which all is well: nothing of the real one is asked but llama.cpp."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_probe, "_probe", lambda: None)
    monkeypatch.setattr(_checks, "_cpu", lambda: ("A processor", FLAGS))
    monkeypatch.setattr(_checks, "physical_cores", lambda: 1)
    monkeypatch.setattr(_checks, "_quota", lambda: None)
    monkeypatch.setattr(_checks, "_NVIDIA", tmp_path / "no driver")
    monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: b"CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | NEON = 0 | REPACK = 1 | ")
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: False)
    for where in (_checks, module):
        monkeypatch.setattr(where, "available_bytes", lambda: 4 * GB)
        monkeypatch.setattr(where, "total_bytes", lambda: 8 * GB)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Models: one, a draft for it, one with other words, a recurrent one; and files that are none."""
    folder = tmp_path_factory.mktemp("models")
    zoo.write(folder / "one.gguf", zoo.llama(seed=1))
    zoo.write(folder / "draft.gguf", zoo.llama(seed=2))
    zoo.write(folder / "mamba.gguf", zoo.mamba())
    others = [*zoo.TOKENS[:-3], "<|other|>", *zoo.TOKENS[-2:]]
    zoo.write(folder / "others.gguf", zoo.llama(), tokens=others)
    (folder / "text.gguf").write_text("hello, I am no model")
    whole = (folder / "one.gguf").read_bytes()
    (folder / "short.gguf").write_bytes(whole[: len(whole) // 2])
    return folder


def found(name, diagnosis):
    (check,) = (one for one in diagnosis.checks if one.name == name)
    return check


def check(name, **options):
    return found(name, doctor(options=OPTIONS, **options))


def test_all_is_well():
    diagnosis = doctor(options=OPTIONS)
    assert [(one.name, one.todo) for one in diagnosis.checks if one.status != "ok"] == []
    assert [one.name for one in diagnosis.checks] == [
        "Python", "gguf-spec", "llama.cpp", "build", "processor", "fast kernels", "AMX", "threads", "memory", "disk", "cache", "target", "draft",
        "room", "loading", "vocabulary", "rollback", "costs",
    ]  # fmt: skip
    assert (diagnosis.ok, diagnosis.sentence) == (True, "All is well.")
    assert diagnosis.tuning is None
    assert found("costs", diagnosis).found == "not measured yet: gguf-spec tune"
    assert all(one.found for one in diagnosis.checks)


# ---- the installation


def test_an_old_python(monkeypatch):
    monkeypatch.setattr(_checks, "_OLDEST_PYTHON", (3, 99))
    assert check("Python").status == "fail"
    assert check("Python").todo == "take Python 3.99 or newer."


def test_another_version_is_installed(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99.0")
    assert check("gguf-spec").status == "warn"
    assert "99.0 is installed" in check("gguf-spec").found


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
    monkeypatch.delattr(llama_cpp, "llama_model_is_hybrid")
    assert check("llama.cpp").status == "fail"
    assert check("llama.cpp").found.endswith("lacks llama_model_is_hybrid")


def test_all_that_is_looked_for_is_there():
    assert [name for name in _checks._NEEDED if not hasattr(llama_cpp, name)] == []


def test_layers_for_a_gpu_that_the_build_does_not_know():
    build = found("build", doctor(options=ContextOptions(n_ctx=64, threads=1, gpu_layers=4)))
    assert build.status == "warn"
    assert "--gpu-layers 4 does nothing" in build.found


def test_a_gpu_that_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(_checks, "_NVIDIA", tmp_path)
    assert check("build").status == "warn"
    assert "CMAKE_ARGS" in check("build").todo


def test_a_gpu_build(monkeypatch):
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: b"CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | ")
    assert check("build") == Check("build", "ok", "with GPU offload; ARCHS, USE_GRAPHS, AVX, AVX2, FMA")
    assert "what the GPU has is not known" in check("room").found


# ---- the processor


def test_a_processor_without_what_the_build_needs(monkeypatch):
    monkeypatch.setattr(_checks, "_cpu", lambda: ("Old", {"avx"}))
    assert check("processor") == Check("processor", "fail", "Old lacks AVX2, FMA, which this build of llama.cpp needs", _checks._REBUILD)


def test_a_processor_that_can_more(monkeypatch):
    monkeypatch.setattr(_checks, "_cpu", lambda: ("New", FLAGS | {"avx512f", "avx512_vnni"}))
    assert check("processor").status == "warn"
    assert "New has AVX512, AVX512_VNNI, which" in check("processor").found


def test_a_processor_that_is_not_known(monkeypatch):
    monkeypatch.setattr(_checks, "_cpu", lambda: ("arm", set()))
    assert check("processor").status == "ok"


def test_the_processor_of_this_machine(monkeypatch):
    monkeypatch.undo()
    name, flags = _checks._cpu()
    assert name
    if sys.platform == "linux":
        assert flags & set(_checks._FEATURES.values())


def test_kernels_that_fail(monkeypatch):
    monkeypatch.setattr(_probe, "_probe", lambda: "the probe died of signal 11")
    assert check("fast kernels").status == "warn"
    assert "the probe died of signal 11" in check("fast kernels").found


def test_kernels_are_probed_once(monkeypatch):
    assert check("fast kernels").status == "ok"
    monkeypatch.setattr(_probe, "_probe", lambda: "it died")
    assert _probe.extra_bufts_work()
    assert check("fast kernels").status == "ok"


def test_kernels_that_failed_once():
    keep(_probe._cache_file(), {"ok": False, "problem": "it did not run"})
    assert check("fast kernels").status == "warn"
    assert "it did not run" in check("fast kernels").found
    assert str(_probe._cache_file()) in check("fast kernels").todo


def test_kernels_that_are_not_wanted():
    fast = found("fast kernels", doctor(options=ContextOptions(n_ctx=64, threads=1, extra_bufts=False)))
    assert (fast.status, fast.found) == ("ok", "not used: --no-extra-bufts")


@pytest.mark.parametrize(
    ("has", "built", "problem", "wanted", "status"),
    [
        (False, True, None, True, "ok"), (True, True, None, True, "ok"), (True, False, None, True, "warn"), (True, True, "it died", True, "warn"),
        (True, True, None, False, "warn"),
    ],
)  # fmt: skip
def test_amx(monkeypatch, has, built, problem, wanted, status):
    monkeypatch.setattr(_checks, "_cpu", lambda: ("Sapphire", FLAGS | ({"amx_int8"} if has else set())))
    monkeypatch.setattr(_probe, "_probe", lambda: problem)
    info = b"CPU : AVX = 1 | AVX2 = 1 | FMA = 1 | AMX_INT8 = %d | REPACK = 1 | " % built
    monkeypatch.setattr(llama_cpp, "llama_print_system_info", lambda: info)
    diagnosis = doctor(options=ContextOptions(n_ctx=64, threads=1, extra_bufts=wanted))
    assert found("AMX", diagnosis).status == status
    assert bool(found("AMX", diagnosis).todo) is (status != "ok")


@pytest.mark.parametrize(
    ("threads", "cores", "quota", "status", "said"),
    [
        (1, 1, None, "ok", "1 on 1 physical core"), (None, 4, None, "ok", "4 on 4 physical cores"), (1, 2, None, "warn", "the others idle"),
        (8, 4, None, "warn", "wait for each other"), (None, 64, 2.0, "warn", "may use 2 of them"), (None, 2, 2.0, "ok", "2 on 2"),
    ],
)  # fmt: skip
def test_threads(monkeypatch, threads, cores, quota, status, said):
    monkeypatch.setattr(_checks, "physical_cores", lambda: cores)
    monkeypatch.setattr(_checks, "_quota", lambda: quota)
    got = _checks.threads(ContextOptions(threads=threads))
    assert got.status == status
    assert said in got.found
    assert bool(got.todo) is (status == "warn")


# ---- memory and disk


def test_little_memory(monkeypatch):
    monkeypatch.setattr(_checks, "available_bytes", lambda: 200_000_000)
    assert check("memory") == Check("memory", "warn", "200 MB of 8.0 GB are free", "close other programs.")


def test_memory_that_is_not_known(monkeypatch):
    for where in (_checks, module):
        monkeypatch.setattr(where, "available_bytes", lambda: None)
        monkeypatch.setattr(where, "total_bytes", lambda: None)
    assert check("memory").status == check("room").status == "ok"


def test_a_full_disk(monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(GB, GB - 4096, 4096))
    assert check("disk").status == "warn"
    assert "XDG_CACHE_HOME" in check("disk").todo


def test_a_disk_that_does_not_answer(monkeypatch):
    def broken(path):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(shutil, "disk_usage", broken)
    assert check("disk").status == "warn"
    assert "Input/output error" in check("disk").found


@pytest.mark.parametrize("kind", ["profiles", "probe", "experience"])
def test_a_cache_that_cannot_be_written(tmp_path, kind):
    (tmp_path / "gguf-spec").mkdir()
    (tmp_path / "gguf-spec" / kind).write_text("a file, not a folder")
    assert check("cache").status == "warn"
    assert str(tmp_path / "gguf-spec" / kind) in check("cache").found


def test_a_cache_that_cannot_be_read(monkeypatch):
    monkeypatch.setattr(_checks, "recall", lambda path: None)
    assert check("cache").status == "warn"


def test_nothing_but_what_was_probed_is_left_in_the_cache(tmp_path):
    doctor(options=OPTIONS)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [_probe._cache_file()]


# ---- the models


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("file", "said"),
    [("nothing.gguf", "there is no file"), ("text.gguf", "not a GGUF file"), ("short.gguf", "cut short"), ("tail", "no model of that")],
)
def test_a_file_that_is_no_model(files, role, file, said):
    pair = {"model": files / "one.gguf", "draft": files / "draft.gguf"} | {{"target": "model", "draft": "draft"}[role]: files / file}
    diagnosis = doctor(**pair, options=OPTIONS)
    assert found(role, diagnosis).status == "fail"
    assert said in found(role, diagnosis).found
    assert found(role, diagnosis).todo
    assert diagnosis.checks[-1].name == role, "the rest depends on it"
    assert diagnosis.sentence == f"What fails: {role}."


@pytest.mark.parametrize(
    ("free", "total", "status"), [(4 * GB, 8 * GB, "ok"), (1_000_000, 8 * GB, "warn"), (100, 8 * GB, "fail"), (4 * GB, 1_000_000, "fail")]
)
def test_models_that_are_too_large(monkeypatch, free, total, status):
    monkeypatch.setattr(module, "available_bytes", lambda: free)
    monkeypatch.setattr(module, "total_bytes", lambda: total)
    diagnosis = doctor(options=OPTIONS)
    assert found("room", diagnosis).status == status
    assert found("room", diagnosis).found.startswith("11 MB, 0.7 MB of it for a context of 64")
    assert ("loading" in [one.name for one in diagnosis.checks]) is (status != "fail")


def test_a_model_that_llama_does_not_load(files, tmp_path):
    metadata, tensors = zoo.llama()
    zoo.write(tmp_path / "unknown.gguf", ({**metadata, "general.architecture": "nonesuch"}, tensors))
    loading = check("loading", model=tmp_path / "unknown.gguf", draft=None)
    assert loading.status == "fail"
    assert "nonesuch" in loading.found


def test_a_draft_with_other_words(files):
    diagnosis = doctor(files / "one.gguf", files / "others.gguf", OPTIONS)
    assert found("vocabulary", diagnosis).status == "fail"
    assert "'<|other|>' in the draft" in found("vocabulary", diagnosis).found


def test_a_draft_of_the_same_words(files):
    diagnosis = doctor(files / "one.gguf", files / "draft.gguf", OPTIONS)
    assert diagnosis.ok
    assert found("vocabulary", diagnosis).found == f"the draft speaks the target's, {len(zoo.TOKENS)} tokens"


def test_models_that_cannot_go_back(files):
    for pair in ((files / "mamba.gguf", None), (files / "one.gguf", files / "mamba.gguf")):
        diagnosis = doctor(*pair, OPTIONS)
        assert found("rollback", diagnosis).status == "warn"
        assert "mamba.gguf cannot go back" in found("rollback", diagnosis).found
        assert diagnosis.ok


@pytest.mark.parametrize(("draft", "status", "said"), [("auto", "warn", "none is known"), (None, "ok", "none"), ("ngram", "ok", "text alone")])
def test_without_a_draft(files, draft, status, said):
    diagnosis = doctor(files / "one.gguf", draft, OPTIONS)
    assert found("draft", diagnosis).status == status
    assert said in found("draft", diagnosis).found
    assert found("rollback", diagnosis).status == "ok"


def test_a_text_to_draft_from(tmp_path):
    text = tmp_path / "text"
    assert check("draft text", reference=text).status == "fail"
    text.write_text("Once")
    assert check("draft text", reference=text).status == "ok"


# ---- costs


def test_what_was_kept_is_shown():
    from gguf_spec import Speculation, load

    kept = profile({1: 0.06, 33: 0.2}, {1: 0.001}, 0.7)
    with load("tales", threads=1, extra_bufts=True, speculation=Speculation(0)) as llm, llm.models() as (target, draft):
        assert keep_profile(target, draft, kept)
    diagnosis = doctor(options=OPTIONS)
    assert diagnosis.tuning.profile == kept
    assert "70% agreement" in diagnosis.tuning.sentence
    assert found("costs", diagnosis).found == "measured in 1.5 s; gguf-spec tune measures again"
    assert doctor(draft=None, options=OPTIONS).tuning is None
    assert doctor(options=ContextOptions(threads=2)).tuning is None, "other threads, other costs"
    data = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert data["costs"]["sentence"] == diagnosis.tuning.sentence
    assert data["ok"] is True
    assert data["checks"][0].keys() == {"name", "status", "found", "todo"}


def test_the_sentence():
    def said(*statuses):
        return Diagnosis(tuple(Check(f"{i}", status, "") for i, status in enumerate(statuses)), None).sentence

    assert said("ok", "ok") == "All is well."
    assert said("ok", "warn", "warn") == "What could be better: 1, 2."
    assert said("fail", "warn", "fail") == "What fails: 0, 2; what could be better: 1."
