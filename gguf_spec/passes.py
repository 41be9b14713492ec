"""What the rounds ask of a model: tokens in, rows of logits out, and which rows have the same bits.

This file knows no weights, no file and no llama.cpp. `llama.sequence.CachedSequence` and
`llama.context.Context` implement the protocols, and so do the fakes of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from .arrays import Logits
from .options import K_MAX
from .vocabulary import common


@dataclass(frozen=True)
class Exactness:
    """Which passes give a row the same bits.

    Attributes:
        attention: Attention does, in passes of all widths and at all depths.
        most_rows: The largest number of tokens of a pass that can have the bits of single-token
            passes. Wider passes do not have them, even if a few measured rows agree.
        least_rows: The smallest number of tokens of a pass; above 1 on a GPU where passes from this
            number of tokens to `most_rows` give a row the same bits. Further tokens fill the
            narrower ones, and are dropped.
        grid: Prefill passes end at multiples of this number of tokens; 0 if the ends do not matter,
            because rows have the same bits in passes of any width.
        promised: The kernels give rows of passes over 1 to `most_rows` tokens the same bits by the
            way they compute them. Otherwise a measurement has to show which passes do.
    """

    attention: bool = False
    most_rows: int = K_MAX + 1
    least_rows: int = 1
    grid: int = 0
    promised: bool = field(default=False, repr=False)  # kept prompts are named by the others

    @property
    def in_any_width(self) -> bool:
        """Whether it does not matter where prefill passes end."""
        return not self.grid

    def beyond(self, n: int) -> int:
        """Return how many of the first `n` tokens lie behind the last end of a prefill pass."""
        return n % self.grid if self.grid else 0

    def same_bits(self, cached: Sequence[int], n_read: int, tokens: Sequence[int]) -> int:
        """Return the length of the longest prefix of `tokens` whose cache is that of a new prefill.

        Where the ends of passes matter, tokens cached by decode passes do not count. The last part
        of a prompt with another continuation does not either, because it was read in a pass of
        another width.
        """
        same = common(cached, tokens)
        if self.in_any_width or same == len(tokens) == n_read:
            return same
        same = min(same, n_read)
        return same - self.beyond(same)


class LanguageModel(Protocol):
    """Model that turns tokens into logits, with a cache that can be rolled back.

    A rollback may drop more tokens than asked for, which are then decoded again with the next ones.

    Attributes:
        n_vocab: V, the length of a row of logits.
        n_ctx: Capacity of the cache, in tokens.
        start: A token that may begin a text.
        weight_bytes: Size of the weights, in bytes.
        cached_bytes: Size of one cached token, in bytes.
        depth_costs: Pass width in tokens -> extra seconds of the pass for each cached token; empty
            where that was not measured.
        slow_first_pass: Whether the first pass of a width takes longer than later ones, because the
            driver of a GPU compiles kernels for it.
    """

    n_vocab: int
    n_ctx: int
    start: int
    weight_bytes: int
    cached_bytes: float
    slow_first_pass: bool
    depth_costs: Mapping[int, float]

    @property
    def exactness(self) -> Exactness:
        """Which passes give a row the same bits."""

    @property
    def busy_s(self) -> float:
        """Seconds spent inside the model."""

    @property
    def n_read(self) -> int:
        """Length of the cached prefix that prefill passes on the grid decoded, in tokens."""

    @property
    def reads_at_once(self) -> int:
        """Prompt tokens decoded in one prefill pass."""

    @property
    def free_rollback(self) -> int:
        """Most tokens that a rollback drops without dropping others."""

    @property
    def cached(self) -> list[int]:
        """The tokens in the cache, in order."""

    @property
    def n_past(self) -> int:
        """Number of tokens in the cache."""

    def read(self, tokens: Sequence[int]) -> None:
        """Append tokens to the cache."""

    def logits(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Append tokens to the cache and return the logits after each of the last `n_rows`.

        Their shape is `(n_rows, V)`. The next call may overwrite them.
        """

    def rollback(self, to: int) -> None:
        """Remove all but the first `to` tokens from the cache, or all but fewer."""

    def hold(self, lasting: bool = False) -> None:
        """Make it possible to roll back to the present number of tokens.

        That lasts until the next call with `lasting`; without, until the next pass with several
        rows or the next call.
        """

    def is_end(self, token: int) -> bool:
        """Return whether a token ends a generation."""


