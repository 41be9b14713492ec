"""Requests of all kinds, whose text is known: what an interrupt must not change."""

from __future__ import annotations

import gguf_spec
from gguf_spec import Sampling, Speculation

N = 24
GREEDY = Sampling(temperature=0, max_tokens=N, ignore_eos=True)
DRAWN = Sampling(temperature=0.8, max_tokens=N, seed=7, ignore_eos=True)
LONG = (
    "Once upon a time there was a fox who lived in the wood, and every day he went to the river. "
    * 12
)


def fixed(k, **options):
    return Speculation(k, adaptive=False, **options)


def chat(llm, folder):
    """Two turns: the second continues with the caches of the first."""
    talk = llm.chat(sampling=DRAWN)
    return [talk.send(said).text for said in ("hi", "And then?")]


def streamed(llm, folder):
    with llm.stream("There was a king", DRAWN, speculation=fixed(3)) as stream:
        return "".join(chunk.text for chunk in stream)


def restored(llm, folder):
    """A conversation that is saved and restored, both caches with it."""
    talk = llm.chat(sampling=GREEDY)
    first = talk.send("Tell me of a hen.", speculation=fixed(2)).text
    talk.save(folder / "session")
    llm.forget()
    talk.restore(folder / "session")
    return [first, talk.send("And then?").text]


def many(llm, folder):
    prompts = ["Once upon a time", "The wolf came", "She said"]
    return [one.text for one in llm.generate_many(prompts, DRAWN, max_parallel=2)]


def generated(prompt, sampling, speculation=None):
    return lambda llm, folder: llm.generate(prompt, sampling, speculation=speculation).text


REQUESTS = {
    "plain": generated("Once upon a time", GREEDY, Speculation(0)),
    "pair": generated("Once upon a time", DRAWN),
    "pair, fixed": generated("The old woman said", DRAWN, fixed(5)),
    "ngram": generated("a b c a b c a b", DRAWN, Speculation(6, drafter="ngram")),
    "rejection": generated("The wolf came", DRAWN, fixed(4, accept="rejection", drafter="model")),
    "block": generated("The wolf came", DRAWN, fixed(4, accept="block", drafter="model")),
    "a long prompt": generated(LONG, GREEDY),
    "grammar and DRY": generated(
        "She said", Sampling(max_tokens=16, seed=3, grammar="root ::= [a-z ]+", dry_multiplier=0.8)
    ),
    "stream": streamed,
    "chat": chat,
    "session": restored,
    "many": many,
}


def load_pair(**options):
    """The bundled pair, with as many threads as there are, so that the thread governor is at work."""
    return gguf_spec.load("tales", n_ctx=1024, **options)
