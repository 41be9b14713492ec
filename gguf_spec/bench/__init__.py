"""Benchmark of plain decoding, adaptive drafting and fixed draft lengths; prints nothing.

All contenders do the same work with the same seeds. They run one after the other, round by round,
so that a slower machine affects all of them. Each run is compared with the plain run of its own
round. Each run starts with the statistics known after loading, so no contender benefits from the
runs of another.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from .. import __version__
from ..drafters import DRAFTERS
from ..errors import InvalidOptionError, NoSpeculationError
from ..llama.options import physical_cores
from ..options import Sampling, Speculation
from ..results import Completion, OnProgress, Progress
from ..runtime.llm import LLM
from .workloads import (
    LONG_WORKLOADS,
    WORKLOADS,
    Conversation,
    LongWorkload,
    Workload,
    choose_workloads,
)

__all__ = [
    "ADAPTIVE",
    "LONG_WORKLOADS",
    "PLAIN",
    "USELESS",
    "WORKLOADS",
    "Case",
    "Contender",
    "LongWorkload",
    "Machine",
    "Report",
    "Result",
    "Run",
    "Spread",
    "Workload",
    "bench",
    "choose_workloads",
]

PLAIN, ADAPTIVE, USELESS = "plain", "adaptive", "adaptive, useless draft"
_LENGTHS, _QUICK_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16), (2, 4, 8)  # fixed draft lengths, in tokens
_QUICK_TOKENS = 32  # maximum number of tokens of an answer in a quick run
# Throughput relative to the best fixed setting of the first round. Slower fixed settings run only
# once.
_HOPELESS = 0.8
_WARM_UP = 8  # tokens generated to warm up


class Spread(NamedTuple):
    """Median and range of repeated measurements."""

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
        ttft_s: Mean time to the first token of an answer, in seconds.
        n_drafted: Number of draft tokens; the target accepted `n_accepted` of them.
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
        draft: File name of the draft, or None.
        n_rounds: Requested number of runs of each contender.
        cases: One per workload and temperature.
        is_complete: False if the time limit ended the benchmark early.
        total_s: Duration in seconds.
        useless: File name of the useless draft, or None.
        version: Version of this package.
        disturbed: Sentence on other programs that disturbed the measured costs; empty if none did.
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
    disturbed: str = ""

    @property
    def speedup(self) -> float:
        """Speed-up of adaptive drafting over plain decoding: geometric mean over the cases."""
        return geometric_mean(case.adaptive.speedup.median for case in self.cases)

    @property
    def of_best(self) -> float:
        """Throughput of adaptive drafting relative to the best fixed setting of each case.

        It is the geometric mean over the cases.
        """
        return geometric_mean(case.of_best.median for case in self.cases)

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
            f"{geometric_mean(in_all):.2f} times plain{worst[1]}."
        ]
        useless = [result.speedup.median for case in self.cases if (result := case.result(USELESS))]
        if useless:
            parts.append(
                f"With a useless draft it is {geometric_mean(useless):.2f} times plain (worst "
                f"{min(useless):.2f})."
            )
        if not self.texts_equal:
            n_other = self.n_texts - self.n_same
            parts.append(
                f"{n_other} of {self.n_texts} texts are not those of plain decoding: gguf-spec "
                "verify tells near ties from faults."
            )
        return " ".join([*parts, *filter(None, [self.disturbed])])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        names = (
            "target", "draft", "useless", "version", "n_rounds", "is_complete", "total_s",
            "speedup", "of_best", "n_texts", "n_same", "texts_equal", "disturbed",
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
    """Return the ratio of a field or property of two sets of runs, in their common rounds."""
    by_round = {run.round: getattr(run, what) for run in others}
    return Spread.of(
        getattr(run, what) / by_round[run.round] for run in runs if run.round in by_round
    )


_WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def bench(
    llm: LLM,
    names: Sequence[str] | None = None,
    *,
    n_rounds: int | None = None,
    n_tokens: int | None = None,
    quick: bool = False,
    long: bool = False,
    useless: bool = False,
    seed: int = 1,
    limit_s: float | None = None,
    progress: OnProgress = lambda _: None,
) -> Report:
    """Measure the throughput of all contenders on all workloads.

    Args:
        llm: Models to measure; without a draft model, drafts come from earlier text only.
        names: Names from `WORKLOADS` and `LONG_WORKLOADS`; None selects `WORKLOADS`.
        n_rounds: Number of runs of each contender; None selects 3, or 1 if `quick`. After the first
            round, fixed settings that are far slower than the best are left out.
        n_tokens: Number of tokens of an answer; None selects each workload's own.
        quick: Use few fixed settings, short answers, and only the first temperature of each
            workload.
        long: Run all of `LONG_WORKLOADS` in addition to `names`. If any of these is selected, only
            the fixed settings of `quick` run.
        useless: Run only plain decoding and adaptive drafting, for `Report.with_useless`.
        seed: Seed of the first conversation of each case; each further one uses the next seed.
        limit_s: Time limit in seconds, after which no further run starts. The plain and the
            adaptive run of the first case always run.
        progress: Called with the finished runs.

    Raises:
        InvalidOptionError: A workload does not exist, or a number is out of range.
        ContextTooShortError: A workload does not fit into the context.
        NoSpeculationError: The target is decoded plainly.
    """
    started = time.perf_counter()
    n_rounds = (1 if quick else 3) if n_rounds is None else n_rounds
    for option, value in {"n_rounds": n_rounds, "n_tokens": n_tokens}.items():
        if value is not None and value < 1:
            raise InvalidOptionError(option, value, "1 or more")
    Sampling(seed=seed)  # raises if the seed is invalid
    with llm.models() as (target, _):
        why_plain, threads = target.why_plain, target.options.threads or physical_cores()
    if why_plain:
        raise NoSpeculationError("model", llm.name, f"{why_plain}.", "use another model.")
    chosen, work = choose_workloads(names, long), []
    llm.measure()
    for workload in chosen:
        n = n_tokens or (min(workload.n_tokens, _QUICK_TOKENS) if quick else workload.n_tokens)
        for temperature in workload.temperatures[: 1 if quick else None]:
            conversations = workload.conversations(llm, n)
            sampling = Sampling(temperature=temperature, max_tokens=n, ignore_eos=True)
            seeds = [(seed + i) % 2**64 for i in range(len(conversations))]
            samplings = [replace(sampling, seed=one) for one in seeds]
            work.append(_Work(workload.name, conversations, samplings))
    few = quick or any(isinstance(workload, LongWorkload) for workload in chosen)
    until = math.inf if limit_s is None else started + limit_s
    with _as_loaded(llm) as forget:
        race = _Race(
            llm, _contenders(llm, few, useless), work, n_rounds,
            until=until, forget=forget, progress=progress,
        )  # fmt: skip
        race.run()
    machine = Machine(_cpu(), physical_cores(), threads)
    total_s = time.perf_counter() - started
    cases, disturbed = tuple(race.cases()), llm.profile.disturbed
    return Report(
        llm.name, llm.draft_name, machine, n_rounds, cases, is_complete=race.is_complete,
        total_s=total_s, disturbed=disturbed,
    )  # fmt: skip


@dataclass(frozen=True)
class _Work:
    """One case to be run, with its finished runs by contender.

    Attributes:
        samplings: Sampling options of each conversation.
        texts: Tokens of each conversation by plain decoding, by round.
    """

    workload: str
    conversations: Sequence[Conversation]
    samplings: Sequence[Sampling]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    texts: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)


@dataclass
class _Race:
    """Runs all contenders on all cases, round by round."""

    llm: LLM
    contenders: Sequence[Contender]
    work: Sequence[_Work]
    n_rounds: int
    until: float
    forget: Callable[[], object]
    progress: OnProgress
    is_complete: bool = True

    def run(self) -> None:
        done = 0
        for round_ in range(self.n_rounds):
            for work in self.work:
                for contender in self._still_in(work, round_):
                    if (round_ or len(self.work[0].runs) > 1) and time.perf_counter() > self.until:
                        self.is_complete = False
                        return
                    self.forget()
                    work.runs.setdefault(contender.name, []).append(
                        _run(self.llm, work, contender.speculation, round_)
                    )
                    done += 1
                    # The total that is known in this round.
                    later = sum(len(self._still_in(one, 1 if round_ else 0)) for one in self.work)
                    total = len(self.work) * len(self.contenders) + (self.n_rounds - 1) * later
                    self.progress(Progress("bench", done, total, "runs"))

    def cases(self) -> Iterator[Case]:
        for work in self.work:
            if ADAPTIVE in work.runs or USELESS in work.runs:
                results = []
                for one in self.contenders:
                    if runs := work.runs.get(one.name):
                        rates = ("tokens_per_s", "tokens_per_s_in_all")
                        spreads = [ratios(runs, work.runs[PLAIN], rate) for rate in rates]
                        results.append(Result(one, tuple(runs), *spreads))
                yield Case(work.workload, work.samplings[0].temperature, tuple(results))

    def _still_in(self, work: _Work, round_: int) -> list[Contender]:
        """Return the contenders of a round; after the first one without hopeless settings."""
        speeds = {name: runs[0].tokens_per_s for name, runs in work.runs.items()} if round_ else {}
        enough = _HOPELESS * max(
            (speeds[one.name] for one in self.contenders if one.fixed and one.name in speeds),
            default=0.0,
        )
        return [
            one
            for one in self.contenders
            if not one.fixed or one.name == PLAIN or speeds.get(one.name, enough) >= enough
        ]


def _run(llm: LLM, work: _Work, speculation: Speculation, round_: int) -> Run:
    texts: list[tuple[int, ...]] = []
    answers: list[Completion] = []
    for conversation, sampling in zip(work.conversations, work.samplings, strict=True):
        now = list(converse(llm, conversation, sampling, speculation))
        texts.append(tuple(token for answer in now for token in answer.tokens))
        answers += now
    plain = work.texts.setdefault(round_, texts)  # plain decoding runs first in each round
    stats = [answer.stats for answer in answers]

    def total(name: str) -> Any:
        return sum(getattr(one, name) for one in stats)

    return Run(
        round=round_,
        n_tokens=total("n_generated"),
        decode_s=total("total_s") - total("prompt_s"),
        total_s=total("total_s"),
        ttft_s=statistics.mean(one.ttft_s for one in stats),
        n_drafted=total("n_drafted"),
        n_accepted=total("n_accepted"),
        forecast_s=total("forecast_s"),
        plain_s=total("plain_s"),
        n_texts=len(texts),
        n_same=sum(a == b for a, b in zip(texts, plain, strict=True)),
    )


def converse(
    llm: LLM, conversation: Conversation, sampling: Sampling, speculation: Speculation
) -> Iterator[Completion]:
    """Yield the answer to each turn; a prompt in the cache would have no prefill cost."""
    llm.forget()
    text, messages = "", list(conversation.history)
    for turn in conversation.turns:
        text += turn
        messages.append({"role": "user", "content": turn})
        prompt = text if llm.prompt == "text" else messages
        answer = llm.generate(
            prompt, sampling, speculation=speculation, prefill=conversation.prefill
        )
        text += conversation.prefill + answer.text
        messages.append({"role": "assistant", "content": conversation.prefill + answer.text})
        yield answer


def _contenders(llm: LLM, few: bool, useless: bool) -> list[Contender]:
    """Return the contenders: plain decoding first, adaptive drafting second.

    They are adjacent, so that little time passes between their runs.
    """
    plain = Contender(PLAIN, Speculation(k=0), True)
    if useless:
        return [plain, Contender(USELESS, Speculation(), False)]
    drafters = [
        name
        for name, kind in DRAFTERS.items()
        if kind.lengths and (llm.draft_name or not kind.needs)
    ]
    adaptive = [
        Contender(f"{ADAPTIVE} {drafter}", Speculation(drafter=drafter), False)
        for drafter in (drafters if llm.draft_name else ())
    ]
    swept = drafters[:2] if few else drafters
    lengths = _QUICK_LENGTHS if few else _LENGTHS
    fixed = [
        Contender(f"{drafter} {k}", Speculation(k, drafter=drafter, adaptive=False), True)
        for drafter in swept
        for k in lengths
    ]
    return [plain, Contender(ADAPTIVE, Speculation(), False), *adaptive, *fixed]


@contextmanager
def _as_loaded(llm: LLM) -> Iterator[Callable[[], None]]:
    """Warm up, and yield a function that resets the learned statistics; reset them on exit."""
    few = Sampling(temperature=0.0, max_tokens=_WARM_UP, ignore_eos=True)
    start = llm.tokenize("Once upon a time")
    # This measures the pass costs if they are not known yet.
    llm.generate_tokens(start, replace(few, max_tokens=1), speculation=Speculation())
    known = llm.snapshot()

    def forget() -> None:
        llm.restore(known)

    try:
        llm.generate_tokens(start, few, speculation=Speculation(k=0))
        llm.generate_tokens(start, few, speculation=Speculation(k=4, adaptive=False))
        yield forget
    finally:
        forget()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))
    ]
    return " ".join((names or [platform.processor() or platform.machine()])[0].split())
