"""What clients of llama-server rely on: routes, fields, answers and options; one test for each rule."""

import json

import pytest

import gguf_spec
from gguf_spec.cli import serve as command
from gguf_spec.doctor.models import _sampling
from gguf_spec.gguf.validation import read_header
from gguf_spec.options import OPTIONS, PARAMETERS, Sampling, sampling_in
from gguf_spec.protocols.bodies import continued
from gguf_spec.protocols.errors import ApiError
from gguf_spec.registry.resolve import resolve
from gguf_spec.server import ModelPool, serve_in_thread, served_model
from gguf_spec.tools.families import family_of
from tests.server.conftest import ask, ask_chat, ask_text
from tests.support import encoders, tiny

HELLO = [{"role": "user", "content": "Hello."}]
LIMITS = {"max_tokens": 4, "seed": 1}


def post(server, path, **body):
    return ask(server, "POST", path, body)


def events(reply):
    lines = reply.body.decode().splitlines()
    return [json.loads(one[6:]) for one in lines if one.startswith("data: {")]


def text(reply):
    return reply.json()["choices"][0]["message"]["content"]


# ---- routes


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/chat/completions", {"messages": HELLO}, "chat.completion"),
        ("/responses", {"input": "Hello."}, "response"),
        ("/messages", {"messages": HELLO}, "message"),
        ("/choose", {"prompt": "a", "options": [" b"]}, "list"),
    ],
)
def test_routes_without_the_version(server, path, body, kind):
    answer = post(server, path, **body, **(LIMITS if path != "/choose" else {}))
    assert answer.json().get("object", answer.json().get("type")) == kind
    same = post(server, f"/v1{path}", **body, **(LIMITS if path != "/choose" else {}))
    assert answer.json().keys() == same.json().keys()
    wrong = post(server, path, messages=3, input=3)
    assert wrong.json().keys() == post(server, f"/v1{path}", messages=3, input=3).json().keys()


def test_other_routes_without_the_version(server):
    assert ask(server, path="/models").json() == ask(server, path="/v1/models").json()
    assert ask(server, path="/models/tales").json()["id"] == "tales"
    for path in ("/nothing", "/v1/nothing", "/v1/v1/nothing"):
        assert ask(server, path=path).status == 404
    assert 'requests_total{path="/v1/models",status="200"}' in ask(server, path="/metrics").body.decode()  # fmt: skip


@pytest.mark.parametrize("path", ["/completion"])
def test_native_completions(server, path):
    plain = ask_text(server, prompt="Once", max_tokens=6, seed=1).json()["choices"][0]["text"]
    fields = {"prompt": "Once", "n_predict": 6, "seed": 1}
    answer = post(server, path, **fields, return_tokens=True, n_probs=2).json()
    assert answer["content"] == plain and answer["stop_type"] == "limit"
    assert len(answer["tokens"]) == answer["tokens_predicted"] == 6
    assert (answer["prompt"], answer["has_new_line"]) == ("Once", "\n" in plain)
    assert answer["generation_settings"]["n_predict"] == 6
    assert answer["timings"]["draft_n"] >= answer["timings"]["draft_n_accepted"]
    named = answer["completion_probabilities"]
    assert [one["id"] for one in named] == answer["tokens"]
    assert {len(one["top_logprobs"]) for one in named} == {2}
    sent = events(post(server, path, **fields, stream=True))
    assert "".join(one["content"] for one in sent) == plain
    assert [token for one in sent[:-1] for token in one["tokens"]] == answer["tokens"]
    assert sent[-1]["stop"] and sent[-1]["has_new_line"] == answer["has_new_line"]


def test_native_prompts(server, tales):
    ids = tales.vocabulary.tokenize("Once", special=True, start=False)
    prompts = ["Once", ids, {"prompt_string": "Once"}, ["Once"]]
    answers = post(server, "/completion", prompt=prompts, n_predict=4, seed=1).json()
    assert len({one["content"] for one in answers}) == 1 and len(answers) == 4
    mixed = post(server, "/completion", prompt=[*ids, " upon"], n_predict=4, seed=1).json()
    whole = tales.vocabulary.tokenize(" upon", special=True, start=False)
    assert mixed["tokens_evaluated"] == len(ids) + len(whole)
    for wrong in ({"multimodal_data": ["x"], "prompt_string": "x"}, {}, 5, [["a", {}]], None):
        reply = post(server, "/completion", prompt=wrong)
        assert reply.status == 400 and reply.param.startswith("prompt")
    assert post(server, "/completion", prompt=["a"] * 129).status == 400


