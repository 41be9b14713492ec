"""A loaded model that computes embeddings and ranks of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..gguf.validation import pooling_of
from ..llama.embedder import Embedder
from ..results import OnProgress
from .embedding import embed, encode_texts, rank_prompts
from .shared_model import SharedModel


class TextEmbedder(SharedModel):
    """A loaded model that computes embeddings, between the requests for text."""

    @property
    def pooling(self) -> str:
        """How `embed` makes one vector of a text: `mean`, `cls`, `last`, `rank` or `none`."""
        model = self.vocabulary
        return model.options.pooling or pooling_of(model.file.header)

    def embed(
        self,
        texts: str | Sequence[int] | Sequence[str | Sequence[int]],
        *,
        normalize: bool = True,
        special: bool = True,
        on_pass: OnProgress | None = None,
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Return the embeddings of texts, several of them computed in one pass.

        The caches and the texts of generations do not change. The first call creates a context of
        its own, and so does the first longer text.

        Args:
            texts: Texts, or token ids of each; one text alone counts as a list of one.
            normalize: Scale each vector to the length 1; scores of `rank` never are.
            special: Parse `[SEP]` and similar strings in a text as special tokens.
            on_pass: Called after each pass with the finished texts. An exception of it ends the
                call.

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
        ids = encode_texts(self.vocabulary, texts, special)
        return self._in_turn(lambda _: self._embed(ids, normalize, on_pass))

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
        scores = self.embed(self.rank_tokens(query, documents), on_pass=on_pass)
        return [float(row[0]) for row in scores]

    def rank_tokens(self, query: str, documents: Sequence[str]) -> list[list[int]]:
        """Return the token ids of a query with each document, which `rerank` embeds.

        Raises:
            NoRankingError: The model is no reranker.
        """
        return rank_prompts(self.vocabulary, self.pooling, query, documents)

    def _embed(
        self, ids: list[list[int]], normalize: bool, on_pass: OnProgress | None
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        if self._embedder is None:
            self._embedder = Embedder(self._target)
        # `close` of another thread waits for the turn
        return embed(self._embedder, ids, normalize, lambda: self.vocabulary, on_pass)
