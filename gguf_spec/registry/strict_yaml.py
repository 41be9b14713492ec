"""Strict YAML reader for untrusted files.

Each value has its line and key, which error messages report. Size and depth are limited. Aliases
are rejected, so the data cannot grow while it is parsed. Tags never create objects.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..errors import InvalidModelsFileError

# Maximum file size in bytes. Without PyYAML's C extension a file of this size takes seconds.
_BYTES_MAX = 1 << 16
_DEPTH_MAX = 32  # maximum number of nested lists and mappings
# The C loader gives the same result ten times as fast.
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER_MAX = 2**64  # largest absolute value of a whole number
_TAG = "tag:yaml.org,2002:"
_NULL, _TEXT, _INT = _TAG + "null", _TAG + "str", _TAG + "int"
_SCALARS = (_NULL, _TEXT, _INT, _TAG + "float", _TAG + "bool")
_PLAIN = "text, a number up to 2**64, true, false, a list or a mapping"
HINT = "correct or remove that line; the package's own models.yaml has examples of each key."


def read_yaml(path: Path) -> Value:
    """Return the root value of a YAML file.

    Raises:
        InvalidModelsFileError: The file is unreadable or is not valid YAML.
    """
    text, problem, line = _read_text(path), "", None
    try:
        _check_events(path, text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem, line = (
            (error.problem or error.context or "")[:200],
            mark.line + 1 if mark else None,
        )
    except yaml.reader.ReaderError:
        control = yaml.reader.Reader.NON_PRINTABLE.search(text)
        problem, line = (
            "there is a control character",
            text.count("\n", 0, control.start()) + 1 if control else None,
        )
    except (ValueError, OverflowError):
        problem = "a number in an escape sequence or a version is too large"
    else:
        if node:
            return Value(path, "", node)
        raise InvalidModelsFileError(
            path, "the file is empty.", "add entries under `models:`, or write `models: {}`."
        )
    hint = (
        "correct that line; YAML requires spaces instead of tabs, and quotes around text with `: ` "
        "or ` #` in it."
    )
    raise InvalidModelsFileError(path, f"the file is not valid YAML: {problem}.", hint, line)


def _check_events(path: Path, text: str) -> None:
    """Reject aliases and deep nesting before nodes are created.

    Aliases would grow, and deep nesting would overflow the stack.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else None
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > _DEPTH_MAX:
            raise InvalidModelsFileError(
                path,
                f"this is nested deeper than {_DEPTH_MAX} levels.",
                "an entry takes three, sampling a few more.",
                line,
            )
        if isinstance(event, yaml.AliasEvent):
            raise InvalidModelsFileError(
                path, "aliases (*name) are not supported.", "write the value itself.", line
            )


def close_hint(word: str, words: Collection[str]) -> str | None:
    """Return a hint with the closest word, or None."""
    close = difflib.get_close_matches(word[:100], sorted(words), n=1)
    return f"did you mean {close[0]}?" if close else None


