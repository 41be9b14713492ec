"""Conversations on the bundled pair: tokens read again, cached prefixes, and saved sessions."""

import json
import os

import pytest

import gguf_spec
from gguf_spec import Sampling, Speculation
from gguf_spec.errors import InvalidOptionError, PromptTooLongError, SessionError
from gguf_spec.llama.sequence import CachedSequence
from gguf_spec.runtime import session_file
from tests.support import tiny

SAID = Sampling(seed=3, max_tokens=40, temperature=0.8)
QUESTIONS = [
    "Tell me of a fox.",
    "And the king?",
    "What did they eat?",
    "Who came then?",
    "How did it end?",
]


@pytest.fixture(scope="module")
def llm():
    with gguf_spec.load("tales", threads=1, n_ctx=1024) as one:
        yield one


@pytest.fixture(scope="module")
def fresh():
    """Another one, whose caches each test may empty."""
    with gguf_spec.load("tales", threads=1, n_ctx=1024) as one:
        yield one


@pytest.fixture
def reads(monkeypatch):
    """Tokens given to each model, by file name, since the list was last cleared."""
    given = {}

    def decode(self, tokens, n_rows, _decode=CachedSequence._decode):
        given.setdefault(self.path.name, []).extend(tokens)
        return _decode(self, tokens, n_rows)

    monkeypatch.setattr(CachedSequence, "_decode", decode)
    return given


def same(one, other):
    """Return whether two answers are equal, or differ at a counted near tie."""
    return one.tokens == other.tokens or one.stats.n_near_ties + other.stats.n_near_ties > 0


@pytest.mark.full
def test_every_turn_gives_the_text_of_a_fresh_read_of_the_conversation(llm, fresh):
    chat = llm.chat("You tell tales.", sampling=SAID)
    for question in QUESTIONS:
        asked = [*chat.messages, {"role": "user", "content": question}]
        answer = chat.send(question)
        for draft in (Speculation(), Speculation(0)):
            fresh.forget()
            alone = fresh.generate(asked, SAID, speculation=draft)
            assert same(alone, answer)
        assert chat.messages == [*asked, {"role": "assistant", "content": answer.text}]
        assert chat.last == answer


@pytest.mark.full
def test_a_turn_reads_what_is_new_and_nothing_else(llm, reads):
    chat, fixed = llm.chat(sampling=SAID), Speculation(4, adaptive=False, drafter="model")
    target, draft = llm.name, llm.draft_name
    with llm.models() as models:
        target = models[0].path.name
    for i, question in enumerate(QUESTIONS):
        before = llm.tokenize([*chat.messages, {"role": "user", "content": question}])
        with llm.models() as models:
            kept = [
                next(
                    (j for j, (a, b) in enumerate(zip(m.cached, before, strict=False)) if a != b),
                    min(m.n_past, len(before) - 1),
                )
                for m in models
            ]
        assert i == 0 or all(n > len(before) / 2 for n in kept)
        reads.clear()
        answer = chat.send(question, speculation=fixed)
        for name, n_kept in zip((target, draft), kept, strict=True):
            assert reads[name][: len(before) - n_kept] == before[n_kept:]
        assert answer.stats.n_prompt == len(before)


@pytest.mark.full
def test_an_answer_to_another_request_costs_a_new_prefill_but_changes_nothing(llm):
    one, other = llm.chat(sampling=SAID), llm.chat("You are brief.", sampling=SAID)
    before = [one.send(QUESTIONS[0]), one.send(QUESTIONS[1])]
    one.reset()
    mixed = []
    for question in QUESTIONS[:2]:
        mixed.append(one.send(question))
        other.send("What is a wolf?")
    assert all(map(same, mixed, before))


