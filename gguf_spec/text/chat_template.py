"""Chat templates: convert messages to token ids.

The variables that a template reads, and tools, calls and results in the form that it can render.

Template and messages are both untrusted.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby
from typing import Any, NamedTuple

import jinja2

from ..errors import (
    InvalidOptionError,
    Option,
    OptionConflictError,
    PromptTooLongError,
    TemplateError,
    Text,
)
from ..llama.model import Model
from ..options import check_types
from ..tools.families import family_of
from .jinja_sandbox import MAX_SOURCE, TemplateFailure, render
from .reasoning import (
    REASONING_FIELDS,
    ChannelSyntax,
    ReasoningFormat,
    plain_tokens,
    reasoning_format,
    spells_special,
)

# characters that occur in special tokens, or that a template could turn into such characters
_UNUSUAL = re.compile(r"[^\w\s.,;:!?'\"()-]")
# tag-like text with its white space
_TAG = re.compile(r"\s*(?:<[^<>\s]{1,60}>|\[/?[A-Z_]{1,40}\])\s*")
_AS_TEXT = Text("give the whole prompt as text[ ({})]", Option("raw", True, of_commands=True))
# Fields of a message with free text.
_TEXTS = ("content", *REASONING_FIELDS)
# Names of Jinja, or that only this package sets.
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
# Variables that switch reasoning on or off, in the templates that have such a switch.
_SWITCHES = ("enable_thinking", "thinking")
# A template that reads the tools from the system message, as JSON text.
_IN_SYSTEM = re.compile(r"\bmessage\s*(?:\.\s*tools\b|\[\s*['\"]tools['\"]\s*\])")
# Variables with which templates are given tools.
TOOL_VARIABLES = ("tools", "xml_tools")
_PLACE = "_place_of_calls"
# Placeholders of calls: a number between two equal private-use characters.
_PLACES = re.compile("([\U00100000-\U0010fffd])[0-9]+\\1")
Message = Mapping[str, Any]
Messages = Sequence[Message]
Tools = Sequence[Mapping[str, Any]]


# ---- variables


@lru_cache(maxsize=8)
def names_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads before it sets them.

    The source is only split into tokens, so an untrusted template costs time in proportion to its
    length.
    """
    if len(template) > MAX_SOURCE:
        return frozenset()
    try:
        lexed = [(kind, text) for _, kind, text in jinja2.Environment().lex(template)]
    except jinja2.TemplateError:
        return frozenset()
    kinds = ("name", "operator", "block_begin", "block_end")
    tokens = [one for one in lexed if one[0] in kinds]
    first: dict[str, bool] = {}
    before: list[str] = ["", ""]
    ends: tuple[str, ...] = ()
    for i, (kind, text) in enumerate(tokens):
        ends = () if kind == "block_end" or text in ends else _TARGETS.get(text, ends)
        is_keyword = tokens[i + 1 : i + 2] == [("operator", "=")]
        # an attribute, a filter or a test
        is_part = before[-1] in _NO_VARIABLE_AFTER or before == ["is", "not"]
        if kind == "name" and text not in _RESERVED and not is_part:
            first.setdefault(text, not (ends or is_keyword))
        before = [before[-1], text]
    return frozenset(name for name, is_read in first.items() if is_read)


@dataclass(frozen=True)
class PromptOptions:
    """Options of a prompt that is made from messages.

    Attributes:
        prefill: Beginning of the answer.
        tools: Tools that the model may call, in OpenAI's form.
        think: Whether the model reasons before its answer; None leaves it to the template.
        values: Variables of the template.
    """

    prefill: str = ""
    tools: Tools | None = None
    think: bool | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def read_options(
    prefill: str,
    tools: Tools | None,
    think: bool | None,
    values: Mapping[str, Any] | None,
) -> PromptOptions:
    """Return the options of a prompt; the variable `enable_thinking` is the option `think`.

    Raises:
        InvalidOptionError: `think` contradicts the variable, or an argument has another type.
    """
    check_types(prefill=prefill, tools=tools, think=think, chat_template_kwargs=values)
    values = dict(values or {})
    if isinstance(values.get("enable_thinking"), bool):
        switch = values.pop("enable_thinking")
        if think is not None and think is not switch:
            raise OptionConflictError(Option("think", think), f"enable_thinking={switch}")
        think = switch
    return PromptOptions(prefill, tools, think, values)


