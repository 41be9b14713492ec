"""The plugin for llm, installed by `llm install` and used by llm's command line and Python API. Runs where llm is installed: see test_ecosystem.py."""

import asyncio
import json
import os
import sys
from pathlib import Path

import llm
import pytest

import gguf_spec
from tests.support import children
from tests.support.talkers import answering

ROOT = Path(__file__).resolve().parents[2]
CALL = ["<tool_call>", '\n{"name": "weather", "arguments": {"city": "Rome"}}', "\n</tool_call>"]
BROKEN = ["<tool_call>", '\n{"name": "weather", "arguments": {"city": ', "oops"]
ANSWERS = {"\n": ["Let me see.", *CALL], "Q": ["It is ", "sunny in", " Rome."]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which `llm install` has put the plugin, and an environment with it."""
    folder = tmp_path_factory.mktemp("installed")
    environment = os.environ | {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        "LLM_USER_PATH": str(tmp_path_factory.mktemp("llm")),
        "PIP_TARGET": str(folder),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "false",  # pip reads it as the value of --build-isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    _run(environment, "install", "plugins/llm-gguf-spec")
    return folder, environment


def _run(environment, *arguments, stdin=""):
    command = [sys.executable, "-m", "llm", *arguments]
    done = children.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, limit_s=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def plugin(installed):
    sys.path.insert(0, str(installed[0]))
    import llm_gguf_spec

    assert Path(llm_gguf_spec.__file__).parent == installed[0]
    yield llm_gguf_spec
    sys.path.remove(str(installed[0]))


@pytest.fixture(scope="module")
def caller(plugin, tmp_path_factory):
    """Path of a model that calls a tool and then answers."""
    return str(answering(tmp_path_factory.mktemp("caller") / "caller.gguf", ANSWERS))


def text_of(prompt, **options):
    with gguf_spec.load("tales", threads=1) as model:
        return model.generate(prompt, gguf_spec.Sampling(**options)).text


def test_a_broken_models_file_is_a_warning(plugin, monkeypatch, tmp_path):
    """llm calls each plugin at its start, so an exception would break all models."""
    (tmp_path / "gguf-spec").mkdir()
    (tmp_path / "gguf-spec" / "models.yaml").write_text("models: [1")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = []
    with pytest.warns(UserWarning, match="not valid YAML"):
        plugin.register_models(found.append)
    with pytest.warns(UserWarning, match="not valid YAML"):
        plugin.register_embedding_models(found.append)
    assert not found


def test_the_commands(installed):
    _, environment = installed
    assert "gguf-spec/tales" in _run(environment, "models", "list")
    options = ["-o", "seed", "7", "-o", "max_tokens", "12", "-o", "threads", "1"]
    told = _run(environment, "-m", "tales", "Once", *options)
    assert told == text_of("Once", seed=7, max_tokens=12) + "\n"
    more = _run(environment, "-c", " Then", *options)
    assert more == text_of("Once" + told[:-1] + " Then", seed=7, max_tokens=12) + "\n"
    schema = json.loads(_run(environment, "-m", "tales", "A dog", "--schema", "name, age int", *options[:3]))  # fmt: skip
    assert set(schema) == {"name", "age"} and isinstance(schema["age"], int)
    chat = _run(environment, "chat", "-m", "tales", *options, stdin="Once\nexit\n")
    assert told[:-1] in chat
    vector = json.loads(_run(environment, "embed", "-m", "tales", "-c", "A fox."))
    with gguf_spec.load("tales", "none", threads=1) as model:
        assert vector == pytest.approx(model.embed("A fox.")[0].tolist(), abs=1e-4)


def test_usage_and_seed(plugin):
    response = plugin.GgufSpec("tales").prompt("Once", seed=7, max_tokens=12, threads=1)
    assert response.usage().output == response.json()["stats"]["n_generated"] == 12
    assert (response.json()["seed"], response.json()["finish_reason"]) == (7, "length")


def test_a_conversation_with_a_system_message_is_a_chat(plugin):
    model = plugin.GgufSpec("tales")
    options = {"seed": 3, "max_tokens": 10, "threads": 1}
    conversation = model.conversation()
    first = conversation.prompt("Hi.", system="You tell tales.", **options).text()
    second = conversation.prompt("Go on.", **options).text()
    with gguf_spec.load("tales", threads=1) as own:
        chat = own.chat("You tell tales.", sampling=gguf_spec.Sampling(seed=3, max_tokens=10))
        assert [first, second] == [chat.send("Hi.").text, chat.send("Go on.").text]


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"sunny in {city}"


def test_a_tool(plugin, caller):
    chain = plugin.GgufSpec(caller).chain("Weather?", tools=[weather], options={"temperature": 0})
    first, second = chain.responses()
    assert [first.text(), second.text()] == ["Let me see.", "It is sunny in Rome."]
    assert [(one.name, one.arguments) for one in first.tool_calls()] == [
        ("weather", {"city": "Rome"})
    ]
    assert second.prompt.tool_results[0].output == "sunny in Rome"
    assert second.tool_calls() == []


def test_a_broken_call_is_text(plugin, tmp_path):
    path = str(answering(tmp_path / "broken.gguf", {"\n": BROKEN}))
    response = plugin.GgufSpec(path).prompt("Weather?", tools=[weather], temperature=0)
    assert (response.text(), response.tool_calls()) == ("".join(BROKEN), [])


def test_a_tool_with_asyncio(plugin, caller):
    model = plugin.AsyncGgufSpec(caller)

    async def ask():
        chain = model.chain("Weather?", tools=[weather], options={"temperature": 0})
        return [await one.text() async for one in chain.responses()]

    # an event loop each
    assert [asyncio.run(ask()) for _ in range(2)] == [["Let me see.", "It is sunny in Rome."]] * 2


def test_errors_have_their_hint(plugin):
    with pytest.raises(llm.ModelError, match=r"temperature is -1.0 but .*\nHint: "):
        plugin.GgufSpec("tales").prompt("Once", temperature=-1).text()
    # a template without tools gets them in the message of the system
    assert plugin.GgufSpec("tales").prompt("Once", tools=[weather], max_tokens=4).text()
