"""Layers on a GPU: devices, buffers, exactness and memory. Skipped unless llama.cpp finds a GPU.

Mesa's lavapipe is one that every machine can run; docs/tuning.md has the build. Then

    LLAMA_CPP_LIB_PATH=FOLDER/vulkan GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_FUSION=1 pytest tests/gpu
"""

import re

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation, errors
from gguf_spec.doctor import ContextOptions, doctor
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama import memory
from gguf_spec.llama.backend import offloads
from gguf_spec.llama.context import Context
from gguf_spec.llama.devices import devices
from gguf_spec.llama.memory import cache_bytes, offloaded
from gguf_spec.llama.options import LAYERS_MAX, Placement
from tests.support import tiny

pytestmark = pytest.mark.skipif(not offloads(), reason="llama.cpp finds no GPU")
MIB = 1 << 20
N_LAYER = 4


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A mixture of experts and a plain model that drafts for it."""
    folder = tmp_path_factory.mktemp("gpu")
    tiny.write(folder / "mixture.gguf", tiny.mixture(n_layer=N_LAYER, n_ff=512))
    tiny.write(folder / "plain.gguf", tiny.llama(seed=1, n_layer=N_LAYER))
    return folder


@pytest.fixture(scope="module")
def gpu():
    return devices()[0].name


def buffers(capfd, path, **options):
    """Load a model and return the sizes of its buffers from llama.cpp's log: kind -> device -> MiB."""
    capfd.readouterr()
    how = {"n_ctx": 256, "threads": 1, "extra_bufts": False, "flash_attention": "off"}
    Context(path, ContextOptions(**how, **options, verbose=True)).sequences[0].close()
    found = {"model": {}, "KV": {}, "compute": {}}
    for name, kind, n in re.findall(
        r"(\S+) (model|KV|compute) buffer size = +([\d.]+) MiB", capfd.readouterr().err
    ):
        found[kind][name] = found[kind].get(name, 0.0) + float(n)
    return found


@pytest.mark.parametrize("file", ["mixture.gguf", "plain.gguf"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gpu_layers": 0},
        {"gpu_layers": 1},
        {"gpu_layers": 3},
        {"placement": Placement(n_cpu_moe=LAYERS_MAX)},
        {"placement": Placement(n_cpu_moe=1)},
        {"placement": Placement(overrides=((r"attn_q", "CPU"),))},
        {"placement": Placement(("none",))},
    ],
    ids=str,
)
def test_weights_and_cache_are_where_the_options_say(files, gpu, capfd, file, options):
    """The estimate is that of llama.cpp, by its log."""
    found = buffers(capfd, files / file, **options)
    header, how = read_header(files / file), ContextOptions(n_ctx=256, flash_attention="off")
    how = ContextOptions(n_ctx=256, flash_attention="off", **options)
    there = offloaded(header, how)
    is_none = how.placement.devices == ("none",)
    wanted = 0.0 if is_none else there.n_bytes / MIB
    assert found["model"].get(gpu, 0.0) == pytest.approx(wanted, abs=0.02)
    share = 0.0 if is_none else there.share
    cache = cache_bytes(header, how, 256) * share / MIB
    assert found["KV"].get(gpu, 0.0) == pytest.approx(cache, abs=0.02)


@pytest.mark.parametrize("file", ["mixture.gguf", "plain.gguf"])
def test_what_a_device_needs_is_not_underestimated(files, gpu, capfd, file):
    for options in ({}, {"gpu_layers": 2}, {"placement": Placement(n_cpu_moe=2)}):
        found = buffers(capfd, files / file, **options)
        used = sum(sizes.get(gpu, 0.0) for sizes in found.values()) * MIB
        how = ContextOptions(n_ctx=256, flash_attention="off", **options)
        estimate = memory.device_bytes(read_header(files / file), how, 256, 1)
        assert used <= 1.02 * estimate + MIB


def test_a_single_tensor_on_the_gpu(files, gpu, capfd):
    placement = Placement(overrides=((r"^blk\.0\.attn_q\.weight$", gpu),))
    found = buffers(capfd, files / "plain.gguf", gpu_layers=0, placement=placement)
    assert found["model"][gpu] == pytest.approx(64 * tiny.N_EMBD * 4 / MIB, abs=0.02)


