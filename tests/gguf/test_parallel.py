"""Several requests at once, for each kind of cache: the tokens are those of separate requests."""

from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.gguf.validation import ModelFile
from gguf_spec.llama import backend, memory
from gguf_spec.llama.options import ContextOptions
from gguf_spec.speculative.profile import write_profile

PROMPTS = ["abc ab " * (3 + i) for i in range(6)]
SAMPLINGS = [Sampling(seed=i, max_tokens=20 + i, ignore_eos=True) for i in range(6)]
PLAIN = {"threads": 1, "extra_bufts": False}


def tokens(results):
    return [one.tokens for one in results]


@pytest.mark.parametrize("kind", ["llama", "mamba", "lfm2"])
def test_tokens_are_those_of_separate_requests(gguf_dir, kind):
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, **PLAIN) as llm:
        alone = [llm.generate(*one).tokens for one in zip(PROMPTS, SAMPLINGS, strict=True)]
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, parallel=4, **PLAIN) as llm:
        for _ in range(2):
            assert tokens(llm.generate_many(PROMPTS, SAMPLINGS)) == alone
        states = llm.slots()
        assert [one.request for one in states] == [None] * 4
        assert any(one.n_cached for one in states)  # how many run at once depends on the machine
        assert all(0 <= one.n_cached <= one.n_ctx == llm.n_ctx for one in states)
        assert 0 < llm.pass_counts.n_passes < llm.pass_counts.n_rows


def test_auto_is_one_for_passes_of_their_own(gguf_dir):
    path, speculation = gguf_dir / "llama.gguf", Speculation(strict=True)
    with gguf_spec.load(path, "ngram", parallel="auto", speculation=speculation, **PLAIN) as llm:
        assert llm.parallel == 1
        assert llm.slots()[0].request is None
        before = llm.pass_counts
        llm.generate("abc", Sampling(max_tokens=3, ignore_eos=True))
        assert llm.pass_counts.n_passes > before.n_passes


def test_auto_is_one_where_the_memory_is_unknown(gguf_dir, monkeypatch):
    monkeypatch.setattr(backend, "offloads", lambda: True)
    path = gguf_dir / "llama.gguf"
    models = [(ModelFile(path).header, ContextOptions())]
    assert memory.parallel_in_room(models, 16) is None
    with gguf_spec.load(path, None, parallel="auto", **PLAIN) as llm:
        assert (llm.parallel, llm.parallel_reason) == (1, "the free memory is unknown")


def test_auto_follows_the_measured_costs(gguf_dir):
    """4 before the costs are measured; then by the table, whatever this machine measured."""
    path = gguf_dir / "cousin.gguf"
    options = {"parallel": "auto", "n_ctx": 200, **PLAIN}
    with gguf_spec.load(path, None, **options) as llm:
        assert (llm.parallel, llm.parallel_reason) == (4, "no costs were measured yet")
        target = llm._target
        for pass_s, n in (({1: 0.01, 65: 0.01}, 16), ({1: 0.01, 65: 0.65}, 1)):
            measured = replace(llm.profile, target=pass_s, target_depth={}, steady=True)
            assert write_profile(target, None, measured)
            with gguf_spec.load(path, None, **options) as again:
                assert again.parallel == n
                assert again.parallel_reason.startswith("as measured, ")
    with gguf_spec.load(path, None, parallel=2, **PLAIN) as llm:
        assert llm.parallel_reason == ""


@pytest.mark.parametrize("wrong", [0, 65, "many", 1.5])
def test_wrong_numbers(gguf_dir, wrong):
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="from 1 to 64, or auto"):
        gguf_spec.load(gguf_dir / "llama.gguf", None, parallel=wrong, **PLAIN)
