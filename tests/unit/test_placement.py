"""Devices and tensors with a place of their own: what is refused, and how many layers fit; no GPU is needed."""

import inspect
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

import gguf_spec
from gguf_spec.cli import cli
from gguf_spec.errors import InvalidOptionError
from gguf_spec.gguf.validation import read_header
from gguf_spec.llama import devices, memory
from gguf_spec.llama.devices import Device, check_names, check_placement, devices_in_use, taken
from gguf_spec.llama.memory import needs, offloaded
from gguf_spec.llama.options import (
    LAYERS_MAX,
    ContextOptions,
    Placement,
    expression,
)
from gguf_spec.llama.own_kernels import Kernels
from gguf_spec.options import LOADING, PARAMETERS, REQUESTS
from tests.support import tiny

GIB = 1 << 30
BIG = Device("Big0", "a large GPU", False, 24 * GIB, 24 * GIB)
SMALL = Device("Small0", "a small GPU", False, 2 * GIB, 2 * GIB)
INSIDE = Device("Inside0", "a part of the processor", True, 8 * GIB, 16 * GIB)


# ---- refusals


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"device": "Big1"},
            "device is 'Big1' but must be Big0 (a large GPU, 24.0 GiB free) or Sm",
        ),
        ({"device": ["none", "Big0"]}, "device is 'none' but must be Big0"),
        ({"device": ["Big0", "Big0"]}, "device is 'Big0, Big0' but must be different devices"),
        ({"device": ""}, "device is ('',) but must be at most 64 non-empty strings"),
        ({"device": 5}, "device is 5"),
        ({"device": ["Big0"] * 65}, "device is"),
        ({"override_tensor": "exps"}, "override_tensor is 'exps' but must be PATTERN=DEVICE"),
        ({"override_tensor": "=CPU"}, "override_tensor is '=CPU' but must be PATTERN=DEVICE"),
        ({"override_tensor": "exps="}, "override_tensor is 'exps=' but must be PATTERN=DEVICE"),
        ({"override_tensor": "exps=Big1"}, "override_tensor is 'exps=Big1' but must be PATTERN="),
        ({"override_tensor": "(=CPU"}, "override_tensor is '(=CPU' but must be a regular express"),
        ({"override_tensor": "a" * 257 + "=CPU"}, "override_tensor is 'aaaaaaaaaaaaaaaaaaaaaaaaa"),
        ({"override_tensor": "(" * 200 + "=CPU"}, "override_tensor is"),
        ({"override_tensor": "a{99999999999}=CPU"}, "override_tensor is"),
        ({"n_cpu_moe": -1}, "n_cpu_moe is -1 but must be a whole number from 0 to 512"),
        ({"n_cpu_moe": True}, "n_cpu_moe is True"),
        ({"cpu_moe": 1}, "cpu_moe is 1 but must be True or False"),
        ({"mmap": "yes"}, "mmap is 'yes' but must be True or False"),
        ({"mlock": None}, "mlock is None but must be True or False"),
        ({"numa": "mirror"}, "numa is 'mirror' but must be one of distribute, isolate, numactl"),
    ],
)
def test_what_is_refused(options, said):
    with pytest.raises(InvalidOptionError) as caught:
        check_names(Placement.of(options), [BIG, SMALL])
    assert str(caught.value).startswith(said)
    assert len(str(caught.value)) < 600


def test_a_build_without_a_gpu_is_reported():
    check_names(Placement(), [])
    check_placement(Placement(("none",)))
    with pytest.raises(InvalidOptionError, match="must be none") as caught:
        check_names(Placement(("CUDA0",)), [], "draft_device")
    assert caught.value.hint == "omit draft_device: this build of llama.cpp finds no GPU."


def test_layers_for_no_gpu_are_refused():
    with pytest.raises(InvalidOptionError, match="0, -1 or auto with device none"):
        ContextOptions(gpu_layers=3, placement=Placement(("none",)))
    target = ContextOptions(gpu_layers=3)
    assert target.for_draft(devices=("none",)).gpu_layers == -1
    with pytest.raises(InvalidOptionError, match=r"draft_gpu_layers is 2 .* draft_device none"):
        target.for_draft(devices=("none",), gpu_layers=2)


