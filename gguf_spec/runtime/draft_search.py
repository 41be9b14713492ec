"""Search for a draft among the models on this disk, by headers only, without their weights.

A draft must have the target's vocabulary, be smaller, and support rollback of its last tokens.
Candidates are ordered as follows: first the draft that models.yaml names, then those with costs
measured on this machine, then the others by the speed-up that their size suggests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import GgufSpecError
from ..gguf.validation import Header, check_generates_text, read_header
from ..gguf.vocabulary import FileVocabulary
from ..llama.options import ContextOptions
from ..options import K_MAX
from ..registry import download, hub
from ..registry.resolve import Entry, entries
from ..speculative.drafters import check_vocabulary
from ..speculative.profile import ModelKey, read_profile
from ..system.cache import cache_file, read_json, write_json
from ..system.folders import caches_of_others

# Recurrent and hybrid architectures, whose state does not support rollback.
_CANNOT_GO_BACK = {
    "mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7", "jamba", "falcon-h1", "plamo2",
    "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe",
    "qwen3next", "kimi-linear", "bailingmoe3", "kimi-k3", "glm5-next", "qwen35", "qwen35moe",
    "qwen4exp", "deepseek4", "minimax-01",
}  # fmt: skip
_VERSION = 1  # format version of cached vocabulary comparisons
_MOST_FILES = 1000  # maximum number of files examined, because folders may be large
# Model of the acceptance rate: its upper limit, and the size of the draft relative to the target
# at which it reaches two thirds of that limit.
_LIKELY, _SIZE_OF_LIKELY = (0.85, 0.04)


@dataclass(frozen=True)
class Candidate:
    """A possible draft model.

    Attributes:
        name: Its name in models.yaml, or its file name.
        path: The file; None if it is not on this disk.
        gain: Expected speed-up over plain decoding; 0 if it cannot draft.
        why: Reason for or against it.
        declared: Whether models.yaml names it as the target's draft.
        measured: Whether the gain comes from costs measured on this machine.
    """

    name: str
    path: Path | None
    gain: float
    why: str
    declared: bool = False
    measured: bool = False

    @property
    def fits(self) -> bool:
        """Whether it can draft."""
        return self.gain > 0


def choose(
    target: Entry, path: Path, options: ContextOptions, models_file: Path | None = None
) -> tuple[Candidate | None, str]:
    """Return the best draft on this disk, or None, and a sentence that explains the choice.

    The sentence is empty if models.yaml names the chosen draft.

    Args:
        target: The target's entry.
        path: The target's file.
        options: Context options of both models; saved measurements are looked up by them.
        models_file: As for `resolve`.
    """
    if target.draft in ("ngram", "none"):
        return (
            None,
            f"models.yaml names no draft model for {target.name}: drafting from the text alone.",
        )
    known = entries(models_file)
    declared = known.get(target.draft or "")
    if declared and (found := download.find(declared)):
        one = _judge(declared.name, found, read_header(path), options, declared=True)
        if one.fits:
            return one, ""
    all_of_them = candidates(target, path, options, models_file)
    here = [
        one for one in all_of_them if one.path and (one.gain > 1 or (one.fits and one.declared))
    ]
    if here:
        best = here[0]
        return best, f"drafting with {best.name}: {best.why}."
    absent = next((one for one in all_of_them if one.gain > 1), None)
    hint = (
        f"gguf-spec models pull {absent.name} would bring one."
        if absent
        else "Give one with --draft FILE."
    )
    return (
        None,
        f"no draft that pays for {target.name} is on this disk: drafting from the text alone. "
        f"{hint}",
    )


def candidates(
    target: Entry, path: Path, options: ContextOptions, models_file: Path | None = None
) -> list[Candidate]:
    """Return all possible drafts for a target, best first; unusable ones are last.

    Raises:
        ModelError: The target's own file is invalid.
    """
    header = read_header(path)
    check_generates_text(header)
    judged: list[Candidate] = []
    seen = {_identity(path)}
    for entry in entries(models_file).values():
        file = download.find(entry)
        if file is None:
            judged.append(_absent(entry, target))
        elif _identity(file) not in seen:
            seen.add(_identity(file))
            judged.append(
                _judge(entry.name, file, header, options, declared=entry.name == target.draft)
            )
    for file in _files(path):
        if _identity(file) not in seen:
            seen.add(_identity(file))
            judged.append(_judge(file.name, file, header, options))
    return sorted(
        judged,
        key=lambda one: (
            not one.fits,
            one.path is None,
            not one.declared,
            not one.measured,
            -one.gain,
            one.name,
        ),
    )


def _judge(
    name: str, path: Path, target: Header, options: ContextOptions, declared: bool = False
) -> Candidate:
    """Return the candidate for a file, with its expected speed-up or the reason it cannot draft."""
    try:
        header = read_header(path)
        check_generates_text(header)
        if header.file_bytes >= target.file_bytes:
            return Candidate(
                name,
                path,
                0.0,
                f"no smaller than the target ({_mb(header)} against {_mb(target)})",
                declared,
            )
        if header.architecture in _CANNOT_GO_BACK:
            return Candidate(
                name, path, 0.0, f"{header.architecture} models cannot go back a token", declared
            )
        difference = _difference(target, header)
        if difference:
            return Candidate(name, path, 0.0, difference, declared)
    except GgufSpecError as error:
        return Candidate(name, path, 0.0, str(error).rstrip("."), declared)
    share = header.file_bytes / target.file_bytes
    profile = read_profile(ModelKey(target.path, options), ModelKey(path, options))
    if profile:
        gain, k = profile.best(profile.agreement)
        return Candidate(
            name,
            path,
            gain,
            f"measured here, {gain:.2f} times plain decoding with {k} a round",
            declared,
            measured=True,
        )
    why = "models.yaml names it" if declared else "it speaks the same vocabulary"
    return Candidate(
        name, path, _promise(share), f"{why} and has {share:.0%} of the target's size", declared
    )


def _absent(entry: Entry, target: Entry) -> Candidate:
    """Return the candidate for a model that is not on this disk, by its models.yaml entry."""
    if entry.name == target.name:
        return Candidate(entry.name, None, 0.0, "the target itself")
    if not (target.tokenizer and entry.tokenizer):
        return Candidate(
            entry.name, None, 0.0, "not on this disk, so that its vocabulary cannot be compared"
        )
    if entry.tokenizer != target.tokenizer:
        return Candidate(
            entry.name,
            None,
            0.0,
            f"not on this disk; by models.yaml its tokenizer is that of {entry.tokenizer}",
        )
    if not (entry.size_bytes and target.size_bytes and entry.size_bytes < target.size_bytes):
        return Candidate(entry.name, None, 0.0, "not on this disk; no smaller than the target")
    why = f"not on this disk: gguf-spec models pull {entry.name}"
    return Candidate(
        entry.name,
        None,
        _promise(entry.size_bytes / target.size_bytes),
        why,
        declared=entry.name == target.draft,
    )


def _difference(target: Header, draft: Header) -> str:
    """Return the difference of two vocabularies, or an empty text if they match.

    The result is cached, because the comparison of large vocabularies is slow.
    """
    memo = cache_file("pairs", [_VERSION, *_identity(target.path), *_identity(draft.path)])
    known = read_json(memo)
    if isinstance(known, dict) and isinstance(known.get("difference"), str):
        return str(known["difference"])
    try:
        check_vocabulary(FileVocabulary(target), FileVocabulary(draft))
        difference = ""
    except GgufSpecError as error:
        difference = str(error).rstrip(".")
    write_json(memo, {"difference": difference})
    return difference


def _promise(share: float) -> float:
    """Return the speed-up that a draft's relative size suggests, for ranking without measurements.

    A draft's cost is proportional to its size. Its acceptance rate grows with its size up to a
    limit.

    Args:
        share: Size of the draft divided by the size of the target.
    """
    likely = _LIKELY * share / (share + _SIZE_OF_LIKELY / 2)
    brings, best = 1.0, 0.0
    for k in range(1, K_MAX + 1):
        brings += likely**k
        best = max(best, brings / (1 + k * share))
    return best


def _files(target: Path) -> Iterator[Path]:
    """Yield GGUF files beside the target and in the caches of other programs."""
    home, cache = Path.home(), caches_of_others()
    folders = [
        target.parent, hub.folder(), Path(os.environ.get("LLAMA_CACHE") or cache / "llama.cpp"),
        home / "Library/Caches/llama.cpp", home / ".lmstudio/models", cache / "lm-studio/models",
    ]  # fmt: skip
    ollama = Path(os.environ.get("OLLAMA_MODELS") or home / ".ollama/models") / "blobs"
    n_left = _MOST_FILES
    for folder, pattern in [
        (folders[0], "*.gguf"),
        *((folder, "**/*.gguf") for folder in folders[1:]),
        (ollama, "sha256-*"),
    ]:
        try:
            for file in sorted(folder.glob(pattern)):
                if file.is_file() and (pattern != "sha256-*" or _is_gguf(file)):
                    yield file
                    n_left -= 1
                    if not n_left:
                        return
        except OSError:
            continue  # skip unreadable folders


def _is_gguf(file: Path) -> bool:
    with file.open("rb") as opened:
        return opened.read(4) == b"GGUF"


def _identity(path: Path) -> tuple[str, int, int]:
    """Return real path, size and modification time, which identify a file."""
    real = path.resolve()
    stat = real.stat()
    return str(real), stat.st_size, stat.st_mtime_ns


def _mb(header: Header) -> str:
    return f"{header.file_bytes / 1e6:,.0f} MB"
