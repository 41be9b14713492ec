"""Weights and vocabulary of a GGUF file, loaded by llama.cpp, and its adapters."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import (
    ClosedError,
    ForkedError,
    LoadCancelledError,
    PromptTooLongError,
    UnsupportedModelError,
)
from ..gguf.validation import Header, ModelFile, check_version, trimmed
from ..options import IMAGE_IDS, well_formed
from ..plugins import plugin
from ..system.files import version
from ..system.process import OfOneProcess
from .backend import run_with_large_stack, start_backend, without_signals
from .bindings import C
from .log import adapter_error, load_error, log, not_locked
from .native import Native, end_with_program, long_call
from .options import ContextOptions
from .token_rows import TokenRows

if TYPE_CHECKING:
    from pathlib import Path

# Length of a special token's name, in bytes, up to which texts are cut.
_LONGEST_NAME = 64


class Weights(OfOneProcess):
    """Weights, adapters and vocabulary of a model.

    Attributes:
        options: Load and context options.
        n_ctx: Capacity of the context, in positions; 0 without one.
        n_ctx_limit: Longest context that the model can have here; None if unknown.
        n_vocab: V, the length of a row of logits.
        start: The BOS token; token 0 if the vocabulary has none.
        infill_marks: Tokens before prefix, suffix and middle of a text that is filled in; None if
            the vocabulary lacks one of them.
        file_marks: Tokens before a repository and before a file of it; negative if missing.
        special_tokens: What must agree between target and draft: `type`, `add_bos`, `bos`,
            `add_eos`, `eos`, `size`.
        chat_template: The Jinja template in the file, or None.
        end_of_turn: The token that ends a turn of a chat; negative if missing.
        can_roll_back: Whether the cache can drop its last tokens. False for recurrent and hybrid
            models.
        kept: Ids of the tokens that have a row of logits, if others can be read; None if all have
            one.
        long_bytes: Size in bytes from which a text is tokenised in parts.
        part_bytes: Size of a part, in bytes.
    """

    file: ModelFile
    options: ContextOptions
    path: Path

    n_ctx = 0
    n_ctx_limit: int | None = None
    kept: NDArray[np.int64] | None = None
    long_bytes: int = 1 << 16
    part_bytes: int = 1 << 12
    _error: type[ClosedError] = ClosedError

    def __init__(self, file: ModelFile, options: ContextOptions) -> None:
        self.file, self.path, self.options = file, file.path, options
        self._native: Native | None = None
        if options.rpc:
            self._native = plugin("workers").connect(options.rpc, options.verbose)
        else:
            self._native = Native()
        self._pieces: dict[int, bytes] = {}
        self._is_end: dict[int, bool] = {}

    @property
    def native(self) -> Native:
        """The native objects of llama.cpp.

        Raises:
            ClosedError: The model is closed.
        """
        if self._native is None:
            raise self._error
        return self._native

    def _give_up(self) -> object:
        self._native, self._error = None, ForkedError
        return None

    def close(self) -> None:
        """Release the native memory.

        Further calls do nothing.

        The memory is freed as soon as no call of another thread uses it.
        """
        last, self._native = [self._native], None
        try:
            if last[0]:
                without_signals(last.clear)
        finally:
            last.clear()

    # ---- loading

    def load(self, header: Header, progress: Callable[[float], object] | None = None) -> None:
        """Load weights, vocabulary and adapters, or the vocabulary alone for a `Tokenizer`."""
        native, options, raised = self.native, self.options, list[BaseException]()
        params = C.llama_model_default_params()
        params.vocab_only = isinstance(self, Tokenizer)
        params.n_gpu_layers = options.gpu_layers if isinstance(options.gpu_layers, int) else -1
        params.use_extra_bufts, params.load_mtp = options.extra_bufts, options.head == "own"

        def tell(share: float, _data: object) -> bool:
            try:  # llama.cpp would drop an exception
                end_with_program()
                if progress and progress(share) is False:
                    raised.append(LoadCancelledError(self.path.name))
            except BaseException as error:
                raised.append(error)
            return not raised

        params.progress_callback = callback = C.llama_progress_callback(tell)
        # what is loaded: later another file may have the name
        _, versions = self.file.content_id, [version(one.path) for one in options.lora]
        _ = [adapter.content_id for adapter in options.lora]
        log.clear()
        names = [tensor.name for tensor in header.tensors]
        loaded = native.load(os.fsencode(self.path), params, options.placement, names)
        del callback  # llama.cpp kept only its address
        if raised:
            raise raised.pop()
        if not loaded:
            raise load_error(header, log)
        if options.placement.mlock and (lines := [line for line in log if "mlock" in line]):
            raise not_locked(header, lines)
        self._know_vocabulary(header)
        ask = native.model
        is_diffusion = not params.vocab_only and ask(C.llama_model_is_diffusion)
        if not params.vocab_only and (
            ask(C.llama_model_has_encoder) or not ask(C.llama_model_has_decoder) or is_diffusion
        ):
            what = "a diffusion model" if is_diffusion else "an encoder"
            message = f"{self.path.name} is {what} ({header.architecture}), not a text generator."
            raise UnsupportedModelError(self.path, message, "use a chat or base model.")
        # before the context, which reserves memory for their part of a pass
        for adapter in options.lora:
            log.clear()
            if not native.adapt(os.fsencode(adapter.path)):
                raise adapter_error(adapter, log)
        self.file.check_unchanged()
        for adapter, before in zip(options.lora, versions, strict=True):
            check_version(adapter.path, before)

    def _know_vocabulary(self, header: Header) -> None:
        """Read the properties that are needed often, or after `close`."""
        of_model, of_vocab, table = self.native.model, self.native.vocab, trimmed(header)
        self.n_vocab: int = of_vocab(C.llama_vocab_n_tokens)
        if table and table.rows_at is not None:
            self.native.token_rows = TokenRows(header, table.rows_at, table.size)
            self.kept, self.n_vocab = np.array(table.ids), table.size
        self.n_params: int = of_model(C.llama_model_n_params)
        self.n_embd: int = of_model(C.llama_model_n_embd)
        # a damaged number is negative
        self.n_ctx_train: int = max(0, of_model(C.llama_model_n_ctx_train))
        self.can_roll_back: bool = not (
            of_model(C.llama_model_is_recurrent) or of_model(C.llama_model_is_hybrid)
        )
        self.special_tokens: dict[str, Any] = {
            "type": of_vocab(C.llama_vocab_type),
            "add_bos": of_vocab(C.llama_vocab_get_add_bos),
            "bos": of_vocab(C.llama_vocab_bos),
            "add_eos": of_vocab(C.llama_vocab_get_add_eos),
            "eos": of_vocab(C.llama_vocab_eos),
            "size": self.n_vocab,
        }
        self.start: int = max(0, self.special_tokens["bos"])
        self.end_of_turn: int = of_vocab(C.llama_vocab_eot)
        marks = C.llama_vocab_fim_pre, C.llama_vocab_fim_suf, C.llama_vocab_fim_mid
        infill = tuple(of_vocab(mark) for mark in marks)
        self.infill_marks: tuple[int, ...] | None = infill if min(infill) >= 0 else None
        more = C.llama_vocab_fim_rep, C.llama_vocab_fim_sep
        self.file_marks: tuple[int, ...] = tuple(of_vocab(mark) for mark in more)
        template = of_model(C.llama_model_chat_template, None)
        self.chat_template: str | None = (
            template.decode("utf-8", errors="replace") if template else None
        )

    # ---- the vocabulary

    def tokenize(
        self, text: str | bytes, *, special: bool, start: bool = True, most: int | None = None
    ) -> list[int]:
        """Return the token ids of a text.

        Args:
            text: Any string, see `options.well_formed`; or bytes, which are passed on to llama.cpp.
            special: Whether names such as `<|im_start|>` are parsed as control tokens.
            start: Whether to add the model's tokens for the start of a text (BOS), and in some
                models for its end (EOS), unless the text begins or ends with their names.
            most: Most tokens that are of use; None for any number.

        Raises:
            PromptTooLongError: The text has many more than `most` tokens. Only its beginning was
                tokenised.
        """
        text = well_formed(text).encode() if isinstance(text, str) else text
        if most is not None:
            self.check_length(text, most, special=special)
        return self._tokenize(text, special, start)

    def check_length(self, text: bytes, most: int, *, special: bool) -> None:
        """Refuse a text that has many more than `most` tokens; only its beginning is tokenised.

        Raises:
            PromptTooLongError: It has.
        """
        ids, n_read = self._beginning(text, special, False, most)
        if ids:
            estimate = len(ids) * len(text) // n_read
            raise PromptTooLongError(estimate, self.n_ctx or most + 1, True, self.n_ctx_limit)

    def first_tokens(self, text: str, n: int, *, special: bool) -> list[int]:
        """Return the first `n` token ids of a text, or all if there are fewer."""
        data = well_formed(text).encode()
        ids, _ = self._beginning(data, special, True, n)
        return (ids or self._tokenize(data, special, True))[:n]

    def _beginning(
        self, text: bytes, special: bool, start: bool, most: int
    ) -> tuple[list[int], int]:
        """Return the token ids of a beginning of a text that has many more than `most`.

        The last tokens differ from those in the whole text, so there are more than `most` by far.
        The number of bytes is the second value. A text without a beginning that is shorter than
        half of it gives none.
        """
        size = 4 * (most + 1024)
        while 2 * size < len(text):
            part = text[:size].decode("utf-8", errors="ignore")  # no half character
            if self._names[special][1]:  # a token that follows could take the white space
                part = part.rstrip()
            ids = self._tokenize(part.encode(), special, start)
            if len(ids) > most + most // 8 + 64:
                return ids, size
            size *= 2
        return [], 0

    def _tokenize(self, text: bytes, special: bool, start: bool) -> list[int]:
        # The time of one call grows with the square of the number of special tokens in it.
        cuts = [0, *self._cuts(text, special), len(text)]
        ids: list[int] = []
        for begin, end in pairwise(cuts):
            ids += self._tokenize_part(text[begin:end], special, start and begin == 0)
        if special and start and text:
            ids = self._once(ids)
        return ids

    def _once(self, ids: list[int]) -> list[int]:
        """Return the ids of a text without a start or an end that llama.cpp added to its own."""
        known = self.special_tokens
        ids = ids[1:] if known["add_bos"] and ids[:2] == [known["bos"]] * 2 else ids
        is_bert = known["type"] == C.LLAMA_VOCAB_TYPE_WPM  # two ends are usual there
        adds_end = known["add_eos"] and not is_bert and len(ids) > 1 + known["add_bos"]
        return ids[:-1] if adds_end and ids[-2:] == [known["eos"]] * 2 else ids

    def _cuts(self, text: bytes, special: bool) -> Iterable[int]:
        known = self.special_tokens
        # Tokens at the end of a text would follow each part.
        ends = known["add_eos"] or known["type"] == C.LLAMA_VOCAB_TYPE_WPM
        names, stripping = ((), ()) if len(text) < self.long_bytes or ends else self._names[special]
        return safe_cuts(text, names, stripping, self.part_bytes)

    @cached_property
    def _names(self) -> tuple[tuple[list[bytes], list[bytes]], ...]:
        """Names that llama.cpp finds in a text, and those that also take white space before them.

        First without, then with control tokens.
        """
        ask = self.native.vocab
        found = [(ask(C.llama_vocab_get_attr, token), token) for token in range(self.n_vocab)]
        users = C.LLAMA_TOKEN_ATTR_USER_DEFINED
        controls = users | C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN

        def names(attributes: int) -> list[bytes]:
            ids = (token for attr, token in found if attr & attributes)
            return [name for one in ids if (name := ask(C.llama_vocab_get_text, one))]

        stripping = names(C.LLAMA_TOKEN_ATTR_LSTRIP)
        return (names(users), stripping), (names(controls), stripping)

    def _tokenize_part(self, text: bytes, special: bool, start: bool) -> list[int]:
        n = len(text) + 8
        while True:
            ids = (C.llama_token * n)()
            arguments = (C.llama_tokenize, text, len(text), ids, len(ids), start, special)
            tokenize = partial(self.native.vocab, *arguments)
            n = long_call(run_with_large_stack, len(text), tokenize)
            if n >= 0:
                return list(ids[:n])
            # only for a vocabulary whose normalisation makes a text longer
            n = -n

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token; empty for control tokens and images."""
        piece = b"" if token >= IMAGE_IDS else self._pieces.get(token)
        if piece is None:
            size, n = 0, -256
            while n < -size:
                size = -n
                buffer = (ctypes.c_char * size)()
                n = self.native.vocab(C.llama_token_to_piece, token, buffer, size, 0, False)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece

    def is_end(self, token: int) -> bool:
        known, native = self._is_end.get(token), self.native  # an error if it is closed
        if known is None:
            known = token < IMAGE_IDS and bool(native.vocab(C.llama_vocab_is_eog, token))
            self._is_end[token] = known
        return known

    @cached_property
    def ends(self) -> list[int]:
        """All tokens that end a generation."""
        return [token for token in range(self.n_vocab) if self.is_end(token)]

    def token_text(self, token: int) -> str:
        """Return the text of a token in the vocabulary; empty for images."""
        if token >= IMAGE_IDS:
            return ""
        return (self.native.vocab(C.llama_vocab_get_text, token) or b"").decode(
            "utf-8", errors="replace"
        )


