"""The same text with any drafter, for a small file of each architecture, and what was rolled back for it."""

import threading
from dataclasses import replace

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError
from gguf_spec.gguf.architectures import architecture
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.runtime import profile_files
from gguf_spec.speculative import profiler
from tests.support import families

RECURRENT = [name for name in families.NAMES if architecture(name).cache != "attention"]
WITH_SNAPSHOTS = [name for name in RECURRENT if architecture(name).has_snapshots]
# one with snapshots and attention, one with neither, one with attention and without snapshots
FEW = ("qwen35", "mamba2", "granitehybrid")
PROMPTS = (
    "of the of the of the of",
    "SM T) SM T) SM",
    "Once upon a time",
    "a",
    "and in or re and in",
)
GREEDY = Sampling(temperature=0, max_tokens=24)
SAMPLED = Sampling(temperature=0.8, max_tokens=24, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    for name in families.NAMES:
        families.write_family(folder, name)
        families.write_family(folder, name, seed=1, suffix="-cousin")
    return folder


def loaded(folder, name, draft="ngram", **options):
    options = {"threads": 1, "extra_bufts": False, "n_ctx": 256} | options
    draft = folder / f"{name}-cousin.gguf" if draft == "cousin" else draft
    return gguf_spec.load(folder / f"{name}.gguf", draft, **options)


def texts(llm, prompts=PROMPTS, max_tokens=24, **speculation):
    """Return the results of all prompts, greedy and sampled."""
    return [
        llm.generate(
            prompt,
            Sampling(temperature=temperature, max_tokens=max_tokens, seed=i),
            speculation=Speculation(**speculation),
        )
        for temperature in (0, 0.8)
        for i, prompt in enumerate(prompts)
    ]


def tokens(results):
    return [one.tokens for one in results]


def check_same_texts(folder, name, prompts, lengths, max_tokens):
    with loaded(folder, name, "cousin") as llm:
        assert not [note for note in llm.notes if "plain" in note or "only" in note]
        assert llm.profile.exact_width > 32
        assert llm.profile.restores
        plain = tokens(texts(llm, prompts, max_tokens, k=0))
        assert len({*plain}) > 1
        accepted = {"ngram": 0, "model": 0}
        for k in lengths:
            for drafter in accepted:
                results = texts(llm, prompts, max_tokens, k=k, adaptive=False, drafter=drafter)
                assert tokens(results) == plain, (k, drafter)
                accepted[drafter] += sum(one.stats.n_accepted for one in results)
                assert not any(one.stats.n_near_ties for one in results)
        assert tokens(texts(llm, prompts, max_tokens)) == plain
        assert min(accepted.values()) > 0
        with llm.models() as (target, draft):
            counts = [one.recurrent and one.recurrent.counts for one in (target, draft)]
    if name not in RECURRENT:
        assert counts == [None, None]
        return
    assert counts[0].checkpoints > 10
    assert (counts[0].snapshots > 10) == architecture(name).has_snapshots
    assert counts[1].checkpoints > 10


@pytest.mark.full
@pytest.mark.parametrize("name", families.NAMES)
def test_any_drafter_gives_the_plain_text(folder, name):
    """A draft of 3 tokens is dropped by a snapshot where there are some, one of 12 by a checkpoint."""
    check_same_texts(folder, name, PROMPTS[:2], (3, 12), 24)


@pytest.mark.slow
@pytest.mark.parametrize("name", families.NAMES)
def test_any_drafter_gives_the_plain_text_of_many_prompts(folder, name, prompts):
    check_same_texts(folder, name, [*PROMPTS, *prompts[:10]], (1, 2, 5, 8, 9, 20), 40)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_model_drafts_for_another_kind(folder, name):
    with loaded(folder, "llama", folder / f"{name}.gguf") as llm:
        plain = tokens(texts(llm, PROMPTS[:2], k=0))
        results = texts(llm, PROMPTS[:2], k=4, adaptive=False, drafter="model")
        assert tokens(results) == plain
        assert sum(one.stats.n_accepted for one in results) > 0


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
def test_conversations(folder, name):
    """Answers of next turns, edits and repeated questions are those of newly loaded models."""
    prompts = [
        [40, 41, 42, 43, 44, 45] * 4,
        [40, 41, 42, 43, 44, 45] * 4,  # again
        [40, 41, 42, 43, 44, 45] * 4 + [60, 61],  # longer
        [40, 41, 42, 43, 44, 45] * 3 + [70, 71],  # edited
        [50],
    ]
    for drafted in ({"k": 0}, {"k": 4, "adaptive": False}, {"k": 12, "adaptive": False}, {}):
        with loaded(folder, name, "cousin") as llm:
            kept = []
            for prompt in prompts:
                got = llm.generate_tokens(prompt, GREEDY, speculation=Speculation(**drafted))
                kept.append(got.tokens)
                again = [*prompt, *got.tokens, 80, 81]  # the next turn
                kept.append(llm.generate_tokens(again, SAMPLED).tokens)
        new = []
        for prompt, answer in zip(prompts, kept[::2], strict=True):
            for text, sampling in ((prompt, GREEDY), ([*prompt, *answer, 80, 81], SAMPLED)):
                with loaded(folder, name, None) as llm:
                    new.append(llm.generate_tokens(text, sampling).tokens)
        assert kept == new


@pytest.mark.parametrize("name", FEW)
def test_what_a_conversation_reads_again(folder, name, monkeypatch):
    """The next turn reads its own tokens only, and a repeated question none."""
    question, read = [40 + i % 50 for i in range(120)], []
    original = CachedSequence.read
    monkeypatch.setattr(
        CachedSequence, "read", lambda self, ids: read.append(len(ids)) or original(self, ids)
    )
    with loaded(folder, name) as llm:
        counts = []
        for _ in range(2):
            read.clear()
            answer = llm.generate_tokens(question, GREEDY)
            counts.append(sum(read))
        read.clear()
        llm.generate_tokens([*question, *answer.tokens, *range(60, 80)], GREEDY)
    assert counts == [119, 0]
    assert 0 < sum(read) <= 20 + len(answer.tokens)


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
def test_sessions(folder, name, tmp_path):
    with loaded(folder, name, "cousin") as llm:
        chat = llm.chat(sampling=GREEDY)
        chat.send("of the of the")
        chat.save(tmp_path / "session")
        expected = chat.send("and the?").text
    with loaded(folder, name, "cousin") as llm:
        chat = llm.chat(sampling=GREEDY)
        assert chat.restore(tmp_path / "session") == ""
        with llm.models() as (target, _):
            assert target.n_past > 5
        assert chat.send("and the?").text == expected


@pytest.mark.few(3)
@pytest.mark.parametrize("name", sorted(set(RECURRENT) - set(WITH_SNAPSHOTS)))
def test_parallel_requests_are_plain_and_the_same(folder, name):
    with loaded(folder, name) as llm:
        alone = [llm.generate(prompt, SAMPLED).tokens for prompt in PROMPTS]
    with loaded(folder, name, parallel=3) as llm:
        assert any("parallel requests: plain decoding" in note for note in llm.notes)
        found = {}

        def ask(prompt):
            found[prompt] = llm.generate(prompt, SAMPLED)

        threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert [found[prompt].tokens for prompt in PROMPTS] == alone
    assert all("with parallel requests" in one.stats.why_none for one in found.values())


@pytest.mark.full
@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
def test_parallel_requests_draft_where_llama_cpp_keeps_snapshots(folder, name):
    """Drafts of other lengths, ends at other times, grammars and plain requests in the same passes."""
    ways = [
        {"speculation": Speculation(k=5, drafter="ngram", adaptive=False)},
        {"speculation": Speculation(k=2, drafter="model", adaptive=False)},
        {"speculation": Speculation(k=7, adaptive=False)},
        {"speculation": Speculation()},
        {"speculation": Speculation(k=0)},
        {"speculation": Speculation(k=4, adaptive=False)},
    ]
    grammar = 'root ::= ("the " | "of ")+'
    asked = [
        (
            prompt,
            {
                **way,
                "sampling": replace(
                    sampling,
                    max_tokens=20 + 7 * i,
                    seed=i,
                    grammar=grammar if i == len(ways) - 1 else None,
                ),
            },
        )
        for i, way in enumerate(ways)
        for prompt in PROMPTS[:2]
        for sampling in (GREEDY, SAMPLED)
    ]
    draft = folder / "llama-cousin.gguf"
    with loaded(folder, name, draft) as llm:
        alone = [llm.generate(prompt, **options).tokens for prompt, options in asked]
    with loaded(folder, name, draft, parallel=4) as llm:
        assert llm.notes == ()
        found = {}

        def ask(i):
            prompt, options = asked[i]
            found[i] = llm.generate(prompt, **options)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(asked))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        with llm.models() as (target, _):
            assert target.recurrent.n_snapshots == 4
            assert target.recurrent.counts.snapshots > 10
    for i, right in enumerate(alone):
        assert found[i].tokens == right, asked[i]
    assert sum(found[i].stats.n_drafted for i in range(8)) > 40
    assert not any(found[i].stats.n_drafted for i in range(20, 24))
    assert "for a grammar with parallel requests" in found[20].stats.why_none