def check_text(options: PromptOptions) -> None:
    """Check that no option of the prompt of a text needs a chat template.

    Raises:
        InvalidOptionError: An option applies to messages only.
    """
    given = {"think": options.think, "chat_template_kwargs": options.values or None}
    for name, value in given.items():
        if value is not None:
            raise _needs_messages(name, value)


def _needs_messages(option: str, value: object) -> InvalidOptionError:
    given = Option(option, value if isinstance(value, bool) else ...)
    hint = Text("send messages, or omit {}.", Option(option))
    message = Text("{} needs messages: a text has no chat template.", given)
    return InvalidOptionError(option, value, "", hint, message=message)


def check_values(model: Model, options: PromptOptions) -> dict[str, Any]:
    """Return the variables of a template, the switches for reasoning included.

    Raises:
        InvalidOptionError: The template does not read a variable, a value is not plain, or the
            model cannot reason as requested.
    """
    template = model.chat_template or ""
    read, reasoning = names_read(template), reasoning_format(model)
    for name, value in options.values.items():
        problem = ""
        if name not in read:
            problem = f"the chat template of {model.path.name} does not read {name[:100]!r}."
        elif value is not None and not isinstance(value, (str, bool, int, float)):
            problem = f"the value of {name!r} is not a text, a number, a boolean or null."
        elif isinstance(value, str) and spells_special(model, reasoning, value):
            problem = f"the value of {name!r} contains a special token."
        if problem:
            hint = f"omit {name[:100]!r}."
            raise InvalidOptionError("chat_template_kwargs", name, "", hint, message=problem)
    if options.think and reasoning is None:
        raise no_reasoning(model, "think", True)
    if options.think and options.prefill:
        hint = "omit one of the two: an answer has begun."
        raise OptionConflictError(Option("think", True), Option("prefill"), hint)
    think = {name: options.think for name in _SWITCHES if name in read}
    return (think if options.think is not None else {}) | dict(options.values)


def no_reasoning(
    model: Model, option: str, value: object, is_chat: bool = True
) -> InvalidOptionError:
    """Return the error for an option of reasoning where no reasoning is separated."""
    if not is_chat:
        return _needs_messages(option, value)
    hint = Text("omit {}, or use a model that reasons.", Option(option))
    message = f"the chat template of {model.path.name} has no reasoning parts."
    return InvalidOptionError(option, value, "", hint, message=message)


def ending(model: Model, reasoning: ReasoningFormat | None, prompt: str, o: PromptOptions) -> str:
    """Return the text after a rendered prompt with which an answer without reasoning begins.

    It is empty unless the request forbids reasoning or has a prefill. Reasoning that the template
    has opened is closed. A template without a switch gets an empty reasoning part, or the final
    channel.
    """
    if reasoning is None or not (o.think is False or o.prefill):
        return ""
    has_switch = not names_read(model.chat_template or "").isdisjoint(_SWITCHES)
    return reasoning.syntax.skip(prompt, o.think is False and not has_switch)


def with_reasoning(
    messages: Sequence[Mapping[str, Any]], reasoning: ReasoningFormat | None
) -> list[dict[str, Any]]:
    """Return messages with their reasoning in the field that the template reads.

    Reasoning that the template does not read is left out.
    """
    read = [dict(message) for message in messages]
    for message in read:
        thought = message.pop("reasoning_content", None)
        # The template of gpt-oss takes the reasoning of a call only, and rejects it beside a
        # content.
        is_call = bool(message.get("tool_calls")) and not message.get("content")
        if reasoning is None or (isinstance(reasoning.syntax, ChannelSyntax) and not is_call):
            continue
        if thought and reasoning.field is not None:
            message[reasoning.field] = thought
    return read


