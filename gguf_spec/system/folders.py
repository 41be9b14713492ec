"""Folders of this user for caches, settings and state.

They are the platform's own folders. On Linux and macOS the XDG variables name others.
"""

from __future__ import annotations

from pathlib import Path

_NAME = "gguf-spec"


def cache_folder() -> Path:
    """Return the folder for measurements and other files that can be made again."""
    from platformdirs import user_cache_path

    return user_cache_path(_NAME, appauthor=False)


def config_folder() -> Path:
    """Return the folder for the user's own settings."""
    from platformdirs import user_config_path

    return user_config_path(_NAME, appauthor=False)


def state_folder() -> Path:
    """Return the folder for histories."""
    from platformdirs import user_state_path

    return user_state_path(_NAME, appauthor=False)


def caches_of_others() -> Path:
    """Return the folder in which other programs keep their cache folders."""
    from platformdirs import user_cache_path

    return user_cache_path()
