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
from ..options import DRAFT_WORDS, K_MAX
from ..registry import download
from ..registry.models_file import BUNDLED
from ..registry.resolve import Entry, entries, local_models
from ..registry.trimmed import trimmed_copy
from ..speculative.vocabularies import check_vocabulary, common_share
from ..system.files import cache_file, read_json, write_json
from ..system.machine import format_bytes
from .load_options import LoadOptions
from .profile_files import ModelKey, read_profile

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

    @property
    def is_guess(self) -> bool:
        """Whether its texts must be translated and nothing else is known of it.

        An estimate from the file size alone is not reliable enough then: `auto` does not take it.
        """
        return self.translated and not (self.declared or self.measured)


def choose(load: LoadOptions) -> tuple[Candidate | None, str]:
    """Return the best draft on this disk, or None, and a sentence that explains the choice.

    The sentence is empty if models.yaml names the chosen draft.
    """
    target = load.entry
    if target.draft in DRAFT_WORDS:
        return (
            None,
            f"models.yaml names no draft model for {target.name}: drafts come from the text only.",
        )
    opened: dict[Path, ModelFile] = {}
    declared = entries(load.models_file).get(target.draft or "")
    if declared and (path := download.find(declared)):
        opened[path] = ModelFile(path, as_draft=True)
        draft = judged_draft(load, declared.name, opened[path], True)
        if draft.fits and not draft.head:
            return draft, ""
    all_of_them = candidates(load, opened, compares=False)
    for draft in all_of_them:
        is_usable = draft.file and not draft.head and not draft.is_guess
        if is_usable and (draft.gain > 1 or (draft.fits and draft.declared)):
            return draft, f"the draft is {draft.name}: {draft.why}."
    absent = next((draft for draft in all_of_them if draft.gain > 1 and not draft.file), None)
    fact = "no draft on this disk makes {} faster: drafts come from the text only."
    if absent:
        hint = "[ To download one, use {}.]"
        return None, Text(fact + hint, target.name, Pull(absent.name))
    return None, Text(fact + "[ To use one, set {draft} to a model.]", target.name)


