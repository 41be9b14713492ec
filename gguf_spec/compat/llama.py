"""Interface of `llama_cpp.Llama`, implemented with an `LLM`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
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
from .answers import Answers
from .arguments import ANY_SEED, check_constructor, kv_type, named_as_there, refuse_unless
from .embeddings import Embeddings, pooling_named
from .messages import as_text, check_chat_format
from .not_supported import NOT_HERE


class Llama(Answers, Embeddings):
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
        self.metadata = {
            key: as_text(value)
            for key, value in header.metadata.items()
            if isinstance(value, (str, bool, int, float))
        }
        self.chat_format = check_chat_format(chat_format, self.metadata)
        self._last_n, self._most_embedded = last_n_tokens_size, int(others.get("n_batch") or 512)
        self._llm: LLM | None = None
        self.set_seed(seed)
        trained = header.of_architecture("context_length", 0)
        with named_as_there():
            self._llm = load(
                self.model_path,
                Path(draft_model_path)
                if isinstance(draft_model_path, os.PathLike)
                else draft_model_path,
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

    # ---- the context

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
        given = {
            "additional_files": additional_files,
            "local_dir": local_dir,
            "cache_dir": cache_dir,
        }
        for name, value in given.items():
            refuse_unless(name, value, (None,))
        refuse_unless("local_dir_use_symlinks", local_dir_use_symlinks, ("auto",))
        if set(filename) & set("*?["):
            raise InvalidOptionError(
                "filename", filename, "the name of one file", "name the file without wildcards."
            )
        spec = f"hf:{repo_id}/{filename}"
        download.pull(resolve(spec))
        return cls(spec, **arguments)

    @property
    def _alive(self) -> LLM:
        if self._llm is None:
            raise ClosedError
        return self._llm

    @property
    def _vocabulary(self) -> Model:
        """The target model; its vocabulary can be used while a request is running."""
        return self._alive.vocabulary

    def close(self) -> None:
        """Free the memory of the models; further calls have no effect."""
        if self._llm is not None:
            self._llm.close()

    def __del__(self) -> None:
        # At interpreter shutdown, threads that have not ended never release the lock of the LLM.
        if not sys.is_finalizing():
            with contextlib.suppress(Exception):  # the constructor may have failed
                self.close()
