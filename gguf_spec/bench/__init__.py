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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError, NoSpeculationError
from ..llama.options import physical_cores
from ..options import Sampling, Speculation
from ..results import Completion, OnProgress, Progress
from ..runtime.llm import LLM
from .report import (
    ADAPTIVE,
    PLAIN,
    USELESS,
    Case,
    Contender,
    Machine,
    Report,
    Result,
    Run,
    Spread,
    ratios,
)
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

_LENGTHS, _QUICK_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16), (2, 4, 8)  # fixed draft lengths, in tokens
_QUICK_TOKENS = 32  # maximum number of tokens of an answer in a quick run
# Throughput relative to the best fixed setting of the first round. Slower fixed settings run only
# once.
_HOPELESS = 0.8
_WARM_UP = 8  # tokens generated to warm up


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
    chosen = choose_workloads(names, long)
    work = [
        _Work.of(llm, workload, t, n_tokens, quick, seed)
        for workload in chosen
        for t in workload.temperatures[: 1 if quick else None]
    ]
    few = quick or any(isinstance(workload, LongWorkload) for workload in chosen)
    until = math.inf if limit_s is None else started + limit_s
    with _as_loaded(llm) as forget:
        race = _Race(llm, _contenders(llm, few, useless), work, n_rounds, until, forget, progress)
        race.run()
    machine = Machine(_cpu(), physical_cores(), threads)
    total_s = time.perf_counter() - started
    return Report(
        llm.name, llm.draft_name, machine, n_rounds, tuple(race.cases()), race.is_complete, total_s
    )


@dataclass(frozen=True)
class _Work:
    """One case to be run.

    Attributes:
        workload: Name of the workload.
        conversations: The conversations.
        samplings: Sampling options of each conversation.
        runs: Finished runs by contender name.
        texts: Tokens of each conversation by plain decoding, by round.
    """

    workload: str
    conversations: tuple[Conversation, ...]
    samplings: tuple[Sampling, ...]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    texts: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        llm: LLM,
        workload: Workload | LongWorkload,
        temperature: float,
        n_tokens: int | None,
        quick: bool,
        seed: int,
    ) -> _Work:
        n_tokens = n_tokens or (
            min(workload.n_tokens, _QUICK_TOKENS) if quick else workload.n_tokens
        )
        conversations = workload.conversations(llm, n_tokens)
        sampling = Sampling(temperature=temperature, max_tokens=n_tokens, ignore_eos=True)
        return cls(
            workload.name,
            tuple(conversations),
            tuple(replace(sampling, seed=(seed + i) % 2**64) for i in range(len(conversations))),
        )


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
        """Run all contenders, or as many as the time limit allows."""
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
                    self.progress(Progress("bench", done, self._total(round_), "runs"))

    def cases(self) -> Iterator[Case]:
        """Yield the results of all started cases."""
        for work in self.work:
            if ADAPTIVE in work.runs or USELESS in work.runs:
                yield Case(work.workload, work.samplings[0].temperature, tuple(self._results(work)))

    def _results(self, work: _Work) -> Iterator[Result]:
        plain = work.runs[PLAIN]
        for one in self.contenders:
            if one.name in work.runs:
                runs = work.runs[one.name]
                yield Result(
                    one,
                    tuple(runs),
                    ratios(runs, plain, "tokens_per_s"),
                    ratios(runs, plain, "tokens_per_s_in_all"),
                )

    def _still_in(self, work: _Work, round_: int) -> list[Contender]:
        """Return the contenders of a round.

        After the first round, fixed settings that cannot be the best are left out.
        """
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

    def _total(self, round_: int) -> int:
        """Return the total number of runs, as far as it is known in a round."""
        later = sum(len(self._still_in(work, 1 if round_ else 0)) for work in self.work)
        return len(self.work) * len(self.contenders) + (self.n_rounds - 1) * later


def _run(llm: LLM, work: _Work, speculation: Speculation, round_: int) -> Run:
    """Run all conversations of a case, turn by turn."""
    texts: list[tuple[int, ...]] = []
    answers: list[Completion] = []
    for conversation, sampling in zip(work.conversations, work.samplings, strict=True):
        now = list(_converse(llm, conversation, sampling, speculation))
        texts.append(tuple(token for answer in now for token in answer.tokens))
        answers += now
    plain = work.texts.setdefault(round_, texts)  # plain decoding runs first in each round
    stats = [answer.stats for answer in answers]
    return Run(
        round_,
        sum(one.n_generated for one in stats),
        sum(one.total_s - one.prompt_s for one in stats),
        sum(one.total_s for one in stats),
        statistics.mean(one.ttft_s for one in stats),
        sum(one.n_drafted for one in stats),
        sum(one.n_accepted for one in stats),
        sum(one.forecast_s for one in stats),
        sum(one.plain_s for one in stats),
        len(texts),
        sum(a == b for a, b in zip(texts, plain, strict=True)),
    )


def _converse(
    llm: LLM, conversation: Conversation, sampling: Sampling, speculation: Speculation
) -> Iterator[Completion]:
    """Yield the answer to each turn.

    The caches are cleared first, because a cached prompt would have no prefill cost.
    """
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
    drafters: list[Any] = ["model", "ngram", "hybrid"] if llm.draft_name else ["ngram"]
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
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))
    ]
    return " ".join((names or [platform.processor() or platform.machine()])[0].split())
