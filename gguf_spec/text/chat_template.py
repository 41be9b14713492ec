"""Chat templates: convert messages to token ids.

The variables that a template reads, and tools, calls and results in the form that it can render.

Template and messages are both untrusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import (
    InvalidOptionError,
    Option,
    OptionConflictError,
    PromptTooLongError,
    TemplateError,
    Text,
)
from ..options import Message, PromptOptions, Tools, check_types, well_formed
from ..tools.families import TOOL_VARIABLES, Family, family_of, marked_family, reads_tools
from ..vocabulary import Vocabulary
from . import turns
from .jinja_child import make_environment
from .jinja_sandbox import MAX_SOURCE, TemplateFailure, render
from .reasoning import (
    REASONING_FIELDS,
    ChannelSyntax,
    ReasoningFormat,
    plain_tokens,
    reasoning_format,
    spells_special,
)
from .turns import (
    Needs,
    forms,
    needs_of,
    object_of,
    with_calls_in_text,
    with_parts,
    with_results_of_user,
)

# characters that occur in special tokens, or that a template could turn into such characters
_UNUSUAL = re.compile(r"[^\w\s.,;:!?'\"()-]")
# tag-like text with its white space
_TAG = re.compile(r"\s*(?:<[^<>\s]{1,60}>|\[/?[A-Z_]{1,40}\])\s*")
_AS_TEXT = Text("give the whole prompt as text[ ({})]", Option("raw", True, of_commands=True))
# Fields of a message with free text.
_TEXTS = ("content", *REASONING_FIELDS)
# Variables of Jinja, or that only this package sets.
_RESERVED = frozenset((
    "messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "tool_choice",
    "functions", "function_call", "raise_exception", "strftime_now", "namespace", "range", "loop",
    "dict", "lipsum", "cycler", "joiner", "self", "super", "caller", "varargs", "kwargs",
))  # fmt: skip
# Variables that switch reasoning on or off, in the templates that have such a switch.
_SWITCHES = ("enable_thinking", "thinking")
# A template that reads the tools from the system message, as JSON text.
_IN_SYSTEM = re.compile(r"\bmessage\s*(?:\.\s*tools\b|\[\s*['\"]tools['\"]\s*\])")
# What the message of the system says about tools, where a template does not.
_TOOLS_IN_TEXT = """\
You can use these tools, one in each line:
{tools}

To use one, answer with a call in this form, and wait for its result. Several calls may follow \
each other.
{call}"""
_PLACE = "_place_of_calls"
# Placeholders of calls: a number between two equal private-use characters.
_PLACES = re.compile('"?([\U00100000-\U0010fffd])[0-9]+\\1"?')
# The tool of the messages that a template is tried with.
_TRIED = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "description": "What."}},
            "required": ["at"],
        },
    },
}
Messages = turns.Messages


# ---- variables


@lru_cache(maxsize=8)
def names_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads before it sets them; none if it is broken.

    The source is only parsed: no constant is computed.
    """
    first: dict[str, bool] = {}
    if len(template) > MAX_SOURCE:
        return frozenset()
    try:
        tree = make_environment(ImmutableSandboxedEnvironment).parse(template)
        set_here = _RESERVED.union(one.name for one in tree.find_all(nodes.Macro))
        for one in tree.find_all(nodes.Name):
            first.setdefault(one.name, one.ctx == "load" and one.name not in set_here)
    except (jinja2.TemplateError, ValueError, RecursionError):  # also a number of 5,000 digits
        return frozenset()
    return frozenset(name for name, is_read in first.items() if is_read)


class TemplateFault(NamedTuple):
    """What is wrong with a template, whatever the messages are.

    Attributes:
        text: The fact, with its line.
        name: The name that is not known; empty for other faults.
    """

    text: str
    name: str = ""


