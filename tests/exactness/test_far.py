"""Far into a context, with several threads: rows of several tokens are those of single ones, or the noise between them is known."""

import numpy as np
import pytest

from gguf_spec import Sampling, Speculation, load


def moved(llm, depth):
    """How far the first row of passes over 2 to 8 tokens, behind `depth` others, is from that of a pass over one."""
    tokens = [100 + i * 7 % 900 for i in range(depth + 8)]
    with llm.models() as (target, _draft):
        target.rollback(0)
        target.read(tokens[:depth])
        rows = []
        for width in (1, 2, 4, 8):
            target.rollback(depth)
            rows.append(target.logits(tokens[depth : depth + width], width)[0].copy())
        target.rollback(0)
    return max(float(np.abs(row - rows[0]).max()) for row in rows[1:])


@pytest.mark.parametrize("flash_attention", ["auto", "on", "off"])
def test_the_noise_behind_many_tokens_is_known(flash_attention):
    with load("tales", threads=2, n_ctx=2048, flash_attention=flash_attention) as llm:
        noise = max(moved(llm, depth) for depth in (100, 600, 1500))
        assert noise <= llm.logit_noise(8)


def test_long_texts_are_the_plain_ones_with_two_threads():
    start = "Once upon a time there was a fox who met a king. " * 60
    with load("tales", threads=2, n_ctx=2048) as llm:
        for sampling in (Sampling(temperature=0, max_tokens=60), Sampling(seed=3, max_tokens=60)):
            texts = []
            for speculation in (Speculation(0), Speculation(4, adaptive=False), Speculation(3, drafter="model", adaptive=False)):
                llm.forget()
                texts.append(llm.generate(start, sampling, speculation=speculation))
            assert texts[0].stats.n_prompt > 600
            assert len({one.text for one in texts}) == 1 or any(one.stats.n_near_ties for one in texts)
