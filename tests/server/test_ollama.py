"""Ollama's API, driven by its official Python client where that is installed, and by plain requests."""

import asyncio
import contextlib
import http.client
import json
import threading
from urllib.parse import urlsplit

import pytest

import gguf_spec
from gguf_spec import __version__
from gguf_spec.server import running_servers, serve_in_thread
from tests.server.conftest import ask, ask_chat, metrics, until
from tests.support import reasoners
from tests.support.talkers import answering

HELLO = [{"role": "user", "content": "Hello."}]
OPTIONS = {"seed": 3, "num_predict": 12}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}  # fmt: skip
POSTS = ("/api/chat", "/api/generate", "/api/embed", "/api/embeddings", "/api/show")


def chat(server, **fields):
    return ask(server, "POST", "/api/chat", {"model": "tales", "messages": HELLO, "stream": False, "options": OPTIONS} | fields)  # fmt: skip


def generate(server, **fields):
    return ask(server, "POST", "/api/generate", {"model": "tales", "prompt": "Hello.", "stream": False, "options": OPTIONS} | fields)  # fmt: skip


def lines(reply):
    assert reply.status == 200, reply.body
    assert dict(reply.headers)["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in reply.body.decode().splitlines()]


# ---- the same text as on the other routes


def test_the_text_is_that_of_chat_completions(server):
    expected = ask_chat(server, seed=3, max_tokens=12, messages=HELLO).json()
    text, usage = expected["choices"][0]["message"]["content"], expected["usage"]
    whole = chat(server).json()
    assert whole["message"] == {"role": "assistant", "content": text}
    assert (whole["done"], whole["done_reason"]) == (True, "length")
    counts = (whole["prompt_eval_count"], whole["eval_count"])
    assert counts == (usage["prompt_tokens"], usage["completion_tokens"])
    times = [whole[f"{name}_duration"] for name in ("total", "load", "prompt_eval", "eval")]
    assert all(isinstance(one, int) and one >= 0 for one in times) and times[0] >= times[2]
    assert generate(server).json()["response"] == text
    for reply, said in (
        (chat(server, stream=True), lambda one: one["message"]["content"]),
        (generate(server, stream=None), lambda one: one["response"]),
    ):
        *pieces, last = lines(reply)
        assert "".join(map(said, pieces)) == text and len(pieces) > 1
        assert not any(one["done"] for one in pieces) and said(last) == ""
        assert (last["done_reason"], last["eval_count"]) == ("length", counts[1])
    system = [{"role": "system", "content": "Be short."}, *HELLO]
    with_system = ask_chat(server, seed=3, max_tokens=12, messages=system).json()
    assert generate(server, system="Be short.").json()["response"] == with_system["choices"][0]["message"]["content"]  # fmt: skip


def test_raw_prompts_and_options(server):
    options = {"temperature": 0.7, "top_k": 30, "top_p": 0.8, "min_p": 0.01, "repeat_penalty": 1.2}
    body = options | {"prompt": "Once", "seed": 5, "max_tokens": 10, "penalty_last_n": 32}
    body |= {"stop": ["."], "logprobs": 2}
    theirs = ask(server, "POST", "/v1/completions", body).json()["choices"][0]
    given = options | {"seed": 5, "num_predict": 10, "repeat_last_n": 32, "stop": ["."]}
    ours = generate(server, prompt="Once", raw=True, options=given, logprobs=True, top_logprobs=2)
    ours = ours.json()
    assert ours["response"] == theirs["text"]
    tokens = [one["token"] for one in ours["logprobs"]]
    assert tokens == theirs["logprobs"]["tokens"]
    assert all(len(one["top_logprobs"]) == 2 for one in ours["logprobs"])
    streamed = lines(chat(server, stream=True, logprobs=True))
    named = [one["token"] for piece in streamed for one in piece.get("logprobs", ())]
    assert len(named) == 12
    # options that are set when a model is loaded change nothing
    load = {"num_ctx": 8192, "num_gpu": 1, "num_keep": 4, "mirostat": 0, "tfs_z": 1}
    assert chat(server, options=OPTIONS | load, keep_alive="5m").json()["message"] == chat(server).json()["message"]  # fmt: skip


@pytest.mark.full
def test_formats(server):
    answer = chat(server, format="json", options={"seed": 1, "num_predict": 400, "temperature": 0})
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    made = chat(server, format=schema, options={"seed": 1, "num_predict": 60}).json()
    assert json.loads(made["message"]["content"])["a"] in (1, 2)
    assert answer.json()["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("chat", {"messages": "Hello"}, "messages must be an array"),
        ("chat", {"think": True}, "no reasoning parts"),
        ("chat", {"format": {"type": "thing"}}, "format"),
        ("generate", {"suffix": "x"}, "cannot fill in the middle"),
        ("generate", {"prompt": "a fox " * 5000}, "maximum context length is"),
        ("embed", {"input": 5}, "input must be a string or an array of strings"),
        ("embed", {"input": [[1]]}, "input[0] must be a string."),
        ("embed", {"input": ["a", 5]}, "input[1] must be a string."),
        ("embed", {"messages": None, "input": "x", "dimensions": 7}, "dimensions must be 256"),
        ("embeddings", {"prompt": 5}, "prompt must be a string"),
        ("chat", {"messages": [], "format": 5}, "format must be"),
        ("generate", {"prompt": "", "options": 5}, "options must be"),
    ],
)  # fmt: skip
def test_the_server_refuses_fields(server, path, fields, words):
    body = {"model": "tales", "stream": False, "messages": HELLO, "prompt": "x"}
    kept = {"chat": ("model", "stream", "messages"), "generate": ("model", "stream", "prompt")}
    reply = ask(server, "POST", f"/api/{path}", {name: body[name] for name in kept.get(path, ("model",))} | fields)  # fmt: skip
    assert reply.status == 400, reply.body
    error = reply.json()
    assert list(error) == ["error"] and words in error["error"], error


