"""Conversion of the arguments of `llama_cpp.Llama`.

No argument is silently ignored: one that is not supported is an error that names the argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from llama_cpp.llama_chat_format import guess_chat_format_from_gguf_metadata

from ..errors import GgufSpecError, InvalidOptionError, Option, Pull, in_python, written
from ..gguf.validation import Header
from ..llama.options import KV_TYPES
from ..options import POOLING, SAMPLING
from ..sampling.chain import CompatSampling

ANY_SEED = (-1, 0xFFFFFFFF)  # seeds that mean "draw a random seed" in llama.cpp
_F16 = KV_TYPES["f16"][0]  # ggml type number of F16, the default type of the cache

# Arguments that are accepted and have no effect. They change no text, and gguf-spec chooses the
# settings that they tune itself.
HINTS = {"n_batch", "n_ubatch", "no_perf", "logits_all", "n_parts"}
# Argument of the constructor -> accepted values; each means the default behaviour. The second
# value of rope_freq_base and rope_freq_scale is the default that LangChain always passes. Applied
# literally, it would break every model that was trained with another RoPE setting.
USUAL: dict[str, tuple[object, ...]] = {
    "split_mode": (1,),
    "main_gpu": (0,),
    "tensor_split": (None,),
    "vocab_only": (False,),
    "use_mmap": (True,),
    "use_mlock": (False,),
    "kv_overrides": (None,),
    "rope_scaling_type": (-1, None),
    "attention_type": (-1,),
    "rope_freq_base": (0.0, 10000.0),
    "rope_freq_scale": (0.0, 1.0),
    "yarn_ext_factor": (-1.0,),
    "yarn_attn_factor": (1.0,),
    "yarn_beta_fast": (32.0,),
    "yarn_beta_slow": (1.0,),
    "yarn_orig_ctx": (0,),
    "offload_kqv": (True,),
    "op_offload": (None,),
    "swa_full": (None,),
    "lora_base": (None,),
    "numa": (False,),
    "chat_handler": (None,),
    "draft_model": (None,),
    "tokenizer": (None,),
    "spm_infill": (False,),
    "f16_kv": (True,),
}
# Argument -> hint of its error; other arguments get a general hint.
_HINTS_OF_ERRORS = {
    "draft_model": "set draft_model_path=FILE to use a draft model, "
    "or draft_model_path='ngram' to draft from the text only.",
    "f16_kv": "set type_k and type_v.",
}
# Argument of `gguf_spec.load` -> argument of `Llama`.
_NAMES_HERE = {
    "gpu_layers": "n_gpu_layers",
    "threads": "n_threads",
    "kv_type": "type_k",
    "flash_attention": "flash_attn",
    "draft": "draft_model_path",
    "lora": "lora_path",
    "pooling": "pooling_type",
}
# Arguments of `gguf_spec.load` that `Llama` does not have.
_NOT_HERE = {
    "draft_lora", "draft_kv_type", "draft_flash_attention", "extra_bufts", "reference",
    "draft_threads", "device", "draft_device", "cpu_moe", "n_cpu_moe", "override_tensor", "mmap",
    "mlock", "numa", "kernels",
}  # fmt: skip
# Value of an argument of `load` -> value of the argument of `Llama`.
_VALUES_HERE: dict[str, dict[object, object]] = {
    "kv_type": {name: number for name, (number, _) in KV_TYPES.items()},
    "flash_attention": {"auto": None, "on": True, "off": False},
    "draft": {"none": None},
}


def check_constructor(others: Mapping[str, Any]) -> None:
    """Refuse arguments of the constructor that are unknown or have an unsupported value.

    Raises:
        InvalidOptionError: An argument is unknown or not supported; names the argument.
    """
    for name, value in others.items():
        if name in HINTS:
            continue
        if name not in USUAL:
            fact = f"Llama has no argument {name}."
            raise InvalidOptionError(name, value, "", "check the spelling.", message=fact)
        refuse_unless(name, value, USUAL[name])


def refuse_unless(name: str, value: object, usual: Sequence[object]) -> None:
    """Refuse an argument whose value is not one of `usual`.

    Raises:
        InvalidOptionError: The value is not supported; names the argument.
    """
    if not any(value is one or (one is not None and value == one) for one in usual):
        allowed = f"{' or '.join(map(repr, usual))}: gguf-spec supports no other value"
        hint = _HINTS_OF_ERRORS.get(name, f"omit {name}.")
        raise InvalidOptionError(name, value, allowed, hint)


def kv_type(type_k: int | None, type_v: int | None) -> str:
    """Return the name of the number type of the cache, the same for keys and values.

    Args:
        type_k: ggml type number of the keys; None for F16.
        type_v: ggml type number of the values; None for F16.

    Raises:
        InvalidOptionError: The types differ, or the cache does not support them.
    """
    numbers = {number: name for name, (number, _) in KV_TYPES.items()}
    k, v = (_F16 if number is None else number for number in (type_k, type_v))
    for name, number in (("type_k", k), ("type_v", v)):
        if number not in numbers:
            known = ", ".join(f"{n} ({name})" for n, name in sorted(numbers.items()))
            raise InvalidOptionError(name, number, f"one of {known}")
    if k != v:
        hint = "set both to the same number type."
        raise InvalidOptionError("type_v", type_v, f"{k}, as type_k", hint)
    return numbers[k]


@contextmanager
def named_as_there() -> Iterator[None]:
    """Translate the options in errors of `gguf_spec.load` to the arguments of `Llama`."""
    try:
        yield
    except GgufSpecError as error:
        suggested = [_here(Option(*one)) for one in error.suggested.items()]
        error.args = (written(error.message, _written) or "",)
        error.hint = written(error.hint, _written_if_here) or ""
        error.suggested = {option.name: option.value for option in suggested}
        if isinstance(error, InvalidOptionError):
            error.option = _here(Option(error.option)).name
        raise


def _here(option: Option) -> Option:
    """Return the argument of `Llama` for an option of `load`, or the option if `Llama` lacks it."""
    if option.name in _NOT_HERE:
        return option
    values = _VALUES_HERE.get(option.name, {})
    value = values.get(option.value, option.value) if values else option.value
    return option._replace(name=_NAMES_HERE.get(option.name, option.name), value=value)


def _written(part: Option | Pull) -> str | None:
    return in_python(_here(part) if isinstance(part, Option) else part)


def _written_if_here(part: Option | Pull) -> str | None:
    return None if isinstance(part, Option) and part.name in _NOT_HERE else _written(part)


def to_sampling(asked: Mapping[str, Any], *, seed: int | None, last_n: int) -> CompatSampling:
    """Convert the arguments of a call to sampling options.

    Args:
        asked: All arguments of the call.
        seed: The seed; None draws one.
        last_n: Number of previous tokens that the penalties consider.

    Raises:
        InvalidOptionError: An argument is invalid or not supported; names the argument.
    """
    usual = {"suffix": None, "stopping_criteria": None, "logits_processor": None, "tfs_z": 1.0}
    for name, value in (usual | {"mirostat_mode": 0}).items():
        refuse_unless(name, asked.get(name, value), (value,))
    max_tokens, bias = asked["max_tokens"], asked["logit_bias"] or {}
    given = {name: asked[name] for name in SAMPLING if name in asked} | {
        "top_k": max(asked["top_k"], 0),
        "penalty_last_n": last_n,
        "seed": seed,
        "max_tokens": None if max_tokens is None or max_tokens <= 0 else max_tokens,
        "stop": asked["stop"] or (),
    }
    try:
        given["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError):
        allowed = "a mapping from token ids to numbers"
        raise InvalidOptionError("logit_bias", bias, allowed) from None
    # a `LlamaGrammar` has its GBNF text in a private field
    given["grammar"] = getattr(asked["grammar"], "_grammar", asked["grammar"])
    if not isinstance(given["grammar"], (str, type(None))):
        raise InvalidOptionError("grammar", asked["grammar"], "a LlamaGrammar or text in GBNF")
    return CompatSampling(**given)


def pooling_named(number: int, header: Header) -> str:
    """Return the pooling with llama.cpp's number.

    Args:
        number: The number; -1 takes that of the file, otherwise 0.
        header: Header of the model.

    Raises:
        InvalidOptionError: There is no such pooling.
    """
    if number == -1:
        of_file = header.of_architecture("pooling_type")
        number = of_file if isinstance(of_file, int) and 0 <= of_file < len(POOLING) else 0
    if not (isinstance(number, int) and 0 <= number < len(POOLING)):
        names = ", ".join(f"{i} ({name})" for i, name in enumerate(POOLING))
        raise InvalidOptionError("pooling_type", number, f"-1, {names}")
    return POOLING[number]


def schema_of(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the JSON schema that the answer must match, or None.

    Args:
        response_format: `{"type": "text"}`, `{"type": "json_object"}`, with or without a `schema`,
            or OpenAI's `json_schema`.

    Raises:
        InvalidOptionError: `response_format` has another form.
    """
    kind = (response_format or {"type": "text"}).get("type")
    if not response_format or kind == "text":
        return None
    schema: Any = response_format.get("schema", {"type": "object"})
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    if kind not in ("json_object", "json_schema") or not isinstance(schema, Mapping):
        shown = json.dumps(response_format, default=repr)[:200]
        allowed = (
            '{"type": "json_object"}, with or without a "schema", '
            'or {"type": "json_schema", "json_schema": {"schema": {...}}}'
        )
        raise InvalidOptionError("response_format", shown, allowed)
    return schema


