"""Display of an answer: markdown as it arrives, and lines that end between words."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gguf_spec.cli.chat.markdown import CODE, Markdown, Wrap


def styled(text, size=None):
    """Return the pieces of a text that comes in parts of `size` letters, joined where the style is the same."""
    markdown, pieces = Markdown(), []
    for at in range(0, len(text), size or len(text) or 1):
        pieces += markdown.feed(text[at : at + (size or len(text))])
    pieces += markdown.finish()
    joined = []
    for piece, style in pieces:
        if joined and joined[-1][1] == style:
            joined[-1] = (joined[-1][0] + piece, style)
        elif piece:
            joined.append((piece, style))
    return joined


def plain(text, size=None):
    return "".join(piece for piece, _ in styled(text, size))


SHOWN = {
    "a **bold** word": [("a ", ""), ("bold", "bold"), (" word", "")],
    "an *italic* one, _so_.": [("an ", ""), ("italic", "italic"), (" one, ", ""), ("so", "italic"), (".", "")],
    "***both***": [("both", "bold italic")],
    "call `f(*x)` now": [("call ", ""), ("f(*x)", "bold cyan"), (" now", "")],
    "`` a`b ``": [("a`b", "bold cyan")],
    "**bold `code` in it**": [("bold ", "bold"), ("code", "bold bold cyan"), (" in it", "bold")],
    "# A *title*\ntext": [("A ", "bold"), ("title", "bold italic"), ("\ntext", "")],
    "- one\n* two\n  + three": [("• one\n• two\n  • three", "")],
    "- **Name**: text": [("• ", ""), ("Name", "bold"), (": text", "")],
    "> said": [("│ said", "")],
    "1. one\n2. two": [("1. one\n2. two", "")],
    "---": [("---", "dim")],
    "a\n```python\ndef f(*a):\n    return **b**\n```\nb": [
        ("a\n", ""),
        ("```python", "dim"), ("\n", ""), ("def f(*a):", CODE), ("\n", ""), ("    return **b**", CODE), ("\n", ""), ("```", "dim"), ("\nb", ""),
    ],
    "```\nno end": [("```", "dim"), ("\n", ""), ("no end", CODE)],
    "~~~\n```\n~~~": [("~~~", "dim"), ("\n", ""), ("```", CODE), ("\n", ""), ("~~~", "dim")],
    "```a``` b": [("a", "bold cyan"), (" b", "")],
    "\\*not\\* italic": [("*not* italic", "")],
    "这是 **粗体** 的": [("这是 ", ""), ("粗体", "bold"), (" 的", "")],
}  # fmt: skip


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7])
@pytest.mark.parametrize("text", SHOWN)
def test_markdown(text, size):
    assert styled(text, size) == SHOWN[text]


LEFT = [
    "2 * 3 * 4", "-1", "2*3*4",
    "f(*args, **kwargs)", "snake_case_name", "a ** b", "**never closed", "`never closed", "*", "**", "2**8", "_", "a_b_c", "#hash",
    "#", "| a | b |", "C:\\dir\\*.txt", "5 > 3", "a\\", "* ", "- ", "[text](https://a.b/c_d_e)", "__init__.py",
]  # fmt: skip


@pytest.mark.parametrize("size", [None, 1, 4])
@pytest.mark.parametrize("text", LEFT)
def test_text_that_is_not_markdown_is_not_changed(text, size):
    assert plain(text, size) in (text, text.replace("\\*", "*"))


def test_text_does_not_wait_for_the_end_of_a_line():
    markdown = Markdown()
    assert markdown.feed("Some te") == [("Some te", "")]
    assert markdown.feed("xt **bo") == [("xt ", "")]
    assert markdown.feed("ld** ") == [("bold", "bold"), (" ", "")]


def test_a_span_without_an_end_is_not_held_back_for_ever():
    markdown = Markdown()
    assert markdown.feed("**" + "word " * 20) == []
    assert markdown.feed("word " * 60)


@given(st.text(alphabet="ab *_`#->~\\\n1.日", max_size=60), st.integers(1, 9))
def test_no_letter_is_lost_for_any_text_in_any_parts(text, size):
    shown = plain(text, size)
    assert [c for c in shown if c in "ab1日\n"] == [c for c in text if c in "ab1日\n"]
    assert shown == plain(text)


def wrapped(text, width, size=3):
    wrap, out = Wrap(lambda: width), ""
    for at in range(0, len(text), size):
        out += "".join(piece for piece, _ in wrap.feed([(text[at : at + size], "")]))
    return out + "".join(piece for piece, _ in wrap.finish())


WRAPPED = [
    ("one two three", 8, "one two\nthree"),
    ("one two three", 80, "one two three"),
    ("one two", 7, "one two"),
    ("• one two three", 10, "• one two\n  three"),
    ("12. one two three", 12, "12. one two\n    three"),
    ("  • one two", 9, "  • one\n   two"),
    ("a\n\n  b c", 80, "a\n\n  b c"),
    ("abcdefghijkl mn", 5, "abcdefghijkl mn"),
    ("日本語日本語", 5, "日本\n語日\n本語"),
    ("ends   \nhere", 5, "ends\nhere"),
]


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(("text", "width", "expected"), WRAPPED)
def test_lines_end_between_words(text, width, expected, size):
    assert wrapped(text, width, size) == expected


@given(st.text(alphabet="ab \n日é", max_size=80), st.integers(4, 20), st.integers(1, 9))
def test_lines_fit(text, width, size):
    shown = wrapped(text, width, size)
    assert "".join(shown.split()) == "".join(text.split())
    for line in shown.split("\n"):
        parts = re.findall(r"日?[^日\s]+|日", line)  # that a line does not end within
        assert (
            cell_len(line) <= width
            or any(cell_len(part) > width for part in parts)
            or line.startswith(" ")
        )


def test_code_is_not_wrapped():
    wrap = Wrap(lambda: 10)
    assert (
        "".join(text for text, _ in wrap.feed([("    a long line of code", CODE), ("\n", "")]))
        == "    a long line of code\n"
    )
