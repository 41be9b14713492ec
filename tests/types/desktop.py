"""The engine of a desktop program: settings from a file, one thread that owns the model, events for the window."""

from __future__ import annotations

import json
import queue
import sys
import threading
from pathlib import Path
from typing import cast

import gguf_spec
from gguf_spec import Answer, LoadOptions, Progress, RequestOptions, Sampling, Stats

Event = tuple[str, str]


class Engine(threading.Thread):
    def __init__(self, model: str, settings: Path | None = None) -> None:
        super().__init__(name="engine")
        self.loading: LoadOptions = {"n_ctx": 512, "progress": self._progress}
        self.options: RequestOptions = {"temperature": 0.0, "max_tokens": 12, "stop": ["\n\n"]}
        if settings:
            self.options |= cast(RequestOptions, json.loads(settings.read_text("utf-8")))
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.model = model
        self.answer: Answer | None = None

    def run(self) -> None:
        try:
            with gguf_spec.load(self.model, **self.loading) as llm:
                chat = llm.chat(sampling=Sampling(seed=1), overflow="shift")
                while (question := self.questions.get()) is not None:
                    with chat.stream(question, **self.options) as turn:
                        self._show(turn)
                    with llm.stream(
                        turn.result.text or question, echo=True, **self.options
                    ) as more:
                        self._show(more)
                one, other = llm.generate_many(["One", "Two"], Sampling(max_tokens=4), k=2)
                texts = [
                    one.text for one in (one, other) if not isinstance(one, gguf_spec.GgufSpecError)
                ]
                best = max(
                    llm.choose("Once upon a", texts, special=False),
                    key=lambda option: option.logprob,
                )
                self.events.put(("best", best.text))
                edited = llm.edit(
                    "a = 1\nprint(a)\n", "rename a to b", name="a.py", stop_tokens=[0]
                )
                self.events.put(("edited", edited.text))
        except gguf_spec.NotDownloadedError as error:
            self.events.put(("download", f"{error} {error.hint}"))
        except (gguf_spec.ModelError, gguf_spec.NotEnoughMemoryError) as error:
            self.events.put(("choose", f"{error} {error.hint}"))
        except gguf_spec.GgufSpecError as error:
            self.events.put(("failed", error.message))
        self.events.put(("end", ""))

    def _show(self, answer: Answer) -> None:
        self.answer = answer
        for chunk in answer:
            self.events.put(("text", chunk.text))
        stats: Stats = answer.stats
        self.events.put(("stats", f"{stats.n_generated} tokens, {answer.result.finish_reason}"))

    def _progress(self, now: Progress) -> bool:
        self.events.put(("loading", f"{now.share:.0%}"))
        return True

    def stop(self) -> None:
        if self.answer:
            self.answer.cancel()


def main(model: str, settings: str, *questions: str) -> None:
    engine = Engine(model, Path(settings))
    for question in (*questions, None):
        engine.questions.put(question)
    engine.start()
    while (event := engine.events.get())[0] != "end":
        print(*event)
    engine.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