def test_embeddings_in_the_own_form(server, tales):
    unit, raw = tales.embed(["a", "b"]), tales.embed(["a"], normalize=False)
    answer = post(server, "/embedding", content=["a", "b"]).json()
    assert [one["index"] for one in answer] == [0, 1]
    assert answer[1]["embedding"][0] == pytest.approx(unit[1].tolist(), abs=1e-6)
    answer = post(server, "/embeddings", input="a", embd_normalize=-1).json()
    assert answer[0]["embedding"][0] == pytest.approx(raw[0].tolist(), abs=1e-4)
    assert post(server, "/embedding").param == "content"
    assert post(server, "/embedding", content="a", embd_normalize=1).param == "embd_normalize"


def test_the_prompt_of_a_chat(server, tales):
    messages = [*HELLO, {"role": "assistant", "content": "<|im_end|> Hi"}]
    shown = post(server, "/apply-template", messages=messages).json()["prompt"]
    assert shown.endswith("<|im_start|>assistant\n<|im_end|> Hi")
    assert post(server, "/apply-template", messages=1).param == "messages"
    count = post(server, "/chat/completions/input_tokens", messages=HELLO).json()
    assert count == {"input_tokens": len(tales.tokenize(HELLO))}


# ---- answers


def test_timings_and_fingerprint(server):
    answers = [
        ask_chat(server).json(),
        ask_text(server).json(),
        post(server, "/v1/responses", input="Hello.", max_output_tokens=4, seed=1).json(),
    ]
    assert {one["system_fingerprint"] for one in answers} == {answers[0]["system_fingerprint"]}
    for one in answers:
        times = one["timings"]
        assert times["predicted_n"] == 4 and times["cache_n"] + times["prompt_n"] > 0
        assert times["draft_n"] >= times["draft_n_accepted"] >= 0
    two = ask_chat(server, n=2).json()
    assert two["timings"]["predicted_n"] == 8
    last = events(ask_chat(server, stream=True))[-1]
    assert last["timings"]["predicted_n"] == 4 and last["system_fingerprint"]
    last = events(ask_chat(server, stream=True, stream_options={"include_usage": True}))[-1]
    assert last["choices"] == [] and last["timings"]["predicted_n"] == 4


def test_counts_in_each_chunk(server):
    fields = {"stream": True, "timings_per_token": True}
    sent = events(ask_chat(server, **fields, stream_options={"continuous_usage_stats": True}))
    counts = [one["usage"]["completion_tokens"] for one in sent]
    assert counts == sorted(counts) and (counts[0], counts[-1]) == (0, 4)
    assert [one["timings"]["predicted_n"] for one in sent] == counts
    reply = ask_chat(server, stream=True, stream_options={"x": 1})
    assert reply.headers["x-not-applied"] == "stream_options.x"
    assert "usage" not in events(reply)[0] and "timings" not in events(reply)[0]


def test_metrics_with_the_names_of_llama_server(server):
    ask_chat(server)
    body = ask(server, path="/metrics").body.decode()
    theirs = dict(one.split(" ") for one in body.splitlines() if one.startswith("llamacpp:"))
    ours = dict(one.rsplit(" ", 1) for one in body.splitlines() if one.startswith("gguf_spec_"))
    assert theirs["llamacpp:tokens_predicted_total"] == ours["gguf_spec_generated_tokens_total"]
    assert float(theirs["llamacpp:prompt_tokens_seconds"]) > 0
    for name in theirs:
        counts = name.endswith(("_total", "n_tokens_max"))
        kind = "counter" if counts else "gauge"
        assert f"# TYPE {name} {kind}\n" in body and f"# HELP {name} " in body
    assert float(theirs["llamacpp:n_tokens_max"]) > 4
    assert 0 < float(theirs["llamacpp:n_busy_slots_per_decode"]) <= 1  # one request at a time


