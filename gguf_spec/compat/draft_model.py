"""Our drafters for those who keep `llama_cpp.Llama`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from llama_cpp.llama_speculative import LlamaDraftModel
from numpy.typing import NDArray

from ..arrays import Logits
from ..errors import ClosedError, UnsupportedModelError
from ..gguf.validation import read_header
from ..gguf.vocabulary import FileVocabulary
from ..llama.model import Model
from ..llama.options import ContextOptions
from ..llama.selftest import extra_bufts_work
from ..options import Speculation
from ..speculative.acceptance_rates import AcceptanceRates
from ..speculative.drafters import (
    N_CONFIDENCE_BUCKETS,
    ModelDrafter,
    NgramDrafter,
    Proposal,
    TokenDrafter,
    check_vocabulary,
    failure,
)
from ..speculative.drafters.draft_sampler import DraftToken

_LIKELY = (
    0.3  # a token that is right as often as that is worth checking: it costs a fraction of a pass
)
_SURE = 0.8  # what the text proposes at that chance needs no second opinion
_BELIEFS = tuple((i + 0.5) / N_CONFIDENCE_BUCKETS for i in range(N_CONFIDENCE_BUCKETS))


class _Likeliest:
    """Takes the likeliest token; its share says how sure that is."""

    priors = _BELIEFS

    def token(self, row: Logits, _history: Sequence[int]) -> DraftToken:
        best = int(np.argmax(row))
        share = 1 / float(np.exp(row - row[best], dtype=np.float64).sum())
        return DraftToken(best, min(int(share * N_CONFIDENCE_BUCKETS), N_CONFIDENCE_BUCKETS - 1))

    def review(self, row: Logits, history: Sequence[int], token: int) -> tuple[int, bool]:
        guess = self.token(row, history)
        return guess.confidence, guess.token == token

    def learn(self, start: int, tokens: Sequence[int], rows: Logits) -> None:
        """Do nothing: llama-cpp-python does not say what the target found likely."""


class DraftModel(LlamaDraftModel):  # type: ignore[misc]  # llama-cpp-python is not typed
    """Proposes tokens to a `llama_cpp.Llama`: what followed in the text before, and what a small model would say.

        llama_cpp.Llama("target.gguf", draft_model=DraftModel("draft.gguf", target_path="target.gguf"), logits_all=True)

    `logits_all=True` is needed: without it llama-cpp-python has room for the logits of `n_batch` tokens only, and fails beyond. Its greedy text
    stays the same, unless two tokens are nearly as likely. A small model that fails is left out for the rest of a text.

    How often which proposals are right is learned; a draft ends where it is no longer likely to be. One object serves one `Llama` at a time.

    Attributes:
        k: Most tokens in a draft.
        n_drafted: Tokens proposed so far.
        n_accepted: How many of them the target said.
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
        """Make a drafter.

        Args:
            model_path: A small model of the target's family; None drafts from the text alone.
            k: Most tokens in a draft, 1 to 64.
            target_path: The target's file; where it is given, the vocabularies are compared.
            n_ctx: Tokens of the small model's context, those of the target at best: beyond them the text alone is drafted from. None takes what
                it was trained for, at most 4,096.
            n_threads: None takes the physical cores.
            n_gpu_layers: Layers of the small model to offload, -1 for all.

        Raises:
            InvalidOptionError, ModelError, NotEnoughMemoryError: The small model cannot be loaded.
            VocabularyMismatchError: It does not speak the target's vocabulary.
        """
        self.k, self.n_drafted, self.n_accepted = Speculation(k).k, 0, 0
        self._chances = AcceptanceRates(
            {NgramDrafter.name: NgramDrafter.priors, ModelDrafter.name: _BELIEFS}
        )
        self._model: Model | None = None
        self._drafter: ModelDrafter | None = None
        self._text = NgramDrafter()
        self._failed = False  # the small model, in this text
        self._tokens: list[int] = []  # those that the last draft followed
        self._draft: list[Proposal] = []
        if model_path is None:
            return
        options = replace(
            ContextOptions(n_ctx, n_threads, gpu_layers=n_gpu_layers),
            extra_bufts=extra_bufts_work(),
        )
        self._model = Model(Path(model_path), options)
        try:
            n_vocab = self._check(self._model, target_path)
        except BaseException:
            self.close()
            raise
        self._drafter = ModelDrafter(self._model, _Likeliest(), n_vocab)

    @staticmethod
    def _check(model: Model, target_path: str | Path | None) -> int:
        """Return how many tokens may be proposed."""
        if not model.can_roll_back:
            hint = "take a draft of another architecture, or draft from the text alone."
            raise UnsupportedModelError(
                model.path,
                f"{model.path.name} cannot go back a token (it is recurrent or hybrid).",
                hint,
            )
        if target_path is None:
            return model.n_vocab
        target = FileVocabulary(read_header(Path(target_path)))
        check_vocabulary(target, model)
        return target.n_vocab

    @property
    def acceptance(self) -> float:
        """Accepted over drafted; 0 where nothing was drafted."""
        return self.n_accepted / self.n_drafted if self.n_drafted else 0.0

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return what may follow `input_ids`, at most `k` tokens, perhaps none."""
        tokens: list[int] = input_ids.tolist()
        text, self._text = (
            self._text,
            NgramDrafter(),
        )  # the old one is back when it is whole: half of a text, where Ctrl-C ends this, is of no use
        text = self._judge(tokens, text)
        self._draft, self._tokens = self._propose(tokens, text), tokens
        self._text = text
        self.n_drafted += len(self._draft)
        return np.array([one.token for one in self._draft], dtype=np.intc)

    def close(self) -> None:
        """Free the small model; more than once does nothing. The text is still drafted from."""
        self._drafter = None
        if self._model:
            self._model.close()
            self._model = None

    def _judge(self, tokens: list[int], text: NgramDrafter) -> NgramDrafter:
        """Learn from what was said of the last draft; return the drafter of the text, a new one for another text."""
        n_before = len(self._tokens)
        if tokens[:n_before] != self._tokens:
            self._failed = False
            return NgramDrafter()
        for one, said in zip(self._draft, tokens[n_before:], strict=False):
            self._chances.learn(one.kind, one.token == said)
            if one.token != said:
                break
            self.n_accepted += 1
        return text

    def _propose(self, tokens: list[int], text: NgramDrafter) -> list[Proposal]:
        if (
            self._drafter
            and self._model
            and not self._failed
            and len(tokens) + self.k <= self._model.n_ctx
        ):
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
                one = (
                    model.propose()
                )  # its pass is paid for: the token is checked, however unlikely
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
