#!/usr/bin/env python3
"""Give a server in this process random bodies; report those that take long or end with 5xx.

.venv/bin/python scripts/checks/fuzz_bodies.py [--seconds 170] [--count 5000] [--first 0]

Bodies follow the server's OpenAPI description, for each route. JSON schemas, grammars, tools and
texts in them are random and up to 250 KB long; some bodies are then damaged. Others are chats
behind a random chat template, tools and answers of each family, and damaged GGUF headers.
Processor time is that of this process and its children without passes of the model. The body of a
number is the same in each run (`--first 17 --count 1`). Ends with 1 where a body takes more than a
second or ends with 5xx. A body without an end is stopped after a minute: the last number on stderr.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import json
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gguf_spec
from gguf_spec.errors import GgufSpecError
from gguf_spec.gguf import adapters, validation
from gguf_spec.llama.native import Native
from gguf_spec.server import Settings, make_app
from gguf_spec.server.openapi import describe
from gguf_spec.tools import families, grammar
from gguf_spec.tools.families import ToolUse
from gguf_spec.tools.reader import ToolDeltas
from scripts.checks import mutate_gguf
from tests.server.request_bodies import POOL, RAW, places, replaced
from tests.support.random_texts import MARKS, RandomTexts

TALES = Path(gguf_spec.__file__).parent / "data" / "tales" / "tales-target-Q8_0.gguf"
MOST, WARN, WARN_PER_BYTE = 1.0, 0.2, 20e-6  # seconds of processor time
CHATS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions", "/api/chat"]
DESCRIBED = describe(("tales",), False, True)
PATHS, PARTS = DESCRIBED["paths"], DESCRIBED["components"]["schemas"]
FIXED = {"n": 2, "best_of": 2, "model": "tales", "max_tokens": 1, "max_completion_tokens": 1}
FIXED |= {"max_output_tokens": 1, "num_predict": 1, "n_predict": 1}


class Fuzzer(RandomTexts):
    """One body. Each kind yields a name and its bytes, then does what is measured, and yields the outcome."""

    def fields(self):
        """Return what gives the values of some fields in half of the cases."""
        named = {"type": "json_schema", "name": "n"}
        return {
            **dict.fromkeys(("schema", "parameters", "input_schema", "json_schema"), self.schema),
            "grammar": self.gbnf,
            "name": lambda: self.made("name"),
            "format": lambda: self.pick((self.schema(), named | {"schema": self.schema()})),
            "chat_template_kwargs": lambda: {"a": self.pick((1, self.text()))},
            "arguments": lambda: self.pick((self.mutated('{"a": "b"}'), json.dumps(self.deep()))),
            "logit_bias": lambda: {i: self.pick((1, -1e6)) for i in range(self.size(5000))},
            "tokens": lambda: [self.rng.randrange(4000) for _ in range(self.size(50_000))],
        }

    def sample(self, what, name=""):
        """Return a value that a schema of the description allows, or a hostile one for its field."""
        if name in FIXED:
            return FIXED[name]
        if name in (fields := self.fields()) and self.chance(0.5):
            return fields[name]()
        what = PARTS[what["$ref"].rpartition("/")[2]] if "$ref" in what else what
        if several := what.get("anyOf") or what.get("oneOf"):
            return self.sample(self.pick(several), name)
        if "enum" in what or "const" in what:
            return self.pick(what.get("enum") or [what["const"]])
        match what.get("type", "string"):
            case "object":
                inner, taken = what.get("properties", {}), {*what.get("required", ())}
                heavy = {"response_format", "output_config", "text", "tools", "stop", "options"}
                if (heavy := sorted((heavy | set(fields)) & set(inner))) and self.chance(0.5):
                    taken.add(self.pick(heavy))
                taken = [one for one in inner if one in taken or self.chance(self.rare)]
                return {one: self.sample(inner[one], one) for one in taken}
            case "array":
                first = self.sample(what.get("items", {}), name)
                n_most = self.n_most // len(json.dumps(first)) + 1
                if self.chance(0.1):
                    return [first] * min(self.size(5000), n_most)
                n = min(what.get("maxItems", 9999), self.size(1, 3, 50), n_most)
                return [first] + [self.sample(what.get("items", {}), name) for _ in range(n - 1)]
            case "integer" | "number":
                return self.pick((what.get("minimum", 1), what.get("maximum", 1), 1))
            case "boolean":
                return self.chance(0.5)
        return self.text(self.pick((20, 300, 300, 250_000)))

    def damaged(self, body):
        """Return the bytes of a body, with other values or bytes in some places."""
        with contextlib.suppress(RecursionError):
            for _ in range(self.pick((0, 0, 0, 0, 0, 1, 3))):
                value = self.pick((self.pick(POOL), self.text(), self.deep()))
                if place := self.pick(list(places(body))):
                    body = replaced(body, place, lambda _, value=value: value)
        data = json.dumps(body).encode()
        if self.chance(0.04):
            at = self.rng.randrange(len(data))
            data = data[:at] + self.pick((b"", b"9" * 4000, b"1e999", *RAW)) + data[at + 1 :]
        return data if self.chance(0.98) else self.pick(RAW)

    async def route(self, client, model):
        posts = [path for path in PATHS if "post" in PATHS[path]] + 3 * CHATS
        path = self.pick(posts if self.chance(0.95) else list(PATHS))
        method, route = self.pick(list(PATHS[path].items()))
        name, url, body = f"{method.upper()} {path}", path, b""
        if what := route.get("requestBody"):
            self.rare = self.pick((0, 0, 0.02, 0.1))  # probability of a field that is not required
            # bytes of a list; texts to embed cost passes of the model
            self.n_most = 20_000 if "embed" in path else 10**6
            body = self.sample(what["content"]["application/json"]["schema"])
            if "messages" in body and self.chance(0.9):
                body["messages"].append({"role": "user", "content": "Hi."})
            body = self.damaged(body)
        if path in CHATS and self.chance(0.2):
            name += ", another template"
            source = self.pick((self.made("template"), model.chat_template))
            model.chat_template = source + self.pick(MARKS)
        yield name, len(body) + len(model.chat_template)
        url = path.replace("{name}", quote(self.text(500)))
        yield (await client.request(method.upper(), url, content=body)).status_code

    async def tools(self, *_):
        family, step, n = self.pick(families.FAMILIES), self.pick((1, 4, 99)), self.size(30)
        listed = [{"function": {"name": f"f{i}", "parameters": self.schema()}} for i in range(n)]
        use = ToolUse(listed, self.chance(0.5), None, True, frozenset(["f0"]))
        given = {name: self.pick((self.text(500), self.deep(), *POOL)) for name in ("a", "b")}
        answer = self.mutated(family.write([("f0", given)] * self.size(50)))
        yield f"tools of {family.name}", len(json.dumps(listed)) + len(answer)
        reader = ToolDeltas(family, use)
        for i in range(0, len(answer), step):
            reader.push(answer[i : i + step])
        reader.finish()
        yield grammar.tool_grammar(use, family, lambda _: None) and "converted"

    async def header(self, *_):
        text, n = self.text().encode(), self.size(300_000)
        data = mutate_gguf.random_header(TALES, self.rng, text, n)
        read = validation.read_header if self.chance(0.8) else adapters.read_projector
        yield "GGUF header", len(data)
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.truncate(1 << 34)
            found = read(Path(file.name))
        validation.check_embeds(found)
        validation.check_model(found)
        yield "read"


passes = [0.0]  # processor time of the model's passes


def decode(native, real=Native.decode):
    began = time.thread_time()
    try:
        return real(native)
    finally:
        passes[0] += time.thread_time() - began


def used():
    """Return the processor time so far, without passes of the model."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime - passes[0]


