"""Fields of requests that other servers and their clients know: one rule and one table.

A field that asks for nothing is taken. One that asks for something that is not done is taken, too,
and named once in the log and in the header `x-not-applied` of the answer; the same holds for fields
that nobody knows. Only what would change the meaning of the answer is refused.

docs/server-fields.md and the OpenAPI description are generated from the tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple

from .errors import LOG, ApiError

NOT_APPLIED = "x-not-applied"  # header of answers
# Names of the fields of the running request that are not applied; None outside of a request.
NOTED: ContextVar[list[str] | None] = ContextVar("noted", default=None)
# A name that may be in the log: others may be data of a client.
_NAME = re.compile(r"[A-Za-z_][\w.\-\[\]]{0,79}")
_MOST_NAMES = 1000
_named: set[str] = set()
_taken: set[tuple[str, str]] = set()


def note(at: str, reason: str = "") -> None:
    """Name a field that is not applied: once in the log, and in the header of the answer.

    `at` is its place in the request, such as `messages[0].audio`; `reason` says what holds instead.
    """
    name = re.sub(r"\[\d+\]", "[]", at)
    if not _NAME.fullmatch(name):
        name = re.sub(r"\.?[^.]*$", "", name)
        name = name if _NAME.fullmatch(name) else "a field with an odd name"
    noted = NOTED.get()
    if noted is not None and name not in noted and len(noted) < 20:
        noted.append(name)
    if name not in _named and len(_named) < _MOST_NAMES:
        _named.add(name)
        why = f": {reason}" if reason else "."
        LOG.warning("The field %s of a request has no effect%s", name, why)


def note_taken(at: str, name: str, meant: str) -> None:
    """Say once in the log that a known name of another API is taken as one that is here."""
    if (at, name) not in _taken:
        _taken.add((at, name))
        LOG.warning("The value %s of the field %s is taken as %s.", name, at, meant)


Route = Literal["chat", "text", "responses", "messages"]
ROUTES: tuple[Route, ...] = ("chat", "text", "responses", "messages")


class OtherField(NamedTuple):
    """A field of another API that this server has no function for.

    Attributes:
        reason: Why the neutral values change nothing, or what holds instead.
        neutral: Values that ask for nothing; None if no value asks for anything.
        is_refused: Whether other values would change the meaning of the answer.
    """

    reason: str
    neutral: tuple[Any, ...] | None = None
    routes: tuple[Route, ...] = ROUTES
    is_refused: bool = False

    def is_neutral(self, value: Any) -> bool:
        return self.neutral is None or any(same(value, one) for one in self.neutral)

    def take(self, value: Any, at: str) -> None:
        """Take a value; refuse it where it would change the meaning of the answer."""
        if self.is_neutral(value):
            return
        if self.is_refused:
            but = "".join(f" but for {json.dumps(one)}" for one in self.neutral or ())
            fact = f"{at} is not supported{but}. {self.reason}"
            raise ApiError(fact.rstrip(), at, "unsupported_parameter")
        note(at, self.reason)


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: unlike in Python, true is not 1."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def without_effect(fields: Mapping[str, OtherField]) -> dict[str, Any]:
    """Return the schemas of the fields of other APIs that are accepted without effect."""
    return {
        name: {"description": f"No effect. {one.reason}"}
        | ({"enum": list(one.neutral or (None,))} if one.is_refused else {})
        for name, one in fields.items()
    }


_CHAT: tuple[Route, ...] = ("chat",)
_OPENAI: tuple[Route, ...] = ("chat", "text")
_RESPONSES: tuple[Route, ...] = ("responses",)
_MESSAGES: tuple[Route, ...] = ("messages",)
_CHATS: tuple[Route, ...] = ("chat", "responses", "messages")


def _any(reason: str, *names: str, routes: tuple[Route, ...] = ROUTES) -> dict[str, OtherField]:
    return dict.fromkeys(names, OtherField(reason, None, routes))


def _noted(
    reason: str, routes: tuple[Route, ...] = ROUTES, **neutral: tuple[Any, ...]
) -> dict[str, OtherField]:
    return {name: OtherField(reason, values, routes) for name, values in neutral.items()}


def _refused(
    reason: str, routes: tuple[Route, ...] = ROUTES, **neutral: tuple[Any, ...]
) -> dict[str, OtherField]:
    return {name: OtherField(reason, values, routes, True) for name, values in neutral.items()}


_NOTHING: tuple[Any, ...] = ("", [], {}, False)
# Field -> its description.
OTHER_FIELDS: dict[str, OtherField] = {
    # OpenAI
    **_any("Identifies the user of the client.", "user", "safety_identifier"),
    **_any("Data for the records of the API.", "metadata", routes=("chat", "text", "messages")),
    **_any("Nothing is stored.", "store", routes=_OPENAI),
    **_any("Answers have one priority.", "service_tier"),
    **_any("Identifies the request in the log of the client.", "request_id", "rid"),
    **_any(
        "Prompts are always cached.",
        *("prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "cache_prompt"),
        *("n_cache_reuse", "cache_salt", "cache_control"),
    ),
    **_any("Drafts come from the draft model and the text.", "prediction", routes=_CHAT),
    **_noted("The model decides on the length.", _CHAT, verbosity=("medium",)),
    **_refused("Answers are text.", _CHAT, modalities=(["text"],), audio=({},)),
    **_refused("Use `tools`.", _CHAT, functions=([],)),
    **_refused("Use `tool_choice`.", _CHAT, function_call=("none", "auto")),
    **_refused("Nothing is searched.", _CHAT, web_search_options=()),
    **_refused("No such check is made.", _CHATS, moderation=(), safeguards=()),
    # Responses
    **_any("Data for the records of the client.", "client_metadata", routes=_RESPONSES),
    **_any("It counts built-in tools.", "max_tool_calls", routes=_RESPONSES),
    **_refused("Use previous_response_id.", _RESPONSES, conversation=()),
    **_refused("Send input and instructions.", _RESPONSES, prompt=({},)),
    # Anthropic
    **_any(
        "Answers are made on this machine.",
        *("inference_geo", "speed", "betas", "anthropic_version", "anthropic_beta"),
        routes=_MESSAGES,
    ),
    **_any("Nothing is removed.", "context_management", routes=("responses", "messages")),
    **_refused("There are no built-in tools.", _MESSAGES, mcp_servers=([],), container=("", {})),
    # llama-server
    **_any("The slot with the longest known prefix is taken.", "id_slot", "slot_id"),
    **_any("`usage` has the counts.", "timings_per_token", routes=_MESSAGES),
    **_any("A connection is kept by events.", "sse_ping_interval"),
    **_any("Mirostat sampling is off.", "mirostat_tau", "mirostat_eta"),
    **_any("The temperature is constant.", "dynatemp_exponent"),
    **_noted("The temperature is constant.", dynatemp_range=(0,), dynamic_temperature=(False,)),
    **_noted("The sampler is not there.", mirostat=(0,), mirostat_mode=(0,), tfs_z=(1,), tfs=(1,)),
    **_noted("Use `logprobs`.", ("responses", "messages"), n_probs=(0,)),
    **_noted("Use `logprobs`.", post_sampling_probs=(False,)),
    **_noted("Samplers keep one token.", min_keep=(0, 1)),
    **_noted("Where the context is full the answer ends.", n_keep=(0,), n_discard=(0,)),
    **_noted("It is not sent.", return_tokens=(False,)),
    **_noted("It is not sent.", _MESSAGES, return_progress=(False,)),
    **_noted("Reasoning has a field of its own.", reasoning_format=("auto", "deepseek")),
    **_noted("Calls are always read.", parse_tool_calls=(True,), verbose=(False,)),
    **_refused("Adapters are chosen when a model is loaded.", lora=([],), lora_path=()),
    # vLLM, SGLang
    **_any("Requests are answered in order of arrival.", "priority"),
    **_any(
        "It concerns how servers share work.",
        *("kv_transfer_params", "vllm_xargs", "mm_processor_kwargs", "stream_reasoning"),
        *("bootstrap_host", "bootstrap_port", "bootstrap_room", "data_parallel_rank"),
    ),
    **_noted("Reasoning has a field of its own.", include_reasoning=(True,)),
    **_noted("Reasoning has a field of its own.", separate_reasoning=(True,)),
    **_noted("Special tokens have no text.", skip_special_tokens=(True,)),
    **_noted("Special tokens have no text.", spaces_between_special_tokens=(True, False)),
    **_noted("The chat template writes the special tokens.", add_special_tokens=(False, True)),
    **_noted("An answer may have any length.", min_tokens=(0,), min_length=(0,)),
    **_noted("There is no beam search.", use_beam_search=(False,), length_penalty=(1,)),
    **_noted("There is no beam search.", num_beams=(1,), early_stopping=(False,)),
    **_noted("It is not sent.", return_token_ids=(False,), return_tokens_as_token_ids=(False,)),
    **_noted("It is not sent.", return_hidden_states=(False,), return_routed_experts=(False,)),
    **_noted("Repeated texts do not end an answer.", max_repetition_pattern_size=(0,)),
    **_noted("Stop strings are left out.", no_stop_trim=(False,)),
    **_refused("Stop strings are left out.", include_stop_str_in_output=(False,)),
    **_refused("An answer is a new message.", _CHAT, echo=(False,)),
    **_refused("The template of the model is used.", _CHAT, chat_template=("",), documents=([],)),
    **_refused("A prompt that is too long is an error.", truncate_prompt_tokens=(-1,)),
    **_refused("Probabilities of the prompt are not sent.", _CHATS, prompt_logprobs=(False,)),
    **_refused("Use `logit_bias`.", allowed_token_ids=([],), bad_words=([],)),
    **_refused("Use `logit_bias`.", logits_processors=([],), custom_logit_processor=("",)),
    **_refused(
        "Use `response_format` or `grammar` (GBNF).",
        **dict.fromkeys(("regex", "ebnf", "guided_regex", "guided_grammar"), _NOTHING),
        **dict.fromkeys(("guided_choice", "structured_outputs", "structural_tag"), _NOTHING),
    ),
    **_any("It concerns `guided_json` only.", "guided_decoding_backend"),
    **_any("It concerns `guided_json` only.", "guided_whitespace_pattern"),
    # OpenRouter, LiteLLM, LM Studio
    **_any(
        "There is one server.",
        *("provider", "route", "models", "transforms", "plugins", "preset", "session_id", "trace"),
        *("drop_params", "custom_llm_provider", "api_base", "num_retries", "timeout", "ttl"),
        *("allowed_openai_params", "extra_headers", "extra_body", "caching", "tags", "debug"),
    ),
    **_any("`usage` is in each answer.", "usage"),
    **_any("Use `response_format`.", "structured_outputs_enabled"),
    **_noted("The sampler is not there.", top_a=(0,), penalty_alpha=(0,), typical_a=(0,)),
    # text-generation-webui and the user interfaces of its kind
    **_any(
        "It is a setting of another program.",
        *("mode", "character", "instruction_template", "preset_name", "do_sample", "name1"),
        *("name2", "user_bio", "greeting", "chat_instruct_command", "truncation_length"),
        *("auto_max_new_tokens", "prompt_lookup_num_tokens", "static_cache", "custom_token_bans"),
        *("temperature_last", "sampler_priority", "sampler_order", "sampler_seed", "num_ctx"),
        *("dynatemp_low", "dynatemp_high", "dynamic_temperature_low", "smoothing_curve"),
    ),
    **_noted("The sampler is not there.", epsilon_cutoff=(0,), eta_cutoff=(0,), nsigma=(0, -1)),
    **_noted("The sampler is not there.", smoothing_factor=(0,), no_repeat_ngram_size=(0,)),
    **_noted("The sampler is not there.", guidance_scale=(1,), encoder_repetition_penalty=(1,)),
    **_noted("The penalty counts all tokens.", repetition_penalty_range=(0, -1)),
    **_noted("Use `chat_template_kwargs`.", negative_prompt=("",)),
    **_noted("The chat template begins the text.", add_bos_token=(True,)),
}
# Field of another server -> the same field here.
OTHER_NAMES = {
    "max_completion_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "typ_p": "typical_p",
    "ban_eos_token": "ignore_eos",
    "stop_token_ids": "stop_tokens",
    "grammar_string": "grammar",
}
# Fields of messages and blocks that change nothing: identifiers and marks of servers and clients.
IGNORED_FIELDS = (
    "annotations", "cache_control", "id", "index", "status", "timestamp", "weight", "phase",
    "reasoning_details", "provider_specific_fields", "extra_content", "thinking_blocks",
)  # fmt: skip

# ---- Ollama's options

_AT_START = "The options of `serve` set it when a model is loaded."
OLLAMA_OPTIONS = {
    **_any(
        _AT_START,
        *("num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram"),
        *("f16_kv", "logits_all", "vocab_only", "use_mmap", "use_mlock", "embedding_only"),
        *("keep_alive", "draft_num_predict"),
    ),
    **_any("Where the context is full the answer ends.", "num_keep"),
    **_any("Mirostat sampling is off.", "mirostat_tau", "mirostat_eta"),
    **_noted("Penalties count all tokens.", penalize_newline=(True,)),
    **_noted("The sampler is not there.", mirostat=(0,), tfs_z=(1,)),
}

# ---- reasoning

# Names of the budget of reasoning, of llama-server, vLLM, Qwen and others.
BUDGETS = (
    "thinking_budget", "thinking_budget_tokens", "thinking_token_budget", "reasoning_budget",
    "reasoning_budget_tokens", "reasoning_tokens",
)  # fmt: skip


def budget(value: Any, at: str) -> dict[str, Any]:
    """Return a number of reasoning tokens; -1 is no limit."""
    value = whole(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value <= 10**9:
        fact = f"{at} must be a whole number of tokens, or -1 for no limit, as think_budget."
        raise ApiError(fact, at, "invalid_value")
    return {"budget": value}


def _thinking(value: Any, at: str) -> dict[str, Any]:
    """Return `thinking`: whether the model reasons, or an object as at Anthropic and DeepSeek."""
    if isinstance(value, bool):
        return {"think": value}
    kinds: dict[Any, bool | None] = {"enabled": True, "disabled": False, "adaptive": None}
    kinds |= {"auto": None, None: None}
    kind = value.get("type") if isinstance(value, dict) else []
    if isinstance(kind, (list, dict)) or kind not in kinds:
        fact = f"{at} must be true, false, or an object of the type enabled, disabled or adaptive."
        raise ApiError(f"{fact} Here: reasoning_effort and think_budget.", at, "invalid_value")
    for name in value.keys() - {"type", "budget_tokens", "display", "clear_thinking"}:
        note(f"{at}.{name}")
    tokens = value.get("budget_tokens")
    found = {} if tokens is None else budget(tokens, f"{at}.budget_tokens")
    return found if kinds[kind] is None else found | {"think": kinds[kind]}


def _reasoning(value: Any, at: str) -> dict[str, Any]:
    """Return `reasoning` of OpenRouter."""
    if isinstance(value, bool):
        return {"think": value}
    if not isinstance(value, dict):
        fact = f"{at} must be an object with effort, max_tokens or enabled."
        raise ApiError(f"{fact} Here: reasoning_effort and think_budget.", at, "invalid_value")
    found: dict[str, Any] = {}
    for name, one in value.items():
        if one is None or (name == "exclude" and one is False):
            continue
        if name == "effort":
            found["effort"] = one
        elif name == "max_tokens":
            found |= budget(one, f"{at}.{name}")
        elif name == "enabled" and isinstance(one, bool):
            found["think"] = one
        elif name not in ("summary", "generate_summary"):
            note(f"{at}.{name}", "Reasoning has a field of its own.")
    return found


def _switch(value: Any, at: str) -> dict[str, Any]:
    if not isinstance(value, bool):
        fact = f"{at} must be true or false. Here: reasoning_effort and chat_template_kwargs."
        raise ApiError(fact, at, "invalid_value")
    return {"think": value}


# Field about reasoning -> what reads it, on the routes of chats.
REASONING_FIELDS = {
    **dict.fromkeys(BUDGETS, budget),
    **dict.fromkeys(("enable_thinking", "enable_reasoning"), _switch),
    "thinking": _thinking,
    "reasoning": _reasoning,
}


# ---- numbers


def whole(value: Any) -> Any:
    """Return a whole number that is written as 40.0 as 40, and all other values as they are."""
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if is_whole else value
