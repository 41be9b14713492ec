"""Prompts for the text between two others, with a vocabulary of letters."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from gguf_spec.errors import NoInfillError, PromptTooLongError
from gguf_spec.text.infill import encode_infill

BOS, BEFORE, AFTER, MIDDLE, REPOSITORY, FILE = range(1000, 1006)


def model(**more):
    of = {
        "path": Path("coder.gguf"), "n_ctx": 50, "n_ctx_limit": None, "infill_marks": (BEFORE, AFTER, MIDDLE), "file_marks": (-1, -1),
        "special_tokens": {"bos": BOS, "add_bos": True}, "tokenize": lambda text, **_: [*map(ord, text)],
    }  # fmt: skip
    return SimpleNamespace(**(of | more))


def shown(ids):
    return [chr(one) if one < 1000 else one for one in ids]


def test_the_order_is_prefix_suffix_middle():
    assert shown(encode_infill(model(), "a", "b")) == [BOS, BEFORE, "a", AFTER, "b", MIDDLE]


def test_files_come_first_with_marks_or_as_text():
    plain = shown(encode_infill(model(), "a", "b", [("x.py", "c")]))
    assert "".join(plain[1:-5]) == "\n\n--- snippet ---\n\nc"
    marked = shown(encode_infill(model(file_marks=(REPOSITORY, FILE)), "a", "b", [("x.py", "c")]))
    wanted = [BOS, REPOSITORY, *"myproject\n", FILE, *"x.py\n", "c", FILE, *"filename\n", BEFORE, "a"]  # fmt: skip
    assert marked == [*wanted, AFTER, "b", MIDDLE]
    no_repository = shown(encode_infill(model(file_marks=(-1, FILE)), "", "", [("x.py", "c")]))
    assert no_repository[:2] == [BOS, FILE]


def test_what_does_not_fit_or_cannot_be_asked():
    with pytest.raises(PromptTooLongError) as caught:
        encode_infill(model(), "abc", "def", most=5)
    assert (caught.value.n_prompt, caught.value.n_ctx) == (6, 50)
    with pytest.raises(NoInfillError, match=r"coder\.gguf"):
        encode_infill(model(infill_marks=None), "a", "b")