def test_passes_of_embeddings_are_counted(server):
    def n_decode():
        lines = ask(server, path="/metrics").body.decode().splitlines()
        return next(float(x.split()[1]) for x in lines if x.startswith("llamacpp:n_decode_total"))

    before = n_decode()
    assert post(server, "/v1/embeddings", input=["a", "b"]).status == 200
    assert before < n_decode() <= before + 2


# ---- fields


def test_logit_biases_of_texts(server, tales):
    word = text(ask_chat(server, temperature=0, max_tokens=1))
    for form in ([[word, False]], {word: -100}, {word: False}):
        assert text(ask_chat(server, temperature=0, max_tokens=1, logit_bias=form)) != word
    (token,) = tales.vocabulary.tokenize(word, special=True, start=False)
    by_id = ask_chat(server, temperature=0, logit_bias={token: False})
    assert text(by_id) == text(ask_chat(server, temperature=0, logit_bias={word: False}))
    for wrong in ({"a": "b"}, {"a": 1e9}, [["a"]], "a"):
        assert ask_chat(server, logit_bias=wrong).param == "logit_bias"


@pytest.mark.parametrize(
    ("fields", "noted"),
    [
        ({"top_n_sigma": -1, "t_max_predict_ms": 0, "verbose": False, "lora": []}, None),
        ({"penalize_nl": False, "cache_prompt": False, "n_keep": 0, "min_keep": 0}, None),
        ({"return_progress": True, "samplers": ["top_k"]}, "samplers"),
        (
            {"speculative.n_max": 3, "reasoning_format": "none"},
            "speculative.n_max, reasoning_format",
        ),
    ],
)
def test_fields_of_llama_server(server, fields, noted):
    plain, reply = ask_chat(server, seed=1), ask_chat(server, seed=1, **fields)
    assert text(plain) == text(reply)
    assert reply.headers.get("x-not-applied") == noted


LONG = "the king went home and the fox ran on " * 80


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}], "n": 2}),
        ("/v1/completions", {"prompt": LONG}),
        ("/completion", {"prompt": LONG}),
        ("/v1/responses", {"input": LONG, "max_output_tokens": 4, "seed": 1}),
    ],
)
@pytest.mark.parametrize("times", [False, True])
def test_progress_of_a_prompt(server, tales, path, body, times):
    given = body if "max_output_tokens" in body else body | LIMITS
    tales.forget()
    plain = events(post(server, path, stream=True, **given))
    for is_cached in (False, True):
        if not is_cached:
            tales.forget()
        asked = {"return_progress": True, "timings_per_token": times, "stream": True}
        found = events(post(server, path, **given, **asked))
        told = [one for one in found if "prompt_progress" in one]
        parts = [one["prompt_progress"] for one in told]
        for index in {one["choices"][0]["index"] if "choices" in one else 0 for one in told}:
            of_one = [
                part
                for one, part in zip(told, parts, strict=True)
                if "choices" not in one or one["choices"][0]["index"] == index
            ]
            first, last = of_one[0], of_one[-1]
            read = [part["processed"] for part in of_one]
            assert read == sorted(set(read)) and read[0] == first["cache"] == last["cache"]
            assert last["processed"] == last["total"] > 500 and first["time_ms"] == 0
            assert bool(first["cache"]) == (is_cached or index > 0)
            assert len(of_one) > 2 or first["cache"]
        assert all(("timings" in one) == times for one in told)
        if times:
            assert told[0]["timings"]["prompt_n"] == told[0]["timings"]["predicted_n"] == 0
            assert told[-1]["timings"]["prompt_n"] == parts[-1]["total"] - parts[-1]["cache"]
        assert written(found) == written(plain)
    assert not any("prompt_progress" in one for one in plain)
    whole = post(server, path, **given, return_progress=True)
    assert "prompt_progress" not in whole.body.decode() and "x-not-applied" not in whole.headers


