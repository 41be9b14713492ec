#!/usr/bin/env python3
"""Let programs that measure servers and models use one of ours: LangChain's standard tests, guidellm, inspect-ai, bfcl-eval, lm-eval.

    .venv/bin/python scripts/checks/clients.py                    # all, each installed by pip below --folder
    .venv/bin/python scripts/checks/clients.py langchain lm-eval -m qwen2.5-coder-1.5b

A server is started with the model, which must be on this disk. LangChain's tests are those of its integrations, with four clients; the others
get a handful of cases. What the model answers does not count, but for calls of tools. It needs a package index and an hour with two cores;
nothing of it runs in CI.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gguf_spec import load
from gguf_spec.server import serve_in_thread

PACKAGES = {
    "langchain": [
        "langchain-tests==1.1.9", "langchain-openai==1.7.4", "langchain-ollama==1.1.0", "langchain-anthropic==1.7.10",
        "pytest==9.2.0", "pytest-asyncio==1.5.0", "pytest-socket==0.8.1",
    ],
    "guidellm": ["guidellm==0.8.1"],
    "inspect-ai": ["inspect-ai==0.3.285", "openai==3.57.0"],
    "bfcl-eval": ["bfcl-eval==2026.3.23", "soundfile==0.14.0"],
    "lm-eval": ["lm-eval[api]==0.4.13"],
}  # fmt: skip
LIMIT_S = 3600

LANGCHAIN = """
import os
from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL, ASKED = os.environ["URL"], {"model": os.environ["MODEL"], "temperature": 0}
KEY = {"api_key": "none", "max_tokens": 200, "timeout": 300}

def of(client, json_mode=True, **more):
    class Tests(ChatModelIntegrationTests):
        chat_model_class = property(lambda _: client)
        chat_model_params = property(lambda _: ASKED | more)
        supports_json_mode = property(lambda _: json_mode)
        enable_vcr_tests = property(lambda _: False)
    return Tests

class TestOpenAI(of(ChatOpenAI, base_url=f"{URL}/v1", stream_usage=True, **KEY)): pass
class TestResponses(of(ChatOpenAI, base_url=f"{URL}/v1", use_responses_api=True, **KEY)): pass
class TestOllama(of(ChatOllama, base_url=URL, num_predict=200)): pass
class TestAnthropic(of(ChatAnthropic, json_mode=False, base_url=URL, **KEY)): pass
"""

INSPECT = """
import os
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

@tool
def add():
    async def execute(x: int, y: int):
        '''Add two numbers.

        Args:
            x: First number.
            y: Second number.
        '''
        return x + y
    return execute

