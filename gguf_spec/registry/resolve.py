"""Resolution of models to entries: names, paths, locations on the hub, names of other programs.

Names come from the package's models.yaml and from the user's own models file, which has priority.
Other programs are those that hold models on this disk: the hub's cache, llama.cpp, LM Studio and
Ollama. Only names and places are read here, no headers.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from ..errors import ModelNotFoundError, NotOnHubError
from ..options import ARGUMENTS, check_types, require
from ..system.files import caches_of_others, config_folder, files_below
from . import hub
from .models_file import Entry, Part, is_model_file, is_repo, read_models_file, split_names

__all__ = ["Entry", "Part", "entries", "resolve", "split_names", "user_file"]

ModelName: TypeAlias = str | Path | Entry

_PACKAGE = Path(__file__).resolve().parents[1]
_HUB = re.compile(r"hf:([^/]+/[^/]+)/(.+?\.(?i:gguf))(?:@(.+))?")
_REVISION = re.compile(r"(?!.*(?:\.\.|//))\w[\w./-]{0,199}", re.ASCII)
_HUB_HINT = "write hf:OWNER/REPO/FILE.gguf, or hf:OWNER/REPO/FILE.gguf@REVISION."
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
# A page or a file of the hub, as a browser shows its address.
_ADDRESS = re.compile(
    r"(?:hf:)?(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/([^/?#]+/[^/?#]+)"
    r"/(?:resolve|blob|raw|tree)/([^/?#]+)/?([^?#]*)(?:[?#].*)?"
)
_ON_HUB = re.compile(r"(?:(?:https://)?(?:hf\.co|huggingface\.co)/)?([^/:]+/[^/:]+)(?::([\w.-]+))?")
_HOSTS = ("hf.co/", "huggingface.co/")
_OLLAMA = "ollama:"
# Quantisations in the order in which one is taken if a reference names none.
_PREFERRED = ("Q4_K_M", "Q4_0", "MXFP4", "MXFP4_MOE", "Q4_K_S", "IQ4_XS", "Q5_K_M", "Q8_0")


@cache
def _package_entries() -> dict[str, Entry]:
    for folder in (_PACKAGE, _PACKAGE.parent):  # installed; in a checkout
        path = folder / "models.yaml"
        if path.exists():
            return read_models_file(path, {})
    fact = "models.yaml is neither in the package nor beside it"
    raise FileNotFoundError(f"{fact}; install gguf-spec again")


def user_file() -> Path | None:
    """Return the path of the user's own models file, or None for a user without a home folder."""
    path = config_folder() / "models.yaml"
    return path if path.is_absolute() and Path(os.devnull) not in path.parents else None


def entries(models_file: str | Path | None = None) -> dict[str, Entry]:
    """Return all entries by name.

    Entries of the user's file override those of the package. Entries of `models_file` override
    both, and take names and aliases from them.

    Raises:
        InvalidModelsFileError: One of the files has an error.
        OptionTypeError: `models_file` is no path.
    """
    check_types(models_file=models_file)
    found = dict(_package_entries())
    own = user_file()
    for file in (own if own and os.path.lexists(own) else None, models_file):
        if file:
            above = read_models_file(Path(file), found)
            taken = set(above).union(*(entry.aliases for entry in above.values()))
            for name, entry in found.items():
                left = tuple(alias for alias in entry.aliases if alias not in taken)
                found[name] = replace(entry, aliases=left)
            found |= above
    return found


def resolve(model: ModelName, models_file: str | Path | None = None) -> Entry:
    """Return the entry of a model, which need not be on this disk.

    A text that is a name means the name even if a file with that name exists; `./name` means the
    file. A `Path` is never a name.

    Args:
        model: The model.
        models_file: As for `list_models`.

    Raises:
        ModelNotFoundError: There is no such model. The hint contains the closest name.
        InvalidModelsFileError: A models file has an error.
    """
    if isinstance(model, Entry):
        return model
    check_types(model=model)
    require("model", model, ARGUMENTS["model"].allowed, model != "")
    if isinstance(model, str) and (address := _ADDRESS.fullmatch(model)):
        model = _of_address(*address.groups(default=""))
    if isinstance(model, str) and model.startswith("hf:"):
        if parse(model[3:]) and (entry := _of_reference(model[3:])):
            return entry
        return _on_hub(model)
    if isinstance(model, str) and not {"/", os.sep} & set(model):
        known = entries(models_file)
        found = known.get(model.lower()) or _by_alias(known).get(model.lower())
        if found:
            return found
    path = Path(model)
    try:
        path = path.expanduser()
        if os.path.lexists(path):  # also a link that leads nowhere, which its reader names
            return Entry(path.name, None, None, (), path)
    except (OSError, RuntimeError, ValueError):
        pass  # the name is too long, or the home folder does not exist
    if isinstance(model, str) and (entry := _of_reference(model)):
        return entry
    raise _not_found(str(model), path, models_file)


