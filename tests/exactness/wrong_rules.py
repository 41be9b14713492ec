"""Acceptance rules with one mistake each. The exactness tests must catch every one."""

from gguf_spec._accept import residual
from gguf_spec._sampling import Distribution


def accept_always(draft, law, sampler):
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]


def residual_forgotten(draft, law, sampler):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = law(i)
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], sampler.draw(p)]
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]


def accepted_by_p_alone(draft, law, sampler):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = law(i)
        if not sampler.rng.chance(p.prob(token)):
            return [*draft.tokens[:i], sampler.draw(residual(p, q))]
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]


def row_off_by_one(draft, law, sampler):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = law(max(i - 1, 0))
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], sampler.draw(residual(p, q))]
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]


def residual_turned_round(draft, law, sampler):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = law(i)
        if not sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            wrong = residual(Distribution(q.ids, q.probs), p)
            return [*draft.tokens[:i], sampler.draw(wrong)]
    return [*draft.tokens, sampler.draw(law(len(draft.tokens)))]


ALL = [accept_always, residual_forgotten, accepted_by_p_alone, row_off_by_one, residual_turned_round]
