"""Bugs that `verify` must catch: each is a function that plants one, with a part of the report."""

from collections import Counter
from dataclasses import replace

import numpy as np

from gguf_spec import verify
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.runtime import generation
from gguf_spec.sampling import chain
from gguf_spec.sampling.chain import Candidates, Sampler
from gguf_spec.speculative import engine
from gguf_spec.speculative.acceptance import RULES, Rows
from gguf_spec.speculative.drafters import ModelDrafter
from gguf_spec.speculative.drafters import model as _model_drafter
from gguf_spec.text.detokenizer import TextStream
from gguf_spec.verify.checks import TESTED_RULES
from tests.exactness import wrong_rules


def keep_checks(monkeypatch, parts, distributions):
    """Let `verify` make only these checks of single features and of distributions, besides those of rows, texts and caches."""
    whole = verify.RequestChecks

    def checks(*arguments):
        made = whole(*arguments)
        made.parts = {name: part for name, part in made.parts.items() if name in parts}
        return made

    monkeypatch.setattr(verify, "RequestChecks", checks)
    kept = [name for name in TESTED_RULES if name in distributions]
    monkeypatch.setattr(verify, "rules_of", lambda _: kept)


def keep_all(draft, rows):
    """Accepts every drafted token."""
    return [*draft.tokens, rows.token(len(draft.tokens))]


def accept_always(monkeypatch):
    monkeypatch.setitem(RULES, "coupled", keep_all)


def accept_always_when_drawing(monkeypatch):
    monkeypatch.setitem(RULES, "rejection", wrong_rules.accept_always)


def residual_forgotten(monkeypatch):
    monkeypatch.setitem(RULES, "rejection", wrong_rules.residual_forgotten)


def block_residual_of_rejection(monkeypatch):
    monkeypatch.setitem(RULES, "block", wrong_rules.block_with_the_plain_residual)


def draft_cache_off_by_one(monkeypatch):
    monkeypatch.setattr(ModelDrafter, "rollback", lambda self, to: self._model.rollback(to + 1))


def cache_of_other_tokens(monkeypatch):
    """The list of cached tokens is right, but llama.cpp's cache has others."""
    right = ModelDrafter.rollback

    def rollback(self, to):
        right(self, to)
        if self._model.n_past == to > 12:
            last = self._model.cached[-1]
            self._model.rollback(to - 1)
            self._model.read([7])
            self._model.cached[-1] = last

    monkeypatch.setattr(ModelDrafter, "rollback", rollback)


def penalties_from_a_stale_history(monkeypatch):
    monkeypatch.setattr(
        Rows, "history", lambda self, i: [*self._tokens, *[0] * len(self._drafted[:i])]
    )


def noise_that_belongs_to_the_round(monkeypatch):
    """Counts positions from the start of the round: rounds share their noise, and k decides where they begin."""
    real = Sampler.pick
    count = Counter()

    def pick(self, candidates, position):
        count["n"] += 1
        return real(self, candidates, count["n"])

    monkeypatch.setattr(Sampler, "pick", pick)


def logit_bias_after_the_filters(monkeypatch):
    """Filters a token before its bias is added."""
    survivors = Sampler.survivors

    def biased(self, logits, position):
        ids, kept = survivors(self, logits, position)
        bias = self.sampling.logit_bias
        return Candidates(ids, kept + np.array([bias.get(int(token), 0.0) for token in ids]))

    monkeypatch.setattr(chain, "_bias", lambda logits, _: logits)
    monkeypatch.setattr(Sampler, "survivors", biased)


def prefixes_compared_over_64_tokens_only(monkeypatch):
    def keep(model, tokens):
        differs = (
            i for i, (a, b) in enumerate(zip(model.cached[:64], tokens, strict=False)) if a != b
        )
        model.rollback(next(differs, min(model.n_past, len(tokens))))

    for place in (generation, engine, _model_drafter):
        monkeypatch.setattr(place, "retain_prefix", keep)


def session_of_another_text(monkeypatch):
    """The list of cached tokens of a restored cache is right, but llama.cpp's cache has others."""
    restore = CachedSequence.restore

    def wrong(self, tokens, n_read, state):
        done = restore(self, tokens, n_read, state)
        self.rollback(1)
        self.read([7] * (len(tokens) - 1))
        self.cached[:] = tokens
        return done

    monkeypatch.setattr(CachedSequence, "restore", wrong)


def grammar_forgotten_in_drafts(monkeypatch):
    """Rows behind drafted tokens are read without the grammar."""
    token = Rows.token

    def free(self, i):
        if not i:
            return token(self, i)
        return replace(self.sampler, filters=self.sampler.filters._replace(grammar=None)).token(
            self.logits[i], self.history(i)
        )

    monkeypatch.setattr(Rows, "token", free)


def logprobs_of_the_row_before(monkeypatch):
    right = Rows.logprob
    monkeypatch.setattr(Rows, "logprob", lambda self, i, token: right(self, max(0, i - 1), token))


def stop_strings_at_the_end_of_a_round(monkeypatch):
    """A stop string ends a text only where the round ends with it."""
    add = TextStream.add

    def late(self, text):
        text = add(self, text)
        if self.stopped and not self.__dict__.setdefault("seen", False):
            self.seen, self.stop_string = True, None
        return text

    monkeypatch.setattr(TextStream, "add", late)


def rows_scaled(monkeypatch):
    """Makes the rows of all passes over several tokens a tenth too small."""
    logits = CachedSequence.logits

    def scaled(self, tokens, n_rows):
        rows = logits(self, tokens, n_rows)
        return rows * np.float32(0.9) if len(tokens) > 1 else rows

    monkeypatch.setattr(CachedSequence, "logits", scaled)


BUGS = {
    logit_bias_after_the_filters: "first tokens under coupled do not follow",
    prefixes_compared_over_64_tokens_only: "a cache that is used again changes the text",
    session_of_another_text: "a restored session changes the text",
    grammar_forgotten_in_drafts: "texts within grammars differ",
    logprobs_of_the_row_before: "log-probabilities differ",
    stop_strings_at_the_end_of_a_round: "stop strings end texts elsewhere",
    rows_scaled: "rows of passes over several tokens are not those of single tokens",
    accept_always: "texts differ",
    accept_always_when_drawing: "first tokens under rejection do not follow",
    residual_forgotten: "first tokens under rejection do not follow",
    block_residual_of_rejection: "first tokens under block do not follow",
    draft_cache_off_by_one: "a cache does not contain the generated tokens",
    cache_of_other_tokens: "a cache does not contain the generated tokens",
    penalties_from_a_stale_history: "texts differ",
    noise_that_belongs_to_the_round: "texts differ",
}
