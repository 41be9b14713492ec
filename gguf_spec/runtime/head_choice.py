"""Choice of the prediction head that drafts for a target, and its loading."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from ..errors import GgufSpecError, NoSpeculationError, Option, Text
from ..gguf.heads import is_eagle, is_head_alone, n_heads, target_layers, why_misfit, why_no_head
from ..gguf.validation import ModelFile
from ..llama.eagle_head import open_head
from ..llama.head import Head
from ..llama.head_probe import why_head_fails
from ..llama.model import Model
from ..llama.native_head import extensions
from ..llama.options import ContextOptions
from ..llama.target_rows import layer_functions


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

    def of_target(self, options: ContextOptions) -> ContextOptions:
        """Return options of a target that sends rows to this head."""
        layers = target_layers(self.file.header) if self.file else ()
        return replace(options, head=self.kind, head_layers=layers)


NO_HEAD = HeadChoice()
NOT_WITH_PARALLEL = "prediction heads are not used with parallel requests"
"""Why a head is not used if several requests run at once."""


def choose_head(
    target: ModelFile,
    draft: ModelFile | None,
    options: ContextOptions,
    asked: Option | None,
    has_projector: bool = False,
) -> HeadChoice:
    """Return the head that drafts for a target.

    Args:
        target: The target's file.
        draft: The file that is named as the draft; None for a head in the target's file.
        options: Options of the target.
        asked: The option that asks for a head, with its value; None if one is only used where there
            is one.
        has_projector: Whether the target sees images, of which a head has no rows.

    Raises:
        NoSpeculationError: A head is asked for, and none can be used.
    """
    header = draft.header if draft else target.header
    if draft and not is_head_alone(header):
        return NO_HEAD
    if not (draft or asked or n_heads(header)):
        return NO_HEAD
    why = _why_not(target, draft, options, has_projector)
    if why and asked:
        raise NoSpeculationError(
            asked.name,
            asked.value,
            f"{why}.",
            Text("set {draft='auto'} and {drafter='auto'}."),
        )
    if why:
        return HeadChoice(why_not=why)
    return HeadChoice("file" if draft else "own", draft)


def _why_not(
    target: ModelFile, draft: ModelFile | None, options: ContextOptions, has_projector: bool
) -> str:
    """Return why a head cannot be used, as a sentence; empty if it can."""
    header = draft.header if draft else target.header
    if why := why_no_head(header) or (why_misfit(header, target.header) if draft else ""):
        return why
    if extensions() is None or (is_eagle(header) and layer_functions() is None):
        return "this build of llama-cpp-python has no functions for prediction heads"
    if has_projector:
        return "prediction heads are not used with images"
    if options.parallel > 1:
        return NOT_WITH_PARALLEL
    if options.rpc:
        return "prediction heads are not used for a target on workers"
    return why_head_fails(target, draft)


def load_head(
    target: Model, choice: HeadChoice, options: ContextOptions
) -> tuple[Head | None, list[str]]:
    """Open the head of a loaded target; return None and the reason if llama.cpp cannot.

    Args:
        target: The target.
        choice: The head.
        options: Options of the draft model.
    """
    try:
        options = replace(options, n_ctx=target.n_ctx, head="self")
        return open_head(target, options, choice.file), []
    except GgufSpecError as error:
        target.without_head()
        reason = str(error).rstrip(".")
        return None, [f"the prediction head is not used ({reason}): drafts come from the text."]
