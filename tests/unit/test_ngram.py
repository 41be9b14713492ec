"""Drafts from the text itself, by examples made by hand."""

import pytest

from gguf_spec.speculative.drafters import NgramDrafter, RetryDrafter, SuffixAutomaton
from tests.support.fakes import proposed

NO_ROWS = None


def letters(text):
    return [ord(letter) for letter in text]


def said(tokens):
    return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("text", "drafted"),
    [
        ("the cat sat. the c", "at sat. "),  # a copy
        ("abcabcab", "cabcabca"),  # a repetition goes on and on
        ("aaaa", "aaaaaaaa"),
        ("abcdefgh", ""),  # nothing came twice
        ("", ""),
        ("a", ""),
        ("one two one tw", "o one tw"),
    ],
)
def test_what_followed_before_is_proposed(text, drafted):
    assert said(proposed(NgramDrafter(), letters(text))) == drafted


def test_the_longest_match_decides():
    """`b` was mostly followed by `x`, but `ab` by `c`."""
    assert said(proposed(NgramDrafter(), letters("zbxzbxzbxabcdab"), 1)) == "c"
    assert said(proposed(NgramDrafter(), letters("zbxzbxzbxabcdzzb"), 1)) == "x"


def test_of_the_same_match_what_followed_most_often():
    assert said(proposed(NgramDrafter(), letters("abc.abd,abc;ab"), 1)) == "c"


def test_a_text_that_grows_is_read_once_and_drafts_leave_no_trace():
    drafter = NgramDrafter()
    text = letters("the cat sat. the ")
    proposed(drafter, text)
    assert drafter._own.n_tokens == len(text)
    text += letters("dog sat. the d")
    assert said(proposed(drafter, text)) == "og sat. "
    assert drafter._own.n_tokens == len(text)


def test_it_follows_what_another_proposed():
    drafter = NgramDrafter()
    drafter.begin(letters("one two three four on"))
    for letter in "e t":
        drafter.follow(ord(letter))
    assert chr(drafter.propose().token) == "w"
    drafter.follow(ord("h"))  # after `e th` comes what followed ` th`
    assert chr(drafter.propose().token) == "r"
    drafter.follow(ord("Z"))
    assert drafter.propose() is None


def reference(text):
    suffixes = SuffixAutomaton()
    suffixes.extend(letters(text))
    return suffixes


def test_a_text_beside_the_request_is_proposed_from_and_not_changed():
    known = reference("All happy families are alike.")
    before = known.n_tokens
    assert said(proposed(NgramDrafter(known), letters("They say: All happy f"), 9)) == "amilies a"
    assert said(proposed(NgramDrafter(known), letters("All hap"), 30)) == "py families are alike."
    assert known.n_tokens == before


def test_the_text_with_the_longer_match_is_proposed_from():
    known = reference("abcdeX")
    assert said(proposed(NgramDrafter(known), letters("cdeY abcde"), 1)) == "X"
    assert said(proposed(NgramDrafter(known), letters("zabcdeY zabcde"), 1)) == "Y"


def test_the_end_of_the_reference_is_not_the_end_of_drafts():
    """Where the reference has nothing to follow, its shorter ends may."""
    assert said(proposed(NgramDrafter(reference("ab ab")), letters("xx ab"), 3)) == " ab"


def test_longer_and_clearer_matches_have_a_higher_confidence():
    def confidence(text):
        drafter = NgramDrafter()
        drafter.begin(letters(text))
        return drafter.propose().kind[1]

    lengths = [
        confidence("." + text + "!" + text)
        for text in ("a", "ab", "abc", "abcdef", "abcdefghijkl", "abcdefghijklmnopqrst")
    ]
    assert lengths == sorted(set(lengths))
    assert (
        confidence("abc.abd,ab")
        < confidence("abc.ab")
        < confidence("abc.abc,abd;ab")
        < confidence("abc.abc,ab")
    )
    priors = NgramDrafter.priors
    assert all(0 < prior < 1 for prior in priors)
    assert max(lengths) < len(priors)


def test_every_confidence_has_a_prior():
    from gguf_spec.speculative.drafters.ngram import _bucket

    buckets = {
        _bucket(length, most, total)
        for length in range(1, 60)
        for total in range(1, 9)
        for most in range(1, total + 1)
    }
    assert buckets == set(range(len(NgramDrafter.priors)))


# ---- a draft that went wrong


def after(drafted, new, text="."):
    """A retry drafter whose last draft, after `text`, was `drafted`, where the target said `new`; and all tokens now."""
    drafter, tokens = RetryDrafter(), letters(text)
    drafter.begin(tokens)
    for letter in drafted:
        drafter.follow(ord(letter))
    drafter.learn(len(tokens), letters(new), NO_ROWS)
    return drafter, tokens + letters(new)


def test_one_wrong_token_is_replaced_and_the_rest_proposed_again():
    drafter, tokens = after("the cat sat", "the b")
    assert said(proposed(drafter, tokens)) == "at sat"


def test_tokens_that_were_too_many_are_skipped():
    drafter, tokens = after("the big cat sat", "the c")
    assert said(proposed(drafter, tokens)) == "at sat"


def test_nothing_is_proposed_again_where_nothing_was_wrong():
    for drafted, new in (("the", "the "), ("", "a"), ("the", "thx"), ("the", "th")):
        drafter, tokens = after(drafted, new)
        assert proposed(drafter, tokens) == []


def test_a_draft_continues_in_the_next_round_while_the_text_agrees():
    drafter, tokens = after("the cat sat on it", "the b")
    drafter.begin(tokens)
    for letter in "at":
        drafter.follow(ord(letter))
    new = letters("at ")
    drafter.learn(len(tokens), new, NO_ROWS)
    assert said(proposed(drafter, tokens + new)) == "sat on i"


def test_a_draft_is_dropped_when_the_text_differs():
    drafter, tokens = after("the cat sat on it", "the b")
    assert proposed(drafter, [*tokens, ord("Z")]) == []
    drafter, tokens = after("the cat sat on it", "the b")
    drafter.begin(tokens)
    drafter.follow(ord("Z"))  # what another drafter proposed in its place
    assert drafter.propose() is None


def test_a_longer_right_draft_has_a_higher_confidence():
    drafter, tokens = after("the cat sat on it", "the b")
    confidence = []
    drafter.begin(tokens)
    for letter in "at sat":
        confidence.append(drafter.propose().kind[1])
        drafter.follow(ord(letter))
    assert confidence == sorted(confidence)
    assert confidence[0] < confidence[1] < confidence[-1] < len(RetryDrafter.priors)
    skipping, tokens = after("the big cat sat", "the c")
    skipping.begin(tokens)
    assert skipping.propose().kind[1] != confidence[0]


def test_a_draft_that_is_wrong_again_replaces_the_rest():
    drafter, tokens = after("abcdefgh", "x")
    assert said(proposed(drafter, tokens)) == "bcdefgh"
    drafter.learn(len(tokens), letters("by"), NO_ROWS)
    assert said(proposed(drafter, tokens + letters("by"))) == "defgh"


def test_a_round_without_a_draft_is_not_taken_for_the_end_of_the_last_draft():
    drafter, tokens = after("zebra ran fast", "zebra b")
    drafter.learn(len(tokens), letters("a"), NO_ROWS)
    assert said(proposed(drafter, tokens + letters("a"))) == "n fast"
