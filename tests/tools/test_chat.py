"""`Chat` with tools: the calls of an answer, their results, and what is kept of both."""

import json

import pytest

import gguf_spec
from gguf_spec.errors import InvalidOptionError
from tests.support import talkers

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}  # fmt: skip
ARGUMENTS = '{"a": 2, "b": 40}'
CALL = ["Let me see.", "<tool_call>", '\n{"name": "add", ', f'"arguments": {ARGUMENTS}}}', "\n</tool_call>"]  # fmt: skip


@pytest.fixture(scope="module")
def caller(tmp_path_factory):
    """A model that calls `add` for a question, and says `Done now` after its result."""
    path = tmp_path_factory.mktemp("caller") / "m.gguf"
    talkers.answering(path, {"\n": CALL, "Q": ["Done", " now"]})
    return path


@pytest.fixture(scope="module")
def llm(caller):
    with gguf_spec.load(caller, None, threads=1, extra_bufts=False) as one:
        yield one


@pytest.fixture
def chat(llm):
    one = llm.chat(sampling=gguf_spec.Sampling(temperature=0.0, max_tokens=40))
    one.tools = [ADD]
    return one


def test_a_call_and_its_result(chat):
    with chat.stream("2 + 40?") as turn:
        assert "".join(chunk.text for chunk in turn) == "Let me see."
    assert turn.result.text == chat.last.text == "Let me see."
    (call,) = turn.calls
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("add", {"a": 2, "b": 40})  # fmt: skip
    pieces = []
    turn = chat.answer_calls(["42"])
    assert turn.run_to_end(lambda chunk: pieces.append(chunk.text)).text == "Done now"
    assert ("".join(pieces), turn.calls) == ("Done now", [])
    assert [one["role"] for one in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[2] == {"role": "tool", "tool_call_id": call["id"], "content": "42"}


def test_without_tools_the_call_is_text(llm):
    chat = llm.chat(sampling=gguf_spec.Sampling(temperature=0.0, max_tokens=40))
    assert chat.send("2 + 40?").text == "".join(CALL)
    assert "tool_calls" not in chat.messages[-1]


@pytest.mark.parametrize("results", [[], ["1", "2"]])
def test_results_that_no_call_has(chat, results):
    chat.send("2 + 40?")
    before = list(chat.messages)
    with pytest.raises(InvalidOptionError, match="one for each open call, 1"):
        chat.answer_calls(results)
    assert chat.messages == before
    chat.answer_calls(["42"]).run_to_end()
    with pytest.raises(InvalidOptionError, match="one for each open call, 0"):
        chat.answer_calls(["42"])


def test_a_question_closes_the_calls_that_are_open(chat):
    chat.send("2 + 40?")
    chat.send("Never mind.")
    assert [one["role"] for one in chat.messages] == [
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert chat.messages[2]["content"] == "This call was not made."


def test_undo_and_retry_take_the_whole_question(chat):
    chat.send("2 + 40?")
    chat.answer_calls(["42"]).run_to_end()
    turn = chat.retry()
    turn.run_to_end()
    assert len(turn.calls) == 1
    assert [one["role"] for one in chat.messages] == ["user", "assistant"]
    chat.undo()
    assert chat.messages == []


def test_old_turns_are_left_out_whole(chat):
    for _ in range(2):
        chat.send("2 + 40?")
        chat.answer_calls(["42 " * 150]).run_to_end()
    chat.overflow = "shift"
    each = len(chat._llm.tokenize("a " * 100)) / 100
    turn = chat.stream("a " * int((chat._llm.n_ctx - chat.n_tokens) / each))
    turn.run_to_end()
    assert turn.dropped in (4, 8)
    assert chat.messages[0]["role"] == "user"


def test_saved_and_restored(chat, tmp_path):
    chat.send("2 + 40?")
    chat.answer_calls(["42"]).run_to_end()
    before = json.loads(json.dumps(chat.messages))
    chat.save(tmp_path / "s")
    chat.reset()
    chat.restore(tmp_path / "s")
    assert chat.messages == before
