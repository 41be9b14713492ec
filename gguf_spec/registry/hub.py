"""Wrapper around huggingface_hub, the only module that uses the network.

It disables telemetry and Xet.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BUSY = (408, 429, 500, 502, 503, 504)  # HTTP statuses after which a request is repeated
# Constants of the library, overridden during each call. The library reads its environment only on
# import, which may have happened before.
_SWITCHES = {
    # Otherwise the library sends requests to identify the calling program, even for cached files.
    "HF_HUB_DISABLE_TELEMETRY": True,
    # Xet downloads from its own servers and ignores HF_ENDPOINT.
    "HF_HUB_DISABLE_XET": True,
    # In bytes. The default of 10 MiB shows no progress for a long time on a slow connection.
    "DOWNLOAD_CHUNK_SIZE": 1 << 20,
}
_lock = threading.RLock()


@dataclass(frozen=True)
class Remote:
    """Metadata of a file on the hub.

    Attributes:
        commit: The commit that the revision resolves to.
        etag: The sha256 of a large file; a different value for a small one.
        size: Size in bytes, or None if the hub does not report it.
    """

    commit: str
    etag: str
    size: int | None


class NotAHubError(Exception):
    """The responding server is not a hub."""


def folder() -> Path:
    """Return the path of the hub's cache on this disk."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def endpoint() -> str:
    """Return the hub's address."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids the network."""
    from huggingface_hub import constants

    return constants.is_offline_mode()


def status(timeout_s: float) -> int:
    """Return the HTTP status of a request to the hub.

    Args:
        timeout_s: Timeout in seconds.

    Raises:
        Exception: There is no response. The type depends on the library's HTTP client.
    """
    from huggingface_hub import get_session

    return int(get_session().head(endpoint(), timeout=timeout_s, follow_redirects=True).status_code)


def cached(repo: str, file: str, revision: str) -> Path | None:
    """Return the path of a file in the cache, or None. Makes no request.

    It does not import the parts of the library that make requests, because the import takes 0.2 s.
    """
    from huggingface_hub import constants

    store = Path(constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}")
    branch = store / "refs" / revision
    try:
        commit = branch.read_text(encoding="ascii") if branch.is_file() else revision
        path = store / "snapshots" / commit / file
        return path if path.is_file() else None
    except (OSError, ValueError):  # an unreadable cache, or an invalid file name
        return None


def ask(repo: str, file: str, revision: str, waiting: Callable[[], object]) -> Remote:
    """Return commit, etag and size of a file on the hub.

    If the hub is busy, call `waiting` and repeat the request.
    """
    with _hub_settings():
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import HfHubHTTPError

        url = hf_hub_url(repo, file, revision=revision)
        try:
            found = get_hf_file_metadata(url)
        except HfHubHTTPError as error:
            if error.response.status_code not in _BUSY:
                raise
            waiting()
            found = get_hf_file_metadata(url, retry_on_errors=True)
    if not found.commit_hash or not found.etag:
        raise NotAHubError
    return Remote(found.commit_hash, found.etag, found.size)


def list_files(repo: str) -> tuple[str, list[tuple[str, int | None, str | None]]]:
    """Return the commit of a repository's main branch, and its files: path, size and sha256.

    Size and sha256 are None if the hub does not report them.
    """
    with _hub_settings():
        from huggingface_hub import HfApi

        info = HfApi().model_info(repo, files_metadata=True)
    if not info.sha:
        raise NotAHubError
    files = [
        (one.rfilename, one.size, one.lfs.sha256 if one.lfs else None)
        for one in info.siblings or []
    ]
    return info.sha, files


def fetch(repo: str, file: str, revision: str, *, force: bool, tick: Callable[[int], None]) -> Path:
    """Download a file into the cache if it is absent, and return its path.

    Args:
        repo: `OWNER/REPO`.
        file: Path inside the repository.
        revision: Branch, tag or commit.
        force: Download it even if it is in the cache.
        tick: Called with the number of new bytes; negative if bytes must be downloaded again.
    """
    with _hub_settings():
        from huggingface_hub import hf_hub_download

        bar: Any = _Bar(tick)
        return Path(
            hf_hub_download(repo, file, revision=revision, force_download=force, tqdm_class=bar)
        )


class _Bar:
    """Replacement for the library's progress bar, usable as its class and as its instance."""

    def __init__(self, tick: Callable[[int], None]) -> None:
        self.update = tick

    def __call__(self, **_: Any) -> _Bar:
        return self

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def _hub_settings() -> Iterator[None]:
    """Override the library's settings during a call, one caller at a time."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging as library

    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a full disk is reported as NoSpaceError
        before, verbosity = (
            {name: getattr(constants, name) for name in _SWITCHES},
            library.get_verbosity(),
        )
        for name, value in _SWITCHES.items():
            setattr(constants, name, value)
        # A lower level means that the user requested more output with HF_HUB_VERBOSITY.
        if verbosity >= logging.WARNING:
            library.set_verbosity(logging.CRITICAL)
        try:
            yield
        finally:
            library.set_verbosity(verbosity)
            for name, value in before.items():
                setattr(constants, name, value)


def blob(path: Path) -> Path:
    """Return the link target of a cached file, whose name is the etag.

    If the disk does not support links, return the file itself.
    """
    return Path(os.path.normpath(path.parent / path.readlink())) if path.is_symlink() else path


def delete(paths: Sequence[Path]) -> int:
    """Delete files from the cache and return the number of freed bytes.

    The link targets are deleted too, unless other revisions use them.
    """
    from huggingface_hub import scan_cache_dir

    paths = [path.parent.resolve() / path.name for path in paths]
    sizes = {path.resolve(): path.stat().st_size for path in paths}
    with _hub_settings():
        scan = scan_cache_dir()
        files = [
            file
            for repo in scan.repos
            for revision in repo.revisions
            for file in revision.files
            if file.file_path in paths
        ]
        if len(files) == len(paths):
            scan.delete_files(*files).execute()
        else:  # the scan skips a repository with any inconsistency
            _unlink(paths)
    return sum(size for path, size in sizes.items() if not path.exists())


def _unlink(paths: Sequence[Path]) -> None:
    for path in paths:
        target = blob(path)
        snapshots = next(
            folder for folder in path.parents if folder.parent.name == "snapshots"
        ).parent
        path.unlink()
        if target != path and not any(
            other.is_symlink() and blob(other) == target for other in snapshots.rglob("*")
        ):
            target.unlink(missing_ok=True)
