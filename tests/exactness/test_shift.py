"""`overflow="shift"`: a full context drops the older half of the answer, at the same position with any draft."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError
from gguf_spec.quantize import quantize
from gguf_spec.verify import bundled_prompts
from tests.gguf.test_near_ties import TALES
from tests.support import families

N_CTX = 96
WAYS = [
    Speculation(),
    Speculation(1, adaptive=False),
    Speculation(7, drafter="hybrid", adaptive=False),
]
PLAIN = Speculation(0)


@pytest.fixture(scope="module")
def short():
    with gguf_spec.load("tales", n_ctx=N_CTX, threads=1) as llm:
        yield llm


def sampling(n, **more):
    return Sampling(seed=5, max_tokens=n, ignore_eos=True, overflow="shift", **more)


@pytest.mark.full
@pytest.mark.parametrize(
    "more",
    [{"temperature": 0.0}, {"temperature": 0.9}, {"repeat_penalty": 1.2, "dry_multiplier": 0.8}],
    ids=str,
)
def test_the_text_is_the_same_with_any_draft(short, more):
    plain = short.generate("Once upon a time", sampling(300, **more), speculation=PLAIN)
    assert (len(plain.tokens), plain.finish_reason) == (300, "length")
    for way in WAYS:
        assert (
            short.generate("Once upon a time", sampling(300, **more), speculation=way).tokens
            == plain.tokens
        )


def test_it_continues_from_the_prompt_and_the_later_half(short):
    """By the definition, from single texts."""
    prompt = short.tokenize("There was once a king who")
    room = N_CTX - len(prompt)
    greedy = Sampling(temperature=0, ignore_eos=True, max_tokens=None)
    said = list(short.generate_tokens(prompt, greedy).tokens)
    assert len(said) == room
    while len(said) < 2 * N_CTX:
        said += short.generate_tokens([*prompt, *said[-(room // 2) :]], greedy).tokens
    long = short.generate_tokens(prompt, sampling(2 * N_CTX, temperature=0))
    assert list(long.tokens) == said[: 2 * N_CTX]


@pytest.mark.full
def test_the_noise_of_a_position_is_not_repeated(short):
    """The noise depends on the position: with the earlier noise, texts at a low temperature would repeat."""
    tokens = short.generate(
        "Once upon a time", sampling(400, temperature=3.0, top_k=0, top_p=1.0)
    ).tokens
    period = (N_CTX - len(short.tokenize("Once upon a time"))) // 2
    same = sum(a == b for a, b in zip(tokens[100:], tokens[100 + period :], strict=False))
    assert same < 0.2 * (len(tokens) - 100 - period)


@pytest.mark.full
def test_numbers_of_the_statistics_continue(short):
    with short.stream(
        "Once upon a time", sampling(300), speculation=Speculation(3, adaptive=False)
    ) as stream:
        n = 0
        for chunk in stream:
            n += len(chunk.tokens)
            assert stream.stats.n_generated == n
    stats = stream.stats
    assert n == 300
    assert sum(drafted for drafted, _ in stats.drafters.values()) == stats.n_drafted > 100
    assert stats.total_s == pytest.approx(
        stats.prompt_s + stats.draft_s + stats.verify_s + stats.other_s
    )


@pytest.mark.full
def test_an_end_token_still_ends_the_text(short):
    tokens = short.generate("Once upon a time", sampling(300)).tokens
    stop = tokens[200]
    at = tokens.index(stop)
    done = short.generate_tokens(
        short.tokenize("Once upon a time"), sampling(300), stop_tokens=[stop]
    )
    assert (done.tokens, done.finish_reason) == (tokens[:at], "stop")


def test_it_can_be_cancelled_behind_a_shift(short):
    with short.stream(
        "Once upon a time", Sampling(seed=1, max_tokens=None, ignore_eos=True, overflow="shift")
    ) as stream:
        for _ in stream:
            if stream.stats.n_generated > 2 * N_CTX:
                stream.cancel()
    assert stream.result.finish_reason == "cancelled"


def test_a_prompt_that_leaves_one_place_just_ends(short):
    prompt = short.tokenize("Once upon a time there was a king " * 20)[: N_CTX - 1]
    done = short.generate_tokens(prompt, sampling(10))
    assert (len(done.tokens), done.finish_reason) == (1, "length")


@pytest.mark.parametrize(
    "more", [{"grammar": 'root ::= "a"+'}, {"json_schema": {}}], ids=["grammar", "schema"]
)
def test_a_grammar_needs_the_complete_answer(more):
    with pytest.raises(InvalidOptionError, match="stop if there is a grammar or a JSON schema"):
        Sampling(overflow="shift", **more)


def pair_of(folder, kind):
    """Target and draft; the prompts of `grid` are read on a grid with llama.cpp's kernels."""
    if kind == "tiny":
        return [families.write_family(folder, "llama", seed, f"-{seed}") for seed in (0, 1)]
    quantize(TALES / "tales-target-Q8_0.gguf", folder / "Q4_K_M.gguf", "Q4_K_M")
    return folder / "Q4_K_M.gguf", TALES / "tales-draft-Q4_0.gguf"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["tiny", "grid"])
