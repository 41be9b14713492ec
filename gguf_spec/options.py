"""Request options: frozen dataclasses that validate every value on construction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from .errors import InvalidOptionError

Accept: TypeAlias = Literal["coupled", "rejection", "block"]
ACCEPT: tuple[Accept, ...] = ("coupled", "rejection", "block")
# Maximum number of branches of a draft tree; each reserves a sequence in the context.
BRANCHES_MAX = 3
DRAFTERS = ("auto", "model", "ngram", "hybrid")
LOGPROBS_MAX = 100  # maximum number of reported alternatives per token
_MODERATE = 1e6  # largest magnitude of options that are combined with logits
# Maximum draft length in tokens. It is fixed because a context reserves its logit rows on creation.
K_MAX = 64


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
    """Return whether logits stay finite when the number is added to them or divides them."""
    return _is_number(value) and abs(value) <= _MODERATE


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Sampling:
    """Options for sampling a token from the target's logits and for ending the generation.

    The sampler chain and its order are those of llama.cpp: bias, penalties, DRY, grammar,
    top-n-sigma, top-k, typical-p, top-p, min-p, XTC, temperature. Target and draft use the same
    chain, so the draft proposes no token that the target cannot emit.

    Attributes:
        temperature: Softmax temperature; 0 always selects the most likely token.
        top_k: Keep the `top_k` most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose probability reaches `top_p`, in (0,
            1]; 1 keeps all.
        min_p: Keep tokens with at least `min_p` times the probability of the most likely token, in
            [0, 1].
        typical_p: Keep the tokens whose surprisal is nearest to the expected surprisal, up to this
            total probability, in (0, 1]; 1 keeps all (arXiv:2202.00666).
        top_n_sigma: Keep logits within this number of standard deviations of the best logit; 0
            keeps all (arXiv:2411.07641).
        xtc_probability: Probability that XTC removes every token above its threshold except the
            least likely of them, in [0, 1]; 0 disables XTC.
        xtc_threshold: Probability threshold of XTC, in [0, 1]. Above 0.5 XTC has no effect. At 0 it
            keeps only the least likely token.
        repeat_penalty: Divisor of positive logits and factor of negative logits for tokens that
            occurred before; 1 has no effect.
        frequency_penalty: Value subtracted from a logit for each earlier occurrence of its token.
        presence_penalty: Value subtracted once from a logit if its token occurred before.
        penalty_last_n: Number of most recent tokens, prompt included, that the penalties consider;
            -1 for all.
        dry_multiplier: Strength of DRY, which penalises tokens that would continue a repetition; 0
            disables DRY.
        dry_base: Growth factor of the DRY penalty per repeated token, 1 or more.
        dry_allowed_length: Repetitions of fewer tokens are not penalised.
        dry_penalty_last_n: Number of most recent tokens that DRY considers; -1 for all.
        dry_sequence_breakers: Strings that end a repeated sequence for DRY.
        logit_bias: Token id -> value added to its logit; `-inf` forbids the token.
        grammar: GBNF grammar that the generated text follows.
        json_schema: JSON schema that the generated text follows, as a mapping or as JSON; `{}`
            allows any JSON value. Cannot be combined with `grammar`.
        seed: Seed from 0 to 2**64 - 1. None draws a random seed, which the result reports.
        max_tokens: Maximum number of generated tokens; None generates until the context is full.
        overflow: Behaviour when the context is full. `stop` ends the generation. `shift` continues
            from the prompt and the newer half of the generated tokens, which are prefilled again.
            `shift` cannot be combined with a grammar.
        stop: Strings that end the text; they are not part of it.
        stop_tokens: Token ids that end the text, in addition to the model's own; they are not part
            of it.
        ignore_eos: Never emit a token that ends the generation, unless the grammar allows no other
            token.
        logprobs: Number of most likely alternatives reported with the log-probability of each
            emitted token; None reports no log-probabilities.
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
        # llama.cpp searches every token of the vocabulary for each breaker.
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
            "logprobs",
            self.logprobs,
            f"a whole number from 0 to {LOGPROBS_MAX}",
            self.logprobs is None
            or (_is_count(self.logprobs) and 0 <= self.logprobs <= LOGPROBS_MAX),
        )
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
        """Whether only the most likely token can be sampled."""
        return self.temperature == 0 or self.top_k == 1


@dataclass(frozen=True)
class Speculation:
    """Options for the draft length and the acceptance of draft tokens.

    Attributes:
        k: Maximum number of draft tokens per round, 0 to 64. 0 is plain decoding on the same code
            path.
        accept: Acceptance rule. All three rules preserve the target's distribution. Under `coupled`
            the seed alone determines the text: it is the same with any draft and without one.
            `rejection` and `block` resample when a draft token is rejected, so the text depends on
            seed, draft and k.
        strict: Decide each near tie again from a single-token pass of the target, as plain decoding
            does. Each costs one such pass. Different texts become rarer but remain possible,
            because the cache of earlier tokens was still computed in batches.
        drafter: Source of draft tokens. `model`: the draft model. `ngram`: earlier text, prompt
            included. `hybrid`: for each token, the more confident of the two. `auto`: all available
            drafters, selected by estimated benefit; only the model if `adaptive` is off.
        adaptive: Choose the draft length by measured costs and estimated acceptance rates, and
            draft nothing if no length is faster than plain decoding. The length depends on measured
            times; under `rejection` and `block` the text therefore does too. If off, every round
            drafts `k` tokens regardless of their cost.
        exact: Verify only in passes whose rows are bit-identical to those of single-token passes,
            on machines where passes over two or more tokens can be so. If off, passes may be wider,
            and the text may differ from that of plain decoding at near ties, which are counted.
        tree: Also verify the draft model's second choices (branches), at most three in a round;
            only under `coupled`. None: if `adaptive`, where the expected benefit exceeds the cost;
            they count towards `k`. True: they come in addition to `k`, and without `adaptive` in
            every round. False: none.
    """

    k: int = K_MAX
    accept: Accept = "coupled"
    strict: bool = False
    drafter: Literal["auto", "model", "ngram", "hybrid"] = "auto"
    adaptive: bool = True
    tree: bool | None = None
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
            (self.tree is None or isinstance(self.tree, bool))
            and (not self.tree or self.accept == "coupled"),
        )
        _check("exact", self.exact, "True or False", isinstance(self.exact, bool))
        _check("adaptive", self.adaptive, "True or False", isinstance(self.adaptive, bool))
        _check(
            "strict",
            self.strict,
            "True, under the rule coupled, or False",
            isinstance(self.strict, bool) and (not self.strict or self.accept == "coupled"),
        )
