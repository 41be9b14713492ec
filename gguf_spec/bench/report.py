"""What `bench` found: runs, ratios, and the arithmetic over them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from .. import __version__
from ..options import Speculation
from .plot import Bar, Group, grouped_bars

PLAIN, ADAPTIVE, USELESS = "plain", "adaptive", "adaptive, useless draft"


class Spread(NamedTuple):
    """A value that was taken several times.

    Attributes:
        median: The middle.
        least: The smallest.
        most: The largest.
    """

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Sum up one value or more."""
        values = list(values)
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Contender:
    """A way to decode.

    Attributes:
        name: Its name.
        speculation: Its settings.
        fixed: One of those that a user might choose by hand, plain decoding among them.
    """

    name: str
    speculation: Speculation
    fixed: bool


@dataclass(frozen=True)
class Run:
    """All conversations of a workload, once.

    Attributes:
        round: In which turn, from 0.
        n_tokens: Tokens that were said.
        decode_s: Time for them once prompts were read.
        total_s: All time.
        ttft_s: Time to the first token of an answer, on average.
        n_drafted: Tokens drafted.
        n_accepted: Tokens of those that were accepted.
        forecast_s: What the rounds should have taken.
        plain_s: What plain decoding should have taken.
        n_texts: Conversations.
        n_same: How many of them are what plain decoding says.
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
        """Tokens a second after the prompts were read."""
        return self.n_tokens / self.decode_s

    @property
    def tokens_per_s_in_all(self) -> float:
        """Tokens a second, the time for the prompts included."""
        return self.n_tokens / self.total_s

    @property
    def predicted(self) -> float:
        """How many times as fast as plain decoding the rounds should have been."""
        return self.plain_s / self.forecast_s if self.forecast_s else 1.0


@dataclass(frozen=True)
class Result:
    """The runs of a contender.

    Attributes:
        contender: Who.
        runs: One a round.
        speedup: Tokens a second over those of plain decoding, round by round.
        speedup_in_all: The same with the time for the prompts included.
    """

    contender: Contender
    runs: tuple[Run, ...]
    speedup: Spread
    speedup_in_all: Spread

    def of(self, name: str) -> Spread:
        """Return a field or rate of the runs."""
        return Spread.of(getattr(run, name) for run in self.runs)

    @property
    def acceptance(self) -> float:
        """Accepted over drafted tokens; 0 where nothing was drafted."""
        return sum(run.n_accepted for run in self.runs) / max(
            1, sum(run.n_drafted for run in self.runs)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        rates = {
            name: self.of(name)._asdict()
            for name in ("tokens_per_s", "tokens_per_s_in_all", "ttft_s", "total_s", "predicted")
        }
        speedups = {
            "speedup": self.speedup._asdict(),
            "speedup_in_all": self.speedup_in_all._asdict(),
        }
        return (
            asdict(self.contender)
            | speedups
            | rates
            | {"acceptance": self.acceptance, "runs": [asdict(run) for run in self.runs]}
        )


@dataclass(frozen=True)
class Case:
    """A workload at a temperature.

    Attributes:
        workload: Its name.
        temperature: 0 is greedy.
        results: One for each contender, plain decoding first.
    """

    workload: str
    temperature: float
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """The workload, and the temperature where it is not greedy."""
        return f"{self.workload} {self.temperature:g}" if self.temperature else self.workload

    def result(self, name: str) -> Result | None:
        """Return the result of a contender, or None where it did not run."""
        return next((result for result in self.results if result.contender.name == name), None)

    @property
    def plain(self) -> Result:
        """Plain decoding."""
        return self.results[0]

    @property
    def adaptive(self) -> Result:
        """What runs where nothing is chosen."""
        return self.results[1]

    @property
    def best_fixed(self) -> Result:
        """The fixed setting, plain decoding among them, that was fastest: known in hindsight only, and lucky where several are as fast."""
        return max(
            (result for result in self.results if result.contender.fixed),
            key=lambda result: result.speedup.median,
        )

    @property
    def of_best(self) -> Spread:
        """Speed of the adaptive runs over that of the best fixed setting, round by round."""
        return ratios(self.adaptive.runs, self.best_fixed.runs, "tokens_per_s")

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        best = {"best_fixed": self.best_fixed.contender.name, "of_best": self.of_best._asdict()}
        results = [result.to_dict() for result in self.results]
        return (
            {"name": self.name, "workload": self.workload, "temperature": self.temperature}
            | best
            | {"results": results}
        )


@dataclass(frozen=True)
class Machine:
    """Where it ran.

    Attributes:
        cpu: Name of the processor.
        cores: Physical cores that may be used.
        threads: Threads that were.
    """

    cpu: str
    cores: int
    threads: int


@dataclass(frozen=True)
class Report:
    """What `bench` found.

    Attributes:
        target: Name of the target.
        draft: File name of the draft, or None.
        machine: Where it ran.
        n_rounds: How often each contender was to run.
        cases: One for each workload and temperature.
        is_complete: False where the time was up before all was done.
        total_s: Seconds it took.
        useless: File name of the useless draft, or None.
        version: Of this package.
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
        """How many times as fast as plain decoding adaptive drafting is: the geometric mean over the cases."""
        return _mean(case.adaptive.speedup.median for case in self.cases)

    @property
    def of_best(self) -> float:
        """Speed of adaptive drafting over that of each case's best fixed setting: the geometric mean."""
        return _mean(case.of_best.median for case in self.cases)

    @property
    def n_texts(self) -> int:
        """Texts that were compared with those of plain decoding."""
        return sum(run.n_texts for run in self._compared())

    @property
    def n_same(self) -> int:
        """How many of them are the same."""
        return sum(run.n_same for run in self._compared())

    @property
    def texts_equal(self) -> bool:
        """Whether all are."""
        return self.n_same == self.n_texts

    @property
    def sentence(self) -> str:
        """The result in plain words."""
        worst, names = (
            min(case.adaptive.speedup.median for case in self.cases),
            {case.workload for case in self.cases},
        )
        in_all = [case.adaptive.speedup_in_all.median for case in self.cases]
        over = (
            f"over {_WORDS[len(names)] if len(names) < len(_WORDS) else len(names)} workloads"
            if len(names) > 1
            else f"on the workload {self.cases[0].workload}"
        )
        over += f" (worst {worst:.2f})" if len(self.cases) > 1 else ""
        parts = [
            f"Adaptive is {self.speedup:.2f} times plain {over}, and {self.of_best:.2f} of the best fixed setting"
        ]
        parts[0] += f"; reading the prompts included, {_mean(in_all):.2f} times plain" + (
            f" (worst {min(in_all):.2f})." if len(in_all) > 1 else "."
        )
        useless = [result.speedup.median for case in self.cases if (result := case.result(USELESS))]
        if useless:
            parts.append(
                f"With a useless draft it is {_mean(useless):.2f} times plain (worst {min(useless):.2f})."
            )
        if not self.texts_equal:
            n_other = self.n_texts - self.n_same
            parts.append(
                f"{n_other} of {self.n_texts} texts are not those of plain decoding: gguf-spec verify tells near ties from faults."
            )
        return " ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values."""
        names = (
            "target",
            "draft",
            "useless",
            "version",
            "n_rounds",
            "is_complete",
            "total_s",
            "speedup",
            "of_best",
            "n_texts",
            "n_same",
            "texts_equal",
        )
        rest = {"machine": asdict(self.machine), "cases": [case.to_dict() for case in self.cases]}
        return {"sentence": self.sentence} | {name: getattr(self, name) for name in names} | rest

    def with_useless(self, other: Report) -> Report:
        """Return the report with the results that `bench(useless=True)` had for another draft."""
        more = {case.name: case.results[1:] for case in other.cases}
        cases = tuple(
            replace(case, results=case.results + more.get(case.name, ())) for case in self.cases
        )
        complete = self.is_complete and other.is_complete
        return replace(
            self,
            cases=cases,
            useless=other.draft or "none",
            is_complete=complete,
            total_s=self.total_s + other.total_s,
        )

    def to_svg(self) -> str:
        """Draw plain decoding, the best fixed setting and adaptive drafting, case by case."""
        m = self.machine
        title = f"{self.target}" + (
            f" with {self.draft}" if self.draft else ", drafting from the text alone"
        )
        where = f"{m.cpu}, {_count(m.cores, 'core')}, {_count(m.threads, 'thread')}"
        how = f"gguf-spec {self.version}; tokens per second over those of plain decoding, {_rounds(self.n_rounds, self.is_complete)}"
        legend = [PLAIN, "best fixed setting, in hindsight", ADAPTIVE]
        groups = []
        for case in self.cases:
            shown = [case.plain, case.best_fixed, case.adaptive]
            if self.useless:
                shown += filter(None, [case.result(USELESS)])
            greedy = f"T = {case.temperature:g}" if case.temperature else "greedy"
            groups.append(
                Group(
                    case.workload,
                    greedy,
                    f"best: {case.best_fixed.contender.name}",
                    tuple(Bar(*one.speedup) for one in shown),
                )
            )
        return grouped_bars(
            title, [where, how], legend + ([USELESS] if self.useless else []), groups
        )

    def _compared(self) -> Iterator[Run]:
        return (run for case in self.cases for result in case.results[1:] for run in result.runs)


def ratios(runs: Sequence[Run], others: Sequence[Run], what: str) -> Spread:
    """Return how `what` of some runs compares with that of others, in the rounds that both have."""
    by_round = {run.round: getattr(run, what) for run in others}
    return Spread.of(
        getattr(run, what) / by_round[run.round] for run in runs if run.round in by_round
    )


def _mean(values: Iterable[float]) -> float:
    return statistics.geometric_mean(values)


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("s" if n > 1 else "")


def _rounds(n: int, all_done: bool) -> str:
    return f"medians of {'' if all_done else 'up to '}{n} rounds" if n > 1 else "one round"


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
