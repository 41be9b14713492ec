"""How fast is it here? Times plain decoding, adaptive drafting and fixed draft lengths in turn; returns data, prints nothing.

All contenders do the same work with the same seeds, one after the other and round after round, so that a machine that slows down slows down all of
them; each is compared with the plain runs of its own round. Each run begins with what was known when the models were loaded: no contender profits
from what another one learned.
"""

from __future__ import annotations

import copy
import math
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidOptionError
from ..llama.options import physical_cores
from ..options import Sampling, Speculation
from ..results import Completion
from ..runtime.llm import LLM
from .long_workloads import LONG_WORKLOADS, Conversation, LongWorkload
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
from .workloads import WORKLOADS, Workload, workloads

__all__ = [
    "ADAPTIVE", "LONG_WORKLOADS", "PLAIN", "USELESS", "WORKLOADS", "Case", "Contender", "LongWorkload", "Machine", "Report", "Result", "Run",
    "Spread", "Workload", "bench",
]  # fmt: skip

_LENGTHS, _QUICK_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16), (2, 4, 8)
_QUICK_TOKENS = 32
_HOPELESS = 0.8  # of the best fixed setting in the first round: slower ones run no more
_WARM_UP = 8  # tokens

Progress = Callable[[int, int], object]


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
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Time all contenders on all workloads.

    Args:
        llm: Models to time; without a draft, what drafts from the text alone.
        names: Of `WORKLOADS` and `LONG_WORKLOADS`; `WORKLOADS` where they are not given.
        n_rounds: How often each contender runs; 3, or 1 where `quick`. After the first, fixed settings that are far from the best are left out.
        n_tokens: Tokens of an answer, if not each workload's own.
        quick: Few fixed settings, short answers, and each workload at its first temperature alone.
        long: Run all of `LONG_WORKLOADS` beside `names`. With any of these, only the fixed settings of `quick` are tried.
        useless: Time only plain decoding and adaptive drafting, for `Report.with_useless`.
        seed: Of the first conversation; each further one takes the next.
        limit_s: Begin no further run after so many seconds; the first case has its plain and adaptive run in any case.
        progress: Called with runs done and all runs.

    Raises:
        InvalidOptionError: There is no such workload, one does not fit into the context, or the target cannot go back a token.
    """
    started = time.perf_counter()
    n_rounds = (1 if quick else 3) if n_rounds is None else n_rounds
    for option, value in (("runs", n_rounds), ("max_tokens", 1 if n_tokens is None else n_tokens)):
        if value < 1:
            raise InvalidOptionError(option, value, "1 or more")
    Sampling(seed=seed)  # or say what is wrong with it
    with llm.models() as (target, _):
        can_roll_back, threads = target.can_roll_back, target.options.threads or physical_cores()
    if not can_roll_back:
        raise InvalidOptionError(
            "model",
            llm.name,
            "one that can go back a token, as speculation needs",
            "there is nothing to compare for this one.",
        )
    chosen = workloads(names, long)
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
    """A case to be run: `conversations`, each with its own `samplings`."""

    workload: str
    conversations: tuple[Conversation, ...]
    samplings: tuple[Sampling, ...]
    runs: dict[str, list[Run]] = field(default_factory=dict)
    said: dict[int, list[tuple[int, ...]]] = field(
        default_factory=dict
    )  # by plain decoding, in each round

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
    """Contenders on work, round by round."""

    llm: LLM
    contenders: Sequence[Contender]
    work: Sequence[_Work]
    n_rounds: int
    until: float
    forget: Callable[[], object]
    progress: Progress
    is_complete: bool = True

    def run(self) -> None:
        """Run all, or as many as there is time for."""
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
                    self.progress(done, self._total(round_))

    def cases(self) -> Iterator[Case]:
        """Yield what came out, of work that was begun."""
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
        """Return who runs in a round: after the first, all but the fixed settings that cannot be the best."""
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
        """Return how many runs there will be, as far as is known in a round."""
        later = sum(len(self._still_in(work, 1 if round_ else 0)) for work in self.work)
        return len(self.work) * len(self.contenders) + (self.n_rounds - 1) * later


def _run(llm: LLM, work: _Work, speculation: Speculation, round_: int) -> Run:
    """Do all of a case's conversations, turn after turn."""
    said: list[tuple[int, ...]] = []
    answers: list[Completion] = []
    for conversation, sampling in zip(work.conversations, work.samplings, strict=True):
        now = list(_converse(llm, conversation, sampling, speculation))
        said.append(tuple(token for answer in now for token in answer.tokens))
        answers += now
    plain = work.said.setdefault(round_, said)  # plain decoding is the first of each round
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
        len(said),
        sum(a == b for a, b in zip(said, plain, strict=True)),
    )


def _converse(
    llm: LLM, conversation: Conversation, sampling: Sampling, speculation: Speculation
) -> Iterator[Completion]:
    """Yield the answer to each turn. The first prompt is read from its start: one that was read before would cost nothing."""
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
    """Return who runs, plain decoding first and adaptive drafting next to it, so that little time lies between the two."""
    plain = Contender(PLAIN, Speculation(k=0), True)
    if useless:
        return [plain, Contender(USELESS, Speculation(), False)]
    drafters: list[Any] = ["model", "ngram", "hybrid"] if llm.draft_name else ["ngram"]
    adaptive = (
        [
            Contender(f"{ADAPTIVE} {drafter}", Speculation(drafter=drafter), False)
            for drafter in drafters
        ]
        if llm.draft_name
        else []
    )
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
    """Warm up; lend a function that makes the models forget what they have learned since then; leave them as they were."""
    pair, few = llm._pair, Sampling(temperature=0.0, max_tokens=_WARM_UP, ignore_eos=True)
    start = llm.tokenize("Once upon a time")
    llm.generate_tokens(
        start, replace(few, max_tokens=1), speculation=Speculation()
    )  # now the models are measured, if they were not
    known = copy.deepcopy((pair.experiences, pair.calibration))

    def forget() -> None:
        pair.experiences, pair.calibration = copy.deepcopy(known)

    try:
        llm.generate_tokens(start, few, speculation=Speculation(k=0))
        llm.generate_tokens(start, few, speculation=Speculation(k=4, adaptive=False))
        yield forget
    finally:
        forget()


def _cpu() -> str:
    """Return the processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [
        line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))
    ]
    return " ".join((names or [platform.processor() or platform.machine()])[0].split())
