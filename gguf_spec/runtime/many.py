"""Many generations for one caller, several at once."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, Generic, TypeVar, cast

from ..engine import Answer, Prompt
from ..errors import GgufSpecError, InvalidOptionError
from ..options import Sampling, check_types, require, wrong_type
from ..results import Completion, Work, go_on
from ..system.process import Held, cancel_with_program

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


class _Jobs(Generic[J, R]):
    """Jobs that run, and those that wait.

    Its threads prepare generations and write results; none waits for a generation. There are as
    many as that needs at once.

    Attributes:
        ended: Each job that has ended, with its result or the error.
    """

    def __init__(
        self, work: Callable[[J], Work[R]], n_at_once: int, cancellation: Cancellation
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.ended: queue.SimpleQueue[tuple[J, R | None, BaseException | None]]
        self.ended = queue.SimpleQueue()
        self._work, self._n, self._cancellation = work, n_at_once, cancellation
        self._waiting, self._n_open = deque[J](), 0
        # Only the threads hold the lock and change the number: Ctrl-C could leave it taken.
        self._lock, self._fewer = threading.Lock(), queue.SimpleQueue[None]()
        self._pool = ThreadPoolExecutor(n_at_once, "gguf-spec-many")

    def begin(self, job: J) -> None:
        """Let a job run as soon as there is room."""
        self._waiting.append(job)
        self._pool.submit(self._begin_next)

    def cancel(self) -> None:
        self._cancellation.cancel()

    def end(self) -> None:
        """End all jobs, and wait for that: those that run end after the current round."""
        self.cancel()
        while self._n_open:
            with suppress(queue.Empty):
                self._fewer.get(timeout=_WAIT_S)
        self._pool.shutdown()

    def _begin_next(self) -> None:
        with self._lock:
            if not self._waiting or self._n_open >= self._n:
                return
            self._n_open += 1  # before the look at the mark, so that `end` sees one of both
            if self._cancellation.is_set:
                self._n_open -= 1
                return
            job = self._waiting.popleft()
        self._go_on(job, self._work(job), None)

    def _go_on(self, job: J, work: Work[R], error: BaseException | None) -> None:
        try:
            go_on(work, error, lambda error: self._submit(self._go_on, job, work, error))
            return
        except StopIteration as end:
            self.ended.put((job, end.value, None))
        except BaseException as raised:
            self.ended.put((job, None, raised))
        with self._lock:
            self._n_open -= 1
        if self._cancellation.is_set:
            self._fewer.put(None)
        self._submit(self._begin_next)

    def _submit(self, function: Callable[..., object], *given: object) -> None:
        try:
            self._pool.submit(function, *given)
        except RuntimeError:  # the pool has ended: all is cancelled
            function(*given)


def run_all(
    jobs: Iterable[J],
    work: Callable[[J], Work[R]],
    on_end: Callable[[J, R], object],
    *,
    n_at_once: int,
    cancellation: Cancellation,
    on_wait: Callable[[], object] = lambda: None,
    may_begin: Callable[[], bool] = lambda: True,
) -> None:
    """Do jobs, several at once; return when all have ended.

    Other threads do what they do besides their generations. The jobs are taken from their iterator
    as others end, at most `2 * n_at_once` ahead of those that have ended. If anything
    raises, Ctrl-C included, all streams are cancelled, the jobs end, and the exception is raised.

    Args:
        jobs: The jobs; iterated in this thread.
        work: Begins one job, in another thread.
        on_end: Called in this thread with each job and its result, in the order of their ends.
        n_at_once: Number of jobs at once.
        cancellation: Has the streams of the jobs.
        on_wait: Called in this thread several times a second while it waits.
        may_begin: Returns whether another job may begin while some run.
    """
    run = _Jobs(work, n_at_once, cancellation)
    _end_with_program()  # behind the pool, to be called before it ends
    _running.add(run)

    def take() -> None:
        job, result, error = _next(run.ended, on_wait)
        if error:
            raise error
        on_end(job, cast("R", result))

    def begin_and_take() -> None:
        n_open = 0
        for job in jobs:
            run.begin(job)
            n_open += 1
            while n_open and (n_open >= 2 * n_at_once or not (run.ended.empty() and may_begin())):
                take()
                n_open -= 1
        for _ in range(n_open):
            take()

    try:
        try:
            begin_and_take()  # not written out: Ctrl-C may arrive at the end of a loop
        finally:
            run.end()
    except BaseException:
        run.end()  # Ctrl-C may arrive just before the first call
        raise


_running: Held[_Jobs[Any, Any]] = Held()


@cache
def _end_with_program() -> None:
    cancel_with_program(_running)


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
    n_at_once: int,
    on_result: Callable[[int, Completion | GgufSpecError], object] | None,
) -> list[Completion | GgufSpecError]:
    """Do `LLM.generate_many` with streams that a function opens, at most `n_at_once`."""
    given = _read_prompts(prompts)
    of_each = _read_samplings(samplings, len(given))
    results: list[Any] = [None] * len(given)
    cancellation = Cancellation()

    def complete(i: int) -> Work[Completion | GgufSpecError]:
        return completion(cancellation, partial(open_stream, given[i], of_each[i]))

    def keep(i: int, result: Completion | GgufSpecError) -> None:
        results[i] = result
        if on_result:
            on_result(i, result)

    if given:
        run_all(
            range(len(given)),
            complete,
            keep,
            n_at_once=min(n_at_once, len(given)),
            cancellation=cancellation,
        )
    return results


def completion(
    cancellation: Cancellation, begin: Callable[[], Answer]
) -> Work[Completion | GgufSpecError]:
    """Complete one generation; its error is the result."""
    try:
        with cancellation.opened(begin) as stream:
            yield stream, lambda _: None
            return stream.result
    except GgufSpecError as error:
        return error.with_traceback(None)  # the traceback holds the stream


def checked_parallel(parallel: int, max_parallel: int | None) -> int:
    """Return the number of requests at once; None takes `parallel`.

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
