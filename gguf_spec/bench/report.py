"""Results of `bench`: runs, ratios and their summary."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from .. import __version__
from ..options import Speculation

PLAIN, ADAPTIVE, USELESS = "plain", "adaptive", "adaptive, useless draft"


class Spread(NamedTuple):
    """Median and range of repeated measurements.

    Attributes:
        median: The median.
        least: The smallest value.
        most: The largest value.
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise one or more values."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Contender:
    """A decoding setting that takes part in the benchmark.

    Attributes:
        name: Its name.
        speculation: Its draft options.
        fixed: Whether it is a setting that a user might select by hand; this includes plain
            decoding.
    """

    name: str
    speculation: Speculation
    fixed: bool


@dataclass(frozen=True)
class Run:
    """One run of all conversations of a workload.

    Attributes:
        round: Index of the round, from 0.
        n_tokens: Number of generated tokens.
        decode_s: Time after the prefill, in seconds.
        total_s: Total time in seconds.
        ttft_s: Mean time to the first token of an answer, in seconds.
        n_drafted: Number of draft tokens.
        n_accepted: Number of accepted draft tokens.
        forecast_s: Predicted time of the rounds, in seconds.
        plain_s: Predicted time of plain decoding, in seconds.
        n_texts: Number of conversations.
        n_same: Number of conversations with the same tokens as in plain decoding.
    """

    round: int
    n_tokens: int
    decode_s: float
    total_s: float
    ttft_s: float
    n_drafted: int
    n_accepted: int
    forecast_s: float
    plain_s: float
    n_texts: int
    n_same: int

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second, without the prefill time."""
        return self.n_tokens / self.decode_s

    @property
    def tokens_per_s_in_all(self) -> float:
        """Tokens per second, including the prefill time."""
        return self.n_tokens / self.total_s

    @property
    def predicted(self) -> float:
        """Predicted speed-up of the rounds over plain decoding."""
        return self.plain_s / self.forecast_s if self.forecast_s else 1.0


@dataclass(frozen=True)
class Result:
    """The runs of a contender on one case.

    Attributes:
        contender: The contender.
        runs: One run per round.
        speedup: Throughput relative to plain decoding, compared round by round.
        speedup_in_all: The same, including the prefill time.
    """

    contender: Contender
    runs: tuple[Run, ...]
    speedup: Spread
    speedup_in_all: Spread

    def of(self, name: str) -> Spread:
        """Return the spread of a field or rate over the runs."""
        return Spread.of(getattr(run, name) for run in self.runs)

    @property
    def acceptance(self) -> float:
        """Acceptance rate: accepted over drafted tokens; 0 if nothing was drafted."""
        n_drafted = sum(run.n_drafted for run in self.runs)
        return sum(run.n_accepted for run in self.runs) / max(1, n_drafted)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        names = ("tokens_per_s", "tokens_per_s_in_all", "ttft_s", "total_s", "predicted")
        spreads = {"speedup": self.speedup, "speedup_in_all": self.speedup_in_all}
        spreads |= {name: self.of(name) for name in names}
        return {
            **asdict(self.contender),
            **{name: spread._asdict() for name, spread in spreads.items()},
            "acceptance": self.acceptance,
            "runs": [asdict(run) for run in self.runs],
        }


@dataclass(frozen=True)
class Case:
    """A workload at one temperature.

    Attributes:
        workload: Name of the workload.
        temperature: Sampling temperature; 0 is greedy.
        results: One per contender, plain decoding first.
    """

    workload: str
    temperature: float
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """The workload, followed by the temperature unless it is greedy."""
        return f"{self.workload} {self.temperature:g}" if self.temperature else self.workload

    def result(self, name: str) -> Result | None:
        """Return the result of a contender, or None if it did not run."""
        return next((result for result in self.results if result.contender.name == name), None)

    @property
    def plain(self) -> Result:
        """Result of plain decoding."""
        return self.results[0]

    @property
    def adaptive(self) -> Result:
        """Result of the default setting."""
        return self.results[1]

    @property
    def best_fixed(self) -> Result:
        """Result of the fastest fixed setting, which may be plain decoding.

        It is known only afterwards. If several settings are equally fast, the choice among them is
        random and its measured speed is biased upwards.
        """
        return max(
            (result for result in self.results if result.contender.fixed),
            key=lambda result: result.speedup.median,
        )

    @property
    def of_best(self) -> Spread:
        """Throughput of the adaptive runs relative to the best fixed setting, round by round."""
        return ratios(self.adaptive.runs, self.best_fixed.runs, "tokens_per_s")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        return {
            "name": self.name,
            "workload": self.workload,
            "temperature": self.temperature,
            "best_fixed": self.best_fixed.contender.name,
            "of_best": self.of_best._asdict(),
            "results": [result.to_dict() for result in self.results],
        }


@dataclass(frozen=True)
class Machine:
    """The machine that ran the benchmark.

    Attributes:
        cpu: Name of the processor.
        cores: Number of usable physical cores.
        threads: Number of threads used.
    """

    cpu: str
    cores: int
    threads: int


@dataclass(frozen=True)
class Report:
    """Result of `bench`.

    Attributes:
        target: Name of the target.
        draft: File name of the draft, or None.
        machine: The machine that ran it.
        n_rounds: Requested number of runs of each contender.
        cases: One per workload and temperature.
        is_complete: False if the time limit ended the benchmark early.
        total_s: Duration in seconds.
        useless: File name of the useless draft, or None.
        version: Version of this package.
    """

    target: str
    draft: str | None
    machine: Machine
    n_rounds: int
    cases: tuple[Case, ...]
    is_complete: bool
    total_s: float
    useless: str | None = None
    version: str = __version__

    @property
    def speedup(self) -> float:
        """Speed-up of adaptive drafting over plain decoding: geometric mean over the cases."""
        return _mean(case.adaptive.speedup.median for case in self.cases)

    @property
    def of_best(self) -> float:
        """Throughput of adaptive drafting relative to the best fixed setting of each case.

        It is the geometric mean over the cases.
        """
        return _mean(case.of_best.median for case in self.cases)

    @property
    def n_texts(self) -> int:
        """Number of texts compared with those of plain decoding."""
        return sum(run.n_texts for run in self._compared())

    @property
    def n_same(self) -> int:
        """Number of texts identical to those of plain decoding."""
        return sum(run.n_same for run in self._compared())

    @property
    def texts_equal(self) -> bool:
        """Whether all texts are identical to those of plain decoding."""
        return self.n_same == self.n_texts

    @property
    def sentence(self) -> str:
        """The result in a few sentences."""
        names = {case.workload for case in self.cases}
        speedups = [case.adaptive.speedup.median for case in self.cases]
        in_all = [case.adaptive.speedup_in_all.median for case in self.cases]
        n_names = _WORDS[len(names)] if len(names) < len(_WORDS) else len(names)
        over = f"over {n_names} workloads"
        if len(names) == 1:
            over = f"on the workload {self.cases[0].workload}"
        worst = [f" (worst {min(ratios_):.2f})" for ratios_ in (speedups, in_all)]
        if len(self.cases) == 1:
            worst = ["", ""]
        parts = [
            f"Adaptive is {self.speedup:.2f} times plain {over}{worst[0]}, and {self.of_best:.2f} "
            "of the best fixed setting; reading the prompts included, "
            f"{_mean(in_all):.2f} times plain{worst[1]}."
        ]
        useless = [result.speedup.median for case in self.cases if (result := case.result(USELESS))]
        if useless:
            parts.append(
                f"With a useless draft it is {_mean(useless):.2f} times plain (worst "
                f"{min(useless):.2f})."
            )
        if not self.texts_equal:
            n_other = self.n_texts - self.n_same
            parts.append(
                f"{n_other} of {self.n_texts} texts are not those of plain decoding: gguf-spec "
                "verify tells near ties from faults."
            )
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        names = (
            "target", "draft", "useless", "version", "n_rounds", "is_complete", "total_s",
            "speedup", "of_best", "n_texts", "n_same", "texts_equal",
        )  # fmt: skip
        rest = {"machine": asdict(self.machine), "cases": [case.to_dict() for case in self.cases]}
        return {"sentence": self.sentence} | {name: getattr(self, name) for name in names} | rest

    def with_useless(self, other: Report) -> Report:
        """Return the report with the results of `bench(useless=True)` for another draft added."""
        more = {case.name: case.results[1:] for case in other.cases}
        cases = tuple(
            replace(case, results=case.results + more.get(case.name, ())) for case in self.cases
        )
        complete, total_s = self.is_complete and other.is_complete, self.total_s + other.total_s
        useless = other.draft or "none"
        return replace(self, cases=cases, useless=useless, is_complete=complete, total_s=total_s)

    def _compared(self) -> Iterator[Run]:
        return (run for case in self.cases for result in case.results[1:] for run in result.runs)


def ratios(runs: Sequence[Run], others: Sequence[Run], what: str) -> Spread:
    """Return the ratio of a metric between two sets of runs, over their common rounds.

    Args:
        runs: Runs of the numerators.
        others: Runs of the denominators.
        what: Name of a field or property of `Run`.
    """
    by_round = {run.round: getattr(run, what) for run in others}
    return Spread.of(
        getattr(run, what) / by_round[run.round] for run in runs if run.round in by_round
    )


def _mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
