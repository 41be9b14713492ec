"""Public class `LLM`: a target with an optional draft, and the requests that it runs."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from ..errors import GgufSpecError
from ..options import Sampling, Speculation
from ..results import Completion, OnProgress
from ..speculative.pair import ModelPair
from ..text.chat_template import Tools
from ..text.template_values import no_reasoning
from .chat import Chat
from .generation import Generation
from .images import GivenImage
from .many import generate_many
from .request import Prompt, Request, build_request, check_request
from .restorable_model import RestorableModel
from .stream import Stream
from .text_embedder import TextEmbedder
from .turns import Ticket


class LLM(RestorableModel, TextEmbedder):
    """A loaded model that runs one request at a time, or several with `load(parallel=...)`.

    It may be called from any thread. Requests beyond those that run wait in order of arrival.

    Attributes:
        name: The target's registry name or file name.
        draft_name: The draft's file name, with `(prediction head)` for one; or None.
        prompt: `text` or `chat`: the form of a bare prompt. It comes from the registry; otherwise
            it is `chat` if the file has a chat template.
        speculation: Default draft options of a request.
        sampling: Default sampling options of a request: those of models.yaml for the model,
            otherwise the package defaults.
        notes: Explanations of unexpected behaviour, such as an unused draft. One sentence each.
        draft_notes: Those of `notes` that are about the choice of the draft.
        parallel_reason: Why `parallel` has its value; empty if the caller gave the number.
    """

    def __init__(
        self,
        name: str,
        pair: ModelPair,
        *,
        prompt: str,
        speculation: Speculation,
        sampling: Sampling | None = None,
        notes: Sequence[str] = (),
        draft_notes: Sequence[str] = (),
        prefix_memory: int = 0,
        parallel_reason: str = "",
    ) -> None:
        super().__init__(name, pair, prefix_memory)
        self.prompt, self.speculation, self.notes = prompt, speculation, tuple(notes)
        self.sampling = sampling or Sampling()
        self.draft_notes, self.parallel_reason = tuple(draft_notes), parallel_reason

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        images: Sequence[GivenImage] = (),
        prefill: str = "",
        echo: bool = False,
        tools: Tools | None = None,
        stop_tokens: Iterable[int] = (),
        on_token: Callable[[int], object] | None = None,
        on_prompt: OnProgress | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reasoning: bool | None = None,
    ) -> Completion:
        """Continue a text or token ids, or answer messages, and return the complete result.

        Args:
            prompt: A text or token ids, used unchanged, or messages for the model's chat template,
                `{"role": ..., "content": ...}` each.
            sampling: Sampling options; None uses the LLM's `sampling`.
            speculation: Draft options; None uses the LLM's `speculation`.
            images: Images for the prompt: files, their bytes, or `data:` URLs. They come first in
                the last message of the user. In a text `<__media__>` stands for an image, and
                without it they come first. Messages may also have OpenAI's parts `image_url`. The
                model must be loaded with a projector (`load(mmproj=...)`).
            prefill: Beginning of the answer, which the model continues. A grammar treats it as part
                of the answer. Token ids must end with it already.
            echo: Start the returned text with the prompt, if it is a text, and the prefill.
            tools: Functions that the model may call, for messages, in OpenAI's format.
            stop_tokens: Token ids that end the generation, in addition to those of `sampling`.
            on_token: Called with each emitted id; a true result ends the generation immediately as
                `cancelled`.
            on_prompt: Called after each prefill pass with the prompt tokens read so far; returning
                False cancels the generation. The last token is decoded with the answer.
            think: For messages: whether the model reasons before its answer; None leaves it to the
                chat template. The template's own switch is set; without one, False begins the
                answer after an empty reasoning part.
            chat_template_kwargs: For messages: variables of the chat template, such as
                `{"reasoning_effort": "low"}`. The template must read them.
            reasoning: Separate the reasoning from the text; None does so for messages only.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: Raised before any pass runs.
            ImageError, NoVisionError: An image cannot be read, or there is no projector.
            BusyError: This thread has an open stream of this LLM.
        """
        return self._complete(LLM._request(**locals()))

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        images: Sequence[GivenImage] = (),
        prefill: str = "",
        echo: bool = False,
        tools: Tools | None = None,
        stop_tokens: Iterable[int] = (),
        on_token: Callable[[int], object] | None = None,
        on_prompt: OnProgress | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        reasoning: bool | None = None,
    ) -> Stream:
        """Start a generation as `generate` does, and return an iterator over `Chunk`s.

        The LLM is reserved until the stream ends or is closed.
        """
        return self._stream(LLM._request(**locals()))

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        samplings: Sampling | Iterable[Sampling | None] | None = None,
        *,
        max_parallel: int | None = None,
        on_result: Callable[[int, Completion | GgufSpecError], object] | None = None,
        **options: Any,
    ) -> list[Completion | GgufSpecError]:
        """Complete several prompts, up to `max_parallel` at once.

        Each result is a completion, or the error that its prompt ended with; an error of one prompt
        does not change the others. If `on_result` raises, or Ctrl-C arrives, all are cancelled.

        Args:
            prompts: The prompts, as for `generate`.
            samplings: Sampling options: one for all prompts, or one for each; None uses the LLM's
                `sampling`.
            max_parallel: Maximum number of requests at once; None takes `parallel`.
            on_result: Called with the index and the result of each prompt as it ends, in the thread
                of the caller.
            options: Other arguments of `generate`, for all prompts. `on_token` and `on_prompt` are
                called in other threads.

        Returns:
            The results, in the order of the prompts.

        Raises:
            BusyError: This thread has an open stream of this LLM.
        """
        self._check_thread(threading.get_ident())
        _ = self.vocabulary  # a closed LLM raises at once
        return generate_many(self, prompts, samplings, max_parallel, on_result, options)

    def generate_tokens(
        self, tokens: Sequence[int], sampling: Sampling | None = None, **options: Any
    ) -> Completion:
        """Call `generate`, which takes token ids too, with the same options."""
        return self.generate(list(tokens), sampling, **options)

    def stream_tokens(
        self, tokens: Sequence[int], sampling: Sampling | None = None, **options: Any
    ) -> Stream:
        """Call `stream`, which takes token ids too, with the same options."""
        return self.stream(list(tokens), sampling, **options)

    def chat(
        self,
        system: str | None = None,
        *,
        sampling: Sampling | None = None,
        overflow: Literal["error", "shift"] = "error",
        think: bool | None = None,
    ) -> Chat:
        """Start a conversation.

        Args:
            system: System message, or None.
            sampling: Sampling options of the answers.
            overflow: Behaviour when the conversation no longer fits into the context: `error`
                raises, `shift` drops the oldest turns.
            think: Whether the model reasons before its answers, as for `generate`.
        """
        self._check_generates()
        if think and not self.can_think:
            raise no_reasoning(self._target, "think", think)
        return Chat(
            self, system, sampling=sampling or self.sampling, overflow=overflow, think=think
        )

    def _request(
        self, sampling: Sampling | None, speculation: Speculation | None, **given: Any
    ) -> Request:
        """Return the request that the arguments of `generate` or `stream` describe."""
        self._check_generates()
        return build_request(
            self.vocabulary, sampling or self.sampling, speculation or self.speculation, **given
        )

    def _complete(self, request: Request) -> Completion:
        if self._runner:
            with self._stream(request) as stream:
                for _ in stream:
                    pass
            return stream.result

        def run(ticket: Ticket) -> Completion:
            with self._open(request, ticket) as stream:
                for _ in stream:
                    pass
            return stream.result

        return self._in_turn(run)

    def _stream(self, request: Request) -> Stream:
        if self._runner:
            self._check(request)
            return self._runner.open(request)
        ticket = Ticket()
        try:
            self._take(ticket)
            return self._open(request, ticket)
        except BaseException:
            self._line.leave(ticket)
            raise

    def _open(self, request: Request, ticket: Ticket) -> Stream:
        self._check(request)
        if request.speculation.k:
            self._pair.measure()
        generation = Generation(request, self._pair, self._kept)
        stream = Stream(generation, generation.run(), partial(self._line.leave, ticket))
        ticket.stream = weakref.ref(stream)
        return stream

    def _check(self, request: Request) -> None:
        check_request(request, self._target)
        self._pair.check(request.speculation)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
