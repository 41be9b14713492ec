"""Which attention is chosen, from measured costs, and what is kept of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.gguf.validation import Header
from gguf_spec.llama import attention
from gguf_spec.llama.attention import AttentionCosts, attention_shape, choose_attention
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.probe_model import AttentionShape

WIDTHS = (1, 2, 4, 8, 32)
OFF = AttentionCosts("off", dict.fromkeys(WIDTHS, 2e-4), dict.fromkeys(WIDTHS, 1e-7), 0.2, True)
ON = AttentionCosts("on", dict.fromkeys(WIDTHS, 1e-4), dict.fromkeys(WIDTHS, 1e-7), 0.1, False)


def header(**of):
    of = {"block_count": 10, "embedding_length": 256, "attention.head_count": 4, **of}
    return Header(
        Path("a.gguf"),
        {"general.architecture": "llama"} | {f"llama.{key}": value for key, value in of.items()},
        1,
        1000,
    )


@pytest.fixture
def costs(monkeypatch):
    """What is measured, by flash attention; None fails."""
    given = {"off": OFF, "on": ON}
    monkeypatch.setattr(
        attention,
        "measured_attention",
        lambda shape, options, only_if_exact: given[options.flash_attention],
    )
    monkeypatch.setattr(attention, "uses_gpu", lambda _: False)
    return given


def test_a_target_takes_exact_attention_and_a_draft_what_is_faster(costs):
    assert choose_attention(header(), ContextOptions(), must_be_exact=True) == ("off", OFF)
    assert choose_attention(header(), ContextOptions(), must_be_exact=False) == ("on", ON)


def test_where_nothing_or_all_is_exact_the_faster_one_is_taken(costs):
    for exact in (False, True):
        costs |= {"off": replace(OFF, exact=exact), "on": replace(ON, exact=exact)}
        assert choose_attention(header(), ContextOptions(), must_be_exact=True)[0] == "on"
    costs["off"] = replace(costs["off"], per_cached=dict.fromkeys(WIDTHS, 1e-9), read_s=0.01)
    assert choose_attention(header(), ContextOptions(), must_be_exact=True)[0] == "off"


def test_what_is_asked_for_stays(costs):
    assert choose_attention(header(), ContextOptions(flash_attention="on"), must_be_exact=True) == (
        "on",
        ON,
    )
    assert choose_attention(header(), ContextOptions(kv_type="q8_0"), must_be_exact=True) == (
        "on",
        ON,
    ), "it needs flash attention"


def test_where_nothing_can_be_measured(costs, monkeypatch):
    costs |= {"off": None, "on": None}
    assert choose_attention(header(), ContextOptions(), must_be_exact=True) == ("off", None)
    assert choose_attention(header(), ContextOptions(kv_type="q8_0"), must_be_exact=True) == (
        "on",
        None,
    )
    monkeypatch.setattr(attention, "uses_gpu", lambda _: True)
    assert choose_attention(header(), ContextOptions(), must_be_exact=True) == ("auto", None)


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


@pytest.fixture
def probe(monkeypatch, tmp_path):
    """Calls of a measurement that finds exact rows with flash attention off only: the pass widths timed with each setting."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(attention, "cores_are_shared", lambda _: False)
    calls = []

    class Probe:
        slow_first_pass, reads_at_once, pass_s = False, 512, 0.001

        def __init__(self, path, options):
            self.flash, self.n_past, self.busy_s = options.flash_attention, 0, 0.0
            calls.append((self.flash, []))

        def logits(self, tokens, n_rows):
            self.busy_s += self.pass_s
            self.n_past += len(tokens)
            calls[-1][1].append(len(tokens))
            return []

        def read(self, tokens):
            self.n_past += len(tokens)

        def rollback(self, n_past):
            self.n_past = n_past

        def close(self):
            pass

    monkeypatch.setattr(attention, "Model", Probe)
    monkeypatch.setattr(attention, "_is_exact", lambda model, _: model.flash == "off")
    return SimpleNamespace(calls=calls, model=Probe)


def test_a_setting_that_is_not_exact_is_timed_only_where_that_does_not_matter(probe):
    for _ in range(2):
        flash, costs = choose_attention(header(), ContextOptions(), must_be_exact=True)
        assert (flash, costs.is_timed) == ("off", True)
    assert [(flash, bool(widths)) for flash, widths in probe.calls] == [
        ("off", True),
        ("on", False),
    ]
    choose_attention(header(), ContextOptions(), must_be_exact=False)
    assert [(flash, bool(widths)) for flash, widths in probe.calls[2:]] == [("on", True)]
    choose_attention(header(), ContextOptions(), must_be_exact=False)
    assert len(probe.calls) == 3, "all of it is kept"


def test_a_slow_machine_makes_each_pass_once_and_one_that_hangs_none(probe):
    probe.model.pass_s = 0.2
    costs = choose_attention(header(), ContextOptions(), must_be_exact=True)[1]
    assert set(costs.per_cached) == set(WIDTHS)
    assert probe.calls[0][1] == [*WIDTHS, *WIDTHS[:3], *WIDTHS]
    probe.model.pass_s = 3.0
    other = header(**{"attention.head_count": 8})
    assert choose_attention(other, ContextOptions(), must_be_exact=True) == ("off", None)


def test_what_is_kept_comes_back_and_nonsense_does_not():
    kept = json.loads(json.dumps(asdict(OFF)))
    assert AttentionCosts.from_dict(kept) == OFF
    assert OFF.depth_costs(header()) == dict.fromkeys(WIDTHS, pytest.approx(1e-6))
    untimed = replace(ON, near={}, per_cached={}, read_s=0.0)
    assert AttentionCosts.from_dict(json.loads(json.dumps(asdict(untimed)))) == untimed
    negative = dict.fromkeys(map(str, WIDTHS), -1.0)
    spoilts = (
        {"near": {}},
        {"near": {"1": 1.0}},
        {"per_cached": negative},
        {"read_s": 0.0},
        {"flash": "auto"},
        {"exact": 1},
    )
    for spoilt in spoilts:
        with pytest.raises((KeyError, TypeError, ValueError)):
            AttentionCosts.from_dict(kept | spoilt)
    for nonsense in (None, [], {}, {"near": 3}):
        with pytest.raises((KeyError, TypeError, ValueError)):
            AttentionCosts.from_dict(nonsense)