@pytest.mark.parametrize("n_examples", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_no_draft_no_piece_and_no_earlier_text_changes_a_bit(tmp_path, kernels, kind, n_examples):
    """Random prompts with one to three shifts: tokens and log-probabilities, with caches as they were left."""
    options = {"threads": 1, "n_ctx": N_CTX + 64, "kv_type": "f32"}  # f16 hides last bits
    with gguf_spec.load(*pair_of(tmp_path, kind), **options) as llm:
        target, pieces = llm.engine.target, [64, 128, llm.engine.target.reads_at_once]
        if not target.exactness.grid:
            pieces += [1, 7, 50]
        text = llm.tokenize(" ".join(bundled_prompts())) * 2
        ways = st.builds(
            Speculation,
            k=st.integers(1, 12),
            drafter=st.sampled_from(["hybrid", "model", "auto", "ngram"]),
            adaptive=st.booleans(),
        )

        @settings(max_examples=n_examples, deadline=None, database=None, phases=[Phase.generate])
        @given(
            start=st.integers(0, 200),
            n_prompt=st.integers(llm.n_ctx - 40, llm.n_ctx - 6),
            n_more=st.integers(1, 12),
            temperature=st.sampled_from([0.0, 0.9]),
            some=st.lists(st.tuples(ways, st.sampled_from(pieces)), min_size=2, max_size=2),
        )
        def check(start, n_prompt, n_more, temperature, some):
            prompt, most = text[start : start + n_prompt], llm.n_ctx - n_prompt + n_more
            request = prompt, sampling(most, temperature=temperature, logprobs=0)
            target.context.reads_at_once = pieces[2]
            llm.forget()
            plain = llm.generate(*request, speculation=PLAIN)
            assert len(plain.tokens) == most
            for way, target.context.reads_at_once in some:
                llm.generate(prompt[: n_prompt - 5 * n_more], sampling(2), speculation=way)
                one = llm.generate(*request, speculation=way)
                assert (one.tokens, one.logprobs) == (plain.tokens, plain.logprobs)

        check()
    assert bool(target.exactness.grid) == (kind == "grid" and kernels == "stock")


@pytest.mark.slow
def test_a_long_text(tales):
    """32,768 tokens, sixteen times the context, as it comes and plainly."""
    long = Sampling(seed=1, max_tokens=32_768, ignore_eos=True, overflow="shift")
    plain = tales.generate("Once upon a time", long, speculation=PLAIN)
    drafted = tales.generate("Once upon a time", long)
    assert len(plain.tokens) == len(drafted.tokens) == 32_768
    at = next(
        (i for i, (a, b) in enumerate(zip(plain.tokens, drafted.tokens, strict=True)) if a != b),
        None,
    )
    assert at is None or drafted.stats.n_near_ties > 0
