#!/usr/bin/env python3
"""Let the real programs of agents work with a server of ours, and say which of them end what they are asked.

    .venv/bin/python scripts/checks/agents.py                    # all, installed by npm below --folder
    .venv/bin/python scripts/checks/agents.py codex claude --only task,resume

The model writes given answers, so a client, its requests, the tools and the answers are tried to the end:

task      a call of the tool that runs commands in a shell, then a word: the file is there, the program ends with 0
resume    a second session that goes on with the first one: the model got both questions
cancel    Ctrl-C in an answer without an end: the program ends, the server ends the answer, and the next request works
overflow  the command prints more than the context holds: the client knows our words for it, and sums up or stops
agents    two sub-agents, where the program has them

Each runs in a repository and a home folder of its own, by `gguf-spec launch` where that knows it. It needs npm and a
network; `.github/workflows/test.yml` runs it at night.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402 -- found by the path set above

import gguf_spec  # noqa: E402
from gguf_spec.server import serve_in_thread  # noqa: E402
from gguf_spec.server.metrics import Metrics  # noqa: E402
from tests.support import tiny  # noqa: E402

MAKE = "echo made > made.txt"
BIG = f"{'word ' * 200}\n" * 24  # about what clients take of an output
LONG = "cat big.txt; echo made > made.txt"
TASK, AGAIN, ON, SPLIT = "Make the file made.txt.", "Go on, XX3.", "Count, XX4.", "Share it, XX5."
SAID, RESUMED = "All is ZZ9.", "It was YY7."
CONTEXT = 160_000  # a token is a byte
LIMIT_S = 300
FOLDER = Path(tempfile.gettempdir()) / "gguf-spec-agents"


class Agent(NamedTuple):
    """A program, and how it is run without questions.

    Attributes:
        tool: What runs commands in a shell, and its arguments; None where an answer is an edit.
        words: Arguments for a first session; in these and others `$ask` is the question.
        again: Arguments that go on with the last session.
        split: Calls that start two sub-agents; none where it has none.
    """

    package: str
    tool: tuple[str, dict[str, Any]] | None
    words: tuple[str, ...]
    again: tuple[str, ...]
    split: tuple[tuple[str, dict[str, Any]], ...] = ()
    is_launched: bool = True
    answer: str = SAID
    variables: Mapping[str, str] = MappingProxyType({})


_FREE = "--dangerously-bypass-approvals-and-sandbox"
_AIDER = ("--yes-always", "--no-check-update", "--no-analytics", "--edit-format", "diff")
AGENTS = {
    "codex": Agent(
        "@openai/codex@0.171.0", ("exec_command", {"cmd": "$command"}),
        ("exec", "--skip-git-repo-check", _FREE, "$ask"),
        ("exec", "--skip-git-repo-check", _FREE, "resume", "--last", "$ask"),
        (*[("multi_agent_v1__spawn_agent", {"message": TASK})] * 2, ("exec_command", {"cmd": "sleep 8"})),
    ),
    "claude": Agent(
        "@anthropic-ai/claude-code@2.1.197", ("Bash", {"command": "$command", "description": "x"}),
        ("-p", "$ask", "--dangerously-skip-permissions"),
        ("-c", "-p", "$ask", "--dangerously-skip-permissions"),
        (("Agent", {"description": "x", "prompt": TASK, "subagent_type": "general-purpose"}),) * 2,
    ),
    "opencode": Agent(
        "opencode-ai@1.18.33", ("bash", {"command": "$command", "description": "x"}),
        ("run", "$ask"), ("run", "-c", "$ask"),
        (("task", {"description": "x", "prompt": TASK, "subagent_type": "general"}),) * 2,
    ),
    "pi": Agent(
        "@mariozechner/pi-coding-agent@0.73.1", ("bash", {"command": "$command"}),
        ("-p", "$ask"), ("-c", "-p", "$ask"),
        variables={"PI_CODING_AGENT_SESSION_DIR": "sessions"},
    ),
    "aider": Agent(
        "aider-chat==0.86.2", None,
        ("--message", "$ask", *_AIDER), ("--restore-chat-history", "--message", "$ask", *_AIDER),
        answer=f"made.txt\n```\n<<<<<<< SEARCH\n=======\nmade\n>>>>>>> REPLACE\n```\n{SAID}",
    ),
    "cn": Agent(
        "@continuedev/cli@1.5.47", ("Bash", {"command": "$command"}),
        ("-p", "$ask", "--auto", "--config", "config.yaml"),
        ("-p", "$ask", "--auto", "--config", "config.yaml", "--resume"), is_launched=False,
        variables={"CONFIG": "name: local\nversion: 1.0.0\nschema: v1\nmodels: [{name: m, provider: openai, model: $model, apiBase: $url/v1, "
                   "apiKey: none, roles: [chat], capabilities: [tool_use]}]\n"},
    ),
    "qwen": Agent(
        "@qwen-code/qwen-code@0.15.10",
        ("run_shell_command", {"command": "$command", "is_background": False, "description": "x"}),
        ("-p", "$ask", "--yolo", "--auth-type", "openai"),
        ("-c", "-p", "$ask", "--yolo", "--auth-type", "openai"),
        (("agent", {"description": "x", "prompt": TASK, "subagent_type": "general-purpose"}),) * 2, False,
        variables={"OPENAI_BASE_URL": "$url/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "$model"},
    ),
}  # fmt: skip
# Qwen's form of tools and calls. The last character of a prompt decides what the model writes.
TEMPLATE = (
    "{% set ns = namespace(done=not tools, ask='', n=0) %}"
    "{% if tools %}{{ '<tools>' + (tools | tojson) + '</tools><tool_call>\n' }}{% endif %}"
    "{% for m in messages %}{% set text = m.content or '' %}"
    "{% if m.role == 'tool' or 'ZZ9' in text %}{% set ns.done = true %}{% endif %}"
    "{% if 'XX4' in text %}{% set ns.ask = '\f' %}{% endif %}"
    "{% if 'XX5' in text and tools %}{% set ns.ask = '\x0e' %}{% endif %}"
    "{% if 'made.txt' in text %}{% set ns.n = 1 %}{% endif %}"
    "{% if 'XX3' in text and ns.n %}{% set ns.ask = '\v' %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + text }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>\n' + (c.function | tojson) + '\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}"
    "{{ ns.ask if ns.ask in ('\f', '\v') and ns.ask else '\t' if ns.done else ns.ask or '\n' }}{% endif %}"
)


def write_model(path: Path, agent: Agent, command: str, context: int) -> None:
    """Write a model: a line feed is answered with a call, a tab with the agent's answer, and so on; see `TEMPLATE`."""
    letters = tiny.byte_letters()

    def call(tool: tuple[str, dict[str, Any]] | None) -> str:
        name, given = tool or ("none", {})
        given = {key: command if one == "$command" else one for key, one in given.items()}
        return f"<tool_call>\n{json.dumps({'name': name, 'arguments': given})}\n</tool_call>"

    said = {"\n": call(agent.tool), "\t": agent.answer, "\v": RESUMED, "\f": "and on "}
    said["\x0e"] = "\n".join(map(call, agent.split)) or "none"
    texts = ["".join(letters[byte] for byte in text.encode()) for text in said.values()]
    tokens = [*tiny.TOKENS[:-3], *texts, *tiny.TOKENS[-3:]]
    metadata, tensors = tiny.llama(n_vocab=len(tokens))
    tensors = {
        name: tensor if "norm" in name or "embd" in name else np.zeros_like(tensor)
        for name, tensor in tensors.items()
    }
    end = len(tokens) - 3
    for i, mark in enumerate(said):
        token = end - len(said) + i
        after = token if mark == "\f" else end
        for now, then in ((tokens.index(letters[ord(mark)]), token), (token, after)):
            tensors["output.weight"][then] += 100 * tensors["token_embd.weight"][now]
    changes = {"llama.context_length": context, "tokenizer.chat_template": TEMPLATE}
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


