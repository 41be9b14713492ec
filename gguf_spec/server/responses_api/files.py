"""Files with text in the input of the Responses API."""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

from ..errors import ApiError, bad

MOST_BYTES = 1 << 20  # of one file
_KEYS = {"type", "filename", "file_data", "detail", "prompt_cache_breakpoint"}
_NAME_LENGTH_MAX = 256
_DATA_URL = re.compile(r"data:([\w.+/-]*)((?:;[\w.+-]+=[^;,]*)*);base64,", re.ASCII)
# Media types of text that do not begin with `text/`.
_TEXT_TYPES = frozenset(
    f"application/{name}"
    for name in (
        "json", "jsonl", "x-ndjson", "xml", "yaml", "x-yaml", "toml", "javascript",
        "x-javascript", "typescript", "sql", "x-sh", "x-python",
    )
)  # fmt: skip


def read_file(part: dict[str, Any], at: str) -> str:
    """Return the text of a part of the type `input_file`, as a code block with the file's name.

    Args:
        part: The part.
        at: Its place in the request.

    Raises:
        ApiError: It is not a text in UTF-8 as a data URL, or too large. The error names the field.
    """
    for name, value in part.items():
        if name not in _KEYS and value is not None:
            fact = f"{at}.{name[:100]} is not supported: send the text of the file in file_data."
            raise ApiError(fact, f"{at}.{name[:100]}", "unsupported_parameter")
    name = part.get("filename") or "file"
    if not isinstance(name, str) or len(name) > _NAME_LENGTH_MAX or not name.isprintable():
        raise bad(f"{at}.filename", f"must be a line of at most {_NAME_LENGTH_MAX} characters.")
    return f"File {name}:\n{_fenced(_text_of(part.get('file_data'), f'{at}.file_data'))}"


def _text_of(url: Any, at: str) -> str:
    head = _DATA_URL.match(url) if isinstance(url, str) else None
    if not head:
        raise bad(at, "must be a data URL: data:text/plain;base64,...")
    kind = head[1].lower() or "text/plain"
    if not (kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml"))):
        fact = f"{at} has the type {kind[:60]}: only files with text are supported."
        raise ApiError(fact, at, "unsupported_parameter")
    encoded = url[head.end() :]
    if len(encoded) > MOST_BYTES * 4 // 3 + 4:
        raise bad(at, f"may contain at most {MOST_BYTES:,} bytes.")
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8-sig")
    except (binascii.Error, UnicodeDecodeError):
        raise bad(at, "must be the Base64 form of a text in UTF-8.") from None
    if "\0" in text:
        raise bad(at, "must be a text, without zero characters.")
    return text


def _fenced(text: str) -> str:
    """Return a text as a code block, whose fence is longer than any in the text."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{text.removesuffix(chr(10))}\n{fence}"
