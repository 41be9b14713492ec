"""`/infill` of llama-server."""

import json

import pytest

import gguf_spec
from tests.server.conftest import ask, ask_text, infill_model

FIELDS = {"max_tokens": 8, "seed": 1, "ignore_eos": True}
AROUND = {"input_prefix": "a<|fim_mid|>", "input_suffix": "z"}


def infill(server, **body):
    return ask(server, "POST", "/infill", body)


def text_of(server, ids):
    return ask_text(server, prompt=ids, **FIELDS).json()["choices"][0]["text"]


def test_the_text_is_that_of_the_tokens(coder_server, coder):
    answer = infill(coder_server, **AROUND, **FIELDS).json()
    ids = coder.tokenize_infill("a<|fim_mid|>", "z")
    assert answer["content"] == text_of(coder_server, ids) != ""
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (len(ids), 8)
    assert (answer["stop"], answer["stop_type"], answer["seed"]) == (True, "limit", 1)
    word = answer["content"][3]
    stopped = infill(coder_server, **AROUND, **FIELDS, stop=word).json()
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == answer["content"].partition(word)[0]


def test_the_prompt_is_the_end_of_the_prefix_and_no_suffix_is_an_empty_one(coder_server, coder):
    answer = infill(coder_server, input_prefix="a", prompt="b", **FIELDS).json()
    assert answer["content"] == text_of(coder_server, coder.tokenize_infill("ab", ""))
    assert infill(coder_server, input_prefix="", **(FIELDS | {"n_predict": 3, "max_tokens": None})).json()["tokens_predicted"] == 3  # fmt: skip


def test_other_files(coder_server, coder, tmp_path):
    pre, suf, mid = coder.vocabulary.infill_marks
    rep, sep = coder.vocabulary.file_marks

    def ids(text):
        return coder.vocabulary.tokenize(text, special=False, start=False)

    wanted = [rep, *ids("myproject\n"), sep, *ids("x.py\n"), *ids("xx"), sep, *ids("tmp\n"), *ids("y"),
              sep, *ids("filename\n"), pre, *ids("a"), suf, *ids("z"), mid]  # fmt: skip
    assert coder.tokenize_infill("a", "z", [("x.py", "xx"), ("tmp", "y")]) == wanted
    extra = [{"filename": "x.py", "text": "xx"}, {"text": "y"}]
    answer = infill(coder_server, input_prefix="a", input_suffix="z", input_extra=extra, **FIELDS)
    assert answer.json()["content"] == text_of(coder_server, wanted)
    path = infill_model(tmp_path / "plain.gguf", ("pre", "suf", "mid"))
    with gguf_spec.load(path, None, threads=1, extra_bufts=False) as plain:
        pre, suf, mid = plain.vocabulary.infill_marks
        ids_ = plain.tokenize_infill("a", "z", [("x.py", "xx")])
        assert ids_ == [*ids("\n\n--- snippet ---\n\nxx"), pre, *ids("a"), suf, *ids("z"), mid]


def test_a_stream(coder_server):
    whole = infill(coder_server, **AROUND, **FIELDS).json()
    reply = infill(coder_server, **AROUND, **FIELDS, stream=True)
    events = [json.loads(line[6:]) for line in reply.body.splitlines() if line]
    assert "".join(one["content"] for one in events) == whole["content"]
    assert [one["stop"] for one in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["tokens_predicted"] == 8


def test_a_model_without_the_tokens(server):
    reply = infill(server, **AROUND)
    assert (reply.status, reply.code, reply.param) == (400, "no_infill", "input_suffix")


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("input_prefix", None, "input_prefix"),
        ("input_suffix", 1, "input_suffix"),
        ("input_extra", "x", "input_extra"),
        ("input_extra", [{"filename": "x"}], "input_extra[0].text"),
        ("prompt", [1], "prompt"),
        ("samplers", ["infill"], "samplers"),
        ("n_indent", 4, "n_indent"),
    ],
)
def test_wrong_fields(coder_server, field, value, param):
    reply = infill(coder_server, **(AROUND | {field: value}))
    assert (reply.status, reply.param) == (400, param)
