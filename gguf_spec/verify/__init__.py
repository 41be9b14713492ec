"""Verification that speculation preserves a model's output, on the user's own machine.

Runs the user's models, returns data and prints nothing. There are four groups of checks, each of
which a faulty sampler, acceptance rule, pass or cache fails:

1. Rows: passes over several tokens must give the rows of single-token passes: bit-identical where
   that is guaranteed, otherwise equal up to rounding. Rows of gguf-spec's kernels must be those of
   llama.cpp's up to rounding.
2. Texts: each prompt is continued plainly and with each drafter, with the same seed. All texts must
   be equal, also with warm caches, after a restored session, with a grammar, with a stop string and
   after a long prompt.
3. Caches: after each text, both caches must hold exactly the tokens of the text. A row computed
   from the cache must match one computed after a new prefill.
4. Distributions: under each rule, the first tokens of many generations must have the frequencies
   that llama.cpp's own samplers give (chi-square test).

For models that run several requests at once there is another check: all texts are generated
together, and must be those of each request alone (`under_load`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from importlib.resources import files

from ..bench.workloads import long_text
from ..errors import (
    ContextTooShortError,
    EmptyPromptError,
    InvalidOptionError,
    NoSpeculationError,
    Text,
)
from ..options import Sampling
from ..results import OnProgress, Progress
from ..runtime.llm import LLM
from .chi_square import LAW_TOKENS, ChiSquareTest, Reference, drawn, n_draws_of
from .chi_square import WAYS as LAWS
from .report import Comparison, Difference, Report
from .request_checks import RequestChecks
from .row_checks import Check, check_kernels, check_rows, noise_in_use
from .text_checks import SAMPLINGS, WAYS, TextChecks
from .under_load import PARALLEL, check_load

__all__ = [
    "PARALLEL",
    "PROMPTS",
    "Check",
    "ChiSquareTest",
    "Comparison",
    "Difference",
    "Report",
    "bundled_prompts",
    "verify",
]

PROMPTS = 10  # default number of bundled prompts
# Tokens of text before each prompt of a long run, their minimum, and tokens left free.
_LONG, _LEAST_LONG, _SPARE = (1500, 300, 16)


def bundled_prompts() -> list[str]:
    """Return the fifty bundled prompts, which are openings of tales."""
    return (files("gguf_spec") / "data" / "prompts.txt").read_text(encoding="utf-8").splitlines()


def verify(
    llm: LLM,
    prompts: Sequence[str] | None = None,
    *,
    n_tokens: int | None = None,
    long: bool = False,
    under_load: bool = False,
    n_draws: int = 1000,
    seed: int = 1,
    limit_s: float | None = None,
    progress: OnProgress = lambda _: None,
) -> Report:
    """Compare speculation with plain decoding.

    Args:
        llm: Models to verify; they must include a draft, except for `under_load`.
        prompts: Texts to continue, used unchanged; None selects the first ten bundled prompts.
        n_tokens: Maximum number of tokens of a text; None selects 64, or 300 if `long`.
        long: Put 1,500 tokens of text before each prompt, or as many as the context holds. This
            shows rounding effects that occur only after many tokens.
        under_load: Instead of all other checks, compare the texts of requests that run together,
            without drafts and with several draft settings, with the text of each alone without
            drafts. The models must have been loaded with `parallel` above 1.
        n_draws: Number of generations per chi-square test; half of it for n-gram and for adaptive
            drafts.
        seed: Seed of the first text; each further prompt uses the next seed.
        limit_s: Time limit in seconds. No further prompt or check starts after it, and the
            chi-square tests use at most a third of it, unless 50 generations each take longer.
        progress: Called with the finished texts, draws and checks.

    Raises:
        InvalidOptionError: There is no prompt, or a number is out of range.
        NoSpeculationError: There is no draft model, and `under_load` is off.
        ContextTooShortError: A prompt leaves no room in the context for a few tokens.
        EmptyPromptError: A prompt contains no token.
    """
    started = time.perf_counter()
    prompts = bundled_prompts()[:PROMPTS] if prompts is None else prompts
    n_tokens = (300 if long else 64) if n_tokens is None else n_tokens
    if not (llm.draft_name or under_load):
        raise NoSpeculationError(
            "draft",
            None,
            "there is no draft model, so there is no speculation to verify.",
            Text("set {draft} to a model."),
        )
    if not prompts or isinstance(prompts, str):
        raise InvalidOptionError(
            "prompts", prompts, "a list of one text or more", "write at least one text."
        )
    Sampling(seed=seed, max_tokens=n_tokens)  # raises if a value is invalid
    if n_draws < 1:
        raise InvalidOptionError("n_draws", n_draws, "1 or more")
    for prompt in prompts:
        _check_room(llm, prompt)
    before = _long_text(llm, prompts, n_tokens) if long else ""
    if under_load:
        longer = [before + prompt for prompt in prompts]
        return check_load(llm, longer, n_tokens, seed, limit_s, progress)
    noise = noise_in_use(llm, WAYS.values())
    texts = TextChecks(llm, n_tokens, noise)
    requests = RequestChecks(llm, prompts[0], seed, texts.gap, noise)
    steps = _Steps(
        len(prompts) * len(SAMPLINGS) * (1 + len(WAYS))
        + sum(n_draws_of(way, n_draws) for way in LAWS)
        + len(requests.parts),
        progress,
    )
    checks = [check_rows(llm, WAYS.values()), *check_kernels(llm)]
    until = [
        math.inf if limit_s is None else started + limit_s * (i + 1) / (3 * len(LAWS))
        for i in range(len(LAWS))
    ]
    reference = Reference(llm, prompts[0], exact=not noise)
    laws = tuple(
        drawn(llm, reference, way, n_draws, seed, end, steps.one_more)
        for way, end in zip(LAWS, until, strict=True)
    )

    def is_late() -> bool:
        return limit_s is not None and time.perf_counter() - started > limit_s

    for name, part in requests.parts.items():
        checks.append(Check(name, 0, "omitted: the time limit ended it") if is_late() else part())
        steps.one_more()
    n_prompts = 0
    for prompt in prompts:
        if n_prompts and is_late():
            break
        texts.compare(before + prompt, n_prompts, (seed + n_prompts) % 2**64, steps.one_more)
        n_prompts += 1
    checks.insert(1, texts.near_ties())
    return Report(
        llm.name,
        llm.draft_name,
        n_prompts,
        n_tokens,
        noise,
        tuple(texts.comparisons()),
        tuple(texts.differences),
        tuple(texts.cache_faults),
        laws,
        time.perf_counter() - started,
        tuple(checks),
    )


def _long_text(llm: LLM, prompts: Sequence[str], n_tokens: int) -> str:
    """Return a text of 1,500 tokens, or of as many as fit before the prompts and their texts."""
    room = llm.n_ctx - max(len(llm.tokenize(prompt)) for prompt in prompts) - n_tokens - _SPARE
    if room < _LEAST_LONG:
        needed = llm.n_ctx - room + _LEAST_LONG
        raise ContextTooShortError("a long prompt", llm.n_ctx, needed, "set a smaller {n_tokens}")
    return long_text(llm, min(_LONG, room))


def _check_room(llm: LLM, prompt: str) -> None:
    """Reject a prompt that is empty or leaves no room for an answer."""
    n, most = len(llm.tokenize(prompt)), llm.n_ctx - LAW_TOKENS - 1
    if not n:
        raise EmptyPromptError
    if n > most:
        shown = prompt if len(prompt) <= 40 else prompt[:37] + "..."
        raise ContextTooShortError(
            f"the prompt {shown!r}", llm.n_ctx, n + llm.n_ctx - most, "shorten the prompt"
        )


class _Steps:
    def __init__(self, total: int, progress: OnProgress) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def one_more(self) -> None:
        self._done += 1
        self._progress(Progress("verify", self._done, self._total, "generations"))
