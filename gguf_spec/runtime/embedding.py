"""Embeddings and ranks of texts, and probabilities of options."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    InvalidOptionError,
    NoRankingError,
    NoTokenLeftError,
)
from ..llama.bindings import C
from ..llama.embedder import Embedder, Scorer
from ..llama.weights import Weights
from ..results import OnProgress, Progress, ScoredOption, TokenLogprob
from ..sampling.chain import logprob
from ..text.encoding import of_text

Embeddings = NDArray[np.float32] | list[NDArray[np.float32]]


def embed(
    embedder: Embedder,
    texts: Sequence[Sequence[int]],
    normalize: bool,
    check: Callable[[], object],
    on_pass: OnProgress | None,
) -> Embeddings:
    """Return the embeddings of token ids, as `LLM.embed`.

    Args:
        embedder: Computes them.
        texts: Token ids.
        normalize: Whether each vector gets the length 1; scores never do.
        check: Called before each pass; an exception of it ends the call.
        on_pass: As for `LLM.embed`.
    """
    embedder.check(texts)

    def passed(n_done: int) -> None:
        check()
        if on_pass and n_done:
            on_pass(Progress("embed", n_done, len(texts), "texts"))

    rows = embedder.run(texts, passed)
    if normalize and embedder.pooling != "rank":
        # A zero vector stays as it is. In double precision, as llama.cpp does it: one by one, which
        # needs little memory.
        for i, one in enumerate(rows):
            lengths = np.sqrt(np.sum(one.astype(np.float64) ** 2, axis=-1, keepdims=True))
            rows[i] = (one / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    if on_pass:
        on_pass(Progress("embed", len(texts), len(texts), "texts"))
    if embedder.pooling == "none":
        return rows
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def choose(
    scorer: Scorer,
    options: Sequence[str],
    prompts_with_option: Sequence[Sequence[int]],
    on_pass: Callable[[int], object],
) -> list[ScoredOption]:
    """Return the options with their probabilities.

    Args:
        prompts_with_option: Token ids of the prompt, and of the prompt with each option.
        on_pass: As for `Scorer.score`.

    Raises:
        InvalidOptionError: The tokens of an option do not follow those of the prompt.
    """
    prompt, n = prompts_with_option[0], len(prompts_with_option[0])
    for option, whole in zip(options, prompts_with_option[1:], strict=True):
        if whole[:n] != prompt or len(whole) == n:
            allowed = "texts whose tokens follow those of the prompt"
            hint = "move the last characters of the prompt, such as a space, into each option."
            raise InvalidOptionError("options", option, allowed, hint)
    ids, found = [whole[n:] for whole in prompts_with_option[1:]], [list[float]() for _ in options]
    for i, row in scorer.score(prompt, ids, on_pass):
        if not np.isfinite(row.max()):
            raise NoTokenLeftError
        found[i].append(logprob(row, ids[i][len(found[i])], 0).logprob)
    sums = [math.fsum(some) for some in found]
    shares = [math.exp(one - max(sums)) for one in sums]
    rows = zip(options, ids, found, sums, shares, strict=True)
    return [ScoredOption(a, (*b,), (*c,), d, e / math.fsum(shares)) for a, b, c, d, e in rows]


def score(
    scorer: Scorer, ids: Sequence[int], n_top: int, on_pass: Callable[[int], object]
) -> list[TokenLogprob]:
    """Return the log-probabilities of the tokens of a text but the first, as `LLM.score`."""
    found: list[TokenLogprob] = []
    for _, row in scorer.score(ids[:1], [ids[1:]], on_pass) if len(ids) > 1 else ():
        if not np.isfinite(row.max()):
            raise NoTokenLeftError
        found.append(logprob(row, ids[len(found) + 1], n_top))
    return found


def rank_prompts(
    model: Weights, pooling: str, query: str, documents: Sequence[str], on_pass: OnProgress | None
) -> list[list[int]]:
    """Return the token ids of a query with each document, as llama-server puts them together.

    `on_pass` is called before each; an exception of it ends the call.

    Raises:
        NoRankingError: The model does not rank.
        TextTooLongError: A text has many more tokens than the context holds.
    """
    if pooling != "rank":
        raise NoRankingError(model.path, f"its pooling is {pooling}, not rank")
    template = model.native.model(C.llama_model_chat_template, b"rerank")
    text = template and template.decode("utf-8", errors="replace")
    found = []
    for i, document in enumerate(documents):
        if on_pass:
            on_pass(Progress("embed", 0, len(documents), "texts"))
        with of_text(model, i):
            in_order = (model, query, document)
            found.append(_in_template(text, *in_order) if text else _pair(*in_order))
    return found


def _pair(model: Weights, query: str, document: str) -> list[int]:
    """Return the token ids of a pair with the special tokens of the vocabulary."""
    of_vocab = model.native.vocab
    most, texts = model.n_ctx, (query, document)
    words = [model.tokenize(one, special=False, start=False, most=most) for one in texts]
    eos, sep = of_vocab(C.llama_vocab_eos), of_vocab(C.llama_vocab_sep)
    end = [eos if eos >= 0 else sep] if of_vocab(C.llama_vocab_get_add_eos) else []
    start = [model.start] if of_vocab(C.llama_vocab_get_add_bos) else []
    between = [sep] if of_vocab(C.llama_vocab_get_add_sep) else []
    return [*start, *words[0], *end, *between, *words[1], *end]


def _in_template(template: str, model: Weights, query: str, document: str) -> list[int]:
    """Return the token ids of a pair in a template; only the template can write special tokens."""
    texts = {"{query}": query, "{document}": document}
    parts = re.split(r"(\{query\}|\{document\})", template)
    tokens = partial(model.tokenize, special=True, start=False, most=model.n_ctx)
    ids = [tokens(text) for text in texts.values()]
    if all(model.piece(token) for some in ids for token in some):  # no control token's name
        whole = "".join(texts.get(part, part) for part in parts)
        return tokens(whole)
    return [
        token
        for part in parts
        for token in model.tokenize(texts.get(part, part), special=part not in texts, start=False)
    ]
