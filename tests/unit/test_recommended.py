"""Which models suit this machine."""

import pytest

from gguf_spec import models
from gguf_spec.errors import InvalidOptionError
from gguf_spec.runtime import profile_files as profile
from gguf_spec.system import machine

GIB = 1 << 30
KNOWN = models.entries()


@pytest.fixture
def here(monkeypatch):
    def make(free, bytes_per_s):
        monkeypatch.setattr(models, "available_bytes", lambda: free)
        monkeypatch.setattr(profile, "measured_speed", lambda: bytes_per_s)

    return make


@pytest.mark.parametrize(
    ("size", "free", "said"),
    [
        (GIB, 8 * GIB, "~20 tok/s"), (10 * GIB, 32 * GIB, "slow, ~2 tok/s"), (10 * GIB, 11 * GIB, "too big"),
        (GIB // 8, 8 * GIB, "fast"), (None, 8 * GIB, "?"), (GIB, None, "~20 tok/s"),
    ],
)  # fmt: skip
def test_how_a_model_does_here(here, size, free, said):
    here(free, 20 * GIB)
    assert models.fits_here(KNOWN["qwen3-4b"], size) == said


def test_no_speed_where_a_token_does_not_read_the_whole_file(here):
    here(64 * GIB, 20 * GIB)
    assert {
        models.fits_here(KNOWN[name], GIB) for name in ("gpt-oss-20b", "nomic-embed-text-v1.5")
    } == {"fits"}


@pytest.mark.parametrize(
    ("use", "gib", "bytes_per_s", "name"),
    [
        ("chat", 16, 120e9, "qwen3-8b"), ("chat", 4, 55e9, "qwen3-4b"),
        # at 10 tokens a second a model that thinks begins its answer after a minute
        ("chat", 16, 50e9, "qwen2.5-7b"), ("chat", 16, 20e9, "qwen2.5-1.5b"), ("chat", 4, 45e9, "qwen2.5-1.5b"),
        ("chat", 1, 1e9, "smollm2-135m-instruct"), ("code", 16, 50e9, "qwen2.5-coder-7b"),
        ("code", 16, 20e9, "qwen2.5-coder-1.5b"), ("embed", 8, 20e9, "nomic-embed-text-v1.5"),
    ],
)  # fmt: skip
def test_the_best_that_is_not_slow(here, use, gib, bytes_per_s, name):
    here(gib * GIB, bytes_per_s)
    assert models.recommended(use).name == name


def test_an_unknown_use():
    with pytest.raises(InvalidOptionError, match="chat, code or embed"):
        models.recommended("art")


def test_without_a_measured_model_the_memory_is_read(here):
    here(8 * GIB, None)
    assert machine.read_speed() > 1e6
    assert models.tokens_per_s(GIB) == machine.read_speed() / GIB


@pytest.mark.parametrize(("n_bytes", "speed"), [(94 << 20, None), (1 << 30, 2.0 * GIB)])
def test_a_small_model_says_nothing_about_large_ones(monkeypatch, tmp_path, n_bytes, speed):
    """A 135M model was measured at 21 GB/s where one of 1.5B has 52, as fast as the memory is."""
    monkeypatch.setattr(profile, "_speed_file", lambda: tmp_path / "speed.json")
    profile.write_json(tmp_path / "speed.json", [n_bytes, 0.5])
    assert profile.measured_speed() == speed


def test_every_recommended_model_is_known():
    assert {name for names in models.RECOMMENDED.values() for name in names} <= KNOWN.keys()


def test_models_that_think_are_known():
    """By their notes in models.yaml, where the user reads it."""
    named = {name for names in models.RECOMMENDED.values() for name in names}
    thinkers = {one.name for one in models.list_models() if "hinks before" in one.note}
    assert named & thinkers == {*models._THINKERS}
