"""`/infill` of llama-server."""

import json

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.server.conftest import ask, ask_text, infill_model
from tests.support import tiny

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
    for fields in (AROUND, {"input_prefix": "a"}):
        reply = infill(server, **fields)
        assert (reply.status, reply.code, reply.param) == (400, "no_infill", "model")
        assert reply.json()["error"]["message"].endswith(
            "the tokens. Use a model for code completion."
        )


@pytest.mark.parametrize(
    ("field", "value", "param"),
    [
        ("input_prefix", None, "input_prefix"),
        ("input_suffix", 1, "input_suffix"),
        ("input_extra", "x", "input_extra"),
        ("input_extra", [{"filename": "x"}], "input_extra[0].text"),
        ("prompt", [1], "prompt"),
        ("samplers", "kpi", "samplers"),
        ("samplers", ["top_p", "top_k"], "samplers"),
        ("samplers", ["top_k", "top_k"], "samplers"),
        ("samplers", ["infill"], "samplers"),  # of all tokens
        ("samplers", ["top_k", "infill", "temperature"], "samplers"),
        ("samplers", [["top_k"]], "samplers"),
        ("n_indent", True, "n_indent"),
        ("n_cmpl", 0, "n_cmpl"),
        ("t_max_predict_ms", "x", "t_max_predict_ms"),
        ("response_fields", "content", "response_fields"),
        ("lora", [{"id": 0}], "lora"),
    ],
)
def test_wrong_fields(coder_server, field, value, param):
    reply = infill(coder_server, **(AROUND | {field: value}))
    assert (reply.status, reply.param) == (400, param)


def test_what_llama_vim_and_llama_vscode_send(coder_server, coder):
    """The bodies of their sources of 2026."""
    chunk = {"text": "xx", "time": [1, 2], "filename": "x.py"}
    both = {"id_slot": 0, **AROUND, "input_extra": [chunk], "prompt": "b", "top_k": 40, "top_p": 0.9,
            "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "stream": False,
            "n_indent": 4, "t_max_prompt_ms": 500, "t_max_predict_ms": 250, "n_predict": 5}  # fmt: skip
    paths = ["content", "timings/prompt_n", "timings/predicted_per_second", "truncated", "tokens_cached", "none/such"]  # fmt: skip
    vim = infill(coder_server, **both, stop=[], response_fields=paths).json()
    assert list(vim) == paths[:-1] and vim["truncated"] is False
    ids = coder.tokenize_infill("a<|fim_mid|>b", "z", [("x.py", "xx")])
    assert vim["timings/prompt_n"] + vim["tokens_cached"] == len(ids)
    vscode = infill(coder_server, **both, n_cmpl=3).json()
    assert [one["index"] for one in vscode] == [0, 1, 2]
    assert len({one["seed"] for one in vscode}) == 3
    warm_up = {"id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": [chunk], "prompt": "",
               "n_predict": 0, "temperature": 0.0, "samplers": [], "stream": False, "cache_prompt": True,
               "t_max_prompt_ms": 1, "t_max_predict_ms": 1}  # fmt: skip
    assert infill(coder_server, **warm_up, response_fields=[""]).json() == {}
    answer = infill(coder_server, **warm_up).json()
    assert (answer["content"], answer["tokens_predicted"], answer["stop_type"]) == ("", 0, "limit")
    reply = infill(coder_server, **(warm_up | {"stream": True}))
    assert [json.loads(line[6:])["stop"] for line in reply.body.splitlines() if line] == [True]


@pytest.fixture
def endless_coder(tmp_path):
    """A server of a model that never ends its answer."""
    ids = {"pre": tiny.IM_START, "suf": tiny.IM_START, "mid": tiny.TOKENS.index("a")}
    metadata = {f"tokenizer.ggml.fim_{kind}_token_id": id_ for kind, id_ in ids.items()}
    metadata["llama.context_length"] = 100_000
    path = tmp_path / "ever.gguf"
    tiny.write(path, tiny.one_text("ab\ncd", for_ever=True), metadata=metadata)
    with gguf_spec.load(path, None, threads=1, n_ctx=50_000, extra_bufts=False) as llm, serve_in_thread(llm) as one:  # fmt: skip
        yield one


def test_an_answer_ends_at_a_line(endless_coder):
    whole = infill(endless_coder, input_prefix="a", max_tokens=40, temperature=0).json()
    assert (whole["stop_type"], whole["tokens_predicted"]) == ("limit", 40)
    first, _, rest = whole["content"].partition("\n")
    assert rest
    cut = infill(endless_coder, input_prefix="a", temperature=0, n_indent=1).json()
    assert (cut["content"], cut["stop_type"]) == (f"{first}\n", "limit")
    late = infill(endless_coder, input_prefix="a", temperature=0, t_max_predict_ms=1).json()
    assert late["stop_type"] == "limit" and "\n" in late["content"]


def test_files_that_do_not_fit_are_left_out(coder_server, coder):
    long, last = {"text": "x" * 5000}, {"text": "y", "filename": "y.py"}
    few = infill(coder_server, **AROUND, input_extra=[last], **FIELDS).json()
    many = infill(coder_server, **AROUND, input_extra=[long, last], **FIELDS).json()
    assert many["tokens_evaluated"] == few["tokens_evaluated"]
    assert many["content"] == few["content"]
