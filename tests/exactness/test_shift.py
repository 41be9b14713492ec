"""`overflow="shift"`: when the context is full the older half of the answer is forgotten, at the same place with any draft."""

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError

N_CTX = 96
WAYS = [
    Speculation(),
    Speculation(1, adaptive=False),
    Speculation(7, drafter="hybrid", adaptive=False, tree=True),
]
PLAIN = Speculation(0)


@pytest.fixture(scope="module")
def short():
    with gguf_spec.load("tales", n_ctx=N_CTX, threads=1) as llm:
        yield llm


def sampling(n, **more):
    return Sampling(seed=5, max_tokens=n, ignore_eos=True, overflow="shift", **more)


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


def test_it_goes_on_from_the_prompt_and_the_later_half(short):
    """The definition, put together by hand from single texts."""
    prompt = short.tokenize("There was once a king who")
    room = N_CTX - len(prompt)
    greedy = Sampling(temperature=0, ignore_eos=True, max_tokens=None)
    said = list(short.generate_tokens(prompt, greedy).tokens)
    assert len(said) == room
    while len(said) < 2 * N_CTX:
        said += short.generate_tokens([*prompt, *said[-(room // 2) :]], greedy).tokens
    long = short.generate_tokens(prompt, sampling(2 * N_CTX, temperature=0))
    assert list(long.tokens) == said[: 2 * N_CTX]


def test_the_noise_of_a_place_does_not_come_again(short):
    """Positions do: with the noise of the part before, texts of little temperature would go in circles."""
    tokens = short.generate(
        "Once upon a time", sampling(400, temperature=3.0, top_k=0, top_p=1.0)
    ).tokens
    period = (N_CTX - len(short.tokenize("Once upon a time"))) // 2
    same = sum(a == b for a, b in zip(tokens[100:], tokens[100 + period :], strict=False))
    assert same < 0.2 * (len(tokens) - 100 - period)


def test_numbers_go_on(short):
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


def test_an_end_still_ends_it(short):
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
def test_a_grammar_must_see_the_whole_answer(more):
    with pytest.raises(InvalidOptionError, match="stop if there is a grammar or a JSON schema"):
        Sampling(overflow="shift", **more)


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