class Tokenizer(Weights):
    """The vocabulary of a model alone, without its weights; a context manager that frees it."""

    def __init__(self, file: ModelFile) -> None:
        """Load the vocabulary of a file.

        Raises:
            ModelError: The file is missing or damaged.
        """
        super().__init__(file, ContextOptions())
        start_backend()
        try:
            self.load(file.header)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def safe_cuts(
    text: bytes, names: Iterable[bytes], stripping: Iterable[bytes], distance: int
) -> Iterator[int]:
    """Yield places where a text can be cut without a change of its tokens.

    llama.cpp looks for special tokens in a text, longer names first, and tokenises the text between
    them part by part. A place is safe where a name begins that is found in any case: no other name
    reaches over the place, no other name of the same length or longer overlaps it, and no token
    takes its white space.

    Args:
        stripping: Those that take the white space before them.
        distance: The least number of bytes between two places.
    """
    known = set(names)
    longest = max(map(len, known), default=0)
    if not known or longest > _LONGEST_NAME:
        return
    pattern, unsafe = _pattern(known), set(stripping)
    last, match = 0, pattern.search(text, distance)
    while match:
        place, end = match.span()
        name = match[0]
        near = (
            (begin, other)
            for begin in range(max(0, place - longest), end)
            if begin != place and (other := pattern.match(text, begin))
        )
        if (
            name not in unsafe
            and name == name.strip()
            and not any(
                other.end() > place
                if begin < place
                else len(other[0]) >= len(name) and other[0] != name
                for begin, other in near
            )
        ):
            yield (last := place)
        match = pattern.search(text, max(place + 1, last + distance))


def _pattern(names: Iterable[bytes]) -> re.Pattern[bytes]:
    """Return a pattern that finds the longest of some names at a place, in time of their length."""

    def tree(rests: list[bytes]) -> bytes:
        """Return the pattern of texts in alphabetic order, each of them once."""
        ends = zip(rests[0], rests[-1], strict=False)
        n = next((i for i, (a, b) in enumerate(ends) if a != b), len(rests[0]))
        common, optional = re.escape(rests[0][:n]), b"?" if rests[0][n:] == b"" else b""
        longer = (rest[n:] for rest in rests if len(rest) > n)
        parts = b"|".join(tree([*some]) for _, some in groupby(longer, lambda rest: rest[0]))
        return common + (b"(?:" + parts + b")" + optional if parts else b"")

    return re.compile(tree(sorted(names)), re.DOTALL)
