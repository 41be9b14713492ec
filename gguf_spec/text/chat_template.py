"""Prompts of chats: messages as token ids, of which only the template writes special tokens.

Template and messages are both untrusted. What is known of a template is given in; `templates.py`
finds it out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from ..errors import (
    InvalidOptionError,
    Option,
    OptionConflictError,
    PromptTooLongError,
    TemplateError,
)
from ..options import Message, PromptOptions, Tools, no_reasoning, well_formed
from ..vocabulary import Vocabulary
from .reasoning import (
    REASONING_FIELDS,
    ChannelSyntax,
    ReasoningFormat,
    plain_tokens,
    reasoning_format,
    spells_special,
)
from .turns import Calls, Messages, Needs, forms, tool_history, unused, with_tools_in_text

# characters that occur in special tokens, or that a template could turn into such characters
_UNUSUAL = re.compile(r"[^\w\s.,;:!?'\"()-]")
# tag-like text with its white space
_TAG = re.compile(r"\s*(?:<[^<>\s]{1,60}>|\[/?[A-Z_]{1,40}\])\s*")
# Fields of a message with free text.
_TEXTS = ("content", *REASONING_FIELDS)
# Variables that switch reasoning on or off, in the templates that have such a switch.
_SWITCHES = ("enable_thinking", "thinking")


class Template(Protocol):
    """What a chat needs of the template of its model."""

    @property
    def source(self) -> str:
        """The Jinja program."""

    @property
    def variables(self) -> AbstractSet[str]:
        """The variables that it reads."""

    @property
    def reads_tools(self) -> bool:
        """Whether it renders tools."""

    @property
    def calls(self) -> Calls:
        """How calls are written as text where it renders none."""

    @property
    def rendered_calls(self) -> Calls:
        """How it renders calls itself."""

    @property
    def needs(self) -> Needs:
        """Ways to write a conversation that it needs."""

    def render(
        self,
        model: Vocabulary,
        messages: Messages,
        *,
        tools: Tools | None,
        values: Mapping[str, Any],
    ) -> str:
        """Return the text of messages; raise TemplateError if it refuses them."""


# ---- variables


def check_values(
    model: Vocabulary, read: AbstractSet[str], options: PromptOptions
) -> dict[str, Any]:
    """Return the variables of a template, which reads some, the switches for reasoning included.

    Raises:
        InvalidOptionError: The template does not read a variable, a value is not plain, or the
            model cannot reason as requested.
    """
    reasoning = reasoning_format(model)
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


def ending(
    read: AbstractSet[str], reasoning: ReasoningFormat | None, prompt: str, o: PromptOptions
) -> str:
    """Return the text after a rendered prompt with which an answer without reasoning begins.

    It is empty unless the request forbids reasoning or has a prefill. Reasoning that the template
    has opened is closed. A template without a switch gets an empty reasoning part, or the final
    channel.
    """
    if reasoning is None or not (o.think is False or o.prefill):
        return ""
    has_switch = any(name in read for name in _SWITCHES)
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


# ---- prompts


def encode(
    model: Vocabulary,
    template: Template,
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
        TemplateError: The template rejects the messages.
        InvalidOptionError: The template does not support an option.
        PromptTooLongError: The prompt has many more than `most` tokens.
    """
    options = options or PromptOptions()
    if most is not None and len(messages) > most:  # each has a token
        raise PromptTooLongError(len(messages), model.n_ctx, True, model.n_ctx_limit)
    for message in messages:
        _check_message(message)
    if options.tools and not template.reads_tools:
        messages = with_tools_in_text(messages, options.tools, template.calls)
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
    values = check_values(model, template.variables, options)
    encoder = _Encoder(model, template, options, most)
    given = with_reasoning(messages, encoder.reasoning)
    some = forms(given, template.needs, template.calls.write)
    try:
        return encoder.encode(next(some), values)
    except TemplateError:  # it is strict about what it was not tried with
        for form in () if encoder.rewrites else some:
            with contextlib.suppress(TemplateError):
                return encoder.encode(form, values)
        raise


class _Encoder:
    """Renders messages and tokenises the text.

    Contents have marks around them while they are rendered, because templates split them at tags.
    Other texts from outside, such as the arguments of calls and the descriptions of tools, are
    written as JSON or compared: in them a word of digits stands for the name of a special token.
    """

    def __init__(
        self, model: Vocabulary, template: Template, options: PromptOptions, most: int | None
    ) -> None:
        """A prompt with many more than `most` tokens is refused; None takes each."""
        self._most, self.rewrites = most, False
        self._model, self._options, self.reasoning = model, options, reasoning_format(model)
        self._template = template
        self._taken = ""  # texts without the words
        self._start, self._end = False, ""  # begins with a start token; text before the prefill
        self._names: dict[str, str] = {}  # word of digits -> name of a special token

    def encode(self, messages: Messages, values: dict[str, Any]) -> list[int]:
        """Return the token ids of messages; raise TemplateError if they are rejected."""
        model, prefill, tools = self._model, self._options.prefill, self._options.tools
        fitted, prompt = self._prepared(messages, tools, values)
        begin = prompt(fitted)
        self._end = end = ending(self._template.variables, self.reasoning, begin, self._options)
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
        self._taken = json.dumps([messages, tools, values], default=str)
        self._taken += self._template.source + prefill
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
        template = self._template
        history = tool_history(messages, template.source, template.rendered_calls, tools)
        render = partial(template.render, self._model, tools=tools, values=values)
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
        marks = _Marks(
            *unused("".join([self._template.source, text, *contents]), len(_Marks._fields))
        )

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
