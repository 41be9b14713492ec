import pytest

from gguf_spec.text.detokenizer import TextStream


def run(pieces, stop=()):
    stream = TextStream(stop)
    shown = [stream.push(piece) for piece in pieces]
    return shown, stream.finish(), stream.stopped


def test_half_a_character_waits_for_the_other_half():
    assert run([b"a\xc3", b"\xa4b"]) == (["a", "äb"], "", False)
    assert run([b"\xf0", b"\x9f", b"\x8e", b"\x89"]) == (["", "", "", "🎉"], "", False)


def test_half_a_character_at_the_end_is_left_out():
    assert run([b"ab", b"\xe6\x97"]) == (["ab", ""], "", False)


def test_bytes_that_are_no_text_show_as_replacement():
    assert run([b"a\xffb"]) == (["a\ufffdb"], "", False)
    assert run([b"\xc3", b"b"]) == (["", "\ufffdb"], "", False)


def test_what_may_become_a_stop_string_is_held_back():
    assert run([b"one E", b"N", b"D two"], ["END"]) == (["one ", "", ""], "", True)
    assert run([b"one E", b"N", b"X two"], ["END"]) == (["one ", "", "ENX two"], "", False)


def test_text_that_was_held_back_is_emitted_at_the_end():
    assert run([b"one EN"], ["END"]) == (["one "], "EN", False)


@pytest.mark.parametrize("n", [2, 8, 9, 30, 256])
def test_all_but_the_last_character_of_a_stop_string_is_held_back(n):
    stop = "".join(chr(ord("a") + i % 26) for i in range(n))
    pieces = [letter.encode() for letter in "." + stop]
    assert run(pieces, [stop]) == ([".", *[""] * n], "", True)
    assert run([*pieces[:-1], b"!"], [stop]) == (
        [".", *[""] * (n - 1), stop[:-1] + "!"],
        "",
        False,
    )


def test_which_stop_string_it_was():
    for stop, text in ((["b", "abc"], "b"), (["cd", "bcd", "d"], "bcd"), (["x"], None)):
        for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"]):
            stream = TextStream(stop)
            for piece in pieces:
                stream.push(piece)
            assert stream.stop_string == text


def test_no_text_after_a_stop_string():
    assert run([b"a.", b"b", b"."], ["."]) == (["a", "", ""], "", True)


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (["b"], "a"),
        (["b", "abc"], "a"),
        (["abcd", "cd"], ""),
        (["abcd", "bc"], "a"),
        (["cd", "bcd"], "a"),
        (["ä"], "abcd"),
        (["abcde"], "abcd"),
    ],
)
def test_the_stop_string_that_is_complete_first_counts(stop, text):
    for pieces in ([b"abcd"], [b"a", b"b", b"c", b"d"], [b"ab", b"cd"]):
        shown, rest, _ = run(pieces, stop)
        assert "".join(shown) + rest == text


def test_overlapping_starts():
    assert run([b"aaab"], ["aab"]) == (["a"], "", True)
    assert run([b"aa", b"aa"], ["aab"]) == (["", "aa"], "aa", False)


def test_a_stop_string_over_a_split_character():
    assert run([b"x\xe6\x97", b"\xa5\xe6\x9c\xac"], ["日本"]) == (["x", ""], "", True)


def test_an_empty_piece_changes_nothing():
    assert run([b"", b"a", b""]) == (["", "a", ""], "", False)


def test_a_stop_string_of_ten_megabytes():
    """Each token searched all of its beginnings, the longest ones too: it did not end."""
    stream = TextStream(("x" * 10**7,))
    assert [stream.add(text) for text in ("a", "xx", "b", "x")] == ["a", "", "xxb", ""]
    assert stream.finish() == "x"
