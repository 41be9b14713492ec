"""Models by name: list, download, locate and remove them, and search for drafts.

A model is given as its name, as `OWNER/REPO[:QUANT]` or `hf:OWNER/REPO/FILE[@REVISION]` of the hub,
as `ollama:NAME[:TAG]` or another name under which Ollama, LM Studio or llama.cpp hold it, as the
path of a GGUF file, or as an `Entry`. Only `pull` uses the network. Names come from the package's
models.yaml, from the user's own models file, which overrides it, and from `models_file`, which
overrides both.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .registry.download import Pulled, check_room, find, path, pull, remove, verified
from .registry.models_file import Entry, Part, Piece
from .registry.resolve import ModelName, entries, resolve
from .system.machine import format_bytes

if TYPE_CHECKING:
    from .runtime.default_model import DefaultModel, default_model
    from .runtime.draft_search import Candidate

__all__ = [
    "Candidate",
    "DefaultModel",
    "Entry",
    "Part",
    "Piece",
    "Pulled",
    "check_room",
    "default_model",
    "find",
    "find_drafts",
    "format_bytes",
    "list_local",
    "list_models",
    "path",
    "pull",
    "remove",
    "resolve",
    "verified",
]


def list_models(models_file: str | Path | None = None) -> list[Entry]:
    """Return all models that have names.

    Args:
        models_file: A file in the format of models.yaml with additional names.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    return list(entries(models_file).values())


def list_local(models_file: str | Path | None = None) -> list[Entry]:
    """Return the models of Ollama, LM Studio, llama.cpp and the hub's cache on this disk.

    Files of models that have names in a models file are left out. Of a model in several files the
    first one counts.

    Args:
        models_file: As for `list_models`.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    from .registry.resolve import local_models, split_names

    named = {path.resolve() for entry in list_models(models_file) if (path := find(entry))}
    return [
        Entry(one.name, one.repo, one.commit, (), one.path, note="Of another program.")
        for one in local_models()
        if one.path.resolve() not in named and split_names(one.path.name)[0] == one.path.name
    ]


def find_drafts(model: ModelName, models_file: str | Path | None = None) -> list[Candidate]:
    """Return the possible drafts of a model, best first; unusable ones are last.

    A prediction head in its file comes first, named `mtp`. Heads in files of their own come after
    the models on this disk. Searches the named models, the folder of the target, and the caches of
    the hub, llama.cpp, LM Studio and Ollama. Reads only headers, no weights.

    Args:
        model: The target.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
        NotDownloadedError: It is not on this disk.
        ModelError: Its file is invalid.
    """
    from .gguf.validation import ModelFile
    from .llama.options import ContextOptions
    from .llama.own_kernels import extra_bufts_work
    from .runtime.draft_search import LoadOptions, candidates, head_candidate

    entry = resolve(model, models_file)
    file = ModelFile(path(entry))
    options = ContextOptions(extra_bufts=extra_bufts_work())
    load = LoadOptions(entry, file, options, options, Path(models_file) if models_file else None)
    head, found = head_candidate(load), candidates(load)
    return [
        *([head] if head and head.fits else []),
        *found,
        *([] if not head or head.fits else [head]),
    ]


def __getattr__(name: str) -> Any:
    if name == "Candidate":  # its module loads numpy
        from .runtime.draft_search import Candidate

        return Candidate
    if name in ("DefaultModel", "default_model"):
        from .runtime import default_model

        return getattr(default_model, name)
    raise AttributeError(f"module 'gguf_spec.models' has no attribute {name!r}")
