"""Python API over an engine, wherever it runs: texts, chats, edits, facts and vocabulary."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from ..engine import Answer, Engine, Infill, Prompt, Request
from ..images import GivenImage
from ..options import (
    ARGUMENTS,
    Message,
    PromptOptions,
    Sampling,
    Speculation,
    Tools,
    check_types,
    named,
    no_reasoning,
    read_options,
    with_options,
    wrong_type,
)
from ..results import Completion, OnProgress, Progress, TokenLogprob
from ..vocabulary import Tokens
from .chat import Chat

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import ContinueOptions, EditOptions, GenerateOptions, RequestOptions
    from ..edit import Asked, Edit

_LOG = logging.getLogger(__name__)

AnswerT_co = TypeVar("AnswerT_co", bound=Answer, covariant=True)


class Client(Generic[AnswerT_co]):
    """What programs and commands do with an engine."""

    def __init__(self, engine: Engine[AnswerT_co]) -> None:
        """Use an engine; options of requests have the defaults of its facts."""
        facts = engine.facts
        self.engine = engine
        self.name: str = facts.name
        self.draft_name: str | None = facts.draft_name
        self.prompt: str = facts.prompt
        self.sampling: Sampling = facts.sampling
        self.sampling_sources: Mapping[str, str] = facts.sampling_sources
        self.speculation: Speculation = facts.speculation
        self.parallel_reason: str = facts.parallel_reason
        self.notes: tuple[str, ...] = facts.notes
        self.draft_notes: tuple[str, ...] = facts.draft_notes
        self._has_warned = False  # that `generate` answers no questions

    # ---- text

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
        **options: Unpack[ContinueOptions],
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
            echo: Start the returned text with the prompt, unless it is messages, and the prefill.
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
            options: Fields of `Sampling` and `Speculation` for this request, such as
                `temperature=0.2`.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: Raised before any pass runs.
            OptionTypeError: An argument has another type.
            ImageError, NoVisionError: An image cannot be read, or there is no projector.
            BusyError: This thread has an open stream of this LLM.
        """
        stream: AnswerT_co | None = None
        if self.prompt == "chat" and isinstance(prompt, str) and not self._has_warned:
            self._has_warned = True
            _LOG.warning(
                "generate() continues a text, but %s answers messages: use ask(), or chat().",
                self.name,
            )
        try:
            stream = self.stream(
                prompt,
                sampling,
                speculation=speculation,
                images=images,
                prefill=prefill,
                echo=echo,
                tools=tools,
                stop_tokens=stop_tokens,
                on_token=on_token,
                on_prompt=on_prompt,
                think=think,
                chat_template_kwargs=chat_template_kwargs,
                reasoning=reasoning,
                **options,
            )
            return stream.run_to_end()
        except BaseException:  # not `with`: Ctrl-C may arrive inside of `__enter__`
            if stream:
                stream.close()
            raise

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
        **options: Unpack[ContinueOptions],
    ) -> AnswerT_co:
        """Start a generation as `generate` does, and return an iterator over `Chunk`s.

        The LLM is reserved until the stream ends or is closed.
        """
        check_types(
            sampling=sampling, speculation=speculation, images=images, echo=echo,
            stop_tokens=stop_tokens, on_token=on_token, on_prompt=on_prompt, reasoning=reasoning,
        )  # fmt: skip
        sampling, speculation = with_options(
            sampling or self.sampling, speculation or self.speculation, options, ARGUMENTS
        )
        form = read_options(prefill, tools, think, chat_template_kwargs)
        if more := tuple(map(operator.index, stop_tokens)):
            sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *more))
        return self.engine.submit(
            Request(
                prompt=read_prompt(prompt),
                sampling=sampling,
                speculation=speculation,
                form=form,
                images=images,
                echo=echo,
                reasoning=reasoning,
                on_token=on_token,
                on_prompt=on_prompt,
            )
        )

    def edit(
        self,
        text: str,
        instruction: str,
        *,
        name: str = "",
        scope: Sequence[str] = (),
        others: Mapping[str, str] | None = None,
        sampling: Sampling | None = None,
        speculation: Speculation | None = None,
        max_tokens: int | None = None,
        **options: Unpack[EditOptions],
    ) -> Edit:
        """Change a text as an instruction says, and say which of the changes are doubtful.

        A rename, a replacement or the value of a setting is made by code. Else the model writes the
        part that the instruction names, such as `the function total`, or the whole text where it
        names none. What is outside of the named part stays as it was. Nothing is written to a file:
        write `text` if `refused` is empty, or show `hunks` to the user.

        Args:
            text: The text, with line feeds.
            instruction: What to change.
            name: Name of the file; its ending says how the text is read.
            scope: The parts that may change: names such as `Store.total`, or lines such as `10-40`.
                Empty: those that the instruction names, or else all.
            others: Name -> text of other files that the model sees; the last ones are left out
                where the context is too short.
            sampling: Sampling options; None takes the most likely tokens.
            speculation: As for `generate`.
            max_tokens: Maximum length of what the model writes; None allows twice the old length.
            options: Fields of `Sampling` and `Speculation`, as for `generate`.

        Raises:
            InvalidOptionError: The text or the instruction is empty, or `scope` names no part.
            ContextTooShortError: The text does not fit into the context.
            NoEditError: The model wrote nothing, or was cut at the limit.
        """
        from ..edit import EditPlan, run

        sampling, speculation = with_options(
            sampling or Sampling(temperature=0), speculation or self.speculation, options
        )
        plan = EditPlan(text, instruction, name=name, scope=scope)

        def write(asked: Asked) -> Completion:
            return self.generate(**asked.arguments, speculation=speculation)

        return run(plan, self, write, sampling, max_tokens, others)

    def ask(
        self,
        question: str,
        sampling: Sampling | None = None,
        *,
        system: str | None = None,
        images: Sequence[GivenImage] = (),
        think: bool | None = None,
        speculation: Speculation | None = None,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """Answer one question, with the chat template, and return the result.

        `print(llm.ask("Why is the sky blue?"))` prints the answer. It ends by itself, or where the
        context is full, unless `max_tokens` says otherwise. For a conversation there is `chat`.

        Args:
            question: The message of the user.
            sampling: As for `generate`.
            system: System message, or None.
            images: As for `generate`.
            think: As for `generate`.
            speculation: As for `generate`.
            options: As for `generate`.

        Raises:
            PromptTooLongError: The question does not fit into the context.
        """
        sampling = sampling or self.sampling_to_the_end
        chat = self.chat(system, think=think)
        return chat.send(question, sampling, images=images, speculation=speculation, **options)

    @property
    def sampling_to_the_end(self) -> Sampling:
        """`sampling` without the limit of the package, for answers that end by themselves."""
        if self.sampling.max_tokens != Sampling.max_tokens:
            return self.sampling
        return replace(self.sampling, max_tokens=None)

    def generate_tokens(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        **options: Unpack[GenerateOptions],
    ) -> Completion:
        """Call `generate`, which takes token ids too, with the same options."""
        return self.generate(tokens, sampling, **options)

    def stream_tokens(
        self,
        tokens: Sequence[int],
        sampling: Sampling | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AnswerT_co:
        """Call `stream`, which takes token ids too, with the same options."""
        return self.stream(tokens, sampling, **options)

    @named
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
        self.engine.check_generates()
        check_types(think=think)
        if think and not self.can_think:
            raise no_reasoning(self.path, "think", think)
        return Chat(
            self, system, sampling=sampling or self.sampling, overflow=overflow, think=think
        )

    # ---- facts

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the context holds, prompt and answer together."""
        return self.engine.facts.n_ctx

    @property
    def n_ctx_limit(self) -> int | None:
        """Longest context that the model can have here, in tokens; on a GPU the trained one.

        None if unknown.
        """
        return self.engine.facts.n_ctx_limit

    @property
    def n_ctx_max(self) -> int:
        """Longest context with which the model could have been loaded, in tokens."""
        return self.engine.facts.n_ctx_max

    @property
    def parallel(self) -> int:
        """Number of requests that can share passes; more wait."""
        return self.engine.facts.parallel

    @property
    def path(self) -> Path:
        """File of the target."""
        return self.engine.facts.path

    @property
    def generates(self) -> bool:
        """Whether the model generates text; without that it only computes embeddings."""
        return self.engine.facts.generates

    @property
    def chat_template(self) -> str | None:
        """The file's Jinja template, which formats messages as a prompt, or None."""
        return self.engine.facts.chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether the target has a chat template."""
        return self.chat_template is not None

    @property
    def can_see(self) -> bool:
        """Whether prompts may have images: the model was loaded with a projector."""
        return self.engine.facts.can_see

    @property
    def can_think(self) -> bool:
        """Whether the chat template has reasoning parts, which are separated from the answers."""
        return self.engine.facts.can_think

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the chat template reads and a request may set."""
        return self.engine.facts.template_variables

    @property
    def prompt_token_s(self) -> float:
        """Approximate seconds to read a token of a prompt, as measured here; 0 if unknown."""
        return self.engine.measured.prompt_token_s

    # ---- vocabulary

    @property
    def vocabulary(self) -> Tokens:
        """The vocabulary of the target; lookups are possible while a request runs."""
        return self.engine.vocabulary

    @named
    def tokenize(
        self,
        prompt: str | Sequence[Message],
        *,
        images: Sequence[GivenImage] = (),
        prefill: str = "",
        special: bool = True,
        tools: Tools | None = None,
        think: bool | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> list[int]:
        """Return the token ids of a text, or of messages in the model's chat template.

        Args:
            prompt: A text, or messages.
            images: As for `generate`. The ids of an image are above those of all tokens. They are
                valid while the returned list, or another one with the image, is in memory.
            prefill: Beginning of the answer.
            special: Parse `<|im_end|>` and similar strings in a text as special tokens. In messages
                they are never parsed.
            tools: Functions that the model may call, for the template, in OpenAI's format.
            think: As for `generate`.
            chat_template_kwargs: As for `generate`.
            most: Most tokens; None for any number.

        Raises:
            PromptTooLongError: There are more than `most`. Of a very long text only the beginning
                is tokenised, and the number in the error is an estimate.
        """
        check_types(images=images, special=special, most=most)
        options = read_options(prefill, tools, think, chat_template_kwargs)
        text = cast("str | Sequence[Message]", read_prompt(prompt, takes_ids=False))
        return self.engine.encode(text, options, special=special, images=images, most=most)

    @named
    def tokenize_infill(
        self,
        prefix: str,
        suffix: str,
        files: Sequence[tuple[str, str]] = (),
        *,
        most: int | None = None,
    ) -> list[int]:
        """Return the prompt for the text between `prefix` and `suffix`.

        The order is files, prefix, suffix, middle. Special tokens in the texts are not parsed.

        Args:
            prefix: Text before the answer.
            suffix: Text after the answer.
            files: Names and texts of other files, in the form of llama-server's `/infill`.
            most: As for `tokenize`.

        Raises:
            PromptTooLongError: As for `tokenize`.
            NoInfillError: The vocabulary has no tokens for it.
        """
        check_types(prefix=prefix, suffix=suffix, files=files, most=most)
        return self.engine.encode(Infill(prefix, suffix, files), PromptOptions(), most=most)

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token; empty for a token without text."""
        check_types(token=token)
        return self.vocabulary.piece(token)

    def token_text(self, token: int) -> str:
        """Return the text of one token, with replacement characters for incomplete characters."""
        check_types(token=token)
        words = self.vocabulary
        return words.piece(token).decode("utf-8", errors="replace") or words.token_text(token)

    @named
    def score(
        self, text: str | Sequence[int], logprobs: int = 0, *, on_pass: OnProgress | None = None
    ) -> list[TokenLogprob]:
        """Return the log-probability of each token of a text after those before it.

        The first token has none, so there is one less than tokens. The values have the same bits
        alone and beside any other requests.

        Args:
            text: The text, or its token ids.
            logprobs: Number of likeliest tokens at each place.
            on_pass: Called before each pass. An exception of it ends the call.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: The text is empty, too long,
                or has an id that is not in the vocabulary.
            NoGenerationError: The model generates no text.
            NotEnoughMemoryError, BusyError, ClosedError: As for `embed`.
        """
        self.engine.check_generates()
        check_types(on_pass=on_pass)
        most = self.n_ctx - 1
        ids = self.tokenize(text, most=most) if isinstance(text, str) else [*text]

        def passed() -> None:
            if on_pass:
                on_pass(Progress("score", 0, len(ids), "tokens"))

        return self.engine.score(ids, logprobs, passed)

    # ---- state

    def save_session(self, path: str | Path, data: Mapping[str, Any]) -> None:
        """Write both caches and the given data to a file, completely or not at all.

        Raises:
            SessionError: The file cannot be written.
            BusyError, ClosedError: As for a generation.
        """
        check_types(path=path, data=data)
        self.engine.save_session(Path(path), data)

    def restore_session(self, path: str | Path) -> tuple[dict[str, Any], str]:
        """Restore both caches from a file that `save_session` wrote, and return its data.

        Returns:
            The data, and the reason why the caches could not be restored, so that the models must
            prefill again; empty if they were restored.

        Raises:
            SessionError: The file is missing, damaged, or not a session file.
            BusyError, ClosedError: As for a generation.
        """
        check_types(path=path)
        return self.engine.restore_session(Path(path))

    # ---- the end

    def close(self) -> None:
        """Free the native memory; repeated calls have no effect.

        An open stream is closed first. A round in progress is finished first.

        Raises:
            BusyError: This thread is inside a round, or has reserved the models.
        """
        self.engine.close()


def read_prompt(prompt: Any, takes_ids: bool = True) -> str | Sequence[Message] | list[int]:
    """Return a text, messages, or token ids as a list of numbers.

    Args:
        prompt: An argument of the Python API.
        takes_ids: Whether it may be token ids.

    Raises:
        OptionTypeError: It is something else.
    """
    if isinstance(prompt, str):
        return prompt
    allowed = "a text, a list of messages" + (" or a list of token ids" if takes_ids else "")
    hint = ""
    if isinstance(prompt, (bytes, bytearray, memoryview)):
        hint = "decode bytes: prompt.decode()."
    elif isinstance(prompt, Mapping):
        hint = "write one message as a list of one."
    elif isinstance(prompt, Sequence) or hasattr(prompt, "tolist"):  # an array
        items = prompt if isinstance(prompt, Sequence) else prompt.tolist()
        first = items[0] if isinstance(items, Sequence) and len(items) else 0
        if isinstance(first, Mapping):
            return [*items]
        if isinstance(first, str):
            hint = "give one text, or several to generate_many."
        elif isinstance(items, Sequence) and (takes_ids or not items):
            return _read_ids(items)
    raise wrong_type("prompt", prompt, allowed, hint)


def _read_ids(items: Sequence[Any]) -> list[int]:
    try:
        ids = [*map(operator.index, items)]
    except TypeError:
        ids = []
    if len(ids) < len(items) or bool in {*map(type, items)}:
        is_id = ARGUMENTS["token"].accepts
        i = next(i for i, x in enumerate(items) if isinstance(x, bool) or not is_id(x))
        raise wrong_type(f"prompt[{i}]", items[i], "a token id")
    return ids
