"""LLM.choose: the bits of single-token passes in any batch; shared passes; errors."""

import asyncio
import math
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import gguf_spec
from gguf_spec import AsyncLLM, Sampling
from gguf_spec.errors import (
    ClosedError,
    EmptyPromptError,
    InvalidOptionError,
    NoGenerationError,
    NoTokenLeftError,
    PromptTooLongError,
)
from gguf_spec.llama import embedder
from gguf_spec.sampling.chain import logprob
from tests.support import children, encoders, families, tiny

PROMPT = "Once upon a time there was a"
# One is longer than any pass, some begin as others, some have one token.
OPTIONS = (" little girl", " cat", " little girl named Lily", " little", " and in re" * 30, " xyz")
FEW = ("llama", "gemma3", "qwen3moe", "qwen35", "mamba2", "granitehybrid")
# It runs with the kernels of llama.cpp.
STOCK = """
import sys
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--all", {file!r}, "-k", "bits and not kernels"]))
"""


def single_passes(llm, prompt, option):
    """Return the log-probabilities of an option from passes over one token."""
    n, tokens, found = len(llm.tokenize(prompt)), llm.tokenize(prompt + option), []
    with llm.models() as (target, _):
        target.rollback(0)
        target.read(tokens[: n - 1])
        for last, token in zip(tokens[n - 1 :], tokens[n:], strict=False):
            found.append(logprob(target.logits([last], 1)[0], token, 0).logprob)
    return tuple(found)


def check_bits(llm, prompt):
    wanted = {option: single_passes(llm, prompt, option) for option in OPTIONS}
    several = [*OPTIONS, *OPTIONS[:3]] * 9
    random.Random(1).shuffle(several)
    for options in (OPTIONS, OPTIONS[::-1], several, *([one] for one in OPTIONS)):
        for one in llm.choose(prompt, options):
            assert one.logprobs == wanted[one.text]
            assert one.logprob == math.fsum(one.logprobs)


@pytest.mark.full
@pytest.mark.parametrize("prompt", ["a", PROMPT, PROMPT * 20], ids=len)
def test_bits_are_those_of_single_passes_in_any_batch(tales, prompt):
    check_bits(tales, prompt)


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
def test_bits_by_architecture(tmp_path, name):
    path = families.write_family(tmp_path, name)
    with gguf_spec.load(path, None, threads=1, extra_bufts=False, n_ctx=256) as llm:
        check_bits(llm, "of the of the of the of")


@pytest.mark.full
def test_bits_with_other_kernels():
    command = [sys.executable, "-c", STOCK.format(file=__file__)]
    env = os.environ | {"GGUF_SPEC_KERNELS": "stock"}
    done = children.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_bits_beside_other_requests():
    sampling = Sampling(max_tokens=30, seed=3)
    with gguf_spec.load("tales", threads=1, parallel=2) as llm:
        text, wanted = llm.generate(PROMPT, sampling).text, llm.choose(PROMPT, OPTIONS)
        with ThreadPoolExecutor(6) as pool:
            texts = [pool.submit(llm.generate, PROMPT, sampling) for _ in range(4)]
            found = [pool.submit(llm.choose, PROMPT, OPTIONS) for _ in range(4)]
            assert {one.result().text for one in texts} == {text}
            assert all(one.result() == wanted for one in found)


def test_results(tales):
    found = tales.choose(PROMPT, OPTIONS)
    assert [one.text for one in found] == [*OPTIONS]
    assert math.fsum(one.probability for one in found) == pytest.approx(1, abs=1e-12)
    first = found[0]
    assert first.tokens == tuple(tales.tokenize(PROMPT + OPTIONS[0])[len(tales.tokenize(PROMPT)) :])
    whole = math.fsum(math.exp(one.logprob) for one in found)
    assert first.probability == pytest.approx(math.exp(first.logprob) / whole)
    assert found[3].logprob > first.logprob > found[2].logprob
    (alone,), twice = tales.choose(PROMPT, [" cat"]), tales.choose(PROMPT, [" cat"] * 2)
    assert (alone.probability, [one.probability for one in twice]) == (1, [0.5, 0.5])


