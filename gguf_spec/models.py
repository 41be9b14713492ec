"""Models by name: list, download, locate and remove them, and search for drafts.

A model is given as its name, as `OWNER/REPO[:QUANT]` or `hf:OWNER/REPO/FILE[@REVISION]` of the hub,
as `ollama:NAME[:TAG]` or another name under which Ollama, LM Studio or llama.cpp hold it, as the
path of a GGUF file, or as an `Entry`. Only `pull` uses the network. Names come from the package's
models.yaml, from the user's own models file, which overrides it, and from `models_file`, which
overrides both.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import GgufSpecError
from .options import require
from .registry.download import Pulled, check_room, curable, find, path, pull, remove, verified
from .registry.models_file import USES, Entry, Part, Piece
from .registry.resolve import ModelName, entries, resolve
from .system.machine import available_bytes, format_bytes, read_speed

if TYPE_CHECKING:
    from .runtime.default_model import DefaultModel, default_model
    from .runtime.draft_search import Candidate
    from .runtime.trimmed_drafts import TrimmedDraft, trim_draft

__all__ = [
    "Candidate",
    "DefaultModel",
    "Entry",
    "Part",
    "Piece",
    "Pulled",
    "TrimmedDraft",
    "check_room",
    "default_model",
    "find",
    "find_drafts",
    "fits_here",
    "format_bytes",
    "list_local",
    "list_models",
    "path",
    "pull",
    "recommended",
    "remove",
    "resolve",
    "trim_draft",
    "verified",
]


# Tokens a second of each choice at least; about ten are read as fast as they come.
CHOICES = {"fast": 40.0, "balanced": 12.0, "best": 5.0}
# Tokens a second below which a model that thinks is slow: its answer begins after hundreds of them.
_THINKING = 20.0
# Tokens a second below and above which no number is worth it; memory in bytes beside the weights.
_SLOW, _FAST, _BESIDE = 5.0, 100.0, 600 << 20


def tokens_per_s(size: int) -> float:
    """Return about how many tokens a second plain decoding of a model has on this machine.

    Args:
        size: Size of its file, in bytes. Each token reads all of it.
    """
    from .runtime.profile_files import measured_speed

    return (measured_speed() or read_speed()) / size


def check_own(entry: Entry) -> None:
    """Refuse a file that is named by its path and is no GGUF file, as `load` does.

    Raises:
        ModelNotFoundError, NotAModelError: The file is missing, or is something else.
    """
    if entry.path is not None:
        from .gguf.validation import read_header

        read_header(entry.path)


def fits_here(entry: Entry, size: int | None) -> str:
    """Return how a model with a size in bytes does on this machine, in a word or two.

    A mixture of experts reads less for each token than its size; an embedding has no tokens.
    """
    free = available_bytes()
    if size is None:
        return "?"
    if free is not None and 1.1 * size + _BESIDE > free:
        return "too big"
    if "embed" in entry.suits or "mixture of experts" in entry.note:
        return "fits"
    rate = tokens_per_s(size)
    if rate >= _FAST:
        return "fast"
    return f"~{rate:.0f} tok/s" if rate >= _SLOW else f"slow, ~{rate:.1g} tok/s"


def recommended(use: str = "chat", models_file: str | Path | None = None) -> dict[str, Entry]:
    """Return models for a use that suit this machine: `fast`, `balanced` and `best`.

    `best` answers best of those that are not slow here, `fast` of those that are fast here. A
    choice is missing where no model has its speed, or where a faster choice is the same model or a
    better one. If no model fits, the smallest one is `fast`.

    Args:
        use: `chat`, `code` or `embed`.
        models_file: As for `list_models`.
    """
    require("use", use, "chat, code or embed", use in USES)
    known = [one for one in entries(models_file).values() if use in one.suits]
    known.sort(key=lambda one: -one.suits[use])
    found: dict[str, Entry] = {}
    for choice, least in CHOICES.items():
        fitting = (one for one in known if _has_speed(one, least))
        if (entry := next(fitting, None)) and entry not in found.values():
            found[choice] = entry
    return found or {"fast": min(known, key=lambda one: one.size_bytes or 0)}


def _has_speed(entry: Entry, least: float) -> bool:
    """Return whether a model fits, and has these tokens a second; one that thinks needs more."""
    size = entry.size_bytes or 0
    if fits_here(entry, size).startswith(("too", "slow")):
        return False
    if "hinks before" in entry.note:
        least = max(least, _THINKING)
    return "embed" in entry.suits or tokens_per_s(size) >= least


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
    from .runtime.draft_search import candidates, head_candidate
    from .runtime.load_options import LoadOptions

    entry = resolve(model, models_file)
    file = ModelFile(path(entry))
    with curable(entry):
        _ = file.header
    options = ContextOptions(extra_bufts=extra_bufts_work())
    load = LoadOptions(
        entry=entry,
        file=file,
        target=options,
        of_draft=options,
        models_file=Path(models_file) if models_file else None,
    )
    head, found = head_candidate(load), candidates(load)
    return [
        *([head] if head and head.fits else []),
        *found,
        *([] if not head or head.fits else [head]),
    ]


def trained_ctx(model: str) -> int:
    """Return the context that a model on this disk was trained for; 0 if that is not known."""
    from .gguf.validation import read_header

    try:
        file = find(model)
        return read_header(file).whole("context_length") if file else 0
    except GgufSpecError:
        return 0


# Name -> its module, which loads numpy or much else.
_LATE = {
    "Candidate": "draft_search", "DefaultModel": "default_model", "default_model": "default_model",
    "TrimmedDraft": "trimmed_drafts", "trim_draft": "trimmed_drafts",
}  # fmt: skip


if not TYPE_CHECKING:  # for a type checker, a name that is not there is an error

    def __getattr__(name: str) -> Any:
        if name in _LATE:
            return getattr(import_module(f".runtime.{_LATE[name]}", __package__), name)
        raise AttributeError(f"module 'gguf_spec.models' has no attribute {name!r}")
