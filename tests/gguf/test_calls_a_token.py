"""Python's work between the passes as calls of functions a token: a count that no clock and no load changes.

`scripts/bench/outside.py` measures the time.
"""

import sys
import threading
from dataclasses import replace
from queue import SimpleQueue

import pytest

import gguf_spec
from gguf_spec import Ended, Sampling, Speculation
from gguf_spec.llama import own_kernels

SAMPLING = Sampling(seed=3, ignore_eos=True)
ALONE, COMMON = "gguf-spec-engine", "gguf-spec-scheduler"


def calls_a_token(path, n_requests):
    """Calls in the thread of the engine, of tokens behind the first ones."""
    counts, n_calls = [], 0

    def count(_frame, event, _argument):
        nonlocal n_calls
        n_calls += event in ("call", "c_call") and threading.current_thread().name.startswith(
            (ALONE, COMMON)
        )

    def run(n_tokens):
        ends = SimpleQueue()
        for i in range(n_requests):
            stream = llm.stream_tokens(
                [1 + i, 5, 9], replace(SAMPLING, seed=i, max_tokens=n_tokens), speculation=OFF
            )
            stream.listen(lambda one: ends.put(one) if isinstance(one, Ended) else None)
        assert [ends.get(timeout=180).error for _ in range(n_requests)] == [None] * n_requests

    options = {"threads": 1, "parallel": n_requests, "n_ctx": 512, "extra_bufts": False}
    with gguf_spec.load(path, "none", prefix_memory=0, **options):
        pass  # the library is tried out, in threads that are not counted
    threading.setprofile(count)
    try:
        with gguf_spec.load(path, "none", prefix_memory=0, **options) as llm:
            for n_tokens in (20, 20, 220):
                before = n_calls
                run(n_tokens)
                counts.append(n_calls - before)
    finally:
        threading.setprofile(None)
    return (counts[2] - counts[1]) / (200 * n_requests)


OFF = Speculation(0)


@pytest.mark.parametrize(("n_requests", "most"), [(1, 130), (8, 170)])
def test_a_token_of_plain_decoding_needs_few_calls(gguf_dir, n_requests, most):
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    if sys.implementation.name != "cpython":
        pytest.skip("the limits are those of CPython")
    found = calls_a_token(gguf_dir / "llama.gguf", n_requests)
    assert 20 < found <= most, found
