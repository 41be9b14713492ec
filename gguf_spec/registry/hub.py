"""Wrapper around huggingface_hub, the only module that uses the network.

It disables telemetry and Xet, and translates errors of network, hub and disk into errors of this
package.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import (
    AccessDeniedError,
    GgufSpecError,
    HubError,
    NoSpaceError,
    NotOnHubError,
    StoreError,
    UnreachableError,
)
from ..system.files import DISK_FULL, files_below
from ..system.process import renewed
from .models_file import Entry, Part
from .proxy import by_proxy

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError


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
_lock = renewed(threading.RLock())
_PUBLIC = "https://huggingface.co"
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_BY_HAND = "try again, or copy the file to this disk and use its path."


class NotAHubError(Exception):
    """The responding server is not a hub."""


def _constants() -> Any:
    from huggingface_hub import constants

    return constants


def folder() -> Path:
    return Path(_constants().HF_HUB_CACHE).expanduser()


def endpoint() -> str:
    return str(_constants().ENDPOINT)


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE forbids the network."""
    return bool(_constants().is_offline_mode())


def status(timeout_s: float) -> int:
    """Return the HTTP status of a request to the hub.

    Raises:
        Exception: There is no response. The type depends on the library's HTTP client.
    """
    from huggingface_hub import get_session

    return int(get_session().head(endpoint(), timeout=timeout_s, follow_redirects=True).status_code)


def cached(repo: str, file: str, revision: str) -> Path | None:
    """Return the path of a file in the cache, or None. Makes no request.

    It does not import the parts of the library that make requests, because the import takes 0.2 s.
    """
    store = Path(_constants().HF_HUB_CACHE, f"models--{repo.replace('/', '--')}")
    branch = store / "refs" / revision
    try:
        commit = branch.read_text(encoding="ascii") if branch.is_file() else revision
        path = store / "snapshots" / commit / file
        return path if path.is_file() else None
    except (OSError, ValueError):  # an unreadable cache, or an invalid file name
        return None


def ask(
    repo: str, file: str, revision: str, waiting: Callable[[], object]
) -> tuple[str, str, int | None]:
    """Return commit, etag and size of a file on the hub.

    The etag is the sha256 of a large file, and a different value for a small one. The size is None
    if the hub does not report it. If the hub is busy, call `waiting` and repeat the request.
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
    return found.commit_hash, found.etag, found.size


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
        tick: Called with the number of new bytes; negative if bytes must be downloaded again.
    """
    with _hub_settings():
        from huggingface_hub import hf_hub_download

        class Bar(contextlib.nullcontext[Any]):
            """Replacement for the library's progress bar."""

            def __init__(self, **_: object) -> None:
                super().__init__(self)

            def update(self, n_bytes: int) -> None:
                tick(n_bytes)

        bar: Any = Bar
        return Path(
            hf_hub_download(repo, file, revision=revision, force_download=force, tqdm_class=bar)
        )


@contextlib.contextmanager
def _hub_settings() -> Iterator[None]:
    """Override the library's settings during a call, one caller at a time."""
    from huggingface_hub.utils import logging as library

    constants = _constants()
    with _lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a full disk is reported as NoSpaceError
        before = {name: getattr(constants, name) for name in _SWITCHES}
        verbosity = library.get_verbosity()
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
    paths = [path.parent.resolve() / path.name for path in paths]
    sizes = {path.resolve(): path.stat().st_size for path in paths}
    for path in paths:
        target = blob(path)
        commit = next(one for one in path.parents if one.parent.name == "snapshots")
        path.unlink()
        others = (other for other in files_below(commit.parent) if other.is_symlink())
        if target != path and not any(blob(other) == target for other in others):
            target.unlink(missing_ok=True)
    return sum(size for path, size in sizes.items() if not path.exists())


# ---- errors


@contextlib.contextmanager
def explained(entry: Entry, part: Part) -> Iterator[None]:
    """Translate exceptions of the library and the disk into errors of this package."""
    try:
        yield
    except Exception as error:  # the library's HTTP client has error types of its own
        ours = _explain(error, entry, part)
        if ours is None or ours is error:
            raise
        raise ours from error


