"""Messages to token ids, by the chat template in the model file. Neither the template nor the messages are trusted."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ._jinja import TemplateFailure, render
from ._model import Model
from .errors import TemplateError

Message = Mapping[str, str]
Tools = Sequence[Mapping[str, Any]]


def encode_chat(model: Model, messages: Sequence[Message], prefill: str = "", tools: Tools | None = None) -> list[int]:
    """Return the prompt for the next answer to `messages`.

    Special tokens count only where the template writes them: a message that spells `<|im_end|>` holds just these letters.

    Args:
        model: A model whose file holds a template.
        messages: `{"role": ..., "content": ...}` each.
        prefill: What the answer begins with.
        tools: What the model may call, for the template.

    Raises:
        TemplateError: No template, or one that refuses the messages.
    """
    if model.chat_template is None:
        raise TemplateError(f"{model.path.name} has no chat template.", "give the whole prompt as text (--raw).")
    for message in messages:
        if not (isinstance(message, Mapping) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)):
            raise TemplateError(f"a message is {message!r}.", 'write messages as {"role": "user", "content": "..."}.')
    text = _render(model, model.chat_template, messages, tools) + prefill
    bos = model.token_text(model.vocabulary["bos"]) if model.vocabulary["bos"] >= 0 else ""
    start = not (bos and text.startswith(bos))
    contents = [*(m["content"] for m in messages), prefill]
    if not any(_spells_special(model, content) for content in contents):
        return model.tokenize(text, special=True, start=start)
    # Rare and slower: marks stand in for the contents, so that template and contents are tokenized apart.
    marks = [secrets.token_hex(16) for _ in contents]
    text = _render(model, model.chat_template, [{**m, "content": mark} for m, mark in zip(messages, marks, strict=False)], tools) + marks[-1]
    ids: list[int] = []
    for mark, content in zip(marks, contents, strict=True):
        before, found, after = text.partition(mark)
        if found:
            ids += model.tokenize(before, special=True, start=start and not ids)
            ids += model.tokenize(content, special=False, start=False)
            text = after
    return ids + model.tokenize(text, special=True, start=start and not ids)


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
