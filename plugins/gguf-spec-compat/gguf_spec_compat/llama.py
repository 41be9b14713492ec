"""Interface of `llama_cpp.Llama`, implemented with an `LLM`.

No argument is silently ignored: one that is not supported is an error that names the argument.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format
from llama_cpp import llama_cpp as C
from llama_cpp.llama_chat_format import guess_chat_format_from_gguf_metadata
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from gguf_spec import LLM, Chunk, Completion, Ended, Speculation, Stream, TokenLogprob, load
from gguf_spec.errors import (
    ClosedError,
    ForkedError,
    GgufSpecError,
    InvalidOptionError,
    Option,
    OptionConflictError,
    Pull,
    TextTooLongError,
    in_python,
    written,
)
from gguf_spec.gguf.validation import Header, read_header
from gguf_spec.llama.options import KV_TYPES
from gguf_spec.options import POOLING, SAMPLING
from gguf_spec.registry import download, hub
from gguf_spec.registry.resolve import Part, resolve, split_names
from gguf_spec.sampling.chain import CompatSampling
from gguf_spec.system.process import OfOneProcess
from gguf_spec.text.encoding import encode_texts
from gguf_spec.tools import ToolDeltas, ToolUse, family_of, reads_tools, whole_answer

Dict = dict[str, Any]


class UnsupportedError(GgufSpecError, AttributeError):
    """A method or attribute of `llama_cpp.Llama` that `gguf_spec_compat.Llama` does not have.

    Attributes:
        name: The method or attribute.
    """

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"gguf_spec_compat.Llama has no {name}.", hint)
        self.name = name


ANY_SEED = (-1, 0xFFFFFFFF)  # seeds that mean "draw a random seed" in llama.cpp

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
    "suffix": "for code, give the tokens of gguf_spec's LLM.tokenize_infill as the prompt.",
    "stopping_criteria": "set stop or max_tokens, or set stream=True and stop to read.",
    "logits_processor": "set logit_bias, grammar or response_format.",
    "chat_handler": "images: gguf_spec.load(mmproj=FILE) and LLM.generate(images=[FILE]).",
    "tokenizer": "omit tokenizer: that of the file is used.",
    "local_dir": "omit local_dir: the file comes into the hub's cache.",
    "cache_dir": "set the environment variable HF_HOME.",
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


def _refuse_unless(name: str, value: object, usual: Sequence[object]) -> None:
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
    k, v = (KV_TYPES["f16"][0] if number is None else number for number in (type_k, type_v))
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
        error.hint = written(error.hint, lambda part: _written(part, lacking=True)) or ""
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


def _written(part: Option | Pull, lacking: bool = False) -> str | None:
    """Write an option as an argument of `Llama`; None for one that it lacks, if `lacking`."""
    if lacking and isinstance(part, Option) and part.name in _NOT_HERE:
        return None
    return in_python(_here(part) if isinstance(part, Option) else part)


def _to_sampling(arguments: Mapping[str, Any], *, seed: int | None, last_n: int) -> CompatSampling:
    """Convert the arguments of a call to sampling options.

    Args:
        arguments: All arguments of the call.
        seed: The seed; None draws one.
        last_n: Number of previous tokens that the penalties consider.

    Raises:
        InvalidOptionError: An argument is invalid or not supported; names the argument.
    """
    usual = {"suffix": None, "stopping_criteria": None, "logits_processor": None, "tfs_z": 1.0}
    for name, value in (usual | {"mirostat_mode": 0}).items():
        _refuse_unless(name, arguments.get(name, value), (value,))
    max_tokens, bias = arguments["max_tokens"], arguments["logit_bias"] or {}
    given = {name: arguments[name] for name in SAMPLING if name in arguments} | {
        "top_k": max(arguments["top_k"], 0),
        "penalty_last_n": last_n,
        "seed": seed,
        "max_tokens": None if max_tokens is None or max_tokens <= 0 else max_tokens,
        "stop": arguments["stop"] or (),
    }
    try:
        given["logit_bias"] = {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError):
        allowed = "a mapping from token ids to numbers"
        raise InvalidOptionError("logit_bias", bias, allowed) from None
    # a `LlamaGrammar` has its GBNF text in a private field
    given["grammar"] = getattr(arguments["grammar"], "_grammar", arguments["grammar"])
    if not isinstance(given["grammar"], (str, type(None))):
        raise InvalidOptionError("grammar", arguments["grammar"], "a LlamaGrammar or text in GBNF")
    return CompatSampling(**given)


def _pooling(number: int, header: Header) -> str:
    """Return the pooling with llama.cpp's number; -1 takes that of the file, otherwise 0.

    Raises:
        InvalidOptionError: There is no such pooling.
    """
    if isinstance(number, int) and 0 <= number < len(POOLING):
        return POOLING[number]
    if number == -1:
        of_file = header.of_architecture("pooling_type")
        is_known = isinstance(of_file, int) and 0 <= of_file < len(POOLING)
        return POOLING[of_file if is_known else 0]
    names = ", ".join(f"{i} ({name})" for i, name in enumerate(POOLING))
    raise InvalidOptionError("pooling_type", number, f"-1, {names}")


def _schema_of(response_format: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
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


def _matching(repo_id: str, pattern: str) -> str:
    """Return the file of a repository of the hub whose name matches a pattern.

    Of a split model, it is the first part.

    Raises:
        InvalidOptionError: No file matches, or several models.
        StoreError: The hub cannot be asked.
    """
    entry = resolve(f"hf:{repo_id}/model.gguf")
    with hub.explained(entry, Part(repo_id)):
        _, files = hub.list_files(repo_id)
    names = {split_names(name)[0] for name, *_ in files if fnmatch(name, pattern)}
    if len(names) != 1:
        found = f"{len(names)} models match: {', '.join(sorted(names)[:5])}" if names else "none is"
        hint = "name one file." if names else f"see the files of {repo_id} on the hub."
        raise InvalidOptionError("filename", pattern, f"a pattern of one file; {found}", hint)
    return names.pop()


# Name that llama-cpp-python gives to the template of a file if it has no other name for it.
_OWN_FORMAT = "chat_template.default"
Tool = Mapping[str, Any]


def _chat_format(
    name: str | None, metadata: dict[str, str]
) -> tuple[str | None, Callable[..., Any] | None]:
    """Return the name of the chat template, and what formats messages in place of the file's.

    Raises:
        InvalidOptionError: `name` is neither the template of the file nor one of llama-cpp-python
            that makes one text of messages.
    """
    template = metadata.get("tokenizer.chat_template")
    own = (guess_chat_format_from_gguf_metadata(metadata) or _OWN_FORMAT) if template else None
    if name is None or (own and name in (own, _OWN_FORMAT)):
        return own, None
    spelled = {"vicuna": "format"}.get(name)
    for short in (spelled, f"format_{name}".replace("-", "_"), f"format_{name}".replace("-", "")):
        if formatter := getattr(llama_chat_format, short or "", None):
            return name, formatter
    allowed = f"{own!r} or None" if own else "None"
    allowed += ", or a format of llama-cpp-python such as 'chatml' or 'llama-2'"
    hint = "omit chat_format: answers, tools and images use the template of the file."
    raise InvalidOptionError("chat_format", name, allowed, hint)


def _as_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with their contents as plain text.

    Text parts are joined; a missing content becomes an empty text. Arguments of calls become
    objects, as chat templates read them.

    Raises:
        InvalidOptionError: A part is not text, such as an image.
    """
    found = []
    for message in messages:
        found.append({**message, "content": _content(message.get("content"))})
        calls = [
            {**call, "function": {**call["function"]}} for call in message.get("tool_calls") or ()
        ]
        for call in calls:
            with contextlib.suppress(TypeError, ValueError, RecursionError):
                call["function"]["arguments"] = json.loads(call["function"]["arguments"] or "{}")
        if calls:
            found[-1]["tool_calls"] = calls
    return found


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