@lru_cache(maxsize=8)
def template_fault(template: str) -> TemplateFault | None:
    """Return the first fault of a template: its syntax, or a filter, test or function not known.

    The source is only parsed. A function that the template looks for (`is defined`) is no fault.
    """
    environment = make_environment(ImmutableSandboxedEnvironment)
    if len(template) > MAX_SOURCE:
        return TemplateFault(f"it has {len(template):,} characters, more than {MAX_SOURCE:,}")
    try:
        tree = environment.parse(template)
    except jinja2.TemplateSyntaxError as error:
        text = " ".join(str(error.message)[:200].split())
        text = "".join(one if one.isprintable() else "?" for one in text).rstrip(".")
        return TemplateFault(f"line {error.lineno}: {text}")
    except (jinja2.TemplateError, ValueError, RecursionError):
        return TemplateFault("it cannot be parsed")
    tested = {
        one.node.name for one in tree.find_all(nodes.Test) if isinstance(one.node, nodes.Name)
    }
    made = {one.name for one in tree.find_all(nodes.Name) if one.ctx != "load"} | tested
    made.update(one.name for one in tree.find_all(nodes.Macro))
    known = (_RESERVED | environment.globals.keys() | made) - {"messages", "tools"}
    filters, tests = environment.filters, environment.tests
    named = [
        *(
            (one, "filter", one.name)
            for one in tree.find_all(nodes.Filter)
            if one.name not in filters
        ),
        *((one, "test", one.name) for one in tree.find_all(nodes.Test) if one.name not in tests),
        *(
            (one, "function", one.node.name)
            for one in tree.find_all(nodes.Call)
            if isinstance(one.node, nodes.Name) and one.node.name not in known
        ),
    ]
    for one, kind, name in sorted(named, key=lambda found: found[0].lineno):
        return TemplateFault(f"line {one.lineno}: there is no {kind} {name[:60]!r}", name)
    return None


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
    return PromptOptions(well_formed(prefill), tools, think, values)


def check_text(options: PromptOptions) -> None:
    """Raise an InvalidOptionError if an option of the prompt of a text applies to messages only."""
    given = {"think": options.think, "chat_template_kwargs": options.values or None}
    for name, value in given.items():
        if value is not None:
            raise _needs_messages(name, value)


def _needs_messages(option: str, value: object) -> InvalidOptionError:
    given = Option(option, value if isinstance(value, bool) else ...)
    hint = Text("send messages, or omit {}.", Option(option))
    message = Text("{} needs messages: a text has no chat template.", given)
    return InvalidOptionError(option, value, "", hint, message=message)


def check_values(model: Vocabulary, options: PromptOptions) -> dict[str, Any]:
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
        if problem:
            hint = f"omit {name[:100]!r}."
            raise InvalidOptionError("chat_template_kwargs", name, "", hint, message=problem)
    if options.think and reasoning is None:
        raise no_reasoning(model.path, "think", True)
    if options.think and options.prefill:
        hint = "omit one of the two: an answer has begun."
        raise OptionConflictError(Option("think", True), Option("prefill"), hint)
    think = {name: options.think for name in _SWITCHES if name in read}
    return (think if options.think is not None else {}) | dict(options.values)


def no_reasoning(
    path: Path, option: str, value: object, is_chat: bool = True
) -> InvalidOptionError:
    if not is_chat:
        return _needs_messages(option, value)
    hint = Text("omit {}, or use a model that reasons.", Option(option))
    message = f"the chat template of {path.name} has no reasoning parts."
    return InvalidOptionError(option, value, "", hint, message=message)


def ending(
    model: Vocabulary, reasoning: ReasoningFormat | None, prompt: str, o: PromptOptions
) -> str:
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
    """Return messages with reasoning in the field that the template reads, if it reads one."""
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


def call_tokens(model: Vocabulary) -> dict[int, str]:
    """Return the special tokens of the model's tool calls that have no text, with their names."""
    family = family_of(model.chat_template or "")
    ids = {name: model.tokenize(name, special=True, start=False) for name in family.tokens}
    single = ((found[0], name) for name, found in ids.items() if len(found) == 1)
    return {token: name for token, name in single if not model.piece(token)}


def with_tools_in_text(messages: Messages, tools: Tools, family: Family) -> list[dict[str, Any]]:
    """Return the messages of a chat with tools for a template that has none.

    The message of the system describes tools and calls, and calls and results become text.
    """
    found = with_results_of_user(with_calls_in_text(messages, family.write))
    shown = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    form = family.write([("NAME", {"ARGUMENT": "VALUE"})])
    text = _TOOLS_IN_TEXT.format(tools=shown, call=form)
    if found and found[0]["role"] == "system":
        text = f"{found.pop(0)['content']}\n\n{text}"
    return [{"role": "system", "content": text}, *found]


