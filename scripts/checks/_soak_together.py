"""Requests that share passes, for as long as one likes: some are cancelled, dropped, fail, or fill their context."""

import random
import threading
import time

from gguf_spec import Sampling, Speculation
from gguf_spec.errors import NoTokenLeftError

N_CTX = 256
WAYS = (Speculation(0), Speculation(), Speculation(4, adaptive=False), Speculation(drafter="ngram"))


class PlantedError(Exception):
    """What a callback raises."""


class Requests:
    """One thread of requests of all kinds; each is counted under what became of it."""

    def __init__(self, llm, right, counts, until, seed):
        self._llm, self._right, self._counts, self._until = llm, right, counts, until
        self._random, self._lock = random.Random(seed), threading.Lock()
        self._endless = Sampling(seed=seed, max_tokens=None, ignore_eos=True)

    def run(self):
        kinds = [self.read] * 6 + [self.stream] * 4
        kinds += [self.cancelled, self.dropped, self.failed, self.full, self.dead_end]
        while time.monotonic() < self._until:
            try:
                found = self._random.choice(kinds)()
            except Exception as error:
                found = f"failed: {error!r}"
            with self._lock:
                self._counts[found] += 1

    def _drawn(self):
        prompt, sampling, text = self._random.choice(self._right)
        way = self._random.choice(
            [way for way in WAYS if self._llm.draft_name or not way.k or way.adaptive]
        )
        return prompt, sampling, way, text

    def read(self):
        prompt, sampling, way, text = self._drawn()
        found = self._llm.generate(prompt, sampling, speculation=way)
        return "right" if found.text == text else "WRONG TEXT"

    def stream(self):
        prompt, sampling, way, text = self._drawn()
        with self._llm.stream(prompt, sampling, speculation=way) as stream:
            found = "".join(chunk.text for chunk in stream)
        return "right" if found == text else "WRONG TEXT"

    def cancelled(self):
        n = self._random.randrange(1, 30)
        tokens = []
        one = self._llm.generate(
            self._drawn()[0], self._endless, on_token=lambda t: tokens.append(t) or len(tokens) == n
        )
        return "cancelled" if len(one.tokens) == n else "WRONG CANCEL"

    def dropped(self):
        stream = self._llm.stream(self._drawn()[0], self._endless)
        for _ in range(self._random.randrange(3)):
            next(stream)
        return "dropped"

    def failed(self):
        def fail(_):
            raise PlantedError

        try:
            self._llm.generate(self._drawn()[0], self._endless, on_token=fail)
        except PlantedError:
            return "failed as it should"
        return "WRONG: its error is lost"

    def full(self):
        one = self._llm.generate(self._drawn()[0], self._endless)
        return "full context" if one.finish_reason == "length" else "WRONG END"

    def dead_end(self):
        forbidden = {
            i: float("-inf")
            for i in range(self._llm.vocabulary.n_vocab)
            if self._llm.token_bytes(i)[:1] == b"z"
        }
        try:
            sampling = Sampling(seed=1, grammar='root ::= "q" "z"', logit_bias=forbidden)
            self._llm.generate(self._drawn()[0], sampling)
        except NoTokenLeftError:
            return "dead end"
        return "WRONG: a dead end went on"


def begin(llm, right, counts, until, n_threads):
    """Return the started threads."""
    threads = [
        threading.Thread(target=Requests(llm, right, counts, until, i).run)
        for i in range(n_threads)
    ]
    for thread in threads:
        thread.start()
    return threads


def is_idle(llm):
    """Whether no request is left in a slot or in the queue."""
    llm.snapshot()
    scheduler = llm._runner._scheduler
    return llm._runner.n_running == llm._runner.n_waiting == 0 and (
        scheduler.free == scheduler.pairs
    )