@contextmanager
def recorded() -> Iterator[tuple[list[tuple[Any, list[float]]], list[Any], list[int]]]:
    """Lend what a server records.

    The results of all answers with the seconds from the arrival to the first token and to the end,
    all streams, and how many ran when each of them began.
    """
    answers, streams, running = list[tuple[Any, list[float]]](), list[Any](), list[int]()
    began, ended = Metrics.began, Metrics.ended

    def begin(self: Metrics, stream: Any) -> None:
        began(self, stream)
        streams.append(stream)
        running.append(len(self._running))

    def end(self: Metrics, stream: Any, model: str, what: str, times_s: Any, *more: Any) -> None:
        ended(self, stream, model, what, times_s, *more)
        answers.append((stream.result, [one - times_s[0] for one in times_s[1:]]))

    with mock.patch.multiple(Metrics, began=begin, ended=end):
        yield answers, streams, running


class Statuses(logging.Handler):
    """The statuses of a server's answers, from its log."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        method, _, status, _ = record.args  # type: ignore[misc]
        if method == "POST":
            self.seen.append(str(status))


def health(url: str) -> dict[str, Any]:
    """Return the state of a server."""
    with urllib.request.urlopen(f"{url}/health", timeout=30) as reply:
        return dict(json.load(reply))


def ask(url: str) -> str:
    """Return the answer to a small request."""
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    with urllib.request.urlopen(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), 60
    ) as reply:
        return str(json.load(reply)["choices"][0]["message"]["content"])


def wait(condition: Callable[[], object], seconds: float) -> float | None:
    """Wait until something is so; return the seconds that it took, None if it did not come."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