@pytest.mark.parametrize("options", [{"gpu_layers": "auto"}, {"placement": Placement(("none",))}])
def test_workers_have_their_own_devices(options):
    with pytest.raises(InvalidOptionError, match="omitted with rpc"):
        ContextOptions(rpc=("host:1",), **options)


def test_what_selects_no_tensor_is_refused(tmp_path):
    plain = read_header(tiny.write(tmp_path / "plain.gguf"))
    mixture = read_header(tiny.write(tmp_path / "mixture.gguf", tiny.mixture()))
    for options, said in (
        ({"cpu_moe": True}, "cpu_moe is True but must be False: plain.gguf is no mixture"),
        ({"n_cpu_moe": 1}, "n_cpu_moe is 1 but must be 0: plain.gguf is no mixture of experts"),
        ({"override_tensor": "exps=CPU"}, "a pattern that matches a tensor of plain.gguf, such as"),
    ):
        with pytest.raises(InvalidOptionError, match=said):
            Placement.of(options).check_header(plain)
        Placement.of(options).check_header(mixture)


def test_a_draft_has_neither_the_tensors_nor_the_experts_of_the_target():
    placement = Placement(("Big0",), 3, (("exps", "CPU"),), False, True, "isolate")
    target = ContextOptions(threads=4, placement=placement)
    draft = target.for_draft(threads=2, devices=("Small0",))
    assert draft.placement == Placement(("Small0",), 0, (), False, True, "isolate")
    assert (draft.threads, target.for_draft().threads) == (2, 4)
    assert target.for_draft().placement.devices == ("Big0",)


def test_a_second_numa_strategy_is_refused(monkeypatch):
    calls = []
    monkeypatch.setattr(devices, "_numa", [])
    monkeypatch.setattr(devices, "C", SimpleNamespace(llama_numa_init=calls.append))
    devices.start_numa(None)
    devices.start_numa("isolate")
    devices.start_numa("isolate")
    with pytest.raises(InvalidOptionError, match="must be isolate or omitted"):
        devices.start_numa("distribute")
    assert calls == [2]


# ---- tensors


def test_the_first_pattern_counts_before_the_experts():
    names = [f"blk.{i}.ffn_{kind}.weight" for i in range(3) for kind in ("up_exps", "norm")]
    found = Placement.of(
        {"n_cpu_moe": 2, "override_tensor": [r"^blk\.1\.=Big0", "norm=CPU"]}
    ).places(names)
    assert found == {
        "blk.0.ffn_up_exps.weight": "CPU",
        "blk.0.ffn_norm.weight": "CPU",
        "blk.1.ffn_up_exps.weight": "Big0",
        "blk.1.ffn_norm.weight": "Big0",
        "blk.2.ffn_norm.weight": "CPU",
    }
    assert len(Placement.of({"cpu_moe": True}).places(names)) == 3
    assert Placement.of({"cpu_moe": True}).n_cpu_moe == LAYERS_MAX


def test_an_expression_matches_just_its_names():
    names = [f"blk.{i}.ffn_up_exps.weight" for i in (0, 1, 10)] + ["output.weight", "a+b (c)"]
    others = ["blk.2.ffn_up_exps.weight", "blk.11.ffn_up_exps.weight", "blk.1.ffn_up_exps.weight2"]
    others += ["output_weight", "xoutput.weight", "aab (c)", "blk.1.ffn_down_exps.weight"]
    pattern = re.compile(expression(names))
    assert all(pattern.search(name) for name in names)
    assert not any(pattern.search(name) for name in others)
    many = [f"blk.{i}.ffn_{n}_exps.weight" for i in range(512) for n in ("up", "gate", "down")]
    assert (
        len(expression(many)) < 8000
    )  # llama.cpp's library limits an expression to 100,000 states


# ---- what fits


def mixture_header(tmp_path, n_layer=8, n_ff=4096):
    """Return the header of a mixture of experts with layers of about 25 MB, most of it experts."""
    path = tiny.write(tmp_path / "mixture.gguf", tiny.mixture(n_layer=n_layer, n_ff=n_ff))
    return read_header(path)


def with_room(header, options, n_bytes):
    """Return the options with `auto` replaced, for a GPU with this room."""
    device = Device("Gpu0", "", False, int(n_bytes / 0.875), int(n_bytes / 0.875))
    ((_, fitted),) = memory.fit_layers([(header, options)], lambda _: [device])
    return fitted