@dataclass(frozen=True)
class ToolHistory:
    """Messages for one template.

    Attributes:
        messages: A call that the template does not render is a placeholder at the end of a content.
        places: Placeholder -> the call in the model's syntax, or its arguments.
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
        return _PLACES.sub(self._filled, text)

    def _filled(self, match: re.Match[str]) -> str:
        """Return the text of a place; quotes around it belong to it only as JSON."""
        whole, place = match[0], match[0].strip('"')
        return self.places.get(whole) or whole.replace(place, self.places.get(place, place))


def tool_history(
    messages: Messages, template: str, tools: Sequence[Mapping[str, Any]] | None
) -> ToolHistory:
    """Fit tools, calls and their results to a template.

    - Ids get the length that the template demands.
    - Several calls of a message become several messages where the template renders only one.
    - Calls become text where the template renders none.
    - Arguments that are no JSON are written as they are.
    - Tools become a field of the system message where the template reads them there.
    """
    family = marked_family(template)
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
    called = [message for message in fitted if message.get("tool_calls")]
    taken = json.dumps(fitted, default=str, ensure_ascii=False) + template if called else ""
    (mark,) = unused(taken, 1, 0x100000) if called else ("",)
    for i, message in enumerate(called):
        calls = [call["function"] for call in message["tool_calls"]]
        if "tool_calls" not in template:
            del message["tool_calls"]
            written = [(one["name"], object_of(one["arguments"])) for one in calls]
            text = family.write(written).removeprefix(family.prompted)
            message[_PLACE] = place = f"{mark}{i}{mark}"
            places[place] = ("\n" if message["content"] else "") + text
        elif any(isinstance(one["arguments"], str) for one in calls):
            # A text that is no JSON, such as that of a cut call, stands there as it is.
            some = []
            for j, call in enumerate(message["tool_calls"]):
                function = call["function"]
                if isinstance(given := function["arguments"], str):
                    place = f"{mark}{i:09}{j:09}{mark}"
                    places |= {place: given, f'"{place}"': given}
                    function = {**function, "arguments": place}
                some.append({**call, "function": function})
            message["tool_calls"] = some
    return ToolHistory(fitted, places)


def with_text_arguments(messages: Messages, as_text: bool = True) -> list[dict[str, Any]]:
    """Return messages whose calls have their arguments as JSON text, or as objects."""
    found = [dict(one) for one in messages]
    for message in found:
        if message.get("tool_calls"):
            message["tool_calls"] = calls = [dict(call) for call in message["tool_calls"]]
            for call in calls:
                arguments = call["function"]["arguments"]
                if as_text and not isinstance(arguments, str):
                    arguments = json.dumps(arguments, ensure_ascii=False)
                arguments = arguments if as_text else object_of(arguments)
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
    text = well_formed(str(given))
    if len(text) == length and text.isascii() and text.isalnum():
        return text
    return hashlib.sha256(text.encode()).hexdigest()[:length]


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
    """Return private-use characters that are not in a text, from the plane of a code point on.

    They have no upper or lower case and are not white space.
    """
    found: set[str] = set()
    while len(found) < n:
        if (mark := chr(first + secrets.randbelow(0xFFFE))) not in taken:
            found.add(mark)
    return [*found]


# ---- prompts


def encode_chat(
    model: Vocabulary,
    messages: Messages,
    options: PromptOptions | None = None,
    most: int | None = None,
) -> list[int]:
    """Return the prompt for the next answer to `messages`.

    Only the template can write special tokens: `<|im_end|>` in a message, in a tool or in the
    value of a variable is tokenised as plain text.

    Args:
        messages: `{"role": ..., "content": ...}` each. Other fields of a message, such as
            `tool_calls`, are passed to the template. `reasoning_content` is passed in the field
            that the template reads, if it reads one.
        options: Prefill, tools, and variables of the template.
        most: Most tokens that are of use; None for any number.

    Returns:
        Token ids.

    Raises:
        TemplateError: There is no template, or it rejects the messages.
        InvalidOptionError: The template does not support an option.
        PromptTooLongError: The prompt has many more than `most` tokens.
    """
    template, options = model.chat_template, options or PromptOptions()
    if template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", Text("{}.", _AS_TEXT))
    if most is not None and len(messages) > most:  # each has a token
        raise PromptTooLongError(len(messages), model.n_ctx, True, model.n_ctx_limit)
    for message in messages:
        _check_message(message)
    if options.tools and not reads_tools(template):
        messages = with_tools_in_text(messages, options.tools, family_of(template))
        options = replace(options, tools=None)
    if most is not None and messages and messages[-1].get("role") == "user":
        # Before the template is rendered, which takes long. It may leave others out.
        for _, value in _texts(messages[-1]):
            model.check_length(well_formed(value).encode(), most, special=True)
    texts = "".join(_strings([messages, options.tools, options.values]))
    if not texts.isascii() and well_formed(texts) != texts:
        messages, tools, values = _changed(
            [messages, options.tools, dict(options.values)], well_formed
        )
        options = replace(options, tools=tools, values=values)
    values, encoder = check_values(model, options), _Encoder(model, options, most)
    given, write = with_reasoning(messages, encoder.reasoning), family_of(template).write
    some = forms(given, template_needs(template), write)
    try:
        return encoder.encode(next(some), values)
    except TemplateError:  # it is strict about what it was not tried with
        for form in () if encoder.rewrites else some:
            with contextlib.suppress(TemplateError):
                return encoder.encode(form, values)
        raise


@lru_cache(maxsize=8)
def template_needs(template: str) -> Needs:
    """Return what a template needs of the messages; it is tried once."""
    family = family_of(template)
    tools = [_TRIED] if reads_tools(template) else None

    def rendered(messages: Messages, typed: bool) -> str:
        history = tool_history(messages, template, tools)
        one = partial(_rendered, template, tools=tools, values={}, typed=typed)
        return history.render(one, history.messages)

    return needs_of(rendered, family.write)


class _Encoder:
    """Renders messages and tokenises the text.

    Contents have marks around them while they are rendered, because templates split them at tags.
    Other texts from outside, such as the arguments of calls and the descriptions of tools, are
    written as JSON or compared: in them a word of digits stands for the name of a special token.
    """

    def __init__(self, model: Vocabulary, options: PromptOptions, most: int | None = None) -> None:
        """A prompt with many more than `most` tokens is refused; None takes each."""
        self._most, self.rewrites = most, False
        self._model, self._options, self.reasoning = model, options, reasoning_format(model)
        self._template = model.chat_template or ""
        self._taken = ""  # texts without the words
        self._start, self._end = False, ""  # begins with a start token; text before the prefill
        self._names: dict[str, str] = {}  # word of digits -> name of a special token

    def encode(self, messages: Messages, values: dict[str, Any]) -> list[int]:
        """Return the token ids of messages; raise TemplateError if they are rejected."""
        model, prefill, tools = self._model, self._options.prefill, self._options.tools
        fitted, prompt = self._prepared(messages, tools, values)
        begin = prompt(fitted)
        self._end = end = ending(model, self.reasoning, begin, self._options)
        text = begin + end + prefill
        start_id = model.special_tokens["bos"]
        bos = model.token_text(start_id) if start_id >= 0 else ""
        self._start = not (bos and text.startswith(bos))
        ids = model.tokenize(text, special=True, start=self._start, most=self._most)
        texts = [dict(_texts(message)) for message in messages]
        contents = [*(value for one in texts for value in one.values()), prefill]
        others = [
            {name: value for name, value in message.items() if name not in some}
            for message, some in zip(messages, texts, strict=True)
        ]
        has_names = self._spells("\n".join(_strings([others, tools, values])))
        if not (has_names or any(_UNUSUAL.search(one) or self._spells(one) for one in contents)):
            return ids
        self._taken = json.dumps([messages, tools, values], default=str) + self._template + prefill
        if has_names:
            others, tools, values = self._without_names([others, tools, values])
            given = [a | b for a, b in zip(others, texts, strict=True)]
            worded, worded_prompt = self._prepared(given, tools, values)
            rendered = worded_prompt(worded) + end + prefill
            if self._with_names(rendered) == text:
                fitted, prompt, text = worded, worded_prompt, rendered
            # The template may write them in another way, as with an escape.
            elif self._controls(ids) != self._written([(rendered, True)]):
                raise self._rewrites()
        parts = self._cut(self._marked(fitted, prompt, text))
        by_template = self._written(parts)
        # the texts add no special token, neither alone nor joined with the template's
        if self._controls(ids) == by_template:
            return ids
        return self._tokens_by_part(parts, by_template)

    def _prepared(
        self, messages: Messages, tools: Tools | None, values: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], Callable[[Messages], str]]:
        """Return messages that fit the template, and what renders them with other contents."""
        history = tool_history(messages, self._template, tools)
        render = partial(_render, self._model, self._template, tools=tools, values=values)
        return history.messages, partial(history.render, render)

    def _marked(
        self, messages: list[dict[str, Any]], prompt: Callable[[Messages], str], text: str
    ) -> list[tuple[str, bool]]:
        """Return the parts of a prompt, each with a flag: whether the template wrote it.

        Raises:
            TemplateError: The template may have made a special token of a content.
        """
        prefill, model = self._options.prefill, self._model
        contents = [*(value for m in messages for _, value in _texts(m)), prefill]
        marks = _Marks(*unused("".join([self._template, text, *contents]), len(_Marks._fields)))

        def is_special(part: str) -> bool:
            return bool(self._controls(model.tokenize(part, special=True, start=False)))

        marked = prompt(_rewritten(messages, partial(_mark, marks=marks)))
        parts = _parts(marked + self._end + _mark(prefill, marks), marks, is_special)
        if parts is not None and "".join(part for part, _ in parts) == text:
            return parts
        if any(map(self._spells, contents)):
            before, messages = text, _rewritten(messages, self._without_names)
            text = prompt(messages) + self._end + self._without_names(prefill)
            if self._with_names(text) != self._with_names(before):
                raise self._rewrites()
        harmless_text = partial(_UNUSUAL.sub, "x")  # it cannot contain a special token
        plain = prompt(_rewritten(messages, harmless_text)) + self._end + harmless_text(prefill)
        if self._written([(plain, True)]) != self._written([(text, True)]):
            raise self._rewrites()
        return [(text, True)]

    def _rewrites(self) -> TemplateError:
        self.rewrites = True
        return TemplateError(
            f"the chat template of {self._model.path.name} rewrites the messages, and a message "
            "could become a special token.",
            "remove texts that look like special tokens, such as <|im_end|>.",
        )

    # ---- special tokens

    def _spells(self, text: str) -> bool:
        return spells_special(self._model, self.reasoning, text)

    def _controls(self, ids: Sequence[int]) -> list[int]:
        """Return the control tokens among ids: those without text, and those of channels."""
        shown = self.reasoning.shown if self.reasoning else {}
        controls = {t for t in set(ids) if t in shown or not self._model.piece(t)}
        return [token for token in ids if token in controls]

    def _pattern(self, controls: Sequence[int], text: str) -> str:
        """Return a pattern of the names of control tokens in a text, longer ones first."""
        names = {self._model.token_text(token) for token in set(controls)}
        found = sorted((one for one in names if one and one in text), key=len, reverse=True)
        return "|".join(map(re.escape, found))

    def _without_names(self, value: Any) -> Any:
        """Return a value in whose texts a word stands for each name of a special token."""

        def words(text: str) -> str:
            while self._spells(text):
                ids = self._model.tokenize(text, special=True, start=False)
                pattern = self._pattern(self._controls(ids), text)
                if not pattern:
                    raise self._rewrites()
                text = re.sub(pattern, lambda match: self._word(match[0]), text)
            return text

        return _changed(value, words)

    def _word(self, name: str) -> str:
        """Return the word of digits for a name; it is in no text from outside."""
        word = name
        while not word.isdecimal() or word in self._taken:
            digest = hashlib.sha256(word.encode("utf-8", "replace")).hexdigest()
            word = str(int(digest, 16)).zfill(78)[:30]
        self._names[word] = name
        return word

    def _with_names(self, text: str) -> str:
        for word, name in self._names.items():
            text = text.replace(word, name)
        return text

    def _cut(self, parts: list[tuple[str, bool]]) -> list[tuple[str, bool]]:
        """Return parts in which the names that words stand for are parts of their own."""
        if not self._names:
            return parts
        pattern, found = f"({'|'.join(self._names)})", list[tuple[str, bool]]()
        for text, is_template in parts:
            for one in re.split(pattern, text):
                name = self._names.get(one)
                found.append((one, is_template) if name is None else (name, False))
        return _joined(found)

    def _written(self, parts: list[tuple[str, bool]]) -> list[int]:
        """Return the special tokens that the template wrote."""
        ids: list[int] = []
        for i, (text, is_template) in enumerate(self._cut(parts)):
            if is_template:
                ids += self._model.tokenize(text, special=True, start=self._start and i == 0)
        return self._controls(ids)

    def _tokens_by_part(
        self, parts: list[tuple[str, bool]], by_template: Sequence[int]
    ) -> list[int]:
        """Return the tokens of the parts of a prompt, in which the template wrote special tokens.

        A text is tokenised as one up to the special tokens around it.
        """
        ids, found = list[int](), list[tuple[str, bool]]()
        for text, is_template in parts:
            pattern = self._pattern(by_template, text) if is_template else ""
            names = [*re.finditer(rf"\s*(?:{pattern})\s*", text)] if pattern else []
            if names:
                begin, end = names[0].start(), names[-1].end()
                found += [(text[:begin], False), (text[begin:end], True), (text[end:], False)]
            else:
                found.append((text, False))
        for i, (text, is_template) in enumerate(_joined(found)):
            begins = self._start and i == 0
            if is_template:
                ids += self._model.tokenize(text, special=True, start=begins)
            else:
                ids += plain_tokens(self._model, self.reasoning, text, begins)
        return ids


def _rewritten(messages: Messages, change: Callable[[str], str]) -> list[dict[str, Any]]:
    return [
        {**message, **{name: change(value) for name, value in _texts(message)}}
        for message in messages
    ]


def _texts(message: Message) -> list[tuple[str, str]]:
    """Return the fields of a message whose text may look like a special token."""
    return [(name, message[name]) for name in _TEXTS if isinstance(message.get(name), str)]


class _Marks(NamedTuple):
    """Marker characters around contents, and around tag-like texts with their white space.

    Neither template nor messages contain them.
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
    before, _, after = content.partition(core)
    core = _TAG.sub(lambda match: f"{marks.tag}{match[0]}{marks.after_tag}", core)
    return f"{before}{marks.begin}{core}{marks.end}{after}"


