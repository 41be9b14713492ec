"""Fields of other APIs in requests to a server."""

import random

import pytest

from gguf_spec.options import Sampling
from gguf_spec.protocols.fields import OTHER_FIELDS
from gguf_spec.server import serve_in_thread
from tests.protocols import field_bodies
from tests.server.conftest import ask, ask_chat

CHAT = {"messages": [{"role": "user", "content": "x"}]}


def test_half_a_character_in_python(tales):
    """In texts, messages, tools, prefill, and the prompt that is repeated."""
    half, whole = "a\ud83e", "a\ufffd"

    def given(text):
        call = {"id": text, "function": {"name": text, "arguments": {text: text}}}
        chat = [
            {"role": "user", "content": text},
            {"role": "assistant", "content": text, "tool_calls": [call]},
        ]
        sampling = Sampling(max_tokens=3, temperature=0)
        return [
            tales.tokenize(text),
            tales.tokenize([*chat, {"role": "tool", "content": text, "name": text}]),
            tales.generate(text, sampling, prefill=text, echo=True).text,
            [one.logprobs for one in tales.choose(text, [text, "x"])],
            tales.embed(text).tolist(),
        ]

    assert given(half) == given(whole)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/chat/completions", "max_completion_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/v1/messages", "max_tokens"),
        ("/api/chat", "num_predict"),
        ("/api/generate", "num_predict"),
    ],
)
def test_no_token_where_none_is_wanted(server, path, field):
    body = {"messages": CHAT["messages"], field: 0}
    if path.endswith(("responses", "/completions", "generate")) and "chat" not in path:
        body = {"input" if "responses" in path else "prompt": "x", field: 0}
    if path.startswith("/api"):
        body = {"options": {field: body.pop(field)}, "stream": False, **body}
    answer = ask(server, "POST", path, body).json()
    usage = answer.get("usage", answer)
    names = ("completion_tokens", "output_tokens", "eval_count")
    assert [usage[name] for name in names if name in usage] == [0]
    first = answer.get("choices", [answer])[0]
    why = [first.get(name) for name in ("finish_reason", "stop_reason", "done_reason")]
    assert [one for one in why if one] in (["length"], ["max_tokens"], [])
    assert (
        answer.get("incomplete_details", {"reason": "max_output_tokens"})["reason"]
        == "max_output_tokens"
    )
    if "stream" not in body:
        assert ask(server, "POST", path, body | {"stream": True}).status == 200


def test_no_token_in_python(tales):
    for sampling in (Sampling(max_tokens=0), Sampling(max_tokens=0, overflow="shift", logprobs=2)):
        result = tales.generate("Once", sampling, echo=True)
        assert (result.text, result.tokens, result.finish_reason) == ("Once", (), "length")
        assert result.stats.n_prompt == len(tales.tokenize("Once"))


def test_the_text_is_the_same(server):
    """All fields without effect at once: the text of a real answer is the same."""
    ignored = {
        name: (one.neutral or ("x",))[0]
        for name, one in OTHER_FIELDS.items()
        if one.neutral != () and "chat" in one.routes
    }
    wanted = ask_chat(server, seed=5, max_tokens=12).json()["choices"]
    assert ask_chat(server, seed=5, max_tokens=12, **ignored).json()["choices"] == wanted


def test_the_answer_names_what_is_not_applied(server):
    """In a header, in streams, too; also what a thread finds, such as variables that the template does not read."""
    more = {"verbosity": "low", "zap": 1, "chat_template_kwargs": {"mode": "x"}}
    for stream in (False, True):
        reply = ask_chat(server, **more, stream=stream)
        assert (reply.status, reply.headers["x-not-applied"]) == (
            200,
            "verbosity, zap, chat_template_kwargs.mode",
        )
    assert "x-not-applied" not in ask_chat(server).headers


def test_pages_of_other_origins_can_read_the_headers_of_answers(tales):
    """Also those of errors, such as how long to wait."""
    page = {"Origin": "http://app.example"}
    with serve_in_thread(tales, cors_origins=[page["Origin"]]) as one:
        more = {"chat_template_kwargs": {"mode": "x"}}
        for stream in (False, True):
            reply = ask_chat(one, page, **more, stream=stream)
            headers = {name.lower(): value for name, value in reply.headers.items()}
            assert headers["x-not-applied"] == "chat_template_kwargs.mode"
            exposed = headers["access-control-expose-headers"].lower().split(", ")
            assert {"x-not-applied", "x-schema-unenforced", "retry-after"} <= {*exposed}


@pytest.mark.parametrize("path", ["/v1/choose", "/v1/chat/completions/input_tokens"])
def test_what_threads_do_not_apply_is_in_the_header(server, path):
    """Of tasks and of looks at a model, too."""
    body = {"prompt": CHAT["messages"], "options": ["a"]} if path == "/v1/choose" else CHAT
    reply = ask(server, "POST", path, body | {"temprature": 1})
    assert reply.headers["x-not-applied"] == "temprature"


LENGTHS = {"max_completion_tokens", "max_output_tokens", "n_predict", "max_new_tokens"}


@pytest.mark.full
def test_a_server_answers_random_valid_bodies(server):
    """None is refused but for what this model lacks: its vocabulary cannot fill in."""
    for seed in range(60):
        rng = random.Random(seed)
        for path in field_bodies.READ:
            body = field_bodies.body(rng, path)
            short = {"options": body.get("options", {}) | {"num_predict": 4}}
            if not path.startswith("/api"):
                short = dict.fromkeys(["max_tokens", *LENGTHS & body.keys()], 4)
            reply = ask(server, "POST", path, body | short | {"ignore_eos": False})
            allowed = (200, 400) if path == "/infill" else (200,)
            assert reply.status in allowed, (path, body, reply.body[:300])
