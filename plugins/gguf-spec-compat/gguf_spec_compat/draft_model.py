"""Drafters of gguf-spec as `draft_model` of `llama_cpp.Llama`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel
from numpy.typing import NDArray

from gguf_spec import Speculation
from gguf_spec.arrays import Logits
from gguf_spec.errors import ClosedError
from gguf_spec.gguf.validation import ModelFile, read_header
from gguf_spec.gguf.vocabulary import FileVocabulary
from gguf_spec.llama.context import Context
from gguf_spec.llama.memory import check_room
from gguf_spec.llama.options import ContextOptions
from gguf_spec.llama.own_kernels import extra_bufts_work
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.speculative.drafters import (
    N_CONFIDENCE_BUCKETS,
    ModelDrafter,
    NgramDrafter,
    Proposal,
    TokenDrafter,
    failure,
)
from gguf_spec.speculative.drafters.model import DraftToken
from gguf_spec.speculative.pair_statistics import AcceptanceRates
from gguf_spec.speculative.vocabularies import check_vocabulary
from gguf_spec.system.process import OfOneProcess

# Least acceptance rate at which a token is drafted: verifying one more token costs a fraction of a
# pass.
_LIKELY = 0.3
# Acceptance rate from which a proposal of the n-gram drafter is taken without a pass of the small
# model.
_SURE = 0.8
# Prior acceptance rate of each confidence bucket: the middle of the bucket.
_BELIEFS = tuple((i + 0.5) / N_CONFIDENCE_BUCKETS for i in range(N_CONFIDENCE_BUCKETS))


class _Likeliest:
    """Draft sampler that takes the most likely token; its probability is the confidence."""

    priors = _BELIEFS

    def token(self, row: Logits, _history: Sequence[int]) -> DraftToken:
        best = int(np.argmax(row))
        share = 1 / float(np.exp(row - row[best], dtype=np.float64).sum())
        return DraftToken(best, min(int(share * N_CONFIDENCE_BUCKETS), N_CONFIDENCE_BUCKETS - 1))

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        guess = self.token(row, history)
        return guess.confidence, guess.token == token

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: llama-cpp-python does not provide the logits of the target."""