@pytest.mark.parametrize("name", FEW)
def test_fixed_drafts_are_used(folder, name):
    with loaded(folder, name, "cousin") as llm:
        one = llm.generate("of the of the", GREEDY, speculation=Speculation(k=6, adaptive=False))
        assert one.stats.n_drafted


@pytest.mark.parametrize("name", FEW)
def test_strict_is_refused_where_passes_are_not_exact(folder, name, monkeypatch):
    with loaded(folder, name) as llm:
        strict = Speculation(strict=True)
        assert llm.generate("a", GREEDY, speculation=strict).tokens
        monkeypatch.setattr(type(llm.profile), "logit_noise", lambda *_: 0.1)
        with pytest.raises(InvalidOptionError, match="recurrent and hybrid"):
            llm.generate("a", GREEDY, speculation=strict)


@pytest.mark.parametrize("name", FEW)
def test_a_state_that_is_not_restored_is_noticed(folder, name, monkeypatch):
    """As if llama.cpp's code for this architecture did not save a part of the state."""
    monkeypatch.setattr(profile_files, "read_profile", lambda *_: None)
    monkeypatch.setattr(profile_files, "write_profile", lambda *_: True)

    def wrong(model, text, n):
        model.rollback(0)
        model.read([5, *text[1:n]])

    monkeypatch.setattr(profiler, "return_to", wrong)
    with loaded(folder, name) as llm:
        assert not llm.profile.restores
        assert any("did not restore the state" in note for note in llm.notes)
        stats = llm.generate("of the of the of", GREEDY).stats
        assert stats.n_drafted == 0
        assert "did not restore the state" in stats.why_none
