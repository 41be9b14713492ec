"""Time schemas and tools that were made to take long: the conversions alone, then a server of `tales`.

All must be answered after at most a second of processor time, `/health` within 0.2 s meanwhile, and
SIGTERM must end the server within 10 s.
"""

import argparse
import contextlib
import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import psutil

from gguf_spec.grammar.json_schema import to_gbnf
from gguf_spec.tools.families import FAMILIES, ToolUse
from gguf_spec.tools.grammar import tool_grammar

only = ""  # part of the names of the wanted schemas
TEXT, NULL = {"type": "string"}, {"type": "null"}


def ref(name):
    return {"$ref": f"#/$defs/{name}"}


def obj(names, part=TEXT, required=()):
    properties = dict.fromkeys(names, part)
    return {"type": "object", "properties": properties, "required": [*required]}


def levels(n, part, end):
    """Return definitions a0, b0, a1, ...: each is `part` of two references to the next level."""
    found = {f"{name}{n}": end for name in "ab"}
    for i in range(n):
        found |= {f"{x}{i}": part(ref(f"{x}{i + 1}"), ref(f"{y}{i + 1}")) for x, y in ("ab", "ba")}
    return found


def any_of(a, b):
    return {"anyOf": [a, b]}


def own(a, b):
    return {"anyOf": [a, b], "properties": {a["$ref"][-2:]: True}}


