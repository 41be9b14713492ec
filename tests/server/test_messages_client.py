"""The official client of Anthropic against the Messages API."""

import asyncio

import pytest

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.support.talkers import answering

# takes seconds to import
pytestmark = pytest.mark.full
anthropic = pytest.importorskip("anthropic")

ASKED = {"model": "tales", "max_tokens": 24, "messages": [{"role": "user", "content": "Hello."}]}
TOOL = {"name": "f", "description": "Does it.", "input_schema": {"type": "object"}}
CALL = ["Let me see.", "<tool_call>", '\n{"name": "f", ', '"arguments": {"x": 1}}', "\n</tool_call>"]  # fmt: skip


@pytest.fixture
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as one:
        yield one


def test_a_message(client):
    options = ASKED | {"extra_body": {"seed": 5}}
    message = client.messages.create(**options, system="Be kind.")
    text = message.content[0].text
    assert (message.type, message.stop_reason) == ("message", "max_tokens")
    with client.messages.stream(**options, system="Be kind.") as stream:
        assert "".join(stream.text_stream) == text
        final = stream.get_final_message()
    assert final.content[0].text == text
    assert final.usage.output_tokens == message.usage.output_tokens == 24
    n = message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert final.usage.input_tokens + final.usage.cache_read_input_tokens == n
    counted = client.messages.count_tokens(
        model="tales", messages=ASKED["messages"], system="Be kind."
    )
    assert counted.input_tokens == n
    stop = text[8:10]
    cut = client.messages.create(**options, system="Be kind.", stop_sequences=[stop])
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)


def test_tools(tmp_path):
    path = answering(tmp_path / "m.gguf", {"\n": CALL, "Q": ["Done", " now"]})
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        options = ASKED | {"tools": [TOOL], "max_tokens": 40}
        first = client.messages.create(**options, tool_choice={"type": "auto"})
        with client.messages.stream(**options) as stream:
            streamed = stream.get_final_message()
        for message in (first, streamed):
            assert message.stop_reason == "tool_use"
            assert [block.type for block in message.content] == ["text", "tool_use"]
            assert (message.content[1].name, message.content[1].input) == ("f", {"x": 1})
            result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": "ok"}
            said = {"role": "assistant", "content": message.content}
            messages = [*ASKED["messages"], said, {"role": "user", "content": [result]}]
            last = client.messages.create(**options | {"messages": messages})
            assert (last.content[0].text, last.stop_reason) == ("Done now", "end_turn")


def test_the_runner_of_tools(tmp_path):
    """The client's own loop: it calls the function and sends its result."""
    path = answering(tmp_path / "m.gguf", {"\n": CALL, "Q": ["Done", " now"]})
    called = []

    @anthropic.beta_tool
    def f(x: int) -> str:
        """Do it.

        Args:
            x: A number.
        """
        called.append(x)
        return "ok"

    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
        anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client,
    ):
        runner = client.beta.messages.tool_runner(
            model="m", max_tokens=40, tools=[f], messages=ASKED["messages"]
        )
        last = runner.until_done()
    assert (called, last.content[0].text) == ([1], "Done now")


def test_classes_of_errors(client, tales):
    with pytest.raises(anthropic.BadRequestError, match="temperature is 1000000000"):
        client.messages.create(**ASKED, extra_body={"temperature": 1e9})
    with pytest.raises(anthropic.NotFoundError):
        client.get("/v1/messages/none", cast_to=object)
    with serve_in_thread(tales, api_key="secret") as server:
        for options, works in (
            ({"api_key": "secret"}, True),
            ({"auth_token": "secret", "api_key": None}, True),
            ({"api_key": "wrong"}, False),
        ):
            with anthropic.Anthropic(base_url=server.url, max_retries=0, **options) as one:
                if works:
                    assert one.messages.create(**ASKED).content
                else:
                    with pytest.raises(anthropic.AuthenticationError):
                        one.messages.create(**ASKED)


def test_the_client_for_asyncio(server):
    async def ask(one):
        async with one.messages.stream(**ASKED, extra_body={"seed": 5}) as stream:
            return [text async for text in stream.text_stream]

    async def both():
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as one:
            return await asyncio.gather(ask(one), ask(one))

    first, second = asyncio.run(both())
    assert "".join(first) == "".join(second) != ""
