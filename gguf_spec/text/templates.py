"""Chat templates of models: what is known of each, and the prompts that they make."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from ..errors import Option, TemplateError, Text
from ..options import Message, PromptOptions, Tools
from ..tools.families import TOOL_VARIABLES, Family, family_of, marked_family, reads_tools
from ..vocabulary import Vocabulary
from . import chat_template
from .jinja_sandbox import TemplateFailure, names_read, render, template_fault
from .turns import Messages, Needs, needs_of, tool_history, with_parts, with_text_arguments

_AS_TEXT = Text("give the whole prompt as text[ ({})]", Option("raw", True, of_commands=True))
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


@dataclass(frozen=True)
class Template:
    """A template; implements `chat_template.Template`."""

    source: str
    variables: frozenset[str]
    reads_tools: bool
    calls: Family
    rendered_calls: Family

    @property
    def needs(self) -> Needs:
        return template_needs(self.source)

    def render(
        self,
        model: Vocabulary,
        messages: Messages,
        *,
        tools: Tools | None,
        values: Mapping[str, Any],
    ) -> str:
        def name(token: int) -> str:
            return model.token_text(token) if token >= 0 else ""

        ids = model.special_tokens
        names = {"bos_token": name(ids["bos"]), "eos_token": name(ids["eos"])}
        typed = self.needs.typed
        try:
            return _rendered(self.source, messages, tools, {**values, **names}, typed)
        except TemplateFailure as error:
            hint = Text("check the roles and their order, or {}.", _AS_TEXT)
            if (fault := template_fault(self.source)) and fault.name in str(error):
                other = "load the model with another one[ ({chat_template})]"
                hint = Text(
                    "the template is wrong ({}): " + other + ", or {}.", fault.text, _AS_TEXT
                )
            raise TemplateError(
                f"the chat template of {model.path.name} fails: {error}.", hint
            ) from error


@lru_cache(maxsize=8)
def template_of(source: str) -> Template:
    """Return what is known of a template."""
    calls, marked = family_of(source), marked_family(source)
    return Template(source, names_read(source), reads_tools(source), calls, marked)


def encode_chat(
    model: Vocabulary,
    messages: Sequence[Message],
    options: PromptOptions | None = None,
    most: int | None = None,
) -> list[int]:
    """Return the prompt for the next answer to `messages`; see `chat_template.encode`.

    Raises:
        TemplateError: The model has no template, or it rejects the messages.
    """
    if model.chat_template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", Text("{}.", _AS_TEXT))
    template = template_of(model.chat_template)
    return chat_template.encode(model, template, messages, options, most)


def call_tokens(model: Vocabulary) -> dict[int, str]:
    """Return the special tokens of the model's tool calls that have no text, with their names."""
    family = family_of(model.chat_template or "")
    ids = {name: model.tokenize(name, special=True, start=False) for name in family.tokens}
    single = ((found[0], name) for name, found in ids.items() if len(found) == 1)
    return {token: name for token, name in single if not model.piece(token)}


@lru_cache(maxsize=8)
def template_needs(template: str) -> Needs:
    """Return what a template needs of the messages; it is tried once."""
    family = family_of(template)
    tools = [_TRIED] if reads_tools(template) else None

    def rendered(messages: Messages, typed: bool) -> str:
        history = tool_history(messages, template, marked_family(template), tools)
        one = partial(_rendered, template, tools=tools, values={}, typed=typed)
        return history.render(one, history.messages)

    return needs_of(rendered, family.write)


def _rendered(
    source: str,
    messages: Messages,
    tools: Tools | None,
    values: Mapping[str, Any],
    typed: bool = False,
) -> str:
    """Return the text of messages; `typed` templates take contents as arrays of parts.

    Raises:
        TemplateFailure: The template refuses the messages.
    """
    variables = [one for one in TOOL_VARIABLES if one == "tools" or one in source]
    shown = [dict(tool) for tool in tools] if tools else None
    own: dict[str, Any] = dict.fromkeys(("tool_choice", "functions", "function_call"))
    own |= {"add_generation_prompt": True} | dict.fromkeys(variables, shown)
    values = {"bos_token": "", "eos_token": ""} | dict(values) | own

    def result(some: Messages) -> str:
        return render(source, values | {"messages": with_parts(some) if typed else [*some]})

    try:
        return result([dict(message) for message in messages])
    except TemplateFailure:
        if not any(message.get("tool_calls") for message in messages):
            raise
        # Some templates join the arguments as text, and some read the fields of an object.
        with contextlib.suppress(TemplateFailure):
            return result(with_text_arguments(messages))
        return result(with_text_arguments(messages, False))
