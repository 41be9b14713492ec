"""Variables of a chat template: those that it reads, and those that a request sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from jinja2 import Environment, TemplateError

from ..errors import InvalidOptionError, Option, OptionConflictError, Text
from ..llama.model import Model
from .jinja_sandbox import MAX_SOURCE
from .reasoning import ChannelSyntax, ReasoningFormat, reasoning_format, spells_special

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
# Variables that switch reasoning on or off, in the templates that have such a switch.
_SWITCHES = ("enable_thinking", "thinking")


@lru_cache(maxsize=8)
def names_read(template: str) -> frozenset[str]:
    """Return the variables that a template reads before it sets them.

    The source is only split into tokens, so an untrusted template costs time in proportion to its
    length.
    """
    if len(template) > MAX_SOURCE:
        return frozenset()
    try:
        lexed = [(kind, text) for _, kind, text in Environment().lex(template)]
    except TemplateError:
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
    tools: Sequence[Mapping[str, Any]] | None = None
    think: bool | None = None
    values: Mapping[str, Any] = field(default_factory=dict)


def read_options(
    prefill: str,
    tools: Sequence[Mapping[str, Any]] | None,
    think: bool | None,
    values: Mapping[str, Any] | None,
) -> PromptOptions:
    """Return the options of a prompt; the variable `enable_thinking` is the option `think`.

    Raises:
        InvalidOptionError: `think` is not a bool, or it contradicts the variable.
    """
    values = dict(values or {})
    if think not in (None, True, False):
        raise InvalidOptionError("think", think, "True, False or None")
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
        said = message.pop("reasoning_content", None)
        # The template of gpt-oss takes the reasoning of a call only, and rejects it beside a
        # content.
        is_call = bool(message.get("tool_calls")) and not message.get("content")
        if reasoning is None or (isinstance(reasoning.syntax, ChannelSyntax) and not is_call):
            continue
        if said and reasoning.field is not None:
            message[reasoning.field] = said
    return read
