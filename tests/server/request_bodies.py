"""Request bodies and their outcomes; the recorded ones are in tests/data/request_outcomes.json.gz.

Every field gets every kind of value, every place of whole requests is replaced, left out and added to, and some bodies are hostile.
`python -m tests.server.request_bodies` records the outcomes again; with a file, it writes them there with their messages, to compare.
"""

import copy
import dataclasses
import gzip
import itertools
import json
import random
import sys
from pathlib import Path

from gguf_spec.options import Sampling, Speculation
from gguf_spec.protocols.bodies import parse
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.openai import read_chat, read_text
from gguf_spec.protocols.request import NO_REASONING_FIELDS
from gguf_spec.tools.families import NO_TOOLS

RECORD = Path(__file__).parents[1] / "data" / "request_outcomes.json.gz"
DEFAULT = Speculation(k=8)
READ = {"chat": read_chat, "text": read_text}
POOL = [None, True, False, 0, 1, -1, 1.5, -0.0, 10**30, 1e300, "", "x", "ä", [], ["x"], [1], [None], {}, {"a": 1}, {"type": "text"}]  # fmt: skip
EDGES = {
    "temperature": [0, 1e6, 1000001, -1e-9, 2],
    "top_k": [10**9, 2.0],
    "top_p": [1e-300, 1.0000001, 0.0],
    "min_p": [1.0000001, -1e-300, 0.5],
    "typical_p": [1e-300, 1.0000001, 0.0],
    "top_n_sigma": [1e6, 1000001, -1e-9],
    "xtc_probability": [1.0000001, 0.5],
    "xtc_threshold": [1.0000001, 0.5],
    "repeat_penalty": [0.001, 0.00099, 1000, 1000.1],
    "frequency_penalty": [-1e6, 1e6, 1000001, -1000001],
    "presence_penalty": [-1e6, 1e6, 1000001, -1000001],
    "penalty_last_n": [-2, 64],
    "dry_multiplier": [1e6, 1000001],
    "dry_base": [0.99, 1e6, 1000001],
    "dry_penalty_last_n": [-2],
    "seed": [2**64, 2**64 - 1],
    "max_tokens": [64, 65, 10**9],
    "max_completion_tokens": [64, 65],
    "stop": [["a"] * 16, ["a"] * 17, "a" * 256, "a" * 257, ["a", ""], ["a", 1], ["a" * 257]],
    "logit_bias": [{"1": 5}, {"1": -1e6, "2": 1e6}, {"1": 1000001}, {"-1": 1}, {"1.5": 1}, {"1234567890": 1}, {"123456789": 1}, {"٣": 1}, {"1": True}, {"1": "x"}, {"1": None}, {"": 1}, {"01": 1, "1": 2}],
    "logprobs": [20, 21, 2],
    "top_logprobs": [20, 21],
    "n": [2, 1.0],
    "best_of": [2],
    "service_tier": ["auto", "default", "flex"],
    "modalities": [["text"], ["audio"]],
    "response_format": [
        {"type": "json_object"}, {"type": "xml"}, {"type": "text", "x": 1}, {"type": "json_object", "x": None}, {"type": "json_schema"},
        *({"type": "json_schema", "json_schema": one} for one in (
            {"name": "a", "schema": {}}, {"name": "a", "schema": True}, {"name": "a", "schema": []}, {"name": 1, "schema": {}}, {"schema": {}},
            {"name": "a", "schema": {}, "strict": 1}, {"name": "a", "schema": {}, "strict": True}, {"name": "a", "schema": {}, "strict": "x"}, {"name": "a", "schema": {}, "strict": None},
            {"name": "a", "schema": {}, "description": ""}, {"name": "a", "schema": {}, "description": "x"}, {"name": "a", "schema": {}, "x": None},
        )),
    ],
    "speculation": ["off", "on", {"k": 64}, {"k": 65}, {"k": -1}, {"k": True}, {"k": None}, {"accept": "block"}, {"accept": "x"}, {"accept": []}, {"drafter": "ngram"}, {"drafter": {}}, {"strict": True, "accept": "block"}, {"strict": True}, {"strict": 1}, {"depth": 1}, {"depth": None}, {"adaptive": False, "exact": False}, {"exact": "x"}],
    "reasoning_effort": ["none", "low", "xhigh", "auto"],
    "chat_template_kwargs": [{"enable_thinking": False}, {"a": None, "b": "x", "c": 1.5}, {"a": []}, {"a": {}}],
    "think_budget": [10**9],
    "prompt": ["text", [1, 2], [[1, 2]], ["a", "b"], [[1], [2]], [[]], [["a"]], [1, "a"], [True], [1.0], [-1], [10**9]],
    "tool_choice": ["none", "auto", "required", {"type": "function", "function": {"name": "a"}}],
}  # fmt: skip
FIELDS = sorted(
    {field.name for field in dataclasses.fields(Sampling)}
    | set(EDGES)
    | {"model", "stream", "stream_options", "messages", "echo", "tools", "store", "parallel_tool_calls", "audio", "function_call", "functions", "metadata",
       "prediction", "prompt_cache_key", "prompt_cache_retention", "reasoning_effort", "safety_identifier", "user", "verbosity", "web_search_options",
       "suffix", "temprature", "", "k", "__proto__", "self", "model_config", "x" * 200}
)  # fmt: skip
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "d",
        "parameters": {"type": "object"},
        "strict": False,
    },
}
WHOLE = [
    ("chat", {
        "model": "m",
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "developer", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
            {"role": "assistant", "content": "x", "refusal": ""},
        ],
        "tools": [TOOL, {"type": "function", "function": {"name": "b"}}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True, "include_speculation": False},
        "logprobs": True,
        "top_logprobs": 3,
        "max_completion_tokens": 5,
        "max_tokens": 5,
        "stop": ["a", "b"],
        "logit_bias": {"1": 2.5},
        "speculation": {"k": 4, "accept": "coupled", "strict": False, "drafter": "auto", "adaptive": True, "exact": True},
    }),
    ("chat", {
        "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [CALL]}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}},
    }),
    ("chat", {  # all of it as described by OpenAPI
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": {"type": "object"}}}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["a", "b"],
        "logit_bias": {"1": 2.5},
        "speculation": {"k": 4},
    }),
    ("text", {"prompt": "x", "echo": True, "stream": False, "n": 1, "best_of": 1, "suffix": "", "seed": 3}),
    ("text", {"prompt": [1, 2], "logprobs": 2, "max_tokens": 7, "ignore_eos": True, "grammar": "root ::= [a]"}),
]  # fmt: skip
MESSAGES = [{"role": "user", "content": "x"}]
SMALLEST = {"chat": {"messages": MESSAGES}, "text": {"prompt": "x"}}
ROLES = ("system", "developer", "user", "assistant", "tool")
OF_SOME_ROLES = [
    {},
    {"tool_calls": [CALL]},
    {"tool_calls": []},
    {"tool_call_id": "c1"},
    {"refusal": "no"},
    {"refusal": ""},
    {"name": "n"},
    {"name": None},
]
DEEP = '{"a":' * 5000 + "1" + "}" * 5000
LISTS = "[" * 900 + "]" * 900
RAW = [
    b"", b"{", b"[]", b"5", b"null", b'"x"', b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"temperature": -Infinity}',
    b"[" * 100_000, b"9" * 5000, b'{"seed": ' + b"9" * 5000 + b"}", b'{"prompt": "x", "temperature": 1e999}', b'{"prompt": "x", "top_p": -1e999}',
    b'{"prompt": "x", "prompt": "y"}', b'{"prompt": "x", "seed": ' + b"9" * 4000 + b"}", b'{"prompt": "x", "temperature": ' + b"9" * 400 + b"}",
    b'{"prompt": "x", "temperature": 1' + b"0" * 400 + b"}", b'{"prompt": "x", "logit_bias": {"1": 1' + b"0" * 400 + b"}}", b'{"prompt": "x", "logit_bias": {"1": 1e999}}', b'{"prompt": "x", "logit_bias": {"1": -1e999}}',
    f'{{"prompt": "x", "stop": {DEEP}}}'.encode(), f'{{"prompt": {LISTS}}}'.encode(), f'{{"prompt": "x", "speculation": {LISTS}}}'.encode(),
    f'{{"messages": {LISTS}}}'.encode(), f'{{"messages": [{{"role": "user", "content": {LISTS}}}]}}'.encode(), f'{{"messages": [{{"role": {LISTS}, "content": "x"}}]}}'.encode(),
    json.dumps({"messages": MESSAGES, "tools": [{"type": "function", "function": {"name": "a", "parameters": {"a": "[" * 1000}}}]}).encode(),
    f'{{"messages": [{{"role": "user", "content": "x"}}], "tools": [{{"type": "function", "function": {{"name": "a", "parameters": {{"a": {LISTS}}}}}}}]}}'.encode(),
    json.dumps({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL | {"function": {"name": "a", "arguments": "[" * 10**6}}]}]}).encode(),
    json.dumps({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL | {"function": {"name": "a", "arguments": '{"a": NaN}'}}]}]}).encode(),
    *(json.dumps(SMALLEST["chat"] | {"messages": messages}).encode() for messages in (
        [{"role": "x" * 10**6, "content": "x"}], ["x" * 10**6], "x" * 10**6, [{"role": "user", "content": {"x" * 10**6: 1}}],
        [{"role": "user", "content": [{"type": "x" * 10**6}]}], [{"role": "user", "content": "x", "tool_call_id": "x" * 10**6}],
        [{"role": "user", "content": "x", "x" * 10**6: 1}], [{"role": "user"}] * 10**4, [1] * 10**4, [{"role": "user", "content": [{"type": "text", "text": 1}] * 10**4}],
    )),
    *(json.dumps(SMALLEST["text"] | fields).encode() for fields in (
        {"stop": "x" * 10**6}, {"stop": ["x" * 10**6]}, {"grammar": ["x" * 10**6]}, {"temperature": "x" * 10**6}, {"temperature": ["x"] * 10**5},
        {"logit_bias": {str(i): "x" for i in range(10**4)}}, {"logit_bias": {"x" * 10**6: 1}}, {"x" * 10**6: 1}, {"speculation": {"x" * 10**6: 1}},
        {"speculation": {"accept": "x" * 10**6}}, {"model": ["x" * 10**6]}, {"stream_options": {"x" * 10**6: 1}}, {str(i) + "x": 1 for i in range(10**4)},
        {"prompt": ["x" * 10**6] * 2}, {"prompt": list(range(10**5))}, {"prompt": [*range(10**4), "x"]},
    )),
    *(json.dumps(SMALLEST["chat"] | fields).encode() for fields in (
        {"tools": [{"type": "x" * 10**6}]}, {"tools": [{"type": "function", "function": {"name": "a", "x" * 10**6: 1}}]}, {"tools": [{"type": "function", "function": {"name": "x" * 10**6}}]}, {"tools": [1] * 10**4},
        {"tool_choice": "x" * 10**6}, {"response_format": {"type": "x" * 10**6}}, {"top_logprobs": "x" * 10**6},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x" * 10**6, "schema": []}}},
        {"max_tokens": 2, "max_completion_tokens": 3}, {"max_tokens": None, "max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": None},
        {"grammar": "root ::= [a]", "response_format": {"type": "json_object"}}, {"grammar": "root ::= [a]", "tools": [TOOL]},
        {"tools": [TOOL], "tool_choice": "none", "response_format": {"type": "json_object"}}, {"tools": [TOOL], "response_format": {"type": "text"}},
        {"tools": [TOOL], "response_format": {"type": "json_object"}}, {"logprobs": True}, {"logprobs": False, "top_logprobs": 1}, {"logprobs": True, "top_logprobs": 0},
        {"stream": False, "stream_options": {}}, {"stream": True, "stream_options": {}}, {"stream": True, "stream_options": {"include_usage": None}},
        {"stream_options": {"include_usage": True}}, {"stream": True, "stream_options": {"x": None}},
    )),
]  # fmt: skip


