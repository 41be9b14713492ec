"""`llama_cpp.Llama`'s interface over an `LLM`."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .. import load
from ..errors import ClosedError, InvalidOptionError, UnsupportedError
from ..gguf.validation import read_header
from ..llama.model import Model
from ..options import Speculation
from ..registry import download
from ..registry.resolve import resolve
from ..runtime.llm import LLM
from ..runtime.stream import Stream
from .arguments import (
    ANY_SEED,
    check_constructor,
    kv_type,
    named_as_there,
    refuse_unless,
    schema_of,
    to_sampling,
)
from .background import pumped
from .messages import as_messages, as_text, as_tools, check_chat_format, n_logprobs
from .responses import Dict, Head, chat, chat_parts
from .tokens import NOT_HERE, Tokenizer, line_end, tokenize_bytes


class Llama:
    """What `llama_cpp.Llama` is, with speculation: the same calls, the same dictionaries, the same greedy text.

    One request runs at a time, others wait; it may be called from any thread. Errors are those of `gguf_spec.errors`.

    What differs: a seed gives a text of its own, drawn from the same law. Log-probabilities need no `logits_all`. An answer in parts comes round by
    round, not token by token. A prompt is read again only from where it differs from the last one. What cannot be honoured is refused by an
    `InvalidOptionError` that names the argument, such as `use_mlock=True`, `suffix`, `logits_processor` or `mirostat_mode`.

    Methods that work inside a pass, such as `eval`, `sample` and `save_state`, are refused by an `UnsupportedError` that names them.

    Hints, which are taken and change nothing: n_batch, n_ubatch, no_perf, logits_all, n_parts; mirostat_tau and mirostat_eta, without mirostat_mode.
    The RoPE settings that LangChain always passes, rope_freq_base=10000 and rope_freq_scale=1, mean the model's own.

    Attributes:
        model_path: As it was given.
        metadata: What the file says of itself, as text.
        chat_format: The name under which the file's chat template is known.
        context_params: Its `n_ctx`, which LlamaIndex reads.
        verbose: Whether llama.cpp's log goes to stderr.
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
        verbose: bool = True,
        **others: Any,
    ) -> None:
        """Load a model.

        Args:
            model_path: A GGUF file, or a name in models.yaml.
            draft_model_path: A GGUF file or a name; `ngram` to draft from the text alone; None for plain decoding; `auto` for what fits.
            speculation: How to draft.
            n_gpu_layers: Layers to offload, -1 for all.
            seed: Of the first call that gives none; those that follow go on from it. -1 draws one for each.
            n_ctx: Tokens of the context; 0 takes what the model was trained for.
            n_threads: Threads; None takes the physical cores.
            n_threads_batch: The same for batches: it must be None or the same.
            last_n_tokens_size: How many tokens the penalties look at.
            lora_scale: How much of the adapter is added.
            lora_path: A LoRA adapter.
            flash_attn: None lets llama.cpp decide.
            chat_format: What the file's own template is called, or None; another cannot be had.
            type_k: Number type of the cache, a ggml type: 0, 1, 2, 3, 6, 7, 8 or 30.
            type_v: The same as `type_k`.
            verbose: Write llama.cpp's log to stderr.
            others: The rest of what `llama_cpp.Llama` takes, which must stand as it usually does.

        Raises:
            InvalidOptionError: Names the argument that cannot be honoured.
            ModelError, NotEnoughMemoryError, VocabularyMismatchError: As for `load`.
        """
        check_constructor(others)
        refuse_unless("n_threads_batch", n_threads_batch or None, (None, n_threads))
        self.model_path, self.verbose = os.fspath(model_path), verbose
        self.cache: Any = None
        header = read_header(download.local(resolve(self.model_path)))
        self.metadata = {
            key: as_text(value)
            for key, value in header.metadata.items()
            if isinstance(value, (str, bool, int, float))
        }
        self.chat_format = check_chat_format(chat_format, self.metadata)
        self._last_n = last_n_tokens_size
        self._llm: LLM | None = None
        self.set_seed(seed)
        trained = header.of_architecture("context_length", 0)
        with named_as_there():
            self._llm = load(
                self.model_path,
                Path(draft_model_path) if isinstance(draft_model_path, os.PathLike) else draft_model_path,
                speculation=speculation,
                n_ctx=n_ctx or trained or None,
                threads=n_threads or None,
                flash_attention="auto" if flash_attn is None else "on" if flash_attn else "off",
                kv_type=kv_type(type_k, type_v),
                gpu_layers=max(n_gpu_layers, -1),
                lora=(lora_path, lora_scale) if lora_path else (),
                verbose=verbose,
            )  # fmt: skip
        self.context_params = SimpleNamespace(n_ctx=self._llm.n_ctx)

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
        """Go on from a text, or from token ids; `stream` returns the answer in parts.

        Raises:
            InvalidOptionError: Names the argument that cannot be honoured.
            EmptyPromptError, PromptTooLongError: When the answer is read, with `stream`.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        if echo and (logprobs is not None or not isinstance(prompt, str)):
            raise InvalidOptionError(
                "echo", echo, "False where logprobs are asked for or the prompt is token ids"
            )
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        if prompt and isinstance(prompt, str):
            opened: Callable[[], Stream] = partial(self._alive.stream, prompt, sampling, echo=echo)
        else:  # an empty text is the token that texts begin with, where the model has one
            opened = partial(
                self._alive.stream_tokens,
                self.tokenize(b"") if isinstance(prompt, str) else list(prompt),
                sampling,
            )
        head = Head(
            model or self.model_path, self._shown, len(prompt) if isinstance(prompt, str) else 0
        )
        return (
            head.parts(pumped(opened), logprobs is not None)
            if stream
            else self._whole(head, opened, logprobs is not None)
        )

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
        """Answer messages by the file's chat template; `stream` returns the answer in parts.

        Tools are shown to the model where its template has a place for them. A `tool_choice` that names one makes the answer its arguments.

        Raises:
            InvalidOptionError: Names the argument that cannot be honoured.
            TemplateError: The file has no template, or it refuses the messages.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        shown, called = as_tools(functions, function_call, tools, tool_choice)
        schema = (
            called.get("parameters") or {"type": "object"} if called else schema_of(response_format)
        )
        if grammar is not None and schema is not None:
            raise InvalidOptionError(
                "grammar",
                "...",
                "left out where response_format or tool_choice already say what the answer looks like",
            )
        asked |= {"logprobs": n_logprobs(logprobs, top_logprobs), "json_schema": schema}
        sampling = to_sampling(asked, seed=self._next_seed(seed), last_n=self._last_n)
        with_tools: Any = {}
        if shown and "tools" in self.metadata.get("tokenizer.chat_template", ""):
            with_tools = {"tools": shown}
        elif shown and not called:
            raise InvalidOptionError(
                "tools",
                [tool["function"]["name"] for tool in shown],
                "left out: the model's chat template has no place for tools",
            )
        opened = partial(self._alive.stream, as_messages(messages), sampling, **with_tools)
        head, tool = Head(model or self.model_path, self._shown), called["name"] if called else None
        if stream:
            return chat_parts(head.parts(pumped(opened), sampling.logprobs is not None), tool)
        return chat(self._whole(head, opened, sampling.logprobs is not None), tool)

    def _whole(self, head: Head, opened: Callable[[], Stream], with_logprobs: bool) -> Dict:
        with opened() as stream:
            for _ in stream:
                pass
        if stream.result.finish_reason == "cancelled":  # by `close`, from another thread
            raise ClosedError
        return head.whole(stream.result, with_logprobs)

    def create_embedding(self, input: str | Sequence[str], model: str | None = None) -> Dict:  # noqa: ARG002 -- as there
        """Refuse: there are no embeddings here.

        Raises:
            InvalidOptionError: Always.
        """
        raise InvalidOptionError(
            "embedding",
            True,
            "False: gguf_spec generates text",
            "keep llama_cpp.Llama(embedding=True) for embeddings.",
        )

    def set_seed(self, seed: int) -> None:
        """Go on from another seed, where a call gives none."""
        self._seeds = None if seed in ANY_SEED else random.Random(seed)

    def _next_seed(self, seed: int | None) -> int | None:
        if seed is None:
            return self._seeds.getrandbits(32) if self._seeds else None
        return None if seed in ANY_SEED else seed

    # ---- the vocabulary

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Return the token ids of a text in UTF-8; `special` reads `<|im_end|>` and the like as the tokens they name."""
        return tokenize_bytes(self._vocabulary, text, special=special, start=add_bos)

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """Return the bytes of tokens, those of control tokens only where `special`; what came before them changes nothing."""
        target = self._vocabulary
        pieces = [
            target.piece(token) or (target.token_text(token).encode() if special else b"")
            for token in tokens
        ]
        starts = len(tokens) > 0 and tokens[0] == target.vocabulary["bos"]
        text = b"".join(pieces)
        return text[1:] if starts and text.startswith(b" ") else text

    def n_ctx(self) -> int:
        """Return how many tokens the context holds."""
        return self._alive.n_ctx

    def n_vocab(self) -> int:
        """Return how many tokens the vocabulary has."""
        return self._vocabulary.n_vocab

    def token_bos(self) -> int:
        """Return the token that a text begins with; -1 for none."""
        return int(self._vocabulary.vocabulary["bos"])

    def token_eos(self) -> int:
        """Return the token that ends a text; -1 for none."""
        return int(self._vocabulary.vocabulary["eos"])

    def _shown(self, token: int) -> str:
        return self.detokenize([token]).decode("utf-8", errors="ignore")

    @property
    def _vocabulary(self) -> Model:
        """The target, for questions about its vocabulary, which need not wait for a request that runs."""
        return self._alive._alive

    def token_nl(self) -> int:
        """Return the token of a line end; -1 for none."""
        return line_end(self._vocabulary)

    def n_embd(self) -> int:
        """Return the width of the model's embeddings."""
        return int(self.metadata[f"{self.metadata['general.architecture']}.embedding_length"])

    def tokenizer(self) -> Tokenizer:
        """Return an object that encodes and decodes text."""
        return Tokenizer(self)

    # ---- tokens

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
        """Yield the token ids that follow a prompt, until the model ends its answer or the context is full; the end token is left out.

        Raises:
            InvalidOptionError: Names the argument that cannot be honoured.
            EmptyPromptError, PromptTooLongError: When the first token is read.
        """
        asked = {name: value for name, value in locals().items() if name != "self"}
        refuse_unless("reset", reset, (True,))
        refuse_unless("penalize_nl", penalize_nl, (True,))
        asked |= {
            "temperature": temp,
            "max_tokens": None,
            "stop": (),
            "logit_bias": None,
            "logprobs": None,
        }
        sampling = to_sampling(asked, seed=self._next_seed(None), last_n=self._last_n)
        chunks = pumped(partial(self._alive.stream_tokens, list(tokens), sampling))
        return (token for chunk in chunks for token in chunk.tokens)

    def reset(self) -> None:
        """Empty the caches: the next prompt is read from its start. It changes no text."""
        self._alive.forget()

    def set_cache(self, cache: Any) -> None:
        """Take a prompt cache, and leave it alone: a prompt is read again only from where it differs from the last one, which changes no text."""
        self.cache = cache

    def create_chat_completion_openai_v1(self, *arguments: Any, **named: Any) -> Any:
        """Do as `create_chat_completion`, but return objects of the package `openai`, which must be installed."""
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        answer: Any = self.create_chat_completion(*arguments, **named)
        if isinstance(answer, dict):
            return ChatCompletion(**answer)
        return (ChatCompletionChunk(**part) for part in answer)

    @staticmethod
    def longest_token_prefix(a: Sequence[int], b: Sequence[int]) -> int:
        """Return how many tokens two sequences share at their beginning."""
        return next(
            (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
        )

    def __getattr__(self, name: str) -> Any:
        if name in NOT_HERE:
            raise UnsupportedError(name, NOT_HERE[name])
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- its life

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
        """Load a model of the hub, and download it into the hub's cache first where it is not there; a split model with all its parts.

        Raises:
            InvalidOptionError: Names the argument that cannot be honoured.
            StoreError: One of its kinds, by what went wrong.
        """
        given = {
            "additional_files": additional_files,
            "local_dir": local_dir,
            "cache_dir": cache_dir,
        }
        for name, value in given.items():
            refuse_unless(name, value, (None,))
        refuse_unless("local_dir_use_symlinks", local_dir_use_symlinks, ("auto",))
        if set(filename) & set("*?["):
            raise InvalidOptionError("filename", filename, "the name of one file")
        spec = f"hf:{repo_id}/{filename}"
        download.pull(resolve(spec))
        return cls(spec, **arguments)

    @property
    def _alive(self) -> LLM:
        if self._llm is None:
            raise ClosedError
        return self._llm

    def close(self) -> None:
        """Free the memory; more than once does nothing."""
        if self._llm is not None:
            self._llm.close()

    def __del__(self) -> None:
        if not sys.is_finalizing():  # then threads that have not ended never give the turn back
            with contextlib.suppress(Exception):  # made only in part
                self.close()
