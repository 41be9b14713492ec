"""Entry point of the program and of `python -m gguf_spec`."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and exit."""
    # Before the imports, which are slow: process 1 of a container has no default actions.
    _end_at_once()
    from .cli import main as run

    try:
        run()
    except KeyboardInterrupt:  # while it sets up, or says why it fails
        os._exit(130)
    finally:
        _end_at_once()  # nothing is left that an interrupt may stop


def _end_at_once() -> None:
    """End this program at once by signals that are not ignored."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows lacks the last one
        if number and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: os._exit(128 + number))


if __name__ == "__main__":
    main()