@dataclass(frozen=True)
class Value:
    """A value of a YAML file with its position.

    Attributes:
        file: The file.
        key: The key with its parent keys, as in `models.smollm2-1.7b.draft`.
        node: The YAML node.
    """

    file: Path
    key: str
    node: yaml.Node

    def error(self, message: str, hint: str) -> InvalidModelsFileError:
        """Return an error at this position."""
        return InvalidModelsFileError(
            self.file, message, hint, self.node.start_mark.line + 1, self.key
        )

    def wrong(self, allowed: str, hint: str = HINT) -> InvalidModelsFileError:
        """Return an error with the actual value and the allowed values."""
        shown = {_TAG + "map": "a mapping", _TAG + "seq": "a list"}.get(self.node.tag)
        untagged = isinstance(self.node, yaml.ScalarNode) and self.node.tag in _SCALARS
        shown = shown or (
            _short(self.node.value) if untagged else f"tagged {_short(self.node.tag)}"
        )
        return self.error(f"{self.key or 'the file'} is {shown} but must be {allowed}.", hint)

    def items(self) -> list[tuple[Value, Value]]:
        """Return the pairs of a mapping; each key value is named like its value."""
        if not isinstance(self.node, yaml.MappingNode) or self.node.tag != _TAG + "map":
            raise self.wrong("a mapping, `key: value` on each line")
        pairs, seen = [], set()
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Value(self.file, self.key, key).error(
                    f"{self.key} has a list or a mapping as a key.", HINT
                )
            part = (
                key.value
                if key.value.isprintable() and 0 < len(key.value) <= 80
                else _short(key.value)
            )
            name = f"{self.key}.{part}" if self.key else part
            pairs.append((Value(self.file, name, key), Value(self.file, name, value)))
            if key.value in seen:
                raise pairs[-1][0].error(f"{name} occurs twice.", "remove one of them.")
            seen.add(key.value)
        return pairs

    def fields(self, known: Collection[str], *, null: bool = False) -> dict[str, Value]:
        """Return the values of a mapping by key, without null values unless `null`."""
        given = {}
        for key, value in self.items():
            if key.node.value not in known:
                close = close_hint(key.node.value, known)
                raise key.error(
                    f"{key.key} is an unknown key.",
                    close or f"the keys are {', '.join(known)}.",
                )
            if null or value.node.tag != _NULL:
                given[key.node.value] = value
        return given

    def need(self, given: Mapping[str, Value], key: str) -> Value:
        """Return a required field."""
        if key not in given:
            raise self.error(
                f"{self.key} has no {key}.",
                "an entry needs repo, file and revision, package and file, or the path of a file "
                "on this disk.",
            )
        return given[key]

    def elements(self) -> list[Value]:
        """Return the elements of a list."""
        if not isinstance(self.node, yaml.SequenceNode) or self.node.tag != _TAG + "seq":
            raise self.wrong("a list", "write [a, b], or one line with `- ` for each.")
        return [
            Value(self.file, f"{self.key}[{i}]", value) for i, value in enumerate(self.node.value)
        ]

    def text(self) -> str:
        """Return text of one line."""
        if self.node.tag != _TEXT or not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong("text", "put it in quotes if it is text.")
        if not self.node.value or not self.node.value.isprintable():
            raise self.wrong(
                "text on one line",
                "remove control characters and line breaks, or omit the key.",
            )
        return str(self.node.value)

    def hexadecimal(self, n_digits: int) -> str:
        """Return text of `n_digits` hexadecimal digits."""
        if not re.fullmatch(f"[0-9a-f]{{{n_digits}}}", self.text()):
            raise self.wrong(
                f"{n_digits} hexadecimal digits",
                "copy all digits from the hub; a branch, a tag or a short form is not accepted.",
            )
        return self.text()

    def whole_number(self) -> int:
        """Return a whole number above 0."""
        number = self.plain() if self.node.tag == _INT else 0
        if not 0 < number < 2**63:
            raise self.wrong("a whole number above 0")
        return int(number)

    def plain(self) -> Any:
        """Return the value as a plain Python value.

        The types are text, numbers, True, False, None, and lists and dictionaries of these.
        """
        if isinstance(self.node, yaml.MappingNode):
            return {key.plain(): value.plain() for key, value in self.items()}
        if isinstance(self.node, yaml.SequenceNode):
            return [one.plain() for one in self.elements()]
        if self.node.tag not in _SCALARS:
            raise self.wrong(_PLAIN)
        try:
            value = yaml.constructor.SafeConstructor().construct_object(self.node)
        # Raised for a number tag on other text, and for thousands of digits.
        except (ValueError, LookupError, OverflowError, yaml.YAMLError):
            raise self.wrong(_PLAIN) from None
        if isinstance(value, int) and abs(value) > _NUMBER_MAX:
            raise self.wrong(_PLAIN)
        return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _read_text(path: Path) -> str:
    data = b""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidModelsFileError(path, "it is not a file.", "name a YAML file.")
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            raise InvalidModelsFileError(
                path,
                f"it has more than {_BYTES_MAX:,} bytes.",
                "check the path; an entry has about 400 bytes.",
            )
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidModelsFileError(
            path, "the file is not UTF-8 text.", "save it as UTF-8.", line
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidModelsFileError(
            path,
            f"it cannot be read ({reason}).",
            "check its path and its permissions.",
        ) from None
