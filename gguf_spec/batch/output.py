"""The file with the results: matched to the lines, repaired, locked and appended to.

Results are in the order of the lines. The id of a result has a key of its line and a key of the
options, by which a later run knows what is done. Results that end before those of earlier lines
wait in a file beside it, so that nothing is answered twice. All records are whole lines: after a
kill -9 at any moment, only the last line of a file can be cut, and is ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ..errors import BatchFileError
from ..system.files import try_lock
from .requests import Line, LineResult

_KEY = re.compile(rb'\{"(?:request_)?id": "batch_req_([0-9a-f]{16})([0-9a-f]{8})"')
_BEGINNINGS = (b'{"id": "batch_req_', b'{"request_id": "batch_req_')
_SUCCESS = b'"error": null}\n'
# Seconds between two calls of fsync: so much is lost at most if the machine loses its power.
_SYNC_S = 1.0
_ANOTHER = "name another file for the results, or remove it to answer all lines again."


def key_of(line: Line, options: str) -> str:
    """Return the id of the result of a line.

    Args:
        line: The line.
        options: Digest of the options.
    """
    return f"batch_req_{line.digest[:16]}{options[:8]}"


class Output:
    """A file with results, or a stream such as a pipe, which has none yet.

    Attributes:
        n_done: Number of results in it.
        n_failed: Number of those that are errors.
        last: Number of the last line that has a result; 0 without one.
    """

    def __init__(self, target: Path | BinaryIO, clock: Callable[[], float] = time.monotonic):
        """Open the file.

        Args:
            target: The file, which is created if it does not exist, or a binary stream.
            clock: Returns a time in seconds.

        Raises:
            BatchFileError: It cannot be opened, or another process writes to it.
        """
        self.n_done = self.n_failed = self.last = 0
        self._options: bytes | None = None  # key of the options of all results
        self._clock, self._synced, self._is_synced = clock, clock(), True
        self._path, self._ahead = None, dict[int, bytes]()
        self._beside: Path | None = None
        self._beside_file: BinaryIO | None = None
        if not isinstance(target, Path):
            self._file: BinaryIO = target
            return
        self._path = target
        try:
            self._file = self._path.open("ab+", buffering=0)
        except OSError as error:
            raise cannot("written", self._path, error) from None
        if self._path.is_file():
            self._beside = self._path.with_name(f"{self._path.name}.ahead")
            if not try_lock(self._file.fileno()):
                self._file.close()
                fact = f"another process writes to {self._path}."
                hint = "wait for its end, or name another file for the results."
                raise BatchFileError(self._path, fact, hint)

    def match(self, lines: Iterator[Line]) -> None:
        """Read the results that are there, and as many lines; cut off an incomplete last result.

        Raises:
            BatchFileError: A line is not a result, or is the result of another line.
        """
        beside, self._beside = self._beside, None  # what is refused stays as it is
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
        self._check_options(found[2], self.n_done + 1)
        self._options, self.last = found[2], line.number
        self.n_done += 1
        self.n_failed += not data.endswith(_SUCCESS)

    def _read_ahead(self, path: Path) -> None:
        """Read the results that wait for those of earlier lines.

        Raises:
            BatchFileError: The file cannot be read, or is not one of gguf-spec.
        """
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
                    if self._options in (None, found[2]) and _is_json(data):
                        self._ahead[int(number)] = data
        except FileNotFoundError:
            return
        except OSError as error:
            raise cannot("read", path, error) from None

    def check_options(self, options: str) -> None:
        """Check that the results are those of the same options.

        Args:
            options: Digest of the options.

        Raises:
            BatchFileError: They are not.
        """
        self._check_options(options[:8].encode(), 1)

    def _check_options(self, key: bytes, number: int) -> None:
        if self._options not in (None, key):
            fact = f"the results in {self._path} are of another model or of other options."
            hint = f"repeat the command with the same options, or {_ANOTHER}"
            raise self._refusal(fact, hint, number)

    def waiting(self, line: Line, key: str) -> LineResult | None:
        """Return the result of a line that an earlier run has left beside the file, or None."""
        data = self._ahead.get(line.number, b"")
        found = _KEY.match(data)
        if not found or b"batch_req_%s%s" % found.groups() != key.encode():
            return None
        fault = None if data.endswith(_SUCCESS) else "The line failed."
        return LineResult(line.number, data, fault)

    def append(self, result: LineResult) -> None:
        """Append the result of the next line.

        Raises:
            OSError: It cannot be written.
        """
        self._write(self._file, result.data)
        self._ahead.pop(result.number, None)
        self.last = result.number
        self.n_done += 1
        self.n_failed += result.fault is not None
        self._is_synced = False
        if self._clock() - self._synced >= _SYNC_S:
            self.sync()

    def keep_ahead(self, result: LineResult) -> None:
        """Keep a result that ended before those of earlier lines.

        Raises:
            OSError: It cannot be written.
        """
        if self._beside is None:
            return
        if self._beside_file is None:
            self._beside_file = self._beside.open("ab", buffering=0)
            self._write(self._beside_file, b"\n")  # the last record may be cut
        self._write(self._beside_file, b"%d\t" % result.number + result.data)

    def none_ahead(self) -> None:
        """Forget the results that were kept ahead in this run: all are in the file now."""
        if self._beside_file and not self._ahead:
            self._beside_file.truncate(0)

    def _write(self, file: BinaryIO, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        file.flush()

    def sync(self) -> None:
        """Write the results to the disk."""
        if self._path and not self._is_synced:
            with contextlib.suppress(OSError):  # a pipe or a device
                os.fsync(self._file.fileno())
        self._synced, self._is_synced = self._clock(), True

    def close(self, is_whole: bool) -> None:
        """Close the file; further calls have no effect.

        Args:
            is_whole: Whether all results are in it.
        """
        if self._path is None or self._file.closed:
            return
        self.sync()
        if self._beside_file:
            self._beside_file.close()
        if self._beside and is_whole:
            self._beside.unlink(missing_ok=True)
        self._file.close()


def _begins(data: bytes) -> bool:
    """Return whether a line is a result, or the beginning of one."""
    return any(data[: len(one)] == one[: len(data)] for one in _BEGINNINGS)


def _is_json(data: bytes) -> bool:
    """Return whether a record was written to its end; a later one may follow one that was not."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def cannot(what: str, path: Path, error: OSError) -> BatchFileError:
    """Return the error about a file that cannot be read or written."""
    fact = f"{path} cannot be {what}: {error.strerror}."
    return BatchFileError(path, fact, "check the file, its folder and its permissions.")
