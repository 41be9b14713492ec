"""The parser of reasoning parts: pure, and independent of where the text is cut."""

import itertools
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gguf_spec.results import Part
from gguf_spec.text.reasoning import MARK, ChannelSyntax, State, TagSyntax

THINK = TagSyntax("<think>", "</think>", "\n</think>\n\n")
CHANNELS = ChannelSyntax()


def marked(text):
    """Return a text with a mark before each special token of gpt-oss."""
    for name in ("start", "channel", "message", "end", "return", "call", "constrain"):
        text = text.replace(f"<|{name}|>", f"{MARK}<|{name}|>")
    return text


def parse(syntax, state, *texts):
    """Return the parts of a text in pieces; pieces of one kind that follow each other are joined."""
    found = []
    for text in texts:
        state, parts = syntax.read(state, text)
        found += parts
    found += syntax.finish(state)
    joined = []
    for kind, text in found:
        if joined and joined[-1].kind == kind:
            joined[-1] = Part(kind, joined[-1].text + text)
        else:
            joined.append(Part(kind, text))
    return joined


def reasoning(text):
    return Part("reasoning", text)


def answer(text):
    return Part("text", text)


TAGS = [
    ("<think>\nOne. Two.\n</think>\n\nThree.", [reasoning("One. Two."), answer("Three.")]),
    ("  \n<think>a</think>b", [reasoning("a"), answer("b")]),
    ("<think>\n\n</think>\n\nAt once.", [answer("At once.")]),
    ("<think>a", [reasoning("a")]),
    ("<think>a </thi", [reasoning("a </thi")]),
    ("<think>a < b </ c</think>d", [reasoning("a < b </ c"), answer("d")]),
    ("<think>a</think>  <think>b</think>c", [reasoning("a"), answer("<think>b</think>c")]),
    ("<think>a</think> <thinner", [reasoning("a"), answer("<thinner")]),
    # an answer that does not begin with the tag is not touched
    ("  The tag <think>x</think> is text. ", [answer("  The tag <think>x</think> is text. ")]),
    ("a</think>b", [answer("a</think>b")]),
    ("  \n", [answer("  \n")]),
    ("<thi", [answer("<thi")]),
    ("", []),
]
INSIDE = [
    ("a\n</think>\n\nb", [reasoning("a"), answer("b")]),
    ("\n</think>b", [answer("b")]),
    ("never closed \n", [reasoning("never closed")]),
]
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"
GPT_OSS = [
    (f"{ANALYSIS}Hm. <|end|>{FINAL}Hi. ", [reasoning("Hm."), answer("Hi. ")]),
    ("<|channel|>final<|message|>Hi<|return|>", [answer("Hi")]),
    (f"{ANALYSIS}a<|end|><|start|>assistant{ANALYSIS}b<|end|>{FINAL}c", [reasoning("a\n\nb"), answer("c")]),
    (f"{ANALYSIS}cut", [reasoning("cut")]),
    ("<|channel|>commentary<|message|>Soon.<|end|>" + FINAL + "Now.", [answer("Soon.\n\nNow.")]),
    (
        f"{ANALYSIS}a<|end|><|start|>assistant<|channel|>commentary to=functions.rain "
        '<|constrain|>json<|message|>{"in": "Rome"}<|call|>',
        [reasoning("a"), answer('<|channel|>commentary to=functions.rain <|constrain|>json<|message|>{"in": "Rome"}')],
    ),
    (
        ' to=functions.rain<|channel|>commentary json<|message|>{"in": "Rome"}',
        [answer('<|channel|>commentary to=functions.rain <|constrain|>json<|message|>{"in": "Rome"}')],
    ),
    ("Hello", [answer("Hello")]),
    ("ass", [answer("ass")]),
    ("<|channel|>ana", []),
    (f"{ANALYSIS}a<|message|>b<|end|>", [reasoning("ab")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "parts"), TAGS)
def test_tags_at_the_beginning_of_an_answer_enclose_its_reasoning(text, parts):
    assert parse(THINK, THINK.begin("<|im_start|>assistant\n"), text) == parts


@pytest.mark.parametrize(("text", "parts"), INSIDE)
def test_a_prompt_may_end_inside_of_the_reasoning(text, parts):
    assert parse(THINK, THINK.begin("<|im_start|>assistant\n<think>\n"), text) == parts


@pytest.mark.parametrize(("text", "parts"), GPT_OSS)
def test_the_channels_of_gpt_oss(text, parts):
    begin = CHANNELS.begin(marked("<|end|><|start|>assistant"))
    assert parse(CHANNELS, begin, marked(text)) == parts


def test_names_of_special_tokens_in_plain_text_are_no_channels():
    plain = "Harmony has <|channel|>analysis<|message|> and <|end|>."
    text = marked(f"{ANALYSIS}a<|end|>{FINAL}") + plain
    assert parse(CHANNELS, State("header"), text) == [reasoning("a"), answer(plain)]


def test_a_call_has_one_form():
    text = marked('<|channel|>commentary to=functions.a"b<|message|>{}<|call|>')
    [part] = parse(CHANNELS, State("header"), text)
    assert part.text == "<|channel|>commentary to=functions.a <|constrain|>json<|message|>{}"


def test_a_prefill_is_read_from_the_end_of_the_prompt():
    assert THINK.begin("assistant\n<think>\nWell", "Well").is_reasoning
    assert THINK.begin("assistant\n<think>\n\n</think>\n\nWell", "Well").phase == "text"
    assert THINK.begin("assistant\n<think>", "<think>").is_reasoning
    state = CHANNELS.begin(marked("<|start|>assistant<|channel|>final<|message|>") + "Sure", "Sure")
    assert parse(CHANNELS, state, ", I can.") == [answer(", I can.")]


@pytest.mark.parametrize(
    ("prompt", "force", "skip"),
    [
        ("x\n<think>\n", False, "\n</think>\n\n"),
        ("x\n", True, "<think>\n\n</think>\n\n"),
        ("x\n", False, ""),
        ("x\n<think>\n\n</think>\n\n", True, ""),
    ],
)
def test_what_follows_a_prompt_so_that_nothing_is_thought(prompt, force, skip):
    assert THINK.skip(prompt, force) == skip
    state = THINK.begin(prompt + skip)
    assert parse(THINK, state, "Hi") == [answer("Hi")]
    white = parse(THINK, state, "\n", " Hi")
    assert white == [answer("Hi" if skip or prompt.endswith("</think>\n\n") else "\n Hi")]


PIECES = [
    *("<think>", "</think>", "<", "</", ">", " ", "\n", "é", ANALYSIS, FINAL, "<|end|>"),
    *("<|message|>", "<|channel|>", "<|start|>", "<|call|>", "commentary to=functions.f"),
    *("assistant", "to=", MARK, "<|constrain|>json"),
]
WORDS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(string.ascii_letters + " \n<>/|", max_size=4)),
    max_size=12,
).map("".join)


@pytest.mark.full
@settings(max_examples=300, deadline=None)
@given(text=WORDS, cuts=st.lists(st.integers(0, 60), max_size=8), begins=st.booleans())
@pytest.mark.parametrize("syntax", [THINK, CHANNELS])
def test_the_parts_do_not_depend_on_where_the_text_is_cut(syntax, text, cuts, begins):
    if syntax is CHANNELS:
        text, start = marked(text), State("header")
    else:
        start = State("start" if begins else "reasoning")
    places = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(places)]
    whole = parse(syntax, start, text)
    assert parse(syntax, start, *pieces) == whole == parse(syntax, start, *text)
    assert all(part.text for part in whole)


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_characters="<"), max_size=30))
def test_an_answer_without_tags_is_not_changed(text):
    assert "".join(part.text for part in parse(THINK, State("start"), text)) == text
