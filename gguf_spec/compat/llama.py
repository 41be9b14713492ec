"""Interface of `llama_cpp.Llama`, implemented with an `LLM`."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as C

from .. import load
from ..errors import (
    ClosedError,
    InvalidOptionError,
    Option,
    OptionConflictError,
    TextTooLongError,
    UnsupportedError,
)
from ..gguf.validation import read_header
from ..options import POOLING, Speculation
from ..registry import download
from ..registry.resolve import resolve
from ..runtime.llm import LLM
from ..runtime.stream import Stream
from ..text.tool_history import reads_tools
from ..tools.families import family_of
from ..tools.use import ToolUse
from .arguments import (
    ANY_SEED,
    as_messages,
    as_tools,
    check_chat_format,
    check_constructor,
    kv_type,
    metadata_texts,
    n_logprobs,
    named_as_there,
    pooling_named,
    refuse_unless,
    schema_of,
    to_sampling,
)
from .responses import Dict, Head, chat, chat_parts, pumped, with_calls

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
    "input_ids": _DECODING,
    "scores": _DECODING,
    "logits_to_logprobs": "request logprobs in a completion.",
    "save_state": _STATE,
    "load_state": _STATE,
    "ctx": _NATIVE,
    "model": _NATIVE,
}


class Llama:
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

    These arguments are accepted and have no effect: n_batch, n_ubatch, no_perf, logits_all,
    n_parts; mirostat_tau and mirostat_eta, without mirostat_mode. The RoPE settings that LangChain
    always passes, rope_freq_base=10000 and rope_freq_scale=1, select the settings of the model.

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
            chat_format: Name of the chat template in the file, or None; no other template is
                supported.
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
        check_constructor(others)
        del embedding
        refuse_unless("n_threads_batch", n_threads_batch or None, (None, n_threads))
        self.model_path, self.verbose = os.fspath(model_path), verbose
        self.cache: Any = None
        header = read_header(download.local(resolve(self.model_path)))
        self.metadata = metadata_texts(header.metadata)
        self.chat_format = check_chat_format(chat_format, self.metadata)
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
                pooling=pooling_named(pooling_type, header),
                gpu_layers=max(n_gpu_layers, -1),
                lora=(lora_path, lora_scale) if lora_path else (),
                verbose=verbose,
            )
        self.context_params = SimpleNamespace(n_ctx=self._llm.n_ctx)

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
        refuse_unless("additional_files", additional_files, (None,))
        refuse_unless("local_dir", local_dir, (None,))
        refuse_unless("cache_dir", cache_dir, (None,))
        refuse_unless("local_dir_use_symlinks", local_dir_use_symlinks, ("auto",))
        if set(filename) & set("*?["):
            hint = "name the file without wildcards."
            raise InvalidOptionError("filename", filename, "the name of one file", hint)
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
        # At interpreter shutdown, threads that have not ended never release the lock of the LLM.
        if not sys.is_finalizing():
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
        asked = {name: value for name, value in locals().items() if name != "self"}
        if echo and (logprobs is not None or not isinstance(prompt, str)):
            allowed = "False if logprobs are requested or the prompt is token ids"
            raise InvalidOptionError("echo", echo, allowed)
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        if prompt and isinstance(prompt, str):
            opened: Callable[[], Stream] = partial(self._alive.stream, prompt, sampling, echo=echo)
        else:  # an empty text becomes the BOS token, if the model has one
            ids = self.tokenize(b"") if isinstance(prompt, str) else list(prompt)
            opened = partial(self._alive.stream_tokens, ids, sampling)
        n_before = len(prompt) if isinstance(prompt, str) else 0
        head = Head(model or self.model_path, self._shown, n_before)
        if stream:
            return head.parts(pumped(opened), logprobs is not None)
        return self._whole(head, opened, logprobs is not None)

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
        asked = {name: value for name, value in locals().items() if name != "self"}
        shown, called = as_tools(functions, function_call, tools, tool_choice)
        schema = schema_of(response_format) if not called else None
        if called:
            schema = called.get("parameters") or {"type": "object"}
        if grammar is not None and schema is not None:
            other = Option("response_format" if called is None else "tool_choice")
            raise OptionConflictError(Option("grammar"), other)
        asked |= {"logprobs": n_logprobs(logprobs, top_logprobs), "json_schema": schema}
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        with_tools: Any = {}
        if shown and reads_tools(self.metadata.get("tokenizer.chat_template", "")):
            with_tools = {"tools": shown}
        elif shown and not called:
            names = [tool["function"]["name"] for tool in shown]
            fact = "the model's chat template does not support tools."
            hint = "omit tools, or use a model whose chat template supports them."
            raise InvalidOptionError("tools", names, hint=hint, message=fact)
        opened = partial(self._alive.stream, as_messages(messages), sampling, **with_tools)
        head, tool = Head(model or self.model_path, self._shown), called["name"] if called else None
        calls = None
        if with_tools and tool is None:
            calls = family_of(self._alive.chat_template or ""), ToolUse(shown)
        if stream:
            parts = chat_parts(head.parts(pumped(opened), sampling.logprobs is not None), tool)
            return parts if calls is None else with_calls(parts, calls)
        return chat(self._whole(head, opened, sampling.logprobs is not None), tool, calls)

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
        asked = {name: value for name, value in locals().items() if name != "self"}
        refuse_unless("reset", reset, (True,))
        refuse_unless("penalize_nl", penalize_nl, (True,))
        asked |= {"temperature": temp, "max_tokens": None, "stop": ()}
        asked |= {"logit_bias": None, "logprobs": None}
        sampling = to_sampling(asked, seed=self._next_seed(None), last_n=self._last_n)
        chunks = pumped(partial(self._alive.stream_tokens, list(tokens), sampling))
        return (token for chunk in chunks for token in chunk.tokens)

    def _whole(self, head: Head, opened: Callable[[], Stream], with_logprobs: bool) -> Dict:
        with opened() as stream:
            for _ in stream:
                pass
        if stream.result.finish_reason == "cancelled":  # by `close`, from another thread
            raise ClosedError
        return head.whole(stream.result, with_logprobs)

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
        ids = [llm.vocabulary.tokenize(text, special=False) for text in texts]
        for i, one in enumerate(ids):
            if len(one) > most and not truncate:
                raise TextTooLongError(i, len(one), most, most)
        cut = [one[:most] for one in ids]
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
        starts = len(tokens) > 0 and tokens[0] == target.vocabulary["bos"]
        text = b"".join(pieces)
        return text[1:] if starts and text.startswith(b" ") else text

    def n_vocab(self) -> int:
        """Return the number of tokens in the vocabulary."""
        return self._alive.vocabulary.n_vocab

    def token_bos(self) -> int:
        """Return the BOS token, which begins a text; -1 if the vocabulary has no such token."""
        return int(self._alive.vocabulary.vocabulary["bos"])

    def token_eos(self) -> int:
        """Return the EOS token, which ends a text; -1 if the vocabulary has no such token."""
        return int(self._alive.vocabulary.vocabulary["eos"])

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
_OWN = ("llama_cpp.", "gguf_spec.")
# Replaced attributes: (module, name).
_places: list[tuple[ModuleType, str]] = []


def install() -> None:
    """Replace `llama_cpp.Llama` in this process by `gguf_spec.compat.Llama`.

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
