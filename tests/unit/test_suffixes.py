"""The suffix automaton against brute force: the longest end that was there before, and what followed it."""

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from gguf_spec.speculative.drafters import SuffixAutomaton

texts = st.lists(st.integers(0, 2), max_size=40) | st.lists(st.integers(0, 9), max_size=60)
repetitive = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=6),
    st.integers(1, 8),
    st.lists(st.integers(0, 3), max_size=5),
).map(lambda parts: parts[0] * parts[1] + parts[2] + parts[0])
any_text = texts | repetitive


def automaton(tokens):
    suffixes = SuffixAutomaton()
    suffixes.extend(tokens)
    return suffixes


def ends_of(part, text):
    """Where `part` ends in `text`: the indices behind it."""
    return [i for i in range(len(part), len(text) + 1) if text[i - len(part) : i] == part]


def longest_end_from_before(text):
    return next(
        (n for n in range(len(text) - 1, 0, -1) if len(ends_of(text[len(text) - n :], text)) > 1), 0
    )


def followers(part, text):
    return Counter(text[i] for i in ends_of(part, text) if i < len(text))


def is_known_follower(suffixes, state, part, text):
    """Counts of a state against all tokens that followed `part`: never larger, and not empty where there were some."""
    followed, true = suffixes.follow(state), followers(part, text)
    if followed is None:
        return not true
    token, most, total = followed
    return 1 <= most <= true[token] and most <= total <= sum(true.values())


@given(any_text)
@example([0] * 30)
@example([0, 1] * 15)
def test_the_longest_end_that_was_there_before_and_all_shorter_ones(text):
    suffixes = automaton(text)
    length = longest_end_from_before(text)
    assert suffixes.length(suffixes.state) == length
    state = suffixes.state
    while state > 0:
        part = text[len(text) - suffixes.length(state) :]
        assert is_known_follower(suffixes, state, part, text)
        longer, state = part, suffixes.shorter(state)
        # the next one occurs in more places, and no longer one than it does
        n_places = len(ends_of(longer, text))
        assert len(ends_of(longer[len(longer) - suffixes.length(state) :], text)) > n_places
        for n in range(suffixes.length(state) + 1, len(longer)):
            assert len(ends_of(longer[len(longer) - n :], text)) == n_places


@given(any_text, any_text)
def test_another_text_finds_its_longest_known_suffix(text, other):
    suffixes = automaton(text)
    state, length = 0, 0
    for i, token in enumerate(other):
        state, length = suffixes.step(state, length, token)
        said = other[: i + 1]
        assert length == next(
            (n for n in range(len(said), 0, -1) if ends_of(said[len(said) - n :], text)), 0
        )
        if length:
            assert is_known_follower(suffixes, state, said[len(said) - length :], text)


@given(st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=8))
def test_the_parts_of_a_text_do_not_matter(parts):
    together, one_by_one = automaton([token for part in parts for token in part]), SuffixAutomaton()
    for part in parts:
        one_by_one.extend(part)
    assert vars(together) == vars(one_by_one)


def depth(suffixes):
    n, state = 0, suffixes.state
    while state >= 0:
        n, state = n + 1, suffixes.shorter(state)
    return n


@given(any_text)
@example([0, 1, 2, 0, 1, 2, 3, 1])
def test_counts_are_those_of_the_text_where_no_end_has_more_than_four_contexts(text):
    """The longest four are counted; more would not be the same for each token."""
    suffixes = SuffixAutomaton()
    for token in text:
        suffixes.extend([token])
        if depth(suffixes) > 4:
            return
    if depth(suffixes) > 1:
        part = text[len(text) - suffixes.length(suffixes.state) :]
        true = followers(part, text)
        token, most, total = suffixes.follow(suffixes.state)
        assert (most, total) == (max(true.values()), sum(true.values()))
        assert true[token] == most


@given(any_text)
def test_it_grows_by_two_states_a_token_at_most(text):
    assert len(automaton(text)._next) <= 2 * len(text) + 1


def test_a_long_text_is_read_in_time_that_grows_with_it():
    """The number of steps along links: also for repetitive texts only a few for each token."""

    class Counting(list):
        n = 0

        def __getitem__(self, i):
            Counting.n += 1
            return super().__getitem__(i)

    for text in (
        [0] * 4000,
        [0, 1] * 2000,
        ([0] * 50 + [1]) * 80,
        [(i * i) % 7 for i in range(4000)],
    ):
        suffixes = SuffixAutomaton()
        suffixes._link = Counting([-1])
        Counting.n = 0
        suffixes.extend(text)
        assert Counting.n < 12 * len(text)


def test_of_equally_frequent_tokens_the_last_one_is_proposed():
    assert automaton([1, 2, 7, 1, 2, 8, 1, 2]).follow(
        automaton([1, 2, 7, 1, 2, 8, 1, 2]).state
    ) == (8, 1, 2)
    suffixes = automaton([1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2])
    assert suffixes.follow(suffixes.state) == (7, 2, 3)


def test_an_empty_text_has_no_continuations():
    suffixes = SuffixAutomaton()
    assert (
        suffixes.state,
        suffixes.length(suffixes.state),
        suffixes.follow(0),
        suffixes.step(0, 0, 5),
    ) == (0, 0, None, (0, 0))