def _explain(error: Exception, entry: Entry, part: Part) -> GgufSpecError | None:
    """Return the translated error, or None if it comes from neither library nor disk."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    is_known = isinstance(error, (HfHubHTTPError, GgufSpecError))
    if not is_known and isinstance(error, (LocalEntryNotFoundError, ValueError)):
        # The library wraps the actual error.
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(error, GgufSpecError):
        return error
    if isinstance(error, HfHubHTTPError):
        given = error, entry, part
        return _missing(*given) or _denied(*given) or _out_of_order(*given)
    if not isinstance(error, OSError) or isinstance(error, ConnectionError):
        return _unreachable(error, entry, part)
    if error.errno in DISK_FULL:
        message = f"the disk of {folder()} is full: {part.file} was not downloaded."
        return NoSpaceError(entry.name, message, None, None)
    if error.errno is None:
        # The library found a wrong size.
        return HubError(entry.name, None, f"the hub did not send all of {part.file}.", _BY_HAND)
    message = f"{error.filename or folder()} cannot be used: {error.strerror}."
    hint = "change its permissions, or set HF_HOME to another folder."
    return StoreError(entry.name, message, hint)


def _missing(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError | None:
    from huggingface_hub import errors

    page = _page(entry)
    if isinstance(error, errors.RevisionNotFoundError):
        what, message = "revision", f"{entry.repo} has no revision {entry.revision}."
        hint = f"see {page}/commits/main."
    elif isinstance(error, errors.RemoteEntryNotFoundError):
        what, message = "file", f"{entry.repo} has no file {part.file} at {entry.revision}."
        hint = f"see {page}/tree/{entry.revision}."
    elif not isinstance(error, errors.RepositoryNotFoundError) or isinstance(
        error, errors.GatedRepoError
    ):
        return None
    elif not _has_token(error):
        what, message = "repository", f"there is no repository {entry.repo}, or it is private."
        hint = "check the name; a private repository needs a token in HF_TOKEN."
    elif error.response.status_code == 401:
        return None  # the token is invalid, see _denied
    else:
        what = "repository"
        message = f"there is no repository {entry.repo} that this token can access."
        hint = "check the name, and the account of the token in HF_TOKEN."
    return NotOnHubError(entry.name, what, message, hint)


def _denied(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError | None:
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError

    status, has_token, page = error.response.status_code, _has_token(error), _page(entry)
    if isinstance(error, GatedRepoError):
        how = f"and set HF_TOKEN to a token from {endpoint()}/settings/tokens"
        how = "with the account of the token" if has_token else how
        message = f"{entry.repo} is gated: its licence must be accepted first."
        hint = f"accept it at {page}, {how}."
    elif status == 401:
        what, hint = "a request without a token", "set HF_TOKEN."
        if has_token:
            what, hint = "the token", "check HF_TOKEN, or unset it: a public model needs no token."
        message = f"the hub does not accept {what} for {entry.repo}."
    elif isinstance(error, DisabledRepoError):
        message = f"the hub has disabled {entry.repo}."
        hint = "use another model; `gguf-spec models list` shows them."
    elif status == 403:
        message = f"the hub denies access to {entry.repo}/{part.file}."
        hint = f"see {page}, and check the rights of the token in HF_TOKEN."
    else:
        return None
    return AccessDeniedError(entry.name, message, hint)


def _out_of_order(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError:
    status, method = error.response.status_code, error.response.request.method
    again = ", also after a retry" if status == 429 or method == "HEAD" else ""
    if status == 429:
        message = f"{endpoint()} received too many requests from this address (429){again}."
        more = "" if _has_token(error) else "; a token in HF_TOKEN allows more requests"
        hint = f"wait some minutes{more}."
    elif status >= 500:
        message, hint = f"{endpoint()} failed with status {status}{again}.", "try again later."
    else:
        message = f"{endpoint()} answered {status} for {entry.repo}/{part.file}."
        hint = f"{_first_look()}see {_page(entry)}."
    return HubError(entry.name, status, message, hint)


def _unreachable(error: Exception, entry: Entry, part: Part) -> GgufSpecError | None:
    """Return the translation of an error without a response, or None for other errors."""
    # Compare names, because the HTTP library is httpx or httpx2, depending on the version.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    name, where, first = entry.name, endpoint(), _first_look()
    reason = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, NotAHubError):
        hint = f"{first}or log in to this network."
        return HubError(name, None, f"{where} does not respond like the hub.", hint)
    if proxied := by_proxy(error, where):
        return UnreachableError(name, *proxied)
    if "TimeoutException" in kinds:
        hint = (
            f"{first}try again, or set longer times in HF_HUB_ETAG_TIMEOUT and "
            "HF_HUB_DOWNLOAD_TIMEOUT."
        )
        return UnreachableError(name, f"{where} did not respond in time.", hint)
    if "TransportError" in kinds or isinstance(error, ConnectionError):
        return UnreachableError(name, f"{where} cannot be reached: {reason}.", f"{first}{_BY_HAND}")
    if isinstance(error, ValueError) or "InvalidURL" in kinds:
        message = f"{entry.repo}/{part.file} cannot be downloaded: {reason.rstrip('.')}."
        hint = f"{first}check the name, or try `hf download {entry.repo} {part.file}`."
        return StoreError(name, message, hint)
    return None


def _page(entry: Entry) -> str:
    return f"{endpoint()}/{entry.repo}"


def _has_token(error: HfHubHTTPError) -> bool:
    return "authorization" in error.response.request.headers


def _first_look() -> str:
    """Return a hint to check the settings that change the connection to the hub."""
    named = ["HF_ENDPOINT"] if endpoint() != _PUBLIC else []
    named += [name for proxy in _PROXIES for name in (proxy, proxy.lower()) if os.environ.get(name)]
    return f"check {' and '.join(named or ['the connection'])}, "
