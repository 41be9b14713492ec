"""All families in a server: calls in special tokens are seen, forced calls follow their grammars."""

import json

import pytest

from gguf_spec_compat import Llama
from tests.server.conftest import ask_chat, serving
from tests.server.forced_calls import CHOICES, F, G, forced_call
from tests.support import tool_models
from tests.support.tool_examples import NAMES

TOOLS = [F, G]
SPECULATION = ["off", {"k": 4, "adaptive": False}]


@pytest.fixture(scope="module", params=NAMES)
def family(request):
    return tool_models.FAMILY[request.param]


@pytest.fixture(scope="module")
def noisy(family, tmp_path_factory):
    """A server of a model with random texts."""
    path = tool_models.noise(tmp_path_factory.mktemp("noisy") / "noisy.gguf", family.name)
    with serving(path) as server:
        yield server


@pytest.mark.full
@pytest.mark.parametrize("choice", CHOICES)
def test_noise_calls_tools(family, noisy, choice):
    # Noise in the channel of the reasoning would not end.
    more = {"reasoning_effort": "none"} if family.name == "harmony" else {}
    found = []
    for speculation in SPECULATION:
        found.append(forced_call(noisy, choice, max_tokens=200, speculation=speculation, **more))
    assert found[0] == found[1]


def joined(events):
    """Return content, calls and finish reason of a stream."""
    text, calls, finish = "", [], None
    for event in events:
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                if "id" in call:
                    calls.append([call["function"]["name"], ""])
                assert call["index"] == len(calls) - 1
                calls[-1][1] += call["function"]["arguments"]
            finish = choice["finish_reason"] or finish
    return text, calls, finish


def spoken(family, tmp_path):
    """A model whose answer is a text and a call, and the text."""
    before = "" if family.starts or family.name == "harmony" else "I look."
    call = family.write([("f", {"x": 1})])
    said = family.text_mark + before + "\n" + call if before else call.removeprefix(family.prompted)
    return tool_models.saying(tmp_path / "says.gguf", family.name, said), before


@pytest.mark.full
def test_a_call_in_special_tokens(family, tmp_path):
    path, before = spoken(family, tmp_path)
    fields = {"tools": TOOLS, "messages": [{"role": "user", "content": "x"}], "temperature": 0,
              "max_tokens": 200}  # fmt: skip
    with serving(path) as server:
        for speculation in SPECULATION:
            reply = ask_chat(server, **fields, speculation=speculation)
            [choice] = reply.json()["choices"]
            message = choice["message"]
            assert (message["content"] or "", choice["finish_reason"]) == (before, "tool_calls")
            [call] = message["tool_calls"]
            assert call["function"]["name"] == "f"
            assert json.loads(call["function"]["arguments"]) == {"x": 1}
            reply = ask_chat(server, **fields, speculation=speculation, stream=True)
            events = reply.body.decode().removesuffix("data: [DONE]\n\n").split("data: ")[1:]
            text, calls, finish = joined(map(json.loads, events))
            assert (text, finish) == (before, "tool_calls")
            assert calls == [["f", call["function"]["arguments"]]]


@pytest.mark.few(8)
def test_llama_cpp_python_calls(family, tmp_path):
    path, before = spoken(family, tmp_path)
    llama = Llama(str(path), draft_model_path="ngram", n_threads=1, verbose=False)
    asked = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "temperature": 0}
    [choice] = llama.create_chat_completion(**asked, max_tokens=200)["choices"]
    assert (choice["message"]["content"] or "", choice["finish_reason"]) == (before, "tool_calls")
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"x": 1}
    parts = llama.create_chat_completion(**asked, max_tokens=200, stream=True)
    expected = [["f", call["function"]["arguments"]]]
    assert joined(parts) == (before, expected, "tool_calls")
    llama.close()
