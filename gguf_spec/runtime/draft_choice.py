"""Choice of what drafts for a target: a prediction head, a draft model, or the text alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import NoSpeculationError, Option, Text
from ..gguf.heads import is_head_alone
from ..gguf.validation import Header, ModelFile
from ..llama.backend import has_room, with_snapshots
from ..llama.options import ContextOptions
from ..options import HEADS, Speculation
from ..registry.download import local
from ..registry.resolve import Entry, resolve
from .draft_search import choose, head_candidate
from .head_choice import NO_HEAD, HeadChoice, choose_head
from .parallel_choice import ParallelChoice
from .vision_choice import choose_slots


class Drafts(NamedTuple):
    """What drafts for a target.

    Attributes:
        models: Headers and options of the target, and of the file that is loaded for drafts.
        file: The file of a draft model, or None.
        head: The prediction head.
        of_head: Options of the prediction head.
        notes: Explanations of the choice.
        parallel_reason: Why that many requests run at once; empty if the user gave the number.
    """

    models: list[tuple[Header, ContextOptions]]
    file: ModelFile | None
    head: HeadChoice
    of_head: ContextOptions
    notes: list[str]
    parallel_reason: str


def drafts_of(
    entry: Entry,
    file: ModelFile,
    draft: str | Path | None,
    options: ContextOptions,
    of_draft: ContextOptions,
    models_file: Path | None,
    *,
    parallel: int | Literal["auto"],
    speculation: Speculation | None,
    has_projector: bool = False,
) -> Drafts:
    """Return what drafts for a target, a prediction head or a draft model.

    Raises:
        NoSpeculationError: Options of a draft model are given, and none is loaded; or a prediction
            head is asked for, and none can be used.
    """
    k = 0 if draft in (None, "none") else (speculation or Speculation()).k
    given: ModelFile | None = None
    if draft not in (None, "none", "ngram", "auto", "mtp"):
        given = ModelFile(local(resolve(draft, models_file)), as_draft=True)
    head, notes = NO_HEAD, list[str]()
    if draft not in (None, "none", "ngram"):
        n = choose_slots(parallel, [(file, options)], speculation, has_projector).n
        alone = replace(options, parallel=n)
        head, notes = _head_of(entry, file, draft, given, alone, speculation, has_projector)
    found: ModelFile | None = None if head.kind else given
    is_free = draft == "auto" and (speculation or Speculation()).drafter != "mtp"
    if head.kind and is_free:
        found, why = _faster_than_head(entry, file, options, of_draft, models_file)
        head, notes = (NO_HEAD, [*notes, *why]) if found else (head, notes)
    if draft == "auto" and not found and not head.kind and entry.draft != "ngram":
        one, reason = choose(entry, file, options, of_draft, models_file)
        found, notes = one.file if one else None, [*notes, *([reason] if reason else [])]
    if found and is_head_alone(found.header):  # it cannot be used, which a note explains
        found = None
    if of_draft.lora and not found:
        raise NoSpeculationError(
            "draft_lora",
            str(of_draft.lora[0].path),
            f"no draft model is loaded for the adapter {of_draft.lora[0].path.name}.",
            Text("set {draft} to a model | omit {draft_lora}."),
        )
    of_head = replace(of_draft, head="self")

    def models_with(
        head: HeadChoice,
    ) -> tuple[list[tuple[Header, ContextOptions]], ParallelChoice]:
        files = [(file, head.of_target(options))]
        files += [(found, of_draft)] if found else []
        files += [(head.file, of_head)] if head.file else []
        at_once = choose_slots(parallel, files, speculation, has_projector)
        models = [(one.header, replace(of, parallel=at_once.n)) for one, of in files]
        return with_snapshots(models, k), at_once

    models, at_once = models_with(head)
    if head.kind and is_free and not has_room(models):
        without, at_once_without = models_with(NO_HEAD)
        if has_room(without):
            head, models, at_once = NO_HEAD, without, at_once_without
            notes.append("the prediction head does not fit into memory: drafts come from the text.")
    return Drafts(models, found, head, of_head, notes, at_once.reason)


def _faster_than_head(
    entry: Entry,
    file: ModelFile,
    options: ContextOptions,
    of_draft: ContextOptions,
    models_file: Path | None,
) -> tuple[ModelFile | None, list[str]]:
    """Return a draft model that was measured as faster than the head, or None, and a note on it."""
    head = head_candidate(file, options, of_draft)
    if not head or not head.measured:
        return None, []
    best, why = choose(entry, file, options, of_draft, models_file)
    faster = best and best.measured and best.gain > head.gain
    return (best.file, [why]) if best and faster else (None, [])


def _head_of(
    entry: Entry,
    file: ModelFile,
    draft: str | Path | None,
    given: ModelFile | None,
    options: ContextOptions,
    speculation: Speculation | None,
    has_projector: bool,
) -> tuple[HeadChoice, list[str]]:
    """Return the prediction head that drafts, and notes on the choice.

    Raises:
        NoSpeculationError: A head is asked for, and none can be used.
    """
    asked = Option("draft", "mtp") if draft == "mtp" else None
    if speculation and (
        (draft == "auto" and speculation.drafter == "mtp")
        or (given and speculation.drafter in HEADS)
    ):
        asked = Option("drafter", speculation.drafter)
    if draft == "auto" and entry.draft not in (None, "ngram") and not asked:
        return NO_HEAD, []
    choice = choose_head(file, given, options, asked, has_projector)
    return choice, [f"{choice.why_not}: drafts come from elsewhere."] if choice.why_not else []
