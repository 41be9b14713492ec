"""Plugin for llm: the models of gguf-spec on this disk, with speculative decoding.

`llm` imports this module at each start: llama.cpp is imported with the first prompt only.
"""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from threading import Lock
from typing import Any

import llm
from llm.parts import ReasoningPart, StreamEvent, TextPart, ToolCallPart, ToolResultPart
from pydantic import Field, create_model

import gguf_spec
from gguf_spec import models
from gguf_spec.errors import GgufSpecError
from gguf_spec.options import LOADING, SAMPLING
from gguf_spec.tools import ToolReader, ToolUse, family_of

_TYPES: dict[str, type] = {"number": float, "integer": int, "boolean": bool, "string": str}
_SAMPLING = {
    name: (_TYPES[rule.type], rule.help)
    for name, rule in SAMPLING.items()
    if rule.shape == "one" and rule.type in _TYPES
}
_LOADING = {name: (int, LOADING[name].help) for name in ("n_ctx", "threads")} | {
    "draft": (str, "Draft: a model, mtp, ngram, none, or auto.")
}
_OTHER = {
    "stop": (str, "String that ends the answer; it is not part of it."),
    "think": (bool, "Whether the model reasons before its answer."),
}
Options: type[llm.Options] = create_model(
    "Options",
    __base__=llm.Options,
    **{
        name: (kind | None, Field(default=None, description=text))
        for name, (kind, text) in (_SAMPLING | _OTHER | _LOADING).items()
    },
)
_lock = Lock()


@cache  # models stay loaded
def _load(name: str, **options: Any) -> gguf_spec.LLM:
    return gguf_spec.load(name, **options)


@llm.hookimpl
def register_models(register: Callable[..., None]) -> None:
    """Register the models on this disk."""
    for entry in _entries():
        names = (entry.name, *entry.aliases)
        register(GgufSpec(entry.name), AsyncGgufSpec(entry.name), aliases=names)


@llm.hookimpl
def register_embedding_models(register: Callable[..., None]) -> None:
    """Register the models on this disk: all of them give embeddings."""
    for entry in _entries():
        register(GgufSpecEmbeddings(entry.name), aliases=(entry.name, *entry.aliases))


def _entries() -> list[models.Entry]:
    """Return the models of `gguf-spec models list` that need no download, and other programs'.

    A models file that cannot be read is a warning: `llm` calls this at each start, for any model.
    """
    try:
        named = [entry for entry in models.list_models() if models.find(entry)]
        return [*named, *models.list_local()]
    except GgufSpecError as error:
        warnings.warn(f"llm-gguf-spec: {error} Hint: {error.hint}", stacklevel=2)
        return []


@contextmanager
def _readable_errors() -> Iterator[None]:
    try:
        yield
    except GgufSpecError as error:
        raise llm.ModelError(f"{error}\nHint: {error.hint}") from error


class _Shared:
    can_stream = supports_schema = supports_tools = True
    Options = Options

    def __init__(self, name: str) -> None:
        self.model_id, self._name = f"gguf-spec/{name}", name

    def _loaded(self, options: llm.Options) -> gguf_spec.LLM:
        given = {name: one for name in _LOADING if (one := getattr(options, name)) is not None}
        with _lock:
            return _load(self._name, **given)


def _arguments(model: gguf_spec.LLM, prompt: llm.Prompt) -> dict[str, Any]:
    """Return the arguments of `LLM.stream` for a prompt.

    A model that continues texts reads all of the conversation as one text, unless there is a system
    message or a tool.
    """
    given = {name: getattr(prompt.options, name) for name in _SAMPLING}
    fields: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
    fields |= {"stop": (prompt.options.stop,)} if prompt.options.stop else {}
    fields |= {"json_schema": prompt.schema} if prompt.schema else {}
    # as in the server, an answer may have any length unless one is given
    sampling = replace(model.sampling, **({"max_tokens": None} | fields))
    messages = [one for message in prompt.messages for one in _messages(message)]
    tools, think = [*map(_tool, prompt.tools)] or None, prompt.options.think
    is_plain = {one["role"] for one in messages} <= {"user", "assistant"} and think is None
    if model.prompt == "text" and is_plain and not tools:
        return {"prompt": "".join(one["content"] for one in messages), "sampling": sampling}
    return {"prompt": messages, "sampling": sampling, "tools": tools, "think": think}