def written(found):
    """Return the text of the events of a stream; how it is cut depends on the drafts."""
    texts = []
    for one in found:
        choice = one.get("choices", [{}])[0]
        texts += [choice.get("text"), choice.get("delta", {}).get("content"), one.get("content")]
        texts.append(one.get("delta") if "type" in one else None)
    return "".join(text for text in texts if isinstance(text, str))


def test_times_in_each_event_of_a_response(server):
    given = {"input": "a", "max_output_tokens": 4, "seed": 1, "stream": True}
    found = events(post(server, "/v1/responses", **given, timings_per_token=True))
    made = [one for one in found if one["type"] == "response.output_text.delta"]
    assert made and all(one["timings"]["predicted_n"] > 0 for one in made)
    assert found[-1]["timings"] == found[-1]["response"]["timings"]
    assert "timings" not in events(post(server, "/v1/responses", **given))[-2]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/completions", "/completion"])
def test_forms_of_texts(server, tales, path):
    field = "input" if path == "/v1/embeddings" else "prompt"

    def answer(value):
        body = post(server, path, **{field: value}, **({} if field == "input" else LIMITS))
        assert body.status == 200, body.body
        made = body.json()
        if field == "input":
            return [one["embedding"] for one in made["data"]]
        made = made if isinstance(made, list) else made.get("choices", [made])
        return [one.get("text", one.get("content")) for one in made]

    ids = tales.tokenize("Once upon")
    (wanted,) = answer("Once upon")
    parts = [{"type": "text", "text": "Once"}, {"type": "text", "text": " upon"}]
    forms = [{"prompt_string": "Once upon"}, {"content": parts}, ids]
    mixed = ["Once", *tales.vocabulary.tokenize(" upon", special=True, start=False)]
    if path == "/completion":  # of llama-server
        forms.append(mixed)
    else:  # at OpenAI one of two prompts would be a number
        reply = post(server, path, **{field: mixed})
        assert (reply.status, reply.param) == (400, f"{field}[1]"), reply.body
    for form in forms:
        assert answer(form) == [wanted], form
        assert answer(["a b", form])[1] == wanted, form
    for wrong, place in (
        ({"content": "a"}, f"{field}.content"),
        ({"content": [{"type": "image_url"}]}, f"{field}.content[0]"),
        (["a", {"content": [{"type": "text"}]}], f"{field}[1].content[0].text"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, f"{field}.multimodal_data"),
        (["a", 1.5], f"{field}[1]"),
        (["a", None], f"{field}[1]"),
        ({}, f"{field}.prompt_string"),
    ):
        reply = post(server, path, **{field: wrong})
        assert (reply.status, reply.param) == (400, place), reply.body


def test_rows_of_a_model_without_pooling_are_as_they_are(tmp_path):
    path = encoders.write(tmp_path / "bert.gguf")
    with gguf_spec.load(path, None, pooling="none", threads=1, extra_bufts=False) as llm:
        with serve_in_thread(llm) as server:
            (one,) = post(server, "/embeddings", input="the cat").json()
        wanted = llm.embed("the cat", normalize=False)[0].tolist()
    assert one["embedding"] == wanted
    assert all(abs(sum(x * x for x in row) - 1) > 1e-3 for row in wanted)


def test_probabilities_by_their_name(server):
    choice = ask_chat(server, n_probs=2).json()["choices"][0]
    assert {len(one["top_logprobs"]) for one in choice["logprobs"]["content"]} == {2}
    assert len(ask_text(server, n_probs=3).json()["choices"][0]["logprobs"]["top_logprobs"][0]) >= 3
    assert ask_chat(server, n_probs=0).json()["choices"][0]["logprobs"] is None


SCHEMA = {"type": "integer", "minimum": 10, "maximum": 99}


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": SCHEMA},
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ],
)
def test_forms_of_schemas(server, fields):
    given = {"max_tokens": 8, "seed": 1} | fields
    assert 10 <= int(text(ask_chat(server, **given))) <= 99
    assert 10 <= int(ask_text(server, **given).json()["choices"][0]["text"]) <= 99
    assert 10 <= int(post(server, "/completion", prompt="a", **given).json()["content"]) <= 99


# ---- the last message of the assistant


