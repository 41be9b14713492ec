"""Settings that change a bit or a time select another profile and another session."""

import platform
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import own_kernels
from gguf_spec.llama.options import Adapter, ContextOptions, Placement
from gguf_spec.runtime import profile_files as profile
from gguf_spec.runtime import session_file
from gguf_spec.runtime.profile_files import ModelKey
from gguf_spec.system import files as files_module
from gguf_spec.system.limits import ProcessorLimit


@pytest.fixture
def files(tmp_path):
    for name in ("model", "other", "adapter", "another"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


def changes(files):
    """Other settings of a model with one adapter, one at a time."""
    return {
        "flash_attention": {"flash_attention": "on"},
        "kv_type": {"kv_type": "bf16"},
        "gpu_layers": {"gpu_layers": 3},
        "extra_bufts": {"extra_bufts": False},
        "device": {"placement": Placement(("none",))},
        "experts": {"placement": Placement(n_cpu_moe=1)},
        "tensors": {"placement": Placement(overrides=(("ffn", "CPU"),))},
        "numa": {"placement": Placement(numa="isolate")},
        "no adapter": {"lora": ()},
        "scale": {"lora": (Adapter(files / "adapter", 0.5),)},
        "adapter": {"lora": (Adapter(files / "another"),)},
        "two": {"lora": (Adapter(files / "adapter"), Adapter(files / "another"))},
    }


def usual(files):
    return ContextOptions(threads=2, lora=(Adapter(files / "adapter"),))


def test_each_setting_has_a_profile_of_its_own(files, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(files))
    options = usual(files)
    settings = {"usual": {}, "threads": {"threads": 1}, **changes(files)}
    names = {
        name: profile.profile_file(
            ModelKey(ModelFile(files / "model"), replace(options, **change)), None
        )
        for name, change in settings.items()
    }
    names |= {
        "other model": profile.profile_file(ModelKey(ModelFile(files / "other"), options), None),
        "draft": profile.profile_file(
            ModelKey(ModelFile(files / "model"), options),
            ModelKey(ModelFile(files / "other"), options),
        ),
        "draft's cache": profile.profile_file(
            ModelKey(ModelFile(files / "model"), options),
            ModelKey(ModelFile(files / "other"), replace(options, kv_type="bf16")),
        ),
        "experience": profile.profile_file(
            ModelKey(ModelFile(files / "model"), options), None, "experience"
        ),
    }
    assert len(set(names.values())) == len(names)
    (files / "copy").write_bytes(b"model")
    assert (
        profile.profile_file(ModelKey(ModelFile(files / "copy"), options), None) == names["usual"]
    ), "a file that was moved is still measured"


@pytest.mark.parametrize(
    "find", [profile.profile_file, lambda *models: session_file._about(models[0])]
)
def test_the_name_of_the_host_selects_nothing(files, monkeypatch, find):
    """Each container has its own, and a laptop that of its network."""
    monkeypatch.setattr(platform, "node", lambda: "one")
    model = SimpleNamespace(
        file=ModelFile(files / "model"),
        options=usual(files),
        flash_attention="off",
        n_ctx=512,
        cached=[1],
        n_read=0,
    )
    before = find(model, None)
    monkeypatch.setattr(platform, "node", lambda: "another")
    assert find(model, None) == before


def test_times_depend_on_the_limit_of_processor_time(files, monkeypatch):
    model = ModelKey(ModelFile(files / "model"), usual(files))
    names = {profile.profile_file(model, None)}
    for processors in (0.5, 1.5):
        limit = ProcessorLimit(processors, "cpu.max")
        monkeypatch.setattr(files_module, "processor_limit", lambda limit=limit: limit)
        names.add(profile.profile_file(model, None))
    assert len(names) == 3


def test_each_setting_has_sessions_of_its_own(files, monkeypatch):
    def made_by(file="model", flash="off", n_ctx=512, **change):
        options = replace(usual(files), **change)
        model = SimpleNamespace(
            file=ModelFile(files / file),
            options=options,
            flash_attention=flash,
            n_ctx=n_ctx,
            cached=[1],
            n_read=0,
        )
        return session_file._about(model)["made_by"]

    del (settings := changes(files))["flash_attention"]  # what counts is what `auto` stands for
    found = {
        "usual": made_by(),
        "model": made_by("other"),
        "flash": made_by(flash="on"),
        "n_ctx": made_by(n_ctx=513),
    }
    found |= {name: made_by(**change) for name, change in settings.items()}
    monkeypatch.setattr(session_file, "this_machine", lambda: ["another machine"])
    found["machine"] = made_by()
    monkeypatch.undo()
    monkeypatch.setattr(session_file, "library_parts", lambda: ["another build"])
    found["library"] = made_by()
    monkeypatch.undo()
    monkeypatch.setattr(own_kernels, "parts", lambda: ["other kernels"])
    found["kernels"] = made_by()
    monkeypatch.undo()
    assert len(set(found.values())) == len(found)