async def one(seed, client, model):
    """Give a body; return its seed, kind, outcome, bytes, and seconds: all, in the event loop."""
    fuzzer, own = Fuzzer(seed), model.chat_template
    kind = fuzzer.rng.choices((fuzzer.route, fuzzer.tools, fuzzer.header), (17, 2, 1))[0]
    steps = kind(client, model)
    name, n_bytes = await anext(steps)
    began, at_loop = used(), time.thread_time()
    try:
        outcome = await anext(steps)
    except GgufSpecError as error:
        outcome = type(error).__name__
    except Exception as error:
        outcome = f"raised {type(error).__name__}: {error}"[:200]
    seconds = used() - began, time.thread_time() - at_loop
    model.chat_template = own
    return seed, name, outcome, n_bytes, *seconds


async def main(options):
    Native.decode, found, until = decode, [], time.monotonic() + options.seconds
    with gguf_spec.load(TALES, None, threads=1) as llm:
        app = make_app(llm, Settings(max_tokens=2))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for seed in range(options.first, options.first + options.count):
                if time.monotonic() > until:
                    break
                print(f"\r{seed}", end="", file=sys.stderr, flush=True)
                faulthandler.dump_traceback_later(60, exit=True)
                found.append(await one(seed, client, llm.engine.target.weights))
        faulthandler.cancel_dump_traceback_later()
        app.close()
    return found


def report(found):
    """Print the outcomes; return whether all are as they must be."""
    print(f"\n{len(found):,} bodies, {sum(one[3] for one in found):,} bytes, to {found[-1][0]}")
    for name in sorted({one[1] for one in found}):
        print(f"  {name}: {dict(Counter(one[2] for one in found if one[1] == name))}")
    lists = {
        "Raised or 5xx": [one for one in found if str(one[2]).startswith(("raised", "5"))],
        "Above a second": [one for one in found if one[4] > MOST],
        "Warnings": [one for one in found if MOST >= one[4] > WARN + WARN_PER_BYTE * one[3]],
        "Slowest": sorted(found, key=lambda one: -one[4])[:10],
        "Longest in the event loop": sorted(found, key=lambda one: -one[5])[:10],
    }
    for title, some in lists.items():
        print(f"{title}: {len(some)}")
        for seed, name, outcome, n_bytes, seconds, loop in some:
            times = f"{seconds:.3f} s, {loop:.3f} s of it in the event loop, {n_bytes:,} bytes"
            print(f"  --first {seed} --count 1: {times}, {name}: {outcome}")
    return not lists["Raised or 5xx"] and not lists["Above a second"]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0)
    sys.exit(not report(asyncio.run(main(parser.parse_args()))))
