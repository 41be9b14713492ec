"""Loading of models that only compute embeddings."""

from __future__ import annotations

from collections.abc import Callable

from ..gguf.validation import ModelFile
from ..llama.embedder import Embedder
from ..llama.embedding_memory import check_room_to_embed
from ..llama.model import Model
from ..llama.options import ContextOptions
from ..options import Sampling, Speculation
from ..registry.resolve import Entry
from ..speculative.pair import ModelPair
from .llm import LLM


def embedding_llm(
    entry: Entry,
    file: ModelFile,
    options: ContextOptions,
    progress: Callable[[float], object] | None,
) -> LLM:
    """Load a model that only computes embeddings.

    Args:
        entry: Its entry.
        file: Its file.
        options: Options of `load`; those about several requests and drafts have no effect.
        progress: Called with the loaded share of the weights.

    Raises:
        ModelError, NotEnoughMemoryError, LoadCancelledError: As for `load`.
    """
    if not options.rpc:  # the memory of workers is not known
        check_room_to_embed(file.header, options)
    target = Model(file, options, progress)
    try:
        Embedder(target)  # checks the pooling
        notes = []
        if options.n_ctx and target.n_ctx < options.n_ctx:
            notes.append(f"{entry.name} reads at most {target.n_ctx:,} tokens of a text.")
        return LLM(
            entry.name,
            ModelPair(target, None),
            prompt="text",
            speculation=Speculation(k=0),
            sampling=Sampling(**entry.sampling),
            notes=notes,
        )
    except BaseException:
        target.close()
        raise
