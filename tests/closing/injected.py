"""Raise KeyboardInterrupt at chosen places of requests, one at a time; after each the next request must give the right text.

Usage: injected.py FOLDER calls N, for places just before and just after calls of llama.cpp, or injected.py FOLDER bytecodes N, for bytecodes of
the files below. N places are taken, evenly, of those that a request comes by again; 0 takes all.
"""

import sys
import threading
from functools import partial
from pathlib import Path

from llama_cpp import llama_cpp as C

from tests.closing.children import default_signals
from tests.closing.interrupted import in_another_thread
from tests.closing.requests import REQUESTS, load_pair
from tests.support import bytecodes

CALLED = (
    "llama_decode", "llama_synchronize", "llama_memory_seq_rm", "llama_memory_seq_cp", "llama_memory_clear", "llama_set_n_threads",
    "llama_get_logits_ith", "llama_state_seq_get_data", "llama_state_seq_set_data", "llama_memory_seq_pos_max", "llama_tokenize",
)  # fmt: skip
FILES = (
    "runtime/llm.py", "runtime/client.py", "runtime/local_engine.py", "runtime/chat.py", "runtime/request_queue.py", "runtime/stream.py", "runtime/generation.py", "runtime/many.py", "llama/context.py", "llama/sequence.py", "llama/recurrent_state.py", "llama/weights.py", "llama/native.py", "speculative/prefix.py", "speculative/engine.py", "speculative/drafters/model.py",
    "llama/threads.py", "runtime/session_file.py", "speculative/pair.py", "speculative/controller.py", "speculative/cost_model.py", "speculative/pair_statistics.py", "llama/samplers.py", "grammar/token_grammar.py",
)  # fmt: skip


class Calls:
    """Functions of llama.cpp that raise at one of their calls."""

    def __init__(self):
        self.counts, self._at = {}, None
        for name in CALLED:
            setattr(C, name, partial(self._call, name, getattr(C, name)))

    def _call(self, name, function, *arguments):
        if threading.current_thread() is not threading.main_thread():  # where no signal is handled
            return function(*arguments)
        n = self.counts[name] = self.counts.get(name, 0) + 1
        if self._at == (name, n, "before"):
            raise KeyboardInterrupt(self._at)
        result = function(*arguments)
        if self._at == (name, n, "after"):
            raise KeyboardInterrupt(self._at)
        return result

    def places(self, request):
        """Return all places that a request reaches."""
        self.counts.clear()
        request()
        return [
            (name, i, when)
            for name, n in self.counts.items()
            for i in range(1, n + 1)
            for when in ("before", "after")
        ]

    def run(self, request, place):
        self.counts.clear()
        self._at = place
        try:
            request()
        finally:
            self._at = None


def described(place):
    return (
        bytecodes.described(place)
        if len(place) == 2
        else f"{place[2]} call {place[1]} of {place[0]}"
    )


def main(folder, kind, n):
    default_signals()
    folder, n, wrong, kept, n_raised = Path(folder), int(n), [], [], 0
    swallowed = []
    sys.unraisablehook = swallowed.append
    with load_pair() as llm:
        way = Calls() if kind == "calls" else bytecodes.Bytecodes(FILES)
        requests = {name: partial(request, llm, folder) for name, request in REQUESTS.items()}
        right = {name: request() for name, request in requests.items()}
        places, known = [], set()
        for name, request in requests.items():
            for place in way.places(request):
                key = (name, *place) if kind == "calls" else place[0]
                if key not in known:
                    known.add(key)
                    places.append((name, place))
        names, n_tried = sorted(requests), 0
        for i, (name, place) in enumerate(bytecodes.spread(places, n)):
            if n and n_raised == n:
                break
            n_tried += 1
            try:
                way.run(requests[name], place)
            except KeyboardInterrupt as error:
                n_raised += 1
                kept = [] if name == "stream" else [error]
            except Exception as error:  # what the last interrupt has left
                wrong.append((name, place))
                print(f"WRONG: {name} raises {error!r}", flush=True)
            following = names[i % len(names)]
            run = requests[following]
            try:
                if not kept and llm.engine.queue.first:
                    raise AssertionError("the turn is still taken")
                found = run() if i % 5 else in_another_thread(run)
            except Exception as error:
                found = repr(error)
            if found != right[following]:
                wrong.append((name, place))
                print(
                    f"WRONG: {name} interrupted at {described(place)}: {following} gives {found!r}, not {right[following]!r}",
                    flush=True,
                )
    del kept
    for one in swallowed:
        print("swallowed:", one.exc_value, one.object)
    print(f"{n_tried} of {len(places)} places, {n_raised} interrupts, {len(wrong)} wrong")
    return 1 if wrong or n_raised < (n or n_tried // 2) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
