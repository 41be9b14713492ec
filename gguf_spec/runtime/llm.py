"""Public classes `LLM`, a target with an optional draft, and `Chat`, a conversation with it.

They are in one file, because each uses the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    GgufSpecError,
    InvalidOptionError,
    NoGenerationError,
    NoInfillError,
    NoQuestionError,
    PromptTooLongError,
    SessionError,
)
from ..gguf.validation import pooling_of
from ..llama.embedder import Embedder, Scorer
from ..llama.sequence import CachedSequence
from ..llama.weights import Weights
from ..options import (
    ARGUMENTS,
    Sampling,
    Speculation,
    check_types,
    named,
    require,
    well_formed,
    with_options,
)
from ..results import (
    Chunk,
    Completion,
    OnProgress,
    PassCounts,
    PrefixMemory,
    Progress,
    ScoredOption,
    SlotState,
    Stats,
    TokenLogprob,
)
from ..speculative.pair import ModelPair, Snapshot
from ..speculative.profile import Profile
from ..speculative.translation import Translation
from ..system.process import OfOneProcess
from ..text.chat_template import (
    Message,
    Tools,
    call_tokens,
    check_text,
    names_read,
    no_reasoning,
    read_options,
)
from ..text.reasoning import reasoning_format
from .embedding import choose, embed, encode_texts, rank_prompts, score
from .generation import Request, check_request
from .images import GivenImage, are_parts, with_image_parts
from .many import checked_threads, generate_many
from .prefix_cache import Kept, PrefixStore
from .prompt import MARKER, Prompt, encode, read_prompt, with_images
from .request_queue import ParallelQueue, RequestQueue, Ticket
from .session_file import restore as restore_session
from .session_file import save as save_session
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..edit import Edit
    from .arguments import (
        ContinueOptions,
        EditOptions,
        EncodingOptions,
        GenerateOptions,
        RequestOptions,
    )

_LOG = logging.getLogger(__name__)
_ROOM = 256  # maximum number of tokens that `shift` keeps free for an answer
_ROLES = {"system", "user", "assistant"}
_USER, _ASSISTANT = "User:", "Assistant:"  # role labels for models without a chat template


KeptTexts: TypeAlias = tuple[list[object], list[Kept]]
"""What decides the states of caches, and the states."""


class LLM(OfOneProcess):
    """A loaded model that runs one request at a time, or several with `load(parallel=...)`.

    It may be called from any thread. Requests beyond those that run wait in order of arrival.

    Attributes:
        name: The target's registry name or file name.
        draft_name: The draft's file name, with `(prediction head)` for one; or None.
        prompt: `text` or `chat`: the form of a bare prompt. It comes from the registry; otherwise
            it is `chat` if the file has a chat template.
        speculation: Default draft options of a request.
        sampling: Default sampling options of a request: those given to `load`, of models.yaml for
            the model, of its file, otherwise the package defaults.
        sampling_sources: Name of a default that is not the package's -> where it comes from:
            `option`, `models.yaml` or `file`.
        notes: Explanations of unexpected behaviour, such as an unused draft. One sentence each.
        draft_notes: Those of `notes` that are about the choice of the draft.
        parallel_reason: Why `parallel` has its value; empty if the caller gave the number.
        n_ctx_max: Longest context with which the model could have been loaded, in tokens.
        n_ctx_limit: Longest context that the model can have here, in tokens; on a GPU the trained
            one. None if unknown.
    """

    draft_notes: tuple[str, ...]
    n_ctx_max: int
    name: str
    notes: tuple[str, ...]
    parallel_reason: str
    prompt: str
    sampling: Sampling
    sampling_sources: dict[str, str]
    speculation: Speculation

    def __init__(
        self,
        name: str,
        pair: ModelPair[CachedSequence],
        *,
        prompt: str,
        speculation: Speculation,
        sampling: Sampling | None = None,
        notes: Sequence[str] = (),
        draft_notes: Sequence[str] = (),
        prefix_memory: int = 0,
        parallel_reason: str = "",
        sampling_sources: Mapping[str, str] | None = None,
        n_ctx_max: int = 0,
    ) -> None:
        self.name, self.n_ctx_max = name, max(n_ctx_max, pair.target.n_ctx)
        self.n_ctx_limit: int | None = pair.target.n_ctx_limit
        self.draft_name: str | None = pair.draft.label if pair.draft else None
        self.prompt, self.speculation, self.notes = prompt, speculation, tuple(notes)
        self.sampling, self.sampling_sources = sampling or Sampling(), dict(sampling_sources or {})
        self.draft_notes, self.parallel_reason = tuple(draft_notes), parallel_reason
        self._pair, self._target, self._draft = pair, pair.target, pair.draft
        self._embedder: Embedder | None = None  # created with the first texts, as the next one
        self._scorer: Scorer | None = None
        self._has_warned = False  # that `generate` answers no questions
        slots = [slot for one in pair.slots for slot in one.slots]
        self._kept = PrefixStore(prefix_memory, [one.recurrent for one in slots if one.recurrent])
        self._queue = (ParallelQueue if self.parallel > 1 else RequestQueue)(pair, self._kept)

    def __repr__(self) -> str:
        state = "closed" if self._queue.is_closed else f"n_ctx={self.n_ctx}"
        return f"<{type(self).__name__} {self.name!r}: draft={self.draft_name!r}, {state}>"

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
        stream: Stream | None = None
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
    ) -> Stream:
        """Start a generation as `generate` does, and return an iterator over `Chunk`s.

        The LLM is reserved until the stream ends or is closed.
        """
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)
        check_types(
            sampling=sampling, speculation=speculation, images=images, echo=echo,
            stop_tokens=stop_tokens, on_token=on_token, on_prompt=on_prompt, reasoning=reasoning,
        )  # fmt: skip
        sampling, speculation = with_options(
            sampling or self.sampling, speculation or self.speculation, options, ARGUMENTS
        )
        weights, form = self.vocabulary, read_options(prefill, tools, think, chat_template_kwargs)
        prompt, prefill = read_prompt(prompt), form.prefill
        # an empty sequence is token ids
        is_chat = bool(prompt) and isinstance(prompt[0], Mapping)
        if is_chat or isinstance(prompt, str):
            given, most = cast("str | Sequence[Message]", prompt), weights.n_ctx - 1
            tokens = encode(self._target, given, form, images=images, most=most)
        elif images:
            check_text(form)
            raise InvalidOptionError("images", len(images), "given with a text or with messages")
        else:
            check_text(form)
            tokens = with_images(cast("Sequence[int]", prompt), self._target)
        if more := tuple(stop_tokens):
            sampling = replace(sampling, stop_tokens=(*sampling.stop_tokens, *more))
        separated = reasoning_format(weights) if is_chat or reasoning else None
        if (budget := sampling.think_budget) is not None and separated is None:
            raise no_reasoning(weights, "think_budget", budget, is_chat or bool(reasoning))
        shown = (well_formed(prompt) if isinstance(prompt, str) else "") + prefill
        if echo and not (is_chat or isinstance(prompt, str)):  # it ends with the prefill
            shown = b"".join(map(weights.piece, tokens)).decode("utf-8", "replace")
        request = Request(
            prompt=tokens,
            sampling=sampling,
            speculation=speculation,
            on_token=on_token,
            prefill=prefill,
            echo=shown if echo else "",
            on_prompt=on_prompt,
            reasoning=separated if reasoning is not False else None,
            shown=call_tokens(weights) if tools else {},
        )
        return self._queue.open(request)

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
        from ..edit import EditPlan

        sampling, speculation = with_options(
            sampling or Sampling(temperature=0), speculation or self.speculation, options
        )
        plan = EditPlan(text, instruction, name=name, scope=scope)
        if not plan.needs_model:
            return plan.result_by_code()
        prompt = plan.prompt(self, others)
        completion = self.generate(
            prompt.request,
            prompt.limited(sampling, max_tokens),
            prefill=prompt.prefill,
            speculation=speculation,
        )
        return plan.result(prompt.text_of(completion), completion)

    def generate_many(
        self,
        prompts: Iterable[Prompt],
        samplings: Sampling | Iterable[Sampling | None] | None = None,
        *,
        max_parallel: int | None = None,
        on_result: Callable[[int, Completion | GgufSpecError], object] | None = None,
        **options: Unpack[GenerateOptions],
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
        known = {*signature(self.stream).parameters} - {"options"}
        of_request = {name: value for name, value in options.items() if name not in known}
        with_options(Sampling(), Speculation(), of_request, known)
        typed = {name: value for name, value in options.items() if name in ARGUMENTS}
        check_types(samplings=samplings, on_result=on_result, **typed)
        self._queue.check_thread()
        _ = self.vocabulary  # a closed LLM raises at once
        n_threads = checked_threads(self.parallel, max_parallel)
        begin = partial(self.stream, **options)
        return generate_many(begin, prompts, samplings, n_threads, on_result)

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
    ) -> Stream:
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
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)
        check_types(think=think)
        if think and not self.can_think:
            raise no_reasoning(self._target.weights, "think", think)
        return Chat(
            self, system, sampling=sampling or self.sampling, overflow=overflow, think=think
        )

    # ---- facts and vocabulary

    @property
    def n_ctx(self) -> int:
        """Number of tokens that the context holds, prompt and answer together."""
        return self._target.n_ctx

    @property
    def parallel(self) -> int:
        """Number of requests that can share passes; more wait."""
        return self._target.options.parallel

    @property
    def pass_counts(self) -> PassCounts:
        """Passes and rows of the target since it was loaded, those of measurements included."""
        return self._target.context.counts

    @property
    def translation(self) -> Translation | None:
        """Translation for a draft model with other token ids; None if they are the same."""
        return self._pair.translation

    @property
    def path(self) -> Path:
        """File of the target."""
        return self._target.path

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the weights and caches, in bytes."""
        parts = (self._target, self._draft, self._embedder, self._scorer)
        return sum(one.memory_bytes for one in parts if one)

    @property
    def facts(self) -> dict[str, int]:
        """Numbers of the target's file, with llama-server's names."""
        names = ("n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params")
        weights = self._target.weights
        found: dict[str, int] = {name: getattr(weights, name) for name in names}
        kind = weights.special_tokens["type"]
        return found | {"vocab_type": kind, "size": self._target.weight_bytes}

    @property
    def generates(self) -> bool:
        """Whether the model generates text; without that it only computes embeddings."""
        return not self._target.file.embeds_only

    @property
    def chat_template(self) -> str | None:
        """The file's Jinja template, which formats messages as a prompt, or None."""
        return self._target.weights.chat_template

    @property
    def has_chat_template(self) -> bool:
        """Whether the target has a chat template."""
        return self._target.weights.chat_template is not None

    @property
    def can_see(self) -> bool:
        """Whether prompts may have images: the model was loaded with a projector."""
        return getattr(self._target, "sees", False)

    @property
    def can_think(self) -> bool:
        """Whether the chat template has reasoning parts, which are separated from the answers."""
        return reasoning_format(self.vocabulary) is not None

    @property
    def template_variables(self) -> frozenset[str]:
        """Variables that the chat template reads and a request may set."""
        return names_read(self.vocabulary.chat_template or "")

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
        _ = self.vocabulary  # a closed LLM raises
        ids = encode(self._target, text, options, special=special, images=images, most=most)
        if most is not None and len(ids) > most:
            raise PromptTooLongError(len(ids), self.n_ctx, n_ctx_limit=self.n_ctx_limit)
        return ids

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
        model = self.vocabulary
        if model.infill_marks is None:
            raise NoInfillError(model.path.name)
        before, after, middle = model.infill_marks
        start = [model.special_tokens["bos"]] if model.special_tokens["add_bos"] else []
        n_before = 0

        def ids(text: str) -> list[int]:
            nonlocal n_before
            found = model.tokenize(text, special=False, start=False, most=most)
            n_before += len(found)
            if most is not None and n_before > most:
                raise PromptTooLongError(n_before, self.n_ctx, True, self.n_ctx_limit)
            return found

        repository, file = model.file_marks
        if files and file >= 0:
            start += [repository, *ids("myproject\n")] if repository >= 0 else []
            for name, text in files:
                start += [file, *ids(f"{name}\n"), *ids(text)]
            start += [file, *ids("filename\n")]
        else:
            start += [id_ for _, text in files for id_ in ids(f"\n\n--- snippet ---\n\n{text}")]
        return [*start, before, *ids(prefix), after, *ids(suffix), middle]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of one token; empty for a token without text."""
        check_types(token=token)
        return self.vocabulary.piece(token)

    def token_text(self, token: int) -> str:
        """Return the text of one token, with replacement characters for incomplete characters."""
        check_types(token=token)
        weights = self.vocabulary
        return weights.piece(token).decode("utf-8", errors="replace") or weights.token_text(token)

    @property
    def vocabulary(self) -> Weights:
        """The vocabulary of the target; lookups are possible while a request runs."""
        self._queue.check_open()
        return self._target.weights

    # ---- embeddings

    @property
    def pooling(self) -> str:
        """How `embed` makes one vector of a text: `mean`, `cls`, `last`, `rank` or `none`."""
        model = self.vocabulary
        return model.options.pooling or pooling_of(model.file.header)

    @named
    def embed(
        self,
        texts: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        normalize: bool = True,
        special: bool = True,
        on_pass: OnProgress | None = None,
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Return the embeddings of texts. Each has the same bits alone and beside any others.

        The caches and the texts of generations do not change. The first call creates a context of
        its own, and so does the first longer text.

        Args:
            texts: Texts, or token ids of each; one text alone counts as a list of one.
            normalize: Scale each vector to the length 1; scores of `rank` never are.
            special: Parse `[SEP]` and similar strings in a text as special tokens.
            on_pass: Called before each text is tokenised, and after each pass, with the finished
                texts. An exception of it ends the call.

        Returns:
            An array of shape `(n, n_embd)`; with the pooling `rank` of shape `(n, n_scores)`. With
            the pooling `none` a list of arrays, one row for each token of a text.

        Raises:
            EmptyPromptError, TextTooLongError, InvalidOptionError: A text has no token, has too
                many, or contains an id that is not in the vocabulary. Raised before any pass runs.
            NotEnoughMemoryError: The context does not fit; raised before it is created.
            NoRankingError: `load` was called with `pooling="rank"`, and the file has no head for
                it.
            BusyError, ClosedError: As for a generation.
        """
        check_types(normalize=normalize, special=special, on_pass=on_pass)
        ids = encode_texts(self.vocabulary, texts, special, on_pass)

        def run() -> NDArray[np.float32] | list[NDArray[np.float32]]:
            if self._embedder is None:
                self._embedder = Embedder(self._target)
            # `close` of another thread waits for the turn
            return embed(self._embedder, ids, normalize, lambda: self.vocabulary, on_pass)

        return self._queue.in_turn(run)

    @named
    def rerank(
        self, query: str, documents: Sequence[str], *, on_pass: OnProgress | None = None
    ) -> list[float]:
        """Return the relevance of each document for a query, as the model scores it.

        Args:
            query: The query.
            documents: The documents.
            on_pass: As for `embed`.

        Raises:
            NoRankingError: The model is no reranker.
            TextTooLongError: A document with the query is too long.
            NotEnoughMemoryError, BusyError, ClosedError: As for `embed`.
        """
        scores = self.embed(self.rank_tokens(query, documents, on_pass=on_pass), on_pass=on_pass)
        return [float(row[0]) for row in scores]

    @named
    def rank_tokens(
        self, query: str, documents: Sequence[str], *, on_pass: OnProgress | None = None
    ) -> list[list[int]]:
        """Return the token ids of a query with each document, which `rerank` embeds.

        `on_pass` is called before each; an exception of it ends the call.

        Raises:
            NoRankingError: The model is no reranker.
        """
        check_types(query=query, documents=documents, on_pass=on_pass)
        return rank_prompts(self.vocabulary, self.pooling, query, documents, on_pass)

    def choose(
        self,
        prompt: str | Sequence[Message],
        options: Sequence[str],
        *,
        prefill: str = "",
        on_pass: OnProgress | None = None,
        **encoding: Unpack[EncodingOptions],
    ) -> list[ScoredOption]:
        """Return how likely each option is as the text after a prompt, or as the answer to it.

        The prompt is read once, and several options share a pass. The log-probabilities of an
        option do not depend on the others. The end of an answer is not counted, so an option is at
        least as likely as those that begin with it.

        Args:
            prompt: A text, or messages for the chat template.
            options: The texts. Their tokens are those that they add to the prompt's.
            prefill: Beginning of the answer, before the options.
            on_pass: Called before each step. An exception of it ends the call.
            encoding: Other arguments of `tokenize`, such as `think=False` for a model that reasons.

        Raises:
            EmptyPromptError, PromptTooLongError, InvalidOptionError: The prompt is empty, or too
                long with an option; or the tokens of an option do not follow those of the prompt.
            NoGenerationError: The model generates no text.
            NotEnoughMemoryError, BusyError, ClosedError: As for `embed`.
        """
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)
        check_types(options=options, prefill=prefill, on_pass=on_pass)
        if not options:
            hint = "give the texts to choose from."
            raise InvalidOptionError("options", options, "at least one text", hint)

        def passed(n_done: int) -> None:
            _ = self.vocabulary  # `close` of another thread waits for the turn
            if on_pass:
                on_pass(Progress("choose", n_done, len(options), "texts"))

        def encoded(option: str) -> list[int]:
            passed(0)
            most = self.n_ctx - 1
            tokens = [*self.tokenize(prompt, prefill=prefill + option, most=most, **encoding)]
            check_request(Request(tokens, self.sampling, self.speculation), self._target)
            return tokens

        def run() -> list[ScoredOption]:
            self._scorer = self._scorer or Scorer(self._target)
            return choose(self._scorer, options, prompts_with_option, passed)

        prompts_with_option = [encoded(option) for option in ("", *options)]
        return self._queue.in_turn(run)

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
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)
        check_types(on_pass=on_pass)
        sampling = replace(self.sampling, logprobs=logprobs)
        most = self.n_ctx - 1
        ids = self.tokenize(text, most=most) if isinstance(text, str) else [*text]
        check_request(Request(ids, sampling, self.speculation), self._target)

        def passed(_n_done: int) -> None:
            _ = self.vocabulary  # `close` of another thread waits for the turn
            if on_pass:
                on_pass(Progress("score", 0, len(ids), "tokens"))

        def run() -> list[TokenLogprob]:
            self._scorer = self._scorer or Scorer(self._target)
            return score(self._scorer, ids, logprobs, passed)

        return self._queue.in_turn(run)

    # ---- state

    def slots(self) -> tuple[SlotState, ...]:
        """Return the state of each slot, of which there are `parallel`.

        It does not wait for running requests.

        Raises:
            ClosedError: The LLM is closed.
        """
        _ = self.vocabulary  # a closed LLM raises
        return self._queue.slots()

    @property
    def prefix_memory(self) -> PrefixMemory:
        """Memory for earlier texts whose caches were given to other texts, and its use.

        A request that begins like one of them needs not read that part. The text does not change.
        """
        return self._kept.memory()

    @contextmanager
    def models(self) -> Iterator[tuple[CachedSequence, CachedSequence | None]]:
        """Reserve the LLM and yield `(target, draft)` for checks of the models' internals.

        The second item is a prediction head if one drafts, and None without a draft model.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        if not self.generates:
            raise NoGenerationError(self.path, self._target.file.header.architecture)
        ticket = Ticket()
        try:
            self._queue.take(ticket)
            yield self._target, self._draft
        finally:
            self._queue.leave(ticket)

    def forget(self) -> None:
        """Clear the caches and the kept texts: the next prompt is prefilled from its start.

        The texts do not change; only the cost of the next prompt does.

        Raises:
            BusyError, ClosedError: As for a generation.
        """

        def empty() -> None:
            for slot in (slot for pair in self._pair.slots for slot in pair.slots):
                slot.rollback(0)
            self._kept.forget()

        self._queue.in_turn(empty)

    def kept_texts(self) -> KeptTexts:
        """Return the states of all caches and kept texts, for the next LLM of the same files.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        return self._queue.in_turn(
            lambda: (self._kind_of_caches, self._kept.all_of(self._pair.slots))
        )

    def add_texts(self, texts: KeptTexts) -> None:
        """Keep the texts of another LLM, so that they need not be read again.

        Nothing is kept of other files, or of ones that were replaced.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        if self._kind_of_caches == texts[0]:
            self._queue.in_turn(lambda: self._kept.add_all(texts[1]))

    @property
    def _kind_of_caches(self) -> list[object]:
        """All but the length that decides what the states of the caches are."""
        models = [one for one in (self._target, self._draft) if one]
        return [
            (one.file.content_id, one.options.kv_type, one.flash_attention, one.reads_at_once)
            for one in models
        ] + [one.exactness for one in models]

    def save_session(self, path: str | Path, data: Mapping[str, Any]) -> None:
        """Write both caches and the given data to a file, completely or not at all.

        Raises:
            SessionError: The file cannot be written.
            BusyError, ClosedError: As for a generation.
        """
        check_types(path=path, data=data)
        self._queue.in_turn(partial(save_session, Path(path), data, self._target, self._draft))

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
        return self._queue.in_turn(partial(restore_session, Path(path), self._target, self._draft))

    def logit_noise(self, k: int, exact: bool = True) -> float:
        """Return the largest logit shift that the pass width causes on this machine, in logits.

        The profile measures it over a few rows and doubles it. A decision with a smaller margin is
        a near tie. It is 0 if k is 0, and if the passes in use give rows that are bit-identical to
        those of single-token passes.

        Args:
            k: Maximum number of draft tokens per round.
            exact: As in `Speculation`.
        """
        return self._pair.logit_noise(Speculation(k, exact=exact))

    @property
    def profile(self) -> Profile:
        """Costs and agreement measured for the models on this machine."""
        return self._pair.profile

    @property
    def prompt_token_s(self) -> float:
        """Approximate seconds to read a token of a prompt, as measured here; 0 if unknown."""
        read, widths = self._kept.reading.seconds(1), self._pair.profile.target
        return read or (widths[max(widths)] / max(widths) if widths else 0.0)

    def use_profile(self, profile: Profile) -> None:
        """Use other costs from now on, and drop the statistics learned with the old ones.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._queue.in_turn(partial(self._pair.use_profile, profile))

    def snapshot(self) -> Snapshot:
        """Return a copy of the state learned during use: costs, acceptance rates, correction.

        It changes the speed of later requests, not their texts.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        return self._queue.in_turn(self._pair.snapshot)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to the learned state of a `snapshot`, which may be used again.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._queue.in_turn(partial(self._pair.restore, snapshot))

    # ---- the end

    def close(self) -> None:
        """Free the native memory; repeated calls have no effect.

        An open stream is closed first. A round in progress is finished first.

        Raises:
            BusyError: This thread is inside a round, or has reserved the models.
        """
        self._queue.close(self._free)

    def _free(self) -> None:
        self._kept.forget()
        for one in filter(None, (self._embedder, self._scorer)):
            one.close()
        self._pair.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
    """

    @named
    def __init__(
        self,
        llm: LLM,
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
        self.messages: list[dict[str, Any]] = []
        self.think = think
        self.last: Completion | None = None
        self.extra: dict[str, Any] = {}
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
        return self._ask(content, sampling, speculation, on_prompt)

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
        content: str | list[dict[str, Any]],
        sampling: Sampling,
        speculation: Speculation,
        on_prompt: OnProgress | None,
    ) -> Turn:
        if not self._llm.has_chat_template:
            sampling = replace(sampling, stop=(*sampling.stop, f"\n{_USER}"))
        messages = [*self.messages, {"role": "user", "content": content}]
        most = None if self._overflow == "shift" else self._llm.n_ctx - 1
        tokens = self._encode(messages, most)
        n_messages = len(messages)
        if self._overflow == "shift":
            tokens = self._shift(
                messages, tokens, min(sampling.max_tokens or _ROOM, _ROOM, self._llm.n_ctx // 4)
            )
        stream: Stream | None = None
        try:
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

    def with_model(self, llm: LLM) -> Chat:
        """Return a copy of the conversation that another model continues."""
        check_types(llm=llm)
        think = self.think if llm.can_think else None
        other = Chat(llm, sampling=self._sampling, overflow=self._overflow, think=think)
        other.messages[:] = [dict(one) for one in self.messages]
        other.extra = dict(self.extra)
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
            return self._ask(before[last]["content"], sampling, speculation, on_prompt)
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
            return self._llm.tokenize(messages, think=self.think, most=most)
        marks = {"system": "", "user": f"{_USER} ", "assistant": f"{_ASSISTANT} "}
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
            if len(messages) - first < 3:
                if len(tokens) < self._llm.n_ctx:  # accept less room, for a short answer
                    return tokens
                llm = self._llm
                raise PromptTooLongError(len(tokens), llm.n_ctx, n_ctx_limit=llm.n_ctx_limit)
            del messages[first : first + 2]
            tokens = self._encode(messages)
        return tokens


class Turn(OfOneProcess):
    """A running answer: an iterator over `Chunk`s and a context manager.

    It can be cancelled from any thread.

    Attributes:
        dropped: Number of old messages that were removed to free room.
    """

    def __init__(
        self, chat: Chat, stream: Stream, asked: list[dict[str, Any]], dropped: int
    ) -> None:
        self.dropped = dropped
        self._chat, self._stream, self._messages, self._open = chat, stream, asked, True

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
    def result(self) -> Completion:
        """The answer so far."""
        return self._stream.result

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
            self._chat.last = result
            if result.tokens or result.finish_reason != "cancelled":
                answer = {"role": "assistant", "content": result.text}
                if result.reasoning:
                    answer["reasoning_content"] = result.reasoning
                self._chat.messages[:] = [*self._messages, answer]
            self._open = False

    def run_to_end(self, on_chunk: Callable[[Chunk], object] = lambda _: None) -> Completion:
        """Read the answer to its end, and return it; `on_chunk` is as for a `Stream`."""
        try:
            return self._stream.run_to_end(on_chunk)
        finally:
            self.close()

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            return next(self._stream)
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
        and {"role", "content"} <= set(one) <= {"role", "content", "reasoning_content"}
        and one["role"] in _ROLES
        and all(
            isinstance(value, str) or (name == "content" and are_parts(value))
            for name, value in one.items()
        )
    )
