"""POST /v1/choose: the numbers of the library, its errors, and its place in the queue."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.server.conftest import ask, ask_text, metrics

BODY = {"prompt": "Once upon a time there was a", "options": [" little girl", " cat", " little"]}


def choose(server, **fields):
    return ask(server, "POST", "/v1/choose", BODY | fields)


@pytest.mark.parametrize(
    "prompt", [BODY["prompt"], [{"role": "user", "content": "Tell me of a fox."}]]
)
def test_numbers_are_those_of_the_library(server, tales, prompt):
    before, wanted = metrics(server), tales.choose(prompt, BODY["options"])
    made = choose(server, prompt=prompt).json()
    assert made["options"] == [
        {"index": i, **one._asdict(), "tokens": [*one.tokens], "logprobs": [*one.logprobs]}
        for i, one in enumerate(wanted)
    ]
    assert wanted[made["best"]].logprob == max(one.logprob for one in wanted)
    n, n_options = len(tales.tokenize(prompt)), sum(len(one.tokens) for one in wanted)
    assert made["usage"] == {"prompt_tokens": n, "total_tokens": n + n_options}
    gained = metrics(server)["embedded_tokens_total"] - before["embedded_tokens_total"]
    assert gained == n + n_options


def test_beside_other_requests(server):
    wanted = choose(server).body
    with ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(ask_text, server, seed=1, max_tokens=20) for _ in range(4)]
        found = [pool.submit(choose, server) for _ in range(4)]
        assert {one.result().body for one in found} == {wanted}
        assert len({one.result().json()["choices"][0]["text"] for one in texts}) == 1


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"options": []}, "options", "invalid_value"),
        ({"options": "cat"}, "options", "invalid_value"),
        ({"options": [" cat", 1]}, "options[1]", "invalid_value"),
        ({"options": [" cat", ""]}, "options", "invalid_value"),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": "a " * 9000}, "prompt", "context_length_exceeded"),
        ({"prompt": [{"role": "nobody", "content": "a"}]}, "prompt[0].role", "invalid_value"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs", "invalid_value"),
    ],
)
def test_errors_name_the_field(server, fields, param, code):
    reply = choose(server, **fields)
    assert (reply.status, reply.param, reply.code) == (400, param, code)
