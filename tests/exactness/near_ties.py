"""Greedy texts may differ where the two best logits are closer than the rounding noise between batches of different size. This measures it."""

import numpy as np


def rows_at_width(model, tokens, n_prompt, width):
    """Logits after each token from the last of the prompt on, decoded `width` tokens at a time; shape (n, V)."""
    model.rollback(0)
    model.read(tokens[: n_prompt - 1])
    rest = tokens[n_prompt - 1 :]
    return np.concatenate(
        [
            model.logits(part, len(part)).copy()
            for part in (rest[i : i + width] for i in range(0, len(rest), width))
        ]
    )


def gap(row):
    """Return the distance of the best logit from the second."""
    second, best = np.partition(row, -2)[-2:]
    return float(best - second)


def noise(model, prompt, tokens, widths=(2, 3, 5, 9)):
    """Return the largest change with the width of the gap between the best token and any other, along a text."""
    whole = [*prompt, *tokens]
    plain = rows_at_width(model, whole, len(prompt), 1)
    best = plain.argmax(1)
    lead = np.take_along_axis(plain, best[:, None], 1) - plain
    close = lead < 2.0  # only rivals that are near can overtake
    worst = 0.0
    for width in widths:
        rows = rows_at_width(model, whole, len(prompt), width)
        moved = np.abs((np.take_along_axis(rows, best[:, None], 1) - rows) - lead)
        worst = max(worst, float(moved[close].max(initial=0.0)))
    return worst


def first_difference(a, b):
    """Return the first index where two token sequences differ, or None."""
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), None if len(a) == len(b) else n)
