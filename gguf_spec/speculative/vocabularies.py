"""Vocabularies of a target and its draft: whether they are the same, or how to translate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import VocabularyMismatchError
from ..gguf.header import Header
from ..gguf.vocabulary import FileVocabulary
from ..vocabulary import Vocabulary
from .translation import Translation, by_words, longest_pieces

# Largest difference of the vocabulary sizes, in tokens; llama.cpp's limit.
_MAX_SIZE_DIFFERENCE = 128
# First token id whose text is compared; llama.cpp's choice.
_FIRST_COMPARED_TOKEN = 5
# Share of the smaller vocabulary that two vocabularies must have in common. SmolLM2 and Gemma 3
# share 94 %.
_LEAST_COMMON = 0.25
# Vocabulary types whose tokens are texts: SPM and BPE.
_WITH_TEXTS = (1, 2)
# Text before a word whose start must not get a space, and which no token joins to a word.
_MARK = b","


def translation_of(
    target: Vocabulary, draft: Vocabulary, header: Header, draft_header: Header
) -> Translation | None:
    """Return how to translate between two models; None if their ids are the same.

    Args:
        target: The target.
        draft: The draft model.
        header: The header of the target's file.
        draft_header: The header of the draft model's file.

    Raises:
        VocabularyMismatchError: They have too few tokens in common.
    """
    of_draft = FileVocabulary(draft_header)
    kept = of_draft.kept
    try:
        check_vocabulary(target, draft if kept is None else of_draft)
    except VocabularyMismatchError as error:
        of_target = FileVocabulary(header)
        share = common_share(of_target, of_draft, error)
        return _by_texts(target, draft, of_target, of_draft, share)
    return None if of_draft.reads_all else _by_ids(target, draft, of_draft)


def common_share(
    target: FileVocabulary, draft: FileVocabulary, error: VocabularyMismatchError
) -> float:
    """Return the number of common tokens as a share of the smaller vocabulary.

    Raises:
        VocabularyMismatchError: They have too few tokens in common, or no texts to compare.
    """
    if any(one.special_tokens["type"] not in _WITH_TEXTS for one in (target, draft)):
        raise error
    sizes = [len(one.by_bytes) for one in (target, draft)]
    n = len(target.by_bytes.keys() & draft.by_bytes.keys())
    if n < _LEAST_COMMON * min(sizes):
        found = f"{n:,} of {min(sizes):,} tokens in common"
        words = f"target and draft have other tokenizers, with only {found}."
        raise VocabularyMismatchError("common", words, *sizes)
    return n / min(sizes)


def _by_ids(target: Vocabulary, draft: Vocabulary, vocabulary: FileVocabulary) -> Translation:
    """Return the translation for a draft with a part of the target's vocabulary.

    A token without a row stands in the draft's context as the longest kept pieces of its text.
    """
    kept = vocabulary.kept or ()
    rows = {token: row for row, token in enumerate(kept) if token < target.n_vocab}
    spell = _spelled_with_rows(vocabulary)

    def fixed(token: int) -> tuple[int, ...]:
        row = rows.get(token)
        return spell(target.piece(token)) if row is None else (row,)

    note = f"the draft {draft.path.name} knows {len(rows):,} of the {target.n_vocab:,} tokens"
    return Translation(rows, fixed, target.piece, spell, note=note)


def _by_texts(
    target: Vocabulary, draft: Vocabulary, a: FileVocabulary, b: FileVocabulary, share: float
) -> Translation:
    """Return the translation for a draft with another tokenizer."""
    rows = _rows_of(b)
    pairs = {
        token: rows[b.by_bytes[text]]
        for text, token in a.by_bytes.items()
        if text in b.by_bytes and token < target.n_vocab
    }
    ends = a.special_tokens["eos"], rows.get(b.special_tokens["eos"], -1)
    if min(ends) >= 0 and ends[0] not in pairs and ends[1] not in pairs.values():
        pairs[ends[0]] = ends[1]
    pairs = dict(sorted(pairs.items()))
    begins = a.special_tokens["bos"] if a.special_tokens["add_bos"] else -1
    bos = rows.get(b.special_tokens["bos"]) if b.special_tokens["add_bos"] else None

    def fixed(token: int) -> tuple[int, ...] | None:
        if token == begins:  # the draft's own start stands before the text
            return ()
        if target.piece(token):
            return None
        return (pairs[token],) if token in pairs else ()

    note = (
        f"the draft {draft.path.name} has another tokenizer; {share:.0%} of its tokens can be used"
    )
    spell = _spelled_with_rows(b) if b.kept else by_words(_tokenizer(draft))
    return Translation(pairs, fixed, target.piece, spell, () if bos is None else (bos,), note)


def _rows_of(vocabulary: FileVocabulary) -> Mapping[int, int]:
    """Return the id by which a draft knows each of its tokens: its row, if it reads these only."""
    ids = vocabulary.kept or range(vocabulary.n_vocab)
    return {token: token if vocabulary.reads_all else row for row, token in enumerate(ids)}


def _spelled_with_rows(vocabulary: FileVocabulary) -> Callable[[bytes], tuple[int, ...]]:
    """Return a function that covers a text with the tokens of a trimmed draft."""
    rows = _rows_of(vocabulary)
    return longest_pieces({text: rows[token] for text, token in vocabulary.by_bytes.items()})


def _tokenizer(draft: Vocabulary) -> Callable[[bytes], list[int]]:
    """Return a function that tokenises a word of a text, without a space in front of it."""

    def tokenize(text: bytes) -> list[int]:
        return draft.tokenize(text, special=False, start=False)

    with_mark = tokenize(_MARK + b"a")
    if draft.piece(with_mark[0])[:1] != b" ":
        return tokenize
    n_mark = len(tokenize(_MARK))

    def inside(text: bytes) -> list[int]:
        # The tokenizer adds a space to the start of each text.
        return tokenize(text[1:]) if text[:1] == b" " else tokenize(_MARK + text)[n_mark:]

    return inside


def check_vocabulary(target: Any, draft: Any) -> None:
    """Check by llama.cpp's rule that two models share a vocabulary.

    These must agree: the type, the tokens added at start and end, the size up to a difference of
    128, and the text of every token from id 5 on. Of a trimmed vocabulary the kept tokens count.

    Args:
        target: A `Vocabulary` or a `FileVocabulary`.
        draft: A `Vocabulary` or a `FileVocabulary`; of a trimmed draft the `FileVocabulary`.

    Raises:
        VocabularyMismatchError: They differ; the error names the difference, with both values.
    """
    a, b = target.special_tokens, draft.special_tokens
    words = {
        "type": "tokenizer types",
        "add_bos": "whether a start token is added",
        "add_eos": "whether an end token is added",
    } | {what: f"the {what} tokens" for what in ("bos", "eos") if a[f"add_{what}"]}
    if abs(a["size"] - b["size"]) > _MAX_SIZE_DIFFERENCE:
        words["size"] = f"the vocabulary sizes, by more than {_MAX_SIZE_DIFFERENCE}"
    for what, about in words.items():
        if a[what] != b[what]:
            raise _mismatch(what, about, a[what], b[what])
    kept = getattr(draft, "kept", None)
    compared = range(_FIRST_COMPARED_TOKEN, min(a["size"], b["size"]))
    for token in compared if kept is None else filter(compared.__contains__, kept):
        texts = target.token_text(token), draft.token_text(token)
        if texts[0] != texts[1]:
            raise _mismatch("token", f"the texts of token {token}", *texts, token)


def _mismatch(
    what: str, words: str, a: object, b: object, token: int | None = None
) -> VocabularyMismatchError:
    message = f"target and draft differ in {words}: {a!r} in the target, {b!r} in the draft."
    return VocabularyMismatchError(what, message, a, b, token)