def _as_tools(
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


_DECODING = (
    "use generate_tokens or stream_tokens of gguf_spec.LLM, which take token ids; on_token gets "
    "each token."
)
_STATE = "use gguf_spec.load(...).chat() and Chat.save to save a conversation."
_NATIVE = "use llama_cpp.Llama where llama.cpp's own objects are needed."
# Members of `llama_cpp.Llama` that are not supported -> hint for the error.
NOT_HERE = {
    "eval": _DECODING,
    "sample": _DECODING,
    "eval_tokens": _DECODING,
    "eval_logits": _DECODING,
    "n_tokens": _DECODING,
    "input_ids": _DECODING,
    "scores": _DECODING,
    "logits_to_logprobs": "request logprobs in a completion.",
    "save_state": _STATE,
    "load_state": _STATE,
    "ctx": _NATIVE,
    "model": _NATIVE,
}


# Seconds between two looks of a reader whether its thread is still there.
_WAIT_S = 0.25


class Llama(OfOneProcess):
    """`llama_cpp.Llama` with speculation: the same calls, dictionaries and greedy text.

    Requests run one at a time; others wait. Methods may be called from any thread. Errors are those
    of `gguf_spec.errors`.

    Differences from `llama_cpp.Llama`:

    - A seed gives another text, drawn from the same distribution.
    - Log-probabilities do not require `logits_all`.
    - A streamed answer has one part per round, not one per token.
    - A prompt is decoded only from its first difference to the previous one.
    - Arguments that are not supported, such as `use_mlock=True`, `suffix`, `logits_processor` or
      `mirostat_mode`, raise an `InvalidOptionError` that names the argument.
    - Methods that work inside a pass, such as `eval`, `sample` and `save_state`, raise an
      `UnsupportedError` that names the method.

    These arguments are accepted and have no effect: n_ubatch, no_perf, logits_all, n_parts;
    mirostat_tau and mirostat_eta, without mirostat_mode. n_batch only limits embedded texts. The
    RoPE settings that LangChain always passes, rope_freq_base=10000 and rope_freq_scale=1, select
    the settings of the model.

    Attributes:
        model_path: The argument of the constructor, as text.
        metadata: Metadata of the file, with the values as text.
        chat_format: llama-cpp-python's name of the chat template of the file; None without one.
        context_params: Object with `n_ctx`, which LlamaIndex reads.
        verbose: Whether llama.cpp's log goes to stderr.
        cache: The object given to `set_cache`, or None; it is not used.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str],
        *,
        draft_model_path: str | os.PathLike[str] | None = "auto",
        speculation: Speculation | None = None,
        n_gpu_layers: int = 0,
        seed: int = ANY_SEED[1],
        n_ctx: int = 512,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        last_n_tokens_size: int = 64,
        lora_scale: float = 1.0,
        lora_path: str | None = None,
        flash_attn: bool | None = None,
        chat_format: str | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
        embedding: bool = False,
        pooling_type: int = -1,
        verbose: bool = True,
        **others: Any,
    ) -> None:
        """Load a model.

        Args:
            model_path: A GGUF file, or a name in models.yaml.
            draft_model_path: A GGUF file or a name; `ngram` to draft from the text alone; None for
                plain decoding; `auto` to select a suitable draft model.
            speculation: Speculation options; None for the defaults.
            n_gpu_layers: Layers to offload, -1 for all.
            seed: Seed of a generator that supplies the seeds of calls without one; -1 draws a
                random seed for each such call.
            n_ctx: Context length in tokens; 0 takes the trained length.
            n_threads: Number of threads; None takes the number of physical cores.
            n_threads_batch: Number of threads for batches; must be None or equal to `n_threads`.
            last_n_tokens_size: Number of previous tokens that the penalties consider.
            lora_scale: Scale of the LoRA adapter.
            lora_path: A LoRA adapter.
            flash_attn: Whether to use flash attention; None lets llama.cpp decide.
            chat_format: None for the chat template in the file, or the name of a format of
                llama-cpp-python, such as `chatml`.
            type_k: Number type of the cache, a ggml type: 0, 1, 2, 3, 6, 7, 8 or 30.
            type_v: The same as `type_k`.
            embedding: No effect: embeddings and answers are always possible.
            pooling_type: llama.cpp's number of the pooling of embeddings, 0 to 4; -1 as the file
                says, otherwise none.
            verbose: Whether to write llama.cpp's log to stderr.
            others: Other arguments of `llama_cpp.Llama`; each must have its default value, except
                the ones without effect.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            ModelError, NotEnoughMemoryError, VocabularyMismatchError: As for `load`.
        """
        for name, value in others.items():
            if name not in USUAL.keys() | HINTS:
                fact = f"Llama has no argument {name}."
                raise InvalidOptionError(name, value, hint="check the spelling.", message=fact)
            if isinstance(value, LlamaPromptLookupDecoding) and draft_model_path == "auto":
                draft_model_path = "ngram"  # it drafts from the text, too
            elif name in USUAL:
                _refuse_unless(name, value, USUAL[name])
        del embedding
        _refuse_unless("n_threads_batch", n_threads_batch or None, (None, n_threads))
        self.model_path, self.verbose = os.fspath(model_path), verbose
        self.cache: Any = None
        header = read_header(download.path(resolve(self.model_path)))
        self.metadata: dict[str, str] = {}  # single values only, as llama.cpp formats them
        for key, value in header.metadata.items():
            if isinstance(value, (str, int, float)):
                text = f"{value:f}" if isinstance(value, float) else str(value)
                self.metadata[key] = text.lower() if isinstance(value, bool) else text
        self.chat_format, self._format = _chat_format(chat_format, self.metadata)
        self._last_n, self._most_embedded = last_n_tokens_size, int(others.get("n_batch") or 512)
        self._llm: LLM | None = None
        self.set_seed(seed)
        trained = header.of_architecture("context_length", 0)
        if isinstance(draft_model_path, os.PathLike):
            draft_model_path = Path(draft_model_path)
        with named_as_there():
            self._llm = load(
                self.model_path,
                draft_model_path,
                speculation=speculation,
                n_ctx=n_ctx or trained or None,
                threads=n_threads or None,
                flash_attention="auto" if flash_attn is None else "on" if flash_attn else "off",
                kv_type=kv_type(type_k, type_v),
                pooling=_pooling(pooling_type, header),
                gpu_layers=max(n_gpu_layers, -1),
                lora=(lora_path, lora_scale) if lora_path else (),
                verbose=verbose,
            )
        self.context_params = SimpleNamespace(n_ctx=self._llm.n_ctx)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._llm!r}>"

    def n_ctx(self) -> int:
        """Return the context length in tokens."""
        return self._alive.n_ctx

    def reset(self) -> None:
        """Clear the caches, so that the next prompt is decoded from its start; changes no text."""
        self._alive.forget()

    def set_cache(self, cache: Any) -> None:
        """Store a prompt cache as `cache` without using it.

        Without it too, a prompt is decoded only from its first difference to the previous one; this
        changes no text.
        """
        self.cache = cache

    def __getattr__(self, name: str) -> Any:
        if name in NOT_HERE:
            raise UnsupportedError(name, NOT_HERE[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- loading and closing

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: bool | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        **arguments: Any,
    ) -> Llama:
        """Load a model from the hub; download it into the hub's cache first if it is missing.

        Of a split model, all parts are downloaded.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            StoreError: The download failed; the subclass depends on the cause.
        """
        _refuse_unless("local_dir", local_dir, (None,))
        _refuse_unless("cache_dir", cache_dir, (None,))
        _refuse_unless("local_dir_use_symlinks", local_dir_use_symlinks, ("auto",))
        if set(filename) & set("*?["):
            filename = _matching(repo_id, filename)
        # of a split model, all parts are downloaded in any case
        more = [one for one in additional_files or () if one not in split_names(filename)]
        _refuse_unless("additional_files", more or None, (None,))
        spec = f"hf:{repo_id}/{filename}"
        download.pull(resolve(spec))
        return cls(spec, **arguments)

    @property
    def _alive(self) -> LLM:
        if self._llm is None:
            raise ClosedError
        return self._llm

    def close(self) -> None:
        """Free the memory of the models; further calls have no effect."""
        if self._llm is not None:
            self._llm.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the constructor may have failed
            self.close()

    # ---- answers

    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = (),
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: Any = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
    ) -> Dict | Iterator[Dict]:
        """Continue a text or token ids; with `stream`, return an iterator over parts of the answer.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            EmptyPromptError, PromptTooLongError: The prompt is empty or too long. With `stream`,
                raised when the first part is read.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        if echo and (logprobs is not None or not isinstance(prompt, str)):
            allowed = "False if logprobs are requested or the prompt is token ids"
            raise InvalidOptionError("echo", echo, allowed)
        sampling = _to_sampling(arguments, seed=self._next_seed(seed), last_n=self._last_n)
        if prompt and isinstance(prompt, str):
            opened: Callable[[], Stream] = partial(self._alive.stream, prompt, sampling, echo=echo)
        else:  # an empty text becomes the BOS token, if the model has one
            ids = self.tokenize(b"") if isinstance(prompt, str) else list(prompt)
            opened = partial(self._alive.stream_tokens, ids, sampling)
        n_before = len(prompt) if isinstance(prompt, str) else 0
        answer = _Answer(model or self.model_path, self._shown, n_before)
        return self._answered(answer, opened, stream, logprobs is not None)

    __call__ = create_completion

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]] | None = None,
        function_call: str | Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = (),
        seed: int | None = None,
        response_format: Mapping[str, Any] | None = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: Any = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | int | None = None,
        top_logprobs: int | None = None,
    ) -> Dict | Iterator[Dict]:
        """Answer messages with the chat template of the file.

        With `stream`, return an iterator over parts of the answer. Tools are inserted into the
        prompt if the template supports them, and calls in the answer become `tool_calls`. If
        `tool_choice` names a tool, the answer consists of the arguments of that tool.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            TemplateError: The file has no template, or the template rejects the messages.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        shown, called = _as_tools(functions, function_call, tools, tool_choice)
        schema = _schema_of(response_format) if not called else None
        if called:
            schema = called.get("parameters") or {"type": "object"}
        if grammar is not None and schema is not None:
            other = Option("response_format" if called is None else "tool_choice")
            raise OptionConflictError(Option("grammar"), other)
        if top_logprobs and (logprobs is None or logprobs is False):
            allowed = "None unless logprobs is True"
            raise InvalidOptionError("top_logprobs", top_logprobs, allowed, "set logprobs=True.")
        # Alternatives per token; LangChain passes their number as `logprobs`.
        n_top = None if logprobs is False else (top_logprobs or 0) if logprobs is True else logprobs
        arguments |= {"logprobs": n_top, "json_schema": schema}
        sampling = _to_sampling(arguments, seed=self._next_seed(seed), last_n=self._last_n)
        with_tools: Any = {}
        if shown and reads_tools(self.metadata.get("tokenizer.chat_template", "")):
            with_tools = {"tools": shown}
        elif shown and not called:
            names = [tool["function"]["name"] for tool in shown]
            fact = "the model's chat template does not support tools."
            hint = "omit tools, or use a model whose chat template supports them."
            raise InvalidOptionError("tools", names, hint=hint, message=fact)
        opened = partial(self._alive.stream, _as_messages(messages), sampling, **with_tools)
        if self._format:
            _refuse_unless("tools", shown or None, (None,))
            text = self._format(messages=_as_messages(messages))
            ends = [text.stop] if isinstance(text.stop, str) else text.stop or []
            sampling = replace(sampling, stop=(*sampling.stop, *ends))
            tokens = self._alive.vocabulary.tokenize(
                text.prompt, special=True, start=not text.added_special
            )
            opened = partial(self._alive.stream, tokens, sampling)
        tool, calls = called["name"] if called else None, None
        if with_tools and tool is None:
            calls = family_of(self._alive.chat_template or ""), ToolUse(shown)
        name = model or self.model_path
        answer = _Answer(name, self._shown, is_chat=True, tool=tool, calls=calls)
        return self._answered(answer, opened, stream, sampling.logprobs is not None)

    def create_chat_completion_openai_v1(self, *arguments: Any, **named: Any) -> Any:
        """Call `create_chat_completion`; return objects of the package `openai`.

        The package `openai` must be installed.
        """
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer: Any = self.create_chat_completion(*arguments, **named)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**part) for part in answer)

    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
    ) -> Iterator[int]:
        """Return an iterator over the token ids that continue a prompt.

        It ends when the model ends its answer or the context is full. The end token is not
        included.

        Raises:
            InvalidOptionError: An argument is not supported; names the argument.
            EmptyPromptError, PromptTooLongError: The prompt is empty or too long; raised when the
                first token is read.
        """
        arguments = {name: value for name, value in locals().items() if name != "self"}
        _refuse_unless("reset", reset, (True,))
        _refuse_unless("penalize_nl", penalize_nl, (True,))
        arguments |= {"temperature": temp, "max_tokens": None, "stop": ()}
        arguments |= {"logit_bias": None, "logprobs": None}
        sampling = _to_sampling(arguments, seed=self._next_seed(None), last_n=self._last_n)
        chunks = _pumped(partial(self._alive.stream_tokens, list(tokens), sampling))
        return (token for chunk in chunks for token in chunk.tokens)

    def _answered(
        self, answer: _Answer, opened: Callable[[], Stream], in_parts: bool, with_logprobs: bool
    ) -> Dict | Iterator[Dict]:
        if in_parts:
            return answer.parts(_pumped(opened), with_logprobs)
        with opened() as stream:
            result = stream.run_to_end()
        if result.finish_reason == "cancelled":  # by `close`, from another thread
            raise ClosedError
        return answer.whole(result, with_logprobs)

    def set_seed(self, seed: int) -> None:
        """Set the seed of the generator that supplies the seeds of calls without one."""
        self._seeds = None if seed in ANY_SEED else random.Random(seed)

    def _next_seed(self, seed: int | None) -> int | None:
        if seed is None:
            return self._seeds.getrandbits(32) if self._seeds else None
        return None if seed in ANY_SEED else seed

    # ---- embeddings

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Dict:
        """Return the embeddings of texts in the format of OpenAI. They are not normalised.

        Args:
            input: A text, or several.
            model: Name of the model in the response.

        Raises:
            EmptyPromptError: A text has no token.
        """
        texts = [input] if isinstance(input, str) else input
        vectors, n_tokens = self.embed(texts, return_count=True)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "embedding": one, "index": i}
                for i, one in enumerate(vectors)
            ],
            "model": self.model_path if model is None else model,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }

    def embed(
        self,
        input: str | Sequence[str],
        normalize: bool = False,
        truncate: bool = True,
        return_count: bool = False,
    ) -> Any:
        """Return the embedding of a text as a list of numbers, or a list of those of several.

        Without pooling an embedding is a list of lists, one for each token.

        Args:
            input: A text, or several.
            normalize: Scale each embedding to the length 1.
            truncate: Cut long texts off at the context or `n_batch`, whichever is shorter; False
                raises an error.
            return_count: Return a pair of the embeddings and the number of tokens.

        Raises:
            TextTooLongError: A text is too long, and `truncate` is False. It is a `ValueError`.
            EmptyPromptError: A text has no token.
        """
        llm = self._alive
        most = min(self._most_embedded, llm.n_ctx)
        texts = [input] if isinstance(input, str) else input
        if truncate:
            first = partial(llm.vocabulary.first_tokens, n=most, special=False)
            cut = [first(text) for text in texts]
        else:
            cut = encode_texts(llm.vocabulary, texts, special=False)
            for i, one in enumerate(cut):
                if len(one) > most:
                    raise TextTooLongError(i, len(one), most, most)
        vectors = [one.tolist() for one in llm.embed(cut, normalize=normalize)]
        found = vectors[0] if isinstance(input, str) else vectors
        return (found, sum(map(len, cut))) if return_count else found

    def pooling_type(self) -> int:
        """Return llama.cpp's number of the pooling."""
        return POOLING.index(self._alive.pooling)

    # ---- the vocabulary

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the token ids of a text in UTF-8.

        Args:
            text: The text.
            add_bos: Whether to begin with the BOS token.
            special: Whether to parse texts such as `<|im_end|>` as control tokens.
        """
        return self._alive.vocabulary.tokenize(text, special=special, start=add_bos)

    def detokenize(
        self,
        tokens: Sequence[int],
        prev_tokens: Sequence[int] | None = None,
        special: bool = False,
    ) -> bytes:
        """Return the bytes of tokens.

        Args:
            tokens: Token ids.
            prev_tokens: Tokens before them; not used, because the bytes do not depend on them.
            special: Whether to include the texts of control tokens.
        """
        del prev_tokens
        target = self._alive.vocabulary
        pieces = [
            target.piece(token) or (target.token_text(token).encode() if special else b"")
            for token in tokens
        ]
        starts = len(tokens) > 0 and tokens[0] == target.special_tokens["bos"]
        text = b"".join(pieces)
        return text[1:] if starts and text.startswith(b" ") else text

    def n_vocab(self) -> int:
        """Return the number of tokens in the vocabulary."""
        return self._alive.vocabulary.n_vocab

    def token_bos(self) -> int:
        """Return the BOS token, which begins a text; -1 if the vocabulary has no such token."""
        return int(self._alive.vocabulary.special_tokens["bos"])

    def token_eos(self) -> int:
        """Return the EOS token, which ends a text; -1 if the vocabulary has no such token."""
        return int(self._alive.vocabulary.special_tokens["eos"])

    def _shown(self, token: int) -> str:
        return self.detokenize([token]).decode("utf-8", errors="ignore")

    def token_nl(self) -> int:
        """Return the newline token; -1 if the vocabulary has no such token."""
        return int(self._alive.vocabulary.native.vocab(C.llama_vocab_nl))

    def n_embd(self) -> int:
        """Return the dimension of the embeddings of the model."""
        return int(self.metadata[f"{self.metadata['general.architecture']}.embedding_length"])

    def tokenizer(self) -> Tokenizer:
        """Return an object that encodes and decodes text."""
        return Tokenizer(self)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return the length of the common prefix of two token sequences."""
        return next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )


class Tokenizer:
    """Tokenizer of a model, as returned by `llama_cpp.Llama.tokenizer`."""

    def __init__(self, llama: Llama) -> None:
        """Create a tokenizer with the vocabulary of `llama`."""
        self._llama = llama

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the token ids of a text in UTF-8."""
        return self._llama.tokenize(text, add_bos, special)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of tokens."""
        return self._llama.detokenize(tokens, prev_tokens, special)

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Return the token ids of a text."""
        return self.tokenize(text.encode("utf-8", errors="ignore"), add_bos, special)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return self.detokenize(tokens).decode("utf-8", errors="ignore")


_Original = llama_cpp.Llama
# Prefixes of modules that are left unchanged, because they need the original class.
_OWN = ("llama_cpp.", "gguf_spec.", "gguf_spec_compat")
# Replaced attributes: (module, name).
_places: list[tuple[ModuleType, str]] = []


def install() -> None:
    """Replace `llama_cpp.Llama` in this process by `gguf_spec_compat.Llama`.

    This also applies to modules that have already imported it. A second call has no further
    effect. LangChain's `ChatLlamaCpp` and `LlamaCpp` and LlamaIndex's `LlamaCPP` then run with
    speculation. The submodules of llama-cpp-python stay unchanged.
    """
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and not module.__name__.startswith(_OWN):
            _places.extend(
                (module, name) for name, value in vars(module).items() if value is _Original
            )
    for module, name in _places:
        setattr(module, name, Llama)


def uninstall() -> None:
    """Undo `install`. Objects that were created since then keep their class."""
    while _places:
        module, name = _places.pop()
        setattr(module, name, _Original)


# ---- responses


@dataclass(frozen=True)
class _Answer:
    """Fields that all parts of an answer share, and builder of the answer or of its parts.

    Attributes:
        model: Name of the model in the answer.
        text_of: Function from a token id to its text.
        n_before: Number of characters before the first token, for the `text_offset` of
            log-probabilities.
        is_chat: Whether it is the answer of a chat, and not a completion.
        tool: The tool that was named; the answer is its arguments. None if none was.
        calls: Syntax of calls in the answer, and the tools; None if there are none.
        id: Id of the completion.
        created: Unix time in seconds.
    """

    model: str
    text_of: Callable[[int], str]
    n_before: int = 0
    is_chat: bool = False
    tool: str | None = None
    calls: tuple[Any, ToolUse] | None = None
    id: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, result: Completion, with_logprobs: bool) -> Dict:
        """Return a complete answer."""
        text, finish, n_prompt = result.text, result.finish_reason, result.stats.n_prompt
        logprobs = self._logprobs(result.logprobs, self.n_before) if with_logprobs else None
        message: Dict = {"role": "assistant", "content": text}
        found: list[Dict] = []
        if self.tool is not None:
            message |= {"content": None, **self._call(self.tool, text)}
        elif self.calls is not None:
            message["content"], found = whole_answer(text, *self.calls)
            if found:
                message |= {"content": message["content"] or None, "tool_calls": found}
        what = {"index": 0, "message": message} if self.is_chat else {"text": text, "index": 0}
        kind = "chat.completion" if self.is_chat else "text_completion"
        answer = self._part(kind, what, logprobs, "tool_calls" if found else finish)
        n = len(result.tokens)
        usage = {"prompt_tokens": n_prompt, "completion_tokens": n, "total_tokens": n_prompt + n}
        return answer | {"usage": usage}

    def parts(self, chunks: Iterator[Chunk], with_logprobs: bool) -> Iterator[Dict]:
        """Yield the parts of an answer; the last one has the finish reason and no text.

        For a chat the first part has the role, and the calls of the answer are deltas.
        """
        reader = ToolDeltas(*self.calls) if self.calls else None
        at, finish, role = self.n_before, "stop", [{"role": "assistant"}] if self.is_chat else []
        tool = self.tool
        for chunk in chunks:
            finish = chunk.finish_reason or finish
            if not (chunk.text or chunk.logprobs):
                continue
            yield from self._pieces(role, None)
            role = []
            logprobs = self._logprobs(chunk.logprobs, at) if with_logprobs else None
            at += sum(len(self.text_of(one.token)) for one in chunk.logprobs)
            if reader:
                deltas = reader.push(chunk.text) or ([{"content": ""}] if logprobs else [])
            elif self.tool is not None:
                deltas, tool = [self._call(tool, chunk.text, 0)], None
            else:
                deltas = [{"content": chunk.text}]
            yield from self._pieces(deltas, logprobs)
        yield from self._pieces(role, None)
        if reader:
            yield from self._pieces(reader.finish(), None)
            finish = "tool_calls" if reader.has_call else finish
        yield from self._pieces([{}], None, finish)

    def _pieces(
        self, deltas: Sequence[Dict], logprobs: Dict | None, finish: str | None = None
    ) -> Iterator[Dict]:
        """Yield a part for each delta, the last one with the log-probabilities."""
        for i, delta in enumerate(deltas):
            of_this = logprobs if i == len(deltas) - 1 else None
            if self.is_chat:
                what = {"index": 0, "delta": delta}
                yield self._part("chat.completion.chunk", what, of_this, finish)
            else:
                what = {"text": delta.get("content", ""), "index": 0}
                yield self._part("text_completion", what, of_this, finish)

    def _part(self, kind: str, what: Dict, logprobs: Dict | None, finish: str | None) -> Dict:
        if self.tool is not None and finish == "stop":  # else the arguments are incomplete
            finish = "tool_calls"
        if self.is_chat:
            logprobs = _chat_logprobs(logprobs)
        return {
            "id": f"chat{self.id}" if self.is_chat else self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "choices": [{**what, "logprobs": logprobs, "finish_reason": finish}],
        }

    def _call(self, tool: str | None, arguments: str, index: int | None = None) -> Dict:
        """Return a tool call, or one part of it.

        Only the first part has the name: clients that join the parts would also join the names.
        """
        function = {"name": tool, "arguments": arguments}
        id_ = tool and f"call__0_{tool}_{self.id}"
        call = {"id": id_, "type": "function", "function": function}
        numbered = call if index is None else {"index": index, **call}
        return {"function_call": function, "tool_calls": [numbered]}

    def _logprobs(self, tokens: Sequence[TokenLogprob], at: int) -> Dict:
        found: Dict = {"tokens": [], "text_offset": [], "token_logprobs": [], "top_logprobs": []}
        for one in tokens:
            text = self.text_of(one.token)
            found["tokens"].append(text)
            found["text_offset"].append(at)
            found["token_logprobs"].append(one.logprob)
            found["top_logprobs"].append(
                {self.text_of(token): logprob for token, logprob in one.top} | {text: one.logprob}
            )
            at += len(text)
        return found


def _chat_logprobs(logprobs: Dict | None) -> Dict | None:
    if logprobs is None:
        return None

    def named(token: str, logprob: float) -> Dict:
        return {"token": token, "bytes": None, "logprob": logprob}

    places = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        named(token, logprob) | {"top_logprobs": [named(*one) for one in top.items()]}
        for token, logprob, top in places
    ]
    return {"content": content, "refusal": None}


def _next(ready: queue.SimpleQueue[Chunk | Ended], pid: int) -> Chunk | Ended:
    """Wait for the next event of the engine, which does not go on after a fork or at the end."""
    while True:
        try:
            return ready.get(timeout=_WAIT_S)
        except queue.Empty:
            if sys.is_finalizing():
                raise ClosedError from None
            if os.getpid() != pid:
                raise ForkedError from None


def _pumped(open_stream: Callable[[], Stream]) -> Iterator[Chunk]:
    """Yield the chunks of a stream that the engine computes, whether they are read or not.

    Frameworks read each chunk in another thread of a pool, keep iterators that they do not read to
    the end, and open more iterators than the pool has threads. So the reader must not decide when
    the next request can begin. Closing or dropping the iterator cancels the stream after the
    current round.

    Args:
        open_stream: Opens the stream; called when the first chunk is read.
    """
    ready: queue.SimpleQueue[Chunk | Ended] = queue.SimpleQueue()
    pid = os.getpid()
    with open_stream() as stream:
        stream.listen(ready.put)
        while isinstance(one := _next(ready, pid), Chunk):
            yield one
    if one.error:
        raise one.error
