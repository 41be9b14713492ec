"""Public classes `Chat`, a conversation with a model, and `Turn`, a running answer of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..errors import NoQuestionError, PromptTooLongError, SessionError
from ..images import MARKER, GivenImage, are_parts, with_image_parts
from ..options import Sampling, Speculation, Tools, check_types, named, require, with_options
from ..results import Chunk, Completion, Ended, OnProgress, Stats
from ..system.process import OfOneProcess

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import RequestOptions
    from ..engine import Answer
    from ..tools import ToolDeltas
    from .client import Client

_ROOM = 256  # maximum number of tokens that `shift` keeps free for an answer
_ROLES = {"system", "user", "assistant", "tool"}
_KEYS = {"role", "content", "reasoning_content", "tool_calls", "tool_call_id"}
_NOT_MADE = "This call was not made."  # result of a call that a further question left open
_USER, _ASSISTANT = "User:", "Assistant:"  # role labels for models without a chat template


class Chat(OfOneProcess):
    """One conversation with an `LLM`.

    A chat is not thread-safe; several chats may share an LLM. Both models cache the tokens they
    have read, so a turn costs only its new tokens. After another request has used the LLM, the
    conversation is prefilled again.

    Attributes:
        messages: All messages so far, each `{"role": ..., "content": ...}`; the system message is
            first if there is one. The content of a message with images is a list of parts. An
            answer with reasoning has `reasoning_content`, too. Later turns send it only where the
            chat template reads it.
        think: Whether the model reasons before its next answers; None leaves it to the template.
        last: The last answer with its statistics, or None.
        extra: Data of the program as JSON, which `save` and `restore` keep with the conversation.
        tools: Functions that the model may call, in OpenAI's format; None for none. `Turn.calls`
            has the calls of an answer, and `answer_calls` goes on with their results. The model
            must have a chat template.
    """

    messages: list[dict[str, Any]]
    think: bool | None
    last: Completion | None
    extra: dict[str, Any]
    tools: Tools | None

    @named
    def __init__(
        self,
        llm: Client[Any],
        system: str | None = None,
        *,
        sampling: Sampling | None = None,
        overflow: Literal["error", "shift"] = "error",
        think: bool | None = None,
    ) -> None:
        """Start a conversation with a model; the other arguments are those of `LLM.chat`."""
        check_types(llm=llm, sampling=sampling, think=think)
        self._llm, self._sampling = llm, sampling or Sampling()
        self.overflow = overflow
        self.messages = []
        self.think = think
        self.last = None
        self.extra = {}
        self.tools = None
        self.system = system

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self.messages)} messages, {self._llm!r}>"

    @property
    def overflow(self) -> Literal["error", "shift"]:
        """Behaviour when the conversation no longer fits into the context, as for `LLM.chat`."""
        return self._overflow

    @overflow.setter
    def overflow(self, value: Literal["error", "shift"]) -> None:
        require("overflow", value, "error or shift", value in ("error", "shift"))
        self._overflow: Literal["error", "shift"] = value

    @property
    def note(self) -> str:
        """Warning that the model has no chat template; empty if it has one."""
        return (
            ""
            if self._llm.has_chat_template
            else f"the model has no chat template: it reads {_USER} and {_ASSISTANT} before each "
            "message."
        )

    @property
    def system(self) -> str | None:
        """The system message; a new one applies from the next answer on."""
        return (
            self.messages[0]["content"]
            if self.messages and self.messages[0]["role"] == "system"
            else None
        )

    @system.setter
    def system(self, text: str | None) -> None:
        check_types(system=text)
        turns = [message for message in self.messages if message["role"] != "system"]
        self.messages[:] = [*([{"role": "system", "content": text}] if text else []), *turns]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the conversation, as the next question finds it in the context."""
        return len(self._encode(self.messages)) if self.messages else 0

    def send(
        self,
        text: str,
        sampling: Sampling | None = None,
        *,
        images: Sequence[GivenImage] = (),
        speculation: Speculation | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """Send a message and return the complete answer.

        Args:
            text: The message.
            sampling: Sampling options of this answer; None for those of the chat.
            images: Images before the text, as for `LLM.generate`. Later turns keep them.
            speculation: Draft options; None for those of the LLM.
            options: Fields of `Sampling` and `Speculation` for this answer.

        Raises:
            PromptTooLongError: The conversation does not fit into the context. It is unchanged.
        """
        turn: Turn | None = None
        try:
            turn = self.stream(text, sampling, images=images, speculation=speculation, **options)
            return turn.run_to_end()
        except BaseException:  # not `with`: Ctrl-C may arrive inside of `__enter__`
            if turn:
                turn.close()
            raise

    def stream(
        self,
        text: str,
        sampling: Sampling | None = None,
        *,
        images: Sequence[GivenImage] = (),
        speculation: Speculation | None = None,
        on_prompt: OnProgress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Turn:
        """Send a message and return an iterator over the answer.

        The text generated until the turn ends or is closed becomes part of the conversation. During
        the prefill of the question, `on_prompt` is called as for `LLM.generate`.
        """
        check_types(text=text, images=images, sampling=sampling, speculation=speculation)
        sampling, speculation = self._options(sampling, speculation, options)
        content = with_image_parts(text, images) if images else text
        return self._ask(self._question(content), sampling, speculation, on_prompt)

    def answer_calls(
        self,
        results: Sequence[str],
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        on_prompt: OnProgress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Turn:
        """Go on after an answer with calls of `tools`: give their results, in their order.

        The other arguments are those of `stream`.

        Raises:
            InvalidOptionError: The last answer has no open calls, or another number of them.
        """
        check_types(sampling=sampling, speculation=speculation)
        sampling, speculation = self._options(sampling, speculation, options)
        n, n_open = len(results), len(self._open_calls)
        require("results", n, f"one for each open call, {n_open}", 0 < n == n_open)
        return self._ask(self._results(results), sampling, speculation, on_prompt)

    @property
    def _open_calls(self) -> list[dict[str, Any]]:
        last = self.messages[-1] if self.messages else {}
        found: list[dict[str, Any]] = last.get("tool_calls", [])
        return found

    def _results(self, results: Sequence[str]) -> list[dict[str, Any]]:
        return [
            {"role": "tool", "tool_call_id": call["id"], "content": text}
            for call, text in zip(self._open_calls, results, strict=True)
        ]

    def _question(self, content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the messages of a question; calls that are still open get a result before it."""
        closed = self._results([_NOT_MADE] * len(self._open_calls))
        return [*closed, {"role": "user", "content": content}]

    def _options(
        self,
        sampling: Sampling | None,
        speculation: Speculation | None,
        options: Mapping[str, Any],
    ) -> tuple[Sampling, Speculation]:
        speculation = speculation or self._llm.speculation
        known = ("images", "on_prompt")
        return with_options(sampling or self._sampling, speculation, options, known)

    def _ask(
        self,
        new: list[dict[str, Any]],
        sampling: Sampling,
        speculation: Speculation,
        on_prompt: OnProgress | None,
    ) -> Turn:
        if not self._llm.has_chat_template:
            sampling = replace(sampling, stop=(*sampling.stop, f"\n{_USER}"))
        messages = [*self.messages, *new]
        most = None if self._overflow == "shift" else self._llm.n_ctx - 1
        tokens = self._encode(messages, most)
        n_messages = len(messages)
        if self._overflow == "shift":
            tokens = self._shift(
                messages, tokens, min(sampling.max_tokens or _ROOM, _ROOM, self._llm.n_ctx // 4)
            )
        stream: Answer | None = None
        try:
            if self.tools:
                stream = self._llm.stream(
                    messages,
                    sampling,
                    speculation=speculation,
                    on_prompt=on_prompt,
                    tools=self.tools,
                    think=self.think,
                )
            else:
                stream = self._llm.stream_tokens(
                    tokens,
                    sampling,
                    speculation=speculation,
                    on_prompt=on_prompt,
                    reasoning=self._llm.has_chat_template,
                )
            return Turn(self, stream, messages, n_messages - len(messages))
        except BaseException:
            if stream:
                stream.close()
            raise

    def with_model(self, llm: Client[Any]) -> Chat:
        """Return a copy of the conversation that another model continues."""
        check_types(llm=llm)
        think = self.think if llm.can_think else None
        other = Chat(llm, sampling=self._sampling, overflow=self._overflow, think=think)
        other.messages[:] = [dict(one) for one in self.messages]
        other.extra = dict(self.extra)
        other.tools = self.tools
        return other

    def retry(
        self,
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        on_prompt: OnProgress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Turn:
        """Send the last question again, with a new seed unless the sampling options set one.

        The arguments are those of `stream`.

        Raises:
            NoQuestionError: The conversation has no question.
        """
        check_types(sampling=sampling, speculation=speculation)
        sampling, speculation = self._options(sampling, speculation, options)
        before, last = list(self.messages), self._last_question
        if last is None:
            raise NoQuestionError
        try:
            del self.messages[last:]
            question = self._question(before[last]["content"])
            return self._ask(question, sampling, speculation, on_prompt)
        except BaseException:
            self.messages[:] = before
            raise

    def undo(self) -> bool:
        """Remove the last question and its answer; return whether there was one."""
        last = self._last_question
        if last is not None:
            del self.messages[last:]
        return last is not None

    @property
    def _last_question(self) -> int | None:
        users = (i for i, message in enumerate(self.messages) if message["role"] == "user")
        return max(users, default=None)

    def reset(self) -> None:
        """Remove all messages except the system message."""
        self.messages[:] = self.messages[:1] if self.system else []
        self.last = None

    def save(self, path: str | Path) -> None:
        """Write the conversation and both caches to a file, completely or not at all.

        Raises:
            SessionError: The file cannot be written.
        """
        self._llm.save_session(path, {"messages": self.messages, "extra": self.extra})

    def restore(self, path: str | Path) -> str:
        """Load a saved conversation.

        Returns:
            The reason why its caches cannot be used, so that the next turn prefills everything
            again; empty if they can.

        Raises:
            SessionError: The file is missing, damaged, or not a session file. The conversation is
                unchanged.
        """
        data, why = self._llm.restore_session(path)
        messages = data.get("messages")
        if not isinstance(messages, list) or not all(_is_message(one) for one in messages):
            raise SessionError(f"{path} does not contain a conversation.")
        self.messages[:] = messages
        extra = data.get("extra")
        self.extra = extra if isinstance(extra, dict) else {}
        self.last = None
        return why

    def _encode(self, messages: Sequence[dict[str, Any]], most: int | None = None) -> list[int]:
        if self._llm.has_chat_template:
            return self._llm.tokenize(messages, think=self.think, tools=self.tools, most=most)
        marks = {"system": "", "user": f"{_USER} ", "assistant": f"{_ASSISTANT} ", "tool": ""}
        text, images = "", list[GivenImage]()
        for one in messages:
            text += marks[one["role"]]
            parts: list[dict[str, Any]] = [{"text": one["content"]}]
            parts = one["content"] if isinstance(one["content"], list) else parts
            for part in parts:
                if "image_url" in part:
                    images.append(part["image_url"]["url"])
                text += MARKER if "image_url" in part else part["text"].strip()
            text += "\n"
        return self._llm.tokenize(
            text + _ASSISTANT,
            special=False,
            think=self.think or None,
            images=images,
            most=most,
        )

    def _shift(self, messages: list[dict[str, Any]], tokens: list[int], room: int) -> list[int]:
        """Remove the oldest turns from `messages` until `room` tokens are free.

        The system message and the question are never removed.
        """
        first = 1 if messages[0]["role"] == "system" else 0
        while len(tokens) + room > self._llm.n_ctx:
            turns = (i for i, one in enumerate(messages) if i > first and one["role"] == "user")
            if (after := next(turns, None)) is None:
                if len(tokens) < self._llm.n_ctx:  # accept less room, for a short answer
                    return tokens
                llm = self._llm
                raise PromptTooLongError(len(tokens), llm.n_ctx, n_ctx_limit=llm.n_ctx_limit)
            del messages[first:after]
            tokens = self._encode(messages)
        return tokens


class Turn(OfOneProcess):
    """A running answer: an iterator over `Chunk`s and a context manager.

    It can be cancelled from any thread.

    Attributes:
        dropped: Number of old messages that were removed to free room.
        calls: At its end the calls of `Chat.tools`, in OpenAI's format. The texts have none of
            them.
    """

    calls: list[dict[str, Any]]

    def __init__(
        self, chat: Chat, stream: Answer, asked: list[dict[str, Any]], dropped: int
    ) -> None:
        self.dropped = dropped
        self.calls = []
        self._chat, self._stream, self._messages, self._open = chat, stream, asked, True
        self._tools, self._text = chat.tools, ""  # the text is that of the end, without the calls
        self._deltas: ToolDeltas | None = None
        if self._tools:
            from ..tools import ToolDeltas, ToolUse, family_of

            family = family_of(chat._llm.chat_template or "")
            self._deltas = ToolDeltas(family, ToolUse(self._tools))

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._stream!r}>"

    @property
    def seed(self) -> int:
        """The seed in use."""
        return self._stream.seed

    @property
    def stats(self) -> Stats:
        """Token counts and times so far."""
        return self._stream.stats

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The conversation with the question and the text of the answer so far."""
        result = self.result
        answer: dict[str, Any] = {"role": "assistant", "content": result.text}
        if result.reasoning:
            answer["reasoning_content"] = result.reasoning
        return [*self._messages, answer]

    @property
    def result(self) -> Completion:
        """The answer so far."""
        result = self._stream.result
        if self._open or not self._tools:
            return result
        return replace(result, text=self._text, accepted_text=((self._text, False),))

    def cancel(self) -> None:
        """End the answer after the current round.

        Safe from any thread and from a signal handler.
        """
        self._stream.cancel()

    def close(self) -> None:
        """Release the LLM, and add the question and the generated text to the conversation.

        If nothing was generated, the question is not added either.
        """
        self._stream.close()
        if self._open:
            result = self._stream.result
            self._read_calls(result.text)
            self._open = False
            self._chat.last = result = self.result
            if result.tokens or result.finish_reason != "cancelled":
                messages = self.messages
                if self.calls:
                    messages[-1]["tool_calls"] = self.calls
                self._chat.messages[:] = messages

    def _read_calls(self, text: str) -> None:
        if self._tools:
            from ..tools import ToolUse, family_of, whole_answer

            family = family_of(self._chat._llm.chat_template or "")
            self._text, self.calls = whole_answer(text, family, ToolUse(self._tools))

    def _without_calls(self, chunk: Chunk) -> Chunk:
        """Return a chunk without the text of calls, which may be held back from earlier ones."""
        if not self._deltas:
            return chunk
        deltas = self._deltas.push(chunk.text)
        if chunk.finish_reason:
            deltas += self._deltas.finish()
        text = "".join(one.get("content", "") for one in deltas)
        return replace(chunk, text=text, accepted_text=((text, False),) if text else ())

    def run_to_end(self, on_chunk: Callable[[Chunk], object] = lambda _: None) -> Completion:
        """Read the answer to its end, and return it; `on_chunk` is as for a `Stream`."""
        try:
            self._stream.run_to_end(lambda chunk: on_chunk(self._without_calls(chunk)))
        finally:
            self.close()
        return self.result

    def listen(
        self, call: Callable[[Chunk | Ended], object], is_full: Callable[[], bool] = bool
    ) -> None:
        """Let a thread of the engine compute the answer, as `Stream.listen`."""

        def came(event: Chunk | Ended) -> None:
            if isinstance(event, Ended):
                self.close()
            call(event if isinstance(event, Ended) else self._without_calls(event))

        self._stream.listen(came, is_full)

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return self._without_calls(next(self._stream))
        except BaseException:  # includes StopIteration
            self.close()
            raise

    def __enter__(self) -> Turn:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_message(one: object) -> bool:
    return (
        isinstance(one, dict)
        and {"role", "content"} <= set(one) <= _KEYS
        and one["role"] in _ROLES
        and all(
            isinstance(value, str)
            or (name == "content" and are_parts(value))
            or (name == "tool_calls" and isinstance(value, list) and all(map(_is_call, value)))
            for name, value in one.items()
        )
    )


def _is_call(one: object) -> bool:
    if not (isinstance(one, dict) and set(one) == {"id", "type", "function"}):
        return False
    function = one["function"]
    texts = [one["id"], one["type"], *(function.values() if isinstance(function, dict) else [0])]
    is_whole = isinstance(function, dict) and set(function) == {"name", "arguments"}
    return is_whole and all(isinstance(text, str) for text in texts)