def test_limits_of_the_server(tales):
    with serve_in_thread(tales, api_key="secret", body_bytes=2000, max_tokens=4) as server:
        key = {"Authorization": "Bearer secret"}
        for path in POSTS:
            assert ask(server, "POST", path, {}).status == 401
            assert ask(server, "POST", path, {"prompt": "a" * 3000}, key).status == 413
            assert ask(server, "GET", path, headers=key).status == 405
        for path in ("/api/tags", "/api/version", "/api/ps"):
            assert ask(server, path=path).status == 401
            assert ask(server, path=path, headers=key).status == 200
        body = {"model": "tales", "messages": HELLO, "stream": False}
        reply = ask(server, "POST", "/api/chat", body, key)
        assert reply.json()["eval_count"] <= 4
        reply = ask(server, "POST", "/api/chat", body | {"options": {"num_predict": 9}}, key)
        assert (reply.status, reply.json()["error"]) == (400, "options.num_predict is 9 but the limit of this server is 4.")  # fmt: skip


# ---- models


def test_models(server, tales):
    (entry,) = ask(server, path="/api/tags").json()["models"]
    assert (entry["name"], entry["size"]) == ("tales", tales.path.stat().st_size)
    assert entry["details"]["family"] == "llama" and entry["details"]["parameter_size"] == "8.52M"
    shown = ask(server, "POST", "/api/show", {"model": "tales:latest"}).json()
    assert shown["capabilities"] == ["completion"] and shown["details"] == entry["details"]
    assert shown["model_info"]["general.architecture"] == "llama"
    assert "temperature 0.8" in shown["parameters"]
    assert ask(server, "POST", "/api/show", {"model": "llama9"}).status == 404
    assert ask(server, path="/api/version").json() == {"version": "0.6.4", "gguf_spec": __version__}
    (loaded,) = ask(server, path="/api/ps").json()["models"]
    assert (loaded["name"], loaded["size_vram"], loaded["expires_at"]) == ("tales", 0, None)
    for name in ("tales", "Tales:latest"):
        assert chat(server, model=name).status == 200
    for reply in (chat(server, messages=[]), generate(server, prompt="")):
        assert (reply.status, reply.json()["done_reason"]) == (200, "load")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"think": True},
        {"system": "x", "format": "json"},
        {"raw": True, "stream": True},
        {"keep_alive": -1},
    ],
)
def test_a_request_without_a_prompt_only_loads_the_model(server, fields):
    """Whatever other fields it has, as at Ollama."""
    for reply in (generate(server, prompt="", **fields), chat(server, messages=[], **fields)):
        made = reply.json()
        assert (reply.status, made["model"], made["done"], made["done_reason"]) == (
            200,
            "tales",
            True,
            "load",
        )