def _not_found(model: str, path: Path, models_file: str | Path | None) -> ModelNotFoundError:
    if model.lower().startswith(_OLLAMA):
        message = f"Ollama has no model {model[len(_OLLAMA) :]} on this disk."
        hint = "`gguf-spec models list` shows those that it has."
        return ModelNotFoundError(path, message, hint)
    if re.match(r"\w+://", model):
        message = f"{model} is an address, and no model is loaded from one."
        hint = "download the file and name its path, or name a file of the hub: "
        return ModelNotFoundError(path, message, hint + "hf:OWNER/REPO/FILE.gguf.")
    known = entries(models_file)
    close = difflib.get_close_matches(model[:200].lower(), [*known, *_by_alias(known)], n=1)
    hint = "name a GGUF file, OWNER/REPO or hf:OWNER/REPO/FILE, or a name that "
    hint += "`gguf-spec models list` shows."
    on_hub = _HUB.fullmatch(f"hf:{model}")
    if on_hub and is_repo(on_hub[1]) and not Path(on_hub[1]).parent.exists():
        close = [f"hf:{model}"]
    if close:
        hint = f"did you mean {close[0]}?"
    return ModelNotFoundError(path, f"there is no file {path} and no model with that name.", hint)


def _by_alias(known: Mapping[str, Entry]) -> dict[str, Entry]:
    return {alias: entry for entry in known.values() for alias in entry.aliases}


def _of_address(repo: str, revision: str, file: str) -> str:
    """Return the name of a model by the parts of its address on the hub."""
    at = "" if revision == "main" else f"@{revision}"
    return f"hf:{repo}/{unquote(file)}{at}" if file else repo


def _on_hub(spec: str) -> Entry:
    parsed = _HUB.fullmatch(spec)
    repo, file, revision = parsed.groups(default="main") if parsed else ("", "", "")
    if not is_repo(repo) or not is_model_file(file):
        message = f"{spec!r} does not name a GGUF file on the hub."
        raise ModelNotFoundError(Path(spec), message, _HUB_HINT)
    if not _REVISION.fullmatch(revision):
        message = f"{revision!r} in {spec!r} is not a revision."
        hint = "name a branch, a tag or a commit of the repository."
        raise ModelNotFoundError(Path(spec), message, hint)
    names = split_names(file)
    if file != names[0]:
        message = f"{file} is a later part of a split model."
        raise ModelNotFoundError(Path(spec), message, f"name its first part, {names[0]}.")
    return Entry(spec, repo, revision, tuple(Part(name) for name in names), None)


# ---- models of other programs, and repositories of the hub


