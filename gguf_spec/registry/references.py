"""References to models without an entry: repositories of the hub, and names of other programs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ..errors import NotOnHubError
from .local_models import LocalModel, local_models, ollama_model, quant_of
from .models_file import Entry, Part, is_model_file, is_repo, split_names

_ON_HUB = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([^/:]+/[^/:]+)(?::([\w.-]+))?")
_HOSTS = ("hf.co/", "huggingface.co/")
_OLLAMA = "ollama:"
# Quantisations in the order in which one is taken if a reference names none.
_PREFERRED = ("Q4_K_M", "Q4_0", "MXFP4", "MXFP4_MOE", "Q4_K_S", "IQ4_XS", "Q5_K_M", "Q8_0")


class Repository(NamedTuple):
    """A reference to a repository of the hub.

    Attributes:
        repo: `OWNER/REPO`.
        quant: Quantisation in capitals; empty if the reference names none.
    """

    repo: str
    quant: str


def parse(reference: str) -> Repository | None:
    """Return the repository of `[hf.co/]OWNER/REPO[:QUANT]`; None for any other text."""
    found = _ON_HUB.fullmatch(reference)
    if not found or not is_repo(found[1]) or found[1].startswith(_HOSTS):
        return None
    if reference.lower().endswith(".gguf"):  # a missing file
        return None
    return Repository(found[1], (found[2] or "").upper())


def find(reference: str) -> Entry | None:
    """Return the entry of a reference, or None if it has no such form and no program holds it.

    An entry of a repository that is not on this disk has no parts: `located` asks the hub for them.

    Args:
        reference: `OWNER/REPO[:QUANT]`, `hf.co/OWNER/REPO[:QUANT]`, `ollama:NAME[:TAG]`, a name of
            Ollama, or the name of a file that another program holds, with or without `.gguf`.
    """
    if reference.lower().startswith(_OLLAMA):
        held = ollama_model(reference[len(_OLLAMA) :])
        return _entry(reference, held) if held else None
    wanted = parse(reference)
    if wanted:
        held = _held(wanted)
        return _entry(reference, held) if held else Entry(reference, wanted.repo, "main", (), None)
    held = ollama_model(reference) or _by_file_name(reference)
    return _entry(reference, held) if held else None


def located(entry: Entry, commit: str, parts: Sequence[Part]) -> Entry:
    """Return an entry of a repository with the files to load.

    Args:
        entry: An entry from `find`.
        commit: Commit of the repository.
        parts: The files of the repository.

    Raises:
        NotOnHubError: It has no GGUF file, or none with the wanted quantisation.
    """
    wanted = parse(entry.name)
    assert wanted is not None
    known = {part.file: part for part in parts if is_model_file(part.file)}
    file = _choose(known, wanted.quant)
    if file is None:
        quants = ", ".join(dict.fromkeys(filter(None, map(quant_of, known))))
        what = f"file of the quantisation {wanted.quant}" if quants else "GGUF file"
        hint = f"it has {quants}." if quants else "take a repository whose name ends in GGUF."
        raise NotOnHubError(entry.name, "file", f"{wanted.repo} has no {what}.", hint)
    names = split_names(file)
    return replace(entry, revision=commit, parts=tuple(known.get(n, Part(n)) for n in names))


def _choose(files: Iterable[str], quant: str) -> str | None:
    """Return the file of a quantisation, or the preferred one; of a split model the first part."""
    firsts = [
        file
        for file in sorted(files)
        if split_names(file)[0] == file and "mmproj" not in file.lower()
    ]
    if quant:
        return next((file for file in firsts if quant_of(file) == quant), None)
    for one in _PREFERRED:
        if found := next((file for file in firsts if quant_of(file) == one), None):
            return found
    return firsts[0] if firsts else None


def _held(wanted: Repository) -> LocalModel | None:
    """Return the file of a repository that another program holds, or None."""
    of_repo: dict[str, LocalModel] = {}
    begin = wanted.repo.replace("/", "_").lower() + "_"  # as llama.cpp names its files
    for one in local_models():
        if (one.repo or "").lower() == wanted.repo.lower() or one.path.name.lower().startswith(
            begin
        ):
            of_repo.setdefault(one.path.name, one)
    file = _choose(of_repo, wanted.quant)
    return of_repo[file] if file else None


def _by_file_name(name: str) -> LocalModel | None:
    wanted = name.lower().removesuffix(".gguf")
    return next(
        (
            one
            for one in local_models()
            if wanted in (one.path.stem.lower(), one.name.lower())
            and split_names(one.path.name)[0] == one.path.name
        ),
        None,
    )


def _entry(name: str, held: LocalModel) -> Entry:
    """Return the entry of a file of another program; one in the hub's cache can be removed."""
    if held.repo and held.commit:
        folder = next(p for p in held.path.parents if p.parent.name == "snapshots")
        first = held.path.relative_to(folder).as_posix()
        parts = tuple(Part(file) for file in split_names(first))
        return Entry(name, held.repo, held.commit, parts, None)
    return Entry(name, None, None, (), Path(held.path))
