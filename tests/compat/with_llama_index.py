"""What LlamaIndex does with `gguf_spec_compat.Llama`. Runs where llama-index-llms-llama-cpp is installed: see test_ecosystem.py."""

import asyncio

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.llms.llama_cpp import LlamaCPP

import gguf_spec_compat as compat


def as_chatml(messages):
    return (
        "".join(f"<|im_start|>{one.role.value}\n{one.content}<|im_end|>\n" for one in messages)
        + "<|im_start|>assistant\n"
    )


@pytest.fixture(scope="module")
def llm(pair):
    compat.install()  # after the package was imported: it gets ours all the same
    how = {"messages_to_prompt": as_chatml, "completion_to_prompt": str}
    yield LlamaCPP(
        model_path=pair[0], temperature=0, max_new_tokens=40, context_window=1024, verbose=False, **how,
        model_kwargs={"draft_model_path": pair[1], "flash_attn": False, "n_threads": 1}, generate_kwargs={"repeat_penalty": 1.1},
    )  # fmt: skip
    compat.uninstall()


def test_it_is_ours_with_its_draft(llm):
    assert isinstance(llm._model, compat.Llama)
    assert llm._model._llm.draft_name == "tales-draft-Q4_0.gguf"
    assert llm.metadata.context_window == 1024


def test_text(llm):
    whole = llm.complete("Once upon a time")
    assert whole.text
    assert whole.raw["usage"]["completion_tokens"] == 40
    parts = list(llm.stream_complete("Once upon a time"))
    assert len(parts) > 3
    assert parts[-1].text == "".join(part.delta for part in parts) == whole.text


def test_a_chat(llm):
    messages = [
        ChatMessage(role="system", content="You tell tales."),
        ChatMessage(role="user", content="Tell me a story about a fox."),
    ]
    whole = llm.chat(messages)
    assert whole.message.content
    assert "".join(part.delta for part in llm.stream_chat(messages)) == whole.message.content


def test_chats_at_once(llm):
    async def ask():
        return await asyncio.gather(*(llm.acomplete("Once upon a time") for _ in range(3)))

    assert {answer.text for answer in asyncio.run(ask())} == {llm.complete("Once upon a time").text}
