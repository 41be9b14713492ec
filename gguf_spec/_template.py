"""Messages to token ids, by the chat template in the model file. Neither the template nor the messages are trusted."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ._jinja import TemplateFailure, render
from ._model import Model
from .errors import InvalidOptionError, TemplateError

Message = Mapping[str, Any]
Tools = Sequence[Mapping[str, Any]]


def encode_chat(model: Model, messages: Sequence[Message], prefill: str = "", tools: Tools | None = None) -> list[int]:
    """Return the prompt for the next answer to `messages`.

    Special tokens count only where the template writes them: a message that spells `<|im_end|>` holds just these letters.

    Args:
        model: A model whose file holds a template.
        messages: `{"role": ..., "content": ...}` each; what else a message holds, such as `tool_calls`, is the template's to read.
        prefill: What the answer begins with.
        tools: What the model may call, in OpenAI's form.

    Raises:
        TemplateError: No template, or one that refuses the messages.
        InvalidOptionError: The template has no place for tools, or a tool spells a special token.
    """
    template = model.chat_template
    if template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", "give the whole prompt as text (--raw).")
    for message in messages:
        _check_message(model, message)
    if tools:
        _check_tools(model, template, tools)
    text = _render(model, template, messages, tools) + prefill
    bos = model.token_text(model.vocabulary["bos"]) if model.vocabulary["bos"] >= 0 else ""
    start = not (bos and text.startswith(bos))
    contents = {*(m["content"] for m in messages), prefill}
    marks = {content: secrets.token_hex(16) for content in contents if _spells_special(model, content)}
    if not marks:
        return model.tokenize(text, special=True, start=start)
    # Rare and slower: marks stand in for these contents, so that template and contents are tokenized apart.
    marked = [{**m, "content": marks.get(m["content"], m["content"])} for m in messages]
    text = _render(model, template, marked, tools) + marks.get(prefill, prefill)
    named = {mark: content for content, mark in marks.items()}
    ids: list[int] = []
    for i, part in enumerate(re.split(f"({'|'.join(named)})", text)):
        ids += model.tokenize(str(named.get(part, part)), special=part not in named, start=start and i == 0)
    return ids


def _check_message(model: Model, message: object) -> None:
    if not (isinstance(message, Mapping) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)):
        raise TemplateError(f"a message is {message!r}.", 'write messages as {"role": "user", "content": "..."}.')
    others = [value for name, value in message.items() if name != "content"]
    if _spells_special(model, "\n".join(_strings(others))):
        raise TemplateError(f"a message of the role {message['role']!r} spells a special token outside its content.", "leave it out.")


def _check_tools(model: Model, template: str, tools: Tools) -> None:
    names = [tool.get("function", {}).get("name") for tool in tools]
    if not re.search(r"\btools\b", template):
        raise InvalidOptionError("tools", names, f"left out: the chat template of {model.path.name} has no place for them")
    if _spells_special(model, "\n".join(_strings(tools))):
        raise InvalidOptionError("tools", names, "without the model's special tokens in names and descriptions")


def _strings(value: Any) -> Iterator[str]:
    """Yield all strings that a value holds, names of fields too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _strings(one)
    elif isinstance(value, Sequence):
        for one in value:
            yield from _strings(one)


def _spells_special(model: Model, content: str) -> bool:
    return model.tokenize(content, special=True, start=False) != model.tokenize(content, special=False, start=False)


def _render(model: Model, template: str, messages: Sequence[Message], tools: Tools | None) -> str:
    def name(token: int) -> str:
        return model.token_text(token) if token >= 0 else ""

    values = {
        "messages": [dict(m) for m in messages], "add_generation_prompt": True,
        "bos_token": name(model.vocabulary["bos"]), "eos_token": name(model.vocabulary["eos"]),
        "tools": [dict(tool) for tool in tools] if tools else None, "tool_choice": None, "functions": None, "function_call": None,
    }  # fmt: skip
    try:
        return render(template, values)
    except TemplateFailure as error:
        hint = "check the roles and their order, or give the whole prompt as text (--raw)."
        raise TemplateError(f"the chat template of {model.path.name} fails: {error}.", hint) from error
