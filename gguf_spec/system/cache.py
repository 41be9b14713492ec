"""The user's cache of measurements on this machine, and the keys of its entries."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_args

from .atomic_file import atomic_write
from .folders import cache_folder

# folders of the cache, one for each kind of measurement
CacheFolder = Literal["attention", "experience", "pairs", "probe", "profiles", "verified"]
CACHE_FOLDERS: tuple[CacheFolder, ...] = get_args(CacheFolder)


def cache_file(kind: CacheFolder, parts: Iterable[object]) -> Path:
    """Return the cache file for `parts`, the values that a measurement depends on."""
    return (
        cache_folder()
        / kind
        / (hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:24] + ".json")
    )


def read_json(path: Path) -> Any:
    """Return the data of a JSON file; None if it is missing or invalid."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, data: Any) -> bool:
    """Write data as JSON, atomically, and return whether it succeeded."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as part:
            part.write_text(json.dumps(data), encoding="utf-8")
    except OSError:
        return False
    return True


def this_machine() -> list[str]:
    """Return the identity of this machine: architecture, host name, processor and its features."""
    return [platform.machine(), platform.node(), _cpu()]


def content_id(path: Path) -> str:
    """Return a hash of a large file's size, its start, its end and 15 samples in between."""
    size, n_parts = path.stat().st_size, 16
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(1 << 20))
        for i in range(1, n_parts + 1):
            file.seek(max(0, size * i // n_parts - 4096))
            digest.update(file.read(4096))
    return digest.hexdigest()


def _cpu() -> str:
    """Return the processor's name and features, which determine the kernels."""
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
