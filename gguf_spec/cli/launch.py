"""`gguf-spec launch`: run a client of a server, with settings for this run only."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import click

from ..errors import GgufSpecError, InvalidOptionError
from . import signals
from .command import Command, as_called, flag, option
from .output import StatusLine


class Client(NamedTuple):
    """A program, and how it is told of the server.

    In texts `$url`, `$model`, `$key`, `$context`, `$quarter` (of it) and `$folder` stand for the
    values of a run.

    Attributes:
        context: Least context in tokens that suits it.
        arguments: Arguments before those of the user.
        files: Name -> text of files in a temporary folder.
    """

    install: str
    context: int
    variables: Mapping[str, str] = {}
    arguments: tuple[str, ...] = ()
    files: Mapping[str, str] = {}


def _setting(name: str, value: Any) -> tuple[str, str]:
    return "-c", f"{name}={json.dumps(value)}"


_OPENCODE = {
    "model": "local/$model",
    "small_model": "local/$model",
    "provider": {
        "local": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "gguf-spec",
            "options": {"baseURL": "$url/v1", "apiKey": "$key"},
            "models": {
                "$model": {"name": "$model", "limit": {"context": "$context", "output": 4096}}
            },
        }
    },
}
_PI: dict[str, Any] = {
    "id": "$model", "name": "$model", "reasoning": False, "input": ["text"],
    "contextWindow": "$context", "maxTokens": 4096,
    "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
}  # fmt: skip
_PI_SERVER = {
    "baseUrl": "$url/v1", "api": "openai-completions", "apiKey": "$key", "models": [_PI],
}  # fmt: skip
# By itself pi keeps 16,384 tokens free: with a shorter context it would sum up each turn.
_PI_SETTINGS = {"compaction": {"reserveTokens": "$quarter", "keepRecentTokens": "$quarter"}}


def _json(value: Any) -> str:
    """Return a JSON text, in which the numbers of a run have no quotes."""
    return re.sub(r'"(\$context|\$quarter)"', r"\1", json.dumps(value))


CLIENTS = {
    "claude": Client(
        "npm install -g @anthropic-ai/claude-code",
        32768,
        {
            "ANTHROPIC_BASE_URL": "$url",
            "ANTHROPIC_AUTH_TOKEN": "$key",
            "ANTHROPIC_MODEL": "$model",
            "ANTHROPIC_SMALL_FAST_MODEL": "$model",
            "ANTHROPIC_DEFAULT_HAIKU_MODEL": "$model",
            "ANTHROPIC_DEFAULT_SONNET_MODEL": "$model",
            "ANTHROPIC_DEFAULT_OPUS_MODEL": "$model",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # it changes with each request
        },
    ),
    "codex": Client(
        "npm install -g @openai/codex",
        16384,
        {"GGUF_SPEC_CLIENT_KEY": "$key"},
        (
            "-m", "$model",
            *_setting("model_provider", "local"),
            *_setting("model_providers.local.name", "gguf-spec"),
            *_setting("model_providers.local.base_url", "$url/v1"),
            *_setting("model_providers.local.wire_api", "responses"),
            *_setting("model_providers.local.env_key", "GGUF_SPEC_CLIENT_KEY"),
            "-c", "model_context_window=$context",
            "-c", "tool_output_token_limit=$quarter",
        ),
    ),
    "opencode": Client(
        "npm install -g opencode-ai", 16384, {"OPENCODE_CONFIG_CONTENT": _json(_OPENCODE)}
    ),
    "pi": Client(
        "npm install -g @mariozechner/pi-coding-agent",
        8192,
        {"PI_CODING_AGENT_DIR": "$folder"},
        ("--provider", "local", "--model", "$model"),
        {
            "models.json": _json({"providers": {"local": _PI_SERVER}}),
            "settings.json": _json(_PI_SETTINGS),
        },
    ),
    "aider": Client(
        "pip install aider-chat",
        8192,
        {"OPENAI_API_BASE": "$url/v1", "OPENAI_API_KEY": "$key"},
        ("--model", "openai/$model", "--no-show-model-warnings"),
    ),
}  # fmt: skip
_LOOK = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"enum": ["a.py"]}},
            "required": ["path"],
        },
    },
}
_CHECK_S = 600.0


class ServerFacts(NamedTuple):
    """A server for a client, a model of it, and the model's context."""

    url: str
    model: str
    context: int


