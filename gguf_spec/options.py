"""Options of a request: frozen dataclasses that check every value when they are made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .errors import InvalidOptionError

Accept: TypeAlias = Literal["coupled", "rejection", "block"]
ACCEPT: tuple[Accept, ...] = ("coupled", "rejection", "block")
BRANCHES_MAX = 3  # sequences are reserved too
DRAFTERS = ("auto", "model", "ngram", "hybrid")
LOGPROBS_MAX = 100
_MODERATE = 1e6
K_MAX = 64  # rows of logits are reserved when a context is made, so the longest draft is fixed


def _check(option: str, value: Any, allowed: str, ok: bool) -> None:
    if not ok:
        raise InvalidOptionError(option, value, allowed)


def _as_tuple(value: Any) -> tuple[Any, ...] | None:
    return (
        (value,)
        if isinstance(value, str)
        else tuple(value)
        if isinstance(value, Iterable)
        else None
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_moderate(value: Any) -> bool:
    """Whether a number can be added to logits or divide them and leave numbers."""
    return _is_number(value) and abs(value) <= _MODERATE


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Sampling:
    """How one token is drawn from the target's logits, and when to stop.

    The chain is llama.cpp's, in its order: bias, penalties, DRY, grammar, top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature. It is the
    same for target and draft, so a draft proposes nothing that the target may not say.

    Attributes:
        temperature: 0 takes the most likely token, always.
        top_k: Keep the `top_k` most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches `top_p`, in (0, 1]; 1 keeps all.
        min_p: Keep tokens at least `min_p` times as likely as the likeliest, in [0, 1].
        typical_p: Keep the tokens whose surprise is nearest to the expected one, up to this probability, in (0, 1]; 1 keeps all (arXiv:2202.00666).
        top_n_sigma: Keep logits within so many standard deviations of the best; 0 keeps all (arXiv:2411.07641).
        xtc_probability: How often XTC takes out all but the least likely of the tokens above its threshold, in [0, 1]; 0 never.
        xtc_threshold: That threshold, a probability; above 0.5 XTC does nothing, at 0 it leaves but the least likely token.
        repeat_penalty: Divide positive and multiply negative logits of tokens seen by this; 1 does nothing.
        frequency_penalty: Take this off a logit for every time the token was seen.
        presence_penalty: Take this off a logit when the token was seen.
        penalty_last_n: How many of the last tokens, prompt included, the penalties look at; -1 for all.
        dry_multiplier: Strength of DRY, which lowers tokens that would go on with a repetition; 0 switches it off.
        dry_base: Growth of the DRY penalty with every repeated token, 1 or more.
        dry_allowed_length: Repetitions of fewer tokens are not penalised.
        dry_penalty_last_n: How many of the last tokens DRY looks at; -1 for all.
        dry_sequence_breakers: Strings that no repetition reaches across.
        logit_bias: Token id -> what is added to its logit; `-inf` forbids the token.
        grammar: A GBNF grammar that the answer follows.
        json_schema: A JSON schema that the answer follows, as a mapping or as JSON; `{}` is any JSON value. Not together with `grammar`.
        seed: Any whole number from 0 to 2**64 - 1; None draws one, which the result names.
        max_tokens: Stop after so many tokens; None goes on until the context is full.
        overflow: What then: `stop`, or `shift`: go on from the prompt and the later half of what was said behind it, read anew. Not with a grammar.
        stop: Strings that end the text; they are not part of it.
        stop_tokens: Token ids that end the text, beside the model's own; they are not part of it.
        ignore_eos: Never say a token that ends a generation, unless the grammar leaves no other.
        logprobs: How many likely alternatives are reported with the log-probability of each emitted token; None reports nothing.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.0
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    grammar: str | None = None
    json_schema: Mapping[str, Any] | str | bool | None = None
    seed: int | None = None
    max_tokens: int | None = 256
    overflow: Literal["stop", "shift"] = "stop"
    stop: Sequence[str] = ()
    stop_tokens: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _check(
            "temperature",
            self.temperature,
            "from 0 to a million",
            _is_moderate(self.temperature) and self.temperature >= 0,
        )
        _check(
            "top_k",
            self.top_k,
            "a whole number, 0 or more",
            _is_count(self.top_k) and self.top_k >= 0,
        )
        _check(
            "top_p",
            self.top_p,
            "above 0 and at most 1",
            _is_number(self.top_p) and 0 < self.top_p <= 1,
        )
        for name in ("min_p", "xtc_probability", "xtc_threshold"):
            _check(
                name,
                getattr(self, name),
                "between 0 and 1",
                _is_number(getattr(self, name)) and 0 <= getattr(self, name) <= 1,
            )
        _check(
            "typical_p",
            self.typical_p,
            "above 0 and at most 1",
            _is_number(self.typical_p) and 0 < self.typical_p <= 1,
        )
        for name in ("top_n_sigma", "dry_multiplier"):
            _check(
                name,
                getattr(self, name),
                "from 0 to a million",
                _is_moderate(getattr(self, name)) and getattr(self, name) >= 0,
            )
        _check(
            "dry_base",
            self.dry_base,
            "from 1 to a million",
            _is_moderate(self.dry_base) and self.dry_base >= 1,
        )
        _check(
            "repeat_penalty",
            self.repeat_penalty,
            "from 0.001 to 1000",
            _is_number(self.repeat_penalty) and 0.001 <= self.repeat_penalty <= 1000,
        )
        for name in ("frequency_penalty", "presence_penalty"):
            _check(
                name,
                getattr(self, name),
                "a number up to a million",
                _is_moderate(getattr(self, name)),
            )
        for name in ("penalty_last_n", "dry_penalty_last_n"):
            _check(
                name,
                getattr(self, name),
                "a whole number, -1 or more",
                _is_count(getattr(self, name)) and getattr(self, name) >= -1,
            )
        _check(
            "dry_allowed_length",
            self.dry_allowed_length,
            "a whole number, 0 or more",
            _is_count(self.dry_allowed_length) and self.dry_allowed_length >= 0,
        )
        _check(
            "seed",
            self.seed,
            "a whole number from 0 to 2**64 - 1",
            self.seed is None or (_is_count(self.seed) and 0 <= self.seed < 2**64),
        )
        _check(
            "max_tokens",
            self.max_tokens,
            "a whole number above 0",
            self.max_tokens is None or (_is_count(self.max_tokens) and self.max_tokens > 0),
        )
        for name in ("stop", "dry_sequence_breakers"):
            value = _as_tuple(getattr(self, name))
            _check(
                name,
                value,
                "strings that are not empty",
                value is not None and all(isinstance(s, str) and s for s in value),
            )
            object.__setattr__(self, name, value)
        # llama.cpp looks for each breaker in every token of the vocabulary
        _check(
            "dry_sequence_breakers",
            self.dry_sequence_breakers,
            "at most 50 strings",
            len(self.dry_sequence_breakers) <= 50,
        )
        tokens = _as_tuple(self.stop_tokens)
        _check(
            "stop_tokens",
            self.stop_tokens,
            "token ids",
            tokens is not None and all(_is_count(token) and token >= 0 for token in tokens),
        )
        object.__setattr__(self, "stop_tokens", tokens)
        _check(
            "logprobs", self.logprobs, f"a whole number from 0 to {LOGPROBS_MAX}",
            self.logprobs is None or (_is_count(self.logprobs) and 0 <= self.logprobs <= LOGPROBS_MAX),
        )  # fmt: skip
        _check("ignore_eos", self.ignore_eos, "True or False", isinstance(self.ignore_eos, bool))
        _check(
            "grammar",
            self.grammar,
            "text in GBNF",
            self.grammar is None or isinstance(self.grammar, str),
        )
        _check("overflow", self.overflow, "stop or shift", self.overflow in ("stop", "shift"))
        whole = self.grammar is None and self.json_schema is None
        _check(
            "overflow",
            self.overflow,
            "stop with a grammar, which must see the whole answer",
            self.overflow == "stop" or whole,
        )
        _check(
            "json_schema",
            self.json_schema,
            "given without a grammar",
            self.json_schema is None or self.grammar is None,
        )
        _check(
            "logit_bias",
            self.logit_bias,
            "a mapping from token ids to numbers",
            isinstance(self.logit_bias, Mapping),
        )
        for token, bias in self.logit_bias.items():
            _check(
                "logit_bias",
                {token: bias},
                "token ids with numbers up to a million, or -inf",
                _is_count(token) and token >= 0 and (_is_moderate(bias) or bias == -math.inf),
            )

    @property
    def greedy(self) -> bool:
        """Whether only the most likely token can be drawn."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Speculation:
    """How many tokens are drafted in a round, and which of them stay.

    Attributes:
        k: Most tokens drafted in a round, 0 to 64. 0 is plain decoding, on the same path.
        accept: The rule. All three emit the target's own distribution. `coupled`: the seed alone decides the text, so it is the same with any draft
            and without one. `rejection` and `block` draw anew where a draft token is refused: the text depends on seed, draft and k.
        strict: Decide each near tie again from a pass of the target over one token, as plain decoding does; costs such a pass each. Rarer, not
            never: what is cached of the text before was still computed in batches.
        drafter: Who drafts. `model`: the draft model. `ngram`: the text itself, prompt included. `hybrid`: token by token whichever is surer. `auto`:
            whatever there is of both, by what pays; the model alone where `adaptive` is off.
        adaptive: Draft only as far as it pays here, by measured costs and chances, and not at all where nothing does. How far depends on the clock:
            under `rejection` and `block` the text then does too. Off, a round drafts `k` tokens whatever they cost.
        exact: Verify only in passes whose rows have the bits of single-row passes, on a machine that has such passes of two rows and more. Off,
            passes may be wider: the text may differ from that of plain decoding at near ties, which are counted.
        tree: Check second guesses of the draft model beside its first, at the least certain places, where that costs less than it brings. Only
            under `coupled`.
    """

    k: int = K_MAX
    accept: Accept = "coupled"
    strict: bool = False
    drafter: Literal["auto", "model", "ngram", "hybrid"] = "auto"
    adaptive: bool = True
    tree: bool = False
    exact: bool = True

    def __post_init__(self) -> None:
        _check(
            "k",
            self.k,
            f"a whole number from 0 to {K_MAX}",
            _is_count(self.k) and 0 <= self.k <= K_MAX,
        )
        _check("accept", self.accept, f"one of {', '.join(ACCEPT)}", self.accept in ACCEPT)
        _check("drafter", self.drafter, f"one of {', '.join(DRAFTERS)}", self.drafter in DRAFTERS)
        _check(
            "tree",
            self.tree,
            "True, under the rule coupled, or False",
            isinstance(self.tree, bool) and (not self.tree or self.accept == "coupled"),
        )
        _check("exact", self.exact, "True or False", isinstance(self.exact, bool))
        _check("adaptive", self.adaptive, "True or False", isinstance(self.adaptive, bool))
        _check(
            "strict",
            self.strict,
            "True, under the rule coupled, or False",
            isinstance(self.strict, bool) and (not self.strict or self.accept == "coupled"),
        )
