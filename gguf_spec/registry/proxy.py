"""The proxy between this machine and the hub or a package index, and its failures."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

_PASSWORD = re.compile(r"(?<=//)[^/@]*@|^[^/@]*@")
_NEEDS_PASSWORD = re.compile(r"\b407\b")


def without_password(address: str) -> str:
    return _PASSWORD.sub("", address)


def proxy_of(url: str, own: Sequence[str] = (), more: Sequence[str] = ()) -> tuple[str, str] | None:
    """Return the variable of the proxy for an address, and the proxy without a password.

    Args:
        url: The address.
        own: Variables that go before the common ones, and that NO_PROXY does not concern.
        more: Variables that come after the one of the scheme, such as HTTP_PROXY.
    """
    for variable in own:
        if value := os.environ.get(variable):
            return variable, without_password(value)
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):  # NO_PROXY
        return None
    for name in (f"{parts.scheme.upper()}_PROXY", *more, "ALL_PROXY"):
        for variable in (name.lower(), name):
            if value := os.environ.get(variable):
                return variable, without_password(value)
    return None


def correction(variable: str, reason: str, no_proxy: bool = True) -> str:
    """Return the hint for a proxy that fails, without a full stop."""
    hint = f"correct or unset {variable}"
    if _NEEDS_PASSWORD.search(reason):
        hint = f"write {variable} as http://USER:PASSWORD@HOST:PORT, or unset it"
    return f"{hint}, or name the host in NO_PROXY" if no_proxy else hint


def by_proxy(error: Exception, url: str) -> tuple[str, str] | None:
    """Return message and hint of an error that a proxy caused; None for other errors.

    Args:
        error: An exception of an HTTP client, or of the connection.
        url: The address of the request.
    """
    # Compare names, because the HTTP library is httpx or httpx2, depending on the version.
    kinds = {kind.__name__ for kind in type(error).__mro__}
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    found = proxy_of(url)
    variable, address = found or ("HTTPS_PROXY", "")
    address = address and f" {address} of {variable}"
    hint = f"{correction(variable, reason)}."
    if "ProxyError" in kinds:
        return f"the proxy{address} refuses the connection to {url}: {reason}.", hint
    if not found:
        return None
    if isinstance(error, ValueError) and "proxy" in reason.lower():
        return f"the proxy{address} has no valid address: {reason}.", hint
    if "ConnectError" in kinds or isinstance(error, (ConnectionError, ImportError)):
        reason = "SOCKS needs the package socksio" if "SOCKS" in reason else reason
        return f"the proxy{address} cannot be reached: {reason}.", hint
    return None
