#!/usr/bin/env python3
"""Time `/health` beside bodies that were made to take long: each route, at 64 KiB and at the largest size allowed.

    .venv/bin/python scripts/checks/health_beside.py                     # all
    .venv/bin/python scripts/checks/health_beside.py --only edit --sizes 65536

A server of `tales` gets each body once. Beside it `/health` is asked every 5 ms over a connection of its own. A row says how
long the body took, its status, and the longest wait of `/health`; more than 0.25 s is marked, on a quiet machine.
"""

import argparse
import base64
import contextlib
import http.client
import json
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

GOAL_S = 0.25
SIZES = (1 << 16, 4_000_000)
USER = [{"role": "user", "content": "Hi."}]
CHAT = "/v1/chat/completions"


def filled(unit, n):
    """Return a text of at most `n` characters."""
    return unit * (n // len(unit))


def many(unit, n):
    """Return as many values as `n` bytes of JSON hold, at least one."""
    return [unit] * max(1, n // (len(json.dumps(unit)) + 2))


def numbered(make, n):
    """Return different values, about `n` bytes of JSON."""
    first = len(json.dumps(make(100_000))) + 2
    return [make(i) for i in range(max(1, n // first))]


def nested(n, depth=900):
    """Return about `n` bytes of arrays, nested as far as a parser of JSON goes."""
    one = []
    for _ in range(depth):
        one = [one]
    return many(one, n)


def of_chat(**fields):
    return {"messages": USER, "max_tokens": 1} | fields


def schema(kind):
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": kind}}


def tool(kind):
    return [{"type": "function", "function": {"name": "f", "parameters": kind, "strict": True}}]


def edit_bodies(n):
    """Yield what was hard to read for the expressions of `gguf_spec.edit`."""
    most = min(n, 1 << 18)
    for unit, name in (
        ("impl<a> ", "a.c"),
        ("a <b> ", "a.c"),
        ("a(a(a()))", "a.js"),
        ("a;", "a.sql"),
        ("a\n", "a.py"),
        ("class a:\n def a(self):\n  a = 1\n", "a.py"),
        ("# a\n", "a.md"),
        ("a = 1\n", "a.ini"),
        ("{", "a.json"),
        ("[[", "a.js"),
        ("`", "a.md"),
        ("<a>", "a.html"),
        ("'\"", "a.sh"),
        (" ", "a.yaml"),
        ("a: 1\n", "a.yaml"),
        ("/*", "a.go"),
        ("a b c d e f g\n", ""),
    ):
        text = filled(unit, most - 300)
        yield (
            f"{unit!r} as {name or 'text'}",
            {"text": text or "x", "instruction": "rename a to b", "name": name},
        )
    lines = filled("a b\n", most - 300)
    yield "a long instruction", {"text": "a\n", "instruction": lines, "name": "a.py"}
    yield "a long name", {"text": "a\n", "instruction": "rename a to b", "name": lines}
    yield (
        "many parts",
        {"text": "a\n" * 10, "instruction": "rename a to b", "scope": many("1-2", n)},
    )
    yield (
        "a part by name",
        {"text": filled("def a():\n pass\n", most), "instruction": "make a nicer", "name": "a.py"},
    )


def bodies(n):
    """Yield paths, names and bodies of about `n` bytes."""
    for name, body in edit_bodies(n):
        yield "/v1/edit", name, body
    text = filled("a", n - 400)
    values = {
        "one text": text,
        "words": filled("Once upon a time. ", n - 400),
        "surrogates": filled("\ud800", n // 6 - 100),
        "another script": filled("語", n // 6 - 100),
        "numbers": many(1, n),
        "empty arrays": many([], n),
        "empty objects": many({}, n),
        "nested arrays": nested(n),
        "keys": {f"k{i}": 1 for i in range(n // 14)},
        "digits": int("9" * min(n - 400, 4000)),
    }
    for name, value in values.items():
        yield CHAT, f"an unknown field: {name}", of_chat(more=value)
        yield "/v1/completions", f"the prompt: {name}", {"prompt": value, "max_tokens": 1}
    for name in ("one text", "words", "another script"):
        value = values[name]
        yield CHAT, name, of_chat(messages=[{"role": "user", "content": value}])
        yield "/v1/responses", name, {"input": value, "max_output_tokens": 1}
        yield (
            "/v1/messages",
            name,
            {"messages": [{"role": "user", "content": value}], "max_tokens": 1},
        )
        yield "/v1/messages/count_tokens", name, {"messages": [{"role": "user", "content": value}]}
        yield "/apply-template", name, {"messages": [{"role": "user", "content": value}]}
        yield "/api/chat", name, {"messages": [{"role": "user", "content": value}], "stream": False}
        yield "/api/generate", name, {"prompt": value, "stream": False}
        yield "/completion", name, {"prompt": value, "n_predict": 1}
        yield (
            "/infill",
            name,
            {"input_prefix": value, "input_suffix": value[: n // 8], "n_predict": 1},
        )
        yield "/tokenize", name, {"content": value, "with_pieces": True}
        yield "/v1/embeddings", name, {"input": value}
        yield "/v1/choose", name, {"prompt": value, "options": ["a"]}
        yield "/v1/rerank", name, {"query": value, "documents": ["a"]}
    messages = many(USER[0], n)
    yield CHAT, "many messages", of_chat(messages=messages)
    yield (
        CHAT,
        "many parts",
        of_chat(messages=[{"role": "user", "content": many({"type": "text", "text": "a"}, n)}]),
    )
    yield "/apply-template", "many messages", {"messages": messages}
    yield (
        "/v1/responses",
        "many items",
        {"input": messages, "max_output_tokens": 1, "truncation": "auto"},
    )
    yield "/v1/messages", "many messages", {"messages": messages, "max_tokens": 1}
    yield "/api/chat", "many messages", {"messages": messages, "stream": False}
    yield "/detokenize", "many tokens", {"tokens": many(1, n)}
    yield "/v1/embeddings", "many texts", {"input": many("a", n)}
    yield "/api/embed", "many texts", {"input": many("a", n)}
    yield "/v1/choose", "many options", {"prompt": "a", "options": numbered(lambda i: f"{i}", n)}
    yield "/v1/rerank", "many documents", {"query": "a", "documents": many("a", n)}
    yield "/infill", "many files", {"input_prefix": "a", "input_suffix": "b", "n_predict": 1,
                                    "input_extra": many({"filename": "a", "text": "b"}, n)}  # fmt: skip
    biases = {f"t{i}": 1 for i in range(n // 16)}
    yield CHAT, "biases of texts", of_chat(logit_bias=biases)
    yield CHAT, "biases of tokens", of_chat(logit_bias={str(i): 1 for i in range(n // 14)})
    yield (
        "/completion",
        "biases of pairs",
        {"prompt": "a", "n_predict": 1, "logit_bias": numbered(lambda i: [f"t{i}", 1], n)},
    )
    yield CHAT, "a long bias", of_chat(logit_bias={text: 1})
    yield CHAT, "stop tokens", of_chat(stop_tokens=numbered(lambda i: i, n))
    yield CHAT, "sequence breakers", of_chat(dry_multiplier=1, dry_sequence_breakers=many("ab", n))
    yield CHAT, "stop strings", of_chat(stop=many("ab", n))
    yield (
        CHAT,
        "template variables",
        of_chat(chat_template_kwargs={f"k{i}": 1 for i in range(n // 14)}),
    )
    for name, kind in {
        "many constants": {"enum": numbered(lambda i: i, n)},
        "many constants in anyOf": {"anyOf": numbered(lambda i: {"const": i}, n)},
        "many properties": {"type": "object", "properties": {f"p{i}": {} for i in range(n // 14)}},
        "a pattern of classes": {"type": "string", "pattern": filled(r"\W", n // 2)},
        "a pattern of optional letters": {
            "type": "string",
            "pattern": "^" + filled("a?", n // 2) + filled("a", n // 4) + "$",
        },
        "a pattern without ends": {"type": "string", "pattern": filled("[", n)},
        "a nested pattern": {
            "type": "string",
            "pattern": filled("(", 2000) + "a" + filled("+)", 4000),
        },
        "a repeated pattern": {
            "type": "string",
            "pattern": "^(" + filled("(a{1,1000}){1,1000}", 3000) + ")$",
        },
        "nested": {"anyOf": nested(n, 200)},
    }.items():
        yield CHAT, f"a schema: {name}", of_chat(response_format=schema(kind))
        yield (
            CHAT,
            f"a tool: {name}",
            of_chat(tools=tool({"type": "object", "properties": {"x": kind}})),
        )
    yield (
        CHAT,
        "many tools",
        of_chat(
            tools=numbered(lambda i: tool({})[0] | {"function": {"name": f"f{i}"}}, n),
            tool_choice="required",
        ),
    )
    for name, grammar in {
        "many rules": 'root ::= "a"\n' + "".join(f'r{i} ::= "a"\n' for i in range(n // 16)),
        "a long alternative": 'root ::= "a"' + filled(' | "a"', n),
        "nested": "root ::= " + filled("(", n // 2) + '"a"' + filled(")", n // 2),
        "optional letters": "root ::= " + filled('"a"? ', n),
        "a large class": "root ::= [" + filled("a-z", n) + "]",
        "repetitions": 'root ::= "a"{1,100000}',
    }.items():
        yield CHAT, f"a grammar: {name}", of_chat(grammar=grammar)
    blank = base64.b64encode(bytes(n * 3 // 4 - 300)).decode()
    for name, data in {
        "blank": blank,
        "no base64": text,
        "many equals": filled("=", n - 400),
    }.items():
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        yield CHAT, f"an image: {name}", of_chat(messages=[{"role": "user", "content": [image]}])
    image = {"type": "image_url", "image_url": {"url": "data:" + filled("image/png;a=b;", n)}}
    yield CHAT, "an image: many types", of_chat(messages=[{"role": "user", "content": [image]}])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text}}
    answered = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ]
    yield CHAT, "a call with long arguments", of_chat(messages=answered)
    arguments = "[" * (n - 800)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    answered = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a"},
    ]
    yield CHAT, "a call with nested arguments", of_chat(messages=answered)
    probabilities = {"max_tokens": min(200, n // 1000), "ignore_eos": True, "n": 128}
    yield (
        "/v1/completions",
        "many choices with log-probabilities",
        {"prompt": "a", "logprobs": 20} | probabilities,
    )
    yield (
        CHAT,
        "many choices with log-probabilities",
        {"messages": USER, "logprobs": True, "top_logprobs": 20} | probabilities,
    )
    for path in ("/v1/models", "/metrics", "/openapi.json", "/", "/slots", "/props", "/api/tags"):
        yield path, "GET", None


@contextlib.contextmanager
def serving(options):
    """Yield the address of a server of `tales`."""
    command = [
        sys.executable,
        "-m",
        "gguf_spec",
        "serve",
        "-m",
        "tales",
        "--port",
        "0",
        "-q",
        *options,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield urlsplit(process.stdout.readline().split()[-1]).netloc
    finally:
        process.kill()
        process.wait()


def ask(address, path, data, limit):
    """Return the status of an answer, or what happened."""
    connection = http.client.HTTPConnection(address, timeout=limit)
    try:
        connection.request("GET" if data is None else "POST", path, data)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


def beside(address, path, data, limit):
    """Return the time of a request, its status, and the longest wait of `/health` meanwhile."""
    probe, found, slowest = http.client.HTTPConnection(address, timeout=600), [], 0.0
    probe.connect()
    thread = threading.Thread(target=lambda: found.append(ask(address, path, data, limit)))
    began = time.perf_counter()
    thread.start()
    while thread.is_alive():
        at = time.perf_counter()
        probe.request("GET", "/health")
        probe.getresponse().read()
        slowest = max(slowest, time.perf_counter() - at)
        time.sleep(0.005)
    taken = time.perf_counter() - began
    probe.close()
    return taken, found[0], slowest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="part of `PATH: NAME` of the wanted bodies")
    parser.add_argument(
        "--without", default="\0", help="part of `PATH: NAME` of bodies to leave out"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="bytes of the bodies")
    parser.add_argument("--limit", type=float, default=120, help="seconds until a body is given up")
    parser.add_argument("--above", type=float, default=0, help="show rows from this wait on")
    parser.add_argument(
        "--option", action="append", default=["--parallel=2"], help="an option of `serve`"
    )
    given = parser.parse_args()
    n_slow = n_all = 0
    worst = 0.0
    print("| Size | Route: body | Time | Status | /health |\n|---|---|---|---|---|")
    with serving(given.option) as address:
        ask(address, "/v1/completions", json.dumps({"prompt": "a", "max_tokens": 1}), 60)
        for size in given.sizes:
            for path, name, body in bodies(size):
                if given.only not in f"{path}: {name}" or given.without in f"{path}: {name}":
                    continue
                data = None if body is None else json.dumps(body)
                if data and len(data) > 4_100_000 and size <= 4_000_000:
                    data = json.dumps(body, separators=(",", ":"))
                taken, status, waited = beside(address, path, data, given.limit)
                n_all, n_slow, worst = n_all + 1, n_slow + (waited > GOAL_S), max(worst, waited)
                mark = " (!)" if waited > GOAL_S else ""
                if waited >= given.above:
                    print(
                        f"| {size:,} | {path}: {name} | {taken:.2f} s | {status} | {waited:.2f} s{mark} |",
                        flush=True,
                    )
    print(
        f"\n{n_slow} of {n_all} bodies kept /health waiting for more than {GOAL_S} s; the longest wait was {worst:.2f} s."
    )
    sys.exit(n_slow > 0)
