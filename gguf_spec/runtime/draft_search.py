"""Search for a draft among the models on this disk, by headers only, without their weights.

A draft must have the target's vocabulary and be smaller. One with another tokenizer is chosen only
if it was measured, or if models.yaml names it.
Candidates are ordered as follows: first the draft that models.yaml names, then those with costs
measured on this machine, then the others by the speed-up that their size suggests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import GgufSpecError, Pull, Text, VocabularyMismatchError
from ..gguf.heads import (
    described,
    head_bytes,
    head_kind,
    is_head_alone,
    n_heads,
    target_layers,
    why_misfit,
    why_no_head,
)
from ..gguf.validation import ModelFile, trimmed
from ..gguf.vocabulary import FileVocabulary
from ..llama.options import ContextOptions
from ..options import K_MAX
from ..registry import download
from ..registry.references import local_models
from ..registry.resolve import Entry, entries
from ..speculative.profile import ModelKey, Profile, read_profile
from ..speculative.vocabularies import check_vocabulary, common_share
from ..system.files import cache_file, read_json, write_json
from ..system.machine import format_bytes

_VERSION = 2  # format version of cached vocabulary comparisons
# Model of the acceptance rate: its upper limit, and the size of the draft relative to the target
# at which it reaches two thirds of that limit.
_LIKELY, _SIZE_OF_LIKELY = (0.85, 0.04)
# Factor of the acceptance rate of a draft with another tokenizer; largest share of its common
# tokens, because 1 stands for the same vocabulary.
_TRANSLATED, _NOT_ALL = (0.7, 0.99)


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
        translated: Whether it has another tokenizer than the target.
        head: `mtp` or `eagle3` for a prediction head, empty for a model. One in a file of its own
            drafts only if the file is named as the draft.
    """

    name: str
    file: ModelFile | None
    gain: float
    why: str
    declared: bool = False
    measured: bool = False
    translated: bool = False
    head: str = ""

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
        opened[found] = ModelFile(found, as_draft=True)
        one = _judge(declared.name, opened[found], file, options, draft_options, declared=True)
        if one.fits and not one.head:
            return one, ""
    all_of_them = candidates(target, file, options, draft_options, models_file, opened)
    here = [
        one
        for one in all_of_them
        if one.file
        and not one.head
        and (one.gain > 1 or (one.fits and one.declared))
        # A guess from the size is worth too little if texts must be translated.
        and (not one.translated or one.measured or one.declared)
    ]
    if here:
        best = here[0]
        return best, f"the draft is {best.name}: {best.why}."
    absent = next((one for one in all_of_them if one.gain > 1 and not one.file), None)
    fact = "no draft on this disk makes {} faster: drafts come from the text only."
    if absent:
        hint = "[ To download one, use {}.]"
        return None, Text(fact + hint, target.name, Pull(absent.name))
    return None, Text(fact + "[ To use one, set {draft} to a model.]", target.name)


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
        one = (opened or {}).get(path) or ModelFile(path, as_draft=True)
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
            bool(one.head),
            not one.declared,
            one.translated and not one.measured,
            not one.measured,
            -one.gain,
            one.name,
        ),
    )


def head_candidate(
    target: ModelFile, options: ContextOptions, draft_options: ContextOptions
) -> Candidate | None:
    """Return the candidate for the prediction head in a target's file, or None without one.

    Args:
        target: As for `choose`.
        options: As for `choose`.
        draft_options: As for `choose`.
    """
    if not n_heads(target.header):
        return None
    if why_not := why_no_head(target.header):
        return Candidate("mtp", target, 0.0, why_not, head="mtp")
    profile = read_profile(
        ModelKey(target, replace(options, head="own")),
        ModelKey(target, replace(draft_options, head="self")),
    )
    if profile:
        return replace(_measured("mtp", target, profile, declared=False), head="mtp")
    share = head_bytes(target.header) / target.header.file_bytes
    why = f"prediction head in the target's file; a pass reads {share:.0%} of its weights"
    return Candidate("mtp", target, _promise(share), why, head="mtp")


def _judge_head(
    name: str,
    file: ModelFile,
    target: ModelFile,
    options: ContextOptions,
    draft_options: ContextOptions,
    declared: bool,
) -> Candidate:
    """Return the candidate for a head in a file of its own, by the metadata of both files."""
    header, kind = file.header, head_kind(file.header)
    what = f"it is {described(header)}"
    why_not = why_no_head(header) or why_misfit(header, target.header)
    if why_not:
        return Candidate(name, file, 0.0, f"{what}: {why_not}", declared, head=kind)
    use = "to use it, name its file as the draft"
    profile = read_profile(
        ModelKey(target, replace(options, head="file", head_layers=target_layers(header))),
        ModelKey(file, replace(draft_options, head="self")),
    )
    if profile:
        one = _measured(name, file, profile, declared)
        return replace(one, why=f"{what}, {one.why}; {use}", head=kind)
    share = head_bytes(header) / target.header.file_bytes
    why = f"{what}, and fits the target; a pass reads {share:.0%} of the target's size; {use}"
    return Candidate(name, file, _promise(share), why, declared, head=kind)


