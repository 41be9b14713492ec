"""Effects of the options for devices and memory, by llama.cpp's log and the system's figures."""

import re
import resource
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, errors
from gguf_spec.llama import memory, own_kernels
from gguf_spec.llama.bindings import C

GREEDY = Sampling(temperature=0, max_tokens=12, ignore_eos=True)


def load(path, draft=None, **options):
    return gguf_spec.load(path, draft, threads=1, n_ctx=128, extra_bufts=False, **options)


def overridden(text):
    """Names of the tensors that llama.cpp puts elsewhere, by its log."""
    return re.findall(r"tensor (\S+) \(.*\) buffer type overridden to CPU", text)


def test_experts_are_placed_by_the_options(gguf_dir, capfd):
    texts = set()
    for options, wanted in (
        ({}, []),
        ({"cpu_moe": True}, [(i, name) for i in (0, 1) for name in ("gate", "up", "down")]),
        ({"n_cpu_moe": 1}, [(0, "gate"), (0, "up"), (0, "down")]),
        ({"override_tensor": [r"blk\.1\.ffn_(up|down)_exps=CPU"]}, [(1, "up"), (1, "down")]),
    ):
        with load(gguf_dir / "mixture.gguf", verbose=True, **options) as llm:
            texts.add(llm.generate("The other", GREEDY).text)
        names = {f"blk.{i}.ffn_{name}_exps.weight" for i, name in wanted}
        assert set(overridden(capfd.readouterr().err)) == names
    assert len(texts) == 1


def test_files_are_mapped_or_read(gguf_dir):
    path = gguf_dir / "mixture.gguf"
    for mmap, mapped in ((None, True), (True, True), (False, False)):
        with load(path, mmap=mmap):
            assert (str(path) in Path("/proc/self/maps").read_text()) == mapped


def test_a_large_file_is_read_for_the_own_kernels(gguf_dir, monkeypatch):
    monkeypatch.setattr(memory, "_LEAST_READ", 0)
    path = gguf_dir / "mixture.gguf"
    is_faster = own_kernels.start().name and memory.has_large_pages()
    with load(path):
        assert (str(path) in Path("/proc/self/maps").read_text()) == (not is_faster)


def locked_bytes():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmLck:\s+(\d+) kB", status)[1]) << 10


@pytest.mark.parametrize("mmap", [None, False])
def test_weights_are_locked(gguf_dir, mmap):
    path = gguf_dir / "mixture.gguf"
    before = locked_bytes()
    try:
        with load(path, mlock=True, mmap=mmap):
            assert locked_bytes() - before >= 0.9 * path.stat().st_size
    except errors.InvalidOptionError as error:
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        assert "cannot be locked" in error.message
        assert 0 <= limit < path.stat().st_size
    if mmap is None:  # a small buffer returns to the heap, whose pages stay locked
        assert locked_bytes() == before


def test_a_lock_that_the_system_refuses_is_an_error(gguf_dir, monkeypatch):
    from gguf_spec.llama import weights

    class Log(list):
        def clear(self):
            self[:] = ["warning: failed to mlock 8-byte buffer: Cannot allocate memory"]

    monkeypatch.setattr(weights, "log", Log())
    with pytest.raises(errors.InvalidOptionError, match=r"mlock is True but must be False.*failed"):
        load(gguf_dir / "mixture.gguf", mlock=True)
    load(gguf_dir / "mixture.gguf").close()


def test_the_draft_has_threads_of_its_own(gguf_dir):
    with (
        load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf", draft_threads=2) as llm,
        llm.models() as (target, draft),
    ):
        threads = [one.native.context(C.llama_n_threads) for one in (target, draft)]
        assert threads == [1, 2] == [target.context.threads, draft.context.threads]
    with (
        load(gguf_dir / "llama.gguf", gguf_dir / "twin.gguf") as llm,
        llm.models() as (target, draft),
    ):
        assert draft.native.context(C.llama_n_threads) == 1


def test_numa_reaches_llama(gguf_dir, monkeypatch):
    from gguf_spec.llama import devices

    given = []
    monkeypatch.setattr(devices, "_numa", [])
    monkeypatch.setattr(devices.C, "llama_numa_init", given.append)
    with load(gguf_dir / "llama.gguf", numa="distribute"):
        assert given == [1]


def test_a_mixture_of_experts_speculates_with_the_same_text(gguf_dir):
    """Also where it is the draft."""
    mixture, other = gguf_dir / "mixture.gguf", gguf_dir / "llama.gguf"
    for target, draft in ((mixture, other), (other, mixture)):
        texts = set()
        for one in (None, "ngram", draft):
            with load(target, one) as llm:
                texts.add(llm.generate("The other of the", GREEDY).text)
        assert len(texts) == 1
