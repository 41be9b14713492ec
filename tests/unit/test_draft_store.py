"""Texts and counts that drafts come from: matches, bounds, files that are not whole, and the same texts of answers."""

import os
import random

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError
from gguf_spec.speculative.drafters import DraftStore, StoreDrafter
from gguf_spec.speculative.drafters.store import Counts, Texts, _hashes
from tests.support.fakes import proposed


def numbers(seed, n, most=5000):
    rng = random.Random(seed)
    return [rng.randrange(most) for _ in range(n)]


def test_a_text_is_drafted_from_where_four_tokens_match():
    store, text = DraftStore(), numbers(1, 300)
    store.add(text)
    assert proposed(StoreDrafter(store), [7, *text[100:104]], 5) == text[104:109]
    assert proposed(StoreDrafter(store), [7, 8, *text[100:103]]) == []
    assert proposed(StoreDrafter(store), text[200:204], 200) == text[204:], "up to its end"


def test_what_follows_most_places_is_proposed_and_agreement_is_a_higher_bucket():
    store = DraftStore()
    for token in (5, 6, 6):
        store.texts.extend([1, 2, 3, 4, token, 90 + token])
    drafter = StoreDrafter(store)
    drafter.begin([1, 2, 3, 4])
    split = drafter.propose()
    assert split.token == 6
    drafter.begin([1, 2, 3, 4, 6])  # behind it both places agree
    agreed = drafter.propose()
    assert agreed.token == 96
    assert drafter.priors[agreed.kind[1]] > drafter.priors[split.kind[1]]


@pytest.mark.parametrize("seed", range(3))
def test_matches_are_those_of_a_search_over_the_whole_window(seed):
    rng, texts, said = random.Random(seed), Texts(12 << 10), []
    while len(said) < 4000:
        new = [rng.randrange(6) for _ in range(rng.randrange(1, 700))]
        texts.extend(new)
        said += new
    window = said[-texts.n_tokens :]
    assert [*texts.newest()] == window
    for _ in range(200):
        end = [rng.randrange(6) for _ in range(8)]
        places, length = texts.places(end)
        n = length if places else 4
        there = [window[i : i + n] == end[-n:] for i in range(len(window) - n + 1)]
        assert any(there) or not places
        for place in places:  # the tokens before it are those of the match
            at = place - texts.n + len(window)
            assert window[at - length : at] == end[-length:]


def test_a_window_drops_its_oldest_tokens_and_counts_their_rarest():
    store = DraftStore(limit=200_000)
    first = numbers(1, 2000)
    store.add(first)
    for seed in range(2, 40):
        store.add(numbers(seed, 1000))
        for at in range(3, 1000):
            store.count(first[at - 3 : at], first[at] if at < 20 else at * seed)
    kept = store.to_bytes()
    assert 3 * len(kept[0]) + len(kept[1]) <= 200_000
    assert store.texts.places(first[500:520]) == ([], 0)
    assert store.counts.likeliest(_hashes(first[5:8])[2])[0] == first[8], "what came often stays"


def test_counts_that_grow_lose_nothing():
    counts, rng = Counts(1 << 20), random.Random(2)
    said = {}
    for context in [rng.getrandbits(32) for _ in range(6000)]:
        said[context] = context % 9000
        counts.add(context, said[context], 16)
    right = sum(counts.likeliest(context)[0] == token for context, token in said.items())
    assert right > 0.9 * len(said)  # a full group drops its rarest entry
    context, token = next(iter(said.items()))
    for _ in range(10_000):  # a weight has a limit
        counts.add(context, token, 16)
    assert counts.likeliest(context)[0] == token


def test_what_an_answer_said_is_counted_and_the_prompt_is_not():
    store = DraftStore()
    drafter = StoreDrafter(store)
    drafter.begin([1, 2, 3, 4, 5])
    drafter.begin([1, 2, 3, 4, 5, 6])
    assert store.counts.likeliest(_hashes([3, 4, 5])[0])[0] == 6
    assert store.counts.likeliest(_hashes([2, 3, 4])[0])[0] == 0
    assert proposed(StoreDrafter(store), [9, 9, 5], 1) == [6]


def test_a_text_is_there_once_with_the_parts_that_are_new():
    store, text = DraftStore(), numbers(3, 640)
    for _ in range(3):
        store.add(text)
    assert store.texts.n_tokens == 640
    store.add([*text, *numbers(4, 64)])
    assert store.texts.n_tokens == 704


def test_every_kind_of_proposal_has_a_prior():
    store, rng = DraftStore(), random.Random(5)
    text = [rng.randrange(4) for _ in range(3000)]
    store.add(text)
    drafter = StoreDrafter(store)
    for n in range(4, 600):
        drafter.begin(text[:n])
        if one := drafter.propose():
            assert 0 < drafter.priors[one.kind[1]] < 1


def test_work_of_a_token_does_not_grow_with_the_store():
    """Python's calls, which repeat: no clock."""
    from tests.support.fakes import with_few_calls

    store, text = DraftStore(), numbers(6, 60_000, most=40)
    store.add(text)
    drafter = StoreDrafter(store)
    drafter.begin(text[:50])
    with_few_calls(lambda: [drafter.begin(text[:n]) for n in range(50, 150)], 100 * 150)
    with_few_calls(lambda: [drafter.propose() for _ in range(100)], 100 * 60)


