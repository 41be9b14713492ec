"""Tokens and properties, in the shapes of llama-server."""

from types import SimpleNamespace

import gguf_spec
from gguf_spec.server import serve_in_thread
from gguf_spec.server.model_routes import template_caps
from tests.server.conftest import ask
from tests.support import tiny
from tests.support.talkers import TEMPLATE


def post(server, path, **fields):
    return ask(server, "POST", path, fields)


def test_tokens(server, tales):
    text = "Once upon a time, é 😀"
    ids = post(server, "/tokenize", content=text).json()["tokens"]
    assert ids == tales.vocabulary.tokenize(text, special=True, start=False)
    assert post(server, "/detokenize", tokens=ids).json() == {"content": text, "prompt": text}
    assert post(server, "/tokenize", content="").json() == {"tokens": []}
    assert post(server, "/detokenize", tokens=[]).json() == {"content": "", "prompt": ""}
    started = post(server, "/tokenize", content="a", add_special=True).json()["tokens"]
    assert started == tales.vocabulary.tokenize("a", special=True, start=True)


def test_the_forms_of_vllm(server, tales):
    """lm-eval reads the tokenizer of a server by them (`tokenizer_backend=remote`)."""
    text = "Once upon a time"
    for adds in (False, True):
        answer = post(server, "/tokenize", prompt=text, add_special_tokens=adds).json()
        ids = tales.vocabulary.tokenize(text, special=True, start=adds)
        assert answer == {"tokens": ids, "count": len(ids), "max_model_len": tales.n_ctx}
    assert post(server, "/tokenize", prompt=text).json() == answer
    info = ask(server, path="/tokenizer_info").json()
    props = ask(server, path="/props").json()
    assert info["eos_token"] == props["eos_token"] and info["bos_token"] == props["bos_token"]
    assert info["chat_template"] == tales.chat_template and info["model_max_length"] == tales.n_ctx
    assert post(server, "/tokenize").param == "content"


def test_pieces(server):
    pieces = post(server, "/tokenize", content="a é 😀", with_pieces=True).json()["tokens"]
    data = b"".join(
        bytes(one["piece"]) if isinstance(one["piece"], list) else one["piece"].encode()
        for one in pieces
    )
    assert data.decode() == "a é 😀"


def test_special_tokens(tmp_path):
    path = tiny.write(tmp_path / "m.gguf")
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        assert post(server, "/tokenize", content="<|im_end|>").json() == {"tokens": [tiny.IM_END]}
        plain = post(server, "/tokenize", content="<|im_end|>", parse_special=False).json()[
            "tokens"
        ]
        assert tiny.IM_END not in plain
        assert len(plain) > 1
        for ids in ([tiny.IM_END], plain):
            assert post(server, "/detokenize", tokens=ids).json()["content"] == "<|im_end|>"
        told = ask(server, path="/props").json()
        assert (told["bos_token"], told["eos_token"]) == ("<|endoftext|>", "<|endoftext|>")
        assert told["chat_template"] == tiny.CHATML
        assert told["chat_template_caps"] == template_caps(llm)
        assert told["model_path"] == "m.gguf"
        assert told["default_generation_settings"]["n_ctx"] == llm.n_ctx


def test_what_chats_may_have():
    names = ("string_content", "typed_content", "tools", "tool_calls", "parallel_tool_calls", "reasoning_effort")  # fmt: skip

    def caps(template, **more):
        fields = {"chat_template": template, "can_see": False, "template_variables": frozenset()}
        found = template_caps(SimpleNamespace(**fields | more))
        assert not found or set(found) == {f"supports_{name}" for name in names}
        return {name.removeprefix("supports_") for name, value in found.items() if value}

    assert caps(None) == set()
    assert caps(tiny.CHATML) == {"string_content"}
    tools = {"string_content", "tools", "tool_calls", "parallel_tool_calls"}
    assert caps(TEMPLATE) == tools
    more = {"can_see": True, "template_variables": frozenset({"reasoning_effort"})}
    assert caps(tiny.CHATML, **more) == {"string_content", "typed_content", "reasoning_effort"}


def test_wrong_bodies(server):
    for path, fields, param in (
        ("/tokenize", {}, "content"), ("/tokenize", {"content": 5}, "content"),
        ("/tokenize", {"content": "a", "add_special": 1}, "add_special"),
        ("/tokenize", {"content": "a", "with_pieces": "x"}, "with_pieces"),
        ("/detokenize", {}, "tokens"), ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"), ("/detokenize", {"tokens": [10**9]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"), ("/detokenize", {"tokens": [], "model": 5}, "model"),
    ):  # fmt: skip
        reply = post(server, path, **fields)
        assert (reply.status, reply.param) == (400, param)
    assert ask(server, "POST", "/tokenize", b"[").status == 400


def test_one_model(server):
    told = ask(server, path="/v1/models").json()["data"]
    assert [one["id"] for one in told] == ["tales"]
    assert told[0]["loaded"] is True
    assert ask(server, path="/v1/models/tales").json() == told[0]
    assert ask(server, path="/v1/models/gpt-4o").status == 404
    [loaded] = ask(server, path="/api/ps").json()["models"]
    assert (loaded["name"], loaded["seconds_left"], loaded["expires_at"]) == ("tales", None, None)
    assert loaded["size"] > 1_000_000
    assert loaded["busy"] is False
