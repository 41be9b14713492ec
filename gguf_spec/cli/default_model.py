"""The default model of a command.

It is looked up once, because the search reads the headers of large files and its result depends on
the free memory: all parts of a command must use the same model. After a download it is looked up
again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from ..models import DefaultModel

_KEY = "gguf_spec.default_model"


def default_model(models_file: Path | None) -> DefaultModel:
    """Return the result of `models.default_model`, the same one for the whole command."""
    from .. import models

    kept = click.get_current_context().meta
    if _KEY not in kept:
        kept[_KEY] = models.default_model(models_file)
    found: DefaultModel = kept[_KEY]
    return found


def look_up_again() -> None:
    """Drop the result: a model was downloaded."""
    click.get_current_context().meta.pop(_KEY, None)
