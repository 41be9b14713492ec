"""Counters of the server, in the text format of Prometheus."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import ClosedError
from ..results import Stats

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream

# Metric name -> (field of `Stats`, help text).
_SUMS = {
    "prompt_tokens_total": ("n_prompt", "Tokens of prompts."),
    "cached_prompt_tokens_total": ("n_cached", "Tokens of prompts that were not read again."),
    "generated_tokens_total": ("n_generated", "Tokens of answers."),
    "rounds_total": ("rounds", "Passes of the target over drafted tokens."),
    "near_ties_total": ("n_near_ties", "Tokens that plain decoding may decide otherwise."),
    "decided_again_total": ("n_decided_again", "Near ties that were decided again."),
    "drafted_tokens_total": ("n_drafted", "Tokens that were drafted."),
    "accepted_tokens_total": ("n_accepted", "Drafted tokens that the target accepted."),
}
# Characters of a label that are escaped.
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Parts of the time of an answer; `Stats` has a field `<part>_s` for each, in seconds.
_TIMES = ("prompt", "draft", "verify", "other")


class Metrics:
    """Request counts, and sums of tokens and time over all answers, the running one included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: collections.Counter[tuple[str, int]] = collections.Counter()
        self._sums: collections.Counter[str] = collections.Counter()
        self._seconds: collections.Counter[str] = collections.Counter()
        self._drafters: dict[str, tuple[int, int]] = {}
        self._running: list[Stream] = []
        self._last = Stats()
        self._n_embedded = 0

    def count(self, path: str, status: int) -> None:
        """Count a request by its path and the HTTP status of its response."""
        with self._lock:
            self._requests[path, status] += 1

    def embedded(self, n_tokens: int) -> None:
        """Count the tokens of texts whose embeddings or scores were computed."""
        with self._lock:
            self._n_embedded += n_tokens

    def began(self, stream: Stream) -> None:
        """Include the statistics of a running stream from now on."""
        with self._lock:
            self._running.append(stream)

    def ended(self, stream: Stream) -> None:
        """Add the final statistics of a running stream to the sums."""
        with self._lock:
            self._running.remove(stream)
            self._last = stream.stats
            self._drafters = _add(self._sums, self._seconds, self._drafters, self._last)

    def text(self, n_waiting: int, n_running: int, llms: Sequence[LLM] = ()) -> str:
        """Return all metrics in the text format of Prometheus.

        Args:
            n_waiting: Number of requests in the queue.
            n_running: Number of requests that are being answered.
            llms: The models in memory.
        """
        with self._lock:
            requests, sums, seconds, drafters = (
                self._requests.copy(),
                self._sums.copy(),
                self._seconds.copy(),
                self._drafters,
            )
            now = [stream.stats for stream in self._running]
            for stats in now:
                drafters = _add(sums, seconds, drafters, stats)
            speed = sum(stats.tokens_per_s for stats in now or [self._last])
        lines = _metric(
            "requests_total",
            "counter",
            "Requests by path and status.",
            ((f'{{path="{p}",status="{s}"}}', n) for (p, s), n in sorted(requests.items())),
        )
        lines += _metric("queue_length", "gauge", "Requests that wait.", [("", n_waiting)])
        lines += _metric(
            "busy", "gauge", "1 while an answer is under way.", [("", int(n_running > 0))]
        )
        lines += _metric(
            "requests_running", "gauge", "Requests that are being answered.", [("", n_running)]
        )
        lines += _of_models(llms)
        lines += _metric(
            "tokens_per_second",
            "gauge",
            "Speed of the answers under way together, or of the last one.",
            [("", round(speed, 3))],
        )
        lines += _metric(
            "embedded_tokens_total",
            "counter",
            "Tokens of texts for embeddings and ranks.",
            [("", self._n_embedded)],
        )
        for name, (field, told) in _SUMS.items():
            lines += _metric(name, "counter", told, [("", sums[field])])
        lines += _metric(
            "time_seconds_total",
            "counter",
            "Time by what it went into.",
            [(f'{{part="{part}"}}', round(seconds[part], 6)) for part in _TIMES],
        )
        of = sorted(drafters.items())
        lines += _metric(
            "drafter_drafted_tokens_total",
            "counter",
            "Tokens drafted, by drafter.",
            [(f'{{drafter="{name}"}}', n) for name, (n, _) in of],
        )
        lines += _metric(
            "drafter_accepted_tokens_total",
            "counter",
            "Those accepted.",
            [(f'{{drafter="{name}"}}', n) for name, (_, n) in of],
        )
        share = [
            (f'{{drafter="{name}"}}', round(accepted / drafted, 6))
            for name, (drafted, accepted) in of
            if drafted
        ]
        lines += _metric("drafter_acceptance", "gauge", "Accepted over drafted tokens.", share)
        return "".join(lines)


def _add(
    sums: collections.Counter[str],
    seconds: collections.Counter[str],
    drafters: dict[str, tuple[int, int]],
    stats: Stats,
) -> dict[str, tuple[int, int]]:
    """Add `stats` to `sums` and `seconds` in place.

    Returns:
        Per drafter: (tokens drafted, tokens accepted), including those of `stats`.
    """
    for field, _ in _SUMS.values():
        sums[field] += getattr(stats, field)
    for part in _TIMES:
        seconds[part] += getattr(stats, f"{part}_s")
    pairs = {name: drafters.get(name, (0, 0)) for name in {*drafters, *stats.drafters}}
    return {
        name: (n + stats.drafters.get(name, (0, 0))[0], m + stats.drafters.get(name, (0, 0))[1])
        for name, (n, m) in pairs.items()
    }


def _of_models(llms: Sequence[LLM]) -> list[str]:
    """Return the slots and passes of the models in memory."""
    slots: list[tuple[str, int]] = []
    busy, passes, rows = [*slots], [*slots], [*slots]
    kept, kept_bytes, reused = [*slots], [*slots], [*slots]
    for llm in llms:
        label = f'{{model="{llm.name.translate(_ESCAPED)}"}}'
        try:
            states, counts, memory = llm.slots(), llm.pass_counts, llm.prefix_memory
        except ClosedError:  # it was unloaded in between
            continue
        slots.append((label, len(states)))
        busy.append((label, sum(state.request is not None for state in states)))
        passes.append((label, counts.n_passes))
        rows.append((label, counts.n_rows))
        kept.append((label, memory.n_entries))
        kept_bytes.append((label, memory.n_bytes))
        reused.append((label, memory.n_tokens_restored))
    return [
        *_metric("slots", "gauge", "Requests that can run at once.", slots),
        *_metric("slots_busy", "gauge", "Slots in which a request runs.", busy),
        *_metric("target_passes_total", "counter", "Passes of the target with logits.", passes),
        *_metric("target_rows_total", "counter", "Rows of logits of these passes.", rows),
        *_metric("kept_prefixes", "gauge", "Texts kept beside the slots.", kept),
        *_metric("kept_prefix_bytes", "gauge", "Memory of the kept texts.", kept_bytes),
        *_metric(
            "kept_prefix_tokens_total", "counter", "Prompt tokens taken from kept texts.", reused
        ),
    ]


def _metric(name: str, kind: str, told: str, values: Iterable[tuple[str, float]]) -> list[str]:
    return [
        f"# HELP gguf_spec_{name} {told}\n# TYPE gguf_spec_{name} {kind}\n",
        *(f"gguf_spec_{name}{labels} {value}\n" for labels, value in values),
    ]
