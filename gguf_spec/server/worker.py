"""Worker of a server: its queue, and the threads that answer requests.

The requests of one model run together, as many as share the passes of its LLM. A request for
another model waits until they are done, and those behind it wait with it: two models would compete
for the same cores. Requests take turns, and one with many choices has a turn for each of them: it
waits again after a choice if others wait.
"""

from __future__ import annotations

import collections
import math
import threading
from collections.abc import Callable
from itertools import takewhile
from typing import TYPE_CHECKING

from ..results import Completion, Stats
from ..tools.families import family_of
from .errors import ApiError, client_closed, shutting_down
from .events import ChoiceEnded, ChunkEvent, Done, ErrorEvent, Started, Why, named
from .jobs import ChoiceRequest, Job
from .metrics import Metrics
from .model_pool import ModelPool, ServedModel
from .requests import CompletionRequest

if TYPE_CHECKING:
    from ..runtime.llm import LLM


class Worker:
    """Thread that starts jobs in the order of their submission, each in a thread of its own.

    A job for several choices is given more threads while there is room and no other job waits.
    """

    def __init__(self, pool: ModelPool, most_waiting: int, totals: Metrics) -> None:
        self.totals = totals
        self._pool, self._most = pool, most_waiting
        self._changed = threading.Condition()
        self._waiting: collections.deque[Job] = collections.deque()
        self._running: list[Job] = []  # all of one model
        self._threads: set[threading.Thread] = set()  # those that answer
        self._ends = False
        self._refuses = False  # from `cancel_all` on
        self._n_steps = 0
        self._seconds = 1.0  # moving average of the time of an answer, in seconds
        self._thread = threading.Thread(target=self._run, name="gguf-spec-worker", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Number of waiting jobs."""
        return len(self._waiting)

    @property
    def n_running(self) -> int:
        """Number of running jobs."""
        return len(self._running)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def progress(self) -> int | None:
        """Return the number of steps so far; None while there is nothing to do.

        Steps are passes that read a prompt, chunks, and steps of loading a model. Without a thread
        that starts jobs there are no steps.
        """
        with self._changed:
            is_idle = self.is_alive and not (self._running or self._waiting)
            return None if is_idle else self._n_steps

    def _step(self, _: object = None) -> None:
        self._n_steps += 1  # a lost update of two threads is still a change

    def submit(self, job: Job) -> None:
        """Add a job to the queue.

        Raises:
            ApiError: The queue is full, or the server is shutting down.
        """
        with self._changed:
            if self._refuses:
                raise shutting_down()
            if len(self._waiting) >= self._most + self._room(job.model):
                seconds = math.ceil(self._seconds / max(1, self._n_threads))
                seconds = min(60, max(1, seconds))
                raise ApiError(
                    f"{len(self._waiting)} requests are already waiting. Try again in {seconds} s.",
                    None,
                    "queue_full",
                    429,
                    {"Retry-After": str(seconds)},
                )
            self._waiting.append(job)
            self._changed.notify()

    def cancel(self, job: Job, why: Why) -> None:
        """Cancel a waiting or running job; a waiting job leaves the queue at once.

        A job out of time that waits for its next turn ends with its answers so far.
        """
        job.cancel(why)
        with self._changed:
            if job not in self._waiting:
                return
            if why == "timeout" and job.has_more:
                self._changed.notify()  # `_ready` prefers it
                return
            self._waiting.remove(job)
            self._changed.notify()  # it may have been the one that another model waited for
        job.post(ErrorEvent(client_closed() if why == "client_closed" else shutting_down()))

    def cancel_all(self) -> None:
        """Cancel the running jobs within one round, and all waiting jobs; refuse further ones."""
        with self._changed:
            self._refuses = True
            jobs = [*self._waiting, *self._running]
        for job in jobs:
            self.cancel(job, "shutting_down")

    def close(self) -> None:
        """Cancel all jobs and end the threads; further calls have no effect."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self.cancel_all()
        self._thread.join()
        for thread in [*self._threads]:
            thread.join()
        self._pool.close()

    # ---- the thread that starts jobs

    def _run(self) -> None:
        while job := self._next():
            self._pool.unload_idle(but_for=job.model)
            thread = threading.Thread(
                target=self._answer, args=(job,), name="gguf-spec-answer", daemon=True
            )
            self._threads.add(thread)
            try:
                thread.start()
            except RuntimeError as error:  # the system allows no further thread
                job.fail(error)
                self._leave(job, thread)
            del job, thread

    def _next(self) -> Job | None:
        """Return the job that gets the next thread, or None at the end; unload idle models."""
        while True:
            with self._changed:
                job = self._ready()
                if job:
                    job.n_threads += 1
                    return job
                if self._ends and not (self._running or self._waiting):
                    return None
                self._changed.wait(self._pool.seconds_left())
                model = self._running[0].model if self._running else None
            # Only this thread starts jobs, so no other model can come into use meanwhile.
            self._pool.unload_idle(but_for=model)

    def _ready(self) -> Job | None:
        """Return a job that a further thread can answer now; one that waits comes first."""
        # One that is out of time between two turns needs no slot.
        over = next((job for job in self._waiting if job.why and job.has_more), None)
        if over or (self._waiting and self._room(self._waiting[0].model)):
            job = over or self._waiting[0]
            self._waiting.remove(job)
            self._running.append(job)
            return job
        return next((job for job in self._running if job.has_more and self._room(job.model)), None)

    def _is_awaited(self, job: Job) -> bool:
        """Whether another job for the same model waits, and could take the place of this one."""
        return bool(self._waiting) and self._waiting[0].model is job.model

    @property
    def _n_threads(self) -> int:
        return sum(job.n_threads for job in self._running)

    def _room(self, model: ServedModel) -> int:
        """Return how many more threads may answer requests for a model."""
        if self._running and self._running[0].model is not model:
            return 0
        loaded = self._pool.loaded(model)
        # Only one thread may load it.
        return max(0, (loaded.llm.parallel if loaded else 1) - self._n_threads)

    # ---- the threads that answer

    def _answer(self, job: Job) -> None:
        """Answer choices of a job until none is left, or another job waits.

        The last thread sends the last event, or lets the job wait for its next turn.
        """
        try:
            with self._pool.use(job.model, self._cancellation(job)) as llm:
                self._wake()  # a model that was loaded just now may have room for others
                if isinstance(job.asked, CompletionRequest):
                    while request := job.next_choice(llm):
                        self._choose(job, llm, request)
                        if self._is_awaited(job) and not job.why:
                            break
                else:
                    job.last = Done(job.asked(llm))
        except Exception as error:
            job.fail(error)
        self._leave(job, threading.current_thread())

    def _cancellation(self, job: Job) -> Callable[[], bool]:
        """Return a function that counts a step, and returns whether the job is cancelled."""

        def is_cancelled() -> bool:
            self._step()
            return bool(job.why)

        return is_cancelled

    def _leave(self, job: Job, thread: threading.Thread) -> None:
        with self._changed:
            self._threads.discard(thread)
            job.n_threads -= 1
            is_last = job.n_threads == 0
            if is_last:
                self._running.remove(job)
            if is_last and job.has_more:  # before those for other models
                n = sum(1 for _ in takewhile(lambda one: one.model is job.model, self._waiting))
                self._waiting.insert(n, job)
                is_last = False
            self._changed.notify()
        if is_last:
            # Only now, when there is room: the client may send its next request at once.
            job.post(job.last)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def _choose(self, job: Job, llm: LLM, request: ChoiceRequest) -> None:
        """Generate one choice; one of a cancelled job that has not begun is empty."""
        stats = Stats()
        if job.why and request.index:
            nothing = Completion("", (), "cancelled", request.sampling.seed or 0, stats)
            job.post(ChoiceEnded(request.index, nothing, job.why))
            return
        with request.open(llm, self._step) as stream:
            self.totals.began(stream)
            try:
                with job.reading(stream):
                    if request.index == 0:
                        family = family_of(llm.chat_template or "")
                        job.start(Started(llm.name, family, stream.stats.n_prompt))
                        self._wake()
                    for chunk in stream:
                        self._step()
                        job.post(ChunkEvent(chunk, named(llm, chunk), request.index))
            finally:
                stats = stream.stats
                job.stats.append(stats)
                self.totals.ended(stream)
        with self._changed:
            self._seconds += 0.2 * (stats.total_s - self._seconds)
        if not job.has_failed:
            job.post(ChoiceEnded(request.index, stream.result, job.why))
