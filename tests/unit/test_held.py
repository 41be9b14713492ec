"""Objects that are remembered while others hold them: nothing of it runs in Python when one goes."""

import gc
import sys
from pathlib import Path

import gguf_spec
from gguf_spec.system.process import Held


class One:
    pass


def test_an_object_is_forgotten_when_nobody_holds_it():
    held, some = Held(), [One() for _ in range(5)]
    for one in some:
        held.add(one)
        held.add(one)
    assert sorted(map(id, held)) == sorted(map(id, some))
    held.discard(some[0])
    held.discard(One())
    del some[1], one
    gc.collect()
    assert sorted(map(id, held)) == sorted(map(id, some[1:]))
    for one in held:  # those of the time of the call
        held.discard(one)
    assert not [*held]
    held.add(some[0])
    held.clear()
    assert not [*held]


def test_no_python_code_runs_when_an_object_goes():
    """Ctrl-C in a callback of a WeakSet is printed and lost: no caller gets an exception from there."""
    held, calls, one = Held(), [], One()
    held.add(one)
    sys.setprofile(
        lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None
    )
    try:
        del one
    finally:
        sys.setprofile(None)
    assert not calls and not [*held]
    package = Path(gguf_spec.__file__).parent
    assert not [
        path for path in package.rglob("*.py") if "WeakSet(" in path.read_text(encoding="utf-8")
    ]
