"""Memory stays flat over a thousand requests, for a small file of each architecture and each kind of head."""

import gc

import psutil
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.gguf.architectures import architecture
from tests.support import eagle, families, heads, tiny

PROMPTS = ("of the of the of", "SM T) SM", "Once upon", "a", "and in or re")
N_TOKENS = 6
# Bytes: what 900 requests may add to the resident memory of a process after the first 100.
MOST_GROWTH = 4 << 20
# Name of a head -> its kind.
HEADS = {"own head": "mtp", "chain": "mtp", "shared cache": "mtp", "layer inputs": "eagle3"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("memory")


def files(folder, name):
    """Write a target and its draft, and return their paths."""
    if name in families.NAMES:
        return (
            families.write_family(folder, name),
            families.write_family(folder, name, seed=1, suffix="-cousin"),
        )
    if name == "own head":
        return tiny.write(folder / "own.gguf", heads.trained(folder, n_texts=4, n_steps=50)), "mtp"
    if name == "chain":
        model = families.with_head(families.family("step35"), 3)
        return tiny.write(folder / "chain.gguf", model), "mtp"
    if name == "shared cache":
        head = tiny.write(folder / "assistant.gguf", families.assistant())
        return families.write_family(folder, "gemma4"), head
    head = eagle.guesser(families.family("llama"), [*range(26, 90)])
    return families.write_family(folder, "llama"), tiny.write(folder / "eagle.gguf", head)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*families.NAMES, *HEADS])
def test_memory_stays_flat_over_a_thousand_requests(folder, name, record_property):
    """With drafts that a snapshot drops, longer ones that a checkpoint drops, and caches that fit in part."""
    target, draft = files(folder, name)
    drafter = HEADS.get(name, "hybrid")
    with gguf_spec.load(target, draft, threads=1, extra_bufts=False, n_ctx=256) as llm:
        n_drafted = 0

        def ask(n):
            nonlocal n_drafted
            for i in range(n):
                short = Sampling(temperature=0.8, max_tokens=N_TOKENS, seed=i, ignore_eos=True)
                k = 12 if i % 4 == 3 else 4
                way = Speculation(k=k, drafter=drafter, adaptive=False)
                one = llm.generate(PROMPTS[i % len(PROMPTS)], short, speculation=way)
                n_drafted += one.stats.n_drafted
            gc.collect()
            return psutil.Process().memory_info().rss

        before = ask(100)
        growth = ask(900) - before
        with llm.models() as (model, _):
            counts = model.recurrent.counts if model.recurrent else ()
    record_property("growth_bytes", growth)
    print(f"{name}: {growth / 1024:+,.0f} KiB")
    assert n_drafted > 1000
    if name in families.NAMES and architecture(name).cache != "attention":
        assert sum(counts) > 500
    assert growth < MOST_GROWTH