def test_the_first_token_is_that_of_a_generation(tales):
    sampling = Sampling(temperature=0, max_tokens=5, logprobs=0)
    answer = tales.generate(PROMPT, sampling)
    (one,) = tales.choose(PROMPT, [answer.text])
    assert one.tokens == answer.tokens
    assert one.logprobs == tuple(part.logprob for part in answer.logprobs)


def test_messages_and_asyncio(tales):
    messages = [{"role": "user", "content": "Tell me of a fox."}]
    found = tales.choose(messages, ["The fox", "A hen"])
    ids = tales.tokenize(messages, prefill="The fox")
    assert (*ids[-len(found[0].tokens) :],) == found[0].tokens
    behind = tales.choose(messages, [" fox", " hen"], prefill="The")
    assert behind[0].logprobs == found[0].logprobs[-1:]
    with pytest.raises(InvalidOptionError):
        tales.choose(messages, ["A"], chat_template_kwargs={"no_such_name": 1})

    async def main():
        return await AsyncLLM(tales).choose(messages, ["The fox", "A hen"])

    assert asyncio.run(main()) == found


def test_options_share_passes_behind_one_prompt(tales, monkeypatch):
    passes, decode = [], embedder.decode_parts
    monkeypatch.setattr(
        embedder,
        "decode_parts",
        lambda native, parts: (passes.append(parts), decode(native, parts)),
    )
    tales.choose(PROMPT * 20, [f" {one} girl" for one in ("a", "the", "my", "our", "no") * 6])
    own = [parts for parts in passes if parts[0].sequence]
    assert sum(len(parts[0].tokens) for parts in passes if not parts[0].sequence) == len(
        tales.tokenize(PROMPT * 20)
    )
    with tales.models() as (target, _):
        is_own = target.flash_attention == "on" and not target.exactness.grid
    assert len(own) <= 2 if is_own else len(own) == 30
    passes.clear()
    tales.choose(PROMPT, [" cat", " dog", " little"])
    assert len(passes) == 2  # one for the last token of the prompt is enough


@pytest.mark.parametrize(
    ("prompt", "options", "kind"),
    [
        ("", [" cat"], EmptyPromptError),
        (PROMPT, [], InvalidOptionError),
        (PROMPT, " cat", InvalidOptionError),
        (PROMPT, [" cat", ""], InvalidOptionError),
        (PROMPT, [" cat", 5], InvalidOptionError),
        ("Once upon a ti", ["me there"], InvalidOptionError),
        (PROMPT * 2000, [" cat"], PromptTooLongError),
        (PROMPT, [" cat" * 5000], PromptTooLongError),
    ],
)
def test_errors_before_any_pass(tales, monkeypatch, prompt, options, kind):
    with monkeypatch.context() as patch, pytest.raises(kind):
        patch.setattr(embedder, "decode_parts", None)
        tales.choose(prompt, options)


def test_a_failure_leaves_nothing_behind(tales, monkeypatch):
    def stop(progress):
        assert (progress.stage, progress.total, progress.unit) == ("choose", len(OPTIONS), "texts")
        if progress.done:
            raise KeyboardInterrupt

    wanted = tales.choose(PROMPT, OPTIONS)
    with pytest.raises(KeyboardInterrupt):
        tales.choose(PROMPT, OPTIONS, on_pass=stop)
    assert tales.choose(PROMPT, OPTIONS) == wanted


def test_models_that_cannot(tmp_path):
    encoders.write(tmp_path / "bert.gguf", pooling=1)
    with gguf_spec.load(tmp_path / "bert.gguf", threads=1) as llm, pytest.raises(NoGenerationError):
        llm.choose("a", ["b"])
    broken = tiny.llama()
    broken[1]["output_norm.weight"][:] = math.nan
    tiny.write(tmp_path / "nan.gguf", broken)
    llm = gguf_spec.load(tmp_path / "nan.gguf", None, threads=1, extra_bufts=False)
    with pytest.raises(NoTokenLeftError):
        llm.choose("a", ["b"])
    llm.close()
    with pytest.raises(ClosedError):
        llm.choose("a", ["b"])