class Session:
    """A repository and a home folder of a program, with a server of the model that writes given answers."""

    def __init__(
        self, name: str, folder: Path, work: Path, command: str = MAKE, context: int = CONTEXT
    ) -> None:
        self.name, self.agent, self.repo = name, AGENTS[name], work / "repo"
        self.environment = environment_of(work, folder)
        os.environ["XDG_STATE_HOME"] = self.environment["XDG_STATE_HOME"] = str(work / "state")
        write_model(work / "scripted.gguf", self.agent, command, context)
        self.open = ExitStack()
        loads: dict[str, Any] = {"n_ctx": context, "parallel": 2, "draft": None}
        llm = self.open.enter_context(gguf_spec.load(work / "scripted.gguf", **loads))
        self.url = self.open.enter_context(serve_in_thread(llm, listed=True)).url
        self.answers, self.streams, self.running = self.open.enter_context(recorded())
        self.statuses = Statuses()
        log = logging.getLogger("gguf_spec.server.jobs")
        log.setLevel(logging.INFO)
        log.addHandler(self.statuses)
        self.open.callback(log.removeHandler, self.statuses)
        for key, text in self.agent.variables.items():
            self.environment[key] = text.replace("$url", self.url).replace("$model", llm.name)
        if "CONFIG" in self.environment:
            (self.repo / "config.yaml").write_text(self.environment.pop("CONFIG"))

    def start(self, words: Sequence[str], question: str) -> subprocess.Popen[str]:
        """Start the program with a question."""
        launch = [sys.executable, "-m", "gguf_spec", "launch", self.name, "--"]
        words = [question if one == "$ask" else one for one in words]
        return subprocess.Popen(
            [*(launch if self.agent.is_launched else [self.name]), *words], cwd=self.repo, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def end(
        self, process: subprocess.Popen[str], limit_s: float = LIMIT_S
    ) -> tuple[int | None, str]:
        """Return exit code and output of the program; None as code where it had to be ended."""
        try:
            said = process.communicate(timeout=limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, process.communicate()[0]
        return process.returncode, said

    def run(self, words: Sequence[str], question: str) -> tuple[int | None, str]:
        return self.end(self.start(words, question))

    def is_made(self) -> bool:
        made = self.repo / "made.txt"
        return made.is_file() and made.read_text() == "made\n"


def task(session: Session) -> tuple[bool, str]:
    """Let it make a file by its shell, or by an edit."""
    code, said = session.run(session.agent.words, TASK)
    is_done = code == 0 and session.is_made() and "ZZ9" in said
    return is_done, f"exit {code}, file {'made' if session.is_made() else 'not made'}"


def resume(session: Session) -> tuple[bool, str]:
    """Let it go on with its last session."""
    session.run(session.agent.words, TASK)
    code, said = session.run(session.agent.again, AGAIN)
    return code == 0 and "YY7" in said, f"exit {code}"


def cancel(session: Session) -> tuple[bool, str]:
    """Stop it in an answer without an end: by Ctrl-C, and by a second one where that does not do."""
    process = session.start(session.agent.words, ON)
    n = 0

    def is_writing() -> bool:
        nonlocal n
        n += health(session.url)["busy"] and any(
            run.stats.n_generated > 50 for run in session.streams
        )
        return n > 4

    if wait(is_writing, 60) is None:
        return False, f"no long answer began: {session.end(process, 1)[1][-500:]}"
    n_keys = 0
    for n_keys in (1, 2, 3):  # noqa: B007
        os.killpg(process.pid, signal.SIGINT)
        if wait(lambda: process.poll() is not None, 5) is not None:
            break
    code, _ = session.end(process, 1)
    idle_s = wait(lambda: not health(session.url)["busy"], 5)
    reasons = {one.finish_reason for one, _ in session.answers}
    is_done = (
        code is not None
        and idle_s is not None
        and "cancelled" in reasons
        and bool(ask(session.url))
    )
    return (
        is_done,
        f"Ctrl-C {n_keys} times, exit {code}, idle after {idle_s and round(idle_s, 2)} s",
    )


def overflow(session: Session) -> tuple[bool, str]:
    """Let it run a command whose output does not fit into the context: it must know our words for that."""
    (session.repo / "big.txt").write_text(BIG)
    words = [*session.agent.words, *([] if session.agent.tool else ["big.txt"])]
    code, said = session.run(words, TASK)
    seen = session.statuses.seen
    n_after = seen[::-1].index("400") if "400" in seen else 0
    named = re.search(r".*(too long|out of room|context length|token limit).*", said, re.IGNORECASE)
    is_counted = "400" not in seen and "ZZ9" in said and len(seen) > 3  # it sums up before that
    goes_on = n_after > 1 or is_counted
    does = f"stops: {named[0][-160:]}" if named else "stops"
    does = "sums up and goes on" if goes_on else does
    is_done = code is not None and (goes_on or bool(named))
    return is_done, f"exit {code}, {' '.join(seen)}, {does}"


def split(session: Session) -> tuple[bool, str]:
    """Let it start two sub-agents, each of which makes the file; some clients run one after the other."""
    code, said = session.run(session.agent.words, SPLIT)
    n = sum(MAKE in one.text for one, _ in session.answers)
    is_done = code == 0 and session.is_made() and "ZZ9" in said and n == 2
    return is_done, f"exit {code}, {n} sub-agents, at most {max(session.running)} answers at once"


KINDS: dict[str, Callable[[Session], tuple[bool, str]]] = {
    "task": task, "resume": resume, "cancel": cancel, "overflow": overflow, "agents": split,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", choices=[*AGENTS, []], help="the programs; all without one"
    )
    parser.add_argument("--only", help="kinds of sessions, with commas between them")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    args = parser.parse_args()
    names, kinds = args.names or [*AGENTS], (args.only or ",".join(KINDS)).split(",")
    install(names, args.folder)
    n_failed = 0
    for name in names:
        longest = 0
        for kind in kinds:
            if kind == "agents" and not AGENTS[name].split:
                continue
            context, command = CONTEXT, MAKE
            if kind == "overflow":
                context, command = (longest or CONTEXT // 2) + 8_000, LONG
            work = Path(tempfile.mkdtemp(prefix=f"gguf-spec-{name}-"))
            began = time.monotonic()
            try:
                session = Session(name, args.folder, work, command, context)
                with session.open:
                    is_done, told = KINDS[kind](session)
                    if kind == "task":
                        longest = max(one.stats.n_prompt for one, _ in session.answers)
            finally:
                shutil.rmtree(work, ignore_errors=True)
            n_failed += not is_done
            done, seconds = "done" if is_done else "NOT DONE", time.monotonic() - began
            print(f"{name:<10}{kind:<10}{done:<10}{told}, {seconds:.1f} s", flush=True)
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
