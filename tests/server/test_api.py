"""Every call of the official client, complete and streamed: the answer is that of the library."""

import math
import re

import openai
import pytest

from gguf_spec import Sampling, Speculation
from gguf_spec.server.openapi import describe
from tests.server.conftest import ask, ask_chat, ask_text, metrics

FOX = [{"role": "user", "content": "Tell me of a fox."}]
START = "Once upon a time there was"


def alone(tales, prompt, **options):
    return tales.generate(prompt, Sampling(**({"max_tokens": 40, "seed": 7} | options)))


def in_pieces(stream):
    """Return text, finish reason and the last usage of a streamed chat or completion."""
    text, finish, usage = "", None, None
    with stream:
        for piece in stream:
            usage = piece.usage or usage
            for choice in piece.choices:
                said = choice.delta.content if hasattr(choice, "delta") else choice.text
                text += said or ""
                finish = choice.finish_reason or finish
    return text, finish, usage


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "speculation",
    [
        None,
        "off",
        {"k": 4, "adaptive": False},
        {"drafter": "ngram", "accept": "coupled"},
        {"strict": True},
    ],
)
def test_a_chat_complete_and_as_a_stream(client, tales, speculation):
    wanted = alone(tales, FOX)
    body = {} if speculation is None else {"speculation": speculation}
    whole = client.chat.completions.create(
        model="tales", messages=FOX, max_tokens=40, seed=7, extra_body=body
    )
    stream = client.chat.completions.create(
        model="tales", messages=FOX, max_completion_tokens=40, seed=7, stream=True, extra_body=body
    )
    assert whole.choices[0].message.content == in_pieces(stream)[0] == wanted.text
    assert whole.choices[0].finish_reason == wanted.finish_reason
    assert (whole.object, whole.model, whole.choices[0].message.role, whole.seed) == (
        "chat.completion",
        "tales",
        "assistant",
        7,
    )
    assert whole.usage.prompt_tokens == wanted.stats.n_prompt
    assert whole.usage.completion_tokens == len(wanted.tokens)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


