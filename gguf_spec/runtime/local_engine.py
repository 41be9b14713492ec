"""The engine that runs a model in this process: its weights, slots, queue and kept texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from ..engine import Facts, Infill, Measured, Request
from ..errors import InvalidOptionError, NoGenerationError, PromptTooLongError
from ..images import GivenImage
from ..llama.embedder import Embedder, Scorer
from ..llama.sequence import CachedSequence
from ..llama.weights import Weights
from ..options import (
    K_MAX,
    Message,
    PromptOptions,
    Sampling,
    Speculation,
    check_text,
    no_reasoning,
    well_formed,
)
from ..results import TokenLogprob
from ..speculative.pair import ModelPair
from ..system.piece_folder import PieceFolder
from ..system.process import OfOneProcess
from ..text.infill import encode_infill
from ..text.jinja_sandbox import names_read
from ..text.reasoning import reasoning_format
from ..text.templates import call_tokens
from . import generation
from .draft_texts import DraftTexts
from .embedding import score
from .kept_prompts import KeptPrompts
from .prefix_cache import PrefixStore
from .prompt import encode, with_images
from .request_queue import ParallelQueue, RequestQueue
from .session_file import restore as restore_session
from .session_file import save as save_session
from .stream import Stream


class LocalEngine(OfOneProcess):
    """A model in this process; see `gguf_spec.engine`.

    Attributes:
        pair: The models. Only the turn of the queue may use them.
        queue: The requests.
        kept: Texts that no slot holds any more.
        embedder, scorer: Contexts of their own, made with the first texts.
    """

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
        keep: PieceFolder | None = None,
        texts: DraftTexts | None = None,
        parallel_reason: str = "",
        sampling_sources: Mapping[str, str] | None = None,
        n_ctx_max: int = 0,
    ) -> None:
        """Take over loaded models; the other arguments are fields of `Facts`.

        Args:
            prefix_memory: Bytes for texts that no slot holds any more.
            keep: Folder on disk for texts that outlive this process; None for none.
            texts: The store of texts for drafts; None for none.
        """
        self.pair = pair
        self.texts: DraftTexts | None = texts
        self.target: CachedSequence = pair.target
        target = pair.target
        weights = target.weights
        self.facts: Facts = Facts(
            name=name,
            path=target.path,
            draft_name=pair.draft.label if pair.draft else None,
            prompt=prompt,
            n_ctx=target.n_ctx,
            n_ctx_limit=target.n_ctx_limit,
            n_ctx_max=max(n_ctx_max, target.n_ctx),
            parallel=target.options.parallel,
            parallel_reason=parallel_reason,
            generates=not target.file.embeds_only,
            can_see=getattr(target, "sees", False),
            can_think=reasoning_format(weights) is not None,
            chat_template=weights.chat_template,
            template_variables=names_read(weights.chat_template or ""),
            sampling=sampling or Sampling(),
            sampling_sources=dict(sampling_sources or {}),
            speculation=speculation,
            notes=tuple(notes),
            draft_notes=tuple(draft_notes),
        )
        self.embedder: Embedder | None = None
        self.scorer: Scorer | None = None
        slots = [slot for one in pair.slots for slot in one.slots]
        recurrent = [one.recurrent for one in slots if one.recurrent]
        self.kept: PrefixStore = PrefixStore(prefix_memory, recurrent)
        self.kept.disk = KeptPrompts(keep, pair.target, pair.draft) if keep else None
        queue = ParallelQueue if self.facts.parallel > 1 else RequestQueue
        self.queue: RequestQueue = queue(pair, self.kept)

    @property
    def measured(self) -> Measured:
        read, widths = self.kept.reading.seconds(1), self.pair.profile.target
        token_s = read or (widths[max(widths)] / max(widths) if widths else 0.0)
        return Measured(not self.pair.logit_noise(Speculation(K_MAX)), token_s)

    @property
    def vocabulary(self) -> Weights:
        self.queue.check_open()
        return self.target.weights

    def check_generates(self) -> None:
        if not self.facts.generates:
            raise NoGenerationError(self.target.path, self.target.file.header.architecture)

    def encode(
        self,
        prompt: str | Sequence[Message] | Infill,
        form: PromptOptions,
        *,
        special: bool = True,
        images: Sequence[GivenImage] = (),
        most: int | None = None,
    ) -> list[int]:
        weights = self.vocabulary
        if isinstance(prompt, Infill):
            return encode_infill(weights, *prompt, most=most)
        ids = encode(self.target, prompt, form, special=special, images=images, most=most)
        if most is not None and len(ids) > most:
            target = self.target
            raise PromptTooLongError(len(ids), target.n_ctx, n_ctx_limit=target.n_ctx_limit)
        return ids

    def submit(self, request: Request) -> Stream:
        """Begin an answer, which waits for its turn here if there is one slot."""
        self.check_generates()
        return self.queue.open(self._encoded(request))

    def _encoded(self, request: Request) -> generation.Request:
        """Return a request with its prompt as ids, and with what the model has for its flags."""
        weights, target, prompt = self.vocabulary, self.target, request.prompt
        form, sampling = request.form, request.sampling
        # an empty sequence is token ids
        is_chat = bool(prompt) and isinstance(prompt[0], Mapping)
        if is_chat or isinstance(prompt, str):
            given = cast("str | Sequence[Message]", prompt)
            tokens = encode(target, given, form, images=request.images, most=weights.n_ctx - 1)
        elif request.images:
            check_text(form)
            allowed = "given with a text or with messages"
            raise InvalidOptionError("images", len(request.images), allowed)
        else:
            check_text(form)
            tokens = with_images(cast("Sequence[int]", prompt), target)
        separates = is_chat if request.reasoning is None else request.reasoning
        reasoning = reasoning_format(weights) if is_chat or separates else None
        if (budget := sampling.think_budget) is not None and reasoning is None:
            is_asked = is_chat or bool(request.reasoning)
            raise no_reasoning(target.path, "think_budget", budget, is_asked)
        shown = (well_formed(prompt) if isinstance(prompt, str) else "") + form.prefill
        if request.echo and not (is_chat or isinstance(prompt, str)):  # it ends with the prefill
            shown = b"".join(map(weights.piece, tokens)).decode("utf-8", "replace")
        return generation.Request(
            prompt=tokens,
            sampling=sampling,
            speculation=request.speculation,
            on_token=request.on_token,
            prefill=form.prefill,
            echo=shown if request.echo else "",
            on_prompt=request.on_prompt,
            reasoning=reasoning if separates else None,
            shown=call_tokens(weights) if form.tools else {},
        )

    def score(
        self, tokens: Sequence[int], logprobs: int, on_pass: Callable[[], object]
    ) -> list[TokenLogprob]:
        self.check_generates()
        self.check(tokens, Sampling(logprobs=logprobs))

        def passed(_n_done: int) -> None:
            _ = self.vocabulary  # `close` of another thread waits for the turn
            on_pass()

        def run() -> list[TokenLogprob]:
            return score(self.own_scorer(), tokens, logprobs, passed)

        return self.queue.in_turn(run)

    def check(self, tokens: Sequence[int], sampling: Sampling) -> None:
        """Reject token ids that cannot be read, before any pass runs."""
        request = generation.Request(tokens, sampling, self.facts.speculation)
        generation.check_request(request, self.target)

    def own_scorer(self) -> Scorer:
        self.scorer = self.scorer or Scorer(self.target)
        return self.scorer

    def own_embedder(self) -> Embedder:
        self.embedder = self.embedder or Embedder(self.target)
        return self.embedder

    def save_session(self, path: Path, data: Mapping[str, Any]) -> None:
        self.queue.in_turn(partial(save_session, path, data, self.target, self.pair.draft))

    def restore_session(self, path: Path) -> tuple[dict[str, Any], str]:
        return self.queue.in_turn(partial(restore_session, path, self.target, self.pair.draft))

    def end_requests(self) -> None:
        """Do nothing: a request that waits here has its answer, which is cancelled."""

    def close(self) -> None:
        self.queue.close(self._free)

    def _free(self) -> None:
        self.kept.close(self.pair.slots)
        if self.texts:
            self.texts.close()
        for one in filter(None, (self.embedder, self.scorer)):
            one.close()
        self.pair.close()
