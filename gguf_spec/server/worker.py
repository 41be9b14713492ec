"""Worker of a server: its queue, and the threads that prepare and finish answers.

The thread of the engine computes the answers and sends their chunks. So a long prompt or grammar,
which is prepared here, does not keep the passes of others waiting, and no thread here waits for an
answer.

The requests of one model run together, as many as share the passes of its LLM. A request for
another model waits until they are done, and those behind it wait with it: two models would compete
for the same cores. Requests take turns, and one with many choices has a turn for each of them: it
waits again after a choice, behind the others.
"""

from __future__ import annotations

import collections
import math
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ContextTooShortError, PromptTooLongError
from ..protocols.errors import LOG, ApiError, client_closed, shutting_down
from ..protocols.events import ChoiceEnded, ChunkEvent, PromptRead, Started, Why, named
from ..protocols.fields import NOTED
from ..protocols.request import CompletionRequest, LineReader
from ..results import Stats, Work, go_on
from ..tools.families import family_of
from .jobs import Done, ErrorEvent, Job
from .metrics import Metrics
from .model_pool import ModelPool, ServedModel
from .settings import Settings

if TYPE_CHECKING:
    from ..engine import Answer
    from ..protocols.fit import Choice
    from ..results import Chunk, Progress
    from ..runtime.llm import LLM


Turn: TypeAlias = "tuple[Job, Work[None], BaseException | None]"

_LONGEST_WAIT_S = 60.0  # that official clients take from Retry-After
_NO_STATS = Stats()
# tokens of an answer for which the context grows, where the request names no number
_ROOM = 1024


class Pace:
    """Times of the ends of jobs, and the time after which a client that is refused may return.

    Attributes:
        mean_s: Moving average of the seconds from one end of a job to the next.
    """

    def __init__(self) -> None:
        self.mean_s: float = 1.0
        self._ended_s = self._return_s = -math.inf

    def seconds_to_wait(self, n_waiting: int, first_s: float, now_s: float) -> int:
        """Return the seconds until all that wait are answered, if it goes on as it did.

        Each further client that is refused waits longer, at the pace of the answers: clients that
        come back together would fill the queue again.

        Args:
            first_s: When the first job that runs began; infinite if none runs.
        """
        mean_s = max(self.mean_s, now_s - max(self._ended_s, first_s))
        until_empty_s = mean_s * max(0, n_waiting - 1)
        wait_s = min(_LONGEST_WAIT_S, max(until_empty_s, self._return_s - now_s) + mean_s)
        self._return_s = now_s + wait_s
        return max(1, math.ceil(wait_s))

    def count_end(self, others_wait: bool, began_s: float, now_s: float) -> None:
        """Count the end of a job that began at `began_s`; the pace counts while others wait."""
        if others_wait:
            seconds = now_s - max(self._ended_s, began_s)
            self.mean_s += 0.2 * (seconds - self.mean_s)
        self._ended_s = now_s


