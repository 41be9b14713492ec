#!/usr/bin/env python3
"""Ways to ask for an edit that the package does not use: votes of several answers, and a prior for the old text.

    .venv/bin/python scripts/bench/edit_ways.py --half tune --way votes prior --json ways.json --only '*.py/*'

The options, the table and the file are those of bench_edits.py. Ways:

  votes  the answer at temperature 0 and two at 0.7; a change is kept that two of the three have
  all3   of the same answers, what all three have; its seconds are those of the ways before it where they ran in the same process
  prior  1 nat for the token that the old text has next, where the answer follows it, and 6 nats where the answer would end there
"""

import sys
from collections import Counter
from dataclasses import dataclass
from functools import partial

import bench_edits
import numpy as np

from gguf_spec import Sampling
from gguf_spec.edit import EditPlan
from gguf_spec.edit.doubts import doubts
from gguf_spec.edit.evidence import without_look_alikes
from gguf_spec.edit.hunks import apply
from gguf_spec.errors import NoEditError
from gguf_spec.sampling.chain import Sampler

N_SAMPLES, WARM = 3, 0.7
WEAK, STRONG = 1.0, 6.0  # nats
N_ALIGNED = 4  # tokens that bring an answer back to the old text
SHAPED = Sampler.shaped


def samples(llm, plan):
    """Return the results of some answers, None for one that is no text, and the statistics of the first."""
    prompt, found = plan.prompt(llm), []
    for seed in range(N_SAMPLES):
        sampling = prompt.limited(Sampling(temperature=WARM if seed else 0, seed=seed))
        answer = llm.generate(prompt.request, sampling, prefill=prompt.prefill)
        try:
            found.append(plan.result(prompt.text_of(answer), answer))
        except NoEditError:
            found.append(None)
        stats = found[0].stats if found[0] else answer.stats
    return found, stats


def votes(llm, task, most=2):
    """Keep the changes that most of some answers have."""
    plan, key = EditPlan(task.old, task.ask, name=task.file), bench_edits.key_of(task)
    if not plan.needs_model:
        return bench_edits.edit(llm, task)
    if key not in SAMPLES:
        SAMPLES[key] = samples(llm, plan)
    found, stats = SAMPLES[key]
    counts = Counter(hunk for one in found if one for hunk in {*one.hunks} if not hunk.is_outside)
    kept = sorted((one for one, n in counts.items() if n >= most), key=lambda one: one.start)
    kept = without_look_alikes(kept, plan.reading)
    refused = doubts(kept, plan.reading)
    text = "\n".join(apply(plan.lines, kept)) + "\n" * task.old.endswith("\n")
    return text, refused if kept else (), stats


SAMPLES = {}


@dataclass(frozen=True)
class Prior(Sampling):
    """Sampling with a prior for the old text.

    Attributes:
        old: Its tokens.
        n_prompt: Number of tokens before the answer.
        ends: Tokens that end an answer.
    """

    old: tuple[int, ...] = ()
    n_prompt: int = 0
    ends: frozenset[int] = frozenset()

    def places(self, answer):
        """Return the place in the old text that an answer follows, or None, and the last place before it."""
        found = PLACES.get(answer)
        if found is None:
            at, last = self.places(answer[:-1]) if answer else (0, 0)
            if answer and at is not None and at < len(self.old) and answer[-1] == self.old[at]:
                at = last = at + 1
            elif answer:
                end = answer[-N_ALIGNED:]
                starts = range(max(0, last - N_ALIGNED), len(self.old) - N_ALIGNED + 1)
                found = [i + N_ALIGNED for i in starts if self.old[i : i + N_ALIGNED] == end]
                at, last = (found[0], found[0]) if found else (None, last)
            found = PLACES[answer] = at, last
        return found

    def added(self, logits, history):
        """Return a row with the prior."""
        at, _ = self.places(tuple(history[self.n_prompt :]))
        if at is None or at >= len(self.old):
            return logits
        logits = logits.copy()
        logits[self.old[at]] += STRONG if int(np.argmax(logits)) in self.ends else WEAK
        return logits


PLACES = {}


def shaped(self, logits, history):
    row = SHAPED(self, logits, history)
    return self.sampling.added(row, history) if isinstance(self.sampling, Prior) else row


def prior(llm, task):
    """Add a prior for the old text to the logits."""
    plan = EditPlan(task.old, task.ask, name=task.file)
    if not plan.needs_model:
        return bench_edits.edit(llm, task)
    prompt, part = plan.prompt(llm), plan.part
    old = plan.lines[part.start : part.end] if part else plan.lines
    n_vocab = llm.vocabulary.n_vocab
    PLACES.clear()
    sampling = Prior(
        temperature=0,
        old=tuple(llm.tokenize("\n".join(old) + "\n", special=False)),
        n_prompt=len(llm.tokenize(prompt.request, prefill=prompt.prefill)),
        ends=frozenset(
            one
            for one in range(n_vocab)
            if llm.vocabulary.is_end(one) or llm.vocabulary.piece(one).strip().startswith(b"``")
        ),
    )
    answer = llm.generate(prompt.request, prompt.limited(sampling), prefill=prompt.prefill)
    result = plan.result(prompt.text_of(answer), answer)
    return result.text, tuple(map(str, result.refused)), answer.stats


def main():
    Sampler.shaped = shaped
    bench_edits.WAYS |= {"votes": votes, "all3": partial(votes, most=3), "prior": prior}
    return bench_edits.main()


if __name__ == "__main__":
    sys.exit(main())
