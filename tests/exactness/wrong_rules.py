"""Acceptance rules with one mistake each. The exactness tests must catch every one."""

from gguf_spec.sampling.chain import Distribution
from gguf_spec.speculative.acceptance import residual


def accept_always(draft, rows):
    return [*draft.tokens, rows.sampler.draw(rows.distribution(len(draft.tokens)))]


def residual_forgotten(draft, rows):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(i)
        if not rows.sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], rows.sampler.draw(p)]
    return [*draft.tokens, rows.sampler.draw(rows.distribution(len(draft.tokens)))]


def accepted_by_p_alone(draft, rows):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(i)
        if not rows.sampler.rng.chance(p.prob(token)):
            return [*draft.tokens[:i], rows.sampler.draw(residual(p, q))]
    return [*draft.tokens, rows.sampler.draw(rows.distribution(len(draft.tokens)))]


def row_off_by_one(draft, rows):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(max(i - 1, 0))
        if not rows.sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            return [*draft.tokens[:i], rows.sampler.draw(residual(p, q))]
    return [*draft.tokens, rows.sampler.draw(rows.distribution(len(draft.tokens)))]


def residual_turned_round(draft, rows):
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        p = rows.distribution(i)
        if not rows.sampler.rng.chance(min(1.0, p.prob(token) / q.prob(token))):
            wrong = residual(Distribution(q.ids, q.probs), p)
            return [*draft.tokens[:i], rows.sampler.draw(wrong)]
    return [*draft.tokens, rows.sampler.draw(rows.distribution(len(draft.tokens)))]


def block_with_the_plain_residual(draft, rows):
    """Block verification without the weight of the accepted prefix."""
    weight, targets = [1.0], [rows.distribution(0)]
    for i, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        weight.append(min(1.0, weight[i] * targets[i].prob(token) / q.prob(token)))
        targets.append(rows.distribution(i + 1))
    for i in range(len(targets) - 1, 0, -1):
        if rows.sampler.rng.chance(weight[i]):
            return [
                *draft.tokens[:i],
                rows.sampler.draw(
                    targets[i] if i == len(draft.tokens) else residual(targets[i], draft.q[i])
                ),
            ]
    return [rows.sampler.draw(residual(targets[0], draft.q[0]) if draft.tokens else targets[0])]


ALL = [
    block_with_the_plain_residual,
    accept_always,
    residual_forgotten,
    accepted_by_p_alone,
    row_off_by_one,
    residual_turned_round,
]
