"""Fields of Ollama's requests: those with another name here, and those without effect.

docs/server.md and the OpenAPI description are generated from these tables.
"""

from __future__ import annotations

from typing import Any

from ..errors import ApiError, bad, unknown
from ..fields import OtherField, same

# Option of a request of Ollama -> option of `Sampling`.
OPTIONS = {
    "num_predict": "max_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "seed": "seed",
    "stop": "stop",
    "repeat_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
}
_AT_START = "The options of `serve` set it when a model is loaded."
_SAMPLER = "The sampler does not have it; this value switches it off."
# Option -> the values without effect; all others are refused.
OTHER_OPTIONS = {
    **dict.fromkeys(
        (
            "num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram",
            "f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only",
        ),
        OtherField(_AT_START),
    ),
    "num_keep": OtherField("Where the context is full the answer ends."),
    "penalize_newline": OtherField("Penalties count all tokens.", (True,)),
    "mirostat": OtherField(_SAMPLER, (0,)),
    "mirostat_tau": OtherField("Mirostat sampling is off."),
    "mirostat_eta": OtherField("Mirostat sampling is off."),
    "tfs_z": OtherField(_SAMPLER, (1,)),
}  # fmt: skip
# Fields without effect on the answer: a setting of the server decides for all models.
IGNORED = ("keep_alive",)


def known_fields(data: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    """Return the fields of a body that are not null, without those that have no effect.

    Raises:
        ApiError: A field is unknown, or not supported. The error names it.
    """
    found = {}
    for name, value in data.items():
        if value is None or name in IGNORED:
            continue
        if name == "images" and value == []:
            continue
        if name in ("template", "context", "width", "height", "steps") and value:
            raise ApiError(f"{name} is not supported.{_HINTS.get(name, '')}", name, "unsupported")
        if name not in known:
            raise unknown(name[:100])
        found[name] = value
    return found


_HINTS = {
    "template": " The template of the model is used; raw=true uses none.",
    "context": " Send the conversation as messages to /api/chat.",
}


def read_options(value: Any) -> dict[str, Any]:
    """Return the field `options` with the names of OpenAI's requests.

    Raises:
        ApiError: An option is unknown, or has a value that is not supported.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise bad("options", "must be an object.")
    found = {}
    for name, given in value.items():
        if given is None:
            continue
        if name in OPTIONS:
            found[OPTIONS[name]] = given
        elif name not in OTHER_OPTIONS:
            raise unknown(f"options.{name[:100]}")
        elif not OTHER_OPTIONS[name].accepts(given):
            allowed = " or ".join(str(one) for one in OTHER_OPTIONS[name].accepted or ())
            param = f"options.{name}"
            raise ApiError(f"{param} is not supported but for {allowed}.", param, "unsupported")
    return _in_range(found)


def _in_range(options: dict[str, Any]) -> dict[str, Any]:
    """Return options without the values that mean the default at Ollama."""
    if same(options.get("max_tokens"), -2):  # fill the context, as -1
        options["max_tokens"] = -1
    if isinstance(options.get("seed"), int) and options["seed"] < 0:  # draw one
        del options["seed"]
    return options
