"""Checks of request features beyond plain text.

The output must be the same with speculation as without, and the same on warm caches as on empty
ones.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..bench.workloads import long_text
from ..errors import NoTokenLeftError, OffGrammarError, SessionError
from ..options import Sampling, Speculation
from ..results import Completion
from ..runtime.llm import LLM
from ..speculative.interfaces import decode_last
from .row_checks import Check

PLAIN = Speculation(0)
WAYS = (Speculation(4, drafter="hybrid", adaptive=False), Speculation())
_SAMPLINGS = (Sampling(temperature=0.0), Sampling(temperature=0.8, top_k=40, top_p=0.95))
_N_TOKENS = 24  # maximum number of generated tokens of a text
# Tokens of the first prompt, and the length of the prefix that the second prompt shares with it.
_PREFIX, _SHARED = (160, 100)
_MORE_THAN_A_BATCH = 40  # tokens of a long prompt beyond the first prefill pass
_LEAST = 32  # minimum number of prompt tokens for the check of warm caches
_GRAMMAR, _ITS_TEXTS = (
    'root ::= ("yes" | "no" | "maybe") (", " ("yes" | "no" | "maybe"))*',
    re.compile(r"(yes|no|maybe)(, (yes|no|maybe))*"),
)
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["cat", "dog"]},
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "old"],
    "additionalProperties": False,
}
_N_TOP = 3  # reported alternatives per token
_SAME_LOGPROB = 1e-3  # tolerance in nats, because a row is summed in a different order here

Gap = Callable[
    [Sequence[int], Sequence[int], Sequence[int], int, Sampling], tuple[float | None, bool]
]
"""Function that measures the decision where two texts diverge.

