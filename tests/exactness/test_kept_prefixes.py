"""Texts behind a cache that was saved and restored are those of a fresh prompt, bit by bit."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, islice

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.llama.context import Context
from gguf_spec.quantize import quantize
from gguf_spec.runtime.request_queue import ParallelQueue
from tests.gguf.test_near_ties import TALES
from tests.support.batch_requests import outcome, together

pytestmark = pytest.mark.usefixtures("copies_pay")
DRAFT = TALES / "tales-draft-Q4_0.gguf"
N_CTX = 640
STARTS = [
    "The king had seven sons, and none of them would marry. ",
    "A poor miller lived beside the forest with his daughter. ",
    "In the old days, when wishing still helped, there was a fox. ",
    "Two brothers went into the world to seek their fortune. ",
]
SPECULATIONS = [
    Speculation(),
    Speculation(5, adaptive=False, drafter="model"),
    Speculation(4, adaptive=False, drafter="hybrid"),
    Speculation(0),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files without and with a grid of prefill passes."""
    quantized = tmp_path_factory.mktemp("k") / "Q4_K_M.gguf"
    quantize(TALES / "tales-target-Q8_0.gguf", quantized, "Q4_K_M")
    return {"exact": TALES / "tales-target-Q8_0.gguf", "grid": quantized}


def conversations(n_rounds):
    """Turns of four texts in order, each longer than its previous turn, and prefixes of them."""
    rng, texts = random.Random(1), [start * 6 for start in STARTS]
    requests = []
    for i, at in enumerate(islice(cycle(range(4)), 4 * n_rounds)):
        temperature = 0.0 if i % 3 == 0 else 0.8
        requests.append(
            {
                "prompt": texts[at][: rng.choice([None, None, -40])],
                "sampling": Sampling(seed=i, max_tokens=20, temperature=temperature),
                "speculation": SPECULATIONS[(i // 4) % 4],
            }
        )
        texts[at] += f"And {STARTS[(at + i) % 4].lower()}"
    return requests


def afresh(llm, requests):
    found = []
    for request in requests:
        llm.forget()
        found.append(outcome(llm, request))
    return found


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exact", "grid"])
def test_one_request_at_a_time(files, kind):
    requests = conversations(6)
    with gguf_spec.load(files[kind], DRAFT, threads=1, n_ctx=N_CTX) as llm:
        expected = afresh(llm, requests)
        llm.forget()
        before = llm.prefix_memory
        assert before.n_entries == before.n_bytes == 0 < before.limit_bytes
        assert [outcome(llm, request) for request in requests] == expected
        memory = llm.prefix_memory
        assert memory.n_restored - before.n_restored >= 16
        assert memory.n_tokens_restored - before.n_tokens_restored >= 16 * 64
        assert 0 < memory.n_bytes < memory.limit_bytes
        llm.forget()
        assert llm.prefix_memory.n_bytes == 0


@pytest.mark.full
@pytest.mark.parametrize("kind", ["exact", "grid"])
def test_requests_that_share_passes(files, kind):
    """Three slots for four texts."""
    requests = conversations(4)
    requests += [request | {"prompt": request["prompt"] + " Then"} for request in requests[-8:]] * 2
    with gguf_spec.load(files[kind], DRAFT, threads=1, n_ctx=N_CTX, prefix_memory=0) as one:
        expected = afresh(one, requests)
        assert one.prefix_memory.n_saved == 0
    with gguf_spec.load(
        files[kind], DRAFT, threads=1, n_ctx=N_CTX, parallel=3, prefix_memory="64MB"
    ) as llm:
        for _ in range(2):
            assert together(llm, requests, n=5) == expected
        assert llm.prefix_memory.n_restored > 8
        assert llm.prefix_memory.limit_bytes == 64_000_000
        llm.forget()
        assert llm.prefix_memory.n_entries == 0


@pytest.mark.full
def test_a_text_that_is_restored_beside_a_copy_and_a_request_that_decodes(files, monkeypatch):
    """The copy waits for a pass, and rows of the last pass wait for the request that decodes."""
    waiting, hold, admit = [], [], ParallelQueue._admit
    finish = Context.finish_copies
    monkeypatch.setattr(
        Context,
        "finish_copies",
        lambda self: waiting.append(self.weights.native.has_copies) or finish(self),
    )
    monkeypatch.setattr(
        ParallelQueue,
        "_admit",
        lambda self, scheduler: None if len(self._queue) < sum(hold) else admit(self, scheduler),
    )

    def request(text, n):
        return {"prompt": text, "sampling": Sampling(seed=n, max_tokens=n, temperature=0.8)}

    first, *others = [request(start * 8, 9 + i) for i, start in enumerate(STARTS)]
    decoding = request(STARTS[1] * 8 + "And then", 120)
    copied, restored = request(STARTS[1] * 8 + "But", 20), request(STARTS[0] * 8 + "So", 21)
    options = {"threads": 1, "n_ctx": N_CTX}
    with gguf_spec.load(files["exact"], None, parallel=3, **options) as llm:
        expected = afresh(llm, [decoding, copied, restored])
        llm.forget()
        for one in (first, *others):
            llm.generate(**one)
        stream = llm.stream(**decoding)
        next(stream)
        hold.append(2)
        waiting.clear()
        with ThreadPoolExecutor(2) as pool:
            found = [pool.submit(outcome, llm, copied)]
            while not llm.engine.queue.n_waiting:  # the copy comes first
                time.sleep(0.01)
            found.append(pool.submit(outcome, llm, restored))
            for _ in stream:
                pass
            assert [one.result(180) for one in found] == expected[1:]
        assert any(waiting), "no copy was there"
        assert llm.prefix_memory.n_restored == 1
        assert stream.result.tokens == expected[0][1]


@pytest.mark.parametrize("kind", ["mamba", "lfm2"])
def test_models_that_cannot_roll_back(gguf_dir, kind):
    """A text is restored where the next prompt begins with all of it."""
    words = ["the and of ", "a in the on "]
    with gguf_spec.load(gguf_dir / f"{kind}.gguf", None, threads=1, n_ctx=512) as llm:
        base = [llm.tokenize(word * 30) for word in words]
        sampling = Sampling(seed=1, max_tokens=9, ignore_eos=True)
        texts, requests = [*base], []
        for i in range(6):
            answer = llm.generate(texts[i % 2], sampling).tokens
            requests.append({"prompt": texts[i % 2], "sampling": sampling})
            texts[i % 2] = [*texts[i % 2], *answer, 1, 2]
        assert llm.prefix_memory.n_restored == 4
        found = [outcome(llm, request) for request in requests]
        assert found == afresh(llm, requests)


@pytest.mark.parametrize("wrong", ["512", "many", -1, 1.5, True, None])
def test_wrong_sizes(gguf_dir, wrong):
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="a size such as 500MB or 2GiB"):
        gguf_spec.load(gguf_dir / "llama.gguf", None, threads=1, prefix_memory=wrong)