def _parts(
    text: str, marks: _Marks, is_special: Callable[[str], bool]
) -> list[tuple[str, bool]] | None:
    """Split a rendered text into parts, each with a flag: whether the template wrote it.

    A content starts after `begin` and ends before `end`. The text between `tag` and `after_tag` is
    a tag, or the template's replacement where it splits a content at a tag; both count as content.
    A template may drop the text before `after_tag`. Special tokens there, other than a single tag,
    have an unknown origin. The result is None for such a token, or for markers out of order.
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
    """Join adjacent parts of one origin, as a content may spell a special token in two parts."""
    groups = groupby((part for part in parts if part[0]), lambda part: part[1])
    return [("".join(text for text, _ in some), is_template) for is_template, some in groups]


def _check_message(message: object) -> None:
    if not (
        isinstance(message, Mapping)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
    ):
        raise TemplateError(
            f"{message!r} is not a message with a role and a text.",
            'write messages as {"role": "user", "content": "..."}.',
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    """Return a nested value with changed texts, field names included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_changed(name, change): _changed(one, change) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_changed(one, change) for one in value]
    return value


def _render(
    model: Vocabulary,
    template: str,
    messages: Messages,
    tools: Tools | None,
    values: Mapping[str, Any],
) -> str:
    def name(token: int) -> str:
        return model.token_text(token) if token >= 0 else ""

    ids = model.special_tokens
    names = {"bos_token": name(ids["bos"]), "eos_token": name(ids["eos"])}
    typed = template_needs(template).typed
    try:
        return _rendered(template, messages, tools, {**values, **names}, typed)
    except TemplateFailure as error:
        hint = Text("check the roles and their order, or {}.", _AS_TEXT)
        if (fault := template_fault(template)) and fault.name in str(error):
            other = "load the model with another one[ ({chat_template})]"
            hint = Text("the template is wrong ({}): " + other + ", or {}.", fault.text, _AS_TEXT)
        raise TemplateError(
            f"the chat template of {model.path.name} fails: {error}.", hint
        ) from error


def _rendered(
    template: str,
    messages: Messages,
    tools: Tools | None,
    values: Mapping[str, Any],
    typed: bool = False,
) -> str:
    """Return the text of messages; `typed` templates take contents as arrays of parts.

    Raises:
        TemplateFailure: The template refuses the messages.
    """
    variables = [one for one in TOOL_VARIABLES if one == "tools" or one in template]
    shown = [dict(tool) for tool in tools] if tools else None
    own: dict[str, Any] = dict.fromkeys(("tool_choice", "functions", "function_call"))
    own |= {"add_generation_prompt": True} | dict.fromkeys(variables, shown)
    values = {"bos_token": "", "eos_token": ""} | dict(values) | own

    def result(some: Messages) -> str:
        return render(template, values | {"messages": with_parts(some) if typed else [*some]})

    try:
        return result([dict(message) for message in messages])
    except TemplateFailure:
        if not any(message.get("tool_calls") for message in messages):
            raise
        # Some templates join the arguments as text, and some read the fields of an object.
        with contextlib.suppress(TemplateFailure):
            return result(with_text_arguments(messages))
        return result(with_text_arguments(messages, False))