def bodies():
    """Yield `(kind, most, body)`: the route, the server's limit of tokens, and bytes."""
    for kind, name in itertools.product(READ, FIELDS):
        for value in [*POOL, *EDGES.get(name, ())]:
            yield kind, 64, dump(SMALLEST[kind] | {name: value})
    for name, value in (
        (name, value)
        for name in ("max_tokens", "max_completion_tokens")
        for value in (1, 65, 10**9, None)
    ):
        yield "chat", None, dump(SMALLEST["chat"] | {name: value})
        yield "text", 8, dump(SMALLEST["text"] | {name: value})
    for kind, whole in WHOLE:
        for body in changed(whole):
            yield kind, None, dump(body)
    for role, content, some in itertools.product(ROLES, ("x", None), OF_SOME_ROLES):
        yield "chat", None, dump({"messages": [{"role": role, "content": content} | some]})
    for kind, body in itertools.product(READ, RAW):
        yield kind, None, body


def pairs():
    """Yield bodies with several changes at once; any of them may be refused first."""
    draw = random.Random(1)
    for _ in range(1000):
        kind, body = draw.choice(WHOLE)
        for _ in range(draw.randrange(2, 5)):
            value = draw.choice(POOL)
            body = replaced(
                body, draw.choice(list(places(body))[1:] or [()]), lambda _, value=value: value
            )
        yield kind, None, dump(body)