asked = Sample(input="What is 1234 + 4321? Use the tool add.", target="5555")
task = Task(dataset=[asked], solver=[use_tools(add()), generate()], scorer=includes())
(log,) = eval(task, model="openai-api/local/" + os.environ["MODEL"], max_tokens=128, temperature=0, display="plain")
assert log.status == "success", log.error
assert any(one.role == "tool" and "5555" in one.text for one in log.samples[0].messages)
print("a tool was called, and its result read")
"""

BFCL_IDS = {
    "simple_python": ["simple_python_0", "simple_python_1", "simple_python_2"],
    "parallel": ["parallel_0"],
    "irrelevance": ["irrelevance_0"],
}
BFCL_MODEL = "gpt-5.2-2025-12-11-FC"  # its handler asks for calls by the Responses API

QUESTIONS = [
    {"question": "The fox ran into the", "choices": ["forest", "sentence"], "answer": 0},
    {"question": "The king sat on his", "choices": ["throne", "verb"], "answer": 0},
    {"question": "In winter it is", "choices": ["cold", "purple"], "answer": 0},
]


class Failed(Exception):
    """A client did not get what it asked for."""


class Client:
    """The environment of one client, and a folder for its files."""

    def __init__(self, folder: Path, name: str, url: str, model: str) -> None:
        self.bin, self.work = folder / name / "bin", folder / f"{name}-work"
        self.url, self.model = url, model
        if not self.bin.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder / name)], check=True)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "-q", *PACKAGES[name]]
        subprocess.run(pip, check=True)
        self.work.mkdir(exist_ok=True)

    def run(self, *command: str, **environment: str) -> str:
        """Run a program of the environment; return what it printed.

        Raises:
            Failed: It ended with an error.
        """
        own = {"URL": self.url, "MODEL": self.model, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]], cwd=self.work, env=os.environ | own | environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Failed(f"exit {done.returncode}: {done.stdout[-3000:]} {done.stderr[-3000:]}")
        return done.stdout


def langchain(client: Client) -> str:
    (client.work / "test_chat.py").write_text(LANGCHAIN, encoding="utf-8")
    loop = ["-o", "asyncio_mode=auto", "-o", "asyncio_default_test_loop_scope=session"]
    said = client.run("python", "-m", "pytest", "-q", *loop, "test_chat.py")
    return said.strip().splitlines()[-1]


def guidellm(client: Client) -> str:
    prompts = [{"prompt": f"Tell me of fox {i}.", "output_tokens_count": 16} for i in range(8)]
    lines = "\n".join(map(json.dumps, prompts))
    (client.work / "prompts.jsonl").write_text(lines, encoding="utf-8")
    client.run(
        "guidellm", "run", "--backend", f"kind=openai_http,target={client.url}", "--profile", "kind=synchronous",
        "--constraint", "kind=max_requests,count=5", "--data", "kind=json_file,path=prompts.jsonl", "--disable-console-interactive",
    )  # fmt: skip
    found = json.loads((client.work / "benchmarks.json").read_text(encoding="utf-8"))
    totals = found["benchmarks"][0]["metrics"]["request_totals"]
    if (totals["successful"], totals["errored"]) != (5, 0):
        raise Failed(str(totals))
    return "5 requests"


def inspect_ai(client: Client) -> str:
    local = {"LOCAL_API_KEY": "none", "LOCAL_BASE_URL": f"{client.url}/v1"}
    return client.run("python", "-c", INSPECT, **local).strip().splitlines()[-1]


def bfcl_eval(client: Client) -> str:
    ids = client.work / "test_case_ids_to_generate.json"
    ids.write_text(json.dumps(BFCL_IDS), encoding="utf-8")
    own = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{client.url}/v1", "BFCL_PROJECT_ROOT": str(client.work)}  # fmt: skip
    client.run("bfcl", "generate", "--model", BFCL_MODEL, "--run-ids", "-o", "--num-threads", "1", "--temperature", "0.001", **own)  # fmt: skip
    files = [*(client.work / "result" / BFCL_MODEL).rglob("*.json")]
    found = [json.loads(line) for one in files for line in one.read_text("utf-8").splitlines()]
    calls = [one["result"] for one in found if one["id"].startswith("simple")]
    if len(found) != 5 or not all(isinstance(one, list) for one in calls):
        raise Failed(str(found))
    return "5 answers, the calls of the simple ones read"


def lm_eval(client: Client) -> str:
    lines = "\n".join(map(json.dumps, QUESTIONS))
    (client.work / "questions.jsonl").write_text(lines, encoding="utf-8")
    task = {
        "task": "tiny", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(client.work / "questions.jsonl")}},
        "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "choices",
        "doc_to_target": "answer", "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }  # fmt: skip
    (client.work / "tiny.yaml").write_text(json.dumps(task), encoding="utf-8")
    values = []
    for n in (1, 3):
        server = f"model={client.model},base_url={client.url}/v1/completions,tokenizer_backend=remote,num_concurrent={n}"
        places = ["--include_path", ".", "--output_path", f"out{n}", "--log_samples"]
        client.run("lm_eval", "--model", "local-completions", "--model_args", server, "--tasks", "tiny", *places)  # fmt: skip
        newest = max((client.work / f"out{n}").rglob("samples*.jsonl"), key=lambda one: one.name)
        rows = map(json.loads, newest.read_text(encoding="utf-8").splitlines())
        values.append(sorted((row["doc_id"], str(row["resps"])) for row in rows))
    if values[0] != values[1] or len(values[0]) != len(QUESTIONS):
        raise Failed(str(values))
    return "the same digits alone and with three requests at once"


CLIENTS = {
    "langchain": langchain, "guidellm": guidellm, "inspect-ai": inspect_ai, "bfcl-eval": bfcl_eval, "lm-eval": lm_eval,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*CLIENTS, []], help="all without one")
    parser.add_argument("-m", "--model", default="qwen2.5-coder-1.5b")
    folder = Path(tempfile.gettempdir()) / "gguf-spec-clients"
    parser.add_argument("--folder", type=Path, default=folder)
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    n_failed = 0
    with load(args.model, n_ctx=8192, parallel=2) as llm, serve_in_thread(llm) as server:
        for name in args.names or [*CLIENTS]:
            try:
                client = Client(args.folder.resolve(), name, server.url.rstrip("/"), args.model)
                print(f"{name:<12}ok: {CLIENTS[name](client)}", flush=True)
            except (Failed, subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
                n_failed += 1
                print(f"{name:<12}FAILED: {' '.join(str(error).split())[-3000:]}", flush=True)
    return min(n_failed, 1)


if __name__ == "__main__":
    sys.exit(main())