def candidates(
    load: LoadOptions, opened: Mapping[Path, ModelFile] | None = None, *, compares: bool = True
) -> list[Candidate]:
    """Return all possible drafts for a target, best first; unusable ones are last.

    Args:
        opened: Files whose headers may have been read already.
        compares: Count the common tokens of all other tokenizers, which takes half a second each,
            and not only where the number may decide.

    Raises:
        ModelError: The target's own file is invalid.
    """
    _ = load.file.header  # raises the target's own error, before any candidate is judged
    judged: list[Candidate] = []
    seen, target = {load.file.identity}, _registered(load)

    def judge(name: str, path: Path, declared: bool = False) -> None:
        one = (opened or {}).get(path) or ModelFile(path, as_draft=True)
        if one.identity not in seen:
            seen.add(one.identity)
            judged.append(judged_draft(load, name, one, declared, compares or declared))

    for entry in entries(load.models_file).values():
        if path := download.find(entry):
            judge(entry.name, path, declared=entry.name == load.entry.draft)
        else:
            judged.append(_absent(entry, target))
    for path in _files(load.file.path):
        judge(path.name, path)
    return sorted(
        # the bundled models are for tests: no drafts of other families
        (
            one
            for one in judged
            if not (one.translated and one.path and BUNDLED in one.path.parents)
        ),
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


def trimmed_or_whole(load: LoadOptions, file: ModelFile) -> ModelFile:
    """Return the trimmed copy of a draft if there is one; adapters need the whole draft."""
    copy = None if load.of_draft.lora else trimmed_copy(file.paths)
    return ModelFile(copy, as_draft=True) if copy else file


def head_candidate(load: LoadOptions) -> Candidate | None:
    """Return the candidate for the prediction head in a target's file, or None without one."""
    target = load.file
    if not n_heads(target.header):
        return None
    if why_not := why_no_head(target.header):
        return Candidate("mtp", target, 0.0, why_not, head="mtp")
    share = head_bytes(target.header) / target.header.file_bytes
    gain, measured = _gain(
        ModelKey(target, replace(load.target, head="own")),
        ModelKey(target, replace(load.of_draft, head="self")),
        share,
    )
    why = f"prediction head in the target's file; a pass reads {share:.0%} of its weights"
    return Candidate("mtp", target, gain, measured or why, measured=bool(measured), head="mtp")


def _judge_head(load: LoadOptions, name: str, file: ModelFile, declared: bool) -> Candidate:
    """Return the candidate for a head in a file of its own, by the metadata of both files."""
    header, target = file.header, load.file
    kind, what = head_kind(header), f"it is {described(header)}"
    why_not = why_no_head(header) or why_misfit(header, target.header)
    if why_not:
        return Candidate(name, file, 0.0, f"{what}: {why_not}", declared, head=kind)
    share = head_bytes(header) / target.header.file_bytes
    gain, measured = _gain(
        ModelKey(target, replace(load.target, head="file", head_layers=target_layers(header))),
        ModelKey(file, replace(load.of_draft, head="self")),
        share,
    )
    why = f"and fits the target; a pass reads {share:.0%} of the target's size"
    why = f"{what}, {measured or why}; to use it, name its file as the draft"
    return Candidate(name, file, gain, why, declared, measured=bool(measured), head=kind)


def _gain(
    target: ModelKey, draft: ModelKey, size: float, quality: float = 1.0
) -> tuple[float, str]:
    """Return the expected speed-up, and how it was measured; empty if it was not."""
    profile = read_profile(target, draft)
    if not profile or not profile.knows_agreement:
        return _promise(size, quality), ""
    gain, k = profile.best(profile.agreement)
    return (
        gain,
        f"measured on this machine: {gain:.2f} times plain decoding with {k} tokens a round",
    )


def judged_draft(
    load: LoadOptions, name: str, file: ModelFile, declared: bool, compares: bool = True
) -> Candidate:
    """Return the candidate for a file, with its expected speed-up or the reason it cannot draft."""
    target = load.file
    try:
        if is_head_alone(file.header):
            return _judge_head(load, name, file, declared)
        file = trimmed_or_whole(load, file)
        why_not, share = "", 0.0
        if file.header.file_bytes >= target.header.file_bytes:
            sizes = [format_bytes(one.header.file_bytes) for one in (file, target)]
            why_not = f"it is not smaller than the target ({sizes[0]} against {sizes[1]})"
        else:
            why_not, share = _difference(target, file, compares)
            is_recurrent = file.header.facts.cache in ("recurrent", "hybrid")
            if not why_not and is_recurrent and (share < 1 or trimmed(file.header)):
                why_not = "it is recurrent or hybrid, and has other token ids than the target"
    except GgufSpecError as error:
        why_not = str(error).rstrip(".")
    if why_not:
        return Candidate(name, file, 0.0, why_not, declared)
    translated = share < 1
    size = file.header.file_bytes / target.header.file_bytes
    gain, measured = _gain(
        ModelKey(target, load.target),
        ModelKey(file, load.of_draft),
        size,
        share * _TRANSLATED if translated else 1.0,
    )
    why = "it has the same vocabulary"
    if declared:
        why = "models.yaml names it"
    elif translated:
        why = f"it has another tokenizer, with {share:.0%} common tokens,"
    elif kept := trimmed(file.header):
        why = f"it has {len(kept.ids):,} of the target's tokens"
    why = measured or f"{why} and has {size:.0%} of the target's size"
    return Candidate(
        name, file, gain, why, declared, measured=bool(measured), translated=translated
    )


def _registered(load: LoadOptions) -> Entry:
    """Return the target's entry; for a file that a named model has, that of the named model."""
    if load.entry.tokenizer is None:
        real, size = load.file.path.resolve().name.lower(), load.file.header.file_bytes
        for entry in entries(load.models_file).values():
            for part in entry.parts[:1]:
                names = (part.file.rpartition("/")[2].lower(), f"sha256-{part.sha256}", part.sha256)
                if real in names and part.size_bytes == size:
                    return entry
    return load.entry


def _absent(entry: Entry, target: Entry) -> Candidate:
    """Return the candidate for a model that is not on this disk, by its models.yaml entry."""
    gain, tokenizers = 0.0, (target.tokenizer, entry.tokenizer)
    if entry.name == target.name:
        why = "it is the target itself"
    elif not all(tokenizers):
        why = "it is not on this disk, so its vocabulary cannot be compared"
    elif entry.tokenizer != target.tokenizer:
        why = f"it is not on this disk; by models.yaml it has another tokenizer, {entry.tokenizer}"
    elif not (entry.size_bytes and target.size_bytes and entry.size_bytes < target.size_bytes):
        why = "it is not on this disk, and not smaller than the target"
    else:
        gain = _promise(entry.size_bytes / target.size_bytes)
        why = Text("it is not on this disk; to download it, use {}", Pull(entry.name))
    is_declared = gain > 0 and entry.name == target.draft
    return Candidate(entry.name, None, gain, why, is_declared)


def _difference(target: ModelFile, draft: ModelFile, compares: bool) -> tuple[str, float]:
    """Return the reason why vocabularies do not match, or an empty text, and their common share.

    The result is cached, because the comparison of large vocabularies is slow. If not `compares`,
    the share of another tokenizer is the largest possible one, unless it is in the cache.
    """
    memo = cache_file("pairs", [_VERSION, *target.identity, *draft.identity])
    known = read_json(memo)
    if isinstance(known, dict) and isinstance(known.get("difference"), str):
        share = known.get("share")
        if isinstance(share, float) and 0 <= share <= 1:
            return str(known["difference"]), share
        if share is None and not compares:
            return "", _NOT_ALL
    difference, found = "", None
    try:
        found = _common(FileVocabulary(target.header), FileVocabulary(draft.header), compares)
    except GgufSpecError as error:
        difference, found = str(error).rstrip("."), 0.0
    write_json(memo, {"difference": difference, "share": found})
    return difference, _NOT_ALL if found is None else found


def _common(target: FileVocabulary, draft: FileVocabulary, compares: bool) -> float | None:
    """Return the share of common tokens: 1 for the same vocabulary, None if it was not counted.

    Raises:
        VocabularyMismatchError: There are too few.
    """
    try:
        check_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        return min(common_share(target, draft, error), _NOT_ALL) if compares else None
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