def test_the_last_message_is_continued(server, tales):
    begun = [*HELLO, {"role": "assistant", "content": "Once"}]
    wanted = tales.generate(HELLO, Sampling(max_tokens=4, seed=1), prefill="Once").text
    assert text(ask_chat(server, messages=begun, seed=1)) == wanted
    more = {"continue_final_message": True, "add_generation_prompt": False}
    assert text(ask_chat(server, messages=begun, seed=1, **more)) == wanted
    message = post(server, "/v1/messages", messages=begun, **LIMITS).json()
    assert message["content"][0]["text"] == wanted
    item = post(server, "/v1/responses", input=begun, max_output_tokens=4, seed=1).json()
    assert item["output"][0]["content"][0]["text"] == wanted
    options = {"num_predict": 4, "seed": 1}
    ollama = post(server, "/api/chat", messages=begun, options=options, stream=False).json()
    assert ollama["message"]["content"] == wanted
    counted = post(server, "/v1/messages/count_tokens", messages=begun).json()["input_tokens"]
    assert counted == len(tales.tokenize(HELLO, prefill="Once"))
    new = ask_chat(server, messages=begun, seed=1, continue_final_message=False)
    closed = tales.generate(begun, Sampling(max_tokens=4, seed=1)).text
    assert text(new) == text(ask_chat(server, messages=begun, seed=1, add_generation_prompt=True)) == closed  # fmt: skip


def test_what_cannot_be_continued(server):
    assert ask_chat(server, continue_final_message=True).param == "continue_final_message"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    begun = [*HELLO, {"role": "assistant", "content": "x"}]
    assert ask_chat(server, messages=begun, **both).param == "continue_final_message"
    reply = ask_chat(server, messages=begun, json_schema=SCHEMA)
    assert (reply.status, reply.param) == (400, "messages")  # no such number begins with x
    call = {"role": "assistant", "content": "", "tool_calls": [{}]}
    thought = begun[-1] | {"reasoning_content": "y"}
    assert continued([*HELLO, thought]) == ([*HELLO, thought], "")
    assert continued([*HELLO, thought], True) == (HELLO, "x")
    for messages in ([begun[-1]], HELLO, [*HELLO, call]):
        assert continued(messages) == (messages, "")
        with pytest.raises(ApiError, match="requires a last message"):
            continued(messages, True)


# ---- tools of templates without them


def test_the_general_form_of_calls():
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert family_of(template).name == "hermes"
    assert family_of(template + "{{ tools }}").name == "llama3"
    assert family_of(template + "[TOOL_CALLS]").name == "mistral"


# ---- the start


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """A model with sampling options in its file and in a models file."""
    folder = tmp_path_factory.mktemp("preset")
    values = {"temp": 0.5, "top_k": 7, "top_p": 0.5, "min_p": 5.0, "penalty_repeat": 1.25}
    metadata = {f"general.sampling.{name}": value for name, value in values.items()}
    tiny.write(folder / "preset.gguf", metadata=metadata)
    text = "models:\n  preset:\n    path: preset.gguf\n    sampling: {top_k: 9, top_p: 0.75}\n"
    (folder / "models.yaml").write_text(text, encoding="utf-8")
    return folder / "models.yaml"


def test_defaults_of_the_start_of_models_yaml_and_of_the_file(preset):
    given = {"top_p": 0.25, "max_tokens": 3, "seed": 5}
    more = {"sampling": given, "threads": 1, "extra_bufts": False, "chat_template": "{{ messages[0].content }}"}  # fmt: skip
    with gguf_spec.load("preset", None, models_file=preset, **more) as llm:
        sampling, sources = llm.sampling, llm.sampling_sources
        assert (sampling.temperature, sampling.repeat_penalty, sampling.min_p) == (0.5, 1.25, 0.0)
        assert (sampling.top_k, sampling.top_p) == (9, 0.25)
        assert sources == {
            "temperature": "file",
            "repeat_penalty": "file",
            "top_k": "models.yaml",
            **dict.fromkeys(given, "option"),
        }
        assert llm.chat_template == "{{ messages[0].content }}"
        with serve_in_thread(llm) as server:
            props = ask(server, path="/props").json()
            assert props["sampling_sources"] == sources
            assert props["default_generation_settings"]["params"]["n_predict"] == 3
            answer = post(server, "/completion", prompt="a", temperature=0.75).json()
            settings = answer["generation_settings"]
            wanted = {"temperature": 0.75, "top_k": 9, "top_p": 0.25, "n_predict": 3, "seed": 5}
            assert {name: settings[name] for name in wanted} == wanted
            assert ask_text(server, max_tokens=None).json()["usage"]["completion_tokens"] <= 3
            assert post(server, "/completion", prompt="a", temperature=0.75).json()["content"] == answer["content"]  # fmt: skip
            assert "preset.gguf" not in json.dumps(ask(server, path="/v1/models").json()["data"][0]["id"])  # fmt: skip