Its arguments are the prompt, the plain tokens, the other tokens, the index of the first difference
and the sampling options. It returns the decision gap in logits, or None, and whether it is a near
tie.
"""


class RequestChecks:
    """Checks of single features, each with a few short texts.

    Each text is compared with the plain text that the same request gives on empty caches.
    """

    def __init__(self, llm: LLM, prompt: str, seed: int, gap: Gap, noise: float) -> None:
        """Prepare the checks.

        Args:
            llm: The models.
            prompt: A text to continue.
            seed: Seed of all texts.
            gap: Returns whether two texts diverge at a near tie.
            noise: Allowed logit shift on this machine, in logits; 0 if no difference is allowed.
        """
        self._llm, self._ids, self._seed, self._gap, self._noise = (
            llm,
            llm.tokenize(prompt),
            seed,
            gap,
            noise,
        )
        self._n_cases = self._n_near_ties = 0
        self._faults: list[str] = []
        self._known: dict[str, Completion] = {}
        self.parts: dict[str, Callable[[], Check]] = {
            "warm caches": self.warm_caches,
            "sessions": self.sessions,
            "long prompts": self.long_prompts,
            "grammars": self.grammars,
            "JSON schemas": self.schemas,
            "log-probabilities": self.logprobs,
            "stop strings": self.stop_strings,
        }

    # ---- checks

    def warm_caches(self) -> Check:
        """Check that the reuse of cached prefixes does not change the text.

        Prompts with a common prefix run one after the other, and one of them continues an answer.
        """
        text = self._tokens(_PREFIX + 60)
        if len(text) < _LEAST:
            return self._left_out("warm caches")
        n = len(text) * _PREFIX // (_PREFIX + 60)
        shared = n * _SHARED // _PREFIX
        first, second = text[:n], [*text[:shared], *text[n:], *text[: n - shared]][:n]
        for sampling in self._samplings():
            turn = [*first, *self._fresh(first, sampling).tokens, *text[-8:]]
            fresh = [
                (prompt, self._fresh(prompt, sampling))
                for prompt in (first, second, first[: n - 9], first, turn)
            ]
            for way in (PLAIN, *WAYS):
                self._llm.forget()
                for prompt, plain in fresh:
                    self._compare(
                        prompt,
                        sampling,
                        self._text(prompt, sampling, way),
                        "after a prompt that begins alike",
                        plain,
                    )
        return self._check("warm caches", "a cache that is used again changes the text")

    def sessions(self) -> Check:
        """Save both caches, clear them, restore them and continue."""
        prompt = self._tokens(_PREFIX)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "session"
            for sampling in self._samplings():
                for way in (PLAIN, *WAYS):
                    self._llm.forget()
                    longer = [*prompt, *self._text(prompt, sampling, way).tokens, *prompt[-4:]]
                    held = self._held()
                    try:
                        self._llm.save_session(path, {})
                        self._llm.forget()
                        why_not = self._llm.restore_session(path)[1]
                    except SessionError as error:
                        why_not = str(error)
                    if why_not or self._held() != held:
                        self._faults.append(
                            "A session that was just saved is not restored: "
                            f"{why_not or 'other tokens are in a cache'}."
                        )
                    self._compare(
                        longer,
                        sampling,
                        self._text(longer, sampling, way),
                        "after a restored session",
                    )
        return self._check("sessions", "a restored session changes the text")

    def long_prompts(self) -> Check:
        """Continue a prompt that needs more than one prefill pass."""
        with self._llm.models() as (target, _):
            at_once = target.reads_at_once
        prompt = self._tokens(at_once + _MORE_THAN_A_BATCH)
        if len(prompt) <= at_once:
            return self._left_out("long prompts")
        for sampling in self._samplings():
            for way in WAYS:
                self._llm.forget()
                self._compare(
                    prompt,
                    sampling,
                    self._text(prompt, sampling, way),
                    f"behind {len(prompt)} tokens",
                )
        return self._check("long prompts", "texts behind long prompts differ")

    def grammars(self) -> Check:
        """Generate text with a grammar."""

        def wrong(text: str, ended: bool) -> str:
            known = (
                _ITS_TEXTS.fullmatch(text)
                if ended
                else _ITS_TEXTS.fullmatch(text, 0, max(0, text.rfind(",")))
            )
            return "" if known or "," not in text else f"{text!r} is not what the grammar allows"

        return self._within("grammars", {"grammar": _GRAMMAR}, wrong)

    def schemas(self) -> Check:
        """Generate JSON with a schema."""

        def wrong(text: str, ended: bool) -> str:
            if not ended:
                return (
                    ""
                    if text.lstrip().startswith("{") or not text.strip()
                    else f"{text!r} is no object"
                )
            try:
                value = json.loads(text)
            except ValueError as error:
                return f"{text!r} is not JSON ({error})"
            right = isinstance(value, dict) and value.keys() == _SCHEMA["properties"].keys()
            right = (
                right
                and value["kind"] in ("cat", "dog")
                and isinstance(value["old"], bool)
                and len(value["name"]) <= 8
            )
            return "" if right else f"{text!r} does not fit the schema"

        return self._within("JSON schemas", {"json_schema": _SCHEMA}, wrong)

    def logprobs(self) -> Check:
        """Compare log-probabilities with those of plain decoding and of a new prefill."""
        for base in self._samplings():
            sampling = replace(base, logprobs=_N_TOP)
            plain = self._fresh(self._ids, sampling)
            for at in range(0, len(plain.tokens), 7):
                with self._llm.models() as (target, _):
                    row = decode_last(target, [*self._ids, *plain.tokens[:at]]).astype(np.float64)
                right = float(
                    row[plain.tokens[at]] - row.max() - math.log(np.exp(row - row.max()).sum())
                )
                if abs(right - plain.logprobs[at].logprob) > self._noise + _SAME_LOGPROB:
                    self._faults.append(
                        f"Token {at + 1} has the log-probability {right:.4f}, not "
                        f"{plain.logprobs[at].logprob:.4f}."
                    )
            for way in WAYS:
                self._llm.forget()
                burst = self._text(self._ids, sampling, way)
                self._compare(self._ids, sampling, burst, "with log-probabilities", plain)
                for at, (a, b) in enumerate(zip(plain.logprobs, burst.logprobs, strict=False)):
                    if a.token != b.token:
                        break
                    tops = [
                        a.logprob - b.logprob,
                        *(x[1] - y[1] for x, y in zip(a.top, b.top, strict=False)),
                    ]
                    if (
                        len(a.top) != len(b.top)
                        or max(map(abs, tops)) > self._noise
                        or (not self._noise and a != b)
                    ):
                        self._faults.append(
                            f"Token {at + 1} has another log-probability with speculation "
                            f"({a.logprob:.6f}, {b.logprob:.6f})."
                        )
                        break
        return self._check("log-probabilities", "log-probabilities differ")

    def stop_strings(self) -> Check:
        """Stop at a string in the middle of the text, where a draft may extend beyond it."""
        for sampling in self._samplings():
            text = self._fresh(self._ids, sampling).text
            stop = text[len(text) // 2 :][:5]
            if not stop:
                continue
            stopping = replace(sampling, stop=(stop,))
            plain = self._fresh(self._ids, stopping)
            if (plain.text, plain.finish_reason) != (text[: text.index(stop)], "stop"):
                self._faults.append(f"The stop string {stop!r} does not end the text where it is.")
            for way in WAYS:
                self._llm.forget()
                burst = self._text(self._ids, stopping, way)
                if self._compare(self._ids, stopping, burst, "with a stop string", plain) and (
                    burst.text,
                    burst.finish_reason,
                ) != (
                    plain.text,
                    "stop",
                ):
                    self._faults.append(
                        f"The stop string {stop!r} does not end a drafted text where it is."
                    )
        return self._check("stop strings", "stop strings end texts elsewhere")

    # ---- shared helpers

    def _within(
        self, name: str, options: dict[str, Any], wrong: Callable[[str, bool], str]
    ) -> Check:
        for base in self._samplings():
            sampling = replace(base, max_tokens=2 * _N_TOKENS, **options)
            plain = self._fresh(self._ids, sampling)
            fault = wrong(plain.text, plain.finish_reason == "stop")
            self._faults += [f"{fault}."] if fault else []
            for way in WAYS:
                self._llm.forget()
                try:
                    burst = self._text(self._ids, sampling, way)
                except (OffGrammarError, NoTokenLeftError) as error:
                    self._faults.append(
                        f"A drafted text within {name} cannot be continued: {error}"
                    )
                    continue
                self._compare(self._ids, sampling, burst, name, plain)
        return self._check(name, f"texts within {name} differ")

    def _samplings(self) -> Iterator[Sampling]:
        for sampling in _SAMPLINGS:
            yield replace(sampling, seed=self._seed, max_tokens=_N_TOKENS)

    def _tokens(self, n: int) -> list[int]:
        """Return a text of about `n` tokens, or of as many as the context has room for."""
        n = min(n, self._llm.n_ctx - 3 * _N_TOKENS)
        return self._llm.tokenize(long_text(self._llm, n + 30))[:n] if n > 0 else []

    def _text(self, ids: Sequence[int], sampling: Sampling, way: Speculation) -> Completion:
        return self._llm.generate_tokens(ids, sampling, speculation=way)

    def _fresh(self, ids: Sequence[int], sampling: Sampling) -> Completion:
        """Return the plain text from empty caches.

        The caches afterwards hold this text, or are unchanged if the text was already known.
        """
        key = repr((ids, sampling))
        if key not in self._known:
            self._llm.forget()
            self._known[key] = self._text(ids, sampling, PLAIN)
        return self._known[key]

    def _held(self) -> list[list[int]]:
        with self._llm.models() as models:
            return [list(model.cached) for model in models if model]

    def _compare(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        other: Completion,
        where: str,
        plain: Completion | None = None,
    ) -> bool:
        """Compare a text with the plain one from empty caches; return whether they are equal."""
        plain = self._fresh(ids, sampling) if plain is None else plain
        self._n_cases += 1
        if (plain.tokens, plain.finish_reason) == (other.tokens, other.finish_reason):
            return True
        at = next(
            (i for i, (a, b) in enumerate(zip(plain.tokens, other.tokens, strict=False)) if a != b),
            min(len(plain.tokens), len(other.tokens)),
        )
        if other.stats.n_near_ties and self._gap(ids, plain.tokens, other.tokens, at, sampling)[1]:
            self._n_near_ties += 1
        else:
            self._faults.append(f"A text {where} differs after {at} tokens.")
        return False

    def _check(self, name: str, changes: str) -> Check:
        n, n_near_ties, faults = (
            self._n_cases,
            self._n_near_ties,
            tuple(dict.fromkeys(self._faults)),
        )
        self._n_cases = self._n_near_ties = 0
        self._faults = []
        found = f"{n} texts compared" + (
            f", {n_near_ties} differ at a near tie" if n_near_ties else ""
        )
        return Check(name, n, found, faults, changes, n_near_ties)

    def _left_out(self, name: str) -> Check:
        return Check(name, 0, f"omitted: a context of {self._llm.n_ctx} tokens is too short")
