"""Response dictionaries in OpenAI's format, as returned by llama-cpp-python."""

from __future__ import annotations

import queue
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..results import Chunk, Completion, TokenLogprob
from ..runtime.stream import Stream
from ..tools.families import Family, ToolUse
from ..tools.reader import ToolDeltas, whole_answer

Dict = dict[str, Any]
# Syntax of the calls in an answer, and the tools.
Calls = tuple[Family, ToolUse]


@dataclass(frozen=True)
class Head:
    """Fields that all parts of an answer share, and builder of these parts.

    Attributes:
        model: Name of the model in the answer.
        text_of: Function from a token id to its text.
        n_before: Number of characters before the first token, for the `text_offset` of
            log-probabilities.
        id: Id of the answer.
        created: Unix time in seconds.
    """

    model: str
    text_of: Callable[[int], str]
    n_before: int = 0
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, result: Completion, with_logprobs: bool) -> Dict:
        """Return a complete answer."""
        n_prompt, n = result.stats.n_prompt, len(result.tokens)
        logprobs = self._logprobs(result.logprobs, self.n_before) if with_logprobs else None
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}
        return self._part(result.text, logprobs, result.finish_reason) | {"usage": usage}

    def parts(self, chunks: Iterator[Chunk], with_logprobs: bool) -> Iterator[Dict]:
        """Yield the parts of an answer; the last one has the finish reason and no text."""
        at, finish = self.n_before, "stop"
        for chunk in chunks:
            logprobs = self._logprobs(chunk.logprobs, at) if with_logprobs else None
            at += sum(len(self.text_of(one.token)) for one in chunk.logprobs)
            if chunk.text or chunk.logprobs:
                yield self._part(chunk.text, logprobs, None)
            finish = chunk.finish_reason or finish
        yield self._part("", None, finish)

    def _part(self, text: str, logprobs: Dict | None, finish: str | None) -> Dict:
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish}
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
        }

    def _logprobs(self, tokens: Sequence[TokenLogprob], at: int) -> Dict:
        found: Dict = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for one in tokens:
            text = self.text_of(one.token)
            found["tokens"].append(text)
            found["text_offset"].append(at)
            found["token_logprobs"].append(one.logprob)
            found["top_logprobs"].append(
                {self.text_of(token): logprob for token, logprob in one.top} | {text: one.logprob}
            )
            at += len(text)
        return found


def chat(completion: Dict, tool: str | None = None, calls: Calls | None = None) -> Dict:
    """Convert a completion to a chat answer, or to a call of `tool`.

    Args:
        completion: The completion.
        tool: The tool that was named; the completion is its arguments.
        calls: Syntax of calls in the text; None if there are none.
    """
    choice = completion["choices"][0]
    message: Dict = {"role": "assistant", "content": choice["text"]}
    if tool is not None:
        message |= {"content": None, **_call(tool, completion["id"], choice["text"])}
    elif calls is not None:
        text, found = whole_answer(choice["text"], *calls)
        message["content"] = text
        if found:
            message |= {"content": text or None, "tool_calls": found}
            choice = choice | {"finish_reason": "tool_calls"}
    return _as_chat(completion, "chat.completion", {"message": message}, choice, tool)


def with_calls(parts: Iterator[Dict], calls: Calls) -> Iterator[Dict]:
    """Convert the parts of a chat answer to parts with its tool calls as deltas."""
    reader = ToolDeltas(*calls)
    for part in parts:
        choice = part["choices"][0]
        is_last = choice["finish_reason"] is not None
        text = choice["delta"].get("content")
        if text is None and not is_last:
            yield part
            continue
        deltas = reader.finish() if is_last else reader.push(text)
        if choice["logprobs"] and not deltas:
            deltas = [{"content": ""}]
        for i, delta in enumerate(deltas):
            logprobs = choice["logprobs"] if i == len(deltas) - 1 and not is_last else None
            shown = choice | {"delta": delta, "logprobs": logprobs, "finish_reason": None}
            yield part | {"choices": [shown]}
        if is_last:
            reason = "tool_calls" if reader.has_call else choice["finish_reason"]
            yield part | {"choices": [choice | {"finish_reason": reason}]}


def chat_parts(parts: Iterator[Dict], tool: str | None = None) -> Iterator[Dict]:
    """Convert the parts of a completion to those of a chat answer, or of a call of `tool`.

    The first part has the role, the last one the finish reason.
    """
    first = True
    for part in parts:
        choice = part["choices"][0]
        if first:
            role, nothing = {"role": "assistant"}, {"logprobs": None, "finish_reason": None}
            yield _as_chat(part, "chat.completion.chunk", {"delta": role}, nothing, tool)
        delta: Dict = {}
        if choice["finish_reason"] is None:
            delta = {"content": choice["text"]}
            if tool is not None:
                delta = _call(tool if first else None, part["id"], choice["text"], 0)
        yield _as_chat(part, "chat.completion.chunk", {"delta": delta}, choice, tool)
        first = False


def _as_chat(completion: Dict, kind: str, what: Dict, choice: Dict, tool: str | None) -> Dict:
    """Return a completion or a part of one as that of a chat, with a message or a delta.

    Incomplete arguments of `tool` do not count as a call.
    """
    finish = choice["finish_reason"]
    answer = {
        "index": 0,
        **what,
        "logprobs": _chat_logprobs(choice["logprobs"]),
        "finish_reason": "tool_calls" if tool is not None and finish == "stop" else finish,
    }
    return completion | {"id": f"chat{completion['id']}", "object": kind, "choices": [answer]}


def _call(tool: str | None, id_: str, arguments: str, index: int | None = None) -> Dict:
    """Return a tool call, or one part of it.

    Only the first part has the name: clients that join the parts would also join the names.
    """
    function = {"name": tool, "arguments": arguments}
    call = {"id": tool and f"call__0_{tool}_{id_}", "type": "function", "function": function}
    numbered = call if index is None else {"index": index, **call}
    return {"function_call": function, "tool_calls": [numbered]}


def _chat_logprobs(logprobs: Dict | None) -> Dict | None:
    if logprobs is None:
        return None

    def named(token: str, logprob: float) -> Dict:
        return {"token": token, "bytes": None, "logprob": logprob}

    places = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        named(token, logprob) | {"top_logprobs": [named(*one) for one in top.items()]}
        for token, logprob, top in places
    ]
    return {"content": content, "refusal": None}


def pumped(open_stream: Callable[[], Stream]) -> Iterator[Chunk]:
    """Yield the chunks of a stream that a background thread reads.

    The LLM is locked while a stream is open. Frameworks read each chunk in another thread of a
    pool, keep iterators that they do not read to the end, and open more iterators than the pool has
    threads. With the background thread, the reader does not decide when the next request can begin.
    Closing or dropping the iterator cancels the stream after the current round.

    Args:
        open_stream: Opens the stream; called in the background thread.
    """
    ready: queue.SimpleQueue[Chunk | BaseException | None] = queue.SimpleQueue()
    dropped = threading.Event()
    opened: list[Stream] = []

    def read() -> None:
        try:
            with open_stream() as stream:
                opened.append(stream)
                if dropped.is_set():  # while this thread waited for the LLM
                    stream.cancel()
                for chunk in stream:
                    ready.put(chunk)
            ready.put(None)
        except BaseException as error:  # raised again in the thread of the reader
            ready.put(error)

    try:
        threading.Thread(target=read, name="gguf-spec-stream", daemon=True).start()
        while (one := ready.get()) is not None:
            if isinstance(one, BaseException):
                raise one
            yield one
    finally:
        dropped.set()
        for stream in opened:
            stream.cancel()
