"""Models by name: list, download, locate and remove them, and search for drafts.

A model is given as its name, as `OWNER/REPO[:QUANT]` or `hf:OWNER/REPO/FILE[@REVISION]` of the hub,
as `ollama:NAME[:TAG]` or another name under which Ollama, LM Studio or llama.cpp hold it, as the
path of a GGUF file, or as an `Entry`. Only `pull` uses the network. Names come from the package's
models.yaml, from the user's own models file, which overrides it, and from `models_file`, which
overrides both.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .registry import download
from .registry.download import Pulled, Verified
from .registry.models_file import Entry, Part
from .registry.resolve import entries
from .registry.resolve import resolve as resolve_name
from .results import OnProgress
from .system.machine import format_bytes

if TYPE_CHECKING:
    from .runtime.default_model import DefaultModel
    from .runtime.draft_search import Candidate

__all__ = [
    "Candidate",
    "DefaultModel",
    "Entry",
    "Part",
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

ModelName: TypeAlias = str | Path | Entry


def list_models(models_file: str | Path | None = None) -> list[Entry]:
    """Return all models that have names.

    Args:
        models_file: A file in the format of models.yaml with additional names.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    return list(entries(_path_or_none(models_file)).values())


def list_local(models_file: str | Path | None = None) -> list[Entry]:
    """Return the models of Ollama, LM Studio, llama.cpp and the hub's cache on this disk.

    Files of models that have names in a models file are left out. Of a model in several files the
    first one counts.

    Args:
        models_file: As for `list_models`.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    from .registry.references import local_models
    from .registry.resolve import split_names

    named = {path.resolve() for entry in list_models(models_file) if (path := find(entry))}
    return [
        Entry(one.name, one.repo, one.commit, (), one.path, note="Of another program.")
        for one in local_models()
        if one.path.resolve() not in named and split_names(one.path.name)[0] == one.path.name
    ]


def resolve(model: ModelName, models_file: str | Path | None = None) -> Entry:
    """Return the entry of a model, which need not be on this disk.

    A text that is a name means the name even if a file with that name exists; `./name` means the
    file. A `Path` is never a name.

    Args:
        model: The model.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model. The hint contains the closest name.
        InvalidModelsFileError: A models file has an error.
    """
    if isinstance(model, Entry):
        return model
    return resolve_name(model, _path_or_none(models_file))


def default_model(models_file: str | Path | None = None) -> DefaultModel:
    """Return the model that `load` takes if none is named.

    It is the largest chat model on this disk that fits into memory: of the named models, and of
    those in the caches of the hub, llama.cpp, LM Studio and Ollama. Without one that is larger, it
    is `smollm2-135m-instruct`, which need not be on this disk. The bundled models do not count.

    Args:
        models_file: As for `list_models`.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    from .runtime.default_model import default_model

    return default_model(_path_or_none(models_file))


def find(model: ModelName, models_file: str | Path | None = None) -> Path | None:
    """Return the file of a model on this disk, or None; of a split model the first file.

    Args:
        model: The model. All its files must be there, with the right size.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    return download.find(resolve(model, models_file))


def path(model: ModelName, models_file: str | Path | None = None) -> Path:
    """Return the file of a model on this disk; of a split model the first file.

    Args:
        model: The model.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
        NotDownloadedError: It is not on this disk.
    """
    return download.local(resolve(model, models_file))


def verified(model: ModelName, models_file: str | Path | None = None) -> Verified | None:
    """Return how a model on this disk was verified, as in `Pulled`; None if it was not.

    Args:
        model: The model. None of its files is read.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
    """
    return download.verified(resolve(model, models_file))


def pull(
    model: ModelName,
    *,
    models_file: str | Path | None = None,
    force: bool = False,
    offline: bool = False,
    progress: OnProgress | None = None,
) -> Pulled:
    """Download and verify a model, if that was not done before.

    Afterwards `load` finds it without a network.

    Args:
        model: A name in models.yaml, `OWNER/REPO[:QUANT]`, `hf:OWNER/REPO/FILE[@REVISION]`, or an
            `Entry`. Its draft is a separate model with its own name.
        models_file: A file in the format of models.yaml with additional names.
        force: Download it again.
        offline: Make no request.
        progress: Called with the bytes of each stage: `download`, `wait`, `unpack`,
            `checksum`.

    Raises:
        ModelNotFoundError: There is no such model.
        StoreError: One of its subclasses, depending on the cause.
        InvalidOptionError: `force` is set while offline.
    """
    entry = resolve(model, models_file)
    return download.pull(entry, force=force, offline=offline, progress=progress)


def check_room(models: Iterable[Entry]) -> None:
    """Check that the disk has room for those models that are not on it, by their declared sizes.

    Raises:
        NoSpaceError: There is not enough room.
    """
    download.check_room(models)


def remove(model: ModelName, models_file: str | Path | None = None) -> int:
    """Delete a downloaded model; return the number of freed bytes.

    Args:
        model: The model. Bundled models and the user's own files are never deleted.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model.
        InvalidOptionError: It was not downloaded, but is bundled or a file of the user.
        NotDownloadedError: It is not on this disk.
    """
    return download.remove(resolve(model, models_file))


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
    file = ModelFile(download.local(entry))
    options = ContextOptions(extra_bufts=extra_bufts_work())
    load = LoadOptions(entry, file, options, options, _path_or_none(models_file))
    head, found = head_candidate(load), candidates(load)
    return [
        *([head] if head and head.fits else []),
        *found,
        *([] if not head or head.fits else [head]),
    ]


def _path_or_none(file: str | Path | None) -> Path | None:
    return None if file is None else Path(file)


def __getattr__(name: str) -> Any:
    if name == "Candidate":  # its module loads numpy
        from .runtime.draft_search import Candidate

        return Candidate
    if name == "DefaultModel":
        from .runtime.default_model import DefaultModel

        return DefaultModel
    raise AttributeError(f"module 'gguf_spec.models' has no attribute {name!r}")
