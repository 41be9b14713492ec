"""Counters of the server, in the text format of Prometheus."""

from __future__ import annotations

import itertools
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..errors import ClosedError
from ..results import Stats

if TYPE_CHECKING:
    from ..engine import Answer
    from ..runtime.llm import LLM

# Metric -> help text, in the order of the output. Those whose name ends with `_total` are counters.
_HELP = {
    "requests_total": "Requests by path and status.",
    "queue_length": "Requests that wait.",
    "busy": "1 while an answer is under way.",
    "requests_running": "Requests that are being answered.",
    "slots": "Requests that can run at once.",
    "slots_busy": "Slots in which a request runs.",
    "target_passes_total": "Passes of the target with logits.",
    "target_rows_total": "Rows of logits of these passes.",
    "kept_prefixes": "Texts kept beside the slots.",
    "kept_prefix_bytes": "Memory of the kept texts.",
    "kept_prefix_tokens_total": "Prompt tokens taken from kept texts.",
    "tokens_per_second": "Speed of the answers under way together, or of the last one.",
    "embedded_tokens_total": "Tokens of texts for embeddings, ranks and options.",
    "embedding_passes_total": "Passes over these texts.",
    "prompt_tokens_total": "Tokens of prompts.",
    "longest_tokens": "Most tokens of a prompt and its answer.",
    "cached_prompt_tokens_total": "Tokens of prompts that were not read again.",
    "generated_tokens_total": "Tokens of answers.",
    "rounds_total": "Passes of the target over drafted tokens.",
    "near_ties_total": "Tokens that plain decoding may decide otherwise.",
    "decided_again_total": "Near ties that were decided again.",
    "drafted_tokens_total": "Tokens that were drafted.",
    "accepted_tokens_total": "Drafted tokens that the target accepted.",
    "time_seconds_total": "Time by what it went into.",
    "drafter_drafted_tokens_total": "Tokens drafted, by drafter.",
    "drafter_accepted_tokens_total": "Those accepted.",
    "drafter_acceptance": "Accepted over drafted tokens.",
}
# Histogram -> help text, and the upper bounds of its buckets. Names, bounds and labels are those of
# OpenTelemetry's conventions for generative AI, in the form of Prometheus.
_HISTOGRAMS: dict[str, tuple[str, Sequence[float]]] = {
    "gen_ai_server_request_duration_seconds": (
        "Time from the arrival of a request to the end of an answer.",
        [0.01 * 2**i for i in range(14)],
    ),
    "gen_ai_server_time_to_first_token_seconds": (
        "Time from the arrival of a request to the first token of an answer.",
        [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10],
    ),
    "gen_ai_server_time_per_output_token_seconds": (
        "Time of an answer after its first token, over its further tokens.",
        [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5],
    ),
    "gen_ai_client_token_usage": (
        "Tokens of the prompt (input) and of the answer (output).",
        [4**i for i in range(14)],
    ),
}
# Metric -> field of `Stats`.
_SUMS = {
    "prompt_tokens_total": "n_prompt",
    "cached_prompt_tokens_total": "n_cached",
    "generated_tokens_total": "n_generated",
    "rounds_total": "rounds",
    "near_ties_total": "n_near_ties",
    "decided_again_total": "n_decided_again",
    "drafted_tokens_total": "n_drafted",
    "accepted_tokens_total": "n_accepted",
}
# Drafted and accepted tokens of a drafter.
_OF_DRAFTERS = ("drafter_drafted_tokens_total", "drafter_accepted_tokens_total")
# Characters of a label that are escaped.
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
# Parts of the time of an answer; `Stats` has a field `<part>_s` for each, in seconds.
_TIMES = ("prompt", "draft", "verify", "other")


