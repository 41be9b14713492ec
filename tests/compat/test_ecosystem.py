"""LangChain and LlamaIndex for real, each in an environment of its own, as `scripts/ecosystem` makes them."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = {"langchain": "GGUF_SPEC_LANGCHAIN_PYTHON", "llama_index": "GGUF_SPEC_LLAMAINDEX_PYTHON"}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    """Return a framework's name and what runs Python with it."""
    python = os.environ.get(FRAMEWORKS[request.param])
    if not python:
        pytest.skip(f"{FRAMEWORKS[request.param]} names no Python with the framework: run scripts/ecosystem")

    def run(*arguments):
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "ANONYMIZED_TELEMETRY": "false"}
        return subprocess.run([python, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)

    return request.param, run


def test_its_own_calls(framework):
    name, run = framework
    done = run("-m", "pytest", "-v", "-p", "no:cacheprovider", "-o", "filterwarnings=default", f"tests/compat/with_{name}.py")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "PASSED" in done.stdout
    assert "SKIPPED" not in done.stdout


def test_the_example(framework):
    name, run = framework
    done = run(f"scripts/examples/{name}_example.py")
    assert done.returncode == 0, done.stderr[-4000:]
    chat, _, text = done.stdout.partition("\n---\n")
    assert len(chat.split()) > 5
    assert len(text.split()) > 5