class Worker:
    """Answers jobs in the order of their submission, in turns: a choice, or a task, is one turn.

    As many turns run at once as the LLM runs requests. A job for several choices is given more
    while there is room and no other job waits. A turn is a `Work`: it has a thread while it is
    prepared and finished. There is one thread, and more only while several of them have to do.

    Attributes:
        most: Most jobs that wait, beside those for which there is room.
        waiting: Jobs that wait for a turn.
        running: Jobs that have a turn, all of one model.
    """

    n_steps: int

    def __init__(self, pool: ModelPool, settings: Settings, totals: Metrics) -> None:
        self.totals = totals
        self._pool = pool
        self.most: int = settings.queue
        self._most_bytes = settings.limits.waiting_bytes
        self._changed = threading.Condition()
        self.waiting: collections.deque[Job] = collections.deque()
        self.running: list[Job] = []  # all of one model
        # turns whose generation has ended, with its error
        self._answered: collections.deque[Turn] = collections.deque()
        self._threads: list[threading.Thread] = []
        self._n_idle, self._most_threads = 0, 1
        self._ends = False
        self._refuses = False  # from `cancel_all` on
        self._unloads = False  # no job for another model begins then
        self.n_steps = 0
        self.pace: Pace = Pace()
        self._start_thread()

    @property
    def n_waiting(self) -> int:
        with self._changed:
            return len(self.waiting)

    @property
    def n_running(self) -> int:
        with self._changed:
            return len(self.running)

    @property
    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in [*self._threads])

    def progress(self) -> int | None:
        """Return the number of steps so far; None while there is nothing to do.

        Steps are passes that read a prompt, chunks, and steps of loading a model. Without threads
        there are no steps.
        """
        with self._changed:
            is_idle = self.is_alive and not (self.running or self.waiting)
            return None if is_idle else self.n_steps

    def _step(self, _: object = None) -> None:
        self.n_steps += 1  # a lost update of two threads is still a change

    def submit(self, job: Job) -> None:
        """Add a job to the queue, unless that is full or the server is shutting down.

        It is full when it has as many jobs as it may, or when these need too much memory; one job
        of any size may wait.
        """
        with self._changed:
            if self._refuses:
                raise shutting_down()
            n = len(self.waiting)
            n_bytes = sum(one.n_bytes for one in self.waiting) + job.n_bytes
            if n >= self.most + self._room(job.model) or (n and n_bytes > self._most_bytes):
                first_s = min((one.began_s for one in self.running), default=math.inf)
                seconds = self.pace.seconds_to_wait(n, first_s, time.perf_counter())
                wait = "1 request is" if n == 1 else f"{n} requests are"
                raise ApiError(
                    f"{wait} already waiting. Try again in {seconds} s.",
                    None,
                    "queue_full",
                    429,
                    {"Retry-After": str(seconds)},
                )
            self.waiting.append(job)
            self._wake()

    def cancel(self, job: Job, why: Why) -> None:
        """Cancel a waiting or running job; a waiting job leaves the queue at once.

        A job out of time that waits for its next turn ends with its answers so far.
        """
        job.cancel(why)
        with self._changed:
            if job not in self.waiting:
                return
            self.waiting.remove(job)
            self._wake()  # it may have been the one that another model waited for
        if why != "timeout" or not job.has_started:
            job.last = ErrorEvent(client_closed() if why == "client_closed" else shutting_down())
            job.failed = True
        job.finish()

    def cancel_all(self) -> None:
        """Cancel the running jobs within one round, and all waiting jobs; refuse further ones."""
        with self._changed:
            self._refuses = True
            jobs = [*self.waiting, *self.running]
        for job in jobs:
            self.cancel(job, "shutting_down")

    def close(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self.cancel_all()
        for thread in self._threads:
            thread.join()
        self._pool.close()

    # ---- the threads

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name="gguf-spec-worker", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _wake(self) -> None:
        """Let a thread take the next turn, if there is one; start a thread if all have to do."""
        if not self._finds():
            return
        if self._n_idle:
            self._changed.notify()
        elif len(self._threads) < self._most_threads:
            with suppress(RuntimeError):  # as many as the system allows
                self._start_thread()

    def _run(self) -> None:
        turn = self._next()
        while turn:
            turn = self._go_on(*turn) or self._next()

    def _go_on(self, job: Job, work: Work[None], error: BaseException | None) -> Turn | None:
        """Go on with a turn until it has ended, or the engine computes a generation for it.

        At its end the next one is returned, if there is one: a job that goes on at once is never
        seen as waiting.
        """

        def ended(error: BaseException | None) -> None:
            with self._changed:
                self._answered.append((job, work, error))
                self._wake()

        NOTED.set(job.noted)
        try:
            go_on(work, error, ended)
        except StopIteration:
            with self._changed:
                self._leave(job)
                return self._take()
        return None

    def _next(self) -> Turn | None:
        """Wait for a turn; unload idle models. None at the end."""
        while True:
            with self._changed:
                if turn := self._take():
                    return turn
                if self._ends and not (self.running or self.waiting):
                    return None
                seconds = self._pool.seconds_left()
                if seconds != 0 or self._unloads:
                    self._n_idle += 1
                    self._changed.wait(None if self._unloads else seconds)
                    self._n_idle -= 1
                    continue
                self._unloads = True
                model = self.running[0].model if self.running else None
            try:
                self._pool.unload_idle(but_for=model)
            finally:
                with self._changed:
                    self._unloads = False
                    self._changed.notify_all()

    def _take(self) -> Turn | None:
        """Return the next turn, if there is one; those that go on come first."""
        if self._answered:
            turn = self._answered.popleft()
        elif job := self._ready():
            if self.waiting and job is self.waiting[0]:
                self.running.append(self.waiting.popleft())
            job.n_turns += 1
            turn = job, self._answer(job), None
        else:
            return None
        self._wake()  # the one that was woken takes one turn
        return turn

    def _finds(self) -> bool:
        return bool(self._answered or self._ready())

    def _ready(self) -> Job | None:
        """Return a job that can have a further turn now; one that waits comes first."""
        if self._unloads and not self.running:
            return None
        first = next(iter(self.waiting), None)
        if first and self._room(first.model, first.n_ctx):
            return first
        # A request of this model may wait for a longer context, which grows when none runs.
        ready = (
            one
            for one in self.running
            if one.has_more and self._room(one.model) and not (first and first.model is one.model)
        )
        return next(ready, None)

    @property
    def _n_busy(self) -> int:
        return sum(job.n_turns for job in self.running)

    def _room(self, model: ServedModel, n_ctx: int = 0) -> int:
        """Return how many more turns of requests for a model may run.

        Its context grows to `n_ctx` when no request runs.
        """
        if self.running and self.running[0].model is not model:
            return 0
        loaded = self._pool.loaded(model)
        if loaded and loaded.llm.n_ctx < max(n_ctx, *(job.n_ctx for job in self.running), 0):
            return 0 if self.running else 1
        # Only one turn may load it.
        return max(0, (loaded.llm.parallel if loaded else 1) - self._n_busy)

    def _answer(self, job: Job) -> Work[None]:
        # A client that leaves does not end the growth: others use the model.
        n_ctx = 0 if job.why else job.n_ctx

        def is_cancelled() -> bool:
            self._step()
            return job.why == "shutting_down" if n_ctx else bool(job.why)

        try:
            job.begins_again = False
            self._pool.unload_idle(but_for=job.model)
            with self._pool.use(job.model, is_cancelled, n_ctx) as llm:
                job.n_ctx = 0  # also where the context could not grow
                with self._changed:  # a model that was loaded just now may have room for others
                    self._most_threads = max(self._most_threads, llm.parallel)
                    self._wake()
                most = self._pool.ctx_max(llm)
                try:
                    if not isinstance(job.request, CompletionRequest):
                        value = job.request(llm)
                        if isinstance(value, Generator):
                            value = yield from value
                        job.last = Done(value)
                    elif choice := job.next_choice(llm, most):
                        yield from self._choose(job, llm, choice, most)
                except PromptTooLongError as error:
                    if error.n_prompt >= most > llm.n_ctx and not _leaves_out(job):
                        raise PromptTooLongError(error.n_prompt, most) from None
                    if not _grows(job, llm, most, error.n_prompt):
                        raise
                except ContextTooShortError as error:
                    if error.needed > most or not _grows(job, llm, most, error.needed):
                        raise
        except Exception as error:
            job.fail(error)

    def _leave(self, job: Job) -> None:
        """End a turn; the last one of a job sends the last event, if it is over."""
        job.n_turns -= 1
        if job.n_turns == 0:
            self.running.remove(job)
            if job.has_more:  # before those for other models
                n = sum(1 for _ in takewhile(lambda one: one.model is job.model, self.waiting))
                self.waiting.insert(n, job)
            else:
                self.pace.count_end(bool(self.waiting), job.began_s, time.perf_counter())
                # Only now, when there is room: the client may send its next request at once.
                job.finish()
        self._changed.notify_all()
        self._wake()

    def _choose(self, job: Job, llm: LLM, choice: Choice[Answer], n_ctx_max: int) -> Work[None]:
        assert isinstance(job.request, CompletionRequest)
        report, failed = Report(job, llm, choice, self._step), ""
        with choice.open(report.prompt_is_read) as stream:
            report.stream = stream
            room = min(choice.sampling.max_tokens or _ROOM, llm.n_ctx // 4)
            n_wanted = stream.stats.n_prompt + room
            if n_wanted > llm.n_ctx and _grows(job, llm, n_ctx_max, n_wanted):
                return
            self.totals.began(stream)
            try:
                with job.reading(stream):
                    if choice.index == 0:
                        family = family_of(llm.chat_template or "")
                        job.unenforced = choice.unenforced
                        n_prompt = stream.stats.n_prompt
                        job.post(Started(job.model.id, family, n_prompt, choice.sampling))
                        with self._changed:
                            job.has_started = True
                            self._wake()
                    yield stream, report.chunk_came
            except Exception as error:
                failed = type(error).__name__
                raise
            finally:
                stats = stream.stats
                job.stats.append(stats)
                times_s = [*report.times_s, time.perf_counter()]
                operation, error_type = job.request.operation, failed or job.why
                self.totals.ended(stream, llm.name, operation, times_s, error_type)
        if not job.failed:
            if faults := choice.faults(stream.result, llm):
                LOG.warning("An answer does not fulfil its schema: %s.", "; ".join(faults))
                job.faults += faults
            why = job.why or ("timeout" if report.is_over else None)
            job.choice_ended(ChoiceEnded(choice.index, stream.result, why))


def _leaves_out(job: Job) -> bool:
    """Return whether a part of the prompt is left out where it is too long."""
    request = job.request
    return isinstance(request, CompletionRequest) and bool(request.drops_oldest or request.files)


def _grows(job: Job, llm: LLM, most: int, n_tokens: int) -> bool:
    """Let a job begin again with a longer context; return False if that is no help.

    Args:
        most: Length to which the context may grow.
        n_tokens: Tokens of the prompt, and of the answer if they are known.
    """
    n_ctx = min(most, max(2 * llm.n_ctx, n_tokens + n_tokens // 4))
    if job.why or job.has_started or n_ctx <= max(llm.n_ctx, job.tried):
        return False
    job.begin_again(n_ctx)
    return True


class Report:
    """Sends the events of a choice, in the thread of the engine.

    Attributes:
        times_s: Time when the job was created, and that of the first token.
    """

    def __init__(
        self, job: Job, llm: LLM, choice: Choice[Answer], step: Callable[[], None]
    ) -> None:
        assert isinstance(job.request, CompletionRequest)
        self.stream: Answer
        self.times_s: list[float] = [job.began_s]
        self._job, self._llm, self._index, self._step = job, llm, choice.index, step
        self._lines = LineReader(job.request.lines) if job.request.lines else None
        self._each, self._n_sent = job.request.each, -1

    @property
    def is_over(self) -> bool:
        return self._lines is not None and self._lines.is_over

    def prompt_is_read(self, progress: Progress) -> None:
        """Count a pass over the prompt, and send its progress if the request asks for it."""
        self._step()
        self._send_read(progress.done, self.stream.stats)

    def chunk_came(self, chunk: Chunk) -> None:
        """Send a chunk; cancel the stream behind the last line of an answer."""
        if chunk.tokens and len(self.times_s) == 1:
            self.times_s.append(time.perf_counter())
        self._step()
        if self._lines:
            stats = self.stream.stats
            text = self._lines.read(chunk.text, stats.total_s - stats.prompt_s)
            chunk = replace(chunk, text=text)
            if self._lines.is_over:
                self.stream.cancel()
        stats = self.stream.stats if self._each else _NO_STATS
        self._send_read(stats.n_prompt, stats)  # the last token is decoded with the answer
        self._job.post(ChunkEvent(chunk, named(self._llm, chunk), self._index, stats))

    def _send_read(self, n_read: int, stats: Stats) -> None:
        """Send how much of the prompt is read, first what was cached; each number once."""
        n_prompt, n_cached = stats.n_prompt, stats.n_cached
        for n, seconds in ((n_cached, 0.0), (n_read, stats.prompt_s)):
            if "progress" in self._each and n > self._n_sent:
                self._n_sent = n
                counts = Stats(n_prompt, n_cached=n_cached, prompt_s=seconds, total_s=seconds)
                self._job.post(PromptRead(n, counts, self._index))