def changed(whole):
    """Yield a document, and it with each of its places replaced, left out, or added to."""
    yield whole
    for place in places(whole):
        for value in POOL:
            yield replaced(whole, place, lambda _, value=value: value)
        yield replaced(whole, place, lambda _: None, drop=True)
        for extra in (1, None, "", []):
            yield replaced(
                whole,
                place,
                lambda one, extra=extra: (
                    one | {"extra": extra}
                    if isinstance(one, dict)
                    else [*one, extra]
                    if isinstance(one, list)
                    else one
                ),
            )


def places(value, at=()):
    yield at
    steps = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, one in steps:
        yield from places(one, (*at, step))


def replaced(whole, place, make, drop=False):
    if not place:
        return make(whole)
    whole = copy.deepcopy(whole)
    inner = whole
    for step in place[:-1]:
        inner = inner[step]
    if drop:
        del inner[place[-1]]
    else:
        inner[place[-1]] = make(inner[place[-1]])
    return whole


def dump(body):
    return json.dumps(body).encode()


# Fields of a request that are recorded under other names, or that these APIs do not have.
NOT_RECORDED = {"n_scored", "scores", "sampling", "speculation", "tools", "texts", "messages", "reasoning", "drops_oldest", "show", "files", "lines", "unenforced", "given", "biases", "each"}  # fmt: skip


