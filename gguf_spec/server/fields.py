"""Fields of bodies that ask for an answer: those of all APIs, and tables of fields from other APIs.

Fields of other APIs are without effect here, refused, or have another name. docs/server.md and the
OpenAPI description are generated from these tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ..options import SAMPLING, SPECULATION, Sampling
from .errors import ApiError, invalid_value, unknown
from .schema import FLAG, TEXT, Shape, array_of, given, object_of, whole_number

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
# Field -> its description. Fields without an accepted value are refused by name.
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


# Limits: number of stop strings, characters of one, alternatives per token (logprobs), choices.
STOPS_MAX, STOP_LENGTH_MAX, TOP_LOGPROBS_MAX, CHOICES_MAX = 16, 256, 20, 128
STOP_FACT = (
    f"must be a string of at most {STOP_LENGTH_MAX} characters, "
    f"or an array of at most {STOPS_MAX} of them."
)
# Fields of `Sampling` that a body may hold under the same name.
SAME = tuple(name for name, rule in SAMPLING.items() if rule.in_requests)
LOGPROBS = whole_number(0, TOP_LOGPROBS_MAX)


def _stops(value: Any, at: str) -> tuple[str, ...]:
    """Return the stop strings; empty strings, which stop nothing, are left out."""
    some = [value] if isinstance(value, str) else value
    if (
        not isinstance(some, list)
        or len(some) > STOPS_MAX
        or not all(isinstance(stop, str) and len(stop) <= STOP_LENGTH_MAX for stop in some)
    ):
        raise invalid_value(at, STOP_FACT)
    return tuple(filter(None, some))


def _biases(value: Any, at: str) -> dict[int, Any]:
    if not isinstance(value, dict) or not all(
        token.isdecimal() and len(token) < 10 for token in value
    ):
        raise invalid_value(at, "must be an object from token ids to numbers.")
    return {int(token): bias for token, bias in value.items()}


def _sampling() -> dict[str, Shape]:
    """Return the fields that are those of `Sampling`, whose construction checks them.

    `max_tokens` has no default: it is the server's. -1 and 0 mean as much as the server allows.
    """
    schemas = {name: SAMPLING[name].schema for name in SAME}
    for name in schemas.keys() - {"max_tokens"}:
        if (default := getattr(Sampling, name)) is not None:
            schemas[name] |= {"default": default}
    for name in ("max_tokens", "top_k"):
        schemas[name] = schemas[name] | {"minimum": -1}
    return {name: given(schema) for name, schema in schemas.items()}


_STOP = {"type": "string", "maxLength": STOP_LENGTH_MAX}
STOPS = Shape({"anyOf": [_STOP, array_of(_STOP, STOPS_MAX)]}, _stops)
STOP_SEQUENCES = Shape(array_of(_STOP, STOPS_MAX), _stops)
BIASES = Shape(
    {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": SAMPLING["logit_bias"].schema,
    },
    _biases,
)
_DRAFTING = object_of({f"{name}?": rule.schema for name, rule in SPECULATION.items()})
SHARED: dict[str, Shape] = {
    "model": TEXT,
    "stream": FLAG,
    "stop": STOPS,
    "logit_bias": BIASES,
    "speculation": given({"anyOf": [{"const": "off"}, _DRAFTING]}),
    **_sampling(),
}


def model_of(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the schema of the field `model`; `names` is None for any name."""
    return {"type": "string"} if names is None else {"enum": [*names, ""]}


def without_effect(fields: Mapping[str, OtherField]) -> dict[str, Any]:
    """Return the schemas of the fields of other APIs that are accepted without effect."""
    return {
        name: {"description": f"No effect. {one.reason}"}
        | ({} if one.accepted is None else {"enum": list(one.accepted)})
        for name, one in fields.items()
        if one.accepted is None or one.accepted
    }


class Body(NamedTuple):
    """Description of a body that asks for an answer.

    Attributes:
        route: Its route.
        fields: Descriptions of its fields, without those of other APIs.
        needed: Name of the field that must be there.
    """

    route: Route
    fields: Mapping[str, Shape]
    needed: str

    def read(self, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the fields of a body under their names here, without those that are null.

        Returns:
            The fields, and for those with another name in the body: name here -> name in the body.

        Raises:
            ApiError: A field is invalid, unknown or not supported. The error names the field.
        """
        found, names = self._named(data)
        for name, shape in self.fields.items():
            if name in found or name == self.needed:
                found[name] = shape.read(found.get(name), name)
        return found, names

    def _named(self, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        others = {name: one for name, one in OTHER_FIELDS.items() if self.route in one.routes}
        found: dict[str, Any] = {}
        names: dict[str, str] = {}
        for name, value in data.items():
            if value is None:
                continue
            here = name if name in self.fields else OTHER_NAMES.get(name)
            if here not in self.fields:
                _check_other(name, value, others)
                continue
            assert here
            if here != name:
                names[here] = name
            if here in found and not same(found[here], value):
                raise invalid_value(here, f"differs from {names.get(here, name)}.")
            found[here] = value
        return found, names

    def schema(self, names: tuple[str, ...] | None) -> dict[str, Any]:
        """Return the JSON schema; `names` are those of the models, None for any name."""
        others = {name: one for name, one in OTHER_FIELDS.items() if self.route in one.routes}
        own = dict(self.fields) | {"model": given(model_of(names))}
        own |= {name: own[here] for name, here in OTHER_NAMES.items() if here in own}
        optional = {f"{name}?": one for name, one in (without_effect(others) | own).items()}
        needed = optional.pop(f"{self.needed}?")
        return object_of(optional | {self.needed: needed})


def _check_other(name: str, value: Any, others: dict[str, OtherField]) -> None:
    if name not in others:
        raise unknown(name[:100])
    if not others[name].accepts(value):
        allowed = "".join(f" but for {json.dumps(one)}" for one in others[name].accepted or ())
        raise ApiError(f"{name} is not supported{allowed}.", name, "unsupported_parameter")


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: unlike in Python, true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)
