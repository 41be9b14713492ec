"""Chat templates: convert messages to token ids.

Template and messages are both untrusted.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from ..errors import InvalidOptionError, Option, TemplateError, Text
from ..llama.model import Model
from .jinja_sandbox import TemplateFailure, render
from .reasoning import (
    REASONING_FIELDS,
    ReasoningFormat,
    plain_tokens,
    reasoning_format,
    spells_special,
)
from .template_values import PromptOptions, check_values, ending, with_reasoning
from .tool_history import TOOL_VARIABLES, reads_tools, tool_history, with_text_arguments

# characters that occur in special tokens, or that a template could turn into such characters
_UNUSUAL = re.compile(r"[^\w\s.,;:!?'\"()-]")
# tag-like text with its white space
_TAG = re.compile(r"\s*(?:<[^<>\s]{1,60}>|\[/?[A-Z_]{1,40}\])\s*")
_AS_TEXT = Text("give the whole prompt as text[ ({})]", Option("raw", True, of_commands=True))
# Fields of a message with free text.
_TEXTS = ("content", *REASONING_FIELDS)
Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]


def encode_chat(
    model: Model, messages: Sequence[Message], options: PromptOptions | None = None
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

    Returns:
        Token ids.

    Raises:
        TemplateError: There is no template, or it rejects the messages.
        InvalidOptionError: The template does not support an option, or an option contains a special
            token.
    """
    template, options = model.chat_template, options or PromptOptions()
    if template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", Text("{}.", _AS_TEXT))
    reasoning = reasoning_format(model)
    for message in messages:
        _check_message(model, message, reasoning)
    if options.tools:
        _check_tools(model, template, options.tools, reasoning)
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
    ids = model.tokenize(text, special=True, start=start)
    contents = [*(value for m in messages for name, value in _texts(m)), prefill]
    special = partial(spells_special, model, reasoning)
    if not any(_UNUSUAL.search(content) or special(content) for content in contents):
        return ids
    controls = partial(_controls, model, reasoning)
    marks = _marks("".join([template, text, *contents]))
    marked = _rewritten(messages, partial(_mark, marks=marks))

    def is_special(part: str) -> bool:
        return bool(controls(model.tokenize(part, special=True, start=False)))

    parts = _parts(prompt(marked) + end + _mark(prefill, marks), marks, is_special)
    if parts is None or "".join(part for part, _ in parts) != text:
        plain = _rewritten(messages, _harmless)
        harmless = model.tokenize(
            prompt(plain) + end + _harmless(prefill), special=True, start=start
        )
        _check_rewritten(model, controls(harmless) != controls(ids) or any(map(special, contents)))
        return ids
    apart: list[int] = []
    by_template: list[int] = []
    for i, (part, is_template) in enumerate(parts):
        begins = start and i == 0
        if is_template:
            tokens = model.tokenize(part, special=True, start=begins)
            by_template += controls(tokens)
        else:
            tokens = plain_tokens(model, reasoning, part, begins)
        apart += tokens
    # the contents add no special token, neither alone nor joined with the template's text
    return ids if controls(ids) == by_template else apart


def _rewritten(messages: Sequence[Message], change: Callable[[str], str]) -> list[dict[str, Any]]:
    """Return messages with changed texts."""
    return [
        {**message, **{name: change(value) for name, value in _texts(message)}}
        for message in messages
    ]


def _texts(message: Message) -> list[tuple[str, str]]:
    """Return the fields of a message whose text may look like a special token."""
    return [(name, message[name]) for name in _TEXTS if isinstance(message.get(name), str)]


def _harmless(content: str) -> str:
    """Return a text that cannot contain a special token."""
    return _UNUSUAL.sub("x", content)


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


def _marks(taken: str) -> _Marks:
    """Return four private-use characters that are not in a text.

    They have no upper or lower case and are not white space.
    """
    found: set[str] = set()
    while len(found) < len(_Marks._fields):
        if (mark := chr(0xF0000 + secrets.randbelow(0xFFFE))) not in taken:
            found.add(mark)
    return _Marks(*found)


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


def _check_rewritten(model: Model, changes_special: bool) -> None:
    """Check a prompt whose template rewrites contents.

    Args:
        model: The model.
        changes_special: Whether the contents change the special tokens, against harmless ones.

    Raises:
        TemplateError: They do.
    """
    if changes_special:
        raise TemplateError(
            f"the chat template of {model.path.name} rewrites the messages, and a message could "
            "become a special token.",
            "remove texts that look like special tokens, such as <|im_end|>.",
        )


def _controls(model: Model, reasoning: ReasoningFormat | None, ids: Sequence[int]) -> list[int]:
    """Return the control tokens among token ids: those without text, and those of channels."""
    shown = reasoning.shown if reasoning else {}
    controls = {token for token in set(ids) if token in shown or not model.piece(token)}
    return [token for token in ids if token in controls]


def _check_message(model: Model, message: object, reasoning: ReasoningFormat | None) -> None:
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
    others = [value for name, value in message.items() if name not in texts]
    if spells_special(model, reasoning, "\n".join(_strings(others))):
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
    messages: Sequence[Message],
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
