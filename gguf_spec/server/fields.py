"""Tables of request fields from other APIs: without effect here, refused, or with another name.

docs/server.md and the OpenAPI description are generated from these tables.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from .errors import ApiError, bad, unknown

Route = Literal["chat", "text", "responses", "messages"]
ROUTES: tuple[Route, ...] = ("chat", "text", "responses", "messages")


class OtherField(NamedTuple):
    """A field of another API that this server has no function for.

    Attributes:
        reason: Why the accepted values change nothing, for the documentation.
        accepted: Values that change nothing; None if no value changes the answer.
        routes: Routes that know the field.
    """

    reason: str
    accepted: tuple[Any, ...] | None = None
    routes: tuple[Route, ...] = ROUTES

    def accepts(self, value: Any) -> bool:
        """Return whether a value changes nothing."""
        if self.accepted is None:
            return True
        return any(same(value, one) for one in self.accepted)


_CHAT: tuple[Route, ...] = ("chat",)
_OPENAI: tuple[Route, ...] = ("chat", "text")
_RESPONSES: tuple[Route, ...] = ("responses",)
_MESSAGES: tuple[Route, ...] = ("messages",)
# Field -> what it is here. Fields without an accepted value are refused by name.
OTHER_FIELDS: dict[str, OtherField] = {
    "user": OtherField("Identifies the user of the client."),
    "safety_identifier": OtherField("Identifies the user of the client."),
    "metadata": OtherField("Data for the records of the API.", None, ("chat", "text", "messages")),
    "store": OtherField("Nothing is stored.", None, _OPENAI),
    "service_tier": OtherField("There is one tier."),
    "priority": OtherField("Requests are answered in order of arrival."),
    "request_id": OtherField("Identifies the request in the log of the client."),
    "prompt_cache_key": OtherField("Prompts are always cached."),
    "prompt_cache_retention": OtherField("Prompts are always cached."),
    "prompt_cache_options": OtherField("Prompts are always cached."),
    "cache_prompt": OtherField("Prompts are always cached."),
    "id_slot": OtherField("The slot with the longest known prefix is taken."),
    "timings_per_token": OtherField("`usage` has the times."),
    "prediction": OtherField("Drafts come from the draft model and the text.", None, _CHAT),
    "modalities": OtherField("Answers are text.", (["text"],), _CHAT),
    "verbosity": OtherField("`medium` is OpenAI's default.", ("medium",), _CHAT),
    "functions": OtherField("Use `tools`.", ([],), _CHAT),
    "function_call": OtherField("Use `tool_choice`.", ("none", "auto"), _CHAT),
    "add_generation_prompt": OtherField("An answer is a new message.", (True,), _CHAT),
    "continue_final_message": OtherField("An answer is a new message.", (False,), _CHAT),
    "skip_special_tokens": OtherField("Special tokens have no text.", (True,)),
    "min_tokens": OtherField("An answer may have any length.", (0,)),
    "length_penalty": OtherField("There is no beam search.", (1,)),
    "use_beam_search": OtherField("There is no beam search.", (False,)),
    "mirostat": OtherField("Mirostat sampling is off.", (0,)),
    "mirostat_tau": OtherField("Mirostat sampling is off."),
    "mirostat_eta": OtherField("Mirostat sampling is off."),
    "dynatemp_range": OtherField("The temperature is constant.", (0,)),
    "dynatemp_exponent": OtherField("The temperature is constant."),
    "tfs_z": OtherField("There is no tail-free sampling.", (1,)),
    "n_probs": OtherField("Use `logprobs`.", (0,)),
    "background": OtherField("An answer is awaited.", (False,), _RESPONSES),
    "max_tool_calls": OtherField("It counts built-in tools.", None, _RESPONSES),
    "cache_control": OtherField("Prompts are always cached.", None, _MESSAGES),
    "inference_geo": OtherField("Answers are made on this machine.", None, _MESSAGES),
    "speed": OtherField("There is one speed.", None, _MESSAGES),
    "context_management": OtherField("Nothing is removed.", ([],), ("responses", "messages")),
    "mcp_servers": OtherField("There are no built-in tools.", ([],), _MESSAGES),
    "audio": OtherField("", (), _CHAT),
    "conversation": OtherField("", (), _RESPONSES),
    "prompt": OtherField("", (), _RESPONSES),
    "container": OtherField("", (), _MESSAGES),
    "moderation": OtherField("", (), ("chat", "responses")),
    "web_search_options": OtherField("", (), _CHAT),
}
# Field of llama-server, vLLM or Hugging Face -> the same field here.
OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "typ_p": "typical_p",
}


def of_route(route: Route) -> dict[str, OtherField]:
    """Return the other fields that a route knows."""
    return {name: one for name, one in OTHER_FIELDS.items() if route in one.routes}


def read_fields(
    data: dict[str, Any], known: frozenset[str], route: Route
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the known fields of a body under their names here, without those that are null.

    Returns:
        The fields, and for those with another name in the body: name here -> name in the body.

    Raises:
        ApiError: A field is unknown, or has an unsupported value. The error names the field.
    """
    others = of_route(route)
    found: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in data.items():
        if value is None:
            continue
        if name in known:
            here = name
        elif OTHER_NAMES.get(name) in known:
            here = OTHER_NAMES[name]
            names[here] = name
        else:
            _check_other(name, value, others)
            continue
        if here in found and not same(found[here], value):
            raise bad(here, f"differs from {names.get(here, name)}.")
        found[here] = value
    return found, names


def _check_other(name: str, value: Any, others: dict[str, OtherField]) -> None:
    if name not in others:
        raise unknown(name[:100])
    if not others[name].accepts(value):
        allowed = "".join(f" but for {json.dumps(one)}" for one in others[name].accepted or ())
        raise ApiError(f"{name} is not supported{allowed}.", name, "unsupported_parameter")


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: unlike in Python, true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
