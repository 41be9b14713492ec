"""The public face: a target, perhaps a draft, and one request at a time."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, TypeVar

from ..errors import BusyError, ClosedError
from ..llama.model import Model
from ..options import Sampling, Speculation
from ..results import Completion
from ..speculative.pair import ModelPair
from ..speculative.profile import Profile
from ..text.chat_template import Message, Tools, encode_chat
from .chat import Chat
from .session_file import restore as restore_session
from .session_file import save as save_session
from .stream import PromptProgress, Request, Stream, check_request
from .turns import Line, Ticket

Prompt = str | Sequence[Message]
T = TypeVar("T")


class LLM:
    """A loaded model. It serves one request at a time and may be called from any thread; others wait.

    Attributes:
        name: The target's name or file name.
        draft_name: The draft's file name, or None.
        prompt: `text` or `chat`: what the registry says of a bare prompt, else whether the file has a chat template.
        speculation: How many tokens are drafted, unless a call says otherwise.
        sampling: How it samples where a call does not say: the defaults, or what models.yaml has for the model.
        notes: Why things are not as one would expect, such as a draft that is not used. One sentence each.
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
    ) -> None:
        self.name, self.prompt, self.speculation, self.notes = (
            name,
            prompt,
            speculation,
            tuple(notes),
        )
        self.sampling = sampling or Sampling()
        self.draft_name = pair.draft.path.name if pair.draft else None
        self._pair, self._target, self._draft = pair, pair.target, pair.draft
        self._line = Line()  # who has the turn may use the models
        self._closed = False

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds, prompt and answer together."""
        return self._target.n_ctx

    @property
    def chat_template(self) -> str | None:
        """The file's Jinja template, which says how messages are to be put, or None."""
        return self._target.chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether there is one."""
        return self._target.chat_template is not None

    def tokenize(
        self, prompt: Prompt, *, prefill: str = "", special: bool = True, tools: Tools | None = None
    ) -> list[int]:
        """Return the ids of a text, or of messages in the model's chat template.

        Args:
            prompt: A text, or messages.
            prefill: What the answer begins with.
            special: Read `<|im_end|>` and the like in a text as the tokens they name. In messages they never are.
            tools: What the model may call, for the template: OpenAI's descriptions of functions.
        """
        target = self._alive
        if not prompt and not prefill:
            return []
        if isinstance(prompt, str):
            return target.tokenize(prompt + prefill, special=special)
        return encode_chat(target, prompt, prefill, tools)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token; none for one that is not text."""
        return self._alive.piece(token)

    def token_text(self, token: int) -> str:
        """Return the text of one token; half a character is shown as a replacement sign."""
        target = self._alive
        return target.piece(token).decode("utf-8", errors="replace") or target.token_text(token)

    def generate(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        prefill: str = "",
        echo: bool = False,
        on_prompt: PromptProgress | None = None,
    ) -> Completion:
        """Go on from a text, or answer messages, and return the whole result.

        Args:
            prompt: A text, taken as it is, or messages (`{"role": ..., "content": ...}`) for the model's chat template.
            sampling: How to sample; the model's own `sampling` where it is not given.
            speculation: Instead of the one given at load.
            prefill: What the answer begins with; the model goes on from there. A grammar counts it as part of the answer.
            echo: Begin the text with the prompt, if that is a text, and the prefill.
            on_prompt: Called after each pass over the prompt, with the tokens read so far and all to be read; to return False cancels.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: Before anything runs.
            BusyError: This thread has a stream of this LLM open.
        """
        return self._complete(
            self._request(prompt, sampling, speculation, prefill, echo, on_prompt=on_prompt)
        )

    def stream(
        self,
        prompt: Prompt,
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        prefill: str = "",
        echo: bool = False,
        tools: Tools | None = None,
        on_prompt: PromptProgress | None = None,
    ) -> Stream:
        """Do as `generate`, but return an iterator over `Chunk`s. The LLM is taken until it is read to its end or closed."""
        return self._stream(
            self._request(prompt, sampling, speculation, prefill, echo, tools, on_prompt)
        )

    def generate_tokens(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        stop_tokens: Iterable[int] = (),
        on_token: Callable[[int], object] | None = None,
        speculation: Speculation | None = None,
        prefill: str = "",
        on_prompt: PromptProgress | None = None,
    ) -> Completion:
        """Go on from token ids.

        Args:
            tokens: The prompt's ids, nothing added.
            sampling: As for `generate`.
            stop_tokens: Ids that end the generation, beside those of `sampling`.
            on_token: Called with each id as it is emitted; a true result ends the generation right there, as `cancelled`.
            speculation: Instead of the one given at load.
            prefill: The text at the end of `tokens` that belongs to the answer, for a grammar to go on from.
            on_prompt: As for `generate`.
        """
        sampling = sampling or self.sampling
        sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *stop_tokens))
        request = Request(
            list(tokens),
            sampling,
            speculation or self.speculation,
            on_token,
            prefill,
            on_prompt=on_prompt,
        )
        return self._complete(request)

    def stream_tokens(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        *,
        speculation: Speculation | None = None,
        prefill: str = "",
        on_prompt: PromptProgress | None = None,
    ) -> Stream:
        """Do as `generate_tokens`, but return an iterator over `Chunk`s, as `stream` does."""
        request = Request(
            list(tokens),
            sampling or self.sampling,
            speculation or self.speculation,
            prefill=prefill,
            on_prompt=on_prompt,
        )
        return self._stream(request)

    def chat(
        self,
        system: str | None = None,
        *,
        sampling: Sampling | None = None,
        overflow: Literal["error", "shift"] = "error",
    ) -> Chat:
        """Begin a conversation.

        Args:
            system: What the model is told before all else.
            sampling: How it answers.
            overflow: When the conversation no longer fits into the context: refuse, or drop its oldest turns.
        """
        return Chat(self, system, sampling=sampling or self.sampling, overflow=overflow)

    def forget(self) -> None:
        """Empty both caches: the next prompt is read from its start. It changes no text, only what the next one costs.

        Raises:
            BusyError, ClosedError: As for a generation.
        """

        def empty(_: Ticket) -> None:
            for model in filter(None, (self._target, self._draft)):
                model.rollback(0)

        self._in_turn(empty)

    def save_session(self, path: str | Path, data: Mapping[str, Any]) -> None:
        """Write what both models have read, and data that goes with it, into a file, whole or not at all.

        Raises:
            SessionError: There is no place for it.
            BusyError, ClosedError: As for a generation.
        """
        self._in_turn(lambda _: save_session(Path(path), data, self._target, self._draft))

    def restore_session(self, path: str | Path) -> tuple[dict[str, Any], str]:
        """Return the data of a file that `save_session` wrote, and give both models back what they had read.

        Returns:
            The data, and why the models could not be given that, so that they have to read it again; empty where they could.

        Raises:
            SessionError: The file is missing, damaged, or none of ours.
            BusyError, ClosedError: As for a generation.
        """
        return self._in_turn(lambda _: restore_session(Path(path), self._target, self._draft))

    def logit_noise(self, k: int, exact: bool = True) -> float:
        """Return how far logits of the target move against each other with the width of the pass on this machine, at most, in logits.

        Measured with the profile, over a few rows, and doubled: a decision closer than that is a near tie. 0 where k is 0, and where the passes
        in use give a row the same bits as single-row passes.

        Args:
            k: Tokens drafted in a round, at most.
            exact: As in `Speculation`.
        """
        return self._pair.logit_noise(Speculation(k, exact=exact))

    @property
    def profile(self) -> Profile:
        """What was measured of the models on this machine."""
        return self._pair.profile

    @contextmanager
    def models(self) -> Iterator[tuple[Model, Model]]:
        """Take the LLM and lend target and draft, for checks that look inside; without a draft the target is lent twice.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        ticket = Ticket()
        try:
            self._take(ticket)
            yield self._target, self._draft or self._target
        finally:
            self._line.leave(ticket)

    def close(self) -> None:
        """Free the native memory; more than once does nothing. An open stream is closed first; a round that runs is waited for.

        Raises:
            BusyError: This thread is in the middle of a round, or has the models.
        """
        self._end_stream()
        self._closed = True  # those who wait are told so when it is their turn
        ticket = Ticket()
        try:
            try:
                self._line.join(ticket, self._end_stream)
                self._pair.close()
            finally:
                self._line.leave(ticket)
        except BaseException:
            self._line.leave(ticket)
            raise

    def _end_stream(self) -> None:
        """Close an open stream; one of another thread ends after the round that runs."""
        first = self._line.first
        stream = first.stream() if first and first.stream else None
        if first and first.thread == threading.get_ident():
            if stream:
                stream.close()
            if self._line.first is first:
                raise BusyError
        elif stream:
            stream.abort()

    @property
    def _alive(self) -> Model:
        """The target, to ask about its vocabulary: that does not need the turn."""
        if self._closed:
            raise ClosedError
        return self._target

    def _request(
        self,
        prompt: Prompt,
        sampling: Sampling | None,
        speculation: Speculation | None,
        prefill: str,
        echo: bool,
        tools: Tools | None = None,
        on_prompt: PromptProgress | None = None,
    ) -> Request:
        tokens, shown = (
            self.tokenize(prompt, prefill=prefill, tools=tools),
            (prompt if isinstance(prompt, str) else "") + prefill,
        )
        return Request(
            tokens,
            sampling or self.sampling,
            speculation or self.speculation,
            prefill=prefill,
            echo=shown if echo else "",
            on_prompt=on_prompt,
        )

    def _complete(self, request: Request) -> Completion:
        def run(ticket: Ticket) -> Completion:
            with self._open(request, ticket) as stream:
                for _ in stream:
                    pass
            return stream.result

        return self._in_turn(run)

    def _stream(self, request: Request) -> Stream:
        ticket = Ticket()
        try:
            self._take(ticket)
            return self._open(request, ticket)
        except BaseException:
            self._line.leave(ticket)
            raise

    def _open(self, request: Request, ticket: Ticket) -> Stream:
        check_request(request, self._target)
        self._pair.check(request.speculation)
        if request.speculation.k:
            self._pair.measure()
        stream = Stream(request, self._pair, partial(self._line.leave, ticket))
        ticket.stream = weakref.ref(stream)
        return stream

    def _in_turn(self, do: Callable[[Ticket], T]) -> T:
        """Call `do` with a ticket that has the turn, and give the turn back, whatever exception comes in between."""
        ticket = Ticket()
        try:
            try:
                self._take(ticket)
                return do(ticket)
            finally:
                self._line.leave(ticket)
        except BaseException:
            self._line.leave(ticket)  # should Ctrl-C have come just before the first
            raise

    def _take(self, ticket: Ticket) -> None:
        """Wait for the turn. Whatever this raises, the ticket is to leave the line."""
        first = self._line.first
        if first and first.thread == ticket.thread:
            raise BusyError
        self._line.join(ticket)
        if self._closed:
            raise ClosedError

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