def test_auto_takes_what_fits(files, gpu, capfd, monkeypatch):
    """The free memory is made small; llama.cpp then has the chosen layers there, and no more."""
    path = files / "mixture.gguf"
    everything = buffers(capfd, path, gpu_layers="auto")["model"][gpu]
    assert everything == pytest.approx(
        offloaded(read_header(path), ContextOptions())[0] / MIB, abs=0.02
    )
    every = memory.device_bytes(read_header(path), ContextOptions(n_ctx=256), 256, 1)
    monkeypatch.setattr(memory, "room_of", lambda _: 0.8 * every)
    some = buffers(capfd, path, gpu_layers="auto")["model"][gpu]
    assert 0 < some < everything
    monkeypatch.setattr(memory, "room_of", lambda _: 0.0)
    assert gpu not in buffers(capfd, path, gpu_layers="auto")["model"]


def test_an_unknown_device_lists_the_devices(files, gpu):
    with pytest.raises(errors.InvalidOptionError, match=re.escape(f"must be {gpu} (")):
        gguf_spec.load(files / "plain.gguf", None, device="Nothing7")
    with pytest.raises(errors.InvalidOptionError, match=re.escape(f"PATTERN=DEVICE, with {gpu} (")):
        gguf_spec.load(files / "plain.gguf", None, override_tensor="attn=Nothing7")


@pytest.mark.parametrize("file", ["mixture.gguf", "plain.gguf"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"gpu_layers": 2},
        {"flash_attention": "on", "kv_type": "q8_0"},
        {"draft_device": "none"},
        {"device": "none", "draft_device": "GPU"},
        {"n_cpu_moe": 2},
    ],
    ids=str,
)
def test_texts_differ_only_at_counted_near_ties(files, gpu, file, options):
    if file == "plain.gguf" and "n_cpu_moe" in options:
        options = {"gpu_layers": 4}
    options = {name: gpu if value == "GPU" else value for name, value in options.items()}
    draft = files / ("plain.gguf" if file == "mixture.gguf" else "mixture.gguf")
    with gguf_spec.load(
        files / file, draft, threads=1, n_ctx=128, extra_bufts=False, **options
    ) as llm:
        for seed in range(2):
            sampling = Sampling(seed=seed, temperature=float(seed), max_tokens=24, ignore_eos=True)
            llm.forget()
            plain = llm.generate("The other", sampling, speculation=Speculation(0))
            for speculation in (
                Speculation(4, adaptive=False, drafter="model", exact=False),
                Speculation(),
            ):
                llm.forget()
                burst = llm.generate("The other", sampling, speculation=speculation)
                assert burst.tokens == plain.tokens or burst.stats.n_near_ties


def test_draft_and_target_are_on_different_devices(files, gpu, capfd):
    capfd.readouterr()
    with gguf_spec.load(
        files / "mixture.gguf", files / "plain.gguf", threads=1, n_ctx=128, extra_bufts=False,
        device="none", draft_device=gpu, verbose=True,
    ) as llm, llm.models() as (target, draft):  # fmt: skip
        log = capfd.readouterr().err
        on_gpu = re.findall(rf"{gpu} model buffer size = +([\d.]+)", log)
        assert float(on_gpu[-1]) == pytest.approx(
            offloaded(draft.file.header, draft.options).n_bytes / MIB, abs=0.02
        )
        assert not target.slow_first_pass
        assert draft.slow_first_pass


def test_the_exact_width_is_only_what_was_measured(files):
    """Wide passes use other kernels, so prompts are read on a grid."""
    model = Context(files / "plain.gguf", ContextOptions(n_ctx=256, threads=1)).sequences[0]
    try:
        assert model.exactness.grid
        assert not model.exactness.attention
        tokens = [i % 200 for i in range(40)]
        rows = np.concatenate([model.logits([token], 1).copy() for token in tokens[:33]])
        model.rollback(0)
        assert np.abs(model.logits(tokens[:33], 33) - rows).max() < 0.5
    finally:
        model.close()


def test_the_clock_of_a_pass_has_the_work_of_the_device(files):
    """A pass ends after the device has computed the rows: reading them takes no more time."""
    import time

    model = Context(files / "mixture.gguf", ContextOptions(n_ctx=256, threads=1)).sequences[0]
    try:
        for _ in range(2):
            model.rollback(0)
            before, started = model.busy_s, time.perf_counter()
            float(model.logits(list(range(64)), 64).sum())
            whole, counted = time.perf_counter() - started, model.busy_s - before
        assert counted > 0.8 * whole
    finally:
        model.close()


def test_doctor_names_the_devices(gpu):
    checks = {one.name: one for one in doctor("tales", "none").checks}
    assert checks["devices"].found.startswith(f"{gpu} (")
    assert "with GPU offload" in checks["build"].found
    wrong = doctor("tales", "none", ContextOptions(placement=Placement(("Nothing7",))))
    assert {one.name: one.status for one in wrong.checks}["devices"] == "fail"
