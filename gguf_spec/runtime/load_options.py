"""Options of a load, and the plan of what it opens. Nothing here needs llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..gguf.validation import Header, ModelFile
from ..llama.options import ContextOptions
from ..options import Draft, Speculation
from ..registry.resolve import Entry
from ..results import OnProgress

Files = list[tuple[ModelFile, ContextOptions]]
_SEARCHED = Draft("auto")
# Why a head is not used if several requests run at once.
NOT_WITH_PARALLEL = "prediction heads are not used with parallel requests"


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """A target on this disk, and the options with which it is loaded; others as for `load`.

    Attributes:
        target: Options of the target; saved measurements are looked up by them.
        of_draft: The same for a draft model, or for a prediction head in a file of its own.
        projector: Header of the projector, or None.
        text: Text as an additional source of drafts, or None.
        notes: Explanations of the choice of the target.
    """

    entry: Entry
    file: ModelFile
    target: ContextOptions
    of_draft: ContextOptions
    projector: Header | None = None
    text: str | None = None
    notes: Sequence[str] = ()
    models_file: Path | None = None
    draft: Draft = _SEARCHED
    parallel: int | Literal["auto"] = 1
    max_gap: float | None = None
    speculation: Speculation | None = None
    draft_texts: str | Path = "memory"
    prefix_memory: int | str = "auto"
    keep: int | str | Path | None = None
    progress: OnProgress | None = None
    on_measure: Callable[[], object] | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None

    @property
    def is_plain(self) -> bool:
        return self.draft.word == "none"


class HeadChoice(NamedTuple):
    """The prediction head that drafts.

    Attributes:
        kind: `own` for a head in the target's file, `file` for one in a file of its own; empty for
            none.
        file: Its own file.
        why_not: Why a head that was found or asked for is not used, as a sentence.
    """

    kind: Literal["", "own", "file"] = ""
    file: ModelFile | None = None
    why_not: str = ""


NO_HEAD = HeadChoice()


@dataclass(frozen=True)
class Plan:
    """Files and options that a load opens, with the reasons. Nothing is loaded yet.

    Attributes:
        files: Files and options of the target, and of the file that is loaded for drafts.
        draft: The file of a draft model, or None.
        notes: Explanations of the choice of the target and of the drafts.
        parallel_reason: Why that many requests run at once; empty if the user gave the number.
    """

    load: LoadOptions
    files: Files
    draft: ModelFile | None = None
    head: HeadChoice = NO_HEAD
    notes: tuple[str, ...] = ()
    parallel_reason: str = ""

    @property
    def target(self) -> ContextOptions:
        """Options of the target, with numbers in place of `auto`."""
        return self.files[0][1]

    @property
    def headers(self) -> list[tuple[Header, ContextOptions]]:
        """Headers and options of the files, for estimates of memory."""
        return [(file.header, options) for file, options in self.files]

    def draft_notes(self, notes: Sequence[str]) -> list[str]:
        """Return those of the notes that are about drafts the user did not decide about.

        The notes of the load are about the target. The user may choose between parallel requests
        and the head.
        """
        chosen = self.head.why_not == NOT_WITH_PARALLEL
        drafts = [one for one in notes if one not in self.load.notes]
        return [one for one in drafts if not (chosen and one.startswith(NOT_WITH_PARALLEL))]