@pytest.mark.full
def test_the_output_is_placed_first_and_then_the_last_layers(tmp_path):
    header = mixture_header(tmp_path)
    of_layer = sum(one.n_bytes for one in header.tensors if one.name.startswith("blk.7."))
    output = sum(one.n_bytes for one in header.tensors if one.name.startswith("output"))
    assert offloaded(header, ContextOptions(gpu_layers=0)) == (0, 0.0, False)
    assert offloaded(header, ContextOptions(gpu_layers=1)) == (output, 0.0, True)
    assert offloaded(header, ContextOptions(gpu_layers=3)) == (output + 2 * of_layer, 0.25, True)
    everything = offloaded(header, ContextOptions(gpu_layers=9))
    assert everything == (output + 8 * of_layer, 1.0, True)
    assert (
        everything
        == offloaded(header, ContextOptions())
        == offloaded(header, ContextOptions(gpu_layers=99))
    )
    here = Placement(n_cpu_moe=LAYERS_MAX)
    assert offloaded(header, ContextOptions(placement=here)).n_bytes < everything.n_bytes / 20


@pytest.mark.full
def test_experts_stay_first_and_then_layers(tmp_path):
    header, options = mixture_header(tmp_path), ContextOptions(n_ctx=256, gpu_layers="auto")
    every = memory.device_bytes(header, ContextOptions(n_ctx=256), 256, 1)
    assert with_room(header, options, 1.01 * every).placement.n_cpu_moe == 0
    seen = []
    for share in (0.9, 0.7, 0.5, 0.4, 0.38):
        fitted = with_room(header, options, share * every)
        seen.append((fitted.gpu_layers, fitted.placement.n_cpu_moe))
        assert memory.device_bytes(header, fitted, 256, 1) <= share * every
        more = replace_experts(fitted, fitted.placement.n_cpu_moe - 1)
        assert memory.device_bytes(header, more, 256, 1) > share * every
    assert all(layers == -1 for layers, _ in seen)
    assert [n for _, n in seen] == sorted(n for _, n in seen)
    assert seen[0][1] < seen[-1][1]
    assert with_room(header, options, 1000).gpu_layers == 0


def replace_experts(options, n):
    return ContextOptions(n_ctx=options.n_ctx, placement=Placement(n_cpu_moe=n))


def test_a_plain_model_leaves_layers_on_the_cpu(tmp_path):
    metadata, tensors = tiny.llama(n_layer=8)
    header = read_header(tiny.write(tmp_path / "plain.gguf", (metadata, tensors)))
    options = ContextOptions(n_ctx=256, gpu_layers="auto")

    def size(layers):
        one = ContextOptions(n_ctx=256, gpu_layers=layers)
        return memory.device_bytes(header, one, 256, 1)

    assert with_room(header, options, size(-1) + 8).gpu_layers == -1
    for n in (1, 4, 8):
        assert with_room(header, options, size(n) + 8).gpu_layers == n
    assert with_room(header, options, size(1) - 8).gpu_layers == 0


@pytest.mark.full
def test_the_draft_is_placed_first_and_only_auto_changes(tmp_path):
    header = mixture_header(tmp_path)
    auto = ContextOptions(n_ctx=256, gpu_layers="auto")
    one = memory.device_bytes(header, ContextOptions(n_ctx=256), 256, 1)
    gpu = Device("Gpu0", "", False, int(1.7 * one / 0.875), int(1.7 * one / 0.875))
    models = memory.fit_layers([(header, auto), (header, auto.for_draft())], lambda _: [gpu])
    assert models[1][1].placement.n_cpu_moe == 0
    assert models[0][1].placement.n_cpu_moe > 0
    fixed = [(header, auto), (header, auto.for_draft(gpu_layers=0))]
    models = memory.fit_layers(fixed, lambda _: [gpu])
    assert (models[0][1].gpu_layers, models[1][1].gpu_layers) == (-1, 0)
    assert models[0][1].placement.n_cpu_moe == 0
    nothing = [(header, ContextOptions(gpu_layers=2))]
    assert memory.fit_layers(nothing, lambda _: pytest.fail("asked")) == nothing
    assert memory.fit_layers([(header, auto)], lambda _: [])[0][1].gpu_layers == -1


