"""Files with many requests, JSON lines or CSV rows, answered to files with one result for each."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..errors import BatchFileError
from ..options import check_types
from ..results import Chunk, Work
from ..runtime.many import Cancellation, checked_parallel, run_all
from ..system.files import remedy, try_lock, with_end
from ..system.process import OfOneProcess
from .requests import Answerer, Line, LineDefaults, LineResult, read_lines
from .table import Table

if TYPE_CHECKING:
    from ..engine import Answer
    from ..runtime.client import Client

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
        seconds: Time since the start of this run.
        n_cut: Number of answers of this run that ended at `max_tokens` or with a full context.
    """

    n_lines: int | None
    n_done: int
    n_failed: int
    n_before: int
    n_tokens: int
    seconds: float
    n_cut: int = 0

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


class Batch(OfOneProcess):
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
            source: The file with the requests, or a binary stream. A file `*.csv` has a request in
                each row: columns `prompt`, perhaps `id` and options, and others.
            target: The file with the results, which is created if it does not exist, or a binary
                stream. Only a file can be continued. With `*.csv` for both, the columns of the
                source and `text`, `finish_reason` and `error` are written when all rows have a
                result; until then they are in `*.csv.jsonl`.
            clock: Returns a time in seconds.

        Raises:
            BatchFileError: A file cannot be opened, or the results are not those of the requests.
        """
        check_types(source=source, target=target)
        self._clock = clock
        source = Path(source) if isinstance(source, str) else source
        target = Path(target) if isinstance(target, str) else target
        self._created = 0
        self._n_lines: int | None = None
        with contextlib.ExitStack() as opened:  # closes the files if one of them is refused
            self._table, self._csv = self._tables(source, target)
            target = with_end(self._csv, ".jsonl") if self._csv else target
            if isinstance(source, Path):
                source = opened.enter_context(self._open(source, self._csv or target))
            self._output = Output(target, clock)
            opened.callback(lambda: self._output.close(self.is_done))
            self._lines = self._table.lines() if self._table else read_lines(source)
            self._output.match(self._lines)
            self._opened = opened.pop_all()
        self._n_before = self._output.n_done
        self._n_tokens, self._n_cut, self._begun = 0, 0, clock()
        self._counting = threading.Lock()  # only threads of requests take it

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.progress}>"

    @staticmethod
    def _tables(
        source: Path | BinaryIO, target: Path | BinaryIO
    ) -> tuple[Table | None, Path | None]:
        """Return the table with the requests, and the CSV file for the results, if there are."""
        table = Table(source) if isinstance(source, Path) and _is_csv(source) else None
        if not (isinstance(target, Path) and _is_csv(target)):
            return table, None
        if not table:
            fact = f"{target} is for the results of a file of rows, and the requests are no such."
            raise BatchFileError(target, fact, "name requests with .csv, or results with .jsonl.")
        table.check_results()
        if target.exists() and not with_end(target, ".jsonl").exists():
            fact = f"{target} is there, and not of gguf-spec batch."
            raise BatchFileError(target, fact, "name another file for the results.")
        return table, target

    def _open(self, source: Path, target: Path | BinaryIO) -> BinaryIO:
        """Open the file with the requests; count its lines unless it is a stream."""
        try:
            file = source.open("rb")
        except OSError as error:
            raise _cannot("read", source, error) from None
        try:
            if isinstance(target, Path) and target.exists() and target.samefile(source):
                fact = f"{source} is both the file with the requests and that for the results."
                raise BatchFileError(source, fact, "name another file for the results.")
            if source.is_file():
                lines = self._table.lines() if self._table else read_lines(file)
                self._n_lines = sum(1 for _ in lines)
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
        return BatchProgress(self._n_lines, *counts, self._clock() - self._begun, self._n_cut)

    @property
    def is_done(self) -> bool:
        """Whether all lines have a result; False for a stream before its end."""
        return self._n_lines == self._output.n_done

    def run(
        self,
        llm: Client[Answer],
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
        check_types(llm=llm, on_progress=on_progress, on_failed=on_failed)
        cancellation = Cancellation(llm.engine.end_requests)
        n_at_once = checked_parallel(llm.parallel, max_parallel)
        defaults = defaults or LineDefaults(llm.sampling, chat=llm.prompt == "chat")
        options = defaults.digest(llm)
        self._output.check_options(options[:8].encode())
        defaults.check(llm)
        self._begun = self._clock()
        answerer = Answerer(llm, defaults, self._created, cancellation, self._count)

        def tell() -> None:
            if on_progress:
                on_progress(self.progress)

        def on_end(_: Line, result: LineResult) -> None:
            if result.fault is not None and on_failed:
                on_failed(result.number, result.fault)
            self._output.put(result)
            tell()

        def answer(line: Line) -> Work[LineResult]:
            key = f"batch_req_{line.digest[:16]}{options[:8]}"  # the id of the result
            return self._output.waiting(line, key) or (yield from answerer.answer(line, key))

        run_all(
            self._output.numbered(self._lines),
            answer,
            on_end,
            n_at_once=n_at_once,
            cancellation=cancellation,
            on_wait=tell,
            may_begin=lambda: len(self._output.ahead) < _AHEAD * n_at_once,
        )
        self._n_lines = self._output.n_done
        self.close()
        if self._table and self._csv:
            self._table.write(with_end(self._csv, ".jsonl"), self._csv)
        return self.progress

    def _count(self, chunk: Chunk) -> None:
        with self._counting:
            self._n_tokens += len(chunk.tokens)
            self._n_cut += chunk.finish_reason == "length"

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files that the batch opened; further calls have no effect."""
        self._opened.close()


