"""Random valid bodies of all APIs: known fields in their neutral, usual and odd spellings."""

from gguf_spec.options import Speculation
from gguf_spec.protocols.errors import ApiError
from gguf_spec.protocols.fields import BUDGETS, OLLAMA_OPTIONS, OTHER_FIELDS
from gguf_spec.protocols.llama_server import INFILL, read_infill
from gguf_spec.protocols.messages import read_request
from gguf_spec.protocols.ollama import read_ollama_chat, read_ollama_generate
from gguf_spec.protocols.openai import read_chat, read_text
from gguf_spec.protocols.responses import read_response


class NoStore:
    """Keeps no response."""

    def conversation(self, id_, param):
        raise ApiError(f"There is no response {id_!r}.", param, "response_not_found", 404)

    def finder(self):
        return lambda _: None

    def add(self, response, items):
        pass


READ = {
    "/v1/chat/completions": read_chat,
    "/v1/completions": read_text,
    "/infill": read_infill,
    "/v1/responses": lambda *given: read_response(*given, NoStore()),
    "/v1/messages": read_request,
    "/api/chat": read_ollama_chat,
    "/api/generate": read_ollama_generate,
}
_ROUTES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text",
    "/infill": "text",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
TEXTS = ["Once", "", "a <|im_end|> b", "<s>[INST]", "half \ud83e", "é\u0301\U0001f914", "{x}\n```"]
# Values of any field that asks for something that is not done.
_ODD = [True, 0, -1, 2.5, "x", ["x"], {"a": 1}]
SAMPLING = {
    "temperature": [0, 0.0, 1, 0.7, -1, 2],
    "top_p": [0, 0.0, 1, 1.0, 0.95],
    "top_k": [0, -1, 40, 40.0],
    "min_p": [0, 0.05],
    "typical_p": [1, 1.0, 0.9],
    "seed": [-1, 0, 5, 5.0, 2**32 - 1, -7, None],
    "frequency_penalty": [0, 0.0, 0.5],
    "presence_penalty": [0, 0.0, -0.5],
    "repeat_penalty": [1, 1.0, 1.1],
    "repetition_penalty": [1.0, 1.1],
    "repeat_last_n": [0, 64, 64.0, -1],
    "dry_multiplier": [0, 0.8],
    "dry_sequence_breakers": [[], ["\n", ":"]],
    "xtc_probability": [0, 0.1],
    "logit_bias": [{}, {"5": 1}, {"5": 0.5}, [], [[5, 1.0]], [[5, False]]],
    "max_tokens": [0, 1, 3, 3.0, -1, None],
    "stop": [None, "", [], "zzz", ["zzz", ""]],
    "stop_token_ids": [[], [5]],
    "ignore_eos": [False, True],
    "grammar": ["", None],
    "speculation": ["off", {}, {"k": 2}, {"k": 2.0}, None],
    "stream": [False, True, None],
}
_OF_OLLAMA = {"num_predict": SAMPLING["max_tokens"] + [-2]} | {
    name: SAMPLING[name]
    for name in ("temperature", "top_p", "top_k", "min_p", "seed", "repeat_penalty", "stop")
}
_THINKING = {
    **{name: [-1, 0, 10, 10.0] for name in BUDGETS},
    "enable_thinking": [True, False],
    "chat_template_kwargs": [{}, {"enable_thinking": False}, {"unknown": "x"}, None],
}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
MORE = {
    "/v1/chat/completions": _THINKING
    | {
        "n": [1, 1.0, 2],
        "max_completion_tokens": [0, 3, 3.0],
        "reasoning_effort": ["none", "low", "high", None],
        "reasoning": [
            {},
            {"effort": "low"},
            {"max_tokens": 5},
            {"enabled": False, "exclude": True},
        ],
        "thinking": [{"type": "disabled"}, {"type": "enabled", "budget_tokens": 9}, False],
        "response_format": [
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"schema": _SCHEMA}},
        ],
        "logprobs": [False, True, None],
        "top_logprobs": [0, None],
        "tools": [[], None],
        "tool_choice": ["none", "auto", None],
        "parallel_tool_calls": [True, False],
        "stream_options": [None, {}, {"include_usage": True, "continuous_usage_stats": False}],
    },
    "/v1/completions": {
        "n": [1, 1.0],
        "best_of": [1, 3],
        "logprobs": [False, 0, 2, 2.0, None],
        "suffix": ["", None],
        "max_new_tokens": [None],
    },
    "/infill": {"input_suffix": TEXTS, "n_predict": [None], "samplers": [["top_k"], []]},
    "/v1/responses": _THINKING
    | {
        "max_output_tokens": [None],
        "reasoning": [{}, {"effort": "low", "summary": "auto"}, {"effort": None}],
        "text": [{}, {"verbosity": "low"}, {"format": {"type": "text"}}],
        "include": [[], ["reasoning.encrypted_content"], ["of.tomorrow"]],
        "truncation": ["auto", "disabled", None],
        "metadata": [{}, {"a": "b"}],
        "instructions": TEXTS,
    },
    "/v1/messages": {
        "thinking": [
            {"type": "disabled"},
            {"type": "adaptive", "display": "omitted"},
            {"type": "enabled", "budget_tokens": 1024.0},
        ],
        "system": [*TEXTS, [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]],
        "stop_sequences": [[], ["zzz"]],
        "output_config": [{}, {"effort": "max"}],
        "context_management": [{"edits": []}, {"edits": [{"type": "clear_tool_uses_20250919"}]}],
    },
    "/api/chat": {"think": [False, None], "format": ["", None], "truncate": [True, False]},
    "/api/generate": {"think": [False], "system": TEXTS, "raw": [False, None], "shift": [True]},
}


