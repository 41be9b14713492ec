"""Check of the place of a GGUF file that is written from another one."""

from __future__ import annotations

from pathlib import Path

from ..errors import OutputFileError, Text
from .header import Header


def check_place(header: Header, target: Path, force: bool) -> None:
    """Reject a target that must not be overwritten.

    Args:
        header: Header of the source.
        target: The file to write.
        force: Whether an existing file may be replaced.

    Raises:
        OutputFileError: The folder does not exist, or the target is a part of the source, is not a
            file, or exists without `force`.
    """

    def refuse(fact: str, hint: str) -> OutputFileError:
        return OutputFileError("target", target, f"{target} {fact}.", hint)

    if not target.parent.is_dir():
        raise refuse("is in a folder that does not exist", f"create the folder {target.parent}.")
    if any(target.exists() and target.samefile(file) for file in header.parts):
        raise refuse("is the model itself", "choose another name.")
    if target.exists() and not target.is_file():
        raise refuse("is not a file", "name the file to write, such as small.gguf.")
    if target.exists() and not force:
        hint = Text("choose another name, or set {force=True} to replace the file.")
        raise refuse("exists", hint)
