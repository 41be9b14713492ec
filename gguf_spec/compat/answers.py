"""Answers in the form of `llama_cpp.Llama`: continued texts, chats and token ids."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import ClosedError, InvalidOptionError, Option, OptionConflictError
from ..text.tool_history import reads_tools
from ..tools.families import family_of
from ..tools.use import ToolUse
from .arguments import ANY_SEED, refuse_unless, schema_of, to_sampling
from .background import pumped
from .messages import as_messages, as_tools, n_logprobs
from .responses import Dict, Head, chat, chat_parts, with_calls
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from ..runtime.llm import LLM
    from ..runtime.stream import Stream


class Answers(Vocabulary):
    """Methods of `llama_cpp.Llama` that generate text.

    Attributes:
        model_path: Name of the model in responses.
    """

    model_path: str
    _last_n: int

    @property
    @abstractmethod
    def _alive(self) -> LLM:
        """The LLM."""

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Dict | Iterator[Dict]:
        """Continue a text or token ids; with `stream`, return an iterator over parts of the answer.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            EmptyPromptError, PromptTooLongError: The prompt is empty or too long. With `stream`,
                raised when the first part is read.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        if echo and (logprobs is not None or not isinstance(prompt, str)):
            raise InvalidOptionError(
                "echo", echo, "False if logprobs are requested or the prompt is token ids"
            )
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        if prompt and isinstance(prompt, str):
            opened: Callable[[], Stream] = partial(self._alive.stream, prompt, sampling, echo=echo)
        else:  # an empty text becomes the BOS token, if the model has one
            opened = partial(
                self._alive.stream_tokens,
                self.tokenize(b"") if isinstance(prompt, str) else list(prompt),
                sampling,
            )
        head = Head(
            model or self.model_path, self._shown, len(prompt) if isinstance(prompt, str) else 0
        )
        return (
            head.parts(pumped(opened), logprobs is not None)
            if stream
            else self._whole(head, opened, logprobs is not None)
        )

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | int | None = None,
        top_logprobs: int | None = None,
    ) -> Dict | Iterator[Dict]:
        """Answer messages with the chat template of the file.

        With `stream`, return an iterator over parts of the answer. Tools are inserted into the
        prompt if the template supports them, and calls in the answer become `tool_calls`. If
        `tool_choice` names a tool, the answer consists of the arguments of that tool.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            TemplateError: The file has no template, or the template rejects the messages.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        shown, called = as_tools(functions, function_call, tools, tool_choice)
        schema = (
            called.get("parameters") or {"type": "object"} if called else schema_of(response_format)
        )
        if grammar is not None and schema is not None:
            raise OptionConflictError(
                Option("grammar"),
                Option("response_format") if called is None else Option("tool_choice"),
            )
        asked |= {"logprobs": n_logprobs(logprobs, top_logprobs), "json_schema": schema}
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        with_tools: Any = {}
        if shown and reads_tools(self.metadata.get("tokenizer.chat_template", "")):
            with_tools = {"tools": shown}
        elif shown and not called:
            raise InvalidOptionError(
                "tools",
                [tool["function"]["name"] for tool in shown],
                "",
                "omit tools, or use a model whose chat template supports them.",
                message="the model's chat template does not support tools.",
            )
        opened = partial(self._alive.stream, as_messages(messages), sampling, **with_tools)
        head, tool = Head(model or self.model_path, self._shown), called["name"] if called else None
        calls = None
        if with_tools and tool is None:
            calls = family_of(self._alive.chat_template or ""), ToolUse(shown)
        if stream:
            parts = chat_parts(head.parts(pumped(opened), sampling.logprobs is not None), tool)
            return parts if calls is None else with_calls(parts, calls)
        return chat(self._whole(head, opened, sampling.logprobs is not None), tool, calls)

    def create_chat_completion_openai_v1(self, *arguments: Any, **named: Any) -> Any:
        """Call `create_chat_completion`; return objects of the package `openai`.

        The package `openai` must be installed.
        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer: Any = self.create_chat_completion(*arguments, **named)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**part) for part in answer)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
    ) -> Iterator[int]:
        """Return an iterator over the token ids that continue a prompt.

        It ends when the model ends its answer or the context is full. The end token is not
        included.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            EmptyPromptError, PromptTooLongError: The prompt is empty or too long; raised when the
                first token is read.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        refuse_unless("reset", reset, (True,))
        refuse_unless("penalize_nl", penalize_nl, (True,))
        asked |= {
            "temperature": temp,
            "max_tokens": None,
            "stop": (),
            "logit_bias": None,
            "logprobs": None,
        }
        sampling = to_sampling(asked, seed=self._next_seed(None), last_n=self._last_n)
        chunks = pumped(partial(self._alive.stream_tokens, list(tokens), sampling))
        return (token for chunk in chunks for token in chunk.tokens)

    def _whole(self, head: Head, opened: Callable[[], Stream], with_logprobs: bool) -> Dict:
        with opened() as stream:
            for _ in stream:
                pass
        if stream.result.finish_reason == "cancelled":  # by `close`, from another thread
            raise ClosedError
        return head.whole(stream.result, with_logprobs)

    def set_seed(self, seed: int) -> None:
        """Set the seed of the generator that supplies the seeds of calls without one."""
        self._seeds = None if seed in ANY_SEED else random.Random(seed)

    def _next_seed(self, seed: int | None) -> int | None:
        if seed is None:
            return self._seeds.getrandbits(32) if self._seeds else None
        return None if seed in ANY_SEED else seed