def _measured(name: str, file: ModelFile, profile: Profile, declared: bool) -> Candidate:
    gain, k = profile.best(profile.agreement)
    why = f"measured on this machine: {gain:.2f} times plain decoding with {k} tokens a round"
    return Candidate(name, file, gain, why, declared, measured=True)


def _judge(
    name: str,
    file: ModelFile,
    target: ModelFile,
    options: ContextOptions,
    draft_options: ContextOptions,
    declared: bool,
) -> Candidate:
    """Return the candidate for a file, with its expected speed-up or the reason it cannot draft."""
    try:
        if is_head_alone(file.header):
            return _judge_head(name, file, target, options, draft_options, declared)
    except GgufSpecError as error:
        return Candidate(name, file, 0.0, str(error).rstrip("."), declared)
    why_not, share = _why_not(file, target)
    if why_not:
        return Candidate(name, file, 0.0, why_not, declared)
    translated = share < 1
    profile = read_profile(ModelKey(target, options), ModelKey(file, draft_options))
    if profile:
        return replace(_measured(name, file, profile, declared), translated=translated)
    size = file.header.file_bytes / target.header.file_bytes
    why = "it has the same vocabulary"
    if declared:
        why = "models.yaml names it"
    elif translated:
        why = f"it has another tokenizer, with {share:.0%} common tokens,"
    elif kept := trimmed(file.header):
        why = f"it has {len(kept.ids):,} of the target's tokens"
    why += f" and has {size:.0%} of the target's size"
    gain = _promise(size, share * _TRANSLATED if translated else 1.0)
    return Candidate(name, file, gain, why, declared, translated=translated)


def _why_not(file: ModelFile, target: ModelFile) -> tuple[str, float]:
    """Return the reason why a file cannot draft for the target, and the share of common tokens.

    The reason is empty if it can; the share is 1 if it has the target's vocabulary.
    """
    try:
        sizes = [format_bytes(one.header.file_bytes) for one in (file, target)]
        if file.header.file_bytes >= target.header.file_bytes:
            return f"it is not smaller than the target ({sizes[0]} against {sizes[1]})", 0.0
        why_not, share = _difference(target, file)
        is_recurrent = file.header.facts.cache in ("recurrent", "hybrid")
        if not why_not and is_recurrent and (share < 1 or trimmed(file.header)):
            return "it is recurrent or hybrid, and has other token ids than the target", 0.0
        return why_not, share
    except GgufSpecError as error:
        return str(error).rstrip("."), 0.0


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
    why = Text("it is not on this disk; to download it, use {}", Pull(entry.name))
    return Candidate(
        entry.name,
        None,
        _promise(entry.size_bytes / target.size_bytes),
        why,
        declared=entry.name == target.draft,
    )


def _difference(target: ModelFile, draft: ModelFile) -> tuple[str, float]:
    """Return the reason why vocabularies do not match, or an empty text, and their common share.

    The result is cached, because the comparison of large vocabularies is slow.
    """
    memo = cache_file("pairs", [_VERSION, *target.identity, *draft.identity])
    known = read_json(memo)
    if isinstance(known, dict) and isinstance(known.get("difference"), str):
        share = known.get("share")
        if isinstance(share, float) and 0 <= share <= 1:
            return str(known["difference"]), share
    difference, share = "", 1.0
    try:
        share = _common(FileVocabulary(target.header), FileVocabulary(draft.header))
    except GgufSpecError as error:
        difference, share = str(error).rstrip("."), 0.0
    write_json(memo, {"difference": difference, "share": share})
    return difference, share


def _common(target: FileVocabulary, draft: FileVocabulary) -> float:
    """Return the share of common tokens; 1 for the same vocabulary.

    Raises:
        VocabularyMismatchError: There are too few.
    """
    try:
        check_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        return min(common_share(target, draft, error), _NOT_ALL)
    return 1.0


def _promise(share: float, quality: float = 1.0) -> float:
    """Return the speed-up that a draft's relative size suggests, for ranking without measurements.

    A draft's cost is proportional to its size. Its acceptance rate grows with its size up to a
    limit.

    Args:
        share: Size of the draft divided by the size of the target.
        quality: Factor of the acceptance rate.
    """
    likely = quality * _LIKELY * share / (share + _SIZE_OF_LIKELY / 2)
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
