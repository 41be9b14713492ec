"""One request at a time, in order; a request that fails releases its turn."""

import threading

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.errors import BusyError, ClosedError, InvalidOptionError
from gguf_spec.runtime.request_queue import Ticket, Turns
from tests.support.bytecodes import Bytecodes, described
from tests.support.fakes import FakeModel, fake_llm, random_table

LIMIT_S = 20
FREE = Sampling(temperature=1.0, max_tokens=20, seed=1)
TABLE = random_table(np.random.default_rng(3), 6)


def llm_of(**options):
    return fake_llm(FakeModel(TABLE, **options), FakeModel(TABLE), Speculation(3, adaptive=False))


def in_threads(work, n):
    threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    return threads


def join_all(threads):
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), "it waits for ever"


def wait_until(condition):
    waited = threading.Event()
    for _ in range(LIMIT_S * 100):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came")


def test_turns_are_in_the_order_of_the_requests():
    line, first, order = Turns(), Ticket(), []

    def take(i):
        ticket = Ticket()
        line.join(ticket)
        order.append(i)
        line.leave(ticket)

    line.join(first)
    threads = []
    for i in range(5):
        threads += in_threads(lambda _, i=i: take(i), 1)
        wait_until(lambda i=i: len(line.tickets) == i + 2)
    assert order == []
    line.leave(first)
    line.leave(first)
    join_all(threads)
    assert order == [0, 1, 2, 3, 4]
    assert line.first is None


def test_a_ticket_removed_before_its_turn_and_one_never_called():
    line, first, second, third = Turns(), Ticket(), Ticket(), Ticket()
    line.join(first)
    line.tickets.append(second)
    threads = in_threads(lambda _: line.join(third), 1)
    wait_until(lambda: third in line.tickets)
    line.leave(second)
    assert line.first is first
    line.tickets.remove(first)  # as where Ctrl-C comes before the call
    join_all(threads)
    assert line.first is third


def test_an_interrupt_at_any_bytecode_of_taking_and_leaving():
    way = Bytecodes(["runtime/request_queue.py"])

    def use(line):
        ticket = Ticket()
        try:
            try:
                line.join(ticket)
            finally:
                line.leave(ticket)
        except BaseException:
            line.leave(ticket)
            raise

    line = Turns()
    places = way.places(lambda: use(line))
    assert len(places) > 50
    for place in places:
        line = Turns()
        with pytest.raises(KeyboardInterrupt):
            way.run(lambda line=line: use(line), place)
        assert line.first is None, described(place)


def test_an_error_in_a_round_that_is_a_value_error_is_not_taken_for_the_end(monkeypatch):
    llm = llm_of()

    def fails(*_):
        raise InvalidOptionError("tokens", 1, "other ones")

    monkeypatch.setattr(llm.engine.target, "logits", fails)
    with pytest.raises(InvalidOptionError):
        llm.generate("ab", FREE)
    monkeypatch.undo()
    assert len(llm.generate("ab", FREE).tokens) == 20


def test_waiting_requests_get_an_error_on_close():
    llm, opened, done, raised = llm_of(), threading.Event(), threading.Event(), []

    def hold(_):
        with llm.stream("ab", FREE) as stream:
            next(stream)
            opened.set()
            done.wait(LIMIT_S)

    def wait(_):
        try:
            llm.generate("ab", FREE)
        except ClosedError as error:
            raised.append(error)

    holder = in_threads(hold, 1)
    assert opened.wait(LIMIT_S)
    waiting = in_threads(wait, 4)
    wait_until(lambda: len(llm.engine.queue.tickets) == 5)
    closers = in_threads(lambda _: llm.close(), 3)
    join_all([*closers, *waiting])
    assert len(raised) == 4
    done.set()
    join_all(holder)


def test_close_waits_for_a_stream_that_is_about_to_be_opened(monkeypatch):
    """The stream does not exist yet when `close` looks for it; `close` must not wait for an idle reader."""
    llm, begun, go, done = llm_of(), threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(llm.engine.pair, "check", lambda _: (begun.set(), go.wait(LIMIT_S)))

    def hold(_):
        stream = llm.stream("ab", FREE)
        done.wait(LIMIT_S)
        stream.close()

    holder = in_threads(hold, 1)
    assert begun.wait(LIMIT_S)
    closer = in_threads(lambda _: llm.close(), 1)
    wait_until(lambda: len(llm.engine.queue.tickets) == 2)
    go.set()
    join_all(closer)
    done.set()
    join_all(holder)


def test_close_during_a_round_of_the_same_thread_is_refused():
    llm, raised = llm_of(), []

    def close(_):
        try:
            llm.close()
        except BusyError as error:
            raised.append(error)

    llm.generate_tokens([0, 1], FREE, on_token=close)
    assert raised
    assert len(llm.generate("ab", FREE).tokens) == 20
    with llm.models(), pytest.raises(BusyError):
        llm.close()
    llm.close()
    with pytest.raises(ClosedError):
        llm.generate("ab", FREE)


def test_what_waits_for_its_turn_does_not_run_after_the_end():
    """Such as an embedding or a session: it would use models that are freed."""
    with llm_of() as llm:
        queue, ticket, outcomes = llm.engine.queue, Ticket(), []
        queue.take(ticket)

        def wait(_):
            try:
                queue.in_turn(lambda: outcomes.append("ran"))
            except ClosedError:
                outcomes.append("refused")

        threads = in_threads(wait, 1)
        wait_until(lambda: len(queue.tickets) == 2)
        queue.is_closed = True
        queue.leave(ticket)
        join_all(threads)
        assert outcomes == ["refused"]
        queue.is_closed = False
