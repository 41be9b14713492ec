"""Log-probabilities of prompts: `echo` with `logprobs`, and `prompt_logprobs`."""

import json
import math
import threading

import pytest

from gguf_spec import Sampling
from tests.server.conftest import ask, ask_text

TEXT = (
    "Once upon a time there was a little fox who lived in the wood. He liked “berries” and nüts. "
    * 4
)


def first(server, **fields):
    return ask_text(server, prompt=TEXT, **({"max_tokens": 0} | fields)).json()["choices"][0]


def test_echo_with_log_probabilities(server, tales):
    choice = first(server, echo=True, logprobs=2, max_tokens=5, temperature=0)
    found, ids = choice["logprobs"], tales.tokenize(TEXT)
    n = len(ids)
    assert [len(one) for one in found.values()] == [n + 5] * 4
    assert choice["text"].startswith(TEXT)
    assert found["tokens"][:n] == [tales.token_text(token) for token in ids]
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    scores = tales.score(ids, 2)
    assert found["token_logprobs"][1:n] == [one.logprob for one in scores]
    assert all(
        value in top.values()
        for value, top in zip(found["token_logprobs"][1:], found["top_logprobs"][1:], strict=True)
    )
    # offsets over prompt and answer
    text, offsets = choice["text"], [*found["text_offset"], len(choice["text"])]
    assert offsets == sorted(offsets) and offsets[0] == 0
    for i, token in enumerate(found["tokens"]):
        if "\ufffd" not in token and token in text and i:
            assert text[offsets[i] : offsets[i + 1]] == token
    # as plain decoding has them
    for at in (1, 7, n - 1):
        [one] = tales.generate(
            ids[:at], Sampling(temperature=0, max_tokens=1, logprobs=20)
        ).logprobs
        row = scores[at - 1]
        assert row.top[0] == pytest.approx(one.top[0])
        assert row.logprob == pytest.approx(dict(one.top).get(row.token, row.logprob))


@pytest.mark.full
def test_the_same_digits_twice_alone_and_in_company(server):
    asked = {"echo": True, "logprobs": 1}
    alone = first(server, **asked)
    assert alone["text"] == TEXT and alone["finish_reason"] == "length"
    assert first(server, **asked) == alone
    found = []
    others = [
        threading.Thread(target=lambda: ask_text(server, prompt="Once", max_tokens=30))
        for _ in range(3)
    ]
    asking = [
        threading.Thread(target=lambda: found.append(first(server, **asked))) for _ in range(2)
    ]
    for one in (*others, *asking):
        one.start()
    for one in (*others, *asking):
        one.join()
    assert found == [alone, alone]


def test_requests_of_lm_eval(server, tales):
    """Token ids of several texts, one new token; the sum over a continuation is read."""
    texts = ["The fox saw the hen and was happy", "The fox saw the hen and was", "A"]
    ids = [tales.tokenize(text) for text in texts]
    body = {
        "model": "tales",
        "prompt": ids,
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    reply = ask(server, "POST", "/v1/completions", body)
    assert reply.status == 200
    choices = reply.json()["choices"]
    for choice, one in zip(choices, ids, strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(one) + 1
    n = len(ids[1])
    logprobs = choices[0]["logprobs"]["token_logprobs"][n:-1]
    options = tales.choose(texts[1], [" happy"])
    assert math.fsum(logprobs) == pytest.approx(options[0].logprob)
    assert ask(server, "POST", "/v1/completions", body).json()["choices"] == choices


def test_prompt_logprobs(server, tales):
    choice = first(server, prompt_logprobs=1)
    ids, found = tales.tokenize(TEXT), choice["prompt_logprobs"]
    assert choice["text"] == "" and len(found) == len(ids) and found[0] is None
    assert all(str(token) in one for token, one in zip(ids[1:], found[1:], strict=True))
    assert "prompt_logprobs" not in first(server)


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_stream(server, max_tokens):
    body = {"prompt": TEXT, "echo": True, "logprobs": 1, "max_tokens": max_tokens, "temperature": 0}
    whole = ask_text(server, **body).json()["choices"][0]
    lines = ask_text(server, **body, stream=True).body.decode().split("\n\n")
    pieces = [json.loads(one[6:])["choices"][0] for one in lines if one.startswith("data: {")]
    assert "".join(one["text"] for one in pieces) == whole["text"]
    for name in whole["logprobs"]:
        assert [x for one in pieces if one["logprobs"] for x in one["logprobs"][name]] == whole[
            "logprobs"
        ][name]


def test_a_text_that_is_too_long_or_empty(server):
    for prompt in ("x " * 5000, ""):
        assert ask_text(server, prompt=prompt, echo=True, logprobs=1).status in (200, 400)
    assert ask_text(server, prompt=[10**9], echo=True, logprobs=1).param == "prompt"