def test_doctor_names_the_defaults(preset):
    entry = resolve("preset", preset)
    (check,) = _sampling(read_header(entry.path), entry)
    assert "temperature 0.5 (file)" in check.found and "top_k 9 (models.yaml)" in check.found
    assert [*_sampling(read_header(encoders_path(preset.parent)), resolve("tales"))] == []
    assert sampling_in({"general.sampling.temp": "x", "general.sampling.top_k": -4}) == {}


def encoders_path(folder):
    encoders.write(folder / "bert.gguf")
    return folder / "bert.gguf"


def test_options_of_the_start(monkeypatch):
    class Read(Exception):
        pass

    def settings(options):
        raise Read(options)

    monkeypatch.setattr(command, "_settings", settings)
    with pytest.raises(Read) as read:
        command.serve.main(["--temp", "0", "-n", "-1", "--top-k", "3", "--alias", "a"], standalone_mode=False)  # fmt: skip
    options = read.value.args[0]
    assert options["default_sampling"] == {"temperature": 0, "max_tokens": None, "top_k": 3}
    assert options["alias"] == "a" and {PARAMETERS[name] for name in OPTIONS} >= {"max_tokens"}
    with pytest.raises(gguf_spec.errors.InvalidOptionError, match="at most 5"):
        command.serve.main(["-n", "9", "--max-tokens-limit", "5"], standalone_mode=False)


def test_names_and_facts_of_models(tmp_path):
    path = tiny.write(tmp_path / "small.gguf")
    given = served_model(path, alias="first, Second", threads=1, extra_bufts=False)
    with ModelPool([given]) as pool, serve_in_thread(pool, any_model=False) as server:
        assert post(server, "/completion", prompt="a", n_predict=1, model="second").json()["model"] == "first"  # fmt: skip
        (model,) = ask(server, path="/v1/models").json()["data"]
        assert model["id"] == "first" and "second" in model["aliases"]
        assert model["meta"]["n_vocab"] == len(tiny.TOKENS) and model["meta"]["n_params"] > 0
        assert model["capabilities"][0] == "completion"
        for route in ("/v1/models", "/props", "/api/tags", "/api/ps", "/slots", "/health", "/metrics"):  # fmt: skip
            assert str(tmp_path) not in ask(server, path=route).body.decode()
        assert str(tmp_path) not in post(server, "/api/show", model="first").body.decode()


def test_ranks_in_the_forms_of_tei_and_cohere(tmp_path):
    encoders.write(tmp_path / "rank.gguf", pooling=4, ranks=True)
    with gguf_spec.load(tmp_path / "rank.gguf", threads=1) as llm, serve_in_thread(llm) as server:
        texts = ["hello world", "the cat sat"]
        cohere = post(server, "/rerank", query="moon", documents=texts, max_chunks_per_doc=1, truncate=True)  # fmt: skip
        wanted = [(one["index"], one["relevance_score"]) for one in cohere.json()["results"]]
        tei = post(server, "/rerank", query="moon", texts=texts, return_text=True).json()
        assert [(one["index"], one["score"]) for one in tei] == wanted
        assert [one["text"] for one in tei] == [texts[index] for index, _ in wanted]
        assert len(post(server, "/rerank", query="moon", texts=texts, top_n=1).json()) == 1
        assert post(server, "/rerank", query="moon").param == "documents"
