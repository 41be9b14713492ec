"""LangChain, LlamaIndex, the OpenAI Agents SDK, llm, and the examples with FastAPI and Textual for real, each in an environment of its own, as `scripts/ecosystem` makes them."""

import os
from pathlib import Path

import pytest

from tests.support import children

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {
    "langchain": "GGUF_SPEC_LANGCHAIN_PYTHON",
    "llama_index": "GGUF_SPEC_LLAMAINDEX_PYTHON",
    "agents": "GGUF_SPEC_AGENTS_PYTHON",
    "llm": "GGUF_SPEC_LLM_PYTHON",
    "examples": "GGUF_SPEC_EXAMPLES_PYTHON",
}
FILES = {
    "langchain": ["tests/compat/with_langchain.py", "tests/compat/with_langchain_server.py"],
    "llama_index": ["tests/compat/with_llama_index.py", "tests/compat/with_llama_index_server.py"],
    "agents": ["tests/compat/with_agents.py"],
    "llm": ["tests/compat/with_llm.py", "tests/compat/with_llm_server.py"],
    "examples": ["tests/examples/test_fastapi_app.py", "tests/examples/test_textual_app.py"],
}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Return a framework's name and what runs Python with it."""
    python = os.environ.get(FRAMEWORKS[request.param])
    if not python:
        pytest.skip(
            f"{FRAMEWORKS[request.param]} names no Python with the framework: run scripts/ecosystem"
        )

    def run(*arguments):
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'plugins/gguf-spec-compat'}",
            "OMP_NUM_THREADS": "1",
            "ANONYMIZED_TELEMETRY": "false",
        }
        return children.run(
            [python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, limit_s=280, check=False,
            preexec_fn=_on_one_processor if hasattr(os, "sched_setaffinity") else None,
        )  # fmt: skip

    return request.param, run


def _on_one_processor():
    """So that the examples take one thread: on a busy machine a second one is waited for."""
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])


def test_its_own_calls(framework):
    name, run = framework
    done = run(
        "-m",
        "pytest",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        "-o",
        "filterwarnings=default",
        *FILES[name],
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout


@pytest.mark.parametrize("framework", ["langchain", "llama_index"], indirect=True)
def test_the_example(framework):
    name, run = framework
    done = run(f"scripts/examples/{name}_example.py")
    assert done.returncode == 0, done.stderr[-4000:]
    chat, _, text = done.stdout.partition("\n---\n")
    assert len(chat.split()) > 5
    assert len(text.split()) > 5
