"""The only way to the network: huggingface_hub, with its own ideas switched off."""

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

_BUSY = (408, 429, 500, 502, 503, 504)
# The library reads its environment when it is imported, which may be long ago, so its switches are set while it is at work for us.
_SWITCHES = {
    "HF_HUB_DISABLE_TELEMETRY": True,  # or it asks the hub which program might be calling it, even for a file that lies in the cache
    "HF_HUB_DISABLE_XET": True,  # Xet fetches from servers of its own, whatever HF_ENDPOINT says
    "DOWNLOAD_CHUNK_SIZE": 1
    << 20,  # of 10 MB, which is a long time without progress on a slow line
}
_lock = threading.RLock()


@dataclass(frozen=True)
class Remote:
    """What the hub says of a file.

    Attributes:
        commit: The commit that the revision stands for.
        etag: The sha256 of a large file; something else of a small one.
        size: In bytes, or None where it does not say.
    """

    commit: str
    etag: str
    size: int | None


class NotAHubError(Exception):
    """Something answered that is no hub."""


def folder() -> Path:
    """Return the hub's cache on this disk."""
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
    """Return the HTTP status with which the hub answers.

    Raises:
        Exception: It does not; of which kind is up to the library's HTTP client.
    """
    from huggingface_hub import get_session

    return int(get_session().head(endpoint(), timeout=timeout_s, follow_redirects=True).status_code)


def cached(repo: str, file: str, revision: str) -> Path | None:
    """Return where a file lies in the cache, or None. Makes no request: what could make one, and takes 0.2 s to import, is not even imported."""
    from huggingface_hub import constants

    store = Path(constants.HF_HUB_CACHE, f"models--{repo.replace('/', '--')}")
    branch = store / "refs" / revision
    try:
        commit = branch.read_text(encoding="ascii") if branch.is_file() else revision
        path = store / "snapshots" / commit / file
        return path if path.is_file() else None
    except (OSError, ValueError):  # a cache that cannot be read, a name that no file can have
        return None


def ask(repo: str, file: str, revision: str, waiting: Callable[[], None]) -> Remote:
    """Ask the hub for a file's commit, etag and size; where it is busy call `waiting` and ask on."""
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


def fetch(repo: str, file: str, revision: str, *, force: bool, tick: Callable[[int], None]) -> Path:
    """Bring a file into the cache unless it is there; call `tick` with the bytes that came, or fewer than none where some are fetched again."""
    with _hub_settings():
        from huggingface_hub import hf_hub_download

        bar: Any = _Bar(tick)
        return Path(
            hf_hub_download(repo, file, revision=revision, force_download=force, tqdm_class=bar)
        )


class _Bar:
    """What the library takes for its progress bar, class and object."""

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
    """Have the library do what it is asked for and no more, one caller at a time."""
    from huggingface_hub import constants
    from huggingface_hub.utils import logging as library

    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a full disk: that is an error of ours
        before, verbosity = (
            {name: getattr(constants, name) for name in _SWITCHES},
            library.get_verbosity(),
        )
        for name, value in _SWITCHES.items():
            setattr(constants, name, value)
        if verbosity >= logging.WARNING:  # or the user asked for more, with HF_HUB_VERBOSITY
            library.set_verbosity(logging.CRITICAL)
        try:
            yield
        finally:
            library.set_verbosity(verbosity)
            for name, value in before.items():
                setattr(constants, name, value)


def blob(path: Path) -> Path:
    """Return the file that one in the cache points to: its name is the etag; the file itself where the disk knows no links."""
    return Path(os.path.normpath(path.parent / path.readlink())) if path.is_symlink() else path


def delete(paths: Sequence[Path]) -> int:
    """Delete files from the cache, and what they point to unless other revisions do too; return the bytes freed."""
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
        else:  # it looks at no repository in which anything at all is amiss
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