class Metrics:
    """Request counts, and sums of tokens and time over all answers, the running one included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Metric and labels -> its value.
        self._sums: defaultdict[tuple[str, str], float] = defaultdict(int)
        # Histogram and labels -> the number of values in each bucket alone, and the sum of them.
        self._histograms: dict[tuple[str, str], list[float]] = {}
        self._running: list[Answer] = []
        self._last = Stats()
        self.embedded(0)
        self._sums["longest_tokens", ""] = 0
        _add(self._sums, self._last)

    def count(self, path: str, status: int) -> None:
        with self._lock:
            self._sums["requests_total", _label(path=path, status=status)] += 1

    def embedded(self, n_tokens: int, n_passes: int = 0) -> None:
        """Count tokens and passes of texts whose embeddings or scores were computed."""
        with self._lock:
            self._sums["embedded_tokens_total", ""] += n_tokens
            self._sums["embedding_passes_total", ""] += n_passes

    def began(self, stream: Answer) -> None:
        """Include the statistics of a running stream from now on."""
        with self._lock:
            self._running.append(stream)

    def ended(
        self,
        stream: Answer,
        model: str,
        operation: str,
        times_s: Sequence[float],
        error: str | None = None,
    ) -> None:
        """Add the final statistics of a running stream to the sums.

        Args:
            times_s: When the request came, the first tokens (missing without any), and the end.
            error: Error that ended the answer early; None without an error.
        """
        of_all = _labels(
            gen_ai_operation_name=operation,
            gen_ai_provider_name="gguf_spec",
            gen_ai_request_model=model.translate(_ESCAPED),
        )
        n, total_s = stream.stats.n_generated, times_s[-1] - times_s[0]
        with self._lock:
            self._running.remove(stream)
            last = self._last = stream.stats
            _add(self._sums, last)
            n_most = max(self._sums["longest_tokens", ""], last.n_prompt + n)
            self._sums["longest_tokens", ""] = n_most
            failed = "," + _labels(error_type=error) if error else ""
            self._observe("gen_ai_server_request_duration_seconds", total_s, of_all + failed)
            for kind, n_tokens in (("input", last.n_prompt), ("output", n)):
                labels = f"{of_all},{_labels(gen_ai_token_type=kind)}"
                self._observe("gen_ai_client_token_usage", n_tokens, labels)
            if error or len(times_s) < 3:
                return
            first_s = times_s[1] - times_s[0]
            self._observe("gen_ai_server_time_to_first_token_seconds", first_s, of_all)
            if n > 1:
                token_s = (total_s - first_s) / (n - 1)
                self._observe("gen_ai_server_time_per_output_token_seconds", token_s, of_all)

    def _observe(self, name: str, value: float, labels: str) -> None:
        bounds = _HISTOGRAMS[name][1]
        row = self._histograms.setdefault((name, labels), [0] * (len(bounds) + 2))
        row[bisect_left(bounds, value)] += 1
        row[-1] += value

    def text(self, n_waiting: int, n_running: int, llms: Sequence[LLM] = ()) -> str:
        with self._lock:
            sums = self._sums.copy()
            histograms = {key: [*row] for key, row in self._histograms.items()}
            now = [stream.stats for stream in self._running]
            speed = sum(stats.tokens_per_s for stats in now or [self._last])
        for stats in now:
            _add(sums, stats)
        values: dict[str, dict[str, float]] = {
            "queue_length": {"": n_waiting},
            "busy": {"": int(n_running > 0)},
            "requests_running": {"": n_running},
            "tokens_per_second": {"": round(speed, 3)},
            **_of_models(llms),
        }
        for (name, label), value in sums.items():
            values.setdefault(name, {})[label] = round(value, 6)
        for name in ("requests_total", *_OF_DRAFTERS):
            values[name] = dict(sorted(values.get(name, {}).items()))
        drafted, accepted = (values[name] for name in _OF_DRAFTERS)
        values["drafter_acceptance"] = {
            label: round(accepted[label] / n, 6) for label, n in drafted.items() if n
        }
        lines = []
        for name, text in _HELP.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# HELP gguf_spec_{name} {text}\n# TYPE gguf_spec_{name} {kind}\n")
            series = values.get(name, {}).items()
            lines += [f"gguf_spec_{name}{label} {value}\n" for label, value in series]
        for name, (text, bounds) in _HISTOGRAMS.items():
            lines.append(f"# HELP {name} {text}\n# TYPE {name} histogram\n")
            rows = [(labels, row) for (one, labels), row in histograms.items() if one == name]
            for labels, (*counts, _) in rows:
                below = zip((*bounds, "+Inf"), itertools.accumulate(counts), strict=True)
                lines += [
                    f"{name}_bucket{{{labels},{_labels(le=bound)}}} {n}\n" for bound, n in below
                ]
            lines += [f"{name}_sum{{{labels}}} {round(row[-1], 6)}\n" for labels, row in rows]
            lines += [f"{name}_count{{{labels}}} {sum(row[:-1])}\n" for labels, row in rows]
        return "".join(lines) + _as_llama_server(values, n_waiting, n_running)


def _as_llama_server(
    values: Mapping[str, Mapping[str, float]], n_waiting: int, n_running: int
) -> str:
    """Return the metrics with llama-server's names, which dashboards for it read."""
    sums = {name: sum(some.values()) for name, some in values.items()}
    read_s = values["time_seconds_total"][_label(part="prompt")]
    made_s = sums["time_seconds_total"] - read_s
    n_read = sums["prompt_tokens_total"] - sums["cached_prompt_tokens_total"]
    n_made, n_passes = sums["generated_tokens_total"], sums.get("target_passes_total", 0)
    numbers = {
        "prompt_tokens_total": n_read + sums["embedded_tokens_total"],
        "prompt_tokens_cached_total": sums["cached_prompt_tokens_total"],
        "prompt_seconds_total": read_s,
        "tokens_predicted_total": n_made,
        "tokens_predicted_seconds_total": made_s,
        "n_decode_total": n_passes + sums["embedding_passes_total"],
        "n_tokens_max": sums["longest_tokens"],
        "n_busy_slots_per_decode": sums["rounds_total"] / n_passes if n_passes else 0.0,
        "spec_decode_num_drafts_total": sums["rounds_total"],
        "spec_decode_num_draft_tokens_total": sums["drafted_tokens_total"],
        "spec_decode_num_accepted_tokens_total": sums["accepted_tokens_total"],
        "prompt_tokens_seconds": n_read / read_s if read_s else 0.0,
        "predicted_tokens_seconds": n_made / made_s if made_s else 0.0,
        "requests_processing": n_running,
        "requests_deferred": n_waiting,
    }
    counters = {"n_tokens_max", *(name for name in numbers if name.endswith("_total"))}
    kinds = {name: "counter" if name in counters else "gauge" for name in numbers}
    return "".join(
        f"# HELP llamacpp:{name} As of llama-server.\n# TYPE llamacpp:{name} {kinds[name]}\n"
        f"llamacpp:{name} {round(value, 6)}\n"
        for name, value in numbers.items()
    )


