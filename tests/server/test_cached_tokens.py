"""The usage has the number of prompt tokens that came from caches, on each route and in streams."""

import json

import pytest

import gguf_spec
from gguf_spec import Sampling
from gguf_spec.cli.output import stats_lines
from gguf_spec.server import serve_in_thread
from gguf_spec.vocabulary import common
from tests.server.conftest import ask, metrics

QUESTION = [{"role": "user", "content": "Go on."}]


def openai_counts(usage):
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def responses_counts(usage):
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"]


def anthropic_counts(usage):
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached, cached


# Route -> its fields for a text, the field of its limit, and the counts of its usage.
ROUTES = {
    "/v1/chat/completions": (
        lambda text: {"messages": [{"role": "system", "content": text}, *QUESTION]},
        "max_tokens",
        openai_counts,
    ),
    "/v1/completions": (lambda text: {"prompt": text}, "max_tokens", openai_counts),
    "/v1/responses": (lambda text: {"input": text}, "max_output_tokens", responses_counts),
    "/v1/messages": (
        lambda text: {"system": text, "messages": QUESTION},
        "max_tokens",
        anthropic_counts,
    ),
}


@pytest.fixture(scope="module", params=[1, 2])
def own(request):
    """An LLM and its server; only the tests of this file fill their caches."""
    with (
        gguf_spec.load("tales", None, threads=1, parallel=request.param) as llm,
        serve_in_thread(llm) as server,
    ):
        llm.generate("x", Sampling(max_tokens=1))
        yield llm, server


def usage_of(server, path, fields, stream):
    """Return the last usage of an answer."""
    more = {"stream": True} if stream else {}
    if stream and path.endswith("completions"):
        more["stream_options"] = {"include_usage": True}
    reply = ask(server, "POST", path, fields | more)
    assert reply.status == 200, reply.body
    if not stream:
        return reply.json()["usage"]
    pieces = [
        json.loads(line[6:])
        for line in reply.body.decode().splitlines()
        if line.startswith("data: {")
    ]
    return [
        used
        for piece in pieces
        if (used := (piece.get("response") or piece).get("usage"))
    ][-1]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
def test_usage_of_each_route(own, path, stream):
    llm, server = own
    fields_of, limit, counts = ROUTES[path]
    text = f"{path[4:]} {stream} " * 12  # begins like no other
    seen = metrics(server)["cached_prompt_tokens_total"]

    def asked(text):
        return counts(usage_of(server, path, fields_of(text) | {limit: 3}, stream))

    n, n_first = asked(text)
    assert n_first < n / 2  # the first tokens of the template are those of earlier requests
    # Only the last token, which is decoded with the answer, is not in the cache.
    assert asked(text) == (n, n - 1)
    longer = text + "And then?"
    same = common(llm.tokenize(text), llm.tokenize(longer))
    n_longer, n_cached = asked(longer)
    assert n_longer > n and same - 1 <= n_cached < n_longer - 2
    assert metrics(server)["cached_prompt_tokens_total"] - seen == n_first + n - 1 + n_cached


def test_a_prompt_of_several_choices_counts_once(own):
    _, server = own
    fields = {"prompt": ["One fox and no other. " * 5] * 2, "n": 3, "max_tokens": 2}
    used = usage_of(server, "/v1/completions", fields, False)
    n, n_cached = openai_counts(used)
    assert 0 < n_cached <= n - 2


def test_a_text_that_only_the_store_holds(copies_pay):
    """Other requests took its slot, and the cache is restored from memory."""
    with gguf_spec.load("tales", None, threads=1, prefix_memory=1 << 30) as llm:
        texts = [f"Number {i} had a fox. " * 25 for i in "123"]
        for text in texts:
            assert llm.generate(text, Sampling(max_tokens=2)).stats.n_cached < 10
        stats = llm.generate(texts[0], Sampling(max_tokens=2)).stats
        assert stats.n_cached == stats.n_prompt - 1
        assert llm.prefix_memory.n_tokens_restored > 100
        assert f"tokens, {stats.n_cached} of them cached, in" in stats_lines(stats, 1)
        stats = llm.generate("fox", Sampling(max_tokens=2)).stats
        assert stats.n_cached == 0 and "cached" not in stats_lines(stats, 1)


def test_a_context_shift_counts_the_prompt_only():
    with gguf_spec.load("tales", None, threads=1, n_ctx=64) as llm:
        shifting = Sampling(max_tokens=100, overflow="shift", ignore_eos=True)
        assert llm.generate("A fox", shifting).stats.n_cached == 0
        stats = llm.generate("A fox", shifting).stats
        assert stats.n_generated == 100 and stats.n_cached <= stats.n_prompt - 1
