"""Checks of `doctor` for the models: the downloaded ones, the models file and the hub."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..errors import GgufSpecError
from ..registry import hub as hub_module
from ..registry.resolve import entries, user_file
from ..system.machine import format_bytes
from .check import Check
from .storage import file_sizes

# seconds to wait for a response of the hub
_PATIENCE_S = 10


def hub_cache() -> Check:
    """Check that downloaded models can be read and more can be downloaded."""
    name = "hub cache"
    try:
        folder = hub_module.folder()
    except ImportError as error:
        return Check(
            name,
            "fail",
            f"huggingface_hub cannot be imported: {error}",
            "reinstall it: pip install --force-reinstall huggingface_hub.",
        )
    if not os.path.lexists(folder):
        return Check(name, "ok", f"no model was downloaded yet; the folder is {folder}")
    try:
        with os.scandir(folder) as there:
            models = [Path(one.path) for one in there if one.name.startswith("models--")]
        n_bytes = sum(file_sizes(model / "blobs" for model in models))
        free = shutil.disk_usage(folder).free
    except OSError as error:
        todo = "change its permissions, or set HF_HOME to another folder."
        return Check(
            name,
            "fail",
            f"{folder} cannot be read, so no downloaded model is found: {error.strerror}",
            todo,
        )
    found = (
        f"{folder} contains {len(models)} {'repository' if len(models) == 1 else 'repositories'}, "
        f"{format_bytes(n_bytes)}; {format_bytes(free)} are free there"
    )
    if not os.access(folder, os.W_OK | os.X_OK):
        return Check(
            name,
            "warn",
            f"{found}, but no model can be downloaded because the folder is read-only",
            "change its permissions, or set HF_HOME to another folder.",
        )
    return Check(name, "ok", found)


def models_file(given: Path | None) -> Check:
    """Check that model names can be resolved.

    The user's models.yaml, if any, and the given one must be valid.
    """
    name, own = "models file", user_file()
    try:
        known = entries(given)
    except GgufSpecError as error:
        return Check(name, "fail", error.message, error.hint)
    read = [str(file) for file in (own, given) if file and os.path.lexists(file)]
    more = f"with {' and '.join(read)}" if read else f"there is no file of your own at {own}"
    return Check(name, "ok", f"{len(known)} models have names; {more}")


def hub() -> Check:
    """Check that the hub responds.

    No other check makes a request.
    """
    name, todo = (
        "hub",
        "check the network, HTTPS_PROXY and HF_ENDPOINT; "
        "local files and downloaded models work without the hub.",
    )
    try:
        where = hub_module.endpoint()
        status = hub_module.status(_PATIENCE_S)
    except ImportError as error:
        return Check(
            name,
            "fail",
            f"huggingface_hub cannot be imported: {error}",
            "reinstall it: pip install --force-reinstall huggingface_hub.",
        )
    # the HTTP library depends on the version of huggingface_hub and has its own exceptions
    except Exception as error:
        return Check(
            name, "fail", f"{where} cannot be reached: {error or type(error).__name__}", todo
        )
    if status >= 400:
        return Check(name, "fail", f"{where} responds with HTTP status {status}", todo)
    return Check(name, "ok", f"{where} responds")