@pytest.mark.few(2)
@pytest.mark.parametrize("prompt", [START, [START], "ids", "ids in an array"])
def test_a_text_complete_and_as_a_stream(client, tales, prompt):
    wanted = alone(tales, START)
    if prompt in ("ids", "ids in an array"):
        prompt = tales.tokenize(START) if prompt == "ids" else [tales.tokenize(START)]
    whole = client.completions.create(model="tales", prompt=prompt, max_tokens=40, seed=7)
    text, finish, usage = in_pieces(
        client.completions.create(
            model="tales",
            prompt=prompt,
            max_tokens=40,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert whole.choices[0].text == text == wanted.text
    assert whole.choices[0].finish_reason == finish == wanted.finish_reason
    assert usage.completion_tokens == whole.usage.completion_tokens == len(wanted.tokens)


def test_the_usage_has_the_counts_of_speculation(client):
    body = {"speculation": {"k": 4, "adaptive": False, "drafter": "model"}, "ignore_eos": True}
    usage = client.completions.create(
        model="tales", prompt=START, max_tokens=60, seed=7, extra_body=body
    ).usage
    told = usage.speculation
    assert 0 < told["accepted"] <= told["drafted"]
    assert told["acceptance"] == pytest.approx(told["accepted"] / told["drafted"], abs=1e-3)
    assert (usage.completion_tokens_details.accepted_prediction_tokens, usage.completion_tokens_details.rejected_prediction_tokens) == (
        told["accepted"], told["drafted"] - told["accepted"],
    )  # fmt: skip
    assert told["rounds"] < usage.completion_tokens
    off = client.completions.create(
        model="tales", prompt=START, max_tokens=60, seed=7, extra_body=body | {"speculation": "off"}
    ).usage.speculation
    assert (off["drafted"], off["rounds"]) == (0, 60)
    assert off["why_none"]


def test_usage_is_the_last_chunk_and_only_on_request(client):
    options = {"model": "tales", "messages": FOX, "max_tokens": 5, "stream": True}
    with client.chat.completions.create(**options) as stream:
        assert all(piece.usage is None and piece.choices for piece in stream)
    with client.chat.completions.create(
        **options, stream_options={"include_usage": True}
    ) as stream:
        *pieces, last = list(stream)
    assert all(piece.usage is None for piece in pieces)
    assert (last.choices, last.usage.completion_tokens) == ([], 5)
    assert pieces[0].choices[0].delta.role == "assistant"
    assert [piece.choices[0].finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [
        "length"
    ]
    assert len({piece.id for piece in pieces}) == 1


def test_chunks_show_drafted_tokens_on_request(client):
    body = {
        "speculation": {"k": 4, "adaptive": False},
        "stream_options": {"include_speculation": True},
        "ignore_eos": True,
    }
    with client.completions.create(
        model="tales", prompt=START, max_tokens=40, seed=7, stream=True, extra_body=body
    ) as stream:
        pieces = list(stream)
    shown = [piece.speculation for piece in pieces if getattr(piece, "speculation", None)]
    assert "".join(text for one in shown for text, _ in one["text"]) == "".join(
        piece.choices[0].text for piece in pieces
    )
    assert 0 < sum(one["accepted"] for one in shown) <= sum(one["drafted"] for one in shown)
    assert any(accepted for one in shown for _, accepted in one["text"])
    assert sum(one["tokens"] for one in shown) == 40


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fields", [
        {"temperature": 0.0}, {"temperature": 1.3, "top_p": 0.5}, {"frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"logit_bias": dict.fromkeys(range(300, 400), -100.0)},
        {"top_k": 3}, {"min_p": 0.2}, {"repeat_penalty": 1.3, "penalty_last_n": -1}, {"typical_p": 0.5, "top_n_sigma": 1.5},
        {"dry_multiplier": 5.0, "dry_allowed_length": 1}, {"xtc_probability": 0.5}, {"stop": "man"},
        {"stop": [".", ","]}, {"grammar": 'root ::= "ho " root'},
    ],
)  # fmt: skip
def test_options_of_sampling(client, tales, fields):
    wanted = alone(tales, START, **fields)
    sent = {
        name: {str(token): bias for token, bias in value.items()} if name == "logit_bias" else value
        for name, value in fields.items()
    }
    got = client.completions.create(
        model="tales", prompt=START, max_tokens=40, seed=7, extra_body=sent
    ).choices[0]
    assert (got.text, got.finish_reason) == (wanted.text, wanted.finish_reason)
    assert wanted.text != alone(tales, START).text


@pytest.mark.parametrize("ignored", [False, True])
def test_the_end_of_a_text_can_be_ignored(client, tales, ignored):
    bias = {str(token): 100.0 for token in tales.engine.target.weights.ends}
    sent = {"logit_bias": bias, "ignore_eos": ignored}
    got = client.completions.create(
        model="tales", prompt=START, max_tokens=10, seed=7, extra_body=sent
    ).choices[0]
    assert (got.finish_reason, bool(got.text)) == (("length", True) if ignored else ("stop", False))


def test_without_a_seed_answers_differ_and_name_theirs(client, tales):
    answers = [
        client.completions.create(model="tales", prompt=START, max_tokens=20) for _ in range(3)
    ]
    assert len({one.seed for one in answers}) == 3
    for one in answers:
        assert alone(tales, START, max_tokens=20, seed=one.seed).text == one.choices[0].text


def test_a_text_has_16_tokens_by_default(client):
    assert (
        client.completions.create(
            model="tales", prompt=START, extra_body={"ignore_eos": True}
        ).usage.completion_tokens
        == 16
    )


def test_echo(client):
    whole = (
        client.completions.create(model="tales", prompt=START, max_tokens=5, seed=1, echo=True)
        .choices[0]
        .text
    )
    pieces = in_pieces(
        client.completions.create(
            model="tales", prompt=START, max_tokens=5, seed=1, echo=True, stream=True
        )
    )[0]
    assert whole == pieces
    assert whole.startswith(START)
    assert len(whole) > len(START)


def test_logprobs_of_a_chat(client, tales):
    wanted = alone(tales, FOX, logprobs=3)
    choice = client.chat.completions.create(
        model="tales", messages=FOX, max_tokens=40, seed=7, logprobs=True, top_logprobs=3
    ).choices[0]
    content = choice.logprobs.content
    assert [one.logprob for one in content] == pytest.approx(
        [one.logprob for one in wanted.logprobs]
    )
    assert bytes(b for one in content for b in one.bytes).decode() == choice.message.content
    assert all(
        len(one.top_logprobs) == 3 and one.top_logprobs[0].logprob >= one.logprob for one in content
    )
    with client.chat.completions.create(
        model="tales",
        messages=FOX,
        max_tokens=40,
        seed=7,
        logprobs=True,
        top_logprobs=3,
        stream=True,
    ) as stream:
        streamed = [
            one
            for piece in stream
            if piece.choices[0].logprobs
            for one in piece.choices[0].logprobs.content
        ]
    assert [one.logprob for one in streamed] == pytest.approx([one.logprob for one in content])
    bare = (
        client.chat.completions.create(
            model="tales", messages=FOX, max_tokens=4, seed=7, logprobs=True
        )
        .choices[0]
        .logprobs.content
    )
    assert [len(one.top_logprobs) for one in bare] == [0] * 4


def test_logprobs_of_a_text(client):
    choice = client.completions.create(
        model="tales", prompt=START, max_tokens=30, seed=7, logprobs=2
    ).choices[0]
    told = choice.logprobs
    assert "".join(told.tokens) == choice.text
    assert told.text_offset == [len("".join(told.tokens[:i])) for i in range(30)]
    for token, logprob, top in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert top[token] == logprob <= max(top.values())
        assert 2 <= len(top) <= 3
        assert sum(math.exp(one) for one in top.values()) <= 1.001
    assert (
        client.completions.create(model="tales", prompt=START, max_tokens=3, logprobs=0)
        .choices[0]
        .logprobs.top_logprobs
        is None
    )


def test_a_system_message_a_developer_message_and_parts(client, tales):
    wanted = alone(tales, [{"role": "system", "content": "Be brief."}, *FOX])
    for role in ("system", "developer"):
        messages = [
            {"role": role, "content": "Be brief."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Tell me of"},
                    {"type": "text", "text": " a fox."},
                ],
            },
        ]
        assert (
            client.chat.completions.create(model="tales", messages=messages, max_tokens=40, seed=7)
            .choices[0]
            .message.content
            == wanted.text
        )


def test_models(client, tales):
    assert [model.id for model in client.models.list()] == ["tales"]
    model = client.models.retrieve("tales")
    assert (model.object, model.n_ctx, model.draft) == ("model", tales.n_ctx, tales.draft_name)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_slash_at_the_end_of_a_path_changes_nothing(server):
    assert ask(server, path="/v1/models/").json() == ask(server, path="/v1/models").json()
    assert ask(server, path="/v1/models/tales/").json()["id"] == "tales"
    body = {"messages": FOX, "max_tokens": 1}
    reply = ask(server, "POST", "/v1/chat/completions/", body)
    assert (reply.status, reply.json()["object"]) == (200, "chat.completion")
    reply = ask(server, path="/v1/nothing/")
    assert (reply.status, reply.code) == (404, "not_found")


def test_health_and_an_empty_model_name(server):
    assert (
        ask(server).json().items()
        >= {"status": "ok", "model": "tales", "queue": 0, "busy": False}.items()
    )
    assert ask_chat(server, model="").status == ask_chat(server).status == 200


def test_metrics_add_up(server, client):
    before = metrics(server)
    body = {"speculation": {"k": 4, "adaptive": False}}
    usages = [
        client.completions.create(
            model="tales", prompt=START, max_tokens=30, seed=seed, extra_body=body
        ).usage
        for seed in range(3)
    ]
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model="tales", prompt="")
    after = metrics(server)

    def gain(name):
        return after[name] - before.get(name, 0)

    assert gain("generated_tokens_total") == sum(one.completion_tokens for one in usages)
    assert gain("prompt_tokens_total") == sum(one.prompt_tokens for one in usages)
    for name in ("drafted", "accepted"):
        assert gain(f"{name}_tokens_total") == sum(one.speculation[name] for one in usages) > 0
        by_drafter = sum(
            after[key] - before.get(key, 0)
            for key in after
            if key.startswith(f"drafter_{name}_tokens_total")
        )
        assert by_drafter == gain(f"{name}_tokens_total")
    assert gain("rounds_total") == sum(one.speculation["rounds"] for one in usages)
    for part in ("prompt", "draft", "verify", "other"):
        assert gain(f'time_seconds_total{{part="{part}"}}') == pytest.approx(
            sum(one.speculation[f"{part}_s"] for one in usages), abs=1e-4
        )
    assert gain('requests_total{path="/v1/completions",status="200"}') == 3
    assert gain('requests_total{path="/v1/completions",status="400"}') == 1
    assert gain('requests_total{path="/metrics",status="200"}') == 1
    assert after["queue_length"] == after["busy"] == 0
    assert after["tokens_per_second"] > 0
    assert 0 < after['drafter_acceptance{drafter="model"}'] <= 1