@dataclass(frozen=True)
class LocalModel:
    """A GGUF file that another program holds.

    Attributes:
        name: Its name, as `-m` takes it if the program has names: `OWNER/REPO:QUANT`,
            `ollama:NAME:TAG`, or the file name.
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
    places = (
        ("hub", hub.folder()),
        ("llama.cpp", Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp")),
        ("llama.cpp", home / "Library/Caches/llama.cpp"),
        ("LM Studio", home / ".lmstudio/models"),
        ("LM Studio", cache / "lm-studio/models"),
        ("Ollama", _ollama() / "blobs"),
    )
    n_left, ollama_names = _MOST_FILES, _ollama_names()
    for program, folder in places:
        try:
            for path in files_below(folder):
                is_named = path.match("sha256-*" if program == "Ollama" else "*.gguf")
                if not is_named or not path.is_file():
                    continue
                if program != "Ollama":
                    model = _in_folder(program, path, path.relative_to(folder).parts)
                elif _is_gguf(path):
                    model = LocalModel(ollama_names.get(path.name, path.name), path)
                else:
                    continue
                yield model
                n_left -= 1
                if not n_left:
                    return
        except OSError:
            continue  # skip unreadable folders


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _in_folder(program: str, path: Path, parts: tuple[str, ...]) -> LocalModel:
    """Return the model of a file whose folders may tell its repository."""
    repo = commit = None
    if program == "hub":
        if parts[0].startswith("models--") and len(parts) > 3 and parts[1] == "snapshots":
            repo, commit = parts[0].removeprefix("models--").replace("--", "/"), parts[2]
    elif program == "LM Studio" and len(parts) == 3:
        repo = "/".join(parts[:2])
    name = f"{repo}:{quant_of(path.name)}".rstrip(":") if repo else path.name
    return LocalModel(name, path, repo, commit)


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


def parse(reference: str) -> tuple[str, str] | None:
    """Return the repository of `[hf.co/]OWNER/REPO[:QUANT]`, and the quantisation in capitals.

    The quantisation is empty if none is named. The result is None for any other text.
    """
    found = _ON_HUB.fullmatch(reference)
    if not found or not is_repo(found[1]) or found[1].startswith(_HOSTS):
        return None
    if reference.lower().endswith(".gguf"):  # a missing file
        return None
    return found[1], (found[2] or "").upper()


def _of_reference(reference: str) -> Entry | None:
    """Return the entry of a reference, or None if it has no such form and no program holds it.

    An entry of a repository that is not on this disk has no parts: `located` asks the hub for them.

    Args:
        reference: `OWNER/REPO[:QUANT]`, `hf.co/OWNER/REPO[:QUANT]`, `ollama:NAME[:TAG]`, a name of
            Ollama, or the name of a file that another program holds, with or without `.gguf`.
    """
    wanted = None
    if reference.lower().startswith(_OLLAMA):
        held = ollama_model(reference[len(_OLLAMA) :])
    elif wanted := parse(reference):
        held = _held(*wanted)
    else:
        held = ollama_model(reference) or _by_file_name(reference)
    if held is None:
        return Entry(reference, wanted[0], "main", (), None) if wanted else None
    if held.repo and held.commit:  # in the hub's cache, so that it can be removed
        folder = next(p for p in held.path.parents if p.parent.name == "snapshots")
        first = held.path.relative_to(folder).as_posix()
        parts = tuple(Part(file) for file in split_names(first))
        return Entry(reference, held.repo, held.commit, parts, None)
    return Entry(reference, None, None, (), Path(held.path))


def located(entry: Entry, commit: str, parts: Sequence[Part]) -> Entry:
    """Return an entry of a repository with the files to load.

    Args:
        entry: An entry from `resolve`.

    Raises:
        NotOnHubError: It has no GGUF file, or none with the wanted quantisation.
    """
    wanted = parse(entry.name)
    assert wanted is not None
    known = {part.file: part for part in parts if is_model_file(part.file)}
    repo, quant = wanted
    file = _choose(known, quant)
    if file is None:
        quants = ", ".join(dict.fromkeys(filter(None, map(quant_of, known))))
        what = f"file of the quantisation {quant}" if quants else "GGUF file"
        hint = f"it has {quants}." if quants else "take a repository whose name ends in GGUF."
        raise NotOnHubError(entry.name, "file", f"{repo} has no {what}.", hint)
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


def _held(repo: str, quant: str) -> LocalModel | None:
    """Return the file of a repository that another program holds, or None."""
    of_repo: dict[str, LocalModel] = {}
    begin = repo.replace("/", "_").lower() + "_"  # as llama.cpp names its files
    for one in local_models():
        is_repo_of = (one.repo or "").lower() == repo.lower()
        if is_repo_of or one.path.name.lower().startswith(begin):
            of_repo.setdefault(one.path.name, one)
    file = _choose(of_repo, quant)
    return of_repo[file] if file else None


def _by_file_name(name: str) -> LocalModel | None:
    wanted = name.lower().removesuffix(".gguf")
    for one in local_models():
        is_first = split_names(one.path.name)[0] == one.path.name
        if is_first and wanted in (one.path.stem.lower(), one.name.lower()):
            return one
    return None