def all_schemas():
    """Yield names and schemas of up to 250 KB."""
    one = {"oneOf": [ref("a0"), NULL]}
    yield "oneOf, 40 levels of anyOf", one | {"$defs": levels(40, any_of, TEXT)}
    both = levels(40, lambda a, b: {"allOf": [a, b]}, obj("x"))
    yield "40 levels of allOf", ref("a0") | {"$defs": both}
    yield "oneOf, other keywords on each path", one | {"$defs": levels(20, own, obj("x"))}
    for kb in (2, 16, 64, 250):
        n = kb * 1000
        names = [f"p{i}" for i in range(n // 38)]
        yield f"oneOf of constants, {kb} KB", {"oneOf": [{"const": i} for i in range(n // 16)]}
        tags = ({"properties": {"k": {"const": i}}, "required": ["k"]} for i in range(n // 60))
        yield f"oneOf of tagged objects, {kb} KB", {"oneOf": [*tags]}
        parts = [obj([name], required=[name]) for name in names[: n // 90]]
        yield f"oneOf of other objects, {kb} KB", {"oneOf": parts}
        yield f"required properties, {kb} KB", obj(names, required=names)
        yield f"pattern of classes, {kb} KB", {"pattern": r"\W" * (n // 3)}
        yield f"pattern without ends, {kb} KB", {"pattern": "[" * n}


def schemas():
    """Yield the schemas whose name has the wanted part."""
    return (one for one in all_schemas() if only in one[0])


def tools():
    """Yield names and schemas of arguments."""
    for n in (25, 60):
        yield f"{n} levels", obj("x", ref("a0")) | {"$defs": levels(n, any_of, {"type": "integer"})}
    nested = levels(25, lambda a, b: {"properties": {"a": a, "b": b}}, TEXT)
    yield "objects, 25 levels", obj("x", ref("a0")) | {"$defs": nested}
    yield "contains itself", obj("x", ref("a")) | {"$defs": {"a": any_of(ref("a"), NULL)}}
    yield "enum 3", obj("x", {"enum": 3})
    yield "required [{}]", obj("x", required=[{}])
    yield "properties, 250 KB", obj([f"p{i}" for i in range(9000)])


class TooLongError(BaseException):
    """The limit of processor time is over."""


def timed(work, limit):
    """Return the processor time of a function in seconds, and its outcome."""

    def stop(*_):
        raise TooLongError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit)
    began = time.process_time()
    try:
        outcome = f"{len(work()):,} bytes"
    except TooLongError:
        outcome = "no end"
    except Exception as error:
        outcome = f"{type(error).__name__}: {getattr(error, 'reason', error)}"
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return time.process_time() - began, outcome


def functions(limit):
    """Yield the cases of the conversions, each with its processor time and outcome."""
    for name, schema in schemas():
        yield name, *timed(lambda schema=schema: to_gbnf(schema), limit)
    for name, schema in tools():
        function = {"function": {"name": "f", "parameters": schema}}
        use = ToolUse([function], True, "f", False, frozenset(["f"]))
        for one in [one for one in FAMILIES if one.name in ("qwen3-coder", "gemma4", "hermes")]:
            run = timed(lambda use=use, one=one: tool_grammar(use, one, lambda _: None), limit)
            yield f"tool of {one.name}: {name}", *run


def bodies(schema):
    """Yield paths with bodies that contain a schema."""
    form, named = {"type": "json_schema", "schema": schema}, {"name": "n", "schema": schema}
    chat = {"model": "tales", "messages": [{"role": "user", "content": "Hi."}]}
    short = chat | {"max_tokens": 2}
    wanted = {"type": "json_schema", "json_schema": named}
    yield "/v1/chat/completions", short | {"response_format": wanted}
    yield "/v1/messages", short | {"output_config": {"format": form}}
    text = {"format": {"type": "json_schema", **named}}
    yield "/v1/responses", {"input": "Hi.", "max_output_tokens": 2, "text": text}
    yield "/api/chat", chat | {"format": schema, "stream": False, "options": {"num_predict": 2}}


def ask(address, path, body, limit):
    """Return the status of an answer, or None after the limit."""
    connection = http.client.HTTPConnection(address, timeout=limit)
    with contextlib.closing(connection), contextlib.suppress(TimeoutError):
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None)
        return connection.getresponse().status


@contextlib.contextmanager
def serving():
    """Yield a process with a server of two slots, and its address."""
    options = ["-m", "tales", "--port", "0", "-q", "--parallel", "2", "--threads", "1"]
    command = [sys.executable, "-m", "gguf_spec", "serve", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        address = urlsplit(process.stdout.readline().split()[-1]).netloc
        ask(address, "/v1/completions", {"prompt": "a", "max_tokens": 1}, 60)
        yield process, address
    finally:
        process.kill()
        process.wait()


def two_requests(process, address, path, body, limit):
    """Send a request twice; return processor time of each, status, and the slowest /health."""

    def used():
        return sum(psutil.Process(process.pid).cpu_times()[:2])

    found, before, slowest = [], used(), 0.0

    def send():
        found.append(ask(address, path, body, limit))

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        began = time.perf_counter()
        ask(address, "/health", None, limit)
        slowest = max(slowest, time.perf_counter() - began)
        time.sleep(0.02)
    return (used() - before) / 2, f"{found[0] or 'no answer'}, /health {slowest:.2f} s"


def at_server(limit):
    """Yield the requests to servers, each with its processor time and outcome."""
    cases = [(name, *one) for name, schema in schemas() for one in bodies(schema)]
    cases += [one for one in cases if "of other objects" in one[0]][-1:]
    while cases:
        with serving() as (process, address):
            outcome = ""
            while cases and "no answer" not in outcome:
                name, path, body = cases.pop(0)
                seconds, outcome = two_requests(process, address, path, body, limit)
                yield f"{path}: {name}", seconds, outcome
            # the end comes while two requests are read
            for _ in range(2):
                threading.Thread(target=ask, args=(address, path, body, limit), daemon=True).start()
            time.sleep(0.05)
            began = time.perf_counter()
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(limit)
            ended = "no end" if process.poll() is None else "the end"
            yield "SIGTERM", 0, f"{ended} after {time.perf_counter() - began:.1f} s"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=float, default=20, help="seconds until a case is given up")
    parser.add_argument("--server", action="store_true", help="ask a server, not the functions")
    parser.add_argument("--only", default="", help="part of the names of the schemas")
    options = parser.parse_args()
    only = options.only
    print("| Case | Processor time | Outcome |\n|---|---|---|")
    for case, seconds, outcome in (at_server if options.server else functions)(options.limit):
        late = " (!)" if seconds > 1 else ""
        print(f"| {case} | {seconds:.2f} s{late} | {outcome:.70} |", flush=True)
