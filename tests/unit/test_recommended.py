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
    ("use", "gib", "gb_per_s", "names"),
    [
        ("chat", 32, 500, {"fast": "qwen3.5-9b"}),
        ("chat", 16, 120, {"fast": "qwen3.5-4b", "balanced": "qwen3.5-9b"}),
        ("chat", 16, 50, {"fast": "qwen3-1.7b", "balanced": "qwen3.5-4b", "best": "gemma4-e4b"}),
        ("chat", 16, 24, {"fast": "qwen3.5-0.8b", "balanced": "qwen3-1.7b", "best": "qwen3.5-4b"}),
        ("chat", 4, 50, {"fast": "qwen3-1.7b", "balanced": "qwen3.5-4b"}),
        ("chat", 2, 9, {"fast": "smollm2-135m-instruct", "balanced": "qwen3.5-0.8b", "best": "qwen2.5-1.5b"}),
        ("chat", 1, 1, {"best": "smollm2-135m-instruct"}),
        ("chat", 0.1, 50, {"fast": "smollm2-135m-instruct"}),
        ("code", 16, 24, {"fast": "qwen2.5-coder-0.5b", "balanced": "qwen2.5-coder-1.5b", "best": "qwen2.5-coder-7b"}),
        ("code", 16, 200, {"fast": "qwen2.5-coder-7b"}),
        ("embed", 8, 20, {"fast": "nomic-embed-text-v1.5"}),
    ],
)  # fmt: skip
def test_the_choices_of_a_machine(here, use, gib, gb_per_s, names):
    """A model that thinks needs 20 tokens a second: else its answer begins after a minute."""
    here(gib * GIB, gb_per_s * 1e9)
    assert {name: one.name for name, one in models.recommended(use).items()} == names


def test_an_unknown_use():
    with pytest.raises(InvalidOptionError, match="chat, code or embed"):
        models.recommended("art")


def test_without_a_measured_model_the_memory_is_read(here):
    here(8 * GIB, None)
    assert machine.read_speed() > 1e6
    assert models.tokens_per_s(GIB) == machine.read_speed() / GIB


@pytest.mark.parametrize(
    ("n_cores", "free", "mib"), [(1, None, 256), (2, None, 256), (8, 80 << 20, 20), (2, 0, 0)]
)
def test_what_is_read_fits_into_no_cache_and_into_the_memory(n_cores, free, mib):
    """Two cores that read the same 32 MB had them in their cache: 61 tokens a second for 43."""
    assert machine.part_to_read(n_cores, free) * 8 * n_cores >> 20 == mib


@pytest.mark.parametrize(("n_bytes", "speed"), [(94 << 20, None), (1 << 30, 2.0 * GIB)])
def test_a_small_model_says_nothing_about_large_ones(monkeypatch, tmp_path, n_bytes, speed):
    """A 135M model was measured at 21 GB/s where one of 1.5B has 52, as fast as the memory is."""
    monkeypatch.setattr(profile, "_speed_file", lambda: tmp_path / "speed.json")
    profile.write_json(tmp_path / "speed.json", [n_bytes, 0.5])
    assert profile.measured_speed() == speed


@pytest.mark.parametrize("use", ["chat", "code", "embed"])
def test_ranks_are_those_of_sizes_and_free_to_use(use):
    """No two have a rank, and licences are permissive."""
    known = [one for one in models.list_models() if use in one.suits]
    assert len({one.suits[use] for one in known}) == len(known) > 0
    assert all(one.permissive for one in known)
