"""Requests over all APIs by their official clients, each with an answer that can be compared.

A kind of request is a generator: it yields pieces of texts, `(which text, piece)`, and returns what else the answer has.
If it is closed in the middle, it closes its connection.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpx
import ollama
import openai

from tests.support.talkers import answering

Pieces = Generator[tuple[Any, str], None, Any]

SYSTEM = "You tell short tales of animals. Each has a beginning and an end. " * 4
QUESTIONS = ["Tell me of a fox.", "What did the wolf say?", "Who is the king?", "Hello."]
OPENINGS = ["Once upon a time", "The old king", "A mouse and a cat", f"{SYSTEM}\nThe owl"]
TEXTS = ["the cat sat on the mat", "hello world", "a dog ran to the moon", "who is what"]
DRAFTING = {"k": 4, "adaptive": False}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["fox", "wolf"]}}, "required": ["a"]}
# The model that calls a tool, and speaks of the result.
CALL = ["Let me see.", "<tool_call>", '\n{"name": "f", ', '"arguments": {"x": 1}}', "\n</tool_call>"]  # fmt: skip
DONE = ["Done", " now"]
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "Does it.", "parameters": PARAMETERS}


@dataclass(frozen=True)
class Plan:
    """One request.

    Attributes:
        kind: What is asked of which API.
        seed: Its seed.
        n: Number of tokens of the answer.
        question: Number of its question.
        stream: Whether the answer is streamed.
        options: Further options of its kind.
        most_pieces: Pieces after which the client leaves; None if it reads all.
    """

    kind: Callable[[Clients, Plan], Pieces]
    seed: int
    n: int
    question: int
    stream: bool
    options: dict[str, Any] = field(default_factory=dict)
    most_pieces: int | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation."""
        return [
            {"role": "system", "content": SYSTEM if self.question % 2 else "Be kind."},
            {"role": "user", "content": QUESTIONS[self.question]},
        ]


class Clients:
    """The official clients of one server; threads may share them."""

    def __init__(self, url: str) -> None:
        own: dict[str, Any] = {"api_key": "none", "max_retries": 0, "timeout": 120}
        self._stack = contextlib.ExitStack()
        enter = self._stack.enter_context
        self.openai = enter(openai.OpenAI(base_url=f"{url}/v1", **own))
        self.anthropic = enter(anthropic.Anthropic(base_url=url, **own))
        self.ollama = enter(ollama.Client(url, timeout=120))
        self.http = enter(httpx.Client(base_url=url, timeout=120))

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def answer(clients: Clients, plan: Plan) -> tuple[dict[Any, str], Any]:
    """Return the texts of an answer and its other fields; only texts if the client disconnects."""
    texts: dict[Any, str] = {}
    pieces, n = plan.kind(clients, plan), 0
    try:
        while plan.most_pieces is None or n < plan.most_pieces:
            which, piece = next(pieces)
            texts[which] = texts.get(which, "") + piece
            n += 1
    except StopIteration as end:
        return texts, end.value
    finally:
        pieces.close()
    return texts, None


# ---- OpenAI


