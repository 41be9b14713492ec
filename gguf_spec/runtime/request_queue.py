"""Queue of the requests of an LLM: turns of threads, and requests that share passes.

Turns: one at a time, in order of arrival. Each change is a single list operation, which no
exception can leave half done. A thread that Ctrl-C interrupts therefore keeps no turn, and repeated
calls of `leave` have no effect. The locks only wake waiting threads. These also poll, so that a
lost wake-up delays them only by the poll interval. The turn of a stream that is garbage-collected
ends without a finalizer, because Python drops a Ctrl-C that arrives inside of one: the queue looks
whether the stream is still there.

The thread of the engine computes what is listened to, and all requests that share passes. Ctrl-C
never reaches it. With one slot it takes over the turn of the stream.

Requests that share passes come from any thread and are started in order of arrival, as soon as
slots are free. The thread that reads a stream waits for its chunks. A stream that is not read holds
a few chunks; then its request waits, and the others go on without it. The thread of the engine has
the turn while requests run. When another ticket waits, it starts no further request, and leaves
when the running ones are done.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from weakref import ref

from ..errors import BusyError, ClosedError, ForkedError
from ..llama.samplers import dry_penalties
from ..llama.sequence import CachedSequence
from ..results import POLL_S, Chunk, Ended, Listener, SlotState
from ..sampling import native
from ..speculative.pair import ModelPair
from ..speculative.scheduler import Scheduler, SlotPair, Task
from ..system.process import Held, OfOneProcess
from .generation import Generation, Request, check_request
from .prefix_cache import Found, PrefixStore, prepare_slot, reads_prefix
from .stream import Stream

T = TypeVar("T")

# Seconds between two looks of a thread that waits for its turn.
_TURN_POLL_S = 0.1
# Chunks that a stream holds before its request waits for its reader.
MOST_UNREAD = 64
# Seconds of one wait for a chunk.
_WAIT_S = 0.25
# Seconds between two searches for streams without a reader.
_COLLECT_S = 1.0
# Seconds that the end of the program waits for running passes, and for a callback.
_EXIT_S, _CALLBACK_S = 60.0, 2.0

_NUMBERS = itertools.count(1)


class Ticket:
    """A thread's place in the queue.

    Attributes:
        number: Position in the order of all tickets of this process.
        thread: Id of the thread.
        stream: The stream that uses the turn, or None.
    """

    def __init__(self) -> None:
        self.number: int = next(_NUMBERS)
        self.thread: int = threading.get_ident()
        self.stream: ref[Any] | None = None
        self._called = threading.Lock()
        self._called.acquire()

    def call(self) -> None:
        with suppress(RuntimeError):  # already woken
            self._called.release()

    def wait(self) -> None:
        """Wait until woken, at most one poll interval."""
        self._called.acquire(timeout=_TURN_POLL_S)


class Turns:
    """Queue of tickets; the first one has the turn."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []

    @property
    def first(self) -> Ticket | None:
        """The ticket that has the turn, or None; those of garbage-collected streams leave."""
        while (first := next(iter(self.tickets), None)) and first.stream and not first.stream():
            self._remove(first)
        return first

    def has_others(self, ticket: Ticket) -> bool:
        return any(one is not ticket for one in [*self.tickets])

    def join(self, ticket: Ticket, meanwhile: Callable[[], object] | None = None) -> None:
        """Wait for the turn, and call `meanwhile` repeatedly until then.

        If this raises, the caller must call `leave`.
        """
        self.tickets.append(ticket)
        while self.first is not ticket:
            if meanwhile:
                meanwhile()
            ticket.wait()

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket from the queue; no effect if it is not in it. Safe from any thread."""
        self._remove(ticket)
        first = self.first
        if first:
            first.call()

    def _remove(self, ticket: Ticket) -> None:
        with suppress(ValueError):
            self.tickets.remove(ticket)


class QueuedRequest:
    """A request that the thread of the engine computes, or is about to.

    Attributes:
        generation: The generation of the request.
        ticket: The turn that it has taken; None where the engine takes one for several requests.
        prompt: Token ids of the prompt.
        thread: Id of the thread that made it, and then of the one that reads it.
        stream: Returns the stream that reads it; a job without one is cancelled.
        task: Its task, once it is started.
        has_ended: Its last chunk or its error is in the queue.
    """

    has_ended: bool

    def __init__(self, generation: Generation, ticket: Ticket | None = None) -> None:
        self.generation: Generation = generation
        self.ticket: Ticket | None = ticket
        self.prompt: list[int] = [*generation.prompt]
        self.thread: int = threading.get_ident()
        self.stream: Callable[[], Stream | None] = lambda: None
        self.task: Task[CachedSequence] | None = None
        self.has_ended = False
        self._out: SimpleQueue[Chunk | Ended] = SimpleQueue()
        self._listener = Listener(self._out.put, lambda: self._out.qsize() >= MOST_UNREAD)
        self._error: BaseException | None = None

    @property
    def is_full(self) -> bool:
        """Whether its reader is behind; an error of the reader ends the request."""
        try:
            return self._listener.is_full()
        except BaseException as error:
            self._error, self.generation.cancelled = error, True
            return False

    @property
    def is_open(self) -> bool:
        return not (self.has_ended or self.stream() is None)

    def listen(self, stream: Stream, listener: Listener) -> None:
        """Give a function all events; the request holds its stream, and no thread waits for it."""
        self._listener, self.stream, self.thread = listener, lambda: stream, 0

    def check_reader(self) -> None:
        """Cancel a request whose stream was garbage-collected."""
        if self.stream() is None:
            self.generation.cancelled = True

    def run(
        self, slots: SlotPair[CachedSequence], wait: Callable[[], object]
    ) -> BaseException | None:
        """Compute the request in this thread; return the error that it ended with.

        `wait` is called again and again while the reader is behind.
        """
        try:
            for chunk in self.generation.run(slots):
                self._deliver(chunk)
                self.check_reader()
                while self.is_full and not self.generation.cancelled:
                    wait()
        except BaseException as error:  # a callback may raise anything, such as SystemExit
            return error
        return None

    def body(self, scheduler: Scheduler[CachedSequence], slots: SlotPair[CachedSequence]) -> None:
        """Run the request inside the scheduler."""
        self.end(self.run(slots, scheduler.park))

    def end_cancelled(self) -> bool:
        """End a request that waits if it is cancelled; return whether it is."""
        self.check_reader()
        if self.generation.cancelled:
            try:
                self._deliver(self.generation.cancelled_chunk())
                self.end(None)
            except BaseException as error:
                self.end(error)
        return self.generation.cancelled

    def _deliver(self, chunk: Chunk) -> None:
        self.generation.call_back(self.generation.on_chunk or self._listener.call, chunk)

    def end(self, error: BaseException | None) -> None:
        """Tell the reader once that no more chunks come."""
        if not self.has_ended:
            self.has_ended, self.stream = True, lambda: None
            self._listener.end(error or self._error)

    def chunks(self, submit: Callable[[QueuedRequest], None]) -> Generator[Chunk, None, None]:
        """Submit the request, and yield its chunks as they come.

        It waits in pieces: on Windows, Ctrl-C arrives only between two waits.
        """
        submit(self)
        while True:
            try:
                one = self._out.get(timeout=_WAIT_S)
            except Empty:
                if sys.is_finalizing():  # the thread of the engine does not go on
                    raise ClosedError from None
                continue
            if isinstance(one, Chunk):
                yield one
            elif one.error:
                raise one.error
            else:
                return


class RequestQueue(Turns, OfOneProcess):
    """Requests of an LLM with one slot: each runs in the thread that reads its stream.

    What is listened to runs in the thread of the engine, which starts with the first such stream.

    Attributes:
        is_closed: A request raises an error when it has the turn.
        error: The error.
    """

    is_closed: bool
    pair: ModelPair[CachedSequence]

    error: type[ClosedError] = ClosedError

    def __init__(self, pair: ModelPair[CachedSequence], kept: PrefixStore) -> None:
        """Create an empty queue.

        Args:
            pair: The models; only the ticket that has the turn may use them.
            kept: Texts that no slot holds any more.
        """
        super().__init__()
        self.pair, self._kept = pair, kept
        self.is_closed = False
        # Requests for the thread of the engine, in order of arrival, and those that it computes.
        # Each access is a single list operation.
        self._queue: list[QueuedRequest] = []
        self._running: list[QueuedRequest] = []
        self._wakes: SimpleQueue[object] = SimpleQueue()
        self._is_idle = True
        self._thread: threading.Thread | None = None

    def open(self, request: Request) -> Stream:
        """Wait for the turn, and return the stream of a request, which has the turn until its end.

        Raises:
            GgufSpecError: The request cannot run.
            BusyError, ClosedError: As for `take`.
        """
        ticket = Ticket()
        return self.in_turn(partial(self._open, request, ticket), ticket=ticket)

    def _open(self, request: Request, ticket: Ticket) -> Stream:
        # In a frame of its own: a kept traceback must not hold the stream of `open`.
        generation = self._generation(request)
        chunks = generation.run(self.pair.slots[0])

        def listen(stream: Stream, listener: Listener) -> None:
            self._listen(QueuedRequest(generation, ticket), stream, listener)

        stream = Stream(generation, chunks, partial(self._release, ticket), listen)
        ticket.stream = ref(stream)
        return stream

    def _release(self, ticket: Ticket) -> None:
        """Release the turn of a stream, unless the engine has it, which does so itself."""
        if not any(job.ticket is ticket for job in self._jobs()):
            self.leave(ticket)

    def _generation(self, request: Request) -> Generation:
        self._check(request)
        if request.speculation.k:
            self.pair.measure()
        return Generation(request, self.pair, self._kept, dry_penalties, native.chooser)

    def _listen(self, job: QueuedRequest, stream: Stream, listener: Listener) -> None:
        """Let the thread of the engine compute a stream; the engine releases the turn."""
        self.check_open()
        if job.ticket:
            job.ticket.thread = 0  # none waits for itself
        job.listen(stream, listener)
        self._submit(job)

    def _submit(self, job: QueuedRequest) -> None:
        try:
            self._start()
        except RuntimeError:  # Python is ending
            raise self.error from None
        self._queue.append(job)
        self._wake()

    def _wake(self) -> None:
        """Wake the engine; who waits for the turn repeats it, as Ctrl-C may prevent it once."""
        if self._queue:
            self._wakes.put(None)

    def _start(self) -> None:
        """Start the thread of the engine, if it does not run."""
        if self._thread is None:
            # It holds no reference to the queue while it has no work, so that an LLM without
            # references frees its memory.
            given = self._wakes, ref(self, self._wakes.put)
            name = "gguf-spec-engine"
            self._thread = threading.Thread(target=_serve, args=given, name=name, daemon=True)
            _queues.add(self)
        if not self._thread.is_alive():  # Ctrl-C may have come before it was started
            self._thread.start()

    def _give_up(self) -> object:
        _queues.discard(self)
        self.is_closed, self.error = True, ForkedError
        self.tickets.clear()
        kept = self._running, self._queue, self._thread
        self._running, self._queue, self._thread = [], [], None
        return self, kept

    def check_open(self) -> None:
        """Check that requests may come.

        Raises:
            ClosedError: The LLM is closed, was loaded before a fork, or Python is ending.
        """
        if self.is_closed or sys.is_finalizing():  # threads that have the turn never go on then
            raise self.error

    def _check(self, request: Request) -> None:
        self.check_open()
        check_request(request, self.pair.target)
        self.pair.check(request.speculation)

    def slots(self) -> tuple[SlotState, ...]:
        """Return the state of each slot. May be called from any thread."""
        target, first = self.pair.target, self.first
        stream = first.stream() if first and first.stream else None
        if not (first and stream):
            return (SlotState(0, target.n_ctx, target.n_cached, None),)
        stats = stream.stats
        n_tokens = min(stats.n_prompt + stats.n_generated, target.n_ctx)
        return (SlotState(0, target.n_ctx, n_tokens, first.number),)

    def check_thread(self) -> None:
        """Check that this thread may wait for the turn.

        Raises:
            BusyError: It would wait for itself.
        """
        first = self.first
        if first and first.thread == threading.get_ident():
            raise BusyError

    def take(self, ticket: Ticket) -> None:
        """Wait for the turn. If this raises, the caller must remove the ticket from the queue.

        Raises:
            BusyError: This thread would wait for itself.
            ClosedError: The LLM is closed.
        """
        self.check_open()
        self.check_thread()
        self.join(ticket, self._wake)
        self.check_open()

    def in_turn(
        self,
        do: Callable[[], T],
        take: Callable[[Ticket], object] | None = None,
        ticket: Ticket | None = None,
    ) -> T:
        """Call `do` while this thread has the turn, and release it, on any exception, too.

        Args:
            do: Called with the turn.
            take: Waits for the turn; None for `take`.
            ticket: The ticket; a stream that `do` gives to it keeps the turn. None for a new one.
        """
        ticket = ticket or Ticket()
        try:
            try:
                (take or self.take)(ticket)
                return do()
            finally:
                if not ticket.stream:
                    self.leave(ticket)
        except BaseException:
            self.leave(ticket)  # Ctrl-C may arrive just before the first call
            raise

    def close(self, free: Callable[[], None]) -> None:
        """End all requests finally, and call `free` with the turn.

        At the end of Python nothing happens: the system frees the memory.

        Raises:
            BusyError: This thread is inside a round, or has the turn.
        """
        if sys.is_finalizing():
            return
        self.cancel()
        self.is_closed = True  # waiting threads raise ClosedError on their turn
        self.in_turn(free, lambda ticket: self.join(ticket, self.cancel))

    def cancel(self) -> None:
        """Close an open stream; a stream of another thread ends after its current round.

        Raises:
            BusyError: As for `close`.
        """
        self._cancel_jobs()
        first = self.first
        stream = first.stream() if first and first.stream else None
        if first and first.thread == threading.get_ident():
            if stream:
                stream.close()
            if self.first is first:
                raise BusyError
        elif stream:
            stream.abort()

    def stop(self) -> None:
        """Cancel all that the engine computes finally; wait until it and short callbacks end."""
        self.is_closed = True
        self._cancel_jobs()
        end = time.monotonic() + _EXIT_S
        while not self._is_idle and time.monotonic() < end:
            if any(job.generation.called_back_s > _CALLBACK_S for job in self._jobs()):
                return
            time.sleep(POLL_S)  # no Event: Ctrl-C in its Python code leaves its lock taken

    def _cancel_jobs(self) -> None:
        for job in self._jobs():
            job.generation.cancelled = True
        self._wakes.put(None)

    def _jobs(self) -> list[QueuedRequest]:
        return [*self._queue, *self._running]  # in this order none is missed

    # ---- the thread of the engine

    def work(self) -> None:
        """Compute the requests of streams that have the turn, one after another."""
        while self._queue:
            self._is_idle = False
            self._running = [job := self._queue[0]]
            del self._queue[0]
            ticket = job.ticket
            assert ticket
            ticket.thread, error = threading.get_ident(), None
            # A stream that was closed meanwhile may have lost the turn.
            if not (is_cancelled := job.end_cancelled()):
                error = job.run(self.pair.slots[0], partial(time.sleep, POLL_S))
            self._running = []
            self.leave(ticket)
            if not is_cancelled:
                job.end(error)
            self._is_idle = True


class ParallelQueue(RequestQueue):
    """Requests of an LLM with several slots: the thread of the engine runs them."""

    def __init__(self, pair: ModelPair[CachedSequence], kept: PrefixStore) -> None:
        """Start the thread."""
        super().__init__(pair, kept)
        self.scheduler: Scheduler[CachedSequence] | None = None
        self._collect_at = 0.0
        self._start()

    @property
    def n_running(self) -> int:
        return len(self._running)

    @property
    def n_waiting(self) -> int:
        return len(self._queue)

    def slots(self) -> tuple[SlotState, ...]:
        pairs = sorted(self.pair.slots, key=lambda one: one.target.index)
        tasks = [pair.task for pair in pairs]
        return tuple(
            SlotState(i, pair.target.n_ctx, pair.target.n_cached, task.number if task else None)
            for i, (pair, task) in enumerate(zip(pairs, tasks, strict=True))
        )

    def open(self, request: Request) -> Stream:
        """Return the stream of a request, which starts when the stream is first read.

        Raises:
            BusyError: This thread runs the scheduler, or holds as many unfinished streams as there
                are slots.
        """
        self._check_streams(len(self.pair.slots))
        job = QueuedRequest(self._generation(request))
        chunks = job.chunks(self._submit_read)
        stream = Stream(job.generation, chunks, lambda: None, partial(self._listen, job))
        job.stream = ref(stream)
        return stream

    def _submit_read(self, job: QueuedRequest) -> None:
        """Put a request into the queue, in the thread that reads it.

        Raises:
            BusyError: As for `open`: the streams may have been opened before any was read.
        """
        self.check_open()
        super().check_thread()
        self._check_streams(len(self.pair.slots))
        job.thread = threading.get_ident()
        self._submit(job)

    def check_thread(self) -> None:
        """Check that this thread may wait for the turn, and has no open stream."""
        super().check_thread()
        self._check_streams(1)

    def _check_streams(self, n_most: int) -> None:
        """Check that this thread may wait for the slots.

        Args:
            n_most: Number of unfinished streams of this thread from which it may not.

        Raises:
            BusyError: It would wait for itself.
        """
        me = threading.get_ident()
        mine = [job for job in self._jobs() if job.thread == me and job.is_open]
        if (self._thread and me == self._thread.ident) or len(mine) >= n_most:
            raise BusyError

    # ---- the thread of the engine

    def work(self) -> None:
        ticket = Ticket()
        while self._queue:
            try:
                self.join(ticket, self._drop_cancelled)
                self._is_idle = False  # before the check, so that `stop` sees one of both
                self.check_open()
                self._run(ticket)
            except Exception as error:
                self._fail(error)
            finally:
                self._is_idle = True
                self.leave(ticket)

    def _fail(self, error: Exception) -> None:
        """End all requests with an error, and give the scheduler up."""
        for job in self._jobs():
            if not job.has_ended:
                job.end(error)
        self._queue.clear()
        scheduler, self._running, self.scheduler = self.scheduler, [], None
        if scheduler:
            with suppress(ClosedError):
                scheduler.forget()

    def _drop_cancelled(self) -> None:
        """End the requests that were cancelled while they wait."""
        for job in [*self._queue]:
            if job.end_cancelled():
                self._queue.remove(job)

    def _run(self, ticket: Ticket) -> None:
        """Run requests until none is left, or another ticket waits for the turn."""
        scheduler = self.scheduler = self.pair.scheduler(self.scheduler)
        scheduler.on_lost = partial(self._kept.save_and_restore, tokens=(), found=Found())
        while True:
            self._drop_cancelled()
            if not self.has_others(ticket) and not self.is_closed:
                self._admit(scheduler)
            if not self._running:
                return
            for job in self._running:
                job.check_reader()
                if job.task and (job.generation.cancelled or not job.is_full):
                    job.task.is_parked = False
            if not scheduler.step():
                self._wait(ticket)
            self._running = [job for job in self._running if not job.has_ended]

    def _admit(self, scheduler: Scheduler[CachedSequence]) -> None:
        """Start waiting requests on free slots.

        A request whose prompt begins as one that is being read waits until it can copy that part.
        """
        for job in [*self._queue]:
            if not scheduler.free:
                return
            others = [one.prompt for one in self._running if not one.generation.cancelled]
            try:
                if reads_prefix(scheduler.pairs, others, job.prompt, self._kept):
                    continue
                self._queue.remove(job)
                self._running.append(job)
                scheduler.hold_rows()  # saving a cache may need a pass
                slots = prepare_slot(scheduler.pairs, job.prompt, self._kept)
                job.task = scheduler.start(slots, partial(job.body, scheduler, slots))
                job.task.rests = job.generation.rest_by(scheduler.yield_to_others)
            except Exception as error:  # an unusual one, which ends this request only
                if job in self._queue:
                    self._queue.remove(job)
                for slot in (slot for pair in scheduler.free for slot in pair.slots):
                    slot.forget()  # it may be half copied or restored
                job.end(error)

    def _wait(self, ticket: Ticket) -> None:
        """Wait for a new request while all running ones wait for their readers.

        If others wait for slots or for the turn, streams without a reader are looked for: an
        exception can leave one in a reference cycle, which only the garbage collector finds.
        """
        is_awaited = self._queue or self.has_others(ticket)
        if is_awaited and time.monotonic() > self._collect_at:
            gc.collect()
            self._collect_at = time.monotonic() + _COLLECT_S
        with suppress(Empty):
            self._wakes.get(timeout=POLL_S)


def _serve(wakes: SimpleQueue[object], queue: ref[RequestQueue]) -> None:
    while True:
        wakes.get()
        alive = queue()
        if alive is None:
            return
        alive.work()
        del alive


_queues: Held[RequestQueue] = Held()


@atexit.register
def _stop_all() -> None:
    """End all requests with the program: Python must not end a thread inside of a greenlet."""
    for queue in _queues:
        queue.stop()