def histograms(server):
    """Return name, and labels but for `le`, -> buckets as pairs of bound and count, count and sum."""
    text, found = ask(server, path="/metrics").body.decode(), {}
    types = re.findall(r"^# TYPE (\S+) histogram$", text, re.M)
    line = rf"^({'|'.join(types)})_(bucket|sum|count){{(.*)}} (\S+)$"
    for name, part, labels, value in re.findall(line, text, re.M):
        pairs = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
        bound = pairs.pop("le", None)
        one = found.setdefault((name, *sorted(pairs.items())), {"bucket": []})
        if bound:
            one["bucket"].append((float(bound), float(value)))
        else:
            one[part] = float(value)
    assert len(types) == 4
    return found


def test_histograms_have_the_names_of_opentelemetry(server, client):
    before = histograms(server)
    messages = [{"role": "user", "content": "Tell a tale."}]
    client.chat.completions.create(model="tales", messages=messages, max_tokens=9, seed=1)
    list(client.completions.create(model="tales", prompt=START, max_tokens=1, stream=True))
    asked = client.completions.create(model="tales", prompt=START, max_tokens=9, n=2, seed=1)
    after = histograms(server)

    def gains(metric, **labels):
        """Return the new number and sum of values of a metric."""
        named = {"gen_ai_provider_name": "gguf_spec", "gen_ai_request_model": "tales", **labels}
        key = (metric, *sorted(named.items()))
        old = before.get(key, {"count": 0, "sum": 0})
        return after[key]["count"] - old["count"], after[key]["sum"] - old["sum"]

    texts = {"gen_ai_operation_name": "text_completion"}
    for labels, n, n_several in (({"gen_ai_operation_name": "chat"}, 1, 1), (texts, 3, 2)):
        n_first, first_s = gains("gen_ai_server_time_to_first_token_seconds", **labels)
        n_whole, whole_s = gains("gen_ai_server_request_duration_seconds", **labels)
        n_tokens, token_s = gains("gen_ai_server_time_per_output_token_seconds", **labels)
        assert (n_first, n_whole, n_tokens) == (n, n, n_several)
        assert 0 < first_s < whole_s
        assert 0 < token_s < whole_s
    read = gains("gen_ai_client_token_usage", gen_ai_token_type="input", **texts)
    written = gains("gen_ai_client_token_usage", gen_ai_token_type="output", **texts)
    assert written == (3, asked.usage.completion_tokens + 1)
    assert read == (3, 3 * asked.usage.prompt_tokens)
    for one in after.values():
        bounds, counts = zip(*one["bucket"], strict=True)
        assert list(bounds) == sorted(set(bounds))
        assert list(counts) == sorted(counts)
        assert (bounds[-1], counts[-1]) == (float("inf"), one["count"])
        assert one["sum"] >= sum(
            low * (n - below)
            for low, n, below in zip(bounds, counts[1:], counts[:-1], strict=False)
        )


def test_the_duration_of_a_failed_answer_has_the_type_of_the_error(server, failing_streams):
    before = histograms(server)
    assert ask_text(server, max_tokens=20).status == 500
    after = histograms(server)
    grown = {key for key in after if after[key] != before.get(key)}
    named = {key[0] for key in grown if ("error_type", "RuntimeError") in key}
    assert named == {"gen_ai_server_request_duration_seconds"}
    assert {key[0] for key in grown} == named | {"gen_ai_client_token_usage"}


def test_per_request_settings_do_not_stay(client, tales):
    client.completions.create(
        model="tales", prompt=START, max_tokens=5, extra_body={"speculation": "off"}
    )
    assert tales.speculation == Speculation()


@pytest.mark.full
def test_the_description(server):
    told = ask(server, path="/openapi.json").json()
    assert set(told["paths"]) >= {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/health",
        "/metrics",
    }
    assert "security" not in told
    assert describe(("m",), True)["security"] == [{"key": []}]
