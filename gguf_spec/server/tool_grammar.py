"""Grammars for answers that must be tool calls, or must call tools as their schemas demand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..errors import InvalidOptionError
from ..grammar.json_schema import BUILT_IN_RULES, to_gbnf, to_rules
from .errors import bad
from .tool_calls import CLOSE, MISTRAL, OPEN, Form
from .tools import ToolUse

_ARGS = "[ARGS]"
# White space that may stand before a call, so that a text must not begin with it.
_BLANK = r" \t\n\r\x0B\x0C\x1C-\x1F\x85\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"


def tool_grammar(
    use: ToolUse, form: Form, template: str, token: Callable[[str], int | None], schema: Any
) -> str:
    """Return a grammar for answers that call tools, or otherwise follow a schema or are text.

    A call follows the schema of its tool. If a schema cannot be converted and the tool is not
    strict, the arguments may be any object.

    Args:
        use: The tools, and how they may be called.
        form: Form of a call for this model.
        template: The chat template.
        token: Returns the id of a control token that is written like a text, or None.
        schema: Schema of an answer that calls no tool; None for any text.

    Raises:
        ApiError: The schema of a strict tool, or `schema`, cannot be converted.
    """
    calls = list(_calls(use, form, _ARGS in template, token))
    rules = [f"call ::= {' | '.join(name for name, _ in calls)}"]
    rules += [line for _, lines in calls for line in lines]
    rules.append(f"calls ::= {_sequence(use, form, _ARGS in template, token)}")
    if form == "hermes":
        more = f"({_quoted(chr(10))} calls)?" if use.parallel else ""
        rules.append(f"rest ::= call {more}")
    if use.required:
        return _grammar(["root ::= calls", *rules])
    if schema is not None:
        try:
            rules += _rules(schema, "answer-")
        except InvalidOptionError as error:
            raise bad("response_format", f"cannot be used: {_why(error)}") from None
        return _grammar(["root ::= calls | answer-root", *rules])
    return _grammar([*(_around_tags() if form == "hermes" else _text(use.names, form)), *rules])


def _grammar(rules: Iterable[str]) -> str:
    return "\n".join([*rules, *BUILT_IN_RULES]) + "\n"


def _calls(
    use: ToolUse, form: Form, has_args: bool, token: Callable[[str], int | None]
) -> Iterator[tuple[str, list[str]]]:
    """Yield for each tool the name of the rule for its call, and its rules."""
    for i, tool in enumerate(use.tools):
        function = tool["function"]
        if function["name"] not in use.names:
            continue
        name, arguments = json.dumps(function["name"]), f"t{i}-root"
        if form == "mistral" and has_args:
            body = f"{_quoted(function['name'])} {_mark(_ARGS, token)} {arguments}"
        else:
            key = "parameters" if form == "llama" else "arguments"
            body = f'{_quoted(f"""{{"name": {name}, "{key}": """)} {arguments} "}}"'
        if form == "hermes":  # after the opening tag
            body = f"{_quoted(chr(10))} {body} {_quoted(chr(10) + CLOSE)}"
        yield f"t{i}-call", [f"t{i}-call ::= {body}", *_arguments(use, function, i)]


def _arguments(use: ToolUse, function: dict[str, Any], i: int) -> list[str]:
    try:
        return _rules({"type": "object"} | function["parameters"], f"t{i}-")
    except InvalidOptionError as error:
        if function["name"] in use.strict:
            param = f"tools[{i}].function.parameters"
            raise bad(param, f"cannot be used with strict: {_why(error)}") from None
        return to_rules({"type": "object"}, f"t{i}-")


def _rules(schema: Any, prefix: str) -> list[str]:
    to_gbnf(schema)  # checks the rules
    return to_rules(schema, prefix)


def _sequence(use: ToolUse, form: Form, has_args: bool, token: Callable[[str], int | None]) -> str:
    """Return the body of the rule for one call, or for several if they are allowed."""
    if form == "llama":
        return "call"
    if form == "hermes":
        return f"{_quoted(OPEN)} rest"
    mark = _mark(MISTRAL, token)
    if has_args:
        return f"{mark} call ({mark} call)*" if use.parallel else f"{mark} call"
    return f'{mark} "[" call (", " call)* "]"' if use.parallel else f'{mark} "[" call "]"'


def _around_tags() -> Iterator[str]:
    """Yield the rules for a text in which every tag begins a call that ends the text.

    State `s<i>` has read the first `i` characters of a tag. The tag has its first character only
    once, so that character always leads to `s1`.
    """
    first, n = OPEN[0], len(OPEN)
    yield "root ::= s0"
    for i, char in enumerate(OPEN):
        again = f" | {_quoted(first)} s1" if i else ""
        after = f"s{i + 1}" if i + 1 < n else "rest"
        others = f"[^{char}{first if i else ''}] s0"
        yield f's{i} ::= {_quoted(char)} {after}{again} | {others} | ""'


def _text(names: Iterable[str], form: Form) -> Iterator[str]:
    """Yield the rules for calls, or a text that does not begin like a call."""
    words = ["{"] if form == "llama" else ["[", *(n + c for n in names for c in "[{")]
    yield "root ::= calls | text"
    yield from _unlike(words, "text")
    yield "any ::= [^\\x00]*"


def _unlike(words: list[str], rule: str, at: int = 0) -> Iterator[str]:
    """Yield rules for texts that begin with none of some words, which share `at` characters."""
    groups: dict[str, list[str]] = {}
    for word in words:
        groups.setdefault(word[at], []).append(word)
    parts = ['""', f"[^{_class(groups)}{'' if at else _BLANK}] any"]
    below = []
    for i, (char, group) in enumerate(groups.items()):
        if not any(len(word) == at + 1 for word in group):
            parts.append(f"{_quoted(char)} {rule}-{i}")
            below.append((group, f"{rule}-{i}"))
    yield f"{rule} ::= {' | '.join(parts)}"
    for group, name in below:
        yield from _unlike(group, name, at + 1)


def _mark(text: str, token: Callable[[str], int | None]) -> str:
    """Return the symbol for a marker: its control token, or its text."""
    id_ = token(text)
    return _quoted(text) if id_ is None else f"<[{id_}]>"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _class(chars: Iterable[str]) -> str:
    return "".join(re.sub(r"([\\\]\[^-])", lambda m: f"\\x{ord(m[0]):02X}", char) for char in chars)


def _why(error: InvalidOptionError) -> str:
    return str(getattr(error, "reason", error)).rstrip(".")[:300] + "."