def chat(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/chat/completions."""
    made = clients.openai.chat.completions.create(
        model="tales",
        messages=plan.messages,
        seed=plan.seed,
        max_tokens=plan.n,
        stream=plan.stream,
        **({"stream_options": {"include_usage": True}} if plan.stream else {}),
        **plan.options,
    )
    return (yield from _choices(made, plan.stream, lambda one: one.content))


def completion(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/completions."""
    made = clients.openai.completions.create(
        model="tales",
        prompt=OPENINGS[plan.question],
        seed=plan.seed,
        max_tokens=plan.n,
        stream=plan.stream,
        **({"stream_options": {"include_usage": True}} if plan.stream else {}),
        **plan.options,
    )
    return (yield from _choices(made, plan.stream, None))


def _choices(made: Any, stream: bool, content: Callable[[Any], str | None] | None) -> Pieces:
    """Read the choices of an answer, complete or streamed."""
    finish, seeds, named, usage = {}, {}, {}, None
    with made if stream else contextlib.nullcontext():
        for one in made if stream else [made]:
            usage = one.usage or usage
            for choice in one.choices:
                said = content and content(choice.delta if stream else choice.message)
                yield choice.index, (said if content else choice.text) or ""
                finish[choice.index] = choice.finish_reason or finish.get(choice.index)
                seeds[choice.index] = getattr(choice, "seed", None)
                if choice.logprobs:
                    tokens = choice.logprobs.model_dump()
                    named.setdefault(choice.index, []).extend(
                        [(t["token"], t["logprob"]) for t in tokens["content"]]
                        if "content" in tokens
                        else zip(tokens["tokens"], tokens["token_logprobs"], strict=True)
                    )
    return finish, named, usage.prompt_tokens, usage.completion_tokens


def responses(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/responses twice; the second answer goes on from the first."""
    more = {"model": "tales", "max_output_tokens": plan.n}
    first = clients.openai.responses.create(
        input=plan.messages, extra_body={"seed": plan.seed}, **more
    )
    yield "first", first.output_text
    options = {
        "input": "Go on.",
        "previous_response_id": first.id,
        "extra_body": {"seed": plan.seed + 1} | plan.options,
        **more,
    }
    if not plan.stream:
        last = clients.openai.responses.create(**options)
        yield "second", last.output_text
    else:
        with clients.openai.responses.create(stream=True, **options) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    yield "second", event.delta
        last = event.response
    clients.openai.responses.delete(first.id)
    return last.status, last.usage.input_tokens, last.usage.output_tokens


def embeddings(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/embeddings of an encoder or of a chat model."""
    yield from ()
    model = "bert" if plan.stream else "tales"
    made = clients.openai.embeddings.create(
        model=model, input=TEXTS[: plan.question + 1], **plan.options
    )
    return [one.embedding for one in made.data], made.usage.prompt_tokens


# ---- Anthropic, Ollama and others


def messages(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/messages."""
    (system, question), stop = plan.messages, plan.options.get("stop", [])
    options = {
        "model": "tales",
        "system": system["content"],
        "messages": [question],
        "max_tokens": plan.n,
        "stop_sequences": stop,
        "extra_body": {"seed": plan.seed},
    }
    if not plan.stream:
        last = clients.anthropic.messages.create(**options)
        yield 0, "".join(block.text for block in last.content)
    else:
        with clients.anthropic.messages.stream(**options) as stream:
            for text in stream.text_stream:
                yield 0, text
            last = stream.get_final_message()
    n_read = last.usage.input_tokens + last.usage.cache_read_input_tokens
    return last.stop_reason, last.stop_sequence, n_read, last.usage.output_tokens


def ollama_chat(clients: Clients, plan: Plan) -> Pieces:
    """Ask /api/chat."""
    options = {"seed": plan.seed, "num_predict": plan.n}
    made = clients.ollama.chat("tales", plan.messages, options=options, stream=plan.stream)
    return (yield from _parts(made, plan.stream, lambda one: one.message.content))


def ollama_generate(clients: Clients, plan: Plan) -> Pieces:
    """Ask /api/generate."""
    options = {"seed": plan.seed, "num_predict": plan.n}
    made = clients.ollama.generate(
        "tales", OPENINGS[plan.question], raw=True, options=options, stream=plan.stream
    )
    return (yield from _parts(made, plan.stream, lambda one: one.response))


def _parts(made: Any, stream: bool, content: Callable[[Any], str]) -> Pieces:
    last = None
    with contextlib.closing(made) if stream else contextlib.nullcontext():
        for last in made if stream else [made]:
            yield 0, content(last)
    return last.done_reason, last.prompt_eval_count, last.eval_count


def ollama_embed(clients: Clients, plan: Plan) -> Pieces:
    """Ask /api/embed."""
    yield from ()
    made = clients.ollama.embed("bert", TEXTS[: plan.question + 1])
    return [list(one) for one in made.embeddings], made.prompt_eval_count


def rerank(clients: Clients, plan: Plan) -> Pieces:
    """Ask /v1/rerank."""
    yield from ()
    body = {"model": "rank", "query": TEXTS[plan.question], "documents": TEXTS}
    return clients.http.post("/v1/rerank", json=body).json()


def count(clients: Clients, plan: Plan) -> Pieces:
    """Count and look up, which needs no pass."""
    yield from ()
    counted = clients.anthropic.messages.count_tokens(model="tales", messages=plan.messages[1:])
    body = {"model": "tales", "content": OPENINGS[plan.question]}
    shown = clients.http.get("/props").json()["chat_template"]
    return counted.input_tokens, clients.http.post("/tokenize", json=body).json(), shown


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "temperature": 1e9}),
    ("/v1/completions", {"prompt": "fox " * 5000}),
    ("/v1/messages", {"messages": [], "max_tokens": 4}),
    ("/api/chat", {"model": "none", "messages": "x"}),
    ("/v1/responses", {"input": "x", "previous_response_id": "resp_none"}),
    ("/v1/embeddings", {"input": []}),
]


def wrong(clients: Clients, plan: Plan) -> Pieces:
    """Send a request that is refused."""
    yield from ()
    path, body = WRONG[plan.seed % len(WRONG)]
    reply = clients.http.post(path, json=body)
    assert reply.status_code in (400, 404)
    return reply.json()


# ---- tools: each asks for a call, sends a result, and reads the answer


def openai_tools(clients: Clients, plan: Plan) -> Pieces:
    """Call a tool in /v1/chat/completions."""
    said: list[Any] = [{"role": "user", "content": "Hello."}]
    tools = [{"type": "function", "function": FUNCTION}]
    options = {"model": "caller", "tools": tools, "max_tokens": 40}
    for _ in range(2):
        if plan.stream:
            with clients.openai.chat.completions.stream(messages=said, **options) as stream:
                made = [*stream] and stream.get_final_completion()
        else:
            made = clients.openai.chat.completions.create(messages=said, **options)
        message = made.choices[0].message
        yield "text", message.content or ""
        for call in message.tool_calls or ():
            yield "call", f"{call.function.name}({call.function.arguments})"
            said += [
                message.to_dict(),
                {"role": "tool", "tool_call_id": call.id, "content": "ok"},
            ]
    return made.choices[0].finish_reason


def anthropic_tools(clients: Clients, plan: Plan) -> Pieces:
    """Call a tool in /v1/messages."""
    said: list[Any] = [{"role": "user", "content": "Hello."}]
    tool = {"name": "f", "description": "Does it.", "input_schema": PARAMETERS}
    options = {"model": "caller", "tools": [tool], "max_tokens": 40}
    for _ in range(2):
        if plan.stream:
            with clients.anthropic.messages.stream(messages=said, **options) as stream:
                made = stream.get_final_message()
        else:
            made = clients.anthropic.messages.create(messages=said, **options)
        for block in made.content:
            yield block.type, block.text if block.type == "text" else json.dumps(block.input)
            if block.type == "tool_use":
                result = {"type": "tool_result", "tool_use_id": block.id, "content": "ok"}
                said += [
                    {"role": "assistant", "content": made.content},
                    {"role": "user", "content": [result]},
                ]
    return made.stop_reason


def responses_tools(clients: Clients, plan: Plan) -> Pieces:
    """Call a tool in /v1/responses."""
    asked: dict[str, Any] = {"input": "Hello."}
    options = {
        "model": "caller",
        "tools": [{"type": "function", "strict": False, **FUNCTION}],
        "max_output_tokens": 40,
    }
    for _ in range(2):
        if plan.stream:
            with clients.openai.responses.stream(**asked, **options) as stream:
                made = [*stream] and stream.get_final_response()
        else:
            made = clients.openai.responses.create(**asked, **options)
        yield "text", made.output_text
        results = []
        for item in made.output:
            if item.type == "function_call":
                yield "call", f"{item.name}({item.arguments})"
                results.append(
                    {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
                )
        asked = {"input": results, "previous_response_id": made.id}
    return made.status


def ollama_tools(clients: Clients, plan: Plan) -> Pieces:
    """Call a tool in /api/chat."""
    said: list[Any] = [{"role": "user", "content": "Hello."}]
    tools = [{"type": "function", "function": FUNCTION}]
    for _ in range(2):
        made = clients.ollama.chat(
            "caller", said, tools=tools, options={"num_predict": 40}, stream=plan.stream
        )
        for part in made if plan.stream else [made]:
            yield "text", part.message.content or ""
            for call in part.message.tool_calls or ():
                yield "call", f"{call.function.name}({json.dumps(dict(call.function.arguments))})"
                function = {"name": "f", "arguments": dict(call.function.arguments)}
                said += [
                    {"role": "assistant", "content": "", "tool_calls": [{"function": function}]},
                    {"role": "tool", "tool_name": "f", "content": "ok"},
                ]
    return None


# ---- plans

_FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
# Kind -> options, one of which is taken.
_TEXTS: dict[Callable[[Clients, Plan], Pieces], list[dict[str, Any]]] = {
    chat: [
        {},
        {"n": 2},
        {"temperature": 0},
        {"logprobs": True, "top_logprobs": 2},
        {"response_format": _FORMAT},
        {"extra_body": {"speculation": DRAFTING}},
        {"extra_body": {"speculation": "off", "repeat_penalty": 1.2}},
    ],
    completion: [
        {},
        {"n": 3},
        {"logprobs": 1},
        {"stop": ["."]},
        {"extra_body": {"speculation": DRAFTING, "top_k": 20}},
        {"extra_body": {"ignore_eos": True}},
    ],
    responses: [{}, {"speculation": DRAFTING}],
    messages: [{}, {"stop": ["."]}],
    ollama_chat: [{}],
    ollama_generate: [{}],
}
_OTHERS = [
    embeddings, ollama_embed, rerank, count, wrong, openai_tools, anthropic_tools, responses_tools, ollama_tools,
]  # fmt: skip
_ALL = [*_TEXTS, *_OTHERS]


def plans(n: int, seed: int) -> list[Plan]:
    """Return `n` requests: all kinds in turn, in a random order; one in six clients disconnects."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        kind = _ALL[i % len(_ALL)]
        options = rng.choice(_TEXTS.get(kind, [{}]))
        leaves = kind in _TEXTS and rng.random() < 0.4
        made.append(
            Plan(
                kind,
                rng.randrange(1000),
                rng.randint(60, 120) if leaves else rng.randint(6, 40),
                rng.randrange(4),
                leaves or rng.random() < 0.5,
                options,
                rng.randint(1, 6) if leaves else None,
            )
        )
    rng.shuffle(made)
    return made


def write_caller(path: Any) -> Any:
    """Write the model that calls a tool."""
    return answering(path, {"\n": CALL, "Q": DONE})
