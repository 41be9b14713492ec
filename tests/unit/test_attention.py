"""Which attention is chosen, from measured costs, and what is kept of them."""

import json
from dataclasses import asdict, replace
from pathlib import Path

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
        attention, "measured_attention", lambda shape, options: given[options.flash_attention]
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


def test_what_is_kept_comes_back_and_nonsense_does_not():
    kept = json.loads(json.dumps(asdict(OFF)))
    assert AttentionCosts.from_dict(kept) == OFF
    assert OFF.depth_costs(header()) == dict.fromkeys(WIDTHS, pytest.approx(1e-6))
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