# ---- calls and results of earlier messages


def call_tokens(model: Model) -> dict[int, str]:
    """Return the special tokens of the model's tool calls that have no text, with their names."""
    family = family_of(model.chat_template or "")
    ids = {name: model.tokenize(name, special=True, start=False) for name in family.tokens}
    single = ((found[0], name) for name, found in ids.items() if len(found) == 1)
    return {token: name for token, name in single if not model.piece(token)}


def reads_tools(template: str) -> bool:
    """Return whether a template renders tools."""
    return any(re.search(rf"\b{name}\b", template) for name in TOOL_VARIABLES)


@dataclass(frozen=True)
class ToolHistory:
    """Messages for one template.

    Attributes:
        messages: The messages. A call that the template does not render is a placeholder at the
            end of a content.
        places: Placeholder -> the call in the model's syntax.
    """

    messages: list[dict[str, Any]]
    places: Mapping[str, str]

    def render(self, render: Callable[[Messages], str], contents: Messages) -> str:
        """Return the prompt for other contents of the messages, with all calls."""
        filled = []
        for new, fitted in zip(contents, self.messages, strict=True):
            filled.append({k: v for k, v in new.items() if k != _PLACE})
            if place := fitted.get(_PLACE):
                filled[-1]["content"] += place
        text = render(filled)
        # in one search: there may be thousands of places
        return _PLACES.sub(lambda match: self.places.get(match[0], match[0]), text)


def tool_history(
    messages: Messages, template: str, tools: Sequence[Mapping[str, Any]] | None
) -> ToolHistory:
    """Fit tools, calls and their results to a template.

    - Ids get the length that the template demands.
    - Several calls of a message become several messages where the template renders only one.
    - Calls become text where the template renders none.
    - Tools become a field of the system message where the template reads them there.

    Args:
        messages: The messages.
        template: The chat template.
        tools: The tools of the request.
    """
    family = family_of(template)
    fitted = [dict(message) for message in messages]
    if family.id_length:
        fitted = [_with_ids(message, family.id_length) for message in fitted]
    if not family.is_parallel:
        fitted = _one_call_each(fitted)
    if tools and _IN_SYSTEM.search(template):
        text = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
        if not fitted or fitted[0]["role"] != "system":
            fitted = [{"role": "system", "content": ""}, *fitted]
        fitted[0] = {**fitted[0], "tools": text}
    places: dict[str, str] = {}
    if "tool_calls" not in template:
        taken = json.dumps(fitted, default=str, ensure_ascii=False) + template
        (mark,) = unused(taken, 1, 0x100000)
        for i, message in enumerate(fitted):
            if calls := message.pop("tool_calls", None):
                called = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
                written = family.write(called).removeprefix(family.prompted)
                message[_PLACE] = place = f"{mark}{i}{mark}"
                places[place] = ("\n" if message["content"] else "") + written
    return ToolHistory(fitted, places)


def with_text_arguments(messages: Messages) -> list[dict[str, Any]]:
    """Return messages whose calls have their arguments as JSON text."""
    found = [dict(one) for one in messages]
    for message in found:
        if message.get("tool_calls"):
            message["tool_calls"] = calls = [dict(call) for call in message["tool_calls"]]
            for call in calls:
                arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
                call["function"] = {**call["function"], "arguments": arguments}
    return found


def _with_ids(message: dict[str, Any], length: int) -> dict[str, Any]:
    if message.get("tool_calls"):
        calls = [{**call, "id": _id(call.get("id"), length)} for call in message["tool_calls"]]
        return {**message, "tool_calls": calls}
    if "tool_call_id" in message:
        return {**message, "tool_call_id": _id(message["tool_call_id"], length)}
    return message


