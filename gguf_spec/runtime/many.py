"""Many generations for one caller, on a bounded number of threads."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, TypeVar
from weakref import WeakSet

from ..engine import Answer, Prompt
from ..errors import GgufSpecError, InvalidOptionError
from ..options import Sampling, check_types, require, wrong_type
from ..results import Completion
from ..system.process import before_end_of_threads

J = TypeVar("J")
R = TypeVar("R")
T = TypeVar("T")

# Seconds between two calls of `on_wait`. On Windows, Ctrl-C arrives only between two waits.
_WAIT_S = 0.25


class CancelledGenerationError(Exception):
    """The generation was cancelled together with others before it began."""


class Cancellation:
    """Cancels the streams of several threads together.

    Attributes:
        is_set: Whether the streams are cancelled; later ones do not begin.
    """

    is_set: bool

    def __init__(self, on_cancel: Callable[[], object] | None = None) -> None:
        """Create one without streams; `cancel` calls `on_cancel`, too."""
        self.is_set, self._on_cancel = False, on_cancel
        # Each access is a single list operation, which Ctrl-C cannot leave half done.
        self._streams: list[Answer] = []

    def cancel(self) -> None:
        """Cancel all streams; each ends after its current pass or round."""
        self.is_set = True
        if self._on_cancel:
            self._on_cancel()
        for stream in list(self._streams):
            stream.cancel()

    @contextmanager
    def opened(self, begin: Callable[[], Answer]) -> Iterator[Answer]:
        """Open a stream that `cancel` cancels, and close it at the end of the block.

        Raises:
            CancelledGenerationError: `cancel` was called before the stream was open.
        """
        self._check()
        with begin() as stream:
            self._streams.append(stream)
            try:
                self._check()
                yield stream
            finally:
                self._streams.remove(stream)

    def _check(self) -> None:
        if self.is_set:
            raise CancelledGenerationError


def run_all(
    jobs: Iterable[J],
    work: Callable[[J], R],
    on_end: Callable[[J, R], object],
    *,
    n_threads: int,
    cancellation: Cancellation,
    on_wait: Callable[[], object] = lambda: None,
    may_begin: Callable[[], bool] = lambda: True,
) -> None:
    """Do jobs in other threads; return when all have ended.

    The jobs are taken from their iterator as threads become free, at most `2 * n_threads` ahead of
    those that have ended. If anything raises, Ctrl-C included, all streams are cancelled, the
    threads end, and the exception is raised.

    Args:
        jobs: The jobs; iterated in this thread.
        work: Does one job, in another thread.
        on_end: Called in this thread with each job and its result, in the order of their ends.
        n_threads: Number of threads.
        cancellation: Has the streams of the jobs.
        on_wait: Called in this thread several times a second while it waits.
        may_begin: Returns whether another job may begin while some run.
    """
    from concurrent.futures import Future, ThreadPoolExecutor

    _end_with_program()
    _running.add(cancellation)
    pool = ThreadPoolExecutor(n_threads, "gguf-spec-many")
    ended: queue.SimpleQueue[tuple[J, Future[R]]] = queue.SimpleQueue()

    def begin(job: J) -> None:
        pool.submit(work, job).add_done_callback(lambda future: ended.put((job, future)))

    def take() -> None:
        job, future = _next(ended, on_wait)
        on_end(job, future.result())

    def begin_and_take() -> None:
        n_open = 0
        for job in jobs:
            begin(job)
            n_open += 1
            while n_open and (n_open >= 2 * n_threads or not (ended.empty() and may_begin())):
                take()
                n_open -= 1
        for _ in range(n_open):
            take()

    def end() -> None:
        cancellation.cancel()
        pool.shutdown(cancel_futures=True)

    try:
        try:
            begin_and_take()  # not written out: Ctrl-C may arrive at the end of a loop
        finally:
            end()
    except BaseException:
        end()  # Ctrl-C may arrive just before the first call
        raise


_running: WeakSet[Cancellation] = WeakSet()


@cache
def _end_with_program() -> None:
    """Cancel everything at the end of the program, which waits for the threads of pools."""

    def cancel_all() -> None:
        for one in [*_running]:
            one.cancel()

    before_end_of_threads(cancel_all)


def _next(ended: queue.SimpleQueue[T], on_wait: Callable[[], object]) -> T:
    """Wait for the end of a job."""
    while True:
        try:
            return ended.get(timeout=_WAIT_S)
        except queue.Empty:
            on_wait()


def generate_many(
    open_stream: Callable[[Prompt, Sampling | None], Answer],
    prompts: Iterable[Prompt],
    samplings: Sampling | Iterable[Sampling | None] | None,
    n_threads: int,
    on_result: Callable[[int, Completion | GgufSpecError], object] | None,
) -> list[Completion | GgufSpecError]:
    """Do `LLM.generate_many` with streams that a function opens, in at most `n_threads` threads."""
    given = _read_prompts(prompts)
    of_each = _read_samplings(samplings, len(given))
    results: list[Any] = [None] * len(given)
    cancellation = Cancellation()

    def complete(i: int) -> Completion | GgufSpecError:
        try:
            with cancellation.opened(partial(open_stream, given[i], of_each[i])) as stream:
                return stream.run_to_end()
        except GgufSpecError as error:
            return error.with_traceback(None)  # the traceback holds the stream

    def keep(i: int, result: Completion | GgufSpecError) -> None:
        results[i] = result
        if on_result:
            on_result(i, result)

    if given:
        run_all(
            range(len(given)),
            complete,
            keep,
            n_threads=min(n_threads, len(given)),
            cancellation=cancellation,
        )
    return results


def checked_threads(parallel: int, max_parallel: int | None) -> int:
    """Return the number of threads for requests at once; None takes `parallel`.

    Raises:
        InvalidOptionError: It is no number above 0.
    """
    if max_parallel is None:
        return parallel
    allowed = "a whole number above 0"
    if not isinstance(max_parallel, int) or isinstance(max_parallel, bool):
        raise wrong_type("max_parallel", max_parallel, allowed)
    require("max_parallel", max_parallel, allowed, max_parallel > 0)
    return max_parallel


def _read_prompts(prompts: Iterable[Prompt]) -> list[Prompt]:
    """Return the prompts as a list.

    Raises:
        OptionTypeError: It is one prompt, or has an item that is not a prompt.
    """
    is_one = isinstance(prompts, (str, bytes, bytearray, Mapping))
    allowed = "a list of prompts: texts, lists of messages, or lists of token ids"
    hint = "write one prompt as a list of one."
    if is_one and not prompts:
        return []
    if is_one or not isinstance(prompts, Iterable):
        raise wrong_type("prompts", prompts, allowed, hint)
    given: list[Any] = [*prompts]
    for i, one in enumerate(given):
        if not isinstance(one, Sequence) or isinstance(one, (bytes, bytearray)):
            what = "a text, a list of messages or a list of token ids"
            raise wrong_type(f"prompts[{i}]", one, what, hint)
    return given


def _read_samplings(
    samplings: Sampling | Iterable[Sampling | None] | None, n: int
) -> Sequence[Sampling | None]:
    if samplings is None or isinstance(samplings, Sampling):
        return [samplings] * n
    of_each = list(samplings)
    for one in of_each:
        check_types(sampling=one)
    if len(of_each) != n:
        raise InvalidOptionError(
            "samplings", len(of_each), hint=f"give one for all, or {n:,}, one for each prompt.",
            message=f"there are {len(of_each):,} sampling options for {n:,} prompts.",
        )  # fmt: skip
    return of_each
