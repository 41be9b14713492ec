"""The child process that computes for the server: results, errors, and what is cut off."""

import os
import subprocess
import threading

import pytest

from gguf_spec.edit import EditPlan
from gguf_spec.errors import InvalidOptionError
from gguf_spec.system import helper, subprogram
from gguf_spec.system.helper import Helper, HelperError
from tests.support.hanging import for_ever

LONG_S = 120.0


@pytest.fixture
def one():
    with_child = Helper()
    yield with_child
    with_child.close()
    assert with_child._process is None


def test_one_child_answers_one_call_after_the_other(one):
    first = one.call(LONG_S, os.getpid)
    assert first != os.getpid()
    assert one.call(LONG_S, EditPlan, "a = 1\n", "rename a to b").result_by_code().text == "b = 1\n"
    assert one.call(LONG_S, os.getpid) == first


def test_errors_are_those_of_the_function(one):
    with pytest.raises(InvalidOptionError) as caught:
        one.call(LONG_S, EditPlan, "a", " ")
    assert caught.value.option == "instruction"
    with pytest.raises(ZeroDivisionError):
        one.call(LONG_S, divmod, 1, 0)
    assert one.call(LONG_S, divmod, 7, 2) == (3, 1)


def test_a_regular_expression_is_cut_off_and_the_next_call_has_another_child(one):
    first = one.call(LONG_S, os.getpid)
    with pytest.raises(HelperError, match=r"takes more than 0\.2 s"):
        one.call(0.2, for_ever)
    assert one.call(LONG_S, os.getpid) not in (first, os.getpid())


@pytest.mark.skipif(os.name != "posix", reason="there is no limit of memory")
def test_memory_is_limited(one):
    one.call(LONG_S, len, "a")
    with pytest.raises(HelperError, match="takes too much memory"):
        one.call(LONG_S, bytes, 2 * helper.MEMORY)
    assert one.call(LONG_S, len, "a") == 1


def test_what_a_function_prints_is_no_answer(one, capfd):
    assert one.call(LONG_S, print, "printed") is None
    assert one.call(LONG_S, os.system, "echo by a program") == 0
    assert one.call(LONG_S, len, "abc") == 3
    assert capfd.readouterr().out == ""


def test_closing_ends_a_running_call(one):
    begun = threading.Event()

    def call():
        one.call(LONG_S, os.getpid)
        begun.set()
        with pytest.raises(HelperError):
            one.call(LONG_S, for_ever)
        begun.clear()

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(LONG_S)
    while thread.is_alive():
        one.close()
        thread.join(0.05)
    assert not begun.is_set()


def test_a_child_ends_with_its_parent(one):
    one.call(LONG_S, len, "a")
    process = one._process
    process.stdin.close()
    assert process.wait(LONG_S) == 0
    process.stdout.close()
    one._process = None


def test_without_children_it_runs_here(one, monkeypatch):
    monkeypatch.setattr(subprogram, "refusal", lambda: "there is no interpreter")
    monkeypatch.setattr(subprocess, "Popen", None)
    assert one.call(LONG_S, os.getpid) == os.getpid()
    assert helper.__name__ in subprogram.PROGRAMS
