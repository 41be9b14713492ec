"""Models as people have them: SmolLM2-135M-Instruct, and Gemma 3 270M (base) as a second architecture.

scripts/models/fetch_test_models.py puts them into the user's cache; tests of a model that is not there are skipped.
"""

import json
import os
import urllib.request
from pathlib import Path

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.registry.resolve import resolve
from gguf_spec.server import serve_in_thread
from tests.gguf.test_needs import peak_and_needs

# Read before the tests take a cache of their own.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-spec"
_TEST_MODELS = Path(__file__).parents[2] / "scripts/models/test_models.yaml"
SMOLLM2, GEMMA = (
    _CACHE / "models" / part.sha256[:32] / part.file.rpartition("/")[2]
    for name in ("smollm2-135m-instruct", "gemma3-270m-base")
    for part in resolve(name, _TEST_MODELS).parts
)
FETCH = "run scripts/models/fetch_test_models.py, which needs a network"
smollm2_only = pytest.mark.skipif(not SMOLLM2.exists(), reason=FETCH)
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


@smollm2_only
def test_it_is_served(smollm2):
    with serve_in_thread(smollm2, port=0) as server:
        body = {
            "messages": [{"role": "user", "content": "What is 2+2?"}],
            "max_tokens": 24,
            "temperature": 0,
        }
        request = urllib.request.Request(
            f"{server.url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )  # fmt: skip
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = json.load(answer)["choices"][0]["message"]["content"]
    assert "4" in text


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

    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
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
