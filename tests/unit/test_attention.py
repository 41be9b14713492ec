"""The cost of attention: how it is measured, and what is kept of it."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.gguf.validation import Header
from gguf_spec.llama import attention
from gguf_spec.llama.attention import N_LAYERS, AttentionShape, attention_shape, depth_costs
from gguf_spec.llama.options import ContextOptions
from gguf_spec.system.files import write_json

WIDTHS = (1, 2, 4, 8, 32)


def header(**of):
    of = {"block_count": 10, "embedding_length": 256, "attention.head_count": 4, **of}
    return Header(
        Path("a.gguf"),
        {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in of.items()},
        1,
        1000,
    )


@pytest.mark.parametrize(
    ("of", "shape"),
    [
        ({}, AttentionShape(4, 4, 64, 64)),
        ({"attention.head_count_kv": 2}, AttentionShape(4, 2, 64, 64)),
        ({"attention.head_count": (4, 8), "attention.head_count_kv": (0, 4), "attention.key_length": 96, "attention.value_length": 32},
         AttentionShape(8, 4, 96, 32)),
        ({"attention.head_count": 0}, None), ({"attention.head_count": 3}, None), ({"attention.key_length_mla": 64}, None),
        ({"embedding_length": "x"}, None), ({"attention.head_count_kv": 3}, None),
    ],
)  # fmt: skip
def test_the_shape_comes_from_the_header(of, shape):
    assert attention_shape(header(**of)) == shape
    if shape is None:
        assert depth_costs(header(**of), ContextOptions()) == {}


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Measurements: flash attention, and the widths of the passes; a pass takes 1 us more for each cached token and row."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    clock, calls = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(attention.time, "perf_counter", lambda: clock.now)

    class Probe:
        slow_first_pass, pass_s = False, 0.001

        def __init__(self, path, options):
            self.n_past, self.busy_s = 0, 0.0
            calls.append((options.flash_attention, []))

        def logits(self, tokens, n_rows):
            seconds = self.pass_s + 1e-6 * self.n_past * len(tokens)
            clock.now += seconds
            self.busy_s += seconds
            self.n_past += len(tokens)
            calls[-1][1].append(len(tokens))

        def read(self, tokens):
            self.n_past += len(tokens)

        def rollback(self, n_past):
            self.n_past = n_past

        def close(self):
            pass

    def context(path, options):
        return SimpleNamespace(sequences=[Probe(path, options)])

    monkeypatch.setattr(attention, "Context", context)
    return SimpleNamespace(calls=calls, model=Probe, folder=tmp_path / "gguf-spec" / "attention")


def test_it_is_measured_once_for_the_setting_in_use(probe):
    wanted = {width: pytest.approx(1e-6 * width * 10 / N_LAYERS) for width in WIDTHS}
    options = ContextOptions(flash_attention="off")
    for _ in range(2):
        assert depth_costs(header(), options) == wanted
    assert [flash for flash, _ in probe.calls] == ["off"]
    depth_costs(header(), ContextOptions(kv_type="q8_0"))
    assert [flash for flash, _ in probe.calls] == ["off", "on"], "the cache needs flash attention"


@pytest.mark.parametrize(
    "data", [None, [], {}, {"1": 3}, dict.fromkeys(map(str, WIDTHS), -1.0), {"near": 3}]
)
def test_nonsense_in_the_file_is_measured_again(probe, data):
    known = depth_costs(header(), ContextOptions())
    (file,) = probe.folder.iterdir()
    write_json(file, data)
    assert depth_costs(header(), ContextOptions()) == pytest.approx(known)
    assert len(probe.calls) == 2


def test_a_slow_machine_runs_each_pass_once_and_a_hanging_one_none(probe):
    probe.model.pass_s = 0.2
    assert set(depth_costs(header(), ContextOptions())) == set(WIDTHS)
    assert probe.calls[0][1] == [*WIDTHS, *WIDTHS[:3], *WIDTHS]
    probe.model.pass_s = 3.0
    other = header(**{"attention.head_count": 8})
    assert depth_costs(other, ContextOptions()) == {}


def test_nothing_is_measured_beside_other_programs(probe, monkeypatch):
    monkeypatch.setattr(attention, "cores_are_shared", lambda _: True)
    assert depth_costs(header(), ContextOptions()) == {}
    assert not probe.calls