@click.command(
    cls=Command,
    usual="model ctx print_only",
)
@click.argument("name", metavar="NAME", type=click.Choice([*CLIENTS]))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENTS]")
@option("-m --model", "Model.  [default: that of a running server, else that of serve]")
@option("--ctx", "Context length in tokens.  [default: what the program needs]", type=int)
@option("--api-key", "Key of a running server.", show_default=False)
@flag("--print print_only", "Only show the commands.")
def launch(
    name: str,
    arguments: tuple[str, ...],
    model: str | None,
    ctx: int | None,
    api_key: str | None,
    print_only: bool,
) -> int:
    """Run claude, codex, opencode, pi or aider with a model of this machine.

    A running server with the model and a context that suits is taken, or one is started for this
    run. After a call of a tool as a check the program runs, with settings that only its process
    has: no file of another program is written.

    \b
    Examples:
      gguf-spec launch claude
      gguf-spec launch codex -m qwen2.5-coder-1.5b -- exec "Fix a.py"
      gguf-spec launch aider --print
    """
    from ..models import trained_ctx

    client = CLIENTS[name]
    program, key = shutil.which(name), api_key or "none"
    if not (program or print_only):
        raise GgufSpecError(f"{name} is not installed.", f"{client.install}, or see --print.")
    context = ctx or client.context
    facts = _running(model, context)
    if not facts and not ctx and model and 0 < (trained := trained_ctx(model)) < context:
        fact = f"{model} was trained for {trained:,} tokens; {name} needs about {context:,}."
        click.echo(fact, err=True)
        context = trained
    command = ["gguf-spec", "serve", *(["-m", model] if model else []), "--ctx", str(context)]
    if print_only:
        shown = facts or ServerFacts("http://127.0.0.1:8080", model or "local", context)
        variables, words, files = settings_of(client, shown, key, "FOLDER")
        lines = [] if facts else [shlex.join(command)]
        lines += [f"{file}: {text}" for file, text in files.items()]
        assigned = [f"{variable}={value}" for variable, value in variables.items()]
        lines.append(shlex.join(["env", *assigned, name, *words, *arguments]))
        click.echo(as_called("\n".join(lines)))
        return 0
    with _found(facts, command) as server:
        with StatusLine() as checking:
            checking.show("Checking that the model calls a tool")
            check(server, key)
        with tempfile.TemporaryDirectory(prefix="gguf-spec-") as folder:
            variables, words, files = settings_of(client, server, key, folder)
            for file, text in files.items():
                Path(file).write_text(text, encoding="utf-8")
            # Ctrl-C is for the program.
            with signals.handlers(lambda number, _: signals.handled(number), "SIGINT"):
                assert program
                line, own = [program, *words, *arguments], {**os.environ, **variables}
                try:
                    code = subprocess.run(line, env=own, check=False).returncode
                    return 128 - code if code < 0 else code  # ended by a signal, as in a shell
                except OSError as error:
                    fact = f"{program} cannot be started: {error.strerror}."
                    raise GgufSpecError(fact, "install it again.") from error


def settings_of(
    client: Client, server: ServerFacts, key: str, folder: str
) -> tuple[dict[str, str], list[str], dict[str, str]]:
    """Return the variables, the first arguments and the files (path -> text) of a client."""
    values = {**server._asdict(), "quarter": server.context // 4, "key": key, "folder": folder}

    def filled(text: str) -> str:
        return Template(text).substitute(values)

    return (
        {name: filled(text) for name, text in client.variables.items()},
        [filled(text) for text in client.arguments],
        {str(Path(folder, name)): filled(text) for name, text in client.files.items()},
    )


def _running(model: str | None, context: int) -> ServerFacts | None:
    """Return a running server of this user with a model and a context of this length at least."""
    from ..server import running_servers

    for server in running_servers():
        for one in server.models:
            most = one.get("context_max", one["context_length"])
            if model in (None, one["name"]) and most >= context:
                return ServerFacts(server.url, one["name"], most)
    return None


@contextmanager
def _found(facts: ServerFacts | None, command: list[str]) -> Iterator[ServerFacts]:
    """Yield a running server, or start one and end it after the block."""
    if facts:
        click.echo(f"Server        {facts.url} with {facts.model}", err=True)
        yield facts
        return
    words = [sys.executable, "-m", "gguf_spec", *command[1:], "--port", "0", "--quiet"]
    starting = StatusLine()
    starting.show("Starting a server for this run")
    # A session of its own: Ctrl-C in the program is not for the server.
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as process:
        try:
            assert process.stdout
            line = process.stdout.readline()
            starting.remove()
            if not line.startswith("Listening at "):
                hint = f"run {shlex.join(command)} to see why."
                raise GgufSpecError("the server did not start.", hint)
            url = line.split()[-1]
            listed = _ask(f"{url}/api/ps", None, "none")["models"]
            one = listed[0]
            click.echo(f"Server        {url} with {one['name']}", err=True)
            yield ServerFacts(url, one["name"], one["context_length"])
        finally:
            process.terminate()


def check(server: ServerFacts, key: str) -> None:
    """Let the model call a tool.

    Raises:
        GgufSpecError: The server refuses, or there is no call in the answer.
    """
    asked = {
        "model": server.model,
        "messages": [{"role": "user", "content": "Read a.py."}],
        "tools": [_LOOK],
        "tool_choice": "required",
        "max_tokens": 256,
        "temperature": 0,
    }
    answer = _ask(f"{server.url}/v1/chat/completions", asked, key)
    if not answer["choices"][0]["message"].get("tool_calls"):
        hint = "take another model: gguf-spec models list."
        raise GgufSpecError(f"{server.model} does not call tools.", hint)


def _ask(url: str, body: dict[str, Any] | None, key: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=_CHECK_S) as response:
            return dict(json.load(response))
    except urllib.error.HTTPError as error:
        if error.code == 401:
            allowed = f"the key of the server at {url}"
            raise InvalidOptionError("api_key", key, allowed) from None
        told = json.loads(error.read() or b"{}").get("error", {})
        message = told.get("message", "") if isinstance(told, dict) else str(told)
        raise GgufSpecError(f"the server answers {error.code}: {message}", "see its log.") from None
    except OSError as error:
        raise GgufSpecError(f"{url} does not answer: {error}.", "start the server.") from None
