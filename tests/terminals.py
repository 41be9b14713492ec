"""What a command shows at a terminal of its own."""

import os


def screen_of(here, until=None, then=lambda: None):
    """Return all bytes that come out of a pseudo-terminal before its other end is closed, and close it.

    Args:
        here: Its file descriptor.
        until: Bytes to wait for.
        then: Called once when they are there.
    """
    seen = b""
    while True:
        try:
            data = os.read(here, 65536)
        except OSError:  # Linux: the other end was closed
            break
        if not data:
            break
        seen += data
        if until and until in seen:
            until = None
            then()
    os.close(here)
    return seen