@pytest.mark.parametrize("given", [{}, {"input": ""}, {"input": []}, {"input": None}])
def test_a_request_without_a_text_to_embed_only_loads_the_model(server, given):
    made = ask(server, "POST", "/api/embed", {"model": "tales"} | given)
    assert (made.status, made.json()["embeddings"], made.json()["model"]) == (200, [], "tales")
    older = {"prompt" if name == "input" else name: value for name, value in given.items()}
    made = ask(server, "POST", "/api/embeddings", {"model": "tales"} | older)
    assert (made.status, made.json()) == (200, {"embedding": []})


def test_the_fields_that_ps_reads(tales, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with serve_in_thread(tales, listed=True, api_key="secret"):
        (one,) = running_servers()
        (model,) = one.models
        assert {"name", "size", "context_length", "busy", "seconds_left"} <= set(model)


@pytest.mark.full
def test_embeddings(server, tales):
    made = ask(server, "POST", "/api/embed", {"model": "tales", "input": ["a fox", "b"]}).json()
    expected = tales.embed(["a fox", "b"])
    assert made["embeddings"] == pytest.approx(expected, abs=1e-6)
    assert made["prompt_eval_count"] == len(tales.tokenize("a fox")) + len(tales.tokenize("b"))
    long = {"model": "tales", "input": "a fox " * 5000}
    assert ask(server, "POST", "/api/embed", long).json()["prompt_eval_count"] == tales.n_ctx
    reply = ask(server, "POST", "/api/embed", long | {"truncate": False})
    assert reply.status == 400 and "reads 2,048 at once" in reply.json()["error"]
    old = ask(server, "POST", "/api/embeddings", {"model": "tales", "prompt": "a fox"}).json()
    raw = tales.embed("a fox", normalize=False)[0]
    assert old["embedding"] == pytest.approx(raw, rel=1e-4, abs=1e-4)


# ---- reasoning and tools


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    path = tmp_path_factory.mktemp("thinker") / "thinker.gguf"
    chain = ["Ċ", "a", "b", "</think>", "c", "d", "<|endoftext|>"]
    with reasoners.thinker(path, reasoners.QWEN35, chain) as llm, serve_in_thread(llm) as server:
        yield server


def test_thinking(thinker):
    options = {"temperature": 0, "num_predict": 30}
    for think in (None, True, "low"):
        said = chat(thinker, think=think, options=options).json()
        assert said["message"] == {"role": "assistant", "content": "cd", "thinking": "ab"}
        assert said["done_reason"] == "stop"
    assert generate(thinker, options=options).json()["thinking"] == "ab"
    messages = [one["message"] for one in lines(chat(thinker, stream=True, options=options))]
    assert "".join(one.get("thinking", "") for one in messages) == "ab"
    assert "".join(one["content"] for one in messages) == "cd"
    assert "thinking" not in chat(thinker, think=False, options=options).json()["message"]
    asked = ask(thinker, "POST", "/api/show", {"model": ""}).json()
    assert "thinking" in asked["capabilities"]


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that calls a tool, and answers after its result."""
    path = tmp_path_factory.mktemp("caller") / "caller.gguf"
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
    answering(path, {"\n": ["Well. ", call], "Q": ["It is ", "sunny."]})
    with gguf_spec.load(path, None, threads=1) as llm, serve_in_thread(llm) as server:
        yield server


def conversation(call, stream):
    """Send a question, run the tool, and send its result; return all messages of the model."""
    messages, said = [{"role": "user", "content": "Weather in Rome?"}], []
    for _ in range(2):
        found = call(messages, stream)
        said.append(found)
        messages.append({"role": "assistant", "content": found[0], "tool_calls": found[1]})
        if found[1]:
            messages.append({"role": "tool", "content": "22", "tool_name": "get_weather"})
    return said


EXPECTED = [
    ("Well.", [{"function": {"name": "get_weather", "arguments": {"city": "Rome"}}}]),
    ("It is sunny.", []),
]


@pytest.mark.parametrize("stream", [False, True])
def test_tools(caller, stream):
    def call(messages, stream):
        reply = chat(caller, messages=messages, tools=[TOOL], stream=stream, options={"temperature": 0})  # fmt: skip
        pieces = [one["message"] for one in (lines(reply) if stream else [reply.json()])]
        calls = [one for piece in pieces for one in piece.get("tool_calls", ())]
        return "".join(piece["content"] for piece in pieces), calls

    assert conversation(call, stream) == EXPECTED
    shown = ask(caller, "POST", "/api/show", {"model": ""}).json()
    assert shown["capabilities"] == ["completion", "tools"]


# ---- cancellation, several at once


def test_a_closed_connection_frees_the_engine(endless):
    with serve_in_thread(endless) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=180)
        connection.request(
            "POST", "/api/generate", json.dumps({"model": "", "prompt": "abc", "raw": True})
        )
        with connection.getresponse() as response:
            assert json.loads(response.readline())["response"]
            assert ask(server, path="/health").json()["running"] == 1
            connection.close()
        until(lambda: ask(server, path="/health").json()["running"] == 0)


@pytest.mark.full
def test_several_at_once(server):
    alone = [chat(server, options=OPTIONS | {"seed": i}).json()["message"] for i in range(4)]
    found = {}

    def run(i):
        if i % 2:
            found[i] = chat(server, options=OPTIONS | {"seed": i % 4}).json()["message"]
        else:
            pieces = lines(chat(server, stream=True, options=OPTIONS | {"seed": i % 4}))
            text = "".join(one["message"]["content"] for one in pieces)
            found[i] = {"role": "assistant", "content": text}

    threads = [threading.Thread(target=run, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(12)] == alone * 3
    assert metrics(server)['requests_total{path="/api/chat",status="200"}'] >= 16


# ---- the official client


@pytest.fixture
def stack():
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def ollama():
    return pytest.importorskip("ollama", reason="the extra dev installs it")


@pytest.mark.full
def test_the_official_client(server, ollama, tales, stack):
    text = chat(server).json()["message"]["content"]
    client = stack.enter_context(ollama.Client(server.url))
    assert client.chat("tales", HELLO, options=OPTIONS).message.content == text
    pieces = client.chat("tales", HELLO, options=ollama.Options(**OPTIONS), stream=True)
    assert "".join(one.message.content for one in pieces) == text
    assert client.generate("tales", "Hello.", options=OPTIONS).response == text
    *said, last = client.generate("tales", "Hello.", options=OPTIONS, stream=True)
    assert "".join(one.response for one in said) == text
    assert (last.done, last.done_reason, last.eval_count) == (True, "length", 12)
    assert client.generate("tales", "").done_reason == client.chat("tales").done_reason == "load"
    assert [one.model for one in client.list().models] == ["tales"]
    assert client.ps().models[0].context_length == tales.n_ctx
    assert client.show("tales").modelinfo["general.architecture"] == "llama"
    assert len(client.embed("tales", ["a", "b"]).embeddings) == 2
    assert len(client.embeddings("tales", "a").embedding) == 256
    with pytest.raises(ollama.ResponseError, match="is not a PNG") as caught:
        client.chat("tales", [{"role": "user", "content": "x", "images": [b"abc"]}])
    assert caught.value.status_code == 400
    with pytest.raises(ollama.ResponseError) as caught:
        client.pull("tales")
    assert caught.value.status_code == 404


@pytest.mark.full
def test_the_official_client_with_asyncio(server, ollama):
    text = chat(server).json()["message"]["content"]

    async def work():
        async with ollama.AsyncClient(server.url) as client:
            whole = client.chat("tales", HELLO, options=OPTIONS)
            other = client.generate("tales", "Hello.", options=OPTIONS)
            one, two = await asyncio.gather(whole, other)
            stream = await client.chat("tales", HELLO, options=OPTIONS, stream=True)
            pieces = [chunk.message.content async for chunk in stream]
        return one.message.content, two.response, "".join(pieces)

    assert asyncio.run(work()) == (text, text, text)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tools_of_the_official_client(caller, ollama, stack, stream):
    def get_weather(city: str) -> str:
        """Tell the weather.

        Args:
            city: The city.
        """
        return city

    client = stack.enter_context(ollama.Client(caller.url))

    def call(messages, stream):
        made = client.chat(
            "caller", messages, tools=[get_weather], stream=stream, options={"temperature": 0}
        )
        pieces = [one.message for one in (made if stream else [made])]
        calls = [one.model_dump() for piece in pieces for one in piece.tool_calls or ()]
        return "".join(piece.content or "" for piece in pieces), calls

    assert conversation(call, stream) == EXPECTED