def _messages(message: Any) -> Iterator[dict[str, Any]]:
    """Yield a message of llm in OpenAI's format; results of tools are one message each."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    for part in results:
        said = {"role": "tool", "name": part.name, "content": part.output}
        yield said | ({"tool_call_id": part.tool_call_id} if part.tool_call_id else {})
    if results:
        return

    def joined(kind: type) -> str:
        return "".join(part.text for part in message.parts if isinstance(part, kind))

    said = {"role": message.role, "content": joined(TextPart)}
    if reasoning := joined(ReasoningPart):
        said["reasoning_content"] = reasoning
    calls = [
        {"id": part.tool_call_id, "type": "function",
         "function": {"name": part.name, "arguments": json.dumps(part.arguments)}}
        for part in message.parts if isinstance(part, ToolCallPart)
    ]  # fmt: skip
    yield said | ({"tool_calls": calls} if calls else {})


def _tool(tool: llm.Tool) -> dict[str, Any]:
    function = {"name": tool.name, "parameters": tool.input_schema}
    function |= {"description": tool.description} if tool.description else {}
    return {"type": "function", "function": function}


class _Answer:
    """Converts an answer to events of llm: reasoning, text, and the calls at its end."""

    def __init__(self, model: gguf_spec.LLM, prompt: llm.Prompt, response: Any) -> None:
        family, use = family_of(model.chat_template or ""), ToolUse([*map(_tool, prompt.tools)])
        self._reader = ToolReader(family, use.schemas) if use.tools else None
        self._response = response
        self._calls: list[tuple[str, str]] = []

    def events(self, chunk: gguf_spec.Chunk) -> Iterator[StreamEvent]:
        for part in chunk.parts:
            if self._reader and part.kind == "text":
                yield from self._read(self._reader.push(part.text))
            else:
                yield StreamEvent(part.kind, part.text)

    def _read(self, events: Iterable[Any]) -> Iterator[StreamEvent]:
        for event in events:
            if event.kind == "call":
                self._calls.append((event.text, ""))
            elif event.kind == "arguments":
                name, arguments = self._calls.pop()
                self._calls.append((name, arguments + event.text))
            elif event.kind != "end":
                if event.kind == "broken":  # it is text, not a call
                    self._calls.pop()
                yield StreamEvent("text", event.text)

    def last_events(self, result: gguf_spec.Completion) -> Iterator[StreamEvent]:
        """Yield the remaining events, and store calls, usage and seed in the response."""
        yield from self._read(self._reader.finish() if self._reader else ())
        for name, arguments in self._calls:
            self._response.add_tool_call(llm.ToolCall(name, json.loads(arguments)))
        stats = result.stats
        details = {"drafted": stats.n_drafted, "accepted": stats.n_accepted}
        self._response.set_usage(input=stats.n_prompt, output=stats.n_generated, details=details)
        more = {"finish_reason": result.finish_reason, "stats": stats.to_dict()}
        self._response.response_json = {"seed": result.seed} | more


class GgufSpec(_Shared, llm.Model):
    """A model for texts, chats, schemas and tools."""

    def execute(self, prompt, stream, response, conversation):
        with _readable_errors():
            model = self._loaded(prompt.options)
            answer = _Answer(model, prompt, response)
            with model.stream(**_arguments(model, prompt)) as chunks:
                for chunk in chunks:
                    yield from answer.events(chunk)
            yield from answer.last_events(chunks.result)


class AsyncGgufSpec(_Shared, llm.AsyncModel):
    """The same for asyncio; an `AsyncLLM` belongs to one event loop."""

    _of_loop: tuple[Any, gguf_spec.AsyncLLM] = (None, None)

    async def execute(self, prompt, stream, response, conversation):
        with _readable_errors():
            model = await asyncio.to_thread(self._loaded, prompt.options)
            key, answer = (asyncio.get_running_loop(), model), _Answer(model, prompt, response)
            if self._of_loop[0] != key:
                self._of_loop = key, gguf_spec.AsyncLLM(model)
            async with self._of_loop[1].stream(**_arguments(model, prompt)) as chunks:
                async for chunk in chunks:
                    for event in answer.events(chunk):
                        yield event
            for event in answer.last_events(chunks.result):
                yield event


class GgufSpecEmbeddings(llm.EmbeddingModel):
    """A model for embeddings, one vector of length 1 for each text."""

    batch_size = 64

    def __init__(self, name: str) -> None:
        self.model_id, self._name = f"gguf-spec/{name}", name

    def embed_batch(self, items, *, key=None):
        with _readable_errors():
            with _lock:
                model = _load(self._name, draft="none")
            return [row.tolist() for row in model.embed([*items])]
