"""A model on a node of a Ray cluster: download and load it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import NotInstalledError

if TYPE_CHECKING:
    from ..runtime.llm import LLM


def check_ray() -> None:
    """Check that Ray is installed.

    Raises:
        NotInstalledError: It is not.
    """
    try:
        importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise NotInstalledError("gguf_spec.ray", "ray", "ray") from None


def load_on_node(model: str | Path | None, pull: bool, options: Mapping[str, Any]) -> LLM:
    """Load a model in a Ray actor; the thread count follows the CPUs of the actor.

    Args:
        model: As for `gguf_spec.load`.
        pull: Download the model first if it is not on this node.
        options: Other arguments of `gguf_spec.load`.
    """
    from ..runtime.load import load

    if pull and model is not None:
        from ..models import pull as download

        download(str(model), models_file=options.get("models_file"))
    return load(model, **{"threads": _assigned_cpus(), **options})


def _assigned_cpus() -> int | None:
    """Return the whole CPUs of this actor, at least one; None outside of an actor."""
    import ray

    if not ray.is_initialized():
        return None
    resources = ray.get_runtime_context().get_assigned_resources()
    return max(1, int(resources["CPU"])) if "CPU" in resources else None
