"""llama-server's own dialect."""

import pytest

import gguf_spec
from gguf_spec.options import InfillSampling, Speculation
from gguf_spec.protocols.llama_server import read_infill
from gguf_spec.protocols.request import LineLimits, LineReader


def test_samplers_that_are_not_named_are_off():
    given = {"input_prefix": "a", "top_k": 7, "top_p": 0.5, "min_p": 0.2, "repeat_penalty": 1.3, "temperature": 0.1}  # fmt: skip
    some = read_infill(given | {"samplers": ["top_p", "temperature"]}, Speculation(), None).sampling
    assert (some.top_k, some.top_p, some.min_p, some.repeat_penalty) == (0, 0.5, 0, 1)
    assert some.temperature == 0.1 and type(some) is gguf_spec.Sampling
    some = read_infill(given | {"samplers": ["top_k", "infill"]}, Speculation(), None).sampling
    assert (some.top_k, some.top_p, some.temperature) == (7, 1, 1) and type(some) is InfillSampling


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "indent", "wanted"),
    [
        ("a\n  b\n c", 2, "a\n  b\n "),
        ("a\n\tb\n\n  c", 1, "a\n\tb\n"),
        ("a\n  b", 2, "a\n  b"),
        ("a\nb\nc", 0, "a\nb\nc"),
    ],
)
def test_a_line_with_less_indentation_ends_the_answer(text, indent, wanted, size):
    lines = LineReader(LineLimits(indent))
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join(lines.read(piece, 9) for piece in pieces) == wanted
    assert lines.is_over is (wanted != text)


def test_a_line_break_after_the_time_ends_the_answer():
    lines = LineReader(LineLimits(seconds=1))
    assert [lines.read(*one) for one in [("a\n", 1), ("b", 2), ("c\nd", 3), ("e", 3)]] == ["a\n", "b", "c\nd", ""]  # fmt: skip
    assert lines.is_over
