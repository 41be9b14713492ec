"""What the set-up keeps in the user's cache for other clones: folders of files with their sums.

A folder appears with all of its files, also after a loss of power, and is checked before each use. What is not as it was kept is removed, so that it
is made again. Only the standard library; must be importable on Python 3.8.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

SUMS = "sums.json"


def sum_of(path: Path) -> str:
    digest = hashlib.sha256()
    with opened(path) as file:
        for chunk in iter(lambda: file.read(1 << 20), b""):
            digest.update(chunk)
    return digest.hexdigest()


def opened(path: Path):
    """Open a file to read it; another kind of file, such as a pipe, could block for ever."""
    if not path.is_file():
        raise FileNotFoundError(path)
    return path.open("rb")


def sync(path: Path) -> None:
    """Wait until the data of a file, or the names in a folder, are on the disk."""
    is_windows = sys.platform == "win32"  # it opens no folders, and syncs what may be written
    if is_windows and path.is_dir():
        return
    file = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def discard(path: Path) -> None:
    """Remove what has this name: a file, a link, or a folder with all that is in it, also without permissions.

    What stays, such as a folder of another user, gets another name.
    """
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    with contextlib.suppress(OSError):
        path.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
    if path.exists():
        path.rename(path.with_name(f"{path.name}.{os.getpid()}.part"))


def write(path: Path, text: str) -> None:
    """Write a file that is there completely or not at all, also after a loss of power."""
    part = path.with_suffix(".part")
    discard(part)
    part.write_text(text, encoding="utf-8")
    place(part, path)


def place(part: Path, path: Path) -> None:
    """Give a written file, or a folder with synced files, its name in place of what has it."""
    sync(part)
    if part.is_dir() or path.is_dir():
        discard(path)
    part.replace(path)
    sync(path.parent)


def keep(part: Path, folder: Path) -> None:
    """Give the folder `part` its place, with the sums of its files."""
    add_sums(part)
    place(part, folder)


def add_sums(folder: Path) -> None:
    files = sorted(one for one in folder.iterdir() if one.name != SUMS)
    sums = {one.name: sum_of(one) for one in files}
    for one in files:
        sync(one)
    write(folder / SUMS, json.dumps(sums, indent=1))


def whole(folder: Path) -> list:
    """Return the files of a kept folder; empty where one is not as it was kept."""
    try:
        with opened(folder / SUMS) as file:
            sums = json.loads(file.read())
        files = [folder / name for name in sums]
        return files if all(sum_of(one) == sums[one.name] for one in files) else []
    except (OSError, ValueError, TypeError):
        return []


def find(folder: Path, say) -> list:
    """Return the files of a kept folder; empty where there is none, or where one is damaged: then it is removed, and `say` tells it."""
    files = whole(folder)
    if not files and os.path.lexists(folder):
        say(f"Damaged, so it is made again: {folder}")
        discard(folder)
    return files


def usable(folder: Path) -> None:
    """Make a folder of the cache; what has its name and is no folder that can be used is removed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.is_dir() and not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):
            folder.chmod(0o755)
    if not (folder.is_dir() and os.access(folder, os.R_OK | os.W_OK | os.X_OK)):
        discard(folder)
        folder.mkdir()


# ---- many small files as one


def listed(folder: Path, ignore) -> list:
    """Return the folders and files below a folder, each before what is in it; `ignore` is as for `shutil.copytree`."""
    found = [folder]
    for where, folders, files in os.walk(folder):
        left_out = ignore(where, [*folders, *files])
        folders[:] = [name for name in folders if name not in left_out]
        found += [Path(where, name) for name in [*folders, *files] if name not in left_out]
    return found
