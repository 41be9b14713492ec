"""Files with many requests: one JSON object a line, answered to a file with one result a line."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import BatchFileError, InvalidOptionError
from ..runtime.many import Cancellation, run_all
from .output import Output, cannot, key_of
from .requests import Answerer, Line, LineDefaults, LineResult, read_lines

if TYPE_CHECKING:
    from ..runtime.llm import LLM

__all__ = ["Batch", "BatchProgress", "LineDefaults"]


@dataclass(frozen=True)
class BatchProgress:
    """State of a batch.

    Attributes:
        n_lines: Number of lines that are not blank; None for a stream, before its end.
        n_done: Number of lines with a result, those of earlier runs included.
        n_failed: Number of those whose result is an error.
        n_before: Number of lines that had a result before this run.
        n_tokens: Number of tokens that this run has generated.
        seconds: Time since the begin of this run.
    """

    n_lines: int | None
    n_done: int
    n_failed: int
    n_before: int
    n_tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second of this run, all requests together."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Expected time until the end, if the other lines take as long; None if it is unknown."""
        n_now = self.n_done - self.n_before
        if self.n_lines is None or not n_now:
            return None
        return (self.n_lines - self.n_done) * self.seconds / n_now


# Results that may wait for that of an earlier line, for each request that runs at once.
_AHEAD = 16


class Batch:
    """A file with requests, and the file with their results.

    Results that are there are kept: their lines are not answered again. After an interruption,
    another batch with the same files and options continues where it ended.
    """

    def __init__(
        self,
        source: str | Path | BinaryIO,
        target: str | Path | BinaryIO,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open both files, and find the lines that have a result.

        Args:
            source: The file with the requests, or a binary stream.
            target: The file with the results, which is created if it does not exist, or a binary
                stream. Only a file can be continued.
            clock: Returns a time in seconds.

        Raises:
            BatchFileError: A file cannot be opened, or the results are not those of the requests.
        """
        self._clock = clock
        source = Path(source) if isinstance(source, str) else source
        target = Path(target) if isinstance(target, str) else target
        self._created = 0
        self._n_lines: int | None = None
        with contextlib.ExitStack() as opened:  # closes the files if one of them is refused
            if isinstance(source, Path):
                source = opened.enter_context(self._open(source, target))
            self._output = Output(target, clock)
            opened.callback(lambda: self._output.close(self.is_done))
            self._lines = read_lines(source)
            self._output.match(self._lines)
            self._opened = opened.pop_all()
        self._n_before = self._output.n_done
        self._n_tokens, self._begun = 0, clock()
        self._counting = threading.Lock()  # only threads of requests take it

    def _open(self, source: Path, target: Path | BinaryIO) -> BinaryIO:
        """Open the file with the requests; count its lines unless it is a stream."""
        try:
            file = source.open("rb")
        except OSError as error:
            raise cannot("read", source, error) from None
        try:
            if isinstance(target, Path) and target.exists() and target.samefile(source):
                fact = f"{source} is both the file with the requests and that for the results."
                raise BatchFileError(source, fact, "name another file for the results.")
            if source.is_file():
                self._n_lines = sum(1 for _ in read_lines(file))
                self._created = int(source.stat().st_mtime)
                file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def progress(self) -> BatchProgress:
        """The state of the batch."""
        counts = self._output.n_done, self._output.n_failed, self._n_before, self._n_tokens
        return BatchProgress(self._n_lines, *counts, self._clock() - self._begun)

    @property
    def is_done(self) -> bool:
        """Whether all lines have a result; False for a stream before its end."""
        return self._n_lines == self._output.n_done

    def run(
        self,
        llm: LLM,
        defaults: LineDefaults | None = None,
        *,
        max_parallel: int | None = None,
        on_progress: Callable[[BatchProgress], object] | None = None,
        on_failed: Callable[[int, str], object] | None = None,
    ) -> BatchProgress:
        """Answer the lines without a result; return the state at the end.

        A line with an error gets a result that says so. If a callback raises, or Ctrl-C arrives,
        the running requests are cancelled; the results so far stay.

        Args:
            llm: The model.
            defaults: Options of the lines that do not set them; None uses `llm.sampling` for plain
                lines.
            max_parallel: Maximum number of requests at once; None takes `llm.parallel`.
            on_progress: Called with the state several times a second, in this thread.
            on_failed: Called with the number of each line with an error, and with the error.

        Raises:
            BatchFileError: The results that are there are of another model or other options.
            GgufSpecError: An option is invalid for the model.
        """
        n_threads = llm.parallel if max_parallel is None else max_parallel
        if n_threads < 1:
            raise InvalidOptionError("max_parallel", max_parallel, "a whole number above 0")
        defaults = defaults or LineDefaults(llm.sampling, chat=llm.prompt == "chat")
        options = defaults.digest(llm)
        self._output.check_options(options)
        defaults.check(llm)
        self._begun, cancellation = self._clock(), Cancellation()
        order = _Order(self._output, on_failed)
        answerer = Answerer(llm, defaults, self._created, cancellation, self._count)

        def tell() -> None:
            if on_progress:
                on_progress(self.progress)

        def on_end(_: Line, result: LineResult) -> None:
            order.put(result)
            tell()

        def answer(line: Line) -> LineResult:
            key = key_of(line, options)
            return self._output.waiting(line, key) or answerer.answer(line, key)

        run_all(
            order.numbered(self._lines),
            answer,
            on_end,
            n_threads=n_threads,
            cancellation=cancellation,
            on_wait=tell,
            may_begin=lambda: len(order.ahead) < _AHEAD * n_threads,
        )
        self._n_lines = self._output.n_done
        self.close()
        return self.progress

    def _count(self, n_tokens: int) -> None:
        with self._counting:
            self._n_tokens += n_tokens

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that the batch opened; further calls have no effect."""
        self._opened.close()


class _Order:
    """Brings results into the order of their lines.

    Attributes:
        ahead: Results that wait for that of an earlier line, by number.
    """

    def __init__(self, output: Output, on_failed: Callable[[int, str], object] | None) -> None:
        self._output, self._on_failed = output, on_failed
        self._begun: list[int] = []  # numbers of the lines without a result in the file, in order
        self.ahead: dict[int, LineResult] = {}

    def numbered(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines, and remember their order."""
        for line in lines:
            self._begun.append(line.number)
            yield line

    def put(self, result: LineResult) -> None:
        """Write a result, or keep it until those of all earlier lines are written."""
        if result.fault is not None and self._on_failed:
            self._on_failed(result.number, result.fault)
        self.ahead[result.number] = result
        if result.number != self._begun[0]:
            self._output.keep_ahead(result)
            return
        while self._begun and self._begun[0] in self.ahead:
            self._output.append(self.ahead.pop(self._begun[0]))
            del self._begun[0]
        if not self.ahead:
            self._output.none_ahead()
