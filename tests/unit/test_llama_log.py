"""llama.cpp's log: kept for error messages, and no place where Ctrl-C is lost."""

import ctypes
import gc
import signal
import sys
from functools import partial
from operator import methodcaller

import pytest

from gguf_spec.llama import log as module
from gguf_spec.llama.log import log, verbose


@pytest.fixture(autouse=True)
def clean():
    log.clear()
    yield
    log.clear()


def loading(level, line):
    module.lines_callback(level, line, None)


def decoding(level, line):
    module.last_callback(level, line, None)


def test_while_a_model_is_loaded_warnings_and_errors_are_kept():
    loading(1, b"load: fine\n")
    loading(3, b"llama_x: a warning\n")
    loading(4, b"  \n")
    loading(4, b"\xff is not UTF-8\n")
    assert [*log] == ["llama_x: a warning", "\N{REPLACEMENT CHARACTER} is not UTF-8"]
    assert log.last == "\N{REPLACEMENT CHARACTER} is not UTF-8"
    for i in range(100):
        loading(3, b"line %d\n" % i)
    assert (len([*log]), log.last) == (20, "line 99")
    log.clear()
    assert ([*log], log.last) == ([], "")


def test_afterwards_the_last_of_each_level_is_kept():
    for i in range(1000):
        decoding(1, b"set_n_threads: %d\n" % i)
    assert log.last == ""
    decoding(4, b"decode: failed to find a slot\n")
    decoding(3, b"decode: a warning\n")
    decoding(1, b"set_n_threads: 1\n")
    assert [*log] == ["decode: a warning", "decode: failed to find a slot"]
    assert log.last == "decode: failed to find a slot"
    log.clear()
    assert log.last == ""


def test_the_complete_log_goes_to_stderr_only_on_request(capfd):
    loading(3, b"quiet\n")
    verbose.set()
    try:
        loading(1, b"loud\n")
    finally:
        verbose.clear()
    assert capfd.readouterr().err == "loud\n"


def test_an_interrupt_in_a_line_of_the_log_is_not_lost(monkeypatch):
    """The signal is pending when llama.cpp calls back: no bytecode runs between both calls.

    Hypothesis has a callback in Python for the garbage collector, so that is off meanwhile.
    """
    lost, before = [], signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    log_a_line = partial(module.last_callback, 1, b"set_n_threads: 1", None)
    calls = [partial(ctypes.CDLL(None)["raise"], signal.SIGINT), log_a_line]
    try:
        with pytest.raises(KeyboardInterrupt):
            list(map(methodcaller("__call__"), calls))
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    assert not lost
    assert module._last == {1: b"set_n_threads: 1"}


def test_a_loaded_model_does_not_log_into_python(tales, monkeypatch):
    """Else Ctrl-C is lost whenever the number of threads changes."""
    with tales.models() as (target, _):
        target.native.context(module.C.llama_set_n_threads, 1, 1)
    assert 1 in module._last