# ---- files


PROMPTS = ("Once upon a time", "The fox said", "Once upon a time there was")


def run(texts, **options):
    """Answers to prompts that are asked twice, and their rounds."""
    speculation = Speculation(6, adaptive=False, drafter="ngram")
    options = {"threads": 1, "n_ctx": 256, "speculation": speculation, **options}
    with gguf_spec.load("tales", "ngram", draft_texts=texts, **options) as llm:
        found = [
            llm.generate(prompt, sampling=Sampling(temperature, seed=3, max_tokens=24))
            for temperature in (0.0, 0.8)
            for prompt in PROMPTS * 2
        ]
        return [one.text for one in found], sum(one.stats.rounds for one in found)


@pytest.mark.full
def test_texts_are_the_same_without_a_store_with_one_and_with_another(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "fox.txt").write_text(
        "Once upon a time there was a fox. The fox said nothing.\n" * 9
    )
    plain, n_rounds = run("off")
    texts, n_of_memory = run("memory")
    assert texts == plain
    assert n_of_memory < 0.8 * n_rounds
    assert run(str(tmp_path / "fox.txt"))[0] == plain
    texts, n_of_disk = run("disk")  # what the run before has left
    assert texts == plain
    assert n_of_disk < n_of_memory
    assert run("disk", parallel=2)[0] == plain


def stores(folder):
    return [one for one in folder.rglob("*-0") if one.is_file()]


@pytest.mark.full
@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "foreign", "read-only"])
def test_a_file_that_is_not_whole_is_no_error_and_not_used(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("gguf_spec.system.machine.available_bytes", lambda: None)
    texts, _ = run("disk")
    (file,) = stores(tmp_path / "gguf-spec" / "drafts")
    assert file.stat().st_mode & 0o777 == 0o600
    data = bytearray(file.read_bytes())
    if damage == "bit":
        data[len(data) // 2] ^= 1
    file.write_bytes({"cut": data[:-9], "empty": b""}.get(damage, bytes(data)))
    if damage == "foreign":
        (tmp_path / "gguf-spec" / "session-key").write_bytes(os.urandom(32))
    if damage == "read-only":
        file.parent.chmod(0o500)
        (tmp_path / "gguf-spec" / "drafts" / "new").chmod(0o500)
    try:
        assert run("disk")[0] == texts
    finally:
        file.parent.chmod(0o700)
        (tmp_path / "gguf-spec" / "drafts" / "new").chmod(0o700)


def test_another_model_or_nothing_that_is_there_is_refused():
    for wrong in ("", "no/such/folder", "on", "dsik"):
        with pytest.raises(InvalidOptionError, match="off, memory, disk"):
            gguf_spec.load("tales", draft_texts=wrong)


@pytest.mark.parametrize(("value", "has_store"), [(True, True), (False, False)])
def test_the_argument_of_an_earlier_release(value, has_store):
    """A program of 0.4 with `shared_drafts` runs, and its warning names the argument of now."""
    with (
        pytest.warns(DeprecationWarning, match="draft_texts"),
        gguf_spec.load("tales", "ngram", threads=1, n_ctx=256, shared_drafts=value) as llm,
    ):
        assert (llm.engine.pair.store is not None) is has_store


@pytest.mark.full
def test_forget_removes_the_texts(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run("disk")
    assert stores(tmp_path)
    with gguf_spec.load("tales", "ngram", draft_texts="disk", threads=1, n_ctx=256) as llm:
        assert llm.engine.pair.store.texts.n_tokens
        llm.forget()
        assert not llm.engine.pair.store.texts.n_tokens
    assert not stores(tmp_path)


def texts_of(llm):
    return list(llm.engine.pair.store.texts.newest())


@pytest.mark.full
@pytest.mark.parametrize("meanwhile", ["written", "removed"])
def test_what_another_process_did_meanwhile_stays_done(tmp_path, monkeypatch, meanwhile):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"draft_texts": "disk", "threads": 1, "n_ctx": 256}
    sampling = Sampling(temperature=0, max_tokens=24)
    with gguf_spec.load("tales", "ngram", **options) as llm:
        llm.generate("A dog", sampling)
        old = texts_of(llm)
    with gguf_spec.load("tales", "ngram", **options) as first:
        assert texts_of(first) == old
        with gguf_spec.load("tales", "ngram", **options) as second:
            if meanwhile == "removed":
                second.forget()
            else:
                second.generate("The moon was", sampling)
                other = texts_of(second)[len(old) :]
                assert other
        first.generate("Once upon a time", sampling)
        new = texts_of(first)[len(old) :]
        assert new
    with gguf_spec.load("tales", "ngram", **options) as third:
        assert texts_of(third) == (new if meanwhile == "removed" else [*old, *other, *new])
        a, b, c = new[:3]
        assert third.engine.pair.store.counts.likeliest(_hashes((a, b, c))[2])[0] in new
