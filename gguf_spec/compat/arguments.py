"""What the arguments of `llama_cpp.Llama` mean here. What cannot be honoured is refused by name, never passed over."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import InvalidOptionError
from ..llama.options import KV_TYPES
from ..sampling.chain import CompatSampling

ANY_SEED = (-1, 0xFFFFFFFF)  # what llama.cpp takes for: draw one
_F16 = KV_TYPES["f16"][0]

# They change no text, and what they tune is tuned here in its own way.
HINTS = {"n_batch", "n_ubatch", "no_perf", "logits_all", "n_parts"}
# Arguments of the constructor -> the values that ask for nothing unusual. Of the two for RoPE the second is what LangChain passes where nobody
# asked for anything; followed to the letter it would spoil every model that was trained with another.
USUAL: dict[str, tuple[object, ...]] = {
    "split_mode": (1,), "main_gpu": (0,), "tensor_split": (None,), "vocab_only": (False,), "use_mmap": (True,), "use_mlock": (False,),
    "kv_overrides": (None,), "rope_scaling_type": (-1, None), "pooling_type": (-1,), "attention_type": (-1,), "rope_freq_base": (0.0, 10000.0),
    "rope_freq_scale": (0.0, 1.0), "yarn_ext_factor": (-1.0,), "yarn_attn_factor": (1.0,), "yarn_beta_fast": (32.0,), "yarn_beta_slow": (1.0,),
    "yarn_orig_ctx": (0,), "embedding": (False,), "offload_kqv": (True,), "op_offload": (None,), "swa_full": (None,), "lora_base": (None,),
    "numa": (False,), "chat_handler": (None,), "draft_model": (None,), "tokenizer": (None,), "spm_infill": (False,), "f16_kv": (True,),
}  # fmt: skip
_HINTS_OF_ERRORS = {
    "draft_model": "name a draft with draft_model_path=FILE, or draft from the text alone with draft_model_path='ngram'.",
    "embedding": "keep llama_cpp.Llama for embeddings.",
    "f16_kv": "give type_k and type_v.",
}
_NAMES_HERE = {
    "gpu_layers": "n_gpu_layers", "threads": "n_threads", "kv_type": "type_k", "flash_attention": "flash_attn", "draft": "draft_model_path",
    "lora": "lora_path",
}  # fmt: skip


def check_constructor(others: Mapping[str, Any]) -> None:
    """Refuse arguments of the constructor that ask for what cannot be had here.

    Raises:
        InvalidOptionError: Names the argument.
    """
    for name, value in others.items():
        if name in HINTS:
            continue
        if name not in USUAL:
            raise InvalidOptionError(
                name, value, "left out: Llama has no such argument", "check how it is spelled."
            )
        refuse_unless(name, value, USUAL[name])


def refuse_unless(name: str, value: object, usual: Sequence[object]) -> None:
    """Refuse a value of an argument that is none of the usual ones.

    Raises:
        InvalidOptionError: Names the argument.
    """
    if not any(value is one or (one is not None and value == one) for one in usual):
        allowed = " or ".join(repr(one) for one in usual)
        raise InvalidOptionError(
            name,
            value,
            f"{allowed}: nothing else can be had here",
            _HINTS_OF_ERRORS.get(name, f"leave {name} out."),
        )


def kv_type(type_k: int | None, type_v: int | None) -> str:
    """Return the name of the cache's number type, which is one for keys and values.

    Raises:
        InvalidOptionError: They differ, or it is none that the cache can have.
    """
    numbers = {number: name for name, (number, _) in KV_TYPES.items()}
    k, v = (_F16 if number is None else number for number in (type_k, type_v))
    for name, number in (("type_k", k), ("type_v", v)):
        if number not in numbers:
            raise InvalidOptionError(
                name,
                number,
                "one of " + ", ".join(f"{n} ({name})" for n, name in sorted(numbers.items())),
            )
    if k != v:
        raise InvalidOptionError("type_v", type_v, f"that of type_k, {k}", "give both the same.")
    return numbers[k]


@contextmanager
def named_as_there() -> Iterator[None]:
    """Let errors of `gguf_spec.load` name the arguments of `Llama`."""
    try:
        yield
    except InvalidOptionError as error:
        name = _NAMES_HERE.get(error.option)
        if name:
            error.args = (str(error).replace(error.option, name, 1),)
            error.option, error.hint = name, f"leave {name} out to take its default."
        raise


def to_sampling(asked: Mapping[str, Any], *, seed: int | None, last_n: int) -> CompatSampling:
    """Return the sampling that a call asks for.

    Args:
        asked: Its arguments, all of them.
        seed: The seed to take.
        last_n: How many tokens the penalties look at.

    Raises:
        InvalidOptionError: Names the argument.
    """
    for name, usual in (
        ("suffix", None),
        ("stopping_criteria", None),
        ("logits_processor", None),
        ("tfs_z", 1.0),
        ("mirostat_mode", 0),
    ):
        refuse_unless(name, asked.get(name, usual), (usual,))
    max_tokens, stop, bias = asked["max_tokens"], asked["stop"], asked["logit_bias"]
    return CompatSampling(
        temperature=asked["temperature"], top_p=asked["top_p"], min_p=asked["min_p"], typical_p=asked["typical_p"], top_k=max(asked["top_k"], 0),
        frequency_penalty=asked["frequency_penalty"], presence_penalty=asked["presence_penalty"], repeat_penalty=asked["repeat_penalty"],
        penalty_last_n=last_n, seed=seed, max_tokens=None if max_tokens is None or max_tokens <= 0 else max_tokens, stop=stop or (),
        logit_bias=_to_bias(bias or {}), logprobs=asked["logprobs"], grammar=_to_gbnf(asked["grammar"]), json_schema=asked.get("json_schema"),
    )  # fmt: skip


def _to_bias(bias: Mapping[Any, float]) -> dict[int, float]:
    try:
        return {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError):
        raise InvalidOptionError(
            "logit_bias", bias, "a mapping from token ids to numbers"
        ) from None


def _to_gbnf(grammar: object) -> str | None:
    """Return the text of a grammar; a `LlamaGrammar` holds it in a private field."""
    text = getattr(grammar, "_grammar", grammar)
    if not (text is None or isinstance(text, str)):
        raise InvalidOptionError("grammar", grammar, "a LlamaGrammar or text in GBNF")
    return text


def schema_of(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the JSON schema that an answer is to follow, or None.

    Args:
        response_format: `{"type": "text"}`, `{"type": "json_object"}`, with or without a `schema`, or OpenAI's `json_schema`.

    Raises:
        InvalidOptionError: It is something else.
    """
    kind = (response_format or {"type": "text"}).get("type")
    if not response_format or kind == "text":
        return None
    schema: Any = response_format.get("schema", {"type": "object"})
    if kind == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    if kind not in ("json_object", "json_schema") or not isinstance(schema, Mapping):
        shown = json.dumps(response_format, default=repr)[:200]
        allowed = '{"type": "json_object"}, with or without a "schema", or {"type": "json_schema", "json_schema": {"schema": {...}}}'
        raise InvalidOptionError("response_format", shown, allowed)
    return schema
