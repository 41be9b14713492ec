"""Public class `LLM`: a target with an optional draft."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..engine import Prompt
from ..errors import GgufSpecError, InvalidOptionError
from ..gguf.validation import pooling_of
from ..llama.sequence import CachedSequence
from ..llama.weights import Weights
from ..options import ARGUMENTS, Message, Sampling, Speculation, check_types, named, with_options
from ..results import (
    Completion,
    OnProgress,
    PassCounts,
    PrefixMemory,
    Progress,
    ScoredOption,
    SlotState,
)
from ..speculative.pair import ModelPair, Snapshot
from ..speculative.profile import Profile
from ..speculative.translation import Translation
from ..system.process import OfOneProcess
from ..text.encoding import encode_texts
from .client import Client
from .embedding import choose, embed, rank_prompts
from .local_engine import LocalEngine
from .many import checked_parallel, generate_many
from .prefix_cache import Kept
from .request_queue import Ticket
from .stream import Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..arguments import EncodingOptions, GenerateOptions

KeptTexts: TypeAlias = tuple[list[object], list[Kept]]
"""What decides the states of caches, and the states."""


class LLM(Client[Stream], OfOneProcess):
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
    """

    engine: LocalEngine

    def __init__(
        self,
        name: str,
        pair: ModelPair[CachedSequence],
        **options: Any,
    ) -> None:
        """Take over loaded models; `options` as of `LocalEngine`."""
        super().__init__(LocalEngine(name, pair, **options))
        self._pair, self._target, self._draft = pair, pair.target, pair.draft
        self._queue, self._kept = self.engine.queue, self.engine.kept

    def __repr__(self) -> str:
        state = "closed" if self._queue.is_closed else f"n_ctx={self.n_ctx}"
        return f"<{type(self).__name__} {self.name!r}: draft={self.draft_name!r}, {state}>"

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
        n_at_once = checked_parallel(self.parallel, max_parallel)
        begin = partial(self.stream, **options)
        return generate_many(begin, prompts, samplings, n_at_once, on_result)

    # ---- facts and vocabulary

    @property
    def pass_counts(self) -> PassCounts:
        """Passes and rows of the target since it was loaded, those of measurements included."""
        return self._target.context.counts

    @property
    def translation(self) -> Translation | None:
        """Translation for a draft model with other token ids; None if they are the same."""
        return self._pair.translation

    @property
    def memory_bytes(self) -> int:
        """Approximate memory of the weights and caches, in bytes."""
        parts = (self._target, self._draft, self.engine.embedder, self.engine.scorer)
        return sum(one.memory_bytes for one in parts if one)

    @property
    def file_numbers(self) -> dict[str, int]:
        """Numbers of the target's file, with llama-server's names."""
        names = ("n_vocab", "n_ctx", "n_ctx_train", "n_embd", "n_params")
        weights = self._target.weights
        found: dict[str, int] = {name: getattr(weights, name) for name in names}
        kind = weights.special_tokens["type"]
        return found | {"vocab_type": kind, "size": self._target.weight_bytes}

    @property
    def facts(self) -> dict[str, int]:
        """The old name of `file_numbers`, until the next release."""
        return self.file_numbers

    @property
    def vocabulary(self) -> Weights:
        """The vocabulary of the target; lookups are possible while a request runs."""
        return self.engine.vocabulary

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
            # `close` of another thread waits for the turn
            return embed(
                self.engine.own_embedder(), ids, normalize, lambda: self.vocabulary, on_pass
            )

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
        self.engine.check_generates()
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
            self.engine.check(tokens, self.sampling)
            return tokens

        def run() -> list[ScoredOption]:
            return choose(self.engine.own_scorer(), options, prompts_with_option, passed)

        prompts_with_option = [encoded(option) for option in ("", *options)]
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
        self.engine.check_generates()
        ticket = Ticket()
        try:
            self._queue.take(ticket)
            yield self._target, self._draft
        finally:
            self._queue.leave(ticket)

    def forget(self) -> None:
        """Clear the caches and the kept texts: the next prompt is prefilled from its start.

        Prompts of these models that are kept on disk (`load(keep=...)`) are removed, too, and the
        texts for drafts (`load(draft_texts=...)`).

        The texts do not change; only the cost of the next prompt does.

        Raises:
            BusyError, ClosedError: As for a generation.
        """

        def empty() -> None:
            for slot in (slot for pair in self._pair.slots for slot in pair.slots):
                slot.rollback(0)
            self._kept.forget()
            if self.engine.texts:
                self.engine.texts.forget()

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

    def measure(self) -> None:
        """Measure the costs of the models in passes of their own, unless that was done before.

        Otherwise requests begin with guessed costs, and their own passes correct these. The caches
        are empty afterwards.

        Raises:
            BusyError, ClosedError: As for a generation.
        """
        self._queue.in_turn(self._pair.measure_whole)

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

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