def _id(given: object, length: int) -> str:
    """Return an id of some length: the given one, or one that follows from it."""
    text = str(given)
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:length]


def _one_call_each(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with one call each, and the result of each call after it."""
    fitted, at = list[dict[str, Any]](), 0
    while at < len(messages):
        message, at = messages[at], at + 1
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            fitted.append(message)
            continue
        end = at
        while end < len(messages) and messages[end]["role"] == "tool":
            end += 1
        results, at = messages[at:end], end
        for i, call in enumerate(calls):
            first = message if i == 0 else {"role": message["role"], "content": ""}
            fitted.append({**first, "tool_calls": [call]})
            fitted += [one for one in results if one.get("tool_call_id") == call.get("id")]
        ids = [call.get("id") for call in calls]
        fitted += [one for one in results if one.get("tool_call_id") not in ids]
    return fitted


def unused(taken: str, n: int, first: int = 0xF0000) -> list[str]:
    """Return private-use characters that are not in a text.

    They have no upper or lower case and are not white space.

    Args:
        taken: The text.
        n: Number of characters.
        first: Code point of the first one of the plane.
    """
    found: set[str] = set()
    while len(found) < n:
        if (mark := chr(first + secrets.randbelow(0xFFFE))) not in taken:
            found.add(mark)
    return [*found]


# ---- prompts


def encode_chat(
    model: Model,
    messages: Messages,
    options: PromptOptions | None = None,
    most: int | None = None,
) -> list[int]:
    """Return the prompt for the next answer to `messages`.

    Only the template can write special tokens: `<|im_end|>` in a message is tokenised as plain
    text.

    Args:
        model: A model with a chat template.
        messages: `{"role": ..., "content": ...}` each. Other fields of a message, such as
            `tool_calls`, are passed to the template. `reasoning_content` is passed in the field
            that the template reads, if it reads one.
        options: Prefill, tools, and variables of the template.
        most: Most tokens that are of use; None for any number.

    Returns:
        Token ids.

    Raises:
        TemplateError: There is no template, or it rejects the messages.
        InvalidOptionError: The template does not support an option, or an option contains a special
            token.
        PromptTooLongError: The prompt has many more than `most` tokens.
    """
    template, options = model.chat_template, options or PromptOptions()
    if template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", Text("{}.", _AS_TEXT))
    reasoning = reasoning_format(model)
    if most is not None and len(messages) > most:  # each has a token
        raise PromptTooLongError(len(messages), model.n_ctx, True)
    _check_messages(model, messages, reasoning)
    if options.tools:
        _check_tools(model, template, options.tools, reasoning)
    if most is not None and messages and messages[-1].get("role") == "user":
        # Before the template is rendered, which takes long. It may leave others out.
        for _, value in _texts(messages[-1]):
            model.check_length(value.encode("utf-8", "replace"), most, special=True)
    values = check_values(model, options)
    history = tool_history(with_reasoning(messages, reasoning), template, options.tools)
    messages, prefill = history.messages, options.prefill
    render = partial(_render, model, template, tools=options.tools, values=values)
    prompt = partial(history.render, render)
    begin = prompt(messages)
    end = ending(model, reasoning, begin, options)
    text = begin + end + prefill
    bos = model.token_text(model.vocabulary["bos"]) if model.vocabulary["bos"] >= 0 else ""
    start = not (bos and text.startswith(bos))
    ids = model.tokenize(text, special=True, start=start, most=most)
    contents = [*(value for m in messages for name, value in _texts(m)), prefill]
    special = partial(spells_special, model, reasoning)
    if not any(_UNUSUAL.search(content) or special(content) for content in contents):
        return ids
    controls = partial(_controls, model, reasoning)
    marks = _Marks(*unused("".join([template, text, *contents]), len(_Marks._fields)))
    marked = _rewritten(messages, partial(_mark, marks=marks))

    def is_special(part: str) -> bool:
        return bool(controls(model.tokenize(part, special=True, start=False)))

    parts = _parts(prompt(marked) + end + _mark(prefill, marks), marks, is_special)
    if parts is None or "".join(part for part, _ in parts) != text:
        harmless_text = partial(_UNUSUAL.sub, "x")  # it cannot contain a special token
        plain = _rewritten(messages, harmless_text)
        harmless = model.tokenize(
            prompt(plain) + end + harmless_text(prefill), special=True, start=start
        )
        if controls(harmless) != controls(ids) or any(map(special, contents)):
            raise TemplateError(
                f"the chat template of {model.path.name} rewrites the messages, and a message "
                "could become a special token.",
                "remove texts that look like special tokens, such as <|im_end|>.",
            )
        return ids
    apart, by_template = _apart(model, reasoning, parts, start)
    # the contents add no special token, neither alone nor joined with the template's text
    return ids if controls(ids) == by_template else apart


def _apart(
    model: Model, reasoning: ReasoningFormat | None, parts: Sequence[tuple[str, bool]], start: bool
) -> tuple[list[int], list[int]]:
    """Return the tokens of the parts of a prompt, and the special ones that the template wrote.

    Args:
        model: The model.
        reasoning: Its format of reasoning parts.
        parts: Texts, and whether the template wrote them.
        start: The prompt begins with the start token.
    """
    apart: list[int] = []
    by_template: list[int] = []
    for i, (part, is_template) in enumerate(parts):
        begins = start and i == 0
        if is_template:
            tokens = model.tokenize(part, special=True, start=begins)
            by_template += _controls(model, reasoning, tokens)
        else:
            tokens = plain_tokens(model, reasoning, part, begins)
        apart += tokens
    return apart, by_template


def _rewritten(messages: Messages, change: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return messages with changed texts."""
    return [
        {**message, **{name: change(value) for name, value in _texts(message)}}
        for message in messages
    ]


def _texts(message: Message) -> list[tuple[str, str]]:
    """Return the fields of a message whose text may look like a special token."""
    return [(name, message[name]) for name in _TEXTS if isinstance(message.get(name), str)]


class _Marks(NamedTuple):
    """Marker characters around contents in a rendered text.

    Template and messages contain none.

    Attributes:
        begin: Marks the start of a content.
        end: Marks the end of a content.
        tag: Marks the start of a tag-like text in a content, with its white space.
        after_tag: Marks the end of a tag-like text.
    """

    begin: str
    end: str
    tag: str
    after_tag: str


def _mark(content: str, marks: _Marks) -> str:
    """Return a content with markers.

    White space at the ends stays outside, and a tag with its white space is a separate part. A
    template that strips a content, or splits it at a tag such as `</think>`, therefore does the
    same to the marked content.
    """
    core = content.strip()
    if not core:
        return content
    at = content.index(core)
    core = _TAG.sub(lambda match: f"{marks.tag}{match[0]}{marks.after_tag}", core)
    return (
        f"{content[:at]}{marks.begin}{core}{marks.end}{content[at:].removeprefix(content.strip())}"
    )


def _parts(
    text: str, marks: _Marks, is_special: Callable[[str], bool]
) -> list[tuple[str, bool]] | None:
    """Split a rendered text into parts, each with a flag: whether the template wrote it.

    A content starts after `begin` and ends before `end`. The text between `tag` and `after_tag` is
    a tag, or the template's replacement where it splits a content at a tag; both count as content.
    A template may drop the text before `after_tag`. Special tokens there, other than a single tag,
    have an unknown origin.

    Returns:
        The parts; None if the markers are out of order or the origin of a special token is unknown.
    """
    words = re.split(f"([{''.join(marks)}])", text)
    parts, last = [(words[0], True)], marks.end
    inside = (marks.begin, marks.after_tag)
    before = {
        marks.begin: (marks.end,),
        marks.end: inside,
        marks.tag: inside,
        marks.after_tag: (marks.tag, marks.end),
    }
    for mark, after in zip(words[1::2], words[2::2], strict=True):
        if last not in before[mark]:
            return None
        if (
            mark == marks.after_tag
            and last == marks.tag
            and not _TAG.fullmatch(parts[-1][0])
            and is_special(parts[-1][0])
        ):
            return None
        parts.append((after, mark == marks.end))
        last = mark
    return _joined(parts) if last == marks.end else None


def _joined(parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Join adjacent parts of one origin.

    A special token that a content spells in two parts becomes one text.
    """
    groups = groupby((part for part in parts if part[0]), lambda part: part[1])
    return [("".join(text for text, _ in some), is_template) for is_template, some in groups]


def _controls(model: Model, reasoning: ReasoningFormat | None, ids: Sequence[int]) -> list[int]:
    """Return the control tokens among token ids: those without text, and those of channels."""
    shown = reasoning.shown if reasoning else {}
    controls = {token for token in set(ids) if token in shown or not model.piece(token)}
    return [token for token in ids if token in controls]


def _check_messages(
    model: Model, messages: Sequence[Any], reasoning: ReasoningFormat | None
) -> None:
    others: list[str] = []
    for message in messages:
        if not (
            isinstance(message, Mapping)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
        ):
            raise TemplateError(
                f"{message!r} is not a message with a role and a text.",
                'write messages as {"role": "user", "content": "..."}.',
            )
        texts = dict(_texts(message))
        fields = (value for name, value in message.items() if name not in texts)
        others.append("\n".join(_strings([*fields])))
    if not spells_special(model, reasoning, "\n".join(others)):  # all at once: there may be many
        return
    for message, other in zip(messages, others, strict=True):
        if spells_special(model, reasoning, other):
            raise TemplateError(
                f"a message of the role {message['role']!r} "
                "contains a special token outside its content.",
                "remove the special token.",
            )


def _check_tools(
    model: Model, template: str, tools: Tools, reasoning: ReasoningFormat | None
) -> None:
    names = [tool.get("function", {}).get("name") for tool in tools]
    if not reads_tools(template):
        raise InvalidOptionError(
            "tools",
            names,
            hint=Text("omit {tools}, or use a model whose chat template supports them."),
            message=f"the chat template of {model.path.name} does not support tools.",
        )
    if spells_special(model, reasoning, "\n".join(_strings(tools))):
        raise InvalidOptionError(
            "tools",
            names,
            hint="remove the special tokens from names and descriptions.",
            message=f"the tools {', '.join(map(str, names))} contain special tokens of "
            f"{model.path.name}.",
        )


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings in a nested value, including field names."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


def _render(
    model: Model,
    template: str,
    messages: Messages,
    tools: Tools | None,
    values: Mapping[str, Any],
) -> str:
    def name(token: int) -> str:
        return model.token_text(token) if token >= 0 else ""

    variables = [one for one in TOOL_VARIABLES if one == "tools" or one in template]
    values = dict(values) | {
        "messages": [dict(m) for m in messages],
        "add_generation_prompt": True,
        "bos_token": name(model.vocabulary["bos"]),
        "eos_token": name(model.vocabulary["eos"]),
        **{name: [dict(tool) for tool in tools] if tools else None for name in variables},
        "tool_choice": None,
        "functions": None,
        "function_call": None,
    }
    try:
        try:
            return render(template, values)
        except TemplateFailure:
            if not any(message.get("tool_calls") for message in messages):
                raise
            # Some templates join the arguments as text.
            return render(template, values | {"messages": with_text_arguments(messages)})
    except TemplateFailure as error:
        hint = Text("check the roles and their order, or {}.", _AS_TEXT)
        raise TemplateError(
            f"the chat template of {model.path.name} fails: {error}.", hint
        ) from error
