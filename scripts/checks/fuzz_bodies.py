#!/usr/bin/env python3
"""Give a server in this process random bodies; report those that take long or end with 5xx.

.venv/bin/python scripts/checks/fuzz_bodies.py [--seconds 170] [--count 5000] [--first 0]
.venv/bin/python scripts/checks/fuzz_bodies.py --first 17 --count 1

Bodies follow the server's OpenAPI description, for each route. JSON schemas, grammars, tools and texts in them are random and up to 250 KB
long; some bodies are then damaged. Others are chats behind a random chat template, tools and answers of each family, and damaged GGUF
headers. Processor time is that of this process and its children without passes of the model. A body of one number is the same in each run.
Ends with 1 where a body takes more than a second or ends with 5xx; a body without an end is stopped after a minute, its number is the last
on stderr.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import json
import random
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
from gguf_spec.tools.reader import ToolDeltas
from gguf_spec.tools.use import ToolUse
from scripts import mutate_gguf
from tests.exactness.company import GRAMMAR
from tests.server.request_bodies import POOL, RAW, places, replaced
from tests.tools.examples import TEMPLATE_MARKS

TALES = Path(gguf_spec.__file__).parent / "data" / "tales" / "tales-target-Q8_0.gguf"
MOST, WARN, WARN_PER_BYTE = 1.0, 0.2, 20e-6  # seconds of processor time
CHATS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/completions", "/api/chat"]
NAMES = [f"p{i}" for i in range(2000)]
# fmt: off
PIECES = ["a", " ", "\n", "the wolf ", "ä", "\u0301", "😀", "\0", "{", "[", '"', "\\", "<", "<think>", "</think>", "<|im_end|>", "```json", "a=",
          "<tool_call>", "</tool_call>\n", "1", "9.9e9", "é ", "  \t", "a" * 50, ">", "|", "()", "%}", "{{", *TEMPLATE_MARKS.values()]
REGEX = ["[a-z]", '[^"]', ".", r"\w", r"\W", r"\d", "a", "(a|b)", "(a|aa)", "(?:x{0,9})", "^", "$", r"\p{L}", "(?=a)", "[", r"[^\x00-\x7f]", "é"]
TIMES = ["", "", "", "*", "+", "?", "{0,99}", "{3}", "|"]
GBNF = ['"a"', '"ab"', "[a-z]", r'[^"\\]', "root", "r1", "r2", "r3", "r4", "( r1 | r2 )*", "(", ")", "|", "{2,5}", "{0,500}", "\n", "::=", "#", "."]
SIMPLE = [
    {"type": "null"}, {"type": ["string", "null"]}, {"type": "boolean"}, {"type": "number", "multipleOf": 0.01}, {"const": 1e300}, {}, True,
    {"type": "integer", "minimum": -(10**9), "maximum": 10**18}, {"type": "integer", "exclusiveMinimum": 7}, {"enum": [1, None, "ab", [1]]},
    {"type": "string", "minLength": 1, "maxLength": 200}, {"type": "string", "minLength": 5000}, {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uri"}, {"type": "string", "maxLength": 10**6},
]
JINJA = [
    "{{ m.content }}", "{{ messages | tojson }}", "{{ m | string * 9 }}", "{% set x = x ~ x %}", "{% set x = [messages] * 99 %}", "{{ 9 ** 9999 }}",
    "{{ m.content.split(m.role) }}", "{{ m.content | trim | upper }}", "{% macro f(x) %}{{ f(x) }}{% endmacro %}", "{{ f(f) }}", "{{ x.a.b }}",
    "{% for i in range(999) %}{% for m in messages %}x{% endfor %}{% endfor %}", "{{ raise_exception('x') }}", "{{ tools | tojson(indent=4) }}",
    "{{ m.content | replace('a', m.content) }}", "{{ '%9999999d' % 1 }}", "{% set ns = namespace(a=m) %}", "{% generation %}", "{{ bos_token }}",
    "{% if tools %}{{ tools | map(attribute='function') | list }}{% endif %}", "{% set ns.a = [ns.a, ns.a] %}", "{% endif %}", "{{ m.x | d('') }}",
]
# fmt: on


def size(rng, most):
    """Return a length of up to `most`, in which short ones are as likely as long ones."""
    return int(most ** rng.random())


def text(rng, most=250_000):
    n = size(rng, min(most, rng.choice((20, 1000, 1000, 250_000))))
    whole = "".join(rng.choices(PIECES, k=rng.choice((1, 1, 3, 20))))
    return (whole * (n // len(whole) + 1))[:n]


def mutated(rng, whole):
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(whole) + 1)
        new = rng.choice((text(rng, 3000), "", whole[at : at + 40] * 50, rng.choice(PIECES)))
        whole = whole[:at] + new + whole[at + rng.randrange(9) :]
    return whole


def deep(rng):
    found = 1
    for _ in range(size(rng, 300)):
        found = rng.choice(([found], {"a": found}))
    return found


def pattern(rng):
    parts = [rng.choice(REGEX) + rng.choice(TIMES) for _ in range(size(rng, 12))]
    return "".join(parts) * size(rng, rng.choice((1, 1, 1, 20, 5000)))


def schema(rng, names, depth, left):
    """Return a JSON schema that may refer to definitions of some names, of at most `left[0]` parts."""
    left[0] -= 1
    if depth == 0 or left[0] < 0 or rng.random() < 0.3:
        text = {"type": "string", "pattern": pattern(rng)}
        return rng.choice(({"$ref": f"#/$defs/{rng.choice(names)}"}, rng.choice(SIMPLE), text))
    n = size(rng, rng.choice((3, 8, 8, 200 if depth > 1 else 8)))
    few = [schema(rng, names, depth - 1, left) for _ in range(n)]
    limits = rng.choice(
        ({}, {"minItems": 1, "maxItems": rng.choice((60, 10**6))}, {"prefixItems": few})
    )
    parts = dict(zip(rng.choices(NAMES, k=n), few, strict=True))
    needed = {"required": rng.choice(([], list(parts), list(parts)[::2]))}
    others = rng.choice(({}, {}, {"patternProperties": {pattern(rng): True}}, {"minProperties": 2}))
    others |= {"additionalProperties": rng.choice((True, False, few[0]))}
    several = {rng.choice(("anyOf", "oneOf", "allOf", "anyOf", "oneOf", "not", "enum", "if")): few}
    objects = {"type": "object", "properties": parts, **needed, **others}
    return rng.choice((objects, several, {"type": "array", "items": few[0], **limits}))


def whole_schema(rng):
    names = NAMES[: size(rng, rng.choice((1, 5, 40, 400)))]
    depth, left = rng.choice((0, 1, 1, 2)), [size(rng, 5000)]
    found = {"type": "object", "properties": {"a": schema(rng, names, rng.randrange(1, 4), left)}}
    return found | {"$defs": {name: schema(rng, names, depth, left) for name in names}}


def named_schema(rng):
    return {"type": "json_schema", "name": "n", "schema": whole_schema(rng)}


def gbnf(rng):
    if rng.random() < 0.3:
        return mutated(rng, GRAMMAR)
    kept, n_rules = GBNF[:10] if rng.random() < 0.8 else GBNF, size(rng, rng.choice((4, 20, 1500)))
    rules = []
    for i in range(max(5, n_rules)):
        words = [one + rng.choice(("", "", "*", "?", "{0,9}")) for one in rng.choices(kept, k=6)]
        words[0] = rng.choice((words[0], '"b"', f"r{rng.randrange(1, max(5, n_rules))}"))
        body = rng.choice((" ", " ", " | ")).join(words[: rng.randrange(1, 7)] * size(rng, 9))
        rules.append(f"{f'r{i}' if i else 'root'} ::= {body}")
    return "\n".join(rules)


def template(rng):
    inner = "".join(rng.choices(JINJA, k=size(rng, 12))) * size(rng, rng.choice((1, 1, 300)))
    mark = rng.choice(list(TEMPLATE_MARKS.values()))
    return rng.choice((inner, "{% for m in messages %}" + inner + "{% endfor %}")) + mark


# fmt: off
FIELDS = {  # field -> what it gets in half of the cases
    **dict.fromkeys(("schema", "parameters", "input_schema", "json_schema"), whole_schema), "grammar": gbnf, "name": lambda rng: rng.choice(NAMES),
    "format": lambda rng: rng.choice((named_schema, whole_schema))(rng), "chat_template_kwargs": lambda rng: {"a": rng.choice((1, text(rng)))},
    "arguments": lambda rng: rng.choice((mutated(rng, '{"a": "b"}'), json.dumps(deep(rng)))),
    "logit_bias": lambda rng: {str(i): rng.choice((1, -1e6)) for i in range(size(rng, 5000))},
    "tokens": lambda rng: [rng.randrange(4000) for _ in range(size(rng, 50_000))],
}
FIXED = {"n": 2, "best_of": 2, "model": "tales", "max_tokens": 1, "max_completion_tokens": 1, "max_output_tokens": 1, "num_predict": 1, "n_predict": 1}
HEAVY = {*FIELDS, "response_format", "output_config", "text", "tools", "stop", "options"}
# fmt: on


def damaged(rng, body):
    """Return the bytes of a body, with other values or bytes in some places."""
    with contextlib.suppress(RecursionError):
        for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 3))):
            value = rng.choice((rng.choice(POOL), text(rng), deep(rng)))
            place = rng.choice(list(places(body)))
            body = replaced(body, place, lambda _, value=value: value) if place else body
    data = json.dumps(body).encode()
    if rng.random() < 0.04:
        at = rng.randrange(len(data))
        data = data[:at] + rng.choice((b"", b"9" * 4000, b"1e999", *RAW)) + data[at + 1 :]
    return data if rng.random() < 0.98 else rng.choice(RAW)


class Fuzzer:
    """A server in this process, and what its routes accept."""

    def __init__(self, client, llm, folder):
        self.client, self.model, self.file = client, llm._target, Path(folder) / "one.gguf"
        described = describe(("tales",), False, True)
        self.parts, self.paths = described["components"]["schemas"], described["paths"]
        self.posts = [path for path in self.paths if "post" in self.paths[path]] + 3 * CHATS
        self.own, self.good, at = self.model.chat_template, mutate_gguf.File.read(TALES), 0
        for tensor in self.good.tensors:  # headers alone are written
            self.good.lies[tensor[0]], tensor[3], at = at, b"", at + -(-len(tensor[3]) // 32) * 32

    async def one(self, seed):
        """Give a body; return its kind, outcome, bytes, and seconds: all, in the event loop."""
        rng = random.Random(seed)
        kind = rng.choices((self.route, self.tools, self.header), (17, 2, 1))[0]
        name, n_bytes, run = kind(rng)
        began, at_loop = used(), time.thread_time()
        try:
            outcome = await run()
        except GgufSpecError as error:
            outcome = type(error).__name__
        self.model.chat_template = self.own
        return name, outcome, n_bytes, used() - began, time.thread_time() - at_loop

    def route(self, rng):
        path = rng.choice(self.posts if rng.random() < 0.95 else list(self.paths))
        method = rng.choice(list(self.paths[path]))
        url, name = path.replace("{name}", quote(text(rng, 500))), f"{method.upper()} {path}"
        body, source = b"", self.own
        if what := self.paths[path][method].get("requestBody"):
            what = what["content"]["application/json"]["schema"]
            # texts to embed cost passes of the model
            self.rare = rng.choice((0, 0, 0.02, 0.1))
            self.most = 20_000 if "embed" in path else 10**6
            body = self.sample(rng, what)
            if "messages" in body and rng.random() < 0.9:
                body["messages"].append({"role": "user", "content": "Hi."})
            body = damaged(rng, body)
        if path in CHATS and rng.random() < 0.2:
            mark = rng.choice(list(TEMPLATE_MARKS.values()))
            name, source = f"{name}, another template", rng.choice((template(rng), self.own)) + mark
        self.model.chat_template = source

        async def run():
            return (await self.client.request(method.upper(), url, content=body)).status_code

        return name, len(body) + len(source), run

    def sample(self, rng, what, name=""):
        """Return a value that a schema of the description allows, or a hostile one for its field."""
        if name in FIELDS and rng.random() < 0.5:
            return FIELDS[name](rng)
        if name in FIXED:
            return FIXED[name]
        if "$ref" in what:
            what = self.parts[what["$ref"].rpartition("/")[2]]
        if word := next((word for word in ("anyOf", "oneOf") if word in what), None):
            return self.sample(rng, rng.choice(what[word]), name)
        if "enum" in what or "const" in what:
            return rng.choice(what.get("enum") or [what["const"]])
        match what.get("type", "string"):
            case "object":
                inner, needed = what.get("properties", {}), set(what.get("required", ()))
                if heavy := sorted(HEAVY & set(inner)):
                    needed |= {rng.choice(heavy)} if rng.random() < 0.5 else set()
                taken = [one for one in inner if one in needed or rng.random() < self.rare]
                return {one: self.sample(rng, inner[one], one) for one in taken}
            case "array":
                n = min(what.get("maxItems", 9999), size(rng, rng.choice((1, 3, 50)))) or 1
                found = [self.sample(rng, what.get("items", {}), name)]
                n_bytes = len(json.dumps(found))
                if rng.random() < 0.1:
                    return found * min(size(rng, 5000), self.most // n_bytes + 1)
                others = range(min(n, self.most // n_bytes) - 1)
                return found + [self.sample(rng, what.get("items", {}), name) for _ in others]
            case "integer" | "number":
                return rng.choice((what.get("minimum", 1), what.get("maximum", 1), 1))
            case "boolean":
                return rng.random() < 0.5
        return text(rng, rng.choice((20, 300, 300, 250_000)))

    def tools(self, rng):
        family = rng.choice(families.FAMILIES)
        functions = [{"name": "f", "parameters": whole_schema(rng)} for _ in range(size(rng, 30))]
        listed = [{"function": one | {"name": f"f{i}"}} for i, one in enumerate(functions)]
        use = ToolUse(listed, rng.random() < 0.5, None, True, frozenset(["f0"]))
        given = {name: rng.choice((text(rng, 500), deep(rng), *POOL)) for name in ("a", "b")}
        answer = mutated(rng, family.write([("f0", given)] * size(rng, 50)))
        step = rng.choice((1, 4, 99))

        async def run():
            reader = ToolDeltas(family, use)
            for i in range(0, len(answer), step):
                reader.push(answer[i : i + step])
            reader.finish()
            return grammar.tool_grammar(use, family, lambda _: None) and "converted"

        return f"tools of {family.name}", len(json.dumps(listed)) + len(answer), run

    def header(self, rng):
        pairs, n = [list(pair) for pair in self.good.pairs], size(rng, 300_000)
        for _ in range(rng.choice((0, 1, 5))):
            array = rng.choice(((4, [1] * n), (6, [float("nan")] * n), (8, [b"xy"] * n)))
            rng.choice(pairs)[1:] = rng.choice(((9, array), (8, text(rng).encode()), (4, 2**31)))
        tensors = self.good.tensors * rng.choice((1, 1, 1, size(rng, 300)))
        data = mutate_gguf.File(pairs, tensors, lies=self.good.lies).pack()
        data = mutate_gguf.spliced(data, rng) if rng.random() < 0.5 else data
        is_model = rng.random() < 0.8

        async def run():
            self.file.write_bytes(data)
            with self.file.open("r+b") as file:
                file.truncate(1 << 34)
            read = validation.read_header if is_model else adapters.read_projector
            validation.check_embeds(header := read(self.file))
            validation.check_generates_text(header)
            return "read"

        return "GGUF header", len(data), run


passes = [0.0]  # processor time of the model's passes


def used():
    """Return the processor time so far, without passes of the model."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime - passes[0]


