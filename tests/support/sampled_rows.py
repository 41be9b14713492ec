"""Random rows and options, and what NumPy's rule and the library's sampler choose: they must agree in each bit."""

import struct

import numpy as np

from gguf_spec.errors import NoTokenLeftError
from gguf_spec.options import Sampling
from gguf_spec.sampling.chain import Filters, Sampler, logprob
from gguf_spec.sampling.native import NativeSampler, Tree
from gguf_spec.sampling.near_ties import is_near_tie
from gguf_spec.sampling.rng import SeededRng

KINDS = ("bell", "peaks", "sharp", "open", "ties", "flat", "huge", "tiny", "bad")
OPTIONS = {
    "temperature": (0.0, 0.8, 0.8, 1e-30, 0.01, 1.5, 1e6),
    "top_k": (40, 40, 0, 0, 1, 2, 7, 300, 10**6),
    "top_p": (0.95, 1.0, 1e-6, 0.5, 0.999, 1 - 1e-9),
    "min_p": (0.0, 0.0, 1e-9, 0.05, 0.3, 1.0),
    "typical_p": (1.0, 1.0, 1.0, 1e-9, 0.2, 0.7, 1 - 1e-9),
    "xtc_probability": (0.0, 0.0, 0.0, 0.4, 1.0),
    "xtc_threshold": (0.0, 1e-3, 0.02, 0.1, 0.5, 0.6),
    "top_n_sigma": (0.0, 0.0, 0.0, 0.5, 2.0),
    "repeat_penalty": (1.0, 1.0, 0.5, 1.3),
    "frequency_penalty": (0.0, 0.0, 0.3, -0.2),
    "presence_penalty": (0.0, 0.0, -1.0, 0.7),
    "penalty_last_n": (64, 64, -1, 0, 5),
    "logprobs": (None, None, 0, 1, 20),
    "ignore_eos": (False, False, True),
}


class Masks:
    """A grammar with some random sets of allowed tokens, one after the other; the rule has them as masks or asks for tokens."""

    def __init__(self, rng, n_vocab, ends):
        shares = rng.choice([0.0, 1e-3, 0.05, 0.5, 0.999, 1.0], size=7)
        self._rows = [rng.random(n_vocab) < share for share in shares]
        for row in self._rows:
            kind = rng.integers(4)
            if kind == 0:
                row[rng.integers(n_vocab)] = True
            if kind == 1:
                row[:] = False
            if kind < 3:
                row[ends[ends < n_vocab]] = rng.random() < 0.5
        self._others = rng.random(n_vocab) < 0.3
        self._has_masks = rng.random() < 0.5

    def _row(self, history):
        return self._rows[len(history) % len(self._rows)]

    def possible(self, history):
        return self._row(history) | self._others

    def allowed(self, history, ids):
        return self._row(history)[ids]

    def mask(self, history):
        return self._bits(history) if self._has_masks else None

    def _bits(self, history):
        return np.packbits(self._row(history), bitorder="little").tobytes()

    def masks(self, history, draft):
        found = []
        for n in range(len(draft) + 1):
            past = [*history, *draft[:n]]
            found.append(self._bits(past))
            if n < len(draft) and not self._row(past)[draft[n]]:
                break
        return found


