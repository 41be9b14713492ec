"""Checks of a head whose target has read `TEXT`: the same for all kinds of heads with a cache."""

import numpy as np

TEXT = [40, 41, 42, 43, 44, 45, 60, 61, 62] * 2


def check_pieces(head):
    """Logits of a text do not depend on the passes that read it; returns them."""
    whole = head.logits(TEXT, len(TEXT)).copy()
    head.rollback(0)
    single = [head.logits([token], 1)[0].copy() for token in TEXT]
    assert np.abs(whole - single).max() < 1e-4
    head.rollback(7)
    assert np.abs(head.logits(TEXT[7:], 1)[0] - whole[-1]).max() < 1e-4
    return whole


def check_restored_state(head, most):
    """Logits after a restored state differ by less than `most`."""
    expected = head.logits(TEXT, 1)[0].copy()
    head.rollback(len(TEXT) - 1)
    state = head.state().tobytes()
    head.rollback(0)
    assert head.restore(TEXT[:-1], 0, state)
    assert np.abs(head.logits(TEXT[-1:], 1)[0] - expected).max() < most