def decode(native, real=Native.decode):
    began = time.thread_time()
    try:
        return real(native)
    finally:
        passes[0] += time.thread_time() - began


async def main(options):
    Native.decode, found, until = decode, [], time.monotonic() + options.seconds
    with gguf_spec.load(TALES, None, threads=1) as llm, tempfile.TemporaryDirectory() as folder:
        app = make_app(llm, Settings(max_tokens=2))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            fuzzer = Fuzzer(client, llm, folder)
            for seed in range(options.first, options.first + options.count):
                if time.monotonic() > until:
                    break
                print(f"\r{seed}", end="", file=sys.stderr, flush=True)
                faulthandler.dump_traceback_later(60, exit=True)
                try:
                    one = await fuzzer.one(seed)
                except Exception as error:
                    one = "raised", f"{type(error).__name__}: {error}"[:200], 0, 0.0, 0.0
                found.append((seed, *one))
        faulthandler.cancel_dump_traceback_later()
        app.close()
    return found


def report(found):
    """Print the outcomes; return whether all are as they must be."""
    print(f"\n{len(found):,} bodies, {sum(one[3] for one in found):,} bytes, to {found[-1][0]}")
    for name in sorted({one[1] for one in found}):
        print(f"  {name}: {dict(Counter(one[2] for one in found if one[1] == name))}")
    failed = [one for one in found if one[1] == "raised" or one[2] in range(500, 600)]
    slow = [one for one in found if one[4] > MOST]
    warned = [one for one in found if MOST >= one[4] > WARN + WARN_PER_BYTE * one[3]]
    slowest, at_loop = (sorted(found, key=lambda one: -one[i])[:10] for i in (4, 5))
    titles = "Raised or 5xx", "Above a second", "Warnings", "Slowest", "Longest in the event loop"
    for title, some in zip(titles, (failed, slow, warned, slowest, at_loop), strict=True):
        print(f"{title}: {len(some)}")
        for seed, name, outcome, n_bytes, seconds, loop in some:
            times = f"{seconds:.3f} s, {loop:.3f} s of it in the event loop, {n_bytes:,} bytes"
            print(f"  --first {seed} --count 1: {times}, {name}: {outcome}")
    return not failed and not slow


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=170)
    parser.add_argument("--count", type=int, default=10**9)
    parser.add_argument("--first", type=int, default=0)
    sys.exit(not report(asyncio.run(main(parser.parse_args()))))
