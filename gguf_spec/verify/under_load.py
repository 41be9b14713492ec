"""Comparison of the texts of requests that run together with the text of each alone."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ..errors import GgufSpecError, InvalidOptionError
from ..options import Sampling, Speculation
from ..results import Completion, OnProgress, Progress
from ..runtime.llm import LLM
from ..runtime.many import Cancellation, run_all
from .report import Report
from .row_checks import Check, noise_in_use
from .text_checks import SAMPLINGS, TextChecks

PARALLEL = 8  # default number of requests at once
PLAIN = Speculation(0)
WAYS = {
    "none": PLAIN,
    "text": Speculation(drafter="ngram"),
    "model, k = 3": Speculation(3, drafter="model", adaptive=False),
    "auto": Speculation(),
}


class _Job(NamedTuple):
    """A text to be generated beside others, and the plain text of the same request alone."""

    place: int
    ids: Sequence[int]
    name: str
    sampling: Sampling
    drafter: str
    plain: Completion


def check_load(
    llm: LLM,
    prompts: Sequence[str],
    n_tokens: int,
    seed: int,
    limit_s: float | None,
    progress: OnProgress,
) -> Report:
    """Continue each prompt alone without drafts, then all together with every draft setting.

    Args:
        llm: Models, loaded with `parallel` above 1. A draft is not needed.
        prompts: Texts to continue; they fit into the context.
        n_tokens: Maximum number of tokens of a text.
        seed: Seed of the first text; each further prompt uses the next seed.
        limit_s: Time limit in seconds. No further text starts after it, except for the first
            prompt alone and as many texts as run at once.
        progress: Called with the finished texts.

    Raises:
        InvalidOptionError: The models run one request at a time.
    """
    started = time.perf_counter()
    if llm.parallel < 2:
        raise InvalidOptionError("parallel", llm.parallel, "2 or more")
    limit_s = math.inf if limit_s is None else limit_s
    ways = {name: way for name, way in WAYS.items() if llm.draft_name or way.drafter != "model"}
    noise = noise_in_use(llm, ways.values())
    texts = TextChecks(llm, n_tokens, noise)
    total = len(prompts) * len(SAMPLINGS) * (1 + len(ways))
    n_done = itertools.count(1)

    def one_more() -> None:
        progress(Progress("verify", next(n_done), total, "generations"))

    def is_late(share: float = 1.0) -> bool:
        return time.perf_counter() - started > share * limit_s

    jobs: list[_Job] = []
    for index, prompt in enumerate(prompts):
        if jobs and is_late(1 / 2):
            break
        jobs += _alone(llm, prompt, index, n_tokens, seed, ways, one_more)
    random.Random(seed).shuffle(jobs)
    llm.forget()
    ended, errors = _together(llm, jobs, ways, is_late, one_more)
    for job, burst in ended:
        texts.count(job.name, job.drafter, job.place, job.ids, job.sampling, job.plain, burst)
    found = f"{len(errors)} of {len(ended) + len(errors)} requests"
    check = Check("errors", len(ended) + len(errors), found, tuple(errors), "requests fail")
    return Report(
        llm.name,
        llm.draft_name,
        len({job.place for job in jobs}),
        n_tokens,
        noise,
        tuple(texts.comparisons()),
        tuple(texts.differences),
        (),
        (),
        time.perf_counter() - started,
        (texts.near_ties(), check),
        llm.parallel,
    )


def _alone(
    llm: LLM,
    prompt: str,
    index: int,
    n_tokens: int,
    seed: int,
    ways: dict[str, Speculation],
    one_more: Callable[[], object],
) -> Iterator[_Job]:
    """Continue a prompt alone with every sampling, and yield the texts to compare."""
    ids = llm.tokenize(prompt)
    for name, options in SAMPLINGS.items():
        sampling = replace(options, seed=(seed + index) % 2**64, max_tokens=n_tokens)
        llm.forget()
        plain = llm.generate_tokens(ids, sampling, speculation=PLAIN)
        one_more()
        for drafter in ways:
            yield _Job(index, ids, name, sampling, drafter, plain)


def _together(
    llm: LLM,
    jobs: Sequence[_Job],
    ways: dict[str, Speculation],
    is_late: Callable[[], bool],
    one_more: Callable[[], object],
) -> tuple[list[tuple[_Job, Completion]], list[str]]:
    """Run the requests, as many at once as share passes; return the results and the errors."""
    ended: list[tuple[_Job, Completion]] = []
    errors: list[str] = []
    cancellation = Cancellation()

    def in_time() -> Iterator[_Job]:
        for i, job in enumerate(jobs):
            if i >= llm.parallel and is_late():
                return
            yield job

    def complete(job: _Job) -> Completion | GgufSpecError:
        begin = partial(llm.stream, job.ids, job.sampling, speculation=ways[job.drafter])
        try:
            with cancellation.opened(begin) as stream:
                for _ in stream:
                    pass
            return stream.result
        except GgufSpecError as error:
            return error.with_traceback(None)  # the traceback holds the stream

    def keep(job: _Job, result: Completion | GgufSpecError) -> None:
        if isinstance(result, Completion):
            ended.append((job, result))
        else:
            errors.append(f"Prompt {job.place + 1} ({job.name}, {job.drafter}): {result}")
        one_more()

    run_all(in_time(), complete, keep, n_threads=llm.parallel, cancellation=cancellation)
    return ended, errors