def _content(rng):
    text = rng.choice(TEXTS)
    return rng.choice([text, [{"type": "text", "text": text}]])


def _messages(rng, path):
    """A conversation with calls, and with the fields that other servers put into their answers."""
    ollama = path == "/api/chat"
    found = []
    if path == "/v1/chat/completions" and rng.random() < 0.5:
        found.append({"role": rng.choice(["system", "developer"]), "content": _content(rng)})
    for _ in range(rng.randrange(3)):
        found.append({"role": "user", "content": rng.choice(TEXTS) if ollama else _content(rng)})
        answer = {"role": "assistant", "content": rng.choice(TEXTS)}
        if path == "/v1/chat/completions":
            names = ("reasoning", "reasoning_content", "refusal", "audio", "annotations", "zap")
            answer |= {name: rng.choice([None, "why", ""]) for name in rng.sample(names, 2)}
            answer |= {"reasoning_details": [{"type": "reasoning.text", "text": "x"}]}
            answer.pop("audio", None)
        found.append(answer)
    return [*found, {"role": "user", "content": "Hello" if ollama else _content(rng)}]


def body(rng, path):
    """Return a random valid body for a route."""
    fields = {}
    if path.startswith("/api"):
        some = rng.sample(list(_OF_OLLAMA), rng.randrange(4))
        options = {name: rng.choice(_OF_OLLAMA[name]) for name in some}
        for name in rng.sample(list(OLLAMA_OPTIONS), rng.randrange(4)):
            options[name] = rng.choice([*(OLLAMA_OPTIONS[name].neutral or ()), *_ODD])
        fields |= {"options": options, "keep_alive": rng.choice(["5m", -1, 300])}
    else:
        names = [one for one in SAMPLING if one != "stop" or path != "/v1/messages"]
        some = rng.sample(names, rng.randrange(6))
        fields |= {name: rng.choice(SAMPLING[name]) for name in some}
        if {"repeat_penalty", "repetition_penalty"} <= fields.keys():
            del fields["repetition_penalty"]
        route = _ROUTES[path]
        done = INFILL.fields if path == "/infill" else ()  # of llama-server, not on other routes
        known = [name for name, one in OTHER_FIELDS.items() if route in one.routes]
        for name in rng.sample(known, rng.randrange(6)):
            if name in MORE[path] or name in done or name in ("prompt", "echo"):
                continue
            one = OTHER_FIELDS[name]
            values = [*(one.neutral or ()), None]
            fields[name] = rng.choice(values if one.is_refused else [*values, *_ODD])
    more = MORE[path]
    fields |= {
        name: rng.choice(more[name])
        for name in rng.sample(list(more), rng.randrange(4) % len(more))
    }
    if "max_new_tokens" in fields and "max_tokens" in fields:
        del fields["max_new_tokens"]
    fields |= (
        {rng.choice(["zap", "x_vendor", "extra"]): rng.choice(_ODD)} if rng.random() < 0.2 else {}
    )
    if path in ("/v1/completions", "/api/generate"):
        fields["prompt"] = rng.choice(["Once", "a <|im_end|> b", "half \ud83e"])
    elif path == "/infill":
        fields["input_prefix"] = rng.choice(TEXTS)
    elif path == "/v1/responses":
        fields["input"] = rng.choice(["Hello", [{"role": "user", "content": "Hello"}]])
    else:
        fields["messages"] = _messages(rng, path)
    return fields


def read(path, fields):
    """Read a body as the server does."""
    return READ[path](fields, Speculation(), None)
