"""Run a batch: its lines in, its results out, in the order of the lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO

from ..errors import BatchFileError, InvalidOptionError
from ..runtime.many import Cancellation, run_all
from .answers import Answerer, LineResult
from .defaults import LineDefaults
from .lines import Line, read_lines
from .output import Output, key_of, open_source
from .progress import BatchProgress

if TYPE_CHECKING:
    from ..runtime.llm import LLM

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
        self._opens = isinstance(source, Path)
        self._source = self._open(source, target) if isinstance(source, Path) else source
        try:
            self._output = Output(target, clock)
        except BaseException:
            self._close_source()
            raise
        try:
            self._lines = read_lines(self._source)
            self._output.match(self._lines)
        except BaseException:
            self.close()
            raise
        self._n_before = self._output.n_done
        self._n_tokens, self._begun = 0, clock()
        self._counting = threading.Lock()  # only threads of requests take it

    def _open(self, source: Path, target: Path | BinaryIO) -> BinaryIO:
        file = open_source(source)
        try:
            if isinstance(target, Path) and target.exists() and target.samefile(source):
                raise BatchFileError(
                    source,
                    f"{source} is both the file with the requests and that for the results.",
                    "name another file for the results.",
                )
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
        output = self._output
        return BatchProgress(
            self._n_lines,
            output.n_done,
            output.n_failed,
            self._n_before,
            self._n_tokens,
            self._clock() - self._begun,
        )

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
        answerer = Answerer(
            llm,
            defaults,
            lambda line: key_of(line, options),
            self._created,
            cancellation,
            self._count,
        )
        order = _Order(self._output, on_failed)

        def tell() -> None:
            if on_progress:
                on_progress(self.progress)

        def on_end(_: Line, result: LineResult) -> None:
            order.put(result)
            tell()

        def answer(line: Line) -> LineResult:
            done = self._output.waiting(line, key_of(line, options))
            return done or answerer.answer(line)

        run_all(
            order.numbered(self._lines),
            answer,
            on_end,
            n_threads=n_threads,
            cancellation=cancellation,
            on_wait=tell,
            may_begin=lambda: order.n_ahead < _AHEAD * n_threads,
        )
        self._n_lines = self._output.n_done
        self.close()
        return self.progress

    def _count(self, n_tokens: int) -> None:
        with self._counting:
            self._n_tokens += n_tokens

    def __enter__(self) -> Batch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that the batch opened; further calls have no effect."""
        self._output.close(self.is_done)
        self._close_source()

    def _close_source(self) -> None:
        if self._opens:
            self._source.close()


class _Order:
    """Brings results into the order of their lines."""

    def __init__(self, output: Output, on_failed: Callable[[int, str], object] | None) -> None:
        self._output, self._on_failed = output, on_failed
        self._begun: list[int] = []  # numbers of the lines without a result in the file, in order
        self._ahead: dict[int, LineResult] = {}

    @property
    def n_ahead(self) -> int:
        """Number of results that wait for that of an earlier line."""
        return len(self._ahead)

    def numbered(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines, and remember their order."""
        for line in lines:
            self._begun.append(line.number)
            yield line

    def put(self, result: LineResult) -> None:
        """Write a result, or keep it until those of all earlier lines are written."""
        if result.fault is not None and self._on_failed:
            self._on_failed(result.number, result.fault)
        self._ahead[result.number] = result
        if result.number != self._begun[0]:
            self._output.keep_ahead(result)
            return
        while self._begun and self._begun[0] in self._ahead:
            self._output.append(self._ahead.pop(self._begun[0]))
            del self._begun[0]
        if not self._ahead:
            self._output.none_ahead()