def test_undo_retry_reset_and_system(llm):
    chat = llm.chat("A.", sampling=SAID)
    assert not chat.undo()
    with pytest.raises(InvalidOptionError, match="no question to answer again"):
        chat.retry()
    first = chat.send("One?")
    second = chat.send("Two?")
    assert [one["role"] for one in chat.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    with chat.retry(Sampling(seed=3, max_tokens=40)) as turn:
        for _ in turn:
            pass
    assert same(turn.result, second)
    with chat.retry(Sampling(max_tokens=40)) as turn:
        for _ in turn:
            pass
    assert len(chat.messages) == 5
    n_tokens = chat.n_tokens
    assert chat.undo()
    assert chat.messages[-1]["content"] == first.text
    assert 0 < chat.n_tokens < n_tokens
    chat.system = "B."
    assert chat.messages[0] == {"role": "system", "content": "B."}
    chat.system = None
    assert chat.messages[0] == {"role": "user", "content": "One?"}
    chat.system = "C."
    chat.reset()
    assert chat.messages == [{"role": "system", "content": "C."}]


@pytest.mark.full
def test_a_stopped_answer_stays_in_the_chat(llm):
    chat = llm.chat(sampling=Sampling(seed=1, max_tokens=200, ignore_eos=True))
    with chat.stream("Tell me a long tale.") as turn:
        heard = next(turn).text
        assert not chat.messages
        asked = {"role": "user", "content": "Tell me a long tale."}
        assert turn.messages == [asked, {"role": "assistant", "content": turn.result.text}]
        turn.cancel()
        heard += "".join(chunk.text for chunk in turn)
    assert turn.result.finish_reason == "cancelled"
    assert chat.messages == turn.messages == [asked, {"role": "assistant", "content": heard}]
    assert len(turn.result.tokens) < 100
    assert chat.send("Go on.").text
    before = list(chat.messages)
    with chat.stream("And now?") as turn:
        turn.cancel()
    assert chat.messages == before


@pytest.mark.full
def test_a_conversation_that_does_not_fit_is_refused_or_loses_old_turns():
    with gguf_spec.load("tales", threads=1, n_ctx=160) as llm:
        chat = llm.chat("You tell tales.", sampling=SAID)
        with pytest.raises(PromptTooLongError):
            for question in QUESTIONS * 3:
                chat.send(question)
        assert chat.messages[-1]["role"] == "assistant"
        chat = llm.chat("You tell tales.", sampling=SAID, overflow="shift")
        dropped = 0
        for question in QUESTIONS * 3:
            with chat.stream(question) as turn:
                for _ in turn:
                    pass
            dropped += turn.dropped
            assert turn.result.tokens
            assert turn.result.stats.n_prompt + 40 <= 160
            assert chat.messages[0] == {"role": "system", "content": "You tell tales."}
            assert [one["role"] for one in chat.messages[1:]] == ["user", "assistant"] * (
                len(chat.messages) // 2
            )
            assert chat.messages[-2]["content"] == question
        assert dropped == 2 * len(QUESTIONS) * 3 - len(chat.messages) + 1 > 0
        with pytest.raises(PromptTooLongError):
            chat.send("word " * 400)
        assert chat.messages[-2]["content"] == QUESTIONS[-1]
        with pytest.raises(InvalidOptionError, match="overflow"):
            llm.chat(overflow="forget")


def test_a_model_without_a_template(tmp_path):
    path = tiny.write(tmp_path / "plain.gguf", metadata={"tokenizer.chat_template": None})
    with gguf_spec.load(path, "none", threads=1, extra_bufts=False) as llm:
        chat = llm.chat("Be brief.", sampling=Sampling(seed=1, max_tokens=4))
        assert "no chat template" in chat.note
        chat.send("a<|im_end|>b")
        asked = "Be brief.\nUser: a<|im_end|>b\nAssistant:"
        with llm.models() as (target, _):
            tokens = target.weights.tokenize(asked, special=False)
            assert target.cached[: len(tokens)] == tokens
            assert tiny.IM_END not in tokens
    with gguf_spec.load("tales", threads=1) as llm:
        assert llm.chat().note == ""


# ---- sessions


@pytest.fixture(scope="module")
def saved(llm, tmp_path_factory):
    """A conversation that was saved, and what came next."""
    path = tmp_path_factory.mktemp("sessions") / "fox.session"
    chat = llm.chat("You tell tales.", sampling=SAID)
    for question in QUESTIONS[:3]:
        chat.send(question)
    chat.save(path)
    messages = list(chat.messages)
    return path, messages, chat.send(QUESTIONS[3])


@pytest.mark.full
def test_a_restored_session_continues_with_the_same_text(saved, fresh, reads):
    path, messages, after = saved
    fresh.forget()
    chat = fresh.chat(sampling=SAID)
    assert chat.restore(path) == ""
    assert chat.messages == messages
    reads.clear()
    answer = chat.send(QUESTIONS[3])
    assert same(answer, after)
    assert len(reads["tales-target-Q8_0.gguf"]) < 120, (
        "the draft may not have been asked before, and reads all of it then"
    )
    assert answer.stats.n_prompt > 120


def test_and_equals_a_fresh_read_of_its_messages(saved, fresh):
    _path, messages, after = saved
    fresh.forget()
    answer = fresh.generate([*messages, {"role": "user", "content": QUESTIONS[3]}], SAID)
    assert same(answer, after)


@pytest.mark.parametrize("where", [0.3, 0.6, 0.9, 0.99999])
def test_damaged_caches_are_not_given_to_llama_cpp(saved, fresh, tmp_path, monkeypatch, where):
    path, messages, after = saved
    data = bytearray(path.read_bytes())
    data[int(where * len(data))] ^= 1
    damaged = tmp_path / "damaged"
    damaged.write_bytes(data)
    monkeypatch.setattr(
        CachedSequence, "restore", lambda *_: pytest.fail("llama.cpp was given damaged caches")
    )
    chat = fresh.chat(sampling=SAID)
    assert "damaged" in chat.restore(damaged)
    assert chat.messages == messages
    assert same(chat.send(QUESTIONS[3]), after)


def test_damaged_messages_are_refused(saved, fresh, tmp_path):
    data = bytearray(saved[0].read_bytes())
    chat = fresh.chat("Stays.")
    for at in (0, 21, 60, 100, 400):
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(SessionError):
            chat.restore(damaged)
    for n in (0, 10, 50, 300):
        damaged.write_bytes(data[:n])
        with pytest.raises(SessionError):
            chat.restore(damaged)
    assert chat.messages == [{"role": "system", "content": "Stays."}]


def test_a_session_cut_short_or_of_another_user_is_read_again(saved, fresh, tmp_path, monkeypatch):
    path, messages, after = saved
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:-100])
    chat = fresh.chat(sampling=SAID)
    assert "damaged" in chat.restore(cut)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "someone"))
    assert "another user" in chat.restore(path)
    assert chat.messages == messages
    assert (tmp_path / "someone/gguf-spec/session-key").stat().st_mode & 0o077 == 0
    assert same(chat.send(QUESTIONS[3]), after)