def test_devices_that_llama_takes_by_itself():
    assert taken([INSIDE, BIG], ()) == [BIG]
    assert taken([INSIDE, BIG], ("Inside0",)) == [INSIDE]
    assert devices_in_use(("none",)) == []
    assert taken([INSIDE], ()) == [INSIDE]


def test_a_margin_stays_free():
    assert memory.room_of(BIG) == 23 * GIB
    assert memory.room_of(SMALL) == 1.75 * GIB
    assert memory.room_of(Device("Odd0", "", False, 0, 0)) > 1 << 50


# ---- main memory


def test_files_that_are_read_or_locked_are_memory_of_their_own(tmp_path):
    header = read_header(tiny.write(tmp_path / "model.gguf"))

    def estimate(**options):
        how = ContextOptions(n_ctx=256, extra_bufts=False, placement=Placement(**options))
        return needs([(header, how)])

    mapped, read, locked = estimate(), estimate(mmap=False), estimate(mlock=True)
    assert read.own == locked.own == mapped.own + header.file_bytes
    # without `base`, because the memory of the process changes between the estimates
    assert len({one.total - one.base for one in (mapped, read, locked)}) == 1


@pytest.mark.parametrize(
    ("changed", "is_read"),
    [
        ({}, True),
        ({"placement": {"mmap": True}}, False),
        ({"placement": {"mlock": True}}, False),
        ({"options": {"rpc": ("a:1",)}}, False),
        ({"options": {"head": "self"}}, False),
        ({"kernels": ""}, False),
        ({"pages": "always madvise [never]"}, False),
        ({"pages": None}, False),
        ({"size": 127 << 20}, False),
        ({"repacked": 200 << 20}, False),
        ({"free": 599 << 20}, False),
        ({"free": None}, False),
        ({"gpu": True}, False),
    ],
)
def test_large_files_are_read_where_that_is_faster(tmp_path, monkeypatch, changed, is_read):
    """A file of 300 MiB, of which 50 are repacked, that needs all of them; 700 MiB are free."""
    header = read_header(tiny.write(tmp_path / "model.gguf"))
    header = replace(header, file_bytes=changed.get("size", 300 << 20))
    pages = tmp_path / "enabled"
    if (text := changed.get("pages", "always [madvise] never")) is not None:
        pages.write_text(text)
    repacked = changed.get("repacked", 50 << 20)
    monkeypatch.setattr(memory, "_LARGE_PAGES", pages)
    monkeypatch.setattr(memory, "in_use", lambda: Kernels(changed.get("kernels", "avx2"), ""))
    monkeypatch.setattr(
        memory, "_copies", lambda one, *_: 2 * (repacked if one.file_bytes > 1 << 20 else 0,)
    )
    monkeypatch.setattr(memory, "available_bytes", lambda: changed.get("free", 700 << 20))
    monkeypatch.setattr(memory, "uses_gpu", lambda _: changed.get("gpu", False))
    placement = Placement(**changed.get("placement", {}))
    options = ContextOptions(n_ctx=256, placement=placement, **changed.get("options", {}))
    # a small file beside it stays mapped, and so does one that is mapped by choice
    draft = (replace(header, file_bytes=1 << 20), ContextOptions(n_ctx=256))
    target, other = memory.read_files([(header, options), draft])
    expected = replace(placement, mmap=False) if is_read else placement
    assert target == (header, replace(options, placement=expected))
    assert other == draft


# ---- the table


@pytest.mark.parametrize(
    ("command", "table"), [("generate", LOADING), ("serve", LOADING | REQUESTS)]
)
def test_the_command_line_has_the_table(command, table):
    options = {one.name: one for one in cli.commands[command].params}
    shown = {name: options[PARAMETERS[name]] for name in table}
    assert {name: one.help for name, one in shown.items()} == {
        name: rule.help for name, rule in table.items()
    }
    assert {name for name, one in shown.items() if one.multiple} == {
        name for name, rule in table.items() if rule.shape == "sequence"
    }


def test_the_tables_have_every_argument_of_load():
    """Beside the models, the callbacks and the draft options, which have a table of their own."""
    others = {
        "others",
        "model",
        "sampling",
        "draft",
        "models_file",
        "speculation",
        "progress",
        "on_measure",
        "verbose",
    }
    assert {*LOADING, *REQUESTS} == {*inspect.signature(gguf_spec.load).parameters} - others
