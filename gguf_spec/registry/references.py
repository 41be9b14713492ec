"""References to models without an entry: repositories of the hub, and names of other programs.

Other programs are those that hold models on this disk: the hub's cache, llama.cpp, LM Studio and
Ollama. Only names and places are read here, no headers.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from ..errors import NotOnHubError
from ..system.files import caches_of_others
from . import hub
from .models_file import Entry, Part, is_model_file, is_repo, split_names

_MOST_FILES = 1000  # maximum number of files, because folders may be large
_MANIFEST_BYTES = 1 << 20  # largest manifest of Ollama that is read
_MODEL_LAYER = "application/vnd.ollama.image.model"
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_REGISTRY = "registry.ollama.ai"  # folder of the manifests of Ollama's own library
# One part of a model name of Ollama, and its tag.
_NAME_PART = re.compile(r"\w[\w.-]{0,79}", re.ASCII)
# Quantisation in a file name, as in `Qwen3-4B-Q4_K_M.gguf`.
_QUANT = re.compile(
    r"(?:^|[-._])(I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|BF16|F16|F32)(?=[-._]|$)",
    re.IGNORECASE,
)
_ON_HUB = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([^/:]+/[^/:]+)(?::([\w.-]+))?")
_HOSTS = ("hf.co/", "huggingface.co/")
_OLLAMA = "ollama:"
# Quantisations in the order in which one is taken if a reference names none.
_PREFERRED = ("Q4_K_M", "Q4_0", "MXFP4", "MXFP4_MOE", "Q4_K_S", "IQ4_XS", "Q5_K_M", "Q8_0")


@dataclass(frozen=True)
class LocalModel:
    """A GGUF file that another program holds.

    Attributes:
        name: Its name, as `-m` takes it if the program has names: `OWNER/REPO:QUANT`,
            `ollama:NAME:TAG`, or the file name.
        path: The file.
        repo: `OWNER/REPO` if it is known, as in the hub's cache and in LM Studio's folder.
        commit: The commit if it lies in the hub's cache.
    """

    name: str
    path: Path
    repo: str | None = None
    commit: str | None = None


def quant_of(file: str) -> str:
    """Return the quantisation in a file name, in capitals; empty if it names none."""
    found = _QUANT.findall(re.sub(r"(?i)\.gguf$", "", file.rpartition("/")[2]))
    return str(found[-1]).upper() if found else ""


def local_models() -> Iterator[LocalModel]:
    """Yield the files of other programs; of a split model all parts."""
    home, cache = Path.home(), caches_of_others()
    lm_studio = [home / ".lmstudio/models", cache / "lm-studio/models"]
    llama = [Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp")]
    llama.append(home / "Library/Caches/llama.cpp")
    places: list[tuple[Path, str, Callable[[Path, Path], LocalModel | None]]] = [
        (hub.folder(), "**/*.gguf", _in_hub_cache),
        *((folder, "**/*.gguf", _plain) for folder in llama),
        *((folder, "**/*.gguf", _in_lm_studio) for folder in lm_studio),
        (_ollama() / "blobs", "sha256-*", _blob(_ollama_names())),
    ]
    n_left = _MOST_FILES
    for folder, pattern, describe in places:
        try:
            for path in sorted(folder.glob(pattern)):
                if path.is_file() and (model := describe(folder, path)):
                    yield model
                    n_left -= 1
                    if not n_left:
                        return
        except OSError:
            continue  # skip unreadable folders


def ollama_model(name: str) -> LocalModel | None:
    """Return the model that Ollama holds under `NAME[:TAG]`, or None; the tag is `latest`."""
    path, _, tag = name.partition(":")
    parts = [*path.split("/"), tag or "latest"]
    if not all(_NAME_PART.fullmatch(part) for part in parts):
        return None
    folders = {2: [_REGISTRY, "library"], 3: [_REGISTRY]}.get(len(parts), [])
    manifest = _ollama() / "manifests" / Path(*folders, *parts)
    digest = _model_digest(manifest)
    blob = _ollama() / "blobs" / f"sha256-{digest}"
    if not (digest and blob.is_file()):
        return None
    return LocalModel(_ollama_name(manifest), blob)


def _ollama() -> Path:
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama/models")


def _ollama_names() -> dict[str, str]:
    """Return the names of Ollama's models by the file names of their blobs."""
    names: dict[str, str] = {}
    try:
        for manifest in sorted((_ollama() / "manifests").glob("*/*/*/*"))[:_MOST_FILES]:
            if digest := _model_digest(manifest):
                names.setdefault(f"sha256-{digest}", _ollama_name(manifest))
    except OSError:
        pass  # the blobs then have no other names
    return names