@pytest.mark.full
@pytest.mark.parametrize("change", [{"kv_type": "q8_0"}, {"n_ctx": 512}, {"draft": "none"}])
def test_other_settings_read_it_again(saved, change):
    path, messages, _after = saved
    with gguf_spec.load("tales", threads=1, **{"n_ctx": 1024, **change}) as llm:
        chat = llm.chat()
        assert "other models, settings" in chat.restore(path)
        assert chat.messages == messages


def test_no_session_at_all(fresh, tmp_path):
    chat = fresh.chat()
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(SessionError, match="cannot be read"):
            chat.restore(path)
    other = tmp_path / "other"
    fresh.save_session(other, {"messages": [{"role": "wolf", "content": 3}]})
    with pytest.raises(SessionError, match="does not contain a conversation"):
        chat.restore(other)
    forged = json.dumps([]).encode()
    other.write_bytes(
        session_file._FORMAT + session_file._LENGTHS.pack(1 << 63, 0, 0) + bytes(32) + forged
    )
    with pytest.raises(SessionError, match="damaged"):
        chat.restore(other)


def test_saving_where_there_is_no_room_leaves_what_was_there(fresh, tmp_path, monkeypatch):
    chat, path = fresh.chat(sampling=SAID), tmp_path / "one"
    chat.send("Who?")
    chat.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(
        session_file.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})
    )
    with pytest.raises(SessionError, match=r"bytes, but .* are free"):
        chat.save(path)
    monkeypatch.undo()
    monkeypatch.setattr(
        session_file.os,
        "fsync",
        lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")),
    )
    with pytest.raises(SessionError, match="No space left"):
        chat.save(path)
    assert path.read_bytes() == before
    assert sorted(one.name for one in tmp_path.iterdir()) == ["one"]
    with pytest.raises(SessionError):
        chat.save(tmp_path / "no folder" / "two")


def test_a_file_that_is_not_a_session_is_not_overwritten(fresh, tmp_path):
    letter = tmp_path / "letter.txt"
    letter.write_text("Dear fox")
    with pytest.raises(SessionError, match="is not a session file"):
        fresh.chat("A.").save(letter)
    with pytest.raises(SessionError):
        fresh.chat("A.").save(tmp_path)
    assert letter.read_text() == "Dear fox"
    with pytest.raises(SessionError, match="cannot be written: File name too long"):
        fresh.chat("A.").save(tmp_path / ("a" * 256))
    os.mkfifo(tmp_path / "pipe")  # it was opened, and nothing writes to it
    with pytest.raises(SessionError, match="is not a session file"):
        fresh.chat("A.").save(tmp_path / "pipe")
