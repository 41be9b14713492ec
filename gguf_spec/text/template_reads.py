"""Names that a chat template reads, found without running or compiling it."""

from __future__ import annotations

from functools import lru_cache

from jinja2 import Environment, TemplateError

from .jinja_sandbox import MAX_SOURCE

# Names that are Jinja's, or that only this package sets.
_RESERVED = frozenset((
    "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "tool_choice",
    "functions", "function_call", "raise_exception", "strftime_now", "namespace", "range", "loop",
    "dict", "lipsum", "cycler", "joiner", "self", "super", "caller", "varargs", "kwargs",
    "true", "false", "none", "True", "False", "None", "and", "or", "not", "is", "in", "if", "else",
    "elif", "endif", "for", "endfor", "recursive", "set", "endset", "macro", "endmacro", "filter",
    "endfilter", "call", "endcall", "block", "endblock", "break", "continue", "generation",
    "endgeneration", "with", "endwith", "do", "import", "include", "from", "extends", "as",
    "context", "without", "ignore", "missing", "raw", "endraw",
))  # fmt: skip
# Tokens after which a name is not a variable.
_NO_VARIABLE_AFTER = (".", "|", "is")
# Word before names that are set -> tokens that end them, besides the end of the block.
_TARGETS: dict[str, tuple[str, ...]] = {"set": ("=",), "for": ("in",), "macro": ("%}",)}


@lru_cache(maxsize=8)
def names_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads before it sets them.

    The source is only split into tokens, so an untrusted template costs time in proportion to its
    length.
    """
    if len(template) > MAX_SOURCE:
        return frozenset()
    try:
        tokens = [
            (kind, text)
            for _, kind, text in Environment().lex(template)
            if kind in ("name", "operator", "block_begin", "block_end")
        ]
    except TemplateError:
        return frozenset()
    first: dict[str, bool] = {}
    before: list[str] = ["", ""]
    ends: tuple[str, ...] = ()
    for i, (kind, text) in enumerate(tokens):
        ends = () if kind == "block_end" or text in ends else _TARGETS.get(text, ends)
        is_keyword = tokens[i + 1 : i + 2] == [("operator", "=")]
        if kind == "name" and text not in _RESERVED and not _is_part(before):
            first.setdefault(text, not (ends or is_keyword))
        before = [before[-1], text]
    return frozenset(name for name, is_read in first.items() if is_read)


def _is_part(before: list[str]) -> bool:
    """Return whether a name after these tokens is an attribute, a filter or a test."""
    return before[-1] in _NO_VARIABLE_AFTER or before == ["is", "not"]
