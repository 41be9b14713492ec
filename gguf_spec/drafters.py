"""Table of the sources of drafts; distributions add to it with the entry point group of its name.

The option `drafter`, its check, its help, the words of `draft` and the settings that `verify` and
`bench` compare are made from the table. It imports no drafter: one that another distribution has is
imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import PluginError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["DRAFTERS", "DrafterKind"]


class DrafterKind(NamedTuple):
    """A source of drafts; `drafter` of `Speculation` is its name.

    Attributes:
        help: What it is, in a few words.
        needs: What must be loaded beside the target: `model` (a draft model or a prediction head)
            or `head` (a head of this name), which drafts too; empty for nothing.
        make: Function from the `ModelPair` to the drafters of one request that take no passes
            (`speculative.drafters.TextDrafter`: a name, prior acceptance rates, proposals), or its
            place, `module:name`; None for none.
        word: What its name means as `draft` of `load`; empty if that is no such word.
        lengths: Draft lengths that `verify` compares with plain decoding.
    """

    help: str
    needs: str = ""
    make: Callable[[Any], Sequence[Any]] | str | None = None
    word: str = ""
    lengths: Sequence[int] = ()

    def drafters(self, pair: Any) -> list[Any]:
        """Return new drafters without passes for a request of a model pair."""
        make: Any = self.make
        if isinstance(make, str):
            module, _, name = make.partition(":")
            make = getattr(import_module(module), name)
        return [*make(pair)] if make else []


_TEXT = "gguf_spec.speculative.drafters.ngram:make"
DRAFTERS: dict[str, DrafterKind] = {
    "auto": DrafterKind(
        "all that are available, by their estimated gain", word="the best draft on this disk"
    ),
    "model": DrafterKind(
        "the draft model or the prediction head that is loaded", "model", lengths=(1, 3, 7)
    ),
    "mtp": DrafterKind(
        "the prediction head of the target (multi-token prediction)",
        "head",
        word="the prediction head in the target's file",
    ),
    "eagle3": DrafterKind("an EAGLE-3 head", "head"),
    "ngram": DrafterKind(
        "earlier text, prompt included", make=_TEXT, word="the text only", lengths=(1, 3, 7)
    ),
    "hybrid": DrafterKind(
        "for each token the more confident of text and model", "model", _TEXT, lengths=(7,)
    ),
}


@lru_cache(maxsize=1)
def installed() -> Mapping[str, EntryPoint]:
    """Return the entry points of other distributions by the names of their drafters."""
    from importlib.metadata import entry_points  # slow: it looks at all distributions

    return {one.name: one for one in entry_points(group=__name__) if one.name not in DRAFTERS}


def kind_of(name: str) -> DrafterKind:
    """Return the row of a drafter of the table or of another distribution.

    Raises:
        PluginError: That of another distribution cannot be imported, or is no `DrafterKind`.
    """
    if name in DRAFTERS:
        return DRAFTERS[name]
    place = installed()[name]
    try:
        kind = place.load()
    except Exception as error:
        why = f"cannot be imported ({type(error).__name__}: {error})"
    else:
        if isinstance(kind, DrafterKind):
            return kind
        why = f"is no DrafterKind but {type(kind).__name__}"
    raise PluginError(name, place.dist.name if place.dist else place.value, why)