def _add(sums: defaultdict[tuple[str, str], float], stats: Stats) -> None:
    for name, field in _SUMS.items():
        sums[name, ""] += getattr(stats, field)
    for part in _TIMES:
        sums["time_seconds_total", _label(part=part)] += getattr(stats, f"{part}_s")
    for drafter, counts in stats.drafters.items():
        for name, n in zip(_OF_DRAFTERS, counts, strict=True):
            sums[name, _label(drafter=drafter)] += n


def _of_models(llms: Sequence[LLM]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for llm in llms:
        try:
            states, counts, memory = llm.slots(), llm.pass_counts, llm.prefix_memory
        except ClosedError:  # it was unloaded in between
            continue
        numbers = {
            "slots": len(states),
            "slots_busy": sum(state.request is not None for state in states),
            "target_passes_total": counts.n_passes,
            "target_rows_total": counts.n_rows,
            "kept_prefixes": memory.n_entries,
            "kept_prefix_bytes": memory.n_bytes,
            "kept_prefix_tokens_total": memory.n_tokens_restored,
        }
        for name, number in numbers.items():
            label = _label(model=llm.name.translate(_ESCAPED))
            found.setdefault(name, {})[label] = number
    return found


def _labels(**values: object) -> str:
    return ",".join([f'{name}="{value}"' for name, value in values.items()])


def _label(**values: object) -> str:
    return f"{{{_labels(**values)}}}"
