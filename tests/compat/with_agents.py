"""What the OpenAI Agents SDK does with the Responses API. Runs where openai-agents is installed: see test_ecosystem.py."""

import asyncio

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

import gguf_spec
from gguf_spec.server import serve_in_thread
from tests.support.talkers import answering

# The tool is strict, so a grammar checks the call.
CALL = [
    "Let me see.",
    "<tool_call>",
    '\n{"name": "weather", ',
    '"arguments": {"city": "Rome"}}',
    "\n</tool_call>",
]
ANSWERS = {"\n": CALL, "Q": ["It is ", "sunny in", " Rome."]}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    set_tracing_disabled(True)
    path = answering(tmp_path_factory.mktemp("agents") / "caller.gguf", ANSWERS)
    with (
        gguf_spec.load(path, None, threads=1, extra_bufts=False) as llm,
        serve_in_thread(llm) as server,
    ):
        yield server


def agent_of(client, asked, **settings):
    @function_tool
    def weather(city: str) -> str:
        """Return the weather of a city."""
        asked.append(city)
        return "sunny"

    return Agent(
        name="Forecaster",
        instructions="Use the tool.",
        tools=[weather],
        model=OpenAIResponsesModel(model="caller", openai_client=client),
        model_settings=ModelSettings(temperature=0, **settings),
    )


async def with_client(server, work):
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return await work(client)


@pytest.mark.parametrize("settings", [{}, {"store": False}, {"parallel_tool_calls": False}])
def test_an_agent_calls_a_tool(server, settings):
    async def work(client):
        asked = []
        result = await Runner.run(agent_of(client, asked, **settings), "Weather in Rome?")
        return asked, result

    asked, result = asyncio.run(with_client(server, work))
    assert (asked, result.final_output) == (["Rome"], "It is sunny in Rome.")
    kinds = [item.type for item in result.new_items]
    assert kinds == ["message_output_item", "tool_call_item", "tool_call_output_item", "message_output_item"]  # fmt: skip
    assert [one.usage.requests for one in result.raw_responses] == [1, 1]
    assert result.raw_responses[1].usage.input_tokens > result.raw_responses[0].usage.input_tokens


def test_a_streamed_agent(server):
    async def work(client):
        asked = []
        result = Runner.run_streamed(agent_of(client, asked), "Weather in Rome?")
        events = [event async for event in result.stream_events()]
        return asked, result.final_output, events

    asked, output, events = asyncio.run(with_client(server, work))
    assert (asked, output) == (["Rome"], "It is sunny in Rome.")
    raw = [event.data for event in events if event.type == "raw_response_event"]
    texts = [one.delta for one in raw if one.type == "response.output_text.delta"]
    assert "".join(texts) == "Let me see.It is sunny in Rome."
    assert [one.type for one in raw].count("response.completed") == 2


def test_a_conversation_that_the_server_keeps(server):
    async def work(client):
        asked = []
        agent = agent_of(client, asked)
        first = await Runner.run(agent, "Weather in Rome?", auto_previous_response_id=True)
        second = await Runner.run(agent, "And now?", previous_response_id=first.last_response_id)
        stored = await client.responses.input_items.list(second.last_response_id, limit=100)
        return asked, [item.type for item in stored.data]

    asked, items = asyncio.run(with_client(server, work))
    assert asked == ["Rome", "Rome"]
    assert items.count("function_call_output") == 2
    assert items.count("function_call") == 2
