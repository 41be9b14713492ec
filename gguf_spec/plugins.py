"""Packages of `plugins/` that commands and options of this one need."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .errors import NotInstalledError

# the last word of the name of a distribution -> what needs it
_USERS = {"trim": "trimming a draft", "workers": "a target on workers"}


def plugin(name: str) -> Any:
    """Return the package of a distribution, such as `gguf_spec_workers`.

    Raises:
        NotInstalledError: It is not installed.
    """
    package = f"gguf_spec_{name}"
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:  # a package that it needs
            raise
        raise NotInstalledError(_USERS[name], package.replace("_", "-")) from error
