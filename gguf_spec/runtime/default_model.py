"""Choice of the model if the user names none."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import GgufSpecError, NotDownloadedError, Pull, Text
from ..gguf.validation import ModelFile
from ..llama.memory import check_room
from ..llama.options import ContextOptions
from ..registry import download
from ..registry.models_file import BUNDLED
from ..registry.resolve import Entry, entries, local_models, quant_of, split_names
from ..system.machine import format_bytes

DEFAULT = "smollm2-135m-instruct"  # the model of new users, and the least that is worth a choice
_FIXTURE = "tales"
_FEW_BITS = re.compile("I?Q[12]")  # quantisations of one or two bits a weight


@dataclass(frozen=True)
class DefaultModel:
    """The model that is used if the user names none.

    Attributes:
        entry: Its entry.
        path: Its file; None if it is not on this disk.
        note: Sentence that names it; empty for `smollm2-135m-instruct`.
    """

    entry: Entry
    path: Path | None
    note: str = ""


def default_model(models_file: str | Path | None = None) -> DefaultModel:
    """Return the model that `load` takes if none is named.

    It is the largest chat model on this disk that fits into memory: of the named models, and of
    those in the caches of the hub, llama.cpp, LM Studio and Ollama. Without one that is larger, it
    is `smollm2-135m-instruct`, which need not be on this disk. The bundled models do not count. A
    file with one or two bits a weight counts as a quarter of its size, because such files answer
    badly. Reads only headers, of the largest files first. Makes no request.

    Args:
        models_file: As for `list_models`.

    Raises:
        InvalidModelsFileError: A models file has an error.
    """
    known = entries(models_file)
    default = known[DEFAULT]
    least = least_bytes(default)
    found: list[tuple[Entry, Path]] = []  # the models of models files, then those of others
    for entry in known.values():
        path = download.find(entry) if entry.name != DEFAULT else None
        if path and not path.is_relative_to(BUNDLED) and entry.prompt != "text":
            found.append((entry, path))
    for one in local_models():
        if split_names(one.path.name)[0] == one.path.name:
            found.append((Entry(one.name, None, None, (), one.path), one.path))
    sized = [(entry, path, _size(path)) for entry, path in found]
    seen: set[Path] = set()
    for entry, path, size in sorted(sized, key=lambda one: -_rank(*one[1:])):
        real = path.resolve()
        if _rank(path, size) <= least or real in seen:
            continue
        seen.add(real)
        if _is_usable(ModelFile(path)):
            note = Text(
                "the model is {} ({}), the largest chat model on this disk that fits into memory[; "
                "set {model} for another].",
                entry.name,
                format_bytes(size),
            )
            return DefaultModel(entry, path, note)
    return DefaultModel(default, download.find(default))


def chosen_model(
    models_file: Path | None = None, chosen: DefaultModel | None = None
) -> DefaultModel:
    """Return the default model, which is on this disk.

    Args:
        models_file: As for `resolve`.
        chosen: The choice if it was made before; None chooses.

    Raises:
        NotDownloadedError: There is no chat model on this disk.
    """
    chosen = chosen or default_model(models_file)
    if chosen.path is None:
        entry = chosen.entry
        size = f" ({format_bytes(entry.size_bytes)})" if entry.size_bytes else ""
        raise NotDownloadedError(
            entry.name,
            "there is no chat model on this disk.",
            Text(
                "to download {}, use {}[; {model=} takes a bundled test model].",
                f"{entry.name}{size}",
                Pull(entry.name),
                model=_FIXTURE,
            ),
        )
    return chosen


def least_bytes(default: Entry) -> int:
    """Return the size that a better model exceeds."""
    return default.size_bytes or 0


def _rank(path: Path, size: int) -> int:
    """Return the size that is compared: a quarter for a file with one or two bits a weight."""
    return size // 4 if _FEW_BITS.match(quant_of(path.name)) else size


def _size(path: Path) -> int:
    """Return the size of a model; 0 if a part of it is missing."""
    try:
        return sum(path.with_name(name).stat().st_size for name in split_names(path.name))
    except OSError:
        return 0


def _is_usable(file: ModelFile) -> bool:
    """Return whether a file is a chat model that fits into memory."""
    try:
        header = file.header
        if not isinstance(header.metadata.get("tokenizer.chat_template"), str):
            return False
        check_room([(header, ContextOptions())])
    except GgufSpecError:  # such as NotEnoughMemoryError
        return False
    return True