def outcome(kind, most, body):
    """Return the outcome of a body: the options that are not the defaults, or `[status, type, code, param, message]`."""
    try:
        request = READ[kind](parse(body), DEFAULT, most)
    except ApiError as error:
        told = error.error
        return [
            error.status,
            told["type"],
            told["code"],
            told["param"] and told["param"][:200],
            told["message"],
        ]
    asked = {name: value for name, value in vars(request).items() if name not in NOT_RECORDED}
    asked |= {name: getattr(request.show, name) for name in ("usage", "shows_drafts")}
    if request.reasoning != NO_REASONING_FIELDS:
        asked |= {name: getattr(request.reasoning, name) for name in ("effort", "values")}
    asked |= {name: sorted(some) for name in ("biases", "each") if (some := getattr(request, name))}
    use = vars(request.tools)
    asked |= {name: use[name] for name in use if use[name] != vars(NO_TOOLS)[name]}
    asked["tools"] = use["tools"]
    if "strict" in asked:
        asked["strict"] = sorted(asked["strict"])
    asked["prompt"] = request.prompts[0] if len(request.prompts) == 1 else list(request.prompts)
    if request.speculation:
        asked["speculation"] = dataclasses.astuple(request.speculation)
    asked |= {
        name: value
        for name, value in vars(request.sampling).items()
        if value != getattr(Sampling(), name)
    }
    if isinstance(asked["prompt"], list) and len(asked["prompt"]) > 1000:
        asked["prompt"] = asked["prompt"][:3]
    return json.loads(json.dumps(asked, sort_keys=True, default=vars).encode())


def outcomes(cases, *, keep=None):
    """Return the outcomes, without messages (their words may change)."""
    for case in cases:
        found = outcome(*case)
        yield found[:keep] if isinstance(found, list) else found


def record():
    """The recorded outcomes: of single changes, and whether those with several are refused."""
    return [list(outcomes(bodies(), keep=4)), [isinstance(one, list) for one in outcomes(pairs())]]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(
            "".join(
                f"{kind} {most} {body[:300]!r}\n    {json.dumps(outcome(kind, most, body))[:1500]}\n"
                for kind, most, body in bodies()
            )
        )
    else:
        RECORD.write_bytes(gzip.compress(json.dumps(record()).encode(), 9, mtime=0))
