"""CSV files of a batch: a row is a plain line, and its result is in further columns."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import BatchFileError
from ..options import Sampling
from ..system.files import atomic_write, remedy
from .requests import LINE_BYTES, Line

# Columns that are fields of a line, beside the options; all others are only kept.
_TEXTS = ("prompt", "id")
_OPTIONS = frozenset(one.name for one in fields(Sampling))
# Columns of a result.
RESULTS = ("text", "finish_reason", "error")
_DELIMITERS = ",;\t"


class Table:
    """A CSV file with requests: UTF-8, a header, and the same number of columns in each row.

    Commas, semicolons or tabs are between the columns. What is no such file is a `BatchFileError`
    with the number of the line.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._delimiter = path, ","
        try:
            with path.open("rb") as file:
                self._has_bom = file.read(3) == b"\xef\xbb\xbf"
            self.columns: list[str] = self._header()
        except OSError as error:
            fact = f"{path} cannot be read: {error.strerror}."
            raise BatchFileError(path, fact, f"{remedy(error)}.") from None
        twice = next((one for one in self.columns if self.columns.count(one) > 1), None)
        if twice is not None:
            raise self._refusal(1, f'has two columns "{twice[:60]}"')

    def _header(self) -> list[str]:
        """Return the columns; what is between them is what makes one of them the prompt."""
        faults: list[BatchFileError] = []
        for self._delimiter in _DELIMITERS:
            try:
                columns = next((row for _, row in self._read()), [])
            except BatchFileError as error:
                faults.append(error)
                continue
            if "prompt" in columns:
                return columns
        if faults:
            raise faults[0]
        raise self._refusal(1, 'has no column "prompt" in its first line')

    def _refusal(self, number: int, fact: str) -> BatchFileError:
        hint = "the first line names the columns, and each row has all of them."
        return BatchFileError(self._path, f"{self._path} {fact}.", hint, number)

    def _read(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows that are not blank, with the numbers of their first lines."""
        csv.field_size_limit(LINE_BYTES)
        number = 1
        with self._path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=self._delimiter, strict=True)
            try:
                for row in reader:
                    if row:
                        yield number, row
                    number = reader.line_num + 1
            except (csv.Error, UnicodeDecodeError) as error:
                what = "no UTF-8" if isinstance(error, UnicodeDecodeError) else error
                raise self._refusal(number, f"is not CSV in line {number:,}: {what}") from None

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows behind the header, with the numbers of their first lines."""
        rows = self._read()
        next(rows, None)
        n = len(self.columns)
        for number, row in rows:
            if len(row) != n:
                fact = f"has {len(row):,} columns in line {number:,}, and {n:,} in its first line"
                raise self._refusal(number, fact)
            yield number, row

    def lines(self) -> Iterator[Line]:
        """Yield the rows as plain lines; cells that are empty set no option."""
        for number, row in self.rows():
            body: dict[str, Any] = {}
            for name, cell in zip(self.columns, row, strict=True):
                if name == "prompt" or (name == "id" and cell):
                    body[name] = cell
                elif name in _OPTIONS and cell:
                    body[name] = _value(cell)
            data = json.dumps(body, ensure_ascii=False).encode()
            yield Line(number, data, hashlib.sha256(b"%d:%b" % (number, data)).hexdigest())

    def check_results(self) -> None:
        """Check that the columns of the results have names of their own."""
        if both := next((one for one in RESULTS if one in self.columns), None):
            raise self._refusal(1, f'has a column "{both}", which the results add: rename it')

    def write(self, results: Path, target: Path) -> None:
        """Write the rows with their results, which are in a file of lines of JSON."""
        encoding = "utf-8-sig" if self._has_bom else "utf-8"
        try:
            with (
                atomic_write(target, private=False) as part,
                results.open("rb") as lines,
                part.open("w", encoding=encoding, newline="") as file,
            ):
                writer = csv.writer(file, delimiter=self._delimiter)
                writer.writerow([*self.columns, *RESULTS])
                for (_, row), line in zip(self.rows(), lines, strict=True):
                    found = json.loads(line)
                    error = (found.get("error") or {}).get("message", "")
                    told = found.get("text", ""), found.get("finish_reason", ""), error
                    writer.writerow([*row, *told])
        except OSError as error:
            fact = f"{target} cannot be written: {error.strerror}."
            raise BatchFileError(target, fact, f"{remedy(error)}.") from None


def _value(cell: str) -> Any:
    """Return the value of an option: a number, a truth value, a list, or else the text."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell
