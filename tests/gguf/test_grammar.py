import codecs
import ctypes
import json
import math
import os
import random
import re
import sys
import threading
import time
from array import array
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as C

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import ClosedError, InvalidGrammarError, InvalidOptionError
from gguf_spec.grammar import automaton as automaton_module
from gguf_spec.grammar import token_grammar
from gguf_spec.grammar.automaton import Known
from gguf_spec.grammar.json_schema import to_gbnf
from gguf_spec.grammar.token_grammar import Grammar
from gguf_spec.llama import own_kernels
from gguf_spec.llama.context import Context
from gguf_spec.llama.options import ContextOptions
from gguf_spec.sampling import native
from tests.support import children, tiny
from tests.support.bytecodes import Bytecodes, described
from tests.support.pace import limit_s

TALES = Path(gguf_spec.__file__).parent / "data" / "tales" / "tales-target-Q8_0.gguf"


@pytest.fixture(scope="module")
def model():
    model = Context(TALES, ContextOptions(64, 1)).weights
    yield model
    model.close()


def ids_of(model, text):
    """Return tokens that spell a text, the longest first."""
    data, ids = text.encode(), []
    pieces = {model.piece(i): i for i in reversed(range(model.n_vocab))}
    while data:
        n = next(n for n in range(len(data), 0, -1) if data[:n] in pieces)
        ids.append(pieces[data[:n]])
        data = data[n:]
    return ids


def all_ids(model):
    return np.arange(model.n_vocab)


def texts(model, grammar, history=()):
    """Return the texts of all tokens that may come next."""
    return {
        model.piece(int(i)) for i in np.flatnonzero(grammar.allowed(list(history), all_ids(model)))
    }


def walk(model, grammar, rng, prompt=(), most=60, hurry=30):
    """Generate random allowed tokens, short closing ones towards the end; return them and whether the grammar ended."""
    history = list(prompt)
    for n in range(most):
        allowed = grammar.allowed(history, all_ids(model))
        assert not (allowed & ~grammar.possible(history)).any()
        some = np.array(rng.sample(range(model.n_vocab), 50))
        assert (grammar.allowed(history, some) == allowed[some]).all()
        assert allowed.any()
        ends = [i for i in np.flatnonzero(allowed).tolist() if model.is_end(i)]
        choice = [i for i in np.flatnonzero(allowed).tolist() if not model.is_end(i)]
        if ends and (n > hurry or not choice or rng.random() < 0.3):
            return history[len(prompt) :], True
        closing = [
            i
            for i in choice
            if model.piece(i).strip()
            in (b'"', b"}", b"]", b'"}', b'"]', b"0", b"1", b":", b"null", b"true")
        ]
        history.append(rng.choice(closing if closing and n > hurry else choice))
    return history[len(prompt) :], False


class Oracle:
    """llama.cpp's own grammar, for grammars that do not crash it."""

    def __init__(self, model, gbnf):
        self.model = model
        self.sampler = model.native.vocab(C.llama_sampler_init_grammar, gbnf.encode(), b"root")
        assert self.sampler

    def allowed(self):
        data = np.zeros(
            self.model.n_vocab, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)]
        )
        data["id"] = all_ids(self.model)
        array = C.llama_token_data_array(
            data.ctypes.data_as(ctypes.POINTER(C.llama_token_data)), len(data), -1, False
        )
        C.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return data["logit"] == 0

    def accept(self, token):
        C.llama_sampler_accept(self.sampler, token)

    def close(self):
        C.llama_sampler_free(self.sampler)


def is_text(data):
    """Return whether bytes begin valid UTF-8; llama.cpp accepts others."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return True


GRAMMARS = {
    "word": 'root ::= "hello" " "? "world"',
    "classes": 'root ::= [a-z]+ ("-" [^a-z0-9\\n]{2,3})* # a comment\n',
    "repeats": 'root ::= ("ab"{2} | "c"{1,3} | d{2,}){1,4}\nd ::= "d" | "e"?\n',
    "arithmetic": 'root ::= (expr "=" ws term "\\n")+\nexpr ::= term ([-+*/] term)*\nterm ::= id | num | "(" ws expr ")" ws\n'
    "id ::= [a-z] [a-z0-9_]* ws\nnum ::= [0-9]+ ws\nws ::= [ \\t\\n]*",
    "lines": 'root ::=\n  "a" (\n   "b"\n |\n "c"\n ) |\n\n "d" other\r\nother ::= "e" | ',
    "escapes": r'root ::= "\x41\u0042\U00000043\t\"\\" [\]\-x] [a-] .',
    "umlauts": 'root ::= ("ä" | [ö-ü] | "日本")+',
    "loops": 'root ::= ("a"? "b"?)* "c"',
    "deep": 'root ::= "(" root ")" | "x"',
    "later wins": 'root ::= "a"\nroot ::= "b"',
}


@pytest.mark.parametrize("gbnf", GRAMMARS.values(), ids=GRAMMARS)
def test_the_same_tokens_as_llama_cpp(model, gbnf):
    control = np.array(
        [model.piece(i) == b"" and not model.is_end(i) for i in range(model.n_vocab)]
    )
    for seed in range(4):
        rng, grammar, oracle, history = (
            random.Random(seed),
            Grammar(model, gbnf, 0),
            Oracle(model, gbnf),
            [],
        )
        for _ in range(12):
            ours, theirs = grammar.allowed(history, all_ids(model)), oracle.allowed() & ~control
            said = b"".join(map(model.piece, history))
            assert [
                i for i in np.flatnonzero(ours != theirs).tolist() if is_text(said + model.piece(i))
            ] == []
            assert not (ours & ~theirs).any()
            choice = [i for i in np.flatnonzero(ours).tolist() if not model.is_end(i)]
            if not choice:
                break
            history.append(rng.choice(choice))
            oracle.accept(history[-1])
        oracle.close()


def test_json_schemas_are_read_like_llama_cpp_reads_them(model):
    gbnf = to_gbnf(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "tags": {"type": "array", "items": {"enum": ["a", 1]}},
            },
        }
    )
    test_the_same_tokens_as_llama_cpp(model, gbnf)


# ---- masks


@pytest.fixture
def make_tree():
    if not own_kernels.start().name:
        pytest.skip(own_kernels.in_use().reason)
    return partial(native.Tree, native.functions(own_kernels.library()))


MASKED = [
    *GRAMMARS.values(),
    'root ::= "x" <[1]> "y" | !<[300]>',
    to_gbnf({}),
    to_gbnf({"type": "array", "items": {"type": "string", "maxLength": 30}}),
]


@pytest.mark.parametrize("most", [-1, 60, 300, 20_000])
@pytest.mark.parametrize("gbnf", MASKED, ids=range(len(MASKED)))
def test_a_mask_has_what_is_allowed(model, make_tree, gbnf, most):
    """Whatever work it may take: a mask that takes more is not there."""
    token_grammar.pieces_of(model).grammars.clear()
    grammar, plain, rng, history = (
        Grammar(model, gbnf, 0),
        Grammar(model, gbnf, 0),
        random.Random(7),
        [],
    )
    assert grammar.mask([]) is None
    grammar.mask_work = most
    grammar.make_masks_by(make_tree)
    for _ in range(15):
        mask, allowed = grammar.mask(history), plain.allowed(history, all_ids(model))
        if mask is not None:
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            assert (bits[: model.n_vocab] == allowed).all()
        assert (mask is None) == (most < 0) or most in (60, 300)
        choice = [i for i in np.flatnonzero(allowed).tolist() if not model.is_end(i)]
        if not choice:
            break
        history.append(rng.choice(choice))


class Letters:
    """A vocabulary of random texts of a few letters, and an end; also a tree of its tokens, without a library."""

    def __init__(self, rng, n_vocab, longest):
        sizes = [rng.randint(1, rng.choice((2, longest))) for _ in range(n_vocab - 1)]
        some = (*[b"a"] * 6, *[b"b"] * 3, *[b"("] * 3, b"\xc3", b"\xa9", b"\xc3\xa9")
        self.texts = [b"".join(rng.choices(some, k=size)) for size in sizes]
        self.n_vocab, self.ends, self.asked = n_vocab, [n_vocab - 1], []

    def piece(self, token):
        return self.texts[token] if token < self.n_vocab - 1 else b""

    def is_end(self, token):
        return token == self.n_vocab - 1

    def tokenize(self, text, **_):
        raise NotImplementedError

    def accepted(self, automaton, start, most, longer_than=0):
        self.asked.append(longer_than)
        bits = [len(text) > longer_than and automaton.read(start, text) >= 0 for text in self.texts]
        return np.packbits(bits, bitorder="little"), []


def repeats(rng, depth=0):
    """A random rule of repetitions in repetitions, some of which may be empty."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        one = rng.choice(
            ('"a"', '"b"', "[ab]", "[aé]", '("a" | "bb")', '("b" | "")', '("(" | "a"?)')
        )
        if depth < 2 and rng.random() < 0.6:
            one = f"({repeats(rng, depth + 1)})"
        least = rng.choice((0, 0, 1, 3, 9))
        most = rng.choice(("", least + rng.choice((1, 4, 20, 40))))
        parts.append(f"{one}{{{least},{most}}}" if rng.random() < 0.7 else one)
    return rng.choice((" ", " | ")).join(parts)


def steps_of_masks(model, gbnf, rng, n_answers):
    """Compare the masks of random answers with what the automaton reads; return how many were made."""
    grammar = Grammar(model, gbnf, 0)
    grammar.mask_work, grammar.automaton.most_work = 10**9, 20_000
    grammar.make_masks_by(lambda *_: model)
    automaton, texts = grammar.automaton, [*model.texts, b""]
    for _ in range(n_answers):
        history, most = [], rng.choice((5, 60))
        while len(history) < most:
            state = grammar._state(history)
            at, bits = automaton.number(state), np.frombuffer(grammar.mask(history), np.uint8)
            wanted = [bool(text) and automaton.read(at, text) >= 0 for text in texts]
            wanted[-1] = () in state[0]
            found = np.unpackbits(bits, bitorder="little")[: len(texts)]
            assert found.tolist() == wanted, (gbnf, history)
            choice = [i for i, one in enumerate(wanted[:-1]) if one]
            if not choice:
                break
            history.append(min(rng.choices(choice, k=2), key=lambda i: len(texts[i])))


def test_masks_of_states_that_differ_by_counts_alone():
    """A mask that was made from another one has what is allowed, and many are made so."""
    asked = []
    for seed in range(250):
        rng = random.Random(seed)
        model = Letters(rng, 80, rng.choice((3, 6, 14)))
        with suppress(InvalidGrammarError):  # too many ways to read a text
            steps_of_masks(model, f'root ::= ({repeats(rng)}) "("', rng, 6)
        asked += model.asked
    assert len(asked) > 1000
    assert sum(n > 0 for n in asked) > 100


def test_a_string_with_a_greatest_length_needs_few_whole_masks():
    model = Letters(random.Random(1), 400, 12)
    grammar = Grammar(model, 'root ::= "(" [ab]{0,100} "("', 0)
    grammar.make_masks_by(lambda *_: model)
    masks, one = [], model.texts.index(b"a")
    for n in range(100):
        masks.append(grammar.mask([model.texts.index(b"("), *[one] * n]))
    assert all(mask is masks[1] for mask in masks[2:85])
    assert masks[99] != masks[1]
    assert sum(n < 3 for n in model.asked) < 6


def test_masks_of_a_draft_end_where_it_leaves_the_grammar(model, make_tree):
    grammar, (a, b, c) = (
        Grammar(model, 'root ::= "ab"* "c"', 1),
        [ids_of(model, c)[0] for c in "abc"],
    )
    grammar.make_masks_by(make_tree)
    alone = [grammar.mask([5, *answer]) for answer in ([], [a], [a, b])]
    assert grammar.masks([5], [a, b]) == alone
    assert grammar.masks([5], []) == alone[:1]
    assert grammar.masks([5], [a, c, a]) == alone[:2]
    assert grammar.masks([5, a], [a]) == alone[1:2]


def test_a_draft_that_takes_too_much_work_does_not_fail_for_the_text(model, make_tree):
    grammar, history = Grammar(model, CAT, 0), ids_of(model, "the")
    grammar.make_masks_by(make_tree)
    grammar.masks([], history)
    fresh = Grammar(model, 'root ::= "t" ("h" | [h-z] | "ha")* "e"', 0)
    usual, fresh.automaton.most_work = fresh.automaton.most_work, 10
    fresh.make_masks_by(make_tree)
    with pytest.raises(InvalidOptionError, match="too many ways"):
        fresh.masks([], history)
    fresh.automaton.most_work = usual
    assert fresh.mask([]) is not None
    fresh.automaton.most_work = 10
    assert fresh.masks([], history) is None


WORDS = 'root ::= ("the" | "cat" " "?)*'


def test_requests_share_what_is_known_of_a_grammar(model, make_tree):
    pieces = token_grammar.pieces_of(model)
    pieces.grammars.clear()
    made = [Grammar(model, gbnf, 0) for gbnf in (WORDS, 'root ::= "a"*', WORDS)]
    first, other, again = (one.automaton.known for one in made)
    assert first is again is not other
    made[0].make_masks_by(make_tree)
    mask = made[0].mask([])
    assert mask is not None
    assert made[2].mask([]) is mask
    # one that is full is replaced for all, and a state keeps its meaning
    history = ids_of(model, "the")
    before = made[2].allowed(history, all_ids(model))
    usual, first.most = first.most, first.cached - 1
    assert (made[2].allowed(history, all_ids(model)) == before).all()
    made[0].allowed(history, all_ids(model))
    assert made[0].automaton.known is made[2].automaton.known is not first
    first.most = usual
    assert Grammar(model, WORDS, 0).automaton.known is first


def test_grammars_that_were_not_used_for_long_are_forgotten(model):
    pieces = token_grammar.Pieces(model)
    pieces.most_known = 20_000
    for n in (1, 2, 3, 4, 1, 5):
        pieces.known(f'root ::= "a"{{{n}}}').cached += 40
    kept = [int(re.search(r"\d", gbnf)[0]) for gbnf in pieces.grammars]
    assert kept == [3, 4, 1, 5]


def test_threads_share_what_is_known(model, make_tree):
    """The masks are those of one thread, also where threads number the same states at once."""
    gbnf = to_gbnf({"type": "array", "items": {"type": "string", "maxLength": 40}})
    answers = [
        ids_of(model, f'["{word * 4}", "{word}'[: 9 + i])
        for i, word in enumerate(["ab", "é", "日x", "q"])
    ]

    def masks(grammar, answer):
        grammar.make_masks_by(make_tree)
        return [grammar.mask(answer[:n]) for n in range(len(answer) + 1)]

    pieces, wanted = token_grammar.pieces_of(model), []
    for answer in answers:
        pieces.grammars.clear()
        wanted.append(masks(Grammar(model, gbnf, 0), answer))
    pieces.grammars.clear()
    grammars = [Grammar(model, gbnf, 0) for _ in answers]
    for one in grammars:
        one.rest_by(lambda: time.sleep(0))
    with ThreadPoolExecutor(len(answers)) as pool:
        assert [*pool.map(masks, grammars, answers)] == wanted
    known = grammars[0].automaton.known
    assert all(one.automaton.known is known for one in grammars)
    assert len({*known.states}) == len(known.states)


class Before:
    """A lock; another thread had it immediately before, and did something once."""

    def __init__(self):
        self.does, self.n_entered = [], 0

    def __enter__(self):
        self.n_entered += 1
        if self.does:
            self.does.pop()()

    def __exit__(self, *_):
        pass


def test_a_state_that_another_thread_numbers_first_has_its_number():
    lock = Before()
    known = Known(lock)
    others = [(frozenset({(i,)}), b"") for i in range(255)]
    for one in others:
        known.number(one)
    states = [(frozenset({(1000 + i,)}), b"") for i in range(2)]
    lock.does.append(lambda: [known.number(one) for one in reversed(states)])
    assert [known.number(one) for one in states] == [256, 255]
    assert known.states == [*others, *reversed(states)]
    assert len(known.addresses) > 256
    assert lock.n_entered > 256


def test_a_row_that_another_thread_adds_first_is_kept():
    """The address that the library reads belongs to the row that stays in memory."""
    lock = Before()
    known = Known(lock)
    mine, theirs = (array("i", [-1]) * 256 for _ in range(2))
    lock.does.append(lambda: known.add_row(0, theirs, 5))
    assert known.add_row(0, mine, 5) is theirs
    assert known.rows[0] == (theirs, 5)
    assert known.addresses[0] == theirs.buffer_info()[0]
    assert lock.n_entered == 2


class Interrupted(list):
    """A list whose first `append` is interrupted by Ctrl-C, before it or behind it."""

    def __init__(self, behind):
        super().__init__()
        self.behind, self.n_appended = behind, 0

    def append(self, one):
        self.n_appended += 1
        if self.n_appended > 1 or self.behind:
            super().append(one)
        if self.n_appended == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("behind", [False, True])
def test_an_interrupt_leaves_no_number_for_two_states(behind):
    known = Known()
    known.states = Interrupted(behind)
    states = [(frozenset({(i,)}), b"") for i in range(3)]
    with pytest.raises(KeyboardInterrupt):
        known.number(states[0])
    numbers = [known.number(one) for one in (states[1], states[0], states[2])]
    assert len(set(numbers)) == 3
    assert [known.states[at] for at in numbers] == [states[1], states[0], states[2]]


def test_an_interrupt_leaves_no_row_without_an_address(model):
    """The library asks for a row as long as its address is 0."""
    gbnf = "root ::= [a-z ]+"
    grammar = Grammar(model, gbnf, 0)
    known, start = grammar.automaton.known, grammar.automaton.number(grammar.automaton.start)
    row = grammar.automaton.row(start)
    known.addresses[start] = 0  # Ctrl-C came between the row and its address
    second = Grammar(model, gbnf, 0)
    assert second.automaton.known is known
    assert second.automaton.row(start) is row
    assert known.addresses[start] == row.buffer_info()[0]


FORK = """
import os, signal
from os import fork
from gguf_spec.grammar.token_grammar import _lock as lock

with lock:
    child = fork()
    if not child:
        signal.alarm(20)  # ends one that waits for ever
        with lock:
            os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_has_no_lock_that_its_parent_held():
    children.run([sys.executable, "-c", FORK], check=True)


def test_an_interrupt_anywhere_in_the_search_for_a_grammar_leaves_no_lock(model):
    """More places than those at which Python handles signals."""
    pieces, way = token_grammar.pieces_of(model), Bytecodes(["grammar/token_grammar.py"])
    search = partial(pieces.known, "root ::= [a-z ]+")
    for place in way.places(search):
        with suppress(KeyboardInterrupt):
            way.run(search, place)
        found = []
        after = threading.Thread(target=lambda: found.append(search()), daemon=True)  # noqa: B023
        after.start()
        after.join(20)
        assert found, described(place)


def test_a_full_memory_has_one_successor():
    lock = Before()
    known, found = Known(lock, 2000), []
    lock.does.append(lambda: found.append(known.next()))
    assert known.next() is found[0]
    assert found[0].most == 2000


@pytest.mark.parametrize("gbnf", ['root ::= [^"\\\\]*', "root ::= .*", "root ::= [à-\\U0010ffff]*"])
def test_characters_that_are_all_allowed_have_few_states(model, make_tree, gbnf):
    grammar = Grammar(model, gbnf, 0)
    grammar.make_masks_by(make_tree)
    assert grammar.mask([]) is not None
    assert len(grammar.automaton.states) < 40


def test_each_character_at_the_bounds_of_a_range():
    """Characters with 1 to 4 bytes, the first and last of each length, and neighbours of the ranges' ends."""
    bounds = [0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF]
    codes = {code + d for code in bounds for d in (-64, -1, 0, 1, 64)} | {
        *range(0x41, 0x10FFFF, 997)
    }
    codes = [code for code in codes if 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF]
    for low in bounds:
        for high in (one for one in bounds if one >= low):
            gbnf = f"root ::= [\\U{low:08x}-\\U{high:08x}]"
            automaton = automaton_module.Automaton(gbnf, int)
            start = automaton.number(automaton.start)
            taken = [code for code in codes if automaton.read(start, chr(code).encode()) >= 0]
            assert taken == [code for code in codes if low <= code <= high]


# ---- positions


def test_the_grammar_applies_to_the_answer_only(model):
    grammar = Grammar(model, 'root ::= "ab"', 3)
    assert (
        texts(model, grammar, [5, 6, 7])
        == texts(model, Grammar(model, 'root ::= "ab"', 0))
        == {b"a", b"ab"} & texts(model, grammar, [5, 6, 7])
    )
    assert b"a" in texts(model, grammar, [5, 6, 7])
    assert texts(model, grammar, [5, 6, 7, *ids_of(model, "a")]) == {b"b"}


def test_a_draft_looks_ahead_and_is_taken_back(model):
    gbnf = 'root ::= ("a" [0-9] | "b" [x-z])*'
    grammar, (a, b, one, x) = Grammar(model, gbnf, 0), [ids_of(model, c)[0] for c in "ab1x"]
    rng = random.Random(0)
    for _ in range(200):
        history = [t for _ in range(rng.randrange(60)) for t in rng.choice([(a, one), (b, x)])]
        history += rng.choice([(), (a,), (b,)])
        fresh = Grammar(model, gbnf, 0)
        probe = np.array([a, b, one, x])
        assert grammar.allowed(history, probe).tolist() == fresh.allowed(history, probe).tolist()
        last = history[-1] if history else None
        assert grammar.allowed(history, probe).tolist() == [
            last not in (a, b),
            last not in (a, b),
            last == a,
            last == b,
        ]


def test_each_state_is_worked_out_once(model):
    accepted = []
    grammar, probe = Grammar(model, "root ::= [a-z]*", 0), np.array([5])
    real = grammar.automaton.after_token

    def after_token(state, token, piece):
        accepted.append(token)
        return real(state, token, piece)

    grammar.automaton.after_token = after_token
    answer = [ids_of(model, c)[0] for c in "abcdefgh"]
    for n in (0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 3):  # a draft, and the target on the same paths
        grammar.allowed(answer[:n], probe)
        grammar.possible(answer[:n])
    assert accepted == answer[:4]
    grammar.allowed([*answer[:3], answer[7]], probe)  # the target wanted something else
    assert accepted == [*answer[:4], answer[7]]
    grammar.allowed(answer[:3], probe)
    assert len(accepted) == 5


def test_a_long_answer_keeps_few_states_and_can_roll_back_far(model):
    grammar, (a, b) = Grammar(model, 'root ::= ("a" "b")*', 0), [ids_of(model, c)[0] for c in "ab"]
    answer = [a, b] * 400
    for n in range(0, 800, 7):
        grammar.allowed(answer[:n], np.array([a]))
        assert len(grammar.states) <= 2 * token_grammar.KEPT
    for n in (800, 3, 4, 650, 2, 799):
        assert grammar.allowed(answer[:n], np.array([a, b])).tolist() == [n % 2 == 0, n % 2 == 1]
        assert 0 in grammar.states
        assert len(grammar.states) <= 3 * token_grammar.KEPT


def test_what_is_kept_for_later_has_a_limit(model):
    grammar, rng, history = (
        Grammar(model, 'root ::= "\\"" [^"]{0,2000} "\\""', 0),
        random.Random(0),
        ids_of(model, '"'),
    )
    grammar.automaton.known.most = 2000
    for _ in range(40):
        allowed = grammar.allowed(history, all_ids(model))
        history.append(
            rng.choice([i for i in np.flatnonzero(allowed).tolist() if b'"' not in model.piece(i)])
        )
        assert len(grammar.automaton.states) < 5000
    assert (
        grammar.allowed(history, all_ids(model))
        == Grammar(model, 'root ::= "\\"" [^"]{0,2000} "\\""', 0).allowed(history, all_ids(model))
    ).all()


WAYS = " | ".join(f'[{a}-z]+ "{b} "' for a in "abcdefgh" for b in "aeiou")
CAT = f"root ::= ({WAYS})+"


def test_work_that_is_cached_counts(model):
    """Refused tokens do not depend on the tokens checked before."""
    history, works = ids_of(model, "the cat"), {}
    for warm in (False, True):
        grammar = Grammar(model, CAT, 0)
        for n in range(len(history)):
            for ids in (np.array(ids_of(model, "abcde")), all_ids(model)) if warm else ():
                grammar.allowed([*history[:n], *ids_of(model, "ea")], ids)
            grammar.allowed(history[:n], all_ids(model))
            works.setdefault(n, []).append(grammar.automaton.work)
    assert all(cold == warm > 500 for cold, warm in works.values())
    grammar = Grammar(model, CAT, 0)
    grammar.allowed([], all_ids(model))
    grammar.automaton.most_work = works[0][0] - 1
    with pytest.raises(InvalidOptionError, match="too many ways"):
        grammar.allowed([], all_ids(model))


@pytest.mark.full
@pytest.mark.parametrize("accept", ["coupled", "rejection", "block"])
def test_a_grammar_near_its_limit_fails_with_drafts_as_without(monkeypatch, accept):
    """Masks of drafts cost work that is not repeated for the target; they may fail without the request."""
    sampling = Sampling(
        temperature=0 if accept != "coupled" else 0.8, seed=3, max_tokens=12, grammar=CAT
    )
    with gguf_spec.load("tales", threads=1, n_ctx=128) as llm:

        def outcome(k):
            try:
                return llm.generate(
                    "The cat", sampling, speculation=Speculation(k, accept=accept, adaptive=False)
                ).text
            except InvalidOptionError:
                return None

        outcomes = []
        for limit in (*range(1000, 40_000, 3000), 10**6):
            monkeypatch.setattr(automaton_module.Automaton, "most_work", limit)
            outcomes.append(outcome(0))
            assert outcome(4) == outcomes[-1], limit
    assert len({*outcomes}) == 2


@pytest.mark.full
def test_a_long_answer_may_be_given_at_once(model):
    grammar, history = (
        Grammar(model, 'root ::= "\\"" [^"]{0,9000} "\\""', 0),
        ids_of(model, '"' + "Tom and Lily " * 300),
    )
    grammar.automaton.most_work = 20_000
    assert b'"' in texts(model, grammar, history) or pytest.fail("the answer cannot end")
    assert grammar.allowed(history, np.array(ids_of(model, "x")))[0]


def test_an_answer_outside_the_grammar(model):
    grammar = Grammar(model, 'root ::= "ab"', 0)
    a, x = ids_of(model, "a")[0], ids_of(model, "x")[0]
    for bad in ([x], [a, x], [a, 0], [1]):
        with pytest.raises(InvalidOptionError, match="the grammar does not allow the token"):
            grammar.allowed(bad, np.array([a]))
        assert grammar.allowed([], np.array([a, x])).tolist() == [True, False]


def test_a_closed_model(gguf_dir):
    model = Context(gguf_dir / "llama.gguf", ContextOptions(64, 1)).weights
    model.close()
    with pytest.raises(ClosedError):
        Grammar(model, 'root ::= "a"', 0)


# ---- what ends, what cannot be seen, what is half


def test_an_end_only_where_the_grammar_is_complete(model):
    grammar = Grammar(model, 'root ::= "a" "b"?', 0)
    ends = np.array([i for i in range(model.n_vocab) if model.is_end(i)])
    a, b = (ids_of(model, c)[0] for c in "ab")
    assert len(ends)
    for history, complete in (([], False), ([a], True), ([a, b], True), ([a, int(ends[0])], True)):
        assert grammar.allowed(history, ends).tolist() == [complete] * len(ends)
        assert grammar.possible(history)[ends].tolist() == [complete] * len(ends)
    assert grammar.allowed([a, int(ends[0])], np.array([b]))[0]  # an end leaves the state as it is


@pytest.mark.parametrize(
    "gbnf", ["root ::= .*", 'root ::= "<|im_start|>" | "<" .*', "root ::= [^x]+ # <|im_start|>"]
)
def test_control_tokens_are_not_text(model, gbnf):
    grammar = Grammar(model, gbnf, 0)
    hidden = [i for i in range(model.n_vocab) if not model.piece(i) and not model.is_end(i)]
    assert hidden
    assert not grammar.allowed([], np.array(hidden)).any()
    assert not grammar.possible([])[hidden].any()
    assert b"<" in texts(model, grammar)


def test_a_grammar_may_name_tokens(model):
    start, x = 1, ids_of(model, "x")[0]
    for name in ("<[1]>", "<|im_start|>"):
        grammar = Grammar(model, f'root ::= "x" {name} "y"', 0)
        assert (
            np.flatnonzero(grammar.allowed([x], all_ids(model))).tolist()
            == np.flatnonzero(grammar.possible([x])).tolist()
            == [start]
        )
        assert texts(model, grammar, [x, start]) == {b"y"}
    grammar = Grammar(model, f"root ::= !<[{x}]>", 0)
    assert grammar.allowed([], np.array([x, x + 1])).tolist() == [False, True]
    assert grammar.possible([]).sum() == model.n_vocab - 1 - sum(
        model.is_end(i) for i in range(model.n_vocab)
    )


def test_a_named_token_in_the_middle_of_another(model):
    token = next(
        i for i in range(model.n_vocab) if len(model.piece(i)) == 2 and model.piece(i)[:1] == b"a"
    )
    grammar = Grammar(model, f'root ::= "a" <[{token}]>', 0)
    assert not grammar.allowed([], np.array([token]))[
        0
    ]  # llama.cpp allows it, and ends the process when it is taken


def test_characters_split_over_tokens(model):
    grammar, data = Grammar(model, 'root ::= [à-ü] "日" [^é]', 0), "ä日ã".encode()
    byte = {model.piece(i): i for i in range(model.n_vocab) if len(model.piece(i)) == 1}
    history = []
    for n, value in enumerate(data):
        allowed = grammar.allowed(history, all_ids(model))
        assert not allowed[[i for i in range(model.n_vocab) if model.is_end(i)]].any()
        assert allowed[byte[bytes([value])]]
        assert not (n == 1 and allowed[byte[b"\xbd"]])  # ý comes after ü
        history.append(byte[bytes([value])])
    assert grammar.allowed(history[:-1], np.array([byte[b"\xa9"], byte[b"\xaa"]])).tolist() == [
        False,
        True,
    ]
    assert [
        i
        for i in np.flatnonzero(grammar.allowed(history, all_ids(model))).tolist()
        if not model.is_end(i)
    ] == []


