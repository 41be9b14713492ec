"""GBNF rules for texts up to a marker, or without one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

# GBNF of a text in which special tokens may be written by their names.
Sym = Callable[[str], str]


def quoted(text: str) -> str:
    """Return a GBNF literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def symbols(names: Iterable[str], token: Callable[[str], int | None]) -> Sym:
    """Return a function from a text to its GBNF.

    Args:
        names: Names of special tokens.
        token: Returns the id of a control token, which has no text, or None.
    """
    pattern = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))

    def sym(text: str) -> str:
        parts = re.split(f"({pattern})", text) if pattern else [text]
        return " ".join(_symbol(part, token if i % 2 else None) for i, part in enumerate(parts)
                        if part)  # fmt: skip

    return sym


def _symbol(text: str, token: Callable[[str], int | None] | None) -> str:
    id_ = token(text) if token else None
    return quoted(text) if id_ is None else f"<[{id_}]>"


def char_class(chars: Iterable[str]) -> str:
    """Return the inside of a GBNF character class."""
    return "".join(
        re.sub(r"[\\\]\[^\n\t-]", lambda m: f"\\x{ord(m[0]):02X}", char) for char in chars
    )


def until(
    marks: Mapping[str, str], name: str, sym: Sym, may_end: bool, not_first: str = ""
) -> Iterator[str]:
    """Yield rules for a text up to the first marker; the rule `<name>` is the first one.

    Each rule is a state: the longest end of the text that begins a marker.

    Args:
        marks: Marker -> GBNF after it.
        name: Name of the rules.
        sym: GBNF of a marker, if it is a special token without text.
        may_end: Whether the text may end without a marker.
        not_first: Inside of a class of characters with which the text must not begin.
    """
    states = sorted({word[:n] for word in marks for n in range(len(word))}, key=len)
    letters = sorted({letter for word in marks for letter in word})
    rules = {state: f"{name}-{i}" if i else name for i, state in enumerate(states)}
    again = f"{name}-{len(states)}" if not_first else name
    tokens = [
        f"{symbol} {after}".rstrip()
        for word, after in marks.items()
        if (symbol := sym(word)).startswith("<")
    ]
    for state in [*states, *([""] if not_first else [])]:
        is_first = bool(not_first) and rules[state] == name
        parts = ['""'] if may_end else []
        known = []
        for letter in letters:
            read = state + letter
            whole = next((word for word in marks if read.endswith(word)), None)
            after = next(read[i:] for i in range(len(read) + 1) if read[i:] in rules)
            if whole is not None:
                parts.append(f"{quoted(letter)} {marks[whole]}".rstrip())
            elif after:
                parts.append(f"{quoted(letter)} {rules[after]}")
            if whole is not None or after:
                known.append(letter)
        others = char_class(known) + (not_first if is_first else "") or "\\x00"
        parts += [f"[^{others}] {again}", *tokens]
        yield f"{rules[state]} ::= {' | '.join(parts)}"
        if is_first:
            rules[""] = again
