"""Published models: SmolLM2-135M-Instruct, Gemma 3 270M (base), and with --all Qwen2.5-Coder 1.5B, TinyLlama and nomic-embed.

scripts/models/fetch_test_models.py puts them into the user's cache; tests of a model that is not there are skipped.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.registry.resolve import resolve
from gguf_spec.server import ModelPool, serve_in_thread, served_model
from tests.gguf.test_needs import peak_and_needs
from tests.support import children

# Read before the tests take a cache of their own.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-spec"
_TEST_MODELS = Path(__file__).parents[2] / "scripts/models/test_models.yaml"
_NAMES = (
    *("smollm2-135m-instruct", "gemma3-270m-base"),
    *("qwen2.5-coder-1.5b", "tinyllama-1.1b", "nomic-embed-text-v1.5"),
)
SMOLLM2, GEMMA, QWEN, TINYLLAMA, NOMIC = (
    _CACHE / "models" / part.sha256[:32] / part.file.rpartition("/")[2]
    for name in _NAMES
    for part in resolve(name, _TEST_MODELS).parts
)
FETCH = "run scripts/models/fetch_test_models.py, which needs a network"
smollm2_only = pytest.mark.skipif(not SMOLLM2.exists(), reason=FETCH)
qwen_only, tinyllama_only, nomic_only = (
    pytest.mark.skipif(not path.exists(), reason=f"{FETCH}, with --all")
    for path in (QWEN, TINYLLAMA, NOMIC)
)
BOTH = [
    pytest.param(SMOLLM2, marks=smollm2_only, id="smollm2"),
    pytest.param(GEMMA, marks=pytest.mark.skipif(not GEMMA.exists(), reason=FETCH), id="gemma3"),
]
FIXED = Speculation(k=4, adaptive=False)  # the clock decides nothing
GREEDY = Sampling(temperature=0, max_tokens=48)
RECORDS = (
    "\n".join(f'{{"id": {i}, "name": "item {i}", "price": {i}.50}}' for i in range(1, 9)) + "\n"
)


@pytest.fixture(scope="module")
def smollm2():
    with gguf_spec.load(SMOLLM2, "ngram", n_ctx=1024, threads=2) as llm:
        yield llm


# fast: together some seconds


@pytest.mark.full
@smollm2_only
def test_it_answers(smollm2):
    assert smollm2.prompt == "chat"
    answer = smollm2.chat(sampling=GREEDY).send("Why is the sky blue?")
    assert "light" in answer.text


@pytest.mark.full
@smollm2_only
def test_its_template_writes_chatml(smollm2):
    assert "<|im_start|>" in smollm2.chat_template
    assert len(smollm2.tokenize("<|im_start|>", special=True)) == 1
    stats = smollm2.generate([{"role": "user", "content": "Hi"}], Sampling(max_tokens=1)).stats
    assert stats.n_prompt > len(smollm2.tokenize("Hi")) + 4


@pytest.mark.full
@smollm2_only
def test_drafts_from_the_text_are_accepted_and_change_nothing(smollm2):
    with gguf_spec.load(SMOLLM2, "none", n_ctx=1024, threads=2) as plain:
        expected = plain.generate(RECORDS, GREEDY)
    found = smollm2.generate(RECORDS, GREEDY, speculation=FIXED)
    assert found.text == expected.text
    assert found.stats.n_accepted > 10


@pytest.mark.full
@smollm2_only
def test_a_conversation_is_saved_and_continued(smollm2, tmp_path):
    short = Sampling(temperature=0, max_tokens=8)
    first = smollm2.chat(sampling=short)
    first.send("My name is Ada.")
    first.save(tmp_path / "talk.session")
    asked = first.send("What is my name?").text
    second = smollm2.chat(sampling=short)
    second.restore(tmp_path / "talk.session")
    assert second.send("What is my name?").text == asked


def ask(server, path, body):
    """Return the answer to a POST request."""
    data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
    request = urllib.request.Request(server.url + path, data, kind)
    with urllib.request.urlopen(request, timeout=200) as answer:
        return json.load(answer)


@smollm2_only
def test_it_is_served(smollm2):
    with serve_in_thread(smollm2, port=0) as server:
        messages = [{"role": "user", "content": "What is 2+2?"}]
        body = {"messages": messages, "max_tokens": 24, "temperature": 0}
        answer = ask(server, "/v1/chat/completions", body)
    assert "4" in answer["choices"][0]["message"]["content"]


# Qwen2.5-Coder 1.5B, TinyLlama and nomic-embed


@pytest.fixture(scope="module")
def qwen():
    with gguf_spec.load(QWEN, "ngram", n_ctx=2048, threads=2) as llm:
        yield llm


WEATHER = {
    "name": "get_weather",
    "description": "Get the current weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
ASKED = [{"role": "user", "content": "What is the weather in Paris now?"}]
_TOOLS = [{"type": "function", "function": WEATHER}]
_INPUT = {"name": "get_weather", "input_schema": WEATHER["parameters"]}
# API -> request with a tool, and the called name and arguments of the answer
CALLS = {
    "/v1/chat/completions": (
        {"messages": ASKED, "tools": _TOOLS, "temperature": 0, "max_tokens": 80},
        lambda one: [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in one["choices"][0]["message"]["tool_calls"]
        ],
    ),
    "/v1/responses": (
        {"input": ASKED, "tools": [{"type": "function", **WEATHER}], "temperature": 0},
        lambda one: [(call["name"], json.loads(call["arguments"])) for call in one["output"]],
    ),
    "/v1/messages": (
        {"model": "q", "messages": ASKED, "tools": [_INPUT], "temperature": 0, "max_tokens": 80},
        lambda one: [(call["name"], call["input"]) for call in one["content"]],
    ),
    "/api/chat": (
        {"model": "q", "messages": ASKED, "tools": _TOOLS, "stream": False, "options": {"temperature": 0}},
        lambda one: [tuple(call["function"].values()) for call in one["message"]["tool_calls"]],
    ),
}  # fmt: skip


@pytest.mark.full
@qwen_only
@pytest.mark.parametrize("path", CALLS)
def test_qwen_calls_a_tool_through_every_api(qwen, path):
    """It writes the call as a block of code, not with the markers of its template."""
    body, calls_of = CALLS[path]
    with serve_in_thread(qwen, port=0) as server:
        answer = ask(server, path, body)
    assert calls_of(answer) == [("get_weather", {"city": "Paris"})]


@pytest.mark.full
@qwen_only
def test_qwen_edits_a_text_with_the_name_of_its_end_token(qwen):
    from gguf_spec.edit import EditPrompt

    old = 'END = "<|im_end|>"\nSTART = "<|im_start|>"\nport = 8080\n'
    prompt = EditPrompt(qwen, old, "change the port to 9090", "settings.py")
    sampling = prompt.limited(Sampling(temperature=0), None)
    for speculation in (FIXED, Speculation(k=0)):
        answer = qwen.generate(
            prompt.request, sampling, prefill=prompt.prefill, speculation=speculation
        )
        assert prompt.text_of(answer) == old.replace("8080", "9090")


@pytest.mark.full
@tinyllama_only
def test_tinyllama_with_two_bits_a_weight():
    sampling = Sampling(temperature=0, max_tokens=16)
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    with gguf_spec.load(TINYLLAMA, "ngram", n_ctx=512, threads=2) as llm:
        drafted = llm.generate(asked, sampling, speculation=FIXED)
        assert drafted.text == llm.generate(asked, sampling, speculation=Speculation(k=0)).text
    assert "France" in drafted.text


BOTH_EMBEDDINGS = """
import json, sys
import gguf_spec
from llama_cpp import Llama
path, *texts = sys.argv[1:]
with gguf_spec.load(path, "none", n_ctx=512, threads=2) as llm:
    found = llm.embed(texts)