class Checkpoints(Protocol):
    """States of recurrent layers to which a sequence can be rolled back."""

    def nearest(self, to: int) -> int | None:
        """Return the most tokens, up to `to`, whose state can be restored; None without one."""


class ModelSequence(LanguageModel, Protocol):
    """One sequence of a context: the cache of one request.

    Attributes:
        run: Decodes a part of a pass; the scheduler replaces it, to join the parts of several.
        most_read: Most prompt tokens of a prefill pass beside other requests; 0 without a limit.
    """

    run: Callable[[PassPart], Logits]
    most_read: int

    @property
    def context(self) -> ModelContext:
        """The context of the sequence."""

    @property
    def index(self) -> int:
        """Number of the sequence in its context."""

    @property
    def path(self) -> Path:
        """The file of the model."""

    @property
    def why_plain(self) -> str:
        """Reason why nothing can be drafted for this model or by it; empty if it can."""

    @property
    def can_roll_back(self) -> bool:
        """Whether the cache can drop its last tokens; not with recurrent layers."""

    @property
    def recurrent(self) -> Checkpoints | None:
        """The states of recurrent layers; None without such layers."""

    @property
    def least_cut(self) -> int:
        """Shortest prefix, above 0, to which the cache can be cut."""

    def check_room(self, tokens: Sequence[int]) -> None:
        """Raise DecodeError or InvalidOptionError for tokens that cannot be decoded."""

    def forget(self, data: bool = False) -> None:
        """Empty the sequence, also after an error; `data` erases the memory of the cache, too."""

    def close(self) -> None:
        """Release the model; further calls have no effect."""


S = TypeVar("S", bound=ModelSequence)


class PassPart(NamedTuple):
    """Part of a pass: what one sequence decodes.

    Attributes:
        n_rows: Number of last tokens whose logits are returned; 0 only reads.
    """

    sequence: ModelSequence
    tokens: Sequence[int]
    n_rows: int


class ModelContext(Protocol):
    """The context of a model: its sequences, and passes over several of them.

    Attributes:
        exactness: Which passes give a row the same bits.
        widest: Most rows of a sequence in a common pass.
        reads_at_once: Most tokens that one prefill pass decodes.
        why_untrusted: Reason not to roll back recurrent layers; empty without one.
    """

    exactness: Exactness
    widest: int
    reads_at_once: int
    why_untrusted: str

    @property
    def sequences(self) -> Sequence[ModelSequence]:
        """The sequences, by index."""

    @property
    def can_roll_back(self) -> bool:
        """As for a sequence."""

    @property
    def threads(self) -> int:
        """Number of threads of a pass."""

    @property
    def n_ctx(self) -> int:
        """Capacity of a sequence, in tokens."""

    @property
    def weight_bytes(self) -> int:
        """Size of the weights, in bytes."""

    @property
    def cached_bytes(self) -> float:
        """Size of one cached token, in bytes."""

    @property
    def n_decoded(self) -> int:
        """Number of sequences that the last pass decoded."""

    def decode_one(self, part: PassPart) -> Logits:
        """Run a pass of one sequence; return its rows."""

    def decode(
        self, parts: Sequence[PassPart], n_sequences: int = 0, holds: bool = False
    ) -> Sequence[Logits]:
        """Run a common pass; return the rows of each part.

        Args:
            parts: Their sequences differ.
            n_sequences: Number of sequences of the pass, at least that of the parts.
            holds: Whether others have passes before the rows are used.
        """

    def refill(self, sequence: ModelSequence, tokens: Sequence[int], n_read: int) -> None:
        """Read the tokens of a lost cache again, of which `n_read` were read as a prompt."""

    def move(self, sequence: ModelSequence, free: ModelSequence) -> None:
        """Move the cache of a sequence to a free one."""


class TextPosition(Protocol):
    """Where the cache of a draft model begins in a text."""

    offset: int


class PredictionHead(ModelSequence, Protocol):
    """A prediction head of the target, in the place of a draft model.

    Attributes:
        text: Where the cache begins in the text; None for the text's start.
        skipped: Number of tokens of the text that are left out before the next pass.
    """

    text: TextPosition | None
    skipped: int

    @property
    def n_heads(self) -> int:
        """Number of heads, each for one token further; 1 for one head that goes on."""

    @property
    def shares_cache(self) -> bool:
        """Whether it reads the cache of its target, and has none of its own."""

    @property
    def is_ready(self) -> bool:
        """Whether it can propose a token now."""
