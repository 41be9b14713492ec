"""Requests that share passes, and others beside them."""

import threading

from gguf_spec import Sampling, Speculation

SHORT = Sampling(seed=4, max_tokens=12, ignore_eos=True)
LONG = Sampling(seed=5, max_tokens=400, ignore_eos=True)
ENDLESS = Sampling(seed=6, max_tokens=None, ignore_eos=True, overflow="shift")
PLAIN = Speculation(0)
OPTIONS = {"threads": 1, "n_ctx": 512, "parallel": 4, "draft_texts": "off"}
PROMPTS = ["Once upon a time", "The fox", "A king", "The old woman said", "In the wood"]


def free(llm):
    """Whether nothing runs, once the turn was given."""
    llm.snapshot()
    runner, scheduler = llm.engine.queue, llm.engine.queue.scheduler
    idle = runner.n_running == runner.n_waiting == 0 and llm.engine.queue.first is None
    return idle and (scheduler is None or scheduler.free == scheduler.pairs)


def texts(llm):
    found = llm.generate_many(PROMPTS, SHORT)
    return dict(zip(PROMPTS, [one.text for one in found], strict=True))


class Beside:
    """Requests that run in other threads until the end of the block; one is there before it begins."""

    def __init__(self, llm, n=3, sampling=ENDLESS):
        self._llm, self._n, self._sampling = llm, n, sampling
        self.results, self._stop = [], False
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(n)]

    def _run(self, i):
        n = []

        def on_token(token):
            n.append(token)
            if len(n) == 2:
                self._waits[i].set()
            return self._stop

        try:
            self.results.append(self._llm.generate(PROMPTS[i], self._sampling, on_token=on_token))
        except Exception as error:
            self.results.append(error)
        self._waits[i].set()

    def __enter__(self):
        self._waits = [threading.Event() for _ in range(self._n)]
        for thread in self._threads:
            thread.start()
        assert all(one.wait(180) for one in self._waits)
        return self

    def __exit__(self, *_):
        self._stop = True
        for thread in self._threads:
            thread.join(180)
            assert not thread.is_alive()