def make_rows(rng, n_rows, n_vocab, kind=None):
    """Rows of one kind, a random one without `kind`."""
    kind = kind or rng.choice(KINDS)
    rows = rng.normal(size=(n_rows, n_vocab)) * rng.choice([0.5, 2.5, 4.0])
    for row in rows:
        few = rng.choice(n_vocab, max(n_vocab // 50, 1), replace=False)
        if kind in ("peaks", "sharp"):
            row[few] += rng.exponential(5.0, size=len(few)) + 4
        if kind == "sharp":
            row[few[0]] = row.max() + 12
        if kind == "open":
            row[few] = row.max() + 6 - np.log(np.arange(1, len(few) + 1))
        if kind == "ties":
            row[:] = np.round(row)
        if kind == "flat":
            row[:] = 0.0
            row[few] = -0.0
        if kind in ("huge", "tiny"):
            row[:] *= rng.choice([1e5, 1e36]) if kind == "huge" else 1e-41
        if kind == "bad":
            row[few] = rng.choice([np.nan, np.inf, -np.inf, 0.0])
        if rng.random() < 0.2:
            row[rng.random(n_vocab) < rng.choice([0.3, 0.98])] = -np.inf
    return rows.astype(np.float32)


def make_sampler(rng, n_vocab):
    """Return a chain of random options, with a grammar in two of five."""
    options = {name: values[rng.integers(len(values))] for name, values in OPTIONS.items()}
    some = [int(i) for i in rng.integers(0, n_vocab + 2, size=3)]
    if rng.random() < 0.3:
        options["logit_bias"] = dict(zip(some, (9.0, -3.5, float("-inf")), strict=True))
    dry = None
    if rng.random() < 0.1:
        found = np.array(sorted({*some}), dtype=np.int64)
        dry = lambda history: (found, 0.1 * len(history) + np.arange(len(found)))  # noqa: E731
    ends = np.array(some[:2], dtype=np.int64)
    grammar = Masks(rng, n_vocab, ends) if rng.random() < 0.4 else None
    begin = int(rng.choice([0, 0, 3]))
    filters = Filters(dry=dry, grammar=grammar, ends=ends, penalise_from=begin)
    return Sampler(Sampling(**options), SeededRng(int(rng.integers(2**63))), filters)


def by_rule(sampler, rows, history, draft, noise):
    """Tokens, near ties and log-probabilities by NumPy's rule; None if a row has no token."""
    tokens, near, named = [], [], []
    try:
        for i, row in enumerate(rows):
            past = [*history, *draft[:i]]
            tokens.append(sampler.token(row, past))
            near += [i] if is_near_tie(sampler, row, past, tokens[i], noise) else []
            if sampler.sampling.logprobs is not None:
                named.append(logprob(row, tokens[i], sampler.sampling.logprobs))
            if i < len(draft) and tokens[i] != draft[i]:
                break
    except NoTokenLeftError:
        return None
    return tokens, near, [bits_of(one) for one in named]


def bits_of(one):
    return (
        one.token,
        struct.pack("d", one.logprob),
        [(id_, struct.pack("d", value)) for id_, value in one.top],
    )


def by_library(library, sampler, rows, history, draft, noise):
    try:
        found = NativeSampler(library, sampler, noise).choose(rows, history, draft, noise > 0)
    except NoTokenLeftError:
        return None
    return found.tokens, found.near_ties, [bits_of(one) for one in found.logprobs]


def differences(library, seed, n_cases, sizes):
    """Compare many rounds; return how many rows were compared, and the first rounds that differ, in words."""
    rng, n_compared, found = np.random.default_rng(seed), 0, []
    for case in range(n_cases):
        n_vocab, n_rows = int(rng.choice(sizes)), int(rng.integers(1, 6))
        sampler, noise = make_sampler(rng, n_vocab), float(rng.choice([0.0, 0.02, 0.5]))
        rows = make_rows(rng, n_rows, n_vocab)
        history = [
            int(i) for i in rng.integers(0, n_vocab + 1, size=rng.integers(3, 90))
        ]  # a prompt that penalties leave out is before it
        with np.errstate(all="ignore"):
            draft = []
            for i in range(n_rows - 1):  # right, but for one in ten
                one = by_rule(sampler, rows[i : i + 1], [*history, *draft], [], 0.0)
                right = one is not None and rng.random() < 0.9
                draft.append(one[0][0] if right else int(rng.integers(n_vocab)))
            wanted = by_rule(sampler, rows, history, draft, noise)
        before = rows.tobytes()
        got = by_library(library, sampler, rows, history, draft, noise)
        n_compared += n_rows
        if rows.tobytes() != before:
            found.append(f"case {case}: the rows are changed")
        if repr(got) != repr(wanted):
            found.append(
                f"case {case}, V = {n_vocab}: {got} is not {wanted}; {sampler.sampling}, noise {noise}"
            )
        if len(found) > 3:
            break
    return n_compared, found


class Bytes:
    """An automaton of bytes with random rows, which are made when they are asked for."""

    def __init__(self, rng, letters):
        self._rows = np.full((int(rng.integers(1, 300)), 256), -1, dtype=np.int32)
        values = rng.integers(len(self._rows), size=(len(self._rows), len(letters)))
        self._rows[:, letters] = np.where(
            rng.random(values.shape) < rng.choice([0.02, 0.4]), -1, values
        )
        self.known, self.work = self, 0
        self.addresses = np.zeros(len(self._rows) + int(rng.integers(9)), dtype=np.int64)

    def row(self, at):
        assert not self.addresses[at]
        self.addresses = np.copy(self.addresses)  # as where it grows
        self.addresses[at] = self._rows[at].ctypes.data
        self.work += 1

    def read(self, at, text, used):
        for byte in text:
            used.add(at)
            at = self._rows[at, byte]
            if at < 0:
                return False
        return bool(text)


def tree_differences(library, seed, n_cases):
    """Compare the tokens that an automaton accepts, and the states it needs, with those found one by one."""
    rng, found = np.random.default_rng(seed), []
    for case in range(n_cases):
        letters = rng.choice(256, int(rng.integers(1, 6)), replace=False)
        n, longest = int(rng.integers(1, 300)), int(rng.choice([1, 3, 8, 40]))
        texts = [bytes(rng.choice(letters, rng.integers(longest + 1)).tolist()) for _ in range(n)]
        order = sorted((i for i in range(n) if texts[i]), key=texts.__getitem__)
        ends = np.cumsum([len(texts[i]) for i in order], dtype=np.int64)
        flat = b"".join([texts[i] for i in order])
        tree, automaton = (
            Tree(library, flat, ends, np.array(order, dtype=np.int32)),
            Bytes(rng, letters),
        )
        for _ in range(3):
            start, used = int(rng.integers(len(automaton._rows))), set()
            least = int(rng.choice([0, 0, 1, 2, 5, longest]))
            wanted = [automaton.read(start, text, used) for text in texts]
            bits, states = tree.accepted(automaton, start, 10**6)
            got = np.unpackbits(bits, bitorder="little")[: max(order, default=-1) + 1].tolist()
            few = [i for i in order if len(texts[i]) > least]
            bits, fewer = tree.accepted(automaton, start, 10**6, least)
            some, used_by_few = np.unpackbits(bits, bitorder="little"), set()
            is_right = all(wanted[i] for i in np.flatnonzero(some))
            for i in few:
                is_right &= some[i] == automaton.read(start, texts[i], used_by_few)
            if not is_right or set(fewer) != used_by_few:
                found.append(f"case {case}: {np.flatnonzero(some)} of more than {least} bytes")
            if [*got, *[0] * (n - len(got))] != wanted or set(states) != used:
                found.append(f"case {case}: {got} is not {wanted}, or {states} not {used}")
        if len(found) > 3:
            break
    return found
