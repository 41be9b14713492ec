"""Lines of a file with requests, and the keys that connect them with their results."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

# Maximum length of a line in bytes: that of a request body over HTTP.
LINE_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Line:
    """A line that is not blank.

    Attributes:
        number: Its number, from 1; blank lines count.
        data: Its bytes without white space around them; None if it is longer than `LINE_BYTES`.
        digest: SHA-256 of number and bytes, in hexadecimal digits.
    """

    number: int
    data: bytes | None
    digest: str


def read_lines(file: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a file that are not blank; only one of them is in memory."""
    number = 0
    while data := file.readline(LINE_BYTES + 1):
        number += 1
        hashed, is_whole = hashlib.sha256(b"%d:" % number), len(data) <= LINE_BYTES
        if is_whole:
            data = data.removeprefix(_BOM) if number == 1 else data
            data = data.strip()
        hashed.update(data)
        if not is_whole:
            while data and not data.endswith(b"\n"):
                data = file.readline(LINE_BYTES)
                hashed.update(data)
        if data or not is_whole:
            yield Line(number, data if is_whole else None, hashed.hexdigest())
