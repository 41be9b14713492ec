"""Verification that speculation preserves a model's output, on the user's own machine.

Runs the user's models, returns data and prints nothing. There are four groups of checks, each of
which a faulty sampler, acceptance rule, pass or cache fails:

1. Rows: passes over several tokens must give the rows of single-token passes: bit-identical where
   that is guaranteed, otherwise equal up to rounding. Rows of gguf-spec's kernels must be those of
   llama.cpp's up to rounding.
2. Texts: each prompt is continued plainly and with each drafter, with the same seed. All texts must
   be equal, also with warm caches, after a restored session, with a grammar, with a stop string and
   after a long prompt.
3. Caches: after each text, both caches must hold exactly the tokens of the text. A row computed
   from the cache must match one computed after a new prefill.
4. Distributions: under each rule, the first tokens of many generations must have the frequencies
   that llama.cpp's own samplers give (chi-square test).

For models that run several requests at once there is another check: all texts are generated
together, and must be those of each request alone (`under_load`).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from ..bench.workloads import long_text
from ..errors import ContextTooShortError, EmptyPromptError, GgufSpecError, InvalidOptionError
from ..options import Sampling, Speculation
from ..results import Completion, OnProgress, Progress, Work
from ..runtime.llm import LLM
from ..runtime.many import Cancellation, completion, run_all
from .checks import (
    N_FIRST_TOKENS,
    SAMPLINGS,
    Check,
    ChiSquareTest,
    Comparison,
    Difference,
    Reference,
    RequestChecks,
    TextCheck,
    TextChecks,
    check_kernels,
    check_rows,
    drawn,
    n_draws_of,
    noise_in_use,
    rules_of,
    ways_of,
)

__all__ = [
    "PARALLEL",
    "PROMPTS",
    "Check",
    "ChiSquareTest",
    "Comparison",
    "Difference",
    "Report",
    "bundled_prompts",
    "verify",
]

PROMPTS = 10  # default number of bundled prompts
# Tokens of text before each prompt of a long run, their minimum, and tokens left free.
_LONG, _LEAST_LONG, _SPARE = (1500, 300, 16)
# A quick run: tokens of a text, draws of a chi-square test, such tests, and its limit in seconds.
_QUICK_TOKENS, _QUICK_DRAWS, _QUICK_LAWS, _QUICK_S = 24, 50, 2, 60.0
PARALLEL = 8  # default number of requests at once
_LOAD_WAYS = {
    "none": Speculation(0),
    "text": Speculation(drafter="ngram"),
    "model, k = 3": Speculation(3, drafter="model", adaptive=False),
    "auto": Speculation(),
}


@dataclass(frozen=True)
class Report:
    """Result of `verify`.

    Attributes:
        draft: File name of the draft, or None.
        n_prompts: Number of continued prompts.
        n_tokens: Maximum number of tokens of a text.
        noise: Largest logit shift caused by the pass width on this machine, in logits.
        comparisons: One per sampling and drafter.
        differences: One per text that differs from the plain text.
        cache_faults: Cache errors, one sentence each.
        laws: Chi-square tests, one per entry of `checks.TESTED_RULES`.
        total_s: Duration in seconds.
        checks: One per feature: rows, near ties, warm caches and so on.
        n_parallel: Number of requests that ran at once; 1 without `under_load`.
        left_out: What did not run, because of the time limit or `quick`.
    """

    target: str
    draft: str | None
    n_prompts: int
    n_tokens: int
    noise: float
    comparisons: tuple[Comparison, ...]
    differences: tuple[Difference, ...]
    cache_faults: tuple[str, ...]
    laws: tuple[ChiSquareTest, ...]
    total_s: float
    checks: tuple[Check, ...] = ()
    n_parallel: int = 1
    left_out: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all differences are within the noise."""
        texts_ok = not self.cache_faults and all(d.near_tie for d in self.differences)
        tests_ok = all(test.ok for test in self.laws)
        return texts_ok and tests_ok and all(check.ok for check in self.checks)

    @property
    def sentence(self) -> str:
        """The result in one plain sentence."""
        subject = "Running requests together" if self.n_parallel > 1 else "Speculation"
        n = sum(one.n_texts for one in self.comparisons)
        n_same = sum(one.n_identical for one in self.comparisons)
        n_different = sum(not d.near_tie for d in self.differences)
        if self.ok:
            found = f"{n_same} of {n} texts identical"
            if n > n_same:
                found += (
                    f", {n - n_same} differ at a near tie, which this machine's rounding decides"
                )
            return f"{subject} does not change this model's output ({found})."
        wrong = [f"{n_different} of {n} texts differ"] if n_different else []
        wrong += ["a cache does not contain the generated tokens"] if self.cache_faults else []
        wrong += [
            f"first tokens under {test.accept} do not follow the model's probabilities"
            for test in self.laws
            if not test.ok
        ]
        wrong += [check.changes for check in self.checks if not check.ok]
        return f"{subject} changes this model's output: {'; '.join(wrong)}."

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values."""
        parts = {
            name: [asdict(one) | {"ok": one.ok} for one in getattr(self, name)]
            for name in ("laws", "checks")
        }
        return {"ok": self.ok, "sentence": self.sentence} | asdict(self) | parts


def bundled_prompts() -> list[str]:
    """Return the fifty bundled prompts, which are openings of tales."""
    return (files("gguf_spec") / "data" / "prompts.txt").read_text(encoding="utf-8").splitlines()


def verify(
    llm: LLM,
    prompts: Sequence[str] | None = None,
    *,
    n_tokens: int | None = None,
    long: bool = False,
    under_load: bool = False,
    n_draws: int = 1000,
    seed: int = 1,
    limit_s: float | None = None,
    quick: bool = False,
    progress: OnProgress = lambda _: None,
    on_part: Callable[[str], object] = lambda _: None,
) -> Report:
    """Compare speculation with plain decoding.

    Args:
        llm: Models to verify. Without a draft model drafts come from the text only.
        prompts: Texts to continue, used unchanged; None selects the first ten bundled prompts.
        n_tokens: Maximum number of tokens of a text; None selects 64, or 300 if `long`.
        long: Put 1,500 tokens of text before each prompt, or as many as the context holds. This
            shows rounding effects that occur only after many tokens.
        under_load: Instead of all other checks, compare the texts of requests that run together,
            without drafts and with several draft settings, with the text of each alone without
            drafts. The models must have been loaded with `parallel` above 1.
        n_draws: Number of generations per chi-square test; half of it for n-gram and for adaptive
            drafts.
        seed: Seed of the first text; each further prompt uses the next seed.
        limit_s: Time limit in seconds. No further prompt or check starts after it, and the
            chi-square tests use at most a third of it, unless 50 generations each take longer.
        quick: Take a part of it that needs about a minute with a model of 1.5B parameters: one
            prompt with shorter texts, fewer draws for two of the chi-square tests, and of the
            further checks those that begin within a minute. `left_out` of the report has the rest.
        progress: Called with the finished texts, draws and checks.
        on_part: Called with the name of each part that ends, such as `prompt 1 of 10`.

    Raises:
        InvalidOptionError: There is no prompt, or a number is out of range.
        ContextTooShortError: A prompt leaves no room in the context for a few tokens.
        EmptyPromptError: A prompt contains no token.
    """
    run = _Run(limit_s, progress)
    prompts = bundled_prompts()[:PROMPTS] if prompts is None else prompts
    n_given = len(prompts)
    least = _QUICK_TOKENS if quick else 300 if long else 64
    n_tokens = least if n_tokens is None else n_tokens
    if not prompts or isinstance(prompts, str):
        allowed = "a list of one text or more"
        raise InvalidOptionError("prompts", prompts, allowed, "write at least one text.")
    Sampling(seed=seed, max_tokens=n_tokens)  # raises if a value is invalid
    if n_draws < 1:
        raise InvalidOptionError("n_draws", n_draws, "1 or more")
    for prompt in prompts:
        _check_room(llm, prompt)
    llm.measure()  # the noise of passes, and rows that show which ones are exact
    if quick:
        prompts, n_draws = prompts[:1], min(n_draws, _QUICK_DRAWS)
        run.limit_s = min(run.limit_s, _QUICK_S)
    before = _long_text(llm, prompts, n_tokens) if long else ""
    longer = [before + prompt for prompt in prompts]
    if under_load:
        return _check_load(llm, longer, n_tokens, seed, run, on_part)
    ways, rules = ways_of(llm), rules_of(llm)
    laws_in_use = rules[:_QUICK_LAWS] if quick else rules
    noise = noise_in_use(llm, ways.values())
    texts = TextChecks(llm, n_tokens, noise)
    requests = RequestChecks(texts, prompts[0], seed)
    run.total = len(prompts) * len(SAMPLINGS) * (1 + len(ways)) + len(requests.parts)
    run.total += sum(n_draws_of(way, n_draws) for way in laws_in_use)
    checks = [check_rows(llm, ways.values()), *check_kernels(llm)]
    on_part("rows of passes")
    reference, laws = Reference(llm, prompts[0], exact=not noise), []
    for i, way in enumerate(laws_in_use):
        until = run.started + run.limit_s * (i + 1) / (3 * len(laws_in_use))
        laws.append(drawn(llm, reference, way, n_draws, seed, until=until, on_draw=run.one_more))
        on_part(f"first tokens under {way}")
    left_out = [f"first tokens under {way}" for way in rules[len(laws_in_use) :]]
    for name, part in requests.parts.items():
        omitted = Check(name, 0, "omitted: the time limit ended it")
        checks.append(omitted if run.is_late() else part())
        run.one_more()
        (left_out.append if checks[-1] is omitted else on_part)(name)
    n_prompts = 0
    for prompt in longer:
        if n_prompts and run.is_late():
            break
        texts.compare(prompt, n_prompts, seed, run.one_more)
        n_prompts += 1
        on_part(f"prompt {n_prompts} of {len(longer)}")
    if n_prompts < n_given:
        left_out.append(f"{n_given - n_prompts} of {n_given} prompts")
    checks.insert(1, texts.near_ties())
    return _report(
        llm, texts, run, checks, n_prompts=n_prompts, n_tokens=n_tokens, laws=laws,
        left_out=tuple(left_out),
    )  # fmt: skip


class _Run:
    """Clock, time limit and progress of a verification; `total` is the number of its parts."""

    def __init__(self, limit_s: float | None, progress: OnProgress) -> None:
        self.started = time.perf_counter()
        self.limit_s = math.inf if limit_s is None else limit_s
        self.total, self._done, self._progress = 0, 0, progress

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def is_late(self, share: float = 1.0) -> bool:
        """Return whether more than a share of the time limit has passed."""
        return self.seconds > share * self.limit_s

    def one_more(self) -> None:
        self._done += 1
        self._progress(Progress("verify", self._done, self.total, "generations"))


def _report(
    llm: LLM,
    texts: TextChecks,
    run: _Run,
    checks: Sequence[Check],
    *,
    laws: Sequence[ChiSquareTest] = (),
    **facts: Any,
) -> Report:
    return Report(
        llm.name,
        llm.draft_name,
        noise=texts.noise,
        comparisons=tuple(texts.comparisons()),
        differences=tuple(texts.differences),
        cache_faults=tuple(texts.cache_faults),
        laws=tuple(laws),
        total_s=run.seconds,
        checks=tuple(checks),
        **facts,
    )


def _long_text(llm: LLM, prompts: Sequence[str], n_tokens: int) -> str:
    """Return a text of 1,500 tokens, or of as many as fit before the prompts and their texts."""
    room = llm.n_ctx - max(len(llm.tokenize(prompt)) for prompt in prompts) - n_tokens - _SPARE
    if room < _LEAST_LONG:
        needed = llm.n_ctx - room + _LEAST_LONG
        raise ContextTooShortError("a long prompt", llm.n_ctx, needed, "set a smaller {n_tokens}")
    return long_text(llm, min(_LONG, room))


def _check_room(llm: LLM, prompt: str) -> None:
    """Reject a prompt that is empty or leaves no room for an answer."""
    n, most = len(llm.tokenize(prompt)), llm.n_ctx - N_FIRST_TOKENS - 1
    if not n:
        raise EmptyPromptError
    if n > most:
        shown = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        needed = n + llm.n_ctx - most
        raise ContextTooShortError(f"the prompt {shown!r}", llm.n_ctx, needed, "shorten the prompt")


def _check_load(
    llm: LLM,
    prompts: Sequence[str],
    n_tokens: int,
    seed: int,
    run: _Run,
    on_part: Callable[[str], object],
) -> Report:
    """Continue each prompt alone without drafts, then all together with every draft setting.

    No further text starts after the time limit, except for the first prompt alone and as many texts
    as run at once.
    """
    if llm.parallel < 2:
        raise InvalidOptionError("parallel", llm.parallel, "2 or more")
    ways = {
        name: way for name, way in _LOAD_WAYS.items() if llm.draft_name or way.drafter != "model"
    }
    texts = TextChecks(llm, n_tokens, noise_in_use(llm, ways.values()))
    run.total = len(prompts) * len(SAMPLINGS) * (1 + len(ways))
    jobs: list[TextCheck] = []
    for index, prompt in enumerate(prompts):
        if jobs and run.is_late(1 / 2):
            break
        jobs += texts.plain_texts(prompt, index, seed, ways, run.one_more)
        on_part(f"prompt {index + 1} of {len(prompts)} alone")
    random.Random(seed).shuffle(jobs)
    llm.forget()
    ended, errors = _together(llm, jobs, ways, run)
    on_part("all of them together")
    for job, burst in ended:
        texts.count(job, burst)
    found = f"{len(errors)} of {len(ended) + len(errors)} requests"
    check = Check("errors", len(ended) + len(errors), found, tuple(errors), "requests fail")
    n_prompts = len({job.prompt for job in jobs})
    checks = [texts.near_ties(), check]
    return _report(
        llm, texts, run, checks, n_prompts=n_prompts, n_tokens=n_tokens, n_parallel=llm.parallel
    )


def _together(
    llm: LLM, jobs: Sequence[TextCheck], ways: dict[str, Speculation], run: _Run
) -> tuple[list[tuple[TextCheck, Completion]], list[str]]:
    """Run the requests, as many at once as share passes; return the results and the errors."""
    ended: list[tuple[TextCheck, Completion]] = []
    errors: list[str] = []
    cancellation = Cancellation()

    def in_time() -> Iterator[TextCheck]:
        for i, job in enumerate(jobs):
            if i >= llm.parallel and run.is_late():
                return
            yield job

    def complete(job: TextCheck) -> Work[Completion | GgufSpecError]:
        begin = partial(llm.stream, job.ids, job.sampling, speculation=ways[job.drafter])
        return completion(cancellation, begin)

    def keep(job: TextCheck, result: Completion | GgufSpecError) -> None:
        if isinstance(result, Completion):
            ended.append((job, result))
        else:
            errors.append(f"Prompt {job.prompt + 1} ({job.name}, {job.drafter}): {result}")
        run.one_more()

    run_all(in_time(), complete, keep, n_at_once=llm.parallel, cancellation=cancellation)
    return ended, errors
