"""Grammars for answers that must be tool calls, or must call tools as their schemas demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ..errors import GrammarTooLargeError, InvalidGrammarError, InvalidOptionError
from ..grammar.automaton import Automaton, limited_work, quoted
from ..grammar.json_schema import Dropped, dropping, grammar_of, to_rules
from ..grammar.schemas import faults_of
from .families import HARMONY, Family, ToolUse
from .reader import read_answer, reader_of
from .rules import Sym, call_rules, symbols, until
from .source import words_of

# The name of a tool, or None for the schema of the answer -> the keywords that are not enforced.
DroppedBy = dict[str | None, list[Dropped]]

HARMONY_TOKENS = ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>")
_NEXT = "<|end|><|start|>assistant"
_CALL = "<|channel|>commentary to=functions."
# White space that may stand before a call, so that a text must not begin with it.
_BLANK = r" \t\n\r\x0B\x0C\x1C-\x1F\x85\xA0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000"


def harmony_rules(
    required: bool, has_schema: bool, thinks: bool, token: Callable[[str], int | None]
) -> Iterator[str]:
    """Yield the rules around the rule `call`, which begins after the marker of a call.

    The grammar is for the whole answer, which begins after the role. Before a call there may be
    reasoning and, if no call is required, a message to the user.

    Args:
        has_schema: Whether a final message follows the rule `answer-root`.
        token: Returns the id of a control token.
    """
    sym = symbols(HARMONY_TOKENS, token)
    final = "answer-root" if has_schema else "any"
    ends = f"{sym(_CALL)} call"
    if not required:
        ends += f" | {sym('<|channel|>final<|message|>')} {final}"
    channels = [quoted("analysis")] if thinks else []
    channels += [] if required or has_schema else [quoted("commentary")]
    yield f"root ::= {'before* ' if channels else ''}({ends})"
    if channels:
        head = f"{sym('<|channel|>')} ({' | '.join(channels)}) {sym('<|message|>')}"
        yield f"before ::= {head} any {sym(_NEXT)}"
    yield "any ::= [^\\x00]*"


class ToolSchemaError(InvalidOptionError):
    """The schema of a strict tool, or of the answer, cannot be converted for this model.

    Attributes:
        tool: Name of the tool; None for the schema of the answer.
    """

    def __init__(self, tool: str | None, error: InvalidOptionError) -> None:
        self.tool = tool
        self.reason: str = str(getattr(error, "reason", error)).rstrip(".")[:300] + "."
        option = "json_schema" if tool is None else "tools"
        what = "the schema of the answer" if tool is None else f"the schema of the tool {tool}"
        super().__init__(option, tool, message=f"{what} cannot be used: {self.reason}")


@dataclass(frozen=True)
class Unenforced:
    """What the grammar of a request does not enforce of its schemas.

    Attributes:
        dropped: The keywords by tool.
        schema: The schema of an answer that calls no tool.
    """

    dropped: DroppedBy
    use: ToolUse
    schema: Any

    def notes(self) -> list[tuple[str, Dropped]]:
        """Return each keyword with the name of its tool; it is empty for the answer."""
        return [(name or "", one) for name, some in self.dropped.items() for one in some]

    def texts(self) -> list[str]:
        return [f"{name}{':' if name else ''}{one}" for name, one in self.notes()]

    def faults(self, text: str, family: Family) -> list[tuple[str, str]]:
        """Return what a complete answer does not fulfil of these schemas, by tool."""
        calls = list[tuple[str, str]]()
        if self.use.tools:
            text, calls = read_answer(text, reader_of(family, self.use))
        values: list[tuple[str | None, str, Any]] = [
            (name, arguments, self.use.schemas[name]) for name, arguments in calls
        ]
        if not calls and self.schema is not None:
            values = [(None, text, self.schema)]
        return [
            (name or "", fault)
            for name, value, schema in values
            if name in self.dropped
            for fault in faults_of(value, schema)
        ]


def tool_grammar(
    use: ToolUse,
    family: Family,
    token: Callable[[str], int | None],
    schema: Any = None,
    thinks: bool = True,
    dropped: DroppedBy | None = None,
    strict: bool = True,
) -> str:
    """Return a grammar for answers that call tools, or otherwise follow a schema or are text.

    A call follows the schema of its tool, and `schema` is followed. Keywords that no grammar
    follows are dropped, but not those of strict schemas. If a schema cannot be converted at all and
    its tool is not strict, the arguments may be any object.

    Args:
        token: Returns the id of a control token that is written like a text, or None.
        schema: Schema of an answer that calls no tool; None for any text.
        thinks: Whether there may be reasoning, in a family whose grammar includes it.
        dropped: Takes the keywords that are dropped.
        strict: Whether those of `schema` are refused.

    Raises:
        ToolSchemaError: The schema of a strict tool, or `schema`, cannot be converted, or the
            conversion of all schemas takes too much work.
    """
    into: DroppedBy = {} if dropped is None else dropped
    sym = symbols(HARMONY_TOKENS if family.name == HARMONY else family.tokens, token)
    with limited_work():
        names = (f"t{i}-call" for i in range(len(use.schemas)))
        rules = [f"call ::= {' | '.join(names)}", *_calls(use, family, sym, into)]
        if schema is not None:
            try:
                with _dropping(into, None, strict):
                    rules += _checked(to_rules(schema, "answer-"), "answer-root")
            except InvalidOptionError as error:
                raise ToolSchemaError(None, error) from None
    if family.name == HARMONY:
        return grammar_of([*harmony_rules(use.required, schema is not None, thinks, token), *rules])
    rules += _sequence(use, family, sym)
    first = "more" if family.prompted else "calls"
    if use.required:
        return grammar_of([f"root ::= {first}", *rules])
    text = f"{sym(family.text_mark)} " if family.text_mark else ""
    if schema is not None:
        return grammar_of([f"root ::= {first} | {text}answer-root", *rules])
    return grammar_of([*_text(family, first, text, sym), *rules])


@contextmanager
def _dropping(into: DroppedBy, name: str | None, strict: bool) -> Iterator[None]:
    """Drop unsupported keywords in the block, unless a schema is strict."""
    found: list[Dropped] = []
    with dropping(None if strict else found):
        yield
    if found:
        into[name] = found


def _calls(use: ToolUse, family: Family, sym: Sym, dropped: DroppedBy) -> Iterator[str]:
    """Yield the rules for a call of each tool; the first one of the tool `i` is `t<i>-call`."""
    for i, (name, schema) in enumerate(use.schemas.items()):
        prefix = f"t{i}-"
        try:
            with _dropping(dropped, name, name in use.strict):
                rules = call_rules(family.call, name, {"type": "object", **schema}, prefix, sym)
                rules = _checked(rules, f"{prefix}call")
            yield from rules
        except (InvalidOptionError, RecursionError) as error:
            if isinstance(error, RecursionError):
                error = InvalidGrammarError("json_schema", name, "it is nested too deeply")
            if name in use.strict or isinstance(error, GrammarTooLargeError):
                raise ToolSchemaError(name, error) from None
            reason = str(getattr(error, "reason", error)).rstrip(".")[:200]
            dropped[name] = [Dropped("#", "the whole schema", "", reason)]
            yield from call_rules(family.call, name, {"type": "object"}, prefix, sym)


def _checked(rules: list[str], first: str) -> list[str]:
    """Return rules with the name of the first one, if they are a grammar.

    Raises:
        InvalidOptionError: They are not a grammar, or are too large.
    """
    # Numbers of tokens are not checked here: they are those of `sym`.
    Automaton(grammar_of([f"root ::= {first}", *rules]), lambda _: 0)
    return rules


def _sequence(use: ToolUse, family: Family, sym: Sym) -> Iterator[str]:
    """Yield the rules for calls, and for the text after the first marker."""
    marker = words_of(family.lead)[0] if family.lead.strip() else ""
    begin = sym(family.between + family.call.begins[0])
    again = f"({begin} call)*" if use.parallel and family.is_parallel else ""
    parts = [sym(family.lead[len(marker) :]), "call", again, sym(family.close)]
    yield f"more ::= {' '.join(filter(None, parts))}"
    yield f"calls ::= {sym(marker)} more" if marker else "calls ::= more"


def _text(family: Family, first: str, text: str, sym: Sym) -> Iterator[str]:
    """Yield the rules for calls, or a text in which every marker begins calls that end it."""
    marks = dict.fromkeys(family.markers, "")
    for begin in family.call.begins:
        lead = family.open + begin
        if lead.strip():
            marker = words_of(lead)[0]
            rest = sym(lead[len(marker) :])
            marks[marker] = "more" if begin == family.call.begins[0] else f"{rest} last"
    yield "last ::= call"
    start = family.starts and family.starts + _BLANK
    yield f"root ::= {first} | {text}text" if family.starts or family.prompted else "root ::= text"
    yield from until(marks, "text", sym, may_end=True, not_first=start)
