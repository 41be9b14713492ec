"""Exceptions before chosen bytecodes: more places than those at which Python handles signals."""

import dis
import sys
from pathlib import Path

import gguf_spec

PACKAGE = Path(gguf_spec.__file__).parent
_RETURNS = {dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap}


class Bytecodes:
    """A trace function that raises before one bytecode, at one of its executions."""

    def __init__(self, files):
        """Watch these files of the package."""
        self._files = {str(PACKAGE / file) for file in files}
        self._seen, self._left, self._place = {}, 0, None

    def _enter(self, frame, _event, _argument):
        if frame.f_code.co_filename not in self._files:
            return None
        frame.f_trace = self._step  # before the next line: Python 3.13 takes it only then
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame, event, _argument):
        if event == "opcode":
            place = frame.f_code, frame.f_lasti
            if self._place is None:
                self._seen[place] = self._seen.get(place, 0) + 1
            elif place == self._place:
                self._left -= 1
                if self._left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt(place)
        return self._step

    def places(self, request):
        """Return all bytecodes that a request executes, each with its count.

        Those that return a value are left out: Python handles no signal there, and no `try` covers them.
        """
        self._seen, self._place = {}, None
        self._traced(request)
        return [
            (place, n)
            for place, n in self._seen.items()
            if place[0].co_code[place[1]] not in _RETURNS
        ]

    def run(self, request, place):
        """Run a request, and raise before a bytecode that `places` returned."""
        self._place, n = place
        self._left = (n + 1) // 2  # in the middle of the request
        self._traced(request)

    def _traced(self, request):
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            request()
        finally:
            sys.settrace(before)


def spread(places, n):
    """Return all places, so ordered that the first `n` of them are spread evenly; 0: as they are.

    Some are not come by again, as costs are measured and drafts follow them: take others until `n` were.
    """
    step = max(1, len(places) // n) if n else 1
    return [place for first in range(step) for place in places[first::step]]


def described(place):
    (code, offset), n = place
    line = next((line for start, end, line in code.co_lines() if start <= offset < end), None)
    return f"{code.co_filename.removeprefix(str(PACKAGE))}:{line} ({code.co_name}, bytecode {offset}), time {(n + 1) // 2} of {n}"