@pytest.mark.parametrize(
    "bad",
    [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xe0\x80\x80", b"\xf4\x90\x80\x80", b"\x80", b"\0"],
)
def test_bytes_that_are_not_text(model, bad):
    byte = {model.piece(i): i for i in range(model.n_vocab) if len(model.piece(i)) == 1}
    grammar, history = Grammar(model, "root ::= .*", 0), []
    for value in bad:
        token = byte[bytes([value])]
        if not grammar.allowed(history, np.array([token]))[0]:
            return
        history.append(token)
    pytest.fail(f"{bad} was allowed")


# ---- prefill


def test_a_prefill_is_followed(model):
    grammar = Grammar(model, 'root ::= "{\\"ä\\": " ("true" | "false")', 4, '{"ä": t')
    assert texts(model, grammar, [9, 9, 9, 9]) <= {b"r", b"ru", b"rue"}
    assert b"r" in texts(model, grammar, [9, 9, 9, 9])
    assert (
        Grammar(model, 'root ::= "a"', 0, "a")
        .allowed([], np.array([i for i in range(3) if model.is_end(i)]))
        .all()
    )


@pytest.mark.parametrize("prefill", ["x", "abc", "a\ud800"])
def test_a_prefill_that_the_grammar_forbids(model, prefill):
    with pytest.raises(InvalidOptionError, match="prefill is"):
        Grammar(model, 'root ::= "ab"', 0, prefill)


# ---- hostile grammars; nearly each of these ends or stops the process in llama.cpp, or writes to stderr there

REFUSED = {
    "empty": "",
    "no root": 'a ::= "x"',
    "undefined": "root ::= foo",
    "open text": 'root ::= "a',
    "open class": "root ::= [a",
    "half escape": 'root ::= "\\',
    "escape": r'root ::= "\q"',
    "NUL": 'root ::= "a\0b"',
    "surrogate": 'root ::= "\ud800"',
    "open": 'root ::= ("a"',
    "shut": 'root ::= "a")',
    "nested": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "left": 'root ::= root "a" | "b"',
    "itself": "root ::= root",
    "hidden left": 'root ::= a root "x" | "y"\na ::= b\nb ::= "" | "z"',
    "mutual": 'root ::= a "x"\na ::= root "y"',
    "backwards": 'root ::= "a"{5,2}',
    "huge": 'root ::= "a"{' + "9" * 30 + "}",
    "repeats nothing": "root ::= *",
    "long": 'root ::= "' + "a" * 300_000 + '"',
    "token": "root ::= <[999999]>",
    "huge token": "root ::= <[" + "9" * 30 + "]>",
    "two tokens": "root ::= <a b c>",
    "open token": "root ::= <a",
    "nested define": 'root ::= (a ::= "x")',
    "doubling": "\n".join(
        f'{"root" if not i else f"r{i}"} ::= r{i + 1} "x" | r{i + 1} "y"' for i in range(40)
    )
    + '\nr40 ::= "z"',
    "late left": 'root ::= "a" b\nb ::= c b "x" | "y"\nc ::= "d"*',
    "latin": "root ::= \xff",
    "text": "say hello",
    "rule in rule": 'root ::= "a" b ::= "c"',
}


@pytest.mark.few(10)
@pytest.mark.parametrize("gbnf", REFUSED.values(), ids=REFUSED)
def test_a_grammar_that_is_refused(model, capfd, gbnf):
    started = time.process_time()
    with pytest.raises(InvalidOptionError, match="grammar is") as caught:
        Grammar(model, gbnf, 0)
    assert time.process_time() - started < limit_s(5)
    assert len(str(caught.value)) < 500
    assert caught.value.hint
    assert capfd.readouterr() == ("", "")


def test_the_rule_that_can_begin_with_itself_is_named(model):
    with pytest.raises(InvalidOptionError) as caught:
        Grammar(model, 'root ::= "x" | a\na ::= b "y" | "c"\nb ::= "d"? a', 0)
    assert caught.value.reason == "a can begin with itself (left recursion)"


HARD = {
    "repeats": ('root ::= (("a"{1000}){1000}){1000}', "aaa"),
    "far": 'root ::= "a"{0,900000000}',
    "long text": ('root ::= "' + "a" * 200_000 + '"{2000}', "a"),
    "empty": 'root ::= (""*)*',
    "loop": ('root ::= (("a"? | "")*)*', "aa"),
    "optional": ('root ::= ("a"? "a"?){1000}', "aa"),
    "chain": (
        "root ::= r0\n"
        + "\n".join(f"r{i} ::= r{i + 1}" for i in range(15_000))
        + '\nr15000 ::= "a"',
        "a",
    ),
    "stacks": ('root ::= "a" root "b" | "a" root "c" | "x"', "a" * 24),
    "wide": ("root ::= " + " | ".join(f'"a" root "{i}"' for i in range(30)) + ' | "x"', "a" * 9),
    "alternatives": ("root ::= " + " | ".join(['"a"'] * 40_000), "a"),
    "options": ("root ::= " + '"a"? ' * 10_000, "aaa"),
    "nested counts": ("root ::= " + "(" * 90 + '"a"?' + "){5}" * 90, "aa"),
    "empty forever": 'root ::= (""){900000000}',
    "empty class": "root ::= []",
    "mirror": (
        "root ::= "
        + " | ".join(f'"{c}" root "{c}{c}"' for c in "abcdefghijklmnopqrstuvwxyz ")
        + ' | "!"',
        "abc",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("case", HARD.values(), ids=HARD)
def test_an_expensive_grammar_is_refused_soon(model, case):
    gbnf, text = case if isinstance(case, tuple) else (case, "")
    ids, refused = [ids_of(model, c)[0] for c in text], None
    started = time.process_time()
    try:
        grammar = Grammar(model, gbnf, 0)
        for n in range(len(ids) + 1):
            grammar.allowed(ids[:n], all_ids(model))
            grammar.possible(ids[:n])
    except InvalidOptionError as error:
        refused = error
    assert time.process_time() - started < limit_s(10)
    if len(ids) == 24:
        assert "too many ways" in refused.reason


# ---- JSON schemas

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number", "minimum": 0}},
    "required": ["x", "y"],
}
TREE = {
    "$defs": {
        "n": {
            "type": "object",
            "properties": {
                "v": {"type": "null"},
                "k": {"type": "array", "items": {"$ref": "#/$defs/n"}},
            },
            "required": ["v"],
        }
    }
}
FOLLOWED = {
    "any": ({}, lambda v: True),
    "true": (True, lambda v: True),
    "text": ('{"type": "boolean"}', lambda v: isinstance(v, bool)),
    "object": (POINT, lambda v: [*v] == ["x", "y"] and isinstance(v["x"], int) and v["y"] >= 0),
    "optional": (
        {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
        lambda v: [*v] == sorted(v) and not v.keys() - {*"abc"},
    ),
    "extra": (
        {"additionalProperties": {"type": "boolean"}},
        lambda v: all(isinstance(x, bool) for x in v.values()),
    ),
    "required": ({"type": "object", "properties": {}, "required": ["z"]}, lambda v: "z" in v),
    "enum": (
        {"enum": ['a"b\\c\nd', "é☃", "\ud800", 1, None, {"k": [1]}]},
        lambda v: v in ('a"b\\c\nd', "é☃", "\ud800", 1, None, {"k": [1]}),
    ),
    "anyOf": (
        {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
        lambda v: v in (None, True, False),
    ),
    "types": ({"type": ["integer", "null"]}, lambda v: v is None or isinstance(v, int)),
    "types with enum": (
        {"type": ["string", "null"], "enum": ["a", None]},
        lambda v: v in ("a", None),
    ),
    "range": ({"type": "integer", "minimum": -2, "maximum": 3.5}, lambda v: v in range(-2, 4)),
    "array": (
        {"type": "array", "items": {"const": 0}, "minItems": 1, "maxItems": 3},
        lambda v: 1 <= len(v) <= 3 and set(v) == {0},
    ),
    "no items": ({"type": "array", "maxItems": 0}, lambda v: v == []),
    "tuple": (
        {"prefixItems": [{"type": "boolean"}, {"type": "null"}]},
        lambda v: len(v) == 2 and isinstance(v[0], bool) and v[1] is None,
    ),
    "length": ({"type": "string", "minLength": 2, "maxLength": 300}, lambda v: 2 <= len(v) <= 300),
    "pattern": (
        {"pattern": r'^(a|"b){1,3}[^x"]\d$'},
        lambda v: re.fullmatch(r'(a|"b){1,3}[^x"]\d', v),
    ),
    "date": (
        {"type": "string", "format": "date"},
        lambda v: re.fullmatch(r"\d{4}-[01]\d-[0-3]\d", v),
    ),
    "tree": ({**TREE, "$ref": "#/$defs/n"}, lambda v: v["v"] is None),
    "allOf": (
        {"allOf": [POINT, {"properties": {"z": {"type": "null"}}, "required": ["z"]}]},
        lambda v: {*v} == {*"xyz"},
    ),
    "one of all": (
        {"$defs": {"a": {"enum": ["u", "v"]}}, "allOf": [{"$ref": "#/$defs/a"}]},
        lambda v: v in ("u", "v"),
    ),
    "beside": (
        {**POINT, "anyOf": [{"properties": {"q": {"const": 1}}, "required": ["q"]}]},
        lambda v: {*v} == {*"xyq"},
    ),
    "names": (
        {
            "properties": {"string": {"const": 1}, 'a"\n': {"const": 2}, "*": {"const": 3}},
            "required": ["string", 'a"\n', "*"],
        },
        lambda v: len(v) == 3,
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("case", FOLLOWED.values(), ids=FOLLOWED)
def test_random_answers_follow_the_schema(model, case):
    schema, fits = case
    gbnf, whole = to_gbnf(schema), 0
    for seed in range(12):
        grammar = Grammar(model, gbnf, 1)
        ids, ended = walk(model, grammar, random.Random(seed), [7])
        if ended:
            value = json.loads(b"".join(map(model.piece, ids)).decode())
            assert fits(value), value
            whole += 1
    assert whole > 2


def takes(model, schema, text):
    """Return whether a text is a complete answer."""
    try:
        grammar = Grammar(model, to_gbnf(schema), 0, text)
    except InvalidOptionError as error:
        assert error.option == "prefill"
        return False
    return any(
        model.is_end(i) for i in np.flatnonzero(grammar.allowed([], all_ids(model))).tolist()
    )


TEXTS = [
    (
        {"pattern": "a+b"},
        ['"aab"', '"xaby"', '"\\nab"'],
        ['"\nab"', '"ba"', '""', '"ab', '"a\nb"', "ab"],
    ),
    (
        {"pattern": '^(?:x|\\w\\s)[^\\d"]?$'},
        ['"x"', '"a b"', '"_\\t"', '"x\\\\"'],
        ['"x1"', '"x\\""', '"xx1"', '"é "', '" x"'],
    ),
    ({"pattern": '^"\\\\.$'}, [r'"\"\\a"', r'"\"\\\""'], [r'"\"\\\n"', '"""']),
    (
        {"type": "number"},
        ["0", "-1.5", "1e5", "12E-3 "],
        ["01", "1.", ".5", "+1", "1e", "--1", "NaN"],
    ),
    ({"type": "number", "minimum": 0}, ["0", "1.5"], ["-1"]),
    ({"type": "string"}, ['"\\u00e9é"', '""', '"/"'], ['"\t"', '"\\x"', '"\\u00g0"', '"a', "'a'"]),
    (
        {},
        ['{"a": [1, {"b": null}]}', "[]", "true", '"x"', "-0.5"],
        ["{a: 1}", "[1,]", "nul", "undefined", ""],
    ),
    ({"type": "object"}, ["{}", '{"a": 1}'], ["[]", '{"a"}']),
    ({"const": "a\\"}, ['"a\\\\"'], ['"a\\"', '"a"']),
    (
        {"format": "date-time"},
        ['"2024-02-29T23:59:59Z"', '"2024-12-01T00:00:00.123+01:00"'],
        ['"2024-13-01T00:00:00Z"', '"2024-12-01"'],
    ),
    (
        {"format": "uuid"},
        ['"123e4567-e89b-12d3-a456-426614174000"'],
        ['"123e4567e89b12d3a456426614174000"'],
    ),
    ({"type": "array", "items": False}, ["[]"], ["[1]"]),
    (
        {"type": "array", "items": {}, "minItems": 2},
        ['[1, "a"]', "[[], {}, null]"],
        ["[]", "[1]", "[1,2,]"],
    ),
    ({"anyOf": [{"type": "null"}, False]}, ["null"], ["true"]),
]


@pytest.mark.parametrize(("schema", "good", "bad"), TEXTS)
def test_texts_that_fit_a_schema_and_texts_that_do_not(model, schema, good, bad):
    assert [text for text in good if not takes(model, schema, text)] == []
    assert [text for text in bad if takes(model, schema, text)] == []
    for text in good:
        json.loads(text)


def fits(schema, text, _made={}):  # noqa: B006 - made once for each schema
    """Return whether a text is a complete answer, without a model."""
    key = json.dumps(schema)
    automaton = (
        _made[key]
        if key in _made
        else _made.setdefault(key, automaton_module.Automaton(to_gbnf(schema), int))
    )
    automaton.reset_budget()
    at = automaton.read(automaton.number(automaton.start), text.encode())
    return at >= 0 and () in automaton.states[at][0]


INT, A = {"type": "integer"}, {"properties": {"a": {"type": "integer"}}}
STRICT = [
    ({**A, "additionalProperties": True}, ['{"a":1}', '{"b":"x","a1":[],"":0}', '{"é":1}'], ['{"a":"x"}', '{"b":1,"a":"x"}', r'{"\u0061":"x"}']),
    ({**A, "additionalProperties": True, "required": ["a"]}, ['{"a":1}', '{"a":1,"aa":"x"}'], ['{"a":1,"a":"x"}', '{"a":1,"b":0,"a":"x"}', "{}"]),
    ({**A, "additionalProperties": INT, "required": ["z"]}, ['{"z":1,"a":2,"y":3}'], ['{"z":"x"}', '{"z":1,"z":2}', '{"z":1,"y":"x"}']),
    ({"properties": {"a": False, "": INT, "-]": INT, "a\u200b": INT}, "additionalProperties": {}}, ['{"b":"x","-":"x","ab":"x"}'],
     ['{"a":1}', '{"":"x"}', '{"-]":"x"}', '{"a\u200b":"x"}']),
    ({"type": "object", "additionalProperties": False}, ["{}"], ['{"a":1}']),
    ({"type": "object", "minProperties": 1, "maxProperties": 2, "required": ["a"], "properties": {"b": INT}}, ['{"a":1}', '{"a":1,"b":2}'], ["{}"]),
    ({**INT, "exclusiveMinimum": 0, "exclusiveMaximum": 5}, ["1", "4"], ["-77", "0", "5", "-0", "10"]),
    ({**INT, "minimum": -2.5, "exclusiveMaximum": 1.5, "multipleOf": 1}, ["-2", "1", "0"], ["-3", "2"]),
    ({"type": "number", "maximum": -1}, ["-1", "-1.0", "-1.5", "-20"], ["5", "0", "-0.5", "1", "-0.999"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.5", "1", "1.00"], ["1.01", "-0.1", "2", "10", "1e5", "0.5e9"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.1", "7", "12.5"], ["0", "0.0", "-1", "0e5"]),
    ({"type": "number", "exclusiveMinimum": -3, "exclusiveMaximum": 2}, ["-2.99", "1.99", "0"], ["-3", "-3.0", "2", "2.0", "1.9999999999999999"]),
    ({"type": "number", "maximum": 0}, ["0", "-1e5", "-0.5"], ["1", "0.5", "1e-5"]),
    ({"minimum": 3}, ["3", "4.5"], ["2", '"x"']),
    ({"allOf": [{"type": "string", "minLength": 3}, {"minLength": 1, "maxLength": 9}, {"maxLength": 4}]}, ['"abc"', '"abcd"'], ['"ab"', '"abcde"']),
    ({"allOf": [{"type": "integer", "minimum": 3, "maximum": 7}, {"minimum": 1, "maximum": 5}]}, ["3", "5"], ["1", "7", "2", "6"]),
    ({"allOf": [{"enum": [1, 2, True]}, {"enum": [2, 3, 1.0]}]}, ["1", "2"], ["3", "true"]),
    ({"allOf": [{"enum": [1, 2]}, {"const": 2}]}, ["2"], ["1"]),
    ({"const": 1, "enum": [1, 2]}, ["1"], ["2"]),
    ({"allOf": [{"type": ["string", "number"]}, {"type": ["integer", "null"]}]}, ["1"], ["1.5", "null", '"x"']),
    ({"allOf": [{"type": "array", "minItems": 2, "items": INT}, {"minItems": 1, "items": {"minimum": 3}}]}, ["[3,4]"], ["[3]", "[2,3]"]),
    ({"allOf": [{"properties": {"a": INT}, "required": ["a"]}, {"properties": {"a": {"minimum": 5}, "b": INT}, "required": ["b"]}]},
     ['{"a":5,"b":1}'], ['{"a":4,"b":1}', '{"a":5}', '{"b":5}']),
    ({"allOf": [{**A, "additionalProperties": False}, {"properties": {"b": INT}}]}, ["{}", '{"a":1}'], ['{"b":1}', '{"a":1,"b":1}']),
    ({"allOf": [{**A, "additionalProperties": {"maximum": 5}}, {"properties": {"b": INT}}]}, ['{"a":9,"b":5}'], ['{"b":6}', '{"b":1.5}']),
    ({"$defs": {"s": {"type": "string", "maxLength": 3}}, "$ref": "#/$defs/s", "minLength": 2, "title": "x"}, ['"ab"'], ['"a"', '"abcd"']),
    ({"$defs": {"s": INT}, "items": {"$ref": "#/$defs/s", "maximum": 3, "minimum": 1}}, ["[1,3]", "[]"], ["[4]", "[0]"]),
    ({"$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a", "type": ["object", "null"], "required": ["x"]}}, "type": ["object", "null"]}},
      "$ref": "#/$defs/a"}, ["{}", '{"x":null}', '{"x":{"x":null}}'], ['{"x":{}}', '{"x":1}']),
    ({"prefixItems": [INT], "items": INT, "minItems": 3}, ["[1,2,3]", "[1,2,3,4]"], ["[1]", "[1,2]"]),
    ({"items": [INT], "maxItems": 0}, ["[]"], ["[1]"]),
    ({"items": [INT, {"type": "null"}], "additionalItems": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
     ["[1]", "[1,null]", "[1,null,true]"], ["[]", "[1,2]", "[1,null,3]", "[1,null,true,true]"]),
    ({"prefixItems": [INT, False], "minItems": 0}, ["[]", "[1]"], ["[1,1]"]),
    ({"prefixItems": [INT], "minItems": 2}, ['[1,"x"]', "[1,2,3]"], ["[1]", '["x",1]']),
    ({"enum": [1, 2, "a", True, 1.5], "type": "string"}, ['"a"'], ["1", "2", "true"]),
    ({"enum": [1, 2, "a", True, 1.5], "type": "integer", "minimum": 2}, ["2"], ["1", "true", "1.5", '"a"']),
    ({"enum": ["", "a", "abc"], "minLength": 1, "maxLength": 2}, ['"a"'], ['""', '"abc"']),
    ({"type": "string", "pattern": "^a+$", "minLength": 0}, ['"aa"'], ['"b"']),
    ({"type": "string", "format": "email", "maxLength": 7}, ['"a@b.c"'], ['"abc"', '"abcd@ef.gh"']),
    ({"type": "array", "uniqueItems": False}, ["[1,1]"], ["1"]),
    ({"type": "object", "propertyNames": {"type": "string"}, "patternProperties": {}, "minProperties": 0}, ['{"a":1}'], ["1"]),
    ({"type": "string", "maxLength": 1}, [r'"\u00e9"', r'"\ud7ff"', r'"\uE000"', '"😀"'], [r'"\ud83d\ude00"', r'"\ud800"', r'"\uDfFf"', '"ab"']),
    ({}, [r'["\u0041"]'], [r'["\ud800"]', r'{"\udead":1}']),
    ({"oneOf": [INT, {"const": "one"}], "description": "both", "x-unknown": [1], "deprecated": True, "readOnly": True}, ["1", "7", '"one"'], ['"x"']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), STRICT)
def test_no_text_is_of_another_schema(schema, good, bad):
    assert [text for text in good if not fits(schema, text)] == []
    assert [text for text in bad if fits(schema, text)] == []
    for text in good:
        json.loads(text)


@pytest.mark.full
def test_ranges_of_integers():
    rng = random.Random(0)
    for _ in range(150):
        size = 10 ** rng.randrange(1, 20)
        low, high = sorted(rng.randrange(-size, size) for _ in range(2))
        high = rng.choice([high, low, low + rng.randrange(300)])
        open_low, open_high, sides = (
            rng.random() < 0.3 and low < high - 1,
            rng.random() < 0.3 and low < high - 1,
            rng.randrange(4),
        )
        schema = {"type": "integer"}
        if sides != 1:
            schema["exclusiveMinimum" if open_low else "minimum"] = low
        if sides != 2:
            schema["exclusiveMaximum" if open_high else "maximum"] = high
        near = {
            bound + n for bound in (low, high, 0, low // 10, high // 10) for n in range(-12, 13)
        }
        near |= {10**n + d for n in range(15) for d in (-1, 0)} | {
            -(10**n) + d for n in range(15) for d in (1, 0)
        }
        near |= {rng.randrange(low, high + 1) for _ in range(30)}
        for n in near:
            if (sides == 1 and n <= -(10**16)) or (sides == 2 and n >= 10**16):
                continue  # without a bound there are 16 digits
            inside = (sides == 1 or n >= low + open_low) and (sides == 2 or n <= high - open_high)
            assert fits(schema, str(n)) == inside, (schema, n)
            assert not fits(schema, f"0{n}")


@pytest.mark.full
def test_ranges_of_numbers():
    rng = random.Random(1)
    for _ in range(150):
        low, high = sorted(rng.randrange(-30, 30) for _ in range(2))
        schema, keys = (
            {"type": "number"},
            (
                rng.choice(["minimum", "exclusiveMinimum", ""]),
                rng.choice(["maximum", "exclusiveMaximum", ""]),
            ),
        )
        if low == high and any("exclusive" in key for key in keys):
            continue
        schema.update({key: bound for key, bound in zip(keys, (low, high), strict=True) if key})
        for tenth in range(-400, 400):
            n, text = tenth / 10, f"{tenth / 10:.1f}"
            above = {"minimum": n >= low, "exclusiveMinimum": n > low, "": True}[keys[0]]
            inside = (
                above and {"maximum": n <= high, "exclusiveMaximum": n < high, "": True}[keys[1]]
            )
            assert fits(schema, text) == inside, (schema, text)


def test_a_schema_still_forbids(model):
    grammar = Grammar(model, to_gbnf(POINT), 0)
    assert texts(model, grammar) == {p for p in texts(model, grammar) if p[:1] == b"{"} != set()
    assert b"\n" not in texts(
        model, Grammar(model, to_gbnf({"type": "string"}), 0), ids_of(model, '"')
    )


def nested(n, inner):
    for _ in range(n):
        inner = {"type": "array", "items": inner}
    return inner


def doubled(n):
    schema = {"type": "string"}
    for _ in range(n):
        schema = {
            "type": "object",
            "properties": {"a": schema},
            "anyOf": [{"required": ["a"]}, {"minimum": 1}],
        }
    return schema


CIRCLE: dict = {}
CIRCLE["items"] = CIRCLE
NO_SCHEMA = {
    "no JSON": "{",
    "list": "[]",
    "number": "5",
    "None": None,
    "type": {"type": 5},
    "unknown type": {"type": "text"},
    "false": False,
    "set": {"const": {1}},
    "deep": nested(3000, {}),
    "deep text": "[" * 100_000,
    "circle": CIRCLE,
    "doubled": doubled(30),
    "long": '"' + "x" * 300_000 + '"',
    "NaN": '{"const": NaN}',
    "remote": {"$ref": "https://example.com/x.json"},
    "remote inside": {"properties": {"a": {"items": {"$ref": "http://example.com"}}}},
    "file": {"$ref": "file:///etc/passwd"},
    "relative": {"$ref": "x.json"},
    "nowhere": {"$ref": "#/$defs/x"},
    "ref number": {"$ref": 5},
    "itself": {"$ref": "#"},
    "ring": {
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
        "$ref": "#/$defs/a",
    },
    "all of itself": {"allOf": [{"$ref": "#"}, {"type": "null"}]},
    "lookbehind": {"pattern": "(?<=a)b"},
    "open pattern": {"pattern": "("},
    "deep pattern": {"pattern": "(" * 3000 + ")" * 3000},
    "flags": {"pattern": "(?i)a"},
    "far pattern": {"pattern": "^a{0,1000000000000}$"},
    "inner anchor": {"pattern": "(a^b)*"},
    "pattern number": {"type": "string", "pattern": 5},
    "far": {"type": "string", "minLength": 10**12},
    "backwards": {"type": "array", "minItems": 3, "maxItems": 1},
    "negative": {"type": "string", "minLength": -1},
    "no enum": {"enum": []},
    "no anyOf": {"anyOf": []},
    "no types": {"type": []},
    "bad types": {"type": ["string", 5]},
    "properties": {"properties": []},
    "forbidden": {"properties": {"a": False}, "required": ["a"]},
    "bound": {"type": "integer", "minimum": "x"},
    "no number": {"type": "integer", "minimum": 1.2, "maximum": 1.5},
    "digits": '{"const": ' + "9" * 5000 + "}",
    "items": {"type": "array", "items": 5},
}
REFUSED_KEYWORDS = [
    ("1e999", '{"const": 1e999}'),
    ("1e999", '{"enum": [1, -1e999]}'),
    ("", {"const": math.inf}),
    ("", {"enum": [math.nan]}),
    ("minimum", {"type": "integer", "exclusiveMinimum": 3, "maximum": 3}),
    ("maximum", {"type": "number", "minimum": 3, "exclusiveMaximum": 3}),
    ("minimum", {"type": "integer", "minimum": 10**200}),
    ("enum", {"allOf": [{"enum": [1]}, {"enum": [True]}]}),
    ("enum", {"const": 1, "enum": [2]}),
    ("type", {"allOf": [{"type": "string"}, {"type": "integer"}]}),
    ("enum", {"allOf": [{"anyOf": [{"const": 1}]}, {"anyOf": [{"const": True}]}]}),
    ("items", {"allOf": [{"prefixItems": [INT]}, {"items": {"type": "string"}}]}),
    (
        "allows no value",
        {
            "allOf": [
                {"properties": {"a": INT}, "additionalProperties": False},
                {"items": False, "not": True},
                False,
            ]
        },
    ),
    ("forbidden", {**A, "additionalProperties": False, "required": ["z"]}),
    ("at least", {"prefixItems": [INT], "items": False, "minItems": 2}),
    ("enum", {"enum": [1, 2], "type": "string"}),
    ("required", {"enum": [{}], "required": ["a"]}),
    ("format", {"format": "date", "minLength": 30}),
    ("contains", {"type": "array", "contains": INT}),
    ("dependentRequired", {"dependentRequired": {"a": ["b"]}}),
    ("dependentSchemas", {"dependentSchemas": {"a": {}}}),
    ("dependencies", {"dependencies": {"a": ["b"]}}),
    ("if", {"if": INT, "then": {"minimum": 1}}),
    ("uniqueItems", {"type": "array", "uniqueItems": True}),
    ("$dynamicRef", {"$dynamicRef": "#a"}),
    ("oneOf", {"oneOf": [INT, {"minimum": 2}]}),
    ("multipleOf", {"type": "integer", "multipleOf": 1000003}),
    ("patternProperties", {"patternProperties": {"^a": INT, "b": INT}}),
    ("propertyNames", {**A, "propertyNames": {"maxLength": 3}}),
    ("not", {"not": {"minLength": 3}}),
    ("format", {"type": "string", "format": "iri"}),
]


@pytest.mark.parametrize(("keyword", "schema"), REFUSED_KEYWORDS)
def test_a_keyword_that_is_not_followed_is_named(keyword, schema):
    with pytest.raises(InvalidOptionError, match=r"json_schema (is|cannot be used)") as caught:
        to_gbnf(schema)
    assert keyword in caught.value.reason


@pytest.mark.few(15)
@pytest.mark.parametrize("schema", NO_SCHEMA.values(), ids=NO_SCHEMA)
def test_a_schema_that_is_refused(schema, monkeypatch):
    monkeypatch.setattr("socket.socket", None)
    started = time.process_time()
    with pytest.raises(InvalidOptionError, match=r"json_schema (is|cannot be used)") as caught:
        to_gbnf(schema)
    assert time.process_time() - started < limit_s(5)
    assert len(str(caught.value)) < 500
    assert caught.value.hint


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "maxLength": 10**8},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**8},
    ],
)
def test_far_bounds_cost_nothing(model, schema):
    gbnf = to_gbnf(schema)
    assert len(gbnf) < 2000
    assert texts(model, Grammar(model, gbnf, 0))


def test_many_properties(model):
    names = [f"p{i}" for i in range(1000)]
    for required in ([], names):
        grammar = Grammar(
            model,
            to_gbnf({"properties": {name: {"const": 1} for name in names}, "required": required}),
            0,
        )
        assert b'"' in {p.strip() for p in texts(model, grammar, ids_of(model, "{"))}


def test_another_vocabulary(gguf_dir):
    model = Context(gguf_dir / "llama.gguf", ContextOptions(64, 1)).weights
    grammar = Grammar(model, 'root ::= "the" [^a]* <|im_end|> "x"', 0)
    the = tiny.TOKENS.index("the")
    assert grammar.allowed([], np.array([the, tiny.IM_START, tiny.END])).tolist() == [
        True,
        False,
        False,
    ]
    assert math.isclose(grammar.possible([the]).sum(), model.n_vocab - 4, abs_tol=80)
    model.close()
