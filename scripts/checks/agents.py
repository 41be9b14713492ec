#!/usr/bin/env python3
"""Let the real programs of agents do one task with a server of ours, and say which of them end it.

    .venv/bin/python scripts/checks/agents.py                    # all, installed by npm below --folder
    .venv/bin/python scripts/checks/agents.py codex claude

The model writes given answers: first a call of the tool that runs commands in a shell, then the word `done`. So a client, its
requests, the tools and the answers are tried to the end: the file is there, the program ends with 0. Each runs in a
repository and a home folder of its own, by `gguf-spec launch` where that knows it. It needs npm and a network; nothing of it
runs in CI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 -- found by the path set above

import gguf_spec  # noqa: E402
from gguf_spec.server import serve_in_thread  # noqa: E402
from tests.support import tiny  # noqa: E402

MAKE = "echo made > made.txt"
TASK = "Make the file made.txt."
CONTEXT = 160_000  # a token is a byte
LIMIT_S = 300
FOLDER = Path(tempfile.gettempdir()) / "gguf-spec-agents"


class Agent(NamedTuple):
    """A program, with what a model must call, and how it is run without questions."""

    package: str
    tool: str
    arguments: dict[str, Any]
    words: tuple[str, ...]
    is_launched: bool = True
    answer: str = "done"
    variables: Mapping[str, str] = MappingProxyType({})


AGENTS = {
    "codex": Agent(
        "@openai/codex@0.171.0", "exec_command", {"cmd": MAKE},
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK),
    ),
    "claude": Agent(
        "@anthropic-ai/claude-code@2.1.197", "Bash", {"command": MAKE, "description": "x"},
        ("-p", TASK, "--dangerously-skip-permissions"),
    ),
    "opencode": Agent(
        "opencode-ai@1.18.33", "bash", {"command": MAKE, "description": "x"}, ("run", TASK)
    ),
    "pi": Agent("@mariozechner/pi-coding-agent@0.73.1", "bash", {"command": MAKE}, ("-p", TASK)),
    "aider": Agent(
        "aider-chat==0.86.2", "", {},
        ("--message", TASK, "--yes-always", "--no-check-update", "--no-analytics", "--edit-format", "diff"), True,
        "made.txt\n```\n<<<<<<< SEARCH\n=======\nmade\n>>>>>>> REPLACE\n```\ndone",
    ),
    "cn": Agent(
        "@continuedev/cli@1.5.47", "Bash", {"command": MAKE},
        ("-p", TASK, "--auto", "--config", "config.yaml"), False, "done",
        {"CONFIG": "name: local\nversion: 1.0.0\nschema: v1\nmodels: [{name: m, provider: openai, model: $model, apiBase: $url/v1, "
                   "apiKey: none, roles: [chat], capabilities: [tool_use]}]\n"},
    ),
    "qwen": Agent(
        "@qwen-code/qwen-code@0.15.10", "run_shell_command",
        {"command": MAKE, "is_background": False, "description": "x"},
        ("-p", TASK, "--yolo", "--auth-type", "openai"), False, "done",
        {"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "$model"},
    ),
}  # fmt: skip
# Qwen's form of tools and calls. A prompt without tools, or behind a result, ends with a tab: the model then writes `done`.
TEMPLATE = (
    "{% set ns = namespace(done=not tools) %}"
    "{% if tools %}{{ '<tools>' + (tools | tojson) + '</tools><tool_call>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}{% set ns.done = true %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' + ('\t' if ns.done else '\n') }}{% endif %}"
)


def write_model(path: Path, agent: Agent) -> None:
    """Write a model that answers a line feed with a call, and a tab with the word `done`."""
    letters = tiny._byte_letters()
    call = f"<tool_call>\n{json.dumps({'name': agent.tool, 'arguments': agent.arguments})}\n</tool_call>"
    texts = ["".join(letters[byte] for byte in text.encode()) for text in (call, agent.answer)]
    tokens = [*tiny.TOKENS[:-3], *texts, *tiny.TOKENS[-3:]]
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    tensors = {
        name: tensor if "norm" in name or "embd" in name else np.zeros_like(tensor)
        for name, tensor in tensors.items()
    }
    end = len(tokens) - 3
    follows = {tokens.index(letters[10]): end - 2, tokens.index(letters[9]): end - 1}
    for now, after in (follows | {end - 2: end, end - 1: end}).items():
        tensors["output.weight"][after] += 100 * tensors["token_embd.weight"][now]
    changes = {"llama.context_length": CONTEXT, "tokenizer.chat_template": TEMPLATE}
    tiny.write(path, (metadata, tensors), tokens=tokens, metadata=changes)


def install(names: list[str], folder: Path) -> None:
    """Install the programs by npm, with exact versions."""
    folder.mkdir(parents=True, exist_ok=True)
    packages = [AGENTS[name].package for name in names if name != "aider"]
    if "aider" in names and not (folder / "aider").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "aider")], check=True)
        pip = [str(folder / "aider" / "bin" / "pip"), "install", "-q"]
        subprocess.run([*pip, AGENTS["aider"].package], check=True, stdout=sys.stderr)
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder)]
    if packages:
        subprocess.run([*npm, *packages], check=True, stdout=sys.stderr)
    after = folder / "node_modules" / "opencode-ai" / "postinstall.mjs"  # newer npm does not run it
    if after.exists():
        subprocess.run(["node", str(after)], check=False, stdout=sys.stderr)


def environment_of(work: Path, folder: Path) -> dict[str, str]:
    """Make a home folder and a repository in a folder; return the variables of a program in them."""
    for one in ("home", "repo"):
        (work / one).mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(work / "repo")], check=True)
    return {
        **os.environ,
        "HOME": str(work / "home"),
        "PWD": str(work / "repo"),  # opencode reads it
        "IS_SANDBOX": "1",  # claude: root may skip its questions
        "PATH": f"{folder / 'node_modules' / '.bin'}:{folder / 'aider' / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def run(name: str, folder: Path, work: Path) -> dict[str, Any]:
    """Let a program do the task; return what became of it."""
    agent, repo = AGENTS[name], work / "repo"
    environment = environment_of(work, folder)
    write_model(work / "scripted.gguf", agent)
    os.environ["XDG_STATE_HOME"] = environment["XDG_STATE_HOME"] = str(work / "state")
    loads = {"n_ctx": CONTEXT, "parallel": 1, "draft": None}
    with (
        gguf_spec.load(work / "scripted.gguf", **loads) as llm,
        serve_in_thread(llm, listed=True) as server,
    ):
        values = {"url": server.url, "model": llm.name}
        for key, text in agent.variables.items():
            environment[key] = text.replace("$url", values["url"]).replace(
                "$model", values["model"]
            )
        if "CONFIG" in agent.variables:
            (repo / "config.yaml").write_text(environment.pop("CONFIG"))
        launch = [sys.executable, "-m", "gguf_spec", "launch", name, "--"]
        command = [*(launch if agent.is_launched else [name]), *agent.words]
        began = time.monotonic()
        try:
            done = subprocess.run(
                command, cwd=repo, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=LIMIT_S, check=False,
            )  # fmt: skip
            code, said = done.returncode, (done.stdout + done.stderr)[-2000:]
        except subprocess.TimeoutExpired as error:
            code, said = None, str(error.stdout)[-2000:]
    made = repo / "made.txt"
    is_made = made.is_file() and made.read_text() == "made\n"
    is_done = code == 0 and is_made and "done" in said
    seconds = round(time.monotonic() - began, 1)
    return {
        "agent": name,
        "done": is_done,
        "code": code,
        "file": is_made,
        "seconds": seconds,
        "said": said,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=[*AGENTS, []], help="the programs; all without one"
    )
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--json", action="store_true", help="print what each of them said, too")
    args = parser.parse_args()
    names = args.names or [*AGENTS]
    install(names, args.folder)
    results = []
    for name in names:
        work = Path(tempfile.mkdtemp(prefix=f"gguf-spec-{name}-"))
        try:
            results.append(run(name, args.folder, work))
        finally:
            shutil.rmtree(work, ignore_errors=True)
        one = results[-1]
        print(
            f"{name:<10}{'done' if one['done'] else 'NOT DONE':<10}exit {one['code']}, "
            f"file {'made' if one['file'] else 'not made'}, {one['seconds']} s",
            flush=True,
        )
        if not one["done"]:
            print(one["said"], file=sys.stderr)
    if args.json:
        print(json.dumps(results, indent=1))
    return 0 if all(one["done"] for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
