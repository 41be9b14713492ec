"""Search for a draft among the models on this disk, by headers only, without their weights.

A draft must have the target's vocabulary, be smaller, and support rollback of its last tokens.
Candidates are ordered as follows: first the draft that models.yaml names, then those with costs
measured on this machine, then the others by the speed-up that their size suggests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import GgufSpecError
from ..errors.texts import Call, Option, Optionally, Text
from ..gguf.model_file import ModelFile
from ..gguf.vocabulary import FileVocabulary
from ..llama.options import ContextOptions
from ..options import K_MAX
from ..registry import download
from ..registry.local_models import local_models
from ..registry.resolve import Entry, entries
from ..speculative.drafters import check_vocabulary
from ..speculative.profile import ModelKey, read_profile
from ..system.cache import cache_file, read_json, write_json
from ..system.units import format_bytes

_VERSION = 1  # format version of cached vocabulary comparisons
# Model of the acceptance rate: its upper limit, and the size of the draft relative to the target
# at which it reaches two thirds of that limit.
_LIKELY, _SIZE_OF_LIKELY = (0.85, 0.04)


@dataclass(frozen=True)
class Candidate:
    """A possible draft model.

    Attributes:
        name: Its name in models.yaml, or its file name.
        file: The file; None if it is not on this disk.
        gain: Expected speed-up over plain decoding; 0 if it cannot draft.
        why: Reason for or against it.
        declared: Whether models.yaml names it as the target's draft.
        measured: Whether the gain comes from costs measured on this machine.
    """

    name: str
    file: ModelFile | None
    gain: float
    why: str
    declared: bool = False
    measured: bool = False

    @property
    def path(self) -> Path | None:
        """Path of the file; None if it is not on this disk."""
        return self.file.path if self.file else None

    @property
    def fits(self) -> bool:
        """Whether it can draft."""
        return self.gain > 0


def choose(
    target: Entry,
    file: ModelFile,
    options: ContextOptions,
    draft_options: ContextOptions,
    models_file: Path | None = None,
) -> tuple[Candidate | None, str]:
    """Return the best draft on this disk, or None, and a sentence that explains the choice.

    The sentence is empty if models.yaml names the chosen draft.

    Args:
        target: The target's entry.
        file: The target's file.
        options: Options of the target; saved measurements are looked up by them.
        draft_options: The same for the draft.
        models_file: As for `resolve`.
    """
    if target.draft in ("ngram", "none"):
        return (
            None,
            f"models.yaml names no draft model for {target.name}: drafts come from the text only.",
        )
    opened: dict[Path, ModelFile] = {}
    declared = entries(models_file).get(target.draft or "")
    if declared and (found := download.find(declared)):
        opened[found] = ModelFile(found)
        one = _judge(declared.name, opened[found], file, options, draft_options, declared=True)
        if one.fits:
            return one, ""
    all_of_them = candidates(target, file, options, draft_options, models_file, opened)
    here = [
        one for one in all_of_them if one.file and (one.gain > 1 or (one.fits and one.declared))
    ]
    if here:
        best = here[0]
        return best, f"the draft is {best.name}: {best.why}."
    absent = next((one for one in all_of_them if one.gain > 1), None)
    hint = (
        Optionally(" To download one, use ", Call("pull", absent.name), ".")
        if absent
        else Optionally(" To use one, set ", Option("draft"), " to a model.")
    )
    return None, Text(
        f"no draft on this disk makes {target.name} faster: drafts come from the text only.", hint
    )


def candidates(
    target: Entry,
    file: ModelFile,
    options: ContextOptions,
    draft_options: ContextOptions,
    models_file: Path | None = None,
    opened: Mapping[Path, ModelFile] | None = None,
) -> list[Candidate]:
    """Return all possible drafts for a target, best first; unusable ones are last.

    Args:
        target: As for `choose`.
        file: As for `choose`.
        options: As for `choose`.
        draft_options: As for `choose`.
        models_file: As for `resolve`.
        opened: Files whose headers may have been read already.

    Raises:
        ModelError: The target's own file is invalid.
    """
    _ = file.header  # raises the target's own error, before any candidate is judged
    judged: list[Candidate] = []
    seen = {file.identity}

    def judge(name: str, path: Path, declared: bool = False) -> None:
        one = (opened or {}).get(path) or ModelFile(path)
        if one.identity not in seen:
            seen.add(one.identity)
            judged.append(_judge(name, one, file, options, draft_options, declared))

    for entry in entries(models_file).values():
        if path := download.find(entry):
            judge(entry.name, path, declared=entry.name == target.draft)
        else:
            judged.append(_absent(entry, target))
    for path in _files(file.path):
        judge(path.name, path)
    return sorted(
        judged,
        key=lambda one: (
            not one.fits,
            one.file is None,
            not one.declared,
            not one.measured,
            -one.gain,
            one.name,
        ),
    )


def _judge(
    name: str,
    file: ModelFile,
    target: ModelFile,
    options: ContextOptions,
    draft_options: ContextOptions,
    declared: bool,
) -> Candidate:
    """Return the candidate for a file, with its expected speed-up or the reason it cannot draft."""
    if why_not := _why_not(file, target):
        return Candidate(name, file, 0.0, why_not, declared)
    profile = read_profile(ModelKey(target, options), ModelKey(file, draft_options))
    if profile:
        gain, k = profile.best(profile.agreement)
        why = f"measured on this machine: {gain:.2f} times plain decoding with {k} tokens a round"
        return Candidate(name, file, gain, why, declared, measured=True)
    share = file.header.file_bytes / target.header.file_bytes
    why = "models.yaml names it" if declared else "it has the same vocabulary"
    return Candidate(
        name, file, _promise(share), f"{why} and has {share:.0%} of the target's size", declared
    )


def _why_not(file: ModelFile, target: ModelFile) -> str:
    """Return the reason why a file cannot draft for the target; empty if it can."""
    try:
        sizes = [format_bytes(one.header.file_bytes) for one in (file, target)]
        if file.header.file_bytes >= target.header.file_bytes:
            return f"it is not smaller than the target ({sizes[0]} against {sizes[1]})"
        if not file.header.facts.can_go_back:
            return f"{file.header.architecture} models cannot remove tokens from their cache"
        return _difference(target, file)
    except GgufSpecError as error:
        return str(error).rstrip(".")


def _absent(entry: Entry, target: Entry) -> Candidate:
    """Return the candidate for a model that is not on this disk, by its models.yaml entry."""
    if entry.name == target.name:
        return Candidate(entry.name, None, 0.0, "it is the target itself")
    if not (target.tokenizer and entry.tokenizer):
        return Candidate(
            entry.name, None, 0.0, "it is not on this disk, so its vocabulary cannot be compared"
        )
    if entry.tokenizer != target.tokenizer:
        return Candidate(
            entry.name,
            None,
            0.0,
            f"it is not on this disk; by models.yaml it has another tokenizer, {entry.tokenizer}",
        )
    if not (entry.size_bytes and target.size_bytes and entry.size_bytes < target.size_bytes):
        return Candidate(
            entry.name, None, 0.0, "it is not on this disk, and not smaller than the target"
        )
    why = Text("it is not on this disk; to download it, use ", Call("pull", entry.name))
    return Candidate(
        entry.name,
        None,
        _promise(entry.size_bytes / target.size_bytes),
        why,
        declared=entry.name == target.draft,
    )


def _difference(target: ModelFile, draft: ModelFile) -> str:
    """Return the difference of two vocabularies, or an empty text if they match.

    The result is cached, because the comparison of large vocabularies is slow.
    """
    memo = cache_file("pairs", [_VERSION, *target.identity, *draft.identity])
    known = read_json(memo)
    if isinstance(known, dict) and isinstance(known.get("difference"), str):
        return str(known["difference"])
    try:
        check_vocabulary(FileVocabulary(target.header), FileVocabulary(draft.header))
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
    """Yield GGUF files beside the target and those of other programs."""
    with contextlib.suppress(OSError):  # an unreadable folder
        yield from (file for file in sorted(target.parent.glob("*.gguf")) if file.is_file())
    yield from (one.path for one in local_models())
