"""The user's cache: where what was measured on this machine is kept, and what it is kept under."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .atomic_file import atomic_write


def cache_folder() -> Path:
    """Return the folder of all that is kept for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gguf-spec"


def cache_file(kind: str, parts: Iterable[object]) -> Path:
    """Return the file that belongs to `parts`, all that the measurement depends on."""
    return (
        cache_folder()
        / kind
        / (hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24] + ".json")
    )


def read_json(path: Path) -> Any:
    """Return what was kept, or None."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, data: Any) -> bool:
    """Write data, whole or not at all; return whether there was a place for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(json.dumps(data), encoding="utf-8")
    except OSError:
        return False
    return True


def this_machine() -> list[str]:
    """Return what tells machines apart: name, processor and its features."""
    return [platform.machine(), platform.node(), _cpu()]


def content_id(path: Path) -> str:
    """Return a hash of a large file's size and of parts of it: its start, its end, and some in between."""
    size, n_parts = path.stat().st_size, 16
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        for i in range(1, n_parts + 1):
            file.seek(max(0, size * i // n_parts - 4096))
            digest.update(file.read(4096))
    return digest.hexdigest()


def _cpu() -> str:
    """Return what the kernels are chosen by: the processor's name and features."""
    try:
        lines = (
            Path("/proc/cpuinfo")
            .read_text(encoding="utf-8")
            .split("\n\n", maxsplit=1)[0]
            .splitlines()
        )
    except OSError:
        return platform.processor()
    return "\n".join(
        line for line in lines if line.startswith(("model name", "flags", "Features", "CPU"))
    )