def _ollama_name(manifest: Path) -> str:
    host, *name, tag = manifest.relative_to(_ollama() / "manifests").parts
    if name[:1] == ["library"]:
        name = name[1:]
    return "ollama:" + "/".join([*([] if host == _REGISTRY else [host]), *name]) + f":{tag}"


def _model_digest(manifest: Path) -> str | None:
    """Return the sha256 of the model in a manifest of Ollama, or None. It is untrusted."""
    try:
        with manifest.open("rb") as file:
            data = json.loads(file.read(_MANIFEST_BYTES))
        digests = [one["digest"] for one in data["layers"] if one["mediaType"] == _MODEL_LAYER]
        found = _DIGEST.fullmatch(digests[0])
    except (OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None
    return found[1] if found else None


def _in_hub_cache(folder: Path, path: Path) -> LocalModel:
    top, *rest = path.relative_to(folder).parts
    if not top.startswith("models--") or len(rest) < 3 or rest[0] != "snapshots":
        return LocalModel(path.name, path)
    repo = top.removeprefix("models--").replace("--", "/")
    return LocalModel(_of_repo(repo, path), path, repo, rest[1])


def _in_lm_studio(folder: Path, path: Path) -> LocalModel:
    parts = path.relative_to(folder).parts
    repo = "/".join(parts[:2]) if len(parts) == 3 else None
    return LocalModel(_of_repo(repo, path) if repo else path.name, path, repo)


def _of_repo(repo: str, path: Path) -> str:
    return f"{repo}:{quant_of(path.name)}".rstrip(":")


def _plain(_: Path, path: Path) -> LocalModel:
    return LocalModel(path.name, path)


def _blob(names: dict[str, str]) -> Callable[[Path, Path], LocalModel | None]:
    def describe(_: Path, path: Path) -> LocalModel | None:
        with path.open("rb") as file:
            is_gguf = file.read(4) == b"GGUF"
        return LocalModel(names.get(path.name, path.name), path) if is_gguf else None

    return describe


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
    firsts = [file for file in sorted(files) if split_names(file)[0] == file]
    firsts = [file for file in firsts if "mmproj" not in file.lower()]
    for one in (quant,) if quant else _PREFERRED:
        if found := next((file for file in firsts if quant_of(file) == one), None):
            return found
    return firsts[0] if firsts and not quant else None


def _held(wanted: Repository) -> LocalModel | None:
    """Return the file of a repository that another program holds, or None."""
    of_repo: dict[str, LocalModel] = {}
    begin = wanted.repo.replace("/", "_").lower() + "_"  # as llama.cpp names its files
    for one in local_models():
        is_repo_of = (one.repo or "").lower() == wanted.repo.lower()
        if is_repo_of or one.path.name.lower().startswith(begin):
            of_repo.setdefault(one.path.name, one)
    file = _choose(of_repo, wanted.quant)
    return of_repo[file] if file else None


def _by_file_name(name: str) -> LocalModel | None:
    wanted = name.lower().removesuffix(".gguf")
    for one in local_models():
        is_first = split_names(one.path.name)[0] == one.path.name
        if is_first and wanted in (one.path.stem.lower(), one.name.lower()):
            return one
    return None


def _entry(name: str, held: LocalModel) -> Entry:
    """Return the entry of a file of another program; one in the hub's cache can be removed."""
    if held.repo and held.commit:
        folder = next(p for p in held.path.parents if p.parent.name == "snapshots")
        first = held.path.relative_to(folder).as_posix()
        parts = tuple(Part(file) for file in split_names(first))
        return Entry(name, held.repo, held.commit, parts, None)
    return Entry(name, None, None, (), Path(held.path))
