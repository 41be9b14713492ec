"""The default model of a command, and the download of models that are not on this disk.

The default model is looked up once, because the search reads the headers of large files and its
result depends on the free memory: all parts of a command must use the same model. After a download
it is looked up again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .download import at_terminal, download, with_drafts

if TYPE_CHECKING:
    from ..models import DefaultModel, Entry

_KEY = "gguf_spec.default_model"
# End of a file name: its quantisation and its type.
_ENDING = re.compile(r"(?i)[-._](?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*)\.gguf$|\.gguf$")


def default_model(models_file: Path | None) -> DefaultModel:
    """Return the result of `models.default_model`, the same one for the whole command."""
    from .. import models

    kept = click.get_current_context().meta
    if _KEY not in kept:
        kept[_KEY] = models.default_model(models_file)
    found: DefaultModel = kept[_KEY]
    return found


def offer_download(model: str | None, draft: str, options: Mapping[str, Any]) -> None:
    """Download the missing models of a command if the user agrees.

    The question is asked at a terminal only. Without agreement nothing happens: loading then fails
    with the reason.

    Args:
        model: The target, as `--model` takes it; None for the default model.
        draft: The draft, as `--draft` takes it.
        options: The options of the command: `offline`, `yes` and `models_file`.
    """
    if options["offline"] or not (options["yes"] or at_terminal()):
        return
    wanted = _missing(model, draft, options)
    if wanted and (options["yes"] or _is_agreed(wanted)):
        download(wanted)
        click.get_current_context().meta.pop(_KEY, None)  # looked up again


def _missing(model: str | None, draft: str, options: Mapping[str, Any]) -> list[Entry]:
    """Return the entries of the models that are not on this disk, the target first.

    The draft that models.yaml names counts if the target is missing, too: a target without its
    draft works.
    """
    from ..models import find, resolve

    models_file = options["models_file"]
    if model is None:
        chosen = default_model(models_file)
        target, is_here = chosen.entry, chosen.path is not None
    else:
        target = resolve(model, models_file)
        is_here = target.path is not None or find(target) is not None
    with_draft = draft == "auto" and not is_here
    entries = with_drafts([target], with_draft, models_file)
    if draft not in ("auto", "mtp", "ngram", "none"):
        entries.append(resolve(draft, models_file))
    return [entry for entry in entries if entry.path is None and not find(entry)]


def _is_agreed(entries: Sequence[Entry]) -> bool:
    """Ask whether to download; the default is no if a licence is not permissive."""
    text = f"Download {' and the draft '.join(map(_described, entries))}?"
    free = all(entry.permissive or entry.license is None for entry in entries)
    return click.confirm(text, default=free, err=True)


def _described(entry: Entry) -> str:
    """Return name, size and licence of a model."""
    from ..models import format_bytes

    title = _ENDING.sub("", entry.parts[0].file.rpartition("/")[2]) if entry.parts else entry.name
    size = format_bytes(entry.size_bytes) if entry.size_bytes else "size unknown"
    return ", ".join([title, size, entry.license or "licence unknown"])
