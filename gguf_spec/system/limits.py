"""Limits of this process on Linux: those of its control groups, of both versions, and rlimits.

The limits of all groups count, from that of the process up to the root. `/proc/self/cgroup` names
the groups, and `/proc/self/mountinfo` the folders in which their settings are.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

# files with a limit of memory and with what is used: two of version 2, and that of version 1
_MEMORY = (
    ("memory.max", "memory.current"),
    ("memory.high", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# version 1 has no word for "no limit", but a number of bytes that no machine has
_NO_LIMIT = 1 << 60


class Places(NamedTuple):
    """Where Linux says the limits of a process.

    Attributes:
        proc: The folder of the process.
        groups: The folder of the groups, where no mount of them is listed.
    """

    proc: Path
    groups: Path


_OWN = Places(Path("/proc/self"), Path("/sys/fs/cgroup"))


class MemoryLimit(NamedTuple):
    """A limit of memory.

    Attributes:
        left: What can still be allocated, in bytes.
        source: The file or the setting that says so.
    """

    n_bytes: int
    left: int
    source: str


class ProcessorLimit(NamedTuple):
    """A limit of processor time.

    Attributes:
        processors: The limit: 0.5 is half of a processor's time.
        source: The file that says so.
    """

    processors: float
    source: str


def memory_limits(places: Places = _OWN) -> list[MemoryLimit]:
    limits = [*address_space(places)]
    for folder in _folders("memory", places):
        for name, name_of_used in _MEMORY:
            limit, used = _number(folder / name), _number(folder / name_of_used)
            if limit is not None and limit < _NO_LIMIT:
                in_use = max((used or 0) - _file_pages(folder), 0)
                limits.append(MemoryLimit(limit, max(limit - in_use, 0), str(folder / name)))
    return limits


def processor_limit(places: Places = _OWN) -> ProcessorLimit | None:
    """Return the smallest limit of processor time; None without one."""
    limits = []
    for folder in _folders("cpu", places):
        most, _, period = _text(folder / "cpu.max").partition(" ")
        name = "cpu.max"
        if not most:
            name = "cpu.cfs_quota_us"
            most, period = _text(folder / name), _text(folder / "cpu.cfs_period_us")
        if most.isdigit() and period.isdigit() and int(most) and int(period):
            limits.append(ProcessorLimit(int(most) / int(period), str(folder / name)))
    return min(limits, default=None)


def address_space(places: Places = _OWN) -> Iterator[MemoryLimit]:
    """Yield the limits of `ulimit -v` and `ulimit -d`."""
    pages = _text(places.proc / "statm").split()
    if sys.platform == "win32" or not pages:
        return
    import resource

    for name, place in (("RLIMIT_AS", 0), ("RLIMIT_DATA", 5)):
        limit, _ = resource.getrlimit(getattr(resource, name))
        if limit != resource.RLIM_INFINITY and len(pages) > place:
            used = int(pages[place]) * resource.getpagesize()
            yield MemoryLimit(limit, max(limit - used, 0), name)


# ---- groups


def _folders(controller: str, places: Places) -> list[Path]:
    """Return the folders of the groups of this process, the own one first, up to the root."""
    return _chain(controller, _text(places.proc / "cgroup"), places)


@cache
def _chain(controller: str, groups: str, places: Places) -> list[Path]:
    """Return the folders of groups; version 2 and a hierarchy of version 1 may both be there."""
    mounts = _text(places.proc / "mountinfo").splitlines()
    folders = []
    for line in groups.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            for root, point in _mounted(mounts, controller if controllers else ""):
                folders += _up(root, point, group)
    return [*dict.fromkeys(folders)] or [places.groups, places.groups / controller]


def _mounted(mounts: list[str], controller: str) -> Iterator[tuple[str, Path]]:
    """Yield the root in the hierarchy and the folder of each mount of a hierarchy.

    Args:
        mounts: Lines of `/proc/self/mountinfo`.
        controller: A controller of version 1; empty for version 2.
    """
    for line in mounts:
        place, _, kind = line.partition(" - ")
        fields, (system, *_, options) = place.split(), [*kind.split(), "", ""][:3]
        has = controller in options.split(",") if controller else system == "cgroup2"
        if len(fields) > 4 and has and system in ("cgroup", "cgroup2"):
            root, point = (re.sub(r"\\(\d{3})", _character, one) for one in fields[3:5])
            yield root, Path(point)


def _character(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


def _up(root: str, point: Path, group: str) -> list[Path]:
    """Return the folders from that of a group up to the mount.

    A group outside of the mounted part, as of another namespace, has the mount as its folder.
    """
    root = root.rstrip("/")
    inner = group.removeprefix(root) if f"{group}/".startswith(f"{root}/") else ""
    names = [name for name in inner.split("/") if name]
    if ".." in names:
        names = []
    return [point.joinpath(*names[:n]) for n in range(len(names), -1, -1)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _file_pages(folder: Path) -> int:
    """Return the bytes of file pages in a group's memory use, with those of groups below.

    The kernel drops them when memory is short. They may belong to a model that was loaded before.
    """
    lines = (line.split() for line in _text(folder / "memory.stat").splitlines())
    stat = {line[0]: int(line[1]) for line in lines if len(line) == 2 and line[1].isdigit()}
    names = ("inactive_file", "active_file")
    return sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in names)
