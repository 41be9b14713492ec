"""Random requests with their texts by themselves, and neighbours that fail or end early."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from gguf_spec import Sampling, Speculation
from gguf_spec.errors import GgufSpecError, NoTokenLeftError
from gguf_spec.llama.context import Context

STARTS = (
    "Once upon a time there was a fox who met a king, and the king said",
    "The old woman had three sons. The first was strong, the second was clever, and the third",
    "In the deep forest " * 6,
)
ENDS = ("", " that", " to the wolf: ", " and then", "\n\nThe", " a b c a b c a b")
GRAMMAR = r'root ::= line line line ::= [A-Z] [a-z ]{3,30} "." " "?'.replace(
    " line ::", "\nline ::"
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}
OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"top_k": 5},
    {"top_k": 0, "top_p": 0.8},
    {"top_k": 0, "top_p": 1.0, "min_p": 0.1, "temperature": 1.2},
    {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    {"temperature": 0.0, "repeat_penalty": 1.2},
    {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    {"xtc_probability": 0.5, "xtc_threshold": 0.08},
    {"grammar": GRAMMAR},
    {"json_schema": SCHEMA},
    {"logit_bias": dict.fromkeys(range(300, 600), -4.0)},
    {"stop": ("e ", ".")},
    {"logprobs": 3},
    {"ignore_eos": True, "overflow": "shift", "max_tokens": 90},
)
SPECULATIONS = (
    Speculation(0),
    Speculation(),
    Speculation(6),
    Speculation(drafter="ngram"),
    Speculation(drafter="hybrid"),
    Speculation(3, adaptive=False),
    Speculation(9, adaptive=False, drafter="hybrid"),
    Speculation(5, adaptive=False, drafter="ngram"),
    # The others depend on what was learned.
    Speculation(4, "rejection", adaptive=False, drafter="model"),
    Speculation(3, "block", adaptive=False, drafter="model"),
)
NAN = "A row of this text is no number"
N_CTX = 192


def random_requests(rng, n, draft=True):
    """Arguments of `generate`: every option occurs; the rest is random."""
    requests = []
    for i in range(n):
        options = {"max_tokens": rng.randrange(8, 48)} | OPTIONS[i % len(OPTIONS)]
        speculation = SPECULATIONS[(i * 3 + i // len(SPECULATIONS)) % len(SPECULATIONS)]
        if not draft and (speculation.drafter not in ("auto", "ngram")):
            speculation = Speculation(drafter="ngram")
        start = rng.choice(STARTS)
        prompt = start[: rng.randrange(5, len(start))] if rng.random() < 0.3 else start
        requests.append(
            {
                "prompt": prompt + rng.choice(ENDS),
                "sampling": Sampling(seed=rng.randrange(99), **options),
                "speculation": speculation,
            }
        )
    return requests


def outcome(llm, request):
    """All that a request decides."""
    one = llm.generate(**request)
    return one.text, one.tokens, one.finish_reason, one.logprobs


def together(llm, requests, others=(), n=8):
    """Return the outcomes of requests in a batch, with other work between them; errors of either are raised."""
    work = [partial(outcome, llm, request) for request in requests]
    step = max(1, len(work) // (len(others) + 1))
    order = [(i, None) for i in range(len(work))]
    for place, other in enumerate(others):
        order.insert((place + 1) * step + place, (None, other))
    with ThreadPoolExecutor(n) as pool:
        begun = [(i, pool.submit(other or work[i])) for i, other in order]
        ended = {i: one.result(240) for i, one in begun if one.result(240) or i is not None}
    return [ended[i] for i in range(len(work))]


class CallbackError(Exception):
    """Error of a callback."""


class Neighbours:
    """Requests with unusual ends; each returns whether it ended as expected."""

    def __init__(self, llm):
        self.llm = llm
        self.n_ended = 0
        self._lock = threading.Lock()

    @property
    def all(self):
        return [self.cancelled, self.dropped, self.closed, self.raising, self.exiting]

    @property
    def more(self):
        return [self.full, self.dead_end, self.not_a_number]

    def _end(self):
        with self._lock:
            self.n_ended += 1

    def _sampling(self, **options):
        return Sampling(seed=3, **({"max_tokens": 60, "ignore_eos": True} | options))

    def cancelled(self):
        tokens = []
        one = self.llm.generate(
            STARTS[0], self._sampling(), on_token=lambda t: tokens.append(t) or len(tokens) > 9
        )
        assert (one.finish_reason, len(one.tokens)) == ("cancelled", 10)
        self._end()

    def dropped(self):
        stream = self.llm.stream(STARTS[0] + " he", self._sampling(max_tokens=None))
        next(stream)
        del stream
        self._end()

    def closed(self):
        with self.llm.stream(STARTS[1], self._sampling(max_tokens=None)) as stream:
            next(stream)
        assert stream.result.finish_reason == "cancelled"
        self._end()

    def raising(self, error=CallbackError):
        n = []

        def on_token(token):
            n.append(token)
            if len(n) == 5:
                raise error

        try:
            self.llm.generate(STARTS[1], self._sampling(), on_token=on_token)
        except error:
            return self._end()
        raise AssertionError("the callback's error is lost")

    def exiting(self):
        self.raising(SystemExit)

    def full(self):
        one = self.llm.generate(STARTS[2], self._sampling(max_tokens=None))
        n = len(self.llm.tokenize(STARTS[2]))
        assert (one.finish_reason, n + len(one.tokens)) == ("length", self.llm.n_ctx)
        self._end()

    def dead_end(self):
        forbidden = {
            i: float("-inf")
            for i in range(self.llm.vocabulary.n_vocab)
            if self.llm.token_bytes(i)[:1] == b"z"
        }
        try:
            self.llm.generate(
                STARTS[0], self._sampling(grammar='root ::= "q" "z"', logit_bias=forbidden)
            )
        except NoTokenLeftError:
            return self._end()
        raise AssertionError("a text that cannot go on went on")

    def not_a_number(self):
        """With `rows_of_nan` only."""
        try:
            self.llm.generate(NAN, self._sampling())
        except GgufSpecError:
            return self._end()
        raise AssertionError("a row without numbers was sampled")


def rows_of_nan(monkeypatch, llm):
    """Make the rows of the prompt `NAN` no numbers, also in passes with others."""
    beginning, decode = llm.tokenize(NAN), Context.decode

    def decode_some(self, parts, *more):
        rows = decode(self, parts, *more)
        return [
            np.full_like(one, np.nan)
            if part.sequence.cached[: len(beginning)] == beginning
            else one
            for part, one in zip(parts, rows, strict=True)
        ]

    monkeypatch.setattr(Context, "decode", decode_some)


def counted(llm):
    """Number of passes of the target that returned rows, and of these rows."""
    return llm.pass_counts


def seeded(seed):
    return random.Random(seed)