class DraftModel(OfOneProcess, LlamaDraftModel):  # type: ignore[misc]  # llama-cpp-python has no types
    """Draft model for a `llama_cpp.Llama`: n-grams of the text, and optionally a small model.

        draft = DraftModel("draft.gguf", target_path="target.gguf")
        llama_cpp.Llama("target.gguf", draft_model=draft, logits_all=True)

    `logits_all=True` is required: without it llama-cpp-python has space for the logits of `n_batch`
    tokens only, and fails on longer texts. The greedy text stays the same, unless two tokens are
    almost equally likely. If the small model fails, it is not used for the rest of the text.

    Acceptance rates are learned. A draft ends when the estimated probability that all its tokens
    are accepted becomes too low. An object serves one `Llama` at a time.

    Attributes:
        k: Maximum draft length in tokens.
        n_drafted: Number of tokens drafted so far.
        n_accepted: Number of drafted tokens that the target accepted.
    """

    def __init__(
        self,
        model_path: str | Path | None = None,
        k: int = 8,
        *,
        target_path: str | Path | None = None,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int = -1,
    ) -> None:
        """Create a drafter and load its small model, if one is given.

        Args:
            model_path: A small model of the target's family; None drafts from the text alone.
            k: Maximum draft length in tokens, 1 to 64.
            target_path: The target's file; if given, the vocabularies are compared.
            n_ctx: Context length of the small model in tokens, ideally that of the target. Beyond
                it, drafts come from the text alone. None takes the trained length, at most 4,096.
            n_threads: Number of threads; None takes the number of physical cores.
            n_gpu_layers: Layers of the small model to offload, -1 for all.

        Raises:
            InvalidOptionError, ModelError, NotEnoughMemoryError: The small model cannot be loaded.
            VocabularyMismatchError: The small model has another vocabulary than the target.
        """
        self.k, self.n_drafted, self.n_accepted = Speculation(k).k, 0, 0
        priors = {NgramDrafter.name: NgramDrafter.priors, ModelDrafter.name: _BELIEFS}
        self._chances = AcceptanceRates(priors)
        self._model: CachedSequence | None = None
        self._drafter: ModelDrafter | None = None
        self._text = NgramDrafter()
        self._failed = False  # whether the small model failed in the current text
        self._tokens: list[int] = []  # the tokens before the last draft
        self._draft: list[Proposal] = []
        if model_path is None:
            return
        options = ContextOptions(n_ctx, n_threads, gpu_layers=n_gpu_layers)
        options = replace(options, extra_bufts=extra_bufts_work())
        file = ModelFile(Path(model_path))
        check_room([(file.header, options)])
        self._model = Context(file, options).sequences[0]
        n_vocab = self._model.n_vocab
        try:
            if target_path is not None:
                target = FileVocabulary(read_header(Path(target_path)))
                check_vocabulary(target, self._model.weights)
                n_vocab = target.n_vocab
        except BaseException:
            self.close()
            raise
        self._drafter = ModelDrafter(self._model, _Likeliest(), n_vocab)

    @property
    def acceptance(self) -> float:
        """Accepted divided by drafted tokens; 0 if no token was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return a draft that continues `input_ids`.

        Args:
            input_ids: Token ids of the text, shape `(n,)`.

        Returns:
            Drafted token ids, at most `k`; may be empty.
        """
        tokens: list[int] = input_ids.tolist()
        # The n-gram drafter is stored again only after a complete update: if Ctrl-C interrupts the
        # update, a new drafter replaces it.
        text, self._text = self._text, NgramDrafter()
        text = self._judge(tokens, text)
        self._draft, self._tokens = self._propose(tokens, text), tokens
        self._text = text
        self.n_drafted += len(self._draft)
        return np.array([one.token for one in self._draft], dtype=np.intc)

    def close(self) -> None:
        """Free the small model; further calls have no effect. Drafts from the text continue."""
        self._drafter = None
        if self._model:
            self._model.close()
            self._model = None

    def _judge(self, tokens: list[int], text: NgramDrafter) -> NgramDrafter:
        """Update the acceptance rates from the tokens that followed the last draft.

        Returns:
            The n-gram drafter of the text; a new one if `tokens` is another text.
        """
        n_before = len(self._tokens)
        if tokens[:n_before] != self._tokens:
            self._failed = False
            return NgramDrafter()
        for one, emitted in zip(self._draft, tokens[n_before:], strict=False):
            self._chances.learn(one.kind, one.token == emitted)
            if one.token != emitted:
                break
            self.n_accepted += 1
        return text

    def _propose(self, tokens: list[int], text: NgramDrafter) -> list[Proposal]:
        has_room = self._model and len(tokens) + self.k <= self._model.n_ctx
        if self._drafter and not self._failed and has_room:
            try:
                return self._propose_with(self._drafter, tokens, text)
            except ClosedError:
                raise
            except Exception as error:
                failure(ModelDrafter.name, error)
                self._drafter.give_up()
                self._failed = True
        return self._propose_with(None, tokens, text)

    def _propose_with(
        self, model: ModelDrafter | None, tokens: list[int], text: NgramDrafter
    ) -> list[Proposal]:
        drafters: list[TokenDrafter] = [text]
        if model:
            model.keep(tokens[:-1])
            drafters.append(model)
        for drafter in drafters:
            drafter.begin(tokens)
        draft: list[Proposal] = []
        reach = 1.0
        while len(draft) < self.k and reach >= _LIKELY:
            one, chance = text.propose(), 0.0
            if one:
                chance = self._chances.of(one.kind)
            if model and chance < _SURE:
                # The cost of the pass is already spent, so the token is drafted at any confidence.
                one = model.propose()
                chance = self._chances.of(one.kind) if one else 0.0
            elif reach * chance < _LIKELY:
                break
            if not one:
                break
            draft.append(one)
            reach *= chance
            for drafter in drafters:
                drafter.follow(one.token)
        return draft
