"""Translation of network, hub and disk errors into errors of this package."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import (
    AccessDeniedError,
    GgufSpecError,
    HubError,
    NoSpaceError,
    NotOnHubError,
    StoreError,
    UnreachableError,
)
from . import hub
from .resolve import Entry, Part

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_PUBLIC = "https://huggingface.co"
_PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
_FULL = (errno.ENOSPC, errno.EDQUOT)
_BY_HAND = "try again, or copy the file to this disk and use its path."


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

    if isinstance(error, (LocalEntryNotFoundError, ValueError)) and not isinstance(
        error, (HfHubHTTPError, GgufSpecError)
    ):
        # The library wraps the actual error.
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(error, GgufSpecError):
        return error
    if isinstance(error, HfHubHTTPError):
        return (
            _missing(error, entry, part)
            or _denied(error, entry, part)
            or _out_of_order(error, entry, part)
        )
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return _disk(error, entry, part)
    return _unreachable(error, entry, part)


def _missing(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError | None:
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    page = _page(entry)
    if isinstance(error, RevisionNotFoundError):
        return NotOnHubError(
            entry.name,
            "revision",
            f"{entry.repo} has no revision {entry.revision}.",
            f"see {page}/commits/main.",
        )
    if isinstance(error, RemoteEntryNotFoundError):
        said = f"{entry.repo} has no file {part.file} at {entry.revision}."
        return NotOnHubError(entry.name, "file", said, f"see {page}/tree/{entry.revision}.")
    if not isinstance(error, RepositoryNotFoundError) or isinstance(error, GatedRepoError):
        return None
    if not _has_token(error):
        said = f"there is no repository {entry.repo}, or it is private."
        return NotOnHubError(
            entry.name,
            "repository",
            said,
            "check the name; a private repository needs a token in HF_TOKEN.",
        )
    if error.response.status_code == 401:
        return None  # the token is invalid, see _denied
    said = f"there is no repository {entry.repo} that this token can access."
    return NotOnHubError(
        entry.name, "repository", said, "check the name, and the account of the token in HF_TOKEN."
    )


def _denied(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError | None:
    from huggingface_hub.errors import DisabledRepoError, GatedRepoError

    status, has_token, page = error.response.status_code, _has_token(error), _page(entry)
    if isinstance(error, GatedRepoError):
        how = (
            "with the account of the token"
            if has_token
            else f"and set HF_TOKEN to a token from {hub.endpoint()}/settings/tokens"
        )
        return AccessDeniedError(
            entry.name,
            f"{entry.repo} is gated: its licence must be accepted first.",
            f"accept it at {page}, {how}.",
        )
    if status == 401:
        what = "the token" if has_token else "a request without a token"
        hint = (
            "check HF_TOKEN, or unset it: a public model needs no token."
            if has_token
            else "set HF_TOKEN."
        )
        return AccessDeniedError(
            entry.name, f"the hub does not accept {what} for {entry.repo}.", hint
        )
    if isinstance(error, DisabledRepoError):
        return AccessDeniedError(
            entry.name,
            f"the hub has disabled {entry.repo}.",
            "use another model; `gguf-spec models list` shows them.",
        )
    if status == 403:
        hint = f"see {page}, and check the rights of the token in HF_TOKEN."
        return AccessDeniedError(
            entry.name, f"the hub denies access to {entry.repo}/{part.file}.", hint
        )
    return None


def _out_of_order(error: HfHubHTTPError, entry: Entry, part: Part) -> GgufSpecError:
    status, method = error.response.status_code, error.response.request.method
    again = ", also after a retry" if status == 429 or method == "HEAD" else ""
    if status == 429:
        hint = (
            "wait some minutes."
            if _has_token(error)
            else "wait some minutes; a token in HF_TOKEN allows more requests."
        )
        return HubError(
            entry.name,
            status,
            f"{hub.endpoint()} received too many requests from this address (429){again}.",
            hint,
        )
    if status >= 500:
        return HubError(
            entry.name,
            status,
            f"{hub.endpoint()} failed with status {status}{again}.",
            "try again later.",
        )
    said = f"{hub.endpoint()} answered {status} for {entry.repo}/{part.file}."
    return HubError(entry.name, status, said, f"{_first_look()}see {_page(entry)}.")


def _unreachable(error: Exception, entry: Entry, part: Part) -> GgufSpecError | None:
    """Return the translation of an error without a response, or None for other errors."""
    # Compare names, because the HTTP library is httpx or httpx2, depending on the version.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    where, said, first = (
        hub.endpoint(),
        " ".join(str(error).split()) or type(error).__name__,
        _first_look(),
    )
    if isinstance(error, hub.NotAHubError):
        return HubError(
            entry.name,
            None,
            f"{where} does not respond like the hub.",
            f"{first}or log in to this network.",
        )
    if "ProxyError" in kinds:
        return UnreachableError(
            entry.name,
            f"the proxy refuses the connection to {where}: {said}.",
            "check HTTPS_PROXY and NO_PROXY.",
        )
    if "TimeoutException" in kinds:
        hint = (
            f"{first}try again, or set longer times in HF_HUB_ETAG_TIMEOUT and "
            "HF_HUB_DOWNLOAD_TIMEOUT."
        )
        return UnreachableError(entry.name, f"{where} did not respond in time.", hint)
    if "TransportError" in kinds or isinstance(error, ConnectionError):
        return UnreachableError(
            entry.name, f"{where} cannot be reached: {said}.", f"{first}{_BY_HAND}"
        )
    if isinstance(error, ValueError) or "InvalidURL" in kinds:
        hint = f"{first}check the name, or try `hf download {entry.repo} {part.file}`."
        return StoreError(
            entry.name, f"{entry.repo}/{part.file} cannot be downloaded: {said.rstrip('.')}.", hint
        )
    return None


def _disk(error: OSError, entry: Entry, part: Part) -> GgufSpecError:
    if error.errno in _FULL:
        return NoSpaceError(
            entry.name,
            f"the disk of {hub.folder()} is full: {part.file} was not downloaded.",
            None,
            None,
        )
    if error.errno is None:
        # The library found a wrong size.
        return HubError(entry.name, None, f"the hub did not send all of {part.file}.", _BY_HAND)
    where = error.filename or hub.folder()
    return StoreError(
        entry.name,
        f"{where} cannot be used: {error.strerror}.",
        "change its permissions, or set HF_HOME to another folder.",
    )


def _page(entry: Entry) -> str:
    return f"{hub.endpoint()}/{entry.repo}"


def _has_token(error: HfHubHTTPError) -> bool:
    return "authorization" in error.response.request.headers


def _first_look() -> str:
    """Return a hint to check the settings that change the connection to the hub."""
    named = ["HF_ENDPOINT"] if hub.endpoint() != _PUBLIC else []
    named += [name for proxy in _PROXIES for name in (proxy, proxy.lower()) if os.environ.get(name)]
    return f"check {' and '.join(named or ['the connection'])}, "