model = Llama(path, embedding=True, n_ctx=512, verbose=False)
theirs = [model.embed(one, True) for one in texts]  # in one pass they move by 4e-5 with AVX-512
print(json.dumps([[list(map(float, one)) for one in rows] for rows in (found, theirs)]))
"""


@pytest.mark.full
@nomic_only
def test_nomic_gives_the_embeddings_of_llama_cpp():
    """With its kernels to rounding; the own ones add in another order, by 4e-5 on a processor with AVX-512."""
    texts = [f"search_document: {text}" for text in ("The cat sat on the mat.", "Bonds fell.")]
    command = [sys.executable, "-c", BOTH_EMBEDDINGS, NOMIC, *texts]
    environment = os.environ | {"GGUF_SPEC_KERNELS": "stock"}
    done = children.run(command, env=environment, capture_output=True, text=True, check=True)
    stock, theirs = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(stock, theirs, atol=1e-6)
    with gguf_spec.load(NOMIC, "none", n_ctx=512, threads=2) as llm:
        found = llm.embed(texts)
    with (
        ModelPool([served_model(NOMIC, n_ctx=512)]) as pool,
        serve_in_thread(pool, port=0) as server,
    ):
        served = ask(server, "/v1/embeddings", {"input": texts})["data"]
    np.testing.assert_allclose([one["embedding"] for one in served], found, atol=1e-6)
    np.testing.assert_allclose(found, theirs, atol=2e-4)


# slow


@pytest.mark.slow
@pytest.mark.parametrize("path", BOTH)
def test_the_peak_of_a_real_file(path, tmp_path):
    """Reserved memory that is never written is in the estimate, and not in the peak."""
    peak, total, *parts = peak_and_needs(path, None, tmp_path)
    assert 0.9 * peak < total < 1.3 * peak, parts


@pytest.mark.slow
@pytest.mark.parametrize("path", BOTH[:1])  # Gemma's 262,144 columns take too long
def test_a_real_file_is_verified(path):
    from gguf_spec.verify import verify

    with gguf_spec.load(path, path, n_ctx=1024, threads=2) as llm:
        report = verify(llm, ["The quick brown fox", RECORDS], n_tokens=16, n_draws=50, limit_s=60)
    assert report.ok, report.to_dict()


@pytest.mark.slow
@pytest.mark.parametrize("path", BOTH)
def test_a_real_file_is_quantised_and_drafts_for_itself(path, tmp_path, monkeypatch):
    """The smaller copy lies beside the target, so `-d auto` finds it there."""
    from gguf_spec.quantize import quantize

    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    (tmp_path / "target.gguf").symlink_to(path)
    quantize(path, tmp_path / "small.gguf", "q2_k", threads=2)
    assert (tmp_path / "small.gguf").stat().st_size < path.stat().st_size
    with gguf_spec.load(tmp_path / "small.gguf", "none", n_ctx=512, threads=2) as small:
        assert small.generate("Once", Sampling(max_tokens=8)).stats.n_generated == 8
    found = [one for one in gguf_spec.models.find_drafts(tmp_path / "target.gguf") if one.fits]
    assert "small.gguf" in [one.name for one in found]
    with gguf_spec.load(tmp_path / "target.gguf", "auto", n_ctx=512, threads=2) as llm:
        text = llm.generate(RECORDS, GREEDY).text
    with gguf_spec.load(path, "none", n_ctx=512, threads=2) as plain:
        assert plain.generate(RECORDS, GREEDY).text == text


@pytest.mark.slow
@pytest.mark.parametrize("path", BOTH)
def test_long_text_of_a_real_file(path):
    """Gemma's window of 512 tokens is passed."""
    with gguf_spec.load(path, "ngram", n_ctx=2048, threads=2, speculation=FIXED) as llm:
        text = RECORDS * 5
        assert len(llm.tokenize(text)) > 700
        drafted = llm.generate(text, GREEDY)
    with gguf_spec.load(path, "none", n_ctx=2048, threads=2) as llm:
        assert llm.generate(text, GREEDY).text == drafted.text
    assert drafted.stats.n_accepted > 10