# Name that llama-cpp-python gives to the template of a file if it has no other name for it.
_OWN_FORMAT = "chat_template.default"
Tool = Mapping[str, Any]


def metadata_texts(metadata: Mapping[str, object]) -> dict[str, str]:
    """Return the single values of the metadata as texts, formatted as llama.cpp does."""
    found = {}
    for key, value in metadata.items():
        if isinstance(value, bool):
            found[key] = str(value).lower()
        elif isinstance(value, (str, int, float)):
            found[key] = f"{value:f}" if isinstance(value, float) else str(value)
    return found


def check_chat_format(name: str | None, metadata: dict[str, str]) -> str | None:
    """Return the name of the chat template of the file; None if the file has none.

    Raises:
        InvalidOptionError: `name` is another template.
    """
    template = metadata.get("tokenizer.chat_template")
    own = (guess_chat_format_from_gguf_metadata(metadata) or _OWN_FORMAT) if template else None
    if name is not None and (own is None or name not in (own, _OWN_FORMAT)):
        allowed = f"{own!r} or None: only the template in the file is supported"
        if own is None:
            allowed = "None: the file has no chat template"
        raise InvalidOptionError("chat_format", name, allowed, "omit chat_format.")
    return own


def as_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with their contents as plain text.

    Text parts are joined; a missing content becomes an empty text. Arguments of calls become
    objects, as chat templates read them.

    Raises:
        InvalidOptionError: A part is not text, such as an image.
    """
    found = []
    for message in messages:
        found.append({**message, "content": _content(message.get("content"))})
        if message.get("tool_calls"):
            found[-1]["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return found


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (TypeError, ValueError, RecursionError):
        arguments = function["arguments"]
    return {**call, "function": {**function, "arguments": arguments}}


def _content(content: Any) -> Any:
    if content is None:
        return ""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    texts = []
    for part in content:
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        text = part.get("text") if is_text else part
        if not isinstance(text, str):
            allowed = 'text, or parts such as {"type": "text", "text": "..."}'
            hint = "remove parts that are not text, such as images."
            raise InvalidOptionError("messages", part, allowed, hint)
        texts.append(text)
    return "".join(texts)


def n_logprobs(logprobs: bool | int | None, top_logprobs: int | None) -> int | None:
    """Return the number of alternatives to report per token; None for no log-probabilities.

    LangChain passes this number as `logprobs`.

    Raises:
        InvalidOptionError: Alternatives are requested without log-probabilities.
    """
    if logprobs is None or logprobs is False:
        if top_logprobs:
            allowed = "None unless logprobs is True"
            raise InvalidOptionError("top_logprobs", top_logprobs, allowed, "set logprobs=True.")
        return None
    return (top_logprobs or 0) if logprobs is True else logprobs


def as_tools(
    functions: Sequence[Tool] | None,
    function_call: str | Tool | None,
    tools: Sequence[Tool] | None,
    tool_choice: str | Tool | None,
) -> tuple[list[Tool], Tool | None]:
    """Convert the tool arguments of a chat call.

    `functions` and `function_call` are the older form of `tools` and `tool_choice`.

    Returns:
        The tools for the prompt, and the function that the model must call, or None.

    Raises:
        InvalidOptionError: An argument is not supported; names the argument.
    """
    name, choice = (
        ("tool_choice", tool_choice) if function_call is None else ("function_call", function_call)
    )
    shown: list[Tool] = [
        *({"type": "function", "function": function} for function in functions or ()),
        *(tools or ()),
    ]
    if not isinstance(choice, Mapping):
        if choice not in (None, "none", "auto"):
            allowed = "'none', 'auto' or a mapping with the name of one tool"
            raise InvalidOptionError(name, choice, allowed)
        return ([] if choice == "none" else shown), None
    wanted = choice.get("function", choice).get("name")
    called = next((tool["function"] for tool in shown if tool["function"]["name"] == wanted), None)
    if called is None:
        names = ", ".join(str(tool["function"]["name"]) for tool in shown)
        raise InvalidOptionError(name, wanted, f"one of the given tools: {names}")
    return shown, called