_KEY = re.compile(rb'\{"(?:request_)?id": "batch_req_([0-9a-f]{16})([0-9a-f]{8})"')
_BEGINNINGS = (b'{"id": "batch_req_', b'{"request_id": "batch_req_')
_SUCCESS = b'"error": null}\n'
# Seconds between two calls of fsync: the most that is lost if the machine loses its power.
_SYNC_S = 1.0
_ANOTHER = "name another file for the results, or remove it to answer all lines again."


class Output:
    """The file with the results, matched to the lines, or a stream such as a pipe, which has none.

    Results are in the order of the lines. The id of a result has a key of its line and a key of the
    options, by which a later run knows what is done. Results that end before those of earlier lines
    wait in a file beside it, so that nothing is answered twice. All records are whole lines: after
    a kill -9 at any moment, only the last line of a file can be cut, and is ignored. A file that
    cannot be read or written, that another process writes to, or whose lines are no results or
    those of other lines or options, is a `BatchFileError`.

    Attributes:
        ahead: Results of this run that wait for that of an earlier line, by number.
        n_done: Number of results in it.
        n_failed: Number of those that are errors.
        last: Number of the last line that has a result; 0 without one.
    """

    last: int
    n_done: int
    n_failed: int

    def __init__(self, target: Path | BinaryIO, clock: Callable[[], float] = time.monotonic):
        """Open the file, which is created if it does not exist, or a binary stream."""
        self.n_done = self.n_failed = self.last = 0
        self._options: bytes | None = None  # key of the options of all results
        self._clock, self._synced, self._is_synced = clock, clock(), True
        self._path = None
        self._earlier: dict[int, bytes] = {}  # results that an earlier run has left beside the file
        self._begun: list[int] = []  # numbers of the lines without a result in the file, in order
        self.ahead: dict[int, LineResult] = {}
        self._beside: Path | None = None
        self._beside_file: BinaryIO | None = None
        if not isinstance(target, Path):
            self._file: BinaryIO = target
            return
        self._path, self._is_new = target, not os.path.lexists(target)
        try:
            self._file = self._path.open("ab+", buffering=0)
        except OSError as error:
            raise _cannot("written", self._path, error) from None
        if self._path.is_file():
            self._beside = with_end(self._path, ".ahead")
            if not try_lock(self._file.fileno()):
                self._file.close()
                fact = f"another process writes to {self._path}."
                hint = "wait for its end, or name another file for the results."
                raise BatchFileError(self._path, fact, hint)

    def match(self, lines: Iterator[Line]) -> None:
        """Read the results that are there, and as many lines; cut off an incomplete last result."""
        beside, self._beside = self._beside, None  # a refused file is not changed
        if beside is None or self._path is None:
            return
        n_whole = 0
        with self._path.open("rb") as file:
            for data in file:
                if not data.endswith(b"\n"):
                    if not _begins(data):
                        raise self._no_result()
                    break
                self._match(data, next(lines, None))
                n_whole += len(data)
        if n_whole < self._path.stat().st_size:
            os.ftruncate(self._file.fileno(), n_whole)
        self._read_ahead(beside)
        self._beside = beside

    def _no_result(self) -> BatchFileError:
        fact = f"line {self.n_done + 1:,} of {self._path} is not a result of gguf-spec batch."
        return self._refusal(fact)

    def _refusal(self, fact: str, hint: str = _ANOTHER, number: int = 0) -> BatchFileError:
        """Return the error about the next line of the file, or another one."""
        assert self._path
        return BatchFileError(self._path, fact, hint, number or self.n_done + 1)

    def _match(self, data: bytes, line: Line | None) -> None:
        found = _KEY.match(data)
        if not found:
            raise self._no_result()
        if line is None:
            raise self._refusal(
                f"{self._path} has results of more lines than the file with the requests has."
            )
        if found[1] != line.digest[:16].encode():
            raise self._refusal(
                f"line {self.n_done + 1:,} of {self._path} is not the result of line "
                f"{line.number:,} of the requests, which have changed."
            )
        self.check_options(found[2], self.n_done + 1)
        self._options, self.last = found[2], line.number
        self.n_done += 1
        self.n_failed += not data.endswith(_SUCCESS)

    def _read_ahead(self, path: Path) -> None:
        """Read the results that wait for those of earlier lines."""
        is_ours = False
        try:
            with path.open("rb") as file:
                for record in filter(bytes.strip, file):
                    number, _, data = record.partition(b"\t")
                    # The last record may be cut.
                    is_ours = is_ours or (number.isdigit() and _begins(data.rstrip()))
                    if not is_ours:
                        fact = f"{path} is not a file of gguf-spec batch."
                        raise BatchFileError(path, fact, "rename it, or name another OUT.jsonl.")
                    found = _KEY.match(data)
                    if not (found and number.isdigit() and int(number) > self.last):
                        continue
                    if self._options in (None, found[2]):
                        with contextlib.suppress(ValueError):  # it was not written to its end
                            json.loads(data)
                            self._earlier[int(number)] = data
        except FileNotFoundError:
            return
        except OSError as error:
            raise _cannot("read", path, error) from None

    def check_options(self, key: bytes, number: int = 1) -> None:
        """Check that the results, one of which is given, have the key of these options."""
        if self._options not in (None, key):
            fact = f"the results in {self._path} are of another model or of other options."
            hint = f"repeat the command with the same options, or {_ANOTHER}"
            raise self._refusal(fact, hint, number)

    def waiting(self, line: Line, key: str) -> LineResult | None:
        """Return the result of a line that an earlier run has left beside the file, or None."""
        data = self._earlier.get(line.number, b"")
        found = _KEY.match(data)
        if not found or b"batch_req_%s%s" % found.groups() != key.encode():
            return None
        fault = None if data.endswith(_SUCCESS) else "The line failed."
        return LineResult(line.number, data, fault)

    def numbered(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the lines, and remember their order for the results of a run."""
        self._begun, self.ahead = [], {}
        for line in lines:
            self._begun.append(line.number)
            yield line

    def put(self, result: LineResult) -> None:
        """Write a result, or keep it until those of all earlier lines are written."""
        self.ahead[result.number] = result
        if result.number != self._begun[0]:
            if self._beside:
                if self._beside_file is None:
                    self._beside.touch(os.fstat(self._file.fileno()).st_mode & 0o777)
                    self._beside_file = self._beside.open("ab", buffering=0)
                    self._write(self._beside_file, b"\n")  # the last record may be cut
                self._write(self._beside_file, b"%d\t" % result.number + result.data)
            return
        while self._begun and self._begun[0] in self.ahead:
            self._append(self.ahead.pop(self._begun[0]))
            del self._begun[0]
        if self._beside_file and not (self.ahead or self._earlier):
            self._beside_file.truncate(0)  # all results are in the file now

    def _append(self, result: LineResult) -> None:
        self._write(self._file, result.data)
        self._earlier.pop(result.number, None)
        self.last = result.number
        self.n_done += 1
        self.n_failed += result.fault is not None
        self._is_synced = False
        if self._clock() - self._synced >= _SYNC_S:
            self.sync()

    def _write(self, file: BinaryIO, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[file.write(rest) :]
            file.flush()
        except OSError as error:
            if self._path is None or isinstance(error, BrokenPipeError):
                raise
            raise _cannot("written", self._path, error) from None

    def sync(self) -> None:
        if self._path and not self._is_synced:
            with contextlib.suppress(OSError):  # a pipe or a device
                os.fsync(self._file.fileno())
        self._synced, self._is_synced = self._clock(), True

    def close(self, is_whole: bool) -> None:
        """Close the file; where all results are in it (`is_whole`), nothing stays beside it."""
        if self._path is None or self._file.closed:
            return
        self.sync()
        if self._beside_file:
            self._beside_file.close()
        if self._beside and is_whole:
            self._beside.unlink(missing_ok=True)
        is_empty = not (self._beside_file or os.fstat(self._file.fileno()).st_size)
        if self._is_new and is_empty and not is_whole:
            self._path.unlink(missing_ok=True)  # no result could be written
        self._file.close()


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv"


def _begins(data: bytes) -> bool:
    """Return whether a line is a result, or the beginning of one."""
    return any(data[: len(one)] == one[: len(data)] for one in _BEGINNINGS)


def _cannot(what: str, path: Path, error: OSError) -> BatchFileError:
    fact = f"{path} cannot be {what}: {error.strerror}."
    return BatchFileError(path, fact, f"{remedy(error)}.")
